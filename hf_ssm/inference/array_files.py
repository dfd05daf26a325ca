"""Tables of embeddings as NumPy archives (`.npz`) and as AnnData (`.h5ad`).

Legend: `N` rows, `D` width of the hidden states.
"""

import json
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

__all__ = ["check_array_columns", "import_anndata", "write_h5ad", "write_npz"]


def check_array_columns(path: Path, names: Iterable[str]) -> None:
    """Raise `ValueError` if the format of a file has no room for a column of the input."""
    for name in names:
        if path.suffix == ".npz" and name == "facts":
            raise ValueError("the input has a column 'facts', but the output needs this name: rename the column.")
        if path.suffix == ".h5ad" and (name in ("", "_index") or "/" in name):
            raise ValueError(
                f"the input has a column {name!r}, but .h5ad files cannot have a column of this name: rename the "
                "column."
            )


def write_npz(tables: Iterator[pa.Table], path: Path, names: Sequence[str], facts: Mapping[str, Any]) -> None:
    """Write an array for each column, `(N,)` or `(N, D)`, and `facts` as JSON, an array of one text.

    `numpy.load` reads the file without pickle. Texts are arrays of Unicode, "" where one is missing; numbers of which
    some are missing are floats, NaN where one is missing.

    Args:
        tables: Tables of embeddings; those of a file that is mapped to memory are not read as a whole.
        path: The new file.
        names: Columns of the vectors.
        facts: What is known of all rows, in JSON types.

    Raises:
        ValueError: As for `check_array_columns`.
    """
    remaining = list(tables)
    others = [name for name in remaining[0].column_names if name not in names]
    check_array_columns(path, others)
    rows = sum(table.num_rows for table in remaining)
    with zipfile.ZipFile(path, "w") as archive:
        for name in others:
            values = pa.chunked_array([chunk for table in remaining for chunk in table[name].chunks]).to_numpy()
            if values.dtype == object:
                values = np.array(["" if value is None else str(value) for value in values], dtype=str)
            with _member(archive, name) as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
        with _member(archive, "facts") as file:
            np.lib.format.write_array(file, np.array(json.dumps(dict(facts))), allow_pickle=False)
        for name in names:
            first = _vectors(remaining[0], name)
            descr = np.lib.format.dtype_to_descr(first.dtype)
            header = {"descr": descr, "fortran_order": False, "shape": (rows, first.shape[1])}
            with _member(archive, name) as file:
                np.lib.format.write_array_header_2_0(file, header)
                for table in remaining:
                    file.write(_vectors(table, name).tobytes())


def _member(archive: zipfile.ZipFile, name: str) -> Any:
    # With a fixed time of change, unlike `writestr`.
    return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)


def _vectors(table: pa.Table, name: str) -> np.ndarray:
    """A column of vectors, `(rows, D)`."""
    values: np.ndarray = table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(table.num_rows, -1)


def write_h5ad(tables: Iterator[pa.Table], path: Path, names: Sequence[str], facts: Mapping[str, Any]) -> None:
    """Write an `anndata.AnnData`: the vectors as `X`, or several of them as `obsm`; other columns as `obs`.

    Args:
        tables: As for `write_npz`.
        path: The new file.
        names: Columns of the vectors.
        facts: For `uns`; values that are `None` are left out.

    Raises:
        ImportError: anndata is not installed.
        ValueError: As for `check_array_columns`.
    """
    anndata = import_anndata()
    remaining = list(tables)
    check_array_columns(path, remaining[0].column_names)
    rows = sum(table.num_rows for table in remaining)
    others = pa.concat_tables([table.drop_columns(list(names)) for table in remaining])
    columns = {name: _observation(others[name]) for name in others.column_names}
    frame = pd.DataFrame(columns, index=range(rows)).set_axis(_numbers(rows), axis=0)
    # Beside the file, not in memory: HDF5 reads the vectors from there.
    with tempfile.TemporaryFile(dir=path.parent) as file:
        arrays, start = {}, 0
        for name in names:
            first = _vectors(remaining[0], name)
            shape = (rows, first.shape[1])
            array = np.memmap(file, first.dtype, "r+" if start else "w+", start, shape)
            np.concatenate([_vectors(table, name) for table in remaining], out=array)
            arrays[name], start = array.view(np.ndarray), start + array.nbytes
        uns = {name: value for name, value in facts.items() if value is not None}
        only = arrays.pop(names[0]) if len(names) == 1 else None
        var = pd.DataFrame(index=_numbers(0 if only is None else only.shape[1]))
        data = anndata.AnnData(only, frame, var, uns, obsm=arrays)
        data.write_h5ad(path)


def _numbers(count: int) -> pd.Index:
    # Objects: anndata 0.12 does not write the strings of pandas 3.
    return pd.Index([str(number) for number in range(count)], dtype=object)


def _observation(column: pa.ChunkedArray) -> Any:
    """A column in a type that anndata writes."""
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if pa.types.is_boolean(column.type) and column.null_count:
        return pd.array(column.to_pylist(), dtype="boolean")
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.to_pandas().to_numpy()
    # Lists, times and other types as texts.
    texts = [None if value is None else _text(value) for value in column.to_pylist()]
    if not column.null_count:
        return pd.Series(texts, dtype=object)
    # Categories have missing values, which texts do not.
    known = sorted({text for text in texts if text is not None})
    return pd.Series(pd.Categorical(texts, pd.Index(known, dtype=object)))


def _text(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, list | dict) else str(value)


def import_anndata() -> Any:
    """The package anndata.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import anndata
    except ImportError as error:
        raise ImportError('.h5ad files need anndata: pip install "hf_ssm[anndata]".') from error
    return anndata
