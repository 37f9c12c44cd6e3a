"""Published training runs against the model and the search: writes the table of docs/practice.md.

Usage: python benchmarks/practice.py [--write] [NAME ...]

Each run's published degrees are fixed and the rest (what its source does not say) is left to the search; that plan's predicted step
and MFU stand beside the published ones. Its rank is one more than the number of plans that are faster and fit: of the whole space, and of
the part of it that the run's trainer could run (`MEANS`).
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.mesh.plan import MeshPlan
from planner.core.request import Request
from planner.importers.networks import load_model
from planner.question.resolve import resolve
from planner.schema.model import PublishedPlan
from planner.schema.settings import plan_settings
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space
from strategies.limits import Clock
from strategies.mesh.roles import as_published
from strategies.mesh.settings import Bounds, MeshCandidate, MeshRestriction, MeshSettings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "practice.md"
BEGIN, END = "<!-- table: python benchmarks/practice.py --write -->", "<!-- end of the table -->"
_TOP = 1000  # plans ranked; a published plan beyond them is only known to be behind
_WALL_S = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A published run of a plan that a network's file has under ``published_plans``.

    Attributes
    ----------
    name : str
        Of the row.
    source : str
        Of its time.
    model : str
    gpus, seq : int
        Which of the published plans of the network.
    step_s : float or None
        Published, or follows from published rates by the source's own formula.
    mfu : float or None
        Published as such, in the source's own convention.
    assume : tuple of (str, float)
        What its trainer does otherwise than `costmodel.mesh.assumptions` takes for granted; asked of all plans that it is compared with.
    """

    name: str
    source: str
    model: str
    gpus: int
    means: MeshRestriction  # what its trainer could do
    seq: int = 2048
    precision: str | None = None
    step_s: float | None = None
    mfu: float | None = None
    assume: tuple[tuple[str, float], ...] = ()

    @property
    def published(self) -> PublishedPlan:
        """The plan."""
        plans = load_model(self.model).published_plans
        return next(plan for plan in plans if (plan.gpus, plan.seq) == (self.gpus, self.seq))

    def request(self) -> Request:
        """The question that the run answers."""
        plan = self.published
        return Request(
            model=self.model, cluster=plan.cluster, gpus=plan.gpus, batch=plan.global_batch, seq=plan.seq, precision=self.precision,
            assume=self.assume,
        )  # fmt: skip

    @property
    def recomputes_all(self) -> bool:
        """Whether it recomputes all blocks; the search no more than it must."""
        return self.published.settings.get("recompute") == "full"


def megatron_step_s(batch: int, layers: int, hidden: int, gpus: int, flop_per_s: float) -> float:
    """Step from a rate, by equation 3 of arXiv:2104.04473: 96 B s l h^2 (1 + s / 6h + V / 16 l h), full recomputation counted.

    >>> round(megatron_step_s(3072, 128, 25600, 3072, 163e12))
    101
    """
    seq, vocabulary = 2048, 51200
    flop = 96.0 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocabulary / (16 * layers * hidden))
    return flop / (gpus * flop_per_s)


_ONE = Bounds(values=(1,))
_ON_DEVICE = {"offload_optimizer": False, "offload_activations": False}
# What the trainers had: Megatron-LM of 2021, with sequence parallelism and selective recomputation of 2022, Llama 3's, DeepSeek's.
MEANS = {
    "2021": MeshRestriction(
        degrees={"cp": _ONE, "zero_stage": Bounds(values=(0,))},
        names={"recompute": ("none", "full"), "schedule": ("gpipe", "1f1b", "interleaved")},
        flags={**_ON_DEVICE, "sequence_parallel": False},
    ),
    "2022": MeshRestriction(
        degrees={"cp": _ONE, "zero_stage": Bounds(values=(0, 1))},
        names={"schedule": ("gpipe", "1f1b", "interleaved")},
        flags=_ON_DEVICE,
    ),
    "llama": MeshRestriction(
        degrees={"zero_stage": Bounds(values=(0, 1, 2))},
        names={"schedule": ("gpipe", "1f1b", "interleaved"), "cp_kind": ("ring", "all_gather")},
        flags=_ON_DEVICE,
    ),
    "deepseek": MeshRestriction(degrees={"zero_stage": Bounds(values=(0, 1))}, flags=_ON_DEVICE),
}

_KORTHIKANTI = "arXiv:2205.05198, table 5"
_NARAYANAN = "arXiv:2104.04473, table 1"
RUNS: tuple[Run, ...] = (
    Run(
        name="gpt3-175b, 1,024 A100",
        source="Megatron-LM, README and `pretrain_gpt3_175B.sh`: 32 s, 138 TFLOP/s with recomputation counted",
        model="gpt3-175b", gpus=1024, means=MEANS["2021"], step_s=32.0,
    ),
    Run(
        name="megatron-530b, 280 A100", source=f"{_KORTHIKANTI}: 37.83 s, 56.0 %",
        model="megatron-530b", gpus=280, means=MEANS["2022"], step_s=37.83, mfu=0.560,
    ),
    Run(
        name="megatron-530b, 2,240 A100", source="arXiv:2205.05198, section 6.3: 39.15 s, 54.2 %",
        model="megatron-530b", gpus=2240, means=MEANS["2022"], step_s=39.15, mfu=0.542,
    ),
    Run(
        name="megatron-530b, 2,520 A100", source=f"{_NARAYANAN}: 163 TFLOP/s with recomputation counted",
        model="megatron-530b", gpus=2520, means=MEANS["2021"], step_s=megatron_step_s(2520, 105, 20480, 2520, 163e12),
    ),
    Run(
        name="megatron-1t, 512 A100", source=f"{_KORTHIKANTI}: 71.49 s, 56.3 %",
        model="megatron-1t", gpus=512, means=MEANS["2022"], step_s=71.49, mfu=0.563,
    ),
    Run(
        name="megatron-1t, 3,072 A100", source=f"{_NARAYANAN}: 163 TFLOP/s with recomputation counted",
        model="megatron-1t", gpus=3072, means=MEANS["2021"], step_s=megatron_step_s(3072, 128, 25600, 3072, 163e12),
    ),
    Run(
        name="llama3-405b, 8k, 16,384 H100", source="arXiv:2407.21783, table 4: 400 TFLOP/s, 41 %",
        model="llama3-405b", gpus=16384, seq=8192, means=MEANS["llama"], mfu=0.41,
    ),
    Run(
        name="llama3-405b, 131k, 16,384 H100", source="arXiv:2407.21783, table 4: 380 TFLOP/s, 38 %",
        model="llama3-405b", gpus=16384, seq=131072, means=MEANS["llama"], mfu=0.38,
    ),
    Run(
        name="deepseek-v3, 2,048 H800", source="arXiv:2412.19437, sections 1 and 3: 180,000 GPU hours per 10^12 tokens, batch 15,360",
        model="deepseek-v3", gpus=2048, seq=4096, precision="fp8-deepseek", means=MEANS["deepseek"],
        # DualPipe hides all-to-alls and transfers between stages (section 3.2.1); tokens are dispatched in fp8, a scale per 128 (3.3.3).
        assume=(("ep_overlap", 1.0), ("pp_overlap", 1.0)),
        step_s=15360 * 4096 * 180e3 * 3600 / 1e12 / 2048,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Where a plan stands among others, and the best of them."""

    rank: str
    space_size: int
    best: str
    best_s: float
    best_mfu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the model and the search say about a run."""

    published: MeshPlan
    step_s: float
    mfu: float
    published_step_s: float | None
    published_mfu: float
    memory_gib: float
    by_means: Ranking
    by_all: Ranking


def look(run: Run) -> Found:
    """Predict a run, and search its question."""
    space = mesh_space(resolve(run.request()))
    settings = replace(space.settings(), top=_TOP, wall_s=_WALL_S, distinct=None)
    published = _as_published(run, space, settings)
    ranked = space.rank([published.plan])[0]
    by_step = None if run.step_s is None else space.flop_per_step / (run.step_s * run.gpus * space.peak_flop_per_s)
    return Found(
        published=published.plan,
        step_s=ranked.step_time_s,
        mfu=ranked.figures["mfu"],
        published_step_s=run.step_s,
        published_mfu=run.mfu if by_step is None else by_step,  # type: ignore[arg-type]
        memory_gib=ranked.figures["memory_bytes_per_gpu"] / 2**30,
        by_means=_ranking(space, replace(settings, restriction=run.means), published),
        by_all=_ranking(space, settings, published),
    )


def _ranking(space: MeshPlanSpace, settings: MeshSettings, published: MeshCandidate) -> Ranking:
    """One more than the number of plans that are faster, if all of them were found."""
    outcome = space.outcome(settings)
    faster = sum(candidate.step_time_s < published.step_time_s * (1 - 1e-9) for candidate in outcome.candidates)
    is_known = faster < settings.top and not outcome.out_of_time
    best = space.rank([outcome.candidates[0].plan])[0]
    return Ranking(
        rank=f"{faster + 1:,}" if is_known else f"> {faster:,}",
        space_size=outcome.space_size,
        best=best.summary,
        best_s=best.step_time_s,
        best_mfu=best.figures["mfu"],
    )


def _as_published(run: Run, space: MeshPlanSpace, settings: MeshSettings) -> MeshCandidate:
    """The best plan of the published degrees; without a limit on memory if none fits, which the page says."""
    wanted = plan_settings(run.published.settings)
    for capacity in (settings.capacity_bytes, math.inf):
        asked = replace(settings, capacity_bytes=capacity, worker_counts=(run.gpus,))
        found = as_published(space.model, asked, wanted, Clock(limit_s=settings.wall_s))
        if found is not None:
            plan = found.plan
            if run.recomputes_all:
                plan = replace(plan, recompute_blocks=space.blocks_per_stage(plan))
            step_s = float(space.model.evaluate_plans([plan]).step_time_s[0])
            return MeshCandidate(plan=plan, score=step_s, step_time_s=step_s)
    raise SystemExit(f"{run.name}: no plan has the published degrees")


def row(run: Run, found: Found) -> str:
    """One line of the table."""
    fits = "" if found.memory_gib <= 80 else f" ({found.memory_gib:.0f} GiB: more than there are)"
    was = "" if found.published_step_s is None else f"{found.published_step_s:.1f} s, "
    summary = _summary(found.published)
    return (
        f"| {run.name} | {run.source} | {summary}{fits} | {was}{found.published_mfu:.1%} | {found.step_s:.1f} s, {found.mfu:.1%} | "
        f"{_rank_text(found.by_means)} | {_rank_text(found.by_all)} |"
    )


def _rank_text(ranking: Ranking) -> str:
    best = f"{ranking.best}: {ranking.best_s:.1f} s, {ranking.best_mfu:.1%}"
    return f"{ranking.rank} of {ranking.space_size:.1e}; best {best}"


def _summary(plan: MeshPlan) -> str:
    from planner.spaces.mesh.plans import mesh_plan_in_words

    return mesh_plan_in_words(plan)


def main(*arguments: str) -> None:
    wanted = [a for a in arguments if a != "--write"]
    lines = [
        "| run | source | plan | published | predicted | rank and best with the trainer's means | rank and best of the whole space |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    ratios: list[float] = []
    for run in RUNS:
        if wanted and not any(word in run.name for word in wanted):
            continue
        started = time.monotonic()
        found = look(run)
        lines.append(row(run, found))
        ratios.append(found.mfu / found.published_mfu)
        print(lines[-1], f"({time.monotonic() - started:.0f} s)", flush=True)
    lines += ["", f"Predicted over published MFU: {', '.join(f'{ratio:.2f}' for ratio in ratios)}."]
    print(lines[-1])
    if "--write" in arguments:
        text = PAGE.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
