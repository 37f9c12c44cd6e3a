"""``planner detect``: a cluster file of the machine that this runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from planner.commands import options as o
from planner.commands.output import emit, remark
from planner.commands.question import output_of
from planner.commands.values import Values

__all__ = ["detect"]

_MOST_NODES = 1_000_000

ClusterOutput = Annotated[
    str | None,
    o.option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the cluster file here, and FILE's name with -device beside it where no bundled device fits.",
        group=o.OUTPUT,
    ),
]
Nodes = Annotated[
    str | None,
    o.option("--nodes", metavar="N", help="Machines like this one in the cluster. Default: 1.", group=o.QUESTION),
]

Force = Annotated[
    bool,
    o.option(
        "--force", metavar=None, help="Replace files that are already there: they may have been edited.", group=o.OUTPUT
    ),
]


def detect(
    nodes: Nodes = None,
    output: ClusterOutput = None,
    force: Force = False,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Describe the machine that this runs on as a cluster file.

    Reads nvidia-smi, lscpu, /proc and /sys where they are there. Every value has its source; what nothing states is assumed, and
    its line says so.

    planner detect -o cluster.yaml && planner optimize alexnet --cluster cluster.yaml
    """
    options: dict[str, Any] = locals()
    values = Values()
    where = output_of({**options, "output": None}, values)
    count = values.count("--nodes", nodes or "1", most=_MOST_NODES)
    path = _path(output, values)
    values.check()

    from planner.detect.machine import detect as look
    from planner.detect.report import detect_report, machine_files
    from planner.detect.system import ThisSystem
    from planner.files.output import write_atomically

    system = ThisSystem()
    machine = look(system, nodes=count)
    files = machine_files(machine, path) if path is not None else {}
    _check_targets(list(files), force=force)
    for target, text in files.items():  # devices first, so that the cluster never names a file that is not there
        write_atomically(target, text)
        remark(where, f"wrote {target}")
    emit(detect_report(machine, system.remarks, list(files)), where)


def _check_targets(targets: list[Path], *, force: bool) -> None:
    """Refuse to replace a machine's files, which people edit, unless they say so; results of other commands are replaced."""
    from planner.core.errors import OutputError
    from planner.files.output import check_writable

    for target in targets:
        check_writable(target)
    present = [] if force else [str(target) for target in targets if target.is_file()]
    if present:
        raise OutputError(f"--output: already there: {', '.join(present)}; --force replaces what is there")


def _path(text: str | None, values: Values) -> Path | None:
    """Where the cluster file goes; one that cannot be written is a problem of the command line."""
    from planner.core.errors import OutputError
    from planner.files.output import check_writable

    if text is None:
        return None
    path = Path(text)
    if path.suffix not in (".yaml", ".yml"):
        values.add(f"--output {text}: a cluster file ends in .yaml")
        return None
    try:
        check_writable(path)
    except OutputError as error:
        values.add(f"--output {error}")
    return path
