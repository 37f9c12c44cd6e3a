"""Plan files round-trip exactly, and an inconsistent edit names its line, its column and what is wrong."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layerwise.plan import Plan, Split, Stage, legal_splits, split_table
from costmodel.network.graph import Graph
from planner.core.answer import Answer, Assumption, Setting
from planner.core.errors import InputFileError
from planner.core.request import Request
from planner.files.documents import parse_document
from planner.files.plan_file import (
    plan_document,
    plan_text,
    read_plan,
)
from planner.files.yaml_text import yaml_text
from planner.importers.networks import load_model
from planner.schema.plan import PlanDocument
from planner.spaces.layers.plans import plan_from_document, plan_in_words
from planner.spaces.plan_question import request_from_document
from tests.cases import mostly
from tests.planner.conftest import about, edited, problems_of_plan

MakeResult = Callable[..., Answer]


def names(graph: Graph) -> list[str]:
    return [layer.name for layer in graph.layers]


@pytest.mark.parametrize(
    ("cuts", "replicas", "words"),
    [
        ((0, 3, 5, 15), (4, 4, 8), "3 stages: conv1-pool1 x4 | conv2-pool2 x4 | conv3-softmax x8"),
        (
            (0, 3, 5, 6, 7, 8, 9, 15),
            (4, 1, 1, 1, 2, 2, 1),
            "7 stages: conv1-pool1 x4 | (conv2-pool2 | conv3 | conv4) x1 each | (conv5 | pool5) x2 each | fc6-softmax x1",
        ),
    ],
)
def test_every_stage_is_named(cuts: tuple[int, ...], replicas: tuple[int, ...], words: str) -> None:
    """Many stages are grouped, and none is left out."""
    graph = load_model("alexnet").graph
    stages = tuple(Stage(first=a, last=b - 1, replicas=r) for a, b, r in zip(cuts, cuts[1:], replicas, strict=False))
    size = len(graph.layers)
    plan = Plan(
        workers=sum(replicas), num_micro_batches=2, splits=(Split(),) * size, collectives=(None,) * size, stages=stages
    )
    assert plan_in_words(graph, plan) == f"{words}, 2 micro-batches"


def test_every_split_is_counted() -> None:
    """Many runs of splits are grouped by the split, and none is left out."""
    graph = load_model("alexnet").graph
    several = [Split(batch=8), Split(out_channels=8), Split(in_channels=8), Split(height=8), Split(batch=4, height=2)]
    splits = tuple(several[n % 5] for n in range(len(graph.layers)))
    words = plan_in_words(graph, Plan(workers=8, num_micro_batches=1, splits=splits, collectives=(None,) * len(splits)))
    assert words == (
        "3 layers channels x8, 2 layers rows x8, 1 layer data x8, 1 layer in-channels x8, 1 layer data x4 rows x2"
    )


@pytest.fixture
def plan_path(new_file: Any, make_result: MakeResult) -> Path:
    document = plan_document(make_result())
    return new_file("plan.yaml", plan_text(document))


def problems_of(path: Path, graph: Graph) -> list[str]:
    """What is wrong with a plan file, as LINE:COLUMN: text."""
    found = problems_of_plan(path, lambda content, document: plan_from_document(content, graph, document))
    return [problem.removeprefix(f"{path}:") for problem in found]


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text in line)


# --- what is written can be read


def test_the_file_is_short_and_readable(plan_path: Path) -> None:
    lines = plan_path.read_text(encoding="utf-8").splitlines()
    for words in ("  conv1: {batch: 16, collective: ring}", "  fc6: {out_channels: 16}", "workers: 16"):
        assert words in lines
    assert not any(len(line) > 120 and "sha" not in line for line in lines)


def test_any_yaml_parser_reads_the_file(plan_path: Path) -> None:
    """Numbers stay numbers for YAML 1.1 parsers too, to the last digit."""
    content = yaml.safe_load(plan_path.read_text(encoding="utf-8"))
    assert content["prediction"]["step_time_s"] == 0.004
    assert content["layers"]["conv1"] == {"batch": 16, "collective": "ring"}
    assert content == parse_document(plan_path).value


@given(data=st.data(), workers=st.sampled_from([1, 2, 6, 8, 12]), num_micro_batches=st.sampled_from([1, 2, 4]))
def test_every_legal_plan_round_trips(data: st.DataObject, workers: int, num_micro_batches: int) -> None:
    graph = load_model("alexnet").graph
    table = split_table([workers])
    splits, collectives = [], []
    for layer in graph.layers:
        rows = [n for n, legal in enumerate(legal_splits(layer, table, 128 // num_micro_batches)) if legal]
        splits.append(table.split(data.draw(st.sampled_from(rows))))
        has_weights = layer.weight_count > 0
        collectives.append(data.draw(st.sampled_from([None, "ring", "tree"])) if has_weights else None)
    plan = Plan(
        workers=workers, num_micro_batches=num_micro_batches, splits=tuple(splits), collectives=tuple(collectives)
    )
    assert round_trip(plan, graph) == plan


def round_trip(plan: Plan, graph: Graph) -> Plan:
    document = yaml.safe_load(
        yaml_text(
            {
                "schema_version": 1,
                "model": "alexnet",
                "gpus": plan.workers,
                "global_batch": 128,
                "workers": plan.workers,
                "num_micro_batches": plan.num_micro_batches,
                "stages": [
                    {"first": names(graph)[s.first], "last": names(graph)[s.last], "replicas": s.replicas}
                    for s in plan.stages
                ],
                "layers": {
                    name: {k: v for k, v in dataclasses.asdict(split).items() if v > 1}
                    | ({"collective": collective} if collective else {})
                    for name, split, collective in zip(names(graph), plan.splits, plan.collectives, strict=True)
                },
            }
        )
    )
    return plan_from_document(PlanDocument.model_validate(document), graph)


def test_an_input_may_have_any_layout_of_all_workers(plan_path: Path, alexnet: Graph) -> None:
    """Every worker loads what it needs; so the search says of inputs, and so the reader must."""
    edited(plan_path, "data: {batch: 16}", "data: {out_channels: 4, height: 4}")
    loaded = read_plan(plan_path)
    assert plan_from_document(loaded.content, alexnet, loaded.document).splits[0] == Split(out_channels=4, height=4)


def test_pipelines_round_trip(new_file: Any, alexnet: Graph, make_result: MakeResult) -> None:
    cut = alexnet.index("fc6")
    last = len(alexnet.layers) - 1
    plan = Plan(
        workers=6,
        num_micro_batches=8,
        splits=tuple(Split(batch=4 if i < cut else 2) for i in range(last + 1)),
        collectives=tuple("ring" if layer.weight_count else None for layer in alexnet.layers),
        stages=(Stage(first=0, last=cut - 1, replicas=4), Stage(first=cut, last=last, replicas=2)),
    )
    result = make_result()
    document = plan_document(result, dataclasses.replace(result.plans[0], plan=plan, workers=6))
    path = new_file("plan.yaml", plan_text(document))
    assert "  - {first: data, last: pool5, replicas: 4}" in path.read_text(encoding="utf-8").splitlines()
    loaded = read_plan(path)
    assert plan_from_document(loaded.content, alexnet, loaded.document) == plan


def test_the_question_round_trips(tmp_path: Path, make_result: MakeResult, setting: Setting) -> None:
    algorithms = tmp_path / "algorithms.yaml"
    request = Request(
        model="alexnet",
        cluster="k20-pcie",
        device="k20",
        gpus=8,
        batch=1024,
        cost_model="paleo",
        ppp_comp=0.46,
        ppp_comm=0.75,
        paleo_pipeline=True,
        paleo_extensions=True,
        paleo_algorithms=algorithms,
        memory_limit="4 GiB",
    )
    asked = dataclasses.replace(
        setting, gpus=8, global_batch=1024, precision="fp32", optimizer="sgd", cost_model="paleo"
    )
    document = PlanDocument.model_validate(plan_document(about(make_result(setting=asked), request), folder=tmp_path))
    again = request_from_document(document, tmp_path)
    assert again == dataclasses.replace(request, precision="fp32", optimizer="sgd", micro_batches=1, space="layers")


def test_a_file_beside_the_plan_is_not_taken_for_a_bundled_name(
    tmp_path: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("alexnet.yaml").write_text("x", encoding="utf-8")
    document = plan_document(about(make_result(), Request(model="alexnet.yaml")), folder=Path())
    assert document["model"] == "./alexnet.yaml"


def test_proof_travels_with_the_best_plan_only(make_result: MakeResult) -> None:
    result = make_result(assumptions=(Assumption(name="a", value="b"),))
    best, other = result.plans[:2]
    other = dataclasses.replace(other, plan=dataclasses.replace(other.plan, workers=other.plan.workers + 1))
    first, second = (plan_document(result, ranked) for ranked in (best, other))
    assert first["prediction"]["proven_optimal"] is True
    assert second["prediction"]["proven_optimal"] is False
    assert first["prediction"]["bound_s"] == second["prediction"]["bound_s"] == 0.004
    assert first["provenance"]["assumptions"] == ["a b"]
    assert first["provenance"]["inputs"]["model"] == "a" * 64
    assert "objective" not in first["prediction"]


# --- what does not fit together is named


def test_degrees_must_multiply_to_the_workers(plan_path: Path, alexnet: Graph) -> None:
    edited(plan_path, "conv2: {batch: 16,", "conv2: {batch: 8, height: 4,")
    [problem] = problems_of(plan_path, alexnet)
    assert problem == (
        f"{line_of(plan_path, 'conv2:')}:10: layers.conv2: the degrees multiply to 8 x 4 = 32, not to the 16 workers"
    )


def test_all_problems_come_at_once(plan_path: Path, alexnet: Graph) -> None:
    edited(plan_path, "  conv1: {batch: 16, collective: ring}", "  conv1: {batch: 16, collective: rng}")
    edited(plan_path, "  conv2: {", "  conv22: {")
    edited(plan_path, "  fc8: {out_channels: 16}", "  fc8: {out_channels: 8}")
    texts = problems_of(plan_path, alexnet)
    assert len(texts) == 4
    assert any("collective 'rng' is not known; did you mean 'ring'?" in text for text in texts)
    assert any("network 'alexnet' has no layer 'conv22'; did you mean 'conv2'?" in text for text in texts)
    assert any("no split is given for 'conv2'" in text for text in texts)
    assert any("fc8" in text and "multiply to 8, not to the 16 workers" in text for text in texts)
    assert all(text.split(":")[0].isdigit() and text.split(":")[1].isdigit() for text in texts)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "pool1: {batch: 16}",
            "pool1: {in_channels: 16}",
            "layers.pool1.in_channels: a layer of type 'pool' cannot be",
        ),
        ("fc8: {out_channels: 16}", "fc8: {in_channels: 1, height: 16}", "cannot be split that way"),
        ("pool1: {batch: 16}", "pool1: {batch: 16, collective: ring}", "has no weights"),
        ("workers: 16", "workers: 0", "must be at least 1, got 0"),
        ("workers: 16", "workers: 8", "not to the 8 workers"),
        ("schema_version: 1", "schema_version: 2", "expected 1, got 2"),
        ("pool1: {batch: 16}", "pool1: {batches: 16}", "unknown key 'batches'; did you mean 'batch'?"),
        ("pool1: {batch: 16}", "pool1: {batch: 1.5}", "expected a whole number"),
        ("global_batch: 128", "global_batch: 8", "16 is more than the 8 samples of a micro-batch"),
        ("num_micro_batches: 1", "num_micro_batches: 200", "more than the 128 samples"),
    ],
)
def test_bad_values(plan_path: Path, alexnet: Graph, old: str, new: str, message: str) -> None:
    edited(plan_path, old, new)
    texts = problems_of(plan_path, alexnet)
    assert any(message in text for text in texts), texts


STAGES = "stages:\n  - {first: data, last: pool5, replicas: 8}\n  - {first: fc6, last: softmax, replicas: 8}\nlayers:"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("first: fc6", "first: fc7", "must start where the one before it ends: 'fc6', not 'fc7'"),
        ("last: pool5", "last: fc6", "must start where the one before it ends: 'dropout6', not 'fc6'"),
        ("last: softmax", "last: fc8", "must cover all layers: 'softmax' and after are in none"),
        ("last: pool5", "last: pool55", "has no layer 'pool55'; did you mean 'pool5'?"),
        ("first: fc6", "first: softmax", "not 'softmax'"),
        ("softmax, replicas: 8", "softmax, replicas: 4", "workers: is 16, but the stages use 8 + 4 workers"),
        ("softmax, replicas: 8", "softmax, replicas: 4", "must be {batch: 4}, the replicas of its stage"),
    ],
)
def test_bad_stages(plan_path: Path, alexnet: Graph, old: str, new: str, message: str) -> None:
    text = plan_path.read_text(encoding="utf-8").replace("layers:", STAGES, 1)
    text = text.replace("{batch: 16", "{batch: 8").replace("{out_channels: 16", "{batch: 8")
    plan_path.write_text(text, encoding="utf-8")
    loaded = read_plan(plan_path)
    assert plan_from_document(loaded.content, alexnet, loaded.document).is_pipeline
    edited(plan_path, old, new)
    texts = problems_of(plan_path, alexnet)
    assert any(message in text for text in texts), texts


def test_channels_that_share_partial_sums(plan_path: Path, alexnet: Graph) -> None:
    """An input split reduces into shares of the output channels: conv1 has 64, so 2 x 64 is one share too many."""
    graph = alexnet
    document = read_plan(plan_path).content
    layers = {name: {"in_channels": 2, "out_channels": 64} if name == "conv2" else {} for name in document.layers}
    raw = {"schema_version": 1, "model": "m", "gpus": 128, "global_batch": 128, "workers": 128}
    layers["conv2"] = {"in_channels": 2, "out_channels": 192}
    with pytest.raises(InputFileError, match="192 output channels that share partial sums"):
        plan_from_document(PlanDocument.model_validate({**raw, "workers": 384, "layers": layers}), graph)


# --- the YAML that is written


SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
def test_yaml_reads_back_exactly(value: dict[str, object]) -> None:
    def printable(item: object) -> object:  # lone surrogates are no text, in YAML or elsewhere
        if isinstance(item, str):
            return item.encode("utf-8", "replace").decode()
        if isinstance(item, list):
            return [printable(x) for x in item]
        if isinstance(item, dict):
            return {printable(k): printable(v) for k, v in item.items()}
        return item

    clean = printable(value)
    assert isinstance(clean, dict)
    assert yaml.safe_load(yaml_text(clean)) == clean


@pytest.mark.parametrize(
    "word", ["yes", "no", "on", "null", "~", "1", "1e3", "0x10", "-", "- a", "a: b", "a #b", "*x", "&x", "{", "[", "''", "2020-01-01",
             "1:30", ".5", ".inf", "=", "<<", "%a", "@a", "`a", "|", ">", "!a", "a\nb", "a\u0085b", " a", "a ", "", "N", "12_000", "..."]
)  # fmt: skip
def test_words_stay_words(word: str) -> None:
    assert yaml.safe_load(yaml_text({"k": word, word: "v"}))["k"] == word
    assert yaml.safe_load(yaml_text({"k": [word, {"a": word}]}))["k"] == [word, {"a": word}]


@pytest.mark.parametrize("value", [1e-05, 1e300, 5e-324, 0.1 + 0.2, -1.5e-9, 1e22, 123456789.123456789, 3.0])
def test_numbers_keep_every_digit(value: float, new_file: Any) -> None:
    path = new_file("n.yaml", yaml_text({"x": value}))
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["x"] == value
    assert parse_document(path).value["x"] == value


@pytest.mark.e2e
def test_a_plan_names_bundled_files_by_their_own_names(tmp_path: Path, answer: Any) -> None:
    """However the question spelled them, so that the plan can be read from any folder."""
    path = tmp_path / "plan.yaml"
    spelled = ("meta-llama/Llama-3.2-1B", "--cluster", "DGX-A100", "--device", "A100-SXM4-40GB")
    answer("optimize", *spelled, "--gpus", "8", "--export", str(path))
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert (document["model"], document["cluster"], document["device"]) == ("llama3.2-1b", "dgx-a100", "a100-40gb")
    answer("estimate", "--plan", str(path))


@pytest.mark.e2e
def test_names_that_a_file_gives_wrong_have_their_place(fails: Any, plan_path: Path) -> None:
    text = plan_path.read_text().replace("precision: bf16", "precision: fp8-blokwise")
    text = text.replace("optimizer: momentum", "optimizer: adan")
    plan_path.write_text(text)
    said = fails("estimate", "--plan", str(plan_path))
    for key, message in (
        ("precision", "'fp8-blokwise' is not known; did you mean 'fp8-blockwise'"),
        ("optimizer", "'adan' is not known; did you mean 'adam'"),
    ):
        line = next(n for n, row in enumerate(text.splitlines(), 1) if row.startswith(f"{key}:"))
        assert f"plan.yaml:{line}:{len(key) + 3}: {key}: {message}" in said
    assert "--precision fp9: is not known" in fails("estimate", "--plan", str(plan_path), "--precision", "fp9")


def test_a_proof_says_what_it_is_about(tmp_path: Path, answer: Any) -> None:
    """One GPU saves energy and two are faster: the file must not call the first the fastest."""
    path = tmp_path / "plan.yaml"
    found = answer("optimize", "alexnet", "--gpus", "2", "--objective", "energy", "--export", str(path), "--json")
    least_energy, fastest_s = read_plan(path).content, min(plan["step_time_s"] for plan in json.loads(found)["plans"])
    assert least_energy.prediction.step_time_s > fastest_s
    assert (least_energy.prediction.objective, least_energy.prediction.proven_optimal) == ("energy", True)
    assert least_energy.prediction.bound_s <= fastest_s
    answer("estimate", "--plan", str(path))


# --- Whatever `optimize --export` writes, `estimate --plan` reads back and costs the same -------------------------------------------------


def _random_network(rng: random.Random) -> dict[str, Any]:
    """A few samples and wide layers, so that splits of the model win; images or vectors."""
    layers: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        layers.append({"name": "data", "type": "input", "shape": [rng.choice([1, 3]), 32, 32]})
        for n in range(rng.choice([1, 2])):
            channels = rng.choice([48, 64, 256])
            layers.append({"name": f"conv{n}", "type": "convolution", "out_channels": channels, "kernel": 3})
        layers.append({"name": "pool", "type": "pool", "kernel": 2, "stride": 2})
    else:
        layers.append({"name": "data", "type": "input", "shape": [rng.choice([10, 1024, 4096])]})
    widths = [rng.choice([1000, 4096, 8192]) for _ in range(rng.choice([1, 2, 3]))]
    layers += [{"name": f"fc{n}", "type": "linear", "out_features": width} for n, width in enumerate(widths)]
    return {"schema_version": 1, "name": "random", "global_batch": rng.choice([1, 2, 3, 5]), "layers": layers}


def _random_decoder(rng: random.Random) -> dict[str, Any]:
    """Sizes of a small decoder, some with experts."""
    heads, width = rng.choice([2, 4, 6]), rng.choice([64, 256])
    sizes = {
        "model_type": "llama",
        "hidden_size": width * heads,
        "intermediate_size": rng.choice([2, 3]) * width * heads,
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([1, 2, heads]),
        "num_hidden_layers": rng.choice([2, 3, 4, 6]),
        "max_position_embeddings": rng.choice([16, 128, 1024]),
        "vocab_size": rng.choice([256, 32000]),
    }
    if rng.random() < 0.3:
        sizes |= {"model_type": "mixtral", "num_local_experts": rng.choice([2, 4, 8]), "num_experts_per_tok": 2}
    return sizes


@mostly("fuzz", "seed", range(500), quick=16, every=150)
def test_an_exported_plan_is_read_back_and_costs_the_same(seed: int, answer: Any, tmp_path: Path) -> None:
    """Three in four have a split per layer, the others run over a mesh, some as a framework runs them."""
    rng = random.Random(seed)
    network, plan = tmp_path / "network.yaml", tmp_path / "plan.yaml"
    words: list[str] = []
    if seed % 4 == 2:
        network = tmp_path / "config.json"
        network.write_text(json.dumps(_random_decoder(rng)), encoding="utf-8")
        words = ["--batch", str(rng.choice([1, 3, 8, 24])), *rng.choice([[], ["--framework", "megatron-lm"]])]
        words += rng.choice([[], ["--fastest"], ["--memory-limit", "1 GiB"], ["--offload", "optimizer"]])
    else:
        network.write_text(yaml.safe_dump(_random_network(rng)), encoding="utf-8")
    gpus = str(rng.choice([2, 3, 4, 6, 8]))
    found = json.loads(answer("optimize", str(network), "--gpus", gpus, *words, "--export", str(plan), "--json"))
    read = json.loads(answer("estimate", "--plan", str(plan), "--json"))
    best, again = found.get("refined") or found["plans"][0], read["plans"][0]
    for name in ("step_time_s", "memory_bytes_per_gpu", "exposed_communication_s", "energy_per_step_j"):
        assert again[name] == pytest.approx(best[name], rel=1e-12), name
    for name in ({*best["plan"]} & {*again["plan"]}) - {"provenance", "prediction"}:
        assert again["plan"][name] == best["plan"][name], name
