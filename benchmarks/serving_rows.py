"""Published figures of serving engines, as the error model sees them: predicted, with the effect of each constant.

serving_figures.csv: one line per network, degrees and lengths, a column per kind of GPU. Sources, all with weights in fp8 (fp16 on A100):

- TensorRT-LLM 0.17, 0.20 and 1.0 (NVIDIA/TensorRT-LLM, docs/source/performance/perf-overview.md of these releases): output tokens/s of some
  thousand requests at once, cache in fp8; from 0.20 with PyTorch as its backend. Mixtures of 1.0 run with attention on replicas that share
  experts (enable_attention_dp). 95 % of the memory that weights leave free are cache, up to 4,096 sequences (tensorrt_llm/bench/build/
  tuning.py). DeepSeek-R1 with 128 sequences per replica and a cache in bf16 is of blogs/Best_perf_practice_on_DeepSeek-R1.
- TensorRT-LLM 0.14 (the same page): mean time between tokens under a light load, in bf16, of which what is served at a time follows
  by Little's law from requests per second.
- TensorRT-LLM 0.9 (docs/source/performance/perf-overview.md) and 0.5 (performance.md of release 0.6.1): tokens/s per GPU of a batch that
  starts and ends together, cache in fp8, and time to the first token of one prompt. Mixtral of 0.9 on A100 is left out: it was faster than
  its weights in fp16 can be read.
- vLLM 0.10 on MI300X (ROCm/vllm, docs/dev-docker/README.md): output tokens/s of some thousand prompts at once, cache in fp8, and time of a
  batch of requests, cache in fp16.

Runs are short: where a replica holds half of the requests or more, the last ones run beside empty places. The time of a run is that of
whole cycles of a full server, and one of as many sequences as are left.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from interval_rows import Rows

from costmodel.precision import PRECISIONS
from costmodel.serving.model import SERVING_CONSTANTS, ServingModel
from costmodel.serving.plan import ServingBatch, ServingPlan
from costmodel.serving.workload import ServingAssumptions, ServingWorkload
from costmodel.uncertainty.constants import CONSTANTS
from planner.core.request import Request
from planner.files.loading import load_cluster, load_device
from planner.importers.networks import load_model
from planner.spaces.serving.bars import serving_candidates, serving_kind
from planner.uncertainty.bars import Knowledge, serving_knowledge
from strategies.mesh.settings import Bounds
from strategies.serving.search import ServingSettings, search_serving

FIGURES = Path(__file__).resolve().with_name("serving_figures.csv")
# Kind of GPU -> cluster of its machine.
MACHINES = {
    "h200": "dgx-h100",
    "h100-sxm": "dgx-h100",
    "gh200": "dgx-h100",
    "l40s": "pcie4-node",
    "a100-80gb": "dgx-a100",
    "mi300x": "mi300x-node",
}
# Share of the memory that may be filled: --kv_cache_free_gpu_mem_fraction 0.95 and --gpu-memory-utilization 0.9 in the pages' commands.
FILLED = {"vLLM 0.10": 0.9}
# Sequences that a replica may hold at most.
MOST = 4096
OF_QUANTITY = {
    "output_tokens_per_s": "token_s",
    "batch_tokens_per_s_per_gpu": "token_s",
    "request_s": "token_s",
    "tpot_s": "tpot_s",
    "ttft_s": "ttft_s",
}
# Quantities that grow with speed.
_RATES = frozenset({"output_tokens_per_s", "batch_tokens_per_s_per_gpu"})
# Networks whose cache the engine kept in 16 bits though their weights are in fp8.
_WIDE_CACHE = frozenset({"deepseek-v3"})
# A window that the engine did not use: its rate is that of llama3-8b, which has none.
WITHOUT_WINDOW = ("mistral-7b", 20000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published number."""

    source: str
    quantity: str
    model: str
    device: str
    tp: int
    ep: int
    batch: int | None
    requests: int | None
    prompt: int
    output: int
    value: float


def read_figures() -> Iterator[Figure]:
    """Every number of the table that is of what is predicted."""
    with FIGURES.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if (row["model"], int(row["prompt"])) == WITHOUT_WINDOW:
                continue
            for device in MACHINES:
                if row[device]:
                    yield _figure(row, device)


def _figure(row: Mapping[str, str], device: str) -> Figure:
    return Figure(
        source=row["source"],
        quantity=row["quantity"],
        model=row["model"],
        device=device,
        tp=int(row["tp"]),
        ep=int(row["ep"]),
        batch=int(row["batch"]) if row["batch"] else None,
        requests=int(row["requests"]) if row["requests"] else None,
        prompt=int(row["prompt"]),
        output=int(row["output"]),
        value=float(row[device]),
    )


@cache
def _graph(name: str):  # type: ignore[no-untyped-def]
    return load_model(name).graph


def served(figure: Figure) -> ServingModel:
    """The cost model of a figure's question."""
    weights = PRECISIONS["bf16" if figure.quantity == "tpot_s" else "fp16" if figure.device == "a100-80gb" else "fp8"]
    in_fp8 = weights.name == "fp8" and figure.quantity != "request_s" and figure.model not in _WIDE_CACHE
    workload = ServingWorkload(
        graph=_graph(figure.model),
        prompt_tokens=figure.prompt,
        output_tokens=figure.output,
        precision=weights,
        kv_bytes=1.0 if in_fp8 else 2.0,
        load="backlog",
    )
    cluster = load_cluster(MACHINES[figure.device]).cluster.with_device(load_device(figure.device).device)
    filled = ServingAssumptions(memory_utilisation=FILLED.get(figure.source, 0.95))
    return ServingModel.build(workload, cluster, filled)


def plan_of(figure: Figure, model: ServingModel) -> ServingPlan:
    """The plan that was measured: of a rate, what holds and reads as many prompts as is best.

    Where the batch of replicas that share experts is stated, prompts come one by one beside the decoding (--max_num_tokens 1151).
    """
    if figure.batch is not None and figure.requests is not None:
        return ServingPlan(
            tp=figure.tp, ep=figure.ep, dp=figure.ep, max_batch=figure.batch, prefill_chunk=figure.prompt
        )
    if figure.batch is not None:
        together = 1 if figure.quantity == "tpot_s" else figure.batch
        return ServingPlan(tp=figure.tp, max_batch=figure.batch, prefill_batch=together)
    assert figure.requests is not None, "a rate is of some number of requests"
    degrees = {
        "tp": Bounds(values=(figure.tp,)),
        "ep": Bounds(values=(figure.ep,)),
        "pp": Bounds(values=(1,)),
        "max_batch": Bounds(low=1, high=min(MOST, -(-figure.requests // figure.ep))),
    }
    workers = figure.tp * figure.ep
    settings = ServingSettings(max_workers=workers, capacity_bytes=model.capacity_bytes, degrees=degrees, top=1)
    return search_serving(model, settings).candidates[0].plan


def run_over_cycles(figure: Figure, model: ServingModel, plan: ServingPlan) -> float:
    """Time of a run of so many requests over that of a server that stays full."""
    if figure.requests is None:
        return 1.0
    each = -(-figure.requests // plan.dp)
    whole, left = divmod(each, plan.max_batch)
    few = replace(plan, max_batch=max(left, 1), prefill_batch=min(plan.prefill_batch, max(left, 1)))
    full_s, last_s = model.times(ServingBatch.from_plans([plan, few]))["request_s"].tolist()
    return float((whole * full_s + (last_s if left else 0.0)) / (each / plan.max_batch * full_s))


def figure_rows() -> Rows:
    """All figures; those of one network, machine and lengths that differ in degrees are one question, per GPU."""
    known = serving_knowledge(Request(model="", mode="inference"), "serving", names=SERVING_CONSTANTS)
    columns: dict[str, list[object]] = {name: [] for name in Rows.__dataclass_fields__}
    questions: dict[object, int] = {}
    for figure in read_figures():
        model = served(figure)
        for name, value in _row(figure, model, plan_of(figure, model), known).items():
            columns[name].append(value)
        key = (figure.source, figure.quantity, figure.model, figure.device, figure.prompt, figure.output, figure.batch)
        columns["question"].append(questions.setdefault(key, len(questions)))
    return Rows(**{name: np.array(values) for name, values in columns.items()})


def _row(figure: Figure, model: ServingModel, plan: ServingPlan, known: Knowledge) -> dict[str, object]:
    candidates = serving_candidates(model, [plan], known)[OF_QUANTITY[figure.quantity]]
    effects = dict(zip(SERVING_CONSTANTS, candidates.effects[0].tolist(), strict=True))
    per_gpu = plan.workers if figure.quantity in _RATES else 1
    predicted_s = float(candidates.step_time_s[0]) * run_over_cycles(figure, model, plan)
    if figure.quantity == "request_s":
        predicted_s *= plan.concurrency * figure.output
    measured_s = 1.0 / figure.value if figure.quantity in _RATES else figure.value
    if figure.quantity == "batch_tokens_per_s_per_gpu":
        measured_s /= plan.workers
    return {
        "file": figure.source,
        "kind": serving_kind(model.workload.graph, sharing=figure.ep > 1),
        "group": figure.model,
        "device": figure.device,
        "predicted_s": predicted_s * per_gpu,
        "measured_s": measured_s * per_gpu,
        "shares": candidates.shares[0],
        "effects": [effects.get(name, 0.0) for name in CONSTANTS],
        "coordinates": candidates.coordinates[0],
    }
