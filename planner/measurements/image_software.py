"""What runs the networks for images of a row: its framework, and what the row says otherwise of layout, weights and input."""

from __future__ import annotations

import re

from costmodel.precision import Precision
from costmodel.software.framework import NO_FRAMEWORK, UNKNOWN, Framework
from costmodel.software.layer_assumptions import AS_RUN, LayerAssumptions
from planner.measurements.tables import Row
from planner.naming.frameworks import framework_called, framework_of

__all__ = ["image_assumptions", "image_framework", "reads_input", "uses_servers"]

# Software without a file of its own whose images lie channel by channel in 16 bits, by its documentation; tf_cnn_benchmarks has NCHW
# (``data_format``). What a row says of the layout decides.
_CHANNELS_FIRST = re.compile(r"caffe2|chainer|\bcntk\b|theano|tf_cnn_benchmarks")
# Versions of PyTorch before channels last, which NVIDIA's examples tell it else.
_ALWAYS_FIRST = re.compile(r"py?torch\W*(0\.|1\.[0-4]\b)")
_STATED_FIRST = re.compile(r"channels.?first|\bnchw\b")
_STATED_LAST = re.compile(r"channels.?last|\bnhwc\b")
_XLA = re.compile(r"\bxla\b|\bjax\b")
_FUSED = tuple(name for name in LayerAssumptions.__dataclass_fields__ if name.startswith("fused_"))


def image_framework(row: Row) -> Framework:
    """The framework of a network-level row: the one it names, else that of its library, else that of which its source speaks.

    NVIDIA's examples run MXNet and PyTorch in ways of their own. A library called Torch is that of 2016.

    >>> image_framework(Row(line=2, cells={"framework": "MXNet 20.12", "source": "NVIDIA DeepLearningExamples"})).name
    'mxnet-nvidia'
    >>> image_framework(Row(line=2, cells={"library": "cuDNN (Torch)"})).name
    'torch7'
    """
    text, library, source = (row.text(column) for column in ("framework", "library", "source"))
    if not text and not library:
        return framework_of(source) if framework_called(source) else NO_FRAMEWORK
    name = framework_called(text or library)
    if not text and name == "pytorch":
        name = "torch7"
    if "nvidia" in f"{source} {text}".lower():
        own = {"mxnet": "mxnet-nvidia", "pytorch": "pytorch-channels-last"}
        name = name if name == "pytorch" and _ALWAYS_FIRST.search(text.lower()) else own.get(name or "", name)
    return UNKNOWN if name is None else framework_of(name)


def image_assumptions(row: Row, precision: Precision, *, is_one_row: bool) -> LayerAssumptions:
    """What the framework of a row does, and what the row says otherwise.

    Parameters
    ----------
    row : Row
    precision : Precision
    is_one_row : bool
        Images of one row: PyTorch's channels last is a layout of tensors with height and width.
    """
    framework = image_framework(row)
    known = framework.layer_assumptions(precision, assumptions=AS_RUN)
    return known.changed(_stated(row, framework, is_one_row=is_one_row))


def _stated(row: Row, framework: Framework, *, is_one_row: bool) -> dict[str, float]:
    """What a row says beside its framework."""
    software = " ".join(row.text(column) for column in ("source", "framework", "library")).lower()
    stated = " ".join((software, *(row.text(column) for column in ("data_format", "layout", "notes")))).lower()
    changes: dict[str, float] = {"parameter_servers": float(uses_servers(row))}
    if _STATED_FIRST.search(stated) and not _STATED_LAST.search(stated):
        changes |= {"channels_first": 1.0, **dict.fromkeys(_FUSED, 0.0)}
    elif _STATED_LAST.search(stated):
        changes |= {"channels_first": 0.0}
    elif _CHANNELS_FIRST.search(software) or (is_one_row and framework.name.startswith("pytorch")):
        changes |= {"channels_first": 1.0}
    if _XLA.search(software):
        changes |= {"fused_activation": 1.0}
    if reads_input(row):
        rate, stored = row.positive("storage_MBps"), row.positive("sample_kB")
        changes |= {"real_input": 1.0}
        changes |= {"storage_bytes_per_s": (rate or 0.0) * 1e6, "stored_sample_bytes": (stored or 0.0) * 1e3}
    return changes


def uses_servers(row: Row) -> bool:
    """Whether weights are exchanged through parameter servers: what the column ``variable_update`` says (tf_cnn_benchmarks).

    >>> [uses_servers(Row(line=2, cells={"variable_update": text})) for text in ("parameter_server/cpu", "replicated (no NCCL)/gpu", "")]
    [True, False, False]
    """
    return bool(re.search(r"parameter.?server|\bps\b|distributed.replicated", row.text("variable_update").lower()))


def reads_input(row: Row) -> bool:
    """Whether samples come from storage: the column ``data`` says "real"; without it they are made on the device.

    >>> reads_input(Row(line=2, cells={"data": "real"})), reads_input(Row(line=2, cells={"data": "synthetic"}))
    (True, False)
    """
    return row.text("data").lower().startswith(("real", "imagenet"))
