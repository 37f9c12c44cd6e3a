"""Where every setting of a plan went: written, without effect, left to the user's own code, or impossible in the target."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from costmodel.mesh.plan import MeshPlan

# Beside the fields of the plan: what the question says of the run, and how ranks lie on nodes.
_OF_RUN = ("precision", "optimizer", "seq", "doc_lengths", "lora_rank", "placement")
_OF_SERVER = (
    "precision",
    "kv_precision",
    "prompt_tokens",
    "output_tokens",
    "prefix_cached",
    "memory_utilisation",
    "stages",
    "placement",
)
MESH_SETTINGS: tuple[str, ...] = (*(item.name for item in fields(MeshPlan)), *_OF_RUN)
# Of a plan with a split per layer: the degrees of `costmodel.layerwise.plan.Split`, then those of the plan and of the run.
LAYER_SETTINGS: tuple[str, ...] = (
    "workers",
    "batch",
    "out_channels",
    "in_channels",
    "height",
    "stages",
    "num_micro_batches",
    "collective",
    "precision",
    "optimizer",
    "placement",
)


def serving_settings() -> tuple[str, ...]:
    """Of a plan for serving."""
    from costmodel.serving.plan import ServingPlan  # most plans are for training

    return (*(item.name for item in fields(ServingPlan)), *_OF_SERVER)


@dataclass(slots=True, kw_only=True)
class Account:
    """Filled by an exporter while it writes; a setting stands in one of the three.

    Attributes
    ----------
    written : dict
        Setting -> where it stands in the files.
    cannot : dict
        Setting -> why the target cannot express it, and what is written instead. ``--strict`` refuses these.
    by_hand : dict
        Setting -> what the user's own code or file must say, because no file of the target does.

    Examples
    --------
    >>> account = Account()
    >>> account.impossible("pp", "one stage only")
    >>> account.fill({"tp": "--tensor-model-parallel-size", "pp": "-: no pipelines", "cp": "--cp"}, ["tp", "pp"])
    >>> account.written
    {'tp': '--tensor-model-parallel-size'}
    """

    written: dict[str, str] = field(default_factory=dict)
    cannot: dict[str, str] = field(default_factory=dict)
    by_hand: dict[str, str] = field(default_factory=dict)

    def fill(self, fields: Mapping[str, str], settings: Collection[str]) -> None:
        """Say that settings are written where the exporter's FIELDS say, but for those that something else was said of."""
        for setting, where in fields.items():
            if setting in settings and setting not in {*self.written, *self.cannot, *self.by_hand}:
                assert not where.startswith(("-: ", "by hand: ")), f"the exporter forgot {setting}"
                self.written[setting] = where

    def impossible(self, setting: str, why: str) -> None:
        """Say that the target cannot express a setting."""
        self.cannot[setting] = why

    def left_to_user(self, setting: str, what: str) -> None:
        """Say what the user's own code must set, unless the target cannot have it."""
        if setting not in self.cannot:
            self.by_hand[setting] = what


def _effects(plan: MeshPlan) -> Mapping[str, bool]:
    """Field -> whether it changes anything beside the others; one that is not here does where it is not neutral."""
    is_piped, sizes = plan.pp > 1, (plan.cp, plan.pp, plan.dp)
    return {
        "sequence_parallel": plan.tp > 1 and plan.sequence_parallel,
        "cp_kind": plan.cp > 1,
        "schedule": is_piped,
        "vpp": plan.vpp > 1,
        "zero_stage": plan.zero_stage > 0,
        "order": sum(size > 1 for size in sizes) > 1,
        "stage_blocks": is_piped,  # the layout that was costed, its own or the uniform one
        "stage_recompute": bool(plan.stage_recompute),
        "recompute_blocks": plan.recompute == "full",
    }


def settings_in_effect(plan: MeshPlan) -> list[str]:
    """Fields of a plan that say something, so that they must be accounted for.

    >>> settings_in_effect(MeshPlan(dp_shard=8, zero_stage=3, num_micro_batches=2))
    ['dp_shard', 'zero_stage', 'num_micro_batches']
    """
    neutral, effects = MeshPlan(), _effects(plan)
    result: list[str] = []
    for item in fields(plan):
        value: Any = getattr(plan, item.name)
        if effects.get(item.name, value != getattr(neutral, item.name)):
            result.append(item.name)
    return result
