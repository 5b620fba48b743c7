"""Applies the rules to a captured graph: finds each site with its line and its module.

This module does not depend on Dynamo. dynamo_records.py merges the sites of several graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from autofuse.canonical import View
from autofuse.fx.rewrite.author_text import find_author_text
from autofuse.fx.rewrite.graph_capture import CapturedTrace, capture_trace
from autofuse.fx.trace.source_lines import SourceLine
from autofuse.integrations.dynamo_trace import Attribute, DynamoTrace, traces_of
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
    """A site and its module: Dynamo's name of a known module (`owner`), and the path below it."""

    site: UnfusedSite
    owner: str
    path: str


@dataclass(frozen=True)
class GraphSites:
    """The contents of one captured graph: its sites, the module attributes among its inputs, the files of its lines."""

    sites: tuple[FoundSite, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    files: frozenset[str] = frozenset()


def find_graph_sites(gm: fx.GraphModule, inputs: Sequence[Any], rules: Rules) -> GraphSites:
    """The sites in `gm` and in the graphs that it calls."""
    found_sites: list[FoundSite] = []
    files: set[str] = set()
    attributes: tuple[Attribute, ...] = ()
    has_break = bool(getattr(getattr(gm, "compile_subgraph_reason", None), "graph_break", False))
    for graph in traces_of(gm, inputs):
        attributes = graph.attributes
        files |= {line.file for n in graph.trace.graph.nodes if (line := n.meta.get("place")) is not None}
        found_sites += _sites(graph, rules, has_break)
    return GraphSites(tuple(found_sites), attributes, frozenset(files))


def unreadable_graph(error: Exception) -> GraphSites:
    """The record of a graph that could not be read."""
    reason = because(outcomes.GRAPH_UNREADABLE, error=f"{type(error).__name__}: {error}")
    return GraphSites(
        (FoundSite(UnfusedSite("", "declined", reason=str(reason), reason_code=reason.code.name), "", ""),)
    )


def _sites(graph: DynamoTrace, rules: Rules, has_break: bool) -> Iterator[FoundSite]:
    captured_trace = capture_trace(graph.trace)
    view = View(Facts(captured_trace.known))
    for site in sites(captured_trace.graph, view, rules):
        computed = {captured_trace.nodes.get(v) for v in {*extent(site), *site.steps}}
        nodes = [n for n in graph.trace.graph.nodes if n in computed and _computes(n)]
        if not all(n.meta.get("fused") for n in nodes):  # skip the inside of autofuse's own operations
            yield _describe_site(graph, captured_trace, site, nodes, has_break)


def _describe_site(
    graph: DynamoTrace, captured_trace: CapturedTrace, site: Site, nodes: list[fx.Node], has_break: bool
) -> FoundSite:
    root = captured_trace.nodes.get(site.root)
    line: SourceLine | None = root.meta.get("place") if root is not None else None
    owner, path = _module_of([graph.modules[n] for n in nodes])
    code, is_fusable = site.rule.rule.code, isinstance(site.verdict, Holds)
    refused = Refusal("") if is_fusable else _refusal_of(captured_trace, site, has_break)
    operation = site.rule.replacement.operation
    return FoundSite(
        UnfusedSite(
            code, "unfused" if is_fusable else "declined", line.file if line else "", line.line if line else None,
            (), 1, (operation if "." in operation else f"autofuse.ops.{operation}") if is_fusable else "",
            "; ".join(site.notes), refused.reason, refused.advice, refused.value, refused.line, refused.code,
        ), owner, path,
    )  # fmt: skip


def _computes(node: fx.Node) -> bool:
    return node.op not in ("placeholder", "get_attr", "output")


def _refusal_of(captured_trace: CapturedTrace, site: Site, has_break: bool) -> Refusal:
    """The reason why a site is not fused.

    If a graph ends in a break, its outputs are values for the code after the break, not results that the user returns.
    """
    verdict = site.verdict
    assert not isinstance(verdict, Holds)
    if has_break and isinstance(verdict, Fails) and verdict.reason.code == matches.VALUE_RETURNED:
        reason = Reason(matches.VALUE_BEHIND_BREAK, verdict.reason.data)
        verdict = replace(verdict, why=reason, advice=reason.advice(), enables=False)
    culprit = verdict.culprit
    return refusal(verdict, site.rule.rule.code, lambda v: find_author_text(captured_trace, v, culprit))


def _module_of(modules: list[tuple[str, str]]) -> tuple[str, str]:
    """The innermost module that contains all of `modules`: its owner and its path."""
    if not modules:
        return "", ""
    owner = modules[0][0]
    paths = [path.split(".") for module_owner, path in modules if module_owner == owner]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return owner, ".".join(common)
