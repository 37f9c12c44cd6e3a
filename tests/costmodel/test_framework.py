"""Framework profiles: few constants, found by name, the default for whatever is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.framework import (
    FRAMEWORKS,
    MOST_CONSTANTS,
    FrameworkProfile,
    profile_of,
    threshold_blocks,
    threshold_last,
)
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS
from tests.cases import mostly


def test_profiles_are_few_constants_with_a_source() -> None:
    assert MOST_CONSTANTS == 4
    for profile in FRAMEWORKS:
        assert len(profile.constants) <= 4
        assert profile.doc
        assert profile.source
        assert len({profile, *FRAMEWORKS}) == len(FRAMEWORKS)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nanotron v0.5", "nanotron"),
        ("", "default"),
        ("MosaicML", "default"),
        ("26.02 NeMo Container", "nemo"),
        ("NeMo/Megatron-Bridge", "nemo"),
        ("Megatron-Core 0.9", "nemo"),
        ("Megatron-DeepSpeed", "megatron"),
        ("Megatron-LM", "megatron"),
        ("llm-foundry/Composer PyTorch FSDP", "llm-foundry"),
        ("Transformers Trainer, DeepSpeed ZeRO-3", "transformers"),
        ("LLaMA-Factory 0.9", "transformers"),
        ("HF Trainer + FSDP", "transformers"),
        ("ms-swift", "transformers"),
        ("Transformers + Liger kernel", "default"),
        ("TRL with Unsloth", "default"),
        ("NeMo AutoModel (Hugging Face)", "nemo"),
        ("Megatron-LM, Transformer Engine", "megatron"),
        ("Transformer Engine", "default"),
        ("PaddleNLP 2.6", "paddle"),
    ],
)
def test_a_profile_is_found_by_what_people_call_it(text: str, name: str) -> None:
    assert profile_of(text).name == name


def test_the_default_changes_nothing() -> None:
    assert profile_of("something").applied() == DEFAULT_ASSUMPTIONS


def test_facts_of_megatron_are_those_of_its_code() -> None:
    """A softmax kernel for heads by fours in both; only later ones exchange anything beside the backward pass."""
    old, new = (profile_of(name).applied() for name in ("Megatron-DeepSpeed", "NeMo"))
    assert (old.softmax_multiple, old.column_overlap, old.dp_overlap) == (4.0, 0.0, 0.0)
    assert (new.softmax_multiple, new.column_overlap, new.dp_overlap) == (4.0, 0.9, 0.9)
    assert set(profile_of("Megatron-LM").constants) == {"collective_wait_s"}


def test_llm_foundry_waits_for_the_weights_of_backward_passes() -> None:
    """A default of Composer; nothing of the profile is fitted."""
    profile = profile_of("llm-foundry/Composer PyTorch FSDP")
    assert profile.applied().gather_overlap == 0.0
    assert profile_of("torchtitan").applied().gather_overlap == 1.0
    assert not profile.constants


def test_what_nanotron_does_under_zero_is_a_fact_of_its_code() -> None:
    """One all-reduce of whole gradients behind the backward pass, weights gathered piece by piece; nothing of it is fitted."""
    profile = profile_of("nanotron")
    assert (profile.applied().zero_whole, profile.applied().zero_overlap) == (1.0, 0.0)
    assert {"zero_whole", "zero_overlap", "shard_piece_s", "bucket_bytes"} <= set(profile.facts)
    # Twice through a cast (6 bytes), four kernels that read and write (8), two that read (4).
    assert profile.facts["loss_bytes_per_logit"] == 2 * 6 + 4 * 8 + 2 * 4
    assert set(profile.constants) == {"host_collective_s", "unusable_memory", "message_hold_s", "bucket_wait_s"}
    assert profile.applied().contended_step_s == profile.applied().host_collective_s


def test_transformers_writes_its_layers_out() -> None:
    """Counted kernel by kernel in its code, nothing fitted; what replaces its layers is something else."""
    profile = profile_of("Hugging Face Trainer")
    applied = profile.applied()
    assert (applied.norm_copies, applied.autograd_copies, applied.adapter_copies) == (1.0, 1.0, 1.0)
    # Two casts (6 bytes), a copy and its gradient (8 and 4 + 8), log-softmax (8 and 12), the chosen entries (4).
    assert applied.loss_bytes_per_logit == 2 * 6 + (8 + 4 + 8) + (8 + 12) + 4
    assert not profile.constants
    assert profile_of("PaddlePaddle 2.5").applied() == replace(DEFAULT_ASSUMPTIONS, autograd_copies=1.0)


def test_five_constants_or_unknown_ones_are_refused() -> None:
    five = dict.fromkeys(("host_launch_s", "host_collective_s", "bare_launch", "tp_overlap", "dp_overlap"), 0.0)
    with pytest.raises(ValueError, match="5 constants, at most 4"):
        FrameworkProfile(name="x", doc="", source="", pattern="x", constants=five)
    with pytest.raises(ValueError, match="'speed' is no assumption"):
        FrameworkProfile(name="x", doc="", source="", pattern="x", constants={"speed": 1.0})


def test_equal_numbers_name_a_constant() -> None:
    with pytest.raises(ValueError, match="'tp_overlap' is no constant of it"):
        FrameworkProfile(name="x", doc="", source="", pattern="x", equal={"dp_overlap": "tp_overlap"})
    with pytest.raises(ValueError, match="'speed' is no assumption"):
        FrameworkProfile(
            name="x", doc="", source="", pattern="x", constants={"tp_overlap": 0.1}, equal={"speed": "tp_overlap"}
        )


def test_facts_of_pipelines_replace_others() -> None:
    profile = FrameworkProfile(
        name="x", doc="", source="", pattern="x", facts={"gathered_copies": 1.0}, pipelined={"gathered_copies": 0.5}
    )
    assert profile.applied().gathered_copies == 1.0
    assert profile.applied(is_pipelined=True).gathered_copies == 0.5
    with pytest.raises(ValueError, match="'speed' is no assumption"):
        FrameworkProfile(name="x", doc="", source="", pattern="x", pipelined={"speed": 1.0})


def test_facts_of_devices_with_fp4_replace_others() -> None:
    profile = profile_of("NeMo 26.02")
    assert (profile.applied().captured, profile.applied(has_fp4=True).captured) == (0.0, 1.0)
    assert profile.applied(has_fp4=True) == replace(profile.applied(), captured=1.0)
    assert profile_of("Megatron-LM").applied(has_fp4=True).captured == 0.0
    with pytest.raises(ValueError, match="'speed' is no assumption"):
        FrameworkProfile(name="x", doc="", source="", pattern="x", narrowest={"speed": 1.0})


@pytest.mark.parametrize(
    ("count", "stages", "head", "blocks"),
    [
        # The sums pass 8.55, 17.1 and 25.65 behind blocks 9, 18 and 26.
        (32, 4, 2.2, (9, 9, 8, 6)),
        # Equal shares are reached: without a head, and where it costs as much as four blocks (10 and 5 of 20).
        (8, 4, 0.0, (2, 2, 2, 2)),
        (16, 2, 4.0, (10, 6)),
        (16, 4, 4.0, (5, 5, 5, 1)),
        (16, 4, 4.0 - 1e-12, (5, 5, 5, 1)),
        (16, 4, 4.0 + 1e-12, (5, 5, 5, 1)),
        # A heavy head leaves the last stages without a block.
        (4, 4, 4.0, (2, 2, 0, 0)),
        (4, 4, 4.5, (3, 1, 0, 0)),
        (5, 1, 1.0, (5,)),
    ],
)
def test_stages_end_where_the_cost_reaches_its_share(
    count: int, stages: int, head: float, blocks: tuple[int, ...]
) -> None:
    assert threshold_blocks(count, stages, head) == blocks


@mostly("exact", "stages", range(1, 17))
@pytest.mark.parametrize("head", [0.0, 0.4, 2.2, 9.0])
def test_stages_hold_all_blocks(stages: int, head: float) -> None:
    blocks = threshold_blocks(16, stages, head)
    assert len(blocks) == stages
    assert sum(blocks) == 16


@pytest.mark.parametrize(
    ("count", "stages", "head", "ends"),
    [
        (32, 4, 2.2, (3, 3)),
        (32, 32, 2.2, (31, 31)),
        # 20 in all, 1.25 per stage: behind 16 blocks stage 12, which takes the head, then 13 and 14 with nothing to do but format and loss.
        (16, 16, 4.0, (14, 15)),
        # 10 in all, 2.5 per stage: blocks behind 3 and 4 in stages 0 and 1, the head in 1, format and loss in 2 and 3.
        (4, 4, 6.0, (3, 3)),
        (4, 4, 20.0, (2, 3)),
        (5, 1, 1.0, (0, 0)),
    ],
)
def test_the_loss_may_miss_the_last_stage(count: int, stages: int, head: float, ends: tuple[int, int]) -> None:
    assert threshold_last(count, stages, head) == ends


@mostly("exact", "stages", range(1, 17))
@pytest.mark.parametrize("head", [0.4, 2.2, 9.0])
def test_the_loss_is_behind_all_blocks(stages: int, head: float) -> None:
    blocks = threshold_blocks(16, stages, head)
    loss, last = threshold_last(16, stages, head)
    assert max(n for n, count in enumerate(blocks) if count) <= loss <= last < stages
