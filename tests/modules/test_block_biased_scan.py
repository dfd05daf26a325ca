"""Block-Biased Mamba (B2S6): parity with loops over Algorithm 2, and everything that models of this kind do."""

import pytest
import torch

import hf_ssm
from hf_ssm import SelectiveSSMConfig, rescale_init_
from hf_ssm.analysis.bounds import generalization_bound
from hf_ssm.models.selective.mixer_selective import build_scan
from hf_ssm.modules.roles import parameter_roles
from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.selective_scan.blocks import block_scan, block_scan_reference
from hf_ssm.parallel import tensor_parallel

KINDS = [
    {"num_blocks": 4},
    {"use_input_bias": True},
    {"num_blocks": 4, "use_input_bias": True, "complex_state": True},
]


def make_scan(**flags):
    config = SelectiveSSMConfig(hidden_size=4, state_size=4, time_step_rank=2, **flags)
    scan = build_scan(config, 0).double()
    with torch.no_grad():
        for parameter in scan.parameters():
            parameter.normal_(std=0.7)
    return scan


def algorithm_2(scan, u):
    """y of Algorithm 2 for `(B, L, D)`, from the weights of each block, channel by channel and token by token."""
    size, n = scan.channels // scan.blocks, scan.state_size
    outputs = torch.zeros_like(u)
    A, bias = scan.state_matrix(), scan.input_bias()
    for row in range(len(u)):
        for channel in range(scan.channels):
            block = channel // size
            state = torch.zeros(A.shape[1], dtype=A.dtype)
            for t in range(u.shape[1]):
                read = u[row, t, block * size : (block + 1) * size]
                stacked = scan.x_proj.weight[:, block] @ read
                low_rank, B, C = stacked[: scan.rank], stacked[scan.rank : -n], stacked[-n:]
                if A.is_complex():
                    B, C = (torch.view_as_complex(v.view(-1, 2)) for v in (B, C))
                step = torch.nn.functional.softplus(
                    scan.dt_proj.weight[channel % size, block] @ low_rank + scan.dt_bias[channel]
                )
                B = B if bias is None else B + bias[channel]
                state = torch.exp(step * A[channel]) * state + step * B * u[row, t, channel]
                y = (C * state).sum()
                outputs[row, t, channel] = 2 * y.real if A.is_complex() else y
    return outputs + scan.D * u


@pytest.mark.parametrize("flags", KINDS)
def test_the_scan_is_algorithm_2_in_values_and_gradients(flags):
    scan = make_scan(**flags)
    u = torch.randn(2, 5, scan.channels, dtype=torch.float64, requires_grad=True)
    expected, found = algorithm_2(scan, u), scan(u)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    variables, weights = [u, *scan.parameters()], torch.randn_like(expected)
    for pair in zip(*(torch.autograd.grad((y * weights).sum(), variables) for y in (found, expected)), strict=True):
        torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_operation_parity_over_several_chunks(is_complex, has_bias, backend):
    kind = torch.complex128 if is_complex else torch.float64
    A = -torch.rand(6, 4, dtype=torch.float64)
    A = torch.complex(A, torch.randn(6, 4, dtype=torch.float64)) if is_complex else A
    real = [torch.randn(2, 70, 6, dtype=torch.float64), torch.rand(2, 70, 6, dtype=torch.float64)]
    weights = [torch.randn(2, 70, 3, 4, dtype=kind) for _ in "BC"]
    bias = torch.randn(6, 4, dtype=kind) if has_bias else None
    rest = [torch.randn(6).double(), torch.randn(2, 70, 6).double(), torch.randn(2, 6, 4, dtype=kind)]
    tensors = [*real, A, *weights, bias, *rest]
    variables = [t.requires_grad_() for t in tensors if t is not None]
    with use_backend(backend):
        found = block_scan(*tensors)
    expected = block_scan_reference(*tensors)
    for pair in zip(found, expected, strict=True):
        torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-10)
    mixed = torch.randn_like(expected[0])
    losses = ((y * mixed).sum() + last.abs().square().sum() for y, last in (found, expected))
    for pair in zip(*(torch.autograd.grad(loss, variables) for loss in losses), strict=True):
        torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-9)


def test_second_derivatives_with_a_bias():
    shapes = [(1, 2, 2), (2, 1), (1, 2, 2, 1), (1, 2, 2, 1), (2, 1)]
    u, A, B, C, bias = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    d = torch.rand(1, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda *t: block_scan(*t)[0], (u, d, -A.abs(), B, C, bias))


def test_shapes_that_do_not_fit():
    u, A, B = torch.randn(1, 3, 4), torch.randn(4, 2), torch.randn(1, 3, 3, 2)
    with pytest.raises(ValueError, match="number of blocks that divides the 4 channels"):
        block_scan(u, u, A, B, B)
    with pytest.raises(ValueError, match=r"bias must have shape \(channels, states\) = \(4, 2\)"):
        block_scan(u, u, A, B[:, :, :2], B[:, :, :2], torch.zeros(2, 4))


def test_one_block_with_a_bias_of_zero_is_mamba():
    mamba, biased = make_scan(), make_scan(use_input_bias=True)
    state = mamba.state_dict() | {"B_bias": torch.zeros_like(biased.B_bias)}
    state = {name: value.unsqueeze(1) if "_proj" in name else value for name, value in state.items()}
    biased.load_state_dict(state)
    u = torch.randn(2, 20, 8, dtype=torch.float64)
    torch.testing.assert_close(biased(u), mamba(u), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("flags", [*KINDS, {"num_blocks": 2, "use_input_bias": True, "sobolev_order": 0.5}])
def test_attention_matrix_and_the_kernel_of_tau(flags):
    scan = make_scan(**flags)
    u = torch.randn(1, 9, scan.channels, dtype=torch.float64)
    matrix = scan.attention_matrix(u)
    torch.testing.assert_close(torch.einsum("bdtj,bjd->btd", matrix, u), scan(u), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(scan.attention_matrix(u, channels=[5, 1]), matrix[:, [5, 1]], rtol=1e-10, atol=1e-10)
    step, B, C = scan.selection(u)
    means = {name: values[0].flip(0) for name, values in scan._kernel_statistics(step, B, C).items()}
    # Of one sequence, the kernel seen from the last token is the last row, before the filter of the input.
    if not scan.has_sobolev_filter:
        torch.testing.assert_close(scan.mean_kernel(9, means), matrix[0, :, -1].flip(-1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("flags", KINDS)
def test_generation_rescaling_saving_and_roles(make_model, flags, tmp_path):
    model = make_model("SelectiveSSM", "ForCausalLM", **flags)
    ids = torch.randint(0, 12, (3, 70))
    expected = model(ids).logits
    read = model(ids[:, :66], use_cache=True)
    found = [read.logits]
    for position in range(66, 70):
        read = model(ids[:, position : position + 1], cache=read.cache)
        found.append(read.logits)
    torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path)(ids).logits, expected)
    assert not any(role.quantity == "other" for role in parameter_roles(model).values())
    rescale_init_(model, {"input_ids": ids})
    torch.testing.assert_close(model(ids, output_tau=True).tau, torch.ones(2), rtol=1e-4, atol=0)


def test_what_such_models_refuse(make_model):
    model = make_model("SelectiveSSM", "ForSequenceClassification", num_blocks=4)
    with pytest.raises(ValueError, match=r"There is no bound .* needs one W_B and one W_C for all channels"):
        generalization_bound(model, [{"input_ids": torch.randint(0, 12, (2, 8))}])
    for flags, message in (
        ({"num_blocks": 3}, "`num_blocks`=3 must divide the 256 channels of the scan"),
        ({"num_blocks": 0}, "`num_blocks` must be positive"),
        ({"block": "plain", "use_input_bias": True}, "`use_input_bias`=True has no meaning with `block='plain'`"),
    ):
        with pytest.raises(ValueError, match=message):
            SelectiveSSMConfig(**flags)


def test_channels_are_not_split_over_processes(make_model, monkeypatch):
    monkeypatch.setattr("hf_ssm.parallel.tensor._ranks", lambda mesh: hf_ssm.parallel.splits.Ranks(None, 0, 2))
    with pytest.raises(ValueError, match="`num_blocks` above 1 or `use_input_bias=True` is not split"):
        tensor_parallel(make_model("SelectiveSSM", "ForCausalLM", num_blocks=4))
