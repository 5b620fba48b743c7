"""The words that the bytes of a file mention, and whether the file may concern other files.

Reading bytes is much faster than parsing. A file is parsed only if its bytes mention the words in question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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


# Several names of one line may be assigned, so a match does not include the names that follow: `a.b, torch.c = d`.
_ASSIGNED = re.compile(
    rb"\.\w+\s*(?:(?=(?P<others>,[^=\n#]*=)(?!=))|=(?!=)|\)\s*=(?!=)|[ ]in\b|(?P<colon>:)[ \t]*$)", re.MULTILINE
)
_AS = re.compile(rb"\bas\b")
_UNCOUNTED = re.compile(rb"[\"'#;\\]")
_OF_TORCH = re.compile(rb"(?:\bF|\btorch|functional|\bTensor|nn\.\w+)\Z")
_TORCH_ENDS = (b"F", b"torch", b"functional", b"Tensor")  # a fast test before the expression
_ANNOTATION = re.compile(
    rb"[ \t]*(?:(?!(?:else|try|finally|except)\b)[\w.]+[ \t]*:|(?:async[ \t]+)?def[ \t]+\w+\()[^;\"'()]*\Z"
)
_MAX_NAME = 100  # bytes of a dotted torch name
# One expression for each function: those that start with a literal text are fast.
_SET_ON_TORCH = {
    word: re.compile(re.escape(word) + rb"\(\s*[\"']?(?:F|torch)\b")
    for word in (b"setattr", b"patch", b"patch.object", b"vars")
} | {b"__dict__": re.compile(rb"\b(?:F|torch)(?:\.\w+)*\.__dict__")}
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
_CLASS_WITH_BASES = re.compile(rb"^[ \t]*class\s+\w+\s*\(", re.MULTILINE)
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
_END_OF_RENAMED = re.compile(
    rb"=[ \t]*(?:\w+\.)*_*[A-Z]\w*[ \t]*(?:#.*)?$", re.MULTILINE
)  # fast: starts with a literal
_ATTRIBUTE = re.compile(rb"\.(_*[A-Z]\w*|\w+(?=\.\w+\s*=(?!=)))")
_WORD = re.compile(rb"\w+")


def find_mentions(source: bytes) -> Mentions:
    """Search the bytes of a file for the words that matter."""
    imports = _IMPORTS.findall(source)
    words = frozenset(w for _, text in imports for w in _WORD.findall(text))
    dynamic = frozenset(w for text in _dynamic_imports(source) for w in _WORD.findall(text))
    modules = dynamic | {w for kind, text in imports if kind == b"import" for w in _WORD.findall(text)}
    renames = frozenset(pair for _, text in imports if b" as " in text for pair in _RENAMED_BY_IMPORT.findall(text))
    renames |= {(old, new) for names, old in _renamed_by_assignment(source) for new in _WORD.findall(names)}
    changes_objects, reads_layouts = _CHANGES.search(source) is not None, _ASKS.search(source) is not None
    flags = (_WATCHES(source), _LOOKS_INSIDE(source), _KERNELS(source), b"Dropout" in source)
    return Mentions(
        words | dynamic,
        modules,
        renames,
        frozenset(_ATTRIBUTE.findall(source)),
        changes_objects or _defines_subclasses(source),
        _computes_bases(source, words | modules),
        _patches_torch(source),
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
    """Whether a file assigns to a name. With `indented`, also whether a function may have an argument of this name."""
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


def _dynamic_imports(source: bytes) -> list[bytes]:
    has_words = b"import_module" in source or b"__import__" in source
    return _DYNAMIC_IMPORT.findall(source) if has_words else []


def _renamed_by_assignment(source: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names on the left of `B = C = layers.A`, and `A`."""
    for end in _END_OF_RENAMED.finditer(source):
        found = _RENAMED.match(source, source.rfind(b"\n", 0, end.start()) + 1)
        if found is not None:
            yield found[1], found[2]


def _defines_subclasses(source: bytes) -> bool:
    return _CLASS_WITH_BASES.search(source) is not None or _CREATES_CLASS.search(source) is not None


def _patches_torch(source: bytes) -> bool:
    """Whether the file may replace something in torch: `F.softmax = mine`, `setattr(torch, name, mine)`."""
    if any(word in source and expression.search(source) for word, expression in _SET_ON_TORCH.items()):
        return True
    names = set(_other_names_of_torch(source))
    other_names = names - {b"F", b"nn"}
    if other_names and _changes_one_of(other_names).search(source):
        return True
    if passes_torch(source, names):
        return True
    return any(_is_of_torch(source, m.start()) and _may_assign(source, m) for m in _ASSIGNED.finditer(source))


def _other_names_of_torch(source: bytes) -> Iterator[bytes]:
    """Yield the names that a file gives to modules, classes and functions of torch."""
    for line in source.split(b"\n"):
        if b"torch" in line and (b"=" in line or b"as" in line):
            yield from (n for names in _NAME_OF_TORCH.findall(line) for n in names if n)


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


def _may_assign(source: bytes, match: re.Match[bytes]) -> bool:
    """Whether a match of _ASSIGNED may be an assignment.

    It is none in an annotation, in the arguments of a call, or before a colon without `as`.
    """
    start = match.start()
    if match["colon"] is None:
        return not _is_annotation(source, start) and not _is_argument(source, match)
    line = source.rfind(b"\n", 0, start) + 1  # `with f() as torch.softmax:`; but not `def f() -> torch.Tensor:`
    return _continues(source, line) or _AS.search(source, line, start) is not None


def _is_argument(source: bytes, match: re.Match[bytes]) -> bool:
    """Whether a match of _ASSIGNED surely is in the arguments of a call: `zeros(n, dtype=torch.long, device=d)`.

    Its line then shows a bracket that opens before it, or one that closes behind it. A line with strings, comments or
    several statements is not examined, because their brackets do not count.
    """
    at, end, found = match.start(), source.find(b"\n", match.start()), match[0] + (match["others"] or b"")
    before, behind = source[source.rfind(b"\n", 0, at) + 1 : at], source[at : end if end >= 0 else len(source)]
    if not found.endswith(b"=") or found.count(b")") > found.count(b"("):  # `for torch.a in b`, `(torch.a, b) = f`
        return False
    if _UNCOUNTED.search(before) or _UNCOUNTED.search(behind):
        return False
    opened = before.count(b"(") - before.count(b")")
    return opened > 0 or b")" not in before and behind.count(b")") > behind.count(b"(")


def _continues(source: bytes, line: int) -> bool:
    """Whether the line that starts at `line` continues one that ends with a backslash."""
    return source[max(0, line - 3) : line].rstrip(b"\r\n").endswith(b"\\")


def _is_annotation(source: bytes, end: int) -> bool:
    """Whether a dotted name that ends at `end` surely is a part of an annotation: `x: torch.Tensor = y`.

    Only a compound statement could have an assignment after a colon. Its line starts with a keyword, or continues a
    line that ends with a backslash.
    """
    start = source.rfind(b"\n", 0, end) + 1
    return not _continues(source, start) and _ANNOTATION.match(source[start:end]) is not None
