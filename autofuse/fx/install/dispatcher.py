"""The function that a class gets in place of its forward: for each instance, it finds the forward that this one runs.

To Python it is the forward that it stands for: the same defaults, names, globals and free variables, and the same
parameters but for one that nobody passes, which `inspect.signature` does not show (`getfullargspec` does). So
whoever assigns another `__code__` to the class's forward, as IPython's autoreload does, can assign it to this one. It
holds nothing of autofuse's, so it works where a pickle of the class takes it.
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
    receiver, parameters, passed = _written(code)
    lines = [
        f"def make({', '.join(code.co_freevars)}):",
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
    cells = dict(zip(code.co_freevars, original.__closure__ or (), strict=True))
    made = types.FunctionType(
        written.replace(co_name=code.co_name, co_qualname=code.co_qualname), original.__globals__, original.__name__,
        original.__defaults__, tuple(cells[name] for name in written.co_freevars) or None,
    )  # fmt: skip
    made.__kwdefaults__ = {**(original.__kwdefaults__ or {}), _ORIGINAL: original}
    functools.update_wrapper(made, original)
    if hasattr(original, "__wrapped__"):  # a decorator may keep its own state there, and both names lead to it
        made.__dict__ = original.__dict__
    stand_in(made, original)
    return made


def end_of(dispatcher: types.FunctionType, original: types.FunctionType) -> None:
    """Nobody dispatches any more: what was assigned to the dispatcher meanwhile, the original has from here on."""
    if not is_replaced(dispatcher):
        return
    original.__code__, original.__defaults__ = dispatcher.__code__, dispatcher.__defaults__
    options = {k: v for k, v in (dispatcher.__kwdefaults__ or {}).items() if k != _ORIGINAL}
    original.__kwdefaults__ = options or None


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
    parts += [gathered or "*"]
    passed = [*positional, *([gathered] if gathered else []), *(f"{k}={k}" for k in keywords)]
    last = [options] if options else []
    return positional[0], ", ".join([*parts, *keywords, _ORIGINAL, *last]), ", ".join([*passed, *last])
