"""Answers made by hand, so that reports are tested without a search."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costmodel.layerwise.plan import LAYERWISE_FIGURES, Plan, Split
from costmodel.network.graph import Graph
from planner.cli import run
from planner.core.answer import Answer, Assumption, Estimate, LayerCost, Proof, RankedPlan, Setting
from planner.core.errors import InputFileError
from planner.core.request import Request
from planner.files.documents import Document
from planner.files.plan_file import read_plan
from planner.importers.networks import load_model
from planner.question.resolve import resolve
from planner.schema.plan import PlanDocument
from planner.spaces.layers.space import LayerwisePlanSpace, layerwise_space

GIB = 2**30


@pytest.fixture
def answer(said: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command that must succeed; its stdout."""
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: said(*arguments)[0]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run a command that must exit with a code; its stdout and stderr."""

    def ask(*arguments: object, code: int = 0) -> tuple[str, str]:
        found = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert found == code, err
        return out, err

    return ask


@pytest.fixture
def fails(said: Callable[..., tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command that must fail; its message."""

    def ask(*arguments: object, code: int = 2) -> str:
        capsys.readouterr()  # what commands before it said
        out, err = said(*arguments, code=code)
        assert out == "", err
        assert "Traceback" not in err
        assert "internal error" not in err
        return err

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
        return json.loads(answer(*command.split(), "--json"))

    return ask


@pytest.fixture
def document(answer: Any) -> Any:
    """Run a command that must succeed, given as one text; its answer as data."""
    return _in_json(answer)


@pytest.fixture
def known_document(known_answer: Any) -> Any:
    """As ``document``, answered once however many tests ask."""
    return _in_json(known_answer)


def edited(path: Path, old: str, new: str) -> Path:
    """The file, with a text that stands in it once replaced."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in\n{text}"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def problems_of_plan(path: Path, plan_of: Callable[[PlanDocument, Document], object]) -> list[str]:
    """What is wrong with a plan file that its space reads by ``plan_of``."""

    def read() -> None:
        loaded = read_plan(path)
        plan_of(loaded.content, loaded.document)

    with pytest.raises(InputFileError) as caught:
        read()
    return [str(problem) for problem in caught.value.problems]


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


def changed(ranked: RankedPlan, changes: dict[str, Any]) -> RankedPlan:
    """The same plan with other fields and figures; its score is its step time."""
    figures = {**ranked.figures, **{name: changes.pop(name) for name in list(changes) if name in ranked.declared}}
    return dataclasses.replace(ranked, **{"figures": figures, "score": figures["step_time_s"], **changes})


@pytest.fixture(scope="session")
def make_ranked(hybrid_plan: Plan) -> Callable[..., RankedPlan]:
    def make(**changes: Any) -> RankedPlan:
        ranked = RankedPlan(
            rank=1,
            plan=hybrid_plan,
            family="hybrid",
            summary="conv1-conv5: data x16, fc6-fc8: channels x16, ring",
            workers=16,
            bottleneck="memory bandwidth",
            declared=LAYERWISE_FIGURES,
            score=0.004,
            figures={
                "step_time_s": 0.004,
                "throughput_samples_per_s": 32000.0,
                "memory_bytes_per_gpu": 9.1 * GIB,
                "exposed_communication_s": 0.0009,
                "memory_capacity_bytes": 80.0 * GIB,
                "gpu_memory_bytes": 80.0 * GIB,
                "speedup": 12.0,
                "efficiency": 0.75,
                "compute_s": 0.003,
                "update_s": 0.0001,
                "reshard_s": 0.0005,
                "exposed_exchange_s": 0.0004,
                "bubble_s": 0.0,
                "exchange_s": 0.001,
                "money_per_step": None,
                "energy_per_step_j": None,
            },
        )
        return changed(ranked, changes)

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
def layer_space(request_16: Request) -> LayerwisePlanSpace:
    return layerwise_space(resolve(request_16))


@pytest.fixture(scope="session")
def make_result(
    make_ranked: Callable[..., RankedPlan], setting: Setting, layer_space: LayerwisePlanSpace
) -> Callable[..., Answer]:
    plans = (
        make_ranked(),
        make_ranked(rank=2, family="mixed", summary="3 layers data x16, 3 layers data x4 channels x4, 2 otherwise, ring+tree",
                    step_time_s=0.00412345, speedup=11.64, efficiency=0.7275, gap=0.0308625, bottleneck="gradient exchange"),
        make_ranked(rank=3, family="data", summary="data x16, hierarchical", step_time_s=0.0123, speedup=None, efficiency=None,
                    gap=2.075, memory_bytes_per_gpu=0.31 * GIB, bottleneck="gradient exchange"),
        make_ranked(rank=4, family="pipeline", summary="4 stages: conv1-conv2 x8 | conv3 x4 | conv4-pool5 x2 | fc6-softmax x2, ring, "
                    "16 micro-batches", step_time_s=1.25, gap=311.5, throughput_samples_per_s=102.4, bottleneck="pipeline bubble"),
    )  # fmt: skip

    def make(**changes: Any) -> Answer:
        result = Answer(
            space=layer_space,
            setting=setting,
            objective="step_time",
            plans=plans,
            proof=Proof(
                proven_optimal=True,
                proven_top=True,
                bound_s=0.004,
                gap=0.0,
                space_size=12345678901234567890123,
                searched={"uniform plans enumerated": 1234, "worker counts solved exactly": 16},
                wall_s=0.4321,
                solver="elimination, program",
            ),
            assumptions=(
                Assumption(name="cluster", value="dgx-h100", source="default"),
                Assumption(name="global batch", value="128", source="model file"),
            ),
            free_layers=("data", "dropout6"),
            baselines={
                "data_parallel": make_ranked(workers=8, step_time_s=0.005, family="data", summary="data x8, ring"),
                "data_parallel_all": make_ranked(step_time_s=0.006, family="data", summary="data x16, ring"),
            },
            notes=("a note",),
        )
        return changed_answer(result, changes)

    return make


def about(answer: Answer, request: Request) -> Answer:
    """The same answer to another question."""
    space: Any = answer.space
    resolved = dataclasses.replace(space.resolved, request=request)
    return dataclasses.replace(answer, space=dataclasses.replace(space, resolved=resolved))


def changed_answer(result: Answer, changes: dict[str, Any]) -> Answer:
    """The same answer with other fields, another objective, other parts of its proof and other baselines."""
    if "objective" in changes:
        result = about(result, dataclasses.replace(result.space.resolved.request, objective=changes["objective"]))
    of_proof = {name: changes.pop(name) for name in list(changes) if hasattr(result.proof, name)}
    baselines = {name: changes.pop(name) for name in list(changes) if name in result.baselines}
    proof = dataclasses.replace(result.proof, **of_proof)
    return dataclasses.replace(result, proof=proof, baselines={**result.baselines, **baselines}, **changes)


@pytest.fixture(scope="session")
def breakdown(
    alexnet: Graph, make_ranked: Callable[..., RankedPlan], setting: Setting, layer_space: LayerwisePlanSpace
) -> Estimate:
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
        space=layer_space,
        setting=setting,
        objective="step_time",
        ranked=make_ranked(step_time_s=0.005, gap=0.25),
        tables={"layers": layers},
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
