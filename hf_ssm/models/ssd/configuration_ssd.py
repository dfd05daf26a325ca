"""Configuration of the Mamba-2 models (state space duality)."""

import math
from typing import ClassVar

from hf_ssm.models.base.configuration import SSMConfig, strict_config
from hf_ssm.models.base.field_checks import DerivedBool, DerivedInt, DerivedStr

# Channels of a head where the sizes allow it, as in the published models.
_HEAD_DIM = 64


@strict_config
class SSDConfig(SSMConfig):
    r"""
    Mamba-2: scans with one decay per head, whose input and output matrices are shared by groups of heads. See
    `SSMConfig` for the arguments all families share. The arguments of `transformers.Mamba2Config` have the same names
    here, and checkpoints of `Mamba2ForCausalLM` and of `state-spaces/mamba2-*` load through `from_pretrained`.

    Args:
        hidden_size (`int`, defaults to 128): Channels of the residual stream.
        num_hidden_layers (`int`, defaults to 4): Number of blocks.
        expand (`int`, defaults to 2): Channels D of the scan are expand times hidden_size.
        num_heads (`int`, *optional*), head_dim (`int`, *optional*): Heads, and channels of a head; their product is D.
            One of them follows from the other; `None` for both: 64 channels of a head, or the largest number below that
            divides 64 and D.
        n_groups (`int`, defaults to 1): Groups of heads that share B and C; the norm before the out-projection is
            computed for the channels of each group by itself.
        state_size (`int`, defaults to 64): States N of each channel.
        complex_state (`bool`, defaults to `False`): Rotated states: pairs of states turn with a frequency of the head,
            by an angle that is proportional to the step size. This corresponds to a complex state matrix with N/2
            eigenvalues.
        init (`str`, *optional*): State matrix at initialisation: `"real"`, -1, -2, ... for the heads, the default and
            only choice for real states; with `complex_state`, `"lin"` (the default), `"legs"`, `"inv"` or `"real"`.
        conv_kernel (`int`, defaults to 4): Taps of the short convolution of the scan's input, B and C.
        use_conv_bias (`bool`, defaults to `True`): Bias of the short convolution.
        use_bias (`bool`, defaults to `False`): Biases of in- and out-projection.
        hidden_act (`str`, defaults to `"silu"`): Activation after the short convolution.
        chunk_size (`int`, *optional*): Positions of a chunk of the scan. The size changes speed and rounding only;
            `None`: chosen by the implementation.
        time_step_limit (`tuple` of two `float`, defaults to `(0.0, inf)`): Least and greatest step size. The step sizes
            are clamped to this range at every token, also in decoding.
        time_step_floor (`float`, defaults to 1e-4): Least initial step size.
        rms_norm (`bool`, defaults to `True`): RMS norm of the gated output before the out-projection.
        norm_before_gate (`bool`, defaults to `False`): Apply the gate after this norm instead of before it.
        bidirectional_norm_tie (`bool`, defaults to `True`): With `bidirectional=True`: one norm, of the sum of both
            directions; false: each direction is gated and normalised by itself before the sum, as in PlantCAD2.
        D_has_hdim (`bool`, defaults to `False`): A feed-through for each channel instead of each head.
        rescale_prenorm_residual (`bool`, defaults to `False`): Divide the initial out-projection by the root of the
            number of layers.
        rescale_init (`bool`, defaults to `False`): As in `SSMConfig`; adds a scale of C to each layer.
        norm_type (`str`, defaults to `"rms"`): Norm of the residual stream.
        residual_in_fp32 (`bool`, *optional*): `None`: true if there is a residual stream.
        tie_word_embeddings (`bool`, defaults to `True`): Share the embedding with the language-model head.
        initializer_range (`float`, defaults to 0.1): Standard deviation of linear layers and embeddings.

    Raises:
        ValueError: As for `SSMConfig`; sizes that do not fit together; frequencies for real states; a Sobolev filter in
            units of a step size although the step size depends on the token.

    Examples:
        >>> from hf_ssm import SSDConfig, SSDForCausalLM
        >>> model = SSDForCausalLM(SSDConfig(hidden_size=64, num_hidden_layers=2, vocab_size=12))
    """

    model_type = "hf_ssm_ssd"
    attribute_map: ClassVar[dict[str, str]] = {
        **SSMConfig.attribute_map,
        "d_conv": "conv_kernel",
        "headdim": "head_dim",
        "nheads": "num_heads",
        "ngroups": "n_groups",
        "dt_limit": "time_step_limit",
    }
    positive_fields: ClassVar[tuple[str, ...]] = (
        *SSMConfig.positive_fields,
        *("chunk_size", "conv_kernel", "expand", "head_dim", "n_groups", "num_heads", "time_step_floor"),
    )

    field_ranges: ClassVar[dict[str, tuple[float, float]]] = {
        **SSMConfig.field_ranges,
        "time_step_floor": (0.0, 1e3),
    }

    num_hidden_layers: int = 4
    expand: int = 2
    num_heads: DerivedInt = None
    head_dim: DerivedInt = None
    n_groups: int = 1
    complex_state: bool = False
    init: DerivedStr = None
    conv_kernel: int = 4
    use_conv_bias: bool = True
    use_bias: bool = False
    hidden_act: str = "silu"
    chunk_size: int | None = None
    time_step_limit: list[float | int] | tuple[float | int, ...] = (0.0, math.inf)
    time_step_floor: float | int = 1e-4
    rms_norm: bool = True
    norm_before_gate: bool = False
    bidirectional_norm_tie: bool = True
    D_has_hdim: bool = False
    rescale_prenorm_residual: bool = False
    norm_type: str = "rms"
    residual_in_fp32: DerivedBool = None
    tie_word_embeddings: bool = True
    initializer_range: float | int = 0.1

    def _derive(self) -> None:
        inner = self.intermediate_size
        if self.head_dim is None:
            heads = self.num_heads
            self.head_dim = math.gcd(inner, _HEAD_DIM) if heads is None else inner // max(1, heads)
        if self.num_heads is None:
            self.num_heads = inner // max(1, self.head_dim)
        if self.init is None:
            self.init = "lin" if self.complex_state else "real"
        if self.residual_in_fp32 is None:
            self.residual_in_fp32 = self.use_residual
        # JSON makes a list of it.
        self.time_step_limit = tuple(self.time_step_limit)

    def check(self) -> None:
        super().check()
        if self.num_heads * self.head_dim != self.intermediate_size:
            raise ValueError(
                f"`num_heads`={self.num_heads} times `head_dim`={self.head_dim} must be `expand`={self.expand} times "
                f"`hidden_size`={self.hidden_size}, which is {self.intermediate_size}: give only one of "
                f"`num_heads` and `head_dim`, as a divisor of {self.intermediate_size}."
            )
        if self.num_heads % self.n_groups:
            raise ValueError(f"`n_groups`={self.n_groups} must divide the {self.num_heads} heads (`num_heads`).")
        limit = self.time_step_limit
        if len(limit) != 2 or not 0 <= limit[0] <= limit[1] or limit[0] == math.inf:
            raise ValueError(
                f"`time_step_limit` must be the least and the greatest step size, 0 <= low <= high, got {limit}."
            )
        if self.norm_before_gate and not self.rms_norm:
            raise ValueError("`norm_before_gate=True` needs `rms_norm=True`: there is no norm to apply.")
        if not self.bidirectional_norm_tie and not (self.bidirectional and self.rms_norm):
            raise ValueError(
                "`bidirectional_norm_tie=False` gives each direction a norm of its own: set `bidirectional=True` and "
                "`rms_norm=True`, or leave out `bidirectional_norm_tie`."
            )
        if self.discretization != "zoh":
            raise ValueError(
                f"`discretization`={self.discretization!r} must be 'zoh': Mamba-2 uses exp(ΔA) and ΔB, as published."
            )
        if not self.complex_state and self.init != "real":
            raise ValueError(
                f"`init`={self.init!r} has complex eigenvalues: set `complex_state=True`, or use init='real'."
            )
        if self.has_sobolev_filter and self.sobolev_frequency != "normalized":
            raise ValueError(
                f"`sobolev_frequency`={self.sobolev_frequency!r} measures frequencies in units of the step size, which "
                "depends on the token: use 'normalized'."
            )

    @property
    def sobolev_step(self) -> float:
        """1: frequencies of a Sobolev filter are in units of positions."""
        return 1.0

    @property
    def intermediate_size(self) -> int:
        """Channels D of the scan."""
        size: int = self.expand * self.hidden_size
        return size

    @property
    def stores_pairs(self) -> bool:
        """Whether states come in pairs."""
        return self.complex_state


__all__ = ["SSDConfig"]
