"""SpecDec, Tables 1, 6 and 8 to 13 (catalogue 12 and 17 to 23): how good and how fast, by task, pair, teacher and depth.

English to German is one comparison, which Tables 1, 9, 12 and 13 read; so is every other pair of verifier and drafter.
"""

from dataclasses import replace

from harness.core.settings import Settings
from harness.papers.specdec.columns import table_of
from harness.papers.specdec.setup import (
    ALONE,
    BEAM,
    BIG,
    BIG_THREE_TEACHERS,
    CNNDM,
    DEEP_SHALLOW,
    EFFICIENCY,
    EN_DE,
    GREEDY,
    HIGH_EFFICIENCY,
    HIGH_QUALITY,
    PAIRS,
    QUALITY,
    RAW,
    STRICT,
    THEIR_BEAM,
    THREE_TEACHERS,
    Setup,
    arms_of,
    beam_alone,
    gamma_of,
    layers_of,
)
from harness.tables.engine import Row, Section, row_name

VERIFIER = "AT verifier"
Keys = dict[str, tuple[str, str]]

# (model, setting) of the published rows.
MAIN_KEYS: Keys = {
    BEAM: ("Transformer-base (AT verifier, Seq-KD)", "b=5"),
    GREEDY: ("Transformer-base (AT verifier, Seq-KD)", "b=1"),
    ALONE: ("NAT drafter", "k=25"),
    STRICT: ("SpecDec", "k=25"),
    HIGH_QUALITY: ("SpecDec++ (high-quality)", "k=25, top-3, tau=1.0"),
    HIGH_EFFICIENCY: ("SpecDec++ (high-efficiency)", "k=25, top-5, tau=3.0"),
}
SUMMARY_KEYS: Keys = {
    BEAM: ("BART-base AT", "b=5"),
    GREEDY: ("BART-base AT verifier", "b=1"),
    STRICT: ("SpecDec", "k=25, top-1"),
    HIGH_QUALITY: ("SpecDec++", ""),
    HIGH_EFFICIENCY: ("SpecDec++", ""),
}
ACCEPTANCE = ("emitted", "accepted", "of verified", "of drafted")
SPEED = ("iterations", "speed", "over greedy")


def rows_of(settings: Settings, setup: Setup, keys: Keys, *heads: str) -> tuple[Row, ...]:
    """The rows that every setting has, behind the heads that tell settings apart."""
    k = f"k = {gamma_of(settings, setup)}"
    shown = {
        BEAM: (VERIFIER, "b = 5"),
        THEIR_BEAM: (VERIFIER, "b = 5, transformers"),
        GREEDY: (VERIFIER, "b = 1"),
        ALONE: (ALONE, k),
        STRICT: (STRICT, k),
        HIGH_QUALITY: ("SpecDec++", f"{k}, {QUALITY}"),
        HIGH_EFFICIENCY: ("SpecDec++", f"{k}, {EFFICIENCY}"),
    }
    return tuple(Row(row_name(*heads, *parts), arm, keys.get(arm)) for arm, parts in shown.items())


def section_of(settings: Settings, setup: Setup, keys: Keys, *heads: str) -> Section:
    return Section(arms_of(settings, setup), rows_of(settings, setup, keys, *heads))


def main_sections(settings: Settings) -> list[Section]:
    """Table 1: also the same verifier without distillation."""
    raw = Row(row_name("AT, no Seq-KD", "b = 5"), BEAM, ("Transformer-base (AT)", "b=5, no Seq-KD"))
    return [Section(beam_alone(settings, RAW), (raw,)), section_of(settings, EN_DE, MAIN_KEYS)]


def one_pair(settings: Settings) -> list[Section]:
    return [section_of(settings, EN_DE, MAIN_KEYS)]


def repeating(settings: Settings) -> list[Section]:
    """Table 9, whose caption names the high-quality setting alone."""
    keys = {arm: key for arm, key in MAIN_KEYS.items() if arm != HIGH_EFFICIENCY}
    return [section_of(settings, EN_DE, keys)]


def summaries(settings: Settings) -> list[Section]:
    return [section_of(settings, CNNDM, SUMMARY_KEYS)]


def summary_notes(settings: Settings) -> list[str]:
    return ["Which beta and tau the paper's SpecDec++ has here is not recovered; both of ours stand for it."]


def pair_sections(settings: Settings) -> list[Section]:
    return [section_of(settings, setup, MAIN_KEYS, pair) for pair, setup in PAIRS.items()]


def teacher_sections(settings: Settings) -> list[Section]:
    settled = {"base, one": EN_DE, "base, three": THREE_TEACHERS, "big, one": BIG, "big, three": BIG_THREE_TEACHERS}
    return [section_of(settings, setup, MAIN_KEYS, name) for name, setup in settled.items()]


def depth_sections(settings: Settings) -> list[Section]:
    """Table 11: named by the layers that the verifiers have here; the paper's have 6 + 6 and 12 + 2."""
    named = {"base": EN_DE, "deep-shallow": DEEP_SHALLOW}
    return [section_of(settings, setup, MAIN_KEYS, f"{name}, {layers_of(settings, setup)}") for name, setup in named.items()]


def bleu_sections(settings: Settings) -> list[Section]:
    return [section_of(settings, setup, MAIN_KEYS, pair) for pair, setup in {"EN-DE": EN_DE, "EN-RO": PAIRS["EN-RO"]}.items()]


TRANSLATION = ((*SPEED, "over strict"), ("BLEU", "sacreBLEU", "as greedy"), ACCEPTANCE)
SUMMARIES = ((*SPEED, "over strict"), ("ROUGE-1", "ROUGE-2", "ROUGE-L"), ("as greedy", *ACCEPTANCE))
SCORES = ("BLEU", "sacreBLEU", "COMET")
# The columns of the paper's tables, as the published files name them.
PRINTED, SPEED_AND_BLEU = ("iterations", "speed_x", "BLEU"), ("speed_x", "BLEU")
SUMMARY_PRINTED = ("speed_x", "ROUGE-1", "ROUGE-2", "ROUGE-L")
SCORES_PRINTED = ("BLEU", "SacreBLEU", "COMET")
MODEL = ("model", "setting")

QUALITY_TABLES = [
    table_of(12, 1, "translation quality and speed", MODEL, TRANSLATION, PRINTED, main_sections),
    table_of(17, 6, "summarization", MODEL, SUMMARIES, SUMMARY_PRINTED, summaries, summary_notes),
    table_of(18, 8, "other language pairs", ("pair", *MODEL), TRANSLATION, PRINTED, pair_sections),
    table_of(19, 9, "token repetition ratio", MODEL, (("repetition", "BLEU"),), ("repetition_pct",), repeating),
    table_of(20, 10, "one teacher or three", ("size, teachers", *MODEL), TRANSLATION, SPEED_AND_BLEU, teacher_sections),
    table_of(21, 11, "deep encoder, shallow decoder", ("layers", *MODEL), TRANSLATION, SPEED_AND_BLEU, depth_sections),
    replace(table_of(22, 12, "sacreBLEU and COMET", MODEL, (SCORES,), SCORES_PRINTED, one_pair), scores=("comet",)),
    table_of(23, 13, "BLEU and sacreBLEU", ("pair", *MODEL), (SCORES[:2],), SCORES_PRINTED[:2], bleu_sections),
]
