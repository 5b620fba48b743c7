"""Small hand-written language models, each in another style."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH, HEADS = 31, 16, 2


class Head(nn.Module):
    """One head of a list of heads, with its mask in a buffer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(32, 32)))

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = F.softmax(wei.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=-1)
        return wei @ self.value(x)  # type: ignore[no-any-return]


class HeadsInAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.heads = nn.ModuleList(Head(WIDTH // HEADS) for _ in range(HEADS))
        self.net = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(inplace=True), nn.Linear(32, WIDTH))
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.embedding(idx)
        x = x + torch.cat([h(self.ln1(x)) for h in self.heads], dim=-1)
        logits = F.linear(x + self.net(self.ln2(x)), self.embedding.weight)
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def repeat_heads(x: Tensor, n: int) -> Tensor:
    b, s, h, d = x.shape
    return x[:, :, :, None, :].expand(b, s, h, n, d).reshape(b, s, h * n, d)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[:, None]).flatten(3).type_as(x)


class Grouped(nn.Module):
    """Complex rotary embeddings, fewer keys than queries, softmax in float32. The angles are moved at each call."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32)
        self.wq, self.wk, self.wv = (nn.Linear(32, n, bias=False) for n in (32, 16, 16))
        self.w1, self.w2, self.w3 = nn.Linear(32, 48), nn.Linear(48, 32), nn.Linear(32, 48)
        self.norm = nn.Parameter(torch.ones(32))
        self.angles = torch.polar(torch.ones(32, 4), torch.rand(32, 4))
        self.to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        b, n = tokens.shape
        x = self.embedding(tokens)
        self.angles = self.angles.to(x.device)
        q, k, v = (w(x).view(b, n, -1, 8) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, self.angles[:n]), rotated(k, self.angles[:n])
        q, k, v = q.transpose(1, 2), repeat_heads(k, 2).transpose(1, 2), repeat_heads(v, 2).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(8)
        scores = scores + torch.triu(torch.full((n, n), float("-inf")), diagonal=1).type_as(scores)
        weights = F.softmax(scores.float(), dim=-1).type_as(q)
        x = x + torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, n, -1)
        y = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.norm
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))  # type: ignore[no-any-return]


class ScaledDotProduct(nn.Module):
    """The child that returns its weights whether they are read or not."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        attn = torch.matmul(q / q.size(-1) ** 0.5, k.transpose(2, 3))
        attn = attn if mask is None else attn.masked_fill(mask == 0, -1e9)
        attn = F.softmax(attn, dim=-1)
        return torch.matmul(attn, v), attn


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(WORDS, WIDTH), ScaledDotProduct()
        self.q, self.k, self.v, self.fc = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.dropout = nn.LayerNorm(WIDTH, eps=1e-6), nn.Dropout(0.0)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), HEADS, -1).transpose(1, 2)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, y = self.embedding(source), self.embedding(target)
        mask = (source != 0).unsqueeze(-2).unsqueeze(1)
        out, _ = self.attention(self.heads(self.q(y)), self.heads(self.k(x)), self.heads(self.v(x)), mask=mask)
        out = self.dropout(self.fc(out.transpose(1, 2).contiguous().view(*target.shape, -1)))
        out += y
        return self.norm(out)  # type: ignore[no-any-return]


class Given(NamedTuple):
    out: Tensor
    weights: Tensor | None


class OnRequest(nn.Module):
    """Keyword-only arguments that are passed through, and a named tuple with the weights if they are requested."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3 * WIDTH, WIDTH) / 4), nn.Parameter(torch.zeros(3 * WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def attend(self, x: Tensor, *, need_weights: bool = False) -> Given:
        q, k, v = F.linear(x, self.weight, self.bias).chunk(3, dim=-1)
        w = torch.softmax(q @ k.mT / math.sqrt(WIDTH), dim=-1)
        return Given(w @ v, w if need_weights else None)

    def forward(self, *, x: Tensor, **options: Any) -> dict[str, Tensor | None]:
        found = self.attend(x, **options)
        return {"hidden": self.norm(x + found.out), "weights": found.weights}


@functools.lru_cache
def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


class LambdaAndCache(nn.Module):
    """An MLP as a lambda, a mask that functools caches, and a function that the constructor chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.mlp = lambda x: self.down(F.gelu(self.up(x)))
        self.attend = functools.partial(self._attend, scale=0.25)

    @staticmethod
    def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return torch.softmax((q @ k.mT * scale).masked_fill(~causal(q.shape[-2]), float("-inf")), -1) @ v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + self.attend(q, k, v)
        return x + self.mlp(x)  # type: ignore[no-any-return]


class MaskObject:
    def __init__(self, n: int) -> None:
        with torch.no_grad():
            self.mask = torch.triu(torch.ones(1, 1, n, n, dtype=torch.bool), diagonal=1)


class TimeSeries(nn.Module):
    """A mask that an object builds under no_grad, einsum with the heads after the length, and fills in place."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(*x.shape[:2], HEADS, -1) for f in (self.q, self.k, self.v))
        scores = torch.einsum("blhe,bshe->bhls", q, k)
        scores.masked_fill_(MaskObject(x.shape[1]).mask, -math.inf)
        weights = torch.softmax(scores / math.sqrt(q.shape[-1]), dim=-1)
        return self.norm(x + torch.einsum("bhls,bshd->blhd", weights, v).flatten(2))  # type: ignore[no-any-return]


class SharedLayer(nn.Module):
    """One layer for all depths, ALiBi, and one key head for all query heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.register_buffer("slopes", torch.tensor([0.25, 0.0625]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            k, v = self.kv(x).chunk(2, dim=-1)
            i = torch.arange(x.shape[1])
            distance = i[None, :] - i[:, None]
            sim = torch.einsum("bhid,bjd->bhij", q, k) * q.shape[-1] ** -0.5 + distance * self.slopes[:, None, None]
            attn = sim.masked_fill(distance > 0, -torch.finfo(sim.dtype).max).softmax(dim=-1)
            x = self.norm(x + torch.einsum("bhij,bjd->bhid", attn, v).transpose(1, 2).flatten(2))
        return x
