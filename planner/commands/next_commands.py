"""What to type after an answer: commands that can be pasted, where a command line asked."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from costmodel.failures.rates import SECONDS_PER_DAY
from costmodel.tolerances import EQUAL
from planner.core.blocks import Commands
from planner.core.typed import asked_again

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from planner.api.readers import Option
    from planner.comparison.why_not import WhyNot
    from planner.placement.question import PlaceAnswer
    from planner.sizing.fleet import Fleets
    from planner.sizing.search import Sized, Trial

_PLAN, _PLACEMENT = "plan.yaml", "placement.yaml"


def without(options: Mapping[str, Option], *kept: str) -> tuple[dict[str, None], set[str]]:
    """Options as `planner.core.typed.asked_again` leaves them out: those with a value, and switches; ``kept`` by keyword stay.

    >>> from planner.api.readers import Option
    >>> valued, switches = without({"days": Option("--days", "X", ""), "fast": Option("--fast / --no-fast", None, "")})
    >>> valued, sorted(switches)
    ({'--days': None}, ['--fast', '--no-fast'])
    """
    valued: dict[str, None] = {}
    switches: set[str] = set()
    for name, option in options.items():
        flags = [] if name in kept else option.flags.replace("/", " ").split()
        if option.metavar is None:
            switches.update(flags)
        else:
            valued.update(dict.fromkeys(flags))
    return valued, switches


def _kept(line: str, exported: Path | None, targets: list[str]) -> list[str]:
    """Commands that write the plan of a question to a file, and what comes of that."""
    file = shlex.quote(str(exported or _PLAN))
    first = [] if exported else [asked_again(line, {"--export": _PLAN})]
    then = f"planner export {file} --to {targets[0]} -o run" if targets else f"planner explain --plan {file}"
    return [*first, then]


def after_size(sized: Sized, line: str, exported: Path | None, own: Mapping[str, Option]) -> Commands:
    """After ``planner size`` of a training: a surer number of GPUs, and the plan of the fewest; where none meets the goal, one that is met.

    Parameters
    ----------
    sized : Sized
    line : str
        The command that was typed.
    exported : Path or None
        Where the plan is already.
    own : mapping of str to Option
        Options that only ``planner size`` has.
    """
    from planner.exporters.launch import targets_of
    from planner.sizing.run import estimate_of

    best, surer = sized.best("least_gpus"), sized.best("least_gpus_90")
    if best is None:
        return Commands([] if sized.nearest is None else [_goal_that_is_met(sized.nearest[1], line)], _OTHERWISE)
    found = estimate_of(sized, best[1])
    commands = _kept(line, exported, [] if found is None else targets_of(found, found.ranked))
    if surer is not None and surer[1] != best[1]:
        valued, switches = without(own)
        where = {"--nodes": None, "-c": None, "--cluster": surer[1].facts.name, "--gpus": str(surer[1].gpus)}
        again = asked_again(line, {**valued, **where}, command="optimize", switches=switches)
        commands.insert(0, f"{again}  # 90 % sure")
    return Commands(commands)


_OTHERWISE = "another --cluster or more --max-gpus may do, too"


def _goal_that_is_met(trial: Trial, line: str) -> str:
    """The question with a deadline and a budget that the nearest miss keeps, rounded up to two digits."""
    goal = trial.goal
    asked: dict[str, str | None] = {}
    if goal.deadline_s is not None and trial.time_s is not None and trial.lateness() > 1:
        asked["--days"] = _above(trial.time_s / SECONDS_PER_DAY)
    if goal.budget is not None and trial.money is not None and trial.excess() > 1:
        asked["--budget"] = _above(trial.money)
    return asked_again(line, asked)


def _above(value: float) -> str:
    """The next number of two digits.

    >>> _above(12.31), _above(1234567.0), _above(0.011)
    ('13', '1300000', '0.011')
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit * (1.0 - EQUAL)) * unit:.10g}"


def after_fleet(fleets: Fleets, line: str, exported: Path | None) -> Commands | str:
    """After ``planner size`` of a demand: a fleet that is 90 % sure, and the launch files of the plan; empty where nothing serves it."""
    from planner.exporters.launch import targets_of

    if not fleets.ranked:
        return ""
    best = fleets.ranked[0]
    commands = _kept(line, exported, targets_of(best.found, best.best))
    asked = best.space.report.surer_options(best.found)
    if not best.is_sure and asked:
        commands.insert(0, f"{asked_again(line, asked)}  # 90 % sure")
    return Commands(commands)


def after_why_not(answer: WhyNot, line: str, plans: Mapping[str, Option]) -> Commands | str:
    """After ``planner why-not``: the plan in mind where it runs, and the first plan.

    Parameters
    ----------
    answer : WhyNot
    line : str
        The command that was typed.
    plans : mapping of str to Option
        Options that fix a plan.
    """
    valued, switches = without(plans)
    words = shlex.split(line)
    is_file = any(word in ("--plan", "-p", "--from") or word.startswith("--plan=") for word in words)
    is_other = answer.first is not None and not answer.is_first
    if is_file:
        explained = asked_again(line, command="explain") + "  # where its time goes"
        beside = asked_again(line, command="optimize") + "  # the first plan beside it"
        commands = [explained] * (answer.plan is not None) + [beside] * is_other
    else:
        mine = asked_again(line, {"--export": _PLAN}, command="optimize") + "  # this plan"
        first = asked_again(line, {**valued, "--export": f"first-{_PLAN}"}, command="optimize", switches=switches)
        commands = [mine] * answer.is_good + [f"{first}  # the first plan"] * is_other
    return Commands(commands) if commands else ""


def after_place(answer: PlaceAnswer, line: str, exported: Path | None) -> Commands:
    """After ``planner place``: a longer or a wider search where that may help, and the file of the placement or its check."""
    request = answer.request
    network = {
        "--cluster": request.cluster,
        "--batch": str(request.batch) if request.batch > 1 else None,
        "--mode": request.mode if request.mode != "training" else None,
        "--calibration": request.calibration,
    }
    options = [] if request.cluster is None else [word for pair in network.items() if pair[1] for word in pair]
    check = shlex.join(["planner", "place", "check", str(request.workload), str(exported), *map(str, options)])
    commands = [check if exported else asked_again(line, {"--export": _PLACEMENT})]
    if answer.result.stopped == "time limit":
        limit = f"{2 * request.time_limit_s:g}s"
        commands.insert(0, f"{asked_again(line, {'--time-limit': limit})}  # searches for longer")
    elif answer.objective == "throughput" and request.method == "auto" and request.contiguity == "chain":
        again = asked_again(line, {"--export": None}, switches=("--contiguous",))
        commands.append(f"{again} --non-contiguous")
    return Commands(commands)
