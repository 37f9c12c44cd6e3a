"""Network files unfolded: blocks, repetitions and branches become layers with full names and resolved inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from costmodel.network.layers import FAMILIES
from costmodel.network.layers.base import LayerSpec
from planner.core.errors import FileProblem, InputFileError, did_you_mean
from planner.files.documents import Document, Location, Node
from planner.files.validation import error_text
from planner.schema.common import is_reference
from planner.schema.model import (
    MAX_LAYERS,
    TRAINING_KEYS,
    Block,
    BlockUse,
    Branches,
    LayerEntry,
    NetworkFile,
    layer_model,
)


@dataclass(frozen=True, slots=True)
class Value:
    """A parameter's value, where it was written, and the scope whose names it may use."""

    value: Any
    location: Location
    scope: Scope


@dataclass(frozen=True, slots=True)
class Target:
    """An input as written: a word of a scope."""

    text: str
    location: Location
    scope: Scope


@dataclass(slots=True)
class Scope:
    """What the names of a list of layers mean. Branches see their surroundings (``parent``), blocks do not."""

    prefix: str
    parent: Scope | None = None
    input: str | Target | None = None  # full name, or not yet looked up
    values: Mapping[str, Value] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    nesting: int = 0
    block: str = ""  # whose body this is
    instance: str = ""  # full name of the outermost repetition around
    frozen: bool = False


# -- what is kept while names are not looked up yet --------------------------------------------------------------------------


MAX_NESTING = 16  # blocks inside blocks
_MAX_COMPARISONS = 50_000  # names that are compared with misspelt ones: a second or so
_MAX_NAME = 200
_MAX_PROBLEMS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Layers with full names, and where each was written."""

    specs: tuple[LayerSpec, ...]
    origins: Mapping[str, Location]


def expand(network: NetworkFile, document: Document, *, seq: int | None = None) -> Expansion:
    """Unfold a network file.

    Parameters
    ----------
    network : NetworkFile
    document : Document
        The file it was read from; problems carry its lines.
    seq : int, optional
        What ``$seq`` stands for, in place of the file's.

    Returns
    -------
    Expansion

    Raises
    ------
    InputFileError
        Unknown blocks, parameters or inputs, duplicate names, too many layers: all at once.
    """
    return _Expander(network, document, network.seq if seq is None else seq).run()


class _Stopped(Exception):  # noqa: N818 - not an error: the problem is noted already
    """A limit is passed: going on makes no sense."""


class _Broken(Exception):  # noqa: N818 - same
    """An entry cannot be unfolded; the others can."""


class _Expander:
    def __init__(self, network: NetworkFile, document: Document, seq: int | None) -> None:
        self.network = network
        self.seq = seq
        self.document = document
        self.problems: dict[FileProblem, None] = {}
        # With inputs that are not looked up yet, since they may be written further down, and their places.
        self.layers: list[tuple[LayerSpec, tuple[str | Target, ...], Location]] = []
        self.origins: dict[str, Location] = {}
        self.outputs: dict[str, str | Target | None] = {}  # of groups
        self.checked: dict[Any, Any] = {}  # parameters after substitution, by entry and values
        self.broken: set[str] = set()  # entries whose problems are noted: what they would have held is not missing
        self.twice: set[Location] = set()  # entries whose name another layer has
        self.misses = 0  # inputs that no layer has

    def run(self) -> Expansion:
        specs: list[LayerSpec] = []
        try:
            self._check_references()
            self._list(self.network.layers, ("layers",), Scope(prefix=""))
            specs = [self._spec(*layer) for layer in self.layers]
        except _Stopped:
            pass
        if self.problems:
            raise InputFileError(list(self.problems))
        return Expansion(specs=tuple(specs), origins=self.origins)

    # -- problems ----------------------------------------------------------------------------------------------------------

    def _note(self, location: Location, message: str, *, where: str = "", at_key: bool = False) -> None:
        self.problems[self.document.problem(location, message, where=where, at_key=at_key)] = None
        if len(self.problems) >= _MAX_PROBLEMS:
            raise _Stopped

    # -- references to parameters (`$name`): every one is checked once, whether its block is used or not ---------------------

    def _check_references(self) -> None:
        def check(node: Node, location: Location, block: str, known: Sequence[str]) -> None:
            for step, child in (node.children or {}).items():  # as deep as a document may be: recursion is safe
                check(child, (*location, step), block, known)
            if is_reference(node.value) and node.value[1:] not in known and (node.value != SEQ or self.seq is None):
                self._note(location, _missing(node.value, block, known))

        check(self.document.find(("layers",))[0], ("layers",), "", ())
        for name, block in self.network.blocks.items():
            for parameter, value in block.defaults.items():
                location = ("blocks", name, "defaults", parameter)
                if parameter in block.parameters:
                    self._note(location, f"'{parameter}' is listed under 'parameters' as well; keep one", at_key=True)
                if value == SEQ and self.seq is None:
                    self._note(location, _NO_SEQ)
            for body in ("layers", "branches"):
                node, found, _ = self.document.find(("blocks", name, body))
                if len(found) == 3:
                    check(node, found, name, (*block.parameters, *block.defaults))

    # -- unfolding ---------------------------------------------------------------------------------------------------------

    def _list(self, entries: tuple[Any, ...], location: Location, scope: Scope) -> str | Target | None:
        """Unfold a list of entries; returns its output: the last entry's, or the scope's input where there is none."""
        previous = scope.input
        for index, entry in enumerate(entries):
            previous = self._entry(entry, (*location, index), scope, previous)
        return previous

    def _entry(
        self, entry: LayerEntry | BlockUse | Branches, location: Location, scope: Scope, previous: str | Target | None
    ) -> str:
        full = scope.prefix + entry.name
        if full in self.origins:
            if location not in self.twice:  # once, however often the block is repeated
                line = self.document.find(self.origins[full])[0].line
                self._note((*location, "name"), f"two layers have the name '{full}' (the other is on line {line})")
            self.twice.add(location)
            return full
        if entry.name == "input" and scope.input is not None:
            self._note((*location, "name"), "'input' stands for the input of the block; use another name")
            return full
        if len(full) > _MAX_NAME:
            self._note(location, f"the full name of this layer has more than {_MAX_NAME} characters")
            raise _Stopped
        self.origins[full] = location
        scope.names.append(entry.name)
        try:
            self._unfold(entry, location, scope, previous, full)
        except _Broken:
            self.broken.add(full)
            self.outputs[full] = None
        return full

    def _unfold(
        self,
        entry: LayerEntry | BlockUse | Branches,
        location: Location,
        scope: Scope,
        previous: str | Target | None,
        full: str,
    ) -> None:
        if isinstance(entry, LayerEntry):
            self._layer(entry, location, scope, previous, full)
            return
        if scope.nesting >= MAX_NESTING:
            block = entry.block if isinstance(entry, BlockUse) else None
            loop = f": block '{block}' uses itself" if block == scope.block else "; does a block use itself?"
            self._note(location, f"blocks are nested more than {MAX_NESTING} deep{loop}")
            raise _Stopped
        source = self._group_input(entry, location, scope, previous)
        if isinstance(entry, BlockUse):
            self.outputs[full] = self._block_use(entry, location, scope, source, full)
        else:
            inner = Scope(
                full + ".",
                scope,
                source,
                scope.values,
                nesting=scope.nesting + 1,
                block=scope.block,
                instance=scope.instance,
                frozen=scope.frozen,
            )
            self.outputs[full] = self._branches(entry.branches, entry.join, location, location, inner)

    def _layer(
        self, entry: LayerEntry, location: Location, scope: Scope, previous: str | Target | None, full: str
    ) -> None:
        if len(self.layers) >= MAX_LAYERS:
            self._note(location, f"the network has more than {MAX_LAYERS:,} layers once blocks are repeated")
            raise _Stopped
        kind: str = entry.type  # type: ignore[attr-defined]
        params, training = self._params(entry, kind, location, scope)
        inputs = self._targets(entry.inputs, location, scope)
        if inputs is None:
            inputs = () if previous is None or FAMILIES[kind].max_inputs == 0 else (previous,)
        frozen, rank = scope.frozen or training["frozen"], training["lora_rank"]
        spec = LayerSpec(name=full, kind=kind, params=params, block=scope.instance, frozen=frozen, lora_rank=rank)
        self.layers.append((spec, inputs, location))

    def _targets(self, inputs: Any, location: Location, scope: Scope) -> tuple[str | Target, ...] | None:
        if inputs is None:
            return None
        if isinstance(inputs, str):
            return (Target(inputs, (*location, "inputs"), scope),)
        return tuple(Target(text, (*location, "inputs", i), scope) for i, text in enumerate(inputs))

    def _group_input(
        self, entry: BlockUse | Branches, location: Location, scope: Scope, previous: str | Target | None
    ) -> str | Target | None:
        targets = self._targets(entry.inputs, location, scope)
        if targets is None:
            if previous is None:
                self._note(location, "nothing stands before this entry; a network starts with a layer of type 'input'")
            return previous
        if len(targets) > 1:
            self._note(
                (*location, "inputs"), "blocks and branches take one input; hand other layers in as parameters ('with')"
            )
        return targets[0]

    def _branches(self, chains: Any, join: str, location: Location, used: Location, inner: Scope) -> str:
        """Unfold parallel chains and join their ends; ``used`` is where the joining layer is said to stand."""
        ends: list[str | Target] = []
        for index, chain in enumerate(chains):
            end = self._list(chain, (*location, "branches", index), inner)
            if end is not None:
                ends.append(end)
        name = inner.prefix + join
        if name in self.origins:
            self._note(self.origins[name], f"'{join}' is the name of the layer that joins the branches; use another")
        self.origins[name] = used
        inner.names.append(join)
        params = FAMILIES[join].Params()
        spec = LayerSpec(name=name, kind=join, params=params, block=inner.instance, frozen=inner.frozen)
        self.layers.append((spec, tuple(ends), used))
        return name

    def _block_use(
        self, use: BlockUse, location: Location, scope: Scope, source: str | Target | None, full: str
    ) -> str | Target | None:
        repeat = self._repeat(use, scope)
        given = self._given(use.with_, (*location, "with"), scope)
        frozen = scope.frozen or self._flag(use.frozen, scope)
        output = source
        for number in range(1, repeat + 1):
            name, values = use.block, given
            name_location: Location = (*location, "block")
            if number == 1 and use.first is not None:
                values = {**given, **self._given(use.first.with_, (*location, "first", "with"), scope)}
                if use.first.block is not None:
                    name, name_location = use.first.block, (*location, "first", "block")
            block = self._block(name, name_location)
            prefix = full if use.repeat is None else f"{full}.{number}"
            instance = scope.instance or ("" if use.repeat is None else prefix)
            nesting = scope.nesting + 1
            inner = Scope(prefix + ".", None, output, nesting=nesting, block=name, instance=instance, frozen=frozen)
            inner.values = self._parameters(name, block, values, location, inner)
            if block.branches is not None:
                output = self._branches(block.branches, block.join, ("blocks", name), ("blocks", name), inner)
            else:
                output = self._list(block.layers, ("blocks", name, "layers"), inner)
            if use.repeat is not None:
                self.outputs[prefix] = output
        return output

    def _repeat(self, use: BlockUse, scope: Scope) -> int:
        repeat: Any = use.repeat
        if is_reference(repeat):
            found = self._lookup(repeat, scope)
            repeat = found.value
            if isinstance(repeat, bool) or not isinstance(repeat, int) or not 1 <= repeat <= MAX_LAYERS:
                self._note(found.location, f"'repeat' must be a whole number from 1 to {MAX_LAYERS}, got {repeat}")
                raise _Broken
        return 1 if repeat is None else int(repeat)

    def _flag(self, frozen: Any, scope: Scope) -> bool:
        if not is_reference(frozen):
            return bool(frozen)
        found = self._lookup(frozen, scope)
        if not isinstance(found.value, bool):
            self._note(found.location, f"'frozen' must be true or false, got {found.value}")
            raise _Broken
        return found.value

    def _block(self, name: str, location: Location) -> Block:
        block = self.network.blocks.get(name)
        if block is None:
            hint = did_you_mean(name, self.network.blocks) or f"; known: {', '.join(self.network.blocks) or 'none'}"
            self._note(location, f"block '{name}' does not exist{hint}")
            raise _Broken
        return block

    def _given(self, values: Mapping[str, Any], location: Location, scope: Scope) -> dict[str, Value]:
        given: dict[str, Value] = {}
        for key, value in values.items():
            place = (*location, key)
            given[key] = self._lookup(value, scope) if is_reference(value) else Value(value, place, scope)
            if isinstance(value, tuple):
                parts = tuple(self._lookup(v, scope).value if is_reference(v) else v for v in value)
                given[key] = Value(parts, place, scope)
        return given

    def _parameters(
        self, name: str, block: Block, given: Mapping[str, Value], location: Location, inner: Scope
    ) -> dict[str, Value]:
        known = [*block.parameters, *block.defaults]
        for key, value in given.items():
            if key not in known:
                hint = did_you_mean(key, known) or f"; it has {', '.join(known) or 'none'}"
                self._note(value.location, f"block '{name}' has no parameter '{key}'{hint}", at_key=True)
        missing = [key for key in block.parameters if key not in given]
        if missing:
            self._note(location, f"block '{name}' needs {', '.join(missing)} under 'with'")
            raise _Broken
        defaults = {
            key: self._lookup(SEQ, inner) if value == SEQ else Value(value, ("blocks", name, "defaults", key), inner)
            for key, value in block.defaults.items()
        }
        return {**defaults, **given}

    # -- parameters ----------------------------------------------------------------------------------------------------------

    def _lookup(self, text: str, scope: Scope) -> Value:
        found = scope.values.get(text[1:])
        if found is None and text == SEQ and self.seq is not None:
            return Value(self.seq, ("seq",), scope)
        if found is None:
            raise _Broken  # noted by check_references, or given under a wrong name
        return found

    def _params(self, entry: LayerEntry, kind: str, location: Location, scope: Scope) -> tuple[Any, dict[str, Any]]:
        """Build the family's parameters and what is said about training, with the block's values put in their places."""
        names = [item.name for item in dataclasses.fields(FAMILIES[kind].Params)]
        raw = {name: getattr(entry, name) for name in (*names, *TRAINING_KEYS)}
        used: dict[str, list[Value]] = {}
        for name, value in raw.items():
            if is_reference(value):
                found = self._lookup(value, scope)
                raw[name], used[name] = found.value, [found]
            elif isinstance(value, tuple) and any(map(is_reference, value)):
                parts = [self._lookup(v, scope) if is_reference(v) else None for v in value]
                raw[name] = tuple(v if part is None else part.value for v, part in zip(value, parts, strict=True))
                used[name] = [part for part in parts if part is not None]
        key = (location, tuple(repr(raw[name]) for name in used))
        if key not in self.checked:  # the layers of a repeated block are checked once
            self.checked[key] = self._checked(entry, kind, raw, used, location)
        known: tuple[Any, dict[str, Any]] = self.checked[key]
        return known

    def _checked(
        self, entry: LayerEntry, kind: str, raw: dict[str, Any], used: Mapping[str, list[Value]], location: Location
    ) -> tuple[Any, dict[str, Any]]:
        if used:
            try:
                entry = layer_model(kind).model_validate({"name": entry.name, "type": kind, **raw})
            except ValidationError as error:
                for item in error.errors(include_url=False):
                    name = str(item["loc"][0])
                    text = error_text(item)
                    if text is not None:
                        line = self.document.find((*location, name))[0].line
                        self._note(used[name][0].location, f"{text} ({name} of layer '{entry.name}', line {line})")
                raise _Broken from None
        values = {name: getattr(entry, name) for name in raw}
        training = {name: values.pop(name) for name in TRAINING_KEYS}
        return FAMILIES[kind].Params(**values), training

    # -- inputs --------------------------------------------------------------------------------------------------------------

    def _resolved(self, target: str | Target | None) -> str | None:
        for _ in range(4 * MAX_NESTING + 4 * len(self.outputs)):
            if isinstance(target, Target):
                target = self._meaning(target)
            elif target is None or target not in self.outputs:
                return target
            else:
                target = self.outputs[target]
        return None

    def _handed_in(self, target: Target) -> Target | None:
        """What a parameter that stands for a layer means where the block is used."""
        found = target.scope.values.get(target.text[1:])
        if found is None:
            if target.text == "$seq":
                self._note(target.location, "expected the name of a layer, '$seq' is a number")
            return None  # others are noted where references are checked
        if not isinstance(found.value, str):
            self._note(found.location, f"expected the name of a layer, got {found.value}")
            return None
        return Target(found.value, found.location, found.scope)

    def _meaning(self, target: Target) -> str | Target | None:
        if is_reference(target.text):
            return self._handed_in(target)
        scope: Scope | None = target.scope
        visible: list[str] = []
        while scope is not None:
            if target.text == "input" and scope.input is not None:
                return scope.input
            full = scope.prefix + target.text
            if full in self.origins or full in self.outputs:
                return full
            if any(full[:end] in self.broken for end, letter in enumerate(full) if letter == "."):
                return None
            visible += scope.names
            scope = scope.parent
        self.misses += 1
        hint = did_you_mean(target.text, visible) if self.misses * len(visible) < _MAX_COMPARISONS else ""
        where = f" in block '{target.scope.block}'" if target.scope.block else ""
        self._note(target.location, f"input '{target.text[:60]}' does not exist{where}{hint}")
        return None

    def _spec(self, spec: LayerSpec, inputs: tuple[str | Target, ...], location: Location) -> LayerSpec:
        names = tuple(name for target in inputs if (name := self._resolved(target)) is not None)
        family = FAMILIES[spec.kind]
        if not family.min_inputs <= len(inputs) <= family.max_inputs:
            self._note(location, _input_count(spec.kind, len(inputs)), where=spec.name)
        return dataclasses.replace(spec, inputs=names)


def _input_count(kind: str, count: int) -> str:
    family = FAMILIES[kind]
    if family.max_inputs == 0:
        return f"a layer of type '{kind}' takes no inputs"
    if count == 0:
        return "nothing stands before this layer; a network starts with a layer of type 'input'"
    if family.min_inputs == family.max_inputs:
        return f"a layer of type '{kind}' takes {family.min_inputs} input{'s' * (family.min_inputs > 1)}, not {count}"
    return f"a layer of type '{kind}' takes at least {family.min_inputs} inputs, not {count}; list them: inputs: [a, b]"


SEQ = "$seq"
_NO_SEQ = (
    "'$seq' stands for the positions of a sample, and this file does not say how many; add a line like 'seq: 2048'"
)


def _missing(reference: str, block: str, known: Sequence[str]) -> str:
    if reference == SEQ:
        return _NO_SEQ
    if not block:
        return f"'{reference}' names a parameter, and only the layers of a block have parameters"
    hint = did_you_mean(reference[1:], known) or f"; it has {', '.join(known) or 'none'}"
    return f"block '{block}' has no parameter '{reference[1:]}'{hint}"
