"""A plan over a mesh as the styles that torch bundles: tensor and sequence parallelism of a decoder, and FSDP over the data-parallel ranks.

Column and row splits of Megatron-LM (Shoeybi et al., arXiv:1909.08053; sequence parallelism: Korthikanti et al., arXiv:2205.05198) are
ColwiseParallel and RowwiseParallel; FSDP2 (`fully_shard`) is ZeRO-2 or ZeRO-3. The mesh is dp_replicate, dp_shard, tp from outside in.
"""

from __future__ import annotations

from costmodel.precision import PRECISIONS
from planner.core.numbers import counted
from planner.exporters.account import Account
from planner.exporters.common import DOCUMENTS, SEGMENT, SPLITS, account_basics, account_script, given, header
from planner.exporters.job import Job
from planner.exporters.shell import PLAN, comment, scripts

FIELDS = {
    "tp": "MESH, tensor_plan()",
    "sequence_parallel": "tensor_plan()",
    "cp": "more than 1 is refused",
    "cp_kind": "cp is refused",
    "ep": "more than 1 is refused",
    "etp": "more than 1 is refused",
    "pp": "more than 1 is refused",
    "vpp": "more than 1 is refused",
    "schedule": "no pipelines",
    "dp_replicate": "MESH, fully_shard(mesh=)",
    "dp_shard": "MESH, fully_shard(mesh=)",
    "zero_stage": "fully_shard(reshard_after_forward=) False (2), True (3); -: 1",
    "micro_batch": "by hand: the data loader of your script",
    "num_micro_batches": "by hand: the loop of your script",
    "recompute": "checkpoint_wrapper (full); -: selective",
    "recompute_blocks": "RECOMPUTED_BLOCKS",
    "offload_optimizer": "-: CPUOffloadPolicy moves the weights, too",
    "offload_activations": "RUN_UNDER: torch.autograd.graph.save_on_cpu, by hand",
    "order": "tp-cp-dp-pp; no others",
    "domain_gpus": SEGMENT,
    "stage_blocks": "no pipelines",
    "stage_recompute": "no pipelines",
    "block_splits": SPLITS,
    "precision": "MixedPrecisionPolicy; by hand: without data parallelism; -: narrow formats",
    "optimizer": "by hand: your script",
    "seq": "by hand: your data",
    "doc_lengths": DOCUMENTS,
    "lora_rank": "by hand: adapters of your model",
    "placement": "processes per node of the launcher",
}


def render(job: Job, account: Account, checked: str) -> dict[str, str]:
    """Write plan.py and the scripts."""
    _account(job, account)
    head = header(job.origin, account, checked)
    return {PLAN: _plan_text(job, head), **scripts(job, head)}


def _account(job: Job, account: Account) -> None:
    plan = job.plan
    account_basics(job, account)
    samples = counted(plan.micro_batch, "sample")
    account.left_to_user(
        "micro_batch", f"{samples} per data-parallel rank in the data loader; ranks of one tp group read the same"
    )
    account.left_to_user("num_micro_batches", f"{plan.num_micro_batches} pass{'es' if plan.num_micro_batches > 1 else ''} per step" + (
        ", all but the last within set_requires_gradient_sync(False)" if plan.num_micro_batches > 1 else ""))  # fmt: skip
    account.left_to_user("optimizer", f"{job.optimizer}, built in your script after parallelize")
    account_script(job, account)
    if plan.tp > 1:
        account.left_to_user(
            "loss", "within torch.distributed.tensor.parallel.loss_parallel(): the logits are split by the vocabulary"
        )
    if plan.tp > 1 and job.network is not None and job.network.is_tied:
        account.left_to_user(
            "tied_weights", "parallelize makes two parameters of the embedding and the head: tie them again, in shard()"
        )
    _account_memory(job, account)


def _account_memory(job: Job, account: Account) -> None:
    plan = job.plan
    if plan.offload_activations:
        account.left_to_user(
            "offload_activations", "torch.autograd.graph.save_on_cpu(pin_memory=True) around the forward pass"
        )
    if job.precision == "tf32":
        account.left_to_user("precision", "torch.set_float32_matmul_precision('high') in your script")
    elif plan.dp == 1 and job.precision != "fp32":
        account.left_to_user(
            "precision", f"torch.autocast, or a model of {_DTYPES[PRECISIONS[job.precision].plain.name]}"
        )


_DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}

# Roles of the parts of a decoder -> names as LlamaForCausalLM of Hugging Face transformers has them.
_NAMES = {
    "block": "model.layers",
    "embedding": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention": "self_attn",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp": "mlp",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "final_norm": "model.norm",
    "head": "lm_head",
}


_IMPORTS = """
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
"""
_TENSOR_IMPORTS = """from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
"""
_CHECKPOINT_IMPORT = "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper\n"
_FSDP_IMPORT = "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"

_MESH = '''
def build_mesh(device_type: str | None = None) -> DeviceMesh:
    """The mesh of all ranks, in their order; starts torch.distributed where it does not run yet."""
    device = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    return init_device_mesh(device, tuple(MESH.values()), mesh_dim_names=tuple(MESH))


def parallelize(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Split, checkpoint and shard a model in place."""
    missing = [name for name in module_names(module) if name not in dict(module.named_modules())]
    if missing:
        raise ValueError(f"NAMES in plan.py does not fit this model, which has no {', '.join(missing[:10])}")
{calls}    return module


def blocks_of(module: nn.Module) -> dict[str, nn.Module]:
    """The blocks, by name and in order."""
    container = module.get_submodule(NAMES["block"])
    return {f"{NAMES['block']}.{name}": block for name, block in container.named_children()}


def module_names(module: nn.Module) -> list[str]:
    """Names that the plan expects."""
    outer = [NAMES[role] for role in OUTSIDE if role in NAMES]
    inner = [name for role, name in NAMES.items() if role not in (*OUTSIDE, "block")]
    return [NAMES["block"], *outer, *(f"{block}.{name}" for block in blocks_of(module) for name in inner)]
'''

_TENSOR = '''
class Gathered(ParallelStyle):
    """Brings the hidden states, the first argument or ``hidden_states``, to every rank once for all matrices that read them."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            if "hidden_states" in kwargs:
                return args, {**kwargs, "hidden_states": whole(kwargs["hidden_states"])}
            return (whole(args[0]), *args[1:]), kwargs

        def whole(x: torch.Tensor) -> DTensor:
            if not isinstance(x, DTensor):
                x = DTensor.from_local(x, device_mesh, [HIDDEN], run_check=False)
            return x.redistribute(placements=[Replicate()])

        module.register_forward_pre_hook(gather, with_kwargs=True)
        return module


def tensor_plan(module: nn.Module) -> dict[str, ParallelStyle]:
    """Module -> how it is split over "tp"."""
    inside = {
        "attention_norm": NORM, "attention": Gathered(), "mlp_norm": NORM, "mlp": Gathered(),
        "query": ColwiseParallel(), "key": ColwiseParallel(), "value": ColwiseParallel(),
        "gate": ColwiseParallel(), "up": ColwiseParallel(),
        "attention_output": RowwiseParallel(output_layouts=HIDDEN, use_local_output=LOCAL),
        "down": RowwiseParallel(output_layouts=HIDDEN, use_local_output=LOCAL),
    }
    plan = {
        NAMES["embedding"]: RowwiseParallel(
            input_layouts=Replicate(), output_layouts=HIDDEN, use_local_output=LOCAL
        ),
        NAMES["final_norm"]: NORM,
        NAMES["head"]: ColwiseParallel(input_layouts=HIDDEN, output_layouts=Shard(-1), use_local_output=False),
    }
    for block in blocks_of(module):
        plan |= {f"{block}.{NAMES[role]}": style for role, style in inside.items() if role in NAMES}
    return {name: style for name, style in plan.items() if style is not None}
'''

_SHARD = '''
def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """FSDP over the data-parallel ranks: every block, then what is left."""
    options = {"mesh": mesh["dp_replicate", "dp_shard"], "reshard_after_forward": RESHARD, "mp_policy": PRECISION}
    for block in blocks_of(module).values():
        fully_shard(block, **options)
    fully_shard(module, **options)
'''


def _plan_text(job: Job, head: list[str]) -> str:
    plan, network = job.plan, job.network
    is_split, is_data, recomputed = plan.tp > 1, plan.dp > 1, sum(job.chunk_recompute)
    has_gate = network is None or network.has_glu
    parts = [role for role in _NAMES if role == "block" or (is_split and (has_gate or role != "gate"))]
    calls = {
        '    parallelize_module(module, mesh["tp"], tensor_plan(module))\n': is_split,
        "    for name in list(blocks_of(module))[:RECOMPUTED_BLOCKS]:\n"
        "        module.set_submodule(name, checkpoint_wrapper(module.get_submodule(name)))\n": recomputed > 0,
        "    shard(module, mesh)\n": is_data,
    }
    hidden = (
        "# As DTensors they keep the length of the whole sample, by which a model counts positions and masks.\n"
        "HIDDEN, NORM, LOCAL = Shard(1), SequenceParallel(), False\n"
        if plan.sequence_parallel
        else "HIDDEN, NORM, LOCAL = Replicate(), None, True\n"
    )
    dtype = _DTYPES[PRECISIONS[job.precision].plain.name]
    policy = "" if dtype == "float32" else f"param_dtype=torch.{dtype}, reduce_dtype=torch.float32"
    settings = {
        f"# Hidden states between the split matrices, and what is computed on them.\n{hidden}": is_split,
        f"RECOMPUTED_BLOCKS = {recomputed}\n": recomputed > 0,
        f"RESHARD = {plan.zero_stage == 3}  # weights leave after the forward pass: ZeRO-3\n": is_data,
        f"PRECISION = MixedPrecisionPolicy({policy})\n": is_data,
    }
    texts = [
        "\n".join(comment(head)) + f'\n"""How to split a decoder over {plan.workers} ranks."""\n\n',
        "from __future__ import annotations\n" + _IMPORTS,
        *given({_CHECKPOINT_IMPORT: recomputed > 0, _FSDP_IMPORT: is_data, _TENSOR_IMPORTS: is_split}),
        "\n# Ranks from the outermost dimension to the innermost: the innermost are neighbours.\n",
        f'MESH = {{"dp_replicate": {plan.dp_replicate}, "dp_shard": {plan.dp_shard}, "tp": {plan.tp}}}\n',
        "# Part -> your module, inside a block without its name. CHANGE THE RIGHT SIDE to fit your model.\n",
        "NAMES = {\n" + "".join(f'    "{role}": "{_NAMES[role]}",\n' for role in parts) + "}\n",
        'OUTSIDE = ("embedding", "final_norm", "head")\n',
        *given(settings),
        "\n" + _MESH.replace("{calls}", "".join(given(calls))),
        *given({"\n" + _TENSOR: is_split, "\n" + _SHARD: is_data}),
    ]
    return "".join(texts)
