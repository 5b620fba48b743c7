"""Helpers, nested functions and local names for modules are inlined."""

from __future__ import annotations

import textwrap

import pytest
import torch

from tests.source.rewriting import assert_same, rewritten

HEAD = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.Softmax(dim=-1)
            self.scale = 0.5
"""
Q, K, V = (torch.randn(2, 3, 4, 5, dtype=torch.float64) for _ in range(3))


def rewrite_model(forward: str, top: str = "") -> str:
    before = HEAD.replace("    class Model", top + "    class Model") + forward
    after = rewritten(before)
    assert_same(before, after, "Model", (Q, K, V))
    return after


def test_a_nested_function_that_is_only_called_is_a_helper() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v):
            def weights(scores):
                return scores.softmax(dim=-1)
            return weights(q @ k.mT * self.scale) @ v
    """)
    assert "scaled_dot_product_attention(" in text


def test_a_nested_function_sees_the_instance_of_its_method() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v):
            def attention(q):
                return self.attend(q @ k.mT * self.scale) @ v
            return attention(q)
    """)
    assert "scale=self.scale" in text


def test_a_nested_function_that_is_passed_on_keeps_the_values_that_it_reads() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v):
            weights = self.attend(q @ k.mT)
            def total(x):
                return x + weights.sum()
            return sum(map(total, [weights @ v]))
    """)
    assert "scaled_dot_product_attention(" not in text


def test_the_softmax_and_the_product_may_be_in_a_helper() -> None:
    top = """
    def mix(v, scores):
        return F.softmax(scores, dim=-1) @ v

"""
    text = rewrite_model("""
        def forward(self, q, k, v):
            scores = q @ k.mT * self.scale
            return mix(v, scores)
    """, top)  # fmt: skip
    assert "scaled_dot_product_attention(q, k, v, scale=self.scale)" in text


def test_a_layer_may_have_a_local_name() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v):
            softmax = self.attend
            return softmax(q @ k.mT) @ v
    """)
    assert "scaled_dot_product_attention(" in text


def test_a_record_function_block_does_not_change_its_content() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v):
            with torch.profiler.record_function("scores"):
                scores = q @ k.mT * self.scale
            return self.attend(scores) @ v
    """)
    assert "scaled_dot_product_attention(" in text


def test_a_number_is_not_inverted_by_logical_not() -> None:
    before = HEAD + """
        def forward(self, q, k, v, mask):
            scores = (q @ k.mT).masked_fill(mask.logical_not(), float("-inf"))
            return self.attend(scores) @ v
    """  # fmt: skip
    after = rewritten(before)
    assert "attn_mask=mask != 0" in after
    kept = torch.ones(4, 4, dtype=torch.float64).tril()
    assert_same(before, after, "Model", (Q, K, V, kept))


def test_an_unused_shape_keeps_its_name_bound() -> None:
    rewrite_model("""
        def forward(self, q, k, v):
            scores = q @ k.mT
            scores = scores - scores.amax(-1, keepdim=True)
            *_, keys = scores.shape
            exp = scores.exp()
            return exp / exp.sum(-1, keepdim=True) @ v
    """)


def test_a_name_bound_in_a_branch_is_deleted_with_it() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v, mask=None):
            scores = q @ k.mT
            if mask is not None:
                scores = scores + mask
            weights = self.attend(scores)
            del scores
            return weights @ v
    """)
    assert "scaled_dot_product_attention(" in text


def test_an_unused_harmless_call_does_not_prevent_an_edit() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v):
            scores = q @ k.mT
            count = len(v)
            return self.attend(scores) @ v
    """)
    assert "scaled_dot_product_attention(" in text


def test_an_attribute_that_is_assigned_in_between_is_read_before() -> None:
    before = HEAD + """
        def forward(self, q, k, v):
            scores = q @ k.mT * self.scale
            self.scale = 0.25
            return self.attend(scores) @ v
    """  # fmt: skip
    after = rewritten(before)
    assert after.index("scale=self.scale") < after.index("self.scale = 0.25")


def test_code_inside_a_helper_is_rewritten_only_there() -> None:
    before = """
        def attend(q, k, v):
            return F.softmax(q @ k.mT, dim=-1) @ v
    """
    text = rewritten(
        "import torch.nn.functional as F" + textwrap.dedent(before) + "def f(q, k, v):\n    return attend(q, k, v)\n"
    )
    assert text.count("scaled_dot_product_attention(") == 1 and "return attend(q, k, v)" in text


def test_a_tensor_that_is_overwritten_through_a_view_is_used_with_its_new_content() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v):
            scores = q @ k.mT * self.scale
            v = v * 1
            v.requires_grad_().detach().mul_(2.0)
            return self.attend(scores) @ v
    """)
    assert text.index(".mul_(2.0)") < text.index("scaled_dot_product_attention(")


def test_a_value_with_a_hook_is_kept() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v):
            k_t = k.mT * self.scale
            k_t.register_hook(lambda g: g * 2)
            return self.attend(q @ k_t) @ v
    """)
    assert "scaled_dot_product_attention(" not in text


def test_a_number_that_is_added_to_the_scores_is_not_a_mask() -> None:
    text = rewrite_model("""
        def forward(self, q, k, v):
            return self.attend(q @ k.mT + self.scale) @ v
    """)
    assert "attn_mask" not in text


def test_a_name_that_the_last_step_overwrites_keeps_its_value() -> None:
    before = """
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(5))

            def forward(self, q, k, v):
                y = q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-6)
                y.mul_(self.weight)
                return y
    """
    torch.manual_seed(0)
    assert_same(before, rewritten(before), "Model", (Q, K, V))


def test_scores_that_are_overwritten_after_their_last_use_stay_bound() -> None:
    rewrite_model("""
        def forward(self, q, k, v):
            scores = q @ k.mT
            scores = scores * self.scale
            weights = self.attend(scores)
            scores *= 2
            return weights @ v
    """)


DECORATED = """
    import torch

    {decorator}
    def halves(x):
        {body}

    def f(x, cos, sin):
        return x * cos + halves(x) * sin
"""
MOVED = "a, b = x.chunk(2, -1); return torch.cat((-b, a), -1)"
SHUT_OFF = "@torch.amp.autocast('cuda', enabled=False)"


@pytest.mark.parametrize("decorator", ["@torch.jit.script", "@torch.compile", "@torch.compile(dynamic=True)", SHUT_OFF])
def test_a_helper_that_is_compiled_or_only_moves_data_without_autocast_is_inlined(decorator: str) -> None:
    assert "rotary(x, cos, sin)" in rewritten(DECORATED.format(decorator=decorator, body=MOVED))


@pytest.mark.parametrize(
    ("decorator", "body"),
    [
        ("@torch.no_grad()", MOVED),
        ("@cached", MOVED),
        ("@torch.amp.autocast('cuda')", MOVED),
        (SHUT_OFF, "a, b = torch.matmul(x, x).chunk(2, -1); return torch.cat((-b, a), -1)"),
    ],
)
def test_a_helper_with_another_decorator_is_not_inlined(decorator: str, body: str) -> None:
    assert "rotary(" not in rewritten(DECORATED.format(decorator=decorator, body=body))
