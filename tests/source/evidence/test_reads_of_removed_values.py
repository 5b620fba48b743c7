"""Shapes, dtypes, layouts and texts of values that a safe edit removes are read as before."""

from __future__ import annotations

import pytest

from tests.source.evidence.programs import Program, assert_holds
from tests.source.rewriting import rewritten

QKV = "f(T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 3, 7, 6))"
SQUARE = "f(T(2, 3, 5, 4), T(2, 3, 5, 4), T(2, 3, 5, 4))"
HEADS_LAST = "f(T(2, 5, 3, 4), T(2, 5, 3, 4), T(2, 5, 3, 4))"


def scores(name: str, read: str, expected: str = "safe", given: str = "n", message: str = "") -> Program:
    text = "def f(q, k, v):\n    s = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5\n"
    text += f"    {read}\n    return s.softmax(-1) @ v, {given}\n"
    return Program(name, text, QKV, expected, message)


def weights(name: str, read: str, expected: str = "safe", message: str = "") -> Program:
    text = "def f(q, k, v):\n    p = (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).softmax(-1)\n"
    text += f"    o = p @ v\n    {read}\n"
    return Program(name, text, QKV, expected, message)


def result(name: str, read: str, expected: str = "safe", drive: str = HEADS_LAST, before: str = "") -> Program:
    text = f"""
def f(q, k, v):
    b, t, h, d = q.shape
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    o = (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v
    {read}
"""
    return Program(name, text, drive, expected)


def norm(name: str, read: str, expected: str) -> Program:
    text = f"""
def f(x):
    b, h, t, d = x.shape
    x = x.transpose(1, 2).contiguous().transpose(1, 2)
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    {read}
"""
    return Program(name, text, "f(T(2, 3, 5, 4))", expected)


SHAPES = [
    scores("the size of the scores", "n = s.shape[-1]"),
    scores("the size by a method", "n = s.size(-1)"),
    scores("how many numbers", "n = s.numel()", "kept"),
    scores("how many numbers, by the shape", "n = s.shape.numel()"),
    scores("the shape by a method", "n = s.size().numel()", "kept"),
    scores("the shape as it is", "n = s.shape", given="n, type(n).__name__"),
    scores("the shape by a method as it is", "n = s.size()", "kept", given="n, type(n).__name__"),
    scores("the shape as text", "n = str(s.shape)"),
    scores("the representation of the shape", "n = repr(s.shape)"),
    scores("the shape in an f-string", "n = f'{s.shape}'"),
    scores("the shape in a longer f-string", "n = f'scores: {s.shape} of {q.shape}'"),
    scores("a size in an f-string", "n = f'{s.shape[-1]}'"),
    scores("the shape is printed", "n = print(s.shape)"),
    scores("the shape is printed by a format", "n = '{}'.format(s.shape)"),
    scores("the shape is printed by percent", "n = '%s' % (s.shape,)"),
    scores("the shape is joined to another", "n = s.shape + (1,)", given="n, type(n).__name__"),
    scores("the shape is unpacked", "b, h, i, n = s.shape"),
    scores("the shape is spread", "n = torch.zeros(*s.shape).sum()"),
    scores("the shape makes a tensor", "n = torch.ones(s.shape, dtype=q.dtype)"),
    scores("the shape is compared", "n = s.shape == q.shape"),
    scores("how many dimensions", "n = len(s.shape)"),
    scores("a part of the shape", "n = s.shape[:2]", given="n, type(n).__name__"),
    scores("the last entry of the shape by a name", "sizes = s.shape; n = sizes[-1]"),
    scores("an f-string that prints the expression", "n = f'{s.shape=}'", "kept"),
    scores("an f-string that prints the expression with blanks", "n = f'{ s.shape = }'", "kept"),
    scores("an f-string that prints the indexed expression", "n = f'{s.shape[-1]=}'", "kept"),
    scores("an f-string that prints it in a format", "n = f'{s.size(-1)=:>5}'", "kept"),
    scores("a name before an equals sign", "n = f's.shape = {s.shape[-1]}'"),
    scores("the device", "n = str(s.device)"),
    scores("whether a gradient is needed", "n = s.requires_grad", "kept"),
    Program(
        "the activation itself in such an f-string",
        "def f(x):\n    print(f'{x * torch.sigmoid(x)=}')\n    return x",
        "f(T(2))",
        "kept",
    ),
    Program(
        "the activation in another f-string",
        "def f(x):\n    x = x / 1\n    print(f'{(x * torch.sigmoid(x)).shape}')\n    return x",
        "f(T(2))",
        "safe",
    ),
    Program(
        "the result is printed",
        "def f(x):\n    y = x * torch.sigmoid(x)\n    print(y)\n    return y",
        "f(T(2))",
        "unsafe",
        "grad_fn",
    ),
    Program(
        "the result is printed in a text",
        "def f(x):\n    y = x * torch.sigmoid(x)\n    print(f'y: {y}')\n    return y",
        "f(T(2))",
        "unsafe",
        "grad_fn",
    ),
    Program(
        "what made the result is asked",
        "def f(x):\n    y = x * torch.sigmoid(x)\n    return y, type(y.grad_fn).__name__",
        "f(T(2))",
        "unsafe",
        "grad_fn",
    ),
]
DTYPES = [
    weights("the dtype of the probabilities", "return o.to(p.dtype)", "unsafe", "assumes that autocast is off"),
    weights(
        "the dtype of the probabilities as text", "return o, str(p.dtype)", "unsafe", "assumes that autocast is off"
    ),
    weights("the dtype of the query", "return o.to(q.dtype), str(p.device)"),
    weights("the dtype of the result", "return o.to(v.dtype), str(o.dtype)"),
    scores("the dtype of the scores", "n = str(s.dtype)", "unsafe", message="assumes that autocast is off"),
]
LAYOUTS = [
    result("joined by view", "return o.view(b * h, t, d)"),
    result("joined by reshape", "return o.reshape(b * h, t, d)"),
    result("joined by view after arithmetic", "return (o * 2).view(b * h, t, d)"),
    result("joined by view after dropout", "return F.dropout(o, 0.0).view(b * h, t, d)"),
    result("joined by view, under another name", "r = o\n    return r.view(-1, d)"),
    result("joined by view in a branch", "if b > 1:\n        o = o.view(b * h, t, d)\n    return o"),
    result("joined by view in an entry", "return o[0].view(h * t, d)"),
    result("all in one dimension", "return o.view(-1)"),
    result("joined by the function of torch", "return torch.Tensor.view(o, 6, 5, 4)"),
    result("taken apart by strides", "return torch.as_strided(o, (6, 20), (20, 1))"),
    result("joined in a function of the file", "return joined(o)\n\ndef joined(o):\n    return o.view(6, 5, 4)"),
    result(
        "joined in a function with a loop",
        "return joined(o)\n\ndef joined(o):\n    for _ in range(1):\n        o = o.view(6, 5, 4)\n    return o",
    ),
    result("kept in a list", "outs = []\n    outs.append(o)\n    return [y.view(6, 5, 4) for y in outs]"),
    result("kept in a dictionary", 'kept = {"o": o}\n    return kept["o"].view(6, 5, 4)'),
    result("turned and made contiguous", "return o.transpose(1, 2).contiguous().view(b, t, h * d)"),
    result("turned and reshaped", "return o.transpose(1, 2).reshape(b, t, h * d)"),
    result("strides", "return o, o.stride()"),
    result("asked whether it is contiguous", "return o, o.is_contiguous()"),
    result("as another's view", "return o.view_as(torch.ones(b * h, t, d))"),
    result(
        "returned, and viewed by who calls",
        "return o\n\ndef g(q, k, v):\n    return f(q, k, v).view(6, 5, 4)",
        drive=HEADS_LAST.replace("f(", "g("),
    ),
    result(
        "returned, named, and viewed by who calls",
        "return o\n\ndef g(q, k, v):\n    y = f(q, k, v)\n    return y.view(6, 5, 4)",
        drive=HEADS_LAST.replace("f(", "g("),
    ),
    result(
        "returned, added to, and viewed by who calls",
        "return o\n\ndef g(q, k, v):\n    y = 1 + f(q, k, v)\n    return y.view(6, 5, 4)",
        drive=HEADS_LAST.replace("f(", "g("),
    ),
    Program(
        "a module's result, viewed by its parent",
        """
        class Core(nn.Module):
            def forward(self, q, k, v):
                q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
                return (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v

        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.core = Core()

            def forward(self, q, k, v):
                y = self.core(q, k, v)
                return y.view(6, 5, 4)
        """,
        "M(Outer())(T(2, 5, 3, 4), T(2, 5, 3, 4), T(2, 5, 3, 4))",
        "safe",
    ),
    norm("a norm, turned and viewed", "return y.transpose(1, 2).view(b, t, h * d)", "kept"),
    norm("a norm, permuted and viewed", "return y.permute(0, 2, 1, 3).view(b * t, h, d)", "kept"),
    norm("a norm's strides", "return y, y.stride()", "kept"),
    norm("a norm, turned and reshaped", "return y.transpose(1, 2).reshape(b, t, h * d)", "safe"),
    norm("a norm, given back", "return y", "safe"),
]


TRANSPOSED = """
def f(q, k, v):
    b, t, h, d = q.shape
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    p = (q @ k.transpose(-2, -1) / 2).softmax(-1)
    o = v.transpose(-2, -1) @ p.transpose(-2, -1)
    return o.view(b, h * d, t)
"""


def test_a_transposed_result_of_the_fused_call_is_made_contiguous() -> None:
    assert ".transpose(-2, -1).contiguous()" in rewritten("import torch\n" + TRANSPOSED)
    assert_holds(Program("the product of the transposed is viewed", TRANSPOSED, HEADS_LAST, "safe"))


@pytest.mark.parametrize("program", [*SHAPES, *DTYPES, *LAYOUTS], ids=lambda p: f"{p.expected}: {p.name}")
def test_reads_of_removed_values_give_the_same_as_before(program: Program) -> None:
    assert_holds(program)


def test_an_attention_whose_layout_is_not_read_is_not_made_contiguous() -> None:
    assert "contiguous" not in rewritten(
        "import torch\nimport torch.nn.functional as F\ndef f(q, k, v):\n    return (q @ k.mT / 2).softmax(-1) @ v\n"
    )
