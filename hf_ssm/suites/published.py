"""Published suites: ids on the Hub, configurations, columns and metrics. The Hub was not reachable where this was
written; each entry names the public code or documentation from which it is taken."""

from typing import Any

from hf_ssm.suites.task import Suite, Task

__all__ = ["SUITES"]

# Grešová et al. 2023 (BMC Genomic Data 24:25), Table 1 and accuracy as the metric of Table 2;
# github.com/ML-Bioinfo-CEITEC/genomic_benchmarks. On the Hub as one data set for each task, with the columns `seq` and
# `label` and the splits train and test, uploaded by the first author.
_GENOMIC_BENCHMARKS = (
    "demo_coding_vs_intergenomic_seqs",
    "demo_human_or_worm",
    "drosophila_enhancers_stark",
    "dummy_mouse_enhancers_ensembl",
    "human_enhancers_cohn",
    "human_enhancers_ensembl",
    "human_ensembl_regulatory",
    "human_nontata_promoters",
    "human_ocr_ensembl",
)

# Dalla-Torre et al. 2025 (Nature Methods 22:287), 18 tasks, Matthews' correlation for all; github.com/instadeepai/
# nucleotide-transformer. The revised data set has one table of all tasks with the columns `sequence`, `label`, `name`
# and `task`, and the splits train and test.
_NUCLEOTIDE_TRANSFORMER = (
    *("H2AFZ", "H3K27ac", "H3K27me3", "H3K36me3", "H3K4me1", "H3K4me2", "H3K4me3", "H3K9ac", "H3K9me3", "H4K20me1"),
    *("enhancers", "enhancers_types", "promoter_all", "promoter_no_tata", "promoter_tata"),
    *("splice_sites_acceptors", "splice_sites_all", "splice_sites_donors"),
)

# Zhou et al. 2024 (DNABERT-2), 28 tasks, Matthews' correlation, and F1 for the variants of Covid;
# github.com/MAGICS-LAB/DNABERT_2. The mirror leannmlindsey/GUE has one configuration for each task with the columns
# `sequence` and `label` and the splits train, dev and test.
_GUE = (
    *(f"emp_{mark}" for mark in ("H3", "H3K14ac", "H3K36me3", "H3K4me1", "H3K4me2")),
    *(f"emp_{mark}" for mark in ("H3K4me3", "H3K79me3", "H3K9ac", "H4", "H4ac")),
    *(f"human_tf_{number}" for number in range(5)),
    *(f"mouse_{number}" for number in range(5)),
    *(f"prom_300_{part}" for part in ("all", "notata", "tata")),
    *(f"prom_core_{part}" for part in ("all", "notata", "tata")),
    "splice_reconstructed",
    "virus_covid",
)

# Benegas et al. 2025 (TraitGym), github.com/songlab-cal/TraitGym: columns `chrom` (1, ..., X), `pos` (1-based), `ref`,
# `alt`, `label` and `match_group`, split test. The main metric is the area under the precision-recall curve of each
# chromosome, weighted by its variants; scores are averaged over both strands. The score of Mendelian traits is the
# log-likelihood ratio with its sign, that of complex traits its absolute value.
_TRAITGYM: dict[str, Any] = {"kind": "variants", "dataset": "songlab/TraitGym", "metric": "auprc", "by": "chrom"}

# Marin et al. 2024 (BEND), github.com/frederikkemarin/BEND, data at sid.erda.dk: tab-separated files with the columns
# chromosome, start (0-based), end, ref, alt and label (0, 1); area under the ROC curve of the cosine distance of the
# embeddings at the variant, with 256 bases on each side (scripts/predict_variant_effects.py), on the forward strand.
_BEND: dict[str, Any] = {"kind": "variants", "metric": "auroc", "orientation": "distance", "window": 513}
_BEND_COLUMNS = {"chromosome": "chrom", "start": "start", "ref": "ref", "alt": "alt"}

_GRCH38 = "--genome FILE, the human reference GRCh38"

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "genomic-benchmarks",
            tuple(
                Task(name, f"katarinagresova/Genomic_Benchmarks_{name}", sequence_column="seq")
                for name in _GENOMIC_BENCHMARKS
            ),
            "Grešová et al. 2023, https://github.com/ML-Bioinfo-CEITEC/genomic_benchmarks",
        ),
        Suite(
            "nucleotide-transformer",
            tuple(
                Task(
                    name,
                    "InstaDeepAI/nucleotide_transformer_downstream_tasks_revised",
                    where={"task": name},
                    metric="mcc",
                )
                for name in _NUCLEOTIDE_TRANSFORMER
            ),
            "Dalla-Torre et al. 2025, https://github.com/instadeepai/nucleotide-transformer",
        ),
        Suite(
            "gue",
            tuple(
                Task(name, "leannmlindsey/GUE", config=name, metric="f1" if name == "virus_covid" else "mcc")
                for name in _GUE
            ),
            "Zhou et al. 2024, https://github.com/MAGICS-LAB/DNABERT_2",
        ),
        Suite(
            "traitgym",
            (
                Task(name="mendelian_traits", config="mendelian_traits", **_TRAITGYM),
                Task(name="complex_traits", config="complex_traits", orientation="absolute", **_TRAITGYM),
            ),
            "Benegas et al. 2025, https://github.com/songlab-cal/TraitGym",
            _GRCH38,
        ),
        Suite(
            "bend-variants",
            tuple(
                Task(name=name, dataset=f"bend/{name}.bed", columns=_BEND_COLUMNS, **_BEND)
                for name in ("variant_effects_disease", "variant_effects_expression")
            ),
            "Marin et al. 2024, https://github.com/frederikkemarin/BEND",
            f"{_GRCH38}, and --data DIR, a folder with bend/variant_effects_*.bed, which are not on the Hub",
        ),
    )
}
"""Name to the suite."""
