"""Readers of what people run today: launch arguments and configurations of trainers, as options of ``planner estimate``.

Files are read as text: nothing in them is ever executed. To add a reader, write a function
`read` in the module of the framework and list it in `RUNS`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from planner.core.errors import FileProblem, InputFileError, PlannerError, UnknownName, UsageError, did_you_mean
from planner.core.request import AUTO
from planner.exporters import EXPORTERS, TARGETS_ELSEWHERE, exporter_of
from planner.exporters.settings import Settings
from planner.files.text import read_text

if TYPE_CHECKING:
    from costmodel.network.graph import Graph

# Trainer -> module, imported on first use.
RUNS: dict[str, str] = {
    name: EXPORTERS[name]
    for name in ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "nanotron")
} | {"nemo": EXPORTERS["megatron-bridge"]}
# Larger than any launch script or configuration.
_MOST_BYTES = 1 << 20


@dataclass(slots=True, kw_only=True)
class Run:
    """A run in words of the command line.

    Attributes
    ----------
    options : dict
        Parameter of ``planner estimate`` -> word: gpus, batch, seq, precision, optimizer.
    mesh : dict
        Option of a mesh plan (`planner.api.options`) -> word, or flag.
    notes : list of str
        What was read otherwise than it is written, or has no counterpart.
    stages : str
        Blocks of every chunk of a pipeline, or "equal"; empty where the file does not say.
    network : dict
        Flag -> (size of `planner.exporters.runs`, number): what the file states of its network.
    """

    options: dict[str, str] = field(default_factory=dict)
    mesh: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stages: str = ""
    network: dict[str, tuple[str, int]] = field(default_factory=dict)


class RunReader(Protocol):
    """What a module of this package offers."""

    TITLE: str

    def read(self, path: Path, text: str, part: str = "") -> Run:
        """Read a run; ``part`` names the function of a Python file that is meant. Raises InputFileError."""
        ...


def problem(path: Path, message: str, where: str = "") -> InputFileError:
    """One thing that makes a file unusable."""
    return InputFileError([FileProblem(path=path, where=where, message=message)])


def read_run(trainer: str, path: Path) -> Run:
    """Read what a trainer runs.

    Raises
    ------
    UnknownName
        No reader for this trainer.
    InputFileError
        The file cannot be read, says something that cannot be, or is another trainer's.
    """
    if trainer not in RUNS:
        raise UnknownName(kind="trainer", name=trainer, known=RUNS)
    typed = path
    path, part = _part_of(path)
    text, _ = read_text(path, _MOST_BYTES, "launch files")
    try:
        return _reader(trainer).read(path, text, part)
    except InputFileError as error:
        meant = next((name for name in RUNS if RUNS[name] != RUNS[trainer] and _is_of(name, path, text, part)), None)
        if meant is None:
            raise
        first, *others = error.problems
        message = f"{first.message}; it looks like a file of {_reader(meant).TITLE}: --from {meant} {typed}"
        raise InputFileError([replace(first, message=message), *others]) from None


def _reader(trainer: str) -> RunReader:
    return cast("RunReader", importlib.import_module(RUNS[trainer]))


def _is_of(trainer: str, path: Path, text: str, part: str) -> bool:
    try:
        _reader(trainer).read(path, text, part)
    except PlannerError:
        return False
    return True


def _part_of(path: Path) -> tuple[Path, str]:
    """A Python file and the function in it that is meant: ``configs.py:llama3_70b``."""
    file, colon, part = path.name.rpartition(":")
    if colon and file.endswith(".py") and part.isidentifier():
        return path.with_name(file), part
    return path, ""


# -- keys of a configuration ------------------------------------------------------------------------------------------------


def unread_keys(
    content: Iterable[object], read: Set[str], neutral: Set[str], known: Set[str], program: str, prefix: str = ""
) -> list[str]:
    """Lines about the keys that have no place in the prediction.

    Parameters
    ----------
    content : iterable
        Keys of a mapping of the file.
    read, neutral, known : set of str
        Keys that are read; that change nothing in a prediction; that the program has, and the cost model has not.
    program : str
        For the message.
    prefix : str
        Of the mapping inside its file.

    Examples
    --------
    >>> unread_keys(["stage", "stge", "zenflow"], {"stage"}, set(), {"zenflow"}, "DeepSpeed", "zero_optimization.")
    ["zero_optimization.stge: is not a key of DeepSpeed that is known, and is left out; did you mean 'stage'?", \
'zero_optimization.zenflow: is not modelled, so the prediction leaves it out']
    """
    names = read | neutral | known
    lines = []
    for key in map(str, content):
        if key in known:
            lines.append(f"{prefix}{key}: is not modelled, so the prediction leaves it out")
        elif key not in names:
            near = did_you_mean(key, names)
            lines.append(f"{prefix}{key[:80]}: is not a key of {program} that is known, and is left out{near}")
    return lines


def unread_names(
    found: Settings, read: Collection[str], neutral: tuple[str, ...], known: tuple[str, ...], program: str
) -> list[str]:
    """Lines about the settings that have no place in the prediction, as `unread_keys`.

    Parameters
    ----------
    found : Settings
    read : collection of str
        Names that are read.
    neutral, known : tuple of str
        Beginnings of names that change nothing in a prediction; that the program has, and the cost model has not.
    program : str
        For the message.

    Examples
    --------
    >>> from planner.exporters.settings import Setting
    >>> found = Settings(path=Path("a"), of={name: Setting(name=name, value=1) for name in ("a.tp", "a.t", "log.to", "compile.on")})
    >>> unread_names(found, {"a.tp"}, ("log",), ("compile",), "X")
    ["a.t (line 0): is not a setting of X that is known, and is left out; did you mean 'a.tp'?", \
'not modelled, so the prediction leaves it out: compile.on']
    """
    left = [name for name in found.of if name not in read and not name.startswith(neutral)]
    off: tuple[Any, ...] = (None, False, [], "", 0, "False", "false")
    beyond = [name for name in left if name.startswith(known) and found.of[name].value not in off]
    lines = [
        f"{name[:80]} (line {found.of[name].line}): is not a setting of {program} that is known, and is left out"
        f"{did_you_mean(name[:80], read)}"
        for name in left
        if not name.startswith(known)
    ]
    return lines + ([f"not modelled, so the prediction leaves it out: {', '.join(beyond)}"] if beyond else [])


def section_of(path: Path, content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping under a key; empty where there is none."""
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise problem(path, "a mapping is expected", key)
    return value


def count_of(path: Path, content: Mapping[str, Any], key: str) -> int | None:
    """A whole number of at least 1 under a key; None where there is none."""
    value = content.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise problem(path, f"is {value!r}; a whole number of at least 1 is expected", key)
    return value


# -- a run and the command line ---------------------------------------------------------------------------------------------


class Filled(NamedTuple):
    """The options of a question about a run.

    Attributes
    ----------
    given : dict
    stages : str
        `Run.stages`.
    notes : list of str
        What was read otherwise than it is written.
    origins : dict
        Option -> where its value is from, of those that were not given.
    """

    given: dict[str, Any]
    stages: str
    notes: list[str]
    origins: dict[str, str]


def with_run(given: Mapping[str, Any], trainer: str, run: Path | Run) -> Filled:
    """Fill the options that were not given from a run; the framework is the trainer's, or that of the calibration that is given.

    Parameters
    ----------
    given : mapping
        Options of ``planner estimate`` by keyword, and ``model``.
    trainer : str
        A name of `planner.exporters.runs.RUNS`.
    run : Path or Run
        What is to be read, or was.

    Returns
    -------
    Filled

    Raises
    ------
    PlannerError
        As `planner.exporters.runs.read_run`.
    """
    path = run if isinstance(run, Path) else None
    if isinstance(run, Path):
        run = read_run(trainer, run)
    model = given.get("model")
    if run.network and isinstance(model, str) and model.strip():
        _check_network(run, model)
    started, asked = run.options.get("gpus"), given.get("gpus")
    if started is not None and asked is not None and str(asked).strip() != started:
        run.notes.append(f"--gpus {asked}: the script starts {started}")
    origins = {}
    if str(given.get("framework") or AUTO).strip().lower() == AUTO:
        given = {name: value for name, value in given.items() if name != "framework"}
        # That of a calibration counts by itself.
        if given.get("cost_model") != "paleo" and not _framework_of_calibration(given.get("calibration")):
            given["framework"] = exporter_of(TARGETS_ELSEWHERE.get(trainer, trainer)).FRAMEWORK
            origins["framework"] = f"--from {trainer}"
    accumulated = run.options.pop("num_micro_batches", None)
    merged = {**run.options, **run.mesh, **given}
    if path is not None and not {"gpus", "dp", "dp_shard", "dp_replicate"} & merged.keys():
        merged["gpus"] = _size_of_cluster(given.get("cluster"), path)
        origins["gpus"] = "size of the cluster"
        run.notes.append(
            f"--gpus {merged['gpus']}: all of the cluster; {path.name} does not say how many GPUs it runs on"
        )
    ranks = _data_parallel_ranks(merged)
    if ranks == 1 and "zero" not in given and str(merged.get("cp", 1)) == "1":
        merged["zero"] = "0"  # one rank has nothing to share
    if "batch" not in merged and "num_micro_batches" not in merged:
        words = [str(word) for word in (merged.get("micro_batch"), accumulated)]
        if ranks is not None and all(word.isdecimal() for word in words):
            # Else it is the network's usual batch.
            merged["batch"] = ranks * int(words[0]) * int(words[1])
    whose = {name: path.name for name in merged if name not in given} if path is not None else {}
    return Filled(merged, run.stages, run.notes, {**whose, **origins})


def _size_of_cluster(cluster: Any, path: Path) -> str:
    """Devices of a cluster with a size, where neither an option nor the file of a run says how many there are."""
    from planner.files.loading import load_cluster

    most = None if cluster is None else load_cluster(cluster).cluster.max_devices
    if most is None:
        raise UsageError(f"--gpus: is missing: {path.name} does not say how many GPUs it runs on; add --gpus N")
    return str(most)


def _framework_of_calibration(calibration: str | None) -> str:
    """The framework whose runs a calibration was fitted to; "" of any. One that cannot be loaded is reported with the question."""
    from planner.files.loading import load_calibration

    try:
        return "" if calibration is None else load_calibration(calibration).calibration.framework
    except PlannerError:
        return ""


def _check_network(run: Run, model: str) -> None:
    """Raises where the script trains another network; a name that cannot be loaded is reported with the question."""
    from planner.importers.networks import load_model

    try:
        graph = load_model(model).graph
    except PlannerError:
        return
    check_network(run.network, graph, model)


def _data_parallel_ranks(given: Mapping[str, Any]) -> int | None:
    """GPUs by the other degrees; None where they are not known."""
    words = [str(given.get("gpus")), *(str(given.get(name, 1)) for name in ("tp", "cp", "pp"))]
    if not all(word.isdecimal() and int(word) for word in words):
        return None
    gpus, *degrees = map(int, words)
    return gpus // math.prod(degrees)


# -- the network of a script ------------------------------------------------------------------------------------------------


def sizes_of_network(graph: Graph) -> dict[str, int]:
    """Sizes of a transformer by the names that launch scripts have; those that its blocks do not agree on are left out.

    Examples
    --------
    >>> from planner.importers.networks import load_model
    >>> sizes = sizes_of_network(load_model("llama3-8b").graph)
    >>> sizes["layers"], sizes["hidden"], sizes["kv_heads"], sizes["ffn"]
    (32, 4096, 8, 14336)
    """
    from costmodel.network.sizes import sizes_of

    plain = sizes_of(graph)
    if plain is not None:
        names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "experts", "top_k")
        sizes = {name: getattr(plain, name) for name in names}
        return sizes | ({"expert_ffn": plain.ffn} if plain.experts else {"ffn": plain.ffn})
    inside = [layer for block in graph.blocks.values() for layer in block]
    if any(layer.kind == "cross_attention" for layer in inside):
        return {}  # an encoder and a decoder: one number of layers does not describe both
    attentions = [layer for layer in inside if layer.kind == "self_attention"]
    heads = {layer.params.heads for layer in attentions}
    widths = {layer.output_shape[0] for layer in inside if layer.kind == "add"}
    found = {"layers": {len(graph.blocks)}, "heads": heads, "hidden": widths}
    return {name: values.pop() for name, values in found.items() if len(values) == 1 and inside}


def check_network(stated: Mapping[str, tuple[str, int]], graph: Graph, model: str) -> None:
    """Compare what a file states of its network with the network that is predicted.

    Parameters
    ----------
    stated : mapping
        Flag -> (a name of `sizes_of_network`, its number).
    graph : Graph
    model : str
        Its name, for the message.

    Raises
    ------
    UsageError
        Names the flags that differ.
    """
    sizes = sizes_of_network(graph)
    if "expert_ffn" in sizes and not any(name == "expert_ffn" for name, _ in stated.values()):
        sizes["ffn"] = sizes["expert_ffn"]  # Megatron's experts have --ffn-hidden-size unless they have their own
    differ = [
        f"{flag} {number} (it has {sizes[name]})"
        for flag, (name, number) in stated.items()
        if name in sizes and sizes[name] != number
    ]
    if differ:
        raise UsageError(f"MODEL {model}: is another network than that of the script: {', '.join(differ)}")
