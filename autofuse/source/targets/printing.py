"""Python text from templates and expressions, with parentheses only where Python needs them.

Python's own parser decides about parentheses, so there is no table of precedences. This file handles text and syntax,
not graphs.
"""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from autofuse.ir.layout import Tail
from autofuse.ir.steps import spend

_SPACED_POWER = re.compile(rb"\w \*\* -?\w")


@dataclass
class SourceText:
    """The text of one file, by line and by column.

    Columns count bytes of UTF-8, as ast does for every file encoding.
    """

    source: bytes
    lines: list[bytes] = field(init=False)
    _texts: dict[ast.expr, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(self.source).readline)
        encoded = self.source if encoding == "utf-8" else self.source.decode(encoding).encode()
        self.lines = encoded.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")

    @cached_property
    def hugs_powers(self) -> bool:
        """Whether the file writes `x**2`, as formatters do, and not `x ** 2`."""
        return _SPACED_POWER.search(self.source) is None

    def size_of(self, node: ast.stmt) -> int:
        """The number of bytes in the lines of a statement; the whole file for a node without an end line."""
        if node.end_lineno is None:
            return len(self.source)
        return sum(len(line) + 1 for line in self.lines[node.lineno - 1 : node.end_lineno])

    def lines_of(self, node: ast.stmt) -> str:
        """The lines of a statement, with their comments."""
        return b"\n".join(self.lines[node.lineno - 1 : node.end_lineno]).decode(errors="replace")

    def of(self, node: ast.expr) -> str:
        """The source of an expression on one line.

        An expression that contains comments or long strings is printed by ast.unparse instead.
        """
        if node not in self._texts:
            self._texts[node] = self._written_size(node)
        return self._texts[node]

    def _written_size(self, node: ast.expr) -> str:
        last = node.end_lineno or node.lineno
        parts = self.lines[node.lineno - 1 : last]
        parts[-1] = parts[-1][: node.end_col_offset]
        parts[0] = parts[0][node.col_offset :]
        text = " ".join(p.decode(errors="replace").strip() for p in parts)
        spend(1 + len(text) // 10)
        for bracket in "([{":
            text = text.replace(bracket + " ", bracket) if len(parts) > 1 else text
        for bracket in ")]}":
            text = text.replace(" " + bracket, bracket) if len(parts) > 1 else text
        return (
            text.replace(",)", ")")
            if is_same_expression(text.replace(",)", ")"), node)
            else text
            if is_same_expression(text, node)
            else ast.unparse(node)
        )


def is_simple_operand(text: str) -> bool:
    """Whether formatters write no spaces around `**` next to this operand: a name, an attribute, or a number."""
    return re.fullmatch(r"-?[\w.]+", text) is not None


def is_same_expression(text: str, node: ast.expr) -> bool:
    """Whether `text` parses to the expression `node`."""
    try:
        return ast.dump(ast.parse(text, mode="eval").body) == ast.dump(node)
    except SyntaxError:
        return False


@lru_cache(maxsize=4096)
def fill(template: str, *parts: str, tight: bool = False) -> str:
    """Return `template` with expressions in its placeholders.

    Args:
        template: a format string of an expression.
        parts: the expressions, or the slices of an index. Each expression gets parentheses only if the parse tree would
            differ without them.
        tight: put parentheses where an attribute access on the result needs them.
    """
    wrapped = [p if _is_slice(p) else f"({p})" for p in parts]
    if tight:
        template += ".x"
    filled = list(wrapped)
    expected = ast.dump(ast.parse(template.format(*wrapped), mode="eval"))
    for i, part in enumerate(parts):
        attempt = [*filled[:i], part, *filled[i + 1 :]]
        if _dump_text(template.format(*attempt)) == expected:
            filled = attempt
    text = template.format(*filled)
    return text.removesuffix(".x") if tight else text


def _is_slice(text: str) -> bool:
    """Whether a text is valid only as an index: `1:`, or `:, 1:`."""
    return ":" in text and not _dump_text(text) and bool(_dump_text(f"x[{text}]"))


def _dump_text(text: str) -> str:
    try:
        return ast.dump(ast.parse(text, mode="eval"))
    except SyntaxError:
        return ""


# Usual names for a second variable of this kind.
_OTHER_NAMES = {
    "attn_mask": ("attention_mask", "full_mask", "combined_mask"),
    "mask": ("attn_mask", "full_mask", "combined_mask"),
    "query": ("attn_query", "masked_query"),
    "kept_rows": ("rows_kept",),
    "normed": ("normalized",),
}


def unused_name(wanted: str, taken: Collection[str]) -> str:
    """Return `wanted`, or another name for the same thing, or `wanted` with a number: the first that is not taken."""
    numbered = (f"{wanted}_{i}" for i in range(1, len(taken) + 2))
    return next(n for n in (wanted, *_OTHER_NAMES.get(wanted, ()), *numbered) if n not in taken)


_SAME_DTYPE = frozenset("transpose unsqueeze permute contiguous squeeze".split())


def without_views(text: str) -> str:
    """The tensor that the text transposes or reshapes, which has the same dtype: `q` of `q.transpose(1, 2)`."""
    node = ast.parse(text, mode="eval").body
    inner = node
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _SAME_DTYPE:
        inner = inner.func.value
    return text if inner is node or not isinstance(inner, (ast.Name, ast.Attribute)) else ast.unparse(inner)


def permuted_text(text: str, order: Tail) -> str:
    """Return `text` with its last dimensions reordered by transposes, which works for every rank."""
    current = list(range(-len(order), 0))
    for position in range(-len(order), 0):
        source = current.index(order[position]) - len(order)
        if source != position:
            current[position], current[source] = current[source], current[position]
            text = fill("{0}.transpose(" + f"{position}, {source})", text)
    return text


def literal_text(data: object) -> str:
    """Return a constant as Python text."""
    if isinstance(data, float) and (math.isinf(data) or math.isnan(data)):
        return f'float("{data}")'
    if data is ...:
        return "..."
    if isinstance(data, float) and len(repr(data)) > 8 and float(f"{data:g}") == data:
        return f"{data:g}".replace("e+0", "e").replace("e-0", "e-")
    if isinstance(data, str) and '"' not in data:
        return f'"{data}"' if repr(data) == f"'{data}'" else repr(data)
    return repr(data).replace("e+", "e") if isinstance(data, float) else repr(data)
