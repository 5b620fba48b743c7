"""Selects rules by the prefixes of their codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from autofuse.loading.unknown_code import UnknownCode
from autofuse.match.pattern import LoadedRule

__all__ = ["OFF_BY_DEFAULT", "UnknownCode", "matches_prefix", "require_known", "select_rules"]


# Advice about the use of the GPU by a training loop. It depends on the machine and not on the code, so these rules are
# used only if the user selects them.
OFF_BY_DEFAULT = ("AF602", "AF603", "AF604")


def select_rules(
    rules: Sequence[LoadedRule], select: Iterable[str] = (), ignore: Iterable[str] = ()
) -> tuple[LoadedRule, ...]:
    """Return the rules with a code that starts with a prefix in `select` and with none in `ignore`.

    Args:
        rules: All rules.
        select: Prefixes of codes; empty for all codes.
        ignore: Prefixes of codes.

    Raises:
        UnknownCode: A prefix matches no rule. Otherwise a typing error could silently switch a check off.
    """
    wanted, unwanted = tuple(select), tuple(ignore)
    for prefix in (*wanted, *unwanted):
        require_known(prefix, rules)
    return tuple(
        r for r in rules if matches_prefix(wanted or ("",), r.rule.code) and not matches_prefix(unwanted, r.rule.code)
    )


def matches_prefix(prefixes: Iterable[str], code: str) -> bool:
    """Whether `code` starts with one of `prefixes`: the prefix "AF1" matches "AF101"."""
    return code.startswith(tuple(prefixes))


def require_known(prefix: str, rules: Sequence[LoadedRule]) -> None:
    """Raise UnknownCode if no code of a rule starts with `prefix`."""
    codes = [r.rule.code for r in rules]
    if prefix and any(c.startswith(prefix) for c in codes):
        return
    close = difflib.get_close_matches(prefix.upper(), codes, n=1, cutoff=0.6)
    hint = f"Did you mean {close[0]}?" if close else "`autofuse rules` lists them."
    raise UnknownCode(f"No rule has the code {prefix!r}, or one that begins with it. {hint}")
