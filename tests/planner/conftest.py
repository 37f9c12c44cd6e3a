"""Answers made by hand, so that reports are tested without a search."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from costmodel.layerwise.plan import Plan
from costmodel.layerwise.splits import Split
from costmodel.network.graph import Graph
from planner.api.results import SearchResult
from planner.cli import run
from planner.core.answer import Assumption, Estimate, LayerCost, RankedPlan, Setting
from planner.core.request import Request
from planner.files.loading import load_model

GIB = 2**30


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command that must succeed; its stdout."""
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def ask(*arguments: str) -> str:
        code = run(list(arguments))
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return ask


@pytest.fixture(scope="session")
def _answers() -> dict[tuple[str, ...], str]:
    return {}


@pytest.fixture
def known_answer(answer: Any, _answers: dict[tuple[str, ...], str]) -> Any:
    """As ``answer``, for questions that several tests ask beside what they are about: each is answered once."""

    def ask(*arguments: str) -> str:
        if arguments not in _answers:
            _answers[arguments] = answer(*arguments)
        return _answers[arguments]

    return ask


def _in_json(answer: Any) -> Callable[[str], dict[str, Any]]:
    def ask(command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(answer(*command.split(), "--json"))
        return found

    return ask


@pytest.fixture
def document(answer: Any) -> Any:
    """Run a command that must succeed, given as one text; its answer as data."""
    return _in_json(answer)


@pytest.fixture
def known_document(known_answer: Any) -> Any:
    """As ``document``, answered once however many tests ask."""
    return _in_json(known_answer)


@pytest.fixture(scope="session")
def alexnet() -> Graph:
    return load_model("alexnet").graph


@pytest.fixture(scope="session")
def hybrid_plan(alexnet: Graph) -> Plan:
    """Convolutions by batch, fully connected layers by output channels, on 16 workers."""
    fully = [layer.name.startswith(("fc", "dropout", "softmax")) for layer in alexnet.layers]
    weighted = [layer.weight_count > 0 for layer in alexnet.layers]
    return Plan(
        workers=16,
        num_micro_batches=1,
        splits=tuple(Split(out_channels=16) if by_channels else Split(batch=16) for by_channels in fully),
        collectives=tuple("ring" if w and not f else None for w, f in zip(weighted, fully, strict=True)),
    )


@pytest.fixture(scope="session")
def make_ranked(hybrid_plan: Plan) -> Callable[..., RankedPlan]:
    def make(**changes: object) -> RankedPlan:
        ranked = RankedPlan(
            rank=1,
            plan=hybrid_plan,
            family="hybrid",
            summary="conv1-conv5: data x16, fc6-fc8: channels x16, ring",
            workers=16,
            step_time_s=0.004,
            throughput_samples_per_s=32000.0,
            speedup=12.0,
            efficiency=0.75,
            memory_bytes_per_gpu=9.1 * GIB,
            memory_capacity_bytes=80.0 * GIB,
            compute_s=0.003,
            update_s=0.0001,
            reshard_s=0.0005,
            exposed_exchange_s=0.0004,
            bubble_s=0.0,
            exchange_s=0.001,
            exposed_communication_s=0.0009,
            bottleneck="memory bandwidth",
            gap=0.0,
        )
        return dataclasses.replace(ranked, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def request_16() -> Request:
    return Request(model="alexnet", gpus=16, command_line="planner optimize alexnet --gpus 16")


@pytest.fixture(scope="session")
def setting() -> Setting:
    return Setting(
        model="alexnet",
        cluster="dgx-h100",
        device="h100-sxm",
        gpus=16,
        global_batch=128,
        precision="bf16",
        optimizer="momentum",
        mode="training",
        cost_model="roofline",
        memory_capacity_bytes=80.0 * GIB,
        inputs={"model": "a" * 64, "cluster": "b" * 64, "device": "c" * 64},
        command_line="planner optimize alexnet --gpus 16",
    )


@pytest.fixture(scope="session")
def make_result(make_ranked: Callable[..., RankedPlan], setting: Setting) -> Callable[..., SearchResult]:
    plans = (
        make_ranked(),
        make_ranked(rank=2, family="mixed", summary="3 layers data x16, 3 layers data x4 channels x4, 2 otherwise, ring+tree",
                    step_time_s=0.00412345, speedup=11.64, efficiency=0.7275, gap=0.0308625, bottleneck="gradient exchange"),
        make_ranked(rank=3, family="data", summary="data x16, hierarchical", step_time_s=0.0123, speedup=None, efficiency=None,
                    gap=2.075, memory_bytes_per_gpu=0.31 * GIB, bottleneck="gradient exchange"),
        make_ranked(rank=4, family="pipeline", summary="4 stages: conv1-conv2 x8 | conv3 x4 | conv4-pool5 x2 | fc6-softmax x2, ring, "
                    "16 micro-batches", step_time_s=1.25, gap=311.5, throughput_samples_per_s=102.4, bottleneck="pipeline bubble"),
    )  # fmt: skip

    def make(**changes: object) -> SearchResult:
        result = SearchResult(
            setting=setting,
            plans=plans,
            proven_optimal=True,
            proven_top=True,
            bound_s=0.004,
            gap=0.0,
            space_size=12345678901234567890123,
            searched={"uniform plans enumerated": 1234, "worker counts solved exactly": 16},
            wall_s=0.4321,
            assumptions=(
                Assumption(name="cluster", value="dgx-h100", source="default"),
                Assumption(name="global batch", value="128", source="model file"),
            ),
            free_layers=("data", "dropout6"),
            data_parallel=make_ranked(workers=8, step_time_s=0.005, family="data", summary="data x8, ring"),
            data_parallel_all=make_ranked(step_time_s=0.006, family="data", summary="data x16, ring"),
            notes=("a note",),
            solver="elimination, program",
        )
        return dataclasses.replace(result, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def breakdown(alexnet: Graph, make_ranked: Callable[..., RankedPlan], setting: Setting) -> Estimate:
    layers = tuple(
        LayerCost(
            name=layer.name,
            kind=layer.kind,
            split="data x16",
            forward_s=1e-5 * i,
            backward_input_s=1.5e-5 * i,
            backward_weight_s=1e-5 * i,
            update_s=1e-7 if layer.weight_count else 0.0,
            reshard_s=1e-6 if layer.name == "fc6" else 0.0,
            exchange_s=2e-5 if layer.weight_count else 0.0,
            exposed_exchange_s=1e-6 if layer.name == "conv1" else 0.0,
            collective="ring" if layer.weight_count else "",
            group=16 if layer.weight_count else 1,
            flops=1e9 * i,
            weight_bytes=4.0 * layer.weight_count,
            memory_bytes=1e6 * i,
            output_shape=(128, *layer.output_shape),
            algorithms=("gemm", "gemm", "fft"),
            is_free=layer.name == "data",
        )
        for i, layer in enumerate(alexnet.layers)
    )
    return Estimate(
        setting=setting,
        ranked=make_ranked(step_time_s=0.005, gap=0.25),
        layers=layers,
        best=make_ranked(),
        comparison=(
            ("exposed gradient exchange", 0.0014, 0.0004),
            ("compute", 0.003, 0.003),
            ("pipeline bubble", 0.0, 0.0),
        ),
        assumptions=(Assumption(name="cluster", value="dgx-h100", source="default"),),
        free_layers=("data",),
        notes=(),
    )
