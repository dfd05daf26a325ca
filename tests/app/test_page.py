"""Clicking through the page, in the width of a desktop and of a phone."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio")

pytestmark = pytest.mark.slow

MOTIF = "ACGTTTGACATTAGGACCATGACAGGTTACGATACCA"
# Milliseconds: other processes may be at work.
PATIENCE = 60_000
# Texts of figures that are not within their figure, or of which the figure is not within the page.
CUT_LABELS = """[...document.querySelectorAll("figure svg")].filter(svg => svg.checkVisibility()).flatMap(svg => {
    const whole = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter(text => {
        const box = text.getBoundingClientRect();
        return box.left < whole.left - 1 || box.right > whole.right + 1 || box.top < whole.top - 1
            || box.bottom > whole.bottom + 1 || whole.right > innerWidth;
    }).map(text => text.textContent);
})"""
BLOCKS = """[...document.querySelectorAll(".heat table")].map(
    table => table.querySelector("td.cell").getBoundingClientRect().top)"""
LETTERS = """[...document.querySelectorAll(".heat tr:has(th[scope])")].map(row => {
    const middle = element => element.getBoundingClientRect().top + element.getBoundingClientRect().height / 2;
    return middle(row.querySelector("th")) - middle(row.querySelector("td"));
})"""


def open_tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    # Gradio sets the initial values of the fields just after the tab has opened.
    page.wait_for_timeout(500)


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def sees(page: Any, text: str) -> None:
    page.get_by_text(text).filter(visible=True).first.wait_for(timeout=PATIENCE)


def is_in_view(page: Any, button: str) -> None:
    """The result of a button is within the window or, if it is longer, begins with its button at the top."""
    name = "-".join(button.lower().split())
    page.wait_for_function(
        """name => {
            const [buttons, result] = ["buttons", "result"].map(
                part => document.getElementById(`${name}-${part}`).getBoundingClientRect());
            const isAtTop = buttons.top >= 0 && buttons.top < 80;
            return result.height > 50 && (isAtTop || (buttons.top >= 0 && result.bottom <= innerHeight));
        }""",
        arg=name,
    )


def write(page: Any, text: str) -> None:
    page.locator("#sequence textarea").fill(text)


def test_each_tab(page: Any) -> None:
    assert "small <model>" in page.locator("#title").inner_text()
    write(page, MOTIF)
    press(page, "Predict")
    sees(page, "Probabilities of the classes")
    is_in_view(page, "Predict")
    assert page.locator(".bar").count() == 2
    open_tab(page, "Importance")
    press(page, "Find the bases")
    sees(page, "Tokens by their effect")
    is_in_view(page, "Find the bases")
    assert page.locator(".tokens .token").count() == len(MOTIF)
    open_tab(page, "Variants")
    page.get_by_label("Last position").fill("12")
    press(page, "Compute the heat map")
    sees(page, "Change of the probability of")
    is_in_view(page, "Compute the heat map")
    assert page.locator(".heat td.cell").count() == 4 * 12
    # The cells of blocks in a row begin at one height, and letters stand beside their cells.
    tops = page.evaluate(BLOCKS)
    assert len(tops) == 2 and (abs(tops[0] - tops[1]) < 1 or page.viewport_size["width"] < 640)
    assert all(abs(middle) <= 1 for middle in page.evaluate(LETTERS))
    # Theory is for those who ask.
    assert not page.get_by_role("tab", name="Frequencies").is_visible()
    page.get_by_text("For theory: frequency responses").click()
    open_tab(page, "Frequencies")
    sees(page, "As trained (α = 1, β = 0).")
    page.get_by_label("number input for β plus").fill("1")
    page.get_by_label("number input for β plus").press("Tab")
    sees(page, "and with α = 1, β = 1.")
    press(page, "As trained")
    sees(page, "As trained (α = 1, β = 0). Lines")
    open_tab(page, "Theory")
    press(page, "Write the report")
    sees(page, "Complexity")
    sees(page, "The reach of the output of a layer")
    sees(page, "Power by frequency")
    is_in_view(page, "Write the report")
    assert page.locator("figure svg text").count() > 5 and page.evaluate(CUT_LABELS) == []


def test_examples_and_files(page: Any, tmp_path: Path) -> None:
    page.get_by_text("random DNA, rich in G and C").click()
    page.wait_for_function("document.querySelector('#sequence textarea').value.length == 200")
    good, bad = tmp_path / "good.fa", tmp_path / "bad.fa"
    good.write_text(f">a\n{MOTIF}\n>b\n{MOTIF[5:]}\n")
    bad.write_text("this is no FASTA 1\n")
    upload = page.locator("input[type=file]").first
    upload.set_input_files(bad)
    sees(page, "'bad.fa' cannot be read")
    upload.set_input_files(good)
    sees(page, "The file is in the field.")
    assert page.locator("#sequence textarea").input_value().startswith(f">a\n{MOTIF}")
    press(page, "Predict")
    sees(page, "Probabilities of the classes")
    assert page.locator("table.numbers tbody tr").count() == 2 and page.locator(".bar").count() == 0
    # No history of the inputs stays in the browser.
    stored = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert MOTIF not in stored and "run" not in stored
    assert page.evaluate("indexedDB.databases()") == []


def test_bad_input(page: Any) -> None:
    for text, message in (
        ("", "There is no sequence"),
        ("MKVLLLE", "not a letter of DNA"),
        (">\nACGT", "the header has no name"),
        ("A" * 2001, "give at most 2,000 here"),
    ):
        write(page, text)
        open_tab(page, "Importance")
        press(page, "Find the bases")
        sees(page, message)
    assert "Traceback" not in page.content()


def test_the_probe_is_cancelled(page: Any) -> None:
    write(page, "ACGTTGCA" * 37)
    open_tab(page, "Importance")
    page.get_by_label("Method").click()
    page.get_by_role("option", name="exact search (slow)").click()
    press(page, "Find the bases")
    sees(page, "of 296 tokens masked")
    press(page, "Cancel")
    sees(page, "Cancelled after")
    # The next computation does not wait for the cancelled one.
    write(page, MOTIF)
    press(page, "Find the bases")
    sees(page, "Tokens by their effect")
