"""File format of a framework: its costs, what it does unless told otherwise, and what it can run, each with its source."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from costmodel.framework import CONDITIONS, Condition, Defaults, Framework, LayerAssumptions, Rules
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.plan import SCHEDULES
from planner.core.errors import did_you_mean
from planner.schema.common import FileModel, Name, Text, fail, plain_number

__all__ = ["CostEntry", "Costs", "FrameworkFile", "RulesEntry"]

_COSTS = tuple(field.name for model in (MeshAssumptions, LayerAssumptions) for field in fields(model))
_DEFAULTS = tuple(field.name for field in fields(Defaults))
if TYPE_CHECKING:
    Schedule: TypeAlias = str
else:
    Schedule = Literal[SCHEDULES]
Degree = Literal["tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "dp_shard"]


def _cost(name: str) -> str:
    if name not in _COSTS:
        fail(
            f"'{name[:60]}' is no assumption of the cost model{did_you_mean(name, _COSTS)} (known: {', '.join(_COSTS)})"
        )
    return name


def _default(name: str) -> str:
    if name not in _DEFAULTS:
        fail(
            f"'{name[:60]}' is no default of a framework{did_you_mean(name, _DEFAULTS)} (known: {', '.join(_DEFAULTS)})"
        )
    return name


Source = Annotated[Text, Field(min_length=3, description="where it comes from")]


class CostEntry(FileModel):
    """One assumption of the cost model that differs for this framework."""

    value: Annotated[float, Field(ge=0.0, le=1e12), BeforeValidator(plain_number)]
    source: Source
    fitted: bool = Field(default=False, strict=True, description="whether it was fitted to runs")


Costs = dict[Annotated[str, AfterValidator(_cost)], CostEntry]


class StagesEntry(FileModel):
    """Where stages are cut."""

    value: Literal["balanced", "equal", "threshold"]
    source: Source


class AttentionEntry(FileModel):
    """Which attention kernels are called."""

    value: Literal["newest", "portable", "first"]
    source: Source


class DefaultEntry(FileModel):
    """What is done unless something else is asked for."""

    value: bool | int | float | str
    source: Source


class RulesEntry(FileModel):
    """What can be run."""

    degrees: tuple[Degree, ...] | None = Field(default=None, description="degrees of a mesh plan that it has")
    schedules: tuple[Schedule, ...] | None = Field(default=None, description="pipeline schedules that it has")
    zero_stages: tuple[Literal[0, 1, 2, 3], ...] | None = None
    fewest_micro_batches: bool = Field(
        default=False, strict=True, description="1F1B refuses fewer micro-batches than stages but one"
    )
    source: Source


class FrameworkFile(FileModel):
    """A framework of one version."""

    schema_version: Literal[1] = Field(description="version of this file format")
    name: Name
    title: Text = Field(description="its name for people")
    version: Text = Field(description="which versions are meant")
    serves: bool = Field(default=False, strict=True, description="it serves networks and trains none")
    aliases: tuple[Name, ...] = Field(default=(), description="other names of it")
    description: Text = ""
    costs: Costs = Field(default_factory=dict, description="fields of MeshAssumptions and LayerAssumptions that differ")
    costs_on_fp4_devices: Costs = Field(default_factory=dict, description="the same on devices that compute in fp4")
    costs_in_fp16: Costs = Field(default_factory=dict, description="the same in fp16, where losses are scaled")
    costs_in_16_bits: Costs = Field(default_factory=dict, description="the same in fp16 and bf16")
    stages: StagesEntry | None = Field(
        default=None, description="how it cuts a network into stages; balanced unless stated"
    )
    attention: AttentionEntry | None = Field(
        default=None, description="which attention kernels it calls; newest unless stated"
    )
    defaults: dict[Annotated[str, AfterValidator(_default)], DefaultEntry] = Field(
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
            if not isinstance(entry.value, _types_of(name)):
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
            version=self.version,
            costs=_values(self.costs),
            conditional={when: _values(costs) for when, costs in conditional.items() if costs},
            fitted=frozenset(name for name, entry in everything.items() if entry.fitted),
            serves=self.serves,
            errors_of=self.errors_of or "",
            stages="balanced" if self.stages is None else self.stages.value,
            attention="newest" if self.attention is None else self.attention.value,
            defaults=Defaults(**{name: entry.value for name, entry in self.defaults.items()}),  # type: ignore[arg-type]
            rules=Rules() if self.rules is None else Rules(**self.rules.model_dump(exclude={"source"})),
        )


def _values(costs: Costs) -> dict[str, float]:
    return {name: entry.value for name, entry in costs.items()}


def _types_of(name: str) -> tuple[type, ...]:
    """Types that a default may have."""
    annotation = str(Defaults.__dataclass_fields__[name].type)
    if "bool" in annotation:
        return (bool,)
    return (str,) if "str" in annotation else (int, float) if "float" in annotation else (int,)
