"""A scale that multiplies the query moves into the call if nothing else reads the scaled query."""

from __future__ import annotations

import ast

import pytest
import torch
from torch import Tensor

from tests.source.rewriting import assert_same, module_of, rewritten, source

HEAD = source("""
    import math
    import torch
    import torch.nn.functional as F
    from torch import nn


    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 0.3
            self.heads = 2
            self.qkv = nn.Linear(8, 24)
            self.norm = nn.LayerNorm(4)
            self.kept = None

        def forward(self, x):
            q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
""")
END = "        attn = q @ k.transpose(-2, -1)\n        return attn.softmax(dim=-1) @ v\n"
# The lines before the product, the expected text in the call, and the text that must be removed.
FOLDED = {
    "its own statement": ("q = q * self.scale", "scale=self.scale", "q * self"),
    "the number first": ("q = self.scale * q", "scale=self.scale", "* q"),
    "a quotient": ("q = q / self.heads", "scale=1.0 / self.heads", "q / self"),
    "the default": ("q = q / math.sqrt(q.size(-1))", "(q, k, v)", "math.sqrt"),
    "the default as a power": ("q = q * q.shape[-1] ** -0.5", "(q, k, v)", "-0.5"),
    "what a child gives": ("q = self.norm(q) * self.scale", "q = self.norm(q)\n", "* self.scale"),
    "laid out afterwards": ("q = (self.norm(q) * self.scale).contiguous()", "q = self.norm(q).contiguous()", "* self"),
    "sizes of it are read": ("q = q * self.scale\n        b = q.shape[0]", "scale=self.scale", "q * self"),
}
# Programs in which the product must stay.
KEPT = {
    "it is read": "q = q * self.scale\n        k = k + q.mean()",
    "it is kept": "q = q * self.scale\n        self.kept = q",
    "it is scaled in a branch": "if self.heads == 2:\n            q = q * self.scale",
    "its tensor is read": "p = q\n        q = q * self.scale\n        v = v + p",
    "its tensor is written to": "p = q.clone()\n        q = p * self.scale\n        p.zero_()",
    "the scale is changed": "q = q * self.scale\n        self.scale = 3.0",
    "the scale is a tensor": "q = q * x.mean()",
}


def program(lines: str, end: str = END) -> str:
    return HEAD + f"        {lines}\n" + end


def inputs() -> list[Tensor | None]:
    return [torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("name", FOLDED)
def test_the_scale_moves_to_the_call_and_the_product_is_removed(name: str) -> None:
    lines, said, gone = FOLDED[name]
    before = program(lines)
    after = rewritten(before, unsafe=False)
    assert said in after and "scale=1.0" not in after.replace("scale=1.0 / ", "")
    assert gone not in after.partition("scaled_dot")[0].partition("unbind(0)")[2]
    assert_same(before, after, "Attend", inputs())
    assert rewritten(after, unsafe=False) == after


@pytest.mark.parametrize("name", KEPT)
def test_a_product_that_something_else_needs_stays(name: str) -> None:
    before = program(KEPT[name])
    after = rewritten(before)
    assert KEPT[name].partition("\n")[0] in after
    assert_same(before, after, "Attend", inputs())


def test_a_product_inside_the_scores_is_removed_with_them() -> None:
    before = program("pass", END.replace("q @", "(q * self.scale) @"))
    after = rewritten(before, unsafe=False)
    assert "F.scaled_dot_product_attention(q, k, v, scale=self.scale)" in after
    assert_same(before, after, "Attend", inputs())


def test_the_product_of_an_argument_stays_because_its_owner_may_write_to_it() -> None:
    text = "import torch\n\n\ndef attend(q, k, v):\n    q = q * 0.5\n    return (q @ k.mT).softmax(-1) @ v\n"
    assert "q = q * 0.5" in rewritten(text)


# Products whose numbers cancel, so that the query equals another name.
CANCELLED = (
    "q = k * 0.5\n        q = q * 2",
    "q = q * 0.5\n        q = q * 2",
    "q = k / 4\n        q = q * 4",
    "p = k * 0.25\n        q = p\n        q = q * 4",
)


@pytest.mark.parametrize("then", ["pass", "q = v", "q = k"])
@pytest.mark.parametrize("lines", CANCELLED)
def test_a_number_is_folded_only_out_of_the_product_that_the_name_of_the_query_holds(lines: str, then: str) -> None:
    before = program(lines, END.replace("        return", f"        {then}\n        return"))
    after = rewritten(before, unsafe=False)
    assert "scaled_dot_product_attention" in after
    assert_same(before, after, "Attend", inputs())


# How the query is laid out after its product with a number. The product copied a part of a larger tensor.
LAID_OUT = {
    "a view that joins dimensions": ("q = q.view(4, 4, 5).transpose(1, 2)", False),
    "a view that joins all dimensions": ("q = q.view(-1).view(4, 4, 5).transpose(1, 2)", False),
    "a view that splits a dimension": ("q = q.view(2, 2, 4, 5).reshape(4, 4, 5).transpose(1, 2)", None),
    "a reshape": ("q = q.reshape(4, 4, 5).transpose(1, 2)", True),
    "a view after a copy": ("q = q.contiguous().view(4, 4, 5).transpose(1, 2)", None),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_a_product_that_makes_a_view_possible_stays(name: str) -> None:
    lines, is_folded = LAID_OUT[name]
    before = source(f"""
        import torch
        import torch.nn.functional as F
        from torch import nn

        class Attend(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.qkv = 0.5, nn.Conv1d(8, 24, 1)

            def forward(self, x):
                q, k, v = self.qkv(x).chunk(3, dim=1)
                q = q * self.scale
                {lines}
                k, v = k.reshape(4, 4, 5), v.reshape(4, 4, 5).transpose(1, 2)
                return (q @ k).softmax(-1) @ v
    """)
    after = rewritten(before, unsafe=False)
    assert "scaled_dot_product_attention" in after
    if is_folded is not None:
        assert ("scale=self.scale" in after) is is_folded
    assert_same(before, after, "Attend", [torch.randn(2, 8, 5, dtype=torch.float64)])


# Query and key are scaled in the scores. The lines before them, the scores, and the text that the call must have.
BOTH = {
    "the root of the default in both": (
        "scale = q.size(-1) ** -0.25",
        "(q * scale) @ (k * scale).mT",
        "(q, k, v)",
    ),
    "roots of roots": (
        "scale = 1 / math.sqrt(math.sqrt(q.size(-1)))",
        "(q * scale) @ (k * scale).transpose(-2, -1)",
        "(q, k, v)",
    ),
    "a quotient and a product": (
        "",
        "(q / 2.5) @ (k * 0.5).mT",
        "scale=1.0 / 2.5 * 0.5",
    ),
    "another number in both": ("scale = 0.3", "(q * scale) @ (scale * k).mT", "scale=scale * scale"),
    "only the key": ("", "q @ (k * 0.3).mT", "scale=0.3"),
    "a key that is read elsewhere": ("k = k * 0.3\n    v = v + k", "(q * 0.5) @ k.mT", "q * 0.5"),
    "an equation": ("", "torch.einsum('bid,bjd->bij', q * 0.3, k * 0.5)", "scale=0.3 * 0.5"),
    "a transposed equation": (
        "q, k, v = q.mT, k.mT, v\n    s = 0.5",
        "torch.einsum('bdi,bdj->bij', q * s, k * s)",
        "scale=",
    ),
}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("parts", ["qkv.chunk(3, dim=-1)", "qkv.split(4, dim=-1)", "qkv.view(2, 5, 3, 4).unbind(2)"])
def test_the_scales_of_query_and_key_move_to_the_call(name: str, parts: str) -> None:
    lines, scores, expected = BOTH[name]
    before = "import math\nimport torch\nimport torch.nn.functional as F\n\n\ndef attend(qkv: torch.Tensor):\n"
    before += f"    q, k, v = {parts}\n" + (f"    {lines}\n" if lines else "")
    before += f"    return ({scores}).softmax(-1) @ v\n"
    after = rewritten(before)
    calls = (n for n in ast.walk(ast.parse(after)) if isinstance(n, ast.Call))
    call = next(c for c in calls if "scaled_dot" in ast.unparse(c.func))
    assert expected in ast.unparse(call).replace(".unsqueeze(1)", "")
    _assert_same_function(before, after)


def _assert_same_function(before: str, after: str) -> None:
    results = []
    for text in (before, after):
        qkv = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
        output = module_of(text).attend(qkv)
        output.mul(torch.arange(4)).sum().backward()
        results.append((output, qkv.grad))
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-10)


# How the sizes of the parts are known. The last part of a split may be smaller.
SPLITS = {
    "a full part": ("q, k, v = qkv.split(n, dim=-1)", True),
    "a full key": ("v, k, q = qkv.split(n, dim=-1)", True),
    "last parts": ("(v, w), q = qkv.split(n, dim=-1)[:2], qkv.split(n, dim=-1)[2]\n    k = q", False),
    "parts that are not counted": ("parts = qkv.split(n, dim=-1)\n    q, k, v = parts[0], parts[1], parts[2]", False),
}


@pytest.mark.parametrize("name", SPLITS)
def test_the_default_scale_is_left_out_for_parts_whose_size_is_known(name: str) -> None:
    lines, is_default = SPLITS[name]
    before = "import torch\n\n\ndef attend(qkv: torch.Tensor, n: int = 4):\n"
    before += f"    qkv = qkv.view(2, 5, 12)\n    {lines}\n"
    before += "    return ((q * n ** -0.25) @ (k * n ** -0.25).mT).softmax(-1) @ v\n"
    after = rewritten(before)
    assert "scaled_dot_product_attention" in after
    assert ("scale" not in after.split("attention(")[1]) is is_default
    _assert_same_function(before, after)


def test_a_scale_of_two_arguments_stays_because_their_owners_may_write_to_them() -> None:
    text = "import torch\n\n\ndef attend(q, k, v):\n    return ((q * 0.5) @ (k * 0.5).mT).softmax(-1) @ v\n"
    assert "q * 0.5, k * 0.5, v, scale=1.0" in rewritten(text)


# Scores with a negative scale, and the arguments of the call.
NEGATIVE = {
    "-(q @ k.mT)": "-q, k, v, scale=1.0",
    "q @ k.mT * -0.5": "-q, k, v, scale=0.5",
    "-0.5 * (q @ k.mT)": "-q, k, v, scale=0.5",
    "(q @ k.mT).amax(-1, keepdim=True) - q @ k.mT": "-q, k, v, scale=1.0",
    "torch.max(q @ k.mT, -1, keepdim=True)[0].expand_as(q @ k.mT) - q @ k.mT": "-q, k, v, scale=1.0",
}


@pytest.mark.parametrize("scores", NEGATIVE)
def test_a_negative_scale_becomes_a_negative_query(scores: str) -> None:
    before = HEAD + f"        return ({scores}).softmax(dim=-1) @ v\n"
    after = rewritten(before, unsafe=False)
    assert f"F.scaled_dot_product_attention({NEGATIVE[scores]})" in after
    assert_same(before, after, "Attend", inputs())
