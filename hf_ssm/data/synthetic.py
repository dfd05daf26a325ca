"""Tasks with a known answer to which tokens matter: recall, induction, selective copying, (piecewise) smooth functions.

They are the tasks for which Nishikawa & Suzuki 2025 show that gated convolutions do what attention does: the important
tokens stand at fixed places (`smooth_function`), at places that the tokens themselves decide (`induction_heads`,
`selective_copying`, `smooth_function` with `piecewise`), or at places that the last token decides
(`associative_recall`). Each row says where they stand. The rows of a split do not depend on the sizes of the others.
"""

from collections.abc import Callable, Mapping
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from hf_ssm.data.labels import IGNORED_LABEL

_KEYS = ascii_lowercase
_VALUES = ascii_uppercase + digits
# What makes a token of a text neither key nor value.
MARKER, NOISE, BLANK = ">", ".", "?"

Row = dict[str, Any]


def associative_recall(
    num_train: int = 4000,
    num_validation: int = 500,
    num_test: int = 1000,
    num_pairs: int = 8,
    num_values: int = 8,
    seed: int = 0,
) -> DatasetDict:
    """Pairs of a key and a value, then one of the keys: which value stood behind it?

    "aGcBeA...c" has the answer "B". The keys of a row are different letters in random order, the values are drawn with
    replacement, and so each answer is right with probability 1 / num_values for who does not look.

    Args:
        num_train, num_validation, num_test: Rows per split; 0 leaves a split out.
        num_pairs: Pairs in a row, 1 to 26; the row has 2 num_pairs + 1 tokens.
        num_values: Different values, 2 to 36; they are the classes.
        seed: Seed of everything random.

    Returns:
        `sequence` (str, one character per token), `label` (`ClassLabel`), `important_positions` (of the key and its
        value, 0-based).

    Raises:
        ValueError: A number out of its range.

    Source: Ba et al. 2016; Nishikawa & Suzuki 2025, Appendix B.
    """
    _check_range("num_pairs", num_pairs, 1, len(_KEYS))
    _check_range("num_values", num_values, 2, len(_VALUES))

    def row(rng: np.random.Generator) -> Row:
        keys = rng.permutation(len(_KEYS))[:num_pairs]
        values = rng.integers(num_values, size=num_pairs)
        asked = int(rng.integers(num_pairs))
        pairs = "".join(_KEYS[key] + _VALUES[value] for key, value in zip(keys, values, strict=True))
        return {
            "sequence": pairs + _KEYS[keys[asked]],
            "label": int(values[asked]),
            "important_positions": [2 * asked, 2 * asked + 1],
        }

    return _generate(row, (num_train, num_validation, num_test), seed, _classes(num_values), "associative recall")


def induction_heads(
    num_train: int = 4000,
    num_validation: int = 500,
    num_test: int = 1000,
    length: int = 64,
    num_values: int = 16,
    seed: int = 0,
) -> DatasetDict:
    """A text of random tokens with one marker in it, and the marker again at the end: what stood behind the first?

    Args:
        num_train, num_validation, num_test: Rows per split; 0 leaves a split out.
        length: Tokens in a row, the two markers included; at least 3.
        num_values: Different tokens beside the marker, 2 to 36; they are the classes.
        seed: Seed of everything random.

    Returns:
        `sequence` (str, one character per token), `label` (`ClassLabel`), `important_positions` (of the first marker
        and of the answer, 0-based).

    Raises:
        ValueError: A number out of its range.

    Source: Gu & Dao 2023 (Mamba), Section 4.1.2; Nishikawa & Suzuki 2025, Appendix B.
    """
    _check_range("length", length, 3, None)
    _check_range("num_values", num_values, 2, len(_VALUES))

    def row(rng: np.random.Generator) -> Row:
        tokens = rng.integers(num_values, size=length)
        first = int(rng.integers(length - 2))
        text = [_VALUES[token] for token in tokens]
        text[first] = text[-1] = MARKER
        return {
            "sequence": "".join(text),
            "label": int(tokens[first + 1]),
            "important_positions": [first, first + 1],
        }

    return _generate(row, (num_train, num_validation, num_test), seed, _classes(num_values), "induction heads")


def selective_copying(
    num_train: int = 4000,
    num_validation: int = 500,
    num_test: int = 1000,
    length: int = 64,
    num_tokens: int = 8,
    num_values: int = 8,
    seed: int = 0,
) -> DatasetDict:
    """Tokens scattered in noise, then as many blanks: fill in the tokens, in their order.

    Args:
        num_train, num_validation, num_test: Rows per split; 0 leaves a split out.
        length: Tokens in front of the blanks.
        num_tokens: Tokens to copy, at most `length`.
        num_values: Different tokens beside noise and blank, 2 to 36; they are the classes.
        seed: Seed of everything random.

    Returns:
        `sequence` (str, `length + num_tokens` characters), `label` (a class for each token; -100 in front of the
        blanks), `important_positions` (of the tokens to copy, 0-based).

    Raises:
        ValueError: A number out of its range.

    Source: Gu & Dao 2023 (Mamba), Section 4.1.1; Nishikawa & Suzuki 2025, Appendix B.
    """
    _check_range("length", length, 1, None)
    _check_range("num_tokens", num_tokens, 1, length)
    _check_range("num_values", num_values, 2, len(_VALUES))

    def row(rng: np.random.Generator) -> Row:
        places = np.sort(rng.permutation(length)[:num_tokens])
        tokens = rng.integers(num_values, size=num_tokens)
        text = [NOISE] * length
        for place, token in zip(places, tokens, strict=True):
            text[place] = _VALUES[token]
        return {
            "sequence": "".join(text) + BLANK * num_tokens,
            "label": [IGNORED_LABEL] * length + tokens.tolist(),
            "important_positions": places.tolist(),
        }

    features = {"label": List(Value("int64"))}
    return _generate(row, (num_train, num_validation, num_test), seed, features, "selective copying")


def smooth_function(
    num_train: int = 4000,
    num_validation: int = 500,
    num_test: int = 1000,
    length: int = 64,
    num_important: int = 4,
    smoothness: float = 0.5,
    piecewise: bool = True,
    seed: int = 0,
) -> DatasetDict:
    """A smooth function of the few most important of many numbers.

    Position j holds (x_j, m_j), uniform in [0, 1]. With z_i = 2π x_{π(i)}, the target is Σ_i w_i √2 cos z_i + 2 w₁w₂
    sin z₁ sin z₂, where w_i = 2^{-smoothness · (i-1)}, divided by its standard deviation: the larger i, the smoother
    the function in the i-th number. With `piecewise`, π sorts the positions by m, the importance, which itself is in
    the input: a piecewise γ-smooth function. Otherwise π is fixed (drawn once per seed): a γ-smooth function.

    Args:
        num_train, num_validation, num_test: Rows per split; 0 leaves a split out.
        length: Positions.
        num_important: Numbers that the target depends on, at least 2 and at most `length`.
        smoothness: a in w_i; 0 makes all equally important.
        piecewise: Whether the input decides which positions matter.
        seed: Seed of everything random.

    Returns:
        `sequence` (a list of `length` pairs of float), `label` (float, mean 0 and variance 1 over all inputs),
        `important_positions` (0-based, the most important first).

    Raises:
        ValueError: A number out of its range.

    Source: Nishikawa & Suzuki 2025, Definitions 2.1 to 2.4.
    """
    _check_range("num_important", num_important, 2, length)
    if not (np.isfinite(smoothness) and smoothness >= 0):
        raise ValueError(f"smoothness={smoothness!r}: give a finite number that is not negative.")
    fixed = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0]).permutation(length)[:num_important]
    weights = 2.0 ** (-smoothness * np.arange(num_important))
    product = weights[0] * weights[1]
    scale = float(np.sqrt((weights**2).sum() + product**2))

    def row(rng: np.random.Generator) -> Row:
        numbers = rng.random((length, 2))
        places = np.argsort(-numbers[:, 1])[:num_important] if piecewise else fixed
        phase = 2 * np.pi * numbers[places, 0]
        value = np.sqrt(2) * weights @ np.cos(phase) + 2 * product * np.sin(phase[0]) * np.sin(phase[1])
        return {
            "sequence": numbers.tolist(),
            "label": float(value / scale),
            "important_positions": places.tolist(),
        }

    features = {"sequence": List(List(Value("float32"), length=2)), "label": Value("float32")}
    name = "piecewise smooth function" if piecewise else "smooth function"
    return _generate(row, (num_train, num_validation, num_test), seed, features, name)


def _classes(count: int) -> dict[str, Any]:
    return {"label": ClassLabel(names=list(_VALUES[:count]))}


def _generate(
    row: Callable[[np.random.Generator], Row],
    sizes: tuple[int, int, int],
    seed: int,
    features: Mapping[str, Any],
    name: str,
) -> DatasetDict:
    """The splits of which `row` draws a row."""
    for argument, size in zip(("num_train", "num_validation", "num_test"), sizes, strict=True):
        _check_range(argument, size, 1 if argument == "num_train" else 0, None)
    columns = Features({"sequence": Value("string"), "important_positions": List(Value("int32")), **features})
    # The first stream belongs to what all splits share.
    _, *streams = np.random.SeedSequence(seed).spawn(4)
    splits = {}
    for split, size, stream in zip(("train", "validation", "test"), sizes, streams, strict=True):
        if size:
            rng = np.random.default_rng(stream)
            splits[split] = Dataset.from_list([row(rng) for _ in range(size)], features=columns)
            splits[split].info.description = f"Generated: {name}, seed {seed}."
    return DatasetDict(splits)


def _check_range(argument: str, value: int, least: int, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{argument}={value!r}: give a whole number {bounds}.")
