"""Costs of the Triton kernels of a DPLR system; dimensions as in `triton_krylov.py`.

All products count together, those in float64 too: on data center GPUs their rate is at least that of exact float32.
"""

from triton import cdiv

from costs.rates import Cost
from hf_ssm.ops.lti.triton_krylov import Plan, plan_steps, tile_size


def _powers_used(plan: Plan) -> tuple[int, int]:
    """By how many powers the rows and the columns are multiplied."""
    return plan.row_bits + (plan.rows > 16), plan.column_bits - plan.first + (plan.columns > 16)


def _tables_cost(plan: Plan, channels: int, rank: int) -> Cost:
    """Of `squares` and `tables`."""
    size, states, start_columns = plan.size, plan.states, 1 << plan.first
    # 16 rows are multiplied by each of these powers, and further blocks by the last one.
    steps = sum(_powers_used(plan)) + max(0, plan.rows // 16 - 2) + max(0, plan.columns // 16 - 2)
    read = 8 * states * (1 + 2 * rank) + 8 * size**2 * sum(_powers_used(plan)) + 8 * states * (1 + start_columns)
    return Cost(
        channels * read,
        channels * 8 * states * (1 + 31 - start_columns),
        channels * (8 * plan.powers * size**2 + 4 * (plan.rows + plan.columns) * size),
        0,
        channels * (32 * size**2 * (cdiv(rank, 16) + steps) + 2 * size**3 * (plan.powers - 1)),
    )


def forward_cost(channels: int, states: int, length: int, rank: int = 1, start_columns: int = 1) -> Cost:
    """Cost of the taps, from two on.

    `4 D L` bytes of taps, `8 D E P²` of powers and `4 D (R + M) P` of tables written, and most of the powers and the
    tables read. `2 P³ (E - 1)` operations in squarings, `2 P² (R + M)` in tables and `2 P R M` in taps, for each
    channel.
    """
    plan = plan_steps(states, start_columns, length)
    tile = tile_size(plan)
    down, across = cdiv(plan.rows, tile), cdiv(plan.columns, tile)
    table = 4 * plan.size * (plan.rows + plan.columns)
    requested = 4 * plan.size * (plan.rows * across + plan.columns * down)
    products = 2 * plan.size * tile**2 * down * across
    taps = Cost(channels * table, channels * (requested - table), 4 * channels * length, 0, channels * products)
    return _tables_cost(plan, channels, rank) + taps


def backward_cost(
    channels: int, states: int, length: int, rank: int = 1, start_columns: int = 1, tile: int = 32
) -> Cost:
    """Cost of all gradients, from two taps on; `tile` rows of a table at a time.

    The powers and tables again; the gradient read twice, `8 D L` bytes; the gradients of tables and powers, as large
    as these, written and read about twice. `4 P R M` operations for the gradients of tables, `8 P² (R + M)` in
    reversing their steps and `4 P³ (E - 1)` in reversing the squarings, for each channel.
    """
    plan = plan_steps(states, start_columns, length)
    size, down, across = plan.size, cdiv(plan.rows, tile), cdiv(plan.columns, tile)
    both, used = plan.rows + plan.columns, sum(_powers_used(plan))
    row, matrix, vectors = 4 * size, 8 * size**2, 16 * rank * states
    of_tables = Cost(
        8 * length + row * both,
        row * (plan.columns * (down - 1) + plan.rows * (across - 1)),
        row * both,
        0,
        2 * size * tile * (down * plan.columns + across * plan.rows),
    )
    # Rows of tables that are read: of one block, those that a digit is applied to.
    heads = sum(
        count - 16 if count > 16 else (1 << bits >> 1 if bits > begin else 0)
        for count, begin, bits in ((plan.rows, 0, plan.row_bits), (plan.columns, plan.first, plan.column_bits))
    )
    digits = plan.row_bits + plan.column_bits - plan.first
    later = both - 32
    steps = digits + later // 16
    reversed_tables = Cost(
        matrix * used + row * (both + heads),
        row * (later + 16 * digits - (heads - later if heads > later else 0)),
        row * later + matrix * used + 256 * size,
        0,
        2 * 32 * size**2 * steps,
    )
    squares = plan.powers - 1
    reversed_squares = Cost(
        matrix * (squares + plan.powers),
        matrix * (squares + used - 1 + 2 * squares - plan.powers),
        matrix * squares,
        0,
        4 * size**3 * squares,
    )
    start = Cost(
        matrix + vectors,
        matrix * (2 * cdiv(rank, 16) - 1) + 16 * states,
        vectors + 8 * states,
        0,
        64 * size**2 * cdiv(rank, 16),
    )
    own = of_tables + reversed_tables + reversed_squares + start
    return _tables_cost(plan, channels, rank) + own * channels
