"""An `after` that calls functions of other modules, as text.

Names are written as the file spells them, everything else as in the rule. This file handles the steps of an `after`; it
has no table of functions.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofuse.rule import Applied, Constant, Imported, Part, Replacement
from autofuse.source.targets.autofuse import bypass_assumption
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.printing import fill, literal_text
from autofuse.source.targets.speller import Speller


def expression_call(replacement: Replacement, captures: Arguments, speller: Speller) -> TargetCall:
    """Return the call that a rule's `after` returns. Raises Unwritable if an operand is not available."""
    assert replacement.expression is not None, "operations of autofuse.ops are written by their own targets"
    printer = _Printer(captures, speller)
    function, arguments = printer.call_parts(replacement.expression)
    return TargetCall(function, arguments, unsafe=bypass_assumption(captures, speller))


@dataclass(frozen=True)
class _Printer:
    captures: Arguments
    speller: Speller

    def call_parts(self, call: Applied) -> tuple[str, tuple[str, ...]]:
        """The function of a call or method, and its arguments without the optional ones that the code does not pass."""
        first, *others = call.parts
        function = fill("{0}", self.text(first), tight=True) if call.kind == "method" else self.text(first)
        keywords = [f"{name}={self.text(p)}" for name, p in call.named if not isinstance(p, str) or p in self.captures]
        return function + (f".{call.name}" if call.kind == "method" else ""), (*map(self.text, others), *keywords)

    def text(self, part: Part) -> str:
        if isinstance(part, str):
            return self.speller.text(self.captures[part])
        if isinstance(part, Constant):
            return literal_text(part.value)
        if isinstance(part, Imported):
            return self.speller.imports.text_with_import(part.name, part.home, part.by_name, self.speller.place)
        return self.applied_text(part)

    def applied_text(self, part: Applied) -> str:
        if part.kind in ("call", "method"):
            function, arguments = self.call_parts(part)
            return f"{function}({', '.join(arguments)})"
        if part.kind == "slice":
            start, stop, step = ("" if p == Constant(None) else self.text(p) for p in part.parts)
            return f"{start}:{stop}" + (f":{step}" if step else "")
        inner = [self.text(p) for p in part.parts]
        if part.kind == "tuple":
            return "(" + ", ".join(inner) + ("," if len(inner) == 1 else "") + ")"
        if part.kind == "item":
            index = part.parts[1]
            is_tuple = isinstance(index, Applied) and index.kind == "tuple"  # parentheses around a slice are no syntax
            return fill("{0}", inner[0], tight=True) + f"[{inner[1][1:-1] if is_tuple else inner[1]}]"
        return fill(part.name if part.kind == "operator" else "{0}." + part.name, *inner)
