"""PALEO's tables of data parallelism, from the parts of the cost model that reproduce its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.plan import shard_of
from costmodel.network.graph import Graph
from costmodel.paleo.convolution import FLOAT_BYTES
from costmodel.paleo.model import PaleoCompute
from costmodel.paleo.scaling import Link, batch_table

# PALEO's exchange schemes, by their names in `costmodel.hardware.collectives`.
SCHEMES: tuple[str, ...] = ("one-to-all", "tree", "butterfly", "butterfly-mixing")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One row of a table of data parallelism; the exchange by each scheme."""

    workers: int
    batch_per_worker: int
    effective_batch: int
    forward_s: float
    backward_s: float
    update_s: float
    exchange_s: Mapping[str, float]
    iterations: int = 1

    @property
    def compute_s(self) -> float:
        """Everything but the exchange."""
        return self.forward_s + self.backward_s + self.update_s

    def step_s(self, scheme: str) -> float:
        """Time of a training step with one exchange scheme."""
        return self.compute_s + self.exchange_s[scheme]


def data_parallel_rows(
    graph: Graph,
    compute: PaleoCompute,
    network: Link | Cluster,
    *,
    batch: int,
    workers: Sequence[int],
    scaling: Literal["weak", "strong"],
) -> tuple[ScalingRow, ...]:
    """PALEO's table of data parallelism.

    Weak: every worker takes ``batch``. Strong: every worker takes ``ceil(batch / workers)``, and ``batch`` is reported as the effective
    one even when that rounds up.

    Parameters
    ----------
    graph : Graph
    compute : PaleoCompute
    network : Link or Cluster
    batch : int
    workers : sequence of int
    scaling : {"weak", "strong"}

    Returns
    -------
    tuple of ScalingRow
        One per number of workers.

    Raises
    ------
    CostModelError
        PALEO cannot evaluate a layer.
    """
    counts = list(workers)
    link = Link.of(network) if isinstance(network, Cluster) else network
    table = batch_table(counts if scaling == "strong" else [1] * len(counts))
    forward_s, backward_s = np.zeros(len(counts)), np.zeros(len(counts))
    if compute.input_names is None:
        compute = replace(compute, input_names=frozenset(layer.name for layer in graph.layers if layer.kind == "input"))
    for layer in graph.layers:
        times = compute.pass_times(layer, shard_of(layer, table, batch), needs_input_gradient=True)
        forward_s, backward_s = forward_s + times.forward_s, backward_s + times.backward_s
    weight_bytes = float(FLOAT_BYTES * graph.weight_count)
    update = compute.update_parts(np.asarray(float(graph.weight_count)))
    update_s = float(update.overlapped_s if compute.use_pipeline else update.total_s)
    exchange_s = {name: link.exchange_s(compute, name, weight_bytes, counts) for name in SCHEMES}
    rows = []
    for i, count in enumerate(counts):
        per_worker = batch if scaling == "weak" else -(-batch // count)
        rows.append(
            ScalingRow(
                workers=count,
                batch_per_worker=per_worker,
                effective_batch=batch * count if scaling == "weak" else batch,
                forward_s=float(forward_s[i]),
                backward_s=float(backward_s[i]),
                update_s=update_s,
                exchange_s={name: float(times_s[i]) for name, times_s in exchange_s.items()},
            )
        )
    return tuple(rows)


def training_hours(step_s: float, effective_batch: int, *, epochs: float, samples: float) -> float:
    """Hours of training: ``epochs samples / batch`` steps.

    >>> training_hours(1.0, 100, epochs=36, samples=1e4)
    1.0
    """
    return epochs * samples / effective_batch * step_s / 3600.0
