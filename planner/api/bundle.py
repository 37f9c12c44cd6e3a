"""What is bundled and what can be named, and the loaders of files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from planner.api.calls import in_python_words
from planner.api.shown import Answer
from planner.core.errors import UnknownName
from planner.core.request import imported
from planner.files import loading
from planner.files.listing import cluster_rows, device_rows, file_rows, framework_rows, listing_report
from planner.files.loading import LoadedCluster, LoadedDevice, LoadedModel, load_document
from planner.files.resources import Kind, bundled, reference_to, resolve
from planner.importers.networks import import_network, network_path
from planner.importers.networks import load_model as load

if TYPE_CHECKING:
    from planner.core.blocks import Report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing(Answer):
    """Things of one kind; iterating gives their names.

    Examples
    --------
    >>> import planner
    >>> models = planner.list_models()
    >>> "alexnet" in models, models["alexnet"]["global_batch"]
    (True, 128)
    """

    kind: str
    rows: tuple[dict[str, Any], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of ``planner list``."""
        return tuple(str(row["name"]) for row in self.rows)

    def __iter__(self) -> Any:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> dict[str, Any]:
        return next(row for row in self.rows if row["name"] == name)

    def __repr__(self) -> str:
        return f"<planner.Listing of {len(self)} {self.kind}: {', '.join(self.names)}>"

    def _report(self) -> Report:
        return listing_report(self.kind, self.rows)


# What lists the things of a kind, where these are no bundled files.
_ROWS = {
    "collectives": "planner.files.listing:collective_rows",
    "precisions": "planner.files.listing:precision_rows",
    "schedules": "planner.files.listing:schedule_rows",
    "importers": "planner.importers.sources:format_rows",
    "exporters": "planner.exporters:exporter_rows",
}


def rows_of(kind: str, names: Sequence[str] = (), *, verbose: bool = False) -> Sequence[Mapping[str, Any]]:
    """What there is of a kind, one of those that the command lists.

    Parameters
    ----------
    kind : str
    names : sequence of str
        Only these, by any name that they have, or the path of a file; all without any.
    verbose : bool
        Rates of the devices by format, links of the clusters, every number of the frameworks, with its source.

    Raises
    ------
    UnknownName
    InputFileError
        Every problem of a file that is not bundled.
    """
    from planner.schema import DOCUMENTS

    one = kind.removesuffix("s")
    if kind not in _ROWS:
        known = bundled(cast("Kind", kind)).values()
        files = dict.fromkeys(resolve(cast("Kind", kind), name) for name in names) or known
        for path in files:
            if path not in known:
                load_document(path, imported(DOCUMENTS[one]))
        in_full = {"clusters": cluster_rows, "devices": device_rows, "frameworks": framework_rows}
        return in_full[kind](files) if verbose and kind in in_full else file_rows(kind, files)
    rows: Mapping[str, Mapping[str, Any]] = {row["name"]: row for row in imported(_ROWS[kind])()}
    for name in names:
        if name not in rows:
            raise UnknownName(kind=one, name=name, known=list(rows))
    return [row for name, row in rows.items() if name in (names or rows)]


def _lister(kind: str, example: str) -> Callable[[], Listing]:
    def lists() -> Listing:
        return Listing(kind=kind, rows=tuple(dict(row) for row in rows_of(kind)))

    lists.__name__ = lists.__qualname__ = f"list_{kind}"
    lists.__doc__ = (
        f"List the {kind}, as ``planner list {kind}`` does.\n\n"
        "    Returns\n    -------\n    Listing\n\n"
        "    Examples\n    --------\n    >>> import planner\n"
        f"    >>> {example!r} in planner.list_{kind}()\n    True\n    "
    )
    return lists


list_models = _lister("models", "llama3-70b")
list_devices = _lister("devices", "h100-sxm")
list_precisions = _lister("precisions", "fp8-blockwise")
list_schedules = _lister("schedules", "zb_v")
list_clusters = _lister("clusters", "dgx-h100")
list_frameworks = _lister("frameworks", "megatron-lm")
list_calibrations = _lister("calibrations", "default")
list_failures = _lister("failures", "default")
list_collectives = _lister("collectives", "ring")
list_importers = _lister("importers", "onnx")
list_exporters = _lister("exporters", "megatron")


def load_model(
    model: str | os.PathLike[str], *, seq: int | None = None, assume_free: Sequence[str] = ()
) -> LoadedModel:
    """Load a network of any format that is read (`planner.list_importers`), by bundled name or path.

    Parameters
    ----------
    model : str or path
    seq : int, optional
        Positions of a sample, in place of the file's.
    assume_free : sequence of str
        Operators of another program's file that are not known and are taken to cost nothing, which every output says.

    Raises
    ------
    PlannerError
        Neither a file nor a bundled name; every problem of the file.

    Examples
    --------
    >>> import planner
    >>> network = planner.load_model("alexnet")
    >>> network.name, network.graph.weight_count
    ('alexnet', 50303912)
    """
    with in_python_words():
        name = reference_to("models", model)
        if not assume_free:
            return load(name, seq=seq)
        return import_network(network_path(Path(name)), assume_free=assume_free)


def load_cluster(cluster: str | os.PathLike[str]) -> LoadedCluster:
    """Load a cluster, and the devices it names, by bundled name or path.

    Raises
    ------
    PlannerError

    Examples
    --------
    >>> import planner
    >>> planner.load_cluster("dgx-h100").cluster.device.name
    'h100-sxm'
    """
    with in_python_words():
        return loading.load_cluster(reference_to("clusters", cluster))


def load_device(device: str | os.PathLike[str]) -> LoadedDevice:
    """Load a device by bundled name or path.

    Raises
    ------
    PlannerError

    Examples
    --------
    >>> import planner
    >>> print(planner.load_device("v100-32gb"))
    v100-32gb
    <BLANKLINE>
    Memory:      32.0 GiB (31.7 GiB by the driver) at 900 GB/s
    ...
    """
    with in_python_words():
        return loading.load_device(reference_to("devices", device))
