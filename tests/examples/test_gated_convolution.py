"""The networks of Section 3: initialisation, rates, and runs that are continued."""

import math
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn


def test_unit_scale_of_every_linear_map(script: ModuleType) -> None:
    torch.manual_seed(0)
    args = script.parse([])
    inputs = torch.rand(256, args.length, 2)
    model = script.build_model(args, 3, inputs)
    outputs: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, __, out, name=name: outputs.update({name: out.detach()}))
    model(input_values=inputs)
    assert len(outputs) == 1 + 3 * (1 + args.depth) + 1
    for name, output in outputs.items():
        over_positions = tuple(range(output.dim() - 1))
        expected = 0.1 if name == "classifier" else 1
        assert output.std(over_positions).mean().item() == pytest.approx(expected, rel=1e-3), name
        if not name.endswith(("in_proj", "input_projection")):
            torch.testing.assert_close(output.mean(over_positions), torch.zeros(output.shape[-1]), rtol=0, atol=1e-3)
    args.unit_scale = False
    assert script.build_model(args, 3, inputs)(input_values=inputs).logits.std() < 0.01


def test_rates(script: ModuleType) -> None:
    args = script.parse(["--decay", "1", "--smoothness", "1"])
    errors = {n: [5 * n**-0.6 * math.exp(step) for step in (-0.1, 0.1)] for n in (100, 1000, 10000)}
    found = script.rates(args, errors)
    assert found["slope"] == pytest.approx(-0.6)
    # Residuals of ±0.1 at six points, three values of log n.
    spread = 4 * math.log(10) ** 2
    assert found["standard error"] == pytest.approx(math.sqrt(0.06 / 4 / spread))
    assert (found["mixed"], found["anisotropic"]) == pytest.approx((-2 / 3, -4 / 7))


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_runs_are_continued(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    words = ["--tiny", "--inclusive", "--output", str(tmp_path / "results.json")]
    targets = ["smooth", "piecewise smooth by similarity"]
    script.main([*words, "--targets", targets[0]])
    script.main([*words, "--targets", *targets])
    printed = capsys.readouterr().out
    for target in targets:
        assert printed.count(f"\n{target}, n = 64, seed 0: ") == 1
    assert "| smooth, n = 64 | 1 |" in printed and "mixed -0.667" in printed
    monkeypatch.setattr(script, "run", lambda *_: pytest.fail("a finished run is repeated"))
    script.main([*words, "--targets", *targets])
    with pytest.raises(SystemExit, match="holds runs with other settings"):
        script.main([*words, "--targets", "smooth", "--noise", "1"])
