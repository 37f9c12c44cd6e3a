"""One rank that trains small networks and times its steps. Started by test_trained_steps.py, where torch is.

Usage: trained_rank.py FOLDER RANK WORLD: cases.json in FOLDER says what is trained; rank 0 writes steps.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "exporters"))
import torch_decoder
from torch_ranks import load

WARM_UP, STEPS = 3, 30
# As the model files of test_trained_steps.py have them.
torch_decoder.WIDTH, torch_decoder.HEADS, torch_decoder.FFN = 256, 4, 1024
torch_decoder.VOCABULARY, torch_decoder.LENGTH, torch_decoder.BLOCKS = 2048, 128, 4


class Attention(torch_decoder.Attention):
    """With torch's own attention in place of two products and a softmax."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        parts = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (part(hidden_states).unflatten(-1, (-1, 64)).transpose(1, 2) for part in parts)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


torch_decoder.Attention = Attention


def perceptron() -> nn.Module:
    return nn.Sequential(
        *(part for _ in range(2) for part in (nn.Linear(1024, 1024), nn.ReLU())), nn.Linear(1024, 1024)
    )


def convolutions() -> nn.Module:
    """AlexNet in small."""
    layers: list[nn.Module] = []
    for channels, out, kernel in ((3, 32, 5), (32, 64, 5), (64, 128, 3)):
        layers += [nn.Conv2d(channels, out, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8192, 512), nn.ReLU(), nn.Linear(512, 128))


def made(name: str, samples: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    if name == "mlp":
        return perceptron(), torch.randn(samples, 1024), torch.randint(0, 1024, (samples,))
    if name == "cnn":
        return convolutions(), torch.randn(samples, 3, 64, 64), torch.randint(0, 128, (samples,))
    tokens, labels = torch.randint(0, 2048, (2, samples, 128))
    return torch_decoder.Decoder(), tokens, labels


def trainer(case: dict[str, Any], device: torch.device, world: int) -> Callable[[], object]:
    """A step of a case."""
    network, x, labels = (part.to(device) for part in made(case["network"], case["samples"]))
    context: Callable[[], Any] = contextlib.nullcontext
    if "plan" in case:
        plan = load(Path(case["plan"]))
        plan.parallelize(network, plan.build_mesh(device.type))
        context = torch_decoder.loss_parallel
    elif world > 1:
        # The cost model copies no gradients back from buckets.
        network = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
    adam = case["network"] == "llama"
    parameters = list(network.parameters())
    # One kernel for each tensor, which is what the cost model takes an update for.
    optimizer = (
        torch.optim.AdamW(parameters, fused=True) if adam else torch.optim.SGD(parameters, momentum=0.9, fused=True)
    )

    def step() -> None:
        optimizer.zero_grad()
        with context():
            F.cross_entropy(network(x).flatten(0, -2), labels.flatten()).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def disturbance(device: torch.device) -> tuple[float, float]:
    """Of a product of 512 x 512 x 512: time of the machine over that of this process, above 1 where others take the core away; and this."""
    if device.type == "cuda":
        return 1.0, 0.0
    a, out = torch.randn(512, 512), torch.empty(512, 512)
    wall_s, own_s = time.perf_counter(), time.process_time()
    for _ in range(50):
        torch.mm(a, a, out=out)
    own_s = time.process_time() - own_s
    return (time.perf_counter() - wall_s) / own_s, own_s / 50


def main(folder: Path, rank: int, world: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if has_gpu else torch.device("cpu")
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    if world > 1:
        where = f"file://{folder}/rendezvous"
        dist.init_process_group("nccl" if has_gpu else "gloo", init_method=where, rank=rank, world_size=world)
    # One rank that computes alone is timed as `planner measure` times it.
    clock = time.process_time if world == 1 and not has_gpu else time.perf_counter
    steps, disturbed = {}, [disturbance(device)]
    for name, case in json.loads((folder / "cases.json").read_text(encoding="utf-8")).items():
        step, times = trainer(case, device, world), []
        for _ in range(WARM_UP + STEPS):
            start_s = clock()
            step()
            times.append(clock() - start_s)
        steps[name] = times[WARM_UP:]
        disturbed.append(disturbance(device))
    if rank == 0:
        (folder / "steps.json").write_text(json.dumps({"steps": steps, "disturbed": disturbed}), encoding="utf-8")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
