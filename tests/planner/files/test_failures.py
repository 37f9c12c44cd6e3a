"""Files of failures: the bundled one against what was counted, and faults of files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from costmodel.failures.checkpoint import SavedState, checkpoint_of
from costmodel.failures.outlook import Outlook
from costmodel.failures.rates import Units
from planner.api.showing import show_report
from planner.core.errors import InputFileError
from planner.files.documents import parse_document
from planner.files.loading import load_failures
from planner.files.resources import bundled
from planner.report.text import plain_text

# Llama 3 405B, arXiv:2407.21783 table 5: 54 days of 16,384 devices with an adapter each, 2,048 hosts.
COUNTED = {
    "gpu": 148,
    "gpu-memory": 72,
    "gpu-sram": 19,
    "gpu-processor": 17,
    "gpu-thermal": 6,
    "silent-corruption": 6,
    "network": 35,
    "adapter": 7,
    "host": 3 + 3 + 2 + 2 + 2 + 2,
    "host-maintenance": 32,
    "software": 54 + 2,
    "communication-timeout": 7,
    "planned-maintenance": 47,
}
MINIMAL = """
schema_version: 1
name: mine
classes: {gpu: {unit: device, per_million_hours: 10}}
recovery: {restart: 5 min, repair: 4 h}
storage: {bandwidth: 10 GB/s, per_host: 1 GB/s}
"""


def test_rates_of_the_bundled_file_are_the_counts() -> None:
    file = parse_document(bundled("failures")["default"]).value
    hours = 54 * 24
    for name, entry in file["classes"].items():
        units = {"device": 16384, "adapter": 16384, "host": 2048}[entry["unit"]]
        assert entry["per_million_hours"] == pytest.approx(COUNTED[name] / (units * hours) * 1e6, rel=1e-3), name
    assert sum(COUNTED.values()) == 419 + 47
    own = load_failures().without([fleet["name"] for fleet in file["fleets"]])
    assert own.interruptions(16384, 54 * 86400.0) == pytest.approx(419, rel=1e-3)
    assert own.rate_per_s(16384, planned=True) * 54 * 86400.0 == pytest.approx(47, rel=1e-3)


def test_every_fleet_has_its_evidence() -> None:
    for fleet in parse_document(bundled("failures")["default"]).value["fleets"]:
        assert fleet["evidence"] in ("primary text", "second-hand")
        assert len(fleet["source"]) > 20


def test_a_file_of_your_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL + "fleets: [{name: ours, interruptions: 25, devices: 100, days: 10}]\n")
    model = load_failures(str(path))
    assert model.interruptions(200, 10 * 86400.0) == pytest.approx(50)
    assert model.spread == pytest.approx(0.2)
    assert model.restart_high_s == model.restart_s == 300.0


def test_racks_and_hosts_of_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    classes = (
        "{host: {unit: host, per_million_hours: 3600}, rack: {unit: rack, per_million_hours: 360, takes_down: rack}}"
    )
    path.write_text(MINIMAL.replace("{gpu: {unit: device, per_million_hours: 10}}", classes))
    model, units = load_failures(str(path)), Units(host=4, rack=72)
    rates = model.rates_per_s(144, units)
    assert rates == pytest.approx({"host": 36e-6, "rack": 2 * 1e-7})
    assert model.hosts_lost_per_s(144, units) == pytest.approx(36e-6 + 18 * 2e-7)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("unit: device", "unit: gpu", 4, "expected 'device', 'host', 'adapter' or 'rack', got 'gpu'"),
        ("per_million_hours: 10", "per_million_hours: -1", 4, "must be at least 0"),
        ("restart: 5 min", "restart: 5", 5, "'5' has no unit"),
        ("restart: 5 min", "restart: 5 min, restart_high: 1 min", 5, "'restart_high' is below 'restart'"),
        ("repair: 4 h", "repar: 4 h", 5, "did you mean 'repair'"),
        ("bandwidth: 10 GB/s", "bandwidth: 0 GB/s", 6, "is zero"),
        (
            "name: mine",
            "name: mine\nfleets: [{name: a, interruptions: 1, devices: 1, days: 1, counts: others}]",
            4,
            "got 'others'",
        ),
        (
            "unit: device, per_million_hours: 10}}",
            "unit: host, per_million_hours: 10}}\nfleets: [{name: a, interruptions: 1, devices: 1, days: 1, counts: device}]",
            5,
            "counted what no class has a rate for",
        ),
    ],
)
def test_faults_are_told_where_they_stand(old: str, new: str, line: int, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL.replace(old, new))
    with pytest.raises(InputFileError) as error:
        load_failures(str(path))
    [problem] = error.value.problems
    assert problem.line == line
    assert words in problem.message


def test_what_is_known_is_shown_with_its_sources() -> None:
    text = " ".join(plain_text([*show_report("failure", "default").blocks()], 5000).split())
    for words in ("second-hand", "fleet opt-175b", "gpu-memory", "3.391", "arXiv:2407.21783"):
        assert words in text


def test_the_worked_example_of_the_documentation() -> None:
    """By the equations of docs/failures.md alone, and by the cost model."""
    text = " ".join((Path(__file__).resolve().parents[3] / "docs" / "failures.md").read_text("utf-8").split())
    model = load_failures()
    rate = model.level * 419 / (54 * 86400)
    size = 405.8e9 * 14
    stored, stall, restart = size / 100e9, 0.45 + size / 16384 / 25.6e9, 600 + size / 100e9
    young = math.sqrt(2 * stall / rate)
    exact = Outlook.of(
        model,
        16384,
        checkpoint_of(SavedState.shared(size, ranks=16384, ranks_per_host=8), model, copy_bytes_per_s=25.6e9),
    )
    work = exact.interval_s
    assert (1 - rate * work) * math.exp(rate * work) == pytest.approx(math.exp(-rate * stall), abs=1e-8)
    expected = math.exp(rate * (restart + stored)) * math.expm1(rate * (work + stall)) / rate
    running = sum(exact.parts[name] for name in ("useful", "checkpoints", "restarts", "work done again"))
    shares = {name: part / running for name, part in exact.parts.items()}
    assert shares["useful"] == pytest.approx(work / expected, rel=1e-3)
    for words in (
        f"{model.level:.3f} x 419 in 54 days = {model.level * 419:.0f}: l = {rate * 1e4:.3f}e-4 / s, one in {1 / rate / 3600:.2f} h",
        f"405.8e9 x (2 + 4 + 8) = {size / 1e12:.2f} TB",
        f"/ 100 GB/s = {stored:.1f} s = d",
        f"= {stall:.4f} s = c",
        f"= {restart:.1f} s = r",
        f"= {young:.1f} s; exact: {work:.1f} s = w",
        f"= {expected:.1f} s",
        f"w / E {work / expected:.3f}",
        f"{shares['useful']:.3f} useful, {shares['checkpoints']:.4f} checkpoints, {shares['restarts']:.4f} restarts",
        f"{shares['work done again']:.4f} done again",
    ):  # fmt: skip
        assert words in text, words
