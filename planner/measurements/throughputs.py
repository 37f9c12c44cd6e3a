"""What was measured of a training run: a time, a throughput in some unit, or a failure."""

from __future__ import annotations

from collections.abc import Mapping

from planner.measurements.tables import Row, RowSkipped

__all__ = ["has_failed", "is_measured", "not_measured", "step_time_s"]

_MEASURED = (
    "step_time_ms", "samples_per_s", "tokens_per_s_per_gpu", "tokens_per_s", "frames_per_s", "audio_samples_per_s",
)  # fmt: skip
# Beyond what roundings explain ("2 samples per second" may be 1.5) and throughputs of another number of devices, which do no harm beside a
# time; below seconds or microseconds for milliseconds.
_CONTRADICTION = 100.0


def has_failed(row: Row) -> bool:
    """Whether a run failed."""
    return row.flag("oom") is True


def not_measured() -> RowSkipped:
    """A training run that states no time and no throughput."""
    return RowSkipped("no measured time", needs=(_MEASURED,))


def is_measured(row: Row) -> bool:
    """Whether a training run states a time or a throughput that is not 0."""
    return any(row.number(name) is not None for name in _MEASURED)


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
    """
    batch = global_batch or row.number("global_batch")
    said = {name: row.number(name) for name in _MEASURED}
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


def _work_of_a_step(
    row: Row, batch: float | None, gpus: int | None, seq: int | None, counts: Mapping[str, int] | None = None
) -> dict[str, float]:
    """What a step does in the unit of each throughput; 0 where that is not known."""
    devices, positions = row.number("gpus") or gpus or 0, row.number("seq") or seq or 0
    samples = batch or 0.0
    each = {"samples": 1.0, **(counts or {})}
    each.setdefault("tokens", positions)
    return {
        "samples_per_s": samples,
        "tokens_per_s_per_gpu": samples * each["tokens"] / devices if devices else 0.0,
        "tokens_per_s": samples * each["tokens"],
        "frames_per_s": samples * each.get("frames", 0.0),
        "audio_samples_per_s": samples * each.get("audio_samples", 0.0),
    }
