"""What the commands that read variants print: names of contigs that were changed, reasons of alleles without a result."""

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


def lines_of_reasons(reasons: Iterable[str]) -> list[str]:
    """A line for each kind of reason why alleles have no result, with their number and the first reason.

    Args:
        reasons: The reasons of the alleles, "" for those with a result.
    """
    kinds: dict[str, list[str]] = {}
    for reason in filter(None, reasons):
        # Kinds of reasons differ in more than names, letters and numbers.
        kind = re.sub(r"'.*?'| at [^ ]*:|\d+", "", reason)
        kinds.setdefault(kind, []).append(reason)
    by_count = sorted(kinds.values(), key=len, reverse=True)
    return [f"  {len(texts)} without{', the first' if len(texts) > 1 else ''}: {texts[0]}" for texts in by_count]
