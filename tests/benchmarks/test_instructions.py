"""Instruction counts: parsing, differences, and the messages without valgrind."""


def test_the_count_of_an_empty_call_is_subtracted(script, tmp_path) -> None:
    for number, (name, total) in enumerate([("nothing", 100), ("forward|ours|32", 1100), ("first", 900)]):
        text = f"version: 1\ndesc: Trigger: Client Request: {name}\nevents: Ir\n\nfn=(1)\n1 5\n\ntotals: {total}\n"
        (tmp_path / f"counts.{number}").write_text(text)
    (tmp_path / "counts").write_text("desc: Trigger: Program termination\ntotals: 0\n")
    assert script.read_counts(tmp_path) == {"forward|ours|32": 1000}


def test_instructions_per_state_are_the_difference_of_two_lengths(script) -> None:
    counts = {"forward|b|16": 2000, "forward|b|32": 6000, "forward|a|16": 500, "forward|a|32": 900}
    rows = script.summarize(counts, {"batch": 1, "channels": 5, "states": 5}, (16, 32))
    assert rows == [
        {"what": "forward", "contender": "a", "per_call": 900, "per_state": 1.0},
        {"what": "forward", "contender": "b", "per_call": 6000, "per_state": 10.0},
    ]
