"""Exports as they were agreed on; PLANNER_WRITE_GOLDEN=1 writes them anew, for a look at the difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.exporters import EXPORTERS, exporter_of
from planner.exporters.export import make_export
from planner.exporters.job import Job, ServingJob
from tests.planner.exporters.jobs import (
    CONTEXT,
    DATA,
    EXPERTS,
    FSDP,
    ODD_STAGES,
    PIPELINE,
    PLAIN_PIPELINE,
    SERVE,
    SERVE_EXPERTS,
    SERVE_PIPELINE,
)

GOLDEN = Path(__file__).parent / "golden"
SUFFIX = ".golden"  # keeps formatters and linters away from them
JOBS: dict[str, dict[str, Job | ServingJob]] = {
    "megatron": {"pipeline": PIPELINE, "fsdp": FSDP, "experts": EXPERTS, "odd-stages": ODD_STAGES},
    "megatron-bridge": {"pipeline": PIPELINE, "fsdp": FSDP, "odd-stages": ODD_STAGES},
    "torchtitan": {"pipeline": PIPELINE, "fsdp": FSDP, "experts": EXPERTS},
    "deepspeed": {"plain-pipeline": PLAIN_PIPELINE, "fsdp": FSDP, "data": DATA},
    "accelerate": {"fsdp": FSDP, "data": DATA, "context": CONTEXT},
    "nanotron": {"plain-pipeline": PLAIN_PIPELINE, "odd-stages": ODD_STAGES, "experts": EXPERTS},
    "vllm": {"one": SERVE, "pipeline": SERVE_PIPELINE, "experts": SERVE_EXPERTS},
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
    export = make_export(JOBS[target][name], target, version)
    folder = GOLDEN / f"{target}-{version}" / name
    if os.environ.get("PLANNER_WRITE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for file, text in export.files.items():
            (folder / f"{file}{SUFFIX}").write_text(text, encoding="utf-8")
    found = {path.name.removesuffix(SUFFIX): path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}
    assert dict(sorted(export.files.items())) == found
