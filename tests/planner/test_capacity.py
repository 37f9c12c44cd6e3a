"""How much memory a plan may fill: what the driver shows, less a reserve; limits that the user gives are taken as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planner
from planner.cli import run
from planner.core.request import Request
from planner.files.loading import load_cluster, load_device
from planner.files.resources import bundled
from planner.question.resolve import resolve

MIB = 2**20
# nvidia-smi, memory.total: modal-labs/modal-client, pull request 2797 (H100, L40S, A10, T4, L4); the others from published logs.
SHOWN = {
    "h100-sxm": 81559,
    "l40s": 46068,
    "a10": 23028,
    "t4": 15360,
    "l4": 23034,
    "h200": 143771,
    "b200": 183359,
    "v100-16gb": 16160,
}
QUESTION = ["bert-large", "--gpus", "1", "--cluster", "dgx-h100", "--batch", "8"]


def capacity(model: str = "bert-large", **changes: str | None) -> float:
    return resolve(Request(model=model, batch=8, cluster="dgx-h100", **changes)).setting.memory_capacity_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SHOWN)
def test_drivers_show_what_nvidia_smi_printed(name: str) -> None:
    assert load_device(name).device.capacity_bytes == SHOWN[name] * MIB


@pytest.mark.parametrize("name", bundled("devices"))
def test_drivers_show_about_the_nominal_size(name: str) -> None:
    device = load_device(name).device
    assert 0.88 * device.memory_bytes <= device.capacity_bytes <= 1.08 * device.memory_bytes


@pytest.mark.parametrize(
    ("options", "expected_mib"),
    [
        ({}, 0.95 * 81559),
        ({"memory_reserve": "0"}, 81559),
        ({"memory_reserve": "10%"}, 0.9 * 81559),
        ({"memory_reserve": "0.1"}, 0.9 * 81559),
        ({"memory_reserve": "1559 MiB"}, 80000),
        ({"memory_limit": "81000 MiB"}, 81000),
        ({"memory_limit": "40000 MiB", "memory_reserve": "5%"}, 38000),
        ({"memory_limit": "90 GiB"}, 81559),
    ],
)
def test_capacity_is_what_the_driver_shows_less_the_reserve(options: dict[str, str], expected_mib: float) -> None:
    assert capacity(**options) == pytest.approx(expected_mib * MIB, rel=1e-12)


@pytest.mark.parametrize("model", ["alexnet", "bert-large"])
def test_no_plan_of_the_default_question_is_larger_than_the_card(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["optimize", model, "--gpus", "2", "--cluster", "dgx-h100", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert plans
    assert all(plan["memory_bytes_per_gpu"] <= plan["memory_capacity_bytes"] == 0.95 * 81559 * MIB for plan in plans)


def test_a_limit_draws_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", *QUESTION]) == 0
    need = float(json.loads(_json(["estimate", *QUESTION], capsys))["plans"][0]["memory_bytes_per_gpu"])
    assert run(["estimate", *QUESTION, "--memory-limit", f"{need * 1.001:.0f} B"]) == 0
    assert "--memory-limit" not in capsys.readouterr().out


def test_the_answer_says_where_its_memory_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(_json(["estimate", *QUESTION], capsys))
    rows = {row["name"]: row["source"] for row in document["assumptions"]}
    assert rows["memory per GPU"] == "79.6 GiB by the driver less 5%"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("5", "'5' has no unit"),
        ("100%", "leaves nothing"),
        ("-1%", "or a share such as '5%'"),
        ("79.5 GiB", "512 MiB are taken before any tensor is placed"),
        ("much", "or a share such as '5%'"),
    ],
)
def test_reserves_that_cannot_be(option: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", *QUESTION, f"--memory-reserve={option}"]) == 2
    error = capsys.readouterr().err
    assert "--memory-reserve" in error
    assert words in error


@pytest.mark.e2e
def test_plan_files_keep_the_reserve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, text in ((["--memory-reserve", "1%"], 'memory_reserve: "1%"'), ([], 'memory_reserve: "5%"')):
        path = tmp_path / "plan.yaml"
        path.unlink(missing_ok=True)
        assert run(["optimize", *QUESTION, *options, "-q", "--export", str(path)]) == 0
        assert text in path.read_text(encoding="utf-8")
        kept = 0.99 if options else 0.95
        document = json.loads(_json(["estimate", "--plan", str(path)], capsys))
        assert document["setting"]["memory_capacity_bytes"] == kept * 81559 * MIB


def test_python_takes_shares_and_bytes() -> None:
    def of(reserve: float | str) -> float:
        options = {"gpus": 1, "cluster": "dgx-h100", "batch": 8, "memory_reserve": reserve}
        return float(planner.estimate("bert-large", **options).plan.memory_capacity_bytes)  # type: ignore[arg-type]

    assert of(0.05) == of("5%") == pytest.approx(0.95 * 81559 * MIB)
    assert of(0) == 81559 * MIB
    assert of(1559 * MIB) == 80000 * MIB


def test_a_cluster_file_states_what_its_driver_shows(tmp_path: Path) -> None:
    head = "schema_version: 1\nname: mine\nsource: {}\nlevels: [{name: link, size: 8, bandwidth: 300 GB/s, latency: 5 us}]\n"
    one, several = tmp_path / "one.yaml", tmp_path / "several.yaml"
    one.write_text(head + "device: a100-80gb\ndriver_memory: 81251 MiB\n", encoding="utf-8")
    groups = "groups: [{device: a100-80gb, count: 4, driver_memory: 81251 MiB}, {device: h100-sxm, count: 4}]\n"
    several.write_text(head + groups, encoding="utf-8")
    assert load_cluster(str(one)).cluster.device.capacity_bytes == 81251 * MIB
    assert [group.device.capacity_bytes for group in load_cluster(str(several)).cluster.groups] == [
        81251 * MIB,
        81559 * MIB,
    ]


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    return capsys.readouterr().out
