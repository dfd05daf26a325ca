"""Sequences of each input format, and what is wrong with some."""

import gzip

import pyarrow as pa
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict

from hf_ssm.data.options import ReadOptions
from hf_ssm.data.records import Place, Record, as_records, check_dna, read_records, reverse_complement

ROWS = [("ACGTN", "a"), ("acgt", "b"), ("RYKM", "a")]
CSV = "sequence,name,score\nACGTN,a,1\nacgt,b,\nRYKM,a,3\n"
FASTA = ">a first\nACG\nTN\n>b\nacgt\n>a\nRYKM\n"
GENOME = ">chr1\nACGTTGCAGG\nTTTTNNRA\n>chr2\nGGGG\n"
_INTERVALS = (("chr1", 2, 6, "one", "05", "+"), ("chr1", 14, 18, "two", ".", "-"))
BED = "#comment\ntrack name=x\nchr1\t2\t6\tone\t05\t+\n\nchr1\t14\t18\ttwo\t.\t-\textra\nchr2\t0\t4\tone\t0\t.\n"


@pytest.fixture
def file(tmp_path):
    """`file(name, text)`: the path of a file, gzipped if its name ends in ".gz"."""

    def write(name, text):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("i.csv", CSV),
        ("i.tsv", CSV.replace(",", "\t")),
        (
            "i.json",
            '[{"sequence": "ACGTN", "name": "a"},\n {"sequence": "acgt", "name": "b"},\n'
            ' {"sequence": "RYKM", "name": "a"}]',
        ),
        (
            "i.jsonl",
            '{"sequence": "ACGTN", "name": "a"}\n{"sequence": "acgt", "name": "b"}\n\n'
            '{"sequence": "RYKM", "name": "a"}\n',
        ),
        ("i.fa", FASTA),
        ("i.fasta", FASTA),
    ],
)
def test_formats(file, name, text, suffix, end):
    found = list(read_records(file(name + suffix, text.replace("\n", end))))
    # Ambiguous letters are kept, repeated names too, and soft-masked letters of tables.
    is_fasta = name.startswith("i.fa")
    rows = [(letters.upper() if is_fasta else letters, own) for letters, own in ROWS]
    if is_fasta:
        # The whole header, where first words are equal.
        rows[0] = (rows[0][0], "a first")
    assert [(record.sequence, record.columns["name"]) for record in found] == rows
    kept = read_records(file(name + suffix, text.replace("\n", end)), ReadOptions(keep_case=True))
    assert [record.sequence for record in kept] == [letters for letters, _ in ROWS]
    assert "sequence" not in found[0].columns
    second = (
        "record 'b'" if is_fasta else {".csv": "line 3", ".tsv": "line 3", ".json": "row 2"}.get(name[1:], "line 2")
    )
    assert found[1].where == f"{name}{suffix}, {second}"


def test_other_columns_are_kept_as_texts(file):
    found = [record.columns for record in read_records(file("i.csv", CSV))]
    assert found == [{"name": "a", "score": "1"}, {"name": "b", "score": ""}, {"name": "a", "score": "3"}]
    found = list(read_records(file("i.csv", CSV), ReadOptions(sequence_column="name")))
    assert found[1] == Record("b", "i.csv, line 3", {"sequence": "acgt", "score": ""})


@pytest.mark.parametrize("name", ["i.json", "i.jsonl"])
def test_json_numbers_that_no_type_holds_stay_texts(file, name):
    barcode = "12345678901234567890"
    row = f'{{"sequence": "ACGT", "barcode": {barcode}, "score": 0.5, "zero": 0.0e1, "n": -7}}'
    (record,) = read_records(file(name, f"[{row}]" if name == "i.json" else row))
    assert record.columns == {"barcode": barcode, "score": 0.5, "zero": 0.0, "n": -7}


def test_parquet(tmp_path):
    path = tmp_path / "i.parquet"
    pa.parquet.write_table(pa.table({"sequence": ["ACGT"] * 1500, "label": list(range(1500))}), path)
    found = list(read_records(path))
    assert len(found) == 1500 and found[1400] == Record("ACGT", "i.parquet, row 1401", {"label": 1400})
    with pytest.raises(ValueError, match=r"no such column; .* Perhaps sequence_column='sequence'"):
        list(read_records(path, ReadOptions(sequence_column="sequences")))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"i\.parquet' cannot be read"):
        list(read_records(path))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_bed(file, suffix, end):
    pytest.importorskip("pysam")
    bed, genome = file("i.bed" + suffix, BED.replace("\n", end)), file("g.fa" + suffix, GENOME)
    one, two, three = read_records(bed, genome=genome)
    names = ("chrom", "chrom_start", "chrom_end", "name", "score", "strand")
    columns = [dict(zip(names, values, strict=True)) for values in _INTERVALS]
    assert one == Record("GTTG", f"{bed.name}, line 3", columns[0], Place("chr1", 2, 6))
    assert two == Record("TYNN", f"{bed.name}, line 5", columns[1], Place("chr1", 14, 18, is_reversed=True))
    assert (three.sequence, three.columns["name"], three.columns["strand"]) == ("GGGG", "one", ".")


def test_soft_masked_letters_are_capitals_and_one_line_says_so(file, caplog):
    pytest.importorskip("pysam")
    bed, genome = file("i.bed", "chr1\t0\t4\nchr1\t2\t6\tx\t0\t-\n"), file("soft.fa", ">chr1\nACgttgca\n")
    for _ in range(2):
        assert [record.sequence for record in read_records(bed, genome=genome)] == ["ACGT", "CAAC"]
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "soft.fa: lower-case (soft-masked) letters are read as capitals"
    ]
    kept = read_records(bed, options=ReadOptions(keep_case=True), genome=genome)
    assert [record.sequence for record in kept] == ["ACgt", "caac"]


def test_lines_of_bed_with_fewer_fields_have_all_columns(file):
    pytest.importorskip("pysam")
    found = list(read_records(file("i.bed", "track1\t0\t2\ntrack1\t1\t2\tn\n"), genome=file("g.fa", ">track1\nACGT\n")))
    assert [record.columns["name"] for record in found] == [None, "n"]
    assert all(list(record.columns) == ["chrom", "chrom_start", "chrom_end", "name"] for record in found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chr1\t2\t19", "chr1:2-19 is not an interval of g.fa: the contig 'chr1' has 18 letters"),
        ("Chr1\t2\t9", r"g.fa has no contig 'Chr1' \(did you mean 'chr1'\?\)"),
        ("chr1\t2", "fewer than 3 fields"),
        ("chr1\t2\tnine", "chrom_end 'nine' is not a whole number"),
        ("chr1\t1e+02\t140", r"chrom_start '1e\+02' is not a whole number: .*scipen"),
        ("chr1\t2\t9\tn\t0\tforward", "the strand 'forward' is not"),
    ],
)
def test_wrong_lines_of_bed_are_refused_before_any_sequence(file, line, message, capfd):
    pytest.importorskip("pysam")
    bed, genome = file("i.bed", f"chr1\t0\t4\n{line}\n"), file("g.fa", GENOME)
    with pytest.raises(ValueError, match=rf"i\.bed' cannot be read: line 2: .*{message}"):
        next(read_records(bed, genome=genome))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["i.bed", "i.narrowPeak", "i.bed.gz"])
@pytest.mark.parametrize("text", ["chrom\tstart\tend\nchr1\t2\t6\n", "\ufeffchr1 2 6\n", "chr1\t2\t6\tx\tNA\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_lines_that_people_have_in_bed_files(tmp_path, file, name, text, encoding):
    pytest.importorskip("pysam")
    path = tmp_path / name
    content = text.lstrip("\ufeff" if encoding == "utf-16" else "").encode(encoding)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (record,) = read_records(path, genome=file("g.fa", GENOME))
    assert (record.sequence, record.place) == ("GTTG", Place("chr1", 2, 6))
    assert record.columns.get("score", "NA") == "NA"


@pytest.mark.parametrize("text", ["", "#comment\n\n"])
def test_bed_without_intervals(file, text):
    pytest.importorskip("pysam")
    with pytest.raises(ValueError, match="the file has no interval"):
        list(read_records(file("i.bed", text), genome=file("g.fa", GENOME)))


def test_bed_and_genome_belong_together(file):
    with pytest.raises(ValueError, match="a BED file needs a genome"):
        list(read_records(file("i.bed", BED)))
    with pytest.raises(ValueError, match="only a BED file takes a genome"):
        list(read_records(file("i.fa", FASTA), genome=file("g.fa", GENOME)))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("i.csv", "sequence,name\nACGT,a\n,b\n", r"i\.csv, line 3 has no sequence"),
        ("i.csv", "sequence\nACG\0T\n", r"i\.csv, line 2: letter 4 is a NUL character: remove it"),
        ("i.json", '[{"sequence": "A"}, {"name": "b"}]', r"i\.json, row 2 has no sequence \(found None\)"),
        ("i.jsonl", '{"sequence": 7}\n', r"i\.jsonl, line 1 has no sequence \(found 7\)"),
        (
            "i.jsonl",
            '{"sequence": "A", "x": 1}\n{"sequence": "A", "x": "b"}\n',
            r"i\.jsonl': the column 'x' has values of different types",
        ),
        (
            "i.csv",
            "seq,name\nACGT,a\n",
            r"sequence_column='sequence': i\.csv has no such column.*Perhaps sequence_column='seq'",
        ),
        ("i.doc", "ACGT\n", r"i\.doc': the suffix must be one of \.fa"),
    ],
)
def test_malformed_files_are_refused(file, name, text, message):
    with pytest.raises(ValueError, match=message):
        list(read_records(file(name, text)))


@pytest.mark.parametrize("name", ["i.csv.gz", "i.tsv.gz", "i.json.gz", "i.jsonl.gz", "i.fa.gz", "i.bed.gz"])
def test_truncated_gzip_is_refused(file, name):
    if "bed" in name:
        pytest.importorskip("pysam")
    path = file(name, ">a\n" + "ACGTTG\n" * 1000)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=rf"{name}' cannot be read: .*(end-of-stream|truncated)"):
        list(read_records(path, genome=file("g.fa", GENOME) if "bed" in name else None))


def test_sequences_of_python():
    rows = [{"sequence": "ACGT", "name": "a"}, {"sequence": "GG", "name": "a"}]
    expected = [Record("ACGT", "`inputs`, row 0", {"name": "a"}), Record("GG", "`inputs`, row 1", {"name": "a"})]
    assert (
        list(as_records(rows)) == list(as_records(Dataset.from_list(rows))) == list(as_records(iter(rows))) == expected
    )
    assert list(as_records(("ACGT", expected[1]))) == [Record("ACGT", "`inputs`, row 0"), expected[1]]
    assert next(as_records(rows, "name")).columns == {"sequence": "ACGT"}


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ("ACGT", TypeError, "must be a list of sequences.*got a str"),
        (DatasetDict(train=Dataset.from_list([{"sequence": "A"}])), TypeError, "one split.*got a DatasetDict"),
        (7, TypeError, "got a int"),
        ([7], ValueError, "`inputs`, row 0 is a int"),
        (["A", ""], ValueError, "`inputs`, row 1 has no sequence"),
        ([{"text": "A"}], ValueError, "sequence_column='sequence': `inputs`, row 0 has no such column"),
        ([{"sequence": None}], ValueError, "`inputs`, row 0 has no sequence"),
    ],
)
def test_wrong_sequences_of_python(inputs, error, message):
    with pytest.raises(error, match=message):
        list(as_records(inputs))


def test_reverse_complement():
    assert reverse_complement("AACGTRYSWKMBDHVNu-acg") == "cgt-aNBDHVKMWSRYACGTT"
    assert reverse_complement(reverse_complement("ACGTRYSWKMBDHVNacgtn")) == "ACGTRYSWKMBDHVNacgtn"


def test_only_dna_has_two_strands():
    check_dna(Record("ACGTURYSWKMBDHVNacgtn\n", "row 1"))
    with pytest.raises(ValueError, match="row 2: 'I' is not a letter of DNA"):
        check_dna(Record("MKVIAA", "row 2"))
