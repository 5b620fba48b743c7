"""What to do with one call of one module: trace it, find its sites, rewrite them, and say what became of each.

A caller that reads only part of what a child returns may call the child's narrow forward instead, which leaves the rest
out: attention that returns its probabilities to nobody can then be fused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import fx, nn

from autofuse.canonical import View
from autofuse.fx.install.codegen import Variant, build_variant
from autofuse.fx.rewrite.after_expression import kernel_name
from autofuse.fx.rewrite.author_text import written
from autofuse.fx.rewrite.child_dropout import Children, call_of, is_erased, rejoin_calls, split_calls, unread_paths
from autofuse.fx.rewrite.excerpt import Excerpt
from autofuse.fx.rewrite.fused_call import rewrite
from autofuse.fx.rewrite.graph_capture import CapturedTrace, captured
from autofuse.fx.rewrite.layouts import copy_of, keep_layouts
from autofuse.fx.rewrite.narrow_calls import is_narrow_call, narrow_caller
from autofuse.fx.rewrite.node_builder import CannotBuild
from autofuse.fx.rewrite.shared_heads import share_heads
from autofuse.fx.trace.attribute_reads import guard_path
from autofuse.fx.trace.operation_names import erase_dead, replace_node, structure_of
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

EXPERTS, _OF_A_LOOP = "AF701", 10  # the rule's code, and how often a loop goes through memory more
_ROUNDS = 3  # a fused operation may be part of a larger one: GELU by hand, then the MLP around it

SiteKey = tuple[str, str, SourceLine | None]  # rule, node that was replaced, line


@dataclass(frozen=True)
class Found:
    """A place where a rule applied, or nearly did: `fused` or not, and why. `choice`: why that kernel, if timed."""

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
    excerpt: Excerpt | None = field(default=None, compare=False, repr=False)  # of what is `fused`, but for parts of it


@dataclass
class ModulePlan:
    """What one call of one module becomes. `variant` is None where nothing is gained."""

    module: nn.Module
    found: list[Found] = field(default_factory=list)
    variant: Variant | None = None
    narrowed: list[tuple[nn.Module, frozenset[Path]]] = field(default_factory=list)  # children that leave something out
    entered: frozenset[str] = frozenset()  # Sequentials that were seen through
    bypassed: frozenset[str] = frozenset()  # children that the original calls and the rewritten forward does not
    forward: Hashable = None  # equal for plans that make the same of the same, whatever their guards


class Planned(Children, Protocol):
    """What plan_of asks about the children that a trace calls."""

    def narrowed(self, child: nn.Module, call: ForwardArguments, unread: frozenset[Path]) -> ModulePlan | None:
        """The plan for a child's forward that leaves out what is unread, where the child gains by it."""


def plan_of(
    trace: ForwardTrace, rules: tuple[LoadedRule, ...], excluded: frozenset[SiteKey], children: Planned | None
) -> ModulePlan:
    """Rewrite `trace` by `rules`, leaving `excluded` sites alone."""
    plan = ModulePlan(trace.module, _loops(trace, rules, excluded), entered=trace.entered_children)
    looked: dict[fx.Node, ForwardTrace | None] = {}

    def inside(child: nn.Module, node: fx.Node) -> ForwardTrace | None:
        if node not in looked:
            looked[node] = children.inside(child, call_of(node)) if children is not None else None
        return looked[node]

    erase_dead(trace.graph)
    before = structure_of(trace.graph)
    split = split_calls(trace, children) if children is not None else []
    called = {str(n.target) for n in trace.graph.nodes if n.op == "call_module"}
    original = copy_of(trace.graph)
    for _ in range(_ROUNDS):
        if not _fuse_round(trace, rules, excluded, plan, inside):
            break
    if any(f.fused for f in plan.found):
        share_heads(trace, inside)
        try:
            keep_layouts(trace, original)
        except CannotBuild as error:
            return ModulePlan(trace.module, [_not_built(f, error) if f.fused else f for f in plan.found])
    if children is not None:
        split = rejoin_calls(trace, split, children)
        plan.narrowed += [(s.child, s.dropped) for s in split]
        guard_unwatched(trace.guards, [s.target for s in split])
        _narrow(trace, plan, children)
    if plan.narrowed or any(f.fused for f in plan.found) or tail_of(trace.dropped):
        plan.bypassed = _guard_bypassed(trace, called, {str(n.target): t for n, t in looked.items() if t is not None})
        trace.graph.lint()
        plan.variant = build_variant(trace)
        plan.forward = before, structure_of(trace.graph)
    return plan


def _loops(trace: ForwardTrace, rules: tuple[LoadedRule, ...], excluded: frozenset[SiteKey]) -> list[Found]:
    """The loops over experts of which one turn was made: fused as they stand."""
    if not any(r.rule.code == EXPERTS for r in rules):
        return []
    keys = [(EXPERTS, node.name, node.meta.get("place")) for node in trace.loops]
    return [
        Found(EXPERTS, key, key[2], True, "rows sorted by expert, in one turn", "torch nonzero", benefit=_OF_A_LOOP)
        for key in keys
        if key not in excluded
    ]


def _fuse_round(
    trace: ForwardTrace, rules: tuple[LoadedRule, ...], excluded: frozenset[SiteKey], plan: ModulePlan,
    inside: Callable[[nn.Module, fx.Node], ForwardTrace | None],
) -> bool:  # fmt: skip
    """Look once, and rewrite what is found; whether anything was."""
    lowered = captured(trace, inside)
    view = View(Facts(lowered.known, lowered.ensures))
    done = False
    kept = [f for f in plan.found if f.fused]
    others: list[Found] = []
    for site in sites(
        lowered.graph, view, rules, lambda s: isinstance(s.verdict, Holds) and not _is_a_childs(lowered, s)
    ):
        node = lowered.nodes.get(site.root)
        if node is None or _is_a_childs(lowered, site):
            continue
        key = (site.rule.rule.code, node.name, node.meta.get("place"))
        if key in excluded:
            continue
        found = _found(lowered, site, key)
        if isinstance(site.verdict, Holds):
            try:
                taken = rewrite(lowered, view, site)
                done = True
                kept += [replace(found, rule=code, reason=f"as part of {found.rule}") for code in site.covers]
                kept.append(replace(found, kernel=taken.kernel, excerpt=taken))
                continue
            except CannotBuild as error:
                found = _not_built(found, error)
        others.append(found)
    plan.found = kept + others
    return done


def _not_built(found: Found, error: CannotBuild) -> Found:
    told = unread(error.reason, AuthorText())
    return Found(found.rule, found.key, found.place, False, told.reason, refusal=told)


def _found(lowered: CapturedTrace, site: Site, key: SiteKey) -> Found:
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
    told = refusal(verdict, code, lambda v: written(lowered, v, verdict.culprit))
    return Found(code, key, key[2], False, told.reason, refusal=told)


def _is_a_childs(lowered: CapturedTrace, site: Site) -> bool:
    """Whether a match lies wholly in a child that was read: there it is the child's own affair."""
    node = lowered.nodes.get(site.root)
    steps = {*(site.removed.values or site.steps), *(r.value for r in site.results)} - {site.root}
    return node is None or node in lowered.entered and not any(v in lowered.nodes for v in steps)


def _guard_bypassed(trace: ForwardTrace, called: set[str], read: dict[str, ForwardTrace]) -> frozenset[str]:
    """The children that are no longer called must stay what they were when they were read. Returns their names."""
    left = {str(n.target) for n in trace.graph.nodes if n.op == "call_module"}
    bypassed = (called - left) | set(trace.entered_children)
    for node in trace.graph.nodes:
        if node.op == "get_attr" and (owner := str(node.target).rpartition(".")[0]) in called:
            bypassed.add(owner)
    for path in sorted(bypassed & read.keys()):
        inside = trace.module.get_submodule(path).named_modules(prefix=path)
        bypassed |= {name for name, _ in inside if not any(f"{name}.".startswith(f"{kept}.") for kept in left)}
    narrowed = {str(n.args[0].target) for n in trace.graph.nodes if is_narrow_call(n.target)}
    guard_pristine(trace.guards, trace.module, bypassed - narrowed)
    for path in sorted(bypassed & read.keys()):
        trace.guards.add_child_guards(read[path].guards, guard_path(path))
    return frozenset(called - left)


def _narrow(trace: ForwardTrace, plan: ModulePlan, children: Planned) -> None:
    """Call the narrow forward of each child whose result is read in part, where that child gains by it."""
    erase_dead(trace.graph)
    for node, items in trace.results.items():
        if node.graph is not trace.graph or node.op != "call_module" or not items or is_erased(node):
            continue
        child = trace.module.get_submodule(str(node.target))
        unread = unread_paths(trace, node)
        planned = children.narrowed(child, call_of(node), unread) if unread else None
        if planned is None or planned.variant is None:
            continue
        with trace.graph.inserting_before(node):
            held = trace.graph.get_attr(str(node.target))
            made = trace.graph.call_function(narrow_caller(unread), (held, *node.args), dict(node.kwargs))
        made.meta = dict(node.meta)
        replace_node(node, made)
        trace.graph.erase_node(node)
        plan.narrowed.append((child, unread))
