"""Long expressions are broken as Black and ruff break them, and keep their meaning."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from autofuse.source.targets.line_breaks import Lines, break_argument, break_assignment

WIDTH = 88
NESTED = "(mask + bias_of_positions if bias_of_positions is not None else mask)"
EXPRESSIONS = {
    "a conditional": "attention_mask + bias_of_positions if bias_of_positions is not None else attention_mask_of_keys",
    "a conditional whose first side is one": f"{NESTED} if mask is not None else bias_of_positions_of_the_keys",
    "a conditional whose second side is one": f"bias_of_positions_of_the_keys if mask is None else {NESTED}",
    "a chain of conditionals": "first_mask if has_first_mask_of_keys else second_mask if has_second_mask "
    "else no_mask_at_all",
    "a long side in a conditional": f"{NESTED.replace('mask', 'attention_mask_of_keys')} if causal else None",
    "two methods": "mask.expand(batch, self.heads, rows, columns).reshape(batch * self.heads, rows, columns, 1)",
    "a chain of methods": "mask.unsqueeze(1).unsqueeze(0).expand(batch, self.heads, rows, "
    "columns).reshape(-1, rows, 1)",
    "a chain of methods on an item": "mask[None, :, None].expand(batch, self.heads, rows, "
    "columns).reshape(-1, rows, 1)",
    "a sum": "words + positions + left_positions + upper_positions + right_positions + lower_positions + types",
    "a sum with a chain of methods": "bias.unsqueeze(0) + mask[None, :, None].expand(batch, windows, heads, n, n)"
    ".reshape(-1, heads, n, n).to(query.dtype)",
    "a product of conditionals": "(1.0 / keys.size(-1) ** 0.5 if self.scales_weights else 1.0) * "
    "(1.0 / float(self.layer_index + 1) if self.scales_by_layer else 1.0)",
    "a product of sums": "(words + positions + left_positions) * (upper_positions + right_positions - lower_positions)",
    "a difference in parentheses": "words_of_the_batch - (left_positions - upper_positions) - "
    "(right_positions - lower)",
    "a call with many arguments": "torch.where(causal_mask_of_positions, attention_mask_of_keys, "
    "torch.finfo(x.dtype).min)",
    "tests": "self.training_of_the_layer and not self.is_exported_model or attention_mask_of_the_keys is None",
    "characters of two bytes": "gewichtung_für_schlüssel + gewichtung_für_größe + gewichtung_für_länge + "
    "gewicht_für_höhe",
}
RUFF = Path(sys.executable).with_name("ruff")
FORMATTERS = {
    "ruff": (str(RUFF), "format", "--isolated", f"--line-length={WIDTH}", "--stdin-filename=x.py", "-"),
    "black": (sys.executable, "-m", "black", "-q", f"--line-length={WIDTH}", "-"),
}
INSTALLED = {"ruff": RUFF.exists(), "black": importlib.util.find_spec("black") is not None}


def argument(text: str, name: str = "") -> str:
    """A call with the expression as an argument of its own line."""
    inner = Lines("    ", "    ", "\n", WIDTH)
    return f"attend(\n    {break_argument(f'{name}{text}', inner)},\n)\n"


def assignment(text: str) -> str:
    return break_assignment(f"attention_mask = {text}", "    ", "\n", WIDTH) + "\n"


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_broken_expression_means_the_same(name: str) -> None:
    text = EXPRESSIONS[name]
    assert ast.dump(ast.parse(assignment(text))) == ast.dump(ast.parse(f"attention_mask = {text}"))
    assert ast.dump(ast.parse(argument(text))) == ast.dump(ast.parse(f"attend({text})"))
    assert ast.dump(ast.parse(argument(text, "mask="))) == ast.dump(ast.parse(f"attend(mask={text})"))


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_no_line_is_too_long(name: str) -> None:
    text = EXPRESSIONS[name]
    assert len(f"attention_mask = {text}") > WIDTH
    for code in (assignment(text), argument(text), argument(text, "mask=")):
        assert max(map(len, code.split("\n"))) <= WIDTH, code


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_formatters_leave_the_lines_as_they_are(formatter: str) -> None:
    if not INSTALLED[formatter]:
        pytest.skip(f"{formatter} is not installed")
    texts = EXPRESSIONS.values()
    code = "".join(make(t) for t in texts for make in (assignment, argument, lambda t: argument(t, "mask=")))
    made = subprocess.run(FORMATTERS[formatter], input=code, capture_output=True, check=True, text=True, cwd="/")
    assert made.stdout == code


def test_a_short_expression_stays_on_its_line() -> None:
    assert break_argument("mask if causal else None", Lines("    ", "    ", "\n", WIDTH)) == "mask if causal else None"
    assert break_assignment("    mask = keys & rows", "    ", "\n", WIDTH) == "    mask = keys & rows"


def test_an_expression_without_a_place_to_break_stays_whole() -> None:
    name = "a" * 100
    assert break_argument(name, Lines("", "    ", "\n", WIDTH)) == name
    assert break_argument(f"*{name}", Lines("", "    ", "\n", WIDTH)) == f"*{name}"
