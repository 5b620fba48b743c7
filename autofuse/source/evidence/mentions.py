"""The words that the bytes of a file mention, and whether the file may concern other files.

Reading bytes is much faster than parsing. A file is parsed only if its bytes mention the words in question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autofuse.source.evidence.passed_words import is_word_character, passes_torch

_CHANGES = re.compile(
    rb"(?<!self)\.(\w+)\s*(?:\[[^\]\n]*\])?\s*(?:,[^=\n]*)?=(?!=)|(setattr|_modules|_hook|patch|__dict__|set_submodule|vars)\b"
)


@dataclass(frozen=True)
class Mentions:
    """The words in a file that matter for edits of other files.

    A flag is True if the file may contain such code. False is certain.

    Attributes:
        words: the words of its imports.
        modules: the words of `import module` statements, which import a whole module.
        renames: pairs of a name and another name for it: `from layers import Attention as A`, `A = layers.Attention`.
        attributes: names that follow a dot and may be a class or a changed module: `layers.Attention`, `a.b.f = g`.
        concerns_others: it defines subclasses, or changes attributes.
        computed_bases: it defines a class whose base the statements of the file compute: `class A(make()):`.
        patches_torch: it may replace a function or class of torch.
        differentiates: it may take derivatives of derivatives.
        asks_layouts: it may read the memory layout of a tensor.
        changes_objects: it changes attributes of objects that it is given, or adds hooks.
        watches: it may observe which operators run.
        looks_inside: it may inspect frames or source code.
        chooses_kernels: it may restrict the kernels of torch's attention.
        has_dropout: it mentions a Dropout class.
    """

    words: frozenset[bytes]
    modules: frozenset[bytes]
    renames: frozenset[tuple[bytes, bytes]]
    attributes: frozenset[bytes]
    concerns_others: bool
    computed_bases: bool
    patches_torch: bool
    differentiates: bool
    asks_layouts: bool
    changes_objects: bool
    watches: bool
    looks_inside: bool
    chooses_kernels: bool
    has_dropout: bool


class _Words:
    """Words to look for in a text; a word that ends in `*` may be the start of a longer word. Faster than a regex."""

    def __init__(self, words: str) -> None:
        self._words = [(w.rstrip("*").encode(), w.endswith("*")) for w in words.split(" | ")]

    def __call__(self, source: bytes) -> bool:
        return any(_has_word(source, word, is_prefix) for word, is_prefix in self._words)


def _has_word(source: bytes, word: bytes, is_prefix: bool) -> bool:
    """Whether the text holds `word` as a whole word, or as the start of one if `goes_on`."""
    at = source.find(word)
    while at >= 0:
        end = at + len(word)
        if not is_word_character(source[at - 1 : at]) and (is_prefix or not is_word_character(source[end : end + 1])):
            return True
        at = source.find(word, end)
    return False


_ASSIGNED = re.compile(rb"\.\w+\s*(?:=(?!=)|,[^=\n#]*=(?!=)|\)\s*=(?!=)|[ ]in\b|:[ \t]*$)", re.MULTILINE)
_OF_TORCH = re.compile(rb"(?:\bF|\btorch|functional|\bTensor|nn\.\w+)\Z")
_TORCH_ENDS = (b"F", b"torch", b"functional", b"Tensor")  # a fast test before the expression
_ANNOTATION = re.compile(
    rb"[ \t]*(?:(?!(?:else|try|finally|except)\b)[\w.]+[ \t]*:|(?:async[ \t]+)?def[ \t]+\w+\()[^;\"'()]*\Z"
)
_MAX_NAME = 100  # bytes of a dotted torch name
_SET_ON_TORCH = re.compile(
    rb"(?:setattr|patch(?:\.object)?|vars)\(\s*[\"']?(?:F|torch)\b|\b(?:F|torch)(?:\.\w+)*\.__dict__"
)
_NAME_OF_TORCH = re.compile(
    rb"\btorch(?:\.\w+)*[ \t]+as[ \t]+(\w+)|^[ \t]*from[ \t]+torch\b[^\n]*?[ \t]as[ \t]+(\w+)"
    rb"|^[ \t]*(\w+)[ \t]*=[ \t]*torch(?:\.\w+)+[ \t]*$",
    re.MULTILINE,
)
_ASKS = re.compile(
    rb"\.(?:view|view_as|stride|strides|is_contiguous|as_strided|data_ptr|storage|untyped_storage|storage_offset)\b"
)
_DIFFERENTIATES = _Words(
    "create_graph* | hessian* | hvp* | vhp* | jvp* | jacfwd* | linearize* | make_dual* | gradgradcheck* | "
    "autograd.grad* | torch.func* | functorch*"
)
_WATCHES = _Words(
    "FlopCounterMode | TorchDispatchMode | TorchFunctionMode | __torch_function__ | __torch_dispatch__ | fx | "
    "graph.nodes | find_nodes | pattern_matcher | create_selective_checkpoint_contexts | CheckpointPolicy | "
    "key_averages | saved_tensors_hooks"
)
_LOOKS_INSIDE = _Words(
    "f_locals | getargvalues | getinnerframes | getouterframes | capture_locals | show_locals | getsource* | co_* | "
    "linecache | __file__ | dis | getclosurevars"
)
_KERNELS = _Words("sdp_kernel | sdpa_kernel | enable_math_sdp | _set_sdp_use_math")
_IMPORTS = re.compile(rb"^[ \t]*(import|from)\b((?:[^\n(]*\([^)]*\))|[^\n]*)", re.MULTILINE)
_CALL_FOR_CLASS = (  # `type("A", (Base,), {...})`
    rb"\b\w+\s*\([^()\n]*,\s*\((?:[^()\n]|\([^()\n]*\))*\)\s*,\s*(?:\{|dict\b)|\bnew_class\s*\("
)
_INHERITS = re.compile(rb"^[ \t]*class\s+\w+\s*\(|" + _CALL_FOR_CLASS, re.MULTILINE)
_CREATES_CLASS = re.compile(_CALL_FOR_CLASS)
_BASES = re.compile(rb"^([ \t]*)class\s+\w+\s*\(([^:]*)\)\s*:", re.MULTILINE)
_CLASS_NAME = re.compile(rb"^[ \t]*class\s+(\w+)", re.MULTILINE)
_WITHOUT_MEANING = re.compile(
    rb"\w+\s*=\s*[\w.]+|\b(?:Generic|Protocol)\[[^\]]*\]|#[^\n]*"
)  # metaclass=..., Generic[T]
_DYNAMIC_IMPORT = re.compile(rb"(?:import_module|__import__)\(\s*[\"']([\w.]+)")
_RENAMED_BY_IMPORT = re.compile(rb"(\w+)\s+as\s+(\w+)")
_RENAMED = re.compile(
    rb"^[ \t]*(\w+(?:[ \t]*=[ \t]*\w+)*)[ \t]*=[ \t]*(?:\w+\.)*(_*[A-Z]\w*)[ \t]*(?:#.*)?$", re.MULTILINE
)
_ATTRIBUTE = re.compile(rb"\.(_*[A-Z]\w*|\w+(?=\.\w+\s*=(?!=)))")
_WORD = re.compile(rb"\w+")


def find_mentions(source: bytes) -> Mentions:
    """Search the bytes of a file for the words that matter."""
    imports = _IMPORTS.findall(source)
    words = frozenset(w for _, text in imports for w in _WORD.findall(text))
    dynamic = frozenset(w for text in _DYNAMIC_IMPORT.findall(source) for w in _WORD.findall(text))
    modules = dynamic | {w for kind, text in imports if kind == b"import" for w in _WORD.findall(text)}
    renames = frozenset(pair for _, text in imports if b" as " in text for pair in _RENAMED_BY_IMPORT.findall(text))
    renames |= {(old, new) for names, old in _RENAMED.findall(source) for new in _WORD.findall(names)}
    concerns_others = _INHERITS.search(source) is not None or _CHANGES.search(source) is not None
    patches_torch = _patches_torch(source)
    reads_layouts, changes_objects = _ASKS.search(source) is not None, _CHANGES.search(source) is not None
    flags = (_WATCHES(source), _LOOKS_INSIDE(source), _KERNELS(source), b"Dropout" in source)
    return Mentions(
        words | dynamic,
        modules,
        renames,
        frozenset(_ATTRIBUTE.findall(source)),
        concerns_others,
        _computes_bases(source, words | modules),
        patches_torch,
        _DIFFERENTIATES(source),
        reads_layouts,
        changes_objects,
        *flags,
    )


def _computes_bases(source: bytes, imported: frozenset[bytes]) -> bool:
    """Whether a base class may be something else than a name that the file imports or defines as a class."""
    if b"class" not in source and b"(" not in source:
        return False
    if (b"type(" in source or b"new_class" in source or b"Meta" in source) and _CREATES_CLASS.search(source):
        return True
    known = imported | frozenset(_CLASS_NAME.findall(source)) | _BUILTIN_BASES
    statements = {(bool(i), b) for i, b in _BASES.findall(source)}
    for indented, written in statements:
        bases = _WITHOUT_MEANING.sub(b"", written)
        if b"(" in bases or b"[" in bases or b" if " in bases or b"*" in bases:
            return True
        for base in bases.split(b","):
            name = base.strip().partition(b".")[0]
            if name and (name not in known or _binds(source, name, indented)):
                return True
    return False


_BUILTIN_BASES = frozenset(
    b"object Exception ValueError RuntimeError TypeError KeyError dict list tuple set int float str bytes type".split()
)


def _binds(source: bytes, name: bytes, indented: bool) -> bool:
    """Whether a file assigns to a name, or, for a class in a function, may have an argument of this name."""
    at = source.find(name)
    while at >= 0:
        end = at + len(name)
        if source[end : end + 1] not in _GOES_ON and not is_word_character(source[end : end + 1]):
            before = source[source.rfind(b"\n", 0, at) + 1 : at].lstrip()
            if before.startswith((b"for ", b"async for ", b"with ")) or indented and before.startswith(b"def "):
                return True
            if _TARGETS.fullmatch(before) and _ASSIGNS.match(source, end) or _WALRUS.match(source, end):
                return True
        at = source.find(name, end)
    return False


_GOES_ON = (b".", b"(", b")", b"]")  # the usual uses of a class
_TARGETS = re.compile(rb"(?:\(?[\w.\[\]\"' \t*]*,[ \t]*)*\(?")
_ASSIGNS = re.compile(rb"[ \t]*(?:[,:][^=\n]*)?=(?!=)")
_WALRUS = re.compile(rb"[ \t]*:=")


def _patches_torch(source: bytes) -> bool:
    """Whether the file may replace something in torch: `F.softmax = mine`, `setattr(torch, name, mine)`."""
    if any(w in source for w in (b"setattr", b"patch", b"vars", b"__dict__")) and _SET_ON_TORCH.search(source):
        return True
    names = {n for found in _NAME_OF_TORCH.findall(source) for n in found if n}
    other_names = names - {b"F", b"nn"}
    if other_names and _changes_one_of(other_names).search(source):
        return True
    if passes_torch(source, names):
        return True
    return any(
        _is_of_torch(source, m.start()) and not _is_annotation(source, m.start()) for m in _ASSIGNED.finditer(source)
    )


def _changes_one_of(names: set[bytes]) -> re.Pattern[bytes]:
    """A pattern for changes of modules and classes of torch under other names: `t.softmax = f`, `vars(t)`."""
    name = b"(?:" + b"|".join(sorted(names)) + b")"
    return re.compile(
        rb"\b" + name + rb"(?:\.\w+)*(?:\.\w+\s*(?:=(?!=)|,[^=\n#]*=(?!=))|\.__dict__)"
        rb"|(?:setattr|patch\.object|vars)\(\s*" + name + rb"\b"
    )


def _is_of_torch(source: bytes, end: int) -> bool:
    """Whether a dotted name that ends at `end` may belong to torch."""
    name = source[max(0, end - _MAX_NAME) : end]
    return (name.endswith(_TORCH_ENDS) or b"nn." in name) and _OF_TORCH.search(name) is not None


def _is_annotation(source: bytes, end: int) -> bool:
    """Whether a dotted name that ends at `end` surely is a part of an annotation: `x: torch.Tensor = y`.

    Only a compound statement could have an assignment after a colon. Its line starts with a keyword, or continues a
    line that ends with a backslash.
    """
    start = source.rfind(b"\n", 0, end) + 1
    continues = source[max(0, start - 3) : start].rstrip(b"\r\n").endswith(b"\\")
    return not continues and _ANNOTATION.match(source[start:end]) is not None
