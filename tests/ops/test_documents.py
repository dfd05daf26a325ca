"""Documents that share rows, as rows of their own."""

import pytest
import torch
from torch import Tensor

from hf_ssm.ops.documents import Documents


def documents_of(lengths: list[list[int]], length: int) -> Documents:
    """Documents one after the other from the first position of each row, which ends with padding."""
    rows = [row for row, counts in enumerate(lengths) for _ in counts]
    starts = [sum(counts[:place]) for counts in lengths for place in range(len(counts))]
    counts = [count for row in lengths for count in row]
    return Documents(*(torch.tensor(values) for values in (rows, starts, counts)), (len(lengths), length))


@pytest.mark.parametrize(
    ("lengths", "length"),
    [([[3]], 3), ([[2, 5, 1], [8]], 9), ([[1] * 7, [4, 3]], 7), ([[200, 90, 3, 100, 64]], 460)],
)
def test_each_document_is_a_row_and_comes_back(lengths: list[list[int]], length: int) -> None:
    documents = documents_of(lengths, length)
    packed = torch.arange(1, 1 + 2 * len(lengths) * length).view(len(lengths), length, 2).double()
    expected = [row[:count] for row, counts in zip(packed, lengths, strict=True) for count, row in _pieces(row, counts)]
    for buckets in (documents.buckets(), [documents.bucket()]):
        found: dict[int, Tensor] = {}
        for bucket in buckets:
            rows = bucket.take(packed)
            mask = torch.ones(rows.shape[:2], dtype=torch.bool) if bucket.mask is None else bucket.mask
            found |= {n: row[own] for n, row, own in zip(bucket.numbers.tolist(), rows, mask, strict=True)}
        assert all(torch.equal(found[number], part) for number, part in enumerate(expected))
        assert len(found) == len(expected)
        restored = documents.restore(buckets, [bucket.take(packed) for bucket in buckets])
        is_token = torch.zeros(packed.shape[:2], dtype=torch.bool)
        for row, counts in enumerate(lengths):
            is_token[row, : sum(counts)] = True
        assert torch.equal(restored, packed * is_token.unsqueeze(-1))


def _pieces(row: Tensor, counts: list[int]) -> list[tuple[int, Tensor]]:
    return [(count, row[sum(counts[:place]) :]) for place, count in enumerate(counts)]


def test_documents_of_similar_length_are_read_together() -> None:
    sizes = [tuple(bucket.positions.shape) for bucket in documents_of([[1000, 700, 500, 64, 3, 20]], 2300).buckets()]
    assert sizes == [(3, 1000), (3, 64)]


def test_gradients_return_to_the_tokens() -> None:
    documents = documents_of([[3, 1], [4]], 5)
    packed = torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)

    def function(packed: Tensor) -> Tensor:
        buckets = documents.buckets()
        return documents.restore(buckets, [bucket.take(packed).sin() for bucket in buckets])

    assert torch.autograd.gradcheck(function, (packed,))
