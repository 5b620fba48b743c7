"""What the rules find in a captured graph: each site with its line and module.

Knows traces and the engine; must not know Dynamo, nor how sites of several graphs are put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from autofuse.canonical import View
from autofuse.fx.rewrite.author_text import written
from autofuse.fx.rewrite.graph_capture import CapturedTrace, captured
from autofuse.fx.trace.source_lines import SourceLine
from autofuse.integrations.dynamo_trace import Attribute, DynamoTrace, adopted
from autofuse.ir.facts import Facts
from autofuse.match.choice import extent
from autofuse.match.engine import sites
from autofuse.match.pattern import LoadedRule
from autofuse.match.refusals import Refusal, refusal
from autofuse.match.site import Site
from autofuse.reasons import matches, outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.results.analysis import UnfusedSite
from autofuse.rule import Fails, Holds

Rules = tuple[LoadedRule, ...]


@dataclass(frozen=True)
class FoundSite:
    """A site, and the module that it lies in: its path below `owner`, Dynamo's word for a module that it knows."""

    site: UnfusedSite
    owner: str
    path: str


@dataclass(frozen=True)
class GraphSites:
    """What is in one captured graph: its sites, its inputs that are attributes of modules, the files of its lines."""

    sites: tuple[FoundSite, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    files: frozenset[str] = frozenset()


def noted(gm: fx.GraphModule, inputs: Sequence[Any], rules: Rules) -> GraphSites:
    """What is in `gm`, and in the graphs that it calls."""
    found: list[FoundSite] = []
    files: set[str] = set()
    attributes: tuple[Attribute, ...] = ()
    broken = bool(getattr(getattr(gm, "compile_subgraph_reason", None), "graph_break", False))
    for graph in adopted(gm, inputs):
        attributes = graph.attributes
        files |= {place.file for n in graph.trace.graph.nodes if (place := n.meta.get("place")) is not None}
        found += _sites(graph, rules, broken)
    return GraphSites(tuple(found), attributes, frozenset(files))


def unread_graph(error: Exception) -> GraphSites:
    """What is noted of a graph at which reading failed."""
    told = because(outcomes.GRAPH_UNREADABLE, error=f"{type(error).__name__}: {error}")
    return GraphSites((FoundSite(UnfusedSite("", "declined", reason=str(told), reason_code=told.code.name), "", ""),))


def _sites(graph: DynamoTrace, rules: Rules, broken: bool) -> Iterator[FoundSite]:
    lowered = captured(graph.trace)
    view = View(Facts(lowered.known))
    for site in sites(lowered.graph, view, rules):
        computed = {lowered.nodes.get(v) for v in {*extent(site), *site.steps}}
        nodes = [n for n in graph.trace.graph.nodes if n in computed and _computes(n)]
        if not all(n.meta.get("fused") for n in nodes):  # the inside of an operation of ours is no place to fuse
            yield _found(graph, lowered, site, nodes, broken)


def _found(graph: DynamoTrace, lowered: CapturedTrace, site: Site, nodes: list[fx.Node], broken: bool) -> FoundSite:
    root = lowered.nodes.get(site.root)
    place: SourceLine | None = root.meta.get("place") if root is not None else None
    owner, path = _module_of([graph.modules[n] for n in nodes])
    code, holds = site.rule.rule.code, isinstance(site.verdict, Holds)
    told = Refusal("") if holds else _told(lowered, site, broken)
    operation = site.rule.replacement.operation
    return FoundSite(
        UnfusedSite(
            code, "unfused" if holds else "declined", place.file if place else "", place.line if place else None,
            (), 1, (operation if "." in operation else f"autofuse.ops.{operation}") if holds else "",
            "; ".join(site.notes), told.reason, told.advice, told.value, told.line, told.code,
        ), owner, path,
    )  # fmt: skip


def _computes(node: fx.Node) -> bool:
    return node.op not in ("placeholder", "get_attr", "output")


def _told(lowered: CapturedTrace, site: Site, broken: bool) -> Refusal:
    """What stands in the way. What a broken graph returns is what comes behind the break, not what the user returns."""
    verdict = site.verdict
    assert not isinstance(verdict, Holds)
    if broken and isinstance(verdict, Fails) and verdict.reason.code == matches.VALUE_RETURNED:
        behind = Reason(matches.VALUE_BEHIND_BREAK, verdict.reason.data)
        verdict = replace(verdict, why=behind, advice=behind.advice(), enables=False)
    culprit = verdict.culprit
    return refusal(verdict, site.rule.rule.code, lambda v: written(lowered, v, culprit))


def _module_of(modules: list[tuple[str, str]]) -> tuple[str, str]:
    """The innermost module that holds all of them."""
    if not modules:
        return "", ""
    owner = modules[0][0]
    paths = [path.split(".") for of, path in modules if of == owner]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return owner, ".".join(common)
