"""One rank of an exported plan: runs it beside the serial network and counts what it sends. Started by test_torch_runs.py, where torch is.

Every folder in the folder that is given to `main` holds a plan; results go to result-RANK.json beside them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class ConvNet(nn.Module):
    """AlexNet in small: convolutions, then fully connected layers; channels and classes that divide by 2 and 4."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool1 = nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2)
        self.conv2, self.pool2 = nn.Conv2d(8, 8, 3, padding=1), nn.MaxPool2d(2)
        self.fc6, self.fc7, self.fc8 = nn.Linear(128, 32), nn.Linear(32, 32), nn.Linear(32, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool1(torch.relu(self.conv1(x)))
        x = torch.flatten(self.pool2(torch.relu(self.conv2(x))), 1)
        return self.fc8(torch.relu(self.fc7(torch.relu(self.fc6(x)))))


class Normalised(nn.Module):
    """A grouped convolution, a normalisation that DTensor has no rule for, and global pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.lrn, self.conv2 = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.LocalResponseNorm(3),
            nn.Conv2d(8, 8, 3, groups=4),
        )
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv2(self.lrn(self.conv1(x))))
        return self.fc(torch.flatten(self.pool(x), 1))


class Perceptron(nn.Module):
    """Two matrices on every position of a sequence, with the residual of a transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.up, self.down, self.head = (
            nn.Linear(8, 16),
            nn.Linear(16, 32),
            nn.Linear(32, 16),
            nn.Linear(16, 12),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        x = x + self.down(torch.relu(self.up(x)))
        return self.head(x)


class Normalisation(nn.BatchNorm2d):
    """Of shares of the batch apart, as ranks of data parallelism have them; one share is torch's own."""

    shares = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([super(Normalisation, self).forward(part) for part in x.chunk(self.shares)])


class Network(nn.Module):
    """A network of the planner's files: a module per layer, by the layer's name, and "_norm" behind it where it is normalised."""

    def __init__(self, layers: list[dict[str, Any]]) -> None:
        super().__init__()
        self.layers = layers
        for layer in layers:
            if (module := self.module(layer)) is not None:
                self.put(layer["name"], module)
            if layer.get("norm"):
                self.put(f"{layer['name']}_norm", Normalisation(layer["out_channels"]))

    def put(self, name: str, module: nn.Module) -> None:
        *path, last = name.split(".")
        owner: nn.Module = self
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner._modules[part]
        owner.add_module(last, module)

    def module(self, layer: dict[str, Any]) -> nn.Module | None:
        window = {"kernel_size": layer.get("kernel"), "stride": layer.get("stride"), "padding": layer.get("padding")}
        kind = layer["kind"]
        if kind == "convolution":
            more = {key: layer[key] for key in ("dilation", "groups", "bias")}
            return nn.Conv2d(layer["channels"], layer["out_channels"], **window, **more)
        if kind == "linear":
            return nn.Linear(layer["features"], layer["out_features"], bias=layer["bias"])
        if kind == "pool":
            return nn.MaxPool2d(**window)
        # No element is dropped, which the serial network could not repeat.
        made = {
            "global_pool": lambda: nn.AdaptiveAvgPool2d(1),
            "dropout": lambda: nn.Dropout(0.0),
            "activation": nn.ReLU,
        }
        return made[kind]() if kind in made else None

    def normalise_by_shares(self) -> Network:
        """As ranks do that have a share of the batch each."""
        for layer in self.layers:
            if layer.get("norm"):
                self.get_submodule(f"{layer['name']}_norm").shares = layer["shares"]
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = {"data": x}
        for layer in self.layers[1:]:
            name, (x, *others) = layer["name"], [values[parent] for parent in layer["inputs"]]
            if layer["kind"] == "add":
                x = x + others[0]
            elif layer["kind"] != "softmax":
                x = torch.flatten(x, 1) if layer["kind"] == "linear" else x
                x = self.get_submodule(name)(x)
            if layer.get("norm"):
                x = self.get_submodule(f"{name}_norm")(x)
            values[name] = torch.relu(x) if layer.get("activation") else x
        return values[self.layers[-1]["name"]]


NETWORKS = {
    "convnet": (ConvNet, (3, 16, 16)),
    "normalised": (Normalised, (3, 8, 8)),
    "perceptron": (Perceptron, (5, 8)),
}


class Counter:
    """Elements that this rank sends, by kind; the algorithms that send least (a ring, pieces sent directly)."""

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}
        self.calls = 0

    def add(self, kind: str, elements: float) -> None:
        self.sent[kind] = self.sent.get(kind, 0.0) + elements
        self.calls += 1

    def watch(self) -> None:
        """Count every collective from now on."""
        counter = self
        names = {
            "all_to_all_single": "all_to_all_single",
            "all_gather": "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor",
            "reduce_scatter": "reduce_scatter_single"
            if hasattr(dist, "reduce_scatter_single")
            else "reduce_scatter_tensor",
            "all_reduce": "all_reduce",
        }
        originals = {key: getattr(dist, name) for key, name in names.items()}
        exchange = collectives.all_reduce

        def all_to_all(out: Any, x: Any, got: Any, sent: Any, group: Any) -> Any:
            counter.add("all_to_all", sum(sent) - sent[dist.get_rank(group)])
            return originals["all_to_all_single"](out, x, got, sent, group=group)

        def all_gather(out: Any, x: Any, group: Any) -> Any:
            counter.add("all_gather", (dist.get_world_size(group) - 1) * x.numel())
            return originals["all_gather"](out, x, group=group)

        def reduce_scatter(out: Any, x: Any, group: Any) -> Any:
            counter.add("reduce_scatter", (dist.get_world_size(group) - 1) * out.numel())
            return originals["reduce_scatter"](out, x, group=group)

        def all_reduce(x: Any, op: Any = dist.ReduceOp.SUM, *, group: Any) -> Any:
            n = dist.get_world_size(group)
            counter.add("loss", 2 * (n - 1) / n * x.numel())
            return originals["all_reduce"](x, op, group=group)

        def all_reduce_gradient(x: Any, op: str, group: Any) -> Any:
            n = dist.get_world_size(group)
            counter.add("exchange", 2 * (n - 1) / n * x.numel())
            return exchange(x, op, group)

        counted = {
            "all_to_all_single": all_to_all,
            "all_gather": all_gather,
            "reduce_scatter": reduce_scatter,
            "all_reduce": all_reduce,
        }
        for key, name in names.items():
            setattr(dist, name, counted[key])
        collectives.all_reduce = all_reduce_gradient


class Seen(TorchDispatchMode):
    """Counts every collective that torch dispatches, whoever calls it; CommDebugMode does too, but loses track of changed modules."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_collective = (
            func.namespace in ("c10d", "_c10d_functional") and "wait" not in func.name() and "wrap" not in func.name()
        )
        self.calls += is_collective
        return func(*args, **(kwargs or {}))


def load(folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"plan_{folder.name.replace('-', '_')}", folder / "plan.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_serially(
    network: nn.Module, parts: tuple[torch.Tensor, ...], labels: torch.Tensor, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and loss, and gradients in the parameters; one rank computes them for all, which share a few cores."""
    results = [torch.zeros(*labels.shape, classes, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    results += [torch.zeros_like(p) for p in network.parameters()]
    if dist.get_rank() == 0:
        logits = torch.cat([network(part) for part in parts])
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        results = [logits.detach(), loss.detach(), *(p.grad for p in network.parameters())]
    for result in results:
        dist.broadcast(result, 0)
    for p, grad in zip(network.parameters(), results[2:], strict=True):
        p.grad = grad
    return results[0], results[1]


def run(folder: Path, counter: Counter) -> dict[str, Any]:
    plan, setting = load(folder), json.loads((folder / "setting.json").read_text(encoding="utf-8"))
    make, shape = (
        NETWORKS[setting["network"]] if "network" in setting else (lambda: Network(setting["layers"]), setting["shape"])
    )
    torch.manual_seed(setting["seed"])
    serial = make().double()
    if isinstance(serial, Network):
        serial.normalise_by_shares()
    # Other weights on other ranks: those of rank 0 must win.
    torch.manual_seed(setting["seed"] + dist.get_rank())
    split = make().double()
    samples = torch.randn(plan.GLOBAL_BATCH, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    positions = shape[:1] if len(shape) == 2 else ()
    classes = setting.get("classes", 12)
    labels = torch.randint(0, classes, (plan.GLOBAL_BATCH, *positions), generator=torch.Generator().manual_seed(8))

    expected, loss = run_serially(serial, samples.chunk(plan.NUM_MICRO_BATCHES), labels, classes)
    mesh = plan.build_mesh("cpu")
    plan.parallelize(split, mesh)
    counter.sent, counter.calls = {}, 0
    parts, outputs, total = plan.NUM_MICRO_BATCHES, [], torch.zeros((), dtype=torch.float64)
    with Seen() as seen:
        for i, (x, wanted) in enumerate(zip(samples.chunk(parts), labels.chunk(parts), strict=True)):
            logits = split(plan.share(x, mesh, plan.INPUT))
            part = plan.loss(logits, wanted)
            if i < parts - 1:
                with plan.no_exchange():
                    part.backward()
            else:
                part.backward()
            outputs.append(logits)
            total += part.detach()
    sent, calls = dict(counter.sent), counter.calls
    dist.all_reduce(total, group=dist.group.WORLD)
    gradients = dict(serial.named_parameters())
    worst = max(
        (p.grad.full_tensor() - gradients[name].grad).abs().max().item() for name, p in split.named_parameters()
    )
    return {
        "output": (torch.cat([y.full_tensor() for y in outputs]) - expected).abs().max().item(),
        "gradient": worst,
        "loss": (total - loss).abs().item(),
        "weights": max(
            (p.full_tensor() - q).abs().max().item()
            for p, q in zip(split.parameters(), serial.parameters(), strict=True)
        ),
        "kept": sum(p.to_local().numel() for p in split.parameters()),
        "sent": sent,
        "calls": calls,
        "seen": seen.calls,
    }


def main(folder: Path, rank: int, world: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    counter = Counter()
    counter.watch()
    results = {case.name: run(case, counter) for case in sorted(folder.iterdir()) if case.is_dir()}
    (folder / f"result-{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
