"""Options of `hf-ssm score` for scores of variants, and effects of all substitutions of a region on predictions."""

import argparse
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from hf_ssm.data.genome import Genome
from hf_ssm.data.variants import Variant
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.score import VariantScorer

__all__ = ["TargetSaturation", "scorer_options"]

_BASES = "ACGT"
# Positions that are read at once.
_BLOCK = 64

Region = tuple[str, int, int]


def scorer_options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `VariantScorer`."""
    names = ("scores", "target", "window", "horizon", "shifts", "flank", "per_strand", "keep_case")
    return {"both_strands": not args.one_strand, **{name: getattr(args, name) for name in names}}


class TargetSaturation:
    """The effects of all substitutions of a region on predictions; to be used within `evaluating`.

    Attributes:
        columns: The columns that compare both alleles.
    """

    def __init__(self, args: argparse.Namespace, model: SequenceModel, genome: Genome):
        self._scorer, self._genome = VariantScorer(model, genome, **scorer_options(args)), genome
        self.columns = self._scorer.evaluated

    def blocks(self, regions: Iterable[Region]) -> list[Region]:
        """Parts of regions that are computed, and stored, one after the other; those without a base are left out.

        Raises:
            ValueError: There is none.
        """
        blocks = [
            (contig, start, min(start + _BLOCK, last))
            for contig, first, last in regions
            for start in range(first, last, _BLOCK)
        ]
        blocks = [block for block in blocks if set(self._genome.fetch(*block).upper()) & set(_BASES)]
        if not blocks:
            raise ValueError("--saturate: the regions have no base A, C, G or T: give other regions")
        return blocks

    def table(self, contig: str, first: int, last: int) -> pa.Table:
        """Three rows for each base A, C, G or T from number `first` to before `last`, counted from 0."""
        bases = self._genome.fetch(contig, first, last).upper()
        variants = [
            Variant({"chrom": contig, "pos": place + 1, "ref": ref, "alt": alt}, contig, place, ref, alt)
            for place, ref in enumerate(bases, start=first)
            for alt in _BASES
            if ref in _BASES and alt != ref
        ]
        return self._scorer.table(variants)
