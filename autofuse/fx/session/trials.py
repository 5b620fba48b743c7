"""Rewritten forwards, tried on copies: the user's own modules are never run for a check."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor, nn

from autofuse.fx.install.codegen import Variant
from autofuse.fx.install.subclass import base_of, install
from autofuse.fx.rewrite.module_plan import ModulePlan
from autofuse.fx.session.planner import Planner
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.sharding import register_views
from autofuse.fx.trace.stand_ins import Forms, filled, local
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import World, copied_object
from autofuse.verify.modules import ModuleReference, Verification


class Trial:
    """One call of one module, and copies of it that make the call with rewritten forwards.

    The user's own module is never run. What the original computes is found out once, when it is first asked for.
    """

    def __init__(
        self, module: nn.Module, call: ForwardArguments, planner: Planner, unread: frozenset[Path] = frozenset()
    ) -> None:
        """`unread`: the places in the returned tuple that the caller does not read; they are not compared."""
        self._module, self._call, self._planner, self._unread = module, call, planner, unread

    @cached_property
    def _reference(self) -> ModuleReference:
        original = copied(self._module, {}, self._planner.sharded)
        places = frozenset(int(path[0]) for path in self._unread)  # type: ignore[call-overload]
        return ModuleReference(original, *self._call, unread=places, copy_object=copied_object)

    def outcome(self, running: Iterable[nn.Module] | None = None) -> Verification:
        """Whether a copy computes the same in which these modules run what they run now; by default, in which the
        module and the children that it narrows run what is planned for this very call."""
        made: dict[nn.Module, nn.Module] = {}
        rewritten = copied(self._module, made, self._planner.sharded)
        wanted = [self._module] if running is None else running
        _install_relaxed(self._planner, wanted, made, self._module if running is None else None)
        if self._unread:
            plan = self._planner.plans[self._module, (self._module.training, self._unread)]
            assert plan.variant is not None
            install(rewritten, (plan.variant.relaxed,), {}, _original, {})
        return self._reference.check(rewritten)


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


def _install_relaxed(
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
