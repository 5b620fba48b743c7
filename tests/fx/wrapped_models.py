"""Three small hand-written transformers, to be wrapped: BERT, GPT and Llama."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, WORDS = 16, 2, 24


class HandNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return self.gain * (x - mean) / torch.sqrt(variance + 1e-5) + self.shift


class RootNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class BertAttention(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout = nn.Dropout(p)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        if mask is not None:
            scores = scores + mask
        weights = self.dropout(torch.softmax(scores, dim=-1))
        return self.out(torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous().view(x.shape))


class BertBlock(nn.Module):
    """Norms after each half."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.attention = BertAttention(p)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm_1, self.norm_2 = HandNorm(), HandNorm()
        self.dropout = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_1(x + self.dropout(self.attention(x)))
        h = self.up(x)
        h = h * 0.5 * (1.0 + torch.erf(h / math.sqrt(2.0)))
        return self.norm_2(x + self.dropout(self.down(h)))


class GptAttention(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn_dropout = nn.Dropout(p)
        self.register_buffer("bias", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, HEADS, C // HEADS).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class GptBlock(nn.Module):
    """Norms before each half, and the tanh approximation of GELU."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = GptAttention(p)
        self.c_fc, self.c_proj, self.drop = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        h = self.c_fc(self.ln_2(x))
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.drop(self.c_proj(h))


def rotate(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class LlamaAttention(nn.Module):
    """Rotary positions, and one key for both heads."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, WIDTH // HEADS, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, HEADS, WIDTH // HEADS).transpose(1, 2)
        k, v = (w(x).view(B, T, 1, WIDTH // HEADS).transpose(1, 2) for w in (self.wk, self.wv))
        q, k = q * cos + rotate(q) * sin, k * cos + rotate(k) * sin
        k, v = k.repeat_interleave(HEADS, dim=1), v.repeat_interleave(HEADS, dim=1)
        later = torch.full((T, T), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        weights = F.softmax(q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5 + later, dim=-1)
        return self.wo((weights @ v).transpose(1, 2).reshape(B, T, WIDTH))


class LlamaBlock(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.attention = RootNorm(), RootNorm(), LlamaAttention()
        self.gate, self.up = (nn.Linear(WIDTH, 32, bias=False) for _ in range(2))
        self.down = nn.Linear(32, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        angle = torch.outer(torch.arange(x.shape[1]), 100.0 ** -torch.linspace(0, 1, WIDTH // HEADS // 2))
        angle = torch.cat((angle, angle), dim=-1).to(x.device)
        x = x + self.attention(self.norm_1(x), angle.cos().to(x.dtype), angle.sin().to(x.dtype))
        y = self.norm_2(x)
        g = self.gate(y)
        return x + self.down(g * torch.sigmoid(g) * self.up(y))


class Transformer(nn.Module):
    """Blocks between an embedding and a head that share their weight."""

    def __init__(self, block: type[nn.Module], p: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([block(p) for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


BLOCKS: dict[str, type[nn.Module]] = {"bert": BertBlock, "gpt": GptBlock, "llama": LlamaBlock}


def model_of(name: str, p: float = 0.0) -> Transformer:
    """A model with the same weights at each call."""
    torch.manual_seed(0)
    return Transformer(BLOCKS[name], p)
