"""torch.utils.flop_counter with the formulas for attention on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from autofuse.ops.flops import SDPA_ON_CPU


def test_attention_on_a_cpu_is_counted_as_its_products_and_the_scores_once_more() -> None:
    query, key, value = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))

    def count(backend: SDPBackend) -> int:
        with FlopCounterMode(display=False, custom_mapping=dict(SDPA_ON_CPU)) as counter, sdpa_kernel(backend):
            F.scaled_dot_product_attention(query, key, value).sum().backward()
        return int(counter.get_total_flops())

    product = 2 * 2 * 3 * 8 * 8 * 4
    assert count(SDPBackend.FLASH_ATTENTION) == count(SDPBackend.MATH) + product == 7 * product
