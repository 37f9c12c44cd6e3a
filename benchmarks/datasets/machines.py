"""Where a published row was measured: a bundled device and cluster by the names that people use, links, and attention kernels."""

from __future__ import annotations

import re

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.words import framework_of
from planner.core.errors import did_you_mean
from planner.files.naming import frameworks
from planner.files.naming.devices import device_called, has_memory
from planner.files.resources import bundled
from planner.measurements.tables import short_name

__all__ = ["device_and_cluster", "machine", "put_attention", "transport_of"]

# Devices of a machine -> chips whose cores they must be, as its software counts them (AWS Neuron), the core, and the cluster of cores.
_CORES = {32: ("trainium1", "trainium1-core", "aws-trn1-cores"), 64: ("trainium2", "trainium2-core", "aws-trn2-cores")}
# Libraries that only multiply matrices: the native code of Caffe and Torch-7 (im2col), cuda-convnet, the OpenCL ones, cuDNN before its
# version 3, which brought FFTs, and what stood on it then (soumith/convnet-benchmarks, README).
_PLAIN_LIBRARIES = re.compile(r"caffe|torch-?7|chainer|theano|cuda-?convnet|cudnn\W*r2|cl-nn|deepcl|greentea|im2col")
# Machines on Omni-Path, and what NCCL reaches of their adapters' 100 Gb/s over what it reaches of InfiniBand's (0.96, cluster dgx-a100): an
# all-reduce of 4 GB over four nodes of eight A100 runs at a bus bandwidth of 40.5 Gb/s, through one adapter of each node (BigScience,
# experiments/bandwidth, all_reduce_bench-a100-n4.txt).
_OMNI_PATH = re.compile(r"omni.?path|jean.?zay|\bbigscience\b")
_OMNI_PATH_SHARE = 0.405 / 0.96


def machine(row: Row, cells: Cells) -> None:
    """Write device, cluster and links.

    Raises
    ------
    Unreadable
        No device of that name is bundled.
    """
    cells.texts(row, "device_file", "cluster_file")
    cells.counts(row, "gpus_per_node", "nodes", "nvlink_domain")
    cells.numbers(row, "device_mem_gb", "intra_bw_GBps", "inter_bw_Gbps_per_node")
    words = " ".join(row.text(name) for name in ("source", "device", "notes")).lower()
    if "inter_bw_Gbps_per_node" in cells and _OMNI_PATH.search(words):
        cells.put("inter_bw_Gbps_per_node", float(cells["inter_bw_Gbps_per_node"]) * _OMNI_PATH_SHARE)
        cells.put("transport", "direct")  # the share is of what adapters reach that read the memory of devices
    else:
        cells.put("transport", transport_of(words))
    if _PLAIN_LIBRARIES.search(row.text("library").lower()):
        cells.put("fast_convolutions", False)
    if row.has("device_file") or row.has("cluster_file"):
        cells.put("device", device_called(row.text("device"))[0])
        return
    device, cluster = device_and_cluster(row)
    cells.put("device", device)
    if cluster != device_called(device)[1]:
        cells.put("cluster", cluster)


# Words for how data get to a network, the first that match.
_TRANSPORTS = (
    (
        r"(?:no|without|w/o|lacks?)\W{1,2}(?:gpu ?direct|gdr)|(?:gpu ?direct|gdr)\W{1,2}(?:rdma )?(?:is )?(?:off|disabled|not)",
        "host",
    ),
    (r"gpu ?direct|\bgdr\b", "direct"),
    (r"\btcp\b|\bsockets?\b|\bipoib\b", "tcp"),
)


def transport_of(words: str) -> str | None:
    """How data get to the network by words in lower case; None where none of them says.

    >>> [transport_of(words) for words in ("100gbe tcp sockets", "edr, no gpudirect", "4x edr with gpudirect rdma", "25 gb/s roce")]
    ['tcp', 'host', 'direct', None]
    """
    return next((name for pattern, name in _TRANSPORTS if re.search(pattern, words)), None)


def device_and_cluster(row: Row) -> tuple[str, str]:
    """Bundled device and cluster.

    >>> device_and_cluster(Row(line=2, cells={"device": "A100-80GB p4de.24xlarge (EFA 4x100Gb)"}))
    ('a100-80gb', 'aws-p4d')

    Raises
    ------
    Unreadable
        None is stated, or none that is known.
    """
    text = row.text("device")
    if not text:
        raise Unreadable("no device is stated")
    name, cluster = device_called(text, row.positive("device_mem_gb"))
    if name is None or not has_memory(name, text):
        near = did_you_mean(short_name(text), bundled("devices"))
        raise Unreadable(f"device '{short_name(text)}' is not known{near} (planner list devices)")
    cores = _CORES.get(row.count("gpus_per_node") or 0)
    return cores[1:] if cores is not None and cores[0] == name else (name, cluster)


def put_attention(row: Row, cells: Cells) -> None:
    """Write the framework, and the generation of its attention kernels where that is not the one of the framework."""
    framework = framework_of(row)
    cells.put("framework", framework)
    attention = frameworks.framework_of(row.text("framework"), row.text("flash_attention")).attention
    if attention != frameworks.framework_of(framework).attention:
        cells.put("attention_kernels", attention)
