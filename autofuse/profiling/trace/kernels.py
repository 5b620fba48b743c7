"""Reads the name of a GPU kernel: its category, whether it uses tensor cores, whether it communicates.

The patterns match names of kernels of PyTorch, cuBLAS, cuDNN, CUTLASS, FlashAttention, Triton, NCCL, rocBLAS and
others. A trace contains only a kernel's name, so the result is an estimate. An unknown kernel is "other" and counts as
using no tensor cores.
"""

from __future__ import annotations

import re
from functools import lru_cache

from autofuse.ir.operator_categories import ACTIVATION_NAMES

# The first pattern found in the name decides, so narrow ones come first. The categories are those of operators
# (autofuse/ir/operator_categories.py). Names of matrix product kernels may contain their activation.
_CATEGORIES = tuple(
    (category, re.compile(pattern, re.IGNORECASE))
    for category, pattern in (
        ("communication", r"nccl|rccl|mscclpp|msccl|oneccl|nvshmem|gloo|deep_ep|all_?reduce|all_?gather|reduce_scatter|"
                          r"reducescatter|all_?to_?all|cross_device_reduce|sendrecv|multimem_"),
        ("compiled", r"^triton_(?!tem|mm|bmm|flash|flex)"),
        ("optimizer", r"multi_tensor_apply|fused_?(adam|sgd|adagrad|lion|lamb)|adam_|_adam|adagrad|_foreach_"),
        ("attention", r"flash|fmha|attention|attn|sdpa|\bmha_|paged_kv"),
        ("softmax", r"soft_?max|logsumexp"),
        ("norm", r"(layer|rms|batch|group|instance|add|l2)_?norm|\bbn_?(fw|bw)|bnorm|GammaBeta|RowwiseMoments|"
                 r"\bln_(fwd|bwd|parallel)|ComputeInternalGradients|ComputeFusedParams|batchnorm"),
        ("copy", r"nchwToNhwc|nhwcToNchw|transpose_readWrite|tensorTransform"),
        ("matmul", r"(?<!fb)gemm|gemv|matmul|nvjet|xmma|cutlass|cublas|miopen|\bCijk_|"
                   r"\b(triton_(tem_\w*?)?)?(add|b)?b?mm(_|\b)|"
                   r"fprop|dgrad|wgrad|convolv|\bconv|_conv|winograd|cudnn|cask_|splitKreduce|dot_kernel|\bdot_|magma_|"
                   r"epilogue::impl|marlin|einsum|wmma|wgmma|linear_kernel|fused_moe_(kernel|gptq|awq)"),
        ("activation", ACTIVATION_NAMES + r"|swiglu|geglu|\berf|threshold|\bglu|act_and_mul|swish"),
        ("random", r"distribution|dropout|bernoulli|multinomial|exponential_|uniform|normal_|philox|rand(om|perm)"),
        ("copy", r"copy|CatArray|\bcat_|gather|scatter|index|embedding|memcpy|memset|transpose|permute|repeat_|"
                 r"(?<!un)roll(?!ed)|_pad|pad_|tri[ul]_|im2col|col2im|to_nhwc|reshape_and_cache|flip_"),
        ("reduction", r"reduce|scan_|DeviceScan|scan_by|sum_|mean_|cumsum|argmax|argmin|_norm|aminmax"),
        ("elementwise", r"elementwise|pointwise|fill|unary|binary|vectorized"),
    )
)  # fmt: skip

# Patterns for a kernel's own name without its templates: a kernel that multiplies nothing may have CUTLASS types as
# template arguments. They take precedence over the patterns above. They cover key/value caches, routing of tokens to
# experts, quantisation, and helpers of cuDNN.
_WITHIN = (
    r"gemm|gemv|mm_|mm$|matmul|attn|attention|conv|linear|norm|act_and|silu|gelu|glu|reduce|gather|softmax|adam|optim"
)
_BY_OWN_NAME = tuple(
    (category, re.compile(pattern, re.IGNORECASE))
    for category, pattern in (
        ("copy", r"(reshape|concat|gather)_and_\w*cache|AppendPaged|(copy|swap)_blocks|destindex_copy|expandInputRows|"
                 r"(store|set|write|append|copy|update|load)\w*_?(kv|cache|paged)\w*|moe_(align|permute|unpermute)"),
        ("reduction", r"finalizeMoe|finalize_moe|moe_sum|pooling_(fw|bw)"),
        ("activation", r"do(Gated)?Activation"),
        ("elementwise", rf"^(?!.*({_WITHIN})).*(quant|cvt_\w*(fp|int|bf)\d)|^(SubMean|MeanScale)Kernel|"
                        r"scale(Packed)?Tensor|op_(generic_)?tensor"),
    )
)  # fmt: skip
_COMMUNICATES = _CATEGORIES[0][1]

# Kernels that look like tensor-core kernels and are not: scalar arithmetic, and preparation or combination of results.
_SCALAR = re.compile(
    r"ffma|simt|(?<![a-z0-9])[sdczh]gemm|scudnn|sgemm_|splitk_?reduce|reducesplitk|splitkv_combine|combine|dot_do_o|"
    r"convert_d[qkv]|preprocess|postprocess|computeoffsets|offsetskernel|fmha_cutlass[FB]_f32_\w*_sm[567]\d|"
    r"fmha_cutlass[FB]_\w*_sm[56]\d\b|f32f32_f32f32|gemmk1_|gemmsn|gemv|epilogue::impl",
    re.IGNORECASE,
)
_TENSOR = re.compile(
    r"""
    [a-z](?:884|1684|1688|16816|16832|16864|161616|168128|168256|8816|8832|88128)(?=gemm|cudnn|fprop|dgrad|wgrad|conv|\w*gemm|_)
    | cutlass | tensorop                                # scalar CUTLASS kernels say so in their names
    | (?<![a-z])[hidqo]?mma(?![a-z]) | wmma | gmma | (?<!s)umma(?!r) | tcgen05 | mma_a?sync
    | SM\d{2,3}_(?:MMA_|\d+x\d+x\d+) | MainloopSm(?:90|1\d\d) | tensorcore | tensor_core
    | nvjet | xmma                                      # cuBLAS from Hopper on; cuBLAS and cuDNN before
    | flash(?!infer) | flashinfer.*(?:Prefill|Decode) | fmha | sdpa_sm\d+ | _attn_(?:fwd|bwd) | \bmha_(?:fwd|bwd)
    | triton_(?:tem_|mm|bmm|flash|flex)                 # Inductor's templates: matrix products and attention
    | (?:fp8|f8f8|e4m3|e5m2|e2m1|fp4|nvf4|mxf)\w*gemm | gemm\w*(?:fp8|e4m3|e5m2|e2m1|fp4) | bmm_\w*e[245]m[123]
    | deep_gemm | marlin | machete | fused_moe_(?:kernel|gptq|awq)
    | qk_int\d*_sv_f\d+\w*_attn                          # SageAttention
    | \bCijk_.*_MI\d+x\d+x\d+ | mfma | xdlops | _xdl     # matrix cores of AMD's
    """,
    re.IGNORECASE | re.VERBOSE,
)


@lru_cache(maxsize=65536)
def category_of(name: str) -> str:
    """Return the category of a kernel, one of operator_categories.ORDER; "other" if the name is unknown."""
    if found := _category_by_own_name(name):
        return found
    return next((category for category, pattern in _CATEGORIES if pattern.search(name)), "other")


def own_name(name: str) -> str:
    """Return a kernel's bare name: "kernel" for "void a::kernel<b::c>(int)"."""
    bare = re.split(r"[<(]", name.removeprefix("void ").replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return bare.strip().rpartition("::")[2]


@lru_cache(maxsize=65536)
def _category_by_own_name(name: str) -> str:
    if _COMMUNICATES.search(name):
        return ""
    own = own_name(name)
    return next((category for category, pattern in _BY_OWN_NAME if pattern.search(own)), "")


@lru_cache(maxsize=65536)
def uses_tensor_cores(name: str) -> bool:
    """Whether the kernel of that name multiplies on tensor cores (on AMD's GPUs: matrix cores).

    Kernels in FP32 arithmetic, `ampere_sgemm_...` or `..._ffma_...`, do not. Parts of a flash attention or of a split-k
    product that only add do not, either.
    """
    return bool(_TENSOR.search(name)) and not _SCALAR.search(name) and not _category_by_own_name(name)


@lru_cache(maxsize=65536)
def communicates(name: str) -> bool:
    """Whether the kernel of that name is a collective or part of one."""
    return bool(_COMMUNICATES.search(name))
