"""Money and energy in answers: options, files, objectives, bundled figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodel.hardware.host import Power
from planner.cli import run
from planner.core.request import Request
from planner.files.loading import load_cluster, load_device
from planner.files.resources import bundled
from planner.question.resolve import resolve
from planner.spaces.ask import optimize


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("name", sorted(bundled("devices")))
def test_bundled_power_and_prices_have_sources_and_are_sensible(name: str) -> None:
    import yaml

    document = yaml.safe_load(bundled("devices")[name].read_text(encoding="utf-8"))
    for key in ("power", "price_per_hour"):
        assert (key in document) == (key in document["source"]), key
    device = load_device(name).device
    if device.busy_power_w is not None:
        assert 50 <= device.busy_power_w <= 1500
    if device.price_per_hour is not None:
        assert 0.1 <= device.price_per_hour <= 20
        assert "on-demand" in document["source"]["price_per_hour"]
    if name.startswith("paleo-"):
        assert device.busy_power_w is None


def test_a_cluster_s_price_goes_before_the_device_s(tmp_path: Path) -> None:
    text = bundled("clusters")["dgx-a100"].read_text(encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("\nsource:\n", "\nprice_per_hour: 1.25\nsource:\n"), encoding="utf-8")
    assert load_cluster(str(mine)).cluster.device.price_per_hour == 1.25
    assert load_cluster("dgx-a100").cluster.device.price_per_hour == load_device("a100-80gb").device.price_per_hour


def test_mixed_clusters_state_prices_by_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = bundled("clusters")["a100-v100"].read_text(encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("\nsource:\n", "\nprice_per_hour: 1.25\nsource:\n"), encoding="utf-8")
    assert run(["optimize", "llama2-7b", "--gpus", "8", "--cluster", str(mine)]) == 2
    assert "about one kind of device" in capsys.readouterr().err
    assert run(["optimize", "llama2-7b", "--gpus", "8", "--cluster", "a100-v100", "--price", "1"]) == 2
    assert "has several" in capsys.readouterr().err


def test_the_host_s_power_is_shared_by_its_devices() -> None:
    cluster = load_cluster("dgx-h100").cluster
    power = Power.of(cluster.device, cluster.host)
    assert power == Power(busy_w=700.0, idle_w=140.0, host_w=575.0)


@pytest.mark.e2e
def test_every_plan_states_both(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("alexnet", "--gpus", "4"), ("llama2-7b", "--gpus", "16", "--batch", "64")):
        document = _json(
            capsys, "optimize", *arguments, "--cluster", "ethernet-10g", "--price", "2", "--power", "300 W,50 W"
        )
        for plan in document["plans"]:  # type: ignore[attr-defined]
            seconds = plan["workers"] * plan["step_time_s"]
            assert plan["money_per_step"] == pytest.approx(seconds / 1800)
            assert 50 * seconds <= plan["energy_per_step_j"] <= 300 * seconds * (1 + 1e-9)


@pytest.mark.e2e
def test_a_split_per_layer_by_hand() -> None:
    best = optimize(Request(model="alexnet", gpus=4, cluster="ethernet-10g", power_w=(300.0, 50.0))).plans[0]
    busy = best["compute_s"] + best["update_s"]
    expected = best.workers * (50.0 * best.step_time_s + 250.0 * busy)
    assert best["energy_per_step_j"] == pytest.approx(expected)


@pytest.mark.e2e
def test_least_energy_takes_no_more_than_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("optimize", "llama2-7b", "--gpus", "64", "--batch", "64", "--cluster", "dgx-a100")
    fast = _json(capsys, *question)["plans"][0]  # type: ignore[index]
    document = _json(capsys, *question, "--objective", "energy")
    thrifty = document["plans"][0]  # type: ignore[index]
    assert document["proven_optimal"] is True
    assert thrifty["energy_per_step_j"] <= fast["energy_per_step_j"]
    assert 0 < document["bound_s"] <= min(fast["step_time_s"], thrifty["step_time_s"])  # type: ignore[type-var]
    names = {row["name"]: row["value"] for row in document["assumptions"]}  # type: ignore[attr-defined]
    assert "400 W of a computing GPU" in names["power"]
    assert "an assumption" in names["power"]


@pytest.mark.e2e
def test_the_table_shows_energy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize", "llama2-7b", "--gpus", "8", "--batch", "8", "--objective", "energy", "--width", "150"]) == 0
    out = capsys.readouterr().out
    assert "energy" in out
    assert "kJ" in out
    assert "more energy-efficient" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--objective", "energy", "--device", "h20"), "states no power"),
        (("--objective", "money", "--device", "h20"), "states no price"),
        (("--power", "700"), "has no unit"),
        (("--power", "100 W,200 W"), "no more than a busy one"),
        (("--power", "1 W,1 W,1 W"), "--power 1 W,1 W,1 W"),
        (("--price", "-1"), "--price -1"),
        (("--price", "1e9"), "at most"),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert run(["optimize", "llama2-7b", "--gpus", "8", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_overrides_reach_the_device() -> None:
    device = resolve(Request(model="alexnet", price_per_hour=0.5, power_w=(100.0, None))).cluster.device
    assert (device.price_per_hour, device.busy_power_w, device.idle_power_w) == (0.5, 100.0, None)
