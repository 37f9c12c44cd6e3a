"""Options of questions about several kinds of devices: which can be asked, what may be fixed of a plan, and what that leaves."""

from __future__ import annotations

import dataclasses

from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.plan import divisors
from costmodel.mesh.plan import RECOMPUTE
from costmodel.mixed.plan import MIXED_ORDERS
from planner.core.errors import UsageError
from planner.core.request import Request
from planner.question.choose import Asked
from planner.question.fixed import fixed_by, flag_of, given_text
from strategies.mesh.settings import Bounds, MeshRestriction
from strategies.mixed.settings import MixedSettings

# Micro-batches up to this may be any divisor of the batch, beside the powers of two; larger ones where they are asked for.
_MOST_SAMPLES = 16
_POWERS = tuple(1 << n for n in range(31))
# Degrees that plans over several kinds of devices have one value of, and what they do instead.
_ALWAYS_ONE = {
    "cp": "they have no context parallelism",
    "ep": "they split experts like other matrices, by tp",
    "vpp": "their stages have one chunk (1f1b)",
}
_ABSENT = {
    "etp": "they split experts by tp, where their widths allow",
    "dp_replicate": "--dp are the replicas of their pipelines, and --zero says whether they share optimizer state",
    "dp_shard": "--dp are the replicas of their pipelines, and --zero says whether they share optimizer state",
    "cp_kind": "they have no context parallelism",
}


def check_mixed(asked: Asked, cluster: Cluster) -> None:
    """Refuse what plans over several kinds of devices do not know.

    Parameters
    ----------
    asked : Asked
    cluster : Cluster
        With several groups.

    Raises
    ------
    UsageError
        Every option that cannot be used, or a network that cannot be cut into stages.
    """
    request = asked.request
    of_layers = asked.of_layers + (["--diverse"] if request.diverse else [])
    kinds = ", ".join(dict.fromkeys(group.device.name for group in cluster.groups))
    where = f"cluster '{cluster.name}' has several groups of devices ({kinds})"
    if request.mode != "training":
        raise UsageError(f"--mode {request.mode}: {where}, which are planned together for training only")
    if request.space == "layers" or of_layers:
        option = of_layers[0] if of_layers else "a split per layer (--space layers)"
        raise UsageError(f"{option}: {where}; plans with a split per layer need devices of one kind")
    if not asked.has_blocks:
        raise UsageError(
            f"network '{asked.graph.name}' has no repeated blocks with attention or experts to divide into stages, and {where}; "
            "name a cluster of one kind of device"
        )
    refused = _outside_the_space(request) if asked.of_mesh or request.micro_batches is not None else []
    if request.space == "mesh":
        refused.append(f"--space mesh: {where}; a mesh has one kind of device")
    if request.seed:
        refused.append(
            f"--seed {request.seed}: nothing is random in the search over several groups of devices; leave it out"
        )
    if refused:
        raise UsageError("\n".join(dict.fromkeys(refused)))


def _outside_the_space(request: Request) -> list[str]:
    fixed = fixed_by(request)
    wrong: dict[str, str] = {}
    for field, bounds in fixed.degrees.items():
        if field in _ABSENT or (field in _ALWAYS_ONE and not bounds.allows(1)):
            wrong[field] = _ABSENT.get(field) or _ALWAYS_ONE[field]
        elif field == "zero_stage" and not _zero_stages(fixed):
            wrong[field] = (
                "their replicas share nothing (0) or optimizer state (1), and --tp and --pp divide the weights"
            )
    for field, names in fixed.names.items():
        if field in _ABSENT:
            wrong[field] = _ABSENT[field]
        elif field == "schedule" and "1f1b" not in names:
            wrong[field] = "their pipelines run 1f1b"
        elif field == "order" and not set(names) & set(MIXED_ORDERS):
            wrong[field] = f"their ranks are in the order {' or '.join(MIXED_ORDERS)}"
    offloads = [field for field, on in fixed.flags.items() if on and field.startswith("offload_")]
    wrong |= dict.fromkeys(offloads, "they keep everything on the devices")
    texts = {given_text(fixed, flag_of(field)): reason for field, reason in wrong.items()}
    return [
        f"{text}: no plan over several groups of devices has that; {reason}. Leave it out, or name a cluster of one kind of device: its "
        "plans may have it"
        for text, reason in texts.items()
    ]


def _zero_stages(fixed: MeshRestriction) -> tuple[int, ...]:
    return tuple(stage for stage in (0, 1) if fixed.degrees.get("zero_stage", Bounds()).allows(stage))


def with_fixed(settings: MixedSettings, fixed: MeshRestriction, global_batch: int) -> MixedSettings:
    """Settings of the part of the space that obeys what is fixed.

    >>> fixed = MeshRestriction(degrees={"pp": Bounds(values=(4,)), "micro_batch": Bounds(low=3, high=12)})
    >>> found = with_fixed(MixedSettings(), fixed, 36)
    >>> found.stages.values, found.micro_batches
    ((4,), (3, 4, 6, 8, 9, 12))
    """
    degrees, names = fixed.degrees, fixed.names
    cut, zeros = fixed.flags.get("sequence_parallel"), _zero_stages(fixed)
    return dataclasses.replace(
        settings,
        micro_batches=_micro_batches(degrees.get("micro_batch"), global_batch),
        tp=degrees.get("tp", Bounds()),
        stages=degrees.get("pp", Bounds()),
        replicas=degrees.get("dp", Bounds()),
        num_micro_batches=degrees.get("num_micro_batches", Bounds()),
        zero_stages=zeros,
        orders=tuple(order for order in MIXED_ORDERS if order in names.get("order", MIXED_ORDERS)),
        sequence_parallel=cut is not False,
        recompute=names.get("recompute", RECOMPUTE),
        recompute_blocks=degrees.get("recompute_blocks", Bounds()),
        must_cut=cut is True,
        must_share=0 not in zeros,
    )


def _micro_batches(bounds: Bounds | None, global_batch: int) -> tuple[int, ...]:
    """Samples that a micro-batch may have: those that are given, else powers of two and divisors of the batch."""
    if bounds is not None and bounds.values:
        return bounds.values
    usual = {*MixedSettings().micro_batches, *(n for n in divisors(global_batch) if n <= _MOST_SAMPLES)}
    if bounds is None:
        return tuple(sorted(usual))
    return tuple(sorted(n for n in {*usual, *_POWERS, *divisors(global_batch)} if bounds.allows(n)))
