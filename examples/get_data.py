"""Downloads or builds the data of the experiments.

    python examples/get_data.py                                  # lists the data sets
    python examples/get_data.py coding_or_intergenic             # writes it to data/

Downloads are kept in `data/downloads`, and existing ones are used. [data/README.md](data/README.md) describes the small
files that need no download.
"""

import argparse
import csv
import gzip
import hashlib
import io
import os
import random
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

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


def coding_or_intergenic(folder: Path, rows: int) -> None:
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


def random_variants(genome: Path, target: Path, count: int = 50) -> None:
    """Write a VCF file of random substitutions in the first record of a genome."""
    record, chance = next(iter(read_records(genome))), random.Random(0)
    lines = ["##fileformat=VCFv4.2", f"##contig=<ID={record.columns['name']},length={len(record.sequence)}>"]
    lines.append("\t".join(("#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO")))
    for place in sorted(chance.sample(range(len(record.sequence)), count)):
        base = record.sequence[place]
        other = chance.choice(sorted(set("ACGT") - {base}))
        lines.append("\t".join((record.columns["name"], str(place + 1), ".", base, other, ".", ".", ".")))
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{target}: {count} variants")


def shuffled(items: Iterator[tuple[str, str, str, int]], chance: random.Random) -> list[tuple[str, str, str, int]]:
    found = list(items)
    chance.shuffle(found)
    return found


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a gzipped csv file, which is the same for the same rows."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))
    print(f"{path}: {len(rows):,} rows")


def download(address: str, folder: Path, sha256: str) -> Path:
    """A file, downloaded to `folder` unless it is there; a `ValueError` if its SHA-256 begins otherwise."""
    path = folder / address.rpartition("/")[2]
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(address, timeout=60) as answer:
            content = answer.read()
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if not found.startswith(sha256):
        raise ValueError(f"{path} has the SHA-256 {found}, but that of {address} begins with {sha256}: delete the file")
    return path


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Download or build the data of the experiments.")
    parser.add_argument("names", nargs="*", choices=["coding_or_intergenic", "random_variants"], metavar="NAME")
    parser.add_argument("--output", type=Path, default=Path("data"), help="folder for the data (default: data)")
    parser.add_argument("--rows", type=int, default=3000, help="rows of coding_or_intergenic (default: 3000)")
    args = parser.parse_args(argv)
    if "coding_or_intergenic" in args.names:
        coding_or_intergenic(args.output, args.rows)
    if "random_variants" in args.names:
        random_variants(args.output / "lambda_phage.fa.gz", args.output / "lambda_phage_variants.vcf")


if __name__ == "__main__":
    main()
