"""The tasks of `tuning_benchmark.py`: one table with the splits for each task and each seed of the split."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets

from hf_ssm.data import load_sequences
from hf_ssm.utils.files import write_text_atomically

Row = dict[str, Any]
SPLITS = ("train", "validation", "test")
SHIPPED = Path(__file__).parent / "data"
# Integration step of the pendulum, in seconds.
_STEP = 0.01


def planted_motifs(rows: Mapping[str, int], seed: int, options: Mapping[str, Any]) -> dict[str, list[Row]]:
    """A split has its own motif, background and rows."""
    sizes = {f"num_{name}": count for name, count in rows.items()}
    data = load_sequences("planted-motifs", seed=seed, **sizes, **options)
    return {
        name: [{"sequence": row["sequence"], "label": row["label"]} for row in split] for name, split in data.items()
    }


def table(rows: Mapping[str, int], seed: int, options: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Rows of a table, shuffled by the seed; its own splits are joined.

    Options: `file`, `column` (of the texts), `label` (its column, or None), `start` and `length` of the characters that
    are kept (of each text of at least that length), `letters` (texts with others are left out).
    """
    start, length, letters = options.get("start", 0), options.get("length"), options.get("letters")
    label = options.get("label")
    data = load_sequences(
        options["file"], sequence_column=options["column"], label_column=label, split_column=None, test_fraction=0.0
    )
    kept: dict[str, Row] = {}
    for row in concatenate_datasets(list(data.values())):
        text = row[options["column"]]
        text = text if length is None else text[start : start + length]
        if (length is None or len(text) == length) and (letters is None or set(text) <= set(letters)):
            kept[text] = {"sequence": text} | ({} if label is None else {"label": row[label]})
    # Equal texts, of which one is kept, would be in two splits; the order does not depend on that of the loader.
    return _cut(sorted(kept.values(), key=lambda row: row["sequence"]), rows, seed)


def images(rows: Mapping[str, int], seed: int, options: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Images of an idx file as sequences of pixels from 0 to 1; options: `file`, `image_size`."""
    data: Dataset = load_sequences(
        options["file"], image_size=options["image_size"], grayscale=True, validation_fraction=0.0, test_fraction=0.0
    )["train"]
    chosen = np.random.default_rng(seed).permutation(len(data))[: sum(rows.values())]
    kept = [
        {"sequence": (np.asarray(row["sequence"], dtype=float).ravel() / 255).round(3).tolist(), "label": row["label"]}
        for row in data.select(chosen)
    ]
    return _cut(kept, rows, seed)


def pendulum(rows: Mapping[str, int], seed: int, options: Mapping[str, Any]) -> dict[str, list[Row]]:
    """A damped pendulum at irregular times; the label is its frequency, with mean 0 and variance 1.

    θ'' = -ω² sin θ - 0.1 θ', with ω uniform in 1 to 3 per second, |θ| at most 2 and |θ'| at most 1 at the start. The
    `length` observations are sin θ with normal noise of standard deviation `noise`; the times between them are
    exponentially distributed with mean `gap` seconds. A position holds the observation and the time since the last one.
    """
    rng = np.random.default_rng(seed)
    count, length = sum(rows.values()), options["length"]
    omega, angle = rng.uniform(1, 3, count), rng.uniform(-2, 2, count)
    speed, gaps = rng.uniform(-1, 1, count), rng.exponential(options["gap"], (count, length))
    places = np.maximum(1, np.cumsum(gaps, axis=1) / _STEP).astype(int)
    path = np.empty((places.max() + 1, count))
    for step in range(len(path)):  # the symplectic Euler method
        path[step] = angle
        speed = speed - _STEP * (omega**2 * np.sin(angle) + 0.1 * speed)
        angle = angle + _STEP * speed
    seen = np.sin(path[places, np.arange(count)[:, None]]) + options["noise"] * rng.standard_normal((count, length))
    labels = (omega - 2) * 3**0.5
    signals = np.stack([seen, gaps], axis=-1).round(4)
    kept = [
        {"sequence": signal.tolist(), "label": round(float(label), 5)}
        for signal, label in zip(signals, labels, strict=True)
    ]
    return _cut(kept, rows, seed)


SOURCES: dict[str, Callable[[Mapping[str, int], int, Mapping[str, Any]], dict[str, list[Row]]]] = {
    "planted_motifs": planted_motifs,
    "table": table,
    "images": images,
    "pendulum": pendulum,
}


def _cut(kept: list[Row], rows: Mapping[str, int], seed: int) -> dict[str, list[Row]]:
    if len(kept) < sum(rows.values()):
        raise ValueError(f"rows={dict(rows)}: the data have {len(kept)} different rows only")
    order: Iterator[int] = iter(np.random.default_rng(seed).permutation(len(kept)).tolist())
    return {name: [kept[next(order)] for _ in range(rows[name])] for name in SPLITS}


def write_task(path: Path, task: Mapping[str, Any], rows: Mapping[str, int], seed: int, data: Path) -> None:
    """Write the splits of a task to a json table, unless it exists; `data`: the folder of the files."""
    if path.is_file():
        return
    options = dict(task["options"])
    if "file" in options:
        options["file"] = str(find_file(options["file"], data))
    splits = SOURCES[task["source"]](rows, seed, options)
    lines = [json.dumps({**row, "split": name}) for name in SPLITS for row in splits[name]]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, "\n".join(lines) + "\n")


def find_file(name: str, data: Path) -> Path:
    """A file of the folder `data`, or of `examples/data`."""
    return next((folder / name for folder in (data, SHIPPED) if (folder / name).is_file()), data / name)


def missing_file(task: Mapping[str, Any], data: Path) -> str | None:
    """The file of the task that does not exist, if any."""
    name = task["options"].get("file")
    return None if name is None or find_file(name, data).is_file() else str(name)
