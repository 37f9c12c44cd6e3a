"""A network under construction: layers with plain parameters, shapes inferred as they come, then written as a network file.

Readers of other programs' graphs (Caffe, ONNX, torch) add one layer after the other. Then normalisations and activations become part
of the layer before them (`attach`), and a group of layers that repeats, and reads only the last layer of the group before it, becomes
one block used many times (`network_layers`): transformers become stacks of blocks, which is what pipelines are cut between.
"""

from __future__ import annotations

import dataclasses
import math
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from costmodel.network.layers import Layer, Shape, ShapeError, family_of, params_from
from planner.files.network_file import parameters_of

# What a network file takes for a name (planner.schema.common); slashes stand for the dots of modules.
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_/@+-]")
LONGEST_NAME = 64
# Beyond this, counts are no longer exact in a float.
_MAX_ELEMENTS = 2**53
_MAX_EXTENT = 10**9


class DraftError(ValueError):
    """A layer cannot be added; the message says why."""


def clean_name(name: str) -> str:
    """Make a name that a network file allows.

    >>> clean_name("layer1.0.conv1"), clean_name("::x y"), clean_name("")
    ('layer1/0/conv1', 'x_y', 'layer')
    """
    text = NOT_IN_NAMES.sub("_", name.strip(".:/ ").replace(".", "/"))
    return text.lstrip("/@+-_")[:LONGEST_NAME] or "layer"


class Drafts:
    """Layers in the order in which they are added.

    Examples
    --------
    >>> drafts = Drafts()
    >>> data = drafts.add("data", "input", {"shape": (3, 8, 8)})
    >>> drafts.shape(drafts.add("conv", "convolution", {"out_channels": 4, "kernel": 3}, [data]))
    (4, 6, 6)
    """

    def __init__(self) -> None:
        self.layers: dict[str, Layer] = {}
        self._numbers: dict[str, int] = {}

    def add(
        self, name: str, kind: str, values: Mapping[str, Any], inputs: Sequence[str] = (), *, frozen: bool = False
    ) -> str:
        """Add a layer.

        Parameters
        ----------
        name : str
            As the other program calls it.
        kind : str
        values : mapping
            Parameters; those that have their default may be given.
        inputs : sequence of str
            Names that this method returned.

        Returns
        -------
        str
            Its name here.

        Raises
        ------
        DraftError
            Shapes that do not fit, or sizes that are typing errors.
        """
        for key, value in values.items():
            _check_value(kind, key, value)
        params = params_from(kind, values)
        shapes = tuple(self.layers[parent].output_shape for parent in inputs)
        try:
            shape = family_of(kind).output_shape(params, shapes)
        except ShapeError as error:
            raise DraftError(str(error)) from None
        draft = Layer(
            name=self._unique(clean_name(name)),
            kind=kind,
            params=params,
            inputs=tuple(inputs),
            input_shapes=shapes,
            output_shape=shape,
            frozen=frozen,
        )
        if math.prod(shape) > _MAX_ELEMENTS or draft.weight_count > _MAX_ELEMENTS:
            raise DraftError("has more than 2**53 outputs per sample or weights")
        self.layers[draft.name] = draft
        return draft.name

    def change(self, name: str, **params: Any) -> None:
        """Change parameters of a layer that do not change its shape."""
        self.layers[name] = with_params(self.layers[name], **params)

    def shape(self, name: str) -> Shape:
        """Output of a layer, one sample."""
        return self.layers[name].output_shape

    def readers(self) -> dict[str, list[str]]:
        """Layer -> layers that read it."""
        result: dict[str, list[str]] = {name: [] for name in self.layers}
        for draft in self.layers.values():
            for parent in dict.fromkeys(draft.inputs):
                result[parent].append(draft.name)
        return result

    def _unique(self, name: str) -> str:
        if name not in self.layers:
            return name
        while True:
            number = self._numbers[name] = self._numbers.get(name, 1) + 1
            other = f"{name[: LONGEST_NAME - 1 - len(str(number))]}_{number}"
            if other not in self.layers:
                return other


def _check_value(kind: str, key: str, value: Any) -> None:
    field = next(field for field in dataclasses.fields(family_of(kind).Params) if field.name == key)
    least, most = field.metadata["minimum"], field.metadata["maximum"]
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        if least is not None and number < least:
            raise DraftError(f"'{key}' is {number}, it must be at least {least:g}")
        if number > (_MAX_EXTENT if most is None else most):
            raise DraftError(f"'{key}' is {number}, it must be at most {_MAX_EXTENT if most is None else most:g}")


def with_params(layer: Layer, **params: Any) -> Layer:
    """The layer with other parameters."""
    return dataclasses.replace(layer, params=dataclasses.replace(layer.params, **params))


# -- norms and activations of layers ----------------------------------------------------------------------------------------


_WITH_NORM = ("convolution", "deconvolution", "linear")


def attach(drafts: Drafts, kept: Collection[str] = ()) -> dict[str, Layer]:
    """Attach batch normalisations with scale and shift, and then activations, to convolutions and linear layers.

    Only where the layer has no other reader and its rank is that of an image or a vector: in a sequence, normalisations and
    activations are layers of their own, as in the bundled transformers.

    Parameters
    ----------
    drafts : Drafts
    kept : collection of str
        Outputs of the network, whose layers keep their own name and output.

    Returns
    -------
    dict
        The layers that are left, with their inputs renamed.
    """
    readers = drafts.readers()
    renamed: dict[str, str] = {}
    result: dict[str, Layer] = {}
    for draft in drafts.layers.values():
        inputs = tuple(renamed.get(parent, parent) for parent in draft.inputs)
        source = result.get(inputs[0]) if len(inputs) == 1 else None
        merged = None
        if source is not None and readers[draft.inputs[0]] == [draft.name] and draft.inputs[0] not in kept:
            merged = _merged(source, draft)
        if merged is None:
            result[draft.name] = dataclasses.replace(draft, inputs=inputs)
        else:
            result[merged.name] = merged
            renamed[draft.name] = merged.name
    return result


def _merged(source: Layer, draft: Layer) -> Layer | None:
    if source.kind not in _WITH_NORM or source.params.activation or len(source.output_shape) == 2:
        return None
    if draft.kind == "batch_norm" and draft.params.affine and not source.params.norm and draft.frozen == source.frozen:
        return with_params(source, norm="batch")
    return with_params(source, activation=draft.params.function) if draft.kind == "activation" else None


# -- repeated blocks --------------------------------------------------------------------------------------------------------


# Layers beyond which repetitions are not looked for: the search compares all pairs.
_MAX_LAYERS = 6_000


class Run(NamedTuple):
    """Layers ``start`` to ``start + length * repeat - 1`` are ``repeat`` equal groups."""

    start: int
    length: int
    repeat: int


def runs_of(layers: Sequence[Layer]) -> list[Run]:
    """Find the repeated groups, those that cover most first, and do not overlap.

    Parameters
    ----------
    layers : sequence of Layer
        In topological order.

    Returns
    -------
    list of Run
        In the order of the network; at least two repetitions of at least two layers each.
    """
    count = len(layers)
    if count > _MAX_LAYERS:
        return []
    position = {layer.name: i for i, layer in enumerate(layers)}
    kinds: dict[object, int] = {}
    codes = np.array([kinds.setdefault(_signature(i, layer, position), len(kinds)) for i, layer in enumerate(layers)])
    last_reader = np.arange(count)
    for i, layer in enumerate(layers):
        for parent in layer.inputs:
            last_reader[position[parent]] = max(last_reader[position[parent]], i)
    first_input = np.array([min((position[p] for p in layer.inputs), default=i) for i, layer in enumerate(layers)])
    found: list[Run] = []
    free = np.ones(count, dtype=bool)
    while (run := _best_run(codes, first_input, last_reader, free)) is not None:
        run = _best_start(run, layers, first_input, last_reader, codes, free)
        found.append(run)
        free[run.start : run.start + run.length * run.repeat] = False
    return sorted(found, key=lambda run: run.start)


def _signature(index: int, layer: Layer, position: Mapping[str, int]) -> object:
    offsets = tuple(index - position[parent] for parent in layer.inputs)
    return (layer.kind, repr(layer.params), layer.input_shapes, layer.output_shape, layer.frozen, offsets)


def _best_run(codes: Any, first_input: Any, last_reader: Any, free: Any) -> Run | None:
    count = len(codes)
    best: Run | None = None
    for length in range(2, count // 2 + 1):
        equal = (codes[:-length] == codes[length:]) & free[:-length] & free[length:]
        if int(equal.sum()) < length:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.astype(np.int8), [0]))))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            covered = end - begin + length  # layers begin .. begin + covered - 1 repeat with this period
            if covered < 2 * length or (best is not None and covered <= best.length * best.repeat):
                continue
            for start in range(begin, min(begin + length, begin + covered - 2 * length + 1)):
                repeat = _closed(start, length, (begin + covered - start) // length, first_input, last_reader)
                if repeat >= 2 and (best is None or repeat * length > best.length * best.repeat):
                    best = Run(start, length, repeat)
    return best


def _best_start(run: Run, layers: Sequence[Layer], first_input: Any, last_reader: Any, codes: Any, free: Any) -> Run:
    """The same run begun somewhat later, where its groups then agree better with the modules that the names tell."""
    best, depth = run, _depth(run, layers)
    for shift in range(1, run.length):
        start, end = run.start + shift, run.start + shift + run.length * run.repeat
        if end > len(layers) or not free[start:end].all():
            break
        if not np.array_equal(codes[start : end - run.length], codes[start + run.length : end]):
            break
        moved = Run(start, run.length, run.repeat)
        if _closed(start, run.length, run.repeat, first_input, last_reader) < run.repeat:
            continue
        if _depth(moved, layers) > depth:
            best, depth = moved, _depth(moved, layers)
    return best


def _depth(run: Run, layers: Sequence[Layer]) -> int:
    folder = _common_folder([layer.name for layer in layers[run.start : run.start + run.length]])
    return len(folder.split("/")) if folder else 0


def _closed(start: int, length: int, most: int, first_input: Any, last_reader: Any) -> int:
    """Repetitions from ``start`` on that read only the output of the one before, and hand on only their own."""
    if start == 0:
        return 0
    for number in range(most):
        begin = start + number * length
        end = begin + length
        inner = slice(begin, end - 1)
        if int(first_input[begin:end].min()) < begin - 1 or int(last_reader[inner].max(initial=0)) >= end:
            return number
    return most


def network_layers(layers: Sequence[Layer]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Blocks and entries of a network file.

    Parameters
    ----------
    layers : sequence of Layer
        In topological order.

    Returns
    -------
    blocks : dict
    entries : list of dict
    """
    runs = {run.start: run for run in runs_of(layers)}
    full_names: dict[str, str] = {}
    blocks: dict[str, Any] = {}
    entries: list[dict[str, Any]] = []
    taken = {layer.name for layer in layers}
    index, previous = 0, ""
    while index < len(layers):
        run = runs.get(index)
        if run is None:
            layer = layers[index]
            entries.append(_entry(layer, [full_names.get(parent, parent) for parent in layer.inputs], previous))
            previous = layer.name
            index += 1
            continue
        group = layers[index : index + run.length]
        folder = _common_folder([layer.name for layer in group if layer.weight_count] or [group[0].name])
        name = _block_name(folder, taken, len(blocks) + 1)
        taken.add(name)
        blocks[name] = {"layers": _body(group, folder, layers[index - 1].name)}
        use: dict[str, Any] = {"name": name, "block": name, "repeat": run.repeat}
        source = full_names.get(layers[index - 1].name, layers[index - 1].name)
        if source != previous:
            use["inputs"] = source
        entries.append(use)
        index += run.length * run.repeat
        full_names[layers[index - 1].name] = name
        previous = name
    return blocks, entries


def _block_name(folder: str, taken: set[str], number: int) -> str:
    """The folder that the names of the layers have in common, without the number of the repetition."""
    parts = [part for part in folder.split("/") if part and not part.isdigit()]
    base = clean_name("/".join(parts)) if parts else "block"
    name = base if base not in taken else f"{base[:50]}_{number}"
    while name in taken:
        number += 1
        name = f"{base[:50]}_{number}"
    return name


def _common_folder(names: Sequence[str]) -> str:
    return posixpath.commonpath([name.rpartition("/")[0] for name in names])


def _body(group: Sequence[Layer], folder: str, outside: str) -> list[dict[str, Any]]:
    prefix = f"{folder}/" if folder else ""
    names: dict[str, str] = {outside: "input"}
    used = {"input"}
    for layer in group:
        base = clean_name(layer.name.removeprefix(prefix))
        name, number = base, 1
        while name in used:
            number += 1
            name = f"{base[:58]}_{number}"
        used.add(name)
        names[layer.name] = name
    result, previous = [], "input"
    for layer in group:
        entry = _entry(dataclasses.replace(layer, name=names[layer.name]), [names[p] for p in layer.inputs], previous)
        result.append(entry)
        previous = names[layer.name]
    return result


def _entry(layer: Layer, inputs: Sequence[str], previous: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": layer.name, "type": layer.kind}
    if inputs and list(inputs) != [previous]:
        entry["inputs"] = inputs[0] if len(inputs) == 1 else list(inputs)
    return entry | parameters_of(layer)
