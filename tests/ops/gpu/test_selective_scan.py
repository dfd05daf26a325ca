"""The Triton kernels of the selective scan, against the reference in double precision."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from costs.selective_scan import backward_cost, forward_cost
from proofs import assert_counted, assert_parity, counted

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.selective_scan import selective_scan, selective_scan_reference
from hf_ssm.ops.selective_scan import triton as operators
from hf_ssm.ops.selective_scan.arguments import ScanTensors
from hf_ssm.ops.selective_scan.triton import chunk_positions
from hf_ssm.ops.selective_scan.triton_backward import cotangent_ends, scan_backward
from hf_ssm.ops.selective_scan.triton_forward import carry, chunk_ends, scan

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")


def tensors(batch, length, channels, states, device, dtype=torch.float32, is_complex=False, shared=False):
    """All tensors of a scan by name; u, delta, B, C and z of `dtype`, the others float32."""
    kind = torch.complex64 if is_complex else dtype
    steps = 1 if shared else channels
    A = -torch.rand(channels, states) * 2 - 0.1
    if is_complex:
        A = torch.complex(A, 4 * torch.randn(channels, states))
    found = {
        "u": torch.randn(batch, length, channels, dtype=dtype),
        "delta": torch.randn(batch, length, steps, dtype=dtype) - 0.5,
        "A": A,
        "B": torch.randn(batch, length, states, dtype=kind),
        "C": torch.randn(batch, length, states, dtype=kind),
        "D": torch.randn(channels),
        "z": torch.randn(batch, length, channels, dtype=dtype),
        "delta_bias": torch.randn(steps),
        "initial_state": torch.randn(batch, channels, states, dtype=torch.complex64 if is_complex else torch.float32),
    }
    return {name: t.to(device).requires_grad_() for name, t in found.items()}


def by_name(function, names, *values):
    return function(**dict(zip(names, values, strict=True)), delta_softplus=True, return_last_state=True)


def assert_scan(values):
    """Parity of the output, the last state and all gradients."""
    names = tuple(values)
    assert_parity(
        lambda *args: by_name(selective_scan, names, *args),
        lambda *args: by_name(selective_scan_reference, names, *args),
        list(values.values()),
    )


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parity(device, dtype, is_complex):
    assert_scan(tensors(2, 5, 5, 3, device, dtype, is_complex))


@pytest.fixture
def short_segments(monkeypatch):
    """Chunks and segments of 8 positions, so that short sequences have several."""
    monkeypatch.setattr(operators, "SEGMENT", 8)


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
def test_chunks(device, is_complex):
    assert chunk_positions(2, 11, 3) == 8
    assert_scan(tensors(2, 11, 3, 2, device, is_complex=is_complex))


@pytest.mark.usefixtures("short_segments")
def test_states_and_their_gradients_cross_whole_chunks(device):
    values = tensors(1, 18, 2, 2, device, is_complex=True)
    with torch.no_grad():
        values["A"].real.fill_(-0.02)
    assert chunk_positions(1, 18, 2) == 8
    assert_scan(values)


@pytest.mark.usefixtures("short_segments")
def test_one_chunk_of_several_segments(device, monkeypatch):
    monkeypatch.setattr(operators, "_ENOUGH", 1)
    assert_scan(tensors(1, 10, 3, 2, device, torch.bfloat16))


@pytest.mark.parametrize("bias", [1, 5])
def test_shared_steps(device, bias):
    values = tensors(2, 6, 5, 2, device, shared=True)
    values["delta_bias"] = torch.randn(bias, device=device, requires_grad=True)
    assert_scan(values)


@given(
    *(st.integers(1, 2), st.integers(1, 9), st.integers(1, 3), st.integers(1, 4)),
    st.sets(st.sampled_from(("D", "z", "delta_bias", "initial_state", "softplus", "last"))),
)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("short_segments")
def test_parity_at_any_shape(batch, length, channels, states, options):
    device = "cpu" if torch.cuda.device_count() == 0 else "cuda"
    found = tensors(batch, length, channels, states, device)
    names = [name for name in NAMES if name in options or name in ("u", "delta", "A", "B", "C")]
    more = {"delta_softplus": "softplus" in options, "return_last_state": "last" in options}
    if "softplus" not in options:
        with torch.no_grad():
            found["delta"].abs_()

    def call(function):
        return lambda *values: function(**dict(zip(names, values, strict=True)), **more)

    assert_parity(call(selective_scan), call(selective_scan_reference), [found[name] for name in names])


@pytest.mark.slow
@pytest.mark.usefixtures("short_segments")
def test_every_configuration(device, monkeypatch):
    for kernel in (chunk_ends, carry, scan, cotangent_ends, scan_backward):
        # The first ones run in all other tests.
        assert len(kernel.configs) == 2
        monkeypatch.setattr(kernel, "configs", kernel.configs[1:])
    assert_scan(tensors(1, 9, 65, 1, device))


def test_views_and_an_empty_batch(device):
    values = {name: t.detach() for name, t in tensors(2, 5, 4, 2, device).items()}
    wide = torch.randn(2, 5, 12, device=device)
    values["u"], values["z"] = wide[..., 2:6], wide[..., 6:10]
    values["B"], values["C"] = (torch.randn(5, 2, 2, device=device).transpose(0, 1) for _ in range(2))
    assert_scan({name: t.requires_grad_() for name, t in values.items()})
    with use_backend("triton"):
        none = {name: t if name in ("A", "D", "delta_bias") else t[:0] for name, t in values.items()}
        y, last = selective_scan(**none, return_last_state=True)
        assert (y.shape, last.shape) == ((0, 5, 4), (0, 4, 2))
        y.sum().backward()


def test_loss_on_one_result_and_on_one_argument(device):
    values = {name: t.detach() for name, t in tensors(1, 2, 3, 2, device).items()}
    for argument, result in (("C", 0), ("A", 1), ("initial_state", 1), ("z", 0)):
        values[argument].requires_grad_()
        found = []
        for backend in ("triton", "torch"):
            with use_backend(backend):
                results = selective_scan(**values, delta_softplus=True, return_last_state=True)
                found.append(torch.autograd.grad(results[result].square().sum(), values[argument])[0])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
        values[argument] = values[argument].detach()


def test_second_derivatives(device):
    values = tensors(1, 4, 2, 2, device)
    found = []
    for backend in ("triton", "torch"):
        with use_backend(backend):
            y = selective_scan(**values, delta_softplus=True)
            (first,) = torch.autograd.grad(y.sum(), values["delta"], create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), list(values.values())[:-1], allow_unused=True))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
def test_compiled_whole(device, is_complex):
    values = tensors(1, 3, 3, 2, device, is_complex=is_complex)

    def call(**tensors):
        return selective_scan(**tensors, delta_softplus=True, return_last_state=True)

    found = []
    with use_backend("triton"):
        for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
            y, last = function(**values)
            grads = torch.autograd.grad(y.sum() + last.abs().sum(), list(values.values()))
            found.append((y, last, *grads))
    torch.testing.assert_close(*found)


def test_what_the_kernels_support(device):
    single = {name: t.detach() for name, t in tensors(1, 3, 2, 2, device).items()}
    assert operators.supports_scan(ScanTensors(**renamed(single)), False, False)
    double = single | {"u": single["u"].double()}
    assert not operators.supports_scan(ScanTensors(**renamed(double)), False, False)
    wide = tensors(1, 3, 2, 65, device)
    assert not operators.supports_scan(ScanTensors(**renamed(wide)), False, False)
    with use_backend("triton"):
        assert selective_scan(**double).dtype == torch.float64
        assert selective_scan(**wide).shape == (1, 3, 2)


def renamed(values):
    return {("state" if name == "initial_state" else name): t for name, t in values.items()}


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("chunks", [1, 2])
def test_counted_cost(device, monkeypatch, chunks):
    if chunks == 1:
        monkeypatch.setattr(operators, "_ENOUGH", 1)
    sizes = 1, 16, 64, 2
    values = {k: t for k, t in tensors(*sizes, device).items() if k != "initial_state"}
    with use_backend("triton"):
        with counted() as forward:
            y = selective_scan(**values, delta_softplus=True)
        with counted() as backward:
            y.backward(torch.ones_like(y))
    assert_counted(forward, forward_cost(*sizes, 4, chunks, segment=8))
    # The blocks of channels of `cotangent_ends` are larger than those of `scan_backward`.
    assert_counted(backward, backward_cost(*sizes, 4, chunks, segment=8), reread=0.01 if chunks > 1 else 0)
