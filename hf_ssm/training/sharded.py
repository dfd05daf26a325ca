"""FSDP2 in the Trainer: sharding before the optimizer is created, whole weights in checkpoints, and CPUs.

accelerate knows what was asked for and saves and loads the checkpoints; `hf_ssm.parallel.shard_model` shards.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import StateDictType

from hf_ssm.parallel import shard_model

__all__ = ["enable_sharding", "shard_for_training", "whole_state_dict"]


def enable_sharding(accelerator: Accelerator, plugin_args: dict[str, Any] | None) -> bool:
    """Whether the processes of an accelerator shard the model by FSDP2; makes those on CPUs do so.

    accelerate (1.15, `AcceleratorState.__init__`) reads its FSDP plugin where the processes have GPUs or other
    accelerators only, and would train by DDP on CPUs.

    Args:
        accelerator: The accelerator; its public state changes.
        plugin_args: `TrainingArguments.fsdp_plugin_args`; `None`: `accelerate launch` may ask for FSDP in the
            environment.

    Raises:
        ValueError: FSDP1.
    """
    state: Any = accelerator.state
    plugin = getattr(state, "fsdp_plugin", None)
    requested = plugin_args is not None or os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")
    if plugin is None and requested and state.distributed_type == DistributedType.MULTI_CPU:
        plugin = FullyShardedDataParallelPlugin(**(plugin_args or {}))
        if state.mixed_precision != "no":
            plugin.set_mixed_precision(state.mixed_precision)
        state.fsdp_plugin = plugin
        # Each of both states copies the other one's.
        state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
    if plugin is None:
        return False
    if plugin.fsdp_version != 2:
        raise ValueError(
            f"`fsdp_version`={plugin.fsdp_version} is not supported: use FSDP2, by `accelerate launch --fsdp_version 2` "
            'or TrainingArguments(fsdp=True, fsdp_config={"version": 2}).'
        )
    return True


def shard_for_training(model: Any, accelerator: Accelerator) -> None:
    """Shard a model as the FSDP plugin asks for, before accelerate does.

    accelerate leaves a model as it is that is sharded already. It would round the dynamics, τ and the sampling times to
    the half precision of the projections, and would leave processes with weights of their own.

    Args:
        model: The model of the Trainer.
        accelerator: An accelerator for which `enable_sharding` is true.

    Raises:
        ValueError: `ignored_modules`, which are not supported.
    """
    plugin: Any = accelerator.state.fsdp_plugin
    if plugin.ignored_modules is not None:
        raise ValueError(
            f"`ignored_modules`={plugin.ignored_modules!r} of the FSDP plugin is not supported, as nothing would "
            "average the gradients of these modules: leave it out."
        )
    if plugin.activation_checkpointing:
        # That of accelerate does not restore the random numbers of dropout.
        model.gradient_checkpointing_enable({"use_reentrant": False})
        plugin.activation_checkpointing = False
    # The groups are those of `shard_model`; accelerate would look for classes that have other names once sharded.
    plugin.auto_wrap_policy = None
    mesh: Any = getattr(accelerator, "torch_device_mesh", None)
    policy = plugin.mixed_precision_policy
    shard_model(
        model,
        None if mesh is None else mesh[tuple(accelerator.parallelism_config.fsdp_dim_names)],
        dtype=None if policy is None else policy.param_dtype,
        reshard_after_forward=plugin.reshard_after_forward,
        # On CPUs nothing is elsewhere.
        offload_policy=None if accelerator.device.type == "cpu" else plugin.cpu_offload,
    )


@contextmanager
def whole_state_dict(accelerator: Accelerator) -> Iterator[None]:
    """Have the Trainer save whole weights, which `from_pretrained` loads, also with SHARDED_STATE_DICT."""
    plugin: Any = accelerator.state.fsdp_plugin
    kind = plugin.state_dict_type
    plugin.state_dict_type = StateDictType.FULL_STATE_DICT
    try:
        yield
    finally:
        plugin.state_dict_type = kind
