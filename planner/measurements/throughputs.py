"""What was measured of a training run: a time, a throughput in some unit, or a failure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.measurements.tables import Row, RowSkipped

__all__ = ["counts_samples", "has_failed", "implied_batch", "is_measured", "not_measured", "step_time_s"]

_MEASURED = (
    "step_time_ms", "samples_per_s", "tokens_per_s_per_gpu", "tokens_per_s", "frames_per_s", "audio_samples_per_s", "items_per_s",
)  # fmt: skip
# Beyond what roundings explain ("2 samples per second" may be 1.5) and throughputs of another number of devices, which do no harm beside a
# time; below seconds or microseconds for milliseconds.
_CONTRADICTION = 100.0


# What stands in the cell of a time that there is none of.
_FAILED = re.compile(
    r"\boom\b|out.?of.?memory|\bkilled\b|\bfail|\bcrash|\bh[au]ng\b|\btime[d -]?out|\berror\b|\baborted\b"
    r"|(?:not|n't) (?:fit|run|start)|^[\u2717\u2718\u274c]"
)
_CROSSES = ("\u2717", "\u2718", "\u274c")  # "it failed" or "no", as a time beside them tells


def has_failed(row: Row) -> bool:
    """Whether a run failed: the column ``oom`` says so, or a failure stands where its time should.

    >>> [has_failed(Row(line=2, cells={"step_time_ms": text})) for text in ("CUDA out of memory", "OOM", "12.5", "nan", "")]
    [True, True, False, False, False]
    """
    crossed = row.text("oom").startswith(_CROSSES)
    if row.says("oom") and not crossed:
        return True
    said = [row.text(name).lower() for name in _MEASURED if row.has(name)]
    if any(text[0].isdigit() for text in said):
        return False
    return crossed or any(_FAILED.search(text) for text in (*said, row.text("memory_gib").lower()))


def not_measured(row: Row | None = None) -> RowSkipped:
    """A training run that states no time, or a throughput of which nobody knows what it counts."""
    if row is not None and row.positive("items_per_s") is not None and not any(map(row.positive, _MEASURED[:-1])):
        said = row.text("unit")
        return RowSkipped(
            f"items_per_s counts '{said}': how many a sample has is not known" if said else "items_per_s has no unit"
        )
    return RowSkipped("no measured time", needs=(_MEASURED,))


def is_measured(row: Row) -> bool:
    """Whether a training run states a time or a throughput that is not 0."""
    return any(row.positive(name) is not None for name in _MEASURED)


def step_time_s(
    row: Row,
    *,
    global_batch: int | None = None,
    gpus: int | None = None,
    seq: int | None = None,
    counts: Mapping[str, int] | None = None,
) -> float | None:
    """Measured seconds of a step, from the time itself or a throughput; None where nothing is stated or it is 0.

    Parameters
    ----------
    row : Row
    global_batch, gpus, seq : int, optional
        What follows for a row that does not state them.
    counts : mapping, optional
        What else people count of a sample of the network (`planner.files.loading.LoadedModel.counts`); its own unit first.

    Raises
    ------
    RowSkipped
        The time and a throughput beside it contradict each other.

    Examples
    --------
    >>> step_time_s(Row(line=2, cells={"tokens_per_s_per_gpu": "1000", "gpus": "8", "global_batch": "16", "seq": "2048"}))
    4.096
    >>> step_time_s(Row(line=2, cells={"samples_per_s": "100"}), global_batch=32)
    0.32
    >>> step_time_s(Row(line=2, cells={"items_per_s": "6144", "unit": "tok/s"}), global_batch=32, seq=192)
    1.0
    """
    batch = global_batch or row.positive("global_batch")
    said = {name: row.positive(name) for name in _MEASURED}
    rates = {name: rate for name, rate in said.items() if rate is not None}
    work_of = _work_of_a_step(row, batch, gpus, seq, counts)
    by_throughput = {name: work / rates[name] for name, work in work_of.items() if work and name in rates}
    time_ms = said["step_time_ms"]
    if time_ms is None:
        return next(iter(by_throughput.values()), None)
    for name, seconds in by_throughput.items():
        if not 1.0 / _CONTRADICTION <= seconds / (time_ms * 1e-3) <= _CONTRADICTION:
            raise RowSkipped(f"step_time_ms and {name} contradict each other: wrong unit?")
    return time_ms * 1e-3


# What the column ``unit`` may say of ``items_per_s``; the first that is found decides.
_UNITS = (
    (r"tok|word", "tokens"),
    (r"mel|frame", "frames"),
    (r"audio", "audio_samples"),
    (r"sampl|seq|sent|utter|image|img|example|item|clip|volume", "samples"),
)


def _work_of_a_step(
    row: Row, batch: float | None, gpus: int | None, seq: int | None, counts: Mapping[str, int] | None = None
) -> dict[str, float]:
    """What a step does in the unit of each throughput; 0 where that is not known."""
    devices, positions = row.positive("gpus") or gpus or 0, row.positive("seq") or seq or 0
    samples = batch or 0.0
    each = {"samples": 1.0, **(counts or {})}
    each.setdefault("tokens", positions)
    return {
        "samples_per_s": samples,
        "tokens_per_s_per_gpu": samples * each["tokens"] / devices if devices else 0.0,
        "tokens_per_s": samples * each["tokens"],
        "frames_per_s": samples * each.get("frames", 0.0),
        "audio_samples_per_s": samples * each.get("audio_samples", 0.0),
        "items_per_s": samples * each.get(_unit_of(row, counts), 0.0),
    }


def counts_samples(row: Row) -> bool:
    """Whether a row has a throughput in samples, as it says.

    >>> [counts_samples(Row(line=2, cells={"items_per_s": "8e4", "unit": text})) for text in ("samples/s", "tok/s", "")]
    [True, False, False]
    """
    return row.positive("samples_per_s") is not None or (
        row.positive("items_per_s") is not None and _unit_of(row, None) == "samples"
    )


def _unit_of(row: Row, counts: Mapping[str, int] | None) -> str:
    """What ``items_per_s`` counts: as the column ``unit`` says, else what is usual for the network; empty where nobody says.

    >>> [_unit_of(Row(line=2, cells={"unit": text}), {"frames": 1680}) for text in ("sequences/s", "tokens/s", "")]
    ['samples', 'tokens', 'frames']
    """
    said = row.text("unit").lower()
    if said:
        return next((unit for pattern, unit in _UNITS if re.search(pattern, said)), "")
    return "" if counts is None else next(iter(counts), "samples")


def implied_batch(row: Row, gpus: int | None, seq: int | None) -> int | None:
    """Samples per step that a time and a throughput together imply; None where a row lacks either.

    >>> implied_batch(Row(line=2, cells={"step_time_ms": "4096", "tokens_per_s_per_gpu": "1000"}), gpus=8, seq=2048)
    16
    """
    time_ms = None if has_failed(row) else row.positive("step_time_ms")
    if time_ms is None:
        return None
    for name, per_sample in _work_of_a_step(row, 1.0, gpus, seq).items():
        rate = row.positive(name)
        if rate is not None and per_sample and round(rate * time_ms * 1e-3 / per_sample) >= 1:
            return round(rate * time_ms * 1e-3 / per_sample)
    return None
