"""Variants that go on from states of their own say what whole passes, one for each, say."""

import numpy as np
import pytest
import torch

from hf_ssm.probes.evaluation import Evaluator, probing
from hf_ssm.probes.prefixes import PrefixEvaluator, evaluator_for
from hf_ssm.probes.targets import Subject, Target
from hf_ssm.probes.variants import VariantEvaluator

MASK, LENGTH = 3, 23
# With one model of each way: by changes, by scans, by recurrences, with shared pasts.
MODELS = [
    ("Hyena", {}, VariantEvaluator),
    ("Hyena", {"num_hidden_layers": 1}, VariantEvaluator),
    ("Hyena", {"filter_type": "s4d"}, VariantEvaluator),
    ("Hyena", {"filter_type": "sinusoid", "conv_kernel": 5}, VariantEvaluator),
    ("Hyena", {"sobolev_order": 0.5, "norm_first": False}, VariantEvaluator),
    ("Hyena", {"hyena_order": 3}, PrefixEvaluator),
    ("Hyena", {"num_hidden_layers": 3}, PrefixEvaluator),
    ("S4", {}, VariantEvaluator),
    ("S4", {"kernel_type": "s4", "sobolev_order": 0.5}, VariantEvaluator),
    ("S4", {"num_hidden_layers": 3}, VariantEvaluator),
    ("SelectiveSSM", {}, VariantEvaluator),
    ("SelectiveSSM", {"num_hidden_layers": 1}, VariantEvaluator),
    ("SelectiveSSM", {"num_hidden_layers": 3}, VariantEvaluator),
    ("SelectiveSSM", {"complex_state": True, "state_matrix": "raw"}, VariantEvaluator),
    ("SelectiveSSM", {"block": "plain"}, VariantEvaluator),
    ("SelectiveSSM", {"block": "plain", "fixed_step": True}, VariantEvaluator),
    ("SelectiveSSM", {"sobolev_order": 0.5}, PrefixEvaluator),
]


@pytest.fixture(autouse=True)
def pieces(monkeypatch):
    """States are kept and gone on from in pieces of 5, down to the last candidates."""
    for name, value in {"_FEW_PER_BLOCK": 0, "_SHORTEST": 1, "_SHORTEST_RECURRENT": 1}.items():
        monkeypatch.setattr(f"hf_ssm.probes.prefixes.{name}", value)
    for name in ("_BLOCK", "_RECURRENT_BLOCK"):
        monkeypatch.setattr(f"hf_ssm.probes.prefixes.{name}", 5)


def subject(head):
    read = torch.randint(4, 12, (LENGTH,))
    target = Target("token", 7, LENGTH, LENGTH - 1) if head == "ForCausalLM" else Target("class", 1)
    return Subject(read, read, torch.zeros(LENGTH, dtype=torch.bool), torch.arange(LENGTH), target)


def check_search(model, head, kind, mask=MASK, max_tokens=16384, steps=5):
    """Some steps of a greedy search and then another one, against whole passes of single rows; the evaluator."""
    model, asked = model.double().eval(), subject(head)
    left, order = [place for place in range(LENGTH) if place != 9], []
    with torch.no_grad(), probing(model):
        evaluator, plain = (make(model, asked, mask, max_tokens) for make in (evaluator_for, Evaluator))
        assert type(evaluator) is kind
        for step in range(steps):
            now = evaluator.masked(order)
            expected = [plain.one(plain.masked([*order, place])) for place in left]
            np.testing.assert_allclose(evaluator.after(now, left), expected, rtol=1e-9, atol=1e-12)
            # Not only the best one, so that the next states begin at any border.
            best = int(np.argmax(expected)) if step % 2 else (7 * step) % len(left)
            order.append(left.pop(best))
        # Several at once, and candidates that were not asked for before come back.
        order, left = [*order[:2], left[3], left[-2]], [*order[3:], *left[4:-2:2]]
        expected = [plain.one(plain.masked([*order, place])) for place in left]
        np.testing.assert_allclose(evaluator.after(evaluator.masked(order), left), expected, rtol=1e-9, atol=1e-12)
    return evaluator


@pytest.mark.parametrize(("family", "options", "kind"), MODELS)
def test_a_causal_model_by_states_says_what_whole_passes_say(make_model, family, options, kind):
    check_search(make_model(family, "ForCausalLM", **options), "ForCausalLM", kind, max_tokens=70)


@pytest.mark.parametrize("mask", [MASK, None])
@pytest.mark.parametrize(("family", "options", "kind"), MODELS[::3])
def test_a_classifier_by_states_says_what_whole_passes_say(make_model, family, options, kind, mask):
    model = make_model(family, "ForSequenceClassification", pooling="last", **options)
    check_search(model, "class", kind, mask)


@pytest.mark.parametrize(
    ("family", "kind"), [("Hyena", PrefixEvaluator), ("S4", VariantEvaluator), ("SelectiveSSM", VariantEvaluator)]
)
def test_a_mean_by_states_says_what_whole_passes_say(make_model, family, kind):
    check_search(make_model(family, "ForSequenceClassification", pooling="mean"), "class", kind, None)


def test_models_that_look_ahead_go_no_such_way(make_model):
    for family in ("Hyena", "S4", "SelectiveSSM"):
        model = make_model(family, "ForSequenceClassification", bidirectional=True)
        assert type(evaluator_for(model, subject("class"), MASK, 99)) is Evaluator


@pytest.mark.parametrize(("family", "share"), [("Hyena", 0.55), ("S4", 0.55), ("SelectiveSSM", 0.55)])
def test_tokens_are_those_that_went_through_the_model(make_model, monkeypatch, family, share):
    """And fewer than of whole passes."""
    model = make_model(family, "ForCausalLM")
    seen = []
    look_up = model.model._look_up
    monkeypatch.setattr(model.model, "_look_up", lambda ids: (seen.append(ids.numel()), look_up(ids))[1])
    asked, left, order = subject("ForCausalLM"), list(range(LENGTH)), []
    with torch.no_grad(), probing(model):
        evaluator = evaluator_for(model, asked, MASK, 16384)
        seen.clear()
        while left:
            values = evaluator.after(evaluator.masked(order), left)
            order.append(left.pop(int(values.argmax())))
    assert evaluator.evaluations == LENGTH * (LENGTH + 1) // 2
    assert evaluator.tokens == sum(seen) < share * evaluator.evaluations * LENGTH


def test_the_model_is_left_as_it_was(make_model):
    model = make_model("SelectiveSSM", "ForCausalLM")
    ids = torch.randint(4, 12, (2, 9))
    before = model(ids).logits
    check_search(model.double(), "ForCausalLM", VariantEvaluator, steps=2)
    model.float()
    assert "forward" not in model.model.layers[0].mixer.__dict__
    assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize("family", ["Hyena", "S4", "SelectiveSSM"])
def test_a_layer_of_which_the_last_output_is_wanted_gives_that_one(make_model, family):
    """And remembers as much."""
    model, ids = make_model(family, "Model"), torch.randint(4, 12, (2, 12))
    with torch.no_grad():
        whole = model(ids[:, :8], use_cache=True)
        cache = model(ids[:, :8], use_cache=True).past_key_values
        expected = model(ids[:, 8:], past_key_values=whole.past_key_values).last_hidden_state
        cache.states[-1].last_only = True
        found = model(ids[:, 8:], past_key_values=cache).last_hidden_state
        torch.testing.assert_close(found, expected[:, -1:], rtol=1e-6, atol=1e-6)
        cache.states[-1].last_only = False
        following = [model(ids[:, :2], past_key_values=c).last_hidden_state for c in (cache, whole.past_key_values)]
    assert torch.equal(*following)


class Adapted(torch.nn.Linear):
    """As an adapter does: more than its weight says."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) + 0.3 * inputs.sum(-1, keepdim=True)


@pytest.mark.parametrize("name", ["in_proj", "out_proj"])
def test_projections_with_adapters_are_called(make_model, name):
    model = make_model("SelectiveSSM", "ForCausalLM").double()
    for layer in model.model.layers:
        plain = getattr(layer.mixer, name)
        adapted = Adapted(plain.in_features, plain.out_features, bias=plain.bias is not None).double()
        adapted.load_state_dict(plain.state_dict())
        setattr(layer.mixer, name, adapted)
    check_search(model, "ForCausalLM", VariantEvaluator, steps=2)
