"""What drafts tokens for a network that verifies them (speculative decoding): what its passes take, and what it keeps in memory.

A pass of a plan with K drafted tokens verifies K + 1 tokens of every sequence, and the drafter then makes the next K, one after the other
(Y. Leviathan, M. Kalman, Y. Matias, Fast Inference from Transformers via Speculative Decoding, ICML 2023). Its first step reads what the
pass has read, prompts included, so that its cache has the same positions; every other step reads the token before (vLLM,
vllm/v1/spec_decode/eagle.py). Each step has a head for one token per sequence.

- *mtp*: the network's own module for multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): a matrix that joins the vector of
  a position and the embedding of the next token, 2 d x d on every rank, and one more block like the last. Embedding and head are the
  network's.
- *network*: another network with the same vocabulary, split over the tp ranks where its heads and widths allow it, else whole on each.
- *ngram*: the host looks for the last tokens in the text so far; that costs the device nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mesh.modules import fold
from costmodel.mesh.rules import NetworkShape
from costmodel.network.graph import Graph
from costmodel.network.layers.base import LayerSpec, params_from

if TYPE_CHECKING:
    from costmodel.serving.tables import ModuleSizes, ModuleTimer, PassKeys, PassTable


def joining_matrix(network: Graph) -> Graph:
    """The matrix of 2 d x d in front of the block of a module for multi-token prediction.

    >>> specs = [LayerSpec(name="data", kind="input", params=params_from("input", {"shape": (8, 4)})),
    ...     LayerSpec(name="norm", kind="rms_norm", params=params_from("rms_norm", {}), inputs=("data",), block="b1")]
    >>> joining_matrix(Graph.build("tiny", specs)).weight_count
    128
    """
    width, positions = next(layer.output_shape for layer in network.layers if layer.block)
    joined = params_from("input", {"shape": (2 * width, positions)})
    matrix = params_from("linear", {"out_features": width, "bias": False})
    return Graph.build(
        "joining",
        [
            LayerSpec(name="joined", kind="input", params=joined),
            LayerSpec(name="joining", kind="linear", params=matrix, inputs=("joined",)),
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A drafter of a cost model; ``counts`` says how often each kind of module of its timer runs in a step, and ``own`` which are its own.

    Attributes
    ----------
    timer : ModuleTimer
        Of the modules that run.
    counts, own : array (kinds,)
        Modules of each kind that a step runs, the head apart; and those whose weights and cache are not the network's.
    joining : ModuleTimer or None
        Of the matrix in front of the block.
    extent : int
        What the degree of tensor parallelism must divide; 0: it is that of the plan.
    """

    timer: ModuleTimer
    counts: FloatArray
    own: FloatArray
    joining: Graph | None = None
    extent: int = 0

    @classmethod
    def of(cls, timer: ModuleTimer) -> Drafter | None:
        """What drafts for the network of a timer, on its devices; None where nothing does, or the host."""
        drafting = timer.workload.drafting
        if drafting is None or drafting.drafter == "ngram":
            return None
        if drafting.drafter == "mtp":
            counts = np.zeros(len(timer.modules.kinds))
            counts[timer.modules.blocks[-1]] = 1.0
            own = counts.copy()
            counts[0] = 1.0
            return cls(timer=timer, counts=counts, own=own, joining=joining_matrix(timer.workload.graph))
        assert drafting.graph is not None
        modules = fold(drafting.graph)
        workload = replace(timer.workload, graph=drafting.graph, drafting=None)
        counts = np.bincount(modules.kind_of, minlength=len(modules.kinds)).astype(np.float64)
        shape = NetworkShape.of(drafting.graph, modules, 1, workload.framework, precision=workload.precision)
        found = timer.build(workload, timer.groups.cluster, modules, timer.assumptions)
        return cls(
            timer=replace(found, groups=timer.groups, device=timer.device),
            counts=np.where(np.arange(len(counts)) < len(counts) - 1, counts, 0.0),
            own=counts,
            extent=int(np.gcd.reduce(np.array([*shape.heads, *shape.widths], dtype=np.int64))),
        )

    def beside_reader(self, timer: ModuleTimer) -> Drafter:
        """The same on workers that only read prompts, whose network has this timer."""
        if self.joining is None:
            timer = replace(self.timer, workload=replace(self.timer.workload, output_tokens=1))
        return replace(self, timer=timer)

    def _split(self, keys: PassKeys) -> PassKeys:
        """The same passes, split as the drafter is."""
        if not self.extent:
            return keys
        tp = np.where(self.extent % keys.tp == 0, keys.tp, 1)
        return replace(keys, tp=tp, ep=np.ones_like(tp), etp=tp)

    def added_to(self, table: PassTable, keys: PassKeys) -> PassTable:
        """Times of passes with those of the drafter, which runs behind the head.

        Parameters
        ----------
        table : PassTable
            Of the network, (n, kinds).
        keys : PassKeys
            The passes that verify.
        """
        rows = np.flatnonzero(keys.queries > 1)
        if not len(rows):
            return table
        first = self._split(keys.take(rows))
        none = np.zeros_like(first.prompts)
        later = replace(first, prompts=none, chunk=none, decodes=first.prompts + first.decodes, queries=none + 1)
        steps = (first.queries - 1).astype(np.float64)
        of_first, of_later = self.timer.passes(first), self.timer.passes(later)
        found = {}
        for name in ("compute_s", "tp_s", "ep_s", "expert_s"):
            body, again = getattr(of_first, name) @ self.counts, getattr(of_later, name) @ self.counts
            found[name] = body + (steps - 1.0) * again + steps * getattr(of_later, name)[:, -1]
        if self.joining is not None:
            join, layer = self.timer.rows_of_matrix, self.joining.layers[-1]
            found["compute_s"] += join(layer, first.rows) + (steps - 1.0) * join(layer, later.rows)
        columns = {name: getattr(table, name).copy() for name in found}
        for name, seconds in found.items():
            columns[name][rows, -1] += seconds
        return replace(table, **columns)

    def kept_with(self, sizes: ModuleSizes, keys: PassKeys, is_drafting: IntArray) -> ModuleSizes:
        """Sizes with what the drafter keeps, beside the head, where anything is drafted."""
        found = self.timer.sizes(self._split(keys))
        weights = found.weight_bytes @ self.own
        if self.joining is not None:
            layer = self.joining.layers[-1]
            weights = weights + layer.weight_count * self.timer.workload.precision.stored_bytes(layer)
        weight_bytes, cache_bytes = sizes.weight_bytes.copy(), sizes.cache_bytes.copy()
        weight_bytes[:, -1] += weights * is_drafting
        cache_bytes[:, -1] += (found.cache_bytes @ self.own) * is_drafting
        return replace(sizes, weight_bytes=weight_bytes, cache_bytes=cache_bytes)
