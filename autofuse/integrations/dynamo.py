"""`torch.compile(model, backend="autofuse")`: runs each captured graph as it is, and notes what it still spells out.

The backend is an entry point of torch's, so torch finds it by its name wherever autofuse is installed. What it noted is
read with `autofuse.analysis(model)`. Knows what Dynamo calls a backend with; the graphs are read by the live door's
rules (dynamo_sites.py), and put together for one model elsewhere (dynamo_records.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from torch import fx, nn

from autofuse.integrations.dynamo_breaks import BreaksSince, graph_breaks
from autofuse.integrations.dynamo_records import Records, files_of
from autofuse.integrations.dynamo_sites import GraphSites, Rules, noted, unread_graph
from autofuse.integrations.dynamo_trace import Attribute
from autofuse.loading.selection import selected
from autofuse.project.rules_here import rules_here
from autofuse.results.analysis import Analysis
from autofuse.torch_private import on_demand

Compiled = Callable[..., Any]

_LOG = logging.getLogger("autofuse")
_OPTIONS = ("then", "select", "ignore")
_RECORDS = Records()
_SINCE = BreaksSince()


def analyze(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Note the unfused sites of `gm`, and return what runs it; the backend behind `backend="autofuse"`.

    options: `then`, a backend (its name, or the function) that compiles the graph, eager execution without it;
    `select` and `ignore`, codes of rules as `autofuse.optimize` takes them. mode: handed on to `then`.
    Raises ValueError for an option of another name, or a code that no rule bears.
    """
    asked = dict(options or {})
    rules = _rules(asked)
    found = _read(gm, example_inputs, rules)
    record = _RECORDS.add(found)
    _LOG.info("%s", record.words)
    return _noting(record.ran, _compiled(gm, example_inputs, asked.get("then"), mode), found.attributes)


def analysis(model: Any = None) -> Analysis:
    """What was noted of `model`: every place a rule applies to, or nearly does, and every graph break.

    model: what `torch.compile(model, backend="autofuse")` was given or returned, once it has been called; a module, or
    a function. Without it, everything that was compiled in this process since the last `torch._dynamo.reset()`, with
    the modules' names as far as Dynamo knows them.
    """
    inner = getattr(model, "_orig_mod", model)
    inner = getattr(inner, "_torchdynamo_orig_callable", inner)
    sites, graphs = _RECORDS.sites_of(inner if isinstance(inner, nn.Module) else None, files_of(inner))
    return Analysis(sites, graph_breaks(files_of(inner), _SINCE), graphs)


def _read(gm: fx.GraphModule, inputs: Sequence[Any], rules: Rules) -> GraphSites:
    """What is in a graph. One that cannot be read is noted as that, and runs like any other."""
    try:
        return noted(gm, inputs, rules)
    except Exception as error:  # whatever it is, the user's training goes on
        _LOG.debug("a captured graph could not be read", exc_info=True)
        return unread_graph(error)


def _reset() -> None:
    _RECORDS.clear()
    _SINCE.now()


analyze.reset = _reset  # type: ignore[attr-defined]  # torch._dynamo.reset() calls it
if not entry_points(group="torch_dynamo_backends", name="autofuse"):  # run from a source tree: torch cannot find it
    on_demand.register_backend(analyze, name="autofuse")


def _rules(options: Mapping[str, Any]) -> Rules:
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        raise ValueError(f"The backend autofuse knows no option {unknown[0]!r}. It takes {', '.join(_OPTIONS)}.")
    return selected(rules_here(), _codes(options.get("select")), _codes(options.get("ignore")))


def _codes(given: str | Iterable[str] | None) -> tuple[str, ...]:
    codes = given.split(",") if isinstance(given, str) else given or ()
    return tuple(filter(None, (c.strip() for c in codes)))


def _compiled(gm: fx.GraphModule, inputs: Sequence[Any], then: Any, mode: str | None) -> Compiled:
    if then is None:
        return gm.forward
    handed_on = {"mode": mode} if mode is not None else {}
    compiled: Compiled = on_demand.lookup_backend(then)(gm, list(inputs), **handed_on)
    return compiled


def _noting(ran: Callable[..., None], compiled: Compiled, attributes: tuple[Attribute, ...]) -> Compiled:
    """`compiled`, which also notes whose tensors it is given: equal layers share one graph."""
    owners = {a.owner: a.place for a in attributes}
    places = tuple(owners.values())
    if not places:
        return compiled

    def run(*inputs: Any) -> Any:
        ran(tuple(inputs[i] for i in places))
        return compiled(*inputs)

    return run
