"""Decides which modules of a model share one plan.

Equal modules have the same structure (trace/equal_modules.py). They may differ in integers, such as the index of a
layer, and in the state of objects among their arguments, such as a cache. A plan fits another module only if nothing
that its traces computed depended on such a difference:

- an integer was not read, or was only passed to methods of arguments (trace/open_integers.py), or was read only in the
  call of a child whose own plan does not depend on it;
- an object was used only by calls of its methods, and the same calls on the other object have results of the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from autofuse.fx.install.codegen import Variant
from autofuse.fx.session.state import ModuleState
from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.attribute_reads import guard_path
from autofuse.fx.trace.equal_modules import Structure, tensors_held_once
from autofuse.fx.trace.external_state import restore_external_state
from autofuse.fx.trace.module_calls import Calls
from autofuse.fx.trace.object_uses import ObjectUses
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.quiet_log import mute_fake_tensor_log
from autofuse.fx.trace.twin import EVERY_NAME, IntegersRead, Twins
from autofuse.torch_private import FakeTensor, FakeTensorMode

PlanKey = tuple[nn.Module, tuple[bool, frozenset[Path]]]


@dataclass
class Dependence:
    """The facts on which one plan depends besides the structure of its module.

    Attributes:
        integers: The integers of twins that traces read, apart from those in `of_children`.
        called: How often each child was called.
        of_children: For each child, the integers that its calls read.
        objects: The uses of objects among the arguments.
        plans: The plans that were considered for children.
    """

    integers: IntegersRead = field(default_factory=set)
    called: Mapping[str, int] = field(default_factory=dict)
    of_children: Mapping[str, IntegersRead] = field(default_factory=dict)
    objects: ObjectUses = field(default_factory=ObjectUses)
    plans: list[PlanKey] = field(default_factory=list)


class EqualLayers:
    """The equal modules of one capture.

    Attributes:
        dependences: What each plan that was made from a trace depends on.
    """

    def __init__(
        self, states: Mapping[nn.Module, ModuleState], calls: Mapping[bool, Calls], world: Callable[[], Twins],
        mode: FakeTensorMode, make_plan: Callable[[PlanKey], object],
    ) -> None:  # fmt: skip
        """Find equal modules on demand.

        Args:
            states: The states of the modules. Only modules with a state can be equal.
            calls: For each mode, the call of each module.
            world: Returns the maker of the twins.
            mode: The mode of the twins' tensors.
            make_plan: Makes a plan, unless it exists.
        """
        self._states, self._calls, self._world, self._mode, self._make_plan = states, calls, world, mode, make_plan
        self.dependences: dict[PlanKey, Dependence] = {}
        self._structures: dict[tuple[nn.Module, bool], Structure] = {}
        self._representatives: dict[Hashable, list[nn.Module]] = {}  # key -> the planned modules of almost equal ones
        self._groups: dict[bool, dict[Hashable, list[Structure]]] = {}
        self._repeated: dict[Hashable, bool] = {}  # uses of objects, module, mode -> whether its objects allow them
        self._fakes: dict[int, tuple[Tensor, Tensor]] = {}  # id of a tensor in an object -> it, its fake

    @cached_property
    def _held_once(self) -> frozenset[int]:
        return tensors_held_once(self._states)

    def structure(self, module: nn.Module, training: bool) -> Structure | None:
        """The structure of a module and its call; None if it cannot equal another one."""
        call = self._calls[training].get(module)
        if call is None or module not in self._states or len(self._calls[training]) < 2:
            return None
        if (module, training) not in self._structures:
            self._structures[module, training] = Structure(module, call, self._held_once)
        found = self._structures[module, training]
        return found if found.key is not None else None

    def varying(self, module: nn.Module, training: bool) -> set[tuple[str, str]]:
        """The integers in which the modules that are equal to `module` differ: path of the owner, name."""
        mine = self.structure(module, training)
        if mine is None or not mine.integers:
            return set()
        if training not in self._groups:
            groups = self._groups[training] = {}
            for found in (self.structure(m, training) for m in self._calls[training]):
                if found is not None:
                    groups.setdefault(found.key, []).append(found)
        found_places: set[tuple[str, str]] = set()
        return found_places.union(*map(mine.differing_integers, self._groups[training].get(mine.key, ())))

    def open_integers(self, module: nn.Module, training: bool) -> frozenset[str]:
        """The module's own integers that differ between equal modules."""
        return frozenset(name for path, name in self.varying(module, training) if not path)

    def representative(self, key: PlanKey) -> tuple[nn.Module, Structure] | None:
        """A planned module whose plan fits this module, with its structure; None if there is none."""
        module, (training, dropped) = key
        mine = self.structure(module, training)
        if mine is None:
            return None
        known = self._representatives.setdefault((training, mine.key), [])
        for other in known:
            theirs = self.structure(other, training)
            if other is not module and theirs is not None:
                differing = self._twins_of(other, mine.differing_integers(theirs))
                if self._fits((other, (training, dropped)), module, differing):
                    return other, theirs
        if module not in known:
            known.append(module)
        return None

    def _twins_of(self, module: nn.Module, places: set[tuple[str, str]]) -> IntegersRead:
        """The same integers by the ids of the twins that hold them."""
        return {(id(self._world().of(module.get_submodule(path))), name) for path, name in places}

    def _fits(self, key: PlanKey, double: nn.Module, differing: IntegersRead) -> bool:
        """Whether a plan fits `double`, an equal module that may differ in these integers and in objects.

        If `double` is the module of the plan itself, this is whether the plan is independent of the integers.
        """
        module, (training, _) = key
        inside = {id(self._world().of(m)) for m in module.modules()}
        differing = {place for place in differing if place[0] in inside}
        has_other_objects = module is not double and self._has_other_objects(module, double, training)
        if not differing and not has_other_objects:
            return True
        known = self.dependences.get(key)
        if known is None or self._depends_on(known.integers, differing):
            return False
        children = {path for path, read in known.of_children.items() if self._depends_on(read, differing)}
        if has_other_objects:
            if not self._repeats(known.objects, double, training):
                return False
            children |= known.objects.children
        return all(self._fits_child(known, key, path, double, differing) for path in sorted(children)) and all(
            self._fits(plan, self._double_of(plan[0], module, double), differing) for plan in known.plans
        )

    def _fits_child(
        self, known: Dependence, key: PlanKey, path: str, double: nn.Module, differing: IntegersRead
    ) -> bool:
        """Whether the call of a child is independent of the differences, because the child's own plan is."""
        module, (training, _) = key
        plan = module.get_submodule(path), (training, frozenset[Path]())
        if known.called.get(path) != 1 or plan[0] not in self._calls[training]:
            return False  # only the first call of a module is planned
        self._make_plan(plan)
        return plan in self.dependences and self._fits(plan, double.get_submodule(path), differing)

    def _double_of(self, child: nn.Module, module: nn.Module, double: nn.Module) -> nn.Module:
        return double.get_submodule(next(path for path, m in module.named_modules() if m is child))

    def _depends_on(self, read: IntegersRead, differing: IntegersRead) -> bool:
        """Whether differing integers were read. An owner that is no twin of a module may be a copy of one."""
        names, modules = {name for _, name in differing}, self._world().originals
        return bool(differing) and (
            EVERY_NAME in read
            or any(name in names and ((owner, name) in differing or owner not in modules) for owner, name in read)
        )

    def _has_other_objects(self, module: nn.Module, double: nn.Module, training: bool) -> bool:
        one, other = self.structure(module, training), self.structure(double, training)
        if one is None or other is None or one.key != other.key:
            return True
        return one.objects != other.objects

    def _repeats(self, uses: ObjectUses, double: nn.Module, training: bool) -> bool:
        """Whether the objects among another module's arguments behave in the same way."""
        if uses.others or (call := self._calls[training].get(double)) is None:
            return False
        key = uses.form, double, training
        if key in self._repeated:
            return self._repeated[key]
        with (
            mute_fake_tensor_log(), preserve_generators(), self._mode, torch.enable_grad(),
            restore_external_state(keeps_values=False),
        ):  # fmt: skip
            self._repeated[key] = uses.repeat_on(double, call, self._fake)
        return self._repeated[key]

    def _fake(self, x: Tensor) -> Tensor:
        """A fake tensor of the twins' mode, as a trace makes it. Caches of many layers hold the same tensors."""
        if id(x) not in self._fakes or self._fakes[id(x)][1]._version:  # a method may have written to it
            source = x if isinstance(x, FakeTensor) else self._mode.from_tensor(x.detach(), static_shapes=True)
            with torch.no_grad():
                made = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=source.device)
            differentiable = x.requires_grad and x.dtype.is_floating_point
            self._fakes[id(x)] = x, made.requires_grad_().clone() if differentiable else made
        return self._fakes[id(x)][1]

    def without_index_guards(self, key: PlanKey, variant: Variant) -> Variant:
        """The variant without its guards on integers of children that differ between equal layers, if that is safe.

        A caller guards what its children read, because the form of their results may depend on it.
        """
        module, (training, _) = key
        mine = self.structure(module, training)
        if mine is None:
            return variant
        below = [(path, name) for path, name in self.varying(module, training) if path]
        guards = {guard_on(*place, mine.integers[place]): place for place in below}
        tests, names = list(variant.tests), variant.names
        for test in [t for t in tests if t in guards]:
            if self._fits(key, module, self._twins_of(module, {guards[test]})):
                path, name = guards[test]
                names = names if any(value is int for _, value in names) else (*names, (f"_c{len(names)}", int))
                kind = next(n for n, value in names if value is int)
                tests[tests.index(test)] = f"type({guard_path(path)}.{name}) is {kind}"
        return replace(variant, tests=tuple(tests), names=names)


def guard_on(path: str, name: str, value: int) -> str:
    """The guard of a trace on an integer of a module."""
    return f"{guard_path(path)}.{name} == {value!r}"


def doubles_of(theirs: Structure, mine: Structure) -> dict[nn.Module, nn.Module]:
    """The modules below one of two equal modules, with those below the other."""
    double = {path: m for m, path in mine.paths.items()}
    return {m: double[path] for m, path in theirs.paths.items() if path in double}


def parts_of(twin: nn.Module) -> Iterator[object]:
    """A twin, its tables and its tensors."""
    yield from (twin, vars(twin), twin._modules, *twin._parameters.values(), *twin._buffers.values())
