"""The networks of Nishikawa & Suzuki, Section 3, as they are defined there, trained on functions of their classes.

The network is clip_R ∘ f_M ∘ g_M ∘ ... ∘ f_1 ∘ g_1 ∘ Emb with g(X) = (W_Q X) ⊙ (H ∗ (W_V X)), filters H of two
frequencies in a window of U lags, ReLU networks f of depth L and width W, and an affine embedding: without norms,
residual sums, short convolutions and biases of W_Q and W_V. It is a configuration of the Hyena family (`architecture`
below). The output F_0 is that of the last token; the linear map of the head belongs to f_M.

The targets are smooth (fixed important positions) and piecewise smooth functions (the input determines them), see
`hf_ssm.data`'s generator smooth-function, with standard deviation 1. The paper has no experiments on them. Its Theorems
4.2 and 4.4 bound the error by a power of the number n of training sequences; the script measures R² on a test split
against n. The layers are rescaled to τ = 1 before training (Liu & Li 2024), as the products of random layers would
otherwise vanish.

    python examples/gated_convolution.py
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from _experiment import experiment_parser, print_table, quiet_training, write_results
from transformers import EvalPrediction, PrinterCallback, set_seed

from hf_ssm import HyenaConfig, HyenaForSignalRegression, SSMTrainer
from hf_ssm.data import load_sequences


def architecture(depth: int, width: int, window: int, clip: float | None, inclusive: bool) -> dict[str, Any]:
    """Fields of the configuration that make Hyena the class of Section 3.

    Args:
        depth, width: L and W of the ReLU networks.
        window: U.
        clip: R.
        inclusive: Whether the window has the lags 0 to U instead of 0 to U - 1.
    """
    return {
        "hyena_order": 1,
        "filter_type": "sinusoid",
        "sinusoid_window": window,
        "sinusoid_inclusive": inclusive,
        "conv_kernel": 0,
        "use_bias": False,
        "use_skip": False,
        "use_output_projection": False,
        "hidden_act": "relu",
        "mlp_depth": depth,
        "intermediate_size": width,
        "norm_type": "none",
        "use_residual": False,
        "output_clip": clip,
    }


def build_model(args: argparse.Namespace) -> HyenaForSignalRegression:
    """A fresh network for numbers with two channels, with one output at the last token."""
    config = HyenaConfig(
        **architecture(args.depth, args.width, args.window, args.clip, args.inclusive),
        hidden_size=args.hidden_size,
        num_hidden_layers=args.layers,
        num_input_channels=2,
        num_labels=1,
        pooling="last",
        # Of the order of 1/√D, so that a layer keeps the scale of its inputs.
        initializer_range=args.hidden_size**-0.5,
        rescale_init=True,
    )
    return HyenaForSignalRegression(config)


def r_squared(prediction: EvalPrediction) -> dict[str, float]:
    """R² of one number per row."""
    labels = prediction.label_ids.reshape(-1)
    return {"r2": float(1 - ((prediction.predictions.reshape(-1) - labels) ** 2).mean() / labels.var())}


def run(args: argparse.Namespace, piecewise: bool, rows: int) -> float:
    """R² on the test split after training on the given number of rows."""
    data = load_sequences(
        "smooth-function",
        seed=args.seed,
        num_train=rows,
        num_validation=1,
        num_test=args.test_rows,
        length=args.length,
        num_important=2,
        piecewise=piecewise,
    )
    columns = {"sequence": "input_values", "label": "labels"}
    data = data.rename_columns(columns).remove_columns("important_positions").with_format("torch")
    set_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        options = {"max_steps": args.steps, "learning_rate": args.learning_rate, "warmup_steps": 0.1, "seed": args.seed}
        batch = {"per_device_train_batch_size": 64, "per_device_eval_batch_size": 500}
        trainer = SSMTrainer(
            build_model(args),
            quiet_training(folder, **options, **batch),
            train_dataset=data["train"],
            eval_dataset=data["test"],
            compute_metrics=r_squared,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return float(trainer.evaluate()["eval_r2"])


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = experiment_parser(__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[250, 1000, 4000], help="numbers n of training rows")
    add("--test-rows", type=int, default=1000)
    add("--length", type=int, default=16, help="positions of a row (default: %(default)s)")
    add("--layers", type=int, default=2, help="M (default: %(default)s)")
    add("--hidden-size", type=int, default=32, help="D (default: %(default)s)")
    add("--depth", type=int, default=3, help="L, linear maps of a ReLU network (default: %(default)s)")
    add("--width", type=int, default=64, help="W (default: %(default)s)")
    add("--window", type=int, default=16, help="U (default: %(default)s)")
    add("--inclusive", action="store_true", help="lags 0 to U instead of 0 to U - 1")
    add("--clip", type=float, default=3.0, help="R (default: %(default)s)")
    add("--steps", type=int, default=2000)
    add("--learning-rate", type=float, default=5e-3)
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.tiny:
        args.rows, args.test_rows, args.length, args.layers = [32], 16, 8, 1
        args.hidden_size, args.width, args.steps = 4, 4, 2
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Train on both kinds of functions with each number of rows, and print the table."""
    args = parse(sys.argv[1:] if argv is None else argv)
    results: dict[str, dict[str, float]] = {}
    for name, piecewise in (("smooth", False), ("piecewise smooth", True)):
        results[name] = {str(rows): run(args, piecewise, rows) for rows in args.rows}
    parameters = sum(parameter.numel() for parameter in build_model(args).parameters())
    print(f"R² on {args.test_rows} test rows, {parameters:,} parameters:")
    header = ["function", *(f"n = {rows}" for rows in args.rows)]
    print_table(header, [[name, *(f"{value:.3f}" for value in found.values())] for name, found in results.items()])
    write_results(args, {"parameters": parameters, "r2": results})


if __name__ == "__main__":
    main()
