"""Which option of the command line fixes which field of a mesh plan."""

from __future__ import annotations

__all__ = ["FIELD_OF_OPTION", "flag_of"]

# Option (as a parameter's name) -> field of costmodel.mesh.plan.MeshPlan, where they differ.
FIELD_OF_OPTION = {"zero": "zero_stage"}


def flag_of(field: str) -> str:
    """Option that fixes a field of MeshPlan.

    >>> flag_of("zero_stage"), flag_of("dp_shard"), flag_of("num_micro_batches"), flag_of("offload_optimizer")
    ('--zero', '--dp-shard', '--num-micro-batches', '--offload')
    """
    if field.startswith("offload_"):
        return "--offload"
    name = next((name for name, other in FIELD_OF_OPTION.items() if other == field), field)
    return f"--{name.replace('_', '-')}"
