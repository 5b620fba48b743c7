"""The one door to what torch keeps private: each name that we use, what for, and what happens where a torch lacks it.

`from autofuse.torch_private import fake_mode` never raises for a name of the table (names.py). What torch lacks is
replaced by what the table says: mostly the cautious answer, which leaves the user's code as it is; else a stand-in that
raises MissingFromTorch when it is used. Names are looked up when they are first asked for, so none costs an import of
its own. Private attributes of torch's objects are read where the objects are: attributes.py lists them. This folder
must know nothing of autofuse.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from autofuse.torch_private.missing import MissingFromTorch as MissingFromTorch
from autofuse.torch_private.names import NAMES

if TYPE_CHECKING:  # these have types of their own; the others are Any
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

    GLOBAL_MODULE_HOOKS: tuple[dict[int, Any], ...]
    disable_current_modes: Callable[[], AbstractContextManager[Any]]
    unset_fake_temporarily: Callable[[], AbstractContextManager[Any]]
    pytree = _pytree

FAKE_TENSOR_LOG = "torch._subclasses.fake_tensor"  # the name of a logger
COMPILER = "torch._dynamo.convert_frame"  # the name of a module: where it was not imported, nothing was compiled
COMPILER_MODULES = (COMPILER, "torch._inductor")  # names of what compiles, and runs no module
# Names of the modules whose modes count or print the operations of a program.
COUNTING_MODULES = frozenset({
    "torch.utils.flop_counter", "torch.distributed._tools.mem_tracker", "torch.distributed.tensor.debug._comm_mode",
    "torch.testing._internal.logging_tensor", "torch.utils._debug_mode",
})  # fmt: skip
_F = TypeVar("_F", bound=Callable[..., Any])


def __getattr__(name: str) -> Any:
    """A name of the table, looked up once. Raises AttributeError for any other."""
    if name not in NAMES:
        raise AttributeError(f"autofuse.torch_private has no {name!r}: each name is written down in names.py.")
    found = globals()[name] = look_up(name)
    return found


class _OnDemand:
    """`on_demand.compile_fx` imports what that takes where it is used: parts of torch that take long to import."""

    def __getattr__(self, name: str) -> Any:
        found = vars(self)[name] = look_up(name)
        return found


on_demand = _OnDemand()


def look_up(name: str) -> Any:
    """What torch has, or what stands there where it has none."""
    private = NAMES[name]
    try:
        return private.found()
    except Exception as error:  # a part of torch that breaks as it is imported is as good as none
        return private.instead(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")


def assumed_constant(function: _F) -> _F:
    """torch.compiler.assume_constant_result, which would import all of Dynamo to set this mark.

    Where Dynamo goes by another mark, it compiles what the function does. A test compares the two.
    Dynamo keeps what was returned in the module of the user's code that is compiled, by the function's name: it is one
    that is no user's.
    """
    code = function.__code__
    function.__code__ = code.replace(co_name=f"autofuse_{code.co_name}")
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
