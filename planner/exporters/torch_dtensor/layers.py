"""A split per layer as DTensor placements: one device mesh for all layers, and a style for every layer.

All layers share one mesh. Ranks lie as the cost model lays them out (`costmodel.layerwise.plan`): batch outermost, then input channels,
then output channels; a layer with degrees (2, 1, 4) cuts the ranks at 2 and at 8, one with (4, 2, 1) at 4 and at 8, and the mesh of both is
2 x 2 x 2. Where no mesh has all cuts (2 x 3 beside 3 x 2) the plan is refused.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

from costmodel.layerwise.plan import Split
from costmodel.network.layers import Layer
from planner.exporters.account import Account
from planner.exporters.common import account_collectives, account_placement, header
from planner.exporters.job import LayerJob
from planner.exporters.shell import PLAN, comment, scripts

FIELDS = {
    "workers": "MESH",
    "batch": "STYLES: Shard(0) of the activations, Replicate() of the weights",
    "out_channels": "STYLES: Replicate() of the input, Shard(0) of the weights",
    "in_channels": "STYLES: Shard of the channels of the input, Shard(1) of the weights",
    "height": "more than 1 is refused",
    "stages": "more than 1 is refused",
    "num_micro_batches": "by hand: the loop of your script, with no_exchange()",
    "collective": "-: the library of collectives chooses",
    "precision": "by hand: your model",
    "optimizer": "by hand: your script",
    "placement": "processes per node of the launcher",
}
# Files of this folder that are copied beside the plan.
LAYOUTS, MOVES = "plan_layouts.py", "plan_moves.py"
_MATRICES = frozenset({"linear", "convolution"})
# Treat channels apart, as modules of torch on one tensor.
_PER_CHANNEL = frozenset({"pool", "global_pool", "dropout", "activation", "batch_norm", "upsample"})
# Have no module, or none that must be told: DTensor carries them out.
_DISPATCHED = frozenset({"input", "flatten", "add", "concat", "softmax"})
# DTensor has no rule for these, also where the batch is split.
_LOCAL = frozenset({"local_response_norm"})


def refusals(job: LayerJob) -> list[str]:
    """Splits that have no placement, or no style."""
    plan, problems = job.plan, []
    if not job.training:
        problems.append("it is for inference; what is written trains")
    if plan.stages:
        problems.append(
            f"{len(plan.stages)} stages: a pipeline is a program of torch.distributed.pipelining, not a plan of placements; no target "
            "takes a split per layer with stages"
        )
        return problems
    if job.global_batch % plan.num_micro_batches:
        problems.append(f"global_batch {job.global_batch} does not divide over {plan.num_micro_batches} micro-batches")
    for layer, split in zip(job.graph.layers, plan.splits, strict=True):
        problems += [f"layer '{layer.name}': {text}" for text in _faults(layer, split)]
    if problems:
        return problems
    mesh = mesh_shape(plan.workers, plan.splits)
    if mesh is None:
        found = sorted({" x ".join(str(d) for d in _in_order(split) if d > 1) for split in plan.splits})
        return [f"no device mesh has all these splits (batch x in_channels x out_channels): {'; '.join(found)}"]
    # full_tensor() of torch 2.13 joins rows that two dimensions cut in strides in another order: checkpoints would be wrong.
    return [
        f"layer '{layer.name}': in_channels {split.in_channels} beside out_channels {split.out_channels}, which the splits of other "
        f"layers cut in {_roles(split, mesh).count('out')}: torch joins the rows of such weights in the wrong order"
        for layer, split in zip(job.graph.layers, plan.splits, strict=True)
        if layer.kind in _MATRICES and split.in_channels > 1 and _roles(split, mesh).count("out") > 1
    ]


def _faults(layer: Layer, split: Split) -> list[str]:
    by_channels = split.out_channels * split.in_channels
    if split.height > 1:
        return [f"height {split.height}: rows are exchanged with neighbours, which no placement says"]
    if by_channels == 1 or layer.kind == "input":
        return []
    groups = getattr(layer.params, "groups", 1)
    checks = {
        f"a layer of type '{layer.kind}' split by channels has no style; only its batch can be split": layer.kind
        not in _MATRICES | _PER_CHANNEL | _DISPATCHED,
        "an adapter beside weights that are split by channels has no style": layer.lora_rank > 0,
        f"{layer.output_shape[0]} outputs do not divide by out_channels x in_channels = {by_channels}": split.in_channels
        > 1
        and split.out_channels > 1
        and layer.output_shape[0] % by_channels != 0,
        f"{groups} groups do not divide by out_channels {split.out_channels}": groups > 1
        and groups % split.out_channels != 0,
    }
    return [text for text, is_wrong in checks.items() if is_wrong][:1]


def _in_order(split: Split) -> tuple[int, int, int]:
    """Degrees in the order of the ranks, from the outermost."""
    return (split.batch, split.in_channels, split.out_channels)


def mesh_shape(workers: int, splits: Sequence[Split]) -> tuple[int, ...] | None:
    """Smallest mesh on which every split is a product of neighbouring dimensions; None where there is none.

    >>> mesh_shape(8, [Split(batch=8), Split(batch=2, out_channels=4), Split(in_channels=4, out_channels=2)])
    (2, 2, 2)
    >>> mesh_shape(6, [Split(batch=2, out_channels=3), Split(batch=3, out_channels=2)]) is None
    True
    """
    cuts = {1, workers}
    for split in splits:
        cuts.update(itertools.accumulate(_in_order(split), lambda a, b: a * b))
    ordered = sorted(cuts)
    if any(b % a for a, b in itertools.pairwise(ordered)):
        return None
    return tuple(b // a for a, b in itertools.pairwise(ordered)) or (1,)


def _roles(split: Split, mesh: Sequence[int]) -> list[str]:
    """Per dimension of the mesh: what it splits."""
    roles, position = [], 1
    batch, inputs, _ = itertools.accumulate(_in_order(split), lambda a, b: a * b)
    for size in mesh:
        roles.append("batch" if position < batch else "in" if position < inputs else "out")
        position *= size
    return roles


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _channel_of(layer: Layer, *, output: bool) -> str:
    """Channels are the last dimension of a sequence (samples, positions, features) and the second of anything else."""
    shape = layer.output_shape if output or not layer.input_shapes else layer.input_shapes[0]
    return "Shard(2)" if len(shape) == 2 else "Shard(1)"


def _layout(layer: Layer, roles: Sequence[str]) -> list[str]:
    """Placements of the output."""
    return ["Shard(0)" if role == "batch" else _channel_of(layer, output=True) for role in roles]


def _need(layer: Layer, roles: Sequence[str]) -> list[str]:
    """Placements that the layer needs its input in."""
    own = _channel_of(layer, output=False)
    whole = own if layer.family.limits(layer).channelwise else "Replicate()"
    return [{"batch": "Shard(0)", "in": own, "out": whole}[role] for role in roles]


def _style(layer: Layer, roles: Sequence[str], mesh: Sequence[int]) -> str:
    if layer.kind in _MATRICES:
        strides = math.prod(size for size, role in zip(mesh, roles, strict=True) if role == "in")
        rows = f"Strided(0, split_factor={strides})" if strides > 1 else "Shard(0)"
        weight = [{"batch": "Replicate()", "in": "Shard(1)", "out": rows}[role] for role in roles]
        parts = {"input": _need(layer, roles), "weight": weight, "output": _layout(layer, roles)}
        lines = "".join(f"        {name}={_tuple(items)},\n" for name, items in parts.items())
        return f"Matrix(\n{lines}    )"
    if layer.kind in _PER_CHANNEL:
        return f"PerChannel(layout={_tuple(_layout(layer, roles))})"
    return "Whole()"


def _words(split: Split) -> str:
    parts = [
        f"{name} {d}"
        for name, d in zip(("batch", "out_channels", "in_channels"), split.degrees[:3], strict=True)
        if d > 1
    ]
    return ", ".join(parts) or "one rank"


def _entries(job: LayerJob, mesh: Sequence[int]) -> list[tuple[str, str, str]]:
    """(name, style, comment) of every layer that has a module."""
    entries, at = [], {layer.name: i for i, layer in enumerate(job.graph.layers)}
    layouts = [_layout(x, _roles(s, mesh)) for x, s in zip(job.graph.layers, job.plan.splits, strict=True)]
    for layer, split in zip(job.graph.layers, job.plan.splits, strict=True):
        roles = _roles(split, mesh)
        changes = any(layouts[at[name]] != layouts[at[layer.name]] for name in layer.inputs)
        carries = layer.kind in _LOCAL or layer.weight_count or layer.kind in ("pool", "global_pool")
        if layer.kind in _DISPATCHED or not (carries or (changes and layer.kind in _PER_CHANNEL)):
            continue
        entries.append((layer.name, _style(layer, roles, mesh), _words(split)))
        if getattr(layer.params, "norm", None):
            style = f"PerChannel(layout={_tuple(_layout(layer, roles))})"
            entries.append((f"{layer.name}_norm", style, f"the normalisation after {layer.name}"))
    return entries


def _account(job: LayerJob, account: Account) -> None:
    plan = job.plan
    account_placement(job.nodes, account)
    account_collectives(job.collectives, account)
    if plan.num_micro_batches > 1:
        samples = job.global_batch // plan.num_micro_batches
        account.left_to_user(
            "num_micro_batches",
            f"{plan.num_micro_batches} passes of {samples} samples per step, all but the last within no_exchange(): plan.py shows the loop",
        )
    words = {
        "fp32": "float32",
        "tf32": "float32 and torch.set_float32_matmul_precision('high')",
        "fp16": "float16",
        "bf16": "bfloat16",
    }
    account.left_to_user(
        "precision", f"activations and weights in {words.get(job.precision, job.precision)}, in your model"
    )
    account.left_to_user("optimizer", f"{job.optimizer}, built in your script after parallelize")
    if any(getattr(layer.params, "norm", None) or layer.kind == "batch_norm" for layer in job.graph.layers):
        account.left_to_user(
            "batch_norm", "statistics are those of a rank's own share of the batch, as in data parallelism"
        )
    _account_moves(job, account)
    account.fill(FIELDS, job.in_effect)


def _account_moves(job: LayerJob, account: Account) -> None:
    """Layers that switch the layout in the plan and have no module to do it in."""
    mesh = mesh_shape(job.plan.workers, job.plan.splits) or (1,)
    layouts = {x.name: _layout(x, _roles(s, mesh)) for x, s in zip(job.graph.layers, job.plan.splits, strict=True)}
    for layer in job.graph.layers:
        changes = any(layouts[name] != layouts[layer.name] for name in layer.inputs)
        if changes and layer.kind in ("add", "concat", "flatten"):
            account.left_to_user(
                layer.name,
                f"the plan switches layouts in this '{layer.kind}', which is no module: DTensor or the next layer does, another way",
            )


def render(job: LayerJob, account: Account, checked: str) -> dict[str, str]:
    """Write plan.py, the styles and the scripts."""
    _account(job, account)
    head = header(job.origin, account, checked)
    copies = {name: Path(__file__).with_name(name).read_text(encoding="utf-8") for name in (LAYOUTS, MOVES)}
    return {PLAN: _plan_text(job, head), **copies, **scripts(job, head)}


_DOC = '''"""How to split {model} over {workers} ranks: a device mesh, and DTensor placements for every layer.

In a training script that train.sh starts on every rank:

    mesh = plan.build_mesh()
    model = plan.parallelize(model, mesh)  # the same weights on every rank, or those of rank 0
    optimizer = ...  # after parallelize
    for samples, labels in loader:  # a whole global batch, the same on every rank
{loop}
        optimizer.step()
        optimizer.zero_grad()

The loss is this rank's part; the sum over all ranks is the mean. ``parameter.full_tensor()`` is a whole parameter.
"""'''
_ONCE = """        logits = model(plan.share(samples, mesh, plan.INPUT))
        plan.loss(logits, labels).backward()  # exchanges the gradients, too"""
_SEVERAL = """        parts = zip(samples.chunk(plan.NUM_MICRO_BATCHES), labels.chunk(plan.NUM_MICRO_BATCHES))
        for i, (part, wanted) in enumerate(parts):
            with contextlib.nullcontext() if i == plan.NUM_MICRO_BATCHES - 1 else plan.no_exchange():
                logits = model(plan.share(part, mesh, plan.INPUT))
                plan.loss(logits, wanted).backward()  # the last exchanges the gradients, too"""


def _plan_text(job: LayerJob, head: Sequence[str]) -> str:
    plan = job.plan
    mesh = mesh_shape(plan.workers, plan.splits)
    assert mesh is not None, "refused"
    model = json.dumps(job.origin.model, ensure_ascii=True)[1:-1].replace("\\", " ")
    loop = _ONCE if plan.num_micro_batches == 1 else _SEVERAL
    entries = [("model", "Whole()", f"batch {plan.workers}")] if job.is_data_parallel else _entries(job, mesh)
    used = "\n".join(style for _, style, _ in entries)
    styles = [name for name in ("Matrix", "PerChannel", "Whole") if f"{name}(" in used]
    layouts = sorted(
        {*styles, "check_names", "cross_entropy", "no_exchange", "share"}, key=lambda n: (n[0].islower(), n)
    )
    sizes = [f'"dim{i}": {size}' for i, size in enumerate(mesh)]
    strided = "from torch.distributed.tensor.placement_types import _StridedShard as Strided"
    # Of the last layer: the softmax, or what else the loss is computed of.
    loss_layout = _layout(job.graph.layers[-1], _roles(plan.splits[-1], mesh))
    lines = [
        *comment(head),
        _DOC.format(model=model, workers=plan.workers, loop=loop),
        "",
        "from __future__ import annotations",
        "",
        "import torch",
        f"from plan_layouts import {', '.join(layouts)}",
        "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh",
        "from torch.distributed.tensor import DTensor, Replicate, Shard",
        "from torch.distributed.tensor.parallel import parallelize_module",
        *([strided] if "Strided(" in used else []),
        "",
        '__all__ = ["INPUT", "build_mesh", "loss", "no_exchange", "parallelize", "share"]',
        "",
        f"GLOBAL_BATCH = {job.global_batch}",
        f"NUM_MICRO_BATCHES = {plan.num_micro_batches}",
        "# Ranks from the outermost dimension to the innermost: the innermost are neighbours.",
        f"MESH = {{{', '.join(sizes)}}}",
        "# Layouts of what enters the model, and of the logits in the loss; a placement per dimension of the mesh.",
        f"INPUT = {_tuple(_input_layout(job, mesh))}",
        f"LOSS = {_tuple(loss_layout)}",
        "",
        *_modules(job, entries),
        "",
        "# Layer of the plan -> placements.",
        "STYLES = {",
        *(f"    # {text}\n    {json.dumps(name)}: {style}," for name, style, text in entries),
        "}",
        "",
        *_FUNCTIONS.splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _modules(job: LayerJob, entries: Sequence[tuple[str, str, str]]) -> list[str]:
    if job.is_data_parallel:
        return ['# Part of the plan -> your module; "" is the whole model.', 'MODULES = {"model": ""}']
    return [
        "# Layer of the plan -> your module, as model.named_modules() has it. CHANGE THE RIGHT SIDE to fit your model; None where it has",
        "# no module for a layer without weights (a function, say), whose layout then changes in the next layer.",
        "MODULES: dict[str, str | None] = {",
        *(f"    {json.dumps(name)}: {json.dumps(name)}," for name, _, _ in entries),
        "}",
    ]


def _input_layout(job: LayerJob, mesh: Sequence[int]) -> list[str]:
    """What the first layer needs: every rank loads it."""
    layers = job.graph.layers
    inputs = {layer.name for layer in layers if layer.kind == "input"}
    for layer, split in zip(layers, job.plan.splits, strict=True):
        if inputs & set(layer.inputs):
            return _need(layer, _roles(split, mesh))
    return ["Shard(0)"] * len(mesh)


_FUNCTIONS = '''
def build_mesh(device_type: str | None = None) -> DeviceMesh:
    """The mesh of all ranks, in their order; starts torch.distributed where it does not run yet."""
    device = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    return init_device_mesh(device, tuple(MESH.values()), mesh_dim_names=tuple(MESH))


def parallelize(module: torch.nn.Module, mesh: DeviceMesh) -> torch.nn.Module:
    """Distribute the weights (those of rank 0) and change how the layers of MODULES run; the module is changed in place."""
    names = {layer: name for layer, name in MODULES.items() if name is not None}
    check_names(module, list(names.values()))
    for layer, name in names.items():
        parallelize_module(module.get_submodule(name), mesh, STYLES[layer])
    return module


def loss(logits: DTensor, labels: torch.Tensor) -> torch.Tensor:
    """This rank's part of the mean cross-entropy of a step."""
    return cross_entropy(logits, labels, LOSS, num_micro_batches=NUM_MICRO_BATCHES)
'''
