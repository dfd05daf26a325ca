"""Algorithm 1: one forward pass, after which τ of every layer is 1."""

import copy

import pytest
import torch
from theory_references import mixed_tau_reference

from hf_ssm import rescale_init_, tau_loss
from hf_ssm.analysis.mixing import measure_mixed_tau
from hf_ssm.training import SSMTrainer, SSMTrainingArguments

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


MIXED = [
    ("S4", "ForSequenceClassification", {"bidirectional": True, "output_glu": True}),
    ("S4", "ForCausalLM", {"output_glu": False, "kernel_type": "s4"}),
    ("Hyena", "ForCausalLM", {"filter_type": "s4d"}),
]


@pytest.mark.parametrize(("family", "head", "flags"), MIXED)
@pytest.mark.parametrize("padded", [False, True])
def test_tau_behind_the_mixing_matrix_is_one_afterwards(make_model, make_batch, family, head, flags, padded) -> None:
    model = make_model(family, head, **flags)
    batch = make_batch(head, batch=8)
    if padded:
        batch["attention_mask"] = (torch.arange(12) < torch.randint(4, 13, (8, 1))).long()
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    before = measure_mixed_tau(model, batch)
    found = rescale_init_(model, batch, "mixed")
    torch.testing.assert_close(found[0], before[0])
    after = measure_mixed_tau(model, batch)
    torch.testing.assert_close(after, torch.ones_like(after), rtol=1e-5, atol=1e-5)
    mean = model(**inputs, output_tau=True).tau
    assert ((mean - 1).abs() > 0.01).any()
    assert model.config.rescaled is True


def test_tau_behind_the_mixing_matrix_by_the_definition(make_model, make_batch) -> None:
    """Two directions: the reference on rows, and on reversed rows without lag 0."""
    model = make_model("S4", "ForSequenceClassification", bidirectional=True, num_hidden_layers=1)
    batch = make_batch("ForSequenceClassification", batch=5)
    mixer = model.model.layers[0].mixer
    seen: list[torch.Tensor] = []
    handle = mixer.long_conv.register_forward_hook(lambda _, args, __: seen.append(args[0].detach()))
    found = measure_mixed_tau(model, batch)
    handle.remove()
    ahead, behind = mixer.long_conv.kernels(12).detach()
    matrix = mixer.out_proj.weight.detach()[:8] if mixer.output_glu else mixer.out_proj.weight.detach()
    shifted = torch.cat([torch.zeros_like(behind[:, :1]), behind[:, :-1]], dim=1)
    forward = mixed_tau_reference(ahead, matrix, seen[0])
    backward = mixed_tau_reference(shifted, matrix, seen[0].flip(1))
    expected = torch.stack([forward, backward]).mean().float()
    torch.testing.assert_close(found, expected.unsqueeze(0), rtol=1e-5, atol=0)


def test_packed_rows_are_rescaled_as_rows(make_model) -> None:
    ids = torch.randint(0, 12, (3, 9))
    packed = {"input_ids": ids.view(1, -1), "seq_idx": torch.arange(3).repeat_interleave(9).int().view(1, -1)}
    model = make_model("S4", "ForTokenClassification", bidirectional=True)
    expected = measure_mixed_tau(model, {"input_ids": ids})
    torch.testing.assert_close(measure_mixed_tau(model, packed), expected, rtol=1e-5, atol=0)


def test_without_a_mixing_matrix_both_ways_are_the_same(make_model, make_batch) -> None:
    model, batch = make_model("Hyena", "ForCausalLM", use_output_projection=False), make_batch("ForCausalLM")
    torch.testing.assert_close(rescale_init_(copy.deepcopy(model), batch), rescale_init_(model, batch, "mixed"))


@pytest.mark.parametrize("family", ["SelectiveSSM", "S5"])
def test_scans_have_no_tau_behind_a_matrix(make_model, make_batch, family: str) -> None:
    model = make_model(family, "ForSequenceClassification")
    with pytest.raises(ValueError, match=r"for long convolutions \(S4, S4D, Hyena\).*rescale_by='mean'"):
        rescale_init_(model, make_batch("ForSequenceClassification"), "mixed")
    with pytest.raises(ValueError, match="`by` must be one of 'mean', 'mixed', got 'median'"):
        rescale_init_(model, make_batch("ForSequenceClassification"), "median")


def test_other_statistics_have_no_tau_behind_a_matrix(make_model, make_batch) -> None:
    model = make_model("S4", "ForSequenceClassification", tau_statistics="unit")
    with pytest.raises(ValueError, match=r"tau_statistics='unit' replaces it: give by='mean'"):
        rescale_init_(model, make_batch("ForSequenceClassification"), "mixed")


def test_the_trainer_rescales_by_what_its_arguments_say(make_model, make_batch, tmp_path) -> None:
    batch = make_batch("ForSequenceClassification", batch=8)
    rows = [{name: value[i] for name, value in batch.items()} for i in range(8)]
    options = {"max_steps": 1, "per_device_train_batch_size": 8, "learning_rate": 0.0, "report_to": "none"}
    options |= {"save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no"}
    arguments = SSMTrainingArguments(str(tmp_path), rescale_by="mixed", **options)
    model = make_model("S4", "ForSequenceClassification", rescale_init=True)
    before = measure_mixed_tau(model, batch)
    trainer = SSMTrainer(model, arguments, train_dataset=rows)
    trainer.train()
    assert trainer.rescale_tau[0] == pytest.approx(before[0].item(), rel=1e-5)
    torch.testing.assert_close(measure_mixed_tau(model, batch), torch.ones(2), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="`rescale_by='mixed'` needs a model with `rescale_init=True`"):
        SSMTrainer(make_model("S4", "ForSequenceClassification"), arguments, train_dataset=rows).train()
    with pytest.raises(ValueError, match="`rescale_by` must be one of 'mean', 'mixed', got 'max'"):
        SSMTrainingArguments(str(tmp_path), rescale_by="max")
