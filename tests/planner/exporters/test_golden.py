"""Exports as they were agreed on; PLANNER_WRITE_GOLDEN=1 writes them anew, for a look at the difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.exporters import EXPORTERS, exporter_of
from planner.exporters.export import RANKS, AnyJob, make_export
from planner.exporters.torch_dtensor import layers
from planner.exporters.torch_dtensor.layers import LAYOUTS, MOVES
from tests.planner.exporters import layer_jobs
from tests.planner.exporters.jobs import (
    CONTEXT,
    DATA,
    EXPERTS,
    FSDP,
    FSDP_ONLY,
    ODD_STAGES,
    PIPELINE,
    PLAIN_PIPELINE,
    SERVE,
    SERVE_APART,
    SERVE_APART_NODES,
    SERVE_EXPERTS,
    SERVE_NODES,
    SERVE_PIPELINE,
    TENSOR,
)

GOLDEN = Path(__file__).parent / "golden"
SUFFIX = ".golden"  # keeps formatters and linters away from them
APART: dict[str, AnyJob] = {"apart": SERVE_APART, "apart-nodes": SERVE_APART_NODES}
JOBS: dict[str, dict[str, AnyJob]] = {
    "torch": {
        **{name: layer_jobs.job_of_case(name) for name in ("hybrid", "grid", "data-accumulated")},
        "tensor": TENSOR,
        "fsdp": FSDP_ONLY,
    },
    "megatron": {"pipeline": PIPELINE, "fsdp": FSDP, "experts": EXPERTS, "odd-stages": ODD_STAGES},
    "megatron-bridge": {"pipeline": PIPELINE, "fsdp": FSDP, "odd-stages": ODD_STAGES},
    "torchtitan": {"pipeline": PIPELINE, "fsdp": FSDP, "experts": EXPERTS},
    "deepspeed": {"plain-pipeline": PLAIN_PIPELINE, "fsdp": FSDP, "data": DATA},
    "accelerate": {"fsdp": FSDP, "data": DATA, "context": CONTEXT},
    "nanotron": {"plain-pipeline": PLAIN_PIPELINE, "odd-stages": ODD_STAGES, "experts": EXPERTS},
    "vllm": {"one": SERVE, "pipeline": SERVE_PIPELINE, "experts": SERVE_EXPERTS, **APART},
    "sglang": {"one": SERVE, "pipeline": SERVE_PIPELINE, "experts": SERVE_EXPERTS, **APART, "two-nodes": SERVE_NODES},
    "tensorrt-llm": {"one": SERVE, "pipeline": SERVE_PIPELINE, "experts": SERVE_EXPERTS, "apart": SERVE_APART},
}
CASES = [
    (target, version, name)
    for target, jobs in JOBS.items()
    for version in exporter_of(target).VERSIONS
    for name in jobs
]


def test_every_target_has_three() -> None:
    assert set(JOBS) == set(EXPORTERS)
    assert all(len(jobs) >= 3 for jobs in JOBS.values())


@pytest.mark.parametrize(("target", "version", "name"), CASES)
def test_golden(target: str, version: str, name: str) -> None:
    files = dict(make_export(JOBS[target][name], target, version).files)
    for copied in sorted(
        set(files) & {LAYOUTS, MOVES}
    ):  # as they are in the package, and not once more in every golden folder
        assert files.pop(copied) == (Path(layers.__file__).with_name(copied)).read_text(encoding="utf-8")
    files.pop(RANKS, None)  # the same for every target (test_domains.py)
    folder = GOLDEN / f"{target}-{version}" / name
    if os.environ.get("PLANNER_WRITE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for file, text in files.items():
            (folder / f"{file}{SUFFIX}").write_text(text, encoding="utf-8")
    found = {path.name.removesuffix(SUFFIX): path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}
    assert dict(sorted(files.items())) == found
