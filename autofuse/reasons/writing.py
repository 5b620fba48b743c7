"""Reasons of the writers: a rule matches, and the fused call cannot be written at its place."""

from __future__ import annotations

from autofuse.reasons.reason import IN_SENTENCE, Code

_KEEP_NAME = "assign it to a name that still has this value where the result is computed"
_TWO_STATEMENTS = "write the sum and its norm as two consecutive statements"
_NEW_NAME = "assign the changed tensor to a new name: `y = x + 1` instead of `x += 1`"
_REPORT = "leave it as it is and report it: the rule should have declined"

# The codemod.
LOOP_OVER_EXPERTS = Code(
    "loop-over-experts",
    "A loop over the experts of a mixture, in a file. Only a live model shows what the experts are.",
    "a file does not show whether each turn only adds rows to the result",
    "call `autofuse.optimize` on the model: it computes one turn for all experts, on rows that are sorted by expert",
)
ALL_EXPERTS = Code(
    "all-experts",
    "A mixture that computes all experts for all tokens, in a file. Only a live model shows which weights are zero.",
    "a file does not show which results count",
    "call `autofuse.optimize` on the model: it computes the chosen experts only, if the other weights are zero",
)
WRITTEN_TWICE = Code(
    "written-twice",
    "The same computation is written in several places.",
    "the same computation is written more than once",
    "compute it once and assign it to a name",
    line=IN_SENTENCE,
)
BINDS_NAME = Code(
    "binds-name",
    "The expression that would be replaced also assigns a name (`:=`).",
    "the expression also binds `{name}`, which is read elsewhere",
    "assign it in a separate statement before",
    line=IN_SENTENCE,
)
SUM_NOT_APART = Code(
    "sum-not-apart",
    "The sum and its norm are not two separate expressions, so one call cannot compute both.",
    "the sum and its norm are not separate expressions",
    _TWO_STATEMENTS,
)
SUM_UNNAMED = Code(
    "sum-unnamed",
    "The sum that the norm reads has no name.",
    "the sum is not assigned to a name in a separate statement",
    _TWO_STATEMENTS,
    line=IN_SENTENCE,
)
NORM_ELSEWHERE = Code(
    "norm-elsewhere",
    "The norm does not always run after the sum.",
    "the norm is not always computed directly after the sum",
    _TWO_STATEMENTS,
    line=IN_SENTENCE,
)
OPERAND_OF_LINES = Code(
    "operand-of-lines",
    "The code of an operand needs more than one line.",
    "an operand cannot be written on one line",
    "assign it to a name first",
)
DTYPES_MAY_DIFFER = Code(
    "dtypes-may-differ",
    "A norm's weight may have another dtype than its input, or its parts are computed in different dtypes.",
    "the result may have another dtype than the result of torch's norm",
    "cast the input to the dtype of the result before the norm",
)
NAME_REBOUND = Code(
    "name-rebound",
    "A name that the fused call would read has another value there.",
    "a statement that stays assigns another value to a name that an operand needs",
    "give the two values different names",
    line=IN_SENTENCE,
)
IMPORT_TOO_LATE = Code(
    "import-too-late",
    "The code is at module level, before the imports.",
    "the import that the fused call needs would come after it",
    "move the imports to the top of the file",
)
HELPER_CALLS = Code(
    "helper-calls",
    "The removed code calls a helper, and the helper makes another call that may have side effects.",
    "a helper that computes a part of it makes another call, which would be removed too",
    "move that call to the caller of the helper",
)
HELPER_STAYS = Code(
    "helper-stays",
    "A helper computes the result and another value that is needed, so its call stays.",
    "the helper that computes it is still called for another value",
    "fuse it in the helper, or change the helper to return only this value",
)
HEAD_STAYS = Code(
    "head-stays",
    "A step is computed in the head of an `if`, `while`, `for` or `with`.",
    "the head of a statement that stays computes a part of it",
    "compute it in a separate statement before",
    line=IN_SENTENCE,
)
DELETED_TOGETHER = Code(
    "deleted-together",
    "One `del` names a value that would be removed and one that stays.",
    "a `del` names both a value that would be removed and one that stays",
    "write a separate `del` for each name",
)
NAME_WRITTEN = Code(
    "name-written",
    "The last step changes a named tensor in place, and the name is read later.",
    "the code that would be replaced changes `{name}` in place, and the name is read later",
    _NEW_NAME,
    line=IN_SENTENCE,
)
ATTRIBUTE_CHANGES = Code(
    "attribute-changes",
    "An attribute that the fused call would read is assigned between its present use and the call.",
    "`{name}` may have another value at the fused call",
    _KEEP_NAME,
)
LAYERS_UNNAMED = Code(
    "layers-unnamed",
    "The layers are in a Sequential that is made where it is called.",
    "the layers of the Sequential have no name",
    "assign the Sequential to an attribute",
)
MASK_FILLED = Code(
    "mask-filled",
    "The mask is filled with a finite number, so that a fully masked row attends evenly. A separate statement must "
    "keep that effect, and there is no place for it.",
    "the mask is filled with a finite number, and keeping that effect needs a separate statement",
    "write the computation on separate lines",
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
    "The code does not show the reduction of a loss.",
    "the reduction of the loss{so} is not visible in the code",
    "fuse the live model with `autofuse.optimize`, which sees the tensors",
    line=IN_SENTENCE,
)

GENERATED_FILE = Code(
    "generated-file",
    "A comment says that the file is generated, so the generator would overwrite the edit.",
    "the file is generated from {name}, as its first comments say",
    "edit its source, or use `--generated`",
)
FUSED_BESIDE = Code(
    "fused-beside",
    "Another branch already calls a fused operation; with the edit, both branches would do the same.",
    "another branch already calls `{name}`",
    "use that branch, or remove the branch that spells the operation out",
)
HELPER_UNCALLED = Code(
    "helper-uncalled",
    "autofuse fuses a helper that only this code calls; with the edit, nothing would call the helper.",
    "nothing would call `{name}` any more, and `{name}` itself is fused",
)
LONGER = Code(
    "longer",
    "The new code would be longer, and no faster.",
    "the new code would be longer, and no faster",
)

FEW_CLASSES = Code(
    "few-classes",
    "A linear layer with two or three classes feeds a loss. Blocks of logits save memory only for many classes.",
    "the layer has {classes} classes, so there is no memory to save",
)

# The codemod and the FX pass.
VALUE_OUT_OF_REACH = Code(
    "value-out-of-reach",
    "No name (or no node of the graph) has the value of an operand at the fused call.",
    "a value that the fused call needs ({operation}) is not available at the place of the call",
    _KEEP_NAME,
    "{value}, which the fused call needs, is not available at the place of the call",
)

# The FX pass.
VALUE_IN_CHILD = Code(
    "value-in-child",
    "A child computes an operand from a value that would be removed.",
    "a child computes a value that the fused call needs from a value that the call replaces",
    "compute it in this module, or only from the operands",
)
VALUE_UNSPELLED = Code(
    "value-unspelled",
    "An operand that combines several values cannot be computed.",
    "a value that the fused call needs cannot be written ({error})",
    _KEEP_NAME,
)
SIZE_OF_REMOVED = Code(
    "size-of-removed",
    "The forward reads a size of a tensor that would be removed, and no other tensor has this size.",
    "forward reads a size of `{name}`, which would be removed, and no other tensor has this size",
    "read the size of an operand instead",
)
OPERANDS_REFUSED = Code(
    "operands-refused",
    "The fused operation raised an error for the shapes and dtypes of the operands.",
    "the fused operation does not accept these operands: {error}",
    _REPORT,
)
OTHER_LAYOUT = Code(
    "other-layout",
    "The fused result would have another memory layout, and other code could notice it: a child, or `view`.",
    "other code would notice that the result has another memory layout",
    "make the operand contiguous first: `x = x.contiguous()`",
)
OTHER_SHAPE = Code(
    "other-shape",
    "The fused operation would return a tensor of another shape than the code.",
    "the fused operation returns a tensor of shape {found} instead of {wanted}",
    _REPORT,
)
ROWS_UNKNOWN = Code(
    "rows-unknown",
    "A loss needs a normalizer for every row, and the number of targets differs from the number of rows or is unknown.",
    "the number of targets may differ from the number of rows",
    "give the loss one target for each row",
)
