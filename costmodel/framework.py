"""What a training framework does beside the arithmetic of its network: a few constants of the mesh model that differ from the defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.tolerances import EQUAL

__all__ = ["FRAMEWORKS", "MOST_CONSTANTS", "FrameworkProfile", "profile_of", "threshold_blocks", "threshold_last"]

# A profile with more than these would describe data, not a framework.
MOST_CONSTANTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkProfile:
    """Constants and facts of a framework.

    Attributes
    ----------
    name : str
    doc : str
        What is particular about it.
    source : str
        Where the numbers come from; constants that were fitted say "fit".
    pattern : str
        Regular expression that finds the framework in what people call it, in lower case.
    constants : mapping of str to float
        Fields of `MeshAssumptions` that were fitted to its runs; at most four.
    equal : mapping of str to str
        Fields of `MeshAssumptions` that take the number of a constant.
    facts : mapping of str to float
        Fields of `MeshAssumptions` as its code, its documentation or measurements of other things have them: nothing is fitted.
    pipelined : mapping of str to float
        Facts of runs with pipelines that differ from these.
    narrowest : mapping of str to float
        Facts of runs on devices that compute in fp4 (Blackwell and later) that differ from these.
    stages : str
        How it cuts a network into stages: "balanced" (`costmodel.mesh.stages`), "equal" (as many blocks in each, whatever else the first
        and the last hold; balanced where that does not come out even) or "threshold" (`threshold_blocks`).
    warms_up_whole : bool
        Its 1F1B schedule refuses fewer micro-batches than stages but one, the forward passes with which the first stage begins.
    memory_rank : str
        Whose memory it reports: "fullest" or "first" (pipeline rank).

    Raises
    ------
    ValueError
        More constants than four, or one that is no field.

    Examples
    --------
    >>> profile = FrameworkProfile(name="slow", doc="", source="", pattern="slow", constants={"host_launch_s": 1e-3})
    >>> profile.applied().host_launch_s
    0.001
    """

    name: str
    doc: str
    source: str
    pattern: str
    constants: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    equal: Mapping[str, str] = field(default_factory=dict)
    pipelined: Mapping[str, float] = field(default_factory=dict)
    narrowest: Mapping[str, float] = field(default_factory=dict)
    stages: Literal["balanced", "equal", "threshold"] = "balanced"
    warms_up_whole: bool = False
    memory_rank: Literal["fullest", "first"] = "fullest"

    def __post_init__(self) -> None:
        """Check the constants and make them read-only."""
        for names in (self.constants, self.facts, self.pipelined, self.narrowest, self.equal):
            unknown = [name for name in names if name not in MeshAssumptions.__dataclass_fields__]
            if unknown:
                raise ValueError(f"framework '{self.name}': '{unknown[0]}' is no assumption of the mesh model")
        unlike = [name for name in self.equal.values() if name not in self.constants]
        if unlike:
            raise ValueError(f"framework '{self.name}': '{unlike[0]}' is no constant of it")
        count = len(self.constants)
        if count > MOST_CONSTANTS:
            raise ValueError(f"framework '{self.name}' has {count} constants, at most {MOST_CONSTANTS}")
        for item in ("constants", "equal", "facts", "pipelined", "narrowest"):
            object.__setattr__(self, item, MappingProxyType(dict(getattr(self, item))))

    def __hash__(self) -> int:
        """By name: a mapping has none."""
        return hash(self.name)

    def applied(
        self,
        assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS,
        *,
        is_pipelined: bool = False,
        has_fp4: bool = False,
    ) -> MeshAssumptions:
        """Assumptions with the constants and facts of the profile put in; ``has_fp4``: the device computes in fp4."""
        equal = {name: self.constants[constant] for name, constant in self.equal.items()}
        values = {**self.facts, **self.constants, **equal, **(self.pipelined if is_pipelined else {})}
        return replace(assumptions, **values, **(self.narrowest if has_fp4 else {}))


# The first whose pattern is found is meant; the last is everything else.
FRAMEWORKS: tuple[FrameworkProfile, ...] = (
    FrameworkProfile(
        name="nanotron",
        doc="plain autograd; PyTorch DDP, or with ZeRO-1 one all-reduce of all gradients behind the backward pass, and "
        "weights gathered piece by piece; a loop over tensors in the update; tensor-parallel collectives that wait for "
        "ranks held up by transfers between nodes; buckets of gradients that wait for other nodes; messages between stages that wait in "
        "jobs of 512 ranks; stages cut by thresholds",
        source="host_collective_s, unusable_memory, message_hold_s, bucket_wait_s: fit to the sweep of the Ultra-Scale Playbook (Hugging "
        "Face, nanotron on H100). bucket_wait_s: DDP starts the exchange of a bucket from Python, in a hook that adds it up in fp32 first "
        "(src/nanotron/optim/gradient_accumulator.py), and ranks of other nodes come late to it. "
        "message_hold_ranks: every pipeline of it with 512 ranks waits so long per message, whatever it carries, half of those "
        "with 256 and a fifth of the smaller ones; nobody has published why. contended_step_s: a rank that comes late is late by what "
        "starting a collective takes. update_launches: norm, scaling, "
        "update and copy of every tensor (src/nanotron/optim/clip_grads.py, gradient_accumulator.py). gradient_copies: "
        "the same file. autograd_copies: src/nanotron/models/llama.py. "
        "loss_bytes_per_logit: kernel by kernel in src/nanotron/parallel/tensor_parallel/functional.py, "
        "_ShardedCrossEntropy, and the cast before it: to fp32 (2 read, 4 written), largest (4), difference (4 + 4), exponential (4 + 4), "
        "sum (4), quotient (4 + 4), product with the gradient (4 + 4), to 16 bits (4 + 2). bucket_copies, zero_overlap, zero_whole: "
        "src/nanotron/trainer.py (DDP without ZeRO; sync_gradients_across_dp with reduce_scatter=False with it). "
        "gradient_passes: copies to 16 bits read the weights once more. "
        "bucket_bytes: DDP's 25 MiB of 16-bit gradients, exchanged as they are added up, in fp32 "
        "(src/nanotron/optim/gradient_accumulator.py, get_fp32_accum_hook). shard_piece_s: slices, checks and a copy per weight tensor "
        "and rank (src/nanotron/distributed.py, all_gather_coalesced); the same calls of PyTorch 2 on tensors of a CPU take 6 to 7 us, "
        "and starting a kernel about 4. "
        "gathered_copies: runs without pipelines "
        "are older than tp_recompute_allgather, those with pipelines were repeated with it (scripts/scaling_benchmarks.py). stages: "
        "src/nanotron/models/base.py. warms_up_whole: src/nanotron/parallel/pipeline_parallel/engine.py. memory_rank: "
        "src/nanotron/helpers.py, rank 0 writes the log",
        pattern=r"nanotron",
        constants={
            "host_collective_s": 225e-6,
            "unusable_memory": 0.176,  # 65.6 GiB of the 79.65 GiB that the driver shows can be used
            "message_hold_s": 0.5,
            "bucket_wait_s": 600e-6,
        },
        equal={"contended_step_s": "host_collective_s"},
        facts={
            "autograd_copies": 1.0,
            "bucket_bytes": 2.0 * 25 * 2.0**20,
            "bucket_copies": 1.0,
            "gathered_copies": 1.0,
            "gradient_copies": 1.0,
            "gradient_passes": 5.0,
            "loss_bytes_per_logit": 52.0,
            "message_hold_ranks": 512.0,
            "shard_piece_s": 10e-6,
            "update_launches": 4.0,
            "zero_overlap": 0.0,
            "zero_whole": 1.0,
        },
        pipelined={"gathered_copies": 0.0},
        stages="threshold",
        warms_up_whole=True,
        memory_rank="first",
    ),
    FrameworkProfile(
        name="nemo",
        doc="one fp32 copy of the logits; gradients of inputs are exchanged while those of weights are computed; a fused softmax for "
        "heads by fours; on Blackwell CUDA graphs of all but the experts",
        source="logits_copies: Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py, works in place. column_overlap: "
        "megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication, and Transformer Engine's linear layers; "
        "10 % is lost to interference, as in dp_overlap. softmax_multiple: megatron/core/fusions/fused_softmax.py. scattered_handover: as "
        "Megatron-LM. captured: recipes of Megatron-Bridge (scripts/performance/configs): cuda_graph_scope is full_iteration, or attn, "
        "moe_router and moe_preprocess, in most of those for B200, B300, GB200 and GB300, and empty in those for pre-training on H100, and "
        "of three readings of what that takes off the host the one that fit its runs on Blackwell best",
        pattern=r"nemo|megatron-bridge|megatron.core",
        facts={"logits_copies": 1.0, "column_overlap": 0.9, "softmax_multiple": 4.0, "scattered_handover": 1.0},
        narrowest={"captured": 1.0},
    ),
    FrameworkProfile(
        name="megatron",
        doc="a fused softmax for heads by fours; gradients are exchanged behind the backward pass; tensor-parallel collectives that wait "
        "for their ranks; stages of equally many blocks, which hand on a share per tensor-parallel rank",
        source="collective_wait_s: fit to vTrain's GPT on A100 by Megatron-DeepSpeed (arXiv:2312.12391). softmax_multiple: Megatron-LM, "
        "megatron/model/fused_softmax.py, is_kernel_available, and the same of Megatron-DeepSpeed: micro-batch x heads of a rank is a "
        "multiple of 4. dp_overlap: Megatron-LM, megatron/training.py, train_step, which reduces gradients behind forward_backward_func "
        "(--overlap-grad-reduce came in 2023 and is off by default), and DeepSpeed, runtime/pipe/engine.py, where ReduceGrads follows the "
        "last backward pass. scattered_handover: Megatron-LM (arXiv:2104.04473, section 4.1; scatter_gather_tensors_in_pipeline, on by "
        "default), and DeepSpeed, runtime/pipe/engine.py, where is_pipe_partitioned is set with tensor parallelism. stages: Megatron-LM, "
        "megatron/model/transformer.py, num_layers must be divisible by pipeline_model_parallel_size, and Megatron-DeepSpeed, "
        "megatron/model/gpt_model.py, partition_method='type:transformer'",
        pattern=r"megatron",
        constants={"collective_wait_s": 250e-6},
        facts={"softmax_multiple": 4.0, "dp_overlap": 0.0, "scattered_handover": 1.0},
        stages="equal",
    ),
    FrameworkProfile(
        name="llm-foundry",
        doc="fused cross entropy; FSDP that waits for the weights of backward passes",
        source="gather_overlap: backward_prefetch of Composer's fsdp_config is BACKWARD_POST by default (its docs, "
        "notes/distributed_training.rst), which gathers a unit's weights once the gradients of the one before are computed. logits_copies: "
        "llm-foundry's loss_fn is fused_crossentropy (flash-attention) by default, which keeps the logits and writes "
        "their gradient, both in 16 bits",
        pattern=r"llm-?foundry|composer",
        facts={"gather_overlap": 0.0, "logits_copies": 0.5},
    ),
    FrameworkProfile(
        name="transformers",
        doc="plain autograd, norms written out in fp32, a cross entropy of logits in fp32 that are copied first, adapters with dropout",
        source="norm_copies, autograd_copies: Hugging Face Transformers, models/llama/modeling_llama.py: LlamaRMSNorm, "
        "apply_rotary_pos_emb and LlamaMLP are operations of PyTorch, each with its own kernels; most of its other models are copies of "
        "these. adapter_copies: Hugging Face PEFT, tuners/lora/layer.py. loss_bytes_per_logit: LlamaForCausalLM.forward, kernel by "
        "kernel: logits to fp32 (2 read, 4 written), all but the last position copied (4 + 4), log-softmax (4 + 4), gradient of the chosen "
        "entries (4 written), that of the log-softmax (8 + 4), of the copy (4 written, 4 + 4), to 16 bits (4 + 2). logits_copies: the "
        "logits in fp32, the copy, and its log-softmax. Not what replaces these (Liger, Unsloth, XTuner's dispatch, torch.compile)",
        pattern=r"^(?!.*(?:liger|unsloth|xtuner|compile|nemo|auto.?model)).*(?:transformers\b|hugging ?face|\bhf\b|\btrl\b|\bpeft\b|"
        r"llama.?factory|fast.?chat|alpaca|\bswift\b)",
        facts={
            "adapter_copies": 1.0,
            "autograd_copies": 1.0,
            "logits_copies": 3.0,
            "loss_bytes_per_logit": 56.0,
            "norm_copies": 1.0,
        },
    ),
    FrameworkProfile(
        name="paddle",
        doc="gates, rotary embeddings and changes of layout in kernels of their own",
        source="autograd_copies: PaddleNLP, paddlenlp/transformers/llama/modeling.py: apply_rotary_pos_emb, and LlamaMLP without "
        "fused_swiglu, operations of PaddlePaddle; its recipes for pre-training take fused norms (use_fused_rms_norm) and FlashAttention",
        pattern=r"paddle",
        facts={"autograd_copies": 1.0},
    ),
    FrameworkProfile(
        name="default", doc="the defaults of the mesh model", source="those of the assumptions", pattern=r""
    ),
)


def profile_of(text: str) -> FrameworkProfile:
    """Find the profile of a framework by what people call it.

    >>> profile_of("nanotron v0.5").name, profile_of("something new").name
    ('nanotron', 'default')
    """
    word = text.lower()
    return next(profile for profile in FRAMEWORKS if re.search(profile.pattern, word))


def threshold_blocks(count: int, stages: int, head: float) -> tuple[int, ...]:
    """Blocks per stage where a stage ends behind the block with which the sum of costs reaches its share of the total.

    nanotron (src/nanotron/models/base.py, build_model): blocks cost as many multiplications as they have weights, the head too, the
    embedding nothing. Stages at the end may hold no block. The code that is published ends a stage where the sum passes its share; only
    a network whose head costs a whole number of blocks tells the difference, and the one that was measured (16 blocks, a head of 4) has
    10 of them on the first of two stages and 5 on the first of four, by its step times and by the memory of its first rank.

    Parameters
    ----------
    count : int
        Blocks of the network, all alike.
    stages : int
    head : float
        Cost of the head, in blocks.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> threshold_blocks(32, 2, 2.2), threshold_blocks(16, 2, 4.0)
    ((18, 14), (10, 6))
    """
    places = _threshold_places(count, stages, head)
    return tuple(places[1 : count + 1].count(stage) for stage in range(stages))


def threshold_last(count: int, stages: int, head: float) -> tuple[int, int]:
    """Stage that computes the loss, and the one that nanotron takes for the last: it runs only where they are one.

    Behind the blocks come a norm, the head, a change of format and the loss, of which only the head costs anything. A stage ends behind
    each of them while the sum of costs is above the stage's share (build_model, which then calls the stage at hand the last).

    Parameters
    ----------
    count, stages : int
    head : float
        As in `threshold_blocks`.

    Returns
    -------
    tuple of two int

    Examples
    --------
    >>> threshold_last(32, 2, 2.2)
    (1, 1)
    >>> threshold_last(16, 16, 4.0)  # stage 15 is left without anything
    (14, 15)
    """
    *_, loss, behind = _threshold_places(count, stages, head)
    return loss, behind


def _threshold_places(count: int, stages: int, head: float) -> list[int]:
    """Stages of the embedding, the blocks, the norm, the head, the change of format and the loss, and the stage at hand behind them."""
    total, done, places = count + head, 0.0, [0]
    for position, cost in enumerate((0.0, *(1.0,) * count, 0.0, head, 0.0, 0.0)):
        done += cost
        share = total * (places[-1] + 1) / stages
        # Blocks end a stage where they reach its share, but for the rounding of the head's cost; what follows them has to pass it.
        ends = done >= share * (1.0 - EQUAL) and places[-1] < stages - 1 if position <= count else done > share
        places.append(places[-1] + ends)
    return places
