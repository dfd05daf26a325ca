"""The tab of theory: the report of the model on the given sequences, with a sentence for each number."""

import math
from html import escape

import gradio as gr

from hf_ssm import plotting
from hf_ssm.analysis.report import FEWEST_SEQUENCES, tables_of, theory_report
from hf_ssm.analysis.tables import Table
from hf_ssm.app import markup
from hf_ssm.app.figures import figure_html, row
from hf_ssm.app.jobs import Job
from hf_ssm.app.served import ServedModel
from hf_ssm.app.wiring import Jobs

__all__ = ["add_tab", "missing", "report_html"]

TITLE = "Theory"
_MOST_SEQUENCES, _MOST_POSITIONS = 32, 5000

# What each number means, by the beginning of the title of its table.
_MEANINGS: dict[str, dict[str, str]] = {
    "Complexity": {
        "τ": "The reach of the output of a layer for inputs like these; rescaling the initialisation sets it to 1.",
        "ψ²/√n": "The complexity of the layer that enters its generalisation bound: it shrinks with the number n of "
        "training sequences.",
        "‖k‖₁²": "The squared sum of the magnitudes of the kernel: the largest output for inputs of at most 1.",
        "‖k‖₂²": "The energy of the kernel: the power of the output for white noise of power 1.",
    },
    "Total variation": {
        "per band": "How much the response of a layer varies within a band of frequencies, from slow to fast. A larger "
        "number at low frequencies is a bias of the layer to slow changes.",
    },
    "Hankel": {
        "99 %": "The number of states that have nearly all of the effect of a channel; the others can be dropped.",
        "dropped": "The share that would be lost with half or a quarter of the states: an upper limit of the error.",
    },
    "Useful range": {
        "ω": "The frequency below which 90 % of the power of the layer's inputs lies, in radians per position.",
        "α up to": "The largest frequency scale with which such inputs still drive the fastest state. It is a limit, "
        "which depends on the state size, and not a recommended value.",
    },
    "Generalisation bound": {
        "bound": "An upper limit for the difference of the losses on new and on training sequences. A bound above 1 "
        "guarantees nothing.",
        "log₁₀ of the capacity": "The size of the class of models that the bound counts, as a power of ten.",
        "sequences needed": "The number of training sequences with which the bound is less than 1, as a power of ten.",
        "s_A, ρ_A": "How fast the states forget: the bound needs contraction, ρ_A below 1.",
    },
    "Each scan alone": {"mean contraction": "The factor by which a state shrinks in one step, on average."},
    "Movement": {
        "relative change": "How far training moved the parameters from their initial values: near 0, the "
        "initialisation determines the parameters."
    },
}

_COMPARABLE = (
    "Of two models that read the same sequences, the one with the smaller τ is simpler, and generalises better."
)


def missing(served: ServedModel) -> str | None:
    """Why the tab makes no sense for a model; `None` if it does."""
    return None if served.is_own else "The theory report is computed for the models of hf_ssm only."


def add_tab(served: ServedModel, jobs: Jobs, text: gr.Textbox) -> None:
    """Add the contents of the tab."""
    gr.Markdown(
        "Measures of the complexity of the layers for these sequences, and the conclusions of the theory, for at "
        f"most {_MOST_SEQUENCES} sequences of {_MOST_POSITIONS:,} positions."
    )
    jobs.add_button("Write the report", lambda job, value: report_html(served, job, value), [text])


def report_html(served: ServedModel, job: Job, text: str) -> str:
    """Tables and figures of the theory report."""
    batches = served.batches(text, _MOST_SEQUENCES, _MOST_POSITIONS)
    report = theory_report(served.model, batches, num_sequences=served.num_training, parameter_change=served.movement)
    if not all(math.isfinite(layer.tau) for layer in report.complexity):
        raise ValueError("τ is not finite: check that the numbers of the input are on the scale of the training data.")
    about_tau = _COMPARABLE if report.data["rows"] >= FEWEST_SEQUENCES else _remedy(served)
    figures = [
        figure_html(plotting.plot_tau(report.complexity), "τ of the channels of each layer; the diamond is their mean.")
    ]
    if report.spectra:
        power = {spectrum.name: spectrum.power for spectrum in report.spectra}
        # The data, the first and the last layer: more lines would hide each other.
        power = {name: power[name] for name in dict.fromkeys([*list(power)[:2], list(power)[-1]])}
        figures.append(figure_html(plotting.plot_spectrum(power, unit="position"), "Power by frequency."))
    tables = "".join(map(_section, tables_of(report)))
    return markup.note(about_tau) + markup.section(row(*figures)) + tables


def _remedy(served: ServedModel) -> str:
    return (
        f"There are too few sequences for τ and ψ²/√n: give {FEWEST_SEQUENCES} to {_MOST_SEQUENCES} sequences that "
        f"are like the training data. The command hf-ssm report {served.name} reads 256 training sequences."
    )


def _section(table: Table) -> str:
    meanings = next((entry for title, entry in _MEANINGS.items() if table.title.startswith(title)), {})
    shown = markup.table(table.header, table.rows) if table.header and table.rows else ""
    explained = markup.definitions(meanings) if shown else ""
    notes = "".join(f'<p class="quiet">{escape(note)}</p>' for note in table.notes)
    return markup.section(explained, shown, notes, title=table.title)
