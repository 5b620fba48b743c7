"""Loops over experts, by hand and as autofuse rewrites them: `python -m benchmarks.experts`.

Forward and backward, and forward alone, on 1024 tokens of width 256, interleaved, on one thread; the median of nine
rounds.
"""

from __future__ import annotations

import copy
import statistics
import time

import torch
from torch import Tensor, nn

import autofuse
from tests.spellings import experts

_ROUNDS, _TOKENS, _WIDTH, _INNER = 9, (4, 256), 256, 512
_CASES = (
    ("Stacked", 8),
    ("Stacked", 32),
    ("GptOss", 32),
    ("MistralReference", 8),
    ("OldMixtral", 32),
    ("DeepSeek", 32),
)


def main() -> None:
    """Prints a line for each kind of loop and each mode."""
    torch.set_num_threads(1)
    for name, count in _CASES:
        experts.EXPERTS, experts.WIDTH, experts.INNER = count, _WIDTH, _INNER
        torch.manual_seed(0)
        model, x = getattr(experts, name)(), torch.randn(*_TOKENS, _WIDTH)
        fused = autofuse.optimize(copy.deepcopy(model), (x,), tune=False, verify=False)
        for training in (True, False):
            original, optimized = _medians(model.train(training), fused.train(training), x)
            mode = "training" if training else "inference"
            print(
                f"{name}, {count} experts, {mode}: {original * 1e3:.1f} ms, {optimized * 1e3:.1f} ms, "
                f"{original / optimized:.2f}x"
            )


def _medians(model: nn.Module, fused: nn.Module, x: Tensor) -> tuple[float, float]:
    for _ in range(2):
        _seconds(model, x), _seconds(fused, x)
    times = [(_seconds(model, x), _seconds(fused, x)) for _ in range(_ROUNDS)]
    return statistics.median(t for t, _ in times), statistics.median(t for _, t in times)


def _seconds(model: nn.Module, x: Tensor) -> float:
    start = time.perf_counter()
    with torch.set_grad_enabled(model.training):
        result = model(x)
    if model.training:
        result.square().mean().backward()
        model.zero_grad()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
