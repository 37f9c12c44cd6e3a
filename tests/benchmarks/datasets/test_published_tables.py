"""The published tables where they lie: as many of their rows are read and scored as ever."""

from __future__ import annotations

from pathlib import Path

from benchmarks.datasets import convert, read
from planner.measurements.columns import COLUMNS
from planner.measurements.kinds import predict_table
from tests.cases import mostly

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
    "llm_foundry": (139, 139, 139),
    "misc_transformers": (54, 54, 54),
    "nemo_megatron_bridge": (92, 92, 92),
    "nvidia_dle_resnet_bert": (88, 88, 88),
    "pipedream_layers": (608, 527, 525),  # 38 views, 43 without a time
    "mamf_matmul_peak": (20, 20, 20),
    "serving_kernels_attention": (2240, 698, 698),  # decoding, windows and latent attention are no kernels here
    "serving_kernels_collectives": (642, 642, 642),
    "serving_kernels_gemm": (1450, 1450, 1450),
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
