"""Configuration of the Mamba-3 models."""

import math
from typing import ClassVar

from hf_ssm.models.base.configuration import SSMConfig, strict_config
from hf_ssm.models.base.field_checks import DerivedBool, DerivedInt

# Channels of a head where the sizes allow it, as in the published code.
_CHANNELS_OF_HEAD = 64


@strict_config
class Mamba3Config(SSMConfig):
    r"""
    Mamba-3: scans with one decay per head and token. Three changes to Mamba-2 are flags: `use_trapezoid`,
    `use_rotation` and `mimo_rank`. There is no short convolution; B and C pass through a norm and have a bias for each
    head. See `SSMConfig` for the arguments all families share. `docs/explanation/mamba3.md` has the equations.

    Args:
        hidden_size (`int`, defaults to 128): Channels of the residual stream.
        num_hidden_layers (`int`, defaults to 4): Number of blocks.
        expand (`int`, defaults to 2): Channels D of the scan are expand times hidden_size.
        num_heads (`int`, *optional*), head_dim (`int`, *optional*): Heads, and channels of a head; their product is D.
            One of them follows from the other; `None` for both: 64 channels of a head, or the largest number below that
            divides 64 and D.
        n_groups (`int`, defaults to 1): Groups of heads that share B and C, apart from their biases.
        state_size (`int`, defaults to 64): States N of each channel.
        use_trapezoid (`bool`, defaults to `True`): Generalised trapezoidal discretisation: a step adds the input at its
            end and the input at its beginning, with weights λ and 1 - λ that depend on the token. `False`: λ = 1, the
            discretisation of Mamba-2.
        use_rotation (`bool`, defaults to `True`): Pairs of states turn by an angle that depends on the token, as the
            states of a complex state matrix do. `False`: real states.
        rope_fraction (`float`, defaults to 0.5): Share of the states that turn, with `use_rotation`.
        mimo_rank (`int`, defaults to 1): R, inputs and outputs of each state; 1: one input and one output.
        A_activation (`str`, defaults to `"heavy_tail"`): How A follows from its projection a: `"heavy_tail"`, A =
            -(1 + a) for a >= 0 and -1 / (1 - a) below, as in mamba_ssm since June 2026; `"softplus"`, A = -softplus(a),
            as in its first release and in flash-linear-attention.
        A_floor (`float`, defaults to 1e-4): Least |A|.
        use_bias (`bool`, defaults to `False`): Biases of in- and out-projection.
        chunk_size (`int`, *optional*): Positions of a chunk of the scan (each token has R positions). The size changes
            speed and rounding only; `None`: chosen by the implementation.
        time_step_floor (`float`, defaults to 1e-4): Least initial step size.
        rms_norm (`bool`, defaults to `False`): RMS norm of each head's output before the gate (`is_outproj_norm` of
            mamba_ssm).
        rescale_prenorm_residual (`bool`, defaults to `False`): Divide the initial out-projection by the root of the
            number of layers.
        rescale_init (`bool`, defaults to `False`): As in `SSMConfig`; adds a scale of C to each layer.
        frequency_scale (`float`, defaults to 1.0): α of Yu et al. 2025, eq. (5). The frequencies of Mamba-3 are
            projections of the token; α multiplies the initial weights of this projection. The frequencies are bounded
            by π per unit of time.
        init (`str`, defaults to `"real"`): The only choice, because A is a projection of the token.
        norm_type (`str`, defaults to `"rms"`): Norm of the residual stream.
        residual_in_fp32 (`bool`, *optional*): `None`: true if there is a residual stream.
        tie_word_embeddings (`bool`, defaults to `True`): Share the embedding with the language-model head.
        initializer_range (`float`, defaults to 0.1): Standard deviation of linear layers and embeddings.

    Raises:
        ValueError: As for `SSMConfig`; sizes that do not fit together; α without rotation; a shift of frequencies; a
            Sobolev filter in units of a step size although the step size depends on the token.

    Examples:
        >>> from hf_ssm import Mamba3Config, Mamba3ForCausalLM
        >>> model = Mamba3ForCausalLM(Mamba3Config(hidden_size=64, num_hidden_layers=2, vocab_size=12))
    """

    model_type = "hf_ssm_mamba3"
    attribute_map: ClassVar[dict[str, str]] = {
        **SSMConfig.attribute_map,
        "headdim": "head_dim",
        "nheads": "num_heads",
        "ngroups": "n_groups",
        "is_outproj_norm": "rms_norm",
    }
    field_choices: ClassVar[dict[str, tuple[str | None, ...]]] = {
        **SSMConfig.field_choices,
        "A_activation": ("heavy_tail", "softplus"),
    }
    positive_fields: ClassVar[tuple[str, ...]] = (
        *SSMConfig.positive_fields,
        *("A_floor", "chunk_size", "expand", "head_dim", "mimo_rank", "n_groups", "num_heads", "rope_fraction"),
        "time_step_floor",
    )
    field_ranges: ClassVar[dict[str, tuple[float, float]]] = {
        **SSMConfig.field_ranges,
        "A_floor": (0.0, 1e3),
        "rope_fraction": (0.0, 1.0),
        "time_step_floor": (0.0, 1e3),
    }

    num_hidden_layers: int = 4
    expand: int = 2
    num_heads: DerivedInt = None
    head_dim: DerivedInt = None
    n_groups: int = 1
    use_trapezoid: bool = True
    use_rotation: bool = True
    rope_fraction: float | int = 0.5
    mimo_rank: int = 1
    A_activation: str = "heavy_tail"
    A_floor: float | int = 1e-4
    init: str = "real"
    use_bias: bool = False
    chunk_size: int | None = None
    time_step_floor: float | int = 1e-4
    rms_norm: bool = False
    rescale_prenorm_residual: bool = False
    norm_type: str = "rms"
    residual_in_fp32: DerivedBool = None
    tie_word_embeddings: bool = True
    initializer_range: float | int = 0.1

    def _derive(self) -> None:
        inner = self.intermediate_size
        if self.head_dim is None:
            heads = self.num_heads
            self.head_dim = math.gcd(inner, _CHANNELS_OF_HEAD) if heads is None else inner // max(1, heads)
        if self.num_heads is None:
            self.num_heads = inner // max(1, self.head_dim)
        if self.residual_in_fp32 is None:
            self.residual_in_fp32 = self.use_residual

    def check(self) -> None:
        if not self.use_rotation and self.frequency_scale != 1.0:
            raise ValueError(
                f"`frequency_scale`={self.frequency_scale} multiplies the frequencies of rotated states: set "
                "`use_rotation=True`, or leave `frequency_scale` at 1."
            )
        if self.frequency_shift:
            raise ValueError(
                f"`frequency_shift`={self.frequency_shift} moves initial frequencies, but the frequencies of "
                "Mamba-3 are projections of each token: leave `frequency_shift` at 0."
            )
        super().check()
        if self.num_heads * self.head_dim != self.intermediate_size:
            raise ValueError(
                f"`num_heads`={self.num_heads} times `head_dim`={self.head_dim} must be `expand`={self.expand} times "
                f"`hidden_size`={self.hidden_size}, which is {self.intermediate_size}: give only one of "
                f"`num_heads` and `head_dim`, as a divisor of {self.intermediate_size}."
            )
        if self.num_heads % self.n_groups:
            raise ValueError(f"`n_groups`={self.n_groups} must divide the {self.num_heads} heads (`num_heads`).")
        if self.use_rotation and self.num_rope_angles < 1:
            raise ValueError(
                f"`rope_fraction`={self.rope_fraction} of `state_size`={self.state_size} states is less than one pair: "
                "give more states, or set `use_rotation=False`."
            )
        if self.init != "real":
            raise ValueError(f"`init`={self.init!r} chooses a state matrix, but A depends on the token: use 'real'.")
        if self.discretization != "zoh":
            raise ValueError(
                f"`discretization`={self.discretization!r} must be 'zoh': Mamba-3 uses exp(ΔA), and `use_trapezoid` "
                "chooses the discretisation of the inputs."
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
    def num_rope_angles(self) -> int:
        """K, the number of pairs of states that turn."""
        return int(self.state_size * self.rope_fraction) // 2 if self.use_rotation else 0

    @property
    def stores_pairs(self) -> bool:
        """False: states are real numbers, of which some pairs turn."""
        return False

    @property
    def has_frequencies(self) -> bool:
        """Whether states turn."""
        return self.use_rotation

    @property
    def no_alpha_rule(self) -> str | None:
        """Why there is no rule for the largest useful `frequency_scale`."""
        if self.use_rotation:
            return "the frequencies of Mamba-3 are bounded projections of each token: there is no range of α."
        return "`use_rotation=False` leaves no frequencies to scale."


__all__ = ["Mamba3Config"]
