"""Caffe's network files (prototxt): layers with bottoms and tops, in-place layers, and rules for the phases TRAIN and TEST.

The meaning of the fields is that of Caffe's schema (BVLC/caffe, src/caffe/proto/caffe.proto) and of its layers (src/caffe/layers). The
network of the phase TRAIN is read, which is what is trained; a file for deployment has no rules and is read whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from planner.core.errors import FileProblem, InputFileError, did_you_mean
from planner.files.text import failure, read_text
from planner.importers.caffe.layers import BROKEN, IGNORED, READERS, Layer, Network
from planner.importers.caffe.text_format import Fault, Fields, Value, parse
from planner.importers.drafts import DraftError, clean_name
from planner.importers.sources import (
    ImportedDocument,
    check_assumed,
    counts_text,
    network_content,
    unknown_operators,
)

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


def load(path: Path, assume_free: frozenset[str]) -> ImportedDocument:
    """Read a prototxt.

    Raises
    ------
    InputFileError
        Every fault, with its line and column.
    """
    text, sha256 = read_text(path)
    try:
        message = parse(text)
    except Fault as fault:
        raise failure(path, f"is no {FORMAT} file: {fault}", fault.line, fault.column) from None
    return _Reading(path, message, assume_free).run(sha256)


_MAX_LAYERS = 20_000
_PHASE = "TRAIN"


class _Reading:
    def __init__(self, path: Path, message: Value, assume_free: frozenset[str]) -> None:
        self.path = path
        self.file = Fields(message)
        self.assume_free = assume_free
        self.problems: list[FileProblem] = []
        self.unknown: Counter[str] = Counter()
        self.net = Network()

    def run(self, sha256: str) -> ImportedDocument:
        file, net = self.file, self.net
        self._attempt(file, self._inputs)
        layers = [*file.messages("layers"), *file.messages("layer")]
        if not layers:
            self._note(file.fault("has no layers ('layer { ... }')"))
        if len(layers) > _MAX_LAYERS:
            self._note(file.fault(f"has more than {_MAX_LAYERS:,} layers"))
            layers = []
        for layer in layers:
            self._attempt(layer, self._layer)
        if self.unknown:
            hint = did_you_mean(next(iter(self.unknown)), READERS)
            self.problems.extend(unknown_operators(self.path, self.unknown, hint).problems)
        if self.problems:
            raise InputFileError(self.problems)
        check_assumed(self.path, net.assumed_free, self.assume_free)
        if all(draft.kind == "input" for draft in net.drafts.layers.values()):
            raise failure(self.path, f"has no layers in the phase {_PHASE} beside its inputs")
        free = f"; assumed free: {', '.join(net.assumed_free)}" if net.assumed_free else ""
        remarks = {
            f"left out, not part of training a network: {counts_text(net.ignored)}": bool(net.ignored),
            f"ASSUMED FREE by --assume-free: {counts_text(net.assumed_free)}": bool(free),
            "the file states no batch; global_batch is 1": not net.global_batch,
        }
        notes = (*net.notes, *(remark for remark, holds in remarks.items() if holds))
        header = {
            "name": clean_name(file.text("name", self.path.stem) or self.path.stem),
            "source": f"{FORMAT} {self.path.name}, phase {_PHASE}{free}",
            "global_batch": net.global_batch or 1,
        }
        return ImportedDocument(content=network_content(net.drafts, header=header), notes=notes, sha256=sha256)

    def _note(self, fault: Fault, where: str = "") -> None:
        self.problems.append(
            FileProblem(
                path=self.path,
                line=fault.line,
                column=fault.column,
                where=fault.where or where,
                message=str(fault),
            )
        )

    def _attempt(self, fields: Fields, read: Callable[[Fields], None]) -> None:
        try:
            read(fields)
        except Fault as fault:
            if not fault.is_follow_up:
                self._note(fault, fields.label)
        except DraftError as error:
            self._note(fields.fault(str(error)))

    def _inputs(self, net: Fields) -> None:
        """``input``, with ``input_shape`` or four ``input_dim`` each."""
        names = net.texts("input")
        shapes = [tuple(shape.integers("dim", least=1)) for shape in net.messages("input_shape")]
        dims = net.integers("input_dim", least=1)
        if dims and not shapes:
            shapes = [tuple(dims[i : i + 4]) for i in range(0, len(dims), 4)]
        if len(shapes) != len(names):
            raise net.fault(
                f"{len(names)} inputs and {len(shapes)} shapes: every 'input' needs an 'input_shape' (or four 'input_dim')"
            )
        for name, shape in zip(names, shapes, strict=True):
            self.net.add_input(net, name, name, shape)

    def _layer(self, fields: Fields) -> None:
        kind = _type_of(fields)
        if not _is_included(fields):
            return
        tops, bottoms, net = fields.texts("top"), fields.texts("bottom"), self.net
        if kind in IGNORED:
            net.ignored[kind] += 1
            net.blobs |= dict.fromkeys(tops)
            return
        if kind not in READERS and not (kind in self.assume_free and bottoms):
            self.unknown[kind] += 1
            net.blobs |= dict.fromkeys(tops, BROKEN)
            return
        try:
            layer = Layer(net, fields, kind, tops, [net.blob(fields, bottom) for bottom in bottoms])
            made = READERS[kind](layer) if kind in READERS else self._assumed_free(layer)
            if isinstance(made, tuple):
                our_kind, values, sources = made
                frozen = our_kind in _WITH_WEIGHTS and layer.is_frozen
                made = [net.drafts.add(fields.label or our_kind, our_kind, values, sources, frozen=frozen)]
        except (Fault, DraftError):
            net.blobs |= dict.fromkeys(tops, BROKEN)
            raise
        net.blobs |= dict.fromkeys(tops[len(made) :])  # labels beside the data
        net.blobs |= zip(tops, made, strict=False)

    def _assumed_free(self, layer: Layer) -> list[str | None]:
        """A layer that hands its first bottom on to all of its tops, and that every output lists as free."""
        self.net.assumed_free[layer.kind] += 1
        if layer.inputs[0] is None:
            return [None]
        name, values = f"assumed_free/{layer.kind}/{layer.fields.label}", {"shape": layer.shape()}
        return [self.net.drafts.add(name, "assumed_free", values, [layer.source()])] * len(layer.tops)


# A BatchNorm has no learned part here; files set the rates of its statistics to 0.
_WITH_WEIGHTS = ("convolution", "deconvolution", "linear", "embedding", "pointwise")


def _type_of(fields: Fields) -> str:
    """Type of a layer; files from before 2014 write SOFTMAX_LOSS for SoftmaxWithLoss, INNER_PRODUCT for InnerProduct, and so on."""
    if fields.messages("layer"):
        raise fields.fault("is of the oldest format (layers { layer { ... } }); upgrade it: upgrade_net_proto_text")
    kind = fields.text("type", "")
    if not kind:
        raise fields.fault("has no 'type'")
    if not kind.isupper():
        return kind
    known = {name.lower(): name for name in (*READERS, *IGNORED)} | {"softmaxloss": "SoftmaxWithLoss"}
    return known.get(kind.replace("_", "").lower(), kind)


def _is_included(fields: Fields) -> bool:
    """Whether a layer belongs to the network that is trained (caffe.proto, NetStateRule; Net::StateMeetsRule)."""
    include = fields.messages("include")
    return any(map(_meets, include)) if include else not any(_meets(rule) for rule in fields.messages("exclude"))


def _meets(rule: Fields) -> bool:
    """The state is: phase TRAIN, level 0, no stages."""
    return (
        rule.text("phase", _PHASE) == _PHASE
        and rule.integer("min_level", 0, least=-(10**9)) <= 0 <= rule.integer("max_level", 0, least=-(10**9))
        and not rule.texts("stage")
    )
