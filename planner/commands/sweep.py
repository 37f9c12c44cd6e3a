"""``planner sweep``: a grid of searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.mesh_options import takes_mesh_options
from planner.commands.output import Output, emit, remark
from planner.commands.progress import Progress
from planner.commands.question import output_of, request_from
from planner.commands.report_options import check_png, is_installed
from planner.commands.values import MAX_GPUS, Values
from planner.core.errors import OutputError
from planner.core.quantities import in_tokens
from planner.files.output import check_writable, write_atomically, write_bytes_atomically

if TYPE_CHECKING:
    from planner.core.request import Request
    from planner.sweeping.grid import Axes
    from planner.sweeping.run import Swept

__all__ = ["SweepQuestion", "sweep", "sweep_question", "write_figure"]

_MOST_CELLS = 100_000
_MOST_JOBS = 1_024

GpuCounts = Annotated[
    str | None,
    o.option(
        "--gpus",
        "-g",
        metavar="LIST",
        help="Workers at most, one cell each: 8,16,32..1024; a range doubles, as in 32,64,128,...,1024.",
        group=o.QUESTION,
    ),
]
Clusters = Annotated[
    str | None,
    o.option(
        "--cluster",
        "-c",
        metavar="LIST",
        help="Clusters, by names or files with commas; a100 is short for dgx-a100. Default: where --device usually stands, else dgx-h100.",
        group=o.QUESTION,
    ),
]
Batches = Annotated[
    str | None,
    o.option(
        "--batch", "-b", metavar="LIST", help="Samples per step: 256,512. Default: the model's own.", group=o.QUESTION
    ),
]
Seqs = Annotated[
    str | None,
    o.option(
        "--seq", metavar="LIST", help="Positions of a sample: 4096,8192. Default: the network's own.", group=o.QUESTION
    ),
]
Jobs = Annotated[
    str | None,
    o.option("--jobs", "-j", metavar="N", help="Search in N processes here. Default: 1.", group=o.SEARCH),
]
Dask = Annotated[
    str | None,
    o.option(
        "--dask",
        metavar="ADDRESS",
        help="Search on the workers of a Dask scheduler, as in tcp://10.0.0.1:8786 (extra 'dask').",
        group=o.SEARCH,
    ),
]
Fresh = Annotated[
    bool, o.option("--fresh", metavar=None, help="Search everything again, whatever a journal has.", group=o.SEARCH)
]
Plot = Annotated[
    str | None,
    o.option(
        "--plot",
        metavar="FILE",
        help="Also write throughput over GPUs: .svg, or .png with the extra 'plots'.",
        group=o.OUTPUT,
    ),
]


@takes_mesh_options
def sweep(
    context: typer.Context,
    model: o.Model,
    gpus: GpuCounts = None,
    cluster: Clusters = None,
    device: o.Device = None,
    batch: Batches = None,
    seq: Seqs = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    memory_limit: o.MemoryLimit = None,
    memory_reserve: o.MemoryReserve = None,
    assume_free: o.AssumeFree = None,
    lora_rank: o.LoraRank = None,
    objective: o.Objective = None,
    space: o.Space = None,
    family: o.Family = None,
    fix: o.Fix = None,
    collective: o.Collective = None,
    micro_batches: o.MicroBatches = None,
    calibration: o.Calibration = None,
    framework: o.Framework = None,
    assume: o.Assume = None,
    price_per_hour: o.Price = None,
    power_w: o.Power = None,
    jobs: Jobs = None,
    dask: Dask = None,
    fresh: Fresh = False,
    time_limit: o.TimeLimit = None,
    gap: o.Gap = "0",
    seed: o.Seed = "0",
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    plot: Plot = None,
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    *,
    mesh: Mapping[str, Any],
) -> None:
    """Search a grid of clusters, numbers of GPUs, batches and lengths: one row each, to a CSV or Parquet file.

    With -o, rows that are done are kept in a journal beside the file (FILE.journal): the same command goes on where a killed one
    stopped. A cell where nothing fits is a row that says why.

    \b
    planner sweep llama3-70b --gpus 8,16,32..1024 --cluster a100,h100 --batch 1024 --jobs 4 -o sweep.csv
    planner sweep alexnet --gpus 1..16 --batch 128,256 -o sweep.parquet --plot sweep.svg
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    options: dict[str, Any] = locals()
    values = Values()
    is_parquet = output is not None and Path(output).suffix.lower() == ".parquet"
    figure = _figure_path(plot, values)
    question = sweep_question(options, values)
    where = output_of({**options, "output": None} if is_parquet else options, values)
    if is_parquet and (json or format is not None):
        values.add(f"--output {output}: is a Parquet file; leave --format and --json out")
    target = Path(output) if is_parquet and output is not None else where.path
    if target is not None and is_parquet:
        _checked(target, "--output", values)
        _check_parquet(values)
    values.check()
    with Progress(where) as progress:
        swept = question.answer(None if target is None else _journal_of(target), progress)
    _write(swept, question.request, target if is_parquet else None, figure, where)
    if swept.interrupted:
        left = swept.total - len(swept.rows)
        how = "the same command goes on" if target is not None else "with --output FILE the next run would go on"
        remark(where, f"{left} cells are left; {how}")
        raise KeyboardInterrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepQuestion:
    """What is asked, checked."""

    request: Request
    axes: Axes
    jobs: int
    dask: str | None
    fresh: bool

    def answer(self, journal: Path | None, progress: Callable[[str, float], None] | None = None) -> Swept:
        """Search what the journal does not have; after Ctrl-C, what is done."""
        from planner.sweeping.grid import cells_of
        from planner.sweeping.journal import Journal
        from planner.sweeping.run import run

        cells = cells_of(self.request, self.axes)
        with Journal(journal, fresh=self.fresh) as opened:
            return run(cells, opened, jobs=self.jobs, dask=self.dask, progress=progress)


def sweep_question(options: Mapping[str, Any], values: Values) -> SweepQuestion:
    """Check the options that ask; what is wrong goes to `values`.

    Parameters
    ----------
    options : mapping
        Parameters of the command by name; ``cluster`` may be a sequence of names and files.
    values : Values
    """
    get = options.get
    dask = get("dask")
    if get("jobs") is not None and dask is not None:
        values.add("--jobs and --dask: choose one")
    if dask is not None and not dask.strip():
        values.add("--dask: needs the address of a scheduler, as in tcp://10.0.0.1:8786")
    single = {"gpus": None, "cluster": None, "batch": None, "seq": None, "top": "1"}
    return SweepQuestion(
        axes=_axes(get("gpus"), get("cluster"), get("batch"), get("seq"), values),
        jobs=1 if get("jobs") is None else values.count("--jobs", options["jobs"], most=_MOST_JOBS),
        dask=dask,
        fresh=bool(get("fresh")),
        request=request_from({**options, **single}, values),
    )


def _journal_of(target: Path) -> Path:
    from planner.sweeping.run import journal_of

    return journal_of(target)


def _write(swept: Swept, request: Request, parquet: Path | None, figure: Path | None, where: Output) -> None:
    from planner.sweeping.report import parquet_bytes, sweep_report

    if parquet is not None:
        write_bytes_atomically(parquet, parquet_bytes(swept.rows))
        remark(where, f"wrote {parquet}")
    report = sweep_report(swept, request.command_line)
    if parquet is None:
        emit(report, where)
    if figure is not None and not write_figure(swept.rows, figure):
        remark(where, f"no figure: no cell has a plan, so {figure} was not written")


def write_figure(rows: Sequence[dict[str, Any]], figure: Path) -> bool:
    """Draw throughput over GPUs into a file; False where no cell has a plan.

    Raises
    ------
    UsageError
        The ending is not one of a figure, or what draws it is not installed.
    OutputError
        The file cannot be written.
    """
    from planner.sweeping.report import scaling_figure

    values = Values()
    _figure_path(str(figure), values)
    values.check()
    drawn = scaling_figure(rows)
    if drawn is None:
        return False
    if figure.suffix.lower() == ".png":
        from planner.report.figures.raster import png_bytes

        write_bytes_atomically(figure, png_bytes(drawn))
    else:
        from planner.report.figures.svg import svg_file

        write_atomically(figure, svg_file(drawn))
    return True


def _axes(
    gpus: str | None, cluster: str | Sequence[str] | None, batch: str | None, seq: str | None, values: Values
) -> Axes:
    from planner.sweeping.grid import Axes, cluster_name

    names = _words(cluster) if isinstance(cluster, str) else cluster
    if gpus is None:
        values.add("--gpus: is missing; say how many workers there are at most, as in --gpus 8,16,32..1024")
    axes = Axes(
        clusters=(None,) if names is None else tuple(dict.fromkeys(cluster_name(name) for name in names)),
        gpus=(1,) if gpus is None else gpu_counts("--gpus", gpus, values),
        batches=(None,) if batch is None else _counts("--batch", batch, values),
        seqs=(None,) if seq is None else _counts("--seq", seq, values),
    )
    if not axes.clusters:
        values.add("--cluster: names no cluster")
    if axes.size > _MOST_CELLS:
        values.add(f"the grid has {axes.size:,} cells, more than {_MOST_CELLS:,}; give shorter lists")
    return axes


def gpu_counts(flag: str, text: str, values: Values) -> tuple[int, ...]:
    """Read numbers of GPUs; ``32..1024`` doubles.

    >>> gpu_counts("--gpus", "8,12,32..128", Values())
    (8, 12, 32, 64, 128)
    """
    from planner.sweeping.grid import doubling_counts

    counts: set[int] = set()
    for part in _words(text):
        first, dots, last = part.partition("..")
        if dots and (not first.strip() or not last.strip() or ".." in last):
            values.add(f"{flag} {part}: a range needs both ends, as in 8..64")
            counts.add(1)
            continue
        low = values.count(flag, first.strip(), most=MAX_GPUS)
        if not dots:
            counts.add(low)
            continue
        high = values.count(flag, last.strip(), most=MAX_GPUS)
        if low > high:
            values.add(f"{flag} {part}: must run from a smaller to a larger number")
            high = low
        counts.update(doubling_counts(low, high))
    if not counts:
        values.add(f"{flag} {text}: names no number")
    return tuple(sorted(counts))


def _counts(flag: str, text: str, values: Values) -> tuple[int, ...]:
    if flag == "--batch" and any(in_tokens(part) for part in _words(text)):
        values.add(f"{flag} {text}: a sweep counts samples, as its lengths differ; divide the tokens by --seq")
        return (1,)
    counts = tuple(dict.fromkeys(values.count(flag, part) for part in _words(text)))
    if not counts:
        values.add(f"{flag} {text}: names no number")
    return counts


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _figure_path(text: str | None, values: Values) -> Path | None:
    if text is None:
        return None
    path = Path(text)
    if path.suffix.lower() not in (".svg", ".png"):
        values.add(f"--plot {text}: a figure ends in .svg or .png")
        return None
    check_png(path, values)
    _checked(path, "--plot", values)
    return path


def _checked(path: Path, flag: str, values: Values) -> None:
    try:
        check_writable(path)
    except OutputError as error:
        values.add(f"{flag} {error}")


def _check_parquet(values: Values) -> None:
    if not is_installed("pyarrow"):
        from planner.sweeping.report import NO_PARQUET

        values.add(NO_PARQUET)
