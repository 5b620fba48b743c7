"""Does anything observe which operators run? For instance a counter of operators, or a pass over a graph.

These see the operators of torch, and so they also see the fused one:

- a mode: `with FlopCounterMode():`
- a tensor class with its own `__torch_function__`
- a pass over the nodes of a graph
- a policy that chooses which results to save for backward
- the list of events of a profiler

This file looks at syntax and at the names of torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.project_files import find_project_class
from autofuse.source.capture.scope import FileScope
from autofuse.source.evidence.claim import Claim, Missing

_MODES = frozenset({"FlopCounterMode", "TorchDispatchMode", "TorchFunctionMode", "LoggingTensorMode"})
_PROTOCOLS = frozenset({"__torch_function__", "__torch_dispatch__"})
_PASSES = frozenset(
    "replace_pattern replace_pattern_with_filters SubgraphMatcher register_replacement find_nodes".split()
)
_CLASSES_OF_PASSES = frozenset({"Interpreter", "Transformer", "Tracer", "PassBase"})  # of torch.fx, as base classes
_CALLS_WITH_BACKEND = frozenset(
    {"compile", "optimize", "register_backend", "aot_function", "aot_module", "aot_autograd"}
)
# These observe every operator of a step: whether to save its result, its time, the tensors that it saves.
_STEP_OBSERVERS = frozenset({"create_selective_checkpoint_contexts", "key_averages", "saved_tensors_hooks"})
_GRAPH_TEXTS = frozenset(
    "code graph_module inlined_graph findAllNodes code_with_constants print_readable graph".split()
)
_GRAPH_MODULES = ("torch.fx.", "torch._inductor.pattern_matcher.", "torch._dynamo.backends.", "functorch.compile.")
_MAX_TEXT = 60  # characters of the code that a message quotes


def check_operation_watchers(claim: Claim) -> Iterator[Missing | Fails]:
    """Yield an assumption if the file, or one that imports it, observes which operators of torch run.

    A tensor class or a graph pass concerns only its own file and the files that it imports.
    """
    own, files = claim.defined.scope, claim.files
    for scope in (own, *(files.files_watching_operations(own) if files is not None else ())):
        imports_own = scope is own or files is not None and files.imports(scope, own)
        watchers = (
            n
            for n in _find_watchers(scope)
            if imports_own or isinstance(n, ast.Call) and _last_name(n.func) not in _STEP_OBSERVERS
        )
        first = min(watchers, key=lambda n: n.lineno, default=None)
        if first is not None:
            text = ast.unparse(first).splitlines()[0]
            shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
            where = "" if scope.tree is own.tree or scope.file is None else f"{scope.file.name}, "
            yield Missing(f"assumes that `{shown}` in {where}line {first.lineno} accepts another operation")
            return


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _find_watchers(scope: FileScope) -> tuple[ast.expr | ast.ClassDef, ...]:
    by_name = scope.index(_watchers_by_name)
    return by_name + tuple(n for n in scope.index(_entered_calls) if _is_project_mode(scope, n))


def _watchers_by_name(tree: ast.Module) -> tuple[ast.expr | ast.ClassDef, ...]:
    """The watchers that use a torch name, or define a method of torch's protocols."""
    index = node_index(tree)
    imports: list[ast.Import | ast.ImportFrom] = [*index.of(ast.Import), *index.of(ast.ImportFrom)]
    attributes = list(index.of(ast.Attribute))
    calls = list(index.of(ast.Call))
    traced = any(map(_imports_graphs, imports)) or any(n.attr == "fx" for n in attributes)
    traced = traced or any(map(_gives_graph_to_backend, calls))
    profiled = any(n.attr in ("profiler", "profile") for n in attributes) or any(
        "profile" in (n.module or "") for n in index.of(ast.ImportFrom)
    )
    has_graph = traced or any(map(_makes_graph, attributes)) or any(map(_makes_graph, calls))
    watchers: list[ast.expr | ast.ClassDef] = [n for n in index.of(ast.ClassDef) if _is_watcher(n, traced)]
    watchers += (n for n in calls if _is_watcher(n, traced) or profiled and _is_list_of_events(n))
    if has_graph:
        watchers += (n for n in attributes if _is_watcher(n, traced) or _is_text_of_graph(n))
    return tuple(watchers)


def _imports_graphs(n: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import is of torch.fx, of a part of it, or of the pattern matcher of the compiler."""
    module = f"{n.module}." if isinstance(n, ast.ImportFrom) else ""
    return any(f"{module}{a.name}.".startswith(_GRAPH_MODULES) for a in n.names)


def _gives_graph_to_backend(call: ast.Call) -> bool:
    """Whether a call of the compiler names a backend that is not a string: it gets the graph."""
    backends = [*(k.value for k in call.keywords if k.arg and k.arg.endswith(("backend", "compiler"))), *call.args[:1]]
    name = _last_name(call.func)
    if name in ("compile", "optimize"):
        backends = [b for b in backends if b not in call.args]
    return name in _CALLS_WITH_BACKEND and any(not isinstance(b, ast.Constant) for b in backends)


def _makes_graph(n: ast.AST) -> bool:
    """Whether a call turns a function into a graph; the program may print its text."""
    match n:
        case ast.Call(func=ast.Name(id="make_fx" | "symbolic_trace")):
            return True
        case ast.Attribute(value=ast.Name(id="jit") | ast.Attribute(attr="jit"), attr="trace" | "script"):
            return True
        case ast.Attribute(value=ast.Name(id="export") | ast.Attribute(attr="export"), attr="export"):
            return True
    return False


def _is_text_of_graph(n: ast.AST) -> bool:
    return isinstance(n, ast.Attribute) and n.attr in _GRAPH_TEXTS


def _is_list_of_events(n: ast.AST) -> bool:
    """Whether a call is `prof.events()`; the caller checks that the file uses a profiler."""
    return isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "events" and not n.args


def _is_watcher(n: ast.expr | ast.ClassDef, traced: bool) -> bool:
    match n:
        case ast.ClassDef(body=body, bases=bases):
            protocols = (s.name for s in body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)))
            return (
                any(s in _PROTOCOLS for s in protocols)
                or traced
                and bool(set(map(_last_name, bases)) & _CLASSES_OF_PASSES)
            )
        case ast.Call(func=function):
            name = _last_name(function)
            return name in _MODES or name in _STEP_OBSERVERS or traced and name in _PASSES
        case ast.Attribute(value=ast.Attribute(attr="graph") | ast.Name(id="graph"), attr="nodes"):
            return traced
    return False


def _entered_calls(tree: ast.Module) -> tuple[ast.Call, ...]:
    """The calls in `with` statements."""
    items = (i.context_expr for n in node_index(tree).of(ast.With) for i in n.items)
    return tuple(i for i in items if isinstance(i, ast.Call))


def _is_project_mode(scope: FileScope, call: ast.Call) -> bool:
    """Whether a `with` statement enters an instance of a project class that observes operators."""
    found = find_project_class(scope, call.func)
    return found is not None and found[1].tree is not scope.tree and _is_watcher(found[0].node, False)
