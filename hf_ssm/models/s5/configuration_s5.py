"""Configuration of the state space model S5."""

from typing import ClassVar

from hf_ssm.models.base.configuration import SSMConfig, strict_config


@strict_config
class S5Config(SSMConfig):
    r"""
    S5: each block is a norm, a state space model whose state all channels share, an activation and a gate. See
    `SSMConfig` for the arguments all families share.

    Args:
        num_hidden_layers (`int`, defaults to 4): Number of blocks.
        state_size (`int`, defaults to 64): Number P of states of a layer, over all of its blocks of A; even.
        num_blocks (`int`, defaults to 1): Number J of equal blocks of A at initialisation, each of size P / J.
        use_skip (`bool`, defaults to `True`): Feed-through D u.
        hidden_act (`str`, defaults to `"gelu"`): Activation a after the state space model; `"linear"` for none.
        output_gate (`str`, defaults to `"sigmoid"`): `"sigmoid"`: a ⊙ σ(W a), as in the paper; `"half_glu2"`:
            y ⊙ σ(W a) with the output y of the state space model, as in the public code; `"glu"`: a linear map to twice
            the width and a gated linear unit, as in S4; `"none"`: a linear map.
        use_final_norm (`bool`, defaults to `True`): With `norm_first`, a norm after the last block.

    The models also read `time_deltas` `(B, L)`, positive: the time since the position before, for signals that are
    sampled at irregular times. `sobolev_frequency` is in units of positions, because each state has its own step size.

    Examples:
        >>> from hf_ssm import S5Config, S5ForSequenceClassification
        >>> model = S5ForSequenceClassification(S5Config(num_blocks=4, bidirectional=True))
    """

    model_type = "hf_ssm_s5"
    field_choices: ClassVar[dict[str, tuple[str | None, ...]]] = {
        **SSMConfig.field_choices,
        "output_gate": ("sigmoid", "half_glu2", "glu", "none"),
    }
    positive_fields: ClassVar[tuple[str, ...]] = (*SSMConfig.positive_fields, "num_blocks")

    num_hidden_layers: int = 4
    num_blocks: int = 1
    use_skip: bool = True
    hidden_act: str = "gelu"
    output_gate: str = "sigmoid"
    use_final_norm: bool = True

    def check(self) -> None:
        super().check()
        if self.state_size % (2 * self.num_blocks):
            raise ValueError(
                f"`state_size` must be a multiple of 2 `num_blocks` = {2 * self.num_blocks} (states of a block come in "
                f"conjugate pairs), got {self.state_size}."
            )

    @property
    def sobolev_step(self) -> float:
        """1: frequencies of a Sobolev filter are in units of positions."""
        return 1.0

    @property
    def has_final_norm(self) -> bool:
        return self.norm_first and self.use_final_norm

    @property
    def block_size(self) -> int:
        return self.state_size // self.num_blocks


__all__ = ["S5Config"]
