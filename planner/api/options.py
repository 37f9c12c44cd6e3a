"""The keywords of the questions: their types for checkers and editors, and their values as the words that the options take."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar

from planner.core.errors import did_you_mean

if TYPE_CHECKING:
    from planner.files.loading import LoadedCluster, LoadedDevice, LoadedModel

    ModelLike: TypeAlias = str | os.PathLike[str] | LoadedModel | Mapping[str, Any]
    ClusterLike: TypeAlias = str | os.PathLike[str] | LoadedCluster | Mapping[str, Any]
    DeviceLike: TypeAlias = str | os.PathLike[str] | LoadedDevice | Mapping[str, Any]

__all__ = [
    "ALIASES",
    "FLAGS",
    "EstimateOptions",
    "ExplainOptions",
    "OptimizeOptions",
    "PlaceOptions",
    "ScaleOptions",
    "SizeOptions",
    "SweepOptions",
    "check_names",
    "names_of",
    "takes_options",
    "words_of",
]

# One number, or several: 8, "1..8", range(1, 9), [1, 2, 4].
Degrees: TypeAlias = int | str | Sequence[int]
Time: TypeAlias = float | str | dt.timedelta  # a number is seconds
Size: TypeAlias = int | float | str  # a number is bytes
PathLike: TypeAlias = str | os.PathLike[str]
FrameworkLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]


class _CostOptions(TypedDict, total=False):
    """How plans are costed, and where."""

    cluster: ClusterLike | None
    device: DeviceLike | None
    batch: int | str | None  # samples, or "4Mi tokens"
    precision: str | None
    optimizer: str | None
    mode: Literal["training", "inference"] | None
    memory_limit: Size | None
    memory_reserve: Size | None  # below 1: a share
    fix: str | Sequence[str] | Mapping[str, str | Mapping[str, int]] | None
    collective: str | None
    cost_model: Literal["roofline", "paleo"] | None
    calibration: PathLike | None
    framework: FrameworkLike | None
    assume_free: str | Sequence[str] | None
    ppp_comp: float | str | None
    ppp_comm: float | str | None
    paleo_pipeline: bool
    paleo_algorithms: PathLike | None
    paleo_extensions: bool


class _MeshOptions(TypedDict, total=False):
    """Degrees of a plan over a device mesh: fixed, or bounded for a search."""

    tp: Degrees | None
    cp: Degrees | None
    ep: Degrees | None
    etp: Degrees | None
    pp: Degrees | None
    vpp: Degrees | None
    dp: Degrees | None
    dp_replicate: Degrees | None
    dp_shard: Degrees | None
    zero: Degrees | None
    micro_batch: Degrees | None
    schedule: str | Sequence[str] | None
    recompute: str | Sequence[str] | None
    recompute_blocks: Degrees | None
    sequence_parallel: bool | None
    cp_kind: str | Sequence[str] | None
    order: str | Sequence[str] | None
    offload: str | Sequence[str] | None


class _ServingOptions(TypedDict, total=False):
    """What is served, with ``mode="inference"``."""

    prompt: int | None
    output_tokens: int | None
    max_ttft: Time | None
    max_tpot: Time | None
    kv_precision: str | None
    max_batch: Degrees | None
    prefill_chunk: Degrees | None
    prefill_batch: Degrees | None


class EstimateOptions(_CostOptions, _MeshOptions, _ServingOptions, total=False):
    """Keywords of `planner.estimate`."""

    gpus: int | None
    seq: int | None
    lora_rank: int | None
    space: Literal["auto", "mesh", "layers"] | None
    family: str | None
    micro_batches: Degrees | None
    num_micro_batches: Degrees | None
    assume: Mapping[str, float] | Sequence[str] | None
    price: float | str | None
    power: float | str | Sequence[float | str] | None


class ExplainOptions(EstimateOptions, total=False):
    """Keywords of `planner.explain`."""

    objective: str | None
    sensitivity: bool
    time_limit: Time | None
    solver: Literal["auto", "program", "elimination"] | None


class OptimizeOptions(EstimateOptions, total=False):
    """Keywords of `planner.optimize`."""

    objective: str | None
    top: int
    diverse: bool | None
    time_limit: Time | None
    gap: float | str
    solver: Literal["auto", "program", "elimination"] | None
    seed: int


Amount: TypeAlias = float | str  # a number, or 1T, 300B, 2M


class ScaleOptions(_CostOptions, _MeshOptions, total=False):
    """Keywords of `planner.scale`."""

    workers: Degrees | None
    weak: bool
    strong: bool
    seq: int | None
    lora_rank: int | None
    family: str | None
    epochs: float | None
    samples: Amount | None
    micro_batches: int | None


Several: TypeAlias = "ClusterLike | Sequence[ClusterLike]"


class _StudyOptions(_MeshOptions, total=False):
    """What many searches have in common."""

    assume_free: str | Sequence[str] | None
    cluster: Several | None
    device: DeviceLike | None
    precision: str | None
    optimizer: str | None
    memory_limit: Size | None
    memory_reserve: Size | None  # below 1: a share
    lora_rank: int | None
    space: Literal["auto", "mesh", "layers"] | None
    family: str | None
    fix: str | Sequence[str] | Mapping[str, str | Mapping[str, int]] | None
    collective: str | None
    micro_batches: Degrees | None
    num_micro_batches: Degrees | None
    calibration: PathLike | None
    framework: FrameworkLike | None
    assume: Mapping[str, float] | Sequence[str] | None
    price: float | str | None
    power: float | str | Sequence[float | str] | None
    jobs: int | None
    time_limit: Time | None
    gap: float | str
    seed: int


class SweepOptions(_StudyOptions, total=False):
    """Keywords of `planner.sweep`."""

    gpus: Degrees
    batch: Degrees | None
    seq: Degrees | None
    objective: str | None
    dask: str | None
    fresh: bool


class SizeOptions(_StudyOptions, total=False):
    """Keywords of `planner.size`."""

    tokens: Amount | None
    samples: Amount | None
    epochs: float | None
    days: float | None
    budget: Amount | None
    max_gpus: int | None
    batch: int | None
    seq: int | None
    goodput: float | str | None


class PlaceOptions(TypedDict, total=False):
    """Keywords of `planner.place`."""

    cluster: ClusterLike | None
    calibration: PathLike | None
    batch: int | None
    assume_free: str | Sequence[str] | None
    mode: Literal["training", "inference"] | None
    objective: Literal["throughput", "latency"] | None
    contiguous: bool | None
    contiguity: Literal["chain", "convex"] | None
    devices: int | None
    subgraphs: int | None
    cpus: int | None
    memory: Size | None
    bandwidth: str | None
    micro_batches: int | None
    method: str | None
    expert: PathLike | None
    time_limit: Time | None
    gap: float | str | None
    seed: int | None


# Keyword -> parameter of the commands, where the flag is not the parameter's name.
ALIASES = {"num_micro_batches": "micro_batches", "price": "price_per_hour", "power": "power_w"}
# Options without a word: on or off.
FLAGS = frozenset(
    {
        "paleo_pipeline",
        "paleo_extensions",
        "diverse",
        "sensitivity",
        "weak",
        "strong",
        "sequence_parallel",
        "contiguous",
        "fresh",
    }
)
_SIZES = frozenset({"memory_limit", "memory_reserve", "memory"})
_TIMES = frozenset({"time_limit", "max_ttft", "max_tpot"})
_LISTS = frozenset({"fix", "assume", "assume_free"})


def names_of(options: type) -> tuple[str, ...]:
    """Keywords of a class of options.

    >>> "gpus" in names_of(OptimizeOptions), "top" in names_of(EstimateOptions)
    (True, False)
    """
    return tuple(options.__annotations__)


def check_names(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keywords that a function does not have, as Python does, with the nearest one.

    >>> check_names("optimize", ["gpu"], ["gpus", "batch"])
    Traceback (most recent call last):
    ...
    TypeError: planner.optimize() got an unexpected keyword argument 'gpu'; did you mean 'gpus'?
    """
    known = tuple(known)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"planner.{function}() got an unexpected keyword argument '{name}'{hint}")


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def takes_options(
    options: type,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Show the keywords of a class of options in a function's signature, for `help`, notebooks and a wrong keyword's error."""

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_said(annotation))
            for name, annotation in options.__annotations__.items()
        ]
        known = (*(p.name for p in own if p.kind is not inspect.Parameter.POSITIONAL_ONLY), *names_of(options))

        @functools.wraps(function)
        def checked(*positional: _Parameters.args, **given: _Parameters.kwargs) -> _Result:
            check_names(function.__name__, given, known)
            return function(*positional, **given)

        checked.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return checked

    return decorate


def _said(annotation: Any) -> Any:
    """A type as it is written here: a reference to it would be shown with everything around it."""
    return getattr(annotation, "__forward_arg__", annotation)


def words_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Values as the words of the command line's options; None and what is left out stay so.

    >>> words_of({"gpus": 16, "pp": range(1, 4), "tp": "1..8", "memory_limit": 4e9, "max_tpot": 0.03, "diverse": True})
    {'gpus': '16', 'pp': '1,2,3', 'tp': '1..8', 'memory_limit': '4000000000 B', 'max_tpot': '0.03s', 'diverse': True}
    >>> words_of({"fix": {"conv*": "batch", "fc6": {"batch": 2, "out_channels": 8}}, "assume": {"dp_overlap": 0.8}})
    {'fix': ['conv*:batch', 'fc6:batch=2,out_channels=8'], 'assume': ['dp_overlap=0.8']}
    >>> words_of({"memory_reserve": 0.25}), words_of({"memory_reserve": 2**30})
    ({'memory_reserve': '25.0%'}, {'memory_reserve': '1073741824 B'})
    """
    return {name: _option(name, value) for name, value in options.items() if value is not None}


def _option(name: str, value: Any) -> Any:
    if name in FLAGS:
        if not isinstance(value, bool):
            raise TypeError(f"{name}: must be True or False, not {value!r}")
        return value
    if name in _LISTS:
        return _list(name, value)
    if name in _SIZES | _TIMES and isinstance(value, (int, float)) and value is not True:
        return f"{float(value)!r}s" if name in _TIMES else _size(name, value)
    if name == "power_w":
        return ",".join(
            f"{watts} W" if isinstance(watts, (int, float)) else _word(name, watts) for watts in _several(value)
        )
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return ",".join(_word(name, item) for item in value)
    return _word(name, value)


def _size(name: str, value: float) -> str:
    """Bytes; a reserve below 1 is a share."""
    return f"{100.0 * value!r}%" if name == "memory_reserve" and 0.0 < value < 1.0 else f"{int(value)} B"


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _list(name: str, value: Any) -> list[str]:
    """Words of an option that is given several times on a command line."""
    if isinstance(value, Mapping):
        if name == "fix":
            return [f"{layers}:{_split(split)}" for layers, split in value.items()]
        return [f"{key}={_word(name, number)}" for key, number in value.items()]
    return [value] if isinstance(value, str) else [_word(name, item) for item in value]


def _split(split: str | Mapping[str, int]) -> str:
    return split if isinstance(split, str) else ",".join(f"{way}={degree}" for way, degree in split.items())


def _word(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dt.timedelta):
        return f"{value.total_seconds()!r}s"
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, bool):
        try:
            return str(operator.index(value))  # numpy's integers too
        except TypeError:
            pass
        if isinstance(value, numbers.Real):
            return repr(float(value))
        if hasattr(value, "__fspath__"):
            return os.fsdecode(value)
    raise TypeError(f"{name}: cannot be {value!r} ({type(value).__name__})")
