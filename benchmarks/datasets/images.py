"""Published training runs of networks for images (speech, translation, ...) as canonical rows."""

from __future__ import annotations

import re

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.machines import machine
from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.runs import TIMES, put_measured
from benchmarks.datasets.words import put_precision
from costmodel.framework import AS_RUN
from costmodel.precision import PRECISIONS
from planner.files.naming.frameworks import framework_called, framework_of
from planner.files.naming.models import image_network_called, nearest_models, transformer_called
from planner.files.resources import bundled
from planner.measurements.columns import FUSED
from planner.measurements.convnets import counts_of

__all__ = ["image_run", "network_name"]

# What a bundled network is called elsewhere: text in the columns ``source`` and ``framework`` -> name in their files -> bundled network.
# Networks of one name differ: the maps of "AlexNet" end at 6x6 in both, its conv4 has 256 and 384 filters (alexnet.lua, alexnet.prototxt
# and overfeat.lua of convnet-benchmarks; alexnet_model.py of tf_cnn_benchmarks); the bundled "alexnet" and "overfeat" are PALEO's.
# SSD300 is built on ResNet-34 there (ssd_model.py) and in MLPerf, on ResNet-50 in NVIDIA's examples. ResNeXt-101 without its groups is
# torchvision's 32x8d, but in MXNet 32x4d, as in its paper (example/image-classification/symbols/resnext.py: 32 groups, half the filters).
# Lambda Labs run Transformer-XL of NVIDIA's examples without --adaptive (github.com/lambdal/deeplearning-benchmark, pytorch/scripts).
_ELSEWHERE = (
    ("convnet-benchmarks", {"alexnet": "alexnet-torchvision", "overfeat": "overfeat-fast"}),
    ("tf_cnn_benchmarks", {"alexnet": "alexnet-tf-cnn-benchmarks", "ssd300-resnet50": "ssd300-resnet34"}),
    ("mlperf", {"ssd300-resnet50": "ssd300-resnet34"}),
    ("mxnet", {"resnext101-32x8d": "resnext101-32x4d"}),
    ("lambda", {f"transformer-xl-{size}": f"transformer-xl-{size}-full-softmax" for size in ("base", "large")}),
)
# Groups and filters of each, which a name may say.
_GROUPS = re.compile(r"32 ?x ?8 ?d", re.IGNORECASE)


def network_name(row: Row) -> str | None:
    """Bundled network that a row names in ``model`` or ``net``; None where it is not known.

    >>> def named(**cells: str) -> str | None:
    ...     return network_name(Row(line=2, cells=cells))
    >>> named(model="AlexNet"), named(model="AlexNet", source="soumith/convnet-benchmarks"), named(net="ResNet-50 v1.5")
    ('alexnet', 'alexnet-torchvision', 'resnet50')
    >>> named(model="ResNeXt-101"), named(model="ResNeXt-101", framework="MXNet"), named(model="ResNeXt-101 32x8d", framework="MXNet")
    ('resnext101-32x8d', 'resnext101-32x4d', 'resnext101-32x8d')
    """
    name = _plain_name(row)
    if _GROUPS.search(f"{row.text('model')} {row.text('net')}"):
        return name
    software = f"{row.text('source')} {row.text('framework')}".lower().replace(" ", "_")
    for text, meant in _ELSEWHERE:
        if text in software:
            return meant.get(name or "", name)
    return name


def _plain_name(row: Row) -> str | None:
    known = bundled("models")
    for column in ("model", "net"):
        text = row.text(column)
        if text in known and transformer_called(text) is None:
            return text
        name = image_network_called(text)
        if name is not None:
            return name
    return None


def image_run(row: Row) -> Cells:
    """The canonical row.

    Raises
    ------
    Unreadable
        What is wrong with it.
    """
    name = network_name(row)
    if name is None:
        raise Unreadable(f"no bundled network has this name{nearest_models(row.text('model'))}")
    cells = Cells()
    # Software is no choice of the plan: only runs of one are compared with each other.
    apart = [row.text(column) for column in ("dataset_group", "source", "framework", "library", "input")]
    cells.put("dataset_group", "|".join(text for text in apart if text))
    cells.put("model", name)
    cells.put("model_as_published", row.text("model") or row.text("net"))
    cells.texts(row, "library")
    cells.put("suspect", True if row.says("suspect") else None)
    usual = next(iter(counts_of(name)), "samples")
    put_measured(row, cells, f"{usual}_per_s")
    cells.numbers(row, "forward_ms", "backward_ms", "storage_MBps", "sample_kB")
    if not any(column in cells for column in (*TIMES, "forward_ms", "oom")):
        raise Unreadable("no measured time")
    put_precision(row, cells, "fp32")
    machine(row, cells)
    cells.counts(row, "gpus", "dp", "global_batch", "grad_accum")
    cells.put("batch_per_gpu", row.count("batch_per_gpu") or row.count("batch"))
    cells.put("data", "real" if row.text("data").lower().startswith(("real", "imagenet")) else None)
    cells.put("parameter_servers", True if _uses_servers(row) else None)
    _software(row, cells)
    return cells


def _uses_servers(row: Row) -> bool:
    """Whether weights are exchanged through parameter servers: what the column ``variable_update`` says (tf_cnn_benchmarks).

    >>> [_uses_servers(Row(line=2, cells={"variable_update": text})) for text in ("parameter_server/cpu", "replicated (no NCCL)/gpu", "")]
    [True, False, False]
    """
    return bool(re.search(r"parameter.?server|\bps\b|distributed.replicated", row.text("variable_update").lower()))


# -- software -----------------------------------------------------------------------------------------------------------------

# Software without a file of its own whose images lie channel by channel in 16 bits, by its documentation; tf_cnn_benchmarks has NCHW
# (``data_format``). What a row says of the layout decides.
_CHANNELS_FIRST = re.compile(r"caffe2|chainer|\bcntk\b|theano|tf_cnn_benchmarks")
# Versions of PyTorch before channels last, which NVIDIA's examples tell it else.
_ALWAYS_FIRST = re.compile(r"py?torch\W*(0\.|1\.[0-4]\b)")
_STATED_FIRST = re.compile(r"channels.?first|\bnchw\b")
_STATED_LAST = re.compile(r"channels.?last|\bnhwc\b")
_XLA = re.compile(r"\bxla\b|\bjax\b")


def image_framework(row: Row) -> str:
    """The framework of a network for images: the one it names, else that of its library, else that of which its source speaks.

    NVIDIA's examples run MXNet and PyTorch in ways of their own. A library called Torch is that of 2016.

    >>> image_framework(Row(line=2, cells={"framework": "MXNet 20.12", "source": "NVIDIA DeepLearningExamples"}))
    'mxnet-nvidia'
    >>> image_framework(Row(line=2, cells={"library": "cuDNN (Torch)"}))
    'torch7'
    """
    text, library, source = (row.text(column) for column in ("framework", "library", "source"))
    if not text and not library:
        return framework_called(source) or ""
    name = framework_called(text or library)
    if not text and name == "pytorch":
        name = "torch7"
    if "nvidia" in f"{source} {text}".lower():
        own = {"mxnet": "mxnet-nvidia", "pytorch": "pytorch-channels-last"}
        name = name if name == "pytorch" and _ALWAYS_FIRST.search(text.lower()) else own.get(name or "", name)
    return name or "other"


def _software(row: Row, cells: Cells) -> None:
    """Write the framework, and what the row says beside it of layout and kernels.

    >>> cells = Cells(precision="fp32")
    >>> _software(Row(line=2, cells={"framework": "PyTorch 1.12, channels first"}), cells)
    >>> cells
    {'precision': 'fp32', 'framework': 'pytorch', 'fuses': 'none', 'layout': 'channels_first'}
    """
    cells.put("framework", image_framework(row))
    software = " ".join(row.text(column) for column in ("source", "framework", "library")).lower()
    stated = " ".join((software, *(row.text(column) for column in ("data_format", "layout", "notes")))).lower()
    usual = framework_of(cells.get("framework", "")).layer_assumptions(
        PRECISIONS[cells["precision"]], assumptions=AS_RUN
    )
    fuses = {word for word, name in FUSED.items() if getattr(usual, name)}
    if _XLA.search(software):
        cells.put("fuses", "+".join(sorted(fuses | {"activation"})))
    if _STATED_FIRST.search(stated) and not _STATED_LAST.search(stated):
        cells.put("fuses", "activation" if _XLA.search(software) else "none")
        cells.put("layout", "channels_first")
    elif _STATED_LAST.search(stated):
        cells.put("layout", "channels_last")
    elif _CHANNELS_FIRST.search(software):
        cells.put("layout", "channels_first")
