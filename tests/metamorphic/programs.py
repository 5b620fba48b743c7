"""Programs: the examples of every rule and the spellings, as text that can be rewritten, loaded and run.

A program is a file whose `entry`, a class or a function, is called with the tensors that `kinds` names (GIVEN of the
spellings' harness, and the few below). Running one gives everything that a rewrite must keep: outputs, every gradient,
what the arguments hold afterwards, tensors left on the module, what was appended to SEEN, and what was printed.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import io
import itertools
import linecache
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.loading.examples import example_source
from autofuse.loading.registry import load_rules
from autofuse.rule import CallRule, Fused, Kept
from tests.spellings.harness import (
    DIM,
    GIVEN,
    HEAD_DIM,
    HEADS,
    LOOKALIKES,
    MASKS,
    SPELLED,
    Case,
    Maker,
    Spelling,
    example,
)
from tests.spellings.not_yet import NOT_YET

# What the examples' arguments are, where their names are not in GIVEN or mean something else there.
CLASSES = 7
SINGLE = 1e-5  # how far a file that computes in single precision itself is from doubles
OWN: dict[str, Callable[[Maker], Any]] = {
    "scores of classes": lambda m: m.normal(m.case.batch * m.case.length, CLASSES),
    "scores of x": lambda m: m.normal(m.case.batch, m.case.length, CLASSES),
    "classes": lambda m: torch.randint(0, CLASSES, (m.case.batch * m.case.length,), generator=m.generator),
    "classes of x": lambda m: torch.randint(0, CLASSES, (m.case.batch, m.case.length), generator=m.generator),
    "weights of targets": lambda m: torch.rand(m.case.batch * m.case.length, generator=m.generator) + 0.5,
    "weights of x": lambda m: torch.rand(m.case.batch, m.case.length, generator=m.generator) + 0.5,
    "angles": lambda m: m.normal(m.case.length, HEAD_DIM),
    "half the angles": lambda m: m.normal(m.case.length, HEAD_DIM // 2),
    "a sink of each head": lambda m: m.normal(HEADS),
    "turns": lambda m: torch.polar(torch.ones(m.case.length, HEAD_DIM // 2), m.normal(m.case.length, HEAD_DIM // 2)),
}
# What the arguments of a rule's examples are, where their names do not say it; by the rule's code, or for all of them.
KINDS: dict[str, dict[str, str]] = {
    "AF104": {"mask": "additive", "sinks": "a sink of each head"},
    "AF401": {"x": "q", "cos": "angles", "sin": "angles"},
    "AF402": {"x": "q", "cos": "angles", "sin": "angles", "freqs_cis": "turns"},
    "AF501": {"logits": "scores of classes", "target": "classes", "mask": "weights of targets"},
    "AF502": {
        "target": "classes of x",
        "hidden": "x",
        "labels": "classes of x",
        "mask": "weights of x",
        "teacher_logits": "scores of x",
        "teacher": "scores of x",
    },
}
# Examples of these rules call an operation that is never written by hand: the trace of a loop over experts has it.
NOT_WRITTEN = frozenset({"AF701"})
CONSTRUCTED_WITH = {"dim": DIM, "hidden": 2 * DIM, "classes": CLASSES}
CASE = Case(2, 4, 4)
_numbers = itertools.count()


@dataclass(frozen=True)
class Program:
    """`digits` says how far the file's constants are from the exact ones; `random` that dropout's rate is written out.

    `entry_points` can tell that `code` applies. `own` are the attributes of the class that the harness asks for.
    """

    name: str
    code: str
    text: str
    entry: str
    kinds: tuple[str, ...]
    entry_points: tuple[str, ...] = ("live", "text")
    digits: float = 0.0
    random: bool = False
    case: Case = field(default=CASE)

    def __str__(self) -> str:
        return self.name


@cache
def fused_examples() -> list[Program]:
    """The examples that rules fuse, without rules about single calls, and without examples that cannot be imported."""
    return [p for p in _of_examples(Fused) if _importable(p.text)]


@cache
def kept_examples() -> list[Program]:
    return [p for p in _of_examples(Kept) if _importable(p.text)]


def _of_examples(kind: type) -> Iterator[Program]:
    for rule in load_rules():
        if not issubclass(rule.rule, CallRule) and rule.rule.code not in NOT_WRITTEN:
            yield from (_of_example(rule.rule, e) for e in rule.rule.examples if type(e) is kind)


def _importable(text: str) -> bool:
    found = (n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.Import, ast.ImportFrom)))
    names = [n.module or "" if isinstance(n, ast.ImportFrom) else n.names[0].name for n in found]
    return all(importlib.util.find_spec(name.partition(".")[0]) for name in names)


@cache
def found_spellings() -> list[Program]:
    """The spellings that the codemod and the FX pass find, or at least one of them."""
    return [p for s in SPELLED if (p := _of_spelling(s)) and p.entry_points]


@cache
def lookalikes() -> list[Program]:
    return [p for s in LOOKALIKES if (p := _of_spelling(s))]


def _of_example(rule: Any, example: Any) -> Program:
    text = example_source(example)
    entry = next(n for n in reversed(ast.parse(text).body) if isinstance(n, (ast.ClassDef, ast.FunctionDef)))
    function = entry
    if isinstance(entry, ast.ClassDef):
        function = next(n for n in entry.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
    names = [a.arg for a in function.args.args if a.arg != "self"]
    kinds = tuple(KINDS.get(rule.code, {}).get(n, n) for n in names)
    if "cos" in names and "chunk(2" in text:
        kinds = tuple("half the angles" if k == "angles" else k for k in kinds)
    digits = SINGLE if ".float()" in text else 1e-7
    return Program(f"{rule.__name__}: {example.why}", rule.code, text, entry.name, kinds, digits=digits)


def _of_spelling(s: Spelling) -> Program | None:
    chosen, case = s.asks("arguments", {}), example(s)
    kinds = tuple(chosen.get(n, n) for n in s.parameters)
    gaps = {entry_point for entry_point, name in NOT_YET if name == s.name}
    entry_points = tuple(d for d in ("live", "text") if s.through(d) and d not in gaps)
    digits = 1e-7 + s.asks("digits", 0.0) + (SINGLE if s.single else 0.0)
    return Program(s.name, s.rule, s.text(), s.name, kinds, entry_points, digits, bool(s.asks("random")), case)


# Loading.


def load_text(text: str) -> ModuleType:
    """Load `text` as a module with source lines, like a file."""
    name = f"metamorphic_{next(_numbers)}"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except BaseException:
        forget(module)
        raise
    return module


def forget(module: ModuleType) -> None:
    sys.modules.pop(module.__name__, None)
    linecache.cache.pop(module.__file__ or "", None)


def instance(file: ModuleType, entry: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module of a program, with reproducible weights and zero dropout.

    A function becomes the forward of a module.
    """
    torch.manual_seed(0)
    found = getattr(file, entry)
    if isinstance(found, type):
        names = [
            n for n, p in inspect.signature(found).parameters.items() if n in CONSTRUCTED_WITH and p.default is p.empty
        ]
        module = found(**{n: CONSTRUCTED_WITH[n] for n in names})
    else:
        module = _as_module(file, entry)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    for parameter in module.parameters():
        if parameter.ndim == 1:  # weights of norms are ones and biases zeros: neither would show an error
            nn.init.uniform_(parameter, 0.5, 1.5)
    return module.to(dtype)


def _as_module(file: ModuleType, entry: str) -> nn.Module:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(getattr(file, entry)).parameters.values()
    given = ", ".join(f"x{i}" for i, p in enumerate(parameters) if p.kind in positional)
    space = {"nn": nn, "file": file}
    exec(f"class Model(nn.Module):\n    def forward(self, {given}):\n        return file.{entry}({given})", space)
    made = space["Model"]()
    assert isinstance(made, nn.Module)
    return made


# Running.


def arguments(program: Program, case: Case | None = None, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """The arguments, always the same: leaves that require gradients, and masks that do not."""
    case = case or program.case
    return tuple(_argument(i, k, case, dtype) for i, k in enumerate(program.kinds))


def _argument(index: int, kind: str, case: Case, dtype: torch.dtype) -> Any:
    made = (OWN.get(kind) or GIVEN[kind])(
        Maker(case, torch.Generator().manual_seed(zlib.crc32(f"{kind} {index}".encode())))
    )
    if not isinstance(made, Tensor) or not made.is_floating_point():
        return made
    made = made.to(dtype)
    return (
        made
        if kind in (*MASKS, "weights of targets", "weights of x", "angles", "half the angles")
        else made.requires_grad_()
    )


def run_module(file: ModuleType, module: nn.Module, given: tuple[Any, ...], training: bool) -> dict[str, Any]:
    """Everything that a caller can observe of one call."""
    seen = file.__dict__.setdefault("SEEN", [])
    seen.clear()
    module.train(training)
    for parameter in module.parameters():
        parameter.grad = None
    leaves = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in given]
    # no leaves themselves: a leaf that wants gradients cannot be written in place
    passed = [a * 1 if isinstance(a, Tensor) and a.requires_grad else a for a in leaves]
    torch.manual_seed(2)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = module(*passed)
    found: dict[str, Any] = dict(_all(result, "output"))
    found |= dict(_all(seen, "seen")) | {"printed": printed.getvalue()}
    found |= {f"argument {i} afterwards": a for i, a in enumerate(passed) if isinstance(a, Tensor)}
    for path, part in module.named_modules():
        kept = {n: v for n, v in vars(part).items() if isinstance(v, (Tensor, list)) and not n.startswith("_")}
        found |= {f"{path}.{n}{k}": v for n, t in kept.items() for k, v in _all(t, "")}
    found |= {f"buffer {i}": b for i, b in enumerate(module.buffers())}
    losses = [(t * _weights(t)).sum() for t in found.values() if isinstance(t, Tensor) and t.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    found |= {f"gradient of argument {i}": a.grad for i, a in enumerate(leaves) if isinstance(a, Tensor)}
    found |= {f"gradient of parameter {i}": p.grad for i, p in enumerate(module.parameters())}
    return {n: v.detach().clone() if isinstance(v, Tensor) else v for n, v in found.items()}


def _all(result: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every tensor of a result, and other values as their repr. A shape is a tuple."""
    if isinstance(result, (tuple, list)):
        yield f"length of {name}", len(result)
        for i, part in enumerate(result):
            yield from _all(part, f"{name}[{i}]")
    elif isinstance(result, dict):
        for key, part in result.items():
            yield from _all(part, f"{name}[{key!r}]")
    else:
        yield name, result if isinstance(result, Tensor) else repr(result)


def _weights(output: Tensor) -> Tensor:
    """Weights that differ for each entry, so that no gradient vanishes by symmetry."""
    return torch.linspace(0.5, 1, output.numel(), dtype=output.dtype).view_as(output)


def differences(expected: dict[str, Any], actual: dict[str, Any], digits: float) -> list[str]:
    """The differences beyond rounding in double, or beyond the error of constants with few `digits`."""
    numbers = [v for v in expected.values() if isinstance(v, Tensor) and v.is_floating_point() and v.numel()]
    largest = max((float(v.abs().max()) for v in numbers), default=1.0)
    bound = (1e-11 + digits) * max(largest, 1.0)
    found = [f"{n} is there in one only" for n in sorted(expected.keys() ^ actual.keys())]
    both = sorted(expected.keys() & actual.keys())
    return found + [d for n in both if (d := _difference(n, expected[n], actual[n], bound, digits >= SINGLE))]


def _difference(name: str, expected: Any, actual: Any, bound: float, loose: bool) -> str:
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        same = type(expected) is type(actual) and expected == actual
        return "" if same else f"{name}: {_text_of(expected)}, now {_text_of(actual)}"
    if loose and expected.is_floating_point() and actual.is_floating_point():
        actual = actual.to(expected.dtype)  # a file that goes to single precision itself is not about doubles
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return f"{name}: {expected.shape} of {expected.dtype}, now {actual.shape} of {actual.dtype}"
    if not expected.numel() or not expected.is_floating_point():
        return "" if torch.equal(expected, actual) else f"{name} differs"
    off = float((expected - actual).abs().nan_to_num(float("inf"), float("inf")).max())
    if off <= bound or torch.equal(expected.nan_to_num(), actual.nan_to_num()):
        return ""
    return f"{name} is off by {off:.1e}, allowed are {bound:.1e}"


def _text_of(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def has_nan(results: dict[str, Any]) -> bool:
    """Whether a row was masked out entirely with -inf. The fused operation may return another value there."""
    return any(isinstance(v, Tensor) and bool(v.isnan().any()) for v in results.values())
