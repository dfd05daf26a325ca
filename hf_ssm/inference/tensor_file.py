"""Tables of embeddings as safetensors files, written part by part.

The library of safetensors needs all tensors of a file in memory. A file is a header in JSON, with the shape and place
of each tensor, and the data (https://github.com/huggingface/safetensors#format).

Legend: `N` sequences or windows, `T` tokens of all of them, `K` layers, `D` width of the hidden states.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["write_tensor_file"]

_TOKEN = ("token_start", "token_end")
_CODES = {"int64": "I64", "float32": "F32", "float64": "F64"}
# Largest header that the library reads, in bytes.
_LONGEST_HEADER = 100_000_000


def write_tensor_file(tables: Iterator[pa.Table], path: Path, names: Sequence[str]) -> None:
    """Write `embeddings`, `(N, K, D)`, and in the metadata, as JSON, `names` of the K vectors and other `columns`.

    With one row for each token: `embeddings`, `(T, K, D)`; `lengths`, `(N,)`, the number of tokens of each sequence or
    window; and `letters`, `(T, 2)`, those of each token in its sequence (0-based, half-open).

    Args:
        tables: Tables of `Embedder`; those of a file that is mapped to memory are not read as a whole.
        path: The new file.
        names: Columns of the vectors.

    Raises:
        ValueError: The other columns are longer than the header of a file can be.
    """
    remaining = list(tables)
    lengths: list[int] = []
    columns: dict[str, list[Any]] = {name: [] for name in remaining[0].column_names if name not in (*names, *_TOKEN)}
    per_token = _TOKEN[0] in remaining[0].column_names
    for table in remaining:
        counts, first = _runs(table) if per_token else (None, None)
        lengths += counts or []
        for name, values in columns.items():
            column = table[name] if first is None else table[name].take(pa.array(first))
            values += column.to_pylist()
    rows = sum(table.num_rows for table in remaining)
    vector = remaining[0].schema.field(names[0]).type
    entries = {"lengths": ("int64", [len(lengths)]), "letters": ("int64", [rows, 2])} if per_token else {}
    entries["embeddings"] = (str(vector.value_type.to_pandas_dtype().__name__), [rows, len(names), vector.list_size])
    with path.open("wb") as file:
        file.write(_header(entries, _metadata(names, columns)))
        if per_token:
            file.write(np.array(lengths, dtype="<i8").tobytes())
            for table in remaining:
                file.write(_side_by_side([table[name].to_numpy() for name in _TOKEN]))
        # Pages of a mapped file are freed with its table.
        while remaining:
            table = remaining.pop(0)
            vectors = [table[name].combine_chunks().flatten().to_numpy() for name in names]
            file.write(_side_by_side([values.reshape(table.num_rows, -1) for values in vectors]))


def _metadata(names: Sequence[str], columns: dict[str, list[Any]]) -> dict[str, str]:
    return {"names": json.dumps(list(names)), "columns": json.dumps(columns, default=str)}


def _runs(table: pa.Table) -> tuple[list[int], list[int]]:
    """Number of rows of each sequence or window, and its first row."""
    keys = [table[name].to_numpy() for name in ("record", "start") if name in table.column_names]
    changes = np.flatnonzero(np.any([np.diff(key) != 0 for key in keys], axis=0)) + 1
    first = [0, *changes.tolist()]
    return np.diff([*first, table.num_rows]).tolist(), first


def _side_by_side(arrays: list[np.ndarray]) -> bytes:
    stacked = np.stack(arrays, 1)
    return stacked.astype(stacked.dtype.newbyteorder("<"), copy=False).tobytes()


def _header(entries: dict[str, tuple[str, list[int]]], metadata: dict[str, str]) -> bytes:
    """Length of the header in 8 bytes, and the header, padded to a multiple of 8 bytes."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape) in entries.items():
        start, end = end, end + int(np.prod(shape)) * np.dtype(dtype).itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LONGEST_HEADER:
        raise ValueError(
            f"the columns beside the embeddings take {len(text):,} bytes, but safetensors files have room for "
            f"{_LONGEST_HEADER:,} bytes: write a .parquet file, or fewer columns."
        )
    return len(text).to_bytes(8, "little") + text
