"""What torch itself keeps of a block under the policy of torchtitan's selective checkpointing, and which products it runs again."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest

from costmodel.framework import Defaults, Framework
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.network.graph import Graph
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

FEATURES, HEADS, PAIRS, FFN, POSITIONS = 64, 8, 2, 224, 32
DIM = FEATURES // HEADS


# Ranks of adapters: 12 for each layer of the network, which matrices that are one layer there share.
RANKS = {"wq": 4, "wk": 4, "wv": 4, "wo": 12, "w1": 6, "w3": 6, "w2": 12}


def _block(torch: Any, *, adapts: bool) -> tuple[Any, Any]:
    """The forward pass of a block of Llama, in the order of torchtitan's model, and its weights; frozen beside adapters."""
    outputs = {"wq": FEATURES, "wk": PAIRS * DIM, "wv": PAIRS * DIM, "wo": FEATURES, "w1": FFN, "w3": FFN}
    shapes = {name: (out, FEATURES) for name, out in outputs.items()} | {"w2": (FEATURES, FFN)}
    weights = {n: torch.randn(shape, dtype=torch.bfloat16, requires_grad=not adapts) for n, shape in shapes.items()}
    pairs = {n: ((RANKS[n], into), (out, RANKS[n])) for n, (out, into) in shapes.items() if adapts}
    adapters = {
        n: [torch.randn(s, dtype=torch.bfloat16, requires_grad=True) for s in pair] for n, pair in pairs.items()
    }
    functional = torch.nn.functional

    def linear(name: str, x: Any) -> Any:
        made = functional.linear(x, weights[name])
        return made + functional.linear(functional.linear(x, adapters[name][0]), adapters[name][1]) if adapts else made

    def heads(x: Any) -> Any:
        return x.view(1, POSITIONS, -1, DIM).transpose(1, 2) * 1.0  # for the rotation

    def forward(x: Any) -> Any:
        entering = functional.rms_norm(x, (FEATURES,))
        query, key, value = (heads(linear(name, entering)) for name in ("wq", "wk", "wv"))
        key, value = (t.repeat_interleave(HEADS // PAIRS, 1) for t in (key, value))
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + linear("wo", seen.transpose(1, 2).reshape(1, POSITIONS, FEATURES))
        inner = functional.rms_norm(x, (FEATURES,))
        return x + linear("w2", functional.silu(linear("w1", inner)) * linear("w3", inner))

    return forward, (weights, adapters)


def _tensors(torch: Any) -> list[Any]:
    return [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]


def _graph(*, adapts: bool) -> Graph:
    graph = decoder(blocks=1, features=FEATURES, heads=HEADS, kv_heads=PAIRS, ffn=FFN, positions=POSITIONS)
    if not adapts:
        return graph
    layers = (
        replace(each, frozen=True, lora_rank=12 * (each.kind == "linear" and bool(each.block))) for each in graph.layers
    )
    return replace(graph, layers=tuple(layers))


# Right factors of the products that run again: wk, wo and w3; with adapters every other one of the three of each matrix.
_AGAIN = [(FEATURES, PAIRS * DIM), (FEATURES, FEATURES), (FEATURES, FFN)]
_AGAIN_WITH_ADAPTERS = [
    (FEATURES, 4), (FEATURES, PAIRS * DIM), (4, PAIRS * DIM), (FEATURES, 4), (FEATURES, FEATURES), (12, FEATURES),
    (FEATURES, 6), (FEATURES, FFN), (6, FFN), (FFN, 12),
]  # fmt: skip


@pytest.mark.e2e
@pytest.mark.parametrize(("adapts", "runs_again"), [(False, _AGAIN), (True, _AGAIN_WITH_ADAPTERS)])
def test_torch_keeps_what_the_model_keeps(adapts: bool, runs_again: list[tuple[int, int]]) -> None:
    torch = pytest.importorskip("torch")
    from torch._functorch.partitioners import get_default_op_list
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    product = torch.ops.aten.mm.default
    kept_operators = {operator.default for operator in get_default_op_list().compute_intensive_ops}
    kept_operators.add(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
    again: list[tuple[int, int]] = []

    def contexts() -> Any:
        counts = {True: 0, False: 0}

        def policy(context: Any, operator: Any, *args: Any, **_: Any) -> Any:
            counts[context.is_recompute] += operator == product
            is_second = operator == product and counts[context.is_recompute] % 2 == 0
            if is_second and not context.is_recompute:
                again.append(tuple(args[1].shape))
            is_kept = operator in kept_operators and not is_second
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    forward, _ = _block(torch, adapts=adapts)
    known = {id(tensor) for tensor in _tensors(torch)}
    x = torch.randn(1, POSITIONS, FEATURES, dtype=torch.bfloat16, requires_grad=not adapts)
    y = checkpoint(forward, x, use_reentrant=False, context_fn=contexts, preserve_rng_state=False)
    alive = [tensor.untyped_storage() for tensor in _tensors(torch) if id(tensor) not in known and tensor.numel() > 1]
    storages = {storage.data_ptr(): storage.nbytes() for storage in alive}
    del storages[y.untyped_storage().data_ptr()]  # the next block's
    graph = _graph(adapts=adapts)
    framework = Framework(defaults=Defaults(selective="operators"))
    model = make.model_of(graph, 1, make.ideal_cluster(memory_bandwidth=1e30), framework=framework)
    rows = model.rows(MeshBatch.from_plans([MeshPlan()]))
    assert sum(storages.values()) == rows.saved_selective_bytes[0, 1]
    assert again == runs_again
