"""Compare `hf-ssm tune` with searches of equal cost on eight tasks, with everything fixed in advance.

`examples/tuning_benchmark.yml` has the tasks, sizes, steps, seeds, spaces and aims. It was written before the first
run, and a result names its SHA-256, and that of the code of the rules. For each task and each of three splits:

- *default*: the defaults of `hf-ssm train` with one learning rate for all tasks, chosen on the first split of all
  tasks.
- *tune*: `hf_ssm.tuning.tune`, which starts from this default: six runs, and the best with three fresh seeds (12
  runs).
- *random*, *TPE*: 12 runs over learning rate, step sizes, rescaling and λ by optuna, of which the first is the
  default.
- *learning rate*: 12 learning rates.
- *grid*: 25 runs, five learning rates and five ranges of step sizes (Hyena's implicit filter: of α).

Each method sees the validation rows only. Its choice is trained with five other seeds, whose test errors count: 1 -
accuracy, nats per byte, or the mean squared error. A run that diverges counts with the error of the constant
prediction. ± is the standard error of the mean over the splits, and a difference is one of means over the same
splits. All runs are ordinary runs of `hf_ssm.training` in long-lived processes with one thread each. Finished runs
are stored in `--folder`, shared by the methods and not repeated, so that an interrupted benchmark continues.

`hf-ssm train` has no column for the `time_deltas` of S5, and τ is not defined with them: the model of the pendulum,
which is a simulation, gets the time since the last observation as a second channel.

    python examples/get_data.py promoters human_or_worm imdb mnist
    pip install "hf_ssm[tuning]"
    python examples/tuning_benchmark.py --jobs 2 --output examples/results/tuning_benchmark.json

"""

import ast
import hashlib
import json
import math
import multiprocessing
import statistics
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import optuna
import torch
import yaml
from _experiment import experiment_parser, write_results
from _tuning_runs import Record, Runs, error_of, relative_errors, validation_error
from _tuning_summary import print_summary, summarise
from _tuning_tasks import missing_file, write_task
from transformers.utils import logging

import hf_ssm
from hf_ssm.training.settings import SECTIONS, RunSettings, resolve
from hf_ssm.training.tasks import TASKS
from hf_ssm.tuning import Outcome, tune
from hf_ssm.tuning.baselines import linear_baseline
from hf_ssm.utils.files import write_text_atomically

FROZEN = Path(__file__).with_suffix(".yml")
# The code that decides what the tuner does.
RULES = (
    *("tuning/decision.py", "tuning/diagnosis.py", "tuning/plan.py", "tuning/runs.py", "tuning/tuner.py"),
    *("analysis/time_steps.py", "theory/time_scales.py"),
)


def read_frozen(tiny: bool = False) -> dict[str, Any]:
    """The contents of the frozen file."""
    frozen = yaml.safe_load(FROZEN.read_text(encoding="utf-8"))
    small = frozen.pop("tiny")
    if tiny:
        frozen["tasks"] = {name: frozen["tasks"][name] for name in small.pop("tasks")}
        for task in frozen["tasks"].values():
            task["options"]["length"] = small["length"]
            task["training"]["max_steps"] = small["max_steps"]
        frozen["search"]["runs"] = small["search_runs"]
        frozen.update({name: value for name, value in small.items() if name in frozen})
    return frozen


def digests() -> dict[str, str]:
    """SHA-256 of the frozen file, and of the code of the rules without comments and layout."""
    package = Path(hf_ssm.__file__).parent
    code = "".join(ast.dump(ast.parse((package / name).read_text(encoding="utf-8"))) for name in RULES)
    return {
        "frozen": hashlib.sha256(FROZEN.read_bytes()).hexdigest(),
        "rules": hashlib.sha256(code.encode()).hexdigest(),
    }


def check_same(stored: Path, now: Mapping[str, str]) -> None:
    """Refuse to continue results of another frozen file, or of other rules.

    Raises:
        SystemExit: The digests differ.
    """
    if not stored.is_file():
        return
    then = json.loads(stored.read_text(encoding="utf-8"))
    then = then.get("digests", then)
    for name, what in (("frozen", FROZEN.name), ("rules", "the code of the rules")):
        if then[name] != now[name]:
            raise SystemExit(f"{stored}: {what} was changed since its first run: move the results away to start anew")


@dataclass(frozen=True)
class Choice:
    """What a method chose.

    Attributes:
        settings: Its settings.
        records: The runs that it needed.
        note: What a table says about the choice.
        candidates: Validation error of each run of the first step of the tuner; `None` for one that diverged.
    """

    settings: RunSettings
    records: Sequence[Record]
    note: str = ""
    candidates: Mapping[str, float | None] = field(default_factory=dict)


def base_settings(frozen: Mapping[str, Any], name: str, table: Path, rate: float, seed: int) -> RunSettings:
    """The default settings of a task."""
    task = frozen["tasks"][name]
    training = {**frozen["training"], **task["training"], "learning_rate": rate, "seed": seed}
    return resolve(
        {"model": task["model"], "data": {"dataset": str(table), **task.get("data", {})}, "training": training}
    )


def changed(settings: RunSettings, **fields: Any) -> RunSettings:
    """Settings with other values of fields of the model, of `learning_rate` or `seed`."""
    training = {name: fields.pop(name) for name in ("learning_rate", "seed") if name in fields}
    layers = {section: dict(getattr(settings, section)) for section in SECTIONS}
    layers["model"].update(fields)
    layers["training"].update(training)
    return resolve(layers)


def best_of(candidates: Iterable[RunSettings], runs: Runs) -> Choice:
    """The candidate with the smallest validation error, the first of them."""
    tried = [(settings, runs.record(settings)) for settings in candidates]
    chosen = min(tried, key=lambda pair: validation_error(pair[1]))
    return Choice(chosen[0], [record for _, record in tried])


def over_rates(frozen: Mapping[str, Any], default: RunSettings) -> Iterator[RunSettings]:
    """The learning rates alone."""
    yield from (changed(default, learning_rate=rate) for rate in frozen["rates"])


def over_grid(frozen: Mapping[str, Any], name: str, default: RunSettings) -> Iterator[RunSettings]:
    """Learning rates and step sizes, or values of the flag of the task."""
    for values in frozen["tasks"][name].get("grid_values", frozen["grid_values"]):
        yield from (changed(default, learning_rate=rate, **values) for rate in frozen["grid_rates"])


def searched(frozen: Mapping[str, Any], name: str, default: RunSettings, runs: Runs, sampler: Any) -> Choice:
    """A search by optuna, of which the first trial is the default."""
    space, flags = frozen["search"], frozen["tasks"][name].get("search_flag")
    study = optuna.create_study(sampler=sampler)

    def propose(trial: optuna.Trial) -> RunSettings:
        fields = {name: trial.suggest_categorical(name, space[name]) for name in ("rescale_init", "tau_weight")}
        fields["learning_rate"] = trial.suggest_float("learning_rate", *space["learning_rate"], log=True)
        if flags is not None:
            fields.update({flag: trial.suggest_float(flag, *ends, log=True) for flag, ends in flags.items()})
        else:
            largest = trial.suggest_float("time_step_max", *space["time_step_max"], log=True)
            ratio = trial.suggest_float("time_step_ratio", *space["time_step_ratio"], log=True)
            fields.update(time_step_min=largest / ratio, time_step_max=largest)
        return changed(default, **fields)

    start: dict[str, Any] = {"rescale_init": False, "tau_weight": 0.0}
    start["learning_rate"] = default.training["learning_rate"]
    # The defaults of the families: α = 1, and step sizes from 0.001 to 0.1.
    start.update(dict.fromkeys(flags, 1.0) if flags is not None else {"time_step_max": 0.1, "time_step_ratio": 100.0})
    study.enqueue_trial(start)
    tried = []
    for _ in range(space["runs"]):
        trial = study.ask()
        settings = propose(trial)
        record = runs.record(settings)
        tried.append((settings, record))
        error = validation_error(record)
        # A sampler leaves failed trials out; it should learn from them.
        study.tell(trial, error if math.isfinite(error) else 1e6)
    chosen = min(tried, key=lambda pair: validation_error(pair[1]))
    return Choice(chosen[0], [record for _, record in tried])


class _Recorder:
    """A runner that remembers its records."""

    def __init__(self, runs: Runs):
        self.runs, self.records = runs, list[Record]()

    def __call__(self, settings: RunSettings, output: Path) -> Outcome:
        self.records.append(self.runs.record(settings))
        return self.runs(settings, output)


def tuned(default: RunSettings, runs: Runs) -> Choice:
    """The choice of `hf-ssm tune`."""
    recorder = _Recorder(runs)
    with tempfile.TemporaryDirectory() as folder:  # Finished runs come from the store.
        result = tune(default, Path(folder), run=recorder)
    candidates = {
        trial.candidate.name: error_of(result.metric, outcome.score) if math.isfinite(outcome.score) else None
        for trial in result.trials
        if (outcome := trial.outcome) is not None
    }
    return Choice(result.settings, recorder.records, result.winner, candidates)


def choices(frozen: Mapping[str, Any], name: str, split: int, default: RunSettings, runs: Runs) -> dict[str, Choice]:
    """What each method chooses for a task and split."""
    search = frozen["search"]
    # One seed for all tasks and splits would try the same points everywhere, lucky or not.
    seed = search["seed"] + zlib.crc32(f"{name}-{split}".encode())
    samplers: dict[str, Callable[[], Any]] = {
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "TPE": lambda: optuna.samplers.TPESampler(seed=seed, n_startup_trials=search["startup_trials"]),
    }
    return {
        "default": Choice(default, []),
        "tune": tuned(default, runs),
        **{method: searched(frozen, name, default, runs, make()) for method, make in samplers.items()},
        "learning rate": best_of(over_rates(frozen, default), runs),
        "grid": best_of(over_grid(frozen, name, default), runs),
    }


def evaluate(frozen: Mapping[str, Any], choice: Choice, runs: Runs) -> tuple[list[float], float, int]:
    """Test errors of a choice with the seeds of the evaluation, that of the constant prediction, and failed runs."""
    found = [runs.record(changed(choice.settings, seed=seed)) for seed in frozen["evaluation_seeds"]]
    metric = found[0]["outcome"]["metric"]
    known = next((record["chance"] for record in [*found, *choice.records] if record["chance"]), None)
    constant = math.nan if known is None else error_of(metric, known["test"])
    errors = [constant if record["test"] is None else error_of(metric, record["test"]) for record in found]
    return errors, constant, sum(record["outcome"]["failed"] for record in found)


def run_unit(frozen: Mapping[str, Any], name: str, split: int, folder: Path, rate: float) -> dict[str, Any]:
    """All methods on one split of one task."""
    runs = Runs(folder / "runs" / f"{name}-{split}")
    default = base_settings(frozen, name, table_of(folder, name, split), rate, frozen["choice_seed"])
    methods: dict[str, Any] = {}
    made = choices(frozen, name, split, default, runs)
    for method, choice in made.items():
        errors, constant, failures = evaluate(frozen, choice, runs)
        base = {section: getattr(default, section) for section in SECTIONS}
        methods[method] = {
            "errors": errors,
            "constant": constant,
            "failed": failures,
            "note": choice.note,
            "runs": len(choice.records),
            "failed while choosing": sum(record["outcome"]["failed"] for record in choice.records),
            "seconds": sum(record["outcome"]["seconds"] for record in choice.records),
            "changes": {
                f"{section}.{name}": value
                for section in SECTIONS
                for name, value in getattr(choice.settings, section).items()
                if base[section].get(name) != value
            },
        }
    metric, data = TASKS[default.task].best_metric, runs.loaded(default)
    linear = error_of(metric, linear_baseline(default.task, data, "test")[1])
    grid = relative_errors(made["grid"].records)
    candidates = made["tune"].candidates
    return {"task": name, "split": split, "methods": methods, "linear": linear, "grid": grid, "candidates": candidates}


def run_rates(frozen: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """Validation errors of the defaults with each learning rate of the grid, in units of the constant prediction."""
    split = frozen["splits"][0]
    runs, table = Runs(folder / "runs" / f"{name}-{split}"), table_of(folder, name, split)
    records = [
        runs.record(base_settings(frozen, name, table, rate, frozen["choice_seed"])) for rate in frozen["grid_rates"]
    ]
    return {"task": name, "errors": relative_errors(records)}


def table_of(folder: Path, name: str, split: int) -> Path:
    """The table of a task and a seed of its split."""
    return folder / "data" / f"{name}-{split}.jsonl"


def begin_process() -> None:
    """One thread, and no output."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    datasets.disable_progress_bars()
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def in_processes(
    jobs: int, work: Callable[..., dict[str, Any]], calls: Sequence[tuple[Any, ...]]
) -> Iterator[dict[str, Any]]:
    """Results of calls, as they finish; with one job, in this process."""
    if jobs == 1:
        yield from (work(*call) for call in calls)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), begin_process) as pool:
        futures = [pool.submit(work, *call) for call in calls]
        try:
            yield from (future.result() for future in as_completed(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def main(argv: Sequence[str] | None = None) -> None:
    """All units that are missing, and the summary."""
    parser = experiment_parser(__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the files (get_data.py)")
    parser.add_argument("--folder", type=Path, default=Path("runs/tuning_benchmark"), help="where runs are stored")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with one thread")
    parser.add_argument("--tasks", nargs="+", help="default: all")
    args = parser.parse_args(argv)
    if args.tiny:  # other rows and steps under the same names
        args.folder = args.folder / "tiny"
    frozen, stored, now = read_frozen(args.tiny), args.folder / "digests.json", digests()
    for path in (stored, *([args.output] if args.output else [])):
        check_same(path, now)
    chosen = args.tasks or list(frozen["tasks"])
    if unknown := [name for name in chosen if name not in frozen["tasks"]]:
        parser.error(f"--tasks: unknown task {unknown[0]!r}: choose from {', '.join(frozen['tasks'])}")
    skipped = {name: file for name in chosen if (file := missing_file(frozen["tasks"][name], args.data))}
    for name, file in skipped.items():
        print(f"{name} is left out: {args.data / file} is missing (python examples/get_data.py)")
    chosen = [name for name in chosen if name not in skipped]
    args.folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(stored, json.dumps(now) + "\n")
    begin_process()
    for name in chosen:
        for split in frozen["splits"]:
            write_task(table_of(args.folder, name, split), frozen["tasks"][name], frozen["rows"], split, args.data)

    tried = list(in_processes(args.jobs, run_rates, [(frozen, name, args.folder) for name in chosen]))
    means = [statistics.fmean(column) for column in zip(*(each["errors"] for each in tried), strict=True)]
    rate = frozen["grid_rates"][means.index(min(means))]
    print(f"The calibrated default has the learning rate {rate:g}.", flush=True)
    calibration = {"rates": frozen["grid_rates"], "mean error": means, "chosen": rate}
    calibration["errors"] = {each["task"]: each["errors"] for each in sorted(tried, key=lambda each: each["task"])}

    calls = [(frozen, name, split, args.folder, rate) for split in frozen["splits"] for name in chosen]
    units: list[dict[str, Any]] = []
    for unit in in_processes(args.jobs, run_unit, calls):
        units.append(unit)
        print(f"{len(units)} of {len(calls)}: {unit['task']}, split {unit['split']}", flush=True)
    units.sort(key=lambda unit: (chosen.index(unit["task"]), unit["split"]))
    summary = summarise(units, frozen["aims"])
    print_summary(frozen, summary)
    count = sum(1 for _ in (args.folder / "runs").glob("*/*.json"))
    titles = {name: [task["title"], task["model"]["family"]] for name, task in frozen["tasks"].items()}
    args.folder, args.data = args.folder.name, args.data.name
    content = {"grid": {"rates": frozen["grid_rates"], "values": frozen["grid_values"]}}
    content["grid"]["tasks"] = [name for name in chosen if "grid_values" not in frozen["tasks"][name]]
    content |= {"digests": now, "calibration": calibration, "summary": summary, "units": units, "titles": titles}
    write_results(args, {**content, "skipped": skipped, "different runs": count})


if __name__ == "__main__":
    main()
