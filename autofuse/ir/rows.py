"""What a row of the vocabulary says of an operation, and of a module class, and how a row is written.

Names are text: nothing here imports torch. Knows the shape of a row; the rows themselves stand in vocabulary.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Effect = Literal["pure", "view", "random", "metadata"]  # metadata: reads shape, dtype or device, never the contents
Kind = Literal["", "activation", "gate"]  # a gate squashes what multiplies something else
REQUIRED = object()
PUBLIC = "autofuse.ops."  # how the operations that rewritten code calls are named


@dataclass(frozen=True)
class Op:
    """An operation: `parameters` maps argument names to defaults (REQUIRED if none).

    `*name` gathers the remaining positional arguments, `**name` the remaining keywords, each into one tuple.
    `keeps_sizes`: the result has the sizes of the first argument, whatever they are. `kind`: an activation may
    stand wherever a layer's activation is chosen; profiles count activations and gates alike. `module`: the class of
    torch.nn that computes it. `inplace`: that class hands its `inplace` on as the last argument, by position.
    """

    name: str
    parameters: dict[str, object]
    names: tuple[str, ...]
    effect: Effect = "pure"
    heavy: bool = False  # worth fusing away: a reduction, a product, a random mask
    commutes: bool = False
    keeps_sizes: bool = False
    kind: Kind = ""
    module: str = ""
    inplace: bool = False
    piecewise: bool = (
        False  # of an activation: products and comparisons, no exponential, which costs a GPU many of them
    )

    @property
    def options(self) -> tuple[tuple[str, object], ...]:
        """The parameters after the first, with their defaults."""
        return tuple(self.parameters.items())[1:]

    @property
    def last_names(self) -> frozenset[str]:
        """What its functions and methods are called, modules left out."""
        return frozenset(part for name in self.names if (part := name.rpartition(".")[2]).isidentifier())


@dataclass(frozen=True)
class ModuleClass:
    """A module class that is one operation on its first argument, or on its first `operands`.

    `fixed` come from the constructor and cannot change; `read` are attributes of the instance, read at each call;
    `kept` are those of `fixed` that the instance has as attributes too.
    """

    op: str
    fixed: tuple[tuple[str, object], ...] = ()
    read: tuple[str, ...] = ()
    operands: int = 1
    kept: tuple[str, ...] = ()


def operation(signature: str, names: str, effect: Effect = "pure", heavy: bool = False, commutes: bool = False) -> Op:
    """A row: `name(first, second=default)`, and the names of it, the spelling of both writers first."""
    name, _, rest = signature.rstrip(")").partition("(")
    parameters: dict[str, object] = {}
    for part in filter(None, map(str.strip, rest.split(","))):
        key, _, default = part.partition("=")
        parameters[key] = ast.literal_eval(default) if default else REQUIRED
    return Op(name, parameters, tuple(names.split()), effect, heavy, commutes)


def same_sizes(signature: str, names: str, effect: Effect = "pure", heavy: bool = False, inplace: bool = False) -> Op:
    """A row whose result has the sizes of the first argument."""
    return replace(operation(signature, names, effect, heavy), keeps_sizes=True, inplace=inplace)


def activation(
    signature: str, names: str, module: str, inplace: bool = False, kind: Kind = "activation", piecewise: bool = False
) -> Op:
    """The row of an elementwise activation; `autofuse.ops.<name>` among the names says that it is one of ours."""
    row = same_sizes(signature, names, inplace=inplace)
    return replace(row, kind=kind, module=module, piecewise=piecewise)


def with_fused(rows: Iterable[Op]) -> tuple[Op, ...]:
    """The rows, and for each activation of ours a row `fused_<name>`, put back as a call of autofuse.ops."""
    found = list[Op]()
    for row in rows:
        public = PUBLIC + row.name
        if row.kind != "activation" or public not in row.names:
            found.append(row)
            continue
        found.append(replace(row, names=tuple(n for n in row.names if n != public)))
        found.append(replace(row, name=f"fused_{row.name}", names=(public,), module="", inplace=False))
    return tuple(found)


def classes_of(rows: Iterable[Op]) -> dict[str, ModuleClass]:
    """The classes of torch.nn that rows name, whose constructors take what the operation takes but the tensor."""
    return {f"torch.nn.{row.module}": ModuleClass(row.name, fixed=row.options) for row in rows if row.module}
