"""Everything the mesh model takes for granted, by name, so that reports can print it and users can change it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.fields import assumption
from costmodel.precision import Precision

# Names of assumptions of the last release -> those of today; understood until the next release.
RENAMED_ASSUMPTIONS: dict[str, str] = {"memory_reserve": "unusable_memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAssumptions:
    """Shares of communication that hide behind compute, and memory that no tensor explains; 0 hides or adds nothing."""

    tp_overlap: float = assumption(
        0.0,
        "share of tensor-parallel communication hidden behind its matrix products",
        "Megatron-LM without --tp-comm-overlap hides none of what comes before a product or after it; what its backward pass starts early "
        "is column_overlap",
        most=1.0,
    )
    column_overlap: float = assumption(
        0.9,
        "share of the time of a weight gradient behind which the tensor-parallel exchange of the gradient of the same matrix's inputs "
        "travels",
        "Megatron-LM, megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication, and Transformer Engine's "
        "linear layers; 10 % is lost to interference, as in dp_overlap",
        as_run=0.0,
        most=1.0,
    )
    cp_overlap: float = assumption(
        0.9,
        "share of the attention of one ring step behind which the next step's keys and values travel",
        "Liu et al., Ring Attention (arXiv:2310.01889), section 3: fully hidden if compute is longer; 10 % is lost to interference",
        most=1.0,
    )
    cp_balance: float = assumption(
        2.0,
        "how context parallelism by ring or all-gather gives positions to ranks. 2: of each document an early and a late piece; 1: of each "
        "sequence (head-tail, zig-zag), so that documents packed into it are uneven; 0: one piece of each sequence",
        "2: Transformer Engine, thd_get_partitioned_indices, and WLB-LLM (arXiv:2503.17924); 1: Llama 3 (arXiv:2407.21783, section 3.3.2)",
        as_run=1.0,
        most=2.0,
        is_whole=True,
    )
    ep_overlap: float = assumption(
        0.0,
        "share of the compute of a mixture behind which its tokens of another micro-batch travel, while the pipeline is full; 1 under "
        "schedules that run two passes together (combined_1f1b, dualpipe_v)",
        "Megatron-LM without --overlap-moe-expert-parallel-comm hides none; DualPipe (DeepSeek-V3, arXiv:2412.19437, section 3.2.1) "
        "and that option hide all that compute is long enough for: 1",
        most=1.0,
    )
    pp_overlap: float = assumption(
        0.9,
        "transfers between stages are hidden behind another pass of the rank, up to this share of a chunk's forward pass, where the rank "
        "has another chunk to run (interleaved) or gradients of weights that were put off (zero-bubble)",
        "Megatron-LM, megatron/core/pipeline_parallel/schedules.py: with interleaving, sends and receives are started before a chunk and "
        "waited for after it (overlap_p2p_comm, its default); 1F1B waits at once; zero-bubble schedules count on it (Qi et al., "
        "arXiv:2401.10241); 10 % is lost to interference, as in dp_overlap",
        as_run=0.0,
        most=1.0,
    )
    scattered_handover: float = assumption(
        1.0,
        "1: tensor-parallel ranks that all hold what a stage hands on send a share each, and gather the shares inside their group; "
        "0: each sends the whole",
        "Megatron-LM, scatter_gather_tensors_in_pipeline, on by default (Narayanan et al., arXiv:2104.04473, section 4.1)",
        as_run=0.0,
    )
    dp_overlap: float = assumption(
        0.9,
        "share of the backward (or forward) pass behind which gradients (or weights) travel",
        "PyTorch DDP (Li et al., arXiv:2006.15704), section 3.2.3: buckets overlap all but the last; 10 % is lost to interference",
        most=1.0,
    )
    interference: float = assumption(
        0.16,
        "share of the time of an exchange of gradients or weights that the compute alongside it loses",
        "compute takes 18.9 % longer alongside communication, on average (S. Lee et al., arXiv:2507.03114, on A100, H100, MI210 and "
        "MI250): 1 - 1 / 1.189",
    )
    offload_overlap: float = assumption(
        0.5,
        "share of the compute behind which host transfers of activations hide",
        "assumption: half of the pass has free copy engines",
        most=1.0,
    )
    host_bytes_per_s: float = assumption(
        25e9, "bandwidth between a device and its host, each way", "PCIe 4.0 x16 is 31.5 GB/s; about 80 % is reached"
    )
    host_update_bytes_per_s: float = assumption(
        20e9,
        "memory bandwidth of the host per device while it runs the optimizer",
        "8 channels of DDR4-3200 are 205 GB/s per socket, shared by 4 devices, 40 % reached by CPU Adam (Ren et al., arXiv:2101.06840)",
    )
    main_gradient_bytes: float = assumption(
        4.0,
        "bytes per weight of the gradients that accumulate and are exchanged",
        "Megatron-LM --accumulate-allreduce-grads-in-fp32, its default with bf16",
    )
    bucket_bytes: float = assumption(
        160e6,
        "gradients that are exchanged together; nothing hides the last of these buckets",
        "Megatron-LM, megatron/core/distributed/distributed_data_parallel.py: 40 M elements of 4 bytes",
    )
    bucket_bytes_per_rank: float = assumption(
        4e6,
        "bytes that a bucket has at least for each rank that exchanges it, so that the latency of its collective stays a small share",
        "the same file: 1 M elements of 4 bytes",
    )
    allocator_slack: float = assumption(
        0.08,
        "share of activations and working memory lost to fragmentation",
        "PyTorch's caching allocator; 5 to 10 % reserved but unused is usual",
    )
    host_launch_s: float = assumption(
        115e-6,
        "time of the host to start one kernel of the cost model (several of an eager framework, with their Python code): a pass of a layer "
        "takes at least as long as starting its kernels",
        "fit to vTrain's GPT on A100 by Megatron-DeepSpeed (arXiv:2312.12391), whose small layers take 3.1 ms forward and backward",
    )
    bare_launch: float = assumption(
        0.5,
        "host_launch_s that a kernel takes to start without the Python code of a module around it: in backward passes, which autograd "
        "runs in C++, and in updates",
        "fit to vTrain's GPT on A100, rounded: layers whose backward pass fills the device still wait for the host in the forward pass",
        needs="host_launch_s",
    )
    split_launch_s: float = assumption(
        0.0,
        "time that the host takes for each kernel besides host_launch_s, in both passes, where tensor parallelism splits matrices",
        "none unless a framework says otherwise: ranks of Megatron-LM hold plain tensors, PyTorch's DTensor finds in Python how each "
        "operator is split",
    )
    host_collective_s: float = assumption(
        100e-6,
        "the same for a collective inside a layer",
        "fit to vTrain's GPT on A100 by Megatron-DeepSpeed (arXiv:2312.12391), runs with tensor parallelism",
    )
    expert_launches: float = assumption(
        0.6,
        "host_launch_s that starting one kernel of one expert takes: products of the experts of a rank, and casts of what enters them to "
        "fp8, are started one by one in a loop, and none of the forward pass of a mixture before the host knows how many tokens each gets; "
        "0: one kernel has all experts, and reads that on the device",
        "fit to mixtures on H100, B200 and GB200 (Megatron-Bridge performance summary, 25.09 to 26.06); NVIDIA Transformer Engine runs a "
        "grouped product as one product per expert (Megatron-LM, docs/discussions, DeepSeek-V3 on GB200, section 1)",
        needs="host_launch_s",
    )
    captured: float = assumption(
        0.0,
        "share of the kernels outside routed experts that the host starts as parts of CUDA graphs, at no cost each",
        "none unless a framework says otherwise: eager frameworks; Megatron-LM --cuda-graph-scope attn moe_router moe_preprocess "
        "captures nearly all",
        most=1.0,
    )
    expert_spread: float = assumption(
        1.0,
        "standard deviation of the tokens of an expert over their mean, of routers balanced by an auxiliary loss: those that share the "
        "experts wait for the rank that gets most; a bias per expert that follows the loads (DeepSeek-V3) leaves 0.06 of it; 0: all get "
        "equally many, as with --moe-router-force-load-balancing",
        "as in serving, where two gains of a load balancer say it. In training it falls: 2.2 with new routers (Megatron-MoE-ModelZoo, "
        "best_practice/qwen3: forced and real balance of 235B differ as ranks of 16 experts with 1.8 times the mean explain), 0.3 in the "
        "end (Wang et al., arXiv:2408.15664, table 2: of 64 experts the fullest has 1.72 times the mean)",
    )
    expert_capacity: float = assumption(
        0.0,
        "most tokens that an expert takes, over the mean; the others are dropped. 0: none is",
        "none unless a framework says otherwise: dropless; Megatron-LM --moe-expert-capacity-factor",
    )
    expert_padding: float = assumption(
        0.0,
        "1: every expert computes as many tokens as it may take, be they there or not, so that every copy of a token travels (as with "
        "node_copies 1), and the host waits for no counts",
        "Megatron-LM --moe-pad-expert-input-to-capacity",
        needs="expert_capacity",
    )
    node_copies: float = assumption(
        0.0,
        "1: a token travels once for each of its experts; 0: once to each rank that has some of them, and of other nodes once to the node, "
        "where it is copied",
        "DeepEP (README) and HybridEP, behind the flexible dispatcher of Megatron-LM; 1 in NCCL's all-to-all",
        as_run=1.0,
    )
    collective_wait_s: float = assumption(
        0.0,
        "time that a tensor-parallel collective holds up its devices, besides its message: its start on a stream of its own, and ranks "
        "that come late",
        "none unless a framework says otherwise",
    )
    contended_step_s: float = assumption(
        0.0,
        "delay of a tensor-parallel collective per rank that takes part (twice per rank of another node), while stages on several nodes "
        "exchange tensors: the processes that move data take turns with those that start kernels, and a collective waits for whichever of "
        "its ranks was held up",
        "none unless a framework says otherwise",
    )
    update_launches: float = assumption(
        0.0,
        "kernels (of host_launch_s) that the host starts per weight tensor and step for clipping, the update and copies",
        "none unless a framework says otherwise: multi-tensor optimizers start a few kernels for all tensors together",
        needs="host_launch_s",
    )
    gradient_passes: float = assumption(
        4.0,
        "times that gradients are read or written besides the update: for their norm (1), scaling by it (2), zeros for the next step (1)",
        "clipping by the norm of all gradients (PyTorch clip_grad_norm_; Megatron-LM megatron/core/optimizer/clip_grads.py) and "
        "zero_grad; no trainer of language models goes without",
    )
    gather_overlap: float = assumption(
        1.0,
        "share of the weights gathered for the backward pass (ZeRO-3) that travels behind it; 0: the device waits for them",
        "PyTorch FSDP gathers those of the next unit before a unit's gradients are computed (BackwardPrefetch.BACKWARD_PRE, its default)",
        most=1.0,
    )
    replica_overlap: float = assumption(
        1.0,
        "share of dp_overlap that exchanges keep where nobody shares the optimizer (ZeRO-0); 0: they run after the backward pass",
        "PyTorch DDP and Megatron-LM --overlap-grad-reduce exchange behind it, whether the optimizer is shared or not",
        most=1.0,
    )
    zero_whole: float = assumption(
        0.0,
        "1: ranks that share the optimizer under ZeRO-1 add up whole gradients at once, when the backward pass is over, and gather all "
        "weights at once; 0: they scatter the sums bucket by bucket, behind the passes",
        "Megatron-LM's distributed optimizer scatters",
    )
    shard_piece_s: float = assumption(
        0.0,
        "time of the host per weight tensor and rank that shares the optimizer, to put gathered pieces in their places (ZeRO-1 and 2)",
        "none unless a framework says otherwise: weights are gathered into their places",
    )
    loss_bytes_per_logit: float = assumption(
        36.0,
        "bytes per logit that the loss moves in both passes",
        "PyTorch's cross entropy of 16-bit logits, kernel by kernel: to fp32 (2 read, 4 written), its log-softmax (4 + 4), the gradient of "
        "the chosen entries (4 written), that of the log-softmax (8 + 4), to 16 bits (4 + 2)",
    )
    logits_copies: float = assumption(
        1.0,
        "copies of the logits in fp32 besides those in the format of the activations",
        "Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py, works in place; 2 in PyTorch's cross entropy: the logits in fp32, "
        "and their softmax from which the gradient is made",
        as_run=2.0,
    )
    loss_chunks: float = assumption(
        1.0,
        "chunks of the positions of a rank whose logits and loss are computed one after the other, their gradients at once; 1: all "
        "together; 0: as many as outputs of the head per feature, so that logits take the room of what enters the head",
        "none unless a framework says otherwise; 0 in Liger-Kernel, ops/fused_linear_cross_entropy.py: cdiv(V, H) chunks",
        is_whole=True,
    )
    mlp_chunks: float = assumption(
        1.0,
        "chunks of the positions of a rank that go through the feed-forward part of a block one after the other, again in the backward "
        "pass; 1: all together; 0: one per as many positions as the block has features",
        "none unless a framework says otherwise; 0 in DeepSpeed, runtime/sequence_parallel/ulysses_sp.py, TiledMLP: ceil(seqlen / hidden) "
        "shards (Arctic Long Sequence Training, arXiv:2506.13996, section 3.1.1)",
        is_whole=True,
    )
    softmax_multiple: float = assumption(
        0.0,
        "attention that is written out has one kernel for scale, mask and softmax only in 16 bits, and where micro-batch x heads of a rank "
        "is a multiple of this; else kernels of their own, in fp32; 0: always",
        "none unless a framework says otherwise",
        is_whole=True,
    )
    autograd_copies: float = assumption(
        0.0,
        "1: plain autograd. The activation of a gated feed-forward part is kept next to its product and computed in a kernel of its own, "
        "rotary embeddings, changes of layout around the attention, dropout before an adapter and the scaling behind it are kernels of "
        "their own; 0: fused functions",
        "nanotron, src/nanotron/models/llama.py; Hugging Face PEFT, tuners/lora/layer.py; Megatron-LM's fused SwiGLU and rotary embeddings",
        most=1.0,
    )
    hosted_gradients: float = assumption(
        0.0,
        "1: where the optimizer is on the host, gradients go there as soon as those of a module are computed; 0: they add up on the device",
        "Megatron-LM --optimizer-cpu-offload copies them for the update; 1 in DeepSpeed (ZeRO-Offload, arXiv:2101.06840, section 4.1)",
    )
    gradient_copies: float = assumption(
        0.0,
        "1: gradients as they are computed stand next to the wider sums of gradients that accumulate; 0: they are added up at once",
        "nanotron, src/nanotron/optim/gradient_accumulator.py; Megatron-LM --gradient-accumulation-fusion",
        most=1.0,
    )
    norm_copies: float = assumption(
        0.0,
        "1: root-mean-square norms are written out: a kernel for each operation, in fp32, and what they keep is a copy in fp32; 0: one "
        "kernel each way",
        "none unless a framework says otherwise: fused norms of Megatron-LM, Transformer Engine, PyTorch and Triton",
        most=1.0,
    )
    gathered_copies: float = assumption(
        0.0,
        "1: the inputs of the matrices are kept as they are gathered under sequence parallelism; 0: they are gathered again",
        "Korthikanti et al. (arXiv:2205.05198), section 4.2.2: Megatron-LM gathers again",
    )
    bucket_copies: float = assumption(
        0.0,
        "copies of the gradients in buckets of their own where ranks keep whole copies of the weights",
        "none in Megatron-LM, whose gradients are views of its buckets; 1 in PyTorch DDP without gradient_as_bucket_view",
    )
    communicator_bytes: float = assumption(
        0.0,
        "memory of a device, beside the context of the driver, that the communication library takes in runs on several devices",
        "none unless a framework says otherwise: it is part of the reserve",
    )
    unusable_memory: float = assumption(
        0.0,
        "share of a device's memory that a measured run could not use: libraries, and blocks too small for what is asked",
        "none unless a framework says otherwise",
    )

    @property
    def is_padded(self) -> bool:
        """Whether experts compute their whole capacity."""
        return self.expert_capacity > 0.0 and self.expert_padding > 0.0

    def hidden_share(self, stage: ArrayLike) -> FloatArray:
        """Share of dp_overlap that exchanges of gradients keep under a ZeRO stage, and of the weights that ranks gather after the update.

        >>> MeshAssumptions(replica_overlap=0.0).hidden_share([0, 1, 2]).tolist()
        [0.0, 1.0, 1.0]
        >>> MeshAssumptions(zero_whole=1.0).hidden_share([0, 1, 3]).tolist()
        [1.0, 0.0, 1.0]
        """
        return np.asarray(np.choose(np.minimum(stage, 2), [self.replica_overlap, 1.0 - self.zero_whole, 1.0]))

    def gradient_width(self, precision: Precision) -> float:
        """Bytes of a gradient that is accumulated and exchanged."""
        return max(self.main_gradient_bytes, float(precision.gradient_bytes))


DEFAULT_ASSUMPTIONS = MeshAssumptions()
