"""The form of a registered buffer follows from the expression that registers it."""

from __future__ import annotations

import ast
import textwrap

import pytest

from autofuse.source.capture.buffer_contents import buffer_form
from autofuse.source.capture.scope import file_scope


def form_of(body: str) -> str | None:
    """The form of the buffer `mask` that `body` registers in `__init__`."""
    text = (
        "import torch\nfrom torch import nn\nclass Block(nn.Module):\n    def __init__(self, n, flag):\n"
        "        super().__init__()\n" + textwrap.indent(textwrap.dedent(body), " " * 8)
    )
    scope = file_scope(ast.parse(text))
    return buffer_form(scope, scope.classes["Block"], "mask")


FORMS = {
    "lower": [
        "self.register_buffer('mask', torch.tril(torch.ones(n, n)))",
        "self.register_buffer('mask', torch.tril(torch.ones(n, n)).view(1, 1, n, n))",
        "self.register_buffer('mask', torch.ones(n, n).tril().bool()[None, None])",
        "self.register_buffer('mask', 1 - torch.triu(torch.ones(n, n), diagonal=1))",
        "mask = torch.tril(torch.ones(n, n))\nself.register_buffer('mask', mask.view(1, 1, n, n))",
        "ones = torch.ones(n, n)\nmask = torch.tril(ones)\nself.register_buffer('mask', mask)",
    ],
    "upper": [
        "self.register_buffer('mask', torch.triu(torch.ones(n, n, dtype=torch.bool), 1))",
        "self.register_buffer('mask', ~torch.tril(torch.ones(n, n)).bool())",
    ],
    "bias": ["self.register_buffer('mask', torch.full((n, n), float('-inf')).triu(1))"],
}


@pytest.mark.parametrize(("form", "body"), [(f, b) for f, bodies in FORMS.items() for b in bodies])
def test_a_triangle_is_recognized_in_every_spelling(form: str, body: str) -> None:
    assert form_of(body) == form


@pytest.mark.parametrize(
    "body",
    [
        "self.register_buffer('mask', torch.tril(torch.ones(n, n), 1))",
        "self.register_buffer('mask', torch.tril(torch.rand(n, n)))",
        "mask = torch.tril(torch.ones(n, n))\nmask[0] = 1\nself.register_buffer('mask', mask)",
        "mask = torch.tril(torch.ones(n, n))\nmask.fill_diagonal_(0)\nself.register_buffer('mask', mask)",
        "mask = torch.tril(torch.ones(n, n))\nif flag:\n    mask = mask.t()\nself.register_buffer('mask', mask)",
        "mask = torch.tril(torch.ones(n, n))\nmask += 1\nself.register_buffer('mask', mask)",
        "self.register_buffer('mask', flag)",
    ],
)
def test_an_unclear_buffer_has_no_form(body: str) -> None:
    assert form_of(body) is None
