"""Tests of code that uses the type of a value."""

from __future__ import annotations

import textwrap
import types

import pytest

from autofuse.fx.trace.type_calls import line_of_type_use


def code_of(body: str) -> types.CodeType:
    """Returns the code of a function with this body. The body begins on line 2."""
    source = "def f(self, x, xs, flag):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    namespace: dict[str, types.FunctionType] = {}
    exec(source, namespace)
    return namespace["f"].__code__


@pytest.mark.parametrize(
    "body",
    [
        "return x if type(self.a) is A else x * 0",
        "return type(x) == torch.Tensor",
        "return REGISTRY[type(self)]",
        "return REGISTRY.get(type(self), 1)",
        "kind = type(self)\nreturn x * kind.scale",
        "return type(self)(3)(x)",
        "return super(type(self), self).forward(x)",
        "return x if type(self).__mro__[1] is A else -x",
        "return x * len(type(self).__dict__)",
        "return type(self.a if flag else self.b) is A",
        "return [m for m in xs if type(m) is A]",
        "return (lambda m: type(m) in KINDS)(x)",
        "return list(map(type, xs))",
        "return groupby(xs, key=type)",
        "return type(*xs)",
        "return f'{type(self)}'",
        "return issubclass(type(self), A)",
        "return x * len(A.__subclasses__())",
        "return not type(\n    self\n) is A",
    ],
)
def test_code_that_uses_the_type_itself_is_found(body: str) -> None:
    assert line_of_type_use(code_of(body)) == 2


@pytest.mark.parametrize(
    "body",
    [
        "return x * 2",
        "return x * type(self).scale",
        "return type(self).split(x, 2)",
        "return TABLE[type(self).__name__] * x",
        "return type(self.a).scale(type(self).depth, x)",
        "return x if isinstance(self.a, A) else -x",
        "return x if isinstance(flag, type) else -x",
        "return self.__class__(x)",
        "type = self.kind\nreturn type(x) is A",
        "return type('Made', (A,), {})",
        "return self.type(x), x.type(torch.float64)",
        "return [type(m).scale for m in xs]",
    ],
)
def test_code_that_only_reads_attributes_of_the_type_is_accepted(body: str) -> None:
    assert line_of_type_use(code_of(body)) is None


def test_the_first_such_line_is_returned() -> None:
    assert line_of_type_use(code_of("y = type(self).scale\nz = x * y\nif type(z) is int:\n    return z\nreturn y")) == 4


def test_without_column_information_every_use_counts() -> None:
    code = code_of("return x * type(self).scale")
    assert line_of_type_use(code.replace(co_linetable=b"")) is not None
