"""Figures that follow from the step time of a training plan in any space: throughput, utilisation, GPU hours, money per token.

With step time t, workers w, samples B and positions S per step, model FLOP F per step, dense peak P of all workers together, and price p
per GPU and hour:

    samples/s = B / t        tokens/s = B S / t        MFU = F / (t P)
    GPU hours per million tokens = 1e6 w t / (3600 B S)        money per million tokens = p GPU hours

What a step costs is `costmodel.objectives.step_costs`.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.fields import Figure
from costmodel.objectives import OBJECTIVES

COMMON_FIGURES: tuple[Figure, ...] = (
    Figure(name="step_time_s", doc="Time of one step."),
    Figure(name="throughput_samples_per_s", doc="Global batch / step time.", kind="number"),
    Figure(name="memory_bytes_per_gpu", doc="Peak memory of the fullest GPU.", kind="number"),
    Figure(name="exposed_communication_s", doc="Part of the step spent waiting for the network."),
    Figure(
        name="memory_capacity_bytes",
        doc="Memory that a plan may be predicted to need: what fits with the chance that was asked for, or the limit that was given.",
        kind="number",
    ),
    Figure(name="gpu_memory_bytes", doc="Memory that the GPU has, as its driver shows it.", kind="number"),
    Figure(
        name="fits_probability",
        doc="P(fits): chance that the memory that the run needs is at most `gpu_memory_bytes`, by the errors of measured runs of the "
        "framework, or of others where it has none; reports show at most what these runs can tell. Null where no such errors are known "
        "(inference, the paleo cost model).",
        optional=True,
    ),
)
TOKEN_FIGURES: tuple[Figure, ...] = (
    Figure(name="tokens_per_s", doc="Global batch x seq / step time.", kind="number"),
    Figure(name="tokens_per_s_per_gpu", doc="Per GPU in use.", kind="number"),
    Figure(
        name="mfu",
        doc="Model FLOP utilisation: model FLOP of a step (nothing computed again) / (step time x dense peak of the GPUs in use).",
        kind="number",
    ),
    Figure(name="gpu_hours_per_million_tokens", doc="GPUs in use x time.", kind="number"),
    Figure(
        name="money_per_million_tokens",
        doc="In USD; null where a device file in use states no `price_per_hour`.",
        kind="number",
        optional=True,
    ),
)
# What a step costs, by each objective that has a figure of its own.
COST_FIGURES: tuple[Figure, ...] = tuple(o.figure for o in OBJECTIVES.values() if o.figure is not None)


def training_rates(
    *,
    step_time_s: float,
    workers: int,
    samples: int,
    positions: int | None = None,
    flop: float = 0.0,
    peak_flop_per_s: float = 0.0,
    price_per_hour: float | None = None,
) -> Mapping[str, float | None]:
    """Rates of one plan.

    Parameters
    ----------
    step_time_s : float
    workers : int
        GPUs in use.
    samples : int
        Global batch.
    positions : int, optional
        Of a sample; without it there are no rates of tokens.
    flop : float
        Model FLOP of a step.
    peak_flop_per_s : float
        Dense peak of all GPUs in use together.
    price_per_hour : float, optional
        USD per GPU, the mean over those in use.

    Examples
    --------
    >>> rates = training_rates(step_time_s=2.0, workers=4, samples=8, positions=100, flop=1e12, peak_flop_per_s=1e12, price_per_hour=9.0)
    >>> rates["tokens_per_s"], rates["tokens_per_s_per_gpu"], rates["mfu"], round(rates["money_per_million_tokens"], 9)
    (400.0, 100.0, 0.5, 25.0)
    """
    rates: dict[str, float | None] = {
        "throughput_samples_per_s": samples / step_time_s,
    }
    if positions is not None:
        tokens_per_s = samples * positions / step_time_s
        gpu_hours = workers / tokens_per_s / 3600.0 * 1e6
        rates |= {
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_gpu": tokens_per_s / workers,
            "mfu": flop / (step_time_s * peak_flop_per_s),
            "gpu_hours_per_million_tokens": gpu_hours,
            "money_per_million_tokens": None if price_per_hour is None else gpu_hours * price_per_hour,
        }
    return rates
