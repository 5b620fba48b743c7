"""A reason as a value: a code and its data. The sentence and the advice are made of them, when somebody is told.

Knows how a template is filled; the codes and their templates are in the files beside it, all in table.py.
"""

from __future__ import annotations

from dataclasses import dataclass

IN_SENTENCE = " at line {}"  # after a sentence that ends in what is done with a value


@dataclass(frozen=True)
class Code:
    """One kind of reason.

    name: in kebab case; it is in the JSON output and never changes. about: when it appears, for docs/refusals.md.
    sentence, advice: templates, with the data of a reason in braces. advice: what to change; "" where the sentence says
    it, or nothing is known to help. In it, `{value}` is what stands in the way as its author wrote it, or "it".
    named: the sentence where `{value}` is known; without one, it is put behind the sentence.
    line: how a line is put behind either.
    """

    name: str
    about: str
    sentence: str
    advice: str = ""
    named: str = ""
    line: str = " (line {})"


@dataclass(frozen=True)
class Reason:
    """Why something is not done: a code, and what its templates are filled with."""

    code: Code
    data: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, value: str = "", line: int | None = None) -> str:
        """The sentence: `value` is what stands in the way, as its author wrote it, on `line`; both may be unknown."""
        told = self.code.sentence.format(**dict(self.data))
        if value:
            told = self._with(value, told)
        return told if line is None else told + self.code.line.format(line)

    def _with(self, value: str, told: str) -> str:
        quoted = f"`{value}`"
        if self.code.named:
            return self.code.named.format(value=quoted, **dict(self.data))
        known = quoted in told or any(value == given for _, given in self.data)
        return told if known else f"{told}: {quoted}"

    def advice(self, value: str = "") -> str:
        """What to change; "" where nothing is known to help."""
        return self.code.advice.format(value=f"`{value}`" if value else "it", **dict(self.data))

    def also(self, **data: object) -> Reason:
        """The same reason with further data."""
        return Reason(self.code, (*self.data, *_texts(data)))


def because(code: Code, **data: object) -> Reason:
    """The reason `code`, its templates filled with `data`."""
    return Reason(code, _texts(data))


def _texts(data: dict[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in data.items())
