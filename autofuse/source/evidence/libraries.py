"""Tables of names: array libraries with an interface like torch's, and methods and functions that only torch has."""

from __future__ import annotations

# Packages with array types of their own.
_LIKE_NUMPY = frozenset("numpy cupy jax jaxlib dask xarray pandas scipy sparse numba cudf flax haiku autograd".split())
# Packages whose arrays also have torch's methods: x.softmax(-1), x.transpose(-2, -1).
TORCH_LIKE_LIBRARIES = frozenset(
    """
    mlx tinygrad paddle tensorflow keras mindspore oneflow jittor megengine mxnet tvm minitorch micrograd needle
    """.split()
)
ARRAY_LIBRARIES = _LIKE_NUMPY | TORCH_LIKE_LIBRARIES

# Methods of torch tensors that numpy arrays do not have, or not with these arguments.
TENSOR_METHODS = frozenset(
    """
    softmax log_softmax masked_fill unsqueeze sigmoid rsqrt tanh exp pow square sqrt erf permute contiguous expand
    expand_as chunk split unbind float half double bfloat16 long to type_as matmul bmm mm baddbmm mul add div sub detach
    size dim neg abs log log1p expm1 sin cos norm relu clamp clamp_min clamp_max tril triu logsumexp amax amin unflatten
    new_zeros new_ones new_full index_select repeat_interleave cuda cpu numel gather scatter view_as reshape_as narrow
    movedim logical_not bool clone reciprocal true_divide multiply requires_grad_ t softplus masked_select cosh sinh
    """.split()
)
# Keyword arguments that have other names in numpy: axis, keepdims, ddof.
TORCH_KEYWORDS = ("dim", "keepdim", "unbiased")
# Methods of arrays that torch tensors do not have.
ARRAY_METHODS = frozenset("astype copy tobytes ptp".split())
# Methods of a tensor that return no tensor.
PLAIN_METHODS = frozenset(
    "item tolist size dim numel element_size is_contiguous data_ptr stride ndimension get_device".split()
)

# Functions of torch that return no tensor.
RETURNS_NO_TENSOR = frozenset(
    """
    torch.is_tensor torch.device torch.dtype torch.Size torch.finfo torch.iinfo torch.no_grad torch.enable_grad
    torch.autocast torch.compile torch.get_default_dtype torch.manual_seed torch.is_grad_enabled torch.numel
    torch.is_floating_point torch.is_complex torch.set_grad_enabled torch.inference_mode torch.Generator torch.save
    torch.get_default_device torch.is_autocast_enabled torch.set_default_dtype torch.result_type torch.promote_types
    torch.load torch.typename torch.is_storage torch.broadcast_shapes
    """.split()
)
# Functions of torch whose first argument need not be a tensor.
TAKES_ANY_ARGUMENT = frozenset(
    """
    torch.tensor torch.as_tensor torch.from_numpy torch.asarray torch.frombuffer torch.from_dlpack torch.full torch.ones
    torch.zeros torch.empty torch.arange torch.linspace torch.rand torch.randn torch.eye torch.where torch.pow
    torch.is_tensor torch.scalar_tensor torch.numel torch.result_type torch.randint torch.add torch.result_type
    """.split()
)


def package_of(name: str | None) -> str:
    """Returns the top-level package of a qualified name; "" for None."""
    return (name or "").partition(".")[0]


def returns_tensor(name: str) -> bool:
    """Whether a function of torch, by its qualified name, returns a tensor or several tensors."""
    last = name.rpartition(".")[2]
    if not name.startswith("torch.") or name in RETURNS_NO_TENSOR:
        return False
    is_tensor_class = last.endswith("Tensor") or last in ("Parameter", "Buffer", "UninitializedParameter")
    namespaces = (
        "torch.nn.functional.",
        "torch.linalg.",
        "torch.special.",
        "torch.fft.",
        "torch.nn.init.",
        "torch.ops.",
    )
    return is_tensor_class or last[:1].islower() and (name.count(".") == 1 or name.startswith(namespaces))


def requires_tensor(name: str) -> bool:
    """Whether a function of torch raises an error if its first argument is no tensor."""
    last = name.rpartition(".")[2]
    return (
        returns_tensor(name) and name not in TAKES_ANY_ARGUMENT and not last.endswith("Tensor") and last[:1].islower()
    )
