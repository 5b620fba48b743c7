"""What the bytes of a file mention: the words of its imports, and whether it may concern other files at all.

Files are searched as bytes first, and parsed where they mention what is asked for. Knows bytes; parses nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CHANGES = re.compile(
    rb"(?<!self)\.(\w+)\s*(?:\[[^\]\n]*\])?\s*(?:,[^=\n]*)?=(?!=)|(setattr|_modules|_hook|patch|__dict__|set_submodule)\b"
)


@dataclass(frozen=True)
class Mentioned:
    """What the bytes of a file say: the words of its imports, and whether it inherits or changes attributes."""

    words: frozenset[bytes]
    modules: frozenset[bytes]  # of those that are imported whole
    concerns_others: bool
    patches_torch: bool
    differentiates: bool
    asks_layouts: bool
    renews: bool
    watches: bool
    looks_inside: bool
    chooses_kernels: bool
    has_dropout: bool


class _Words:
    """Words of which a text may hold one; one that ends in `*` may go on. Found far sooner than by a pattern."""

    def __init__(self, words: str) -> None:
        self._words = [(w.rstrip("*").encode(), w.endswith("*")) for w in words.split(" | ")]

    def __call__(self, source: bytes) -> bool:
        return any(_stands_in(source, word, goes_on) for word, goes_on in self._words)


def _stands_in(source: bytes, word: bytes, goes_on: bool) -> bool:
    """Whether `word` is in a text, and neither begins inside another word nor, unless it `goes_on`, ends inside one."""
    at = source.find(word)
    while at >= 0:
        end = at + len(word)
        if not _in_a_word(source[at - 1 : at]) and (goes_on or not _in_a_word(source[end : end + 1])):
            return True
        at = source.find(word, end)
    return False


def _in_a_word(character: bytes) -> bool:
    return character.isalnum() or character == b"_"


_ASSIGNED = re.compile(rb"\.\w+\s*=(?!=)")
_OF_TORCH = re.compile(rb"(?:\bF|\btorch|functional|\bTensor|nn\.\w+)\Z")
_LONGEST = 100  # bytes of a name of torch's
_SET_ON_TORCH = re.compile(rb"(?:setattr|patch(?:\.object)?)\(\s*[\"']?(?:F|torch)\b")
_SETS = _Words("setattr | set_submodule | _modules")
_WALKS = _Words("named_children | named_modules | get_submodule | children | modules")
_ASKS = re.compile(
    rb"\.(?:view|view_as|stride|strides|is_contiguous|as_strided|data_ptr|storage|untyped_storage|storage_offset)\b"
)
_DIFFERENTIATES = _Words(
    "create_graph* | hessian* | hvp* | vhp* | jvp* | jacfwd* | linearize* | make_dual* | gradgradcheck* | "
    "autograd.grad* | torch.func* | functorch*"
)
_WATCHES = _Words(
    "FlopCounterMode | TorchDispatchMode | TorchFunctionMode | __torch_function__ | __torch_dispatch__ | torch.fx | "
    "import fx | create_selective_checkpoint_contexts | CheckpointPolicy | key_averages | saved_tensors_hooks"
)
_LOOKS_INSIDE = _Words(
    "f_locals | getargvalues | getinnerframes | getouterframes | capture_locals | show_locals | getsource* | co_* | "
    "linecache | __file__ | dis | getclosurevars"
)
_KERNELS = _Words("sdp_kernel | sdpa_kernel | enable_math_sdp | _set_sdp_use_math")
_IMPORTS = re.compile(rb"^[ \t]*(import|from)\b((?:[^\n(]*\([^)]*\))|[^\n]*)", re.MULTILINE)
_INHERITS = re.compile(rb"^[ \t]*class\s+\w+\s*\(", re.MULTILINE)
_WORD = re.compile(rb"\w+")


def mentioned(source: bytes) -> Mentioned:
    """What a file of these bytes mentions."""
    imports = _IMPORTS.findall(source)
    words = frozenset(w for _, text in imports for w in _WORD.findall(text))
    modules = frozenset(w for kind, text in imports if kind == b"import" for w in _WORD.findall(text))
    others = _INHERITS.search(source) is not None or _CHANGES.search(source) is not None
    patches = _patches_torch(source)
    asks, renews = _ASKS.search(source) is not None, _SETS(source) and _WALKS(source)
    more = (_WATCHES(source), _LOOKS_INSIDE(source), _KERNELS(source), b"Dropout" in source)
    return Mentioned(words, modules, others, patches, _DIFFERENTIATES(source), asks, renews, *more)


def _patches_torch(source: bytes) -> bool:
    """Whether something of torch's may be replaced: `F.softmax = mine`, `setattr(torch, name, mine)`."""
    if (b"setattr" in source or b"patch" in source) and _SET_ON_TORCH.search(source):
        return True
    starts = (m.start() for m in _ASSIGNED.finditer(source))
    return any(_OF_TORCH.search(source[max(0, at - _LONGEST) : at]) for at in starts)
