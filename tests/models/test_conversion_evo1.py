"""Evo 1 checkpoints: logits compared with plain loops in float64 over the tensors of the public layout, and errors."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_ssm import Hyena2ForCausalLM
from hf_ssm.models.conversion import convert_checkpoint
from hf_ssm.models.hyena2.convert_evo1 import Evo1Converter

SIZE, INNER, HEADS, STATES, LAYERS = 12, 32, 2, 3, 3
IDS = list(b"ACGTNacgtnACCGTACGTTTGAC")


def public_config(**changes: Any) -> dict[str, Any]:
    """The fields of a YAML file of the public code that the computation depends on, and some that it does not."""
    return {
        **{"vocab_size": 512, "hidden_size": SIZE, "num_filters": SIZE, "num_layers": LAYERS, "max_sequence_len": 64},
        **{"attn_layer_idxs": [1], "hyena_layer_idxs": [0, 2], "short_filter_length": 3, "short_filter_bias": True},
        **{"num_attention_heads": HEADS, "eps": 1e-6, "state_size": STATES, "inner_size_multiple_of": 16},
        **{"smeared_gqa": False, "proj_groups": 1, "hyena_filter_groups": 1, "tie_embeddings": True},
        **{"inner_mlp_size": None, "mha_out_proj_bias": True, "qkv_proj_bias": True, "final_norm": True},
        **{"column_split": True, "mlp_activation": "gelu", "tokenizer_type": "CharLevelTokenizer"},
        **{"use_interpolated_rotary_pos_emb": True, "rotary_emb_scaling_factor": 16},
        **changes,
    }


def public_state(config: dict[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Random tensors with the names and shapes of a checkpoint of the Hub."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)

    state = {"embedding_layer.weight": normal(512, SIZE), "norm.scale": 1 + normal(SIZE, scale=0.1)}
    for layer in range(LAYERS):
        block: dict[str, Tensor] = {"pre_norm.scale": 1 + normal(SIZE, scale=0.1), "post_norm.scale": normal(SIZE)}
        for name, shape in (("l1", (INNER, SIZE)), ("l2", (INNER, SIZE)), ("l3", (SIZE, INNER))):
            block[f"mlp.{name}.weight"] = normal(*shape, scale=shape[1] ** -0.5)
        if layer in config["attn_layer_idxs"]:
            half = SIZE // HEADS // 2
            block["inner_mha_cls.Wqkv.weight"] = normal(3 * SIZE, SIZE, scale=SIZE**-0.5)
            if config["qkv_proj_bias"]:
                block["inner_mha_cls.Wqkv.bias"] = normal(3 * SIZE)
            block["inner_mha_cls.out_proj.weight"] = normal(SIZE, SIZE, scale=SIZE**-0.5)
            block["inner_mha_cls.out_proj.bias"] = normal(SIZE)
            block["inner_mha_cls.rotary_emb.inv_freq"] = 10_000.0 ** -(torch.arange(half) / half)
        else:
            block["projections.weight"] = normal(3 * SIZE, SIZE, scale=SIZE**-0.5)
            block["projections.bias"] = normal(3 * SIZE)
            block["filter.short_filter_weight"] = normal(3 * SIZE, 1, 3, scale=0.5)
            if config["short_filter_bias"]:
                block["filter.short_filter_bias"] = normal(3 * SIZE, scale=0.3)
            radius, angle = torch.rand(2, SIZE, STATES, 1, generator=generator, dtype=torch.float64)
            poles = torch.view_as_real(torch.polar(radius, 6 * angle - 3)).clone()
            block["filter.poles"] = poles if dtype == torch.float64 else poles.float()
            block["filter.residues"] = normal(SIZE, STATES, 1, 2).to(block["filter.poles"].dtype)
            block["filter.D"] = normal(SIZE)
            block["out_filter_dense.weight"] = normal(SIZE, SIZE, scale=SIZE**-0.5)
            block["out_filter_dense.bias"] = normal(SIZE)
        state |= {f"blocks.{layer}.{name}": tensor for name, tensor in block.items()}
    return {f"backbone.{name}": tensor for name, tensor in state.items()}


def reference_logits(state: dict[str, Tensor], config: dict[str, Any]) -> np.ndarray:
    """The logits `(L, V)` of `IDS`, by loops over positions, states and heads."""
    weights = {name.removeprefix("backbone."): tensor.double().numpy() for name, tensor in state.items()}

    def normed(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return scale * x / (np.sqrt((x**2).mean(-1, keepdims=True)) + config["eps"])

    x = weights["embedding_layer.weight"][IDS]
    for layer in range(LAYERS):
        prefix = f"blocks.{layer}."
        block = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
        mix = _attention if layer in config["attn_layer_idxs"] else _convolution
        x = x + mix(normed(x, block["pre_norm.scale"]), block, config)
        h = normed(x, block["post_norm.scale"])
        gate = h @ block["mlp.l1.weight"].T
        if config["mlp_activation"] == "gelu":
            gate = 0.5 * gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2)))
        else:
            gate = gate / (1 + np.exp(-gate))
        x = x + (gate * (h @ block["mlp.l2.weight"].T)) @ block["mlp.l3.weight"].T
    return normed(x, weights["norm.scale"]) @ weights["embedding_layer.weight"].T


def _convolution(x: np.ndarray, block: dict[str, np.ndarray], config: dict[str, Any]) -> np.ndarray:
    z = x @ block["projections.weight"].T + block["projections.bias"]
    taps, short = block["filter.short_filter_weight"][:, 0], np.zeros_like(z)
    for t in range(len(z)):
        short[t] = block.get("filter.short_filter_bias", 0.0)
        for lag in range(min(t + 1, 3)):
            short[t] += taps[:, 2 - lag] * z[t - lag]
    if config.get("column_split_hyena", True):
        # Head by head, the three streams beside each other.
        behind, before, value = (
            part.reshape(len(z), SIZE) for part in np.split(short.reshape(len(z), HEADS, -1), 3, -1)
        )
    else:
        behind, before, value = np.split(short, 3, axis=-1)
    poles, residues = (block[f"filter.{name}"][:, :, 0] @ [1, 1j] for name in ("poles", "residues"))
    states, outputs = np.zeros_like(poles), []
    for inputs in before * value:
        states = poles * states + inputs[:, None]
        outputs.append((residues * states).sum(-1).real + block["filter.D"] * inputs)
    return (behind * np.stack(outputs)) @ block["out_filter_dense.weight"].T + block["out_filter_dense.bias"]


def _attention(x: np.ndarray, block: dict[str, np.ndarray], config: dict[str, Any]) -> np.ndarray:
    width, half = SIZE // HEADS, SIZE // HEADS // 2
    qkv = x @ block["inner_mha_cls.Wqkv.weight"].T + block.get("inner_mha_cls.Wqkv.bias", 0.0)
    factor = config["rotary_emb_scaling_factor"] if config["use_interpolated_rotary_pos_emb"] else 1

    def turned(vector: np.ndarray, position: int) -> np.ndarray:
        turns = np.exp(1j * position / factor * 10_000.0 ** -(np.arange(half) / half))
        both = (vector[:half] + 1j * vector[half:]) * turns
        return np.concatenate([both.real, both.imag])

    mixed = np.zeros_like(x)
    for head in range(HEADS):
        query, key, value = (qkv[:, part * SIZE + head * width :][:, :width] for part in range(3))
        for t in range(len(x)):
            scores = np.array([turned(query[t], t) @ turned(key[s], s) / math.sqrt(width) for s in range(t + 1)])
            shares = np.exp(scores - scores.max())
            mixed[t, head * width : (head + 1) * width] = (shares / shares.sum()) @ value[: t + 1]
    return mixed @ block["inner_mha_cls.out_proj.weight"].T + block["inner_mha_cls.out_proj.bias"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"column_split_hyena": False, "use_interpolated_rotary_pos_emb": False, "mlp_activation": "silu"},
        {"qkv_proj_bias": False, "short_filter_bias": False, "inner_mlp_size": INNER},
    ],
    ids=lambda changes: ", ".join(changes) or "as published",
)
def test_logits_are_those_of_plain_loops(changes):
    config = public_config(**changes)
    state = public_state(config)
    model = Evo1Converter().convert(state, config)
    with torch.no_grad():
        found = model(torch.tensor([IDS]), use_cache=False).logits[0].numpy()
        generated = [model(torch.tensor([IDS[:20]]), use_cache=True)]
        for token in IDS[20:]:
            generated.append(model(torch.tensor([[token]]), cache=generated[-1].cache))
    expected = reference_logits(state, config)
    bound = 1e-10 * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
    # From states: those of the complex exponentials, and keys and values.
    stepped = torch.cat([output.logits[0] for output in generated]).numpy()
    np.testing.assert_allclose(stepped, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("file", ["config.json", "evo-1.yml"])
def test_a_folder_becomes_one_that_auto_classes_load(file, tmp_path):
    config, source = public_config(), tmp_path / "source"
    source.mkdir()
    text = json.dumps({**config, "model_type": "stripedhyena"}) if file == "config.json" else yaml.safe_dump(config)
    (source / file).write_text(text, encoding="utf-8")
    state = public_state(config, torch.bfloat16)
    save_file(state, source / "model.safetensors")
    convert_checkpoint(source, tmp_path / "target")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    assert type(model) is Hyena2ForCausalLM and model.config.complex_state and model.config.rope_scaling_factor == 16
    assert AutoTokenizer.from_pretrained(tmp_path / "target")("Ac")["input_ids"] == [65, 99]
    with torch.no_grad():
        found = model.float()(torch.tensor([IDS])).logits[0]
    expected = torch.from_numpy(reference_logits(state, config)).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("changes", "factor", "message"),
    [
        ({"hyena_filter_groups": 2}, 1.0, "`hyena_filter_groups`=2 cannot be converted: the models here have 1"),
        ({"hyena_layer_idxs": [0]}, 1.0, "layer 2 is neither in attn_layer_idxs nor in"),
        ({"smeared_gqa": True}, 1.0, "`smeared_gqa`=True cannot be converted"),
        ({}, 2.0, "filter.log_poles holds positive numbers"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(changes, factor, message):
    config = public_config()
    state = {name: tensor * factor if "poles" in name else tensor for name, tensor in public_state(config).items()}
    with pytest.raises(ValueError, match=re.escape(message)):
        Evo1Converter().convert(state, public_config(**changes))
