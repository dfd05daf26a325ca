"""Caduceus checkpoints: parity with a plain implementation of their forward pass, loading, conversion, tokenizers.

`Reference` follows the published description and the names of the checkpoints: the hidden states of a PS model are one
stream `(B, L, 2 D)` whose halves the fused blocks exchange, and everything is loops over positions in float64.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer

import hf_ssm
from hf_ssm import (
    SelectiveSSMConfig,
    SelectiveSSMForMaskedLM,
    SelectiveSSMForSequenceClassification,
    SelectiveSSMModel,
)
from hf_ssm.cli import main as run_cli
from hf_ssm.models.conversion import convert_checkpoint
from hf_ssm.models.selective.convert_caduceus import CONVERTERS

PAIRS = {7: 10, 8: 9, 9: 8, 10: 7}
COMPLEMENT = [PAIRS.get(token, token) for token in range(16)]
CONVERTER: Any = CONVERTERS[0]


def rc(x: Tensor) -> Tensor:
    """Reverse length and channels."""
    return x.flip(1, 2)


class Reference:
    """A random Caduceus checkpoint, and what it computes."""

    def __init__(self, head: str = "CaduceusForMaskedLM", layers: int = 2, **config: Any):
        self.head = head
        self.config: dict[str, Any] = {
            "model_type": "caduceus",
            "architectures": [head],
            "d_model": 6,
            "n_layer": layers,
            "vocab_size": 16,
            "pad_vocab_size_multiple": 8,
            "ssm_cfg": {"d_state": 3, "d_conv": 3, "dt_rank": 2},
            "rms_norm": True,
            "fused_add_norm": True,
            "residual_in_fp32": False,
            "norm_epsilon": 1e-5,
            "bidirectional": True,
            "bidirectional_strategy": "add",
            "bidirectional_weight_tie": True,
            "rcps": True,
            "complement_map": {str(token): other for token, other in enumerate(COMPLEMENT)},
            "initializer_cfg": {"initializer_range": 0.02},
            "auto_map": {"AutoModel": "modeling_caduceus.Caduceus"},
            "transformers_version": "4.38.1",
            **config,
        }
        self.ps = self.config["rcps"]
        ssm = self.config["ssm_cfg"] or {}
        self.size, self.states, self.taps = self.config["d_model"], ssm.get("d_state", 16), ssm.get("d_conv", 4)
        self.rank = ssm.get("dt_rank", -(-self.size // 16))
        self.inner = ssm.get("expand", 2) * self.size
        self.bias, self.conv_bias = ssm.get("bias", False), ssm.get("conv_bias", True)
        self.tensors = self._draw()

    def _draw(self) -> dict[str, Tensor]:
        D, E, N, R = self.size, self.inner, self.states, self.rank
        vocab = self.config["vocab_size"] + -self.config["vocab_size"] % self.config["pad_vocab_size_multiple"]
        prefix = "" if self.head == "Caduceus" else "caduceus."
        found: dict[str, Tensor] = {}

        def draw(name: str, *shape: int, scale: float = 0.5) -> None:
            found[name] = scale * torch.randn(*shape, dtype=torch.float64)

        norm = "submodule." if self.ps and not self.config["fused_add_norm"] else ""
        names = [f"{prefix}backbone.norm_f.{norm}"]
        table = f"{prefix}backbone.embeddings.word_embeddings.{'embedding.' if self.ps else ''}weight"
        draw(table, vocab, D, scale=1.0)
        for layer in range(self.config["n_layer"]):
            place = f"{prefix}backbone.layers.{layer}."
            names.append(f"{place}norm.{norm}")
            for direction in ("mamba_fwd", "mamba_rev"):
                mamba = f"{place}mixer.{'submodule.' if self.ps else ''}{direction}."
                draw(f"{mamba}in_proj.weight", 2 * E, D)
                draw(f"{mamba}conv1d.weight", E, 1, self.taps)
                draw(f"{mamba}x_proj.weight", R + 2 * N, E)
                draw(f"{mamba}dt_proj.weight", E, R)
                draw(f"{mamba}dt_proj.bias", E)
                draw(f"{mamba}A_log", E, N)
                draw(f"{mamba}D", E)
                draw(f"{mamba}out_proj.weight", D, E)
                if self.conv_bias:
                    draw(f"{mamba}conv1d.bias", E)
                if self.bias:
                    draw(f"{mamba}in_proj.bias", 2 * E)
                    draw(f"{mamba}out_proj.bias", D)
                if self.config["bidirectional_weight_tie"] and direction == "mamba_rev":
                    for name in [n for n in found if n.startswith((f"{mamba}in_proj", f"{mamba}out_proj"))]:
                        found[name] = found[name.replace("mamba_rev", "mamba_fwd")]
        for name in names:
            draw(f"{name}weight", D)
            if not self.config["rms_norm"]:
                draw(f"{name}bias", D)
        if self.head == "CaduceusForMaskedLM":
            tied = self.ps or self.config.get("tie_word_embeddings", True)
            head = "lm_head.lm_head.weight" if self.ps else "lm_head.weight"
            draw(head, vocab, D)
            if tied:
                found[head] = found[table]
        elif self.head == "CaduceusForSequenceClassification":
            draw("score.weight", 2, D)
        if self.ps:
            complement = torch.tensor(COMPLEMENT[:vocab] if vocab == 16 else [0, 1, 2, 6, 5, 4, 3, 7])
            found[f"{prefix}backbone.embeddings.word_embeddings.complement_map"] = complement
            if self.head == "CaduceusForMaskedLM":
                found["lm_head.complement_map"] = complement
            self.complement = complement
        self.prefix = prefix
        return found

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.prefix + name]

    def get(self, name: str) -> Tensor | None:
        return self.tensors.get(self.prefix + name)

    def mamba(self, x: Tensor, name: str) -> Tensor:
        u, z = F.linear(x, self[f"{name}in_proj.weight"], self.get(f"{name}in_proj.bias")).chunk(2, -1)
        padded = F.pad(u, (0, 0, self.taps - 1, 0))
        kernel, bias = self[f"{name}conv1d.weight"][:, 0], self.get(f"{name}conv1d.bias")
        u = sum(padded[:, k : k + u.shape[1]] * kernel[:, k] for k in range(self.taps))
        u = F.silu(u if bias is None else u + bias)
        dt, B, C = F.linear(u, self[f"{name}x_proj.weight"]).split([self.rank, self.states, self.states], -1)
        dt = F.softplus(F.linear(dt, self[f"{name}dt_proj.weight"], self[f"{name}dt_proj.bias"]))
        A = -self[f"{name}A_log"].exp()
        h, outputs = torch.zeros(len(x), self.inner, self.states, dtype=x.dtype), []
        for t in range(x.shape[1]):
            h = (dt[:, t, :, None] * A).exp() * h + dt[:, t, :, None] * B[:, t, None, :] * u[:, t, :, None]
            outputs.append((h * C[:, t, None, :]).sum(-1) + self[f"{name}D"] * u[:, t])
        y = torch.stack(outputs, 1) * F.silu(z)
        return F.linear(y, self[f"{name}out_proj.weight"], self.get(f"{name}out_proj.bias"))

    def bimamba(self, x: Tensor, name: str) -> Tensor:
        forward, behind = self.mamba(x, f"{name}mamba_fwd."), self.mamba(x.flip(1), f"{name}mamba_rev.").flip(1)
        return forward * behind if self.config["bidirectional_strategy"] == "ew_multiply" else forward + behind

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.get(f"{name}weight")
        name, weight = (name, weight) if weight is not None else (f"{name}submodule.", self[f"{name}submodule.weight"])
        if self.config["rms_norm"]:
            return x * (x.square().mean(-1, keepdim=True) + self.config["norm_epsilon"]).rsqrt() * weight
        return F.layer_norm(x, (self.size,), weight, self[f"{name}bias"], self.config["norm_epsilon"])

    def hidden(self, ids: Tensor) -> Tensor:
        """The output of the backbone: `(B, L, D)`, or `(B, L, 2 D)` of a PS model."""
        D, layers = self.size, self.config["n_layer"]
        table = self[f"backbone.embeddings.word_embeddings.{'embedding.' if self.ps else ''}weight"]
        if not self.ps:
            r = table[ids]
            for layer in range(layers):
                place = f"backbone.layers.{layer}."
                r = r + self.bimamba(self.norm(r, f"{place}norm."), f"{place}mixer.")
            return self.norm(r, "backbone.norm_f.")
        r = torch.cat([table[ids], rc(table[self.complement[ids].flip(1)])], -1)
        for layer in range(layers):
            place = f"backbone.layers.{layer}."
            if self.config["fused_add_norm"]:
                r = torch.cat([r[..., D:], r[..., :D]], -1)
            normed = self.on_strands(self.norm, r, f"{place}norm.")
            r = r + self.on_strands(self.bimamba, normed, f"{place}mixer.submodule.")
        return self.on_strands(self.norm, r, "backbone.norm_f.")

    def on_strands(self, function: Any, stream: Tensor, name: str) -> Tensor:
        D = self.size
        return torch.cat([function(stream[..., :D], name), rc(function(rc(stream[..., D:]), name))], -1)

    def logits(self, ids: Tensor) -> Tensor:
        """Logits of the head."""
        hidden, D = self.hidden(ids), self.size
        if self.head == "CaduceusForMaskedLM":
            W = self.tensors["lm_head.lm_head.weight" if self.ps else "lm_head.weight"]
            if not self.ps:
                return hidden @ W.T
            return hidden[..., :D] @ W.T + hidden[..., D:].flip(-1) @ W[self.complement].T
        score = self.tensors["score.weight"]
        if not self.ps:
            return hidden.mean(1) @ score.T
        return (hidden[..., :D].mean(1) @ score.T + rc(hidden[..., D:]).mean(1) @ score.T) / 2

    def save(self, folder: Path, *, pickle: bool = False, dtype: torch.dtype = torch.float64) -> Path:
        """Write the folder as the authors' code does: safetensors keep the first name of shared tensors."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        cast = {id(t): t.to(dtype) if t.is_floating_point() else t for t in self.tensors.values()}
        tensors = {name: cast[id(t)] for name, t in self.tensors.items()}
        if pickle:
            torch.save(tensors, folder / "pytorch_model.bin")
            return folder
        seen: set[int] = set()
        first = {n: t for n, t in tensors.items() if not (id(t) in seen or seen.add(id(t))) or "complement" in n}
        save_file({name: tensor.clone() for name, tensor in first.items()}, folder / "model.safetensors")
        return folder


CLASSES: dict[str, Any] = {
    "CaduceusForMaskedLM": SelectiveSSMForMaskedLM,
    "CaduceusForSequenceClassification": SelectiveSSMForSequenceClassification,
    "Caduceus": SelectiveSSMModel,
}
KINDS: dict[str, dict[str, Any]] = {
    "PS fused, even": {},
    "PS fused, odd": {"layers": 3},
    "PS not fused, odd": {"layers": 3, "fused_add_norm": False},
    "PS classifier": {"layers": 3, "head": "CaduceusForSequenceClassification"},
    "PS bare": {"head": "Caduceus"},
    "PS layer norm, biases, untied": {
        "rms_norm": False,
        "ssm_cfg": {"d_state": 3, "bias": True, "conv_bias": False},
        "bidirectional_weight_tie": False,
    },
    "Ph": {"rcps": False, "complement_map": None},
    "Ph biases": {"rcps": False, "ssm_cfg": {"d_state": 2, "bias": True}},
    "Ph product": {
        "rcps": False,
        "bidirectional_strategy": "ew_multiply",
        "ssm_cfg": {"d_state": 2, "bias": True},
        "tie_word_embeddings": False,
    },
    "Ph classifier, default ssm_cfg": {
        "rcps": False,
        "ssm_cfg": None,
        "bidirectional_strategy": None,
        "head": "CaduceusForSequenceClassification",
    },
    "PS product, untied": {"bidirectional_strategy": "ew_multiply", "bidirectional_weight_tie": False},
    "padded vocabulary": {"vocab_size": 12, "complement_map": {str(k): v for k, v in PAIRS.items()}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_parity(kind: str, tmp_path: Path) -> None:
    reference = Reference(**KINDS[kind])
    folder = reference.save(tmp_path / "source", pickle=kind in ("PS bare", "PS classifier", "Ph"))
    model_class = CLASSES[reference.head]
    ids = torch.randint(0, 12, (2, 9))
    ids[0, :3] = 4  # Without a mask, [PAD] is an ordinary token, as in Caduceus.
    bare = reference.head == "Caduceus"
    expected = reference.hidden(ids) if bare else reference.logits(ids)
    model = model_class.from_pretrained(folder, dtype=torch.float64).eval()
    outputs = model(ids)
    found = outputs.last_hidden_state if bare else outputs.logits
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    single = model.float()(ids)
    found = single.last_hidden_state if bare else single.logits
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    model = convert_checkpoint(folder, tmp_path / "target")
    assert type(model) is model_class
    unique = {id(tensor): tensor.numel() for name, tensor in reference.tensors.items() if "complement" not in name}
    assert sum(tensor.numel() for tensor in model.parameters()) == sum(unique.values())
    again = model_class.from_pretrained(tmp_path / "target", dtype=torch.float64).eval()
    outputs = again(ids)
    found = outputs.last_hidden_state if bare else outputs.logits
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_fused_blocks_are_another_function() -> None:
    """The same weights with and without the exchange of strands, and the equivalent form without exchange."""
    reference = Reference(layers=3)
    ids = torch.randint(7, 11, (1, 8))
    fused = reference.hidden(ids)
    table = reference["backbone.embeddings.word_embeddings.embedding.weight"]
    strands = [table[ids], table[reference.complement[ids].flip(1)]]
    for layer in range(3):
        place = f"backbone.layers.{layer}."
        for index, strand in enumerate(strands):
            x = rc(strand) if layer % 2 == 0 else strand
            x = x + reference.bimamba(reference.norm(x, f"{place}norm."), f"{place}mixer.submodule.")
            strands[index] = rc(x) if layer % 2 == 0 else x
    a, b = strands
    ending = [reference.norm(rc(b), "backbone.norm_f."), rc(reference.norm(rc(a), "backbone.norm_f."))]
    torch.testing.assert_close(fused, torch.cat(ending, -1), rtol=1e-12, atol=1e-12)
    reference.config["fused_add_norm"] = False
    reference.tensors = {n.replace("norm.w", "norm.submodule.w"): t for n, t in reference.tensors.items()}
    assert (reference.hidden(ids) - fused).abs().max() > 0.1


def test_padding_is_exact_with_a_mask(tmp_path: Path) -> None:
    """Caduceus has no mask; with one, a padded row gives what it gives alone, padded on either side."""
    reference = Reference(layers=3)
    model = SelectiveSSMForMaskedLM.from_pretrained(reference.save(tmp_path / "m"), dtype=torch.float64).eval()
    ids = torch.randint(7, 12, (1, 6))
    alone = reference.logits(ids)
    for left in (0, 3):
        padded = F.pad(ids, (left, 3 - left), value=4)
        mask = F.pad(torch.ones_like(ids), (left, 3 - left))
        found = model(padded, attention_mask=mask).logits[:, left : left + 6]
        torch.testing.assert_close(found, alone, rtol=1e-12, atol=1e-12)


def test_lexicographic_complement_map(tmp_path: Path) -> None:
    """A configuration that was loaded and saved again has its keys in the order of texts."""
    reference = Reference()
    reference.config["complement_map"] = dict(sorted(reference.config["complement_map"].items()))
    assert list(reference.config["complement_map"])[2] == "10"
    model = SelectiveSSMForMaskedLM.from_pretrained(reference.save(tmp_path / "m"), dtype=torch.float64)
    assert model.config.complement_map == COMPLEMENT
    ids = torch.randint(7, 11, (1, 6))
    torch.testing.assert_close(model.eval()(ids).logits, reference.logits(ids), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "size", "layers", "vocabulary", "ps", "count"),
    [
        ("Caduceus-PS-131k", 256, 16, 12, True, 7_725_312),
        ("Caduceus-Ph-131k", 256, 16, 12, False, 7_725_312),
        ("Caduceus-Ph-1k", 256, 4, 12, False, 1_934_592),
        ("PlantCaduceus_l20", 384, 20, 8, True, 20_870_016),
        ("PlantCaduceus_l24", 512, 24, 8, True, 43_614_720),
        ("PlantCaduceus_l28", 768, 28, 8, True, 112_107_264),
        ("PlantCaduceus_l32", 1024, 32, 8, True, 225_354_752),
    ],
)
def test_published_sizes(name: str, size: int, layers: int, vocabulary: int, ps: bool, count: int) -> None:
    pairs = PAIRS if vocabulary == 12 else {3: 6, 4: 5, 5: 4, 6: 3}
    found = {
        "model_type": "caduceus",
        "d_model": size,
        "n_layer": layers,
        "vocab_size": vocabulary,
        "rcps": ps,
        "complement_map": {str(key): value for key, value in pairs.items()},
    }
    config = SelectiveSSMConfig(**CONVERTER.convert_config(found))
    with torch.device("meta"):
        model = SelectiveSSMForMaskedLM(config)
    assert sum(tensor.numel() for tensor in model.parameters()) == count
    assert config.rc_swap == ps


def test_cli_names_the_number_of_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Published files of language models may name the bare class; the tokenizer comes along."""
    reference = Reference()
    reference.config["architectures"] = ["Caduceus"]
    source = reference.save(tmp_path / "source")
    run_cli(["convert", str(source), str(tmp_path / "target")])
    size = sum(tensor.numel() for tensor in SelectiveSSMForMaskedLM.from_pretrained(source).parameters())
    assert f"SelectiveSSMForMaskedLM with {size:,} parameters" in capsys.readouterr().out
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "target")
    # By the published vocabulary; 1 is [SEP], 6 is [UNK].
    assert tokenizer("ACgtnN").input_ids == [7, 8, 9, 10, 11, 11, 1]
    assert tokenizer("A C\nR[MASK]").input_ids == [7, 6, 8, 6, 6, 3, 1]
    both = tokenizer(["A", "ACG"], padding=True)
    assert both.input_ids == [[4, 4, 7, 1], [7, 8, 9, 1]]
    assert tokenizer.convert_ids_to_tokens(list(range(12)))[:8] == [
        *("[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]", "A"),
    ]


def test_tokenizer_of_plant_caduceus(tmp_path: Path) -> None:
    pairs = {"3": 6, "4": 5, "5": 4, "6": 3}
    source = Reference(vocab_size=7, complement_map=pairs).save(tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512}))
    convert_checkpoint(source, tmp_path / "target")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "target")
    assert tokenizer("acGTn [MASK]").input_ids == [3, 4, 5, 6, 2, 2, 1]
    assert tokenizer(["a", "acg"], padding=True).input_ids == [[3, 0, 0], [3, 4, 5]]
    assert tokenizer.model_max_length == 512
    # A tokenizer of the checkpoint itself is kept.
    tokenizer.add_tokens(["tata"])
    tokenizer.save_pretrained(source)
    convert_checkpoint(source, tmp_path / "again")
    assert AutoTokenizer.from_pretrained(tmp_path / "again")("tataa").input_ids == [7, 3]


def _rename(old: str, new: str) -> Any:
    def change(reference: Reference) -> None:
        reference.tensors = {name.replace(old, new): tensor for name, tensor in reference.tensors.items()}

    return change


def _scale(part: str) -> Any:
    def change(reference: Reference) -> None:
        name = next(name for name in reference.tensors if part in name)
        reference.tensors[name] = reference.tensors[name] * 2

    return change


def _config(**fields: Any) -> Any:
    return lambda reference: reference.config.update(fields)


SSM = {"d_state": 3, "d_conv": 3, "dt_rank": 2}
CONTRADICTIONS: list[tuple[Any, str]] = [
    (_config(d_model=5), r"word_embeddings.embedding.weight has the shape \(16, 6\), but `d_model`"),
    (_config(vocab_size=24), r"word_embeddings.embedding.weight has the shape \(16, 6\), but `vocab_size`"),
    (_config(n_layer=3), r"last one is that of backbone.layers.1.* `n_layer`=3"),
    (_config(n_layer=1), r"last one is that of backbone.layers.1.* `n_layer`=1"),
    (
        _config(ssm_cfg={**SSM, "d_state": 4}),
        r"x_proj.weight has .* `ssm_cfg.dt_rank or ssm_cfg.d_s",
    ),
    (_config(ssm_cfg={**SSM, "d_conv": 4}), r"conv1d.weight has .* `ssm_cfg.d_conv`"),
    (
        _config(ssm_cfg={**SSM, "expand": 3}),
        r"in_proj.weight has .* `ssm_cfg.expand`",
    ),
    (
        _config(ssm_cfg={**SSM, "bias": True}),
        r"in_proj.bias is missing.*ssm_cfg.bias",
    ),
    (
        _config(ssm_cfg={**SSM, "conv_bias": False}),
        r"has backbone.layers.*conv1d.bias, which contradicts `ssm_cfg.conv_bias`=false",
    ),
    (_config(rms_norm=False), r"norm_f.bias is missing, which contradicts `rms_norm`=false"),
    (_config(rcps=False), r"word_embeddings.weight is missing, which contradicts `rcps`=false"),
    (_config(fused_add_norm=False), r"norm_f.submodule.weight is missing, which contradicts `fused_add_norm`=false"),
    (_config(bidirectional_weight_tie=False), r"mamba_rev.in_proj.weight is missing.*`bidirectional_weight_tie`=false"),
    (_config(bidirectional=False), r"mamba_rev.*contradicts `bidirectional`=false"),
    (_config(complement_map=None), r"no `complement_map`"),
    (_config(complement_map={"7": 8, "8": 7}), r"complement_map is \[0, 1.* `complement_map` of the configuration"),
    (_config(complement_map={"7": 8}), r"the complement of a complement"),
    (_config(ssm_cfg={"layer": "Mamba2"}), r"`ssm_cfg` has options that Mamba does not have: 'layer'"),
    (_config(d_model="6"), r"`d_model` must be a positive integer, got '6'"),
    (_config(bidirectional_strategy="mean"), r"'mean'"),
    (_rename("x_proj.weight", "x_projection.weight"), r"missing model.layers.0.mixer.reverse_scan.x_proj.weight"),
    (_scale("lm_head.lm_head"), r"lm_head.lm_head.weight differs from .*embedding.weight, but `rcps`=true"),
    (_scale("mamba_rev.out_proj"), r"mamba_rev.out_proj.weight differs .* `bidirectional_weight_tie`=true"),
]


@pytest.mark.parametrize(("change", "message"), CONTRADICTIONS)
def test_tensors_that_contradict_the_configuration(change: Any, message: str, tmp_path: Path) -> None:
    reference = Reference()
    change(reference)
    source = reference.save(tmp_path / "source")
    with pytest.raises(ValueError, match=message) as error:
        convert_checkpoint(source, tmp_path / "target")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "target").exists()
    with pytest.raises(ValueError, match=message):
        SelectiveSSMForMaskedLM.from_pretrained(source)


def test_head_of_an_untied_language_model(tmp_path: Path) -> None:
    """A trained head of a Ph model whose configuration ties it, as it does where the field is absent."""
    reference = Reference(rcps=False, tie_word_embeddings=False)
    del reference.config["tie_word_embeddings"]
    with pytest.raises(ValueError, match=r"lm_head.weight differs .* `tie_word_embeddings`=true"):
        convert_checkpoint(reference.save(tmp_path / "source"), tmp_path / "target")


def test_new_head_and_conjoined_scores(tmp_path: Path) -> None:
    """A language model starts a classifier; a Ph classifier with `rc_conjoin` averages the scores of both strands."""
    folder = Reference().save(tmp_path / "lm", dtype=torch.float32)
    model, info = SelectiveSSMForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert info["missing_keys"] == {"classifier.weight"}
    assert model.config.rc_equivariant
    reference = Reference("CaduceusForSequenceClassification", rcps=False)
    folder = reference.save(tmp_path / "classifier")
    options: dict[str, Any] = {"dtype": torch.float64}
    model = SelectiveSSMForSequenceClassification.from_pretrained(folder, rc_conjoin="eval", **options).eval()
    ids = torch.randint(7, 12, (2, 7))
    other = torch.tensor(COMPLEMENT)[ids].flip(1)
    expected = (reference.logits(ids) + reference.logits(other)) / 2
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.train()(ids).logits, reference.logits(ids), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rcps", [True, False])
def test_classifier_of_the_largest_values(rcps: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pooling_strategy="max"`, an argument of the authors' class that the files do not record."""
    reference = Reference("CaduceusForSequenceClassification", rcps=rcps)
    source, target = reference.save(tmp_path / "source"), tmp_path / "target"
    assert run_cli(["convert", str(source), str(target), "--pooling", "max"]) == 0
    assert "pooling='max' (--pooling)" in capsys.readouterr().out
    ids = torch.randint(7, 12, (2, 7))
    hidden, size = reference.hidden(ids), reference.size
    strands = [hidden[..., :size], rc(hidden[..., size:])] if rcps else [hidden]
    largest = [torch.stack([row.T.max(1).values for row in strand]) for strand in strands]
    expected = sum(values @ reference.tensors["score.weight"].T for values in largest) / len(strands)
    for model in (
        SelectiveSSMForSequenceClassification.from_pretrained(target, dtype=torch.float64),
        SelectiveSSMForSequenceClassification.from_pretrained(source, pooling="max", dtype=torch.float64),
    ):
        torch.testing.assert_close(model.eval()(ids).logits, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="must be 'mean' or 'max', got 'first'"):
        convert_checkpoint(source, tmp_path / "other", pooling="first")


def test_no_code_of_the_folder_runs(tmp_path: Path) -> None:
    source = Reference().save(tmp_path / "source")
    for name in ("modeling_caduceus", "configuration_caduceus", "tokenization_caduceus"):
        (source / f"{name}.py").write_text("raise SystemExit('executed')\n")
    convert_checkpoint(source, tmp_path / "target")
    hf_ssm.SelectiveSSMForMaskedLM.from_pretrained(source)
