"""Functions of torch.nn.functional as torch defines them, whatever a program puts in their place.

A program may replace `F.scaled_dot_product_attention` by a kernel of its own. That is for calls that name this
function, and the code that a fused operation replaces does not name it. So fused operations call these. Functions that
torch implements in C++ are taken from there: a program may have replaced their names before autofuse was imported.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as cross_entropy
from torch.nn.functional import dropout as dropout
from torch.nn.functional import glu as glu
from torch.nn.functional import hardswish as hardswish
from torch.nn.functional import kl_div as kl_div
from torch.nn.functional import layer_norm as layer_norm
from torch.nn.functional import log_softmax as log_softmax
from torch.nn.functional import mish as mish
from torch.nn.functional import nll_loss as nll_loss
from torch.nn.functional import pad as pad
from torch.nn.functional import relu as relu
from torch.nn.functional import rms_norm as rms_norm
from torch.nn.functional import silu as silu
from torch.nn.functional import softmax as softmax

gelu: Callable[..., Tensor] = torch._C._nn.gelu
linear: Callable[..., Tensor] = torch._C._nn.linear
one_hot: Callable[..., Tensor] = torch._C._nn.one_hot
scaled_dot_product_attention: Callable[..., Tensor] = torch._C._nn.scaled_dot_product_attention
softplus: Callable[..., Tensor] = torch._C._nn.softplus
