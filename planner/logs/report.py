"""The answer of ``planner check`` in every form: the verdict first, then memory, parts of the step, and what to look at."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.core.answer import assumption_text
from planner.core.blocks import Block, Column, Commands, Facts, Report, Sentence, Table
from planner.core.notes import Note, note_entry
from planner.core.numbers import byte_text, counted, duration_text, duration_unit, percent, significant
from planner.core.typed import asked_again, is_typed
from planner.logs.compare import Check
from planner.report.documents import RESULT_VERSION
from planner.report.uncertainty import interval_text

_SHOWN_ASSUMPTIONS = ("cluster", "device", "framework", "global batch", "sequence length", "precision", "optimizer")


def check_report(check: Check) -> Report:
    """Make the report."""
    return Report(
        blocks=lambda: _blocks(check),
        data=lambda: _document(check),
        records=lambda: [_record(check)],
    )


# -- for people -------------------------------------------------------------------------------------------------------------


def _blocks(check: Check) -> Sequence[Block]:
    taken = [a for a in check.estimate.assumptions if a.name in _SHOWN_ASSUMPTIONS]
    pairs = (
        ("Plan", check.estimate.ranked.summary),
        ("Log", _log_text(check)),
        *([("Memory", _memory_text(check))] if check.memory else []),
        ("Assumed", ", ".join(assumption_text(a, stated_only=True) for a in taken)),
        *next_facts(check.path, check.estimate.setting.command_line, check.notes),
    )
    return [
        Sentence(_verdict(check), strong=True),
        Facts(pairs),
        *([_parts_table(check)] if check.parts else []),
        *(Sentence(f"- {note}") for note in check.notes if getattr(note, "code", "") != _KEEPS),
    ]


# The note with the command that keeps a run, which is said as what to type next.
_KEEPS = "check_calibrate"


def next_facts(path: Path, line: str, notes: Sequence[str]) -> list[tuple[str, str]]:
    """What to type next: where the time of the plan goes, and what keeps the run; nothing where nobody typed."""
    if not is_typed(line):
        return []
    changes = dict.fromkeys(("--log-format", "--row", "--calibrate"))
    words = shlex.split(asked_again(line, changes, command="explain"))
    kept = [note.values["command"] for note in notes if isinstance(note, Note) and note.code == _KEEPS]
    explained = shlex.join(word for word in words if word != str(path))
    what = [
        f"{explained}  # where its time goes",
        *(f"{command}  # fits the cost model to your runs" for command in kept),
    ]
    return [("Next", Commands(what))]


def _verdict(check: Check) -> str:
    steps, ranked = check.steps, check.estimate.ranked
    unit = duration_unit(steps.median_s)
    measured = (
        f"Measured {duration_text(steps.median_s)} per step against {duration_text(ranked.step_time_s)} predicted"
    )
    off = f"the prediction is {difference_text(ranked.step_time_s, steps.median_s)}"
    span = interval_text((ranked.step_time_low_s, ranked.step_time_high_s), unit)
    if check.inside is None:
        return f"{measured}: {off}, and has no error bars."
    return f"{measured} (80 % interval {span}): {'inside' if check.inside else 'OUTSIDE'}; {off}."


def difference_text(predicted: float, measured: float, words: tuple[str, str] = ("long", "short")) -> str:
    """How far a prediction is off, in words.

    >>> difference_text(1.1, 1.0), difference_text(0.5, 1.0), difference_text(1.0, 1.0)
    ('10.0 % too long', '50.0 % too short', 'right')
    """
    share = predicted / measured - 1.0
    if abs(share) < 5e-4:
        return "right"
    return f"{percent(abs(share))} too {words[share < 0]}"


def _log_text(check: Check) -> str:
    steps, log = check.steps, check.log
    if log.whole_run:
        return f"{log.known.title}, mean of the whole run"
    unit = duration_unit(steps.median_s)
    each = f", each the mean of {steps.steps_per_line} steps" if steps.steps_per_line > 1 else ""
    what = "line" if steps.steps_per_line > 1 else "step"
    dropped = f" after {counted(steps.warm_up, what)} of warm-up" if steps.warm_up else ""
    ends = interval_text((steps.low_s, steps.high_s), unit)
    return f"{log.known.title}, median of {counted(steps.lines, what)}{dropped}{each}; 5th to 95th percentile {ends}"


def _memory_text(check: Check) -> str:
    capacity = byte_text(check.estimate.ranked.memory_capacity_bytes)
    each = [
        f"{byte_text(entry.measured_bytes)} {entry.counts} against {byte_text(entry.predicted_bytes)} predicted "
        f"({difference_text(entry.predicted_bytes, entry.measured_bytes, ('much', 'little'))})"
        for entry in check.memory
    ]
    return f"{'; '.join(each)}; {capacity} may be used"


def _parts_table(check: Check) -> Table:
    parts, step = check.parts, check.steps.median_s
    rows = [
        *((part.label, part.predicted_s, part.measured_s) for part in parts),
        ("step", check.estimate.ranked.step_time_s, step),
    ]
    unit = duration_unit(step)

    def cells(values: Sequence[float]) -> tuple[str, ...]:
        return tuple(significant(value / unit.size) if value else "0" for value in values)

    differences = [f"{(measured - predicted) / unit.size:+.3g}" for _, predicted, measured in rows]
    return Table(
        columns=(
            Column("part", tuple(label for label, _, _ in rows), is_text=True),
            Column("predicted", cells([predicted for _, predicted, _ in rows]), unit=unit.name),
            Column("measured", cells([measured for _, _, measured in rows]), unit=unit.name),
            Column("difference", tuple(differences), unit=unit.name),
            Column("of the step", tuple(percent(measured / step) for _, _, measured in rows), 1),
        ),
        total=True,
    )


# -- for programs -----------------------------------------------------------------------------------------------------------


def _record(check: Check) -> dict[str, Any]:
    steps, ranked = check.steps, check.estimate.ranked
    return {
        "log": str(check.path),
        "format": check.log.format,
        "inside": check.inside,
        "measured_step_time_s": steps.median_s,
        "measured_5th_percentile_s": steps.low_s,
        "measured_95th_percentile_s": steps.high_s,
        "lines": steps.lines,
        "warm_up_lines": steps.warm_up,
        "steps_per_line": steps.steps_per_line,
        "whole_run": check.log.whole_run,
        "step_time_s": ranked.step_time_s,
        "step_time_low_s": ranked.step_time_low_s,
        "step_time_high_s": ranked.step_time_high_s,
    }


def _document(check: Check) -> dict[str, Any]:
    setting = check.estimate.setting
    return {
        "schema_version": RESULT_VERSION,
        **_record(check),
        "model": setting.model,
        "cluster": setting.cluster,
        "framework": setting.framework,
        "gpus": check.estimate.ranked.workers,
        "global_batch": setting.global_batch,
        "seq": setting.seq,
        "summary": check.estimate.ranked.summary,
        "parts": [
            {"part": part.label, "predicted_s": part.predicted_s, "measured_s": part.measured_s} for part in check.parts
        ],
        "memory": [
            {"counts": entry.counts, "predicted_bytes": entry.predicted_bytes, "measured_bytes": entry.measured_bytes}
            for entry in check.memory
        ],
        "assumptions": [{"name": a.name, "value": a.value, "source": a.source} for a in check.estimate.assumptions],
        "notes": [str(note) for note in check.notes],
        "note_codes": [note_entry(note) for note in check.notes],
    }
