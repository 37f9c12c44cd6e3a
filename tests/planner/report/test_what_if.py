"""What if: answers in a page are those of `planner.estimate` to the last digit, and what is no plan says why."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import planner
from planner.core.errors import PlannerError
from planner.core.what_if import WhatIf, WhatIfPoint
from planner.report.what_if import plan_curves, what_if_html
from tests.cases import mostly

FIGURES = ("step_time_s", "memory_bytes_per_gpu", "throughput_samples_per_s", "tokens_per_s", "mfu", "fits_probability")


def found(space: Any, ranked: Any) -> WhatIf:
    """The table of a plan, which has one."""
    table = space.what_if(ranked)
    assert isinstance(table, WhatIf)
    return table


def choices(table: WhatIf) -> Iterator[tuple[int | str, ...]]:
    """Values of every point."""
    return itertools.product(*(axis.values for axis in table.axes))


def values_of(answer: Any) -> dict[str, float]:
    """The figures of `planner.estimate` that a point has."""
    ranked = answer.raw.ranked
    return {name: ranked.get(name) for name in FIGURES if ranked.get(name) is not None}


def estimated(*question: Any, **options: Any) -> dict[str, float] | None:
    """The same where the plan is legal."""
    try:
        return values_of(planner.estimate(*question, **options))
    except PlannerError:
        return None


# Network, question, plan, and which share of the points is compared: primes, so that all values of all settings are.
QUESTIONS: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("bert-large", {"gpus": 4, "batch": 64}, {"micro_batch": 4}, 37),
    ("gpt3-1.3b", {"gpus": 8, "batch": 32}, {"tp": 2, "pp": 2, "micro_batch": 2}, 7),
    ("gpt3-1.3b", {"gpus": 8, "batch": 32}, {"zero": 3, "micro_batch": 1}, 7),
    ("gpt3-1.3b", {"gpus": 4, "batch": 32}, {"pp": 2, "recompute_blocks": 3}, 7),
    ("llama3-8b", {"gpus": 32, "batch": 64, "seq": 8192}, {"tp": 4, "pp": 2, "vpp": 4, "micro_batch": 1, "zero": 1}, 7),
    ("llama3-8b", {"gpus": 16, "batch": 64}, {"cp": 2, "dp_replicate": 2, "dp_shard": 4, "zero": 3, "micro_batch": 1}, 7),
    ("mixtral-8x7b", {"gpus": 16, "batch": 32, "framework": "megatron-lm"}, {"ep": 8, "micro_batch": 1, "zero": 1}, 7),
]  # fmt: skip


@mostly("e2e", ("model", "question", "degrees", "stride"), QUESTIONS, quick=1)
def test_every_answer_over_a_mesh_is_that_of_estimate(
    model: str, question: dict[str, Any], degrees: dict[str, Any], stride: int
) -> None:
    first = planner.estimate(model, **question, **degrees).raw
    table, plan = found(first.space, first.ranked), first.ranked.plan
    # One rank has nobody to share with; replicas grow where there are some.
    of_one = {"zero": 0} if plan.cp == 1 else {}
    free = {name: value for name, value in degrees.items() if name != ("dp_replicate" if "dp_shard" in degrees else "")}
    legal = 0
    for n in range(0, len(table.points), stride):
        changes = dict(zip((axis.name for axis in table.axes), list(choices(table))[n], strict=True))
        options = {**question, **free, **changes}
        if str(options["recompute"]).startswith("full, "):
            options["recompute"] = "full"
        else:
            options.pop("recompute_blocks", None)
        if options["gpus"] == plan.tp * plan.cp * plan.pp:
            options |= of_one
        dp = options["gpus"] // (plan.tp * plan.cp * plan.pp)
        if options["batch"] % dp == 0:  # the micro-batch is smaller where it has to be
            options["micro_batch"] = math.gcd(options["batch"] // dp, plan.micro_batch)
        expected = estimated(model, **options)
        point = table.points[n]
        assert (point.figures or None) == expected, (changes, point)
        legal += expected is not None
    assert legal >= len(table.points) / stride / 4


@mostly("e2e", ("model", "family"), [("mlp", "data"), ("alexnet", None)], quick=1)
def test_every_answer_with_splits_per_layer_is_that_of_its_plan_file(model: str, family: str | None) -> None:
    answer = planner.optimize(model, gpus=4, top=1, **({"family": family} if family else {}))
    table, document = found(answer.raw.space, answer.raw.best), answer.best.to_dict()
    workers = document["workers"]
    assert workers > 1
    for (gpus, batch), point in zip(choices(table), table.points, strict=True):
        assert isinstance(gpus, int)
        layers = {}
        for name, split in document["layers"].items():
            degrees = {key: value for key, value in split.items() if isinstance(value, int)}
            largest = max(degrees, key=lambda key: degrees[key])
            layers[name] = {**split, largest: split[largest] * gpus // workers}
        changed = {**document, "workers": gpus, "gpus": gpus, "global_batch": batch, "layers": layers}
        assert (point.figures or None) == estimated(plan=changed), (gpus, batch)


def test_curves_are_rows_of_the_table() -> None:
    first = planner.estimate("mlp", gpus=4, batch=64, family="data").raw
    table = found(first.space, first.ranked)
    strong, weak = plan_curves(table, "the plan")
    gpus, batch = (axis.values for axis in table.axes)
    points = dict(zip(choices(table), table.points, strict=True))
    assert [count for count, *_ in strong.points] == list(gpus)
    for count, samples, step, _ in (*strong.points, *weak.points):
        point = points[count, samples]
        assert point.figures["step_time_s"] == step
    assert [samples / count for count, samples, *_ in weak.points] == [16] * len(weak.points)
    assert len(weak.points) == sum(16 * int(count) in batch for count in gpus) > 2


def test_what_cannot_change_has_no_sliders() -> None:
    serving = planner.estimate("llama3-8b", gpus=1, mode="inference", max_batch=8).raw
    assert serving.space.what_if(serving.ranked) is None


def test_reasons_of_a_user_stay_words() -> None:
    first = planner.estimate("mlp", gpus=2, batch=8, family="data").raw
    table = found(first.space, first.ranked)
    points = (WhatIfPoint(figures={}, note="</script><b>"), *table.points[1:])
    html = "".join(what_if_html(dataclasses.replace(table, points=points, kept="<i>")))
    assert "<b>" not in html
    assert html.count("</script>") == 1
