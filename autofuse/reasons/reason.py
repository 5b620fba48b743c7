"""A reason as data: a code, and the values for its templates. The sentence and the advice are formatted on demand.

The other modules of this package define the codes; table.py collects them.
"""

from __future__ import annotations

from dataclasses import dataclass

IN_SENTENCE = " at line {}"  # the `line` template for sentences that end in a verb


@dataclass(frozen=True)
class Code:
    """One kind of reason.

    Attributes:
        name: the name in kebab case. It is part of the JSON output and never changes.
        about: when the reason appears, for docs/refusals.md.
        sentence: a template with the data of a reason in braces.
        advice: a template that says what to change; "" if the sentence says it, or if nothing helps. `{value}` is the
            code of the value that prevents the fusion, or "it".
        named: the sentence for a known `{value}`. If it is "", the value is appended to the sentence.
        line: a template that appends a line number to the sentence.
    """

    name: str
    about: str
    sentence: str
    advice: str = ""
    named: str = ""
    line: str = " (line {})"


@dataclass(frozen=True)
class Reason:
    """The reason why something is not done: a code, with the data for its templates."""

    code: Code
    data: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, value: str = "", line: int | None = None) -> str:
        """Formats the sentence.

        Args:
            value: the code of the value that prevents the fusion; "" if unknown.
            line: its line; None if unknown.
        """
        text = self.code.sentence.format(**dict(self.data))
        if value:
            text = self._with_value(value, text)
        return text if line is None else text + self.code.line.format(line)

    def _with_value(self, value: str, text: str) -> str:
        quoted = f"`{value}`"
        if self.code.named:
            return self.code.named.format(value=quoted, **dict(self.data))
        is_in_text = quoted in text or any(value == known for _, known in self.data)
        return text if is_in_text else f"{text}: {quoted}"

    def advice(self, value: str = "") -> str:
        """Formats the advice: what to change, or "" if nothing is known to help."""
        return self.code.advice.format(value=f"`{value}`" if value else "it", **dict(self.data))

    def with_data(self, **data: object) -> Reason:
        """A copy of the reason with more data."""
        return Reason(self.code, (*self.data, *_as_texts(data)))


def because(code: Code, **data: object) -> Reason:
    """Makes a reason from a code and the data for its templates."""
    return Reason(code, _as_texts(data))


def _as_texts(data: dict[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in data.items())
