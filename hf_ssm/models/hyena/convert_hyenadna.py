"""Checkpoints of HyenaDNA as ours, whole or not at all.

There are two layouts: that of the Hub (`LongSafari/hyenadna-*-hf`), a folder that `from_pretrained` of the Hyena models
reads too, and the original one, a `weights.ckpt` of PyTorch Lightning with a `config.json` beside it.

Source: Nguyen et al. 2023 (HyenaDNA).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_ssm.models.hyena.configuration_hyena import HyenaConfig
from hf_ssm.models.hyena.configuration_hyenadna import from_hyenadna, is_hub_layout, is_original_layout
from hf_ssm.models.hyena.modeling_hyena import (
    HyenaForCausalLM,
    HyenaForSequenceClassification,
    HyenaModel,
    HyenaPreTrainedModel,
)
from hf_ssm.models.hyena.weights_hyenadna import own_weights

# Their model classes, in `architectures`, and ours.
_CLASSES: dict[str, type[HyenaPreTrainedModel]] = {
    "HyenaDNAForCausalLM": HyenaForCausalLM,
    "HyenaDNAForSequenceClassification": HyenaForSequenceClassification,
    "HyenaDNAModel": HyenaModel,
}


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a HyenaDNA model, of either layout."""
    return is_hub_layout(config) or is_original_layout(config)


def converted(source: str | Path | Mapping[str, Tensor], found: Mapping[str, Any]) -> HyenaPreTrainedModel:
    """The model of a HyenaDNA checkpoint: with the head it was saved with, in evaluation mode.

    Args:
        source: A folder or Hub id, in the layout of the Hub; or, in either layout, all tensors of the checkpoint. Of
            the original layout, that is the `state_dict` in `weights.ckpt`.
        found: The content of its `config.json`.

    Raises:
        OSError: There are no weights.
        ValueError: The configuration asks for another operator; tensors that are missing, not used, of another shape
            or no finite numbers. Each is named.
    """
    if not recognises(found):
        raise ValueError(
            'this is no configuration of a HyenaDNA model: it has neither the `model_type` "hyenadna" nor a `layer`'
        )
    kind = _class(found)
    if not isinstance(source, Mapping):
        # A head of another size is named below.
        loaded, report = kind.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True)
        lacking = [*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])]
        _check_heads(lacking, report["unexpected_keys"], kind)
        return loaded
    config = HyenaConfig.from_dict(from_hyenadna(found))
    weights = own_weights(source, config, original=is_original_layout(found))
    model: Any = kind(config)
    model.to(weights["model.embed_tokens.weight"].dtype)
    if kind is HyenaForCausalLM and config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    if kind is HyenaModel:
        weights = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    lacking = [name for name, shape in shapes.items() if name not in weights or weights[name].shape != shape]
    _check_heads(lacking, weights.keys() - shapes.keys(), kind)
    model.load_state_dict(weights)
    return model.eval()


def tokenizer_arguments(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of `hf_ssm.tokenization.build_dna_tokenizer` that give HyenaDNA's tokenizer.

    That one is Python code beside the checkpoint. It pads on the left, and ends each sequence with [SEP].

    Args:
        found: The content of the checkpoint's `config.json`.

    Returns:
        The arguments, or `None` for a model of another vocabulary.
    """
    if found.get("vocab_size", 12) != 12:
        return None
    longest = from_hyenadna(found)["max_position_embeddings"]
    return {"model_max_length": longest, "padding_side": "left", "add_eos": True}


def _class(found: Mapping[str, Any]) -> type[HyenaPreTrainedModel]:
    architectures = found.get("architectures") or ["HyenaDNAForCausalLM"]
    name = architectures[0] if isinstance(architectures, list) else architectures
    if not isinstance(name, str) or name not in _CLASSES:
        raise ValueError(f"`architectures` of a HyenaDNA model must be one of {', '.join(_CLASSES)}, got {name!r}")
    return _CLASSES[name]


def _check_heads(lacking: Any, foreign: Any, kind: type[HyenaPreTrainedModel]) -> None:
    """Of the backbone, all was checked already."""
    wrong = {"missing or of another shape": sorted(lacking), "not used": sorted(foreign)}
    if any(wrong.values()):
        raise ValueError(
            f"the HyenaDNA checkpoint is not one of a {kind.__name__}: "
            + "; ".join(f"{what}: {', '.join(names)}" for what, names in wrong.items() if names)
        )


__all__ = ["converted", "recognises", "tokenizer_arguments"]
