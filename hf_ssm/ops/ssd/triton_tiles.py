"""State space duality by Triton kernels: division into tiles, examples of arguments, loads and decays of tiles.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `N` states per channel, `K`
chunks, `T` positions of a chunk (the constant `CHUNK`), `J = T / ROWS` tiles of a chunk.

A program has a tile of `ROWS` positions and all channels of one head, padded to `WIDE`; it goes through the states in
blocks of `COLUMNS`. All are powers of two.

Decays are powers of 2. Their logarithms are summed from the beginning of the chunk in float64, and each sum is kept as
the sum of two float32 numbers: differences lose no digits. A logarithm is at least `FLOOR`, and that of a reset is
`FLOOR`: a decay over such a position is exactly 0.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.gpu.kernels import product_precision
from hf_ssm.ops.gpu.language import dot

__all__ = [
    "FLOOR",
    "MAX_CHANNELS",
    "Heads",
    "Skip",
    "Tiling",
    "at_head",
    "chunk_size_of",
    "decay_after",
    "decay_matrix",
    "decay_to_end",
    "examples",
    "load_tile",
    "products_of_rows",
]

FLOOR = tl.constexpr(-16384.0)

# Of programs, which have all channels of a head in registers.
MAX_CHANNELS = 128
_HALF = (torch.bfloat16, torch.float16)
_MIN_CHUNK, _MAX_CHUNK = 16, 128
# Programs that keep a GPU busy: two for each multiprocessor of an H100.
_PROGRAMS = 264


def _power_of_two(least: int, most: int, number: int) -> int:
    """`number` rounded up to a power of two, between two of them."""
    size = least
    while size < min(number, most):
        size *= 2
    return size


class Tiles(NamedTuple):
    """Constants of the kernels; `PRECISION` is that of products."""

    CHUNK: int
    ROWS: int
    COLUMNS: int
    WIDE: int
    PRECISION: str


class Heads(NamedTuple):
    """A tensor `(B, L, H, ...)` or `(B, L, G, ...)`, whose last axis is dense, and its strides."""

    data: Any
    batch: Any
    row: Any
    head: Any

    @classmethod
    def of(cls, t: Tensor) -> "Heads":
        return cls(t, *t.stride()[:3])


class Skip(NamedTuple):
    """D and its strides."""

    data: Any
    head: Any
    channel: Any

    @classmethod
    def of(cls, D: Tensor | None) -> "Skip | None":
        return None if D is None else cls(D, D.stride(0), D.stride(1) if D.dim() == 2 else 0)


class Tiling(NamedTuple):
    """Sizes of the arguments, and how work is divided.

    Attributes:
        chunk: Positions of a chunk.
        rows: Positions of a tile.
        columns: States of a block.
        wide: Channels of a head with padding.
    """

    batch: int
    length: int
    heads: int
    channels: int
    groups: int
    states: int
    chunk: int
    rows: int
    columns: int
    wide: int

    @classmethod
    def of(cls, x: Tensor, B: Tensor, chunk: int) -> "Tiling":
        """Of the arguments of the scan, with tiles whose kernels do not run out of registers."""
        (batch, length, heads, channels), (groups, states) = x.shape, B.shape[2:]
        wide, columns = _power_of_two(16, MAX_CHANNELS, channels), 64 if x.dtype in _HALF else 32
        rows = min(chunk, columns // 2 if wide > 64 else columns)
        columns = _power_of_two(16, columns, states)
        return cls(batch, length, heads, channels, groups, states, chunk, rows, columns, wide)

    @property
    def chunks(self) -> int:
        return -(-self.length // self.chunk)

    @property
    def padded(self) -> int:
        return self.chunks * self.chunk

    @property
    def tiles(self) -> int:
        return self.chunk // self.rows

    @property
    def blocks(self) -> int:
        return -(-self.states // self.columns)

    @property
    def carries(self) -> bool:
        """Whether there are so many sequences that one program computes the states of all chunks of a head.

        That writes the states once; otherwise they are written, and read and written again.
        """
        return self.batch * self.heads * self.blocks >= _PROGRAMS

    @property
    def parts(self) -> int:
        """Parts into which the heads of a group are divided where gradients are summed over them."""
        of_group = self.heads // self.groups
        programs = max(1, self.batch * self.chunks * self.groups * self.tiles * (self.tiles + 1) // 2)
        of_part = max(1, of_group * programs // _PROGRAMS)
        return -(-of_group // of_part)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments that most kernels take."""
        return {
            "sizes": (self.length, self.heads, self.heads // self.groups, self.padded),
            "shape": (self.channels, self.states),
            "TILES": Tiles(self.chunk, self.rows, self.columns, self.wide, product_precision()),
        }


def chunk_size_of(x: Tensor, B: Tensor, wanted: int | None) -> int:
    """A power of two: `wanted`, or a default, but not much more than hold the whole sequence.

    The states of the chunks are the larger part of the memory traffic, so that long chunks are fast as long as products
    within them are cheap: those of half precision by tensor cores, for many states.
    """
    default = 128 if x.dtype in _HALF and B.shape[3] >= 64 else 64
    return _power_of_two(_MIN_CHUNK, _MAX_CHUNK, min(x.shape[1], default if wanted is None else wanted))


_HEADS = ("x", "B", "C", "grad", "source", "weights", "own", "other")


def examples(names: str, **constants: object) -> dict[str, dict[str, object]]:
    """Types of the arguments `names` for a usual Mamba-2 model, with the tiles that `triton.py` chooses for it."""
    made = {}
    for dtype, chunk, rows, columns in (("bf16", 128, 64, 64), ("fp32", 64, 32, 32)):
        types = {
            **dict.fromkeys(_HEADS, Heads(f"*{dtype}", "i32:16", "i32:16", "i32:16")),
            **dict.fromkeys(("y", "grad_x"), f"*{dtype}"),
            **dict.fromkeys(("length", "heads", "parts", "chunks"), "i32"),
            **dict.fromkeys(("padded", "size"), "i32:16"),
            **{"D": Skip("*fp32", "i32", 0), "starts": "*i8", "CHUNK": chunk, "ROWS": rows},
            **{"sizes": ("i32", "i32", "i32", "i32:16"), "shape": ("i32:16", "i32:16")},
            "TILES": Tiles(chunk, rows, columns, 64, "ieee"),
            **constants,
        }
        made[dtype] = {name: types.get(name, "*fp32") for name in names.split()}
    return made


@triton.jit
def at_head(heads, row, position, head):
    """Where a position of a head begins."""
    return heads.data + (row * heads.batch + position * heads.row + head * heads.head)


@triton.jit
def load_tile(start, rows, columns, length, width, row):
    """Rows and columns of a matrix `(length, width)`, zero outside; `row` is the stride of its rows."""
    valid = (rows < length)[:, None] & (columns < width)[None, :]
    return tl.load(start + rows[:, None] * row + columns[None, :], mask=valid, other=0.0)


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
