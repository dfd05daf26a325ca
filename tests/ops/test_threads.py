import threading
from collections.abc import Iterator

import pytest
import torch

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.long_conv import fft as module
from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.threads import run_single_threaded


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("count", [2, 4, 9, 100])
def test_each_task_runs_once_and_alone_on_its_thread(count):
    seen: list[tuple[int, int, str]] = []
    run_single_threaded(lambda i: seen.append((i, torch.get_num_threads(), threading.current_thread().name)), count)
    assert sorted(i for i, _, _ in seen) == list(range(count))
    assert {threads for _, threads, _ in seen} == {1}
    assert all(name.startswith("hf_ssm_single") for _, _, name in seen)
    assert torch.get_num_threads() == threads_of_a_new_thread() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_tasks_that_divide_badly_run_here_with_all_threads(count):
    seen: list[tuple[int, int, threading.Thread]] = []
    run_single_threaded(lambda i: seen.append((i, torch.get_num_threads(), threading.current_thread())), count)
    assert seen == [(i, 2, threading.current_thread()) for i in range(count)]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("count", [3, 8])
def test_errors_arrive_and_leave_the_threads_as_they_were(count):
    def task(number: int) -> None:
        if number == 2:
            raise ZeroDivisionError("the third")

    with pytest.raises(ZeroDivisionError, match="the third"):
        run_single_threaded(task, count)
    assert torch.get_num_threads() == threads_of_a_new_thread() == 2
    run_single_threaded(lambda number: None, count)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("inference", [False, True])
def test_tasks_may_write_to_what_the_caller_made(inference):
    with torch.inference_mode(inference):
        weight, y = torch.ones(4, requires_grad=not inference), torch.zeros(4)
        run_single_threaded(lambda i: y[i : i + 1].copy_(weight[i : i + 1]), 4)
        assert torch.equal(y, torch.ones(4))
        assert not y.requires_grad


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("back", [False, True])
def test_the_convolution_has_the_same_bits_with_one_thread_and_with_two(back, monkeypatch):
    monkeypatch.setattr(module, "_FEWEST_SAMPLES", 1)
    generator = torch.Generator().manual_seed(0)
    u, kernel, grad = (torch.randn(*shape, generator=generator) for shape in ((3, 300, 64), (64, 300), (3, 300, 64)))
    inputs = [t.requires_grad_() for t in (u, kernel, *([kernel.detach().flip(1)] if back else []))]
    names: set[str] = set()
    rfft = torch.fft.rfft

    def watched(*args, **kwargs):
        names.add(threading.current_thread().name)
        return rfft(*args, **kwargs)

    monkeypatch.setattr(torch.fft, "rfft", watched)
    found = []
    with use_backend("torch"):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            names.clear()
            y = long_conv(*inputs)
            with torch.inference_mode():
                assert torch.equal(long_conv(*inputs), y)
            found.append([y, *torch.autograd.grad(y, inputs, grad)])
            assert torch.get_num_threads() == threads
            assert any(name.startswith("hf_ssm_single") for name in names) == (threads == 2)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
