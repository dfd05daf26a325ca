"""Rows of a cache with different numbers of tokens."""

import pytest
import torch

LENGTHS = (8, 5, 2)


@pytest.fixture(params=["Hyena", "S4", "S5", "SelectiveSSM"])
def model(make_model, request):
    return make_model(request.param, "ForCausalLM")


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("rearrange", "rows"),
    [
        (lambda cache: cache.batch_select_indices(torch.tensor([2, 0, 1, 0])), [2, 0, 1, 0]),
        (lambda cache: cache.reorder_cache(torch.tensor([1, 2, 0])), [1, 2, 0]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
    ],
    ids=["select", "reorder", "repeat"],
)
def test_rearranged_rows_continue_as_those_they_were(model, rearrange, rows, side):
    read = [torch.randint(0, 12, (length,)) for length in LENGTHS]
    ids, mask = torch.zeros(3, 10, dtype=torch.long), torch.zeros(3, 10, dtype=torch.long)
    for row, tokens in enumerate(read):
        where = slice(0, len(tokens)) if side == "right" else slice(10 - len(tokens), 10)
        ids[row, where], mask[row, where] = tokens, 1
    cache = model(ids, attention_mask=mask, use_cache=True).cache
    rearrange(cache)
    assert cache.tokens_seen.tolist() == [LENGTHS[row] for row in rows]
    # The first row ends one token earlier than the others.
    more, kept = torch.randint(0, 12, (len(rows), 4)), torch.ones(len(rows), 4, dtype=torch.long)
    kept[0, 3] = 0
    found = model(more, attention_mask=kept, cache=cache).logits
    for number, row in enumerate(rows):
        count = int(kept[number].sum())
        whole = torch.cat([read[row], more[number, :count]]).unsqueeze(0)
        torch.testing.assert_close(found[number, :count], model(whole).logits[0, -count:], rtol=1e-5, atol=1e-5)
    assert cache.tokens_seen.tolist() == [LENGTHS[row] + int(own.sum()) for row, own in zip(rows, kept, strict=True)]
    assert cache.get_seq_length() == 14
