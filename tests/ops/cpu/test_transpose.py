"""Transposed copies, against torch's own."""

import pytest
import torch

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

from hf_ssm.ops.long_conv.numba import can_transpose, transpose


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 15, 16, 33])
@pytest.mark.parametrize("columns", [1, 16, 31, 48])
def test_equals_the_copy_of_torch_and_writes_nothing_else(rows, columns, dtype):
    source = torch.randn(rows, columns + 3, dtype=dtype)[:, 1 : columns + 1]
    around = torch.full((columns + 2, rows + 5), -7.0, dtype=dtype)
    expected = around.clone()
    expected[1:-1, 2:-3] = source.T
    target = around[1:-1, 2:-3]
    assert can_transpose(source, target)
    transpose(source.unsqueeze(0), target.unsqueeze(0))
    assert torch.equal(around, expected)


def test_what_it_cannot():
    matrix = torch.zeros(4, 4)
    assert not can_transpose(matrix, matrix.double())
    assert not can_transpose(matrix.T[:3], matrix[:, :3].T)
    assert not can_transpose(matrix.bfloat16(), matrix.bfloat16())
