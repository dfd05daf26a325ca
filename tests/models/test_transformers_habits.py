"""Common operations of transformers users on every model."""

import copy
import inspect

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import set_seed

from hf_ssm import build_byte_tokenizer

FAMILIES = ("Hyena", "S4", "S5", "SelectiveSSM", "SSD")
HEADS = ("ForCausalLM", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForSignalRegression")
PAIRS = [(family, head) for family in FAMILIES for head in HEADS]


@pytest.mark.parametrize(("family", "head"), PAIRS)
def test_loss_and_gradients_reach_every_parameter(make_model, make_batch, family: str, head: str) -> None:
    model = make_model(family, head, sobolev_trainable=True)
    outputs = model(**make_batch(head))
    outputs.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
    assert outputs.tau is None


@pytest.mark.parametrize(("family", "head"), PAIRS)
def test_hidden_states_tau_and_tuples(make_model, make_batch, family: str, head: str) -> None:
    model = make_model(family, head)
    batch = make_batch(head)
    outputs = model(**batch, output_hidden_states=True, output_tau=True)
    assert len(outputs.hidden_states) == 3
    assert all(states.shape == (3, 12, 8) for states in outputs.hidden_states)
    assert outputs.tau.shape == (2,) and (outputs.tau > 0).all()
    as_tuple = model(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[1], outputs.logits)
    last = model.model(**{k: v for k, v in batch.items() if k != "labels"}, output_hidden_states=True)
    assert torch.equal(last.hidden_states[-1], last.last_hidden_state)


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_embeds_equal_input_ids(make_model, family: str) -> None:
    model = make_model(family, "ForCausalLM")
    tokens = torch.randint(0, 12, (2, 9))
    embeds = model.get_input_embeddings()(tokens)
    assert torch.equal(model(inputs_embeds=embeds).logits, model(tokens).logits)


@pytest.mark.parametrize(("family", "head"), [pair for pair in PAIRS if pair[1] != "ForSignalRegression"])
@pytest.mark.parametrize("tied", [False, True])
def test_resize_token_embeddings(make_model, family: str, head: str, tied: bool) -> None:
    model = make_model(family, head, tie_word_embeddings=tied)
    tokens = torch.randint(0, 12, (2, 9))
    before = model(tokens).logits
    model.resize_token_embeddings(15)
    assert model.config.vocab_size == 15
    after = model(tokens).logits
    assert torch.equal(after[..., : before.shape[-1]], before)
    assert model(torch.full((1, 4), 14)).logits.shape[-1] == (15 if head.endswith("LM") else 2)
    if tied and head.endswith("LM"):
        assert model.lm_head.weight is model.get_input_embeddings().weight


# The name that users know is deprecated from transformers 5.22 on, and the only one before.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(make_model, make_batch, family: str, reentrant: bool) -> None:
    model = make_model(family, "ForCausalLM").train()
    batch = make_batch("ForCausalLM")
    checkpointed = copy.deepcopy(model)
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    checkpointed.enable_input_require_grads()
    for one in (model, checkpointed):
        outputs = one(**batch, output_tau=True)
        (outputs.loss + outputs.tau.sum()).backward()
    assert all(layer.gradient_checkpointing for layer in checkpointed.model.layers)
    for (name, ours), theirs in zip(model.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


# peft 0.21 asks transformers 5.23 by a name that the latter has deprecated.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`:UserWarning")
@pytest.mark.parametrize(
    ("family", "target"),
    [
        *(("Hyena", ["in_proj", "out_proj"]), ("S4", ["out_proj"])),
        ("SelectiveSSM", ["in_proj", "x_proj", "dt_proj", "out_proj", "embed_tokens"]),
        ("SSD", ["in_proj", "out_proj"]),
    ],
)
def test_lora_on_the_projections(make_model, make_batch, tmp_path, family: str, target: list[str]) -> None:
    base = make_model(family, "ForSequenceClassification")
    batch = make_batch("ForSequenceClassification")
    before = base(**batch).logits
    model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=target))
    torch.testing.assert_close(model(**batch).logits, before)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    assert all("lora" in n or "classifier" in n for n, p in model.named_parameters() if p.requires_grad)
    assert (model(**batch).logits - before).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_continues_with_the_most_likely_tokens(make_model, family: str) -> None:
    model = make_model(family, "ForCausalLM")
    prompt = torch.randint(0, 12, (2, 5))
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
    expected = prompt
    for _ in range(6):
        expected = torch.cat([expected, model(expected).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(found, expected)


def test_generate_from_embeddings_with_and_without_the_ids_of_the_prompt(make_model) -> None:
    model = make_model("S4", "ForCausalLM")
    prompt = torch.randint(0, 12, (2, 5))
    embeds = model.get_input_embeddings()(prompt)
    expected = model.generate(prompt, max_new_tokens=4, do_sample=False)
    assert torch.equal(model.generate(inputs_embeds=embeds, max_new_tokens=4, do_sample=False), expected[:, 5:])
    both = model.generate(prompt, inputs_embeds=embeds, max_new_tokens=4, do_sample=False)
    assert torch.equal(both, expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("use_cache", [True, False])
def test_generate_takes_the_tokenizer_and_stops_at_strings(make_model, family: str, use_cache: bool) -> None:
    tokenizer = build_byte_tokenizer()
    model = make_model(family, "ForCausalLM", vocab_size=len(tokenizer))
    others = [token for token in range(len(tokenizer)) if token not in range(ord("a"), ord("z") + 1)]
    arguments = {"max_new_tokens": 20, "do_sample": False, "use_cache": use_cache, "suppress_tokens": others}
    prompt = tokenizer("state space: ", return_tensors="pt")
    whole = model.generate(**prompt, **arguments)
    assert torch.equal(model.generate(**prompt, **arguments, tokenizer=tokenizer), whole)
    generated = tokenizer.decode(whole[0, prompt["input_ids"].shape[1] :])
    stopped = model.generate(**prompt, **arguments, tokenizer=tokenizer, stop_strings=[generated[2:4]])
    end = generated.index(generated[2:4]) + 2
    assert tokenizer.decode(stopped[0]) == "state space: " + generated[:end]


@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_and_double(make_model, family: str) -> None:
    model = make_model(family, "ForSequenceClassification")
    tokens = torch.randint(0, 12, (2, 9))
    single = model(tokens).logits
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(tokens).logits.float(), single, rtol=0.1, atol=0.1)
    double = model.double()(tokens).logits
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_acts_in_training_only(make_model, make_batch, family: str) -> None:
    flags = {"hidden_dropout": 0.5, "embedding_dropout": 0.5, "classifier_dropout": 0.5}
    model = make_model(family, "ForSequenceClassification", **flags)
    batch = make_batch("ForSequenceClassification")
    assert torch.equal(model(**batch).logits, model(**batch).logits)
    model.train()
    set_seed(1)
    first = model(**batch).logits
    assert not torch.equal(first, model(**batch).logits)


def test_signal_regression_pools_on_request_and_ignores_padding_in_its_loss(make_model) -> None:
    values, labels = torch.randn(2, 6, 1), torch.randn(2, 6, 2)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    model = make_model("S4", "ForSignalRegression")
    loss = model(input_values=values, attention_mask=mask, labels=labels).loss
    logits = model(input_values=values, attention_mask=mask).logits
    expected = torch.cat([(logits - labels)[0], (logits - labels)[1, :3]]).square().mean()
    torch.testing.assert_close(loss, expected)
    pooled = make_model("S4", "ForSignalRegression", pooling="mean", num_labels=1)
    assert pooled(input_values=values).logits.shape == (2, 1)
    assert torch.isfinite(pooled(input_values=values, labels=torch.randn(2)).loss)


def test_continuous_inputs_work_under_the_classifier(make_model) -> None:
    model = make_model("Hyena", "ForSequenceClassification", num_input_channels=3)
    outputs = model(input_values=torch.randn(2, 6, 3), labels=torch.tensor([0, 1]))
    assert outputs.logits.shape == (2, 2) and torch.isfinite(outputs.loss)


@pytest.mark.parametrize(("family", "head"), PAIRS)
def test_names_that_transformers_looks_up(make_model, family: str, head: str) -> None:
    model = make_model(family, head)
    assert next(iter(inspect.signature(model.forward).parameters)) == model.main_input_name
    names = [f".{name}." for name, _ in model.named_parameters()]
    assert model._keep_in_fp32_modules_strict
    for part in model._keep_in_fp32_modules_strict:
        assert any(f".{part}." in name for name in names), part


@pytest.mark.parametrize(("family", "head"), PAIRS)
def test_hidden_states_keep_their_gradients(make_model, make_batch, family: str, head: str) -> None:
    outputs = make_model(family, head)(**make_batch(head), output_hidden_states=True)
    for states in outputs.hidden_states:
        states.retain_grad()
    outputs.loss.backward()
    assert all(states.grad is not None and states.grad.abs().sum() > 0 for states in outputs.hidden_states)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_with_other_labels_loads_on_request(make_model, tmp_path, family: str) -> None:
    model = make_model(family, "ForSequenceClassification")
    model.save_pretrained(tmp_path)
    # A RuntimeError as in transformers, and a ValueError.
    with pytest.raises(RuntimeError, match=r"classifier\.weight has the shape .*`ignore_mismatched_sizes=True`"):
        type(model).from_pretrained(tmp_path, num_labels=5)
    other = type(model).from_pretrained(tmp_path, num_labels=5, ignore_mismatched_sizes=True)
    assert other.classifier.weight.shape == (5, 8)
    assert torch.equal(other.model.embed_tokens.weight, model.model.embed_tokens.weight)


@pytest.mark.parametrize(("family", "head"), PAIRS)
def test_some_of_the_hidden_states(make_model, make_batch, family: str, head: str) -> None:
    model, batch = make_model(family, head), make_batch(head)
    whole = model(**batch, output_hidden_states=True).hidden_states
    for asked, kept in ((0, {0}), ([-1, 0], {0, 2}), ([1], {1})):
        found = model(**batch, output_hidden_states=asked).hidden_states
        assert {index for index, states in enumerate(found) if states is not None} == kept
        assert all(torch.equal(found[index], whole[index]) for index in kept)
    with pytest.raises(ValueError, match=r"output_hidden_states.*0 to 2, got \[3\]"):
        model(**batch, output_hidden_states=[3])
