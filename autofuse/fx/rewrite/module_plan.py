"""Plans one call of one module: finds the sites in its trace, rewrites them and records the result for each site.

A caller that reads only part of a child's result calls the child's narrow forward, which omits the rest. Attention can
then be fused although it returns its probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import fx, nn

from autofuse.canonical import View
from autofuse.fx.install.codegen import Variant, build_variant
from autofuse.fx.rewrite.after_expression import kernel_name
from autofuse.fx.rewrite.author_text import find_author_text
from autofuse.fx.rewrite.child_dropout import Children, call_of, is_erased, rejoin_calls, split_calls, unread_paths
from autofuse.fx.rewrite.excerpt import Excerpt
from autofuse.fx.rewrite.experts.dispatch import OneHotProduct, find_dispatches, rewrite_dispatch
from autofuse.fx.rewrite.experts.rewrite_sums import find_sums, rewrite_sum
from autofuse.fx.rewrite.experts.token_wise import is_token_wise
from autofuse.fx.rewrite.fused_call import rewrite
from autofuse.fx.rewrite.graph_capture import CapturedTrace, capture_trace
from autofuse.fx.rewrite.layouts import copy_graph, keep_layouts
from autofuse.fx.rewrite.narrow_calls import is_narrow_call, narrow_caller
from autofuse.fx.rewrite.node_builder import CannotBuild
from autofuse.fx.rewrite.paired_rotations import pair_rotations
from autofuse.fx.rewrite.shared_heads import share_heads
from autofuse.fx.trace.attribute_reads import guard_path
from autofuse.fx.trace.operation_names import erase_dead, forms_of, replace_node, structure_of
from autofuse.fx.trace.paths import Path, tail_of
from autofuse.fx.trace.plain_children import guard_pristine, guard_unwatched
from autofuse.fx.trace.source_lines import SourceLine
from autofuse.fx.trace.tracer import ForwardArguments, ForwardTrace
from autofuse.ir.facts import Facts
from autofuse.match.engine import sites
from autofuse.match.pattern import LoadedRule
from autofuse.match.refusals import AuthorText, Refusal, refusal, unread
from autofuse.match.site import Site
from autofuse.rule import Holds

EXPERTS, _LOOP_BENEFIT = "AF701", 10  # the code of the rule for loops over experts, and its benefit
_KERNEL = "autofuse experts"  # of the report: rows by expert, and a product for each expert or for all of them at once
_ROUNDS = 3  # a fused operation may be part of a larger match: a hand-written GELU, then its MLP

SiteKey = tuple[str, str, SourceLine | None]  # rule, replaced node, line


@dataclass(frozen=True)
class Found:
    """A site or a near miss of a rule.

    Attributes:
        rule: The code of the rule.
        key: The identity of the site in its module.
        place: The line of the replaced code.
        fused: Whether the site is rewritten.
        reason: Why it is fused or declined, or the measured times.
        kernel: The kernel that the fused call runs.
        choice: Why this kernel was chosen, if several were timed.
        refusal: The refusal, if the site is declined.
        mask: Notes on the mask of attention.
        benefit: The benefit of its rule: roughly, the passes over memory that fusion saves.
        excerpt: The replaced and the new code. None for sites that are part of a larger one.
    """

    rule: str
    key: SiteKey
    place: SourceLine | None
    fused: bool
    reason: str = ""
    kernel: str = ""
    choice: str = ""
    refusal: Refusal | None = None
    mask: str = ""
    benefit: int = 0
    excerpt: Excerpt | None = field(default=None, compare=False, repr=False)


@dataclass
class ModulePlan:
    """The plan for one call of one module.

    Attributes:
        module: The module.
        found: Its sites and near misses.
        variant: The rewritten forward, None if nothing is gained.
        narrowed: The children whose narrow forwards are called, each with the omitted parts of its result.
        entered: The Sequentials whose layers the trace contains.
        bypassed: The children that the original forward calls and the rewritten one does not.
        forward: Equal for plans that replace equal graphs of tensors of equal forms by equal graphs. Guards may differ.
    """

    module: nn.Module
    found: list[Found] = field(default_factory=list)
    variant: Variant | None = None
    narrowed: list[tuple[nn.Module, frozenset[Path]]] = field(default_factory=list)
    entered: frozenset[str] = frozenset()
    bypassed: frozenset[str] = frozenset()
    forward: Hashable = None


class PlannedChildren(Children, Protocol):
    """The functions of the planner that plan_trace needs for the children of a module."""

    def plan_narrow(self, child: nn.Module, call: ForwardArguments, unread: frozenset[Path]) -> ModulePlan | None:
        """The plan for a child's forward without the parts at `unread`; None if that gains nothing."""


def plan_trace(
    trace: ForwardTrace, rules: tuple[LoadedRule, ...], excluded: frozenset[SiteKey], children: PlannedChildren | None
) -> ModulePlan:
    """Rewrite a trace.

    Args:
        trace: The trace of one call of one module, which is edited.
        rules: The rules to apply.
        excluded: Sites that must not be fused.
        children: Plans for the children. None keeps their calls.

    Returns:
        The plan. Its `variant` is the rewritten forward.
    """
    plan = ModulePlan(trace.module, _fused_loops(trace, rules, excluded), entered=trace.entered_children)
    child_traces: dict[fx.Node, ForwardTrace | None] = {}

    def trace_child(child: nn.Module, node: fx.Node) -> ForwardTrace | None:
        if node not in child_traces:
            child_traces[node] = children.trace_child(child, call_of(node)) if children is not None else None
        return child_traces[node]

    erase_dead(trace.graph)
    before = structure_of(trace.graph), forms_of(trace.graph)
    split = split_calls(trace, children) if children is not None else []
    called = {str(n.target) for n in trace.graph.nodes if n.op == "call_module"}
    original = copy_graph(trace.graph)
    plan.found += _fused_dense_experts(trace, rules, excluded, trace_child)
    for _ in range(_ROUNDS):
        if not _fuse_round(trace, rules, excluded, plan, trace_child):
            break
    if any(f.fused for f in plan.found):
        share_heads(trace, trace_child)
        try:
            keep_layouts(trace, original)
        except CannotBuild as error:
            # A rewrite that changes a visible layout is discarded completely.
            return ModulePlan(trace.module, [_decline_unbuilt(f, error) if f.fused else f for f in plan.found])
        pair_rotations(trace)
    if children is not None:
        split = rejoin_calls(trace, split, children)
        plan.narrowed += [(s.child, s.dropped) for s in split]
        guard_unwatched(trace.guards, [s.target for s in split])
        _use_narrow_forwards(trace, plan, children)
    if plan.narrowed or any(f.fused for f in plan.found) or tail_of(trace.dropped):
        plan.bypassed = _guard_bypassed(
            trace, called, {str(n.target): t for n, t in child_traces.items() if t is not None}
        )
        trace.graph.lint()
        plan.variant = build_variant(trace)
        plan.forward = before, structure_of(trace.graph)
    return plan


def _fused_loops(trace: ForwardTrace, rules: tuple[LoadedRule, ...], excluded: frozenset[SiteKey]) -> list[Found]:
    """The loops over experts, which the trace already contains in their fused form."""
    if not any(r.rule.code == EXPERTS for r in rules):
        return []
    keys = [(EXPERTS, node.name, node.meta.get("place")) for node in trace.loops]
    return [
        Found(EXPERTS, key, key[2], True, "rows sorted by expert, in one pass", _KERNEL, benefit=_LOOP_BENEFIT)
        for key in keys
        if key not in excluded
    ]


def _fused_dense_experts(
    trace: ForwardTrace, rules: tuple[LoadedRule, ...], excluded: frozenset[SiteKey],
    trace_child: Callable[[nn.Module, fx.Node], ForwardTrace | None],
) -> list[Found]:  # fmt: skip
    """Computes the chosen experts only, where forward computes all experts for all tokens."""
    module: nn.Module = trace.module

    def is_by_token(call: fx.Node) -> bool:
        return is_token_wise(module.get_submodule(str(call.target)), call, trace_child)

    if not any(r.rule.code == EXPERTS for r in rules):
        return []
    fused = []
    for found in (*find_sums(trace.graph), *find_dispatches(trace.graph)):
        key, is_sent = (EXPERTS, found.end.name, found.end.meta.get("place")), isinstance(found, OneHotProduct)
        if key in excluded:
            continue
        if (
            rewrite_dispatch(trace, found)
            if isinstance(found, OneHotProduct)
            else rewrite_sum(trace, found, is_by_token)
        ):
            reason = "rows by index, without a product with a one-hot tensor" if is_sent else "the chosen experts only"
            fused.append(Found(EXPERTS, key, key[2], True, reason, _KERNEL, benefit=_LOOP_BENEFIT))
    erase_dead(trace.graph)
    return fused


def _fuse_round(
    trace: ForwardTrace, rules: tuple[LoadedRule, ...], excluded: frozenset[SiteKey], plan: ModulePlan,
    trace_child: Callable[[nn.Module, fx.Node], ForwardTrace | None],
) -> bool:  # fmt: skip
    """Find the sites once and rewrite them. Returns whether any was rewritten."""
    captured = capture_trace(trace, trace_child)
    view = View(Facts(captured.known, captured.ensures))
    done = False
    fused = [f for f in plan.found if f.fused]
    others: list[Found] = []

    def is_usable(site: Site) -> bool:
        if not isinstance(site.verdict, Holds) or _is_inside_child(captured, site):
            return False
        # A site that shares steps is fused only together with its partners.
        return not site.rule.rule.shares_steps or _key_of(captured, site) not in excluded

    for site in sites(captured.graph, view, rules, is_usable):
        key = _key_of(captured, site)
        if key is None or _is_inside_child(captured, site) or key in excluded:
            continue
        found = _found_site(captured, site, key)
        if isinstance(site.verdict, Holds):
            try:
                excerpt = rewrite(captured, view, site)
                done = True
                fused += [replace(found, rule=code, reason=f"as part of {found.rule}") for code in site.covers]
                fused.append(replace(found, kernel=excerpt.kernel, excerpt=excerpt))
                continue
            except CannotBuild as error:
                found = _decline_unbuilt(found, error)
        others.append(found)
    plan.found = fused + others
    return done


def _key_of(captured: CapturedTrace, site: Site) -> SiteKey | None:
    """The key of a site; None if no node of the graph computes its result."""
    node = captured.nodes.get(site.root)
    return None if node is None else (site.rule.rule.code, node.name, node.meta.get("place"))


def _decline_unbuilt(found: Found, error: CannotBuild) -> Found:
    refusal_text = unread(error.reason, AuthorText())
    return Found(found.rule, found.key, found.place, False, refusal_text.reason, refusal=refusal_text)


def _found_site(captured: CapturedTrace, site: Site, key: SiteKey) -> Found:
    verdict, code = site.verdict, site.rule.rule.code
    if isinstance(verdict, Holds):
        return Found(
            code,
            key,
            key[2],
            True,
            verdict.why,
            kernel_name(site.rule.replacement.operation),
            mask="; ".join(site.notes),
            benefit=site.rule.rule.benefit,
        )
    refusal_text = refusal(verdict, code, lambda v: find_author_text(captured, v, verdict.culprit))
    return Found(code, key, key[2], False, refusal_text.reason, refusal=refusal_text)


def _is_inside_child(captured: CapturedTrace, site: Site) -> bool:
    """Whether a match is completely inside an inlined child. The child's own plan handles it."""
    node = captured.nodes.get(site.root)
    steps = {*(site.removed.values or site.steps), *(r.value for r in site.results)} - {site.root}
    return node is None or node in captured.inlined_traces and not any(v in captured.nodes for v in steps)


def _guard_bypassed(trace: ForwardTrace, called: set[str], read: dict[str, ForwardTrace]) -> frozenset[str]:
    """Guard that the children that are no longer called do not change. Returns their names."""
    still_called = {str(n.target) for n in trace.graph.nodes if n.op == "call_module"}
    bypassed = (called - still_called) | set(trace.entered_children)
    for node in trace.graph.nodes:
        # A fused call reads the parameters of a layer and bypasses its forward.
        if node.op == "get_attr" and (owner := str(node.target).rpartition(".")[0]) in called:
            bypassed.add(owner)
    for path in sorted(bypassed & read.keys()):
        inside = trace.module.get_submodule(path).named_modules(prefix=path)
        bypassed |= {
            name for name, _ in inside if not any(f"{name}.".startswith(f"{other}.") for other in still_called)
        }
    narrowed = {str(n.args[0].target) for n in trace.graph.nodes if is_narrow_call(n.target)}
    guard_pristine(trace.guards, trace.module, bypassed - narrowed)
    for path in sorted(bypassed & read.keys()):
        trace.guards.add_child_guards(read[path].guards, guard_path(path))
    return frozenset(called - still_called)


def _use_narrow_forwards(trace: ForwardTrace, plan: ModulePlan, children: PlannedChildren) -> None:
    """Call the narrow forward of each child whose result is partly read, if that gains something."""
    erase_dead(trace.graph)
    for node, items in trace.results.items():
        # A rewrite may have removed or replaced the call.
        if node.graph is not trace.graph or node.op != "call_module" or not items or is_erased(node):
            continue
        child = trace.module.get_submodule(str(node.target))
        unread = unread_paths(trace, node)
        planned = children.plan_narrow(child, call_of(node), unread) if unread else None
        if planned is None or planned.variant is None:
            continue
        with trace.graph.inserting_before(node):
            module_node = trace.graph.get_attr(str(node.target))
            narrow_call = trace.graph.call_function(narrow_caller(unread), (module_node, *node.args), dict(node.kwargs))
        narrow_call.meta = dict(node.meta)
        replace_node(node, narrow_call)
        trace.graph.erase_node(node)
        plan.narrowed.append((child, unread))
