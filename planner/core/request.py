"""The question as the user asked it: every option of the command line, before names and defaults are resolved."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from strategies.mesh.settings import Bounds, MeshRestriction

# The framework that a run is for; where none is read, every framework that can run the network and that `planner export` writes for.
AUTO = "auto"
# A well-tuned implementation, where it is asked for by name, and what people call it.
WELL_TUNED, WELL_TUNED_WORDS = "none", "a well-tuned implementation"

# A short document and an answer of a few paragraphs.
DEFAULT_PROMPT_TOKENS = 1024
DEFAULT_OUTPUT_TOKENS = 256

Mode = Literal["training", "inference"]
CostModelName = Literal["roofline", "paleo"]
SolverName = Literal["auto", "program", "elimination"]


class TimeLimit(NamedTuple):
    """A limit on the mean of a time, or on a percentile of it.

    >>> TimeLimit(2.0, 99).figure("ttft"), TimeLimit(0.03).figure("tpot")
    ('ttft_p99_s', 'tpot_s')
    """

    seconds: float
    percentile: int | None = None

    def figure(self, time: str) -> str:
        """The figure that it is about, of a time such as "ttft"."""
        return f"{time}_s" if self.percentile is None else f"{time}_p{self.percentile}_s"


# Of plan files whose plan stands in a section of its own, and of those that are for training.
_IN_SECTION: dict[str, tuple[object, str]] = {
    "layers": ({}, "a plan has either 'layers' or '{section}'; this one has both"),
    "stages": ((), "a plan has either 'layers' or '{section}'; this one has both"),
    "num_micro_batches": (1, "of a plan with '{section}' stands under '{section}'"),
}
_TRAINED: dict[str, tuple[object, str]] = {
    "mode": ("training", "a plan with '{section}' is for training; inference has 'serving' or 'layers'")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceInfo:
    """A space of plans. What stands in another module is named ``module:NAME``, and imported when it is needed.

    Attributes
    ----------
    name : str
        In answers and, as the section of a plan, in plan files.
    title : str
        In the names of its JSON schema.
    plans : str
        Its plans, in sentences: "plans over a device mesh".
    make : str
        Its `planner.spaces.base.PlanSpace`, or a function that makes one of a resolved question.
    figures : str
        What its plans cost, by name (`costmodel.fields.declared`).
    product : str
        Which numbers of a plan file multiply to the workers, as a sentence.
    kind : str
        The `planner.question.choose.Kind` of its questions: which are its own, and what it refuses.
    plan : str
        The class of a plan, whose settings are the keys of its section; empty: `planner.schema.plan` spells them out.
    job : str
        A function of a plan file to what exporters write (`planner.exporters.plans`); empty: none writes its plans.
    curve : str
        A function of a request to its scaling curve, if `planner scale --family` names the space.
    keys : mapping of str to (value, sentence)
        Keys of a plan file that have one value beside its section, and what another one contradicts.
    is_chosen : bool
        Whether --space names it.
    """

    name: str
    title: str
    plans: str
    make: str
    figures: str
    product: str
    kind: str = "planner.question.choose:Kind"
    plan: str = ""
    job: str = ""
    curve: str = ""
    keys: Mapping[str, tuple[object, str]] = field(default_factory=lambda: _TRAINED | _IN_SECTION)
    is_chosen: bool = True


# From the most general one on: a question is about the last whose kind says so.
# What `planner list` lists: bundled files, then what is declared in code.
LISTED: tuple[str, ...] = (
    "models",
    "devices",
    "clusters",
    "frameworks",
    "calibrations",
    "failures",
    "precisions",
    "schedules",
    "collectives",
    "importers",
    "exporters",
)
SPACES: dict[str, SpaceInfo] = {}
CHOICES: list[str] = ["auto"]  # what --space takes


def register(info: SpaceInfo) -> None:
    """Add a space, whose questions are asked for before those of all others."""
    SPACES[info.name] = info
    if info.is_chosen:
        CHOICES.insert(1, info.name)


for _info in (
    SpaceInfo(
        name="layers",
        title="Layerwise",
        plans="plans with a split per layer",
        make="planner.spaces.layers.space:layerwise_space",
        figures="costmodel.layerwise.plan:LAYERWISE_FIGURES",
        product="The degrees of every layer multiply to the workers; degrees of 1 are left out.",
        kind="planner.spaces.layers.kind:LayersKind",
        job="planner.exporters.plans:layer_or_data_job",
        curve="planner.spaces.layers.scaling:scale",
        keys={},
    ),
    SpaceInfo(
        name="mesh",
        title="Mesh",
        plans="plans over a device mesh",
        make="planner.spaces.mesh.space:mesh_space",
        figures="costmodel.mesh.plan:MESH_FIGURES",
        product="tp x cp x pp x dp_replicate x dp_shard are the workers; "
        "these data-parallel ranks x micro_batch x num_micro_batches the batch.",
        kind="planner.spaces.mesh.kind:MeshKind",
        job="planner.exporters.plans:mesh_job",
        curve="planner.spaces.mesh.scaling:scale_mesh",
    ),
    SpaceInfo(
        name="serving",
        title="Serving",
        plans="plans for serving",
        make="planner.spaces.serving.space:serving_space",
        figures="costmodel.serving.plan:SERVING_FIGURES",
        product="tp x pp x dp are the workers; dp x max_batch the sequences at a time (global_batch).",
        kind="planner.spaces.serving.kind:ServingKind",
        job="planner.exporters.plans:serving_job",
        keys={
            "mode": ("inference", "must be inference, since the plan has 'serving'"),
            "cost_model": ("roofline", "must be roofline, since the plan has 'serving'"),
            **dict.fromkeys(
                ("optimizer", "lora_rank", "seq", "doc_lengths", "doc_cv"), (None, "belongs to a plan for training")
            ),
            **_IN_SECTION,
        },
        is_chosen=False,
    ),
    SpaceInfo(
        name="mixed",
        title="Mixed",
        plans="plans over several groups of devices",
        make="planner.spaces.mixed.space:mixed_space",
        figures="costmodel.mixed.plan:MIXED_FIGURES",
        product="replicas x the tp of all stages are the workers; "
        "micro_batch x (replicas x num_micro_batches + longer) the batch.",
        kind="planner.spaces.mixed.kind:MixedKind",
        keys=_TRAINED
        | _IN_SECTION
        | {"device": (None, "takes the place of one kind of device; a plan with 'mixed' has several")},
        is_chosen=False,
    ),
):
    register(_info)


def imported(source: str) -> Any:
    """What ``module:NAME`` names.

    >>> imported("math:pi") > 3
    True
    """
    module, _, name = source.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of one command; None means "not given", so that the model, the cluster or the cost model decides.

    Examples
    --------
    >>> Request(model="alexnet", gpus=16).cost_model
    'roofline'
    """

    model: str  # bundled name or path
    cluster: str | None = None
    device: str | None = None
    gpus: int = 1  # upper bound on the workers
    whole_cluster: bool = False  # gpus was left out and is the size of the cluster
    batch: int | None = None  # global, in samples
    seq: int | None = None  # positions of a sample; overrides the network's
    doc_lengths: tuple[int, ...] | None = None  # of the documents packed into a sample; None: it is one
    doc_cv: float | None = None  # coefficient of variation of lengths whose mean is that of doc_lengths
    assume_free: tuple[
        str, ...
    ] = ()  # operators of another program's file that are not known and are taken to cost nothing
    lora_rank: int | None = None  # all weights frozen, with adapters of this rank on the linear layers of the blocks
    precision: str | None = None
    optimizer: str | None = None
    mode: Mode = "training"
    cost_model: CostModelName = "roofline"
    ppp_comp: float = 1.0  # PALEO's platform percent of peak: computation, 0 < ppp <= 1
    ppp_comm: float = 1.0  # and communication
    paleo_pipeline: bool = False
    paleo_extensions: bool = False
    paleo_algorithms: Path | None = None
    collective: str | None = None  # None: the cheapest per message
    fix: tuple[str, ...] = ()  # "conv*:batch", "fc*:out_channels", "fc6:batch=4,out_channels=2"
    family: str | None = None
    memory_limit: str | None = None  # per worker, with a unit: "40 GiB"
    memory_reserve: str | None = None  # per worker, left free: "5%" or "4 GB"; None: see planner.core.capacity
    memory_confidence: float | None = None  # chance of fitting that a plan needs; None: see planner.core.capacity
    micro_batches: int | None = None
    top: int = 5
    top_given: bool = False
    fastest: bool = False  # name the fastest plan first, however little it gains on simpler ones
    diverse: bool | None = None  # None: of plans over a mesh yes, of plans with a split per layer no
    time_limit_s: float | None = None
    gap: float = 0.0  # relative; 0 asks for a proof
    seed: int = 0
    solver: SolverName = "auto"
    space: str = "auto"  # one of CHOICES: plans over a device mesh, with a split per layer ...
    mesh: MeshRestriction | None = None  # what is fixed of a plan over a device mesh; None: nothing
    stages: str = (
        ""  # estimate only: blocks of every chunk ("20 20 21 19"), or "equal"; empty: as the planner balances them
    )
    assume: tuple[tuple[str, float], ...] = ()  # fields of costmodel.mesh.assumptions.MeshAssumptions that differ
    objective: str | None = None  # a name of costmodel.objectives.OBJECTIVES; None: step_time
    price_per_hour: float | None = None  # of a device, in USD; None: the cluster's or the device's own
    power_w: tuple[float, float | None] | None = None  # of a device: busy and, if given, idle; None: the device's own
    calibration: str | None = (
        None  # bundled name or path of a calibration; None: the constants as the bundled files have them
    )
    frameworks: tuple[
        str, ...
    ] = ()  # to compare, each by a search of its own; AUTO: all that can run the network and be exported
    # Bundled name or path; "": a well-tuned implementation; None: the calibration's, else a well-tuned implementation.
    framework: str | None = None
    sensitivity: bool = False  # explain only: which constant would have to change for another plan to win
    command_line: str = ""  # as typed, for the provenance of exported plans
    changed: tuple[str, ...] | None = None  # fields asked otherwise than the plan file says; None: there is none
    origins: Mapping[str, str] = field(default_factory=dict)  # where fields are from that a file of a run states
    # Of serving: mean lengths, the limits on times, the format of the cache, and allowed values of max_batch, prefill_*.
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    max_ttft: TimeLimit | None = None
    max_tpot: TimeLimit | None = None
    limit_confidence: float | None = None  # chance to keep them that a plan needs; None: one half
    kv: str | None = None
    load: Literal["traffic", "benchmark", "backlog"] | None = None  # how requests come
    concurrency: int | None = None  # requests in flight, of all replicas
    rate_per_s: float | None = None  # requests of all replicas
    arrival_cv: float | None = (
        None  # coefficients of variation: of the times between requests, of the lengths of prompts and answers
    )
    prompt_cv: float | None = None
    output_cv: float | None = None
    prefix_cached: float | None = None  # share of a prompt's tokens
    acceptance: float | None = None  # of drafted tokens; None: none are drafted
    draft: str | None = (
        None  # what drafts: "mtp", "ngram", or the name or path of a network; None: the first that it has
    )
    requests: str | None = None  # a file of requests that were served: what of these is not given
    serving_degrees: Mapping[str, Bounds] = field(default_factory=dict)
    disaggregate: Literal["auto", "yes", "no"] | None = None  # whether GPUs of their own read the prompts
    prefill_device: str | None = None  # which devices these are, where they are others

    def source_of(self, field: str, default: str) -> str:
        """Where a value is from: an option, the plan file or run that the question is about, or ``default`` where none states it.

        >>> request = Request(model="alexnet", batch=128, precision="bf16", changed=("precision",))
        >>> request.source_of("precision", "default"), request.source_of("batch", "default"), request.source_of("seq", "model file")
        ('given', 'plan file', 'model file')
        >>> Request(model="alexnet", precision="bf16", origins={"precision": "train.sh"}).source_of("precision", "default")
        'train.sh'
        """
        stated = self.origins.get(field, "given") if self.changed is None or field in self.changed else "plan file"
        return default if getattr(self, field) is None else stated

    @property
    def documents_text(self) -> str | None:
        """What is packed into a sample, in words.

        >>> Request(model="llama3-8b", doc_lengths=(2048,), doc_cv=1.5).documents_text
        'of 2,048 positions on average, coefficient of variation 1.5'
        """
        if self.doc_lengths is None:
            return None
        lengths = ", ".join(f"{length:,}" for length in self.doc_lengths)
        if self.doc_cv is None:
            return f"of {lengths} positions" + (" in turn" if len(self.doc_lengths) > 1 else "")
        return f"of {lengths} positions on average, coefficient of variation {self.doc_cv:g}"

    @property
    def serving_options(self) -> list[str]:
        """Options given that only a question about serving has."""
        flags = {
            "--prompt": self.prompt_tokens,
            "--output-tokens": self.output_tokens,
            "--max-ttft": self.max_ttft,
            "--max-tpot": self.max_tpot,
            "--limit-confidence": self.limit_confidence,
            "--kv-precision": self.kv,
            "--load": self.load,
            "--concurrency": self.concurrency,
            "--rate": self.rate_per_s,
            "--arrival-cv": self.arrival_cv,
            "--prompt-cv": self.prompt_cv,
            "--output-cv": self.output_cv,
            "--prefix-cached": self.prefix_cached,
            "--acceptance": self.acceptance,
            "--draft": self.draft,
            "--requests": self.requests,
            "--disaggregate": self.disaggregate,
            "--prefill-device": self.prefill_device,
        }
        names = [flag for flag, value in flags.items() if value is not None]
        return names + [f"--{name.replace('_', '-')}" for name in self.serving_degrees]
