"""Motifs in a sequence beside the importance of its bases, from a table of scores per base."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset
from numpy.lib.stride_tricks import sliding_window_view

from hf_ssm.data.motif_files import check_tangermeme
from hf_ssm.data.records import reverse_complement
from hf_ssm.inference.one_hot import one_hot_of

__all__ = ["motif_hits"]

# Columns of the tables of `saturate` and `hf-ssm score --saturate`, and of `tokens.tsv` of `hf-ssm probe`.
_POSITIONS, _BASES, _GROUPS = ("pos", "position"), ("ref", "token"), ("chrom", "row")
_SCORES = ("llr", "masked_log_odds", "effect", "score", "next_token")


@dataclass(frozen=True)
class _Stretch:
    """Consecutive positions.

    Attributes:
        group: The contig or the row; "" without one.
        first: The first position, as in the table.
        sequence: The bases, in capitals.
        importance: `(bases,)`.
    """

    group: str
    first: int
    sequence: str
    importance: np.ndarray


def motif_hits(
    table: Any, motifs: Mapping[str, np.ndarray], *, score: str | None = None, threshold: float = 1e-4
) -> Dataset:
    """Where motifs occur in scored bases, and how important these bases are compared with others.

    Occurrences on both strands are those of FIMO (Grant et al. 2011) with uniform background frequencies, by memelite,
    which comes with tangermeme (the extra `genomics`). For a table of substitutions, the importance of a base is the
    mean loss of the score over its substitutions: positive where they lower the score. For an absolute score
    (`abs_...`) and for `embedding_distance`, the importance is the mean of the score.

    Args:
        table: Rows with a position (`pos` or `position`), a base (`ref` or `token`), a score, and, if there are several
            sequences, `chrom` or `row`: as from `saturate`, `hf-ssm score --saturate`, or `tokens.tsv` of
            `hf-ssm probe`. A Dataset, DataFrame or mapping of columns.
        motifs: Name to probabilities `(4, W)`, as from `hf_ssm.data.motif_files.read_motifs`.
        score: Column of the score; default: the first of `llr`, `masked_log_odds`, `effect`, `score` and `next_token`.
        threshold: Largest p-value of an occurrence, default 1e-4.

    Returns:
        A Dataset with a row for each occurrence, the most important first: `sequence` (the contig or row), `start` and
        `end` (first and last position, as in the table), `strand`, `motif`, `bases` (on the strand of the motif),
        `motif_score` (bits), `p_value`, `importance` (mean over its bases) and `percentile` (share, in percent, of all
        windows of this width in the stretch that are less important, plus half of the equally important windows).

    Raises:
        ImportError: memelite is missing.
        ValueError: A column is missing, no base has a score, or the threshold is not a probability.
    """
    check_tangermeme("a scan for motifs")
    from memelite.fimo import fimo

    if not 0 < threshold <= 1:
        raise ValueError(f"`threshold`={threshold}: give a p-value above 0 and up to 1.")
    if not motifs:
        raise ValueError("`motifs` is empty: give at least one motif.")
    matrices = {name: np.asarray(matrix, dtype=float) for name, matrix in motifs.items()}
    rows = []
    for stretch in _stretches(_frame(table), score):
        shorter = {name: matrix for name, matrix in matrices.items() if matrix.shape[1] <= len(stretch.sequence)}
        if not shorter:
            continue
        one_hot = one_hot_of([stretch.sequence]).numpy()
        for hits in fimo(shorter, one_hot, threshold=threshold):
            rows += [_row(stretch, hit) for hit in hits.to_dict("records")]
    rows.sort(key=lambda row: (-row["percentile"], row["p_value"], row["sequence"], row["start"], row["motif"]))
    names = ("sequence", "start", "end", "strand", "motif", "bases", "motif_score", "p_value", "importance")
    return Dataset.from_dict({name: [row[name] for row in rows] for name in (*names, "percentile")})


def _frame(table: Any) -> pd.DataFrame:
    return table.to_pandas() if isinstance(table, Dataset) else pd.DataFrame(table)


def _column(frame: pd.DataFrame, names: tuple[str, ...], what: str) -> str:
    for name in names:
        if name in frame.columns:
            return name
    raise ValueError(
        f"the table has no column of {what} ({' or '.join(names)}); its columns are {', '.join(frame.columns)}."
    )


def _stretches(frame: pd.DataFrame, score: str | None) -> Iterator[_Stretch]:
    """Consecutive bases with a score, in the order of the table."""
    position, base = _column(frame, _POSITIONS, "positions"), _column(frame, _BASES, "bases")
    value = _column(frame, _SCORES if score is None else (score,), "scores")
    group = next((name for name in _GROUPS if name in frame.columns), None)
    if not pd.api.types.is_numeric_dtype(frame[value]):
        raise ValueError(f"the column {value!r} of the table does not hold numbers: give the column of another score.")
    keys = ([] if group is None else [group]) + [position, base]
    frame = frame.assign(**{base: frame[base].astype(str).str.upper()}).dropna(subset=[value])
    frame = frame[frame[base].isin(list("ACGT"))]
    if frame.empty:
        raise ValueError(
            f"no base of the table has a number in the column {value!r}: give the column of another score."
        )
    means = frame.groupby(keys, sort=False)[value].mean().reset_index()
    # Substitutions that lower a score, or whose distance or absolute score is large, make a base important.
    is_loss = "alt" in frame.columns and not value.startswith("abs_") and value != "embedding_distance"
    importance = means[value].to_numpy(dtype=float) * (-1 if is_loss else 1)
    groups = [""] * len(means) if group is None else means[group].astype(str).tolist()
    places = means[position].to_numpy(dtype=int)
    borders = [
        row for row in range(1, len(means)) if groups[row] != groups[row - 1] or places[row] != places[row - 1] + 1
    ]
    for first, stop in zip([0, *borders], [*borders, len(means)], strict=True):
        letters = "".join(means[base][first:stop])
        yield _Stretch(groups[first], int(places[first]), letters, importance[first:stop])


def _row(stretch: _Stretch, hit: Mapping[str, Any]) -> dict[str, Any]:
    start, stop = int(hit["start"]), int(hit["end"])
    of_windows = sliding_window_view(stretch.importance, stop - start).mean(1)
    importance = of_windows[start]
    letters = stretch.sequence[start:stop]
    return {
        "sequence": stretch.group,
        "start": stretch.first + start,
        "end": stretch.first + stop - 1,
        "strand": hit["strand"],
        "motif": hit["motif_name"],
        "bases": letters if hit["strand"] == "+" else reverse_complement(letters),
        "motif_score": float(hit["score"]),
        "p_value": float(hit["p-value"]),
        "importance": float(importance),
        "percentile": float(50 * ((of_windows < importance).mean() + (of_windows <= importance).mean())),
    }
