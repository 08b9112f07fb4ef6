"""WMT translation in five directions; the few-shot prompt of PPD Table 1 and the task prefix of T5.

"wmt13-en-de" has the training rows of "wmt-en-de", and newstest2013 for testing instead of newstest2014.
"""

from functools import partial

import numpy as np

from tasks.additive import AdditiveTask, Sums
from tasks.base import Example, PromptStyle, ReferenceScore, Split, Statistics
from tasks.scoring import bleu
from tasks.sources.dataset import Dataset, HubFiles, Row, mapping_field, text_field
from tasks.world import wmt_row

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}
# The English and French pairs are those of PPD Table 1; German and Romanian say the same.
SHOTS = {
    "en": ("Sounds like a typical rugby club to me.", "At an English university, perhaps…"),
    "fr": ("Ça m’a l’air d’être un club de rugby typique.", "Dans une université anglaise, peut-être…"),
    "de": ("Das klingt für mich nach einem typischen Rugbyverein.", "An einer englischen Universität vielleicht…"),
    "ro": ("Mi se pare un club de rugby tipic.", "La o universitate engleză, poate…"),
}
END_OF_SHOT = " #"
DEVELOPMENT_SET = "newstest2013"
DEVELOPMENT_SEED = 2013  # added to the seed of generated rows, so that none is a test sentence but by chance
TEST_SETS = {"de": ("newstest2014",), "fr": ("newsdiscusstest2015", "newstest2014"), "ro": ("newstest2016",)}
WMT14, WMT16 = (
    ("wmt/wmt14", "b199e406369ec1b7634206d3ded5ba45de2fe696"),
    ("wmt/wmt16", "41d8a4013aa1489f28fea60ec0932af246086482"),
)


def _example(source: str, target: str, row: Row, where: str, row_id: str) -> Example:
    pair = mapping_field(row, "translation", where)
    text, reference = (text_field(pair, language, f"{where}: translation") for language in (source, target))
    return Example(str(row.get("id", row_id)), {"source": text}, (reference,))


def _development_row(language: str, seed: int, split: Split, index: int) -> Row:
    return wmt_row(language, seed + DEVELOPMENT_SEED if split == "test" else seed, split, index)


def dataset(source: str, target: str, development: bool = False) -> Dataset:
    """English-German and English-French are WMT14's, English-Romanian WMT16's; both directions read the same rows.

    With ``development`` the test split is WMT14's development set, newstest2013; a folder that has none is tested as without.
    """
    other = target if source == "en" else source
    pairs = (f"en-{other}", f"{other}-en")
    repository, revision = WMT16 if other == "ro" else WMT14
    test_stems = (*(f"{name}.{pair}" for name in (*TEST_SETS[other], "test") for pair in pairs), "test", "validation")
    if development:
        test_stems = (
            *(f"{name}.{pair}" for name in (DEVELOPMENT_SET, "validation") for pair in pairs),
            "validation",
            *test_stems,
        )
    return Dataset(
        name=f"wmt13-{source}-{target}" if development else f"wmt-{source}-{target}",
        folders=("wmt",),
        test_stems=test_stems,
        train_stems=(*(f"{name}.{pair}" for name in ("train/news*", "train/*", "train") for pair in pairs), "train"),
        hub=HubFiles(
            repository=repository,
            revision=revision,
            train=f"{other}-en/train-*.parquet",
            test=f"{other}-en/{'validation' if development else 'test'}-*.parquet",
        ),
        toy_row=partial(_development_row if development else wmt_row, other),
        example=partial(_example, source, target),
        group=lambda example: "\x1f".join(sorted((example.inputs["source"], *example.references))),
    )


class Translation(AdditiveTask):
    """sacreBLEU and tokenised BLEU (see ``tasks.scoring.bleu``) of the first line of the output, up to the end-of-shot mark."""

    max_new_tokens = 128
    metrics = ("sacrebleu", "bleu")
    units = {"sacrebleu": "BLEU", "bleu": "BLEU"}  # noqa: RUF012

    def __init__(self, source: str, target: str, development: bool = False) -> None:
        self.source, self.target = source, target
        self.dataset = dataset(source, target, development)
        self.name = self.dataset.name

    def prompt(self, example: Example, style: PromptStyle) -> str:
        source, target, text = LANGUAGES[self.source], LANGUAGES[self.target], example.inputs["source"]
        if style == "t5":
            return f"translate {source} to {target}: {text}"
        shots = zip(SHOTS[self.source], SHOTS[self.target], strict=True)
        shown = "".join(f"{source}: {first}\n{target}: {second}{END_OF_SHOT}\n" for first, second in shots)
        return f"### Instruction: Translate {source} sentence into {target}.\n{shown}{source}: {text}\n{target}:"

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        text = output_text.strip().split("\n")[0].split(END_OF_SHOT)[0].strip()
        return {kind: bleu.bleu_counts(kind, text, example.references) for kind in ("sacrebleu", "bleu")}

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        return {kind: bleu.bleu_from_sums(kind, sums[kind]) for kind in ("sacrebleu", "bleu")}

    def signature(self, metric: str) -> str:
        return bleu.signature("sacrebleu" if metric == "sacrebleu" else "bleu")
