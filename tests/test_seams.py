"""Adding one thing takes one file: an imaginary objective, device and framework are found by every command that should know them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from planner.cli import run
from planner.files.resources import bundled

ROOT = Path(__file__).resolve().parents[1]

# Carbon: the energy of a step at 400 g of CO2 per kWh.
CARBON = """
from costmodel.fields import Figure
from costmodel.hardware.host import DeviceCost
from costmodel.objectives import OBJECTIVES, Objective, register

KG_PER_JOULE = 0.4 / 3.6e6


def carbon(device, host, compute):
    energy = OBJECTIVES["energy"].cost_of(device, host, compute)
    return energy and DeviceCost(waiting=energy.waiting * KG_PER_JOULE, computing=energy.computing * KG_PER_JOULE)


register(
    Objective(
        name="carbon",
        doc="kg of CO2 per step",
        better="cleaner",
        cost=carbon,
        unstated="states no power",
        figure=Figure(name="carbon_per_step_kg", doc="Of the energy.", kind="number", optional=True),
        unit="kg CO2",
    )
)
"""


def with_carbon(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "carbon.py").write_text(CARBON, encoding="utf-8")
    code = f"import carbon, sys\nfrom planner.cli import run\nsys.exit(run({list(arguments)!r}))"
    path = os.pathsep.join((str(folder), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=folder, check=False, timeout=120, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@pytest.mark.e2e
@pytest.mark.parametrize(
    "question",
    [
        ("alexnet", "--gpus", "4"),
        ("llama3-8b", "--gpus", "8", "--batch", "32"),
        ("llama3-8b", "--cluster", "a100-v100", "--gpus", "6", "--batch", "12", "--seq", "1024"),
    ],
    ids=["layers", "mesh", "mixed"],
)
def test_an_objective_is_one_file(question: tuple[str, ...], tmp_path: Path) -> None:
    done = with_carbon(tmp_path, "optimize", *question, "--objective", "carbon", "--json", "--export", "plan.yaml")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    best = answer["plans"][0]
    assert best["carbon_per_step_kg"] == pytest.approx(best["energy_per_step_j"] * 0.4 / 3.6e6)
    assert answer["objective"] == "carbon"
    assert [plan["energy_per_step_j"] for plan in answer["plans"]] == sorted(
        plan["energy_per_step_j"] for plan in answer["plans"]
    )
    assert yaml.safe_load((tmp_path / "plan.yaml").read_text(encoding="utf-8"))["prediction"]["objective"] == "carbon"
    shown = with_carbon(tmp_path, "optimize", *question, "--objective", "carbon")
    assert "kg CO2 per step" in shown.stdout
    assert "cleaner" in shown.stdout
    again = with_carbon(tmp_path, "estimate", "--plan", "plan.yaml", "--json")
    assert json.loads(again.stdout)["plans"][0]["carbon_per_step_kg"] == pytest.approx(
        best["carbon_per_step_kg"], rel=1e-9
    )


@pytest.mark.e2e
def test_schema_and_errors_know_an_added_objective(tmp_path: Path) -> None:
    assert "carbon_per_step_kg" in with_carbon(tmp_path, "schema", "result").stdout
    wrong = with_carbon(tmp_path, "optimize", "alexnet", "--gpus", "4", "--objective", "carbn")
    assert wrong.returncode == 2
    assert "did you mean carbon" in wrong.stderr.replace("'", "")


def test_a_device_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = yaml.safe_load(bundled("devices")["h100-sxm"].read_text(encoding="utf-8"))
    device |= {"name": "imaginary-1", "memory": "40 GB"}
    device.pop("driver_memory", None)
    device["source"].pop("driver_memory", None)
    mine = tmp_path / "imaginary-1.yaml"
    mine.write_text(yaml.safe_dump(device), encoding="utf-8")
    question = ["estimate", "alexnet", "--gpus", "2", "--family", "data", "--device", str(mine)]
    assert run([*question, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["setting"]["device"] == "imaginary-1"
    assert answer["plans"][0]["memory_capacity_bytes"] < 40e9
    plan = tmp_path / "plan.yaml"
    assert run([*question, "--export", str(plan)]) == 0
    assert "imaginary-1" in capsys.readouterr().out
    assert str(mine) in plan.read_text(encoding="utf-8")


def test_a_framework_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    framework = yaml.safe_load(bundled("frameworks")["megatron-lm"].read_text(encoding="utf-8"))
    framework["name"] = "imaginary-lm"
    mine = tmp_path / "imaginary-lm.yaml"
    mine.write_text(yaml.safe_dump(framework), encoding="utf-8")
    question = ["llama3-8b", "--gpus", "8", "--batch", "32", "--tp", "2", "--dp", "4"]
    found = []
    for name in ("megatron-lm", str(mine)):
        assert run(["estimate", *question, "--framework", name, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[1]["setting"]["framework"] == "imaginary-lm"
    assert found[0]["plans"][0]["step_time_s"] == found[1]["plans"][0]["step_time_s"]
    plan = tmp_path / "plan.yaml"
    assert run(["estimate", *question, "--framework", str(mine), "--export", str(plan)]) == 0
    assert "imaginary-lm" in capsys.readouterr().out
    assert str(mine) in plan.read_text(encoding="utf-8")
