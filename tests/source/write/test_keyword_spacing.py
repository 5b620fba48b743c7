"""New arguments have spaces around `=` where the author writes them so."""

from __future__ import annotations

import pytest

from autofuse.source.write.keyword_spacing import is_spaced
from tests.source.rewriting import rewritten, source

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch.optim import Adam\n\n\n"
SPACED = "def layers(width):\n    return torch.nn.Linear(width, width, bias = False), torch.nn.Dropout(p = 0.1)\n\n\n"


@pytest.mark.parametrize(
    ("text", "spaced"),
    [
        ("f(x, a = 1)", True),
        ("f(\n    a = 1,\n    b = 2,\n)", True),
        ("f(x, a=1)", False),
        ("f(x, a=1, b = 2)", False),
        ("x = 1\ny = 2", False),
        ("q, k, v = 1, 2, 3\nf(q, k, a=1)", False),
        ("(q, k) = f(q), (v := 2)\n", False),
        ("def f(x, a = 1): pass", True),
        ("def f(x, a: int = 1, b=2): pass", False),
        ("f('é', a = 1)", True),
        ("f('a = 1, b = 2', c=3)", False),
        ("if f(x, a == 1): pass", False),
    ],
)
def test_most_keyword_arguments_decide(text: str, spaced: bool) -> None:
    assert is_spaced(text) is spaced


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Adam(p, lr = 1e-3)", "Adam(p, lr = 1e-3, fused = True)"),
        ("Adam(p, lr=1e-3)", "Adam(p, lr=1e-3, fused=True)"),
        ("Adam(p)", "Adam(p, fused = True)"),
    ],
)
def test_an_added_argument_is_spaced_like_the_others_of_its_call(before: str, after: str) -> None:
    text = f"{HEAD}{SPACED}def optimizer(p):\n    return {before}\n"
    assert rewritten(text) == text.replace(before, after)


def test_an_added_argument_has_no_spaces_in_a_file_without_them() -> None:
    text = f"{HEAD}def optimizer(p):\n    return Adam(p)\n"
    assert rewritten(text) == text.replace("Adam(p)", "Adam(p, fused=True)")


@pytest.mark.parametrize("result", ["(weights @ v)", "(weights @ v).transpose(1, 2).contiguous()"])
def test_a_new_call_is_spaced_as_the_file_is(result: str) -> None:
    text = HEAD + source(f"""
        def attend(q, k, v, scale):
            weights = F.softmax(q @ k.mT * scale, dim = -1)
            return {result}
    """)
    assert "F.scaled_dot_product_attention(q, k, v, scale = scale)" in rewritten(text)
    assert "F.scaled_dot_product_attention(q, k, v, scale=scale)" in rewritten(text.replace("dim = ", "dim="))


def test_a_long_new_call_with_spaces_stays_within_the_limit() -> None:
    text = HEAD + source("""
        def attend(query_states, key_states, value_states, relative_position_bias, temperature):
            scores = query_states @ key_states.mT * temperature + relative_position_bias
            weights = F.softmax(scores, dim = -1)
            return weights @ value_states
    """)
    lines = rewritten(text).splitlines()
    assert "scale = temperature" in "\n".join(lines)
    assert max(map(len, lines)) <= 88
