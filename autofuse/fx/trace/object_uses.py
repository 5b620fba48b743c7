"""Records how a forward used the objects among its arguments, to find out whether an equal layer uses its own alike.

Each layer gets the key-value cache in another state: layer 3 finds three layers filled. What a trace knows of such an
object is the form of the results of its methods. Repeating the calls on another layer's object shows whether it is the
same there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace.open_integers import OpenInteger
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.twin import SCALARS, original_class, plain_class, signature_of
from autofuse.fx.trace.unseen_copies import UnseenCopies
from autofuse.fx.trace.values import tensors

ForwardArguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class ObjectCall:
    """A call of a method of an object among the arguments.

    Attributes:
        text: The expression that reads the object from the arguments.
        method: The method.
        args: The positional arguments in the example. An open integer stands for the module's own.
        kwargs: The keyword arguments, likewise.
        form: The form of the result.
    """

    text: str
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    form: Hashable


@dataclass
class ObjectUses:
    """The uses of objects in one trace.

    Attributes:
        calls: The calls of methods, in order.
        others: Whether there are uses that cannot be repeated on another object, such as reads of attributes.
        children: The names of the children that got an object.
    """

    calls: list[ObjectCall] = field(default_factory=list)
    others: bool = False
    children: set[str] = field(default_factory=set)

    @property
    def form(self) -> Hashable:
        """Equal for uses that have equal results on the same objects."""
        return tuple(
            (c.text, c.method, tuple(_forms(c.args)), tuple(c.kwargs), tuple(_forms(c.kwargs.values())), c.form)
            for c in self.calls
        )

    def repeat_on(self, module: nn.Module, call: ForwardArguments, fake: Callable[[Tensor], Tensor]) -> bool:
        """Whether the same calls on the objects of another module's call have results of the same form.

        Args:
            module: An equal module, whose integers the calls receive.
            call: The arguments of its forward. Copies of its objects run.
            fake: Makes the fake tensor for a tensor in the objects.
        """
        bound = signature_of(own_forward(plain_class(type(module)))).bind(module, *call[0], **call[1])
        bound.apply_defaults()
        copies = UnseenCopies(fake)

        def form(each: ObjectCall) -> Hashable:
            owner = copies.of(eval(each.text, {"__builtins__": {}}, dict(bound.arguments)))
            args = tuple(_of_module(x, module) for x in each.args)
            kwargs = {k: _of_module(x, module) for k, x in each.kwargs.items()}
            return call_and_form(getattr(owner, each.method), args, kwargs)[1]

        try:
            return all(form(each) == each.form for each in self.calls)
        except Exception:  # a method of the user's may raise anything, and a text may name a constant of a guard
            return False


def _of_module(x: Any, module: nn.Module) -> Any:
    return vars(module)[x.attribute] if type(x) is OpenInteger else x


def call_and_form(method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Hashable]:
    """Call a method. Returns the result, and its form together with what it did to the tensors among the arguments."""
    operands = list(tensors((args, dict(kwargs))))
    before = [x._version for x in operands]
    result = method(*args, **kwargs)
    written = tuple(x._version - version for x, version in zip(operands, before, strict=True))
    return result, (written, tuple(_form(result, operands, {})))


def _forms(values: Iterable[Any]) -> Iterator[Hashable]:
    for x in values:
        yield x.attribute if type(x) is OpenInteger else tuple(_form(x, [], {}))


def _form(value: Any, operands: list[Tensor], seen: dict[int, int]) -> Iterator[Hashable]:
    """The types and the tensors in a value. Tensors have sizes, dtypes, and the operands whose memory they share."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()._cdata
        yield (
            "tensor", tuple(value.shape), value.stride(), value.dtype, value.device, value.layout, value.requires_grad,
            tuple(x.untyped_storage()._cdata == storage for x in operands), tuple(x is value for x in operands),
            seen.setdefault(storage, len(seen)),
        )  # fmt: skip
    elif isinstance(value, SCALARS):
        yield type(value), repr(value)
    elif type(value) in (list, tuple, dict, torch.Size):
        yield type(value), len(value), repr(list(value)) if type(value) is dict else ""
        for part in value.values() if type(value) is dict else value:
            yield from _form(part, operands, seen)
    else:
        yield original_class(type(value)), id(value)
