"""Runs rewritten forwards on copies. A check never runs the user's own modules."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from autofuse.fx.install.codegen import Forward, Variant
from autofuse.fx.install.dispatch import OnMiss, RewrittenForward, install, install_same, restore_module
from autofuse.fx.rewrite.module_plan import ModulePlan
from autofuse.fx.session.planner import Planner
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.runs_on_copies import without_effects
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
    """One call of one module, and copies of the module that run the call with rewritten forwards.

    The user's module never runs. The results of the original are computed once, when they are first needed, and freed
    at the end of a `with` block.
    """

    def __init__(
        self, module: nn.Module, call: ForwardArguments, planner: Planner, unread: frozenset[Path] = frozenset(),
        length: int = LENGTH, alone: str = "", parts_checked: bool = False, modes: Collection[bool] = (True, False),
    ) -> None:  # fmt: skip
        """Describe the call.

        Args:
            module: The module.
            call: The arguments of the call.
            planner: The plans.
            unread: The paths in the returned tuple that the caller does not read. They are not compared.
            length: The maximum sequence length in the part of the call that is checked in float64.
            alone: Why only that part runs, "" if the whole call runs.
            parts_checked: Whether the submodules have been checked one by one.
            modes: The modes in which the call is made: True is training.
        """
        self._length, self._alone, self._parts_checked, self._modes = length, alone, parts_checked, modes
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
        original = copy_module(self._module, {}, self._planner.sharded)
        places = frozenset(int(path[0]) for path in self._unread)  # type: ignore[call-overload]
        return ModuleReference(original, *self._call, unread=places, copy_object=copied_object,
                               copy_module=copy_module_with_forwards, parts_checked=self._parts_checked,
                               modes=self._modes)  # fmt: skip

    @cached_property
    def _parts(self) -> PartwiseReference:
        return PartwiseReference(self._reference, shared_regions, self._length)

    def outcome(self, running: Iterable[nn.Module] | None = None) -> Verification:
        """Compare a copy, in which some modules run their plans, with the original.

        A large call is checked on a part of it if a part can decide (verify/partwise.py). `size` says which.

        Args:
            running: The modules that run their plans. By default these are the module itself, with its plan for this
                call, and the children whose narrow forwards it calls.
        """
        if running is None:
            running, only_this = [self._module, *narrow_descendants(self._planner, self._module)], True
        else:
            running, only_this = list(running), False
        if self._alone:
            return self._outcome_of_part(running, only_this, self._alone) or Verification(False, reason=self._alone)
        try:
            found = self._run_trial(running, only_this, in_parts=True) if not self._unread else None
            return found or self._run_trial(running, only_this, in_parts=False) or Verification(False)
        except Exception as error:
            if not is_out_of_memory(error) or self._unread:
                raise
            self._forget()
            # The traceback refers to tensors whose memory the second try needs.
            error.__traceback__ = None
            smaller = self._outcome_of_part(running, only_this, "memory ran out")
            if smaller is None:
                raise
            return smaller

    def _outcome_of_part(self, running: list[nn.Module], only_this: bool, why: str) -> Verification | None:
        """The outcome on a part of the call, without a run of the whole call; None if no part can decide."""
        found = self._run_trial(running, only_this, in_parts=True, alone=True)
        return replace(found, size=f"{found.size} alone, for {why}") if found is not None and found.ok else found

    def _run_trial(
        self, running: list[nn.Module], only_this: bool, in_parts: bool, alone: bool = False
    ) -> Verification | None:
        copies: dict[nn.Module, nn.Module] = {}
        rewritten = copy_module(self._module, copies, self._planner.sharded)
        misses, known = list[nn.Module](), dict[Hashable, RewrittenForward]()
        missed = partial(_note_miss, misses)
        for module in running:
            if module in copies:
                itself = only_this and module is self._module and not in_parts
                install_plans(self._planner, module, copies[module], self._unread if itself else None, missed, known)
        try:
            with without_effects() as outside:
                for cls in {type(m) for m in copies}:  # a rewritten forward may write to them
                    outside.note_defaults(own_forward(plain_class(cls)))
                    outside.note_class(plain_class(cls))
                if in_parts and not alone and not self._parts.can_decide:
                    return None
                if in_parts:
                    return self._parts.check(rewritten, misses, other_inputs=only_this, part_only=alone)
                return self._reference.check(rewritten, other_inputs=only_this)
        finally:
            for module in copies.values():  # copies may exist for a while and must not dispatch
                restore_module(module)
            release_tensors(rewritten, self._module)


def narrow_descendants(planner: Planner, module: nn.Module) -> list[nn.Module]:
    """The descendants of `module` whose narrow forwards its plans call, directly or indirectly."""
    found = [module]
    for known in found:
        children = {child for _, plan in _rewritten_plans(planner, known) for child, _ in plan.narrowed}
        found += [child for child in children if child not in found]
    return found[1:]


def install_plans(
    planner: Planner, module: nn.Module, copy: nn.Module, called: frozenset[Path] | None = None,
    missed: OnMiss | None = None, known: dict[Hashable, RewrittenForward] | None = None,
) -> bool:  # fmt: skip
    """Install the planned forwards of a module in a copy of it, with guards that hold for the copy.

    Args:
        planner: The plans.
        module: The module.
        copy: Its copy.
        called: The paths that the caller does not read, if the copy itself runs the planned call. None for a submodule,
            which may be called in several ways and so keeps the guards that distinguish its calls.
        missed: Runs calls for which no planned forward fits.
        known: The forwards of equal modules, for reuse.

    Returns:
        Whether the module has a planned forward.
    """
    whole = called or frozenset()
    forwards: dict[frozenset[Path], list[Variant]] = {}
    for dropped, plan in _rewritten_plans(planner, module):
        assert plan.variant is not None
        alone = called is not None and dropped == called
        forwards.setdefault(dropped, []).append(
            plan.variant.for_the_traced_call if alone else plan.variant.for_similar_calls
        )
    full = tuple(forwards.pop(whole, ()))
    forwards.pop(frozenset(), None)
    if full or forwards:
        narrow = {dropped: tuple(variants) for dropped, variants in forwards.items()}
        install(copy, full, narrow, missed or _run_original, {} if known is None else known)
    return bool(full or forwards)


def _rewritten_plans(planner: Planner, module: nn.Module) -> list[tuple[frozenset[Path], ModulePlan]]:
    plans = planner.plans.items()
    return [(dropped, p) for (m, (_, dropped)), p in plans if m is module and p.variant is not None]


def copy_module(module: nn.Module, copies: dict[nn.Module, nn.Module], sharded: Forms | None = None) -> nn.Module:
    """Copy a module without hooks. The copy has its own tensors and runs the original forwards.

    Args:
        module: The module.
        copies: Filled with the copy of each module.
        sharded: The forms of tensors that are not on this rank. The copy gets random numbers in their place. Of a
            distributed tensor, it gets this rank's part.
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
    copies.update({original: world.of(original) for original in module.modules()})
    for original in module.modules():
        register_views(original, world.of(original))
    return twin


def copy_module_with_forwards(module: nn.Module) -> nn.Module:
    """Copy a module. The copy and its submodules run their current forwards."""
    copies: dict[nn.Module, nn.Module] = {}
    twin = copy_module(module, copies)
    for original, new in copies.items():
        install_same(original, new)
    return twin


def _run_original(
    of: Forward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], unread: frozenset[Path]
) -> object:  # fmt: skip
    return module(*args, **kwargs) if unread else of(module, *args, **kwargs)


def _note_miss(
    misses: list[nn.Module], of: Forward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object],
    unread: frozenset[Path],
) -> object:  # fmt: skip
    misses.append(module)
    return _run_original(of, module, args, kwargs, unread)
