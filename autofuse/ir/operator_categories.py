"""Operators' names by category. It knows names, not models, and no torch: events of a trace and of a profiler alike.

What counts is what computes or moves data. Views and allocations do neither; composites (`aten::linear`,
`aten::softmax`) are left out because the operators that they call are counted themselves.
"""

from __future__ import annotations

import re

from autofuse.ir.vocabulary import ACTIVATIONS, GATES, OTHER_ACTIVATIONS

_WORD = 4  # letters, at least, in a name that nothing else contains

# A pattern of what is found in the names of activations' operators and kernels.
ACTIVATION_NAMES = "|".join(n if len(n) >= _WORD else rf"\b{n}" for n in (*GATES, *ACTIVATIONS, *OTHER_ACTIVATIONS))

# The first pattern that is found in the name decides, so the narrow ones stand first.
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
# On a CPU, kernels within a graph of Inductor's leave no events of their own: their time is the graph's.
COMPILED_GRAPH = "CompiledFxGraph"
_COMPILED = re.compile(rf"^## Call {COMPILED_GRAPH} |cpp_fused|^triton_")
# Operators (c10d::allreduce_) and the ranges in which backends run them (gloo:all_reduce).
_COLLECTIVE = re.compile(r"(_?c10d(_functional)?(_autograd)?|gloo|nccl|rccl|xccl|hccl|ucc|mpi)::?\w")
_LABELS = ("autograd", "torch", "mod")  # what the engine and our own recording call their ranges
# In which categories are shown.
ORDER = (*(name for name, _ in CATEGORIES), "compiled", "communication", "other")


def category_of(name: str) -> str:
    """The category of a profiled event, "" where it is none that computes: a view, a composite, a label."""
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
    """Whether an operator or a range of that name is a collective or part of one."""
    return bool(_COLLECTIVE.match(name))
