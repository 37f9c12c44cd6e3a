"""Sentences about plans made by hand: every number in them can be checked in the head."""

from __future__ import annotations

import dataclasses

import pytest

from planner.comparison.differences import compare_items
from planner.comparison.report import memory_sentence, why
from planner.core.errors import UsageError
from planner.spaces.items import Item
from planner.spaces.serving.items import ServedItem

GIB = 2**30


def item(label: str, **changes: object) -> Item:
    plain = Item(
        label=label,
        space="mesh",
        question={"mode": "training", "model": "net", "global batch": "8", "cluster": "c"},
        settings={"workers": "8", "tp": "8", "pp": "1", "num_micro_batches": "8"},
        layers={},
        layer_bytes={},
        summary="tp 8",
        family="tensor",
        workers=8,
        samples=8,
        seq=100,
        step_time_s=10.0,
        step_time_low_s=None,
        step_time_high_s=None,
        time_parts={"compute_s": 6.0, "tp_exposed_s": 4.0, "bubble_s": 0.0},
        first_token_parts={},
        memory_bytes=3.0 * GIB,
        memory_capacity_bytes=80.0 * GIB,
        memory_parts={"weight_bytes": 1.0 * GIB, "activation_bytes": 2.0 * GIB},
        objective="step_time",
        costs={},
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


FAST = {
    "settings": {"workers": "8", "tp": "2", "pp": "4", "num_micro_batches": "8"},
    "step_time_s": 8.0,
    "time_parts": {"compute_s": 6.0, "tp_exposed_s": 1.0, "bubble_s": 1.0},
    "memory_bytes": 6.0 * GIB,
    "memory_parts": {"weight_bytes": 4.0 * GIB, "activation_bytes": 2.0 * GIB},
}


def test_the_faster_saves_and_pays() -> None:
    comparison = compare_items([item("a"), item("b", **FAST)])
    assert why(comparison, 1) == (
        "b is 1.25x faster than a: 8.00 s per step against 10.0 s. "
        "It saves 3.00 s of tensor-parallel communication (tp 2 against 8), and pays 1.00 s of pipeline bubble."
    )
    assert memory_sentence(comparison, 1) == "b needs 3.00 GiB more per GPU than a: weights +3.00 GiB."
    assert comparison.fastest == 1


def test_the_order_of_the_files_changes_the_reference_and_not_the_reason() -> None:
    forwards, backwards = compare_items([item("a"), item("b", **FAST)]), compare_items([item("b", **FAST), item("a")])
    assert why(forwards, 1) == why(backwards, 1)
    assert memory_sentence(backwards, 1) == "a needs 3.00 GiB less per GPU than b: weights -3.00 GiB."
    assert [row.differences[1] for row in forwards.times] == [-(row.differences[1] or 0.0) for row in backwards.times]


def test_sums_in_another_order_are_no_difference() -> None:
    terms = {"compute_s": 6.0 * (1 + 1e-15), "tp_exposed_s": 4.0, "bubble_s": 0.0}
    comparison = compare_items([item("a"), item("b", time_parts=terms)])
    assert [row.differences for row in comparison.times] == [(0.0, 0.0)] * len(comparison.times)


def test_equal_plans() -> None:
    comparison = compare_items([item("a"), item("b")])
    assert why(comparison, 1) == "b is as fast as a."
    assert comparison.settings == ()
    assert comparison.same == {"workers": "8", "tp": "8", "num_micro_batches": "8"}


def test_another_batch_is_compared_per_sample_and_another_length_per_token() -> None:
    batch = {"mode": "training", "model": "net", "global batch": "16", "cluster": "c"}
    twice = item("b", question=batch, samples=16, step_time_s=16.0, time_parts={"compute_s": 16.0})
    comparison = compare_items([item("a"), twice])
    assert comparison.basis == "sample"
    assert comparison.scores == (1.25, 1.0)
    longer = item("b", question={**batch, "sequence length": "400"}, seq=400, samples=4)
    comparison = compare_items([item("a"), longer])
    assert comparison.basis == "token"
    assert comparison.scores == (10 / 800, 10 / 1600)


def test_what_does_not_fit_is_not_the_fastest() -> None:
    comparison = compare_items([item("a"), item("b", **{**FAST, "memory_capacity_bytes": 5.0 * GIB})])
    assert comparison.scores[1] < comparison.scores[0]
    assert comparison.fastest == 0


def test_training_and_inference_have_nothing_to_compare() -> None:
    inference = item("b", question={"mode": "inference", "model": "net"})
    with pytest.raises(UsageError, match="a is for training and b for inference"):
        compare_items([item("a"), inference])


def asked(item_: Item, **question: str) -> Item:
    return dataclasses.replace(item_, question={**item_.question, **question})


def test_another_network_is_named_before_the_settings() -> None:
    small = {"step_time_s": 5.0, "time_parts": {"compute_s": 1.0, "tp_exposed_s": 4.0, "bubble_s": 0.0}}
    settings = {"workers": "6", "tp": "8", "pp": "1", "num_micro_batches": "8"}
    other = asked(item("b", settings=settings, **small), model="tiny")
    assert "It saves 625 ms of compute (model tiny against net, workers 6 against 8)." in why(
        compare_items([item("a"), other]), 1
    )
    assert "(model net against tiny, workers 8 against 6)" not in why(compare_items([item("a"), other]), 1)


@pytest.mark.parametrize(
    ("question", "cause"),
    [
        ({"model file": "0123456789"}, "(model net (01234567) against net (abcdefab))"),  # two files of one name
        ({"device": "d2"}, "(device d2 against d1)"),
        ({"cluster": "c2"}, ""),  # the links do not change what a device computes
        ({"optimizer": "sgd"}, ""),
    ],
)
def test_what_is_asked_is_a_cause_of_the_terms_it_bears_on(question: dict[str, str], cause: str) -> None:
    known = {"model file": "abcdefabcd", "device": "d1", "optimizer": "adam"}
    first = asked(item("a"), **known)
    fast = item("b", step_time_s=9.0, time_parts={"compute_s": 5.0, "tp_exposed_s": 4.0, "bubble_s": 0.0})
    sentence = why(compare_items([first, asked(asked(fast, **known), **question)]), 1)
    assert f" of compute{' ' + cause if cause else ''}." in sentence


def served(label: str, **changes: object) -> ServedItem:
    """A server of 8 sequences at a time, a token of each every 10 ms."""
    fields = {field.name: getattr(item(label), field.name) for field in dataclasses.fields(Item)}
    question = {"mode": "inference", "model": "net", "cluster": "c"}
    rates = {"requests_per_s": 4.0, "output_tokens_per_s": 800.0, "output_tokens_per_s_per_gpu": 100.0}
    figures = {"served": {"ttft_s": 0.2, "request_s": 2.0, **rates}, "step_time_s": 0.01, "objective": "throughput"}
    parts = {"time_parts": {"decode_compute_s": 0.008, "waiting_s": 0.002}, "first_token_parts": {}}
    return ServedItem(
        **{**fields, "space": "serving", "question": question, "seq": None, **parts, **figures, **changes}
    )


def test_servers_are_compared_by_what_they_serve() -> None:
    slow = served("a")
    rates = {**slow.served, "output_tokens_per_s": 1000.0, "request_s": 3.0}
    fast = served("b", served=rates, samples=16, step_time_s=0.016)
    comparison = compare_items([slow, fast])
    assert comparison.basis == "step"
    assert comparison.scores == (1 / 800, 1 / 1000)
    assert why(comparison, 1).startswith(
        "b has 1.25x the throughput of a: 1,000 output tokens/s against 800 output tokens/s, a token every 16.0 ms against 10.0 ms."
    )
    assert why(comparison, 1).endswith(" It serves 16 sequences at a time against 8.")
    quick = [dataclasses.replace(one, objective="latency") for one in (slow, fast)]
    assert compare_items(quick).scores == (2.0, 3.0)
    assert why(compare_items(quick), 1).startswith("a is 1.50x quicker than b: ")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_server_and_a_forward_pass_have_nothing_to_compare(is_first: bool) -> None:
    passed = item("b", question={"mode": "inference", "model": "net"})
    items = [served("a"), passed] if is_first else [passed, served("a")]
    with pytest.raises(UsageError, match="a serves requests and b costs one forward pass"):
        compare_items(items)
