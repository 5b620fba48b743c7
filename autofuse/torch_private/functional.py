"""Functions of torch.nn.functional as torch defines them, whatever a program puts in their place.

A program may replace `F.scaled_dot_product_attention` by a kernel of its own. That is for calls that name this
function, and the code that a fused operation replaces does not name it. So fused operations call these. Functions that
torch implements in C++ are taken from there: a program may have replaced their names before autofuse was imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.nn.functional import *  # noqa: F403
else:
    import torch
    from torch.nn import functional

    globals().update({name: f for name, f in vars(functional).items() if callable(f)})
    gelu = torch._C._nn.gelu
    linear = torch._C._nn.linear
    one_hot = torch._C._nn.one_hot
    scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention
    softplus = torch._C._nn.softplus
