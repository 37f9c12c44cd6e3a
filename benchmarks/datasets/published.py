"""The published tables, one converter each: what their sources say elsewhere than in their cells.

Every table goes through the converter of its kind (`runs`, `images`, `kernels`, `collectives`), which reads its cells; then the function
here adds what only its source says. A table of another source needs none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.reading import Row

__all__ = ["DATASETS", "Dataset", "dataset_of"]

Adapt = Callable[[Row, Cells], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A published table.

    Attributes
    ----------
    name : str
        Of its file.
    doc : str
        What it holds, and who published it under which licence.
    source : str
        Pattern of the column ``source`` in lower case.
    adapt : function of (row, cells)
        Puts into a canonical row what the source says.
    """

    name: str
    doc: str
    source: str
    adapt: Adapt


def dataset_of(row: Row) -> Dataset | None:
    """The table that a row is from; None where it is none of these."""
    source = f"{row.text('source')} {row.text('framework')}".lower()
    return next((known for known in DATASETS if re.search(known.source, source)), None)


def _nothing(_row: Row, _cells: Cells) -> None:
    """The cells say everything."""


def _vtrain(row: Row, cells: Cells) -> None:
    """Links inside a node were not measured; runs on one node recompute nothing and cut the vocabulary.

    vTrain's 150 GB/s are what its simulator takes for all-reduces of more than the 8 devices of a node (VIA-Research/vTrain, src/config.py;
    src/predictor.py, compute_comm_time); the runs were on A100s behind NVSwitch. The times of its runs on one node are sums, so that runs
    with 24 layers less those with 16 give the time of a layer, and pipelines those of their stages: nothing is recomputed there, on any
    stage, whatever its configurations say (its simulator recomputes on all stages but the last: src/predictor.py, create_layer_graph), and
    a rank has vocab_size // tensor_parallel_size words, not padded (src/config.py, src/model/gpt_modeling.py).
    """
    cells.pop("intra_bw_GBps", None)
    if "single" in row.text("source").lower():
        cells.put("recompute", "none")
        cells.put("padded_vocab", False)
        cells.setdefault("vocab", "50257")


def _playbook(_row: Row, cells: Cells) -> None:
    """The runs were on p5 instances, and those without pipelines are older than nanotron's option tp_recompute_allgather.

    Those with pipelines were repeated with it (scripts/scaling_benchmarks.py).
    """
    if cells.get("device") == "h100-sxm":
        cells.put("cluster", "aws-p5")
    if "hidden" in cells and cells.get("pp", "1") == "1":
        cells.put("gathered_inputs", True)


def _nemo(row: Row, cells: Cells) -> None:
    """Its tables write FSDP 1 for "used" (performance summary, nomenclature)."""
    if (
        "zero_stage" not in cells
        and cells.get("framework") == "megatron-bridge"
        and row.text("fsdp").isdigit()
        and row.number("fsdp") == 1
    ):
        cells.put("zero_stage", 3)


# NVIDIA DeepLearningExamples read BERT's second phase in bins of 64 positions, each mini-batch padded to its longest sample (phase 1 is
# not binned): LDDL, README.md, and scripts/run_pretraining.sh, "phase2/bin_size_64". Half of the positions of Wikipedia at length 512 are
# padding (Krell et al., Efficient Sequence Packing, arXiv:2107.02027, section 1): what is left, and half a bin.
_UNBINNED_SEQ, _BIN, _PADDING_SHARE = 128, 64, 0.5


def _deep_learning_examples(row: Row, cells: Cells) -> None:
    """Batches of BERT's second phase are padded to their longest sample only.

    >>> cells = Cells(seq="512")
    >>> _deep_learning_examples(Row(line=2, cells={"model": "BERT-Large"}), cells)
    >>> cells["computed_seq"]
    '288'
    """
    seq = int(cells.get("seq", "0"))
    if seq > _UNBINNED_SEQ and "bert" in row.text("model").lower():
        cells.put("computed_seq", round(seq * (1.0 - _PADDING_SHARE)) + _BIN // 2)


def _deepbench_convolutions(_row: Row, cells: Cells) -> None:
    """Convolutions of 16 bits multiply in them, whatever the table says.

    DeepBench's tables say fp32 math for all of P100's kernels in 16 bits; its convolutions hand CUDNN_DATA_HALF to cuDNN as the type to
    compute in (code/nvidia/cudnn_helper.h), and 1x1 ones, which no algorithm makes cheaper, ran at up to 1.26 times the peak of fp32.
    """
    cells.pop("products", None)


_GNMT_BATCH = 64  # of its sequence model; its CNNs state 128, and 256 for AlexNet


def _pipedream(row: Row, cells: Cells) -> None:
    """Batches are stated for several networks in one cell; the profiler of image networks has a time of its own."""
    if row.text("net").lower() == "gnmt":
        found = re.search(r"\bGNMT (\d+)", row.text("batch"))
        cells.put("batch", int(found[1]) if found else _GNMT_BATCH)
    if "profiler/image" in row.text("provenance").lower():
        cells.put("profiler", "pipedream")


def _sailor(row: Row, cells: Cells) -> None:
    """Its stages count embedding and head as layers, nothing is dropped, and its memory is what the driver shows.

    eth-easl/sailor, third_party/Megatron-DeepSpeed/megatron/model/gpt_neo_model.py (the dropout of the attention is built, but never
    applied) and deepspeed/pipe_engine.py (_exec_schedule logs what nvidia-smi reports).

    >>> cells = Cells(layers="32")
    >>> _sailor(Row(line=2, cells={"stage_layers": "7/9/9/9"}), cells)
    >>> cells["stage_blocks"], cells["memory_counts"]
    ('6/9/9/8', 'used')
    """
    cells.put("framework", "megatron-deepspeed")
    cells.put("dropout", False)
    cells.put("memory_counts", "used")
    if row.has("stage_layers"):
        layers = [int(word) for word in row.text("stage_layers").split("/")]
        layers[0] -= 1
        layers[-1] -= 1
        cells.put("stage_blocks", "/".join(str(count) for count in layers))


def _simumax(_row: Row, cells: Cells) -> None:
    """Its memory is torch.cuda.max_memory_allocated, as Megatron-LM reports it (MooreThreads/SimuMax, docs/FULL_RESULTS.md)."""
    cells.put("memory_counts", "allocated")


DATASETS: tuple[Dataset, ...] = (
    Dataset(name="sailor", doc="GPT-Neo and OPT on GH200 (eth-easl/sailor, MIT)", source=r"\bsailor\b", adapt=_sailor),
    Dataset(
        name="simumax",
        doc="dense networks and mixtures on A100 over PCIe (MooreThreads/SimuMax, Apache-2.0)",
        source=r"\bsimumax\b",
        adapt=_simumax,
    ),
    Dataset(
        name="vtrain", doc="runs of GPT on A100 (VIA-Research/vTrain, MIT style)", source=r"\bvtrain\b", adapt=_vtrain
    ),
    Dataset(
        name="hf_ultrascale_nanotron",
        doc="the largest sweep of plans, on H100 (Hugging Face, Ultra-Scale Playbook, Apache-2.0)",
        source=r"ultra-?scale playbook",
        adapt=_playbook,
    ),
    Dataset(
        name="nemo_megatron_bridge",
        doc="tuned plans on H100 (NVIDIA-NeMo/Megatron-Bridge, Apache-2.0)",
        source=r"nemo|megatron-bridge",
        adapt=_nemo,
    ),
    Dataset(
        name="llm_foundry",
        doc="MPT with FSDP on A100 (mosaicml/llm-foundry, Apache-2.0)",
        source=r"llm-foundry",
        adapt=_nothing,
    ),
    Dataset(
        name="nvidia_dle_resnet_bert",
        doc="ResNet-50 and BERT on V100 and A100 (NVIDIA DeepLearningExamples, Apache-2.0 or BSD-3)",
        source=r"deeplearningexamples|\bdle\b",
        adapt=_deep_learning_examples,
    ),
    Dataset(
        name="tf_cnn_benchmarks",
        doc="networks for images on K80 (TensorFlow, Apache-2.0)",
        source=r"tf_cnn_benchmarks",
        adapt=_nothing,
    ),
    Dataset(
        name="convnet_benchmarks",
        doc="networks for images and their layers on a Titan X (soumith/convnet-benchmarks, MIT)",
        source=r"convnet-benchmarks",
        adapt=_nothing,
    ),
    Dataset(
        name="deepbench_conv",
        doc="convolutions (baidu-research/DeepBench, Apache-2.0)",
        source=r"deepbench.*conv",
        adapt=_deepbench_convolutions,
    ),
    Dataset(
        name="deepbench",
        doc="products, recurrent layers and all-reduces (baidu-research/DeepBench, Apache-2.0)",
        source=r"deepbench",
        adapt=_nothing,
    ),
    Dataset(
        name="pipedream_layers",
        doc="operators of profiled networks (msr-fiddle/pipedream, MIT)",
        source=r"pipedream",
        adapt=_pipedream,
    ),
    Dataset(
        name="megatron_lm",
        doc="GPT of 1.7B to 1T weights on A100 and V100 (NVIDIA/Megatron-LM, BSD-3 style)",
        source=r"megatron",
        adapt=_nothing,
    ),
    Dataset(
        name="misc_transformers",
        doc="InternLM-7B on A100 (InternLM/InternEvo, Apache-2.0)",
        source=r"internevo",
        adapt=_nothing,
    ),
    Dataset(
        name="mamf_matmul_peak",
        doc="best matrix rate of accelerators (stas00/ml-engineering, CC BY-SA 4.0)",
        source=r"\bmamf\b",
        adapt=_nothing,
    ),
    Dataset(
        name="serving_kernels",
        doc="products, attention, collectives and deployments on A100, H100 and H200 (ai-dynamo/aiconfigurator, Apache-2.0)",
        source=r"aiconfigurator",
        adapt=_nothing,
    ),
)
