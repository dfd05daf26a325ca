"""The kernel of `transpose.py`."""

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, copy_transposed, pointer

__all__ = ["transpose"]


@kernel
def transpose(source_address, source_row, target_address, target_row, rows, columns, like):
    """`target[j, i] = source[i, j]`; the addresses are of numbers of the type of `like`."""
    source, target = pointer(source_address, like), pointer(target_address, like)
    whole_rows, whole_columns = rows - rows % LANES, columns - columns % LANES
    for i in range(0, whole_rows, LANES):
        for j in range(0, whole_columns, LANES):
            at, to = i * source_row + j, j * target_row + i
            copy_transposed(source, at, source_row, target, to, target_row)
    for i in range(rows):
        for j in range(whole_columns if i < whole_rows else 0, columns):
            target[j * target_row + i] = source[i * source_row + j]
