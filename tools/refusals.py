"""Writes docs/refusals.md: `python -m tools.refusals`. Run it after a change in autofuse/reasons/."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from autofuse.reasons.reason import Code, Reason
from autofuse.reasons.table import GROUPS, codes_of

PAGE = Path(__file__).parents[1] / "docs" / "refusals.md"
_HEAD = """\
# Why something is not fused

`python -m tools.refusals` writes this page from the table in `autofuse/reasons/`, and a test compares them.

Every site that is not fused has a reason, and each reason has a code. `autofuse check --declined --format json`, the
reports of `autofuse.optimize`, `autofuse.analysis` and profiles show it as `reason_code` ([json.md](json.md)). A code
never changes its name or its meaning. New codes may be added. The sentences may change.

The sentences below are examples: values, names and errors in them depend on the code. The advice about a declined site
also names the rule that applies after the change.
"""
# The values in the examples.
_COMMON = {
    "value": "attn",
    "what": "the matrix of probabilities",
    "which": "the matrix of probabilities",
    "name": "x",
    "operation": "einsum",
    "why": "…",
    "error": "…",
    "how": "tested",
    "place": "an attribute",
    "call": "print",
    "block": "loop",
    "classes": "2",
}
_SPECIAL = {
    "value-yielded": {"how": "yielded"},
    "value-seen": {"call": "locals"},
    "other-arguments": {"operation": "softmax", "given": "-2", "wanted": "-1"},
    "step-before": {"step": "clamp", "operation": "softmax"},
    "operand-written": {"value": "keys"},
    "operand-passed-on": {"value": "keys"},
    "result-written": {"value": "out"},
    "step-writes": {"value": "scores"},
    "arguments-starred": {"starred": "**options", "added": "`fused=True`"},
    "rule-declined": {"why": "eps is a tensor, but torch's norms take a number", "value": "eps"},
    "rule-unknown": {"why": "the text does not show whether the weight has the shape of the last dimension"},
    "attribute-changes": {"name": "weight", "value": "self.weight"},
    "value-out-of-reach": {"value": "keys"},
    "reduction-unread": {"so": ", and so its shape,"},
    "value-unspelled": {"error": "unsupported operand type(s) for +"},
    "size-of-removed": {"name": "scores"},
    "operands-refused": {"error": "expected a tensor of 4 dimensions"},
    "other-shape": {"found": "(2, 4, 8)", "wanted": "(2, 1, 4, 8)"},
    "torch-lacks-operation": {"operation": "gated_mlp"},
    "forward-asks-tensor-class": {"kind": "Quantized"},
    "target-lacks-operation": {"target": "apex", "operations": "layer_norm, rms_norm", "operation": "attention"},
    "eps-is-none": {"library": "apex's"},
    "loss-without-scale": {"library": "torch's"},
    "liger-gate": {"activation": "relu"},
    "liger-weight": {"norm": "rms_norm", "name": "weight"},
    "apex-weight": {"name": "weight"},
    "class-keeps-forward": {"kind": "Attention", "why": "does not let its attributes be set"},
    "forward-goes-by-type": {"name": "forward"},
    "forward-raised": {"error": "TypeError (unsupported operand type(s) for +)"},
    "model-raised": {"kind": "ValueError", "error": "expected 3 channels"},
    "symbolic-size": {"name": "length"},
    "forward-assigns": {"target": "self.last"},
    "forward-changes": {"target": "self.maps"},
    "forward-registers-buffer": {"name": "mask"},
    "forward-reads-other-module": {"name": "scale"},
    "forward-reads-computed-object": {"name": "length"},
    "forward-reads-changed-object": {"name": "length"},
    "forward-calls-object": {"name": "log", "kind": "Monitor"},
    "forward-uses-unseen": {"name": "batches", "kind": "generator"},
    "forward-stores-own": {"kind": "list"},
    "forward-uses-childs-number": {"how": "computes with"},
    "forward-passes-object": {"kind": "DynamicCache"},
    "forward-passes-module": {"kind": "Linear"},
    "forward-calls-other-module": {"kind": "Linear"},
    "forward-returns-object": {"kind": "Cache"},
    "forward-needs-numbers": {"name": "bool"},
    "forward-takes-number": {"name": "allclose"},
    "forward-calls-unheld": {"name": "requires_grad"},
    "forward-reads-attribute": {"name": "grad_fn"},
    "forward-keeps-outside": {"name": "SEEN"},
    "forward-has-effect": {"name": "print"},
    "forward-reads-state": {"name": "steps", "kind": "generator"},
    "forward-reads-too-much": {"name": "TABLE"},
    "forward-runs-unknown": {"name": "scaled"},
    "forward-reads-dict": {"name": "__dict__"},
    "forward-reads-unreached": {"name": "scale", "kind": "Config"},
    "called-in-many-ways": {"count": "8"},
    "not-verified-yet": {"why": "the model raised ValueError when it was run: expected 3 channels"},
    "not-verified": {"why": "checking takes about 90.0 GiB of memory on cuda:0, and 40.0 GiB are free there"},
    "whole-not-verified": {"why": "checking takes about 90.0 GiB of memory on cuda:0, and 40.0 GiB are free there"},
    "differs": {"why": "Output 0 is off by 3.9e-03 of its largest entry; rounding explains 2.4e-07."},
    "whole-differs": {"why": "Gradient of self.head.weight is off by 3.9e-03 of its largest entry"},
    "not-faster": {"why": "the original stays: 1.2 ms, fused 1.5 ms"},
    "slows-step": {"step": "training step", "ratio": "0.95x (0.94 to 0.97)"},
    "compiled-is-faster": {"ratio": "1.20x (1.15 to 1.26)"},
    "logits-read": {"head": "lm_head", "where": " at model.py:42"},
    "no-loss-seen": {"head": "lm_head"},
    "padding-not-faster": {"head": "lm_head", "why": "training: torch: 3.1 ms, padded 3.2 ms"},
    "slow-products": {"head": "lm_head", "features": "50257"},
    "logits-unchecked": {"why": "checking takes about 90 GiB of memory on cuda:0, and 70 GiB are free there"},
    "other-rank": {"rank": "0", "why": "it found no such site"},
    "out-of-memory": {
        "doing": "checking it",
        "error": "OutOfMemoryError: CUDA out of memory",
        "then": "the original runs",
    },
    "internal-error": {"doing": "checking it", "error": "KeyError: mul_1", "then": "the original runs"},
    "rule-failed": {"error": "RuleError: Own.where raised ValueError: wrong. Correct it in the rule's file."},
    "graph-unreadable": {"error": "KeyError: 'x'"},
}


def page() -> str:
    """Return the text of docs/refusals.md."""
    return "\n".join([_HEAD, *(line for group in GROUPS for line in _section(group))]) + "\n"


def _section(group: ModuleType) -> Iterator[str]:
    title = (group.__doc__ or "").splitlines()[0].rstrip(".")
    yield f"## {title}\n"
    yield "| code | when it appears | for example | what to change |"
    yield "| --- | --- | --- | --- |"
    yield from (_row(code) for code in codes_of(group))
    yield ""


def _row(code: Code) -> str:
    examples = _COMMON | _SPECIAL.get(code.name, {})
    fields = {name for t in (code.sentence, code.named, code.advice) for name in fields_of(t)} - {"value"}
    reason = Reason(code, tuple((name, examples[name]) for name in sorted(fields)))
    value = examples["value"] if code.named or "{value}" in code.advice else ""
    advice = reason.advice(value) or "—"
    return f"| `{code.name}` | {_cell(code.about)} | {_cell(reason.sentence(value))} | {_cell(advice)} |"


def fields_of(template: str) -> set[str]:
    """The names of the fields in the template of a reason."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
