"""The dispatcher: a function that replaces a class's forward and calls the forward of each instance's entry.

To Python it looks like the original: the same defaults, names, globals, free variables and parameters. If no parameter
is keyword-only, it has one more, which no caller passes: `inspect.signature` does not show it, but `getfullargspec`
does. So code that assigns to the forward's `__code__`, as IPython's autoreload does, can assign to the dispatcher. It
refers to no object of autofuse, so it can be pickled by value with its class.
"""

from __future__ import annotations

import functools
import inspect
import types
from weakref import WeakKeyDictionary

from autofuse.fx.install.generated_source import execute
from autofuse.fx.trace.derived_class import NAMES
from autofuse.fx.trace.own_forward import ENTRY, has_other_code, original_of, register_dispatcher

# The original is the default of a parameter that no caller passes. As a free variable it would be one more than the
# original has, and Python does not assign code to a function that closes over another number of variables.
# But a program may assign the defaults of keyword-only parameters. So the dispatcher of a function that has such
# parameters holds the original's code as a constant, in place of `...`, and creates the function when it needs it.
_ORIGINAL, _FOUND = "_autofuse_original", "_autofuse_entry"


# Dispatcher -> the defaults, the keyword defaults and the names with which it was created.
_given: WeakKeyDictionary[types.FunctionType, tuple[object, ...]] = WeakKeyDictionary()


def dispatcher_of(original: types.FunctionType) -> types.FunctionType:
    """A function that calls the forward in an instance's entry, if that entry is for `original`, else `original`."""
    code = original.__code__
    receiver, parameters, passed = _parameter_texts(code)
    is_asked = f"{_FOUND}.of.__code__ is ..." if _holds_code(code) else f"{_FOUND}.of is {_ORIGINAL}"
    lines = [
        f"def make({', '.join(code.co_freevars)}):",
        f"    def forward({parameters}):",
        "        try:",
        f"            {_FOUND} = {receiver}.{ENTRY}",
        "        except AttributeError:",  # a kept function, whose class has its original forward again
        f"            {_FOUND} = None",
        f"        if {_FOUND} and {is_asked}:",
        f"            return {_FOUND}.forward({passed})",
        *([f"        def {_ORIGINAL}():", *_names(code, 12)] if _holds_code(code) else []),
        f"        return {_ORIGINAL}({passed})",
        *_names(code, 8),  # unreachable: torch.jit reads the names of free variables here
        "    return forward",
    ]
    namespace: dict[str, types.FunctionType] = {}
    execute("\n".join(lines) + "\n", namespace)
    written = next(c for c in namespace["make"].__code__.co_consts if isinstance(c, types.CodeType))
    cells = dict(zip(code.co_freevars, original.__closure__ or (), strict=True))
    made = types.FunctionType(
        written.replace(co_name=code.co_name, co_qualname=code.co_qualname, co_consts=_constants(written, code)),
        original.__globals__, original.__name__, original.__defaults__,
        tuple(cells[name] for name in written.co_freevars) or None,
    )  # fmt: skip
    made.__kwdefaults__ = original.__kwdefaults__ if _holds_code(code) else {_ORIGINAL: original}
    functools.update_wrapper(made, original)
    _given[made] = made.__defaults__, made.__kwdefaults__, *(getattr(made, name) for name in NAMES)
    if hasattr(original, "__wrapped__"):  # a decorator may keep its state in __dict__; both functions share it
        made.__dict__ = original.__dict__
    register_dispatcher(made, original)
    return made


def refer_to(function: types.FunctionType, to: types.FunctionType) -> None:
    """Make the free variables of `function` that hold it, or a dispatcher for it, hold `to`, which the class shows.

    A wrapper may ask `type(self).forward is wrapper`, as layers of transformers do before they checkpoint.
    """
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # nothing is assigned yet
            continue
        if held is function or isinstance(held, types.FunctionType) and original_of(held) is function:
            cell.cell_contents = to


def transfer_assignments(dispatcher: types.FunctionType, original: types.FunctionType) -> None:
    """Copy code, names, defaults and keyword defaults that were assigned to the dispatcher to the original."""
    if has_other_code(dispatcher):
        original.__code__ = dispatcher.__code__
    defaults, options, *names = _given.get(dispatcher, (None, None))
    for name, given in zip(NAMES, names, strict=False):
        if getattr(dispatcher, name) is not given:
            setattr(original, name, getattr(dispatcher, name))
    if dispatcher.__defaults__ is not defaults:
        original.__defaults__ = dispatcher.__defaults__
    if dispatcher.__kwdefaults__ is not options:
        kept = {k: v for k, v in (dispatcher.__kwdefaults__ or {}).items() if k != _ORIGINAL}
        original.__kwdefaults__ = kept or None


def _parameter_texts(code: types.CodeType) -> tuple[str, str, str]:
    """The first parameter, the list of parameters, and the arguments by which they are passed on."""
    count, only, named = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    positional, keywords = code.co_varnames[:count], code.co_varnames[count : count + named]
    stars = list(code.co_varnames[count + named :])
    gathered = "*" + stars.pop(0) if code.co_flags & inspect.CO_VARARGS else ""
    options = "**" + stars.pop(0) if code.co_flags & inspect.CO_VARKEYWORDS else ""
    if not positional:  # `*args` includes the module
        positional, only = (f"{ENTRY}_self",), 1
    parts = [*positional[:only], *(["/"] if only else []), *positional[only:]]
    parts += [gathered or "*"]
    passed = [*positional, *([gathered] if gathered else []), *(f"{k}={k}" for k in keywords)]
    last = [options] if options else []
    hidden = [] if _holds_code(code) else [_ORIGINAL]
    return positional[0], ", ".join([*parts, *keywords, *hidden, *last]), ", ".join([*passed, *last])


def _holds_code(code: types.CodeType) -> bool:
    """Whether the dispatcher holds its original's code. Both must list their free variables in one order: sorted."""
    return bool(code.co_kwonlyargcount) and list(code.co_freevars) == sorted(code.co_freevars)


def _names(code: types.CodeType, indent: int) -> list[str]:
    """Statements that read the free variables of `code`, so that a function closes over them."""
    return [" " * indent + name for name in code.co_freevars or ("pass",)]


def _constants(written: types.CodeType, original: types.CodeType) -> tuple[object, ...]:
    """The constants of a dispatcher, with the original's code in place of `...` and of the function that it makes."""
    if not _holds_code(original):
        return written.co_consts
    return tuple(original if c is ... or isinstance(c, types.CodeType) else c for c in written.co_consts)
