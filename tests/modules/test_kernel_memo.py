"""The transform of a kernel, once per step of a checkpointed layer."""

import copy
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hf_ssm import HyenaConfig, HyenaModel, S4Config, S4Model
from hf_ssm.modules import kernel_memo
from hf_ssm.ops.kernels import use_kernels

pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")

LENGTH, SIZE = 20, 6
MODELS = {
    "S4": lambda: S4Model(S4Config(hidden_size=SIZE, state_size=4, num_hidden_layers=2, vocab_size=5)),
    "Hyena": lambda: HyenaModel(
        HyenaConfig(hidden_size=SIZE, num_hidden_layers=2, vocab_size=5, hyena_order=3, filter_order=8)
    ),
    "two-sided": lambda: HyenaModel(
        HyenaConfig(hidden_size=SIZE, num_hidden_layers=2, vocab_size=5, bidirectional=True, filter_order=8)
    ),
}


@pytest.fixture(autouse=True)
def transforms() -> Iterator[None]:
    with use_kernels("torch"):
        yield


@pytest.fixture
def counted(monkeypatch) -> Counter[str]:
    """How many transforms of kernels, `(channels, taps)`, and of inputs, `(rows, channels, positions)`, there were."""
    counts: Counter[str] = Counter()
    rfft = torch.fft.rfft

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        counts["kernels" if tensor.dim() == 2 else "inputs"] += 1
        return rfft(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.fft, "rfft", counting)
    return counts


def build(kind: str, reentrant: bool | None) -> torch.nn.Module:
    torch.manual_seed(0)
    model = MODELS[kind]().train()
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model


def memos(model: torch.nn.Module) -> list[kernel_memo.KernelMemo]:
    return [layer.mixer.long_conv._memo for layer in model.layers]


def inputs(batch: int = 3, length: int = LENGTH) -> torch.Tensor:
    return torch.randn(batch, length, SIZE, generator=torch.Generator().manual_seed(1)).requires_grad_()


def gradients(model: torch.nn.Module, length: int = LENGTH) -> list[torch.Tensor]:
    embeds = inputs(length=length)
    output = model(inputs_embeds=embeds).last_hidden_state
    wanted = [p for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    output.pow(2).sum().backward()
    return [output.detach(), embeds.grad, *(p.grad for p in wanted if p.grad is not None)]


@pytest.mark.parametrize("reentrant", [None, True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_each_kernel_is_transformed_once(counted, kind, reentrant):
    model = build(kind, reentrant)
    for _ in range(2):
        counted.clear()
        gradients(model)
        assert counted["kernels"] == (4 if kind == "Hyena" else 2)
        assert counted["inputs"] > 0
        assert [len(memo) for memo in memos(model)] == [0, 0]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_no_bit_depends_on_it(monkeypatch, kind, reentrant):
    remembered = gradients(build(kind, reentrant))
    monkeypatch.setattr(kernel_memo.KernelMemo, "spectrum", lambda *args: None)
    again, plain = gradients(build(kind, reentrant)), gradients(build(kind, None))
    for one, other, third in zip(remembered, again, plain, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, third)


@pytest.mark.parametrize("reentrant", [True, False])
def test_it_is_kept_until_it_is_used_and_no_longer(reentrant):
    model = build("S4", reentrant)
    output = model(inputs_embeds=inputs()).last_hidden_state
    assert [len(memo) for memo in memos(model)] == [1, 1]
    output.sum().backward()
    assert [len(memo) for memo in memos(model)] == [0, 0]
    model(inputs_embeds=inputs())
    with torch.no_grad():
        model.eval()(inputs_embeds=inputs())
    assert [len(memo) for memo in memos(model)] == [0, 0]


def test_without_checkpoints_nothing_is_kept():
    model = build("S4", None)
    model(inputs_embeds=inputs())
    assert [len(memo) for memo in memos(model)] == [0, 0]
    model.gradient_checkpointing_enable()
    # A layer left out, as with `every_n_layers`.
    model.layers[0].gradient_checkpointing = False
    model(inputs_embeds=inputs())
    assert [len(memo) for memo in memos(model)] == [0, 1]


@pytest.mark.parametrize("how", ["in place", "data", "other parameter"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_changed_weights_are_seen(reentrant, how):
    model = build("S4", reentrant)
    model(inputs_embeds=inputs())
    for layer in model.layers:
        skip = layer.mixer.long_conv.D
        if how == "in place":
            with torch.no_grad():
                skip.add_(1.0)
        elif how == "data":
            skip.data += 1.0
        else:
            layer.mixer.long_conv.D = torch.nn.Parameter(skip.detach() + 1.0)
    found = gradients(model)
    plain = build("S4", None)
    plain.load_state_dict(model.state_dict())
    for one, other in zip(found, gradients(plain), strict=True):
        torch.testing.assert_close(one, other)


def test_weights_changed_before_the_recomputation_are_seen(counted):
    model = build("S4", False)
    output = model(inputs_embeds=inputs()).last_hidden_state
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.long_conv.D.add_(1.0)
    counted.clear()
    output.sum().backward()
    assert counted["kernels"] == 2


def test_two_passes_before_the_gradients(counted):
    model, plain = build("S4", False), build("S4", None)
    for each in (model, plain):
        lengths = (LENGTH, LENGTH + 3, LENGTH)
        losses = [each(inputs_embeds=inputs(length=n)).last_hidden_state.pow(2).sum() for n in lengths]
        sum(losses).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_gradients_twice():
    model = build("S4", False)
    loss = model(inputs_embeds=inputs()).last_hidden_state.pow(2).sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    loss.backward()
    twice = [p.grad for p in model.parameters() if p.grad is not None]
    for one, other in zip(once, twice, strict=True):
        torch.testing.assert_close(2 * one, other)


def test_it_is_part_of_no_copy():
    model = build("S4", False)
    names = set(model.state_dict())
    model(inputs_embeds=inputs())
    assert set(model.state_dict()) == names
    layer = model.layers[0].mixer.long_conv
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert len(layer._memo) == 1
        assert len(other._memo) == 0
        assert other._memo is not layer._memo


def test_threads_may_share_a_model():
    model, plain = build("S4", False), build("S4", None)
    lengths = [LENGTH, LENGTH + 1, LENGTH, LENGTH + 5]
    found: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        for _ in range(5):
            embeds = inputs(length=lengths[number])
            output = model(inputs_embeds=embeds).last_hidden_state
            (found[number],) = torch.autograd.grad(output.pow(2).sum(), embeds)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, length in enumerate(lengths):
        embeds = inputs(length=length)
        output = plain(inputs_embeds=embeds).last_hidden_state
        torch.testing.assert_close(found[number], torch.autograd.grad(output.pow(2).sum(), embeds)[0])
