"""The Triton kernels of one position against the references in double precision, and decoding by them."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from costs.decoding import blocks_cost, ssd_blocks_cost, ssd_step_cost, step_cost
from decoding_references import blocks_step_reference, ssd_blocks_step_reference
from proofs import TOLERANCE, assert_counted, assert_near, assert_parity, counted

import hf_ssm.models.selective.modeling_selective as selective
import hf_ssm.models.ssd.modeling_ssd as duality
from hf_ssm.models.base.cache import SSMCache
from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.gpu import projection
from hf_ssm.ops.gpu.projection import _normalize, _project
from hf_ssm.ops.selective_scan import selective_scan_step
from hf_ssm.ops.selective_scan.decoding import BlockOptions, BlockWeights, find_blocks_step
from hf_ssm.ops.selective_scan.triton_decoding import _update as scan_update
from hf_ssm.ops.ssd import ssd_step
from hf_ssm.ops.ssd.decoding import (
    SSDBlockOptions,
    SSDBlockWeights,
    find_ssd_blocks_step,
)
from hf_ssm.ops.ssd.triton_decoding import _update as ssd_update

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def few_programs(monkeypatch) -> None:
    """Programs of many rows, since each program takes the interpreter long."""
    monkeypatch.setattr(projection, "rows_of_program", lambda rows, batch: 32)


class Maker:
    """Random tensors on a device, not too large, as after a matrix."""

    def __init__(self, device: str, dtype: torch.dtype):
        self.options: dict[str, Any] = {"device": device, "dtype": dtype}

    def __call__(self, *shape: int, wanted: bool = True) -> Any:
        return torch.randn(*shape, **self.options) / max(1, shape[-1]) ** 0.5 if wanted else None


def mamba_weights(make, shape, norm, biases, logarithmic) -> BlockWeights:
    size, channels, states, rank, taps = shape
    A = make(channels, states)
    return BlockWeights(
        norm_weight=make(size, wanted=norm != "none"),
        norm_bias=make(size, wanted=norm == "layer"),
        in_weight=make(2 * channels, size),
        in_bias=make(2 * channels, wanted=biases),
        conv_weight=make(channels, 1, taps),
        conv_bias=make(channels, wanted=biases),
        x_weight=make(rank + 2 * states, channels),
        dt_weight=make(channels, rank),
        dt_bias=make(channels),
        A=A if logarithmic else -A.abs(),
        skip=make(channels, wanted=biases),
        out_weight=make(size, channels),
        out_bias=make(size, wanted=biases),
    )


def mamba2_weights(make, shape, norm, biases, gated, per_channel) -> SSDBlockWeights:
    size, heads, head_size, groups, states, taps = shape
    channels = heads * head_size
    mixed = channels + 2 * groups * states
    return SSDBlockWeights(
        norm_weight=make(size, wanted=norm != "none"),
        norm_bias=make(size, wanted=norm == "layer"),
        in_weight=make(channels + mixed + heads, size),
        in_bias=make(channels + mixed + heads, wanted=biases),
        conv_weight=make(mixed, 1, taps),
        conv_bias=make(mixed, wanted=biases),
        dt_bias=make(heads),
        A_log=make(heads),
        skip=make(channels if per_channel else heads),
        gate_weight=make(channels, wanted=gated),
        out_weight=make(size, channels),
        out_bias=make(size, wanted=biases),
    )


def double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double().cpu()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(double, value))
    return [double(part) for part in value] if isinstance(value, (list, tuple)) else value


def check_blocks(find, reference, blocks, options, batch, past_shape, state_shape, positions=1) -> None:
    """Blocks over some positions; the states are read only, and memory of the results is new."""
    w = blocks[0]
    device, dtype = w.out_weight.device, w.out_weight.dtype
    final = blocks[-1].norm_weight, blocks[-1].norm_bias
    pasts = torch.randn(len(blocks), batch, *past_shape, device=device, dtype=dtype)
    states = torch.randn(len(blocks), batch, *state_shape, device=device)
    with use_backend("triton"):
        step = find(blocks, options, final)
    found, expected = (None, pasts, states), (None, double(pasts), double(states))
    for _ in range(positions):
        hidden = torch.randn(batch, 1, w.out_weight.shape[0], device=device, dtype=dtype)
        copies = [memory.clone() for memory in found[1:]]
        after = step(hidden, *found[1:])
        for memory, copied in zip(found[1:], copies, strict=True):
            assert torch.equal(memory, copied)
        found = after
        outputs, *memories = reference(double(hidden)[:, 0], *expected[1:], double(blocks), options, double(final))
        expected = outputs.unsqueeze(2), *memories
        for name, a, b in zip(("outputs", "pasts", "states"), found, expected, strict=True):
            assert_near(a.cpu(), b, TOLERANCE[dtype], name)
    assert found[0].dtype == found[2].dtype == F32
    assert found[1].dtype == dtype


def check_mamba(device, dtype, batch, shape, norm="rms", flags=(True,) * 4, count=2, positions=1) -> None:
    biases, norm_first, residual, logarithmic = flags
    make = Maker(device, dtype)
    blocks = [mamba_weights(make, shape, norm, biases, logarithmic) for _ in range(count)]
    options = BlockOptions(norm, 1e-5, norm_first, residual, logarithmic)
    _, channels, states, _, taps = shape
    memories = (taps - 1, channels), (channels, states)
    check_blocks(find_blocks_step, blocks_step_reference, blocks, options, batch, *memories, positions)


def check_mamba2(device, dtype, batch, shape, norm="rms", flags=(True,) * 6, limit=(0.0, math.inf), count=2) -> None:
    biases, norm_first, residual, gated, gate_last, per_channel = flags
    make = Maker(device, dtype)
    _, heads, head_size, groups, states, taps = shape
    blocks = [mamba2_weights(make, shape, norm, biases, gated, per_channel) for _ in range(count)]
    options = SSDBlockOptions(norm, 1e-5, norm_first, residual, groups, 1e-4, gate_last, limit)
    memories = (taps - 1, heads * head_size + 2 * groups * states), (heads, head_size, states)
    check_blocks(find_ssd_blocks_step, ssd_blocks_step_reference, blocks, options, batch, *memories)


@pytest.mark.parametrize(("batch", "dtype"), [(1, F32), (3, F32), (5, F32), (1, BF16), (5, BF16), (5, F16)])
def test_mamba_blocks(device, dtype, batch):
    check_mamba(device, dtype, batch, (20, 37, 5, 3, 4))


def test_programs_of_usual_size(device, monkeypatch):
    monkeypatch.undo()
    assert [projection.rows_of_program(*sizes) for sizes in ((80, 4), (768, 4), (5000, 1), (80, 5))] == [2, 4, 8, 16]
    check_mamba(device, F32, 1, (12, 7, 3, 2, 3), "layer", count=1, positions=2)


@pytest.mark.parametrize(("batch", "dtype"), [(1, F32), (3, F32), (5, F32), (1, BF16), (5, BF16)])
def test_mamba2_blocks(device, dtype, batch):
    check_mamba2(device, dtype, batch, (20, 2, 9, 2, 5, 4))


@given(
    batch=st.integers(1, 5),
    # Hidden size, channels, states, rank, taps.
    shape=st.tuples(*(st.integers(1, largest) for largest in (30, 24, 9, 5, 4))),
    norm=st.sampled_from(["none", "layer", "rms"]),
    flags=st.tuples(*[st.booleans()] * 4),
)
@settings(max_examples=6)
def test_mamba_blocks_of_any_shape(batch, shape, norm, flags):
    device = "cpu" if torch.cuda.device_count() == 0 else "cuda"
    check_mamba(device, F32, batch, shape, norm, flags, count=1 + flags[0])


@given(
    batch=st.integers(1, 5),
    # Hidden size, heads of a group, their size, groups, states, taps.
    shape=st.tuples(*(st.integers(1, largest) for largest in (30, 2, 12, 3, 9, 4))),
    norm=st.sampled_from(["none", "layer", "rms"]),
    flags=st.tuples(*[st.booleans()] * 6),
    limit=st.sampled_from([(0.0, math.inf), (0.5, 1.0)]),
)
@settings(max_examples=6)
def test_mamba2_blocks_of_any_shape(batch, shape, norm, flags, limit):
    device = "cpu" if torch.cuda.device_count() == 0 else "cuda"
    size, heads, head_size, groups, *rest = shape
    check_mamba2(device, F32, batch, (size, heads * groups, head_size, groups, *rest), norm, flags, limit, 1 + flags[0])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [_project, _normalize, scan_update, ssd_update], ids=lambda kernel: kernel.name)
def test_every_configuration(device, kernel, monkeypatch):
    # More columns than a tile of a program, a rank of more than one block, heads of more than one.
    for config in kernel.configs:
        monkeypatch.setattr(kernel, "configs", [config])
        if kernel is not ssd_update:
            check_mamba(device, F32, 3, (140, 20, 4, 70, 3), "layer", (True, False, True, True), count=1)
        if kernel is not scan_update:
            check_mamba2(device, F32, 5, (140, 2, 18, 2, 4, 3), count=1)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("parts", [(), ("D", "z", "delta_bias"), ("shared", "delta_bias"), ("shared", "one_bias", "z")])
def test_step_of_the_scan(device, dtype, is_complex, parts):
    batch, channels, states = 3, 21, 5
    make, precise = Maker(device, dtype), Maker(device, torch.complex64 if is_complex else F32)
    narrow = precise if is_complex else make
    given_arguments = (
        make(batch, channels),
        make(batch, 1 if "shared" in parts else channels),
        *(precise(channels, states), narrow(batch, states), narrow(batch, states), precise(batch, channels, states)),
        make(channels, wanted="D" in parts),
        # Rows that lie apart, as those of a part of a projection do.
        make(batch, 2 * channels)[:, channels:] if "z" in parts else None,
        make(1 if "one_bias" in parts else channels, wanted="delta_bias" in parts or "one_bias" in parts),
    )
    with use_backend("torch"):
        expected = selective_scan_step(*given_arguments, delta_softplus=bool(parts))
    step = partial(selective_scan_step, delta_softplus=bool(parts))
    assert_parity(step, partial(reference_step, selective_scan_step, delta_softplus=bool(parts)), given_arguments)
    with use_backend("triton"), counted() as counter:
        found = selective_scan_step(*given_arguments, delta_softplus=bool(parts))
    assert len(counter.launches) == 1
    assert [t.dtype for t in found] == [t.dtype for t in expected]


def reference_step(function, *arguments, **options):
    with use_backend("torch"):
        return function(*(None if t is None else t.cpu() for t in arguments), **options)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("limit", [(0.0, math.inf), (0.3, 0.6)])
@pytest.mark.parametrize("skip", [None, (4,), (4, 16)])
def test_step_of_the_duality(device, dtype, limit, skip):
    batch, heads, size, groups, states = 2, 4, 16, 2, 5
    make, precise = Maker(device, dtype), Maker(device, F32)
    wide = make(batch, heads * size + 2 * groups * states)
    x, B, C = wide.split([heads * size, groups * states, groups * states], dim=1)
    given_arguments = (
        x.unflatten(1, (heads, size)),
        make(batch, heads),
        precise(heads),
        *(part.unflatten(1, (groups, states)) for part in (B, C)),
        precise(batch, heads, size, states),
        precise(*(skip or (1,)), wanted=skip is not None),
        make(heads, wanted=skip is not None),
    )
    # Without softplus, steps may be negative.
    for softplus in (False, True):
        options = {"dt_softplus": softplus, "dt_limit": limit}
        assert_parity(partial(ssd_step, **options), partial(reference_step, ssd_step, **options), given_arguments)
    with use_backend("triton"), counted() as counter:
        y, state = ssd_step(*given_arguments, dt_softplus=True)
    assert len(counter.launches) == 1
    assert (y.dtype, state.dtype) == (dtype, F32)


def test_steps_with_gradients_or_in_double_precision_are_those_of_torch(device, triton_kernels):
    make = Maker(device, F32)
    given_arguments = make(2, 3), make(2, 3), make(3, 4), make(2, 4), make(2, 4), make(2, 3, 4)
    ssd_arguments = make(2, 3, 2), make(2, 3), make(3), make(2, 1, 4), make(2, 1, 4), make(2, 3, 2, 4)
    for step, tensors in ((selective_scan_step, given_arguments), (ssd_step, ssd_arguments)):
        with counted() as counter:
            step(*(t.double() for t in tensors))
            tensors[0].requires_grad_()
            y, state = step(*tensors)
            y.sum().backward()
            assert not counter.launches
            assert tensors[0].grad is not None
            with torch.no_grad():
                torch.testing.assert_close(step(*tensors), (y, state))
            assert len(counter.launches) == 1


def test_empty_batch(device, triton_kernels):
    make = Maker(device, F32)
    y, state = selective_scan_step(make(0, 3), make(0, 3), make(3, 4), make(0, 4), make(0, 4), make(0, 3, 4))
    assert (y.shape, state.shape) == ((0, 3), (0, 3, 4))
    y, state = ssd_step(make(0, 3, 2), make(0, 3), make(3), make(0, 1, 4), make(0, 1, 4), make(0, 3, 2, 4))
    assert (y.shape, state.shape) == ((0, 3, 2), (0, 3, 2, 4))


def few_blocks(device, count=1, dtype=F32):
    make = Maker(device, dtype)
    blocks = [mamba_weights(make, (20, 24, 5, 3, 4), "rms", True, True) for _ in range(count)]
    return blocks, BlockOptions("rms", 1e-5, True, True, True)


@pytest.mark.parametrize("batch", [3, 5])
def test_nan_stays_in_its_row(device, triton_kernels, batch):
    blocks, options = few_blocks(device)
    step = find_blocks_step(blocks, options, (blocks[0].norm_weight, None))
    hidden = torch.randn(batch, 20, device=device)
    hidden[1, 7] = torch.nan
    memories = torch.zeros(1, batch, 3, 24, device=device), torch.zeros(1, batch, 24, 5, device=device)
    for tensor in step(hidden, *memories):
        assert tensor[0, 1].isnan().any()
        assert not tensor[0, [0, 2]].isnan().any()


def test_masked_rows_keep_their_states(device, triton_kernels):
    make = Maker(device, F32)
    mask = torch.tensor([True, False, True], device=device)
    blocks, options = few_blocks(device)
    # Hidden size, channels or heads and their size, ..., taps.
    ssd_blocks = [mamba2_weights(make, (20, 4, 6, 2, 5, 4), "rms", True, True, True)]
    ssd_options = SSDBlockOptions("rms", 1e-5, True, True, 2, 1e-5, False, (0.0, math.inf))
    steps = (
        (find_blocks_step(blocks, options), 24, (24, 5)),
        (find_ssd_blocks_step(ssd_blocks, ssd_options), 44, (4, 6, 5)),
    )
    for step, mixed, shape in steps:
        hidden, memories = torch.randn(3, 20, device=device), (make(1, 3, 3, mixed), make(1, 3, *shape))
        outputs, *expected = step(hidden, *memories)
        found, *after = step(hidden, *memories, mask)
        assert torch.equal(found[:, mask], outputs[:, mask])
        for before, free, masked in zip(memories, expected, after, strict=True):
            assert torch.equal(masked[:, mask], free[:, mask])
            assert torch.equal(masked[:, ~mask], before[:, ~mask])
        with pytest.raises(ValueError, match="mask must be a bool"):
            step(hidden, *memories, mask.int())


def test_weights_are_read_in_place(device, triton_kernels):
    blocks, options = few_blocks(device, count=2)
    step = find_blocks_step(blocks, options, (blocks[0].norm_weight, None))
    hidden = torch.randn(2, 20, device=device)
    memories = torch.randn(2, 2, 3, 24, device=device), torch.randn(2, 2, 24, 5, device=device)
    before = step(hidden, *memories)
    blocks[1].in_weight.mul_(2)
    after = step(hidden, *memories)
    assert torch.equal(before[0][0], after[0][0])
    assert not torch.equal(before[0][1], after[0][1])


def test_what_does_not_fit_is_refused(device, triton_kernels):
    blocks, options = few_blocks(device)
    # Not dense, double precision.
    w = blocks[0]
    assert find_blocks_step([w._replace(out_weight=w.out_weight.t().contiguous().t())], options) is None
    assert find_blocks_step([w._replace(skip=w.skip.double())], options) is None
    with pytest.raises(ValueError, match=r"x_weight must have shape \(13, 24\), got \(12, 24\)"):
        find_blocks_step([w._replace(x_weight=w.x_weight[:12])], options)
    step = find_blocks_step(blocks, options)
    memories = torch.zeros(1, 2, 3, 24, device=device), torch.zeros(1, 2, 24, 5, device=device)
    with pytest.raises(ValueError, match=r"hidden must have 20 numbers for each row, got \(2, 3, 20\)"):
        step(torch.zeros(2, 3, 20, device=device), *memories)
    with pytest.raises(ValueError, match=r"states must have shape \(1, 1, 24, 5\), got \(1, 2, 24, 5\)"):
        step(torch.zeros(1, 20, device=device), memories[0][:, :1], memories[1])


def test_counted_cost_of_steps(device, triton_kernels):
    make = Maker(device, F32)
    with counted() as counter:
        selective_scan_step(
            *(make(2, 32), make(2, 32), make(32, 8), make(2, 8), make(2, 8), make(2, 32, 8)),
            *(make(32), make(2, 32), make(32), True),
        )
    assert_counted(counter, step_cost(2, 32, 8, tile=16))
    with counted() as counter:
        ssd_step(
            *(make(2, 4, 16), make(2, 4), make(4), make(2, 2, 8), make(2, 2, 8), make(2, 4, 16, 8)),
            *(make(4), make(4), True),
        )
    assert_counted(counter, ssd_step_cost(2, 4, 16, 2, 8, tile=8))


def test_counted_cost_of_blocks(device, triton_kernels, monkeypatch):
    monkeypatch.setattr(projection, "rows_of_program", lambda rows, batch: 8)
    make = Maker(device, F32)
    w = mamba_weights(make, (16, 32, 8, 8, 4), "rms", False, True)._replace(skip=make(32))
    step = find_blocks_step([w], BlockOptions("rms", 1e-5, True, True, True), (make(16), None))
    with counted() as counter:
        step(make(2, 16), make(1, 2, 3, 32), make(1, 2, 32, 8))
    assert len(counter.launches) == 5
    assert_counted(counter, blocks_cost(1, 2, 16, 32, 8, 8, 4, 4, tile=16))
    ssd_w = mamba2_weights(make, (16, 8, 8, 2, 4, 4), "rms", False, True, False)
    options = SSDBlockOptions("rms", 1e-5, True, True, 2, 1e-5, False, (0.0, math.inf))
    step = find_ssd_blocks_step([ssd_w], options, (make(16), None))
    with counted() as counter:
        step(make(2, 16), make(1, 2, 3, 80), make(1, 2, 8, 8, 4))
    assert len(counter.launches) == 4
    assert_counted(counter, ssd_blocks_cost(1, 2, 16, 8, 8, 2, 4, 4, tile=8))


# Modules that call `step_of_blocks`, by family, and the name there.
STEPS = {"SelectiveSSM": (selective, "step_of_blocks"), "SSD": (duality, "step_of_ssd_blocks")}


@pytest.fixture
def stepped(monkeypatch) -> list[bool]:
    """Of each forward pass with a cache, whether the kernels of all blocks served."""
    calls = []

    def spied(original: Any) -> Any:
        def spy(*arguments: Any) -> Any:
            found = original(*arguments)
            calls.append(found is not None)
            return found

        return spy

    for module, name in STEPS.values():
        monkeypatch.setattr(module, name, spied(getattr(module, name)))
    return calls


def one_by_one(model: Any, ids: torch.Tensor, **options: Any) -> list[Any]:
    """Outputs for a prompt of 3 tokens, by torch, and for each single token that follows."""
    with torch.no_grad():
        with use_backend("torch"):
            outputs = [model(ids[:, :3], use_cache=True, **options)]
        for token in ids[:, 3:].split(1, dim=1):
            outputs.append(model(token, cache=outputs[-1].cache, **options))
    return outputs


@pytest.mark.parametrize("family", STEPS)
def test_greedy_generation(make_model, device, stepped, family):
    model = make_model(family, "ForCausalLM", vocab_size=40, num_hidden_layers=1).to(device)
    prompt = torch.randint(1, 40, (2, 5), device=device)
    options = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    results = []
    for backend in ("triton", "torch"):
        with use_backend(backend):
            results.append(model.generate(prompt, pad_token_id=0, **options))
    assert stepped == [False] + [True] * 4 + [False] * 5
    found, expected = results
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("family", STEPS)
@pytest.mark.parametrize(("precise", "norm_first"), [(False, True), (True, False), (True, True)])
def test_models_in_half_precision(make_model, device, stepped, family, precise, norm_first):
    given_options = {"residual_in_fp32": precise, "norm_first": norm_first}
    model = make_model(family, "ForCausalLM", **given_options).to(device, BF16)
    ids = torch.randint(0, 12, (1, 5), device=device)
    results = []
    for backend in ("triton", "torch"):
        with use_backend(backend):
            results.append(one_by_one(model, ids, output_hidden_states=True))
    assert stepped == [False, True, True, False, False, False]
    for found, expected in zip(*results, strict=True):
        pairs = zip((*found.hidden_states, found.logits), (*expected.hidden_states, expected.logits), strict=True)
        for a, b in pairs:
            assert a.dtype == b.dtype
            # The modules round each number that they pass on.
            assert_near(a.float(), b.float(), 0.05, "a hidden state")


@pytest.mark.parametrize("family", STEPS)
def test_padding_between_and_before_tokens(make_model, device, stepped, family):
    model = make_model(family, "ForCausalLM", num_hidden_layers=1).to(device)
    ids = torch.randint(1, 12, (3, 6), device=device)
    # The last row begins after the first piece, the second has padding after its first tokens.
    masks = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 1], [0, 0, 0, 0, 1, 1]], device=device)
    results = []
    for backend in ("triton", "torch"):
        with torch.no_grad(), use_backend(backend):
            cache = SSMCache(model.config)
            output = model(ids[:, :3], attention_mask=masks[:, :3], cache=cache)
            for place in range(3, 6):
                mask = masks[:, place : place + 1]
                output = model(ids[:, place : place + 1], attention_mask=mask, cache=output.cache)
            results.append(output)
        assert backend == "torch" or stepped == [False, True, True, True]
    found, expected = results
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=2e-5)
    assert torch.equal(found.cache.tokens_seen, expected.cache.tokens_seen)


def test_which_models_go_block_by_block(make_model, device, stepped, triton_kernels):
    model = make_model("SelectiveSSM", "ForCausalLM", num_hidden_layers=1).to(device)
    ids = torch.randint(0, 12, (17, 4), device=device)
    one_by_one(model, ids)
    assert not any(stepped)
    one_by_one(model, ids[:16])
    assert stepped.pop()
    with torch.autocast(device, dtype=BF16):
        one_by_one(model, ids[:1])
    one_by_one(model.double(), ids[:1])
    assert not any(stepped)


def test_the_backend_may_change_between_positions(make_model, device, stepped):
    if device == "cpu":
        pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")
    model = make_model("SelectiveSSM", "ForCausalLM").to(device)
    ids = torch.randint(0, 12, (1, 6), device=device)
    with torch.no_grad():
        cache = model(ids[:, :3], use_cache=True).cache
        for place, backend in enumerate(("auto", "triton", "torch"), start=3):
            with use_backend(backend), counted() as counter:
                logits = model(ids[:, place : place + 1], cache=cache).logits
            if backend == "triton":
                assert len(counter.launches) == 2 * 4 + 1
        torch.testing.assert_close(logits, model(ids).logits[:, -1:], rtol=1e-4, atol=1e-5)
