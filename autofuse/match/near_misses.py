"""Says why code that has the main operation of a rule does not match: other arguments, or a step in between."""

from __future__ import annotations

from itertools import islice

from autofuse.canonical import CAST, PERMUTE, View, strip_casts
from autofuse.canonical.shapes import source_dimension
from autofuse.canonical.view import order_of
from autofuse.ir import layout
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, ITEM, Value, ancestors_by
from autofuse.ir.vocabulary import OPS
from autofuse.match.legality import RemovedValues
from autofuse.match.matcher import Matcher
from autofuse.match.pattern import LoadedRule
from autofuse.match.site import ReplacedValue, Site
from autofuse.reasons import matches
from autofuse.reasons.reason import Reason, because
from autofuse.rule import Fails

_MOST_STEPS = 12  # between the main operation and what the pattern has before it


def near_miss(view: View, rule: LoadedRule, root: Value, matcher: Matcher) -> Site | None:
    """The site of a pattern that did not match: its main operation (the landmark) differs, or a step is in between.

    Args:
        view: The canonical view of the code.
        rule: The rule.
        root: The value that the pattern would have computed.
        matcher: The matcher, after it found no match.
    """
    why, culprit = (
        _miss_by_arguments(view, rule, root, matcher) or _miss_by_extra_step(view, rule, matcher) or (None, None)
    )
    if why is None or culprit is None:
        return None
    return Site(
        rule, root, (ReplacedValue(root),), {}, frozenset({root}), RemovedValues(frozenset()), Fails(why, culprit)
    )


def _miss_by_arguments(view: View, rule: LoadedRule, root: Value, matcher: Matcher) -> tuple[Reason, Value] | None:
    """The landmark with other arguments, if the rest of the pattern matches."""
    miss = matcher.miss
    if miss.step is None or miss.found is None or miss.step.op != rule.rule.landmark or not matcher.rest_matches(miss):
        return None
    permuted = (
        miss.found.op == PERMUTE
    )  # The canonical form moves another dimension to the end, so the landmark may be inside a permutation.
    actual = (
        str(source_dimension(layout.inverse(order_of(miss.found)), -1))
        if permuted
        else ", ".join(str(v.data) for v in miss.found.inputs if v.op == CONST)
    )
    expected = ", ".join(str(v.data) for v in miss.step.inputs if v.op == CONST)
    why = because(matches.OTHER_ARGUMENTS, operation=miss.step.op, given=actual, wanted=expected)
    return why, next(iter(view.originals(miss.found)), root)


def _miss_by_extra_step(view: View, rule: LoadedRule, matcher: Matcher) -> tuple[Reason, Value] | None:
    """An extra step: the landmark follows it, and its input matches the part of the pattern before the landmark."""
    reached = matcher.reached.get(rule.rule.landmark)
    if reached is None:
        return None
    pattern, value = (step.inputs[0] for step in reached)
    for step in islice(ancestors_by(strip_casts(value), _operands_of_cheap_step), _MOST_STEPS):
        for operand in step.inputs:
            found = matcher.first_match(pattern, operand)
            if found is None or any(map(_is_parameter, found.captures.values())):
                continue
            culprit = next(iter(view.originals(step)), None)
            why = because(matches.STEP_BEFORE, step=_name_of(step), operation=rule.rule.landmark)
            return None if culprit is None else (why, culprit)
    return None


def _name_of(step: Value) -> str:
    if step.op == CALL and isinstance(step.data, tuple):
        return str(step.data[0])
    return "if" if step.op == CHOICE else step.op


def _operands_of_cheap_step(v: Value) -> tuple[Value, ...]:
    return v.inputs if v.op in (PERMUTE, CAST, ITEM) or v.op in OPS and not OPS[v.op].heavy else ()


def _is_parameter(v: Value) -> bool:
    """Whether a value is an attribute of the module, such as a weight. A product with a weight is a layer."""
    while v.op in (PERMUTE, CAST, ITEM, "view"):
        v = v.inputs[0]
    return v.op == ATTRIBUTE
