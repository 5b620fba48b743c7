"""Checks that the edited code makes no call more often than before, if the call may have side effects."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from autofuse.ir.graph import CALL, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.vocabulary import MODULES, OPS
from autofuse.reasons import tensors
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.place.edits import TextSpan, is_inside, span_of

_RANDOM = ("rand", "bernoulli", "dropout", "multinomial", "normal", "poisson", "alpha_dropout", "feature_")


def calls_are_not_repeated(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails if the edited code would make a call more often than the original."""
    written = _count_new_calls(claim)
    for v, places in claim.captured.positions.items() if written else ():
        calls = [p.node for p in places if isinstance(p.node, ast.Call)]
        if not calls or not _must_run_once(v):
            continue
        # Calls are compared by their text. `unparse` removes differences of formatting.
        text = ast.unparse(calls[0])
        if not written[text]:
            continue
        nodes = [n for n in walk(claim.captured.function) if isinstance(n, ast.Call) and ast.unparse(n) == text]
        removed_count = sum(any(is_inside(span_of(n), span) for span in _removed_spans(claim)) for n in nodes)
        if written[text] > removed_count:
            yield Fails(because(tensors.CALLED_TWICE, call=text.partition("(")[0]), v)


def _must_run_once(v: Value) -> bool:
    """Whether computing `v` twice may give another result or a second side effect."""
    if v.op == CALL:
        name = str(v.data[0]) if isinstance(v.data, tuple) else ""
        if name.startswith(("torch.", "math.")):
            return name.rpartition(".")[2].startswith(_RANDOM)
        return name not in HARMLESS and name not in MODULES
    return v.op in OPS and OPS[v.op].effect == "random"


def _count_new_calls(claim: Claim) -> Counter[str]:
    """Counts the calls in the text that the edit inserts, by their text."""
    texts = [new.text for _, new in claim.edit.replacements] + [text for _, text in claim.edit.insertions]
    counts: Counter[str] = Counter()
    for text in texts:
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        counts.update(ast.unparse(n) for n in walk(tree) if isinstance(n, ast.Call))
    return counts


def _removed_spans(claim: Claim) -> tuple[TextSpan, ...]:
    return (*claim.edit.removals, *(span for span, _ in claim.edit.replacements))
