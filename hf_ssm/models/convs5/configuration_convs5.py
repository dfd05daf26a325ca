"""Configuration of the convolutional state space models of videos, ConvS5."""

from dataclasses import fields
from typing import ClassVar

from transformers import PreTrainedConfig

from hf_ssm.models.base.configuration import SSMConfig, strict_config

# Fields of `SSMConfig` that a model of videos reads, or that transformers sets for any model (token ids, tied words).
# Others have to keep their defaults.
_SHARED = frozenset(
    {
        *("bidirectional", "bos_token_id", "discretization", "embedding_dropout", "eos_token_id", "frequency_scale"),
        *("frequency_shift", "hidden_dropout", "hidden_size", "init", "initializer_range", "layer_norm_epsilon"),
        *("norm_first", "norm_type", "num_hidden_layers", "pad_token_id", "rescale_init", "rescaled"),
        *("residual_in_fp32", "sobolev_frequency", "sobolev_mode", "sobolev_order", "sobolev_trainable", "state_size"),
        *("tau_detach_statistics", "tau_statistics", "tau_weight", "tie_word_embeddings", "time_step_max"),
        *("time_step_min", "use_cache", "use_residual", "vocab_size"),
    }
)


@strict_config
class ConvS5Config(SSMConfig):
    r"""
    ConvS5: strided convolutions encode each frame, blocks of a norm, a convolutional state space model over time, an
    activation and a (gated) linear map predict the next frame, and transposed convolutions decode the prediction. See
    `SSMConfig` for the arguments all families share; the arguments for token sequences must keep their defaults.

    Args:
        num_channels (`int`, defaults to 3): Channels C of the frames `(B, T, H, W, C)`.
        patch_size (`int`, defaults to 4): Height and width of the frames, divided by the height and width of the hidden
            states: 1, or a power of two that divides `hidden_size`.
        num_hidden_layers (`int`, defaults to 4): Number of blocks.
        state_size (`int`, defaults to 64): Real states P at each pixel of the hidden states, in all blocks of the
            state matrix together, stored as P/2 conjugate pairs.
        num_blocks (`int`, defaults to 1): J: the initial state matrix has J equal blocks of size P/J.
        input_kernel_size, output_kernel_size, skip_kernel_size (`int`, default to 3): Odd sizes of the spatial
            kernels of B, C and D.
        use_skip (`bool`, defaults to `True`): Feed-through D ∗ u.
        hidden_act (`str`, defaults to `"gelu"`): Activation after the state space model; `"linear"` for none.
        output_glu (`bool`, defaults to `True`): Linear map to twice the width and gated linear unit; `False`: a linear
            map.
        use_final_norm (`bool`, defaults to `True`): With `norm_first`, a norm after the last block.
        l1_weight (`float`, defaults to 0.5): Share of the mean absolute error in the loss of a predicted frame; the
            rest is the mean squared error.

    Examples:
        >>> from hf_ssm import ConvS5Config, ConvS5ForVideoPrediction
        >>> model = ConvS5ForVideoPrediction(ConvS5Config(hidden_size=32, state_size=32, frequency_shift=200.0))
    """

    model_type = "hf_ssm_convs5"

    field_choices: ClassVar[dict[str, tuple[str | None, ...]]] = {
        **SSMConfig.field_choices,
        "norm_type": ("layer", "rms", "none"),
    }
    positive_fields: ClassVar[tuple[str, ...]] = (
        *SSMConfig.positive_fields,
        *("num_channels", "patch_size", "num_blocks"),
        *("input_kernel_size", "output_kernel_size", "skip_kernel_size"),
    )

    num_channels: int = 3
    patch_size: int = 4
    num_hidden_layers: int = 4
    num_blocks: int = 1
    input_kernel_size: int = 3
    output_kernel_size: int = 3
    skip_kernel_size: int = 3
    use_skip: bool = True
    hidden_act: str = "gelu"
    output_glu: bool = True
    use_final_norm: bool = True
    l1_weight: float | int = 0.5

    def check(self) -> None:
        shared = {field.name: field.default for field in fields(SSMConfig)}
        for name in shared.keys() - _SHARED - {field.name for field in fields(PreTrainedConfig)}:
            if getattr(self, name) != shared[name]:
                raise ValueError(
                    f"`{name}`={getattr(self, name)!r} is for models of sequences, but ConvS5 reads videos: leave it "
                    f"at {shared[name]!r}."
                )
        super().check()
        if self.non_causal_flag is not None:
            raise ValueError(f"ConvS5 cannot have {self.non_causal_flag}: it would read the frames it predicts.")
        for name in ("input_kernel_size", "output_kernel_size", "skip_kernel_size"):
            if getattr(self, name) % 2 == 0:
                raise ValueError(
                    f"`{name}` must be odd, so that the kernel has a centre, got {getattr(self, name)}: use "
                    f"{getattr(self, name) + 1}."
                )
        if self.patch_size & (self.patch_size - 1) or self.hidden_size % self.patch_size:
            raise ValueError(
                f"`patch_size` must be 1 or a power of two that divides `hidden_size`={self.hidden_size}, got "
                f"{self.patch_size}."
            )
        if self.state_size % (2 * self.num_blocks):
            raise ValueError(
                f"`state_size` must be a multiple of 2 `num_blocks`={2 * self.num_blocks} (each block has "
                f"conjugate pairs), got {self.state_size}."
            )
        if not 0 <= self.l1_weight <= 1:
            raise ValueError(f"`l1_weight` must be from 0 to 1, got {self.l1_weight}.")

    @property
    def sobolev_step(self) -> float:
        """1: frequencies of a Sobolev filter are in units of positions."""
        return 1.0

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        return 4 * self.patch_size, 4 * self.patch_size, self.num_channels

    @property
    def has_final_norm(self) -> bool:
        return self.norm_first and self.use_final_norm


__all__ = ["ConvS5Config"]
