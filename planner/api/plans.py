"""A plan with its question and its prediction: what a search returns, and what a plan file holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from planner.api.shown import Reads
from planner.files.plan_file import plan_document, plan_text

if TYPE_CHECKING:
    from planner.api.exports import Export
    from planner.api.keywords import EstimateOptions, ExplainOptions
    from planner.api.results import Estimate, Explanation
    from planner.core import answer as core

_FILES = ("model", "cluster", "device", "calibration", "framework")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """One plan, what was asked and what the cost model predicts.

    Attributes
    ----------
    ranked : object
        The planner's own record of the plan and its costs (`planner.core.answer.RankedPlan`).
    warnings : tuple of str
        What no longer holds of the file that it was loaded from.

    Examples
    --------
    >>> import planner
    >>> plan = planner.optimize("alexnet", gpus=4).best
    >>> plan.workers, plan.fits, round(sum(plan.time_parts.values()) / plan.step_time_s, 6)
    (4, True, 1.0)
    """

    ranked: core.RankedPlan
    warnings: tuple[str, ...] = ()
    _answer: core.Answer | core.Estimate

    # -- what it is

    space = Reads[str](
        "_answer.space.name",
        "``layers`` (a split per layer), ``mesh``, ``mixed`` (several kinds of devices) or ``serving``.",
    )

    summary = Reads[str]("ranked.summary", "The plan in words.")

    family = Reads[str](
        "ranked.family", "Region of the space that it lies in, as in ``hybrid`` or ``tensor+pipeline+zero-1``."
    )

    rank = Reads[int]("ranked.rank", "Place in the answer; 1 is the plan to run.")

    workers = Reads[int]("ranked.workers", "Devices in use.")

    model = Reads[str]("_answer.setting.model", "Name of the network.")

    cluster = Reads[str]("_answer.setting.cluster", "Name of the cluster.")

    @property
    def global_batch(self) -> int:
        """Samples per step; of serving, sequences at a time."""
        return int(getattr(self.ranked.plan, "concurrency", self._answer.setting.global_batch))

    @property
    def settings(self) -> dict[str, Any]:
        """The plan itself, as its section of a plan file: degrees, or a split per layer."""
        return dict(self.to_dict()[self.space])

    # -- what it costs

    step_time_s = Reads[float]("ranked.step_time_s", "Time of one training step; of serving, the time per token.")

    @property
    def step_time_interval_s(self) -> tuple[float, float] | None:
        """Between these a measurement of `step_time_s` lies with a chance of 80 %; None where nothing is known of errors."""
        low, high = self.ranked.step_time_low_s, self.ranked.step_time_high_s
        return None if low is None or high is None else (float(low), float(high))

    probability_best = Reads[float | None](
        "ranked.probability_best", "Chance to be the best of the plans that were compared; None of a plan by itself."
    )

    time_parts = Reads[dict[str, float]]("ranked.time_parts", "Terms that add up to `step_time_s`.")

    memory_bytes_per_gpu = Reads[float]("ranked.memory_bytes_per_gpu", "Peak memory of the fullest device.")

    memory_capacity_bytes = Reads[float]("ranked.memory_capacity_bytes", "Memory that it may be predicted to need.")

    fits_probability = Reads[float | None](
        "ranked.fits_probability", "P(fits), by the errors of measured runs; None where they are not known."
    )

    memory_parts = Reads[dict[str, float]](
        "ranked.memory_parts",
        "Terms that add up to `memory_bytes_per_gpu`; empty for a split per layer, which is known layer by layer (`explain`).",
    )

    fits = Reads[bool]("ranked.fits", "Whether the memory suffices, with the chance that was asked for.")

    samples_per_s = Reads[float]("ranked.throughput_samples_per_s", "Throughput; of serving, requests per second.")

    @property
    def tokens_per_s(self) -> float | None:
        """Throughput in tokens (of serving, of answers); None for networks without sequences."""
        served = self.ranked.get("output_tokens_per_s")
        if served is not None:
            return float(served)
        seq = self._answer.setting.seq
        return None if seq is None else self.samples_per_s * seq

    @property
    def mfu(self) -> float | None:
        """Model FLOP over what the GPUs in use could do in the time (MFU); None of plans with a split per layer."""
        return cast("float | None", self.ranked.get("mfu"))

    @property
    def money_per_step(self) -> float | None:
        """What a step costs, in USD; None where no price is stated, and of serving."""
        return cast("float | None", self.ranked.get("money_per_step"))

    @property
    def energy_per_step_j(self) -> float | None:
        """What a step draws, in joules; None where no power is stated, and of serving."""
        return cast("float | None", self.ranked.get("energy_per_step_j"))

    # -- what can be done with it

    def to_dict(self) -> dict[str, Any]:
        """The document of a plan file; files are named by absolute paths, and what was never a file by words that hold it."""
        from planner.report.machine import finite

        return dict(finite(self._document()))

    def estimate(self, **changes: Unpack[EstimateOptions]) -> Estimate:
        """Predict it part by part; keywords ask about another cluster, batch, precision, ..."""
        from planner.api.questions import estimate

        return estimate(self, **changes)

    def explain(self, **changes: Unpack[ExplainOptions]) -> Explanation:
        """Show where its time goes, layer by layer, and what the best plan does better."""
        from planner.api.questions import explain

        return explain(self, **changes)

    def export(
        self,
        target: str,
        *,
        to: str | os.PathLike[str] | None = None,
        target_version: str | None = None,
        strict: bool = False,
        force: bool = False,
        check: bool = False,
    ) -> Export:
        """Write what a trainer or server needs to start with it; see `planner.export`."""
        from planner.api.exports import export

        return export(self, target, to=to, target_version=target_version, strict=strict, force=force, check=check)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as a plan file (YAML), which every command takes.

        Files in or under the folder of the plan file are named relative to it. A network (cluster, device) that was never a file is
        written beside the plan, as ``NAME.model.yaml``.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        from planner.files.output import check_writable, write_atomically
        from planner.files.resources import InMemory
        from planner.files.yaml_text import yaml_text

        target = Path(path)
        check_writable(target)
        document, folder = self._document(), target.resolve().parent
        for role in _FILES:
            named = document.get(role, "")
            if isinstance(named, InMemory):
                copy = folder / f"{target.stem}.{role}.yaml"
                write_atomically(copy, yaml_text(named.document.value))
                document[role] = f"./{copy.name}"
            elif Path(named).is_absolute() and Path(named).is_relative_to(folder):
                document[role] = f"./{Path(named).relative_to(folder).as_posix()}"
        write_atomically(target, plan_text(document))
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file, check it against its network and cluster, and predict it again.

        Raises
        ------
        InputFileError
            Everything wrong with it.
        """
        from planner.api.questions import estimate

        return estimate(Path(path)).plan

    def __str__(self) -> str:
        from planner.core.numbers import duration_text, used_of_total

        memory = used_of_total(self.memory_bytes_per_gpu, self.ranked.memory_there_bytes)
        text = (
            f"{self.summary}\n{self.model} on {self.workers} of {self.cluster}, batch {self.global_batch}: "
            f"{duration_text(self.step_time_s)} per {self._answer.space.step_word}, {memory} per GPU"
        )
        return text if self.fits else f"{text} (does not fit)"

    def __repr__(self) -> str:
        return f"<planner.Plan {self.summary!r}: {self.step_time_s:.4g} s, {self.workers} workers>"

    def _repr_html_(self) -> str:
        from html import escape

        return "<div>" + "<br>".join(escape(line) for line in str(self).splitlines()) + "</div>"

    def _document(self) -> dict[str, Any]:
        return plan_document(self._answer, self.ranked)
