"""The tab of the probe: which tokens a prediction depends on."""

import math
from html import escape
from typing import Any

import gradio as gr
import torch

from hf_ssm.app import markup
from hf_ssm.app.figures import beside, figure_html, row
from hf_ssm.app.jobs import Job
from hf_ssm.app.served import ServedModel
from hf_ssm.app.wiring import Jobs
from hf_ssm.plotting import plot_masking_curves
from hf_ssm.plotting.tokens import describe_target, displayed_tokens, tests_in_words, value_name, warning
from hf_ssm.probes import MaskingProbe, MaskingResult
from hf_ssm.probes.attributions import ATTRIBUTIONS, check_library, check_strands

__all__ = ["METHODS", "add_tab", "missing", "probe", "probe_html"]

TITLE = "Importance"
METHODS = {
    "shortlist": "search (some seconds)",
    "one_shot": "one ranking (fast)",
    "exact": "exact search (slow)",
    "occlusion": "occlusion",
    "integrated_gradients": "integrated gradients",
    "deep_lift": "DeepLIFT",
    "in_silico_mutagenesis": "in-silico mutagenesis",
}
"""Methods by the name of the strategy of `MaskingProbe`, as the page describes them."""

_MOST_LETTERS = 2000
_MOST_EXACT = 300
_PREDICTED = "the predicted class"


def missing(served: ServedModel) -> str | None:
    """Why the tab makes no sense for a model; `None` if it does."""
    if served.reads == "numbers":
        return "This model reads numbers: the probe masks the tokens of texts."
    if served.reads == "pairs":
        return "This model compares two sequences; the probe explains predictions for one sequence."
    if served.head is None:
        return "This model has no prediction that could be explained."
    if served.head == "class" and not served.predicts_classes:
        return "This model does not predict a single class, and the probe follows the probability of one class."
    return None


def available_methods(served: ServedModel) -> list[tuple[str, str]]:
    """Descriptions and names of the methods whose library is installed and that suit the model."""
    methods = []
    for name, text in METHODS.items():
        try:
            if name in ATTRIBUTIONS:
                check_library(name)
                check_strands(name, served.model)
            if name == "in_silico_mutagenesis" and not served.has_bases:
                continue
        except (ImportError, ValueError):
            continue
        methods.append((text, name))
    return methods


def replacements(served: ServedModel) -> list[tuple[str, str]]:
    """Descriptions and names of the replacements of masked tokens, the best first."""
    what = "bases" if served.reads_dna else "tokens"
    kinds = [(f"random {what} of the sequence", "composition"), (f"its {what} shuffled", "shuffle")]
    kinds += [("shuffled with equal pairs", "dinucleotide"), (f"all {what} equally likely", "uniform")]
    kinds += [("N, an unknown base", "n")] if "N" in served.processor.get_vocab() else []
    kinds += [("the mask token", "mask")] if served.processor.mask_token is not None else []
    return [*kinds, ("a zero embedding", "zero")]


def add_tab(served: ServedModel, jobs: Jobs, text: gr.Textbox) -> None:
    """Add the contents of the tab."""
    what = "bases" if served.reads_dna else "tokens"
    gr.Markdown(
        f"### Which {what} matter\nThe probe replaces one token after the other by random ones, the least "
        "important first, and tests the tokens that it keeps with fresh draws. The probe reads the first "
        f"sequence, with at most {_MOST_LETTERS:,} letters ({_MOST_EXACT} with the exact search)."
    )
    kinds = replacements(served)
    with gr.Row():
        methods = available_methods(served)
        method = gr.Dropdown(methods, value=methods[0][1], label="Method", min_width=280)
        replace = gr.Dropdown(kinds, value=kinds[0][1], label="Replacement of masked tokens", min_width=280)
        if served.head == "class":
            target: Any = gr.Dropdown(
                [_PREDICTED, *served.class_names], value=_PREDICTED, label="Explain", min_width=280
            )
        else:
            target = gr.Number(0, precision=0, label="Explain position (0: the last token)", min_width=280)
    jobs.add_button(
        f"Find the {what}",
        lambda job, *values: probe_html(served, probe(served, job, *values)),
        [text, method, replace, target],
        unit="tokens masked",
    )


def probe(served: ServedModel, job: Job, text: str, method: str, replace: str, target: Any) -> MaskingResult:
    """Run the probe on the first sequence.

    Args:
        served: The model.
        job: The computation.
        text: The input field.
        method: A strategy of `MaskingProbe`.
        mask: The replacement of masked tokens.
        target: Name of a class or `_PREDICTED`; otherwise the position of a token, from 1, or 0 for the last.
    """
    record = served.first_record(text, _MOST_EXACT if method == "exact" else _MOST_LETTERS)
    (encoded,) = served.encoded([record])
    runner = MaskingProbe(
        served.model,
        served.processor,
        replace,
        method,
        max_tokens_per_batch=served.reader.max_tokens_per_batch,
        allow_wrong=True,
    )
    places = (~encoded.special).nonzero().flatten().tolist()
    goal: Any = None
    if served.head == "class":
        goal = None if target == _PREDICTED else served.class_names.index(target)
    else:
        if not 0 <= int(target or 0) <= len(places):
            raise ValueError(f"Position {target}: the sequence has the positions 1 to {len(places)}.")
        goal = places[int(target or 0) - 1]
    # A causal model does not read the token that it predicts, nor later ones.
    job.expect(sum(place < goal for place in places) if served.head == "causal" else len(places))
    result: MaskingResult = runner.run(encoded.ids, goal, progress=job.advance)
    return result


def effects(result: MaskingResult) -> torch.Tensor:
    """The colour of each token, `(L,)`: the scores of an attribution, otherwise the probability lost."""
    return result.effect if result.scores is None else result.scores


def probe_html(served: ServedModel, result: MaskingResult) -> str:
    """Coloured tokens, the curve, and what they show in words."""
    values, probabilities = effects(result), result.probabilities.tolist()
    signed = result.scores is not None
    largest = float(values.nan_to_num().abs().max()) or 1.0
    scale = largest if signed else max(probabilities[0], 1e-12)
    ranks = {place: rank for rank, place in enumerate(result.order.tolist(), start=1)}
    names = displayed_tokens(result.tokens_text or [str(token) for token in result.input_ids.tolist()])
    goal = result.target.get("position")
    tokens = []
    for place, (name, value) in enumerate(zip(names, values.tolist(), strict=True)):
        if math.isnan(value):
            what, colour = "never masked", None
        else:
            colour = markup.diverging(value / scale) if signed else markup.sequential(value / scale)
            colour = None if result.why_unexplained else colour
            kind = "score" if signed else "probability lost"
            rank = f", masked as number {ranks[place]} of {len(ranks)}" if place in ranks else ""
            what = f"{kind} {value:.3g}{rank}"
        tokens.append(markup.Token(name, colour, f"{place + 1}: {what}", place == goal))
    scale_text = (
        markup.legend("against", "for the prediction", True)
        if signed
        else markup.legend("nothing is lost when masked", "all of the probability is lost when masked", False)
    )
    label, class_names = value_name(result), dict(enumerate(served.class_names))
    summary = f"{describe_target(result, class_names)}: {probabilities[0]:.1%}, "
    summary += f"with all tokens masked {probabilities[-1]:.1%}"
    need = f"{len(result.kept)} of {len(result.order)} tokens keep nine tenths of the {label}."
    caution = f"<p>{escape(f'{need} Tested with fresh draws: {tests_in_words(result)}.')}</p>"
    if stays := warning(result, class_names):
        caution += f'<p class="message">{escape(stays)}</p>'
    caption = f"The {label} while tokens are masked: a late fall means that few tokens suffice."
    return (
        markup.section(f'<p class="answer">{escape(summary)}</p>', caution)
        + markup.section(scale_text, markup.tokens(tokens), title="Tokens by their effect")
        + markup.section(
            row(
                figure_html(plot_masking_curves([result], value=label), caption),
                beside(markup.table(["position", "token", "effect"], _top(names, values), "The largest effects")),
            ),
            title="Curve",
        )
    )


def _top(names: list[str], values: torch.Tensor, count: int = 10) -> list[list[Any]]:
    order = values.nan_to_num(0).abs().argsort(descending=True, stable=True)[:count].tolist()
    return [[place + 1, names[place], values[place].item()] for place in order if values[place] != 0]
