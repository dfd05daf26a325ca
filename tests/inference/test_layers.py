"""Layers by name and poolings of `embed`, against the model with its head and plain NumPy."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import hf_ssm

TOKENIZER = hf_ssm.build_dna_tokenizer()
TEXTS = ["ACGTTGCATCGAATCG", "GATTACA", "C", "TTGACGTNNACG"]
POOLED = {
    "mean": lambda states: states.sum(0) / len(states),
    "max": lambda states: states.max(0),
    "first": lambda states: states[0],
    "last": lambda states: states[-1],
    "center": lambda states: states[len(states) // 2],
}


@pytest.fixture
def bert() -> BertForMaskedLM:
    sizes = {"num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 40, "initializer_range": 0.4}
    return BertForMaskedLM(BertConfig(vocab_size=12, hidden_size=8, num_hidden_layers=3, **sizes)).double().eval()


def vectors(table, name: str = "embedding") -> np.ndarray:
    return np.array(table[name][:])


def outputs_of(model, name: str, text: str) -> np.ndarray:
    """What the module returned when the whole model, with its head, read one text."""
    kept: list = []
    handle = dict(model.named_modules())[name].register_forward_hook(lambda module, inputs, output: kept.append(output))
    with torch.no_grad():
        model(input_ids=TOKENIZER(text, return_tensors="pt")["input_ids"])
    handle.remove()
    output = kept[0]
    return (output if isinstance(output, torch.Tensor) else output[0])[0].numpy()


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("name", ["bert.encoder.layer.1", "encoder.layer.2.attention.self", "bert.embeddings"])
def test_modules_of_transformers(bert, name, pooling):
    table = hf_ssm.embed(bert, TOKENIZER, TEXTS, layers=name, pooling=pooling)
    full_name = name if name.startswith("bert.") else f"bert.{name}"
    expected = [POOLED[pooling](outputs_of(bert, full_name, text)) for text in TEXTS]
    np.testing.assert_allclose(vectors(table), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("family", ["Hyena", "S4", "SelectiveSSM", "SSD"])
def test_modules_of_hf_ssm(make_model, family):
    model = make_model(family, "ForCausalLM").double()
    prefix = model.base_model_prefix
    table = hf_ssm.embed(model, TOKENIZER, TEXTS, layers=[f"{prefix}.layers.1.mixer", "layers.0", 1], pooling="max")
    assert table.column_names == [f"embedding_{name}" for name in (f"{prefix}.layers.1.mixer", "layers.0", "1")]
    expected = [outputs_of(model, f"{prefix}.layers.1.mixer", text).max(0) for text in TEXTS]
    np.testing.assert_allclose(vectors(table, table.column_names[0]), expected, rtol=1e-10, atol=1e-12)
    # Hidden state 1 is the output of the first block.
    np.testing.assert_array_equal(vectors(table, "embedding_layers.0"), vectors(table, "embedding_1"))
    # No hook is left behind.
    assert not any(module._forward_hooks for module in model.modules())


def test_names_of_numbers(bert):
    table = hf_ssm.embed(bert, TOKENIZER, TEXTS, layers="all")
    assert table.column_names == [f"embedding_{number}" for number in range(4)]
    middle, last = (hf_ssm.embed(bert, TOKENIZER, TEXTS, layers=name) for name in ("middle", "last"))
    np.testing.assert_allclose(vectors(middle), vectors(table, "embedding_2"), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(vectors(last), vectors(table, "embedding_3"), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("text", "center"), [("ACGTA", 2), ("ACGT", 2), ("A", 0)])
def test_the_center_is_one_letter_on_both_strands(make_model, text, center):
    model = make_model("S4", "Model").double()
    tokens = hf_ssm.embed(model, TOKENIZER, [text], pooling="token", both_strands=True)
    table = hf_ssm.embed(model, TOKENIZER, [text], pooling="center", both_strands=True)
    np.testing.assert_array_equal(vectors(table)[0], vectors(tokens)[center])


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("encoder.layer.9", r"`layers`='encoder.layer.9': give a number, all, last, middle, .*: embeddings, encoder"),
        (["last", 3], "names a layer twice"),
        ("encoder.layer.0.attention.self.dropout", "does not call this module|no hidden states"),
        (["encoder.layer.0.intermediate", -1], r"differ in width \(encoder.layer.0.intermediate: 16, 3: 8\)"),
    ],
)
def test_wrong_names(bert, layers, message):
    # transformers has hooks of its own, from the first call on.
    hf_ssm.embed(bert, TOKENIZER, TEXTS)
    before = [len(module._forward_hooks) for module in bert.modules()]
    with pytest.raises(ValueError, match=message):
        hf_ssm.embed(bert, TOKENIZER, TEXTS, layers=layers)
    assert [len(module._forward_hooks) for module in bert.modules()] == before


def test_outputs_in_another_arrangement_are_refused(make_model):
    """The blocks of an equivariant model read both strands as rows of their own."""
    model = make_model("S4", "Model", rc_equivariant=True)
    assert len(hf_ssm.embed(model, TOKENIZER, TEXTS)) == len(TEXTS)
    with pytest.raises(
        ValueError, match=r"output of this module is \(4, 3, 8\), which is not the shape of hidden states"
    ):
        hf_ssm.embed(model, TOKENIZER, TEXTS, layers="layers.1")
