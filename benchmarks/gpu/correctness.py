"""Checks that every available provider of every operation agrees with the formula in float64.

Values and gradients, at shapes that no block size divides. An error is the largest difference relative to the largest
value of the tensor. The bound is four times the error of the hand-written code in the same dtype, plus four times the
dtype's eps: providers may sum in another order, and round once where that code rounds often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.operation import Operation, RecordedCall, record_calls
from benchmarks.cases import Case, Model, cases_of
from benchmarks.gpu.store import Results, Row, Setting, Task

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_EPS_ALLOWED, _TIMES_ALLOWED = 4, 4
# 2 x 515 rows of 15 x 72: not a power of two, and more elements than the calls that always go to torch's code
_ODD = Model("odd", 2, 515, 1080, 15, 5, 1352, 5003)
_ODD_AND_SMALL = Model("odd", 2, 67, 1080, 15, 5, 1352, 1003)


def tasks(setting: Setting, results: Results) -> list[Task]:
    """One for each case without dropout and each dtype, in training."""
    model = odd_model(setting)
    dtypes = ("fp32", "bf16") if setting.toy else tuple(DTYPES)
    return [
        Task(f"correctness/{case.name}/{dtype}", partial(row, case, DTYPES[dtype], setting), 20)
        for case in cases_of(model) if not case.draws for dtype in dtypes
    ]  # fmt: skip


def odd_model(setting: Setting) -> Model:
    """The sizes that no block size divides."""
    return _ODD_AND_SMALL if setting.toy else _ODD


def row(case: Case, dtype: torch.dtype, setting: Setting) -> Row:
    """The errors of the public function, and of each provider of the operations that it calls."""
    tensors = case.tensors(setting.device, dtype, training=True)
    exact = results_of(case.spelled, in_float64(tensors))
    allowed = [_allowed_error(e, dtype) for e in _errors(results_of(case.spelled, tensors), exact)]
    with record_calls() as recorded_calls:
        verdicts = {"autofuse.ops": _judge(results_of(case.ours, tensors), exact, allowed)}
    for call in _calls_of(case.operation, recorded_calls):
        for provider in call.operation.providers:
            verdicts[provider.name] = _of_provider(call, provider.name, case, dtype)
    wrong = [name for name, verdict in verdicts.items() if verdict.get("right") is False]
    return {"operation": case.operation, "allowed": allowed, "ways": verdicts, "wrong": wrong}


def results_of(function: Callable[..., Any], arguments: list[Any]) -> list[Tensor]:
    """The results of `function`, and the gradients of the tensors that require one, for fixed output gradients."""
    result = function(*arguments)
    outputs = [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, Tensor)]
    inputs_with_gradient = [t for t in arguments if isinstance(t, Tensor) and t.requires_grad]
    output_gradients = [_gradient(t) for t in outputs]
    gradients = (
        torch.autograd.grad(outputs, inputs_with_gradient, output_gradients, allow_unused=True)
        if inputs_with_gradient
        else ()
    )
    return [t.detach() for t in (*outputs, *(g for g in gradients if g is not None))]


def _gradient(output: Tensor) -> Tensor:
    """Equal numbers for every dtype, with so few bits that no dtype rounds them."""
    generator = torch.Generator(output.device).manual_seed(1)
    numbers = torch.randint(-8, 9, output.shape, generator=generator, device=output.device)
    return numbers.to(output.dtype) / 8


def in_float64(arguments: Iterable[Any]) -> list[Any]:
    """The arguments with floating-point tensors in float64, which require gradients as before."""
    return [
        a.detach().double().requires_grad_(a.requires_grad) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in arguments
    ]


def _of_provider(call: RecordedCall, name: str, case: Case, dtype: torch.dtype) -> Row:
    """Whether a provider is available, supports the call, and computes the right result."""
    operation: Operation = call.operation
    provider = operation.provider(name)
    first = call.args[0]
    why = provider.unsuited(first.device.type, dtype, deterministic=False)
    why = why or ("" if provider is operation.torch else provider.check(*call.args, **call.kwargs))
    if why:
        return {"refused": why}
    arguments, named = _leaves(call.args), call.kwargs
    exact = results_of(partial(operation.torch.run, **_named_in_float64(named)), in_float64(arguments))
    allowed = [
        _allowed_error(e, dtype) for e in _errors(results_of(partial(operation.torch.run, **named), arguments), exact)
    ]
    try:
        return _judge(results_of(partial(provider.run, **named), arguments), exact, allowed)
    except Exception as error:
        return {"right": False, "failed": f"{type(error).__name__}: {error}"[:300]}


def _judge(results: list[Tensor], exact: list[Tensor], allowed: list[float]) -> Row:
    errors = _errors(results, exact)
    right = len(errors) == len(allowed) and all(e <= a for e, a in zip(errors, allowed, strict=True))
    return {"right": right, "errors": errors}


def _errors(results: list[Tensor], exact: list[Tensor]) -> list[float]:
    pairs = zip(results, exact, strict=True)
    return [float(((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()) for a, b in pairs]


def _allowed_error(error: float, dtype: torch.dtype) -> float:
    return _TIMES_ALLOWED * error + _EPS_ALLOWED * torch.finfo(dtype).eps


def _calls_of(operation: str, recorded_calls: list[RecordedCall]) -> list[RecordedCall]:
    """The call of that operation among all recorded calls; empty if the operation has no providers."""
    return [call for call in recorded_calls if call.operation.name == operation][:1]


def _leaves(arguments: Iterable[Any]) -> list[Any]:
    return [a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in arguments]


def _named_in_float64(named: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(named, in_float64(named.values()), strict=True))
