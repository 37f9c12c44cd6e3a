"""Caffe's network files (prototxt): layers with bottoms and tops, in-place layers, and rules for the phases TRAIN and TEST.

The meaning of the fields is that of Caffe's schema (BVLC/caffe, src/caffe/proto/caffe.proto) and of its layers (src/caffe/layers). The
network of the phase TRAIN is read, which is what is trained; a file for deployment has no rules and is read whole.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError, did_you_mean
from planner.files.text import read_text
from planner.importers.caffe.layers import IGNORED, READERS, Blob, Context, type_of
from planner.importers.caffe.text_format import Fault, Fields, Message, TextFormatError, parse
from planner.importers.drafts import DraftError, Drafts, clean_name
from planner.importers.sources import (
    ForeignNetwork,
    ImportedDocument,
    ImportOptions,
    check_assumed,
    counts_text,
    network_content,
    unknown_operators,
)

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
    return _Reading(path, message, options).run(sha256)


_MAX_LAYERS = 20_000
_PHASE = "TRAIN"


class _Reading:
    def __init__(self, path: Path, message: Message, options: ImportOptions) -> None:
        self.path = path
        self.message = message
        self.options = options
        self.problems: list[FileProblem] = []
        self.unknown: Counter[str] = Counter()
        self.context = Context(drafts=Drafts())

    def run(self, sha256: str) -> ForeignNetwork:
        net = Fields(self.message)
        self._attempt(net, self._inputs)
        layers = [*self.message.messages("layers"), *self.message.messages("layer")]
        if not layers:
            self._problem(self.message, "", "has no layers ('layer { ... }')")
        if len(layers) > _MAX_LAYERS:
            self._problem(self.message, "", f"has more than {_MAX_LAYERS:,} layers")
            layers = []
        for layer in layers:
            self._attempt(Fields(layer), self._layer)
        if self.unknown:
            hint = did_you_mean(next(iter(self.unknown)), READERS)
            self.problems.extend(unknown_operators(self.path, self.unknown, hint).problems)
        if self.problems:
            raise InputFileError(self.problems)
        check_assumed(self.path, self.context.assumed_free, self.options)
        drafts = self.context.drafts
        if not any(draft.kind != "input" for draft in drafts.layers.values()):
            raise InputFileError(
                [FileProblem(path=self.path, message=f"has no layers in the phase {_PHASE} beside its inputs")]
            )
        return ForeignNetwork(sha256=sha256, imported=self._document(net))

    def _document(self, net: Fields) -> ImportedDocument:
        context = self.context
        notes = list(context.notes)
        if context.ignored:
            notes.append(f"left out, not part of training a network: {counts_text(context.ignored)}")
        if context.assumed_free:
            notes.append(f"ASSUMED FREE by --assume-free: {counts_text(context.assumed_free)}")
        free = f"; assumed free: {', '.join(context.assumed_free)}" if context.assumed_free else ""
        header = {
            "name": clean_name(net.text("name", self.path.stem) or self.path.stem),
            "source": f"Caffe prototxt {self.path.name}, phase {_PHASE}{free}",
            "global_batch": context.global_batch or 1,
        }
        if not context.global_batch:
            notes.append("the file states no batch; global_batch is 1")
        return ImportedDocument(content=network_content(context.drafts, header=header), notes=tuple(notes))

    def _problem(self, message: Message, where: str, text: str) -> None:
        self.problems.append(
            FileProblem(path=self.path, line=message.line, column=message.column, where=where, message=text)
        )

    def _attempt(self, fields: Fields, read: Any) -> None:
        try:
            read(fields)
        except Fault as fault:
            if not fault.is_follow_up:
                where = fault.where or fields.label
                self.problems.append(
                    FileProblem(path=self.path, line=fault.line, column=fault.column, where=where, message=str(fault))
                )
        except DraftError as error:
            self._problem(fields.message, fields.label, str(error))

    # -- inputs -------------------------------------------------------------------------------------------------------------

    def _inputs(self, net: Fields) -> None:
        """``input``, with ``input_shape`` or four ``input_dim`` each."""
        names = net.texts("input")
        shapes = [tuple(Fields(m).integers("dim", least=1)) for m in self.message.messages("input_shape")]
        dims = net.integers("input_dim", least=1)
        if dims and not shapes:
            shapes = [tuple(dims[i : i + 4]) for i in range(0, len(dims), 4)]
        if len(shapes) != len(names):
            raise net.fault(
                f"{len(names)} inputs and {len(shapes)} shapes: every 'input' needs an 'input_shape' (or four 'input_dim')"
            )
        for name, shape in zip(names, shapes, strict=True):
            self.context.add_input(net, name, name, shape)

    # -- layers -------------------------------------------------------------------------------------------------------------

    def _layer(self, fields: Fields) -> None:
        kind = self._kind(fields)
        if not _included(fields):
            return
        tops, bottoms = fields.texts("top"), fields.texts("bottom")
        context = self.context
        if kind in IGNORED:
            context.ignored[kind] += 1
            context.blobs |= dict.fromkeys(tops, Blob(None))
        elif kind in READERS:
            try:
                results = READERS[kind](context, fields, [context.blob(fields, bottom) for bottom in bottoms])
            except (Fault, DraftError):
                context.blobs |= dict.fromkeys(tops, Blob(None, is_broken=True))
                raise
            context.blobs |= dict.fromkeys(tops[len(results) :], Blob(None))  # labels beside the data
            context.blobs |= zip(tops, results, strict=False)
        elif kind in self.options.assume_free and bottoms:
            layer = self._assumed_free(fields, kind, context.blob(fields, bottoms[0]))
            context.blobs |= dict.fromkeys(tops, Blob(layer))
        else:
            self.unknown[kind] += 1
            context.blobs |= dict.fromkeys(tops, Blob(None, is_broken=True))

    def _assumed_free(self, fields: Fields, kind: str, source: Blob) -> str | None:
        """A layer that hands its first bottom on, and that every output lists as free."""
        self.context.assumed_free[kind] += 1
        if source.layer is None:
            return None
        name, shape = f"assumed_free/{kind}/{fields.label}", self.context.drafts.shape(source.layer)
        return self.context.drafts.add(name, "assumed_free", {"shape": shape}, [source.layer])

    def _kind(self, fields: Fields) -> str:
        if fields.message.messages("layer"):
            raise fields.fault("is of the oldest format (layers { layer { ... } }); upgrade it: upgrade_net_proto_text")
        kind = type_of(fields)
        if not kind:
            raise fields.fault("has no 'type'")
        return kind


def _included(fields: Fields) -> bool:
    """Whether a layer belongs to the network that is trained (caffe.proto, NetStateRule; Net::StateMeetsRule)."""
    include = fields.message.messages("include")
    if include:
        return any(_meets(Fields(rule)) for rule in include)
    return not any(_meets(Fields(rule)) for rule in fields.message.messages("exclude"))


def _meets(rule: Fields) -> bool:
    """The state is: phase TRAIN, level 0, no stages."""
    return (
        rule.text("phase", _PHASE) == _PHASE
        and rule.integer("min_level", 0, least=-(10**9)) <= 0 <= rule.integer("max_level", 0, least=-(10**9))
        and not rule.texts("stage")
    )
