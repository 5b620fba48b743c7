"""Reasons of the matcher: a rule's pattern is there, and nothing may notice that its intermediate values are gone.

`{what}` and `{which}` say what a value is: "a sum", or "an intermediate value (exp)" and "the intermediate value".
"""

from __future__ import annotations

from autofuse.reasons.reason import IN_SENTENCE, Code

_OWN_BRANCH = "only when asked for, in a branch that computes it anew"
_NEW_NAME = "give the changed tensor a name of its own: `y = x + 1` for `x += 1`"


def _needed(name: str, about: str, how: str, advice: str) -> Code:
    """An intermediate value is needed by something that the fused operation does not compute."""
    return Code(name, about, f"{{what}} is {how}", advice, f"{{which}} {{value}} is {how}", IN_SENTENCE)


VALUE_RETURNED = _needed(
    "value-returned",
    "An intermediate value, which the fused operation never forms, is returned.",
    "returned",
    f"return {{value}} {_OWN_BRANCH}",
)
VALUE_STORED = _needed(
    "value-stored",
    "An intermediate value is kept in an attribute, a container, or a global or nonlocal name.",
    "stored in {place}",
    f"store {{value}} {_OWN_BRANCH}",
)
VALUE_YIELDED = _needed(
    "value-yielded",
    "An intermediate value is handed out by `yield` or `await`.",
    "{how}",
    f"hand {{value}} out {_OWN_BRANCH}",
)
VALUE_TESTED = _needed(
    "value-tested",
    "An intermediate value decides an `if`, a `while`, an `assert` or a `match`, or is raised.",
    "{how}",
    f"look at {{value}} {_OWN_BRANCH}",
)
VALUE_READ_BY_FUNCTION = _needed(
    "value-read-by-function",
    "A nested function or lambda reads an intermediate value, and may run at any time.",
    "read by a nested function",
    "pass the function what it needs, computed on its own",
)
VALUE_WRITTEN_TO_MEMORY = _needed(
    "value-written-to-memory",
    "An intermediate value is written in place into a tensor that others may hold.",
    "written to memory that others may hold",
    f"put {{value}} there {_OWN_BRANCH}",
)
VALUE_EXPORTED = _needed(
    "value-exported",
    "The code stands at the top level of a file, where a name may be imported by other files.",
    "left in a name of the module, which other files may import",
    "compute it in a function, whose names are its own",
)
VALUE_CARRIED = _needed(
    "value-carried",
    "The next round of a loop reads an intermediate value of this one.",
    "carried to the next round of a loop",
    "compute {value} anew in each round",
)
VALUE_LOOKED_AT = _needed(
    "value-looked-at",
    "A statement does nothing but read an intermediate value.",
    "read by a statement of its own",
    f"look at {{value}} {_OWN_BRANCH}",
)
VALUE_READ_BY_STATEMENT = _needed(
    "value-read-by-statement",
    "A statement that autofuse cannot follow may read an intermediate value.",
    "read by a statement that is not understood",
    "move that statement to a function of its own",
)
VALUE_SEEN = _needed(
    "value-seen",
    "A call that sees all local names, such as `locals()`, sees an intermediate value.",
    "seen by {call}()",
    "name what is needed instead",
)
VALUE_USED_BY = _needed(
    "value-used-by-call",
    "A call reads an intermediate value.",
    "used by {call}()",
    f"use {{value}} {_OWN_BRANCH}",
)
VALUE_BEHIND_BREAK = _needed(
    "value-behind-break",
    "An intermediate value is read behind a graph break of torch.compile.",
    "needed behind a graph break",
    "mend the graph break first",
)
VALUE_HOOKED = Code(
    "value-hooked",
    "A hook watches the gradient of an intermediate value.",
    "{what} has a hook on its gradient",
    "take the hook off, or put it on the operands",
    "{which} {value} has a hook on its gradient",
)

OPERAND_FROM_REMOVED = Code(
    "operand-from-removed",
    "What the fused operation would read is computed from an intermediate value that would go.",
    "an operand is itself computed from {what} that would go",
    "compute the operand from the inputs instead",
    "an operand is itself computed from {which} {value} that would go",
    IN_SENTENCE,
)
OPERAND_WRITTEN = Code(
    "operand-written",
    "An operand is written in place between the place where it is read now and the fused call.",
    "an operand is written in place before the result is computed",
    _NEW_NAME,
    "the operand {value} is written in place before the result is computed",
    IN_SENTENCE,
)
OPERAND_PASSED_ON = Code(
    "operand-passed-on",
    "A call that may write to an operand stands between the place where it is read now and the fused call.",
    "a call that may write to an operand stands in between",
    "make that call before or after the whole computation",
    "a call that may write to the operand {value} stands in between",
)
RESULT_WRITTEN = Code(
    "result-written",
    "The result is written in place, and the fused operation keeps it for its gradient.",
    "the result is written in place, and the fused operation needs it for its gradient",
    "make a new tensor of it instead: `y = y + x` for `y += x`",
    line=IN_SENTENCE,
)
STEP_WRITES = Code(
    "step-writes",
    "A step of the pattern writes in place to a tensor that others may see.",
    "a step writes in place to memory that others may see",
    "take the step that makes a new tensor: `masked_fill` for `masked_fill_`",
)
OTHER_ARGUMENTS = Code(
    "other-arguments",
    "All of a pattern is there, but its main operation has other arguments, mostly another dimension.",
    "`{operation}` is given ({given}) where the rule needs ({wanted})",
    "if the last dimension is what is meant, say so: `dim=-1`",
    line=IN_SENTENCE,
)
PART_IN_BLOCK = Code(
    "part-in-block",
    "One part of the pattern stands in a loop, `with` or `try` block, and the rest does not.",
    "part of it stands in a `{block}` block that the rest does not stand in",
    "write all of it inside that block, or all of it outside",
)

RULE_DECLINED = Code(
    "rule-declined",
    "The rule itself says that it does not apply. The sentence and the advice are the rule's.",
    "{why}",
)
RULE_UNKNOWN = Code(
    "rule-unknown",
    "The rule cannot tell from the text whether it applies, or only advises. The sentence and the advice are the "
    "rule's.",
    "{why}",
)
ARGUMENTS_STARRED = Code(
    "arguments-starred",
    "A call takes `*arguments` or `**options`, which may hold what the rule would add.",
    "what `{starred}` holds is not written here",
    "give {added} where it is put together, unless the choice is made there already",
)
