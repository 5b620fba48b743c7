"""Composes transformations, runs programs through the codemod and the FX pass, and compares the results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import autofuse
from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.find.check import proposals
from tests.metamorphic import changing, naming, spelling, structure, temporaries, typesetting
from tests.metamorphic.draft import Draft
from tests.metamorphic.programs import Program, arguments, differences, forget, instance, load_text, run_module
from tests.source.rewriting import rewritten_bytes

PRESERVING = (*naming.ALL, *temporaries.ALL, *spelling.ALL, *structure.ALL)
CHANGING = changing.ALL
TYPESETTING = typesetting.ALL
Step = tuple[Callable[..., Any], int]  # a transformation, and which of its places
TIMES = float(os.environ.get("AUTOFUSE_METAMORPHIC", "1"))  # how often the usual number of programs

_PLACE = st.integers(0, 200)


def steps(among: Sequence[Callable[..., Any]], least: int, most: int) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.tuples(st.sampled_from(among), _PLACE), min_size=least, max_size=most)


def each_of(count: int, *strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Run a check on `count` times AUTOFUSE_METAMORPHIC drawn programs.

    Without the variable, they are always the same.
    """
    chosen = settings(
        max_examples=max(1, round(count * TIMES)), deadline=None, database=None, derandomize=TIMES <= 1,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    return lambda check: chosen(given(*strategies)(check))  # type: ignore[return-value]


def rewritten(program: Program, wanted: Sequence[Step], layout: Sequence[Step] = ()) -> str:
    """The text of a program after the steps `wanted`, then `layout`. Steps that do not apply are skipped."""
    text = program.text
    for transformation, place in wanted:
        draft = Draft(program, text)
        if changes := list(transformation(draft)):
            changes[place % len(changes)]()
            text = _sound(draft.source(), transformation)
    for transformation, place in layout:
        if rewrites := list(transformation(text)):
            text = _sound(rewrites[place % len(rewrites)](), transformation)
    return text


def _sound(text: str, transformation: Callable[..., Any]) -> str:
    compile(text, transformation.__name__, "exec")
    return text


@dataclass
class Outcome:
    """The results of a text in training and in evaluation; `error` if it cannot run."""

    program: Program
    results: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""

    def off(self, other: Outcome) -> list[str]:
        """The differences of `other` beyond rounding."""
        if other.error:
            return [other.error]
        pairs = zip(self.results, other.results, strict=True)
        return sorted({d for a, b in pairs for d in differences(a, b, self.program.digits)})


def outcome(program: Program, text: str) -> Outcome:
    """Run `text`."""
    file = None
    try:
        file = load_text(text)
        return _run(program, file, instance(file, program.entry))
    except Exception as error:
        return Outcome(program, error=f"{type(error).__name__}: {error}")
    finally:
        if file is not None:
            forget(file)


def _run(program: Program, file: Any, module: nn.Module) -> Outcome:
    modes = (False,) if program.random else (True, False)
    return Outcome(program, [run_module(file, module, arguments(program), mode) for mode in modes])


@cache
def original(program: Program) -> Outcome:
    return outcome(program, program.text)


@dataclass
class Live:
    """The result of optimize for a text: the reported sites, and the differences from the original's results."""

    sites: tuple[Any, ...]
    report: str
    off: list[str]
    outcome: Outcome


def live(program: Program, text: str) -> Live:
    file = load_text(text)
    try:
        module = instance(file, program.entry)
        expected = _run(program, file, instance(file, program.entry))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fused = autofuse.optimize(module.train(), arguments(program))
        report = autofuse.report(fused)
        now = _run(program, file, fused)
        return Live(tuple(report.sites), str(report), expected.off(now), now)
    finally:
        forget(file)


def through_text(text: str, unsafe: bool = True) -> tuple[str, list[Finding]]:
    """The text after all edits, repeated until none is left, and the findings of the first run."""
    found = proposals(text.encode(), "model.py", rules=load_rules())
    return rewritten_bytes(text.encode(), unsafe).decode(), [p.finding for p in found]


def text_of_findings(found: Sequence[Finding]) -> str:
    return "\n".join(f"{f.code} line {f.line}, {f.status}: {f.message}" for f in found)
