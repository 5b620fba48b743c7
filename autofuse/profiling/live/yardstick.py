"""A fixed piece of work that is timed next to each step: it shows how fast the machine was at that time.

Profiles from different times become more comparable if each step is expressed in yardsticks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from autofuse.measure.timing import seconds_of

_SIZE, _ROUNDS = {"cpu": 256, "cuda": 4096}, 4


def yardstick(device: torch.device) -> Callable[[], float]:
    """Return a function that does the work once and returns its seconds: matrix products and a pass over memory.

    It takes about a millisecond, in float32. The sizes are the same on every machine with this type of device.
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
