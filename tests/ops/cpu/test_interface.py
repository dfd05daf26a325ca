"""The calls of the compiled kernels, which code saved with a checkpoint makes as well."""

import inspect

from hf_ssm.ops import cpu_kernels
from hf_ssm.ops.cpu import INTERFACE

# With any change here, `INTERFACE` and `cpu_kernels._INTERFACE` go up by one.
KERNELS = {
    "BlockOptions": "norm epsilon norm_first residual logarithmic",
    "BlockWeights": (
        "norm_weight norm_bias in_weight in_bias conv_weight conv_bias x_weight dt_weight dt_bias A "
        "skip out_weight out_bias"
    ),
    "BlocksStep": "weights options final_norm",
    "can_transpose": "tensors",
    "copy_transposed": "source target",
    "fused_selective_scan": "tensors initial_state mask delta_softplus",
    "scan_step": "u d A B C state D z",
    "short_conv_after": "u weight bias mask past silu",
    "short_conv_compiled": "u weight bias mask left silu",
}


def test_the_signatures_of_the_compiled_kernels_are_those_of_this_interface():
    assert INTERFACE == cpu_kernels._INTERFACE == 1
    assert set(KERNELS) == set(cpu_kernels.__all__) - {"AVAILABLE"}
    found = {name: inspect.signature(getattr(cpu_kernels, name)).parameters for name in KERNELS}
    assert {name: " ".join(parameters) for name, parameters in found.items()} == KERNELS
