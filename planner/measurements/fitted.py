"""Which constants of a prediction were fitted to measurements, by what their sources say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from functools import cache

from costmodel.framework import Framework
from costmodel.hardware.cluster import Cluster, Level
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY, Efficiency
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.network.layers import ATTENTION

_SAYS_SO = re.compile(r"\bfit(ted)?\b|maximum achievable matmul")


def fitted_in(source: str, names: Iterable[str]) -> frozenset[str]:
    """Names of constants whose clause of a source says "fit".

    A source is a list of clauses, "a, b: fit to X; c: assumption". A clause without names is about all the names given.

    >>> sorted(fitted_in("a and b: fit to the GEMMs of X. c: assumption", ["a", "b", "c"]))
    ['a', 'b']
    >>> sorted(fitted_in("fit to X", ["a"])), sorted(fitted_in("datasheet of X", ["a"]))
    (['a'], [])
    """
    known = list(names)
    found: set[str] = set()
    for clause in re.split(r";|\.\s", source):
        if _SAYS_SO.search(clause):
            named = [name for name in known if re.search(rf"\b{name}\b", clause)]
            found.update(named or known)
    return frozenset(found)


# Constants of the kernels of some layers only (costmodel/kernels/roofline.py), by the families that have them.
_CONVOLUTIONS = frozenset(("convolution", "deconvolution"))
_ONLY = {
    **dict.fromkeys(
        ("attention_fraction", "attention_backward_fraction", "portable_attention_fraction"), ATTENTION | {"attention"}
    ),
    **dict.fromkeys(("winograd_fraction", "winograd_side", "fft_fraction", "strided_gradient_fraction"), _CONVOLUTIONS),
    **dict.fromkeys(("window_bytes", "window_start", "weights_depth"), _CONVOLUTIONS),
    **dict.fromkeys(("thin_tile", "thin_depth", "thin_fill", "thin_split"), _CONVOLUTIONS | {"lstm"}),
    "expert_launches": frozenset(("moe",)),
}
# Of training steps, not of kernels timed alone.
_OF_STEPS = frozenset(("step_fraction", "elementwise_fraction"))


def fitted_of(
    device: Device,
    assumptions: MeshAssumptions | None = None,
    framework: Framework | None = None,
    *,
    kinds: frozenset[str] | None = None,
    alone: bool = False,
) -> frozenset[str]:
    """Fitted constants that a prediction can use: common ones once, a device's or a framework's own with its name before them.

    Parameters
    ----------
    device : Device
    assumptions : MeshAssumptions, optional
    framework : Framework, optional
    kinds : frozenset of str, optional
        Families of the layers that are predicted: constants of others are not counted. None: nobody says.
    alone : bool
        Kernels are timed alone.

    Examples
    --------
    >>> from planner.files.loading import load_device
    >>> device = load_device("p100").device
    >>> product, step = fitted_of(device, kinds=frozenset(["linear"]), alone=True), fitted_of(device, kinds=frozenset(["linear"]))
    >>> "winograd_fraction" in product | step, sorted(step - product)
    (False, ['elementwise_fraction', 'step_fraction'])
    """
    found = {name for name in _of_device(device.name, device.efficiency) if _is_used(name, kinds, alone=alone)}
    if _SAYS_SO.search(device.best_source):
        found = found - {"matmul_fraction"} | {f"{device.name}: best"}
    for item in fields(assumptions) if assumptions is not None else ():
        if (framework is not None and item.name in framework.fitted) or not _is_used(item.name, kinds, alone=alone):
            continue
        if _SAYS_SO.search(str(item.metadata.get("source", ""))):
            found.add(item.name)
    if framework is not None:
        costs = {
            **framework.costs,
            **{name: value for own in framework.conditional.values() for name, value in own.items()},
        }
        # What only some devices do counts where it is done.
        done = {name for name in framework.fitted if getattr(assumptions, name, None) == costs[name]}
        found |= {f"{framework.name}: {name}" for name in done}
    return frozenset(found)


def _is_used(name: str, kinds: frozenset[str] | None, *, alone: bool) -> bool:
    """Whether a constant, with or without its device before it, can act on layers of these families."""
    bare = name.rsplit(": ", maxsplit=1)[-1]
    families = _ONLY.get(bare)
    return not (alone and bare in _OF_STEPS) and (kinds is None or families is None or bool(families & kinds))


def fitted_links(cluster: Cluster, ranks: int) -> frozenset[str]:
    """Fitted numbers of the links that so many ranks use, with the names of cluster and level before them.

    >>> from planner.files.loading import load_cluster
    >>> sorted(fitted_links(load_cluster("dgx-a100").cluster, 8)), len(fitted_links(load_cluster("dgx-a100").cluster, 16))
    (['dgx-a100 nvlink: efficiency', 'dgx-a100 nvlink: latency'], 3)
    """
    return _of_levels(cluster.name.removesuffix(" as measured"), cluster.levels, ranks)


@cache  # asked for every row
def _of_levels(name: str, levels: tuple[Level, ...], ranks: int) -> frozenset[str]:
    found: set[str] = set()
    inside = 1  # ranks that the levels so far join
    for level in levels:
        if ranks > inside:
            found |= {f"{name} {level.name}: {key}" for key in level.fitted}
        inside *= level.size or ranks
    return frozenset(found)


@cache  # asked for every row
def _of_device(name: str, efficiency: Efficiency) -> frozenset[str]:
    constants = [item.name for item in fields(Efficiency) if item.name != "source"]
    common = fitted_in(DEFAULT_EFFICIENCY.source, constants)
    own = [constant for constant in constants if getattr(efficiency, constant) != getattr(DEFAULT_EFFICIENCY, constant)]
    found = {constant for constant in common if constant not in own}
    if efficiency.source != DEFAULT_EFFICIENCY.source:
        found |= {f"{name}: {constant}" for constant in fitted_in(efficiency.source, own) if constant in own}
    return frozenset(found)
