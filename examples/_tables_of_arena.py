"""Tables of runs at the length of the Long Range Arena, and of the change of parameters; see `tables.py`."""

import statistics

from _tables import NOT_RUN, ROOT, grid, is_stored, load, table, trivial

RUNS = {"neither": "neither", "8": "regulariser (8)", "7, 8": "rescaling (7) and regulariser (8)"}


def arena_runs(name: str, comparable: bool) -> str:
    """Epochs and accuracies of the runs of a task, the trivial guesses, and the curves.

    Args:
        name: Of the result.
        comparable: Whether the paper's accuracy is of the same task.
    """
    if not is_stored(name):
        return f"{NOT_RUN}\n"
    found = load(name)
    paper, planned = found["paper"], found["arguments"]["epochs"]
    rows, unfinished = [], []
    for run, result in found["runs"].items():
        curve = result["curve"]
        last = curve[-1] if curve else {"epoch": 0.0, "accuracy": float("nan")}
        test = f"{result['test accuracy']:.3f}" if result["complete"] else "not finished"
        theirs = f"{paper['accuracy'][run]:.3f}" if comparable else "other data"
        epochs = f"{last['epoch']:.3g} of {paper['epochs']}"
        rows.append([f"S4D, {RUNS[run]}", epochs, f"{last['accuracy']:.3f}", test, theirs])
        unfinished += [] if result["complete"] else [RUNS[run]]
    rows += [[words, "", "", f"{value:.3f}", ""] for words, value in found["baselines"].items()]
    header = [
        "",
        "epochs, here and in the paper",
        "validation accuracy, last",
        "test accuracy",
        "paper's test accuracy",
    ]
    note = (
        f"One seed; {planned:g} epochs were planned, with a learning rate that falls to 0 at their end. The checkpoint "
        "is the best one on the validation split; the test split is evaluated once."
    )
    note += f" Not finished, so that the curve is all there is: {', '.join(unfinished)}." if unfinished else ""
    drawn = (ROOT / "docs" / "assets" / f"{name}.png").is_file()
    figure = f"\n![Validation accuracy by epoch](../assets/{name}.png)\n" if drawn else ""
    return grid(header, rows, note) + figure


@table
def lra_listops() -> str:
    return arena_runs("lra_listops", comparable=True)


@table
def lra_mnist() -> str:
    return arena_runs("lra_mnist", comparable=False)


QUANTITIES = {"A_real": "Re A", "A_imag": "Im A", "BC": "B∘C", "D": "D"}
OTHERS = {"mnist_neither_seed0": "32 x 32 pixels", "mnist_7_8_seed0": "32 x 32 pixels, (7) and (8)"}


@table
def parameter_change() -> str:
    """Yu et al., Table 1: mean over elements, and ratio of norms."""
    if not is_stored("parameter_change"):
        return f"{NOT_RUN}\n"
    found = load("parameter_change")
    groups = {"14 x 14 pixels": found["runs"]} | {OTHERS.get(n, n): [run] for n, run in found["others"].items()}
    rows = [["paper, gray CIFAR-10", "", *(f"{found['paper'][name]:.4g}" for name in QUANTITIES), ""]]
    for words, runs in groups.items():
        for way in ("elements", "norms"):
            means = (statistics.fmean(run[way][name] for run in runs) for name in QUANTITIES)
            accuracy = f"{statistics.fmean(run['test accuracy'] for run in runs):.3f}"
            rows.append([words, way, *(f"{value:.3g}" for value in means), accuracy])
    guesses = trivial("sequential_images").items()
    rows += [[name, "", *[""] * len(QUANTITIES), f"{statistics.fmean(values):.3f}"] for name, values in guesses]
    epochs = f"{found['runs'][0]['epochs']:g}"
    note = (
        f"MNIST, 14 x 14 pixels: means of {len(found['runs'])} seeds after {epochs} epochs; the paper has 100. The "
        "last rows are guesses on the images of 14 x 14 pixels, without a sequence model."
    )
    return grid(["", "mean over", *QUANTITIES.values(), "test accuracy"], rows, note)
