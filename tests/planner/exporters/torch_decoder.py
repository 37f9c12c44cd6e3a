"""One rank of an exported plan of a decoder: tensor parallelism and FSDP beside the serial network. Started by test_torch_runs.py.

Plans and results lie as those of torch_ranks.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch_ranks import load

WIDTH, HEADS, FFN, VOCABULARY, LENGTH, BLOCKS = 16, 4, 32, 24, 8, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(hidden_states).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, -1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(-2))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(WIDTH, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.self_attn, self.mlp = Attention(), Gated()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(hidden_states=self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x)
        return self.norm(x)


class Decoder(nn.Module):
    """Names as LlamaForCausalLM has them."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.lm_head = Inner(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.model(tokens))


def llama() -> nn.Module:
    """The model of Hugging Face transformers, with heads of keys and values that two heads of queries share."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 2 * HEADS, "num_key_value_heads": HEADS}
    sizes = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_hidden_layers": BLOCKS, "vocab_size": VOCABULARY}
    # A cache would keep keys twice where blocks are recomputed.
    how = {"use_cache": False, "attn_implementation": os.environ["PLAN_ATTENTION"]}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **how))


class Sent(TorchDispatchMode):
    """Elements that this rank sends through DTensor, by collective; the loss and FSDP call others."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().partition("::")[2].partition(".")[0]
        if func.namespace == "_c10d_functional" and name in (
            "all_gather_into_tensor",
            "reduce_scatter_tensor",
            "all_reduce",
        ):
            n = dist.distributed_c10d._resolve_process_group(args[-1]).size()
            share = {
                "all_gather_into_tensor": n - 1,
                "reduce_scatter_tensor": (n - 1) / n,
                "all_reduce": 2 * (n - 1) / n,
            }
            self.elements[name] = self.elements.get(name, 0.0) + share[name] * args[0].numel()
        return result


def logits_of(answer: Any) -> torch.Tensor:
    return getattr(answer, "logits", answer)


def run(folder: Path) -> dict[str, Any]:
    plan = load(folder)
    torch.manual_seed(3)
    make = llama if "PLAN_ATTENTION" in os.environ else Decoder
    serial, split = make().double(), make().double()
    split.load_state_dict(serial.state_dict())
    mesh = plan.build_mesh("cpu")
    replicas = plan.MESH["dp_replicate"] * plan.MESH["dp_shard"]
    tokens = torch.randint(0, VOCABULARY, (2 * replicas, LENGTH), generator=torch.Generator().manual_seed(7))
    labels = torch.randint(0, VOCABULARY, (2 * replicas, LENGTH), generator=torch.Generator().manual_seed(8))
    expected = logits_of(serial(tokens))
    F.cross_entropy(expected.flatten(0, 1), labels.flatten()).backward()

    plan.parallelize(split, mesh)
    mine = slice(2 * (dist.get_rank() // plan.MESH["tp"]), 2 * (dist.get_rank() // plan.MESH["tp"]) + 2)
    with Sent() as sent:
        logits = logits_of(split(tokens[mine]))
        if isinstance(logits, DTensor):
            with loss_parallel():
                F.cross_entropy(logits.flatten(0, 1), labels[mine].flatten()).backward()
        else:
            F.cross_entropy(logits.flatten(0, 1), labels[mine].flatten()).backward()
    full = logits.full_tensor() if isinstance(logits, DTensor) else logits
    gradients = dict(serial.named_parameters())
    worst = 0.0
    for name, p in split.named_parameters():
        grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        plain = name.replace("_checkpoint_wrapped_module.", "")
        worst = max(worst, (grad - gradients[plain].grad).abs().max().item())
    return {"output": (full - expected[mine]).abs().max().item(), "gradient": worst, "sent": sent.elements}


def main(folder: Path, rank: int, world: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    results = {case.name: run(case) for case in sorted(folder.iterdir()) if case.is_dir()}
    (folder / f"result-{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
