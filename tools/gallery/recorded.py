"""Runs a training program as its user would, and records every optimizer step until there are enough.

    python recorded.py OUT STEPS [-m | -c] PROGRAM [ARGUMENT ...]

OUT is JSON: the loss of each backward pass, and the seconds between successive optimizer steps. The program is stopped
after STEPS steps. The repository's Python runs this file as a script, so it imports nothing of autofuse.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import random
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Enough(BaseException):
    """Ends the program. It is not an Exception, because a training loop may catch those."""


def main(out: str, steps: int, arguments: list[str]) -> None:
    losses: list[float] = []
    times: list[float] = [time.perf_counter()]
    backward: Any = torch.Tensor.backward

    def record_loss(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if loss.numel() == 1:
            losses.append(float(loss.detach()))
        backward(loss, *args, **kwargs)

    def on_step(*_: Any) -> None:
        times.append(time.perf_counter())
        if len(times) > steps:
            raise Enough

    torch.Tensor.backward = record_loss  # type: ignore[method-assign, assignment]
    register_optimizer_step_post_hook(on_step)
    torch.manual_seed(0)
    random.seed(0)
    with contextlib.suppress(ImportError):  # a program may use numpy's random numbers
        importlib.import_module("numpy").random.seed(0)
    try:
        _run(arguments)
    except Enough:
        pass
    finally:
        seconds = [b - a for a, b in itertools.pairwise(times)]
        Path(out).write_text(json.dumps({"losses": losses, "seconds": seconds}))


def _run(arguments: list[str]) -> None:
    first, *others = arguments
    sys.path[0] = "" if first in ("-m", "-c") else str(Path(first).resolve().parent)
    if first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *others[1:]]
        exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
