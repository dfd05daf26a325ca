"""The tab of predictions: classes and values, likelihoods, next and masked tokens, generated text."""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import gradio as gr
import torch
from datasets import Dataset
from torch import Tensor

from hf_ssm.app import markup
from hf_ssm.app.jobs import Job
from hf_ssm.app.reading import MOST_SEQUENCES
from hf_ssm.app.served import ServedModel
from hf_ssm.app.wiring import Jobs
from hf_ssm.inference.likelihoods import log_likelihoods
from hf_ssm.plotting.style import PALETTE
from hf_ssm.tokenization import token_texts
from hf_ssm.utils.evaluation import evaluating

__all__ = ["add_tab", "missing", "prediction_html"]

TITLE = "Predict"
_MOST_BARS, _MOST_ROWS, _MOST_NEW = 10, 200, 500
_MOST_POSITIONS = 20_000
_PROBABILITY = "probability_"
_WHAT: dict[str | None, str] = {
    "class": "The prediction of the model for each sequence.",
    "tokens": "The class of each token.",
    "values": "The numbers that the model predicts from the signal.",
    "causal": (
        "The likelihood of each sequence under the model, the tokens that the model expects next, and a continuation."
    ),
    "masked": "The tokens that the model expects in a masked place of the first sequence.",
}


def missing(served: ServedModel) -> str | None:
    """Why the tab makes no sense for a model; `None` if it does."""
    if served.head is None:
        return (
            "This model computes hidden states and has no prediction: use hf-ssm embed to write the hidden states "
            "as a table."
        )
    return None


def add_tab(served: ServedModel, jobs: Jobs, text: gr.Textbox) -> None:
    """Add the contents of the tab."""
    gr.Markdown(_WHAT[served.head])
    options: list[Any] = []
    if served.head == "causal":
        with gr.Row():
            options.append(gr.Slider(0, _MOST_NEW, 50, step=10, label="Tokens to generate after the first sequence"))
            options.append(gr.Slider(0, 2, 1, step=0.1, label="Temperature (0: the most probable token)"))
    elif served.head == "masked":
        options.append(gr.Number(1, precision=0, minimum=1, label="Position to mask and fill in, from 1"))
    jobs.add_button("Predict", lambda job, *values: prediction_html(served, job, *values), [text, *options])


def prediction_html(served: ServedModel, job: Job, text: str, *options: Any) -> str:
    """The predictions for the input field.

    Args:
        served: The model.
        job: The computation.
        text: The input field.
        *options: For a causal language model: number of tokens to generate, temperature; for a masked one: position.
    """
    if served.reads != "text":
        return _of_batch(served, text)
    records = served.records(text, MOST_SEQUENCES)
    if served.head == "causal":
        return (
            _likelihoods(served, records) + _next_tokens(served, records[0]) + _generated(served, records[0], *options)
        )
    if served.head == "masked":
        return _filled(served, records[0], *options)
    predictions = served.predict(records)
    return _of_tokens(served, predictions) if served.head == "tokens" else _of_sequences(predictions)


def _of_sequences(predictions: Dataset) -> str:
    """Classes or values of whole sequences."""
    first, columns = predictions[0], predictions.column_names
    shares = {name.removeprefix(_PROBABILITY): first[name] for name in columns if name.startswith(_PROBABILITY)}
    rows = [
        # Probabilities with a fixed number of digits.
        [f"{value:.4f}" if name.startswith(_PROBABILITY) else value for name, value in row.items()]
        for row in predictions.select(range(min(len(predictions), _MOST_ROWS)))
    ]
    caption = "Probabilities of the classes" if shares else "Predicted values"
    table = markup.table([name.removeprefix(_PROBABILITY) for name in columns], rows, caption)
    if len(predictions) > 1 or "prediction" not in columns:
        return markup.section(table, title="Prediction")
    # The name of the sequence and the share of unknown letters, where they are known.
    others = [name for name in columns if name != "prediction" and not name.startswith(_PROBABILITY)]
    about = markup.section(markup.table(others, [[first[name] for name in others]])) if others else ""
    if shares:
        return _with_bars(first["prediction"] or "no class", shares) + about
    return _answer(f"{first['prediction']:.4g}") + about


def _answer(text: str) -> str:
    return markup.section(f'<p class="answer">{escape(text)}</p>', title="Prediction")


def _with_bars(answer: str, shares: Mapping[str, float]) -> str:
    """An answer, the largest probabilities as bars and, if there are more, a folded table of all."""
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    title = "Probabilities of the classes"
    shown = f"<p>{title}</p>" + markup.bars(dict([*ordered.items()][:_MOST_BARS]), title)
    if len(ordered) > _MOST_BARS:
        rows = [[name, f"{share:.4f}"] for name, share in [*ordered.items()][:_MOST_ROWS]]
        shown += markup.details(f"All {len(ordered)} classes", markup.table(["class", "probability"], rows))
    return _answer(answer) + markup.section(shown)


def _of_tokens(served: ServedModel, predictions: Dataset) -> str:
    """Classes of tokens, coloured."""
    colours = {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(served.class_names)}
    rows = [row for row in predictions if row["record"] == 0][:_MOST_POSITIONS]
    if not served.predicts_classes:
        return markup.section(markup.table(predictions.column_names, [list(row.values()) for row in rows[:_MOST_ROWS]]))
    tokens = [
        markup.Token(
            row["letters"],
            colours[row["prediction"]],
            f"{row['start'] + 1}: {row['prediction']}, {row[_PROBABILITY + row['prediction']]:.1%}",
        )
        for row in rows
    ]
    header = ["position", "token", "class", "probability"]
    cells = [
        [row["start"] + 1, row["letters"], row["prediction"], row[_PROBABILITY + row["prediction"]]]
        for row in rows[:_MOST_ROWS]
    ]
    table = markup.table(header, cells, f"The first {len(cells)} tokens")
    folded = markup.details("The same as a table", table)
    return markup.section(markup.swatches(colours), markup.tokens(tokens), folded, title="Class of each token")


def _of_batch(served: ServedModel, text: str) -> str:
    """Predictions for pairs of sequences and for numbers."""
    (batch,) = served.batches(text, 2, _MOST_POSITIONS)
    with evaluating(served.model):
        logits = served.model(**batch).logits[0].double().cpu()
    if not logits.isfinite().all():
        raise ValueError(
            "The model does not compute finite numbers from this input: check that the numbers of the input "
            "are on the scale of the training data."
        )
    if served.config.problem_type == "multi_label_classification" and logits.dim() == 1:
        rows = list(map(list, zip(served.class_names, logits.sigmoid().tolist(), strict=True)))
        return markup.section(markup.table(["class", "probability"], rows), title="Prediction")
    if served.head == "values" or not served.predicts_classes:
        rows = logits.reshape(-1, logits.shape[-1]) if logits.dim() > 1 else logits[None]
        header = ["row", *(f"value {number}" for number in range(1, rows.shape[1] + 1))]
        shown = [[number, *row] for number, row in enumerate(rows[:_MOST_ROWS].tolist(), start=1)]
        if rows.numel() == 1:
            return _answer(f"{rows[0, 0].item():.4g}")
        return markup.section(markup.table(header, shown), title="Predicted values")
    shares = logits.softmax(-1)
    if shares.dim() == 1:
        by_class = dict(zip(served.class_names, shares.tolist(), strict=True))
        return _with_bars(served.class_names[int(shares.argmax())], by_class)
    rows = [
        [number, served.class_names[int(row.argmax())], row.max().item()]
        for number, row in enumerate(shares[:_MOST_ROWS], start=1)
    ]
    return markup.section(markup.table(["position", "class", "probability"], rows), title="Class of each position")


def _likelihoods(served: ServedModel, records: Any) -> str:
    likelihoods = log_likelihoods(
        served.model, served.processor, records, max_tokens_per_batch=served.reader.max_tokens_per_batch
    )
    rows = [
        [
            row.get("name", "the sequence"),
            row["tokens"],
            row["log_likelihood"],
            row["log_likelihood"] / row["tokens"] if row["tokens"] else None,
            math.exp(min(-row["log_likelihood"] / row["tokens"], 700)) if row["tokens"] else None,
        ]
        for row in likelihoods
    ]
    header = ["sequence", "predicted tokens", "log-likelihood (nats)", "per token (nats)", "perplexity"]
    lead = (
        "The sum of the log-probabilities of the tokens, each given the tokens before it. The perplexity is the "
        "number of equally probable tokens with the same uncertainty."
    )
    return markup.section(markup.table(header, rows), title="Likelihood", lead=lead)


def _next_tokens(served: ServedModel, record: Any) -> str:
    ids, _ = _prompt(served, record)
    with evaluating(served.model):
        logits = served.reader.forward(ids[None].to(served.device)).logits[0, -1]
    lead = f"After the last token of {record.where[0].lower()}{record.where[1:]}."
    return markup.section(_token_bars(served, logits), title="Next token", lead=lead)


def _prompt(served: ServedModel, record: Any) -> tuple[Tensor, int]:
    """The tokens of a sequence to be continued, without an end token, and how many of them are not special."""
    (encoded,) = served.encoded([record])
    places = (~encoded.special).nonzero().flatten()
    return encoded.ids[: int(places[-1]) + 1], len(places)


def _token_bars(served: ServedModel, logits: Tensor) -> str:
    shares = logits.double().softmax(-1).cpu()
    best = shares.topk(min(_MOST_BARS, len(shares)))
    # White space would be invisible.
    names = [name if name.strip() else repr(name) for name in token_texts(served.processor, best.indices.tolist())]
    # Rare tokens of a small vocabulary, such as special ones, only fill the page.
    likely = {name: share for name, share in zip(names, best.values.tolist(), strict=True) if share >= 1e-3}
    return markup.bars(likely, "Probabilities of tokens")


def _generated(served: ServedModel, record: Any, count: float = 0, temperature: float = 1.0) -> str:
    if not count:
        return ""
    ids, number = _prompt(served, record)
    room = math.inf if served.longest is None else served.longest - len(ids)
    if room < 1:
        return markup.section(
            lead="The sequence has the greatest length that the model takes, so the model cannot continue the sequence."
        )
    sampling = {"do_sample": True, "temperature": float(temperature)} if temperature > 0 else {"do_sample": False}
    prompt = ids[None].to(served.device)
    with torch.no_grad():
        output = served.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=int(min(count, room)), **sampling
        )
    new = output[0, len(ids) :]
    tokens = token_texts(served.processor, new.tolist())
    if all(len(token) == 1 for token in tokens):
        strip = markup.tokens([markup.Token(token, "#FFFFFF", "generated") for token in tokens], first=number + 1)
    else:
        strip = f'<p class="tokens">{escape(served.processor.decode(new))}</p>'
    return markup.section(
        strip, title="Continuation", lead=f"{len(new)} tokens that the model writes after the sequence."
    )


def _filled(served: ServedModel, record: Any, position: float | None = 1) -> str:
    (encoded,) = served.encoded([record])
    places = (~encoded.special).nonzero().flatten().tolist()
    position = int(position or 0)
    if not 1 <= position <= len(places):
        raise ValueError(f"Position {position}: the sequence has the positions 1 to {len(places)}.")
    mask = served.processor.mask_token_id
    if mask is None:
        raise ValueError("The tokenizer of this model has no mask token, so that nothing can be filled in.")
    place = places[position - 1]
    ids = encoded.ids.clone()
    ids[place] = mask
    with evaluating(served.model):
        logits = served.reader.forward(ids[None].to(served.device)).logits[0, place]
    (token,) = token_texts(served.processor, encoded.ids[place : place + 1].tolist())
    lead = f"Probability of each token at position {position}, which is masked; the sequence has {token} there."
    return markup.section(_token_bars(served, logits), title="Masked token", lead=lead)
