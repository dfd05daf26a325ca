"""A model of the time of a kernel: the bytes and operations that it needs, and the rates of a GPU.

The time is that of the scarcest resource, as if the others were hidden behind it: a bound that a good kernel comes
near to, not a measurement.
"""

from dataclasses import astuple, dataclass
from typing import NamedTuple

__all__ = ["GPUS", "Cost", "Rates"]


class Rates(NamedTuple):
    """What a GPU does in a second.

    Attributes:
        memory: Bytes to or from its memory.
        cache: Bytes from its L2 cache.
        local: Bytes from the L1 caches of its multiprocessors.
        exponentials: Exponentials, logarithms and other operations of the special function units.
        products: Floating point operations of matrix products of float32 matrices, exact, without tensor cores.
        half_products: The same for bfloat16 matrices.
    """

    memory: float
    cache: float
    local: float
    exponentials: float
    products: float
    half_products: float


# Memory, exact and bfloat16 products: NVIDIA's data sheets (SXM, dense). Local bytes and exponentials: 132
# multiprocessors, 128 bytes and 16 exponentials in a cycle, 1.83 GHz. L2 cache: an estimate.
GPUS = {
    "H100": Rates(3.35e12, 5.5e12, 31e12, 3.9e12, 67e12, 989e12),
    "H200": Rates(4.8e12, 5.5e12, 31e12, 3.9e12, 67e12, 989e12),
}


@dataclass(frozen=True)
class Cost:
    """What one or several launches need.

    Attributes:
        read: Bytes at different addresses that are read: they come from the memory at least once.
        reread: Bytes that are read again, from a cache.
        written: Bytes written.
        exponentials: Operations of the special function units.
        products: Floating point operations in matrix products of float32.
        half_products: Floating point operations in matrix products of bfloat16 or float16.
        local: Of `reread`, bytes that the same program has read before, and finds in an L1 cache.
    """

    read: int = 0
    reread: int = 0
    written: int = 0
    exponentials: int = 0
    products: int = 0
    half_products: int = 0
    local: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, count: int) -> "Cost":
        return Cost(*(count * number for number in astuple(self)))

    def parts(self, rates: Rates) -> dict[str, float]:
        """Seconds that each resource is busy; the largest is the time."""
        return {
            "memory": (self.read + self.written) / rates.memory,
            "L2 cache": (self.read + self.reread - self.local) / rates.cache,
            "L1 cache": (self.read + self.reread) / rates.local,
            "exponentials": self.exponentials / rates.exponentials,
            "products": self.products / rates.products + self.half_products / rates.half_products,
        }
