"""Finds what could be fused in the layers of a trace from another machine, from the sequence of its kernels.

No code is read, so no rule is known to match. A place lists kernels that run in a row, their time, and the predicted
time of one kernel that replaces them. `autofuse.optimize`, or `autofuse check` on the source, finds out the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autofuse.profiling.trace.diagnosis.fusing import Fusible, sequences_of
from autofuse.profiling.trace.scope import Scope
from autofuse.results.profile_parts import COMMUNICATION, OPTIMIZER, OUTSIDE, Layer, Place

_RULES = {
    "attention": ("AF101", "torch.nn.functional.scaled_dot_product_attention"),
    "chain": ("chain", "one kernel: autofuse.optimize or torch.compile"),
}
_MINIMUM_SAVING = 0.001  # fraction of the step: places that save less are left out
_NOT_LAYERS = (OUTSIDE, OPTIMIZER, COMMUNICATION)


def with_kernel_places(layers: Sequence[Layer], owners: Mapping[int, str], scope: Scope) -> tuple[Layer, ...]:
    """Return the layers, each with the sequences of its kernels that one kernel could replace.

    owners: the module that launched a kernel, by the id of the kernel's event.
    """
    step = scope.steps.seconds
    found: dict[tuple[str, str], list[Fusible]] = defaultdict(list)
    for one in sequences_of(scope) if owners else ():
        name = _layer_of([owners.get(id(kernel)) for kernel in one.kernels])
        if name is not None and one.kind in _RULES:
            found[name, one.kind].append(one)
    places: dict[str, list[Place]] = defaultdict(list)
    for (name, kind), some in found.items():
        place = _place(kind, some, scope, step)
        if place is not None:
            places[name].append(place)
    return tuple(replace(layer, places=tuple(places.get(layer.fqn, ()))) for layer in layers)


def _layer_of(names: Sequence[str | None]) -> str | None:
    """Return the innermost module that contains all of the kernels; None if one of them is in no module."""
    if any(name is None or name in _NOT_LAYERS for name in names):
        return None
    parts = [(name or "").split(".") for name in names]
    common: list[str] = []
    for each in zip(*parts, strict=False):
        if len(set(each)) > 1:
            break
        common.append(each[0])
    return ".".join(common)


def _place(kind: str, found: Sequence[Fusible], scope: Scope, step: float) -> Place | None:
    taken, saved = (scope.seconds(sum(getattr(one, what) for one in found)) for what in ("nanoseconds", "saved"))
    if saved < _MINIMUM_SAVING * step:
        return None
    rule, operation = _RULES[kind]
    kernels = max(len(one.kernels) for one in found)
    what = "unfused attention" if kind == "attention" else "kernels that only move data, in a row"
    return Place(
        rule, "applies", f"from its kernels: {what}, {kernels} kernels; no code was read", operation,
        calls=max(1, round(len(found) / scope.steps.count)), seconds=taken, predicted_seconds=taken - saved,
        predicted_gain=step / (step - saved) if saved < step else None,
    )  # fmt: skip
