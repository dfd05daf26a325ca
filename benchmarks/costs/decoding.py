"""Decoding by Triton kernels: bytes and operations of linear maps, steps and blocks.

Dimensions: `B` batch, `H` heads (Mamba-2), `D` channels, `N` states, `K` taps, `X` columns and `Y` rows of a weight.
"""

from costs.rates import Cost
from hf_ssm.ops.gpu import projection


def project_cost(batch: int, rows: int, columns: int, size: int, *, normed: bool = False, groups: int = 1) -> Cost:
    """Cost of a linear map without bias of up to 4 vectors, `batch` a power of 2, by `ceil(Y / ROWS)` programs.

    `X Y` weights of `size` bytes are read once: the bound. `B X` inputs of 4 bytes are read by each program; with an
    RMS norm (of `groups` groups of columns) twice, and the `X` weights of the norm as well. Outputs are written once.

    Args:
        batch: B.
        rows: Y, a multiple of the rows of a program.
        columns: X.
        size: Bytes of a weight.
        normed: Whether an RMS norm precedes the map.
        groups: Number of groups of columns with norms of their own.
    """
    programs = -(-rows // projection.rows_of_program(rows, batch))
    inputs = columns * (4 * batch + size * normed)
    again = programs * 4 * batch * columns * normed + (programs - 1) * inputs
    special = 3 * batch * programs * groups * normed
    return Cost(size * rows * columns + inputs, again, 4 * batch * rows, special)


def normalize_cost(batch: int, columns: int, size: int) -> Cost:
    """Cost of the RMS norm of `(B, X)` in place, with a weight of numbers of `size` bytes that each row reads.

    `columns` is a power of 2.
    """
    numbers = batch * columns
    return Cost(4 * numbers + size * columns, size * (numbers - columns), 4 * numbers, numbers + 2 * batch)


def step_cost(batch: int, channels: int, states: int, *, tile: int) -> Cost:
    """Cost of a step in float32 of real states with softplus, bias, skip and gate, by programs of `tile` channels.

    `2 B D N` numbers of the states are read and written; A, `D N` numbers, is read again for each row of the batch,
    and the weights of bias and skip too. B and C are read by each program of a row.
    """
    numbers, programs = batch * channels, -(-channels // tile)
    read = numbers * states + 3 * numbers + channels * (states + 2) + 2 * batch * states
    again = (batch - 1) * channels * (states + 2) + (programs - 1) * 2 * batch * states
    # Softplus: exponential, logarithm, division. SiLU: exponential, division.
    return Cost(4 * read, 4 * again, 4 * (numbers * states + numbers), numbers * (states + 5))


def blocks_cost(
    count: int, batch: int, size: int, channels: int, states: int, rank: int, taps: int, item: int, *, tile: int
) -> Cost:
    """Cost of one position of all blocks with RMS norms first, weights of `item` bytes and no bias but that of steps.

    The bound are the weights, `item (3 H D + (2 R + 2 N) D + ...)` bytes of each block, read once whatever the batch;
    after them the states, `8 B D N` bytes. Inputs that every program reads again come from the cache.
    """
    numbers, programs = batch * channels, -(-channels // tile)
    selected = 4 * batch * (rank + 2 * states)
    weights = item * channels * (rank + states + 2)
    read = 4 * (numbers * states + 2 * numbers) + selected + weights
    again = (batch - 1) * weights + (programs - 1) * selected
    update = Cost(read, again, 4 * numbers * (states + 1), numbers * (states + 5) + batch * channels * states)
    read_in = project_cost(batch, 2 * channels, size, item, normed=True)
    past = 4 * numbers * (taps - 1)
    convolution = Cost(item * channels * taps + past, 0, past, 2 * numbers)
    residual = Cost(4 * batch * size)
    block = read_in + convolution + project_cost(batch, rank + 2 * states, channels, item) + update
    block = block + project_cost(batch, size, channels, item) + residual
    return normalize_cost(batch, size, item) + block * count


def _update_cost(
    batch: int, heads: int, size: int, groups: int, states: int, tile: int, *, biased: bool, gated: bool
) -> Cost:
    """Cost of `update` with skips `(H,)`: `biased` with bias and softplus, `gated` with a gate and the logarithm of A.

    `2 B D N` numbers of the states are read and written. B and C are read by each program, `2 N` numbers, and step
    size, bias and A, one number each.
    """
    numbers, programs = batch * heads * size, batch * heads * -(-size // tile)
    of_head = 2 + biased
    read = numbers * (states + 1 + gated) + batch * heads + of_head * heads + 2 * batch * groups * states
    # The skip of a head is loaded once for each channel.
    wanted = numbers * (states + 2 + gated) + programs * (of_head + 2 * states)
    special = programs * (1 + 3 * biased + gated) + 2 * numbers * gated
    return Cost(4 * read, 4 * (wanted - read), 4 * numbers * (states + 1), special)


def ssd_step_cost(batch: int, heads: int, size: int, groups: int, states: int, *, tile: int) -> Cost:
    """Cost of a step in float32 with softplus, bias and skips `(H,)`, by programs of `tile` channels: `8 B D N` bytes
    of states, and little else."""
    return _update_cost(batch, heads, size, groups, states, tile, biased=True, gated=False)


def ssd_blocks_cost(
    count: int, batch: int, width: int, heads: int, size: int, groups: int, states: int, taps: int, *, tile: int
) -> Cost:
    """Cost of one position of all blocks in float32, RMS norms first, gated norms, no bias but that of step sizes.

    The bound are the weights, `4 (3 S D + 2 S G N + S H + ...)` bytes of each block, read once whatever the batch;
    after them the states, `8 B D N` bytes. Inputs that every program reads again come from the cache.
    """
    channels = heads * size
    mixed = channels + 2 * groups * states
    rows = channels + mixed + heads
    past = 4 * batch * (taps - 1) * mixed
    following = Cost(4 * mixed * taps + past + 4 * heads, 0, past, batch * (2 * mixed + 3 * heads))
    update = _update_cost(batch, heads, size, groups, states, tile, biased=False, gated=True)
    block = project_cost(batch, rows, width, 4, normed=True) + following + update
    block = block + project_cost(batch, width, channels, 4, normed=True, groups=groups) + Cost(4 * batch * width)
    return normalize_cost(batch, width, 4) + block * count
