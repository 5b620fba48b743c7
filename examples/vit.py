"""A vision transformer that tells drawn shapes apart, its layers written by hand.

Run it, or look at what would change:

    python examples/vit.py                  # a few seconds on a CPU; uses a GPU if there is one
    python examples/vit.py --optimize       # the same, with the layers swapped for fused ones
    autofuse rewrite --diff examples/vit.py # the same swap, in this file
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SHAPES = ("disc", "square", "cross", "ring")


@dataclass(frozen=True)
class Config:
    """Sizes of the model. The defaults train in seconds on a CPU."""

    side: int = 32
    patch: int = 4
    dim: int = 64
    heads: int = 4
    depth: int = 2
    mlp_dim: int = 128
    dropout: float = 0.0

    @property
    def patches(self) -> int:
        return (self.side // self.patch) ** 2


class LayerNorm(nn.Module):
    """Layer normalisation over the last dimension."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = (centred * centred).mean(dim=-1, keepdim=True)
        return centred * torch.rsqrt(variance + self.eps) * self.gamma + self.beta


class Attention(nn.Module):
    """Every patch attends to every patch."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.scale = (config.dim // config.heads) ** -0.5
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(config.dropout)
        self.proj = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        dots = (q @ k.transpose(-2, -1)) * self.scale
        attn = self.dropout(self.attend(dots))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Block(nn.Module):
    """A pre-norm encoder block."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = LayerNorm(config.dim)
        self.attn = Attention(config)
        self.norm2 = LayerNorm(config.dim)
        self.mlp = nn.Sequential(
            nn.Linear(config.dim, config.mlp_dim),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.mlp_dim, config.dim),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Grey images (batch, side, side) -> logits (batch, shapes)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = nn.Linear(config.patch**2, config.dim)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, config.dim))
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(1, config.patches + 1, config.dim))
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.depth)])
        self.norm = LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, len(SHAPES))

    def patchify(self, images: Tensor) -> Tensor:
        """(batch, side, side) -> (batch, patches, patch * patch)."""
        batch, side, patch = images.shape[0], self.config.side, self.config.patch
        grid = images.reshape(batch, side // patch, patch, side // patch, patch)
        return grid.transpose(2, 3).reshape(batch, self.config.patches, patch * patch)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embedding(self.patchify(images))
        cls = self.cls_token.expand(x.shape[0], -1, -1)
        x = torch.cat((cls, x), dim=1) + self.pos_embedding
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def batch(config: Config, generator: torch.Generator, size: int = 32) -> tuple[Tensor, Tensor]:
    """Shapes of random kind, place and radius, drawn under noise: images (size, side, side), labels (size,)."""
    labels = torch.randint(len(SHAPES), (size,), generator=generator)
    radius = torch.randint(config.side // 8, config.side // 4, (size, 1, 1), generator=generator)
    middle = torch.randint(config.side // 4, 3 * config.side // 4, (2, size, 1, 1), generator=generator)
    dx = (torch.arange(config.side).view(1, 1, -1) - middle[0]).abs()
    dy = (torch.arange(config.side).view(1, -1, 1) - middle[1]).abs()
    disc = dx**2 + dy**2 <= radius**2
    square = torch.maximum(dx, dy) <= radius
    cross = square & (torch.minimum(dx, dy) <= 1)
    ring = disc & (dx**2 + dy**2 >= (radius - 2) ** 2)
    drawn = torch.stack((disc, square, cross, ring))[labels, torch.arange(size)]
    noise = torch.randn(drawn.shape, generator=generator, dtype=torch.float32)
    return drawn + 0.2 * noise, labels


def train(model: ViT, steps: int, seed: int) -> list[float]:
    """Train for `steps` batches drawn with `seed`. Returns the loss of each, in nats an image."""
    torch.manual_seed(seed)  # dropout
    generator = torch.Generator().manual_seed(seed)  # batches
    weight = model.head.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    losses = []
    for _ in range(steps):
        images, labels = batch(model.config, generator)
        loss = F.cross_entropy(model(images.to(weight)), labels.to(weight.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--optimize", action="store_true", help="swap the hand-written layers for fused ones first")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ViT(Config()).to(device)
    if options.optimize:
        import autofuse

        images, _ = batch(model.config, torch.Generator().manual_seed(options.seed))
        autofuse.optimize(model, images.to(device))
        print(autofuse.report(model))
    losses = train(model, options.steps, options.seed)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {options.steps} steps on {device}")


if __name__ == "__main__":
    main()
