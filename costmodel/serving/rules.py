"""What makes a serving plan legal: one documented predicate per rule. Those of degrees are the mesh's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from costmodel.arrays import BoolArray, IntArray
from costmodel.mesh.rules import RULES, Columns, NetworkShape, Rule
from costmodel.serving.plan import ServingBatch, ServingPlan

__all__ = ["SERVING_RULES", "broken_serving_rules", "is_legal"]


# Rules of the mesh that read nothing but degrees that serving has.
_DEGREES = frozenset({"tp", "pp", "vpp", "ep", "etp"})


def _experts_fill(shape: NetworkShape, c: Columns) -> BoolArray:
    if not shape.experts:
        return np.ones(len(c["tp"]), dtype=np.bool_)
    ranks = c["ep"] * c["etp"]
    return np.asarray((ranks % c["tp"] == 0) & ((c["tp"] * c["dp"]) % ranks == 0))


SERVING_RULES: tuple[Rule, ...] = (
    *(rule for rule in RULES if rule.fields and set(rule.fields) <= _DEGREES),
    Rule(
        name="positive",
        fields=("dp", "max_batch", "prefill_batch", "prefill_chunk"),
        doc="every degree and batch is at least 1, a chunk is 0 (whole prompts) or more",
        test=lambda s, c: np.asarray(  # noqa: ARG005
            np.logical_and.reduce([c[n] >= 1 for n in ("tp", "pp", "ep", "etp", "dp", "max_batch", "prefill_batch")])
            & (c["prefill_chunk"] >= 0)
        ),
        message=lambda s, v: "every degree and batch must be at least 1",  # noqa: ARG005
    ),
    Rule(
        name="experts-fill",
        fields=("tp", "dp", "ep", "etp"),
        doc="ep x etp is tp, or tp times a number of replicas that share the experts and divides dp",
        test=_experts_fill,
        message=lambda s, v: (  # noqa: ARG005
            f"ep {v['ep']} x etp {v['etp']} must be tp {v['tp']}, or a multiple of it that divides tp x dp = {v['tp'] * v['dp']}"
        ),
    ),
    Rule(
        name="encoder",
        fields=("pp", "prefill_chunk"),
        doc="a network with an encoder has one stage, and reads whole prompts in passes of their own (its positions see later ones)",
        test=lambda s, c: (c["pp"] == 1) & (c["prefill_chunk"] == 0) | (not s.has_encoder),
        message=lambda s, v: (  # noqa: ARG005
            f"a network with an encoder is served with pp 1 and prefill chunk 0 (whole prompts), not with {v['pp']} and "
            f"{v['prefill_chunk']}"
        ),
    ),
    Rule(
        name="prefill-batch",
        fields=("max_batch", "prefill_batch"),
        doc="a pass reads no more prompts than a replica has places",
        test=lambda s, c: c["prefill_batch"] <= c["max_batch"],  # noqa: ARG005
        message=lambda s, v: (  # noqa: ARG005
            f"prefill batch {v['prefill_batch']} is more than the {v['max_batch']} sequences of a replica (max batch)"
        ),
    ),
)


def _columns(batch: ServingBatch) -> dict[str, IntArray]:
    return {**{item.name: getattr(batch, item.name) for item in fields(batch)}, "vpp": np.ones_like(batch.tp)}


def is_legal(shape: NetworkShape, batch: ServingBatch) -> BoolArray:
    """Whether plans break no rule."""
    columns = _columns(batch)
    return np.asarray(np.logical_and.reduce([np.asarray(rule.test(shape, columns)) for rule in SERVING_RULES]))


def broken_serving_rules(shape: NetworkShape, plan: ServingPlan) -> list[str]:
    """What is wrong with a plan, one sentence per rule that it breaks."""
    columns = _columns(ServingBatch.from_plans([plan]))
    positive = all(int(column[0]) >= 1 for name, column in columns.items() if name != "prefill_chunk")
    if not positive or plan.prefill_chunk < 0:
        return ["every degree and batch must be at least 1"]  # the other rules divide by them
    values: Mapping[str, int] = {name: int(column[0]) for name, column in columns.items()}
    return [rule.message(shape, values) for rule in SERVING_RULES if not bool(np.all(rule.test(shape, columns)))]
