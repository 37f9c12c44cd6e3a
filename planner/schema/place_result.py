"""What `planner place --json` prints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

__all__ = ["AnyPlacement", "LatencyDocument", "PiperDocument", "PlaceDocument"]

_CONFIG = ConfigDict(extra="forbid", strict=True)
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
NodeId = int | str


class _Claim(BaseModel):
    """What every answer claims."""

    model_config = _CONFIG

    schema_version: Literal[1]
    command: Literal["place"]
    workload: str = Field(description="File, as given.")
    objective: Amount = Field(description="What is minimised; its unit is that of `objective_name`.")
    bound: Amount = Field(description="No placement of the kind that was asked for is below it.")
    gap: Amount = Field(description="(objective - bound) / objective.")
    proven_optimal: bool = Field(description="Whether the gap is 0, but for rounding (1e-6).")
    proof: str = Field(description="Which argument proved the bound.")
    method: str = Field(description="What found the placement.")
    stopped: str | None = Field(
        description="Why the search ended without a proof: time limit, interrupted, or in words what was too large."
    )
    wall_s: Amount = Field(description="Seconds of the search.")


class PlaceDevice(BaseModel):
    """One device; times are in the workload's unit."""

    model_config = _CONFIG

    name: str = Field(description="acc1, acc2, ... or cpu1, ...")
    num_nodes: Count
    compute: Amount
    communication: Amount = Field(description="Between the accelerator and host memory; 0 on CPUs.")
    load: Amount = Field(description="compute + communication.")
    type: str | None = Field(default=None, description="Kind of accelerator, where the workload has deviceTypes.")
    memory_bytes: Amount
    memory_capacity_bytes: Amount | None = Field(description="null on CPUs, which have no limit.")
    nodes: list[NodeId] = Field(description="Operators, by id.")


class PlaceDocument(_Claim):
    """Answer of `planner place --json` about an operator graph."""

    objective_name: Literal["throughput"] = Field(description="throughput: the largest load of a device.")
    contiguity: Literal["chain", "convex", "none"] = Field(
        description="chain: devices take what one down-set adds to another; convex: no path leaves a device and comes back."
    )
    num_accelerators: Count
    num_cpus: Count
    memory_bytes: Amount = Field(description="Of an accelerator.")
    speedup_over_one_device: Amount | None = Field(
        description="Memory aside; null where no single device runs everything."
    )
    speedup_over_contiguous: Amount | None = Field(
        description="null where the best contiguous placement was asked for."
    )
    assignment: dict[str, str] = Field(description="Operator to device.")
    devices: list[PlaceDevice]
    assumed_free: list[str] = Field(
        description="Operators of another program's network that are not known and are taken to cost nothing (`--assume-free`)."
    )
    seed: Count


class PlaceSubgraph(BaseModel):
    """One call of an accelerator; times are in the workload's unit."""

    model_config = _CONFIG

    device: str = Field(description="acc1, acc2, ...")
    subgraph: int = Field(ge=1, description="Position among the accelerator's subgraphs.")
    start: Amount
    finish: Amount = Field(description="start + compute + communication: when all its outputs are there.")
    compute: Amount
    communication: Amount = Field(description="Of what crosses its border, once per output.")
    num_nodes: Count
    memory_bytes: Amount
    nodes: list[NodeId] = Field(description="Operators, by id.")


class LatencyDocument(_Claim):
    """Answer of `planner place --objective latency --json`."""

    objective_name: Literal["latency"] = Field(description="When the last output of one sample is there.")
    num_accelerators: Count
    num_subgraphs: int = Field(ge=1, description="Of an accelerator, at most.")
    memory_bytes: Amount = Field(description="Of an accelerator, for all its subgraphs together.")
    speedup_over_one_device: Amount | None = Field(
        description="One accelerator, memory aside, or CPUs alone where operators are not supported."
    )
    assignment: dict[str, str] = Field(description="Operator to device; cpu1 stands for all CPUs.")
    subgraphs: list[PlaceSubgraph]
    cpu_nodes: list[NodeId] = Field(description="Operators on CPUs, by id.")
    available: dict[str, Amount] = Field(description="Operator to the time when its output is there.")
    assumed_free: list[str] = Field(
        description="Operators of another program's network that are not known and are taken to cost nothing (`--assume-free`)."
    )
    seed: Count


class PiperStageEntry(BaseModel):
    """One pipeline stage."""

    model_config = _CONFIG

    data_parallel: int = Field(ge=1, description="Copies.")
    tensor_parallel: int = Field(ge=1, description="Devices of a copy.")
    nodes: list[NodeId] = Field(description="Operators, by id.")
    ways: list[int] = Field(description="Per operator: position in the workload's list of ways for `tensor_parallel`.")
    way_names: list[str] = Field(description="Per operator: the way's name.")
    in_flight: int = Field(ge=1, description="Micro-batches whose activations a device keeps.")
    time_s: Amount = Field(description="Per micro-batch.")
    memory_bytes: Amount = Field(description="Per device.")


class PiperDocument(_Claim):
    """Answer of `planner place --json` about a workload of Piper's format."""

    objective_name: Literal["piper"] = Field(description="Seconds per micro-batch of the slowest stage.")
    num_devices: int = Field(ge=1)
    used_devices: int = Field(ge=1)
    memory_bytes: Amount = Field(description="Of a device.")
    bandwidth_bytes_per_s: Amount
    num_micro_batches: int = Field(ge=1, description="Of a batch.")
    assignment: dict[str, int] = Field(description="Operator to stage, from 1.")
    stages: list[PiperStageEntry] = Field(description="In the order of the data.")


class AnyPlacement(RootModel[PlaceDocument | LatencyDocument | PiperDocument]):
    """Answer of `planner place --json`: by `objective_name` for throughput, for latency or of a workload of Piper's format."""
