"""Vision networks in torch, a few layers of each, with the operators of Swin, NFNet, LeViT, XCiT and CaiT.

Imported only where torch is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn

WIDTH, HEADS, SIDE = 32, 4, 8
INPUT = (2, 3, 16, 16)


def tokens(x):
    return x.flatten(2).transpose(1, 2)


def heads_of(x, parts):
    batch, length, _ = x.shape
    return x.reshape(batch, length, parts, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)


class Shifted(nn.Module):
    """Attention in shifted windows: the mask is written piece by piece, biases come out of a small network (arXiv:2111.09883)."""

    def __init__(self, window: int = 4, shift: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 2, 2)
        self.window, self.shift = window, shift
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(HEADS, 1, 1))
        self.bias = nn.Sequential(nn.Linear(2, 16), nn.ReLU(inplace=True), nn.Linear(16, HEADS, bias=False))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        self.register_buffer("table", (at[:, :, None] - at[:, None]).permute(1, 2, 0).float(), persistent=False)
        self.merge, self.norm = nn.Linear(4 * WIDTH, 2 * WIDTH, bias=False), nn.LayerNorm(4 * WIDTH)

    def mask(self, x):
        mask = x.new_zeros((SIDE, SIDE))
        pieces = [slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None)]
        for number, (rows, columns) in enumerate((r, c) for r in pieces for c in pieces):
            mask[rows, columns] = number
        n = SIDE // self.window
        mask = mask.view(n, self.window, n, self.window).permute(0, 2, 1, 3).reshape(n * n, self.window**2)
        far = mask.unsqueeze(1) - mask.unsqueeze(2)
        return far.masked_fill(far != 0, -100.0).masked_fill(far == 0, 0.0)

    def forward(self, x):
        x = self.patches(x).permute(0, 2, 3, 1)
        batch, n, length = x.shape[0], SIDE // self.window, self.window**2
        y = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        y = y.view(batch, n, self.window, n, self.window, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(-1, length, WIDTH)
        bias = self.qkv.bias.clone()
        bias[WIDTH : 2 * WIDTH].zero_()
        q, k, v = heads_of(F.linear(y, self.qkv.weight, bias), 3)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.scale.clamp(max=4.6).exp()
        scores = scores + 16 * torch.sigmoid(self.bias(self.table).permute(2, 0, 1)).unsqueeze(0)
        scores = scores.view(batch, n * n, HEADS, length, length) + self.mask(y).unsqueeze(1).unsqueeze(0)
        y = (scores.view(-1, HEADS, length, length).softmax(-1) @ v).transpose(1, 2).reshape(-1, length, WIDTH)
        y = self.proj(y).view(batch, n, n, self.window, self.window, WIDTH).permute(0, 1, 3, 2, 4, 5)
        x = x + torch.roll(y.reshape(batch, SIDE, SIDE, WIDTH), (self.shift, self.shift), (1, 2))
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.merge(self.norm(torch.cat(corners, -1)))


class Standardised(nn.Module):
    """Convolutions whose weights are standardised in every step, without normalisations of what they return (arXiv:2102.06171)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(3, WIDTH, 3, 2, 1), nn.Conv2d(WIDTH, WIDTH, 3, 1, 1, groups=4)])
        self.gains = nn.ParameterList([nn.Parameter(torch.ones(WIDTH, 1, 1, 1)) for _ in range(2)])
        self.scale, self.head = nn.Parameter(torch.zeros(())), nn.Linear(WIDTH, 10)

    def convolved(self, x, number):
        own, gain = self.convolutions[number], self.gains[number]
        scale = (gain * own.weight[0].numel() ** -0.5).view(-1)
        flat = own.weight.reshape(1, own.out_channels, -1)
        weight = F.batch_norm(flat, None, None, weight=scale, training=True, momentum=0.0).reshape_as(own.weight)
        return F.conv2d(x, weight, own.bias, own.stride, own.padding, own.dilation, own.groups)

    def forward(self, x):
        x = F.gelu(self.convolved(x, 0)).mul_(1.7)
        y = F.gelu(self.convolved(x, 1)) * 1.7
        return self.head((x + 0.2 * self.scale * y).mean((2, 3)))


class Rows(nn.Module):
    """Attention whose linear layers are followed by batch normalisations of rows, with biases by distance (arXiv:2104.01136)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, WIDTH, 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(3 * WIDTH), nn.BatchNorm1d(WIDTH)])
        self.biases = nn.Parameter(torch.zeros(HEADS, SIDE * SIDE))
        at = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")).flatten(1)
        far = (at[:, :, None] - at[:, None]).abs()
        self.register_buffer("index", far[0] * SIDE + far[1], persistent=False)

    def normed(self, x, number):
        x = self.layers[number](x)
        return self.norms[number](x.flatten(0, 1)).reshape_as(x)

    def forward(self, x):
        x = tokens(F.hardswish(self.norm(self.stem(x))))
        q, k, v = heads_of(self.normed(x, 0), 3)
        scores = q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5 + self.biases[:, self.index]
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        return x + self.normed(F.hardswish(y), 1)


class CrossCovariance(nn.Module):
    """Attention of features to features, and positions that a convolution makes of waves (arXiv:2106.09681)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(3, WIDTH, 2, 2), nn.Conv2d(8, WIDTH, 1)
        self.norm, self.qkv, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.temperature, self.gamma = nn.Parameter(torch.ones(HEADS, 1, 1)), nn.Parameter(torch.ones(WIDTH))
        self.local, self.local_norm = nn.Conv2d(WIDTH, WIDTH, 3, 1, 1, groups=WIDTH), nn.BatchNorm2d(WIDTH)

    def waves(self):
        device = self.gamma.device
        rows = torch.arange(1, SIDE + 1, device=device).float().unsqueeze(1).repeat(1, 1, SIDE)
        turned = rows[..., None] / 10000 ** (torch.arange(4, device=device) / 4)
        return torch.cat((turned.sin(), turned.cos()), -1).permute(0, 3, 1, 2)

    def forward(self, x):
        x = tokens(self.patches(x))
        x = x + tokens(self.positions(self.waves()).repeat(x.shape[0], 1, 1, 1))
        q, k, v = self.split(x)
        weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature).softmax(-1)
        y = (weights @ v).permute(0, 3, 1, 2).reshape(x.shape)
        x = x + self.gamma * self.proj(y)
        image = x.permute(0, 2, 1).reshape(x.shape[0], WIDTH, SIDE, SIDE)
        return x + tokens(self.local_norm(F.gelu(self.local(image))))

    def split(self, x):
        batch, length, _ = x.shape
        return self.qkv(self.norm(x)).reshape(batch, length, 3, HEADS, -1).permute(2, 0, 3, 4, 1).unbind(0)


class ClassAttention(nn.Module):
    """Attention whose heads are mixed before and after the softmax, then a class token that attends to all (arXiv:2103.17239)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(3, WIDTH, 2, 2), nn.Parameter(torch.zeros(1, SIDE * SIDE, WIDTH))
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.before, self.after = nn.Linear(HEADS, HEADS), nn.Linear(HEADS, HEADS)
        self.token, self.norm = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.LayerNorm(WIDTH)
        self.last_norm = nn.LayerNorm(WIDTH)
        self.parts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.gamma, self.head = nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = tokens(self.patches(x)) + self.positions
        q, k, v = heads_of(self.qkv(x), 3)
        scores = self.before((q * (WIDTH // HEADS) ** -0.5 @ k.transpose(-2, -1)).permute(0, 2, 3, 1))
        weights = self.after(scores.permute(0, 3, 1, 2).softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(x.shape))
        token = self.token.expand(x.shape[0], -1, -1)
        u = self.norm(torch.cat((token, x), 1))
        q, k, v, out = self.parts
        (q,), (k,), (v,) = heads_of(q(u[:, 0]).unsqueeze(1), 1), heads_of(k(u), 1), heads_of(v(u), 1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], 1, WIDTH)
        token = token + self.gamma * out(y)
        return self.head(self.last_norm(torch.cat((token, x), 1))[:, 0])


VISION = {
    "swin": Shifted,
    "nfnet": Standardised,
    "levit": Rows,
    "xcit": CrossCovariance,
    "cait": ClassAttention,
}
