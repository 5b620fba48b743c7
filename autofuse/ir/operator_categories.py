"""The categories of operators, by name. They serve the events of a trace and of a profiler alike.

Only operators that compute or move data have a category. Views and allocations do neither. Composite operators
(`aten::linear`, `aten::softmax`) have none, because the operators that they call are counted themselves.
"""

from __future__ import annotations

import re

from autofuse.ir.vocabulary import ACTIVATIONS, GATES, OTHER_ACTIVATIONS

_WORD = 4  # a name of fewer letters may be part of another word, so it must begin at a word boundary

# A pattern that matches the names of the operators and kernels of activations.
ACTIVATION_NAMES = "|".join(n if len(n) >= _WORD else rf"\b{n}" for n in (*GATES, *ACTIVATIONS, *OTHER_ACTIVATIONS))

# The first pattern that matches decides, so the narrow patterns are first.
CATEGORIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (category, re.compile(pattern))
    for category, pattern in (
        ("optimizer", r"_foreach_|fused_(adamw?|sgd|adagrad)|(adamw?|sgd)_step"),
        ("attention", r"attention|flash|fmha|sdpa"),
        ("softmax", r"softmax|logsumexp"),
        ("norm", r"(layer|rms|batch|group|instance|add)_?norm"),
        ("activation", ACTIVATION_NAMES + r"|swiglu|geglu|gated_mlp|\berf|threshold|\bglu"),
        ("matmul", r"\b_?(add|badd)?b?mm(_|$|\b)|\b(addmv|mv|dot|vdot|linear|mlp)|convolution|mkldnn|einsum|matmul"),
        ("random", r"dropout|bernoulli|multinomial|exponential|uniform|normal_|\brand"),
        ("copy", r"copy|clone|\bcat\b|stack|gather|scatter|index|embedding|repeat|roll|\bpad\b|constant_pad|tri[ul]"),
        (
            "reduction",
            r"\b(sum|mean|var|std|amax|amin|max|min|argmax|prod|cumsum|linalg_vector_norm|norm|all|any)(?![a-z])",
        ),
        (
            "elementwise",
            r"\b_?(add|sub|rsub|mul|div|pow|exp|expm|log|sqrt|rsqrt|neg|abs|reciprocal|where|masked_fill|clamp|sin|cos|"
            r"fill|zero|eq|ne|lt|le|gt|ge|bitwise|logical|maximum|minimum|addcmul|addcdiv|lerp|sign|square|arange)(?![a-z])",
        ),
    )
)
_COMPOSITES = frozenset(
    "linear matmul einsum softmax log_softmax layer_norm rms_norm batch_norm group_norm instance_norm dropout "
    "scaled_dot_product_attention _scaled_dot_product_attention_math to _to_copy contiguous clone repeat stack "
    "masked_fill embedding embedding_backward cross_entropy_loss convolution _convolution square ones_like "
    "zeros zeros_like ones full full_like new_zeros".split()
)
_SILENT = frozenset(
    "view _unsafe_view _reshape_alias reshape transpose t permute numpy_T mT expand expand_as as_strided slice select "
    "narrow split split_with_sizes chunk unbind unsqueeze squeeze flatten unflatten detach alias unfold "
    "movedim swapaxes empty empty_like empty_strided new_empty resize set resolve_conj resolve_neg result_type "
    "lift_fresh item is_nonzero _local_scalar_dense can_cast size slice_backward select_backward".split()
)
# On a CPU, the kernels of an Inductor graph have no events of their own: their time is part of the graph's event.
COMPILED_GRAPH = "CompiledFxGraph"
_COMPILED = re.compile(rf"^## Call {COMPILED_GRAPH} |cpp_fused|^triton_")
# Operators (c10d::allreduce_) and the profiler ranges of the backends (gloo:all_reduce).
_COLLECTIVE = re.compile(r"(_?c10d(_functional)?(_autograd)?|gloo|nccl|rccl|xccl|hccl|ucc|mpi)::?\w")
_LABELS = ("autograd", "torch", "mod")  # the namespaces of ranges by the autograd engine and by autofuse
# The order in which reports show the categories.
ORDER = (*(name for name, _ in CATEGORIES), "compiled", "communication", "other")


def category_of(name: str) -> str:
    """The category of a profiled event; "" for a view, a composite operator or a label, which compute nothing."""
    if _COMPILED.search(name):
        return "compiled"
    namespace, separator, operator = name.partition("::")
    if is_collective(name):
        return "communication"
    named = namespace.isidentifier() and operator.isidentifier()
    if not separator or not named or namespace in _LABELS:
        return ""
    if namespace == "aten" and (operator in _COMPOSITES or operator.rstrip("_") in _SILENT):
        return ""
    return next((category for category, pattern in CATEGORIES if pattern.search(operator)), "other")


def is_collective(name: str) -> bool:
    """Whether `name` is an operator or a range of a collective."""
    return bool(_COLLECTIVE.match(name))
