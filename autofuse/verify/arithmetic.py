"""The modes in which the verifier runs a forward: as written, in double, and in double with random rounding.

Each is a torch function mode, so it also affects hard-coded dtypes in a forward (`.float()`, `dtype=torch.float32`).
Dropout is off in all three modes, and its rates are recorded. This file handles torch's functions and compares nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autofuse.torch_private import DisableTorchFunction
from autofuse.torch_private.nested import mapped, tensors_in
from autofuse.verify.dropout_switch import restore_dropout, switch_dropout_off

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


class AsWrittenMode(TorchFunctionMode):
    """Runs the code as written, with dropout off.

    Attributes:
        rates: the rates of the dropouts that would have drawn random numbers.
        rows: the largest number of rows in a tensor that carries a gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.rows = 1

    def __enter__(self) -> AsWrittenMode:
        switch_dropout_off(self.rates.append)  # autofuse's own kernels drop without calling a torch function
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        restore_dropout()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self.call(func, *self._without_dropout(func, list(args), dict(kwargs or {})))
        if type(result) is Tensor and result.ndim and result.requires_grad:
            self.rows = max(self.rows, result.numel() // (result.shape[-1] or 1))
        return result

    def call(self, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call `func` in the arithmetic of this mode."""
        return func(*args, **kwargs)

    def _without_dropout(self, func: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        dropout = _dropout_of(func, args, kwargs)
        rate = dropout.rate(args, kwargs) if dropout else 0.0
        if dropout and rate:
            self.rates.append(rate)
            dropout.switch_off(args, kwargs)
        return args, kwargs

    def convert(self, t: Tensor) -> Tensor:
        """Return `t` in the dtype of this mode."""
        return t


class DoubleMode(AsWrittenMode):
    """Runs in double, with the constants and random numbers of the narrower dtype that the code is written for.

    `own` is that dtype. torch.finfo answers for it, so an eps that the forward takes from there does not change.
    """

    def __init__(self, own: torch.dtype) -> None:
        super().__init__()
        self.own = own

    def __enter__(self) -> DoubleMode:
        self._default, self._finfo = torch.get_default_dtype(), torch.finfo
        torch.set_default_dtype(torch.float64)
        torch.finfo = self._own_finfo  # type: ignore[assignment, misc]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.finfo = self._finfo  # type: ignore[misc]
        torch.set_default_dtype(self._default)

    def convert(self, t: Tensor) -> Tensor:
        """Return `t` in double."""
        return t.to(WIDER.get(t.dtype, t.dtype))

    def call(self, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call `func` in double. Random numbers and the default eps are those of the dtype `own`."""
        if func in _DRAWING:
            return self._draw(func, args, kwargs)
        if func in _DRAWING_IN_PLACE:
            return args[0].copy_(func(args[0].to(self.own), *args[1:], **kwargs))
        if func in (F.rms_norm, torch.rms_norm) and len(args) < 4 and kwargs.get("eps") is None:
            kwargs["eps"] = self._finfo(self.own).eps
        in_place = _is_in_place(func) or "out" in kwargs
        args[in_place:] = [mapped(_widen, a) for a in args[in_place:]]
        kwargs = {k: a if k == "out" else mapped(_widen, a) for k, a in kwargs.items()}
        return _WIDENING.get(func, func)(*args, **kwargs)

    def _draw(self, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
        """Draw the same numbers as the code does in its own dtype, then convert them."""
        if func in _CREATING:
            kwargs["dtype"] = kwargs.get("dtype") or (self._default if func in _TAKE_SHAPE else self.own)
        else:
            args[0] = args[0].to(self.own)
        return self.convert(func(*args, **kwargs))

    def _own_finfo(self, dtype: torch.dtype | None = None) -> Any:
        """Return the finfo of double: the eps of `own`, and the range of float32.

        The range is that of float32 because code often converts half precision before it fills a mask.
        """
        if dtype not in (None, torch.float64):
            return self._finfo(dtype)
        own, wide = self._finfo(self.own), self._finfo(torch.float32)
        range_ = {name: getattr(wide, name) for name in ("bits", "min", "max", "tiny", "smallest_normal")}
        return SimpleNamespace(eps=own.eps, resolution=own.resolution, dtype=own.dtype, **range_)


class RandomRoundingMode(DoubleMode):
    """Runs in double, and changes each result and each gradient at random by up to `unit`, relative to its size.

    The results change as they may if each step rounds once: Monte Carlo arithmetic, Parker, UCLA CSD-970002 (1997). A
    sum of products rounds each product, so its operands are changed too. Softmax runs in steps, since fused attention
    rounds between them.
    """

    def __init__(self, own: torch.dtype, unit: float, seed: int) -> None:
        super().__init__(own)
        self.unit, self.seed = unit, seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def call(self, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call `func` in double, and round its result at random."""
        if func in _SOFTMAXES:
            return self._softmax(*args, **kwargs)
        if getattr(func, "__name__", "") in _SUMS_OF_PRODUCTS:
            args = [self._round_if_inexact(self.convert(a), set()) if isinstance(a, Tensor) else a for a in args]
        result = super().call(func, args, kwargs)
        if _is_in_place(func) or "out" in kwargs:
            return result
        views = {a.untyped_storage().data_ptr() for a in tensors_in((*args, *kwargs.values()))}
        if isinstance(result, Tensor):
            return self._round_if_inexact(result, views)
        if type(result) in (tuple, list):
            return type(result)(self._round_if_inexact(r, views) if isinstance(r, Tensor) else r for r in result)
        return result

    def _softmax(self, input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Tensor:
        input, dim = self.convert(input), -1 if dim is None else dim
        if input.numel() == 0:
            return torch.softmax(input, dim)
        exp = self._round(torch.exp(self._round(input - input.detach().amax(dim, keepdim=True))))
        return self._round(exp * self._round(1.0 / self._round(exp.sum(dim, keepdim=True))))

    def _round_if_inexact(self, t: Tensor, views: set[int]) -> Tensor:
        """Return `t` rounded at random, unless it is a view or holds whole numbers.

        A view is no new result. Positions and fills are whole numbers, which are exact in every dtype.
        """
        if not t.is_floating_point() or t.untyped_storage().data_ptr() in views:
            return t
        if not t.requires_grad and torch.equal(t, t.round()):
            return t
        return self._round(t)

    def _round(self, t: Tensor) -> Tensor:
        rounded = t * self._noise(t)
        if rounded.requires_grad:
            rounded.register_hook(self._round_gradient)  # type: ignore[no-untyped-call]
        return rounded

    def _round_gradient(self, gradient: Tensor) -> Tensor:
        with DisableTorchFunction():  # backward runs inside this mode, but this product must not be rounded again
            return gradient * self._noise(gradient)

    def _noise(self, t: Tensor) -> Tensor:
        if t.device not in self.generators:
            self.generators[t.device] = torch.Generator(t.device).manual_seed(self.seed)
        noise = torch.empty(t.shape, dtype=t.dtype, device=t.device)
        return noise.uniform_(1.0 - self.unit, 1.0 + self.unit, generator=self.generators[t.device])


def _dropout_of(func: Any, args: list[Any], kwargs: dict[str, Any]) -> _Dropout | None:
    """The dropout arguments of a function call; None for a function without dropout."""
    if func in _RECURRENT:  # (..., num_layers, dropout, train, ...) after a varying number of tensors
        position = next((i for i, a in enumerate(args) if isinstance(a, float)), len(args))
        return _Dropout(position, "dropout", 0.0, (position + 1, "train", True))
    if func not in _DROPOUTS and "dropout_p" in kwargs:  # a custom operation
        return _Dropout(len(args), "dropout_p", 0.0)
    return _DROPOUTS.get(func)


class _Dropout(NamedTuple):
    """The parameters of a function that set its dropout rate and switch dropout on.

    Attributes:
        position: the position of the rate.
        name: the keyword of the rate.
        default: the default rate.
        training: position, keyword and default of the flag that switches dropout on, if there is one.
    """

    position: int
    name: str
    default: float
    training: tuple[int, str, bool] | None = None

    def rate(self, args: list[Any], kwargs: dict[str, Any]) -> float:
        if self.training is not None:
            position, name, default = self.training
            if not (args[position] if position < len(args) else kwargs.get(name, default)):
                return 0.0
        return float(args[self.position] if self.position < len(args) else kwargs.get(self.name, self.default))

    def switch_off(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        if self.position < len(args):
            args[self.position] = 0.0
        else:
            kwargs[self.name] = 0.0


def _dropout_functions() -> Iterator[tuple[Callable[..., Any], _Dropout]]:
    for name in "dropout alpha_dropout dropout1d dropout2d dropout3d feature_alpha_dropout".split():
        default_training = name in ("dropout", "dropout1d", "dropout2d", "dropout3d")
        yield getattr(F, name), _Dropout(1, "p", 0.5, (2, "training", default_training))
    for name in "dropout alpha_dropout feature_dropout feature_alpha_dropout".split():
        for suffix in ("", "_"):
            yield getattr(torch, name + suffix), _Dropout(1, "p", 0.5, (2, "train", True))
    yield torch.native_dropout, _Dropout(1, "p", 0.5, (2, "train", True))
    yield F.scaled_dot_product_attention, _Dropout(4, "dropout_p", 0.0)
    # (query, key, value, embed_dim, heads, in weight, in bias, bias_k, bias_v, add_zero_attn, dropout_p, ...)
    yield F.multi_head_attention_forward, _Dropout(10, "dropout_p", 0.0, (13, "training", True))


_DROPOUTS = dict(_dropout_functions())
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_TAKE_SHAPE = {torch.rand, torch.randn, torch.normal}
_CREATING = _TAKE_SHAPE | {torch.rand_like, torch.randn_like}
_DRAWING = _CREATING | {torch.bernoulli, Tensor.bernoulli}
_DRAWING_IN_PLACE = {
    Tensor.bernoulli_, Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.cauchy_, Tensor.log_normal_,
    Tensor.geometric_, Tensor.random_,
}  # fmt: skip
_SUMS_OF_PRODUCTS = set(
    "matmul __matmul__ __rmatmul__ mm bmm mv dot inner addmm addmv baddbmm addbmm linear bilinear einsum tensordot sum "
    "mean var std norm vector_norm cumsum conv1d conv2d conv3d scaled_dot_product_attention".split()
)
_SOFTMAXES = {F.softmax, torch.softmax, Tensor.softmax}
_WIDENING: dict[Any, Callable[..., Any]] = {
    Tensor.float: Tensor.double,
    Tensor.half: Tensor.double,
    Tensor.bfloat16: Tensor.double,
    Tensor.cfloat: Tensor.cdouble,  # type: ignore[attr-defined]
    Tensor.chalf: Tensor.cdouble,  # type: ignore[attr-defined]
}


def _is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return (
        name in ("__setitem__", "__set__")
        or (name.endswith("_") and not name.endswith("__"))
        or name in _AUGMENTED_OPERATORS
    )


_AUGMENTED_OPERATORS = {
    f"__i{name}__" for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split()
}


def _widen(a: Any) -> Any:
    if isinstance(a, Tensor):
        return a.to(WIDER[a.dtype]) if a.dtype in WIDER else a
    if isinstance(a, torch.dtype):
        return WIDER.get(a, a)
    if isinstance(a, str) and a.startswith("torch.") and a.endswith(("FloatTensor", "HalfTensor", "BFloat16Tensor")):
        return "torch.DoubleTensor"  # x.type("torch.FloatTensor")
    return a
