"""Reasons of the writers: a rule applies, and the fused call cannot be written where it would stand."""

from __future__ import annotations

from autofuse.reasons.reason import IN_SENTENCE, Code

_ANEW = "assign it to a name that still holds it where the result is computed"
_TWO_STATEMENTS = "write the sum and its norm as two statements, one right after the other"
_NEW_NAME = "give the changed tensor a name of its own: `y = x + 1` for `x += 1`"
_REPORT = "leave it as it is, and report it: the rule should have declined"

# Of files.
WRITTEN_TWICE = Code(
    "written-twice",
    "The same computation is written out at several places.",
    "the same computation is written out more than once",
    "compute it once, and use its name",
    line=IN_SENTENCE,
)
BINDS_NAME = Code(
    "binds-name",
    "The expression that would go assigns a name on the way (`:=`).",
    "the expression also binds `{name}`, which is read elsewhere",
    "bind it by a statement of its own, before",
    line=IN_SENTENCE,
)
SUM_NOT_APART = Code(
    "sum-not-apart",
    "The sum and its norm, which one call would compute, have no places of their own.",
    "the sum and its norm are not written at places of their own",
    _TWO_STATEMENTS,
)
SUM_UNNAMED = Code(
    "sum-unnamed",
    "The sum that is normed has no name.",
    "the sum is not assigned to a name by a statement of its own",
    _TWO_STATEMENTS,
    line=IN_SENTENCE,
)
NORM_ELSEWHERE = Code(
    "norm-elsewhere",
    "The norm may not run where the sum runs.",
    "the norm is not always computed right after the sum",
    _TWO_STATEMENTS,
    line=IN_SENTENCE,
)
OPERAND_OF_LINES = Code(
    "operand-of-lines",
    "The text of an operand spans lines, and does not fit on one.",
    "an operand cannot be written on one line",
    "assign it to a name first",
)
DTYPES_MAY_DIFFER = Code(
    "dtypes-may-differ",
    "A norm's weight may have another dtype than its input, or its parts are computed in different dtypes.",
    "the norm's result may have another dtype than torch's norm gives",
    "cast the input to the dtype of the result before the norm",
)
NAME_REBOUND = Code(
    "name-rebound",
    "A name that the fused call would read holds something else by then.",
    "a name that an operand needs is bound to something else by a statement that stays",
    "give the two values different names",
    line=IN_SENTENCE,
)
IMPORT_TOO_LATE = Code(
    "import-too-late",
    "The code stands at the top level of a file, before the imports.",
    "the import that it needs would come after it",
    "move the imports to the top of the file",
)
HELPER_CALLS = Code(
    "helper-calls",
    "What would go calls a helper, which calls something else on the way, and that may do anything.",
    "a helper that computes part of it makes a call that would go with it",
    "make that call where the helper is called",
)
HELPER_STAYS = Code(
    "helper-stays",
    "A helper computes the result beside something else that is needed, so its call stays.",
    "a helper that computes it is still called for something else",
    "fuse it in the helper, or let the helper return nothing else",
)
HEAD_STAYS = Code(
    "head-stays",
    "A step is computed in the head of an `if`, `while`, `for` or `with`.",
    "a part of it is computed by the head of a statement that stays",
    "compute it by a statement of its own, before",
    line=IN_SENTENCE,
)
DELETED_TOGETHER = Code(
    "deleted-together",
    "One `del` names a value that would go and one that stays.",
    "a `del` names a value that goes together with one that stays",
    "give each name a `del` of its own",
)
NAME_WRITTEN = Code(
    "name-written",
    "The last step writes in place to a name that is read afterwards.",
    "`{name}` is written in place by what would be replaced, and read afterwards",
    _NEW_NAME,
    line=IN_SENTENCE,
)
ATTRIBUTE_CHANGES = Code(
    "attribute-changes",
    "An attribute that the fused call would read is assigned after it was read.",
    "`{name}` may be another one where the call would stand",
    _ANEW,
)
LAYERS_UNNAMED = Code(
    "layers-unnamed",
    "The layers stand in a Sequential that is made where it is called.",
    "the layers of the Sequential have no name",
    "assign the Sequential to an attribute of its own",
)
MASK_FILLED = Code(
    "mask-filled",
    "The mask is filled with a finite number, so that a row masked out whole attends evenly, and there is no room for "
    "the statement that keeps that.",
    "the mask is filled with a finite number, which takes a statement of its own to keep",
    "write the computation on lines of its own",
    line=IN_SENTENCE,
)
CLASSES_NOT_LAST = Code(
    "classes-not-last",
    "A loss has its classes in a dimension that is neither the second nor the last.",
    "the classes are not in the last dimension",
    "move the classes to the last dimension, or use `autofuse.optimize`",
)
REDUCTION_UNREAD = Code(
    "reduction-unread",
    "The text does not say which reduction a loss is given.",
    "how the loss is reduced{so} cannot be read from the text",
    "fuse the live model with `autofuse.optimize`, which sees the tensors",
    line=IN_SENTENCE,
)

GENERATED_FILE = Code(
    "generated-file",
    "The file says that a generator made it, which would undo the edit the next time.",
    "the file is generated: it says that it is made from {name}",
    "edit what it is made from, or use `--generated`",
)
FUSED_BESIDE = Code(
    "fused-beside",
    "Another branch calls a fused operation already; with the edit, both would do the same.",
    "another branch calls `{name}` already",
    "choose that branch, or leave out the one that is written out",
)
HELPER_UNCALLED = Code(
    "helper-uncalled",
    "A helper that only this code calls is fused itself; with the edit, nothing would call it.",
    "`{name}`, which is fused itself, would be left without a caller",
)
LONGER = Code(
    "longer",
    "The new text would be longer than the code, and run no faster.",
    "the new text would be longer, and no faster",
)

FEW_CLASSES = Code(
    "few-classes",
    "A loss of a linear layer with two or three classes: blocks of logits save memory for a vocabulary.",
    "the layer has {classes} classes, so there is no memory to save",
)

# Of both doors.
VALUE_OUT_OF_REACH = Code(
    "value-out-of-reach",
    "An operand is not held by any name, or by no node, where the fused call would stand.",
    "a value the fused call needs ({operation}) is not available where it would stand",
    _ANEW,
    "{value}, which the fused call needs, is not available where it would stand",
    IN_SENTENCE,
)

# Of live modules.
VALUE_IN_CHILD = Code(
    "value-in-child",
    "A child computes an operand from a value that would go.",
    "a value that the fused call needs is computed in a child from what the call replaces",
    "compute it here, or from the operands alone",
)
VALUE_UNSPELLED = Code(
    "value-unspelled",
    "An operand that is put together of several values cannot be computed.",
    "a value that the fused call needs cannot be spelled ({error})",
    _ANEW,
)
SIZE_OF_REMOVED = Code(
    "size-of-removed",
    "The forward asks a tensor that would go for a size that nothing else tells.",
    "a size of `{name}`, which would go, is asked for and cannot be told from anything else",
    "ask an operand for its size instead",
)
OPERANDS_REFUSED = Code(
    "operands-refused",
    "The fused operation raised an error for the shapes and dtypes of the operands.",
    "the fused operation does not take these operands: {error}",
    _REPORT,
)
OTHER_LAYOUT = Code(
    "other-layout",
    "The fused result would lie in memory in another order, and somebody could see it: a child, or `view`.",
    "somebody would see the result lie in memory in another order",
    "make the operand contiguous before: `x = x.contiguous()`",
)
OTHER_SHAPE = Code(
    "other-shape",
    "The fused operation would give a tensor of another shape than the code.",
    "the fused operation gives a tensor of shape {found} for one of {wanted}",
    _REPORT,
)
ROWS_UNKNOWN = Code(
    "rows-unknown",
    "A loss takes a normaliser of every row, and there are not as many targets, or nobody knows how many.",
    "there may be another number of targets than of rows",
    "give the loss one target for each row",
)
