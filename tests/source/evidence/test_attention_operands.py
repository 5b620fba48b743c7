"""An edit of an attention is safe if the text shows that torch's attention accepts the operands.

Programs with every rank and kind of operand run before and after their edits. A safe edit keeps the result for all
operands. An unsafe edit keeps it if its assumption holds, and changes it for one program that breaks the assumption.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.source.evidence.mixed_dtypes import difference, outcome
from tests.source.rewriting import findings, rewritten, source

PLAIN = "s = q @ k.transpose(-2, -1)\nreturn s.softmax(-1) @ v"
SCALED = "s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\nreturn s.softmax(-1) @ v"
ADDED = "s = q @ k.transpose(-2, -1) / 2 + m\nreturn s.softmax(-1) @ v"
FILLED = "s = (q @ k.transpose(-2, -1) / 2).masked_fill(m == 0, float('-inf'))\nreturn s.softmax(-1) @ v"
RANKS = "assumes that `q` and `v` have two dimensions or more"
MASK = "assumes that `m` has two dimensions or more, and no more dimensions than the scores"
ONE_DTYPE = "assumes that the query, the key and the value have one dtype"

# name -> the body of f(q, k, v, m), and the assumption of its edit
BODIES: dict[str, tuple[str, str]] = {
    "scaled by the root of the width": (SCALED, ""),
    "scaled by a number": ("s = q @ k.transpose(-2, -1) / 2\nreturn s.softmax(-1) @ v", RANKS),
    "a query scaled by a number": ("q = q * 0.5\nreturn (q @ k.transpose(-2, -1)).softmax(-1) @ v", "dimensions or"),
    "scaled, filled by a mask": (FILLED, MASK.replace("`m`", "the mask")),
    "scaled, filled by a mask in place": (FILLED.replace("masked_fill", "masked_fill_"), ""),
    "scaled, filled by a mask, beside four dimensions": (f"b, h, n, d = q.shape\n{FILLED}", ""),
    "dropped out": ("s = (q @ k.mT).softmax(-1)\nreturn F.dropout(s, 0.5, False) @ v", ""),
    "nothing but two products": (PLAIN, RANKS),
    "two products and a size of the query": (f"n = q.size(-2)\n{PLAIN}", "assumes that `v` has two dimensions or more"),
    "two products of four dimensions": (f"b, h, n, d = q.shape\nv = v.reshape(b, h, -1, d)\n{PLAIN}", ""),
    "two products whose values are transposed": (
        "v = v.transpose(-2, -1).transpose(-2, -1)\nn = q.shape[-2]\n" + PLAIN, ""
    ),
    "the query is taken apart": (f"n = v.size(1)\nq = q[:, :]\n{PLAIN}", ""),
    "keys that are a matrix": ("s = q @ k.t() / 2\nreturn s.softmax(-1) @ v", RANKS),
    "an added mask": (ADDED, MASK),
    "an added mask of two dimensions": (f"m = torch.zeros(q.size(-2), k.size(-2))\n{ADDED}", ""),
    "positions added, in the dtype of the query": (
        "p = torch.arange(q.size(-2))\nm = (p[None, :] - p[:, None]).to(q.dtype)\n" + ADDED, ""
    ),
    "a triangle of truth values added": (
        "m = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()\n" + ADDED, ""
    ),
    "a triangle of numbers added": ("m = torch.ones(q.size(-2), k.size(-2)).tril()\n" + ADDED, ""),
    "an added small mask beside four dimensions": (f"b, h, n, d = q.shape\nm = m.tanh()\n{ADDED}", ""),
    "an added mask, cast to float": (f"m = m.float()\n{ADDED}", MASK.replace("`m`", "`m.float()`")),
    "an added mask that is chosen": (
        "s = torch.where(m != 0, q @ k.transpose(-2, -1) / 2, float('-inf'))\nreturn s.softmax(-1) @ v",
        MASK.replace("`m`", "`m != 0`"),
    ),
    "weights in float32": (
        "p = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1, dtype=torch.float32)\nreturn p @ v",
        ONE_DTYPE,
    ),
    "weights cast back to the query": (
        "p = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1, dtype=torch.float32).to(q.dtype)\nreturn p @ v",
        "",
    ),
    "weights cast back to the scores": (
        "s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\np = s.float().softmax(-1).type_as(s)\nreturn p @ v", ""
    ),
    "weights cast to the value": (
        "s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\nreturn s.softmax(-1).to(v.dtype) @ v", ONE_DTYPE
    ),
}  # fmt: skip


def program(body: str, arguments: str = "q, k, v, m") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return source("import math\nimport torch\nimport torch.nn.functional as F\n\n\n") + f"def f({arguments}):\n{lines}"


def operands(kind: str) -> tuple[Tensor, ...]:
    """Returns (q, k, v, m) of one kind."""
    g = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    four = (rand(2, 3, 5, 4), rand(2, 3, 5, 4), rand(2, 3, 5, 4))
    flat = (rand(3, 5, 4), rand(3, 5, 4), rand(3, 5, 4))
    two = (rand(5, 4), rand(5, 4), rand(5, 4))
    lower = torch.ones(5, 5).tril()
    half = torch.bfloat16
    return {
        "four dimensions": (*four, lower.double()),
        "four dimensions, a mask of four": (*four, rand(2, 1, 5, 5)),
        "four dimensions, a mask of truth values": (*four, lower.bool()),
        "four dimensions, a mask of integers": (*four, lower.long()),
        "three dimensions": (*flat, lower.double()),
        "three dimensions, a mask of four": (*flat, rand(2, 3, 5, 5)),
        "matrices": (*two, lower.double()),
        "a vector for the query": (rand(4), *two[1:], lower[-1].double()),
        "a vector for the value": (*two[:2], rand(5), lower.double()),
        "heads of the query alone": (four[0], *two[1:], lower.double()),
        "bfloat16": (*(t.to(half) for t in four), lower.to(half)),
        "float32 and a mask of float64": (*(t.float() for t in four), lower.double()),
        "values of float32": (*(t.to(half) for t in four[:2]), four[2].float(), lower.to(half)),
        "queries of float32": (four[0].float(), four[1].float(), four[2].to(half), lower.to(half)),
    }[kind]


KINDS = (
    "four dimensions", "four dimensions, a mask of four", "four dimensions, a mask of truth values",
    "four dimensions, a mask of integers", "three dimensions", "three dimensions, a mask of four", "matrices",
    "a vector for the query", "a vector for the value", "heads of the query alone", "bfloat16",
    "float32 and a mask of float64", "values of float32", "queries of float32",
)  # fmt: skip


def run_on(kind: str, autocast: bool) -> Callable[[dict[str, object]], Tensor]:
    """Returns a function that calls `f`. Autocast does not affect float64, so operands are cast to float32 for it."""
    arguments = [t.float() if autocast and t.dtype is torch.float64 else t for t in operands(kind)]
    return lambda names: names["f"](*arguments)  # type: ignore[operator, no-any-return]


def difference_after(before: str, after: str, kind: str, autocast: bool = False) -> str:
    run = run_on(kind, autocast)
    rough = torch.bfloat16 if autocast or any(t.dtype is torch.bfloat16 for t in operands(kind)) else torch.float32
    return difference(outcome(before, run, autocast), outcome(after, run, autocast), rough)


@pytest.mark.parametrize("name", BODIES)
def test_an_edit_names_its_assumptions_about_operands(name: str) -> None:
    body, assumed = BODIES[name]
    (finding,) = findings(program(body))
    assert finding.status == ("unsafe" if assumed else "safe"), finding.message
    assert assumed in finding.message, finding.message


@pytest.mark.parametrize("name", [n for n in BODIES if not BODIES[n][1]])
def test_a_safe_edit_keeps_the_result_for_all_operands(name: str) -> None:
    before = program(BODIES[name][0])
    after = rewritten(before, unsafe=False)
    assert after != before
    widened = ("values of float32",) if "m = torch." in before else ()  # what is added widens no dtype: docs/safety.md
    excused = (
        widened
        if "q.size(-1)" not in before and "/ 2" not in before and "0.5, False" not in before
        else (*OUTSIDE, *widened)
    )
    for kind in KINDS:
        for autocast in (False, True):
            difference = difference_after(before, after, kind, autocast)
            assert not difference or kind in excused, (kind, autocast, difference, after)


# Scores that are scaled, masked or dropped out are those of sequences, and masked_fill's mask broadcasts to what is
# filled: what a safe edit takes for granted, by its definition in docs/safety.md.
OUTSIDE = ("a vector for the query", "a vector for the value", "three dimensions, a mask of four")


@pytest.mark.parametrize("name", [n for n in BODIES if BODIES[n][1]])
def test_an_unsafe_edit_keeps_the_result_exactly_if_its_assumption_holds(name: str) -> None:
    before = program(BODIES[name][0])
    after = rewritten(before)
    usual = ("four dimensions", "matrices", "bfloat16")
    for kind in usual:
        assert not difference_after(before, after, kind), (kind, after)
    assert any(difference_after(before, after, kind) for kind in KINDS), after


@pytest.mark.parametrize("annotation, status", [("", "unsafe"), (": float", "safe")])
def test_a_scale_must_be_a_number(annotation: str, status: str) -> None:
    body = "return torch.softmax(q @ k.transpose(-2, -1) * scale, -1) @ v"
    (finding,) = findings(program(body, f"q, k, v, scale{annotation}"))
    assert finding.status == status
    assert ("assumes that the scale is a number" in finding.message) is (status == "unsafe")


# Calls in the file of a function with a constant scale, and the status or assumption of its edit.
GIVEN = {
    "a matrix": ("attend(torch.randn(5, 8), x, x)", "safe"),
    "a name with one value": ("y = torch.randn(2, 5, 8)\nattend(y, x, x)", "safe"),
    "by keyword": ("attend(q=x, k=x, v=x)", "safe"),
    "a copy of what has dimensions": ("attend(x.clone() * 2, x, x)", "safe"),
    "nothing": ("", "assumes that `q` and `v` have two dimensions or more"),
    "a matrix, and what is not known": ("attend(x, x, x)\nattend(load(), x, x)", "assumes that `q` has"),
    "a name with two values": ("y = x\nif x.sum() > 0:\n    y = load()\nattend(y, x, x)", "assumes that `q` has"),
    "elements of a list": ("for y in [x, x]:\n    attend(y, x, x)", "assumes that `q` has"),
    "a matrix, where an error is caught": ("try:\n    attend(x, x, x)\nexcept RuntimeError:\n    pass", "assumes"),
    "a vector": ("attend(torch.randn(8), x, x)", "tensor of less than two dimensions"),
    "fewer values than keys": ("attend(x, x, torch.randn(2, 4, 8))", "another number of values than of keys"),
    "more values than keys": ("attend(x, torch.randn(4, 8), x)", "another number of values than of keys"),
    "values of another width": ("attend(x, x, torch.randn(2, 5, 3))", "safe"),
    "other keys and values than queries": ("y = torch.randn(2, 7, 8)\nattend(x, y, y)", "safe"),
}


@pytest.mark.parametrize("calls, expected", GIVEN.values(), ids=GIVEN)
def test_calls_in_the_file_show_the_rank_of_an_argument(calls: str, expected: str) -> None:
    head = "import torch\n\n\ndef load():\n    return torch.load('x')\n\n\n"
    body = "def attend(q, k, v):\n    return torch.softmax(q @ k.transpose(-2, -1) * 0.125, dim=-1) @ v\n\n\n"
    attend_findings = [f for f in findings(f"{head}{body}x = torch.randn(2, 5, 8)\n{calls}\n") if f.symbol == "attend"]
    assert attend_findings[0].status == expected or expected in attend_findings[0].message, attend_findings[0].message


def test_a_module_that_reads_its_own_matrix_may_get_a_vector() -> None:
    (finding,) = findings("""
        import torch
        from torch import nn

        class Memory(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.keys = nn.Parameter(torch.randn(6, dim))
                self.values = nn.Parameter(torch.randn(6, dim))

            def forward(self, x):
                return torch.softmax(x @ self.keys.t(), dim=-1) @ self.values
    """)
    assert finding.status == "unsafe" and "assumes that `x` has two dimensions or more" in finding.message


def test_the_text_shows_the_lengths_of_arguments_only_if_they_are_not_transposed() -> None:
    body = "def attend(q, k, v):\n    return torch.softmax(q @ k * q.size(-1) ** -0.5, dim=-1) @ v\n\n\n"
    call = "attend(torch.randn(2, 3, 8), torch.randn(2, 8, 5), torch.randn(2, 5, 8))\n"
    assert all("number of values" not in f.message for f in findings(f"import torch\n\n\n{body}{call}"))
