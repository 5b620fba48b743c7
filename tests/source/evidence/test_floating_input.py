"""An edit of an activation is safe if the text shows that its input is floating-point.

Each formula runs before and after its edit on tensors of every dtype. Most formulas accept integers, booleans and
complex numbers; torch's functions raise an error for them.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.source.evidence.mixed_dtypes import difference, outcome
from tests.source.rewriting import findings, rewritten, source

FORMULAS = {
    "silu": "{0} * torch.sigmoid({0})",
    "gelu": "0.5 * {0} * (1 + torch.erf({0} * 0.7071067811865476))",
    "gelu by tanh": "0.5 * {0} * (1 + torch.tanh(0.7978845608 * ({0} + 0.044715 * {0} ** 3)))",
    "mish": "{0} * torch.tanh(F.softplus({0}))",
    "hardswish": "{0} * torch.clamp({0} + 3, 0, 6) / 6",
}
UNKNOWN = {
    "an argument of a function": "def f(x):\n    return {F}",
    "an argument that is called a tensor": "def f(x: torch.Tensor):\n    return {F}",
    "an absolute value": "def f(x):\n    x = x.abs()\n    return {F}",
    "what a matrix of unknown kind makes of it": "def f(x, w):\n    x = F.linear(x, w)\n    return {F}",
    "a view": "def f(x):\n    x = x.reshape(-1)\n    return {F}",
}
SHOWN = {
    "cast": "def f(x):\n    x = x.float()\n    return {F}",
    "at least its half": "def f(x):\n    x = torch.maximum(x, x.abs() * 0.5)\n    return {F}",
    "a quotient of two": "def f(x):\n    x = x / x.abs()\n    return {F}",
    "a product with a float matrix": "def f(x, w):\n    x = F.linear(x.float(), w)\n    return {F}",
    "a norm of it is taken": "def f(x):\n    y = x.mean(-1, keepdim=True)\n    return {F} + y",
    "a root": "def f(x):\n    x = torch.exp(x)\n    return {F}",
    "cast to the dtype of a root": "def f(x):\n    x = x.to(torch.sqrt(x).dtype)\n    return {F}",
    "a view of a quotient": "def f(x):\n    x = (x / 3).reshape(-1)[1:]\n    return {F}",
    "joined with a quotient": "def f(x):\n    x = torch.cat((x / 3, x / 2))\n    return {F}",
}
KINDS: dict[str, Tensor] = {
    "float64": torch.linspace(-4, 4, 12, dtype=torch.float64).reshape(3, 4),
    "float32": torch.linspace(-4, 4, 12).reshape(3, 4),
    "bfloat16": torch.linspace(-4, 4, 12).reshape(3, 4).bfloat16(),
    "int64": torch.arange(12).reshape(3, 4),
    "int32": torch.arange(12, dtype=torch.int32).reshape(3, 4),
    "uint8": torch.arange(12, dtype=torch.uint8).reshape(3, 4),
    "bool": torch.arange(12).reshape(3, 4) > 5,
}


def program(text: str, formula: str) -> str:
    body = text.replace("{F}", "(" + FORMULAS[formula].format("x") + ")")
    return source("import torch\nimport torch.nn.functional as F\n\n\n") + body + "\n"


def difference_after(before: str, after: str, kind: str) -> str:
    weight = torch.ones(2, 4, dtype=KINDS[kind].dtype)
    arguments = (KINDS[kind], weight) if "F.linear" in before else (KINDS[kind],)
    one, other = (outcome(text, lambda names: names["f"](*arguments)) for text in (before, after))  # type: ignore[operator]
    return difference(one, other, torch.bfloat16 if kind == "bfloat16" else torch.float32)


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("text", SHOWN)
def test_a_safe_activation_keeps_the_result_for_all_dtypes(text: str, formula: str) -> None:
    before = program(SHOWN[text], formula)
    after = rewritten(before, unsafe=False)
    assert after != before
    assert not {kind: why for kind in KINDS if (why := difference_after(before, after, kind))}, after


@pytest.mark.parametrize("formula", [f for f in FORMULAS if f != "mish"])  # F.softplus itself takes no integers
@pytest.mark.parametrize("text", UNKNOWN)
def test_without_evidence_for_the_dtype_the_edit_is_unsafe(text: str, formula: str) -> None:
    before = program(UNKNOWN[text], formula)
    file_findings = findings(before)
    assert {(f.status, "is floating-point" in f.message) for f in file_findings} == {("unsafe", True)}, file_findings
    after = rewritten(before)
    assert not any(difference_after(before, after, kind) for kind in ("float64", "float32", "bfloat16"))
    assert any(difference_after(before, after, kind) for kind in ("int64", "bool"))


@pytest.mark.parametrize(
    "head, status",
    [
        ("self, x", "safe"),
        ("self, x: torch.Tensor", "safe"),
        ("self, x: torch.LongTensor", "declined"),
        ("self, x: 'torch.BoolTensor'", "declined"),
        ("self, x: Int[Tensor, 'b n']", "declined"),
        ("self, x: Complex64[Tensor, 'b n']", "declined"),
        ("self, x: Float[Tensor, 'b n']", "safe"),
    ],
)
def test_a_module_gets_floating_point_data_unless_its_annotation_contradicts(head: str, status: str) -> None:
    (finding,) = findings(f"""
        import torch
        from torch import nn

        class Swish(nn.Module):
            def forward({head}):
                return x * torch.sigmoid(x)
    """)
    assert finding.status == status, finding.message


def test_the_result_of_a_layer_is_floating_point() -> None:
    (finding,) = findings("""
        import torch
        from torch import nn

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv1d(3, 3, 1)

            def helper(self, x):
                x = self.conv(x)
                return x * torch.sigmoid(x)
    """)
    assert finding.status == "safe", finding.message


def test_an_index_is_not_floating_point() -> None:
    (finding,) = findings("""
        import torch
        from torch import nn

        class Odd(nn.Module):
            def forward(self, x, table):
                return table[x] + x * torch.sigmoid(x)
    """)
    assert finding.status == "declined", finding.message


@pytest.mark.parametrize(
    ("made", "status"),
    [
        ("torch.arange(8.0)", "safe"),
        ("torch.arange(0, 1, 0.1)", "safe"),
        ("torch.tensor([1.0, 2])", "safe"),
        ("torch.tensor([[1, 2], [0.5, 4]])", "safe"),
        ("torch.arange(8)", "declined"),
        ("torch.randint(0, 5, (4,))", "declined"),
        ("torch.LongTensor([1, 2])", "declined"),
        ("torch.randn(4).long()", "declined"),
        ("torch.randn(2, 4).argmax(-1)", "declined"),
        ("torch.arange(torch.ones(3).size(0))", "declined"),
        ("torch.zeros(3, dtype=torch.int32)", "declined"),
        ("torch.tensor([1, 2])", "declined"),
        ("torch.tensor([1.0], dtype=torch.long)", "declined"),
    ],
)
def test_numbers_with_a_fraction_make_a_floating_tensor(made: str, status: str) -> None:
    text = f"import torch\n\n\ndef f():\n    x = {made}\n    return x * torch.sigmoid(x)\n"
    assert [f.status for f in findings(text)] == [status]
    assert eval(made, {"torch": torch}).is_floating_point() == (status == "safe")


COMPLEX = {
    "a transform": "h = torch.fft.rfft(x)",
    "a view": "h = torch.view_as_complex(x.reshape(-1, 2))",
    "polar coordinates": "h = torch.polar(x.abs(), x)",
    "a cast": "h = x.to(torch.complex64)",
    "a product with the imaginary unit": "h = x * 1j",
    "a part of a transform": "h = torch.fft.fft(x)[..., :4].clone()",
}


@pytest.mark.parametrize("formula", ["silu", "gelu by tanh"])
@pytest.mark.parametrize("how", COMPLEX)
def test_complex_numbers_are_declined(how: str, formula: str) -> None:
    text = f"import math, torch\n\n\ndef f(x):\n    {COMPLEX[how]}\n    return {FORMULAS[formula].format('h')}\n"
    (finding,) = findings(text)
    assert finding.status == "declined" and "complex numbers" in finding.message
    error, results, _ = outcome(text, lambda names: names["f"](torch.linspace(-1, 1, 16).reshape(2, 8)))  # type: ignore[operator]
    assert not error and results[0].is_complex()
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.nn.functional.gelu(results[0])


@pytest.mark.parametrize(
    "real", ["torch.fft.fft(x).abs()", "torch.fft.irfft(x * 1j)", "torch.fft.fft(x).real", "torch.view_as_real(x * 1j)"]
)
def test_real_numbers_that_a_transform_gives_are_not_declined(real: str) -> None:
    (finding,) = findings(f"import torch\n\n\ndef f(x):\n    h = {real}\n    return h * torch.sigmoid(h)\n")
    assert finding.status == "unsafe" and "floating-point" in finding.message


@pytest.mark.parametrize(
    "norm",
    [
        "(h - h.mean(-1, True)) / torch.sqrt(h.var(-1, False, True) + 1e-5)",
        "h * torch.rsqrt(h.pow(2).mean(-1, True) + 1e-6)",
    ],
)
def test_a_norm_of_complex_numbers_is_declined(norm: str) -> None:
    (finding,) = findings(f"import torch\n\n\ndef f(x):\n    h = torch.view_as_complex(x)\n    return {norm}\n")
    assert finding.status == "declined" and "complex numbers" in finding.message


@pytest.mark.parametrize(
    ("line", "status"), [("y = x + 1", "safe"), ("y = 2 * x - 1", "safe"), ("y = x + other", "unsafe")]
)
def test_an_integer_that_is_added_keeps_the_dtype(line: str, status: str) -> None:
    head = "import torch\nfrom torch import nn\n\n\nclass Swish(nn.Module):\n    def forward(self, x):\n"
    (finding,) = findings(f"{head}        {line}\n        return y * torch.sigmoid(y)\n")
    assert finding.status == status, finding.message
