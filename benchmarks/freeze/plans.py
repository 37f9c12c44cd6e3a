"""Random problems and plans as plain data, drawn from fixed seeds without asking the planner anything but the names of layers.

Some plans break a rule; that they do is recorded, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Document = dict[str, Any]


class Network(NamedTuple):
    """What a drawn mesh has to divide."""

    blocks: int
    heads: int
    experts: int = 0
    odd: bool = False  # positions do not divide among devices


NETWORKS = {
    "llama3-8b": Network(32, 8),
    "llama3-70b": Network(80, 8),
    "llama3-405b": Network(126, 8),
    "gpt3-175b": Network(96, 96),
    "mixtral-8x7b": Network(32, 8, 8),
    "deepseek-v3": Network(61, 128, 256),
    "qwen3-30b-a3b": Network(48, 4, 128),
    "bert-large": Network(24, 16),
    "vit-l": Network(24, 16, odd=True),
    "t5-large": Network(48, 16, odd=True),
}


def _problem(space: str, model: str, cluster: str, gpus: int, batch: int, **more: Any) -> Document:
    return {"space": space, "model": model, "cluster": cluster, "gpus": gpus, "global_batch": batch, **more}


# Name -> problem and how many plans are drawn for it.
PROBLEMS: dict[str, tuple[Document, int]] = {
    "mesh-llama3-8b": (_problem("mesh", "llama3-8b", "dgx-h100", 64, 256, seq=8192), 260),
    "mesh-llama3-8b-fp8": (_problem("mesh", "llama3-8b", "dgx-h100", 16, 64, seq=4096, precision="fp8"), 160),
    "mesh-llama3-8b-lora": (_problem("mesh", "llama3-8b", "dgx-a100", 16, 64, lora_rank=16), 160),
    "mesh-llama3-70b": (_problem("mesh", "llama3-70b", "dgx-h100", 512, 1024, seq=8192), 300),
    "mesh-llama3-70b-a100": (_problem("mesh", "llama3-70b", "dgx-a100", 128, 512, seq=4096), 220),
    "mesh-llama3-405b": (_problem("mesh", "llama3-405b", "dgx-b200", 1024, 2048, seq=8192), 240),
    "mesh-gpt3-175b": (_problem("mesh", "gpt3-175b", "dgx-a100", 768, 1536), 240),
    "mesh-mixtral": (_problem("mesh", "mixtral-8x7b", "dgx-h100", 64, 256, seq=4096), 300),
    "mesh-deepseek-v3": (_problem("mesh", "deepseek-v3", "gb200-nvl72", 1024, 4096, seq=4096), 300),
    "mesh-qwen3-moe": (_problem("mesh", "qwen3-30b-a3b", "mi300x-node", 64, 256, seq=4096), 240),
    "mesh-bert": (_problem("mesh", "bert-large", "dgx1-v100", 32, 1024, seq=512), 220),
    "mesh-vit": (_problem("mesh", "vit-l", "tpu-v4-pod", 64, 2048), 160),
    "mesh-t5": (_problem("mesh", "t5-large", "dgx-a100", 16, 256), 160),
    "layers-alexnet": (_problem("layers", "alexnet", "dgx-h100", 16, 256), 260),
    "layers-alexnet-paleo": (_problem("layers", "alexnet", "paleo-ethernet20", 16, 256, cost_model="paleo"), 220),
    "layers-vgg16": (_problem("layers", "vgg16", "dgx1-v100", 16, 512), 260),
    "layers-resnet50": (_problem("layers", "resnet50", "aws-p3", 64, 2048, precision="fp16"), 160),
    "layers-resnet152": (_problem("layers", "resnet152", "dgx-a100", 32, 1024, optimizer="sgd"), 120),
    "layers-inception": (_problem("layers", "inception_v3", "k80-10gbe", 16, 512, precision="fp32"), 160),
    "layers-gnmt": (_problem("layers", "gnmt", "dgx1-v100", 8, 256), 120),
    "layers-alexnet-inference": (_problem("layers", "alexnet", "pcie4-node", 8, 128, mode="inference"), 120),
    "mixed-a100-v100": (_problem("mixed", "llama3-8b", "a100-v100", 48, 96, seq=4096), 360),
    "mixed-h100-a100": (_problem("mixed", "llama3-70b", "h100-a100", 96, 192, seq=4096), 300),
    "mixed-bert": (_problem("mixed", "bert-large", "a100-v100", 48, 384, seq=512), 200),
    "serving-llama3-8b": (_problem("serving", "llama3-8b", "dgx-h100", 8, 0, mode="inference"), 240),
    "serving-llama3-70b": (
        _problem("serving", "llama3-70b", "dgx-h100", 16, 0, mode="inference", precision="fp8"),
        280,
    ),
    "serving-llama3-405b": (_problem("serving", "llama3-405b", "dgx-b200", 32, 0, mode="inference"), 180),
    "serving-mixtral": (_problem("serving", "mixtral-8x7b", "dgx-a100", 16, 0, mode="inference"), 220),
    "serving-deepseek-v3": (
        _problem("serving", "deepseek-v3", "dgx-h100", 64, 0, mode="inference", precision="fp8"),
        240,
    ),
}
_REQUESTS = {"serving-llama3-8b": (512, 128), "serving-llama3-70b": (2048, 512), "serving-mixtral": (128, 1024)}
_GROUPS = {"a100-v100": (("a100-80gb", 16), ("v100-32gb", 32)), "h100-a100": (("h100-sxm", 32), ("a100-80gb", 64))}
_WITH_CHANNELS = {"convolution", "linear"}


def draw(name: str, layers_of: Callable[[str], Sequence[tuple[str, str]]]) -> list[Document]:
    """Draw the plans of a problem, always the same ones."""
    problem, count = PROBLEMS[name]
    chance = random.Random(name)  # noqa: S311 (nothing is kept secret)
    if problem["space"] == "layers":
        layers = layers_of(problem["model"])
        return [_layer_plan(chance, problem, layers) for _ in range(count)]
    one = {"mesh": _mesh_plan, "mixed": _mixed_plan, "serving": _serving_plan}[problem["space"]]
    prompt, output = _REQUESTS.get(name, (1024, 256))
    plans = [one(chance, problem) for _ in range(count)]
    for plan in plans:
        if "serving" in plan:
            plan["serving"] |= {"prompt_tokens": prompt, "output_tokens": output}
    return plans


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def _sometimes(chance: random.Random, share: float) -> bool:
    return chance.random() < share


def _parts(chance: random.Random, total: int, parts: int) -> list[int]:
    """Positive parts of a total, at random but near to even."""
    sizes = [total // parts + (n < total % parts) for n in range(parts)]
    for _ in range(parts):
        a, b = chance.randrange(parts), chance.randrange(parts)
        if a != b and sizes[a] > 1:
            sizes[a], sizes[b] = sizes[a] - 1, sizes[b] + 1
    return sizes


def _mesh_plan(chance: random.Random, problem: Document) -> Document:
    while True:
        plan = _mesh_of_batch(chance, problem)
        if plan is not None:
            return plan


def _mesh_of_batch(chance: random.Random, problem: Document) -> Document | None:
    """A mesh whose degrees make the batch; None where the drawn ones do not."""
    network, batch = NETWORKS[problem["model"]], problem["global_batch"]
    workers = problem["gpus"] // chance.choice((1, 1, 1, 2, 4))
    tp = chance.choice([d for d in _divisors(network.heads, 16) if workers % d == 0])
    pp = chance.choice([d for d in _divisors(workers // tp, 32) if d <= network.blocks])
    cp = chance.choice([d for d in ((1,) if network.odd else (1, 1, 1, 2, 4, 8)) if workers // tp // pp % d == 0])
    dp = workers // tp // pp // cp
    if batch % dp:
        return None
    dp_shard = chance.choice([dp, dp, *_divisors(dp, dp)])
    micro_batch = chance.choice([d for d in (1, 1, 2, 4, 8) if batch // dp % d == 0])
    micro_batches = batch // dp // micro_batch
    mesh: Document = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp_shard": dp_shard,
        "dp_replicate": dp // dp_shard,
        "micro_batch": micro_batch,
        "num_micro_batches": micro_batches,
        "sequence_parallel": tp > 1 and not network.odd and _sometimes(chance, 0.95 if network.experts else 0.6),
        "order": chance.choice(
            ("tp-cp-dp-pp", "tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp")
        ),
        "offload_optimizer": _sometimes(chance, 0.08),
    }
    if dp_shard > 1:
        mesh["zero_stage"] = chance.choice((1, 1, 2, 3, 3) if pp == 1 else (1, 1, 2))
    if cp > 1:
        mesh["cp_kind"] = chance.choice(("ring", "all_gather", "all_to_all"))
    if network.experts:
        ep = chance.choice([d for d in _divisors(network.experts, 64) if cp * dp * tp % d == 0])
        mesh["ep"] = ep
        mesh["etp"] = chance.choice([1, 1, tp]) if cp * dp * tp % (ep * tp) == 0 else 1
    if pp > 1:
        mesh["schedule"] = chance.choice(("gpipe", "1f1b", "1f1b", "interleaved", "zero_bubble"))
        if mesh["schedule"] == "interleaved":
            vpp = [v for v in (2, 3, 4, 5, 6) if pp * v <= network.blocks]
            if not vpp or micro_batches % pp:
                mesh["schedule"] = "1f1b"
            else:
                mesh["vpp"] = chance.choice(vpp)
    chunks = pp * mesh.get("vpp", 1)
    mesh["recompute"] = chance.choice(("none", "selective", "full"))
    if mesh["recompute"] == "full":
        mesh["recompute_blocks"] = chance.randint(1, max(network.blocks // chunks * mesh.get("vpp", 1), 1))
    elif _sometimes(chance, 0.1):
        mesh["recompute"], mesh["offload_activations"] = "none", True
    if pp > 1 and _sometimes(chance, 0.15):
        mesh["stage_blocks"] = _parts(chance, network.blocks, chunks)
    return {"workers": workers, "mesh": mesh}


def _mixed_plan(chance: random.Random, problem: Document) -> Document:
    while True:
        plan = _mixed_of_groups(chance, problem)
        if plan is not None:
            return plan


def _mixed_of_groups(chance: random.Random, problem: Document) -> Document | None:
    network, groups = NETWORKS[problem["model"]], _GROUPS[problem["cluster"]]
    left = [count for _, count in groups]
    pipelines: list[Document] = []
    shapes = [[0, 1]] if _sometimes(chance, 0.6) else [[0], [1]]
    if _sometimes(chance, 0.1):
        shapes = [[1, 0]]
    for used in shapes:
        stages: list[Document] = []
        degrees = {g: chance.choice([d for d in (1, 2, 4, 8) if network.heads % d == 0]) for g in used}
        counts = {g: chance.choice((1, 1, 2, 2, 3, 4)) for g in used}
        replicas = chance.choice((1, 1, 2, 2, 4, 8))
        if any(replicas * degrees[g] * counts[g] > left[g] for g in used):
            return None
        blocks = iter(_parts(chance, network.blocks, sum(counts.values())))
        for g in used:
            left[g] -= replicas * degrees[g] * counts[g]
            for _ in range(counts[g]):
                stage = {"group": groups[g][0], "tp": degrees[g], "blocks": next(blocks)}
                stage["recompute"] = chance.choice(("none", "none", "selective", "full"))
                if stage["recompute"] == "full":
                    stage["recompute_blocks"] = chance.randint(1, stage["blocks"])
                stages.append(stage)
        pipelines.append({"replicas": replicas, "micro_batch": chance.choice((1, 1, 2, 4)), "stages": stages})
    shares = [problem["global_batch"]]
    if len(pipelines) == 2:
        first = chance.randint(1, problem["global_batch"] - 1)
        shares = [first, problem["global_batch"] - first]
    for pipeline, samples in zip(pipelines, shares, strict=True):
        if samples % pipeline["micro_batch"] or samples // pipeline["micro_batch"] < pipeline["replicas"]:
            return None
        pipeline["num_micro_batches"], pipeline["longer"] = divmod(
            samples // pipeline["micro_batch"], pipeline["replicas"]
        )
    workers = sum(p["replicas"] * sum(stage["tp"] for stage in p["stages"]) for p in pipelines)
    mixed = {
        "zero_stage": chance.choice((0, 1)),
        "sequence_parallel": _sometimes(chance, 0.5),
        "order": chance.choice(("tp-cp-dp-pp", "tp-cp-pp-dp")),
        "pipelines": pipelines,
    }
    return {"workers": workers, "mixed": mixed}


def _serving_plan(chance: random.Random, problem: Document) -> Document:
    network = NETWORKS[problem["model"]]
    workers = problem["gpus"] // chance.choice((1, 1, 2, 4))
    tp = chance.choice([d for d in _divisors(network.heads, 16) if workers % d == 0])
    pp = chance.choice([d for d in (1, 1, 1, 2, 4) if workers // tp % d == 0])
    dp = workers // tp // pp
    serving: Document = {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "max_batch": chance.choice((1, 2, 4, 8, 16, 32, 64, 128, 256)),
        "prefill_chunk": chance.choice((0, 0, 128, 256, 512, 1024)),
        "prefill_batch": chance.choice((1, 1, 2, 4)),
    }
    if network.experts:
        etp = chance.choice([1, 1, tp])
        serving["ep"] = chance.choice([d for d in _divisors(network.experts, 64) if tp * dp % (d * etp) == 0])
        serving["etp"] = etp
    return {"workers": workers, "global_batch": dp * serving["max_batch"], "serving": serving}


def _layer_plan(chance: random.Random, problem: Document, layers: Sequence[tuple[str, str]]) -> Document:
    workers = chance.choice(_divisors(problem["gpus"], problem["gpus"])[1:])
    micro_batches = chance.choice((1, 1, 1, 2, 4))
    names = [name for name, _ in layers]
    if _sometimes(chance, 0.2) and len(names) > 8:
        first = chance.randint(1, workers - 1)
        cut = chance.randrange(3, len(names) - 3)  # no stage is without weights
        replicas = {name: first if n < cut else workers - first for n, name in enumerate(names)}
        stages = [
            {"first": names[0], "last": names[cut - 1], "replicas": first},
            {"first": names[cut], "last": names[-1], "replicas": workers - first},
        ]
        splits: Document = {name: {"batch": count} for name, count in replicas.items()}
        return {"workers": workers, "num_micro_batches": chance.choice((2, 4, 8)), "stages": stages, "layers": splits}
    style = chance.choice(("data", "hybrid", "any", "any", "spatial"))
    splits = {}
    for name, kind in layers:
        splits[name] = {"batch": workers}
        if kind not in _WITH_CHANNELS or style == "data":
            continue
        if style == "spatial" and kind == "convolution" and _sometimes(chance, 0.5) and workers <= 4:
            splits[name] = {"height": workers}
        elif (style == "hybrid" and kind == "linear") or (style == "any" and _sometimes(chance, 0.4)):
            degree = chance.choice(_divisors(workers, workers))
            split = {"batch": workers // degree, chance.choice(("out_channels", "out_channels", "in_channels")): degree}
            splits[name] = split
    if _sometimes(chance, 0.3):
        collective = chance.choice(("ring", "tree", "hierarchical", "butterfly"))
        for name, kind in layers:
            if kind in _WITH_CHANNELS and splits[name].get("batch", 1) > 1:
                splits[name]["collective"] = collective
    return {"workers": workers, "num_micro_batches": micro_batches, "layers": splits}
