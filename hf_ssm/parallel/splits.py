"""Split parameters: how they are cut, linear maps of them, and state dicts of whole parameters.

Legend: `n` processes of a group.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = [
    "Part",
    "Ranks",
    "Split",
    "gathered",
    "named_splits",
    "split_",
    "split_inputs",
    "split_outputs",
    "split_rows",
    "sum_other_gradients_",
    "summed",
    "take_channels",
]


class Ranks(NamedTuple):
    """The processes that share a model.

    Attributes:
        group: Their process group.
        rank: The number of this one.
        size: n.
    """

    group: Any
    rank: int
    size: int

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        raise TypeError(
            "A model that is split over processes cannot be copied, because copies of its parameters lose the sums of "
            "their gradients: build a second model, load the `state_dict()` of this model, and split the second model."
        )

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up a contiguous tensor over the processes, in place."""
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, of the same shape."""
        tensor = tensor.contiguous()
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(tensors, tensor, group=self.group)
        return tensors


class _Sum(torch.autograd.Function):
    """A sum over processes, in the forward pass (`sums_values`), the backward pass (`sums_gradients`) or in each."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, ranks: Ranks, sums_values: bool, sums_gradients: bool) -> Tensor:
        ctx.ranks, ctx.sums_gradients = ranks, sums_gradients
        return ranks.sum_(value.clone(memory_format=torch.contiguous_format)) if sums_values else value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.sums_gradients:
            grad = ctx.ranks.sum_(grad.clone(memory_format=torch.contiguous_format))
        return grad, None, None, None


class _Gather(torch.autograd.Function):
    """The channels of all processes, side by side along the last dimension."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return torch.cat(ranks.gather(value), dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.chunk(ctx.ranks.size, dim=-1)[ctx.ranks.rank], None


def summed(value: Tensor, ranks: Ranks, *, values: bool = False, gradients: bool = False) -> Tensor:
    """`value`, added up over the processes in the forward pass (`values`) or the backward pass (`gradients`).

    What all processes compute alike needs sums of values only: each has the whole gradient. What each uses for its own
    channels needs sums of gradients.
    """
    total: Tensor = _Sum.apply(value, ranks, values, gradients)
    return total


def take_channels(value: Tensor, ranks: Ranks) -> Tensor:
    """The channels `(..., D / n)` of this process, from all of them, `(..., D)`."""
    return summed(value, ranks, gradients=True).chunk(ranks.size, dim=-1)[ranks.rank]


def gathered(value: Tensor, ranks: Ranks) -> Tensor:
    """All channels `(..., D)`, from those of each process, `(..., D / n)`."""
    whole: Tensor = _Gather.apply(value, ranks)
    return whole


class Part(NamedTuple):
    """Consecutive entries of a dimension.

    Attributes:
        size: Their number in the whole parameter.
        is_split: Whether each process has its share of them; otherwise all have all of them.
    """

    size: int
    is_split: bool = True


class Split(NamedTuple):
    """How a parameter is cut along a dimension.

    Attributes:
        ranks: The processes.
        dim: The dimension.
        parts: What the whole parameter stacks along it.
    """

    ranks: Ranks
    dim: int
    parts: tuple[Part, ...]

    def local(self, whole: Tensor) -> Tensor:
        """The entries of this process; a copy, so that the memory of the others is freed."""
        pieces = []
        for piece, part in zip(whole.split([part.size for part in self.parts], self.dim), self.parts, strict=True):
            pieces.append(piece.chunk(self.ranks.size, self.dim)[self.ranks.rank] if part.is_split else piece)
        return torch.cat(pieces, self.dim)

    def whole(self, local: Tensor) -> Tensor:
        """The whole parameter; all processes have to call this together."""
        pieces = zip(*map(self.pieces, self.ranks.gather(local)), strict=True)
        wholes = [
            torch.cat(same, self.dim) if part.is_split else same[0]
            for same, part in zip(pieces, self.parts, strict=True)
        ]
        return torch.cat(wholes, self.dim)

    def pieces(self, local: Tensor) -> tuple[Tensor, ...]:
        """The entries of each part that a process holds."""
        sizes = [part.size // self.ranks.size if part.is_split else part.size for part in self.parts]
        return local.split(sizes, self.dim)

    def with_summed_copies(self, grad: Tensor) -> Tensor:
        """A gradient in which that of entries which all processes hold is added up over them."""
        pieces = [
            piece if part.is_split else self.ranks.sum_(piece.clone(memory_format=torch.contiguous_format))
            for piece, part in zip(self.pieces(grad), self.parts, strict=True)
        ]
        return torch.cat(pieces, self.dim)


_SPLITS = "_tensor_parallel_splits"


def splits_of(module: nn.Module) -> dict[str, Split]:
    """The splits of the module's own parameters, by name."""
    splits: dict[str, Split] = module.__dict__.get(_SPLITS, {})
    return splits


def split_(module: nn.Module, name: str, ranks: Ranks, dim: int, parts: Sequence[Part] | None = None) -> None:
    """Keep the entries of this process of a parameter or buffer; state dicts still have the whole of it.

    Args:
        module: Owner of the parameter.
        name: Its name; nothing is done where the module has none.
        ranks: The processes.
        dim: The dimension of the channels.
        parts: What it stacks along this dimension. Default: one part, which is split.
    """
    whole = getattr(module, name, None)
    if whole is None:
        return
    split = Split(ranks, dim, tuple(parts or (Part(whole.shape[dim]),)))
    local = split.local(whole.detach())
    if isinstance(whole, nn.Parameter):
        parameter = nn.Parameter(local, requires_grad=whole.requires_grad)
        setattr(module, name, parameter)
        if parameter.requires_grad and not all(part.is_split for part in split.parts):
            parameter.register_hook(split.with_summed_copies)
    else:
        setattr(module, name, local)
    if not splits_of(module):
        module.__dict__[_SPLITS] = {}
        module.register_state_dict_post_hook(_make_whole)
        module.register_load_state_dict_pre_hook(_take_local)
    splits_of(module)[name] = split


def sum_other_gradients_(module: nn.Module, ranks: Ranks) -> None:
    """Add up the gradients of parameters that all processes hold, and that each uses for its own channels."""

    def sum_over_processes(grad: Tensor) -> Tensor:
        return ranks.sum_(grad.clone(memory_format=torch.contiguous_format))

    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if name not in splits_of(owner) and parameter.requires_grad:
                parameter.register_hook(sum_over_processes)


def _make_whole(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    for name, split in splits_of(module).items():
        if (key := prefix + name) in state_dict:
            state_dict[key] = split.whole(state_dict[key].detach())


def _take_local(module: nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
    for name, split in splits_of(module).items():
        whole = state_dict.get(prefix + name)
        # Another shape is an error of `load_state_dict`, which names both.
        if whole is not None and whole.shape[split.dim] == sum(part.size for part in split.parts):
            state_dict[prefix + name] = split.local(whole)


def named_splits(model: nn.Module) -> Iterator[tuple[nn.Parameter, Split | None]]:
    """The parameters of a model, each with its split, or `None` where all processes hold the whole of it."""
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter, splits_of(module).get(name)


class _SplitLinear(nn.Linear):
    """A linear map of which each process has some of the outputs (or inputs), with the parameters of a whole one."""

    def __init__(self, linear: nn.Linear, ranks: Ranks):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.ranks = linear.weight, ranks
        self.register_parameter("bias", linear.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, weight={tuple(self.weight.shape)} of {self.ranks.size} processes"


class _OutputsSplit(_SplitLinear):
    """`(..., D)` on all processes to the outputs of this one."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(summed(inputs, self.ranks, gradients=True))


class _InputsSplit(_SplitLinear):
    """The channels of this process to the sum over all of them, on all processes."""

    # Whether each process uses the outputs for channels of its own.
    sums_gradients = False

    def forward(self, inputs: Tensor) -> Tensor:
        products = nn.functional.linear(inputs, self.weight)
        output = summed(products, self.ranks, values=True, gradients=self.sums_gradients)
        return output if self.bias is None else output + self.bias


def split_outputs(owner: nn.Module, name: str, ranks: Ranks, parts: Sequence[Part] | None = None) -> None:
    """Keep the outputs of this process of a linear map, `owner.name`; see `split_` for the parts."""
    linear = getattr(owner, name, None)
    if linear is not None:
        setattr(owner, name, _OutputsSplit(linear, ranks))
        split_rows(getattr(owner, name), ranks, parts)


def split_inputs(owner: nn.Module, name: str, ranks: Ranks) -> None:
    """Keep the inputs of this process of a linear map, `owner.name`, whose outputs are added up."""
    linear = getattr(owner, name, None)
    if linear is not None:
        setattr(owner, name, _InputsSplit(linear, ranks))
        split_(getattr(owner, name), "weight", ranks, 1)


def split_rows(module: nn.Module | None, ranks: Ranks, parts: Sequence[Part] | None = None) -> None:
    """Weight and bias of a linear map or a depth-wise convolution."""
    if module is not None:
        split_(module, "weight", ranks, 0, parts)
        split_(module, "bias", ranks, 0, parts)
