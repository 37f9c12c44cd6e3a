"""File format of failures: what fails how often, what fleets counted, what recovery takes, and where checkpoints go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from costmodel.failures.rates import FailureClass, FailureModel, Fleet
from planner.schema.common import (
    Bandwidth,
    FileModel,
    Name,
    NamedFile,
    Seconds,
    Sources,
    Text,
    check_sources,
    fail,
    plain_number,
)
from planner.schema.records import key, record

_SECONDS_PER_MILLION_HOURS = 3600e6
Positive = Annotated[float, Field(gt=0.0, le=1e12), BeforeValidator(plain_number)]
Rate = Annotated[float, Field(ge=0.0, le=1e6), BeforeValidator(plain_number)]
# What a fleet counted -> whether a class is among it.
_COUNTED: dict[str, Callable[[Any], bool]] = {
    "all": bool,
    "hardware": lambda entry: entry.takes_down != "job",
    "device": lambda entry: entry.unit == "device",
}

if TYPE_CHECKING:
    ClassEntry: TypeAlias = Any
    FleetEntry: TypeAlias = Any
    RecoveryEntry: TypeAlias = Any
    StorageEntry: TypeAlias = Any
else:
    ClassEntry = record(
        "ClassEntry",
        "One cause of interruptions.",
        FileModel,
        unit=key(Literal["device", "host", "adapter", "rack"], "what fails"),
        per_million_hours=key(Rate, "failures of one unit in a million hours"),
        takes_down=key(
            Literal["job", "host", "rack"],
            "what is gone until it is repaired: nothing (the job restarts where it was), the host, all hosts of the rack",
            default="host",
        ),
        planned=key(bool, "work is saved before it, so that none is lost", default=False, strict=True),
    )
    FleetEntry = record(
        "FleetEntry",
        "What was counted on one fleet; the rates of all classes are scaled to the median of the fleets.",
        FileModel,
        name=Name,
        interruptions=key(Positive, "unexpected ones that were counted"),
        devices=key(Positive, "that ran meanwhile"),
        days=key(Positive, "for how long"),
        counts=key(
            Literal[tuple(_COUNTED)],
            "what was counted: all unexpected interruptions, those that take a host or rack down, or failures of devices",
            default="all",
        ),
        evidence=key(
            Literal["primary text", "second-hand", "own"],
            "read in the source itself, in a text that names it, or counted by yourself",
            default="own",
        ),
        source=key(Text, "where it was published", default=""),
    )
    RecoveryEntry = record(
        "RecoveryEntry",
        "What a failure takes besides the work that is done again.",
        FileModel,
        restart=key(
            Seconds,
            "from the failure until processes run on other hosts: detection, rescheduling, start; without loading",
        ),
        restart_high=key(Seconds | None, "what nine of ten stay below; as 'restart' unless stated", default=None),
        repair=key(Seconds, "until a host that failed is back"),
    )
    StorageEntry = record(
        "StorageEntry",
        "Where checkpoints go.",
        FileModel,
        bandwidth=key(Bandwidth, "of all hosts together: '100 GB/s'"),
        per_host=key(Bandwidth, "of one host: '2.6 GB/s'"),
        snapshot=key(Seconds, "that training stops for a checkpoint beside copying and writing", default=0.0),
    )


class FailuresFile(NamedFile):
    """How often things fail, and what follows."""

    classes: dict[Name, ClassEntry] = Field(min_length=1, max_length=100)
    fleets: tuple[FleetEntry, ...] = Field(
        default=(), max_length=1000, description="rates are as 'classes' says where absent"
    )
    log_sd: Annotated[float, Field(ge=0.0, le=10.0), BeforeValidator(plain_number)] | None = Field(
        default=None,
        description="standard deviation of the natural logarithm of a fleet's rate; that of 'fleets' unless stated",
    )
    recovery: RecoveryEntry
    storage: StorageEntry
    source: Sources = Field(default_factory=dict, description="where the numbers come from, by key")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_sources(self.source, type(self))
        unexpected = [entry for entry in self.classes.values() if not entry.planned and entry.per_million_hours]
        for fleet in self.fleets:
            if not any(map(_COUNTED[fleet.counts], unexpected)):
                fail(f"fleet '{fleet.name}' counted what no class has a rate for", at="fleets")
        names = [fleet.name for fleet in self.fleets]
        if len(set(names)) < len(names):
            fail("two fleets have the same name", at="fleets")
        high = self.recovery.restart_high
        if high is not None and high < self.recovery.restart:
            fail("'restart_high' is below 'restart'", at="recovery")
        return self

    def to_domain(self) -> FailureModel:
        """Make the cost model's rates.

        Examples
        --------
        >>> file = FailuresFile(schema_version=1, name="mine", classes={"gpu": {"unit": "device", "per_million_hours": 36.0}},
        ...     recovery={"restart": "5 min", "repair": "4 h"}, storage={"bandwidth": "10 GB/s", "per_host": "1 GB/s"})
        >>> file.to_domain().rate_per_s(100)
        1e-06
        """
        recovery, storage = self.recovery, self.storage
        unexpected = {name: entry for name, entry in self.classes.items() if not entry.planned}
        return FailureModel(
            name=self.name,
            classes=tuple(
                FailureClass(
                    name=name,
                    unit=entry.unit,
                    per_s=entry.per_million_hours / _SECONDS_PER_MILLION_HOURS,
                    takes_down=entry.takes_down,
                    planned=entry.planned,
                )
                for name, entry in self.classes.items()
            ),
            fleets=tuple(
                Fleet(
                    name=fleet.name,
                    interruptions=fleet.interruptions,
                    devices=fleet.devices,
                    days=fleet.days,
                    counts=tuple(name for name, entry in unexpected.items() if _COUNTED[fleet.counts](entry)),
                )
                for fleet in self.fleets
            ),
            log_sd=self.log_sd,
            restart_s=recovery.restart,
            restart_high_s=recovery.restart if recovery.restart_high is None else recovery.restart_high,
            repair_s=recovery.repair,
            snapshot_s=storage.snapshot,
            storage_bytes_per_s=storage.bandwidth,
            storage_bytes_per_s_and_host=storage.per_host,
        )
