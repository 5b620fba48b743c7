"""A fixed piece of work, timed next to each step: it tells how fast the machine was just then.

Two profiles that were taken apart from each other compare a little less unfairly by what each step took in yardsticks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from autofuse.measure.timing import seconds_of

_SIZE, _ROUNDS = {"cpu": 256, "cuda": 4096}, 4


def yardstick(device: torch.device) -> Callable[[], float]:
    """A function that does the work once and returns its seconds: products of matrices and a pass over memory.

    About a millisecond; float32, the same sizes on every machine of a kind.
    """
    size = _SIZE.get(device.type, 1024)
    a, b = torch.ones(2, size, size, device=device)
    wide = torch.ones(size, 16 * size, device=device)

    def work() -> None:
        with torch.no_grad():
            for _ in range(_ROUNDS):
                torch.mm(a, b)
                wide.mul(1.5)

    work()  # the first call pays for setting up
    return lambda: seconds_of(work, device)
