"""Names that are bound again between the steps do not confuse an edit.

Each of these programs runs before and after its edits.
"""

from __future__ import annotations

import pytest

from tests.adversary_text.name_flow import changes, random_text
from tests.source.rewriting import rewritten

BY_DAY, BY_NIGHT = 12, 600


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.night] * (n >= BY_DAY)) for n in range(BY_NIGHT)]
)
def test_an_edit_keeps_what_names_hold(number: int) -> None:
    assert not changes(random_text(number))


def test_most_programs_are_edited() -> None:
    texts = [random_text(n) for n in range(BY_DAY)]
    assert sum(rewritten(text) != text for text in texts) > BY_DAY // 2
