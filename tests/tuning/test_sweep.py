"""Lists of values in settings: which lists they are, the runs they stand for, and `hf-ssm train` over them."""

import csv
import itertools

import pytest
import yaml

from hf_ssm import cli
from hf_ssm.cli import train as train_command
from hf_ssm.ops.backends import use_backend
from hf_ssm.training.settings import TRAINING_DEFAULTS, parse_assignments, resolve
from hf_ssm.tuning.sweep import expand, merged

DATA = {"dataset": "planted-motifs", "length": 24, "num_train": 24, "num_validation": 12, "num_test": 8}
TINY = {
    "data": {**DATA, "motif_length": 8, "copies": 1},
    "model": {"family": "s4", "hidden_size": 4, "num_hidden_layers": 1, "state_size": 4},
    "training": {"num_train_epochs": 1, "per_device_train_batch_size": 24},
}


def test_the_product_of_lists():
    layers = (
        {"model": {"family": "s4", "frequency_scale": 5}},
        {"model": {"frequency_scale": [0.1, 1]}, "training": {"seed": [0, 2]}},
    )
    grid = expand(merged({"data": DATA}, *layers))
    assert [run.name for run in grid] == [
        f"frequency_scale={alpha},seed={seed}" for alpha in (0.1, 1) for seed in (0, 2)
    ]
    assert grid[1].values == {"frequency_scale": 0.1, "seed": 2}
    settings = resolve(grid[3].sections)
    assert (settings.model["frequency_scale"], settings.training["seed"], settings.data["length"]) == (1, 2, 24)


@pytest.mark.parametrize(
    ("assignment", "count"),
    [
        ("model.sobolev_order=[0, 0.5]", 1),  # one for each layer
        ("model.sobolev_order=[[0, 0.5], [1, 1], [2, 2]]", 3),
        ("model.time_step_limit=[0.0, 1.0]", 1),
        ("model.d_model=[8, 16]", 2),
        ("model.norm_type=[layer, rms]", 2),
        ("model.rescale_init=[true, false]", 2),
        ("data.label_column=[a, b]", 1),
        ("data.classes=[a, b]", 1),
        ("data.length=[24, 48]", 2),
        ("training.report_to=[tensorboard, trackio]", 1),
        ("training.learning_rate=[1e-3, 3e-3, 1e-2]", 3),
    ],
)
def test_a_list_that_is_a_value_is_one_value(assignment, count):
    sections = merged({"data": DATA, "model": {"family": "ssd"}}, parse_assignments([assignment]))
    assert len(expand(sections)) == count


def test_the_same_key_in_two_sections():
    grid = expand({"data": {**DATA, "seed": [1, 2]}, "training": {"seed": [3]}, "model": {}})
    assert [run.name for run in grid] == ["data.seed=1,training.seed=3", "data.seed=2,training.seed=3"]


@pytest.mark.parametrize("values", [[], [1, 2, 1]])
def test_lists_without_different_values(values):
    with pytest.raises(ValueError, match=r"training\.seed=.*give one or more values"):
        expand({"data": DATA, "training": {"seed": values}})


def test_a_wrong_value_of_a_list_is_an_error(capsys, tmp_path):
    words = ["--dataset", "planted-motifs", "--output", str(tmp_path / "x")]
    assert cli.main(["train", *words, "--set", "training.learning_rate=[1e-3, fast]"]) == 2
    assert "training.learning_rate must be of type float, got 'fast'" in capsys.readouterr().err
    assert cli.main(["train", *words, "--set", "training.seed=[0, 1]", "--push-to-hub", "me/mine"]) == 2
    assert "--push-to-hub uploads one run, but the settings stand for 2 runs" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_train_over_a_list(capsys, tmp_path):
    with use_backend("torch"):  # compiling takes longer than the tiny models
        _train_over_a_list(capsys, tmp_path)


def _train_over_a_list(capsys, tmp_path):
    config, output = tmp_path / "grid.yaml", tmp_path / "grid"
    config.write_text(yaml.safe_dump({**TINY, "training": {**TINY["training"], "seed": [0, 1]}}))
    command = ["train", "--config", str(config), "--output", str(output)]
    assert cli.main([*command, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("2 runs:\nseed=0\nseed=1\n") and "Nothing was written." in printed and not output.exists()
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert "seed=1 (2 of 2)" in printed and f"hf-ssm report {output}/seed=" in printed
    for seed in (0, 1):
        folder = output / f"seed={seed}"
        assert yaml.safe_load((folder / "train_config.yaml").read_text())["training"]["seed"] == seed
        assert (folder / "model.safetensors").is_file() and (folder / "README.md").is_file()
    with (output / "grid.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0", "1"] and all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    # Finished runs are not repeated; without --resume the folder is not empty.
    assert cli.main(command) == 2
    assert "is not empty" in capsys.readouterr().err
    written = (output / "seed=1" / "model.safetensors").stat().st_mtime_ns
    assert cli.main(["train", "--resume", "--output", str(output)]) == 0
    assert "(2 of 2)" not in capsys.readouterr().out
    assert (output / "seed=1" / "model.safetensors").stat().st_mtime_ns == written
    assert cli.main(["train", "--resume", "--output", str(output), "--set", "model.hidden_size=8"]) == 2
    assert f"--resume: the settings differ from those in {output}/grid.yaml" in capsys.readouterr().err


def test_a_grid_continues_with_the_learning_rate_with_which_it_began(capsys, tmp_path, monkeypatch):
    """Runs that had not begun take the rate of those that had, not the default of a later version."""
    config, output = tmp_path / "grid.yaml", tmp_path / "grid"
    config.write_text(yaml.safe_dump({**TINY, "training": {**TINY["training"], "seed": [0, 1]}}))
    train_once, trained = train_command.train_once, []

    def interrupted(settings, folder, *args, **options):
        if trained:
            raise KeyboardInterrupt
        trained.append(folder.name)
        return train_once(settings, folder, *args, **options)

    with use_backend("torch"):
        with monkeypatch.context() as patch:
            patch.setitem(TRAINING_DEFAULTS, "learning_rate", 0.07)
            patch.setattr(train_command, "train_once", interrupted)
            assert cli.main(["train", "--config", str(config), "--output", str(output)]) != 0
        assert "seed=0 (1 of 2)" in capsys.readouterr().out and trained == ["seed=0"]
        written = (output / "seed=0" / "model.safetensors").stat().st_mtime_ns
        assert cli.main(["train", "--resume", "--output", str(output)]) == 0
    assert "(1 of 2)" not in capsys.readouterr().out
    settings = [yaml.safe_load((output / f"seed={seed}" / "train_config.yaml").read_text()) for seed in (0, 1)]
    assert [each["training"]["learning_rate"] for each in settings] == [0.07, 0.07]
    assert (output / "seed=0" / "model.safetensors").stat().st_mtime_ns == written


def test_a_list_needs_a_validation_split(capsys, tmp_path):
    table = tmp_path / "rows.csv"
    rows = [("".join(letters), "ab"[number % 2]) for number, letters in enumerate(itertools.product("ACGT", repeat=3))]
    table.write_text("sequence,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    words = ["--dataset", str(table), "--set", "data.validation_fraction=0", "--set", "training.seed=[0, 1]"]
    assert cli.main(["train", *words, "--family", "s4", "--output", str(tmp_path / "x")]) == 2
    assert "has no validation split, but runs are compared on this split" in capsys.readouterr().err
