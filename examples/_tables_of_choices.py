"""The table of first choices on the home page; see `tables.py`."""

from typing import Any

from _tables import grid, load, span, table


def _trained(name: str) -> str:
    run = load("trained")["runs"][name]
    return (
        f"[human or worm](experiments/real-dna.md): {run['minutes']:g} minutes, accuracy {run['test']['accuracy']:.3f}"
    )


def _minutes(runs: Any) -> str:
    return f"{span((run['minutes'] for run in runs), '.1f')} minutes for each run"


@table
def which_model() -> str:
    exact = "D-LinOSS, exact steps, with the times"
    oscillations = [run for name, run in load("irregular_oscillations")["runs"].items() if name.startswith(exact)]
    tracking = [run for name, run in load("state_tracking")["runs"].items() if ", Mamba-3, " in name]
    forecaster = load("forecasting")
    forecasts = (
        f"[forecasts](experiments/forecasting.md): {forecaster['processor_minutes']:g} minutes for "
        f"{len(forecaster['runs'])} models"
    )
    rows = [
        [
            "labelled DNA",
            "to some thousand bases",
            '`s4`, or `hyena` with `filter_type="s4d"`, two-sided',
            "",
            "CPU",
            _trained("human_or_worm_s4d"),
        ],
        [
            "DNA with few labels",
            "to a million bases",
            "`hf-ssm train --model NAME`",
            "HyenaDNA",
            "CPU for the small ones",
            "",
        ],
        [
            "DNA, both strands at once",
            "to 131,072 bases",
            "`hf-ssm train --model NAME`",
            "Caduceus, PlantCaduceus, PlantCAD2",
            "GPU",
            "",
        ],
        [
            "DNA to generate, variants to score",
            "to a million bases",
            "`hf-ssm convert`, `hf-ssm score`",
            "Evo 1, Evo 2, HyenaDNA",
            "GPU",
            "",
        ],
        ["text or bytes to generate", "any", "`selective` or `ssd`", "Mamba, Mamba-2", "CPU, GPU", ""],
        ["text to look something up in", "what fits", "`hybrid`", "", "CPU, GPU", _trained("human_or_worm_hybrid")],
        [
            "rows whose state counts",
            "any",
            "`mamba3`",
            "",
            "CPU, GPU",
            f"[state tracking](experiments/state-tracking.md): {_minutes(tracking)}",
        ],
        [
            "signals at irregular times",
            "any",
            '`s5`, or `linoss` with `discretization="zoh"`',
            "",
            "CPU",
            f"[oscillations](experiments/irregular-oscillations.md): {_minutes(oscillations)}",
        ],
        [
            "numeric series to forecast",
            "2,048 values",
            "`flowstate`",
            "FlowState",
            "CPU",
            forecasts,
        ],
        ["videos", "what fits", "`convs5`", "", "GPU", ""],
    ]
    header = ["your data", "length", "take", "pretrained", "device", "a first run and its cost"]
    note = (
        "Minutes are those of one thread of a shared machine; the page behind a link has the command. Empty cells: "
        "nothing public is pretrained, or nothing was measured here."
    )
    return grid(header, rows, note)
