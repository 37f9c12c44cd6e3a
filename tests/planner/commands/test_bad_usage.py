"""Whatever a user gets wrong ends with exit code 2 (1 when nothing fits), says everything at once, and shows no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli import run

ROOT = Path(__file__).resolve().parents[3]

MODEL = """\
schema_version: 1
name: tiny
global_batch: 32
layers:
  - {name: data, type: input, shape: [3, 32, 32]}
  - {name: conv, type: convolution, out_channels: 8, kernel: 3, padding: same}
  - {name: fc, type: linear, out_features: 10}
"""


@pytest.fixture
def fails(fails: Any) -> Any:
    """Run a command that must fail; the lines of its message."""

    def ask(*arguments: str, code: int = 2) -> list[str]:
        lines: list[str] = fails(*arguments, code=code).splitlines()
        assert lines
        return lines

    return ask


@pytest.fixture
def model(new_file: Any) -> Any:
    """Write a model file, with one piece replaced."""

    def write(old: str = "", new: str = "") -> Path:
        assert old in MODEL
        return new_file("tiny.yaml", MODEL.replace(old, new, 1) if old else MODEL)

    return write


# --- options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimize", "alexnet"], "error: --gpus: is missing"),
        (["optimize", "alexnet", "--workers", "8"], "error: no such option: --workers; here it is '--gpus' (see"),
        (["optimize", "gpt2", "--gpus", "8", "--seq_length", "8"], "no such option: --seq_length; here it is '--seq' (see"),
        (["place", "graph.json", "--gpus", "8"], "no such option: --gpus; here it is '--devices' (see"),
        (["export", "plan.yaml", "--to", "NeMo", "-o", "run"], "--to NeMo: its plans are written for megatron-bridge: --to"),
        (["optimize", "alexnet", "--gpus", "0"], "error: --gpus 0: must be at least 1"),
        (["optimize", "alexnet", "--gpus", "-4"], "error: --gpus -4: must be at least 1"),
        (["optimize", "alexnet", "--gpus", "1000001"], "error: --gpus 1000001: must be at most 1,000,000"),
        (["optimize", "alexnet", "--gpus", "9" * 40], "must be a whole number"),
        (["optimize", "alexnet", "--gpus", "four"], "error: --gpus four: must be a whole number"),
        (["optimize", "alexnet", "--gpus", "1_000"], "write 1000"),
        (["optimize", "alexnet", "--gpus", "4", "--batch", "0"], "error: --batch 0: must be at least 1"),
        (["optimize", "alexnet", "--gpus", "4", "--batch", "1.5"], "must be a whole number"),
        (["optimize", "alexnet", "--gpus", "4", "--cost-model", "palleo"], "did you mean 'paleo'?"),
        (["optimize", "alexnet", "--gpus", "4", "--mode", "train"], "did you mean 'training'?"),
        (["optimize", "alexnet", "--gpus", "4", "--precision", "bf15"], "did you mean 'bf16'?"),
        (["optimize", "alexnet", "--gpus", "4", "--optimizer", "adm"], "did you mean 'adam'?"),
        (["optimize", "alexnet", "--gpus", "4", "--family", "hybird"], "did you mean 'hybrid'?"),
        (["optimize", "alexnet", "--gpus", "4", "--solver", "cplex"], "must be auto, program or elimination"),
        (["optimize", "alexnet", "--gpus", "4", "--format", "jsn"], "did you mean 'json'?"),
        (["optimize", "alexnet", "--gpus", "4", "--json", "--format", "csv"], "--json and --format csv: choose one"),
        (["optimize", "alexnet", "--gpus", "4", "-q", "-v"], "--quiet and --verbose: choose one"),
        (["optimize", "alexnet", "--gpus", "4", "--time-limit", "3 parsecs"], "must be a time such as 30s"),
        (["optimize", "alexnet", "--gpus", "4", "--time-limit", "0"], "must be above 0"),
        (["optimize", "alexnet", "--gpus", "4", "--time-limit", "nan"], "must be a time"),
        (["optimize", "alexnet", "--gpus", "4", "--gap", "150%"], "below 1 (100 %)"),
        (["optimize", "alexnet", "--gpus", "4", "--gap", "nan"], "must be a finite number"),
        (["optimize", "alexnet", "--gpus", "4", "--gap", "inf"], "must be a finite number"),
        (["optimize", "alexnet", "--gpus", "4", "--top", "0"], "must be at least 1"),
        (["optimize", "alexnet", "--gpus", "4", "--width", "5"], "must be at least 40"),
        (["optimize", "alexnet", "--gpus", "4", "--ppp-comp", "0.5"], "only has a meaning with --cost-model paleo"),
        (["optimize", "alexnet", "--gpus", "4", "--paleo-pipeline"], "only has a meaning with --cost-model paleo"),
        (["optimize", "alexnet", "--gpus", "4", "--cost-model", "paleo", "--ppp-comp", "0"], "above 0 and at most 1"),
        (["optimize", "alexnet", "--gpus", "4", "--cost-model", "paleo", "--ppp-comm", "1.1"], "above 0 and at most 1"),
        (["optimize", "alexnet", "--gpus", "4", "--fix", "conv"], "must be LAYERS:SPLIT"),
        (["optimize", "alexnet", "--gpus", "4", "--fix", "conv*:bach"], "did you mean 'batch'?"),
        (["optimize", "alexnet", "--gpus", "4", "--fix", "conv*:batch,height"], "needs degrees"),
        (["optimize", "alexnet", "--gpus", "4", "--fix", "fc6:batch=0"], "must be at least 1"),
        (["optimize", "alexnet", "--gpus", "4", "--fix", "fc6:batch=1M"], "needs 1000000 workers"),
        (["optimize", "alexnet", "--gpus", "4", "--fix", "conf*:batch"], "matches no layer"),
        (["optimize", "alexnet", "--gpus", "4", "--memory-limit", "40"], "--memory-limit"),
        (["optimize", "alexnet", "--gpus", "4", "--memory-limit", "40 GB/s"], "--memory-limit"),
        (["optimize", "alexnet", "--gpus", "4", "--collective", "rng"], "did you mean 'ring'?"),
        (["estimate", "--model", "alexnet"], "MODEL comes first, as in: planner estimate MODEL"),
        (["optimize", "alexnet", "--gpus", "4", "--cluster", "dgx-h10"], "did you mean 'dgx-h100'?"),
        (["optimize", "alexnet", "--gpus", "4", "--device", "h100-smx"], "did you mean 'h100-sxm'?"),
        (["optimize", "alexnet", "--gpus", "4", "--cluster", "h1000"], "did you mean 'h100'?"),
        (["optimize", "alexnet", "--gpus", "4", "--optimizer", "adamw8"], "did you mean 'adam-8bit'?"),
        (
            ["optimize", "gpt2", "--gpus", "4", "--framework", "deepspeed", "--precision", "fp8"],
            "precision fp8 (fp8-delayed): DeepSpeed has no such format",
        ),
        (["optimize", "alexnett", "--gpus", "4"], "did you mean 'alexnet'?"),
        (["optimize", "", "--gpus", "4"], "MODEL: is empty"),
        (["optimize", "alexnet", "--gpus", "9", "--cluster", "k20-pcie"], "8"),
        (["optimize", "alexnet", "--gpus", "4", "--micro-batches", "500"], "--micro-batches"),
        (["estimate"], "MODEL: is missing"),
        (["estimate", "--plan", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["estimate", "alexnet", "--gpus", "8"], "--family"),
        (["estimate", "--plan", "nowhere.yaml", "--gpus", "8"], "--gpus: is decided by --plan"),
        (["estimate", "--plan", "nowhere.yaml", "--tp", "8"], "nowhere.yaml: no such file"),
        (["scale", "alexnet", "--workers", "4..1"], "from a smaller to a larger"),
        (["scale", "alexnet", "--workers", "0,2"], "must be at least 1"),
        (["scale", "alexnet", "--workers", "1,,2"], "must be a whole number"),
        (["scale", "alexnet", "--weak", "--strong"], "choose one"),
        (["scale", "alexnet", "--epochs", "10"], "give both"),
        (["scale", "alexnet", "--epochs", "0", "--samples", "5"], "must be above 0"),
        (["list", "modells"], "did you mean 'models'?"),
        (["schema", "plann"], "did you mean 'plan'?"),
        (["schema", "plan", "--format", "csv"], "a schema is json or yaml"),
        (["import", "nowhere.json"], "nowhere.json: no such file"),
        (["import", "configs/models/mlp.yaml"], "its content is none of these"),
    ],
)  # fmt: skip
def test_one_clear_line(fails: Any, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lines = fails(*arguments)
    assert len(lines) == 1, lines
    assert message in lines[0], lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["optimize", "alexnet", "--gpuss", "4"],
            "no such option: --gpuss; did you mean '--gpus'? (see planner optimize --help)",
        ),
        (["optimise", "alexnet"], "no such command: optimise; did you mean 'optimize'?"),
        (["scale"], "missing argument 'MODEL'"),
        (["optimize"], "MODEL: is missing; name a network ('planner list models') or a plan"),
        (["optimize", "alexnet", "--gpus"], "requires an argument"),
        (["optimize", "a", "b", "--gpus", "4"], "unexpected extra argument"),
        (["optimize", "a", "--json=yes"], "--json"),
        (["--versoin"], "did you mean '--version'?"),
    ],
)
def test_the_parser_speaks_in_one_line(fails: Any, arguments: list[str], message: str) -> None:
    lines = fails(*arguments)
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]


def test_everything_wrong_is_said_at_once(fails: Any, tmp_path: Path) -> None:
    lines = fails(
        "optimize", "alexnet", "--gpus", "0", "--batch", "x", "--gap", "2", "--fix", "a", "--format", "x", "--top", "-1",
        "-o", "/dev/null/x", "--export", str(tmp_path),
    )  # fmt: skip
    assert len(lines) == 8
    for flag in ("--gpus", "--batch", "--gap", "--fix", "--format", "--top", "--output", "--export"):
        assert any(line.startswith(f"error: {flag} ") for line in lines)


# --- files of the user


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema_version: 1", "schema_version: [", ":3:13: is not YAML"),
        ("name: tiny", "name: tiny\nname: twice", "duplicate key 'name'"),
        ("type: convolution", "type: convolutoin", "did you mean 'convolution'?"),
        ("kernel: 3", "kernal: 3", "did you mean 'kernel'?"),
        ("kernel: 3", "kernel: 0", "must be at least 1, got 0"),
        ("kernel: 3", "kernel: 3, stride: 0", "must be at least 1, got 0"),
        ("kernel: 3, padding: same", "kernel: 40, padding: valid", "conv"),
        ("out_features: 10}", "out_features: 10, inputs: conf}", "did you mean 'conv'?"),
        ("global_batch: 32", "global_batch: 0", "must be at least 1, got 0"),
        ("out_features: 10", "out_features: .nan", "not a finite number"),
        ("out_features: 10", "out_features: .inf", "not a finite number"),
    ],
)
def test_bad_model_files_point_at_the_place(fails: Any, model: Any, old: str, new: str, message: str) -> None:
    path = model(old, new)
    lines = fails("optimize", str(path), "--gpus", "4")
    assert lines[0].startswith(f"{path}:")
    assert any(message in line for line in lines), lines


def test_all_problems_of_a_file_at_once(fails: Any, model: Any) -> None:
    path = model()
    path.write_text(
        MODEL.replace("kernel: 3", "kernal: 3")
        .replace("linear", "liner")
        .replace("global_batch: 32", "global_batch: -1"),
        encoding="utf-8",
    )
    assert len(fails("optimize", str(path), "--gpus", "4")) >= 3


def test_files_that_cannot_be_read(fails: Any, tmp_path: Path) -> None:
    assert "no such model file" in fails("optimize", str(tmp_path / "none.yaml"), "--gpus", "4")[0]
    assert "is a folder" in fails("optimize", str(tmp_path), "--gpus", "4")[0]
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    fails("optimize", str(tmp_path / "binary.yaml"), "--gpus", "4")
    (tmp_path / "empty.yaml").write_bytes(b"")
    assert "is empty" in fails("optimize", str(tmp_path / "empty.yaml"), "--gpus", "4")[0]


@pytest.mark.parametrize(
    "content", ["[" * 10_000_000, "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(9))]
)
def test_bombs_are_refused(fails: Any, new_file: Any, content: str) -> None:
    path = new_file("bomb.yaml", content)
    assert fails("optimize", str(path), "--gpus", "4")[0].startswith(str(path))


def test_a_bad_cluster_file(fails: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = (ROOT / "configs" / "clusters" / "k20-pcie.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("bandwidth: 8 GB/s", "bandwidth: 8"), encoding="utf-8")
    lines = fails("optimize", "alexnet", "--gpus", "4", "--cluster", str(path))
    assert lines[0].startswith(f"{path}:6:")
    assert "GB/s" in lines[0]


def test_an_edited_plan(fails: Any, tmp_path: Path, answer: Any) -> None:
    path = tmp_path / "plan.yaml"
    answer("optimize", "alexnet", "--gpus", "4", "--export", path)
    text = path.read_text(encoding="utf-8")
    workers = int(text.split("\nworkers: ")[1].split("\n")[0])
    path.write_text(text.replace(f"\nworkers: {workers}", f"\nworkers: {workers + 1}"), encoding="utf-8")
    first, *lines = fails("estimate", "--plan", str(path))
    assert first.endswith(f"workers: is {workers + 1}, more than the 4 gpus")
    assert len(lines) > 1
    assert all(line.startswith(f"{path}:") and f"not to the {workers + 1} workers" in line for line in lines)
    path.write_text(text.replace("model: alexnet", "model: nin"), encoding="utf-8")
    assert any("network 'nin' has no layer" in line for line in fails("estimate", "--plan", str(path)))


# --- nothing fits


def test_a_family_that_takes_more_than_one_gpu_says_so(fails: Any) -> None:
    line = fails("estimate", "resnet50", "--gpus", "1", "--family", "data", code=1)[0]
    assert "exists on 1 worker " in line
    assert line.endswith("--family data takes 2 GPUs or more; one GPU has --family one-device")


def test_nothing_fits_names_the_nearest_miss(fails: Any) -> None:
    lines = fails("optimize", "vgg16", "--gpus", "1", "--memory-limit", "600 MiB", code=1)
    assert "nothing fits" in lines[0]
    assert "needs" in lines[0]


# --- files of ours


def test_an_output_that_cannot_be_written_is_found_first(
    fails: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the search started")

    monkeypatch.setattr("planner.spaces.ask.optimize", never)
    for flag in ("-o", "--export"):
        for target, reason in (("/dev/null/x.yaml", "Not a directory"), (tmp_path, "is a folder")):
            [line] = fails("optimize", "alexnet", "--gpus", "4", flag, str(target))
            assert reason in line
    same = str(tmp_path / "x.yaml")
    assert "both name" in fails("optimize", "alexnet", "--gpus", "4", "-o", same, "--export", same)[0]
    assert list(tmp_path.iterdir()) == []


# --- nothing a user types is an internal error


FLAGS = [
    "--gpus",
    "--batch",
    "--gap",
    "--top",
    "--time-limit",
    "--fix",
    "--width",
    "--seed",
    "--micro-batches",
    "--ppp-comp",
]


@given(
    st.lists(
        st.tuples(st.sampled_from(FLAGS), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)),
        min_size=1,
        max_size=4,
    )
)
def test_any_words_end_in_a_message(pairs: list[tuple[str, str]]) -> None:
    values = [f"{flag}={text}" for flag, text in pairs]
    assert run(["optimize", "no-such-model", *values]) == 2


def test_python_prints_no_traceback_for_bad_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planner", "optimize", "alexnet", "--gpus", "0"],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --gpus 0: must be at least 1\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["estimate", "alexnet", "--gpus", "16", "--batch", "7", "--family", "data"],
            "a batch of 7 cannot be split over 16",
        ),
        (
            ["estimate", "alexnet", "--gpus", "4", "--fix", "*:batch=8"],
            "--fix '*:batch=8' needs 8 workers, and --gpus is 4",
        ),
        (
            ["estimate", "alexnet", "--gpus", "8", "--fix", "fc6:batch=4"],
            "the degrees of fc6 multiply to 4, not to the 8",
        ),
        (
            ["optimize", "alexnet", "--gpus", "8", "--batch", "4", "--fix", "fc6:batch=8"],
            "fc6 is split 8 ways by the batch",
        ),
        (
            ["optimize", "alexnet", "--gpus", "4", "--fix", "conv*:batch", "--fix", "conv*:height"],
            "'conv*' has no effect",
        ),
        (["scale", "alexnet", "--fix", "fc*:out_channels"], "family data leaves nothing to fix"),
        (["optimize", "alexnet", "--gpus", "4", "--device", "h100"], "the name of several: say 'h100-sxm'"),
    ],
)
def test_what_no_plan_can_be_is_named(fails: Any, arguments: list[str], message: str) -> None:
    (line,) = fails(*arguments)
    assert message in line


def test_a_network_of_inputs_only(fails: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    layers = "layers:\n  - {name: data, type: input, shape: [10]}\n"
    path.write_text(f"schema_version: 1\nname: net\nsource: test\nglobal_batch: 4\n{layers}", encoding="utf-8")
    (line,) = fails("optimize", str(path), "--gpus", "4")
    assert "at least one layer that is no input" in line


@pytest.mark.parametrize("command", ["optimize", "estimate", "explain", "scale", "place"])
def test_a_network_with_nothing_to_train_is_not_trained(fails: Any, tmp_path: Path, command: str) -> None:
    path = tmp_path / "frozen.yaml"
    text = MODEL.replace("padding: same}", "padding: same, frozen: true}").replace(
        "features: 10}", "features: 10, frozen: true}"
    )
    path.write_text(text, encoding="utf-8")
    options = ["--cluster", "dgx-h100", *(["--devices", "2"] if command == "place" else ["--gpus", "2"])]
    message = "\n".join(fails(command, str(path), *options))
    assert "nothing to train: all of its 82,154 weights are frozen" in message
    assert "--mode inference" in message


@pytest.mark.parametrize("command", ["estimate", "optimize", "explain", "scale"])
def test_a_network_without_work_has_no_step(fails: Any, new_file: Any, command: str) -> None:
    path = new_file(
        "views.yaml",
        "schema_version: 1\nname: views\nglobal_batch: 8\nlayers:\n"
        "  - {name: x, type: input, shape: [3, 8, 8]}\n  - {name: f, type: flatten}\n",
    )
    size = ("--workers", "1,2") if command == "scale" else ("--gpus", "2")
    message = "\n".join(fails(command, str(path), "--mode", "inference", *size))
    assert "network 'views' has nothing to compute" in message
