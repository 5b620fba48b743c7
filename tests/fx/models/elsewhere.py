"""Small hand-written models for vision, sets and graphs, and models that only look like attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 16, 2


class Windows(nn.Module):
    """Windows with a relative bias from a table. Some have a mask, for which the scores are reshaped and shaped
    back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, HEADS))
        self.register_buffer("index", torch.arange(4)[:, None] - torch.arange(4)[None] + 3)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        attn = q * (C // HEADS) ** -0.5 @ k.transpose(-2, -1)
        attn = attn + self.table[self.index.view(-1)].view(N, N, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        windows = mask.shape[0]
        attn = attn.view(B // windows, windows, HEADS, N, N) + mask.unsqueeze(1).unsqueeze(0)
        attn = self.softmax(attn.view(-1, HEADS, N, N))
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))  # type: ignore[no-any-return]


class Pixels(nn.Module):
    """Self-attention over pixels as in image generators, with a hand-written activation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)
        self.q, self.k, self.v = (nn.Conv2d(8, 8, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        h = h * torch.sigmoid(h)
        b, c, height, width = x.shape
        q = self.q(h).reshape(b, c, height * width).permute(0, 2, 1)
        k, v = self.k(h).reshape(b, c, height * width), self.v(h).reshape(b, c, height * width)
        w = F.softmax(torch.bmm(q, k) * int(c) ** (-0.5), dim=2)
        return x + torch.bmm(v, w.permute(0, 2, 1)).reshape(b, c, height, width)  # type: ignore[no-any-return]


class Latents(nn.Module):
    """A set is read into latents by heads that are split along the batch. Both norms are optional."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 3, WIDTH))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.ln0 = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(self.latents.repeat(x.size(0), 1, 1)), self.k(x), self.v(x)
        q, k, v = (torch.cat(t.split(WIDTH // HEADS, 2), 0) for t in (q, k, v))
        a = torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(WIDTH), 2)
        o = torch.cat((q + a.bmm(v)).split(x.size(0), 0), 2)
        o = o if getattr(self, "ln0", None) is None else self.ln0(o)
        return o + F.relu(self.o(o))  # type: ignore[no-any-return]


class Graph(nn.Module):
    """Arguments and results are dicts. The bias is an embedding of distances, the mask an adjacency matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.edge, self.norm = nn.Embedding(4, HEADS), nn.LayerNorm(WIDTH)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x = batch["x"]
        q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).permute(0, 2, 1, 3) for f in (self.q, self.k, self.v))
        s = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(q.shape[-1])
        s = s + self.edge(batch["distance"]).permute(0, 3, 1, 2)
        a = torch.softmax(s.masked_fill(~batch["adjacent"].unsqueeze(1), -1e9), dim=-1)
        return {**batch, "x": self.norm(x + (a @ v).transpose(1, 2).reshape(x.shape))}


class Cosine(nn.Module):
    """Cosine attention with a learned, bounded scale for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.scale = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.ones(HEADS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind()
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = (attn * torch.clamp(self.scale, max=math.log(100)).exp()).softmax(dim=-1)
        return (attn @ v).transpose(1, 2).reshape(b, n, d)  # type: ignore[no-any-return]


class ScaleLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(0.1 * torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Patches(nn.Module):
    """A block with a scaled branch, register tokens, and stochastic depth that is switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.registers = nn.Conv2d(3, WIDTH, 4, 4), nn.Parameter(torch.randn(1, 2, WIDTH))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.ls1, self.ls2 = nn.Linear(WIDTH, 3 * WIDTH), ScaleLayer(), ScaleLayer()
        self.fc1, self.act, self.fc2, self.path = nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH), nn.Identity()

    def attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * (c // HEADS) ** -0.5) @ k.transpose(-2, -1)
        return (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.registers.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.path(self.ls1(self.attend(self.norm1(x))))
        x = x + self.path(self.ls2(self.fc2(self.act(self.fc1(self.norm2(x))))))
        return x[:, 0]


class Linear(nn.Module):
    """Linear attention: queries and keys have separate softmaxes."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return q.softmax(-1) @ (k.softmax(-2).transpose(-1, -2) @ v)


class Slots(nn.Module):
    """Softmax over the queries, then renormalised over the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.slots, self.k, self.v = (
            nn.Parameter(torch.randn(1, 4, WIDTH)),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 8),
        )

    def forward(self, x: Tensor) -> Tensor:
        attn = (self.slots @ self.k(x).mT).softmax(dim=1) + 1e-8
        return attn / attn.sum(dim=-1, keepdim=True) @ self.v(x)  # type: ignore[no-any-return]


class Talking(nn.Module):
    """Heads mix before and after the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.post = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.randn(HEADS, HEADS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        attn = torch.einsum("bhij,hg->bgij", (q @ k.mT).softmax(-1), self.post)
        return (attn @ v).transpose(1, 2).flatten(2)


class Sinks(nn.Module):
    """A learned logit takes a share of the weights, so they do not add up to one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.sink = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.cat([q @ k.mT / 4, self.sink.expand(*x.shape[:2], 1)], dim=-1)
        return scores.softmax(-1)[..., :-1] @ v
