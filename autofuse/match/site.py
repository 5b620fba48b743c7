"""A site: a place where a rule applies, or where it would have but for a reason. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from autofuse.ir import layout
from autofuse.ir.graph import Value
from autofuse.match.legality import RemovedValues
from autofuse.match.pattern import LoadedRule
from autofuse.rule import Verdict


@dataclass(frozen=True)
class ReplacedValue:
    """One value of the program that the fused operation returns in its place, its last dimensions permuted."""

    value: Value
    permutation: layout.Tail = ()


@dataclass(frozen=True)
class Site:
    """`results` are replaced by what the rule's operation returns for `captures`; the last of them is `root`.

    `steps` are the program's values that the pattern named; `notes` say what was proved on the way; `covers` names
    the codes of rules that would apply inside, such as a hand-written GELU in an MLP.
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
