"""One serving plan in detail: its layers, as rows that reports can print.

The rows come from the tables that the cost of the plan comes from: times the number of modules they add up to the parts of a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.serving.model import ServingModel, passes_of
from costmodel.serving.plan import ServingBatch, ServingPlan

__all__ = ["ServingLayerRow", "serving_layer_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLayerRow:
    """One layer of one kind of module, on one rank, in one pass of each kind."""

    unit: str  # "embedding", "head", or the first block of its kind
    count: int  # modules of this kind in the network
    name: str
    kind: str
    decode_s: float  # kernels, in a decoding pass of one group of sequences
    decode_exchange_s: float  # communication of tensor and expert parallelism in it
    prefill_s: float  # the same of a pass that reads prompts
    prefill_exchange_s: float
    weight_bytes: float
    cache_bytes: float  # of one sequence


def serving_layer_rows(model: ServingModel, plan: ServingPlan) -> list[ServingLayerRow]:
    """Every layer of every kind of module, in network order; equal modules once.

    Parameters
    ----------
    model : ServingModel
    plan : ServingPlan

    Returns
    -------
    list of ServingLayerRow
    """
    decode, prefill = passes_of(model, ServingBatch.from_plans([plan]))
    modules, timer = model.modules, model.timer
    rows = []
    for number, kind in enumerate(modules.kinds):
        for position, role in enumerate(timer.roles[number]):
            layer = model.workload.graph.layers[kind.layers[position]]
            is_head = number == len(modules.kinds) - 1
            times = [timer.layer(kind, position, role, keys, is_head=is_head) for keys in (decode, prefill)]
            kernels, exchanges = zip(
                *((float(t["compute_s"][0]), float(np.sum(t["tp_s"] + t["ep_s"]))) for t in times), strict=True
            )
            sizes = timer.layer_sizes(kind, position, role, decode)
            rows.append(
                ServingLayerRow(
                    unit=kind.name,
                    count=modules.kind_of.count(number),
                    name=layer.name,
                    kind=layer.kind,
                    decode_s=kernels[0],
                    decode_exchange_s=exchanges[0],
                    prefill_s=kernels[1],
                    prefill_exchange_s=exchanges[1],
                    weight_bytes=float(sizes["weight_bytes"][0]),
                    cache_bytes=float(sizes["cache_bytes"][0]),
                )
            )
    return rows
