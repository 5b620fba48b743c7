"""Reasons of a live trace: a forward does what a recorded graph would not repeat, so the module is not read."""

from __future__ import annotations

from autofuse.reasons.reason import Code

_AS_TENSOR = "keep it a tensor, as `torch.where` does in place of `if`, or move that step to a child module"
_UNDER_A_FLAG = "do that under a flag of the module, or in the module that calls this one"
_PLAIN = "pass tensors, numbers and flags, not objects"
_EXAMPLES = "give example inputs that the module can be called with"

REPLACED = Code(
    "forward-replaced",
    "`module.forward` was assigned on the instance.",
    "its forward was replaced on the instance",
    "define `forward` on the class",
)
KEPT_BY_CLASS = Code(
    "class-keeps-forward",
    "The class cannot be given another forward.",
    "its class, {kind}, {why}",
    "define `forward` as a function, in a class whose attributes can be set",
)
GOES_BY_TYPE = Code(
    "forward-goes-by-type",
    "The forward goes by the exact type of a value.",
    "{name} goes by the exact type of a value, and stand-ins, by which a forward is read, have another",
    "use `isinstance`, or `self.__class__`",
)
ASKS_TENSOR_CLASS = Code(
    "forward-asks-tensor-class",
    "The forward asks a tensor of a class of yours for its class.",
    "forward asks for the class of a value, and it reads a {kind}, for which a plain tensor stands in",
    "go by a flag of the module",
)
RAISED = Code(
    "forward-raised",
    "The forward raised an error while it was read.",
    "its forward raised {error} while it was read",
    _EXAMPLES,
)
MODEL_RAISED = Code(
    "model-raised",
    "The model raised an error when it was run on the example inputs.",
    "the model raised {kind} when it was run: {error}",
    _EXAMPLES,
)
SYMBOLIC_SIZE = Code(
    "symbolic-size",
    "A compiler calls the module with a symbolic size.",
    "{name} is a symbolic size: optimize before compiling",
)
ASSIGNS = Code(
    "forward-assigns",
    "The forward assigns to an attribute.",
    "forward assigns to {target}",
    "assign only when asked for, under a flag of the module, or return the value instead",
)
CHANGES = Code(
    "forward-changes",
    "The forward changes a list or a dict that outlives the call.",
    "forward changes {target}",
    _UNDER_A_FLAG,
)
REGISTERS_BUFFER = Code(
    "forward-registers-buffer",
    "The forward registers a buffer.",
    "forward registers the buffer {name}",
    "register it in `__init__`",
)
DRAWS_RANDOM = Code(
    "forward-draws-random",
    "The forward draws random numbers that torch knows nothing of.",
    "forward draws random numbers from a generator of Python, numpy or its own",
    "draw with torch",
)
KEEPS_OUTSIDE = Code(
    "forward-keeps-outside",
    "The forward changes something outside of the module: a global, a default argument, a class attribute, an object.",
    "forward changes {name}, which lies outside of the module",
    "return the value instead, or do that in the module that calls this one",
)
HAS_EFFECT = Code(
    "forward-has-effect",
    "The forward calls a function that does more than return a value: it prints, logs, waits, or reads a clock.",
    "forward calls {name}, which does more than return a value",
    _UNDER_A_FLAG,
)
READS_STATE = Code(
    "forward-reads-state",
    "The forward reads an object whose state cannot be compared: an iterator, a lock, a file, a queue.",
    "forward reads {name}, and the state of a {kind} cannot be guarded",
    "pass what it holds as an argument",
)
READS_TOO_MUCH = Code(
    "forward-reads-too-much",
    "The forward reads a container, an array or a tree of objects that is too large to compare at each call.",
    "forward reads {name}, which is too large to be guarded",
    "keep what it needs of that on the module",
)
RUNS_UNKNOWN = Code(
    "forward-runs-unknown",
    "The forward runs a function that closes over variables, and the function cannot be found again to guard them.",
    "forward runs {name}, and the variables that it closes over cannot be guarded",
    "make it a method, or a function of a file",
)
PROFILED = Code(
    "profiler-active",
    "Another profiler of Python, such as cProfile, is active, so what a forward reads cannot be watched.",
    "another profiler of Python is active, and what forward reads cannot be watched",
    "end the profiler before the model is optimized",
)
READS_DICT = Code(
    "forward-reads-dict",
    "The forward reads the dict of a module's attributes by names that it computes.",
    "forward reads {name} by names that it computes",
    "read the attributes by their names",
)
READS_UNREACHED = Code(
    "forward-reads-unreached",
    "The forward reads an attribute of an object that a guard cannot reach.",
    "forward reads {name} of a {kind} that a guard cannot reach",
    "keep the object, or its value, on the module",
)
READS_OTHER_MODULE = Code(
    "forward-reads-other-module",
    "The forward reads an attribute of a module that is not below it.",
    "forward reads {name} of a module that is not below it",
    "pass it as an argument, or make that module a child",
)
READS_COMPUTED_OBJECT = Code(
    "forward-reads-computed-object",
    "The forward reads a number or a flag of an object that a call returned.",
    "forward reads {name} of an object that was computed on the way",
    _PLAIN,
)
READS_CHANGED_OBJECT = Code(
    "forward-reads-changed-object",
    "The forward reads a number or a flag of an object among its arguments after it has called a method of it, or "
    "handed it on.",
    "forward reads {name} of an object that may have changed before",
    "read it before the object is changed, or pass what is needed as a tensor",
)
CALLS_OBJECT = Code(
    "forward-calls-object",
    "The forward calls a method of an object among its arguments that may do more than change this object.",
    "forward calls {name} of a {kind}, which may print, log or change something else",
    "do that in the module that calls this one",
)
USES_UNSEEN = Code(
    "forward-uses-unseen",
    "The forward uses an argument that can be used on real tensors only: an iterator, a file, a callback that prints "
    "or keeps something.",
    "forward uses {name}, and a {kind} cannot be used without effect while the forward is read",
    "do that in the module that calls this one",
)
COMPARES_ARGUMENT = Code(
    "forward-compares-argument",
    "The forward asks whether an argument is a certain object, by `is`.",
    "forward asks whether {name} is a certain object",
    "compare by a flag, or pass None",
)
STORES_OWN = Code(
    "forward-stores-own",
    "The forward stores a list or a dict of the module, or a global one, in one of its arguments.",
    "forward stores a {kind} of the module or of its file in an argument",
    "store tensors and numbers there",
)
STORES_UNDER_OBJECT = Code(
    "forward-stores-under-object",
    "A dict or a set among the arguments has a key, or is given one, that is no text and no number.",
    "a dict or a set among forward's arguments has a key that is no text and no number",
    "use texts or numbers for keys",
)
ASKS_OBJECT = Code(
    "forward-asks-object",
    "The forward changes an object that it was given, or asks it what a guard cannot ask.",
    "forward changes, or asks about, an object that a graph cannot hold",
    _PLAIN,
)
CHILDS_NUMBER = Code(
    "forward-uses-childs-number",
    "The forward computes with a number that a child module returns.",
    "forward {how} a number that a child module or a foreign object returns",
    "return a tensor there",
)
LOOSE_TENSOR = Code(
    "forward-uses-loose-tensor",
    "The forward reads a tensor that does not belong to the module.",
    "forward uses a tensor that is no argument, parameter or buffer (a global, or one kept in an object)",
    "register it as a buffer, or pass it as an argument",
)
PASSES_OBJECT = Code(
    "forward-passes-object",
    "The forward passes an operation what a graph cannot hold.",
    "forward passes a {kind} to an operation",
    "pass tensors, numbers and flags to torch's operations",
)
PASSES_MODULE = Code(
    "forward-passes-module",
    "The forward passes on a module that is not below it.",
    "forward passes a {kind} that is not one of its children to an operation",
    "pass tensors, numbers and flags to torch's operations",
)
CALLS_OTHER_MODULE = Code(
    "forward-calls-other-module",
    "The forward calls a module that is not below it.",
    "forward calls a {kind} that is not one of its children",
    "make it a child module",
)
UNDER_CONTEXT = Code(
    "forward-under-context",
    "A part of the forward runs in another mode of torch than the rest.",
    "forward runs a part under no_grad, autocast, checkpoint or the like",
    "put that part into a child module",
)
RETURNS_OBJECT = Code(
    "forward-returns-object",
    "The forward returns what a graph cannot hold.",
    "forward returns a {kind}",
    "return tensors in tuples, lists, dicts or dataclasses",
)
DROPOUT_NOT_LAST = Code(
    "forward-ends-after-dropout",
    "A caller would fuse the dropout that a child ends in, and something follows it there.",
    "forward does not end in its dropout",
    "let the dropout be the last step",
)
NEEDS_NUMBERS = Code(
    "forward-needs-numbers",
    "The forward branches on what a tensor holds, or takes a number out of it.",
    "forward needs the numbers in a tensor ({name})",
    _AS_TENSOR,
)
TAKES_NUMBER = Code(
    "forward-takes-number",
    "The forward calls a function of torch that makes a number or a flag of tensors.",
    "forward takes a number out of tensors ({name})",
    _AS_TENSOR,
)
CALLS_UNHELD = Code(
    "forward-calls-unheld",
    "The forward calls a method of a tensor whose effect is not in a graph.",
    "forward calls {name}, which a recorded graph does not repeat",
    "move that step to a child module",
)
ASKS_GRADIENT = Code(
    "forward-asks-gradient",
    "The forward asks a tensor that it has computed for `requires_grad`.",
    "forward asks whether a computed tensor needs a gradient",
    "decide by a flag of the module",
)
READS_ATTRIBUTE = Code(
    "forward-reads-attribute",
    "The forward reads an attribute of a tensor that is not known to a graph.",
    "forward reads the attribute {name} of a tensor",
    "use torch's operations on the tensor",
)
