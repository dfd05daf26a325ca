"""Configuration of the selective state space models."""

from typing import Any, ClassVar

from hf_ssm.models.base.configuration import SSMConfig, strict_config
from hf_ssm.models.base.field_checks import DerivedBool, DerivedFloat, DerivedInt, DerivedStr

# Arguments that only the block "mamba" uses, with their defaults.
_ONLY_MAMBA: dict[str, Any] = {
    "intermediate_size": None,
    "expand": 2,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "use_bias": False,
    "hidden_act": "silu",
    "time_step_rank": "auto",
    "time_step_scale": 1.0,
    "time_step_init_scheme": "random",
    "rescale_prenorm_residual": False,
    "bidirectional_weight_tie": True,
}

# Arguments that only a model of two directions uses, with their defaults.
_ONLY_TWO_SIDED: dict[str, Any] = {"bidirectional_strategy": "add", "bidirectional_weight_tie": True}

# Arguments that have no effect with a fixed step.
_ONLY_STEPS: dict[str, Any] = {"time_step_min": 0.001, "time_step_max": 0.1, "time_step_floor": 1e-4}


@strict_config
class SelectiveSSMConfig(SSMConfig):
    r"""
    Selective state space models: step size, input and output matrices depend on the token. See `SSMConfig` for the
    arguments all families share. The arguments of `transformers.MambaConfig` have the same names here, and checkpoints
    of `MambaForCausalLM` load through `from_pretrained`.

    Args:
        block (`str`, defaults to `"mamba"`): `"mamba"`: in-projection, short convolution, low-rank step projection,
            selective scan, skip, gate, out-projection. `"plain"`: the model of Honarpisheh et al., one scan whose step
            size softplus(p + qᵀu) is shared by all channels, without norm, residual, skip and bias, whose classifier
            reads the last position.
        hidden_size (`int`, defaults to 128): Channels D of the residual stream (block "plain": 16).
        num_hidden_layers (`int`, defaults to 4): Number of blocks (block "plain": 1).
        state_size (`int`, defaults to 16): States N per channel (block "plain": 4); with `complex_state` they are
            stored as N/2 conjugate pairs.
        state_matrix (`str`, defaults to `"neg_exp"`): `"neg_exp"`: Re A = -exp(A_log), stable by construction.
            `"raw"`: A is stored as it is and may be positive.
        complex_state (`bool`, defaults to `False`): Complex A, B and C.
        init (`str`, *optional*): State matrix at initialisation. Real states: `"real"` (the default), -(1 ... N).
            Complex states: `"lin"` (the default), `"legs"`, `"inv"` or `"real"`.
        bidirectional_strategy (`str`, defaults to `"add"`): With `bidirectional=True`: add the outputs of the two
            directions, or multiply them elementwise (`"ew_multiply"`).
        bidirectional_weight_tie (`bool`, defaults to `True`): Both directions have the same in- and out-projection.
        fixed_step (`bool`, defaults to `False`): Step size 1 at every token (block "plain").
        intermediate_size (`int`, *optional*): Channels of the scan; `None`: expand times hidden_size.
        expand (`int`, defaults to 2): See `intermediate_size`.
        conv_kernel (`int`, defaults to 4): Taps of the short convolution.
        use_conv_bias (`bool`, defaults to `True`): Bias of the short convolution.
        use_bias (`bool`, defaults to `False`): Biases of in- and out-projection.
        hidden_act (`str`, defaults to `"silu"`): Activation after the short convolution.
        use_skip (`bool`, *optional*): Feed-through D u; `None`: in the block "mamba" only.
        time_step_rank (`int` or `"auto"`, defaults to `"auto"`): Rank of the step projection; `"auto"`: hidden_size /
            16, rounded up.
        time_step_scale (`float`, defaults to 1.0), time_step_init_scheme (`str`, defaults to `"random"`, or
            `"constant"`): Scale and law of the step projection's initial weights.
        time_step_floor (`float`, defaults to 1e-4): Least initial step size.
        rescale_prenorm_residual (`bool`, defaults to `False`): Divide the initial out-projection by the root of the
            number of layers.
        norm_type (`str`, *optional*): `None`: `"rms"` in the block "mamba", and `"none"` in the block "plain".
        use_residual, residual_in_fp32, classifier_bias, tie_word_embeddings (`bool`, *optional*): `None`: true in the
            block "mamba", false in the block "plain".
        initializer_range (`float`, *optional*): `None`: 0.1 in the block "mamba", and 0.5 in the block "plain", whose
            output is cubic in the embedding.

    Raises:
        ValueError: As for `SSMConfig`; an argument that the block does not use; frequencies for a real state matrix; a
            Sobolev filter in units of a step size although the step size depends on the token.

    Examples:
        >>> from hf_ssm import SelectiveSSMConfig, SelectiveSSMForCausalLM
        >>> model = SelectiveSSMForCausalLM(SelectiveSSMConfig(hidden_size=64, num_hidden_layers=2, vocab_size=12))
    """

    model_type = "hf_ssm_selective"
    attribute_map: ClassVar[dict[str, str]] = {
        **SSMConfig.attribute_map,
        "d_inner": "intermediate_size",
        "d_conv": "conv_kernel",
        "dt_rank": "time_step_rank",
    }

    field_choices: ClassVar[dict[str, tuple[str | None, ...]]] = {
        **SSMConfig.field_choices,
        "block": ("mamba", "plain"),
        "bidirectional_strategy": ("add", "ew_multiply"),
        "state_matrix": ("neg_exp", "raw"),
        "time_step_init_scheme": ("random", "constant"),
    }
    positive_fields: ClassVar[tuple[str, ...]] = (
        *SSMConfig.positive_fields,
        *("conv_kernel", "expand", "intermediate_size", "time_step_floor", "time_step_scale"),
    )

    # Those of Block-Biased Mamba.
    removed_fields: ClassVar[dict[str, Any]] = {"num_blocks": 1, "use_input_bias": False}

    field_ranges: ClassVar[dict[str, tuple[float, float]]] = {
        **SSMConfig.field_ranges,
        "time_step_floor": (0.0, 1e3),
        "time_step_scale": (0.0, 1e6),
    }

    block: str = "mamba"
    hidden_size: DerivedInt = None
    num_hidden_layers: DerivedInt = None
    state_size: DerivedInt = None
    state_matrix: str = "neg_exp"
    complex_state: bool = False
    bidirectional_strategy: str = "add"
    bidirectional_weight_tie: bool = True
    init: DerivedStr = None
    fixed_step: bool = False
    intermediate_size: DerivedInt = None
    expand: int = 2
    conv_kernel: int = 4
    use_conv_bias: bool = True
    use_bias: bool = False
    hidden_act: str = "silu"
    use_skip: DerivedBool = None
    time_step_rank: int | str = "auto"
    time_step_scale: float | int = 1.0
    time_step_init_scheme: str = "random"
    time_step_floor: float | int = 1e-4
    rescale_prenorm_residual: bool = False
    norm_type: DerivedStr = None
    use_residual: DerivedBool = None
    residual_in_fp32: DerivedBool = None
    classifier_bias: DerivedBool = None
    tie_word_embeddings: DerivedBool = None
    initializer_range: DerivedFloat = None

    def _derive(self) -> None:
        mamba = self.block == "mamba"
        defaults: dict[str, Any] = {
            "hidden_size": 128 if mamba else 16,
            "num_hidden_layers": 4 if mamba else 1,
            "state_size": 16 if mamba else 4,
            "init": "lin" if self.complex_state else "real",
            "norm_type": "rms" if mamba else "none",
            "initializer_range": 0.1 if mamba else 0.5,
            **dict.fromkeys(("use_skip", "use_residual", "classifier_bias", "tie_word_embeddings"), mamba),
            "residual_in_fp32": mamba and self.use_residual is not False,
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        if mamba:
            if self.intermediate_size is None:
                self.intermediate_size = self.expand * self.hidden_size
            if self.time_step_rank == "auto":
                self.time_step_rank = -(-self.hidden_size // 16)

    def check(self) -> None:
        super().check()
        self._check_plain() if self.block == "plain" else self._check_mamba()
        for name, default in _ONLY_TWO_SIDED.items():
            if not self.bidirectional and getattr(self, name) != default:
                raise ValueError(
                    f"`{name}`={getattr(self, name)!r} joins two directions: set `bidirectional=True`, or leave out "
                    f"`{name}`."
                )
        self.check_products()
        if self.discretization != "zoh":
            raise ValueError(
                f"`discretization`={self.discretization!r} must be 'zoh': a selective model uses exp(ΔA) and ΔB, as "
                "published."
            )
        if not self.complex_state and self.init != "real":
            raise ValueError(
                f"`init`={self.init!r} has complex eigenvalues: set `complex_state=True`, or use init='real'."
            )
        if self.has_sobolev_filter and self.sobolev_frequency != "normalized" and not self.fixed_step:
            raise ValueError(
                f"`sobolev_frequency`={self.sobolev_frequency!r} measures frequencies in units of the step size, which "
                "depends on the token: use 'normalized'."
            )

    def _check_plain(self) -> None:
        unused = _ONLY_MAMBA | (_ONLY_STEPS if self.fixed_step else {})
        for name, default in unused.items():
            if getattr(self, name) != default:
                raise ValueError(
                    f"`{name}`={getattr(self, name)!r} has no meaning with `block='plain'` and "
                    f"`fixed_step={self.fixed_step}`: leave out `{name}`."
                )

    def _check_mamba(self) -> None:
        if self.fixed_step:
            raise ValueError("`fixed_step=True` is for `block='plain'`, got `block='mamba'`: leave one of the two out.")
        if not isinstance(self.time_step_rank, int) or self.time_step_rank < 1:
            raise ValueError(f"`time_step_rank` must be a positive number or 'auto', got {self.time_step_rank!r}.")
        if self.expand != 2 and self.intermediate_size != self.expand * self.hidden_size:
            raise ValueError(
                f"`expand`={self.expand} times `hidden_size`={self.hidden_size} is not `intermediate_size`="
                f"{self.intermediate_size}: give only one of `expand` and `intermediate_size`."
            )

    @property
    def sobolev_step(self) -> float:
        """1: frequencies of a Sobolev filter are in units of positions."""
        return 1.0

    @property
    def stores_pairs(self) -> bool:
        """Whether states are complex and one of each conjugate pair is stored."""
        return self.complex_state

    @property
    def no_alpha_rule(self) -> str | None:
        """Why there is no rule for the largest useful `frequency_scale`; `None` if there is one."""
        if self.fixed_step:
            return (
                f"`init`={self.init!r} has no frequencies to scale, or the step size is fixed: there is no range of α."
            )
        return super().no_alpha_rule

    @property
    def default_pooling(self) -> str:
        """Pooling of the sequence classifier if `pooling` is `None`."""
        return "last" if self.block == "plain" else "mean"


__all__ = ["SelectiveSSMConfig"]
