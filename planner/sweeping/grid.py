"""The cells of a grid, and what its axes may be."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.core.errors import PlannerError, UsageError
from planner.core.request import Request
from planner.sweeping.answer import key_of, to_plain

if TYPE_CHECKING:
    from planner.files.loading import LoadedCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Values of every axis; None where the network or the request decides."""

    clusters: tuple[str | None, ...] = (None,)
    gpus: tuple[int, ...] = (1,)
    batches: tuple[int | None, ...] = (None,)
    seqs: tuple[int | None, ...] = (None,)

    @property
    def size(self) -> int:
        """Cells in all."""
        return len(self.clusters) * len(self.gpus) * len(self.batches) * len(self.seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One question; ``key`` identifies its answer."""

    key: str
    question: Mapping[str, Any]

    @property
    def words(self) -> str:
        """For people: ``dgx-h100, 64 GPUs``."""
        question = self.question
        parts = [str(question["cluster"]), f"{question['gpus']} GPUs"]
        parts += [f"{name} {question[name]}" for name in ("batch", "seq") if question[name] is not None]
        return ", ".join(parts)


def doubling_counts(first: int, last: int) -> tuple[int, ...]:
    """What ``first..last`` means on an axis of GPUs: doubled from the first as long as it is not more than the last.

    >>> doubling_counts(32, 1024), doubling_counts(6, 50)
    ((32, 64, 128, 256, 512, 1024), (6, 12, 24, 48))
    """
    return tuple(first << n for n in range((last // first).bit_length())) if first <= last else ()


def load_clusters(names: Sequence[str | None], default: str) -> dict[str, LoadedCluster]:
    """Load every cluster of an axis.

    Raises
    ------
    PlannerError
        Everything that is wrong with any of them; clusters of the same name.
    """
    from planner.files.loading import load_cluster

    loaded: dict[str, LoadedCluster] = {}
    faults: list[PlannerError] = []
    for name in dict.fromkeys(name or default for name in names):
        try:
            loaded[name] = load_cluster(name)
        except PlannerError as error:
            faults.append(error)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise UsageError("\n".join(str(fault) for fault in faults))
    names_of: dict[str, list[str]] = {}
    for name, one in loaded.items():
        names_of.setdefault(one.cluster.name, []).append(name)
    alike = [f"{' and '.join(given)}: are both called '{name}'" for name, given in names_of.items() if len(given) > 1]
    if alike:
        raise UsageError(
            "\n".join(f"{text}, so nothing would tell their rows apart; change 'name' in one of them" for text in alike)
        )
    return loaded


def cells_of(base: Request, axes: Axes) -> list[Cell]:
    """Every combination, in the order of the axes: cluster, batch, length, GPUs.

    Raises
    ------
    PlannerError
        The network, a cluster, a device or a calibration cannot be read: a mistake that is the same in every cell.
    """
    from planner import __version__
    from planner.files.loading import load_algorithms, load_calibration, load_device, load_framework
    from planner.importers.networks import load_model
    from planner.question.lookup import default_cluster

    usual = default_cluster(base.device)
    clusters = load_clusters(axes.clusters, usual)
    readers: dict[str, Callable[[str], Any]] = {
        "device": load_device,
        "calibration": load_calibration,
        "framework": load_framework,
    }
    named = {name: getattr(base, name) for name in readers}
    common = {name: readers[name](file).sha256 for name, file in named.items() if file}
    if base.paleo_algorithms is not None:
        common["algorithms"] = str(sorted(load_algorithms(base.paleo_algorithms).items()))
    models = {seq: load_model(base.model, seq=seq, assume_free=base.assume_free).sha256 for seq in axes.seqs}
    cells = []
    for cluster, batch, seq, gpus in itertools.product(axes.clusters, axes.batches, axes.seqs, axes.gpus):
        name = cluster or usual
        loaded = clusters[name]
        question = to_plain(dataclasses.replace(base, cluster=name, batch=batch, seq=seq, gpus=gpus))
        inputs = {"device": loaded.device_sha256, **common, "model": models[seq], "cluster": loaded.sha256}
        cells.append(Cell(key=key_of(question, inputs, __version__), question=question))
    return cells
