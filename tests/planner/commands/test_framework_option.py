"""``--framework``: where it is taken, what it changes, and what it goes with."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner
from costmodel.framework import LayerAssumptions
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.serving.workload import ServingAssumptions
from planner.core.errors import PlannerError, UsageError
from planner.files.resources import bundled


def test_an_answer_names_what_runs_it(document: Any) -> None:
    plain = document("estimate alexnet --gpus 2 --family data")
    named = document("estimate alexnet --gpus 2 --family data --framework torch")
    assert (plain["setting"]["framework"], named["setting"]["framework"]) == ("", "pytorch")
    said = {row["name"]: row["value"] for row in plain["assumptions"]}
    assert said["framework"] == "none: a well-tuned implementation (--framework names one)"
    assert "framework" in named["setting"]["inputs"]
    assert named["step_time_s"] > plain["step_time_s"]  # devices differ


def test_none_is_a_well_tuned_implementation(document: Any, tmp_path: Path, fails: Any) -> None:
    path = tmp_path / "plan.yaml"
    planner.estimate("alexnet", gpus=2, family="data", framework="pytorch").plan.save(path)
    plain = planner.estimate("alexnet", gpus=2, family="data")
    for found in (
        planner.estimate("alexnet", gpus=2, family="data", framework="none"),
        planner.estimate(plan=path, framework="None"),
    ):
        assert (found.step_time_s, found.raw.setting.framework) == (plain.step_time_s, "")
    several = document("optimize gpt2-124m --gpus 1 --framework none,pytorch-fsdp --top 1")
    assert {row["framework"] for row in several["frameworks"]} == {"none", "pytorch-fsdp"}
    alone = document("optimize gpt2-124m --gpus 1 --framework none --top 1")
    assert [row["step_time_s"] for row in several["frameworks"] if row["framework"] == "none"] == [
        alone["plans"][0]["step_time_s"]
    ]
    said = fails("estimate", "llama3-8b", "--gpus", "1", "--framework", "none", "--calibration", "vtrain")
    assert "--framework none: calibration 'vtrain' was fitted to runs of megatron-deepspeed" in said


def test_a_plan_file_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    result = planner.estimate("alexnet", gpus=2, family="data", framework="pytorch")
    result.plan.save(path)
    assert "framework: pytorch\n" in path.read_text(encoding="utf-8")
    assert planner.estimate(plan=path).step_time_s == result.step_time_s


@pytest.mark.parametrize(("framework", "usual"), [("jax", "full"), ("megatron-bridge", "none")])
def test_no_blocks_to_recompute_take_the_place_of_what_it_does(document: Any, framework: str, usual: str) -> None:
    command = f"estimate llama3-8b --tp 8 --gpus 8 --batch 8 --framework {framework}"
    for given, said in (
        ("", f"recompute {usual} ({framework}'s default)"),
        (" --recompute-blocks 0", "recompute none"),
    ):
        plan = next(row["value"] for row in document(f"{command}{given}")["assumptions"] if row["name"] == "plan")
        assert plan.endswith(said)


@pytest.mark.parametrize(
    ("options", "hosted"),
    [("", (True, True)), (" --offload none", (False, False)), (" --offload optimizer", (True, False))],
)
def test_what_it_keeps_on_the_host_counts_unless_said(document: Any, options: str, hosted: tuple[bool, bool]) -> None:
    """ArcticTraining's recipes offload the optimizer and the inputs of blocks."""
    found = document(f"estimate llama3-8b --gpus 8 --batch 8 --framework arctic-training{options}")
    said = [f" offload {what}" in found["plans"][0]["summary"] for what in ("optimizer", "optimizer and activations")]
    assert tuple(said) == hosted
    plan = next(row["value"] for row in found["assumptions"] if row["name"] == "plan")
    assert ("offload optimizer,activations (arctic-training's default)" in plan) == (not options)


def test_what_exchanges_after_the_backward_pass_hides_nothing(document: Any) -> None:
    """Torch7 reduces gradients when all backward passes are done; other libraries layer by layer, behind the passes before."""
    asked = "estimate alexnet --family data --gpus 16 --cluster aws-p3 --batch 512 --precision fp32"
    after = document(f"{asked} --framework torch7")["plans"][0]
    behind = document(f"{asked} --framework torch7 --assume layer_overlap=1")["plans"][0]
    assert after["exposed_exchange_s"] == pytest.approx(after["exchange_s"], rel=1e-12)
    assert behind["exchange_s"] == after["exchange_s"]
    assert behind["exposed_exchange_s"] < after["exposed_exchange_s"]
    assert after["step_time_s"] - behind["step_time_s"] == pytest.approx(
        after["exposed_exchange_s"] - behind["exposed_exchange_s"]
    )
    assert document(f"{asked} --framework caffe")["plans"][0]["exposed_exchange_s"] < after["exposed_exchange_s"]


def test_a_file_of_ones_own(new_file: Any) -> None:
    path = new_file(
        "mine.yaml",
        'schema_version: 1\nname: mine\ntitle: Mine\nversion: "1"\ncosts:\n  device_spread: {value: 0.1, source: guess}\n',
    )
    mine = planner.estimate("alexnet", gpus=2, family="data", framework=path)
    usual = planner.estimate("alexnet", gpus=2, family="data", framework="tensorflow")
    assert mine.step_time_s > usual.step_time_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"framework": "pytorc"}, "did you mean 'pytorch'"),
        ({"framework": "nanotron", "calibration": "vtrain"}, "was fitted to runs of megatron-deepspeed"),
        ({"framework": "vllm"}, "serves networks and trains none"),
        ({"framework": "pytorch", "cost_model": "paleo"}, "only has a meaning with"),
    ],
)
def test_what_it_does_not_go_with(options: dict[str, str], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        planner.estimate("alexnet", gpus=2, family="data", **options)  # type: ignore[arg-type]


def test_a_calibration_says_what_it_was_fitted_to() -> None:
    of_calibration = planner.estimate("gpt3-1.3b", gpus=2, tp=2, calibration="vtrain", seq=256, batch=4)
    both = planner.estimate(
        "gpt3-1.3b", gpus=2, tp=2, calibration="vtrain", framework="megatron-deepspeed", seq=256, batch=4
    )
    without = planner.estimate("gpt3-1.3b", gpus=2, tp=2, framework="megatron-deepspeed", seq=256, batch=4)
    assert of_calibration.step_time_s == both.step_time_s > without.step_time_s


def test_assumptions_belong_to_one_space() -> None:
    for options in ({"family": "data"}, {"space": "layers"}, {}):
        with pytest.raises(
            UsageError, match=r"dp_overlap: is no assumption about .*split per layer; .* parameter_servers, "
        ):
            planner.estimate("alexnet", gpus=2, assume={"dp_overlap": 0.5}, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="assume real_input for plans with a split per layer"):
        planner.estimate("gpt3-1.3b", gpus=2, tp=2, assume={"real_input": 1})
    copied = planner.estimate("alexnet", gpus=2, family="data", assume={"real_input": 1})
    assert copied.step_time_s > planner.estimate("alexnet", gpus=2, family="data").step_time_s


@pytest.mark.parametrize(
    ("assumed", "network", "options"),
    [(LayerAssumptions(), "alexnet", {"family": "data"}), (MeshAssumptions(), "gpt3-1.3b", {"tp": 2})],
)
def test_an_assumption_that_changes_nothing_by_itself_is_refused(
    assumed: LayerAssumptions | MeshAssumptions, network: str, options: Any
) -> None:
    needs = {item.name: item.metadata["needs"] for item in dataclasses.fields(assumed) if item.metadata["needs"]}
    for name, other in needs.items():
        off = {other: 0.0} if getattr(assumed, other) else {}
        with pytest.raises(UsageError, match=f"^assume {name}: changes nothing while {other} is 0; give that, too$"):
            planner.estimate(network, gpus=2, assume={name: 0.5, **off}, **options)
        for fine in ({name: 0.5, other: 1.0}, {name: 0.0, **off}):
            planner.estimate(network, gpus=2, assume=fine, **options)


def test_the_error_of_an_unknown_assumption_names_pages_that_describe_all() -> None:
    with pytest.raises(UsageError) as caught:
        planner.estimate("alexnet", gpus=2, family="data", assume={"qqqq": 1})
    docs = Path(__file__).resolve().parents[3] / "docs"
    pages = [(docs / name).read_text(encoding="utf-8") for name in re.findall(r"[\w-]+\.md", str(caught.value))]
    for model in (LayerAssumptions, MeshAssumptions, ServingAssumptions):
        assert any(all(f"| `{name}` |" in page for name in model.__dataclass_fields__) for page in pages), model


def test_frameworks_are_listed_with_their_sources(document: Any) -> None:
    names = [row["name"] for row in document("list frameworks")["items"]]
    assert {"megatron-lm", "megatron-bridge", "torchtitan", "nanotron", "jax", "vllm"} <= set(names)
    rows = document("list frameworks -v")["items"]
    assert {row["name"] for row in rows} == set(names)
    assert all(row["source"] for row in rows)
    refusals = [row for row in rows if row["setting"] == "refuses"]
    assert any(row["value"].startswith("fewer micro-batches than pp - 1") for row in refusals)
    # They read without a plan.
    assert not [row for row in refusals if "{" in row["source"] + row["value"]]


@pytest.mark.e2e
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "mxnet", "caffe", "tensorflow-parameter-server"])
def test_data_parallelism_alone_is_searched_where_nothing_else_runs(framework: str) -> None:
    found = planner.optimize("alexnet", gpus=8, framework=framework)
    assert {plan.family for plan in found.plans} <= {"one-device", "data"}
    assert found.proven
    best = min(
        planner.estimate("alexnet", gpus=gpus, family="data" if gpus > 1 else None, framework=framework).step_time_s
        for gpus in range(1, 9)
    )
    assert found.best.step_time_s == pytest.approx(best, rel=1e-9)


def test_other_splits_are_searched_where_they_run() -> None:
    free = planner.optimize("alexnet", gpus=8, framework="pytorch-fsdp")
    assert free.best.family not in ("one-device", "data")


def test_a_plan_file_with_other_splits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    planner.estimate("alexnet", gpus=2, family="model").plan.save(path)
    assert planner.estimate(plan=path, framework="pytorch-fsdp").step_time_s > 0
    with pytest.raises(UsageError, match="splits the batch alone"):
        planner.estimate(plan=path, framework="pytorch")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("estimate alexnet --gpus 2 --framework pytorch --family model", "rule of pytorch: torch.nn.parallel"),
        (
            "optimize alexnet --gpus 2 --framework pytorch --family pipeline",
            "--family pipeline: PyTorch (DDP) copies whole layers",
        ),
        (
            "estimate alexnet --gpus 2 --framework deepspeed --family model",
            "DeepSpeed splits layers of transformers only",
        ),
        ("optimize gpt2 --space layers --gpus 2 --framework megatron-lm --family model", "splits every block alike"),
        ("estimate alexnet --gpus 2 --framework mxnet --fix fc6:out_channels", "--fix: fc6 is split by out_channels"),
        ("scale alexnet --framework pytorch --family hybrid --workers 2", "--family hybrid"),
        (
            "optimize alexnet --gpus 2 --framework megatron-lm",
            "a network that is no transformer: Megatron-LM trains GPT, BERT and T5 networks; name another",
        ),
        ("optimize gpt2 --cluster a100-v100 --framework megatron-lm", "all stages as many devices"),
        ("optimize llama3-8b --gpus 8 --mode inference --framework megatron-lm", "name a serving engine"),
        ("optimize alexnet --gpus 2 --mode inference --framework vllm", "serves transformers only"),
        (
            "optimize gpt2 --framework torchtitan --framework deepspeed",
            "is given twice; separate the names with commas",
        ),
    ],
)
def test_what_a_framework_cannot_run_is_refused(words: str, message: str, fails: Any) -> None:
    assert message in fails(*words.split())


@pytest.mark.parametrize(("framework", "precision"), [("torchtitan", "fp32"), ("deepspeed", "fp16"), (None, "fp16")])
def test_the_usual_precision_is_one_that_the_framework_has(framework: str | None, precision: str) -> None:
    found = planner.estimate("gpt2", gpus=1, cluster="v100", framework=framework, batch=8).to_dict()
    (said,) = (row for row in found["assumptions"] if row["name"] == "precision")
    assert said["value"] == precision
    assert said["source"].endswith("of the formats of torchtitan") == (framework == "torchtitan")


def test_a_list_shows_what_is_named(document: Any, answer: Any, fails: Any) -> None:
    names = [row["name"] for row in document("list frameworks nemo megatron-lm")["items"]]
    assert names == ["megatron-bridge", "megatron-lm"]
    shown = answer("list", "frameworks", "megatron-lm", "-v", "--width", "100")
    assert shown.startswith("megatron-lm\nwhat ")
    assert "..." not in shown
    assert "framework 'nanotrn' is not known; did you mean 'nanotron'?" in fails("list", "frameworks", "nanotrn")
    assert "is the name of several: say 'h100-sxm' or 'h100-nvl'" in fails("list", "devices", "h100")
    assert "did you mean 'ring'?" in fails("list", "collectives", "ringg")


B200_RATES = """\
format  peak          best           sustained      of peak
------  ------------  -------------  -------------  -------
fp32    80.0 TFLOP/s  61.8 TFLOP/s*  61.8 TFLOP/s*  77.2 %
tf32    1.12 PFLOP/s  868 TFLOP/s*   720 TFLOP/s*   64.0 %
fp16    2.25 PFLOP/s  1.74 PFLOP/s*  1.38 PFLOP/s   61.4 %
bf16    2.25 PFLOP/s  1.74 PFLOP/s   1.44 PFLOP/s   64.0 %
fp8     4.50 PFLOP/s  3.35 PFLOP/s   2.79 PFLOP/s   62.0 %
mxfp8   4.50 PFLOP/s  3.35 PFLOP/s*  2.65 PFLOP/s   58.9 %
int8    4.50 PFLOP/s  3.35 PFLOP/s*  2.79 PFLOP/s*  62.0 %
nvfp4   9.00 PFLOP/s  6.75 PFLOP/s   5.63 PFLOP/s   62.5 %
mxfp4   9.00 PFLOP/s  6.75 PFLOP/s*  5.22 PFLOP/s   58.0 %
"""


def test_list_in_full_shows_the_links_of_clusters_and_how_data_get_there(answer: Any) -> None:
    shown = answer("list", "clusters", "aws-p3dn", "-v", "--width", "160")
    network = next(line for line in shown.splitlines() if line.startswith("network"))
    assert "through the host, TCP" in network
    assert " 50.4 %" in network  # 0.8 x 15.75 / 2 of 12.5 GB/s
    assert "NVIDIA DGX-1" not in shown
    assert "as for dgx1-v100" in shown


def test_devices_are_listed_with_their_rates_by_format(document: Any, answer: Any, tmp_path: Path) -> None:
    """What is assumed is what the file does not state; devices without a measured rate say so."""
    shown = answer("list", "devices", "b200", "k20", "-v", "--width", "150")
    assert shown.startswith("b200\nNVIDIA B200 in an HGX or DGX B200, 1000 W (Blackwell, 2024)\n\n" + B200_RATES)
    assert "Sustained: the maximum sustainable matmul FLOPS (MSMF) of" in shown
    assert shown.rstrip().splitlines()[-2].startswith("* not measured. Best: the same share")
    assert "fit to published steps" in answer(
        "list", "devices", "tpu-v5e", "-v", "--width", "150"
    )  # a fit to whole steps
    unknown = answer("list", "devices", "trainium2", "-v", "--width", "150")
    assert unknown.count("assumed: no measurement on record") == 2
    files = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in bundled("devices").values()}
    rows = document("list devices -v")["items"]
    assert {row["name"] for row in rows} == set(files)
    for row in rows:
        name, number_format = row["name"], row["format"]
        for kind in ("best", "sustained"):
            assert row[f"{kind}_is_assumed"] == (number_format not in files[name].get(kind, {})), (name, number_format)
            fit = kind == "best" and "matmul_fraction" in files[name].get("efficiency", {})
            assert row[f"{kind}_source"] == files[name]["source"].get(
                kind, files[name]["source"]["efficiency"] if fit else None
            )
        assert row["sustained_share"] == row["sustained_flop_per_s"] / row["peak_flop_per_s"]
    mine = tmp_path / "mine.yaml"
    mine.write_bytes(bundled("devices")["b200"].read_bytes())
    assert [row["name"] for row in document(f"list devices {mine} -v")["items"]] == 9 * ["mine"]


def test_a_list_shows_files_of_ones_own(document: Any, answer: Any, fails: Any, tmp_path: Path) -> None:
    for kind, name in (
        ("frameworks", "nanotron"), ("devices", "h100-sxm"), ("clusters", "dgx-h100"), ("models", "alexnet"), ("calibrations", "default"),
    ):  # fmt: skip
        mine = tmp_path / f"my-{name}.yaml"
        mine.write_bytes(bundled(kind)[name].read_bytes())
        own, theirs = document(f"list {kind} {mine} {name}")["items"]
        assert own == {**theirs, "name": f"my-{name}"}
    assert answer("list", "frameworks", str(tmp_path / "my-nanotron.yaml"), "-v").startswith("my-nanotron\nwhat ")
    assert "my-dgx-h100.yaml:" in fails("list", "frameworks", str(tmp_path / "my-dgx-h100.yaml"))


def test_a_serving_engine_serves() -> None:
    served = planner.optimize("llama3-8b", gpus=2, mode="inference", framework="vllm")
    assert served.best.workers <= 2
