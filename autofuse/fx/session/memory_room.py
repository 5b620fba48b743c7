"""Whether there is memory enough for what is done with copies of a module: for a check, and for steps that are timed.

Estimated from the sizes of parameters and buffers, and from the tensors that the module made when it ran on fakes.
Knows devices and bytes; decides nothing about what an unchecked module may do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.measure.available_memory import free_bytes
from autofuse.measure.created_bytes import BytesByDevice
from autofuse.verify.arithmetic import WIDER
from autofuse.verify.other_calls import find_tensors
from autofuse.verify.runs import ModuleCall
from autofuse.verify.slices import LENGTH, count_elements, smaller_calls

UNCHECKED = "(verify=False fuses unchecked)"


@dataclass(frozen=True)
class Room:
    """Whether a check fits: "" where there is room for it, or why there is none. part: of one on a part of the call
    alone; None where the call has none."""

    whole: str
    part: str | None


def room_to_check(module: nn.Module, call: ForwardArguments, made: BytesByDevice | None, length: int = LENGTH) -> Room:
    """Whether `module` can be checked by `call`. made: the bytes that its operators made in a run of it, if known.

    length: of a sequence in a part of the call, at most.
    """
    run, part = run_takes(call, made or BytesByDevice()), part_of(call, length)
    whole = lack_of_room(call_takes(module, call, made, length))
    if part is None or not whole:
        return Room(whole, None)
    return Room(whole, lack_of_room(check_takes(module, BytesByDevice({d: int(n * part) for d, n in run.items()}))))


def call_takes(
    module: nn.Module, call: ForwardArguments, made: BytesByDevice | None, length: int = LENGTH
) -> BytesByDevice:
    """What checking `module` by `call` takes at its peak, in bytes by device. Arguments as of `room_to_check`."""
    part = part_of(call, length)
    return check_takes(module, run_takes(call, made or BytesByDevice()), 1.0 if part is None else part)


def run_takes(call: ForwardArguments, made: BytesByDevice) -> BytesByDevice:
    """What a run takes above its module: what operators make, two copies of each argument, the gradients of the run and
    of the one that it is compared with, and the gradients that its results are given."""
    given = BytesByDevice()
    for x in find_tensors((call[0], call[1])):
        given[x.device] += 5 * x.numel() * x.element_size()
    return _sum(made, given)


def check_takes(module: nn.Module, run: BytesByDevice, part: float = 1.0) -> BytesByDevice:
    """What a check of `module` takes at its peak, in bytes by device.

    run: what a run of the whole call takes above the module. part: how much of the call is run in double.

    The original and the rewritten module are copies, with a gradient of each in their own dtype. In double there are
    one copy, the gradient that is being computed, and the gradients of the two runs that are compared. Of a run's
    tensors up to all are held for its backward, and as many again where each step is rounded at random
    (verify/expected.py). Measured on layers of a Llama in float32 and bfloat16: 0.5 to 1.7 of this estimate.
    """
    own, double = _parameters(module), _parameters(module, WIDER)
    wider = {d: double[d] / own[d] if own[d] else 2.0 for d in run}
    in_double = BytesByDevice({d: int(2 * n * part * wider[d]) for d, n in run.items()})
    return _sum(*4 * [own], *3 * [double], in_double | run)


def step_takes(module: nn.Module, made: BytesByDevice) -> BytesByDevice:
    """What a training step of a copy of `module` takes at its peak, in bytes by device."""
    own = _parameters(module)
    return _sum(own, own, made)


def part_of(call: ForwardArguments, length: int = LENGTH) -> float | None:
    """How much of a call is checked in double, by the entries of its tensors; None where it has no smaller parts."""
    given = ModuleCall(*call)
    cut = next((smaller for _, smaller in smaller_calls(given, length)), None)
    return None if cut is None else count_elements(cut) / max(1, count_elements(given))


def lack_of_room(takes: Mapping[torch.device, int], doing: str = "checking") -> str:
    """Why there is no room for what is done, or "" where there is, or where nobody can tell."""
    for device, count in takes.items():
        free = free_bytes(device)
        if free is not None and count > free:
            return f"{doing} takes about {_gib(count)} of memory on {device}, and {_gib(free)} are free there"
    return ""


def _parameters(module: nn.Module, wider: Mapping[torch.dtype, torch.dtype] | None = None) -> BytesByDevice:
    """What parameters and buffers take; in double, where `wider` says how."""
    found = BytesByDevice()
    for x in chain(module.parameters(), module.buffers()):
        found[x.device] += x.numel() * (wider or {}).get(x.dtype, x.dtype).itemsize
    return found


def _sum(*parts: Counter[torch.device]) -> BytesByDevice:
    return sum(parts, BytesByDevice())


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
