"""Statistics per frequency that see the labels, against scikit-learn."""

import math

import numpy as np
import pytest
import torch

from hf_ssm.theory.label_statistics import correlation, f_statistic, log_power, shuffled_level
from hf_ssm.theory.spectrum import indicators, periodograms, power_spectrum, symbol_spectrum


def test_f_statistic_is_that_of_scikit_learn():
    f_classif = pytest.importorskip("sklearn.feature_selection", reason="needs scikit-learn").f_classif
    features = torch.randn(30, 4, 5, dtype=torch.float64)
    labels = torch.tensor([7, 2, 2, 5, 7] * 6)
    features[labels == 2] += 1
    expected = f_classif(features.flatten(1).numpy(), labels.numpy())[0].reshape(4, 5)
    np.testing.assert_allclose(f_statistic(features, labels).numpy(), expected, rtol=1e-10)


def test_correlation_is_that_of_numpy():
    features, targets = torch.randn(20, 3, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    expected = [np.corrcoef(column, targets.numpy())[0, 1] for column in features.numpy().T]
    np.testing.assert_allclose(correlation(features, targets).numpy(), expected, atol=1e-12)
    assert correlation(torch.ones(20), targets).item() == 0


def test_degenerate_features():
    labels = torch.tensor([0, 0, 1, 1])
    features = torch.tensor([[0.0, 1, 3], [0, 1, 3], [1, 1, 5], [1, 1, 2]])
    values = f_statistic(features, labels)
    assert values[0] == math.inf and values[1] == 0 and math.isfinite(values[2])


@pytest.mark.parametrize("side", ["left", "right"])
def test_periodograms_of_rows_do_not_depend_on_padding(side):
    rows = [torch.randn(n, 2, dtype=torch.float64) for n in (8, 5)]
    inputs = torch.full((2, 11, 2), math.nan, dtype=torch.float64)
    mask = torch.zeros(2, 11)
    for i, row in enumerate(rows):
        where = slice(11 - len(row), None) if side == "left" else slice(0, len(row))
        inputs[i, where], mask[i, where] = row, 1
    spectra = periodograms(inputs, mask, num_frequencies=9)
    for i, row in enumerate(rows):
        torch.testing.assert_close(spectra[i], periodograms(row[None], num_frequencies=9)[0])
    # The mean over rows, each with the weight of its tokens, is the power spectrum.
    total = (spectra * mask.sum(1)[:, None, None]).sum(0) / (16 * 13)
    total[:, 1:-1] *= 2
    torch.testing.assert_close(total, power_spectrum(inputs, mask, num_frequencies=9))


def test_indicators_have_the_spectrum_of_the_symbols():
    tokens, mask = torch.randint(3, 7, (4, 12)), torch.ones(4, 12)
    mask[0, 5:] = 0
    channels = indicators(tokens, mask)
    assert channels.shape == (4, 12, len(tokens[mask.bool()].unique()))
    torch.testing.assert_close(channels.sum(-1), mask)
    torch.testing.assert_close(power_spectrum(channels, mask).sum(0), symbol_spectrum(tokens, mask))


def test_the_statistic_finds_the_frequency_that_differs_between_classes():
    torch.manual_seed(0)
    labels = torch.arange(60) % 2
    position = torch.arange(48)
    inputs = torch.randn(60, 48, 1) + 1.5 * labels[:, None, None] * torch.cos(2 * math.pi * position / 6)[:, None]
    features = log_power(periodograms(inputs, num_frequencies=25))
    values = f_statistic(features, labels)
    level = shuffled_level(f_statistic, features, labels)
    assert values.shape == (1, 24)
    assert values.argmax().item() == 48 // 6 - 1 and values.max() > level
    other = torch.cat([values[0, :6], values[0, 9:]])
    assert (other < level).all()
    # A number that the amplitude of another frequency follows.
    targets = torch.randn(60)
    inputs = torch.randn(60, 48, 1) + targets.exp()[:, None, None] * torch.cos(2 * math.pi * position / 4)[:, None]
    features = log_power(periodograms(inputs, num_frequencies=25))
    assert correlation(features, targets).abs().argmax().item() == 48 // 4 - 1
    assert correlation(features, targets).abs().max() > shuffled_level(correlation, features, targets)


def test_shuffled_level_is_exceeded_by_chance_in_one_of_twenty_data_sets():
    torch.manual_seed(0)
    exceeded = 0
    for _ in range(40):
        features, labels = torch.randn(12, 6), torch.arange(12) % 3
        exceeded += bool(f_statistic(features, labels).max() > shuffled_level(f_statistic, features, labels))
    # 2 are expected; 8 or more have a probability of 0.2 %.
    assert exceeded < 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: f_statistic(torch.zeros(3, 2), torch.zeros(3)), "two or more classes"),
        (lambda: f_statistic(torch.zeros(3, 2), torch.zeros(2)), "one value per row"),
        (lambda: correlation(torch.zeros(3, 2), torch.ones(3)), "constant"),
        (lambda: log_power(torch.zeros(2, 5)), "no power"),
        (lambda: indicators(torch.zeros(2, 5), torch.zeros(2, 5)), "no token"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
