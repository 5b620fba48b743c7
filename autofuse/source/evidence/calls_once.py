"""Is every call made as often as before? A call that may do more than return a value must not be written twice."""

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


def calls_are_made_once(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails where a call would be made more often than the code makes it."""
    written = _in_new_text(claim)
    for v, places in claim.captured.places.items() if written else ():
        calls = [p.node for p in places if isinstance(p.node, ast.Call)]
        if not calls or not _does_more(v):
            continue
        text = ast.unparse(calls[0])
        if not written[text]:
            continue
        nodes = [n for n in walk(claim.captured.function) if isinstance(n, ast.Call) and ast.unparse(n) == text]
        gone = sum(any(is_inside(span_of(n), span) for span in _taken_out(claim)) for n in nodes)
        if written[text] > gone:
            yield Fails(because(tensors.CALLED_TWICE, call=text.partition("(")[0]), v)


def _does_more(v: Value) -> bool:
    """Whether computing a value again may give another one, or do something else."""
    if v.op == CALL:
        name = str(v.data[0]) if isinstance(v.data, tuple) else ""
        if name.startswith(("torch.", "math.")):
            return name.rpartition(".")[2].startswith(_RANDOM)
        return name not in HARMLESS and name not in MODULES
    return v.op in OPS and OPS[v.op].effect == "random"


def _in_new_text(claim: Claim) -> Counter[str]:
    texts = [new.text for _, new in claim.edit.replacements] + [text for _, text in claim.edit.insertions]
    found: Counter[str] = Counter()
    for text in texts:
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        found.update(ast.unparse(n) for n in walk(tree) if isinstance(n, ast.Call))
    return found


def _taken_out(claim: Claim) -> tuple[TextSpan, ...]:
    return (*claim.edit.removals, *(span for span, _ in claim.edit.replacements))
