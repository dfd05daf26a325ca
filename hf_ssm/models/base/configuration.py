"""The configuration fields that all families share: theory flags, inputs, pooling; and their checks."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, ClassVar

from transformers import GenerationConfig, PreTrainedConfig
from transformers.utils import logging

from hf_ssm.models.base.fields import (
    bounded,
    check_dtype,
    check_fields,
    check_sobolev,
    dropout,
    one_of,
    positive,
    require,
    strict_config,
    warn_of_changed_filter,
)
from hf_ssm.models.base.loading import foreign_config
from hf_ssm.models.views.strands import check_strands, complements
from hf_ssm.utils.hints import closest_name

logger = logging.get_logger(__name__)

# Arguments of transformers that are not fields of the configuration.
_TRANSFORMERS_ARGUMENTS = frozenset(
    {
        "attn_implementation",
        "auto_map",
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "experts_implementation",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "per_layer_config",
        "quantization_config",
        "sep_token_id",
        "task_specific_params",
        "tie_last_hidden_states",
        "tokenizer_class",
        "torch_dtype",
    }
)

INITS = "legs", "lin", "inv", "real"
"""State matrices at initialisation."""

NORMS = "layer", "batch", "rms", "none"
"""Norms of blocks."""


@strict_config
class SSMConfig(PreTrainedConfig):
    r"""
    Base of the configurations of all families. Unknown arguments raise an error that names the nearest valid one.

    Args:
        vocab_size (`int`, defaults to 12): Number of tokens; 12 is the single-nucleotide vocabulary.
        hidden_size (`int`, defaults to 128): Channels D of the residual stream.
        num_hidden_layers (`int`, defaults to 2): Number of blocks.
        num_input_channels (`int`, *optional*): Channels of continuous `input_values` of shape `(B, L, C_in)`.
            `None`: the model reads token ids (the signal regression head then takes 1 channel).
        bidirectional (`bool`, *optional*): Two-sided convolutions. `None`: two-sided under the masked-LM
            head, causal elsewhere.
        pooling (`str`, *optional*): `"last"`, `"mean"`, `"max"` or `"first"` over the tokens the mask keeps. `None`:
            mean for sequence classification, no pooling for signal regression.
        norm_type (`str`, defaults to `"layer"`): `"layer"`, `"rms"`, `"batch"` over the tokens the mask keeps, or
            `"none"`.
        norm_first (`bool`, defaults to `True`): Pre-norm blocks and a final norm; `False`: post-norm blocks.
        use_residual (`bool`, defaults to `True`): Add the input of each mixer and MLP to its output.
        residual_in_fp32 (`bool`, defaults to `False`): Keep the residual sum in float32 in a half-precision model.
        state_size (`int`, defaults to 64): Real states N per channel, stored as N/2 conjugate pairs.
        init (`str`, defaults to `"legs"`): State matrix at initialisation: `"legs"`, `"lin"`, `"inv"`, `"real"`.
        discretization (`str`, defaults to `"zoh"`): `"zoh"` or `"bilinear"`.
        time_step_min, time_step_max (`float`, defaults to 1e-3 and 1e-1): Range of the step size Δ, drawn
            log-uniformly per channel.
        frequency_scale (`float`, defaults to 1.0): α of Yu et al., eq. (5), which multiplies the imaginary part of the
            state matrix at initialisation. For Hyena's filters without a state matrix, α multiplies their angular
            frequencies.
        frequency_shift (`float`, defaults to 0.0): Yu et al., eq. (14): w ↦ sign(w)(|w| + shift), after α.
        sobolev_order (`float` or list of one per layer, defaults to 0.0): β of the Sobolev filter of Yu et al., eq.
            (8).
        sobolev_mode (`str`, defaults to `"causal"`): `"causal"`, (1 + s)^β, or `"zero_phase"`, (1 + |s|)^β, which
            is not causal and is refused by causal heads.
        sobolev_frequency (`str`, defaults to `"normalized"`): What s measures: `"normalized"` (cycles per sample),
            `"radian"` (ω/Δ) or `"bilinear"` ((2/Δ) tan(ω/2), Yu et al., eq. (6); with `"zero_phase"` constant above ω =
            0.95 π, because the taps of the filter would otherwise not exist for β of 1 or more).
        sobolev_trainable (`bool`, defaults to `False`): Learn β per channel, starting at `sobolev_order`.
        rescale_init (`bool`, defaults to `False`): Rescale the initial weights (Liu & Li, Algorithm 1). `SSMTrainer`
            does so once, before the first step of a fresh model.
        rescaled (`bool`, defaults to `False`): Record that the rescaling was done. Not meant to be set by hand.
        tau_weight (`float`, defaults to 0.0): λ of Liu & Li, eq. (8): the weight of the regulariser τ, used by
            `SSMTrainer` and `tau_loss`.
        tau_statistics (`str`, defaults to `"batch"`): Mean and variance of the inputs in τ: `"batch"`, those of the
            batch; `"unit"`, mean 0 and variance 1, so that τ is the squared ℓ1 norm of the kernel; `"white"`, also
            uncorrelated inputs, so that τ is the squared ℓ2 norm. With `"unit"` and `"white"` the regulariser does not
            depend on the data. In distributed training the rows of all processes are one batch (with gradient
            accumulation, the rows of one micro-batch); in evaluation mode each process uses its own rows.
        tau_detach_statistics (`bool`, defaults to `True`): Compute no gradient of τ through mean and variance. A
            Sobolev filter of the inputs (`sobolev_mode="zero_phase"`, and every filter before a selective scan) enters
            τ only through mean and variance: the regulariser then does not train β, and `SSMTrainer` and `tau_loss`
            warn.
        initializer_range (`float`, defaults to 0.02): Standard deviation of linear layers and embeddings.
        layer_norm_epsilon (`float`, defaults to 1e-5): ε of the norms.
        embedding_dropout, hidden_dropout, classifier_dropout (`float`, default to 0.0): Dropout after the embedding,
            after each mixer and MLP, and before the classifier.
        tie_dropout (`bool`, defaults to `False`): Draw the hidden dropout once for all positions of a sequence, as
            state-spaces/s4 does under this name.
        classifier_bias (`bool`, defaults to `True`): Bias of the classifier and regression heads.
        output_clip (`float`, *optional*): R: the logits of the classifier and regression heads are clipped to [-R, R]
            (clip_R of Nishikawa & Suzuki, Section 3). Heads that predict tokens refuse it.
        tie_word_embeddings (`bool`, defaults to `False`): Share the embedding with the language-model head.
        use_cache (`bool`, defaults to `True`): Causal models return a cache to continue from, outside training.
        rc_equivariant (`bool`, defaults to `False`): Read a DNA sequence and its reverse complement with the same
            weights (Caduceus-PS): the reverse complement of the input gives the reverse complement of the output, and
            the same class. Hidden states are `(B, L, 2 D)`: both strands, see `models/views/strands.py`.
        rc_swap (`bool`, defaults to `False`): With `rc_equivariant`: before each block, each strand becomes the
            reverse complement of the other, as in the published Caduceus-PS models.
        rc_conjoin (`str`, defaults to `"none"`): For classifiers that are not equivariant: the scores are means over
            the sequence and its reverse complement, outside training (`"eval"`) or always (`"always"`).
        complement_map (list of `int`, or dictionary, *optional*): Id of the complement of each token, a list of
            `vocab_size` ids, or a dictionary of the tokens that are not their own complement. `None`: the complements
            of single nucleotides if `vocab_size` is 12.

    Raises:
        ValueError: An unknown argument, a value out of its range or choices, flags that exclude each other.
    """

    attribute_map: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_layers": "num_hidden_layers",
        "d_state": "state_size",
        "layer_norm_eps": "layer_norm_epsilon",
        "dt_min": "time_step_min",
        "dt_max": "time_step_max",
    }
    # Fields of earlier versions, with the only value that is still accepted.
    removed_fields: ClassVar[dict[str, Any]] = {}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "hidden_states", "tau"]

    vocab_size: int = positive(12)
    hidden_size: int = positive(128)
    num_hidden_layers: int = positive(2)
    num_input_channels: int | None = positive(None)
    bidirectional: bool | None = None
    pooling: str | None = one_of("last", "mean", "max", "first", None, default=None)
    norm_type: str = one_of(*NORMS)
    norm_first: bool = True
    use_residual: bool = True
    residual_in_fp32: bool = False
    state_size: int = positive(64)
    init: str = one_of(*INITS)
    discretization: str = one_of("zoh", "bilinear")
    time_step_min: float | int = positive(0.001, 1e-12, 1e3)
    time_step_max: float | int = positive(0.1, 1e-12, 1e3)
    frequency_scale: float | int = positive(1.0, most=1e6)
    frequency_shift: float | int = bounded(0.0, 0.0, 1e6)
    sobolev_order: float | int | list[float | int] = 0.0
    sobolev_mode: str = one_of("causal", "zero_phase")
    sobolev_frequency: str = one_of("normalized", "radian", "bilinear")
    sobolev_trainable: bool = False
    rescale_init: bool = False
    rescaled: bool = False
    tau_weight: float | int = bounded(0.0, 0.0, 1e12)
    tau_statistics: str = one_of("batch", "unit", "white")
    tau_detach_statistics: bool = True
    initializer_range: float | int = positive(0.02, most=10.0)
    layer_norm_epsilon: float | int = positive(1e-5, 1e-20, 1e6)
    embedding_dropout: float | int = dropout()
    hidden_dropout: float | int = dropout()
    classifier_dropout: float | int = dropout()
    tie_dropout: bool = False
    classifier_bias: bool = True
    output_clip: float | int | None = positive(None, most=1e30)
    tie_word_embeddings: bool = False
    use_cache: bool = True
    rc_equivariant: bool = False
    rc_swap: bool = False
    rc_conjoin: str = one_of("none", "eval", "always")
    complement_map: list[int] | dict[Any, int] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name, accepted in self.removed_fields.items():
            if (value := kwargs.pop(name, accepted)) != accepted:
                raise ValueError(
                    f"{type(self).__name__} no longer has `{name}` (given {value!r}): leave it out, or use the version "
                    "of hf_ssm that the model was trained with."
                )
        self._refuse_unknown(kwargs)
        if kwargs.get("num_labels", 0) is None:
            # The null of a file: transformers would take it for a number.
            del kwargs["num_labels"]
        check_dtype(kwargs.get("torch_dtype") if self.dtype is None else self.dtype)
        super().__post_init__(**kwargs)
        self._derive()
        self.check()
        if self.complement_map is not None or self.reads_both_strands(training=False):
            self.complement_map = complements(self)

    def _derive(self) -> None:
        """Fill fields whose default depends on others; called after `attribute_map` has been applied."""

    @classmethod
    def known_arguments(cls) -> set[str]:
        """Names of all arguments, transformers' own among them."""
        theirs = _TRANSFORMERS_ARGUMENTS | set(GenerationConfig._get_default_generation_params())
        return {field.name for field in fields(cls)} | set(cls.attribute_map) | set(cls.removed_fields) | theirs

    def _refuse_unknown(self, kwargs: dict[str, Any]) -> None:
        known = self.known_arguments() - set(self.removed_fields)
        for name in kwargs:
            if name in known or name.startswith("_"):
                continue
            near = closest_name(name, known)
            hint = f"did you mean `{near}`?" if near else f"the arguments are {', '.join(sorted(known))}."
            raise ValueError(f"{type(self).__name__} has no argument `{name}` (given {kwargs[name]!r}): {hint}")

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a `config.json`, and convert it if it is one of another library that a converter of the family reads.

        transformers only warns of another `model_type`, and makes a model with default sizes.

        Raises:
            ValueError: The file is not a configuration, or has another `model_type` or none.
        """
        source = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        try:
            content, rest = super().get_config_dict(*args, **kwargs)
            kind = content.get("model_type")
        except (AttributeError, TypeError) as error:
            raise ValueError(f"the config.json of {str(source)!r} is not a configuration: {error}") from error
        if cls.model_type and kind != cls.model_type:
            if (converted := foreign_config(cls, source, content, kwargs)) is not None:
                return converted, rest
            raise ValueError(
                f"the config.json of {str(source)!r} has the `model_type` {kind!r}, but {cls.__name__} is of type "
                f"{cls.model_type!r}: give a checkpoint of that type, or convert this one (`hf-ssm convert`)."
            )
        return content, rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build the configuration from the content of a file; unknown fields of the file are kept, with a warning.

        Raises:
            ValueError: A keyword argument whose name is nearly that of a field.
        """
        warn_of_changed_filter(config_dict)
        known = cls.known_arguments()
        for name in kwargs.keys() - known:
            near = closest_name(name, known, cutoff=0.8)
            if near is not None:
                raise ValueError(f"{cls.__name__} has no argument `{name}`: did you mean `{near}`?")
        foreign = {name: value for name, value in config_dict.items() if name not in known and name[:1] != "_"}
        if foreign:
            names = ", ".join(map(repr, sorted(foreign)))
            logger.warning_once(f"{cls.__name__} does not know the fields {names} of its file.")
        config_dict = {name: value for name, value in config_dict.items() if name not in foreign}
        loaded = super().from_dict(config_dict, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        for name, value in foreign.items():
            setattr(config, name, value)
        # transformers assigns keyword arguments after construction.
        config.check()
        return loaded

    def check_products(self) -> None:
        """Raise `ValueError` for large weights of layers that multiply their input with itself, without norms."""
        require(
            self.norm_type != "none" or self.initializer_range <= 1,
            f"`initializer_range`={self.initializer_range} must be at most 1 with `norm_type='none'`: each layer "
            "multiplies its input with itself, so that outputs would not be finite.",
        )

    def check(self) -> None:
        """Raise `ValueError` for values out of range; models call it too, as fields can be assigned later."""
        check_dtype(self.dtype)
        check_fields(self)
        check_strands(self)
        require(
            not self.stores_pairs or self.state_size % 2 == 0,
            f"`state_size` must be even (states come in conjugate pairs), got {self.state_size}.",
        )
        require(
            self.time_step_min <= self.time_step_max,
            f"`time_step_min` ({self.time_step_min}) must not exceed `time_step_max` ({self.time_step_max}).",
        )
        check_sobolev(self)
        require(
            self.use_residual or not self.residual_in_fp32,
            "`residual_in_fp32=True` needs `use_residual=True`: there is no residual stream without it.",
        )
        for name, neutral in (("frequency_scale", 1.0), ("frequency_shift", 0.0)):
            require(
                self.has_frequencies or getattr(self, name) == neutral,
                f"`{name}`={getattr(self, name)} needs frequencies, but `init`={self.init!r} has none: use init='lin' "
                f"(in a selective model with `complex_state=True`), or leave `{name}` at {neutral}.",
            )

    # What the configuration of a family says about its models; a subclass sets a value or defines a property.

    @property
    def sobolev_step(self) -> float:
        """Smallest step size that the frequencies of a Sobolev filter are measured in; 1 for units of positions."""
        return self.time_step_min

    @property
    def sobolev_orders(self) -> list[float]:
        """β of each layer."""
        orders = self.sobolev_order
        return list(map(float, orders if isinstance(orders, list) else [orders] * self.num_hidden_layers))

    @property
    def has_sobolev_filter(self) -> bool:
        """Whether some layer has a Sobolev filter."""
        return self.sobolev_trainable or any(self.sobolev_orders)

    @property
    def stores_pairs(self) -> bool:
        """Whether states are complex and one of each conjugate pair is stored."""
        return True

    @property
    def has_frequencies(self) -> bool:
        """Whether there are frequencies that `frequency_scale` and `frequency_shift` act on at initialisation."""
        return self.init != "real"

    @property
    def no_alpha_rule(self) -> str | None:
        """Why there is no rule for the largest useful `frequency_scale`; `None` if there is one."""
        if self.init == "dfout":
            return "`init`='dfout' spreads frequencies evenly up to the Nyquist frequency: α above 1 would alias them."
        if self.has_frequencies:
            return None
        return f"`init`={self.init!r} has no frequencies to scale, or the step size is fixed: there is no range of α."

    @property
    def block_size(self) -> int:
        """States of one copy of the initial state matrix, of which a layer may have several."""
        return self.state_size

    @property
    def mlp_size(self) -> int | None:
        """Width of each block's MLP; `None` where there is none."""
        return None

    @property
    def num_mlp_layers(self) -> int:
        """Linear maps of each block's MLP."""
        return 2

    @property
    def num_tau_layers(self) -> int:
        """Layers that have a kernel, and so τ."""
        return self.num_hidden_layers

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block."""
        return self.norm_first

    @property
    def default_pooling(self) -> str:
        """Pooling of the sequence classifier if `pooling` is `None`."""
        return "mean"

    @property
    def frame_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of a small frame that the model can read; `None` if it does not read frames."""
        return None

    @property
    def reads_series(self) -> bool:
        """Whether the model forecasts numeric series, `past_values`."""
        return False

    @property
    def longest_input(self) -> int | None:
        """Longest input in tokens; `None` where there is no limit."""
        return None

    @classmethod
    def can_be_two_sided(cls, given: Mapping[str, Any]) -> bool:
        """Whether `bidirectional=True` is possible with the `given` fields."""
        return True

    @classmethod
    def fields_for_any_length(cls, given: Collection[str]) -> dict[str, Any]:
        """Fields that give a fresh model no longest input; empty if it has none, or if the `given` fields decide."""
        return {}

    def reads_both_strands(self, training: bool) -> bool:
        """Whether classifiers read the reverse complement too, in training mode or outside."""
        return self.rc_equivariant or self.rc_conjoin == "always" or (self.rc_conjoin == "eval" and not training)

    @property
    def non_causal_flag(self) -> str | None:
        """The flag that lets the model read later positions, with the value to set instead; `None` if it is causal."""
        if self.bidirectional:
            return "`bidirectional=True` (set `bidirectional=False`)"
        if self.rc_equivariant:
            return "`rc_equivariant=True` (set `rc_equivariant=False`)"
        if self.sobolev_mode == "zero_phase" and self.has_sobolev_filter:
            return "`sobolev_mode='zero_phase'` (set `sobolev_mode='causal'`)"
        return None

    @property
    def is_causal(self) -> bool:
        """Whether the output at a position depends on this and earlier positions only."""
        return self.non_causal_flag is None


__all__ = ["INITS", "NORMS", "SSMConfig", "strict_config"]
