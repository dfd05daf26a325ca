"""The tab of frequencies: power spectra of sequences and layers, and the response of a layer with other α and β."""

import copy
import dataclasses
import math
from typing import Any

import gradio as gr
import torch
from torch import Tensor

from hf_ssm.analysis.frequency import FrequencyResponse, alpha_recommendation, frequency_responses
from hf_ssm.analysis.recording import record_operators
from hf_ssm.app import markup
from hf_ssm.app.figures import beside, figure_html, plot_responses, plot_spectra, row
from hf_ssm.app.jobs import Job
from hf_ssm.app.reading import MOST_SEQUENCES
from hf_ssm.app.served import ServedModel
from hf_ssm.app.wiring import Jobs
from hf_ssm.modules.operator import SequenceOperator
from hf_ssm.modules.roles import parameter_roles
from hf_ssm.ops.long_conv import next_fast_len
from hf_ssm.plotting.responses import response_title
from hf_ssm.theory.spectrum import power_spectrum, spectral_edge, strongest_line, symbol_spectrum

__all__ = ["add_tab", "changed_response", "missing", "response_html", "spectrum_html"]

TITLE = "Frequencies"
_MOST_POSITIONS = 20_000
_FEWEST_FREQUENCIES = 257
_SHARES = (0.5, 0.9)
_EXPLANATION = (
    "The response shows how strongly the convolution of a layer passes each frequency. **α** multiplies the "
    "frequencies of the state matrix (Yu et al. 2025, eq. 5): with a larger α the layer reacts to faster changes. "
    "**β** weighs each frequency s by (1 + |s|) to the power β (eq. 8): above 0 it amplifies high frequencies. "
    "Both are applied to the trained weights, without training."
)


def missing(served: ServedModel) -> None:
    """`None`: every model that the page shows reads sequences, which have a spectrum."""


def add_tab(served: ServedModel, jobs: Jobs, text: gr.Textbox) -> None:
    """Add the contents of the tab."""
    _add_response(served)
    gr.Markdown(
        "### Spectrum of the input\nThe frequencies of the input, and the frequencies that remain at each layer, "
        f"for at most {MOST_SEQUENCES} sequences of {_MOST_POSITIONS:,} positions."
    )
    jobs.add_button("Compute the spectrum", lambda job, value: spectrum_html(served, job, value), [text])


def _add_response(served: ServedModel) -> None:
    gr.Markdown("### Frequency response of a layer")
    try:
        responses = frequency_responses(served.model)
    except ValueError:
        gr.HTML(
            markup.note(
                "A selective scan changes its kernel from token to token and has no frequency response; α and β act on "
                "models with long convolutions (S4, S5, Hyena)."
                if served.is_own
                else "The frequency response is known for the models of hf_ssm only."
            )
        )
        return
    has_alpha = any(map(_frequencies, (response.operator for response in responses)))
    names = [response_title(response, responses) for response in responses]
    with gr.Row():
        with gr.Column(min_width=300):
            gr.Markdown(_EXPLANATION)
            layer = gr.Dropdown(names, value=names[0], label="Layer", visible=len(names) > 1)
            alpha = gr.Slider(
                -2,
                2,
                0,
                step=0.1,
                label="α times a power of ten",
                info="0: as trained, 1: ten times as large, -1: a tenth"
                if has_alpha
                else "no effect: the filters of this model have no state matrix with frequencies",
                interactive=has_alpha,
            )
            beta = gr.Slider(-2, 2, 0, step=0.1, label="β plus", info="0: as trained")
            reset = gr.Button("As trained", size="sm", scale=0)
        with gr.Column(min_width=300):
            figure = gr.HTML(response_html(served, responses[0], 0.0, 0.0))

    def show(name: str, power: float, added: float) -> str:
        return response_html(served, responses[names.index(name)], power, added)

    controls: list[Any] = [layer, alpha, beta]
    for component in controls:
        component.change(
            show, controls, figure, show_progress="hidden", trigger_mode="always_last", api_visibility="private"
        )
    reset.click(lambda: (0, 0), None, [alpha, beta], show_progress="hidden", api_visibility="private")


def _frequencies(operator: SequenceOperator | None) -> list[str]:
    """Names of the parameters that hold the frequencies of the state matrix, which α multiplies."""
    if operator is None:
        return []
    return [
        name
        for name, role in parameter_roles(operator).items()
        if role.quantity == "A_imag" and bool(operator.get_parameter(name).any())
    ]


def changed_response(response: FrequencyResponse, scale: float, added: float) -> FrequencyResponse:
    """The response of a trained operator with α multiplied by `scale` and `added` added to β.

    Source: Yu et al. 2025, eqs. (5) and (8), applied to the trained state matrix and filter.
    """
    operator = copy.deepcopy(response.operator)
    assert operator is not None
    with torch.no_grad():
        for name in _frequencies(operator):
            operator.get_parameter(name).mul_(scale)
        if operator.sobolev_order is not None:
            operator.sobolev_order.add_(added)
        else:
            operator.initial_order += added
        values = operator.frequency_response(response.omega, response.rows)
    return dataclasses.replace(response, response=values, operator=operator)


def response_html(served: ServedModel, response: FrequencyResponse, power: float, added: float) -> str:
    """The figure of a layer, as trained and, if anything is changed, with other α and β."""
    operator, scale = response.operator, 10.0**power
    assert operator is not None
    changed = changed_response(response, scale, added) if power != 0 or added != 0 else None
    beta = float(operator.initial_order if operator.sobolev_order is None else operator.sobolev_order.mean())
    alpha = float(getattr(served.config, "frequency_scale", 1.0)) if _frequencies(operator) else None

    def values(alpha: float | None, beta: float) -> str:
        return f"β = {beta:.2g}" if alpha is None else f"α = {alpha:.3g}, β = {beta:.2g}"

    label = f"with {values(None if alpha is None else alpha * scale, beta + added)}"
    caption = f"As trained ({values(alpha, beta)}){'' if changed is None else f' and {label}'}."
    caption += " Lines: median of the channels; bands: the middle 80 %."
    return markup.section(figure_html(plot_responses(response, changed, label), caption))


def spectrum_html(served: ServedModel, job: Job, text: str) -> str:
    """Spectra of the inputs and of each layer's inputs, with their edges in words."""
    batches = served.batches(text, MOST_SEQUENCES, _MOST_POSITIONS)
    longest = max(next(iter(batch.values())).shape[1 if served.reads != "pairs" else 2] for batch in batches)
    count = max(_FEWEST_FREQUENCIES, next_fast_len(-(-longest // 2)) + 1)
    spectra = {"input": _input_power(served, batches, count)}
    if served.is_own:
        for record in record_operators(served.model, batches, num_frequencies=count):
            if record.direction == "forward" and record.power is not None:
                name = f"input of layer {record.layer}"
                spectra[name] = spectra.get(name, torch.zeros(count)) + record.power.sum(0).cpu()
    for name, power in spectra.items():
        if not power.sum().isfinite():
            raise ValueError(
                f"The power of the {name} is not finite: check that the numbers are on the scale of the training data."
            )
    spectra = {name: power for name, power in spectra.items() if power.sum() > 0}
    if not spectra:
        raise ValueError("The input is constant or one position long, so that it has no spectrum.")
    rows = []
    for name, power in spectra.items():
        line, ratio = strongest_line(power)
        edges = (spectral_edge(power, share).item() / (2 * math.pi) for share in _SHARES)
        rows.append([name, *edges, 2 * math.pi / line, ratio])
    header = ["power", *(f"{share:.0%} below" for share in _SHARES), "period", "peak"]
    caption = "Power by frequency, averaged over five neighbours. White noise is a horizontal line"
    caption += "; coding DNA has a peak at the period 3." if served.has_bases else "."
    # The sequences, the first and the last layer: more lines would hide each other.
    chosen = {name: spectra[name] for name in dict.fromkeys([*list(spectra)[:2], list(spectra)[-1]])}
    about = (
        "Frequencies in cycles per position; the strongest period, in positions; its peak relative to the neighbours"
    )
    words = markup.table(header, rows, about) + _alpha(served, spectra)
    return markup.section(row(figure_html(plot_spectra(chosen), caption), beside(words)))


def _input_power(served: ServedModel, batches: list[dict[str, Tensor]], count: int) -> Tensor:
    total, positions = torch.zeros(count, dtype=torch.float64), 0
    for batch in batches:
        if served.reads == "numbers":
            values = batch["input_values"]
            power, number = power_spectrum(values, num_frequencies=count).sum(0), values.shape[1]
        else:
            ids, mask = (batch[name].reshape(-1, batch[name].shape[-1]) for name in ("input_ids", "attention_mask"))
            is_symbol = mask.bool() & ~torch.isin(ids, served.special_ids())
            # A sequence may consist of special tokens.
            number = int(is_symbol.sum())
            power = symbol_spectrum(ids, is_symbol, num_frequencies=count) if number else torch.zeros(count)
        total, positions = total + power.cpu() * number, positions + number
    return total / max(positions, 1)


def _alpha(served: ServedModel, spectra: dict[str, Tensor]) -> str:
    """Whether the layers' inputs give a reason to train with another α, in a sentence."""
    layers = [power / power.sum() for name, power in spectra.items() if name != "input"]
    if not layers:
        return ""
    try:
        recommendation = alpha_recommendation(served.config, torch.stack(layers).mean(0), quantiles=(0.9,))
    except ValueError:
        return ""
    return f"<p>α (frequency_scale) acts before training. For the inputs of the layers: {recommendation.verdict}</p>"
