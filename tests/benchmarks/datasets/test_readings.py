"""Rows that say less, or say it in other words: what can be concluded is, and the same run is predicted alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets import Converted, convert, read
from benchmarks.datasets.__main__ import main
from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.sharding import sharding_of
from benchmarks.datasets.words import recompute_of
from planner.core.errors import InputFileError
from planner.measurements.columns import COLUMNS
from planner.measurements.hardware import precision_of
from planner.measurements.kinds import predict_table
from planner.measurements.networks import transformer
from planner.measurements.outcomes import Outcome
from tests.benchmarks.datasets.published_rows import (
    COLLECTIVES,
    CONVOLUTIONS,
    OPERATORS,
    PLANS,
    format_of,
    only,
    plan_of,
    run,
    seconds,
    shape_of,
)
from tests.cases import mostly


@pytest.mark.parametrize("missing", [("tp",), ("pp",), ("dp",), ("gpus",), ("gpus", "dp")])
def test_a_degree_that_follows_from_the_others(missing: tuple[str, ...]) -> None:
    cells = dict.fromkeys(missing, "") | ({"nodes": "8"} if missing == ("gpus", "dp") else {})
    assert seconds(run(**cells)) == seconds(run())


def test_two_degrees_that_are_not_stated_are_not_guessed() -> None:
    assert run(tp="", pp="").skipped == "tp x pp x cp x dp is not the number of GPUs"


@pytest.mark.parametrize(
    ("cells", "plain"),
    [
        ({"dp": "2", "fsdp": "4"}, {"dp": "8", "fsdp": "4"}),
        ({"dp": "16", "cp": "2", "tp": "2"}, {"dp": "8", "cp": "2", "tp": "2"}),
        ({"dp": "2", "ep": "4", "experts": "8"}, {"dp": "8", "ep": "4", "experts": "8"}),
    ],
    ids=["beside the shards", "with the parts of samples", "beside the experts"],
)
def test_replicas_that_a_table_counts_in_another_way(cells: dict[str, str], plain: dict[str, str]) -> None:
    found = run(zero_stage="", **cells)
    assert seconds(found) == seconds(run(zero_stage="", **plain))


def test_the_devices_of_nodes_that_a_run_does_not_fill() -> None:
    """2 of 8 devices: nodes x gpus_per_node is not what runs."""
    few = {"nodes": "1", "gpus": "", "tp": "2", "pp": "1", "dp": "1", "global_batch": "64", "step_time_ms": "40000"}
    assert seconds(run(**few)) == seconds(run(**few | {"gpus": "2"}))


def test_the_batch_that_time_and_throughput_imply() -> None:
    rate = str(512 * 2048 / 64 / 12.0)
    found = run(global_batch="", tokens_per_s_per_gpu=rate)
    assert seconds(found) == seconds(run())
    assert seconds(run(global_batch="", micro_batch="", batch_per_dp="64")) == seconds(run(micro_batch=""))
    by_all = run(step_time_ms="", tokens_per_s=str(512 * 2048 / 12.0))
    assert by_all.comparisons[0].measured_s == pytest.approx(12.0)


def test_maxtext_accumulates_no_gradients_unless_it_is_told_to() -> None:
    cells = {"framework": "MaxText (JAX)", "micro_batch": "", "tp": "1", "pp": "1", "dp": "64", "step_time_ms": "9000"}
    whole, parts = plan_of(**cells), plan_of(**cells, grad_accum="4")
    assert (whole.micro_batch, whole.num_micro_batches) == (8, 1)
    assert (parts.micro_batch, parts.num_micro_batches) == (2, 4)


def test_more_devices_than_samples_share_them_by_their_positions() -> None:
    cells = {"tp": "1", "pp": "1", "dp": "", "gpus": "64", "global_batch": "16", "micro_batch": "1", "seq": "32768"}
    found = run(**cells)
    assert seconds(found) == seconds(run(**cells, cp="4"))
    refused = "there are more data-parallel ranks than samples in the global batch"
    assert run(**{**cells, "dp": "64"}).skipped == refused
    assert run(**{**cells, "global_batch": "24"}).skipped == refused


@pytest.mark.parametrize(
    "cells",
    [
        {"precision": "bf16-true"},
        {"precision": "pure bf16"},
        {"precision": "full bf16"},
        {"framework": "torchtune", "zero_stage": "1"},
    ],
)
def test_what_trains_in_16_bits_throughout_keeps_no_copy(cells: dict[str, str]) -> None:
    """Weights, gradients and two moments: 8 bytes each in place of 2 + 4 + 4 + 8, of which ZeRO-1 shares all but the first six (here 4)."""
    usual = {"framework": "my own", "zero_stage": "0"}
    mixed, narrow = (run(**{**usual, **changed, "zero_stage": "0"}) for changed in ({}, cells))
    assert mixed.memory is not None
    assert narrow.memory is not None
    weights = (32 * 12 * 4096**2 + 50304 * 4096) / 8  # of a rank, about
    saved = mixed.memory.predicted_bytes - narrow.memory.predicted_bytes
    assert saved == pytest.approx(10 * weights, rel=0.15)
    assert seconds(narrow) < seconds(mixed)


def test_a_batch_that_the_replicas_do_not_divide_is_noted() -> None:
    found = run(global_batch="500", dp="")
    # 62.5 samples of a replica, in whole micro-batches of two, rounded up: 64.
    assert seconds(found) == seconds(run(global_batch="512"))
    stated = run(global_batch="500")  # with dp: the numbers contradict one another
    assert stated.skipped == "micro_batch x dp does not divide the global batch"
    # Composer cuts the 64 samples of a replica into 21 micro-batches of three and one of a single sample; its replicas are equal, too.
    cut, whole = (run(global_batch=b, micro_batch="3", framework="llm-foundry") for b in ("512", "528"))
    assert seconds(cut) == seconds(whole)
    assert "micro_batch" in cut.row.defaults
    assert run(global_batch="500", framework="llm-foundry").skipped == stated.skipped


@pytest.mark.parametrize(
    "cells", [{"tp": "3"}, {"micro_batch": "128"}, {"gpus": "65", "dp": ""}], ids=["degrees", "batch", "devices"]
)
def test_a_failed_run_with_impossible_numbers_is_counted_apart(cells: dict[str, str]) -> None:
    failed = run(oom="OOM", step_time_ms="", **cells)
    assert failed.is_scored
    assert failed.impossible
    assert run(**cells).skipped == failed.impossible


@pytest.mark.parametrize(
    ("text", "stage"),
    [("ZeRO-1", 1), ("zero 2", 2), ("stage 3", 3), ("FSDP", 3), ("ZeRO-3 (offload)", 3), ("none", 0), ("2", 2)],
)
def test_stages_by_name(text: str, stage: int) -> None:
    assert sharding_of(Row(line=2, cells={"zero_stage": text}))[0] == stage


def test_fsdp_1_is_a_flag_in_tables_of_nemo_only() -> None:
    plans = [
        plan_of(zero_stage="", fsdp="1", framework=name, pp="1", dp="16") for name in ("25.11 NeMo Container", "mine")
    ]
    assert [(plan.zero_stage, plan.dp_shard) for plan in plans] == [(3, 16), (0, 1)]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Full", "full"), ("uniform", "full"), ("enabled", "full"), ("gradient checkpointing", "full"), ("True", "full"),
        ("selective (attn)", "selective"), ("core_attn", "selective"), ("save_dot_only", "selective"), ("minimal", "selective"),
        ("off", "none"), ("disabled", "none"), ("0", "none"), ("SAC", "selective"), ("op", "selective"), ("attention", "selective"),
        ("attn", "selective"), ("AC", "full"), ("GC", "full"), ("act ckpt", "full"), ("always", "full"), ("recompute", "full"),
    ],
)  # fmt: skip
def test_recomputation_in_the_words_of_frameworks(text: str, meant: str) -> None:
    assert recompute_of(text)[0] == meant


def test_blocks_that_are_recomputed_may_be_counted() -> None:
    texts = ("12 layers", "full, 12 layers", "block (1 layer)", "0 layers", "99 blocks")
    assert [recompute_of(text) for text in texts] == [
        ("full", 12),
        ("full", 12),
        ("full", 1),
        ("none", None),
        ("full", 99),
    ]
    assert plan_of(recompute="99 blocks", pp="1", dp="16").recompute_blocks == 32


@pytest.mark.parametrize(
    "text", ["OOM", "CUDA out of memory", "killed", "CUDA OOM (rank 3)", "failed", "did not fit", "timeout"]
)
@pytest.mark.parametrize("column", ["step_time_ms", "tokens_per_s_per_gpu", "memory_gib"])
def test_a_failure_that_stands_in_place_of_a_time(column: str, text: str) -> None:
    found = run(**{"step_time_ms": "", column: text})
    assert found.failed
    assert found.memory is not None
    assert found.memory == run(step_time_ms="", oom="1").memory


@pytest.mark.parametrize("text", ["nan", "-", "", "12000 (1 of 3 runs failed)"])
def test_what_is_no_failure(text: str) -> None:
    assert not run(step_time_ms=text).failed


def test_a_cross_in_the_column_of_failures_is_a_no_beside_a_time() -> None:
    """As in tables of ticks and crosses; without a time it is the failure."""
    assert not run(oom="\u2717").failed
    assert run(oom="\u2717", step_time_ms="").failed
    assert run(step_time_ms="\u2718").failed
    assert not run(oom="F").failed


def test_numbers_with_what_people_put_before_them() -> None:
    usual = seconds(run())
    assert seconds(run(tp="TP4", pp="pp=2", dp="8-way", global_batch="~512")) == usual
    measured = run(step_time_ms="\u2248 12,000").comparisons[0].measured_s
    assert measured == run(step_time_ms="ca. 12000").comparisons[0].measured_s == 12.0
    assert run(tp="pp=4").skipped == "column tp holds no number"
    assert "holds no number" in run(step_time_ms=">12000").skipped


def test_a_batch_in_tokens() -> None:
    for text in ("1,048,576 tokens", "1M tokens", "1024k tokens", "1Mi tokens", "1024Ki tokens"):
        assert seconds(run(global_batch=text)) == seconds(run())
    assert seconds(run(global_batch="0.5M tok")) < seconds(run())
    thousands = run(global_batch="1.05M tokens", micro_batch="")  # 512.7 samples
    assert thousands.comparisons[0].plan is not None
    assert (
        run(global_batch="1M").skipped
        == "column global_batch is stated in 'M' (write the number in full, in the unit of the column)"
    )


def test_a_batch_that_is_no_power_of_two_may_run_at_once() -> None:
    """14 samples per device of BERT-Large were one micro-batch, not seven of two."""
    cells = {
        "tp": "1",
        "pp": "1",
        "dp": "8",
        "gpus": "8",
        "micro_batch": "",
        "hidden": "1024",
        "layers": "24",
        "heads": "16",
    }
    tuned = run(**cells, global_batch="112", step_time_ms="1000")
    assert (tuned.comparisons[0].plan.micro_batch, tuned.comparisons[0].plan.num_micro_batches) == (14, 1)
    assert seconds(tuned) == seconds(run(**{**cells, "micro_batch": "14"}, global_batch="112", step_time_ms="1000"))


def test_nodes_say_how_many_devices_there_are() -> None:
    for more in ({"gpus_per_node": "8"}, {"gpus_per_node": ""}):  # eight of the usual machine
        assert seconds(run(gpus="", dp="", nodes="8", **more)) == seconds(run())
    assert run(gpus="", dp="", nodes="", tp="4").skipped == "neither gpus nor dp is stated"
    on_tpus = run(
        gpus="", dp="", nodes="8", device="TPU v4", gpus_per_node=""
    )  # whose links join machines: nobody knows
    assert on_tpus.skipped == "neither gpus nor dp is stated"


def test_weights_of_one_expert_are_no_dense_network() -> None:
    assert "experts that no column counts" in run(params_b="141").skipped
    for text in ("7", "6.7B", "13", "7000000000"):
        assert run(params_b=text).is_scored
    assert run(params_b="60", experts="8", top_k="2", tp="1", pp="8").is_scored


@pytest.mark.parametrize(
    ("text", "offloads"), [("3", False), ("3 (offload)", True), ("ZeRO-3 Offload", True), ("3 + offload", True)]
)
def test_a_stage_may_say_that_the_host_keeps_the_optimizer(text: str, offloads: bool) -> None:
    found = run(tp="1", pp="1", dp="64", zero_stage=text)
    assert found.comparisons[0].plan.offload_optimizer is offloads


def test_recomputation_in_words_of_nobody() -> None:
    with pytest.raises(Unreadable, match="none of none, selective, full"):
        recompute_of("a bit")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("BF16 mixed", "bf16"), ("bfloat16", "bf16"), ("mixed_bf16", "bf16"), ("AMP (bf16)", "bf16"), ("bf16-mixed", "bf16"),
        ("float16", "fp16"), ("16-mixed", "fp16"), ("mixed", "fp16"), ("amp", "fp16"), ("O2", "fp16"), ("half", "fp16"),
        ("float32", "fp32"), ("32-true", "fp32"), ("tf32", "tf32"), ("MXFP8", "mxfp8"), ("FP8-CS", "fp8-tensorwise"), ("hybrid fp8", "fp8"),
        ("float8", "fp8"), ("NVFP4", "nvfp4"), ("fp16 storage, fp32 math (pseudo)", "fp16"), ("bf16 (fp32 grad accum)", "bf16"),
        ("bf16 + fp8", "fp8"), ("BF16 with float8", "fp8"), ("bf16/fp32", "bf16"), ("fp16+fp32 master", "fp16"),
    ],
)  # fmt: skip
def test_number_formats_by_name(text: str, meant: str) -> None:
    assert format_of(Row(line=2, cells={"precision": text}), "bf16") == meant


@pytest.mark.parametrize("text", ["fp64", "double", "bf17", "quarter"])
def test_number_formats_that_are_none(text: str) -> None:
    with pytest.raises(Unreadable, match="is not known"):
        format_of(Row(line=2, cells={"precision": text}), "bf16")


def test_products_of_integers() -> None:
    assert format_of(Row(line=2, cells={"precision": "int8 (AQT)"}), "bf16") == "int8"


def test_maxtext_shards_and_recomputes_unless_a_row_says_otherwise() -> None:
    cells = {"framework": "MaxText (JAX)", "tp": "1", "pp": "1", "dp": "64", "micro_batch": "", "step_time_ms": "9000"}
    left = plan_of(**{**cells, "zero_stage": "", "recompute": ""})
    assert (left.recompute, left.zero_stage, left.dp_shard) == ("full", 3, 64)
    stated = plan_of(**{**cells, "zero_stage": "0", "recompute": "minimal"})
    assert (stated.recompute, stated.zero_stage) == ("selective", 0)


def test_fp4_is_faster_where_the_device_has_it_and_fp8_elsewhere() -> None:
    assert precision_of("fp4", frozenset({"fp32", "bf16", "fp8"})).compute == "fp8"
    large = {"hidden": "16384", "heads": "128", "tp": "8", "pp": "1", "step_time_ms": "20000"}  # bound by its products
    on = {"device": "GB300", "gpus_per_node": "4", "nvlink_domain": "72", **large}
    times = [seconds(run(precision=name, **on)) for name in ("BF16", "FP8-MX", "NVFP4")]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 3
    narrow, plain = (seconds(run(precision=name, device="H100", step_time_ms="4000")) for name in ("NVFP4", "bf16"))
    assert narrow < plain


def convolution(**cells: str) -> Outcome:
    row = {
        "device": "p100",
        "n": "16",
        "c": "64",
        "h": "56",
        "w": "56",
        "k": "128",
        "r": "3",
        "s": "3",
        "fwd_ms": "0.6",
        **cells,
    }
    return CONVOLUTIONS.predict([Row(line=2, cells=row)])[0]


def test_padding_and_groups_of_a_convolution() -> None:
    assert seconds(convolution(padding="1")) == seconds(convolution(pad_h="1", pad_w="1")) > seconds(convolution())
    grouped = convolution(padding="1", groups="64", fwd_ms="0.3").comparisons[0]
    assert grouped.ideal_s == pytest.approx(convolution(padding="1").comparisons[0].ideal_s / 64)
    assert convolution(pad_h="-1").skipped == "column pad_h is negative"
    assert convolution(pad_h="0.5").skipped == "column pad_h is not a whole number"


def test_one_gradient_of_a_convolution() -> None:
    passes: dict[str, Any] = {}
    for name in ("backward", "dgrad", "wgrad", "backward_input", "bwd data", "backward_filter"):
        (passes[name],) = convolution(fwd_ms="", pass_=name, time_ms="0.8", padding="1").comparisons
    assert passes["dgrad"].predicted_s + passes["wgrad"].predicted_s == pytest.approx(passes["backward"].predicted_s)
    assert passes["dgrad"] == passes["backward_input"] == passes["bwd data"]
    assert passes["wgrad"] == passes["backward_filter"]
    neither = dict(zip(("fwd_ms", "pass_", "time_ms"), ("", "both", "0.8"), strict=True))
    assert convolution(**neither).skipped.startswith("column pass_ is neither")


@pytest.mark.parametrize("op", ["ReLU6(inplace)", "GELU()", "Softmax(dim=1)", "LayerNorm((768,), eps=1e-12)"])
def test_operators_that_move_their_elements_once(op: str) -> None:
    cells = {"device": "v100-16gb", "op": op, "batch": "128", "activation_bytes": "411041792", "fwd_ms": "1.2"}
    (outcome,) = OPERATORS.predict([Row(line=2, cells=cells)])
    # At least one read and one write of the output at 900 GB/s, at most eight passes.
    assert 2 * 411041792 / 900e9 < seconds(outcome) < 8 * 411041792 / 900e9


@pytest.mark.parametrize(
    ("size", "weights"), [("3.6", 3.6e9), ("18.4", 18.4e9), ("145.6", 145.6e9), ("529.6", 529.6e9)]
)
def test_gpts_of_the_paper_by_their_size(size: str, weights: float) -> None:
    """Table 1 of the paper: 12 l h^2 (1 + 13 / 12 h + (V + s) / 12 l h) parameters with V = 51,200."""
    row = Row(line=2, cells={"model": f"GPT {size}B", "seq": "2048", "vocab": "51200"})
    assert transformer(shape_of(row, fused=True)).weight_count == pytest.approx(weights, rel=0.015)  # sizes are rounded


def test_other_sizes_are_no_gpts_of_the_paper() -> None:
    for name in ("GPT 13.6B", "GPT-MoE 3.6B", "Llama 3.6B", "GPT 1145.6B"):
        with pytest.raises(Unreadable, match="the model's shape is not stated"):
            shape_of(Row(line=2, cells={"model": name, "seq": "2048"}), fused=True)


def test_tokens_of_a_network_for_images_are_its_patches() -> None:
    """196 patches of 16 x 16 and the class token."""
    cells = {
        "model": "ViT-L/16", "device": "a100-80gb", "gpus": "64", "global_batch": "4096", "micro_batch": "64", "dp": "64",
        "tokens_per_s_per_gpu": "40000", "precision": "bf16",
    }  # fmt: skip
    (outcome,) = PLANS.predict([Row(line=2, cells=cells)])
    assert outcome.comparisons[0].measured_s == pytest.approx(64 * 197 / 40000)


# --- The published tables where they lie: as many of their rows are read and scored as ever -----------------------------------------------


# Table -> rows, those that a converter reads, and those that are scored.
ROWS = {
    "convnet_benchmarks_nets": (56, 56, 56),
    "collectives": (94, 94, 94),
    "convnet_benchmarks_layers": (506, 480, 480),  # 26 inputs and splits move no data
    "deepbench_allreduce": (63, 63, 63),
    "deepbench_conv": (376, 376, 376),
    "deepbench_gemm": (640, 640, 640),
    "hf_ultrascale_nanotron": (1643, 1643, 1622),  # 20 are suspect
    "deepbench_rnn": (212, 212, 212),
    "misc_transformers": (54, 54, 54),
    "llm_foundry": (139, 139, 139),
    "nemo_megatron_bridge": (92, 92, 92),
    "nvidia_dle_resnet_bert": (88, 88, 88),
    "pipedream_layers": (608, 527, 525),  # 38 views, 43 without a time
    "mamf_matmul_peak": (20, 20, 20),
    "serving_kernels_alltoall": (755, 755, 388),  # 367 have fewer multiprocessors than engines give
    "serving_kernels_attention": (2240, 2240, 2168),  # 72 are faster than the memory can be read
    "serving_kernels_collectives": (642, 642, 642),
    "serving_kernels_gemm": (1450, 1450, 1450),
    "serving_kernels_moe": (920, 920, 920),
    "serving_silicon": (878, 878, 872),  # 5 are suspect, one is faster than the peak
    "tf_cnn_benchmarks": (136, 136, 136),
    "training_moe_and_memory": (65, 65, 64),
    "vtrain": (761, 761, 761),
    "megatron_lm": (32, 32, 32),
}


@mostly("published", "name", ROWS, quick=4)
def test_every_row_of_a_published_table_is_read_as_ever(reference_data: Path, name: str) -> None:
    path = reference_data / "measurements" / f"{name}.csv"
    found = convert(path)
    problems = {
        COLUMNS[column].problem(text) for _, cells in found.rows for column, text in cells.items() if column in COLUMNS
    }
    assert problems <= {""}
    assert (len(found.rows) + len(found.refused), len(found.rows)) == ROWS[name][:2]
    _, outcomes = predict_table(read(path))
    assert sum(outcome.is_scored for outcome in outcomes) == ROWS[name][2]


# --- Cells in other words and units, columns by other names, files as spreadsheets write them: read, or refused with the reason -----------


RUN = {
    "model": "mine", "net": "GPT", "hidden": 2048, "layers": 24, "heads": 16, "device": "A100-80GB", "gpus": 8, "global_batch": 64,
    "micro_batch": 1, "tp": 1, "pp": 1, "dp": 8, "precision": "bf16", "seq": 2048, "step_time_ms": 1900, "recompute": "",
}  # fmt: skip
Convert = Callable[[str | bytes], Converted]


@pytest.fixture
def converted(tmp_path: Path) -> Convert:
    def read(content: str | bytes) -> Converted:
        path = tmp_path / "published.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return convert(path)

    return read


def table(cells: dict[str, object], mark: str = ",") -> str:
    return f"{mark.join(cells)}\n{mark.join(map(str, cells.values()))}\n"


def only_row(found: Converted) -> dict[str, str]:
    assert not found.refused, found.refused
    ((line, cells),) = found.rows
    assert line == 2
    return {name: text for name, text in cells.items() if name != "source_sha256"}


@pytest.mark.parametrize("mark", ["-", "n/a", "N/A", "null", "unknown", "not stated", "?"])
def test_what_says_nothing_is_an_empty_cell(mark: str, converted: Convert) -> None:
    """In every column: a run that succeeded is no failure because somebody wrote "-" into `oom`."""
    said = dict.fromkeys(("seq", "memory_gib", "oom", "precision", "suspect", "tp"), mark)
    empty = only_row(converted(table({**RUN, **dict.fromkeys(said, "")})))
    assert only_row(converted(table({**RUN, **said}))) == empty
    assert "oom" not in empty


@pytest.mark.parametrize("word", ["success", "Succeeded", "completed", "passed", "ok", "none"])
def test_a_run_that_says_it_succeeded_is_no_failure(word: str, converted: Convert) -> None:
    assert "oom" not in only_row(converted(table({**RUN, "oom": word})))


UNITS = {
    ("step_time_ms", "1900 ms"): 1900.0, ("step_time_ms", "1.9 s"): 1900.0, ("step_time_ms", "1900000us"): 1900.0,
    ("tokens_per_s_per_gpu", "8.6k"): 8600.0, ("samples_per_s", "33.5 samples/s"): 33.5, ("memory_gib", "40960 MiB"): 40.0,
    ("intra_bw_GBps", "170 Gb/s"): 21.25, ("global_batch", "1,024"): 1024.0, ("seq", "8k"): 8192.0, ("step_time_ms", "~1,900"): 1900.0,
    ("vocab", "250k (padded ~250880)"): 250880.0, ("inter_bw_Gbps_per_node", "10 (nominal)"): 10.0,
}  # fmt: skip


@pytest.mark.parametrize(("cell", "value"), UNITS.items())
def test_a_number_in_another_unit_or_with_a_remark(cell: tuple[str, str], value: float, converted: Convert) -> None:
    """1.9 s is 1,900 ms, not 1.9 ms; a throughput of 8.6k is not one of 8.6."""
    column, text = cell
    (row,) = [cells for _, cells in converted(table({**RUN, column: f'"{text}"'})).rows]
    assert float(row[column]) == pytest.approx(value)


OTHER_UNITS = {
    "GB of time": ({"step_time_ms": "2 GB"}, "column step_time_ms is stated in 'GB'"),
    "thousands of samples": ({"global_batch": "4k"}, "column global_batch is stated in 'k'"),
    "a product": ({"global_batch": "8 x 8"}, "column global_batch holds several numbers"),
    "hexadecimal": ({"hidden": "0x800"}, "column hidden holds several numbers"),
    "positions": ({"seq": "100k"}, "column seq is stated in 'k'"),
    "decimal commas": ({"step_time_ms": '"2,9"'}, "column step_time_ms: digits parted by commas or blanks"),
    "another device": ({"device": "H100-96GB HBM2e"}, "device 'H100-96GB HBM2e' is not known"),
    "fewer layers": ({"model": "Llama 3 8B", "hidden": "", "layers": 16}, "column layers is 16, the bundled network 'llama3-8b' has 32"),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "reason"), OTHER_UNITS.values(), ids=OTHER_UNITS)
def test_a_row_that_cannot_be_read_is_refused(cells: dict[str, object], reason: str, converted: Convert) -> None:
    found = converted(table({**RUN, **cells}))
    assert not found.rows
    (problem,) = found.refused
    assert problem.line == 2
    assert problem.message.startswith(reason)


def test_ranks_that_share_are_no_stages() -> None:
    """256 ranks of one replica, as tables of FSDP count them: no pipeline of 256 stages."""
    plan = plan_of(
        zero_stage="", fsdp="256", gpus="256", tp="1", pp="", dp="1", global_batch="2048", step_time_ms="9000"
    )
    assert (plan.pp, plan.dp_replicate * plan.dp_shard, plan.dp_shard, plan.zero_stage) == (1, 256, 256, 3)


@pytest.mark.parametrize(
    ("cells", "same"),
    [
        ({"zero_stage": "3/2 (experts)", "tp": "1", "pp": "1", "dp": "64"}, {"zero_stage": "3", "tp": "1", "pp": "1", "dp": "64"}),
        ({"recompute": "selective (per-op SAC)"}, {"recompute": "selective"}),
        ({"recompute": "unknown (not in the paper)"}, {"recompute": ""}),
    ],
)  # fmt: skip
def test_remarks_that_were_refused_once_are_read(cells: dict[str, str], same: dict[str, str]) -> None:
    assert seconds(run(**cells)) == seconds(run(**same))


def test_a_collective_may_have_a_remark() -> None:
    cells = {"device": "h100-sxm", "nodes": 2, "ranks": 16, "bytes": 2**28, "time_us": 6000}
    assert only(COLLECTIVES, **cells, collective="p2p (send and receive)").comparisons[0].what == "point_to_point"


RENAMED = {
    "seq": ("seq_len", ""),
    "tp": ("TP", ""),
    "recompute": ("activation checkpointing", ""),
    "precision": ("dtype", ""),
    "device": ("GPU", ""),
    "gpus": ("# GPUs", ""),
    "step_time_ms": ("Time per step (s)", "s"),
}


@pytest.mark.parametrize("column", RENAMED)
def test_a_column_by_another_name_is_read(column: str, converted: Convert) -> None:
    written, unit = RENAMED[column]
    cells: dict[str, object] = {**RUN, "recompute": "full"}
    scale = 1e-3 if unit == "s" else 1
    other = {
        written if name == column else name: value * scale if name == column and scale != 1 else value  # type: ignore[operator]
        for name, value in cells.items()
    }
    found, usual = only_row(converted(table(other))), only_row(converted(table(cells)))
    assert float(found.pop("step_time_ms")) == pytest.approx(float(usual.pop("step_time_ms")))
    assert found == usual


def test_of_two_columns_that_mean_the_same_none_is_read(converted: Convert) -> None:
    cells = {name: value for name, value in RUN.items() if name != "seq"}
    assert "seq" not in only_row(converted(table({**cells, "seq_len": 4096, "context_length": 1024})))


NUMBERS = {
    "2,734": 2734.0, "50 257": 50257.0, "1,234,567.5": 1234567.5, "10, nominal": 10.0, "1_000": 1000.0, "8 8-GPU nodes": 8.0,
    "2.5": 2.5, "-1": -1.0, "2,73": None, "0,050": None, "6.000,5": None, "12,34,567": None, "1,2345": None, "8 16": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_thousands_are_read_and_what_may_be_something_else_is_refused(text: str, value: float | None) -> None:
    cell = Row(line=2, cells={"seq": text})
    if value is None:
        with pytest.raises(Unreadable, match="column seq: digits parted by commas or blanks"):
            cell.number("seq")
    else:
        assert cell.number("seq") == value


@pytest.mark.parametrize("mark", [",", "\t", ";"])
@pytest.mark.parametrize("coded", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_as_spreadsheets_write_them(mark: str, coded: str, converted: Convert) -> None:
    assert only_row(converted(table(RUN, mark).encode(coded))) == only_row(converted(table(RUN)))


def test_a_title_above_the_names_of_the_columns_is_pointed_at(converted: Convert) -> None:
    with pytest.raises(InputFileError, match="names no columns, as line 3 does; remove what stands before that line"):
        converted("Our runs\n\n" + table(RUN))


def test_the_command_writes_canonical_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, rows = tmp_path / "published.csv", tmp_path / "rows.csv"
    source.write_text(table(RUN) + ",".join(map(str, {**RUN, "device": "abacus"}.values())) + "\n")
    assert main(["convert", str(source), "-o", str(rows)]) == 0
    said = capsys.readouterr().err
    assert f"{source}:3:1: device 'abacus' is not known" in said
    assert "1 rows refused, 1 converted" in said
    assert rows.read_text().splitlines()[1].startswith("1900,bf16,")
    assert main(["convert", str(tmp_path / "none.csv")]) == 2
    assert main(["list"]) == 0
    assert "vtrain" in capsys.readouterr().out
