"""Rescaled initialisation and τ regulariser on generated DNA with planted motifs.

Trains the same model four times per seed: plain, with the rescaling (Liu & Li 2024, Algorithm 1), with the regulariser
(Algorithm 2), and with both. Prints mean and standard deviation of the test accuracy over the seeds.

    python examples/planted_motifs.py --family hyena
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _experiment import experiment_parser, mean_and_deviation, print_table, write_results

from hf_ssm.training.run import train
from hf_ssm.training.settings import resolve

FAMILIES = {
    "hyena": {"family": "hyena", "hidden_size": 64, "num_hidden_layers": 2},
    "s4": {"family": "s4", "hidden_size": 64, "num_hidden_layers": 3, "state_size": 32, "bidirectional": True},
    "selective": {"family": "selective", "hidden_size": 64, "num_hidden_layers": 2, "bidirectional": True},
}
TINY = {
    "model": {"hidden_size": 8, "num_hidden_layers": 1},
    "data": {"num_train": 64, "num_validation": 32, "num_test": 32},
    "training": {"num_train_epochs": 1},
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the grid; print and write the results."""
    parser = experiment_parser(__doc__.splitlines()[0], show)
    parser.add_argument("--family", choices=FAMILIES, default="hyena")
    parser.add_argument("--seeds", type=int, default=3, help="runs per variant")
    parser.add_argument("--epochs", type=float, default=6)
    parser.add_argument("--tau-weight", type=float, default=1e-5, help="λ of the regularised variants")
    args = parser.parse_args(argv)

    variants = {
        "plain": {},
        "rescaled": {"rescale_init": True},
        "regularised": {"tau_weight": args.tau_weight},
        "both": {"rescale_init": True, "tau_weight": args.tau_weight},
    }
    results: dict[str, list[float]] = {}
    for name, flags in variants.items():
        results[name] = []
        for seed in range(args.seeds):
            settings = resolve(
                {
                    "model": {**FAMILIES[args.family], **flags},
                    "data": {"dataset": "planted-motifs", "length": 100, "mutation_rate": 0.1, "seed": seed},
                    "training": {"num_train_epochs": args.epochs, "learning_rate": 3e-3, "seed": seed},
                },
                TINY if args.tiny else {},
            )
            with tempfile.TemporaryDirectory() as folder:
                results[name].append(train(settings, Path(folder)).results["test"]["accuracy"])
    print(f"\nTest accuracy of {args.family}, {args.seeds} seeds, {args.epochs:g} epochs, λ = {args.tau_weight:g}")
    show({"accuracy": results})
    write_results(args, {"accuracy": results})


def show(content: dict[str, Any]) -> None:
    """Print the accuracies."""
    rows = [
        [name, mean_and_deviation(values), ", ".join(f"{v:.3f}" for v in values)]
        for name, values in content["accuracy"].items()
    ]
    print_table(["", "mean ± deviation", "by seed"], rows)


if __name__ == "__main__":
    main()
