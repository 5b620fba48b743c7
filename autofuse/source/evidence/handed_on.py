"""Is the function more than what it computes? One that is handed to something that reads it, or takes it for torch's.

A decomposition of `silu` is what runs where `silu` is called, so it must not call it. A pattern is compared with other
code, so it must stay as it is written. A script compiler knows torch's functions alone. Decorators that call the
function, or keep it, change nothing. Knows syntax and the scope of a file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from autofuse.reasons import code_that_runs
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import Defined, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

# Words in the name of what takes a function for an implementation, a pattern, or a text to compile.
_TAKES_OVER = re.compile(
    r"decomp|lowering|symbolic|pattern|replacement|custom_op|custom_vjp|custom_grad|py_impl|register_impl|implements|"
    r"impl_abstract|register_fake|register_kernel|register_autograd|register_meta|meta_for|defvjp|"
    r"converter|translat|onnxscript|triton|numba|njit|getsource|torch_function|torch_dispatch|aten"
)
_EXACT = frozenset("impl py_impl fake define kernel fallthrough op jit vectorize guvectorize script_fn".split())
_SCRIPTS = re.compile(r"(^|\.)jit\.(script|script_method|script_if_tracing|interface|export)$|^script(_method)?$")
_REGISTERS = re.compile(r"register|overload|override|hijack|patch|replaces?_")
_HARMLESS = re.compile(
    r"(^|\.)(no_grad|inference_mode|enable_grad|set_grad_enabled|autocast|custom_fwd|custom_bwd|wraps|lru_cache|cache|"
    r"cached_property|staticmethod|classmethod|property|setter|getter|deleter|abstractmethod|override|final|overload|"
    r"contextmanager|disable|allow_in_graph|ignore|unused|fixture|parametrize|register_buffer|checkpoint|compile|"
    r"overrides|register_to_config|register_model|register_module)$"
)


def handed_on(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails where the function is given to something that does more than call it; Missing where that is not known."""
    d, own = claim.defined, claim.edit.becomes.partition(".")[0]
    for taker, given in _takers(d):
        text = ast.unparse(taker).splitlines()[0]
        name = _name(taker, d.scope)
        if _SCRIPTS.search(name):
            if own not in ("torch", "F") and not _is_torch(claim.edit.becomes, d.scope):
                yield _fails(text, "compiles it, and does not know the new call", taker)
                return
        elif _takes_over(name, given, d.scope):
            yield _fails(text, "takes it for more", taker)
            return
        elif _REGISTERS.search(name.rpartition(".")[2]) and not _HARMLESS.search(name):
            if not _only_keeps(name, d.scope):
                yield Missing(f"assumes that `{text}` does no more than call the function")


def _fails(text: str, how: str, node: ast.expr) -> Fails:
    return Fails(because(code_that_runs.OTHER_MEANING, how=how), enables=False, text=text, line=node.lineno)


def _takers(d: Defined) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """What the function is handed to, by decorators and by calls, and what that is told besides."""
    for decorator in getattr(d.function, "decorator_list", ()):
        yield decorator, _arguments(decorator)
    around = _classes_around(d)
    for decorator in (x for c in around for x in c.decorator_list):
        if _SCRIPTS.search(_name(decorator, d.scope)):
            yield decorator, _arguments(decorator)
    names = _names_for(d, around)
    for n in walk(d.scope.tree):
        if isinstance(n, ast.Call) and any(_mentions(a, names) for a in [*n.args, *(k.value for k in n.keywords)]):
            yield n.func, [a for a in (*n.args, *_arguments(n.func)) if not _mentions(a, names)]
        elif isinstance(n, ast.Dict):
            for key, value in zip(n.keys, n.values, strict=True):
                if key is not None and _mentions(value, names):
                    yield value, [key]
        elif isinstance(n, ast.Assign) and _mentions(n.value, names):
            for target in n.targets:
                if isinstance(target, ast.Subscript):
                    yield n.value, [target.slice]


def _classes_around(d: Defined) -> list[ast.ClassDef]:
    return [c.node for c in d.scope.lineage(d.owner)][:1]


def _names_for(d: Defined, around: list[ast.ClassDef]) -> set[str]:
    """How a file names the function: by its name, or `Attention.forward`; a module is compiled with its forward."""
    if d.owner is None:
        return {d.function.name} if not d.symbol.count(".") else set()
    classes = {c.name for c in around}
    return {f"{c}.{d.function.name}" for c in classes} | {f"{c}()" for c in classes}


def _mentions(node: ast.expr, names: set[str]) -> bool:
    """Whether an argument is the function, or a module that has it."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}" in names
        case ast.Call(func=ast.Name(id=name)):
            return f"{name}()" in names
    return False


def _name(taker: ast.expr, scope: FileScope) -> str:
    """The name of a decorator or a function, in full where it is imported."""
    while isinstance(taker, ast.Call):
        taker = taker.func
    return scope.name_of(taker) or ast.unparse(taker)


def _arguments(node: ast.expr) -> list[ast.expr]:
    return [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []


def _takes_over(name: str, given: list[ast.expr], scope: FileScope) -> bool:
    """Whether the function is taken for an operation: by the name of what takes it, or by an operation beside it."""
    last = name.rpartition(".")[2]
    if _HARMLESS.search(name):
        return False
    if _TAKES_OVER.search(name.lower()) or last in _EXACT:
        return True
    return any(_is_operation(g, scope) for g in given) and not name.startswith(("torch.testing", "torch.allclose"))


def _is_operation(node: ast.expr, scope: FileScope) -> bool:
    """`torch.nn.functional.silu`, `torch.ops.aten.silu.default`, "aten::silu"."""
    for part in node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and "::" in part.value:
            return True
        name = scope.name_of(part) or ast.unparse(part)
        last = name.rpartition(".")[2]
        if name.startswith(("torch.ops.", "aten.", "prims.")):
            return True
        if name.startswith(("torch.nn.functional.", "torch.Tensor.", "torch.special.")) and last.islower():
            return True
        if name.startswith("torch.") and name.count(".") == 1 and last in _FUNCTIONS:
            return True
    return False


# Functions of torch's own namespace that people hand in to say which one is meant; others there are dtypes and such.
_FUNCTIONS = frozenset(
    """
    softmax log_softmax sigmoid tanh relu gelu silu erf exp bmm matmul baddbmm mm einsum layer_norm rms_norm dropout
    rsqrt var_mean logsumexp
    """.split()
)


def _is_torch(becomes: str, scope: FileScope) -> bool:
    first, _, rest = becomes.partition(".")
    return f"{scope.qualified.get(first, first)}.{rest}".startswith("torch.")


def _only_keeps(name: str, scope: FileScope) -> bool:
    """Whether a decorator of this file does no more than store the function, and gives it back."""
    helper = scope.functions.get(name.partition(".")[0])
    if helper is None or "." in name:
        return False
    inner = [s for s in helper.body if isinstance(s, Function)]
    takes = inner[-1] if inner else helper
    return _keeps(takes)


def _keeps(function: Function) -> bool:
    """Whether `function` returns its argument, and only stores it."""
    arguments = function.args.args
    if len(arguments) != 1 or not function.body:
        return False
    last = function.body[-1]
    given = isinstance(last, ast.Return) and isinstance(last.value, ast.Name) and last.value.id == arguments[0].arg
    return given and all(_stores(s) for s in function.body[:-1])


def _stores(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return all(isinstance(t, (ast.Subscript, ast.Attribute, ast.Name)) for t in statement.targets) and not any(
            isinstance(n, ast.Call) for n in ast.walk(statement.value)
        )
    if isinstance(statement, (ast.If, ast.Assert, ast.Raise)):
        return True
    called = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(called, ast.Constant) or (
        isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr in ("append", "add")
    )
