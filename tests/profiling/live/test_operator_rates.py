"""Rates of operators: the shapes of the measured pieces, and that each is measured once."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.profiling.live.listed_operators import list_operators
from autofuse.profiling.live.operator_rates import ELEMENTS, OperatorRates, _RowCutter, elements


def operator(function, *tensors):
    mode = FakeTensorMode()
    with mode:
        given = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in tensors]
        return list_operators(lambda: function(*given), nn.Module(), [], False)[-1]


def test_a_piece_has_fewer_rows_and_the_same_last_size_dtype_and_order():
    meta = torch.empty(64, 2**10, 2**10, dtype=torch.bfloat16, device="meta")
    found = operator(torch.tanh, meta.transpose(1, 2))
    piece = _RowCutter(found).real_piece(found.operands[0])
    assert piece.shape[-1] == 2**10 and piece.dtype is torch.bfloat16
    assert piece.numel() <= ELEMENTS * torch.get_num_threads()
    assert piece.stride()[1] == 1


def test_weights_and_repeated_tensors_keep_their_form():
    big, row = torch.empty(2**12, 2**10, device="meta"), torch.empty(2**10, device="meta")
    found = operator(torch.mul, big, row)
    cut = _RowCutter(found)
    assert cut.real_piece(found.operands[1]).shape == row.shape
    repeated = operator(torch.mul, big, torch.empty(2**12, 1, device="meta").expand(2**12, 2**10))
    assert _RowCutter(repeated).real_piece(repeated.operands[1]).stride()[1] == 0


def test_matrices_of_a_batch_stay_whole():
    a, b = torch.empty(64, 256, 16, device="meta"), torch.empty(64, 16, 256, device="meta")
    found = operator(torch.bmm, a, b)
    cut = _RowCutter(found)
    left, right = map(cut.real_piece, found.operands)
    assert left.shape[1:] == (256, 16) and right.shape[1:] == (16, 256) and left.shape[0] == right.shape[0] < 64


def test_an_operator_takes_in_proportion_to_its_elements():
    pieces = OperatorRates()
    small = operator(torch.tanh, torch.empty(2**10, 2**10, device="meta"))
    large = operator(torch.tanh, torch.empty(2**12, 2**10, device="meta"))
    assert pieces.seconds(small) > 0
    assert pieces.seconds(large) == 4 * pieces.seconds(small)
    assert elements(large) == 2**22
