"""What to type to run the plan of an answer: the commands that export it, and how the target starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.core.answer import Answer, Estimate, RankedPlan
from planner.core.blocks import Commands
from planner.core.errors import PlannerError
from planner.core.numbers import joined_words
from planner.core.request import SPACES, imported
from planner.core.typed import asked_again, is_typed
from planner.exporters import EXPORTERS, exporter_of, targets_that_take
from planner.exporters.account import MESH_SETTINGS, Account
from planner.exporters.export import AnyJob, make_export, starts, written
from planner.exporters.plans import Planned
from planner.files.resources import is_plan_file

if TYPE_CHECKING:
    from planner.report.first_screen import Launch

_PLAN, _FOLDER = "plan.yaml", "run"


def launch_of(answer: Answer | Estimate) -> Launch:
    """Say how to start the plan of an answer, with the target that expresses most of it.

    Where the answer is about a framework, only targets for it are asked. Nothing is written.

    Examples
    --------
    >>> import planner
    >>> launch = launch_of(planner.estimate("llama3-8b", gpus=16, batch=32, tp=8, framework="megatron-lm").raw)
    >>> launch.target, launch.commands[-1]
    ('megatron', 'sbatch train.slurm')
    """
    from planner.report.first_screen import Launch  # of pages alone

    found = _exports(answer, answer.best if isinstance(answer, Answer) else answer.ranked)
    file, first = _plan_file(answer)
    if not found:
        return Launch(commands=(*first, f"planner explain --plan {shlex.quote(file)}"))
    target, job, _ = found[0]
    export, exporter = make_export(job, target), exporter_of(target)
    ways = starts(job.nodes, export.files, has_router=job.has_router)
    written = f"planner export {shlex.quote(file)} --to {export.target} --output-dir {_FOLDER}"
    script = next(name for name in export.files if name.endswith(".sh"))
    return Launch(
        target=export.target,
        title=exporter.TITLE,
        cannot=tuple(export.account.cannot.items()),
        commands=(*first, written, f"cd {_FOLDER}", ways[-1][1]),
        otherwise=ways[0],
        script=(script, export.files[script]),
    )


def following(answer: Answer, ranked: RankedPlan | None = None) -> Commands | str:
    """What to type after a search: the commands that keep a plan, and write what starts it.

    Parameters
    ----------
    answer : Answer
    ranked : RankedPlan, optional
        Another of its plans than the one to run.

    Returns
    -------
    Commands or str
        "": the question was not typed.
    """
    if not is_typed(answer.setting.command_line):
        return ""
    file, first = _plan_file(answer)
    plan = shlex.quote(file)
    found = _exports(answer, ranked or answer.best)
    whole = [target for target, _, account in found if not account.cannot]
    surer = answer.space.report.surer_options(answer)
    sure = [f"{asked_again(answer.setting.command_line, surer)}  # 90 % sure"] if surer else []
    commands, note = [*sure, *first], ""
    if found:
        target, cannot = found[0][0], found[0][2].cannot
        commands.append(f"planner export {plan} --to {target} -o {_FOLDER}")
        words, options = answer.space.report.settings, exporter_of(target).FIELDS
        called = [f"{word}: {re.split('[,:;]', options[name])[0]}" for name, word in words.items() if name in options]
        note = f"{', '.join(called)}; " if called else ""
        if set(cannot) == {"collective"}:
            note += f"the communication library of {exporter_of(target).TITLE} picks the all-reduce algorithm"
        elif cannot:
            left = f"{target} leaves out {joined_words(list(cannot))}"
            if not answer.setting.framework and set(cannot) <= set(MESH_SETTINGS):  # what frameworks have rules about
                framework = exporter_of(target).FRAMEWORK
                left += f": --framework {framework} asks for plans that it runs"
                if first and not any(f"--{name}" in answer.setting.command_line for name in cannot):
                    commands[-2] += f" --framework {framework}"
            note += left
        elif whole[1:]:
            note += f"or --to {', '.join(whole[1:])}"
        return Commands(commands, note.removesuffix("; "))
    if answer.setting.framework:
        note = f"no target writes plans for {answer.setting.framework}; "
    elif SPACES[answer.space.name].job:
        frameworks = list(
            dict.fromkeys(exporter_of(target).FRAMEWORK for target in targets_that_take(answer.space.name))
        )
        others = f": --framework {frameworks[0]} (or {', '.join(frameworks[1:])}) asks for plans that it runs"
        note = f"no target writes this plan{others * (len(frameworks) > 1)}; "
    return Commands(commands, f"{note}'planner explain --plan {plan}' says where its time goes")


def targets_of(answer: Answer | Estimate, ranked: RankedPlan) -> list[str]:
    """Targets that write a plan, those that express most of it first."""
    return [target for target, _, _ in _exports(answer, ranked)]


def _exports(answer: Answer | Estimate, ranked: RankedPlan) -> list[tuple[str, AnyJob, Account]]:
    """Targets that write a plan, with its job and where the settings go, those that express most of it first.

    Of an answer about a framework only targets for it are asked.
    """
    framework, info = answer.setting.framework, SPACES[answer.space.name]
    found = []
    for target in EXPORTERS if info.job else ():
        exporter = exporter_of(target)
        if framework and framework != exporter.FRAMEWORK:
            continue
        planned = Planned(space=answer.space, ranked=ranked, path=Path(_PLAN), takes=exporter.TAKES)
        try:
            job, kind = imported(info.job)(planned)
            if kind in exporter.TAKES:
                found.append((target, job, written(job, target)[2]))
        except PlannerError:  # it does not run this plan
            continue
    return sorted(found, key=lambda each: len(each[2].cannot))


def _plan_file(answer: Answer | Estimate) -> tuple[str, Sequence[str]]:
    """The plan file, and the command that writes it, where there is none."""
    line = answer.setting.command_line
    if not is_typed(answer.setting.command_line):
        return _PLAN, (f'result.save("{_PLAN}")  # in Python',)
    # The plan that a search is given is one to compare with.
    is_search = isinstance(answer, Answer)
    named = ("--export",) if is_search else ("--export", "--plan", "-p")
    words = iter(shlex.split(line))
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in named:
            return value if equals else next(words, _PLAN), ()
        if not is_search and place == 2 and is_plan_file(word):  # planner explain plan.yaml
            return word, ()
    file = _PLAN if _PLAN not in shlex.split(line) else f"best-{_PLAN}"  # the plan of the question stays
    return file, (asked_again(line, {"--export": file}),)
