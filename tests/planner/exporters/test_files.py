"""The files as their readers see them: bash runs them, YAML, TOML, JSON and Python parse them, trainers load them."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from costmodel.mesh.plan import MeshPlan
from costmodel.serving.plan import ServingPlan
from costmodel.serving.workload import Arrivals
from planner.core.errors import UsageError
from planner.exporters import exporter_of, targets_that_take
from planner.exporters.check import parsers
from planner.exporters.export import make_export
from planner.exporters.megatron import layout_text
from planner.exporters.pools import places, pools_of
from tests.planner.exporters.jobs import (
    CONTEXT,
    DATA,
    EXPERTS,
    FSDP,
    MIXTRAL,
    ODD_STAGES,
    PIPELINE,
    PLAIN_PIPELINE,
    SERVE_APART,
    SERVE_APART_NODES,
    job_of,
    origin,
    serving_job,
)
from tests.planner.exporters.test_golden import CASES, JOBS

NASTY = "a b'c\"d$(touch pwned)`e`;é"


def _write(folder: Path, files: Any) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("target", "version", "name"), CASES)
def test_files_parse(target: str, version: str, name: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "run", make_export(JOBS[target][name], target, version).files)
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        if path.suffix in (".sh", ".slurm"):
            subprocess.run(["bash", "-n", str(path)], check=True)
        elif path.suffix == ".json":
            assert isinstance(json.loads(text), dict)
        elif path.suffix == ".yaml":
            assert all(isinstance(document, dict) for document in yaml.safe_load_all(text))
        elif path.suffix == ".toml":
            assert set(tomllib.loads(text)) == {"parallelism", "training", "activation_checkpoint"}
        elif path.suffix == ".py":
            ast.parse(text)
        else:
            assert path.suffix == ".md" or path.name == "ranks.csv"


def _run(script: Path, program: str, *arguments: str, **environment: str) -> tuple[list[str], dict[str, str]]:
    """Run a script with a stand-in for the launcher; its arguments and environment."""
    tools = script.parent.parent / "tools"
    tools.mkdir(exist_ok=True)
    out = script.parent.parent / "said"
    stand_in = tools / program
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump([sys.argv[1:], dict(os.environ)], open({str(out)!r}, 'w'))\n",
        encoding="utf-8",
    )
    stand_in.chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "MASTER", "NODE"))}
    clean |= {"PATH": f"{tools}:{os.environ['PATH']}", **environment}
    done = subprocess.run(
        ["bash", str(script), *arguments],
        env=clean,
        capture_output=True,
        text=True,
        cwd=script.parent.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, seen = json.loads(out.read_text(encoding="utf-8"))
    return said, seen


def test_the_launcher_gets_every_argument_in_any_folder(tmp_path: Path) -> None:
    folder = _write(tmp_path / NASTY / "run", make_export(ODD_STAGES, "megatron").files)
    said, seen = _run(folder / "train.sh", "torchrun", "--data-path", NASTY, NODE_RANK="3", MASTER_ADDR="node0")
    assert said[:10] == [
        "--nnodes", "8", "--nproc-per-node", "8", "--node-rank", "3", "--master-addr", "node0", "--master-port", "29500",
    ]  # fmt: skip
    assert said[10] == "pretrain_gpt.py"
    assert said[-2:] == ["--data-path", NASTY]
    assert seen["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert said[said.index("--pipeline-model-parallel-layout") + 1] == "Et*19|t*21|t*21|t*19L"
    assert not (tmp_path / "pwned").exists()


def test_configurations_are_found_beside_the_script(tmp_path: Path) -> None:
    for target, launcher, file in (
        ("deepspeed", "torchrun", "ds_config.json"),
        ("accelerate", "accelerate", "accelerate.yaml"),
    ):
        folder = _write(tmp_path / target / NASTY, make_export(DATA, target).files)
        said, _ = _run(folder / "train.sh", launcher, SCRIPT="my train.py", NODE_RANK="1", MASTER_ADDR="n0")
        assert str(folder / file) in said
        assert "my train.py" in said


def test_a_missing_node_number_is_said(tmp_path: Path) -> None:
    folder = _write(tmp_path / "run", make_export(PIPELINE, "megatron").files)
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", str(folder / "train.sh")], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode != 0
    assert "set NODE_RANK" in done.stderr


def test_names_cannot_leave_a_comment(tmp_path: Path) -> None:
    for target in targets_that_take("mesh"):
        job = job_of(MeshPlan(dp_replicate=4), origin=origin(f"x\ntouch {tmp_path}/pwned\n\u2028# "))
        for name, text in make_export(job, target).files.items():
            folder = tmp_path / target
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
            assert "\ntouch" not in text
    said, _ = _run(tmp_path / "megatron" / "train.sh", "torchrun")
    assert "pretrain_gpt.py" in said
    assert not (tmp_path / "pwned").exists()


def test_slurm_starts_the_script_on_every_node(tmp_path: Path) -> None:
    folder = _write(tmp_path / "run", make_export(PIPELINE, "megatron").files)
    text = (folder / "train.slurm").read_text(encoding="utf-8")
    assert "#SBATCH --nodes=16\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    # Directives count only above the first command.
    assert all(line.startswith("#") for line in text.split("set -euo")[0].splitlines())
    tools = tmp_path / "tools"
    tools.mkdir()
    # More names than a pipe holds: whoever reads the first only closes it on the others.
    (tools / "scontrol").write_text("#!/bin/sh\necho first\nseq 100000\n", encoding="utf-8")
    (tools / "scontrol").chmod(0o755)
    said, seen = _run(folder / "train.slurm", "srun", "--lr", "1", SLURM_SUBMIT_DIR=str(folder), SLURM_JOB_NODELIST="x")
    assert said == ["--kill-on-bad-exit=1", "bash", str(folder / "train.sh"), "--lr", "1"]
    assert seen["MASTER_ADDR"] == "first"


def _expand(layout: str) -> list[str]:
    """Megatron's reading of a layout, done by hand: repeats of groups, then of letters."""
    while "(" in layout:
        head, rest = layout.split("(", 1)
        group, rest = rest.split(")*", 1)
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        layout = head + group * int(digits) + rest[len(digits) :]
    while "*" in layout:
        head, rest = layout.split("*", 1)
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        layout = head[:-1] + head[-1] * int(digits) + rest[len(digits) :]
    return layout.split("|")


@pytest.mark.parametrize("blocks", [(1,), (2, 1), (7, *[8] * 14, 7), (0, 3, 3, 3, 0), (19, 21, 21, 19), (4, 4, 4, 4)])
def test_layouts_mean_the_blocks(blocks: tuple[int, ...]) -> None:
    stages = _expand(layout_text(blocks))
    assert [stage.count("t") for stage in stages] == list(blocks)
    assert stages[0][0] == "E"
    assert stages[-1][-1] == "L"


def test_torchtitan_recipe_changes_the_configuration(tmp_path: Path, new_file: Any) -> None:
    # No activation checkpointing: its policy is a class of torchtitan's.
    text = make_export(PIPELINE, "torchtitan").files["planned.py"]
    new_file(
        "base_recipe.py",
        "from types import SimpleNamespace as N\ndef tiny():\n"
        "    return N(parallelism=N(tensor_parallel_degree=1), training=N(steps=7), activation_checkpoint=None)\n",
    )
    (tmp_path / "planned.py").write_text(text, encoding="utf-8")
    code = (
        "import planned\nconfig = planned.planned()\np = config.parallelism\n"
        "print(p.tensor_parallel_degree, p.num_pp_microbatches, config.training.steps, config.training.num_tokens_per_train_step)\n"
        "print(len(p.module_fqns_per_model_part), sum(len(part) for part in p.module_fqns_per_model_part))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "BASE_MODULE": "base_recipe", "BASE_CONFIG": "tiny"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    # 4 data-parallel ranks x 32 micro-batches of 8192; 20 chunks with 80 blocks, embedding, norm and head.
    assert done.stdout.split() == ["8", "32", "7", str(4 * 32 * 8192), "20", "83"]


@pytest.mark.parametrize(("version", "head"), [("2026-08", "lm_head"), ("v0.2.2", "output")])
def test_torchtitan_pipelines_end_with_the_head_of_the_bundled_models(version: str, head: str) -> None:
    # torchtitan/models/common: tok_embeddings, layers, norm, lm_head (b5bcd76c6); tok_embeddings, layers, norm, output (v0.2.2).
    files = make_export(PIPELINE, "torchtitan", version).files
    if version == "v0.2.2":
        parts = tomllib.loads(files["planned.toml"])["parallelism"]["module_fqns_per_model_part"]
    else:
        text = files["planned.py"]
        parts = ast.literal_eval(
            text[text.index("module_fqns_per_model_part = ") :].partition("= ")[2].partition("]\n    c")[0] + "]"
        )
    assert parts[0][0] == "tok_embeddings"
    assert parts[-1][-2:] == ["norm", head]


def test_torchtitan_captures_no_graphs_where_it_refuses_them() -> None:
    setting = "config.training.disable_cuda_graphs = True"
    for job, is_refused in ((PIPELINE, True), (EXPERTS, True), (FSDP, False)):
        assert (setting in make_export(job, "torchtitan").files["planned.py"]) == is_refused
        assert (
            "cuda_graphs" not in make_export(job, "torchtitan", "v0.2.2").files["planned.toml"]
        )  # unknown to that version


def test_torchtitan_batches() -> None:
    piped = tomllib.loads(make_export(PIPELINE, "torchtitan", "v0.2.2").files["planned.toml"])
    assert piped["training"]["local_batch_size"] == 32  # all micro-batches of a pipeline
    assert piped["parallelism"]["pipeline_parallel_microbatch_size"] == 1
    flat = tomllib.loads(make_export(FSDP, "torchtitan", "v0.2.2").files["planned.toml"])
    assert (flat["training"]["local_batch_size"], flat["training"]["global_batch_size"]) == (2, 2 * 16 * 4)
    assert flat["parallelism"]["fsdp_reshard_after_forward"] == "always"


def test_megatron_batch_arithmetic() -> None:
    words = shlex.split(make_export(EXPERTS, "megatron").files["train.sh"], comments=True)
    assert words[words.index("--global-batch-size") + 1] == str(32 * 4)
    assert words[words.index("--expert-model-parallel-size") + 1] == "8"
    assert words[words.index("--num-experts") + 1] == str(MIXTRAL.experts)


@pytest.mark.parametrize(
    ("plan", "experts", "words"),
    [
        (ServingPlan(tp=8, dp=4), False, ["--data-parallel-size 4", "--headless", "rank=$((node % 4))"]),
        (ServingPlan(tp=8, pp=2), False, ["--nnodes 2", '--node-rank "$rank"']),
        (ServingPlan(tp=8, pp=2, dp=2), False, ["SERVER_ADDR", "--nnodes 2"]),
        (ServingPlan(tp=2, etp=2, dp=4), True, ["i < 4", "first=$((i * 2))"]),
        (ServingPlan(tp=1, ep=8, dp=16), True, ["i < 1", "--data-parallel-size 8", "--enable-expert-parallel"]),
        (ServingPlan(tp=8, ep=16, dp=4), True, ["SERVER_ADDR", "--data-parallel-size 2", "rank=$((node % 2))"]),
    ],
)
def test_servers(plan: ServingPlan, experts: bool, words: list[str], new_file: Any) -> None:
    export = make_export(serving_job(plan, has_experts=experts), "vllm")
    script = export.files["serve.sh"]
    for word in words:
        assert word in script
    assert not {"ep", "etp"} & set(export.account.cannot)
    subprocess.run(["bash", "-n", str(new_file("serve.sh", script))], check=True)


@pytest.mark.parametrize(
    ("plan", "experts", "words"),
    [
        (ServingPlan(tp=2, dp=4), False, ["--tp-size 2", " --dp-size 4 "]),
        (ServingPlan(tp=8, dp=2), False, ["one server each", "--host 0.0.0.0"]),
        (ServingPlan(tp=2, pp=2, dp=2), False, ["i < 2", "first=$((i * 4))", "SGLANG_PP_LAYER_PARTITION=40,40"]),
        (ServingPlan(tp=8, pp=2, dp=2), False, ["SERVER_ADDR", "--nnodes 2", '--dist-init-addr "$head:']),
        (ServingPlan(tp=2, etp=2, dp=4), True, ["--dp-size 4", "--ep-size 1"]),
        (
            ServingPlan(tp=2, ep=8, dp=4, max_batch=3),
            True,
            ["--tp-size 8", "--attn-dp-size 4", "--ep-size 8", "--max-running-requests 12"],
        ),
        (ServingPlan(tp=8, ep=16, dp=2), True, ["--tp-size 16", "--attn-dp-size 2", "--nnodes 2"]),
    ],
)
def test_servers_of_sglang(plan: ServingPlan, experts: bool, words: list[str], new_file: Any) -> None:
    export = make_export(serving_job(plan, has_experts=experts), "sglang")
    for word in words:
        assert word in export.files["serve.sh"]
    assert not export.account.cannot
    for name in ("serve.sh", "bench.sh"):
        subprocess.run(["bash", "-n", str(new_file(name, export.files[name]))], check=True)


@pytest.mark.parametrize(
    ("plan", "experts", "words", "options"),
    [
        (ServingPlan(tp=4, dp=2, prefill_chunk=512), False, ["i < 2", "--tp_size 4"], {"enable_chunked_prefill": True}),
        (ServingPlan(tp=4, pp=2, prefill_chunk=512), False, ["--pp_size 2"], {"pp_partition": [40, 40]}),
        (
            ServingPlan(ep=4, etp=2, dp=8, prefill_chunk=512),
            True,
            ["--tp_size 8", "--ep_size 4"],
            {"enable_attention_dp": True, "moe_tensor_parallel_size": 2},
        ),
    ],
)
def test_servers_of_tensorrt_llm(
    plan: ServingPlan, experts: bool, words: list[str], options: dict[str, Any], new_file: Any
) -> None:
    export = make_export(serving_job(plan, has_experts=experts), "tensorrt-llm")
    for word in words:
        assert word in export.files["serve.sh"]
    assert not export.account.cannot
    assert yaml.safe_load(export.files["llm_args.yaml"]).items() >= options.items()
    subprocess.run(["bash", "-n", str(new_file("serve.sh", export.files["serve.sh"]))], check=True)


@pytest.mark.parametrize(
    ("target", "plan", "why"),
    [
        ("tensorrt-llm", ServingPlan(tp=16), "over several nodes of 8 it needs the MPI launcher"),
        ("tensorrt-llm", ServingPlan(tp=2, ep=4, dp=2), "attention is data parallel with tp 1 only"),
        ("sglang", ServingPlan(tp=12), "a server of 12 devices does not fill whole nodes of 8"),
        ("sglang", ServingPlan(tp=3, dp=4), "servers of 3 devices do not fill nodes of 8"),
    ],
)
def test_servers_that_cannot_be_started(target: str, plan: ServingPlan, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        make_export(serving_job(plan, has_experts=plan.ep > 1), target)


@pytest.mark.parametrize(
    ("target", "module"), [("vllm", "dynamo.vllm"), ("sglang", "dynamo.sglang"), ("tensorrt-llm", "dynamo.trtllm")]
)
def test_a_server_is_a_pod_of_dynamo(target: str, module: str) -> None:
    files = make_export(serving_job(ServingPlan(tp=2, pp=2, dp=6, prefill_chunk=512)), target).files
    *maps, graph = yaml.safe_load_all(files["dynamo.yaml"])
    services = graph["spec"]["services"]
    worker, container = services["Worker"], services["Worker"]["extraPodSpec"]["mainContainer"]
    assert (worker["replicas"], worker["resources"]["limits"]["gpu"]) == (6, "4")
    assert container["command"] == ["python3", "-m", module]
    assert all(isinstance(word, str) for word in container["args"])
    assert "kubectl apply" in files["README.md"]
    if target == "tensorrt-llm":  # everything in a file
        (config,) = maps
        options = yaml.safe_load(config["data"]["llm_args.yaml"])
        assert options.items() >= yaml.safe_load(files["llm_args.yaml"]).items()
        assert (options["tensor_parallel_size"], options["max_num_tokens"]) == (2, 513)
        assert container["args"][-1] == container["volumeMounts"][0]["mountPath"] + "/llm_args.yaml"
    else:
        assert container["env"][0]["value"] == "40,40"
        assert "2" in container["args"]


def test_values_of_llm_d() -> None:
    """The chart adds the model, the port and both degrees itself."""
    shared = make_export(serving_job(ServingPlan(tp=2, ep=8, dp=8, prefill_chunk=512), has_experts=True), "vllm").files
    decode = yaml.safe_load(shared["llm-d.yaml"])["decode"]
    assert decode["replicas"] == 2
    assert decode["parallelism"] == {"tensor": 2, "data": 4, "dataLocal": 4, "workers": 1}
    (container,) = decode["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert "--enable-expert-parallel" in container["args"]
    assert not {"--tensor-parallel-size", "--data-parallel-size", "--port"} & set(container["args"])
    assert "dynamo.yaml" not in shared
    assert "llm-d.yaml" not in make_export(serving_job(ServingPlan(tp=8, pp=2)), "vllm").files


@pytest.mark.parametrize(
    ("target", "file", "on", "off"),
    [
        ("vllm", "serve.sh", "--enable-prefix-caching", "--no-enable-prefix-caching"),
        ("sglang", "serve.sh", "", "--disable-radix-cache"),
        ("tensorrt-llm", "llm_args.yaml", "enable_block_reuse: true", "enable_block_reuse: false"),
    ],
)
def test_cached_prefixes_are_switched_and_measured(target: str, file: str, on: str, off: str) -> None:
    """Of 1,024 tokens 400 are cached, so that 624 are computed; a share of 0 keeps none, and no share leaves it to the engine."""
    plan = ServingPlan(tp=2, dp=2, max_batch=8, prefill_batch=4)
    some, none, unsaid = (
        make_export(serving_job(plan, prefix_cached=share, cached_tokens=cached), target)
        for share, cached in ((0.39, 400), (0.0, 0), (None, 0))
    )
    words = [(on in each.files[file], off in each.files[file]) for each in (some, none, unsaid)]
    assert words == [(True, False), (not on, True), (not on, False)]
    assert ["prefix_cached" in each.account.written for each in (some, none, unsaid)] == [True, True, False]
    bench = some.files["bench.sh"]
    prefix, rest = ("gsp-system-prompt", "gsp-question") if target == "sglang" else ("random-prefix", "random-input")
    assert f"--{prefix}-len 400\n" in bench
    assert f"--{rest}-len 624\n" in bench
    assert f"--{prefix}-len" not in none.files["bench.sh"]
    kv = [{"name": "DYN_ROUTER_MODE", "value": "kv"}, {"name": "DYN_ROUTER_USE_KV_EVENTS", "value": "false"}]
    for each, environment in ((some, kv), (unsaid, None)):
        graph = list(yaml.safe_load_all(each.files["dynamo.yaml"]))[-1]
        assert graph["spec"]["services"]["Frontend"].get("envs") == environment
    if target != "sglang":  # four prompts of 624 new tokens share a pass, and the longest request fits
        assert "2496" in some.files["serve.sh"]


def test_a_benchmark_sends_the_load_of_the_plan() -> None:
    """Lengths from half to one and a half times the mean in both programs, and of equal requests the mean."""
    plan = ServingPlan(tp=4, dp=2, max_batch=7, prefill_chunk=512)

    def numbers(target: str, load: str) -> dict[str, float]:
        text = make_export(serving_job(plan, load=load), target).files["bench.sh"]
        return {name: float(value) for name, value in re.findall(r"--(\S+) ([0-9.]+)$", text, re.MULTILINE)}

    ours = numbers("vllm", "traffic")
    assert (ours["max-concurrency"], ours["num-prompts"]) == (14, 140)
    ratio, most = ours["random-range-ratio"], numbers("sglang", "traffic")
    ends = [ours["random-input-len"] * (1 - ratio), ours["random-input-len"] * (1 + ratio)]
    assert ends == [512, 1536]
    assert [most["random-input-len"] * most["random-range-ratio"], most["random-input-len"]] == pytest.approx(
        ends, 1e-5
    )
    assert numbers("vllm", "benchmark")["random-range-ratio"] == 0
    equal = numbers("sglang", "benchmark")
    assert (equal["random-range-ratio"], equal["random-output-len"]) == (1, 256)
    assert "max-concurrency" not in numbers("vllm", "backlog")


def test_a_benchmark_sends_requests_at_the_rate_of_the_plan() -> None:
    """Gaps of variation 2 have a gamma distribution of shape 1 / 4; answers of variation 0.2 lie within 0.346 of their mean."""
    job = serving_job(ServingPlan(max_batch=7), arrivals=Arrivals(2.5, variation=2.0), output_variation=0.2)
    text = make_export(job, "vllm").files["bench.sh"]
    for words in ("--request-rate 2.5\n", "--burstiness 0.25\n", "--random-range-ratio 0.34641\n"):
        assert words in text
    assert "--max-concurrency" not in text
    assert "Poisson" in make_export(job, "sglang").account.by_hand["arrivals"]


def test_servers_side_by_side_get_devices_and_ports_of_their_own(tmp_path: Path) -> None:
    folder = _write(
        tmp_path / "run", make_export(serving_job(ServingPlan(tp=2, etp=2, dp=4), has_experts=True), "vllm").files
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    log = tmp_path / "log"
    (tools / "vllm").write_text(f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $*" >> "{log}"\nsleep 1\n', encoding="utf-8")
    (tools / "vllm").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "MODEL": "my model"}
    subprocess.run(["bash", str(folder / "serve.sh")], env=environment, check=True, timeout=30)
    lines = sorted(log.read_text(encoding="utf-8").splitlines())
    assert [line.split()[0] for line in lines] == ["0,1", "2,3", "4,5", "6,7"]
    assert [line.split("--port ")[1].split()[0] for line in lines] == ["8000", "8001", "8002", "8003"]


def _started(folder: Path, tools: Path, program: str, **given: str) -> list[str]:
    """What serve.sh gives its servers and its router, a line each: role's devices, side channel, arguments."""
    tools.mkdir(parents=True)
    log = tools / "log"
    for name in (program, "vllm-router"):
        line = 'echo "${CUDA_VISIBLE_DEVICES:-} ${VLLM_NIXL_SIDE_CHANNEL_PORT:-} ${SGLANG_PP_LAYER_PARTITION:-} $*"'
        (tools / name).write_text(f'#!/bin/sh\n{line} >> "{log}"\nsleep 1\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "MODEL": "my model", **given}
    subprocess.run(["bash", str(folder / "serve.sh")], env=environment, check=True, timeout=30)
    return sorted(log.read_text(encoding="utf-8").splitlines()) if log.exists() else []


def test_servers_of_two_kinds_share_a_node(tmp_path: Path) -> None:
    folder = _write(tmp_path / "run", make_export(SERVE_APART, "vllm").files)
    router, decode, *prefill = _started(folder, tmp_path / "all", "vllm")
    assert decode.startswith("0,1,2,3 5600  serve my model --port 8100 --tensor-parallel-size 4 ")
    assert [line[:22] for line in prefill] == ["4,5 5604  serve my mod", "6,7 5606  serve my mod"]
    # The plan's pass of 3 parts of 2048 tokens; a token of 48 sequences.
    assert all("--max-num-seqs 3 " in line and "--max-num-batched-tokens 6144 " in line for line in prefill)
    assert "--max-num-seqs 48 " in decode
    assert "--max-num-batched-tokens 48 " in decode
    assert '"kv_role": "kv_producer"' in prefill[0]
    assert '"kv_role": "kv_consumer"' in decode
    ends = ["--prefill http://localhost:8104", "--prefill http://localhost:8106", "--decode http://localhost:8100"]
    assert router.endswith(f"--host 0.0.0.0 --port 8000 {' '.join(ends)}")
    assert len(_started(folder, tmp_path / "some", "vllm", ROLE="prefill")) == 2


def test_servers_of_two_kinds_of_tensorrt_llm(tmp_path: Path) -> None:
    """The one that takes requests is told where the others are; these have options of their kinds."""
    folder = _write(tmp_path / "run", make_export(SERVE_APART, "tensorrt-llm").files)
    lines = _started(folder, tmp_path / "all", "trtllm-serve")
    (router,) = [line for line in lines if "disaggregated" in line]
    decode, *prefill = [line.split() for line in lines if line != router]
    assert router.split() == ["disaggregated", "-c", str(folder / "router.yaml")]
    assert [words[0] for words in (decode, *prefill)] == ["0,1,2,3", "4,5", "6,7"]
    assert decode[decode.index("--max_num_tokens") + 1] == decode[decode.index("--max_batch_size") + 1] == "48"
    assert prefill[0][prefill[0].index("--max_num_tokens") + 1] == "6144"  # three parts of 2,048
    assert prefill[0][-1] == str(folder / "prefill.yaml")
    routes = yaml.safe_load((folder / "router.yaml").read_text(encoding="utf-8"))
    assert routes["port"] == 8000
    assert routes["context_servers"] == {"num_instances": 2, "urls": ["localhost:8104", "localhost:8106"]}
    assert routes["generation_servers"] == {"num_instances": 1, "urls": ["localhost:8100"]}
    options = {
        role: yaml.safe_load((folder / f"{role}.yaml").read_text(encoding="utf-8")) for role in ("prefill", "decode")
    }
    assert options["prefill"]["disable_overlap_scheduler"]
    assert "disable_overlap_scheduler" not in options["decode"]
    assert options["prefill"]["cache_transceiver_config"] == options["decode"]["cache_transceiver_config"]
    assert options["decode"]["cache_transceiver_config"]["max_tokens_in_buffer"] == 1536  # 1.5 times the mean prompt


def test_servers_of_two_kinds_on_nodes(tmp_path: Path) -> None:
    """Experts shared over two nodes decode; the third node reads prompts."""
    folder = _write(tmp_path / "run", make_export(SERVE_APART_NODES, "vllm").files)
    nodes = {"NODES": "a,b,c", "ROLE": "decode"}
    (second,) = _started(folder, tmp_path / "1", "vllm", NODE_RANK="1", **nodes)
    assert second.endswith("--data-parallel-address a --headless --data-parallel-start-rank 1")
    assert _started(folder, tmp_path / "2", "vllm", NODE_RANK="2", **nodes) == []
    (router,) = _started(folder, tmp_path / "0", "vllm", NODE_RANK="0", NODES="a,b,c", ROLE="router")
    assert router.endswith("--prefill http://c:8100 --decode http://a:8100")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "NODE_RANK=0 NODES=node0,node1,node2 bash serve.sh" in readme
    assert "prefill: 1 server of 8 devices on node 2; decode: 1 server of 16 devices on nodes 0, 1" in readme
    assert "export NODES" in (folder / "serve.slurm").read_text(encoding="utf-8")


def test_the_check_finds_a_server_of_each_kind(tmp_path: Path) -> None:
    """Those that decode are on node 0, those that read prompts on node 2."""
    folder = _write(tmp_path / "run", make_export(SERVE_APART_NODES, "vllm").files)
    plan = json.loads((folder / "export.json").read_text(encoding="utf-8"))["plan"]
    assert (plan["prefill_dp"], plan["prefill_tp"], plan["prefill_pp"]) == (8, 1, 1)
    given = parsers._servers(folder, plan, "vllm")
    degrees = {prefix: words[words.index("--tensor-parallel-size") + 1] for prefix, words in given.items()}
    assert degrees == {"": "8", "prefill_": "1"}


def test_pools_of_sglang(tmp_path: Path) -> None:
    plan = ServingPlan(tp=4, max_batch=48, prefill_dp=1, prefill_tp=2, prefill_pp=2)
    folder = _write(tmp_path / "run", make_export(serving_job(plan), "sglang").files)
    router, prefill, decode = sorted(_started(folder, tmp_path / "tools", "python3"), key=lambda line: line[:1] + line)
    assert "-m sglang_router.launch_router --pd-disaggregation" in router
    assert router.endswith("--prefill http://localhost:30000 8998 --decode http://localhost:30004")
    assert prefill.startswith("0,1,2,3  40,40 -m sglang.launch_server ")
    assert prefill.endswith("--disaggregation-bootstrap-port 8998")
    assert decode.startswith("4,5,6,7   -m sglang.launch_server ")
    assert "--disaggregation-mode decode" in decode
    assert "--chunked-prefill-size" not in decode


def test_pools_of_unlike_devices_take_nodes_of_their_own() -> None:
    job = serving_job(ServingPlan(tp=4, prefill_dp=1, prefill_tp=4), prefill_device="a100")
    found = places(pools_of(job), 8, apart=True)
    assert [(place.role, list(place.nodes), place.listed) for place in found] == [
        ("prefill", [0], "0,1,2,3"),
        ("decode", [1], "0,1,2,3"),
    ]
    assert "a100" in make_export(job, "vllm").account.by_hand["prefill_device"]


def test_pools_that_need_another_node_say_so() -> None:
    """Three servers of 5 devices take three nodes of 8, where 15 devices would take two."""
    job = serving_job(ServingPlan(tp=5, dp=2, prefill_dp=1, prefill_tp=5))
    assert "3 nodes, and the prediction is for 2" in make_export(job, "vllm").account.cannot["placement"]


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_pods_of_two_kinds(target: str) -> None:
    files = make_export(SERVE_APART, target).files
    services = yaml.safe_load(files["dynamo.yaml"])["spec"]["services"]
    pods = {role: services[f"{role.capitalize()}Worker"] for role in ("prefill", "decode")}
    assert [(pod["subComponentType"], pod["replicas"], pod["resources"]["limits"]["gpu"]) for pod in pods.values()] == [
        ("prefill", 2, "2"),
        ("decode", 1, "4"),
    ]
    for role, pod in pods.items():
        words = pod["extraPodSpec"]["mainContainer"]["args"]
        assert words[words.index("--disaggregation-mode") + 1] == role
    if target == "vllm":
        values = yaml.safe_load(files["llm-d.yaml"])
        assert values["routing"]["proxy"] == {"enabled": True, "connector": "nixlv2"}
        assert [values[role]["replicas"] for role in pods] == [2, 1]
        assert [values[role]["parallelism"]["tensor"] for role in pods] == [2, 4]
        (container,) = values["prefill"]["containers"]
        assert container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        assert "--kv-transfer-config" in container["args"]


@pytest.mark.parametrize("job", [FSDP, DATA, CONTEXT], ids=["fsdp", "data", "context"])
@pytest.mark.filterwarnings("ignore")
def test_accelerate_loads_its_file(job: Any, new_file: Any) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    pytest.importorskip(
        "transformers", reason="transformers, which accelerate asks for with tensor parallelism, is not installed"
    )
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils.dataclasses import TorchContextParallelConfig

    path = new_file("accelerate.yaml", make_export(job, "accelerate").files["accelerate.yaml"])
    config = load_config_from_file(str(path))
    plan = job.plan
    assert config.num_processes == plan.workers
    assert config.distributed_type.value == ("FSDP" if plan.zero_stage else "MULTI_GPU")
    if plan.zero_stage:
        sizes = {key.removeprefix("parallelism_config_"): value for key, value in config.parallelism_config.items()}
        strategy = sizes.pop("cp_comm_strategy", None)
        if strategy:
            sizes["cp_handler"] = TorchContextParallelConfig(cp_comm_strategy=strategy)
        mesh = ParallelismConfig(**sizes)
        assert mesh.total_size == plan.workers
        assert config.fsdp_config["fsdp_version"] == 2


@pytest.mark.parametrize("job", [FSDP, DATA, PLAIN_PIPELINE], ids=["fsdp", "data", "pipeline"])
@pytest.mark.filterwarnings("ignore")
def test_deepspeed_loads_its_file(job: Any, new_file: Any) -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    from deepspeed.runtime.config import DeepSpeedConfig

    path = new_file("ds_config.json", make_export(job, "deepspeed").files["ds_config.json"])
    plan = job.plan
    ranks = SimpleNamespace(get_data_parallel_world_size=lambda: plan.dp)
    config = DeepSpeedConfig(str(path), mpu=ranks)
    assert config.train_micro_batch_size_per_gpu == plan.micro_batch
    assert config.gradient_accumulation_steps == plan.num_micro_batches
    assert config.zero_optimization_stage == plan.zero_stage


def test_versions_are_stated() -> None:
    for target in (*targets_that_take("mesh"), "vllm"):
        assert exporter_of(target).VERSIONS


def test_accelerate_takes_tensor_parallelism_alone() -> None:
    """Accelerate 1.15 builds ParallelismConfig(tp_size=8) from these variables, and raises on FSDP without ranks to share over."""
    files = make_export(job_of(MeshPlan(tp=8, micro_batch=4)), "accelerate").files
    assert "export ACCELERATE_USE_PARALLELISM_CONFIG=true" in files["train.sh"]
    assert "export PARALLELISM_CONFIG_TP_SIZE=8" in files["train.sh"]
    assert "distributed_type: MULTI_GPU" in files["accelerate.yaml"]
    assert "parallelism_config" not in files["accelerate.yaml"]


def test_what_the_trainer_of_hugging_face_is_told() -> None:
    plan = MeshPlan(dp_shard=8, zero_stage=3, micro_batch=2, num_micro_batches=4)
    words = "TrainingArguments(per_device_train_batch_size=2, gradient_accumulation_steps=4, bf16=True)"
    for target in ("accelerate", "deepspeed"):
        assert words in make_export(job_of(plan), target).account.by_hand["trainer"]
    assert "trainer" not in make_export(PLAIN_PIPELINE, "deepspeed").account.by_hand


@pytest.mark.parametrize(
    ("plan", "tokens"),
    [
        (
            ServingPlan(pp=4, max_batch=1024, prefill_chunk=256),
            1024,
        ),  # a group of 256 decodes beside 256: fewer than 1024
        (ServingPlan(pp=2, max_batch=256, prefill_chunk=512), 640),
    ],
)
def test_vllm_has_a_token_for_every_sequence(plan: ServingPlan, tokens: int) -> None:
    """It refuses fewer --max-num-batched-tokens than --max-num-seqs (SchedulerConfig.verify_max_model_len)."""
    assert f"--max-num-batched-tokens {tokens}\n" in make_export(serving_job(plan), "vllm").files["serve.sh"]


def test_vllm_without_nf4() -> None:
    export = make_export(serving_job(ServingPlan(tp=8, max_batch=64, prefill_chunk=512), precision="nf4"), "vllm")
    assert "reads no nf4" in export.account.cannot["precision"]
    assert "--quantization" not in export.files["serve.sh"].partition("ARGS=(")[2]
