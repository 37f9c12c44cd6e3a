"""What both kinds of plans share: the file that holds the plan, and the scripts that start a training with it."""

from __future__ import annotations

from collections.abc import Sequence

from planner.exporters.job import Job, LayerJob
from planner.exporters.shell import start_scripts

__all__ = ["PLAN", "scripts"]

PLAN = "plan.py"


def scripts(job: Job | LayerJob, header: Sequence[str]) -> dict[str, str]:
    """Scripts that start the user's program with the plan's folder among those it imports from."""
    settings = [
        'script="${SCRIPT:?set SCRIPT to your training script}"',
        'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"',
    ]
    return start_scripts(job, header, settings=settings, command=['"$script"'])
