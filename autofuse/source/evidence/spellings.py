"""The spellings of an operation that work only with torch: its functions, its methods and its keywords.

This file looks at names and the vocabulary. It follows no values.
"""

from __future__ import annotations

from autofuse.ir.graph import Value
from autofuse.ir.vocabulary import OPS
from autofuse.source.evidence.libraries import TENSOR_METHODS, TORCH_KEYWORDS


def is_torch_function(name: str) -> bool:
    """Whether a spelling is a torch function or a layer; other libraries have methods and operators too."""
    own = name.isidentifier() and name != "float"
    return own or name.startswith("torch.") and "(" not in name


def has_torch_only_arguments(v: Value, spelled: set[str]) -> bool:
    """Whether the arguments of a method suit torch only: `x.transpose(-2, -1)`, `x.mean(-1, True)`, `x.view(2, 3)`.

    The numpy methods of these names take all axes, or a dtype.
    """
    if v.op == "transpose":
        return ".transpose" in spelled and all(type(i.data) is int for i in v.inputs[1:])
    if "keepdim" in OPS[v.op].parameters:  # the second argument of the numpy method is a dtype
        at = list(OPS[v.op].parameters).index("keepdim")
        return v.inputs[at].data is True and f".{v.op}" in spelled and f".{v.op}(keepdims=)" not in spelled
    return v.op == "view" and ".view" in spelled


def is_torch_method(name: str) -> bool:
    """Whether a spelling is a method, or a keyword of a method, that only torch has."""
    if not name.startswith("."):
        return False
    method, _, keyword = name[1:].partition("(")
    return keyword.rstrip("=)") in TORCH_KEYWORDS if keyword else method in TENSOR_METHODS
