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


_PATCHES = re.compile(
    rb"(?:\bF|\btorch|functional|\bTensor|nn\.\w+)\.\w+\s*=(?!=)|(?:setattr|patch(?:\.object)?)\(\s*[\"']?(?:F|torch)\b"
)
_SETS = re.compile(rb"\b(?:setattr|set_submodule|_modules)\b")
_WALKS = re.compile(rb"\b(?:named_children|named_modules|get_submodule|children|modules)\b")
_ASKS = re.compile(
    rb"\.(?:view|view_as|stride|strides|is_contiguous|as_strided|data_ptr|storage|untyped_storage|storage_offset)\b"
)
_DIFFERENTIATES = re.compile(
    rb"\b(?:create_graph|hessian|hvp|vhp|jvp|jacfwd|linearize|make_dual|gradgradcheck|autograd\.grad|torch\.func|functorch)"
)
_WATCHES = re.compile(
    rb"\b(?:FlopCounterMode|Torch(?:Dispatch|Function)Mode|__torch_(?:function|dispatch)__|torch\.fx|import fx|"
    rb"create_selective_checkpoint_contexts|CheckpointPolicy|key_averages|saved_tensors_hooks)\b"
)
_LOOKS_INSIDE = re.compile(
    rb"\b(?:f_locals|getargvalues|getinnerframes|getouterframes|capture_locals|show_locals|getsource\w*|co_\w+|linecache|"
    rb"__file__|dis|getclosurevars)\b"
)
_KERNELS = re.compile(rb"\b(?:sdpa?_kernel|enable_math_sdp|_set_sdp_use_math)\b")
_PATTERNS = (_PATCHES, _DIFFERENTIATES, _ASKS, _SETS, _WALKS, _WATCHES, _LOOKS_INSIDE, _KERNELS)
_IMPORTS = re.compile(rb"^[ \t]*(import|from)\b((?:[^\n(]*\([^)]*\))|[^\n]*)", re.MULTILINE)
_INHERITS = re.compile(rb"^[ \t]*class\s+\w+\s*\(", re.MULTILINE)
_WORD = re.compile(rb"\w+")


def mentioned(source: bytes) -> Mentioned:
    """What a file of these bytes mentions."""
    imports = _IMPORTS.findall(source)
    words = frozenset(w for _, text in imports for w in _WORD.findall(text))
    modules = frozenset(w for kind, text in imports if kind == b"import" for w in _WORD.findall(text))
    others = _INHERITS.search(source) is not None or _CHANGES.search(source) is not None
    patches, differentiates, asks, sets, looks, watches, inside, kernels = (
        p.search(source) is not None for p in _PATTERNS
    )
    return Mentioned(words, modules, others, patches, differentiates, asks, sets and looks, watches, inside, kernels)
