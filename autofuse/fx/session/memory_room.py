"""Estimates whether memory suffices to check a copy of a module, or to time its steps.

The estimate uses the sizes of parameters and buffers, and of the tensors that operators created in a run on fakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

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
    """Whether a check fits into memory.

    Attributes:
        whole: Why a check of the whole call does not fit, or "".
        part: The same for a check of a part of the call; None if the call has no parts.
    """

    whole: str
    part: str | None


def room_to_check(
    module: nn.Module, call: ForwardArguments, created: BytesByDevice | None, length: int = LENGTH
) -> Room:
    """Whether memory suffices to check a module.

    Args:
        module: The module.
        call: The arguments of the call.
        created: The bytes that operators created in a run on fakes, if known.
        length: The maximum sequence length in a part of the call.
    """
    # A check of the whole call is preferred. Only if it does not fit, a part is considered.
    run, part = run_bytes(call, created or BytesByDevice()), checked_part(call, length)
    whole = why_no_room(call_check_bytes(module, call, created, length))
    if part is None or not whole:
        return Room(whole, None)
    return Room(whole, why_no_room(_bytes_of_part(module, run, part)))


class CallsOfHeads(NamedTuple):
    """The calls of a model that show whether its last layer's output is used for a loss only.

    Attributes:
        read: The call that shows what reads the output.
        compared: The calls with which results and gradients can be compared, the cheapest first.
        why_none: Why no call fits into memory, or "".
    """

    read: ForwardArguments
    compared: tuple[ForwardArguments, ...] = ()
    why_none: str = ""


def calls_of_heads(
    model: nn.Module, call: ForwardArguments, created: BytesByDevice | None, compares: bool
) -> CallsOfHeads:
    """The calls of a model that fit into memory, for `find_lazy_heads`.

    A comparison of a part of the call is as meaningful as one of the whole, and needs less memory.

    Args:
        model: The model.
        call: The arguments of the call.
        created: The bytes that operators created in a run on fakes, if known.
        compares: Whether results are compared, in float64.
    """
    step = why_no_room(step_bytes(model, created or BytesByDevice()))
    if not compares:
        return CallsOfHeads(call, why_none=step)
    run, entries = run_bytes(call, created or BytesByDevice()), max(1, count_elements(ModuleCall(*call)))
    calls = [*(smaller for _, smaller in smaller_calls(ModuleCall(*call))), ModuleCall(*call)]
    shares = [count_elements(each) / entries for each in calls]
    reasons = [why_no_room(_bytes_of_part(model, run, share)) for share in shares]
    fitting = tuple((c.args, dict(c.kwargs)) for c, why in zip(calls, reasons, strict=True) if not why)
    if not fitting:
        return CallsOfHeads(call, why_none=reasons[-1])
    return CallsOfHeads(fitting[0] if step else call, fitting)


def _bytes_of_part(module: nn.Module, run: BytesByDevice, share: float) -> BytesByDevice:
    """The peak memory of a check of a part of a call."""
    return check_bytes(module, BytesByDevice({d: int(n * share) for d, n in run.items()}))


def call_check_bytes(
    module: nn.Module, call: ForwardArguments, created: BytesByDevice | None, length: int = LENGTH
) -> BytesByDevice:
    """The peak memory of a check in bytes by device. The arguments are those of `room_to_check`."""
    part = checked_part(call, length)
    return check_bytes(module, run_bytes(call, created or BytesByDevice()), 1.0 if part is None else part)


def run_bytes(call: ForwardArguments, created: BytesByDevice) -> BytesByDevice:
    """The memory of a run in bytes by device, without the module.

    It has the tensors that operators create, two copies of each argument, the gradients of both compared runs, and the
    gradients of the results.
    """
    arguments = BytesByDevice()
    for x in find_tensors((call[0], call[1])):
        arguments[x.device] += 5 * x.numel() * x.element_size()
    return _sum(created, arguments)


def check_bytes(module: nn.Module, run: BytesByDevice, part: float = 1.0) -> BytesByDevice:
    """The peak memory of a check in bytes by device.

    The original and the rewritten module are copies, with a gradient of each parameter in its own dtype. In float64
    there are one copy, the gradient that is being computed, and the gradients of both compared runs. A run keeps up to
    all of its tensors for the backward pass, and twice as many if each step is rounded at random (verify/expected.py).
    Layers of a Llama in float32 and bfloat16 needed 0.5 to 1.7 times this estimate.

    Args:
        module: The module.
        run: The memory of a run of the whole call, without the module.
        part: The fraction of the call that runs in float64.
    """
    own, double = _parameters(module), _parameters(module, WIDER)
    # The tensors of a run grow in float64 by the same factor as the parameters.
    wider = {d: double[d] / own[d] if own[d] else 2.0 for d in run}
    in_double = BytesByDevice({d: int(2 * n * part * wider[d]) for d, n in run.items()})
    return _sum(*4 * [own], *3 * [double], in_double | run)


def step_bytes(module: nn.Module, created: BytesByDevice) -> BytesByDevice:
    """The peak memory of a training step of a copy of `module`, in bytes by device."""
    own = _parameters(module)
    return _sum(own, own, created)


def checked_part(call: ForwardArguments, length: int = LENGTH) -> float | None:
    """The fraction of a call that is checked in float64, by tensor entries; None if it has no smaller parts."""
    whole_call = ModuleCall(*call)
    smaller_call = next((smaller for _, smaller in smaller_calls(whole_call, length)), None)
    return None if smaller_call is None else count_elements(smaller_call) / max(1, count_elements(whole_call))


def why_no_room(takes: Mapping[torch.device, int], doing: str = "checking") -> str:
    """The reason why memory does not suffice; "" if it does, or if the free memory is unknown."""
    for device, count in takes.items():
        free = free_bytes(device)
        if free is not None and count > free:
            return f"{doing} takes about {_gib(count)} of memory on {device}, and {_gib(free)} are free there"
    return ""


def _parameters(module: nn.Module, wider: Mapping[torch.dtype, torch.dtype] | None = None) -> BytesByDevice:
    """The bytes of parameters and buffers by device, with their dtypes replaced as in `wider`."""
    found = BytesByDevice()
    for x in chain(module.parameters(), module.buffers()):
        found[x.device] += x.numel() * (wider or {}).get(x.dtype, x.dtype).itemsize
    return found


def _sum(*parts: Counter[torch.device]) -> BytesByDevice:
    return sum(parts, BytesByDevice())


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
