"""How the software of a row runs networks for images: which kernels do the work of others, and how images lie in memory."""

from __future__ import annotations

import re

from costmodel.kernels.roofline import EAGER, ImageSoftware
from planner.measurements.hardware import format_of
from planner.measurements.tables import Row

__all__ = ["software_of"]

# Software that has other kernels do the work of some, by text in the columns ``source``, ``framework`` and ``library``.
# Neon's convolutions apply the activation (NervanaSystems/neon, fprop_conv: relu), and its branches write into what they are joined to, and
# read their gradients there (MergeBroadcast: output_views, error_views); XLA makes one kernel of element-wise operations that
# follow each other (OpenXLA, XLA architecture: fusion).
_NEON = re.compile(r"nervana|\bneon\b")
_XLA = re.compile(r"\bxla\b|\bjax\b")


# Frameworks whose images lie channel by channel in 16 bits unless they are told otherwise, by their documentation: PyTorch (channels
# last is an option since 1.5), Torch, Caffe, Caffe2, Chainer, MXNet, CNTK, PaddlePaddle, Theano, and tf_cnn_benchmarks (``data_format``,
# NCHW). NVIDIA's examples tell PyTorch, MXNet and PaddlePaddle so. What a row says of the layout decides.
_CHANNELS_FIRST = re.compile(r"torch|\btimm\b|caffe|chainer|\bmxnet|\bgluon|\bcntk\b|paddle|theano|tf_cnn_benchmarks")
_ALWAYS_FIRST = re.compile(r"py?torch\W*(0\.|1\.[0-4]\b)|caffe|chainer|tf_cnn_benchmarks")
_STATED_FIRST = re.compile(r"channels.?first|\bnchw\b")
_STATED_LAST = re.compile(r"channels.?last|\bnhwc\b")


def software_of(row: Row) -> ImageSoftware:
    """How the software of a row runs networks for images.

    MXNet, as NVIDIA's examples run it in 16 bits, has its normalisations compute the activation that follows, both ways (NVIDIA
    DeepLearningExamples, MxNet/Classification/RN50v1.5: ``--fuse-bn-relu 1`` with channels last in fp16, 0 in fp32). Everything that is not
    named here runs every operator in a kernel of its own.

    >>> def fused(framework: str, precision: str) -> list[str]:
    ...     cells = {"source": "NVIDIA DeepLearningExamples", "framework": framework, "precision": precision}
    ...     return sorted(software_of(Row(line=2, cells=cells)).fuses)
    >>> fused("MXNet 20.12", "fp16"), fused("MXNet 20.12", "fp32"), fused("TF1+XLA", "amp")
    (['activation', 'normalised gradient'], [], ['activation'])
    >>> software_of(Row(line=2, cells={"framework": "PyTorch 1.12, channels first", "precision": "amp"})).channels_first
    True
    """
    software = " ".join(row.text(column) for column in ("source", "framework", "library")).lower()
    stated = " ".join((software, *(row.text(column) for column in ("data_format", "layout", "notes")))).lower()
    if _STATED_FIRST.search(stated) and not _STATED_LAST.search(stated):
        return ImageSoftware(channels_first=True)
    if _NEON.search(software):
        return ImageSoftware(fuses=frozenset({"activation", "bias", "concatenation", "gradient sum"}))
    if "nvidia" in software and "mxnet" in software and format_of(row, "fp32") in ("fp16", "bf16"):
        return ImageSoftware(fuses=frozenset({"activation", "normalised gradient"}))
    if _XLA.search(software):
        return ImageSoftware(fuses=frozenset({"activation"}))
    usual = _ALWAYS_FIRST if "nvidia" in software else _CHANNELS_FIRST
    is_first = usual.search(software) and not _STATED_LAST.search(stated)
    return ImageSoftware(channels_first=True) if is_first else EAGER
