"""Names of devices and links: what people write, and what it becomes."""

from __future__ import annotations

import pytest

from benchmarks.datasets.kernels import product
from benchmarks.datasets.reading import Row, Unreadable
from planner.files.loading import load_cluster
from planner.files.naming.devices import KNOWN_DEVICES, device_called
from planner.files.resources import bundled
from planner.measurements import hardware, tables
from planner.measurements.hardware import precision_of
from tests.benchmarks.datasets.published_rows import (
    COLLECTIVES,
    PLANS,
    RUN,
    format_of,
    links_of,
    machine_cells,
    machine_of,
    seconds,
)


def row(**cells: str) -> Row:
    return Row(line=2, cells=cells)


def test_every_device_and_cluster_that_a_name_stands_for_is_bundled() -> None:
    devices, clusters = bundled("devices"), bundled("clusters")
    for known in KNOWN_DEVICES:
        assert known.cluster in clusters, known
        assert {known.device, *known.open_to, *(name for _, name in known.by_memory)} <= set(devices), known


@pytest.mark.parametrize(
    ("text", "memory", "name"),
    [
        ("A100-80GB SXM4 (Selene)", "", "a100-80gb"),
        ("A100-40GB SXM", "40", "a100-40gb"),
        ("NVIDIA A100 PCIe", "", "a100-pcie-80gb"),
        ("DGX-H100", "", "h100-sxm"),
        ("NVIDIA GH200 SXM", "", "gh200"),
        ("NVIDIA H200 SXM", "", "h200"),
        ("NVIDIA GB200 SXM", "", "gb200"),
        ("V100-32GB SXM3 (DGX-2)", "", "v100-32gb"),
        ("K80 (per GK210 die)", "", "k80"),
        ("GTX Titan X (Maxwell)", "", "titan-x"),
        ("Titan X (Pascal)", "", "titan-x-pascal"),
        ("NV_M40", "", "m40"),
        ("not stated in repo (V100-class: VGG conv)", "", "v100-16gb"),
        ("AMD MI325X", "", "mi325x"),
        ("Intel Gaudi 3", "", "gaudi3"),
        ("rtx-4090", "", "rtx-4090"),
    ],
)
def test_names_of_devices(text: str, memory: str, name: str) -> None:
    assert machine_of(row(device=text, device_mem_gb=memory)).device.name == name


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(Unreadable, match="device 'Abacus 9000' is not known"):
        machine_of(row(device="Abacus 9000"))
    with pytest.raises(
        Unreadable, match=r"device 'mi330x' is not known; did you mean 'mi3[0-9]*x'\? \(planner list devices\)"
    ):
        machine_of(row(device="mi330x"))


def test_links_of_a_row_replace_those_of_the_usual_cluster() -> None:
    found = machine_of(row(device="A100-80GB", gpus_per_node="4", intra_bw_GBps="150", inter_bw_Gbps_per_node="800"))
    node, network = found.cluster.levels
    assert (node.size, node.bandwidth_bytes_per_s) == (4, 150e9)
    assert network.bandwidth_bytes_per_s == 800e9 / 8 / 4  # shared by the four GPUs of a node
    assert found.capacity_bytes == 80 * 2**30


@pytest.mark.parametrize(
    ("device", "gbps", "notes", "transport", "node_bytes_per_s"),
    [
        # One adapter for four switches of PCIe 3.0: 0.8 x 15.75 / 2 GB/s. One at each switch, as in a DGX-1: 95 % of 400 Gb/s.
        ("V100-32GB SXM", "100", "", "host", 6.3e9),
        ("V100-32GB SXM", "200", "", "host", 12.6e9),
        ("V100-32GB SXM", "400", "", "direct", 47.5e9),
        ("V100-32GB SXM", "100", "GPUDirect RDMA", "direct", 11.875e9),
        ("V100-32GB SXM", "400", "EDR, no GPUDirect", "host", 25.2e9),
        ("V100-32GB SXM", "100", "TCP", "tcp", 6.3e9),
        ("V100-32GB SXM", "25", "", "tcp", 0.8 * 25e9 / 8),
        # InfiniBand FDR and QDR; drivers of A100s bring what GPUDirect needs.
        ("A100-80GB", "56", "", "direct", 0.96 * 7e9),
        ("A100-80GB", "200", "", "direct", 24e9),
        ("A100-80GB", "10", "", "tcp", 1e9),
    ],
)
def test_how_data_get_to_the_network_of_a_row(
    device: str, gbps: str, notes: str, transport: str, node_bytes_per_s: float
) -> None:
    found = machine_of(row(device=device, gpus_per_node="8", inter_bw_Gbps_per_node=gbps, notes=notes))
    network = found.cluster.levels[-1]
    assert network.transport == transport
    assert 8 * network.port_bytes_per_s == pytest.approx(node_bytes_per_s)
    slow = load_cluster("ethernet-10g").cluster.levels[-1].latency_s
    assert (network.latency_s == slow) == (transport == "tcp")


def test_an_assumed_transport_is_counted() -> None:
    def assumed(**cells: str) -> object:
        found = tables.Row(line=2, cells={"device": "v100-16gb", "inter_bw_Gbps_per_node": "100", **cells})
        hardware.machine_of(found)
        return found.defaults.get("transport")

    assert assumed(gpus_per_node="8") == "host"
    assert assumed(gpus_per_node="8", transport="host") is None
    assert assumed(gpus_per_node="8", inter_bw_Gbps_per_node="400") is None
    # The cluster says it itself.
    assert assumed(gpus_per_node="8", cluster="aws-p3", inter_bw_Gbps_per_node="25") is None


@pytest.mark.parametrize(
    ("stated", "rate", "efficiency"),
    [
        ("150", 150e9, 1.0),  # below the 300 GB/s of NVLink 3: somebody measured it
        ("280", 231e9, 1.0),  # and never above the 77 % of 300 that collectives reach
        ("300", 300e9, 0.77),  # what the links are built for
        ("450", 450e9, 0.77),  # other links
    ],
)
def test_less_than_the_links_are_built_for_is_what_they_reach(stated: str, rate: float, efficiency: float) -> None:
    found = machine_of(row(device="A100-80GB SXM", gpus_per_node="8", intra_bw_GBps=stated))
    node = found.cluster.levels[0]
    assert (node.bandwidth_bytes_per_s, node.efficiency) == (pytest.approx(rate), efficiency)


def test_links_that_a_simulator_assumed_are_those_of_the_machine() -> None:
    cells = {"device": "A100-80GB SXM", "gpus_per_node": "8", "intra_bw_GBps": "150"}
    stated, assumed = (machine_of(row(**cells, source=text)) for text in ("", "vTrain (multi-node ground truth)"))
    assert stated.cluster.levels[0].bandwidth_bytes_per_s == 150e9
    assert assumed.cluster.levels[0] == machine_of(row(device="A100-80GB SXM", gpus_per_node="8")).cluster.levels[0]


@pytest.mark.parametrize(
    ("cells", "rate"),
    [
        (
            {"source": "BigScience prequel"},
            20.25e9 / 0.96,
        ),  # four adapters at 40.5 Gb/s; 0.96 is lost to InfiniBand, too
        ({"device": "A100-80GB SXM4 (Jean Zay)"}, 20.25e9 / 0.96),
        ({"notes": "4 x Omni-Path 100"}, 20.25e9 / 0.96),
        ({"model": "bigscience/bloom-7b1"}, 50e9),  # a network, not the machine
        ({"notes": "InfiniBand HDR"}, 50e9),
    ],
)
def test_adapters_of_omni_path_are_not_filled(cells: dict[str, str], rate: float) -> None:
    found = links_of(Row(line=2, cells={"device": "A100-80GB", "inter_bw_Gbps_per_node": "400", **cells}))
    assert found.inter_bytes_per_s == pytest.approx(rate, rel=1e-12)


def test_the_usual_links_are_noted_as_a_default() -> None:
    plain = machine_cells(row(device="H100"))
    levels = hardware.machine_of(plain).cluster.levels
    assert [level.bandwidth_bytes_per_s for level in levels] == [450e9, 400e9 / 8]
    assert plain.defaults == {"gpus_per_node": 8}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bf16 (fp32 grad accum)", "bf16"),
        ("FP8-CS", "fp8-tensorwise"),
        ("amp_bf16", "bf16"),
        ("amp", "fp16"),
        ("fp16 storage, fp32 math", "fp16"),
        ("Half", "fp16"),
        ("FP-16", "fp16"),
        ("float", "fp32"),
        ("single precision", "fp32"),
        ("FP32 + XLA", "fp32"),
        ("TF32 + XLA", "tf32"),
        ("bf16-mixed", "bf16"),
        ("mixed precision", "fp16"),
        ("FP32/FP16 mixed", "fp16"),
        ("fp32 inputs, tensor core math", "fp32"),
        ("tensor cores", "fp16"),
        ("FP8 (E4M3)", "fp8"),
        ("", "tf32"),
    ],
)
def test_names_of_number_formats(text: str, name: str) -> None:
    assert format_of(row(precision=text), "tf32") == name


@pytest.mark.parametrize("text", ["int3", "fp64", "double"])
def test_an_unknown_number_format(text: str) -> None:
    with pytest.raises(Unreadable, match=f"'{text}' is not known"):
        format_of(row(precision=text), "fp32")


@pytest.mark.parametrize(
    ("text", "device", "stored", "computed"),
    [
        ("fp16 storage, fp32 math (pseudo)", "p100", "fp16", "fp32"),
        ("pseudo FP16", "p100", "fp16", "fp32"),
        ("FP16 inputs/FP32 math", "p100", "fp16", "fp32"),
        ("fp16 inputs, tensor core math", "v100-16gb", "fp16", ""),
        ("fp32 inputs, tensor core math", "v100-16gb", "fp32", "fp16"),
        ("fp32 inputs, tensor core math", "a100-80gb", "fp32", "tf32"),
        ("fp32 inputs, tensor core math", "titan-x", "fp32", "fp32"),
        ("fp32", "v100-16gb", "fp32", ""),
    ],
)
def test_what_is_stored_and_what_is_computed(text: str, device: str, stored: str, computed: str) -> None:
    cells = product(row(device=device, precision=text, m="8", n="8", k="8", time_ms="1"))
    assert (cells["precision"], cells.get("products", "")) == (stored, computed)


def test_formats_that_a_device_lacks_are_stored_and_computed_wider() -> None:
    assert precision_of("fp8", frozenset({"fp32", "fp16", "bf16"})).compute == "bf16"
    assert precision_of("tf32", frozenset({"fp32"})).compute == "fp32"


NEW = {
    "NVIDIA L4": "l4", "L40S": "l40s", "A30": "a30", "A30-24GB": "a30", "Tesla P40": "p40", "Titan V": "titan-v", "RTX 5090": "rtx-5090",
    "RTX 6000 Ada": "rtx-6000-ada", "Quadro RTX 6000": "quadro-rtx-6000", "RTX A6000": "rtx-a6000", "A6000": "rtx-a6000",
    "RTX A5000": "rtx-a5000", "MI210": "mi210", "p3.16xlarge": "v100-16gb", "P4": "p4", "A4000": "rtx-a4000", "A300": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), NEW.items())
def test_devices_of_similar_names(text: str, name: str | None) -> None:
    assert device_called(text)[0] == name


def fast_and_slow(**cells: str) -> tuple[int | None, float]:
    """Devices that share the fast links, and the bandwidth of each beyond them."""
    *inside, outer = machine_of(row(**cells)).cluster.levels
    size = 1
    for level in inside:
        size *= level.size or 1
    return size, outer.bandwidth_bytes_per_s / outer.shared_by


@pytest.mark.parametrize(
    ("cells", "size"),
    [
        ({"device": "DGX-GB200", "gpus_per_node": "4", "nvlink_domain": "72"}, 72),  # trays of four
        ({"device": "DGX-GB200", "gpus_per_node": "4"}, 72),
        ({"device": "GB200", "nvlink_domain": "4"}, 4),
        ({"device": "DGX-H100", "gpus_per_node": "8", "nvlink_domain": "8"}, 8),
        ({"device": "H100", "gpus_per_node": "4"}, 4),
        ({"device": "TPU v5e", "gpus_per_node": "8"}, 256),  # chips of a host
        ({"device": "TPU v5p", "gpus_per_node": "64"}, 64),  # a slice
        ({"device": "V100-32GB SXM3 (DGX-2)", "gpus_per_node": "16"}, 16),
    ],
)
def test_fast_links_may_join_several_hosts(cells: dict[str, str], size: int) -> None:
    assert fast_and_slow(**cells)[0] == size


def test_what_leaves_a_host_is_shared_by_its_devices_only() -> None:
    stated = {"device": "GB200", "gpus_per_node": "4", "nvlink_domain": "72", "inter_bw_Gbps_per_node": "1600"}
    assert fast_and_slow(**stated) == (72, 400e9 / 8)


@pytest.mark.parametrize(
    ("device", "framework", "kernel", "forward", "backward"),
    [
        ("H100 SXM", "nanotron v0.5", "yes", 0.62, 0.62),
        ("H200", "Megatron-DeepSpeed", "", 0.62, 0.62),
        ("H100 SXM", "25.09 NeMo Container", "", 1.0, 1.0),
        ("H100 SXM", "Megatron-LM", "", 1.0, 1.0),
        ("H100 SXM", "MaxText (JAX)", "", 1.0, 1.0),
        ("H100 SXM", "", "", 1.0, 1.0),
        ("H100 SXM", "something", "triton", 0.62 * 0.55, 0.62 * 0.55),
        ("H100 SXM", "llm-foundry/Composer PyTorch FSDP", "yes", 0.62 * 0.55, 0.62 * 0.55),
        ("H100 SXM", "llm-foundry", "FlashAttention-3", 1.0, 1.0),
        ("A100-80GB", "llm-foundry", "triton", 0.55, 0.55),
        ("Gaudi 2", "llm-foundry", "triton", 1.0, 1.0),  # the default was fitted to such runs
        ("A100-80GB", "nanotron", "yes", 1.0, 1.0),
    ],
)
def test_attention_kernels_of_an_earlier_generation(
    device: str, framework: str, kernel: str, forward: float, backward: float
) -> None:
    found = machine_of(row(device=device, framework=framework, flash_attention=kernel))
    own = machine_of(row(device=device))
    taken, full = found.device.efficiency, own.device.efficiency
    assert taken.attention_fraction == pytest.approx(forward * full.attention_fraction)
    assert taken.attention_backward_fraction == pytest.approx(backward * full.attention_backward_fraction)
    assert found.cluster.device == found.device
    assert found.device.best("fp32") == own.device.best("fp32")
    file = device_called(device)[0] or ""
    assert machine_of(row(device_file=file, framework=framework, flash_attention=kernel)).device == found.device


def test_a_library_without_fast_algorithms_has_none_on_a_device_from_a_file() -> None:
    stated = {"library": "Caffe (native)"}
    by_file, by_name = (machine_of(row(**{column: "titan-x"}, **stated)).device for column in ("device_file", "device"))
    assert by_file == by_name
    assert by_file.efficiency.fft_fraction < machine_of(row(device="titan-x")).device.efficiency.fft_fraction / 1000


@pytest.mark.parametrize(
    ("device", "each", "core"),
    [
        ("trn1.32xlarge", "32", "trainium1-core"),
        ("trn2.48xlarge", "64", "trainium2-core"),
        ("trn1.32xlarge", "16", "trainium1"),
    ],
)
def test_more_devices_than_chips_of_a_machine_are_its_cores(device: str, each: str, core: str) -> None:
    found = machine_of(row(device=device, gpus_per_node=each))
    assert found.device.name == core
    assert found.cluster.levels[0].size == int(each)


@pytest.mark.parametrize(
    ("chip", "core", "count"), [("aws-trn1", "aws-trn1-cores", 2), ("aws-trn2", "aws-trn2-cores", 4)]
)
def test_cores_are_equal_parts_of_a_chip_and_of_its_links(chip: str, core: str, count: int) -> None:
    whole, part = (load_cluster(name).cluster for name in (chip, core))
    assert whole.device.memory_bytes == count * part.device.memory_bytes
    assert whole.device.memory_bandwidth_bytes_per_s == pytest.approx(count * part.device.memory_bandwidth_bytes_per_s)
    assert whole.device.peak("bf16") == pytest.approx(count * part.device.peak("bf16"))
    for level, of_core in zip(whole.levels, part.levels, strict=True):
        assert level.bandwidth_bytes_per_s == pytest.approx(count * of_core.bandwidth_bytes_per_s)
    assert part.levels[0].size == count * (whole.levels[0].size or 0)


# --- What rows say of devices, nodes and links --------------------------------------------------------------------------------------------


def test_the_links_of_a_domain_larger_than_a_node() -> None:
    """72 devices share NVLink though a tray has four; what a tray has of adapters is there 18 times."""
    cells = {"device": "GB200", "gpus_per_node": "4", "nvlink_domain": "72", "inter_bw_Gbps_per_node": "1600"}
    inner, outer = machine_of(Row(line=2, cells=cells)).cluster.levels
    assert inner.size == 72
    assert outer.bandwidth_bytes_per_s == pytest.approx(400e9 / 8)


def test_a_run_that_is_spread_over_its_nodes() -> None:
    """One device on each of four nodes has nothing but the network."""
    spread = {
        **RUN,
        "gpus": "4",
        "nodes": "4",
        "tp": "4",
        "pp": "1",
        "dp": "1",
        "global_batch": "8",
        "step_time_ms": "9000",
    }
    assert links_of(Row(line=2, cells=spread)).gpus_per_node == 1
    assert links_of(Row(line=2, cells={**spread, "nodes": "1"})).gpus_per_node == 8
    times = [seconds(PLANS.predict([Row(line=2, cells={**spread, "nodes": nodes})])[0]) for nodes in ("1", "4")]
    assert times[1] > 1.2 * times[0]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("v5p-128", "tpu-v5p"),
        ("v5e-256", "tpu-v5e"),
        ("v4-8", "tpu-v4"),
        ("v6e-64", "tpu-v6e"),
        ("v5litepod-16", "tpu-v5e"),
    ],
)
def test_slices_of_tpus(name: str, device: str) -> None:
    assert machine_of(Row(line=2, cells={"device": name})).device.name == device


def test_adapters_named_beside_a_device_are_those_of_its_usual_machine() -> None:
    """A DGX H100 has eight of 400 Gb/s; a name with a count, or of another speed, is that of the node."""

    def of(device: str) -> float:
        cells = {
            "collective": "all_to_all",
            "device": device,
            "ranks": "64",
            "nodes": "8",
            "bytes": "134217728",
            "time_us": "20000",
        }
        (found,) = COLLECTIVES.predict([Row(line=2, cells=cells)])
        return seconds(found)

    assert of("H100 + NDR InfiniBand") == of("H100, 8x NDR") == of("H100") < of("H100, 1x NDR") / 4
    assert of("A100, HDR InfiniBand") == of("A100") < of("A100, EDR InfiniBand")


@pytest.mark.parametrize("device", ["TPU v5p", "v4-512", "GB200"])
@pytest.mark.parametrize("cells", [{"gpus_per_node": "4"}, {"gpus_per_node": "4", "nodes": "64", "gpus": "256"}])
def test_hosts_do_not_part_links_that_join_them(device: str, cells: dict[str, str]) -> None:
    """A TPU host has four chips, and the torus joins all of a pod; a tray of a GB200 has four, and NVLink joins the rack."""
    plain = machine_of(Row(line=2, cells={"device": device})).cluster.levels
    stated = machine_of(Row(line=2, cells={"device": device, **cells})).cluster.levels
    assert stated[0] == plain[0]
    assert stated[0].size is not None
    assert stated[0].size >= 72


def test_a_sharded_run_on_tpus_is_predicted_to_take_seconds() -> None:
    """256 chips of v5p at 459 TFLOP/s: 1,024 samples of 4,096 positions through 70 billion weights need 15 s at the peak."""
    cells = {
        "model": "llama2-70b", "device": "v5p-512", "gpus_per_node": "4", "nodes": "64", "gpus": "256", "global_batch": "1024",
        "micro_batch": "4", "tp": "1", "pp": "1", "dp": "256", "seq": "4096", "precision": "bf16", "zero_stage": "3",
        "recompute": "full", "step_time_ms": "30000",
    }  # fmt: skip
    (outcome,) = PLANS.predict([Row(line=2, cells=cells)])
    assert 15.0 < seconds(outcome) < 40.0


@pytest.mark.parametrize(("device", "inside", "outside"), [("Gaudi2", 262.5e9, 37.5e9), ("Gaudi 3", 525e9, 75e9)])
def test_gaudis_are_joined_by_their_own_ethernet(device: str, inside: float, outside: float) -> None:
    """21 of 24 ports of 100 (200) Gb/s lead to the other seven, three to other nodes."""
    levels = machine_of(Row(line=2, cells={"device": device, "gpus_per_node": "8"})).cluster.levels
    assert [level.bandwidth_bytes_per_s for level in levels] == pytest.approx([inside, outside])


@pytest.mark.parametrize(
    ("device", "gbps"), [("p3.16xlarge", 25), ("V100-32GB (p3dn.24xlarge)", 100), ("DGX-1 (V100)", 400)]
)
def test_nodes_of_v100s_differ_by_their_networks(device: str, gbps: float) -> None:
    """Eight V100s on NVLink 2 in all of them."""
    inner, outer = machine_of(Row(line=2, cells={"device": device})).cluster.levels
    assert inner.size == 8
    assert outer.bandwidth_bytes_per_s * 8 == pytest.approx(gbps * 1e9 / 8)
