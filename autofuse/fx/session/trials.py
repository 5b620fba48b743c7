"""Rewritten forwards, tried on copies: the user's own modules are never run for a check."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from autofuse.fx.install.codegen import Forward, Variant
from autofuse.fx.install.dispatch import OnMiss, RewrittenForward, install, install_same, restore_module
from autofuse.fx.rewrite.module_plan import ModulePlan
from autofuse.fx.session.planner import Planner
from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.external_state import restore_external_state
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.sharding import register_views
from autofuse.fx.trace.stand_ins import Forms, local_shard, random_tensor
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import Twins, copied_object, plain_class
from autofuse.kernels.compiled_regions import shared_regions
from autofuse.verify.modules import ModuleReference, Verification
from autofuse.verify.out_of_memory import is_out_of_memory
from autofuse.verify.partwise import PartwiseReference
from autofuse.verify.runs import release_tensors
from autofuse.verify.slices import LENGTH


class ForwardTrial:
    """One call of one module, and copies of it that make the call with rewritten forwards.

    The user's own module is never run. What the original computes is found out once, when it is first asked for. At the
    end of a `with` block it is forgotten.
    """

    def __init__(
        self, module: nn.Module, call: ForwardArguments, planner: Planner, unread: frozenset[Path] = frozenset(),
        length: int = LENGTH, alone: str = "",
    ) -> None:  # fmt: skip
        """`unread`: the places in the returned tuple that the caller does not read; they are not compared.
        length: of a sequence in the part of the call that is checked in double, at most. alone: why nothing but that
        part is run, "" where the whole call is.
        """
        self._length, self._alone = length, alone
        self._module, self._call, self._planner, self._unread = module, call, planner, unread

    def __enter__(self) -> ForwardTrial:
        return self

    def __exit__(self, *error: object) -> None:
        self._forget()

    def _forget(self) -> None:
        self.__dict__.pop("_parts", None)
        reference = self.__dict__.pop("_reference", None)
        if reference is not None:
            release_tensors(reference.original, self._module)

    @cached_property
    def _reference(self) -> ModuleReference:
        original = copied(self._module, {}, self._planner.sharded)
        places = frozenset(int(path[0]) for path in self._unread)  # type: ignore[call-overload]
        return ModuleReference(original, *self._call, unread=places, copy_object=copied_object,
                               copy_module=copied_with_forwards)  # fmt: skip

    @cached_property
    def _parts(self) -> PartwiseReference:
        return PartwiseReference(self._reference, shared_regions, self._length)

    def outcome(self, running: Iterable[nn.Module] | None = None) -> Verification:
        """Whether a copy computes the same in which these modules run their plans, and all others their originals.

        By default the module itself runs its plan for this very call, and so do the children that it narrows. A large
        call is checked on a part of it where a part can tell (verify/in_parts.py); `size` says which.
        """
        if running is None:
            running, only_this = [self._module, *narrowed_below(self._planner, self._module)], True
        else:
            running, only_this = list(running), False
        if self._alone:
            return self._of_part_alone(running, only_this, self._alone) or Verification(False, reason=self._alone)
        try:
            found = self._tried(running, only_this, in_parts=True) if not self._unread else None
            return found or self._tried(running, only_this, in_parts=False) or Verification(False)
        except Exception as error:
            if not is_out_of_memory(error) or self._unread:
                raise
            self._forget()
            error.__traceback__ = None
            smaller = self._of_part_alone(running, only_this, "memory ran out")
            if smaller is None:
                raise
            return smaller

    def _of_part_alone(self, running: list[nn.Module], only_this: bool, why: str) -> Verification | None:
        """The outcome on a part of the call, without a run of the whole call; None where no part can tell."""
        found = self._tried(running, only_this, in_parts=True, alone=True)
        return replace(found, size=f"{found.size} alone, for {why}") if found is not None and found.ok else found

    def _tried(
        self, running: list[nn.Module], only_this: bool, in_parts: bool, alone: bool = False
    ) -> Verification | None:
        made: dict[nn.Module, nn.Module] = {}
        rewritten = copied(self._module, made, self._planner.sharded)
        misses, known = list[nn.Module](), dict[Hashable, RewrittenForward]()
        missed = partial(_noted, misses)
        for module in running:
            if module in made:
                itself = only_this and module is self._module and not in_parts
                install_plans(self._planner, module, made[module], self._unread if itself else None, missed, known)
        try:
            with preserve_generators(), restore_external_state() as outside:
                for cls in {type(m) for m in made}:  # a rewritten forward writes there without running the user's code
                    outside.note_defaults(own_forward(plain_class(cls)))
                    outside.note_class(plain_class(cls))
                if in_parts and not alone and not self._parts.can_decide:
                    return None
                if in_parts:
                    return self._parts.check(rewritten, misses, other_inputs=only_this, part_only=alone)
                return self._reference.check(rewritten, other_inputs=only_this)
        finally:
            for module in made.values():  # copies may lie about for a while, and their classes would dispatch
                restore_module(module)
            release_tensors(rewritten, self._module)


def narrowed_below(planner: Planner, module: nn.Module) -> list[nn.Module]:
    """The children of `module` the narrow forwards of which its plans call, and theirs."""
    found = [module]
    for known in found:
        children = {child for _, plan in _planned(planner, known) for child, _ in plan.narrowed}
        found += [child for child in children if child not in found]
    return found[1:]


def install_plans(
    planner: Planner, module: nn.Module, copy: nn.Module, called: frozenset[Path] | None = None,
    missed: OnMiss | None = None, known: dict[Hashable, RewrittenForward] | None = None,
) -> bool:  # fmt: skip
    """Give a copy the planned forwards of `module`, with guards that hold for the copy; whether there are any.

    called: what the caller does not read, where the copy is called itself, as it was planned. Any other copy may be
    called in several ways, and only one of them was planned, so it keeps the guards that tell its calls apart.
    missed: runs the calls that no planned forward stands in for. known: the forwards of modules that are alike.
    """
    whole = called or frozenset()
    forwards: dict[frozenset[Path], list[Variant]] = {}
    for dropped, plan in _planned(planner, module):
        assert plan.variant is not None
        alone = called is not None and dropped == called
        forwards.setdefault(dropped, []).append(
            plan.variant.for_the_traced_call if alone else plan.variant.for_similar_calls
        )
    full = tuple(forwards.pop(whole, ()))
    forwards.pop(frozenset(), None)
    if full or forwards:
        narrow = {dropped: tuple(made) for dropped, made in forwards.items()}
        install(copy, full, narrow, missed or _original, {} if known is None else known)
    return bool(full or forwards)


def _planned(planner: Planner, module: nn.Module) -> list[tuple[frozenset[Path], ModulePlan]]:
    plans = planner.plans.items()
    return [(dropped, p) for (m, (_, dropped)), p in plans if m is module and p.variant is not None]


def copied(module: nn.Module, made: dict[nn.Module, nn.Module], sharded: Forms | None = None) -> nn.Module:
    """A copy with tensors of its own and no hooks, running the original forwards. `made` tells each module's copy.

    Of a tensor that is distributed the copy has this rank's part; those that are `sharded` are numbers made up for it.
    """
    known = sharded or {}
    seeds = itertools.count()

    def clone(x: Tensor) -> Tensor:
        with torch.no_grad():
            form = known.get(id(x))
            new = local_shard(x).detach().clone() if form is None else random_tensor(form, next(seeds))
        return nn.Parameter(new, x.requires_grad) if isinstance(x, nn.Parameter) else new

    world = Twins(clone, watched=False)
    twin: nn.Module = world.of(module)
    made.update({original: world.of(original) for original in module.modules()})
    for original in module.modules():
        register_views(original, world.of(original))
    return twin


def copied_with_forwards(module: nn.Module) -> nn.Module:
    """A copy that runs the forwards that `module` and those below it run now."""
    made: dict[nn.Module, nn.Module] = {}
    twin = copied(module, made)
    for original, new in made.items():
        install_same(original, new)
    return twin


def _original(
    of: Forward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], unread: frozenset[Path]
) -> object:  # fmt: skip
    return module(*args, **kwargs) if unread else of(module, *args, **kwargs)


def _noted(
    misses: list[nn.Module], of: Forward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object],
    unread: frozenset[Path],
) -> object:  # fmt: skip
    misses.append(module)
    return _original(of, module, args, kwargs, unread)
