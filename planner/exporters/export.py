"""From a plan file to an export: the plan checked and predicted again, the target's refusals, the files with their README and manifest."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.core.errors import OutputError, UnknownName, UsageError
from planner.exporters import exporter_of
from planner.exporters.account import Account
from planner.exporters.job import Job, LayerJob, Nodes, ServingJob
from planner.exporters.kubernetes import APPLIED
from planner.exporters.rules import broken_rules, own_refusals
from planner.files.output import made_folders, there_of

AnyJob = Job | LayerJob | ServingJob

README, MANIFEST, RANKS = "README.md", "export.json", "ranks.csv"
# What measures a server (`planner.exporters.serving`).
BENCHMARK = "bench.sh"
# Version of the manifest.
_MANIFEST_VERSION = 1
_OF_THE_WHOLE = "The prediction is of the whole plan; without these settings the run differs from it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is written for a target.

    Attributes
    ----------
    target, version : str
    files : mapping
        Name -> text.
    account : Account
        Where every setting went.
    """

    target: str
    version: str
    files: Mapping[str, str]
    account: Account


def make_export(job: AnyJob, target: str, version: str | None = None, *, strict: bool = False) -> Export:
    """Write a job for a target.

    Parameters
    ----------
    job : Job, LayerJob or ServingJob
    target : str
        A name of `planner.exporters.EXPORTERS`.
    version : str, optional
        Of the target; the newest that is known where left out.
    strict : bool
        Whether a setting that the target cannot express is an error.

    Raises
    ------
    UnknownName
        No such target or version.
    UsageError
        A combination that the target refuses; with ``strict``, a setting that it cannot express.
    """
    exporter = exporter_of(target)
    chosen, files, account = written(job, target, version)
    if isinstance(job, Job) and job.nodes.count > 1:
        files = {**files, RANKS: ranks_table(job)}
    if strict and account.cannot:
        raise UsageError(
            "\n".join(
                f"--strict: {exporter.TITLE} cannot express {name}: {why}" for name, why in account.cannot.items()
            )
        )
    text = _readme(job, account, exporter.TITLE, exporter.VERSIONS[chosen], files)
    manifest = _manifest(job, account, target, chosen, [*files, README, MANIFEST])
    return Export(target=target, version=chosen, files={**files, README: text, MANIFEST: manifest}, account=account)


def written(job: AnyJob, target: str, version: str | None = None) -> tuple[str, Mapping[str, str], Account]:
    """The version of a target, what its exporter writes of a job, and where every setting went: quicker than the whole export.

    Raises
    ------
    UnknownName
        No such target or version.
    UsageError
        A combination that the target refuses.
    """
    exporter = exporter_of(target)
    chosen = version if version is not None else next(iter(exporter.VERSIONS))
    if chosen not in exporter.VERSIONS:
        raise UnknownName(kind=f"version of {exporter.TITLE}", name=chosen, known=exporter.VERSIONS)
    account = Account()
    problems = own_refusals(exporter, job, chosen)
    if isinstance(job, Job):
        refused, account.cannot = broken_rules(exporter, job, chosen)
        problems = [*refused, *problems]
    if problems:
        raise UsageError("\n".join(f"{exporter.TITLE} cannot run this plan: {problem}" for problem in problems))
    files = exporter.render(job, account, chosen)
    account.fill(exporter.FIELDS, job.in_effect)
    return chosen, files, account


def ranks_table(job: Job) -> str:
    """Where every rank lies and what it does: domain (the node, where none holds several), node of the job, its GPU, place in the mesh."""
    plan, nodes = job.plan, job.nodes
    of_domain = max(nodes.of_domain, 1)
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    rows = [",".join(("rank", "domain", "node", "gpu", *sizes))]
    for rank in range(plan.workers):
        domain, inside = divmod(rank, of_domain * nodes.per_node)
        place, left = {}, rank
        for name in plan.order.split("-"):  # neighbours first
            left, place[name] = divmod(left, sizes[name])
        node, gpu = divmod(inside, nodes.per_node)
        rows.append(",".join(map(str, (rank, domain, domain * of_domain + node, gpu, *(place[n] for n in sizes)))))
    return "\n".join(rows) + "\n"


def _readme(job: AnyJob, account: Account, title: str, checked: str, files: Mapping[str, str]) -> str:
    origin, nodes = job.origin, job.nodes
    whole = f"{title} has every setting of the plan that has an effect."
    ways = [*starts(nodes, files, has_router=job.has_router), *(APPLIED[name] for name in APPLIED if name in files)]
    lines = [
        f"# {_inline(origin.model)} for {title}",
        "",
        f"Written by planner {origin.planner_version} from `{_inline(origin.plan_name)}`. Settings as of {checked}.",
        "",
        f"- Plan: {_inline(origin.summary)}",
        f"- Cluster: {_inline(origin.cluster)}, {nodes.count} x {nodes.per_node} {_inline(origin.device)}",
        *(f"- Predicted: {_inline(sentence)}" for sentence in origin.prediction),
        "",
        "## Start",
        "",
        *(line for where, command in ways for line in (f"{where}:", "", f"    {command}", "")),
        "Arguments are passed on to the program.",
        "",
        *(_measure(origin.plan_name) if BENCHMARK in files else []),
        *_section("Not expressed", account.cannot, whole, _OF_THE_WHOLE),
        *_section("Left to you", account.by_hand, "Nothing."),
        *_section("Written", account.written, "Nothing."),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _measure(plan_name: str) -> list[str]:
    """How to see whether a server does what was predicted."""
    return [
        "## Measure",
        "",
        f"`{BENCHMARK}` sends the load that the plan was made for; `planner check` sets what it measured beside the prediction:",
        "",
        f"    bash {BENCHMARK}",
        f"    planner check bench.json --plan {shlex.quote(plan_name)}",
        "",
    ]


def starts(nodes: Nodes, files: Iterable[str], *, has_router: bool = False) -> list[tuple[str, str]]:
    """Ways to start an export, from its folder: where, and the command; a router needs the addresses of all nodes.

    >>> starts(Nodes(workers=4, capacity=8), ["train.sh", "train.slurm"])
    [('One node', 'bash train.sh'), ('Slurm, from this folder', 'sbatch train.slurm')]
    >>> starts(Nodes(workers=16, capacity=8), ["train.sh", "train.slurm"])[0][1]
    'NODE_RANK=0 MASTER_ADDR=node0 bash train.sh'
    """
    script, batch = (next(name for name in files if name.endswith(ending)) for ending in (".sh", ".slurm"))
    where, variables = "One node", ""
    if nodes.count > 1:
        numbers = f"its number in NODE_RANK (0 to {nodes.count - 1})"
        addresses = "the addresses of all in NODES" if has_router else "the address of node 0"
        where = f"On each of the {nodes.count} nodes, with {numbers} and {addresses}"
        every = ",".join(f"node{number}" for number in range(nodes.count))
        variables = f"NODE_RANK=0 {f'NODES={every}' if has_router else 'MASTER_ADDR=node0'} "
    return [(where, f"{variables}bash {script}"), ("Slurm, from this folder", f"sbatch {batch}")]


def _section(heading: str, entries: Mapping[str, str], empty: str, lead: str = "") -> list[str]:
    rows = [f"- `{name}`: {_inline(text)}" for name, text in entries.items()]
    return [f"## {heading}", "", *([lead, ""] if lead and rows else []), *(rows or [empty]), ""]


def _inline(text: str) -> str:
    """One line of Markdown that no name in it can break out of."""
    return "".join(c if c.isprintable() else " " for c in text).replace("<", "&lt;")


# What a parser may read back, of a mesh and of a server.
_DEGREES = (
    "tp",
    "cp",
    "ep",
    "pp",
    "vpp",
    "dp",
    "dp_replicate",
    "dp_shard",
    "zero_stage",
    "micro_batch",
    "num_micro_batches",
    "max_batch",
)


def _manifest(job: AnyJob, account: Account, target: str, version: str, files: list[str]) -> str:
    origin, plan = job.origin, job.plan
    degrees = (*_DEGREES, *(("prefill_dp", "prefill_tp", "prefill_pp") if job.has_router else ()))
    document: dict[str, Any] = {
        "schema_version": _MANIFEST_VERSION,
        "target": target,
        "target_version": version,
        "planner_version": origin.planner_version,
        "model": origin.model,
        "summary": origin.summary,
        "prediction": list(origin.prediction),
        "nodes": job.nodes.count,
        "processes_per_node": job.nodes.per_node,
        "files": files,
        # As numbers, by which `planner export --check` compares what the target has read.
        "plan": {"ranks": plan.workers, **{name: getattr(plan, name) for name in degrees if hasattr(plan, name)}},
        "written": account.written,
        "cannot_express": account.cannot,
        "left_to_user": account.by_hand,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


# -- folders -----------------------------------------------------------------------------------------------------------------


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder that must not be written; leaves nothing behind.

    Parameters
    ----------
    folder : Path
    force : bool
        Whether an earlier export may be replaced. What else is there stays.

    Raises
    ------
    OutputError
    """
    try:
        target = folder.resolve()
        if not target.name:
            raise OutputError(f"{folder}: cannot be written: is the root of the file system")
        if target.exists() and not target.is_dir():
            raise OutputError(f"{folder}: cannot be written: is a file, not a folder")
        if target.exists() and any(target.iterdir()):
            _check_replaceable(folder, target, force=force)
        there = there_of(target.parent)
        if not there.is_dir():
            raise OutputError(f"{folder}: cannot be written: {there} is a file, not a folder")
        if not os.access(there, os.W_OK | os.X_OK):
            raise OutputError(f"{folder}: cannot be written: permission denied")
    except OutputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a name that is too long, a NUL character
        raise OutputError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _check_replaceable(folder: Path, target: Path, *, force: bool) -> None:
    if not force:
        raise OutputError(f"{folder}: exists and is not empty; --force replaces an earlier export")
    known = _files_of_export(target)
    if known is None:
        raise OutputError(f"{folder}: holds no {MANIFEST} of an earlier export, so --force does not replace it")
    others = sorted(path.name for path in target.iterdir() if path.name not in known)
    if others:
        listed = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        raise OutputError(
            f"{folder}: holds files that are no part of the export, so --force does not replace it: {listed}"
        )


def _files_of_export(target: Path) -> frozenset[str] | None:
    try:
        document = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        files = document["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return frozenset(name for name in files if isinstance(name, str)) if isinstance(files, list) else None


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write files into a new folder that takes its place in one step; scripts are made executable.

    Parameters
    ----------
    folder : Path
    files : mapping
        Name -> text.
    force : bool
        As `check_folder`, which is asked again.

    Raises
    ------
    OutputError
    """
    check_folder(folder, force=force)
    target = folder.resolve()
    token = os.urandom(6).hex()
    fresh, old = target.parent / f".planner-{token}.tmp", target.parent / f".planner-{token}.old"
    try:
        with made_folders(target.parent):
            try:
                fresh.mkdir()
                for name, text in files.items():
                    path = fresh / name
                    with path.open("x", encoding="utf-8", newline="\n") as stream:
                        stream.write(text)
                        stream.flush()
                        os.fsync(stream.fileno())
                    if name.endswith(".sh"):
                        path.chmod(path.stat().st_mode | 0o111 & ~_umask())
                _swap(fresh, target, old)
            finally:
                shutil.rmtree(
                    fresh, ignore_errors=True
                )  # gone after the swap; left over after any failure, Ctrl-C included
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _swap(fresh: Path, target: Path, old: Path) -> None:
    if not target.exists():
        fresh.rename(target)
        return
    target.rename(old)
    try:
        fresh.rename(target)
    except BaseException:
        old.rename(target)
        raise
    with contextlib.suppress(OSError):
        shutil.rmtree(old)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
