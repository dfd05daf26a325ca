"""Write the tables of the documents from stored results.

    python examples/tables.py            # rewrites them
    python examples/tables.py --check    # compares only, and names the documents that differ

In a document, the text between `<!-- table: NAME -->` and `<!-- end of table -->` is what the function NAME returns,
here or in `_tables_of_*.py`. The numbers come from JSON files: `examples/results/`, `examples/lra/papers.json`,
and `benchmarks/results/`, which hold what the scripts write with `--output`. A new table needs a function with `@table`
(for a benchmark one line with `pivot`, or only a row of `SPEED`) and the two markers in a document.
"""

import argparse
import importlib
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import yaml
from _tables import ROOT, TABLES, code, console, grid, load, names, percent, pm, span, table, trivial

for module in sorted(Path(__file__).parent.glob("_tables_of_*.py")):
    importlib.import_module(module.stem)  # Registers its tables.

DOCUMENTS = (
    "README.md",
    "docs/index.md",
    "benchmarks/README.md",
    "model_cards/README.md",
    "docs/how-to/checkpoints.md",
    "docs/how-to/cost.md",
    "docs/how-to/generate.md",
    "docs/how-to/kernels.md",
    "docs/how-to/quantisation.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/experiments/*.md")),
)
FAMILIES = {"hyena": "Hyena", "s4": "S4D-LegS", "selective": "two-sided Mamba blocks"}
BLOCK = re.compile(r"(?<=<!-- table: )(\w+)( -->\n)(.*?)(?=<!-- end of table -->)", re.DOTALL)

# Real and generated DNA.


@table
def real_dna() -> str:
    baseline = load("kmer_baseline")["accuracy"]
    runs = [run for run in load("trained")["runs"].values() if run["data"] in baseline]
    rows = []
    for run in runs:
        accuracy = run["test"]["accuracy"]
        error = math.sqrt(accuracy * (1 - accuracy) / run["test_rows"])
        guesses = [f"{baseline[run['data']][name]:.3f}" for name in ("test", "most frequent class")]
        rows.append([DATA[run["data"]], run["model"], f"{accuracy:.4f} ± {error:.4f}", *guesses])
    time = f"A run takes {span((run['minutes'] for run in runs), 'g')} minutes on one thread of a shared machine."
    shown = grid(["data", "model", "test accuracy", "4-mer counts", "most frequent class"], rows, time)
    return shown + console(*(run["command"] for run in runs))


DATA = {
    "human_or_worm_mini.csv.gz": "human or worm",
    "human_nontata_promoters_official_test.csv.gz": "promoters without TATA box",
}


GUESSES = {"4-mers": "4-mer counts, same rows", "most frequent class": "most frequent class"}


@table
def rc_equivariance() -> str:
    runs = load("rc_equivariance")["runs"]
    rows = []
    for name in runs[0]:
        accuracy, inconsistent = ([run[name][what] for run in runs] for what in ("accuracy", "inconsistent"))
        rows.append([name, pm(accuracy, 4), f"{pm([100 * share for share in inconsistent], 1)} %"])
    guesses = trivial("rc_equivariance")
    rows += [[name, pm(guesses[key], 4), ""] for key, name in GUESSES.items()]
    size = runs[0]["plain"]["parameters"]
    wins = [
        f"the {other} one in {sum(run['equivariant']['accuracy'] > run[other]['accuracy'] for run in runs)}"
        for other in runs[0]
        if other != "equivariant"
    ]
    return grid(
        ["model", "test accuracy", "inconsistent"],
        rows,
        f"{len(runs)} seeds, {size:,} parameters each. The equivariant model is more accurate than {'; '.join(wins)} "
        "of them.",
    )


@table
def motif_variants() -> str:
    found = load("motif_variants")["auroc"]
    rows = [[name, pm(values, 4), len(values)] for name, values in found.items()]
    for name, values in trivial("motif_variants").items():
        words = f"Markov chain, {name}" + (" (counts of bases)" if name == "order 0" else "")
        rows.append([words, pm(values, 4), len(values)])
    rows.append(["the same score for all", f"{0.5:.4f}", ""])
    return grid(["model", "AUROC of the log-likelihood ratio", "seeds"], rows)


@table
def planted_motifs() -> str:
    rows = []
    for family, name in FAMILIES.items():
        accuracy = load(f"planted_motifs_{family}")["accuracy"]
        rows.append([name, *(pm(values) for values in accuracy.values())])
    guesses = trivial("planted_motifs")
    rows += [[name, pm(guesses[key]), *[""] * (len(accuracy) - 1)] for key, name in GUESSES.items()]
    commands = (f"python examples/planted_motifs.py --family {family}" for family in FAMILIES)
    return grid(["model", *accuracy], rows) + console(*commands, "python examples/baselines.py planted_motifs")


# Sequence tasks.


@table
def length_generalization() -> str:
    found = load("length_generalization")
    length = found["arguments"]["length"]
    ends = [length * 2**power for power in range(len(found["families"]["S4D"]["before"]["octaves"]))]
    header = [f"{low:,} to {high:,}" for low, high in zip([0, *ends], ends, strict=False)]
    rows = [
        [family, training, *(f"{value:.3f}" for value in run["octaves"]), f"{run['remembrance'][str(8 * length)]:.3f}"]
        for family, runs in found["families"].items()
        for training, run in runs.items()
        if training != "seconds"
    ]
    sizes = span(found["parameters"].values(), ",")
    minutes = span((runs["seconds"] / 60 for runs in found["families"].values()), ".0f")
    return grid(
        ["family", "training", *header, f"remembrance at {8 * length:,}"],
        rows,
        f"Nats per byte by position, mean of {found['arguments']['test_rows']} inputs. Each byte predicted by its "
        f"frequency: {found['by frequency']:.3f}. Models of {sizes} parameters; {minutes} minutes for each family on "
        "one thread of a shared machine.",
    )


@table
def listops() -> str:
    run, guesses = load("trained")["runs"]["listops_s4d"], load("listops_baseline")["accuracy"]
    rows = [[f"{run['model']}", f"{run['test']['accuracy']:.3f}"]]
    rows += [[f"the {name}", f"{value:.3f}"] for name, value in guesses.items()]
    return grid(["", "test accuracy"], rows) + console(run["command"], "python examples/listops_baseline.py")


@table
def synthetic_tasks() -> str:
    shown = {
        "associative recall": "associative recall, 4 pairs (accuracy)",
        "induction heads": "induction heads, 32 tokens (accuracy)",
        "selective copying": "selective copying, 4 of 32 (accuracy)",
        "smooth function": "smooth function, 3 of 16 (R²)",
        "piecewise smooth function": "piecewise smooth function, 3 of 16 (R²)",
        "smooth function by similarity": "smooth function of the 3 of 16 most similar tokens (R²)",
        "in-context neighbours": "in-context 3 nearest neighbours of 16 (R²)",
    }
    found = load("synthetic_tasks")["runs"]
    models, guesses = list(found["smooth function, seed 0"]), trivial("synthetic_tasks")
    rows = []
    for name, words in shown.items():
        runs = [run for key, run in found.items() if key.rpartition(", seed ")[0] == name]
        if runs:  # A task of the script that has not been run has no row.
            scores = (pm([run[model]["score"] for run in runs]) for model in models)
            rows.append([words, *scores, f"{guesses[name]:.3f}"])
    sizes = [run["parameters"] for runs in found.values() for run in runs.values()]
    return grid(["task", *models, "constant"], rows, f"All models have {span(sizes, ',')} parameters.")


# Nishikawa & Suzuki 2025: masking.


def masking_rows(data: str) -> tuple[list[list[str]], str]:
    """For each model, the curves of chosen and of other sequences; and the commands."""
    rows, commands = [], []
    for family, name in FAMILIES.items():
        found = load(f"masking_{data}_{family}")
        causal = "perplexity" in found["test"]
        test = f"{found['test']['perplexity']:.2f}" if causal else f"{found['test']['accuracy']:.3f}"
        commands.append(found["command"])
        heads = [[f"causal {name.replace('two-sided ', '')}" if causal else name, test], ["", ""]]
        for head, kind in zip(heads, ("chosen", "others"), strict=True):
            part = found[kind]
            area, until = part["area"], part["masked_until"]
            shares = [f"{100 * until[key]['mean']:.0f} ± {percent(until[key]['deviation'])}" for key in ("0.9", "0.5")]
            cells = [f"{part['mean'][0]:.2f}", f"{area['mean']:.3f} ± {area['deviation']:.3f}", *shares]
            rows.append([*head, kind, *cells])
    return rows, console(*commands)


MASKING = ["", "at the start", "area", "until nine tenths", "until half"]


@table
def masking_planted() -> str:
    precision = []
    for family, name in FAMILIES.items():
        found = load(f"masking_planted_{family}")["precision"]
        precision.append([name, *(f"{statistics.fmean(values):.3f} ({len(values)})" for values in found.values())])
    rows, commands = masking_rows("planted")
    strategies = [f"precision, `{name}`" for name in found]
    guesses = trivial("masking_planted")
    note = (
        f"Logistic regression on 4-mer counts has a test accuracy of {guesses['4-mers']:.3f}, the most frequent class "
        f"{guesses['most frequent class']:.3f} (`python examples/baselines.py masking_planted`). Tokens in a random "
        "order have a precision of 0.120, the share of the motif in the sequence."
    )
    shown = grid(["model", "test accuracy", *MASKING], rows, note)
    return f"{grid(['model', *strategies], precision)}\n{shown}{commands}"


@table
def masking_enhancers() -> str:
    found = {family: load(f"masking_enhancers_{family}") for family in FAMILIES}
    guesses = load("kmer_baseline")["accuracy"][Path(found["s4"]["arguments"]["path"]).name]
    best = max(one["test"]["accuracy"] for one in found.values())
    reached = ", ".join(f"{one['sequences_at_threshold']} ({FAMILIES[family]})" for family, one in found.items())
    rows, commands = masking_rows("enhancers")
    shown = grid(
        ["model", "test accuracy", *MASKING],
        rows,
        f"Logistic regression on 4-mer counts has a test accuracy of {guesses['test']:.3f}, the most frequent class "
        f"{guesses['most frequent class']:.3f}, the best of these models {best:.3f} "
        "(`python examples/kmer_baseline.py`).",
        f"Of the {found['s4']['sequences_of_class']} enhancers of the test split, these numbers reach the probability "
        f"0.95 that the paper asks for: {reached}; the others of the 20 start at "
        f"{min(one['least_probability'] for one in found.values()):.3f} or more. A sequence of masks alone is an "
        f"enhancer for the S4D model with probability {found['s4']['chosen']['mean'][-1]:.3f}.",
    )
    return shown + commands


@table
def masking_next_token() -> str:
    rows, commands = masking_rows("next_token")
    guesses = trivial("masking_next_token")
    order = min((name for name in guesses if name != "uniform"), key=lambda name: guesses[name])
    note = (
        f"Perplexity without a model: equally likely bases {guesses['uniform']:.2f}; their frequencies in training "
        f"{guesses['order 0']:.2f}; best Markov chain of orders 0 to {len(guesses) - 2}, chosen on the test rows: "
        f"{guesses[order]:.2f} ({order}; `python examples/baselines.py masking_next_token`)."
    )
    return grid(["model", "perplexity", *MASKING], rows, note) + commands


@table
def masking_search() -> str:
    kinds, rows = ("plain loop / exact", "plain loop / screened", "exact / screened"), []
    for data, words in (("planted", "planted"), ("next_token", "next base"), ("enhancers", "enhancers")):
        for family, name in FAMILIES.items():
            found = load(f"masking_{data}_{family}")
            times = [
                f"{found['times_less'][key]['seconds']:.2g}" if key in found["times_less"] else "" for key in kinds
            ]
            agreement = found.get("agreement_with_exact", {})
            cells = [
                f"{part['area_difference']:+.3f} ({part['largest_area_difference']:+.3f}), {part['spearman']:.2f}"
                for part in (agreement.get("screened"), agreement.get("one_shot"))
                if part
            ]
            sequences = agreement["screened"]["sequences"] if agreement else 0
            rows.append([f"{words}, {name.replace('two-sided ', '')}", sequences, *times, *(cells or ["", ""])])
    header = ["data and model", "sequences with `exact`", *kinds]
    return grid([*header, "`screened` against `exact`", "`one_shot` against `exact`"], rows)


# The Long Range Arena: numbers of the papers, and commands.


def arena(source: str) -> tuple[list[list[str]], str]:
    """For each task: without rescaling and regulariser, and the best of the four, of S4 and S4D; and the commands."""
    rows, commands = [], load("papers", "examples/lra")["commands"][source]
    for task in commands:
        cells = []
        for by_row in load("papers", "examples/lra")[source].values():
            best = max(by_row, key=lambda row: by_row[row][task])
            cells += [f"{by_row['neither'][task]:.2f}", f"{by_row[best][task]:.2f} ({best})"]
        rows.append([task, *cells, f"{100 / CLASSES[task]:.2f}"])
    return rows, console(*commands.values())


CLASSES = {"ListOps": 10, "Text": 2, "Retrieval": 2, "Image": 10, "Pathfinder": 2, "Path-X": 2}
ARENA = ["task", "S4 neither", "best", "S4D neither", "best"]
GUESS = "equally likely classes"
ARENA_NOTE = (
    "S4 and S4D: Liu & Li, means of 3 runs, the best of four settings chosen afterwards. The last column is a guess "
    "among equally likely classes; the share of the most frequent class is not computed, as the data are not on this "
    "machine."
)


@table
def lra() -> str:
    yu = load("papers", "examples/lra")["yu"]
    rows, commands = arena("liu_li")
    shown = [[*row[:-1], f"{yu[row[0]]:.2f}", row[-1]] for row in rows]
    note = ARENA_NOTE.replace("afterwards. ", "afterwards. Yu et al.: medians of 5 seeds. ")
    return grid([*ARENA, "Yu et al. (medians)", GUESS], shown, note) + commands


@table
def lra_small() -> str:
    rows, commands = arena("liu_li_small")
    return grid([*ARENA, GUESS], rows, ARENA_NOTE) + commands


@table
def cards() -> str:
    rows = []
    for name in names("masking_*"):
        found = load(name)
        model, data = found["settings"]["model"]["family"], Path(found["settings"]["data"]["dataset"]).name
        metric = "accuracy" if "accuracy" in found["test"] else "perplexity"
        rows.append([f"[{name}]({name}.md)", model, data, f"{metric} {found['test'][metric]:.4f}"])
    for name, run in sorted(load("trained")["runs"].items()):
        model = yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))["model"]["family"]
        rows.append([f"[{name}]({name}.md)", model, run["data"], f"accuracy {run['test']['accuracy']:.4f}"])
    mase = load("forecasting")["runs"][0]["all values"]["model"]["mase"]
    rows.append(["[forecaster](forecaster.md)", "flowstate", "generated hourly series", f"MASE {mase:.4f}"])
    return grid(["card", "family", "data", "test"], rows)


@table
def checkpoints() -> str:
    rows = []
    for name, run in sorted(load("trained")["runs"].items()):
        accuracy = run["test"]["accuracy"]
        error = math.sqrt(accuracy * (1 - accuracy) / run["test_rows"])
        result = f"{accuracy:.4f} ± {error:.4f}"
        rows.append([f"`{name}`", run["model"], f"`{run['data']}`", result, f"{run['test_rows']:,}"])
    header = ["card", "model", "data", "test accuracy", "test rows"]
    note = "The commands, of which `python examples/get_data.py` writes the data:"
    return grid(header, rows, note) + console(*(run["command"] for run in load("trained")["runs"].values()))


# Benchmarks: ratios of neighbouring runs.


def measured(name: str) -> tuple[dict[tuple[str, str, str], str], str]:
    """Median and quartiles by section, subject and quantity, and the sentence with the command."""
    found = load(name, "benchmarks/results")
    cells = {}
    for row in found["results"]:
        spread = f" ({row['low']:.3g} to {row['high']:.3g})" if len(row["values"]) > 1 else ""
        cells[row["section"], row["what"], row["quantity"]] = f"{row['median']:.3g}{spread}"
    machine = found["machine"]
    threads = f"OMP_NUM_THREADS={machine['threads']} " if machine["threads"] < machine["processors"] else ""
    return cells, code(threads + found["command"])


def pivot(name: str, corner: str, row: int, column: int) -> str:
    """All ratios of a file as a table; `row` and `column` are 0 (section), 1 (subject) or 2 (quantity)."""
    cells, command = measured(name)
    columns = list(dict.fromkeys(key[column] for key in cells))
    found = {(key[row], key[column]): cell for key, cell in cells.items()}
    subjects = dict.fromkeys(key[row] for key in cells)
    rows = [[name, *(found.get((name, other), "not run") for other in columns)] for name in subjects]
    return grid([corner, *columns], rows, f"Printed by {command}.")


@table
def stored_weights() -> str:
    return pivot("stored_weights", "", 1, 2)


@table
def saturation() -> str:
    return pivot("score", "", 1, 2)


@table
def generation() -> str:
    return pivot("generation", "", 1, 2)


@table
def packing_layouts() -> str:
    return pivot("packing_layouts", "way", 1, 0)


@table
def packing_models() -> str:
    files = {words: measured(name) for words, name in PACKING.items()}
    kinds = next(iter(files.values()))[0]
    rows = [[f"{key[1]}, {key[2]}", *(cells[key] for cells, _ in files.values())] for key in kinds]
    commands = " and ".join(command for _, command in files.values())
    return grid(["", *files], rows, f"Printed by {commands}.")


@table
def long_sequences() -> str:
    cells, command = measured("long")
    quantities = ("memory per token, KiB", "memory / usual", "time / usual")
    subjects = dict.fromkeys(key[:2] for key in cells)
    rows = [
        [section, what, *(cells.get((section, what, name.removesuffix(", KiB")), "") for name in quantities)]
        for section, what in subjects
    ]
    return grid(["model and length", "route", *quantities], rows, f"Printed by {command}.")


@table
def data_memory() -> str:
    cells, command = measured("data")
    found = {key[1:]: cell for key, cell in cells.items() if key[0] == "memory"}
    columns = dict.fromkeys(key[0] for key in found)
    rows = [
        [name, *(found.get((column, name), "") for column in columns)]
        for name in dict.fromkeys(key[1] for key in found)
    ]
    return grid(["", *columns], rows, f"Memory is in MiB. Printed by {command}.")


@table
def data_loading() -> str:
    cells, command = measured("data")
    rows = [[key[1], cell] for key, cell in cells.items() if key[0] == "loading"]
    return grid(["route and model", "rows loaded / trained, one process"], rows, f"Printed by {command}.")


PACKING = {"256 documents, hidden size 64": "packing_256", "64 documents, hidden size 128": "packing_64"}


@table
def cost() -> str:
    cells, command = measured("cost")
    quantities = list(dict.fromkeys(key[2] for key in cells))
    rows = [
        [name, *(cells["cost", name, each] for each in quantities)] for name in dict.fromkeys(key[1] for key in cells)
    ]
    return grid(["family", *quantities], rows, f"Printed by {command}, with the default configurations.")


@table
def tau_overhead() -> str:
    cells, command = measured("tau_overhead")
    rows = [[*key[:2], cell] for key, cell in cells.items() if key[2] == "CPU time"]
    return grid(["model", "length", "CPU time with τ / without"], rows, f"Printed by {command}.")


@table
def probe() -> str:
    cells, command = measured("probe")
    quantities = list(dict.fromkeys(key[2] for key in cells))
    models = dict.fromkeys(key[:2] for key in cells)
    rows = [[*model, *(cells[(*model, quantity)] for quantity in quantities)] for model in models]
    return grid(["family", "reads", *quantities], rows, f"Printed by {command}.")


@table
def mamba2() -> str:
    cells, command = measured("speed_mamba2")
    quantities = ("transformers / ours", "ours, plain torch / ours", "ours / matrix products")
    subjects = dict.fromkeys(key[:2] for key in cells)
    rows = [
        [f"{MAMBA2[section]}, {what}", *(cells.get((section, what, quantity), "") for quantity in quantities)]
        for section, what in subjects
    ]
    return grid(["what", *quantities], rows, f"Printed by {command}.")


MAMBA2 = {"ssd": "scan", "mamba2": "model", "decoding2": "greedy `generate`"}


# Rows of the README's table: file, section, subject and peer; and the words for sections and peers.
BOTH = "forward + backward"
SPEED = (
    ("speed", "scan", "forward", "transformers"),
    ("speed", "scan", BOTH, "transformers with mambapy"),
    ("speed", "training", "step", "transformers with mambapy"),
    ("speed", "decoding", "256 tokens, batch 1", "transformers"),
    ("speed", "lti", f"L 1,024, {BOTH}", "S4D listing"),
    ("speed", "lti", f"L 16,384, {BOTH}", "S4D listing"),
    ("speed", "convolution", BOTH, "torch.fft"),
)
WORDS = {
    "scan": "selective scan",
    "training": "training of a Mamba model",
    "decoding": "greedy `generate` of a Mamba model with a cache",
    "lti": "S4D kernel",
    "convolution": "long convolution, L 16,384",
    "S4D listing": "the listing of its paper",
    "torch.fft": "`torch.fft` with autograd's backward",
}


@table
def speed() -> str:
    return speed_of(SPEED)


@table
def speed_in_brief() -> str:
    return speed_of(SPEED[1:4])


def speed_of(compared: Sequence[tuple[str, str, str, str]]) -> str:
    rows = [
        [f"{WORDS[section]}, {what}", WORDS.get(peer, peer), measured(file)[0][section, what, f"{peer} / ours"]]
        for file, section, what, peer in compared
    ]
    commands = dict.fromkeys(measured(file)[1] for file, *_ in compared)
    return grid(["what", "against", "times"], rows, f"Printed by {' and '.join(commands)}.")


def filled(text: str) -> str:
    """The text of a document with its tables made again.

    Raises:
        ValueError: A marker names no table.
    """
    for name, *_ in BLOCK.findall(text):
        if name not in TABLES:
            raise ValueError(f"there is no table {name!r}; choose from {', '.join(TABLES)}")
    return BLOCK.sub(lambda found: f"{found[1]}{found[2]}\n{TABLES[found[1]]()}\n", text)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the documents, or compare them.

    Raises:
        SystemExit: With `--check`, a document differs.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit status 1 if a document differs")
    check = parser.parse_args(argv).check
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    different = [name for name, text in texts.items() if filled(text) != text]
    if check and different:
        raise SystemExit(f"{', '.join(different)}: run `python examples/tables.py`")
    for name in different:
        (ROOT / name).write_text(filled(texts[name]), encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
