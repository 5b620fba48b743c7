"""Proves the kind of a mask: causal, a sliding window, key padding, a bias. Names prove nothing.

A proof is a sentence for reports. Only a mask that is proved causal is passed to a kernel as `is_causal`, and only if
it
is square: with more keys than queries, the diagonal of the kernel is another one. This file sees canonical values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autofuse.canonical import CAST, KEEP, View, fill_of, literal
from autofuse.canonical.recognise.masks import BOOLEAN, is_negligible
from autofuse.ir.graph import ATTRIBUTE, CHOICE, ITEM, PARAMETER, SLICE, TUPLE, Value, ancestors_by, is_const
from autofuse.match.masks import Mask


def kind_of(view: View, mask: Mask) -> str:
    """Describe what a mask is proved to be, as a sentence for reports.

    If nothing is proved, the sentence says "a mask" or "a bias", and where it comes from. It is "" without a mask.
    """
    if mask.value is None:
        return ""
    if proof := causal_proof(view, mask):
        return f"causal: {proof}"
    kinds = dict.fromkeys(_kind_of_part(view, part, mask.boolean) for part in _parts(mask.value))
    return ", and ".join(kinds)


def _parts(value: Value) -> Iterator[Value]:
    """The masks that a mask combines."""
    yield from (v for v in ancestors_by(value, _combined_masks) if not _combined_masks(v))


def _combined_masks(value: Value) -> list[Value]:
    if value.op in ("and", CHOICE) or value.op == "where" and not is_const(value.inputs[1]):
        parts = value.inputs[1:] if value.op == CHOICE else value.inputs[:2]
        return [p for p in parts if not is_const(p, None)]
    return list(value.inputs) if value.op == "add" else []


def _kind_of_part(view: View, part: Value, boolean: bool) -> str:
    boolean = boolean or part.op in BOOLEAN
    keep = part if boolean else _mask_of_zeros(view, part)
    if keep is not None:
        if proof := _proof_of_kept_triangle(view, keep):
            return f"causal: {proof}"
        if shifted := _kind_of_shifted_triangle(keep):
            return shifted
        if _has_one_row(keep):
            return "key padding: it has one row for all queries"
        return f"a boolean mask{_origin(keep)}"
    if _has_one_row(part):
        return "key padding: the added mask has one row for all queries"
    return f"an added bias{_origin(part)}"


def _kind_of_shifted_triangle(keep: Value) -> str:
    """The kind of a triangle that may end at another diagonal, or of a mask that bounds the distance of positions."""
    core = _without_comparisons(keep)
    if core.op in ("tril", "triu"):
        number = literal(core.inputs[1])
        if number is None:
            return f"causal with a computed diagonal ({core.op}): is_causal would be another mask"
        return f"a sliding window: {core.op} with diagonal {number:g}"
    if core.op in ("ge", "gt", "le", "lt") and literal(core.inputs[1]) is not None and core.inputs[0].op == "add":
        if is_const(core.inputs[1], 0):
            return "causal: the distance of positions is not negative"
        return "a sliding window: the distance of positions is bounded"
    return ""


def _without_comparisons(v: Value) -> Value:
    while v.op in ("kept", "bool", "invert", CAST, "unsqueeze") or v.op in ("eq", "ne") and is_const(v.inputs[1]):
        v = v.inputs[0]
    return v


def _has_one_row(v: Value) -> bool:
    """Whether a mask has one row for all queries: mask[:, None, None, :], mask.unsqueeze(1).unsqueeze(2)."""
    v = _strip_arithmetic(v)
    if v.op == ITEM and v.inputs[1].op == TUPLE:
        index = v.inputs[1].inputs
        return len(index) > 2 and is_const(index[-2], None)  # mask[:, None, None] has its keys after these
    if v.op == "unsqueeze":
        return is_const(v.inputs[1], -2) or is_const(v.inputs[1], 2) and v.inputs[0].op == "unsqueeze"
    return False


def _strip_arithmetic(v: Value) -> Value:
    """`v` without casts, and without comparisons, sums and products with numbers."""
    while v.op in ("kept", "bool", "invert", CAST, "eq", "ne", "mul", "add", "gt", "lt", "ge", "le", "refold"):
        rest = [i for i in v.inputs if not is_const(i)]
        if len(rest) != 1 and v.op != "refold":
            return v
        v = rest[0]
    return v


def _origin(v: Value) -> str:
    """The attribute that a mask comes from, after a comma; "" if it comes from none."""
    v = _strip_arithmetic(v)
    if v.op == ATTRIBUTE and v.inputs[0].op == PARAMETER:
        return f", `{v.inputs[0].data}.{v.data}`"
    return ""


# A proof that a mask is causal covers only its last two dimensions. It holds only if both have the same size.


def causal_proof(view: View, mask: Mask) -> str | None:
    """Prove that a mask keeps exactly the entries with column <= row, if it is square.

    Returns:
        The proof as a sentence; None if there is none.
    """
    if mask.value is None:
        return None
    if mask.boolean:
        return _proof_of_kept_triangle(view, mask.value)
    return None if mask.kept is not None else _proof_of_form(view, mask.value, "bias")


def added_above(view: View, mask: Mask) -> Value | None:
    """The finite number that a causal mask adds above the diagonal; None for -inf and for a buffer.

    A buffer needs none: its form ("bias", see facts.Known) proves that the number it adds is low enough.
    """
    v = mask.value
    while v is not None and v.op not in ("triu", "where", KEEP):
        v = v.inputs[0] if v.op in (CAST, "to", "unsqueeze", "view", ITEM) else None
    if v is None:
        return None
    fill = v.inputs[2] if v.op != "triu" else _number_above(v)
    return None if fill is None or fill_of(view, fill) == -math.inf else fill


def _number_above(triangle: Value) -> Value | None:
    """The fill of triu(ones * fill) or triu(full(fill))."""
    content = triangle.inputs[0]
    while content.op in (CAST, "to"):
        content = content.inputs[0]
    return content.inputs[1] if content.op in ("full", "full_like", "mul") else None


def _proof_of_kept_triangle(view: View, keep: Value) -> str | None:
    keep = keep.inputs[0] if keep.op in ("kept", "bool") else keep
    if keep.op in ("ne", "gt") and is_const(keep.inputs[1], 0, 0.0, False):
        return _proof_of_form(view, keep.inputs[0], "lower")
    if keep.op in ("eq", "ge") and is_const(keep.inputs[1], 1, 1.0, True):
        return _proof_of_form(view, keep.inputs[0], "lower")
    if keep.op in ("eq", "le") and is_const(keep.inputs[1], 0, 0.0, False):
        return _proof_of_form(view, keep.inputs[0], "upper")
    if keep.op in ("ne", "lt") and is_const(keep.inputs[1], 1, 1.0, True):
        return _proof_of_form(view, keep.inputs[0], "upper")
    if keep.op == "invert":
        return _proof_of_form(view, keep.inputs[0], "upper")
    return _compares_positions(keep) or _proof_of_form(view, keep, "lower")


def _compares_positions(keep: Value) -> str | None:
    """The proof for arange(t)[:, None] >= arange(s), which compares row and column numbers."""
    if keep.op not in ("ge", "le"):
        return None
    rows, columns = keep.inputs if keep.op == "ge" else keep.inputs[::-1]
    row, column = _arange_positions(rows, True), _arange_positions(columns, False)
    return "positions compared" if row is not None and column is not None else None


def _arange_positions(v: Value, of_rows: bool) -> Value | None:
    """The arange in `v`, as a column of row numbers or as a row of column numbers; None if it is neither."""
    if v.op == "unsqueeze":
        fits = is_const(v.inputs[1], -1, 1) if of_rows else is_const(v.inputs[1], 0, -2)
        v = v.inputs[0] if fits else v
    elif v.op == ITEM and v.inputs[1].op == TUPLE and len(v.inputs[1].inputs) == 2:
        at = v.inputs[1].inputs[1 if of_rows else 0]
        v = v.inputs[0] if is_const(at, None) and v.inputs[1].inputs[0 if of_rows else 1].op == SLICE else v
    elif of_rows:
        return None
    bounds = v.inputs[0].inputs if v.op == "arange" and v.inputs[0].op == TUPLE else ()
    return v if len(bounds) == 1 else None


def _proof_of_form(view: View, v: Value, expected: str) -> str | None:
    """Prove that `v` has the form `expected` (see facts.Known): a sentence, or None."""
    v = _without_leading(view, v)
    for o in view.originals(v):
        known = view.facts.known.get(o)
        if known is not None and known.form == expected:
            return f"a buffer that holds {_FORM_NAMES[expected]}"
    if v.op == ITEM and _keeps_diagonal(v.inputs[1]):
        return _proof_of_form(view, v.inputs[0], expected)
    if expected == "bias" and (keep := _mask_of_zeros(view, v)) is not None:
        return _proof_of_kept_triangle(view, keep)
    return _proof_of_triangle(view, v, expected)


def _mask_of_zeros(view: View, v: Value) -> Value | None:
    """The boolean mask that `v` encodes: 0 where the mask is True, and a negligible fill where it is False."""
    if v.op == KEEP and v.inputs[0].op in ("zeros", "zeros_like") and is_negligible(fill_of(view, v.inputs[2])):
        return v.inputs[1]
    if v.op == "where" and literal(v.inputs[1]) == 0 and is_negligible(fill_of(view, v.inputs[2])):
        return v.inputs[0]
    return None


_FORM_NAMES = {
    "lower": "a lower triangle of ones",
    "upper": "an upper triangle of ones",
    "bias": "zeros below a filled triangle",
}


def _without_leading(view: View, v: Value) -> Value:
    """`v` without the steps that keep the last two dimensions and the truth of their elements."""
    while True:
        if (  # casts and new leading dimensions
            v.op in (CAST, "kept", "bool", "unsqueeze")
            and not (v.op == "unsqueeze" and not _is_leading(v.inputs[1]))
            or v.op == "to"
            or v.op == "view"
            and v.inputs[0].op in ("tril", "triu")
            and _keeps_last_two(view, v)
        ):
            v = v.inputs[0]
        else:
            return v


def _is_leading(dim: Value) -> bool:
    return is_const(dim, 0, 1)


def _keeps_last_two(view: View, v: Value) -> bool:
    """Whether a view only adds leading dimensions: view(1, 1, n, m) of an (n, m) tensor."""
    sizes = v.inputs[1].inputs[0].inputs if len(v.inputs[1].inputs) == 1 else v.inputs[1].inputs
    return len(sizes) > 2 and all(is_const(s, 1) for s in sizes[:-2])


def _proof_of_triangle(view: View, v: Value, expected: str) -> str | None:
    """Prove the form of torch.tril(ones), torch.triu(ones, 1) or torch.triu(full(-inf), 1)."""
    if v.op not in ("tril", "triu"):
        return None
    content, diagonal = _without_leading(view, v.inputs[0]), literal(v.inputs[1])
    ones = (
        content.op in ("ones", "ones_like")
        or content.op in ("full", "full_like")
        and is_const(content.inputs[1], 1, 1.0, True)
    )
    if expected == "lower" and v.op == "tril" and diagonal == 0 and ones:
        return "tril of ones"
    if expected == "upper" and v.op == "triu" and diagonal == 1 and ones:
        return "triu of ones above the diagonal"
    filled = fill_of(view, content) if content.op in ("full", "full_like") else _fill_of_ones(view, content)
    if expected == "bias" and v.op == "triu" and diagonal == 1 and is_negligible(filled):
        return "triu of a fill above the diagonal"
    return None


def _fill_of_ones(view: View, v: Value) -> float | None:
    """The fill of `torch.ones(t, t) * float("-inf")`."""
    if v.op != "mul" or len(v.inputs) != 2 or v.inputs[0].op not in ("ones", "ones_like"):
        return None
    return fill_of(view, v.inputs[1])


def _keeps_diagonal(index: Value) -> bool:
    """Whether an index keeps the diagonal of a square mask: [:T, :T], [None, :T, :S], [..., S - T : S, :S].

    The slices of rows and columns either begin at 0, or both end at the same position. In the second case, the part is
    square only if it begins at the corner, and these are the last two slices.
    """
    indexes = index.inputs if index.op == TUPLE else (index,)
    parts = [p for p in indexes if not is_const(p, None, ...)]
    if not all(p.op == SLICE and is_const(p.inputs[2], None, 1) for p in parts) or _adds_inner_dimension(indexes):
        return False
    starts = [p.inputs[0] for p in parts]
    if all(is_const(s, None, 0) for s in starts):
        return True
    if any(is_const(p, ...) for p in indexes[indexes.index(parts[0]) :]):
        return False
    *front, rows, columns = parts if len(parts) > 1 else (parts[0], parts[0])
    return (
        all(is_const(p.inputs[0], None, 0) for p in (*front, columns))
        and rows.inputs[1] is columns.inputs[1]
        and not is_const(rows.inputs[1], None)
    )


def _adds_inner_dimension(indexes: tuple[Value, ...]) -> bool:
    """Whether an index may put a new dimension behind the rows: `[:, None, :T]`. `[:, None, :T, :T]` does not."""
    last = max((i for i, p in enumerate(indexes) if is_const(p, None)), default=-1)
    before = any(not is_const(p, None) for p in indexes[: last + 1])
    return before and (len(indexes) - last - 1 < 2 or any(is_const(p, ...) for p in indexes[last + 1 :]))
