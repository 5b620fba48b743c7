"""Where an added argument goes if the line of the last argument has no room for it."""

from __future__ import annotations

import ast

import pytest

from tests.source.rewriting import rewritten, source

HEAD = "import torch\n\n\n"
PARAMETERS = "list(encoder.parameters()) + list(predictor.parameters())"

CASES = {
    "a line that ends with the parenthesis": (
        f"""
        def optimizer(encoder, predictor, args):
            return torch.optim.Adam(
                {PARAMETERS}, lr=args.rate)
        """,
        f"""
        def optimizer(encoder, predictor, args):
            return torch.optim.Adam(
                {PARAMETERS}, lr=args.rate,
                fused=True)
        """,
    ),
    "a parenthesis on its own line": (
        f"""
        def optimizer(encoder, predictor, args):
            return torch.optim.Adam(
                {PARAMETERS}, lr=args.rate
            )
        """,
        """
        def optimizer(encoder, predictor, args):
            return torch.optim.Adam(
                list(encoder.parameters()) + list(predictor.parameters()),
                lr=args.rate,
                fused=True,
            )
        """,
    ),
    "an element of a dictionary": (
        """
        def optimizers(model, decay):
            return {
                "distmult": torch.optim.Adam(model.parameters(), lr=0.0001, weight_decay=decay),
                "none": None,
            }
        """,
        """
        def optimizers(model, decay):
            return {
                "distmult": torch.optim.Adam(
                    model.parameters(), lr=0.0001, weight_decay=decay, fused=True
                ),
                "none": None,
            }
        """,
    ),
    "a line with room, whose comment goes above the statement": (
        """
        def optimizer(model, other):
            return torch.optim.Adam([
                dict(params=model.parameters(), weight_decay=5e-4),
                dict(params=other.parameters(), weight_decay=0)
            ], lr=0.01)  # The weights of the second model do not decay, because it is small.
        """,
        """
        def optimizer(model, other):
            # The weights of the second model do not decay, because it is small.
            return torch.optim.Adam([
                dict(params=model.parameters(), weight_decay=5e-4),
                dict(params=other.parameters(), weight_decay=0)
            ], lr=0.01, fused=True)
        """,
    ),
    "comments, blank lines and spaces of the other arguments": (
        """
        def optimizers(model, other, third):
            return (
                torch.optim.Adam(
                    model.parameters(),  # all of them
                    lr=0.01
                ),
                torch.optim.Adam(
                    other.parameters(),SPACE
                    lr=0.02),
                torch.optim.Adam(
                    third.parameters(),

                    # a large rate
                    lr=0.03),
            )
        """.replace("SPACE", " "),
        """
        def optimizers(model, other, third):
            return (
                torch.optim.Adam(
                    model.parameters(),  # all of them
                    lr=0.01,
                    fused=True
                ),
                torch.optim.Adam(
                    other.parameters(),SPACE
                    lr=0.02,
                    fused=True),
                torch.optim.Adam(
                    third.parameters(),

                    # a large rate
                    lr=0.03,
                    fused=True),
            )
        """.replace("SPACE", " "),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_added_argument_makes_no_line_too_long(case: str) -> None:
    before, after = (HEAD + source(text) for text in CASES[case])
    assert rewritten(before) == after
    ast.parse(after)
    code = (line.partition("  #")[0] for line in rewritten(before).splitlines())
    assert max(map(len, code)) <= 88
