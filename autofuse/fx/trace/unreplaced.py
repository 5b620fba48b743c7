"""Builds tests that functions, classes and modules are still bound to the names to which they were bound.

A test is one expression of comparisons by identity, compiled once. A call costs tens of nanoseconds for each name.
Equal tests are the same function, so guards that use them are equal too. Generated code evaluates a shorter expression
inline for the usual case (`usual_case`), and calls the function only if that fails.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace.cached_tensors import is_unwritten
from autofuse.fx.trace.effects import is_library, is_standard
from autofuse.fx.trace.own_forward import ENTRY, calls_plainly, own_function
from autofuse.torch_private import assumed_constant, module_call

_MAX_TESTS = 4096
_tests_by_key: dict[tuple[Any, ...], Callable[[], bool]] = {}


@dataclass
class Comparisons:
    """Comparisons, the objects that they compare, and a description.

    Attributes:
        about: What the comparisons check, for messages.
        tests: The expressions. `<0>` stands for the first object.
        usual: For each test, a shorter expression that implies it, or the test itself.
        objects: The objects that the expressions name.
    """

    about: str
    tests: list[str] = field(default_factory=list)
    usual: list[str] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)

    def add(self, template: str, *objects: Any, usual: str = "") -> None:
        """Adds one comparison.

        Args:
            template: The expression. `{0}` stands for the first object.
            objects: The objects that it compares.
            usual: A shorter expression that implies it, if there is one.
        """
        places = range(len(self.objects), len(self.objects) + len(objects))
        named = [f"<{place}>" for place in places]
        self.tests.append(template.format(*named))
        self.usual.append((usual or template).format(*named))
        self.objects += objects


@dataclass(frozen=True)
class UsualCase:
    """An expression that usually holds, and that implies the whole test.

    Attributes:
        text: The expression.
        names: The objects that it names.
    """

    text: str
    names: Mapping[str, Any]


_USUAL = "_autofuse_usual_case"


def usual_case(test: object) -> UsualCase | None:
    """Returns the usual case of a test that `combined_test` made, or None for any other function."""
    found: UsualCase | None = getattr(test, _USUAL, None)
    return found


def combined_test(parts: Iterable[Comparisons]) -> Callable[[], bool]:
    """Returns one test for all comparisons of all parts."""
    parts = list(parts)
    key = tuple((*part.tests, *map(id, part.objects)) for part in parts)
    if key in _tests_by_key:
        return _tests_by_key[key]
    scope: dict[str, Any] = {"own_function": own_function, "calls_plainly": calls_plainly}
    names: dict[int, str] = {}
    texts: list[str] = []
    usual: list[str] = []
    for part in parts:
        names_here = [names.setdefault(id(o), f"k{len(names)}") for o in part.objects]
        scope.update(zip(names_here, part.objects, strict=True))
        texts += [_with_names(text, names_here) for text in part.tests]
        usual += [_with_names(text, names_here) for text in part.usual]
    exec(f"def unreplaced():\n    return {' and '.join(texts) or 'True'}", scope)
    test: Callable[[], bool] = scope["unreplaced"]
    test.__qualname__ = "; ".join(dict.fromkeys(part.about for part in parts))
    setattr(test, _USUAL, UsualCase(" and ".join(usual) or "True", scope))
    if len(_tests_by_key) > _MAX_TESTS:
        _tests_by_key.clear()
    _tests_by_key[key] = assumed_constant(test)
    return _tests_by_key[key]


_PLACE = re.compile(r"<(\d+)>")


def _with_names(text: str, names: list[str]) -> str:
    return _PLACE.sub(lambda found: names[int(found[1])], text)


def unreplaced_names(namespace: dict[str, Any], bound: dict[str, Any], absent: Collection[str] = ()) -> Comparisons:
    """Tests that names of a namespace are bound to these objects, and that the names in `absent` are unbound."""
    part = Comparisons(f"what forward uses of {namespace.get('__name__')} is unreplaced")
    for name, value in bound.items():
        part.add(f"{{0}}[{name!r}] is {{1}}", namespace, value)
    for name in sorted(absent):
        part.add(f"{name!r} not in {{0}}", namespace)
    return part


def unreplaced_forwards(classes: Iterable[type]) -> Comparisons:
    """Tests that instances of these classes would still run the same original forwards."""
    found = list(dict.fromkeys(classes))
    part = Comparisons(f"the forward of {', '.join(cls.__name__ for cls in found)} is unreplaced")
    for cls in found:
        function = own_function(cls.forward)  # type: ignore[attr-defined]
        part.add("({0}.forward is {1} or own_function({0}.forward) is {1})", cls, function)
        part.add("({0}.__call__ is {1} or calls_plainly({0}.__call__))", cls, module_call)
    return part


def unreplaced_methods(cls: type, names: Collection[str]) -> Comparisons:
    """Tests that a class still has the same methods and properties under these names.

    A method that is inherited from an immutable class can be replaced only by adding an attribute to `cls`. While the
    number of attributes is the same, the names need not be tested one by one.
    """
    part = Comparisons(f"what forward uses of {cls.__name__} is unreplaced")
    inherited: list[str] = []
    objects: list[Any] = [_namespace(cls), cls]
    for name in sorted(names):
        value = getattr(cls, name)
        kept = value is getattr(cls, name)  # a method that is created at each access is compared with `==`
        if not _is_inherited_from_immutable(cls, name):
            part.add(f"{{0}}.{name} {'is' if kept else '=='} {{1}}", cls, value)
            continue
        inherited.append(f"{{1}}.{name} {'is' if kept else '=='} {{{len(objects)}}}")
        objects.append(value)
    if inherited:
        as_many = f"len({{0}}) == {len(vars(cls))}"
        part.add(f"({as_many} or {' and '.join(inherited)})", *objects, usual=as_many)
    return part


def unshadowed(cls: type, names: Collection[str]) -> Comparisons:
    """Tests that a user's class has no attribute with the name of a tensor or child of its instances.

    Python would find such an attribute first.
    """
    part = Comparisons(f"no attribute of {cls.__name__} has the name of a tensor or a child")
    for each in cls.__mro__:
        if each.__module__.partition(".")[0] not in ("torch", "builtins"):
            for name in sorted(names):
                part.add(f"{name!r} not in {{0}}", _namespace(each))
    return part


# Methods that Python looks up in a class for an operation that no code names: `if cfg`, `cfg.eps`, `callable(cfg)`.
_IMPLICIT = frozenset(
    f"__{word}__"
    for word in "bool len call iter next contains getitem eq ne lt le gt ge hash index int float complex enter exit "
    "getattr getattribute add radd sub rsub mul rmul truediv rtruediv floordiv mod pow neg abs format str".split()
)


# Of these, a class of a library that has one of its own is compared, because forward may have called it.
_COMPARED = _IMPLICIT & frozenset(
    f"__{word}__" for word in "bool len iter next contains getitem eq getattr getattribute".split()
)


def without_new_methods(cls: type, runs: bool = False) -> Comparisons:
    """Tests that a class gets or loses no method that Python looks up implicitly, such as `__bool__`.

    Those of a class of torch or Python are compared, too. `__call__` of modules has a test of its own.

    Args:
        cls: The class.
        runs: Whether its forward is the one that is rewritten. A class gets one more attribute with its dispatcher.
    """
    part = Comparisons(f"no special method of {cls.__name__} is new or gone")
    namespace, count = _namespace(cls), len(vars(cls)) - (ENTRY in vars(cls))
    here, missing = _once(_IMPLICIT.intersection(vars(cls))), _once(_IMPLICIT.difference(vars(cls)))
    may_dispatch = issubclass(cls, nn.Module) and "forward" in vars(cls) and not belongs_to_library(cls)
    exact = f"len({{0}}) == {count}" + (f" + ({ENTRY!r} in {{0}})" if may_dispatch else "")
    usual = f"len({{0}}) == {count + 1}" if may_dispatch and runs else exact
    part.add(f"({exact} or {{1}}.isdisjoint({{0}}) and {{2}} <= {{0}}.keys())", namespace, missing, here, usual=usual)
    for name in sorted(here & _COMPARED if belongs_to_library(cls) else ()):
        part.add(f"{{0}}[{name!r}] is {{1}}", namespace, vars(cls)[name])
    return part


def without_attributes(cls: type, names: Collection[str]) -> Comparisons:
    """Tests that a class gets no attribute of these names."""
    part = Comparisons(f"{cls.__name__} has no attribute {', '.join(sorted(names))}")
    as_many = f"len({{0}}) == {len(vars(cls))}"
    part.add(f"({as_many} or {{1}}.isdisjoint({{0}}))", _namespace(cls), _once(frozenset(names)), usual=as_many)
    return part


def belongs_to_library(cls: type) -> bool:
    """Whether a class belongs to Python, to torch or to another library that only computes."""
    return is_library(cls.__module__) or is_standard(cls.__module__)


@cache
def _once(names: frozenset[str]) -> frozenset[str]:
    """Returns the same object for equal sets, so that equal tests are the same function."""
    return names


@cache
def _namespace(cls: type) -> Mapping[str, Any]:
    """Returns one view of a class's attributes. `vars` returns a new view each time."""
    return vars(cls)


def _operators() -> frozenset[str]:
    """Returns the methods behind Tensor's operators that it inherits. One test shows that none of them was replaced."""
    words = [word for word in vars(operator) if not word.startswith("_")]
    slots = {f"__{reflected}{word}__" for word in words for reflected in ("", "r")}
    return frozenset(n for n in slots if hasattr(Tensor, n) and _is_inherited_from_immutable(Tensor, n))


_IS_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def _is_inherited_from_immutable(cls: type, name: str) -> bool:
    definer = next((c for c in cls.__mro__ if name in vars(c)), cls)
    return definer is not cls and all(c.__flags__ & _IS_IMMUTABLE for c in cls.__mro__[1:])


OPERATORS = _operators()


def uncleared_cache(function: Any) -> Comparisons:
    """Tests that a functools cache was neither cleared nor extended."""
    part = Comparisons(f"the cache of {function} is what it was")
    part.add(f"{{0}}.cache_info().misses == {function.cache_info().misses}", function)
    return part


def unwritten_cache(function: Any) -> Comparisons:
    """Tests that no tensor in a functools cache was written to."""
    part = Comparisons(f"what the cache of {function.__qualname__} holds is unwritten")
    part.add("{0}({1})", is_unwritten, function)
    return part


def unreplaced_functions(functions: Iterable[types.FunctionType]) -> Comparisons:
    """Tests that functions still have the same code and the same defaults."""
    found = list(functions)
    part = Comparisons(f"the code and the defaults of {', '.join(f.__qualname__ for f in found)} are unreplaced")
    for function in found:
        part.add("{0}.__code__ is {1}", function, function.__code__)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name) is not None:
                part.add(f"{{0}}.{name} is {{1}}", function, getattr(function, name))
    return part
