"""The benchmark of the regulariser: tiny run, training step and ratios."""

import re

import torch


def test_tiny(script, capsys) -> None:
    script.main(["--tiny"])
    _, _, header, rule, *rows = capsys.readouterr().out.strip().splitlines()
    assert header == "| model | length | wall time | CPU time | repetitions |"
    assert rule == "|---|---|---|---|---|"
    cell = r"\d+\.\d{3} \(\d+\.\d{3} to \d+\.\d{3}\)"
    names = ["S4D", "Hyena", "Hyena, S4D filter"]
    for row, (length, name) in zip(rows, [(length, name) for length in (16, 32) for name in names], strict=True):
        assert re.fullmatch(rf"\| {name} \| {length} \| {cell} \| {cell} \| 4 \|", row)


def test_a_step_adds_tau_to_the_loss_if_it_has_a_weight(script, make_model) -> None:
    """Gradients are cleared after the step."""
    batch = {"input_ids": torch.randint(0, 12, (4, 9)), "labels": torch.randint(0, 2, (4,))}
    moved = []
    for weight in (0.0, 1e-4, 1e6):
        torch.manual_seed(0)
        model = make_model("S4", "ForSequenceClassification").train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        taken = script.step(model, optimizer, batch, weight)
        assert all(seconds > 0 for seconds in taken)
        assert all(parameter.grad is None for parameter in model.parameters())
        moved.append(model.model.layers[0].mixer.long_conv.filter.C.detach().clone())
    assert not torch.equal(moved[0], moved[1])
    assert (moved[2] - moved[0]).abs().max() > 1
