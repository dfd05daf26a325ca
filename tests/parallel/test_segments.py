"""Recomputation along the sequence: the same values and gradients, and less memory."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

import hf_ssm
from hf_ssm.modules.block import Block
from hf_ssm.modules.rows import Rows
from hf_ssm.parallel import segments as segments_module

# Rows of 41 positions are cut anywhere; those of 600 at multiples of 64.
CASES = [
    *(pytest.param(family, flags, True, id="-".join([family, *map(str, flags.values())])) for family, flags in [
        ("S4", {}),
        ("S4", {"kernel_type": "s4"}),
        ("S5", {}),
        ("SelectiveSSM", {}),
        ("SelectiveSSM", {"block": "plain", "complex_state": True}),
        ("SSD", {}),
        ("SSD", {"complex_state": True, "hidden_dropout": 0.0, "residual_in_fp32": True}),
        ("LinOSS", {}),
        ("Mamba3", {"mimo_rank": 2}),
        ("Hyena", {"filter_type": "s4d"}),
        ("Hyena2", {}),
        ("Hybrid", {"layer_types": ["s5", "selective"]}),
        ("Hybrid", {"layer_types": ["ssd", "full_attention"]}),
    ]),
    *(pytest.param(family, flags, False, id="-".join([family, *map(str, flags.values())])) for family, flags in [
        ("Hyena", {}),
        ("S4", {"sobolev_order": 0.5}),
        ("SelectiveSSM", {"sobolev_order": 0.5}),
        ("SSD", {"norm_type": "batch"}),
        ("S5", {"tie_dropout": True, "hidden_dropout": 1e-30}),
    ]),
]  # fmt: skip


@pytest.fixture
def make_pair(make_model) -> Callable[..., tuple[Any, Any]]:
    """`make_pair(family, head, segments, **config)`: a model in training mode, and a copy that reads in segments."""

    def make(family: str, head: str, segments: int = 4, **config: Any) -> tuple[Any, Any]:
        config = {"max_position_embeddings": 640, **config} if family == "Hyena" else config
        usual = make_model(family, head, **config).double().train()
        segmented = copy.deepcopy(usual)
        segmented.activation_checkpointing_enable({"segments": segments})
        return usual, segmented

    return make


@pytest.fixture
def reads(monkeypatch) -> list[tuple[int, int]]:
    """Lengths of all inputs of blocks, in the order of the calls."""
    lengths: list[int] = []
    forward = Block.forward

    def recorded(self: Any, hidden_states: torch.Tensor, *args: Any) -> Any:
        lengths.append(hidden_states.shape[1])
        return forward(self, hidden_states, *args)

    monkeypatch.setattr(Block, "forward", recorded)
    return lengths


def padded(length: int) -> dict[str, torch.Tensor]:
    """Rows with padding on the left, on the right, and none."""
    mask = torch.ones(3, length, dtype=torch.long)
    mask[0, : length // 3] = 0
    mask[1, length // 2 :] = 0
    return {"input_ids": torch.randint(0, 12, (3, length)), "attention_mask": mask}


def step(model: Any, batch: dict[str, Any], **options: Any) -> dict[str, torch.Tensor]:
    """The hidden states at tokens, and the gradients of all parameters for a random linear function of them."""
    model.zero_grad()
    output = model(**batch, **options)
    mask = batch.get("attention_mask", torch.ones(output[0].shape[:2])).unsqueeze(-1)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(output[0].shape, dtype=torch.float64, generator=generator)
    hidden_states = output.last_hidden_state * mask
    loss = (hidden_states * weights).sum()
    loss = loss if output.tau is None else loss + output.tau.sum()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"output": hidden_states.detach(), **{name: grad.clone() for name, grad in gradients.items()}}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-10) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = (found[name] - value).abs().max() / value.abs().max().clamp(min=1)
        assert error <= tolerance, f"{name}: {error}"


@pytest.mark.parametrize(("family", "flags", "in_segments"), CASES)
def test_values_and_gradients_are_those_of_the_usual_step(make_pair, family, flags, in_segments):
    usual, segmented = make_pair(family, "Model", **flags)
    for batch in ({"input_ids": torch.randint(0, 12, (2, 41))}, padded(600)):
        assert_equal(step(segmented, batch), step(usual, batch))
    assert segments_module.reads_in_segments(segmented, Rows()) == in_segments


def test_losses_of_token_heads(make_pair):
    """Of a causal and a masked head; the loss itself is computed in float32."""
    batch = {**padded(300), "labels": torch.randint(0, 12, (3, 300))}
    for head in ("ForCausalLM", "ForMaskedLM"):
        usual, segmented = make_pair("SelectiveSSM", head, bidirectional=False)
        for options in ({}, {"num_items_in_batch": torch.tensor(77)}):
            expected, found = (model(**batch, **options) for model in (usual, segmented))
            torch.testing.assert_close(found.loss, expected.loss, rtol=1e-6, atol=0)
            assert found.logits is None
            gradients = [
                torch.autograd.grad(output.loss, list(model.parameters()))
                for model, output in ((usual, expected), (segmented, found))
            ]
            for one, other in zip(*gradients, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-10)
    assert segmented(**padded(300)).logits.shape == (3, 300, 12)


def test_a_loss_of_the_user_reads_all_logits(make_pair):
    _, segmented = make_pair("S5", "ForCausalLM")
    segmented.loss_function = lambda logits, labels, vocab_size, **_: logits.square().max()
    tokens = torch.randint(0, 12, (2, 100))
    output = segmented(input_ids=tokens, labels=tokens)
    torch.testing.assert_close(output.loss, output.logits.square().max())


def test_time_steps_and_hidden_states_of_layers(make_pair):
    usual, segmented = make_pair("S5", "Model")
    batch = {"input_ids": torch.randint(0, 12, (2, 300)), "time_deltas": torch.rand(2, 300) + 0.5}
    assert_equal(step(segmented, batch), step(usual, batch))
    expected, found = (model(**batch, output_hidden_states=True).hidden_states for model in (usual, segmented))
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", ["S4", "SelectiveSSM"])
def test_calls_that_need_whole_rows(make_pair, family):
    """τ, packed rows, and both strands."""
    usual, segmented = make_pair(family, "Model")
    tokens = torch.randint(0, 12, (2, 100))
    numbers = torch.arange(100).div(30, rounding_mode="floor").expand(2, -1)
    for batch, options in (
        ({"input_ids": tokens}, {"output_tau": True}),
        ({"input_ids": tokens, "seq_idx": numbers}, {}),
    ):
        assert_equal(step(segmented, batch, **options), step(usual, batch, **options))
    usual, segmented = make_pair(family, "Model", rc_equivariant=True, rc_swap=True)
    assert_equal(step(segmented, {"input_ids": tokens}), step(usual, {"input_ids": tokens}))


def test_videos():
    torch.manual_seed(0)
    config = hf_ssm.ConvS5Config(hidden_size=8, state_size=8, num_hidden_layers=2, patch_size=1, num_channels=1)
    usual = hf_ssm.ConvS5Model(config).double().train()
    segmented = copy.deepcopy(usual)
    segmented.activation_checkpointing_enable({"segments": 3})
    batch = {"pixel_values": torch.rand(2, 10, 4, 4, 1, dtype=torch.float64)}
    weights = torch.randn(2, 10, 4, 4, 8, dtype=torch.float64)
    found, expected = (
        torch.autograd.grad((model(**batch).last_hidden_state * weights).sum(), list(model.parameters()))
        for model in (segmented, usual)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_one_segment_at_a_time_is_kept_and_computed_again(make_pair, reads):
    _, segmented = make_pair("S4", "Model", num_hidden_layers=1)
    step(segmented, {"input_ids": torch.randint(0, 12, (1, 600))})
    # The last segment is not computed again.
    assert reads == [192, 192, 128, 88, 128, 192, 192]


@pytest.mark.parametrize(("length", "count"), [(1, 4), (30, 4), (255, 4), (257, 4), (8191, 64), (10**6, 1000)])
def test_no_segment_is_much_longer_than_others(length, count):
    sizes = segments_module.Segments(count, {}).sizes(length)
    assert sum(sizes) == length and len(sizes) == min(length, count) and min(sizes) >= 1
    assert max(sizes) == sizes[0] < length / count + 64
    assert length <= 64 * count or not any(size % 64 for size in sizes[:-1])


def test_saved_tensors_do_not_grow_with_the_number_of_layers(make_pair):
    """Kept between forward and backward: the embedding, the states, and one segment."""
    sizes = {}
    for layers in (2, 6):
        models = make_pair("S5", "Model", 16, num_hidden_layers=layers)
        for name, model in zip(("usual", "segments"), models, strict=True):
            kept = {}

            def pack(tensor, kept=kept):
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                output = model(torch.randint(0, 12, (1, 2048)))
            sizes[name, layers] = sum(kept.values())
            del output
    assert sizes["segments", 6] < sizes["usual", 6] / 6


def test_autocast_and_dropout(make_pair):
    """The backward pass computes with the same precision and the same masks."""
    _, segmented = make_pair("SelectiveSSM", "Model", hidden_dropout=0.3)
    segmented.float()
    tokens = torch.randint(0, 12, (2, 200))
    losses = []
    weight = segmented.layers[0].mixer.out_proj.weight
    direction = torch.randn_like(weight)
    for shift in (0.0, 1e-3, -1e-3):
        torch.manual_seed(3)
        with torch.no_grad():
            weight.add_(shift * direction)
        loss = segmented(tokens).last_hidden_state.sum()
        if shift == 0:
            (gradient,) = torch.autograd.grad(loss, weight)
        losses.append(loss.item())
        with torch.no_grad():
            weight.sub_(shift * direction)
    measured = (losses[1] - losses[2]) / 2e-3
    assert abs((gradient * direction).sum().item() - measured) < 1e-2 * abs(measured)
    with torch.autocast("cpu", torch.bfloat16):
        loss = segmented(tokens).last_hidden_state.float().sum()
    loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in segmented.parameters())


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")
def test_it_is_enabled_by_training_arguments_and_disabled_again(make_model, tmp_path):
    tokens = torch.randint(0, 12, (8, 100)).tolist()
    data = Dataset.from_dict({"input_ids": tokens, "labels": tokens})
    losses = []
    for kwargs in (None, {"segments": 3}):
        torch.manual_seed(0)
        model = make_model("SelectiveSSM", "ForCausalLM")
        args = TrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=2, learning_rate=1e-2, report_to="none",
            use_cpu=True, disable_tqdm=True, save_strategy="no", logging_steps=1,
            gradient_checkpointing=kwargs is not None, gradient_checkpointing_kwargs=kwargs,
        )  # fmt: skip
        trainer = Trainer(model, args, train_dataset=data)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        assert (model.model.segments is None) == (kwargs is None)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=0)
    assert model.is_activation_checkpointing
    model.activation_checkpointing_disable()
    assert model.segments is None and model.model.segments is None and not model.is_activation_checkpointing
    model.activation_checkpointing_enable()
    assert model.model.segments is None and all(layer.gradient_checkpointing for layer in model.model.layers)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"segments": 0}, ValueError, "`segments` must be positive, got 0"),
        ({"segments": "many"}, TypeError, "`segments` must be a number of segments, such as 16, got 'many'"),
        ({"segments": 2, "use_reentrant": True}, ValueError, "`use_reentrant=True` does not support `segments`"),
    ],
)
def test_errors(make_model, kwargs, error, message):
    model = make_model("S4", "ForCausalLM")
    with pytest.raises(error, match=message):
        model.activation_checkpointing_enable(kwargs)
    assert model.segments is None


def test_the_code_of_a_checkpoint_refuses_segments(make_model, monkeypatch):
    model = make_model("S4", "ForCausalLM")
    monkeypatch.setattr(type(model), "is_remote_code", classmethod(lambda cls: True))
    with pytest.raises(ValueError, match="`segments` needs hf_ssm"):
        model.activation_checkpointing_enable({"segments": 2})
