"""Complexity per layer: `theory_report` records against the model and a direct computation."""

import math

import pytest
import torch

from hf_ssm.analysis.complexity import layer_complexities
from hf_ssm.analysis.recording import OperatorRecord, record_operators


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("Hyena", {"hyena_order": 3, "bidirectional": True}),
        ("S4", {"bidirectional": True}),
        ("S5", {"bidirectional": True}),
        ("SelectiveSSM", {"bidirectional": True}),
    ],
)
def test_tau_is_what_the_model_returns(make_model, make_batch, family, flags) -> None:
    model = make_model(family, "ForSequenceClassification", **flags)
    batch = make_batch("ForSequenceClassification")
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][0, 8:] = 0
    found = layer_complexities(record_operators(model, [batch]))
    with torch.no_grad():
        expected = model(**batch, output_tau=True).tau
    assert [layer.layer for layer in found] == [0, 1]
    torch.testing.assert_close(torch.tensor([layer.tau for layer in found]), expected, rtol=1e-4, atol=0)
    for layer in found:
        assert layer.num_sequences == 3
        assert layer.tau == pytest.approx(layer.tau_of_channels.mean().item())


@pytest.mark.parametrize("family", ["S4", "S5"])
@pytest.mark.parametrize(("statistics", "name"), [("unit", "squared_l1_norm"), ("white", "squared_l2_norm")])
def test_filter_norms_are_what_the_model_returns(make_model, make_batch, statistics, name, family) -> None:
    model = make_model(family, "ForSequenceClassification", tau_statistics=statistics)
    batch = make_batch("ForSequenceClassification")
    found = layer_complexities(record_operators(model, [batch]))
    expected = model(**batch, output_tau=True).tau.tolist()
    assert [getattr(layer, name) for layer in found] == pytest.approx(expected, rel=1e-5)


def test_a_layer_by_hand() -> None:
    """Two operators of one channel: kernels (2, -1) and (1, 1); means 1; standard deviations (3, 1) and 0."""
    mean = torch.ones(2, 1, dtype=torch.float64)
    spread = torch.tensor([[9.0], [1.0]], dtype=torch.float64)
    first = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    second = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    records = [
        OperatorRecord("a", 4, "forward", 0, first, mean, spread, 10),
        OperatorRecord("a", 4, "backward", 0, second, mean, torch.zeros_like(spread), 10),
    ]
    (layer,) = layer_complexities(records, num_sequences=100)
    # (2·3 + 1·1 + |2 - 1|)² = 64 and |1 + 1|² = 4.
    assert layer.tau_of_channels.tolist() == [64.0, 4.0]
    assert (layer.layer, layer.tau, layer.num_sequences) == (4, 34.0, 100)
    assert layer.measure == pytest.approx(34.0 / math.sqrt(100))
    assert (layer.squared_l1_norm, layer.squared_l2_norm) == ((9 + 4) / 2, (5 + 2) / 2)


def test_number_of_sequences_must_be_positive(make_model, make_batch) -> None:
    records = record_operators(make_model("S4", "Model"), [make_batch("Model")])
    with pytest.raises(ValueError, match=r"num_sequences"):
        layer_complexities(records, num_sequences=0)
