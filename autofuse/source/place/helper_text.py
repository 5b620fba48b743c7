"""Writes what a helper computes as an expression of its caller.

The expression of the helper gets the caller's names for its parameters. Its local names are replaced by the expressions
they were assigned. It is written only if every name means the same in the caller, and every call is still made once.
"""

from __future__ import annotations

import ast
from copy import deepcopy

from autofuse.ir.graph import CALL, CONST, PARAMETER, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES, OPS
from autofuse.source.capture.bindings import bound_names
from autofuse.source.capture.captured import CapturedFunction, HelperText, ValuePosition, is_unconditional
from autofuse.source.capture.scope import FileScope

_BINDING_EXPRESSIONS = (
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.NamedExpr,
    ast.Starred,
)
_MAX_TEXT = 110  # characters, so that it fits on one line


def text_before_call(captured: CapturedFunction, scope: FileScope, value: Value) -> tuple[ValuePosition, str] | None:
    """Finds the text of a value that a helper computes, for use just before the statement that calls the helper.

    Returns:
        The position of the call of the helper and the text, or None if there is no such text.
    """
    for text in captured.helper_texts.get(value, ()):
        call = _only_call(text)
        if call is None:
            continue
        code = _CallerText(captured, scope, text).text()
        if code is not None:
            return ValuePosition(
                call, text.statement, text.caller_names, text.region, attribute_writes=text.attribute_writes
            ), code
    return None


def _only_call(text: HelperText) -> ast.Call | None:
    """The call of the helper, if the statement only binds a name to its result."""
    call = text.statement.value if isinstance(text.statement, ast.Assign) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return None
    name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
    arguments = [*call.args, *(k.value for k in call.keywords)]
    is_simple = all(isinstance(a, (ast.Name, ast.Constant)) for a in arguments)
    return call if name == text.helper.name and is_simple else None


class _CallerText:
    """Writes one expression of a helper with the names of its caller."""

    def __init__(self, captured: CapturedFunction, scope: FileScope, text: HelperText) -> None:
        self.captured, self.helper_text = captured, text
        self.inside, self.caller_names = bound_names(text.helper), {*bound_names(captured.function), *scope.local}
        self.values: dict[int, Value] = {}  # the expressions of the helper, for this call of it
        self.texts: dict[Value, HelperText] = {}
        for v, texts in captured.helper_texts.items():
            for t in texts:
                if t.statement is text.statement and t.helper is text.helper:
                    self.values[id(t.node)] = v
                    self.texts.setdefault(v, t)

    def text(self) -> str | None:
        """The expression, or None if it would mean something else in the caller."""
        expression = self._expression(self.helper_text)
        if expression is None:
            return None
        # Every call with side effects must be part of the text, and two of them may be written in another order.
        calls = [n for s in self.helper_text.helper.body for n in ast.walk(s) if isinstance(n, ast.Call)]
        effects = [n for n in calls if self._may_have_effects(n)]
        if len(effects) > 1 or len(effects) != self.effect_count:
            return None
        text = ast.unparse(ast.fix_missing_locations(expression))
        return text if len(text) <= _MAX_TEXT else None

    effect_count = 0  # the number of written calls that may have side effects

    def _expression(self, text: HelperText) -> ast.expr | None:
        spend()
        inside = list(ast.walk(text.node))
        # An expression in a branch of the helper may not run; one that binds names would bind them in the caller.
        is_in_branch = any(
            any(n is text.node for n in ast.walk(s)) and not is_unconditional(_position(text, s))
            for s in text.helper.body
        )
        if is_in_branch or any(isinstance(n, _BINDING_EXPRESSIONS) for n in inside) or not self._has_same_state(text):
            return None
        self.effect_count += sum(isinstance(n, ast.Call) and self._may_have_effects(n) for n in inside)
        substitutes = dict[str, ast.expr]()
        for name in sorted({n.id for n in inside if isinstance(n, ast.Name)}):
            substitute = self._name_in_caller(name, text)
            if substitute is None:
                return None
            substitutes[name] = substitute
        for name, substitute in substitutes.items():  # an expression that is inserted twice would be evaluated twice
            uses = sum(isinstance(n, ast.Name) and n.id == name for n in inside)
            if uses > 1 and not isinstance(substitute, (ast.Name, ast.Constant)):
                return None
        result = _ReplaceNames(substitutes).visit(deepcopy(text.node))
        assert isinstance(result, ast.expr)
        return result

    def _has_same_state(self, text: HelperText) -> bool:
        return text.attribute_writes == self.helper_text.attribute_writes

    def _name_in_caller(self, name: str, text: HelperText) -> ast.expr | None:
        """The caller's expression for a name of the helper."""
        if name not in self.inside:
            return None if name in self.caller_names else ast.Name(name, ast.Load())
        value = text.names.get(name)
        if value is None:
            return None
        if value.op == CONST:
            return ast.Constant(value.data) if isinstance(value.data, (int, float, str, type(None))) else None
        for outer in text.caller_names:
            if text.caller_names[outer] is value:
                return ast.Name(outer, ast.Load())
        if value.op == PARAMETER or value not in self.texts:
            return None
        return self._expression(self.texts[value])

    def _may_have_effects(self, call: ast.Call) -> bool:
        """Whether a call may have side effects. Such a call must run as often as before, in the same order."""
        v = self.values.get(id(call))
        if v is None:
            return True
        is_pure = v.op in OPS and OPS[v.op].effect != "random"
        return not (is_pure or v.op == CALL and isinstance(v.data, tuple) and v.data[0] in {*HARMLESS, *MODULES})


class _ReplaceNames(ast.NodeTransformer):
    """Replaces names by expressions."""

    def __init__(self, substitutes: dict[str, ast.expr]) -> None:
        self.substitutes = substitutes

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.substitutes[node.id]


def _position(text: HelperText, statement: ast.stmt) -> ValuePosition:
    return ValuePosition(text.node, statement, text.names)
