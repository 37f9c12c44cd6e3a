"""A serving plan and its costs, one and as a struct of arrays.

A plan has degrees of parallelism, a number of sequences at a time, and a way to read prompts. Costs are times that a user feels, tokens
per second, the parts that add up to each, and what fills the memory.

One documented predicate per rule says what makes a plan legal. Those of degrees are the mesh's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from costmodel.arrays import BoolArray, DeclaredColumns, FloatArray, IntArray, PlanBatch, with_columns
from costmodel.fields import Figure, declared, part, parts_of, setting
from costmodel.mesh.rules import RULES, Columns, NetworkShape, Rule
from costmodel.serving.percentiles import PERCENTILES, SHARES


def _rate(name: str, doc: str, *, optional: bool = False) -> Figure:
    return Figure(name=name, doc=doc, kind="number", optional=optional)


_TIMES = {"ttft": "time to first token", "tpot": "time per token after the first", "request": "time of a request"}
_PERCENTILES = {
    name: f"{share:.0%} of the requests have at most this {_TIMES[name.split('_')[0]]}."
    for name in PERCENTILES
    for share in (SHARES[name.split("_")[1]],)
}

SERVING_FIGURES: Mapping[str, Figure] = declared(
    Figure(name="step_time_s", doc="The same as `tpot_s`."),
    _rate("throughput_samples_per_s", "The same as `requests_per_s`."),
    _rate("memory_bytes_per_gpu", "Memory of the fullest GPU."),
    Figure(name="exposed_communication_s", doc="Part of the time per token that is communication."),
    Figure(name="ttft_s", doc="Mean time to first token: the queue before it, and the prompt through all stages."),
    Figure(name="ttft_low_s", doc="Of the interval of `ttft_s`.", optional=True),
    Figure(name="ttft_high_s", doc="Of the interval of `ttft_s`.", optional=True),
    Figure(name="tpot_s", doc="Mean time per token after the first."),
    Figure(name="request_s", doc="ttft_s + (output_tokens - 1) tpot_s."),
    Figure(name="pause_s", doc="Pause between two tokens of a sequence while prompts of others are read."),
    Figure(name="decode_pass_s", doc="A decoding pass with nothing else under way."),
    _rate("requests_per_s", "Of all replicas."),
    _rate("rate_per_s", "Requests that come; null: the next one comes when one is answered.", optional=True),
    _rate("most_requests_per_s", "What all replicas can serve at a rate before their queues grow without bound."),
    _rate(
        "occupied_places",
        "Requests that a replica reads or decodes at a time, on average; all places where it is always full.",
    ),
    _rate("output_tokens_per_s", "Of all replicas."),
    _rate("output_tokens_per_s_low", "Of the interval of `output_tokens_per_s`.", optional=True),
    _rate("output_tokens_per_s_high", "Of the interval of `output_tokens_per_s`.", optional=True),
    _rate("total_tokens_per_s", "Prompts included."),
    _rate("output_tokens_per_s_per_gpu", "Per GPU in use."),
    _rate("memory_capacity_bytes", "Memory that a GPU may use."),
    Figure(
        name="limits_probability",
        doc="Chance that measured times keep all limits that were given; null where none was.",
        label="P(keeps limits)",
        kind="number",
        optional=True,
    ),
    Figure(name="kv_bytes_per_sequence", doc="Keys and values of one sequence on the fullest GPU."),
    Figure(name="largest_batch", doc="Sequences per replica that fit with the other choices.", kind="count"),
    _rate(
        "money_per_million_output_tokens",
        "In USD; null where the device file states no `price_per_hour`.",
        optional=True,
    ),
    _rate(
        "energy_per_output_token_j",
        "In joules, of the GPUs in use and their hosts; null where the device file states no `power`.",
        optional=True,
    ),
    Figure(
        name="kernel_gpu_s", doc="Time of GPUs in kernels per output token, of those that do not only read prompts."
    ),
    Figure(name="prefill_kernel_gpu_s", doc="The same of those that only read prompts."),
    *(Figure(name=name, doc=doc) for name, doc in _PERCENTILES.items()),
    part("tpot_s", "decode_compute_s", "kernels", "Kernels of a decoding pass."),
    part("tpot_s", "decode_tp_s", "tensor-parallel communication", "Tensor-parallel communication of a decoding pass."),
    part("tpot_s", "decode_ep_s", "expert-parallel communication", "Expert-parallel communication of a decoding pass."),
    part("tpot_s", "decode_pp_s", "transfers between stages", "Transfers between stages of a decoding pass."),
    part("tpot_s", "decode_host_s", "waiting for the host", "What a decoding pass waits for the host."),
    part(
        "tpot_s",
        "transfer_s",
        "waiting for the prompt's cache",
        "Waiting for the cache of the prompt to come from the workers that read it, spread over the tokens after the first.",
    ),
    part(
        "tpot_s",
        "waiting_s",
        "waiting for prompts of others and for the slowest stage",
        "Waiting for the prompts of others and for the slowest stage.",
    ),
    part(
        "ttft_s",
        "queue_s",
        "waiting for a pass and for prompts of others",
        "Waiting for the pass under way and for prompts of others.",
    ),
    part("ttft_s", "prefill_compute_s", "kernels", "Kernels of the prompt's last pass."),
    part("ttft_s", "prefill_tp_s", "tensor-parallel communication", "Tensor-parallel communication of it."),
    part("ttft_s", "prefill_ep_s", "expert-parallel communication", "Expert-parallel communication of it."),
    part("ttft_s", "prefill_pp_s", "transfers between stages", "Transfers between stages of it."),
    part("ttft_s", "prefill_host_s", "waiting for the host", "What it waits for the host."),
    part("ttft_s", "earlier_chunks_s", "earlier chunks of the prompt", "Passes of the prompt's earlier chunks."),
    part("memory_bytes_per_gpu", "weight_bytes", "weights", "Weights."),
    part("memory_bytes_per_gpu", "kv_bytes", "keys and values", "Keys and values of all sequences."),
    part("memory_bytes_per_gpu", "working_bytes", "working memory of a pass", "The widest moment of a pass."),
    part("memory_bytes_per_gpu", "logits_bytes", "logits", "Logits."),
    part("memory_bytes_per_gpu", "buffer_bytes", "communication buffers", "Communication buffers."),
    part("memory_bytes_per_gpu", "context_bytes", "context of the driver and libraries", "Driver and libraries."),
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ServingPlan:
    """One way to serve; the defaults are one worker and one sequence.

    ``workers = tp pp dp + prefill_tp prefill_pp prefill_dp``. With ``prefill_dp`` above 0 those workers read all prompts, in passes of
    ``prefill_batch`` and ``prefill_chunk``, and the replicas make the other tokens (`costmodel.serving.pools`). Routed experts live on
    ``ep etp`` ranks: those of one stage of one replica (``ep etp = tp``), or of several replicas, which then run in step and share them.

    Examples
    --------
    >>> plan = ServingPlan(tp=8, pp=2, dp=4, max_batch=64)
    >>> plan.workers, plan.concurrency, plan.groups, plan.group_batch
    (64, 256, 2, 32)
    >>> ServingPlan(tp=4, dp=2, max_batch=64, prefill_dp=2, prefill_tp=2).workers
    12
    """

    tp: int = setting(1, "Tensor parallel degree.")
    pp: int = setting(1, "Pipeline stages.")
    ep: int = setting(1, "Expert parallel degree.")
    etp: int = setting(1, "Tensor parallel degree inside an expert.")
    dp: int = setting(1, "Replicas.")
    max_batch: int = setting(1, "Sequences that a replica decodes at a time.")
    prefill_chunk: int = setting(
        0, "Tokens of a prompt per pass, beside the decoding; 0: whole prompts.", least=0, most=10**8
    )
    prefill_batch: int = setting(1, "Prompts per pass at most.")
    draft_tokens: int = setting(
        0,
        "Tokens of a sequence that are drafted and verified together in one pass; 0: each pass makes one.",
        least=0,
        most=100,
    )
    prefill_dp: int = setting(0, "Workers that read prompts and nothing else; 0: replicas read their own.", least=0)
    prefill_tp: int = setting(1, "Tensor parallel degree of each of them.")
    prefill_pp: int = setting(1, "Pipeline stages of each of them.")
    prefill_ep: int = setting(1, "Expert parallel degree of theirs.")
    prefill_etp: int = setting(1, "Tensor parallel degree inside an expert of theirs.")

    @property
    def workers(self) -> int:
        """Devices in use, of both pools."""
        return self.tp * self.pp * self.dp + self.prefill_tp * self.prefill_pp * self.prefill_dp

    @property
    def concurrency(self) -> int:
        """Sequences at a time, all replicas together."""
        return self.dp * self.max_batch

    @property
    def groups(self) -> int:
        """Groups of sequences that follow each other through the stages."""
        return min(self.pp, self.max_batch)

    @property
    def group_batch(self) -> int:
        """Sequences of the largest group."""
        return -(-self.max_batch // self.groups)


@with_columns(item.name for item in fields(ServingPlan))
class ServingBatch(PlanBatch[ServingPlan]):
    """Many plans; every array has shape (n,) and the meaning of the `ServingPlan` field of its name.

    >>> ServingBatch.from_plans([ServingPlan(tp=2), ServingPlan(tp=4)]).workers.tolist()
    [2, 4]
    """

    plan_type = ServingPlan

    @property
    def workers(self) -> IntArray:
        """Devices in use, of both pools."""
        return np.asarray(self.tp * self.pp * self.dp + self.readers)

    @property
    def readers(self) -> IntArray:
        """Devices that only read prompts."""
        return np.asarray(self.prefill_tp * self.prefill_pp * self.prefill_dp)

    @property
    def is_apart(self) -> BoolArray:
        """Whether workers of their own read the prompts."""
        return np.asarray(self.prefill_dp > 0)

    def prefill_pool(self, held: IntArray) -> ServingBatch:
        """The workers that read prompts, as plans of their own that hold so many prompts each."""
        own = {name.removeprefix("prefill_"): getattr(self, name) for name in POOL_SETTINGS}
        neutral = {name: np.full(len(self), self.settings()[name].default) for name in POOL_SETTINGS}
        return replace(self, **own, **neutral, max_batch=held)

    @property
    def groups(self) -> IntArray:
        """Groups of sequences that follow each other through the stages."""
        return np.minimum(self.pp, self.max_batch)

    @property
    def group_batch(self) -> IntArray:
        """Sequences of the largest group."""
        return -(-self.max_batch // self.groups)

    @property
    def sharing(self) -> IntArray:
        """Replicas that share one set of experts."""
        return np.asarray(np.maximum(self.ep * self.etp // self.tp, 1))


# Fields of ServingCosts that add up to tpot_s, to ttft_s and to memory_bytes.
TPOT_PARTS: tuple[str, ...] = parts_of(SERVING_FIGURES.values(), "tpot_s")
TTFT_PARTS: tuple[str, ...] = parts_of(SERVING_FIGURES.values(), "ttft_s")
SERVING_MEMORY_PARTS: tuple[str, ...] = parts_of(SERVING_FIGURES.values(), "memory_bytes_per_gpu")


# Times and rates of a server.
SERVING_RATES: tuple[str, ...] = (
    "ttft_s",
    "tpot_s",
    "request_s",
    "pause_s",
    "decode_pass_s",
    "requests_per_s",
    "most_requests_per_s",
    "occupied_places",
    *PERCENTILES,
    "output_tokens_per_s",
    "total_tokens_per_s",
    "kernel_gpu_s",
    "prefill_kernel_gpu_s",
    *TPOT_PARTS,
    *TTFT_PARTS,
)


@with_columns((*SERVING_RATES, "memory_bytes", *SERVING_MEMORY_PARTS))
class ServingCosts(DeclaredColumns[np.float64]):
    """Costs of many plans under their load; every array has shape (n,) and the meaning of the figure of its name in `SERVING_FIGURES`.

    Memory is of a device of the stage that needs most.
    """

    sequence_bytes: FloatArray  # keys and values of one sequence on that stage's device
    stage: IntArray  # the stage that needs most memory


# Rules of the mesh that read nothing but degrees that serving has.
_DEGREES = frozenset({"tp", "pp", "vpp", "ep", "etp"})


def _experts_fill(shape: NetworkShape, c: Columns) -> BoolArray:
    if not shape.experts:
        return np.ones(len(c["tp"]), dtype=np.bool_)
    ranks = c["ep"] * c["etp"]
    return np.asarray((ranks % c["tp"] == 0) & ((c["tp"] * c["dp"]) % ranks == 0))


def _in_whole_pieces(pieces: Sequence[tuple[int, str]], degree: IntArray) -> BoolArray:
    whole = [count % degree == 0 for count, _ in pieces]
    return np.asarray(np.logical_and.reduce([np.ones(len(degree), dtype=np.bool_), *whole]))


def _pieces_message(framework: str, name: str, degree: int, pieces: Sequence[tuple[int, str]]) -> str:
    cut = [words for count, words in pieces if count % degree]
    return f"{name} {degree} does not divide {' and '.join(cut)}: {framework} needs equal shares on every rank"


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
        name="framework-pieces",
        fields=("tp",),
        doc="tp divides what the engine gives to ranks in whole pieces: the padded vocabulary, blocks of numbers that share a scale",
        test=lambda s, c: _in_whole_pieces(s.pieces, c["tp"]),
        message=lambda s, v: _pieces_message(s.framework, "tp", v["tp"], s.pieces),
    ),
    Rule(
        name="framework-expert-pieces",
        fields=("etp",),
        doc="etp divides the blocks of numbers that share a scale in the matrices of experts",
        test=lambda s, c: _in_whole_pieces(s.expert_pieces, c["etp"]),
        message=lambda s, v: _pieces_message(s.framework, "etp", v["etp"], s.expert_pieces),
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
        name="drafts",
        fields=("draft_tokens", "pp"),
        doc="tokens are drafted in one stage, and not beside an encoder",
        test=lambda s, c: (c["draft_tokens"] == 0) | ((c["pp"] == 1) & (not s.has_encoder)),
        message=lambda s, v: (
            "a network with an encoder is served without drafted tokens: draft tokens 0"
            if s.has_encoder
            else f"draft tokens {v['draft_tokens']} with pp {v['pp']}: tokens are drafted and verified in one stage (pp 1)"
        ),
    ),
    Rule(
        name="framework-drafts",
        fields=("draft_tokens", "prefill_chunk", "prefill_dp"),
        doc="tokens are drafted beside prompts where the engine can",
        test=lambda s, c: (
            (c["draft_tokens"] == 0) | (c["prefill_chunk"] == 0) | (c["prefill_dp"] > 0) | (not s.drafts_alone)
        ),
        message=lambda s, v: (
            f"{s.framework} drafts no tokens where prompts are read beside the decoding: draft tokens {v['draft_tokens']} "
            f"with prefill chunk {v['prefill_chunk']}; whole prompts have passes of their own (prefill chunk 0)"
        ),
    ),
    Rule(
        name="prefill-batch",
        fields=("max_batch", "prefill_batch", "prefill_dp"),
        doc="a pass reads no more prompts than a replica has places",
        test=lambda s, c: (c["prefill_batch"] <= c["max_batch"]) | (c["prefill_dp"] > 0),  # noqa: ARG005
        message=lambda s, v: (  # noqa: ARG005
            f"prefill batch {v['prefill_batch']} is more than the {v['max_batch']} sequences of a replica (max batch)"
        ),
    ),
)


_OF_POOL = ("prefill_tp", "prefill_pp", "prefill_ep", "prefill_etp")
# Settings of the workers that only read prompts.
POOL_SETTINGS: tuple[str, ...] = ("prefill_dp", *_OF_POOL)
# Rules of who reads the prompts.
POOL_RULES: tuple[Rule, ...] = (
    Rule(
        name="prefill-pool",
        fields=POOL_SETTINGS,
        doc="only a plan with workers that read prompts (prefill dp) says how they do",
        test=lambda s, c: (c["prefill_dp"] > 0) | np.all([c[n] == 1 for n in _OF_POOL], axis=0),  # noqa: ARG005
        message=lambda s, v: "prefill tp, pp, ep and etp need workers that read prompts: prefill dp of 1 or more",  # noqa: ARG005
    ),
    Rule(
        name="framework-pools",
        fields=("prefill_dp", "prefill_pp", "pp"),
        doc="prompts are read by workers of their own, and in several stages, where the engine can",
        test=lambda s, c: (
            (c["prefill_dp"] == 0)
            | (s.pools == "any")
            | ((s.pools == "one_stage") & (c["pp"] == 1) & (c["prefill_pp"] == 1))
        ),
        message=lambda s, v: (  # noqa: ARG005
            f"{s.framework} has no workers that only read prompts, or none that the planner writes"
            if s.pools == "none"
            else f"{s.framework} hands the cache of prompts over between workers of one stage: pp 1 and prefill pp 1"
        ),
    ),
    Rule(
        name="pool-drafts",
        fields=("draft_tokens", "prefill_dp", "prefill_pp"),
        doc="workers that read prompts for a drafter, too, have one stage",
        test=lambda s, c: (c["draft_tokens"] == 0) | (c["prefill_dp"] == 0) | (c["prefill_pp"] == 1),  # noqa: ARG005
        message=lambda s, v: (  # noqa: ARG005
            f"draft tokens {v['draft_tokens']} with prefill pp {v['prefill_pp']}: the drafter reads prompts in one stage (prefill pp 1)"
        ),
    ),
    Rule(
        name="pool-encoder",
        fields=("prefill_dp",),
        doc="a network with an encoder reads prompts where it writes",
        test=lambda s, c: (c["prefill_dp"] == 0) | (not s.has_encoder),
        message=lambda s, v: "a network with an encoder reads prompts where it writes: prefill dp 0",  # noqa: ARG005
    ),
)


def _broken(shape: NetworkShape, batch: ServingBatch) -> list[tuple[str, Rule, BoolArray]]:
    """Every rule, with a word for the workers that it is about, and where it is broken."""
    one = np.ones(len(batch), dtype=np.int64)
    columns = {**batch.columns(), "vpp": one}
    # Whether they draft is a rule of both pools.
    pool = {**batch.prefill_pool(batch.prefill_batch).columns(), "vpp": one, "draft_tokens": 0 * one}
    return [
        *(("", rule, np.asarray(~np.asarray(rule.test(shape, columns)))) for rule in (*SERVING_RULES, *POOL_RULES)),
        *((_READERS, rule, ~np.asarray(rule.test(shape, pool)) & batch.is_apart) for rule in SERVING_RULES),
    ]


_READERS = "prefill workers: "


def is_legal(shape: NetworkShape, batch: ServingBatch) -> BoolArray:
    """Whether plans break no rule."""
    return np.asarray(~np.logical_or.reduce([where for _, _, where in _broken(shape, batch)]))


def broken_serving_rules(shape: NetworkShape, plan: ServingPlan) -> list[str]:
    """What is wrong with a plan, one sentence per rule that it breaks."""
    least = {name: item.metadata["least"] for name, item in ServingBatch.settings().items()}
    if any(getattr(plan, name) < bound for name, bound in least.items()):
        return ["every degree and batch must be at least 1"]  # the other rules divide by them
    batch = ServingBatch.from_plans([plan])
    of = {"": batch, _READERS: batch.prefill_pool(batch.prefill_batch)}
    return [
        words
        + rule.message(shape, {"vpp": 1, **{name: int(column[0]) for name, column in of[words].columns().items()}})
        for words, rule, where in _broken(shape, batch)
        if where[0]
    ]
