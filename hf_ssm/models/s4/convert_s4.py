"""Converter of the state dicts of `state-spaces/s4` (S4D and S4).

Legend: `H` channels, `P` stored conjugate pairs (half of the state size), `S` systems, each shared by `H / S` channels,
`M` kernels per channel, `R` rank of the low-rank term, `W` width of the output's linear map, `C` input channels, `K`
classes.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_ssm.models.base.converter import Converter, check_names, check_tensor, check_tensors, widest
from hf_ssm.models.s4.configuration_s4 import S4Config
from hf_ssm.models.s4.modeling_s4 import S4ForSequenceClassification
from hf_ssm.ops.lti.discretize import bilinear_dense
from hf_ssm.ops.lti.dplr import dplr_dense

__all__ = ["CONVERTERS", "ConvertedLayer", "S4Converter", "layer_from_state_dict"]


class _Layout(NamedTuple):
    """Names of the kernel's parameters in one version of `state-spaces/s4`.

    The real part of the eigenvalues is -exp(`real`), and the step size exp(`step`): the defaults of that library, which
    its files do not record. The discretisation is not recorded either; `discretization` is the default of the version.
    """

    step: str
    real: str
    imag: str
    discretization: str = "zoh"
    inputs: bool = True
    # Number of taps L for which C is stored as C (1 - Ā^L).
    length: str | None = None
    # Sign of the stored imaginary part.
    sign: int = 1

    @property
    def low_rank(self) -> bool:
        return self.length is not None

    @property
    def names(self) -> list[str]:
        found = ["C", self.step, self.real, self.imag]
        return found + ["B"] * self.inputs + (["P", self.length] if self.length is not None else [])


_LAYOUTS = (
    # models/s4/s4d.py, and before it the first stand-alone S4D.
    _Layout("log_dt", "log_A_real", "A_imag", inputs=False),
    _Layout("log_dt", "log_w_real", "w_imag", inputs=False),
    # Versions 3 and 4 of S4D.
    _Layout("log_dt", "inv_A_real", "A_imag", "bilinear"),
    _Layout("inv_dt", "A_real", "A_imag", sign=-1),
    # Versions 2, 3 and 4 of S4.
    _Layout("log_dt", "log_w_real", "w_imag", "bilinear", length="L"),
    _Layout("log_dt", "inv_w_real", "w_imag", "bilinear", length="L"),
    _Layout("inv_dt", "A_real", "A_imag", "bilinear", length="l_kernel", sign=-1),
)

# Computed from other tensors, or never read.
_DERIVED = frozenset({"kernel.omega", "kernel.z", "kernel.A"})

_STEP = re.compile(r"(^|\.)kernel\.(kernel\.)?(log_dt|inv_dt)$")
_LAYER = re.compile(r"s4_layers\.(\d+)\.")


class ConvertedLayer(NamedTuple):
    """One converted layer.

    Attributes:
        parameters: By their names in `S4Mixer`.
        options: Arguments of its `S4Config`.
    """

    parameters: dict[str, Tensor]
    options: dict[str, Any]


class S4Converter(Converter):
    """Converts state dicts of the model in the example of `state-spaces/s4` (`S4Model`)."""

    name = "state-spaces/s4"
    options = ("norm_first", "discretization")

    def recognises(self, config: Mapping[str, Any], names: Collection[str]) -> bool:
        return any(_STEP.search(name) for name in names)

    def convert(
        self,
        state_dict: Mapping[str, Tensor],
        config: Mapping[str, Any] | None = None,
        *,
        norm_first: bool = False,
        discretization: str | None = None,
        **unused: Any,
    ) -> S4ForSequenceClassification:
        """Convert a state dict to a classifier that reads `input_values` `(B, L, C)`.

        The classifier has an encoder, layers with residual sums and layer norms, the mean over the sequence, and a
        decoder. Dropout, which the file does not record, is 0. The type is that of the tensors, at least float32.

        Args:
            state_dict: `encoder.weight` `(H, C)`, `encoder.bias`, `norms.i.weight`, `norms.i.bias`, `decoder.weight`
                `(K, H)`, `decoder.bias`, and the layers `s4_layers.i.`, see `layer_from_state_dict`. All names may
                begin with `module.`.
            config: Unused.
            norm_first: Whether the norms precede the layers (`--prenorm` of the example).
            discretization: `"zoh"` or `"bilinear"`; default: that of the version.

        Raises:
            ValueError: Tensors that are missing, unknown, of another shape or not finite; layers of different kinds.
        """
        if state_dict and all(name.startswith("module.") for name in state_dict):
            state_dict = {name.removeprefix("module."): tensor for name, tensor in state_dict.items()}
        layers = _layers_of(state_dict)
        outside = {name: tensor for name, tensor in state_dict.items() if not _LAYER.match(name)}
        shapes: dict[str, tuple[str | int, ...]] = {"encoder.weight": ("H", "C"), "encoder.bias": ("H",)}
        for index in range(len(layers)):
            shapes |= {f"norms.{index}.weight": ("H",), f"norms.{index}.bias": ("H",)}
        shapes |= {"decoder.weight": ("K", "H"), "decoder.bias": ("K",)}
        check_names(outside, shapes, "the example of state-spaces/s4")
        parts = [
            layer_from_state_dict(layer, prefix=f"s4_layers.{index}.", discretization=discretization)
            for index, layer in enumerate(layers)
        ]
        options = parts[0].options
        for index, part in enumerate(parts):
            if part.options != options:
                raise ValueError(f"s4_layers.{index} differs from the first layer: {part.options} and {options}")
        sizes = check_tensors(outside, shapes, {"H": options["hidden_size"]})
        arguments: dict[str, Any] = {
            "num_input_channels": sizes["C"],
            "num_hidden_layers": len(parts),
            "num_labels": sizes["K"],
            "pooling": "mean",
            "norm_first": norm_first,
            "use_final_norm": False,
        }
        model = S4ForSequenceClassification(S4Config(**arguments, **options))
        if widest(state_dict.values()) == torch.float64:
            model.double()
        model.load_state_dict(_rename(outside, [part.parameters for part in parts]))
        return model.eval()


def layer_from_state_dict(
    state_dict: Mapping[str, Tensor], *, prefix: str = "", discretization: str | None = None
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
    tensors = _canonical(state_dict, prefix)
    layout = _layout_of(tensors)
    glu = "output_linear.weight" not in tensors
    output = "output_linear.0" if glu else "output_linear"
    expected = ["D", f"{output}.weight", f"{output}.bias", *(f"kernel.{name}" for name in layout.names)]
    check_names(
        (prefix + name for name in tensors.keys() - _DERIVED), (prefix + name for name in expected), "a layer of S4"
    )
    tensors = {name: _without_ones(name, tensors[name]) for name in expected}
    sizes = _check_layer(tensors, layout, output, glu, prefix)
    two_sided = sizes["M"] == 2
    filter_parameters = _filter(tensors, layout, sizes, prefix)
    parameters = {
        **{f"long_conv.filter.{name}": value for name, value in filter_parameters.items()},
        "long_conv.D": tensors["D"][0],
        "out_proj.weight": tensors[f"{output}.weight"],
        "out_proj.bias": tensors[f"{output}.bias"],
    }
    options = {
        "hidden_size": sizes["H"],
        "state_size": 2 * sizes["P"],
        "kernel_type": "s4" if layout.low_rank else "s4d",
        "n_ssm": None if sizes["S"] == sizes["H"] else sizes["S"],
        "discretization": discretization or layout.discretization,
        "bidirectional": two_sided,
        "output_glu": glu,
    }
    return ConvertedLayer({name: value.contiguous() for name, value in parameters.items()}, options)


def _canonical(state_dict: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors by the names that all versions share."""
    found: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        short = name.removeprefix("layer.").replace("kernel.kernel.", "kernel.", 1)
        if short in found:
            raise ValueError(f"{prefix}{name} occurs twice, under two names")
        found[short] = tensor
    return found


def _layout_of(tensors: Mapping[str, Tensor]) -> _Layout:
    """The layout with the most names in common and the fewest missing."""
    kernel = {name.removeprefix("kernel.") for name in tensors if name.startswith("kernel.")}
    return max(_LAYOUTS, key=lambda layout: len(kernel & {*layout.names}) - len({*layout.names} - kernel))


def _without_ones(name: str, tensor: Tensor) -> Tensor:
    """Add or remove the dimension of size 1 in which versions differ."""
    wanted = {"D": 2, "kernel.C": 4, "kernel.B": 3, "kernel.log_dt": 1, "kernel.inv_dt": 1}
    dimensions = 2 if name.endswith(".weight") else wanted.get(name, tensor.dim())
    if tensor.dim() == dimensions - 1:
        return tensor.unsqueeze(0)
    if tensor.dim() == dimensions + 1:
        return tensor.squeeze(0 if name == "kernel.B" else -1)
    return tensor


def _check_layer(tensors: Mapping[str, Tensor], layout: _Layout, output: str, glu: bool, prefix: str) -> dict[str, int]:
    """Sizes by their letters."""
    shapes: dict[str, tuple[str | int, ...]] = {
        "kernel.C": ("M", "H", "P", 2),
        "D": ("heads", "H"),
        f"kernel.{layout.step}": ("H",),
        f"kernel.{layout.real}": ("S", "P"),
        f"kernel.{layout.imag}": ("S", "P"),
        f"{output}.weight": ("W", "H"),
        f"{output}.bias": ("W",),
    }
    if layout.inputs:
        shapes["kernel.B"] = ("S", "P", 2)
    if layout.low_rank:
        shapes["kernel.P"] = ("R", "S", "P", 2)
    sizes = check_tensors(
        {prefix + name: tensor for name, tensor in tensors.items()},
        {prefix + name: letters for name, letters in shapes.items()},
    )
    if sizes["heads"] != 1 or sizes["M"] not in (1, 2):
        raise ValueError(
            f"{prefix}kernel.C has {sizes['M']} and {prefix}D {sizes['heads']} rows: a layer of several heads "
            "(`channels`) cannot be converted"
        )
    if sizes.get("R", 1) != 1:
        raise ValueError(f"{prefix}kernel.P has the rank {sizes['R']}: only rank 1 can be converted")
    if sizes["H"] % sizes["S"]:
        raise ValueError(f"{prefix}kernel.{layout.real} has {sizes['S']} rows, which do not divide {sizes['H']}")
    if sizes["W"] != sizes["H"] * (2 if glu else 1):
        raise ValueError(
            f"{prefix}{output}.weight has {sizes['W']} rows for {sizes['H']} channels: only a gated linear unit (twice "
            "as many, `output_linear.0`) or a linear map alone (as many, `output_linear`) can be converted"
        )
    return sizes


def _filter(tensors: Mapping[str, Tensor], layout: _Layout, sizes: Mapping[str, int], prefix: str) -> dict[str, Tensor]:
    """The parameters of the `StateSpaceFilter`; channel h uses the system h mod S in both libraries."""
    real = tensors[f"kernel.{layout.real}"]
    found = {
        "log_dt": tensors[f"kernel.{layout.step}"],
        "log_A_real": real,
        "A_imag": layout.sign * tensors[f"kernel.{layout.imag}"],
        "B": tensors["kernel.B"]
        if layout.inputs
        else torch.stack([torch.ones_like(real), torch.zeros_like(real)], dim=-1),
        "C": tensors["kernel.C"],
    }
    if layout.length is not None:
        found["P"] = tensors["kernel.P"][0]
        taps = _taps(tensors[f"kernel.{layout.length}"], f"{prefix}kernel.{layout.length}")
        found["C"] = _of_any_length(found, sizes["H"] // sizes["S"], taps, f"{prefix}kernel.C")
    return found


def _taps(length: Tensor, name: str) -> int:
    """The number of taps in a tensor."""
    if length.numel() != 1 or length.is_meta or length.is_floating_point() or length.is_complex():
        raise ValueError(f"{name} must be one integer, got {tuple(length.shape)} of {length.dtype}")
    taps = int(length.item())
    if taps < 0:
        raise ValueError(f"{name} must be a number of taps, got {taps}")
    return taps


def _of_any_length(filter: Mapping[str, Tensor], copies: int, taps: int, name: str) -> Tensor:
    """C `(M, H, P, 2)` from the C̃ = C (1 - Ā^L) that S4 trains; with `taps` 0 (a fresh layer), C̃ is C.

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
    check_tensor(f"{name}, for any length,", found)
    return found


def _layers_of(state_dict: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Tensors of each layer, without the prefix."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state_dict.items():
        match = _LAYER.match(name)
        if match:
            found.setdefault(int(match[1]), {})[name[match.end() :]] = tensor
    if not found:
        raise ValueError(
            "a state dict of the example of state-spaces/s4 has `encoder`, `s4_layers`, `norms` and `decoder`; convert "
            "a single layer with `hf_ssm.models.s4.convert_s4.layer_from_state_dict`"
        )
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"`s4_layers` must be numbered from 0 without gaps, got {sorted(found)}")
    return [found[index] for index in range(len(found))]


def _rename(outside: Mapping[str, Tensor], layers: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    found = {}
    for name in ("weight", "bias"):
        found[f"model.input_projection.{name}"] = outside[f"encoder.{name}"]
        found[f"classifier.{name}"] = outside[f"decoder.{name}"]
        for index in range(len(layers)):
            found[f"model.layers.{index}.norm1.{name}"] = outside[f"norms.{index}.{name}"]
    for index, layer in enumerate(layers):
        found |= {f"model.layers.{index}.mixer.{name}": tensor for name, tensor in layer.items()}
    return found


CONVERTERS = (S4Converter(),)
