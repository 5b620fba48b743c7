"""Derives from the patterns of rules the words that a file must contain for a match.

Every match contains the operations that a pattern requires. The vocabulary lists the names that call such an operation.
The table WRITTEN_AS lists other spellings that the canonical form reads as the same operation: `exp` for a softmax.
This module handles words only; the capture decides what a word means in a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from autofuse.ir.graph import CONST, PARAMETER, Graph, Value, is_const
from autofuse.ir.vocabulary import MODULES, OPS, OUR_ACTIVATIONS
from autofuse.match.pattern import LoadedRule, Pattern
from autofuse.rule import Rule
from autofuse.source.find.word_hints import RuleWords, WordHints

Word = tuple[str, str]  # two regular expressions: for a word, and for the text that must accompany it ("" for any)

_SPELLED = r"exp\(|erf\(|tanh|igmoid|wish|LU\b|lu\b|ish\b|relu|ACT2|get_activation|LU6|lu6"
_OURS = (word for op in OUR_ACTIVATIONS.values() for word in (op.name, op.module))
_ACTIVATIONS = "|".join((_SPELLED, *(word for word in _OURS if not re.search(_SPELLED, word))))
_LIKELIHOODS = r"oftmax|exp\(|ntropy|nll_loss|NLLLoss"
_NORMS: tuple[Word, ...] = (
    (r"Norm\b|norm\(", r"[+/]|-\s*[A-Za-z_(]|\badd|\bsub|\bdiv|sqrt|pow|\.5"),
    (r"sqrt|\.5\b|std\b", r"mean|sum|var|[Nn]orm"),
)
_ROOTS = r"sqrt|\.5\b|\*\*|pow|std\b|[Nn]orm"

# canonical operation -> its spellings other than the names in its own row of the vocabulary
WRITTEN_AS: dict[str, tuple[Word, ...]] = {
    "activation": ((_ACTIVATIONS, ""), (r"clamp|clip", r"\b6\b")),
    "activation gelu": ((r"\berf\(|\berf_\(|\berfc\(|gelu|GELU|GeLU|Gelu|ACT2|get_activation", ""),),
    "activation gelu_tanh": ((r"tanh|gelu|GELU|GeLU|Gelu|ACT2|get_activation", ""),),
    "activation hardswish": ((r"lu6|LU6|Lu6|ardtanh|wish|ACT2|get_activation", ""), (r"clamp|clip", r"\b6\b")),
    "activation mish": ((r"tanh|mish|Mish|MISH|ACT2|get_activation", ""),),
    "activation silu": ((r"igmoid|expit|exp\(|silu|SILU|SiLU|Silu|wish|ACT2|get_activation", ""),),
    "activation relu": ((r"relu|LU\b|ACT2|get_activation|clamp|clip", ""),),
    "activation relu_squared": ((r"relu|LU\b|ACT2|get_activation|clamp|clip", ""),),
    "clamp": ((r"clamp|clip|lu6|LU6|Lu6", ""),),
    "cross_entropy": ((_LIKELIHOODS, ""),),
    "divergence": ((rf"{_LIKELIHOODS}|divergence", ""),),
    "dropout": ((r"[Dd]ropout", ""),),
    "entropy": ((_LIKELIHOODS, ""),),
    "layer_norm": _NORMS,
    "linear": ((r"[Ll]inear|addmm|@|matmul|\bmm\b|\bbmm\b|einsum", ""),),
    "log": ((r"\blog_?\b|log1p", ""),),
    "log_softmax": ((_LIKELIHOODS, ""),),
    "logsumexp": ((_LIKELIHOODS, ""),),
    "matmul": ((r"@|matmul|\bmm\b|\bbmm\b|baddbmm|addmm|einsum|inear", ""),),
    "mean": ((r"mean|sum|var\b|std\b|[Nn]orm", ""),),
    "rms_norm": _NORMS,
    "rotation": (
        (r"\bcat\(|\.cat\b|\bconcat|\bstack\(|\.stack\b", r"-\s*[A-Za-z_(]|\bneg"),
        (r"as_complex|\bcomplex\(|\.complex\b|polar|\brotary\(", ""),
    ),
    "sigmoid": ((r"igmoid|expit\(|exp\(|LU\b|lu\b|wish", ""),),
    "sink_softmax": ((r"oftmax|exp\(", ""),),
    "softmax": ((r"oftmax|exp\(", ""),),
    "sqrt": ((_ROOTS, ""),),
    "rsqrt": ((_ROOTS, ""),),
    "number_sqrt": ((_ROOTS, ""),),
    "sum": ((r"sum|einsum|[Nn]orm|mean|ntropy", ""),),
    "var": ((r"var\b|var_mean|std\b", ""),),
}
# Operations without a typical word: operators, indexing, layouts, or too many spellings.
WITHOUT_WORDS = frozenset(
    """
    add sub rsub mul div floordiv mod pow number_pow neg reciprocal square eq ne lt le gt ge invert and or not is_none
    choice item slice tuple attribute permute permute_by cast keep kept masked masked_fill where picked view flat
    refold unsqueeze squeeze expand expand_as size dim chunk split unbind select real imag float32 long bool number
    tensor transpose mT t rows complex
""".split()
)
_MATRIX_PRODUCT = r"@|matmul|\bmm\b|\bbmm\b|baddbmm|addmm|einsum|inear"
_PRODUCT = r"\*|/|mul|div|einsum|prod"
# Words that a match with this operation contains too, beside those of its rarest operation.
ALSO_WRITTEN = {
    "linear": _MATRIX_PRODUCT,
    "log": r"log",
    "matmul": _MATRIX_PRODUCT,
    "mul": _PRODUCT,
    "rotation": _PRODUCT,
}
# Operations that most torch files use. Their words are used only if a pattern requires nothing rarer.
_COMMON = frozenset("matmul linear mean sum dropout sqrt rsqrt number_sqrt cat stack max arange zeros ones".split())
_CACHE: dict[tuple[type[Rule], ...], WordHints] = {}


def required_words(rules: Sequence[LoadedRule]) -> WordHints:
    """The words for `rules`. A file or a function without the words of any rule cannot contain a match."""
    key = tuple(r.rule for r in rules)
    if key not in _CACHE:
        _CACHE[key] = WordHints([words_of_rule(r) for r in rules])
    return _CACHE[key]


def words_of_rule(rule: LoadedRule) -> RuleWords:
    """The words of one rule, which every text that it matches contains.

    A rule of a user needs one word only, because its operations may have other spellings than the built-in rules know.
    """
    required = {_operation_name(v): v for result in rule.pattern.results for v in _required_steps(rule.pattern, result)}
    words = _words_of_rarest(required)
    if not rule.ships:
        return RuleWords(_merge_words((word, "") for word, _ in words))
    others = {ALSO_WRITTEN[kind].encode(): None for kind in required if kind in ALSO_WRITTEN}
    return RuleWords(_merge_words(words), tuple(others))


def words_of_graph(graph: Graph) -> bytes:
    """A text with every name of each operation of a graph, and its literals. It has the words of each match in it.

    Dropout is included in any case, because callers may pass a dropout layer.
    """
    literals = {repr(v.data) for v in graph.values if v.op == CONST and isinstance(v.data, (int, float, str))}
    names = (_names_of_operation(op) for op in dict.fromkeys(("dropout", *(v.op for v in graph.values))))
    return " ".join((*names, *literals)).encode(errors="replace")


@lru_cache(maxsize=1024)
def _names_of_operation(op: str) -> str:
    """Every way to write an operation: `torch.exp( .exp(`. An activation of unknown name may come from a table."""
    names = (op, *(OPS[op].names if op in OPS else ()), *(name for name, m in MODULES.items() if m.op == op))
    return " ".join(f"{name}(" for name in (*names, *(("ACT2FN",) if op == "activation" else ())))


def _words_of_rarest(required: Mapping[str, Value]) -> tuple[Word, ...]:
    """The words of the operation that the fewest files use, of those that a pattern requires."""
    typical = [kind for kind in required if kind.partition(" ")[0] not in WITHOUT_WORDS]
    if not typical:
        return (("", ""),)
    rarest = min(typical, key=lambda kind: (kind in _COMMON, kind))
    spellings = WRITTEN_AS.get(rarest, WRITTEN_AS.get(required[rarest].op))
    return (*_names_of(required[rarest]), *spellings) if spellings else tuple(_names_of(required[rarest]))


def _required_steps(pattern: Pattern, step: Value) -> Iterator[Value]:
    """Yields the steps that every match has. Optional steps are left out."""
    inner = pattern.optional(step)
    if inner is not None:
        yield from _required_steps(pattern, inner)
    elif step.op not in (PARAMETER, CONST):
        yield step
        for part in step.inputs:
            yield from _required_steps(pattern, part)


def _operation_name(v: Value) -> str:
    """The operation of a step, with the name of the activation if the pattern gives one."""
    kind = f"{v.op} {v.inputs[1].data}" if v.op == "activation" and is_const(v.inputs[1]) else v.op
    return kind if kind in WRITTEN_AS else v.op


def _names_of(v: Value) -> Iterator[Word]:
    """The names of the functions, methods and layers of an operation, unless WRITTEN_AS replaces them."""
    activation = str(v.inputs[1].data) if v.op == "activation" else ""
    op = activation if activation in OPS else v.op
    if op in WRITTEN_AS or op not in OPS:
        return
    names = {n.rpartition(".")[2] for n in OPS[op].names}
    names |= {name.rpartition(".")[2] for name, module in MODULES.items() if module.op == op}
    names = {n for n in names if op == v.op or not re.search(_ACTIVATIONS, n)}  # _ACTIVATIONS covers the others
    words = [rf"\b{re.escape(n)}\b|\b{re.escape(n)}_\b" for n in sorted(names) if n.isidentifier()]
    if len(words) < len(names):
        yield "", ""  # an operator: any text may contain it
    elif words:
        yield "|".join(words), ""


def _merge_words(words: Iterable[Word]) -> tuple[tuple[bytes, bytes], ...]:
    """Joins words that need the same accompanying text, without duplicates."""
    merged: dict[str, dict[str, None]] = {}
    for word, companion in words:
        merged.setdefault(companion, {}).update(dict.fromkeys(word.split("|")))  # safe: no word has a group with `|`
    return tuple(("|".join(w).encode() if "" not in w else b"", companion.encode()) for companion, w in merged.items())
