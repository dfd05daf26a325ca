"""Configuration of FlowState, a forecaster of numeric series."""

from collections.abc import Mapping
from typing import Any, ClassVar

from hf_ssm.models.base.configuration import SSMConfig, strict_config


@strict_config
class FlowStateConfig(SSMConfig):
    r"""
    FlowState: causal normalisation, a linear embedding, S5 layers, and a decoder that evaluates a sum of basis
    functions at the times of the forecast. See `SSMConfig` for the arguments all families share. `hf-ssm convert` reads
    IBM's checkpoints; docs/explanation/flowstate.md lists their layout.

    Args:
        context_length (`int`, defaults to 2048): Longest input at `scale_factor` 1, including the steps that a forecast
            of more than one patch appends; earlier values are cut off.
        prediction_length (`int`, *optional*): Steps of a forecast if the call gives none; `None`: one patch.
        scale_factor (`float`, defaults to 1.0): s, the number of steps of the model in one step of the series, if the
            call gives none. s multiplies all step sizes Δ, and the distance between the points that the decoder
            evaluates.
        quantiles (list of `float`, *optional*): Levels of the forecast, from 0 to 1; `None`: 0.1, 0.2, ..., 0.9.
        prediction_type (`str`, defaults to `"mean"`): The point forecast: `"mean"`, an average of the quantiles with
            the weights 0.5 - |0.5 - q|, or `"median"`, if the call gives none.
        interpolate_quantiles (`bool`, defaults to `False`): Return the empirical quantiles of the predicted values at
            the levels `quantiles`, as the public code does; this makes intervals narrower. `False`: return the
            predicted values, the smallest for the lowest level.
        with_missing (`bool`, defaults to `True`): Read a flag of missing values as a second channel. Without it, a
            forecast has at most one patch, and series may have no gaps.
        state_size (`int`, defaults to 64): Real states of a layer, twice the `encoder_state_dim` of the public code.
        num_blocks (`int`, defaults to 1): Equal blocks of A at initialisation.
        use_skip (`bool`, defaults to `True`): Feed-through D u.
        mlp_type (`str`, defaults to `"gated"`): What follows the state space model: `"gated"`, a ⊙ σ(W a) with
            a = selu(y), or `"transformer"`, a gated MLP of twice the width with a residual sum.
        out_gating (`bool`, defaults to `False`): Multiply the output of the scan by a gate, before the feed-through.
        decoder_patch_len (`int`, defaults to 24): Steps of a patch at `scale_factor` 1.
        decoder_dim (`int`, defaults to 64): Number K of basis functions; odd for `"four"`.
        decoder_type (`str`, defaults to `"legs"`): Basis functions: `"legs"`, Legendre polynomials on [-1, 0.95],
            `"hlegs"`, the same polynomials on [0, 0.95], or `"four"`, sines and cosines.
        min_context (`int`, defaults to 24): Number of values before the first forecast in the loss.
        norm_type (`str`, defaults to `"none"`): Norm of the blocks. Each mixer contains a layer norm of its output, so
            that the blocks need none.

    Examples:
        >>> from hf_ssm import FlowStateConfig, FlowStateForPrediction
        >>> model = FlowStateForPrediction(FlowStateConfig(hidden_size=32, decoder_dim=16))
    """

    model_type = "hf_ssm_flowstate"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [*SSMConfig.keys_to_ignore_at_inference, "last_hidden_state"]
    field_choices: ClassVar[dict[str, tuple[str | None, ...]]] = {
        **SSMConfig.field_choices,
        "decoder_type": ("legs", "hlegs", "four"),
        "mlp_type": ("gated", "transformer"),
        "norm_type": ("none",),
        "prediction_type": ("mean", "median"),
    }
    positive_fields: ClassVar[tuple[str, ...]] = (
        *SSMConfig.positive_fields,
        *("context_length", "prediction_length", "scale_factor", "num_blocks", "decoder_patch_len", "decoder_dim"),
        "min_context",
    )

    num_hidden_layers: int = 4
    num_blocks: int = 1
    context_length: int = 2048
    prediction_length: int | None = None
    scale_factor: float | int = 1.0
    quantiles: list[float | int] | None = None
    prediction_type: str = "mean"
    interpolate_quantiles: bool = False
    with_missing: bool = True
    use_skip: bool = True
    mlp_type: str = "gated"
    out_gating: bool = False
    decoder_patch_len: int = 24
    decoder_dim: int = 64
    decoder_type: str = "legs"
    min_context: int = 24
    norm_type: str = "none"

    def _derive(self) -> None:
        if self.quantiles is None:
            self.quantiles = [step / 10 for step in range(1, 10)]
        if self.num_input_channels is None:
            self.num_input_channels = 1 + self.with_missing

    def check(self) -> None:
        super().check()
        if self.num_input_channels != 1 + self.with_missing:
            raise ValueError(
                f"`num_input_channels`={self.num_input_channels} must be {1 + self.with_missing} with "
                f"`with_missing={self.with_missing}`: leave out `num_input_channels`."
            )
        if self.state_size % (2 * self.num_blocks):
            raise ValueError(
                f"`state_size` must be a multiple of 2 `num_blocks` = {2 * self.num_blocks} (states of a block come in "
                f"conjugate pairs), got {self.state_size}."
            )
        levels = self.quantiles or []
        if not levels or len(set(levels)) < len(levels) or not all(0 <= level <= 1 for level in levels):
            raise ValueError(f"`quantiles` must be different numbers from 0 to 1, got {self.quantiles!r}.")
        self.check_prediction_type(self.prediction_type)
        if self.decoder_type == "four" and self.decoder_dim % 2 == 0:
            raise ValueError(
                f"`decoder_dim` must be odd with `decoder_type`='four' (a constant, and pairs of sine and cosine), got "
                f"{self.decoder_dim}."
            )
        if self.non_causal_flag is not None:
            raise ValueError(f"FlowState cannot have {self.non_causal_flag}: it would read the values it predicts.")

    def check_prediction_type(self, kind: str) -> None:
        """Raise `ValueError` for a point forecast that these quantiles do not give."""
        levels = self.quantiles or []
        if kind == "median" and 0.5 not in levels:
            raise ValueError(f"`prediction_type`='median' needs 0.5 among `quantiles`, got {levels}.")
        if kind == "mean" and not {*levels} - {0, 1}:
            raise ValueError(f"`prediction_type`='mean' gives 0 and 1 no weight, got `quantiles`={levels}.")

    @classmethod
    def can_be_two_sided(cls, given: Mapping[str, Any]) -> bool:
        """False: a forecast reads the past only."""
        return False

    @property
    def sobolev_step(self) -> float:
        """1: frequencies of a Sobolev filter are in units of positions."""
        return 1.0

    @property
    def reads_series(self) -> bool:
        return True

    @property
    def has_final_norm(self) -> bool:
        return False

    @property
    def block_size(self) -> int:
        return self.state_size // self.num_blocks


__all__ = ["FlowStateConfig"]
