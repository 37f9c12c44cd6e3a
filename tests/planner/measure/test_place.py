"""Which device is measured, by a stand-in for PyTorch: GPUs that are not here, and more processes than GPUs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.core.errors import UsageError
from planner.measure.processes import Processes, place_of
from planner.measure.run import Wanted, _where
from planner.measurements.kinds import predict_table
from planner.measurements.tables import read_table


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


class Nothing:
    """A machine that says nothing."""

    def run(self, program: str, *arguments: str) -> str | None:
        return None

    def read(self, path: str) -> str | None:
        return None

    def names(self, folder: str) -> tuple[str, ...]:
        return ()

    def exists(self, path: str) -> bool:
        return False

    def usable_cpus(self) -> int | None:
        return 4


@pytest.mark.parametrize(
    ("name", "capability", "memory", "device", "formats"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), 79.1, "h100-sxm", ("fp32", "tf32", "bf16", "fp16")),
        ("Tesla V100-SXM2-16GB", (7, 0), 15.8, "v100-16gb", ("fp32", "fp16")),
        ("Tesla P100-SXM2-16GB", (6, 0), 15.9, "p100", ("fp32", "fp16")),
        (
            "NVIDIA GeForce GTX 1080 Ti",
            (6, 1),
            10.9,
            "gtx-1080ti",
            ("fp32",),
        ),  # fp16 runs there, 64 times slower than fp32
    ],
)
def test_gpus(name: str, capability: tuple[int, int], memory: float, device: str, formats: tuple[str, ...]) -> None:
    place = place_of(torch_with(1, name, *capability, memory), Nothing(), Processes(), None)
    assert (place.kind, place.found.name, place.precisions) == ("cuda", device, formats)
    assert place.memory_bytes == pytest.approx(0.9 * memory / 2 * 2**30, rel=1e-6)  # of what is free


def test_a_part_of_a_gpu_is_a_device_of_its_own_with_the_rates_of_its_board() -> None:
    """CUDA names the instance; its memory is known, its share of multiprocessors and bandwidth is not, and it is said."""
    place = place_of(torch_with(1, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 9, 0, 39.5), Nothing(), Processes(), None)
    assert place.found.name == "nvidia-h100-80gb-hbm3-mig-3g-40gb"
    assert not place.found.is_bundled
    peak = next(fact for fact in place.found.facts if fact.key == "peak")
    assert not peak.is_known
    assert any("MIG is on" in fact.source for fact in place.found.facts)
    assert (
        place.found.usual_cluster
        == place_of(
            torch_with(1, "NVIDIA H100 80GB HBM3", 9, 0, 79.1), Nothing(), Processes(), None
        ).found.usual_cluster
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
    place = place_of(torch_with(1, "Tesla T4", 7, 5, 14.7), Nothing(), Processes(), None)
    assert place.timer(clock.torch())(clock.call, 3) == pytest.approx(6e-3)  # seconds
    assert clock.log == ["synchronize", "record", "call", "call", "call", "record", "wait"]


def test_gpus_of_another_vendor() -> None:
    place = place_of(torch_with(1, "AMD Instinct MI300X", 9, 4, 191.7, hip="6.2"), Nothing(), Processes(), None)
    assert (place.found.name, place.precisions) == ("mi300x", ("fp32", "bf16", "fp16"))


def test_more_processes_than_gpus() -> None:
    processes = Processes(rank=3, ranks=4, local_rank=3, local_ranks=4)
    with pytest.raises(UsageError, match="4 processes and 2 GPUs on this machine"):
        place_of(torch_with(2, "Tesla T4", 7, 5, 14.7), Nothing(), processes, None)


def test_no_gpu() -> None:
    torch = torch_with(0, "", 0, 0, 0)
    with pytest.raises(UsageError, match="sees no GPU"):
        place_of(torch, Nothing(), Processes(), "cuda")
    place = place_of(torch, Nothing(), Processes(), None)
    assert (place.kind, place.precisions) == ("cpu", ("fp32",))


def test_the_machine_is_measured_on_request_without_its_gpu() -> None:
    place = place_of(torch_with(1, "Tesla T4", 7, 5, 14.7), Nothing(), Processes(), "cpu")
    assert (place.kind, place.found.is_bundled) == ("cpu", False)


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
    known = place_of(torch_with(2, "Tesla T4", 7, 5, 14.7), Nothing(), two, None)
    columns, files = _where(wanted(path), known, Processes(), Nothing())
    assert (columns["kernel"]["device"], "device_file" in columns["kernel"], files) == ("t4", False, {})
    strange = place_of(torch_with(1, "Brand New", 15, 0, 64.0), Nothing(), Processes(), None)
    columns, files = _where(wanted(path), strange, Processes(), Nothing())
    assert columns["kernel"]["device_file"] == "m-device.yaml"
    assert {target.name for target in files} == {"m-device.yaml"}
    columns, files = _where(wanted(path), known, two, Nothing())
    assert columns["collective"]["cluster_file"] == "m-cluster.yaml"
    assert "cluster_file" not in columns["kernel"]
    columns, files = _where(wanted(path, device="t4", cluster="pcie3-fdr"), strange, two, Nothing())
    assert (columns["collective"]["device"], columns["collective"]["cluster_file"], files) == ("t4", "pcie3-fdr", {})


def test_a_device_file_that_is_missing_is_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("kernel,device,device_file,bytes,time_ms\ncopy,mine,./gone.yaml,1000000000,25\n")
    outcomes = predict_table(read_table(path))[1]
    assert "no such device file" in outcomes[0].skipped
