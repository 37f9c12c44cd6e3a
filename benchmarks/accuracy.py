"""Published training steps against the model: in sample, on groups left out of the fit, and without each piece of physics.

Usage: PLANNER_REFERENCE_DATA=FOLDER python benchmarks/accuracy.py [--write | TEXT]     (about ten minutes)

Left out: of a small grid of constants, each fold takes the point with the least mean (for the sweep, whose machines stalled: median) of
|log(predicted / measured)| on the *other* groups and is scored with it; the rows of all folds are scored together. In sample: the same with
all rows. Bundled: the constants of the project. vTrain's constants are one set: a group is left out of its runs on one node and on several,
whose means weigh alike, and each of the two is scored.
``--write`` puts the tables into docs/accuracy.md; TEXT chooses parts with it in their names.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.datasets import read
from benchmarks.pages import measurements, put, table
from planner.files.loading import load_calibration
from planner.measurements import hardware, plans
from planner.measurements.hardware import framework_of_row
from planner.measurements.outcomes import DEFAULT, PALEO, Outcome, Preset, calibrated
from planner.measurements.plans import predict
from planner.measurements.scores import Score, score
from planner.measurements.tables import Row

# Published runs on Blackwell, as their sources print them: NVIDIA's performance summary of Megatron-Bridge and its recipes for GB200, each
# row with its page and commit. Pre-training only; what a recipe recomputes is that of scripts/performance/configs of Megatron-Bridge
# (3dafb00 and 3d277f6): dense networks recompute nothing, and their FSDP moves activations to the host. "FP8" beside "MXFP8" is FP8-CS, as
# the page of 26.02 wrote both ways. Also from there: which recipes have one kernel for all experts and hide their tokens behind another
# micro-batch (MXFP8 of 26.06 but for Nemotron: cutedsl_fused_grouped_mlp, moe_a2a_overlap; *_workload_base_configs.py), and of gpt-oss in
# BF16 the dispatcher (no moe_flex_dispatcher_backend but on B300 in 26.04) and recompute_modules.
BLACKWELL = "blackwell_training"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- tables: python benchmarks/accuracy.py --write -->", "<!-- end of the tables -->"

# Constants of Efficiency; all others are of MeshAssumptions.
EFFICIENCY = (
    *("attention_fraction", "attention_backward_fraction", "step_fraction", "elementwise_fraction"),
    "odd_fraction",
)
Point = tuple[tuple[str, float], ...]

Grid = Mapping[str, tuple[float, ...]]

# The rates of kernels stay as other files found them. A step of each moves a layer whose host takes 3 ms by 0.1 ms (27 kernels, or four
# collectives). Plans of one question can be of several folds: where steps are coarse, rounding decides between them.
_HOST: Grid = {
    "host_launch_s": tuple(n * 5e-6 for n in range(20, 27)),
    "host_collective_s": tuple(n * 25e-6 for n in range(7)),
    "collective_wait_s": tuple(n * 25e-6 for n in range(6, 15)),
}
_KERNELS: Grid = {
    "step_fraction": (0.80, 0.85, 0.90),
    "elementwise_fraction": (0.5, 0.7),
    "attention_fraction": (0.6, 0.7, 0.84),
}
_NANOTRON: Grid = {
    # One constant: a rank that comes late is late by what starting a collective takes.
    "host_collective_s contended_step_s": tuple(n * 25e-6 for n in range(6, 15)),
}


_COMMUNICATORS: Grid = {
    "communicator_bytes": tuple(n * 4e8 for n in range(12)),
    "allocator_slack": (0.0, 0.02, 0.04, 0.06, 0.08),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows that share a fit, whose constants are looked for on a grid.

    Attributes
    ----------
    name : str
    files : sequence of str
        Names of tables of the reference data, or of this folder.
    keep : function of Row
        Which rows of the files belong to it.
    folds : mapping
        Name -> columns whose texts are the groups left out, one after the other; none where nothing is fitted.
    together : str
        Column of which equal texts ("1" or not) make groups of rows that choose the constants together, each by its mean; empty: the part's
        own rows do.
    grid : mapping
        Constant -> values tried; empty: none was fitted to these rows.
    calibration : str
        Of the machines that the rows ran on, where they waited for something that no framework explains; empty: none.
    same_work : columns
        Runs of which equal texts do the same work per slot of their pipeline, see `undisturbed`; empty: none is taken as disturbed.
    has_outliers : bool
        The median of the errors chooses, not their mean.
    of_memory : bool
        Errors of the memory choose, not those of the time.
    """

    name: str
    files: Sequence[str]
    keep: Callable[[Row], bool]
    folds: Mapping[str, Sequence[str]] = field(default_factory=dict)
    grid: Grid = field(default_factory=dict)
    has_outliers: bool = False
    of_memory: bool = False
    together: str = ""
    calibration: str = ""
    same_work: Sequence[str] = ()


def _is_mixture(row: Row) -> bool:
    return any(
        word in row.text("model_as_published")
        for word in ("Qwen3", "DeepSeek", "Mixtral", "GPT_OSS", "GPT OSS", "Nemotron_3_Nano")
    )


def _is_dense(row: Row) -> bool:
    return not _is_mixture(row) and "task=" not in row.text("notes")


def _has_experts(row: Row) -> bool:
    return row.has("experts") or _is_mixture(row)


def _blackwell(*formats: str) -> Callable[[Row], bool]:
    return lambda row: not _has_experts(row) and row.text("precision") in formats


def _is_large(row: Row) -> bool:
    return _is_dense(row) and (row.number("gpus") or 0) >= LARGE_GPUS


def _measures_memory(row: Row, device: str) -> bool:
    return row.has("memory_gib") and row.text("device") == device


LARGE_GPUS = 64
_VTRAIN_FOLDS = {"hidden size": ("hidden",), "model": ("hidden", "layers"), "tp": ("tp",)}

PARTS = (
    Part(
        name="vTrain, single node",
        files=("vtrain",),
        keep=lambda row: row.text("nodes") == "1",
        folds=_VTRAIN_FOLDS,
        grid=_HOST,
        together="nodes",
        calibration="vtrain",
    ),
    Part(
        name="vTrain, several nodes",
        files=("vtrain",),
        keep=lambda row: row.text("nodes") != "1",
        folds=_VTRAIN_FOLDS,
        grid=_HOST,
        together="nodes",
        calibration="vtrain",
    ),
    Part(
        name="nanotron, H100 sweep",
        files=("hf_ultrascale_nanotron",),
        keep=lambda _: True,
        folds={"model": ("model_as_published",), "nodes": ("nodes",)},
        grid=_NANOTRON,
        has_outliers=True,
        calibration="ultra-scale-playbook",
        same_work=("model_as_published", "tp", "pp", "micro_batch"),
    ),
    Part(
        name="llm-foundry, A100 FSDP",
        files=("llm_foundry",),
        keep=lambda _: True,
        folds={"model": ("model_as_published",)},
        grid=_KERNELS,
    ),
    Part(
        name="Megatron-LM, A100 and V100",
        files=("megatron_lm",),
        keep=lambda _: True,
        folds={"model": ("model_as_published",)},
        grid=_KERNELS,
    ),
    Part(
        name="NeMo, H100, dense pre-training",
        files=("nemo_megatron_bridge",),
        keep=_is_dense,
        folds={"model": ("model_as_published",)},
        grid=_KERNELS,
    ),
    Part(
        name="mixtures of experts, H100",
        files=("nemo_megatron_bridge",),
        keep=_is_mixture,
        folds={"model": ("model_as_published",)},
        grid={"expert_launches": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)},
    ),
    Part(
        name="BERT-Large, V100 and A100",
        files=("nvidia_dle_resnet_bert",),
        keep=lambda row: "BERT" in row.text("model_as_published"),
        folds={"device": ("device",), "GPUs": ("gpus",)},
        grid={"step_fraction": (0.80, 0.85, 0.90, 1.0), "elementwise_fraction": (0.5, 0.7, 1.0)},
    ),
    Part(
        name="InternLM 7B, A100",
        files=("misc_transformers",),
        keep=lambda _: True,
        folds={"GPUs": ("gpus",)},
        grid={"step_fraction": (0.75, 0.80, 0.85, 0.90, 1.0)},
    ),
    Part(
        name=f"large dense training, {LARGE_GPUS} GPUs and more",
        files=("megatron_lm", "nemo_megatron_bridge", "misc_transformers", "llm_foundry", "vtrain"),
        keep=_is_large,
        folds={"model": ("model_as_published", "hidden"), "machine": ("device",), "framework": ("framework",)},
        grid=_KERNELS,
    ),
    *(
        Part(name=f"Blackwell, dense, {name}", files=(BLACKWELL,), keep=_blackwell(*formats))
        for name, formats in {
            "bf16": ("bf16",),
            "fp8": ("fp8-tensorwise", "fp8-delayed"),
            "mxfp8": ("mxfp8",),
            "nvfp4": ("nvfp4",),
        }.items()
    ),
    Part(name="Blackwell, mixtures", files=(BLACKWELL,), keep=_has_experts),
    *(
        Part(
            name=f"measured memory, {name}",
            files=("training_moe_and_memory",),
            keep=keep,
            of_memory=True,
            **({"folds": {"model": ("model_as_published",)}, "grid": _COMMUNICATORS} if "GH200" in name else {}),
        )
        for name, keep in {
            "dense, A100 over PCIe": lambda row: _measures_memory(row, "a100-pcie-80gb") and not _has_experts(row),
            "dense, GH200": lambda row: _measures_memory(row, "gh200") and not _has_experts(row),
            "mixtures, A100 over PCIe": lambda row: _measures_memory(row, "a100-pcie-80gb") and _has_experts(row),
        }.items()
    ),
)

# What is taken away -> constants that do so.
ABLATIONS: Mapping[str, Point] = {
    "launch floor of the host": (("host_launch_s", 0.0), ("host_collective_s", 0.0), ("contended_step_s", 0.0)),
    "passes that no Python code starts": (("bare_launch", 1.0),),
    "host time of collectives": (("host_collective_s", 0.0),),
    "waits of tensor-parallel collectives": (("collective_wait_s", 0.0),),
    "exchange behind the backward pass": (("dp_overlap", 0.9),),
    "collectives held up by transfers between nodes": (("contended_step_s", 0.0),),
    "whole gradients under ZeRO-1, behind the backward pass": (("zero_whole", 0.0),),
    "pieces of gathered weights": (("shard_piece_s", 0.0),),
    "kernels of the update, tensor by tensor": (("update_launches", 0.0),),
    "clipping and zeroing of gradients": (("gradient_passes", 0.0),),
    "traffic of an unfused loss": (("loss_bytes_per_logit", 0.0),),
    "latency of each gradient bucket": (("bucket_bytes", 0.0),),
    "rate of fused attention": (("attention_fraction", 1.0), ("attention_backward_fraction", 1.0)),
    "sustained against best matrix rate": (("step_fraction", 1.0),),
    "slow products of odd rows": (("odd_fraction", 1.0),),
    "element-wise kernels inside a step": (("elementwise_fraction", 1.0),),
    "softmax of attention in five kernels": (("softmax_multiple", 0.0),),
    "exchange behind gradients of weights": (("column_overlap", 0.0),),
    "experts started one by one, and waits for the counts of their tokens": (("expert_launches", 0.0),),
    "one copy of a token per node": (("node_copies", 1.0),),
    "what plain autograd moves and keeps": (("autograd_copies", 0.0), ("gradient_copies", 0.0)),
    "gathered inputs that are kept (memory)": (("gathered_copies", 0.0),),
    "buckets beside the gradients (memory)": (("bucket_copies", 0.0),),
    "reserve of the device's memory (memory)": (("unusable_memory", 0.0),),
    "copies of the logits (memory)": (("logits_copies", 0.0),),
}
# What is known of frameworks beside constants -> what is put in place of a name to be without it.
FRAMEWORK_ABLATIONS: Mapping[str, tuple[Any, str, Any]] = {
    "stages as the framework cuts them": (
        hardware,
        "framework_of_row",
        lambda row: replace(framework_of_row(row), stages="balanced"),
    ),
    "memory of the rank that reports it (memory)": (plans, "_LOGS", {}),
}


def preset_of(point: Point = (), calibration: str = "") -> Preset:
    """The default cost model, calibrated, with other constants; names with a space between them share a value."""
    preset = calibrated(DEFAULT, load_calibration(calibration).calibration) if calibration else DEFAULT
    single = [(name, value) for names, value in point for name in names.split()]
    return replace(
        preset,
        efficiency=tuple(pair for pair in single if pair[0] in EFFICIENCY),
        assumed=(*preset.assumed, *(pair for pair in single if pair[0] not in EFFICIENCY)),
    )


def rows_of(part: Part, folder: Path) -> list[Row]:
    """The rows of a part."""
    return [row for row in _rows(tuple(part.files), folder) if part.keep(row)]


@lru_cache(maxsize=4)
def _rows(files: tuple[str, ...], folder: Path) -> list[Row]:
    """All rows of some tables."""
    return [row for name in files for row in read(table(folder, name)).rows]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trials:
    """How well every point of a grid predicts some rows.

    Attributes
    ----------
    rows : list of Row
    points : list of Point
    errors : array (points, rows)
        As `errors_of`.
    """

    rows: list[Row]
    points: list[Point]
    errors: np.ndarray
    calibration: str = ""

    def outcomes(self, point: int) -> list[Outcome]:
        """Predictions of all rows with one of the points."""
        return predict(self.rows, preset_of(self.points[point], self.calibration))


def trials_of(part: Part, folder: Path) -> Trials:
    """The rows that choose a part's constants, with every point of its grid."""
    keep = None if part.together else part.keep
    return _trials(tuple(part.files), keep, tuple(part.grid.items()), folder, part.calibration, part.of_memory)


@lru_cache(maxsize=1)  # parts that choose their constants together have the same
def _trials(
    files: tuple[str, ...],
    keep: Callable[[Row], bool] | None,
    grid: tuple[tuple[str, tuple[float, ...]], ...],
    folder: Path,
    calibration: str = "",
    of_memory: bool = False,
) -> Trials:
    rows = [row for row in _rows(files, folder) if keep is None or keep(row)]
    names = [name for name, _ in grid]
    points = [tuple(zip(names, point, strict=True)) for point in itertools.product(*(values for _, values in grid))]
    errors = np.array([errors_of(predict(rows, preset_of(point, calibration)), of_memory) for point in points])
    return Trials(rows=rows, points=points, errors=errors, calibration=calibration)


def undisturbed(part: Part, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that were not disturbed, by what was measured alone.

    A run is disturbed that takes over twice as long per slot of its pipeline as the quickest run of the same network, tensor and pipeline
    parallelism and micro-batch on any number of nodes. Replicas change only the exchange of gradients, which may double a slot where a step
    has a single one; a run held up by the machine takes up to twenty times as long.
    """

    def slot_s(row: Row) -> float:
        return float(row.text("step_time_ms")) / (int(row.text("grad_accum")) + int(row.text("pp")) - 1)

    least: dict[tuple[str, ...], float] = {}
    works = [tuple(outcome.row.text(column) for column in part.same_work) for outcome in outcomes]
    for outcome, work in zip(outcomes, works, strict=True):
        if outcome.comparisons:
            least[work] = min(slot_s(outcome.row), least.get(work, np.inf))
    return [
        outcome
        for outcome, work in zip(outcomes, works, strict=True)
        if not outcome.comparisons or slot_s(outcome.row) <= 2.0 * least[work]
    ]


def without_fact(rows: Sequence[Row], change: tuple[Any, str, Any], preset: Preset = DEFAULT) -> list[Outcome]:
    """Predict without something that is known of frameworks: a module, a name in it, and what stands there instead."""
    fresh = [Row(line=row.line, cells=row.cells) for row in rows]  # those given know their framework by now
    with mock.patch.object(*change):
        return predict(fresh, preset)


def errors_of(outcomes: Sequence[Outcome], of_memory: bool = False) -> np.ndarray:
    """|log(predicted / measured)| of every row, of its time or its memory; not a number where nothing was measured."""
    if of_memory:
        known = [o.memory if o.memory and o.memory.measured_bytes else None for o in outcomes]
        return np.array([abs(np.log(m.reported_bytes / m.measured_bytes)) if m else np.nan for m in known])
    found = [o.comparisons[0] if o.comparisons else None for o in outcomes]
    return np.array([abs(np.log(c.predicted_s / c.measured_s)) if c else np.nan for c in found])


def best_of(part: Part, rows: Sequence[Row], errors: np.ndarray) -> int:
    """Point of the grid with the least errors (points, rows)."""
    if part.has_outliers:
        return int(np.nanargmin(np.nanmedian(errors, axis=1)))
    kinds = np.array([row.text(part.together) == "1" for row in rows])
    means = [np.nanmean(errors[:, kinds == kind], axis=1) for kind in np.unique(kinds)]
    return int(np.argmin(np.sum(means, axis=0)))


def left_out(part: Part, trials: Trials, columns: Sequence[str]) -> list[Outcome]:
    """Outcomes of every row by the point that suits the rows of the other groups best; rows equal in all columns are a group."""
    groups = [tuple(row.text(column) for column in columns) for row in trials.rows]
    best = {}
    for group in set(groups):
        others = [n for n, own in enumerate(groups) if own != group]
        best[group] = best_of(part, [trials.rows[n] for n in others], trials.errors[:, others])
    outcomes = {point: trials.outcomes(point) for point in set(best.values())}
    return [outcomes[best[group]][n] for n, group in enumerate(groups)]


def _cell(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)


def line(name: str, found: Score) -> str:
    """One line of a table."""
    cells = (
        name,
        _cell(found["mape"], ".1%"),
        _cell(found["median_ape"], ".1%"),
        _cell(found["bias"], "+.2f"),
        _cell(found["kendall_tau"], ".2f"),
        _cell(found["regret_top1_mean"]),
        _cell(found["regret_top3_mean"]),
        _cell(found["memory_median_ape"], ".1%"),
        _cell(found["oom_recall"], ".1%") if found["failures"] else "-",
        _cell(found["oom_false_alarm"], ".1%") if found["failures"] else "-",
    )
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| {} | MAPE | median | bias | tau | regret | top 3 | memory | recall | false alarms |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def ablated(rows: Sequence[Row], calibration: str = "") -> Iterator[tuple[str, list[Outcome]]]:
    """What is taken away, and the predictions without it."""
    for name, point in ABLATIONS.items():
        yield name, predict(rows, preset_of(point, calibration))
    for name, change in FRAMEWORK_ABLATIONS.items():
        yield name, without_fact(rows, change, preset_of(calibration=calibration))


def _fits(part: Part, folder: Path) -> list[str]:
    """Lines of the first table."""
    if not part.grid:
        rows = rows_of(part, folder)
        found = {"nothing fitted": DEFAULT, "preset `paleo`": PALEO}
        bold, paleo = (line(name, score(predict(rows, preset))) for name, preset in found.items())
        return [bold.replace("| ", f"| **{part.name}** ({len(rows)}), ", 1), paleo]
    trials = trials_of(part, folder)
    rows = trials.rows
    scored = [n for n, row in enumerate(rows) if part.keep(row)]

    def own(name: str, outcomes: Sequence[Outcome]) -> str:
        return line(name, score([outcomes[n] for n in scored]))

    lines = [
        own(
            f"**{part.name}** ({len(scored)}), {_constants(part)}",
            predict(rows, preset_of(calibration=part.calibration)),
        )
    ]
    best = best_of(part, rows, trials.errors)
    chosen = ", ".join(f"{name} {value:g}" for name, value in trials.points[best])
    lines.append(own(f"in sample: {chosen}", trials.outcomes(best)))
    for fold, columns in part.folds.items():
        outcomes = left_out(part, trials, columns)
        lines.append(own(f"left out by {fold}", outcomes))
        if part.same_work:
            calm = undisturbed(part, outcomes)
            lines.append(line(f"not disturbed ({len(calm)}), left out by {fold}", score(calm)))
    return [*lines, own("preset `paleo`", predict(rows, PALEO))]


def _constants(part: Part) -> str:
    return f"calibration `{part.calibration}`" if part.calibration else "bundled"


def _ablations(part: Part, folder: Path) -> list[str]:
    """Lines of one of the second tables."""
    rows = rows_of(part, folder)
    complete = line("", score(predict(rows, preset_of(calibration=part.calibration))))
    lines = ["", HEAD.format(part.name), f"| all of it{complete.removeprefix('| ')}"]
    for name, changed in ablated(rows, part.calibration):
        found = line("", score(changed))
        if found != complete:
            lines.append(f"| without {name}{found.removeprefix('| ')}")
    return lines


def accuracy(folder: Path, text: str = "") -> str:
    """Both tables, of the parts whose names hold a text."""
    fits, without = [HEAD.format("rows, constants")], []
    for part in (part for part in PARTS if text in part.name):
        fits += _fits(part, folder)
        without += _ablations(part, folder)
        print(f"{part.name}: done", file=sys.stderr)
    return "\n".join(["### Fitted and left out", "", *fits, "", "### Without each piece of physics", *without])


def main(arguments: Sequence[str]) -> None:
    """Print the tables, or write them."""
    text = accuracy(measurements(), " ".join(word for word in arguments if word != "--write"))
    if "--write" in arguments:
        put(PAGE, BEGIN, text, END)
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
