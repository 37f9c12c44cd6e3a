"""``planner measure`` and ``planner detect``: what the machine that this runs on is, and how fast."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from planner.api.keywords import EstimateOptions, options_of
from planner.api.readers import COSTS, OUTPUT, SEARCH, Option
from planner.api.values import Values
from planner.commands.command import Typed, command
from planner.commands.output import REPORT_ONLY, Progress, emit, output_of, remark
from planner.core.errors import OutputError
from planner.files.output import check_writable, write_atomically

_QUICK_LIMIT_S, _FULL_LIMIT_S = 15.0, 240.0
_DEFAULT_FILE = "measured.csv"


def _kind(values: Values, label: str, value: str) -> str:
    return values.choice(label, {"gpu": "cuda"}.get(value, value), ("cuda", "cpu"))  # what people call it


_MEASURE = {
    "quick": Option("--quick", None, "Few shapes: under 20 s. Otherwise up to 5 minutes."),
    "device": Option(
        "--device", "KIND", "cuda or cpu. Default: cuda where PyTorch sees a GPU.", words="cuda cpu", read=_kind
    ),
    "only": Option(
        "--only",
        "KERNEL,...",
        "gemm, copy, convolution, elementwise, attention, recurrent, collective. Default: all.",
        words="planner.measure.cases:KINDS",
        is_list=True,
    ),
    "precision": Option(
        "--precision",
        "NAME,...",
        "fp32, tf32, bf16, fp16. Default: those that the device computes in.",
        words="planner.measure.cases:ELEMENT_BYTES",
        is_list=True,
    ),
    "as_": Option(
        "--as",
        "NAME|FILE",
        "Predict for this device ('planner list devices'). Default: what is detected.",
        panel=COSTS,
        words="kind:devices",
    ),
    "cluster": Option(
        "--cluster -c",
        "NAME|FILE",
        "Predict collectives for this cluster. Default: what is detected.",
        panel=COSTS,
        words="kind:clusters",
    ),
    "calibration": options_of(EstimateOptions)["calibration"],
    "time_limit": Option(
        "--time-limit",
        "TIME",
        "Measure for about so long. Default: 4min, 15s with --quick.",
        panel=SEARCH,
        read=Values.seconds,
    ),
    "seed": Option(
        "--seed",
        "N",
        "Of the numbers that kernels work on. Default: 0.",
        panel=SEARCH,
        read=partial(Values.count, least=0, most=2**32 - 1),
    ),
    "output": Option(
        "--output -o",
        "FILE.csv",
        "The table of measurements. Default: measured.csv, if there is none yet.",
        panel=OUTPUT,
    ),
}


@command(_MEASURE, REPORT_ONLY)
def measure(typed: Typed) -> None:
    """Time kernels and collectives on this machine, and set the predictions beside them.

    Needs the extra 'torch'. The table that it writes is read by planner validate and planner calibrate (docs/measurements.md).

    planner measure --quick -o here.csv

    torchrun --nproc-per-node 2 -m planner measure -o here.csv
    """
    given, values = typed.given, typed.values
    where = output_of(typed, writes=False)
    from planner.measure.cases import KINDS

    found = typed.read(_MEASURE)
    is_quick, device, cluster = "quick" in given, given.get("as_"), given.get("cluster")
    limit_s = found.get("time_limit", _QUICK_LIMIT_S if is_quick else _FULL_LIMIT_S)
    path = Path(given.get("output") or _DEFAULT_FILE)
    if path.suffix.lower() != ".csv":
        values.add(f"--output {path}: a table of measurements ends in .csv (--json and --format are about the report)")
    elif not given.get("output") and path.exists():
        values.add(f"--output: {_DEFAULT_FILE} is already there; name a file, or the same one to replace it")
    values.check()

    from planner.detect.system import System
    from planner.files.loading import load_calibration, load_cluster, load_device
    from planner.measure.run import Wanted, measure_here

    # A wrong name is found before the machine is busy for minutes.
    if device is not None:
        load_device(device)
    if cluster is not None:
        load_cluster(cluster)
    constants = load_calibration(given["calibration"]).calibration.values if "calibration" in given else {}
    wanted = Wanted(
        path=path,
        quick=is_quick,
        kind=found.get("device"),
        device=device,
        cluster=cluster,
        kinds=found.get("only") or KINDS,
        precisions=found.get("precision", ()),
        time_limit_s=limit_s or 1.0,
        seed=found.get("seed", 0),
    )
    with Progress(where) as progress:
        measured, place, is_first = measure_here(wanted, System(), progress)
    if measured.rows:
        from planner.measure.report import measure_report

        for target in (*measured.files, path):
            remark(where, f"wrote {target}")
        if place.remark:
            remark(where, place.remark)
        emit(
            measure_report(path, device or place.found.name, place.found.label, place.software, measured, constants),
            where,
        )
    elif is_first:
        reasons = "; ".join(f"{count} {reason}" for reason, count in measured.skipped.items())
        remark(where, f"nothing was measured, and no file written{f': {reasons}' if reasons else ''}")
    if measured.stopped:
        raise KeyboardInterrupt  # what was measured is kept; the exit code says that it was stopped


_DETECT = {
    "nodes": Option(
        "--nodes", "N", "Machines like this one in the cluster. Default: 1.", read=partial(Values.count, most=1_000_000)
    ),
    "cores_per_device": Option(
        "--cores-per-device",
        "N",
        "Leave GPUs aside and make devices of N processor cores each.",
        read=partial(Values.count, most=1_000_000),
    ),
    "output": Option(
        "--output -o",
        "FILE",
        "Write the cluster file here, and FILE's name with -device beside it where no bundled device fits.",
        panel=OUTPUT,
    ),
    "force": Option("--force", None, "Replace files that are already there: they may have been edited.", panel=OUTPUT),
}


@command(_DETECT, REPORT_ONLY)
def detect(typed: Typed) -> None:
    """Describe the machine that this runs on as a cluster file.

    Reads nvidia-smi, lscpu, /proc and /sys where they are there. Every value has its source; what nothing states is assumed, and
    its line says so.

    planner detect -o cluster.yaml && planner optimize alexnet --cluster cluster.yaml

    planner detect --cores-per-device 1 -o cores.yaml
    """
    where = output_of(typed, writes=False)
    found = typed.read(_DETECT)
    path = typed.file("output", (".yaml", ".yml"), "a cluster file ends in .yaml")
    typed.values.check()

    from planner.detect.machine import detect as look
    from planner.detect.report import detect_report, machine_files
    from planner.detect.system import System

    system = System()
    machine = look(system, nodes=found.get("nodes", 1), cores_per_device=found.get("cores_per_device"), processes=0)
    files = machine_files(machine, path) if path is not None else {}
    _check_targets(list(files), force="force" in typed.given)
    for target, text in files.items():  # devices first, so that the cluster never names a file that is not there
        write_atomically(target, text)
        remark(where, f"wrote {target}")
    emit(detect_report(machine, system.remarks, list(files)), where)


def _check_targets(targets: list[Path], *, force: bool) -> None:
    """Refuse to replace a machine's files, which people edit, unless they say so; results of other commands are replaced."""
    for target in targets:
        check_writable(target)
    present = [] if force else [str(target) for target in targets if target.is_file()]
    if present:
        raise OutputError(f"--output: already there: {', '.join(present)}; --force replaces what is there")
