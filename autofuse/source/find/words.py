"""The words without which a file holds no match of a rule, out of the rule's own pattern.

A pattern cannot do without some operation. What calls that operation is told by the vocabulary, and what else is read
as one by the canonical form by the table here: a softmax may be written with `exp`. Knows spellings as words; what
they mean in a file is the business of the capture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from autofuse.ir.graph import CONST, PARAMETER, Value, is_const
from autofuse.ir.vocabulary import MODULES, OPS, OUR_ACTIVATIONS
from autofuse.match.pattern import LoadedRule, Pattern
from autofuse.rule import Rule
from autofuse.source.find.landmarks import Hints

Word = tuple[str, str]  # a pattern for a word, and one for what has to stand beside it; "" for nothing

_SPELLED = r"exp\(|erf\(|tanh|igmoid|wish|LU\b|lu\b|ish\b|relu|ACT2|get_activation|LU6|lu6"
_OURS = (word for op in OUR_ACTIVATIONS.values() for word in (op.name, op.module))
_ACTIVATIONS = "|".join((_SPELLED, *(word for word in _OURS if not re.search(_SPELLED, word))))
_LIKELIHOODS = r"oftmax|exp\(|ntropy|nll_loss|NLLLoss"
_NORMS: tuple[Word, ...] = (
    (r"Norm\b|norm\(", r"[+/]|\badd|\bdiv|sqrt|pow|\.5"),
    (r"sqrt|\.5\b|std\b", r"mean|sum|var|[Nn]orm"),
)
_ROOTS = r"sqrt|\.5\b|\*\*|pow|std\b|[Nn]orm"

# canonical operation -> how else it is written than by the names of its own row.
WRITTEN_AS: dict[str, tuple[Word, ...]] = {
    "activation": ((_ACTIVATIONS, ""), (r"clamp|clip", r"\b6\b")),
    "activation relu": ((r"relu|LU\b|ACT2|get_activation|clamp|clip", ""),),
    "activation relu_squared": ((r"relu|LU\b|ACT2|get_activation|clamp|clip", ""),),
    "clamp": ((r"clamp|clip|[lL][uU]6", ""),),
    "cross_entropy": ((_LIKELIHOODS, ""),),
    "dropout": ((r"[Dd]ropout", ""),),
    "layer_norm": _NORMS,
    "linear": ((r"[Ll]inear|addmm|@|matmul|\bb?mm\b|einsum", ""),),
    "log": ((r"\blog_?\b|log1p", ""),),
    "log_softmax": ((_LIKELIHOODS, ""),),
    "logsumexp": ((_LIKELIHOODS, ""),),
    "matmul": ((r"@|matmul|\bb?mm\b|baddbmm|addmm|einsum|[Ll]inear", ""),),
    "mean": ((r"mean|sum|var\b|std\b|[Nn]orm", ""),),
    "rms_norm": _NORMS,
    "rotation": (
        (r"\bcat\b|\bconcat|\bstack\b", r"-\s*[A-Za-z_(]|\bneg"),
        (r"complex|\brotary\(", ""),
    ),
    "sigmoid": ((r"igmoid|expit\(|exp\(|LU\b|lu\b|wish", ""),),
    "softmax": ((r"oftmax|exp\(", ""),),
    "sqrt": ((_ROOTS, ""),),
    "rsqrt": ((_ROOTS, ""),),
    "number_sqrt": ((_ROOTS, ""),),
    "sum": ((r"sum|einsum|[Nn]orm|mean|ntropy", ""),),
    "var": ((r"var\b|var_mean|std\b", ""),),
}
# What operators, indices or layouts write, or what takes so many forms that no word tells of it.
UNTOLD = frozenset(
    """
    add sub rsub mul div floordiv mod pow number_pow neg reciprocal square eq ne lt le gt ge invert and or not is_none
    choice item slice tuple attribute permute permute_by cast keep kept masked masked_fill where picked view flat
    refold unsqueeze squeeze expand expand_as size dim chunk split unbind select real imag float32 long bool number
    tensor transpose mT t rows complex
""".split()
)
# Operations that most files on torch have, whatever they are about: told by them only where nothing else is.
_COMMON = frozenset("matmul linear mean sum dropout sqrt rsqrt number_sqrt cat stack max arange zeros ones".split())
_KNOWN: dict[tuple[type[Rule], ...], Hints] = {}


def hints_of(rules: Sequence[LoadedRule]) -> Hints:
    """What a file, or a function, must have for one of `rules` to find anything in it."""
    key = tuple(r.rule for r in rules)
    if key not in _KNOWN:
        _KNOWN[key] = Hints(*_merged(word for r in rules for word in words_of(r)))
    return _KNOWN[key]


def words_of(rule: LoadedRule) -> tuple[Word, ...]:
    """One of these is in every text that the rule matches. What stands beside is known of autofuse's own rules only."""
    words = _words_of(rule.pattern)
    return words if rule.ships else tuple((word, "") for word, _ in words)


def _words_of(pattern: Pattern) -> tuple[Word, ...]:
    needed = {_kind(v): v for result in pattern.results for v in _required(pattern, result)}
    told = [kind for kind in needed if kind.partition(" ")[0] not in UNTOLD]
    if not told:
        return (("", ""),)
    rarest = min(told, key=lambda kind: (kind in _COMMON, kind))
    written = WRITTEN_AS.get(rarest, WRITTEN_AS.get(needed[rarest].op))
    return (*_named(needed[rarest]), *written) if written else tuple(_named(needed[rarest]))


def _required(pattern: Pattern, step: Value) -> Iterator[Value]:
    """The steps that every match has: not those that code may leave out."""
    inner = pattern.optional(step)
    if inner is not None:
        yield from _required(pattern, inner)
    elif step.op not in (PARAMETER, CONST):
        yield step
        for part in step.inputs:
            yield from _required(pattern, part)


def _kind(v: Value) -> str:
    """The operation, and which activation it is where the pattern says so."""
    kind = f"{v.op} {v.inputs[1].data}" if v.op == "activation" and is_const(v.inputs[1]) else v.op
    return kind if kind in WRITTEN_AS else v.op


def _named(v: Value) -> Iterator[Word]:
    """The names of an operation's functions, methods and layers, unless the table has them."""
    chosen = str(v.inputs[1].data) if v.op == "activation" else ""
    op = chosen if chosen in OPS else v.op
    if op in WRITTEN_AS or op not in OPS:
        return
    names = {n.rpartition(".")[2] for n in OPS[op].names}
    names |= {name.rpartition(".")[2] for name, made in MODULES.items() if made.op == op}
    names = {n for n in names if op == v.op or not re.search(_ACTIVATIONS, n)}  # the others are told already
    words = [rf"\b{re.escape(n)}_?\b" for n in sorted(names) if n.isidentifier()]
    if len(words) < len(names):
        yield "", ""  # an operator
    elif words:
        yield "|".join(words), ""


def _merged(words: Iterable[Word]) -> list[tuple[bytes, bytes]]:
    """Words that need the same beside them as one, each alternative once."""
    found: dict[str, dict[str, None]] = {}
    for word, beside in words:
        found.setdefault(beside, {}).update(dict.fromkeys(word.split("|")))  # no word has parentheses that group
    return [("|".join(w).encode() if "" not in w else b"", beside.encode()) for beside, w in found.items()]
