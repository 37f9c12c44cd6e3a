"""What `planner why-not --json` prints."""

from __future__ import annotations

from typing import Literal

from planner.schema.answer import NoteEntry
from planner.schema.records import Amount, Number, Seconds, key, record, several

_ONE_PLAN = {
    "summary": key(str, "The plan in words."),
    "workers": key(int, "GPUs in use.", ge=1),
    "step_time_s": key(Seconds, "Time of one step; of serving, the time per token."),
    "memory_bytes_per_gpu": key(Amount, "Peak memory of the fullest GPU."),
    "memory_capacity_bytes": key(Amount, "Memory that it may be predicted to need."),
    "fits": bool,
}

OnePlan = record("OnePlan", "Figures of a plan.", **_ONE_PLAN)

LegalPlan = record(
    "LegalPlan",
    "The best plan under a change that makes the settings legal.",
    change=key(str, "The change, as an option."),
    **_ONE_PLAN,
)

PlanStep = record(
    "PlanStep",
    "One change on the way to the first plan, and the plan after it.",
    settings=key(list[str], "What is changed; several where none of them could change alone.", min_length=1),
    before=key(list[str], "Of each setting; empty where the text would be long."),
    after=list[str],
    change_s=key(Number, "Of `step_time_s`; these add up to the difference between `first` and `plan`."),
    change_bytes=key(Number, "Of `memory_bytes_per_gpu`; these add up, too."),
    **_ONE_PLAN,
)

WhyNotDocument = record(
    "WhyNotDocument",
    "Answer of `planner why-not --json`: why a plan is not the first.",
    schema_version=Literal[1],
    model=str,
    gpus=key(int, "Workers that there are.", ge=1),
    objective=key(str | None, "What plans are compared by; null without a plan."),
    legal=bool,
    broken=key(list[str], "Every rule that the plan breaks."),
    nearest_legal=key(
        several(LegalPlan), "Of an illegal plan: the nearest values of one setting; the best plan first."
    ),
    fits=key(bool, "Whether the plan is legal, fits and keeps the limits."),
    misfit=key(str | None, "Why no plan with these settings fits, and what would; null where one does."),
    filled_in=key(bool, "Whether a search chose what was left open: the best plan with these settings."),
    plan=key(OnePlan | None, "The plan; of an illegal one the first of `nearest_legal`; null where there is none."),
    first=key(OnePlan | None, "What a search with nothing fixed names first; null where nothing fits."),
    no_plan=key(str | None, "Why nothing fits."),
    is_first=key(bool, "Whether the plan is the first, or does the same."),
    relative_score=key(Number | None, "What plans are compared by, over that of the first plan; above 1 is worse."),
    better_plans=key(
        int | None, "Plans that fit and are better; at least so many where `better_plans_counted` is false.", ge=0
    ),
    better_plans_counted=key(bool, "Whether all of them were counted."),
    better_plans_of=key(str | None, "What counts as a plan."),
    steps=key(several(PlanStep), "From `plan` to `first`, one setting at a time."),
    why=key(list[str], "In sentences: what the first plan saves and pays."),
    verdict=key(str, "The answer in one sentence."),
    notes=key(several(NoteEntry), "What there is to say about the plan."),
    warnings=key(list[str], "What no longer holds of a plan file."),
)
