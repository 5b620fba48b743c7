"""Checks whether the function is passed to code that does more with it than call it.

- A decomposition of `silu` replaces `silu` itself, so it must not call it.
- A pattern is compared with other code, so its text must stay.
- TorchScript compiles only calls of torch's functions. Under autocast a script computes in another dtype than torch's
  activations and norms return.

A decorator that only calls or stores the function is harmless.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.reasons import code_that_runs
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import DefinedFunction, FileScope
from autofuse.source.evidence.claim import Claim, Missing

# Words in the names of callables that take a function as an implementation, a pattern, or source text.
_IMPLEMENTATION_WORDS = re.compile(
    r"decomp|lowering|symbolic|pattern|replacement|custom_op|custom_vjp|custom_grad|py_impl|register_impl|implements|"
    r"impl_abstract|register_fake|register_kernel|register_autograd|register_meta|meta_for|defvjp|"
    r"converter|translat|onnxscript|triton|numba|njit|getsource|torch_function|torch_dispatch|aten"
)
_PATTERN_NAME = re.compile(r"(^|_)(pattern|replacement|decomp(osition)?)(_|$|\d)")
_IMPLEMENTATION_NAMES = frozenset(
    "impl py_impl fake define kernel fallthrough op jit vectorize guvectorize script_fn".split()
)
_SCRIPT_COMPILERS = re.compile(
    r"(^|\.)jit\.(script|script_method|script_if_tracing|interface|export)$|^script(_method)?$"
)
_REGISTRATION_WORDS = re.compile(r"register|overload|override|hijack|patch|replaces?_")
_HARMLESS = re.compile(
    r"(^|\.)(no_grad|inference_mode|enable_grad|set_grad_enabled|autocast|custom_fwd|custom_bwd|wraps|lru_cache|cache|"
    r"cached_property|staticmethod|classmethod|property|setter|getter|deleter|abstractmethod|override|final|overload|"
    r"contextmanager|disable|allow_in_graph|ignore|unused|fixture|parametrize|register_buffer|checkpoint|compile|"
    r"overrides|register_to_config|register_model|register_module)$"
)


def function_is_only_called(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails if the function is passed to code that does more than call it; reports code that may."""
    d = claim.defined
    if _PATTERN_NAME.search(d.function.name):
        why = because(code_that_runs.OTHER_MEANING, how="by its name, is a pattern that other code is compared with")
        yield Fails(why, enables=False, text=d.function.name, line=d.function.lineno)
        return
    for receiver in _find_receivers(d):
        if _SCRIPT_COMPILERS.search(receiver.name):
            if not _is_torch_call(claim.edit.becomes, d.scope):
                yield _fails(receiver, "compiles it, and cannot compile the new call")
                return
            # Autocast casts the operands of attention before and after the edit, so attention needs no assumption.
            if claim.site.rule.replacement.operation != "attention":
                yield Missing(f"assumes that the script of `{receiver.text}` does not run under autocast")
        elif _is_implementation_for(receiver, d.scope):
            yield _fails(receiver, "uses it as an operation, a pattern or a kernel")
            return
        elif _REGISTRATION_WORDS.search(receiver.name.rpartition(".")[2]) and not _HARMLESS.search(receiver.name):
            if not _is_storing_decorator(receiver.name, d.scope):
                yield Missing(f"assumes that `{receiver.text}` does no more than call the function")
    yield from _stored_compilers(claim)


def _stored_compilers(claim: Claim) -> Iterator[Missing]:
    """Reports `torch.jit.script` if the file stores or passes it, and may call it on the function later."""
    scope = claim.defined.scope
    if not _is_torch_call(claim.edit.becomes, scope):
        named = (n for n in scope.index(_stored_names) if _SCRIPT_COMPILERS.search(scope.name_of(n) or ""))
        for node in list(named)[:1]:
            text = f"`{ast.unparse(node)}` in line {node.lineno}"
            yield Missing(f"assumes that {text} does not compile the code, because it cannot compile the new call")


def _stored_names(tree: ast.Module) -> list[ast.expr]:
    """Returns the expressions that name a compiler of TorchScript without calling it at once."""
    nodes = node_index(tree)
    called = {id(n.func) for n in nodes.of(ast.Call)}
    called |= {id(x) for n in (*nodes.functions(), *nodes.of(ast.ClassDef)) for x in n.decorator_list}
    names: list[ast.Name | ast.Attribute] = [*nodes.of(ast.Name), *nodes.of(ast.Attribute)]
    loaded = (n for n in names if isinstance(n.ctx, ast.Load) and id(n) not in called)
    return [n for n in loaded if (n.attr if isinstance(n, ast.Attribute) else n.id) in _SCRIPT_NAMES]


@dataclass(frozen=True, eq=False)
class _Receiver:
    """A decorator, a callable or a table that a function is passed to.

    Attributes:
        node: Its expression.
        name: Its name, qualified if it is imported; "" for a table.
        arguments: Its other arguments, or the key in the table.
    """

    node: ast.expr
    name: str
    arguments: list[ast.expr]

    @property
    def text(self) -> str:
        return ast.unparse(self.node).splitlines()[0]


def _fails(receiver: _Receiver, how: str) -> Fails:
    why = because(code_that_runs.OTHER_MEANING, how=how)
    return Fails(why, enables=False, text=receiver.text, line=receiver.node.lineno)


def _find_receivers(d: DefinedFunction) -> Iterator[_Receiver]:
    """Yields everything the function is passed to: decorators, calls, and tables."""
    for decorator in getattr(d.function, "decorator_list", ()):
        yield _Receiver(decorator, _qualified_name(decorator, d.scope), _arguments(decorator))
        if isinstance(decorator, ast.Name):  # an alias: MyFunction = torch.jit.script_method
            for meaning in d.scope.index(_assigned_names)[decorator.id]:
                yield _Receiver(decorator, _qualified_name(meaning, d.scope), [])
    # `torch.jit.script` on a class or a module also compiles its forward.
    classes = _enclosing_classes(d)
    for decorator in (decorator for c in classes for decorator in c.decorator_list):
        if _SCRIPT_COMPILERS.search(name := _qualified_name(decorator, d.scope)):
            yield _Receiver(decorator, name, [])
    index = d.scope.index(_ReceiverIndex)
    for name in sorted(_expressions_of_function(d, classes)):
        yield from (
            _Receiver(n, _qualified_name(n, d.scope) if is_call else "", arguments)
            for n, is_call, arguments in index.receivers[name]
        )
    if d.owner is not None:
        scripts = {k for k, full in d.scope.qualified_names.items() if _SCRIPT_COMPILERS.search(full)} | _SCRIPT_NAMES
        for function in (f for k in sorted(scripts) for f in index.callees_by_name[k]):
            if _SCRIPT_COMPILERS.search(name := _qualified_name(function, d.scope)):
                yield _Receiver(function, name, _arguments(function))


def _assigned_names(tree: ast.Module) -> defaultdict[str, list[ast.expr]]:
    """Returns the names and attributes that a file assigns to each name."""
    meanings: defaultdict[str, list[ast.expr]] = defaultdict(list)
    for n in node_index(tree).of(ast.Assign):
        if isinstance(n.value, (ast.Attribute, ast.Name)):
            for t in n.targets:
                if isinstance(t, ast.Name):
                    meanings[t.id].append(n.value)
    return meanings


_SCRIPT_NAMES = frozenset("script script_method script_if_tracing interface export".split())


class _ReceiverIndex:
    """The receivers to which a file passes its functions, by the expression that names the function."""

    def __init__(self, tree: ast.Module) -> None:
        self.receivers: defaultdict[str, list[tuple[ast.expr, bool, list[ast.expr]]]] = defaultdict(list)
        # The key is the last part of the callee's name.
        self.callees_by_name: defaultdict[str, list[ast.expr]] = defaultdict(list)
        nodes = node_index(tree)
        for n in nodes.of(ast.Call):
            arguments = [*n.args, *(k.value for k in n.keywords)]
            for name in {_function_expression(a) for a in arguments} - {""}:
                self.receivers[name].append((n.func, True, _arguments(n.func)))
            if any(isinstance(a, ast.Name) for a in arguments):
                self.callees_by_name[getattr(n.func, "attr", getattr(n.func, "id", ""))].append(n.func)
        for table in nodes.of(ast.Dict):
            for k, v in zip(table.keys, table.values, strict=True):
                if k is not None and (name := _function_expression(v)):
                    self.receivers[name].append((k, False, [k]))
        for s in nodes.of(ast.Assign):
            if name := _function_expression(s.value):
                self.receivers[name] += [(t, False, [t.slice]) for t in s.targets if isinstance(t, ast.Subscript)]


def _enclosing_classes(d: DefinedFunction) -> list[ast.ClassDef]:
    return [c.node for c in d.scope.lineage(d.owner)][:1]


def _expressions_of_function(d: DefinedFunction, classes: list[ast.ClassDef]) -> set[str]:
    """Returns the expressions that name the function: `f`, `Attention.forward`, `Attention()`.

    The instance counts because TorchScript compiles a module together with its forward.
    """
    if d.owner is None:
        return {d.function.name} if not d.symbol.count(".") else set()
    names = {c.name for c in classes}
    return {f"{n}.{d.function.name}" for n in names} | {f"{n}()" for n in names}


def _function_expression(node: ast.expr) -> str:
    """Returns the text by which an argument names a function or an instance; "" if it names neither."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return f"{node.func.id}()" if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _qualified_name(receiver: ast.expr, scope: FileScope) -> str:
    """Returns the name of a decorator or a callable, qualified if it is imported."""
    while isinstance(receiver, ast.Call):
        receiver = receiver.func
    return scope.name_of(receiver) or ast.unparse(receiver)


def _arguments(node: ast.expr) -> list[ast.expr]:
    return [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []


def _is_implementation_for(receiver: _Receiver, scope: FileScope) -> bool:
    """Whether the function implements an operation: by the receiver's name, or by an operation among its arguments."""
    if receiver.name and _HARMLESS.search(receiver.name):
        return False
    by_name = (
        _IMPLEMENTATION_WORDS.search(receiver.name.lower()) or receiver.name.rpartition(".")[2] in _IMPLEMENTATION_NAMES
    )
    return bool(by_name) or any(_is_operation(t, scope) for t in receiver.arguments)


def _is_operation(node: ast.expr, scope: FileScope) -> bool:
    """Whether an expression names an operation: `torch.nn.functional.silu`, `torch.ops.aten.silu`, "aten::silu"."""
    for part in node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and "::" in part.value:
            return True
        name = scope.name_of(part) or ast.unparse(part)
        last = name.rpartition(".")[2]
        if name.startswith(("torch.ops.", "aten.", "prims.")):
            return True
        if name.startswith(("torch.nn.functional.", "torch.Tensor.", "torch.special.")) and last.islower():
            return True
        if name.startswith("torch.") and name.count(".") == 1 and last in _OPERATION_NAMES:
            return True
    return False


# Functions in the namespace `torch` that code passes to name an operation. Other names there are dtypes and so on.
_OPERATION_NAMES = frozenset(
    """
    softmax log_softmax sigmoid tanh relu gelu silu erf exp bmm matmul baddbmm mm einsum layer_norm rms_norm dropout
    rsqrt var_mean logsumexp
    """.split()
)


def _is_torch_call(becomes: str, scope: FileScope) -> bool:
    first, _, rest = becomes.partition(".")
    return f"{scope.qualified_names.get(first, first)}.{rest}".startswith("torch.")


def _is_storing_decorator(name: str, scope: FileScope) -> bool:
    """Whether a decorator that this file defines only stores the function and returns it."""
    helper = scope.functions.get(name.partition(".")[0])
    if helper is None or "." in name:
        return False
    inner_functions = [s for s in helper.body if isinstance(s, Function)]
    decorator = inner_functions[-1] if inner_functions else helper
    return _stores_and_returns(decorator)


def _stores_and_returns(function: Function) -> bool:
    """Whether `function` only stores its argument and returns it."""
    arguments = function.args.args
    if len(arguments) != 1 or not function.body:
        return False
    last = function.body[-1]
    returns_argument = (
        isinstance(last, ast.Return) and isinstance(last.value, ast.Name) and last.value.id == arguments[0].arg
    )
    return returns_argument and all(_is_storing_statement(s) for s in function.body[:-1])


def _is_storing_statement(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return all(isinstance(t, (ast.Subscript, ast.Attribute, ast.Name)) for t in statement.targets) and not any(
            isinstance(n, ast.Call) for n in ast.walk(statement.value)
        )
    if isinstance(statement, (ast.If, ast.Assert, ast.Raise)):
        return True
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("append", "add")
    )
