"""Motifs of transcription factors as matrices of probabilities, from MEME and JASPAR files or written as letters."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np

__all__ = ["check_tangermeme", "motif_of_letters", "read_motifs"]

_LETTERS_OF = {
    **{letter: letter for letter in "ACGT"},
    **{"R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT", "M": "AC"},
    **{"B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG", "N": "ACGT"},
}
# A line of JASPAR: the base, if it is given, and the numbers, in brackets or not.
_JASPAR_LINE = re.compile(r"\s*([ACGTUacgtu])?[\s|:]*\[?([^][]*)\]?\s*")


def check_tangermeme(purpose: str) -> None:
    """Raise `ImportError` with the extra to install if tangermeme is missing."""
    if find_spec("tangermeme") is None:
        raise ImportError(f'{purpose} needs tangermeme, which is not installed: pip install "hf_ssm[genomics]"')


def motif_of_letters(letters: str) -> np.ndarray:
    """The motif of IUPAC letters, such as "TGASTCA", as probabilities `(4, bases)`; N is any base.

    Raises:
        ValueError: A letter is none of IUPAC, or there is none.
    """
    foreign = sorted(set(letters.upper()) - set(_LETTERS_OF))
    if foreign or not letters:
        raise ValueError(f"motif {letters!r}: give letters of DNA, such as TGASTCA (N is any base).")
    columns = [[base in _LETTERS_OF[letter] for base in "ACGT"] for letter in letters.upper()]
    matrix = np.array(columns, dtype=float).T
    return np.asarray(matrix / matrix.sum(0))


def read_motifs(path: str | Path) -> dict[str, np.ndarray]:
    """The motifs of a file in the format of MEME or of JASPAR (.jaspar or .pfm).

    MEME files are read by memelite, which tangermeme (the extra `genomics`) brings along.

    Returns:
        Name to probabilities of A, C, G and T at each position, `(4, bases)`. Names are those of the file: identifier
        and name, separated by a space. Counts are divided by their sum; without pseudocounts.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no motif, a name occurs twice, or the numbers of a motif are no probabilities or counts.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.lstrip().startswith(">"):
        named = _jaspar(text, path)
    elif "letter-probability matrix" in text:
        named = _meme(text, path)
    else:
        raise ValueError(f"{path.name} holds no motif: give a MEME file or a JASPAR file (.jaspar, .pfm).")
    motifs: dict[str, np.ndarray] = {}
    for name, matrix in named:
        if name in motifs:
            raise ValueError(f"{path.name} holds two motifs of the name {name!r}: rename one.")
        if not matrix.size or not np.isfinite(matrix).all() or (matrix < 0).any() or (matrix.sum(0) <= 0).any():
            raise ValueError(f"{path.name}, motif {name!r}: the numbers are not probabilities or counts of four bases.")
        motifs[name] = matrix / matrix.sum(0)
    return motifs


def _meme(text: str, path: Path) -> list[tuple[str, np.ndarray]]:
    check_tangermeme("a MEME file")
    from memelite.io import read_meme

    names = [" ".join(line[5:].split()) for line in text.splitlines() if line.startswith("MOTIF")]
    try:
        motifs = read_meme(str(path))
    except (ValueError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{path.name} is not a MEME file of DNA: each matrix needs its width (w=) and, from the next line on, "
            "one line of four probabilities for each position."
        ) from error
    # A name that occurs twice, or a motif that breaks off.
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path.name} holds two motifs of the name {name!r}: rename one.")
        if name not in motifs:
            raise ValueError(f"{path.name}, motif {name!r}: the matrix is incomplete.")
    return list(motifs.items())


def _jaspar(text: str, path: Path) -> list[tuple[str, np.ndarray]]:
    """A line with ">" and the name, then four lines of counts: of A, C, G and T, or of the bases that they name."""
    motifs = []
    for block in text.split(">")[1:]:
        header, *lines = (line for line in block.splitlines() if line.strip())
        matches = [_JASPAR_LINE.fullmatch(line) for line in lines]
        try:
            rows = [([*map(float, match[2].split())], (match[1] or "").upper()) for match in matches if match]
        except ValueError:
            rows = []
        bases = "".join(base for _, base in rows).replace("U", "T")
        where = f"{path.name}, motif {header.strip()!r}"
        if len(rows) != len(lines) or len({len(row) for row, _ in rows}) != 1 or len(rows) != 4:
            raise ValueError(f"{where}: give four lines with the same number of counts.")
        if bases and sorted(bases) != list("ACGT"):
            raise ValueError(f"{where}: the lines name the bases {bases}, but must name A, C, G and T.")
        order = [(bases or "ACGT").index(base) for base in "ACGT"]
        motifs.append((" ".join(header.split()), np.array([rows[number][0] for number in order])))
    return motifs
