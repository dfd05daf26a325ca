"""Declaration and launch of Triton kernels.

A kernel is declared with its launch configurations and with examples of the types of its arguments. The first
configuration is the default; `HF_SSM_AUTOTUNE=1` measures all of them at the first call with other values of `key`.
The examples are what `benchmarks/kernels.py` compiles ahead of time for several GPUs, without having one.

With `TRITON_INTERPRET=1`, set before Triton is imported, kernels run on CPU tensors in Triton's interpreter.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from hf_ssm.ops.context import in_function_transform

__all__ = ["INTERPRETED", "KERNELS", "Kernel", "config", "kernel", "product_precision", "runs_kernels"]

INTERPRETED: bool = knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, on the CPU."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)
_MIN_CAPABILITY = (8, 0)

KERNELS: dict[str, "Kernel"] = {}
"""All declared kernels, by operation and function, such as `"short_conv.convolve"`."""


def config(*, num_warps: int = 4, num_stages: int = 2, **constants: Any) -> triton.Config:
    """A launch configuration: values of constants of the kernel, and the resources of a program."""
    return triton.Config(constants, num_warps=num_warps, num_stages=num_stages)


class Kernel:
    """A Triton function and how it is launched.

    Attributes:
        name: Operation and function.
        function: The result of `triton.jit`.
        configs: Launch configurations, the default first.
        key: Arguments by whose values autotuning distinguishes calls.
        examples: By label, types or constants of all arguments that the configurations leave open: see `kernel`.
        zeroed: Arguments that are zero before a launch.
    """

    def __init__(
        self,
        name: str,
        function: Any,
        configs: Sequence[triton.Config],
        key: Sequence[str],
        examples: Mapping[str, Mapping[str, Any]],
        zeroed: Sequence[str] = (),
    ):
        self.name, self.function, self.configs, self.key, self.examples = name, function, configs, key, examples
        self.zeroed = zeroed
        self._tuned: Any = None

    def launch(self, grid: tuple[int, ...] | Callable[[Mapping[str, Any]], tuple[int, ...]], **arguments: Any) -> None:
        """Run the kernel on the device of its tensors.

        Args:
            grid: Number of programs along up to three axes, or a function of the constants that returns it.
            **arguments: All arguments of the function but those of the configuration. An empty grid launches nothing.
        """
        first = next(value for value in arguments.values() if isinstance(value, Tensor))
        chosen = self.configs[0]
        constants = {**arguments, **chosen.kwargs}
        size = grid(constants) if callable(grid) else grid
        if 0 in size:
            return
        with _device_of(first):
            if _autotunes() and len(self.configs) > 1:
                if self._tuned is None:
                    options = {"configs": list(self.configs), "key": list(self.key), "pre_hook": self._reset}
                    self._tuned = triton.autotune(**options)(self.function)
                self._tuned[grid](**arguments)
                return
            resources = {} if INTERPRETED else {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
            self.function[size](**constants, **resources)

    def _reset(self, arguments: Mapping[str, Any], reset_only: bool = False) -> None:
        """Called by autotuning before each run that it measures and, with `reset_only`, before the final one."""
        for name in self.zeroed:
            if arguments[name] is not None:
                arguments[name].zero_()


def kernel(
    configs: Sequence[triton.Config],
    examples: Mapping[str, Mapping[str, Any]],
    key: Sequence[str] = (),
    zeroed: Sequence[str] = (),
) -> Callable[[Any], Kernel]:
    """Decorator above `triton.jit` that declares a kernel.

    Args:
        configs: Launch configurations, the default first; it must compile without spilled registers.
        examples: By label, for each argument that is in no configuration a type of Triton, such as `"*bf16"` for a
            pointer or `"i32"` for an integer, or else the value of a constant; `None` for an absent pointer. Pointers
            are taken to be aligned to 16 bytes, and integers written as `"i32:16"` to be multiples of 16, as Triton
            finds out at a launch.
        key: Arguments by whose values autotuning distinguishes calls.
        zeroed: Tensors that must be zero before a launch, since some configurations do not write all their elements.
            Autotuning, which runs several configurations one after the other, sets them to zero before each.
    """

    def declare(function: Any) -> Kernel:
        plain = function.fn
        operation = plain.__module__.rsplit(".", 2)[-2]
        made = Kernel(f"{operation}.{plain.__name__.strip('_')}", function, configs, key, examples, zeroed)
        if made.name in KERNELS and KERNELS[made.name].function.fn.__module__ == plain.__module__:
            raise ValueError(f"the kernel {made.name} is declared twice")
        KERNELS[made.name] = made
        return made

    return declare


def _autotunes() -> bool:
    return not INTERPRETED and os.environ.get("HF_SSM_AUTOTUNE", "0") not in ("", "0")


def _device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device_of(tensor) if tensor.is_cuda else nullcontext()


def product_precision() -> str:
    """`input_precision` of `tl.dot` for float32 matrices: that of torch, exact unless the user allows TF32."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def runs_kernels(*tensors: Tensor | None, dtypes: Sequence[torch.dtype] = _DTYPES) -> bool:
    """Whether kernels can compute with these tensors.

    They need an NVIDIA GPU from compute capability 8.0 on or an AMD GPU, dtypes among `dtypes` (by default single and
    half precision), and no transform of `torch.func`. Integer and bool tensors of any kind are accepted.
    """
    present = [t for t in tensors if t is not None]
    for t in present:
        if (t.is_floating_point() or t.is_complex()) and t.dtype not in dtypes:
            return False
    if in_function_transform() or not present:
        return False
    return INTERPRETED or _is_supported(present[0].device.index)


# torch.compile runs the function while it traces.
@torch.compiler.assume_constant_result
def _is_supported(index: int | None) -> bool:
    # Fake tensors may be on a device that the machine does not have.
    if not torch.cuda.is_available():
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability(index) >= _MIN_CAPABILITY
