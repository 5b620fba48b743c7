"""What to tell readers whose code was nearly fused: what stands in the way, where, and what to change.

One table says what helps against each reason, for both doors; a rule's own advice comes first. Knows reasons as
sentences and asks its door how the reader wrote a value. Decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from autofuse.ir.graph import Value
from autofuse.match.legality import called
from autofuse.rule import Fails, Unknown

_OWN_BRANCH = "only when asked for, in a branch that computes it anew"
_ANEW = "assign it to a name that still holds it where the result is computed"
_AS_TENSOR = "keep it a tensor, as `torch.where` does in place of `if`, or move that step to a child module"

# What a reason says -> what to change. `{value}` is what stands in the way, as the reader wrote it.
ADVICE: tuple[tuple[str, str], ...] = (
    # A value that would go is needed (legality.py).
    (r"has a hook on its gradient", "take the hook off, or put it on the operands"),
    (r" is returned", f"return {{value}} {_OWN_BRANCH}"),
    (r" is stored in ", f"store {{value}} {_OWN_BRANCH}"),
    (r" is (yielded|awaited)", f"hand {{value}} out {_OWN_BRANCH}"),
    (r" is (raised|asserted|tested|matched)", f"look at {{value}} {_OWN_BRANCH}"),
    (r" is read by a nested function", "pass the function what it needs, computed on its own"),
    (r" is written to memory that others may hold", f"put {{value}} there {_OWN_BRANCH}"),
    (r" is left in a name of the module", "compute it in a function, whose names are its own"),
    (r" is carried to the next round of a loop", "compute {value} anew in each round"),
    (r" is read by a statement of its own", f"look at {{value}} {_OWN_BRANCH}"),
    (r" is read by a statement that is not understood", "move that statement to a function of its own"),
    (r" is seen by (\S+)\(\)", "name what is needed instead"),
    (r" is used ", f"use {{value}} {_OWN_BRANCH}"),
    # What the fused operation would read, or when.
    (r"^an operand is itself computed from", "compute the operand from the inputs instead"),
    (r"^the result is written in place", "make a new tensor of it instead: `y = y + x` for `y += x`"),
    (r"^an operand is written in place", "give the changed tensor a name of its own: `y = x + 1` for `x += 1`"),
    (r" is written in place by what would be", "give the changed tensor a name of its own: `y = x + 1` for `x += 1`"),
    (r"^a call that may write to an operand", "make that call before or after the whole computation"),
    (r"^a step writes in place to memory", "take the step that makes a new tensor: `masked_fill` for `masked_fill_`"),
    (r"^`\w+` is given \(", "if the last dimension is what is meant, say so: `dim=-1`"),
    (r"which would go, is asked for and cannot", "ask an operand for its size instead"),
    (r"is computed in a child from what the call replaces", "compute it here, or from the operands alone"),
    (r"^part of it stands in a `", "write all of it inside that block, or all of it outside"),
    # Where a file has no room for the call.
    (r"takes a statement of its own to keep", "write the computation on lines of its own"),
    (r"an eps that is a number", "give the norm its eps as a number"),
    (r"^(apex's|Liger|flash_attn_func|the target )", "pass another `--target`, or fuse the live model"),
    (r"^torch has no ", "pass `--target autofuse`, or fuse the live model with `autofuse.optimize`"),
    (r"^the classes are not in the last", "move the classes to the last dimension, or use `autofuse.optimize`"),
    (r"^torch's linear_cross_entropy", "pass `--target autofuse`, or fuse the live model with `autofuse.optimize`"),
    (r"is not (to be had|available) where", _ANEW),
    (r"cannot be spelled|may be another one where", _ANEW),
    (r"^the layers of the Sequential have no name", "assign the Sequential to an attribute of its own"),
    (r"^the result is computed in a helper or", "compute it by a statement of its own, or use `autofuse.optimize`"),
    (r"^the same computation is written out more", "compute it once, and use its name"),
    (r"^the expression also binds", "bind it by a statement of its own, before"),
    (r"^the (sum|norm) (and|is) ", "write the sum and its norm as two statements, one right after the other"),
    (r"^a part of it is computed by the head", "compute it by a statement of its own, before"),
    (r"^an operand cannot be written on one line", "assign it to a name first"),
    (r"^a name that an operand needs is bound", "give the two values different names"),
    (r"^the import that it needs would come after", "move the imports to the top of the file"),
    (r"^a `del` names", "give each name a `del` of its own"),
    (
        r"cannot be read from the text|text does not",
        "fuse the live model with `autofuse.optimize`, which sees the tensors",
    ),
    # Forwards that a live trace cannot hold.
    (r"sharded; leave out|optimize before compiling", ""),  # these say what to do
    (r"^its forward was replaced", "define `forward` on the class"),
    (r" raised \w+ ", "give example inputs that the module can be called with"),
    (r"^forward assigns", "assign only when asked for, under a flag of the module, or return the value instead"),
    (r"^forward changes", "do that under a flag of the module, or in the module that calls this one"),
    (r"^forward draws random", "draw with torch"),
    (r"^forward reads \S+ of a module", "pass it as an argument, or make that module a child"),
    (r"^forward calls a \w+ that is not one of", "make it a child module"),
    (r"^forward (reads \S+ of an object|changes, or asks about)", "pass tensors, numbers and flags, not objects"),
    (r"^forward (uses|computes with) a number that", "return a tensor there"),
    (r"^forward keeps something outside", "keep it on the module, as a buffer, or return it"),
    (r"^forward reads an object that it", "read it before it is changed, or pass what is needed as a tensor"),
    (r"^forward registers the buffer", "register it in `__init__`"),
    (r"^forward does not end in its dropout", "let the dropout be the last step"),
    (r"^forward uses a tensor that is no", "register it as a buffer, or pass it as an argument"),
    (r"^forward passes a", "pass tensors, numbers and flags to torch's operations"),
    (r"^forward runs a part under", "put that part into a child module"),
    (r"^forward returns a", "return tensors in tuples, lists, dicts or dataclasses"),
    (r"^forward (needs the numbers|takes a number)", _AS_TENSOR),
    (r"^forward calls \w+, which a recorded", "move that step to a child module"),
    (r"^forward asks whether a computed tensor", "decide by a flag of the module"),
    (r"^forward reads the attribute", "use torch's operations on the tensor"),
    (
        r"^never called with these inputs",
        "give example inputs that reach it, or none: then it is looked at when called",
    ),
    (r"^called in more than", "call it with fewer combinations of flags, modes and optional arguments"),
    (r"^the fused operation (does not take|gives)", "leave it as it is, and report it: the rule should have declined"),
)

_NEEDED = re.compile(r"^an? (value|expression) (that )?the fused call needs( \(\w+\))?")


@dataclass(frozen=True)
class AuthorText:
    """A value as the reader wrote it, and the line; empty and None where that is not known."""

    text: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Refusal:
    """What stands in the way: a sentence with `value` and `line` in it, and one that says what to change."""

    reason: str
    advice: str = ""
    value: str = ""
    line: int | None = None


def refusal(verdict: Fails | Unknown, code: str, written: Callable[[Value], AuthorText]) -> Refusal:
    """What to tell of a verdict of the rule `code`; `written` is asked for the values that it names."""
    culprit = written(verdict.culprit) if verdict.culprit is not None else AuthorText()
    use = written(verdict.use) if isinstance(verdict, Fails) and verdict.use is not None else AuthorText()
    line = use.line or culprit.line
    reason = _named(verdict.why, verdict.culprit, culprit.text)
    if line is not None:
        reason += f" at line {line}" if " is " in reason else f" (line {line})"
    advice = (verdict.advice or advice_on(verdict.why)).replace(
        "{value}", f"`{culprit.text}`" if culprit.text else "it"
    )
    if advice and isinstance(verdict, Fails) and "applies" not in advice and "as it is" not in advice:
        advice += f", then {code} applies"
    return Refusal(reason, advice, culprit.text, line)


def unread(why: str, at: AuthorText) -> Refusal:
    """What to tell of a forward that could not be read, because of what is written `at` a place in it."""
    value = f": `{at.text}`" if at.text and at.text not in why else ""
    return Refusal(f"{why}{value} (line {at.line})" if at.line else why, advice_on(why), at.text, at.line)


def advice_on(reason: str) -> str:
    """What to change where this is the reason; "" where nothing is known to help."""
    return next((advice for pattern, advice in ADVICE if re.search(pattern, reason)), "")


def _named(why: str, culprit: Value | None, text: str) -> str:
    """The reason with the culprit's name in it."""
    if not text or culprit is None or f"`{text}`" in why:
        return why
    noun = called(culprit)
    known = "the intermediate value" if noun.startswith("an intermediate value") else noun
    for general, special in ((noun, known), ("an operand", "the operand")):
        if general in why:
            return why.replace(general, f"{special} `{text}`", 1)
    said = _NEEDED.sub(f"`{text}`, which the fused call needs,", why)
    return said if said != why else f"{why}: `{text}`"
