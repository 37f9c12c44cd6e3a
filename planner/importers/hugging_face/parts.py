"""Parts of a transformer as entries of a network file, and how they become blocks and a stack."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from planner.importers.hugging_face.fields import Fields

Entry = dict[str, Any]
# A key, what the config class has where it is absent, other names of the key.
Key = tuple[str, int, *tuple[str, ...]]
Norm = Callable[[str], Entry]

_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate", "quick_gelu")
# Names of transformers' ACT2FN -> ours. The forms of GELU differ in some FLOP of an element, which no cost model here tells apart.
ACTIVATIONS = {
    **dict.fromkeys(_GELU, "gelu"),
    **dict.fromkeys(("silu", "swish"), "swish"),
    **{name: name for name in ("relu", "leaky_relu", "sigmoid", "tanh")},
    "relu2": "relu",  # its square is one operation more in the same kernel
}
GATES = {
    **dict.fromkeys(_GELU, "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
    "sigmoid": "sigmoid",
}


_MAX_LISTED = 1024  # heads whose divisors a message lists


class Network(NamedTuple):
    """What an architecture makes of a config.

    Attributes
    ----------
    blocks, layers
        As in a network file.
    summary : str
        Ends the description.
    seq : int, optional
        Positions of a sample; None for images.
    seq_source : str
        The key that it comes from.
    """

    blocks: dict[str, Any]
    layers: list[Entry]
    summary: str
    seq: int | None = None
    seq_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Heads of self-attention."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Features of all queries, and of what attention returns."""
        return self.heads * self.head_dim

    @property
    def qkv(self) -> int:
        """Features of queries, keys and values together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


# -- reading -----------------------------------------------------------------------------------------------------------------


def read_heads(
    fields: Fields,
    hidden: int,
    *,
    heads: Key,
    kv_default: int | None = None,
    head_dim: int | None = None,
    reads_kv: bool = True,
    reads_head_dim: bool = True,
    rounds_head_dim: bool = False,
    hidden_key: str = "hidden_size",
) -> Heads:
    """Read the heads of self-attention, and whether they go with each other.

    Parameters
    ----------
    fields : Fields
    hidden : int
        Width of the network; with ``hidden_key``, the key it was read from.
    heads : tuple
        Key of the number of heads, the config class's default, other names of the key.
    kv_default : int, optional
        Key and value heads where the file has none; None: as many as heads.
    head_dim : int, optional
        Features per head where the file has none; None: ``hidden / heads``.
    reads_kv, reads_head_dim : bool
        Whether the architecture has these keys.
    rounds_head_dim : bool
        ``hidden / heads`` is rounded down; a problem otherwise.
    """
    heads_key, heads_default, *aliases = heads
    count = fields.count(heads_key, heads_default, *aliases)
    kv_heads = (fields.optional_count("num_key_value_heads", kv_default) if reads_kv else None) or count
    check_groups(fields, count, kv_heads, heads_key, "num_key_value_heads")
    size = fields.optional_count("head_dim", head_dim) if reads_head_dim else head_dim
    if size is None:
        if hidden % count and rounds_head_dim:
            fields.notes.append(f"'head_dim' is absent: {hidden // count}, {hidden} / {count} heads rounded down")
        elif hidden % count:
            absent = " and 'head_dim' is absent" if reads_head_dim else ""
            near = ", ".join(
                str(number) for number in (hidden // count * count, (hidden // count + 1) * count) if number
            )
            message = f"{hidden} cannot be divided by {count} heads ({heads_key}){absent}; the nearest that can: {near}"
            fields.contradiction(hidden_key, message, heads_key, "head_dim")
        size = max(hidden // count, 1)
    return Heads(heads=count, kv_heads=kv_heads, head_dim=size)


def check_groups(fields: Fields, heads: int, kv_heads: int, heads_key: str, key: str) -> None:
    """Note where heads of queries cannot share the heads of keys and values evenly."""
    if heads % kv_heads:
        divisors = [number for number in range(1, heads + 1) if heads % number == 0] if heads <= _MAX_LISTED else []
        allowed = ", ".join(map(str, divisors)) or f"divisors of {heads}"
        message = f"{heads} heads cannot share {kv_heads} key/value heads evenly; allowed: {allowed}"
        fields.contradiction(key, message, heads_key)


# -- layers ------------------------------------------------------------------------------------------------------------------


def entry(name: str, kind: str, inputs: str | Sequence[str] | None = None, **params: Any) -> Entry:
    """Make an entry of a network file; parameters that are None are left out.

    Examples
    --------
    >>> entry("add1", "add", ["proj", "input"])
    {'name': 'add1', 'type': 'add', 'inputs': ['proj', 'input']}
    """
    made: Entry = {"name": name, "type": kind}
    if inputs is not None:
        made["inputs"] = inputs if isinstance(inputs, str) else list(inputs)
    return made | {key: value for key, value in params.items() if value is not None}


def linear(
    name: str,
    features: int,
    *,
    bias: bool,
    inputs: str | None = None,
    activation: str | None = None,
    tied: bool = False,
) -> Entry:
    """Make a fully connected layer."""
    return entry(
        name,
        "linear",
        inputs,
        out_features=features,
        bias=None if bias else False,
        activation=activation,
        tied=True if tied else None,
    )


def rms_norm(name: str) -> Entry:
    """Make a normalisation by the root mean square."""
    return entry(name, "rms_norm")


def layer_norm(name: str, *, bias: bool = True, scale: bool = True) -> Entry:
    """Make a layer normalisation."""
    return entry(name, "layer_norm", bias=None if bias else False, scale=None if scale else False)


def dropout(name: str, rate: float) -> list[Entry]:
    """Make a layer of dropout, or none where the rate is 0."""
    return [entry(name, "dropout", keep=round(1.0 - rate, 12))] if rate else []


def embedding(vocabulary: int, dim: int) -> list[Entry]:
    """Make the input of token numbers and their table."""
    return [
        entry("tokens", "input", shape=[1, "$seq"]),
        entry("embedding", "embedding", num_embeddings=vocabulary, dim=dim),
    ]


def lm_head(vocabulary: int, *, tied: bool, bias: bool = False) -> list[Entry]:
    """Make the projection to the vocabulary and the loss."""
    return [linear("lm_head", vocabulary, bias=bias, tied=tied), entry("loss", "softmax")]


# -- parts of a block --------------------------------------------------------------------------------------------------------


def attention(
    heads: Heads,
    hidden: int,
    *,
    qkv_bias: bool,
    proj_bias: bool,
    head_norm: str | None = None,
    sinks: bool = False,
    score_dropout: float = 0.0,
    causal: bool = True,
    window: int = 0,
    buckets: int | str = 0,
    fused: bool = True,
) -> list[Entry]:
    """Self-attention with its projections, reading the entry before it.

    Parameters
    ----------
    heads : Heads
    hidden : int
        Features of the result.
    qkv_bias, proj_bias : bool
    head_norm : str, optional
        Normalisation of queries and keys, as in the layer.
    sinks : bool
        A learned score per head in the softmax.
    score_dropout : float
        Dropout of the attention weights.
    causal : bool
    window : int
        Positions that a query sees; 0: all.
    buckets : int or str
        Learned biases per head by distance (T5); a string is a parameter of the block.
    fused : bool
        A kernel that keeps the scores on the chip (FlashAttention).
    """
    core = entry(
        "attention",
        "self_attention",
        heads=heads.heads,
        kv_heads=heads.kv_heads if heads.kv_heads != heads.heads else None,
        head_dim=heads.head_dim,
        causal=None if causal else False,
        window=window or None,
        fused=None if fused else False,
        dropout=True if score_dropout else None,
        relative_buckets=buckets or None,
        qk_norm=head_norm,
        sinks=True if sinks else None,
    )
    return [linear("qkv", heads.qkv, bias=qkv_bias), core, linear("proj", hidden, bias=proj_bias)]


def feed_forward(hidden: int, width: int, function: str, *, bias: bool) -> list[Entry]:
    """Two fully connected layers, an activation between them."""
    between = entry(function, "activation", function=function if function != "relu" else None)
    return [linear("up", width, bias=bias), between, linear("down", hidden, bias=bias)]


def gated_feed_forward(hidden: int, width: int, function: str, *, bias: bool = False) -> list[Entry]:
    """Gate and values from one product, multiplied, and projected back (SwiGLU, GeGLU: Shazeer, arXiv:2002.05202)."""
    gate = entry("glu", "glu", function=function)
    return [linear("up", 2 * width, bias=bias), gate, linear("down", hidden, bias=bias)]


# -- blocks and stacks ------------------------------------------------------------------------------------------------------


class Use(NamedTuple):
    """One layer of a config: which block, and the window of its attention (0: all positions)."""

    block: str
    window: int = 0


def block(
    norm: Norm,
    parts: Sequence[Sequence[Entry]],
    *,
    rate: float = 0.0,
    norms: str = "before",
    residual_is_normed: bool = False,
) -> list[Entry]:
    """Parts one after the other, each normalised and added to what it read.

    Parameters
    ----------
    norm : callable
        Name -> normalisation.
    parts : sequence of lists of entries
        The first entry of each reads the entry before it.
    rate : float
        Dropout of every part's result.
    norms : str
        Normalise what every part reads ("before": pre-norm), what it returns ("after", OLMo 2), "both" (Gemma 2), or the sum of what it
        read and returns ("sum": post-norm; the first transformer, BERT).
    residual_is_normed : bool
        Add to the normalised input instead (an option of BLOOM).
    """
    layers: list[Entry] = []
    before = "input"
    for number, part in enumerate(parts, 1):
        if norms in ("before", "both"):
            layers.append(norm(f"norm{number}"))
        layers += [*part, *dropout(f"dropout{number}", rate)]
        if norms in ("after", "both"):
            layers.append(norm(f"norm{number}_after"))
        other = f"norm{number}" if residual_is_normed else before
        layers.append(entry(f"add{number}", "add", [layers[-1]["name"], other]))
        if norms == "sum":
            layers.append(norm(f"norm{number}"))
        before = layers[-1]["name"]
    return layers


def parallel_block(
    norm: Norm, attending: Sequence[Entry], feeding: Sequence[Entry], *, norms: int, rate: float = 0.0
) -> list[Entry]:
    """Attention and feed-forward part side by side, one sum of both and the input (GPT-J; PaLM, arXiv:2204.02311).

    Parameters
    ----------
    norm : callable
    attending, feeding : lists of entries
    norms : int
        1: both read the same normalised input; 2: each has a norm of its own.
    rate : float
        Dropout of both results.
    """
    layers: list[Entry] = [norm("norm1"), *attending, *dropout("dropout1", rate)]
    attended = layers[-1]["name"]
    if norms == 2:
        own = norm("norm2")
        layers += [{**own, "inputs": "input"}, *feeding]
    else:
        first = feeding[0]
        layers += [{"name": first["name"], "type": first["type"], "inputs": "norm1", **first}, *feeding[1:]]
    layers += dropout("dropout2", rate)
    return [*layers, entry("add", "add", [attended, layers[-1]["name"], "input"])]


def stack(
    uses: Iterable[Use], bodies: Mapping[str, Callable[[int], list[Entry]]]
) -> tuple[dict[str, Any], list[Entry]]:
    """Blocks and their uses: runs of equal layers are one entry each.

    Layers that alternate stay entries of their own (not a block of two): a pipeline is cut between repetitions of blocks.

    Parameters
    ----------
    uses : iterable of Use
        The layers of the config, in order.
    bodies : mapping
        Block -> function that makes its layers, given the window of attention.

    Returns
    -------
    blocks : dict
        For the network file; a block that is used with and without a window is two.
    layers : list of entries
        Named ``blocks``, or ``blocks_3`` for the run that starts with the fourth layer.
    """
    layers = list(uses)
    names: dict[Use, str] = {}
    for use in sorted(set(layers), key=lambda use: (use.block, use.window)):
        is_alone = len({other.window for other in layers if other.block == use.block}) == 1
        names[use] = use.block if is_alone or not use.window else f"{use.block}_window"
    blocks = {names[use]: {"layers": bodies[use.block](use.window)} for use in names}
    runs = [(use, len(list(run))) for use, run in itertools.groupby(layers)]
    entries: list[Entry] = []
    first = 0
    for use, repeat in runs:
        name = f"blocks_{first}" if len(runs) > 1 else "blocks"
        entries.append({"name": name, "block": names[use], "repeat": repeat})
        first += repeat
    return blocks, entries


def equal_blocks(name: str, layers: int, body: list[Entry]) -> tuple[dict[str, Any], list[Entry]]:
    """A stack of one block."""
    return stack([Use(name)] * layers, {name: lambda _: body})
