"""State space duality by Triton kernels: bytes and operations.

Dimensions and tiles as in `triton_tiles.py`. All costs are those of whole chunks (`L = K T`), with D `(H, P)`, without
resets and without initial state and gradient of the last state. The states `(B, K, H, P, N)` are the larger part of the
memory traffic of a forward, which writes and reads them twice, where `T < 16 N / (3 size)`.
"""

from costs.rates import Cost
from hf_ssm.ops.ssd.triton_forward import pass_states
from hf_ssm.ops.ssd.triton_tiles import Tiling


class _Numbers:
    """Numbers of elements, and costs that both passes have.

    With `J` tiles of a chunk there are `J (J + 1) / 2` pairs of tiles, in which the later one reads the earlier one.
    """

    def __init__(self, tiling: Tiling, size: int):
        self.tiling, self.size = tiling, size
        batch, heads, groups, states = tiling.batch, tiling.heads, tiling.groups, tiling.states
        self.vectors = batch * tiling.length * heads
        self.inputs = self.vectors * tiling.channels
        self.weights, self.weights_of_heads = batch * tiling.length * groups * states, self.vectors * states
        self.chunks = batch * tiling.chunks
        self.of_heads = self.chunks * heads
        self.state = heads * tiling.channels * states
        self.states = self.chunks * self.state
        self.pairs = tiling.tiles * (tiling.tiles + 1) // 2
        self.square = tiling.rows**2
        self.deep = tiling.blocks * tiling.columns
        self.pieces = -(-tiling.channels * states // pass_states.configs[0].kwargs["BLOCK"])

    def cost(self, read: int, requested: int, written: int, exponentials: int = 0, products: int = 0) -> Cost:
        kinds = (0, products) if self.size == 2 else (products, 0)
        return Cost(read, requested - read, written, exponentials, *kinds)

    def decay_sums(self) -> Cost:
        """Reads d, writes three numbers for each of its: `16 B L H` bytes."""
        steps, rates = 4 * self.vectors, 4 * self.tiling.heads
        return self.cost(steps + rates, steps + rates * self.chunks, 3 * steps)

    def chunk_states(self, is_reversed: bool) -> Cost:
        """`2 B L H P N` operations; reads `x` and `B` for each block and head, writes `4 B K H P N` bytes."""
        tiling = self.tiling
        sums = (8 if is_reversed else 12) * self.vectors
        ends = 0 if is_reversed else 8 * self.of_heads * tiling.tiles
        return self.cost(
            self.size * (self.inputs + self.weights) + sums,
            self.size * (self.inputs * tiling.blocks + self.weights_of_heads) + tiling.blocks * (sums + ends),
            4 * self.states,
            self.vectors * tiling.blocks,
            2 * self.vectors * tiling.wide * self.deep,
        )

    def states_before(self, is_reversed: bool) -> Cost:
        """Of both kernels, or of the one that carries states: it writes them once, and reads only those of `saved`."""
        added = self.chunk_states(is_reversed)
        if not self.tiling.carries:
            return added + self.pass_states(is_reversed)
        ends, read = self.of_heads * self.tiling.blocks, 4 * self.states if is_reversed else 0
        return added + Cost(read, 8 * ends, 4 * self.tiling.batch * self.state + 4 * ends * is_reversed, ends)

    def pass_states(self, is_reversed: bool) -> Cost:
        """Reads and writes `4 B K H P N` bytes; reversed it reads the states of the forward too."""
        read, written = 4 * self.states, 4 * (self.states + self.tiling.batch * self.state)
        if is_reversed:
            read, written = 2 * read, written + 4 * self.of_heads * self.pieces
        ends = 8 * self.of_heads
        return self.cost(read + ends, read + ends * self.pieces, written, self.of_heads * self.pieces)

    def outputs(self, reads_steps: bool) -> tuple[int, int, int]:
        """Of a state times the weights and products of pairs times inputs: requested bytes, exponentials, operations.

        `H (2 B L N P + B K J (J + 1) / 2 (2 ROWS² (N + P)))` operations.
        """
        tiling, pairs = self.tiling, self.of_heads * self.pairs
        of_pair = tiling.rows * (self.size * (2 * tiling.states + tiling.channels) + (20 if reads_steps else 16))
        requested = self.size * self.weights_of_heads + 4 * self.states * tiling.tiles + pairs * of_pair
        products = 2 * self.vectors * tiling.wide * self.deep + 2 * pairs * self.square * (self.deep + tiling.wide)
        return requested, self.vectors + pairs * self.square, products

    def chunk_scan(self) -> Cost:
        """Reads x, B, C and the states, writes y."""
        tiling = self.tiling
        requested, exponentials, products = self.outputs(reads_steps=True)
        skip = 4 * tiling.heads * tiling.channels
        return self.cost(
            self.size * (self.inputs + 2 * self.weights) + skip + 12 * self.vectors + 4 * self.states,
            requested + self.size * self.inputs + 8 * self.vectors + skip * self.chunks * tiling.tiles,
            self.size * self.inputs,
            exponentials,
            products,
        )

    def grad_inputs(self) -> Cost:
        """Reads x, its gradient's source, B, C and the gradients of the states; writes the gradient of x."""
        tiling = self.tiling
        requested, exponentials, products = self.outputs(reads_steps=False)
        skip = 4 * tiling.heads * tiling.channels
        sums = skip * self.chunks * tiling.tiles
        vectors = 12 * self.vectors + 8 * self.of_heads * tiling.tiles
        return self.cost(
            2 * self.size * (self.inputs + self.weights) + skip + 12 * self.vectors + 4 * self.states,
            requested + 3 * self.size * self.inputs + vectors + sums,
            self.size * self.inputs + 8 * self.vectors + sums,
            exponentials,
            products,
        )

    def grad_products(self) -> Cost:
        """`B K J (J + 1) / 2 · 2 ROWS² (H P + G parts N)` operations."""
        tiling = self.tiling
        of_parts = self.chunks * tiling.groups * tiling.parts * self.pairs
        of_heads = self.of_heads * self.pairs
        per_part, per_head = 2 * self.size * tiling.states, 2 * self.size * tiling.channels + 20
        return self.cost(
            2 * self.size * (self.inputs + self.weights) + 12 * self.vectors,
            tiling.rows * (of_parts * per_part + of_heads * per_head),
            4 * (of_parts * self.square + self.vectors * tiling.tiles),
            of_heads * self.square,
            2 * self.square * (of_parts * self.deep + of_heads * tiling.wide),
        )

    def grad_weights(self, of_C: bool) -> Cost:
        """`2 B L H P N` operations and those of the products; writes `parts` times the gradient."""
        tiling = self.tiling
        pairs = self.chunks * tiling.groups * tiling.parts * self.pairs
        products = 4 * pairs * self.square
        sums = (8 if of_C else 12) * self.vectors
        ends = 0 if of_C else 8 * self.of_heads * tiling.tiles
        own = self.size * self.weights if of_C else 0
        read = self.size * (self.inputs + self.weights) + own + sums + 4 * self.states + products
        requested = tiling.blocks * (self.size * self.inputs + sums + ends + products) + 4 * self.states * tiling.tiles
        requested += self.size * (self.weights_of_heads * of_C + pairs * tiling.rows * tiling.states)
        result = tiling.parts * self.weights * (self.size if tiling.parts == 1 else 4)
        return self.cost(
            read,
            requested,
            result + 4 * self.vectors * tiling.blocks * of_C,
            self.vectors * tiling.blocks,
            2 * self.deep * (self.vectors * tiling.wide + pairs * self.square),
        )

    def grad_steps(self) -> Cost:
        """`4 B L H (4 + J + number of blocks)` bytes."""
        tiling = self.tiling
        rates = 4 * tiling.heads
        read = 4 * (self.vectors * (3 + tiling.tiles + tiling.blocks) - self.of_heads + self.of_heads * self.pieces)
        return self.cost(read + rates, read + rates * self.chunks, 4 * (self.vectors + self.of_heads))


def forward_cost(tiling: Tiling, size: int) -> Cost:
    """Cost of a forward with numbers of `size` bytes.

    To and from the memory `size B L (3 H P + 3 G N)` bytes and `16 B K H P N` for the states (8 of many sequences);
    `B L H (4 N P + 2 T' (N + P))` operations in products, with `T' = (T + ROWS) / 2`.
    """
    numbers = _Numbers(tiling, size)
    return numbers.decay_sums() + numbers.states_before(False) + numbers.chunk_scan()


def backward_cost(tiling: Tiling, size: int) -> Cost:
    """Cost of a backward with numbers of `size` bytes.

    To and from the memory `size B L (8 H P + 8 G N)` bytes, `28 B K H P N` for the states (20 of many sequences),
    and `parts` times B, C and the products in float32; `B L H (8 N P + 2 T' (N + 2 P))` operations in products with
    heads.
    """
    numbers = _Numbers(tiling, size)
    weights = numbers.grad_weights(True) + numbers.grad_weights(False)
    states = numbers.decay_sums() + numbers.states_before(True)
    return states + numbers.grad_inputs() + numbers.grad_products() + weights + numbers.grad_steps()
