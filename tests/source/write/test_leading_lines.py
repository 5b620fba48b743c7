"""Which comments and blank lines stay around removed and changed statements."""

from __future__ import annotations

import pytest

from tests.source.rewriting import rewritten, source

HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
CALL = "F.scaled_dot_product_attention(q, k, v, scale=0.5)"
# Bodies of f(q, k, v), before and after the edit.
BODIES = {
    "the first comment stays above the call": (
        "# attention\ns = q @ k.mT * 0.5\n# weights\nw = s.softmax(-1)\nreturn w @ v",
        f"# attention\nreturn {CALL}",
    ),
    "the call's own comment stays alone": (
        "# scores\ns = q @ k.mT * 0.5\nw = s.softmax(-1)\n# sum\nreturn w @ v",
        f"# sum\nreturn {CALL}",
    ),
    "comments at the ends of lines go with them": (
        "s = q @ k.mT * 0.5  # (b, t, t)\nw = s.softmax(-1)  # weights\nreturn w @ v  # (b, t, d)",
        f"return {CALL}  # (b, t, d)",
    ),
    "a comment that leads another statement stays": (
        "s = q @ k.mT * 0.5\n# twice\nv = v * 2\nw = s.softmax(-1)\nreturn w @ v",
        f"# twice\nv = v * 2\nreturn {CALL}",
    ),
    "paragraphs do not leave two blank lines": (
        "q = q + 1\n\ns = q @ k.mT * 0.5\n\nw = s.softmax(-1)\n\nreturn w @ v",
        f"q = q + 1\n\nreturn {CALL}",
    ),
    "a block does not begin with a blank line": (
        "s = q @ k.mT * 0.5\n\nw = s.softmax(-1)\n\nreturn w @ v",
        f"return {CALL}",
    ),
    "a heading of several lines stays whole": (
        "# attention\n# as in the paper\ns = q @ k.mT * 0.5\n\nw = s.softmax(-1)\n\nreturn w @ v",
        f"# attention\n# as in the paper\nreturn {CALL}",
    ),
    "a comment about removed code goes": (
        "# Normalize the attention scores\nattention_scores = q @ k.mT * 0.5\nreturn attention_scores.softmax(-1) @ v",
        f"return {CALL}",
    ),
    "a comment about a removed function goes": (
        "s = q @ k.mT * 0.5\nw = s.softmax(-1)\n# Use torch.matmul() for all ranks\nreturn torch.matmul(w, v)",
        f"return {CALL}",
    ),
    "code that is commented out and reads a removed name goes": (
        "s = q @ k.mT * 0.5\nweights = s.softmax(-1)\n# weights = drop(weights)\n\nreturn weights @ v",
        f"return {CALL}",
    ),
    "a comment that says that it is done by hand goes": (
        "# manual implementation of attention\ns = q @ k.mT * 0.5\nreturn s.softmax(-1) @ v",
        f"return {CALL}",
    ),
    "a comment about a name that stays stays": (
        "states = q\n# attention of the states\nscores = states @ k.mT * 0.5\nreturn scores.softmax(-1) @ v",
        f"states = q\n# attention of the states\nreturn {CALL.replace('(q', '(states')}",
    ),
    "only the comment above the first removed statement is a heading": (
        "s = q @ k.mT * 0.5\n# must be normalized\nw = s.softmax(-1)\nreturn w @ v",
        f"return {CALL}",
    ),
    "words to a formatter stay": (
        "# fmt: off\ns = q @ k.mT * 0.5\nw = s.softmax(-1)\n# fmt: on\nreturn w @ v",
        f"# fmt: off\n# fmt: on\nreturn {CALL}",
    ),
    "a comment in a branch that goes goes": (
        "s = q @ k.mT * 0.5\nif True:\n    # never mind\n    s = s * 1.0  # nothing\nreturn s.softmax(-1) @ v",
        None,
    ),
    "spaces before a comment keep its column": (
        "s = q @ k.mT * 0.5\nw = s.softmax(-1)\nreturn w @ v" + " " * 60 + "# sum",
        f"return {CALL}" + " " * (72 - 7 - len(CALL)) + "# sum",
    ),
    "parentheses that no longer hold anything go": (
        "s = q @ k.mT * 0.5\nreturn (s.softmax(-1) @ v).flatten(-2)",
        f"return {CALL}.flatten(-2)",
    ),
}


def function_text(body: str) -> str:
    return HEAD + "def f(q, k, v):\n" + "".join(f"    {line}\n" if line else "\n" for line in body.split("\n"))


@pytest.mark.parametrize("name", BODIES)
def test_comments_and_blank_lines(name: str) -> None:
    before, after = BODIES[name]
    text = rewritten(function_text(before))
    if after is None:
        assert "#" not in text
    else:
        assert text == function_text(after)
    assert rewritten(text) == text


def test_a_comment_that_makes_its_line_too_long_moves_above_it() -> None:
    text = rewritten(function_text("s = q @ k.mT * 0.5\nreturn s.softmax(-1) @ v  # the mean of what was asked for"))
    assert "    # the mean of what was asked for\n    return F." in text


def test_parentheses_directly_after_a_keyword_stay() -> None:
    assert f"return({CALL})" in rewritten(function_text("s = q @ k.mT * 0.5\nreturn(s.softmax(-1) @ v)"))


def test_a_call_that_is_too_long_for_its_chain_gets_a_separate_statement() -> None:
    before = source("""
        import torch
        import torch.nn.functional as F


        def f(query_states, key_states, value_states, batch_size):
            attn = query_states @ key_states.transpose(-2, -1) * 0.125
            return (attn.softmax(-1) @ value_states).transpose(1, 2).reshape(batch_size, -1)
    """)
    assert rewritten(before).endswith(
        "    attn_output = F.scaled_dot_product_attention(query_states, key_states, value_states, scale=0.125)\n"
        "    return attn_output.transpose(1, 2).reshape(batch_size, -1)\n"
    ) or "    return attn_output.transpose(1, 2).reshape(batch_size, -1)\n" in rewritten(before)
