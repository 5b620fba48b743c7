"""Reasons of a session: a planned fusion of a live model did not run, or was rolled back."""

from __future__ import annotations

from autofuse.reasons.reason import Code

NEVER_CALLED = Code(
    "never-called",
    "The module does not run for the example inputs.",
    "never called with these inputs; autofuse looks at it when it is called",
    "pass example inputs for which it runs, or pass none: then autofuse looks at each module when it is called",
)
CALLED_IN_MANY_WAYS = Code(
    "called-in-many-ways",
    "The module is called with too many kinds of arguments.",
    "called with more than {count} kinds of arguments: further kinds run the original forward",
    "use fewer combinations of flags, modes and optional arguments",
)
NOT_VERIFIED_YET = Code(
    "not-verified-yet",
    "The model could not run on the example inputs, so nothing was compared.",
    "not verified yet ({why}): autofuse tries again when it is called",
    "pass example inputs that the module accepts",
)
NOT_VERIFIED = Code(
    "not-verified",
    "The module could not be compared with the original: memory is short, or a run on a copy would have a side effect.",
    "not verified: {why}",
)
WHOLE_NOT_VERIFIED = Code(
    "whole-not-verified",
    "The modules were compared one by one, and the whole model could not be: memory is short, or a run on a copy would "
    "have a side effect.",
    "only its parts were verified: {why}",
)
DIFFERS = Code(
    "differs",
    "Verification compared the rewritten module with the original: an output or a gradient differs by more than "
    "rounding explains.",
    "{why}",
)
WHOLE_DIFFERS = Code(
    "whole-differs",
    "Each module alone is verified, but the whole model differs.",
    "the whole model differs: {why}",
)
NOT_FASTER = Code(
    "not-faster",
    "In a measurement, the original is as fast as the fused operation, or faster.",
    "{why}",
    "nothing to do: the original is faster; tune=False fuses without measurement",
)
TOO_NOISY = Code(
    "too-noisy",
    "In a measurement, the difference between the original and the fused operation is within the noise.",
    "{why}",
    "optimize on a machine with less load; tune=False fuses without measurement",
)
SLOWS_STEP = Code(
    "slows-step",
    "The fused operation alone is faster, but a whole step of the model is slower with it.",
    "a whole {step} is slower with it: {ratio}; the original stays",
    "nothing to do: the original model is faster; tune=False fuses without measurement",
)
COMPILED_IS_FASTER = Code(
    "compiled-is-faster",
    "The original with torch.compile is faster than the model with its fused sites, compiled or not.",
    "the compiled original is faster: {ratio} of eager",
    "nothing to do: the compiled original runs; compile=False keeps the fused sites",
)
OTHER_RANK = Code(
    "other-rank",
    "Another rank of a distributed run did not fuse the site, and all ranks must run the same code.",
    "rank {rank} did not fuse it: {why}",
)
OUT_OF_MEMORY = Code(
    "out-of-memory",
    "Memory ran out while autofuse worked on copies of the model, even with the smallest part of the call.",
    "memory ran out while {doing} ({error}), and {then}",
    "pass smaller example inputs, or free memory first",
)
INTERNAL_ERROR = Code(
    "internal-error",
    "autofuse itself failed. The unfinished part runs as it was written. The log has the traceback at level DEBUG.",
    "autofuse failed while {doing}: {error}; this is a bug in autofuse, not in the model, and {then}",
    "report it with the traceback, which the log shows at level DEBUG",
)
RULE_FAILED = Code(
    "rule-failed",
    "The code of a rule raised an error. The rule is skipped for the module.",
    "a rule failed and is skipped: {error}",
    "fix the rule in its file",
)
GRAPH_UNREADABLE = Code(
    "graph-unreadable",
    "Reading a graph of torch.compile failed. The graph runs as it is.",
    "a graph could not be read: {error}",
)
LOGITS_READ = Code(
    "logits-read",
    "A loss is computed from the output of a linear layer, and the model itself also reads that output.",
    "the output of {head} is read{where} in addition to the loss, so the loss is not computed in blocks",
    "in training, compute what is logged from logits.detach() every few steps, or outside of the model",
)
LOGITS_UNCHECKED = Code(
    "logits-unchecked",
    "A copy of the model must run to find what reads the output of its last layer. The copy does not fit into memory.",
    "the uses of the logits were not verified: {why}",
    "pass example inputs with fewer rows or shorter sequences, or optimize before other tensors fill the memory",
)
SLOW_PRODUCTS = Code(
    "slow-products",
    "The model returns the output of a linear layer on a GPU, nothing computes a loss from it, and its number of "
    "features is no multiple of 8. cuBLAS then uses kernels that read 2 bytes at a time.",
    "the output of {head} is returned and no loss of it is computed there; its {features} features are no multiple of "
    "8, so its matrix products are slow",
    "let autofuse measure whether padded products are faster (tune=True, one process); or pass the loss, "
    "autofuse.optimize(model, inputs, loss_fn=...), whose products are padded; or pad the layer to a multiple of 64 "
    "features",
)
PADDING_NOT_FASTER = Code(
    "padding-not-faster",
    "The number of features of a linear layer is no multiple of 16 bytes. Its products were measured with padding, and "
    "that was not faster, or the measurement was inconclusive.",
    "the products of {head} are not padded: {why}",
    "",
)
NO_LOSS_SEEN = Code(
    "no-loss-seen",
    "The model returns the output of a linear layer with many features, and nothing computes a loss from it.",
    "the output of {head} is returned and no loss of it is computed there, so none is computed in blocks",
    "pass the labels with the example inputs, or the loss: autofuse.optimize(model, inputs, loss_fn=...)",
)
