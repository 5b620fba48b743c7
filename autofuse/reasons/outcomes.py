"""Reasons of a session: what was planned for a live model was not run, or was taken back."""

from __future__ import annotations

from autofuse.reasons.reason import Code

NEVER_CALLED = Code(
    "never-called",
    "The example inputs do not reach the module.",
    "never called with these inputs; it is looked at when it is called",
    "give example inputs that reach it, or none: then it is looked at when called",
)
CALLED_IN_MANY_WAYS = Code(
    "called-in-many-ways",
    "The module is called with so many kinds of arguments that no more are looked at.",
    "called in more than {count} ways: further ones run the original forward",
    "call it with fewer combinations of flags, modes and optional arguments",
)
NOT_VERIFIED_YET = Code(
    "not-verified-yet",
    "The model could not be run on the example inputs, so nothing could be compared.",
    "not verified yet ({why}): looked at again when it is called",
    "give example inputs that the module can be called with",
)
NOT_VERIFIED = Code(
    "not-verified",
    "The module could not be compared with the original, as memory does not suffice.",
    "not verified: {why}",
)
WHOLE_NOT_VERIFIED = Code(
    "whole-not-verified",
    "Modules were compared one by one, and the model was not, as memory does not suffice.",
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
    "The modules hold one by one, and the model as a whole does not.",
    "the whole model differs: {why}",
)
NOT_FASTER = Code(
    "not-faster",
    "Measured, the original is as fast as the fused operation, or faster.",
    "{why}",
    "nothing: it is fast as it is; tune=False fuses it unmeasured",
)
TOO_NOISY = Code(
    "too-noisy",
    "Measured, neither the original nor the fused operation is faster beyond the noise of identical runs.",
    "{why}",
    "optimize on a quieter machine; tune=False fuses it unmeasured",
)
SLOWS_STEP = Code(
    "slows-step",
    "Measured by itself the fused operation is faster, and a whole step of the model is slower with it.",
    "a whole {step} is slower with it: {ratio}; the original stays",
    "nothing: the model is fastest as it is; tune=False fuses it unmeasured",
)
COMPILED_IS_FASTER = Code(
    "compiled-is-faster",
    "The original, compiled by torch.compile, is faster than the model with its fused places, compiled or not.",
    "the compiled original is faster: {ratio} of eager",
    "nothing: the compiled original runs; compile=False keeps the fused places",
)
OTHER_RANK = Code(
    "other-rank",
    "Another rank of a distributed run did not fuse the place, and all ranks run the same.",
    "rank {rank} did not fuse it: {why}",
)
OUT_OF_MEMORY = Code(
    "out-of-memory",
    "Memory ran out while autofuse worked on copies of the model, also on the smallest part of the call that it tries.",
    "memory ran out while {doing} ({error}), and {then}",
    "give smaller example inputs, or free memory before",
)
INTERNAL_ERROR = Code(
    "internal-error",
    "autofuse itself failed. What it could not finish runs as it was written; the log has the traceback, at the level "
    "DEBUG.",
    "autofuse failed while {doing}: {error}; the fault is its own, not the model's, and {then}",
    "report it, with the traceback that logging at the level DEBUG shows",
)
RULE_FAILED = Code(
    "rule-failed",
    "The code of a rule raised. The rule is left out for the module.",
    "a rule failed and is left out: {error}",
    "correct the rule in its file",
)
GRAPH_UNREADABLE = Code(
    "graph-unreadable",
    "Reading a graph of torch.compile failed. The graph runs as it is.",
    "a graph could not be read: {error}",
)
