"""How well scores of variants separate labels."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset

from hf_ssm.data.labels import canonical, is_missing
from hf_ssm.data.tables import as_numbers
from hf_ssm.inference.score import SCORES

__all__ = ["check_evaluation", "evaluate_scores"]

# Samples of variants, and of groups, for the standard error.
_BOOTSTRAPS, _GROUP_BOOTSTRAPS = 200, 1000


def evaluate_scores(
    scored: Dataset,
    label: str,
    positive: Any = None,
    by: str | None = None,
    seed: int = 0,
    match_group: str | None = None,
    *,
    scores: Sequence[str] | None = None,
) -> Dataset:
    """Area under the ROC curve, average precision and rank correlation of each score with a label.

    An alternative allele is taken for the more harmful the lower its likelihood: the areas are those of the negative
    score. Distances and `abs_` scores are taken as they are, and of effects on a prediction the absolute values.
    Spearman's ρ is that of the score as it is.

    Args:
        scored: The result of `score_variants`, with the column of the label. Rows without a score are left out.
        label: Column of the label: two classes, or numbers, for which there is only a rank correlation. They may be
            texts, as in csv files.
        positive: The label of the positive class; default: 1 or true. All other labels are negative. "1" is the same
            label as 1.0, and "true" as "True".
        by: Column of groups, such as "chrom": the metrics of each group, averaged with the number of their variants as
            weights, as in TraitGym (Benegas et al. 2025). Groups with one label only, and variants without a group, are
            left out.
        seed: Of the bootstrap.
        scores: Columns to evaluate, such as "enhancer_delta"; default: those of `hf_ssm.inference.score.SCORES` that
            compare both alleles.
        match_group: Column of groups of positive variants and the controls that are matched to them, such as TraitGym's
            "match_group". It adds the metrics that TraitGym computes within these groups: "pairwise_accuracy", the
            share of the pairs of a positive and a negative variant of a group in which the positive one has the higher
            impact (ties count one half), and "mean_reciprocal_rank", the mean of 1 / rank of each positive variant by
            its impact in its group (equal impacts share their mean rank). Groups with one label only are left out.
            TraitGym's areas are those of all matched variants, as computed with `by=None` or by chromosome;
            `by="match_group"` would average the areas of the groups.

    Returns:
        A Dataset with one row for each score and metric: `score`, `metric` ("auroc", "auprc", "spearman", and those of
        `match_group`), `value`,
        `standard_error` (of 200 bootstrap samples of the variants, or 1,000 of the groups), `chance` (the value
        expected of a score that knows nothing of the label), `variants`, and `groups`.

    Raises:
        ValueError: A column is missing, or there are not two classes.
        ImportError: scikit-learn is not installed, and the label has two classes.
    """
    frame = scored.to_pandas()
    for name in {by, match_group} & set(frame):
        frame[name] = frame[name].mask(frame[name].map(is_missing))
    labels, is_binary = check_evaluation(frame, label, positive, by, match_group)
    rows = []
    compared = [name for name in SCORES if name in frame and not name.startswith(("ref_", "alt_"))]
    for score in compared if scores is None else scores:
        kept = frame[score].notna() & labels.notna()
        if by is not None:
            kept &= frame[by].notna()
        if labels[kept].nunique() < (2 if is_binary else 1):
            raise ValueError(
                f"`label`={label!r}: the variants with the score {score!r} have no labels, or all have the "
                "same label; give other labels."
            )
        values, classes = frame[score][kept].to_numpy(), labels[kept].to_numpy(dtype=float)
        groups = None if by is None else frame[by][kept].astype(str).to_numpy()
        for metric in ("auroc", "auprc", "spearman") if is_binary else ("spearman",):
            rows.append({"score": score, "metric": metric} | _metric(metric, score, classes, values, groups, by, seed))
        if match_group is not None:
            matched = kept & frame[match_group].notna()
            columns = (labels[matched], _impact(score, frame[score][matched]), frame[match_group][matched].astype(str))
            rows += [{"score": score, **row} for row in _matched_metrics(*columns, match_group, seed)]
    return Dataset.from_list(rows)


def check_evaluation(
    frame: pd.DataFrame, label: str, positive: Any = None, by: str | None = None, match_group: str | None = None
) -> tuple[pd.Series, bool]:
    """Check the arguments of `evaluate_scores` against the columns of a table, also before it has scores.

    Returns:
        The labels as numbers, and whether they are two classes, 0 and 1.

    Raises:
        ValueError, ImportError: As for `evaluate_scores`.
    """
    for name, column in (("label", label), ("by", by), ("match_group", match_group)):
        if column is not None and column not in frame:
            raise ValueError(f"`{name}`={column!r} is not a column of the table; its columns are {', '.join(frame)}.")
    labels = _labels(frame[label], positive, label)
    is_binary = bool(labels.dropna().isin((0, 1)).all())
    if is_binary and find_spec("sklearn") is None:
        raise ImportError('metrics of scores need scikit-learn: pip install "hf_ssm[genomics]"')
    if is_binary and labels.nunique() < 2:
        raise ValueError(f"`label`={label!r} has one class only, but the metrics need two classes: give other labels.")
    if by is not None and labels.groupby(frame[by].astype(str)).nunique().max() < 2:
        raise ValueError(f"`by`={by!r}: no group has variants of different labels.")
    if match_group is not None:
        if not is_binary:
            raise ValueError(
                f"`match_group`={match_group!r} needs labels of two classes, but {label!r} holds numbers: give "
                "another label, or leave `match_group` out."
            )
        if labels.groupby(frame[match_group].astype(str)).nunique().max() < 2:
            raise ValueError(f"`match_group`={match_group!r}: no group has a positive and a negative variant.")
    return labels, is_binary


def _labels(column: pd.Series, positive: Any, name: str) -> pd.Series:
    # In csv files they are texts, and whole numbers among which one is missing have become floats.
    *values, wanted = as_numbers([*map(canonical, column), canonical(positive)])
    column = pd.Series(values, column.index, dtype=object)
    if positive is not None:
        is_positive = column == wanted
        if not is_positive.any():
            raise ValueError(f"`positive`={positive!r} is not a label of {name!r}; its labels are {_some(column)}.")
        return is_positive.astype(float).where(column.notna())
    numbers = pd.to_numeric(column, errors="coerce")
    if column[numbers.isna()].notna().any():
        raise ValueError(
            f"`label`={name!r} has labels such as {_some(column)}: give the label of the positive class by "
            "`positive` (--positive)."
        )
    return numbers.astype(float)


def _some(column: pd.Series) -> str:
    return ", ".join(repr(value) for value in column.dropna().unique()[:5])


def _metric(
    metric: str,
    score: str,
    labels: np.ndarray,
    values: np.ndarray,
    groups: np.ndarray | None,
    by: str | None,
    seed: int,
) -> dict[str, Any]:
    """The entries of a row of `evaluate_scores`; `groups` are those of the variants, `None` without groups."""
    rng = np.random.default_rng(seed)
    if groups is None:
        draws = (rng.integers(0, len(labels), len(labels)) for _ in range(_BOOTSTRAPS))
        samples = [_value(metric, score, labels[draw], values[draw]) for draw in draws if np.ptp(labels[draw]) > 0]
        row = {"value": _value(metric, score, labels, values), "standard_error": _deviation(samples)}
        return row | {"chance": _chance(metric, labels), "variants": len(labels), "groups": None}
    members = [rows for name in np.unique(groups) if np.ptp(labels[rows := groups == name]) > 0]
    if not members:
        raise ValueError(f"`by`={by!r}: no group has variants of different labels.")
    of_groups = [_value(metric, score, labels[rows], values[rows]) for rows in members]
    chances = [_chance(metric, labels[rows]) for rows in members]
    counts = [int(rows.sum()) for rows in members]
    return _averaged(of_groups, counts, chances, counts, rng)


def _averaged(
    values: Sequence[float], weights: Sequence[int], chances: Sequence[float], sizes: Sequence[int], rng: Any
) -> dict[str, Any]:
    """The weighted mean over groups, with a standard error of groups that are drawn again."""
    value, weight = np.array(values), np.array(weights, dtype=float)
    draws = (rng.integers(0, len(value), len(value)) for _ in range(_GROUP_BOOTSTRAPS))
    samples = [np.average(value[draw], weights=weight[draw]) for draw in draws]
    return {
        "value": float(np.average(value, weights=weight)),
        "standard_error": _deviation(samples) if len(value) > 1 else None,
        "chance": float(np.average(chances, weights=weight)),
        "variants": sum(sizes),
        "groups": len(value),
    }


def _matched_metrics(
    labels: pd.Series, impacts: pd.Series, groups: pd.Series, match_group: str, seed: int
) -> Iterator[dict[str, Any]]:
    """The metrics of positive variants within the groups of their matched controls."""
    pairs, ranks = [], []
    for _, rows in labels.groupby(groups):
        of_group = impacts[rows.index]
        positive, negative = of_group[rows == 1].to_numpy(), of_group[rows == 0].to_numpy()
        if not len(positive) or not len(negative):
            continue
        higher, equal = np.greater.outer(positive, negative), np.equal.outer(positive, negative)
        size = len(rows)
        pairs.append((higher.mean() + equal.mean() / 2, higher.size, 0.5, size))
        reciprocal = (1 / of_group.rank(ascending=False)[rows == 1]).mean()
        # The mean of 1 / rank over the ranks of the group, of which each is equally likely.
        ranks.append((reciprocal, len(positive), (1 / np.arange(1, size + 1)).mean(), size))
    if not pairs:
        raise ValueError(f"`match_group`={match_group!r}: no group has a positive and a negative variant with a score.")
    for metric, of_groups in (("pairwise_accuracy", pairs), ("mean_reciprocal_rank", ranks)):
        values, weights, chances, sizes = zip(*of_groups, strict=True)
        yield {"metric": metric} | _averaged(values, weights, chances, sizes, np.random.default_rng(seed))


def _impact(score: str, values: Any) -> Any:
    """How harmful variants are taken to be: the more, the lower the likelihood, or the larger the distance."""
    if score not in SCORES:
        # An effect on a prediction, of either sign.
        return np.abs(values)
    return values if score.startswith("abs_") or score == "embedding_distance" else -values


def _chance(metric: str, labels: np.ndarray) -> float:
    """The expected value of a metric for random scores; the average precision is then the share of positive labels."""
    return {"auroc": 0.5, "auprc": float(labels.mean()), "spearman": 0.0}[metric]


def _deviation(samples: list[Any]) -> float | None:
    return float(np.std(samples, ddof=1)) if len(samples) > 1 else None


def _value(metric: str, score: str, labels: np.ndarray, values: np.ndarray) -> float:
    if metric == "spearman":
        ranks = pd.DataFrame({"score": values, "label": labels}).rank()
        return float(ranks["score"].corr(ranks["label"]))
    from sklearn.metrics import average_precision_score, roc_auc_score

    metric_of = roc_auc_score if metric == "auroc" else average_precision_score
    return float(metric_of(labels, _impact(score, values)))
