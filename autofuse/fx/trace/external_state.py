"""The state outside of a module that a forward can change: globals, containers, attributes, arrays, generators, caches.

Attributes are those of functions, classes and objects. A run that is not the user's own (on fake tensors, in float64,
on
copies) must not change this state: the next real call would find a cached mask that is a fake tensor. The state that
code can reach is noted just before the code runs.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from autofuse.fx.trace import effects
from autofuse.fx.trace.class_state import class_state
from autofuse.fx.trace.code_effects import is_user_class
from autofuse.fx.trace.code_facts import CodeFacts, Load, facts_of, nested
from autofuse.fx.trace.executed_code import (
    attribute_names_in,
    callbacks,
    called_functions,
    has_mutable_default,
    is_users_module,
    reads_any_global,
    sets_attribute_of_class,
)
from autofuse.fx.trace.functions_found import FunctionsFound
from autofuse.fx.trace.reachable import CACHE, EVERYTHING, closure_values, value_of_variable
from autofuse.fx.trace.roots import NOTHING, root_of
from autofuse.fx.trace.snapshots import OutsideChange, Snapshot
from autofuse.fx.trace.twin import attributes_of_copies, is_twin, original_class
from autofuse.fx.trace.user_code import Execution, Watcher, can_watch, pause_watching, watch
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because

Stop = Callable[[Reason, bool], None]  # called with a reason to stop and whether a lasting effect follows; may raise


@contextmanager
def restore_external_state(
    stop: Stop | None = None, looks_aside: Callable[[], bool] | None = None, keeps_values: bool = True
) -> Iterator[ExternalState]:
    """Restore what the user's code changes outside of its modules in this block.

    Args:
        stop: called before the user's code calls something that has a side effect, such as print.
        looks_aside: whether the code that runs now is recorded separately (Ran.aside).
        keeps_values: whether the arguments of the code that ran are wanted. They keep tensors and their graphs alive.
    """
    outside = ExternalState(stop, looks_aside, keeps_values and stop is not None)
    try:
        with watch(outside) if can_watch() else nullcontext():
            yield outside
    finally:
        with pause_watching():
            outside.restore()


class ExternalState(Watcher):
    """The state outside of modules that the executed code could reach, as it was before.

    Attributes:
        snapshot: the state.
        ran: the code that ran.
        queries: functions that add a guard on a query to a ReadSet.
    """

    def __init__(
        self, stop: Stop | None = None, looks_aside: Callable[[], bool] | None = None, keeps_values: bool = True
    ) -> None:
        self.snapshot = Snapshot()
        self.ran: list[Execution] = []
        self.queries: list[Callable[[Any], None]] = []
        self._stop, self._looks_aside, self._keeps_values = stop, looks_aside, keeps_values
        self._names_read: frozenset[str] = frozenset()  # the attributes that the functions so far can read
        self._classes: set[type] = set()  # classes whose attributes are noted
        # id of an execution -> the execution, and the iterators that its copies share with the user's modules
        self._iterators: dict[int, tuple[Execution, dict[str, Reason]]] = {}

    @property
    def paused(self) -> bool:  # type: ignore[override]
        """Whether the code that runs now is recorded separately."""
        return self._looks_aside is not None and self._looks_aside()

    def on_torch_query(self, function: Callable[[], Any]) -> None:
        """The code queries a state of torch."""
        self._ask(lambda reads: reads.guard_torch_query(function))

    def on_environment_read(self, key: object) -> None:
        """The code reads an environment variable."""
        self._ask(lambda reads: reads.guard_environment(key))

    def on_context_variable(self, variable: Any) -> None:
        """The code reads a context variable. It may then change its value, which no name leads to."""
        self.note(value_of_variable(variable, NOTHING), variable.name)
        self._ask(lambda reads: reads.guard_context_variable(variable))

    def on_idle_variable(self, variable: Any) -> None:
        """The code reads a context variable of a library that requests nothing."""
        self._ask(lambda reads: reads.guard_idle_variable(variable))

    def _ask(self, ask: Callable[[Any], None]) -> None:
        if not self.paused:
            self.queries.append(ask)

    def on_function(self, ran: Execution) -> None:
        """A function starts. Its arguments may come from outside."""
        self.ran.append(ran)
        names = attribute_names_in(ran)
        self._names_read |= frozenset(names)
        self._note_cells(ran)
        for code in nested(ran.code):
            self._note_names(code, ran.namespace, {})
        if reads_any_global(ran):
            for name, value in list(ran.namespace.items()):
                self.note(value, name) if not isinstance(value, types.ModuleType) else None
        for name, value in ran.arguments.items():
            self._note_shared(ran, value, names)
            if is_twin(value):
                self.note_class(original_class(type(value)))
                self._note_unread(value, facts_of(ran.code))
            if sets_attribute_of_class(ran) and is_user_class(cls := original_class(type(value))):
                self.note(cls, cls.__name__, names)
            if isinstance(value, type) or self.snapshot.holds(value):  # not a value that the code created itself
                self.note(value, name, names)
            cls = original_class(type(value))
            if is_user_class(cls) and not isinstance(value, type):
                self.snapshot.note_instances(cls, names)  # a watcher observes each function once
        if facts_of(ran.code).writes:
            self.snapshot.keep_large()
        if ran.arguments and not any(ran.code in nested(other.code) for other in self.ran):
            with pause_watching():
                found = FunctionsFound()
                function = found.of(ran, everywhere=True)
                others = found.every(ran) if function is not None and has_mutable_default(function) else []
            for each in (function, *others) if function is not None else ():
                self.note(each.__defaults__, ran.code.co_name, names)
                self.note(each.__kwdefaults__, ran.code.co_name, names)
        if not self._keeps_values:
            ran.arguments = {}
            ran.free = {name: v for name, v in ran.free.items() if not self._is_local_of_active_call(name, v)}

    def _note_unread(self, twin: Any, facts: CodeFacts) -> None:
        """Note the objects that a twin shares until they are read, for code that reads past it: `vars(self)["t"]`."""
        inside = object.__getattribute__(twin, "__dict__") if facts.by_name and hasattr(twin, "__dict__") else {}
        for name, held in list(inside.items()):
            if name in facts.texts:
                self.note(held, name)

    def _note_shared(self, ran: Execution, value: Any, names: Collection[str]) -> None:
        """Note the containers and iterators that a copy shares, by its attributes or by its class."""
        for attribute, held in (*attributes_of_copies(value), *class_state(value, names)):
            if attribute not in names:
                continue
            for name, kept in ((attribute, held), *getattr(held, "__dict__", {}).items()):
                kind = effects.kind_of_state(kept) if name in names else ""
                if kind and effects.changes_when_read(kept):
                    why = because(forwards.READS_STATE, name=name, kind=kind)
                    self._iterators.setdefault(id(ran), (ran, {}))[1][name] = why
            self.note(held, attribute, names)

    def _stop_before_iterators(self, ran: Execution, line: int) -> None:
        """Stop before a line that may advance an iterator of a copy: the module has the same iterator."""
        _, reasons = self._iterators.get(id(ran), (None, {}))
        read = facts_of(ran.code).attribute_names({line} if line else None) if reasons else ()
        for name in read:
            if name in reasons and self._stop is not None:
                self._stop(reasons[name], True)

    def note_class(self, cls: type) -> None:
        """Note the user's objects that a class has as methods.

        A decorator that is a class may keep a counter, and functools keeps the results of a method.
        """
        if cls in self._classes:
            return
        self._classes.add(cls)
        for base in filter(is_user_class, cls.__mro__):
            for name, value in list(vars(base).items()):
                if is_user_class(type(value)) and not isinstance(value, type):
                    self.note(value, name)
                for part in called_functions(value):
                    if isinstance(part, CACHE):
                        self.note(part, name)

    def _note_cells(self, ran: Execution) -> None:
        """Note the free variables that a function sets, unless the function that owns them ran here."""
        rebound = facts_of(ran.code).rebound
        if not rebound or any(ran.code in nested(other.code) for other in self.ran):
            return
        with pause_watching():
            function = FunctionsFound().of(ran, everywhere=True)
        cells = dict(zip(ran.code.co_freevars, function.__closure__ or (), strict=True)) if function else {}
        for name in rebound:
            if name in cells:
                self.snapshot.note_cell(cells[name], name)
            elif self._stop is not None:
                self._stop(because(forwards.KEEPS_OUTSIDE, name=name), True)

    def on_line(self, ran: Execution, line: int) -> None:
        """Note what a line can load, and which globals it can set."""
        self._stop_before_iterators(ran, line)
        names = attribute_names_in(ran)
        facts = facts_of(ran.code)
        for load in facts.loaded({line} if line else None):
            if load.kind == "global":
                self.snapshot.note_name(ran.namespace, load.name)
            value = root_of(ran, load)
            if value is NOTHING and load.kind == "global" and not load.called and not load.attributes:
                self._check_passed(load.name)
            if isinstance(value, type):
                self._note_shared(ran, value, names)
            for function in callbacks(value, load):
                self._note_names(function.__code__, function.__globals__, dict(closure_values(function)))
            if load.kind == "free" and self._is_local_of_active_call(load.name, value):
                continue
            self._check_state(value, load)
            self._note_modules(value, load, facts, names)
            self.note(value, load.name, names)
        if facts.writes:
            self.snapshot.keep_large()
        for name in facts.stored:
            self.snapshot.note_name(ran.namespace, name)

    def _is_local_of_active_call(self, name: str, value: Any) -> bool:
        """Whether a value belongs to a variable of an active call that started here.

        If the value came from outside, it was noted when that call loaded it.
        """
        codes = {r.code for r in self.ran}
        frame: types.FrameType | None = sys._getframe()
        while frame is not None:
            code = frame.f_code
            if name in code.co_cellvars and code in codes and frame.f_locals.get(name, NOTHING) is value:
                return True
            frame = frame.f_back
        return False

    def _note_modules(self, value: Any, load: Load, facts: CodeFacts, names: Collection[str]) -> None:
        """Note what the code may set in a Python module: `settings.calls += 1`, `setattr(settings, name, 1)`."""
        for attribute in ("", *load.attributes):
            owner, value = value, getattr(value, "__dict__", {}).get(attribute, NOTHING) if attribute else value
            if not isinstance(value, types.ModuleType):
                if isinstance(owner, types.ModuleType) and value is not NOTHING:
                    self._note_attribute(owner, attribute, value, names)
                return
            for name in facts.assigned:
                self.snapshot.note_attribute(value, name)
            if facts.stores_by_name and not effects.is_library(value.__name__):
                self.snapshot.note_namespace(value)

    def _note_names(self, code: types.CodeType, namespace: dict[str, Any], free: dict[str, Any]) -> None:
        """Note what the names of a function refer to that torch may call back, where no code is observed."""
        other = Execution(code, namespace, {}, free)
        for load in other.loads():
            self.note(root_of(other, load), load.name, attribute_names_in(other))

    def _check_passed(self, name: str) -> None:
        """Stop before a built-in function such as `print` is passed on, because its call is not seen then."""
        if what := effects.effect_of_builtin(vars(builtins).get(name)):
            self.on_effect(what)

    def _note_attribute(self, module: types.ModuleType, attribute: str, value: Any, names: Collection[str]) -> None:
        """Note what an attribute of a module holds: `settings.meter`, `warnings.filters`."""
        name = f"{module.__name__}.{attribute}"
        if is_users_module(module):
            self.note(value, name, names)
        elif isinstance(value, (dict, list, set)):
            self.snapshot.note_contents(value, name)
        if value is sys.modules:
            for other in filter(is_users_module, list(value.values())):
                self.note(other, other.__name__, names)

    def _check_state(self, value: Any, load: Load) -> None:
        """Stop before the code reads an iterator or another value whose state cannot be compared."""
        for attribute in ("", *load.attributes):
            value = getattr(value, "__dict__", {}).get(attribute, NOTHING) if attribute else value
            kind = "" if value is NOTHING else effects.kind_of_state(value)
            if kind and self._stop is not None:
                self._stop(
                    because(forwards.READS_STATE, name=attribute or load.name, kind=kind),
                    effects.changes_when_read(value),
                )

    def note(self, value: Any, name: str, names: Collection[str] = EVERYTHING) -> None:
        """Note the contents of a value, unless it was created for the run."""
        if value is not NOTHING and not is_twin(value):
            self.snapshot.note(value, name, names if names is EVERYTHING else self._names_read.union(names))
            for called, kind in self.snapshot.left if self._stop is not None else ():
                self._stop(because(forwards.READS_STATE, name=called, kind=kind), True)  # type: ignore[misc]

    def note_defaults(self, function: Any) -> None:
        """Note the contents of a function's defaults."""
        for name in ("__defaults__", "__kwdefaults__"):
            self.note(getattr(function, name, None), name)

    def on_effect(self, what: str) -> None:
        """The code is about to cause a side effect. Not every run has to stop there."""
        if self._stop is not None:
            draws = what.partition(".")[0] == "random"
            why = because(forwards.DRAWS_RANDOM) if draws else because(forwards.HAS_EFFECT, name=what)
            self._stop(why, effects.has_lasting_effect(what))

    def changes(self) -> list[OutsideChange]:
        """The values that the code changed, without the results that functools cached."""
        with pause_watching():
            return list(self.snapshot.changes())

    def holds(self, value: Any) -> bool:
        """Whether the code could reach a value from outside, and not only as an argument."""
        return self.snapshot.holds(value)

    def restore(self) -> None:
        """Restore the state."""
        self.snapshot.restore()
