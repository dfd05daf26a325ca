"""Algorithm 1: one forward pass, after which τ of every layer is 1."""

import copy

import pytest
import torch

from hf_ssm import rescale_init_, tau_loss
from hf_ssm.training.settings import resolve

VARIANTS = [
    ("Hyena", "ForSequenceClassification", {}),
    ("Hyena", "ForCausalLM", {"filter_type": "s4d", "hyena_order": 3}),
    ("Hyena", "ForCausalLM", {"filter_type": "sinusoid"}),
    ("Hyena", "ForMaskedLM", {"filter_type": "s4"}),
    ("S4", "ForSequenceClassification", {"num_hidden_layers": 4}),
    ("S4", "ForMaskedLM", {"kernel_type": "s4", "discretization": "bilinear"}),
    ("S4", "ForSignalRegression", {"sobolev_order": 1.0}),
    ("S4", "ForTokenClassification", {"sobolev_order": 1.0, "sobolev_mode": "zero_phase", "hidden_dropout": 0.3}),
    ("S4", "ForSequenceClassification", {"tau_statistics": "unit"}),
    ("S5", "ForSequenceClassification", {"bidirectional": True, "sobolev_order": 0.5}),
    ("S4", "ForSequenceClassification", {"use_skip": False, "norm_first": False}),
    ("SelectiveSSM", "ForCausalLM", {}),
    ("SelectiveSSM", "ForMaskedLM", {"complex_state": True}),
    ("SelectiveSSM", "ForTokenClassification", {"sobolev_order": 1.0, "sobolev_mode": "zero_phase"}),
    ("SelectiveSSM", "ForSignalRegression", {"block": "plain", "state_matrix": "raw"}),
    ("SelectiveSSM", "ForSequenceClassification", {"tau_statistics": "unit"}),
    ("SSD", "ForTokenClassification", {"rescale_init": True, "sobolev_order": 1.0, "sobolev_mode": "zero_phase"}),
]


@pytest.mark.parametrize(("family", "head", "flags"), VARIANTS)
@pytest.mark.parametrize("padded", [False, True])
def test_tau_is_one_afterwards(make_model, make_batch, family: str, head: str, flags: dict, padded: bool) -> None:
    model = make_model(family, head, **flags)
    batch = make_batch(head, batch=8)
    if padded:
        batch["attention_mask"] = (torch.arange(12) < torch.randint(4, 13, (8, 1))).long()
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    before = model(**inputs, output_tau=True).tau
    found = rescale_init_(model, batch)
    after = model(**inputs, output_tau=True).tau
    torch.testing.assert_close(after, torch.ones_like(after), rtol=1e-5, atol=1e-5)
    # The first convolution sees the same input before and after; the others were measured above rescaled ones.
    if flags.get("hyena_order", 2) == 2:
        torch.testing.assert_close(found[0], before[0])
    assert ((found - 1).abs() > 0.01).all()
    assert model.config.rescaled is True


def test_it_divides_c_and_d_and_nothing_else(make_model, make_batch) -> None:
    model = make_model("S4", "ForSequenceClassification", num_hidden_layers=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (tau,) = rescale_init_(model, make_batch("ForSequenceClassification"))
    for name, value in model.state_dict().items():
        scale = tau.rsqrt() if name.endswith(("long_conv.filter.C", "long_conv.D")) else 1.0
        torch.testing.assert_close(value, before[name] * scale, msg=name)


@pytest.mark.parametrize("block", ["mamba", "plain"])
def test_of_a_scan_it_divides_the_rows_of_c_and_d_and_nothing_else(make_model, make_batch, block: str) -> None:
    flags = {"num_hidden_layers": 1, "block": block, "use_skip": True}
    model = make_model("SelectiveSSM", "ForSequenceClassification", **flags)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (tau,) = rescale_init_(model, make_batch("ForSequenceClassification"))
    for name, value in model.state_dict().items():
        expected = before[name]
        if name.endswith("scan.x_proj.weight"):
            expected[-8:] *= tau.rsqrt()
        elif name.endswith("scan.D"):
            expected *= tau.rsqrt()
        torch.testing.assert_close(value, expected, msg=name)


def test_training_mode_and_dropout_are_put_back(make_model, make_batch) -> None:
    model = make_model("Hyena", "ForSequenceClassification", hidden_dropout=0.5).train()
    rescale_init_(model, make_batch("ForSequenceClassification"))
    assert all(part.training for part in model.modules())


def test_a_failure_leaves_the_model_as_it_was(make_model, make_batch) -> None:
    model = make_model("S4", "ForSequenceClassification")
    with torch.no_grad():
        model.model.layers[1].mixer.long_conv.filter.C.zero_()
        model.model.layers[1].mixer.long_conv.D.zero_()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"τ of a layer is 0\.0"):
        rescale_init_(model, make_batch("ForSequenceClassification"))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert model.config.rescaled is False
    assert not any(block._forward_pre_hooks for block in model.model.layers)


def test_a_batch_of_one_row_warns(make_model, make_batch) -> None:
    with pytest.warns(UserWarning, match="batch of one row"):
        rescale_init_(make_model("S4", "ForSequenceClassification"), make_batch("ForSequenceClassification", batch=1))


def test_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no long convolution"):
        rescale_init_(torch.nn.Linear(2, 2), {})


def test_a_data_parallel_wrapper(make_model, make_batch) -> None:
    model = make_model("S4", "ForSequenceClassification")
    batch = make_batch("ForSequenceClassification")
    rescale_init_(torch.nn.DataParallel(model), batch)
    tau = model(**batch, output_tau=True).tau
    torch.testing.assert_close(tau, torch.ones_like(tau), rtol=1e-5, atol=1e-5)
    assert model.config.rescaled is True


def test_a_failure_leaves_batch_norms_as_they_were(make_model, make_batch) -> None:
    model = make_model("S4", "ForSequenceClassification", norm_type="batch").train()
    with torch.no_grad():
        model.model.layers[1].mixer.long_conv.filter.C.fill_(torch.nan)
    before = {name: value.clone() for name, value in model.named_buffers()}
    with pytest.raises(ValueError, match="τ of a layer is nan"):
        rescale_init_(model, make_batch("ForSequenceClassification"))
    assert before and all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_parameters_that_others_have_sharded_are_refused(make_model, make_batch) -> None:
    model = make_model("S4", "ForSequenceClassification")
    wrapper = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})
    batch = make_batch("ForSequenceClassification")
    model.model.layers[0].mixer = wrapper(model.model.layers[0].mixer)
    with pytest.raises(ValueError, match=r"FSDP1 .*before the model is wrapped"):
        rescale_init_(model, batch)
    model = make_model("S4", "ForSequenceClassification")
    next(model.parameters()).ds_id = 0
    with pytest.raises(ValueError, match=r"ZeRO-3.* before the model is wrapped"):
        rescale_init_(model, batch)
    assert not model.config.rescaled


@pytest.mark.parametrize("way", ["argument", "loss"])
def test_a_model_that_is_asked_for_tau_is_rescaled_too(make_model, make_batch, way):
    inputs = make_batch("ForCausalLM")
    model = make_model("S4", "ForCausalLM").train()
    expected = rescale_init_(copy.deepcopy(model), inputs)
    if way == "loss":
        tau_loss(model, 0.1)
    torch.testing.assert_close(
        rescale_init_(model, inputs | ({"output_tau": True} if way == "argument" else {})), expected, rtol=0, atol=0
    )


def test_settings_of_earlier_versions_rescale_by_the_mean() -> None:
    data = {"data": {"dataset": "planted-motifs"}}
    assert resolve(data, {"training": {"rescale_by": "mean"}}) == resolve(data)
    with pytest.raises(ValueError, match=r"rescale_by='mixed' is no longer supported: .* by the mean of τ"):
        resolve(data, {"training": {"rescale_by": "mixed"}})
