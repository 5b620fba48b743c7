"""Defines sites: matches of a rule, and near misses. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from autofuse.ir import layout
from autofuse.ir.graph import Value
from autofuse.match.legality import RemovedValues
from autofuse.match.pattern import LoadedRule
from autofuse.rule import Verdict


@dataclass(frozen=True)
class ReplacedValue:
    """A value of the program that a result of the fused operation replaces.

    Attributes:
        value: the value.
        permutation: the permutation of the result's dimensions that gives the value.
        negated: whether the value is the negative of the result.
    """

    value: Value
    permutation: layout.Tail = ()
    negated: bool = False


@dataclass(frozen=True)
class Site:
    """A match of a rule, or a near miss.

    Attributes:
        rule: the rule.
        root: the last value of the match.
        results: the values that the results of the fused operation replace. The last one is `root`.
        captures: parameter of the rule -> the value that it captured.
        steps: the values of the program that the pattern matched.
        removed: the values that the replacement removes.
        verdict: whether the site is fused, and why not.
        notes: what was proved for the match.
        covers: codes of rules that match inside this site, such as a hand-written GELU in an MLP.
        partners: results of other sites that use values of this one. The site is replaced only together with them.
    """

    rule: LoadedRule
    root: Value
    results: tuple[ReplacedValue, ...]
    captures: dict[str, Value]
    steps: frozenset[Value]
    removed: RemovedValues
    verdict: Verdict
    notes: tuple[str, ...] = field(default=())
    covers: tuple[str, ...] = field(default=())
    partners: frozenset[Value] = field(default=frozenset())
