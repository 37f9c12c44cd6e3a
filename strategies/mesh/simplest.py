"""The simplest of the plans that are nearly as good as the best: what is harder to run has to pay for it.

Wishes are granted in their order, the most important first: one is granted if a plan that also has all granted before it is good enough.
The error of the model is as likely up as down, whatever the plan, so the regrets that two plans are expected to cause differ by as much as
their predictions (in logarithms), and a limit on the score is one on the expected regret; the draws of
`costmodel.uncertainty.intervals.sampled_log_errors` say so exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.mesh.framework_rules import Span, Values
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from strategies.mesh.framework_rules import within
from strategies.mesh.search import search_part
from strategies.mesh.settings import POWERS, Bounds, MeshCandidate, MeshRestriction, MeshSettings

# Chunks per rank of the recipes of NeMo for H100 (scripts/performance/recommended_model_configs/model_configs_h100.csv: vp_size).
MOST_CHUNKS = 12
# Every framework with pipelines has the first, and every one that interleaves the second (`rules` of configs/frameworks).
COMMON_SCHEDULES = ("1f1b", "interleaved")
_NONE = Span(1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Something that makes a plan simpler to run.

    Attributes
    ----------
    name : str
        In the published JSON.
    setting : str
        Of a plan; ``equal_chunks``, ``whole_stages``: as `MeshRestriction` has them. ``power_of_two_stages``: of ``pp``.
    wanted : Span, names or bool
        Its values.
    """

    name: str
    setting: str
    wanted: Values = True

    def narrowed(self, restriction: MeshRestriction) -> MeshRestriction | None:
        """The plans of a restriction that have it; None where the user wants another thing."""
        if self.setting == "equal_chunks":
            return replace(restriction, equal_chunks=True)
        if self.setting == "whole_stages":
            return None if "recompute_blocks" in restriction.degrees else replace(restriction, whole_stages=True)
        if self.setting == "power_of_two_stages":
            powers = tuple(pp for pp in POWERS if restriction.degrees.get("pp", Bounds()).allows(pp))
            return (
                replace(restriction, degrees={**restriction.degrees, "pp": Bounds(values=powers)}) if powers else None
            )
        return within(restriction, self.setting, self.wanted)

    def is_granted(self, model: MeshModel, plan: MeshPlan) -> bool:
        """Whether a plan has it."""
        chunks = plan.pp * plan.vpp
        if self.setting == "equal_chunks":
            return model.num_blocks % chunks == 0
        if self.setting == "whole_stages":
            return plan.recompute != "full" or plan.recompute_blocks == max(model.blocks_of(chunks))
        if self.setting == "power_of_two_stages":
            return plan.pp in POWERS
        value = getattr(plan, self.setting)
        return value == self.wanted if isinstance(self.wanted, bool) else value in self.wanted


# How far copies of activations to the host hide is an assumption without a source (`offload_overlap`).
REQUIRED = Wish(name="activations_on_device", setting="offload_activations", wanted=False)
# Then what needs the host at all, then pipelines that few people have run, then dimensions, then what saves memory.
WISHES: tuple[Wish, ...] = (
    REQUIRED,
    Wish(name="optimizer_on_device", setting="offload_optimizer", wanted=False),
    Wish(name="common_schedule", setting="schedule", wanted=COMMON_SCHEDULES),
    Wish(name="few_chunks", setting="vpp", wanted=Span(1, MOST_CHUNKS)),
    Wish(name="equal_stages", setting="equal_chunks"),
    Wish(name="power_of_two_stages", setting="power_of_two_stages"),
    Wish(name="no_context_parallelism", setting="cp", wanted=_NONE),
    Wish(name="no_pipeline", setting="pp", wanted=_NONE),
    Wish(name="no_tensor_parallelism", setting="tp", wanted=_NONE),
    Wish(name="no_expert_tensor_parallelism", setting="etp", wanted=_NONE),
    Wish(name="no_expert_parallelism", setting="ep", wanted=_NONE),
    Wish(name="one_chunk", setting="vpp", wanted=_NONE),
    Wish(name="whole_stages_recomputed", setting="whole_stages"),
)

# What a plan to run may have that the best plan lacks.
FORGONE: tuple[str, ...] = (*(wish.name for wish in WISHES), "uniform")


def simplest(
    model: MeshModel,
    settings: MeshSettings,
    best: MeshCandidate,
    within_share: float,
    known: Sequence[MeshCandidate] = (),
) -> tuple[MeshCandidate, float]:
    """The simplest plan that is nearly as good as the best, and the score that this is measured against.

    What rests on an assumption without a source (`REQUIRED`) is chosen only where nothing else fits, or the user wants it; the best of the
    other plans is what the rest are measured against.

    Parameters
    ----------
    model : MeshModel
    settings : MeshSettings
        Of the search that found the best.
    best : MeshCandidate
    within_share : float
        How much more the plan may score than the best.
    known : sequence of MeshCandidate
        Plans of that search, whatever their degrees: people see them in the list.
    """
    chosen, restriction, left = best, settings.restriction, list(known)
    cutoff = float("inf")
    for wish in WISHES:
        if wish is not REQUIRED and cutoff == float("inf"):
            cutoff = chosen.score * (1.0 + within_share)
        narrower = wish.narrowed(restriction)
        if narrower is None:
            continue
        having = [candidate for candidate in left if wish.is_granted(model, candidate.plan)]
        if not wish.is_granted(model, chosen.plan):
            # People look among powers of two. To show that no other plan is nearly as good took half as long again as the proof
            # (DeepSeek-V3 on 2,048 GPUs).
            part = narrower if wish is REQUIRED else narrower.powers_of_two(any_vpp=True)
            asked = replace(settings, restriction=part, top=1, distinct=None, known=(), cutoff=cutoff)
            found = [*search_part(model, asked).candidates, *(c for c in having if c.score <= cutoff)]
            if not found:
                continue
            chosen = min(found, key=lambda candidate: candidate.score)
        restriction, left = narrower, having
    return chosen, cutoff / (1.0 + within_share)
