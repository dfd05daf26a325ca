"""Tables that are written in parts: continuation, other settings, locks, formats."""

import json
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from hf_ssm.inference.table_job import Parts, TableJob, file_facts
from hf_ssm.utils import files

SETTINGS = {"window": 8, "layers": (1, 2)}


def table(items):
    """Each item has as many rows as its value."""
    values = [item for item in items for _ in range(item)]
    return pa.table({"item": values, "half": [value / 2 for value in values], "text": [f"a,\t{v}" for v in values]})


def write(output, items=range(1, 8), function=table, settings=SETTINGS, **options):
    TableJob(lambda: items, function, most_items=2).write(output, settings, **options)


class Interrupted(BaseException):
    pass


class FailsAt:
    """The function `table`, interrupted at one of its calls."""

    def __init__(self, call):
        self.left = call

    def __call__(self, items):
        if not self.left:
            raise Interrupted
        self.left -= 1
        return table(items)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_formats(tmp_path, suffix):
    output = tmp_path / "new" / f"o{suffix}"
    write(output)
    if suffix == ".parquet":
        found = pa.parquet.read_table(output).to_pandas()
    else:
        found = pd.read_csv(output, sep="," if suffix == ".csv" else "\t")
    pd.testing.assert_frame_equal(found, table(range(1, 8)).to_pandas(), check_dtype=False)
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    assert b"\r" not in output.read_bytes() or suffix == ".parquet"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_interrupted_after_each_part(tmp_path, suffix):
    whole, output = tmp_path / f"whole{suffix}", tmp_path / f"o{suffix}"
    write(whole)
    computed = []
    for call in range(4):
        with pytest.raises(Interrupted):
            write(output, function=FailsAt(call % 2))
        assert not output.exists()

    def counted(items):
        computed.append(items)
        return table(items)

    write(output, function=counted)
    # The calls above stopped before the parts 0, 1, 1 and 2.
    assert computed == [[5, 6], [7]]
    assert output.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([whole.name, output.name])


def test_interrupted_while_the_output_is_written(tmp_path):
    def broken(tables, path):
        path.write_text("half a ta")
        raise Interrupted

    output = tmp_path / "o.csv"
    with pytest.raises(Interrupted):
        write(output, join=broken)
    assert not output.exists()
    write(output, function=lambda items: pytest.fail("all parts are there"))
    assert len(pd.read_csv(output)) == sum(range(1, 8))


def interrupt(*arguments, **options):
    raise Interrupted


def test_a_part_that_was_being_written_is_computed_again(tmp_path, monkeypatch):
    output = tmp_path / "o.csv"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(files.os, "replace", interrupt)
        write(output)
    (tmp_path / ".o.csv.parts" / ".000000.tmp.arrow").write_text("half")
    write(output)
    assert len(pd.read_csv(output)) == sum(range(1, 8))
    assert [path.name for path in tmp_path.iterdir()] == ["o.csv"]


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0damage"])
def test_a_damaged_part_is_named(tmp_path, content):
    output = tmp_path / "o.csv"
    with pytest.raises(Interrupted):
        write(output, function=FailsAt(2))
    part = tmp_path / ".o.csv.parts" / "000001.arrow"
    part.write_bytes(content)
    with pytest.raises(ValueError, match=r"000001\.arrow' is damaged \(.*\): delete this file and repeat the command"):
        write(output)
    part.unlink()
    write(output)
    assert len(pd.read_csv(output)) == sum(range(1, 8))


def test_a_folder_that_takes_no_files_is_named():
    with pytest.raises(OSError, match="no file can be made in the folder '/proc': choose another folder"):
        write(Path("/proc/o.csv"))


def test_other_settings_are_refused(tmp_path):
    output = tmp_path / "o.csv"
    with pytest.raises(Interrupted):
        write(output, function=FailsAt(1))
    with pytest.raises(ValueError, match=r"parts of a run with other settings \(window\)"):
        write(output, settings={**SETTINGS, "window": 9})
    write(output, settings={**SETTINGS, "window": 9}, overwrite=True)
    assert len(pd.read_csv(output)) == sum(range(1, 8))


def test_an_existing_output_is_refused(tmp_path):
    output = tmp_path / "o.csv"
    output.write_text("mine")
    with pytest.raises(ValueError, match=r"o\.csv' exists: choose another file"):
        write(output)
    assert output.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["o.csv"]
    write(output, overwrite=True)
    assert len(pd.read_csv(output)) == sum(range(1, 8))


def test_an_earlier_output_stays_until_it_is_replaced(tmp_path):
    output, parts = tmp_path / "o.csv", tmp_path / ".o.csv.parts"
    output.write_text("mine")
    for call in range(2):
        with pytest.raises(Interrupted):
            write(output, function=FailsAt(call), overwrite=True)
        assert output.read_text() == "mine"
    # Without the option, too, the interrupted command continues, and the earlier output is not taken for its result.
    with pytest.raises(Interrupted):
        write(output, function=FailsAt(1))
    assert output.read_text() == "mine" and len(list(parts.glob("*.arrow"))) == 2
    write(output)
    assert len(pd.read_csv(output)) == sum(range(1, 8))
    assert [path.name for path in tmp_path.iterdir()] == ["o.csv"]


def test_one_process_writes_an_output(tmp_path):
    output = tmp_path / "o.csv"
    with (
        Parts(output, SETTINGS),
        pytest.raises(BlockingIOError, match="being written by another process"),
        Parts(output, SETTINGS),
    ):
        pass
    write(output)
    assert output.exists()


@pytest.mark.parametrize(
    ("name", "items", "message"),
    [
        ("o.xlsx", range(3), r"o\.xlsx'.*\.csv, \.tsv, \.parquet"),
        ("folder.csv", range(3), "is a folder"),
        ("o.csv", [], "the input holds no sequence"),
    ],
)
def test_wrong_arguments(tmp_path, name, items, message):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=message):
        write(tmp_path / name, items)


def test_tables_in_memory():
    found = TableJob(lambda: iter(range(1, 6)), table, most_items=2).dataset()
    assert found["item"] == [item for item in range(1, 6) for _ in range(item)]
    with pytest.raises(ValueError, match="`inputs` is empty"):
        TableJob(lambda: [], table).dataset()


def test_a_changed_file_has_other_facts(tmp_path):
    path = tmp_path / "a.fa"
    path.write_text(">a\nACGT\n")
    before = file_facts(path)
    assert json.loads(json.dumps(before)) == before == file_facts(path)
    path.write_text(">a\nACGTA\n")
    assert file_facts(path) != before


@pytest.mark.parametrize("overwrite", [False, True])
def test_another_output_is_not_taken_for_that_of_the_parts(tmp_path, overwrite):
    """A file that appeared, or the earlier output of an interrupted replacement with another time of change."""
    output = tmp_path / "o.csv"
    if overwrite:
        output.write_text("earlier")
    with pytest.raises(Interrupted):
        write(output, function=FailsAt(2), overwrite=overwrite)
    output.write_text("other")
    os.utime(output, (1, 1))
    with pytest.raises(
        ValueError, match="is not the output of the interrupted command: choose another file, or replace"
    ):
        write(output)
    assert output.read_text() == "other"
    write(output, overwrite=True)
    assert len(pd.read_csv(output)) == sum(range(1, 8))
