"""Contests: implementations of the same computation, with the same inputs or the same weights.

Dimensions: `B` batch, `L` length, `D` channels, `N` states, `H` conjugate pairs. On CUDA sequences and models are
bfloat16, and the dynamics float32.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import transformers
from _measure import Call
from _peers import (
    fft_convolution,
    has_mambapy,
    listed_s4d_kernel,
    mamba2_products,
    matrix_products,
    multiply,
    multiply_and_differentiate,
    transformers_scan,
    transformers_ssd,
)
from torch import Tensor

import hf_ssm
from hf_ssm.models.selective import mixer_selective
from hf_ssm.models.ssd import modeling_ssd
from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.lti.diagonal import diagonal_kernel
from hf_ssm.ops.selective_scan import selective_scan
from hf_ssm.ops.ssd import ssd_scan

OURS, OURS_TORCH = "ours", "ours, plain torch"
OURS_UNFUSED = "ours, module by module"
TRANSFORMERS, MAMBAPY = "transformers", "transformers with mambapy"
LISTING, AUTOGRAD_FFT = "S4D listing", "torch.fft"
PRODUCTS = "matrix products"
PROMPT_LENGTH = 16


@dataclass(frozen=True)
class Contest:
    """A set of contenders.

    Attributes:
        contenders: Calls by name, ours first.
        tolerance: Largest difference of the results, relative to the largest value.
        floor: Names of the contenders that are not peers but unavoidable work; their sum is the floor.
    """

    contenders: dict[str, Call]
    tolerance: float = 1e-3
    floor: Sequence[str] = ()


def sequence_dtype(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


def _tolerance(device: str) -> float:
    return 5e-2 if device == "cuda" else 1e-3


def _channels_last(t: Tensor) -> Tensor:
    """Swap the last two axes of a three-dimensional tensor; return others unchanged."""
    return t.transpose(1, 2) if t.dim() == 3 else t


def _with_gradients(
    function: Callable[..., Tensor],
    inputs: dict[str, Tensor],
    like: Tensor | None,
    channels_first: bool = False,
) -> Call:
    """A call of `function(**inputs)`; with `like`, also of its gradients for a fixed random cotangent.

    `like` has the shape and dtype of the result. With `channels_first`, positions are the last axis of the function,
    and its results are transposed for the comparison.
    """
    backward = like is not None
    turn = _channels_last if channels_first else lambda t: t
    leaves = {name: value.detach().requires_grad_(backward) for name, value in inputs.items()}
    cotangents: list[Tensor] = []
    if like is not None:
        # Outside of the call, so that it is not measured.
        random = torch.rand(like.shape, generator=torch.Generator().manual_seed(1)) - 0.5
        cotangents.append(turn(random.to(like)).contiguous())

    def call() -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(backward):
            y = function(**leaves)
        if not backward:
            return (turn(y),)
        grads = torch.autograd.grad(y, list(leaves.values()), cotangents)
        return (turn(y.detach()), *map(turn, grads))

    return call


def _in_plain_torch(call: Call) -> Call:
    def switched() -> tuple[Tensor, ...]:
        with use_backend("torch"):
            return call()

    return switched


def _scan_inputs(batch: int, channels: int, states: int, length: int, device: str) -> dict[str, Tensor]:
    """Inputs of a Mamba block's scan, with its initial A and step sizes between 0.001 and 0.1."""
    random = torch.Generator().manual_seed(0)
    along, wide = (batch, length, states), (batch, length, channels)
    steps = torch.exp(torch.rand(channels, generator=random) * math.log(100) + math.log(0.001))
    rolling = {name: torch.randn(*wide, generator=random) for name in ("u", "delta", "z")}
    rolling |= {name: torch.randn(*along, generator=random) for name in ("B", "C")}
    rolling = {name: value.to(device, sequence_dtype(device)) for name, value in rolling.items()}
    matrix = -torch.arange(1.0, states + 1).expand(channels, states).contiguous()
    fixed = {"A": matrix, "D": torch.ones(channels), "delta_bias": torch.log(torch.expm1(steps))}
    fixed = {name: value.to(device) for name, value in fixed.items()}
    return {**rolling, **fixed}


def scan(batch: int, channels: int, states: int, length: int, backward: bool, device: str = "cpu") -> Contest:
    """The selective scan with softplus, bias, skip and gate; gradients of all eight inputs."""
    inputs = _scan_inputs(batch, channels, states, length, device)
    # Each reads the layout that it asks for.
    first = {name: _channels_last(t).contiguous() for name, t in inputs.items()}
    like = inputs["u"] if backward else None
    ours = _with_gradients(partial(selective_scan, delta_softplus=True), inputs, like)
    contenders = {OURS: ours, OURS_TORCH: _in_plain_torch(ours)}

    def peer(use_mambapy: bool) -> Call:
        def function(**given: Tensor) -> Tensor:
            return transformers_scan(given, use_mambapy)

        return _with_gradients(function, first, like, channels_first=True)

    if device == "cuda" or not backward:
        # The gradient of the loop's indexing is quadratic in L, and takes minutes for thousands of positions.
        contenders[TRANSFORMERS] = peer(False)
    if device == "cpu" and has_mambapy():
        contenders[MAMBAPY] = peer(True)
    return Contest(contenders, _tolerance(device))


def _mamba_pair(hidden: int, layers: int, vocabulary: int, device: str, use_mambapy: bool) -> tuple[Any, Any]:
    """A Mamba model of this package and one of transformers with the same weights."""
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        hidden_size=hidden, num_hidden_layers=layers, vocab_size=vocabulary, use_mambapy=use_mambapy
    )
    theirs = transformers.MambaForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        given = {"dtype": sequence_dtype(device)}
        ours = hf_ssm.SelectiveSSMForCausalLM.from_pretrained(folder, **given)
        theirs = transformers.MambaForCausalLM.from_pretrained(folder, **given)
    return ours.to(device), theirs.to(device)


def _step(model: Any, ids: Tensor) -> tuple[Tensor, ...]:
    """Forward, loss and backward; returns the loss and the gradient of the embedding, which the head shares."""
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.detach(), model.get_input_embeddings().weight.grad


def training(
    batch: int, length: int, hidden: int, layers: int, states: int = 16, vocabulary: int = 256, device: str = "cpu"
) -> Contest:
    """One training step of a Mamba model, without optimizer; on a CPU also its matrix products alone."""
    use_mambapy = device == "cpu"
    ours, theirs = (model.train() for model in _mamba_pair(hidden, layers, vocabulary, device, use_mambapy))
    ids = torch.randint(0, vocabulary, (batch, length), device=device)
    contenders: dict[str, Call] = {OURS: partial(_step, ours, ids)}
    if device == "cuda":
        contenders[TRANSFORMERS] = partial(_step, theirs, ids)
        return Contest(contenders, _tolerance(device))
    if has_mambapy():
        contenders[MAMBAPY] = partial(_step, theirs, ids)
    products = matrix_products(batch * length, hidden, states, layers, vocabulary)
    contenders[PRODUCTS] = partial(multiply_and_differentiate, products)
    return Contest(contenders, floor=(PRODUCTS,))


def _generate(model: Any, prompt: Tensor, tokens: int) -> tuple[Tensor, ...]:
    """Greedy decoding with the cache: the tokens, or in half precision, where these can differ, the first logits."""
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return (made.sequences,) if model.dtype == torch.float32 else (made.logits[0],)


def decoding(tokens: int, hidden: int, layers: int, vocabulary: int = 256, device: str = "cpu") -> Contest:
    """Greedy generation with batch 1 through each model's own `generate`."""
    ours, theirs = (model.eval() for model in _mamba_pair(hidden, layers, vocabulary, device, use_mambapy=False))
    prompt = torch.randint(0, vocabulary, (1, PROMPT_LENGTH), device=device)
    mine = partial(_generate, ours, prompt, tokens)

    def unfused() -> tuple[Tensor, ...]:
        with patch.object(mixer_selective, "decode", lambda *args: None):
            return mine()

    contenders = {
        OURS: mine,
        OURS_UNFUSED: unfused,
        OURS_TORCH: _in_plain_torch(mine),
        TRANSFORMERS: partial(_generate, theirs, prompt, tokens),
    }
    return Contest(contenders, _tolerance(device))


def ssd(batch: int, heads: int, states: int, length: int, backward: bool, device: str = "cpu") -> Contest:
    """The scan of Mamba-2 with heads of 64 channels, one group, softplus, bias and skip; gradients of all inputs."""
    random = torch.Generator().manual_seed(0)
    steps = torch.exp(torch.rand(heads, generator=random) * math.log(100) + math.log(0.001))
    rolling = {
        "x": torch.randn(batch, length, heads, 64, generator=random),
        "dt": torch.randn(batch, length, heads, generator=random),
        **{name: torch.randn(batch, length, 1, states, generator=random) for name in ("B", "C")},
    }
    fixed = {"A": -torch.rand(heads, generator=random) * 15 - 1, "D": torch.ones(heads)}
    inputs = {name: value.to(device, sequence_dtype(device)) for name, value in rolling.items()}
    fixed["dt_bias"] = torch.log(torch.expm1(steps))
    inputs |= {name: value.to(device) for name, value in fixed.items()}
    like = inputs["x"] if backward else None
    ours = _with_gradients(partial(ssd_scan, dt_softplus=True), inputs, like)
    theirs = _with_gradients(lambda **given: transformers_ssd(given), inputs, like)
    return Contest({OURS: ours, TRANSFORMERS: theirs}, _tolerance(device))


def _mamba2_pair(hidden: int, layers: int, states: int, vocabulary: int, device: str) -> tuple[Any, Any]:
    """A Mamba-2 model of this package and one of transformers with the same weights."""
    torch.manual_seed(0)
    config = transformers.Mamba2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        state_size=states,
        vocab_size=vocabulary,
        n_groups=1,
        num_heads=hidden // 32,
        head_dim=64,
    )
    with tempfile.TemporaryDirectory() as folder:
        transformers.Mamba2ForCausalLM(config).save_pretrained(folder)
        given = {"dtype": sequence_dtype(device)}
        ours = hf_ssm.SSDForCausalLM.from_pretrained(folder, **given)
        theirs = transformers.Mamba2ForCausalLM.from_pretrained(folder, **given)
    return ours.to(device), theirs.to(device)


def mamba2(
    batch: int,
    length: int,
    hidden: int,
    layers: int,
    states: int,
    backward: bool,
    vocabulary: int = 256,
    device: str = "cpu",
) -> Contest:
    """Logits of a Mamba-2 model, or one training step without optimizer; on a CPU also its matrix products alone."""
    models = (model.train(backward) for model in _mamba2_pair(hidden, layers, states, vocabulary, device))
    ids = torch.randint(0, vocabulary, (batch, length), device=device)

    def logits(model: Any) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (model(ids, use_cache=False).logits,)

    ours, theirs = (partial(_step, model, ids) if backward else partial(logits, model) for model in models)
    contenders: dict[str, Call] = {OURS: ours, TRANSFORMERS: theirs}
    if device == "cuda":
        return Contest(contenders, _tolerance(device))
    products = mamba2_products(batch * length, hidden, states, layers, vocabulary)
    contenders[PRODUCTS] = partial(multiply_and_differentiate if backward else multiply, products)
    return Contest(contenders, floor=(PRODUCTS,))


def decoding2(
    tokens: int, hidden: int, layers: int, states: int = 128, vocabulary: int = 256, device: str = "cpu"
) -> Contest:
    """Greedy generation from a Mamba-2 model with batch 1 through each model's own `generate`."""
    ours, theirs = (model.eval() for model in _mamba2_pair(hidden, layers, states, vocabulary, device))
    prompt = torch.randint(3, vocabulary, (1, PROMPT_LENGTH), device=device)
    mine = partial(_generate, ours, prompt, tokens)

    def unfused() -> tuple[Tensor, ...]:
        with patch.object(modeling_ssd, "decode", lambda *args: None):
            return mine()

    contenders = {
        OURS: mine,
        OURS_UNFUSED: unfused,
        OURS_TORCH: _in_plain_torch(mine),
        TRANSFORMERS: partial(_generate, theirs, prompt, tokens),
    }
    return Contest(contenders, _tolerance(device))


def lti(channels: int, pairs: int, length: int, backward: bool, device: str = "cpu") -> Contest:
    """The kernel of S4D-Lin, eigenvalues -1/2 + i pi n; gradients of eigenvalues, weights and step sizes."""
    random = torch.Generator().manual_seed(0)
    imaginary = math.pi * torch.arange(pairs).expand(channels, pairs)
    inputs = {
        "a": torch.complex(torch.full_like(imaginary, -0.5), imaginary),
        "c": torch.randn(channels, pairs, dtype=torch.complex64, generator=random),
        "dt": torch.exp(torch.rand(channels, generator=random) * math.log(100) + math.log(0.001)),
    }
    inputs = {name: value.to(device) for name, value in inputs.items()}

    def ours(a: Tensor, c: Tensor, dt: Tensor) -> Tensor:
        return diagonal_kernel(a, torch.ones_like(a), c, dt, length)

    like = torch.empty(channels, length, device=device) if backward else None
    contenders = {OURS: _with_gradients(ours, inputs, like)}
    contenders[LISTING] = _with_gradients(partial(listed_s4d_kernel, length=length), inputs, like)
    # The listing rounds phases of thousands of radians to float32.
    return Contest(contenders, tolerance=1e-2)


def convolution(batch: int, channels: int, length: int, backward: bool, device: str = "cpu") -> Contest:
    """Causal convolution with a kernel as long as the input; gradients of input and kernel."""
    random = torch.Generator().manual_seed(0)
    u = torch.randn(batch, length, channels, generator=random).to(device, sequence_dtype(device))
    decay = torch.exp(-torch.arange(length) * 8 / length)
    kernel = (torch.randn(channels, length, generator=random) * decay).to(device)
    # Each reads the layout that it asks for.
    first = {"u": _channels_last(u).contiguous(), "kernel": kernel}
    like = u if backward else None
    contenders = {OURS: _with_gradients(long_conv, {"u": u, "kernel": kernel}, like)}
    contenders[AUTOGRAD_FFT] = _with_gradients(fft_convolution, first, like, channels_first=True)
    return Contest(contenders, _tolerance(device))


def forward(family: str, hidden: int, layers: int, length: int, device: str = "cpu") -> Contest:
    """Logits of one sequence from a causal model of a family, `"selective"`, `"S4D"` or `"Hyena"`; no peer."""
    common = {"hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": 12}
    configs: dict[str, Callable[[], Any]] = {
        "selective": lambda: hf_ssm.SelectiveSSMConfig(**common),
        "S4D": lambda: hf_ssm.S4Config(**common),
        "Hyena": lambda: hf_ssm.HyenaConfig(max_position_embeddings=length, **common),
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(configs[family]()).eval()
    model = model.to(device, sequence_dtype(device))
    ids = torch.randint(0, 12, (1, length), device=device)

    def call() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (model(ids, use_cache=False).logits,)

    return Contest({OURS: call})


CONTESTS: dict[str, Callable[..., Contest]] = {
    build.__name__: build for build in (scan, training, decoding, ssd, mamba2, decoding2, lti, convolution, forward)
}
