"""More networks in torch, as people write them: attention in every form of torch's own modules, recurrent layers, windows, ...

Imported only where torch is.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn

WIDTH, HEADS, LENGTH, CONTEXT, BATCH = 32, 4, 12, 20, 2


class Attention(nn.Module):
    """nn.MultiheadAttention behind a residual."""

    def __init__(
        self, *, batch_first: bool = True, need_weights: bool = False, mask: str = "", bias: bool = True
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, bias=bias)
        self.fc, self.need_weights, self.has_mask = nn.Linear(WIDTH, WIDTH), need_weights, bool(mask)
        hidden = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
        if mask:
            kind = torch.zeros(LENGTH, LENGTH).masked_fill(hidden, float("-inf")) if mask == "float" else hidden
            self.register_buffer("mask", kind, persistent=False)

    def forward(self, x, memory=None, padding=None):
        y = x if memory is None else memory
        mask = self.mask if self.has_mask else None
        mixed, _ = self.attention(x, y, y, attn_mask=mask, key_padding_mask=padding, need_weights=self.need_weights)
        return self.fc(x + mixed)


class Stack(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Attention(**options) for _ in range(2)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Encoder(nn.Module):
    def __init__(self, *, batch_first: bool, norm_first: bool = False, mask: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=batch_first, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.is_causal = mask
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, x):
        return self.encoder(x, mask=self.mask if self.is_causal else None, is_causal=self.is_causal)


class Decoder(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=batch_first)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, x, memory):
        return self.decoder(x, memory, tgt_mask=self.mask, tgt_is_causal=True)


class Recurrent(nn.Module):
    """A recurrent layer with a head on all positions, on the last one, or on the last states."""

    def __init__(self, kind, *, batch_first: bool = True, head: str = "all", **options) -> None:
        super().__init__()
        self.embed, self.cells = nn.Embedding(50, 16), kind(16, 24, batch_first=batch_first, **options)
        self.both = options.get("bidirectional", False)
        self.head, self.where, self.batch_first = nn.Linear(48 if self.both else 24, 5), head, batch_first

    def forward(self, ids):
        outputs, states = self.cells(self.embed(ids))
        states = states[0] if isinstance(states, tuple) else states
        if self.where == "last":
            outputs = outputs[:, -1] if self.batch_first else outputs[-1]
        elif self.where == "state":
            outputs = torch.cat((states[-2], states[-1]), 1) if self.both else states[-1]
        return self.head(outputs)


class Rotary(nn.Module):
    """Rotary positions as pairs of neighbours or as complex numbers, repeated heads of keys and values."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, size, bias=False) for size in (WIDTH, 16, 16, WIDTH))
        self.style, dim = style, WIDTH // HEADS
        angles = torch.arange(LENGTH)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)[None]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def turned(self, x):
        if self.style == "complex":
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * self.turns).flatten(-2)
        a, b = (x[..., 0::2], x[..., 1::2]) if self.style == "pairs" else x.chunk(2, -1)
        first, second = a * self.cos - b * self.sin, a * self.sin + b * self.cos
        return torch.stack((first, second), -1).flatten(-2) if self.style == "pairs" else torch.cat((first, second), -1)

    def forward(self, x):
        split = (part(x).view(BATCH, LENGTH, -1, WIDTH // HEADS).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k, v = split
        k, v = self.turned(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        y = F.scaled_dot_product_attention(self.turned(q), k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


class Einsum(nn.Module):
    """Attention and projections in indices."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, WIDTH, HEADS, WIDTH // HEADS))
        self.o = nn.Parameter(torch.randn(HEADS, WIDTH // HEADS, WIDTH))

    def forward(self, x):
        q, k, v = (torch.einsum("ble,ehd->blhd", x, w) for w in self.w.unbind(0))
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(math.sqrt(WIDTH // HEADS)).softmax(-1)
        return torch.einsum("blhd,hde->ble", torch.einsum("bhqk,bkhd->bqhd", weights, v), self.o)


class Windows(nn.Module):
    """Attention in shifted windows with learned biases by distance (Liu et al., arXiv:2103.14030)."""

    def __init__(self, side: int = 8, window: int = 4, shift: int = 2) -> None:
        super().__init__()
        self.side, self.window, self.shift = side, window, shift
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, HEADS))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        far = (at[:, :, None] - at[:, None]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", far[..., 0] * (2 * window - 1) + far[..., 1], persistent=False)

    def forward(self, x):
        batch, side, window, n = x.shape[0], self.side, self.window, self.window**2
        y = torch.roll(x.view(batch, side, side, WIDTH), (-self.shift, -self.shift), (1, 2))
        y = y.view(batch, side // window, window, side // window, window, WIDTH).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(-1, n, WIDTH)
        q, k, v = self.qkv(y).reshape(-1, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(n, n, HEADS).permute(2, 0, 1)
        scores = q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5 + bias.unsqueeze(0)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, n, WIDTH)
        y = y.view(batch, side // window, side // window, window, window, WIDTH).permute(0, 1, 3, 2, 4, 5)
        y = torch.roll(y.reshape(batch, side, side, WIDTH), (self.shift, self.shift), (1, 2))
        return x + self.proj(y.view(batch, side * side, WIDTH))


class Up(nn.Module):
    """Transposed convolutions, one with output padding, and a concatenation with what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, 2, 1)
        self.up = nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding=1)
        self.out = nn.ConvTranspose2d(11, 4, 2, 2, groups=1)

    def forward(self, x):
        return self.out(torch.cat((x, F.hardswish(self.up(F.relu(self.down(x))))), 1))


class Rows(nn.Module):
    """Convolutions and pooling of rows (text)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 2)
        self.convs = nn.ModuleList([nn.Conv1d(16, 8, kernel) for kernel in (3, 5)])

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        pooled = [
            F.max_pool1d(F.max_pool1d(y, 2), y.size(2) // 2).squeeze(2) for y in (F.relu(c(x)) for c in self.convs)
        ]
        return self.head(torch.cat(pooled, 1))


def rows(*sizes):
    return lambda: tuple(torch.zeros(size) for size in sizes)


def ids(*size):
    return lambda: (torch.zeros(size, dtype=torch.long),)


X, T = (BATCH, LENGTH, WIDTH), (LENGTH, BATCH, WIDTH)
MX, MT = (BATCH, CONTEXT, WIDTH), (CONTEXT, BATCH, WIDTH)

# Network -> (how it is made, its inputs).
ATTENTION = {
    "module": (Stack, rows(X)),
    "positions first": (lambda: Stack(batch_first=False), rows(T)),
    "weights": (lambda: Stack(need_weights=True), rows(X)),
    "weights, positions first": (lambda: Stack(need_weights=True, batch_first=False), rows(T)),
    "causal": (lambda: Stack(mask="float"), rows(X)),
    "causal, bool": (lambda: Stack(mask="bool"), rows(X)),
    "causal, bool, weights, positions first": (
        lambda: Stack(mask="bool", need_weights=True, batch_first=False),
        rows(T),
    ),
    "no bias": (lambda: Stack(bias=False), rows(X)),
    "cross": (Attention, rows(X, MX)),
    "cross, positions first": (lambda: Attention(batch_first=False), rows(T, MT)),
    "encoder": (lambda: Encoder(batch_first=True), rows(X)),
    "encoder, positions first": (lambda: Encoder(batch_first=False), rows(T)),
    "encoder, norm first, mask": (lambda: Encoder(batch_first=True, norm_first=True, mask=True), rows(X)),
    "decoder": (lambda: Decoder(batch_first=True), rows(X, MX)),
    "decoder, positions first": (lambda: Decoder(batch_first=False), rows(T, MT)),
}
RECURRENT = {
    f"{kind.__name__}, {name}": (lambda kind=kind, options=options: Recurrent(kind, **options), inputs)
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for name, options, inputs in (
        ("one", {}, ids(BATCH, LENGTH)),
        ("two, both ways", {"num_layers": 2, "bidirectional": True}, ids(BATCH, LENGTH)),
        ("positions first, last", {"batch_first": False, "head": "last"}, ids(LENGTH, BATCH)),
        ("no bias, state", {"bias": False, "num_layers": 3, "head": "state"}, ids(BATCH, LENGTH)),
        ("both ways, states", {"bidirectional": True, "head": "state"}, ids(BATCH, LENGTH)),
    )
}
OTHERS = {
    "rotary pairs": (lambda: Rotary("pairs"), rows(X)),
    "rotary halves": (lambda: Rotary("halves"), rows(X)),
    "einsum": (Einsum, rows(X)),
    "windows": (Windows, rows((BATCH, 64, WIDTH))),
    "up": (Up, rows((BATCH, 3, 16, 16))),
    "rows": (Rows, ids(BATCH, LENGTH)),
}
ZOO = {**ATTENTION, **RECURRENT, **OTHERS}
