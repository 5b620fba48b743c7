"""Reasons of the evidence about values: the code shows that a value is no torch tensor, or that other code sees it."""

from __future__ import annotations

from autofuse.reasons.reason import IN_SENTENCE, Code

OTHER_ARRAY = Code(
    "array-of-another-library",
    "An operand is not a torch tensor, as an annotation, its constructor or a test shows.",
    "an operand is an array of another library, not a torch tensor",
    "",
    "{value} is an array of another library, not a torch tensor",
)
TEXT_SHOWN = Code(
    "text-is-shown",
    'An f-string prints the source text of an expression that would change: `f"{scores.shape=}"`.',
    "an f-string prints the source text of an expression that would change",
    "write the text as a literal and print only the value",
)
CALLED_TWICE = Code(
    "called-twice",
    "A call that may have side effects would run twice.",
    "`{call}()` would run more often than now",
    "assign its result to a name first",
)
OTHERWISE_GIVEN = Code(
    "otherwise-given",
    "A call in the file passes an argument that the function accepts and the fused call does not: integers to an "
    "activation, a tensor as a scale, a vector as a query, a mask that is larger than the scores.",
    "a call in the file passes {what} as `{name}`",
    "if no caller does so in your program, rewrite it by hand",
    "{value} passes {what} as `{name}`",
    IN_SENTENCE,
)
VECTOR = Code(
    "vector-operand",
    "The query or the value of an attention has one dimension, as its computation shows. Products accept vectors, and "
    "torch's attention does not.",
    "the {name} has one dimension, and torch's attention takes two or more",
    "add a dimension to {value}, and remove it from the result",
    "{value} has one dimension, and torch's attention takes a {name} of two or more",
)
NOT_FLOATING = Code(
    "not-floating-point",
    "The input of an activation or a norm holds integers, booleans or complex numbers, as its computation, its "
    "annotation or a use as an index shows. torch's function raises an error for it.",
    "the input holds {what}, for which torch's function raises an error",
    "convert {value} to floating-point first, if that is intended",
    "{value} holds {what}, for which torch's function raises an error",
)
