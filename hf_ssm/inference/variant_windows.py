"""The windows of variants with both alleles, as tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from hf_ssm.data.genome import Genome
from hf_ssm.data.records import Record
from hf_ssm.data.variants import Variant, Windows, windows_of
from hf_ssm.inference.model import Encoded, SequenceModel, why_unknown

__all__ = ["STRANDS", "Pair", "VariantWindows", "unique_texts"]

STRANDS = ("forward", "reverse")


@dataclass(frozen=True)
class Pair:
    """The windows of one strand with both alleles of a variant.

    Attributes:
        texts: Tokens of the window with the reference, and with the alternative allele.
        letters: The letters of both.
        alleles: Numbers of letters of both alleles.
        before: Number of letters of the windows before the alleles.
        is_reversed: Whether the windows are those of the reverse strand.
        where: The variant, for messages.
    """

    texts: tuple[Encoded, Encoded]
    letters: tuple[str, str]
    alleles: tuple[int, int]
    before: int
    is_reversed: bool
    where: str


class VariantWindows:
    """Reads the windows of variants.

    Args:
        model: The model and its tokenizer.
        genome: The reference; `None` for variants that are pairs of sequences.
        window: Bases of a window, half of them before the variant.
        horizon: Bases from the variant on, in place of the second half.

    Raises:
        ValueError: Fewer than two bases, or no horizon.
    """

    def __init__(self, model: SequenceModel, genome: Genome | None, window: int, horizon: int | None = None):
        if window < 2:
            raise ValueError(f"`window`={window}: give at least two bases.")
        if horizon is not None and horizon < 1:
            raise ValueError(f"`horizon`={horizon}: give at least one base.")
        self._model, self._genome, self.window = model, genome, window
        self.left = window // 2
        self.right = window - self.left if horizon is None else horizon

    def of(self, variants: Sequence[Variant], shift: int = 0) -> list[Windows | str]:
        """The windows of each variant, moved by some bases, or why it has none."""
        if shift and not all(variant.has_place for variant in variants):
            raise ValueError(
                "`shifts` needs variants with `chrom` and `pos`, because windows of sequences cannot be moved: "
                "leave `shifts` out."
            )
        return [windows_of(variant, self._genome, self.left - shift, self.right + shift) for variant in variants]

    def pairs(self, variants: Sequence[Variant], windows: Sequence[Windows | str], strand: str) -> list[Pair | str]:
        """The tokens of the windows of one strand of each variant, or why it has no score on this strand."""
        row = STRANDS.index(strand)
        usable = [(variant, each) for variant, each in zip(variants, windows, strict=True) if isinstance(each, Windows)]
        records = [
            Record(self._model.letters(sequence), variant.where, is_window=True)
            for variant, each in usable
            for sequence in (each.forward, each.reverse)[row]
        ]
        encoded = iter(zip(records, self._model.encode(records, refuse_unknown=False), strict=True))
        pairs: list[Pair | str] = []
        for variant, each in zip(variants, windows, strict=True):
            if isinstance(each, str):
                pairs.append(each)
                continue
            (ref, ref_tokens), (alt, alt_tokens) = next(encoded), next(encoded)
            why = self._fault(ref, ref_tokens) or self._fault(alt, alt_tokens)
            alleles, letters = (len(variant.ref), len(variant.alt)), (ref.sequence, alt.sequence)
            pair = Pair((ref_tokens, alt_tokens), letters, alleles, each.before[row], row == 1, variant.where)
            pairs.append(why or pair)
        return pairs

    def _fault(self, record: Record, encoded: Encoded) -> str:
        return why_unknown(self._model.unknown_letters(record.sequence, encoded))


def unique_texts(pairs: Sequence[Pair]) -> tuple[list[Encoded], list[tuple[int, int]]]:
    """The windows of several pairs without repetitions, and the numbers of those of each pair.

    The alleles of a record, for example, have the same window of the reference.
    """
    texts: dict[bytes, tuple[int, Encoded]] = {}
    numbers = [
        tuple(texts.setdefault(text.ids.numpy().tobytes(), (len(texts), text))[0] for text in pair.texts)
        for pair in pairs
    ]
    return [text for _, text in texts.values()], [(ref, alt) for ref, alt in numbers]
