"""Tensor parallelism: each process computes a part of the channels of every layer.

Legend: `B` batch, `L` length, `D` channels, `n` processes.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from hf_ssm.models.hyena.modeling_hyena import HyenaMixer
from hf_ssm.models.s4.modeling_s4 import S4Mixer
from hf_ssm.models.selective.mixer_selective import SelectiveMixer
from hf_ssm.models.ssd.modeling_ssd import SSDMixer
from hf_ssm.modules.block import MLP, Block
from hf_ssm.modules.filters.implicit import ImplicitFilter
from hf_ssm.modules.filters.sinusoid import SinusoidFilter
from hf_ssm.modules.filters.state_space import StateSpaceFilter
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.modules.norms import GatedRMSNorm, MaskedBatchNorm
from hf_ssm.modules.operator import SequenceOperator
from hf_ssm.modules.projection import OutputProjection
from hf_ssm.modules.rows import Reading
from hf_ssm.modules.selective_scan import SelectiveScan
from hf_ssm.modules.ssd import SSDScan
from hf_ssm.parallel.splits import (
    Part,
    Ranks,
    gathered,
    named_splits,
    split_,
    split_inputs,
    split_outputs,
    split_rows,
    sum_other_gradients_,
    summed,
    take_channels,
)
from hf_ssm.utils.processes import Processes, has_whole_parameters

__all__ = ["clip_grad_norm_", "tensor_parallel"]


def tensor_parallel(model: nn.Module, mesh: DeviceMesh | None = None) -> nn.Module:
    """Split the channels of every layer over processes, in place; the numbers stay those of one process.

    Each process keeps 1/n of the projections, kernels, scans and MLPs, and computes 1/n of their channels (heads in
    Mamba-2). Embedding, norms and head are whole everywhere. All processes read the same batch, and compute the same
    loss, τ and generated tokens; random numbers (dropout, sampling) need the same seed in all of them. Every process
    has the gradient of its own parameters; clip their norm by `hf_ssm.parallel.clip_grad_norm_`.

    `state_dict()`, and so `save_pretrained`, collects whole weights, and `load_state_dict` takes them: all processes
    have to call them together, and `save_pretrained(folder, is_main_process=rank == 0)` writes one file. Loading is as
    always, before this call. The plans of transformers (`from_pretrained(..., distributed_config=...)`) cut linear maps
    into equal parts, and know neither the unequal parts of these models nor their operators; so they have none.

    Traffic: with a batch of B L tokens and hidden size H, each mixer adds up B L H numbers over the processes in the
    forward pass and as many in the backward pass, and so does each MLP; a scan of Mamba also its step sizes, B and C,
    B L (R + 2 N), twice, and the norm of Mamba-2 with one group B L. With a layer whose output is not projected, all
    outputs are gathered, B L H.

    Supported are Hyena, S4 and S4D, the selective models and Mamba-2, all heads, padding, packing and caches. Operators
    of other families need a method `channel_axes()`, which returns the dimension of the channels of each of their
    parameters by name; their projections stay whole. S5 is refused: each of its outputs depends on all channels.

    Args:
        model: A model of hf_ssm, on the device of this process.
        mesh: One-dimensional, of all processes of the run. Default: all processes, which are joined if a launcher such
            as `torchrun` has started them and nothing has joined them yet.

    Returns:
        The model itself.

    Raises:
        ValueError: Channels, heads or groups that cannot be divided by n; a mesh with other processes beside it; a
            layer that cannot be split (S5, ConvS5), batch norms, adapters; a model that is split or sharded
            already, or whose sequences are shared.

    `DistributedDataParallel`, and so a Trainer of several processes, refuses a split model.
    """
    ranks = _ranks(mesh)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    _check(model, blocks, ranks)
    if ranks.size == 1:
        return model
    for block in blocks:
        split_mixer = _MIXERS.get(type(block.mixer), _split_operators)
        split_mixer(block.mixer, ranks)
        if isinstance(block.mlp, MLP):
            _split_mlp(block.mlp, ranks)
    # DistributedDataParallel would give all processes the parameters of the first one. With nothing left, it refuses.
    ignored: Any = [name for name, _ in model.named_parameters()]
    model._ddp_params_and_buffers_to_ignore = ignored
    return model


@torch.no_grad()
def clip_grad_norm_(model: nn.Module, max_norm: float) -> Tensor:
    """Scale the gradients of a split model so that their norm, that of whole parameters, is at most `max_norm`.

    All processes have to call this together.

    Args:
        model: A result of `tensor_parallel`.
        max_norm: The largest norm.

    Returns:
        The norm before, a scalar.
    """
    pairs = [(parameter, split) for parameter, split in named_splits(model) if parameter.grad is not None]
    ranks = next((split.ranks for _, split in pairs if split is not None), Ranks(None, 0, 1))
    norm_squared: Any = torch.zeros((), dtype=torch.float64, device=pairs[0][0].device if pairs else None)
    for parameter, split in pairs:
        grad: Any = parameter.grad
        whole_parts = (Part(0, is_split=False),)
        pieces = (grad,) if split is None else split.pieces(grad)
        for piece, part in zip(pieces, whole_parts if split is None else split.parts, strict=True):
            # What all processes hold counts once.
            if part.is_split or ranks.rank == 0:
                norm_squared = norm_squared + piece.double().square().sum()
    norm = (norm_squared if ranks.size == 1 else ranks.sum_(norm_squared)).sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter, _ in pairs:
        grad = parameter.grad
        grad.mul_(factor.to(grad.dtype))
    return norm


# The processes


def _ranks(mesh: DeviceMesh | None) -> Ranks:
    if mesh is None:
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return Ranks(None, 0, 1)
        if not dist.is_initialized():
            dist.init_process_group()
        return Ranks(dist.group.WORLD, dist.get_rank(), dist.get_world_size())
    if mesh.ndim != 1 or mesh.size() != dist.get_world_size():
        raise ValueError(
            f"`mesh` must have one dimension with all {dist.get_world_size()} processes, got the shape "
            f"{tuple(mesh.shape)}: τ and the Trainer treat other processes as processes with other rows. Leave "
            "out `mesh`."
        )
    return Ranks(mesh.get_group(), mesh.get_local_rank(), mesh.size())


def _check(model: nn.Module, blocks: Sequence[Block], ranks: Ranks) -> None:
    """Raise `ValueError` for a model that cannot be split, before any of it is changed."""
    if not blocks or any(named_split is not None for _, named_split in named_splits(model)):
        raise ValueError(
            f"{type(model).__name__} is {'split already' if blocks else 'not a model of hf_ssm'}: give a whole model "
            "of hf_ssm."
        )
    if not has_whole_parameters(model):
        raise ValueError(f"{type(model).__name__} is sharded by FSDP2: call `tensor_parallel` on a whole model.")
    if any(getattr(module, "sharing", None) is not None for module in model.modules()):
        raise ValueError(
            "The processes share sequences (`split_sequences`), but those of `tensor_parallel` read the same "
            "positions: call `join_sequences` first."
        )
    if any(isinstance(module, MaskedBatchNorm) for module in model.modules()):
        raise ValueError(
            "`norm_type='batch'` takes the statistics over all processes, as if each process had other rows: use "
            "'layer' or 'rms'."
        )
    for block in blocks:
        for name, size in _sizes(block).items():
            if size % ranks.size:
                raise ValueError(
                    f"`{name}`={size} cannot be divided by {ranks.size} processes: choose a number of processes that "
                    "divides it."
                )
        mixer: Any = block.mixer
        for name in ("in_proj", "out_proj", "reverse_in_proj", "reverse_out_proj"):
            kind = type(getattr(mixer, name, None))
            if type(mixer) in _MIXERS and kind not in (nn.Linear, OutputProjection, nn.Identity, type(None)):
                raise ValueError(f"`{name}` is a {kind.__name__}: merge adapters, and split before quantisation.")


def _sizes(block: Block) -> dict[str, int]:
    """What has to be divisible by the number of processes, by the name of the field of the configuration."""
    mixer: Any = block.mixer
    sizes: dict[str, int] = {}
    mlp: Any = block.mlp
    if mlp is not None and hasattr(mlp, "fc2"):
        sizes["intermediate_size"] = mlp.fc1.out_features
    if isinstance(mixer, SSDMixer):
        groups = mixer.scan.groups_of_heads
        # One group is that of all heads; more groups are divided with their heads.
        return sizes | {"num_heads": mixer.heads} | ({} if groups == 1 else {"n_groups": groups})
    if isinstance(mixer, SelectiveMixer):
        if not isinstance(mixer.scan, SelectiveScan):
            raise ValueError(
                "A model with `num_blocks` above 1 or `use_input_bias=True` is not split over processes: shard its "
                "parameters by FSDP2 instead."
            )
        return sizes | {"hidden_size" if mixer.in_proj is None else "intermediate_size": mixer.scan.channels}
    if not _operators(mixer):
        raise ValueError(
            f"{type(mixer).__name__} cannot be split over processes: shard the model's parameters by FSDP2 instead."
        )
    for operator in _operators(mixer):
        if type(mixer) not in _MIXERS and not hasattr(operator, "channel_axes"):
            raise ValueError(
                f"{type(operator).__name__} cannot be split over processes, because each output depends on all "
                "channels, or because it has no method `channel_axes`: shard its parameters by FSDP2 instead."
            )
        sizes["hidden_size"] = operator.channels // operator.groups
        filter = getattr(operator, "filter", None)
        if isinstance(filter, StateSpaceFilter) and filter.copies < filter.channels:
            # Channel c uses copy c mod `n_ssm`.
            sizes["hidden_size / n_ssm"] = filter.channels // filter.copies
    return sizes


def _operators(mixer: nn.Module) -> list[SequenceOperator]:
    return [module for module in mixer.modules() if isinstance(module, SequenceOperator)]


# Operators


def _split_mlp(mlp: MLP, ranks: Ranks) -> None:
    names = [name for name, layer in mlp.named_children() if isinstance(layer, nn.Linear)]
    # Pairs of maps; the last one of an odd number stays whole.
    for first, second in zip(names[::2], names[1::2], strict=False):
        split_outputs(mlp, first, ranks)
        split_inputs(mlp, second, ranks)


def _tau(operator: SequenceOperator, ranks: Ranks, reading: Reading, processes: Processes | None = None) -> Tensor:
    """τ of all channels: the mean over processes, which have equally many; their rows are the same."""
    return summed(type(operator).tau(operator, reading), ranks, values=True) / ranks.size


def _split_operator(operator: Any, ranks: Ranks, axes: dict[str, int]) -> None:
    """Keep the channels of this process, `axes` by name of the parameter; all of them use the others."""
    operator.channels //= ranks.size
    operator.tau = partial(_tau, operator, ranks)
    for name, dim in axes.items():
        path, _, own = name.rpartition(".")
        split_(operator.get_submodule(path), own, ranks, dim)
    sum_other_gradients_(operator, ranks)


def _split_state_space(filter: StateSpaceFilter, ranks: Ranks) -> dict[str, int]:
    axes = {"log_dt": 0, "C": 1}
    if filter.copies < filter.channels:
        return axes
    filter.copies //= ranks.size
    return axes | dict.fromkeys(("log_A_real", "A_imag", "B", "P"), 0)


def _split_implicit(filter: ImplicitFilter, ranks: Ranks) -> dict[str, int]:
    channels = filter.channels
    if not filter.has_stored_positions:
        size = channels // ranks.size
        filter.rates = slice(ranks.rank * size, (ranks.rank + 1) * size)
    split_(filter, f"weight_{len(filter.sizes) - 2}", ranks, 0, [Part(channels)] * filter.directions)
    filter.sizes[-1] //= ranks.size
    return {"decay_rates": 0}


# Functions that return the dimension of the channels in the parameters of a filter.
_FILTERS: dict[type, Callable[[Any, Ranks], dict[str, int]]] = {
    StateSpaceFilter: _split_state_space,
    ImplicitFilter: _split_implicit,
    SinusoidFilter: lambda filter, ranks: {"amplitudes": 2, "frequencies": 2},
}


def _split_long_convolution(operator: LongConvolution, ranks: Ranks) -> None:
    filter: Any = operator.filter
    axes = _FILTERS[type(filter)](filter, ranks)
    filter.channels //= ranks.size
    _split_operator(operator, ranks, {"D": 0, "sobolev_order": 0} | {f"filter.{name}": axes[name] for name in axes})


def _split_selective_scan(scan: SelectiveScan, ranks: Ranks) -> None:
    split_inputs(scan, "x_proj", ranks)
    projection: Any = scan.x_proj
    # Δ, B and C are those of all channels.
    projection.sums_gradients = True
    scan.state_shape = scan.state_shape[0] // ranks.size, scan.state_shape[1]
    axes = dict.fromkeys(("A", "A_log", "A_imag", "D", "sobolev_order"), 0)
    if scan.dt_proj is not None:
        axes |= {"dt_proj.weight": 0, "dt_bias": 0}
    _split_operator(scan, ranks, axes)


def _split_ssd_scan(scan: SSDScan, ranks: Ranks) -> None:
    scan.heads //= ranks.size
    if scan.groups_of_heads > 1:
        scan.groups_of_heads //= ranks.size
    _split_operator(scan, ranks, {name: 0 for name, _ in scan.named_parameters()})


# Mixers


def _takes_channels(ranks: Ranks, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return take_channels(args[0], ranks), *args[1:]


def _gathers(ranks: Ranks, module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return gathered(output, ranks)


def _split_s4(mixer: S4Mixer, ranks: Ranks) -> None:
    mixer.long_conv.register_forward_pre_hook(partial(_takes_channels, ranks))
    _split_long_convolution(mixer.long_conv, ranks)
    split_inputs(mixer, "out_proj", ranks)


def _split_hyena(mixer: HyenaMixer, ranks: Ranks) -> None:
    streams = [Part(mixer.in_proj.out_features // (mixer.order + 1))] * (mixer.order + 1)
    split_outputs(mixer, "in_proj", ranks, streams)
    split_rows(mixer.short_filter, ranks, streams)
    _split_long_convolution(mixer.long_conv, ranks)
    if isinstance(mixer.out_proj, nn.Linear):
        split_inputs(mixer, "out_proj", ranks)
    else:
        mixer.out_proj.register_forward_hook(partial(_gathers, ranks))


def _split_selective(mixer: SelectiveMixer, ranks: Ranks) -> None:
    halves = [Part(mixer.scan.channels)] * 2
    for direction in ("", "reverse_") if mixer.bidirectional else ("",):
        scan = getattr(mixer, f"{direction}scan")
        split_outputs(mixer, f"{direction}in_proj", ranks, halves)
        split_rows(getattr(mixer, f"{direction}conv1d"), ranks)
        _split_selective_scan(scan, ranks)
        split_inputs(mixer, f"{direction}out_proj", ranks)
        if mixer.in_proj is None:
            scan.register_forward_pre_hook(partial(_takes_channels, ranks))
            scan.register_forward_hook(partial(_gathers, ranks))


class _SplitGatedNorm(GatedRMSNorm):
    """The norm of one group of channels that several processes share."""

    def __init__(self, norm: GatedRMSNorm, ranks: Ranks):
        nn.Module.__init__(self)
        self.weight, self.ranks = norm.weight, ranks
        self.groups, self.epsilon, self.norm_before_gate = norm.groups, norm.epsilon, norm.norm_before_gate

    def normed(self, hidden_states: Tensor) -> Tensor:
        squares = hidden_states.square().mean(-1, keepdim=True)
        mean_square = summed(squares, self.ranks, values=True, gradients=True) / self.ranks.size
        return hidden_states * torch.rsqrt(mean_square + self.epsilon)


def _split_ssd(mixer: SSDMixer, ranks: Ranks) -> None:
    has_groups = mixer.scan.groups_of_heads > 1
    matrices = [Part(mixer.matrix_size, is_split=has_groups)] * 2
    mixed = [Part(mixer.inner), *matrices]
    split_outputs(mixer, "in_proj", ranks, [Part(mixer.inner), *mixed, Part(mixer.heads)])
    for direction in ("", "reverse_") if mixer.bidirectional else ("",):
        norm = getattr(mixer, f"{direction}norm")
        if norm is not None:
            norm = norm if has_groups else _SplitGatedNorm(norm, ranks)
            norm.groups //= ranks.size if has_groups else 1
            split_(norm, "weight", ranks, 0)
            setattr(mixer, f"{direction}norm", norm)
        split_rows(getattr(mixer, f"{direction}conv1d"), ranks, mixed)
        _split_ssd_scan(getattr(mixer, f"{direction}scan"), ranks)
    mixer.inner //= ranks.size
    mixer.heads //= ranks.size
    mixer.matrix_size //= ranks.size if has_groups else 1
    mixer.mixed = mixer.inner + 2 * mixer.matrix_size
    split_inputs(mixer, "out_proj", ranks)


def _split_operators(mixer: nn.Module, ranks: Ranks) -> None:
    """The operators of a mixer of another family; its projections stay whole."""
    for operator in _operators(mixer):
        axes: Any = operator.channel_axes
        _split_operator(operator, ranks, axes())
        operator.register_forward_pre_hook(partial(_takes_channels, ranks))
        operator.register_forward_hook(partial(_gathers, ranks))


_MIXERS: dict[type, Callable[[Any, Ranks], None]] = {
    S4Mixer: _split_s4,
    HyenaMixer: _split_hyena,
    SelectiveMixer: _split_selective,
    SSDMixer: _split_ssd,
}
