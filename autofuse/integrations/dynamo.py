"""The backend `torch.compile(model, backend="autofuse")`: runs each captured graph and records its unfused sites.

torch finds the backend by its entry point wherever autofuse is installed. `autofuse.analysis(model)` returns what it
recorded. dynamo_sites.py applies the rules to a graph; dynamo_records.py merges the graphs of one model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from torch import fx, nn

from autofuse.integrations.dynamo_breaks import BreaksSince, graph_breaks
from autofuse.integrations.dynamo_records import Records, files_of
from autofuse.integrations.dynamo_sites import GraphSites, Rules, find_graph_sites, unreadable_graph
from autofuse.integrations.dynamo_trace import Attribute
from autofuse.loading.selection import select_rules
from autofuse.project.project_rules import load_project_rules
from autofuse.results.analysis import Analysis
from autofuse.torch_private import on_demand

Compiled = Callable[..., Any]

_LOG = logging.getLogger("autofuse")
_OPTIONS = ("then", "select", "ignore")
_RECORDS = Records()
_BREAKS_SINCE = BreaksSince()


def analyze(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Records the unfused sites of `gm`, and returns a function that runs it. This is `backend="autofuse"`.

    Args:
        gm: the graph that Dynamo captured.
        example_inputs: its inputs, real tensors or fake ones.
        options: `then` is a backend (its name or the function) that compiles the graph; without it, the graph runs
            eagerly. `select` and `ignore` are rule codes, as for `autofuse.optimize`.
        mode: passed to `then`.

    Raises:
        ValueError: an option has another name, or no rule has a given code.
    """
    given_options = dict(options or {})
    rules = _rules(given_options)
    graph_sites = _read_graph(gm, example_inputs, rules)
    record = _RECORDS.add(graph_sites)
    _LOG.info("%s", record.summary)
    return _record_runs(
        record.record_run, _compile(gm, example_inputs, given_options.get("then"), mode), graph_sites.attributes
    )


def analysis(model: Any = None) -> Analysis:
    """Returns what the backend recorded for `model`: all sites of rules, also near misses, and all graph breaks.

    Args:
        model: the argument or the result of `torch.compile(model, backend="autofuse")`, after a call; a module or a
            function. None selects everything compiled in this process since the last `torch._dynamo.reset()`. Modules
            then have the names that Dynamo uses.
    """
    original = getattr(model, "_orig_mod", model)
    original = getattr(original, "_torchdynamo_orig_callable", original)
    sites, graphs = _RECORDS.sites_of(original if isinstance(original, nn.Module) else None, files_of(original))
    return Analysis(sites, graph_breaks(files_of(original), _BREAKS_SINCE), graphs)


def _read_graph(gm: fx.GraphModule, inputs: Sequence[Any], rules: Rules) -> GraphSites:
    """The sites of a graph. If reading fails, the graph is recorded as unreadable and runs as usual."""
    try:
        return find_graph_sites(gm, inputs, rules)
    except Exception as error:  # any error: training must continue
        _LOG.debug("a captured graph could not be read", exc_info=True)
        return unreadable_graph(error)


def _reset() -> None:
    _RECORDS.clear()
    _BREAKS_SINCE.start()


analyze.reset = _reset  # type: ignore[attr-defined]  # torch._dynamo.reset() calls it
if not entry_points(group="torch_dynamo_backends", name="autofuse"):  # in a source tree there is no entry point
    on_demand.register_backend(analyze, name="autofuse")


def _rules(options: Mapping[str, Any]) -> Rules:
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        raise ValueError(f"The backend autofuse has no option {unknown[0]!r}. Its options are {', '.join(_OPTIONS)}.")
    return select_rules(load_project_rules(), _codes(options.get("select")), _codes(options.get("ignore")))


def _codes(value: str | Iterable[str] | None) -> tuple[str, ...]:
    codes = value.split(",") if isinstance(value, str) else value or ()
    return tuple(filter(None, (c.strip() for c in codes)))


def _compile(gm: fx.GraphModule, inputs: Sequence[Any], then: Any, mode: str | None) -> Compiled:
    if then is None:
        return gm.forward
    keywords = {"mode": mode} if mode is not None else {}
    compiled: Compiled = on_demand.lookup_backend(then)(gm, list(inputs), **keywords)
    return compiled


def _record_runs(record_run: Callable[..., None], compiled: Compiled, attributes: tuple[Attribute, ...]) -> Compiled:
    """Wraps `compiled` so that each run records its parameters.

    Equal layers share one graph, so this shows which one runs.
    """
    owners = {a.owner: a.place for a in attributes}
    places = tuple(owners.values())
    if not places:
        return compiled

    def run(*inputs: Any) -> Any:
        record_run(tuple(inputs[i] for i in places))
        return compiled(*inputs)

    return run
