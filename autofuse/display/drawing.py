"""Draws each kind of result: on a terminal, as text, in a notebook.

A result with `tables` is drawn as these tables. Profiles and plans have their own functions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autofuse.display import markup, profile_page, profile_terminal, terminal
from autofuse.display.scaling import scaling_sentences, scaling_tables
from autofuse.results.before_after import BeforeAfter
from autofuse.results.plan import Plan
from autofuse.results.profile import Profile
from autofuse.results.sites import Report

_LEFT_OUT = (("where",), ("max error",))  # columns of a report that are left out on narrow terminals, in this order

_MOST_LINES = 25  # of a report, if shorter reasons suffice for that


@singledispatch
def renderable(result: Any) -> RenderableType:
    """`result` for a rich console."""
    return Group(*map(terminal.as_rich, result.tables()))


@renderable.register
def _(result: Report) -> RenderableType:
    first, *others = result.tables()
    return Group(
        terminal.Fitted(first, _LEFT_OUT, _MOST_LINES, ".details() lists every place"),
        *(terminal.Fitted(table, _LEFT_OUT) for table in others),
    )


@singledispatch
def notebook(result: Any) -> str:
    """`result` as a fragment of HTML."""
    return "".join(map(markup.table, result.tables()))


def text(result: Any) -> str:
    """`result` as plain text, as wide as the terminal."""
    return terminal.text(renderable(result))


@singledispatch
def page(result: Any, diff: str = "") -> str:
    """Draw a result as one HTML page.

    Args:
        result: a profile, two profiles, or another result that has a page.
        diff: the change of the source as a unified diff; "" if there is none.

    Raises:
        TypeError: There is no page for this kind of result.
    """
    raise TypeError(f"A {type(result).__name__} has no page. Pass a profile, or two profiles of one model.")


@page.register
def _(result: Profile, diff: str = "") -> str:
    return profile_page.html(result)


@page.register
def _(result: BeforeAfter, diff: str = "") -> str:
    return profile_page.html_of_both(result.before, result.after, result.comparison, diff)


@renderable.register
def _(result: Profile) -> RenderableType:
    return profile_terminal.summary(result)


@notebook.register
def _(result: Profile) -> str:
    return profile_terminal.notebook({"": result})


@renderable.register
def _(result: BeforeAfter) -> RenderableType:
    return profile_terminal.summary_of_both(result.before, result.after, result.comparison)


@notebook.register
def _(result: BeforeAfter) -> str:
    return profile_terminal.notebook({"before": result.before, "after": result.after}, result.comparison)


@renderable.register
def _(result: Plan) -> RenderableType:
    parts: list[RenderableType] = [terminal.as_rich(replace(result.table, caption="")), *map(Text, result.sentences)]
    if result.scaling is not None:
        parts += [terminal.as_rich(table) for table in scaling_tables(result.scaling)]
        parts += map(Text, scaling_sentences(result.scaling))
    return Group(*parts)


@notebook.register
def _(result: Plan) -> str:
    tables = scaling_tables(result.scaling) if result.scaling is not None else ()
    return "".join(map(markup.table, (result.table, *tables)))
