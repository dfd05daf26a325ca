"""The layout of documents that share rows."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from hf_ssm.ops.documents import Documents


def documents_of(lengths: list[list[int]], length: int, share: float = 0.8) -> Documents:
    """Documents from the start of each row on, one after the other."""
    rows = torch.tensor([row for row, counts in enumerate(lengths) for _ in counts])
    starts = torch.cat([torch.tensor([0, *counts]).cumsum(0)[:-1] for counts in lengths])
    flat = torch.tensor([count for counts in lengths for count in counts])
    return Documents(rows, starts, flat, (len(lengths), length), share=share)


LAYOUTS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=3)


@hypothesis.given(lengths=LAYOUTS, share=st.sampled_from([0.0, 0.5, 0.8, 1.0]), behind=st.integers(0, 3))
def test_every_document_is_a_row_of_a_bucket(lengths: list[list[int]], share: float, behind: int) -> None:
    length = max(map(sum, lengths)) + behind
    documents = documents_of(lengths, length, share)
    packed = torch.randn(len(lengths), length, 2)
    expected = [
        part for row, counts in zip(packed, lengths, strict=True) for part in row[: sum(counts)].split(counts, dim=0)
    ]
    found = []
    for batch, mask in documents.masked_batches(documents.arrange(packed)):
        masks = torch.ones(batch.shape[:2], dtype=torch.bool) if mask is None else mask
        found += [row[own] for row, own in zip(batch, masks, strict=True)]
    assert len(found) == len(expected) == len(documents)
    order = documents.lengths.argsort(descending=True, stable=True).tolist()
    assert all(torch.equal(part, expected[number]) for part, number in zip(found, order, strict=True))
    last = documents.by_document(
        documents.arrange(packed), lambda batch, mask: batch[:, 0] if mask is None else (batch * mask[..., None])[:, 0]
    )
    assert torch.equal(last, torch.stack([part[0] for part in expected]))
    restored = documents.restore(documents.arrange(packed))
    for row, counts in enumerate(lengths):
        assert torch.equal(restored[row, : sum(counts)], packed[row, : sum(counts)])


def test_equal_lengths_need_no_padding_and_a_long_document_does_not_widen_short_ones() -> None:
    even = documents_of([[5, 5, 5]], 15)
    assert even.mask is None
    assert even.buckets == [(3, 5)]
    mixed = documents_of([[1000, 30, 1, 2, 29]], 1062)
    assert mixed.buckets == [(1, 1000), (2, 30), (2, 2)]
    assert mixed.mask is not None
    assert int(mixed.mask.sum()) == 1062


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_gradients_reach_tokens_once_and_padding_never() -> None:
    documents = documents_of([[20, 17, 1], [2, 18]], 40)
    packed = torch.randn(2, 40, 3, dtype=torch.float64, requires_grad=True)
    is_token = torch.zeros(2, 40, 1, dtype=torch.float64)
    is_token[0, :38], is_token[1, :20] = 1, 1

    def round_trip(packed: torch.Tensor) -> torch.Tensor:
        arranged = documents.arrange(packed)
        weights = 1.0 if documents.mask is None else documents.mask.unsqueeze(-1)
        return documents.restore((arranged * weights).sin()) * is_token

    assert torch.autograd.gradcheck(round_trip, (packed,))
    assert torch.autograd.gradgradcheck(round_trip, (packed,))
    tangent = torch.randn_like(packed)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(packed.detach(), tangent)
        found = torch.autograd.forward_ad.unpack_dual(round_trip(dual)).tangent
    torch.testing.assert_close(found, packed.detach().cos() * tangent * is_token)
    (gradient,) = torch.autograd.grad(documents.arrange(packed).sum(), packed)
    assert torch.equal(gradient, is_token.expand_as(packed))


def test_flipped_documents_end_where_their_row_ends() -> None:
    documents = documents_of([[4, 20, 17]], 41)
    arranged = documents.arrange(torch.arange(41).view(1, 41, 1))
    behind = documents.reversed()
    flipped = documents.flip(arranged)
    assert torch.equal(documents.flip(flipped), arranged)
    long, _ = behind.masked_batches(flipped)
    batch, mask = long
    assert batch[1][mask[1]].flatten().tolist() == list(range(40, 23, -1))
