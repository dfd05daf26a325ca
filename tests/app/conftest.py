"""The page of a small model in headless Chromium."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

CHROMIUM = Path("/usr/bin/chromium")
# No requests of the browser itself, and none to other hosts.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of the page of a classifier of DNA with random weights."""
    pytest.importorskip("gradio")
    from hf_ssm import S4Config, S4ForSequenceClassification
    from hf_ssm.app import ServedModel, launch
    from hf_ssm.tokenization import build_dna_tokenizer

    torch.manual_seed(0)
    config = S4Config(vocab_size=12, hidden_size=32, state_size=8, num_hidden_layers=2, initializer_range=0.4)
    model = S4ForSequenceClassification(config)
    said: list[str] = []
    served = ServedModel(model, build_dna_tokenizer(), "small <model>")
    page = launch(served, port=None, wait=False, announce=said.append)
    yield said[0].split(" is at ")[1].rstrip("/")
    page.close(verbose=False)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason='playwright is not installed: "hf_ssm[browser]"')
    if not CHROMIUM.is_file():
        pytest.skip(f"no browser: {CHROMIUM} does not exist")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Any]:
    """The page in a new window; afterwards it has neither scrolled sideways, nor raised an error, nor left the host."""
    width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height})
    found = context.new_page()
    hosts, errors = set[str](), list[str]()
    found.on("request", lambda sent: hosts.add(sent.url.split("/")[2]) if sent.url.startswith("http") else None)
    found.on("pageerror", lambda error: errors.append(str(error)))
    found.goto(address)
    found.wait_for_selector("#sequence textarea", timeout=60_000)
    found.get_by_role("tab", name="Theory").wait_for()
    yield found
    assert found.evaluate("document.documentElement.scrollWidth") <= width
    assert not errors
    assert hosts == {address.split("/")[2]}
    context.close()
