"""Does anything tell one operation from another while the code runs? A counter of operations, a pass over a graph.

A mode (`with FlopCounterMode():`), a tensor class with a `__torch_function__` of its own, a pass over the nodes of a
graph, a policy of what to save, and the list of a profile see which of torch's operations run: so the fused one, too.
Knows names of torch and syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.project_files import own_class
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_MODES = frozenset({"FlopCounterMode", "TorchDispatchMode", "TorchFunctionMode", "LoggingTensorMode"})
_PROTOCOLS = frozenset({"__torch_function__", "__torch_dispatch__"})
_PASSES = frozenset({"replace_pattern", "replace_pattern_with_filters", "SubgraphMatcher"})
# They are told the operations of a step: which of them to save, what each took, what each keeps for its derivative.
_TOLD = frozenset({"create_selective_checkpoint_contexts", "key_averages", "saved_tensors_hooks"})
_TEXTS = frozenset("code graph_module inlined_graph findAllNodes code_with_constants print_readable graph".split())
_LONGEST = 60  # characters of the code that a message repeats


def operations_are_not_told_apart(claim: Claim) -> Iterator[Missing | Fails]:
    """Nothing in the file, or in one that imports it, asks which of torch's operations run.

    A class of tensors and a pass over a graph are for what their own file, and those that it imports, have to do with.
    """
    own, files = claim.defined.scope, claim.files
    for scope in (own, *(files.watching(own) if files is not None else ())):
        near = scope is own or files is not None and files.imports(scope, own)
        counted = (n for n in _watching(scope) if near or isinstance(n, ast.Call) and _last(n.func) not in _TOLD)
        found = min(counted, key=lambda n: n.lineno, default=None)
        if found is not None:
            text = ast.unparse(found).splitlines()[0]
            told = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
            where = "" if scope.tree is own.tree or scope.file is None else f"{scope.file.name}, "
            yield Missing(f"assumes that `{told}` in {where}line {found.lineno} minds no other operation")
            return


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _watching(scope: FileScope) -> tuple[ast.expr | ast.ClassDef, ...]:
    found = scope.index(_named)
    return found + tuple(n for n in scope.index(_entered) if _is_mode_of_the_project(scope, n))


def _named(tree: ast.Module) -> tuple[ast.expr | ast.ClassDef, ...]:
    """What watches by a name of torch's, or by a method of torch's protocols."""
    nodes = list(walk(tree))
    traced = any(isinstance(n, (ast.Import, ast.ImportFrom)) and "torch.fx" in ast.unparse(n) for n in nodes)
    traced = traced or any(isinstance(n, ast.Attribute) and n.attr == "fx" for n in nodes)
    profiled = any(isinstance(n, ast.Attribute) and n.attr in ("profiler", "profile") for n in nodes) or any(
        isinstance(n, ast.ImportFrom) and "profile" in (n.module or "") for n in nodes
    )
    watching = (n for n in nodes if isinstance(n, (ast.expr, ast.ClassDef)))
    shown = traced or any(_makes_text(n) for n in nodes)
    return tuple(
        n for n in watching
        if _watches(n, traced) or profiled and _is_list_of_events(n) or shown and _is_text_of_graph(n)
    )  # fmt: skip


def _makes_text(n: ast.AST) -> bool:
    """Whether a call makes a graph out of a function, whose text may be shown."""
    match n:
        case ast.Call(func=ast.Name(id="make_fx" | "symbolic_trace")):
            return True
        case ast.Attribute(value=ast.Name(id="jit") | ast.Attribute(attr="jit"), attr="trace" | "script"):
            return True
        case ast.Attribute(value=ast.Name(id="export") | ast.Attribute(attr="export"), attr="export"):
            return True
    return False


def _is_text_of_graph(n: ast.AST) -> bool:
    return isinstance(n, ast.Attribute) and n.attr in _TEXTS


def _is_list_of_events(n: ast.AST) -> bool:
    """`prof.events()`, where something is profiled."""
    return isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "events" and not n.args


def _watches(n: ast.expr | ast.ClassDef, traced: bool) -> bool:
    match n:
        case ast.ClassDef(body=body):
            return any(isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)) and s.name in _PROTOCOLS for s in body)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _MODES or name in _TOLD or traced and name in _PASSES
        case ast.Attribute(value=ast.Attribute(attr="graph") | ast.Name(id="graph"), attr="nodes"):
            return traced
    return False


def _entered(tree: ast.Module) -> tuple[ast.Call, ...]:
    """The calls that a `with` enters."""
    items = (i.context_expr for n in walk(tree) if isinstance(n, ast.With) for i in n.items)
    return tuple(i for i in items if isinstance(i, ast.Call))


def _is_mode_of_the_project(scope: FileScope, call: ast.Call) -> bool:
    """Whether a `with` enters an instance of a class of another file that watches."""
    found = own_class(scope, call.func)
    return found is not None and found[1].tree is not scope.tree and _watches(found[0].node, False)
