"""Which rules a user asked for: code prefixes in, rules out. Knows codes; knows neither files nor models."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from autofuse.loading.unknown_code import UnknownCode
from autofuse.match.pattern import LoadedRule

__all__ = ["UNLESS_SELECTED", "UnknownCode", "covers", "require_known", "selected"]


# Advice on how a loop uses its GPU. It is about the machine, not about the text, so it is given to who selects it.
UNLESS_SELECTED = ("AF602", "AF603", "AF604")


def selected(
    rules: Sequence[LoadedRule], select: Iterable[str] = (), ignore: Iterable[str] = ()
) -> tuple[LoadedRule, ...]:
    """The rules whose code starts with one of `select` (all, if empty) and with none of `ignore`.

    Raises UnknownCode where a prefix belongs to no rule: a typing error must not silently switch a check off.
    """
    wanted, unwanted = tuple(select), tuple(ignore)
    for prefix in (*wanted, *unwanted):
        require_known(prefix, rules)
    return tuple(r for r in rules if covers(wanted or ("",), r.rule.code) and not covers(unwanted, r.rule.code))


def covers(prefixes: Iterable[str], code: str) -> bool:
    """Whether `code` starts with one of `prefixes`: "AF1" covers "AF101"."""
    return code.startswith(tuple(prefixes))


def require_known(prefix: str, rules: Sequence[LoadedRule]) -> None:
    """Raises UnknownCode unless some rule's code starts with `prefix`."""
    codes = [r.rule.code for r in rules]
    if prefix and any(c.startswith(prefix) for c in codes):
        return
    close = difflib.get_close_matches(prefix.upper(), codes, n=1, cutoff=0.6)
    hint = f"Did you mean {close[0]}?" if close else "`autofuse rules` lists them."
    raise UnknownCode(f"No rule has the code {prefix!r}, or one that begins with it. {hint}")
