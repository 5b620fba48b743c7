"""The dispatcher: a function that replaces a class's forward and calls the forward of each instance's entry.

To Python it looks like the original: the same defaults, names, globals and free variables, and the same parameters
except one that nobody passes. `inspect.signature` does not show that parameter; `getfullargspec` does. So code that
assigns to the forward's `__code__`, as IPython's autoreload does, can assign to the dispatcher. It refers to no object
of autofuse, so it can be pickled by value with its class.
"""

from __future__ import annotations

import functools
import inspect
import types

from autofuse.fx.install.codegen import execute
from autofuse.fx.trace.own_forward import ENTRY, is_replaced, stand_in

# The original is the default of a parameter that nobody passes: as a free variable it would be one more than the
# original has, and Python lets no code be assigned to a function that closes over another number of variables.
_ORIGINAL, _FOUND = "_autofuse_original", "_autofuse_entry"


def dispatcher_of(original: types.FunctionType) -> types.FunctionType:
    """A function that calls the forward in an instance's entry, if that entry is for `original`, else `original`."""
    code = original.__code__
    receiver, parameters, passed = _parameter_texts(code)
    lines = [
        f"def make({', '.join(code.co_freevars)}):",
        f"    def forward({parameters}):",
        "        try:",
        f"            {_FOUND} = {receiver}.{ENTRY}",
        "        except AttributeError:",  # somebody kept this function, and the class has its original forward again
        f"            {_FOUND} = None",
        f"        if {_FOUND} and {_FOUND}.of is {_ORIGINAL}:",
        f"            return {_FOUND}.forward({passed})",
        f"        return {_ORIGINAL}({passed})",
        *(
            f"        {name}" for name in code.co_freevars
        ),  # unreachable: torch.jit reads the names of free variables here
        "    return forward",
    ]
    namespace: dict[str, types.FunctionType] = {}
    execute("\n".join(lines) + "\n", namespace)
    written = next(c for c in namespace["make"].__code__.co_consts if isinstance(c, types.CodeType))
    cells = dict(zip(code.co_freevars, original.__closure__ or (), strict=True))
    made = types.FunctionType(
        written.replace(co_name=code.co_name, co_qualname=code.co_qualname), original.__globals__, original.__name__,
        original.__defaults__, tuple(cells[name] for name in written.co_freevars) or None,
    )  # fmt: skip
    made.__kwdefaults__ = {**(original.__kwdefaults__ or {}), _ORIGINAL: original}
    functools.update_wrapper(made, original)
    if hasattr(original, "__wrapped__"):  # a decorator may keep its state in __dict__; both functions share it
        made.__dict__ = original.__dict__
    stand_in(made, original)
    return made


def transfer_assignments(dispatcher: types.FunctionType, original: types.FunctionType) -> None:
    """Copy to the original what was assigned to the dispatcher: code, defaults and keyword defaults."""
    if not is_replaced(dispatcher):
        return
    original.__code__, original.__defaults__ = dispatcher.__code__, dispatcher.__defaults__
    options = {k: v for k, v in (dispatcher.__kwdefaults__ or {}).items() if k != _ORIGINAL}
    original.__kwdefaults__ = options or None


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
    return positional[0], ", ".join([*parts, *keywords, _ORIGINAL, *last]), ", ".join([*passed, *last])
