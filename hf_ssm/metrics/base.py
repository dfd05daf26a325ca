"""What our metrics share: they keep sums instead of examples, and look at what they are given.

It travels with a metric that is pushed to the Hub, so it needs numpy, datasets and evaluate, and nothing of hf_ssm.

Dimensions: `n` examples, `k` classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

# evaluate reads the imports of a metric with a regular expression: `import a, b` would hide b from it.

IGNORED_LABEL = -100
"""References with this value (padding, unmasked tokens) count nowhere; it is PyTorch's own convention."""

Sums = Mapping[Any, float]
"""What is kept of the examples: numbers that add up over batches."""


class StreamedMetric(evaluate.Metric, ABC):
    """An `evaluate.Metric` whose batches are reduced to sums when they are added.

    So memory does not grow with the examples, and neither a file nor a folder is made. (evaluate writes the examples
    into an Arrow table, one Python object at a time: 3 to 5 µs for each.) Where several processes evaluate by way of
    evaluate itself (`num_process` above 1), its files are used, as they are how the processes meet.

    A metric gives `_info`, `_count` and `_score`.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    """Arguments of `compute` besides the columns -> their defaults."""

    _sums: Sums | None = None
    _rows = 0

    @abstractmethod
    def _count(self, columns: Mapping[str, Any]) -> Sums:
        """The sums of a batch."""

    @abstractmethod
    def _score(self, sums: Sums, options: Mapping[str, Any]) -> dict[str, Any]:
        """The result for the sums of all batches; `sums` is empty if there was none."""

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add a batch of examples.

        Args:
            predictions: a list, an array or a tensor; see below.
            references: likewise.
            kwargs: columns with other names, where the metric has such.

        Raises:
            ValueError: for a column that is missing, unknown or not what the metric takes.
        """
        columns = self._columns({"predictions": predictions, "references": references, **kwargs})
        if self.num_process > 1:
            super().add_batch(**columns)
            return
        sums = dict(self._sums or {})
        for key, value in self._count(columns).items():
            sums[key] = sums.get(key, 0) + value
        self._sums = sums
        self._rows += len(next(iter(columns.values())))

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one example.

        Args:
            prediction: a number or a list of them; see below.
            reference: likewise.
            kwargs: columns with other names, where the metric has such.

        Raises:
            ValueError: as `add_batch`.
        """
        row = {"predictions": prediction, "references": reference, **kwargs}
        self.add_batch(**{name: [value] for name, value in row.items() if value is not None})

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> Any:
        """The result for what was added and what is given here; the metric is empty afterwards.

        Args:
            predictions: a last batch; by default none.
            references: likewise.
            kwargs: columns with other names and options, where the metric has such.

        Returns:
            A dictionary; None in a process that is not the first of several.

        Raises:
            ValueError: for a bad batch or option, or if there is no example.
        """
        options = {name: value for name, value in kwargs.items() if name not in self._feature_names()}
        if unknown := sorted(set(options) - set(self.options)):
            known = ", ".join(sorted(self.options)) or "none"
            raise ValueError(f"metric {self.name!r} has no option {', '.join(unknown)}: its options are {known}")
        columns = {"predictions": predictions, "references": references, **kwargs}
        columns = {name: value for name, value in columns.items() if value is not None and name not in options}
        if self.num_process > 1:
            return super().compute(**columns, **options)
        if columns:
            self.add_batch(**columns)
        sums, self._sums, self._rows = self._sums or {}, None, 0
        return self._score(sums, {**self.options, **options})

    def _compute(self, **kwargs: Any) -> dict[str, Any]:
        """What evaluate calls with the examples of all processes."""
        options = {**self.options, **{name: kwargs.pop(name) for name in self.options if name in kwargs}}
        return self._score(self._count(kwargs), options)

    def __len__(self) -> int:
        """Number of examples that were added since the last `compute`."""
        return super().__len__() if self.num_process > 1 else self._rows

    def _build_data_dir(self) -> str:
        """Where evaluate's files would lie; made only where there will be some."""
        return super()._build_data_dir() if self.num_process > 1 else str(self._data_dir_root)

    def _columns(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given, by name, in the order of the features."""
        names = self._feature_names()
        unknown = [name for name, value in given.items() if name not in names and value is not None]
        missing = [name for name in names if given.get(name) is None]
        if unknown or missing:
            wrong = [*(f"unknown: {name}" for name in unknown), *(f"missing: {name}" for name in missing)]
            raise ValueError(f"metric {self.name!r} takes {' and '.join(names)}; {', '.join(wrong)}")
        return {name: given[name] for name in names}

    def _of_config(self, choices: Mapping[str, Any]) -> Any:
        """The entry of the configuration that was asked for when the metric was loaded.

        Raises:
            ValueError: the metric has no such configuration.
        """
        if self.config_name not in choices:
            raise ValueError(f"the configurations of this metric are {', '.join(choices)}, got {self.config_name!r}")
        return choices[self.config_name]


def number_features(predictions: str, references: str, *, rows: bool = True) -> list[datasets.Features]:
    """Features of two columns of numbers of these types: a number for each example or, with `rows`, a list of them."""
    flat = datasets.Features({"predictions": datasets.Value(predictions), "references": datasets.Value(references)})
    nested = datasets.Features({name: datasets.Sequence(value) for name, value in flat.items()})
    return [flat, nested] if rows else [flat]


def numbers(name: str, column: Any) -> tuple[np.ndarray, tuple[Any, ...]]:
    """All numbers of a column, and its shape.

    Args:
        name: of the column, for errors.
        column: an array, a tensor, or a list of numbers or of rows, which may differ in length.

    Returns:
        `(n,)`, and the shape of the array, or those of the rows where they differ.

    Raises:
        ValueError: if something in it is no number.
    """
    try:
        array = _array(column)
    except (TypeError, ValueError):  # rows of several lengths, tensors on an accelerator
        rows = [numbers(name, row) for row in column]
        return np.concatenate([values for values, _ in rows]), tuple(shape for _, shape in rows)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"`{name}` must hold numbers, got values of type {array.dtype}")
    return array.reshape(-1), array.shape


def _array(values: Any) -> np.ndarray:
    """As an array; a tensor of torch may lie on an accelerator, want a gradient, or have a type that numpy has not."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def pairs(columns: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and references, both `(n,)`.

    Raises:
        ValueError: if they have different shapes, or something is no number.
    """
    predictions, shape = numbers("predictions", columns["predictions"])
    references, wanted = numbers("references", columns["references"])
    if shape != wanted:
        text = " and ".join(f"{n} {_brief(s)}" for n, s in (("`predictions`", shape), ("`references`", wanted)))
        logits = len(shape) == len(wanted) + 1 and shape[:-1] == wanted
        mend = "take `argmax(-1)` of logits" if logits else "give one prediction for each reference"
        raise ValueError(f"the shapes must be equal, got those of {text}: {mend}")
    return predictions, references


def _brief(shape: tuple[Any, ...]) -> str:
    return str(shape) if len(shape) < 6 else f"{str(shape[:5])[:-1]}, ...)"


def whole(name: str, values: np.ndarray) -> np.ndarray:
    """As int64, which labels, classes and counts are.

    Raises:
        ValueError: for NaN, infinity and fractions.
    """
    if values.dtype.kind == "f":
        bad = values[~(np.isfinite(values) & (values == np.rint(values)))]
        if bad.size:
            raise ValueError(f"`{name}` must hold whole numbers, got {bad[0]}: give classes, not scores")
    return values.astype(np.int64)


def finite(name: str, values: np.ndarray) -> np.ndarray:
    """As float64.

    Raises:
        ValueError: for NaN and infinity.
    """
    values = values.astype(np.float64)
    bad = values[~np.isfinite(values)]
    if bad.size:
        raise ValueError(f"`{name}` must hold finite numbers, got {bad[0]}")
    return values


def class_pairs(columns: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Classes that were predicted and true ones, both `(n,)` int64, without what is ignored.

    Raises:
        ValueError: if they have different shapes, or something is no whole number.
    """
    predictions, references = pairs(columns)
    references = whole("references", references)
    counted = references != IGNORED_LABEL
    return whole("predictions", predictions[counted]), references[counted]


def confusions(columns: Mapping[str, Any]) -> Sums:
    """(true class, predicted class) -> how often, without what is ignored.

    Raises:
        ValueError: as `class_pairs`.
    """
    predictions, references = class_pairs(columns)
    if not references.size:
        return {}
    classes, codes = np.unique(np.concatenate([references, predictions]), return_inverse=True)
    true, predicted = np.split(codes.reshape(-1), 2)
    cells, counts = np.unique(true * len(classes) + predicted, return_counts=True)
    found = zip(cells.tolist(), counts.tolist(), strict=True)
    return {(int(classes[cell // len(classes)]), int(classes[cell % len(classes)])): count for cell, count in found}


def confusion_matrix(sums: Sums) -> np.ndarray:
    """What `confusions` found as a matrix, `(k, k)` int64, over the classes that occur in either column.

    Rows are the truth, columns the predictions, classes ascending.

    Raises:
        ValueError: if there is no example.
    """
    if not sums:
        raise no_example()
    classes = {value: index for index, value in enumerate(sorted({value for cell in sums for value in cell}))}
    matrix = np.zeros((len(classes), len(classes)), dtype=np.int64)
    for (true, predicted), count in sums.items():
        matrix[classes[true], classes[predicted]] = count
    return matrix


def no_example() -> ValueError:
    """The error of a metric that has nothing to judge."""
    return ValueError(
        f"there is no example: add some before `compute`; references of {IGNORED_LABEL} (padding) are none"
    )
