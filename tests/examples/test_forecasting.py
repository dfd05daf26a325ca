"""The example of a forecaster: windows, and a tiny run whose model the commands read."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from hf_ssm import cli


def test_windows_leave_out_what_is_held_out(script: ModuleType) -> None:
    series = [script.Series("x", np.arange(20.0)), script.Series("x", np.arange(5.0))]
    windows = script.Windows(series, context=6, horizon=4, hold_out=4)
    assert [window["past_values"][0].item() for window in windows] == [0, 2, 4, 6]
    assert windows[3]["future_values"].tolist() == [12, 13, 14, 15]
    with pytest.raises(ValueError, match="no series has 34 values"):
        script.Windows(series, context=26, horizon=4, hold_out=4)


@pytest.mark.usefixtures("frozen_garbage")
def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder, output = tmp_path / "forecaster", tmp_path / "results.json"
    script.main(["--tiny", "--folder", str(folder), "--output", str(output)])
    (run,) = json.loads(output.read_text())["runs"]
    assert list(run) == ["all values", "every second, scale factor 2", "every second, scale factor 1"]
    assert (
        run["every second, scale factor 2"]["seasonal naive"] == run["every second, scale factor 1"]["seasonal naive"]
    )
    assert all(scores["mase"] > 0 for found in run.values() for scores in found.values())
    assert "| every second, scale factor 2 | model |" in capsys.readouterr().out
    assert (folder / "model/README.md").exists()
    # The command reads the model and the series, and finds the same error.
    options = ["--id-column", "id", "--value-columns", "load", "--time-column", "hour", "--hold-out"]
    options += ["--season", "24", "--output", str(tmp_path / "forecasts.csv")]
    assert cli.main(["forecast", str(folder / "model"), str(folder / "series.csv"), *options]) == 0
    rows = pd.read_csv(tmp_path / "forecasts.csv")
    error = (rows["prediction"] - rows["actual"]).abs().mean()
    assert error == pytest.approx(run["all values"]["model"]["mae"], rel=1e-3)
    with pytest.raises(SystemExit):
        script.main(["--tiny", "--folder", str(folder)])
    assert "it holds a model already" in capsys.readouterr().err


@pytest.mark.usefixtures("frozen_garbage")
def test_a_table_of_your_own(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    days = pd.date_range("2024-01-01", periods=150).strftime("%Y-%m-%d")
    pd.DataFrame({"date": days, "sales": np.arange(150) % 7}).to_csv(tmp_path / "sales.csv", index=False)
    script.main(["--tiny", "--table", str(tmp_path / "sales.csv"), "--time-column", "date", "--season", "7",
                 "--folder", str(tmp_path / "sales")])  # fmt: skip
    printed = capsys.readouterr().out
    # Every second value has no season of whole steps.
    assert "| all values | seasonal naive | 0.000 |" in printed and "every second" not in printed
    assert not (tmp_path / "sales/series.csv").exists()
