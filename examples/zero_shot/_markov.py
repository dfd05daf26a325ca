"""Markov chains of bases, the baseline of the recipes.

Legend: `L` bases of a sequence.
"""

from collections.abc import Iterable

import numpy as np

BASES = "ACGT"


class MarkovChain:
    """The most frequent base after the last bases of a sequence.

    Args:
        sequences: Texts; letters other than A, C, G and T separate their parts.
        longest: Largest order, at most 11 (tables of 4¹² counts).
    """

    def __init__(self, sequences: Iterable[str], longest: int):
        self._counts = [np.zeros((4**order, 4), dtype=np.int64) for order in range(longest + 1)]
        for sequence in sequences:
            self._count(as_numbers(sequence))

    def _count(self, numbers: np.ndarray) -> None:
        codes, known = numbers, numbers < 4
        for order, counts in enumerate(self._counts):
            if order:
                # The words that end at each base, one base longer.
                codes = 4 * codes[:-1] + numbers[order:]
                known = known[:-1] & (numbers[order:] < 4)
            counts += np.bincount(codes[known], minlength=counts.size).reshape(counts.shape)

    def next_base(self, before: str, order: int) -> str:
        """The most frequent base after the last `order` bases; after fewer, if these have not occurred."""
        for length in range(min(order, len(before)), -1, -1):
            code = 0
            for base in before[len(before) - length :]:
                code = 4 * code + BASES.index(base)
            if (counts := self._counts[length][code]).any():
                return BASES[int(counts.argmax())]
        return BASES[0]

    def log_likelihood(self, sequence: str, order: int) -> float:
        """Log-probability of the bases after the first `order`, in nats; each count is one larger than found."""
        numbers, counts = as_numbers(sequence), self._counts[order] + 1
        powers = 4 ** np.arange(order - 1, -1, -1)
        codes = np.lib.stride_tricks.sliding_window_view(numbers, order + 1)
        own = counts[codes[:, :order] @ powers]
        return float(np.log(own[np.arange(len(own)), codes[:, order]] / own.sum(axis=1)).sum())

    def recovery(self, context: str, following: str, order: int) -> tuple[float, float]:
        """Share of correct bases, generated and by teacher forcing."""
        written, forced = context, 0
        for place, base in enumerate(following):
            written += self.next_base(written, order)
            forced += self.next_base(context + following[:place], order) == base
        return matches(written[len(context) :], following), forced / len(following)


def as_numbers(sequence: str) -> np.ndarray:
    """0 to 3 for A, C, G and T, 4 for other letters, `(L,)`."""
    table = np.full(256, 4, dtype=np.int64)
    table[np.frombuffer(BASES.encode(), dtype=np.uint8)] = range(4)
    return table[np.frombuffer(sequence.upper().encode("ascii", "replace"), dtype=np.uint8)]


def matches(found: str, expected: str) -> float:
    """Share of the expected letters that are found at their places."""
    return sum(a == b for a, b in zip(found, expected, strict=False)) / len(expected)
