"""`hf-ssm score --saturate`: all substitutions of regions."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from hf_ssm import plotting
from hf_ssm.cli.checkpoints import can_draw
from hf_ssm.cli.effects import TargetSaturation
from hf_ssm.cli.options.sequences import SATURATION_HORIZON
from hf_ssm.cli.sequences import with_progress
from hf_ssm.cli.tracks import TrackFiles, effect_tracks, entries_of_rows
from hf_ssm.data.genome import Genome
from hf_ssm.data.regions import Regions
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.parts import join_table, write_in_parts
from hf_ssm.inference.saturation import Saturation
from hf_ssm.utils.files import file_names

_REGION = re.compile(r"(?P<contig>.+):(?P<first>[\d,]+)-(?P<last>[\d,]+)")

Region = tuple[str, int, int]


def saturate_regions(
    args: argparse.Namespace,
    model: SequenceModel,
    genome: Genome,
    regions: list[Region],
    settings: dict[str, Any],
    within: Regions | None,
) -> None:
    """The table of all substitutions, their figures, and with `--track` tracks of their statistics."""
    horizon = SATURATION_HORIZON if args.horizon is None else args.horizon
    options = {"scores": args.scores, "window": args.window, "horizon": horizon, "keep_case": args.keep_case}
    saturation = (
        Saturation(model, both_strands=not args.one_strand, **options)
        if args.target is None
        else TargetSaturation(args, model, genome)
    )
    track_names = [f"{score}_{statistic}" for score in saturation.columns for statistic in args.track or ()]
    texts = file_names(track_names)
    paths = {name: args.output.with_name(f"{args.output.stem}.{texts[name]}.bw") for name in track_names}
    tracks = TrackFiles(args, genome, within, paths)

    def compute(one_region: list[Region]) -> pa.Table:
        ((contig, first, last),) = one_region
        if isinstance(saturation, TargetSaturation):
            return saturation.table(contig, first, last)
        reach = max(args.window, horizon)
        begin, end = max(0, first - reach), min(genome.length(contig), last + reach)
        scored = saturation.table(genome.fetch(contig, begin, end), first - begin, last - begin)
        positions = [begin + place + 1 for place in scored["position"].to_pylist()]
        place = {"chrom": pa.array([contig] * len(scored), pa.string()), "pos": pa.array(positions, pa.int64())}
        return pa.table(place | {name: scored[name] for name in scored.column_names if name != "position"})

    def join(tables: Iterator[pa.Table], path: Path) -> None:
        table = pa.concat_tables(tables)
        with plotting.also_svg(args.svg):
            for picture in _pictures(args.output, table, regions, saturation.columns):
                print(f"{picture} shows the scores.")
        if track_names:
            bases = effect_tracks(table, saturation.columns, args.track)
            (contig, first, last), *_ = regions
            tracks.write(entries_of_rows(bases, track_names, genome.contigs), f"{contig}:{first + 1}-{last}")
        join_table(iter([table]), path)
        print(f"{args.output} holds the scores of {len(table)} substitutions.")

    blocks = saturation.blocks(regions) if isinstance(saturation, TargetSaturation) else regions
    with_bar = with_progress(blocks, "regions", len(blocks))
    write_in_parts(args.output, with_bar, compute, settings, part_size=1, overwrite=args.overwrite_output, join=join)


def _pictures(output: Path, table: pa.Table, regions: list[Region], scores: tuple[str, ...]) -> Iterator[Path]:
    if not can_draw("pictures"):
        return
    frame = table.to_pandas().rename(columns={"pos": "position"})
    for number, (contig, first, last) in enumerate(regions, start=1):
        inside = (frame["chrom"] == contig) & (frame["position"] > first) & (frame["position"] <= last)
        for score, text in file_names(scores).items() if inside.any() else ():
            ending = f"{number}.{text}" if len(regions) > 1 else text
            path = output.with_name(f"{output.stem}.{ending}.png")
            title = f"{contig}:{first + 1}-{last}"
            plotting.plot_saturation(frame[inside], score, path, title=title)
            yield path
            effects = frame[inside].groupby("position")[score].mean().reindex(range(first + 1, last + 1))
            letters = frame[inside].drop_duplicates("position").set_index("position")["ref"]
            sequence = "".join(letters.reindex(effects.index, fill_value="N"))
            path = output.with_name(f"{output.stem}.{ending}.logo.png")
            # Of a base that is needed, the height is positive.
            label = f"−mean {score} of the other bases"
            plotting.plot_logo(sequence, -effects.to_numpy(float), path, title, first=first + 1, label=label)
            yield path


def parse_regions(texts: list[str], genome: Any, option: str) -> list[Region]:
    """Contig, first base counted from 0, and the one after the last."""
    regions = []
    for text in texts:
        parsed = _REGION.fullmatch(text)
        if parsed is None:
            raise ValueError(f"{option} {text!r}: give CONTIG:FIRST-LAST, such as chr1:1,001-2,000")
        first, last = (int(parsed[name].replace(",", "") or 0) for name in ("first", "last"))
        size = genome.length(parsed["contig"])
        if not 1 <= first <= last <= size:
            raise ValueError(
                f"{option} {text!r}: {parsed['contig']!r} has the positions 1 to {size}; give a region inside it"
            )
        regions.append((parsed["contig"], first - 1, last))
    return regions
