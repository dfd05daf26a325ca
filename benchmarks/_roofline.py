"""Lower bound on the cost of a selective scan on this CPU: arithmetic in registers, and memory traffic.

The arithmetic omits softplus, gate and skip, which are computed once per channel, the exponentials once per state.
"""

from collections.abc import Callable

import torch
from numba import float32
from torch import Tensor

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, exp2, fma, load, mul, pointer, splat, store
from hf_ssm.ops.threads import run_tasks

# Positions per array of step sizes in the L1 cache.
_STEPS = 64


@kernel
def _advance(address, steps, states):
    """`steps` positions of 16 channels: per state one exp2 and four multiply-adds, all data in the L1 cache."""
    numbers = pointer(address, float32(0))
    matrix, state, weights = LANES * _STEPS, LANES * (_STEPS + states), LANES * (_STEPS + 2 * states)
    for step in range(steps):
        place = LANES * (step % _STEPS)
        d = load(numbers, place)
        y = splat(float32(0))
        for n in range(states):
            decay = exp2(mul(d, load(numbers, matrix + LANES * n)))
            entering = mul(d, splat(numbers[weights + n]))
            x = fma(decay, load(numbers, state + LANES * n), entering)
            store(numbers, state + LANES * n, x)
            y = fma(splat(numbers[weights + states + n]), x, y)
        # Stored over the step size, so that the compiler keeps the sums; the value is unchanged.
        store(numbers, place, fma(splat(float32(0)), y, d))


def arithmetic(batch: int, channels: int, states: int, length: int) -> Callable[[], tuple[Tensor, ...]]:
    """A call with the arithmetic of a scan of these sizes, on the threads of torch."""
    blocks = batch * -(-channels // LANES)
    size = LANES * (_STEPS + 2 * states) + 2 * states
    # At least one cache line between the blocks, so that threads do not share one.
    data = torch.rand(blocks, size + LANES) * 0.1
    data[:, LANES * _STEPS : LANES * (_STEPS + states)] *= -1
    addresses = [row.data_ptr() for row in data]

    def call() -> tuple[Tensor, ...]:
        run_tasks(lambda block: _advance(addresses[block], length, states), len(data))
        return ()

    return call


def memory(batch: int, channels: int, states: int, length: int) -> Callable[[], tuple[Tensor, ...]]:
    """A call with the memory traffic of a scan of these sizes: reads `u`, `delta`, `z`, B and C, writes `y`."""
    numbers = batch * length * (4 * channels + 2 * states)
    # A copy reads as much as it writes.
    source, target = torch.rand(numbers // 2), torch.zeros(numbers // 2)

    def call() -> tuple[Tensor, ...]:
        target.copy_(source)
        return ()

    return call
