"""Checks plans on copies before they are installed: site by site where a module fails, and the model as a whole.

Knows how to make the copies and whom to blame; verify/modules.py judges.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from autofuse.display.progress import Tell
from autofuse.fx.install.subclass import base_of, install
from autofuse.fx.session.memory_room import lack_of_room
from autofuse.fx.trace.ambient_state import undisturbed_randomness
from autofuse.fx.trace.external_state import unchanged_outside
from autofuse.fx.trace.module_calls import Calls
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.sharding import Forms, filled, local, register_views
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import World, copied_object
from autofuse.verify.modules import ModuleReference, Verification

if TYPE_CHECKING:
    from autofuse.fx.install.codegen import Variant
    from autofuse.fx.rewrite.module_plan import Found, ModulePlan
    from autofuse.fx.session.planner import Planner

Plans = dict[bool, "ModulePlan"]  # mode -> plan of the whole forward


@dataclass(frozen=True)
class Verdict:
    """How far a module's rewritten forward may differ from the original; the sites that had to go, and why."""

    max_error: float | None = None
    failed: tuple[tuple[Found, str], ...] = ()


class Checker:
    """Remembers verdicts, so that equal layers are checked once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Verdict] = {}

    def check(self, planner: Planner, real: Calls, tell: Tell) -> dict[nn.Module, Verdict]:
        """A verdict for each module that gained something; plans that fail are replaced by what of them holds."""
        verdicts: dict[nn.Module, Verdict] = {}
        modules = dict.fromkeys(m for m, _ in planner.plans if m in real)
        for module in tell("checking", list(modules), len(modules)):
            plans = whole_plans(planner, module)
            if not any(p.variant for p in plans.values()):
                continue
            key = _key(planner, module, plans)
            if key not in self._known:
                self._known[key] = self._judged(planner, module, real[module])
            elif self._known[key].failed:
                _exclude(planner, module, {f.key for f, _ in self._known[key].failed})
            verdicts[module] = self._known[key]
            for child in _narrowed(planner, module, plans):
                verdicts.setdefault(child, Verdict(self._known[key].max_error))
        return verdicts

    def check_part(
        self, planner: Planner, module: nn.Module, unread: frozenset[Path], call: ForwardArguments
    ) -> dict[nn.Module, Verdict]:
        """Verdicts on the planned forward that leaves `unread` out; none where it does not hold or cannot be asked."""
        plan = planner.plans[module, (module.training, unread)]
        read_by_place = all(len(path) == 1 and isinstance(path[0], int) for path in unread)
        if plan.variant is None or not read_by_place or lack_of_room(module):
            return {}
        with undisturbed_randomness(), unchanged_outside(module):
            places = frozenset(int(path[0]) for path in unread)  # type: ignore[call-overload]
            reference = ModuleReference(
                copied(module, {}, planner.sharded), *call, unread=places, copy_object=copied_object
            )
            made: dict[nn.Module, nn.Module] = {}
            rewritten = copied(module, made, planner.sharded)
            install_relaxed(planner, [module], made, module)
            install(rewritten, (plan.variant.relaxed,), {}, _original, {})
            outcome = reference.check(rewritten)
        if not outcome.ok:
            return {}
        children = _narrowed(planner, module, {module.training: plan})
        return dict.fromkeys((module, *children), Verdict(outcome.max_error))

    def _judged(self, planner: Planner, module: nn.Module, call: ForwardArguments) -> Verdict:
        why = lack_of_room(module)
        if why:
            found = [f for p in whole_plans(planner, module).values() for f in p.found if f.fused]
            planner.forget(module)
            return Verdict(None, tuple((f, f"not verified: {why}") for f in found))
        with undisturbed_randomness(), unchanged_outside(module):
            reference = ModuleReference(copied(module, {}, planner.sharded), *call, copy_object=copied_object)
            outcome = _outcome(planner, module, reference)
            if outcome.ok:
                return Verdict(outcome.max_error)
            return self._blame(planner, module, reference, outcome)

    def _blame(self, planner: Planner, module: nn.Module, reference: ModuleReference, outcome: Verification) -> Verdict:
        """Take the sites back in one by one, and leave out those that fail."""
        sites = {f.key: f for p in whole_plans(planner, module).values() for f in p.found if f.fused}
        failed: list[tuple[Found, str]] = []
        out, error = set(sites), 0.0
        for key, found in sites.items():
            _exclude(planner, module, out - {key})
            tried = _outcome(planner, module, reference)
            if tried.ok:
                out.discard(key)
                error = max(error, tried.max_error)
            else:
                failed.append((found, tried.reason))
        _exclude(planner, module, out)
        if not _outcome(planner, module, reference).ok:
            planner.forget(module)
            failed = [(f, outcome.reason) for f in sites.values()]
        return Verdict(error, tuple(failed))


def whole_plans(planner: Planner, module: nn.Module) -> Plans:
    """The plans for calls whose whole result is read."""
    return {training: p for (m, (training, dropped)), p in planner.plans.items() if m is module and not dropped}


def _narrowed(planner: Planner, module: nn.Module, plans: Plans) -> Iterator[nn.Module]:
    """The children, and theirs, whose narrow forwards a module's plans call: its verdict is theirs."""
    todo = list(plans.values())
    while todo:
        for child, dropped in todo.pop().narrowed:
            yield child
            todo += [p for (m, (_, d)), p in planner.plans.items() if m is child and d == dropped]


def _key(planner: Planner, module: nn.Module, plans: Plans) -> Hashable:
    """Equal for modules that would be checked alike: guards may differ, such as the number of a layer."""
    forwards = tuple(p.forward for p in plans.values())
    children = tuple(planner.forwards(c, d) for p in plans.values() for c, d in p.narrowed)
    return base_of(type(module)), forwards, children


def _exclude(planner: Planner, module: nn.Module, keys: Iterable[Hashable]) -> None:
    """Plan again without some sites."""
    planner.session.states[module].excluded = frozenset(keys)  # type: ignore[arg-type]
    for training in whole_plans(planner, module):
        del planner.plans[module, (training, frozenset())]
        planner.plan(module, training, frozenset())


def _outcome(planner: Planner, module: nn.Module, reference: ModuleReference) -> Verification:
    """Whether a copy that runs the plans computes the same."""
    made: dict[nn.Module, nn.Module] = {}
    rewritten = copied(module, made, planner.sharded)
    install_relaxed(planner, [module], made, module)
    return reference.check(rewritten)


def install_relaxed(
    planner: Planner, modules: Iterable[nn.Module], made: dict[nn.Module, nn.Module], checked: nn.Module | None = None
) -> None:
    """Give copies the planned forwards of `modules` and of the children they narrow, for repeating the very call.

    `checked` is the module that is called itself. Any other may be called in several ways on the way, and only one of
    them was planned.
    """
    todo = list(modules)
    wanted = set(todo)
    for module in todo:
        mine = [(dropped, p) for (m, (_, dropped)), p in planner.plans.items() if m is module and p.variant is not None]
        for child in {c for _, p in mine for c, _ in p.narrowed} - wanted:
            wanted.add(child)
            todo.append(child)
        full = tuple(_with_relaxed_guards(p, module is checked) for dropped, p in mine if not dropped)
        narrow = {d: tuple(_with_relaxed_guards(p, False) for e, p in mine if e == d) for d, _ in mine if d}
        if module in made and mine:
            install(made[module], full, narrow, _original, {})


def _with_relaxed_guards(plan: ModulePlan, checked: bool) -> Variant:
    assert plan.variant is not None
    return plan.variant.relaxed if checked else plan.variant.loosened


def _original(
    module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], unread: frozenset[Path]
) -> object:  # fmt: skip
    return module(*args, **kwargs) if unread else base_of(type(module)).forward(module, *args, **kwargs)


def copied(module: nn.Module, made: dict[nn.Module, nn.Module], sharded: Forms | None = None) -> nn.Module:
    """A copy with tensors of its own and no hooks, running the original forwards. `made` tells each module's copy.

    Of a tensor that is distributed the copy has this rank's part; those that are `sharded` are numbers made up for it.
    """
    known = sharded or {}
    seeds = itertools.count()

    def clone(x: Tensor) -> Tensor:
        with torch.no_grad():
            form = known.get(id(x))
            new = local(x).detach().clone() if form is None else filled(form, next(seeds))
        return nn.Parameter(new, x.requires_grad) if isinstance(x, nn.Parameter) else new

    world = World(clone, watched=False)
    twin: nn.Module = world.of(module)
    made.update({original: world.of(original) for original in module.modules()})
    for original in module.modules():
        register_views(original, world.of(original))
    return twin
