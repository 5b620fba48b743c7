"""What an edit changes in a file, and what it does not change."""

from __future__ import annotations

import ast

import pytest
from libcst import parse_module

from autofuse.loading.registry import load_rules
from autofuse.source.find.check import proposals
from autofuse.source.write.file_edits import CannotWrite, apply_edits, apply_proposals, lost_comments
from tests.source.rewriting import rewritten, rewritten_bytes, source

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\n\n\n"


def body(text: str) -> str:
    """The body of the only function in a rewritten text."""
    return rewritten(HEAD + source(text)).split("\n\n\n", 1)[1]


def test_the_call_replaces_the_result_and_unneeded_statements_are_removed() -> None:
    assert body("""
        def attend(q, k, v):
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            weights = F.softmax(scores, dim=-1)
            return weights @ v
    """) == source("""
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v)
    """)


def test_comments_of_removed_statements_go_and_the_comment_above_the_first_stays() -> None:
    assert body("""
        def attend(q, k, v):
            # how much each key matters
            scores = q @ k.mT  # (T, S)
            weights = F.softmax(scores, dim=-1)  # noqa: E501
            return weights @ v  # mixed
    """) == source("""
        def attend(q, k, v):
            # how much each key matters
            return F.scaled_dot_product_attention(q, k, v, scale=1.0)  # mixed
    """)


def test_a_comment_inside_the_replaced_expression_moves_above_its_statement() -> None:
    assert "    # inside\n    return F.scaled_dot_product_attention(" in body("""
        def attend(q, k, v):
            return F.softmax(
                q @ k.mT,  # inside
                dim=-1,
            ) @ v
    """)


def test_blank_lines_around_removed_statements_become_one() -> None:
    assert body("""
        def attend(q, k, v):
            q = q.contiguous()

            scores = q @ k.mT

            return scores.softmax(-1) @ v
    """) == source("""
        def attend(q, k, v):
            q = q.contiguous()

            return F.scaled_dot_product_attention(q, k, v, scale=1.0)
    """)


def test_blocks_on_one_line_and_semicolons_work() -> None:
    text = body("""
        def attend(q, k, v, mask=None):
            s = q @ k.mT; z = 1
            if mask is not None: s = s.masked_fill(mask, float("-inf"))
            w = s.softmax(-1); return w @ v + z
    """)
    assert text.startswith("def attend(q, k, v, mask=None):\n    z = 1\n    return F.scaled_dot_product_attention(")
    assert "attn_mask=~mask if mask is not None else None" in text and ";" not in text


def test_a_function_on_one_line_stays_on_one_line() -> None:
    before = "def gelu(x): return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))\n"
    assert body(before) == "def gelu(x): return F.gelu(x)\n"


def test_a_branch_with_remaining_statements_stays() -> None:
    text = body("""
        def attend(q, k, v, mask=None):
            s = q @ k.mT
            if mask is not None:
                mask = mask.bool()
                s = s.masked_fill(~mask, float("-inf"))
            return s.softmax(-1) @ v
    """)
    assert "    if mask is not None:\n        mask = mask.bool()\n    return" in text


def test_an_empty_branch_stays_if_its_test_may_have_side_effects() -> None:
    text = body("""
        def attend(q, k, v, causal):
            s = q @ k.mT
            if asked(causal):
                s = s + causal
            return s.softmax(-1) @ v
    """)
    assert "if asked(causal):" in text


def test_a_call_that_is_too_long_gets_one_argument_per_line() -> None:
    text = body("""
        def attend(query_projected, key_projected, value_projected, attention_mask):
            scores = query_projected @ key_projected.mT + attention_mask
            return scores.softmax(dim=-1) @ value_projected
    """)
    mask = "attn_mask=attention_mask.to(query_projected.dtype)"
    arguments = ["query_projected", "key_projected", "value_projected", mask, "scale=1.0"]
    lines = "".join(f"        {a},\n" for a in arguments)
    assert text.endswith(f"    return F.scaled_dot_product_attention(\n{lines}    )\n")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_newlines_byte_order_marks_and_other_lines_keep_their_bytes(newline: str, bom: bytes) -> None:
    before = HEAD + source("""
        odd   = {  'a' :1 }   # ünïcode, "quotes"
        def attend(q, k, v):
            s = q @ k.mT
            return s.softmax(-1) @ v
        last=3
    """)
    encoded = bom + before.replace("\n", newline).encode()
    after = rewritten_bytes(encoded)
    assert after.startswith(bom) and after.count(b"\r\n") == (after.count(b"\n") if newline == "\r\n" else 0)
    kept = [line for line in encoded.splitlines(keepends=True) if b"s = q" not in line and b"softmax" not in line]
    assert [line for line in after.splitlines(keepends=True) if b"scaled_dot" not in line] == kept


def test_tabs_are_used_where_the_file_uses_them() -> None:
    text = body(
        "def attend(query, key, value, mask):\n\ts = query @ key.mT\n\ts = s.masked_fill(mask == 0, -1e9)\n"
        "\treturn s.softmax(-1) @ value\n"
    )
    assert "\n\treturn F.scaled_dot_product_attention(" in text and "    " not in text


def test_text_before_the_expression_may_hold_characters_of_several_bytes() -> None:
    assert "'é', F.scaled_dot_product_attention(q, k, v, scale=1.0), 'ü'" in body("""
        def attend(q, k, v):
            s = q @ k.mT
            return 'é', s.softmax(-1) @ v, 'ü'
    """)


@pytest.mark.parametrize(
    ("imports", "called"),
    [
        ("import torch\nimport torch.nn.functional as F\n", "F.gelu("),
        ("import torch\nfrom torch.nn import functional as fn\n", "fn.gelu("),
        ("import torch\nfrom torch import nn\n", "nn.functional.gelu("),
        ("import torch\n", "torch.nn.functional.gelu("),
        ("import torch as th\n", "th.nn.functional.gelu("),
        ("from torch import erf\n", "F.gelu("),
    ],
)
def test_the_call_uses_the_imported_names_of_torch(imports: str, called: str) -> None:
    erf = {"th": "th.erf", "from torch import erf": "erf"}
    call = next((v for k, v in erf.items() if k in imports and k != "th" or f"as {k}\n" in imports), "torch.erf")
    text = rewritten(f"{imports}\n\ndef f(x):\n    return 0.5 * x * (1 + {call}(x * 0.7071067811865475))\n")
    assert f"return {called}x)" in text
    assert text.count("import torch.nn.functional as F") == (1 if called.startswith("F.") else 0)


def test_an_import_is_added_once_after_the_existing_imports() -> None:
    text = rewritten('''
        """Docstring."""
        from __future__ import annotations

        from torch import erf


        def f(x):
            return 0.5 * x * (1 + erf(x * 0.7071067811865475))


        def g(x):
            return 0.5 * x * (1 + erf(x * 0.7071067811865475))
    ''')
    assert "\n\nimport torch.nn.functional as F\nfrom torch import erf\n\n" in text
    assert text.count("import torch.nn.functional") == 1


def test_a_second_run_finds_nothing() -> None:
    before = HEAD + source("""
        def attend(q, k, v, mask=None):
            s = q @ k.mT
            if mask is not None:
                s = s + mask
            return s.softmax(-1) @ v
    """)
    after = rewritten(before)
    assert after != before and rewritten(after) == after


def test_the_syntax_outside_of_the_edit_does_not_change() -> None:
    before = HEAD + "def a(x):\n    return [x for x in (1,2)]\n\n\ndef f(x):\n    return x * torch.sigmoid(x)\n"
    after = rewritten(before)
    assert ast.dump(ast.parse(before).body[3]) == ast.dump(ast.parse(after).body[3])


def test_a_function_that_libcst_does_not_reproduce_stays() -> None:
    text = b"import torch\n\x0cdef f(x):\n    return x * torch.sigmoid(x)\n"
    if parse_module(text).bytes == text:
        pytest.skip("this libcst gives it back")
    found = proposals(text, "file.py", rules=load_rules())
    with pytest.raises(CannotWrite, match="leaves it alone"):
        apply_proposals(text, found)


def test_comments_of_remaining_statements_are_kept() -> None:
    text = (
        HEAD
        + source("""
        def attend(q, k, v, mask=None):
            s = q @ k.mT  # one
            # two
            if mask is not None:  # three
                # four
                s = s + mask  # five
                # six
            else:  # seven
                s = s * 1.0  # eight
            w = s.softmax(  # nine
                -1  # ten
            )
            # eleven
            return w @ v  # twelve
        # thirteen
    """)
    ).encode()
    (proposal,) = proposals(text, "file.py", rules=load_rules())
    assert proposal.edit is not None
    lost = lost_comments(text, apply_edits(text, [proposal.edit]))
    assert lost == [f"# {n}" for n in "one two three four five six seven eight nine ten".split()]
