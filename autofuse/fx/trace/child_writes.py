"""Finds values that the children of a module write, and that their parent may read later in the same call.

A guard is evaluated before the call, so it says nothing about a value that a child writes during the call. The parent's
trace is refused if it reads such a value. Tensors are no problem: the graph reads them where the forward did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from autofuse.fx.trace.alterations import Alteration, alterations_of
from autofuse.fx.trace.code_facts import Load, facts_of
from autofuse.fx.trace.roots import NOTHING, root_of
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.twin import original_class
from autofuse.fx.trace.user_code import Execution

_WITHOUT_CONTENT = (type(None), bool, int, float, complex, str, bytes)


class ChildWrites:
    """The writes of the children that one trace has called so far.

    Args:
        modules: Returns the twins of the traced module and of all modules below it.
    """

    def __init__(self, modules: Callable[[], Iterable[nn.Module]]) -> None:
        self._modules = modules
        self._known = 0  # the number of executions that were examined
        self._stored: set[tuple[int, str]] = set()  # id of a twin, name
        self._assigned: set[str] = set()  # attributes that the children's code can assign
        self._altered: dict[int, Any] = {}  # containers and objects that the children's code can alter, by id
        self.attributes: dict[tuple[int, str], Any] = {}  # (id of an object outside, name) -> the object
        self.globals: set[tuple[int, str]] = set()  # id of a namespace, name of a global that is bound again

    def stored(self, owner: Any, name: str) -> None:
        """A child set an attribute of a twin."""
        self._stored.add((id(owner), name))

    def examine(self, ran: list[Execution]) -> None:
        """Examines the code of children that ran since the last call of this method."""
        for each in ran[self._known :]:
            if each.paused:
                self._examine(each)
        self._known = len(ran)

    def has_written(self, owner: Any, name: str, own: bool) -> bool:
        """Returns whether a child has set, or may have set, an attribute of a twin.

        Args:
            owner: The twin.
            name: The attribute.
            own: Whether `owner` is the traced module itself, to which children seldom refer.
        """
        return (id(owner), name) in self._stored or not own and name in self._assigned

    def has_altered(self, value: Any) -> bool:
        """Returns whether a child may have altered the content of a container or object."""
        return id(value) in self._altered

    def altered(self) -> Iterator[Any]:
        """Yields the containers and objects that the children may have altered."""
        return iter(self._altered.values())

    def _examine(self, ran: Execution) -> None:
        facts = facts_of(ran.code)
        self._assigned |= facts.assigned
        self.globals |= {(id(ran.namespace), name) for name in facts.stored}
        for each in alterations_of(ran.code):
            for value in self._values(ran, each):
                if each.attribute:
                    self.attributes[id(value), each.attribute] = value
                elif type(value) not in _WITHOUT_CONTENT:
                    self._altered[id(value)] = value

    def _values(self, ran: Execution, each: Alteration) -> Iterator[Any]:
        """Yields the objects that an alteration may change. Another module of a class runs the same code."""
        if each.kind == "local":
            root = ran.arguments.get(each.root, NOTHING)
            same = isinstance(root, nn.Module) and [m for m in self._modules() if type(m) is type(root)]
        else:
            root, same = root_of(ran, Load(each.kind, each.root, (), 0)), False
        for start in same or [root]:
            value = _follow(start, each.attributes)
            if value is not NOTHING:
                yield value


def _follow(value: Any, attributes: tuple[str, ...]) -> Any:
    """Returns what a chain of attributes leads to, without running any code of the user's."""
    for name in attributes:
        value = next((table[name] for table in _tables(value) if name in table), NOTHING)
        if value is NOTHING:
            return NOTHING
    return value


def _tables(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the tables in which Python looks up an attribute: of the object, then of its classes."""
    if isinstance(value, type):
        yield from (vars(cls) for cls in value.__mro__)
        return
    try:
        inside = object.__getattribute__(value, "__dict__")
    except AttributeError:  # the class has slots only
        inside = {n: getattr(value, n) for n in slots(value) if hasattr(value, n)}
    yield inside
    if isinstance(value, nn.Module):
        yield from (inside[table] for table in ("_modules", "_parameters", "_buffers"))
    yield from (vars(cls) for cls in original_class(type(value)).__mro__)
