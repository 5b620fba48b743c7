"""Which spellings of an operation only torch understands: its functions, its methods, its keywords.

Knows names and the vocabulary. Follows no values.
"""

from __future__ import annotations

from autofuse.ir.graph import Value
from autofuse.ir.vocabulary import OPS
from autofuse.source.evidence.libraries import KEYWORDS, METHODS


def function_of_torch(name: str) -> bool:
    """Whether a spelling is a function of torch, or a layer; methods and operators are anybody's."""
    own = name[:1].isalpha() and "." not in name and "(" not in name and name != "float"
    return own or name.startswith("torch.") and "(" not in name


def with_numbers_of_torch(v: Value, spelled: set[str]) -> bool:
    """`x.transpose(-2, -1)`, `x.mean(-1, True)`, `x.view(2, 3)`: numpy takes every axis, or a dtype, there."""
    if v.op == "transpose":
        return ".transpose" in spelled and all(type(i.data) is int for i in v.inputs[1:])
    if "keepdim" in OPS[v.op].parameters:  # the second argument of numpy's is a dtype
        at = list(OPS[v.op].parameters).index("keepdim")
        return v.inputs[at].data is True and f".{v.op}" in spelled and f".{v.op}(keepdims=)" not in spelled
    return v.op == "view" and ".view" in spelled


def method_of_torch(name: str) -> bool:
    if not name.startswith("."):
        return False
    method, _, keyword = name[1:].partition("(")
    return keyword.rstrip("=)") in KEYWORDS if keyword else method in METHODS
