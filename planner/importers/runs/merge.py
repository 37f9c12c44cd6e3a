"""What the file of a run says, put beside what the command line says; the command line wins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.core.errors import PlannerError
from planner.importers.runs import Run, read_run

__all__ = ["with_run"]


def with_run(options: Mapping[str, Any], trainer: str, path: Path) -> tuple[dict[str, Any], list[str]]:
    """Fill the options that were not given from a run.

    Parameters
    ----------
    options : mapping
        Parameters of ``planner estimate``, with ``mesh``.
    trainer : str
        A name of `planner.importers.runs.RUNS`.
    path : Path

    Returns
    -------
    (dict, list of str)
        The options, and what was read otherwise than it is written.

    Raises
    ------
    PlannerError
        As `planner.importers.runs.read_run`.
    """
    run = read_run(trainer, path)
    model = options.get("model")
    if run.network and isinstance(model, str) and model.strip():
        _check_network(run, model)
    started, asked = run.options.get("gpus"), options.get("gpus")
    if started is not None and asked is not None and str(asked).strip() != started:
        run.notes.append(f"--gpus {asked}: the script starts {started}")
    mesh = dict(options["mesh"])
    merged = {**options, "mesh": mesh}
    for name, word in run.options.items():
        if name != "num_micro_batches" and merged.get(name) is None:
            merged[name] = word
    for name, word in run.mesh.items():
        if mesh.get(name) is None:
            mesh[name] = word
    merged["stages"] = run.stages
    if merged.get("batch") is None and merged.get("micro_batches") is None:
        merged["batch"] = _batch(run, merged)
    return merged, run.notes


def _check_network(run: Run, model: str) -> None:
    """Raises where the script trains another network; a name that cannot be loaded is reported with the question."""
    from planner.files.loading import load_model
    from planner.importers.runs.networks import check_network

    try:
        graph = load_model(model).graph
    except PlannerError:
        return
    check_network(run.network, graph, model)


def _batch(run: Run, options: Mapping[str, Any]) -> str | None:
    """Micro-batch x accumulation x data-parallel ranks, where all are known; the network's usual batch otherwise."""
    mesh = options["mesh"]
    words = [options.get("gpus"), mesh.get("micro_batch"), run.options.get("num_micro_batches")]
    degrees = [mesh.get(name) or "1" for name in ("tp", "cp", "pp")]
    if not all(isinstance(word, str) and word.isdecimal() for word in [*words, *degrees]):
        return None
    gpus, micro_batch, accumulated = map(int, words)
    ranks = gpus
    for degree in map(int, degrees):
        ranks //= degree
    return str(micro_batch * accumulated * ranks)
