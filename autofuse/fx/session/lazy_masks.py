"""Finds the modules that build masks for fused attention in their submodules."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from torch import nn

from autofuse.fx.lazy.mask_factories import factories_of, forward_with_lazy_masks
from autofuse.fx.trace.own_forward import own_forward, why_not_replaceable
from autofuse.fx.trace.twin import plain_class
from autofuse.results.sites import Report, SiteReport

_ATTENTION = ("AF101", "AF103", "AF104")
_KERNEL = "no dense causal mask: the result of {names} becomes a tensor only if it is read"


def find_mask_modules(
    model: nn.Module, report: Report, names: Mapping[nn.Module, str]
) -> Iterator[tuple[nn.Module, str]]:
    """The modules that build masks and contain fused attention, with the rule of that attention."""
    fused = {site.module: site.rule for site in report.with_status("fused") if site.rule in _ATTENTION}
    for module in list(model.modules()) if fused else ():
        if module not in names or why_not_replaceable(type(module)):
            continue
        if forward_with_lazy_masks(own_forward(plain_class(type(module)))) is None:
            continue
        below = (fused[names[m]] for m in module.modules() if m is not module and names.get(m) in fused)
        if (rule := next(below, None)) is not None:
            yield module, rule


def mask_report(name: str, module: nn.Module, rule: str) -> SiteReport:
    """The report of a module `name` that passes lazy masks to its submodules."""
    forward = inspect.unwrap(own_forward(plain_class(type(module))))
    code = forward.__code__
    kernel = _KERNEL.format(names=" or ".join(factories_of(forward)))
    return SiteReport(rule, name, "fused", "", kernel, None, code.co_filename, code.co_firstlineno)
