"""`planner.optimize` and its sisters answer what the command line answers, take objects, and raise what Python programs expect."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import planner
from planner.commands.place import place as place_command
from planner.commands.questions import estimate as estimate_command
from planner.commands.questions import explain as explain_command
from planner.commands.questions import optimize as optimize_command
from planner.commands.questions import scale as scale_command
from planner.commands.studies import size as size_command
from planner.commands.studies import sweep as sweep_command
from planner.schema import schema_of

Ask = Callable[..., str]

# Parameters of commands that are about the command line alone.
_OUTPUT = {
    "context", "model", "plan", "run_from", "json", "format", "output", "export", "width", "quiet", "verbose", "words",
    "pick", "export_workload", "html", "plot", "trace", "figure", "static",
}  # fmt: skip
_VOLATILE = {"wall_s", "command_line", "searched"}


def without(document: Any, names: set[str] = _VOLATILE) -> Any:
    if isinstance(document, dict):
        return {key: without(value, names) for key, value in document.items() if key not in names}
    return [without(value, names) for value in document] if isinstance(document, list) else document


@pytest.mark.parametrize(
    ("function", "command"),
    [
        (planner.optimize, optimize_command),
        (planner.estimate, estimate_command),
        (planner.explain, explain_command),
        (planner.scale, scale_command),
        (planner.place, place_command),
        (planner.sweep, sweep_command),
        (planner.size, size_command),
    ],
)
def test_the_keywords_are_the_options_of_the_command_line(function: Any, command: Any) -> None:
    own = {"model", "plan", "run_from", "workload", "progress", "journal", "micro_batches"}
    keywords, parameters = (set(inspect.signature(one).parameters) - own for one in (function, command))
    assert keywords == parameters - _OUTPUT


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("keywords", "arguments"),
    [
        ({"gpus": 8, "batch": 512}, ["--gpus", "8", "--batch", "512"]),
        ({"gpus": 4, "fix": {"conv*": "batch"}, "top": 2, "cost_model": "paleo", "ppp_comp": 0.5},
         ["--gpus", "4", "--fix", "conv*:batch", "--top", "2", "--cost-model", "paleo", "--ppp-comp", "0.5"]),
        ({"cluster": "dgx1-v100", "gpus": 8, "memory_limit": 4 * 2**30}, ["--cluster", "dgx1-v100", "-g", "8", "--memory-limit", "4 GiB"]),
    ],
)  # fmt: skip
def test_a_search_is_that_of_the_command_line(answer: Ask, keywords: dict[str, Any], arguments: list[str]) -> None:
    result = planner.optimize("alexnet", **keywords)
    said = json.loads(answer("optimize", "alexnet", *arguments, "--json"))
    ours = result.to_dict()
    # The limit is written in bytes here and in GiB there; the plans are the same.
    ours, said = (
        without(ours, {*_VOLATILE, "memory_limit", "assumptions"}),
        without(said, {*_VOLATILE, "memory_limit", "assumptions"}),
    )
    assert ours == said
    schema_of("result").model_validate(result.to_dict())


@pytest.mark.e2e
def test_a_mesh_is_searched_and_predicted_as_on_the_command_line(answer: Ask) -> None:
    result = planner.optimize(
        "llama3-8b", gpus=8, batch=8, tp=range(4, 9), zero=(0, 1), time_limit=dt.timedelta(seconds=50)
    )
    text = answer("optimize", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "4..8", "--zero", "0..1", "--json")
    assert [p.step_time_s for p in result] == [p["step_time_s"] for p in json.loads(text)["plans"]]
    assert all(plan.settings["tp"] in (4, 8) for plan in result)
    best = result.best
    assert sum(best.time_parts.values()) == pytest.approx(best.step_time_s)
    assert sum(best.memory_parts.values()) == pytest.approx(best.memory_bytes_per_gpu)
    assert best.estimate().step_time_s == pytest.approx(best.step_time_s)


@pytest.mark.e2e
def test_serving(answer: Ask) -> None:
    result = planner.optimize("llama3-8b", gpus=2, mode="inference", prompt=500, output_tokens=100, max_tpot=0.02)
    said = json.loads(
        answer("optimize", "llama3-8b", "--gpus", "2", "--mode", "inference", "--prompt", "500", "--output-tokens", "100",
               "--max-tpot", "20ms", "--json")
    )  # fmt: skip
    assert without(result.to_dict()) == without(said)
    best = result.best
    assert best.space == "serving"
    assert best.samples_per_s == said["plans"][0]["requests_per_s"]
    assert best.estimate(max_tpot="1ms").notes != best.estimate().notes
    explained = best.explain()
    assert explained.best_step_time_s is not None


@pytest.mark.e2e
def test_several_kinds_of_devices() -> None:
    result = planner.optimize("llama2-13b", cluster="a100-v100", gpus=8, batch=64, top=2)
    assert result.space == "mixed"
    assert result.best.estimate().step_time_s == pytest.approx(result.best.step_time_s)


def test_text_and_tables_are_those_of_the_command_line(answer: Ask) -> None:
    result = planner.estimate("alexnet", gpus=4, family="data")
    text = answer("estimate", "alexnet", "--gpus", "4", "--family", "data", "--width", "120")
    assert str(result).splitlines()[:4] == text.splitlines()[:4]
    html = result._repr_html_()
    assert html.count("<table>") == html.count("</table>") >= 1
    assert "data x4" in html


def test_html_is_escaped_and_a_long_table_is_cut() -> None:
    from planner.core.blocks import Column, Facts, Sentence, Table
    from planner.report.page import html_of

    cells = tuple(f"<script>{n}</script>" for n in range(100))
    table = Table(columns=(Column(title="<b>", cells=cells, is_text=True),))
    html = html_of([table, Facts((("<i>", "a & b"),)), Sentence("<u>", strong=True)])
    for raw in ("<script>", "<b>", "<i>", "<u>", "a & b"):
        assert raw not in html
    assert "and 40 more rows" in html


# -- objects ------------------------------------------------------------------------------------------------------------

NETWORK = {
    "schema_version": 1,
    "name": "tiny",
    "global_batch": 64,
    "layers": [
        {"name": "data", "type": "input", "shape": [784]},
        {"name": "fc", "type": "linear", "out_features": 4096},
    ],
}


@pytest.mark.e2e
def test_loaded_objects_are_the_files_they_came_from() -> None:
    by_name = planner.optimize("alexnet", gpus=4, cluster="dgx1-v100")
    by_object = planner.optimize(planner.load_model("alexnet"), gpus=4, cluster=planner.load_cluster("dgx1-v100"))
    assert without(by_object.to_dict()) == without(by_name.to_dict())
    assert by_object.best.to_dict()["model"] == "alexnet"


def test_a_network_in_memory_travels_with_its_plan(tmp_path: Path) -> None:
    found = planner.optimize(NETWORK, gpus=2)
    found.save(tmp_path / "plan.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.model.yaml", "plan.yaml"]
    moved = tmp_path.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    again = planner.Plan.load(moved / "plan.yaml")
    assert again.step_time_s == found.best.step_time_s
    assert again.warnings == ()


@pytest.mark.e2e
def test_a_cluster_as_a_mapping_is_changed_in_a_program(tmp_path: Path) -> None:
    import yaml

    content = yaml.safe_load(planner.load_cluster("dgx1-v100").path.read_text(encoding="utf-8"))
    same = planner.optimize("alexnet", gpus=8, cluster=content)
    assert same.best.step_time_s == planner.optimize("alexnet", gpus=8, cluster="dgx1-v100").best.step_time_s
    content["levels"][0]["bandwidth"] = "1 GB/s"
    slow = planner.optimize("alexnet", gpus=8, cluster=content)
    assert slow.best.step_time_s > same.best.step_time_s
    slow.save(tmp_path / "plan.yaml")
    assert (tmp_path / "plan.cluster.yaml").is_file()
    assert planner.Plan.load(tmp_path / "plan.yaml").step_time_s == slow.best.step_time_s


def test_files_beside_the_plan_are_named_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(planner.load_model("mlp").path)
    (tmp_path / "mine.yaml").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = planner.optimize("mine.yaml", gpus=2)
    monkeypatch.chdir("/")  # what was meant stays what it was
    found.save(tmp_path / "plan.yaml")
    assert "model: ./mine.yaml" in (tmp_path / "plan.yaml").read_text(encoding="utf-8")
    assert planner.Plan.load(tmp_path / "plan.yaml").warnings == ()


def test_a_plan_is_exported_saved_and_changed(tmp_path: Path) -> None:
    plan = planner.estimate("llama3-8b", gpus=16, batch=32, tp=8, pp=2).plan
    written = plan.export("megatron", to=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == set(written.files)
    assert written.folder == tmp_path / "run"
    assert plan.estimate(batch=64).plan.global_batch == 64
    with pytest.raises(planner.OutputError):
        plan.export("megatron", to=tmp_path / "run")
    with pytest.raises(planner.UsageError, match="tp: is decided by the plan"):
        plan.estimate(tp=4)


@pytest.mark.e2e
def test_pages_figures_and_traces(tmp_path: Path) -> None:
    result = planner.optimize("alexnet", gpus=2)
    page = result.write_html(tmp_path / "a.html", static=True).read_text(encoding="utf-8")
    assert "alexnet" in page
    assert result.write_plot(tmp_path / "a.svg").read_text(encoding="utf-8").lstrip().startswith("<")
    trace = json.loads(result.best.estimate().write_trace(tmp_path / "t.json").read_text(encoding="utf-8"))
    assert trace["traceEvents"]
    with pytest.raises(planner.UsageError, match=r"a page ends in \.html"):
        result.write_html(tmp_path / "a.txt")


def test_a_run_of_today(new_file: Any) -> None:
    script = new_file("train.sh", "pretrain --tensor-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 16")
    found = planner.estimate("llama3-8b", run_from=("megatron", script), gpus=8)
    assert found.plan.settings["tp"] == 4
    assert found.plan.global_batch == 16


def test_what_of_a_run_was_read_otherwise_is_said(new_file: Any) -> None:
    script = new_file(
        "train.sh", "torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16"
    )
    found = planner.estimate("llama3-8b", run_from=("megatron", script), gpus=16, tp=8)
    assert any("the script starts 8" in warning for warning in found.warnings)
    assert "the script starts 8" in str(found)
    assert set(found.warnings) <= set(found.to_dict()["notes"])


def test_plans_know_what_a_step_costs() -> None:
    best = planner.optimize(
        "alexnet", gpus=4, cluster="ethernet-10g", objective="energy", price=3.6, power="300 W,50 W"
    ).best
    assert best.money_per_step == pytest.approx(best.workers * best.step_time_s * 1e-3)
    assert best.energy_per_step_j is not None
    assert 50 < best.energy_per_step_j / (best.workers * best.step_time_s) <= 300 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("loaded", "words"),
    [
        (lambda: planner.load_model("llama3-8b"), ["325 layers", "8,030,261,248 weights", "32 blocks"]),
        (
            lambda: planner.load_device("h100-sxm"),
            ["h100-sxm", "(79.6 GiB by the driver) at 3.35 TB/s", "bf16 989 TFLOP/s", "700 W"],
        ),
        (lambda: planner.load_cluster("dgx-h100"), ["nvlink", "450 GB/s", "any number of", "h100-sxm", "1.82 TiB"]),
        (lambda: planner.load_cluster("a100-v100"), ["16 x a100-80gb", "32 x v100-32gb"]),
    ],
)
def test_what_is_loaded_prints_and_shows_in_notebooks(loaded: Any, words: list[str]) -> None:
    thing = loaded()
    text, page = str(thing), thing._repr_html_()
    for word in words:
        assert word in text
        assert word in page
    assert repr(thing).startswith(f"<planner.{type(thing).__name__} of /")
    assert repr(thing).endswith(".yaml>")
    assert page.startswith("<div>")
    assert len(repr(thing)) < 200


@pytest.mark.e2e
def test_price_and_power() -> None:
    result = planner.optimize("llama3-8b", gpus=8, batch=8, tp=8, price=2.5, power=(500, 100))
    hours = result[0].step_time_s / 3600 * 8
    tokens = result[0].global_batch * 8192
    assert result.to_dict()["plans"][0]["money_per_million_tokens"] == pytest.approx(hours * 2.5 / tokens * 1e6)


def test_numpy_numbers() -> None:
    assert planner.estimate("alexnet", gpus=np.int64(4), family="data").plan.workers == 4


# -- errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [planner.optimize, planner.estimate, planner.explain, planner.scale, planner.place, planner.sweep, planner.size],
)
def test_an_unknown_keyword_is_a_type_error(function: Any) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'clutser'; did you mean 'cluster'\?"):
        function("alexnet", clutser="dgx-h100")


@pytest.mark.parametrize(
    ("keywords", "kind", "words"),
    [
        ({"gpus": 0}, planner.UsageError, "gpus 0: must be at least 1"),
        ({"gpus": 2.5}, planner.UsageError, "gpus 2.5: must be a whole number"),
        ({"gpus": 4, "cluster": "dgx-h10"}, planner.UnknownName, "did you mean 'dgx-h100'"),
        ({"gpus": 4, "cluster": "no/such.yaml"}, planner.InputFileError, "no such cluster file"),
        ({"gpus": 4, "max_tpot": 1}, planner.UsageError, "max_tpot: only has a meaning with mode inference"),
        ({}, planner.UsageError, "gpus: is missing"),
        ({"gpus": 1, "memory_limit": "1 GB"}, planner.PlannerError, "GiB"),
        ({"gpus": 4, "tp": 2, "micro_batches": 2, "num_micro_batches": 2}, planner.UsageError, "are the same"),
    ],
)
def test_mistakes_are_planner_errors_and_value_errors(keywords: dict[str, Any], kind: type, words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        planner.optimize("vgg16", **keywords)
    assert isinstance(caught.value, planner.PlannerError)
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value, SystemExit)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: planner.optimize({}, gpus=8), "the argument model: missing key 'layers'"),
        (lambda: planner.optimize("alexnet", gpus=8, cluster={}), "the argument cluster: missing key 'levels'"),
        (
            lambda: planner.sweep("alexnet", gpus=[1], cluster=["dgx-h100", {}]),
            r"the argument cluster\[1\]: missing key",
        ),
        (lambda: planner.estimate(plan={"model": "alexnet"}), "the argument plan: missing key 'workers'"),
        (lambda: planner.place({"nodes": []}), "the argument workload: missing key 'edges'"),
    ],
)
def test_faults_of_what_is_in_memory_name_the_argument(ask: Callable[[], Any], words: str) -> None:
    with pytest.raises(planner.InputFileError, match=f"(?m)^{words}"):
        ask()


@pytest.mark.parametrize("keywords", [{"gpus": True}, {"cluster": 5}, {"diverse": "yes"}, {"tp": object()}])
def test_values_of_wrong_types(keywords: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        planner.optimize("alexnet", **{"gpus": 4, **keywords})


def test_a_placement_counts_with_a_calibration(tmp_path: Path) -> None:
    """Matrix products at half of their rate take a network of these longer, by up to two times."""
    path = tmp_path / "slow.yaml"
    constant = "{value: 0.5, log_sd: 0.1, prior: 1.0, prior_log_sd: 0.17, determined: true}"
    path.write_text(f"schema_version: 1\nname: slow\nconstants: {{matmul_rate: {constant}}}\n", encoding="utf-8")
    options: dict[str, Any] = {"cluster": "dgx1-v100", "devices": 2, "mode": "inference", "batch": 8192}
    plain, slow = planner.place("mlp", **options), planner.place("mlp", calibration=path, **options)
    assert 1.1 * plain.objective < slow.objective < 2.1 * plain.objective


def test_an_interrupted_search_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.core.errors import SearchInterrupted
    from planner.spaces import ask

    whole = ask.optimize

    def stopped(request: Any, progress: Any = None) -> Any:
        raise SearchInterrupted(whole(request, progress))

    monkeypatch.setattr(ask, "optimize", stopped)
    with pytest.raises(KeyboardInterrupt) as caught:
        planner.optimize("mlp", gpus=2)
    assert isinstance(caught.value, planner.Interrupted)
    assert caught.value.result.best.workers <= 2


def test_from_a_thread() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(planner.optimize("alexnet", gpus=4)))
    thread.start()
    thread.join(120)
    assert found
    assert found[0].proven


def test_rows_as_a_table() -> None:
    result = planner.optimize("alexnet", gpus=4)
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["step_time_s"]) == [plan.step_time_s for plan in result]


# -- the module ---------------------------------------------------------------------------------------------------------


def test_every_public_name_is_there_and_none_is_hidden_by_a_module() -> None:
    import planner.calibration
    import planner.comparison
    import planner.exporters.export
    import planner.measurements
    import planner.placement
    import planner.sizing.run
    import planner.sweeping.run

    for name in planner.__all__:
        assert not inspect.ismodule(getattr(planner, name)), name
    assert set(planner.__all__) == {name for name in dir(planner) if not name.startswith("__")} | {"__version__"}
    with pytest.raises(AttributeError):
        planner.optimise  # noqa: B018


def test_import_is_quick_and_pulls_in_nothing() -> None:
    heavy = ("numpy", "pydantic", "typer", "rich", "ortools", "yaml", "pandas")
    code = f"import sys, planner; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


def test_mfu_of_a_plan() -> None:
    plan = planner.optimize("llama3-8b", nodes=1, cluster="h100", time_limit="30s").best
    # 6 FLOP per weight and token, and attention beside them.
    assert plan.mfu is not None
    assert plan.tokens_per_s is not None
    assert plan.mfu * 8 * 989.4e12 > 6 * 7.5e9 * plan.tokens_per_s
    assert planner.optimize("alexnet", gpus=1).best.mfu is None
