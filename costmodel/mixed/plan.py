"""A plan over several device groups: pipelines of unequal stages, each with its own share of the batch."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.hardware.cluster import Cluster

__all__ = ["MIXED_ORDERS", "MixedPipeline", "MixedPlan", "MixedStage", "describe", "group_names"]

# Which ranks of a group are neighbours after the tensor-parallel ones: replicas of a stage, or stages of a replica. Names as in
# costmodel.mesh.plan.ORDERS.
MIXED_ORDERS: tuple[str, ...] = ("tp-cp-dp-pp", "tp-cp-pp-dp")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MixedStage:
    """Consecutive blocks on ``tp`` devices of one group."""

    group: int  # position in Cluster.groups
    blocks: int  # the front of the network goes with the first stage, the back with the last
    tp: int = 1
    recompute: str = "none"  # a name of costmodel.mesh.plan.RECOMPUTE
    recompute_blocks: int = 0  # how many, under "full"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MixedPipeline:
    """Equal replicas of one pipeline (1F1B, one makespan per step).

    ``longer`` of the ``replicas`` run one micro-batch more than the others, so that any share of the batch divides.
    """

    stages: tuple[MixedStage, ...]
    replicas: int = 1
    micro_batch: int = 1  # samples
    num_micro_batches: int = 1  # per replica and step
    longer: int = 0

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
    zero_stage: int = 0  # 1: the equal replicas of a stage share its optimizer state
    sequence_parallel: bool = False  # where tp > 1
    order: str = "tp-cp-dp-pp"  # a name of MIXED_ORDERS

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
