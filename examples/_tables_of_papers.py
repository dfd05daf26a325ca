"""Tables of the experiments of Liu & Li 2024, Yu et al. 2025 and Honarpisheh et al. 2025, and of attributions.

See `tables.py`.
"""

import math
import statistics
from itertools import chain
from typing import Any

from _tables import NOT_RUN, console, grid, is_stored, load, names, percent, pm, slope, span, table, trivial

# Liu & Li 2024.

SCALES = ("1", "0.1", "0.01")


@table
def gaussian_process() -> str:
    few, many = load("gaussian_process"), load("gaussian_process_10_seeds")
    rows: list[list[str]] = []
    ratios: dict[str, dict[str, list[float]]] = {row: {} for row in few["paper"]["table_1"]}
    for row, paper in few["paper"]["table_1"].items():
        for place, b in enumerate(SCALES):
            cells = []
            for measure in ("test MSE", "ψ²/√n"):
                ours = [found["table_1"][row][b][measure] for found in (few, many)]
                cells += [f"{paper[measure][place]:g}", *(pm(values, 2) for values in ours)]
                for seeds, values in zip(("3 seeds", "10 seeds"), ours, strict=True):
                    relative = statistics.fmean(values) / paper[measure][place]
                    ratios[row].setdefault(f"{measure}, {seeds}", []).append(relative)
            rows.append([row, b, *cells])
    guesses = trivial("gaussian_process")
    for b in SCALES:
        values = guesses[b]["test MSE"]
        rows.append(["constant", b, "", pm(values[:3], 2), pm(values, 2), "", "", ""])
    header = ["", "b", "test error: paper", "3 seeds", "10 seeds", "ψ²/√n: paper", "3 seeds", "10 seeds"]

    relative = [[row, *(span(values, ".2f") for values in found.values())] for row, found in ratios.items()]
    names = ["ours / paper, over the b", *next(iter(ratios.values()))]
    return f"{grid(header, rows)}\n{grid(names, relative)}"


@table
def gaussian_process_training() -> str:
    """Errors on the training sequences."""
    few, many = load("gaussian_process"), load("gaussian_process_10_seeds")
    guesses, rows = trivial("gaussian_process"), []
    for row, paper in few["paper"]["table_1"].items():
        cells = []
        for place, b in enumerate(SCALES):
            ours = (pm(found["table_1"][row][b]["train MSE"], 2) for found in (few, many))
            cells += [f"{paper['train MSE'][place]:g}", *ours]
        rows.append([row, *cells])
    cells = [["", *(pm(guesses[b]["train MSE"][:count], 2) for count in (3, 10))] for b in SCALES]
    rows.append(["constant", *chain(*cells)])
    header = ["training error", *chain(*([f"b = {b}: paper", "3 seeds", "10 seeds"] for b in SCALES))]
    return grid(header, rows)


@table
def regularisers() -> str:
    found = load("gaussian_process")
    names = {
        "w/o (7, 8)": "none",
        "w (8)": "τ, eq. (8)",
        "filter norm ℓ1²": "squared ℓ1 norm of the filter",
        "filter norm ℓ2²": "squared ℓ2 norm of the filter",
        "weight decay of A": "weight decay of A",
        "weight decay of A as stored": "weight decay of log(-Re A), Im A and P",
    }
    errors = {row: [found["table_12"][row][b]["test MSE"] for b in SCALES] for row in names}
    rows = []
    for row, name in names.items():
        theirs = found["paper"]["table_12"].get(row)
        cells = [
            [f"{theirs[place]:g}" if theirs else "", pm(values, 3 if b == "1" else 2)]
            for place, (b, values) in enumerate(zip(SCALES, errors[row], strict=True))
        ]
        rows.append([name, *chain(*cells)])
    guesses = [trivial("gaussian_process")[b]["test MSE"][:3] for b in SCALES]
    cells = [["", pm(values, 3 if b == "1" else 2)] for b, values in zip(SCALES, guesses, strict=True)]
    rows.append(["constant predictor", *chain(*cells)])
    header = ["regulariser", *chain(*([f"b = {b}: paper", "ours"] for b in SCALES))]
    best = [min(names, key=lambda row: statistics.fmean(errors[row][place])) for place in range(len(SCALES))]
    note = ", ".join(f"{names[row]} at b = {b}" for row, b in zip(best, SCALES, strict=True))
    return grid(header, rows, f"Regulariser with the smallest mean error in our runs: {note}.")


@table
def initial_scale() -> str:
    figure = load("gaussian_process")["figure_2"]

    def ratios(name: str, quantity: str) -> str:
        curves = zip(*(figure[f"{name}, b = {b}"][quantity] for b in SCALES), strict=True)
        return span((max(values) / min(values) for values in curves), ".3g")

    quantities = {"output": "output, mean of absolute values", "gradient": "norm of the gradient"}
    rows = [[words, ratios("plain", name), ratios("rescaled", name)] for name, words in quantities.items()]
    return grid(["largest b / smallest b", "not rescaled", "rescaled"], rows)


# Yu et al. 2025.


@table
def bimodal() -> str:
    found = load("bimodal")
    names = {
        "L²": "gradient flow of the L² loss",
        "β = 2, eq. (7)": "gradient flow of the H² loss, eq. (7)",
        "β = 2, eq. (9)": "flow of eq. (9), not the gradient of a loss",
    }
    rows = []
    for name, words in names.items():
        flow = found["figure_3"][name]
        shares = [percent(flow["share"][end]) for end in ("large", "small", "neither")]
        rows.append([words, *shares, f"{flow['edge']:.1f}"])
    for name, words in (("does not move", "a pole that does not move"), ("nearer mode", "always to the nearer mode")):
        guess = trivial("poles")[name]
        shares = [percent(guess[end]) for end in ("large", "small", "neither")]
        rows.append([words, *shares, ""])
    return grid(
        ["flow", "end at the large mode", "at the small mode", "stuck between", "reaches the small mode from"],
        rows,
        f"The paper's L² loss reaches the small mode from {found['paper']['edge']:g}, and without the ripple of the "
        f"target ours does from {found['figure_3']['edge_without_ripple']:.1f}.",
    )


@table
def waves() -> str:
    found = load("waves")
    waves = ("1", "16", "256")
    rows = [
        [name, *(pm([run["error"][wave] for run in runs]) for wave in waves)]
        for name, runs in found["mean_absolute_error"].items()
    ]
    rows.append(["guessing the mean", *(f"{value:.3f}" for value in found["error_of_the_mean"])])
    return grid(["", "cos t", "cos 16t", "cos 256t"], rows)


def short(value: float) -> str:
    """Two digits, as 4.0e3 from 1,000 and below 0.01."""
    mantissa, exponent = f"{value:.1e}".split("e")
    plain = f"{value:.0f}" if int(exponent) == 2 else f"{value:.2g}"
    return plain if -2 <= int(exponent) < 3 else f"{mantissa}e{int(exponent)}"


@table
def denoising() -> str:
    return pass_rates(load("denoising"))


@table
def denoising_photographs() -> str:
    """The table with seven photographs; not there before all of its runs are."""
    found = load("denoising_photographs") if is_stored("denoising_photographs") else {}
    return pass_rates(found) if "ratio" in found else f"{NOT_RUN}\n"


def pass_rates(found: Any) -> str:
    """Table 2 of Yu et al., ours and in brackets theirs."""
    runs = list(found["runs"])
    orders = [name.split("β = ")[1] for name in runs[: len(found["ratio"][0])]]
    scales = [name.split(",")[0] for name in runs[:: len(orders)]]
    rows = [
        [scale, *(f"{short(ours)} ({short(paper)})" for ours, paper in zip(*both, strict=True))]
        for scale, *both in zip(scales, found["ratio"], found["paper"], strict=True)
    ]
    steps = found["steps"]
    falls = [f"{steps[axis] - found['exceptions']['mean'][axis]} of {steps[axis]} steps in {axis}" for axis in steps]
    guesses = " and ".join(f"{short(guess['ratio'])} for a {name}" for name, guess in trivial("denoising").items())
    note = f"Ours falls at {' and '.join(falls)}. Without a model the ratio is {guesses}."
    return grid(["", *(f"β = {order}" for order in orders)], rows, note)


@table
def sequential_images() -> str:
    found = load("sequential_images")
    cells = {(run["alpha"], run["beta"]): run["accuracy"] for run in found["accuracy"]}
    alphas, betas = (sorted(set(axis)) for axis in zip(*cells, strict=True))
    rows = [[f"α = {a:g}", *(pm(cells[a, b]) for b in betas)] for a in alphas]
    mean = {pair: statistics.fmean(values) for pair, values in cells.items()}
    alpha, beta = max(alphas, key=lambda a: mean[a, 0]), max(betas, key=lambda b: mean[1, b])
    best, paper = max(mean, key=lambda pair: mean[pair]), found["paper"]
    noise = math.sqrt(statistics.fmean(statistics.variance(cells[a, b]) for a, b in cells if a <= 4))
    return grid(
        ["", *(f"β = {b:g}" for b in betas)],
        rows,
        f"At β = 0 the best α is {alpha:g} (paper: {paper['best alpha at beta 0']:g}); at α = 1 the best β is "
        f"{beta:+g} (paper: {paper['best beta at alpha 1']:+g}). The best pair is α = {best[0]:g}, β = {best[1]:g} "
        f"with {mean[best]:.3f}; all pairs with α up to 4 have "
        f"{span(value for (a, _), value in mean.items() if a <= 4)}, with a standard deviation over the seeds of "
        f"{noise:.4f} (root mean square).",
        "Without a sequence model, on the same images: "
        + ", ".join(f"{name} {pm(values)}" for name, values in trivial("sequential_images").items())
        + " (`python examples/baselines.py sequential_images`).",
    )


@table
def moving_mnist() -> str:
    found = load("moving_mnist")
    runs = {
        name: {
            (kind, digit): [statistics.fmean(run[kind][digit]) for run in some]
            for kind in ("next", "generated")
            for digit in ("fast", "slow")
        }
        for name, some in [*found["settings"].items(), *((n, [e]) for n, e in found["baselines"].items())]
    }
    header = ["mean squared error, thousandths", *(f"{kind}, {digit}" for kind, digit in next(iter(runs.values())))]
    rows = [[name, *(pm(values, 2) for values in cells.values())] for name, cells in runs.items()]
    base = next(iter(found["settings"]))
    notes = []
    for name in list(found["settings"])[1:]:
        changes = [
            f"{100 * (statistics.fmean(values) / statistics.fmean(runs[base][cell]) - 1):+.0f} %"
            for cell, values in runs[name].items()
        ]
        notes.append(f"{name}: {', '.join(changes)}")
    return grid(header, rows, f"Change of the mean error from {base}, in the order of the columns: {'; '.join(notes)}.")


@table
def sequential_images_s5() -> str:
    """S4D and S5 at the default α and β."""
    rows, commands = [], ["python examples/sequential_images.py"]
    for name in ("sequential_images", *names("sequential_images_s5*")):
        found = load(name)
        (values,) = (run["accuracy"] for run in found["accuracy"] if (run["alpha"], run["beta"]) == (1, 0))
        given = found["arguments"]
        states, channels, command = given["state_size"], given["hidden_size"], commands[0]
        if name == "sequential_images":
            rows.append(["S4D", f"{states} for each of {channels} channels", pm(values)])
            continue
        command += " --family s5" + (" --state-size 64" if states == 64 else "") + " --alphas 1 --betas 0"
        command += f" --seeds {given['seeds']}" if given["seeds"] != 2 else ""
        commands.append(command)
        rows.append(["S5", f"{states} that {channels} channels share", pm(values)])
    rows += [[name, "", pm(values)] for name, values in trivial("sequential_images").items()]
    return grid(["model", "states of a layer and direction", "test accuracy"], rows) + console(*commands)


# Honarpisheh et al. 2025.


@table
def sparse_majority() -> str:
    found = load("sparse_majority")
    names = {"stable": "stable: A = -exp(A_log)", "raw": "raw: A stored directly, as in the paper"}
    rows, notes = [], []
    for kind, words in names.items():
        runs = [run for run in found["runs"] if run["kind"] == kind]
        seeds, lengths = ({run[key] for run in runs} for key in ("seed", "length"))
        means = [statistics.fmean(run["gap"] for run in runs if run["length"] == length) for length in lengths]
        bounds = [run["theory"]["bound"] for run in runs if run["theory"]["bound"] is not None]
        single = [span((100 * run[name] for run in runs), ".1f") for name in ("train_accuracy", "test_accuracy", "gap")]
        bound = f"{span(bounds, '.2f')}" if bounds else "void: A becomes positive"
        trend = slope(found["trends"][kind]["means over seeds"], 4)
        rows.append([words, len(seeds), *single, span((100 * mean for mean in means), ".1f"), trend, bound])
        if bounds:
            needed = [run["theory"]["log10_sequences_needed"] for run in runs]
            notes.append(
                "The bound holds for a loss of at most 1. It would say something from "
                f"10^{min(needed):.0f} to 10^{max(needed):.0f} training strings on, depending on the model."
            )
    guesses = trivial("sparse_majority_gap")
    for name in ("most frequent class", "counting the ones"):
        train, test = ([100 * value for value in guesses[f"{name}, {split}"]] for split in ("train", "test"))
        gaps = [a - b for a, b in zip(train, test, strict=True)]
        # A sum with 0 has no minus sign at 0.
        means = [round(statistics.fmean(gaps[place : place + 3]), 1) + 0 for place in range(0, len(gaps), 3)]
        rows.append([name, 3, *(span(values, ".1f") for values in (train, test, gaps, means)), "", ""])
    header = [
        "state matrix",
        "seeds",
        "training accuracy, %",
        "test accuracy, %",
        "gap of a run, %",
        "mean gap of a length, %",
    ]
    return grid([*header, "slope of the gap per 100 tokens (95 %)", "bound"], rows, *notes)


@table
def imdb_length() -> str:
    found = load("imdb_length")
    names = {
        "ours": "ours, T = 100 to 1,000",
        "paper, same T": "the authors' numbers, T = 100 to 1,000",
        "paper": "the authors' numbers, T = 100 to 1,500",
    }
    rows = [
        [words, *(slope(found["trends"][name][part]) for part in ("all T", "T >= 300"))]
        for name, words in names.items()
    ]
    gaps = {
        length: statistics.fmean(row["gap"] for row in found["results"] if row["T"] == length) for length in (100, 1000)
    }
    guess = trivial("imdb_length")
    rows.append(["words, T = 100 to 1,000", *(slope(guess["trends"][part]) for part in ("all T", "T >= 300"))])
    of_words = {row["T"]: row for row in guess["words"]}
    ends = " and ".join(
        f"{gap:.2f} (words: {of_words[length]['gap']:.2f}) at T = {length:,}" for length, gap in gaps.items()
    )
    ours = [statistics.fmean(row["test"] for row in found["results"] if row["T"] == length) for length in of_words]
    note = (
        f"Our gap is {ends}. Test accuracy: ours {span(ours)}, words {span(row['test'] for row in of_words.values())}, "
        f'the most frequent class {guess["most frequent class"]:.3f} (with a gap of 0). "Words" is logistic regression '
        "on the words among the first T (`python examples/baselines.py imdb_length`)."
    )
    return grid(["slope of the gap per 1,000 tokens (95 %)", "all T", "from T = 300"], rows, note)


@table
def imdb_length_full() -> str:
    if not is_stored("imdb_length_full"):
        return f"{NOT_RUN}\n"
    found = load("imdb_length_full")
    words = {row["T"]: row for row in found["words"]}
    rows = []
    for row in sorted(found["results"], key=lambda row: (row["T"], row["seed"])):
        guess, paper = words[row["T"]], IMDB_GAPS.get(row["T"])
        ours = [f"{row[name]:.3f}" for name in ("train", "test", "gap")]
        theirs = "" if paper is None else f"{paper:.3f}"
        rows.append(
            [f"{row['T']:,}", str(row["seed"]), *ours, theirs, f"{guess['test']:.3f}", f"{guess['gap']:.3f}", "0.500"]
        )
    trend = slope(found["trends"]["ours"]["T >= 300"])
    note = (
        f"Slope of our gap per 1,000 tokens from T = 300 on, over all runs (95 %): {trend}. "
        f"{found['rows']['train']:,} training and {found['rows']['test']:,} test reviews, "
        f"{found['arguments']['epochs']} epochs, {found['seconds'] / 60:.0f} minutes on one core. The authors' gap is "
        "that of their notebook, after 30 epochs with the word pieces of BERT."
    )
    header = ["T", "seed", "training accuracy", "test accuracy", "gap", "the authors' gap", "words: test", "words: gap"]
    return grid([*header, "most frequent class: test"], rows, note)


# Training minus test accuracy of the authors' notebook, from `PAPER` of `imdb_length.py`.
IMDB_GAPS = {100: 0.2553, 200: 0.2049, 300: 0.1781, 500: 0.1487, 1000: 0.1295, 1500: 0.1494}


@table
def length_data() -> str:
    found = load("length_data")
    rows = []
    for split, ours in found["table 1"].items():
        pairs = (f"{ours[name]:,} ({found['paper'][split][name]:,})" for name in ("max", "min", "mean", "median"))
        rows.append([{"train": "training", "test": "test"}[split], f"{found['reviews'][split]:,}", *pairs])
    return grid(["reviews", "number", "longest", "shortest", "mean", "median"], rows)


# Attributions and the masking probe of Nishikawa & Suzuki 2025.


@table
def attribution_scoreboard() -> str:
    found = load("attribution_scoreboard")
    models = list(dict.fromkeys(run["model"] for run in found["runs"]))
    parts = []
    for task in dict.fromkeys(run["task"] for run in found["runs"]):
        runs = [run for run in found["runs"] if run["task"] == task]
        seeds = sorted({run["seed"] for run in runs})
        rows, by_model = [], []
        for number, setting in enumerate(runs[0]["methods"]):
            options = ", ".join(f"{key}={value}" for key, value in setting["options"].items())
            name = f"`{setting['strategy']}`" + (f" ({options})" if options else "")
            cells = [name]
            cells.append(f"{statistics.fmean(run['methods'][number]['passes'] for run in runs):.0f}")
            for measure in ("deletion", "insertion", "precision"):
                means = [
                    statistics.fmean(run["methods"][number][measure] for run in runs if run["seed"] == seed)
                    for seed in seeds
                ]
                cells.append(pm(means))
            rows.append(cells)
            own = ([run["methods"][number]["precision"] for run in runs if run["model"] == model] for model in models)
            by_model.append([name, *(f"{statistics.fmean(values):.2f}" for values in own)])
        accuracy = [run["training"]["accuracy"] for run in runs]
        note = (
            f"{len(seeds)} seeds, {span((run['sequences'] for run in runs), 'd')} sequences of each model; "
            f"test accuracy {span(accuracy)}, mean {statistics.fmean(accuracy):.3f}; the most frequent class has "
            f"{span(trivial('attribution_scoreboard')[task])}."
        )
        shown = grid(["method", "passes", "deletion", "insertion", "precision"], rows, note)
        precision = grid(["method", *models], by_model)
        parts.append(f"### {TASKS[task]}\n\n{shown}\nPrecision of each model:\n\n{precision}")
    duels = [
        "probe against attribution with equal or fewer passes",
        "task",
        *(f"{name}: better, worse" for name in SIGNS),
    ]
    parts.append(f"### Searches against attributions\n\n{grid(duels, probe_against_attributions(found['runs']))}")
    return "\n".join(parts)


TASKS = {"motif": "A motif", "smooth": "A piecewise smooth function"}
# Sign of a better value.
SIGNS = {"deletion": -1, "insertion": 1, "precision": 1}


def probe_against_attributions(runs: list[Any]) -> list[list[str]]:
    """In how many models and seeds a search is better and worse, by more than 0.005, than an attribution.

    Of a method with several numbers of steps, the largest one with at most the passes of the search counts.
    """
    rows = []
    for ours in ("one_shot", "exact"):
        for theirs in ("deep_lift", "integrated_gradients", "gradient_shap"):
            for task in dict.fromkeys(run["task"] for run in runs):
                counts = {name: [0, 0] for name in SIGNS}
                own = [run["methods"] for run in runs if run["task"] == task]
                for methods in own:
                    (search,) = (one for one in methods if one["strategy"] == ours and not one["options"])
                    rivals = [one for one in methods if one["strategy"] == theirs]
                    rival = max(
                        (one for one in rivals if one["passes"] <= search["passes"]), key=lambda one: one["passes"]
                    )
                    for name, sign in SIGNS.items():
                        lead = sign * (search[name] - rival[name])
                        counts[name][0] += lead > 0.005
                        counts[name][1] += lead < -0.005
                cells = [f"{better}, {worse} of {len(own)}" for better, worse in counts.values()]
                rows.append([f"`{ours}` against `{theirs}`", task, *cells])
    return rows
