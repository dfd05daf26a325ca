"""Converter of the state dicts of `state-spaces/s4` (S4D and S4).

Legend: `H` channels, `P` stored conjugate pairs (half of the state size), `S` systems, each shared by `H / S` channels,
`M` kernels per channel, `R` rank of the low-rank term, `W` width of the output's linear map, `C` input channels, `K`
classes. The real part of the eigenvalues is -exp(`log_A_real`), and the step size exp(`log_dt`): the defaults of that
library, which its files do not record.
"""

import re
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_ssm.models.base.converter import EMPTY, Converter, Fields, Tensors, check_tensors, rename
from hf_ssm.models.s4.modeling_s4 import S4ForSequenceClassification
from hf_ssm.ops.lti.discretize import bilinear_dense
from hf_ssm.ops.lti.dplr import dplr_dense

__all__ = ["CONVERTERS", "ConvertedLayer", "S4Converter", "layer_from_state_dict"]


# Names of a layer in any version of `state-spaces/s4`, as regular expressions, and one name for each.
_LAYER_NAMES = {
    r"^layer\.": "",
    r"^kernel\.kernel\.": "kernel.",
    r"^kernel\.inv_dt$": "kernel.log_dt",
    r"^kernel\.(log_w|inv_w|inv_A|A)_real$": "kernel.log_A_real",
    r"^kernel\.w_imag$": "kernel.A_imag",
    # The number of taps L for which S4 stores C as C (1 - Ā^L).
    r"^kernel\.l_kernel$": "kernel.L",
}
# Computed from other tensors, or never read.
_DERIVED = frozenset({"kernel.omega", "kernel.z", "kernel.A"})

_STEP = re.compile(r"(^|\.)kernel\.(kernel\.)?(log_dt|inv_dt)$")
_LAYER = re.compile(r"s4_layers\.(\d+)\.")


class ConvertedLayer(NamedTuple):
    """A converted layer.

    Attributes:
        parameters: By their names in `S4Mixer`.
        options: Arguments of its `S4Config`.
    """

    parameters: dict[str, Tensor]
    options: dict[str, Any]


class S4Converter(Converter):
    """Converts state dicts of the model in the example of `state-spaces/s4` (`S4Model`).

    The classifier reads `input_values` `(B, L, C)`. It has an encoder, layers with residual sums and layer norms, the
    mean over the sequence, and a decoder. Dropout, which the file does not record, is 0.

    Options: `norm_first`, whether the norms precede the layers (`--prenorm` of the example); `discretization`, `"zoh"`
    or `"bilinear"`, by default that of the version.
    """

    name = "state-spaces/s4"
    options = ("norm_first", "discretization")
    heads = {"": S4ForSequenceClassification}
    names = {
        r"^encoder\.": "model.input_projection.",
        r"^norms\.(\d+)\.": r"model.layers.\1.norm1.",
        r"^decoder\.": "classifier.",
    }

    def recognises(self, config: Fields, names: Collection[str]) -> bool:
        return any(_STEP.search(name) for name in names)

    def convert_config(self, config: Fields, tensors: Tensors = EMPTY) -> dict[str, Any]:
        """Return the arguments of the `S4Config`.

        Raises:
            ValueError: Tensors that are missing, unknown, of another shape or not finite; layers of different kinds.
        """
        layers = _layers_of(tensors, config.get("discretization"))
        for index, layer in enumerate(layers):
            if layer.options != layers[0].options:
                raise ValueError(
                    f"s4_layers.{index} differs from the first layer: {layer.options} and {layers[0].options}"
                )
        shapes: dict[str, tuple[str | int, ...]] = {"encoder.weight": ("H", "C"), "encoder.bias": ("H",)}
        for index in range(len(layers)):
            shapes |= {f"norms.{index}.weight": ("H",), f"norms.{index}.bias": ("H",)}
        shapes |= {"decoder.weight": ("K", "H"), "decoder.bias": ("K",)}
        outside = {name: tensor for name, tensor in tensors.items() if not _LAYER.match(name)}
        sizes = check_tensors(outside, shapes, "the example of state-spaces/s4")
        return {
            **layers[0].options,
            "num_input_channels": sizes["C"],
            "num_hidden_layers": len(layers),
            "num_labels": sizes["K"],
            "pooling": "mean",
            "norm_first": config.get("norm_first", False),
            "use_final_norm": False,
        }

    def convert_weights(self, tensors: Tensors, found: Fields, config: Any) -> dict[str, Tensor]:
        weights = rename({name: tensor for name, tensor in tensors.items() if not _LAYER.match(name)}, self.names)
        for index, layer in enumerate(_layers_of(tensors)):
            weights |= {f"model.layers.{index}.mixer.{name}": tensor for name, tensor in layer.parameters.items()}
        return weights


def layer_from_state_dict(
    state_dict: Tensors, *, prefix: str = "", discretization: str | None = None
) -> ConvertedLayer:
    """Convert one layer of `state-spaces/s4`: S4D or S4 with its feed-through and its (gated) linear output.

    The result computes the same function up to the length that an S4 layer was made for (`l_max`). Beyond it, the
    kernel of `state-spaces/s4` is cut off, and that of the result continues.

    Args:
        state_dict: `D`, `output_linear.0.weight` (with a gated linear unit) or `output_linear.weight`, and what is
            below `kernel.` (or `kernel.kernel.`, `layer.kernel.`): `C` `(H, P, 2)` or `(M, H, P, 2)`, the step size
            `log_dt`, the eigenvalues `log_A_real` and `A_imag` `(S, P)`, under the names of any version; `B`
            `(S, P, 2)` and `P` `(1, S, P, 2)` in the versions that have them.
        prefix: Prefix of these names in messages.
        discretization: `"zoh"` or `"bilinear"`; default: that of the version.

    Returns:
        The parameters of an `S4Mixer` and the arguments of its configuration.

    Raises:
        ValueError: Tensors that are missing, unknown, of another shape or not finite; a layer of several heads
            (`channels`), or of a rank above 1.

    Source: Gu, Goel & Ré 2022 (S4), Section 3; Gu et al. 2022 (S4D), Section 3.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        short = name
        for pattern, replacement in _LAYER_NAMES.items():
            short = re.sub(pattern, replacement, short)
        if short in tensors:
            raise ValueError(f"{prefix}{name} occurs twice, under two names")
        if short not in _DERIVED:
            tensors[short] = _without_ones(short, tensor)
    kernel = {name.rpartition("kernel.")[2] for name in state_dict}
    is_s4 = bool({"P", "L", "l_kernel"} & kernel)
    output = "output_linear" if "output_linear.weight" in tensors else "output_linear.0"
    # Only the first versions of S4D have no B.
    has_inputs = is_s4 or not {"log_A_real", "log_w_real"} & kernel
    sizes = _check_layer(tensors, output, is_s4, has_inputs, prefix)
    real = tensors["kernel.log_A_real"]
    parts = {
        "log_dt": tensors["kernel.log_dt"],
        "log_A_real": real,
        # The last versions store the other one of each conjugate pair.
        "A_imag": (-1 if "inv_dt" in kernel else 1) * tensors["kernel.A_imag"],
        "B": tensors["kernel.B"] if has_inputs else torch.stack([torch.ones_like(real), torch.zeros_like(real)], -1),
        "C": tensors["kernel.C"],
    }
    if is_s4:
        parts["P"] = tensors["kernel.P"][0]
        taps = _taps(tensors["kernel.L"], f"{prefix}kernel.L")
        parts["C"] = _of_any_length(parts, sizes["H"] // sizes["S"], taps, f"{prefix}kernel.C")
    parameters = {
        **{f"long_conv.filter.{name}": value for name, value in parts.items()},
        "long_conv.D": tensors["D"][0],
        "out_proj.weight": tensors[f"{output}.weight"],
        "out_proj.bias": tensors[f"{output}.bias"],
    }
    # The defaults of the versions, which the files do not record.
    is_bilinear = is_s4 or "inv_A_real" in kernel
    options = {
        "hidden_size": sizes["H"],
        "state_size": 2 * sizes["P"],
        "kernel_type": "s4" if is_s4 else "s4d",
        "n_ssm": None if sizes["S"] == sizes["H"] else sizes["S"],
        "discretization": discretization or ("bilinear" if is_bilinear else "zoh"),
        "bidirectional": sizes["M"] == 2,
        "output_glu": output == "output_linear.0",
    }
    return ConvertedLayer({name: value.contiguous() for name, value in parameters.items()}, options)


def _without_ones(name: str, tensor: Tensor) -> Tensor:
    """Add or remove the dimension of size 1 in which versions differ."""
    wanted = {"D": 2, "kernel.C": 4, "kernel.B": 3, "kernel.log_dt": 1}
    dimensions = 2 if name.endswith(".weight") else wanted.get(name, tensor.dim())
    if tensor.dim() == dimensions - 1:
        return tensor.unsqueeze(0)
    if tensor.dim() == dimensions + 1:
        return tensor.squeeze(0 if name == "kernel.B" else -1)
    return tensor


def _check_layer(tensors: Tensors, output: str, is_s4: bool, has_inputs: bool, prefix: str) -> dict[str, int]:
    """Return the sizes by their letters."""
    length = tensors.get("kernel.L") if is_s4 else None
    shapes: dict[str, tuple[str | int, ...]] = {
        "kernel.C": ("M", "H", "P", 2),
        "D": ("heads", "H"),
        "kernel.log_dt": ("H",),
        "kernel.log_A_real": ("S", "P"),
        "kernel.A_imag": ("S", "P"),
        f"{output}.weight": ("W", "H"),
        f"{output}.bias": ("W",),
        **({"kernel.B": ("S", "P", 2)} if has_inputs else {}),
        **({"kernel.P": ("R", "S", "P", 2)} if is_s4 else {}),
        # An integer, which is read apart; without it, it is named as missing.
        **({"kernel.L": ()} if is_s4 and length is None else {}),
    }
    sizes = check_tensors(
        {prefix + name: tensor for name, tensor in tensors.items() if tensor is not length},
        {prefix + name: letters for name, letters in shapes.items()},
        "a layer of S4",
    )
    if sizes["heads"] != 1 or sizes["M"] not in (1, 2) or sizes.get("R", 1) != 1:
        raise ValueError(
            f"{prefix}kernel.C has {sizes['M']} and {prefix}D {sizes['heads']} rows, {prefix}kernel.P has the rank "
            f"{sizes.get('R', 0)}: a layer of several heads (`channels`), or of a rank above 1, cannot be converted"
        )
    if sizes["H"] % sizes["S"]:
        raise ValueError(f"{prefix}kernel.log_A_real has {sizes['S']} rows, which do not divide {sizes['H']}")
    if sizes["W"] != sizes["H"] * (2 if output == "output_linear.0" else 1):
        raise ValueError(
            f"{prefix}{output}.weight has {sizes['W']} rows for {sizes['H']} channels: only a gated linear unit (twice "
            "as many, `output_linear.0`) or a linear map alone (as many, `output_linear`) can be converted"
        )
    return sizes


def _taps(length: Tensor, name: str) -> int:
    """Return the number of taps in a tensor."""
    if length.numel() != 1 or length.is_meta or length.is_floating_point() or length.is_complex():
        raise ValueError(f"{name} must be one integer, got {tuple(length.shape)} of {length.dtype}")
    taps = int(length.item())
    if taps < 0:
        raise ValueError(f"{name} must be a number of taps, got {taps}")
    return taps


def _of_any_length(filter: Tensors, copies: int, taps: int, name: str) -> Tensor:
    """Return C `(M, H, P, 2)` from the C̃ = C (1 - Ā^L) that S4 trains; with `taps` 0 (a fresh layer), C̃ is C.

    `copies` is H / S.

    Source: Gu, Goel & Ré 2022 (S4), Appendix C.3.
    """
    if taps == 0:
        return filter["C"]
    exact = {key: value.double() for key, value in filter.items()}
    for key in ("log_A_real", "A_imag", "B", "P"):
        exact[key] = exact[key].repeat(copies, *[1] * (exact[key].dim() - 1))
    b, c, p = (torch.view_as_complex(exact[key].contiguous()) for key in ("B", "C", "P"))
    eigenvalues = torch.complex(-exact["log_A_real"].exp(), exact["A_imag"])
    matrix, inputs, _ = dplr_dense(eigenvalues, p, b, b)
    discrete, _ = bilinear_dense(matrix, inputs, exact["log_dt"].exp())
    # Transposed, as C multiplies from the left.
    factor = torch.eye(matrix.shape[-1], dtype=matrix.dtype) - torch.linalg.matrix_power(discrete, taps).mT
    rows = torch.cat([c, c.conj()], dim=-1).unsqueeze(-1)
    try:
        solved = torch.linalg.solve(factor, rows)[..., : c.shape[-1], 0]
    except torch.linalg.LinAlgError as error:
        raise ValueError(f"{name} does not determine a kernel of any length: 1 - Ā^{taps} is singular") from error
    found = torch.view_as_real(solved).to(filter["C"].dtype)
    if not found.isfinite().all():
        raise ValueError(f"{name}, for any length, holds NaN or infinite values")
    return found


def _layers_of(tensors: Tensors, discretization: str | None = None) -> list[ConvertedLayer]:
    """Convert the layers."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _LAYER.match(name):
            found.setdefault(int(match[1]), {})[name[match.end() :]] = tensor
    if not found:
        raise ValueError(
            "a state dict of the example of state-spaces/s4 has `encoder`, `s4_layers`, `norms` and `decoder`; convert "
            "a single layer with `hf_ssm.models.s4.convert_s4.layer_from_state_dict`"
        )
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"`s4_layers` must be numbered from 0 without gaps, got {sorted(found)}")
    return [
        layer_from_state_dict(found[index], prefix=f"s4_layers.{index}.", discretization=discretization)
        for index in range(len(found))
    ]


CONVERTERS = (S4Converter(),)
