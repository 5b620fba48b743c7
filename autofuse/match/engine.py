"""Graph in, sites out: canonical form, match, legality, plan, in that order.

A site is a place where a rule applies, or where it would have but for a reason. Knows no front end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autofuse.canonical import CAST, LEAF, PERMUTE, View, bare, literal
from autofuse.canonical.shapes import moved
from autofuse.canonical.view import order_of
from autofuse.ir import layout
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
from autofuse.match.choice import chosen
from autofuse.match.legality import RemovedValues, removed_values, written_after, written_between
from autofuse.match.masks import Mask
from autofuse.match.matcher import Matcher
from autofuse.match.pattern import Bindings, LoadedRule
from autofuse.match.site import ReplacedValue, Site
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.rule import Fails, Holds, RuleError, Unknown

_NOT_A_ROOT = frozenset({PARAMETER, CONST, ATTRIBUTE, ITEM, TUPLE, IS_NONE, "sink"})


@dataclass(frozen=True)
class _Captures:
    """The answers to what a rule's `where` asks."""

    view: View
    bound: dict[str, Value]
    mask: Mask | None
    names: frozenset[str]  # of the parameters that may be asked about

    def absent(self, name: str) -> bool:
        return (v := self._found(name)) is None or is_const(v, None)

    def literal(self, name: str) -> object:
        return v.data if (v := self._found(name)) is not None and v.op == CONST else None

    def number(self, name: str) -> bool | None:
        return self.view.number(v) if (v := self._found(name)) is not None else True

    def rank(self, name: str) -> int | None:
        return self.view.rank(v) if (v := self._found(name)) is not None else None

    def attribute(self, name: str) -> bool:
        return (v := self._found(name)) is not None and _from_self(v)

    def written(self, name: str) -> bool:
        v = self._found(name)
        return v is None or _is_written(self.view, v)

    def branches(self, first: str, second: str) -> bool:
        one, other = self._found(first), self._found(second)
        if one is None or other is None or one is other:
            return False
        read = [{_read_by(o) for o in _operands(self.view, v)} - {None} for v in (one, other)]
        return bool(read[0] & read[1])

    def scores(self, name: str) -> bool:
        return (v := self._found(name)) is not None and _is_scores(v)

    def boolean(self, name: str) -> bool:
        self._found(name)
        return self.mask is not None and self.mask.boolean

    def approximation(self, name: str) -> str:
        self._found(name)
        return self.mask.approximate if self.mask is not None else ""

    def _found(self, name: str) -> Value | None:
        """What was captured as `name`, if anything. Raises RuleError for what is no parameter of `before`."""
        if name not in self.names:
            known = ", ".join(sorted(self.names))
            raise RuleError(f"asks about `{name}`, which is no parameter of `before`: {known}.")
        return self.bound.get(name)


def _is_written(view: View, v: Value) -> bool:
    """Whether the program computes `v`, or has all factors of it, as in torch.add(x, y, alpha=0.5); -y is none."""
    if v.op in (CONST, LEAF, PARAMETER) or view.originals(v):
        return True
    return v.op == "mul" and literal(v.inputs[-1]) != -1 and all(_is_written(view, f) for f in v.inputs)


def _is_scores(v: Value) -> bool:
    found = ancestors_by(v, lambda v: v.inputs if v.op in (PERMUTE, CAST, "mul", "add") else ())
    return any(v.op == "matmul" and v.inputs[1].op in (PERMUTE, "transpose") for v in found)


def _read_by(v: Value) -> tuple[Value, ...] | None:
    """What a call of a module, or a linear layer, is given."""
    if v.op == "linear":
        return v.inputs[:1]
    return v.inputs[1:] if v.op == CALL and v.inputs and _from_self(v.inputs[0]) else None


def _from_self(v: Value) -> bool:
    """Whether `v` is computed from attributes of the module and constants alone."""
    read = ancestors_by(v, _computed_from)
    return all(v.data == "self" if v.op == PARAMETER else v.op in (CONST, MODULE) or _computed_from(v) for v in read)


def _computed_from(v: Value) -> tuple[Value, ...]:
    return (v.data,) if v.op == LEAF and isinstance(v.data, Value) else v.inputs


def sites(
    graph: Graph, view: View, rules: tuple[LoadedRule, ...], usable: Callable[[Site], bool] = lambda site: True
) -> Iterator[Site]:
    """Every site of every rule in program order; of those that overlap and are `usable`, the most beneficial."""
    yield from chosen(every_site(graph, view, rules), usable)


def every_site(graph: Graph, view: View, rules: tuple[LoadedRule, ...]) -> list[Site]:
    """Every site of every rule, those that overlap too."""
    for v in graph.values:  # in program order, so that no chain of inputs is walked recursively
        view.facts.number(v)
        view.facts.rank(v)
        canonical = view.of(v)
        view.number(canonical)
        view.rank(canonical)
    roots = frozenset(op for r in rules for op in r.pattern.root_ops)
    found = []
    for v in graph.values:
        if v.op in _NOT_A_ROOT or roots.isdisjoint(ends := _ends_in(view.of(v))):
            continue
        for r in rules:
            if not r.pattern.root_ops.isdisjoint(ends) and (site := _asked(graph, view, r, v)):
                found.append(site)
    return found


def _asked(graph: Graph, view: View, rule: LoadedRule, root: Value) -> Site | None:
    try:
        return _site_at(graph, view, rule, root)
    except RuleError as error:
        error.rule = rule.rule.code
        raise


def _ends_in(canonical: Value) -> tuple[str, ...]:
    """The operations that a match at this value may end in: its own, and that of what it casts or permutes."""
    plain = bare(canonical)
    return canonical.op, plain.op, plain.inputs[0].op if plain.op == PERMUTE else plain.op


def _site_at(graph: Graph, view: View, rule: LoadedRule, root: Value) -> Site | None:
    canonical = view.of(root)
    restored = _restored_dtype(view, root) if canonical.op == CAST and not rule.rule.promotes else None
    cast = canonical if canonical.op == CAST and restored is None and not rule.rule.promotes else None
    if restored is not None or cast is not None:
        canonical = bare(canonical)
    core, order = (canonical.inputs[0], order_of(canonical)) if canonical.op == PERMUTE else (canonical, ())
    if core.op not in rule.pattern.root_ops:
        return None
    matcher = Matcher(rule.pattern, view)
    first: Site | None = None
    for bound in matcher.matches(core, restored, cast):
        site = _site(graph, view, rule, root, order, bound)
        if site is None:
            continue
        if not isinstance(site.verdict, Fails):
            return _assuming(site, _assumed(view, core, bound))
        first = first or site
    return first or _near_miss(view, rule, root, matcher)


def _assumed(view: View, core: Value, bound: Bindings) -> str:
    """What the canonical form took for granted on the way to a match."""
    assumed = [why for v in (core, *bound.steps.values()) for why in view.assumption(v).split("; ") if why]
    return "; ".join(dict.fromkeys(assumed))


def _assuming(site: Site, why: str) -> Site:
    """`site`, which is right only if what its canonical form took for granted is."""
    if not why or not isinstance(site.verdict, Holds):
        return site
    told = [said for said in (*site.verdict.why.split("; "), *why.split("; ")) if said]
    return replace(site, verdict=Holds("unsafe", "; ".join(dict.fromkeys(told))))


def _restored_dtype(view: View, root: Value) -> Value | None:
    """Whose dtype a cast gives back: x of `y.to(x.dtype)` and `y.type_as(x)`."""
    if root.op == "type_as":
        return bare(view.of(root.inputs[1]))
    targets = [view.of(t) for t in root.inputs[1].inputs] if root.op == "to" else []
    if len(targets) == 1 and targets[0].op == ATTRIBUTE and targets[0].data == "dtype":
        return bare(targets[0].inputs[0])
    return None


def _site(graph: Graph, view: View, rule: LoadedRule, root: Value, order: layout.Tail, bound: Bindings) -> Site | None:
    """The site of one match; None where there is nothing to gain or a result cannot be found in the program."""
    captures = _given(rule, bound)
    steps = frozenset(o for v in bound.steps.values() for o in view.originals(v)) | {root}
    results = _results(view, rule, root, order, bound)
    if results is None:
        return None
    operands = frozenset(o for c in captures.values() for o in _operands(view, c))
    values = tuple(r.value for r in results)
    gone = removed_values(graph, values, steps, operands)
    if isinstance(gone, Fails):
        gone = replace(gone, advice=rule.rule.advice or gone.advice)
        return Site(rule, root, results, captures, steps, RemovedValues(frozenset()), gone, bound.notes)
    if rule.rule.native and any(v.op == rule.rule.native for v in (*gone.values, *values)):
        return None
    if rule.pattern.written > 1 and sum(map(_computes, (*gone.values, *values))) < 2:
        return None  # one operation already, torch's own, whatever views and casts lie around it
    start = min((v.serial for v in (*gone.values, *values)), default=root.serial)
    written = written_between(graph, operands, start, values)
    if rule.rule.saves_result:
        written = written or written_after(graph, values)
    verdict = written or answer_of(
        rule.rule, rule.rule.where, _Captures(view, captures, bound.mask, rule.pattern.names)
    )
    if verdict is None or isinstance(verdict, Fails) and any(v.op == rule.rule.core for v in (*gone.values, *values)):
        return None
    if isinstance(verdict, (Fails, Unknown)) and verdict.capture and verdict.capture not in rule.pattern.names:
        raise RuleError(f"{rule.rule.__name__}.where names `{verdict.capture}`, which is no parameter of `before`.")
    if isinstance(verdict, (Fails, Unknown)) and verdict.capture in captures:
        verdict = replace(verdict, culprit=next(_operands(view, captures[verdict.capture]), None))
    return Site(rule, root, results, captures, steps, gone, verdict, bound.notes)


def _given(rule: LoadedRule, bound: Bindings) -> dict[str, Value]:
    """What the code gives; a number or a text that is the default anyway is as good as left out."""
    defaults = rule.pattern.defaults
    return {
        name: v
        for name, v in bound.captures.items()
        if not (isinstance(v.data, (int, float, str)) and name in defaults and is_const(v, defaults[name].data))
    }


def _computes(v: Value) -> bool:
    """Whether memory is gone through: not for a view, but a way by complex numbers is the product of two of theirs."""
    return v.op not in OPS or OPS[v.op].effect != "view" or v.op in ("view_as_complex", "view_as_real")


def _results(
    view: View, rule: LoadedRule, root: Value, order: layout.Tail, bound: Bindings
) -> tuple[ReplacedValue, ...] | None:
    """The program's value for each result of the pattern."""
    found = []
    for pattern in rule.pattern.results[:-1]:
        values = view.originals(bound.steps[pattern]) if pattern in bound.steps else []
        if not values:
            return None
        found.append(ReplacedValue(values[0]))
    return (*found, ReplacedValue(root, order))


def _operands(view: View, capture: Value) -> Iterator[Value]:
    """The program's values that a captured value is, or that it would be rebuilt from."""
    for v in ancestors_by(capture, lambda v: () if view.originals(v) else v.inputs):
        yield from view.originals(v)
        if not view.originals(v) and isinstance(v.data, Value):
            yield v.data


def _near_miss(view: View, rule: LoadedRule, root: Value, matcher: Matcher) -> Site | None:
    """What to say where all of a pattern matched but the arguments of one step."""
    miss = matcher.miss
    if miss.step is None or miss.found is None or miss.step.op != rule.rule.landmark or not matcher.rest_matches(miss):
        return None
    turned = miss.found.op == PERMUTE  # over another dimension than the last, which is what was turned
    given = (
        str(moved(layout.inverse(order_of(miss.found)), -1))
        if turned
        else ", ".join(str(v.data) for v in miss.found.inputs if v.op == CONST)
    )
    wanted = ", ".join(str(v.data) for v in miss.step.inputs if v.op == CONST)
    why = because(matches.OTHER_ARGUMENTS, operation=miss.step.op, given=given, wanted=wanted)
    culprit = next(iter(view.originals(miss.found)), root)
    return Site(
        rule, root, (ReplacedValue(root),), {}, frozenset({root}), RemovedValues(frozenset()), Fails(why, culprit)
    )
