"""`hf-ssm marginalize`, `motifs` and `modisco`: motifs and the attributions of bases."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import Dataset

from hf_ssm import plotting
from hf_ssm.cli.checkpoints import can_draw, warn_of_chance
from hf_ssm.cli.sequences import (
    checkpoint_facts,
    is_own_model,
    load_sequence_model,
    sequence_column,
    with_progress,
)
from hf_ssm.cli.summary import command, suggest
from hf_ssm.data.motif_files import motif_of_letters, read_motifs
from hf_ssm.data.records import read_records
from hf_ssm.data.tables import read_cells
from hf_ssm.inference.marginalize import Marginalizer, shuffled
from hf_ssm.inference.modisco import BaseAttributor
from hf_ssm.inference.motif_hits import motif_hits
from hf_ssm.inference.one_hot import OneHotModel
from hf_ssm.inference.parts import check_table_output, file_facts, join_table, write_in_parts
from hf_ssm.utils.files import check_not_input, replacing, write_text_atomically

# Sequences of a part of the attributions, and lines of a printed table.
_PART, _LISTED = 16, 10
_MARGINALIZE = (
    "position",
    "scan",
    "samples",
    "reverse_complement",
    "target",
    "both_strands",
    "seed",
    "shuffle",
    "length",
)
_MODISCO = ("length", "target", "method", "references", "seed")


def run_marginalize(args: argparse.Namespace) -> None:
    """`hf-ssm marginalize`: mean effects of motifs in backgrounds, as a table and a figure."""
    check_table_output(args.output)
    motifs, facts = _motifs(args)
    if args.shuffle is not None and args.shuffle < 1:
        raise ValueError(f"--shuffle must be positive, got {args.shuffle}")
    column = sequence_column(args)
    backgrounds = _sequences(args, column)
    if args.shuffle is not None:
        backgrounds = shuffled(backgrounds, args.shuffle, args.seed)
    model = load_sequence_model(args)
    if is_own_model(args.checkpoint):
        warn_of_chance(args.checkpoint, model.tokenizer)
    marginalizer = Marginalizer(
        OneHotModel(
            model.model,
            model.tokenizer,
            both_strands=args.both_strands,
            max_tokens_per_batch=args.max_tokens_per_batch,
        ),
        backgrounds,
        target=args.target,
        samples=args.samples,
        seed=args.seed,
    )
    insertions = list(marginalizer.insertions(motifs, args.position, args.scan, args.reverse_complement))
    settings = {name: getattr(args, name) for name in _MARGINALIZE} | {"motifs": facts} | _facts(args, column, model)

    def join(tables: Iterator[pa.Table], path: Path) -> None:
        table = pa.concat_tables(tables)
        if can_draw("pictures"):
            picture = args.output.with_suffix(".png")
            with plotting.also_svg(args.svg):
                plotting.plot_motif_effects(Dataset(table).to_dict(), picture)
            print(f"{picture} shows the effects.")
        join_table(iter([table]), path)
        _print_effects(args, table)

    with_bar = with_progress(insertions, "insertions", len(insertions))
    write_in_parts(
        args.output, with_bar, marginalizer.table, settings, part_size=1, overwrite=args.overwrite_output, join=join
    )
    if args.scan is None and args.position is None:
        words = [word for word in args.words[1:] if word != "--overwrite-output"]
        line = command("marginalize", *words, "--overwrite-output", "--scan", 10)
        suggest((line, "the effects by position"))


def run_motifs(args: argparse.Namespace) -> None:
    """`hf-ssm motifs`: occurrences of motifs in scored bases, with the importance of these bases."""
    check_table_output(args.output)
    motifs, _ = _motifs(args)
    if args.output.exists() and not args.overwrite_output:
        raise ValueError(
            f"output {str(args.output)!r} exists: choose another file, or replace this one (--overwrite-output)."
        )
    table = pd.read_parquet(args.input) if args.input.suffix == ".parquet" else pd.DataFrame(read_cells(args.input))
    for name in table:
        # Cells of text files are strings; those without a score are empty.
        if name not in ("chrom", "row", "ref", "alt", "token"):
            table[name] = pd.to_numeric(table[name], errors="coerce")
    hits = motif_hits(table, motifs, score=args.score, threshold=args.threshold)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(args.output, args.output.with_name(f".{args.output.stem}.tmp{args.output.suffix}")) as path:
        join_table(iter([hits.data.table]), path)
    print(f"{args.output} holds {len(hits)} occurrences of {len(set(hits['motif']))} motifs.")
    if len(hits):
        print("| place | strand | motif | p-value | importance | percentile |\n| --- | --- | --- | --- | --- | --- |")
    for row in hits.select(range(min(_LISTED, len(hits)))):
        place = f"{row['sequence']}:{row['start']}-{row['end']}"
        numbers = f"{row['p_value']:.2g} | {row['importance']:.4g} | {row['percentile']:.1f}"
        print(f"| {place} | {row['strand']} | {row['motif']} | {numbers} |")


def run_modisco(args: argparse.Namespace) -> None:
    """`hf-ssm modisco`: one-hot sequences and hypothetical contributions, and how complete these are."""
    column = sequence_column(args)
    sequences = _sequences(args, column)
    model = load_sequence_model(args)
    if is_own_model(args.checkpoint):
        warn_of_chance(args.checkpoint, model.tokenizer)
    attributor = BaseAttributor(
        OneHotModel(model.model, model.tokenizer, max_tokens_per_batch=args.max_tokens_per_batch),
        args.target,
        method=args.method,
        references=args.references,
        seed=args.seed,
    )
    attributor.check(sequences)
    settings = {name: getattr(args, name) for name in _MODISCO} | _facts(args, column, model)

    def compute(part: list[str]) -> pa.Table:
        found = attributor.attributions(part)
        columns = {"output": found.output, "difference": found.difference, "total": found.total}
        flat = {name: list(getattr(found, name).reshape(len(part), -1)) for name in ("one_hot", "hypothetical")}
        return pa.table({name: pa.array(values) for name, values in (columns | flat).items()})

    def join(tables: Iterator[pa.Table], path: Path) -> None:
        table = pa.concat_tables(tables)
        shape = (len(table), 4, -1)
        with replacing(args.output / "ohe.npz", path.with_name(".ohe.tmp.npz")) as other:
            np.savez_compressed(other, np.stack(table["one_hot"].to_numpy()).reshape(shape))
        frame = table.select(["output", "difference", "total"]).to_pandas()
        frame["missed"] = frame["total"] - frame["difference"]
        write_text_atomically(args.output / "completeness.csv", frame.to_csv(index_label="sequence"))
        np.savez_compressed(path, np.stack(table["hypothetical"].to_numpy()).reshape(shape))
        print(_completeness(frame, args))

    with_bar = with_progress(sequences, "sequences", len(sequences))
    output = args.output / "shap.npz"
    write_in_parts(output, with_bar, compute, settings, part_size=_PART, overwrite=args.overwrite_output, join=join)
    print(f"{args.output} holds ohe.npz, shap.npz and completeness.csv.")
    print(f"Next: modisco motifs -s {args.output}/ohe.npz -a {args.output}/shap.npz -n 2000 -o modisco.h5")


def _completeness(frame: pd.DataFrame, args: argparse.Namespace) -> str:
    if frame["difference"].isna().all():
        return "Attributions by in_silico_mutagenesis have no reference value with which their sum could be compared."
    missed, size = frame["missed"].abs(), frame["difference"].abs().mean()
    return (
        f"The sums of the attributions miss the difference of the output from that of {args.references} shuffles "
        f"by {missed.mean():.2g} on average and {missed.max():.2g} at most; the difference is {size:.3g} on "
        "average."
    )


def _motifs(args: argparse.Namespace) -> tuple[dict[str, np.ndarray], Any]:
    """The motifs of a file or of letters, and what identifies them."""
    path = Path(args.motifs)
    if path.is_file():
        check_not_input(args.output, path)
        return read_motifs(path), file_facts(path)
    if path.suffix or "/" in args.motifs:
        raise FileNotFoundError(f"MOTIFS {args.motifs!r}: there is no such file")
    return {letters: motif_of_letters(letters) for letters in args.motifs.split(",")}, args.motifs


def _sequences(args: argparse.Namespace, column: str) -> list[str]:
    """The sequences of the input, of one length."""
    sequences: list[str] = []
    for record in read_records(args.input, column, args.genome):
        sequence, length = record.sequence, args.length or len(record.sequence)
        if sequences and args.length is None and len(sequence) != len(sequences[0]):
            raise ValueError(
                f"{record.where} has {len(sequence)} bases, but the first sequence has {len(sequences[0])}: give "
                "sequences of one length, or take the middle of each sequence (--length)"
            )
        if not 0 < length <= len(sequence):
            raise ValueError(
                f"{record.where} has {len(sequence)} bases: --length must be from 1 to {len(sequence)}, got {length}"
            )
        first = (len(sequence) - length) // 2
        sequences.append(sequence[first : first + length])
    if not sequences:
        raise ValueError(f"{args.input.name} has no sequences: choose another file")
    return sequences


def _facts(args: argparse.Namespace, column: str, model: Any) -> dict[str, Any]:
    files = [file_facts(path) for path in (args.input, args.genome) if path is not None]
    return {"sequence_column": column, "checkpoint": checkpoint_facts(args, model.model), "files": files}


def _print_effects(args: argparse.Namespace, table: pa.Table) -> None:
    print(f"{args.output} holds {len(table)} effects.")
    print("| motif | strand | position | output | effect | standard error |\n| --- | --- | --- | --- | --- | --- |")
    frame = table.to_pandas()
    order = np.argsort(-frame["effect"].abs(), kind="stable")[:_LISTED]
    for row in frame.iloc[order].itertuples():
        numbers = f"{row.effect:.4f} | {row.standard_error:.4f}"
        print(f"| {row.motif} | {row.strand} | {row.position} | {row.output} | {numbers} |")
