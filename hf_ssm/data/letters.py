"""Letters of DNA and RNA, and the other strand."""

# Letters of the International Union of Pure and Applied Chemistry, and their complements.
_COMPLEMENT = str.maketrans("ACGTURYSWKMBDHVNacgturyswkmbdhvn", "TGCAAYRSWMKVHDBNtgcaayrswmkvhdbn")
AMBIGUOUS_LETTERS = "RYSWKMBDHVN"
DNA_LETTERS = frozenset("ACGTU" + AMBIGUOUS_LETTERS + "acgtu" + AMBIGUOUS_LETTERS.lower() + "-. \t\r\n")


def reverse_complement(sequence: str) -> str:
    """The other strand of a DNA sequence, with IUPAC letters; case is kept, U becomes A, other letters stay."""
    return sequence.translate(_COMPLEMENT)[::-1]


def is_dna(sequence: str) -> bool:
    """Whether all letters are IUPAC letters of DNA or RNA, in either case; white space and gaps ("-", ".") may be."""
    return DNA_LETTERS.issuperset(sequence)
