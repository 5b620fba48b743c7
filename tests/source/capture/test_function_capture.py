"""The capture of names, branches, loops, contexts, closures and writes."""

from __future__ import annotations

import ast

import pytest

from autofuse.ir.graph import CALL, CHOICE, OPAQUE, check
from autofuse.ir.vocabulary import ARITY
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import file_scope, functions
from tests.source.rewriting import findings, rewritten, source

HEAD = "import math\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"
ARITIES = {**dict.fromkeys(("identity",)), **ARITY}


def capture_function(text: str, symbol: str = "f") -> CapturedFunction:
    scope = file_scope(ast.parse(HEAD + source(text)))
    return next(capture(d.function, d.scope, d.owner) for d in functions(scope) if d.symbol == symbol)


def is_fused(text: str) -> bool:
    return "scaled_dot_product_attention" in rewritten(HEAD + source(text))


FUSED = {
    "a match wholly inside a context": """
        def f(q, k, v):
            with torch.autocast("cuda"):
                s = q @ k.mT
                return s.softmax(-1) @ v
    """,
    "a match wholly inside a loop": """
        def f(q, ks, v):
            out = []
            for k in ks:
                s = q @ k.mT
                out.append(s.softmax(-1) @ v)
            return out
    """,
    "a function mapped over the operands": """
        def f(qkv):
            q, k, v = map(lambda t: t.transpose(1, 2), qkv.chunk(3, dim=-1))
            return (q @ k.mT).softmax(-1) @ v
    """,
    "a generator unpacked into the operands": """
        def f(q, k, v):
            q, k, v = (t.contiguous() for t in (q, k, v))
            return (q @ k.mT).softmax(-1) @ v
    """,
    "a walrus": """
        def f(q, k, v):
            weights = (s := q @ k.mT).softmax(-1)
            return weights @ v
    """,
    "torch imported inside the function": """
        def f(q, k, v):
            import torch.nn.functional as fun
            return fun.softmax(q @ k.mT, dim=-1) @ v
    """,
    "a name for a function": """
        softmax = F.softmax

        def f(q, k, v):
            return softmax(q @ k.mT, dim=-1) @ v
    """,
    "a straight-line helper": """
        def scores_of(q, k):
            s = q @ k.mT
            return s / math.sqrt(q.size(-1))

        def f(q, k, v):
            return scores_of(q, k).softmax(-1) @ v
    """,
    "an early return before the match": """
        def f(q, k, v, skip=False):
            if skip:
                return v
            return (q @ k.mT).softmax(-1) @ v
    """,
    "a branch that raises": """
        def f(q, k, v):
            s = q @ k.mT
            if q.dim() != 4:
                raise ValueError("four dimensions")
            return s.softmax(-1) @ v
    """,
}
KEPT = {
    "a part of it under no_grad": """
        def f(q, k, v):
            with torch.no_grad():
                s = q @ k.mT
            return s.softmax(-1) @ v
    """,
    "the softmax in another loop than the scores": """
        def f(q, k, v):
            s = q @ k.mT
            for _ in range(2):
                out = s.softmax(-1) @ v
            return out
    """,
    "scores carried to the next round": """
        def f(q, ks, v):
            s = 0
            for k in ks:
                s = s + q @ k.mT
                out = s.softmax(-1) @ v
            return out
    """,
    "scores read after the loop": """
        def f(q, ks, v):
            for k in ks:
                s = q @ k.mT
                out = s.softmax(-1) @ v
            return out, s
    """,
    "scores read where an exception is handled": """
        def f(q, k, v):
            try:
                s = q @ k.mT
                out = s.softmax(-1) @ v
            except RuntimeError:
                return s
            return out
    """,
    "scores read in a finally": """
        def f(q, k, v):
            s = None
            try:
                s = q @ k.mT
                return s.softmax(-1) @ v
            finally:
                log(s)
    """,
    "a nested function reads the scores": """
        def f(q, k, v):
            s = q @ k.mT
            def show():
                return s
            return s.softmax(-1) @ v, show
    """,
    "a nested function that is defined first reads the scores": """
        def f(q, k, v):
            show = lambda: s
            s = q @ k.mT
            return s.softmax(-1) @ v, show
    """,
    "scores appended to a list": """
        def f(q, k, v):
            kept = []
            s = q @ k.mT
            kept.append(s)
            return s.softmax(-1) @ v, kept
    """,
    "scores printed": """
        def f(q, k, v):
            s = q @ k.mT
            print(f"{s}")
            return s.softmax(-1) @ v
    """,
    "scores asserted": """
        def f(q, k, v):
            s = q @ k.mT
            assert s.max() < 10
            return s.softmax(-1) @ v
    """,
    "weights yielded": """
        def f(q, k, v):
            w = (q @ k.mT).softmax(-1)
            yield w
            yield w @ v
    """,
    "weights in a comprehension": """
        def f(q, k, v):
            w = (q @ k.mT).softmax(-1)
            return w @ v, [w[i] for i in range(len(w))]
    """,
    "weights in one of several cases": """
        def f(q, k, v, mode):
            w = (q @ k.mT).softmax(-1)
            match mode:
                case "weights":
                    return w
            return w @ v
    """,
    "a global name": """
        last = None

        def f(q, k, v):
            global last
            last = (q @ k.mT).softmax(-1)
            return last @ v
    """,
    "star arguments": """
        def f(*args):
            q, k, v, *options = args
            return F.softmax(q @ k.mT, *options) @ v
    """,
    "torch is a parameter": """
        def f(q, k, v, torch):
            return torch.softmax(q @ k.mT, -1) @ v
    """,
    "F is assigned in the module": """
        F = make()

        def f(q, k, v):
            return F.softmax(q @ k.mT, dim=-1) @ v
    """,
    "F is a local of an enclosing function": """
        def outer(F):
            def f(q, k, v):
                return F.softmax(q @ k.mT, dim=-1) @ v
            return f
    """,
    "softmax is a method of the user's": """
        class A(nn.Module):
            def softmax(self, x, dim):
                return x

            def f(self, q, k, v):
                return self.softmax(q @ k.mT, -1) @ v
    """,
    "a layer that is assigned twice": """
        class A(nn.Module):
            def __init__(self, hard):
                self.attend = nn.Softmax(dim=-1)
                if hard:
                    self.attend = Hard()

            def f(self, q, k, v):
                return self.attend(q @ k.mT) @ v
    """,
    "layers that are set by computed names": """
        class A(nn.Module):
            def __init__(self, layers):
                self.attend = nn.Softmax(dim=-1)
                for name, layer in layers:
                    setattr(self, name, layer)

            def f(self, q, k, v):
                return self.attend(q @ k.mT) @ v
    """,
    "locals() sees everything": """
        def f(q, k, v):
            s = q @ k.mT
            return s.softmax(-1) @ v, locals()
    """,
}


@pytest.mark.parametrize("text", FUSED.values(), ids=FUSED)
def test_the_pattern_is_found(text: str) -> None:
    assert is_fused(text)


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_the_code_is_not_changed(text: str) -> None:
    assert not is_fused(text)


@pytest.mark.parametrize("text", [*FUSED.values(), *KEPT.values()], ids=[*FUSED, *KEPT])
def test_every_graph_is_valid(text: str) -> None:
    for d in functions(file_scope(ast.parse(HEAD + source(text)))):
        check(capture(d.function, d.scope, d.owner).graph, _Arity())


class _Arity(dict[str, int | None]):
    """The numbers of inputs of torch's operations and of the operations of programs."""

    def __init__(self) -> None:
        from autofuse.ir import graph

        super().__init__({**ARITY, **graph.ARITY})


def test_a_name_holds_a_choice_after_a_branch() -> None:
    out = capture_function("""
        def f(x, mask=None):
            if mask is not None:
                x = x + mask
            return x
    """)
    assert out.returned is not None and out.returned.op == CHOICE


def test_a_name_that_a_loop_assigns_is_unknown_after_it() -> None:
    out = capture_function("""
        def f(xs):
            for x in xs:
                y = x * 2
            return y
    """)
    assert out.returned is not None and out.returned.op == OPAQUE


def test_an_unknown_call_is_never_merged_with_another() -> None:
    out = capture_function("""
        def f(x):
            return g(x) + g(x)
    """)
    assert sum(v.op == CALL for v in out.graph.values) == 2


def test_a_write_changes_every_name_of_the_same_memory() -> None:
    out = capture_function("""
        def f(x):
            y = x * 1
            z = y.view(-1)
            y.mul_(2)
            return z
    """)
    assert out.returned is not None and out.returned.op == OPAQUE


def test_the_range_of_a_finding_is_the_whole_pattern() -> None:
    (found,) = findings(
        HEAD
        + source("""
        class A(nn.Module):
            def forward(self, q, k, v):
                x = 1

                s = q @ k.mT
                w = s.softmax(-1)

                return w @ v
    """)
    )
    assert (found.line, found.end_line, found.symbol) == (11, 14, "A.forward")
