"""SpecDec, Tables 1, 6 and 8 to 13 (catalogue 12 and 17 to 23): how good and how fast, by task, pair, teacher and depth.

English to German is one comparison, which Tables 1, 9, 12 and 13 read; so is every other pair of verifier and drafter.
"""

from dataclasses import replace

from harness.core.settings import Settings
from harness.papers.specdec import setup
from harness.papers.specdec.columns import table_of
from harness.tables.engine import Row, Section, row_name

VERIFIER = "AT verifier"
Keys = dict[str, tuple[str, str]]

# (model, setting) of the published rows.
MAIN_KEYS: Keys = {
    setup.BEAM: ("Transformer-base (AT verifier, Seq-KD)", "b=5"),
    setup.GREEDY: ("Transformer-base (AT verifier, Seq-KD)", "b=1"),
    setup.ALONE: ("NAT drafter", "k=25"),
    setup.STRICT: ("SpecDec", "k=25"),
    setup.HIGH_QUALITY: ("SpecDec++ (high-quality)", "k=25, top-3, tau=1.0"),
    setup.HIGH_EFFICIENCY: ("SpecDec++ (high-efficiency)", "k=25, top-5, tau=3.0"),
}
SUMMARY_KEYS: Keys = {
    setup.BEAM: ("BART-base AT", "b=5"),
    setup.GREEDY: ("BART-base AT verifier", "b=1"),
    setup.STRICT: ("SpecDec", "k=25, top-1"),
    setup.HIGH_QUALITY: ("SpecDec++", ""),
    setup.HIGH_EFFICIENCY: ("SpecDec++", ""),
}
ACCEPTANCE = ("emitted", "accepted", "of verified", "of drafted")
SPEED = ("iterations", "speed", "over greedy")


def rows_of(settings: Settings, setting: setup.Setup, keys: Keys, *heads: str) -> tuple[Row, ...]:
    """The rows that every setting has, behind the heads that tell settings apart."""
    k = f"k = {setup.gamma_of(settings, setting)}"
    shown = {
        setup.BEAM: (VERIFIER, "b = 5"),
        setup.THEIR_BEAM: (VERIFIER, "b = 5, transformers"),
        setup.GREEDY: (VERIFIER, "b = 1"),
        setup.ALONE: (setup.ALONE, k),
        setup.STRICT: (setup.STRICT, k),
        setup.HIGH_QUALITY: ("SpecDec++", f"{k}, {setup.QUALITY}"),
        setup.HIGH_EFFICIENCY: ("SpecDec++", f"{k}, {setup.EFFICIENCY}"),
    }
    return tuple(Row(row_name(*heads, *parts), arm, keys.get(arm)) for arm, parts in shown.items())


def section_of(settings: Settings, setting: setup.Setup, keys: Keys, *heads: str) -> Section:
    return Section(setup.arms_of(settings, setting), rows_of(settings, setting, keys, *heads))


def main_sections(settings: Settings) -> list[Section]:
    """Table 1: also the same verifier without distillation."""
    raw = Row(row_name("AT, no Seq-KD", "b = 5"), setup.BEAM, ("Transformer-base (AT)", "b=5, no Seq-KD"))
    return [Section(setup.beam_alone(settings, setup.RAW), (raw,)), section_of(settings, setup.EN_DE, MAIN_KEYS)]


def one_pair(settings: Settings) -> list[Section]:
    return [section_of(settings, setup.EN_DE, MAIN_KEYS)]


def repeating(settings: Settings) -> list[Section]:
    """Table 9, whose caption names the high-quality setting alone."""
    keys = {arm: key for arm, key in MAIN_KEYS.items() if arm != setup.HIGH_EFFICIENCY}
    return [section_of(settings, setup.EN_DE, keys)]


def summaries(settings: Settings) -> list[Section]:
    return [section_of(settings, setup.CNNDM, SUMMARY_KEYS)]


def summary_notes(settings: Settings) -> list[str]:
    return ["Which beta and tau the paper's SpecDec++ has here is not recovered; both of ours stand for it."]


def pair_sections(settings: Settings) -> list[Section]:
    return [section_of(settings, setting, MAIN_KEYS, pair) for pair, setting in setup.PAIRS.items()]


def teacher_sections(settings: Settings) -> list[Section]:
    settled = {
        "base, one": setup.EN_DE,
        "base, three": setup.THREE_TEACHERS,
        "big, one": setup.BIG,
        "big, three": setup.BIG_THREE_TEACHERS,
    }
    return [section_of(settings, setting, MAIN_KEYS, name) for name, setting in settled.items()]


def depth_sections(settings: Settings) -> list[Section]:
    """Table 11: named by the layers that the verifiers have here; the paper's have 6 + 6 and 12 + 2."""
    named = {"base": setup.EN_DE, "deep-shallow": setup.DEEP_SHALLOW}
    return [
        section_of(settings, setting, MAIN_KEYS, f"{name}, {setup.layers_of(settings, setting)}")
        for name, setting in named.items()
    ]


def bleu_sections(settings: Settings) -> list[Section]:
    return [
        section_of(settings, setting, MAIN_KEYS, pair)
        for pair, setting in {"EN-DE": setup.EN_DE, "EN-RO": setup.PAIRS["EN-RO"]}.items()
    ]


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
