"""Programs from a table of {where a value lives} x {how it is read} x {what it is used for} x {how it changes}.

programs/places.txt lists where a value lives and how it changes there. The tables below list the rest. The full product
has tens of thousands of programs. Each change of each place is used once. The other reads and uses rotate over the
places, so each is combined with many places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent, indent

from tests.adversary.program import Program, Section, sections

# How an expression is read: an expression in forward, and the method or the function of the module that it needs.
READS: dict[str, tuple[str, str, str]] = {
    "directly": ("(READ)", "", ""),
    "method": ("self.value()", "def value(self):\n    return READ", ""),
    "function": ("value(self)", "", "def value(self):\n    return READ"),
    "alias": ("(READ)", "", ""),
    "getattr": ("getattr(BASE, 'NAME')", "", ""),
    "comprehension": ("[READ for _ in range(1)][0]", "", ""),
    "generator": ("next(READ for _ in (0,))", "", ""),
    "lambda": ("(lambda: READ)()", "", ""),
    "property": ("self.value", "@property\ndef value(self):\n    return READ", ""),
    "default": ("getattr(BASE, 'NAME', FALLBACK)", "", ""),
    "try": (
        "self.value()",
        "def value(self):\n    try:\n        return READ\n    except (AttributeError, LookupError, NameError):\n"
        "        return FALLBACK",
        "",
    ),
    "two functions": (
        "value(self)",
        "",
        "def inner(self):\n    return READ\n\ndef value(self):\n    return inner(self)",
    ),
    "decorated": (
        "value(self)",
        "",
        "def passed_on(f):\n    @functools.wraps(f)\n    def inner(*a):\n        return f(*a)\n    return inner\n\n"
        "@passed_on\ndef value(self):\n    return READ",
    ),
    "static method": ("self.value(self)", "@staticmethod\ndef value(self):\n    return READ", ""),
}
_IN_FORWARD = ("directly", "alias", "comprehension", "lambda")  # the reads that suit the default of an argument


@dataclass(frozen=True)
class Use:
    """A use of a value: the value before and after the change, and the body of forward."""

    old: str
    new: str
    body: str
    random: bool = False


USES = {
    "scale": Use("0.25", "3.0", "return torch.softmax(self.scores(x) * VALUE, -1) @ x"),
    "branch": Use("0.25", "3.0", """
        scores = self.scores(x) * 0.25
        if VALUE > 1:
            scores = scores * 2
        return torch.softmax(scores, -1) @ x"""),
    "flag": Use("False", "True", """
        if VALUE:
            x = x * 2
        return torch.softmax(self.scores(x) * 0.25, -1) @ x"""),
    "eps": Use("1e-5", "0.5", "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + VALUE) * self.w"),
    "dropout": Use("0.0", "1.0", """
        probabilities = torch.softmax(self.scores(x) * 0.25, -1)
        return F.dropout(probabilities, VALUE, self.training) @ x""", random=True),
    "index": Use("0", "1", "return (torch.softmax(self.scores(x) * 0.25, -1) @ x)[:, VALUE]"),
    "slice": Use("4", "2", """
        k = x[:, :VALUE]
        return torch.softmax((x * self.w) @ k.transpose(-2, -1) * 0.25, -1) @ k"""),
    "fill": Use("float('-inf')", "-1.0", """
        later = torch.ones(4, 4, dtype=torch.bool).triu(1)
        return torch.softmax((self.scores(x) * 0.25).masked_fill(later, VALUE), -1) @ x"""),
    "dim": Use("-1", "-2", "return torch.softmax(self.scores(x) * 0.25, VALUE) @ x"),
    "diagonal": Use("1", "2", """
        later = torch.ones(4, 4, dtype=torch.bool).triu(VALUE)
        return torch.softmax((self.scores(x) * 0.25).masked_fill(later, float('-inf')), -1) @ x"""),
    "heads": Use("2", "4", """
        h = x.view(2, 4, VALUE, -1).transpose(1, 2)
        y = torch.softmax(h @ h.transpose(-2, -1) * 0.25, -1) @ h
        return y.transpose(1, 2).reshape(2, 4, 8) * self.w"""),
    "times": Use("1", "2", """
        for _ in range(VALUE):
            x = torch.softmax(self.scores(x) * 0.25, -1) @ x
        return x"""),
}  # fmt: skip
_FALLBACK = "0.5"  # for reads that have a default

CHANGES = 3  # changes of each place in the default run, which also has one other read or one other use of each place


def programs() -> Iterator[Program]:
    """Yields every program that runs by day or by night, each once."""
    for number, place in enumerate(sections("places.txt")):
        reads = [r for r in place.one("reads").split() or READS if _suits(r, place)]
        uses = place.one("uses").split() or list(USES)
        changes = [line.partition(": ")[::2] for line in place.all("change")]
        for i, change in enumerate(changes):
            yield _program(place, reads[0], uses[0], change, night=i >= CHANGES)
        by_day = _turn(reads[1:], number, 0)
        for read in reads[1:]:
            yield _program(place, read, uses[0], changes[0], night=read != by_day)
        by_day = _turn(uses[1:], number, 1)
        for use in uses[1:]:
            yield _program(place, reads[0], use, changes[0], night=use != by_day)


def _turn(names: list[str], number: int, parity: int) -> str | None:
    """The name that runs by day with the place of this number; None if the parity does not match."""
    return names[number // 2 % len(names)] if names and number % 2 == parity else None


def _suits(read: str, place: Section) -> bool:
    if place.has("signature"):
        return read in _IN_FORWARD
    base, _, name = place.one("read").rpartition(".")
    if read in ("getattr", "default"):
        return name.isidentifier() and base.replace(".", "a").isidentifier()
    return True


def _program(place: Section, read: str, use: str, change: tuple[str, str], night: bool = False) -> Program:
    name, statements = change
    text = "\n\n".join([_definitions(place, read, USES[use]), *_functions(place, statements)])
    text = re.sub(r"\bNEW\b", USES[use].new, text)
    return Program(
        f"reads/{place.title}, {read}, {use}, {name}",
        re.sub(r"\bOLD\b", USES[use].old, text),
        random=USES[use].random or place.has("random"),
        night=night,
        calls=tuple(place.one("calls").split()),
    )


def _definitions(place: Section, read: str, use: Use) -> str:
    """The module's code with the class, inside a function if the place requests that."""
    expression, method, function = (_fill_placeholders(part, place, use) for part in READS[read])
    body = dedent(use.body).strip("\n")
    if read == "alias":
        here, rest = _split_alias(place.one("read"))
        body, expression = f"here = {here}\n{body}", f"here{rest}"
    forward = _block(f"def forward(self, x{place.one('signature')})", body.replace("VALUE", expression))
    init = _block("def __init__(self)", "super().__init__()\n" + place.one("init"))
    parts = [p for p in (place.one("body"), init, method, forward) if p]
    module = _block(f"class M({place.one('bases', 'Base')}{place.one('metaclass')})", "\n\n".join(parts))
    module = "\n\n".join(p for p in (place.code, function, module) if p)
    if not place.has("within"):
        return module
    built = _block("def build()", f"{module}\n\n{place.one('within')}\nreturn M()")
    return f"SET = []\n\n{built}\n\nmake = build"


def _fill_placeholders(part: str, place: Section, use: Use) -> str:
    base, _, name = place.one("read").rpartition(".")
    whole_number = use.new.lstrip("-").isdigit()
    part = part.replace("FALLBACK", use.new if whole_number or use.new == "True" else _FALLBACK)
    return part.replace("READ", place.one("read")).replace("BASE", base).replace("NAME", name)


def _functions(place: Section, change: str) -> Iterator[str]:
    yield _block("def change(m)", change.replace("; ", "\n"))
    for key, signature in (("undo", "def undo(m)"), ("make", "def make()")):
        if place.has(key):
            yield _block(signature, place.one(key).replace("; ", "\n"))


def _block(head: str, body: str) -> str:
    return f"{head}:\n{indent(body, '    ')}"


def _split_alias(text: str) -> tuple[str, str]:
    """Splits an expression: the part that gets a local name, and the part that is read from that name."""
    for i, sign in enumerate(text):
        if sign in ".[" and text[:i].isidentifier():
            return text[:i], text[i:]
    return text, ""
