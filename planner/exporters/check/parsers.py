"""Reads exported folders as their target would, in the Python that the target is installed in: a program that the planner starts.

Usage: parsers.py TARGET FOLDER...; one line of JSON per folder, in the words of `planner.exporters.check.Checked`. Nothing is trained and
no GPU is needed: launch scripts run with a stand-in for their launcher, and the trainer's own parser reads what that was given.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# What a launch script asks of the user, where the environment does not say it; no parser needs the thing itself.
_STAND_INS = {
    "SCRIPT": "train.py",
    "MODEL": "facebook/opt-125m",
    "NODE_RANK": "0",
    "MASTER_ADDR": "localhost",
    "BASE_MODULE": "torchtitan.models.llama3.config_registry",
    "BASE_CONFIG": "llama3_8b",
    "RECIPE": "vanilla_gpt_pretrain_config",
}


class NotInstalledError(Exception):
    """The target, or what its parser imports, is not in this Python."""


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        raise NotInstalledError(f"{name}: {error}") from None


def _launched(folder: Path, launcher: str, script: str = "train.sh", **given: str) -> tuple[list[str], dict[str, str]]:
    """What a launch script gives its launcher: arguments, and the variables that it sets; ``given`` are variables of the user."""
    with tempfile.TemporaryDirectory() as tools:
        stand_in, said = Path(tools, launcher), Path(tools, "said")
        stand_in.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"own = {str(said)!r} + str(os.getpid())\n"
            "with open(own, 'w') as file:\n    json.dump([sys.argv[1:], dict(os.environ)], file)\n"
            f"os.replace(own, {str(said)!r})\n",  # whole, where several start at a time
            encoding="utf-8",
        )
        stand_in.chmod(0o755)
        asked = {name: os.environ.get(name, value) for name, value in _STAND_INS.items()} | given
        environment = {**os.environ, **asked, "PATH": f"{tools}:{os.environ['PATH']}"}
        done = subprocess.run(  # noqa: S603 - a script of an export
            ["bash", str(folder / script)],  # noqa: S607
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ValueError(done.stderr.strip())
        arguments, seen = json.loads(said.read_text(encoding="utf-8"))
    return arguments, {name: value for name, value in seen.items() if os.environ.get(name) != value and name != "PATH"}


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# -- targets: (folder, settings of the plan) -> what was read ----------------------------------------


def _degrees_of_megatron(config: Any) -> dict[str, int]:
    """Of its arguments, and of the configuration of a network in Megatron-Bridge."""
    return {
        "tp": config.tensor_model_parallel_size,
        "pp": config.pipeline_model_parallel_size,
        "vpp": config.virtual_pipeline_model_parallel_size or 1,
        "cp": config.context_parallel_size,
        "ep": config.expert_model_parallel_size,
    }


def _megatron(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    arguments, environment = _launched(folder, "torchrun")
    program = next(i for i, word in enumerate(arguments) if word.endswith(".py"))
    folders = Path(arguments[program]).resolve().parents  # of a copy of Megatron-LM that SCRIPT names
    sys.path[:0] = [str(root) for root in folders if (root / "megatron").is_dir()]
    torch = _import("torch")
    module = _import("megatron.training.arguments")
    if not torch.cuda.is_available():  # asked for what a GPU can do; of the GPUs of the plan, not of this machine
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    # Data and rates are the user's; without them the parser asks for the number of steps.
    rest = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "10", "--lr", "1e-4"]
    if "CUDA_DEVICE_MAX_CONNECTIONS" not in environment:
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = ""
    with _environment({**environment, "RANK": "0", "WORLD_SIZE": str(plan["ranks"])}):
        sys.argv = [arguments[program], *arguments[program + 1 :], *rest]
        args = module.parse_args()
        module.validate_args(args)
    steps = args.global_batch_size // (args.micro_batch_size * args.data_parallel_size)
    sharding = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    zero = int(args.use_distributed_optimizer)
    if getattr(args, "use_megatron_fsdp", False):
        zero = sharding[args.data_parallel_sharding_strategy]
    return {
        **_degrees_of_megatron(args),
        "dp": args.data_parallel_size,
        "zero_stage": zero,
        "micro_batch": args.micro_batch_size,
        "num_micro_batches": steps,
    }


def _torchtitan(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    _, environment = _launched(folder, "torchrun")
    config_module, dims = _import("torchtitan.config"), _import("torchtitan.distributed").ParallelDims
    spec = importlib.util.spec_from_file_location("planned", folder / "planned.py")
    assert spec is not None
    assert spec.loader is not None
    planned = importlib.util.module_from_spec(spec)
    with _environment(environment):
        sys.modules["planned"] = planned
        spec.loader.exec_module(planned)
        config = config_module.ConfigManager().parse_args(["--module", "planned", "--config", "planned"])
    if hasattr(config, "_validate_cuda_graphs"):
        config._validate_cuda_graphs()
    mesh = dims.from_config(config.parallelism, plan["ranks"])
    training, parallelism = config.training, config.parallelism
    read = {name: getattr(mesh, name) for name in ("tp", "pp", "cp", "ep", "dp_replicate", "dp_shard")}
    if hasattr(training, "num_tokens_per_train_step"):
        samples = training.num_tokens_per_train_step // training.max_context_length
        micro = training.num_tokens_per_microbatch_per_dp_rank // training.max_context_length
    else:
        samples = training.global_batch_size
        micro = parallelism.pipeline_parallel_microbatch_size if mesh.pp > 1 else training.local_batch_size
    parts = parallelism.module_fqns_per_model_part  # left to the user where the network is no plain decoder
    if parts and "lm_head" not in parts[-1]:
        raise ValueError(f"the last stage has no lm_head: {parts[-1]}")
    return {
        **read,
        "micro_batch": micro,
        "num_micro_batches": samples // (micro * mesh.dp_replicate * mesh.dp_shard),
        **({"vpp": len(parts) // mesh.pp} if parts else {}),
    }


def _deepspeed(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    _launched(folder, "torchrun")
    path = folder / "ds_config.json"
    deepspeed = _import("deepspeed")
    written = json.loads(path.read_text(encoding="utf-8"))
    data = plan["ranks"] // (plan["tp"] * plan["pp"] * plan["cp"])
    mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: data)
    comm: Any = importlib.import_module("deepspeed.comm")
    comm.get_rank, comm.get_world_size = lambda *_: 0, lambda *_: plan["ranks"]
    config = deepspeed.DeepSpeedConfig(written, mpu=mpu)
    return {
        "zero_stage": config.zero_optimization_stage,
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "num_micro_batches": config.gradient_accumulation_steps,
    }


def _accelerate(folder: Path, _: dict[str, Any]) -> dict[str, Any]:
    arguments, environment = _launched(folder, "accelerate")
    launch = _import("accelerate.commands.launch")
    utils = _import("accelerate.utils")
    args, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args(arguments[1:]))
    made = utils.launch.prepare_multi_gpu_env(args) if args.multi_gpu or args.use_fsdp else {}
    read: dict[str, Any] = {
        "ranks": args.num_processes,
        "num_micro_batches": int(environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"]),
    }
    with _environment({**environment, **made}):
        if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() == "true":
            mesh = importlib.import_module("accelerate.parallelism_config").ParallelismConfig()
            read |= {name: getattr(mesh, f"{name}_size") for name in ("tp", "cp", "dp_replicate", "dp_shard")}
        if args.use_fsdp:
            plugin = utils.FullyShardedDataParallelPlugin()
            read["zero_stage"] = 3 if plugin.reshard_after_forward else 2
    return read


def _nanotron(folder: Path, _: dict[str, Any]) -> dict[str, Any]:
    _launched(folder, "torchrun")
    _import("nanotron.logging")
    config = _import("nanotron.config").get_config_from_file(str(folder / "nanotron.yaml"))
    mesh, tokens = config.parallelism, config.tokens
    return {
        "tp": mesh.tp,
        "pp": mesh.pp,
        "cp": mesh.context_parallel_size,
        "ep": mesh.expert_parallel_size,
        "dp": mesh.dp,
        "zero_stage": config.optimizer.zero_stage,
        "micro_batch": tokens.micro_batch_size,
        "num_micro_batches": tokens.batch_accumulation_per_replica,
    }


def _servers(folder: Path, plan: dict[str, Any], program: str) -> dict[str, list[str]]:
    """What serve.sh gives a server; one of each kind where prompts are read by servers of their own."""
    if "prefill_dp" not in plan:
        return {"": _launched(folder, program, "serve.sh")[0]}
    found = {}
    for prefix, role in (("", "decode"), ("prefill_", "prefill")):
        for node in range(plan["ranks"]):  # the first that has one
            given = {"ROLE": role, "NODE_RANK": str(node), "NODES": ",".join(["localhost"] * plan["ranks"])}
            with contextlib.suppress(FileNotFoundError):
                found[prefix] = _launched(folder, program, "serve.sh", **given)[0]
                break
    return found


def _vllm(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    if not _import("torch").cuda.is_available():  # a wheel for CUDA finds no device that it knows
        _import("vllm.platforms")._current_platform = _import("vllm.platforms.cpu").CpuPlatform()
    make = _import("vllm.entrypoints.common.cli_args").make_arg_parser
    parser = make(_import("vllm.utils.argparse_utils").FlexibleArgumentParser())
    make_args = _import("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args
    # The parser takes any word; the weights are looked for by this list.
    methods = _import("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS
    read: dict[str, Any] = {}
    for prefix, arguments in _servers(folder, plan, "vllm").items():
        args = make_args(parser.parse_args(["--model", *arguments[1:]]))
        if args.quantization is not None and args.quantization not in methods:
            raise ValueError(f"--quantization {args.quantization}: this release has {', '.join(sorted(methods))}")
        read[f"{prefix}tp"], read[f"{prefix}pp"] = args.tensor_parallel_size, args.pipeline_parallel_size
        if not prefix:
            read["max_batch"] = args.max_num_seqs
    with contextlib.suppress(NotInstalledError):  # it needs more packages than the server
        bench = _import("vllm.utils.argparse_utils").FlexibleArgumentParser()
        _import("vllm.benchmarks.serve").add_cli_args(bench)
        bench.parse_args(_launched(folder, "vllm", "bench.sh")[0][2:])
    return read


def _sglang(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    _import("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    read: dict[str, Any] = {}
    for prefix, words in _servers(folder, plan, "python3").items():  # -m sglang.launch_server ...
        args = parser.parse_args(words[2:])
        replicas = args.attn_dp_size
        read[f"{prefix}tp"], read[f"{prefix}pp"] = args.tp_size // replicas, args.pp_size
        if not prefix:
            read["max_batch"] = args.max_running_requests // replicas
    with contextlib.suppress(NotInstalledError):  # it needs more packages than the server
        _read_by(_import("sglang.benchmark.serving"), _launched(folder, "python3", "bench.sh")[0][2:])
    return read


def _read_by(benchmark: Any, words: list[str]) -> None:
    """Let SGLang's benchmark read its arguments, and send nothing."""
    benchmark.run_benchmark = lambda _: None
    sys.argv = ["serving", *words]
    benchmark.cli_main()


def _tensorrt_llm(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for prefix, words in _servers(folder, plan, "trtllm-serve").items():
        read = _import("tensorrt_llm.commands.serve").serve.make_context("serve", words).params
        name = "prefill.yaml" if prefix else "decode.yaml" if "prefill_dp" in plan else "llm_args.yaml"
        options = _import("yaml").safe_load((folder / name).read_text(encoding="utf-8"))
        known = _import("tensorrt_llm.llmapi").LlmArgs.model_fields
        if others := sorted(set(options) - set(known)):
            raise ValueError(f"{name}: this release has no {', '.join(others)}")
        replicas = read["tensor_parallel_size"] if options.get("enable_attention_dp") else 1
        found[f"{prefix}tp"] = read["tensor_parallel_size"] // replicas
        found[f"{prefix}pp"] = read["pipeline_parallel_size"]
        if not prefix:
            found["max_batch"] = read["max_batch_size"]
    return found


def _megatron_bridge(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    arguments, _ = _launched(folder, "torchrun")
    at = arguments.index("--recipe")
    recipes = _import("megatron.bridge.recipes")
    merge = _import("megatron.bridge.training.utils.omegaconf_utils").process_config_with_overrides
    config = merge(getattr(recipes, arguments[at + 1])(), cli_overrides=arguments[at + 2 :])
    model, train = config.model, config.train
    other = model.tensor_model_parallel_size * model.pipeline_model_parallel_size * model.context_parallel_size
    return {
        **_degrees_of_megatron(model),
        "micro_batch": train.micro_batch_size,
        "num_micro_batches": train.global_batch_size // (train.micro_batch_size * (plan["ranks"] // other)),
    }


def _torch(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    _import("torch")
    sys.path.insert(0, str(folder))
    try:
        for name in ("plan", "plan_layouts", "plan_moves"):
            sys.modules.pop(name, None)
        module = importlib.import_module("plan")
    finally:
        sys.path.remove(str(folder))
    mesh = module.MESH
    return {"ranks": math.prod(mesh.values()), **{name: size for name, size in mesh.items() if name in plan}}


PARSERS: dict[str, tuple[Callable[[Path, dict[str, Any]], dict[str, Any]], str]] = {
    "torch": (_torch, "torch"),
    "megatron": (_megatron, "megatron-core"),
    "megatron-bridge": (_megatron_bridge, "megatron-bridge"),
    "torchtitan": (_torchtitan, "torchtitan"),
    "deepspeed": (_deepspeed, "deepspeed"),
    "accelerate": (_accelerate, "accelerate"),
    "nanotron": (_nanotron, "nanotron"),
    "vllm": (_vllm, "vllm"),
    "sglang": (_sglang, "sglang"),
    "tensorrt-llm": (_tensorrt_llm, "tensorrt_llm"),
}


def _check(target: str, folder: Path) -> dict[str, Any]:
    parse, package = PARSERS[target]
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    said = io.StringIO()
    read: dict[str, Any] = {}
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            read = parse(folder, manifest["plan"])
        status, message = "accepted", ""
    except NotInstalledError as error:
        status, message = "not installed", str(error)
    except SystemExit:  # argparse has said why
        status, message = "refused", said.getvalue().strip().rpartition("\n")[2]
    except Exception as error:  # a trainer refuses with any
        status, message = "refused", f"{type(error).__name__}: {error}".strip(": ")
    version = ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = f"{package} {importlib.metadata.version(package)}"
    return {"status": status, "message": message, "version": version, "read": read}


if __name__ == "__main__":
    answer, (called, *names) = sys.stdout, sys.argv[1:]
    for name in names:
        row = json.dumps(_check(called, Path(name).resolve()))
        answer.write("\n" + row + "\n")
        answer.flush()
