"""The estimated cost of a probe against what a run counts."""

import pytest

from hf_ssm.probes import MaskingProbe
from hf_ssm.probes.cost import count_evaluations
from hf_ssm.tokenization import build_dna_tokenizer

TEXT = "ACGTTGCAACGTAAGCTTGCATTACGGCAT"


@pytest.mark.parametrize(
    ("strategy", "score", "exact"),
    [
        ("exact", "occlusion", True),
        ("shortlist", "occlusion", True),
        ("shortlist", "gradient", False),
        ("one_shot", "occlusion", True),
        ("one_shot", "gradient", False),
    ],
)
def test_count_is_that_of_a_run(make_model, strategy, score, exact):
    model = make_model("S4", "ForSequenceClassification")
    # One token per step, so that the bound of the shortlist is reached.
    settings = {"score": score, "masks_per_step": 0, "allow_wrong": True}
    probe = MaskingProbe(model, build_dna_tokenizer(), "n", strategy, **settings)
    result = probe.run(TEXT, target=1, progress=False)
    found = count_evaluations(probe.settings, len(TEXT))
    passes = result.tokens / len(TEXT)
    assert found == passes if exact else passes <= found <= 1.1 * passes + 2


def test_costs_of_several_sequences(make_model):
    probe = MaskingProbe(make_model("S4", "ForCausalLM"), build_dna_tokenizer(), "n", "occlusion")
    costs = probe.costs([TEXT, TEXT[:11]], [20, 10])
    assert list(costs) == ["occlusion", "exact", "shortlist", "one_shot"]
    # A causal model predicts the token from the 20 and 10 tokens before it.
    assert costs["exact"].evaluations == 20 * 21 // 2 + 1 + 10 * 11 // 2 + 1
    assert costs["occlusion"].evaluations == 2 * 20 + 2 + 2 * 10 + 2
    # Seconds are proportional to the tokens that are read.
    ratio = costs["exact"].seconds / costs["occlusion"].seconds
    assert ratio == pytest.approx((211 * 20 + 56 * 10) / (42 * 20 + 22 * 10)) and costs["exact"].seconds > 0
