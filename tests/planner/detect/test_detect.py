"""What is made of recorded machines, and that every file loads and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.cluster import Cluster
from costmodel.uncertainty.constants import device_with
from planner.core.errors import UsageError
from planner.detect.devices import Processor, device_of_gpu, find_processor, flop_per_cycle, parse_lscpu, quoted
from planner.detect.machine import detect
from planner.detect.nvidia import Gpu, parse_gpus, parse_nvlinks, parse_topology
from planner.detect.report import machine_files
from planner.files.documents import parse_document
from planner.files.loading import load_cluster, load_device
from planner.schema.results import DetectDocument
from tests.planner.detect import machines


def loaded(system: Any, folder: Path, **options: Any) -> Cluster:
    path = folder / "cluster.yaml"
    for target, text in machine_files(detect(system, **options), path).items():
        target.write_text(text, encoding="utf-8")
    return load_cluster(str(path)).cluster


def test_dgx_h100(tmp_path: Path) -> None:
    cluster = loaded(machines.dgx_h100(), tmp_path)
    nvlink, network = cluster.levels
    assert cluster.device.name == "h100-sxm"
    # 18 links of 25 GB/s of data; the storage adapters are not beside a GPU, so that every GPU has a port of its own
    assert (nvlink.name, nvlink.size, nvlink.bandwidth_bytes_per_s) == ("nvlink", 8, 450e9)
    assert (network.name, network.size, network.bandwidth_bytes_per_s, network.shared_by) == ("infiniband", 1, 50e9, 1)
    bundled = load_cluster("dgx-h100").cluster
    assert [level.port_bytes_per_s for level in cluster.levels] == [level.port_bytes_per_s for level in bundled.levels]
    assert [level.latency_s for level in cluster.levels] == [level.latency_s for level in bundled.levels]
    assert loaded(machines.dgx_h100(), tmp_path, nodes=4).max_devices == 32


def test_what_adapters_need_to_read_the_memory_of_gpus(tmp_path: Path) -> None:
    """Without the module a remark says so; Ethernet goes by TCP in any case."""
    without, system = machines.dgx_h100(), machines.dgx_h100()
    assert [remark for remark in detect(without).remarks if remark.startswith("neither nvidia_peermem")]
    system.files["/sys/module/nvidia_peermem/refcnt"] = "8"
    assert not [remark for remark in detect(system).remarks if remark.startswith("neither nvidia_peermem")]
    assert [level.transport for level in loaded(without, tmp_path).levels] == ["direct", "direct"]
    # RDMA over Ethernet is no TCP.
    assert loaded(machines.four_a100_pcie(bridges=False), tmp_path).levels[-1].transport == "direct"
    system.files = {path: text for path, text in system.files.items() if "/infiniband/" not in path}
    assert loaded(system, tmp_path).levels[-1].transport == "tcp"


def test_pairs_of_a100_with_bridges(tmp_path: Path) -> None:
    cluster = loaded(machines.four_a100_pcie(bridges=True), tmp_path)
    assert cluster.device.name == "a100-pcie-80gb"
    assert [(level.name, level.size) for level in cluster.levels] == [("nvlink", 2), ("pcie", 2), ("ethernet", 1)]
    assert cluster.levels[0].bandwidth_bytes_per_s == 300e9  # 12 links of 25 GB/s
    assert cluster.levels[1].bandwidth_bytes_per_s == pytest.approx(31.5e9, rel=1e-3)  # 16 GT/s x 16 x 128/130 / 8
    assert cluster.levels[2].shared_by == 4  # one adapter for four boards; the other is down
    assert cluster.levels[2].bandwidth_bytes_per_s == 12.5e9 / 4


def test_a100_without_bridges(tmp_path: Path) -> None:
    cluster = loaded(machines.four_a100_pcie(bridges=False), tmp_path)
    assert [(level.name, level.size) for level in cluster.levels] == [("pcie", 4), ("ethernet", 1)]


def test_dgx1_v100(tmp_path: Path) -> None:
    system = machines.dgx1_v100()
    cluster = loaded(system, tmp_path)
    assert cluster.device.name == "v100-16gb"
    # Without `nvlink -s`: six links of 25 GB/s, counted from the matrix.
    assert (cluster.levels[0].size, cluster.levels[0].bandwidth_bytes_per_s) == (8, 150e9)
    assert (cluster.levels[1].shared_by, cluster.levels[1].bandwidth_bytes_per_s * 2) == (2, 12.5e9)
    bundled = load_cluster("dgx1-v100").cluster
    assert [level.port_bytes_per_s for level in cluster.levels] == [level.port_bytes_per_s for level in bundled.levels]


def test_no_gpu(tmp_path: Path) -> None:
    cluster = loaded(machines.without_gpu(), tmp_path)
    device = cluster.device
    assert cluster.max_devices == 1
    # Cores x clock in the name x what the highest clock is above it x two 512-bit FMA units.
    assert device.peak("fp32") == pytest.approx(32 * 2.0e9 * 1.6 * 64)
    assert device.stream_bytes_per_s == pytest.approx(0.85 * 32 * 10e9, rel=1e-2)  # of the 409.6 GB/s of two sockets
    assert device.memory_bytes == pytest.approx(263778152 * 1024, rel=1e-4)
    text = (tmp_path / "cluster-device.yaml").read_text()
    assert "memory_bandwidth: 409.6 GB/s  # unknown: assumed" in text
    assert "# unknown: assumed, no adapter states its speed" in (tmp_path / "cluster.yaml").read_text()


def test_cores_as_devices(tmp_path: Path) -> None:
    """32 cores as devices of 4: each computes and holds an eighth, and GPUs are left aside."""
    cluster = loaded(machines.without_gpu(), tmp_path, cores_per_device=4, processes=0)
    assert cluster.library == "gloo"
    whole = loaded(machines.without_gpu(), tmp_path).device
    assert [(level.name, level.size) for level in cluster.levels] == [("host", 8), ("ethernet", 1)]
    assert cluster.device.peak("fp32") == pytest.approx(whole.peak("fp32") / 8)
    assert cluster.device.memory_bytes == pytest.approx(whole.memory_bytes / 8, rel=1e-3)
    assert loaded(machines.dgx_h100(), tmp_path, cores_per_device=1, processes=0).device.name.startswith("cpu-")
    assert detect(machines.without_gpu(), cores_per_device=5, processes=0).remarks == (
        "2 of 32 cores are left over: devices of 5 do not use them",
    )
    with pytest.raises(
        UsageError, match="--cores-per-device 33: this process may use 32 cores, so a device has 1 to 32"
    ):
        detect(machines.without_gpu(), cores_per_device=33, processes=0)


def test_nothing_at_all(tmp_path: Path) -> None:
    cluster = loaded(machines.RecordedSystem(), tmp_path)
    assert cluster.max_devices == 1
    assert cluster.device.peak("fp32") == pytest.approx(2.5e9 * 1.6 * 8)


def test_a_calibration_may_find_a_processor_faster_than_its_nominal_clock(tmp_path: Path) -> None:
    """What nobody states is no limit for what is measured: factors of a calibration act in full."""
    device = loaded(machines.without_gpu(), tmp_path, cores_per_device=1).device
    faster = device_with(device, {"matmul_rate": 1.3, "memory_rate": 2.0})
    assert faster.best("fp32") == pytest.approx(1.3 * device.best("fp32"))
    assert faster.best("fp32") > 2.0e9 * 64
    assert faster.stream_bytes_per_s == pytest.approx(2.0 * device.stream_bytes_per_s)
    assert device.efficiency.memory_overlap == 0.0  # as the bundled processor, which this is compared with
    assert device.efficiency.cache_speedup * device.stream_bytes_per_s == pytest.approx(65e9, rel=0.01)


def test_a_limited_container() -> None:
    system = machines.without_gpu()
    system.cpus = 8  # logical: two threads share a core
    assert find_processor(system).cores == 4
    system.cpus, system.files = 64, {**system.files, "/sys/fs/cgroup/cpu.max": "200000 100000"}
    assert find_processor(system).cores == 2
    system.files = {**system.files, "/sys/fs/cgroup/memory.max": str(4 * 2**30)}
    assert find_processor(system).memory_bytes == 4 * 2**30


@pytest.mark.parametrize(
    ("name", "memory", "capability", "device"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "9.0", "h100-sxm"),
        ("NVIDIA H100 PCIe", 81559, "9.0", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", 40960, "8.0", "a100-40gb"),
        ("A100-SXM4-80GB", 81251, "8.0", "a100-80gb"),
        ("Tesla V100-SXM2-32GB", 32510, "7.0", "v100-32gb"),
        ("Tesla T4", 15360, "7.5", "t4"),
        ("NVIDIA GeForce RTX 4090", 24564, "8.9", "rtx-4090"),
        ("NVIDIA H200", 143771, "9.0", "h200"),
        ("NVIDIA L40S", 46068, "8.9", "l40s"),
        ("Tesla K80", 11441, "3.7", "k80"),
        ("NVIDIA L4", 23034, "8.9", "l4"),
        ("NVIDIA A10", 23028, "8.6", "a10"),
        ("NVIDIA A30", 24576, "8.0", "a30"),
        ("NVIDIA H100 NVL", 95830, "9.0", "h100-nvl"),
        ("Tesla V100-PCIE-16GB", 16160, "7.0", "v100-pcie-16gb"),
        ("Tesla P100-PCIE-12GB", 12198, "6.0", "p100-pcie-12gb"),
        ("Quadro RTX 8000", 48601, "7.5", "quadro-rtx-8000"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "8.9", "rtx-6000-ada"),
        ("NVIDIA GeForce RTX 5090", 32607, "12.0", "rtx-5090"),
        ("AMD Instinct MI210", 65520, "", "mi210"),
    ],
)
def test_bundled_devices(name: str, memory: int, capability: str, device: str) -> None:
    gpu = Gpu(index=0, name=name, memory_bytes=memory * 2**20, compute_capability=capability)
    assert device_of_gpu(gpu).name == device


@pytest.mark.parametrize(
    ("name", "memory", "capability", "nearest"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "8.9", "rtx-4090"),  # another chip than the desktop's
        ("NVIDIA GeForce RTX 3080", 12288, "8.6", "rtx-3080"),  # sold with 10 GiB, then with 12
        ("NVIDIA H100 64GB HBM2", 65536, "9.0", "h100-pcie"),
        ("NVIDIA A10M", 20475, "8.6", "rtx-3090"),
        ("Brand New Thing", 999999, "14.2", "t4"),
        ("NVIDIA A100-SXM4-80GB", 20000, "8.0", "a100-80gb"),  # a part of one
    ],
)
def test_devices_that_nobody_has_described(
    name: str, memory: int, capability: str, nearest: str, tmp_path: Path
) -> None:
    system = machines.RecordedSystem(outputs=machines.queries(1, name, memory, 4, capability))
    device = loaded(system, tmp_path).device
    assert device.memory_bytes == pytest.approx(memory * 2**20, rel=1e-3)  # what is known is kept
    assert dict(device.peak_flop_per_s) == dict(load_device(nearest).device.peak_flop_per_s)
    assert f"# unknown: assumed, as bundled {nearest}" in (tmp_path / "cluster-device.yaml").read_text()


def test_two_kinds_of_gpus_become_groups(tmp_path: Path) -> None:
    outputs = {
        machines.BASE: "0, NVIDIA L40S, 46068\n1, NVIDIA L40S, 46068\n2, NVIDIA L20, 46068\n3, NVIDIA L20, 46068\n"
    }
    cluster = loaded(machines.RecordedSystem(outputs=outputs), tmp_path)
    assert [(group.device.name, group.num_devices) for group in cluster.groups] == [("l40s", 2), ("nvidia-l20", 2)]


def test_uneven_nvlinks_are_left_out(tmp_path: Path) -> None:
    system = machines.four_a100_pcie(bridges=False)
    table = (
        system.outputs[machines.TOPOLOGY]
        .replace("GPU0\t X \tNODE", "GPU0\t X \tNV4")
        .replace("GPU1\tNODE", "GPU1\tNV4")
    )
    system.outputs = {**system.outputs, machines.TOPOLOGY: table}
    cluster = loaded(system, tmp_path)
    assert [level.name for level in cluster.levels] == ["pcie", "ethernet"]
    assert "unequal size" in (tmp_path / "cluster.yaml").read_text()


def test_only_the_list_of_gpus(tmp_path: Path) -> None:
    """An old driver that knows no queries."""
    lines = "".join(f"GPU {i}: Tesla K80 (UUID: GPU-{i})\n" for i in range(2))
    cluster = loaded(machines.RecordedSystem(outputs={("nvidia-smi", "-L"): lines}), tmp_path)
    assert (cluster.device.name, cluster.levels[0].size) == ("k80", 2)


def test_instances_of_a_gpu_are_remarked(tmp_path: Path) -> None:
    outputs = machines.queries(1, "NVIDIA A100-SXM4-40GB", 40960, 4, "8.0", "Enabled")
    loaded(machines.RecordedSystem(outputs=outputs), tmp_path)
    assert "MIG is on" in (tmp_path / "cluster.yaml").read_text()


def test_cores_by_instruction_set() -> None:
    def rates(vendor: str, family: int, flags: str) -> dict[str, int]:
        processor = Processor(
            name="", vendor=vendor, family=family, sockets=1, cores=1, clock_hz=1e9, clock_source="",
            flags=frozenset(flags.split()), memory_bytes=None,
        )  # fmt: skip
        return flop_per_cycle(processor)[0]

    for processor, found in (
        (("GenuineIntel", 6, "avx2 fma avx512f avx512_bf16 amx_bf16"), {"fp32": 64, "bf16": 1024}),
        (("AuthenticAMD", 26, "avx2 fma avx512f avx512_bf16"), {"fp32": 64, "bf16": 128}),
        (("AuthenticAMD", 23, "avx2 fma"), {"fp32": 32}),
        (("ARM", 0, "asimd"), {"fp32": 16}),
        (("", 0, ""), {"fp32": 8}),
    ):
        assert rates(*processor) == found, processor


@given(st.text(max_size=300), st.text(max_size=100), st.text(max_size=100))
def test_garbage_never_fails(text: str, other: str, third: str) -> None:
    parse_topology("GPU0 " + text)
    parse_nvlinks("GPU 0: x\n" + text)
    parse_gpus(text, other, third)
    parse_lscpu(text)
    outputs = {machines.BASE: f"0, {text}, {other}\n", machines.TOPOLOGY: text, ("lscpu",): text}
    detect(machines.RecordedSystem(outputs=outputs, files={"/proc/cpuinfo": other, "/proc/meminfo": third}))


@given(name=st.text(max_size=120))
def test_any_name_makes_a_file_that_loads(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Colons, quotes, control codes and line ends in what a driver prints must not break the YAML."""
    system = machines.RecordedSystem(outputs={machines.BASE: f"0, {name.replace(',', '')}, 16160\n"})
    loaded(system, tmp_path_factory.mktemp("any"))


def test_the_command_writes_what_the_planner_reads(tmp_path: Path, answer: Any) -> None:
    path = tmp_path / "cluster.yaml"
    shown = answer("detect", "-o", str(path))
    assert "assumptions" in shown
    assert answer("optimize", "alexnet", "--gpus", "1", "--cluster", str(path))


def test_files_that_are_there_are_kept_unless_forced(tmp_path: Path, new_file: Any, answer: Any, fails: Any) -> None:
    path = new_file("cluster.yaml", "mine")
    assert "--force" in fails("detect", "-o", str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["cluster.yaml"]
    assert path.read_text(encoding="utf-8") == "mine"
    answer("detect", "-o", str(path), "--force")
    assert path.read_text(encoding="utf-8") != "mine"


def test_bad_output(tmp_path: Path, fails: Any) -> None:
    assert "Not a directory" in fails("detect", "-o", "/dev/null/c.yaml")
    error = fails("detect", "-o", str(tmp_path / "c.txt"), "--nodes", "0")
    assert "ends in .yaml" in error
    assert "--nodes 0" in error


def test_json(answer: Any) -> None:
    """The source of the number of machines is the option, not what says how fast the network is."""
    document = json.loads(answer("detect", "--nodes", "16", "--json"))
    DetectDocument.model_validate(document, strict=True)
    assert {"name", "values", "remarks", "files"} <= set(document)
    assert all({"part", "key", "value", "known", "source"} == set(value) for value in document["values"])
    sizes = [value for value in document["values"] if value["key"] == "size"]
    assert (sizes[-1]["value"], sizes[-1]["source"]) == ("16", "machines like this one (--nodes)")


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "0E0",
        "1_000",
        "0o7",
        "true",
        "No",
        "~",
        "null",
        ".inf",
        "nan",
        "2024-01-01",
        "a: b",
        "# c",
        "é\u200b",
        "-",
        "",
    ],
)
def test_texts_stay_texts(text: str, new_file: Any) -> None:
    """By this project's reader, which knows more numbers than others."""
    assert parse_document(new_file("t.yaml", f"key: {quoted(text)}\n")).value["key"] == text
