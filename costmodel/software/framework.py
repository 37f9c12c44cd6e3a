"""What a training framework does besides the arithmetic of its network: costs, what it does unless told otherwise, what it can run.

A framework is part of a problem. Its data are read from files (`planner.files.frameworks`); this module says what they mean for the cost
model: assumptions of plans over a mesh (`MeshAssumptions`) and of plans with a split per layer (`LayerAssumptions`), which attention
kernels a device runs, and where stages are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY, Efficiency
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.precision import Precision
from costmodel.software.layer_assumptions import AS_RUN, WELL_TUNED, LayerAssumptions

__all__ = [
    "CONDITIONS",
    "NO_FRAMEWORK",
    "UNKNOWN",
    "Attention",
    "Condition",
    "Defaults",
    "Framework",
    "Rules",
    "StageCut",
    "cluster_run_by",
    "with_attention",
]

# "balanced": the slowest stage is as fast as possible (`costmodel.mesh.stages`); "equal": as many blocks in each, whatever else the first
# and the last hold, and balanced where that does not come out even; "threshold": `costmodel.mesh.stage_cuts`.
StageCut = Literal["balanced", "equal", "threshold"]
# Attention kernels: those made for the device, those of an earlier generation, which run on any, or those of the first one.
Attention = Literal["newest", "portable", "first"]
# When a cost counts, besides those that always do.
Condition = Literal["on_fp4_devices", "in_fp16", "in_16_bits"]
CONDITIONS: tuple[Condition, ...] = ("on_fp4_devices", "in_fp16", "in_16_bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a framework does unless it is told otherwise; None: nobody says.

    Attributes
    ----------
    sequence_parallel : bool or None
    zero_stage : int or None
    recompute : str or None
        "none", "full", or "as_needed": what memory asks for.
    selective_blocks : int
        Selective recomputation recomputes every n-th block whole; 0: the attention of every block.
    accumulates : bool
        Whether it cuts the batch of a replica into micro-batches.
    last_micro_batch_is_smaller : bool
        Whether the last micro-batch may be smaller.
    narrow_weights : bool
        Nothing is kept in 32 bits.
    gradient_bytes : float or None
        Per weight, of the gradients that accumulate and travel.
    drops_hidden_states : bool
        Its recipes of GPT drop hidden states.
    adapts_all : bool
        Adapters are put to all matrices of a block, not to those of the attention alone.
    """

    sequence_parallel: bool | None = None
    zero_stage: int | None = None
    recompute: str | None = None
    selective_blocks: int = 0
    accumulates: bool = True
    last_micro_batch_is_smaller: bool = False
    narrow_weights: bool = False
    gradient_bytes: float | None = None
    drops_hidden_states: bool = False
    adapts_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a framework can run; None: nobody has written it down.

    Attributes
    ----------
    degrees, schedules : tuple of str or None
        Degrees of a mesh plan that it has, and its pipeline schedules.
    zero_stages : tuple of int or None
    fewest_micro_batches : bool
        Its 1F1B schedule refuses fewer micro-batches than stages but one, the forward passes with which the first stage begins.
    """

    degrees: tuple[str, ...] | None = None
    schedules: tuple[str, ...] | None = None
    zero_stages: tuple[int, ...] | None = None
    fewest_micro_batches: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework of one version.

    Attributes
    ----------
    name : str
        Empty: none is named, so that the answer is that of a well-tuned implementation.
    version : str
        Which versions are meant.
    costs : mapping of str to float
        Fields of `MeshAssumptions` and `LayerAssumptions` that differ from the neutral ones.
    conditional : mapping of Condition to such a mapping
        Costs that count on devices which compute in fp4, in fp16 (where losses are scaled) or in 16 bits.
    fitted : frozenset of str
        Costs that were fitted to runs.
    serves : bool
        It serves networks and trains none.
    errors_of : str
        Framework whose published runs the error bars of this one are made of; empty: its own.
    stages : StageCut
    attention : Attention
    defaults : Defaults
    rules : Rules

    Raises
    ------
    ValueError
        A cost is no assumption of either model.

    Examples
    --------
    >>> slow = Framework(name="slow", costs={"host_launch_s": 1e-3, "update_call_s": 2e-5})
    >>> slow.mesh_assumptions().host_launch_s, slow.layer_assumptions().update_call_s
    (0.001, 2e-05)
    """

    name: str = ""
    version: str = ""
    costs: Mapping[str, float] = field(default_factory=dict)
    conditional: Mapping[Condition, Mapping[str, float]] = field(default_factory=dict)
    fitted: frozenset[str] = frozenset()
    serves: bool = False
    errors_of: str = ""
    stages: StageCut = "balanced"
    attention: Attention = "newest"
    defaults: Defaults = Defaults()
    rules: Rules = Rules()

    def __post_init__(self) -> None:
        """Check the costs and make them read-only."""
        known = {*MeshAssumptions.__dataclass_fields__, *LayerAssumptions.__dataclass_fields__}
        for costs in (self.costs, *self.conditional.values()):
            for name in costs:
                if name not in known:
                    raise ValueError(f"framework '{self.name}': '{name}' is no assumption of the cost model")
        frozen = {when: MappingProxyType(dict(costs)) for when, costs in self.conditional.items()}
        object.__setattr__(self, "costs", MappingProxyType(dict(self.costs)))
        object.__setattr__(self, "conditional", MappingProxyType(frozen))

    def __hash__(self) -> int:
        """By name and version: a mapping has none."""
        return hash((self.name, self.version))

    def mesh_assumptions(
        self,
        assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS,
        *,
        precision: Precision | None = None,
        has_fp4: bool = False,
    ) -> MeshAssumptions:
        """Assumptions of plans over a mesh with the costs of the framework put in; ``has_fp4``: the device computes in fp4."""
        known = MeshAssumptions.__dataclass_fields__
        return replace(
            assumptions, **{name: value for name, value in self._counting(precision, has_fp4) if name in known}
        )

    def layer_assumptions(
        self, precision: Precision | None = None, *, assumptions: LayerAssumptions | None = None
    ) -> LayerAssumptions:
        """The same of plans with a split per layer; the devices of a framework's jobs differ."""
        if assumptions is None:
            assumptions = AS_RUN if self.name else WELL_TUNED
        known = LayerAssumptions.__dataclass_fields__
        return replace(
            assumptions, **{name: value for name, value in self._counting(precision, False) if name in known}
        )

    def _counting(self, precision: Precision | None, has_fp4: bool) -> Iterator[tuple[str, float]]:
        """Costs that count, the later ones last."""
        narrow = precision is not None and precision.name in ("fp16", "bf16")
        counts: dict[Condition, bool] = {
            "on_fp4_devices": has_fp4,
            "in_fp16": precision is not None and precision.name == "fp16",
            "in_16_bits": narrow,
        }
        yield from self.costs.items()
        for when, costs in self.conditional.items():
            if counts[when]:
                yield from costs.items()


NO_FRAMEWORK = Framework()
# Software of a run of which nothing is known but that it ran.
UNKNOWN = Framework(name="unknown", attention="portable")


# Rate of the Triton kernel over that of FlashAttention-2, forward and backward: what steps of llm-foundry on A100 were fitted to it
# (`DEFAULT_EFFICIENCY`), times the matmul_fraction of 0.87 there, over 73 and 63 % of the peak (T. Dao, FlashAttention-2,
# arXiv:2307.08691, section 1). Its authors found theirs 1.3 to 2.5 times as fast as the Triton kernel and 1.7 to 3 times as fast as the
# first one in CUDA (section 4.1).
_FIRST_SHARE = (0.71, 0.67)


def with_attention(device: Device, attention: Attention) -> Device:
    """The device with the rates of these kernels.

    It stays as it is where ``portable_attention_fraction`` is 1 and they are not the first ones, and where its file states no rate of
    attention: the default was fitted to the first ones.
    """
    known = device.efficiency
    forward, backward = _FIRST_SHARE if attention == "first" and _states_attention(known) else (1.0, 1.0)
    portable = 1.0 if attention == "newest" else known.portable_attention_fraction
    if (forward, backward, portable) == (1.0, 1.0, 1.0):
        return device
    slower = replace(
        known,
        attention_fraction=known.attention_fraction * portable * forward,
        attention_backward_fraction=known.attention_backward_fraction * portable * backward,
    )
    return replace(device, efficiency=slower)


def _states_attention(known: Efficiency) -> bool:
    usual = DEFAULT_EFFICIENCY
    return (known.attention_fraction, known.attention_backward_fraction) != (
        usual.attention_fraction,
        usual.attention_backward_fraction,
    )


def cluster_run_by(cluster: Cluster, attention: Attention) -> Cluster:
    """The cluster with the attention kernels of a framework."""
    groups = tuple(replace(group, device=with_attention(group.device, attention)) for group in cluster.groups)
    return cluster if groups == cluster.groups else replace(cluster, groups=groups)
