"""Random functions of tensors, with every kind of statement around and inside attention.

All tensors are (2, 3, 4, 4), so every product and transpose has matching shapes. A program is a text; `run` executes it.
"""
# ruff: noqa: E501 (programs in consecutive lines are easier to compare)

from __future__ import annotations

import math
from random import Random
from types import ModuleType

import torch

HEAD = """\
import contextlib
import math
import torch
import torch.nn.functional as F
from torch import nn

LOG = []
KEPT = None


"""
_SOFTMAX = ["{0}.softmax(-1)", "torch.softmax({0}, dim=-1)", "F.softmax({0}, -1)", "nn.Softmax(dim=-1)({0})"]
_SCORES = [
    "{0} @ {1}.transpose(-2, -1)", "torch.matmul({0}, {1}.mT)", "torch.einsum('bhqd,bhkd->bhqk', {0}, {1})",
    "torch.matmul({0} * 0.5, {1}.transpose(2, 3))", "({0} @ {1}.mT) / math.sqrt({0}.size(-1))",
]  # fmt: skip
_STEPS = [
    "{0} * 0.5", "{0} / 2.0", "{0} + mask", "{0}.masked_fill(keep == 0, float('-inf'))", "F.dropout({0}, 0.0, flag)",
    "{0}.to(query.dtype)", "torch.where(keep, {0}, -1e9)", "{0} - {0}.amax(-1, keepdim=True)",
]  # fmt: skip
_OTHER = [
    "0.5 * {0} * (1 + torch.erf({0} / math.sqrt(2)))", "{0} * torch.sigmoid({0})", "{0} + {1}", "{0} * {1}",
    "({0} - {0}.mean(-1, keepdim=True)) / torch.sqrt({0}.var(-1, keepdim=True, unbiased=False) + 1e-5)",
    "{0} * torch.rsqrt({0}.pow(2).mean(-1, keepdim=True) + 1e-6)", "({1} if flag else {0})", "torch.tanh({0})",
    "sum([{0}, {1}])", "max([{0}, {1}], key=id_of)", "(lambda a, /, *, b={1}: a + b)({0})", "{0}.clone()",
    "[t * 2 for t in ({0}, {1})][0]", "torch.stack([{0}, {1}]).sum(0)", "({0})", "(\n        {0}  # inner\n        + {1}\n    )",
    "{0} + torch.zeros_like({1}).detach()", "(KEPT if KEPT is not None else {0})", "torch.exp({0} - {0}.exp().sum(-1, True).log())",
]  # fmt: skip


class Program:
    """Writes one function, statement by statement. `names` always hold a tensor."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.names, self.made, self.depth = rng, ["query", "key", "value"], 0, 0

    def text(self) -> str:
        body = [line for _ in range(self.rng.randint(3, 9)) for line in self.statement()]
        results = ", ".join(self.rng.sample(self.names, min(len(self.names), self.rng.randint(1, 3))))
        declared = ["    global KEPT"] if any("KEPT =" in line for line in body) else []
        doc = ['    """A docstring."""'] if self.rng.random() < 0.3 else []
        return "\n".join(
            [
                HEAD + "id_of = lambda t: 0\n\n",
                self.signature(),
                *doc,
                *declared,
                *self.indented(body),
                f"    return {results}",
                "",
            ]
        )

    def signature(self) -> str:
        return self.rng.choice(
            [
                "def attend(query, key, value, mask, keep, flag=False):",
                "def attend(query, key, value, /, mask, keep, *, flag=False):",
                "@contextlib.nullcontext().__class__.__call__ if False else (lambda f: f)\ndef attend(query, key, value, mask, keep, flag=False):  # head",
                "def attend(query, key, value, mask, keep, flag=False, *rest, **options):",
            ]
        )

    def name(self) -> str:
        return self.rng.choice(self.names)

    def fresh(self) -> str:
        if self.rng.random() < 0.4 and len(self.names) > 3:
            return self.rng.choice(self.names[3:])
        self.made += 1
        return f"x{self.made}"

    def indented(self, lines: list[str], by: str = "    ") -> list[str]:
        return [by + line for line in lines]

    def expression(self) -> str:
        kind = self.rng.random()
        if kind < 0.35:
            return self.attention()
        return self.rng.choice(_OTHER).format(self.name(), self.name())

    def attention(self) -> str:
        scores = f"({self.rng.choice(_SCORES).format(self.name(), self.name())})"
        for _ in range(self.rng.randint(0, 2)):
            scores = f"({self.rng.choice(_STEPS).format(scores)})"
        return f"{self.rng.choice(_SOFTMAX).format(scores)} @ {self.name()}"

    def comment(self) -> str:
        return self.rng.choice(["", "", "", "  # note", "  # type: ignore", "  # noqa"])

    def statement(self) -> list[str]:
        simple = [self.assign, self.assign, self.steps, self.steps, self.steps, self.other]
        if self.depth > 2:
            return self.rng.choice(simple)()
        return self.rng.choice([*simple, self.branch, self.loop, self.context, self.definition])()

    def assign(self) -> list[str]:
        form = self.rng.choice(
            ["{0} = {1}", "{0} = {1}", "{0} = {2} = {1}", "{0}, {2} = {1}, {3}", "({0} := {1})", "{0}: object = {1}"]
        )
        value, other = self.expression(), self.name()
        first, second = self.fresh(), self.fresh()
        if "{2}" in form and first == second:
            form = "{0} = {1}"
        line = form.format(first, value, second, other)
        self.names += [n for n in ([first, second] if "{2}" in form else [first]) if n not in self.names]
        return [line + self.comment()]

    def steps(self) -> list[str]:
        """Attention in several statements, with other statements between them."""
        scores, rng = self.fresh(), self.rng
        lines = [f"{scores} = {rng.choice(_SCORES).format(self.name(), self.name())}{self.comment()}"]
        self.names += [scores] if scores not in self.names else []
        for _ in range(rng.randint(0, 3)):
            lines += self.step(scores)
        lines.append(f"{scores} = {rng.choice(_SOFTMAX).format(scores)}{self.comment()}")
        if rng.random() < 0.3:
            lines += self.step(scores)
        out = rng.choice([scores, self.fresh()])
        lines.append(
            rng.choice([f"{out} = {scores} @ {self.name()}", f"{out} = torch.matmul({scores}, {self.name()})"])
        )
        self.names += [out] if out not in self.names else []
        if rng.random() < 0.5 and out != scores:
            self.names.remove(scores)
            lines += [f"del {scores}"] if rng.random() < 0.3 else []
        return lines

    def step(self, scores: str) -> list[str]:
        step = self.rng.choice(_STEPS).format(scores)
        return self.rng.choice(
            [
                [f"{scores} = {step}{self.comment()}"],
                [f"if flag: {scores} = {step}"],
                ["# about the next step", f"if mask is not None:{self.comment()}", f"    {scores} = {step}"],
                [f"{scores} = {step} if flag else {scores}"],
                [f"{scores} = {step}; y = 1"],
                [f"{scores} = \\", f"    {step}"],
                ["", f"{scores} *= 0.5"],
                [f"{scores} += mask"],
                self.other(),
                self.other() if self.depth > 1 else self.nested(self.branch),
            ]
        )

    def nested(self, what: object) -> list[str]:
        return what() if callable(what) else []

    def other(self) -> list[str]:
        name, other = self.name(), self.name()
        options = [
            ["pass"], [f"LOG.append({name})"], [f"assert {name} is not None, 'no'"], [f"KEPT = {name}"], ["# a comment"],
            ["# fmt: off", "z  =  1", "# fmt: on"], [f"print({name}.sum(), file=None) if False else None"],
            [f"first, *others = {name}, {other}, 3"], [f"holder = {{'a': {name}, **{{'b': {other}}}}}"],
            [f"'text'; {name}.shape;"], [f"f'{{{name}.sum():.3f}} {{flag!r}}'"], ["import math as m"],
        ]  # fmt: skip
        if name not in ("query", "key", "value"):
            options += [[f"{name} = {name}.clone()", f"{name}[0] = 0.5"], [f"{name} = {name} + 0", f"{name}.mul_(0.5)"]]
            options += [[f"{name} = {name}.contiguous()"], [f"{name} = {name} * 1", f"{name} -= {other}"]]
        return self.rng.choice(options)

    def block(self, count: int = 3) -> list[str]:
        """The statements of a block. Names that only the block binds are unknown after it."""
        names, self.depth = list(self.names), self.depth + 1
        lines = [line for _ in range(self.rng.randint(1, count)) for line in self.statement()]
        deleted = [n for n in names if f"del {n}" in lines]
        self.names, self.depth = [n for n in names if n not in deleted], self.depth - 1
        lines = [line for line in lines if not line.startswith("del ")] if deleted else lines
        self.names += [n for n in deleted if n not in self.names]
        return self.indented(
            lines if any(line.strip() and not line.strip().startswith("#") for line in lines) else [*lines, "pass"]
        )

    def branch(self) -> list[str]:
        test = self.rng.choice(
            ["flag", "not flag", "mask is not None", "mask is None", f"{self.name()}.sum() > 0", "math.pi > 3"]
        )
        lines = [f"if {test}:{self.comment()}", *self.block()]
        if self.rng.random() < 0.3:
            lines += [f"elif {self.rng.choice(['flag', 'keep is None'])}:", *self.block(1)]
        if self.rng.random() < 0.4:
            lines += [f"else:{self.comment()}", *self.block(2)]
        if self.rng.random() < 0.1:
            return [
                "match flag:",
                "    case True:",
                *self.indented(self.block(2)),
                "    case _:",
                *self.indented(self.block(1)),
            ]
        return lines

    def loop(self) -> list[str]:
        head = self.rng.choice(
            ["for step in range(2):", "for step in (1, 2):", "while flag:", "for name, flag in [('a', flag)]:"]
        )
        end = ["    break"] if head.startswith("while") else []
        otherwise = ["else:", *self.block(1)] if self.rng.random() < 0.2 else []
        stop = ["    if flag:", "        continue"] if not end and self.rng.random() < 0.2 else []
        return [head, *stop, *self.block(), *end, *otherwise]

    def context(self) -> list[str]:
        if self.rng.random() < 0.5:
            manager = self.rng.choice(
                [
                    "contextlib.nullcontext()",
                    "torch.no_grad()",
                    "torch.enable_grad()",
                    "contextlib.suppress(KeyError) as s",
                ]
            )
            return [f"with {manager}:{self.comment()}", *self.block()]
        handler = self.rng.choice(["except KeyError as error:", "except (ValueError, TypeError):", "except* OSError:"])
        lines = ["try:", *self.block(), handler, *self.block(1)]
        return [*lines, *(["finally:", *self.block(1)] if self.rng.random() < 0.4 else [])]

    def definition(self) -> list[str]:
        made, name = self.fresh(), self.name()
        inner = self.rng.choice(
            [
                ["def inner(t, scale=0.5):", f"    return t * scale + {name}", f"{made} = inner({self.name()})"],
                [f"inner = lambda: {name}", f"{made} = inner() * 1"],
                ["class Local:", f"    held = {name}", f"{made} = Local.held * 2"],
                [
                    "def inner(t):",
                    f"    nonlocal {name}",
                    f"    {name} = t * 2",
                    f"    return {name}",
                    f"{made} = inner({self.name()})",
                ],
                ["async def inner(): ...", f"{made} = {name}"],
                ["def inner():", f"    yield {name}", f"    yield from [{name}]", f"{made} = next(inner())"],
            ]
        )
        self.names += [made] if made not in self.names else []
        return inner


def program(rng: Random) -> str:
    """The text of one module with the function `attend`."""
    return Program(rng).text()


def run(text: str, flag: bool, with_mask: bool) -> list[torch.Tensor] | str:
    """All results of `attend` and the gradients of its operands, or the name of its exception."""
    made = ModuleType("program")
    generator = torch.Generator().manual_seed(7)
    given = [torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]
    mask = torch.randn(4, 4, dtype=torch.float64, generator=generator) if with_mask else None
    keep = torch.ones(4, 4, dtype=torch.bool).tril()
    try:
        exec(compile(text, "program.py", "exec"), made.__dict__)
        found = made.attend(*given, mask, keep, flag=flag)
        results = [t for t in (found if isinstance(found, tuple) else (found,)) if isinstance(t, torch.Tensor)]
        results += [t for t in made.LOG if isinstance(t, torch.Tensor)]
        loss = sum((t * torch.linspace(0, 1, t.numel(), dtype=t.dtype).view_as(t)).sum() for t in results)
        grads: list[torch.Tensor] = []
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            grads = [torch.zeros(()) if g is None else g for g in torch.autograd.grad(loss, given, allow_unused=True)]
        return [*(t.detach() for t in results), *grads]
    except Exception as error:
        return type(error).__name__


def close(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    """Whether results are equal up to the float64 rounding of a few hundred additions, relative to the largest entry."""
    return len(before) == len(after) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-10 * (1 + _largest(a)), equal_nan=True)
        for a, b in zip(before, after, strict=True)
    )


def _largest(t: torch.Tensor) -> float:
    largest = float(t.abs().nan_to_num().max()) if t.numel() else 0.0
    return largest if math.isfinite(largest) else 0.0
