"""What the log of a run says of the plan that ran: degrees, batch, network, device; the user's options count before it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodel.mesh.plan import RECOMPUTE
from planner.exporters import deepspeed, megatron
from planner.exporters import settings as exporter_settings
from planner.exporters.runs import Run
from planner.files.documents import document_of
from planner.files.naming.models import transformer_called
from planner.logs.read import Log


@dataclass(slots=True, kw_only=True)
class LoggedRun:
    """What a log says of its run.

    Attributes
    ----------
    run : Run
        In words of the command line.
    model : str, mapping or None
        Name of a bundled network, or the content of a network file; None: the log does not say.
    device : str
        As the driver calls it; empty: the log does not say.
    """

    run: Run = field(default_factory=Run)
    model: str | Mapping[str, Any] | None = None
    device: str = ""


def logged_run_of(path: Path, log: Log) -> LoggedRun:
    """Read what a log says of the plan that ran; most logs say only a part of it.

    Parameters
    ----------
    path : Path
        For messages.
    log : Log

    Raises
    ------
    InputFileError
        The program's own settings, as it printed them, contradict each other.
    """
    readers = {"megatron": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed, "huggingface": _hugging_face}
    found = readers.get(log.format, _nothing)(path, log.text)
    batch = log.steps[-1].batch
    if batch is not None:
        found.run.options.setdefault("batch", str(batch))
    return found


def _nothing(path: Path, text: str) -> LoggedRun:  # noqa: ARG001 - every reader has both
    return LoggedRun()


# -- Megatron-LM: every argument with its value, as print_args of megatron/training/arguments.py writes them ----------------

_ARGUMENTS = re.compile(r"-{5,} arguments -{5,}(.*?)-{5,} end of arguments -{5,}", re.DOTALL)
_ARGUMENT = re.compile(r"([a-z]\w*) \.{2,} (.*?)\s*$", re.MULTILINE)
_WORDS = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
# Names of arguments that differ from their flags.
_FLAGS = {"fp8": "fp8-format", "fp4": "fp4-format"}
# Flag -> argument that must be on for it to count: each has a default of its own.
_NEEDS = {
    "num-query-groups": "group_query_attention",
    "moe-router-topk": "num_experts",
    "moe-ffn-hidden-size": "num_experts",
    "expert-model-parallel-size": "num_experts",
    "expert-tensor-parallel-size": "num_experts",
    "data-parallel-sharding-strategy": "use_megatron_fsdp",
    "fp8-recipe": "fp8",
    "fp4-recipe": "fp4",
}


def _megatron(path: Path, text: str) -> LoggedRun:
    block = max(_ARGUMENTS.finditer(text), key=lambda match: match.start(), default=None)
    if block is None:
        return LoggedRun()
    places = {match[1]: match for match in _ARGUMENT.finditer(text, *block.span(1))}
    stated = {name: match[2] for name, match in places.items() if match[2] not in ("None", "False", "[]", "0", "")}
    found = exporter_settings.Settings(path=path)
    for name, value in stated.items():
        flag = _FLAGS.get(name, name.replace("_", "-"))
        if flag in megatron.ARGUMENTS and _NEEDS.get(flag, name) in stated:
            line = text.count("\n", 0, places[name].start()) + 1
            word = _WORDS.get(value, re.sub(r"[\[\]'\"]", "", value).split(",")[0])
            found.of[flag] = exporter_settings.Setting(
                name=f"--{flag}", value="" if value == "True" else word, line=line, column=1
            )
    if stated.get("context_parallel_size", "1") == "1":
        found.of.pop("cp-comm-type", None)
    layout = found.of.get("pipeline-model-parallel-layout")
    if layout is not None and not re.fullmatch(r"[A-Za-z|()*0-9]+", str(layout.value)):
        del found.of["pipeline-model-parallel-layout"]
        layout = None
    run = megatron.run_of(found)
    if layout is None and "pipeline_model_parallel_layout" in stated:
        run.notes.append("pipeline_model_parallel_layout: cannot be read from the log; equal stages are predicted")
    if "world_size" in stated:
        run.options["gpus"] = stated["world_size"]
    return LoggedRun(run=run, model=_network(path, stated, text))


# Arguments that make another network than the plain decoders below.
_OTHER_NETWORKS = (
    "multi_latent_attention", "encoder_num_layers", "hybrid_layer_pattern", "is_hybrid_model", "moe_shared_expert_intermediate_size",
    "mtp_num_layers", "num_layers_to_keep", "heterogeneous_layers_config_path", "vision_pretraining", "bert_load",
)  # fmt: skip


def _network(path: Path, stated: Mapping[str, str], text: str) -> Mapping[str, Any] | None:
    """The network that the arguments describe, as a config of Hugging Face with the same blocks; None where they do not suffice."""
    from planner.importers.hugging_face.config import convert

    padded = re.findall(r"padded vocab \(size: \d+\).*\(new size: (\d+)\)", text)
    vocabulary = padded[-1:] or [stated[name] for name in ("padded_vocab_size", "vocab_size") if name in stated]
    needed = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size")
    frequency = stated.get("moe_layer_freq", "1").strip("[]' ")
    is_plain = not any(name in stated for name in _OTHER_NETWORKS) and frequency == "1"
    if not is_plain or not vocabulary or not all(stated.get(name, "").isdecimal() for name in needed):
        return None
    experts = "num_experts" in stated
    grouped = "group_query_attention" in stated and "num_query_groups" in stated
    width = stated.get("moe_ffn_hidden_size", stated["ffn_hidden_size"]) if experts else stated["ffn_hidden_size"]
    sizes = {
        "hidden_size": stated["hidden_size"],
        "num_hidden_layers": stated["num_layers"],
        "num_attention_heads": stated["num_attention_heads"],
        "num_key_value_heads": stated["num_query_groups"] if grouped else stated["num_attention_heads"],
        "head_dim": stated.get("kv_channels"),
        "intermediate_size": width,
        "vocab_size": vocabulary[0],
        "max_position_embeddings": stated.get("seq_length"),
        "num_local_experts": stated.get("num_experts"),
        "num_experts_per_tok": stated.get("moe_router_topk") if experts else None,
    }
    gated, has_bias = "swiglu" in stated, "add_bias_linear" in stated
    if experts and not gated:
        return None
    learned = stated.get("position_embedding_type", "learned_absolute") == "learned_absolute"
    plain = "gpt2" if learned and has_bias and not grouped else "starcoder2"
    kind = "mixtral" if experts else "llama" if gated else "nemotron" if "squared_relu" in stated else plain
    config: dict[str, Any] = {
        name: int(value) for name, value in sizes.items() if value is not None and value.isdecimal()
    }
    config |= {"model_type": kind, "tie_word_embeddings": "untie_embeddings_and_output_weights" not in stated}
    if kind == "starcoder2":
        config["use_bias"] = has_bias
    elif kind == "gpt2":
        dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop"), float(stated.get("hidden_dropout", 0.0)))
        config |= {
            "n_layer": config["num_hidden_layers"],
            "n_embd": config["hidden_size"],
            "n_head": config["num_attention_heads"],
            "n_inner": config["intermediate_size"],
            "n_positions": config.get("max_position_embeddings", 1024),
            **dropped,
            "attn_pdrop": float(stated.get("attention_dropout", 0.0)),
        }
    else:
        config |= {"attention_bias": has_bias, "mlp_bias": has_bias}
    kinds = f"-of-{config['num_local_experts']}-experts" if experts else ""
    name = f"decoder-{config['num_hidden_layers']}x{config['hidden_size']}{kinds}"
    return {**convert(document_of(path, "", config)).content, "name": name}


# -- torchtitan -------------------------------------------------------------------------------------------------------------

_MESH = re.compile(r"Building device mesh with parallelism: (.*)")
_OLD_MESH = re.compile(r"Building \d-D device mesh with \[([^\]]*)\], \[([^\]]*)\]")
_LOADS = re.compile(r"local batch size (\d+), global batch size (\d+).*?sequence length (\d+)")
_MODEL = re.compile(r"\bModel (\S+) (\S+) size: ")
_DEVICE = re.compile(r"CUDA capacity: (.+?) with [\d.]+GiB memory")
_CHECKPOINTING = re.compile(r"Applied (\w+?)(?:AC)? activation checkpointing")


def _torchtitan(path: Path, text: str) -> LoggedRun:  # noqa: ARG001 - every reader has both
    found = LoggedRun()
    run = found.run
    if match := _MESH.search(text):
        degrees = dict(re.findall(r"(\w+)=(\d+)", match[1]))
    elif match := _OLD_MESH.search(text):
        degrees = dict(zip(re.findall(r"\w+", match[1]), re.findall(r"\d+", match[2]), strict=False))
    else:
        degrees = {}
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    if degrees:
        run.options["gpus"] = str(math.prod(int(degrees.get(name, 1)) for name in names))
        run.mesh |= {name: degrees[name] for name in (*names, "ep") if degrees.get(name, "1") != "1"}
        shards = degrees.get("dp_shard", "1") != "1" or degrees.get("cp", "1") != "1"
        # FSDP keeps the weights of a pipeline unless told otherwise (distributed/fsdp.py).
        run.mesh["zero"] = "0" if not shards else "3" if degrees.get("pp", "1") == "1" else "2"
        if degrees.get("tp", "1") != "1":
            run.mesh["sequence_parallel"] = True
    if match := _LOADS.search(text):
        local, run.options["batch"], run.options["seq"] = match.groups()
        if degrees.get("pp", "1") == "1":
            run.mesh["micro_batch"] = local
    if degrees or match:
        kind = match[1].lower() if (match := _CHECKPOINTING.search(text)) else "none"
        run.mesh["recompute"] = kind if kind in RECOMPUTE else "none"
        if kind not in RECOMPUTE:
            run.notes.append(
                f"{kind} activation checkpointing: what it recomputes is not costed; a step without it is predicted"
            )
    if match := _MODEL.search(text):
        found.model = transformer_called(f"{match[1]}-{match[2]}")
    if match := _DEVICE.search(text):
        found.device = re.sub(r"\s*\(\d+\)$", "", match[1])
    return found


# -- DeepSpeed, Hugging Face ------------------------------------------------------------------------------------------------

_LONGEST_CONFIG = 1 << 20


def _deepspeed(path: Path, text: str) -> LoggedRun:
    found = LoggedRun()
    if match := re.search(r"\bjson = (?=\{)", text):
        try:
            content, _ = json.JSONDecoder().raw_decode(text[match.end() : match.end() + _LONGEST_CONFIG])
        except (ValueError, RecursionError):
            found.run.notes.append("the configuration that the log prints cannot be read, and is left out")
        else:
            found.run = deepspeed.run_of(path, content)
    if match := re.search(r"\bworld_size \.{2,} (\d+)", text):
        found.run.options["gpus"] = match[1]
    return found


def _hugging_face(path: Path, text: str) -> LoggedRun:  # noqa: ARG001 - every reader has both
    found = LoggedRun()
    labels = {
        "total": r"Total train batch size \([^)]*\) = ([\d,]+)",
        "each": r"Instantaneous batch size per device = ([\d,]+)",
        "accumulated": r"Gradient Accumulation steps = ([\d,]+)",
    }
    words = {name: match[1].replace(",", "") for name, label in labels.items() if (match := re.search(label, text))}
    if "total" in words:
        found.run.options["batch"] = words["total"]
    if "each" in words:
        found.run.mesh["micro_batch"] = words["each"]
    if len(words) == len(labels):
        replicas, rest = divmod(int(words["total"]), int(words["each"]) * int(words["accumulated"]) or 1)
        if not rest:
            found.run.options["gpus"] = str(replicas)
    return found
