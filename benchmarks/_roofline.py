"""The least that a selective scan forward can cost on this CPU: its arithmetic in registers, and its memory moved.

Softplus, gate and skip are left out of the arithmetic: they are needed once where the states need an exponential each.
"""

from collections.abc import Callable

import torch
from numba import float32
from torch import Tensor

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, exp2, fma, load, mul, pointer, splat, store
from hf_ssm.ops.threads import run_tasks

# Positions that one array of step sizes in the first cache serves.
_STEPS = 64


@kernel
def _advance(address, steps, states):
    """`steps` positions of 16 channels: per state one exp2 and four multiply-adds, all data in the first cache."""
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
        # In the place of the step size, or the compiler would leave the sums out; small, and so kept.
        store(numbers, place, fma(splat(float32(0)), y, d))


def arithmetic(batch: int, channels: int, states: int, length: int) -> Callable[[], tuple[Tensor, ...]]:
    """A call that does the arithmetic of a scan of these sizes, on the threads that torch may use."""
    blocks = batch * -(-channels // LANES)
    size = LANES * (_STEPS + 2 * states) + 2 * states
    # One cache line and more between the blocks: threads must not share one.
    data = torch.rand(blocks, size + LANES) * 0.1
    data[:, LANES * _STEPS : LANES * (_STEPS + states)] *= -1
    addresses = [row.data_ptr() for row in data]

    def call() -> tuple[Tensor, ...]:
        run_tasks(lambda block: _advance(addresses[block], length, states), len(data))
        return ()

    return call


def memory(batch: int, channels: int, states: int, length: int) -> Callable[[], tuple[Tensor, ...]]:
    """A call that moves the bytes of a scan of these sizes: `u`, `delta`, `z`, B and C read, `y` written."""
    numbers = batch * length * (4 * channels + 2 * states)
    # A copy reads as much as it writes.
    source, target = torch.rand(numbers // 2), torch.zeros(numbers // 2)

    def call() -> tuple[Tensor, ...]:
        target.copy_(source)
        return ()

    return call
