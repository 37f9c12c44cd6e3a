"""The commands that are recorded: answers, bad input, exports. One command per line, as it is typed behind ``planner``.

Every job runs in a folder of its own, which holds the files of `FILES` that its commands name.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple


class Job(NamedTuple):
    """Commands that run one after the other in one folder."""

    name: str
    commands: tuple[str, ...]


# One job per paragraph. Numbers of GPUs are such that a search ends by itself, far from a limit of the clock.
_ANSWERS = """
optimize alexnet --gpus 16 --json

optimize alexnet --gpus 8 --top 10 --diverse --json

optimize alexnet --gpus 8 --cost-model paleo --cluster paleo-ethernet20 --json

optimize alexnet --gpus 4 --cost-model paleo --cluster paleo-pcie3 --ppp-comp 0.6 --ppp-comm 0.7 --paleo-pipeline --json

estimate vgg16 --gpus 4 --cost-model paleo --cluster paleo-infiniband --family data --json

scale alexnet --gpus 1,2,4,8,16 --cost-model paleo --cluster paleo-ethernet20 --weak --json

scale alexnet --gpus 1,2,4,8 --cost-model paleo --cluster paleo-ethernet20 --family hybrid --json

optimize vgg16 --gpus 16 --cluster dgx1-v100 --batch 512 --json

optimize vgg16 --gpus 8 --cluster ethernet-10g --objective energy --json

optimize vgg16 --gpus 8 --fix conv*:batch --fix fc*:out_channels --json

optimize vgg16 --gpus 8 --collective ring --json

optimize vgg16 --gpus 4 --memory-limit "6 GiB" --batch 256 --json

optimize vgg16 --gpus 8 --family pipeline --json

optimize inception_v3 --gpus 16 --json

optimize inception_v3 --gpus 8 --cluster k80-10gbe --precision fp32 --objective money --price 0.9 --json

optimize resnet152 --gpus 16 --json

optimize resnet50 --gpus 32 --cluster aws-p3 --objective gpu_hours --json

optimize resnet50 --gpus 8 --mode inference --json

optimize gnmt --gpus 8 --cluster dgx1-v100 --json

estimate gnmt --gpus 8 --family data --json

estimate resnet152 --gpus 8 --family data --json

estimate alexnet --gpus 8 --family model --json

estimate alexnet --gpus 1 --json

estimate mlp --gpus 4 --family data --micro-batches 2 --json

estimate resnet50 --gpus 8 --family data --price 2.5 --power "700 W,100 W" --json

explain alexnet --gpus 8 --json

explain vgg16 --gpus 8 --family data --json

explain alexnet --gpus 8 --sensitivity --json

explain inception_v3 --gpus 4 --json

explain alexnet --gpus 1 --cost-model paleo --cluster paleo-ethernet20 --json

optimize alexnet --gpus 8 --solver program --json

optimize alexnet --gpus 8 --solver elimination --json

scale alexnet --gpus 1..16 --json

scale resnet50 --gpus 1,2,4,8 --weak --epochs 90 --samples 1.28M --json

scale vgg16 --gpus 1,2,4 --family best --json

optimize llama3-8b --gpus 16 --json

optimize llama3-8b --gpus 64 --cluster dgx-a100 --batch 256 --seq 4096 --top 8 --no-diverse --json

optimize llama3-8b --gpus 8 --lora-rank 16 --json

optimize llama3-8b --gpus 8 --objective mfu --precision fp8 --json

optimize llama3-8b --gpus 16 --objective energy --json

optimize llama3-8b --gpus 16 --objective money --price 3 --json

optimize llama3-8b --gpus 4 --cluster pcie4-node --batch 64 --seq 2048 --json

optimize llama3-8b --gpus 2 --batch 16 --offload optimizer --json

optimize llama3-8b --gpus 16 --zero 3 --pp 1 --json

optimize llama3-70b --gpus 64 --batch 128 --json

optimize llama3-70b --gpus 128 --tp 8 --pp 2..8 --schedule interleaved --json

optimize llama3-70b --gpus 256 --cp 2,4 --seq 32768 --batch 64 --json

optimize llama3-405b --gpus 512 --cluster dgx-b200 --batch 512 --json

optimize mixtral-8x7b --gpus 32 --json

optimize deepseek-v3 --gpus 256 --cluster gb200-nvl72 --json

optimize qwen3-30b-a3b --gpus 32 --cluster mi300x-node --json

optimize bert-large --gpus 16 --cluster dgx1-v100 --json

optimize bert-large --gpus 4 --space layers --json

optimize vit-l --gpus 16 --cluster tpu-v4-pod --json

optimize t5-large --gpus 8 --json

optimize gpt3-175b --gpus 256 --cluster dgx-a100 --assume dp_overlap=0.5 --json

estimate llama3-70b --tp 8 --pp 4 --gpus 64 --batch 64 --json

estimate llama3-8b --gpus 16 --tp 2 --pp 2 --batch 64 --schedule gpipe --recompute full --json

estimate llama3-8b --gpus 16 --tp 2 --pp 4 --recompute full --recompute-blocks 3 --batch 64 --json

estimate mixtral-8x7b --gpus 16 --ep 8 --zero 1 --json

estimate bert-large --gpus 8 --json

explain llama3-8b --gpus 16 --json

explain llama3-8b --gpus 16 --tp 4 --dp 4 --json

explain llama3-8b --gpus 16 --sensitivity --json

explain mixtral-8x7b --gpus 16 --json

scale llama3-8b --gpus 8,16,32 --json

scale bert-large --gpus 1,2,4,8 --weak --json

optimize llama3-8b --mode inference --gpus 8 --json

optimize llama3-70b --mode inference --gpus 8 --precision fp8 --max-ttft 2s --max-tpot 50ms --json

optimize llama3-70b --mode inference --gpus 16 --objective latency --prompt 4096 --output-tokens 512 --json

optimize mixtral-8x7b --mode inference --gpus 8 --cluster dgx-a100 --objective tokens_per_s_per_gpu --json

optimize deepseek-v3 --mode inference --gpus 16 --precision fp8 --kv-precision fp8 --json

estimate llama3-8b --mode inference --gpus 1 --max-batch 32 --prefill-chunk 512 --json

explain llama3-8b --mode inference --gpus 4 --json

explain llama3-8b --mode inference --gpus 4 --sensitivity --json

estimate bert-large --mode inference --gpus 2 --json

optimize llama3-8b --cluster a100-v100 --gpus 24 --batch 48 --json

optimize llama3-8b --cluster a100-v100 --gpus 32 --batch 64 --objective money --price 2 --json

optimize bert-large --cluster a100-v100 --gpus 24 --json

optimize llama3-70b --cluster h100-a100 --gpus 48 --batch 96 --json

explain llama3-8b --cluster a100-v100 --gpus 24 --batch 48 --json

place alexnet --cluster dgx1-v100 --devices 4 --batch 16 --json

place alexnet --cluster dgx1-v100 --devices 3 --batch 16 --mode inference --non-contiguous --json

place alexnet --cluster dgx1-v100 --devices 2 --objective latency --mode inference --json

place alexnet --cluster dgx1-v100 --devices 2 --objective latency --subgraphs 2 --mode inference --json

place vgg16 --cluster dgx1-v100 --devices 4 --contiguity convex --json

place vgg16 --cluster dgx1-v100 --devices 4 --method pipedream --json

place vgg16 --cluster dgx1-v100 --devices 4 --method greedy --json

place vgg16 --cluster dgx1-v100 --devices 4 --method local-search --seed 3 --json

place bert-base --cluster dgx1-v100 --devices 4 --json --export placement.yaml
place check bert-base placement.yaml --cluster dgx1-v100 --devices 4 --json

place alexnet --cluster dgx1-v100 --devices 2 --export-workload graph.json --json
place graph.json --devices 2 --cpus 1 --json

size llama3-8b --tokens 100B --days 30 --budget 500k --cluster a100,h100 --batch 256 --seq 4096 --max-gpus 128 --json

size resnet50 --samples 1.28M --epochs 90 --days 1 --cluster dgx1-v100 --batch 1024 --max-gpus 32 --json

size llama3-70b --tokens 1T --days 1 --cluster h100 --batch 1024 --max-gpus 64 --json

sweep alexnet --gpus 1..8 --batch 128,256 --json

sweep llama3-8b --gpus 8,16 --cluster a100,h100 --batch 128 --seq 4096 --json

sweep llama3-8b --gpus 4,8 --mode inference --json

optimize llama3-8b --gpus 16 --batch 64 --export a.yaml --json
estimate llama3-8b --gpus 16 --batch 64 --tp 8 --export b.yaml --json
compare a.yaml b.yaml --json
compare b.yaml --best --json
estimate --plan b.yaml --cluster dgx-a100 --json
explain --plan b.yaml --json

optimize alexnet --gpus 8 --export a.yaml --json
estimate alexnet --gpus 8 --family data --export b.yaml --json
compare a.yaml b.yaml --json
estimate --plan a.yaml --json
estimate --plan a.yaml --precision fp32 --json

optimize llama3-8b --mode inference --gpus 4 --export a.yaml --json
estimate llama3-8b --mode inference --gpus 4 --tp 4 --max-batch 16 --export b.yaml --json
compare a.yaml b.yaml --json
explain --plan b.yaml --json

optimize bert-large --cluster a100-v100 --gpus 16 --export a.yaml --json
estimate --plan a.yaml --json
compare a.yaml --best --json

compare --from megatron megatron.sh --model llama3-8b --gpus 16 --batch 64 --json

estimate --from deepspeed ds.json llama3-8b --gpus 16 --json

optimize tiny.yaml --gpus 4 --json

optimize tiny.yaml --gpus 4 --cluster mine.yaml --json

import config.json --json

list models --json

list devices --json

list clusters --json

list collectives --json

list importers --json

list exporters --json

list calibrations --json

validate runs.csv --json

optimize llama3-405b --gpus 8 --json

optimize llama3-70b --gpus 8 --batch 8 --memory-limit "10 GiB" --json

optimize vgg16 --gpus 2 --memory-limit "300 MiB" --json

optimize llama3-8b --mode inference --gpus 8 --max-ttft 1us --json

optimize llama3-70b --mode inference --gpus 1 --json

optimize llama3-70b --cluster a100-v100 --gpus 4 --json

optimize llama3-8b --gpus 16 --tp 8 --pp 4 --dp 2 --json

optimize llama3-8b --gpus 8 --pp 1 --schedule interleaved --json

optimize llama3-8b --gpus 8 --zero 3 --dp-shard 1 --json

optimize llama3-8b --gpus 8 --recompute none --memory-limit "8 GiB" --tp 1 --json

optimize mixtral-8x7b --gpus 8 --ep 3 --json

optimize llama3-8b --mode inference --gpus 4 --tp 4 --pp 4 --json

optimize alexnet --gpus 4 --family data --fix fc*:out_channels --json

optimize llama3-8b --gpus 8 --max-ttft 1s --json

optimize llama3-8b --cluster a100-v100 --gpus 16 --cp 2 --json

place alexnet --cluster dgx1-v100 --devices 2 --memory 1MB --json

estimate llama3-8b --gpus 8 --batch 7 --dp 2 --json
"""

_BAD = """
optimize

optimize alexnet

optimize alexnet --gpus 0

optimize alexnet --gpus four

optimize alexnet --gpus 1_000

optimize alexnet --gpus 1000001

optimize alexnet --gpus 4 --batch 1.5

optimize alexnet --gpus 4 --cost-model palleo

optimize alexnet --gpus 4 --mode train

optimize alexnet --gpus 4 --precision bf15

optimize alexnet --gpus 4 --memory-limit 40

optimize alexnet --gpus 4 --fix conv9:batch

optimize alexnet --gpus 4 --fix conv1:depth

optimize alexnet --gpus 4 --collective rign

optimize alexnet --gpus 4 --time-limit soon

optimize alexnet --gpus 4 --gap 2

optimize alexnet --gpus 4 --tp 2

optimize alexnet --workers 8

optimize alexnett --gpus 4

optimize alexnet --gpus 4 --cluster dgx-h10

optimize alexnet --gpus 4 --device h100

optimize alexnet --gpus 4 --objective speed

optimize alexnet --gpus 4 --objective money

optimize alexnet --gpus 4 --ppp-comp 0.5

optimize missing.yaml --gpus 4

optimize llama3-8b --gpus 8 --zero 4

optimize llama3-8b --gpus 8 --seq 7 --cp 2

optimize llama3-8b --gpus 24 --tp 3

optimize llama3-8b --gpus 64 --pp 33

optimize llama3-8b --gpus 8 --assume dp_overlapp=0.5

optimize llama3-8b --gpus 8 --batch 100 --micro-batch 3

optimize llama3-8b --gpus 8 --schedule zero

optimize llama3-8b --gpus 8 --order tp-pp

optimize bert-large --gpus 8 --seq 4096

estimate vit-l --gpus 8 --cp 4

optimize llama3-8b --gpus 8 --cluster dgx-a100 --precision fp8

optimize llama3-8b --gpus 8 --lora-rank 100000

optimize llama3-8b --gpus 8 --mode inference --batch 8

optimize llama3-8b --gpus 8 --mode inference --max-tpot 1ps

optimize llama3-8b --gpus 8 --mode inference --zero 1

estimate llama3-8b --tp 8 --pp 4

estimate llama3-8b --gpus 16 --tp 2 --pp 4 --stages "9 8 8"

explan alexnet

optimize alexnet --gpus 4 --format xml

list networks

schema results

scale alexnet --gpus 1,two

sweep alexnet --gpus 8..1

size llama3-8b --days 30

place nothing.json

place alexnet

place bad_graph.json

export missing.yaml --to megatron -o run

export plan.yaml --to NeMo -o run

estimate --plan bad_plan.yaml

estimate --plan bad_mesh.yaml

estimate --plan bad_degrees.yaml

estimate --plan bad_serving.yaml

estimate --plan bad_mixed.yaml

estimate --plan plan.yaml --gpus 8

optimize bad_layers.yaml --gpus 4

optimize bad_shapes.yaml --gpus 4

optimize bad_syntax.yaml --gpus 4

optimize bad_keys.yaml --gpus 4

optimize alexnet --gpus 4 --cluster bad_cluster.yaml

optimize alexnet --gpus 4 --cluster bad_units.yaml

optimize alexnet --gpus 4 --device bad_device.yaml

optimize alexnet --gpus 4 --calibration bad_calibration.yaml

optimize bad_config.json --gpus 4

import bad_config.json

validate bad_runs.csv

validate empty.csv

validate bad_kernels.csv

compare plan.yaml

compare --from megatron bad_megatron.sh --model llama3-8b --gpus 16

estimate --from deepspeed bad_ds.json llama3-8b --gpus 16
"""

# A plan and the programs that it is written for.
_EXPORTS = {
    "estimate llama3-8b --gpus 16 --batch 64 --tp 2 --dp-shard 8 --zero 2 --micro-batch 1 --sequence-parallel": (
        "megatron megatron-bridge torchtitan torchtitan:v0.2.2 torch"
    ),
    "estimate llama3-8b --gpus 16 --batch 64 --dp-shard 16 --zero 3 --recompute full": (
        "megatron torchtitan deepspeed accelerate torch nanotron"
    ),
    "estimate llama3-70b --gpus 64 --batch 128 --tp 8 --pp 4 --vpp 5 --schedule interleaved --zero 1": (
        "megatron megatron-bridge nanotron torchtitan"
    ),
    "estimate llama3-70b --gpus 64 --batch 128 --tp 8 --pp 4 --schedule 1f1b --recompute selective": (
        "megatron megatron-bridge nanotron torchtitan torch"
    ),
    "estimate llama3-8b --gpus 16 --batch 32 --cp 4 --tp 2 --seq 32768": "megatron megatron-bridge torchtitan accelerate",
    "estimate mixtral-8x7b --gpus 32 --ep 8 --zero 1": "megatron megatron-bridge torchtitan deepspeed",
    "estimate llama3-8b --gpus 8 --lora-rank 16 --dp 8": "megatron-bridge deepspeed torch",
    "estimate bert-large --gpus 8 --dp-shard 8 --zero 2": "deepspeed accelerate torch megatron",
    "estimate gpt2-1.5b --gpus 8 --batch 64 --tp 4": "megatron nanotron torch deepspeed",
    "estimate alexnet --gpus 8 --family data": "torch deepspeed accelerate",
    "optimize alexnet --gpus 4": "torch megatron",
    "estimate resnet50 --gpus 8 --family data": "torch deepspeed accelerate torchtitan",
    "estimate llama3-70b --mode inference --gpus 8 --tp 8 --max-batch 64": "vllm megatron",
    "estimate mixtral-8x7b --mode inference --gpus 8 --tp 2 --dp 4 --ep 8": "vllm",
    "optimize bert-large --cluster a100-v100 --gpus 16": "megatron torch",
}

_NETWORK = """\
schema_version: 1
name: tiny
global_batch: 32
layers:
  - {name: data, type: input, shape: [3, 32, 32]}
  - {name: conv, type: convolution, out_channels: 8, kernel: 3, padding: same}
  - {name: fc, type: linear, out_features: 10}
"""
_CLUSTER = """\
schema_version: 1
name: mine
device: a100-80gb
levels:
  - {name: node, size: 4, bandwidth: 100 GB/s, latency: 3 us}
  - {name: network, bandwidth: 10 GB/s, latency: 5 us}
source: {}
"""
_PLAN = """\
schema_version: 1
model: llama3-8b
cluster: dgx-h100
gpus: 16
global_batch: 64
workers: 16
mesh: {tp: 2, dp_shard: 8, zero_stage: 1, micro_batch: 1, num_micro_batches: 8, sequence_parallel: true}
"""
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
_RUNS = "net,hidden,layers,heads,device,gpus,global_batch,micro_batch,tp,pp,dp,precision,seq,step_time_ms"
_RUN = "GPT,2048,24,16,a100-80gb,8,64,1"
# Files by the names that commands use.
FILES = {
    "tiny.yaml": _NETWORK,
    "mine.yaml": _CLUSTER,
    "plan.yaml": _PLAN,
    "config.json": json.dumps(_CONFIG, indent=1),
    "runs.csv": f"{_RUNS}\n{_RUN},1,1,8,bf16,2048,1900\n{_RUN},2,1,4,bf16,2048,2100\n",
    "megatron.sh": "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
    "--sequence-parallel --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 64 --bf16 "
    "--seq-length 8192 --num-layers 32\n",
    "ds.json": json.dumps(
        {
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 2},
            "bf16": {"enabled": True},
        }
    ),
    "bad_graph.json": json.dumps(
        {"maxSizePerFPGA": 100, "nodes": [{"id": 1, "cpuLatency": -1}], "edges": [{"sourceId": 1, "destId": 2}]}
    ),
    "bad_plan.yaml": _PLAN.replace("gpus: 16\n", "gpus: sixteen\n").replace("workers: 16", "worker: 16"),
    "bad_mesh.yaml": _PLAN.replace("tp: 2", "tp: 3").replace("zero_stage: 1", "zero_stage: 7"),
    "bad_degrees.yaml": _PLAN.replace("num_micro_batches: 8", "num_micro_batches: 9").replace(
        "workers: 16", "workers: 32"
    ),
    "bad_serving.yaml": _PLAN.replace("mesh:", "serving:"),
    "bad_mixed.yaml": _PLAN.replace("dgx-h100", "a100-v100").replace(
        "mesh: {", "mixed: {pipelines: [{stages: [{group: h100, blocks: 32}]}], "
    ),
    "bad_layers.yaml": _NETWORK.replace("convolution", "convolutoin").replace("kernel: 3", "kernel: -3"),
    "bad_shapes.yaml": _NETWORK.replace("[3, 32, 32]", "[3, 32]").replace("padding: same", "padding: some"),
    "bad_syntax.yaml": _NETWORK.replace("kernel: 3,", "kernel: 3"),
    "bad_keys.yaml": _NETWORK.replace("global_batch: 32", "batch: 32\nglobal_batch: -1\nname: again"),
    "bad_cluster.yaml": _CLUSTER.replace("latency: 3 us", "latency: 3")
    .replace("size: 4", "size: 0")
    .replace("device:", "devices:"),
    "bad_units.yaml": _CLUSTER.replace("100 GB/s", "100 GB").replace("5 us", "5 parsecs"),
    "bad_device.yaml": "schema_version: 1\nname: mine\nmemory: lots\npeak: {fp99: 1 TFLOP/s}\nmemory_bandwidth: 1 TB/s\nsource: {}\n",
    "bad_calibration.yaml": "schema_version: 1\nname: mine\nconstants: {no_such_constant: 1}\n",
    "bad_config.json": json.dumps({**_CONFIG, "model_type": "lama", "num_attention_heads": 33}),
    "bad_runs.csv": f"{_RUNS}\n{_RUN.replace(',8,', ',eight,')},1,1,8,bf16,2048,1900\n{_RUN.replace('80gb', '81gb')},2,1,8,bf16,2048,-5\n",
    "empty.csv": "",
    "bad_kernels.csv": "device,precision,m,n,k,time_ms\na100-80gb,bf16,-1,2,3,4\nnothing,bf16,1,2,3,4\n",
    "bad_megatron.sh": "torchrun pretrain_gpt.py --tensor-model-parallel-size 3 --pipeline-model-parallel-size two\n",
    "bad_ds.json": '{"train_batch_size": 64,\n "zero_optimization": {"stage": 9}}',
}


def _paragraphs(text: str, prefix: str) -> list[Job]:
    jobs = []
    for paragraph in text.strip().split("\n\n"):
        commands = tuple(paragraph.splitlines())
        word = re.sub(r"[^a-z0-9]+", "-", commands[0].lower()).strip("-")[:90].rstrip("-")
        jobs.append(Job(f"{prefix}/{word}", commands))
    assert len({job.name for job in jobs}) == len(jobs), "names of jobs are alike"
    return jobs


def _exports() -> list[Job]:
    jobs = []
    for question, targets in _EXPORTS.items():
        word = re.sub(r"[^a-z0-9]+", "-", question.lower())[:90].strip("-")
        commands = [f"{question} --json --export plan.yaml"]
        for target in targets.split():
            name, _, version = target.partition(":")
            commands.append(
                f"export plan.yaml --to {name} -o {target.replace(':', '-')}"
                + (f" --target-version {version}" if version else "")
            )
        jobs.append(Job(f"exports/{word}", tuple(commands)))
    return jobs


def jobs() -> list[Job]:
    """All commands, in the order in which they are recorded."""
    return [*_paragraphs(_BAD, "bad"), *_exports(), *_paragraphs(_ANSWERS, "answers")]
