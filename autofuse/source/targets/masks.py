"""A mask as text, for functions that take one: boolean or added, conditional, or said by `is_causal=True`.

Knows masks as captured values; knows no signature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofuse.canonical import CAST, PERMUTE
from autofuse.canonical.recognise.masks import BOOLEAN
from autofuse.ir.graph import CHOICE, Value, is_const
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.source.capture.symbolic_lengths import lengths_of
from autofuse.source.targets.call import Arguments
from autofuse.source.targets.express import Speller, Unwritable
from autofuse.source.targets.learned import learned_in_its_dtype
from autofuse.source.targets.printing import fill, unused, without_views

_READABLE = 72  # characters of an assignment with one condition in it


def is_causal(a: Arguments, s: Speller) -> bool:
    """Whether the mask is one that `is_causal=True` stands for: proved causal, query and key provably as long."""
    return "mask_is_causal" in a and _as_long(a["query"], a["key"], s)


def _as_long(query: Value, key: Value, s: Speller) -> bool:
    """Whether query and key have the same number of positions, by the sizes that the text names."""
    rows, columns = lengths_of(s.view, query), lengths_of(s.view, key)
    return rows is not None and columns is not None and rows[-2] is not None and rows[-2] == columns[-2]


@dataclass(frozen=True)
class WrittenMask:
    """A mask as text. `before` are the statements it needs, `rows` what is 0 for rows of the query that keep no key.

    A finite fill lets such a row attend evenly, and lets no gradient through: a query of zeros, with the mask opened,
    does just that. `query` is the name of the query so treated, where that is conditional.
    """

    text: str = ""
    before: tuple[str, ...] = ()
    rows: str = ""
    query: str = ""


def mask_of(a: Arguments, s: Speller) -> WrittenMask:
    if "mask" not in a:
        return WrittenMask()
    mask, s.query = a["mask"], a["query"]
    filled = not {"mask_is_causal", "kept"} & a.keys() and "fill" in a  # a causal row keeps its first key at least
    query = s.text(a["query"]) if _needs_cast(mask, s) else ""
    text = _mask_text(mask, query, s)
    if s.view.rank(mask) == 1:  # torch wants a mask of two dimensions or more
        text = fill("{0}.unsqueeze(0)", text)
    lines: tuple[str, ...] = ()
    if s.may_insert and (text.count(" if ") > 1 or " if " in text and len(text) > _READABLE):
        name = unused("attn_mask", s.taken)
        lines = ("\n".join(_mask_lines(mask, name, lambda v, inner: _mask_text(v, query, inner), s)) + "\n",)
        text = name
    return _evenly(a, text, lines, s) if filled else WrittenMask(text, lines)


def _evenly(a: Arguments, text: str, lines: tuple[str, ...], s: Speller) -> WrittenMask:
    """The mask opened for rows that keep no key, and what makes their queries zero."""
    if not s.may_insert:
        raise Unwritable(because(writing.MASK_FILLED))
    taken = s.taken
    name, rows, query = (unused(n, taken) for n in ("attn_mask", "kept_rows", "query"))
    if not lines and not text.isidentifier():
        lines = (f"{name} = {text}",)
    elif not lines:
        name = text
    any_kept = fill("{0}.any(-1, keepdim=True)", name)
    if not _may_be_none(a["mask"]):
        return WrittenMask(fill("{0} | ~{1}", name, rows), (*lines, f"{rows} = {any_kept}"), rows)
    mask = unused("attn_mask", taken)
    held = s.text(a["query"])
    start = (f"{query} = {held}",) if name == mask else (f"{query}, {mask} = {held}, {name}",)
    opened = f"{query}, {mask} = {fill('{0} * {1}', held, rows)}, {name} | ~{rows}"
    change = f"if {name} is not None:\n    {rows} = {any_kept}\n    {opened}\n"
    return WrittenMask(mask, (*lines, *start, change), rows, query)


def _may_be_none(mask: Value) -> bool:
    return is_const(mask, None) or mask.op == CHOICE and any(map(_may_be_none, mask.inputs[1:]))


def _mask_lines(mask: Value, name: str, write: Callable[[Value, Speller], str], s: Speller) -> list[str]:
    """Statements that let `name` hold a conditional mask, one branch for each condition."""
    if mask.op != CHOICE:
        return [f"{name} = {write(mask, s)}"]
    asked, (yes, with_yes), (no, with_no) = s.branches(mask)
    then = [f"{name} = {write(yes, with_yes)}"]
    if then[0].count(" if ") > 1 or " if " in then[0] and len(then[0]) > _READABLE:
        then = _mask_lines(yes, name, write, with_yes)
    rest = _mask_lines(no, name, write, with_no)
    start = [f"if {asked}:", *(f"    {line}" for line in then)]
    if rest[0].startswith("if "):
        return [*start, f"el{rest[0]}", *rest[1:]]
    return [*start, "else:", *(f"    {line}" for line in rest)]


def _needs_cast(mask: Value, s: Speller) -> bool:
    """Whether what is added is put into the dtype of the query: torch reads truth values as what is kept."""
    if mask.op == CHOICE:
        return any(_needs_cast(side, s) for side in mask.inputs[1:])
    if s.query is not None and learned_in_its_dtype(mask, s.query, s):
        return False
    return mask.op in ("where", CAST) or not boolean(mask) and not is_const(mask, None) and not _floating(mask, s)


def whole_mask_text(mask: Value, query: Value, s: Speller) -> str:
    """A mask for a function that fills and counts by itself: only what may hold integers is cast."""
    return _mask_text(mask, s.text(query), s) if _has_integers(mask, s) else s.text(mask)


def _has_integers(mask: Value, s: Speller) -> bool:
    if mask.op == CHOICE:
        return any(_has_integers(side, s) for side in mask.inputs[1:])
    return mask.op not in ("where", CAST) and _needs_cast(mask, s)


def _floating(mask: Value, s: Speller) -> bool:
    """Whether the text shows that what is added is floating-point, not truth values or integers."""
    facts, own = s.view.facts, s.view.originals(mask)
    if own and all(facts.floating(o) or o in facts.known and facts.known[o].form == "bias" for o in own):
        return True  # what is written may be any of them: `mask` for `mask * 1.0`
    parts = mask.inputs if mask.op in ("mul", "add", "reciprocal") else mask.inputs[:1] if mask.op == PERMUTE else ()
    return isinstance(mask.data, float) or any(_floating(part, s) for part in parts)


def _mask_text(mask: Value, query: str, s: Speller) -> str:
    """A boolean mask as it is; a bias that was chosen, cast, or may hold integers, in the dtype of the query."""
    if mask.op == CHOICE and _needs_cast(mask, s):
        return s.chosen(mask, lambda side, inner: _mask_text(side, query, inner))
    if mask.op == "where" and is_const(mask.inputs[1], 0, 0.0):
        dropped = s.text(s.view.make("invert", mask.inputs[0]))
        return fill("{0}.new_zeros(()).masked_fill({1}, {2})", query, dropped, s.text(mask.inputs[2]))
    if mask.op == "add" and _needs_cast(mask, s) and not s.view.originals(mask):  # a sum of truth values is no count
        return " + ".join(s.text(i) if s.view.number(i) else _mask_text(i, query, s) for i in mask.inputs)
    text = s.text(mask)
    in_its_dtype = mask.op == CAST and text.endswith(".dtype)")
    return fill("{0}.to({1}.dtype)", text, without_views(query)) if _needs_cast(mask, s) and not in_its_dtype else text


def boolean(mask: Value) -> bool:
    """Whether a mask says what is kept; otherwise it is added."""
    return mask.op in BOOLEAN or mask.op == CHOICE and all(map(boolean, mask.inputs[1:]))
