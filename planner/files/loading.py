"""Loads the files that people write: networks, devices, clusters, frameworks, calibrations and failures, by path or by bundled name."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from costmodel.hardware.cluster import ClusterError
from costmodel.network.graph import Graph, GraphError, GraphProblem
from costmodel.precision import Precision
from planner.core.errors import FileProblem, InputFileError, UnknownName, UsageError, did_you_mean
from planner.files.documents import Document, Location, parse_document, parse_text
from planner.files.resources import InMemory, Kind, bundled, resolve, stands_for
from planner.files.text import read_text
from planner.files.validation import validate

if TYPE_CHECKING:
    from pydantic import BaseModel

    from costmodel.failures.rates import FailureModel
    from costmodel.framework import Framework
    from costmodel.hardware.cluster import Cluster
    from costmodel.hardware.device import Device
    from costmodel.uncertainty.constants import Calibration
    from planner.core.blocks import Block
    from planner.files.documents import JsonFile
    from planner.files.expansion import Expansion
    from planner.schema.model import NetworkFile, PublishedPlan

_WIDTH = 120


class Printed(ABC):
    """Base of what is loaded; a class says in `_blocks` what it shows."""

    __slots__ = ()
    path: Path

    @abstractmethod
    def _blocks(self) -> Sequence[Block]: ...

    def __str__(self) -> str:
        from planner.report.text import plain_text

        return plain_text(self._blocks(), _WIDTH).rstrip("\n")

    def __repr__(self) -> str:
        return f"<planner.{type(self).__name__} of {self.path}>"

    def _repr_html_(self) -> str:
        from planner.report.page import html_of

        return html_of(self._blocks())


_Model = TypeVar("_Model", bound="BaseModel")

# A file is read every time, so that a change is seen, but what it says is understood once. Larger ones are not kept: they are rare, and
# would hold much memory (the largest of the bundled networks has 8,000 characters).
KEPT_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[_Model]):
    """A checked file and the places of its values, for errors that are found later."""

    content: _Model
    document: Document


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadedModel(Printed):
    """A network ready for planning."""

    graph: Graph
    global_batch: int  # usual samples per training step, all workers together
    name: str
    path: Path
    sha256: str
    description: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    seq: int | None = None  # positions of a sample, where the file says so
    context: int | None = (
        None  # most tokens of a prompt and its answer that the weights were trained for, where the file says so
    )
    # What else people count of a sample (frames, ...): how many.
    counts: Mapping[str, int] = field(default_factory=dict)
    # The network file that an importer made of another program's file.
    content: Mapping[str, Any] | None = None
    checkpoint: Precision | None = None  # of the published weights, where the file states one
    prediction_layers: int = 0  # for multi-token prediction, beside the graph
    published_plans: tuple[PublishedPlan, ...] = ()  # how others train it

    def _blocks(self) -> Sequence[Block]:
        from planner.core.blocks import Facts, Sentence

        graph = self.graph
        length = "" if self.seq is None else f", {self.seq:,} positions"
        summary = f"{self.name}: {len(graph.layers):,} layers, {graph.weight_count:,} weights, global batch {self.global_batch:,}{length}"
        facts = []
        if graph.blocks:
            facts.append(("Repeated", f"{len(graph.blocks)} blocks"))
        facts += [("Description", self.description)] if self.description else []
        facts += [("Note", note) for note in self.notes]
        return [Sentence(summary, strong=True), *([Facts(tuple(facts))] if facts else [])]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadedDevice(Printed):
    """A device and the file it comes from."""

    device: Device
    path: Path
    sha256: str
    has_sources: bool = True

    def _blocks(self) -> Sequence[Block]:
        from planner.report.hardware import device_blocks

        return device_blocks(self.device)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadedCluster(Printed):
    """A cluster and the files it comes from; several devices have their hashes joined by commas."""

    cluster: Cluster
    path: Path
    sha256: str
    device_sha256: str
    has_sources: bool = True

    def _blocks(self) -> Sequence[Block]:
        from planner.report.hardware import cluster_blocks

        return cluster_blocks(self.cluster)


def load_document(path: Path, model: type[_Model]) -> Loaded[_Model]:
    """Read a YAML file and check it against a pydantic model.

    Parameters
    ----------
    path : Path
    model : type of pydantic model

    Returns
    -------
    Loaded
        ``content`` is an instance of the model.

    Raises
    ------
    InputFileError
        Every problem of the file, with line and column.
    """
    text, sha256 = read_text(path)
    check: Any = _checked_text if len(text) <= KEPT_CHARACTERS else _checked_text.__wrapped__
    loaded: Loaded[_Model] = check(path, text, sha256, model)
    return loaded


@lru_cache(maxsize=128)
def _checked_text(path: Path, text: str, sha256: str, model: type[_Model]) -> Loaded[_Model]:
    document = parse_text(path, text, sha256, keep_faults=True)
    return Loaded(content=validate(model, document), document=document)


def _load(kind: Kind, given: str, model: type[_Model]) -> Loaded[_Model]:
    if isinstance(given, InMemory):
        return Loaded(content=validate(model, given.document), document=given.document)
    return load_document(resolve(kind, given), model)


def model_of(document: Document, imported: Sequence[str] | None = None, *, seq: int | None = None) -> LoadedModel:
    """Check a network file that is already parsed, and build its graph; ``imported``: an importer made it, with these notes.

    Raises
    ------
    InputFileError
        Every problem of the file.
    UsageError
        ``seq`` is given and the network has none.
    """
    from planner.files.expansion import expand
    from planner.schema.model import NetworkFile

    path = document.path
    network = validate(NetworkFile, document)
    if seq is not None and network.seq is None:
        raise no_seq(network.name)
    expansion = expand(network, document, seq=seq)
    try:
        graph = Graph.build(network.name, expansion.specs)
    except GraphError as error:
        if seq is not None and _has_own_length(network, document):
            shown = "; ".join(f"{problem.layer}: {problem.message}" for problem in error.problems[:3])
            raise UsageError(
                f"--seq {seq}: network '{network.name}' cannot be that long (its file says {network.seq}): {shown}"
            ) from None
        raise InputFileError(graph_problems(error, expansion, document)) from None
    check_extents(graph, expansion, document)
    return LoadedModel(
        graph=graph,
        global_batch=network.global_batch,
        name=network.name,
        path=path,
        sha256=document.sha256,
        description=network.description,
        source=network.source,
        seq=network.seq if seq is None else seq,
        context=network.context,
        counts={str(what): count for what, count in network.counts.items()},
        notes=tuple(imported or ()),
        content=None if imported is None else document.value,
        checkpoint=None if network.checkpoint is None else network.checkpoint.to_domain(),
        prediction_layers=0 if network.prediction_layers is None else network.prediction_layers.count,
        published_plans=network.published_plans,
    )


def load_device(given: str) -> LoadedDevice:
    """Load a device by path or bundled name, or from its content (`InMemory`).

    Raises
    ------
    UnknownName
        Neither a file nor a bundled name.
    InputFileError
        Every problem of the file.

    Examples
    --------
    >>> load_device("k20").device.memory_bandwidth_bytes_per_s
    208000000000.0
    """
    from planner.schema.device import DeviceFile

    loaded = _load("devices", given, DeviceFile)
    document = loaded.document
    content = loaded.content
    return LoadedDevice(
        device=content.to_domain(), path=document.path, sha256=document.sha256, has_sources=bool(content.source)
    )


def load_cluster(given: str) -> LoadedCluster:
    """Load a cluster by path or bundled name, or from its content, and the devices it names (a path starts at the cluster's folder).

    A device's name means its usual cluster with that device.

    Raises
    ------
    UnknownName
        Neither a file nor a bundled name.
    InputFileError
        Every problem of the file; a device that does not exist is one.
    """
    from planner.schema.cluster import ClusterFile

    loaded = _load("clusters", given, ClusterFile)
    file, document = loaded.content, loaded.document
    path = document.path
    places: dict[str, Location] = {group.device: ("groups", i, "device") for i, group in enumerate(file.groups)}
    devices: dict[str, LoadedDevice] = {}
    problems: list[FileProblem] = []
    for name in dict.fromkeys(file.device_names):
        try:
            devices[name] = load_device(_beside(path, name))
        except UnknownName as error:
            problems.append(document.problem(places.get(name, ("device",)), str(error)))
        except InputFileError as error:
            if (path.parent / name).exists():
                problems.extend(error.problems)  # of the device's own file
            else:
                problems.append(document.problem(places.get(name, ("device",)), f"no such device file '{name}'"))
    if problems:
        raise InputFileError(problems)
    try:
        cluster = file.to_domain({name: device.device for name, device in devices.items()})
    except ClusterError as error:
        raise InputFileError([document.problem(("levels",), str(error))]) from None
    stood = stands_for(given)
    if (
        stood is not None and not set(stood[1]) & devices.keys()
    ):  # the links of the cluster, between devices of that name
        only = load_device(stood[1][0])
        cluster = dataclasses.replace(cluster.with_device(only.device), name=only.device.name)
        devices = {only.device.name: only}
    hashes = ",".join(device.sha256 for device in devices.values())
    return LoadedCluster(
        cluster=cluster, path=path, sha256=document.sha256, device_sha256=hashes, has_sources=bool(file.source)
    )


def _beside(path: Path, name: str) -> str:
    """What a name in a file means: a path starts at the file's folder; a bare name is a neighbour only with its suffix."""
    beside = path.parent / name
    has_folder = Path(name).name != name
    return str(beside) if has_folder or (beside.suffix in (".yaml", ".yml") and beside.exists()) else name


def load_algorithms(path: Path, layers: Collection[str] | None = None) -> dict[str, tuple[str, str, str]]:
    """Load the algorithms that the ``paleo`` cost model uses, pass by pass.

    Parameters
    ----------
    path : Path
    layers : collection of str, optional
        Names of the network's layers; others are problems of the file.

    Returns
    -------
    dict
        Layer -> algorithm of the forward pass, of the gradient of the input and of that of the weights.

    Raises
    ------
    InputFileError
        Every problem of the file.
    """
    from planner.schema.plan import AlgorithmsFile

    loaded = load_document(path, AlgorithmsFile)
    entries = loaded.content.algorithms
    if layers is not None:
        problems = [
            loaded.document.problem(
                ("algorithms", name), f"the network has no layer '{name}'{did_you_mean(name, layers)}", at_key=True
            )
            for name in entries
            if name not in layers
        ]
        if problems:
            raise InputFileError(problems)
    return {name: (entry.forward, entry.backward_input, entry.backward_weight) for name, entry in entries.items()}


# -- what is wrong with a network whose file could be read -------------------------------------------------------------------


# Elements of one output per sample: beyond this, counts are no longer exact in a float.
_MAX_ELEMENTS = 2**53


def no_seq(name: str) -> UsageError:
    """The network cannot be given a length."""
    return UsageError(f"network '{name}' has no sequence length to change (its file has no key 'seq')")


def _has_own_length(network: NetworkFile, document: Document) -> bool:
    """Whether a network is right at the length that its file states, so that another length is to blame."""
    from planner.files.expansion import expand

    try:
        Graph.build(network.name, expand(network, document).specs)
    except GraphError:
        return False
    return True


def json_problems(file: JsonFile, problems: Sequence[GraphProblem]) -> list[FileProblem]:
    """Look the places of layers up, also of those in blocks."""
    layers = file.content.get("layers") if isinstance(file.content, dict) else None
    result = []
    for problem in problems:
        block, _, inner = problem.layer.partition("/")
        is_inner = inner and not (isinstance(layers, dict) and problem.layer in layers)
        location: Location = ("layers", block, "layers", inner) if is_inner else ("layers", problem.layer)
        result.append(file.problem(location, problem.message, at_key=True, where=problem.layer))
    return result


def graph_problems(error: GraphError, expansion: Expansion, document: Document) -> list[FileProblem]:
    """Give each problem the line of its layer; copies of a block's layer with the same problem are counted, not repeated."""
    inputs = {spec.name: spec.inputs for spec in expansion.specs}
    first: dict[tuple[Any, str], str] = {}
    copies: dict[tuple[Any, str], int] = {}
    for problem in error.problems:
        key = (expansion.origins.get(problem.layer, ("layers",)), problem.message)
        first.setdefault(key, problem.layer)
        copies[key] = copies.get(key, -1) + 1
    problems = []
    for (location, message), layer in first.items():
        sources = f" (inputs: {', '.join(inputs[layer])})" if inputs.get(layer) and "input" in message else ""
        more = f"; so do {copies[location, message]} more copies of this layer" if copies[location, message] else ""
        problems.append(document.problem(location, f"{message}{sources}{more}", where=layer))
    return problems


def check_extents(graph: Graph, expansion: Expansion, document: Document) -> None:
    """Refuse layers whose sizes are typing errors: their products would no longer be exact."""
    for layer in graph.layers:
        for what, count in (("outputs", math.prod(layer.output_shape)), ("weights", layer.weight_count)):
            if count > _MAX_ELEMENTS:
                message = f"has {count:.3g} {what} per {'sample' if what == 'outputs' else 'copy'}; more than 2**53 is an error"
                raise InputFileError([document.problem(expansion.origins[layer.name], message, where=layer.name)])


# -- frameworks --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFramework:
    """A framework and the file it comes from; ``title``: its name for people."""

    framework: Framework
    title: str
    description: str
    path: Path
    sha256: str


def load_framework(given: str) -> LoadedFramework:
    """Load a framework by path, bundled name or alias, or from its content.

    Raises
    ------
    UnknownName
        Neither a file nor a bundled name.
    InputFileError
        Every problem of the file.

    Examples
    --------
    >>> load_framework("nemo").framework.name
    'megatron-bridge'
    """
    from planner.schema.framework import FrameworkFile

    loaded = _load("frameworks", given, FrameworkFile)
    content, document = loaded.content, loaded.document
    return LoadedFramework(
        framework=content.to_domain(),
        title=content.title,
        description=content.description,
        path=document.path,
        sha256=document.sha256,
    )


@cache
def framework_aliases() -> dict[str, str]:
    """Other name of a bundled framework -> its name.

    >>> framework_aliases()["maxtext"]
    'jax'
    """
    found: dict[str, str] = {}
    for name, path in bundled("frameworks").items():
        found |= {str(alias): name for alias in parse_document(path).value.get("aliases", ())}
    return found


# -- calibrations ------------------------------------------------------------------------------------------------------------


# What error bars are made of where no other calibration is named; its factors are all 1.
DEFAULT_CALIBRATION = "default"
_SHOWN_CHANGE = 0.005  # smaller changes of a constant would be written as x 1.00


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCalibration:
    """A calibration and the file it comes from; ``tables``: SHA-256 of the tables that it was fitted to."""

    calibration: Calibration
    path: Path
    sha256: str
    description: str = ""
    tables: frozenset[str] = frozenset()


def load_calibration(given: str = DEFAULT_CALIBRATION) -> LoadedCalibration:
    """Load a calibration by path or bundled name, or from its content.

    Raises
    ------
    UnknownName
        Neither a file nor a bundled name.
    InputFileError
        Every problem of the file.

    Examples
    --------
    >>> set(load_calibration("default").calibration.values.values())
    {1.0}
    """
    from planner.schema.calibration import CalibrationFile

    loaded = _load("calibrations", given, CalibrationFile)
    content, document = loaded.content, loaded.document
    return LoadedCalibration(
        calibration=content.to_domain(),
        path=document.path,
        sha256=document.sha256,
        description=content.description,
        tables=frozenset(table.sha256 for table in content.source.tables),
    )


def calibration_in_words(calibration: Calibration) -> str:
    """Name of a calibration and what it changes.

    >>> calibration_in_words(load_calibration("default").calibration)
    'default (changes nothing)'
    """
    changed = {name: value for name, value in calibration.values.items() if abs(value - 1.0) > _SHOWN_CHANGE}
    words = [f"{name} x {value:.2f}" for name, value in changed.items()]
    words += [f"{name} {value:g}" for name, value in calibration.assumed.items()]
    words += [f"framework {calibration.framework}"] if calibration.framework else []
    return f"{calibration.name} ({', '.join(words) or 'changes nothing'})"


# -- failures ----------------------------------------------------------------------------------------------------------------


def load_failures(given: str = "default") -> FailureModel:
    """Load rates of failures by path or bundled name, or from its content.

    Raises
    ------
    UnknownName
        Neither a file nor a bundled name.
    InputFileError
        Every problem of the file.

    Examples
    --------
    >>> round(load_failures().interruptions(16384, 54 * 86400.0))
    499
    """
    from planner.schema.failures import FailuresFile

    return _load("failures", given, FailuresFile).content.to_domain()
