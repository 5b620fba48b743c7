"""What a helper computes -> the same, written where the helper is called.

The expression of the helper, with the caller's names for its arguments, and what its other names were computed from in
their place. It is written only where all that it reads means the same there and each call is still made once.
"""

from __future__ import annotations

import ast
from copy import deepcopy

from autofuse.ir.graph import CALL, CONST, PARAMETER, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES, OPS
from autofuse.source.capture.bindings import bound_names
from autofuse.source.capture.captured import CapturedFunction, HelperText, ValuePosition, unconditional
from autofuse.source.capture.scope import FileScope

_OWN_NAMES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr, ast.Starred)
_LONGEST = 110  # characters: one line


def written_at_call(captured: CapturedFunction, scope: FileScope, value: Value) -> tuple[ValuePosition, str] | None:
    """The statement that calls the helper which computes `value`, and the text of `value` just before it."""
    for text in captured.helper_texts.get(value, ()):
        call = _only_call(text)
        if call is None:
            continue
        written = _Caller(captured, scope, text).text()
        if written is not None:
            return ValuePosition(call, text.statement, text.outside, text.region, forgets=text.forgets), written
    return None


def _only_call(text: HelperText) -> ast.Call | None:
    """The call of the helper, where the statement does nothing else but bind a name to its result."""
    call = text.statement.value if isinstance(text.statement, ast.Assign) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return None
    name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
    given = [*call.args, *(k.value for k in call.keywords)]
    plain = all(isinstance(a, (ast.Name, ast.Constant)) for a in given)
    return call if name == text.helper.name and plain else None


class _Caller:
    """Writes one expression of a helper as its caller would."""

    def __init__(self, captured: CapturedFunction, scope: FileScope, text: HelperText) -> None:
        self.captured, self.whole = captured, text
        self.inside, self.outside = bound_names(text.helper), {*bound_names(captured.function), *scope.local}
        self.values: dict[int, Value] = {}  # expressions of this call of the helper
        self.texts: dict[Value, HelperText] = {}
        for v, texts in captured.helper_texts.items():
            for t in texts:
                if t.statement is text.statement and t.helper is text.helper:
                    self.values[id(t.node)] = v
                    self.texts.setdefault(v, t)

    def text(self) -> str | None:
        """The expression in the caller's names; None where it means something else there."""
        made = self._written(self.whole)
        if made is None:
            return None
        acts = [n for s in self.whole.helper.body for n in ast.walk(s) if isinstance(n, ast.Call) and self._acts(n)]
        if len(acts) > 1 or len(acts) != self.acting:
            return None
        text = ast.unparse(ast.fix_missing_locations(made))
        return text if len(text) <= _LONGEST else None

    acting = 0  # how many calls that may do something were written

    def _written(self, text: HelperText) -> ast.expr | None:
        spend()
        inside = list(ast.walk(text.node))
        branching = any(
            any(n is text.node for n in ast.walk(s)) and not unconditional(_position(text, s)) for s in text.helper.body
        )
        if branching or any(isinstance(n, _OWN_NAMES) for n in inside) or not self._same_time(text):
            return None
        self.acting += sum(isinstance(n, ast.Call) and self._acts(n) for n in inside)
        put = dict[str, ast.expr]()
        for name in sorted({n.id for n in inside if isinstance(n, ast.Name)}):
            found = self._name(name, text)
            if found is None:
                return None
            put[name] = found
        for name, made in put.items():  # a call is put in once
            often = sum(isinstance(n, ast.Name) and n.id == name for n in inside)
            if often > 1 and not isinstance(made, (ast.Name, ast.Constant)):
                return None
        result = _Renamed(put).visit(deepcopy(text.node))
        assert isinstance(result, ast.expr)
        return result

    def _same_time(self, text: HelperText) -> bool:
        return text.forgets == self.whole.forgets

    def _name(self, name: str, text: HelperText) -> ast.expr | None:
        """What the caller writes for a name of the helper."""
        if name not in self.inside:
            return None if name in self.outside else ast.Name(name, ast.Load())
        held = text.names.get(name)
        if held is None:
            return None
        if held.op == CONST:
            return ast.Constant(held.data) if isinstance(held.data, (int, float, str, type(None))) else None
        for outer in text.outside:
            if text.outside[outer] is held:
                return ast.Name(outer, ast.Load())
        if held.op == PARAMETER or held not in self.texts:
            return None
        return self._written(self.texts[held])

    def _acts(self, call: ast.Call) -> bool:
        """Whether a call may do more than compute: it is made as often, and when, it was before."""
        v = self.values.get(id(call))
        if v is None:
            return True
        known = v.op in OPS and OPS[v.op].effect != "random"
        return not (known or v.op == CALL and isinstance(v.data, tuple) and v.data[0] in {*HARMLESS, *MODULES})


class _Renamed(ast.NodeTransformer):
    def __init__(self, put: dict[str, ast.expr]) -> None:
        self.put = put

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """What stands for a name."""
        return self.put[node.id]


def _position(text: HelperText, statement: ast.stmt) -> ValuePosition:
    return ValuePosition(text.node, statement, text.names)
