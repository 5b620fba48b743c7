"""What kind of mask a mask is, by proof: causal, a sliding window, key padding, a bias. Nothing is assumed of a name.

A proof is a sentence for reports. Only a mask that is proved causal is handed to a kernel as such, and only where it
is square: with more keys than queries the kernel's own diagonal lies elsewhere. Knows canonical values only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autofuse.canonical import CAST, KEEP, View, fill_of, literal
from autofuse.canonical.recognise.masks import BOOLEAN, is_negligible
from autofuse.ir.graph import ATTRIBUTE, CHOICE, ITEM, PARAMETER, SLICE, TUPLE, Value, ancestors_by, is_const
from autofuse.match.masks import Mask


def kind_of(view: View, mask: Mask) -> str:
    """What a mask is proved to be, as a sentence; "a mask" and where it comes from where nothing is proved."""
    if mask.value is None:
        return ""
    if proof := causal_proof(view, mask):
        return f"causal: {proof}"
    kinds = dict.fromkeys(_kind(view, part, mask.boolean) for part in _parts(mask.value))
    return ", and ".join(kinds)


def _parts(value: Value) -> Iterator[Value]:
    """What a mask is put together from."""
    yield from (v for v in ancestors_by(value, _put_together) if not _put_together(v))


def _put_together(value: Value) -> list[Value]:
    if value.op in ("and", CHOICE) or value.op == "where" and not is_const(value.inputs[1]):
        parts = value.inputs[1:] if value.op == CHOICE else value.inputs[:2]
        return [p for p in parts if not is_const(p, None)]
    return list(value.inputs) if value.op == "add" else []


def _kind(view: View, part: Value, boolean: bool) -> str:
    boolean = boolean or part.op in BOOLEAN
    keep = part if boolean else _kept_zeros(view, part)
    if keep is not None:
        if proof := _keeps_lower(view, keep):
            return f"causal: {proof}"
        if shifted := _shifted(keep):
            return shifted
        if _is_for_keys(keep):
            return "key padding: it has one row for all queries"
        return f"a mask of what is kept{_origin(keep)}"
    if _is_for_keys(part):
        return "key padding: what is added has one row for all queries"
    return f"a bias that is added{_origin(part)}"


def _shifted(keep: Value) -> str:
    """A triangle whose diagonal is not the main one, or a bound on the distance of positions."""
    core = _stripped(keep)
    if core.op in ("tril", "triu"):
        number = literal(core.inputs[1])
        if number is None:
            return f"causal, its diagonal moved by the text's own count ({core.op}): is_causal would be another mask"
        return f"a sliding window: {core.op} with diagonal {number:g}"
    if core.op in ("ge", "gt", "le", "lt") and literal(core.inputs[1]) is not None and core.inputs[0].op == "add":
        if is_const(core.inputs[1], 0):
            return "causal: the distance of positions is not negative"
        return "a sliding window: the distance of positions is bounded"
    return ""


def _stripped(v: Value) -> Value:
    while v.op in ("kept", "bool", "invert", CAST, "unsqueeze") or v.op in ("eq", "ne") and is_const(v.inputs[1]):
        v = v.inputs[0]
    return v


def _is_for_keys(v: Value) -> bool:
    """Whether a mask has one row for all queries: mask[:, None, None, :], mask.unsqueeze(1).unsqueeze(2)."""
    v = _innermost(v)
    if v.op == ITEM and v.inputs[1].op == TUPLE:
        index = v.inputs[1].inputs
        return len(index) > 2 and is_const(index[-2], None)  # mask[:, None, None] has the keys behind
    if v.op == "unsqueeze":
        return is_const(v.inputs[1], -2) or is_const(v.inputs[1], 2) and v.inputs[0].op == "unsqueeze"
    return False


def _innermost(v: Value) -> Value:
    """`v` without comparisons with numbers, sums with them, and casts."""
    while v.op in ("kept", "bool", "invert", CAST, "eq", "ne", "mul", "add", "gt", "lt", "ge", "le", "refold"):
        rest = [i for i in v.inputs if not is_const(i)]
        if len(rest) != 1 and v.op != "refold":
            return v
        v = rest[0]
    return v


def _origin(v: Value) -> str:
    """The attribute that a mask comes from, if it does."""
    v = _innermost(v)
    if v.op == ATTRIBUTE and v.inputs[0].op == PARAMETER:
        return f", `{v.inputs[0].data}.{v.data}`"
    return ""


# The proof that a mask is causal speaks of its last two dimensions, and holds wherever these are equal.


def causal_proof(view: View, mask: Mask) -> str | None:
    """Why the mask keeps exactly the columns not past the row wherever it is square; None if that is not proved."""
    if mask.value is None:
        return None
    if mask.boolean:
        return _keeps_lower(view, mask.value)
    return None if mask.kept is not None else _form(view, mask.value, "bias")


def added_above(view: View, mask: Mask) -> Value | None:
    """The finite number that a causal mask adds above the diagonal; None for -inf, and for what a buffer holds.

    A buffer's form is a proof that what it adds is low enough.
    """
    v = mask.value
    while v is not None and v.op not in ("triu", "where", KEEP):
        v = v.inputs[0] if v.op in (CAST, "to", "unsqueeze", "view", ITEM) else None
    if v is None:
        return None
    fill = v.inputs[2] if v.op != "triu" else _number_above(v)
    return None if fill is None or fill_of(view, fill) == -math.inf else fill


def _number_above(triangle: Value) -> Value | None:
    """What the ones of triu(ones * fill), or triu(full(fill)), are filled with."""
    content = triangle.inputs[0]
    while content.op in (CAST, "to"):
        content = content.inputs[0]
    return content.inputs[1] if content.op in ("full", "full_like", "mul") else None


def _keeps_lower(view: View, keep: Value) -> str | None:
    keep = keep.inputs[0] if keep.op in ("kept", "bool") else keep
    if keep.op in ("ne", "gt") and is_const(keep.inputs[1], 0, 0.0, False):
        return _form(view, keep.inputs[0], "lower")
    if keep.op in ("eq", "ge") and is_const(keep.inputs[1], 1, 1.0, True):
        return _form(view, keep.inputs[0], "lower")
    if keep.op in ("eq", "le") and is_const(keep.inputs[1], 0, 0.0, False):
        return _form(view, keep.inputs[0], "upper")
    if keep.op in ("ne", "lt") and is_const(keep.inputs[1], 1, 1.0, True):
        return _form(view, keep.inputs[0], "upper")
    if keep.op == "invert":
        return _form(view, keep.inputs[0], "upper")
    return _compared(keep) or _form(view, keep, "lower")


def _compared(keep: Value) -> str | None:
    """arange(t)[:, None] >= arange(s): each position of a row against each of a column, both counted from 0."""
    if keep.op not in ("ge", "le"):
        return None
    rows, columns = keep.inputs if keep.op == "ge" else keep.inputs[::-1]
    row, column = _positions(rows, True), _positions(columns, False)
    return "positions compared" if row is not None and column is not None else None


def _positions(v: Value, of_rows: bool) -> Value | None:
    """The arange that stands in `v` as a column of row numbers, or as a row of column numbers."""
    if v.op == "unsqueeze":
        stands = is_const(v.inputs[1], -1, 1) if of_rows else is_const(v.inputs[1], 0, -2)
        v = v.inputs[0] if stands else v
    elif v.op == ITEM and v.inputs[1].op == TUPLE and len(v.inputs[1].inputs) == 2:
        at = v.inputs[1].inputs[1 if of_rows else 0]
        v = v.inputs[0] if is_const(at, None) and v.inputs[1].inputs[0 if of_rows else 1].op == SLICE else v
    elif of_rows:
        return None
    bounds = v.inputs[0].inputs if v.op == "arange" and v.inputs[0].op == TUPLE else ()
    return v if len(bounds) == 1 else None


def _form(view: View, v: Value, wanted: str) -> str | None:
    """A sentence that proves that `v` has the form `wanted` (see facts.Known)."""
    v = _unwrapped(view, v)
    for o in view.originals(v):
        known = view.facts.known.get(o)
        if known is not None and known.form == wanted:
            return f"a buffer that holds {_WORDS[wanted]}"
    if v.op == ITEM and _from_origin(v.inputs[1]):
        return _form(view, v.inputs[0], wanted)
    if wanted == "bias" and (keep := _kept_zeros(view, v)) is not None:
        return _keeps_lower(view, keep)
    return _fresh(view, v, wanted)


def _kept_zeros(view: View, v: Value) -> Value | None:
    """What is kept where `v` is zero there and a fill elsewhere."""
    if v.op == KEEP and v.inputs[0].op in ("zeros", "zeros_like") and is_negligible(fill_of(view, v.inputs[2])):
        return v.inputs[1]
    if v.op == "where" and literal(v.inputs[1]) == 0 and is_negligible(fill_of(view, v.inputs[2])):
        return v.inputs[0]
    return None


_WORDS = {
    "lower": "a lower triangle of ones",
    "upper": "an upper triangle of ones",
    "bias": "zeros below a filled triangle",
}


def _unwrapped(view: View, v: Value) -> Value:
    """`v` without what changes neither the last two dimensions nor the truth of their elements."""
    while True:
        if (
            v.op in (CAST, "kept", "bool", "unsqueeze")
            and not (v.op == "unsqueeze" and not _leading(v.inputs[1]))
            or v.op == "to"
            or v.op == "view"
            and v.inputs[0].op in ("tril", "triu")
            and _keeps_last_two(view, v)
        ):
            v = v.inputs[0]
        else:
            return v


def _leading(dim: Value) -> bool:
    return is_const(dim, 0, 1)


def _keeps_last_two(view: View, v: Value) -> bool:
    """view(1, 1, n, m) of an (n, m) tensor."""
    sizes = v.inputs[1].inputs[0].inputs if len(v.inputs[1].inputs) == 1 else v.inputs[1].inputs
    return len(sizes) > 2 and all(is_const(s, 1) for s in sizes[:-2])


def _fresh(view: View, v: Value, wanted: str) -> str | None:
    """torch.tril(ones), torch.triu(ones, 1), torch.triu(full(-inf), 1) and their opposites."""
    if v.op not in ("tril", "triu"):
        return None
    content, diagonal = _unwrapped(view, v.inputs[0]), literal(v.inputs[1])
    ones = (
        content.op in ("ones", "ones_like")
        or content.op in ("full", "full_like")
        and is_const(content.inputs[1], 1, 1.0, True)
    )
    if wanted == "lower" and v.op == "tril" and diagonal == 0 and ones:
        return "tril of ones"
    if wanted == "upper" and v.op == "triu" and diagonal == 1 and ones:
        return "triu of ones above the diagonal"
    filled = fill_of(view, content) if content.op in ("full", "full_like") else _filled_ones(view, content)
    if wanted == "bias" and v.op == "triu" and diagonal == 1 and is_negligible(filled):
        return "triu of a fill above the diagonal"
    return None


def _filled_ones(view: View, v: Value) -> float | None:
    """The fill of `torch.ones(t, t) * float("-inf")`."""
    if v.op != "mul" or len(v.inputs) != 2 or v.inputs[0].op not in ("ones", "ones_like"):
        return None
    return fill_of(view, v.inputs[1])


def _from_origin(index: Value) -> bool:
    """[:T, :T], [:, :, :T, :T], [None, :T, :S], [:, :, S - T : S, :S]: square only where it starts at the corner."""
    parts = [p for p in (index.inputs if index.op == TUPLE else (index,)) if not is_const(p, None)]
    if not all(p.op == SLICE and is_const(p.inputs[2], None, 1) for p in parts):
        return False
    starts = [p.inputs[0] for p in parts]
    if all(is_const(s, None, 0) for s in starts):
        return True
    *front, rows, columns = parts if len(parts) > 1 else (parts[0], parts[0])
    return (
        all(is_const(p.inputs[0], None, 0) for p in (*front, columns))
        and rows.inputs[1] is columns.inputs[1]
        and not is_const(rows.inputs[1], None)
    )
