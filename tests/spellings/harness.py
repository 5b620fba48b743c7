"""Shared by the spelling suites: the list of classes, the arguments of their forward, and the comparison of modules.

A spelling is a class in one of the files of this folder. The names of forward's parameters determine the arguments
(GIVEN), and class attributes state what is expected:

    rule         the code of the rule that must fuse it (default: the file's `rule`, then "AF101")
    sites        the number of sites in the model (default: 1)
    also         other codes that may be fused in it
    safety       "unsafe" if the text can only be rewritten with assumptions
    arguments    parameter -> entry of GIVEN, if the name does not determine it
    cross        also run it with another number of keys than queries
    fills        its masks fill with a finite number: a row that keeps no key must still attend evenly
    digits       the relative error of its constants
    random       its dropout rate is a literal: in training, only averages can be compared
    numbers_only a look-alike that may be fused if the results stay the same
    softmax_alone  a look-alike of attention whose masked softmax may be fused (AF102) if the results stay the same
    fuses        codes that only the FX pass may fuse in a look-alike
    entry_points "live" (the FX pass) or "text" (the codemod), if only one of them can find it

A class with a parameter `p` in `__init__` has dropout of that rate. Names with an underscore are parts of spellings.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import math
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.spellings.not_yet import NOT_YET

HERE = Path(__file__).parent
BY_NIGHT = HERE / "by_night.txt"  # written by `python -m tools.spellings`
HEADS, HEAD_DIM = 3, 8
DIM = HEADS * HEAD_DIM
CLASSES = 11
LIMIT = 16  # the longest sequence that the causal buffers of the spellings hold
_numbers = itertools.count()


def module_at(path: Path) -> ModuleType:
    """Import the file at `path`."""
    spec = importlib.util.spec_from_file_location(f"spelled_{path.stem}_{next(_numbers)}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that its classes can be pickled, and their source found
    spec.loader.exec_module(module)
    return module


@cache
def _file(path: Path) -> ModuleType:
    return module_at(path)


@dataclass(frozen=True)
class Spelling:
    path: Path
    name: str

    @property
    def cls(self) -> type[nn.Module]:
        found = getattr(_file(self.path), self.name)
        assert isinstance(found, type)
        return found

    def asks(self, what: str, otherwise: Any = None) -> Any:
        return getattr(self.cls, what, otherwise)

    @property
    def rule(self) -> str:
        return str(self.asks("rule", getattr(_file(self.path), "rule", "AF101")))

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return {n: p for n, p in inspect.signature(self.cls.forward).parameters.items() if n != "self"}

    def through(self, entry_point: str) -> bool:
        return entry_point in self.asks("entry_points", ("live", "text"))

    @property
    def optional(self) -> bool:
        return any(p.default is not p.empty for p in self.parameters.values())

    @property
    def single(self) -> bool:
        """Whether the code itself casts to single precision."""
        return any(word in self.text() for word in ("float32", ".float()"))

    @property
    def drops(self) -> bool:
        return "p" in inspect.signature(self.cls).parameters and "drop" in _own_text(self.path, self.name).lower()

    def module(
        self, cls: type[nn.Module] | None = None, dtype: torch.dtype = torch.float32, p: float = 0.0
    ) -> nn.Module:
        """An instance with reproducible weights."""
        torch.manual_seed(0)
        made = (cls or self.cls)(**({"p": p} if p and self.drops else {}))
        for parameter in made.parameters():
            if parameter.ndim == 1:  # norms have weights of one and biases of zero, which would hide errors
                nn.init.uniform_(parameter, 0.5, 1.5)
        return made.to(dtype)

    def text(self) -> str:
        """A file with this class and what it uses."""
        return _extract(self.path, self.name)


@cache
def spellings(*files: str) -> tuple[Spelling, ...]:
    """Every spelling in the named files of this folder."""
    return tuple(s for f in files for s in _spellings(HERE / f"{f}.py"))


def _spellings(path: Path) -> Iterator[Spelling]:
    for node in ast.parse(path.read_text()).body:
        methods = {n.name for n in getattr(node, "body", ()) if isinstance(n, ast.FunctionDef)}
        if isinstance(node, ast.ClassDef) and "forward" in methods and not node.name.startswith("_"):
            yield Spelling(path, node.name)


def family(s: Spelling) -> tuple[str, str]:
    """The file of a spelling, and its rule."""
    return s.path.stem, s.rule


@cache
def by_night() -> frozenset[tuple[str, str]]:
    """(file, class) of the spellings that the default run leaves out. A new spelling runs by day."""
    return frozenset((file, name) for file, name in map(str.split, BY_NIGHT.read_text().splitlines()))


def each(wanted: tuple[Spelling, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("spelling", [pytest.param(s, id=s.name, marks=_night(s)) for s in wanted])


def each_but_not_yet(entry_point: str, wanted: tuple[Spelling, ...]) -> pytest.MarkDecorator:
    """Known gaps must fail. A gap that is closed must be removed from the table."""
    found = [pytest.param(s, id=s.name, marks=(*_night(s), *_gap(entry_point, s))) for s in wanted]
    return pytest.mark.parametrize("spelling", found)


def _night(s: Spelling) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.night,) if (s.path.stem, s.name) in by_night() else ()


def _gap(entry_point: str, s: Spelling) -> tuple[pytest.MarkDecorator, ...]:
    reason = NOT_YET.get((entry_point, s.name))
    return (pytest.mark.xfail(reason=reason, strict=True),) if reason else ()


@cache
def _extract(path: Path, name: str) -> str:
    """The file's text without the classes and functions that `name` does not need."""
    text, uses, places = _definitions(path)
    lines = text.splitlines(keepends=True)
    wanted, todo = set[str](), [name]
    while todo:
        current = todo.pop()
        if current in uses and current not in wanted:
            wanted.add(current)
            todo += uses[current]
    for defined, first, last in reversed(places):
        if defined not in wanted:
            del lines[first:last]
    return "".join(lines)


def _own_text(path: Path, name: str) -> str:
    """The lines of one class or function."""
    text, _, places = _definitions(path)
    return "".join("".join(text.splitlines(keepends=True)[first:last]) for d, first, last in places if d == name)


@cache
def _definitions(path: Path) -> tuple[str, dict[str, list[str]], list[tuple[str, int, int]]]:
    """The text of the file, and for each class and function, the names that it mentions and its lines."""
    text = path.read_text()
    defined = [n for n in ast.parse(text).body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
    uses = {d.name: [n.id for n in ast.walk(d) if isinstance(n, ast.Name)] for d in defined}
    return text, uses, [(d.name, d.lineno - 1, d.end_lineno or d.lineno) for d in defined]


@dataclass(frozen=True)
class Case:
    """Sizes of one call: `length` queries, `keys` keys."""

    batch: int
    length: int
    keys: int
    given: bool = True  # whether optional arguments are passed
    rows_dropped: bool = False  # whether masks drop some rows entirely
    small: bool = False  # whether inputs are small, so that eps matters

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}x{self.keys}{'' if self.given else ' without options'}"


def example(s: Spelling, given: bool = True) -> Case:
    return Case(2, 6, 4 if "context" in s.parameters else 6, given)


def cases(s: Spelling) -> list[Case]:
    """The example, then other sizes, with and without the optional arguments."""
    first = example(s)
    found = [first, Case(3, 5, 7 if "context" in s.parameters else 5)]
    if "rule" in vars(_file(s.path)) or s.rule == "AF202":  # norms: eps matters only for small inputs
        found.append(replace(first, small=True))
    if "context" in s.parameters or s.asks("cross"):
        found += [Case(2, 4, 7), Case(1, 5, 5)]
    if s.optional:
        found += [replace(c, given=False) for c in found[:2]]
    return found


def arguments(s: Spelling, case: Case, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """The arguments of forward, in order. Floating-point operands require gradients, and masks do not."""
    chosen = s.asks("arguments", {})
    required = [n for n, p in s.parameters.items() if case.given or p.default is p.empty]
    return tuple(_argument(n, chosen.get(n, n), case, dtype) for n in required)


def _argument(name: str, kind: str, case: Case, dtype: torch.dtype) -> Any:
    made = GIVEN[kind](Maker(case, torch.Generator().manual_seed(zlib.crc32(name.encode()))))
    if not isinstance(made, Tensor) or not made.is_floating_point():
        return made
    if kind in MASKS:
        return made.to(dtype)
    return (made * (1e-2 if case.small else 1.0)).to(dtype).requires_grad_()


@dataclass(frozen=True)
class Maker:
    case: Case
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def classes(self, *shape: int) -> Tensor:
        """Class indices in which every class occurs, if there are enough rows."""
        drawn = torch.randperm(CLASSES * max(shape), generator=self.generator)[: math.prod(shape)]
        return drawn.reshape(shape) % CLASSES

    def keep(self, *shape: int) -> Tensor:
        """True where kept. The first key is always kept, unless the case drops a whole row."""
        kept = torch.rand(*shape, generator=self.generator) > 0.4
        kept[..., 0] = True
        if self.case.rows_dropped:
            kept[(0, ..., 1, slice(None)) if kept.ndim > 2 else 1] = False
        return kept

    def padding(self) -> Tensor:
        """(batch, keys): False for the padding at the end."""
        b, s = self.case.batch, self.case.keys
        kept = torch.arange(s)[None, :] < (s - torch.arange(b) % 3)[:, None]
        if self.case.rows_dropped:
            kept[0] = False
        return kept

    @property
    def rows(self) -> tuple[int, int, int, int]:
        return self.case.batch, 1, self.case.length, self.case.keys


def _of_rows(m: Maker) -> Tensor:
    return m.keep(*m.rows)


def _additive(m: Maker) -> Tensor:
    return torch.zeros(m.rows).masked_fill(~_of_rows(m), float("-inf"))


GIVEN: dict[str, Callable[[Maker], Any]] = {
    # operands: with a dimension of heads, without one, with one head, and hidden states
    "q": lambda m: m.normal(m.case.batch, HEADS, m.case.length, HEAD_DIM),
    "k": lambda m: m.normal(m.case.batch, HEADS, m.case.keys, HEAD_DIM),
    "v": lambda m: m.normal(m.case.batch, HEADS, m.case.keys, HEAD_DIM),
    "k_t": lambda m: m.normal(m.case.batch, HEADS, HEAD_DIM, m.case.keys),
    "wide_value": lambda m: m.normal(m.case.batch, HEADS, m.case.keys, HEAD_DIM + 4),
    "queries": lambda m: m.normal(m.case.batch, m.case.length, HEADS, HEAD_DIM),
    "keys": lambda m: m.normal(m.case.batch, m.case.keys, HEADS, HEAD_DIM),
    "values": lambda m: m.normal(m.case.batch, m.case.keys, HEADS, HEAD_DIM),
    "query": lambda m: m.normal(m.case.batch, m.case.length, DIM),
    "key": lambda m: m.normal(m.case.batch, m.case.keys, DIM),
    "value": lambda m: m.normal(m.case.batch, m.case.keys, DIM),
    "matrix": lambda m: m.normal(m.case.length, HEAD_DIM),
    "x": lambda m: m.normal(m.case.batch, m.case.length, DIM),
    "y": lambda m: m.normal(m.case.batch, m.case.length, DIM),
    "src": lambda m: m.normal(m.case.batch, m.case.length, DIM),
    "residual": lambda m: m.normal(m.case.batch, m.case.length, DIM),
    "context": lambda m: m.normal(m.case.batch, m.case.keys, DIM),
    "fixed_x": lambda m: m.normal(m.case.batch, 4, DIM),
    "matrix_positions": lambda m: m.normal(m.case.length, DIM),
    "bias": lambda m: m.normal(1, HEADS, m.case.length, m.case.keys),
    # losses: (rows, classes) and a class for each row, unless the name differs
    "logits": lambda m: m.normal(m.case.batch * m.case.length, CLASSES),
    "logits_3d": lambda m: m.normal(m.case.batch, m.case.length, CLASSES),
    "logits_classes_second": lambda m: m.normal(m.case.batch, CLASSES, m.case.length),
    "soft_targets": lambda m: m.normal(m.case.batch * m.case.length, CLASSES).softmax(-1),
    "target": lambda m: m.classes(m.case.batch * m.case.length),
    "target_2d": lambda m: m.classes(m.case.batch, m.case.length),
    "row_indices": lambda m: torch.arange(CLASSES) % m.case.batch,
    # angles of rotary embeddings: (length, head_dim), unless the name differs
    **{n: lambda m: m.normal(m.case.length, HEAD_DIM) for n in ("cos", "sin")},
    **{f"{n}_half": lambda m: m.normal(m.case.length, HEAD_DIM // 2) for n in ("cos", "sin")},
    **{f"{n}_part": lambda m: m.normal(m.case.length, HEAD_DIM - 2) for n in ("cos", "sin")},
    **{f"{n}_rows": lambda m: m.normal(m.case.length, 1, HEAD_DIM) for n in ("cos", "sin")},
    **{f"{n}_batch": lambda m: m.normal(m.case.batch, m.case.length, HEAD_DIM) for n in ("cos", "sin")},
    "freqs_pairs": lambda m: m.normal(m.case.length, HEAD_DIM // 2, 2),
    "freqs_cis": lambda m: torch.view_as_complex(m.normal(m.case.length, HEAD_DIM // 2, 2)),
    "q_even": lambda m: m.normal(m.case.batch, HEADS, 6, HEAD_DIM),
    "q_of_six": lambda m: m.normal(m.case.batch, HEADS, m.case.length, 6),
    "key_factor": lambda m: m.normal(m.case.batch, 1, 1, m.case.keys).exp(),
    # masks of kept or dropped entries: (batch, 1, queries, keys), unless the name differs
    "mask": lambda m: _of_rows(m).float(),
    "keep": _of_rows,
    "drop": lambda m: ~_of_rows(m),
    "keep_int": lambda m: _of_rows(m).int(),
    "drop_int": lambda m: (~_of_rows(m)).int(),
    "keep_rows_dropped": lambda m: _of_rows(Maker(replace(m.case, rows_dropped=True), m.generator)),
    "mask_2d": lambda m: m.keep(m.case.length, m.case.keys),
    "mask_3d": lambda m: m.keep(m.case.batch, m.case.length, m.case.keys),
    "padding": lambda m: m.padding().int(),
    "padding_4d": lambda m: m.padding()[:, None, None, :].float(),
    "drop_padding_4d": lambda m: ~m.padding()[:, None, None, :],
    "key_padding_mask": lambda m: ~m.padding(),
    "additive": _additive,
    "additive_3d": lambda m: _additive(m)[:, 0],
    "attention_mask": lambda m: m.padding()[:, None, None, :].logical_not().float() * -1e4,
    "extended": lambda m: m.padding()[:, None, None, :].logical_not().float() * -1e4,
    "drop_windows": lambda m: m.keep(1, m.case.length, m.case.keys).logical_not().float() * -100.0,
    "causal_bias": lambda m: torch.full((LIMIT, LIMIT), float("-inf")).triu(1),
    # flags
    "output_attentions": lambda m: True,
}
MASKS = frozenset(n for n in GIVEN if list(GIVEN).index(n) >= list(GIVEN).index("mask"))


def results(module: nn.Module, args: tuple[Any, ...], training: bool, seed: int = 2) -> dict[str, Tensor]:
    """The outputs, and the gradients of a weighted sum of them, by name."""
    wanted = {f"argument {i}": a for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad}
    wanted |= dict(module.named_parameters())
    for tensor in wanted.values():
        tensor.grad = None
    torch.manual_seed(seed)
    outputs = dict(_tensors(module.train(training)(*args), "output"))
    losses = [(o * _weights_for(o)).sum() for o in outputs.values() if o.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    gradients = {f"gradient of {n}": t.grad for n, t in wanted.items() if t.grad is not None}
    return {n: t.detach().clone() for n, t in (outputs | gradients).items()}


def _weights_for(output: Tensor) -> Tensor:
    """Weights that differ for each entry, so that no gradient vanishes by symmetry."""
    return torch.linspace(0.5, 1, output.numel(), dtype=output.dtype).view_as(output)


def _tensors(result: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(result, Tensor):
        yield name, result
    elif isinstance(result, (tuple, list)):
        for i, part in enumerate(result):
            yield from _tensors(part, f"{name}[{i}]")
    elif isinstance(result, dict):
        for key, part in result.items():
            yield from _tensors(part, f"{name}[{key!r}]")
    else:
        assert result is None


def double(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same numbers in float64."""
    return tuple(
        a.detach().double().requires_grad_(a.requires_grad) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in args
    )


def assert_as_exact(
    s: Spelling, truth: dict[str, Tensor], original: dict[str, Tensor], fused: dict[str, Tensor], where: str
) -> None:
    """Check that the error of the fused results is at most a small multiple of the original's error.

    Against the original in float64. Four times its own error, which is one draw of a random quantity; sixteen units
    in the last place of the largest entry, for where the original happens to be exact; and one unit of the largest
    number of the run, for gradients of queries and keys are small differences of numbers as large as that. A spelling
    whose constants are rounded may differ by that rounding.
    """
    largest = max(float(t.abs().max()) for t in truth.values() if t.numel())
    assert original.keys() == fused.keys(), (where, original.keys() ^ fused.keys())
    for name, exact in truth.items():
        assert fused[name].shape == original[name].shape, (where, name)
        assert fused[name].dtype == original[name].dtype, (where, name, original[name].dtype, fused[name].dtype)
        if not exact.numel():
            continue
        size = float(exact.abs().max())
        own, new = (float((r[name].double() - exact).abs().max()) for r in (original, fused))
        unit = torch.finfo(original[name].dtype).eps
        bound = 4 * own + (16 * unit + s.asks("digits", 0.0)) * size + unit * largest
        assert new <= bound, f"{where}: {name} is off by {new:.2e}; the original by {own:.2e}, allowed are {bound:.2e}"


def assert_same_on_average(original: nn.Module, fused: nn.Module, args: tuple[Any, ...], runs: int = 300) -> None:
    """Two modules with dropout draw from the same distribution: equal means, and equal variances over all.

    Means may differ by six standard errors, an event of 1e-9 each. The variance of `runs` draws is known to about
    sqrt(2 / runs) = 8 % for one entry, and better over all.
    """
    with torch.no_grad():
        samples = [_samples(m, args, runs, seed) for seed, m in enumerate((original, fused))]
    means, spreads = [s.mean(0) for s in samples], [s.var(0) for s in samples]
    error = ((spreads[0] + spreads[1]) / runs).sqrt()
    assert ((means[0] - means[1]).abs() <= 6 * error + 1e-5).all(), "the means differ"
    assert float(spreads[0].sum()) > 0, "the original dropped nothing"
    assert 0.75 < float(spreads[1].sum() / spreads[0].sum()) < 1.33, "the variances differ"


def _samples(module: nn.Module, args: tuple[Any, ...], runs: int, seed: int) -> Tensor:
    torch.manual_seed(seed)
    module.train()
    return torch.stack([torch.cat([t.flatten() for _, t in _tensors(module(*args), "")]) for _ in range(runs)]).double()


def functions_called_by(run: Callable[[], object]) -> set[tuple[str, str]]:
    """(name, file) of every function that `run` calls. Builtins have no file."""
    found = set[tuple[str, str]]()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            found.add((frame.f_code.co_name, frame.f_code.co_filename))
        elif event == "c_call":
            found.add((argument.__name__, ""))

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


SPELLED = spellings(
    *(f"attention_{part}" for part in ("scale", "layout", "packed", "masks", "softmax", "modules", "unusual", "wild")),
    *("norms", "residual", "mlp", "losses", "distributions", "rotary", "softmax"),
)
LOOKALIKES = spellings(*(f"lookalikes_{part}" for part in ("attention", "other", "losses", "distributions", "rotary")))
