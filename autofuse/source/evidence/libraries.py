"""Libraries whose arrays are spelled like torch's tensors, and spellings that only torch has.

Names are text. Knows nothing of graphs.
"""

from __future__ import annotations

# Packages with arrays of their own: what they make is no torch tensor.
ARRAYS = frozenset(
    """
    numpy cupy jax jaxlib mlx tinygrad paddle tensorflow keras mindspore oneflow jittor megengine mxnet autograd dask
    xarray pandas scipy sparse numba cudf tvm minitorch micrograd needle dragon flax haiku equinox candle torch_like
    """.split()
) - {"torch_like"}
# Those of them whose arrays have torch's own methods: x.softmax(-1), x.transpose(-2, -1).
LIKE_TORCH = ARRAYS - frozenset("numpy cupy jax jaxlib dask xarray pandas scipy sparse numba cudf flax haiku".split())

# Methods that a torch tensor has and a numpy array has not, or not with such arguments.
METHODS = frozenset(
    """
    softmax log_softmax masked_fill masked_scatter unsqueeze sigmoid rsqrt tanh exp pow square sqrt erf permute
    contiguous expand expand_as chunk split unbind float half double bfloat16 long to type_as matmul bmm mm baddbmm mul
    add div sub detach size dim neg abs log sin norm relu clamp clamp_min clamp_max tril triu logsumexp amax
    amin unflatten new_zeros new_ones new_full index_select repeat_interleave cuda cpu numel gather scatter
    view_as reshape_as narrow movedim logical_not bool clone reciprocal true_divide multiply requires_grad_ t
    """.split()
)
# Keywords that numpy calls otherwise: axis, keepdims, ddof.
KEYWORDS = frozenset({"dim", "keepdim", "unbiased", "dtype"}) - {"dtype"}
# Methods that an array has and a torch tensor has not.
OF_ARRAYS = frozenset({"astype", "copy", "tobytes", "ptp", "fill_diagonal"})

# Functions of torch that give no tensor, or take what is none.
NO_TENSOR = frozenset(
    """
    torch.is_tensor torch.device torch.dtype torch.Size torch.finfo torch.iinfo torch.no_grad torch.enable_grad
    torch.autocast torch.compile torch.get_default_dtype torch.manual_seed torch.is_grad_enabled torch.numel
    torch.is_floating_point torch.is_complex torch.set_grad_enabled torch.inference_mode torch.Generator torch.save
    torch.get_default_device torch.is_autocast_enabled torch.set_default_dtype torch.result_type torch.promote_types
    """.split()
)
FROM_ANYTHING = frozenset(
    "torch.tensor torch.as_tensor torch.from_numpy torch.asarray torch.Tensor torch.FloatTensor torch.LongTensor "
    "torch.DoubleTensor torch.HalfTensor torch.BoolTensor torch.IntTensor torch.frombuffer torch.from_dlpack".split()
)
