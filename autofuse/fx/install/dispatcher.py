"""The function that a class gets in place of its forward: for each instance, it finds the forward that this one runs.

To Python it is the forward that it stands for: the same parameters, defaults, names, globals and free variables. It
holds nothing of autofuse's, so it works where a pickle of the class takes it.
"""

from __future__ import annotations

import functools
import inspect
import types

from autofuse.fx.install.codegen import execute
from autofuse.fx.trace.own_forward import ENTRY, stands_for

_ORIGINAL, _FOUND = "_autofuse_original", "_autofuse_entry"


def dispatcher_of(original: types.FunctionType) -> types.FunctionType:
    """A function that calls the forward in an instance's entry, if that entry is for `original`, else `original`."""
    code = original.__code__
    receiver, parameters, passed = _written(code)
    lines = [
        f"def make({', '.join([_ORIGINAL, *code.co_freevars])}):",
        f"    def forward({parameters}):",
        "        try:",
        f"            {_FOUND} = {receiver}.{ENTRY}",
        "        except AttributeError:",  # it was kept by somebody, and its class is itself again
        f"            {_FOUND} = None",
        f"        if {_FOUND} and {_FOUND}.of is {_ORIGINAL}:",
        f"            return {_FOUND}.forward({passed})",
        f"        return {_ORIGINAL}({passed})",
        *(f"        {name}" for name in code.co_freevars),  # never reached: torch.jit looks these names up here
        "    return forward",
    ]
    namespace: dict[str, types.FunctionType] = {}
    execute("\n".join(lines) + "\n", namespace)
    written = next(c for c in namespace["make"].__code__.co_consts if isinstance(c, types.CodeType))
    cells = {
        _ORIGINAL: types.CellType(original),
        **dict(zip(code.co_freevars, original.__closure__ or (), strict=True)),
    }
    made = types.FunctionType(
        written.replace(co_name=code.co_name, co_qualname=code.co_qualname), original.__globals__, original.__name__,
        original.__defaults__, tuple(cells[name] for name in written.co_freevars),
    )  # fmt: skip
    made.__kwdefaults__ = original.__kwdefaults__
    functools.update_wrapper(made, original)
    stands_for[made] = original
    return made


def _written(code: types.CodeType) -> tuple[str, str, str]:
    """The first parameter, the list of parameters, and the arguments by which they are passed on."""
    count, only, named = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    positional, keywords = code.co_varnames[:count], code.co_varnames[count : count + named]
    stars = list(code.co_varnames[count + named :])
    gathered = "*" + stars.pop(0) if code.co_flags & inspect.CO_VARARGS else ""
    options = "**" + stars.pop(0) if code.co_flags & inspect.CO_VARKEYWORDS else ""
    if not positional:  # `*args` takes the module, too
        positional, only = (f"{ENTRY}_self",), 1
    parts = [*positional[:only], *(["/"] if only else []), *positional[only:]]
    parts += [gathered] if gathered else ["*"] if keywords else []
    passed = [*positional, *([gathered] if gathered else []), *(f"{k}={k}" for k in keywords)]
    last = [options] if options else []
    return positional[0], ", ".join([*parts, *keywords, *last]), ", ".join([*passed, *last])
