"""Runs a training program as its user would, and writes down every step of its optimizer until there are enough.

    python recorded.py OUT STEPS [-m] PROGRAM [ARGUMENT ...]

OUT is JSON: the loss of each backward pass, and the seconds between one step of an optimizer and the next. The program
is ended after STEPS of them. It knows torch and no repository; it is given to the repository's Python as a file, so it
imports nothing of autofuse.
"""

from __future__ import annotations

import itertools
import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Enough(BaseException):
    """Ends the program; not an Exception, which a training loop may catch."""


def main(out: str, steps: int, arguments: list[str]) -> None:
    losses: list[float] = []
    times: list[float] = [time.perf_counter()]
    backward: Any = torch.Tensor.backward

    def recorded(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if loss.numel() == 1:
            losses.append(float(loss.detach()))
        backward(loss, *args, **kwargs)

    def stepped(*_: Any) -> None:
        times.append(time.perf_counter())
        if len(times) > steps:
            raise Enough

    torch.Tensor.backward = recorded  # type: ignore[method-assign, assignment]
    register_optimizer_step_post_hook(stepped)
    torch.manual_seed(0)
    try:
        _run(arguments)
    except Enough:
        pass
    finally:
        seconds = [b - a for a, b in itertools.pairwise(times)]
        Path(out).write_text(json.dumps({"losses": losses, "seconds": seconds}))


def _run(arguments: list[str]) -> None:
    sys.path[0] = "" if arguments[0] == "-m" else str(Path(arguments[0]).resolve().parent)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
