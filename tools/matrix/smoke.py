"""Trains a small GPT twice, as it is written and optimized, and prints one line of JSON.

It runs in the environment of a cell, and compares losses and keys of the state dict. The two trainings differ by
rounding, which grows from step to step: losses may differ by 1e-3 of the loss after 20 steps, 1e-5 at the first.
"""

from __future__ import annotations

import copy
import json

import torch
from torch import nn

import autofuse
from autofuse.demo.gpt import GPT, Config

STEPS = 20


def losses_of(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """The loss of each step of a training with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for tokens, targets in batches:
        logits = model(tokens)
        logits = logits[0] if isinstance(logits, tuple) else logits
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    torch.manual_seed(0)
    config = Config(vocab_size=100, block_size=64, n_layer=2, n_head=4, n_embd=64)
    model = GPT(config).train()
    batches = [(torch.randint(0, 100, (4, 64)), torch.randint(0, 100, (4, 64))) for _ in range(STEPS)]
    optimized = autofuse.optimize(copy.deepcopy(model), batches[0][0], tune=False)
    fused = sorted(s.rule for s in autofuse.report(optimized).with_status("fused"))
    keys = list(model.state_dict()) == list(optimized.state_dict())
    before, after = losses_of(model, batches), losses_of(optimized, batches)
    first = abs(before[0] - after[0]) / before[0]
    worst = max(abs(b - a) / b for b, a in zip(before, after, strict=True))
    compiled = torch.compile(optimized, backend="eager")
    compiled_equal = torch.allclose(compiled(batches[0][0]), optimized(batches[0][0]), atol=1e-5)
    autofuse.restore(optimized)
    equal = bool(fused) and keys and first < 1e-5 and worst < 1e-3 and compiled_equal
    print(json.dumps({"equal": equal, "fused": fused, "first": first, "worst": worst, "compiled": compiled_equal}))


if __name__ == "__main__":
    main()
