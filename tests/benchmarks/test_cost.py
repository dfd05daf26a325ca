"""The benchmark of costs: tiny run, and its numbers against a count."""

import hf_ssm


def test_tiny(script, capsys) -> None:
    script.main(["--tiny"])
    _, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert len(rows) == 3 * len(script.FAMILIES)
    assert [float(row.split("|")[3]) > 0 for row in rows] == [True] * len(rows)
    assert [row.split("|")[3].strip() for row in rows if "| S4D | CPU time" in row] == ["1"]


def test_parameters_of_a_layer(script) -> None:
    model = hf_ssm.SelectiveSSMModel(hf_ssm.SelectiveSSMConfig(hidden_size=32, num_hidden_layers=1))
    expected = sum(parameter.numel() for parameter in model.layers[0].parameters()) / 32**2
    assert script.parameters_of_layer("Mamba", 32, 16) == expected


def test_what_a_layer_keeps_is_counted_once_and_without_weights(script) -> None:
    # A linear S4D layer keeps a few arrays of the size of its input, not dozens.
    assert 3 < script.kept_of_layer("S4D", 64, 512) < 40
