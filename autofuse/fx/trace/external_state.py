"""What a forward can change outside of its module: globals, containers, attributes of functions, classes and objects,
arrays, generators of random numbers, functools' caches.

A run that is not the user's own (on fakes, in double, on copies) must leave nothing there: a cached mask that is a fake
would be found by the next real call. What the code that runs can reach is noted just before it runs.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from autofuse.fx.trace import effects
from autofuse.fx.trace.code_effects import is_users_class
from autofuse.fx.trace.code_facts import Load, facts_of, nested
from autofuse.fx.trace.functions_found import FunctionsFound
from autofuse.fx.trace.roots import NOTHING, root_of
from autofuse.fx.trace.snapshots import CACHE, EVERYTHING, OutsideChange, Snapshot
from autofuse.fx.trace.twin import is_twin, original_class
from autofuse.fx.trace.user_code import Execution, Watcher, can_watch, pause_watching, watch
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because

Stop = Callable[[Reason, bool], None]  # why a run had better stop, and whether a trace would be left; it may raise


@contextmanager
def unchanged_outside(
    stop: Stop | None = None, looks_aside: Callable[[], bool] | None = None
) -> Iterator[ExternalState]:
    """Put back what the user's code changes outside of its modules in this block.

    stop: called before the user's code calls what has an effect, such as print. looks_aside: whether what runs now is
    recorded as paused (Execution.paused).
    """
    outside = ExternalState(stop, looks_aside)
    try:
        with watch(outside) if can_watch() else nullcontext():
            yield outside
    finally:
        with pause_watching():
            outside.restore()


class ExternalState(Watcher):
    """What lies outside of modules and was in reach of the code that ran, as it was before. `ran`: that code."""

    def __init__(self, stop: Stop | None = None, looks_aside: Callable[[], bool] | None = None) -> None:
        self.snapshot = Snapshot()
        self.ran: list[Execution] = []
        self.asked: list[Callable[[Any], None]] = []  # what to ask a ReadSet to guard besides
        self._stop, self._looks_aside = stop, looks_aside
        self._classes: set[type] = set()  # whose objects are noted

    @property
    def paused(self) -> bool:  # type: ignore[override]
        """Whether what runs now is recorded as paused."""
        return self._looks_aside is not None and self._looks_aside()

    def on_torch_query(self, function: Callable[[], Any]) -> None:
        """A state of torch."""
        self._ask(lambda reads: reads.guard_torch_query(function))

    def on_environment_read(self, key: object) -> None:
        """A variable of the environment."""
        self._ask(lambda reads: reads.guard_environment(key))

    def on_context_variable(self, variable: Any) -> None:
        """A context variable."""
        self._ask(lambda reads: reads.guard_context_variable(variable))

    def on_idle_variable(self, variable: Any) -> None:
        """A context variable by which a library asks for nothing."""
        self._ask(lambda reads: reads.guard_idle_variable(variable))

    def _ask(self, ask: Callable[[Any], None]) -> None:
        if not self.paused:
            self.asked.append(ask)

    def on_function(self, ran: Execution) -> None:
        """Its arguments may have come from outside."""
        self.ran.append(ran)
        names = names_in(ran)
        self._note_cells(ran)
        for name, value in ran.arguments.items():
            if is_twin(value):
                self.note_class(original_class(type(value)))
            if isinstance(value, type) or self.snapshot.holds(value):  # what forward has made is its own affair
                self.note(value, name, names)
        if facts_of(ran.code).writes:
            self.snapshot.keep_large()
        if ran.arguments and not any(ran.code in nested(other.code) for other in self.ran):
            with pause_watching():
                function = FunctionsFound().of(ran, everywhere=True)
            if function is not None:
                self.note(function.__defaults__, ran.code.co_name, names)
                self.note(function.__kwdefaults__, ran.code.co_name, names)
        if self._stop is None:
            # Nobody asks what was read, and tensors lie there, with their graphs.
            ran.arguments = {}
            ran.free = {name: v for name, v in ran.free.items() if not self._belongs_to_a_call(name, v)}

    def note_class(self, cls: type) -> None:
        """Objects of the user's that a class has for methods: a decorator that is a class keeps what it counts, and
        functools what a method has made."""
        if cls in self._classes:
            return
        self._classes.add(cls)
        for base in filter(is_users_class, cls.__mro__):
            for name, held in list(vars(base).items()):
                if is_users_class(type(held)) and not isinstance(held, type):
                    self.note(held, name)
                for part in _parts(held):
                    if isinstance(part, CACHE):
                        self.note(part, name)

    def _note_cells(self, ran: Execution) -> None:
        """The variables around a function that it binds anew; those of a function that ran here are its own."""
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
        """What the line can load, and which globals it can set."""
        names = names_in(ran)
        facts = facts_of(ran.code)
        for load in facts.loaded({line} if line else None):
            if load.kind == "global":
                self.snapshot.note_name(ran.namespace, load.name)
            value = root_of(ran, load)
            if load.kind == "free" and self._belongs_to_a_call(load.name, value):
                continue
            self._check_state(value, load)
            self._note_modules(value, load, facts.assigned)
            self.note(value, load.name, names)
        if facts.writes:
            self.snapshot.keep_large()
        for name in facts.stored:
            self.snapshot.note_name(ran.namespace, name)

    def _belongs_to_a_call(self, name: str, value: Any) -> bool:
        """Whether a value is that of a variable of a call that has begun here and goes on; where it came from elsewhere
        it was noted when that call loaded it."""
        begun = {r.code for r in self.ran}
        frame: types.FrameType | None = sys._getframe()
        while frame is not None:
            code = frame.f_code
            if name in code.co_cellvars and code in begun and frame.f_locals.get(name, NOTHING) is value:
                return True
            frame = frame.f_back
        return False

    def _note_modules(self, value: Any, load: Load, assigned: Collection[str]) -> None:
        """What the code may set in a module of Python: `settings.calls += 1`."""
        for attribute in ("", *load.attributes) if assigned else ():
            value = getattr(value, "__dict__", {}).get(attribute, NOTHING) if attribute else value
            if not isinstance(value, types.ModuleType):
                return
            for name in assigned:
                self.snapshot.note_attribute(value, name)

    def _check_state(self, value: Any, load: Load) -> None:
        """An iterator must not be moved on, and what it yields cannot be told."""
        for attribute in ("", *load.attributes):
            value = getattr(value, "__dict__", {}).get(attribute, NOTHING) if attribute else value
            kind = "" if value is NOTHING else effects.kind_of_state(value)
            if kind and self._stop is not None:
                self._stop(
                    because(forwards.READS_STATE, name=attribute or load.name, kind=kind), effects.moves_on(value)
                )

    def note(self, value: Any, name: str, names: Collection[str] = EVERYTHING) -> None:
        """Keep what a value holds that is not made for the run itself."""
        if value is not NOTHING and not is_twin(value):
            self.snapshot.note(value, name, names)
            for called, kind in self.snapshot.left if self._stop is not None else ():
                self._stop(because(forwards.READS_STATE, name=called, kind=kind), True)  # type: ignore[misc]

    def note_defaults(self, function: Any) -> None:
        """What the defaults of a function hold."""
        for name in ("__defaults__", "__kwdefaults__"):
            self.note(getattr(function, name, None), name)

    def on_effect(self, what: str) -> None:
        """Not every run has to stop at an effect."""
        if self._stop is not None:
            drawn = what.partition(".")[0] == "random"
            why = because(forwards.DRAWS_RANDOM) if drawn else because(forwards.HAS_EFFECT, name=what)
            self._stop(why, effects.leaves_trace(what))

    def changes(self) -> list[OutsideChange]:
        """What was changed. Not what functools cached: that is pure."""
        with pause_watching():
            return list(self.snapshot.changes())

    def holds(self, value: Any) -> bool:
        """Whether a value was in reach of the code from outside, and not only as an argument."""
        return self.snapshot.holds(value)

    def restore(self) -> None:
        """Put it back."""
        self.snapshot.restore()


def _parts(held: Any) -> tuple[Any, ...]:
    """What an attribute of a class calls."""
    if isinstance(held, property):
        return held.fget, held.fset, held.fdel
    return (held.__func__ if isinstance(held, (staticmethod, classmethod)) else getattr(held, "func", held),)


def names_in(ran: Execution) -> Collection[str]:
    """The attributes that a function can read."""
    facts = facts_of(ran.code)
    return EVERYTHING if facts.by_name else frozenset(facts.attribute_names(None))
