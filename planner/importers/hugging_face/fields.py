"""Reads the keys of a config.json: values checked one by one, all problems kept with their places; and notes on keys that nobody read.

``families.yaml`` beside this module says what is known of Hugging Face's model types: rows of facts, and by whom each is read.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml

from planner.core.errors import FileProblem, InputFileError, did_you_mean
from planner.files.documents import Document, Location
from planner.files.validation import error_text

_MAX_EXTENT = 10**9  # as in network files
_MAX_TIMES = 5000  # repetitions of some layers: more than any network has layers
# A key that nobody reads and that is this near to an absent key that matters is a typing error. Keys of published configs that are
# neighbours without being each other ("use_sliding_window" and "sliding_window", 0.875) stay below.
_TYPING_ERROR = 0.9
# Width, depth and heads: what a network is. The defaults of a config class are those of one network of its family; to take them for
# another's would give an answer about a network that nobody asked about.
_ESSENTIAL = frozenset(
    {
        *("hidden_size", "n_embd", "d_model"),
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        *("num_attention_heads", "n_head", "n_heads", "num_heads"),
        *("dim",),
    }
)

_NOT_IN_WORDS = re.compile(r"[^A-Za-z0-9_.+-]+")
_STATED = (
    *("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "shared_expert_intermediate_size"),
    *("first_k_dense_replace", "num_nextn_predict_layers", "attention_bias", "mlp_bias"),
)
# Steps between layers with experts, of which 1 (every layer) changes nothing.
_STEPS = ("decoder_sparse_step", "moe_layer_freq")
_REASONS = {"num_nextn_predict_layers": "layers for multi-token prediction are not built"}


class Fields:
    """The keys of one config.

    Every reader takes a key and what the published config class has for it where it is absent; ``aliases`` are other names
    that the class accepts. A value that cannot be used is noted and replaced by the default, so that one pass finds every problem;
    `check` raises them.

    Parameters
    ----------
    document : Document
        The file; its value is a mapping.
    config_class : str
        Name of the config class that the defaults come from, for messages.
    base : tuple
        Where in the document the mapping stands.
    is_part : bool
        It is one network of several: the classes named at the top are not its own, and published files say of it only what differs from
        its config class, be it nothing.

    Examples
    --------
    >>> from pathlib import Path
    >>> from planner.files.documents import document_of
    >>> fields = Fields(document_of(Path("config.json"), "", {"n_head": 12, "n_layer": "12"}), "GPT2Config")
    >>> fields.count("n_head", 8), fields.count("n_positions", 1024), fields.count("n_layer", 6)
    (12, 1024, 6)
    >>> fields.check()
    Traceback (most recent call last):
    planner.core.errors.InputFileError: config.json: n_layer: expected a whole number, got '12'; write 12
    """

    def __init__(self, document: Document, config_class: str, *, base: Location = (), is_part: bool = False) -> None:
        self.document = document
        self.config_class = config_class
        self.notes: list[str] = []
        self._base = base
        self._values: dict[str, Any] = document.value
        for step in base:
            self._values = self._values[step]  # type: ignore[index]
        self._parts: list[Fields] = []
        self._problems: list[FileProblem] = []
        self._read: set[str] = set()
        self._names: dict[str, str] = {}  # key -> name under which the file has it
        self._is_part = is_part
        self._faulty: set[str] = set()
        self._defaults: dict[str, object] = {}
        self._missing: dict[str, object] = {}  # essential key -> what the config class has for it

    # -- values ------------------------------------------------------------------------------------------------------------

    def count(self, key: str, default: int | None, *aliases: str, minimum: int = 1, maximum: int = _MAX_EXTENT) -> int:
        """Read a whole number; absent without a default (None), it is a problem."""
        value = self._value(key, default, aliases)
        usable = minimum if default is None else default
        if value is None and key not in self._names:
            self.problem(key, f"missing key '{key}', which {self.config_class} gives no default")
        elif key in _ESSENTIAL and key not in self._names and not self._is_part:
            self._missing[key] = self._defaults.pop(key)
            self._faulty.add(key)
        else:
            return int(self._used(key, value, _fault_of_count(value, minimum, maximum), usable))
        return usable

    def optional_count(
        self, key: str, default: int | None, *aliases: str, minimum: int = 1, maximum: int = _MAX_EXTENT
    ) -> int | None:
        """Read a whole number or null."""
        value = self._value(key, default, aliases)
        fault = None if value is None else _fault_of_count(value, minimum, maximum)
        found: int | None = self._used(key, value, fault and f"{fault} (or null)", default)
        return found

    def flag(self, key: str, default: bool, *aliases: str) -> bool:
        """Read true or false."""
        value = self._value(key, default, aliases)
        fault = None if isinstance(value, bool) else error_text({"type": "bool_type", "input": _plain(value)}) or ""
        return bool(self._used(key, value, fault, default))

    def probability(self, key: str, default: float, *aliases: str) -> float:
        """Read a rate of dropout: from 0 to less than 1."""
        value = self._value(key, default, aliases)
        is_rate = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1
        fault = None if is_rate else f"expected a number from 0 to less than 1, got {shown(value)}"
        return float(self._used(key, value, fault, default))

    def word(self, key: str, default: str, allowed: Iterable[str], *aliases: str) -> str:
        """Read one of some words."""
        value = self._value(key, default, aliases)
        return str(self._used(key, value, _fault_of_word(value, list(dict.fromkeys(allowed))), default))

    def words(self, key: str, allowed: Sequence[str], length: int | None, *aliases: str) -> list[str] | None:
        """Read a list with a word per layer, of which there are ``length``; None where it is absent or null."""
        words = self._entries(key, "words, one per layer", lambda word: _fault_of_word(word, allowed), *aliases)
        self._check_length(key, words, length)
        return None if key in self._faulty else words

    def letters(self, key: str, allowed: Sequence[str], length: int | None) -> str | None:
        """Read a word with a letter per layer; None where it is absent or null."""
        value = self._value(key, None, ())
        if value is not None and (not isinstance(value, str) or not set(value) <= set(allowed)):
            self.problem(key, f"expected a letter per layer, of {' '.join(allowed)}; got {shown(value)}")
            return None
        self._check_length(key, value, length)
        return None if key in self._faulty else value

    def spans(self, key: str, allowed: Sequence[str], length: int) -> list[str] | None:
        """Read words in turn and how often, ``[[[word, word], times], ...]``, as a word per layer; None where it is absent or null."""

        def fault_of(span: object) -> str | None:
            if not isinstance(span, list) or len(span) != 2 or not isinstance(span[0], list):
                return f"expected [[word, ...], times]; got {shown(span)}"
            faults = (_fault_of_word(word, allowed) for word in span[0])
            return next((fault for fault in faults if fault), None) or _fault_of_count(span[1], 0, _MAX_TIMES)

        spans = self._entries(key, "[[word, ...], times]", fault_of)
        if spans is None or key in self._faulty:
            return None
        count = sum(len(words) * times for words, times in spans)
        if count != length:
            self.problem(key, f"is of {count} layers; the network has {length}")
            return None
        return [word for words, times in spans for word in words * times]

    def _check_length(self, key: str, entries: Sequence[object] | None, length: int | None) -> None:
        if entries is not None and length is not None and len(entries) != length:
            self.problem(key, f"has {len(entries)} entries; the network has {length} layers")

    def indices(self, key: str, length: int) -> frozenset[int]:
        """Read a list of numbers of layers, counted from 0; absent or null, it is empty."""
        return frozenset(self.numbers(key, length - 1, "numbers of layers"))

    def numbers(self, key: str, maximum: int, what: str = "numbers") -> list[int]:
        """Read a list of numbers from 0 on; absent or null, it is empty."""
        numbers = self._entries(key, what, lambda number: _fault_of_count(number, 0, maximum))
        return [] if key in self._faulty else numbers or []

    def _entries(
        self, key: str, what: str, fault_of: Callable[[object], str | None], *aliases: str
    ) -> list[Any] | None:
        value = self._value(key, None, aliases)
        if value is not None and not isinstance(value, list):
            self.problem(key, f"expected a list of {what}; got {shown(value)}")
            return None
        for index, item in enumerate(value or ()):
            fault = fault_of(item)
            if fault is not None:
                self.problem(key, fault, index)
        return value

    def _used(self, key: str, value: Any, fault: str | None, default: Any) -> Any:
        """A value, or the default in place of a faulty one."""
        if fault is None:
            return value
        self.problem(key, fault)
        return default

    def extent(self, key: str, default: int) -> tuple[int, int]:
        """Read a height and width: one number for both, or two."""
        value = self._value(key, default, ())
        numbers = value if isinstance(value, list) and len(value) == 2 else [value, value]
        fault = _fault_of_count(numbers[0], 1, _MAX_EXTENT) or _fault_of_count(numbers[1], 1, _MAX_EXTENT)
        hint = ", or [height, width]" if isinstance(value, list) else ""
        height, width = self._used(key, numbers, fault and fault + hint, (default, default))
        return height, width

    def labels(self) -> int:
        """Number of classes: ``num_labels``, or the size of ``id2label``; PretrainedConfig has 2."""
        labels = self._value("id2label", None, ())
        if labels is not None and not isinstance(labels, dict):
            self.problem("id2label", f"expected a mapping of numbers to names; got {shown(labels)}")
            labels = None
        count = self.count("num_labels", len(labels) if labels else 2)
        if labels and "num_labels" in self._names and count != len(labels):
            self.problem("num_labels", f"is {count}, but 'id2label' names {len(labels)} classes")
        return count

    def architecture(self, allowed: Sequence[str]) -> str:
        """Class of the network, from ``architectures``; the first of ``allowed`` where it is absent.

        Letter case is ignored: MPT's own code writes ``MPTForCausalLM``, the library ``MptForCausalLM``.
        """
        value = self._value("architectures", None, ())
        if value is None or value == [] or (self._is_part and not self._base):
            return allowed[0]
        if not isinstance(value, list) or not isinstance(value[0], str):
            self.problem("architectures", f"expected a list of names of classes; got {shown(value)}")
            return allowed[0]
        found = {name.lower(): name for name in allowed}.get(value[0].lower())
        if found is None:
            known = f"{did_you_mean(value[0], allowed)} (known: {', '.join(allowed)})"
            self.problem("architectures", f"'{value[0][:60]}' cannot be read here{known}", 0)
        return found or allowed[0]

    def has(self, key: str) -> bool:
        """Whether the file gives a key a value other than null."""
        self._read.add(key)
        return self._values.get(key) is not None

    def inner(self, key: str, config_class: str) -> Fields:
        """Read a mapping inside this one; absent, null or wrong, it is empty."""
        value = self._value(key, None, ())
        if value is not None and not isinstance(value, dict):
            self.problem(key, f"expected a mapping; got {shown(value)}")
        part = Fields(self.document, config_class, base=(*self._base, key) if isinstance(value, dict) else ())
        if not isinstance(value, dict):
            part._values = {}
        self._parts.append(part)
        return part

    def refuse(self, key: str, value: bool, why: str) -> None:
        """Note a switch that is on and has no counterpart here."""
        if self.flag(key, value) != value:
            self.problem(key, why)

    # -- problems ----------------------------------------------------------------------------------------------------------

    def problem(self, key: str, message: str, *rest: int) -> None:
        """Note what is wrong with a key's value, or with one entry of its list."""
        self._faulty.add(key)
        name = self._names.get(key, key)
        self._problems.append(self.document.problem((*self._base, name, *rest), message))

    def contradiction(self, key: str, message: str, *others: str) -> None:
        """Note that a value does not go with others, unless one of them is wrong by itself."""
        if not self._faulty & {key, *others}:
            self.problem(key, message)

    def check(self) -> None:
        """Raise what was found.

        Raises
        ------
        InputFileError
            Every problem, with its line and column.
        """
        meant: set[str] = set()  # absent keys that others were probably meant to be
        absent = sorted(key for key in self._read if key not in self._values)
        for key in self._values:
            near = [] if key in self._read else difflib.get_close_matches(key, absent, n=1, cutoff=_TYPING_ERROR)
            if near:
                message = f"unknown key '{key[:60]}'; did you mean '{near[0]}'?"
                self._problems.append(self.document.problem((*self._base, key), message, at_key=True))
                meant.add(near[0])
        for key, default in self._missing.items():
            if key not in meant:
                why = "but width, depth and heads are what a network is: write it"
                self.problem(key, f"missing key '{key}'; {self.config_class} has {default}, {why}")
        found = [*self._problems, *(problem for part in self._parts for problem in part._problems)]
        # Duplicate keys matter wherever they are; a number that cannot be represented only where it is read.
        children = (self.document.root.children or {}).items()
        read = {(node.line, node.column) for key, node in children if key in self._read}
        faults = [p for p in self.document.problems if p.message.startswith("duplicate") or (p.line, p.column) in read]
        places = {(fault.line, fault.column) for fault in faults if fault.line}
        problems = [*faults, *(problem for problem in found if (problem.line, problem.column) not in places)]
        if problems:
            raise InputFileError(problems)
        if self._defaults:
            values = ", ".join(f"{key} {value}" for key, value in self._defaults.items())
            self.notes.append(f"not written in the file, so as in {self.config_class}: {values}")

    def _value(self, key: str, default: object, aliases: tuple[str, ...]) -> Any:
        """Value of a key under whichever name the file has it."""
        self._read |= {key, *aliases}
        for name in (key, *aliases):
            if name in self._values:
                self._names[key] = name
                return self._values[name]
        if isinstance(default, int) and not isinstance(default, bool):
            self._defaults[key] = default
        return default

    # -- keys that are not read --------------------------------------------------------------------------------------------

    def notes_of_unread(self, model_type: str) -> list[str]:
        """Say which keys state something about the network and were not read by the reader of the type.

        Examples
        --------
        >>> from pathlib import Path
        >>> from planner.files.documents import document_of
        >>> document = document_of(Path("config.json"), "", {"num_experts": 8, "rope_theta": 1e4})
        >>> Fields(document, "LlamaConfig").notes_of_unread("llama")
        ['num_experts (8) is not used: llama has no such key']
        """
        unread = {key: value for key, value in self._values.items() if key not in self._read}
        reason = f"{model_type} has no such key"
        found = {key: unread[key] for key in _STATED if unread.get(key)}
        found |= {key: unread[key] for key in _STEPS if unread.get(key) not in (None, 1)}
        found |= {key: unread[key] for key in ("mlp_only_layers",) if unread.get(key)}
        notes = [f"{key} ({shown(value)}) is not used: {_REASONS.get(key, reason)}" for key, value in found.items()]
        # Windows that the type does not have, or has though the file switches them off.
        size, switch = unread.get("sliding_window"), self._values.get("use_sliding_window")
        if size is not None and switch is not False:
            # Types that have the switch take it to be off where the file does not have it.
            is_off = "use_sliding_window" not in self._values and "use_sliding_window" in self._read
            why = "use_sliding_window is absent, and so false" if is_off else reason
            notes.append(f"sliding_window ({shown(size)}) is not used: {why}")
        if unread.get("use_sliding_window") is False and self._values.get("sliding_window") and size is None:
            notes.append(f"use_sliding_window (false) is not used: {reason}; sliding_window null switches windows off")
        types = unread.get("layer_types")
        kinds = types if isinstance(types, list) else [types]
        if types is not None and any(kind != "full_attention" for kind in kinds):
            words = dict.fromkeys(_word(kind) for kind in kinds if isinstance(kind, str))
            notes.append(f"layer_types ({', '.join(list(words)[:4]) or shown(types)}) is not used: {reason}")
        return notes


def _fault_of_count(value: object, minimum: int, maximum: int) -> str | None:
    """Say why a value is no whole number of a range, in the words of network files; None where it is one."""
    value = _plain(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return error_text({"type": "int_type", "input": value})
    if value < minimum:
        return error_text({"type": "greater_than_equal", "ctx": {"ge": minimum}, "input": value})
    if value > maximum:
        return error_text({"type": "less_than_equal", "ctx": {"le": maximum}, "input": value})
    return None


def _fault_of_word(value: object, allowed: Sequence[str]) -> str | None:
    """Say why a value is none of some words; None where it is one."""
    if isinstance(value, str) and value in allowed:
        return None
    hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
    return f"expected one of {', '.join(allowed)}; got {shown(value)}{hint}"


def _plain(value: object) -> object:
    """JSON's words for numbers that are not finite, as they are written."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def shown(value: object) -> str:
    """A value as a message names it."""
    value = _plain(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a mapping"
    return f"'{value[:60]}'" if isinstance(value, str) else str(value)


def notes_of_quantization(config: Mapping[str, Any], part: str | None) -> list[str]:
    """Say that a checkpoint's quantization has no part in the answer: how numbers are stored is the run's own choice.

    Parameters
    ----------
    config : mapping
        The whole config.
    part : str, optional
        Key of the part of it that is read, which may have its own.

    Examples
    --------
    >>> notes_of_quantization({"quantization_config": {"quant_method": "gptq", "bits": 4}}, None)
    ["quantization_config (gptq, 4 bits) is not used: weights are in the run's number format (--precision)"]
    """
    inside = config.get(part) if part else None
    for holder in (config, inside):
        stated = holder.get("quantization_config") if isinstance(holder, Mapping) else None
        if stated is None or stated == {}:
            continue
        details = _quantization(stated) if isinstance(stated, Mapping) else []
        how = f" ({', '.join(details)})" if details else ""
        return [f"quantization_config{how} is not used: weights are in the run's number format (--precision)"]
    return []


def _quantization(stated: Mapping[str, Any]) -> list[str]:
    """Method and bits of a weight, under the names that gptq, awq and bitsandbytes have for them."""
    method = stated.get("quant_method")
    details = [_word(method)] if isinstance(method, str) and _word(method) else []
    bits = next((stated[key] for key in ("bits", "w_bit") if key in stated), None)
    bits = 4 if stated.get("load_in_4bit") is True else 8 if stated.get("load_in_8bit") is True else bits
    if isinstance(bits, int) and not isinstance(bits, bool) and 0 < bits <= 64:
        details.append(f"{bits} bits")
    return details


def _word(text: str) -> str:
    return _NOT_IN_WORDS.sub("-", text)[:40].strip("-")


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT = Path(__file__).with_name("families.yaml").read_text(encoding="utf-8")
_TABLE: dict[str, Any] = yaml.load(_TEXT, _LOADER)  # noqa: S506 - a safe one


def _filled(row: dict[str, Any], kind: str) -> SimpleNamespace:
    """A row with what it leaves out."""
    unknown = row.keys() - _TABLE[kind].keys()
    assert not unknown, f"families.yaml: no such facts: {unknown}"
    return SimpleNamespace(**{**_TABLE[kind], **row})


def _rows(kind: str) -> dict[str, SimpleNamespace]:
    return {model_type: _filled(row, kind) for model_type, row in _TABLE[f"{kind}s"].items()}


def _decoder(row: dict[str, Any]) -> SimpleNamespace:
    known = _filled(row, "decoder")
    known.sizes = SimpleNamespace(**known.sizes)
    known.keys = {**_TABLE["decoder"]["keys"], **known.keys}
    known.experts = known.experts and _filled(known.experts, "experts")
    return known


ENCODERS, ENCODER_DECODERS = _rows("encoder"), _rows("encoder_decoder")
DECODERS = {model_type: _decoder(row) for model_type, row in _TABLE["decoders"].items()}


class Architecture(NamedTuple):
    """Where a model type is read."""

    config_class: str
    module: str  # imported on first use
    reader: str


ARCHITECTURES: dict[str, Architecture] = {
    **{
        model_type: Architecture(known.config_class or f"{known.title}Config", "decoders", "read_decoder")
        for model_type, known in DECODERS.items()
    },
    **{model_type: Architecture(*row) for model_type, row in _TABLE["others"].items()},
}
WITH_TEXT_PART: dict[str, str] = _TABLE["with_text_part"]
TEXT_PARTS: dict[str, str] = _TABLE["text_parts"]
REFUSED: dict[str, str] = {model_type: why for why, types in _TABLE["refused"].items() for model_type in types}
