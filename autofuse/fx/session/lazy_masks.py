"""Finds the modules that make masks for fused attention below them, and says so in the report."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from torch import nn

from autofuse.fx.lazy.mask_factories import factories_of, forward_with_lazy_masks
from autofuse.fx.trace.own_forward import own_forward, why_not_replaceable
from autofuse.fx.trace.twin import plain_class
from autofuse.results.sites import Report, SiteReport

_ATTENTION = ("AF101", "AF103", "AF104")
_KERNEL = "no dense causal mask: what {names} makes is a tensor only if somebody reads it"


def makers_of_masks(
    model: nn.Module, report: Report, names: Mapping[nn.Module, str]
) -> Iterator[tuple[nn.Module, str]]:
    """The modules that make masks and have fused attention below them, with the rule of that attention."""
    fused = {site.module: site.rule for site in report.with_status("fused") if site.rule in _ATTENTION}
    for module in list(model.modules()) if fused else ():
        if module not in names or why_not_replaceable(type(module)):
            continue
        if forward_with_lazy_masks(own_forward(plain_class(type(module)))) is None:
            continue
        below = (fused[names[m]] for m in module.modules() if m is not module and names.get(m) in fused)
        if (rule := next(below, None)) is not None:
            yield module, rule


def note_of_masks(name: str, module: nn.Module, rule: str) -> SiteReport:
    """The word of the report about a module called `name` that hands on lazy masks."""
    forward = inspect.unwrap(own_forward(plain_class(type(module))))
    code = forward.__code__
    kernel = _KERNEL.format(names=" or ".join(factories_of(forward)))
    return SiteReport(rule, name, "fused", "", kernel, None, code.co_filename, code.co_firstlineno)
