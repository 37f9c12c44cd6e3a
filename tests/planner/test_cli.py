"""The command line end to end: answers, formats, files, streams and exit codes."""

from __future__ import annotations

import csv
import io
import json
import re
import string
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner import __version__
from planner.api.keywords import OptimizeOptions, options_of
from planner.core.errors import ExitCode, UnknownName, did_you_mean
from planner.importers.networks import load_model
from planner.schema import DOCUMENTS, json_schema
from planner.schema.answer import ScaleDocument, estimate_model, search_model
from planner.schema.plan import PlanDocument
from planner.schema.results import ListDocument

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("optimize", "estimate", "explain", "scale", "list", "import", "schema")
OUTPUT_FLAGS = ("--json", "--format", "--output", "--quiet", "--verbose")


def in_shell(arguments: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "planner", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60, **more)


# --- optimize


def test_optimize_prints_the_table_and_what_it_rests_on(answer: Any) -> None:
    text = answer("optimize", "alexnet.yaml", "--gpus", "4", "-v")
    for title in (
        "#",
        "plan",
        "step time",
        "throughput",
        "memory",
        "Limited by:",
        "vs first",
    ):
        assert title in text
    for fact in (
        "Proof:",
        "Space:",
        "distinct plans",
        "Roles",
        "Data parallelism:",
        "Assumed:",
        "dgx-h100",
        "global batch 128",
    ):
        assert fact in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 160


def test_optimize_json_is_valid_and_pure(answer: Any) -> None:
    document = json.loads(answer("optimize", "alexnet", "--gpus", "4", "--json"))
    checked = search_model("layers").model_validate(document)
    assert json.loads(checked.model_dump_json(exclude_unset=True)) == document
    assert document["gpus"] == 4
    fastest = document["fastest"]["step_time_s"]
    assert document["gap"] == pytest.approx((fastest - document["bound_s"]) / fastest)
    assert [plan["rank"] for plan in document["plans"]] == [1, 2, 3, 4, 5]
    # The plan to run is the simplest within 1 % of the fastest, the first of the others.
    times = [plan["step_time_s"] for plan in document["plans"]]
    assert times[1:] == sorted(times[1:])
    assert fastest < times[0] <= 1.01 * fastest
    assert document["setting"]["command_line"] == "planner optimize alexnet --gpus 4 --json"


@pytest.mark.parametrize(
    "question",
    ["mlp --gpus 4", pytest.param("gpt3-1.3b --gpus 4 --batch 16 --seq 512", marks=pytest.mark.e2e)],
    ids=["layers", "mesh"],
)
def test_the_same_question_has_the_same_answer(document: Any, question: str) -> None:
    assert document(f"optimize {question}") | {"wall_s": 0} == document(f"optimize {question}") | {"wall_s": 0}


@pytest.mark.e2e
def test_top_and_format(answer: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(answer("optimize", "mlp", "--gpus", "4", "--top", "3", "--format", "csv"))))
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    document = yaml.safe_load(answer("optimize", "mlp", "--gpus", "4", "--top", "3", "--format", "yaml"))
    assert [plan["step_time_s"] for plan in document["plans"]] == [float(row["step_time_s"]) for row in rows]
    text = answer("optimize", "mlp", "--gpus", "4", "--top", "2", "--format", "markdown")
    assert text.startswith("**Best: ")
    assert "\n| # | plan |" in text


def test_width(answer: Any) -> None:
    text = answer("optimize", "alexnet", "--gpus", "4", "--width", "70")
    assert max(map(len, text.splitlines())) <= 70


# --- plan files


@pytest.mark.e2e
@pytest.mark.parametrize("model", ["alexnet", "mlp"])
def test_a_plan_gives_back_its_step_time(answer: Any, tmp_path: Path, model: str) -> None:
    path = tmp_path / "plan.yaml"
    best = json.loads(answer("optimize", model, "--gpus", "6", "--json", "--export", str(path)))["plans"][0]
    PlanDocument.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    for command in ("estimate", "explain"):
        document = json.loads(answer(command, "--plan", str(path), "--json"))
        estimate_model("layers").model_validate(document)
        assert document["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-9)
        assert document["plans"][0]["memory_bytes_per_gpu"] == best["memory_bytes_per_gpu"]
        assert document["plans"][0]["plan"]["layers"] == best["plan"]["layers"]


def test_a_paleo_plan_gives_back_its_step_time(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    options = "--cluster k20-pcie --cost-model paleo --ppp-comp 0.46 --ppp-comm 0.75 --collective tree --batch 1024"
    best = json.loads(
        answer("optimize", "alexnet-cuda-convnet2", "--gpus", "2", *options.split(), "--json", "--export", str(path))
    )["plans"][0]
    document = json.loads(answer("estimate", "--plan", str(path), "--json"))
    assert document["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-9)
    assert document["cost_model"] == "paleo"


def test_a_plan_on_another_cluster(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    answer("optimize", "mlp", "--gpus", "4", "--export", str(path))
    here = json.loads(answer("estimate", "--plan", str(path), "--json"))
    there = json.loads(answer("estimate", "--plan", str(path), "--json", "--cluster", "dgx-a100"))
    assert there["cluster"] == "dgx-a100"
    assert there["step_time_s"] > here["step_time_s"]
    text = answer("estimate", "--plan", str(path), "--cluster", "dgx-a100", "--width", "1000")
    assert "cluster dgx-a100 (given), device a100-80gb, global batch 60 (plan file), precision bf16 (plan file)" in text


def test_a_changed_model_is_a_warning(tmp_path: Path, said: Any, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "mine.yaml"
    text = (ROOT / "configs" / "models" / "mlp.yaml").read_text(encoding="utf-8")
    model.write_text(text, encoding="utf-8")
    said("optimize", "mine.yaml", "--gpus", "2", "--export", "plan.yaml")
    assert "Warning" not in answer("estimate", "--plan", "plan.yaml")
    model.write_text(text + "# changed\n", encoding="utf-8")
    out, err = said("estimate", "--plan", "plan.yaml")
    assert "the model file is not the one that the plan was made with" in err
    assert "Warning:" in out


def test_changed_files_are_one_warning_and_replaced_ones_none(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    answer("optimize", "mlp", "--gpus", "2", "--export", path)

    def warned(*more: str) -> list[str]:
        text = answer("estimate", "--plan", path, *more, "--width", "1000")
        return re.findall("Warning: (.*) \\(sha256 differs\\)", text)

    assert warned("--cluster", "dgx-a100") == warned("--device", "a100-80gb") == []
    text = path.read_text(encoding="utf-8")
    path.write_text(
        re.sub("^    (model|cluster|device): .*", r"    \1: other", text, flags=re.MULTILINE), encoding="utf-8"
    )
    every = ["the cluster, device and model files are not those that the plan was made with"]
    assert warned() == warned("--cluster", "dgx-h100") == every
    assert warned("--cluster", "dgx-a100") == ["the model file is not the one that the plan was made with"]


def test_a_plan_finds_its_model_from_anywhere(answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "plans").mkdir()
    text = (ROOT / "configs" / "models" / "mlp.yaml").read_text(encoding="utf-8")
    (tmp_path / "nets" / "mine.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    answer("optimize", "nets/mine.yaml", "--gpus", "2", "--export", "plans/plan.yaml")
    assert "model: ../nets/mine.yaml" in Path("plans/plan.yaml").read_text(encoding="utf-8")
    monkeypatch.chdir("/")
    answer("estimate", "--plan", str(tmp_path / "plans" / "plan.yaml"))


# --- estimate, explain, scale


def test_estimate_a_family_and_a_fixed_plan(answer: Any) -> None:
    data = json.loads(answer("estimate", "alexnet", "--gpus", "8", "--family", "data", "--json"))
    assert data["plans"][0]["family"] == "data"
    assert data["plans"][0]["workers"] == 8
    assert {tuple(split) for split in data["plans"][0]["plan"]["layers"].values()} <= {
        ("batch",),
        ("batch", "collective"),
    }
    fixed = json.loads(
        answer("estimate", "alexnet", "--gpus", "8", "--fix", "conv*:batch", "--fix", "fc*:out_channels", "--json")
    )
    layers = fixed["plans"][0]["plan"]["layers"]
    assert layers["conv1"]["batch"] == layers["fc6"]["out_channels"] == 8


def test_explain_one_device(answer: Any) -> None:
    document = json.loads(
        answer("explain", "alexnet", "--device", "paleo-titan-x", "--batch", "32", "--cost-model", "paleo", "--json")
    )
    estimate_model("layers").model_validate(document)
    assert document["layers"][1]["name"] == "conv1"
    assert document["layers"][1]["output_shape"] == [32, 54, 54, 64]  # (224 - 11) / 4 + 1, rounded up: VALID
    assert set(document["totals"]) == set(document["layers"][0])
    assert document["step_time_s"] == pytest.approx(
        sum(document["totals"][key] for key in ("forward_s", "backward_input_s", "backward_weight_s", "update_s"))
    )


def test_a_curve_of_what_generates_text_is_refused_with_what_to_ask(answer: Any, fails: Any) -> None:
    error = fails("scale", "llama3-8b", "--gpus", "8,16", "--mode", "inference")
    command = "optimize llama3-8b --mode inference --gpus 16"
    assert f"'planner {command}'" in error
    assert "tokens/s" in answer(*command.split())


def test_explain_adds_up_the_memory(answer: Any) -> None:
    """The layers of the table and the context are the memory of the verdict: 749 + 512 MiB = 1.23 GiB."""
    text = answer("explain", "alexnet", "--width", "160")
    layers = next(line for line in text.splitlines() if line.startswith("total")).split()[-1]
    parts = " ".join(text.split("What fills the memory")[1].split())
    assert float(layers) == pytest.approx(749)
    assert "1.23 GiB of 79.6 GiB" in text
    assert "context of the driver and libraries 0.500" in parts
    assert "memory 1.23 100 %" in parts


def test_a_layer_with_a_kind_is_asked_for_its_type(fails: Any, new_file: Any) -> None:
    path = new_file(
        "net.yaml", "schema_version: 1\nname: a\nglobal_batch: 8\nlayers:\n  - {name: c, kind: convolution}\n"
    )
    assert "missing key 'type' (or 'block', or 'branches'); did you mean 'type' by 'kind'?" in fails(
        "optimize", str(path), "--gpus", "2"
    )


def test_the_method_of_a_proof_comes_with_verbose(answer: Any) -> None:
    text = " ".join(answer("optimize", "alexnet", "--gpus", "4", "-v").split())
    assert "proven by elimination" in text
    assert "(elimination" not in text


def test_a_plan_is_no_placement_and_that_takes_one_line(answer: Any, fails: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.yaml")
    answer("optimize", "mlp", "--gpus", "2", "--export", path)
    error = fails("place", "check", "alexnet", path)
    assert "is a plan of 'planner optimize', not a placement" in error
    assert len(error.splitlines()) == 1


def test_next_names_the_file_that_was_written(answer: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "best.yaml")
    text = answer("optimize", "mlp", "--gpus", "4", "--export", path, "--width", "300")
    assert f"planner export {path} --to torch" in text
    assert "keeps the plan" not in text


def test_another_plan_than_the_first_is_written(
    document: Any, said: Any, answer: Any, fails: Any, tmp_path: Path
) -> None:
    path = tmp_path / "second.yaml"
    second = document(f"optimize mlp --gpus 4 --export {path} --pick 2")["plans"][1]
    predicted = document(f"estimate --plan {path}")["plans"][0]
    assert (predicted["summary"], predicted["step_time_s"]) == (second["summary"], second["step_time_s"])
    assert "\nNext:       planner optimize mlp --gpus 4 --export plan.yaml\n" in answer(
        "optimize", "mlp", "--gpus", "4"
    )
    shortlisted = yaml.safe_load(
        Path(said("optimize", "mlp", "--gpus", "4", "--export", path, "--pick", "6") and path).read_text()
    )
    assert shortlisted["prediction"]["step_time_s"] > predicted["step_time_s"]
    question = ("optimize", "mlp", "--gpus", "4", "--pick")
    assert "name a file" in fails(*question, "2")
    found, error = said(*question, "7", "--export", tmp_path / "sixth.yaml", code=2)
    assert "ends with plan 6, and nothing was exported; --top N lists more" in error
    assert found.startswith("Best: ")  # what was searched for is not lost
    assert not (tmp_path / "sixth.yaml").exists()


def test_the_proven_plan_is_marked_wherever_it_stands(answer: Any, tmp_path: Path) -> None:
    """The first is the simplest within 1 % of the fastest, which is the second, and proven."""
    found = {}
    for rank in (1, 2, 3):
        path = tmp_path / f"{rank}.yaml"
        answer("optimize", "alexnet", "--gpus", "4", "--export", str(path), "--pick", str(rank))
        found[rank] = yaml.safe_load(path.read_text())["prediction"]["proven_optimal"]
    assert found == {1: False, 2: True, 3: False}


def test_plans_on_fewer_gpus_are_marked(answer: Any) -> None:
    """However narrow the terminal is, where counts differ; of plans that all take as many, the column goes early."""
    for options, is_marked in (("--family data --no-diverse", True), ("--fix *:batch=4", False)):
        text = answer("optimize", "alexnet", "--gpus", "4", *options.split(), "--width", "60")
        head = next(line for line in text.splitlines() if line.startswith("#"))
        assert ("GPUs" in head) is is_marked


def test_explain_shows_layers_and_why(answer: Any) -> None:
    text = answer("explain", "alexnet", "--gpus", "8", "--family", "data")
    for part in ("Where the step goes", "Layer by layer", "conv1", "total", "Against the best plan", "difference"):
        assert part in text


@pytest.mark.e2e
def test_scale(answer: Any) -> None:
    arguments = "nin --workers 1,2..4 --batch 256 --epochs 47 --samples 1.2e6"
    document = json.loads(answer("scale", *arguments.split(), "--json"))
    checked = ScaleDocument.model_validate(document)
    assert json.loads(checked.model_dump_json(exclude_unset=True)) == document
    assert [point["workers"] for point in document["points"]] == [1, 2, 3, 4]
    assert document["points"][0]["speedup"] == 1.0
    one = document["points"][0]
    assert one["hours"] == pytest.approx(47 * 1.2e6 / one["throughput_samples_per_s"] / 3600)
    weak = json.loads(answer("scale", "nin", "--workers", "1,2", "--batch", "64", "--weak", "--json"))
    assert [point["global_batch"] for point in weak["points"]] == [64, 128]


# FireCaffe (Iandola et al., arXiv:1511.00175) as recomputed with PALEO: K20X, 70 Gb/s, tree, 47 epochs of 1.2 M images.
@pytest.mark.parametrize(
    ("workers", "batch", "hours"),
    [(1, 256, "117.40"), (32, 256, "7.58"), (32, 1024, "4.64"), (128, 1024, "2.27")],
)
def test_hours_of_firecaffe(answer: Any, workers: int, batch: int, hours: str) -> None:
    text = answer(
        *f"scale nin --workers {workers} --batch {batch} --device paleo-k20x --cluster paleo-infiniband --cost-model paleo "
        "--ppp-comp 0.21 --ppp-comm 0.56 --collective tree --epochs 47 --samples 1.2e6".split()
    )
    assert f" {hours} " in text


# --- list, schema, import


LISTED = {
    "models": "alexnet",
    "devices": "h100-sxm",
    "clusters": "dgx-h100",
    "frameworks": "megatron-lm",
    "calibrations": "default",
    "precisions": "fp8-blockwise",
    "schedules": "zb_v",
    "collectives": "ring",
    "importers": "onnx",
    "exporters": "megatron",
}


@pytest.mark.e2e
@pytest.mark.parametrize(("kind", "name"), sorted(LISTED.items()))
def test_lists(answer: Any, kind: str, name: str) -> None:
    document = json.loads(answer("list", kind, "--json"))
    ListDocument.model_validate(document)
    names = [item["name"] for item in document["items"]]
    assert name in names
    assert all(item["description"] for item in document["items"])
    assert "alexnet" in answer("list", "model")


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_schemas_are_printed(answer: Any, document: str) -> None:
    assert json.loads(answer("schema", document)) == json_schema(document)


def test_import_writes_a_model_file(answer: Any, reference_data: Path, tmp_path: Path) -> None:
    for path in sorted((reference_data / "paleo" / "nets").glob("*.json")):
        target = tmp_path / f"{path.stem}.yaml"
        answer("import", str(path), "-o", str(target))
        there, here = load_model(str(path)), load_model(str(target))
        assert here.graph.edges == there.graph.edges
        assert here.graph.weight_count == there.graph.weight_count
        assert here.global_batch == there.global_batch
        pairs = list(zip(here.graph.layers, there.graph.layers, strict=True))
        assert all(a.kind == b.kind and a.output_shape == b.output_shape for a, b in pairs)


def test_import_round_trips_the_bundled_models(new_file: Any) -> None:
    """Blocks, branches and joins, written out layer by layer."""
    from planner.files.network_file import network_text

    for name in ("googlenet", "resnet50", "gnmt", "dcgan-generator"):
        model = load_model(name)
        again = load_model(str(new_file(f"{name}.yaml", network_text(model))))
        assert again.graph.edges == model.graph.edges
        assert [layer.output_shape for layer in again.graph.layers] == [
            layer.output_shape for layer in model.graph.layers
        ]
        assert [layer.weight_count for layer in again.graph.layers] == [
            layer.weight_count for layer in model.graph.layers
        ]


# --- help


def test_every_exit_code_is_in_the_help(answer: Any) -> None:
    codes = answer("--help").rpartition("Exit codes: ")[2]
    assert {int(number) for number in re.findall(r"\d+", codes)} == {*ExitCode}


def test_every_command_is_in_the_help(answer: Any) -> None:
    text = answer("--help")
    for name in COMMANDS:
        assert f"  {name} " in text
    assert answer() == text
    assert answer("--version") == f"planner {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(answer: Any, command: str) -> None:
    text = answer(command, "--help")
    assert f"Usage: planner {command} [OPTIONS]" in text
    flags = OUTPUT_FLAGS if command != "import" else ("--output", "--quiet", "--verbose")
    for flag in flags:
        assert flag in text


def test_rare_options_are_in_the_long_help_alone(answer: Any) -> None:
    short, long = answer("optimize", "--help"), answer("optimize", "--help-all")
    for name, option in options_of(OptimizeOptions).items():
        flag = option.flags.split()[0].split("/")[0]
        assert flag in long
        assert (f" {flag} " in short) == (not option.rare), name
    assert "  --help-all  Also show the options that are rarely needed.\n" in short
    assert len(short.splitlines()) < 0.8 * len(long.splitlines())
    assert "--help-all" not in answer("list", "--help")
    assert answer("optimize", "-h") == short
    assert sum(line.startswith("  -") for line in short.splitlines()) < 50  # what people use, on two screens


@pytest.mark.e2e
def test_all_help_at_once(answer: Any) -> None:
    """Without a command, --help-all is the help of every command with its rare options."""
    every = answer("--help-all")
    assert every.startswith(answer("--help"))
    for name in ("optimize", "why-not", "schema"):
        assert answer(name, "--help-all") in every
    assert "--help-all" in answer("--help")


def test_python_m_planner() -> None:
    done = in_shell(["--version"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"planner {__version__}\n", "")


@pytest.mark.e2e
def test_a_piped_table_imports_no_rich() -> None:
    code = (
        "import sys; sys.argv = ['planner', 'list', 'models']\nfrom planner.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('rich' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
    )
    assert done.stderr == "False\n"


@pytest.mark.parametrize("page", ["cli.md", "extending.md", "json.md", "measurements.md", "transformers.md"])
def test_the_docs_are_up_to_date(page: str) -> None:
    """If this fails: python docs/generate.py."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = ROOT / "docs" / page
    assert path.read_text(encoding="utf-8") == module.PAGES[path]()


# --- Which misspelt names get a suggestion: the nearest name where it is near, none where it would be silly -------------------------------


KEYS = [
    "batch",
    "count",
    "data",
    "gpus",
    "kernel",
    "layers",
    "ring",
    "same",
    "seq",
    "sgd",
    "stride",
    "tp",
    "zero_stage",
]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("smae", "same"),  # exchanged
        ("dta", "data"),  # missing
        ("gqus", "gpus"),  # wrong
        ("rinng", "ring"),  # twice
        ("sgb", "sgd"),  # one of three
        ("batch_size", "batch"),  # a longer name of the same
        ("num_gpus", "gpus"),
        ("seq_len", "seq"),
        ("KERNAL", "kernel"),
        ("zero", "zero_stage"),
    ],
)
def test_a_near_name_is_suggested(written: str, meant: str) -> None:
    assert did_you_mean(written, KEYS) == f"; did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("Frobnicate", ["Concat", "Convolution", "Pooling"]),
        ("--html", ["--help", "--quiet", "--json"]),
        ("--foo", ["--fix", "--top"]),
        ("stripes", ["string"]),
    ],
)
def test_a_far_name_is_not(written: str, known: list[str]) -> None:
    assert did_you_mean(written, known) == ""
    assert "did you mean" not in str(UnknownName(kind="thing", name=written, known=known))


def test_options_are_compared_without_their_dashes() -> None:
    assert did_you_mean("--bacth", ["--batch", "--best"]) == "; did you mean '--batch'?"
    assert did_you_mean("--", ["--batch"]) == ""


@given(st.text(string.ascii_lowercase, min_size=4, max_size=12), st.data())
def test_one_letter_too_few_or_too_many_is_always_seen(name: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(name) - 1))
    for written in (name[:place] + name[place + 1 :], name[:place] + "_" + name[place:]):
        assert did_you_mean(written, [name, "7" * 20]) == f"; did you mean '{name}'?"
