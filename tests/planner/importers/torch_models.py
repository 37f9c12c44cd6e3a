"""Networks written in torch, as people write them; imported only where torch is."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn

WIDTH, HEADS, VOCABULARY, LENGTH = 64, 4, 100, 16


class Block(nn.Module):
    """A GPT-2 block; `manual` writes attention out."""

    def __init__(self, *, manual: bool) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.manual = manual

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.ln1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in parts)
        if self.manual:
            scores = (q @ k.transpose(-2, -1)) / (width // HEADS) ** 0.5
            mask = torch.tril(torch.ones(length, length, device=x.device))
            y = F.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self, blocks: int = 3, *, manual: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(manual=manual) for _ in range(blocks)])
        self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class Encoder(nn.Module):
    """torch's own transformer encoder."""

    def __init__(self, blocks: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=dropout, batch_first=True)
        self.embed, self.encoder = nn.Embedding(VOCABULARY, WIDTH), nn.TransformerEncoder(layer, blocks)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


class LlamaBlock(nn.Module):
    """Rotary positions, grouped queries, a gated unit, root-mean-square norms."""

    def __init__(self, kv_heads: int = 2) -> None:
        super().__init__()
        dim = WIDTH // HEADS
        self.n1, self.n2, self.kv = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), kv_heads
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = (
            nn.Linear(WIDTH, kv_heads * dim, bias=False),
            nn.Linear(WIDTH, kv_heads * dim, bias=False),
        )
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        dim = width // HEADS

        def turned(t):
            first, second = t[..., : dim // 2], t[..., dim // 2 :]
            return t * cos + torch.cat((-second, first), -1) * sin

        def repeated(t):
            return (
                t[:, :, None].expand(batch, self.kv, HEADS // self.kv, length, dim).reshape(batch, HEADS, length, dim)
            )

        y = self.n1(x)
        q = self.q_proj(y).view(batch, length, HEADS, dim).transpose(1, 2)
        k = self.k_proj(y).view(batch, length, self.kv, dim).transpose(1, 2)
        v = self.v_proj(y).view(batch, length, self.kv, dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(turned(q), repeated(turned(k)), repeated(v), is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(batch, length, width))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList([LlamaBlock() for _ in range(blocks)])
        self.norm, self.lm_head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x, dim = self.embed(ids), WIDTH // HEADS
        positions = torch.arange(ids.shape[1], device=ids.device)[:, None]
        angles = positions * 10000.0 ** (-torch.arange(0, dim, 2, device=ids.device) / dim)[None]
        angles = torch.cat((angles, angles), -1)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.lm_head(self.norm(x))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels)
        self.relu, self.downsample = nn.ReLU(inplace=True), nn.Identity()
        if stride != 1 or inputs != 4 * channels:
            convolution = nn.Conv2d(inputs, 4 * channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(4 * channels))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """He et al. (arXiv:1512.03385), with the stride in the 3x3 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        stages, inputs = [], 64
        for count, channels in ((3, 64), (4, 128), (6, 256), (3, 512)):
            blocks = []
            for number in range(count):
                blocks.append(Bottleneck(inputs, channels, 2 if number == 0 and channels > 64 else 1))
                inputs = 4 * channels
            stages.append(nn.Sequential(*blocks))
        self.stages, self.avgpool, self.fc = nn.Sequential(*stages), nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(2048, 1000)

    def forward(self, x):
        x = self.stages(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Vit(nn.Module):
    """A vision transformer: patches, a class token, learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, WIDTH, 16, 16), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, 5, WIDTH))
        self.blocks = nn.ModuleList([Block(manual=False) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def ids():
    return torch.zeros((2, LENGTH), dtype=torch.long)


NETWORKS = {
    "gpt": (Gpt, ids),
    "gpt, written out": (lambda: Gpt(manual=True), ids),
    "encoder": (Encoder, ids),
    "llama": (Llama, ids),
    "vit": (Vit, lambda: torch.zeros(2, 3, 32, 32)),
    "resnet50": (ResNet50, lambda: torch.zeros(2, 3, 224, 224)),
}
