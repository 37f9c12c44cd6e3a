"""A plan over several device groups: pipelines of unequal stages, each with its own share of the batch.

Links inside and between device groups
--------------------------------------
Ranks fill the groups in order and the units of each level in order, so a group occupies a range of ranks. Inside a group everything is as
in a cluster of its own, with the group's own links where it has some. Two groups meet at the innermost level that has them in one unit; a
message between them leaves by the ports of the one and arrives by the ports of the other, and the slower side counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.fields import Figure, declared, setting
from costmodel.hardware.cluster import Cluster, Level
from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import MEMORY_FIGURES, RECOMPUTE, STEP_FIGURES
from costmodel.rates import COMMON_FIGURES, COST_FIGURES, TOKEN_FIGURES

# Such plans have no context or expert parallelism and keep everything on the devices.
_ABSENT = ("cp_exposed_s", "ep_exposed_s", "offload_s")

MIXED_FIGURES: Mapping[str, Figure] = declared(
    *COMMON_FIGURES,
    Figure(name="precision", doc="Number format that all its devices compute in.", kind="text"),
    *TOKEN_FIGURES,
    *COST_FIGURES,
    *(figure for figure in STEP_FIGURES if figure.name not in _ABSENT),
    *MEMORY_FIGURES,
)


# Which ranks of a group are neighbours after the tensor-parallel ones: replicas of a stage, or stages of a replica. Names as in
# costmodel.mesh.plan.ORDERS.
MIXED_ORDERS: tuple[str, ...] = ("tp-cp-dp-pp", "tp-cp-pp-dp")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MixedStage:
    """Consecutive blocks on ``tp`` devices of one group."""

    group: int  # position in Cluster.groups
    blocks: int  # the front of the network goes with the first stage, the back with the last
    tp: int = setting(1, "Tensor parallel degree: devices of the stage in one replica.")
    recompute: str = setting("none", "What the backward pass computes again.", of=RECOMPUTE)
    recompute_blocks: int = setting(0, "How many blocks of the stage, under `full`.", least=0)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MixedPipeline:
    """Equal replicas of one pipeline (1F1B, one makespan per step).

    ``longer`` of the ``replicas`` run one micro-batch more than the others, so that any share of the batch divides.
    """

    stages: tuple[MixedStage, ...]
    replicas: int = setting(1, "How many.")
    micro_batch: int = setting(1, "Samples per micro-batch.", most=10**9)
    num_micro_batches: int = setting(1, "Per replica and step.", most=10**9)
    longer: int = setting(0, "Replicas that run one micro-batch more.", least=0)

    @property
    def samples(self) -> int:
        """Samples per step, all replicas together."""
        return self.micro_batch * (self.replicas * self.num_micro_batches + self.longer)

    @property
    def most_micro_batches(self) -> int:
        """Micro-batches of the busiest replica."""
        return self.num_micro_batches + (1 if self.longer else 0)

    def devices_of(self, group: int) -> int:
        """Devices of a group in all replicas."""
        return self.replicas * sum(stage.tp for stage in self.stages if stage.group == group)

    def stages_of(self, group: int) -> int:
        """Stages of one replica on a group."""
        return sum(1 for stage in self.stages if stage.group == group)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MixedPlan:
    """Pipelines that together work through the global batch and add up their gradients."""

    pipelines: tuple[MixedPipeline, ...]
    zero_stage: int = setting(0, "1: the equal replicas of a stage share its optimizer state.", least=0, most=1)
    sequence_parallel: bool = setting(False, "Between the split matrices, tensors are cut along the positions.")
    order: str = setting("tp-cp-dp-pp", "Rank order inside a group, neighbours first.", of=MIXED_ORDERS)

    @property
    def groups(self) -> tuple[int, ...]:
        """Groups in use."""
        return tuple(sorted({stage.group for pipeline in self.pipelines for stage in pipeline.stages}))

    @property
    def global_batch(self) -> int:
        """Samples per step."""
        return sum(pipeline.samples for pipeline in self.pipelines)

    @property
    def workers(self) -> int:
        """Devices in use."""
        return sum(self.devices_of(group) for group in self.groups)

    def devices_of(self, group: int) -> int:
        """Devices of a group in use."""
        return sum(pipeline.devices_of(group) for pipeline in self.pipelines)


def group_names(cluster: Cluster) -> tuple[str, ...]:
    """What to call the groups: their names, or their devices', numbered where several are alike."""
    names = [group.name or group.device.name for group in cluster.groups]
    return tuple(
        f"{name} #{names[:i].count(name) + 1}" if names.count(name) > 1 else name for i, name in enumerate(names)
    )


def describe(plan: MixedPlan, cluster: Cluster) -> str:
    """Put a plan into words.

    Examples
    --------
    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> fast, slow = (Device(name=n, peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11) for n in "ab")
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=fast), DeviceGroup(device=slow)),
    ...     levels=(Level(name="l", size=None, bandwidth_bytes_per_s=1e9, latency_s=1e-6),))
    >>> stages = (MixedStage(group=0, tp=8, blocks=24), MixedStage(group=0, tp=8, blocks=20), MixedStage(group=1, tp=4, blocks=8))
    >>> describe(MixedPlan(pipelines=(MixedPipeline(stages=stages, replicas=2, num_micro_batches=40),)), cluster)
    '2 replicas x 40 micro-batches of 1: a: stages 0-1, tp 8, 24+20 blocks; b: stage 2, tp 4, 8 blocks'
    """
    names = group_names(cluster)
    several = len(plan.pipelines) > 1 or any(pipeline.replicas > 1 for pipeline in plan.pipelines)
    zero = "; ZeRO-1 among equal replicas" if plan.zero_stage and several else ""
    return " | ".join(_pipeline_words(pipeline, names) for pipeline in plan.pipelines) + zero


def _pipeline_words(pipeline: MixedPipeline, names: tuple[str, ...]) -> str:
    m = pipeline.num_micro_batches
    head = f"{_count(pipeline.replicas, 'replica')} x {_count(m, 'micro-batch')} of {pipeline.micro_batch}"
    if pipeline.longer:
        head += f" ({pipeline.longer} of them {m + 1})"
    runs: list[list[int]] = []
    for s, stage in enumerate(pipeline.stages):
        last = pipeline.stages[runs[-1][-1]] if runs else None
        if last is not None and (last.group, last.tp) == (stage.group, stage.tp):
            runs[-1].append(s)
        else:
            runs.append([s])
    return f"{head}: " + "; ".join(_run_words([pipeline.stages[s] for s in run], run[0], names) for run in runs)


def _run_words(stages: list[MixedStage], first: int, names: tuple[str, ...]) -> str:
    count = len(stages)
    where = f"stage {first}" if count == 1 else f"stages {first}-{first + count - 1}"
    words = f"{names[stages[0].group]}: {where}, tp {stages[0].tp}, {'+'.join(str(s.blocks) for s in stages)} blocks"
    again = ["selective" if s.recompute == "selective" else str(s.recompute_blocks) for s in stages]
    if all(s.recompute == "none" for s in stages):
        return words
    return (
        words + f" ({'+'.join(again)} recomputed)"
        if set(again) != {"selective"}
        else words + " (selective recomputation)"
    )


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


class MixedError(MeshError):
    """Device groups, or a plan over them, that cannot work; the message says why."""


def group_cluster(cluster: Cluster, group: int) -> Cluster:
    """One group with its own links, as a cluster."""
    found = cluster.groups[group]
    return replace(
        cluster,
        name=f"{cluster.name}: {group_names(cluster)[group]}",
        groups=(replace(found, levels=()),),
        levels=_levels_of(cluster, group),
    )


def _levels_of(cluster: Cluster, group: int) -> tuple[Level, ...]:
    own = cluster.groups[group].levels
    return (*own, *cluster.levels[len(own) :])


def group_ranges(cluster: Cluster) -> tuple[tuple[int, int], ...]:
    """First rank of every group, and the first after it.

    Raises
    ------
    MixedError
        A group does not say how many devices it has.
    """
    ranges, start = [], 0
    for name, group in zip(group_names(cluster), cluster.groups, strict=True):
        if group.num_devices is None:
            raise MixedError(f"group '{name}' of cluster '{cluster.name}' needs a count of devices")
        ranges.append((start, start + group.num_devices))
        start += group.num_devices
    return tuple(ranges)


def check_groups(cluster: Cluster) -> None:
    """Check that the groups fill whole units, so that what holds for a cluster of one group holds inside each.

    Raises
    ------
    MixedError
        A group starts inside a unit that it also leaves, there is no count, or there are more devices than places.
    """
    ranges = group_ranges(cluster)
    capacity = 1
    for level in cluster.levels:
        if level.size is None:
            return
        capacity *= level.size
        for name, (start, end) in zip(group_names(cluster), ranges, strict=True):
            if start % capacity and start // capacity != (end - 1) // capacity:
                raise MixedError(
                    f"group '{name}' of cluster '{cluster.name}' starts {start % capacity} devices into a unit of level '{level.name}' "
                    f"({capacity} devices) and goes on in the next; let every group fill whole units, or stay inside one"
                )
    if ranges[-1][1] > capacity:
        raise MixedError(f"cluster '{cluster.name}' has {ranges[-1][1]} devices, its levels join {capacity}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The link between two (or more) groups for a number of messages at a time."""

    level: str
    latency_s: float
    bytes_per_s: float  # of each of the messages

    def send_s(self, message_bytes: FloatArray | float) -> FloatArray:
        """One message each: B/P + a, as `costmodel.hardware.collectives` has it for neighbours."""
        message = np.asarray(message_bytes, dtype=np.float64)
        return np.where(message > 0, message / self.bytes_per_s + self.latency_s, 0.0)


def all_reduce_across_s(
    message_bytes: FloatArray | float,
    members: FloatArray | float,
    bytes_per_s: FloatArray | float,
    latency_s: FloatArray | float,
) -> FloatArray:
    """All-reduce of one rank per member over one link: the cheaper of a ring and of recursive doubling.

    ``min(2 (n - 1)/n (B/P + n a), ceil(log2 n) (B/P + a))``, the formulas of `costmodel.hardware.collectives` on one level.

    >>> float(all_reduce_across_s(1e9, 4, 1e9, 0.0))  # ring: 2 x 3/4 of 1 s
    1.5
    """
    message, n = np.asarray(message_bytes, dtype=np.float64), np.maximum(np.asarray(members, dtype=np.float64), 1.0)
    sent = message / bytes_per_s
    ring = 2.0 * (n - 1.0) / n * (sent + n * latency_s)
    doubling = np.ceil(np.log2(n)) * (sent + latency_s)
    return np.where(message > 0, np.minimum(ring, doubling), 0.0)


def crossing(cluster: Cluster, groups: tuple[int, ...], flows: tuple[int, ...]) -> Crossing:
    """The link over which groups reach each other.

    Parameters
    ----------
    cluster : Cluster
    groups : tuple of int
        Two or more.
    flows : tuple of int
        Devices of each group that send at the same time; neighbours, so that they share ports.

    Returns
    -------
    Crossing
        Of the most distant pair of devices; latency and bandwidth of the worse group.
    """
    ranges = group_ranges(cluster)
    first = min(ranges[g][0] for g in groups)
    last = max(ranges[g][1] for g in groups) - 1
    capacity, at = 1, len(cluster.levels) - 1
    for i, level in enumerate(cluster.levels[:-1]):
        assert level.size is not None
        capacity *= level.size
        if first // capacity == last // capacity:
            at = i
            break
    rate, latency = math.inf, 0.0
    for group, count in zip(groups, flows, strict=True):
        levels = _levels_of(cluster, group)
        latency = max(latency, levels[at].latency_s)
        for level in levels[: at + 1]:
            rate = min(rate, level.port_bytes_per_s / min(max(count, 1), level.shared_by))
    return Crossing(level=cluster.levels[at].name, latency_s=latency, bytes_per_s=rate)
