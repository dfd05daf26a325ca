"""`hf-ssm spectrum` on texts, numbers and checkpoints: output, files, and errors."""

import json
import math
import random
from pathlib import Path

import pytest
import torch

import hf_ssm
from hf_ssm import cli
from hf_ssm.analysis.frequency import alpha_recommendation
from hf_ssm.data import SignalFeatureExtractor
from hf_ssm.theory.spectrum import power_spectrum, spectral_edge
from hf_ssm.tokenization import build_dna_tokenizer


def run(*arguments: object) -> int:
    return cli.main(["spectrum", *map(str, arguments)])


def error_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that bad input gets, without its prefix; progress bars may come before it."""
    assert run(*arguments) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("hf-ssm: error: ")
    return last.removeprefix("hf-ssm: error: ")


@pytest.fixture
def genes(tmp_path: Path) -> Path:
    """Unlabelled sequences of 60 to 90 bases, every third of which is mostly G."""
    draw = random.Random(0)
    lengths = [draw.randrange(60, 91) for _ in range(60)]
    rows = [
        "".join("G" if i % 3 == 0 and draw.random() < 0.7 else draw.choice("ACGT") for i in range(n)) for n in lengths
    ]
    path = tmp_path / "genes.csv"
    path.write_text("\n".join(["sequence", *rows]), encoding="utf-8")
    return path


@pytest.fixture
def waves(tmp_path: Path) -> Path:
    """Labelled signals of two channels: cycles of 16 and of 4 samples, the second stronger, with a large mean."""
    rows = []
    for i in range(30):
        t = torch.arange(512, dtype=torch.float64) + i
        both = torch.stack([5 + torch.cos(2 * math.pi * t / 16), -9 + 3 * torch.cos(2 * math.pi * t / 4)], dim=-1)
        rows.append(json.dumps({"sequence": both.tolist(), "label": i % 2}))
    path = tmp_path / "waves.jsonl"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def test_the_period_of_three_is_found_and_written(genes, tmp_path, capsys):
    output = tmp_path / "out"
    assert run(genes, "--output", output, "--rows", 40, "--svg") == 0
    printed = capsys.readouterr().out
    assert "genes.csv, split train: 40 sequences" in printed
    assert " 0.33" in printed
    assert "state size 64, init 'legs', zoh" in printed
    assert {path.name for path in output.iterdir()} == {"spectrum.json", "spectrum.png", "spectrum.svg"}
    assert "<!-- period (bases) -->" in (output / "spectrum.svg").read_text(encoding="utf-8")
    assert (output / "spectrum.png").read_bytes().startswith(b"\x89PNG\r\n")
    found = json.loads((output / "spectrum.json").read_text(encoding="utf-8"))
    assert found["dataset"] == "genes.csv"
    assert found["rows"] == 40
    entry = found["spectra"]["inputs"]
    assert entry["strongest_line_radians_per_sample"] == pytest.approx(2 * math.pi / 3, abs=0.03)
    assert entry["strongest_line_ratio"] > 3
    power = torch.tensor(entry["power"])
    for share in ("0.5", "0.9", "0.99"):
        edge = entry["edges_radians_per_sample"][share]
        assert edge == pytest.approx(spectral_edge(power, float(share)).item(), rel=1e-4)
        assert found["alpha"]["edges"][share] == edge
    expected = alpha_recommendation(hf_ssm.S4Config(), power, quantiles=(0.9,))
    assert found["alpha"]["from_data"]["0.9"] == pytest.approx(expected.from_data[0.9], rel=1e-4)
    assert str(tmp_path) not in (output / "spectrum.json").read_text(encoding="utf-8")


def test_the_planned_model_is_given_by_options(genes, capsys):
    options = ["--state-size", 32, "--init", "lin", "--discretization", "bilinear"]
    assert run(genes, *options, "--time-step-min", 0.01, "--time-step-max", 0.05) == 0
    printed, suggested = capsys.readouterr()
    assert "for Δ = 0.05 ... 0.01 (state size 32, init 'lin', bilinear)" in printed
    # The recommended α holds for these settings only.
    for setting in ("state_size=32", "init=lin", "discretization=bilinear", "time_step_min=0.01", "time_step_max=0.05"):
        assert f"--set model.{setting} " in suggested
    # The largest frequency of `lin` is (32 / 2 - 1) π.
    limits = [50.51 / (math.pi * (32 - 2) * dt) for dt in (0.05, 0.01)]
    assert f"without the data   {limits[0]:.3g} ... {limits[1]:.3g}" in printed
    assert (
        "(n/2 - 1)π here, as poles are conjugate pairs; with nπ/2, as Yu et al. print it, the limits are 0.9375"
        in printed
    )


@pytest.mark.parametrize("state_size", [4, 16, 64, 256])
def test_a_flat_spectrum_is_no_reason_to_change_alpha(tmp_path, capsys, state_size):
    """The limits follow from the state size; the advice and the command do not."""
    draw = random.Random(1)
    path = tmp_path / "noise.csv"
    path.write_text("\n".join(["sequence", *("".join(draw.choices("ACGT", k=200)) for _ in range(40))]))
    assert run(path, "--state-size", state_size, "--output", tmp_path / "out") == 0
    printed, suggested = capsys.readouterr()
    assert "The spectrum is nearly flat (distance from white noise 0.0" in printed
    assert "no change of frequency_scale = 1 is recommended." in printed
    assert "alpha" not in suggested
    assert f"--set model.state_size={state_size} " in suggested
    alpha = json.loads((tmp_path / "out" / "spectrum.json").read_text(encoding="utf-8"))["alpha"]
    assert alpha["trial"] is None
    assert alpha["flatness"] < 0.1
    assert alpha["verdict"] in printed


def test_power_beyond_all_poles_is_worth_a_trial(waves, capsys):
    """Nine tenths of the power are at 4 samples a cycle; the fastest pole of 8 states turns by 0.3 radians a step."""
    options = ["--state-size", 8, "--init", "lin", "--time-step-min", 0.01, "--time-step-max", 0.03]
    words = ["--set", "data.seed=1", "--max-length", 512]
    assert run(waves, *options, *words) == 0
    printed, suggested = capsys.readouterr()
    # The power at a point of the grid is spread half way to its neighbours: 8/9 of that at 128 of 256.
    scale = (127.5 + 8 / 9) * math.pi / 256 / (3 * math.pi * 0.03)
    assert f"frequency_scale = {scale:.3g} reaches it and is worth a trial against 1 on validation data." in printed
    default, trial = (line for line in suggested.splitlines() if "hf-ssm train" in line)
    assert "alpha=" not in default
    assert f"--set model.alpha={scale:.3g} --set model.state_size=8 " in trial
    assert all("--max-length 512 --set data.seed=1 " in line for line in (default, trial))
    # The default model reaches these waves.
    assert run(waves) == 0
    printed, suggested = capsys.readouterr()
    assert "no change of frequency_scale = 1 is recommended." in printed
    assert "alpha=" not in suggested


def test_signals_have_the_spectrum_of_their_values(waves, tmp_path):
    output = tmp_path / "out"
    assert run(waves, "--output", output, "--split", "train") == 0
    found = json.loads((output / "spectrum.json").read_text(encoding="utf-8"))
    assert found["inputs"] == "power of their values"
    assert found["positions"] == 512 * found["rows"]
    power = torch.tensor(found["spectra"]["inputs"]["power"], dtype=torch.float64)
    # Without their means, 1/2 and 9/2, each at one point of a grid of 512.
    assert power[512 // 16].item() == pytest.approx(0.5, rel=1e-4)
    assert power[512 // 4].item() == pytest.approx(4.5, rel=1e-4)
    assert power.sum().item() == pytest.approx(5.0, rel=1e-4)


def test_special_tokens_are_no_symbols(tmp_path, capsys):
    """Unknown letters between others leave a gap."""
    path = tmp_path / "gaps.csv"
    path.write_text("\n".join(["dna", *["ACEAA", "CCAA", "AAAC", "CACA"] * 8]), encoding="utf-8")
    output = tmp_path / "out"
    fractions = ["--set", "data.validation_fraction=0", "--set", "data.test_fraction=0"]
    assert run(path, "--output", output, "--sequence-column", "dna", *fractions) == 0
    assert "--sequence-column dna" in capsys.readouterr().err
    found = json.loads((output / "spectrum.json").read_text(encoding="utf-8"))
    assert found["positions"] == 8 * (4 + 4 + 4 + 4)
    texts, total = ["ACEAA", "CCAA", "AAAC", "CACA"], 0.0
    for text in texts:
        for symbol in "AC":
            indicator = torch.tensor([float(letter == symbol) for letter in text]).view(1, -1, 1)
            mask = torch.tensor([[letter != "E" for letter in text]])
            total += power_spectrum(indicator, mask).sum().item() * int(mask.sum())
    assert sum(found["spectra"]["inputs"]["power"]) == pytest.approx(total / 16, rel=1e-4)


@pytest.fixture
def checkpoint(make_model, tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    make_model("S4", "ForSequenceClassification", init="lin", bidirectional=True).save_pretrained(folder)
    build_dna_tokenizer().save_pretrained(folder)
    return folder


def test_layers_of_a_checkpoint_have_the_spectra_of_what_they_read(checkpoint, genes, tmp_path, capsys):
    output = tmp_path / "out"
    fractions = ["--set", "data.validation_fraction=0", "--set", "data.test_fraction=0"]
    assert run(genes, "--model", checkpoint, "--output", output, *fractions) == 0
    assert "state size 8, init 'lin', zoh" in capsys.readouterr().out
    found = json.loads((output / "spectrum.json").read_text(encoding="utf-8"))["spectra"]
    assert list(found) == ["inputs", "layer 0", "layer 1", "all layers"]
    model = hf_ssm.S4ForSequenceClassification.from_pretrained(checkpoint).eval()
    read: list[tuple[torch.Tensor, torch.Tensor]] = []
    hook = lambda module, arguments: read.append((arguments[0], arguments[1].mask))  # noqa: E731
    model.model.layers[1].mixer.long_conv.register_forward_pre_hook(hook)
    texts = genes.read_text(encoding="utf-8").split()[1:]
    with torch.no_grad():
        model(**build_dna_tokenizer()(texts, padding=True, return_tensors="pt"))
    power = torch.tensor(found["layer 1"]["power"], dtype=torch.float64)
    expected = power_spectrum(*read[0], num_frequencies=len(power)).sum(0)
    torch.testing.assert_close(power, expected, rtol=1e-4, atol=1e-7)
    shares = [torch.tensor(found[f"layer {i}"]["power"], dtype=torch.float64) for i in range(2)]
    mean = sum(share / share.sum() for share in shares) / 2
    torch.testing.assert_close(
        torch.tensor(found["all layers"]["power"], dtype=torch.float64), mean, rtol=1e-4, atol=1e-9
    )


def test_a_checkpoint_of_signals_scales_them_as_in_training(make_model, waves, tmp_path):
    folder, output = tmp_path / "checkpoint", tmp_path / "out"
    make_model("S4", "ForSignalRegression", num_input_channels=2).save_pretrained(folder)
    SignalFeatureExtractor([5.0, -9.0], [0.5, 1.0]).save_pretrained(folder)
    assert run(waves, "--model", folder, "--output", output) == 0
    found = json.loads((output / "spectrum.json").read_text(encoding="utf-8"))["spectra"]
    assert sum(found["inputs"]["power"]) == pytest.approx(2 + 4.5, rel=1e-4)


def test_a_filter_without_a_rule_for_alpha_still_has_spectra(make_model, genes, tmp_path, capsys):
    folder = tmp_path / "checkpoint"
    make_model("Hyena", "ForMaskedLM", max_position_embeddings=128).save_pretrained(folder)
    build_dna_tokenizer().save_pretrained(folder)
    output = tmp_path / "out"
    assert run(genes, "--model", folder, "--output", output) == 0
    printed = capsys.readouterr().out
    assert "layer 1" in printed
    assert "no recommendation of frequency_scale: `filter_type`='implicit'" in printed
    assert "filter_type" in json.loads((output / "spectrum.json").read_text(encoding="utf-8"))["alpha"]


def test_without_matplotlib_the_numbers_are_written(genes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hf_ssm.plotting.can_plot", lambda: False)
    assert run(genes, "--output", tmp_path / "out") == 0
    assert "No spectrum.png: matplotlib is not installed" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["spectrum.json"]


def test_what_is_in_the_output_folder_is_safe(genes, tmp_path, monkeypatch, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "spectrum.json").write_text("mine")
    assert "is not empty" in error_of(capsys, genes, "--output", tmp_path / "out")
    (tmp_path / "out" / "spectrum.png").write_text("of the other numbers")
    monkeypatch.setattr("hf_ssm.plotting.can_plot", lambda: False)
    assert run(genes, "--output", tmp_path / "out", "--overwrite-output") == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["spectrum.json"]
    assert json.loads((tmp_path / "out" / "spectrum.json").read_text(encoding="utf-8"))["split"] == "train"


def test_the_error_names_the_fix(genes, checkpoint, tmp_path, capsys):
    constant = tmp_path / "constant.csv"
    constant.write_text("\n".join(["sequence", *["AAAA"] * 20]), encoding="utf-8")
    short = tmp_path / "short.csv"
    short.write_text("\n".join(["sequence", *"ACGT" * 5]), encoding="utf-8")
    unknown = tmp_path / "unknown.csv"
    unknown.write_text("\n".join(["sequence", *["foo bar", "bar foo"] * 10]), encoding="utf-8")
    fractions = ["--set", "data.validation_fraction=0", "--set", "data.test_fraction=0"]
    for arguments, message in (
        (["absent.csv"], "there is no such file"),
        ([genes, "--sequence-column", "sequenz"], "Perhaps sequence_column='sequence'"),
        ([genes, "--split", "trian"], "the data have the splits train, validation, test"),
        ([genes, "--rows", 0], "--rows must be positive"),
        ([genes, "--svg"], "--svg needs --output DIR"),
        ([genes, "--tokenizer", "dan"], "did you mean 'dna'"),
        ([genes, "--set", "data.max_lenght=3"], "did you mean 'max_length'"),
        ([genes, "--set", "model.init=lin"], "settings of the section data only"),
        ([genes, "--init", "hippo"], "`init` must be one of"),
        ([genes, "--model", checkpoint, "--state-size", 4], "--state-size cannot be combined with --model"),
        ([genes, "--model", tmp_path / "constant.csv"], "is a file: give the folder of a checkpoint"),
        ([constant, *fractions], "has no power at frequencies other than 0: each sequence is constant"),
        ([short, *fractions], "or one position long"),
        ([unknown, "--tokenizer", "listops", *fractions], "special tokens only"),
    ):
        assert message in error_of(capsys, *arguments)


@pytest.mark.slow
def test_real_promoters_have_the_period_of_three(shared_data, capsys):
    source = shared_data / "human_nontata_promoters_official_test.csv.gz"
    assert run(source, "--rows", 512) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("inputs"))
    assert float(line.split()[4]) == pytest.approx(1 / 3, abs=2 / 512)
