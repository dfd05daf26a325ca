"""The Triton kernels of S4D and S4, against the references in double precision."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from costs import exponential_sums as costs_of_sums
from costs import krylov as costs
from proofs import assert_counted, assert_near, assert_parity, counted

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.lti import exponential_sums as exponential_sums_module
from hf_ssm.ops.lti import triton_dplr as operators
from hf_ssm.ops.lti import triton_exponential_sums as sums
from hf_ssm.ops.lti import triton_krylov as krylov
from hf_ssm.ops.lti import triton_krylov_backward as backward
from hf_ssm.ops.lti.diagonal import diagonal_kernel, diagonal_kernel_reference
from hf_ssm.ops.lti.dplr import dplr_kernel, dplr_kernel_reference, dplr_start
from hf_ssm.ops.lti.exponential_sums import exponential_sums
from hf_ssm.ops.lti.krylov import plain_krylov_products

# Of the largest tap of a kernel, or of the largest gradient of a parameter.
TOLERANCE = 1e-5


def diagonal_system(device, channels=2, pairs=3, low=-2.0, high=0.0, dtype=torch.complex64, seed=0):
    """Parameters of a diagonal system; step sizes from `10^low` to `10^high`."""
    generator = torch.Generator().manual_seed(seed)
    b, c, spread = (torch.randn(channels, pairs, dtype=torch.complex128, generator=generator) for _ in range(3))
    a = torch.complex(-spread.real.abs() - 0.1, 10 * spread.imag)
    dt = 10 ** (low + (high - low) * torch.rand(channels, dtype=torch.float64, generator=generator))
    system = [t.to(device, dtype) for t in (a, b, c)] + [dt.to(device, dtype.to_real())]
    return [t.requires_grad_() for t in system]


def bases(device, channels, pairs, decay, seed=0):
    """Logarithms of the bases, with real parts down to `-decay`, and weights; complex128."""
    generator = torch.Generator().manual_seed(seed)
    spread, weights = (torch.randn(channels, pairs, dtype=torch.complex128, generator=generator) for _ in range(2))
    base = torch.complex(-decay * spread.real.abs(), 4 * spread.imag)
    return [t.to(device).requires_grad_() for t in (base, weights)]


def narrow_sums(log_base, weights, length):
    return exponential_sums(log_base, weights, length, torch.float32)


def direct_sums(log_base, weights, length):
    steps = torch.arange(length, dtype=torch.float64, device=log_base.device)
    return (weights.unsqueeze(-1) * torch.exp(log_base.unsqueeze(-1) * steps)).sum(1).real


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize(("pairs", "length"), [(3, 37), (17, 1100), (1, 1)])
def test_diagonal_kernel(device, rule, pairs, length):
    system = diagonal_system(device, 2, pairs)
    assert_parity(diagonal_kernel, diagonal_kernel_reference, [*system, length], TOLERANCE, discretization=rule)


@given(st.integers(0, 3), st.integers(0, 20), st.integers(1, 1400), st.integers(0, 100))
@settings(max_examples=8)
def test_sums_of_any_shape(channels, pairs, length, seed):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given_bases = bases(device, channels, pairs, decay=0.05, seed=seed)
    assert_parity(narrow_sums, direct_sums, [*given_bases, length], TOLERANCE)


@pytest.mark.parametrize("kernel", [sums._exponential_sums, sums._exponential_sums_backward], ids=lambda k: k.name)
@pytest.mark.parametrize("number", [0, 1])
def test_every_configuration_of_the_sums(device, kernel, number, monkeypatch):
    monkeypatch.setattr(kernel, "configs", [kernel.configs[number]])
    for length in (70, 4100):
        assert_parity(narrow_sums, direct_sums, [*bases(device, 1, 33, decay=0.01), length], TOLERANCE)


def test_phases_at_a_million(device, monkeypatch):
    """Without decay, an error of the phase shows in full. Wide tiles are fewer programs to interpret."""
    monkeypatch.setattr(sums, "COLUMNS", 1024 if device == "cpu" else sums.COLUMNS)
    base, weights = (t.detach() for t in bases(device, 1, 4, decay=0.0))
    length, at = 1_000_003, torch.tensor([0, 1, 999_999, 1_000_002])
    with use_backend("triton"):
        taps = exponential_sums(base, weights, length, torch.float32)[:, at.to(device)]
    expected = (weights.unsqueeze(-1) * torch.exp(base.unsqueeze(-1) * at.to(device, torch.float64))).sum(1).real
    assert_near(taps.cpu(), expected.cpu(), 1e-6, "taps")


def test_bases_near_zero_and_fast_decay(device):
    """Powers vanish without NaN: of the logarithm of nearly zero, and of very negative real parts."""
    base = torch.tensor([[-69 + 3.14159j, -1e3 + 2j, -1e40 - 5j]], dtype=torch.complex128, device=device)
    weights = torch.ones_like(base).requires_grad_()
    assert_parity(narrow_sums, direct_sums, [base.requires_grad_(), weights, 70], TOLERANCE)


def dplr_system(device, channels=2, pairs=3, low=-2.0, high=0.0, seed=0):
    """Parameters of a DPLR system; step sizes from `10^low` to `10^high`."""
    lam, b, c, dt = diagonal_system(device, channels, pairs, low, high, seed=seed)
    p = torch.randn(channels, pairs, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed + 1))
    return [lam, p.to(device).requires_grad_(), b, c, dt]


# One to 67 columns and rows, blocks of 16 with and without digits, padding in each table.
@pytest.mark.parametrize(("rule", "length"), [("bilinear", n) for n in (1, 2, 37, 1100)] + [("zoh", 21), ("zoh", 290)])
def test_dplr_kernel(device, rule, length):
    system = dplr_system(device, 2, 10) if length == 37 else dplr_system(device, 1, 3)
    assert_parity(dplr_kernel, dplr_kernel_reference, [*system, length], TOLERANCE, discretization=rule)


def test_dplr_kernel_of_many_taps(device):
    """More squarings than digits; small step sizes, so that the last taps count."""
    system = dplr_system(device, 1, 2, -4, -3)
    assert_parity(dplr_kernel, plain_dplr_kernel, [*system, 4096], TOLERANCE)


def plain_dplr_kernel(*args):
    with use_backend("torch"):
        return dplr_kernel(*args)


@given(st.integers(0, 1), st.integers(1, 6), st.integers(1, 300), st.sampled_from(["zoh", "bilinear"]))
@settings(max_examples=3)
def test_dplr_kernels_of_any_shape(channels, pairs, length, rule):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    system = dplr_system(device, channels, pairs)
    assert_parity(dplr_kernel, dplr_kernel_reference, [*system, length], TOLERANCE, discretization=rule)


@pytest.mark.parametrize("kernel", [krylov._taps, backward._table_gradients], ids=lambda k: k.name)
def test_other_configurations_of_the_tables(device, kernel, monkeypatch):
    monkeypatch.setattr(kernel, "configs", kernel.configs[1:])
    assert_parity(dplr_kernel, dplr_kernel_reference, [*dplr_system(device, 1), 600], TOLERANCE)


@pytest.mark.parametrize("columns", [2, 16])
def test_starts_with_several_columns(device, columns):
    parts = [t.detach().to(torch.complex128) for t in dplr_system(device, 1)[:4]]
    step = torch.full((1,), 0.1, dtype=torch.float64, device=device)
    start, c = dplr_start(*parts, step, 300, "bilinear", columns)
    tensors = [t.requires_grad_() for t in (*start, c)]
    plain = functools.partial(plain_krylov_products, length=300, dtype=torch.float64)
    assert_parity(lambda *ts: operators._operator(*ts, 300), plain, tensors, TOLERANCE)


def test_blocks_of_channels_change_nothing(device, triton_kernels, monkeypatch):
    system = dplr_system(device, 2, 2)
    expected = dplr_kernel(*system, 6)
    grads = torch.autograd.grad(expected.sum(), system)
    monkeypatch.setattr(exponential_sums_module, "_CPU_BLOCK", 1)
    monkeypatch.setattr(exponential_sums_module, "_GPU_BLOCK", 1)
    actual = dplr_kernel(*system, 6)
    assert torch.equal(actual, expected)
    for grad, other in zip(torch.autograd.grad(actual.sum(), system), grads, strict=True):
        assert torch.equal(grad, other)


SYSTEMS = {"diagonal": (diagonal_kernel, diagonal_system), "dplr": (dplr_kernel, dplr_system)}


@pytest.mark.parametrize("kind", SYSTEMS)
def test_frozen_dynamics(device, triton_kernels, kind):
    """The gradients of the output weights alone, of an expanded gradient, equal those of all."""
    function, make = SYSTEMS[kind]
    system = make(device, 1)
    every = torch.autograd.grad(function(*system, 300).sum(), system)
    frozen = [t if number == len(system) - 2 else t.detach() for number, t in enumerate(system)]
    (alone,) = torch.autograd.grad(function(*frozen, 300).sum(), [frozen[-2]])
    torch.testing.assert_close(alone, every[-2], rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", SYSTEMS)
def test_nan_stays_in_its_channel(device, triton_kernels, kind):
    function, make = SYSTEMS[kind]
    for which in range(len(make(device)) - 1):
        system = make(device)
        with torch.no_grad():
            system[which][1] = torch.nan
        taps = function(*system, 5)
        assert taps[1].isnan().all()
        assert taps[0].isfinite().all()


@pytest.mark.parametrize("kind", SYSTEMS)
def test_double_backward_and_function_transforms(device, kind):
    function, make = SYSTEMS[kind]
    system, found = make(device, 1, 2), {}
    for backend in ("triton", "torch"):
        with use_backend(backend):
            taps = function(*system, 9)
            grads = torch.autograd.grad(taps.square().sum(), system, create_graph=True)
            second = torch.autograd.grad(sum((g * g.conj()).real.sum() for g in grads), system)
            taps, pull = torch.func.vjp(lambda *ts: function(*ts, 9), *(t.detach() for t in system))
            found[backend] = (*grads, *second, *pull(torch.ones_like(taps)))
    for actual, expected in zip(found["triton"], found["torch"], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize("kind", SYSTEMS)
def test_autocast_and_compile(device, triton_kernels, kind):
    torch.compiler.reset()
    function, make = SYSTEMS[kind]
    system = make(device, 1)
    expected = function(*system, 5)
    grads = torch.autograd.grad(expected.sum(), system)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        inside = function(*system, 5)
        results = {
            "autocast": (inside, *torch.autograd.grad(inside.sum(), system)),
        }
    traced = compiled(*system, 5)
    results["compile"] = (traced, *torch.autograd.grad(traced.sum(), system))
    for found in results.values():
        for actual, other in zip(found, (expected, *grads), strict=True):
            torch.testing.assert_close(actual, other, rtol=1e-6, atol=1e-6)


def test_what_the_kernels_refuse(device, triton_kernels):
    """Results in float64, and more states than the registers hold, are computed by PyTorch."""
    taps = []
    with counted() as counter:
        taps.append(diagonal_kernel(*diagonal_system(device, dtype=torch.complex128), 9))
        taps.append(dplr_kernel(*(t.to(torch.complex128) for t in dplr_system(device)[:4]), torch.ones(2), 9))
        taps.append(dplr_kernel(*dplr_system(device, 1, 33), 9))
    assert counter.launches == []
    assert [t.dtype for t in taps] == [torch.float64, torch.float64, torch.float32]


def test_the_operators_are_well_formed(device):
    parts = [t.detach().to(torch.complex128) for t in dplr_system(device, 1, 2)[:4]]
    step = torch.full((1,), 0.1, dtype=torch.float64, device=device)
    start, c = dplr_start(*parts, step, 5, "bilinear", 1)
    checks = {"test_utils": ("test_faketensor",)}
    torch.library.opcheck(operators._operator, (*start, c, 5), **checks)
    grad = torch.randn(1, 5, device=device)
    for wanted in ([True] * 5, [False] * 4 + [True]):
        torch.library.opcheck(operators._operator_backward, (grad, *start, c, 5, wanted), **checks)
    pair = [t.detach() for t in bases(device, 1, 2, 0.1)]
    torch.library.opcheck(sums._operator, (*pair, 5), **checks)
    for with_base in (True, False):
        torch.library.opcheck(sums._operator_backward, (grad, *pair, 5, [with_base, True]), **checks)


@pytest.mark.parametrize("length", [1030, 4100])
def test_counted_cost_of_the_sums(device, triton_kernels, length):
    given_bases = bases(device, 1, 17, decay=0.01)
    with counted() as forward_count:
        taps = narrow_sums(*given_bases, length)
    with counted() as backward_count:
        taps.backward(torch.ones_like(taps))
    assert_counted(forward_count, costs_of_sums.forward_cost(1, 17, length))
    assert_counted(backward_count, costs_of_sums.backward_cost(1, 17, length))


@pytest.mark.parametrize(("pairs", "length", "columns"), [(3, 200, 1), (9, 1100, 1), (3, 1100, 4)])
def test_counted_cost_of_the_tables(device, triton_kernels, pairs, length, columns):
    parts = [t.detach().to(torch.complex128) for t in dplr_system(device, 1, pairs)[:4]]
    step = torch.full((1,), 0.1, dtype=torch.float64, device=device)
    start, c = dplr_start(*parts, step, length, "bilinear", columns)
    tensors = [t.contiguous().requires_grad_() for t in (*start, c)]
    with counted() as forward_count:
        taps = operators._operator(*tensors, length)
    with counted() as backward_count:
        taps.backward(torch.ones_like(taps))
    sizes = (1, 2 * pairs, length, start.outer.shape[1], columns)
    assert_counted(forward_count, costs.forward_cost(*sizes))
    assert_counted(backward_count, costs.backward_cost(*sizes))
    assert (len(forward_count.launches), len(backward_count.launches)) == (3, 7)
