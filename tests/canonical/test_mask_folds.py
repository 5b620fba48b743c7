"""Scores that are reshaped for a mask and back: which views these are, and what the mask in between becomes."""

from __future__ import annotations

import pytest

from autofuse.canonical.mask_folds import expanded_and_folded, folds_back, splits
from autofuse.ir.graph import Value
from tests.canonical.recognise.test_rotary import canonical, written

_SCORES = """
b, h, n, d = x.shape
q, k = x.reshape(b * h, n, d), cos.reshape(b * h, n, d)
m = k.size(1)
s = q @ k.transpose(1, 2)
w = s.view(b, h, n, m)
"""
_BACK = ".view(b * h, n, m)"
# Views of probabilities, and probabilities of views of scores.
MOVED = {
    "a softmax": (f"w.softmax(-1){_BACK}", f"w{_BACK}.softmax(-1)"),
    "behind a mask": (f"(w + sin).softmax(-1){_BACK}", f"(w + sin){_BACK}.softmax(-1)"),
    "a cast softmax": (f"w.softmax(-1).half(){_BACK}", f"w{_BACK}.softmax(-1).half()"),
    "dropout": (
        f"torch.dropout(w.softmax(-1), 0.1, True){_BACK}",
        f"torch.dropout(w{_BACK}.softmax(-1), 0.1, True)",
    ),
    "sizes of which the last two are the same": ("w.softmax(-1).view(-1, n, m)", "w.view(-1, n, m).softmax(-1)"),
    "scores by a factor": (f"(w * 0.5).softmax(-1){_BACK}", f"(w * 0.5){_BACK}.softmax(-1)"),
    "a last size that is left open in both": (
        "s.view(b, h, n, -1).softmax(-1).view(b * h, n, -1)",
        "s.view(b, h, n, -1).view(b * h, n, -1).softmax(-1)",
    ),
    "more than two that are joined": (
        "s.view(b, h, n, m).softmax(-1).view(b * h * n, m)",
        "s.view(b, h, n, m).view(b * h * n, m).softmax(-1)",
    ),
}
STAYS = {
    "another last size": ("w.softmax(-1).view(b, h, m, n)", "w.view(b, h, m, n).softmax(-1)"),
    "the last two joined": ("w.softmax(-1).view(b, h, n * m)", "w.view(b, h, n * m).softmax(-1)"),
    "a vector": ("w.softmax(-1).view(m)", "w.view(m).softmax(-1)"),
    "what was no view": (f"s.softmax(-1){_BACK}", f"s{_BACK}.softmax(-1)"),
    "no probabilities": (f"w.relu(){_BACK}", f"w{_BACK}.relu()"),
    "a last size that is open in the second only": (
        "w.softmax(-1).view(b * h, n, -1)",
        "w.view(b * h, n, -1).softmax(-1)",
    ),
    "open last sizes behind others": (
        "s.view(b, h, n, -1).softmax(-1).view(b * h, n * 2, -1)",
        "s.view(b, h, n, -1).view(b * h, n * 2, -1).softmax(-1)",
    ),
}


def written_of(result: str) -> str:
    return written(canonical(f"{_SCORES}return {result}")[1])


@pytest.mark.parametrize(("folded", "before"), MOVED.values(), ids=MOVED)
def test_a_view_of_probabilities_becomes_a_view_of_scores(folded: str, before: str) -> None:
    assert written_of(folded) == written_of(before)
    assert not written_of(folded).startswith("view")


@pytest.mark.parametrize(("folded", "before"), STAYS.values(), ids=STAYS)
def test_another_view_stays_in_place(folded: str, before: str) -> None:
    assert written_of(folded) != written_of(before)
    assert written_of(folded).startswith("view")


def test_two_reshaped_dropouts_stay_two() -> None:
    drawn = f"torch.dropout(w.softmax(-1), 0.1, True){_BACK}"
    _, both = canonical(f"{_SCORES}return {drawn}, {drawn}")
    assert both.inputs[0] is not both.inputs[1]


def test_probabilities_that_are_reshaped_twice_are_one_value() -> None:
    _, both = canonical(f"{_SCORES}return w.softmax(-1){_BACK}, w.softmax(-1).contiguous(){_BACK}")
    assert both.inputs[0] is both.inputs[1] and both.inputs[0].op == "softmax"


# Scores that are scaled after a view, and scores that are scaled before it.
SCALED = {
    "by a number": ("w * 0.5", "(s * 0.5).view(b, h, n, m)"),
    "over a number": ("w / 2", "(s * 0.5).view(b, h, n, m)"),
    "by a size": ("w * d ** -0.5", "(s * d ** -0.5).view(b, h, n, m)"),
    "by two": ("w * 2 * d", "(s * 2 * d).view(b, h, n, m)"),
    "of scores that are scaled": ("(s * 3.0).view(b, h, n, m) * 0.5", "(s * 1.5).view(b, h, n, m)"),
    "of scores that are masked": ("(s + sin).view(b, h, n, m) * 0.5", "((s + sin) * 0.5).view(b, h, n, m)"),
    "of scores that are turned": ("s.mT.view(b, h, n, m) * 0.5", "(s.mT * 0.5).view(b, h, n, m)"),
    "of scores that are cast": ("s.half().view(b, h, n, m) * 0.5", "(s.half() * 0.5).view(b, h, n, m)"),
}
NOT_SCALED = {
    "by a tensor": ("w * sin", "(s * sin).view(b, h, n, m)"),
    "what is no matrix product": ("sin.view(b, h, n, m) * 0.5", "(sin * 0.5).view(b, h, n, m)"),
    "by another view": ("w * w", "(s * s).view(b, h, n, m)"),
    "what is no view": ("s.flatten(0, 1) * 0.5", "(s * 0.5).flatten(0, 1)"),
}


@pytest.mark.parametrize(("viewed", "scaled"), SCALED.values(), ids=SCALED)
def test_a_scaled_view_of_scores_is_a_view_of_scaled_scores(viewed: str, scaled: str) -> None:
    assert written_of(viewed) == written_of(scaled)
    assert written_of(viewed).startswith("view")


@pytest.mark.parametrize(("viewed", "scaled"), NOT_SCALED.values(), ids=NOT_SCALED)
def test_another_product_is_unchanged(viewed: str, scaled: str) -> None:
    assert written_of(viewed) != written_of(scaled)


def test_an_unused_view_of_scores_stays() -> None:
    assert written_of("w * 1.0") == written_of("w")


# Masked scores, and the views inside them.
SPLITS = {
    "a view": ("w", ["w"]),
    "a sum": ("w + sin", ["w"]),
    "a sum, the view second": ("sin + w", ["w"]),
    "a cast": ("w.half()", ["w"]),
    "what is kept of scores": ("w.masked_fill(sin > 0, float('-inf'))", ["w"]),
    "what is kept where a view says so": ("torch.where(w, s, float('-inf'))", []),
    "what is kept by a view": ("s.masked_fill(w > 0, float('-inf'))", []),
    "either arm of a branch": ("w + sin if z is not None else w", ["w", "w"]),
    "what a branch tests": ("s if w else sin", []),
    "a mask around a mask": ("(w + sin).masked_fill(sin > 0, -1e9)", ["w"]),
    "what is no mask": ("w.relu()", []),
    "a product": ("w @ q", []),
}


@pytest.mark.parametrize(("masked", "wanted"), SPLITS.values(), ids=SPLITS)
def test_the_views_inside_masks_are_found(masked: str, wanted: list[str]) -> None:
    _, both = canonical(f"{_SCORES}return {masked}, w")
    assert list(splits(both.inputs[0])) == [both.inputs[1]] * bool(wanted)


_OPEN = "s = x @ cos.transpose(1, 2)\nn, m, h = sin.shape\n"
_TOLD = "assumes that the scores have the same shape before and after they are reshaped for the mask"
# A view that splits, a view that joins, and the assumption; None if the shape is another one.
FOLDS = {
    "known": (_SCORES, "w", f"(w + sin){_BACK}", ""),
    "of three dimensions": (_SCORES, "s.view(b * h, n, m)", f"(s.view(b * h, n, m) + sin){_BACK}", ""),
    "of a rank that is not known": (_OPEN, "s.view(-1, h, n, m)", "(s.view(-1, h, n, m) + 1).view(-1, n, m)", _TOLD),
    "of another rank": (_SCORES, "w", "(w + sin).view(b, h, 1, n, m)", None),
    "of two dimensions": (_SCORES, "s.view(n, m)", f"s.view(n, m){_BACK}", None),
    "of another last size but one": (_SCORES, "w", "(w + sin).view(b * h, n * 2, m)", None),
    "of another last size": (_SCORES, "w", "(w + sin).view(b * h, n, n)", None),
    "of no scores": (_OPEN, "z.view(-1, h, n, m)", "(z.view(-1, h, n, m) + 1).view(-1, n, m)", None),
    "of scores of another rank": (
        "b, n, d = x.shape\ns = x @ cos.reshape(b, n, d).mT\nm = n\n",
        "s.view(b, 1, n, m)",
        "(s.view(b, 1, n, m) + 1).view(b, n, m, 1)",
        None,
    ),
}


@pytest.mark.parametrize(("head", "split", "joined", "wanted"), FOLDS.values(), ids=FOLDS)
def test_a_view_folds_back_if_it_has_the_original_shape(head: str, split: str, joined: str, wanted: str | None) -> None:
    view, both = canonical(f"{head}return {split}, {joined}")
    assert folds_back(view, *both.inputs) == wanted


# Views that split and join, and the sizes to which a mask between them is expanded.
REFOLDED = {
    "sizes that are all told": ("s.view(b, h, n, m)", "s.view(b * h, n, m)", "(b, h, n, m)"),
    "a first size that is left open": ("s.view(-1, h, n, m)", "s.view(b * h, n, m)", "(s.size(0) // h, h, n, m)"),
    "of scaled scores": ("(s * d).view(-1, h, n, m)", "s.view(b * h, n, m)", "(s.size(0) // h, h, n, m)"),
    "of masked scores": ("(s + d).view(-1, h, n, m)", "s.view(b * h, n, m)", "(s.size(0) // h, h, n, m)"),
    "of cast scores": ("s.half().view(-1, h, n, m)", "s.view(b * h, n, m)", "(s.size(0) // h, h, n, m)"),
    "an open last size": ("s.view(b, h, n, -1)", "s.view(b * h, n, -1)", "(b, h, n, -1)"),
    "an open first size of a split in three": ("s.view(-1, h, 1, n, m)", "s.view(b * h, n, m)", None),
    "an open first size of other scores": ("s.relu().view(-1, h, n, m)", "s.view(b * h, n, m)", None),
    "an open first size of a split of another": ("s.view(-1, h, m, n)", "s.view(b * h, n, m)", None),
    "an open first size of what is joined otherwise": ("s.view(-1, h, n, m)", "s.view(b * h, 2, m)", None),
    "an open second size": ("s.view(b, -1, n, m)", "s.view(b * h, n, m)", None),
    "an open third size": ("s.view(b, h, -1, m)", "s.view(b * h, n, m)", None),
}


@pytest.mark.parametrize(("split", "joined", "wanted"), REFOLDED.values(), ids=REFOLDED)
def test_a_mask_is_expanded_to_the_split_shape_and_folded(split: str, joined: str, wanted: str | None) -> None:
    query = (wanted or "b,").replace("s.size", "q.size")
    view, given = canonical(f"{_SCORES}return sin, {split}, {joined}, {query}")
    mask, first, second, sizes = given.inputs
    found = expanded_and_folded(view, mask, first, second)
    assert (None if found is None else operator_and_sizes(found, mask)) == (
        None if wanted is None else told_sizes(sizes, second)
    )


def operator_and_sizes(refold: Value, mask: Value) -> tuple[str, list[str], list[str]]:
    of, sizes, back = refold.inputs
    assert of is mask
    return refold.op, list(map(written, sizes.inputs)), list(map(written, back.inputs))


def told_sizes(sizes: Value, joined: Value) -> tuple[str, list[str], list[str]]:
    return "refold", list(map(written, sizes.inputs)), list(map(written, joined.inputs[1].inputs))
