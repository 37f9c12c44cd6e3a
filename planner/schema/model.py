"""Network files: layers one after the other, blocks of layers used many times, branches joined again.

::

    schema_version: 1
    name: tiny
    source: where the network was published
    global_batch: 128                    # usual batch of a training step, all workers together
    seq: 2048                            # networks on sequences: positions of a sample, "$seq" below; --seq overrides it

    blocks:
      residual:
        parameters: [channels]           # what a use must give
        defaults: {stride: 1}            # what it may give
        layers:
          - {name: conv1, type: convolution, out_channels: $channels, kernel: 3, stride: $stride, padding: same}
          - {name: conv2, type: convolution, out_channels: $channels, kernel: 3, padding: same}
          - {name: add, type: add, inputs: [conv2, input]}        # "input" is the block's input

    layers:
      - {name: data, type: input, shape: [3, 32, 32]}             # channels first, one sample
      - {name: stem, type: convolution, out_channels: 64, kernel: 3, padding: same, activation: relu}
      - {name: stage, block: residual, repeat: 4, with: {channels: 64}}
      - name: mix
        join: concat                                              # or add
        branches:
          - [{name: 1x1, type: convolution, out_channels: 32, kernel: 1}]
          - [{name: pool, type: pool, kernel: 3, padding: same}]
      - {name: fc, type: linear, out_features: 10}

*Inputs.* A layer reads the entry before it unless ``inputs`` names others (one name or a list). The name of a block's or branches'
entry stands for its output: the last layer of the block (of its last repetition), the layer that joins the branches.

*Names.* Full names are paths: ``stem``, ``stage.2.conv1`` (number of the repetition, where ``repeat`` is written), ``mix.1x1``,
``mix.concat``. Inside a block, names are those of the block; layers outside it are handed in through ``with``. Branches see the
names around them, and each other's.

A block may have ``branches`` (and ``join``) in place of ``layers``.

*Parameters* of a block stand alone for a value: ``kernel: $kernel`` or ``kernel: [1, $width]``. There are no expressions.
``$seq`` stands for the file's ``seq`` everywhere.
``first: {block: ..., with: {...}}`` changes the first repetition.

*Training in part.* Every entry may be ``frozen: true`` (no gradient, no optimizer state; on a block's use: all layers inside), and a
linear layer may have ``lora_rank: 16``: its weights are frozen and an adapter of that rank is trained beside them.

A layer type is added in ``costmodel/network/layers`` and appears here by itself: its parameters, their ranges and meanings are read from
the family's ``Params`` dataclass.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, create_model, model_validator

from costmodel.network.layers import FAMILIES, LayerFamily
from costmodel.precision import PRECISIONS, Precision
from planner.core.errors import did_you_mean
from planner.schema.common import (
    MAX_INTEGER,
    FileModel,
    LazyUnion,
    Name,
    NamedFile,
    Reference,
    Text,
    fail,
    field_type,
    known,
    named,
)

MAX_LAYERS = 100_000  # after repetition; the largest published networks have some thousands

# What people call these types elsewhere and difflib would not find.
_SYNONYMS = {
    **dict.fromkeys(("conv", "conv2d", "conv2", "spatialconvolution"), "convolution"),
    **dict.fromkeys(("conv_transpose", "convtranspose2d", "conv2dtranspose", "deconv"), "deconvolution"),
    **dict.fromkeys(("dense", "fc", "fully_connected", "inner_product", "innerproduct", "matmul", "gemm"), "linear"),
    **dict.fromkeys(("maxpool", "maxpool2d", "avgpool", "avgpool2d", "max_pool", "avg_pool", "average_pool"), "pool"),
    **dict.fromkeys(("gap", "adaptive_avg_pool", "global_average_pool", "globalaveragepool"), "global_pool"),
    **dict.fromkeys(("relu", "gelu", "sigmoid", "tanh", "elu", "leaky_relu", "swish"), "activation"),
    **dict.fromkeys(("bn", "batchnorm", "batchnorm2d"), "batch_norm"),
    **dict.fromkeys(("eltwise", "elementwise", "residual", "sum", "plus"), "add"),
    **dict.fromkeys(("lrn", "norm"), "local_response_norm"),
    **dict.fromkeys(("cat", "join"), "concat"),
    **dict.fromkeys(("data", "placeholder"), "input"),
    **dict.fromkeys(("rnn", "gru"), "lstm"),
    **dict.fromkeys(("reshape", "view"), "flatten"),
    **dict.fromkeys(("layernorm", "ln"), "layer_norm"),
    **dict.fromkeys(("rmsnorm", "t5_norm"), "rms_norm"),
    **dict.fromkeys(("mha", "gqa", "mqa", "multi_head_attention", "sdpa", "flash_attention"), "self_attention"),
    **dict.fromkeys(("mla", "multi_head_latent_attention"), "latent_attention"),
    **dict.fromkeys(("swiglu", "geglu", "reglu"), "glu"),
    **dict.fromkeys(("mixture", "mixture_of_experts", "experts"), "moe"),
    **dict.fromkeys(("positional_embedding", "wpe"), "position_embedding"),
    **dict.fromkeys(("slice", "split"), "slice_features"),
}

_GROUP_KEYS = ("block", "branches")

# Keys of every layer that say how it is trained; fields of `costmodel.network.graph.LayerSpec`.
TRAINING_KEYS = ("frozen", "lora_rank")

_TITLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@+-]{0,63}")


# A network's name: it is part of no path, so it may have a point (llama-3.1).
Title = Annotated[str, named(_TITLE, "_ . - / @ +"), Field(json_schema_extra={"pattern": f"^{_TITLE.pattern}$"})]
Frozen = Annotated[bool, Field(strict=True), Reference()]
Rank = Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER), Reference()]
Repeat = Annotated[int, Field(strict=True, ge=1, le=MAX_LAYERS), Reference()]
Join = Literal["concat", "add"]
Scalar = int | float | bool | str | None
Values = Annotated[
    dict[str, Scalar | tuple[Scalar, ...]],
    Field(max_length=100),
]

Counts = Annotated[
    dict[Literal["tokens", "frames", "audio_samples"], Annotated[int, Field(strict=True, ge=1, le=MAX_INTEGER)]],
    Field(max_length=3),
]


def _inputs(value: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    if not names:
        fail("names no layer; leave 'inputs' out to read the entry before")
    for name in names:
        if not isinstance(name, str):
            fail(f"expected the name of a layer, or a list of names{_quote_hint(name)}")
    return value


def _quote_hint(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"; quote the number: '{value}'" if is_number else ""


Inputs = Annotated[
    str | tuple[str, ...],
    BeforeValidator(_inputs),
    Field(description="layers that this one reads; the entry before it unless stated"),
]


class LayerEntry(FileModel):
    """What every layer has."""

    name: Name = Field(description="unique among its neighbours")
    inputs: Inputs | None = None
    frozen: Frozen = Field(default=False, description="weights without gradient and optimizer state")
    lora_rank: Rank = Field(
        default=0,
        description="linear layers: rank of a trained adapter beside the weights, which are frozen then; 0: none",
    )

    @model_validator(mode="after")
    def _adapter_fits(self) -> Self:
        kind = getattr(self, "type", "")
        if self.lora_rank and kind in FAMILIES and not FAMILIES[kind].takes_adapter:
            fail(f"a layer of type '{kind}' takes no adapter, linear layers do", at="lora_rank")
        return self


@cache
def layer_model(kind: str) -> type[LayerEntry]:
    """Pydantic model of one layer type, made from its family's ``Params``.

    Examples
    --------
    >>> layer_model("linear").model_validate({"name": "fc", "type": "linear", "out_features": 10}).out_features
    10
    """
    family: LayerFamily = FAMILIES[kind]
    hints = typing.get_type_hints(family.Params)
    fields: dict[str, Any] = {"type": (Literal[kind], Field(description=family.summary))}
    for item in dataclasses.fields(family.Params):
        assert item.name not in {"name", "type", "inputs", *TRAINING_KEYS, *_GROUP_KEYS}, (
            f"{kind}.{item.name} is a key of every layer"
        )
        annotation = field_type(hints[item.name], item.metadata["minimum"], item.metadata["maximum"])
        default = ... if item.default is dataclasses.MISSING else item.default
        fields[item.name] = (annotation, Field(default=default, description=item.metadata["doc"]))
    title = "".join(word.capitalize() for word in kind.split("_")) + "Layer"
    return create_model(title, __base__=LayerEntry, __doc__=family.summary, **fields)


def _entry_tag(value: Any) -> str | None:
    if isinstance(value, dict):
        for key in _GROUP_KEYS:
            if key in value:
                return f"<{key}>"
        return f"<{value.get('type')}>"
    if isinstance(value, LayerEntry):
        return f"<{value.type}>"  # type: ignore[attr-defined]
    return "<block>" if isinstance(value, BlockUse) else "<branches>"


def _known_entry(value: Any) -> Any:
    """Refuse what is no entry at all, naming the types there are."""
    if isinstance(value, (LayerEntry, BlockUse, Branches)):
        return value
    if not isinstance(value, dict):
        fail("expected a layer: {name: ..., type: ..., ...}")
    if any(key in value for key in _GROUP_KEYS):
        return value
    if "type" not in value:
        hint = next((h for key in value if (h := did_you_mean(key, ["type", *_GROUP_KEYS]))), "")
        hint = "; did you mean 'type' by 'kind'?" if "kind" in value else hint
        fail(f"missing key 'type' (or 'block', or 'branches'){hint}")
    kind = value["type"]
    if not isinstance(kind, str):
        fail("the type of a layer is a word", at="type")
    if kind not in FAMILIES:
        nearest = _SYNONYMS.get(kind.lower())
        hint = f"; did you mean '{nearest}'?" if nearest in FAMILIES else did_you_mean(kind, FAMILIES)
        fail(f"layer type '{kind[:60]}' is not known{hint} (known: {', '.join(sorted(FAMILIES))})", at="type")
    return value


def _members() -> dict[str, Callable[[], type[FileModel]]]:
    """Tag -> model of an entry, made when a file has one."""
    layers = {f"<{kind}>": partial(layer_model, kind) for kind in sorted(FAMILIES)}
    return {**layers, "<block>": lambda: BlockUse, "<branches>": lambda: Branches}


if TYPE_CHECKING:
    Entry: TypeAlias = "LayerEntry | BlockUse | Branches"
    Chains: TypeAlias = tuple[tuple[Entry, ...], ...]
else:
    Entry = Annotated[Any, LazyUnion(_members(), _entry_tag), BeforeValidator(_known_entry)]
    Chains = Annotated[tuple[tuple[Entry, ...], ...], Field(min_length=2, max_length=1000)]


class First(FileModel, defer_build=True):
    """What is different in the first repetition of a block."""

    block: Name | None = Field(default=None, description="another block")
    with_: Values = Field(default_factory=dict, alias="with", description="other values of parameters")


class BlockUse(FileModel, defer_build=True):
    """A block's layers, once or several times in a row."""

    name: Name = Field(description="prefix of the names of its layers")
    block: Name = Field(description="which block")
    repeat: Repeat | None = Field(default=None, description="how many times, each reading the one before")
    with_: Values = Field(default_factory=dict, alias="with", description="values of the block's parameters")
    first: First | None = Field(default=None, description="changes of the first repetition")
    inputs: Inputs | None = None
    frozen: Frozen = Field(default=False, description="all layers inside are frozen")


class Branches(FileModel, defer_build=True):
    """Parallel chains that read the same input and are joined."""

    name: Name = Field(description="prefix of the names of its layers, and the name of the joined output")
    branches: Chains = Field(description="chains of layers; an empty one passes the input on")
    join: Join = Field(default="concat", description="how the ends of the chains are joined")
    inputs: Inputs | None = None


class Block(FileModel):
    """Layers to be used under ``layers`` by ``block: name``."""

    description: Text = ""
    parameters: tuple[Name, ...] = Field(default=(), max_length=100, description="parameters that a use must give")
    defaults: Values = Field(default_factory=dict, description="parameters that a use may give, and their values")
    layers: tuple[Entry, ...] = Field(default=(), description="the layers; the last one is the output")
    branches: Chains | None = Field(default=None, description="instead of layers: parallel chains that are joined")
    join: Join = Field(default="concat", description="how the ends of the branches are joined")

    @model_validator(mode="after")
    def _one_body(self) -> Self:
        if bool(self.layers) == (self.branches is not None):
            fail("a block has either 'layers' or 'branches'")
        return self


class Checkpoint(FileModel):
    """Format of published weights."""

    format: Annotated[str, known(tuple(PRECISIONS), "no number format")] = Field(
        description="number format or recipe, as `planner list precisions` calls it"
    )
    covers: tuple[Literal["linear", "moe"], ...] = Field(
        default=("linear", "moe"), min_length=1, description="layers of the blocks whose weights are so"
    )
    source: Text = Field(min_length=1, description="where it comes from")

    def to_domain(self) -> Precision:
        """Make the cost model's precision."""
        return dataclasses.replace(PRECISIONS[self.format], covers=frozenset(self.covers))


class PredictionLayers(FileModel):
    """Layers for multi-token prediction that are published with the weights, and not among the layers of the file."""

    count: int = Field(strict=True, ge=1, le=100, description="how many there are, each a block like the last one")
    source: Text = Field(min_length=1, description="where it comes from")


class PublishedParameters(FileModel):
    """Number of trainable parameters that somebody published, to compare with the layers of the file.

    Biases, scales and shifts of normalisation count; weights that layers share count once.
    """

    count: int = Field(strict=True, ge=1, description="trainable parameters")
    difference: int = Field(
        default=0, strict=True, description="how many more the layers of this file have; the source says why"
    )
    rounded: bool = Field(default=False, strict=True, description="the count is rounded; half a percent is allowed")
    source: Text = Field(min_length=1, description="where it is published, or how it was worked out")


class PublishedPlan(FileModel):
    """How somebody trains the network, as published."""

    cluster: Text = Field(min_length=1, description="on what, as `planner list clusters` calls it")
    gpus: int = Field(strict=True, ge=1, le=MAX_INTEGER, description="and on how many devices")
    global_batch: int = Field(strict=True, ge=1, le=MAX_INTEGER, description="samples per step, all workers together")
    seq: int = Field(strict=True, ge=1, le=MAX_INTEGER, description="positions of a sample")
    settings: dict[str, bool | int | Text] = Field(
        min_length=1, description="what is published of the plan, by the names of a mesh plan: tp, pp, schedule, ..."
    )
    source: Text = Field(min_length=1, description="where it is published")

    @model_validator(mode="after")
    def _has_settings(self) -> Self:
        from planner.schema.settings import plan_settings  # most networks have none

        plan_settings(self.settings)
        return self


class NetworkFile(NamedFile):
    """A network."""

    name: Title
    source: Text = Field(default="", description="where the network and its numbers come from")
    global_batch: int = Field(
        strict=True, ge=1, le=MAX_INTEGER, description="usual samples per training step, all workers together"
    )
    seq: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=MAX_INTEGER,
        description="positions of a sample of a network on sequences; '$seq' stands for it anywhere below",
    )
    context: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=MAX_INTEGER,
        description="most tokens of a prompt and its answer that the weights were trained for",
    )
    counts: Counts = Field(
        default_factory=dict,
        description="what people count in a sample and how many it has: tokens (where not seq), frames, audio_samples; throughputs of "
        "measured runs are read by it",
    )
    published_parameters: PublishedParameters | None = Field(
        default=None, description="number of trainable parameters that is published"
    )
    checkpoint: Checkpoint | None = Field(
        default=None, description="format of the published weights, in which a server keeps them unless told otherwise"
    )
    prediction_layers: PredictionLayers | None = Field(
        default=None, description="layers that draft tokens for the network itself (multi-token prediction)"
    )
    published_plans: tuple[PublishedPlan, ...] = Field(
        default=(),
        description="how others train it; answers show what is nearest to the question beside their own plan",
    )
    blocks: dict[Name, Block] = Field(default_factory=dict, description="groups of layers, by name")
    layers: tuple[Entry, ...] = Field(min_length=1, description="the network")
