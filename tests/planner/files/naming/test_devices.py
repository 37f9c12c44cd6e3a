"""What people call devices: nvidia-smi, clouds, papers and tables of measurements; and names of others that look alike."""

from __future__ import annotations

import pytest

from planner.core.errors import InputFileError, UnknownName
from planner.files.naming.devices import KNOWN_DEVICES, device_called, named_device
from planner.files.resources import bundled, resolve

# As rows of measurements have them, with the usual board where the name leaves it open.
ROWS = {
    "NVIDIA A100-SXM4-80GB": "a100-80gb", "A100-SXM4-40GB": "a100-40gb", "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "A100-PCIE-40GB": "a100-pcie-40gb", "A100": "a100-80gb", "a100_80g": "a100-80gb", "A100 40G": "a100-40gb", "8x A100": "a100-80gb",
    "8xA100-80GB": "a100-80gb", "A100x8": "a100-80gb", "DGX A100 (Selene)": "a100-80gb", "A100-SXM4-80GBx8": "a100-80gb",
    "Tesla A100": "a100-80gb", "NVIDIA A800-SXM4-80GB": "a100-80gb", "NVIDIA H100 80GB HBM3": "h100-sxm", "H100-80GB-HBM3": "h100-sxm",
    "H100 SXM5": "h100-sxm", "H100": "h100-sxm", "NVIDIA H100 PCIe": "h100-pcie", "H100-PCIE-80GB": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl", "HGX H100": "h100-sxm", "DGX-H100": "h100-sxm", "H800": "h100-sxm", "NVIDIA H200": "h200",
    "H200 SXM 141GB": "h200", "NVIDIA H20": "h20", "H20-96GB": "h20", "NVIDIA GH200 480GB": "gh200", "B200": "b200",
    "NVIDIA B200": "b200", "DGX B200": "b200", "GB200 NVL72": "gb200", "NVIDIA GB200": "gb200", "B300": "b300", "GB300": "gb300",
    "Tesla V100-SXM2-16GB": "v100-16gb", "Tesla V100-SXM2-32GB": "v100-32gb", "V100": "v100-16gb",
    "Tesla V100-PCIE-16GB": "v100-pcie-16gb", "Tesla V100-PCIE-32GB": "v100-pcie-32gb", "V100S-PCIE-32GB": "v100s", "DGX-1": "v100-16gb",
    "DGX-2 (V100 32GB)": "v100-32gb", "v100 (32GB)": "v100-32gb", "Tesla P100-SXM2-16GB": "p100",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb", "Tesla P100-PCIE-12GB": "p100-pcie-12gb", "P100": "p100", "NV_P100": "p100",
    "P100 (DGX-1)": "p100", "DGX-1 (8x Tesla P100)": "p100",
    "Tesla T4": "t4", "NVIDIA T4 16GB": "t4", "Tesla P4": "p4", "Tesla P40": "p40", "Tesla M40": "m40", "NV_M40": "m40",
    "Tesla M40 24GB": "m40", "Tesla K80": "k80", "K80 (one GK210)": "k80", "Tesla K40m": "k40", "K40c": "k40", "Tesla K20Xm": "k20x",
    "Tesla K20c": "k20", "K20": "k20", "GeForce GTX TITAN X": "titan-x", "GTX Titan X (Maxwell)": "titan-x", "NV_TitanX": "titan-x",
    "TITAN X (Pascal)": "titan-x-pascal", "NVIDIA TITAN X Pascal": "titan-x-pascal", "TITAN Xp": "titan-xp", "NVIDIA TITAN V": "titan-v",
    "TITAN RTX": "titan-rtx", "GTX TITAN Black": "titan-black", "GeForce GTX 1080 Ti": "gtx-1080ti", "1080ti": "gtx-1080ti",
    "GTX1080": "gtx-1080", "GeForce GTX 1080": "gtx-1080", "GTX 1070": "gtx-1070", "GTX 980": "gtx-980",
    "GeForce RTX 2080 Ti": "rtx-2080ti", "RTX2080Ti": "rtx-2080ti", "NVIDIA GeForce RTX 3090": "rtx-3090", "RTX3090": "rtx-3090",
    "GeForce RTX 3080": "rtx-3080", "RTX 3070": "rtx-3070", "NVIDIA GeForce RTX 4090": "rtx-4090", "4090": "rtx-4090",
    "RTX 5090": "rtx-5090", "NVIDIA A10": "a10", "A10-24GB": "a10", "NVIDIA A10G": "a10g", "A10g 24GB": "a10g", "NVIDIA A30": "a30",
    "NVIDIA A40": "a40", "A40-48GB": "a40", "NVIDIA RTX A6000": "rtx-a6000", "A6000": "rtx-a6000", "RTX A5000": "rtx-a5000",
    "RTX A4000": "rtx-a4000", "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada", "RTX6000 Ada": "rtx-6000-ada",
    "Quadro RTX 6000": "quadro-rtx-6000", "Quadro RTX 8000": "quadro-rtx-8000", "NVIDIA L4": "l4", "L4 24GB": "l4", "NVIDIA L40": "l40",
    "NVIDIA L40S": "l40s", "L40S-48GB": "l40s", "AMD Instinct MI300X": "mi300x", "MI300X OAM 192GB": "mi300x", "AMD MI325X": "mi325x",
    "MI355X": "mi355x", "MI250": "mi250-gcd", "AMD Instinct MI250X": "mi250x-gcd", "MI210": "mi210", "AMD Instinct MI100": "mi100",
    "Radeon Instinct MI50": "mi50", "MI25": "mi25", "MI60": "mi60", "Gaudi2": "gaudi2", "Intel Gaudi 3": "gaudi3", "HL-225": "gaudi2",
    "TPU v3": "tpu-v3", "TPUv4": "tpu-v4", "TPU v5e": "tpu-v5e", "tpu-v5-lite": "tpu-v5e", "TPU v5p": "tpu-v5p",
    "TPU v6e (Trillium)": "tpu-v6e", "AWS Trainium": "trainium1", "Trainium2": "trainium2", "p3.16xlarge": "v100-16gb",
    "Vega FE": "vega-fe", "Intel Xeon Phi 7250": "xeon-phi-7250", "KNL7250": "xeon-phi-7250", "p3dn.24xlarge": "v100-32gb",
    "p4d.24xlarge": "a100-40gb", "p4de.24xlarge": "a100-80gb", "p5.48xlarge": "h100-sxm", "p5e.48xlarge": "h200", "p5en.48xlarge": "h200",
    "p2.16xlarge": "k80", "g4dn.12xlarge": "t4", "g5.48xlarge": "a10g", "g6.12xlarge": "l4", "g6e.48xlarge": "l40s",
    "trn1 NeuronCores": "trainium1-core", "NeuronCore-v2": "trainium1-core", "Trainium2 NeuronCore": "trainium2-core",
    "trn1.32xlarge": "trainium1", "a2-highgpu-8g": "a100-40gb", "a2-ultragpu-8g": "a100-80gb", "a3-highgpu-8g": "h100-sxm",
    "P100 (NVIDIA DGX-1)": "p100", "NVIDIA DGX-1 (P100)": "p100", "DGX-1 with Tesla P100": "p100", "DGX-2H": "v100-32gb",
    "DGX-1 (V100)": "v100-16gb", "v5p-128": "tpu-v5p", "v5litepod-16": "tpu-v5e", "KNL": "xeon-phi-7250",
    "MI250 128GB": "mi250-gcd", "MI250X (64 GB per GCD)": "mi250x-gcd", "V100 DGX-2": "v100-32gb",
    "NV_TitanXPascal": "titan-x-pascal", "NVIDIA B100": "b100", "HGX B100": "b100",
    "AMD Instinct MI300A": "mi300a", "TPU7x": "tpu-v7",
    "TPU v7 (Ironwood)": "tpu-v7", "tpu7x-128": "tpu-v7", "Ironwood": "tpu-v7", "Intel Data Center GPU Max 1550": "max-1550",
    "Intel Max 1550": "max-1550", "Ponte Vecchio": "max-1550", "PVC": "max-1550", "NVIDIA RTX PRO 6000 Blackwell": "rtx-pro-6000",
    "RTX PRO 6000": "rtx-pro-6000", "NDv2": "v100-32gb", "NCv3": "v100-pcie-16gb", "Standard_NC24rs_v3": "v100-pcie-16gb",
    "a4x-highgpu-4g": "gb200", "Frontier": "mi250x-gcd", "LUMI-G": "mi250x-gcd", "Summit": "v100-16gb", "Perlmutter": "a100-40gb",
    "Perlmutter A100 80GB": "a100-80gb", "Polaris": "a100-40gb", "Eos": "h100-sxm", "Isambard-AI": "gh200", "El Capitan": "mi300a",
    "Aurora": "max-1550", "Summit (V100)": "v100-16gb",
    "GeForce GTX Titan": "gtx-titan", "GTX 680": "gtx-680", "GTX 980 Ti": "gtx-980ti", "Tesla M60": "m60", "g3.4xlarge": "m60",
    "GTX 1060 6GB": "gtx-1060", "GTX 1070 Ti": "gtx-1070ti", "P6000": "quadro-p6000", "Quadro P5000": "quadro-p5000",
    "Quadro GV100": "quadro-gv100", "RTX 2060": "rtx-2060", "RTX 2070": "rtx-2070", "GeForce RTX 2070 SUPER": "rtx-2070-super",
    "RTX 2080": "rtx-2080", "RTX 2080 Super": "rtx-2080-super", "Quadro RTX 5000": "quadro-rtx-5000", "RTX 3060": "rtx-3060",
    "RTX 3060 Ti": "rtx-3060ti", "RTX 3070 Ti": "rtx-3070ti", "RTX 3080 Ti": "rtx-3080ti", "RTX 3090 Ti": "rtx-3090ti",
    "RTX A4500": "rtx-a4500", "A5500": "rtx-a5500", "RTX 4060 Ti": "rtx-4060ti", "RTX 4070": "rtx-4070", "RTX 4070 Ti": "rtx-4070ti",
    "RTX 4080": "rtx-4080", "NVIDIA GeForce RTX 5080": "rtx-5080", "Radeon VII": "radeon-vii", "Radeon RX Vega 64": "rx-vega-64",
    "Vega 56": "rx-vega-56",
    "a3-ultragpu-8g": "h200", "ND96amsr_A100_v4": "a100-80gb", "ND96isr_H100_v5": "h100-sxm", "ND40rs_v2": "v100-32gb",
}  # fmt: skip

# Other devices, and what is none.
NONE = (
    "A1000", "RTX A1000", "A16", "A2", "A400", "A3000", "H1000", "L400", "L2", "T400", "T40 24GB", "T1000", "P1000",
    "Quadro P4000", "P600", "M600", "M4000", "K4000", "K1", "V1000", "GTX 1080 Max-Q", "RTX 3080 Laptop GPU", "RTX 3080 Ti Laptop GPU",
    "RTX 4070 Ti Super", "RTX 4090 Laptop GPU", "RTX 2080 Max-Q", "RTX 4080 Super", "GTX 980M", "GTX 960", "Radeon Pro VII",
    "RTX PRO 4500 Blackwell", "MI300C", "MI8",
    "Max 1100", "Xeon Max 9480", "TPU v1", "TPU", "Ascend 910B", "Xeon", "abacus", "", "GPU", "A", "100", "Jetson Orin",
)  # fmt: skip


@pytest.mark.parametrize(("text", "name"), ROWS.items())
def test_devices_of_rows(text: str, name: str) -> None:
    found, cluster = device_called(text)
    assert found == name
    assert cluster in bundled("clusters")


@pytest.mark.parametrize(
    ("text", "cluster"),
    [
        ("ND96isr_H100_v5", "dgx-h100"), ("ND96isr_H200_v5", "dgx-h100"), ("a3-ultragpu-8g", "dgx-h100"), ("ND96amsr_A100_v4", "dgx-a100"),
        ("ND96asr_v4", "dgx-a100"), ("p4de.24xlarge", "aws-p4d"), ("p5en.48xlarge", "aws-p5"), ("a3-megagpu-8g", "aws-p5"),
    ],
)  # fmt: skip
def test_network_of_an_instance(text: str, cluster: str) -> None:
    """As fast as that of a DGX where each GPU has an InfiniBand or RoCE port."""
    assert device_called(text)[1] == cluster


@pytest.mark.parametrize("text", NONE)
def test_other_devices_are_not_taken_for_these(text: str) -> None:
    assert device_called(text)[0] is None
    assert named_device(text) == (None, ())


def test_memory_that_another_column_states() -> None:
    assert device_called("A100", 40.0)[0] == "a100-40gb"
    assert device_called("V100", 32.0)[0] == "v100-32gb"
    assert device_called("MI250", 128.0)[0] == "mi250-oam"  # counted by modules
    assert device_called("MI250X", 64.0)[0] == "mi250x-gcd"
    assert device_called("A100 PCIe", 40.0)[0] == "a100-pcie-40gb"


@pytest.mark.parametrize("name", bundled("devices"))
def test_every_bundled_device_is_called_by_its_own_name(name: str) -> None:
    assert device_called(name)[0] == name
    assert named_device(name.upper().replace("-", " ")) == (name, ())


@pytest.mark.parametrize("name", [name for name in bundled("devices") if not name.startswith(("paleo-", "cpu-"))])
def test_every_bundled_device_has_other_names(name: str) -> None:
    assert any(name in (known.device, *(one for _, one in known.by_memory)) for known in KNOWN_DEVICES)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("A100 80GB", "a100-80gb"),
        ("H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("p4d.24xlarge", "a100-40gb"),
        ("MI300X", "mi300x"),
        ("RTX A6000", "rtx-a6000"),
        ("TPU v4", "tpu-v4"),
    ],
)
def test_a_question_may_use_them(text: str, name: str) -> None:
    assert resolve("devices", text) == bundled("devices")[name]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("A100", ("a100-40gb", "a100-80gb", "a100-pcie-40gb", "a100-pcie-80gb")),
        ("NVIDIA A100 SXM4", ("a100-40gb", "a100-80gb")),
        ("A100 PCIe", ("a100-pcie-40gb", "a100-pcie-80gb")),
        ("H100", ("h100-nvl", "h100-pcie", "h100-sxm")),
        ("Tesla V100", ("v100-16gb", "v100-32gb", "v100-pcie-16gb", "v100-pcie-32gb")),
    ],
)
def test_a_question_has_to_say_which_board(text: str, meant: tuple[str, ...]) -> None:
    listed = " or ".join(f"'{one}'" for one in meant)
    with pytest.raises(UnknownName, match=f"device '{text}' is not known; did you mean {listed}.") as error:
        resolve("devices", text)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "near"),
    [("RTX 3080 12GB", "rtx-3080"), ("Tesla M40 24GB", "m40"), ("GH200 144GB", "gh200"), ("T4 8GB", "t4")],
)
def test_a_board_with_another_memory_is_another_board(text: str, near: str) -> None:
    with pytest.raises(UnknownName, match=f"is not known; did you mean '{near}'"):
        resolve("devices", text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("K80 24GB", "k80"),
        ("MI250X 128GB", "mi250x-gcd"),
        ("B200 192GB", "b200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("T4 16GB", "t4"),
    ],
)
def test_memory_as_makers_state_it(text: str, name: str) -> None:
    assert resolve("devices", text) == bundled("devices")[name]


@pytest.mark.parametrize("text", ["my a100 box", "a100 with a fan", "h100-sxm-oc", "a100.yaml", "some/a100-80gb"])
def test_a_question_is_not_guessed(text: str) -> None:
    with pytest.raises((UnknownName, InputFileError), match=r"not known|no such device file"):
        resolve("devices", text)


@pytest.mark.parametrize(
    ("text", "name"), [("DGX-H100", "dgx-h100"), ("dgx_a100", "dgx-a100"), ("GB200 NVL72", "gb200-nvl72")]
)
def test_clusters_in_other_letters(text: str, name: str) -> None:
    assert resolve("clusters", text) == bundled("clusters")[name]
