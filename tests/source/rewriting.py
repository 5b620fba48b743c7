"""Helpers for the tests of the codemod: they rewrite a text, import it, and compare the results of two texts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor, nn

from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.find.check import proposals
from autofuse.source.targets import DEFAULT
from autofuse.source.write.file_edits import apply_proposals

ROUNDS = 12


def source(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def findings(text: str, target: str = DEFAULT) -> list[Finding]:
    """All findings in a text, including declined sites."""
    return [p.finding for p in proposals(source(text).encode(), "file.py", rules=load_rules(), target=target)]


def rewritten(text: str, unsafe: bool = True, target: str = DEFAULT) -> str:
    """The text after all edits. Rewriting is repeated until no edit is left."""
    return rewritten_bytes(source(text).encode(), unsafe, target).decode()


def rewritten_bytes(before: bytes, unsafe: bool = True, target: str = DEFAULT) -> bytes:
    wanted = ("safe", "unsafe") if unsafe else ("safe",)
    for _ in range(ROUNDS):
        found = proposals(before, "file.py", rules=load_rules(), target=target)
        edits = [p for p in found if p.edit is not None and p.finding.status in wanted]
        made = {p.finding for p in edits}
        edits = [p for p in edits if made.isdisjoint(p.waits_for)]
        if not edits:
            return before
        before = apply_proposals(before, edits)
    raise AssertionError(f"the text still changes after {ROUNDS} rewrites")


def module_of(text: str) -> ModuleType:
    module = ModuleType("rewritten")
    exec(compile(source(text), "rewritten.py", "exec"), module.__dict__)
    return module


def assert_same(before: str, after: str, name: str, inputs: Sequence[Tensor | None], *arguments: object) -> None:
    """Asserts that outputs and all gradients of class `name` agree, in training and evaluation.

    The tolerance is the float64 rounding of a few hundred additions, as in one attention or norm.
    """
    original, new = (getattr(module_of(t), name)(*arguments).double() for t in (before, after))
    new.load_state_dict(original.state_dict())
    for training in (True, False):
        results = [_results(m.train(training), inputs) for m in (original, new)]
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


def _results(module: nn.Module, inputs: Sequence[Tensor | None]) -> list[Tensor]:
    given = [x if x is None else x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    module.zero_grad()
    torch.manual_seed(0)
    output = module(*given)
    (output * torch.linspace(0, 1, output.numel(), dtype=output.dtype).view_as(output)).sum().backward()
    leaves = [*(x for x in given if x is not None and x.requires_grad), *module.parameters()]
    return [output, *(x.grad for x in leaves if x.grad is not None)]
