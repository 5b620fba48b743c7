"""Rehearses a training step of every operation that has a Triton kernel, without a GPU; prints JSON.

It is a separate program because it must not run with TRITON_INTERPRET. With `--broken`, backward kernels do not
compile. Operations may be named.
"""

from __future__ import annotations

import json
import sys

import torch
from triton.runtime.jit import JITFunction

import autofuse.ops  # noqa: F401 - defines the operations
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.packages import TRITON
from autofuse.kernels.rehearsal import _without_data, compile_error, compile_training_step
from autofuse.ops.sample_calls import SAMPLES, Maker, Model, sample_call
from tools.ahead.absent import absent
from tools.ahead.targets import TARGETS

MODEL = Model(batch=1, length=256, width=256, heads=4, vocabulary=4000)
BACKWARD = ("backward", "gradient", "rotate")


def main(broken: bool, named: list[str]) -> None:
    if broken:
        _break_backward_kernels()
    found = {}
    with absent(TARGETS[90].gpu, 7) as driver:
        device = torch.device("cuda", driver.home)
        for name, operation in OPERATIONS.items():
            for provider in operation.providers:
                if provider.package is TRITON and (not named or name in named):
                    maker = Maker(torch.bfloat16, torch.device("cpu"), True)
                    call = sample_call(name, SAMPLES[name].of_model(MODEL), maker)
                    args, kwargs = call.args, call.kwargs
                    trouble = compile_error(provider.run, device, args, kwargs)
                    kernels = (
                        []
                        if broken
                        else compile_training_step(provider.run, device, *_without_data(args, kwargs, None))
                    )
                    found[name] = {"trouble": trouble, "kernels": kernels, "current": driver.current}
    print(json.dumps({"operations": found, "elsewhere": driver.elsewhere, "streams": sorted(set(driver.streams))}))


def _break_backward_kernels() -> None:
    """Those with `backward` or `gradient` in their names, as a version of Triton may that lacks what they use."""
    usual = JITFunction.run

    def run(kernel, *arguments, **named):  # type: ignore[no-untyped-def]
        if any(part in kernel.fn.__name__ for part in BACKWARD):
            raise TypeError("range.__init__() got an unexpected keyword argument")
        return usual(kernel, *arguments, **named)

    JITFunction.run = run


if __name__ == "__main__":
    main("--broken" in sys.argv, [name for name in sys.argv[1:] if not name.startswith("-")])
