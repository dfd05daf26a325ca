"""State space duality by Triton kernels: tiles, decays and examples of arguments.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `N` states per channel, `K`
chunks, `T` positions of a chunk (the constant `CHUNK`), `J = T / ROWS` tiles of a chunk.

A program has a tile of `ROWS` positions and all channels of one head, padded to `WIDE`; it goes through the states in
blocks of `COLUMNS`. All are powers of two.

Decays are powers of 2. Their logarithms are summed from the beginning of the chunk in float64, and each sum is kept as
the sum of two float32 numbers: differences lose no digits. A logarithm is at least `FLOOR`, and that of a reset is
`FLOOR`: a decay over such a position is exactly 0.
"""

import triton
import triton.language as tl

from hf_ssm.ops.gpu.language import dot

__all__ = [
    "FLOOR",
    "decay_after",
    "decay_matrix",
    "decay_to_end",
    "examples",
    "load_tile",
    "products_of_rows",
]

FLOOR = tl.constexpr(-16384.0)

_HALF = ["x", "B", "C", "grad", "source", "weights", "own", "other", "y", "grad_x"]
_COUNTS = ["length", "heads", "of_group", "groups", "skip_head", "parts", "tiles"]
_MULTIPLES = ["channels", "width", "padded", "size"]


def examples(names: str, **constants: object) -> dict[str, dict[str, object]]:
    """Types of the arguments `names` for a usual Mamba-2 model, with the tiles that `triton.py` chooses for it."""
    strides = [f"{name}_{axis}" for name in _HALF for axis in ("batch", "row", "head")]
    made = {}
    for dtype, chunk, rows, columns in (("bf16", 128, 64, 64), ("fp32", 64, 32, 32)):
        types = {
            **dict.fromkeys(_HALF, f"*{dtype}"),
            **dict.fromkeys(_COUNTS, "i32"),
            **dict.fromkeys((*_MULTIPLES, *strides), "i32:16"),
            **{"skip_channel": 0, "CHUNK": chunk, "ROWS": rows, "COLUMNS": columns, "WIDE": 64, "PRECISION": "ieee"},
            "starts": "*i8",
            **constants,
        }
        made[dtype] = {name: types.get(name, "*fp32") for name in names.split()}
    return made


@triton.jit
def load_tile(start, rows, columns, length, width, row):
    """Rows and columns of a matrix `(length, width)`, zero outside; `row` is the stride of its rows."""
    known = (rows < length)[:, None] & (columns < width)[None, :]
    return tl.load(start + rows[:, None] * row + columns[None, :], mask=known, other=0.0)


@triton.jit
def products_of_rows(a, b, i, j, length, width, a_row, b_row, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):
    """`Σ_n a[i, n] b[j, n]` of two matrices `(length, width)`."""
    total = tl.zeros([i.shape[0], j.shape[0]], tl.float32)
    for first in range(0, width, COLUMNS):
        n = first + tl.arange(0, COLUMNS)
        left = load_tile(a, i, n, length, width, a_row)
        right = load_tile(b, j, n, length, width, b_row)
        total += dot(left, tl.trans(right), PRECISION)
    return total


@triton.jit
def decay_matrix(decays, padded, i, j, TRANSPOSED: tl.constexpr = False):
    """The decays from positions `j` to positions `i` of a chunk, 0 for `j > i`; `decays` at its beginning.

    Returns:
        `(i, j)`, or with `TRANSPOSED` `(j, i)`.
    """
    if TRANSPOSED:
        high = tl.load(decays + i)[None, :] - tl.load(decays + j)[:, None]
        low = tl.load(decays + padded + i)[None, :] - tl.load(decays + padded + j)[:, None]
        reached = i[None, :] >= j[:, None]
    else:
        high = tl.load(decays + i)[:, None] - tl.load(decays + j)[None, :]
        low = tl.load(decays + padded + i)[:, None] - tl.load(decays + padded + j)[None, :]
        reached = i[:, None] >= j[None, :]
    return tl.exp2(tl.where(reached, high + low, float("-inf")))


@triton.jit
def decay_after(decays, padded, i):
    """The decays from before a chunk to its positions `i`."""
    return tl.exp2(tl.load(decays + i) + tl.load(decays + padded + i))


@triton.jit
def decay_to_end(decays, padded, j, CHUNK: tl.constexpr):
    """The decays from positions `j` of a chunk to its end."""
    high = tl.load(decays + CHUNK - 1) - tl.load(decays + j)
    return tl.exp2(high + (tl.load(decays + padded + CHUNK - 1) - tl.load(decays + padded + j)))
