"""Reasons of the tracer: a forward does something that a recorded graph would not repeat, so it is not traced."""

from __future__ import annotations

from autofuse.reasons.reason import Code

_AS_TENSOR = "keep it a tensor, for example with `torch.where` instead of `if`, or move that step to a child module"
_UNDER_A_FLAG = "do that only under a flag of the module, or in the module that calls this one"
_PLAIN = "pass tensors, numbers and flags, not objects"
_EXAMPLES = "pass example inputs that the module accepts"

REPLACED = Code(
    "forward-replaced",
    "The instance has a `forward` attribute that replaces the method of its class.",
    "its forward was replaced on the instance",
    "define `forward` on the class",
)
KEPT_BY_CLASS = Code(
    "class-keeps-forward",
    "The forward of the class cannot be replaced.",
    "its class, {kind}, {why}",
    "define `forward` as a function, in a class that allows assignment to its attributes",
)
GOES_BY_TYPE = Code(
    "forward-goes-by-type",
    "The forward tests the exact type of a value.",
    "{name} tests the exact type of a value, and the stand-ins of a trace have another type",
    "use `isinstance`, or `self.__class__`",
)
ASKS_TENSOR_CLASS = Code(
    "forward-asks-tensor-class",
    "The forward reads the class of a tensor subclass.",
    "forward reads the class of a value, and it has a {kind}, which the trace replaces by a plain tensor",
    "use a flag of the module instead",
)
RAISED = Code(
    "forward-raised",
    "The forward raised an error while it was traced.",
    "its forward raised {error} while it was traced",
    _EXAMPLES,
)
CALLS_SCRIPTED = Code(
    "forward-calls-scripted",
    "The forward calls a module or a function that torch.jit compiled, and a trace cannot enter it.",
    "forward calls a module or a function that torch.jit compiled",
    "call it in another module, or do not compile it with torch.jit",
)
MODEL_RAISED = Code(
    "model-raised",
    "The model raised an error for the example inputs.",
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
    "assign only under a flag of the module, or return the value instead",
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
    "The forward draws random numbers without torch.",
    "forward draws random numbers from a generator of Python, numpy or its own",
    "draw with torch",
)
KEEPS_OUTSIDE = Code(
    "forward-keeps-outside",
    "The forward changes something outside of the module: a global, a default argument, a class attribute, an object.",
    "forward changes {name}, which is outside of the module",
    "return the value instead, or make the change in the module that calls this one",
)
HAS_EFFECT = Code(
    "forward-has-effect",
    "The forward calls a function with side effects: it prints, logs, waits, or reads a clock.",
    "forward calls {name}, which has side effects",
    _UNDER_A_FLAG,
)
READS_STATE = Code(
    "forward-reads-state",
    "The forward reads an object with a state that cannot be compared: an iterator, a lock, a file or a queue.",
    "forward reads {name}, and no guard can check the state of a {kind}",
    "pass its contents as an argument",
)
READS_TOO_MUCH = Code(
    "forward-reads-too-much",
    "The forward reads a container, an array or a tree of objects that is too large to compare at each call.",
    "forward reads {name}, which is too large for a guard",
    "store the needed part on the module",
)
RUNS_UNKNOWN = Code(
    "forward-runs-unknown",
    "The forward runs a function with a closure, and a guard cannot find the function to check its variables.",
    "forward runs {name}, and no guard can check the variables in its closure",
    "make it a method or a module-level function",
)
PROFILED = Code(
    "profiler-active",
    "Another profiler, such as cProfile before Python 3.12, is active, so the tracer cannot watch reads of a forward.",
    "another Python profiler is active, so the reads of forward cannot be watched",
    "stop the profiler before you optimize the model",
)
READS_DICT = Code(
    "forward-reads-dict",
    "The forward reads a module's attribute dict with computed names.",
    "forward reads {name} with computed names",
    "read the attributes by fixed names",
)
READS_UNREACHED = Code(
    "forward-reads-unreached",
    "The forward reads an attribute of an object that a guard cannot reach.",
    "forward reads {name} of a {kind} that a guard cannot reach",
    "store the object, or its value, on the module",
)
READS_WRITTEN = Code(
    "forward-reads-written",
    "The forward reads a value that one of its children writes in the same call.",
    "forward reads {name}, which a child writes during the call",
    "let the child return the value",
)
READS_OTHER_MODULE = Code(
    "forward-reads-other-module",
    "The forward reads an attribute of a module that is not its submodule.",
    "forward reads {name} of a module that is not its submodule",
    "pass it as an argument, or make that module a child",
)
READS_COMPUTED_OBJECT = Code(
    "forward-reads-computed-object",
    "The forward reads a number or a flag of an object that a call returned.",
    "forward reads {name} of an object that a call in it returned",
    _PLAIN,
)
READS_CHANGED_OBJECT = Code(
    "forward-reads-changed-object",
    "The forward reads a number or a flag of an argument after it called a method of the argument, or passed it to a "
    "function.",
    "forward reads {name} of an object that it may have changed before",
    "read it before the object is changed, or pass what is needed as a tensor",
)
CALLS_OBJECT = Code(
    "forward-calls-object",
    "The forward calls a method of an argument, and the method may change more than this object.",
    "forward calls {name} of a {kind}, which may print, log or change something else",
    "do that in the module that calls this one",
)
USES_UNSEEN = Code(
    "forward-uses-unseen",
    "The forward uses an argument that cannot be used in a trace: an iterator, a file, or a callback that prints or "
    "stores something.",
    "forward uses {name}, and using a {kind} has side effects while the forward is traced",
    "do that in the module that calls this one",
)
COMPARES_ARGUMENT = Code(
    "forward-compares-argument",
    "The forward compares an argument with an object by `is`.",
    "forward compares {name} with an object by `is`",
    "use a flag, or compare with None",
)
STORES_OWN = Code(
    "forward-stores-own",
    "The forward stores a list or a dict of the module, or a global one, in an argument.",
    "forward stores a {kind} of the module or of its file in an argument",
    "store tensors and numbers there",
)
STORES_UNDER_OBJECT = Code(
    "forward-stores-under-object",
    "A dict or a set among the arguments has, or gets, a key that is neither a string nor a number.",
    "a dict or a set among forward's arguments has a key that is neither a string nor a number",
    "use strings or numbers as keys",
)
ASKS_OBJECT = Code(
    "forward-asks-object",
    "The forward changes an object among its arguments, or reads something of it that a guard cannot read.",
    "forward changes or reads an object that a graph cannot hold",
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
    "forward uses a tensor that is not an argument, parameter or buffer (a global, or one stored in an object)",
    "register it as a buffer, or pass it as an argument",
)
PASSES_OBJECT = Code(
    "forward-passes-object",
    "The forward passes an object that a graph cannot hold to an operation.",
    "forward passes a {kind} to an operation",
    "pass tensors, numbers and flags to torch's operations",
)
PASSES_MODULE = Code(
    "forward-passes-module",
    "The forward passes a module that is not its submodule to an operation.",
    "forward passes a {kind} that is not one of its children to an operation",
    "pass tensors, numbers and flags to torch's operations",
)
CALLS_OTHER_MODULE = Code(
    "forward-calls-other-module",
    "The forward calls a module that is not its submodule.",
    "forward calls a {kind} that is not one of its children",
    "make it a child module",
)
UNDER_CONTEXT = Code(
    "forward-under-context",
    "A part of the forward runs in another torch mode than the rest.",
    "forward runs a part of it under no_grad, autocast, checkpoint or a similar context",
    "move that part to a child module",
)
RETURNS_OBJECT = Code(
    "forward-returns-object",
    "The forward returns an object that a graph cannot hold.",
    "forward returns a {kind}",
    "return tensors in tuples, lists, dicts or dataclasses",
)
DROPOUT_NOT_LAST = Code(
    "forward-ends-after-dropout",
    "The caller would fuse the dropout at the end of this forward, but the forward has a step after it.",
    "forward does not end in its dropout",
    "make the dropout the last step",
)
NEEDS_NUMBERS = Code(
    "forward-needs-numbers",
    "The forward branches on the values in a tensor, or converts one to a number.",
    "forward needs the values in a tensor ({name})",
    _AS_TENSOR,
)
TAKES_NUMBER = Code(
    "forward-takes-number",
    "The forward calls a torch function that returns a number or a bool for tensors.",
    "forward converts tensors to a number ({name})",
    _AS_TENSOR,
)
CALLS_UNHELD = Code(
    "forward-calls-unheld",
    "The forward calls a tensor method with an effect that a graph does not record.",
    "forward calls {name}, which a recorded graph does not repeat",
    "move that step to a child module",
)
ASKS_GRADIENT = Code(
    "forward-asks-gradient",
    "The forward reads `requires_grad` of a computed tensor.",
    "forward reads whether a computed tensor requires a gradient",
    "use a flag of the module instead",
)
READS_ATTRIBUTE = Code(
    "forward-reads-attribute",
    "The forward reads a tensor attribute that a graph cannot record.",
    "forward reads the attribute {name} of a tensor",
    "use torch's operations on the tensor",
)
