"""The tables of `hf-ssm probe`: effect and rank of each token, and as bedGraph on the genome."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_ssm.cli.probe_rows import Example, Rows
from hf_ssm.data.genome import spellings
from hf_ssm.data.records import Place
from hf_ssm.data.tracks import Entries, averaged
from hf_ssm.plotting import describe_target
from hf_ssm.probes import MaskingResult

TOKENS_NAME, BEDGRAPH_NAME, TRACK_NAME = "tokens.tsv", "effect.bedgraph", "effect.bw"
# The region in the name of a FASTA record, as bedtools (0-based) and samtools (1-based) write it. Names of contigs
# may have colons, such as those of HLA alleles.
_REGION = re.compile(r"(?:.*::)?(?P<chrom>\S+):(?P<start>[\d,]+)-(?P<end>[\d,]+)(?P<strand>\([+-]\)|/rc)?")
_BASES = re.compile("[ACGTU]+", re.IGNORECASE)
_NAMES = ("name", "id", "sequence_name")


def place_of(row: Mapping[str, Any], number: int, length: int) -> Place:
    """The place of the sequence of a row.

    Taken from the columns `chrom`, `chrom_start` (or `start`) and `strand`, or from `name` and `start`, where the name
    may be a region `chr:start-end`, with `name::` before it and `(-)` or `/rc` behind it: 1-based where the region then
    has the length of the sequence, otherwise 0-based. A row without them, or with a start that is no number, lies at 0
    of a contig with its name, or "row<number>".

    Args:
        row: The columns of the row.
        number: Its number in the split.
        length: Letters of the sequence.
    """
    name = next((str(row[key]) for key in _NAMES if row.get(key)), f"row{number}")
    starts = (row.get(key) for key in ("chrom_start", "start"))
    stated_start = next((int(start) for start in map(_number, starts) if math.isfinite(start)), None)
    if row.get("chrom") and stated_start is not None:
        return Place(str(row["chrom"]), stated_start, stated_start + length, row.get("strand") == "-")
    start = stated_start or 0
    region = _REGION.fullmatch(name)
    if region is None:
        return Place((name.split() or [f"row{number}"])[0], start, start + length)
    first, last = (int(region[key].replace(",", "")) for key in ("start", "end"))
    first -= last - first + 1 == length
    if region["strand"] in ("(-)", "/rc"):
        return Place(region["chrom"], last - start - length, last - start, True)
    return Place(region["chrom"], first + start, first + start + length)


def _number(cell: Any) -> float:
    """A cell as a number, which is a text in csv files; NaN without one."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def write_tokens(folder: Path, pairs: Sequence[tuple[Example, MaskingResult]]) -> None:
    """Write `tokens.tsv`: a token a line, with its position from 1; empty cells for tokens never masked."""
    with (folder / TOKENS_NAME).open("w", encoding="utf-8", newline="\n") as file:
        print("row\tposition\ttoken\trank\tprobability\teffect\tscore\tkept\texplained", file=file)
        for example, result in pairs:
            tokens = result.tokens_text or list(map(str, result.input_ids.tolist()))
            ranks = {place: rank for rank, place in enumerate(result.order.tolist(), start=1)}
            scores = [math.nan] * len(tokens) if result.scores is None else result.scores.tolist()
            values, effects, kept = result.probabilities.tolist(), result.effect.tolist(), set(result.kept.tolist())
            explained = "no" if result.why_unexplained else "yes"
            for place, token in enumerate(tokens):
                rank = ranks.get(place)
                numbers = [math.nan if rank is None else values[rank], effects[place], scores[place]]
                cells = ["" if math.isnan(number) else f"{number:.6g}" for number in numbers]
                shown = token.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
                is_kept = "yes" if place in kept else "no"
                print(example.row, place + 1, shown, rank or "", *cells, is_kept, explained, sep="\t", file=file)


def write_bedgraph(
    folder: Path,
    tokenizer: Any,
    data: Rows,
    pairs: Sequence[tuple[Example, MaskingResult]],
    class_names: Mapping[int, str],
) -> None:
    """Write `effect.bedgraph`: a track for each sequence, as sequences may overlap on the genome.

    The value is the score of an attribution, otherwise the effect.
    """
    with (folder / BEDGRAPH_NAME).open("w", encoding="utf-8", newline="\n") as file:
        for example, result in pairs:
            chrom, spans = _spans(tokenizer, data, example, result)
            about = f"{describe_target(result, class_names)}, {result.strategy}".replace('"', "'")
            about += ", not explained" if result.why_unexplained else ""
            print(f'track type=bedGraph name="row {example.row}" description="{about}"', file=file)
            for start, end, value in sorted(spans):
                print(chrom, start, end, f"{value:.6g}", sep="\t", file=file)


def track_entries(
    tokenizer: Any, data: Rows, pairs: Sequence[tuple[Example, MaskingResult]], contigs: Collection[str]
) -> Iterator[Entries]:
    """The numbers of `effect.bedgraph` as one track: the mean of the sequences that cover a base."""
    chroms: list[str] = []
    spans: list[tuple[int, int, float]] = []
    for example, result in pairs:
        chrom, of_row = _spans(tokenizer, data, example, result)
        chroms += [next((name for name in spellings(chrom) if name in contigs), chrom)] * len(of_row)
        spans += of_row
    starts, ends, values = (np.array(column) for column in zip(*spans, strict=True))
    return averaged(chroms, starts, ends, values, contigs)


def _spans(
    tokenizer: Any, data: Rows, example: Example, result: MaskingResult
) -> tuple[str, list[tuple[int, int, float]]]:
    """The contig of a row, and the interval and the value of each token that has one, without letters such as N."""
    row = data.rows[example.row]
    place = place_of(row, example.row, len(row[data.column]))
    offsets = data.encoded(example.row, tokenizer, return_offsets_mapping=True)["offset_mapping"]
    values = (result.effect if result.scores is None else result.scores).tolist()
    return place.chrom, [
        (*place.interval(*bases.span()), value)
        for (first, last), value in zip(offsets, values, strict=True)
        if not math.isnan(value)
        for bases in _BASES.finditer(row[data.column], first, last)
    ]
