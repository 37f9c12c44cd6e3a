"""What to type to run the plan of an answer: the commands that export it, and how the target starts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from planner.core.answer import Answer, Estimate
from planner.core.errors import PlannerError
from planner.core.request import SPACES, imported
from planner.exporters import EXPORTERS, exporter_of
from planner.exporters.export import make_export, starts
from planner.exporters.plans import Planned
from planner.files.resources import is_plan_file
from planner.report.first_screen import Launch

_PLAN, _FOLDER = "plan.yaml", "run"
# Options of a command that say what is written, which another run need not write again; True: a value follows.
_WRITTEN = {
    "--html": True,
    "--plot": True,
    "--figure": True,
    "--trace": True,
    "--output": True,
    "-o": True,
    "--format": True,
    "-f": True,
    "--width": True,
    "--json": False,
    "--static": False,
    "--quiet": False,
    "-q": False,
    "--verbose": False,
    "-v": False,
}


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
    ranked = answer.best if isinstance(answer, Answer) else answer.ranked
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
                found.append((exporter, make_export(job, target), job.nodes))
        except PlannerError:  # it does not run this plan
            continue
    file, first = _plan_file(answer)
    if not found:
        return Launch(commands=(*first, f"planner explain --plan {shlex.quote(file)}"))
    exporter, export, nodes = min(found, key=lambda each: len(each[1].account.cannot))
    ways = starts(nodes, export.files)
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


def _plan_file(answer: Answer | Estimate) -> tuple[str, Sequence[str]]:
    """The plan file, and the command that writes it, where there is none."""
    line = answer.setting.command_line
    if not line:
        return _PLAN, (f'result.save("{_PLAN}")  # in Python',)
    # The plan that a search is given is one to compare with.
    is_search = isinstance(answer, Answer)
    named = ("--export",) if is_search else ("--export", "--plan", "-p")
    words = iter(shlex.split(line))
    kept: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name in named:
            return value if equals else next(words, _PLAN), ()
        if not is_search and len(kept) == 2 and is_plan_file(word):  # planner explain plan.yaml
            return word, ()
        if name not in _WRITTEN:
            kept.append(word)
        elif _WRITTEN[name] and not equals:
            next(words, None)
    return _PLAN, (f"{shlex.join(kept)} --export {_PLAN}",)
