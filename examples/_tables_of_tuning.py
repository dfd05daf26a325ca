"""Table of the learning rates of recall; see `tables.py`."""

from typing import Any

from _tables import NOT_RUN, ROOT, grid, is_stored, load, span, table

RECALL = "recall_learning_rates"


def not_run() -> str:
    return f"{NOT_RUN}\n"


def picture(name: str, words: str) -> str:
    """The figure, if it has been drawn."""
    drawn = (ROOT / "docs" / "assets" / f"{name}.png").is_file()
    return f"\n![{words}](../assets/{name}.png)\n" if drawn else ""


@table
def recall_learning_rates() -> str:
    """Best accuracies and windows of learning rates."""
    if not is_stored(RECALL):
        return not_run()
    found: Any = load(RECALL)
    rows = []
    for name, initialisations in found["summary"].items():
        widths = {key: value["width"] for key, value in initialisations.items()}
        for initialisation, values in initialisations.items():
            low, high = values["window"]
            ratio = widths[initialisation] / widths["default"]
            failed = found["failed"][f"{name}, {initialisation}"]
            cells = [
                f"{values['best']:.3f}",
                f"{low:.2g} to {high:.2g}",
                f"{values['width']:.1f}",
                f"{ratio:.1f}",
                failed,
            ]
            rows.append([name, initialisation, *cells])
    rows.append(["constant", "", f"{found['constant']:.3f}", "", "", "", ""])
    # A model that recalls nothing has equal accuracies, and the widest window of all.
    level = 1 / found["arguments"]["pairs"]
    wider = [
        name
        for name, both in found["summary"].items()
        if both["rescaled"]["width"] >= 2 * both["default"]["width"]
        and both["rescaled"]["best"] >= max(level, 0.95 * both["default"]["best"])
    ]
    seeds = found["arguments"]["seeds"]
    note = (
        f"Mean of {seeds} seeds, learning rates {span(found['arguments']['rates'], 'g')}. The aim, a window that is at "
        "least twice as wide with rescaling (where the best accuracy is above that of guessing among the values of the "
        f"row, {level:g}, and not 5 % below that of the default), is met for {' and '.join(wider) or 'no model'}."
    )
    header = ["model", "initialisation", "best accuracy", "window", "width", "width / default", "diverged runs"]
    words = "Accuracy of recall against the learning rate, with and without rescaling"
    return grid(header, rows, note) + picture(RECALL, words)
