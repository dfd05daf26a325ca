"""Random access to reference genomes: compression, indices, and malformed files."""

import gzip
import os
import sys
from pathlib import Path

import pytest

from hf_ssm.data import genome as module
from hf_ssm.data.fasta import read_fasta
from hf_ssm.data.genome import Genome

pysam = pytest.importorskip("pysam")

TEXT = ">chr1 first\nACGTACGTAC\nGTnnNRacgt\nACG\n>chr2\r\nTTTT\r\n"


@pytest.fixture
def reference(tmp_path):
    """`reference(text, name)`: the path of a file, bgzipped for ".bgz", gzipped for ".gz"."""

    def write(text=TEXT, name="g.fa"):
        path = tmp_path / "ref" / name
        path.parent.mkdir(exist_ok=True)
        content = text.encode()
        if name.endswith(".bgz"):
            with pysam.BGZFile(str(path), "wb") as file:
                file.write(content)
        else:
            path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


@pytest.mark.parametrize("name", ["g.fa", "g.fa.bgz", "g.fa.gz"])
def test_intervals_of_each_compression(reference, name, capfd):
    path = reference(name=name)
    before = os.listdir(path.parent)
    with Genome(path) as genome:
        folder = Path(genome._folder.name)
        assert genome.contigs == {"chr1": 23, "chr2": 4}
        assert "chr1" in genome and "1" not in genome and genome.length("chr2") == 4
        assert genome.fetch("chr1", 8, 21) == "ACGTnnNRacgtA"
        assert genome.fetch("chr2", 0, 4) == "TTTT"
        assert genome.fetch("chr1", 22, 23) == "G"
        assert folder.is_dir()
    # Neither the folder of the file nor that for temporary files keeps anything.
    assert os.listdir(path.parent) == before and not folder.exists()
    assert capfd.readouterr() == ("", "")


def test_a_current_index_is_used_and_an_old_one_is_not(reference, monkeypatch):
    path = reference()
    pysam.faidx(str(path))
    with monkeypatch.context() as patch:
        patch.setattr(module, "_check_records", lambda *arguments: pytest.fail("there is an index"))
        with Genome(path) as genome:
            assert genome.fetch("chr2", 0, 4) == "TTTT"
    path.write_text(">new\nACGT\n")
    os.utime(f"{path}.fai", (1, 1))
    index = Path(f"{path}.fai").read_bytes()
    with Genome(path) as genome:
        assert genome.contigs == {"new": 4}
    assert Path(f"{path}.fai").read_bytes() == index


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        (("chr1", 0, 24), "chr1:0-24 is not an interval of g.fa: the contig 'chr1' has 23 letters"),
        (("chr1", -1, 3), "chr1:-1-3"),
        (("chr3", 0, 1), r"g.fa has no contig 'chr3' \(did you mean 'chr[12]'\?\)"),
        (("scaffold", 0, 1), r"no contig 'scaffold'\."),
    ],
)
def test_intervals_outside_are_refused(reference, interval, message):
    with Genome(reference()) as genome:
        with pytest.raises(ValueError, match=message):
            genome.fetch(*interval)
        assert genome.fetch("chr1", 0, 23) == "ACGTACGTACGTnnNRacgtACG"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (">a\nACGT\n>a x\nGG\n", "line 3: the file has a second contig 'a'"),
        (">a\nACGT\nACGTAC\nAC\n", "line 3: the lines of the contig 'a' .*faidx"),
        ("name,sequence\nx,ACGT\n", "line 1: 'name,sequence' is not a header"),
        (">a\nACGT\n>b\n\n", "the contig 'b' has no sequence"),
        (">\nACGT\n", "line 1: the header has no name"),
        ("", "has no FASTA record"),
    ],
)
@pytest.mark.parametrize("name", ["g.fa", "g.fa.bgz", "g.fa.gz"])
def test_malformed_files_are_refused(reference, text, message, name, capfd):
    with pytest.raises(ValueError, match=message) as error:
        Genome(reference(text, name))
    assert name in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["g.fa.bgz", "g.fa.gz"])
@pytest.mark.parametrize("lost", [4, 28, 60])
def test_truncated_files_are_refused(reference, name, lost, capfd):
    path = reference(">a\n" + "ACGTTGCAGA\n" * 50, name)
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(ValueError, match=r"truncated|end-of-stream"):
        Genome(path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["g.fa", "g.fa.bgz"])
@pytest.mark.parametrize(
    "text",
    [
        ">chr1\nACGT\n",
        TEXT.replace("chr2", "chr3"),
        TEXT.replace("ACGTACGTAC\nGTnnNRacgt\nACG", "ACGTACGT\nACGTnnNR\nacgtACG"),
        TEXT.replace("GTnnNRacgt\nACG", "GTnnNRacgt\nACGT"),
        TEXT + ">chr3\nACGT\n",
        TEXT.replace(">chr2", ">other\nAC\n>chr2"),
    ],
)
def test_an_index_of_another_file_is_not_used(reference, capfd, name, text):
    """The copy of a file may be older than the index of another one, which stood there before."""
    path = reference(name=name)
    pysam.faidx(str(path))
    pysam.faidx(str(other := reference(text, "other.fa")))
    index = Path(f"{path}.fai").read_bytes()
    times = os.stat(path).st_mtime
    reference(text, name)
    os.utime(path, (times, times))
    with Genome(path) as genome, Genome(other) as expected:
        assert genome.contigs == expected.contigs
        for contig, length in genome.contigs.items():
            assert genome.fetch(contig, 0, length) == expected.fetch(contig, 0, length)
    assert Path(f"{path}.fai").read_bytes() == index and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["g.fa", "g.fa.bgz"])
def test_the_index_of_many_contigs_is_compared_at_some(reference, monkeypatch, name):
    monkeypatch.setattr(module, "_COMPARED", 3)
    path = reference("".join(f">c{n} x\n{'ACGTN' * (n + 1)}\n" for n in range(20)) + "\n", name)
    pysam.faidx(str(path))
    monkeypatch.setattr(module, "_check_records", lambda *arguments: pytest.fail("there is an index"))
    with Genome(path) as genome:
        assert len(genome.contigs) == 20 and genome.fetch("c19", 95, 100) == "ACGTN"


def test_spellings_of_contigs(reference):
    with Genome(reference(">1\nAC\n>chrX\nAC\n>MT\nAC\n>chr1\nAC\n")) as genome:
        names = {"1": "1", "chr1": "chr1", "X": "chrX", "chrM": "MT", "M": "MT", "chrMT": "MT", "2": None, "Y": None}
        assert {name: genome.contig(name) for name in names} == names
        note = module.changed_contigs(["1", "X", "chrM", "X", "2"], "a.bed", genome)
        assert note == "Names of contigs differ between a.bed and g.fa: X is chrX, chrM is MT."
        assert module.changed_contigs(["1", "2"], "a.bed", genome) == ""


def test_missing_file_and_missing_library(reference, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"g2\.fa"):
        Genome(reference().with_name("g2.fa"))
    monkeypatch.setitem(sys.modules, "pysam", None)
    with pytest.raises(ImportError, match=r"hf_ssm\[genomics\]"):
        Genome(reference())


@pytest.mark.parametrize("name", ["g.fa", "g.fa.bgz", "g.fa.gz", "gzip.fa"])
@pytest.mark.parametrize(
    "content", [b">a\nACGT\n\nTTGA\n", b"\xef\xbb\xbf>a\nACGT\nTTGA\n", ">a\nACGT\nTTGA\n".encode("utf-16")]
)
def test_blank_lines_byte_order_marks_and_gzip_without_suffix(tmp_path, name, content):
    path = tmp_path / name
    if name.endswith(".bgz"):
        with pysam.BGZFile(str(path), "wb") as file:
            file.write(content)
    else:
        path.write_bytes(content if name == "g.fa" else gzip.compress(content))
    with Genome(path) as genome:
        assert genome.contigs == {"a": 8} and genome.fetch("a", 2, 6) == "GTTT"
    assert [*read_fasta(path)] == [("a", "ACGTTTGA")]
