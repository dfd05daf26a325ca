"""A published suite, loaded from a local Hub by its id."""

import pytest

from hf_ssm.suites import SUITES
from hf_ssm.suites.data import load_task


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache" / "downloads")


def rows(count):
    lines = [f"{'ACGT'[row % 4]}{'ACGT'[row // 4 % 4]}{'ACGT'[row // 16 % 4]}nT,{row % 2}" for row in range(count)]
    return "\n".join(["sequence,label", *lines, ""]).encode()


def test_configuration_of_the_hub(hub, tmp_path):
    files = {
        f"{config}/{split}.csv": rows(n)
        for config, n in (("emp_H3", 30), ("emp_H4", 20))
        for split in ("train", "dev", "test")
    }
    card = "---\nconfigs:\n"
    for config in ("emp_H3", "emp_H4"):
        card += f"- config_name: {config}\n  data_files:\n"
        card += "".join(f"  - split: {split}\n    path: {config}/{split}.csv\n" for split in ("train", "dev", "test"))
    hub.create("leannmlindsey/GUE", {**files, "README.md": f"{card}---\n".encode()}, type="dataset")
    data = load_task(SUITES["gue"].choose(["emp_H4"]).tasks[0], tmp_path / "data")
    assert data.rows == {"train": 20, "validation": 20, "test": 20}
    assert data.splits()["test"][0][0] == "AAANT"
