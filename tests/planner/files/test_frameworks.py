"""Framework files: what the bundled ones say of their code, names, and files of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.framework import UNKNOWN
from costmodel.precision import PRECISIONS
from planner.core.errors import InputFileError, UnknownName
from planner.files.loading import framework_aliases, load_framework
from planner.files.naming.frameworks import framework_called, framework_named, framework_of
from planner.files.resources import bundled
from planner.measurements.columns import COLUMNS

# Waits of one cluster's days, which belong to a calibration: no plan can be found that dodges them.
_OF_ONE_CLUSTER = {"collective_wait_s", "unusable_memory"}


@pytest.mark.parametrize("name", bundled("frameworks"))
def test_bundled_frameworks(name: str) -> None:
    loaded = load_framework(name)
    found = loaded.framework
    assert found.name == name == framework_called(name)
    assert loaded.title
    assert loaded.description
    assert found.version
    assert not _OF_ONE_CLUSTER & set(found.costs)
    assert set(found.fitted) <= {*found.costs, *(cost for own in found.conditional.values() for cost in own)}
    assert found.errors_of in ("", *bundled("frameworks"))


def test_aliases_are_names_of_one_framework() -> None:
    aliases = framework_aliases()
    assert not set(aliases) & set(bundled("frameworks"))
    for alias, name in aliases.items():
        assert load_framework(alias).framework.name == name == framework_called(alias)
    assert load_framework("Megatron_Core").framework.name == "megatron-lm"
    with pytest.raises(UnknownName, match="did you mean 'megatron-lm'"):
        load_framework("megatron-lmm")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MEGATRON-LM", "megatron-lm"),
        ("Megatron-LM v1/v2", "megatron-lm-2021"),
        ("Megatron-LM (Jan 2021)", "megatron-lm-2021"),
        ("Megatron-LM core 0.12", "megatron-lm"),
        ("NeMo 24.07", "megatron-bridge"),
        ("bridge 0.2", "megatron-bridge"),
        ("PyTorch FSDP", "pytorch-fsdp"),
        ("TensorFlow 2.4", "tensorflow"),
        ("torch7", "torch7"),
        ("Megatrn-LM 0.12", None),
        ("nemo-automodle", None),
        ("./jax", None),
    ],
)
def test_a_framework_is_named_in_any_case_with_or_without_a_version(text: str, name: str | None) -> None:
    """`--framework` and the column of a table read names alike."""
    assert framework_named(text) == name
    assert (COLUMNS["framework"].problem(text) == "") == (name is not None)
    if name is not None:
        assert load_framework(text).framework.name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nanotron v0.5", "nanotron"),
        ("something new", None),
        ("26.02 NeMo Container", "megatron-bridge"),
        ("NeMo/Megatron-Bridge", "megatron-bridge"),
        ("Nemotron 3 Ultra report", None),
        ("Megatron-Core 0.9", "megatron-lm"),
        ("Megatron-LM core 0.12 (TE 2.1)", "megatron-lm"),
        ("Megatron-LM", "megatron-lm"),
        ("Megatron-LM (Jan 2021)", "megatron-lm-2021"),
        ("Megatron-LM v1/v2", "megatron-lm-2021"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("llm-foundry/Composer PyTorch FSDP", "llm-foundry"),
        ("Transformers Trainer, DeepSpeed ZeRO-3", "accelerate"),
        ("LLaMA-Factory 0.9", "accelerate"),
        ("HF Trainer + FSDP", "accelerate"),
        ("ms-swift", "accelerate"),
        ("Transformers + Liger kernel", "adapter-trainers"),
        ("TRL with Unsloth", "adapter-trainers"),
        ("NeMo AutoModel (Hugging Face)", "nemo-automodel"),
        ("Transformer Engine", None),
        ("PaddleNLP 2.6", "paddle"),
        ("PyTorch FSDP", "pytorch-fsdp"),
        ("PyTorch 1.12", "pytorch"),
        ("TF1+XLA", "tensorflow-xla"),
        ("Torch-7 (native)", "torch7"),
        ("HF Transformers, DeepSpeed ALST", "arctic-training"),
    ],
)
def test_a_framework_is_found_by_what_people_call_it(text: str, name: str | None) -> None:
    assert framework_called(text) == name


@pytest.mark.parametrize(
    ("framework", "kernel", "kernels"),
    [
        ("", "triton", "newest"),  # nobody knows
        ("Megatron-LM", "", "newest"),
        ("Megatron-DeepSpeed", "", "portable"),
        ("PyTorch FSDP", "yes", "portable"),
        ("PyTorch FSDP", "FlashAttention-3", "newest"),
        ("Composer", "yes (triton/flash)", "first"),
        ("InternEvo", "yes", "first"),
        ("xformers + FairScale FSDP", "yes", "first"),
        ("transformers", "flash-attn==1.0.5", "first"),
        ("transformers", "flash-attn 2.5", "portable"),
    ],
)
def test_attention_kernels_of_frameworks(framework: str, kernel: str, kernels: str) -> None:
    assert framework_of(framework, kernel).attention == kernels


def test_megatron_as_of_its_code() -> None:
    """A softmax kernel for heads by fours in all; only later ones exchange anything beside the backward pass."""
    old, new, exported = (framework_of(n).mesh_assumptions() for n in ("Megatron-DeepSpeed", "NeMo", "Megatron-LM"))
    assert (old.softmax_multiple, old.column_overlap, old.dp_overlap) == (4.0, 0.0, 0.0)
    assert (new.softmax_multiple, new.column_overlap, new.dp_overlap) == (4.0, 0.9, 0.9)
    # The exporter switches --overlap-grad-reduce on; recipes of NeMo do not accumulate gradients in 32 bits, and fix the size of buckets.
    assert (exported.bucket_bytes, exported.bucket_bytes_per_rank) == (40e6 * 4, 1e6 * 4)
    buckets = {"bucket_bytes": 128 * 2**20 * 2.0, "bucket_bytes_per_rank": 0.0}
    # Recipes of NeMo dispatch tokens by DeepEP.
    assert replace(exported, main_gradient_bytes=2.0, node_copies=0.0, **buckets) == new
    assert framework_of("Megatron-LM").stages == "equal"
    bridge = framework_of("NeMo 26.02")
    assert bridge.mesh_assumptions(has_fp4=True) == replace(bridge.mesh_assumptions(), captured=1.0)
    assert framework_of("Megatron-LM").mesh_assumptions(has_fp4=True).captured == 0.0


@pytest.mark.parametrize(
    ("framework", "fp16"),
    [
        ("PyTorch", 4.0),
        ("TensorFlow 1.15 + XLA", 4.0),
        ("Paddle", 4.0),
        ("transformers", 4.0),
        ("MXNet", 2.0),
        ("Megatron-LM", 2.0),
    ],
)
def test_width_of_gradients_in_fp16(framework: str, fp16: float) -> None:
    """Automatic mixed precision leaves weights and gradients in 32 bits; Megatron, and MXNet's models cast to float16, do not."""
    assert framework_of(framework).mesh_assumptions(precision=PRECISIONS["fp16"]).main_gradient_bytes == fp16


def test_llm_foundry_waits_for_the_weights_of_backward_passes() -> None:
    """A default of Composer; nothing of it is fitted."""
    found = framework_of("llm-foundry/Composer PyTorch FSDP")
    assert found.mesh_assumptions().gather_overlap == 0.0
    assert framework_of("torchtitan").mesh_assumptions().gather_overlap == 1.0
    assert not found.fitted


def test_what_nanotron_does_is_read_from_its_code() -> None:
    """One all-reduce of whole gradients behind the backward pass, weights gathered piece by piece."""
    found = framework_of("nanotron")
    applied = found.mesh_assumptions()
    assert applied.zero_whole == 1.0
    # Twice through a cast (6 bytes), four kernels that read and write (8), two that read (4).
    assert applied.loss_bytes_per_logit == 2 * 6 + 4 * 8 + 2 * 4
    assert found.fitted == {"host_collective_s"}
    assert applied.contended_step_s == applied.host_collective_s


def test_transformers_writes_its_layers_out() -> None:
    """Counted kernel by kernel in its code, nothing fitted; what replaces its layers is something else."""
    found = framework_of("Hugging Face Trainer")
    applied = found.mesh_assumptions()
    assert (applied.norm_copies, applied.autograd_copies) == (1.0, 1.0)
    # Two casts (6 bytes), a copy and its gradient (8 and 4 + 8), log-softmax (8 and 12), the chosen entries (4).
    assert applied.loss_bytes_per_logit == 2 * 6 + (8 + 4 + 8) + (8 + 12) + 4
    assert not found.fitted
    buckets = {"bucket_bytes": 25 * 2**20, "bucket_bytes_per_rank": 0.0}
    assert framework_of("PaddlePaddle 2.5").mesh_assumptions() == replace(
        UNKNOWN.mesh_assumptions(), autograd_copies=1.0, **buckets
    )


def test_pytorch_loops_over_updates_where_losses_are_scaled() -> None:
    found = framework_of("PyTorch 1.12")
    calls = [found.layer_assumptions(PRECISIONS[name]).update_call_s for name in ("fp16", "bf16", "fp32")]
    assert calls == [24e-6, 0.0, 0.0]
    assert found.layer_assumptions().image_software().channels_first


_FILE = """\
schema_version: 1
name: mine
title: Mine
version: "1"
costs:
  host_lauch_s: {value: 1.0e-4, source: measured}
  dp_overlap: {value: fast, source: measured}
  tp_overlap: {value: 0.5}
stages: {value: balancd, source: guess}
defaults:
  zero_stage: {value: three, source: its manual}
"""


def test_everything_wrong_with_a_file_is_said_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(_FILE, encoding="utf-8")
    with pytest.raises(InputFileError) as caught:
        load_framework(str(path))
    text = str(caught.value)
    for words in (
        "mine.yaml:6:",
        "'host_lauch_s' is no assumption of the cost model; did you mean 'host_launch_s'?",
        "mine.yaml:7:",
        "expected a number",
        "mine.yaml:8:",
        "mine.yaml:9:",
    ):
        assert words in text
    path.write_text(_FILE.split("costs:", maxsplit=1)[0], encoding="utf-8")
    assert load_framework(str(path)).framework.mesh_assumptions() == UNKNOWN.mesh_assumptions()
