"""What is exported, in words that every target needs: the plan, the run it is for, the nodes it runs on, and what was predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.layerwise.plan import Plan
from costmodel.mesh.framework_rules import Facts
from costmodel.mesh.plan import MeshPlan
from costmodel.network.graph import Graph
from costmodel.network.sizes import NetworkSizes
from planner.exporters.account import serving_settings, settings_in_effect
from planner.exporters.other_networks import OtherNetwork

if TYPE_CHECKING:
    from costmodel.serving.plan import ServingPlan
    from costmodel.serving.workload import Arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a plan comes from, for comments.

    Attributes
    ----------
    model, cluster, device : str
    summary : str
        The plan in words.
    prediction : tuple of str
        What the cost model says of it, a sentence each.
    planner_version : str
    plan_name : str
        Of the plan file, without its folder.
    """

    model: str
    cluster: str
    device: str
    summary: str
    prediction: tuple[str, ...]
    planner_version: str
    plan_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """How many processes start on how many nodes.

    Attributes
    ----------
    workers : int
        Processes, one per device.
    capacity : int
        Devices of one node.
    domain_gpus : int
        Devices used of every domain of fast links, where it holds several nodes; else 0.
    domain : str
        What such a domain is called: "an nvlink domain".

    Examples
    --------
    >>> Nodes(workers=64, capacity=8).count, Nodes(workers=4, capacity=8).per_node
    (8, 4)
    >>> Nodes(workers=12, capacity=8).per_node, Nodes(workers=12, capacity=8).is_even  # 3 nodes of 4, not 8 and 4
    (4, False)
    >>> Nodes(workers=512, capacity=4, domain_gpus=64).segment  # 16 nodes of every domain
    16
    >>> Nodes(workers=32, capacity=4, domain_gpus=72).segment  # all 8 of one domain
    8
    >>> Nodes(workers=512, capacity=4, domain_gpus=72).layout  # and no segment: it would have to divide the 128 nodes
    '7 x 18 + 2 nodes'
    """

    workers: int
    capacity: int
    domain_gpus: int = 0
    domain: str = "a domain"

    @property
    def per_node(self) -> int:
        """Processes of a node; the same on all, as launchers want it."""
        if self.workers <= self.capacity:
            return self.workers
        return self.capacity if self.is_even else math.gcd(self.workers, self.capacity)

    @property
    def count(self) -> int:
        """Nodes."""
        return self.workers // self.per_node

    @property
    def segment(self) -> int:
        """Nodes that must lie in one domain each time (Slurm's --segment); 0 where they do not divide all, as Slurm wants, or none must."""
        return self.of_domain if self.has_neighbours and self.count % self.of_domain == 0 else 0

    @property
    def has_neighbours(self) -> bool:
        """Whether several nodes must lie in one domain."""
        return self.of_domain > 1

    @property
    def of_domain(self) -> int:
        """Nodes of a domain that are used; the last domain may have fewer. 0 where no domain holds several nodes."""
        return min(self.domain_gpus // self.per_node, self.count)

    @property
    def layout(self) -> str:
        """The nodes of all domains, where one holds several: "8 x 16 nodes"."""
        full, rest = divmod(self.count, self.of_domain)
        return f"{full} x {self.of_domain}{f' + {rest}' if rest else ''} nodes"

    @property
    def is_even(self) -> bool:
        """Whether the processes fill whole nodes (or a part of one), as the cost model lays them out."""
        return self.workers <= self.capacity or self.workers % self.capacity == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnyJob:
    """What every kind of job says."""

    origin: Origin
    nodes: Nodes
    precision: str

    @property
    def has_router(self) -> bool:
        """Whether requests go through servers of two kinds."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(_AnyJob):
    """A training run.

    Attributes
    ----------
    plan : MeshPlan
    blocks : tuple of int
        Blocks per pipeline chunk, in network order, as they were costed.
    network : NetworkSizes or None
        Sizes of a plain decoder; None where it is another network.
    other : OtherNetwork or None
        What it is where it is no plain decoder, as far as it is known.
    seq : int or None
        Positions of a sample; None: the network's input is no sequence.
    collectives : tuple of str
        All-reduce algorithms that a plan with a split per layer names.
    facts : Facts or None
        What the rules of frameworks ask of the question; None: nothing but what is here.
    """

    plan: MeshPlan
    blocks: tuple[int, ...]
    network: NetworkSizes | None
    seq: int | None
    optimizer: str
    lora_rank: int | None = None
    doc_lengths: str | None = None  # what is packed into a sample, in words
    collectives: tuple[str, ...] = ()
    other: OtherNetwork | None = None
    facts: Facts | None = None

    @property
    def known_facts(self) -> Facts:
        """What rules ask of the question; of the network, what its sizes say where nothing else is known."""
        if self.facts is not None:
            return self.facts
        kind = "decoder" if self.other is None else self.other.kind
        if self.network is not None:
            kind = "plain decoder" if self.network.unlike_llama else "llama"
        values = {
            "network": kind,
            "unlike_llama": "" if self.network is None else ", ".join(self.network.unlike_llama),
            "precision": self.precision,
            "optimizer": self.optimizer,
            "experts": self.network is not None and self.network.experts > 0,
            "adapters": self.lora_rank is not None,
        }
        heads = () if self.network is None else (self.network.kv_heads,)
        return Facts(values=values, positions=self.seq or 0, kv_heads=heads)

    @property
    def in_effect(self) -> list[str]:
        """Settings that say something, so that every one must go somewhere."""
        of_run = {"seq": self.seq, "doc_lengths": self.doc_lengths, "lora_rank": self.lora_rank}
        stated = [name for name, value in of_run.items() if value is not None]
        return [*settings_in_effect(self.plan), "micro_batch", "num_micro_batches", "precision", "optimizer", *stated]

    @property
    def chunk_recompute(self) -> tuple[int, ...]:
        """Blocks recomputed in each chunk; under full recomputation only."""
        plan = self.plan
        if plan.recompute != "full":
            return (0,) * len(self.blocks)
        return plan.stage_recompute or tuple(min(plan.recompute_blocks, n) for n in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerJob(_AnyJob):
    """A training run with a split per layer.

    Attributes
    ----------
    plan : Plan
    graph : Graph
        The network; its layers are those of the plan.
    global_batch : int
        Samples of a step.
    training : bool
        False: the plan is for inference.
    seq : int or None
        As in `Job`.
    """

    plan: Plan
    graph: Graph
    global_batch: int
    training: bool
    optimizer: str
    seq: int | None = None
    lora_rank: int | None = None
    doc_lengths: str | None = None  # what is packed into a sample, in words

    @property
    def in_effect(self) -> list[str]:
        """As of `Job`."""
        accumulated = ["num_micro_batches"] if self.plan.num_micro_batches > 1 else []
        return ["workers", "batch", "out_channels", "in_channels", *accumulated, "precision", "optimizer"]

    @property
    def collectives(self) -> tuple[str, ...]:
        """All-reduce algorithms that the plan names."""
        return tuple(sorted({name for name in self.plan.collectives if name is not None}))

    @property
    def is_data_parallel(self) -> bool:
        """Whether every layer is split by the batch alone."""
        return not self.plan.stages and all(split.batch == self.plan.workers for split in self.plan.splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingJob(_AnyJob):
    """A server.

    Attributes
    ----------
    plan : ServingPlan
    stages, prefill_stages : tuple of int
        Blocks per pipeline stage; the second of the workers that only read prompts.
    role : str
        "prefill" or "decode" of one of two pools (`planner.exporters.pools`).
    prefill_device : str
        Of the workers that only read prompts, where it is another one.
    has_experts : bool
    prompt_tokens, output_tokens : int
        Mean lengths that the plan was made for.
    precision, kv_precision : str
        Of the weights; of the cache of keys and values.
    memory_utilisation : float
        Share of a device's memory that may be filled.
    prefix_cached : float or None
        Share of a prompt's tokens that is found in the cache of earlier ones; 0: the engine keeps none; None: nothing is said of it.
    in_flight : int or None
        Requests of a closed loop; None: as many as there are places.
    drafter : str
        What drafts tokens: "mtp", "ngram" or the name of a network.
    load, arrivals, output_variation
        As `costmodel.serving.workload.ServingWorkload` has them.
    """

    plan: ServingPlan
    stages: tuple[int, ...]
    has_experts: bool
    prompt_tokens: int
    output_tokens: int
    kv_precision: str
    memory_utilisation: float
    load: str = "traffic"
    arrivals: Arrivals | None = None
    output_variation: float = 0.0
    prefill_stages: tuple[int, ...] = ()
    role: str = ""
    prefill_device: str = ""
    prefix_cached: float | None = None
    cached_tokens: int = 0  # of a prompt
    drafter: str = ""
    in_flight: int | None = None

    @property
    def new_tokens(self) -> int:
        """Tokens of a prompt that passes compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def tokens_of_pass(self) -> int:
        """New tokens of a sequence in a decoding pass: one, and those that were drafted."""
        return self.plan.draft_tokens + 1

    @property
    def has_router(self) -> bool:
        """Whether workers of their own read the prompts."""
        return self.plan.prefill_dp > 0

    @property
    def in_effect(self) -> list[str]:
        """As of `Job`."""
        from costmodel.serving.plan import POOL_SETTINGS  # most plans are for training

        experts = ("ep", "etp", "prefill_ep", "prefill_etp")
        is_piped = max(self.plan.pp, self.plan.prefill_pp) > 1
        left_out = {*(() if is_piped else ("stages",)), *(() if self.has_experts else experts)}
        left_out |= set() if self.plan.prefill_dp else set(POOL_SETTINGS)
        left_out |= set() if self.plan.draft_tokens else {"draft_tokens"}
        left_out |= {"prefix_cached"} if self.prefix_cached is None else set()
        return [name for name in serving_settings() if name not in left_out]
