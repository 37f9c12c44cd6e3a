"""File format of a framework: its costs, what it does unless told otherwise, and what it can run, each with its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from costmodel.framework import CONDITIONS, Attention, Condition, Defaults, Framework, Selective, StageCut
from costmodel.mesh.framework_rules import DEGREES, DERIVED, FACTS, FLAGS, NAMES, Refusal, Rules, Span, Values
from costmodel.mesh.plan import MESH_COLUMNS, ORDERS, SCHEDULES
from costmodel.precision import PRECISIONS
from costmodel.schedules import USUAL_SCHEDULES, schedule_of
from planner.schema.calibration import Costs, Source
from planner.schema.common import FileModel, Name, NamedFile, Text, fail, known
from planner.schema.records import record
from planner.schema.settings import setting_values

_DEFAULTS = tuple(field.name for field in fields(Defaults))
if TYPE_CHECKING:
    Schedule: TypeAlias = str
    Order: TypeAlias = str
    Recipe: TypeAlias = str
else:
    Schedule = Literal[SCHEDULES]
    Order = Literal[ORDERS]
    Recipe = Literal[tuple(PRECISIONS)]
Degree = Literal["tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "dp_shard"]


if TYPE_CHECKING:
    AttentionEntry: TypeAlias = Any
    DefaultEntry: TypeAlias = Any
    StagesEntry: TypeAlias = Any
else:
    StagesEntry, AttentionEntry, DefaultEntry = (
        record(name, doc, FileModel, value=values, source=Source)
        for name, doc, values in (
            ("StagesEntry", "Where stages are cut.", StageCut),
            ("AttentionEntry", "Which attention kernels are called.", Attention),
            ("DefaultEntry", "What is done unless something else is asked for.", bool | int | float | str),
        )
    )


_SETTINGS = (*DEGREES, *NAMES, *FLAGS, *FACTS, *DERIVED)


class RefusalEntry(FileModel):
    """Settings that do not go together."""

    when: dict[
        Annotated[str, known(_SETTINGS, "nothing that a rule can name")], bool | int | Text | tuple[Text, ...]
    ] = Field(
        min_length=1,
        description="setting of a plan or fact about the question -> what is refused: 2, 2.., 2..3, names, true, false",
    )
    why: Text = Field(description="what the framework does, so that people see what is allowed")
    instead: Text = Field(default="", description="what an export says in its place; empty: it is refused")
    setting: Text = Field(
        default="", description="what an export reports as not expressed; the first of `when` unless stated"
    )
    versions: tuple[Text, ...] = Field(default=(), description="versions of the exporter's target; all unless stated")
    source: Text = Field(default="", description="where it comes from; that of all rules unless stated")

    @model_validator(mode="after")
    def _is_refusal(self) -> Self:
        for name, value in self.when.items():
            setting_values(name, value)
        if len(self.when) > 1 and any(name in DERIVED for name in self.when):
            fail("is true or false by itself, and stands alone", at="when")
        if self.setting and self.setting not in (*MESH_COLUMNS, *_SETTINGS, *_OF_RUN):
            fail(f"'{self.setting[:60]}' is no setting of a plan", at="setting")
        return self

    def to_domain(self, source: str) -> Refusal:
        """Make the cost model's rule."""
        return Refusal(
            when={name: setting_values(name, value) for name, value in self.when.items()},
            why=self.why,
            source=self.source or source,
            instead=self.instead,
            setting=self.setting,
            versions=self.versions,
        )


# What else an export says of a run.
_OF_RUN = ("stage_blocks", "stage_recompute", "block_splits", "recompute_blocks", "lora_rank", "seq", "placement")


class RulesEntry(FileModel):
    """What can be run."""

    degrees: tuple[Degree, ...] | None = Field(default=None, description="degrees of a mesh plan that it has")
    schedules: tuple[Schedule, ...] | None = Field(
        default=None, description="pipeline schedules that are searched for it"
    )
    schedules_on_request: tuple[Schedule, ...] = Field(
        default=(), description="those that it has, too, which are searched only where asked for"
    )
    groups: Literal["whole", "equal", "any"] = Field(
        default="whole",
        description="groups of interleaved micro-batches: of pp each, as many equal ones as pp goes into them, or any",
    )
    zero_stages: tuple[Literal[0, 1, 2, 3], ...] | None = Field(default=None, description="stages of ZeRO that it has")
    orders: tuple[Order, ...] | None = Field(default=None, description="orders in which it numbers ranks")
    precisions: tuple[Recipe, ...] | None = Field(default=None, description="number formats and recipes that it has")
    splits_blocks_alike: bool = Field(default=False, strict=True, description="every block is split as every plan does")
    layers_by_batch: bool = Field(
        default=False, strict=True, description="every device has whole layers, and a part of the batch"
    )
    one_mesh: bool = Field(
        default=False, strict=True, description="all stages have as many devices, and all replicas as many samples"
    )
    whole_nodes: bool = Field(default=False, strict=True, description="it starts equally many processes on all nodes")
    vocabulary_multiple: int = Field(
        default=0, ge=0, description="of serving: tp divides the vocabulary, padded to a multiple of it; 0: any tp does"
    )
    whole_blocks: bool = Field(
        default=False, strict=True, description="of serving: tp cuts no block of numbers that share a scale"
    )
    pools: Literal["any", "one_stage", "none"] = Field(
        default="any",
        description="of serving: which workers may only read prompts: any, those of one pipeline stage for others of one, or none",
    )
    drafts_alone: bool = Field(
        default=False,
        strict=True,
        description="of serving: tokens are drafted only where prompts are read in passes of their own",
    )
    refuses: tuple[RefusalEntry, ...] = Field(default=(), description="settings that do not go together")
    version: Text = Field(default="", description="version of the exporter's target that plans are made for")
    source: Source

    def to_domain(self, title: str) -> Rules:
        """Make the cost model's rules."""
        missing = [Refusal(when=when, why=why, source=self.source) for when, why in self._missing(title)]
        kept = [
            Refusal(when=when, why=why, source=self.source, instead=instead, setting=setting)
            for is_kept, when, why, instead, setting in self._kept(title)
            if is_kept
        ]
        refused = [entry.to_domain(self.source) for entry in self.refuses]
        refusals = (*missing, *kept, *refused)
        return Rules(
            refusals=refusals,
            version=self.version,
            schedules=self.schedules or USUAL_SCHEDULES,
            groups=self.groups,
            vocabulary_multiple=self.vocabulary_multiple,
            whole_blocks=self.whole_blocks,
            pools=self.pools,
            drafts_alone=self.drafts_alone,
        )

    def _missing(self, title: str) -> Iterator[tuple[dict[str, Values], str]]:
        """What is refused since it does not have it: condition and reason."""
        degrees, stages = self.degrees, self.zero_stages or (0, 1, 2, 3)
        for name in get_args(Degree) if degrees is not None else ():
            has = f"it has {', '.join(degrees or ())}"
            if name not in (degrees or ()):
                shares = name == "dp_shard"
                what = "keeps whole copies in all replicas (no ZeRO)" if shares else f"has no {name} above 1"
                yield {"zero_stage": Span(1, 3)} if shares else {name: Span(2)}, f"{title} {what}; {has}"
        for stage in sorted({0, 1, 2, 3} - set(stages)):
            if stage == 0 or "dp_shard" in (degrees or ("dp_shard",)):
                yield {"zero_stage": Span(stage, stage)}, f"{title} has ZeRO stages {', '.join(map(str, stages))}"

    def _kept(self, title: str) -> list[tuple[bool, dict[str, Values], str, str, str]]:
        """What every plan has in the same way: whether that is so, condition, reason, what an export says instead, and of which setting."""
        orders = self.orders or ORDERS  # who names none may have any
        schedules = (*self.schedules, *self.schedules_on_request) if self.schedules else SCHEDULES
        return [
            (
                set(schedules) != set(SCHEDULES),
                {"schedule": tuple(name for name in SCHEDULES if name not in schedules)},
                f"pipelines of {title} run {', '.join(schedules)}",
                f"{schedules[0]} is written"
                + (", interleaved where vpp is above 1" if "interleaved" in schedules else ""),
                "",
            ),
            (
                self.groups != "any" and any(schedule_of(name).in_groups for name in schedules),
                {f"no_{self.groups}_groups": True},
                f"{title} interleaves {self.groups} groups of {'pp ' if self.groups == 'whole' else ''}micro-batches",
                "",
                "",
            ),
            (
                self.orders is not None,
                {"order": tuple(name for name in ORDERS if name not in orders)},
                f"{title} numbers ranks {' or '.join(orders)}",
                f"{orders[0]} is used",
                "",
            ),
            (
                self.precisions is not None,
                {"precision": tuple(name for name in PRECISIONS if name not in (self.precisions or ()))},
                f"{title} has no such format or recipe",
                "bf16 is written",
                "",
            ),
            (
                self.splits_blocks_alike,
                {"block_splits": True},
                f"{title} splits every block alike",
                "the layers are split as in other plans",
                "",
            ),
            (
                self.layers_by_batch,
                {"layer_splits": True},
                f"{title} copies whole layers to every device and splits the batch alone",
                "",
                "",
            ),
            (
                self.one_mesh,
                {"unequal_ranks": True},
                f"{title} gives all stages as many devices, split alike, and all replicas as many samples",
                "",
                "",
            ),
            (
                self.whole_nodes,
                {"part_nodes": True},
                f"{title} starts equally many processes on every node",
                "the prediction is for full nodes and one that is partly used",
                "placement",
            ),
        ]


class FrameworkFile(NamedFile):
    """A framework of one version."""

    title: Text = Field(description="its name for people")
    version: Text = Field(description="which versions are meant")
    serves: bool = Field(default=False, strict=True, description="it serves networks and trains none")
    aliases: tuple[Name, ...] = Field(default=(), description="other names of it")
    costs: Costs = Field(
        default_factory=dict,
        description="fields of MeshAssumptions and LayerAssumptions that differ, of an engine pass_overhead_s",
    )
    costs_on_fp4_devices: Costs = Field(default_factory=dict, description="the same on devices that compute in fp4")
    costs_in_fp16: Costs = Field(default_factory=dict, description="the same in fp16, where losses are scaled")
    costs_in_16_bits: Costs = Field(default_factory=dict, description="the same in fp16 and bf16")
    costs_in_mxfp8: Costs = Field(default_factory=dict, description="the same in mxfp8")
    stages: StagesEntry | None = Field(
        default=None, description="how it cuts a network into stages; balanced unless stated"
    )
    attention: AttentionEntry | None = Field(
        default=None, description="which attention kernels it calls; newest unless stated"
    )
    defaults: dict[Annotated[str, known(_DEFAULTS, "no default of a framework")], DefaultEntry] = Field(
        default_factory=dict, description="what it does unless told otherwise"
    )
    rules: RulesEntry | None = Field(default=None, description="what it can run")
    errors_of: Name | None = Field(
        default=None, description="framework whose published runs its error bars are made of; its own unless stated"
    )

    @model_validator(mode="after")
    def _is_framework(self) -> Self:
        try:
            self.to_domain()
        except (TypeError, ValueError) as error:
            fail(str(error))
        for name, entry in self.defaults.items():
            if not _is_value(name, entry.value):
                fail(f"{name} cannot be {entry.value!r}", at="defaults")
        return self

    def to_domain(self) -> Framework:
        """Make the cost model's framework.

        Examples
        --------
        >>> file = FrameworkFile(schema_version=1, name="mine", title="Mine", version="1",
        ...     costs={"host_launch_s": {"value": 1e-4, "source": "measured"}})
        >>> file.to_domain().mesh_assumptions().host_launch_s
        0.0001
        """
        conditional: dict[Condition, Costs] = {when: getattr(self, f"costs_{when}") for when in CONDITIONS}
        everything = {**self.costs, **{name: entry for costs in conditional.values() for name, entry in costs.items()}}
        return Framework(
            name=self.name,
            title=self.title,
            version=self.version,
            costs=_values_of(self.costs),
            conditional={when: _values_of(costs) for when, costs in conditional.items() if costs},
            fitted=frozenset(name for name, entry in everything.items() if entry.fitted),
            serves=self.serves,
            errors_of=self.errors_of or "",
            stages="balanced" if self.stages is None else self.stages.value,
            attention="newest" if self.attention is None else self.attention.value,
            defaults=Defaults(**{name: entry.value for name, entry in self.defaults.items()}),
            rules=Rules() if self.rules is None else self.rules.to_domain(self.title),
        )


def _values_of(costs: Costs) -> dict[str, float]:
    return {name: entry.value for name, entry in costs.items()}


def _is_value(name: str, value: object) -> bool:
    """Whether a default may be this."""
    if name == "selective":
        return value in get_args(Selective)
    annotation = str(Defaults.__dataclass_fields__[name].type)
    if "bool" in annotation:
        return isinstance(value, bool)
    return isinstance(value, str if "str" in annotation else (int, float) if "float" in annotation else int)
