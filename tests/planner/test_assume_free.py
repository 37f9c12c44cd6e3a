"""`--assume-free OP`: every command that reads a network takes it, and every answer says so."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner
from planner.core.errors import UsageError
from planner.importers.networks import load_model
from planner.importers.sources import text_of

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 3 dim: 16 dim: 16 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 8 kernel_size: 3 } }
layer { name: "odd" type: "Frob" bottom: "conv" top: "odd" }
layer { name: "fc" type: "InnerProduct" bottom: "odd" top: "fc" inner_product_param { num_output: 4 } }
"""
FREE = ["--assume-free", "Frob"]


@pytest.fixture
def network(new_file: Any) -> str:
    return str(new_file("net.prototxt", NET))


COMMANDS = {
    "optimize": ["--gpus", "2", "--batch", "32"],
    "estimate": ["--batch", "32"],
    "explain": ["--gpus", "2", "--batch", "32"],
    "scale": ["--workers", "1,2", "--batch", "32"],
    "sweep": ["--gpus", "1,2", "--batch", "32"],
    "size": ["--batch", "32", "--samples", "1e6", "--days", "1", "--max-gpus", "4"],
    "place": ["--cluster", "dgx1-v100"],
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_takes_it_and_says_so(command: str, network: str, said: Any, fails: Any) -> None:
    words = [command, network, *COMMANDS[command]]
    assert "Frob (1)" in fails(*words)
    for format_ in ("json", "markdown"):
        out, err = said(*words, *FREE, "--format", format_)
        assert "Frob" in (out if format_ == "json" or command != "sweep" else out + err)
        assert "ASSUMED FREE by --assume-free: Frob" in err


@pytest.mark.e2e
def test_plan_files_keep_it(network: str, tmp_path: Path, answer: Any) -> None:
    plan, page = tmp_path / "plan.yaml", tmp_path / "page.html"
    answer("optimize", network, *FREE, *COMMANDS["optimize"], "--export", str(plan), "--html", str(page))
    text = plan.read_text()
    assert yaml.safe_load(text)["assume_free"] == ["Frob"]
    assert "assumed free" in page.read_text().lower()
    # The plan file says all that predicts it again.
    assert "Frob" in answer("estimate", "--plan", str(plan))
    assert "Frob" in answer("compare", str(plan), "--best", "--json")
    assert "Frob" in json.dumps(json.loads(answer("explain", "--plan", str(plan), "--json"))["assumptions"])


def test_an_imported_file_says_it_for_good(network: str, new_file: Any, answer: Any) -> None:
    path = new_file("net.yaml", text_of(load_model(network, assume_free=["Frob"])))
    assumptions = json.loads(answer("optimize", str(path), *COMMANDS["optimize"], "--json"))["assumptions"]
    assert any("Frob" in json.dumps(one) for one in assumptions)


def test_rows_of_numbers_say_it_too(network: str, answer: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(answer("sweep", network, *FREE, *COMMANDS["sweep"], "--format", "csv"))))
    assert len(rows) == 2
    assert all("assumed free: Frob" in row["model"] for row in rows)


@pytest.mark.parametrize(
    ("model", "operator"), [("alexnet", "Frob"), ("net.prototxt", "Nope"), ("net.prototxt", "ReLU")]
)
def test_assumptions_about_nothing_are_refused(model: str, operator: str, network: str, fails: Any) -> None:
    name = network if model == "net.prototxt" else model
    error = fails("optimize", name, "--gpus", "2", "--assume-free", "Frob", "--assume-free", operator)
    assert "--assume-free" in error
    assert operator in error


def test_placing_a_file_of_operators_takes_no_such_option(new_file: Any, fails: Any) -> None:
    path = new_file("graph.json", "{}")
    assert "--assume-free: only has a meaning for a network with --cluster" in fails("place", str(path), *FREE)


def test_in_python(network: str) -> None:
    result = planner.optimize(network, gpus=2, batch=32, assume_free=["Frob"])
    assert "Frob" in str(result)
    assert planner.load_model(network, assume_free=["Frob"]).graph.layers
    with pytest.raises(UsageError, match="assume"):
        planner.load_model(network, assume_free=["Frob", "Nope"])
