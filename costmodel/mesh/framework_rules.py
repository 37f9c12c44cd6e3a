"""What a framework can run: combinations of settings that it refuses, as data, and whether a plan is one of them.

A rule names settings of a mesh plan, facts about the question, and conditions that follow from both. The search leaves plans that break a
rule out of its space (`strategies.mesh.framework_rules`); the check of a single plan and the exporters ask `broken`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np

from costmodel.arrays import BoolArray, IntArray
from costmodel.mesh.plan import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, MeshPlan
from costmodel.network.graph import Graph
from costmodel.network.sizes import NETWORK_KINDS, network_kind, sizes_of
from costmodel.precision import OPTIMIZERS, PRECISIONS
from costmodel.schedules import USUAL_SCHEDULES, schedule_of


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from ``low`` to ``high``, both included.

    >>> 3 in Span(2), 3 in Span(1, 2), str(Span(2)), str(Span(1, 2))
    (True, False, '2 or more', '1 or 2')
    """

    low: int
    high: float = inf

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.high == inf:
            return f"{self.low} or more"
        joint = " or " if self.high == self.low + 1 else " to "
        return str(self.low) if self.high == self.low else f"{self.low}{joint}{self.high:.0f}"

    def outside(self, least: int) -> tuple[Span, ...]:
        """The other numbers from ``least`` on.

        >>> Span(2).outside(1), Span(1, 2).outside(0)
        ((Span(low=1, high=1),), (Span(low=0, high=0), Span(low=3, high=inf)))
        """
        below = (Span(least, self.low - 1),) if self.low > least else ()
        return below if self.high == inf else (*below, Span(int(self.high) + 1))

    def within(self, spans: Iterable[Any]) -> list[Span]:
        """The numbers that are in others, too.

        >>> Span(2).within([Span(1, 3), Span(5, 5)]), Span(2, 3).within([Span(4)])
        ([Span(low=2, high=3), Span(low=5, high=5)], [])
        """
        common = [Span(max(self.low, span.low), min(self.high, span.high)) for span in spans]
        return [span for span in common if span.low <= span.high]


# Groups of interleaved micro-batches (`costmodel.schedules.group_size`) that frameworks take: of pp; equal ones, as many as pp goes into
# the micro-batches; any, of which the last may be smaller.
GROUPS: tuple[str, ...] = ("whole", "equal", "any")
# What a condition of a rule asks for: numbers, names, or yes and no.
Values = Span | tuple[str, ...] | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A combination of settings that a framework does not run.

    Attributes
    ----------
    when : mapping
        Setting of a plan, fact or condition -> values. A plan that has all of them is refused.
    why : str
        What the framework does, so that people see what is allowed; it is shown behind the settings of a plan, and without a plan.
    source : str
    instead : str
        What an exported configuration says in its place; empty: such a plan is not exported.
    setting : str
        The setting that an export reports as not expressed; empty: the first of ``when``.
    versions : tuple of str
        Versions of the exporter's target that it is about; empty: all.
    """

    when: Mapping[str, Values]
    why: str
    source: str
    instead: str = ""
    setting: str = ""
    versions: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """The setting that it is about."""
        return self.setting or next(iter(self.when))

    @property
    def reads(self) -> frozenset[str]:
        """Settings of a plan that it depends on."""
        names = {name for name in self.when if name not in FACTS and name not in DERIVED}
        return frozenset(names).union(*(DERIVED[name].fields for name in self.when if name in DERIVED))

    def is_about(self, version: str) -> bool:
        """Whether it counts for a version of the exporter's target."""
        return not self.versions or version in self.versions

    def holds_for(self, values: Mapping[str, Any]) -> bool:
        """Whether a plan with these values is refused."""
        return all(_is_among(values[name], wanted) for name, wanted in self.when.items())

    def sentence(self, values: Mapping[str, Any]) -> str:
        """What is wrong with a plan that has these values: its settings, and what the framework has instead.

        >>> refusal = Refusal(when={"pp": Span(2), "zero_stage": Span(2, 3)}, why="its pipelines take ZeRO-1 at most", source="docs")
        >>> refusal.sentence({"pp": 4, "zero_stage": 3})
        'pp 4 with zero_stage 3: its pipelines take ZeRO-1 at most'
        """
        first, *others = (_named(name, values) for name in self.when)
        beside = f" with {' and '.join(others)}" if others else ""
        return f"{first}{beside}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a framework can run. A plan that breaks none of them is exported completely, where there is an exporter.

    Attributes
    ----------
    refusals : tuple of Refusal
    version : str
        Version of the exporter's target that plans are made for; empty: there is no exporter.
    schedules : tuple of str
        Pipeline schedules that are searched, of `costmodel.schedules`.
    groups : str
        A name of `GROUPS`: which groups of interleaved micro-batches it takes.
    vocabulary_multiple : int
        Tensor-parallel ranks have equal shares of a vocabulary that is padded to a multiple of it; 0: of any.
    pools : str
        Of serving: "any" workers may read prompts for others, those of "one_stage" alone, or "none".
    drafts_alone : bool
        Of serving: tokens are drafted only where prompts are read in passes of their own.
    whole_blocks : bool
        They have whole blocks of the numbers that share a scale, where weights are kept in a narrow format.
    """

    refusals: tuple[Refusal, ...] = ()
    version: str = ""
    schedules: tuple[str, ...] = USUAL_SCHEDULES
    groups: str = "whole"
    vocabulary_multiple: int = 0
    whole_blocks: bool = False
    pools: str = "any"
    drafts_alone: bool = False

    def of(self, version: str | None = None) -> tuple[Refusal, ...]:
        """Those of a version of the exporter's target; of the one that plans are made for, unless stated."""
        chosen = self.version if version is None else version
        return tuple(refusal for refusal in self.refusals if refusal.is_about(chosen))

    def runs(self, name: str, values: Sequence[Span] | Sequence[str] | Sequence[bool]) -> list[Any]:
        """Those of some values of a setting that no rule about it alone refuses.

        >>> Rules(refusals=(Refusal(when={"pp": Span(5)}, why="", source=""),)).runs("pp", [Span(2)])
        [Span(low=2, high=4)]
        """
        kept: list[Any] = list(values)
        for wanted in (refusal.when[name] for refusal in self.of() if refusal.when.keys() == {name}):
            if isinstance(wanted, Span):
                kept = [part for span in kept for part in span.within(outside(name, wanted))]
            else:
                kept = [value for value in kept if not _is_among(value, wanted)]
        return kept

    def allowed(self, refusal: Refusal) -> str:
        """What a plan may have instead of what one of them refuses.

        >>> refusal = Refusal(when={"pp": Span(2), "zero_stage": Span(2, 3)}, why="", source="")
        >>> Rules(refusals=(refusal,)).allowed(refusal)
        'pp 1, or zero_stage 0 or 1'
        """
        found = []
        for name, wanted in refusal.when.items():
            others = [] if name in DERIVED else self.runs(name, outside(name, wanted))
            # Nobody chooses another kind of network.
            if others and name not in ("network", "experts"):
                found.append(
                    " or ".join(_named(name, {name: value}) for value in others)
                    if isinstance(wanted, bool)
                    else f"{name} {' or '.join(map(str, others))}"
                )
        return ", or ".join(found)

    def words(self, refusal: Refusal) -> str:
        """A rule of no plan in particular: what the framework does, what that allows, and who says so."""
        return f"{self._with_allowed(refusal.why, refusal)} ({refusal.source})"

    def cited(self, refusal: Refusal, values: Mapping[str, Any], framework: str) -> str:
        """What is wrong with a plan that has these values, what it may have instead, and whose rule it is."""
        return f"{self._with_allowed(refusal.sentence(values), refusal)} (rule of {framework}: {refusal.source})"

    def _with_allowed(self, text: str, refusal: Refusal) -> str:
        allowed = self.allowed(refusal)
        return f"{text}; allowed: {allowed}" if allowed else text

    @property
    def cp_kind(self) -> str:
        """The first kind of context parallelism that it has.

        >>> only = Refusal(when={"cp_kind": ("ring", "all_gather"), "cp": Span(2)}, why="Ulysses only", source="its code")
        >>> Rules(refusals=(only,)).cp_kind
        'all_to_all'
        """
        about = [
            rule.when["cp_kind"] for rule in self.of() if "cp_kind" in rule.when and {*rule.when} <= {"cp_kind", "cp"}
        ]
        return next(kind for kind in CP_KINDS if not any(_is_among(kind, refused) for refused in about))

    @property
    def fewest_micro_batches(self) -> bool:
        """Whether 1F1B needs as many micro-batches as stages but one."""
        return any("few_micro_batches" in refusal.when for refusal in self.of())


def _is_among(value: Any, wanted: Values) -> bool:
    if isinstance(wanted, bool):
        return bool(value) == wanted
    return value in wanted


def _named(name: str, values: Mapping[str, Any]) -> str:
    if name in DERIVED:
        return DERIVED[name].words.format_map(values)
    value = values[name]
    if name == "network":
        return f"a network that is {_NETWORKS.get(value, value).format_map(values)}"
    if isinstance(value, bool):
        return f"{name} {'on' if value else 'off'}" if name in FLAGS else name if value else f"no {name}"
    return f"{name} {value}"


# -- what rules may name ------------------------------------------------------------------------------------------------

# Degrees of a plan -> the least value.
DEGREES: Mapping[str, int] = {
    **dict.fromkeys(("tp", "cp", "ep", "etp", "pp", "vpp", "dp", "dp_replicate", "dp_shard"), 1),
    "zero_stage": 0,
    "micro_batch": 1,
    "num_micro_batches": 1,
}
NAMES: Mapping[str, tuple[str, ...]] = {
    "schedule": SCHEDULES,
    "recompute": RECOMPUTE,
    "cp_kind": CP_KINDS,
    "order": ORDERS,
}
# How a sentence calls a kind of network, where it is not by its name.
_NETWORKS: Mapping[str, str] = {
    "llama": "a decoder of Llama's blocks",
    "plain decoder": "a decoder with {unlike_llama}",
    "decoder": "a decoder, and no plain one",
    "encoder": "an encoder",
    "other encoder": "an encoder unlike BERT",
    "encoder-decoder": "an encoder with a decoder",
}
FLAGS: tuple[str, ...] = ("sequence_parallel", "offload_optimizer", "offload_activations")
# Facts about the question: names with their values, and yes or no.
FACTS: Mapping[str, tuple[str, ...]] = {
    "network": NETWORK_KINDS,
    "precision": tuple(PRECISIONS),
    "optimizer": ("sgd", "momentum", "adam"),
    "experts": (),
    "adapters": (),
}


def outside(name: str, wanted: Values) -> tuple[Span, ...] | tuple[str, ...] | tuple[bool, ...]:
    """The other values of a setting or fact."""
    if isinstance(wanted, bool):
        return (not wanted,)
    if isinstance(wanted, Span):
        most = 3 if name == "zero_stage" else inf
        return tuple(span for span in wanted.outside(DEGREES[name]) if span.low <= most)
    return tuple(value for value in (NAMES.get(name) or FACTS[name]) if value not in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a question.

    Attributes
    ----------
    values : mapping
        What `FACTS` lists, and "unlike_llama": how the blocks of a plain decoder differ from Llama's.
    positions : int
        Of a sample; 0: the network's input is no sequence.
    kv_heads : tuple of int
        Of the layers with attention.
    """

    values: Mapping[str, Any]
    positions: int = 0
    kv_heads: tuple[int, ...] = ()


def facts_of(graph: Graph, precision: str, optimizer: str) -> Facts:
    """Facts about training a network.

    >>> from costmodel.network.layers.base import LayerSpec, params_from
    >>> specs = [LayerSpec(name="tokens", kind="input", params=params_from("input", {"shape": (8, 16)})),
    ...     LayerSpec(name="mlp", kind="moe", params=params_from("moe", {"experts": 4, "top_k": 2, "ffn": 32}), inputs=("tokens",))]
    >>> facts_of(Graph.build("tiny", specs), "bf16", "adam").values["experts"]
    True
    """
    sizes = sizes_of(graph)
    heads = {
        getattr(layer.params, "kv_heads", 0) or layer.params.heads
        for layer in graph.layers
        if layer.kind == "self_attention"
    }
    first = next((layer for layer in graph.layers if layer.block), None)
    return Facts(
        values={
            "network": network_kind(graph, sizes),
            "unlike_llama": ", ".join(sizes.unlike_llama) if sizes is not None else "",
            "precision": precision,
            "optimizer": OPTIMIZERS[optimizer].rule,
            "experts": any(layer.kind == "moe" for layer in graph.layers),
            "adapters": any(layer.lora_rank for layer in graph.layers),
        },
        positions=first.input_shapes[0][1] if first is not None and len(first.input_shapes[0]) == 2 else 0,
        kv_heads=tuple(sorted(heads)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """A plan with what conditions ask of it besides.

    Attributes
    ----------
    plan : MeshPlan
    facts : Facts
    blocks : tuple of int
        Blocks per pipeline chunk.
    has_own_stages : bool
        Whether stages are cut in another way than the framework cuts them by itself.
    devices_of_node : int
        0: nobody says.
    """

    plan: MeshPlan
    facts: Facts
    blocks: tuple[int, ...]
    has_own_stages: bool = False
    devices_of_node: int = 0

    @property
    def recomputed(self) -> tuple[int, ...]:
        """Blocks recomputed in each chunk; under full recomputation only."""
        if self.plan.recompute != "full":
            return (0,) * len(self.blocks)
        return self.plan.stage_recompute or tuple(min(self.plan.recompute_blocks, n) for n in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A condition that follows from several settings and facts.

    Attributes
    ----------
    words : str
        For people, of a plan for which it is true, with the values that it names.
    test : function of PlanFacts
    fields : tuple of str
        Settings that it reads.
    about : str
        For people, of no plan in particular; empty: `words`.
    """

    words: str
    test: Callable[[PlanFacts], bool]
    fields: tuple[str, ...]
    about: str = ""


def _recomputes_unequally(p: PlanFacts) -> bool:
    most = max(p.recomputed, default=0)
    return any(n != min(most, length) for n, length in zip(p.recomputed, p.blocks, strict=False))


def takes_groups(groups: str, m: IntArray, pp: IntArray) -> BoolArray:
    """Whether micro-batches can be interleaved in groups of a kind; arrays (n,).

    >>> [takes_groups(kind, np.array([8, 10, 11]), np.array([4])).tolist() for kind in GROUPS]
    [[True, False, False], [True, True, False], [True, True, True]]
    """
    if groups == "any":
        return np.ones(np.broadcast(m, pp).shape, dtype=np.bool_)
    return np.asarray(m % (pp if groups == "whole" else np.maximum(m // pp, 1)) == 0)


def _has_other_groups(kind: str, p: PlanFacts) -> bool:
    m, pp = np.array(p.plan.num_micro_batches), np.array(p.plan.pp)
    return schedule_of(p.plan.schedule).in_groups and not takes_groups(kind, m, pp)


DERIVED: Mapping[str, Derived] = {
    "partial_recompute": Derived(
        words="recompute full of some blocks",
        test=lambda p: p.plan.recompute == "full" and p.recomputed != p.blocks,
        fields=("recompute", "recompute_blocks", "stage_recompute"),
    ),
    "unequal_recompute": Derived(
        words="stage_recompute {stage_recompute}",
        about="recompute full of other numbers of blocks by stage",
        test=lambda p: p.plan.recompute == "full" and _recomputes_unequally(p),
        fields=("stage_recompute",),
    ),
    "own_stages": Derived(words="stage_blocks of its own", test=lambda p: p.has_own_stages, fields=("stage_blocks",)),
    "block_splits": Derived(words="block_splits", test=lambda p: bool(p.plan.block_splits), fields=("block_splits",)),
    "part_nodes": Derived(
        words="workers {workers} on nodes of {devices_of_node}",
        about="a node that is used in part",
        test=lambda p: (
            p.devices_of_node > 0 and p.plan.workers > p.devices_of_node and p.plan.workers % p.devices_of_node > 0
        ),
        fields=("tp", "cp", "pp", "dp"),
    ),
    "few_micro_batches": Derived(
        words="num_micro_batches {num_micro_batches} with pp {pp}",
        about="fewer micro-batches than pp - 1 in schedule 1f1b",
        test=lambda p: p.plan.schedule == "1f1b" and p.plan.num_micro_batches < p.plan.pp - 1,
        fields=("schedule", "pp", "num_micro_batches"),
    ),
    **{
        f"no_{kind}_groups": Derived(
            words="num_micro_batches {num_micro_batches} with pp {pp}",
            about=f"interleaved micro-batches that make no {kind} groups",
            test=partial(_has_other_groups, kind),
            fields=("schedule", "pp", "num_micro_batches"),
        )
        for kind in GROUPS
        if kind != "any"
    },
    # No plan over a mesh is one of the next two: they are about plans with a split per layer, and over several kinds of devices.
    "layer_splits": Derived(words="layers split by more than the batch", test=lambda _: False, fields=()),
    "unequal_ranks": Derived(words="stages of different devices", test=lambda _: False, fields=()),
    "odd_pieces": Derived(
        words="cp {cp} of {positions} positions",
        about="sequences that do not divide by 2 cp",
        test=lambda p: p.plan.cp > 1 and p.facts.positions > 0 and p.facts.positions % (2 * p.plan.cp) > 0,
        fields=("cp",),
    ),
    "repeated_kv_heads": Derived(
        words="tp {tp} with {kv_heads} heads of keys and values",
        about="heads of keys and values that do not divide by tp",
        test=lambda p: any(heads % p.plan.tp for heads in p.facts.kv_heads),
        fields=("tp",),
    ),
}


def values_of(plan: PlanFacts) -> dict[str, Any]:
    """Everything that conditions and their words may name, of one plan."""
    named = (*DEGREES, *NAMES, *FLAGS)
    return {
        **{name: getattr(plan.plan, name) for name in named},
        **plan.facts.values,
        **{name: derived.test(plan) for name, derived in DERIVED.items()},
        "workers": plan.plan.workers,
        "devices_of_node": plan.devices_of_node,
        "positions": plan.facts.positions,
        "kv_heads": " and ".join(map(str, plan.facts.kv_heads)),
        "stage_recompute": ", ".join(map(str, plan.recomputed)),
    }


def order_in_effect(order: str, plan: MeshPlan) -> tuple[str, ...]:
    """Rank order without the dimensions of one rank: orders that differ in these only are the same.

    >>> from costmodel.mesh.plan import MeshPlan
    >>> order_in_effect("tp-dp-cp-pp", MeshPlan(tp=8, pp=2, dp_shard=4, zero_stage=1))
    ('tp', 'dp', 'pp')
    """
    sizes = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "dp": plan.dp}
    return tuple(name for name in order.split("-") if sizes[name] > 1)


def broken(refusals: Iterable[Refusal], plan: PlanFacts) -> list[tuple[Refusal, Mapping[str, Any]]]:
    """Rules that a plan breaks, with its values.

    An order of the ranks counts as any order that numbers them alike; kinds of what the plan does not have are no setting of it.
    """
    values = values_of(plan)
    same = [
        order for order in ORDERS if order_in_effect(order, plan.plan) == order_in_effect(plan.plan.order, plan.plan)
    ]
    found: list[tuple[Refusal, Mapping[str, Any]]] = []
    for refusal in refusals:
        ignored = (plan.plan.cp == 1 and "cp_kind" in refusal.when) or (
            plan.plan.pp == 1 and "schedule" in refusal.when
        )
        if not ignored and all(refusal.holds_for({**values, "order": order}) for order in same):
            found.append((refusal, values))
    return found


def by_facts(refusals: Sequence[Refusal], facts: Facts) -> list[Refusal]:
    """Rules that a question of these facts can break, with the conditions that are left to the plan; those of no plan are gone."""
    left = []
    for refusal in refusals:
        about = {name: wanted for name, wanted in refusal.when.items() if name in FACTS}
        if all(_is_among(facts.values[name], wanted) for name, wanted in about.items()):
            left.append(refusal)
    return left


def of_no_plan(refusals: Sequence[Refusal], facts: Facts) -> list[Refusal]:
    """Rules that every plan of a question breaks: their conditions are facts alone.

    >>> refusal = Refusal(when={"network": ("no transformer",)}, why="", source="")
    >>> len(of_no_plan([refusal], Facts(values={"network": "no transformer"})))
    1
    """
    return [refusal for refusal in by_facts(refusals, facts) if FACTS.keys() >= refusal.when.keys()]
