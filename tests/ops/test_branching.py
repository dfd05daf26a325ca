"""Convolutions of sequences that share their beginning, against whole ones."""

import pytest
import torch

from hf_ssm.ops.branching import BranchedConvolution
from hf_ssm.ops.long_conv import StreamingConvolution, long_conv_reference


@pytest.mark.parametrize("pieces", [(7,), (1, 5), (3, 1, 2)])
def test_branches_equal_whole_sequences(pieces: tuple[int, ...]) -> None:
    kernel = torch.randn(4, 40, dtype=torch.double)
    begin = torch.randn(2, 9, 4, dtype=torch.double)
    rows = torch.tensor([1, 0, 1])
    rest = torch.randn(3, sum(pieces), 4, dtype=torch.double)
    stream = StreamingConvolution()
    stream.extend(begin, lambda count: kernel[:, :count])
    branches = BranchedConvolution(stream, rows)
    outputs = [branches.extend(piece, lambda count: kernel[:, :count]) for piece in rest.split(pieces, dim=1)]
    expected = long_conv_reference(torch.cat([begin[rows], rest], dim=1), kernel)[:, 9:]
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, rtol=1e-12, atol=1e-12)
    assert branches.length == 9 + sum(pieces) and stream.length == 9
