"""What the commands that read variants print: changed names of contigs, reasons of alleles without a result."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from hf_ssm.data.genome import Genome
from hf_ssm.data.variants import contig_of

_MOST_NAMES = 5


def print_changed_contigs(names: Iterable[str], path: Path, genome: Genome | None) -> None:
    """Print on stderr which contigs of variants have another name in the genome, with or without the prefix "chr".

    Args:
        names: Contigs of the variants.
        path: The file of the variants.
        genome: The reference; None for variants that need none.
    """
    if genome is None:
        return
    pairs = [(name, contig_of(name, genome)) for name in dict.fromkeys(names)]
    changed = [f"{name} is {contig}" for name, contig in pairs if contig is not None and contig != name]
    if changed:
        rest = f", and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
        names_of = f"Names of contigs differ between {path.name} and {genome.path.name}"
        print(f"{names_of}: {', '.join(changed[:_MOST_NAMES])}{rest}.", file=sys.stderr)


def print_reasons(reasons: Iterable[str], what: str) -> None:
    """Print why alleles have no result: for each kind of reason the number of alleles, and the first reason in full.

    Args:
        reasons: The reasons of the alleles without a result.
        what: Name of such alleles, for several.
    """
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        # Reasons of a kind differ in names, letters and numbers.
        kinds.setdefault(re.sub(r"'.*?'| at [^ ]+:|\d+", "", reason), []).append(reason)
    for texts in sorted(kinds.values(), key=len, reverse=True):
        print(f"  1 allele: {texts[0]}" if len(texts) == 1 else f"  {len(texts)} {what}, the first: {texts[0]}")
