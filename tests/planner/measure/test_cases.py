"""What is measured, how samples become a row, and who decides to leave a case out; PyTorch is not needed here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.core.errors import UsageError
from planner.measure import processes
from planner.measure.cases import COLLECTIVES, KINDS, Case, collective_cases, kernel_cases
from planner.measure.kernels import COLUMNS, Timing, row_of, table_text, time_call
from planner.measure.processes import Processes, place_of, processes_of, threads_of
from planner.measure.report import measure_report
from planner.measure.run import Measured, Wanted, _Deadline, _where
from planner.measurements.kernels import ELEMENTWISE, KERNELS
from planner.measurements.kinds import predict_table
from planner.measurements.tables import read_table
from planner.report.machine import json_text
from planner.report.text import plain_text
from planner.schema.results import MeasureDocument
from tests.planner.detect.machines import RecordedSystem

MACHINE = {"device": "a100-80gb", "machine": "x", "software": "y"}
NOTHING = RecordedSystem(cpus=4)  # a machine that says nothing
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("quick", [False, True])
def test_every_case_is_predicted(large: bool, quick: bool, new_file: Any) -> None:
    """The table of all cases is one that validation reads: no row is skipped, none predicted by accident as another kernel."""
    precisions = ("fp32", "tf32", "bf16", "fp16") if large else ("fp32", "bf16")
    cases = kernel_cases(large=large, quick=quick, precisions=precisions)
    cases += collective_cases(ranks=16, nodes=2, large=large, quick=quick)
    # Experts of an engine are in published tables alone.
    assert {case.kernel for case in cases} == set(KINDS) == set(KERNELS) - {"moe"}
    assert {case.text("op") for case in cases if case.kernel == "elementwise"} <= set(ELEMENTWISE)
    # A time that no check of units finds strange: ten times what the FLOPs and bytes take at the peaks.
    rows = []
    for case in cases:
        time_s = 10 * max(
            case.flop / 312e12,
            case.moved_bytes / 12.5e9 if case.kernel == "collective" else case.moved_bytes / 2e12,
            1e-6,
        )
        rows.append(row_of(case, Timing(samples_s=(time_s,) * 5), MACHINE))
    kind, outcomes = predict_table(read_table(new_file("all.csv", table_text(rows))))
    assert kind.name == "measured"
    assert {outcome.skipped for outcome in outcomes} == {""}
    assert all(len(outcome.comparisons) == 1 for outcome in outcomes)


def test_predictions_are_those_of_the_tables_by_kind(tmp_path: Path) -> None:
    """The same product, convolution and collective in a table of their own."""
    path = tmp_path / "t.csv"

    def predicted(text: str) -> list[float]:
        path.write_text(text)
        return [c.predicted_s for outcome in predict_table(read_table(path))[1] for c in outcome.comparisons]

    gemm = predicted("device,precision,m,n,k,time_ms\np100,fp32,1024,512,2048,1\n")
    assert gemm == predicted("kernel,device,precision,m,n,k,time_ms\ngemm,p100,fp32,1024,512,2048,1\n")
    shape = "n,c,h,w,k,r,s,pad_h,pad_w"
    sizes = "16,64,56,56,128,3,3,1,1"
    passes = predicted(f"device,{shape},fwd_ms,bwd_input_ms,bwd_param_ms\np100,{sizes},2,2,2\n")
    rows = "".join(
        f"convolution,p100,{sizes},{name},2\n" for name in ("forward", "backward_input", "backward_weight", "backward")
    )
    assert predicted(f"kernel,device,{shape},pass_,time_ms\n{rows}") == pytest.approx([*passes, passes[1] + passes[2]])
    message = "all_reduce,h100-sxm,2,16,268435456"
    names = "collective,device,nodes,ranks,bytes"
    assert predicted(f"{names},time_ms\n{message},2\n") == predicted(
        f"kernel,{names},time_ms\ncollective,{message},2\n"
    )


def test_bad_rows_are_counted_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    header = "kernel,device,pass_,op,batch,hidden,heads,head_dim,seq,causal,bytes,time_ms,device_file\n"
    lines = {
        "frobnicate,a100-80gb,,,,,,,,,,1": "kernel 'frobnicate' is not known",
        "attention,a100-80gb,backward_input,,1,,1,64,64,yes,,1": "neither forward nor backward",
        "attention,a100-80gb,forward,,1,,,64,64,yes,,1": "is not stated",
        "elementwise,a100-80gb,forward,cube,8,8,,,,,,1": "op of an elementwise kernel",
        "elementwise,a100-80gb,forward,relu,8,,,,,,,1": "is not stated",
        "copy,a100-80gb,,,,,,,,,,1": "bytes is not stated",
        "copy,a100-80gb,,,,,,,,,1024,": "no measured time",
        "copy,abacus,,,,,,,,,1024,1": "not known",
        "copy,mine,,,,,,,,,1000000000,25,./gone.yaml": "no such device file",
        "recurrent,a100-80gb,backward_weight,,,,,,,,,1": "the cell is none of",
    }
    path.write_text(header + "\n".join(lines) + "\n")
    _, outcomes = predict_table(read_table(path))
    for outcome, reason in zip(outcomes, lines.values(), strict=True):
        assert reason in outcome.skipped


def test_device_files_are_looked_for_beside_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "far"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "schema_version: 1\nname: mine\nmemory: 16 GiB\nmemory_bandwidth: 100 GB/s\npeak: {fp32: 1 TFLOP/s}\nsource: {peak: test}\n"
    )
    (folder / "t.csv").write_text("kernel,device,device_file,bytes,time_ms\ncopy,mine,mine.yaml,1000000000,25\n")
    monkeypatch.chdir(tmp_path)
    ((outcome,)) = predict_table(read_table(Path("far/t.csv")))[1]
    # 2 GB through 100 GB/s, of which a long stream reaches 85 %.
    assert outcome.comparisons[0].predicted_s == pytest.approx(0.02 / 0.85, rel=1e-3)


def test_kinds_and_precisions_take_turns() -> None:
    cases = kernel_cases(large=True, quick=False, precisions=("fp32", "bf16"))
    first = cases[:11]
    assert {case.kernel for case in first} == {kind for kind in KINDS if kind != "collective"}
    assert {case.precision for case in first} == {"fp32", "bf16"}
    only = kernel_cases(large=True, quick=False, precisions=("fp32",), kinds=("copy",))
    assert {case.kernel for case in only} == {"copy"}


def test_work_of_a_case_by_hand() -> None:
    cases = kernel_cases(large=False, quick=True, precisions=("fp32",))
    gemm = next(case for case in cases if case.kernel == "gemm")
    assert (gemm.flop, gemm.moved_bytes) == (2 * 256**3, 3 * 256 * 256 * 4)
    convolution = next(case for case in cases if case.kernel == "convolution")
    assert convolution.flop == 2 * 4 * 64 * 28 * 28 * 64 * 9  # padding keeps the side


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2), (3, 1), (16, 2)])
def test_collectives_can_be_divided(ranks: int, nodes: int) -> None:
    cases = collective_cases(ranks=ranks, nodes=nodes, large=False, quick=True)
    assert {case.text("collective") for case in cases} == set(COLLECTIVES)
    for case in cases:
        assert case["bytes"] % (4 * case["ranks"]) == 0
        pair = case.text("collective") == "point_to_point"
        # Ranks 0 and 1 are neighbours: on one machine where it has two processes.
        assert (case["ranks"], case["nodes"]) == ((2, 2 if ranks == nodes else 1) if pair else (ranks, nodes))


def test_timing_figures_by_hand() -> None:
    timing = Timing(samples_s=(1.0, 2.0, 3.0, 4.0, 100.0), calls=7)
    assert (timing.median_s, timing.p90_s) == (3.0, 100.0)
    assert timing.spread == pytest.approx((4.0 - 2.0) / 3.0)
    assert Timing(samples_s=(2.0,)).spread == 0.0


def fake(time_s: float, log: list[int]) -> Callable[[Callable[[], object], int], float]:
    def timer(call: Callable[[], object], count: int) -> float:
        log.append(count)
        return time_s * count

    return timer


@pytest.mark.parametrize(
    ("call_s", "calls", "samples", "all_calls"),
    [(1e-5, 100, 50, None), (2.0, 1, 3, 5)],
    ids=["short ones together, a sample of a millisecond", "few samples of long ones"],
)
def test_calls_per_sample(call_s: float, calls: int, samples: int, all_calls: int | None) -> None:
    log: list[int] = []
    timing = time_call(lambda: None, fake(call_s, log), budget_s=0.1)
    assert (timing.calls, len(timing.samples_s)) == (calls, samples)
    assert timing.median_s == pytest.approx(call_s)
    assert log[0] == 1  # warm-up
    assert all_calls is None or sum(log) == all_calls


def test_ranks_agree_on_the_number_of_calls() -> None:
    """The slower rank decides: both call a collective equally often, or they would wait for ever."""
    logs: list[list[int]] = [[], []]
    for rank, time_s in enumerate((1e-5, 5e-4)):
        worst: Callable[[Sequence[float]], Sequence[float]] = lambda samples: [5e-4] * len(samples)  # noqa: E731
        time_call(
            lambda: None, fake(time_s, logs[rank]), budget_s=0.1, agree=lambda value: max(value, 5e-4), worst=worst
        )
    assert logs[0] == logs[1]


def test_a_deadline_leaves_out_what_would_take_too_long() -> None:
    def case(size: int) -> Case:
        return Case(kernel="gemm", precision="fp32", cells=(), flop=float(size), moved_bytes=1.0, held_bytes=1.0)

    deadline = _Deadline(10.0, 4)
    assert deadline.reason_to_skip(case(10**12)) == ""  # nothing is known yet
    deadline.note(case(10**9), 1e-3)
    assert deadline.reason_to_skip(case(10**11)) == ""  # 0.1 s
    assert deadline.reason_to_skip(case(10**12)) == "would take too long"  # 1 s, six times at least
    assert _Deadline(1e-9, 1).reason_to_skip(case(1)) == "time limit"


def test_rows_have_every_column_that_a_case_needs() -> None:
    cases = kernel_cases(large=True, quick=False, precisions=("bf16",)) + collective_cases(
        ranks=2, nodes=1, large=True, quick=True
    )
    for case in cases:
        assert set(row_of(case, Timing(samples_s=(1e-3,)), MACHINE)) <= set(COLUMNS)


def test_processes_of_torchrun() -> None:
    assert processes_of(TORCHRUN) == Processes(rank=1, ranks=4, local_rank=1, local_ranks=2)
    assert processes_of(TORCHRUN).nodes == 2
    assert processes_of({}) == Processes() == processes_of({"WORLD_SIZE": "1"})


@pytest.mark.parametrize(
    "change",
    [
        {"RANK": "4"},
        {"RANK": "-1"},
        {"WORLD_SIZE": "3"},
        {"LOCAL_RANK": "2"},
        {"LOCAL_WORLD_SIZE": "0"},
        {"WORLD_SIZE": "x"},
    ],
)
def test_processes_that_contradict_themselves(change: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        processes_of({**TORCHRUN, **change})


def test_processes_without_torchrun() -> None:
    with pytest.raises(UsageError, match="MASTER_PORT is not: start several processes with torchrun"):
        processes_of({name: text for name, text in TORCHRUN.items() if name != "MASTER_PORT"})


def test_the_report_of_a_table(new_file: Any) -> None:
    """Predicted against measured, what is not predicted, what scatters, and what was left out."""
    case = kernel_cases(large=True, quick=True, precisions=("bf16",))[0]
    steady, restless = Timing(samples_s=(1e-4,) * 5), Timing(samples_s=(1e-4, 1e-4, 2e-4, 4e-4, 8e-4))
    measured = Measured(stopped=True)
    for timing, device in ((steady, "a100-80gb"), (restless, "a100-80gb"), (steady, "abacus")):
        measured.add(row_of(case, timing, MACHINE | {"device": device}))
    measured.skipped["time limit"] += 3
    report = measure_report(new_file("m.csv", table_text(measured.rows)), "a100-80gb", "x", "y", measured)
    document = MeasureDocument.model_validate_json(json_text(report.data()))
    assert [row.measured_s for row in document.rows] == pytest.approx([1e-4, 2e-4, 1e-4])
    assert document.rows[0].ratio == pytest.approx((document.rows[0].predicted_s or 0) / 1e-4)
    assert document.rows[2].predicted_s is None
    assert "abacus" in (document.rows[2].not_predicted or "")
    assert [(kernel.kernel, kernel.rows, kernel.scored) for kernel in document.kernels] == [("gemm", 3, 2)]
    text = plain_text(report.blocks(), 160)
    for words in ("3 until it was stopped", "3 time limit", "1 rows with a spread above"):
        assert words in text


def test_a_call_that_turns_out_slow_gets_fewer_samples() -> None:
    """Other programs take the processor away in the middle; ranks that must call equally often go on all the same."""
    times = [1e-3] * 5

    def timer(call: Callable[[], object], count: int) -> float:
        return (times.pop() if times else 0.2) * count

    # Three calls to warm up, then samples of 1, 1, 200 and 200 ms: past three budgets with the fourth.
    assert len(time_call(lambda: None, timer, budget_s=0.1).samples_s) == 4
    times = [1e-3] * 5
    assert len(time_call(lambda: None, timer, budget_s=0.1, agree=lambda value: value).samples_s) == 50


# --- Which device is measured, by a stand-in for PyTorch: GPUs that are not here, and more processes than GPUs ----------------------------


def torch_with(count: int, name: str, major: int, minor: int, gibibytes: float, hip: str | None = None) -> Any:
    properties = SimpleNamespace(name=name, major=major, minor=minor, total_memory=int(gibibytes * 2**30))
    cuda = SimpleNamespace(
        is_available=lambda: count > 0,
        device_count=lambda: count,
        set_device=lambda index: None,
        get_device_properties=lambda index: properties,
        mem_get_info=lambda index: (properties.total_memory // 2, properties.total_memory),
    )
    return SimpleNamespace(
        cuda=cuda,
        device=lambda kind, index=0: SimpleNamespace(type=kind, index=index),
        version=SimpleNamespace(cuda="12.4", hip=hip),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 90100)),
        set_num_threads=lambda number: None,
        __version__="2.6.0",
    )


@pytest.mark.parametrize(
    ("properties", "memory", "device", "formats"),
    [
        (("NVIDIA H100 80GB HBM3", 9, 0), 79.1, "h100-sxm", ("fp32", "tf32", "bf16", "fp16")),
        (("Tesla V100-SXM2-16GB", 7, 0), 15.8, "v100-16gb", ("fp32", "fp16")),
        (("Tesla P100-SXM2-16GB", 6, 0), 15.9, "p100", ("fp32", "fp16")),
        # fp16 runs there, 64 times slower than fp32.
        (("NVIDIA GeForce GTX 1080 Ti", 6, 1), 10.9, "gtx-1080ti", ("fp32",)),
        (("AMD Instinct MI300X", 9, 4), 191.7, "mi300x", ("fp32", "bf16", "fp16")),
    ],
)
def test_gpus(properties: tuple[str, int, int], memory: float, device: str, formats: tuple[str, ...]) -> None:
    hip = "6.2" if properties[0].startswith("AMD") else None
    place = place_of(torch_with(1, *properties, memory, hip), NOTHING, Processes(), None)
    assert (place.kind, place.found.name, place.precisions) == ("cuda", device, formats)
    assert place.memory_bytes == pytest.approx(0.9 * memory / 2 * 2**30, rel=1e-6)  # of what is free


def test_a_part_of_a_gpu_is_a_device_of_its_own_with_the_rates_of_its_board() -> None:
    """CUDA names the instance; its memory is known, its share of multiprocessors and bandwidth is not, and it is said."""
    place = place_of(torch_with(1, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 9, 0, 39.5), NOTHING, Processes(), None)
    assert place.found.name == "nvidia-h100-80gb-hbm3-mig-3g-40gb"
    assert not place.found.is_bundled
    peak = next(fact for fact in place.found.facts if fact.key == "peak")
    assert not peak.is_known
    assert any("MIG is on" in fact.source for fact in place.found.facts)
    assert (
        place.found.usual_cluster
        == place_of(torch_with(1, "NVIDIA H100 80GB HBM3", 9, 0, 79.1), NOTHING, Processes(), None).found.usual_cluster
    )


class Clock:
    """Calls on a GPU that take 2 ms each, and events as `torch.cuda.Event` has them: milliseconds between what was recorded."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.queued_ms = 0.0

    def call(self) -> None:
        self.log.append("call")
        self.queued_ms += 2.0

    def torch(self) -> Any:
        clock = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ms: float | None = None
                self.is_over = False

            def record(self) -> None:
                clock.log.append("record")
                self.at_ms = clock.queued_ms

            def synchronize(self) -> None:
                clock.log.append("wait")
                self.is_over = True

            def elapsed_time(self, end: Event) -> float:
                assert end.is_over  # CUDA raises where the end is not reached
                assert self.at_ms is not None
                assert end.at_ms is not None
                return end.at_ms - self.at_ms

        return SimpleNamespace(cuda=SimpleNamespace(Event=Event, synchronize=lambda: clock.log.append("synchronize")))


def test_gpus_are_timed_by_events_on_their_queue() -> None:
    clock = Clock()
    place = place_of(torch_with(1, "Tesla T4", 7, 5, 14.7), NOTHING, Processes(), None)
    assert place.timer(clock.torch())(clock.call, 3) == pytest.approx(6e-3)  # seconds
    assert clock.log == ["synchronize", "record", "call", "call", "call", "record", "wait"]


def test_more_processes_than_gpus() -> None:
    processes = Processes(rank=3, ranks=4, local_rank=3, local_ranks=4)
    with pytest.raises(UsageError, match="4 processes and 2 GPUs on this machine"):
        place_of(torch_with(2, "Tesla T4", 7, 5, 14.7), NOTHING, processes, None)


def test_no_gpu() -> None:
    torch = torch_with(0, "", 0, 0, 0)
    with pytest.raises(UsageError, match="sees no GPU"):
        place_of(torch, NOTHING, Processes(), "cuda")
    place = place_of(torch, NOTHING, Processes(), None)
    assert (place.kind, place.precisions) == ("cpu", ("fp32",))


def test_the_machine_is_measured_on_request_without_its_gpu() -> None:
    place = place_of(torch_with(1, "Tesla T4", 7, 5, 14.7), NOTHING, Processes(), "cpu")
    assert (place.kind, place.found.is_bundled) == ("cpu", False)


@pytest.mark.parametrize(
    ("threads", "ranks", "set_to", "cores", "remark"),
    [
        (None, 1, 4, 4, ""),
        (None, 2, 2, 2, ""),  # the cores are divided
        (1, 2, 1, 1, ""),  # as torchrun sets it
        (3, 1, 3, 3, ""),
        (8, 1, 8, 4, "8 threads share 4 cores"),
    ],
)
def test_threads_of_a_processor(threads: int | None, ranks: int, set_to: int, cores: int, remark: str) -> None:
    """OMP_NUM_THREADS decides; the device has as many cores, and the memory is divided among the processes."""
    torch, asked = torch_with(0, "", 0, 0, 0), []
    torch.set_num_threads = asked.append
    system = RecordedSystem(cpus=4, files={"/proc/meminfo": "MemTotal: 8388608 kB"})
    place = place_of(torch, system, Processes(ranks=ranks, local_ranks=ranks), None, threads)
    facts = {fact.key: fact for fact in place.found.facts}
    assert (asked, place.cores) == ([set_to], cores)
    assert (
        facts["peak"].text == f"{{fp32: {cores * 4 * 8:g} GFLOP/s}}"
    )  # 1.6 x 2.5 GHz x 8 FLOP, where nothing is known
    assert facts["memory"].text == f"{8 / ranks:g} GiB"
    assert (f"{set_to} thread" in place.software, "OMP_NUM_THREADS" in place.software) == (True, threads is not None)
    assert place.remark.startswith(remark)


def test_one_thread_is_timed_by_its_own_clock() -> None:
    """A call that only waits takes time of the machine, and next to none of the process; messages are timed by the first."""
    torch, nap = torch_with(0, "", 0, 0, 0), partial(time.sleep, 0.02)
    one, two = (place_of(torch, NOTHING, Processes(), None, threads) for threads in (1, 2))
    assert one.timer(torch)(nap, 2) < 0.02
    assert two.timer(torch)(nap, 2) >= 0.04
    assert replace(one, threads=0).timer(torch)(nap, 2) >= 0.04


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ",2", "99999999"])
def test_threads_that_are_no_number(text: str) -> None:
    with pytest.raises(UsageError, match=r"OMP_NUM_THREADS=.* is not a whole number from 1"):
        threads_of({"OMP_NUM_THREADS": text})


def wanted(path: Path, **changes: Any) -> Wanted:
    values: dict[str, Any] = {
        "path": path, "quick": True, "kind": None, "device": None, "cluster": None, "kinds": (), "precisions": (),
        "time_limit_s": 1.0, "seed": 0,
    }  # fmt: skip
    return Wanted(**(values | changes))


def test_columns_about_the_machine(tmp_path: Path) -> None:
    """A bundled device needs no file; another one, and a cluster of several processes, get one beside the table."""
    two = Processes(ranks=2, local_ranks=2)
    path = tmp_path / "m.csv"
    known = place_of(torch_with(2, "Tesla T4", 7, 5, 14.7), NOTHING, two, None)
    columns, files = _where(wanted(path), known, Processes(), NOTHING)
    assert (columns["kernel"]["device"], "device_file" in columns["kernel"], files) == ("t4", False, {})
    strange = place_of(torch_with(1, "Brand New", 15, 0, 64.0), NOTHING, Processes(), None)
    columns, files = _where(wanted(path), strange, Processes(), NOTHING)
    assert columns["kernel"]["device_file"] == "m-device.yaml"
    assert {target.name for target in files} == {"m-device.yaml"}
    columns, files = _where(wanted(path), known, two, NOTHING)
    assert columns["collective"]["cluster_file"] == "m-cluster.yaml"
    assert "cluster_file" not in columns["kernel"]
    columns, files = _where(wanted(path, device="t4", cluster="pcie3-fdr"), strange, two, NOTHING)
    assert (columns["collective"]["device"], columns["collective"]["cluster_file"], files) == ("t4", "pcie3-fdr", {})


def test_messages_are_timed_between_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the products take is taken out again: of three messages of 2 ms between products of 5 ms, 6 ms are left."""
    clock, taken = [0.0], []

    class Library:
        @staticmethod
        def ones(*shape: int) -> tuple[int, ...]:
            return shape

        empty = ones

        @staticmethod
        def mm(a: object, b: object, out: object) -> None:
            clock[0] += 5e-3
            taken.append("product")

    def message() -> None:
        clock[0] += 2e-3
        taken.append("message")

    def timer(call: Callable[[], object], count: int) -> float:
        start_s = clock[0]
        for _ in range(count):
            call()
        return clock[0] - start_s

    here = SimpleNamespace(kind="cpu", timer=lambda torch: timer)
    monkeypatch.setattr(processes, "replace", lambda place, **changes: place)
    assert processes.message_timer(Library, here)(message, 3) == pytest.approx(6e-3)
    assert taken == ["product"] * 3 + ["product", "message"] * 3
