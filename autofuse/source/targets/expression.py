"""An `after` that calls functions of other modules, as text: names as the file spells them, the rest as the rule does.

Knows the steps of an `after` and how captures are written; knows no function by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofuse.rule import Applied, Constant, Imported, Part, Replacement
from autofuse.source.targets.autofuse import bypassing
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.express import Speller
from autofuse.source.targets.printing import fill, literal_text


def expression_call(replacement: Replacement, captures: Arguments, s: Speller) -> TargetCall:
    """The call that a rule's `after` returns. Raises Unwritable where an operand is not available."""
    assert replacement.expression is not None, "operations of autofuse.ops are written by their own targets"
    printer = _Printer(captures, s)
    function, arguments = printer.called(replacement.expression)
    return TargetCall(function, arguments, unsafe=bypassing(captures, s))


@dataclass(frozen=True)
class _Printer:
    captures: Arguments
    speller: Speller

    def called(self, call: Applied) -> tuple[str, tuple[str, ...]]:
        """The function of a call or method, and its arguments; what the code leaves out is left out."""
        first, *rest = call.parts
        function = fill("{0}", self.text(first), tight=True) if call.kind == "method" else self.text(first)
        given = [f"{name}={self.text(p)}" for name, p in call.named if not isinstance(p, str) or p in self.captures]
        return function + (f".{call.name}" if call.kind == "method" else ""), (*map(self.text, rest), *given)

    def text(self, part: Part) -> str:
        if isinstance(part, str):
            return self.speller.text(self.captures[part])
        if isinstance(part, Constant):
            return literal_text(part.value)
        if isinstance(part, Imported):
            return self.speller.imports.imported(part.name, part.home, part.by_name, self.speller.place)
        return self.applied(part)

    def applied(self, part: Applied) -> str:
        if part.kind in ("call", "method"):
            function, arguments = self.called(part)
            return f"{function}({', '.join(arguments)})"
        if part.kind == "slice":
            start, stop, step = ("" if p == Constant(None) else self.text(p) for p in part.parts)
            return f"{start}:{stop}" + (f":{step}" if step else "")
        inner = [self.text(p) for p in part.parts]
        if part.kind == "tuple":
            return "(" + ", ".join(inner) + ("," if len(inner) == 1 else "") + ")"
        if part.kind == "item":
            index = part.parts[1]
            several = isinstance(index, Applied) and index.kind == "tuple"  # which may hold slices: no parentheses
            return fill("{0}", inner[0], tight=True) + f"[{inner[1][1:-1] if several else inner[1]}]"
        return fill(part.name if part.kind == "operator" else "{0}." + part.name, *inner)
