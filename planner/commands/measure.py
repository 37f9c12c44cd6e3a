"""``planner measure``: times kernels and collectives on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from planner.commands import options as o
from planner.commands.output import emit, remark
from planner.commands.progress import Progress
from planner.commands.question import output_of
from planner.commands.values import Values

__all__ = ["measure"]

_QUICK_LIMIT, _FULL_LIMIT = "15s", "4min"
_MOST_SEED = 2**32 - 1
_DEFAULT_FILE = "measured.csv"

Quick = Annotated[
    bool,
    o.option(
        "--quick",
        metavar=None,
        help="Few shapes: under 20 s. Otherwise up to 5 minutes.",
        group=o.QUESTION,
    ),
]
TableOutput = Annotated[
    str | None,
    o.option(
        "--output",
        "-o",
        metavar="FILE.csv",
        help="The table of measurements. Default: measured.csv, if there is none yet.",
        group=o.OUTPUT,
    ),
]
OnDevice = Annotated[
    str | None,
    o.option(
        "--device",
        metavar="KIND",
        help="cuda or cpu. Default: cuda where PyTorch sees a GPU.",
        group=o.QUESTION,
    ),
]
As = Annotated[
    str | None,
    o.option(
        "--as",
        metavar="NAME|FILE",
        help="Predict for this device ('planner list devices'). Default: what is detected.",
        group=o.COSTS,
    ),
]
AsCluster = Annotated[
    str | None,
    o.option(
        "--cluster",
        "-c",
        metavar="NAME|FILE",
        help="Predict collectives for this cluster. Default: what is detected.",
        group=o.COSTS,
    ),
]
Only = Annotated[
    str | None,
    o.option(
        "--only",
        metavar="KERNEL,...",
        help="gemm, copy, convolution, elementwise, attention, recurrent, collective. Default: all.",
        group=o.QUESTION,
    ),
]
Precisions = Annotated[
    str | None,
    o.option(
        "--precision",
        metavar="NAME,...",
        help="fp32, tf32, bf16, fp16. Default: those that the device computes in.",
        group=o.QUESTION,
    ),
]
Seed = Annotated[
    str | None, o.option("--seed", metavar="N", help="Of the numbers that kernels work on. Default: 0.", group=o.SEARCH)
]
TimeLimit = Annotated[
    str | None,
    o.option(
        "--time-limit",
        metavar="TIME",
        help="Measure for about so long. Default: 4min, 15s with --quick.",
        group=o.SEARCH,
    ),
]


def measure(
    quick: Quick = False,
    device: OnDevice = None,
    only: Only = None,
    precision: Precisions = None,
    as_: As = None,
    cluster: AsCluster = None,
    calibration: o.Calibration = None,
    time_limit: TimeLimit = None,
    seed: Seed = None,
    output: TableOutput = None,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Time kernels and collectives on this machine, and set the predictions beside them.

    Needs the extra 'torch'. The table that it writes is read by planner validate and planner calibrate (docs/measurements.md).

    planner measure --quick -o here.csv

    torchrun --nproc-per-node 2 -m planner measure -o here.csv
    """
    options: dict[str, Any] = locals()
    values = Values()
    where = output_of({**options, "output": None}, values)
    from planner.measure.cases import ELEMENT_BYTES, KINDS

    words = {"gpu": "cuda"}  # what people call it
    wanted_kind = None if device is None else values.choice("--device", words.get(device, device), ("cuda", "cpu"))
    kinds = _words(values, "--only", only, KINDS)
    precisions = _words(values, "--precision", precision, tuple(ELEMENT_BYTES))
    limit_s = values.seconds("--time-limit", time_limit or (_QUICK_LIMIT if quick else _FULL_LIMIT))
    number = values.count("--seed", seed or "0", least=0, most=_MOST_SEED)
    path = _path(output, values)
    values.check()
    _check_names(as_, cluster)
    constants = _constants_of(calibration)

    from planner.detect.system import ThisSystem
    from planner.measure.session import Wanted, measure_here

    wanted = Wanted(
        path=path,
        quick=quick,
        kind=wanted_kind,
        device=as_,
        cluster=cluster,
        kinds=kinds or KINDS,
        precisions=precisions,
        time_limit_s=limit_s or 1.0,
        seed=number,
    )
    with Progress(where) as progress:
        session = measure_here(wanted, ThisSystem(), progress)
    if session.is_first and session.measured.rows:
        from planner.measure.report import measure_report

        for target in (*session.written, path):
            remark(where, f"wrote {target}")
        if session.remark:
            remark(where, session.remark)
        report = measure_report(path, session.device, session.machine, session.software, session.measured, constants)
        emit(report, where)
    elif session.is_first:
        reasons = "; ".join(f"{count} {reason}" for reason, count in session.measured.skipped.items())
        remark(where, f"nothing was measured, and no file written{f': {reasons}' if reasons else ''}")
    if session.measured.stopped:
        raise KeyboardInterrupt  # what was measured is kept; the exit code says that it was stopped


def _constants_of(calibration: str | None) -> Mapping[str, float]:
    """Factors of a calibration; none where none is named."""
    if calibration is None:
        return {}
    from planner.files.calibrations import load_calibration

    return load_calibration(calibration).calibration.values


def _words(values: Values, flag: str, text: str | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Words between commas, without duplicates."""
    if text is None:
        return ()
    return tuple(dict.fromkeys(values.choice(flag, word, allowed) for word in text.split(",")))


def _path(text: str | None, values: Values) -> Path:
    path = Path(text or _DEFAULT_FILE)
    if path.suffix.lower() != ".csv":
        values.add(f"--output {text}: a table of measurements ends in .csv (--json and --format are about the report)")
    elif text is None and path.exists():
        values.add(f"--output: {_DEFAULT_FILE} is already there; name a file, or the same one to replace it")
    return path


def _check_names(device: str | None, cluster: str | None) -> None:
    """Find a wrong name before the machine is busy for minutes."""
    from planner.files.loading import load_cluster, load_device

    if device is not None:
        load_device(device)
    if cluster is not None:
        load_cluster(cluster)
