"""What an option is, and what reads the values of options: words of a command line or values of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from costmodel.objectives import PERCENTILES
from planner.api.values import MAX_GPUS, Values
from planner.core.errors import UnknownName, did_you_mean
from planner.core.quantities import QuantityError, parse_quantity
from planner.core.request import AUTO, WELL_TUNED, TimeLimit, imported

# Titles of the groups in the help, in the order in which they are shown.
QUESTION = "What is planned"
SPACE = "Which plans are looked at"
LAYERS = "Which plans with a split per layer are looked at"
MESH = "Which plans over a device mesh are looked at (transformers)"
SERVING = "What is served (--mode inference of a network that generates text)"
COSTS = "How plans are costed"
SEARCH = "How long and how hard to search"
OUTPUT = "What is printed and where"
PANELS = (QUESTION, SERVING, SPACE, MESH, LAYERS, COSTS, SEARCH, OUTPUT)

# What reads a value: takes the collector of problems, what messages call the option, and the value.
Reader: TypeAlias = Callable[[Values, str, Any], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flags and help on the command line, and how its value is read.

    Attributes
    ----------
    flags : str
        As on a command line, with spaces between them; a switch may have another one that turns it off, behind a "/".
    metavar : str, optional
        What stands for the value in the help; None for a switch.
    help, panel : str
        Words in braces are put in when the help is shown, as in "{costmodel.objectives:OBJECTIVES}"; what holds them does without numpy.
    words : str
        Values to complete, and to choose from: "kind:models" for bundled files, "module:NAME" for a tuple, mapping or set,
        "module:NAME:ARGUMENT" for a function of one, else the words themselves.
    inference_words : str
        Other words to complete with ``--mode inference``.
    is_list : bool
        Whether several words, with commas, are a value.
    is_repeated : bool
        Whether the command line takes it several times.
    field : str
        What the request calls it, where that is another name; a limit of the plans has its kind in front, as in "degrees:tp".
    rare : bool
        Rarely needed: ``--help`` leaves it out, ``--help-all`` shows it.
    read : callable, optional
        See `Reader`. Without it the value is that of a switch, one of the words (several of a list), or any text.
    """

    flags: str
    metavar: str | None
    help: str
    _: KW_ONLY
    panel: str = QUESTION
    words: str = ""
    inference_words: str = ""
    is_list: bool = False
    is_repeated: bool = False
    field: str = ""
    rare: bool = False
    read: Reader | None = None

    def value(self, values: Values, label: str, given: Any) -> Any:
        """Read a value; what is wrong goes to `values`."""
        if self.read is not None:
            return self.read(values, label, given)
        if self.metavar is None:
            return values.switch(label, given)
        if self.words.startswith("kind:"):  # looked up, or read as a file, when the question is resolved
            return given
        if not self.words:
            return values.text(label, given)
        chosen = values.names if self.is_list else values.choice
        return chosen(label, given, words_from(self.words))


def as_given(values: Values, label: str, value: Any) -> Any:  # noqa: ARG001 - a reader
    """Leave it as it is: the name of a file, or what is read together with other options."""
    return value


def one_framework(values: Values, label: str, value: Any) -> Any:
    """Leave the name of a framework as it is, "" for none; several are for a search."""
    if isinstance(value, str) and not Path(value).exists():
        if value.strip().lower() == WELL_TUNED:
            return ""
        if value.strip().lower() == AUTO:
            values.add(
                f"{label} {AUTO}: is the framework of the file that --from names; 'planner optimize --framework {AUTO}' compares all that "
                "can run the network"
            )
        elif "," in value:
            values.add(
                f"{label} {value}: are several; name one here, or compare them without --plan and --from: "
                f"'planner optimize --framework {value}'"
            )
    return value


def known_precision(values: Values, label: str, value: Any) -> str:
    """Check the name of a number format or recipe, and leave it as it is written."""
    from planner.question.lookup import called

    text = values.text(label, value)
    try:
        called(text)
    except UnknownName as error:
        values.add(f"{label} {text}: {error.reason}")
    return text


def size(values: Values, label: str, value: Any, *, shares: bool = False) -> str:
    """Memory as a request has it: a text with a unit; a number of Python is bytes or, with ``shares``, a share where it is below 1."""
    if isinstance(value, str):
        return value
    stated = values.at_least_zero(label, value)
    return f"{100.0 * stated!r}%" if shares and 0.0 < stated < 1.0 else f"{int(stated)} B"


_DEGREES = ("batch", "out_channels", "in_channels", "height")


def fixes(values: Values, label: str, value: Any) -> tuple[str, ...]:
    """Check the form of LAYERS:SPLIT; whether its layers exist is known with the network."""
    if isinstance(value, Mapping):
        splits = {
            layers: split if isinstance(split, str) else ",".join(f"{name}={degree}" for name, degree in split.items())
            for layers, split in value.items()
        }
        value = [f"{layers}:{split}" for layers, split in splits.items()]
    given = [value] if isinstance(value, str) else list(value)
    for text in given:
        pattern, colon, split = text.rpartition(":")
        if not colon or not pattern or not split:
            values.add(f"{label} {text}: must be LAYERS:SPLIT, as in 'conv*:batch' or 'fc6:batch=4,out_channels=2'")
            continue
        parts = [part.partition("=") for part in split.split(",")]
        if len(parts) > 1 and any(not equals for _, equals, _ in parts):
            values.add(f"{label} {text}: more than one way to split needs degrees, as in 'batch=4,out_channels=2'")
        names = [name.strip() for name, _, _ in parts]
        for name in names:
            if name not in _DEGREES:
                hint = did_you_mean(name, _DEGREES)
                values.add(f"{label} {text}: '{name}' is no way to split a layer{hint} (known: {', '.join(_DEGREES)})")
        if len(set(names)) < len(names):
            values.add(f"{label} {text}: names a way to split twice")
        for name, equals, degree in parts:
            if equals:
                values.count(f"{label} {pattern}:{name}", degree.strip(), most=MAX_GPUS)
    return tuple(given)


_MOST_PRICE = 1e6


def price(values: Values, label: str, value: Any) -> float | None:
    """Read a price in USD per hour."""
    stated = values.positive(label, value.strip().removeprefix("$") if isinstance(value, str) else value)
    if stated is not None and stated > _MOST_PRICE:
        values.add(f"{label} {value}: must be at most {_MOST_PRICE:,.0f} USD per hour")
    return stated


def power(values: Values, label: str, value: Any) -> tuple[float, float | None] | None:
    """Read BUSY[,IDLE], with units; numbers of Python are watts."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else [value]
    try:
        watts = [parse_quantity(part.strip(), "watts") if isinstance(part, str) else float(part) for part in parts]
    except QuantityError as error:
        values.add(f"{label} {value}: {error}")
        return None
    if not 1 <= len(watts) <= 2 or min(watts) <= 0.0:
        values.add(
            f"{label} {value}: must be the power of a busy GPU and, behind a comma, of an idle one; each above 0"
        )
        return None
    busy, idle = watts[0], watts[1] if len(watts) > 1 else None
    if idle is not None and idle > busy:
        values.add(f"{label} {value}: an idle GPU draws no more than a busy one")
        return None
    return busy, idle


def time_limit(values: Values, label: str, value: Any) -> TimeLimit | None:
    """Read a limit on the mean of a time, as in 500ms, or on a percentile of it, as in p99:2s.

    >>> time_limit(Values(), "--max-ttft", "p99:2s"), time_limit(Values(), "--max-ttft", "500ms")
    (TimeLimit(seconds=2.0, percentile=99), TimeLimit(seconds=0.5, percentile=None))
    """
    share, colon, time = value.rpartition(":") if isinstance(value, str) else ("", "", value)
    shares = {f"p{percentile}": percentile for percentile in PERCENTILES}
    share = share.strip().lower()
    if colon and share not in shares:
        values.add(f"{label} {value}: must begin with p50, p90 or p99 where it has a colon, as in p99:2s")
        return None
    seconds = values.seconds(label, time, likely="ms")
    return None if seconds is None else TimeLimit(seconds, shares.get(share))


def schedules(values: Values, label: str, value: Any) -> tuple[str, ...]:
    """Names of pipeline schedules; of other words that people use for them it is said what is meant."""
    from costmodel.schedules import MEANT, SCHEDULES

    return values.names(label, value, SCHEDULES, MEANT)


def words_from(source: str) -> tuple[str, ...]:
    """Words of a source, as `Option.words` names it; what holds them is imported only now.

    >>> words_from("roofline paleo"), "alexnet" in words_from("kind:models"), "1f1b" in words_from("costmodel.schedules:SCHEDULES")
    (('roofline', 'paleo'), True, True)
    """
    module, colon, name = source.partition(":")
    if not colon:
        return tuple(source.split())
    if module == "kind":
        from planner.files.resources import bundled

        return tuple(bundled(name))
    name, called, argument = name.partition(":")
    found = imported(f"{module}:{name}")
    return tuple(str(word) for word in (found(argument) if called else found))
