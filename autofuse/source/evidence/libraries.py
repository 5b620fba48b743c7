"""Libraries whose arrays are spelled like torch's tensors, and spellings that only torch has.

Names are text. Knows nothing of graphs.
"""

from __future__ import annotations

# Packages with arrays of their own: what they make is no torch tensor.
_LIKE_NUMPY = frozenset("numpy cupy jax jaxlib dask xarray pandas scipy sparse numba cudf flax haiku autograd".split())
# Those whose arrays have torch's own methods: x.softmax(-1), x.transpose(-2, -1).
LIKE_TORCH = frozenset(
    """
    mlx tinygrad paddle tensorflow keras mindspore oneflow jittor megengine mxnet tvm minitorch micrograd needle
    """.split()
)
ARRAYS = _LIKE_NUMPY | LIKE_TORCH

# Methods that a torch tensor has and a numpy array has not, or not with such arguments.
METHODS = frozenset(
    """
    softmax log_softmax masked_fill unsqueeze sigmoid rsqrt tanh exp pow square sqrt erf permute contiguous expand
    expand_as chunk split unbind float half double bfloat16 long to type_as matmul bmm mm baddbmm mul add div sub detach
    size dim neg abs log log1p expm1 sin cos norm relu clamp clamp_min clamp_max tril triu logsumexp amax amin unflatten
    new_zeros new_ones new_full index_select repeat_interleave cuda cpu numel gather scatter view_as reshape_as narrow
    movedim logical_not bool clone reciprocal true_divide multiply requires_grad_ t softplus masked_select cosh sinh
    """.split()
)
# Keywords that numpy calls otherwise: axis, keepdims, ddof.
KEYWORDS = ("dim", "keepdim", "unbiased")
# Methods that an array has and a torch tensor has not.
OF_ARRAYS = frozenset("astype copy tobytes ptp".split())
# Methods of a tensor that give something else.
PLAIN_METHODS = frozenset(
    "item tolist size dim numel element_size is_contiguous data_ptr stride ndimension get_device".split()
)

# Functions of torch that give no tensor.
NO_TENSOR = frozenset(
    """
    torch.is_tensor torch.device torch.dtype torch.Size torch.finfo torch.iinfo torch.no_grad torch.enable_grad
    torch.autocast torch.compile torch.get_default_dtype torch.manual_seed torch.is_grad_enabled torch.numel
    torch.is_floating_point torch.is_complex torch.set_grad_enabled torch.inference_mode torch.Generator torch.save
    torch.get_default_device torch.is_autocast_enabled torch.set_default_dtype torch.result_type torch.promote_types
    torch.load torch.typename torch.is_storage torch.broadcast_shapes
    """.split()
)
# Functions of torch that take what is no tensor too.
FROM_ANYTHING = frozenset(
    """
    torch.tensor torch.as_tensor torch.from_numpy torch.asarray torch.frombuffer torch.from_dlpack torch.full torch.ones
    torch.zeros torch.empty torch.arange torch.linspace torch.rand torch.randn torch.eye torch.where torch.pow
    torch.is_tensor torch.scalar_tensor torch.numel torch.result_type torch.randint torch.add torch.result_type
    """.split()
)


def root(name: str | None) -> str:
    """The package of a qualified name."""
    return (name or "").partition(".")[0]


def gives_tensor(name: str) -> bool:
    """Whether a function of torch, by its qualified name, gives a tensor or several."""
    last = name.rpartition(".")[2]
    if not name.startswith("torch.") or name in NO_TENSOR:
        return False
    made = last.endswith("Tensor") or last in ("Parameter", "Buffer", "UninitializedParameter")
    functions = (
        "torch.nn.functional.",
        "torch.linalg.",
        "torch.special.",
        "torch.fft.",
        "torch.nn.init.",
        "torch.ops.",
    )
    return made or last[:1].islower() and (name.count(".") == 1 or name.startswith(functions))


def takes_tensor(name: str) -> bool:
    """Whether a function of torch raises where its first argument is no tensor."""
    last = name.rpartition(".")[2]
    return gives_tensor(name) and name not in FROM_ANYTHING and not last.endswith("Tensor") and last[:1].islower()
