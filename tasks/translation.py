"""WMT translation in five directions; the few-shot prompt of PPD Table 1 and the task prefix of T5.

Two more have the training rows of "wmt-en-de" and test sets of their own: "wmt13-en-de" newstest2013, WMT14's development set,
and "multi30k-en-de" the image captions of Multi30k's test2016 (Elliott et al. 2016), whose BLEU is usually lower-cased.

Scored by corpus BLEU from counts per sentence that add up. Three kinds, all over sacrebleu's own counting, case-sensitive but
for the second:
``sacrebleu``: its defaults (13a tokenisation, exponential smoothing), the number that papers since 2018 compare.
``sacrebleu_lc``: the same of lower-cased text, as sacrebleu's option -lc.
``bleu``: "tokenised BLEU" as the papers before and Leviathan and SpecDec print it: multi-bleu.perl over tokenised text, which
knows no smoothing. Differs from the paper: Moses is not available offline and its tokens cannot be recovered, so both sides
are tokenised with mteval-v14's international tokeniser, which cuts like Moses except that it also parts hyphens and
apostrophes. By how much the two differ was not measured here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, get_args

import numpy as np

from tasks.base import (
    Dataset,
    Example,
    HubFiles,
    PromptStyle,
    ReferenceScore,
    Row,
    Statistics,
    Sums,
    Task,
    id_field,
    mapping_field,
    text_field,
)

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}
# The English and French pairs are those of PPD Table 1; German and Romanian say the same.
SHOTS = {
    "en": ("Sounds like a typical rugby club to me.", "At an English university, perhaps…"),
    "fr": ("Ça m’a l’air d’être un club de rugby typique.", "Dans une université anglaise, peut-être…"),
    "de": ("Das klingt für mich nach einem typischen Rugbyverein.", "An einer englischen Universität vielleicht…"),
    "ro": ("Mi se pare un club de rugby tipic.", "La o universitate engleză, poate…"),
}
END_OF_SHOT = " #"
TEST_SETS = {"de": ("newstest2014",), "fr": ("newsdiscusstest2015", "newstest2014"), "ro": ("newstest2016",)}
WMT14, WMT16 = (
    ("wmt/wmt14", "b199e406369ec1b7634206d3ded5ba45de2fe696"),
    ("wmt/wmt16", "41d8a4013aa1489f28fea60ec0932af246086482"),
)
Kind = Literal["sacrebleu", "sacrebleu_lc", "bleu"]
ORDER = 4
SETTINGS: dict[Kind, dict[str, Any]] = {
    "sacrebleu": {"tokenize": "13a", "smooth_method": "exp"},
    "sacrebleu_lc": {"tokenize": "13a", "smooth_method": "exp", "lowercase": True},
    "bleu": {"tokenize": "intl", "smooth_method": "none"},
}
BLEU: tuple[Kind, ...] = ("sacrebleu", "bleu")


@dataclass(frozen=True)
class _Tests:
    """Test sentences other than the usual ones.

    ``stem``: of the file in a folder. ``hub_split``: of the Hub's dataset, or None where it has none.
    ``train_first``: the files of a folder that are trained on before all others.
    """

    stem: str
    hub_split: str | None
    train_first: tuple[str, ...] = ()
    metrics: tuple[Kind, ...] = BLEU


OTHER_TESTS = {
    "wmt13": _Tests("newstest2013", "validation"),
    "multi30k": _Tests("multi30k_test2016", None, ("train/multi30k*",), ("sacrebleu_lc", *BLEU)),
}


def _example(source: str, target: str, row: Row, where: str, row_id: str) -> Example:
    pair = mapping_field(row, "translation", where)
    text, reference = (text_field(pair, language, f"{where}: translation") for language in (source, target))
    return Example(id_field(row, row_id, where), {"source": text}, (reference,))


def dataset(source: str, target: str, tests: str = "wmt") -> Dataset:
    """Describe a pair's data: WMT14 for English-German and English-French, WMT16 for English-Romanian, the same both ways.

    ``tests`` may name other test sentences; a folder that has none of these is tested as without. Of a folder's training files
    news counts first, then captions, then the rest.
    """
    other = target if source == "en" else source
    pairs, named = (f"en-{other}", f"{other}-en"), OTHER_TESTS.get(tests)
    repository, revision = WMT16 if other == "ro" else WMT14
    stems = (*(f"{name}.{pair}" for name in (*TEST_SETS[other], "test") for pair in pairs), "test")
    hub_split: str | None = "test"
    if named is not None:
        hub_split = named.hub_split
        first = (named.stem,) if hub_split is None else (named.stem, hub_split)
        stems = (*(f"{name}.{pair}" for name in first for pair in pairs), *first[1:], *stems)
    first_of_all = () if named is None else named.train_first
    training = dict.fromkeys((*first_of_all, "train/news*", "train/multi30k*", "train/*", "train"))
    hub = HubFiles(
        repository=repository, revision=revision, train=f"{other}-en/train-*.parquet", test=f"{other}-en/{hub_split}-*.parquet"
    )
    return Dataset(
        name=f"{tests}-{source}-{target}",
        folders=("wmt",),
        test_stems=(*stems, "validation"),
        train_stems=(*(f"{name}.{pair}" for name in training for pair in pairs), "train"),
        hub=None if hub_split is None else hub,
        toy_row=f"{tests}-{other}",
        example=partial(_example, source, target),
        group=lambda example: "\x1f".join(sorted((example.inputs["source"], *example.references))),
        fields=("id", "translation"),
    )


class Translation(Task):
    """Translation, scored by sacreBLEU and tokenised BLEU of the output's first line.

    What follows the mark that ends a shot of the prompt does not count.
    """

    max_new_tokens = 128
    units = dict.fromkeys(get_args(Kind), "BLEU")

    def __init__(self, source: str, target: str, tests: str = "wmt") -> None:
        self.source, self.target = source, target
        self.dataset = dataset(source, target, tests)
        self.name = self.dataset.name
        self.metrics = self.kinds = OTHER_TESTS[tests].metrics if tests in OTHER_TESTS else BLEU

    def prompt(self, example: Example, style: PromptStyle) -> str:
        source, target, text = LANGUAGES[self.source], LANGUAGES[self.target], example.inputs["source"]
        if style == "t5":
            return f"translate {source} to {target}: {text}"
        shots = zip(SHOTS[self.source], SHOTS[self.target], strict=True)
        shown = "".join(f"{source}: {first}\n{target}: {second}{END_OF_SHOT}\n" for first, second in shots)
        return f"### Instruction: Translate {source} sentence into {target}.\n{shown}{source}: {text}\n{target}:"

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        text = output_text.strip().split("\n")[0].rstrip().removesuffix(END_OF_SHOT).strip()
        return {kind: bleu_counts(kind, text, example.references) for kind in self.kinds}

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        return {kind: bleu_from_sums(kind, sums[kind]) for kind in self.kinds}

    def signature(self, metric: str) -> str:
        [kind] = [kind for kind in self.kinds if kind == metric]
        return bleu_signature(kind)


@cache
def _counter(kind: Kind) -> Any:
    """Make sacrebleu's counter. ``effective_order`` changes no count and silences a warning about single sentences."""
    from sacrebleu import metrics

    return metrics.BLEU(**SETTINGS[kind], effective_order=True)


@cache
def bleu_signature(kind: Kind, num_references: int = 1) -> str:
    """Return sacrebleu's own signature of these settings."""
    from sacrebleu import metrics

    metric = metrics.BLEU(**SETTINGS[kind])
    metric.corpus_score(["a"], [["a"]] * num_references)
    return str(metric.get_signature())


def bleu_counts(kind: Kind, prediction: str, references: Sequence[str]) -> list[float]:
    """Count [length, closest reference length, matches of order 1..4, n-grams of order 1..4] of one sentence."""
    score = _counter(kind).sentence_score(prediction, list(references))
    return [float(score.sys_len), float(score.ref_len), *map(float, score.counts), *map(float, score.totals)]


def bleu_from_sums(kind: Kind, sums: np.ndarray) -> np.ndarray:
    """Compute BLEU, 0 to 100 [...], from summed counts [..., 10] by sacrebleu's formula, for many corpora at once.

    Papineni et al. 2002 with smoothing "exp" (Chen and Cherry 2014, method 3) or none, at order 4.
    """
    length, reference_length = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + ORDER], sums[..., 2 + ORDER : 2 + 2 * ORDER]
    precision = correct / np.maximum(total, 1.0)
    if SETTINGS[kind]["smooth_method"] == "exp":
        missing = (correct == 0) & (total > 0)
        precision = np.where(missing, 0.5 ** np.cumsum(missing, axis=-1) / np.maximum(total, 1.0), precision)
    defined = (precision > 0).all(axis=-1) & (correct[..., 0] > 0)
    mean = np.exp(np.log(np.where(precision > 0, precision, 1.0)).mean(axis=-1))
    brevity = np.exp(np.minimum(0.0, 1.0 - reference_length / np.maximum(length, 1.0)))
    return np.where(defined, 100.0 * brevity * mean, 0.0)
