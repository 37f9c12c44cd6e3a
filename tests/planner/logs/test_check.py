"""`planner check`: logs in the formats of their programs, whose median step is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.core.errors import InputFileError, UnknownName, UsageError
from planner.core.notes import Note
from planner.logs.compare import measured_steps, warm_up_of
from planner.logs.formats import FORMATS
from planner.logs.read import read_log
from planner.logs.settings import logged_run_of
from planner.schema.results import CheckDocument
from tests.planner.logs import written_logs as written

_LOGS: dict[str, str] = {
    "megatron": written.megatron_log(),
    "megatron-bridge": written.bridge_log(),
    "nemo": written.nemo_log(),
    "torchtitan": written.torchtitan_log(),
    "deepspeed": written.deepspeed_log(),
    "nanotron": written.nanotron_log(),
    "huggingface": written.trainer_log(),
}
# What each log says of memory, in GiB.
_MEMORY = {
    "megatron": {"allocated": 42.0, "reserved": 45.0},
    "megatron-bridge": {"allocated": 45e9 / 2**30, "reserved": 48e9 / 2**30},
    "torchtitan": {"reserved": 41.5},
    "deepspeed": {"allocated": 52.25},
    "nanotron": {"allocated": 42.0, "reserved": 45.0},
}
_16_GPUS = {"cluster": "dgx-h100"}


@pytest.fixture
def new_log(tmp_path: Path) -> Callable[..., Path]:
    def make(text: str | bytes, name: str = "run.log") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


# -- reading ----------------------------------------------------------------------------------------------------------------


def test_every_format_has_a_log_here() -> None:
    assert _LOGS.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", _LOGS)
def test_the_median_after_the_warm_up(name: str, new_log: Callable[..., Path]) -> None:
    path = new_log(_LOGS[name])
    log = read_log(path)
    assert log.format == name
    steps, _, _ = measured_steps(path, log, batch=32, seq=8192, gpus=16)
    if name == "huggingface":  # windows of 20 s of steps of 2 s, the slow first one in the first
        assert steps.median_s == pytest.approx(2.0)
        assert steps.warm_up == 1
    else:
        assert steps.median_s == pytest.approx(written.MEDIAN_S, rel=1e-3)
        assert (steps.warm_up, steps.lines) == (2, 8)
        assert steps.low_s == pytest.approx(np.percentile(written.TIMES_S[2:], 5), rel=1e-3)
    assert {what: size / 2**30 for what, size in log.memory.items()} == pytest.approx(_MEMORY.get(name, {}))


def test_a_line_in_ten_is_the_mean_of_ten_steps(new_log: Callable[..., Path]) -> None:
    text = "".join(written.megatron_line(10 * n, seconds) + "\n" for n, seconds in enumerate((5.0, 1.0, 1.0, 1.0), 1))
    path = new_log(text)
    steps, _, _ = measured_steps(path, read_log(path), batch=32, seq=None, gpus=1)
    assert (steps.steps_per_line, steps.median_s, steps.first) == (10, 1.0, 20)


def test_the_slowest_rank_decides(new_log: Callable[..., Path]) -> None:
    lines = written.torchtitan_log((1.0, 1.0)).splitlines()
    slow = written.torchtitan_log((2.0, 2.0)).replace("[rank0]", "[rank1]").splitlines()
    both = [line for pair in zip(lines, slow, strict=True) for line in pair]
    path = new_log("\n".join([*both, ""]))
    steps, _, _ = measured_steps(path, read_log(path), batch=32, seq=8192, gpus=16)
    assert steps.median_s == pytest.approx(2.0, rel=1e-3)


def test_steps_of_the_last_start_count(new_log: Callable[..., Path]) -> None:
    log = read_log(new_log(written.megatron_log((9.0, 3.0, 3.0)) + written.megatron_log((9.0, 1.0, 1.0))))
    assert log.starts == 2
    assert [step.seconds for step in log.steps] == [9.0, 1.0, 1.0]


def test_steps_of_a_smaller_batch_are_left_out(new_log: Callable[..., Path]) -> None:
    lines = [written.megatron_line(n, 0.5, 8) for n in (1, 2, 3)] + [
        written.megatron_line(n, 1.0, 32) for n in (4, 5, 6)
    ]
    path = new_log("\n".join([*lines, ""]))
    steps, _, _ = measured_steps(path, read_log(path), batch=32, seq=None, gpus=1)
    assert (steps.median_s, steps.first) == (1.0, 5)


def test_a_step_cut_off_at_the_end_is_left_out(new_log: Callable[..., Path]) -> None:
    whole = written.megatron_line(1, 1.0) + "\n" + written.megatron_line(2, 1234.5)
    cut = whole[: whole.index("1234500.0") + 3]  # "123" of 1234500.0 ms
    assert [step.number for step in read_log(new_log(cut)).steps] == [1]


def test_the_summary_of_a_whole_run(new_log: Callable[..., Path]) -> None:
    log = read_log(
        new_log("{'train_runtime': 400.0, 'train_samples_per_second': 32.0, 'train_steps_per_second': 0.5}\n")
    )
    assert (log.whole_run, log.steps[0].seconds) == (True, 2.0)
    state = {"global_step": 50, "log_history": [{"loss": 2.0, "step": 50}, {"train_runtime": 75.0, "step": 50}]}
    log = read_log(new_log(json.dumps(state), "trainer_state.json"))
    assert (log.whole_run, log.steps[0].seconds) == (True, 1.5)


def test_timers_of_every_kind(new_log: Callable[..., Path]) -> None:
    ranks = "times across ranks (ms):\n  forward-backward:\n     rank  0: 900.00\n     rank  1: 950.00\n     rank  2: 800.00\n"
    most = f"max time across ranks (ms):\n    {'optimizer '.ljust(48, '.')}: 20.50\n"
    both = written.timer_text(all_grads_sync=(3.0, 40.0)) + "\n"
    log = read_log(new_log(written.megatron_line(7, 1.0) + "\n" + both + most + ranks))
    found = {timing.name: (timing.step, timing.fastest_s, timing.slowest_s) for timing in log.timings}
    assert found == {
        "all-grads-sync": (7, 0.003, 0.04),
        "optimizer": (7, None, 0.0205),
        "forward-backward": (7, 0.8, 0.95),
    }


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40))
def test_a_warm_up_ends(times: list[float]) -> None:
    """At most half is dropped, something remains, and what comes first of the rest is no longer slow unless the half was reached."""
    seconds = np.array(times)
    dropped = warm_up_of(seconds)
    half = len(times) // 2
    assert dropped <= half < max(len(times), 1)
    if 1 < dropped < half:
        assert seconds[dropped] <= 1.1 * np.median(seconds[half:])
        assert all(seconds[1:dropped] > 1.1 * np.median(seconds[half:]))


# -- what ran ---------------------------------------------------------------------------------------------------------------


def test_the_arguments_of_megatron_say_what_ran(new_log: Callable[..., Path]) -> None:
    path = new_log(written.megatron_log())
    found = planner.check(path, **_16_GPUS)
    plan = found.raw.estimate.ranked.plan
    assert (plan.tp, plan.dp, plan.zero_stage, plan.sequence_parallel, plan.micro_batch) == (2, 8, 1, True, 1)
    assert (plan.global_batch, found.raw.estimate.setting.seq) == (32, 8192)
    asked = planner.estimate(
        "llama3-8b", gpus=16, tp=2, zero=1, sequence_parallel=True, micro_batch=1, batch=32, seq=8192, framework="megatron-lm",
        recompute="none", cluster="dgx-h100",
    )  # fmt: skip
    assert found.step_time_s == pytest.approx(asked.step_time_s, rel=1e-9)
    assert found.inside is (asked.raw.ranked.step_time_low_s <= 1.7 <= asked.raw.ranked.step_time_high_s)


@pytest.mark.parametrize(
    ("written_as", "recompute", "is_said"),
    [("SelectiveAC", "selective", False), ("selective", "selective", False), ("MemoryBudgetAC", "none", True)],
)
def test_the_checkpointing_of_torchtitan(
    written_as: str, recompute: str, is_said: bool, new_log: Callable[..., Path]
) -> None:
    log = written.torchtitan_log().replace("Applied full", f"Applied {written_as}")
    found = planner.check(new_log(log))
    assert found.raw.estimate.ranked.plan.recompute == recompute
    assert any("activation checkpointing: what it recomputes" in text for text in found.raw.notes) == is_said


def test_the_lines_of_torchtitan_say_what_ran(new_log: Callable[..., Path]) -> None:
    found = planner.check(new_log(written.torchtitan_log()))
    estimate = found.raw.estimate
    assert (estimate.setting.model, estimate.setting.device, estimate.ranked.workers) == ("llama3-8b", "h100-sxm", 16)
    assert (estimate.ranked.plan.dp_shard, estimate.ranked.plan.zero_stage, estimate.ranked.plan.recompute) == (
        16,
        3,
        "full",
    )
    assert found.measured_step_time_s == pytest.approx(1.7, rel=1e-3)
    old = "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 8]\n" + written.torchtitan_log().partition("\n")[2]
    path = new_log(old)
    assert logged_run_of(path, read_log(path)).run.mesh == {
        "dp_shard": "4",
        "tp": "8",
        "micro_batch": "2",
        "recompute": "full",
        "zero": "3",
        "sequence_parallel": True,
    }


def test_the_configuration_of_deepspeed_says_what_ran(new_log: Callable[..., Path]) -> None:
    found = planner.check(new_log(written.deepspeed_log(counted=0.8)), "llama3-8b", seq=8192)
    plan = found.raw.estimate.ranked.plan
    assert (plan.zero_stage, plan.dp, plan.micro_batch, plan.num_micro_batches) == (2, 16, 1, 2)
    (note,) = (note for note in found.notes if isinstance(note, Note) and note.code == "check_own_timer")
    assert note.values == pytest.approx({"timer_s": 1.36, "step_s": 1.7}, rel=1e-3)


def test_the_head_of_the_trainer_says_what_ran(new_log: Callable[..., Path]) -> None:
    path = new_log(written.trainer_log())
    found = logged_run_of(path, read_log(path)).run
    assert (found.options, found.mesh) == ({"batch": "64", "gpus": "16"}, {"micro_batch": "2"})


def test_options_count_before_the_log(new_log: Callable[..., Path]) -> None:
    found = planner.check(new_log(written.megatron_log()), tp=4, framework="megatron-bridge", **_16_GPUS)
    assert (found.raw.estimate.ranked.plan.tp, found.raw.estimate.setting.framework) == (4, "megatron-bridge")


def test_a_plan_says_what_ran(new_log: Callable[..., Path]) -> None:
    plan = planner.estimate("llama3-8b", gpus=16, tp=2, batch=32, seq=8192).plan
    found = planner.check(new_log(written.nanotron_log()), plan=plan)
    assert found.step_time_s == plan.step_time_s


# -- what is said -----------------------------------------------------------------------------------------------------------


def test_parts_and_what_is_off(new_log: Callable[..., Path]) -> None:
    timers = written.timer_text(
        forward_backward=(1450.0, 1600.0),
        forward_compute=(480.0, 600.0),
        batch_generator=(2.0, 120.0),
        all_grads_sync=(30.0, 250.0),
        optimizer=(20.0, 35.0),
    )
    found = planner.check(new_log(written.megatron_log(timers=timers)), **_16_GPUS)
    parts = {part.label: part.measured_s for part in found.raw.parts}
    assert parts == pytest.approx(
        # the slowest rank waits least for the gradients: 1600 - 120 - 30
        {
            "forward and backward": 1.45,
            "reading batches": 0.12,
            "gradient exchange": 0.03,
            "optimizer": 0.035,
            "rest": 0.065,
        }
    )
    assert sum(parts.values()) == pytest.approx(found.measured_step_time_s)
    assert sum(part.predicted_s for part in found.raw.parts) == pytest.approx(found.step_time_s)
    codes = {note.code: dict(note.values) for note in found.notes if isinstance(note, Note)}
    assert codes["check_stragglers"]["waits_s"] == pytest.approx(0.22)
    assert codes["check_reading"]["share"] == pytest.approx(0.12 / 1.7)
    assert codes["check_uneven"]["slowest_s"] == pytest.approx(0.6)
    assert codes["check_largest_part"]["part"] == "forward and backward"


def test_slow_steps_and_drift(new_log: Callable[..., Path]) -> None:
    times = [5.0, *[1.0] * 20, *[1.1] * 20]
    times[30] = 3.0
    found = planner.check(new_log(written.megatron_log(times)), **_16_GPUS)
    codes = {note.code: dict(note.values) for note in found.notes if isinstance(note, Note)}
    assert codes["check_drift"] == pytest.approx({"share": 0.1, "than": "longer than"})
    assert codes["check_slow_steps"]["slow"] == 1
    line = codes["check_slow_steps"]["lines"]
    assert f"iteration {31:8d}/" in (written.megatron_log(times).splitlines()[int(line) - 1])


def test_the_document_and_the_exit_code(said: Callable[..., tuple[str, str]], new_log: Callable[..., Path]) -> None:
    inside, outside = (
        new_log(written.megatron_log(), "in.log"),
        new_log(written.megatron_log((9.0, *[5.0] * 8)), "out.log"),
    )
    out, _ = said("check", inside, "--cluster", "dgx-h100", "--json")
    found = json.loads(out)
    CheckDocument.model_validate(found)
    assert (found["inside"], found["format"], found["warm_up_lines"]) == (True, "megatron", 2)
    out, _ = said("check", outside, "--cluster", "dgx-h100", code=1)
    assert out.startswith("Measured 5.00 s per step against")
    assert "OUTSIDE; the prediction is 64.2 % too short." in " ".join(out.split())


# -- rows of tables ---------------------------------------------------------------------------------------------------------

_RUNS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt": {
        "swiglu": False, "add_bias_linear": True, "group_query_attention": False, "hidden_size": 2048, "num_layers": 24,
        "num_attention_heads": 16, "ffn_hidden_size": 8192, "padded_vocab_size": 50304, "seq_length": 2048, "hidden_dropout": 0.1,
        "untie_embeddings_and_output_weights": False, "position_embedding_type": "learned_absolute", "recompute_granularity": "selective",
    },
    "mixture": {
        "num_experts": 8, "moe_ffn_hidden_size": 14336, "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1,
    },
    "pipeline": {
        "pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 4, "recompute_granularity": "full",
        "recompute_method": "block", "recompute_num_layers": 3,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", _RUNS)
def test_a_row_is_predicted_as_the_check_was(name: str, new_log: Callable[..., Path], tmp_path: Path) -> None:
    arguments = written.arguments_text(**_RUNS[name])
    found = planner.check(new_log(written.megatron_log(arguments=arguments)), **_16_GPUS)
    from planner.logs.rows import table_with

    table = tmp_path / "runs.csv"
    table.write_text(table_with(table, found.row()))
    score = planner.validate(table).to_dict()["files"][0]
    assert score["scored"] == 1, score["skipped"]
    (worst,) = score["worst"]
    assert worst["predicted_s"] == pytest.approx(found.step_time_s, rel=1e-9)
    assert worst["measured_s"] == pytest.approx(1.7)


def test_rows_add_up_to_a_table(
    said: Callable[..., tuple[str, str]], new_log: Callable[..., Path], tmp_path: Path
) -> None:
    table = tmp_path / "runs.csv"
    for text in (written.megatron_log(), written.torchtitan_log()):
        said("check", new_log(text), "--cluster", "dgx-h100", "--row", table, code=int("titan" in text))
    rows = planner.validate(table).to_dict()["files"][0]
    assert (rows["rows"], rows["scored"]) == (2, 2)


# -- what is wrong ----------------------------------------------------------------------------------------------------------

_COLUMN = written.megatron_line(1, 1.0).index("1000.0 |") + 1
_BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "run.log: is empty"),
    "blank": ("\n \n", "run.log: is empty"),
    "binary": (b"\x7fELF\n\x00\x01", "run.log:2:1: is not a text: it holds NUL characters"),
    "no log": ("hello\nworld\n", "has no line about a training step that is known; known logs: Megatron-Bridge (megatron-bridge), NeMo"),
    "no number": (
        written.megatron_line(1, 1.0).replace("1000.0", "abc") + "\n",
        f"run.log:1:{_COLUMN}: elapsed time per iteration (ms): is 'abc'; a number above 0 is expected",
    ),
    "nan": ("head\n" + written.megatron_line(1, 1.0).replace("1000.0", "nan") + "\n", f"run.log:2:{_COLUMN}: elapsed time"),
    "negative": (written.megatron_line(1, -1.0) + "\n", "is '-1000.0'; a number above 0 is expected"),
    "mixed": (
        written.megatron_log() + written.torchtitan_log(),
        "has steps of several programs: Megatron-LM (line",
    ),
    "unfinished": ('{"log_history": [{"loss": 1.0, "step": 10}]}', "the training did not end"),
    "no JSON": ('{"log_history": [', "run.log:1:18: is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", _BROKEN)
def test_a_broken_log_is_one_clear_error(
    name: str, new_log: Callable[..., Path], fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text, expected = _BROKEN[name]
    new_log(text)
    monkeypatch.chdir(tmp_path)
    message = fails("check", "run.log", "llama3-8b", "--gpus", "16", "--batch", "32")
    assert expected in message
    assert len(message.splitlines()) == 1


def test_a_format_may_be_named(new_log: Callable[..., Path]) -> None:
    path = new_log(written.megatron_log() + written.torchtitan_log())
    assert read_log(path, "torchtitan").steps[0].tokens_per_s_per_gpu is not None
    with pytest.raises(InputFileError, match="has no line about a step of nanotron"):
        read_log(path, "nanotron")
    with pytest.raises(UnknownName, match="did you mean 'torchtitan'"):
        read_log(path, "torchtitn")


def test_what_the_log_does_not_say_is_asked_for(new_log: Callable[..., Path]) -> None:
    path = new_log(written.nanotron_log())
    with pytest.raises(UsageError, match=r"model: is missing: run\.log does not say which network was trained"):
        planner.check(path)
    with pytest.raises(UsageError, match="gpus: is missing"):
        planner.check(path, "llama3-8b")
    with pytest.raises(UsageError, match="batch: is missing"):
        planner.check(new_log("step:  1  memory: 1.0GiB(1%)  tps: 100  mfu: 1%\n", "b.log"), "llama3-8b", gpus=16)
    with pytest.raises(UsageError, match=r"batch 64: the log has steps of 32 samples \(line 19\)"):
        planner.check(path, "llama3-8b", gpus=16, batch=64)
    with pytest.raises(UsageError, match="is another network than that of the"):
        planner.check(new_log(written.megatron_log(), "c.log"), "llama3-70b")
