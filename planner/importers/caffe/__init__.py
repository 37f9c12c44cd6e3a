"""Caffe's network files (prototxt): layers with bottoms and tops, in-place layers, and rules for the phases TRAIN and TEST.

The meaning of the fields is that of Caffe's schema (BVLC/caffe, src/caffe/proto/caffe.proto) and of its layers (src/caffe/layers). The
network of the phase TRAIN is read, which is what is trained; a file for deployment has no rules and is read whole.
"""

from __future__ import annotations

import re
from pathlib import Path

from planner.core.errors import FileProblem, InputFileError
from planner.files.text import read_text
from planner.importers.caffe.network import read_network
from planner.importers.caffe.text_format import TextFormatError, parse
from planner.importers.sources import ForeignNetwork, ImportOptions

__all__ = ["FORMAT", "detect", "load"]

FORMAT = "Caffe prototxt"


def detect(head: bytes) -> bool:
    r"""Whether a file begins like a network in protocol buffers' text format.

    Examples
    --------
    >>> detect(b'name: "net" # x\nlayer {'), detect(b'{"layers": 1}'), detect(b"name: net\nlayers:\n  - {}")
    (True, False, False)
    """
    text = head.decode("utf-8", "ignore").lstrip("\ufeff")
    text = re.sub(r"#[^\n]*", "", text)
    return (
        re.search(r"^\s*(layers?|input_shape)\s*:?\s*\{|\}\s*layers?\s*\{|\"\s*layers?\s*\{", text, re.MULTILINE)
        is not None
    )


def load(path: Path, options: ImportOptions) -> ForeignNetwork:
    """Read a prototxt.

    Parameters
    ----------
    path : Path
    options : ImportOptions

    Returns
    -------
    ForeignNetwork

    Raises
    ------
    InputFileError
        Every fault, with its line and column.
    """
    text, sha256 = read_text(path)
    try:
        message = parse(text)
    except TextFormatError as error:
        problem = FileProblem(path=path, line=error.line, column=error.column, message=f"is no {FORMAT} file: {error}")
        raise InputFileError([problem]) from None
    return read_network(path, sha256, message, options)
