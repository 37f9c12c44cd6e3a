"""Kernels, single-device networks and collectives against the model: bundled, on devices and machines left out, and without each piece.

Usage: PLANNER_REFERENCE_DATA=FOLDER python benchmarks/accuracy_kernels.py [--write | TEXT]     (about two minutes)

Left out by device: all constants of products and convolutions are found without the rows of a device (from textbook values, block by
block over a small grid; least mean plus half the median of |log(predicted / measured)|), its own rate is that of the others, and it is
scored with them. Networks: the K80's constants are found without a network or without a number of GPUs; no constant was fitted to the
networks on other devices. Collectives: latency and link speed from a cluster file that was not fitted to the machine's rows of 1 MB and
more.
``--write`` puts the tables into docs/accuracy.md; TEXT chooses sections with it in their names.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pages import measurements, put

from benchmarks.datasets import read
from costmodel.arrays import BoolArray, FloatArray
from planner.measurements import collective_rows, convnets, hardware, kernels, operators
from planner.measurements.outcomes import DEFAULT, PALEO, Outcome, Preset
from planner.measurements.tables import Row

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
BEGIN = "<!-- kernels: python benchmarks/accuracy_kernels.py --write -->"
END = "<!-- end of the kernels -->"

Predictor = Callable[[Sequence[Row], Preset], list[Outcome]]

KERNELS: Mapping[str, tuple[str, Predictor]] = {
    "GEMM": ("deepbench_gemm", kernels.predict_products),
    "convolution": ("deepbench_conv", kernels.predict_convolutions),
    "RNN": ("deepbench_rnn", kernels.predict_recurrent),
}
# Values tried; the search starts from the first, a textbook's: no multiples, and what the algorithms promise.
GRID: Mapping[str, Sequence[float]] = {
    "matmul_fraction": (0.80, 0.65, 0.70, 0.75, 0.85, 0.90),
    "vector_tile": (1.0, 0.5, 1.5, 2.0, 2.7),
    "vector_floor": (0.0, 2.0, 2.5, 3.0),
    "vector_fill": (1.0, 0.6, 1.5, 2.0),
    "vector_depth": (1.0, 2.0, 3.0, 4.0),
    "vector_split": (1.0, 0.05, 0.1, 0.22),
    "thin_tile": (1.0, 0.2, 0.37, 0.6),
    "thin_fill": (1.0, 2.0, 3.0, 5.0),
    "thin_depth": (1.0, 0.8, 1.25, 2.0),
    "weights_depth": (1.0, 4.0, 10.0, 17.0, 28.0),
    "thin_split": (1.0, 0.22, 0.5),
    "winograd_fraction": (1.0, 0.7, 0.8, 0.9),
    "fft_fraction": (1.0, 0.2, 0.4, 0.6),
    "strided_gradient_fraction": (1.0, 0.2, 0.3, 0.45),
}
# Constants that are searched together: one makes up for another.
BLOCKS = (
    ("matmul_fraction", "winograd_fraction"),
    ("thin_tile", "thin_fill", "thin_split"),
    ("vector_tile", "vector_floor"),
    ("vector_fill", "vector_split", "vector_depth"),
    ("thin_depth", "fft_fraction"),
    ("strided_gradient_fraction", "weights_depth"),
)
SWEEPS = 2
EVERY = 4  # the search looks at every fourth row: it takes a quarter of the time
# Of the K80, the only device of its generation: the constants that its device file states.
K80_GRID: Mapping[str, Sequence[float]] = {
    "matmul_fraction": (0.57, 0.65, 0.75, 0.85),
    "thin_tile": (0.37, 1.0, 1.5),
    "thin_fill": (3.0, 8.0, 14.0),
}

# What is taken away -> constants that do so (the other constants stay).
ABLATIONS: Mapping[str, Mapping[str, float]] = {
    "tiles, depth and fill of vector units": {
        "vector_tile": 1.0,
        "vector_fill": 1.0,
        "vector_depth": 1.0,
        "vector_split": 1.0,
        "vector_floor": 0.0,
    },
    "what few lanes gain": {"vector_loss": 0.0},
    "least side of tiles": {"vector_floor": 0.0},
    "kernels for thin matrices": {"thin_tile": 2.5, "thin_depth": 2.0, "thin_fill": 2.0, "thin_split": 0.1},
    "Winograd": {"winograd_fraction": 0.01},
    "FFT": {"fft_fraction": 0.01},
    "scattered sums of strided gradients": {"strided_gradient_fraction": 1.0},
    "depth of gradients of weights": {"weights_depth": 0.9},
}
# Machines that share what a cluster file was fitted to; a row belongs to the first whose text its device holds.
MACHINES = ("p5", "p4de", "HBM3 DGX", "NV_P100", "NV_TitanX", "")
ENGINES = "AIConfigurator, "  # and the device: nodes of its kernel database


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of a table: what, and log(predicted / measured) of its comparisons."""

    name: str
    errors: FloatArray

    def text(self) -> str:
        """Markdown."""
        if not len(self.errors):
            return f"| {self.name} | 0 | - | - | - |"
        off = np.abs(np.expm1(self.errors))
        return f"| {self.name} | {len(off)} | {off.mean():.1%} | {np.median(off):.1%} | {self.errors.mean():+.2f} |"


def errors(outcomes: Iterable[Outcome]) -> FloatArray:
    """log(predicted / measured) of every comparison."""
    pairs = [(c.predicted_s, c.measured_s) for outcome in outcomes for c in outcome.comparisons]
    return np.log([p / m for p, m in pairs])


def with_constants(constants: Mapping[str, float]) -> Preset:
    """The default model with other constants of `Efficiency`, on every device."""
    return Preset(name="roofline", efficiency=tuple(constants.items()))


class Data:
    """Tables of the reference data, each read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, list[Row]] = {}

    def rows(self, name: str) -> list[Row]:
        """Rows of a table."""
        if name not in self._known:
            self._known[name] = list(read(self._folder / f"{name}.csv").rows)
        return self._known[name]


def fitted(tables: Mapping[str, Sequence[Row]]) -> dict[str, float]:
    """Constants that meet these rows of the kernel tables best; every device of every table counts the same.

    Rows that store in one format and multiply in another are left aside: what their conversions cost, no constant says.
    """
    parts = [
        (
            KERNELS[name][1],
            [r for r in rows if r.text("device") == device and "math" not in r.text("precision_as_published")][::EVERY],
        )
        for name, rows in tables.items()
        for device in sorted({r.text("device") for r in rows})
    ]

    def loss(constants: Mapping[str, float]) -> float:
        total = 0.0
        for predict, rows in parts:
            off = np.abs(errors(predict(rows, with_constants(constants))))
            total += float(np.minimum(off, 1.2).mean() + 0.5 * np.median(off))
        return total

    best = {name: values[0] for name, values in GRID.items()}
    least = loss(best)
    for _ in range(SWEEPS):
        for block in BLOCKS:
            for values in itertools.product(*(GRID[name] for name in block)):
                trial = {**best, **dict(zip(block, values, strict=True))}
                if trial != best and (found := loss(trial)) < least:
                    best, least = trial, found
    return best


def kernel_tables(data: Data) -> list[str]:
    """DeepBench on devices that were not fitted, and the ablation."""
    tables = {name: data.rows(file) for name, (file, _) in KERNELS.items()}
    devices = sorted({row.text("device") for rows in tables.values() for row in rows})
    lines: list[Line] = []
    left_out: dict[str, list[FloatArray]] = {name: [] for name in tables}
    notes = []
    for device in devices:
        others = {name: [r for r in rows if r.text("device") != device] for name, rows in tables.items()}
        constants = fitted(others)
        notes.append(f"without {device}: " + ", ".join(f"{key} {value:g}" for key, value in constants.items()))
        for name, rows in tables.items():
            mine = [r for r in rows if r.text("device") == device]
            found = errors(KERNELS[name][1](mine, with_constants(constants)))
            left_out[name].append(found)
            lines.append(Line(name=f"{name}, {device} left out", errors=found))
    for name, rows in tables.items():
        predict = KERNELS[name][1]
        lines.append(Line(name=f"**{name}**, bundled", errors=errors(predict(rows, DEFAULT))))
        lines.append(Line(name="left out by device", errors=np.concatenate(left_out[name])))
        lines.append(Line(name="preset `paleo`", errors=errors(predict(rows, PALEO))))
        for what, constants in ABLATIONS.items():
            without = errors(predict(rows, with_constants(constants)))
            lines.append(Line(name=f"bundled without {what}", errors=without))
    return [*_table("kernel", lines), "", "Constants found:", "", *(f"- {note}" for note in notes)]


def _best_library(rows: Sequence[Row]) -> list[Row]:
    """Per network and precision the row with the least time."""
    best: dict[tuple[str | None, str], Row] = {}
    for row in rows:
        key = (convnets.network_name(row), row.text("precision"))
        time = row.number("step_time_ms")
        if time is not None and (key not in best or time < float(best[key].text("step_time_ms"))):
            best[key] = row
    return list(best.values())


def networks(data: Data) -> list[str]:
    """Convolutional networks on one device and data parallel."""
    rows = data.rows("convnet_benchmarks_nets")
    best = _best_library(rows)
    wide = [row for row in best if row.text("precision") == "fp32"]
    lines = [Line(name="**Titan X, best library** (fp32), nothing fitted", errors=_network_errors(wide, DEFAULT))]
    lines += [
        Line(name=f"{row.text('model_as_published')}, {row.text('library')}", errors=_network_errors([row], DEFAULT))
        for row in wide
    ]
    lines.append(Line(name="best library, fp16 and fp32", errors=_network_errors(best, DEFAULT)))
    lines.append(Line(name="all libraries", errors=_network_errors(rows, DEFAULT)))
    lines.append(Line(name="best library (fp32), preset `paleo`", errors=_network_errors(wide, PALEO)))
    resnet = [row for row in data.rows("nvidia_dle_resnet_bert") if row.text("model").startswith("resnet")]
    lines.append(Line(name="**ResNet-50 on V100 and A100**, bundled", errors=_network_errors(resnet, DEFAULT)))
    plain = with_constants({"vector_loss": 0.0})  # the one constant that was fitted to these rows, those in fp32
    lines.append(Line(name="ResNet-50, nothing fitted to it", errors=_network_errors(resnet, plain)))
    for word in ("fp16", "amp", "tf32", "fp32"):
        part = [row for row in resnet if (row.text("precision_as_published") or row.text("precision")) == word]
        lines.append(Line(name=f"ResNet-50, {word}", errors=_network_errors(part, DEFAULT)))
    lines.append(Line(name="ResNet-50, preset `paleo`", errors=_network_errors(resnet, PALEO)))
    k80 = data.rows("tf_cnn_benchmarks")
    lines.append(Line(name="**K80, 1 to 64 dies**, bundled", errors=_network_errors(k80, DEFAULT)))
    lines += _k80_left_out(k80)
    lines.append(Line(name="K80, preset `paleo`", errors=_network_errors(k80, PALEO)))
    return _table("network", lines)


def _k80_left_out(rows: Sequence[Row]) -> list[Line]:
    """The K80's constants found without a network, and without a number of GPUs."""
    points = itertools.product(*K80_GRID.values())
    found = [_per_row(rows, with_constants(dict(zip(K80_GRID, point, strict=True)))) for point in points]
    off = np.abs(np.expm1(np.stack(found)))
    lines = []
    for what, column in (("network", "model"), ("GPUs", "gpus")):
        group = np.array([row.text(column) for row in rows])
        errors_of = np.full(len(rows), np.nan)
        for name in np.unique(group):
            inside = group == name
            errors_of[inside] = found[int(np.argmin(off[:, ~inside].mean(axis=1)))][inside]
        lines.append(Line(name=f"left out by {what}", errors=errors_of))
    return lines


def _network_errors(rows: Sequence[Row], preset: Preset) -> FloatArray:
    return errors(convnets.predict(rows, preset))


def _per_row(rows: Sequence[Row], preset: Preset) -> FloatArray:
    outcomes = convnets.predict(rows, preset)
    assert all(len(outcome.comparisons) == 1 for outcome in outcomes)
    return errors(outcomes)


def operator_tables(data: Data) -> list[str]:
    """Operators of profiled networks, layers by library, and the best matrix rate of accelerators."""
    profiled, matrices = data.rows("pipedream_layers"), data.rows("mamf_matmul_peak")
    lines = [
        Line(name="**PipeDream's operators**, bundled", errors=errors(operators.predict(profiled, DEFAULT))),
        Line(name="left out by network", errors=_profiler_left_out(profiled)),
        Line(name="without the profiler's own time", errors=errors(_without_profiler(profiled))),
        Line(
            name="**best matrix rate** (maximum achievable matmul FLOPS), bundled",
            errors=errors(kernels.predict_peaks(matrices, DEFAULT)),
        ),
    ]
    return _table("operators", lines)


# A product of so many operations is large: a tenth of a millisecond at 1 PFLOP/s, some forty starts of a kernel.
LARGE_FLOP = 1e11


def products(data: Data) -> list[str]:
    """Matrix products by device and format, nothing fitted to them: the large ones, and all."""
    tables = {
        "": kernels.predict_products([*data.rows("serving_kernels_gemm"), *data.rows("deepbench_gemm")], DEFAULT),
        ", best shape": kernels.predict_peaks(data.rows("mamf_matmul_peak"), DEFAULT),
    }
    lines = []
    for part, least in (("products of 1e11 FLOP and more", LARGE_FLOP), ("all products", 0.0)):
        groups: dict[str, list[Outcome]] = {}
        for kind, outcomes in tables.items():
            for outcome in outcomes if least or not kind else ():
                row = outcome.row
                if kind or 2.0 * math.prod(row.count(side) or 0 for side in "mnk") >= least:
                    groups.setdefault(f"{row.text('device')}, {row.text('precision')}{kind}", []).append(outcome)
        lines.append(Line(name=f"**{part}**", errors=errors(outcome for group in groups.values() for outcome in group)))
        lines += [Line(name=name, errors=errors(group)) for name, group in sorted(groups.items())]
    return _table("product", lines)


def attention(data: Data) -> list[str]:
    """Operators of an engine's attention: those that read prompts, by device and formats of queries and cache."""
    outcomes = kernels.predict_measured(data.rows("serving_kernels_attention"), DEFAULT)
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        row = outcome.row
        name = f"{row.text('device')}, {row.text('precision')}, cache in {row.text('kv_precision')}"
        groups.setdefault(name, []).append(outcome)
    lines = [Line(name="**attention of TensorRT-LLM**", errors=errors(outcomes))]
    lines += [Line(name=name, errors=errors(group)) for name, group in sorted(groups.items())]
    return _table("attention", lines)


def mixtures(data: Data) -> list[str]:
    """Experts of a rank in an engine, by device and format, and by how their loads are spread."""
    outcomes = kernels.predict_measured(data.rows("serving_kernels_moe"), DEFAULT)
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        row = outcome.row
        loads = "uneven" if row.has("expert_spread") else "equal"
        groups.setdefault(f"{row.text('device')}, {row.text('precision')}, {loads} loads", []).append(outcome)
    lines = [Line(name="**experts of TensorRT-LLM**", errors=errors(outcomes))]
    lines += [Line(name=name, errors=errors(group)) for name, group in sorted(groups.items())]
    return _table("experts", lines)


def _without_profiler(rows: Sequence[Row]) -> list[Outcome]:
    bare = [Row(line=r.line, cells={**r.cells, "profiler": ""}, defaults=r.defaults) for r in rows]
    return operators.predict(bare, DEFAULT)


def _profiler_left_out(rows: Sequence[Row]) -> FloatArray:
    """The profiler's time forward and backward found without a network (its least squared relative error on a grid)."""
    image = [row for row in rows if row.has("profiler")]
    outcomes = _without_profiler(image)
    items = [
        (o.row.text("net"), c.what == "forward", c.predicted_s, c.measured_s) for o in outcomes for c in o.comparisons
    ]
    net = np.array([item[0] for item in items])
    forward = np.array([item[1] for item in items])
    predicted, measured = (np.array([item[k] for item in items]) for k in (2, 3))
    grid = [(f * 25e-6, b * 10e-6) for f in range(21) for b in range(11)]
    found = np.empty(len(items))
    for group in sorted(set(net.tolist())):
        inside = net == group

        def off(point: tuple[float, float], rows_in: BoolArray = ~inside) -> float:
            shifted = predicted + np.where(forward, *point)
            return float(np.abs(shifted / measured - 1.0)[rows_in].mean())

        point = min(grid, key=off)
        found[inside] = np.log((predicted + np.where(forward, *point)) / measured)[inside]
    others = [row for row in rows if not row.has("profiler")]
    return np.concatenate([found, errors(operators.predict(others, DEFAULT))])


def collectives(data: Data) -> list[str]:
    """Messages of 1 MB and more, by machine."""
    rows = [*data.rows("collectives"), *data.rows("deepbench_allreduce")]
    rows = [row for row in rows if (row.number("bytes") or 2.0**33) >= 1e6]
    lines: list[Line] = []
    by_machine: dict[str, list[Row]] = {}
    for row in rows:
        by_machine.setdefault(next(m for m in MACHINES if m in row.text("dataset_group")), []).append(row)
    for row in data.rows("serving_kernels_collectives"):
        if (row.number("bytes") or 0.0) >= 1e6:
            by_machine.setdefault(ENGINES + row.text("device"), []).append(row)
            rows.append(row)
    lines.append(Line(name="**all**, bundled", errors=errors(collective_rows.predict(rows, DEFAULT))))
    for machine, mine in by_machine.items():
        name = machine or "plateaus of named links"
        lines.append(Line(name=f"{name}, bundled", errors=errors(collective_rows.predict(mine, DEFAULT))))
    a100 = ENGINES + "a100-80gb"
    changed = {"p5": _foreign_p5, "NV_TitanX": _foreign_titan, a100: _foreign_a100}
    foreign = [found(by_machine[machine]) for machine, found in changed.items()]
    same = [errors(collective_rows.predict(by_machine[m], DEFAULT)) for m in by_machine if m not in changed]
    lines.append(Line(name="p5, steps of rings from the latency alone", errors=foreign[0]))
    lines.append(Line(name="NV_TitanX, efficiencies of the P100's machine", errors=foreign[1]))
    lines.append(Line(name="A100 of AIConfigurator, latency of the H100", errors=foreign[2]))
    lines.append(Line(name="**all, left out by machine**", errors=np.concatenate([*foreign, *same])))
    lines.append(Line(name="preset `paleo`", errors=errors(collective_rows.predict(rows, PALEO))))
    far = {machine: [row for row in mine if (row.count("nodes") or 1) > 1] for machine, mine in by_machine.items()}
    unseen = [
        changed[m](mine) if m in changed else errors(collective_rows.predict(mine, DEFAULT)) for m, mine in far.items()
    ]
    lines.append(Line(name="**across nodes, left out by machine**", errors=np.concatenate(unseen)))
    return _table("machine", lines)


def _foreign_p5(rows: Sequence[Row]) -> FloatArray:
    """The step of a ring was fitted to these rows; the latency is from other measurements."""
    return _with_levels(rows, lambda level: replace(level, ring_step_s=0.0))


def _foreign_titan(rows: Sequence[Row]) -> FloatArray:
    """5.9 of 15.75 GB/s inside a node and 2.8 of 6.8 between nodes: plateaus of the P100's rows."""
    return _with_levels(rows, lambda level: replace(level, efficiency=0.37 if level.size else 0.41))


def _foreign_a100(rows: Sequence[Row]) -> FloatArray:
    """The latency of NVLink in dgx-a100 is from the small messages of this machine."""
    return _with_levels(rows, lambda level: replace(level, latency_s=4e-6) if level.name == "nvlink" else level)


def _with_levels(rows: Sequence[Row], change: Callable[[hardware.Level], hardware.Level]) -> FloatArray:
    class Changed(Preset):
        def cluster(self, cluster: hardware.Cluster) -> hardware.Cluster:
            return replace(cluster, levels=tuple(change(level) for level in cluster.levels))

    return errors(collective_rows.predict(rows, Changed(name="roofline")))


def _table(first: str, lines: Sequence[Line]) -> list[str]:
    head = [f"| {first} | comparisons | MAPE | median | bias |", "| --- | ---: | ---: | ---: | ---: |"]
    return head + [line.text() for line in lines]


SECTIONS: Mapping[str, Callable[[Data], list[str]]] = {
    "Kernels (DeepBench)": kernel_tables,
    "Convolutional networks": networks,
    "Operators and peaks": operator_tables,
    "Products by device and format": products,
    "Attention of engines": attention,
    "Experts of engines": mixtures,
    "Collectives of 1 MB and more": collectives,
}


def main(arguments: Sequence[str]) -> None:
    """Print the tables, or put them into the page."""
    data = Data(measurements())
    write = "--write" in arguments
    words = [word.lower() for word in arguments if word != "--write"]
    page: list[str] = []
    for title, section in SECTIONS.items():
        if words and not any(word in title.lower() for word in words):
            continue
        text = [f"### {title}", "", *section(data), ""]
        print("\n".join(text), flush=True)
        page += text
    if write and not words:
        put(PAGE, BEGIN, "\n".join(page).rstrip(), END)


if __name__ == "__main__":
    main(sys.argv[1:])
