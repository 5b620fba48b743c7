"""Is the function more than what it computes? One that is handed to something that reads it, or takes it for torch's.

A decomposition of `silu` is what runs where `silu` is called, so it must not call it. A pattern is compared with other
code, so it must stay as it is written. A script compiler knows torch's functions alone, and under autocast a script
computes in another dtype than torch's activations and norms give. Decorators that call the
function, or keep it, change nothing. Knows syntax and the scope of a file.
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
from autofuse.source.capture.scope import Defined, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

# Words in the name of what takes a function for an implementation, a pattern, or a text to compile.
_TAKES_OVER = re.compile(
    r"decomp|lowering|symbolic|pattern|replacement|custom_op|custom_vjp|custom_grad|py_impl|register_impl|implements|"
    r"impl_abstract|register_fake|register_kernel|register_autograd|register_meta|meta_for|defvjp|"
    r"converter|translat|onnxscript|triton|numba|njit|getsource|torch_function|torch_dispatch|aten"
)
_IS_PATTERN = re.compile(r"(^|_)(pattern|replacement|decomp(osition)?)(_|$|\d)")
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
    d = claim.defined
    if _IS_PATTERN.search(d.function.name):
        why = because(code_that_runs.OTHER_MEANING, how="by its name, is what other code is compared with")
        yield Fails(why, enables=False, text=d.function.name, line=d.function.lineno)
        return
    for taker in _takers(d):
        if _SCRIPTS.search(taker.name):
            if not _is_torch(claim.edit.becomes, d.scope):
                yield _fails(taker, "compiles it, and does not know the new call")
                return
            if claim.site.rule.replacement.operation != "attention":  # the products of which autocast casts either way
                yield Missing(f"assumes that the script which `{taker.text}` makes does not run under autocast")
        elif _takes_over(taker, d.scope):
            yield _fails(taker, "takes it for an operation, a pattern or a kernel")
            return
        elif _REGISTERS.search(taker.name.rpartition(".")[2]) and not _HARMLESS.search(taker.name):
            if not _only_keeps(taker.name, d.scope):
                yield Missing(f"assumes that `{taker.text}` does no more than call the function")


@dataclass(frozen=True, eq=False)
class _Taker:
    """What a function is handed to: its name, in full where it is imported, and what it is told besides."""

    node: ast.expr
    name: str
    told: list[ast.expr]

    @property
    def text(self) -> str:
        return ast.unparse(self.node).splitlines()[0]


def _fails(taker: _Taker, how: str) -> Fails:
    why = because(code_that_runs.OTHER_MEANING, how=how)
    return Fails(why, enables=False, text=taker.text, line=taker.node.lineno)


def _takers(d: Defined) -> Iterator[_Taker]:
    """What the function is handed to: by decorators, by calls, and as an entry of a table."""
    for decorator in getattr(d.function, "decorator_list", ()):
        yield _Taker(decorator, _name(decorator, d.scope), _arguments(decorator))
        if isinstance(decorator, ast.Name):  # MyFunction = torch.jit.script_method, if some setting says so
            for meaning in d.scope.index(_assigned_names)[decorator.id]:
                yield _Taker(decorator, _name(meaning, d.scope), [])
    around = _classes_around(d)
    for decorator in (x for c in around for x in c.decorator_list):
        if _SCRIPTS.search(name := _name(decorator, d.scope)):
            yield _Taker(decorator, name, [])
    index = d.scope.index(_Index)
    for name in sorted(_names_for(d, around)):
        yield from (_Taker(n, _name(n, d.scope) if called else "", told) for n, called, told in index.given[name])
    if d.owner is not None:
        scripts = {k for k, full in d.scope.qualified.items() if _SCRIPTS.search(full)} | _SCRIPT_NAMES
        for function in (f for k in sorted(scripts) for f in index.given_a_name[k]):
            if _SCRIPTS.search(name := _name(function, d.scope)):
                yield _Taker(function, name, _arguments(function))


def _assigned_names(tree: ast.Module) -> defaultdict[str, list[ast.expr]]:
    """Every name and attribute that a file assigns to a name."""
    found: defaultdict[str, list[ast.expr]] = defaultdict(list)
    for n in walk(tree):
        if isinstance(n, ast.Assign) and isinstance(n.value, (ast.Attribute, ast.Name)):
            for t in n.targets:
                if isinstance(t, ast.Name):
                    found[t.id].append(n.value)
    return found


_SCRIPT_NAMES = frozenset("script script_method script_if_tracing interface export".split())


class _Index:
    """What the functions of a file are given to, by the name that they are given under."""

    def __init__(self, tree: ast.Module) -> None:
        self.given: defaultdict[str, list[tuple[ast.expr, bool, list[ast.expr]]]] = defaultdict(list)
        self.given_a_name: defaultdict[str, list[ast.expr]] = defaultdict(list)  # by the last part of what is called
        for n in walk(tree):
            if isinstance(n, ast.Call):
                given = [*n.args, *(k.value for k in n.keywords)]
                for name in {_mention(a) for a in given} - {""}:
                    self.given[name].append((n.func, True, _arguments(n.func)))
                if any(isinstance(a, ast.Name) for a in given):
                    self.given_a_name[getattr(n.func, "attr", getattr(n.func, "id", ""))].append(n.func)
            elif isinstance(n, ast.Dict):
                for k, v in zip(n.keys, n.values, strict=True):
                    if k is not None and (name := _mention(v)):
                        self.given[name].append((k, False, [k]))
            elif isinstance(n, ast.Assign) and (name := _mention(n.value)):
                self.given[name] += [(t, False, [t.slice]) for t in n.targets if isinstance(t, ast.Subscript)]


def _classes_around(d: Defined) -> list[ast.ClassDef]:
    return [c.node for c in d.scope.lineage(d.owner)][:1]


def _names_for(d: Defined, around: list[ast.ClassDef]) -> set[str]:
    """How a file names the function: by its name, or `Attention.forward`; a module is compiled with its forward."""
    if d.owner is None:
        return {d.function.name} if not d.symbol.count(".") else set()
    classes = {c.name for c in around}
    return {f"{c}.{d.function.name}" for c in classes} | {f"{c}()" for c in classes}


def _mention(node: ast.expr) -> str:
    """How an argument names a function, or a module that has it; "" if it names neither."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
        case ast.Call(func=ast.Name(id=name)):
            return f"{name}()"
    return ""


def _name(taker: ast.expr, scope: FileScope) -> str:
    """The name of a decorator or a function, in full where it is imported."""
    while isinstance(taker, ast.Call):
        taker = taker.func
    return scope.name_of(taker) or ast.unparse(taker)


def _arguments(node: ast.expr) -> list[ast.expr]:
    return [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []


def _takes_over(taker: _Taker, scope: FileScope) -> bool:
    """Whether the function is taken for an operation: by the name of what takes it, or by an operation beside it."""
    if taker.name and _HARMLESS.search(taker.name):
        return False
    by_name = _TAKES_OVER.search(taker.name.lower()) or taker.name.rpartition(".")[2] in _EXACT
    return bool(by_name) or any(_is_operation(t, scope) for t in taker.told)


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
        isinstance(called, ast.Call)
        and isinstance(called.func, ast.Attribute)
        and called.func.attr in ("append", "add")
    )
