"""Which combinations of degrees a network can run with: one documented predicate per rule, applied while the space is built.

A rule names the columns that it needs; the space applies it as soon as they exist, and the check of a single plan applies them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, IntArray
from costmodel.framework import NO_FRAMEWORK, Framework
from costmodel.hardware.cluster import Cluster
from costmodel.mesh.framework_rules import takes_groups
from costmodel.mesh.modules import Modules
from costmodel.mesh.plan import CP_KINDS, FULL, MESH_COLUMNS, RECOMPUTE, SCHEDULES, MeshBatch, MeshPlan
from costmodel.mesh.schedule import has_chunks
from costmodel.mesh.stages import uncut_chunks
from costmodel.mesh.tensor_parallel import roles_of
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION
from costmodel.precision import Precision
from costmodel.schedules import FEWEST, IN_GROUPS, IS_CHUNKED, ONE_F_ONE_B, VPP

Columns = Mapping[str, IntArray]

_RING, _ALL_TO_ALL = CP_KINDS.index("ring"), CP_KINDS.index("all_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShape:
    """The numbers of a network, a step and a cluster that rules refer to."""

    heads: tuple[int, ...]  # attention heads, every number that occurs
    kv_heads: tuple[int, ...]
    widths: tuple[int, ...]  # extents that tensor parallelism splits besides heads and vocabulary
    experts: tuple[int, ...]
    expert_widths: tuple[int, ...]
    positions: tuple[int, ...]  # lengths of sequences inside the blocks
    is_causal: bool
    num_blocks: int
    global_batch: int
    has_encoder: bool = False  # alongside a decoder that reads it by cross-attention
    selects: bool = False  # an indexer picks the positions that attention sees
    framework: str = ""
    uncut_chunks: tuple[int, ...] = ()  # numbers of chunks that the framework cannot cut the network into
    fewest_micro_batches: bool = False  # its 1F1B needs as many micro-batches as stages but one
    groups: str = "whole"  # of interleaved micro-batches (`costmodel.mesh.framework_rules.GROUPS`)
    schedules: tuple[str, ...] = SCHEDULES  # that the framework has
    # What it gives to ranks in whole pieces: how many there are, and of what; for tp, and for etp.
    pieces: tuple[tuple[int, str], ...] = ()
    expert_pieces: tuple[tuple[int, str], ...] = ()
    pools: str = "any"  # which workers may read prompts for others (`costmodel.mesh.framework_rules.Rules`)
    drafts_alone: bool = False  # tokens are drafted only where prompts have passes of their own
    cluster: Cluster | None = None  # whose domains are used; None: of any kind

    @classmethod
    def of(
        cls,
        graph: Graph,
        modules: Modules,
        global_batch: int,
        framework: Framework = NO_FRAMEWORK,
        cluster: Cluster | None = None,
        precision: Precision | None = None,
    ) -> NetworkShape:
        """Collect the numbers; ``precision``: that of weights which are served."""
        heads, kv_heads, widths, experts, expert_widths, shared_widths, positions = (set[int]() for _ in range(7))
        causal = False
        for kind in modules.kinds:
            for index, role in zip(kind.layers, roles_of(graph, kind), strict=True):
                layer = graph.layers[index]
                if layer.kind in ATTENTION:
                    heads.add(layer.params.heads)
                    kv_heads.add(getattr(layer.params, "kv_heads", 0) or layer.params.heads)
                    causal = causal or bool(getattr(layer.params, "causal", False))
                elif layer.kind == "moe":
                    experts.add(layer.params.experts)
                    expert_widths.add(layer.params.ffn)
                    shared_widths |= {layer.params.shared_width} - {0}
                elif role.role == "row":
                    widths.add(layer.input_shapes[0][0])
                if kind.is_block and len(layer.output_shape) == 2:
                    positions.add(layer.output_shape[1])
        return cls(
            heads=tuple(sorted(heads)),
            kv_heads=tuple(sorted(kv_heads)),
            widths=tuple(sorted(widths)),
            experts=tuple(sorted(experts)),
            expert_widths=tuple(sorted(expert_widths)),
            positions=tuple(sorted(positions)),
            is_causal=causal,
            num_blocks=modules.num_blocks,
            global_batch=global_batch,
            has_encoder=any(layer.kind == "cross_attention" for layer in graph.layers),
            selects=any(getattr(layer.params, "selected", 0) for layer in graph.layers),
            framework=framework.name,
            uncut_chunks=uncut_chunks(framework, graph, modules),
            fewest_micro_batches=framework.rules.fewest_micro_batches,
            groups=framework.rules.groups,
            schedules=tuple(framework.rules.runs("schedule", SCHEDULES)),
            pieces=_pieces(graph, framework, sorted(widths | shared_widths), precision),
            expert_pieces=_blocks(sorted(expert_widths), framework, precision, "moe"),
            pools=framework.rules.pools,
            drafts_alone=framework.rules.drafts_alone,
            cluster=cluster,
        )


def _pieces(
    graph: Graph, framework: Framework, widths: Sequence[int], precision: Precision | None
) -> tuple[tuple[int, str], ...]:
    """Rows of the padded vocabulary, and blocks of matrices, of which tensor-parallel ranks have equally many."""
    multiple = framework.rules.vocabulary_multiple
    rows = sorted({layer.params.num_embeddings for layer in graph.layers if layer.kind == "embedding"})
    padded = [-(-count // multiple) * multiple for count in rows] if multiple else []
    # Heads of keys and values are columns, which only blocks of both dimensions cut; whole blocks to a head are repeated with it.
    heads = {
        layer.params.kv_heads * layer.params.head_dim: layer.params.head_dim
        for layer in graph.layers
        if layer.kind == "self_attention" and layer.params.kv_heads and layer.params.head_dim
    }
    block = _block_of(framework, precision, "linear")
    is_square = block > 0 and precision is not None and (precision.stored or precision.operand).weight_block > 0
    cut = [width for width, size in heads.items() if is_square and size % block]
    return (
        *((count, f"the {count:,} rows of the padded vocabulary") for count in padded),
        *_blocks([*widths, *cut], framework, precision, "linear"),
    )


def _block_of(framework: Framework, precision: Precision | None, kind: str) -> int:
    """Numbers of a row of a matrix that share a scale and stay together; 0: it does not matter."""
    if (
        not framework.rules.whole_blocks
        or precision is None
        or precision.kind != "narrow"
        or kind not in precision.covers
    ):
        return 0
    kept = precision.stored or precision.operand
    # Mixtures with scales per row are padded, or read with smaller blocks.
    return kept.block if kept.block > 1 and (kind == "linear" or kept.weight_block) else 0


def _blocks(
    widths: Sequence[int], framework: Framework, precision: Precision | None, kind: str
) -> tuple[tuple[int, str], ...]:
    """Blocks of matrices of these widths; one that has no whole number of them cannot be split."""
    block = _block_of(framework, precision, kind)
    counted = [(width, width // block if width % block == 0 else 1) for width in widths] if block else []
    return tuple((count, f"the blocks of {block} of a width of {width:,}") for width, count in counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on a plan.

    Attributes
    ----------
    name : str
    fields : tuple of str
        Columns that it reads: fields of MeshPlan, or "dp".
    doc : str
        The condition in words.
    test : function of (shape, columns) to array of bool
    message : function of (shape, values of the plan) to str
        What is wrong with a plan that breaks it.
    after : str
        Another rule: a plan that breaks that one breaks this one by the same mistake, and only that one is said.
    """

    name: str
    fields: tuple[str, ...]
    doc: str
    test: Callable[[NetworkShape, Columns], BoolArray]
    message: Callable[[NetworkShape, Mapping[str, int]], str]
    after: str = ""


def columns_of(batch: MeshBatch) -> dict[str, IntArray]:
    """The columns that rules read."""
    return {**{name: getattr(batch, name) for name in MESH_COLUMNS}, "dp": batch.dp}


def holds(shape: NetworkShape, columns: Columns, new: frozenset[str] | None = None) -> BoolArray:
    """Whether all rules hold that can be tested with the columns at hand (and need one of the new ones, where given)."""
    size = len(next(iter(columns.values())))
    result = np.ones(size, dtype=np.bool_)
    for rule in RULES:
        if all(name in columns for name in rule.fields) and (new is None or new & set(rule.fields)):
            result &= rule.test(shape, columns)
    return result


def nearby(value: int, divisor: int) -> str:
    """The multiples of a divisor around a value.

    >>> nearby(1000, 48)
    '960 or 1008'
    """
    below = value // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


def _divides_all(degree: IntArray, extents: Sequence[int]) -> BoolArray:
    result = np.ones(len(degree), dtype=np.bool_)
    for extent in extents:
        result &= extent % degree == 0
    return result


def _divisors_text(*extents: int) -> str:
    common = int(np.gcd.reduce(np.array(extents, dtype=np.int64)))
    found = [d for d in range(1, min(common, 4096) + 1) if common % d == 0]
    return ", ".join(map(str, found[:12])) + (" ..." if len(found) > 12 else "")


def _positive(shape: NetworkShape, c: Columns) -> BoolArray:  # noqa: ARG001 - the same signature for all
    names = ("tp", "cp", "ep", "etp", "pp", "vpp", "dp_replicate", "dp_shard", "micro_batch", "num_micro_batches")
    return np.asarray(np.logical_and.reduce([c[name] >= 1 for name in names if name in c]))


def _kv_heads(shape: NetworkShape, c: Columns) -> BoolArray:
    result = np.ones(len(c["tp"]), dtype=np.bool_)
    for kv in set(shape.kv_heads) - set(shape.heads):  # as many as attention heads: the rule of those says it
        result &= (kv % c["tp"] == 0) | (c["tp"] % kv == 0)
    return result


def _sequence(shape: NetworkShape, c: Columns) -> BoolArray:
    pieces = c["tp"] * c["cp"]
    return np.asarray((c["sequence_parallel"] == 0) | ((c["tp"] > 1) & _divides_all(pieces, shape.positions)))


def _context(shape: NetworkShape, c: Columns) -> BoolArray:
    pieces = c["cp"] * (2 if shape.is_causal else 1)
    return np.asarray((c["cp"] == 1) | _divides_all(pieces, shape.positions))


def _ulysses(shape: NetworkShape, c: Columns) -> BoolArray:
    traded = (c["cp_kind"] == _ALL_TO_ALL) & (c["cp"] > 1)
    return np.asarray(~traded | _divides_all(c["tp"] * c["cp"], shape.heads))


def _experts_fit(shape: NetworkShape, c: Columns) -> BoolArray:  # noqa: ARG001
    ranks = c["tp"] * c["cp"] * np.where(c["zero_stage"] > 0, c["dp_shard"], c["dp"])
    return np.asarray(ranks % (c["ep"] * c["etp"]) == 0)


def _experts_possible(shape: NetworkShape, c: Columns) -> BoolArray:  # noqa: ARG001
    return np.asarray((c["tp"] * c["cp"] * c["dp"]) % (c["ep"] * c["etp"]) == 0)


def _pipeline_message(shape: NetworkShape, v: Mapping[str, int]) -> str:  # noqa: ARG001
    name = SCHEDULES[v["schedule"]]
    if IS_CHUNKED[v["schedule"]]:
        return f"schedule {name} (a vpp above 1) needs a pipeline, a pp of at least 2; it is {v['pp']}"
    return f"schedule {name} needs a pipeline, a pp of at least 2; with pp {v['pp']} leave it at 1f1b"


def _chunks_message(shape: NetworkShape, v: Mapping[str, int]) -> str:
    name = SCHEDULES[v["schedule"]]
    if VPP[v["schedule"]] > 1:
        return f"schedule {name} needs vpp {VPP[v['schedule']]}; it is {v['vpp']}"
    if IS_CHUNKED[v["schedule"]]:
        return f"vpp {v['vpp']} is too few chunks for schedule {name}, which needs a vpp of at least 2"
    chunked = [other for other in shape.schedules if IS_CHUNKED[SCHEDULES.index(other)]]
    has = (
        f"is for schedule {' or '.join(chunked)}"
        if chunked
        else f"needs a schedule that {shape.framework} does not have"
    )
    return f"vpp {v['vpp']} {has}; schedule {name} has one chunk per rank"


def _recompute(shape: NetworkShape, c: Columns) -> BoolArray:
    full, blocks = c["recompute"] == FULL, c["recompute_blocks"]
    return np.asarray(np.where(full, (blocks >= 1) & (blocks <= shape.num_blocks), blocks == 0))


def _domain_shares(shape: NetworkShape, c: Columns) -> BoolArray:
    cluster, used = shape.cluster, c["domain_gpus"]
    if cluster is None:
        return np.ones(len(used), dtype=np.bool_)
    size, unit = cluster.domain_size or 0, cluster.domain_unit
    return np.asarray((used <= 0) | ((used <= size) & (used % unit == 0)))


def _domain_message(shape: NetworkShape, v: Mapping[str, int]) -> str:
    cluster, used = shape.cluster, v["domain_gpus"]
    assert cluster is not None
    size, unit = cluster.domain_size, cluster.domain_unit
    if size is None:
        return f"domain_gpus {used}: cluster '{cluster.name}' has no domains of fast links that hold whole nodes"
    if used > size:
        return f"domain_gpus {used} is more than the {size} GPUs of {cluster.domain_name}"
    return (
        f"domain_gpus {used} is no whole number of nodes: jobs get nodes of {unit} GPUs, of {cluster.domain_name} up to "
        f"{size // unit} of them; use {nearby(used, unit)}"
    )


def _domains(shape: NetworkShape, c: Columns) -> BoolArray:
    cluster, used = shape.cluster, c["domain_gpus"]
    domains = None if cluster is None else cluster.num_domains
    workers = c["tp"] * c["cp"] * c["pp"] * c["dp"]
    return np.asarray((used <= 0) | (domains is None) | (-(-workers // np.maximum(used, 1)) <= (domains or 0)))


def _domains_message(shape: NetworkShape, v: Mapping[str, int]) -> str:
    workers, used = v["tp"] * v["cp"] * v["pp"] * v["dp"], v["domain_gpus"]
    assert shape.cluster is not None
    domains = shape.cluster.num_domains or 1
    return (
        f"domain_gpus {used}: {workers} GPUs need {-(-workers // used)} domains, the cluster has {domains}; "
        f"use {-(-workers // domains)} or more"
    )


def _groups(shape: NetworkShape, c: Columns) -> BoolArray:
    return np.asarray(
        ~IN_GROUPS[c["schedule"]] | takes_groups(shape.groups, c["num_micro_batches"], np.maximum(c["pp"], 1))
    )


def _groups_message(shape: NetworkShape, v: Mapping[str, int]) -> str:
    m, pp = v["num_micro_batches"], v["pp"]
    whole = shape.groups == "whole"
    kind, near = (f"whole groups of pp {pp}", pp) if whole else (f"{m // pp} equal groups of", m // pp)
    of = f" of {shape.framework}" if shape.framework else ""
    return (
        f"schedule {SCHEDULES[v['schedule']]}{of} needs {kind} micro-batches; there are {m} (nearby: {nearby(m, near)})"
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="positive",
        fields=(),
        doc="every degree is at least 1",
        test=_positive,
        message=lambda s, v: "every degree and micro-batch must be at least 1",  # noqa: ARG005
    ),
    Rule(
        name="heads",
        fields=("tp",),
        doc="tp divides the attention heads",
        test=lambda s, c: _divides_all(c["tp"], s.heads),
        message=lambda s, v: (
            f"tp {v['tp']} does not divide the {' and '.join(map(str, s.heads))} attention heads; "
            f"allowed: {_divisors_text(*s.heads)}"
        ),
    ),
    Rule(
        name="kv-heads",
        fields=("tp",),
        doc="tp divides the key and value heads, or they divide it and are repeated",
        test=_kv_heads,
        message=lambda s, v: (
            f"tp {v['tp']} neither divides the {' and '.join(map(str, s.kv_heads))} key/value heads nor is a multiple of them"
        ),
    ),
    Rule(
        name="widths",
        fields=("tp",),
        doc="tp divides the inner width of every matrix pair",
        test=lambda s, c: _divides_all(c["tp"], s.widths),
        message=lambda s, v: (
            f"tp {v['tp']} does not divide the widths {', '.join(map(str, s.widths))} of the split matrices"
        ),
    ),
    Rule(
        name="sequence-parallel",
        fields=("tp", "cp", "sequence_parallel"),
        doc="sequence parallelism needs tp > 1 and positions that tp x cp divides",
        test=_sequence,
        message=lambda s, v: (
            "sequence parallelism needs tp > 1"
            if v["tp"] == 1
            else f"sequence parallelism over tp {v['tp']} x cp {v['cp']} needs a sequence length "
            f"({', '.join(map(str, s.positions))}) that {v['tp'] * v['cp']} divides"
        ),
    ),
    Rule(
        name="context",
        fields=("cp",),
        doc="cp divides the positions; 2 cp does where attention is causal, so that every rank gets an early and a late piece",
        test=_context,
        message=lambda s, v: (
            f"cp {v['cp']} needs a sequence length that {v['cp'] * (2 if s.is_causal else 1)} divides; it is "
            f"{', '.join(map(str, s.positions))} (nearby: {nearby(max(s.positions), v['cp'] * (2 if s.is_causal else 1))})"
        ),
    ),
    Rule(
        name="all-to-all-heads",
        fields=("tp", "cp", "cp_kind"),
        doc="all-to-all context parallelism trades positions for heads: tp x cp divides the heads",
        test=_ulysses,
        message=lambda s, v: (
            f"all-to-all context parallelism needs {v['tp']} x {v['cp']} (tp x cp) to divide the {' and '.join(map(str, s.heads))} heads"
        ),
    ),
    Rule(
        name="selected-positions",
        fields=("cp", "cp_kind"),
        doc="where an indexer picks the positions that attention sees, context parallelism is no ring: it picks among all of them",
        test=lambda s, c: np.logical_not(s.selects) | (c["cp"] == 1) | (c["cp_kind"] != _RING),
        message=lambda s, v: "an indexer picks among all positions, and a ring has a part of them at a time",  # noqa: ARG005
    ),
    Rule(
        name="cp-kind",
        fields=("cp", "cp_kind"),
        doc="without context parallelism its kind is ring (it means nothing)",
        test=lambda s, c: (c["cp"] > 1) | (c["cp_kind"] == 0),  # noqa: ARG005
        message=lambda s, v: "a kind of context parallelism needs cp > 1",  # noqa: ARG005
    ),
    Rule(
        name="experts",
        fields=("ep",),
        doc="ep divides the number of experts",
        test=lambda s, c: _divides_all(c["ep"], s.experts) if s.experts else c["ep"] == 1,
        message=lambda s, v: (
            f"ep {v['ep']} does not divide the {' and '.join(map(str, s.experts))} experts; allowed: {_divisors_text(*s.experts)}"
            if s.experts
            else f"ep {v['ep']} needs experts; the network has none"
        ),
    ),
    Rule(
        name="expert-tensor",
        fields=("tp", "etp"),
        doc="etp divides tp and the width of an expert",
        test=lambda s, c: (
            (c["tp"] % c["etp"] == 0) & _divides_all(c["etp"], s.expert_widths) if s.experts else c["etp"] == 1
        ),
        message=lambda s, v: (
            f"etp {v['etp']} must divide tp {v['tp']} and the expert width {', '.join(map(str, s.expert_widths))}"
            if s.experts
            else f"etp {v['etp']} needs experts; the network has none"
        ),
    ),
    Rule(
        name="experts-sequence",
        fields=("tp", "sequence_parallel"),
        doc="mixtures of experts with tp > 1 need sequence parallelism, so that every rank sends tokens of its own (Megatron-LM)",
        test=lambda s, c: (c["tp"] == 1) | (c["sequence_parallel"] > 0) | (not s.experts),
        message=lambda s, v: f"a mixture of experts with tp {v['tp']} needs sequence parallelism",  # noqa: ARG005
    ),
    Rule(
        name="expert-ranks",
        fields=("tp", "cp", "dp", "ep", "etp"),
        doc="ep x etp divides the tp x cp x dp ranks of a stage",
        test=_experts_possible,
        message=lambda s, v: (  # noqa: ARG005
            f"ep {v['ep']} x etp {v['etp']} does not divide the {v['tp'] * v['cp'] * v['dp']} ranks (tp x cp x dp) of a stage"
        ),
    ),
    Rule(
        name="expert-shards",
        fields=("tp", "cp", "dp", "dp_shard", "zero_stage", "ep", "etp"),
        doc="under ZeRO, ep x etp divides the tp x cp x dp_shard ranks that share a copy",
        test=_experts_fit,
        message=lambda s, v: (  # noqa: ARG005
            f"ep {v['ep']} x etp {v['etp']} does not divide the {v['tp'] * v['cp'] * v['dp_shard']} ranks (tp x cp x dp_shard) "
            "that share a copy"
        ),
    ),
    Rule(
        name="stages",
        fields=("pp", "vpp"),
        doc="there are at least as many blocks as pipeline chunks",
        test=lambda s, c: c["pp"] * c["vpp"] <= s.num_blocks,
        message=lambda s, v: (
            f"pp {v['pp']}"
            + (f" x vpp {v['vpp']}" if v["vpp"] > 1 else "")
            + f" is more than the {s.num_blocks} blocks of the network"
        ),
        after="schedule-chunks",
    ),
    Rule(
        name="framework-stages",
        fields=("pp", "vpp"),
        doc="the framework can cut the network into these stages",
        test=lambda s, c: ~np.isin(c["pp"] * c["vpp"], s.uncut_chunks),
        message=lambda s, v: (
            f"{s.framework} cuts the network into {v['pp'] * v['vpp']} stages so that the loss is not on the last one"
        ),
    ),
    Rule(
        name="framework-micro-batches",
        fields=("schedule", "num_micro_batches", "pp"),
        doc="there are as many micro-batches as the 1F1B schedule of the framework needs",
        test=lambda s, c: (
            (c["schedule"] != ONE_F_ONE_B) | (c["num_micro_batches"] >= c["pp"] - 1) | (not s.fewest_micro_batches)
        ),
        message=lambda s, v: (
            f"{s.framework} needs {v['pp'] - 1} micro-batches for {v['pp']} stages; the plan has {v['num_micro_batches']}"
        ),
    ),
    Rule(
        name="schedule-pipeline",
        fields=("schedule", "pp"),
        doc="schedules but 1f1b need pp > 1; without a pipeline all are the same",
        test=lambda s, c: (c["pp"] > 1) | (c["schedule"] == ONE_F_ONE_B),  # noqa: ARG005
        message=_pipeline_message,
    ),
    Rule(
        name="schedule-chunks",
        fields=("schedule", "vpp"),
        doc="vpp > 1 is for schedules with several chunks per rank, which need it",
        test=lambda s, c: has_chunks(c["schedule"], c["vpp"]),  # noqa: ARG005
        message=_chunks_message,
    ),
    Rule(
        name="framework-groups",
        fields=("schedule", "num_micro_batches", "pp"),
        doc=f"{' or '.join(np.array(SCHEDULES)[IN_GROUPS])} needs whole groups of pp micro-batches, unless the framework takes others",
        test=_groups,
        message=_groups_message,
    ),
    Rule(
        name="schedule-micro-batches",
        fields=("schedule", "num_micro_batches", "pp"),
        doc=", ".join(
            f"{' or '.join(np.array(SCHEDULES)[n == FEWEST])} needs at least {'' if n == 1 else f'{n} '}pp micro-batches"
            for n in np.unique(FEWEST[FEWEST > 0])
        ),
        test=lambda s, c: c["num_micro_batches"] >= FEWEST[c["schedule"]] * c["pp"],  # noqa: ARG005
        message=lambda s, v: (  # noqa: ARG005
            f"schedule {SCHEDULES[v['schedule']]} needs {FEWEST[v['schedule']] * v['pp']} micro-batches for pp {v['pp']}; "
            f"there are {v['num_micro_batches']}"
        ),
        after="stages",
    ),
    Rule(
        name="batch",
        fields=("dp", "micro_batch", "num_micro_batches"),
        doc="dp x micro_batch x num_micro_batches is the global batch",
        test=lambda s, c: c["dp"] * c["micro_batch"] * c["num_micro_batches"] == s.global_batch,
        message=lambda s, v: (
            f"dp {v['dp']} x micro-batch {v['micro_batch']} x {v['num_micro_batches']} micro-batches is "
            f"{v['dp'] * v['micro_batch'] * v['num_micro_batches']}, not the global batch {s.global_batch} "
            f"(nearby batches that dp x micro-batch divides: {nearby(s.global_batch, v['dp'] * v['micro_batch'])})"
        ),
    ),
    Rule(
        name="zero",
        fields=("cp", "dp_shard", "zero_stage"),
        doc="ZeRO has stages 0 to 3; stages 1 to 3 need ranks to share over (dp_shard x cp > 1), stage 0 shares nothing (dp_shard = 1)",
        test=lambda s, c: (  # noqa: ARG005
            (c["zero_stage"] >= 0)
            & (c["zero_stage"] <= 3)
            & np.where(c["zero_stage"] > 0, c["dp_shard"] * c["cp"] > 1, c["dp_shard"] == 1)
        ),
        message=lambda s, v: (  # noqa: ARG005
            f"zero stage {v['zero_stage']} and dp_shard {v['dp_shard']} contradict each other: stages 1 to 3 need dp_shard x cp > 1, "
            "stage 0 has dp_shard 1"
        ),
    ),
    Rule(
        name="domain-nodes",
        fields=("domain_gpus",),
        doc="whole nodes of every domain of fast links are used",
        test=_domain_shares,
        message=_domain_message,
    ),
    Rule(
        name="domains",
        fields=("tp", "cp", "pp", "dp", "domain_gpus"),
        doc="the cluster has enough domains of fast links",
        test=_domains,
        message=_domains_message,
    ),
    Rule(
        name="recompute",
        fields=("recompute", "recompute_blocks"),
        doc="recompute_blocks counts from 1 under full recomputation, and is 0 otherwise",
        test=_recompute,
        message=lambda s, v: (
            f"recompute_blocks {v['recompute_blocks']} with recompute {RECOMPUTE[v['recompute']]}: expected 1 to {s.num_blocks} with full, "
            "0 otherwise"
        ),
    ),
)


def broken_rules(shape: NetworkShape, plan: MeshPlan, rules: Sequence[Rule] = RULES) -> list[str]:
    """What is wrong with a plan, one sentence per mistake."""
    columns = columns_of(MeshBatch.from_plans([plan]))
    values = {name: int(column[0]) for name, column in columns.items()}
    broken = {rule.name: rule for rule in rules if not bool(np.all(rule.test(shape, columns)))}
    return [rule.message(shape, values) for rule in broken.values() if rule.after not in broken]
