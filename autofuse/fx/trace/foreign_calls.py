"""The part of a recorder that handles uses of foreign objects (foreign_objects.py).

A plain attribute becomes a guard, and a container in an attribute is tracked like an argument. A call of a method is
recorded and repeated on the real object. During the trace the method runs on a copy, so it must change only its object.
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
from autofuse.fx.trace.code_effects import is_harmless, is_harmless_method, is_user_class
from autofuse.fx.trace.containers import Containers
from autofuse.fx.trace.contents import is_mutable
from autofuse.fx.trace.foreign_objects import ForeignObject
from autofuse.fx.trace.object_uses import ObjectCall, ObjectUses, call_and_form
from autofuse.fx.trace.open_integers import OpenInteger
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.symbolic_sizes import Length
from autofuse.fx.trace.twin import SCALARS, original_class
from autofuse.fx.trace.values import tensors
from autofuse.reasons import forwards
from autofuse.reasons.reason import because

Bind = Callable[[Any, str], Any]  # called with a part of an argument and its guard text


class ForeignCalls(Containers):
    """The part of a Recorder that handles foreign objects.

    Attributes:
        bind: creates what forward sees in place of a part of an argument.
    """

    bind: Bind

    def __init__(self, root: nn.Module, world: Any) -> None:
        super().__init__(root, world)
        self._changed: set[int] = set()  # ids of objects whose methods ran, and of what they refer to
        self._seen: dict[tuple[int, str], Any] = {}  # id of an object, name of an attribute -> what forward sees
        self._objects: dict[int, ForeignObject] = {}  # id of an object -> its stand-in
        self.object_uses = ObjectUses()

    def stand_in(self, node: Any, real: Any, text: str | None) -> ForeignObject:
        """The stand-in for an object in this trace."""
        if id(real) not in self._objects:
            self._objects[id(real)] = ForeignObject(self, node, real, text)
        return self._objects[id(real)]

    def known_result(self, result: Any) -> Any:
        return self._objects.get(id(result)) or super().known_result(result)

    def reached_by_objects(self) -> set[int]:
        """The ids of all values that the objects' copies refer to. The graph repeats writes to them."""
        todo, ids = [foreign.parts(stand_in)[1] for stand_in in self._objects.values()], set[int]()
        while todo:
            value = todo.pop()
            if id(value) not in ids and not isinstance(value, (*SCALARS, Tensor, nn.Module)):
                ids.add(id(value))
                inside = (
                    value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
                )
                todo += [*inside, *getattr(value, "__dict__", {}).values()]
                todo += [getattr(value, name) for name in slots(value) if hasattr(value, name)]
        return ids

    # Attributes.

    def foreign_attribute(self, owner: ForeignObject, name: str) -> Any:
        """Forward reads an attribute of a foreign object."""
        _, real, text = foreign.parts(owner)
        if (id(real), name) in self._seen:
            return self._seen[id(real), name]
        self._check_read(real, name)
        with self.pause_recording():
            value = getattr(real, name)
        if foreign.is_unusable(value):
            return value
        if inspect.isroutine(value) or isinstance(value, functools.partial):
            return lambda *args, **kwargs: self.foreign_call(owner, name, args, kwargs)
        self.object_uses.others = True
        if text is None or id(real) in self._changed:
            return self._read_changed(owner, name, value)
        seen = self._read_unchanged(owner, name, value, text)
        if not isinstance(value, SCALARS):
            self._seen[id(real), name] = seen
        return seen

    def _check_read(self, real: Any, name: str) -> None:
        """Check that a property, which is code of the user's, does nothing but read."""
        static = inspect.getattr_static(original_class(type(real)), name, None)
        if isinstance(static, (property, functools.cached_property)):
            self._check_method(real, name, changes=False)
        for answers in ("__getattribute__", "__getattr__"):
            if inspect.isfunction(inspect.getattr_static(original_class(type(real)), answers, None)):
                self._check_method(real, answers, changes=False)

    def _read_unchanged(self, owner: ForeignObject, name: str, value: Any, text: str) -> Any:
        """The attribute of an object that no code has changed since the start of forward."""
        reach = f"{text}.{name}"
        if isinstance(value, SCALARS):
            self.guards.equal(reach, value)
            return value
        if isinstance(value, (Tensor, tuple)) or is_mutable(value):
            with self.pause_recording():
                seen = self.bind(value, reach)
            if id(seen) in self.tracked:
                self.tracked[id(seen)].concrete = value
            return seen
        node = self.graph.call_function(getattr, (self.argument(owner), name))
        node.meta["v"] = value
        return self.stand_in(node, value, reach)

    def _read_changed(self, owner: ForeignObject, name: str, value: Any) -> Any:
        """The attribute of an object that forward computed or may have changed."""
        _, real, _ = foreign.parts(owner)
        if isinstance(value, SCALARS):
            self.refuse(because(
                forwards.READS_CHANGED_OBJECT if id(real) in self._changed else forwards.READS_COMPUTED_OBJECT,
                name=name,
            ))  # fmt: skip
        self.record_changes()
        node = self.graph.call_function(contents.read_attribute, (self.argument(owner), name))
        node.meta["v"] = value
        if not isinstance(value, (Tensor, tuple)) and not is_mutable(value):
            return self.stand_in(node, value, None)
        with self.pause_recording():
            seen = self.adopt_result(value, node, iter(()))
        if is_mutable(value) and not foreign.is_foreign(seen):
            self.track(seen, lambda: node).concrete = value
        return seen

    def foreign_store(self, owner: ForeignObject, name: str, value: Any) -> None:
        """Forward sets an attribute of a foreign object."""
        self.object_uses.others = True
        _, real, _ = foreign.parts(owner)
        cls = original_class(type(real))
        slot = name in contents.slots_of(cls)
        computed = not slot and hasattr(inspect.getattr_static(cls, name, None), "__set__")
        if isinstance(cls.__setattr__, types.FunctionType) or computed:
            self.foreign_call(owner, "__setattr__", (name, value), {})
            return
        if type(real).__module__ == "numpy" or not (hasattr(real, "__dict__") or contents.keeps_in_slots(real)):
            self.refuse(because(forwards.ASKS_OBJECT))
        nodes = [self.stored_node(value)]
        self.graph.call_function(contents.store_attributes, (self.argument(owner), (name,), nodes))
        contents.store_attributes(real, (name,), [self.example_value(value)])
        self._seen[id(real), name] = value

    # Methods.

    def foreign_call(self, owner: ForeignObject, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward calls a method of a foreign object: record the call and run it on the copy."""
        self.check_surroundings()
        _, real, _ = foreign.parts(owner)
        self._check_method(real, name)
        self.record_changes()
        nodes = tuple(map(self._passed_node, (owner, *args))), {k: self._passed_node(v) for k, v in kwargs.items()}
        given = args, kwargs
        args, kwargs = tuple(map(_example, args)), {k: _example(v) for k, v in kwargs.items()}
        before = self.versions((args, kwargs))
        with self.pause_recording():
            self.example_value(owner)
            result = self._call_example(owner, name, given, (self.example_value(args), self.example_keywords(kwargs)))
            node = self.annotate(self.graph.create_node("call_method", name, *nodes), result)
            node.meta["foreign"] = True  # so that the method `add` of an object does not count as an addition
            self.record_changes_of_others()
            self.forget_state((owner, args, kwargs))
            return self.keep_result(node, result, before, [(None,) * t.dim() for t in tensors(result)])

    def _passed_node(self, x: Any) -> Any:
        """The node for an argument of a method. The graph reads an open integer of the module at each call."""
        return self.graph.get_attr(x.attribute) if type(x) is OpenInteger else self.stored_node(x)

    def _call_example(self, owner: ForeignObject, name: str, given: Any, example: Any) -> Any:
        """The result of a method in the example. Notes the call.

        Args:
            owner: The stand-in of the object.
            name: The method.
            given: The arguments that forward passes.
            example: Their values in the example.
        """
        _, real, text = foreign.parts(owner)
        passed = (*given[0], *given[1].values())
        if text is None or any(map(_may_change, passed)):
            self.object_uses.others = True
            return getattr(real, name)(*example[0], **example[1])
        result, form = call_and_form(getattr(real, name), *example)
        args = tuple(g if type(g) is OpenInteger else e for g, e in zip(given[0], example[0], strict=True))
        kwargs = {k: g if type(g) is OpenInteger else example[1][k] for k, g in given[1].items()}
        self.object_uses.calls.append(ObjectCall(text, name, args, kwargs, form))
        return result

    def _check_method(self, real: Any, name: str, changes: bool = True) -> None:
        own_function = getattr(real, "__dict__", {}).get(name)  # a function in an attribute of the object
        if not is_harmless_method(real, name, changes) or own_function is not None and not is_harmless(own_function):
            kind = original_class(type(real)).__name__
            self.refuse(because(forwards.CALLS_OBJECT, kind=kind, name=name))

    def forget_state(self, x: Any) -> None:
        """Other code has used these objects, so forget what was known about them."""
        for stand_in in _foreign_in(x):
            todo = [foreign.parts(stand_in)[1]]
            while todo:
                value = todo.pop()
                is_users = is_user_class(original_class(type(value)))
                if id(value) in self._changed or isinstance(value, (*SCALARS, Tensor, nn.Module, type)):
                    continue
                if is_users:
                    self._changed.add(id(value))
                for key in [k for k in self._seen if k[0] == id(value)]:
                    if not is_users and getattr(value, key[1], None) is not self._seen[key]:
                        self._changed.add(id(value))
                    del self._seen[key]
                todo += value if isinstance(value, tuple) else contents.state_of(value).values()

    def foreign_fact(self, owner: ForeignObject, text: str, answer: object) -> None:
        """Guard that the expression `text`, with `{0}` for the object, has this value. "" is always refused."""
        _, real, reach = foreign.parts(owner)
        self.object_uses.others = True
        if not text or reach is None or id(real) in self._changed:
            self.refuse(because(forwards.ASKS_OBJECT))
        self.guards.equal(text.format(reach), answer)

    def foreign_answer(self, owner: ForeignObject, name: str) -> None:
        """Check that the method that answers a question about the object has no side effects."""
        real = foreign.parts(owner)[1]
        self.object_uses.others = True
        if is_user_class(original_class(type(real))):
            self._check_method(real, name, changes=False)


def _example(x: Any) -> Any:
    return x.example if type(x) is OpenInteger else x


def _may_change(x: Any) -> bool:
    """Whether an argument of a method is an object or a container, whose state differs between calls."""
    if isinstance(x, tuple):
        return any(map(_may_change, x))
    return type(x) is not OpenInteger and not isinstance(x, (*SCALARS, Tensor, Length))


def holds_objects(x: Any) -> bool:
    """Whether a value is the stand-in of an object, or contains one."""
    return next(_foreign_in(x), None) is not None


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
