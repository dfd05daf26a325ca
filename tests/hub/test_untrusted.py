"""Folders that somebody else has written: what a push leaves out, and what `verify` refuses to read."""

import json
import logging
import os
import pickle
import resource
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_ssm.cli import main
from hf_ssm.hub import committing, pushing, save_space
from hf_ssm.hub.card import update_section
from hf_ssm.hub.verifying import check_folder, verify

NAME = "ada/motifs"
TOKEN = "hf_" + "aB3" * 12
UNSAFE = ("evil.pkl", "evil.PKL", "x.pyc", "notes.PYC", "a.so", "data.npz", "more.zip", "sub/pytorch_model.bin", "a.sh")


def uploaded(hub: Any) -> set[str]:
    return set(hub.repo(NAME).files()) - {".gitattributes"}


class TestAllowList:
    def test_other_suffixes_are_left_out_and_named(self, hub, folder, proofs, caplog):
        names = {path.name for path in folder.iterdir()}
        payload = pickle.dumps(print)
        for name in (*UNSAFE, "pytorch_model.bin", "PYTORCH_MODEL.BIN", "pytorch_model.bin.index.json"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(payload)
        (folder / "pytorch_model.bin.index.json").write_text("{}")
        caplog.set_level(logging.WARNING)
        pushing.push_folder(folder, NAME)
        assert uploaded(hub) == names
        (line,) = [record.getMessage() for record in caplog.records if "not uploaded" in record.getMessage()]
        assert "\n" not in line and "evil.PKL" in line
        assert "pytorch_model.bin (pickled weights beside safetensors)" in line

    def test_suffixes_are_compared_without_case(self, hub, folder, proofs):
        for name in ("A.JSON", "Notes.MD", "LICENSE", "curve.PNG", "probe/curve.png", "merges.txt"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("{}")
        pushing.push_folder(folder, NAME)
        assert uploaded(hub) >= {"A.JSON", "Notes.MD", "LICENSE", "curve.PNG", "probe/curve.png", "merges.txt"}

    @pytest.mark.parametrize("name", ["evil.PY", "sub/evil.Py"])
    def test_code_in_capitals_is_foreign_code(self, hub, folder, proofs, name):
        """A file system that ignores case imports it."""
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("import os\n")
        with pytest.raises(ValueError, match=f"{name}: is foreign code"):
            pushing.push_folder(folder, NAME)
        assert name in [problem.path for problem in verify(folder).problems]
        assert hub.requests == []

    def test_pickled_weights_without_safetensors(self, tmp_path):
        (tmp_path / "pytorch_model.bin").write_bytes(b"x")
        assert committing.folder_files(tmp_path).keys() == {"pytorch_model.bin"}
        (tmp_path / "model.safetensors").write_bytes(b"x")
        assert committing.folder_files(tmp_path).keys() == {"model.safetensors"}

    def test_space(self, folder, tmp_path):
        pytest.importorskip("gradio")
        for name in (*UNSAFE, "pytorch_model.bin"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"x")
        space = save_space(folder, tmp_path / "space")
        names = {path.relative_to(space).as_posix() for path in space.rglob("*") if path.is_file()}
        model = {name for name in names if name.startswith("model/")}
        assert model and not {Path(name).suffix.lower() for name in model} - {".json", ".md", ".safetensors"}
        assert {Path(name).suffix for name in names - model} <= {".css", ".md", ".py", ".txt"}

    @pytest.mark.parametrize("name", ["a\nb.json", "a\x1b[2Jb.json", "a\\b.json", os.fsdecode(b"\xff.json")])
    def test_names_that_a_repository_cannot_have(self, folder, name):
        (folder / name).write_text("{}")
        with pytest.raises(ValueError, match="not upload") as caught:
            committing.folder_files(folder)
        assert str(caught.value).isprintable()

    def test_irregular_files_are_refused(self, folder):
        os.mkfifo(folder / "pipe.json")
        (folder / "gone.json").symlink_to("nowhere")
        with pytest.raises(
            ValueError, match=r"gone\.json \(a broken symbolic link.*pipe\.json \(not a regular.*Move them"
        ):
            committing.folder_files(folder)


def _metadata(path: Path, text: str) -> None:
    save_file(load_file(path), path, {"format": "pt", "note": text})


class TestSecrets:
    @pytest.mark.parametrize("name", ["model.safetensors", "onnx/other.SAFETENSORS"])
    def test_metadata_of_safetensors(self, hub, folder, proofs, name):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((folder / "model.safetensors").read_bytes())
        _metadata(folder / name, f"trained by {TOKEN}")
        with pytest.raises(ValueError, match=f"found in {name}: remove it") as caught:
            pushing.push_folder(folder, NAME)
        assert TOKEN not in str(caught.value) and hub.requests == []

    def test_numbers_of_safetensors_are_not_searched(self, folder):
        (folder / "model.safetensors").unlink()
        numbers = torch.tensor(list(TOKEN.encode()), dtype=torch.uint8)
        save_file({"a": numbers}, folder / "model.safetensors")
        committing.check_secrets(committing.folder_files(folder, also=["*.py"]))

    @pytest.mark.parametrize("secret", [TOKEN, "sk-proj-" + "aB3" * 12, "the-token-of-the-push"])
    @pytest.mark.parametrize("place", ["{}.txt", "{}/notes.txt", "notes of {}.md"])
    def test_names_of_files(self, hub, folder, proofs, secret, place):
        path = folder / place.format(secret)
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
        with pytest.raises(ValueError, match="access token or private key found in the name") as caught:
            pushing.push_folder(folder, NAME, token="the-token-of-the-push")
        assert secret not in str(caught.value) and "[token]" in str(caught.value)
        assert hub.requests == []

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
    @pytest.mark.parametrize("secret", [TOKEN, "AKIA" + "ABCDEFGH" * 2, "the-token-of-the-push"])
    def test_wide_characters(self, hub, folder, proofs, encoding, secret):
        (folder / "notes.txt").write_bytes(f"Größe: {secret} “\n".encode(encoding))
        with pytest.raises(ValueError, match=r"found in notes\.txt"):
            pushing.push_folder(folder, NAME, token="the-token-of-the-push")
        assert hub.requests == []

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
    def test_end_of_a_large_text(self, folder, encoding, monkeypatch):
        monkeypatch.setattr(committing, "_PIECE", 10_000)
        (folder / "notes.txt").write_bytes(("0123456789\n" * 3000 + TOKEN).encode(encoding))
        with pytest.raises(ValueError, match=r"found in notes\.txt"):
            committing.check_secrets(committing.folder_files(folder, also=["*.py"]))


def _outside(folder: Path) -> Path:
    path = folder.parent / "outside.json"
    path.write_text('{"a": 1}')
    return path


def _replace(folder: Path, name: str, target: str | Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


def _fifo(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def _socket(folder: Path, name: str) -> None:
    # The path of a socket has at most 107 bytes.
    here = Path.cwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
    finally:
        os.chdir(here)


IRREGULAR = {
    "link to a device": (lambda folder: _replace(folder, "other.json", "/dev/zero"), "other.json", "link out"),
    "code from a device": (lambda folder: _replace(folder, "x.py", "/dev/zero"), "x.py", "link out"),
    "results from a device": (
        lambda folder: _replace(folder, ".eval_results/a.yaml", "/dev/zero"),
        ".eval_results/a.yaml",
        "link out",
    ),
    "link out": (lambda folder: _replace(folder, "other.json", _outside(folder)), "other.json", "link out"),
    "configuration out": (lambda folder: _replace(folder, "config.json", "/dev/zero"), "config.json", "link out"),
    "weights out": (
        lambda folder: _replace(folder, "model.safetensors", _outside(folder)),
        "model.safetensors",
        "link out",
    ),
    "folder out": (lambda folder: _replace(folder, "up", ".."), "up", "link out"),
    "broken link": (lambda folder: _replace(folder, "a.json", "nowhere.json"), "a.json", "broken"),
    "loop": (lambda folder: _replace(folder, "a.json", "a.json"), "a.json", "broken"),
    "FIFO": (lambda folder: _fifo(folder, "other.json"), "other.json", "regular"),
    "FIFO as code": (lambda folder: _fifo(folder, "sub/x.py"), "sub/x.py", "regular"),
    "FIFO as configuration": (lambda folder: _fifo(folder, "config.json"), "config.json", "regular"),
    "FIFO as results": (lambda folder: _fifo(folder, ".eval_results/a.yaml"), ".eval_results/a.yaml", "regular"),
    "socket": (lambda folder: _socket(folder, "other.json"), "other.json", "regular"),
}


@pytest.fixture
def bounded() -> Iterator[None]:
    """A reader of an endless file fails for lack of memory, one of a FIFO is interrupted."""

    def interrupt(*given: Any) -> None:
        pytest.fail("it waits for a file")

    allocated = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    before = signal.signal(signal.SIGALRM, interrupt)
    resource.setrlimit(resource.RLIMIT_DATA, (allocated + (1 << 30), hard))
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", IRREGULAR)
def test_verify_reads_no_irregular_file(kind, folder, bounded):
    spoil, name, why = IRREGULAR[kind]
    spoil(folder)
    (problem,) = verify(folder).problems
    assert problem.path == name and why in problem.what


def test_a_push_refuses_an_irregular_file(hub, folder, proofs):
    _replace(folder, "config.json", _outside(folder))
    with pytest.raises(ValueError, match=r"config\.json: is a symbolic link out of the folder"):
        pushing.push_folder(folder, NAME)
    assert hub.requests == []


class TestLinksOfTheCache:
    def snapshot(self, folder: Path, cache: Path, shared: bool = False) -> Path:
        """The files of a folder as `huggingface_hub` stores a repository; `shared`: in the store of all."""
        repository = cache / "models--ada--motifs"
        snapshot, blobs = repository / "snapshots" / ("0" * 40), repository / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        for number, path in enumerate(sorted(folder.iterdir())):
            blob = blobs / f"{number:040}"
            if shared:
                store = cache / "blobs" / "00"
                store.mkdir(parents=True, exist_ok=True)
                path.rename(store / f"{number:064}")
                blob.symlink_to(Path("../../blobs/00") / f"{number:064}")
            else:
                path.rename(blob)
            (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
        return snapshot

    @pytest.mark.parametrize("shared", [False, True])
    def test_blobs_are_inside(self, folder, tmp_path, shared):
        names = {path.name for path in folder.iterdir()}
        snapshot = self.snapshot(folder, tmp_path / "cache", shared)
        assert verify(snapshot).problems == () and verify(snapshot).checked == len(names)
        assert committing.folder_files(snapshot, also=["*.py"]).keys() == names

    def test_other_files_of_the_cache_are_outside(self, folder, tmp_path):
        snapshot = self.snapshot(folder, tmp_path / "cache")
        other = tmp_path / "cache" / "models--eve--x" / "blobs"
        other.mkdir(parents=True)
        (other / "a").write_text("{}")
        (snapshot / "other.json").symlink_to(other / "a")
        assert [problem.path for problem in check_folder(snapshot)] == ["other.json"]

    def test_blobs_may_not_be_a_link(self, folder, tmp_path):
        snapshot = self.snapshot(folder, tmp_path / "cache")
        blobs = snapshot.parents[1] / "blobs"
        blobs.rename(tmp_path / "elsewhere")
        blobs.symlink_to(tmp_path / "elsewhere")
        assert all("link out" in problem.what for problem in check_folder(snapshot))
        assert len(check_folder(snapshot)) == len(list(snapshot.iterdir()))

    def test_links_inside_a_folder(self, folder):
        (folder / "copy.md").symlink_to("README.md")
        (folder / "here").symlink_to(".")
        assert verify(folder).problems == ()


@pytest.mark.parametrize("spoil", [_fifo, lambda folder, name: _replace(folder, name, "/dev/zero")])
def test_a_report_reads_no_irregular_card(folder, bounded, spoil):
    spoil(folder, "README.md")
    with pytest.raises(ValueError, match=r"README\.md' is (a symbolic link out of the folder|not a regular file)"):
        update_section(folder, "# Report")


def _sparse(path: Path, size: int) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def _header(path: Path, size: int) -> None:
    """A safetensors file with a valid header of this many bytes."""
    text = b"{}".ljust(size)
    path.write_bytes(struct.pack("<Q", len(text)) + text)


class TestSizes:
    @pytest.mark.parametrize("name", ["config.json", "generation_config.json", "OTHER.JSON", "tokenizer.json"])
    def test_large_json(self, folder, name):
        _sparse(folder / name, 50 << 20)
        (problem,) = check_folder(folder)
        assert problem.path == name and "bytes" in problem.what

    def test_many_names_of_one_file(self, folder):
        """Links, each of which would be read."""
        (folder / "a.json").write_text("[" + "0," * (1 << 19) + "0]")
        for number in range(40):
            (folder / f"b{number}.json").symlink_to("a.json")
        assert any("bytes" in problem.what for problem in check_folder(folder))

    def test_a_tokenizer_may_be_large(self, folder):
        (folder / "tokenizer.json").write_text(json.dumps({"a": "x" * (33 << 20)}))
        assert check_folder(folder) == []

    def test_large_results(self, folder):
        _sparse(folder / ".eval_results" / "a.yaml", 1 << 20)
        (problem,) = check_folder(folder)
        assert problem.path == ".eval_results/a.yaml" and "bytes" in problem.what

    def test_aliases_of_results(self, folder, bounded):
        """Ten of them at each of thirty levels."""
        lines = ["a0: &a0 x", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30))]
        (folder / ".eval_results").mkdir()
        (folder / ".eval_results" / "a.yaml").write_text("\n".join(lines))
        (problem,) = check_folder(folder)
        assert problem.path == ".eval_results/a.yaml" and "alias" in problem.what

    def test_brackets_of_results(self, folder, bounded):
        (folder / ".eval_results").mkdir()
        (folder / ".eval_results" / "a.yaml").write_text("[" * 10_000)
        (problem,) = check_folder(folder)
        assert problem.path == ".eval_results/a.yaml" and "more than 50 levels" in problem.what

    def test_brackets_of_a_card(self, hub, folder, proofs, bounded):
        (folder / "README.md").write_text(f"---\ntags: {'[' * 10_000}\n---\n")
        with pytest.raises(ValueError, match=r"README\.md has invalid metadata: lists .* more than 50 levels"):
            pushing.push_folder(folder, NAME)
        assert hub.requests == []

    def test_header_of_weights(self, folder):
        _header(folder / "model.safetensors", 50 << 20)
        (problem,) = check_folder(folder)
        assert problem.path == "model.safetensors" and "header" in problem.what

    def test_weights_in_capitals(self, folder):
        (folder / "other.SAFETENSORS").write_bytes(b"x" * 100)
        (problem,) = check_folder(folder)
        assert problem.path == "other.SAFETENSORS" and "is damaged" in problem.what

    def test_large_code(self, folder, bounded):
        _sparse(folder / "x.py", 1 << 40)
        (problem,) = check_folder(folder)
        assert problem.path == "x.py" and "foreign code" in problem.what

    def test_deep_json(self, folder):
        for name in ("config.json", "other.json"):
            (folder / name).write_text('{"a":' * 100_000)
        assert {problem.path for problem in check_folder(folder)} >= {"config.json", "other.json"}

    def test_entries_without_end(self, folder, monkeypatch):
        monkeypatch.setattr("hf_ssm.hub.scanning.MOST_ENTRIES", 20)
        for number in range(20):
            (folder / f"{number}.txt").write_text("")
        (problem,) = check_folder(folder)
        assert "more than 20 entries" in problem.what
        with pytest.raises(ValueError, match="more than 20 entries"):
            committing.folder_files(folder)


@pytest.mark.parametrize("name", ["a\nb: fine.py", "a\x1b[2Jb.py", os.fsdecode(b"\xff.py"), "a\u202eyp.py"])
def test_a_line_per_problem(folder, capsys, name):
    """No name ends a line, moves the cursor or fails to be printed."""
    (folder / name).write_text("x")
    with pytest.raises(SystemExit):
        main(["verify", str(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.isprintable() for line in lines) and "is foreign code" in lines[0]


def test_descriptions_are_short(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "x" * 100_000 + ".Class"}}))
    assert all(len(str(problem)) < 2000 for problem in check_folder(folder))
