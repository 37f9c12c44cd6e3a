"""The plans of an answer by what they are the best for: one line each, those that coincide together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.core.answer import Answer, RankedPlan, Role
from planner.core.blocks import Block, Facts, Heading
from planner.core.numbers import byte_text, counted
from planner.core.objectives import best_word, change_text, compared_words
from planner.report.tables import paid_text

_HEADING = "Roles"
# Roles with what they are called; the best plan's own word is that of the objective.
TITLES = {
    "fastest": "Fastest",
    "data_parallel": "Data parallelism",
    "data_parallel_all": "The same on all GPUs",
    "most_headroom": "Most headroom",
    "fewest_gpus": "Fewest GPUs",
    "usual_stages": "Usual stages",
    "published": "Published",
    "given": "Yours",
}
# What is said of the plan to run where it is for a role, too.
_SAME = {
    "fastest": "the {best}",
    "data_parallel": "{data_parallelism}",
    "data_parallel_all": "{data_parallelism} on all GPUs",
    "usual_stages": "with a usual number of stages",
    "published": "{published}",
    "given": "what you run",
}
# What no plan was found to do that is nearly as good as the one to run.
_NONE_FOUND = {"most_headroom": "leaves clearly{note} more memory", "fewest_gpus": "takes fewer GPUs"}
# What is said where no plan is for a role.
_NONE = {
    "data_parallel": "no plan with {data_parallelism} fits",
    "data_parallel_all": "{why_not}",
    "published": "the plan of {source} {why_not}",
}
# What a plan does that forgoes one of `FORGONE` of the module `simplest` of its space (strategies/mesh, layerwise, serving).
FORGONE_WORDS = {
    "activations_on_device": "keeps activations on the host, and how far their copies hide is an assumption (offload_overlap)",
    "optimizer_on_device": "keeps the optimizer's state on the host",
    "common_schedule": "needs a schedule that few frameworks have",
    "few_chunks": "has very many chunks per rank",
    "equal_stages": "has chunks of unequal length",
    "power_of_two_stages": "has a number of stages that is no power of two",
    "no_context_parallelism": "needs context parallelism",
    "no_pipeline": "needs a pipeline",
    "no_tensor_parallelism": "needs tensor parallelism",
    "no_expert_tensor_parallelism": "splits experts over ranks",
    "no_expert_parallelism": "needs expert parallelism",
    "one_chunk": "interleaves",
    "whole_stages_recomputed": "recomputes a part of each chunk",
    "one_pool": "reads prompts on GPUs of their own",
    "no_drafts": "drafts tokens",
    "power_of_two_degrees": "has a degree that is no power of two",
    "whole_nodes": "has replicas that do not fill nodes",
    "usual_sequences": "holds an unusual number of sequences",
    "uniform": "has stages of its own, or splits inside the blocks",
    "one_device": "needs several GPUs",
    "no_hybrid_parallelism": "splits fully connected layers by channels",
    "no_model_parallelism": "splits all layers by channels",
    "no_row_splits": "splits images by rows",
    "no_mixed_splits": "mixes kinds of splits that seldom go together",
    "one_dimension_per_layer": "splits single layers along several dimensions",
}


def roles_of(answer: Answer) -> list[tuple[list[Role], RankedPlan | None]]:
    """Roles with their plans; those of one plan together, those of the plan to run first; nothing in spaces that have none."""
    if not answer.space.names_roles or answer.setting.gpus == 1:
        return []
    every = [Role(name="fastest", plan=answer.fastest or answer.best)]
    plain = answer.baselines.get("data_parallel")
    if "data_parallel" in answer.baselines:
        every.append(Role(name="data_parallel", plan=plain))
    if "data_parallel_all" in answer.baselines and plain is not None and plain.workers != answer.setting.gpus:
        every.append(Role(name="data_parallel_all", plan=answer.baselines["data_parallel_all"]))
    found: list[tuple[list[Role], RankedPlan | None]] = [([], answer.best)]
    for role in (*every, *answer.roles):
        same = next((roles for roles, plan in found if plan and role.plan and plan.plan == role.plan.plan), None)
        if same is None:
            found.append(([role], role.plan))
        else:
            same.append(role)
    return [(roles, plan) for roles, plan in found if roles or (plan is answer.best and answer.fastest is not None)]


def numbered(answer: Answer) -> dict[int, RankedPlan]:
    """Plans by their numbers: the rows of the table as it is shown, then those that it leaves out."""
    shown = answer.space.report.shown(answer)
    return dict(enumerate([*shown, *(plan for plan in answer.tabled if plan not in shown)], start=1))


def roles_blocks(answer: Answer) -> list[Block]:
    """A line for every plan that has a role."""
    lines = tuple(role_line(answer, roles, plan) for roles, plan in roles_of(answer))
    return [Heading(_HEADING), Facts(lines)] if lines else []


def is_roles(heading: Heading) -> bool:
    """Whether roles stand below a heading."""
    return heading.text == _HEADING


def simplest_words(answer: Answer) -> str:
    """What the plan to run is where it is not the fastest one."""
    on_device = " that keeps activations on the device" if "activations_on_device" in answer.forgone else ""
    return f"the simplest within 1 % of the {best_word(answer.objective).lower()}{on_device}"


def role_line(answer: Answer, roles: Sequence[Role], plan: RankedPlan | None) -> tuple[str, str]:
    """What a plan is called, and why it is named."""
    best, plain = best_word(answer.objective), answer.space.report.data_parallelism
    if plan is not None and plan.plan == answer.best.plan:
        words = {"best": best.lower(), "data_parallelism": plain}
        named = [role for role in roles if role.name in _SAME]
        said = [_SAME[role.name].format(published=_published(role), **words) for role in named]
        if answer.fastest is not None:
            said.insert(0, simplest_words(answer))
        notes = {role.name: f" ({role.note})" if role.note else "" for role in roles}
        if plan.workers == 1:
            notes.pop("fewest_gpus", None)
        none = [text.format(note=notes[name]) for name, text in _NONE_FOUND.items() if name in notes]
        said += [f"within 5 % no plan was found that {' or '.join(none)}"] if none else []
        return f"Plan {answer.best.rank} is", "; ".join(said)
    title = best if roles[0].name == "fastest" else TITLES[roles[0].name]
    if plan is None:
        setting = answer.setting
        too_few = f"a batch of {setting.global_batch} has no {setting.gpus} parts"
        why_not = roles[0].why_not or (too_few if setting.gpus > setting.global_batch else "does not fit")
        return title, _NONE[roles[0].name].format(source=roles[0].source, why_not=why_not, data_parallelism=plain)
    listed = next((f"plan {n}" for n, p in numbered(answer).items() if p.plan == plan.plan), plan.summary)
    why = _why(answer, roles[0], plan)
    # One reason is enough: the others show in the figures.
    also = "".join(f"; also {TITLES[role.name][0].lower()}{TITLES[role.name][1:]}" for role in roles[1:])
    ends = "; --fastest names it first" if roles[0].name == "fastest" else ""
    # The reasons of two roles say it.
    other = plan.workers != answer.best.workers and roles[0].name not in ("fewest_gpus", "data_parallel_all")
    on = f", on {_on_others(answer, roles[0], plan)}" if other else ""
    gap = compared_words(plan.score / answer.best.score, answer.objective)
    return title, f"{gap} ({paid_text(plan, answer.objective, answer.best)}{on}){why}: {listed}{also}{ends}"


def _on_others(answer: Answer, role: Role, plan: RankedPlan) -> str:
    """How many GPUs a plan is on, why these, and what that is of the GPU-hours of the one to run."""
    hours = plan.workers * plan.step_time_s / (answer.best.workers * answer.best.step_time_s)
    batch = answer.setting.global_batch
    is_full = role.name == "data_parallel" and plan.workers == batch < answer.setting.gpus
    why = f", since the batch has {batch:,} samples" if is_full else ""
    return f"{counted(plan.workers, 'GPU')}{why}, {change_text(hours, 'gpu_hours')} GPU-hours"


def _published(role: Role) -> str:
    return f"adapted from {role.source} ({role.note})" if role.note else f"as published ({role.source})"


def forgone_words(answer: Answer) -> list[str]:
    """What the fastest plan does that the one to run does not; chunks of unequal length are stages of its own."""
    said = [name for name in answer.forgone if name != "uniform" or "equal_stages" not in answer.forgone]
    return [FORGONE_WORDS[name] for name in said]


def _why(answer: Answer, role: Role, plan: RankedPlan) -> str:
    """What a plan has that the one to run lacks."""
    best = answer.best
    fewer = f", {best.workers - plan.workers} fewer" if plan.workers < best.workers else ""
    on = f", on {counted(plan.workers, 'GPU')}{fewer}"
    words: dict[str, Callable[[], str]] = {
        "fastest": lambda: f", but {', '.join(forgone_words(answer))}",
        "data_parallel": lambda: "",
        "most_headroom": lambda: (
            f", and needs {byte_text(best.memory_bytes_per_gpu - plan.memory_bytes_per_gpu)} less memory"
        ),
        "fewest_gpus": lambda: on,
        "data_parallel_all": lambda: on,
        "usual_stages": lambda: (
            f", with {counted(plan.plan.pp, 'stage')}; {best.plan.pp} neither divides the blocks nor is a power of two"
        ),
        "given": lambda: "" if plan.fits else f", and does not fit: there are {byte_text(plan.memory_capacity_bytes)}",
        "published": lambda: f", {_published(role)}",
    }
    return words[role.name]()
