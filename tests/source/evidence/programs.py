"""Programs that run before and after they are rewritten: any change of behaviour by a safe edit is a bug.

A program is a text and an expression that calls it. In the expression, T(2, 3) is a tensor that requires a gradient,
C(2, 3) one that does not, B(2, 3) a boolean tensor, and M(module) a module with deterministic parameters.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.find.check import proposals
from tests.source.rewriting import rewritten, source

HEAD = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
# label -> dtype, whether modules are in training mode, whether autocast is on, relative tolerance
RUNS = {
    "float64 train": (torch.float64, True, False, 1e-7),
    "float64 eval": (torch.float64, False, False, 1e-7),
    "bfloat16": (torch.bfloat16, False, False, 0.06),
    "autocast": (torch.float32, False, True, 0.08),
}


@dataclass(frozen=True)
class Program:
    """A program and the expected result of rewriting it.

    Attributes:
        name: its name in test reports.
        text: its source.
        drive: the expression that calls it.
        expected: "safe", "unsafe", or "kept" if the text must not change.
        message: a part of the expected message.
        is_whole_file: whether the text is a whole file, with its own imports.
    """

    name: str
    text: str
    drive: str
    expected: str
    message: str = ""
    is_whole_file: bool = False

    @property
    def before(self) -> str:
        return source(self.text) if self.is_whole_file else HEAD + "\n" + source(self.text)

    def findings(self) -> list[Finding]:
        return [p.finding for p in proposals(self.before.encode(), "program.py", rules=load_rules())]


def status_of(program: Program) -> str:
    """The status of the program's findings; "kept" if there is no edit."""
    statuses = [f.status for f in program.findings()]
    return next((s for s in ("unsafe", "safe") if s in statuses), "kept")


@dataclass
class World:
    """Creates inputs, the same in each run."""

    dtype: torch.dtype
    training: bool
    random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))
    leaves: list[Tensor] = field(default_factory=list)

    def constant(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=self.random, dtype=torch.float64).to(self.dtype)

    def tensor(self, *sizes: int) -> Tensor:
        self.leaves.append(self.constant(*sizes).requires_grad_())
        return self.leaves[-1]

    def boolean(self, *sizes: int) -> Tensor:
        kept = torch.rand(*sizes, generator=self.random) < 0.7
        kept[..., 0] = True
        return kept

    def module(self, module: nn.Module) -> nn.Module:
        module = module.to(self.dtype).train(self.training)
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(torch.randn(p.shape, generator=self.random, dtype=torch.float64) * 0.5 + 0.1)
        self.leaves += list(module.parameters())
        return module


Outcome = tuple[list[Any], list[Tensor | None], str, str]  # results, gradients, printed text, raised error


def run_program(text: str, drive: str, dtype: torch.dtype, training: bool, autocast: bool) -> Outcome:
    """The outcome of a program: its results, or the name of its exception."""
    module, world, printed = ModuleType("a_program"), World(dtype, training), io.StringIO()
    sys.modules["a_program"] = module
    results: list[Any] = []
    raised = ""
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(text, "a_program.py", "exec"), module.__dict__)
            names = {**vars(module), "NS": module, "torch": torch, "T": world.tensor, "C": world.constant}
            names |= {"B": world.boolean, "M": world.module}
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                torch.manual_seed(0)
                results = list(_flat(eval(drive, names)))
        except Exception as error:
            raised = type(error).__name__
    return results, _gradients(results, world.leaves), printed.getvalue(), raised


def _flat(result: object) -> Iterator[Any]:
    if isinstance(result, (list, tuple)) and not isinstance(result, torch.Size):
        for part in result:
            yield from _flat(part)
    else:
        yield result


def _gradients(results: list[Any], leaves: list[Tensor]) -> list[Tensor | None]:
    floats = [r for r in results if isinstance(r, Tensor) and r.is_floating_point() and r.requires_grad]
    if not floats or not leaves:
        return []
    loss = sum(
        (r.double() * torch.linspace(0.1, 1, r.numel(), dtype=torch.float64).view(r.shape)).sum() for r in floats
    )
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))  # type: ignore[arg-type]


def differences(before: str, after: str, drive: str) -> list[str]:
    """All differences between two texts when they run."""
    found = []
    for label, (dtype, training, autocast, tolerance) in RUNS.items():
        one = run_program(before, drive, dtype, training, autocast)
        other = run_program(after, drive, dtype, training, autocast)
        found += [f"{label}: {how}" for how in _differences_of_outcomes(one, other, tolerance)]
    return found


def _differences_of_outcomes(one: Outcome, other: Outcome, tolerance: float) -> Iterator[str]:
    if one[3] != other[3]:
        yield f"raises {one[3] or 'nothing'}, and then {other[3] or 'nothing'}"
        return
    if one[2] != other[2]:
        yield f"prints {one[2]!r}, and then {other[2]!r}"
    if len(one[0]) != len(other[0]):
        yield "gives another number of results"
    largest = max((float(g.abs().max()) for g in one[1] if g is not None), default=0.0)
    for what, pairs, scale, wider in (
        ("result", (one[0], other[0]), 0.0, 1),
        ("gradient", (one[1], other[1]), largest, 4),
    ):
        for a, b in zip(*pairs, strict=False):
            if (how := _difference_of_results(a, b, tolerance * (wider if tolerance > 1e-3 else 1), scale)) is not None:
                yield f"{what}: {how}"


def _difference_of_results(a: Any, b: Any, tolerance: float, least: float) -> str | None:
    """How two results differ; None if they agree.

    Numbers may differ by `tolerance` times the largest entry, or times `least` if that is greater.
    """
    if type(a) is not type(b):
        return f"{type(a).__name__}, and then {type(b).__name__}"
    if not isinstance(a, Tensor):
        return None if a == b else f"{a!r}, and then {b!r}"
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{a.dtype} {tuple(a.shape)}, and then {b.dtype} {tuple(b.shape)}"
    if not a.is_floating_point():
        return None if torch.equal(a, b) else "other numbers"
    a, b = a.detach().double(), b.detach().double()
    differ = (a != b) & ~a.isnan()
    apart = float((a - b)[differ].abs().nan_to_num(1e9).max()) if differ.any() else 0.0
    scale = max(least, 1e-3, float(a.nan_to_num(0, 0, 0).abs().max()) if a.numel() else 0.0)
    return None if apart <= tolerance * scale else f"apart by {apart:.3g}"


def assert_holds(program: Program) -> None:
    """Check the status and the message of a program, and that its safe edits change no behaviour."""
    told = program.findings()
    assert status_of(program) == program.expected, [(f.code, f.status, f.message) for f in told]
    assert not program.message or any(program.message in f.message for f in told), [f.message for f in told]
    base = run_program(program.before, program.drive, *RUNS["float64 train"][:3])
    assert not base[3], f"the program itself raises {base[3]}"
    after = rewritten(program.before, unsafe=False)
    assert (after != program.before) == (program.expected == "safe")
    assert not (found := differences(program.before, after, program.drive)), (found, after)
