"""A library with a `Tensor` that has the methods of torch's, but is another class."""

from __future__ import annotations

from typing import Any

import numpy as np


class Tensor:
    def __init__(self, values: Any) -> None:
        self.values = values.values if isinstance(values, Tensor) else np.asarray(values)
        self.shape, self.dtype, self.ndim = self.values.shape, self.values.dtype, self.values.ndim

    def _of(self, function: Any, *others: Any) -> Tensor:
        return Tensor(function(self.values, *(o.values if isinstance(o, Tensor) else o for o in others)))

    def __add__(self, other: Any) -> Tensor:
        return self._of(np.add, other)

    def __sub__(self, other: Any) -> Tensor:
        return self._of(np.subtract, other)

    def __mul__(self, other: Any) -> Tensor:
        return self._of(np.multiply, other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Tensor:
        return self._of(lambda x: other - x)

    def __truediv__(self, other: Any) -> Tensor:
        return self._of(np.divide, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._of(lambda x: other / x)

    def __pow__(self, other: Any) -> Tensor:
        return self._of(np.power, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self._of(np.matmul, other)

    def __neg__(self) -> Tensor:
        return self._of(np.negative)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.values[key])

    def size(self, dim: int) -> int:
        return int(self.shape[dim])

    def transpose(self, a: int, b: int) -> Tensor:
        return self._of(np.swapaxes, a, b)

    @property
    def mT(self) -> Tensor:
        return self.transpose(-2, -1)

    def exp(self) -> Tensor:
        return self._of(np.exp)

    def log(self) -> Tensor:
        return self._of(np.log)

    def sqrt(self) -> Tensor:
        return self._of(np.sqrt)

    def rsqrt(self) -> Tensor:
        return self._of(lambda x: 1 / np.sqrt(x))

    def tanh(self) -> Tensor:
        return self._of(np.tanh)

    def square(self) -> Tensor:
        return self._of(np.square)

    def pow(self, n: float) -> Tensor:
        return self**n

    def sigmoid(self) -> Tensor:
        return self._of(lambda x: 1 / (1 + np.exp(-x)))

    def relu(self) -> Tensor:
        return self._of(lambda x: np.maximum(x, 0))

    def clamp(self, low: float, high: float) -> Tensor:
        return self._of(np.clip, low, high)

    clip = clamp

    def mean(self, dim: Any = None, keepdim: bool = False) -> Tensor:
        return self._of(lambda x: x.mean(dim, keepdims=keepdim))

    def sum(self, dim: Any = None, keepdim: bool = False) -> Tensor:
        return self._of(lambda x: x.sum(dim, keepdims=keepdim))

    def var(self, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
        return self._of(lambda x: x.var(dim, ddof=int(unbiased), keepdims=keepdim))

    def softmax(self, dim: int = -1) -> Tensor:
        powers = np.exp(self.values - self.values.max(dim, keepdims=True))
        return Tensor(powers / powers.sum(dim, keepdims=True))

    def chunk(self, n: int, dim: int = 0) -> tuple[Tensor, ...]:
        return tuple(Tensor(part) for part in np.split(self.values, n, dim))

    def masked_fill(self, mask: Tensor, value: float) -> Tensor:
        return Tensor(np.where(mask.values, value, self.values))

    def float(self) -> Tensor:
        return Tensor(self.values.astype(np.float32))

    def numpy(self) -> Any:
        return self.values
