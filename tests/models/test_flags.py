"""Every flag of the configurations has its documented effect."""

from dataclasses import fields
from functools import partial

import pytest
import torch

import hf_ssm
from hf_ssm.models.base.configuration import SSMConfig

# A value other than the default for each flag that changes the output of a freshly drawn model in training mode.
COMMON = {
    "bidirectional": True,
    "discretization": "bilinear",
    "embedding_dropout": 0.5,
    "frequency_scale": 3.0,
    "frequency_shift": 2.0,
    "hidden_act": "relu",
    "hidden_dropout": 0.5,
    "classifier_dropout": 0.5,
    "init": "lin",
    "initializer_range": 0.1,
    "layer_norm_epsilon": 0.1,
    "norm_first": False,
    "norm_type": "batch",
    "pooling": "last",
    "sobolev_order": 0.5,
    "state_size": 16,
    "time_step_max": 0.5,
    "time_step_min": 0.05,
    "use_residual": False,
}
FLAGS = {
    "S4": {**COMMON, "kernel_type": "s4", "output_glu": False, "use_final_norm": False, "use_skip": False},
    "Hyena": {
        **COMMON,
        "conv_kernel": 5,
        "filter_activation_frequency": 1.0,
        "filter_emb_dim": 7,
        "filter_order": 8,
        "filter_type": "s4",
        "filter_window_shift": 0.5,
        "hyena_order": 3,
        "intermediate_size": 8,
        "max_position_embeddings": 32,
        "num_inner_mlps": 1,
        "sinusoid_window": 5,
    },
    "SelectiveSSM": {
        **{name: value for name, value in COMMON.items() if name != "discretization"},
        "bidirectional_strategy": "ew_multiply",
        "bidirectional_weight_tie": False,
        "block": "plain",
        "complex_state": True,
        "conv_kernel": 3,
        "expand": 3,
        "fixed_step": True,
        "intermediate_size": 24,
        "rescale_prenorm_residual": True,
        "state_size": 4,
        "time_step_floor": 0.05,
        "time_step_init_scheme": "constant",
        "time_step_rank": 3,
        "time_step_scale": 3.0,
        "use_skip": False,
    },
}
# Flags that act elsewhere, and the test that shows it.
ELSEWHERE = {
    "vocab_size": "test_transformers_habits (embedding size)",
    "hidden_size": "shapes",
    "num_hidden_layers": "shapes",
    "num_input_channels": "test_transformers_habits",
    "rescale_init": "training/test_trainer",
    "rescaled": "training/test_trainer",
    "tau_weight": "training/test_trainer",
    "tau_statistics": "test_tau_flags below",
    "tau_detach_statistics": "test_tau_flags below",
    "sobolev_mode": "test_sobolev_conventions_differ below",
    "sobolev_frequency": "test_sobolev_conventions_differ below",
    "sobolev_trainable": "test_trainable_flags below",
    "filter_positions": "modules/test_filters",
    "filter_train_frequency": "test_trainable_flags below",
    "use_bias": "test_trainable_flags below",
    "use_conv_bias": "test_trainable_flags below",
    "classifier_bias": "test_trainable_flags below",
    "residual_in_fp32": "test_residual_in_fp32 below",
    "state_matrix": "test_selective",
    "use_cache": "test_generation",
    **dict.fromkeys(("rc_equivariant", "rc_swap", "rc_conjoin", "complement_map"), "test_rc_equivariance"),
    "tie_word_embeddings": "test_transformers_habits",
    "pad_token_id": "transformers",
    "bos_token_id": "transformers",
    "eos_token_id": "transformers",
}
NEEDS = {
    ("Hyena", "state_size"): {"filter_type": "s4d"},
    ("Hyena", "init"): {"filter_type": "s4d"},
    ("Hyena", "discretization"): {"filter_type": "s4d"},
    ("Hyena", "time_step_min"): {"filter_type": "s4d"},
    ("Hyena", "time_step_max"): {"filter_type": "s4d"},
    ("Hyena", "sinusoid_window"): {"filter_type": "sinusoid"},
    ("SelectiveSSM", "bidirectional_strategy"): {"bidirectional": True},
    ("SelectiveSSM", "bidirectional_weight_tie"): {"bidirectional": True},
    ("SelectiveSSM", "init"): {"complex_state": True, "init": "inv"},
    ("SelectiveSSM", "frequency_scale"): {"complex_state": True},
    ("SelectiveSSM", "frequency_shift"): {"complex_state": True},
    ("SelectiveSSM", "fixed_step"): {"block": "plain"},
    ("SelectiveSSM", "time_step_floor"): {"time_step_max": 0.01},
}


@pytest.mark.parametrize("family", FLAGS)
def test_no_flag_is_forgotten(family: str) -> None:
    ours = {field.name for field in fields(getattr(hf_ssm, f"{family}Config"))}
    if family == "SelectiveSSM":
        ours.remove("discretization")
    theirs = {field.name for field in fields(SSMConfig.__mro__[1])}
    assert ours - theirs == set(FLAGS[family]) | (set(ELSEWHERE) & ours)


def logits(make_model, family: str, **flags) -> torch.Tensor:
    torch.manual_seed(3)
    model = make_model(family, "ForSequenceClassification", **flags).train()
    torch.manual_seed(4)
    return model(torch.randint(0, 12, (4, 12))).logits.detach()


def test_what_the_selective_family_refuses() -> None:
    """`discretization` is common, but a selective model has one of its own: anything but the default is an error."""
    with pytest.raises(ValueError, match="discretization"):
        hf_ssm.SelectiveSSMConfig(discretization="bilinear")


@pytest.mark.parametrize(("family", "flag"), [(family, flag) for family, flags in FLAGS.items() for flag in flags])
def test_the_flag_changes_the_output(make_model, family: str, flag: str) -> None:
    base = NEEDS.get((family, flag), {})
    before = logits(make_model, family, **base)
    assert torch.equal(before, logits(make_model, family, **base))
    assert not torch.allclose(before, logits(make_model, family, **(base | {flag: FLAGS[family][flag]})), rtol=1e-3)


@pytest.mark.parametrize("filter_type", ["implicit", "sinusoid", "s4d", "s4"])
@pytest.mark.parametrize("flag", ["frequency_scale", "frequency_shift", "sobolev_order"])
def test_frequency_flags_act_on_every_filter(make_model, filter_type: str, flag: str) -> None:
    before = logits(make_model, "Hyena", filter_type=filter_type)
    assert not torch.allclose(before, logits(make_model, "Hyena", filter_type=filter_type, **{flag: 2.0}), rtol=1e-3)


@pytest.mark.parametrize("family", FLAGS)
def test_sobolev_conventions_differ_and_order_zero_is_the_unfiltered_model(make_model, family: str) -> None:
    if family == "SelectiveSSM":
        make_model = partial(make_model, block="plain", fixed_step=True, norm_type="layer")
    unfiltered, filtered = logits(make_model, family), []
    for mode in ("causal", "zero_phase"):
        for frequency in ("normalized", "radian", "bilinear"):
            flags = {"sobolev_mode": mode, "sobolev_frequency": frequency, "time_step_min": 1e-3}
            assert torch.equal(unfiltered, logits(make_model, family, sobolev_order=0.0, **flags))
            # A trainable order adds parameters but draws no random numbers: at 0 it computes the same function.
            trainable = logits(make_model, family, sobolev_order=0.0, sobolev_trainable=True, **flags)
            torch.testing.assert_close(unfiltered, trainable, rtol=1e-4, atol=1e-5)
            filtered.append(logits(make_model, family, sobolev_order=0.7, **flags))
    for i, first in enumerate([unfiltered, *filtered]):
        for second in filtered[i:]:
            assert not torch.allclose(first, second, rtol=1e-4, atol=1e-6)


def test_a_sobolev_order_per_layer(make_model) -> None:
    model = make_model("S4", "Model", sobolev_order=[0.0, 1.5])
    assert [layer.mixer.long_conv.initial_order for layer in model.layers] == [0.0, 1.5]
    assert not torch.allclose(
        logits(make_model, "S4", sobolev_order=[0.0, 1.5]), logits(make_model, "S4", sobolev_order=[1.5, 0.0])
    )


def test_trainable_flags(make_model) -> None:
    def trained(**flags) -> dict[str, torch.Size]:
        model = make_model("Hyena", "Model", **flags)
        return {name: p.shape for name, p in model.named_parameters() if p.requires_grad}

    default = trained()
    sobolev = "layers.0.mixer.long_conv.sobolev_order"
    frequency = "layers.0.mixer.long_conv.filter.frequency"
    assert sobolev not in default and trained(sobolev_trainable=True)[sobolev] == (8,)
    assert frequency in default and frequency not in trained(filter_train_frequency=False)
    assert "layers.0.mixer.in_proj.bias" in default and "layers.0.mixer.in_proj.bias" not in trained(use_bias=False)

    def biases(**flags) -> set[str]:
        model = make_model("SelectiveSSM", "ForSequenceClassification", **flags)
        return {name.removeprefix("model.layers.0.mixer.") for name, _ in model.named_parameters() if "bias" in name}

    default_biases = biases(num_hidden_layers=1)
    assert default_biases == {"conv1d.bias", "scan.dt_bias", "classifier.bias"}
    assert biases(num_hidden_layers=1, use_conv_bias=False) == default_biases - {"conv1d.bias"}
    assert biases(num_hidden_layers=1, classifier_bias=False) == default_biases - {"classifier.bias"}
    assert biases(num_hidden_layers=1, use_bias=True) == default_biases | {"in_proj.bias", "out_proj.bias"}


@pytest.mark.parametrize("family", FLAGS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_residual_in_fp32(make_model, family: str, norm_first: bool) -> None:
    streams = []
    for flag in (True, False):
        torch.manual_seed(3)
        model = make_model(family, "Model", residual_in_fp32=flag, norm_first=norm_first).bfloat16()
        seen = []
        model.layers[1].register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0]))
        out = model(torch.arange(12).unsqueeze(0)).last_hidden_state
        assert out.dtype == torch.bfloat16
        streams.append(seen[0])
    # A norm at the end of a block brings the stream back to its own precision.
    assert streams[0].dtype == (torch.float32 if norm_first else torch.bfloat16)
    assert streams[1].dtype == torch.bfloat16
    torch.testing.assert_close(streams[0].float(), streams[1].float(), atol=0.1, rtol=0.05)


def test_tau_flags(make_model) -> None:
    tokens = torch.randint(0, 12, (4, 12))

    def gradient(**flags) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        model = make_model("S4", "Model", **flags)
        tau = model(tokens, output_tau=True).tau
        tau.sum().backward()
        return tau.detach(), model.embed_tokens.weight.grad

    batch, no_gradient = gradient()
    unit, unit_gradient = gradient(tau_statistics="unit")
    same, through = gradient(tau_detach_statistics=False)
    assert not torch.allclose(batch, unit)
    assert torch.equal(batch, same)
    # Detached, the first layers' weights below the convolutions get no gradient from τ.
    assert no_gradient is None and unit_gradient is None
    assert through.abs().sum() > 0


@pytest.mark.parametrize("family", ["Hyena", "SelectiveSSM"])
def test_short_convolutions_begin_uniform_by_their_taps_with_zero_bias(make_model, family: str) -> None:
    for taps in (3, 4):
        model = make_model(family, "Model", hidden_size=256, num_hidden_layers=1, conv_kernel=taps)
        (convolution,) = (part for part in model.modules() if isinstance(part, torch.nn.Conv1d))
        assert convolution.weight.abs().max() <= taps**-0.5
        assert abs(convolution.weight.std() * (3 * taps) ** 0.5 - 1) < 0.05
        assert convolution.bias.abs().max() == 0
