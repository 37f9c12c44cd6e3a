"""The constants of the cost model that measurements may correct: their names, what they multiply, how sure the bundled values are.

Every constant is a factor on what the device, the cluster, the framework profile and `DEFAULT_ASSUMPTIONS` state, so that 1 is the
bundled model and a calibration carries over to other devices and frameworks. Factors are positive; all uncertainty lives in their
natural logarithm: a ``log_sd`` of 0.1 is about 10 % either way. Shares (fractions of a peak, exposed shares of communication) are cut
at 1 after the factor is applied.

A calibration says their factors, how sure these are, and what they leave unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster, Level
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import Efficiency
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.uncertainty.intervals import ErrorModel
from costmodel.uncertainty.limits import MemoryErrors

Where = Literal["efficiency", "overhead", "assumption", "link"]

# Fields of `Device` that hold a rate by number format.
_RATES = ("best_flop_per_s", "sustained_flop_per_s")

# Levels that join up to so many devices are inside a node, and so is the innermost of several: no bundled node has more (k80-20gbe).
_MOST_IN_NODE = 16


class ConstantError(ValueError):
    """No constant has this name, or it cannot have this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One factor that a calibration may fit.

    Attributes
    ----------
    name : str
    where : "efficiency", "overhead", "assumption" or "link"
        What it changes: `Efficiency` of every device, times that a kernel or a host needs whatever its size, `MeshAssumptions`, or levels.
    meaning : str
        What it multiplies, in words.
    fields : tuple of str
        Fields of `Efficiency`, `Device`, `MeshAssumptions` or `Level` that it multiplies; of an overlap the exposed share, 1 - overlap.
    prior_log_sd : float
        How far the bundled value is usually off, as a standard deviation of the logarithm.
    lowest, highest : float
        Limits of a fit.
    """

    name: str
    where: Where
    meaning: str
    fields: tuple[str, ...]
    prior_log_sd: float
    lowest: float = 0.2
    highest: float = 5.0


def _constant(name: str, where: Where, fields: str, prior_log_sd: float, meaning: str, **limits: float) -> Constant:
    return Constant(
        name=name, where=where, meaning=meaning, fields=tuple(fields.split()), prior_log_sd=prior_log_sd, **limits
    )


# Standard deviations: matmul_rate from the MAMF table of ml-engineering (S. Bekman), whose devices reach 0.51 to 0.97 of their peaks, a
# standard deviation of 0.17 in the logarithm; the others are judgements: 0.1 where a constant is a correction of another that is known,
# 0.3 where software decides, 0.5 for latencies and sizes, which differ by factors of two between machines (DeepBench, nccl-tests).
CONSTANTS: Mapping[str, Constant] = MappingProxyType(
    {
        constant.name: constant
        for constant in (
            _constant(
                "matmul_rate",
                "efficiency",
                "matmul_fraction best_flop_per_s sustained_flop_per_s",
                0.17,
                "rate that a large matrix product reaches",
            ),
            _constant(
                "matmul_size",
                "efficiency",
                "tile_half depth_half fill_outputs",
                0.5,
                "sizes below which a matrix product no longer fills the device",
            ),
            _constant(
                "convolution_rate",
                "efficiency",
                "winograd_fraction fft_fraction strided_gradient_fraction",
                0.3,
                "rate of the products of fast convolution algorithms and of strided gradients over that of matrix products",
            ),
            _constant(
                "attention_rate",
                "efficiency",
                "attention_fraction attention_backward_fraction",
                0.3,
                "rate of fused attention over that of matrix products",
            ),
            _constant(
                "sustained_rate",
                "efficiency",
                "step_fraction",
                0.1,
                "share of its best rate that a matrix product keeps up through a training step",
            ),
            _constant(
                "elementwise_rate",
                "efficiency",
                "elementwise_fraction",
                0.2,
                "share of their best rate that element-wise kernels keep up through a training step",
            ),
            _constant(
                "memory_rate",
                "efficiency",
                "memory_fraction",
                0.15,
                "share of the memory bandwidth that a stream reaches",
            ),
            _constant("launch_overhead", "overhead", "launch_overhead_s", 0.5, "least time of a kernel on the device"),
            _constant("host_launch", "overhead", "host_launch_s", 0.5, "time of the host to start a kernel"),
            _constant(
                "host_collective",
                "overhead",
                "host_collective_s collective_wait_s contended_step_s",
                0.5,
                "time of the host to start a collective inside a layer, and what devices wait for its ranks",
            ),
            _constant(
                "intra_node_bandwidth",
                "link",
                "bandwidth_bytes_per_s port_limit_bytes_per_s",
                0.2,
                "bandwidth of the links inside a node",
            ),
            _constant(
                "inter_node_bandwidth",
                "link",
                "bandwidth_bytes_per_s port_limit_bytes_per_s",
                0.3,
                "bandwidth of the links between nodes",
            ),
            _constant("link_latency", "link", "latency_s ring_step_s", 0.5, "latency of every link and step of a ring"),
            _constant(
                "dp_exposed",
                "assumption",
                "dp_overlap",
                0.7,
                "share of the gradient exchange that the backward pass cannot hide",
            ),
        )
    }
)


def device_with(device: Device, values: Mapping[str, float]) -> Device:
    """A device with factors applied to its efficiency and its launch overhead.

    Examples
    --------
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> round(device_with(device, {"matmul_rate": 0.5, "launch_overhead": 2}).best("fp32") / 1e12, 9)
    0.4
    """
    checked = _checked(values)
    fractions: dict[str, Any] = {}
    rates: dict[str, Any] = {}
    launch_s = device.launch_overhead_s
    for name, factor in checked.items():
        constant = CONSTANTS[name]
        if constant.where == "efficiency":
            shares = (item for item in constant.fields if item not in _RATES)
            fractions |= {item: _scaled(item, getattr(device.efficiency, item), factor) for item in shares}
            rates |= {item: _slower(device, item, factor) for item in constant.fields if item in _RATES}
        elif "launch_overhead_s" in constant.fields:
            launch_s *= factor
    if not fractions and launch_s == device.launch_overhead_s:
        return device
    efficiency: Efficiency = replace(device.efficiency, **fractions) if fractions else device.efficiency
    return replace(device, efficiency=efficiency, launch_overhead_s=launch_s, **rates)


def _slower(device: Device, item: str, factor: float) -> dict[str, float]:
    """Rates times a factor, up to the peak (or what is measured above it)."""
    stated: Mapping[str, float] = getattr(device, item)
    return {name: min(factor * rate, max(rate, device.peak(name))) for name, rate in stated.items()}


def assumptions_with(assumptions: MeshAssumptions, values: Mapping[str, float]) -> MeshAssumptions:
    """Assumptions of the mesh model with factors applied; of an overlap, to the share that stays exposed.

    >>> round(assumptions_with(MeshAssumptions(dp_overlap=0.9), {"dp_exposed": 3}).dp_overlap, 9)
    0.7
    """
    changes: dict[str, float] = {}
    for name, factor in _checked(values).items():
        for item in CONSTANTS[name].fields:
            if item in MeshAssumptions.__dataclass_fields__:
                changes[item] = _scaled(item, getattr(assumptions, item), factor)
    return replace(assumptions, **changes) if changes else assumptions


def links_with(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    """A cluster with factors applied to its links; its devices stay as they are.

    A level is inside a node where it joins up to 16 devices in all, or is the innermost of several.
    """
    checked = _checked(values)
    if not any(CONSTANTS[name].where == "link" for name in checked):
        return cluster
    groups = tuple(
        replace(group, levels=_levels_with(group.levels, checked, len(cluster.levels))) for group in cluster.groups
    )
    return replace(cluster, groups=groups, levels=_levels_with(cluster.levels, checked, len(cluster.levels)))


def cluster_with(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    """A cluster with factors applied to its links and to every device."""
    linked = links_with(cluster, values)
    groups = tuple(replace(group, device=device_with(group.device, values)) for group in linked.groups)
    return (
        linked
        if all(a.device is b.device for a, b in zip(groups, linked.groups, strict=True))
        else replace(linked, groups=groups)
    )


def with_constants(
    cluster: Cluster, assumptions: MeshAssumptions, values: Mapping[str, float]
) -> tuple[Cluster, MeshAssumptions]:
    """Apply factors to everything that they multiply.

    Parameters
    ----------
    cluster : Cluster
    assumptions : MeshAssumptions
    values : mapping of str to float
        Name of a constant -> factor; those that are not named stay 1.

    Raises
    ------
    ConstantError
        Unknown name, or a factor that is not a positive number.

    Examples
    --------
    >>> from costmodel.hardware.cluster import DeviceGroup
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    >>> fabric = Level(name="fabric", size=4, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, fabric))
    >>> slower, _ = with_constants(cluster, MeshAssumptions(), {"inter_node_bandwidth": 0.5})
    >>> [level.bandwidth_bytes_per_s / 1e9 for level in slower.levels]
    [100.0, 5.0]
    """
    return cluster_with(cluster, values), assumptions_with(assumptions, values)


def stated_values(
    name: str, cluster: Cluster, assumptions: MeshAssumptions, formats: Collection[str] | None = None
) -> dict[str, float]:
    """What a constant multiplies, by field (of the first group's device; of links by level), for reports; rates of some number formats.

    >>> from costmodel.hardware.cluster import DeviceGroup
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node,))
    >>> stated_values("matmul_rate", cluster, MeshAssumptions()), stated_values("intra_node_bandwidth", cluster, MeshAssumptions())
    ({'matmul_fraction': 0.8}, {'node.bandwidth_bytes_per_s': 100000000000.0})
    """
    constant = CONSTANTS[check_name(name)]
    device = cluster.groups[0].device
    if constant.where == "link":
        chosen = [
            level for level, own in zip(cluster.levels, _is_in_node(cluster.levels), strict=True) if _applies(name, own)
        ]
        found = {f"{level.name}.{item}": getattr(level, item) for level in chosen for item in constant.fields}
        return {
            item: value
            for item, value in found.items()
            if math.isfinite(value) and (value or not item.endswith("ring_step_s"))
        }
    if constant.where == "efficiency":
        rates = {
            f"{name} {item}": rate
            for item in constant.fields
            if item in _RATES
            for name, rate in getattr(device, item).items()
            if formats is None or name in formats
        }
        return rates or {item: getattr(device.efficiency, item) for item in constant.fields if item not in _RATES}
    return {item: getattr(device if hasattr(device, item) else assumptions, item) for item in constant.fields}


def _checked(values: Mapping[str, float]) -> Mapping[str, float]:
    """Factors other than 1, each a positive number."""
    for name, factor in values.items():
        check_name(name)
        if not (math.isfinite(factor) and factor > 0):
            raise ConstantError(f"{name} is {factor}, expected a positive number")
    return {name: factor for name, factor in values.items() if factor != 1.0}


def check_name(name: str) -> str:
    """The name, if a constant has it.

    Raises
    ------
    ConstantError
        None has.
    """
    if name not in CONSTANTS:
        raise ConstantError(f"unknown constant '{name}' (known: {', '.join(CONSTANTS)})")
    return name


def _scaled(item: str, value: float, factor: float) -> float:
    """A share stays a share."""
    if item.endswith("_overlap"):
        return 1.0 - min(1.0, factor * (1.0 - value))
    return min(1.0, factor * value) if item.endswith("_fraction") else factor * value


def _is_in_node(levels: tuple[Level, ...], of: int | None = None) -> list[bool]:
    """Whether each level joins devices of one node; ``of`` levels in the whole cluster."""
    count = len(levels) if of is None else of
    inside, result = 1.0, []
    for depth, level in enumerate(levels):
        inside *= math.inf if level.size is None else level.size
        result.append(inside <= _MOST_IN_NODE or (depth == 0 and count > 1))
    return result


def _applies(name: str, in_node: bool) -> bool:
    return name == "link_latency" or (name == "intra_node_bandwidth") == in_node


def _levels_with(levels: tuple[Level, ...], values: Mapping[str, float], of: int) -> tuple[Level, ...]:
    result = []
    for level, in_node in zip(levels, _is_in_node(levels, of), strict=True):
        changes = {
            item: getattr(level, item) * factor
            for name, factor in values.items()
            if CONSTANTS[name].where == "link" and _applies(name, in_node)
            for item in CONSTANTS[name].fields
        }
        result.append(replace(level, **changes))
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedConstant:
    """A factor after a fit.

    Attributes
    ----------
    value, log_sd : float
        The factor, and how sure it is (standard deviation of its logarithm).
    prior, prior_log_sd : float
        The same before the measurements.
    determined : bool
        Whether the measurements said more than the prior.
    """

    value: float = 1.0
    log_sd: float
    prior: float = 1.0
    prior_log_sd: float
    determined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Factors with their uncertainty, and what they leave unexplained.

    Attributes
    ----------
    name : str
    constants : mapping of str to CalibratedConstant
        Every name is one of `CONSTANTS`; those that are absent stay 1 with the prior of `CONSTANTS`.
    correlation : array (n, n)
        Of the logarithms, in the order of ``constants``.
    residual_log_sd : float
        Standard deviation of log(measured / predicted) that no constant explains.
    residual_groups : int, optional
        Networks whose training steps that was found from; 0: none, so that it says nothing about steps. None: it is as stated.
    framework : str
        Name of the framework whose costs (`costmodel.framework`) the factors multiply; empty: a well-tuned implementation.
    assumed : mapping of str to float
        Assumptions of the cost model that the runs had in place of the framework's: waits of one cluster, say.
    error_models : mapping of str to ErrorModel
        What else is uncertain, by kind of workload; empty: as the bundled calibration has it, updated by ``residual_log_sd``.
    memory_errors : mapping of str to MemoryErrors
        How far predicted memory is off, by framework; empty: as the bundled calibration has it.

    Raises
    ------
    ConstantError
        An unknown constant, or a matrix of another shape.
    """

    name: str
    constants: Mapping[str, CalibratedConstant]
    correlation: FloatArray
    residual_log_sd: float
    residual_groups: int | None = None
    framework: str = ""
    assumed: Mapping[str, float] = field(default_factory=dict)
    error_models: Mapping[str, ErrorModel] = field(default_factory=dict)
    memory_errors: Mapping[str, MemoryErrors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the names and the shape; make the mappings read-only."""
        for name in self.constants:
            check_name(name)
        size = len(self.constants)
        if self.correlation.shape != (size, size):
            raise ConstantError(f"the correlation is {self.correlation.shape}, expected ({size}, {size})")
        for name in ("constants", "assumed", "error_models", "memory_errors"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def values(self) -> dict[str, float]:
        """Name -> factor, for `with_constants`."""
        return {name: constant.value for name, constant in self.constants.items()}
