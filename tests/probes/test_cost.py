"""The estimated cost of a probe against what a run counts."""

import pytest

from hf_ssm.probes import MaskingProbe
from hf_ssm.probes.cost import count_evaluations
from hf_ssm.probes.evidence import PASSES
from hf_ssm.tokenization import build_dna_tokenizer

TEXT = "ACGTTGCAACGTAAGCTTGCATTACGGCAT"


@pytest.mark.parametrize("strategy", ["exact", "shortlist", "one_shot", "occlusion"])
@pytest.mark.parametrize(("replace", "draws"), [("n", 1), ("uniform", 6)])
def test_count_is_that_of_a_run(make_model, strategy, replace, draws):
    model = make_model("S4", "ForSequenceClassification")
    # One token per step, so that the bound of the shortlist is reached.
    settings = {"draws": draws, "allow_wrong": True} | ({"masks_per_step": 0} if draws == 1 else {})
    probe = MaskingProbe(model, build_dna_tokenizer(), replace, strategy, **settings)
    result = probe.run(TEXT, target=1, progress=False)
    bound = count_evaluations(probe.settings, len(TEXT), draws)
    passes = result.tokens / len(TEXT)
    # A drawn token is the same in a quarter of the cases, of which a search knows the value.
    assert bound == passes if draws == 1 else 0.7 * bound < passes <= bound


def test_costs_of_several_sequences(make_model):
    probe = MaskingProbe(make_model("S4", "ForCausalLM"), build_dna_tokenizer(), "n", "occlusion")
    costs = probe.costs([TEXT, TEXT[:11]], [20, 10])
    assert list(costs) == ["occlusion", "exact", "shortlist", "one_shot"]
    # A causal model predicts the token from the 20 and 10 tokens before it; the kept tokens are tested.
    assert costs["exact"].evaluations == 20 * 21 // 2 + 1 + 10 * 11 // 2 + 1 + 2 * PASSES
    assert costs["occlusion"].evaluations == 2 * 20 + 2 + 2 * 10 + 2 + 2 * PASSES
    # Seconds are proportional to the tokens that are read.
    ratio = costs["exact"].seconds / costs["occlusion"].seconds
    tokens = [(count + PASSES) * 20 + (other + PASSES) * 10 for count, other in ((211, 56), (42, 22))]
    assert ratio == pytest.approx(tokens[0] / tokens[1]) and costs["exact"].seconds > 0
