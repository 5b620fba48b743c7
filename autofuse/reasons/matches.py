"""Reasons of the matcher: a pattern matches, but something else forbids the fusion.

Most often, other code uses an intermediate value, which the fused call does not form. `{what}` and `{which}` name a
value: "a sum", or "an intermediate value (exp)" and "the intermediate value".
"""

from __future__ import annotations

from autofuse.reasons.reason import IN_SENTENCE, Code

_OWN_BRANCH = "only if the caller requests it, in a branch that computes it again"
_NEW_NAME = "assign the changed tensor to a new name: `y = x + 1` instead of `x += 1`"


def _value_code(name: str, about: str, how: str, advice: str) -> Code:
    """Makes the code of a reason: other code needs an intermediate value."""
    return Code(name, about, f"{{what}} is {how}", advice, f"{{which}} {{value}} is {how}", IN_SENTENCE)


VALUE_RETURNED = _value_code(
    "value-returned",
    "The function returns an intermediate value, which the fused operation does not form.",
    "returned",
    f"return {{value}} {_OWN_BRANCH}",
)
VALUE_STORED = _value_code(
    "value-stored",
    "The code stores an intermediate value in an attribute, a container, or a global or nonlocal name.",
    "stored in {place}",
    f"store {{value}} {_OWN_BRANCH}",
)
VALUE_YIELDED = _value_code(
    "value-yielded",
    "A `yield` or an `await` passes an intermediate value to other code.",
    "{how}",
    f"pass {{value}} on {_OWN_BRANCH}",
)
VALUE_TESTED = _value_code(
    "value-tested",
    "An `if`, a `while`, an `assert` or a `match` tests an intermediate value, or a `raise` has it.",
    "{how}",
    f"look at {{value}} {_OWN_BRANCH}",
)
VALUE_READ_BY_FUNCTION = _value_code(
    "value-read-by-function",
    "A nested function or lambda reads an intermediate value, and it may run at any time.",
    "read by a nested function",
    "compute what the function needs separately, and pass it as an argument",
)
VALUE_WRITTEN_TO_MEMORY = _value_code(
    "value-written-to-memory",
    "The code writes an intermediate value in place into a tensor that other code may hold.",
    "written to memory that other code may use",
    f"put {{value}} there {_OWN_BRANCH}",
)
VALUE_EXPORTED = _value_code(
    "value-exported",
    "The code is at module level, and other files may import its names.",
    "stored in a module-level name, which other files may import",
    "move the computation to a function, so that the name is local",
)
VALUE_CARRIED = _value_code(
    "value-carried",
    "The next iteration of a loop reads an intermediate value of this one.",
    "used in the next iteration of a loop",
    "compute {value} again in each iteration",
)
VALUE_LOOKED_AT = _value_code(
    "value-looked-at",
    "A statement only reads an intermediate value.",
    "read by a separate statement",
    f"look at {{value}} {_OWN_BRANCH}",
)
VALUE_READ_BY_STATEMENT = _value_code(
    "value-read-by-statement",
    "A statement that autofuse cannot follow may read an intermediate value.",
    "read by a statement that is not understood",
    "move that statement to a separate function",
)
VALUE_SEEN = _value_code(
    "value-seen",
    "A call that sees all local names, such as `locals()`, sees an intermediate value.",
    "visible to {call}()",
    "name the values that you need instead",
)
VALUE_USED_BY = _value_code(
    "value-used-by-call",
    "A call reads an intermediate value.",
    "used by {call}()",
    f"use {{value}} {_OWN_BRANCH}",
)
VALUE_BEHIND_BREAK = _value_code(
    "value-behind-break",
    "Code after a graph break of torch.compile reads an intermediate value.",
    "needed after a graph break",
    "remove the graph break first",
)
VALUE_HOOKED = Code(
    "value-hooked",
    "The gradient of an intermediate value has a hook.",
    "{what} has a hook on its gradient",
    "remove the hook, or register it on the operands",
    "{which} {value} has a hook on its gradient",
)

OPERAND_FROM_REMOVED = Code(
    "operand-from-removed",
    "An operand of the fused operation is computed from an intermediate value that would be removed.",
    "an operand is computed from {what} that would be removed",
    "compute the operand from the inputs instead",
    "an operand is computed from {which} {value} that would be removed",
    IN_SENTENCE,
)
OPERAND_WRITTEN = Code(
    "operand-written",
    "The code changes an operand in place between its present use and the fused call.",
    "an operand is changed in place before the result is computed",
    _NEW_NAME,
    "the operand {value} is changed in place before the result is computed",
    IN_SENTENCE,
)
OPERAND_PASSED_ON = Code(
    "operand-passed-on",
    "A call between the present use of an operand and the fused call may change the operand.",
    "a call in between may change an operand in place",
    "move that call before or after the whole computation",
    "a call in between may change the operand {value} in place",
)
RESULT_WRITTEN = Code(
    "result-written",
    "The code changes the result in place, and the fused operation saves it for the backward pass.",
    "the result is changed in place, and the fused operation needs it for the backward pass",
    "make a new tensor instead: `y = y + x` for `y += x`",
    line=IN_SENTENCE,
)
STEP_WRITES = Code(
    "step-writes",
    "A step of the pattern changes in place a tensor that other code may see.",
    "a step changes in place a tensor that other code may see",
    "use the operator that makes a new tensor: `masked_fill` instead of `masked_fill_`",
)
OTHER_ARGUMENTS = Code(
    "other-arguments",
    "The whole pattern is there, but its main operation has other arguments, mostly another dimension.",
    "`{operation}` has the arguments ({given}), and the rule needs ({wanted})",
    "if you mean the last dimension, write `dim=-1`",
    line=IN_SENTENCE,
)
STEP_BEFORE = Code(
    "step-before",
    "An operation that the fused call does not have comes before the main operation.",
    "`{step}` comes before the {operation}, and the fused call has no such step",
    "compute it after the whole computation, or keep this code",
    line=IN_SENTENCE,
)
PART_IN_BLOCK = Code(
    "part-in-block",
    "One part of the pattern is in a loop, `with` or `try` block, and the rest is not.",
    "a part of it is in a `{block}` block, and the rest is not",
    "move all of it into that block, or all of it out of it",
)

RULE_DECLINED = Code(
    "rule-declined",
    "The rule itself declines. The sentence and the advice come from the rule.",
    "{why}",
)
RULE_UNKNOWN = Code(
    "rule-unknown",
    "The code does not show whether the rule applies, or the rule only gives advice. The sentence and the advice come "
    "from the rule.",
    "{why}",
)
ARGUMENTS_STARRED = Code(
    "arguments-starred",
    "A call has `*arguments` or `**options`, which may contain the argument that the rule would add.",
    "the contents of `{starred}` are not written here",
    "add {added} where `{starred}` is built, unless that code sets it already",
)
