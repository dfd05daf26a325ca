"""The compiled selective scan: values and gradients against the reference, and requirements of autograd and export."""

import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import run_workers
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.selective_scan import selective_scan, selective_scan_reference

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
ALONG = ("u", "delta", "B", "C", "z")
OPTIONS = ("D", "z", "delta_bias", "initial_state")


@pytest.fixture(autouse=True)
def implementation() -> Iterator[None]:
    with use_backend("numba"):
        yield


def scan_inputs(
    batch: int = 2,
    length: int = 37,
    channels: int = 21,
    states: int = 5,
    is_complex: bool = False,
    shared: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, Any]:
    """All arguments of a scan, the sequences as parts of wider tensors, as projections give them; a third masked."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int, pairs: bool = False) -> torch.Tensor:
        kind = torch.complex128 if pairs and is_complex else torch.float64
        return torch.randn(*shape, dtype=kind, generator=generator)

    steps = 1 if shared else channels
    A = -4 * torch.rand(channels, states, dtype=torch.float64, generator=generator) - 0.01
    u, z = randn(batch, length, 2 * channels).chunk(2, dim=-1)
    _, B, C = randn(batch, length, 3 + 2 * states, pairs=True).split([3, states, states], dim=-1)
    tensors = {
        "u": u,
        "delta": randn(batch, length, steps) - 0.5,
        "A": torch.complex(A, 3 * randn(channels, states)) if is_complex else A,
        "B": B,
        "C": C,
        "D": randn(channels),
        "z": z,
        "delta_bias": randn(steps),
        "initial_state": randn(batch, channels, states, pairs=True),
    }
    # A conversion would make the views whole.
    inputs = {k: v if dtype == torch.float64 else _rounded(v, dtype) for k, v in tensors.items()}
    return inputs


def _rounded(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    kind = dtype.to_complex() if t.is_complex() else dtype
    wide = torch.zeros(*t.shape[:-1], t.shape[-1] + 3, dtype=kind)
    wide[..., 1:-2] = t.to(kind)
    return wide[..., 1:-2]


def learning(inputs: dict[str, Any], dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Leaves that require their gradients, of the given type or as they are."""
    leaves = {}
    for name, value in inputs.items():
        if value is None:
            leaves[name] = value
            continue
        kind = dtype.to_complex() if dtype is not None and value.is_complex() else dtype
        leaves[name] = (value if kind is None else value.to(kind)).detach().requires_grad_()
    return leaves


def outputs_and_gradients(scan: Any, inputs: dict[str, Any], softplus: bool = True) -> dict[str, torch.Tensor]:
    y, last = scan(**inputs, delta_softplus=softplus, return_last_state=True)
    generator = torch.Generator().manual_seed(99)
    kinds = torch.float64, torch.complex128 if last.is_complex() else torch.float64
    cotangents = [
        torch.randn(t.shape, dtype=kind, generator=generator).to(t.dtype)
        for t, kind in zip((y, last), kinds, strict=True)
    ]
    names = [name for name in NAMES if inputs.get(name) is not None]
    grads = torch.autograd.grad((y, last), [inputs[name] for name in names], cotangents)
    return {"y": y, "last_state": last} | dict(zip(names, grads, strict=True))


def assert_parity(inputs: dict[str, Any], softplus: bool, tolerance: float) -> None:
    actual = outputs_and_gradients(selective_scan, learning(inputs), softplus)
    expected = outputs_and_gradients(selective_scan_reference, learning(inputs, torch.float64), softplus)
    for name, value in expected.items():
        error = (actual[name] - value).abs().max() / (1e-3 + value.abs().max())
        assert error < tolerance, (name, float(error))


@settings(max_examples=40)
@given(
    batch=st.integers(1, 3),
    length=st.one_of(st.sampled_from([1, 15, 16, 17, 32]), st.integers(1, 70)),
    channels=st.one_of(st.sampled_from([1, 16, 17, 32, 33, 80]), st.integers(1, 40)),
    states=st.one_of(st.sampled_from([1, 4, 16]), st.integers(1, 9)),
    is_complex=st.booleans(),
    shared=st.booleans(),
    double=st.booleans(),
    softplus=st.booleans(),
    left_out=st.sets(st.sampled_from(OPTIONS)),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients(batch, length, channels, states, is_complex, shared, double, softplus, left_out, seed):
    dtype = torch.float64 if double else torch.float32
    inputs = scan_inputs(batch, length, channels, states, is_complex, shared, dtype, seed)
    if not softplus:
        # Steps of either sign let the states grow; the smaller, the less.
        inputs |= {"delta": inputs["delta"] * 0.05, "delta_bias": inputs["delta_bias"] * 0.05}
    inputs |= dict.fromkeys(left_out)
    assert_parity(inputs, softplus, 1e-12 if double else 5e-5)


@pytest.mark.parametrize("wanted", NAMES)
def test_gradient_of_one_input_only(wanted):
    inputs = scan_inputs(shared=True)
    grads = []
    for scan, dtype in ((selective_scan, torch.float32), (selective_scan_reference, torch.float64)):
        given = {name: value.to(dtype) for name, value in inputs.items()}
        leaf = given[wanted].clone().requires_grad_()
        y, last = scan(**(given | {wanted: leaf}), delta_softplus=True, return_last_state=True)
        grads.append(torch.autograd.grad(y.square().sum() + last.abs().sum(), leaf)[0].double())
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5 * grads[1].abs().max().item())


@pytest.mark.parametrize("shared", [False, True])
def test_no_digit_depends_on_the_number_of_threads(shared):
    inputs = learning(scan_inputs(3, 50, 600, 6, shared=shared))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            results.append(outputs_and_gradients(selective_scan, inputs))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        for name, value in result.items():
            assert torch.equal(value, results[0][name]), name


def test_gradient_checkpointing():
    inputs = learning(scan_inputs())

    def again(**given: Any) -> Any:
        return checkpoint(lambda: selective_scan(**given), use_reentrant=False)

    expected = outputs_and_gradients(selective_scan, inputs)
    for name, value in outputs_and_gradients(again, inputs).items():
        assert torch.equal(value, expected[name]), name


def test_peak_of_what_is_kept_for_the_backward():
    inputs = learning(scan_inputs(2, 256, 64, 16))
    saved: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        saved[t.untyped_storage().data_ptr()] = t.numel()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        selective_scan(**inputs)
    own = {t.untyped_storage().data_ptr() for t in inputs.values() if t is not None}
    # The states before each 16 positions: with 16 states as many numbers as the input has.
    assert sum(size for at, size in saved.items() if at not in own) == inputs["u"].numel()


def _in_child(queue: Any, inputs: dict[str, Any]) -> None:
    queue.put({k: v.detach().numpy() for k, v in outputs_and_gradients(selective_scan, learning(inputs)).items()})


# Python warns of forks beside threads from 3.12 on: the pool's own end with the fork.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_computes_the_same():
    inputs = scan_inputs(channels=100)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = {k: v.detach() for k, v in outputs_and_gradients(selective_scan, learning(inputs)).items()}
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(queue, inputs))
        child.start()
        actual = queue.get(timeout=600)
        child.join(timeout=600)
        assert child.exitcode == 0
    finally:
        torch.set_num_threads(before)
    for name, value in expected.items():
        assert torch.equal(torch.from_numpy(actual[name]), value), name


class _Scans(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return selective_scan(**scan_inputs(seed=index), delta_softplus=True)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_workers_of_a_data_loader():
    data = _Scans()
    expected = [data[i] for i in range(4)]
    for actual, value in zip(DataLoader(data, batch_size=None, num_workers=2), expected, strict=True):
        assert torch.equal(actual, value)


def test_python_threads_at_once():
    inputs = [scan_inputs(channels=100, seed=seed) for seed in range(6)]
    expected = [outputs_and_gradients(selective_scan, learning(given)) for given in inputs]
    results: dict[int, Any] = {}

    def work(i: int) -> None:
        for _ in range(3):
            results[i] = outputs_and_gradients(selective_scan, learning(inputs[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, value in enumerate(expected):
        for name in value:
            assert torch.equal(results[i][name], value[name]), name


# In processes of their own: a forked child of this one, which has run many threads by then, might wait for ever.
ONE_OF_TWO = """
import os, torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from hf_ssm.ops.selective_scan import selective_scan

class Scan(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.A = torch.nn.Parameter(-torch.rand(20, 4))

    def forward(self, u, B):
        return selective_scan(u, u, self.A, B, B, delta_softplus=True)

rank = int(os.environ["RANK"])
distributed.init_process_group("gloo")
torch.manual_seed(0)
model, u, B = Scan(), torch.randn(2, 30, 20), torch.randn(2, 30, 4)
parallel = DistributedDataParallel(model)
parallel(u[rank : rank + 1], B[rank : rank + 1]).sum().backward()
(both,) = torch.autograd.grad(model(u, B).sum(), model.A)
torch.testing.assert_close(model.A.grad, both / 2)
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_of_gloo(tmp_path):
    (tmp_path / "one_of_two.py").write_text(ONE_OF_TWO)
    run_workers(tmp_path / "one_of_two.py", tmp_path, 2)


@pytest.mark.parametrize("batch", [15, 16, 33, 70])
def test_rows_that_share_a_task_are_as_if_alone(batch):
    inputs = scan_inputs(batch, 19, 70)
    options = {"return_last_state": True, "delta_softplus": True}
    together = selective_scan(**inputs, **options)
    per_row = "u", "delta", "B", "C", "z", "initial_state"
    for row in (0, 1, batch // 2, batch - 1):
        alone = {name: value[row : row + 1] if name in per_row else value for name, value in inputs.items()}
        for found, expected in zip(together, selective_scan(**alone, **options), strict=True):
            assert torch.equal(found[row : row + 1], expected)
