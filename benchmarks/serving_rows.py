"""Published figures of serving engines, as the error model sees them: predicted, with the effect of each constant.

serving_figures.csv: one line per network, degrees and lengths, a column per kind of GPU. Sources, all with weights in fp8 (fp16 on A100):

- TensorRT-LLM 0.17 and 1.0 (NVIDIA/TensorRT-LLM, docs/source/performance/perf-overview.md of these releases): output tokens/s under maximum
  load, cache in fp8; 1.0 with PyTorch as its backend. Mixtures of 1.0 run with attention on replicas that share experts
  (enable_attention_dp). 95 % of the memory that weights leave free are cache.
- TensorRT-LLM 0.5 (docs/source/performance.md of release 0.6.1): time to the first token of one prompt.
- vLLM 0.10 on MI300X (ROCm/vllm, docs/dev-docker/README.md): output tokens/s of some thousand prompts at once, cache in fp8, and time of a
  batch of requests, cache in fp16.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from interval_rows import Rows

from costmodel.constants import CONSTANTS
from costmodel.serving.assumptions import ServingAssumptions
from costmodel.serving.model import ServingModel
from costmodel.serving.plan import ServingPlan
from costmodel.serving.variants import SERVING_CONSTANTS
from costmodel.serving.workload import WEIGHT_FORMATS, ServingWorkload
from planner.loading import load_cluster, load_device, load_model
from planner.request import Request
from planner.uncertainty.bars import Knowledge, serving_knowledge
from planner.uncertainty.serving import serving_candidates, serving_kind
from strategies.mesh.settings import Bounds
from strategies.serving.search import search_serving
from strategies.serving.settings import ServingSettings

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
# Sequences that a replica may hold: the largest of the pages' CUDA graphs that fits, and --max-num-seqs.
MOST = {"vLLM 0.10": 3200}
OF_QUANTITY = {"output_tokens_per_s": "token_s", "request_s": "token_s", "ttft_s": "ttft_s"}
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
        prompt=int(row["prompt"]),
        output=int(row["output"]),
        value=float(row[device]),
    )


@cache
def _graph(name: str):  # type: ignore[no-untyped-def]
    return load_model(name).graph


def served(figure: Figure) -> ServingModel:
    """The cost model of a figure's question."""
    weights = WEIGHT_FORMATS["fp16" if figure.device == "a100-80gb" else "fp8"]
    in_fp8 = weights.name == "fp8" and figure.quantity != "request_s"
    workload = ServingWorkload(
        graph=_graph(figure.model),
        prompt_tokens=figure.prompt,
        output_tokens=figure.output,
        weights=weights,
        kv_bytes=1.0 if in_fp8 else 2.0,
    )
    cluster = load_cluster(MACHINES[figure.device]).cluster.with_device(load_device(figure.device).device)
    filled = ServingAssumptions(memory_utilisation=FILLED.get(figure.source, 0.95))
    return ServingModel.build(workload, cluster, filled)


def plan_of(figure: Figure, model: ServingModel) -> ServingPlan:
    """The plan that was measured: of a rate, what holds and reads as many prompts as is best."""
    if figure.batch is not None:
        return ServingPlan(tp=figure.tp, max_batch=figure.batch, prefill_batch=figure.batch)
    degrees = {
        "tp": Bounds(values=(figure.tp,)),
        "ep": Bounds(values=(figure.ep,)),
        "pp": Bounds(values=(1,)),
        "max_batch": Bounds(low=1, high=MOST.get(figure.source, 2048)),
    }
    workers = figure.tp * figure.ep
    settings = ServingSettings(max_workers=workers, capacity_bytes=model.capacity_bytes, degrees=degrees, top=1)
    return search_serving(model, settings).candidates[0].plan


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
    per_gpu = plan.workers if figure.quantity == "output_tokens_per_s" else 1
    predicted_s = float(candidates.step_time_s[0]) * (
        plan.concurrency * figure.output if figure.quantity == "request_s" else 1
    )
    measured_s = 1.0 / figure.value if figure.quantity == "output_tokens_per_s" else figure.value
    return {
        "file": figure.source,
        "kind": serving_kind(model.workload.graph),
        "group": figure.model,
        "predicted_s": predicted_s * per_gpu,
        "measured_s": measured_s * per_gpu,
        "shares": candidates.shares[0],
        "effects": [effects.get(name, 0.0) for name in CONSTANTS],
        "coordinates": candidates.coordinates[0],
    }
