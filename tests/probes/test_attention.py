"""The attention matrix of a padded row is that of the row alone, with zeros in the rows and columns of padding."""

import pytest
import torch

from hf_ssm import attention_matrix

LENGTH, TOKENS = 11, 7


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("first", [0, 2, LENGTH - TOKENS], ids=["right", "both", "left"])
@pytest.mark.parametrize("options", [{}, {"block": "plain"}, {"sobolev_order": 0.5, "sobolev_mode": "zero_phase"}])
def test_padding_has_no_rows_and_no_columns(make_model, options, first, reverse):
    model = make_model("SelectiveSSM", "Model", bidirectional=True, **options)
    where = slice(first, first + TOKENS)
    inputs, mask = torch.randn(2, LENGTH, 8), torch.zeros(2, LENGTH, dtype=torch.long)
    mask[:, where] = 1
    with torch.no_grad():
        found = attention_matrix(model.layers[0], inputs, mask, reverse=reverse)
        alone = attention_matrix(model.layers[0], inputs[:, where], reverse=reverse)
    expected = torch.zeros_like(found)
    expected[:, :, where, where] = alone
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert alone.abs().amax((0, 1)).diagonal(-1 if not reverse else 1).min() > 0
