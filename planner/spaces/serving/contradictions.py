"""Options that no legal serving plan obeys together: which of them exclude each other, and the rule that says so."""

from __future__ import annotations

import dataclasses

from costmodel.serving.plan import SERVING_RULES
from planner.question.fixed import bounds_text, flag_of
from planner.spaces.mesh.contradictions import allowed_values, broken_together, smallest_set, too_many_gpus
from planner.spaces.serving.space import ServingPlanSpace
from strategies.serving.space import ServingSettings, batches_of, outlines

__all__ = ["serving_contradiction"]

_SIZES = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096)


def serving_contradiction(space: ServingPlanSpace, settings: ServingSettings) -> str:
    """Say why no plan is legal: the fewest options that exclude all, and what they break.

    Parameters
    ----------
    space : ServingPlanSpace
    settings : ServingSettings
        Of a search whose space is empty.
    """
    flags = {flag_of(field): field for field in settings.degrees}

    def is_empty(chosen: frozenset[str]) -> bool:
        degrees = {field: settings.degrees[field] for flag, field in flags.items() if flag in chosen}
        return _is_empty(space, dataclasses.replace(settings, degrees=degrees))

    chosen = smallest_set(list(flags), is_empty)
    bounds = {flags[flag]: settings.degrees[flags[flag]] for flag in chosen}
    given = " ".join(f"{flag} {bounds_text(bounds[flags[flag]])}" for flag in chosen)
    several = len(chosen) > 1
    least = {field: min(allowed_values(b), default=1) for field, b in bounds.items()}
    fixed = {field: allowed_values(b) for field, b in bounds.items()}
    left = {"vpp": (1,), "dp": range(1, settings.max_workers + 1), "prefill_chunk": (0, *_SIZES)}
    left |= dict.fromkeys(("max_batch", "prefill_batch"), _SIZES)
    problems = too_many_gpus(least, settings.max_workers) or broken_together(
        SERVING_RULES, space.shape, fixed, settings.max_workers, left
    )
    docs = [f"{rule.doc} (rule {rule.name})" for rule in SERVING_RULES if set(rule.fields) & fixed.keys()]
    reason = "; ".join(problems) or "no value of the others obeys all of: " + "; ".join(docs)
    return (
        f"{given}{' exclude each other' if several else ''}: {reason}; no legal plan that serves '{space.resolved.setting.model}' on up to "
        f"{settings.max_workers} GPUs has {'them' if several else 'it'}"
    )


def _is_empty(space: ServingPlanSpace, settings: ServingSettings) -> bool:
    outline = outlines(space.shape, space.model.workload.prompt_tokens, settings)
    pairs = zip(outline.plans.pp.tolist(), outline.plans.prefill_batch.tolist(), strict=True)
    return not any(len(batches_of(pp, least, settings)) for pp, least in pairs)
