"""The rows of the vocabulary: what a row states about an operation or a module class, and how to write one.

Names are text, so that nothing here imports torch. The rows themselves are in vocabulary.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Effect = Literal["pure", "view", "random", "metadata"]  # metadata: reads shape, dtype or device, never the contents
Kind = Literal["", "activation", "gate"]  # a gate maps to a bounded range, and its result multiplies another tensor
REQUIRED = object()
PUBLIC = "autofuse.ops."  # the prefix of the operations that rewritten code calls


@dataclass(frozen=True)
class Op:
    """An operation.

    Attributes:
        name: its name in graphs.
        parameters: parameter -> default (REQUIRED if it has none). `*name` takes the remaining positional arguments
            and `**name` the remaining keywords, each as one tuple.
        names: the functions, methods and operators that compute it.
        effect: what it does besides computing.
        heavy: whether fusing it is worth the effort: it is a reduction, a matrix product or a random mask.
        commutes: whether its first two arguments may be exchanged.
        keeps_sizes: whether the result has the sizes of the first argument.
        kind: "activation" if a layer may take it as its activation function. Profiles count activations and gates
            alike.
        module: the class in torch.nn that computes it.
        inplace: whether that class passes its `inplace` as the last positional argument.
        piecewise: for an activation, whether it consists of products and comparisons only. An exponential costs a GPU
            many of these.
    """

    name: str
    parameters: dict[str, object]
    names: tuple[str, ...]
    effect: Effect = "pure"
    heavy: bool = False
    commutes: bool = False
    keeps_sizes: bool = False
    kind: Kind = ""
    module: str = ""
    inplace: bool = False
    piecewise: bool = False

    @property
    def options(self) -> tuple[tuple[str, object], ...]:
        """The parameters after the first, with their defaults."""
        return tuple(self.parameters.items())[1:]

    @property
    def last_names(self) -> frozenset[str]:
        """The names of its functions and methods, without their modules."""
        return frozenset(part for name in self.names if (part := name.rpartition(".")[2]).isidentifier())


@dataclass(frozen=True)
class ModuleClass:
    """A module class that computes one operation.

    Attributes:
        op: the name of the operation.
        fixed: the arguments of the operation that the constructor sets, with their defaults.
        read: the arguments that are attributes of the instance, read at each call.
        operands: the number of tensors that its forward takes.
        kept: the arguments among `fixed` that the instance also has as attributes.
        switches: arguments of the constructor that leave parameters out if they are False: the name, the position, and
            the parameters.
    """

    op: str
    fixed: tuple[tuple[str, object], ...] = ()
    read: tuple[str, ...] = ()
    operands: int = 1
    kept: tuple[str, ...] = ()
    switches: tuple[tuple[str, int, tuple[str, ...]], ...] = ()


def operation(signature: str, names: str, effect: Effect = "pure", heavy: bool = False, commutes: bool = False) -> Op:
    """Make a row.

    Args:
        signature: `name(first, second=default)`.
        names: the names that compute it, separated by spaces. The writers use the first function or method.
        effect: what it does besides computing.
        heavy: whether fusing it is worth the effort.
        commutes: whether its first two arguments may be exchanged.
    """
    name, _, rest = signature.rstrip(")").partition("(")
    parameters: dict[str, object] = {}
    for part in filter(None, map(str.strip, rest.split(","))):
        key, _, default = part.partition("=")
        parameters[key] = ast.literal_eval(default) if default else REQUIRED
    return Op(name, parameters, tuple(names.split()), effect, heavy, commutes)


def same_sizes(signature: str, names: str, effect: Effect = "pure", heavy: bool = False, inplace: bool = False) -> Op:
    """Make the row of an operation whose result has the sizes of its first argument."""
    return replace(operation(signature, names, effect, heavy), keeps_sizes=True, inplace=inplace)


def activation(
    signature: str, names: str, module: str, inplace: bool = False, kind: Kind = "activation", piecewise: bool = False
) -> Op:
    """Make the row of an elementwise activation. `autofuse.ops.<name>` in `names` adds it to autofuse.ops."""
    row = same_sizes(signature, names, inplace=inplace)
    return replace(row, kind=kind, module=module, piecewise=piecewise)


def add_fused_activations(rows: Iterable[Op]) -> tuple[Op, ...]:
    """The rows, and a row `fused_<name>` for each activation in autofuse.ops. The writers write it as that call."""
    result = list[Op]()
    for row in rows:
        public = PUBLIC + row.name
        if row.kind != "activation" or public not in row.names:
            result.append(row)
            continue
        result.append(replace(row, names=tuple(n for n in row.names if n != public)))
        result.append(replace(row, name=f"fused_{row.name}", names=(public,), module="", inplace=False))
    return tuple(result)


def module_classes(rows: Iterable[Op]) -> dict[str, ModuleClass]:
    """The torch.nn classes that rows name. Their constructors take the operation's arguments except the tensor."""
    return {f"torch.nn.{row.module}": ModuleClass(row.name, fixed=row.options) for row in rows if row.module}
