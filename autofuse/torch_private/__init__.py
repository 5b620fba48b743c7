"""Every private name of torch that autofuse uses: what it is for, and what happens if a version of torch lacks it.

`from autofuse.torch_private import fake_mode` never raises an error for a name of the table (names.py). For a missing
name, the table defines a replacement: usually the cautious answer, which leaves the user's code unchanged; otherwise a
stand-in that raises MissingFromTorch when it is used. Names are looked up at the first use, so none of them costs an
import. Private attributes of torch's objects are read directly where the objects are; attributes.py lists them. This
folder imports nothing else of autofuse.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from autofuse.torch_private.missing import MissingFromTorch as MissingFromTorch
from autofuse.torch_private.names import NAMES

if TYPE_CHECKING:  # names with types; all others are Any
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
COMPILER = "torch._dynamo.convert_frame"  # the name of a module; if it was not imported, nothing was compiled
COMPILER_MODULES = (COMPILER, "torch._inductor")  # names of modules that compile, and do not run modules
# Names of the modules with the frames between torch.utils.checkpoint.checkpoint and its caller.
CALLERS_OF_CHECKPOINTS = ("torch._compile", "torch._dynamo.eval_frame")
# Names of the modules whose dispatch modes count or print the operations of a program.
COUNTING_MODULES = frozenset({
    "torch.utils.flop_counter", "torch.distributed._tools.mem_tracker", "torch.distributed.tensor.debug._comm_mode",
    "torch.testing._internal.logging_tensor", "torch.utils._debug_mode",
})  # fmt: skip
_F = TypeVar("_F", bound=Callable[..., Any])


def __getattr__(name: str) -> Any:
    """A name of the table, looked up once.

    Raises:
        AttributeError: for any other name.
    """
    if name not in NAMES:
        raise AttributeError(f"autofuse.torch_private has no {name!r}. Add it to the table in names.py.")
    found = globals()[name] = look_up(name)
    return found


class _OnDemand:
    """Looks up names at each first use: `on_demand.compile_fx`. For parts of torch that take long to import."""

    def __getattr__(self, name: str) -> Any:
        found = vars(self)[name] = look_up(name)
        return found


on_demand = _OnDemand()


def look_up(name: str) -> Any:
    """The object that torch has under this name, or its replacement."""
    private = NAMES[name]
    try:
        return private.resolve()
    except Exception as error:  # a part of torch that fails to import counts as missing
        return private.replacement(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")


def assumed_constant(function: _F) -> _F:
    """torch.compiler.assume_constant_result, without importing all of Dynamo to set its mark.

    If Dynamo uses another mark, it compiles the function instead. A test compares the two marks. Dynamo stores the
    returned value in the module of the user's code that is compiled, under the function's name. So the name must not
    collide with a user's name.
    """
    code = function.__code__
    function.__code__ = code.replace(co_name=f"autofuse_{code.co_name}")
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
