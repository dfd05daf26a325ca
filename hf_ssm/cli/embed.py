"""`hf-ssm embed`."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from hf_ssm.cli.checkpoints import check_positive
from hf_ssm.cli.sequences import load_sequence_model, reader_of, sequence_column, stored_data, with_progress
from hf_ssm.cli.summary import command, suggest
from hf_ssm.data.checks import check_column
from hf_ssm.data.columns import usual_column
from hf_ssm.data.files import bare_suffix
from hf_ssm.data.records import read_records, table_columns
from hf_ssm.data.tables import TABLE_SUFFIXES, read_table
from hf_ssm.hub.committing import is_weights
from hf_ssm.inference.embed import Embedder
from hf_ssm.inference.linear_probe import check_labels, linear_probe, probe_table
from hf_ssm.inference.model import UnknownLetters
from hf_ssm.inference.parts import join_table, write_in_parts
from hf_ssm.inference.tensor_file import write_tensor_file
from hf_ssm.tokenization import reads_only_dna
from hf_ssm.utils.files import check_not_input, write_text_atomically

_OUTPUTS = (".parquet", ".safetensors")


def run_embed(args: argparse.Namespace) -> None:
    """`hf-ssm embed`: write the hidden states of each sequence, and the scores of a linear probe."""
    if args.output.suffix not in _OUTPUTS:
        raise ValueError(f"--output {str(args.output)!r}: the suffix must be one of {', '.join(_OUTPUTS)}")
    folders = (Path(name).expanduser() for name in (args.checkpoint, args.tokenizer) if name)
    files = (path for folder in folders for path in folder.glob("*.safetensors"))
    check_not_input(args.output, *(path for path in files if is_weights(path.name)))
    column = sequence_column(args)
    labels = None if args.linear_probe is None else _read_labels(args, column)
    names = ("layers", "pooling", "both_strands", "window", "stride", "max_tokens_per_batch")
    options = {name: getattr(args, name) for name in names}
    model = load_sequence_model(args)
    embedder = Embedder(model.model, model.tokenizer, **options)
    records, facts = reader_of(args, column, model)
    scores = args.output.with_suffix(".linear_probe.json")
    check_not_input(scores, args.input, args.genome, args.linear_probe)
    unknown, total = UnknownLetters(reads_only_dna(model.tokenizer)), 0
    for record in records():
        unknown.add(record.sequence)
        total += 1
    write_in_parts(
        args.output,
        embedder.groups(with_progress(records(), "sequences", total)),
        embedder.table_of_groups,
        options | facts,
        part_size=1,
        overwrite=args.overwrite_output,
        join=_join(embedder.names, labels, args.folds, scores, args.overwrite_output),
    )
    if note := unknown.note("hidden states"):
        print(note)
    if labels is not None:
        print(probe_table(json.loads(scores.read_text(encoding="utf-8"))))
    print(f"{args.output} holds the hidden states" + (f", {scores} the scores" if labels is not None else ""))
    if labels is None and args.pooling != "token":
        columns = table_columns(args.input)
        stored = stored_data(args.checkpoint).get("label_column") if columns else None
        label = (stored if stored in columns else usual_column("label_column", columns)) or "LABELS"
        words = [word for word in args.words[1:] if word != "--overwrite-output"]
        what = command("embed", *words, "--overwrite-output", "--linear-probe", label)
        kind = "a column of the input" if columns else "a table with the columns name and label"
        suggest((what, f"how well a linear classifier reads {label}, {kind}"))


def _join(
    names: list[str], labels: list[Any] | None, folds: int, scores: Path, overwrite: bool
) -> Callable[[Iterator[pa.Table], Path], None]:
    """Writes the output, and before it the scores: they exist whenever the output does."""

    def join(tables: Iterator[pa.Table], path: Path) -> None:
        if labels is not None:
            # Mapped to memory, so that the second use costs none.
            all_tables = list(tables)
            data = Dataset(pa.concat_tables(all_tables))
            row_labels = labels if "record" not in data.column_names else [labels[number] for number in data["record"]]
            write_text_atomically(scores, json.dumps(linear_probe(data, row_labels, folds=folds), indent=2) + "\n")
            tables = iter(all_tables)
        elif overwrite:
            # Scores of the earlier embeddings.
            scores.unlink(missing_ok=True)
        if path.suffix == ".parquet":
            join_table(tables, path)
        else:
            write_tensor_file(tables, path, names)

    return join


def _read_labels(args: argparse.Namespace, column: str) -> list[Any]:
    """The label of each sequence of the input, before anything is computed."""
    check_positive(args, "folds")
    if args.pooling == "token":
        raise ValueError("--linear-probe needs one vector for each sequence: --pooling mean or last")
    # Labels do not depend on the case of the letters.
    records = read_records(args.input, column, args.genome, keep_case=True)
    is_table = bare_suffix(Path(args.linear_probe)) in TABLE_SUFFIXES
    label_of = _labels_by_name(Path(args.linear_probe)) if is_table else {}
    key = "name" if is_table else args.linear_probe
    labels, seen = [], set[str]()
    for record in records:
        check_column("--linear-probe", key, list(record.columns), args.input.name)
        label = record.columns[key]
        if is_table:
            name = str(label)
            if name in seen:
                raise ValueError(f"{record.where}: the name occurs twice, so that its label is not known: rename it")
            if name not in label_of:
                raise ValueError(f"{record.where}: {args.linear_probe!r} has no label for the name {name!r}")
            seen.add(name)
            label = label_of[name]
        labels.append(label)
    check_labels(labels, args.folds)
    return labels


def _labels_by_name(path: Path) -> dict[str, Any]:
    table = read_table(path, ["name"])
    for column in ("name", "label"):
        check_column("--linear-probe", column, list(table), path.name)
    label_of: dict[str, Any] = {}
    for name, label in zip(table["name"], table["label"], strict=True):
        if str(name) in label_of:
            raise ValueError(f"--linear-probe {str(path)!r}: the name {name!r} occurs twice")
        label_of[str(name)] = label
    return label_of
