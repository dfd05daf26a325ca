"""Scores of variants without training, against labels; and a baseline of words. Legend: `k` letters of a word."""

from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets

from hf_ssm.data.genome import Genome
from hf_ssm.data.records import reverse_complement
from hf_ssm.data.variants import Windows, as_variants, windows_of
from hf_ssm.inference.embed_variants import VariantEmbedder
from hf_ssm.inference.evaluation import evaluate_scores
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.score import score_variants
from hf_ssm.suites.data import TaskData
from hf_ssm.suites.task import Task

__all__ = ["WORD_LENGTH", "cosine_distances", "score_task", "word_scores"]

WORD_LENGTH = 6
"""k of the baseline. There are no validation variants to choose it by."""

_CODES = np.full(256, -1)
_CODES[np.frombuffer(b"ACGTacgt", dtype=np.uint8)] = [0, 1, 2, 3] * 2
_BY_HEAD = {"causal": "llr", "masked": "masked_log_odds"}


def score_task(data: TaskData, genome: Genome, model: SequenceModel | None) -> dict[str, Any]:
    """Score the variants of a task by a model, or by the words around them, and compare the scores with the labels.

    Likelihoods are averaged over both strands.

    Args:
        data: The task.
        genome: The reference.
        model: The model; `None` for `word_scores`.

    Returns:
        The metric of the task with its standard error (bootstrap of the variants, or of the groups), both areas, the
        name of the score, and the number of variants with a score.

    Raises:
        ValueError: The task needs likelihoods and the model is no language model, or no variant has a score.
    """
    task, variants = data.task, data.variants()
    if model is None:
        name = "llr"
        scored = variants.add_column(name, word_scores(variants, genome, task.window))
    elif task.orientation == "distance":
        name = "cosine_distance"
        scored = variants.add_column(name, cosine_distances(variants, genome, model, task))
    else:
        name = _BY_HEAD.get(str(model.head), "")
        if not name:
            raise ValueError(
                f"task {task.name!r} needs a language model, not a {type(model.model).__name__}: give another "
                "checkpoint"
            )
        scored = score_variants(
            model.model,
            model.tokenizer,
            variants,
            genome,
            scores=[name],
            window=task.window,
            keep_case=task.keep_case,
            max_tokens_per_batch=model.max_tokens_per_batch,
        )
    if task.orientation == "absolute" or (model is None and task.orientation == "distance"):
        # The areas are those of low scores.
        values = [None if value is None else -abs(value) for value in scored[name]]
        scored = concatenate_datasets([scored.remove_columns(name), Dataset.from_dict({name: values})], axis=1)
    rows = {row["metric"]: row for row in evaluate_scores(scored, "label", by=task.by, scores=[name])}
    row = rows[task.metric]
    return {
        "value": row["value"],
        "standard_error": row["standard_error"],
        "metrics": {metric: rows[metric]["value"] for metric in ("auroc", "auprc")},
        "chosen": {"score": name},
        "chance": row["chance"],
        "variants": row["variants"],
    }


def cosine_distances(variants: Dataset, genome: Genome, model: SequenceModel, task: Task) -> list[float]:
    """Cosine distances, as in BEND, between the last hidden states of the two alleles at the variant (forward strand).

    Returns:
        Of each variant, from 0 to 2; NaN for variants without windows.
    """
    embedder = VariantEmbedder(
        model.model,
        model.tokenizer,
        genome,
        pooling="center",
        window=task.window,
        keep_case=task.keep_case,
        max_tokens_per_batch=model.max_tokens_per_batch,
    )
    distances: list[float] = []
    for group in embedder.groups(as_variants(variants)):
        table = embedder.table(group)
        ref, alt = (np.stack(table[f"embedding_{allele}"].to_numpy()).astype(float) for allele in ("ref", "alt"))
        lengths = np.linalg.norm(ref, axis=1) * np.linalg.norm(alt, axis=1)
        distances += (1 - (ref * alt).sum(1) / lengths).tolist()
    return distances


def word_scores(variants: Dataset, genome: Genome, window: int, length: int = WORD_LENGTH) -> list[float | None]:
    """Log-likelihood ratios of alleles under a Markov chain of the words around the variants.

    The chain gives a letter by the `length - 1` before it, with frequencies of the words in both strands of the windows
    of the reference around all variants, to each of which 1 is added. Ratios are averaged over strands; letters other
    than A, C, G and T, and the words with them, are left out.

    Args:
        variants: With the columns `chrom`, `pos`, `ref`, `alt`.
        genome: The reference.
        window: Bases of a window, half of them before the variant.
        length: k.

    Returns:
        Of each variant, in nats; `None` for variants without windows.
    """
    left = window // 2
    pairs = [windows_of(variant, genome, left, window - left) for variant in as_variants(variants)]
    counts = np.ones(4**length)
    for pair in pairs:
        if isinstance(pair, Windows):
            for sequence in (pair.forward[0], reverse_complement(pair.forward[0])):
                counts += np.bincount(_words(sequence, length), minlength=4**length)
    counts = counts.reshape(-1, 4)
    log_probs = np.log(counts / counts.sum(1, keepdims=True)).ravel()

    def ratio(ref: str, alt: str) -> float:
        return float(log_probs[_words(alt, length)].sum() - log_probs[_words(ref, length)].sum())

    return [(ratio(*pair.forward) + ratio(*pair.reverse)) / 2 if isinstance(pair, Windows) else None for pair in pairs]


def _words(sequence: str, length: int) -> np.ndarray:
    """The numbers of the words of a sequence, from its start, that have no other letters."""
    codes = _CODES[np.frombuffer(sequence.encode("ascii", "replace"), dtype=np.uint8)]
    if len(codes) < length:
        return np.zeros(0, dtype=np.int64)
    views = np.lib.stride_tricks.sliding_window_view(codes, length)
    return (views @ 4 ** np.arange(length)[::-1])[(views >= 0).all(1)]
