"""Finds the sites in a graph: canonical form, match, legality and choice, in that order.

A site is a match of a rule, or a near miss with its reason. This file knows no front end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autofuse.canonical import CAST, LEAF, PERMUTE, View, literal, strip_casts
from autofuse.canonical.view import order_of
from autofuse.ir.graph import (
    ATTRIBUTE,
    CALL,
    CONST,
    IS_NONE,
    ITEM,
    MODULE,
    PARAMETER,
    TUPLE,
    Graph,
    Value,
    ancestors_by,
    is_const,
)
from autofuse.ir.vocabulary import OPS
from autofuse.match.answers import answer_of
from autofuse.match.choice import choose_sites
from autofuse.match.legality import RemovedValues, Replaced, removed_values, written_after, written_between
from autofuse.match.masks import Mask
from autofuse.match.matcher import Matcher
from autofuse.match.near_misses import near_miss
from autofuse.match.pattern import Bindings, LoadedRule
from autofuse.match.site import ReplacedValue, Site
from autofuse.rule import Fails, Holds, RuleError, Unknown

_ALONE = Replaced()
_NOT_A_ROOT = frozenset({PARAMETER, CONST, ATTRIBUTE, TUPLE, IS_NONE, "sink"})


@dataclass(frozen=True)
class _Captures:
    """Implements autofuse.rule.Captures for one match."""

    view: View
    bound: dict[str, Value]
    mask: Mask | None
    names: frozenset[str]  # the parameters of `before`

    def absent(self, name: str) -> bool:
        return (v := self._captured_value(name)) is None or is_const(v, None)

    def literal(self, name: str) -> object:
        return v.data if (v := self._captured_value(name)) is not None and v.op == CONST else None

    def number(self, name: str) -> bool | None:
        return self.view.number(v) if (v := self._captured_value(name)) is not None else True

    def rank(self, name: str) -> int | None:
        return self.view.rank(v) if (v := self._captured_value(name)) is not None else None

    def attribute(self, name: str) -> bool:
        return (v := self._captured_value(name)) is not None and _depends_only_on_module(v)

    def written(self, name: str) -> bool:
        v = self._captured_value(name)
        return v is None or _is_written(self.view, v)

    def branches(self, first: str, second: str) -> bool:
        one, other = self._captured_value(first), self._captured_value(second)
        if one is None or other is None or one is other:
            return False
        inputs = [{_layer_inputs(o) for o in _operands_of_capture(self.view, v)} - {None} for v in (one, other)]
        return bool(inputs[0] & inputs[1])

    def scores(self, name: str) -> bool:
        return (v := self._captured_value(name)) is not None and _is_scores(v)

    def boolean(self, name: str) -> bool:
        self._captured_value(name)
        return self.mask is not None and self.mask.boolean

    def approximation(self, name: str) -> str:
        self._captured_value(name)
        return self.mask.approximate if self.mask is not None else ""

    def _captured_value(self, name: str) -> Value | None:
        """The value captured as `name`; None if the code omits this optional parameter.

        Raises:
            RuleError: `before` has no such parameter.
        """
        if name not in self.names:
            known = ", ".join(sorted(self.names))
            raise RuleError(f"asks about `{name}`, but `before` has only the parameters {known}.")
        return self.bound.get(name)


def _is_written(view: View, v: Value) -> bool:
    """Whether the program computes `v` or all its factors, as in torch.add(x, y, alpha=0.5).

    The -1 of -y does not count.
    """
    if v.op in (CONST, LEAF, PARAMETER) or view.originals(v):
        return True
    return v.op == "mul" and literal(v.inputs[-1]) != -1 and all(_is_written(view, f) for f in v.inputs)


def _is_scores(v: Value) -> bool:
    collected = ancestors_by(v, lambda v: v.inputs if v.op in (PERMUTE, CAST, "mul", "add") else ())
    return any(v.op == "matmul" and v.inputs[1].op in (PERMUTE, "transpose") for v in collected)


def _layer_inputs(v: Value) -> tuple[Value, ...] | None:
    """The inputs of a linear layer or of a call of a submodule; None for another value."""
    if v.op == "linear":
        return v.inputs[:1]
    return v.inputs[1:] if v.op == CALL and v.inputs and _depends_only_on_module(v.inputs[0]) else None


def _depends_only_on_module(v: Value) -> bool:
    """Whether `v` is computed only from attributes of the module and constants."""
    read = ancestors_by(v, _computed_from)
    return all(v.data == "self" if v.op == PARAMETER else v.op in (CONST, MODULE) or _computed_from(v) for v in read)


def _computed_from(v: Value) -> tuple[Value, ...]:
    return (v.data,) if v.op == LEAF and isinstance(v.data, Value) else v.inputs


def sites(
    graph: Graph, view: View, rules: tuple[LoadedRule, ...], usable: Callable[[Site], bool] = lambda site: True
) -> Iterator[Site]:
    """Yield the sites of all rules in program order; of overlapping usable sites, the one with the greatest benefit.

    Args:
        graph: the graph of one function.
        view: its canonical form.
        rules: the rules to match.
        usable: whether the caller can replace a site.
    """
    yield from choose_sites(every_site(graph, view, rules), usable)


def every_site(graph: Graph, view: View, rules: tuple[LoadedRule, ...]) -> list[Site]:
    """The sites of all rules, including overlapping ones."""
    for (
        v
    ) in graph.values:  # In program order, the inputs of a value are matched before it. So the recursion is never deep.
        view.facts.number(v)
        view.facts.rank(v)
        canonical = view.of(v)
        view.number(canonical)
        view.rank(canonical)
    roots = frozenset(op for r in rules for op in r.pattern.root_ops)
    collected = []
    for v in graph.values:
        if not _may_be_root(view, v) or roots.isdisjoint(ends := _root_ops(view.of(v))):
            continue
        for r in rules:
            if not r.pattern.root_ops.isdisjoint(ends) and (site := _site_or_error(graph, view, r, v)):
                collected.append(site)
    return [*collected, *_shared_sites(graph, view, collected)]


def _shared_sites(graph: Graph, view: View, collected: list[Site]) -> list[Site]:
    """The sites that could be replaced if the others that use their steps were replaced, too.

    A linear layer whose output two losses read is an example: either loss keeps the output for the other.
    """
    found = [s for s in collected if s.rule.rule.shares_steps]
    waiting = [s for s in found if isinstance(s.verdict, Fails) and s.verdict.use is not None]
    while waiting:
        members = [*waiting, *(s for s in found if isinstance(s.verdict, Holds))]
        joined = [_joined_site(graph, view, s, members) for s in waiting]
        if None not in joined:
            return [s for s in joined if s is not None]
        waiting = [s for s, j in zip(waiting, joined, strict=True) if j is not None]
    return []


def _joined_site(graph: Graph, view: View, site: Site, members: list[Site]) -> Site | None:
    """`site` under the assumption that the other members are replaced too; None if something else prevents it."""
    others = [m for m in members if m.root is not site.root]
    operands = frozenset(o for m in others for c in m.captures.values() for o in _operands_of_capture(view, c))
    replaced = Replaced(frozenset(r.value for m in others for r in m.results), operands)
    joined = _site_or_error(graph, view, site.rule, site.root, replaced)
    if joined is None or not isinstance(joined.verdict, Holds):
        return None
    own = {*joined.removed.values, *joined.removed.shared, joined.root}
    shared = joined.removed.shared
    users = {r for r in replaced.results - own if shared & set(ancestors_by(r, lambda v: v.inputs))}
    return replace(joined, partners=frozenset(users))


def _may_be_root(view: View, v: Value) -> bool:
    """Whether a match may end at `v`. An index may select the log-probability of each target."""
    if v.op == ITEM:
        return view.of(v).op != ITEM and view.of(v.inputs[0]).op != TUPLE
    return v.op not in _NOT_A_ROOT


def _site_or_error(
    graph: Graph, view: View, rule: LoadedRule, root: Value, others: Replaced = _ALONE
) -> Site | None:  # fmt: skip
    """The site at `root`; None if there is none.

    Raises:
        RuleError: the rule's own code fails. The error gets the rule's code.
    """
    try:
        return _site_at(graph, view, rule, root, others)
    except RuleError as error:
        error.rule = rule.rule.code
        raise


def _root_ops(canonical: Value) -> tuple[str, ...]:
    """The operations with which a match may end at this value: its own, and the operation whose result it rearranges.

    Casts, permutations and a change of sign come after the operation.
    """
    plain = strip_casts(canonical)
    core = plain.inputs[0] if plain.op == PERMUTE else plain
    negated = _operand_of_negation(core)
    return canonical.op, plain.op, core.op, negated.op if negated is not None else core.op


def _operand_of_negation(v: Value) -> Value | None:
    """x, if `v` is -x; otherwise None."""
    return v.inputs[0] if v.op == "mul" and len(v.inputs) == 2 and literal(v.inputs[1]) == -1 else None


def _site_at(graph: Graph, view: View, rule: LoadedRule, root: Value, others: Replaced) -> Site | None:
    canonical = view.of(root)
    restored = _source_of_restored_dtype(view, root) if canonical.op == CAST and not rule.rule.promotes else None
    cast = canonical if canonical.op == CAST and restored is None and not rule.rule.promotes else None
    if restored is not None or cast is not None:
        canonical = strip_casts(canonical)
    core, order = (canonical.inputs[0], order_of(canonical)) if canonical.op == PERMUTE else (canonical, ())
    end = ReplacedValue(root, order)
    if core.op not in rule.pattern.root_ops:
        positive = _operand_of_negation(core)
        if positive is None or positive.op not in rule.pattern.root_ops or len(rule.pattern.results) > 1:
            return None
        core, end = positive, replace(end, negated=True)
    matcher = Matcher(rule.pattern, view)
    first: Site | None = None
    for bound in matcher.matches(core, restored, cast):
        site = _site(graph, view, rule, end, bound, others)
        if site is None:
            continue
        if not isinstance(site.verdict, Fails):
            return _with_assumption(site, _assumptions(view, core, bound))
        first = first or site
    return first or (None if end.negated else near_miss(view, rule, root, matcher))


def _assumptions(view: View, core: Value, bound: Bindings) -> str:
    """The assumptions of the canonical form that a match rests on, joined by "; "."""
    assumptions = [why for v in (core, *bound.steps.values()) for why in view.assumption(v).split("; ") if why]
    return "; ".join(dict.fromkeys(assumptions))


def _with_assumption(site: Site, why: str) -> Site:
    """`site` with the assumption `why` added to its verdict, which becomes unsafe."""
    if not why or not isinstance(site.verdict, Holds):
        return site
    reasons = [reason for reason in (*site.verdict.why.split("; "), *why.split("; ")) if reason]
    return replace(site, verdict=Holds("unsafe", "; ".join(dict.fromkeys(reasons))))


def _source_of_restored_dtype(view: View, root: Value) -> Value | None:
    """The value whose dtype a cast restores: x in `y.to(x.dtype)` and `y.type_as(x)`."""
    if root.op == "type_as":
        return strip_casts(view.of(root.inputs[1]))
    targets = [view.of(t) for t in root.inputs[1].inputs] if root.op == "to" else []
    if len(targets) == 1 and targets[0].op == ATTRIBUTE and targets[0].data == "dtype":
        return strip_casts(targets[0].inputs[0])
    return None


def _site(
    graph: Graph, view: View, rule: LoadedRule, end: ReplacedValue, bound: Bindings, others: Replaced
) -> Site | None:  # fmt: skip
    """The site of one match; None if the fusion gains nothing or the program does not compute a result.

    Raises:
        RuleError: `where` raises an error, or names a capture that `before` does not have.
    """
    root = end.value
    captures = _captures_without_defaults(rule, bound)
    steps = frozenset(o for v in bound.steps.values() for o in view.originals(v)) | {root}
    results = _program_results(view, rule, end, bound)
    if results is None:
        return None
    # Equal literals are one value, so other code that contains the same number is not computed from it.
    operands = frozenset(o for c in captures.values() for o in _operands_of_capture(view, c) if o.op != CONST)
    values = tuple(r.value for r in results)
    removed = removed_values(graph, values, steps, operands, others)
    if isinstance(removed, Fails):
        removed = replace(removed, advice=rule.rule.advice or removed.advice)
        return Site(rule, root, results, captures, steps, RemovedValues(frozenset()), removed, bound.notes)
    gone = (*removed.values, *removed.shared, *values)
    if rule.rule.native and any(v.op == rule.rule.native for v in gone):
        return None
    if rule.pattern.written > 1 and sum(map(_is_computation, gone)) < 2:
        return None  # The code is already one operation of torch, apart from views and casts around it.
    start = min((v.serial for v in gone), default=root.serial)
    written = written_between(graph, operands, start, values)
    if rule.rule.saves_result:
        written = written or written_after(graph, values)
    verdict = written or answer_of(
        rule.rule, rule.rule.where, _Captures(view, captures, bound.mask, rule.pattern.names)
    )
    if (
        verdict is None
        or isinstance(verdict, Fails)
        and any(v.op == rule.rule.core for v in (*removed.values, *values))
    ):
        return None
    if isinstance(verdict, (Fails, Unknown)) and verdict.capture and verdict.capture not in rule.pattern.names:
        raise RuleError(
            f"{rule.rule.__name__}.where names the capture `{verdict.capture}`, but `before` has no such parameter."
        )
    if isinstance(verdict, (Fails, Unknown)) and verdict.capture in captures:
        verdict = replace(verdict, culprit=next(_operands_of_capture(view, captures[verdict.capture]), None))
    return Site(rule, root, results, captures, steps, removed, verdict, bound.notes)


def _captures_without_defaults(rule: LoadedRule, bound: Bindings) -> dict[str, Value]:
    """The captures without numbers and strings that are equal to the default, as if the code omitted them."""
    defaults = rule.pattern.defaults
    return {
        name: v
        for name, v in bound.captures.items()
        if not (isinstance(v.data, (int, float, str)) and name in defaults and is_const(v, defaults[name].data))
    }


def _is_computation(v: Value) -> bool:
    """Whether `v` computes, other than a view. Views as complex numbers count, because a complex product needs them."""
    return v.op not in OPS or OPS[v.op].effect != "view" or v.op in ("view_as_complex", "view_as_real")


def _program_results(
    view: View, rule: LoadedRule, end: ReplacedValue, bound: Bindings
) -> tuple[ReplacedValue, ...] | None:
    """The program's value for each result of the pattern; None if the program does not compute one of them."""
    collected = []
    for pattern in rule.pattern.results[:-1]:
        values = view.originals(bound.steps[pattern]) if pattern in bound.steps else []
        if not values:
            return None
        collected.append(ReplacedValue(values[0]))
    return (*collected, end)


def _operands_of_capture(view: View, capture: Value) -> Iterator[Value]:
    """The program's values that a capture consists of: the value itself, or the values to rebuild it from."""
    for v in ancestors_by(capture, lambda v: () if view.originals(v) else v.inputs):
        yield from view.originals(v)
        if not view.originals(v) and isinstance(v.data, Value):
            yield v.data
