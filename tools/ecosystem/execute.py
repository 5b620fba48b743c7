"""Runs one half of a comparison in its own process: builds what files define, calls it, and saves the results.

    python -m tools.ecosystem.execute ROOT JOB PLAN OUTPUT

JOB maps modules to symbols. The first run, with the original, searches for arguments that fit and writes them to PLAN.
The second run, with the rewritten copy, reads them. Both compute in float64, on one thread, with the same seeds.
"""

from __future__ import annotations

import importlib
import inspect
import json
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tools.ecosystem.absent import install_stubs
from tools.ecosystem.guesses import calls, constructions, make_value

_CALLS = 4  # the number of successful calls for each symbol
_SEED = 0
_SECONDS = 30  # the limit for importing a module and running a symbol


def main(root: str, job: str, plan: str, output: str) -> int:
    sys.path.insert(0, root)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    signal.signal(signal.SIGALRM, _too_long)
    install_stubs()
    known = json.loads(Path(plan).read_text()) if Path(plan).exists() else {}
    results: dict[str, list[Tensor]] = {}
    reasons: dict[str, str] = {}
    for module, symbols in json.loads(Path(job).read_text()).items():
        for symbol in symbols:
            name = f"{module}:{symbol}"
            signal.alarm(_SECONDS)
            try:
                found = _import(module)
                results[name], known[name] = _run(found, symbol, known.get(name))
            except BaseException as error:
                reasons[name] = _message(error)
            signal.alarm(0)
    Path(plan).write_text(json.dumps(known))
    torch.save(results, output)
    Path(output + ".json").write_text(json.dumps(reasons))
    return 0


class NotImported(Exception):
    """A module cannot be imported here."""


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except BaseException as error:
        raise NotImported(f"could not be imported: {_message(error)}") from error


def _too_long(*_: object) -> None:
    raise TimeoutError(f"took more than {_SECONDS} s")


def _message(error: BaseException) -> str:
    if isinstance(error, NotImported):
        return str(error)
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return f"{type(error).__name__}: {text[-1].removeprefix(type(error).__name__ + ': ')}"[:160]


def _run(module: Any, symbol: str, plan: Any) -> tuple[list[Tensor], Any]:
    """The tensors that the calls of a symbol return, and the arguments that were used."""
    owner = getattr(module, symbol.partition(".")[0])
    if not inspect.isclass(owner):
        return _call(owner, None, plan)
    if not issubclass(owner, nn.Module):
        raise TypeError("it is no module")
    instance, arguments = _build(owner, None if plan is None else plan["arguments"])
    if plan is not None:
        plan = plan["calls"]
    results, used = _call(instance.forward, instance, plan)
    return results, {"arguments": arguments, "calls": used}


def _build(owner: type[nn.Module], which: int | None) -> tuple[nn.Module, int]:
    """An instance of a class, and the number of the guess that fitted."""
    first: Exception | None = None
    for number, arguments in enumerate(constructions(owner.__init__)):
        if which not in (None, number):
            continue
        torch.manual_seed(_SEED)
        try:
            return owner(**arguments), number
        except Exception as error:
            first = first or error
    raise first or TypeError("no constructor was found")


def _call(function: Callable[..., Any], module: nn.Module | None, plan: list[int] | None) -> tuple[list[Tensor], Any]:
    """The results of calls in training and evaluation with all gradients, and the guesses that fitted."""
    found: list[Tensor] = []
    used: list[int] = []
    first: Exception | None = None
    for number, given in enumerate(calls(function)):
        if plan is not None and number not in plan or len(used) == _CALLS:
            continue
        try:
            found += [t for training in (True, False) for t in _tensors(function, module, given, training)]
            used.append(number)
        except Exception as error:
            if plan is not None:
                raise
            first = first or error
    if not used:
        raise first or TypeError("no call fits")
    return found, used


def _tensors(function: Callable[..., Any], module: nn.Module | None, given: Any, training: bool) -> list[Tensor]:
    arguments = {name: make_value(kind, what, i) for i, (name, (kind, what)) in enumerate(given.items())}
    parameters: list[Tensor] = []
    if module is not None:
        module.train(training)
        module.zero_grad()
        parameters = list(module.parameters())
    torch.manual_seed(_SEED)
    outputs = [t for t in _tensors_in(function(**arguments)) if t.is_floating_point()]
    if not outputs:
        raise TypeError("it returns no tensor of floats")
    weights = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view_as(t) for t in outputs]
    inputs = [t for t in arguments.values() if isinstance(t, Tensor) and t.requires_grad]
    total = torch.stack([(t * w).sum() for t, w in zip(outputs, weights, strict=True)]).sum()
    leaves = [*inputs, *(p for p in parameters if p.requires_grad)]
    if not total.requires_grad or not leaves:
        return [t.detach() for t in outputs]
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(total, leaves, allow_unused=True)
    return [t.detach() for t in (*outputs, *(torch.zeros(()) if g is None else g for g in gradients))]


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors_in(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors_in(v)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
