"""What a recorder does when forward touches a foreign object (foreign_objects.py).

Plain attributes become guards, containers among them are watched like arguments, calls of methods are written down and
repeated on the real object. A method is run on a copy while it is read, so it must be one that changes its object only.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace import contents
from autofuse.fx.trace import foreign_objects as foreign
from autofuse.fx.trace.code_effects import is_harmless, is_harmless_method, is_users_class
from autofuse.fx.trace.containers import Containers
from autofuse.fx.trace.contents import is_mutable
from autofuse.fx.trace.foreign_objects import ForeignObject
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.twin import SCALARS, original_class
from autofuse.fx.trace.values import tensors
from autofuse.reasons import forwards
from autofuse.reasons.reason import because

Bind = Callable[[Any, str], Any]  # a value that came with the arguments, and how a guard reaches it


class ForeignCalls(Containers):
    """What a Recorder hears of foreign objects. `bind` makes what forward gets to see of an argument."""

    bind: Bind

    def __init__(self, root: nn.Module, world: Any) -> None:
        super().__init__(root, world)
        self._changed: set[int] = set()  # ids of objects whose methods were called, and of what they reach
        self._seen: dict[tuple[int, str], Any] = {}  # id of an object, a name -> what forward has in hand
        self._objects: dict[int, ForeignObject] = {}  # id of an object -> its stand-in

    def stand_in(self, node: Any, real: Any, text: str | None) -> ForeignObject:
        """What stands for an object in this trace."""
        if id(real) not in self._objects:
            self._objects[id(real)] = ForeignObject(self, node, real, text)
        return self._objects[id(real)]

    def known_result(self, result: Any) -> Any:
        return self._objects.get(id(result)) or super().known_result(result)

    def reached_by_objects(self) -> set[int]:
        """The ids of what the copies hold that stand for objects: what is written to it is repeated on theirs."""
        todo, found = [foreign.parts(made)[1] for made in self._objects.values()], set[int]()
        while todo:
            value = todo.pop()
            if id(value) not in found and not isinstance(value, (*SCALARS, Tensor, nn.Module)):
                found.add(id(value))
                inside = (
                    value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
                )
                todo += [*inside, *getattr(value, "__dict__", {}).values()]
                todo += [getattr(value, name) for name in slots(value) if hasattr(value, name)]
        return found

    # Attributes.

    def foreign_attribute(self, owner: ForeignObject, name: str) -> Any:
        _, real, text = foreign.parts(owner)
        if (id(real), name) in self._seen:
            return self._seen[id(real), name]
        self._check_read(real, name)
        with self.pause_recording():
            value = getattr(real, name)
        if foreign.is_untouchable(value):
            return value
        if inspect.isroutine(value) or isinstance(value, functools.partial):
            return lambda *args, **kwargs: self.foreign_call(owner, name, args, kwargs)
        if text is None or id(real) in self._changed:
            return self._read_now(owner, name, value)
        made = self._read_first(owner, name, value, text)
        if not isinstance(value, SCALARS):
            self._seen[id(real), name] = made
        return made

    def _check_read(self, real: Any, name: str) -> None:
        """A property is code of the user's: it must do nothing but read."""
        static = inspect.getattr_static(original_class(type(real)), name, None)
        if isinstance(static, (property, functools.cached_property)):
            self._check_method(real, name, changes=False)
        for answers in ("__getattribute__", "__getattr__"):
            if inspect.isfunction(inspect.getattr_static(original_class(type(real)), answers, None)):
                self._check_method(real, answers, changes=False)

    def _read_first(self, owner: ForeignObject, name: str, value: Any, text: str) -> Any:
        """What the object held when forward was called: nobody has changed it since."""
        reach = f"{text}.{name}"
        if isinstance(value, SCALARS):
            self.guards.equal(reach, value)
            return value
        if isinstance(value, (Tensor, tuple)) or is_mutable(value):
            with self.pause_recording():
                made = self.bind(value, reach)
            if id(made) in self.tracked:
                self.tracked[id(made)].concrete = value
            return made
        node = self.graph.call_function(getattr, (self.argument(owner), name))
        node.meta["v"] = value
        return self.stand_in(node, value, reach)

    def _read_now(self, owner: ForeignObject, name: str, value: Any) -> Any:
        """What an object holds that was computed, or changed, on the way."""
        _, real, _ = foreign.parts(owner)
        if isinstance(value, SCALARS):
            self.refuse(because(
                forwards.READS_CHANGED_OBJECT if id(real) in self._changed else forwards.READS_COMPUTED_OBJECT,
                name=name,
            ))  # fmt: skip
        self.write_down()
        made = self.graph.call_function(contents.read_attribute, (self.argument(owner), name))
        made.meta["v"] = value
        if not isinstance(value, (Tensor, tuple)) and not is_mutable(value):
            return self.stand_in(made, value, None)
        with self.pause_recording():
            found = self.adopt_result(value, made, iter(()))
        if is_mutable(value) and not foreign.is_foreign(found):
            self.track(found, lambda: made).concrete = value
        return found

    def foreign_store(self, owner: ForeignObject, name: str, value: Any) -> None:
        """Forward assigns to an attribute."""
        _, real, _ = foreign.parts(owner)
        cls = original_class(type(real))
        slot = name in contents.slots_of(cls)
        computed = not slot and hasattr(inspect.getattr_static(cls, name, None), "__set__")
        if isinstance(cls.__setattr__, types.FunctionType) or computed:
            self.foreign_call(owner, "__setattr__", (name, value), {})
            return
        if type(real).__module__ == "numpy" or not (hasattr(real, "__dict__") or contents.keeps_in_slots(real)):
            self.refuse(because(forwards.ASKS_OBJECT))
        given = [self.kept_node(value)]
        self.graph.call_function(contents.store_attributes, (self.argument(owner), (name,), given))
        contents.store_attributes(real, (name,), [self.lent(value)])
        self._seen[id(real), name] = value

    # Methods.

    def foreign_call(self, owner: ForeignObject, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.check_surroundings()
        _, real, _ = foreign.parts(owner)
        self._check_method(real, name)
        self.write_down()
        given = tuple(map(self.kept_node, (owner, *args))), {k: self.kept_node(v) for k, v in kwargs.items()}
        before = self.versions((args, kwargs))
        with self.pause_recording():
            self.lent(owner)
            result = getattr(real, name)(*self.lent(args), **self.lent_by_name(kwargs))
            made = self.annotate(self.graph.create_node("call_method", name, *given), result)
            made.meta["foreign"] = True  # `add` of an object is no addition
            self.take_back()
            self.touched((owner, args, kwargs))
            return self.keep_result(made, result, before, [(None,) * t.dim() for t in tensors(result)])

    def _check_method(self, real: Any, name: str, changes: bool = True) -> None:
        held = getattr(real, "__dict__", {}).get(name)  # a function that the object keeps
        if not is_harmless_method(real, name, changes) or held is not None and not is_harmless(held):
            kind = original_class(type(real)).__name__
            self.refuse(because(forwards.CALLS_OBJECT, kind=kind, name=name))

    def touched(self, x: Any) -> None:
        """Others have had these objects in hand: what was known of them is no longer."""
        for known in _foreign_in(x):
            todo = [foreign.parts(known)[1]]
            while todo:
                value = todo.pop()
                users = is_users_class(original_class(type(value)))
                if id(value) in self._changed or isinstance(value, (*SCALARS, Tensor, nn.Module, type)):
                    continue
                if users:
                    self._changed.add(id(value))
                for key in [k for k in self._seen if k[0] == id(value)]:
                    if not users and getattr(value, key[1], None) is not self._seen[key]:
                        self._changed.add(id(value))
                    del self._seen[key]
                todo += value if isinstance(value, tuple) else contents.state_of(value).values()

    def foreign_fact(self, owner: ForeignObject, text: str, answer: object) -> None:
        _, real, reach = foreign.parts(owner)
        if not text or reach is None or id(real) in self._changed:
            self.refuse(because(forwards.ASKS_OBJECT))
        self.guards.equal(text.format(reach), answer)

    def foreign_answer(self, owner: ForeignObject, name: str) -> None:
        """Asks the copy, which must answer without side effects."""
        real = foreign.parts(owner)[1]
        if is_users_class(original_class(type(real))):
            self._check_method(real, name, changes=False)


def _foreign_in(x: Any) -> Iterator[ForeignObject]:
    """The stand-ins in a value."""
    if foreign.is_foreign(x):
        yield x
    elif isinstance(x, dict):
        for v in x.values():
            yield from _foreign_in(v)
    elif isinstance(x, (tuple, list)):
        for v in x:
            yield from _foreign_in(v)
