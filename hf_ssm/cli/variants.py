"""Lines that commands on variants print: changed names of contigs, reasons of alleles without a result."""

import re
import sys
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from hf_ssm.data.files import bare_suffix, opened
from hf_ssm.data.genome import Genome, changed_contigs, listed

_CONTIG = re.compile(r"##contig=<(?=[^>]*\bID=([^,>]+))[^>]*\blength=(\d+)")


def print_contig_notes(names: Iterable[str], path: Path, genome: Genome | None) -> None:
    """Print on stderr which contigs have another name in the genome, and which another length, by the header of a VCF.

    Args:
        names: Contigs of the variants.
        path: The file of the variants.
        genome: The reference; None for variants that need none.
    """
    if genome is None:
        return
    if note := changed_contigs(names, path.name, genome):
        print(note, file=sys.stderr)
    differing = []
    if bare_suffix(path) == ".vcf":
        with opened(path) as file:
            for match in map(_CONTIG.match, takewhile(lambda line: line.startswith("#"), file)):
                contig = match and genome.contig(match[1])
                if match and contig and genome.length(contig) != int(match[2]):
                    differing.append(f"{match[1]} has {int(match[2]):,} bases, not {genome.length(contig):,}")
    if differing:
        print(
            f"By its header, {path.name} belongs to another genome than {genome.path.name}: {listed(differing)}.",
            file=sys.stderr,
        )


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
