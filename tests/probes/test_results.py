"""Results: measures against direct computation, and saving and loading."""

import json
import math
import os
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from hf_ssm.probes import MaskingResult, MaskingResults
from hf_ssm.probes.evidence import Evidence


def make(order=(2, 0, 3), probabilities=(0.9, 0.95, 0.6, 0.1), **changes):
    values = {
        "input_ids": torch.tensor([7, 1, 8, 9]),
        "order": torch.tensor(order),
        "probabilities": torch.tensor(probabilities, dtype=torch.float64),
        "target": {"kind": "class", "label": 1},
        "strategy": "exact",
        "replace": "n",
        "evaluations": 7,
        "tokens": 28,
        "tokens_text": ["A", "[SEP]", "C", "G"],
    }
    return MaskingResult(**(values | changes))


def assert_same(found, expected):
    for name in ("input_ids", "order", "probabilities"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype
    for name in ("target", "strategy", "replace", "evaluations", "tokens", "tokens_text"):
        assert getattr(found, name) == getattr(expected, name)


def test_auc_is_the_mean_along_the_curve():
    assert make().area == make().auc == pytest.approx(((0.9 + 0.95) / 2 + (0.95 + 0.6) / 2 + (0.6 + 0.1) / 2) / 3)
    assert make(probabilities=(1.0, 1.0, 1.0, 1.0)).auc == 1


@pytest.mark.parametrize(("threshold", "left"), [(0.05, 0), (0.5, 1), (0.7, 2), (0.92, 3), (0.99, 3)])
def test_tokens_left_ends_where_the_curve_first_falls(threshold, left):
    assert make().tokens_left(threshold) == left


def test_tokens_left_does_not_wait_for_the_curve_to_come_back():
    assert make(probabilities=(0.9, 0.2, 0.9, 0.9)).tokens_left(0.5) == 3


def test_tokens_left_relative_to_the_start():
    # The initial probability is 0.9: thresholds 0.81 and 0.63.
    assert make().tokens_left(0.9, relative=True) == make().tokens_left(0.81) == 2
    assert make().tokens_left(0.7, relative=True) == make().tokens_left(0.63) == 2
    assert make().tokens_left(0.5, relative=True) == 1


def test_effect_is_the_probability_lost():
    result = make()
    assert result.effect[[0, 2, 3]].tolist() == pytest.approx([0.3, 0.0, 0.8])
    assert math.isnan(result.effect[1])


TEST = Evidence(2, (0.8, 0.7, 0.9), (0.1,) * 3, (0.2,) * 3, (0.3,) * 3, (0.6,) * 3, (0.5, 0.4, 0.6), 19)


def test_what_is_not_explained_says_why():
    assert make().why_unexplained == make(evidence=TEST).why_unexplained == ""
    chance, few = replace(TEST, excess=(0.5, -0.1, 1.1)), replace(TEST, beaten=18)
    for test in (chance, few):
        why = "2 kept tokens give 0.80 with the rest drawn, no better than random sets of as many (0.30)"
        assert make(evidence=test).why_unexplained == why
    all_kept = make(probabilities=(0.9, 0.1, 0.1, 0.1), evidence=replace(few, kept=3))
    assert all_kept.why_unexplained == "no smaller set of tokens keeps 90% of the probability"
    stays = make(probabilities=(0.8, 0.9, 0.8, 0.75))
    assert stays.why_unexplained == "the probability stays at 0.75 with all tokens masked"
    assert make(answer=0).changes_answer and not make(answer=1).changes_answer
    assert not make(answer=0, replace="uniform").changes_answer


def test_a_file_keeps_tests_and_spread_and_one_of_before_loads(tmp_path):
    spread = torch.tensor([0.0, 0.1, 0.2, 0.3], dtype=torch.float64)
    make(evidence=TEST, spread=spread, answer=0).save(tmp_path / "new")
    found = MaskingResult.load(tmp_path / "new")
    assert found.evidence == TEST and torch.equal(found.spread, spread) and found.answer == 0
    make().save(tmp_path / "old")
    data = (tmp_path / "old").read_bytes()
    # Version 1 had the name "mask"; the header keeps its length.
    start = data.index(b'\\"replace\\"')
    old = data.replace(b'\\"replace\\": \\"n\\"', b'\\"mask\\":    \\"n\\"')
    assert start and len(old) == len(data)
    (tmp_path / "old").write_bytes(old)
    assert MaskingResult.load(tmp_path / "old").replace == "n"


def test_survivors_and_importance():
    result = make()
    assert result.survivors(2).tolist() == [3, 0]
    assert result.survivors(0).tolist() == []
    assert result.importance[[0, 2, 3]].tolist() == pytest.approx([2 / 3, 1 / 3, 1])
    assert math.isnan(result.importance[1])
    with pytest.raises(ValueError, match=r"`count`=4: 3 tokens were masked"):
        result.survivors(4)


def test_agreement_of_orders_and_areas():
    same, reversed_ = make(), make(order=(3, 0, 2), probabilities=(0.9, 0.5, 0.4, 0.1))
    assert same.agreement(same) == {"spearman": 1.0, "area_difference": 0.0}
    found = same.agreement(reversed_)
    assert found["spearman"] == -1
    assert found["area_difference"] == pytest.approx(same.area - reversed_.area)
    shifted = make(order=(0, 2, 3))
    assert same.agreement(shifted)["spearman"] == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"`other` has another sequence"):
        same.agreement(make(input_ids=torch.tensor([7, 1, 8, 8])))
    with pytest.raises(ValueError, match=r"`other` has 1 results, but this object has 2"):
        MaskingResults([same, same]).agreement(MaskingResults([same]))


def test_mean_curve_meets_curves_of_different_lengths():
    longer = make(order=(0, 1, 2, 3), probabilities=(1.0, 0.8, 0.6, 0.4, 0.2), input_ids=torch.tensor([7, 8, 8, 9]))
    shorter = make(order=(2, 0), probabilities=(0.8, 0.4, 0.0))
    shares, mean, spread = MaskingResults([longer, shorter]).mean_curve(3)
    assert shares.tolist() == [0, 0.5, 1]
    assert mean.tolist() == pytest.approx([0.9, 0.5, 0.1])
    assert spread.tolist() == pytest.approx([0.2 / 2**0.5] * 3)
    assert MaskingResults([shorter]).mean_curve(5)[1].tolist() == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0])
    with pytest.raises(ValueError, match=r"0 results"):
        MaskingResults([]).mean_curve()


def test_a_file_gives_back_every_value(tmp_path):
    results = [make(), make(order=(0,), probabilities=(0.3, 1 / 3), tokens_text=None, input_ids=torch.tensor([5, 5]))]
    saved = MaskingResults(results, {"model": "abc"}, [4, 9])
    saved.save(tmp_path / "new" / "probe.safetensors")
    loaded = MaskingResults.load(tmp_path / "new" / "probe.safetensors")
    assert len(loaded) == 2 and loaded.settings == saved.settings and loaded.indices == [4, 9]
    for found, expected in zip(loaded, results, strict=True):
        assert_same(found, expected)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["probe.safetensors"]
    with pytest.raises(ValueError, match=r"holds the results of 2 sequences"):
        MaskingResult.load(tmp_path / "new" / "probe.safetensors")


def test_the_former_name_of_a_strategy_is_read_as_shortlist(tmp_path):
    MaskingResults([make(strategy="screened")], {"strategy": "screened"}).save(tmp_path / "old")
    loaded = MaskingResults.load(tmp_path / "old")
    assert loaded.settings == {"strategy": "shortlist"} and loaded[0].strategy == "shortlist"


def test_one_result_and_none_have_files_too(tmp_path):
    make().save(tmp_path / "one")
    assert_same(MaskingResult.load(tmp_path / "one"), make())
    MaskingResults([]).save(tmp_path / "none")
    assert len(MaskingResults.load(tmp_path / "none")) == 0


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "probe.safetensors"
    with pytest.raises(FileNotFoundError, match="No such file"):
        MaskingResults.load(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="without masking results"):
        MaskingResults.load(path)
    path.write_bytes(b"not a tensor in sight")
    with pytest.raises(ValueError, match="is not a file of masking results, or is incomplete"):
        MaskingResults.load(path)
    make().save(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is not a file of masking results, or is incomplete"):
        MaskingResults.load(path)
    save_file({"x": torch.zeros(2)}, path, {"hf_ssm": json.dumps({"format": "hf_ssm masking results", "version": 3})})
    with pytest.raises(ValueError, match="by a later version"):
        MaskingResults.load(path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_files_have_the_mode_that_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        make().save(tmp_path / "one.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "one.safetensors").stat().st_mode & 0o777 == 0o640
