"""The tab of variants: the effect of every substitution of a region."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gradio as gr
import numpy as np

from hf_ssm.app import markup
from hf_ssm.app.jobs import Job
from hf_ssm.app.served import BASES, ServedModel
from hf_ssm.app.wiring import Jobs
from hf_ssm.data.records import Record
from hf_ssm.inference.saturation import Saturation
from hf_ssm.utils.evaluation import evaluating

__all__ = ["add_tab", "missing", "mutagenesis", "variants_html"]

TITLE = "Variants"
_MOST_LETTERS, _MOST_POSITIONS = 10_000, 200
_PREDICTED = "the predicted class"
_AT_ONCE = 32
# Changes of a probability or value that are hardly worth a colour.
_SMALL = 0.01
# Least value at the end of the scale of colours, so that noise does not fill it; nothing is known of other values.
_PROBABILITY = "The probability of "
_LEAST_LIMITS = {"probability": 0.05, "nats": 0.1}
_SCORES = {
    "llr": (
        "log-likelihood ratio",
        "nats",
        "The log-likelihood of the sequence with the substitution minus the log-likelihood without the "
        "substitution; it is negative where the model finds the substitution less likely.",
    ),
    "masked_log_odds": (
        "masked log-odds",
        "nats",
        "The log-probability of the new base at the masked position minus that of the base of the sequence.",
    ),
}

Cells = dict[tuple[int, str], float]
"""Effect by index in the region and new base."""


def missing(served: ServedModel) -> str | None:
    """Why the tab makes no sense for a model; `None` if it does."""
    if served.reads != "text" or served.head in ("tokens", None):
        what = {"numbers": "numbers", "pairs": "pairs of sequences"}.get(served.reads)
        if what is None:
            what = "no single prediction for a sequence" if served.head == "tokens" else "no prediction"
            return f"This model has {what}, so the effect of a variant cannot be shown."
        return f"This model reads {what}; variants are substitutions in one sequence of DNA."
    if not served.has_bases:
        return (
            "The tokenizer of this model has no token for each of A, C, G and T, which a substitution of bases needs."
        )
    return None


def add_tab(served: ServedModel, jobs: Jobs, text: gr.Textbox) -> None:
    """Add the contents of the tab."""
    what = "of the likelihood" if served.head in ("causal", "masked") else "of the prediction"
    gr.Markdown(
        f"The change {what} for every substitution of a region of the first sequence: at most {_MOST_POSITIONS} "
        f"positions, in a sequence of at most {_MOST_LETTERS:,}."
    )
    options: list[Any] = []
    with gr.Row():
        options.append(gr.Number(1, precision=0, minimum=1, label="First position of the region", min_width=140))
        options.append(gr.Number(60, precision=0, minimum=1, label="Last position", min_width=140))
        if served.head == "class" and served.predicts_classes:
            names = [_PREDICTED, *served.class_names]
            options.append(gr.Dropdown(names, value=_PREDICTED, label="Probability of", min_width=280))
    is_language_model = served.head in ("causal", "masked")
    jobs.add_button(
        "Compute the heat map",
        lambda job, *values: variants_html(served, job, *values),
        [text, *options],
        unit="tokens read" if is_language_model else "substitutions",
    )


def variants_html(served: ServedModel, job: Job, text: str, first: float, last: float, target: str = _PREDICTED) -> str:
    """The heat map of a region, counted from 1 with both ends, and its largest effects."""
    record = served.first_record(text, _MOST_LETTERS)
    # White space is dropped before positions are counted.
    letters = record.sequence
    start, stop = int(first or 1) - 1, min(int(last or len(letters)), len(letters))
    if not 0 <= start < stop:
        raise ValueError(
            f"The region from {int(first or 1)} to {int(last or 0)} is not in the sequence, which has the positions 1 "
            f"to {len(letters)}."
        )
    if stop - start > _MOST_POSITIONS:
        raise ValueError(f"The region has {stop - start} positions; give at most {_MOST_POSITIONS}.")
    if served.head in ("causal", "masked"):
        cells, name, unit, lead = _likelihoods(served, job, letters, start, stop)
    else:
        cells, name = mutagenesis(served, job, record, start, stop, target)
        unit, lead = "", f"{name} with the substitution, minus the value without the substitution."
    return _shown(letters, start, stop, cells, name, unit, lead)


def _likelihoods(served: ServedModel, job: Job, letters: str, start: int, stop: int) -> tuple[Cells, str, str, str]:
    reader = served.reader
    before = reader.tokens
    score = "llr" if served.head == "causal" else "masked_log_odds"
    saturation = Saturation(reader, scores=[score])
    forward = reader.forward

    def counted(*args: Any, **options: Any) -> Any:
        output = forward(*args, **options)
        job.done = reader.tokens - before
        return output

    reader.forward = counted  # type: ignore[method-assign]
    try:
        with evaluating(served.model):
            table = saturation.table(letters, start, stop).to_pydict()
    finally:
        del reader.forward
    rows = zip(table["position"], table["alt"], table[score], strict=True)
    # Windows of mostly N have no score.
    return {(place - start, base): value for place, base, value in rows if value is not None}, *_SCORES[score]


def mutagenesis(
    served: ServedModel, job: Job, record: Record, start: int, stop: int, target: str = _PREDICTED
) -> tuple[Cells, str]:
    """The change of a probability (or value) of a classifier for every substitution, and what it is of.

    Args:
        served: A sequence classifier.
        job: The computation.
        record: The sequence.
        start: First position of the region, from 0.
        stop: The one after its last.
        target: Name of a class, or `_PREDICTED`.
    """
    reference = _scores(served, [record])
    column = _column(served, reference, target)
    value = reference[column][0]
    places = [
        (place, base)
        for place in range(start, stop)
        for base in BASES
        if record.sequence[place].upper() in BASES and base != record.sequence[place].upper()
    ]
    job.expect(len(places))
    cells: Cells = {}
    letters = record.sequence
    for begin in range(0, len(places), _AT_ONCE):
        batch = places[begin : begin + _AT_ONCE]
        mutants = [replace(record, sequence=letters[:place] + base + letters[place + 1 :]) for place, base in batch]
        for (place, base), score in zip(batch, _scores(served, mutants)[column], strict=True):
            cells[place - start, base] = score - value
        job.advance(len(batch))
    if column.startswith("probability_"):
        return cells, _PROBABILITY + column.removeprefix("probability_")
    return cells, "The predicted value"


def _scores(served: ServedModel, records: list[Record]) -> Mapping[str, list[Any]]:
    if served.longest is not None:
        served.encoded(records[:1])
    records = [replace(record, columns={}) for record in records]
    predictions = served.predict(records)
    return {name: predictions[name] for name in predictions.column_names}


def _column(served: ServedModel, scores: Mapping[str, list[Any]], target: str) -> str:
    probabilities = [name for name in scores if name.startswith("probability_")]
    if not probabilities:
        return next(name for name in scores if name in ("prediction", "value_0"))
    if target == _PREDICTED:
        return max(probabilities, key=lambda name: scores[name][0])
    return probabilities[served.class_names.index(target)]


def _shown(sequence: str, start: int, stop: int, cells: Cells, name: str, unit: str, lead: str) -> str:
    if not cells:
        raise ValueError("The region has no A, C, G or T that could be replaced.")
    letters = sequence[start:stop]
    sizes = np.abs(list(cells.values()))
    # A few extreme cells do not make all others pale.
    least = _LEAST_LIMITS.get("probability" if name.startswith(_PROBABILITY) else unit, 0.0)
    limit = max(float(np.quantile(sizes, 0.99)), least) or 1.0
    best = sorted(cells, key=lambda change: (-abs(cells[change]), change))[:10]
    rows = [[start + place + 1, letters[place], base, cells[place, base]] for place, base in best]
    marks = "A dot marks the base of the sequence"
    marks += f", {markup.ABOVE} and {markup.BELOW} a change beyond the scale." if sizes.max() > limit else "."
    certain = ""
    if not unit and sizes.max() < _SMALL:
        certain = f'<p class="message">{_no_effect(start, stop, len(sequence), float(sizes.max()))}</p>'
    low, high = (f"{sign}{limit:.2g}{' ' if unit else ''}{unit}" for sign in ("−", "+"))
    return markup.section(
        certain,
        markup.legend(f"{low} (falls)", f"{high} (rises)", True),
        markup.heat_map(letters, cells, BASES, start + 1, limit, unit),
        f'<p class="quiet">{marks} Touch a cell, or point at a cell, to see its number.</p>',
        title=f"Change of the {name[4:] if name.startswith('The ') else name}",
        lead=f"{lead} Positions {start + 1:,} to {stop:,} of {len(sequence):,}.",
    ) + markup.section(markup.table(["position", "from", "to", "change"], rows, "The largest changes"))


def _no_effect(start: int, stop: int, length: int, largest: float) -> str:
    """A sentence for a region in which no substitution changes the prediction, and which positions it is about."""
    sentence = (
        f"No substitution at the positions {start + 1:,} to {stop:,} changes the prediction by more than "
        f"{largest:.2g}: the prediction does not depend on any single base "
    )
    if stop - start == length:
        return f"{sentence}of the sequence."
    return f"{sentence}there. The other {length - (stop - start):,} of the {length:,} positions were not tried."
