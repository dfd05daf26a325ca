"""Stand-ins in the formats of published suites, plain metrics and a plain logistic regression."""

import random
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from scipy.optimize import minimize

WORDS = ("GATTACA", "TTGACGT", "CCATGGT")


def sequences(rng: random.Random, count: int, classes: int, length: int = 60) -> dict[str, list[Any]]:
    """Rows with a word of their class in most of them, some soft-masked, some with N, of two lengths."""
    texts, labels = [], []
    for row in range(count):
        label = row % classes
        letters = [rng.choice("ACGT") for _ in range(length + row % 2)]
        word = WORDS[label] if rng.random() < 0.8 else rng.choice(WORDS)
        place = rng.randrange(len(letters) - 7)
        letters[place : place + 7] = word
        text = "".join(letters)
        texts.append((text.lower(), text, text[:20] + "N" * 20 + text[40:], text)[row % 4])
        labels.append(label)
    return {"sequence": texts, "label": labels}


def make_mirror(root: Path) -> Path:
    """Folders with the layout of data sets of the Hub."""
    rng = random.Random(0)
    card = "---\nconfigs:\n{}---\n"
    entry = "- config_name: {}\n  data_files:\n"
    benchmarks = root / "katarinagresova" / "Genomic_Benchmarks_demo_human_or_worm" / "data"
    gue, traits = root / "leannmlindsey" / "GUE", root / "songlab" / "TraitGym"
    tasks = root / "InstaDeepAI" / "nucleotide_transformer_downstream_tasks_revised" / "data"
    for folder in (benchmarks, gue / "emp_H3", gue / "virus_covid", tasks, traits / "mendelian_traits_matched_9"):
        folder.mkdir(parents=True)
    for split, count in (("train", 80), ("test", 40)):
        rows = sequences(rng, count, 2)
        rows["seq"] = rows.pop("sequence")
        Dataset.from_dict(rows).to_parquet(benchmarks / f"{split}-00000-of-00001.parquet")
        rows = sequences(rng, 2 * count, 2)
        rows |= {
            "name": ["chr1"] * 2 * count,
            "task": ["H2AFZ" if row % 8 < 4 else "enhancers" for row in range(2 * count)],
        }
        Dataset.from_dict(rows).to_parquet(tasks / f"{split}-00000-of-00001.parquet")
    text = ""
    for name, classes in (("emp_H3", 2), ("virus_covid", 3)):
        text += entry.format(name)
        for split, count in (("train", 90), ("dev", 30), ("test", 45)):
            Dataset.from_dict(sequences(rng, count, classes)).to_csv(gue / name / f"{split}.csv")
            text += f"  - split: {split}\n    path: {name}/{split}.csv\n"
    (gue / "README.md").write_text(card.format(text))
    contigs = make_contigs(rng)
    path = "mendelian_traits_matched_9/test.parquet"
    Dataset.from_list(variants(rng, contigs, 60)).to_parquet(traits / path)
    (traits / "README.md").write_text(
        card.format(entry.format("mendelian_traits") + f"  - split: test\n    path: {path}\n")
    )
    (root / "genome.fa").write_text("".join(f">{name}\n{text}\n" for name, text in contigs.items()))
    (root / "bend").mkdir()
    lines = [
        f"chr{row['chrom']}\t{row['pos'] - 1}\t{row['pos']}\t{row['ref']}\t{row['alt']}\t{int(row['label'])}\n"
        for row in variants(rng, contigs, 30)
    ]
    table = "chromosome\tstart\tend\tref\talt\tlabel\n" + "".join(lines)
    (root / "bend" / "variant_effects_disease.bed").write_text(table)
    return root


def make_contigs(rng: random.Random) -> dict[str, str]:
    """Contigs with soft-masked letters and runs of N."""
    contigs = {}
    for name in ("chr1", "chr2", "chrX"):
        text = "".join(rng.choice("ACGT") for _ in range(1500))
        contigs[name] = text[:300] + text[300:600].lower() + text[600:700] + "N" * 40 + text[740:]
    return contigs


def variants(rng: random.Random, contigs: dict[str, str], count: int) -> list[dict[str, Any]]:
    """Rows in the columns of TraitGym, two alternatives at each place."""
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        name = rng.choice([*contigs])
        place = rng.randrange(1, 1490)
        ref = contigs[name][place].upper()
        if ref == "N":
            continue
        for alt in rng.sample(sorted(set("ACGT") - {ref}), 2):
            facts = {"OMIM": None, "consequence": "PLS", "label": rng.random() < 0.4, "tss_dist": 7}
            group = f"PLS_{len(rows) // 10}"
            rows.append({"chrom": name[3:], "pos": place + 1, "ref": ref, "alt": alt, **facts, "match_group": group})
    return rows


def plain_metric(name: str, labels: list[int], probabilities: list[list[float]]) -> float:
    """The metrics from their definitions, in loops over rows."""
    classes = range(len(probabilities[0]))
    predicted = [max(classes, key=lambda kind, row=row: row[kind]) for row in probabilities]
    pairs = list(zip(labels, predicted, strict=True))
    if name == "accuracy":
        return sum(label == guess for label, guess in pairs) / len(pairs)
    if name == "f1":
        scores = []
        for kind in classes:
            both = sum(pair == (kind, kind) for pair in pairs)
            either = sum(label == kind for label in labels) + sum(guess == kind for guess in predicted)
            scores.append(2 * both / either if either else 0.0)
        return sum(scores) / len(scores)
    if name == "mcc":
        table = np.array([[pairs.count((label, guess)) for guess in classes] for label in classes], dtype=float)
        n, right = table.sum(), table.trace()
        rows, columns = table.sum(1), table.sum(0)
        below = np.sqrt((n**2 - rows @ rows) * (n**2 - columns @ columns))
        return float((right * n - rows @ columns) / below) if below else 0.0
    areas = []
    for kind in [1] if len(classes) == 2 else classes:
        scores = [row[kind] for row in probabilities]
        areas.append(plain_area(name, [label == kind for label in labels], scores))
    return sum(areas) / len(areas)


def plain_area(name: str, positive: list[bool], scores: list[float]) -> float:
    """Share of pairs in the right order; or mean precision at the positive rows, with ties read together."""
    if name == "auroc":
        ups = [score for score, is_positive in zip(scores, positive, strict=True) if is_positive]
        downs = [score for score, is_positive in zip(scores, positive, strict=True) if not is_positive]
        return sum((up > down) + (up == down) / 2 for up in ups for down in downs) / len(ups) / len(downs)
    total = 0.0
    for score, is_positive in zip(scores, positive, strict=True):
        if is_positive:
            above = [flag for other, flag in zip(scores, positive, strict=True) if other >= score]
            total += sum(above) / len(above)
    return total / sum(positive)


def plain_regression(train: np.ndarray, labels: np.ndarray, others: np.ndarray, penalty: float = 1.0) -> np.ndarray:
    """Probabilities of the minimum of C Σ cross-entropy + |W|²/2, the objective of logistic regression, by BFGS.

    With two classes there is one row of weights, with more one for each class.
    """
    classes, size = int(labels.max()) + 1, train.shape[1]
    rows = 1 if classes == 2 else classes

    def logits(values: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        weights = values.reshape(rows, size + 1)
        scores = inputs @ weights[:, :size].T + weights[:, size]
        return np.hstack([np.zeros_like(scores), scores]) if rows == 1 else scores

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        scores = logits(values, train)
        normal = np.logaddexp.reduce(scores, axis=1)
        slopes = np.exp(scores - normal[:, None])
        slopes[np.arange(len(labels)), labels] -= 1
        slopes = slopes[:, 1:] if rows == 1 else slopes
        weights = values.reshape(rows, size + 1)[:, :size]
        gradient = penalty * np.hstack([slopes.T @ train, slopes.sum(0)[:, None]])
        gradient[:, :size] += weights
        total = penalty * (normal - scores[np.arange(len(labels)), labels]).sum() + (weights**2).sum() / 2
        return total, gradient.ravel()

    found = minimize(
        loss, np.zeros(rows * (size + 1)), jac=True, method="BFGS", options={"gtol": 1e-7, "maxiter": 5000}
    )
    scores = logits(found.x, others)
    return np.exp(scores - np.logaddexp.reduce(scores, axis=1)[:, None])
