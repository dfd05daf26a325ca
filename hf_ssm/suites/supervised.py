"""Classifiers of whole sequences: k-mers, linear probes of embeddings, fine-tuned models.

All are fitted to the training rows, choose by the validation rows, and read the test rows once.

Legend: `n` rows, `D` width of an embedding.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from transformers import set_seed

from hf_ssm.data.records import Record, as_records
from hf_ssm.inference.embed import Embedder
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.predict import predict
from hf_ssm.inference.windows import Windows, groups_of
from hf_ssm.suites.data import TaskData
from hf_ssm.suites.metrics import METRICS, measure, standard_error
from hf_ssm.training import launch, run
from hf_ssm.training.run import RunProgress
from hf_ssm.training.settings import RunSettings, resolve
from hf_ssm.tuning.runs import can_resume, without_progress_bars

__all__ = [
    "PENALTIES",
    "WORD_LENGTHS",
    "embeddings",
    "fine_tune",
    "kmer_classifier",
    "linear_classifier",
    "untrained",
    "with_random_weights",
    "word_counts",
]

WORD_LENGTHS = (3, 4, 5, 6)
"""Letters of the words of the baseline."""

PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Inverse penalties C of the logistic regressions."""

# Settings, a classifier, and its inputs of each split.
_Candidate = tuple[dict[str, Any], Any, Mapping[str, Any]]


def kmer_classifier(data: TaskData) -> dict[str, Any]:
    """Logistic regression on the counts of words of k letters A, C, G and T, in either case.

    k of `WORD_LENGTHS` and the penalty are those of the best validation metric. Other words are not counted.

    Returns:
        What `_scored` returns, and `chosen`: k and the inverse penalty C.
    """
    from sklearn.linear_model import LogisticRegression

    def candidates() -> Iterator[_Candidate]:
        for length in WORD_LENGTHS:
            counts = {name: word_counts(sequences, length) for name, (sequences, _) in data.splits().items()}
            for penalty in PENALTIES:
                yield {"k": length, "C": penalty}, LogisticRegression(C=penalty, max_iter=2000), counts

    return _best(data, candidates())


def word_counts(sequences: Sequence[str], length: int) -> Any:
    """How often each sequence contains each word of `length` letters A, C, G and T, in either case.

    Returns:
        A sparse float64 matrix `(sequences, 4**length)`, with the words in alphabetical order.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    words = ["".join(letters) for letters in product("acgt", repeat=length)]
    counter = CountVectorizer(analyzer="char", ngram_range=(length, length), vocabulary=words, dtype=np.float64)
    return counter.transform(sequences)


def linear_classifier(data: TaskData, vectors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Logistic regression on standardised vectors, with the penalty of the best validation metric.

    Args:
        data: The task.
        vectors: Of each split, `(n, D)`.

    Returns:
        What `_scored` returns, and `chosen`: the inverse penalty C.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regressions = {penalty: LogisticRegression(C=penalty, max_iter=2000) for penalty in PENALTIES}
    return _best(
        data, (({"C": c}, make_pipeline(StandardScaler(), model), vectors) for c, model in regressions.items())
    )


def _best(data: TaskData, candidates: Iterable[_Candidate]) -> dict[str, Any]:
    """The test metrics of the classifier with the best validation metric, and its settings as `chosen`."""
    splits, best, chosen, predicted = data.splits(), -np.inf, {}, None
    for settings, classifier, inputs in candidates:
        model = _fitted(classifier, inputs["train"], splits["train"][1])
        value = measure(data.task.metric, splits["validation"][1], _probabilities(model, inputs["validation"], data))
        if predicted is None or value > best:
            best, chosen, predicted = value, settings, _probabilities(model, inputs["test"], data)
    assert predicted is not None
    return _scored(data, splits["test"][1], predicted, best) | {"chosen": chosen}


def embeddings(model: SequenceModel, sequences: Sequence[str], both_strands: bool = False) -> np.ndarray:
    """The mean of the hidden states of the last layer over the tokens of each sequence, `(n, D)`.

    A sequence that is longer than the model takes is read in windows, whose means are weighted by their letters.
    """
    embedder = Embedder(
        model.model, model.tokenizer, both_strands=both_strands, max_tokens_per_batch=model.max_tokens_per_batch
    )
    cutter = Windows(model)
    records = as_records(sequences, "sequence")
    windows = (window for number, record in enumerate(records) for window in cutter.of(number, record))
    sums: np.ndarray | None = None
    letters = np.zeros((len(sequences), 1))
    for group in groups_of(windows, lambda window: window.stop - window.start):
        cuts: list[Record] = [window.cut() for window in group]
        for window, vector in zip(group, embedder.vectors(cuts)[1], strict=True):
            if sums is None:
                sums = np.zeros((len(sequences), vector.shape[-1]))
            size = window.stop - window.start
            sums[window.number] += size * vector[0, 0].double().numpy()
            letters[window.number] += size
    assert sums is not None
    return sums / letters


def fine_tune(
    data: TaskData, layer: Mapping[str, Mapping[str, Any]], seed: int, output: Path, both_strands: bool = False
) -> tuple[dict[str, Any], int]:
    """Train all weights by an ordinary run in `output`, which continues after an interruption.

    Args:
        data: The task.
        layer: Settings of the run (sections model, data and training); the data are those of the task.
        seed: Of weights, order and dropout.
        output: Folder of the run.
        both_strands: Average the predictions for a sequence and its reverse complement.

    Returns:
        What `_scored` returns, and the number of parameters.
    """
    settings = _settings(data, layer, seed)
    launch.begin(settings)
    with launch.locked(output), without_progress_bars():
        result = run.train(
            settings, output, resume=can_resume(output), overwrite=True, progress=RunProgress(), choose=True
        )
    predicted = {}
    for name, (sequences, _) in data.splits().items():
        if name != "train":
            table = predict(result.model, result.data.processor, sequences, aggregate="mean", both_strands=both_strands)
            columns = [column for column in table.column_names if column.startswith("probability_")]
            predicted[name] = np.stack([np.array(table[column]) for column in columns], axis=1)
    labels = {name: classes for name, (_, classes) in data.splits().items()}
    validation = measure(data.task.metric, labels["validation"], predicted["validation"])
    scored = _scored(data, labels["test"], predicted["test"], validation)
    count = sum(parameter.numel() for parameter in result.model.parameters())
    return scored | {"chosen": {"steps": result.steps}}, count


def _fitted(model: Any, inputs: Any, labels: np.ndarray) -> Any:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Separable data have no finite optimum; the last iterate classifies them all the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(inputs, labels)


def _probabilities(model: Any, inputs: Any, data: TaskData) -> np.ndarray:
    """`(n, classes)`; 0 for a class without training rows."""
    probabilities = np.zeros((inputs.shape[0], len(data.classes)))
    probabilities[:, model.classes_] = model.predict_proba(inputs)
    return probabilities


def _scored(data: TaskData, labels: np.ndarray, probabilities: np.ndarray, validation: float) -> dict[str, Any]:
    """The metric of the task on the test rows, its standard error, all other metrics, and the validation metric.

    `chance` is the metric of always predicting the most frequent class of the training rows.
    """
    metric = data.task.metric
    constant = np.zeros_like(probabilities)
    constant[:, np.bincount(data.splits()["train"][1]).argmax()] = 1.0
    return {
        "value": measure(metric, labels, probabilities),
        "standard_error": standard_error(metric, labels, probabilities),
        "metrics": {name: measure(name, labels, probabilities) for name in METRICS},
        "validation": validation,
        "chance": measure(metric, labels, constant),
    }


def untrained(data: TaskData, layer: Mapping[str, Mapping[str, Any]], seed: int, output: Path) -> SequenceModel:
    """The model that `fine_tune` trains with these arguments, with random weights; nothing is written."""
    with without_progress_bars():
        planned = run.plan(_settings(data, layer, seed), output, choose=True)
    return with_random_weights(SequenceModel(planned.model, planned.data.processor), seed)


def _settings(data: TaskData, layer: Mapping[str, Mapping[str, Any]], seed: int) -> RunSettings:
    sections = {name: dict(layer.get(name, {})) for name in ("model", "data", "training")}
    sections["model"]["task"] = "sequence-classification"
    sections["data"] |= {"dataset": str(data.path)}
    sections["training"]["seed"] = seed
    return resolve(sections)


def with_random_weights(model: SequenceModel, seed: int) -> SequenceModel:
    """A model of the same class and configuration with fresh weights."""
    set_seed(seed)
    fresh = type(model.model)(model.model.config).to(model.device, model.model.dtype).eval()
    return SequenceModel(fresh, model.tokenizer, model.max_tokens_per_batch)
