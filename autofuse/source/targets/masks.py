"""Masks as text, for functions that take a mask.

A mask is boolean or added to the scores. It may be conditional, or replaced by `is_causal=True`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofuse.canonical import CAST, PERMUTE
from autofuse.canonical.recognise.masks import BOOLEAN
from autofuse.ir.graph import CHOICE, Value, is_const
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.source.capture.symbolic_lengths import recorded_lengths
from autofuse.source.targets.call import Arguments
from autofuse.source.targets.learned_masks import is_learned_in_query_dtype
from autofuse.source.targets.printing import fill, unused_name, without_views
from autofuse.source.targets.speller import Speller, Unwritable

_MAX_CONDITIONAL = 72  # characters of a conditional expression that stays on one line


def is_causal(args: Arguments, speller: Speller) -> bool:
    """Whether `is_causal=True` can replace the mask: it is causal, and query and key certainly have the same length."""
    return "mask_is_causal" in args and _have_equal_length(args["query"], args["key"], speller)


def _have_equal_length(query: Value, key: Value, speller: Speller) -> bool:
    """Whether query and key have the same number of positions, judged by the sizes in the text."""
    rows, columns = recorded_lengths(speller.view, query), recorded_lengths(speller.view, key)
    return rows is not None and columns is not None and rows[-2] is not None and rows[-2] == columns[-2]


@dataclass(frozen=True)
class WrittenMask:
    """A mask as text.

    A row of the query that keeps no key needs care if the original code fills scores with a finite number. Its weights
    are then all equal, and no gradient passes. A query of zeros with an open mask gives the same result.

    Attributes:
        text: the mask; "" if there is none.
        before: the statements that it needs.
        row_factor: the name of a tensor that is 0 for rows of the query that keep no key, or "".
        query: the name of the query with such rows set to zero, if the mask is conditional; or "".
    """

    text: str = ""
    before: tuple[str, ...] = ()
    row_factor: str = ""
    query: str = ""


def casts_to_query(args: Arguments, speller: Speller) -> bool:
    """Whether the text of the mask reads the dtype of the query."""
    speller.query = args["query"]
    return _needs_cast(args["mask"], speller)


def write_mask(args: Arguments, speller: Speller, query: str, adds_heads: bool = False) -> WrittenMask:
    """Return the mask of an attention as text.

    Args:
        args: the captured arguments.
        speller: writes them.
        query: the text of the query.
        adds_heads: whether the mask gets the head dimension that it lacks.
    """
    if "mask" not in args:
        return WrittenMask()
    mask, speller.query = args["mask"], args["query"]
    # A causal row keeps at least its first key, so a finite fill never makes its weights equal.
    filled = not {"mask_is_causal", "kept"} & args.keys() and "fill" in args
    heads = _heads_template(mask, speller) if adds_heads else "{0}"
    if filled:
        text = _mask_text(mask, query, speller)
    else:
        text = _with_heads(mask, query, speller, heads)
    if speller.view.rank(mask) == 1:  # torch needs a mask with two dimensions or more
        text = fill("{0}.unsqueeze(0)", text)
    lines: tuple[str, ...] = ()
    if speller.may_insert and (text.count(" if ") > 1 or " if " in text and len(text) > _MAX_CONDITIONAL):
        name = unused_name("attn_mask", speller.taken)
        side_heads = "{0}" if filled else heads
        branches = _mask_lines(mask, name, lambda v, inner: _with_heads(v, query, inner, side_heads), speller)
        lines, text = ("\n".join(branches) + "\n",), name
    return _open_empty_rows(args, text, lines, speller, query, heads) if filled else WrittenMask(text, lines)


def mask_rank(mask: Value, speller: Speller) -> int | None:
    """The number of dimensions of a mask that may be None; None if unknown."""
    if mask.op != CHOICE:
        return speller.view.rank(mask)
    ranks = {mask_rank(side, speller) for side in mask.inputs[1:] if not is_const(side, None)}
    return ranks.pop() if len(ranks) == 1 else None


def _heads_template(mask: Value, speller: Speller) -> str:
    """The template that turns a mask for scores without heads into one for scores with one head.

    A mask of two dimensions is the same for both. One of an unknown number has two or three.
    """
    rank = mask_rank(mask, speller)
    return "{0}.unsqueeze(1)" if rank == 3 else "{0}.unsqueeze(-3)" if rank is None else "{0}"


def _with_heads(mask: Value, query: str, speller: Speller, heads: str) -> str:
    if heads != "{0}" and mask.op == CHOICE and _may_be_none(mask):
        return speller.conditional_text(mask, lambda side, inner: _with_heads(side, query, inner, heads))
    text = _mask_text(mask, query, speller)
    return text if is_const(mask, None) else fill(heads, text)


def _open_empty_rows(
    args: Arguments, text: str, lines: tuple[str, ...], speller: Speller, query_text: str, heads: str
) -> WrittenMask:
    """Return the mask, opened for rows that keep no key, with the factor that sets their queries to zero.

    Raises:
        Unwritable: no statement can be inserted here.
    """
    if not speller.may_insert:
        raise Unwritable(because(writing.MASK_FILLED))
    used_names = speller.taken
    name, rows, query = (unused_name(n, used_names) for n in ("attn_mask", "kept_rows", "query"))
    if not lines and not text.isidentifier():
        lines = (f"{name} = {text}",)
    elif not lines:
        name = text
    any_kept = fill("{0}.any(-1, keepdim=True)", name)
    # `mask | ~kept_rows` keeps every key of a row that kept none, so that its softmax is not nan.
    opened_mask = fill(heads, fill("{0} | ~{1}", name, rows))
    if not _may_be_none(args["mask"]):
        return WrittenMask(opened_mask, (*lines, f"{rows} = {any_kept}"), rows)
    mask = unused_name("attn_mask", used_names)
    start = (f"{query} = {query_text}",) if name == mask else (f"{query}, {mask} = {query_text}, {name}",)
    opened = f"{query}, {mask} = {query} * {rows}, {opened_mask}"
    change = f"if {name} is not None:\n    {rows} = {any_kept}\n    {opened}\n"
    return WrittenMask(mask, (*lines, *start, change), rows, query)


def _may_be_none(mask: Value) -> bool:
    return is_const(mask, None) or mask.op == CHOICE and any(map(_may_be_none, mask.inputs[1:]))


def _mask_lines(mask: Value, name: str, write: Callable[[Value, Speller], str], speller: Speller) -> list[str]:
    """Statements that assign a conditional mask to `name`, one branch for each condition."""
    if mask.op != CHOICE:
        return [f"{name} = {write(mask, speller)}"]
    test, (yes, with_yes), (no, with_no) = speller.split_branches(mask)
    if_lines = [f"{name} = {write(yes, with_yes)}"]
    if if_lines[0].count(" if ") > 1 or " if " in if_lines[0] and len(if_lines[0]) > _MAX_CONDITIONAL:
        if_lines = _mask_lines(yes, name, write, with_yes)
    else_lines = _mask_lines(no, name, write, with_no)
    start = [f"if {test}:", *(f"    {line}" for line in if_lines)]
    if else_lines[0].startswith("if "):
        return [*start, f"el{else_lines[0]}", *else_lines[1:]]
    return [*start, "else:", *(f"    {line}" for line in else_lines)]


def _needs_cast(mask: Value, speller: Speller) -> bool:
    """Whether an added mask needs a cast to the dtype of the query, since torch reads a boolean mask as "keep"."""
    if mask.op == CHOICE:
        return any(_needs_cast(side, speller) for side in mask.inputs[1:])
    if speller.query is not None and is_learned_in_query_dtype(mask, speller.query, speller):
        return False
    return (
        mask.op in ("where", CAST)
        or not is_boolean(mask)
        and not is_const(mask, None)
        and not _is_floating(mask, speller)
    )


def mask_text_for_ops(mask: Value, query: Value, speller: Speller) -> str:
    """A mask for autofuse.ops, which handle fills and counts themselves: only a mask that may hold integers is cast."""
    return _mask_text(mask, speller.text(query), speller) if _has_integers(mask, speller) else speller.text(mask)


def _has_integers(mask: Value, speller: Speller) -> bool:
    if mask.op == CHOICE:
        return any(_has_integers(side, speller) for side in mask.inputs[1:])
    return mask.op not in ("where", CAST) and _needs_cast(mask, speller)


def _is_floating(mask: Value, speller: Speller) -> bool:
    """Whether the text shows that an added mask is floating-point, not boolean or integer."""
    facts, originals = speller.view.facts, speller.view.originals(mask)
    if originals and all(facts.floating(o) or o in facts.known and facts.known[o].form == "bias" for o in originals):
        return True  # the text may be that of any of these values: `mask` for `mask * 1.0`
    parts = mask.inputs if mask.op in ("mul", "add", "reciprocal") else mask.inputs[:1] if mask.op == PERMUTE else ()
    return isinstance(mask.data, float) or any(_is_floating(part, speller) for part in parts)


def _mask_text(mask: Value, query: str, speller: Speller) -> str:
    """A mask as text: boolean masks unchanged, added masks in the dtype of the query if they may have another one."""
    if mask.op == CHOICE and _needs_cast(mask, speller):
        return speller.conditional_text(mask, lambda side, inner: _mask_text(side, query, inner))
    if mask.op == "where" and is_const(mask.inputs[1], 0, 0.0):
        dropped = speller.text(speller.view.make("invert", mask.inputs[0]))
        return fill("{0}.new_zeros(()).masked_fill({1}, {2})", query, dropped, speller.text(mask.inputs[2]))
    # For boolean tensors, True + True is True and not 2, so each term is cast before the sum.
    if mask.op == "add" and _needs_cast(mask, speller) and not speller.view.originals(mask):
        return " + ".join(
            speller.text(i) if speller.view.number(i) else _mask_text(i, query, speller) for i in mask.inputs
        )
    text = _filled_text(mask, speller) or speller.text(mask)
    in_its_dtype = mask.op == CAST and text.endswith(".dtype)")
    return (
        fill("{0}.to({1}.dtype)", text, without_views(query))
        if _needs_cast(mask, speller) and not in_its_dtype
        else text
    )


def _filled_text(mask: Value, speller: Speller) -> str | None:
    """A bias of which scores are dropped, as `bias.masked_fill(dropped, -1e9)`, if the code has no text for it."""
    if mask.op != "where" or speller.view.originals(mask) or not speller.view.number(mask.inputs[2]):
        return None
    kept, bias, fill_value = mask.inputs
    dropped = speller.text(speller.view.make("invert", kept))
    return fill("{0}.masked_fill({1}, {2})", speller.text(bias), dropped, speller.text(fill_value))


def is_boolean(mask: Value) -> bool:
    """Whether a mask marks the scores to keep; any other mask is added to the scores."""
    return mask.op in BOOLEAN or mask.op == CHOICE and all(map(is_boolean, mask.inputs[1:]))
