"""The statements that an edit writes: which names they use, and what they compute."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import assert_same, rewritten, source

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
# A function, its arguments, the text that the edit must write, and text that it must not write.
WRITTEN = {
    "a name that a branch assigns again": (
        source("""
            def f(logits: torch.Tensor, temperature: float, top_k=None):
                logits = logits / max(temperature, 1e-5)
                if top_k is not None:
                    values, _ = torch.topk(logits, top_k)
                    pivot = values.select(-1, -1).unsqueeze(-1)
                    logits = torch.where(logits < pivot, -float("Inf"), logits)
                return F.softmax(logits, dim=-1)
        """),
        [(0.7,), (0.7, 2)],
        ["ops.masked_softmax(logits, logits >= pivot if top_k is not None else None)"],
        ["operand"],
    ),
    "a name that a branch between two others assigns again": (
        source("""
            def f(x: torch.Tensor, mask=None, other=None):
                scores = x @ x.mT
                if other is not None:
                    raise NotImplementedError
                if mask is not None:
                    scores = scores.masked_fill(mask.mT, -1e9)
                return scores.softmax(-1)
        """),
        [(), (torch.eye(4) > 0,)],
        ["ops.masked_softmax(scores, ~mask.mT if mask is not None else None, fill=-1e9)"],
        ["scores_1", "operand"],
    ),
    "a name that another branch binds to the needed value": (
        source("""
            def f(x: torch.Tensor, mask=None, double=False):
                scores = x @ x.mT
                if double:
                    scores = scores * 2
                if mask is not None:
                    scores = scores.masked_fill(mask, float("-inf"))
                return scores.softmax(-1)
        """),
        [(), (torch.eye(4) > 0,), (torch.eye(4) > 0, True)],
        ["scale=2 if double else 1.0"],
        ["operand", "scores_1"],
    ),
    "a name for a whole operand, not for the call in it": (
        source("""
            def f(x: torch.Tensor, layer, mask):
                weights = layer(x).transpose(0, 1) / 2.5
                weights = weights.masked_fill(mask.eq(0), -float("inf"))
                weights = torch.softmax(weights, dim=-1).masked_fill(mask.eq(0), 0.0)
                return weights
        """),
        [(torch.sin, torch.eye(4))],
        ["scores = layer(x).transpose(0, 1)\n", "ops.masked_softmax(scores, mask != 0, scale=0.4)"],
        ["operand"],
    ),
    "a name for the first argument in the line before": (
        source("""
            def f(x: torch.Tensor):
                x, gate = torch.cat([x, x + 1], -1).chunk(2, dim=-1)
                return x * F.gelu(gate)
        """),
        [()],
        ["return ops.gated_activation(\n        torch.cat([x, x + 1], -1),"],
        ["x_1"],
    ),
    "a name before another statement": (
        source("""
            def f(x: torch.Tensor):
                x, gate = torch.cat([x, x.tanh()], -1).chunk(2, dim=-1)
                print("between")
                return x * F.gelu(gate)
        """),
        [()],
        ["ops.gated_activation(x_1, "],
        [],
    ),
    "a norm whose name the sum reads": (
        source("""
            class Block(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.norm = nn.LayerNorm(4)
                    self.drop = nn.Dropout(0.0)

                def forward(self, x, y):
                    x = x + self.drop(y)
                    y = self.norm(x)
                    return x + y.tanh()


            f = Block().double()
        """),
        [(torch.ones(4, 4, dtype=torch.float64),)],
        ["x, y = ops.dropout_add_norm("],
        ["normed"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN)
def test_an_edit_uses_the_existing_names(case: str) -> None:
    body, calls, wanted, unwanted = WRITTEN[case]
    before = HEAD + body
    after = rewritten(before)
    assert all(text in after for text in wanted) and not any(text in after for text in unwanted), after
    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for call in calls:
        first, second = ([*result] if isinstance(result, tuple) else [result] for result in (
            _run(before, x, *call), _run(after, x, *call)
        ))  # fmt: skip
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


def _run(text: str, *arguments: object) -> object:
    names: dict[str, object] = {}
    exec(compile(text, "block.py", "exec"), names)
    return names["f"](*arguments)  # type: ignore[operator]


def test_a_conditional_expression_that_is_too_long_gets_three_lines() -> None:
    after = rewritten(HEAD + source("""
        def attend_to_the_columns(query_states, key_states, value_states, self_attention_padding_mask=None):
            attention_scores = query_states @ key_states.transpose(-2, -1)
            if self_attention_padding_mask is not None:
                attention_scores = attention_scores.masked_fill(
                    self_attention_padding_mask.permute(2, 0, 1).unsqueeze(0), -1e4
                )
            probabilities = attention_scores.softmax(-1)
            return probabilities @ value_states, probabilities
    """))  # fmt: skip
    lines = [line.strip() for line in after.splitlines()]
    at = lines.index("(")
    assert lines[at + 1 : at + 5] == [
        "~self_attention_padding_mask.permute(2, 0, 1).unsqueeze(0)",
        "if self_attention_padding_mask is not None",
        "else None",
        "),",
    ]


ATTEND = source("""
    class Attend(nn.Module):
        def two(self, z):
            return z * 2

        def forward(self, q, k, v):
            s = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
            w = torch.softmax(s, dim=-1)
            BETWEEN
            out = w @ v
            return out
""")


def square_inputs() -> list[torch.Tensor | None]:
    made = torch.Generator().manual_seed(0)
    return [torch.randn(2, 4, 4, dtype=torch.float64, generator=made) for _ in range(3)]


@pytest.mark.parametrize("between", ["k = v", "q = v", "k = q", "q, k = k, q", "z = k\n        k = v\n        v = z"])
def test_a_name_that_holds_another_argument_is_not_written_for_the_first(between: str) -> None:
    before = HEAD + ATTEND.replace("BETWEEN", between)
    after = rewritten(before, unsafe=False)
    assert "scaled_dot_product_attention" in after
    assert_same(before, after, "Attend", square_inputs())


@pytest.mark.parametrize(
    "between",
    [
        "q = w + v",
        "q = w.clone()",
        "q = self.two(w)",
        "k = w.detach() + v",
        "def inner(z=q):\n            return z * w.mean()\n        q = inner(v)",
        "q = (lambda: w.sum())()",
    ],
)
def test_code_that_does_nothing_may_read_a_name_of_a_removed_value(between: str) -> None:
    before = HEAD + ATTEND.replace("BETWEEN", between)
    assert_same(before, rewritten(before), "Attend", square_inputs())


@pytest.mark.parametrize(
    ("targets", "rest", "text"),
    [
        ("y = x", "x + y", "    y = x\n"),
        ("x = y", "x + y", "    y = x\n"),
        ("y = x = z", "x + y * z", "    y = z = x\n"),
    ],
)
def test_a_result_with_two_names_is_not_assigned_to_itself(targets: str, rest: str, text: str) -> None:
    before = HEAD + source(f"""
        class Mix(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)

            def forward(self, x):
                print(x.shape)
                return self.linear(x), None

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.mix, self.norm, self.drop = Mix(), nn.LayerNorm(8), nn.Dropout(0.0)

            def forward(self, x):
                x = x + self.drop(self.mix(x)[0])
                {targets} = self.norm(x)
                return {rest}
    """)
    after = rewritten(before)
    assert "ops.dropout_add_norm(" in after
    assert text in after and "x = x\n" not in after and "= x =" not in after
    assert_same(before, after, "Block", [torch.rand(2, 3, 8, dtype=torch.float64)])


@pytest.mark.parametrize(
    ("first", "text"),
    [("nn.Dropout(0.0), nn.LayerNorm(8)", "self.net[:2](x)"), ("nn.LayerNorm(8)", "self.net[0](x)")],
)
def test_several_layers_before_the_fused_ones_are_a_slice(first: str, text: str) -> None:
    before = HEAD + source(f"""
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential({first}, nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

            def forward(self, x):
                return self.net(x)
    """)
    after = rewritten(before)
    assert "ops.mlp(" in after and text in after
    assert_same(before, after, "Block", [torch.rand(2, 3, 8, dtype=torch.float64)])
