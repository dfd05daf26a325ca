"""The choice between backends: by environment variable, process, thread; and the dispatch of operations."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hf_ssm.ops import backends
from hf_ssm.ops.backends import Compiled, Implementation, Operation, current, use_backend
from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.threads import run_tasks


@pytest.fixture
def numba() -> None:
    pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")


def named(name: str):
    return lambda *args: name


OPERATION = Operation(
    torch=named("torch"),
    reference=named("reference"),
    hub=named("hub"),
    numba=Implementation(named("numba"), lambda t, flag: flag),
)


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize(
    ("choice", "cpu", "unsupported", "cuda"),
    [
        ("auto", "numba", "torch", "hub"),
        ("numba", "numba", "torch", "hub"),
        ("torch", "torch", "torch", "torch"),
        ("reference", "reference", "reference", "reference"),
    ],
)
def test_the_first_backend_that_supports_the_call_runs(choice, cpu, unsupported, cuda):
    on_cpu = torch.zeros(1)
    with torch._subclasses.FakeTensorMode():
        on_cuda = torch.empty(1, device="cuda")
    with use_backend(choice):
        assert OPERATION(on_cpu, True) == cpu
        assert OPERATION(on_cpu, False) == unsupported
        assert OPERATION(on_cuda, True) == cuda
        # Tensors on several devices, also within tuples.
        assert OPERATION((on_cpu, None, on_cuda), True) == unsupported


@pytest.mark.usefixtures("numba")
@pytest.mark.parametrize("choice", ["auto", "numba", "torch"])
def test_torch_runs_on_a_gpu_where_no_kernel_of_the_hub_does(choice):
    operation = Operation(hub=Implementation(named("hub"), lambda t: False), numba=named("numba"), torch=named("torch"))
    with torch._subclasses.FakeTensorMode():
        on_cuda = torch.empty(1, device="cuda")
    with use_backend(choice):
        assert operation(on_cuda) == "torch"


def test_an_operation_without_reference_runs_torch():
    with use_backend("reference"):
        assert Operation(torch=named("torch"))(torch.zeros(1)) == "torch"


def test_no_backend_is_no_function():
    with use_backend("torch"):
        assert Operation(numba=named("numba")).choose(torch.zeros(1)) is None


@pytest.mark.usefixtures("numba")
def test_a_compiled_module_that_cannot_be_imported_is_not_available(caplog):
    operation = Operation(numba=Compiled("hf_ssm.ops.no_such_module", "run"), torch=named("torch"))
    with use_backend("auto"):
        assert operation(torch.zeros(1)) == "torch"
    assert "hf_ssm.ops.no_such_module is not available" in caplog.text


def test_an_unknown_backend_of_an_operation_is_an_error():
    with pytest.raises(ValueError, match="backends must be among hub, numba, reference, torch, got cuda"):
        Operation(cuda=named("cuda"))


def test_the_choice_before_is_restored_after_an_error():
    before = current()
    other = "torch" if before != "torch" else "reference"
    with pytest.raises(RuntimeError, match="stop"), use_backend(other):
        assert current() == other
        raise RuntimeError("stop")
    assert current() == before


def test_overlapping_blocks_of_two_threads_leave_the_process_as_it_was():
    before, seen = current(), []
    entered, left = threading.Event(), threading.Event()

    def second() -> None:
        with use_backend("reference"):
            entered.set()
            left.wait(300)
            seen.append(current())
        seen.append(current())

    thread = threading.Thread(target=second)
    with use_backend("torch"):
        thread.start()
        entered.wait(300)
        assert current() == "torch"
    left.set()
    thread.join()
    # The block that was entered last ended last, in a process whose choice no block has changed.
    assert seen == ["reference", before]
    assert current() == before


def test_tasks_of_asyncio_have_their_own_choice():
    async def choose(choice: str) -> str:
        with use_backend(choice):
            await asyncio.sleep(0)
            return current()

    async def both() -> list[str]:
        return await asyncio.gather(choose("torch"), choose("reference"))

    assert asyncio.run(both()) == ["torch", "reference"]


def test_workers_see_the_choice_of_the_caller():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for choice in ("reference", "torch"):
            seen: dict[int, str] = {}
            with use_backend(choice):
                run_tasks(lambda number, seen=seen: seen.update({number: current()}), 8)
            assert seen == dict.fromkeys(range(8), choice)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_backward_recomputes_with_the_choice_of_its_thread(reentrant):
    seen = []

    def layer(u: torch.Tensor) -> torch.Tensor:
        seen.append(current())
        return long_conv(u, torch.ones(2, 12))

    u = torch.ones(1, 12, 2, requires_grad=True)
    with use_backend("reference"):
        checkpoint(layer, u, use_reentrant=reentrant).sum().backward()
    assert seen == ["reference"] * 2


@pytest.mark.parametrize(("forward", "backward"), [("torch", "reference"), ("reference", "torch")])
def test_a_gradient_runs_on_the_backend_of_its_forward(forward, backward, monkeypatch):
    u = torch.ones(1, 12, 2, requires_grad=True)
    with use_backend(forward):
        y = long_conv(u, torch.ones(2, 12))
    if forward == "reference":
        monkeypatch.setattr(torch.fft, "rfft", None)
    with use_backend(backward):
        y.sum().backward()
    torch.testing.assert_close(u.grad[0, :, 0], torch.arange(12.0, 0.0, -1.0))


def test_torch_compile_reads_and_guards_the_choice():
    function = torch.compile(lambda t: t + len(OPERATION(t, False)), backend="eager", fullgraph=True)
    for choice in ("torch", "reference", "torch"):
        with use_backend(choice):
            assert function(torch.zeros(1)).item() == len(choice)


def test_an_unknown_choice_names_the_others():
    with pytest.raises(ValueError, match=r"HF_SSM_KERNELS must be one of auto, numba, torch, reference, got 'fast'"):
        backends.set_backend("fast")


def run(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source], env=os.environ | environment, capture_output=True, text=True, check=False
    )


def test_a_wrong_environment_variable_is_one_clear_error():
    result = run("import hf_ssm; hf_ssm.S4ForCausalLM", HF_SSM_KERNELS="fast")
    assert result.stderr.splitlines()[-1].endswith("must be one of auto, numba, torch, reference, got 'fast'")


# Python itself marks a module that cannot be imported by None.
WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None\n"


@pytest.mark.slow
def test_without_numba_torch_runs_and_numba_is_an_error_with_the_command_that_installs_it():
    source = """
import torch, hf_ssm
from hf_ssm.ops.backends import is_enabled
assert not is_enabled("numba")
config = hf_ssm.SelectiveSSMConfig(hidden_size=8, state_size=4, num_hidden_layers=1, vocab_size=8)
model = hf_ssm.SelectiveSSMForCausalLM(config)
tokens = torch.randint(0, 8, (2, 9))
model(input_ids=tokens, labels=tokens).loss.backward()
print(model.generate(tokens, max_new_tokens=3).shape)
from hf_ssm.ops import backends
try:
    backends.set_backend("numba")
except ImportError as error:
    print(error)
"""
    result = run(WITHOUT_NUMBA + source, HF_SSM_KERNELS="auto")
    assert result.stdout.startswith("torch.Size([2, 12])\n"), result.stderr
    assert "pip install 'hf_ssm[cpu]'" in result.stdout.splitlines()[-1]


def test_the_environment_chooses_the_implementation_and_the_log_names_it():
    source = """
import sys, torch, hf_ssm.ops.short_conv, hf_ssm.ops.selective_scan
from hf_ssm.ops import backends
from hf_ssm.ops.long_conv import long_conv
long_conv(torch.zeros(1, 4, 2), torch.zeros(2, 4))
print(backends.current(), "numba" in sys.modules)
"""
    done = run(source, HF_SSM_LOG="debug", HF_SSM_KERNELS="torch")
    assert done.stdout.strip() == "torch False", done.stderr
    assert done.stderr.strip() == "hf_ssm.ops.long_conv.fft.long_conv_fft runs"


def test_the_log_names_the_refusals():
    double = torch.zeros(1, 4, 2, dtype=torch.float64)
    refused = Operation(hub=named("hub"), torch=named("torch"), numba=Implementation(named("numba"), lambda t: False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends._INSTALLED, "numba", True)
        lines: list[list[str]] = []
        patch.setattr(backends, "_log_choice", lambda run, refusals: lines.append(refusals))
        assert refused(double) == "torch"
    assert lines == [["hub needs tensors on cuda", "numba does not support these arguments"]]
