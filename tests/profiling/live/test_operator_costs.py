"""The modelled time of operators on a machine with simple numbers."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.fx.trace.twin import Twins
from autofuse.profiling.live.listed_operators import list_operators
from autofuse.profiling.live.operator_costs import OVERLAP, Costs, is_product


class Paper:
    """One FLOP, byte or function per second, and no time to launch."""

    launch, special = 0.0, 1.0

    def flops(self, dtype):
        return 1.0

    def bandwidth(self, touched):
        return 1.0


class Same:
    """Pieces that all have the same speed."""

    def __init__(self, seconds):
        self.answer = seconds

    def seconds(self, operator):
        return self.answer


def operators(model, *shape):
    mode = FakeTensorMode()
    twin = Twins(mode.from_tensor, watched=False).of(model)
    with mode:
        x = torch.empty(*shape)
        return list_operators(lambda: twin(x), twin, [], False)


def test_a_product_takes_its_flops_and_half_of_the_shorter_bytes():
    (product,) = operators(nn.Linear(16, 16, bias=False), 64, 16)
    flops, moved = 2 * 64 * 16 * 16, 4 * (64 * 16 + 16 * 16 + 64 * 16)
    assert is_product(product)
    assert Costs(Paper(), Same(None)).one(product).seconds == flops + (1 - OVERLAP) * moved


def test_other_operators_on_a_cpu_take_what_their_piece_does_or_their_bytes():
    (tanh,) = operators(nn.Tanh(), 4, 8)
    moved = 4 * 2 * 32
    assert Costs(Paper(), Same(1000.0)).one(tanh).seconds == 1000 + (1 - OVERLAP) * moved
    assert Costs(Paper(), Same(0.0)).one(tanh).seconds == moved


def test_a_loop_reads_once_and_writes_once_what_operators_move_many_times():
    found = operators(nn.Sequential(nn.Hardtanh(), nn.Hardtanh(), nn.Hardtanh()), 4, 8)
    costs = Costs(Paper(), Same(0.0))
    assert costs.of(found).bytes == 3 * 2 * 4 * 32
    assert costs.in_one_loop(found).bytes == 2 * 4 * 32
    assert costs.in_one_loop(found).seconds == 2 * 4 * 32


def test_a_loop_computes_each_function_and_leaves_products_as_they_are():
    found = operators(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Tanh()), 100, 4)
    costs = Costs(Paper(), Same(0.0))
    alone = costs.one(found[0]).seconds
    assert costs.in_one_loop(found).seconds - alone == max(2 * 400, 2 * 4 * 400)


@pytest.mark.parametrize("elements, faults", [(2**23, False), (2**23 + 1, True)])
def test_pages_are_new_for_tensors_that_malloc_maps(elements, faults, monkeypatch):
    monkeypatch.setattr("autofuse.profiling.live.operator_costs.seconds_of_new_bytes", lambda: 1.0)
    (tanh,) = operators(nn.Tanh(), elements)
    extra = Costs(Paper(), Same(0.0)).one(tanh).seconds - 2 * 4 * elements
    assert extra == (4 * elements if faults else 0)
