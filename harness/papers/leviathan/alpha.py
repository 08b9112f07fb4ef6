"""Leviathan et al., Tables 1 and 3 (catalogue 7 and 9): the theory's trade-off, and alpha by model pair and task."""

from collections.abc import Sequence

from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.of_run import MUCH_REPETITION, alpha_overlap, num_tokens, repetition_frac
from harness.measures.pairing import succeeded
from harness.measures.statistics import Estimate, Missing, NotReached
from harness.papers.leviathan.setup import (
    LAMDA_TOP_K,
    LENIENCES,
    PAPER,
    ROLES,
    autoregressive,
    data_of,
    drafter,
    drafters,
    model_notes,
    model_of,
    overlaps,
    setup_of,
    temperatures,
)
from harness.tables import published
from harness.tables.base import Finding
from harness.tables.engine import Column, Known, Result, Row, Section, row_name, table
from harness.tables.finding import as_formula, by_head, order, with_and_without
from harness.tables.published import Published
from methods.speculative import theory

LAMDA = "LaMDA (137B)"
NGRAMS = ("Unigram", "Bigram")
ENDED, RUNAWAYS = "of ended", "outputs that loop or hit the length limit"


def _operations(known: Known, row: Row) -> Estimate:
    """Theorem 3.11 at c hat = 0."""
    return Estimate(float(theory.operations_factor(float(row.key["alpha"]), int(row.key["gamma"]))), None, None, 1)


def _speed(known: Known, row: Row) -> Estimate:
    """Theorem 3.8 at c = 0."""
    return Estimate(float(theory.walltime_factor(float(row.key["alpha"]), int(row.key["gamma"]), 0)), None, None, 1)


TRADEOFF = table(
    number=7,
    paper=PAPER,
    paper_number=1,
    title="the speed-up against the number of arithmetic operations",
    row_heads=("alpha", "gamma"),
    columns=(
        Column("operations", _operations, "x", published="operations_x", kind="planned"),
        Column("speed", _speed, "x", published="speed_x", kind="planned"),
    ),
    sections=lambda settings: [
        Section({}, tuple(Row(row_name(row["alpha"], row["gamma"]), key=row) for row in published.read(PAPER, "table_1")))
    ],
    first_notes=lambda settings: ["Computed from Theorems 3.8 and 3.11 at c = 0 and c hat = 0; nothing is run."],
    findings=(as_formula("the theory (Theorems 3.8 and 3.11)"),),
)


def setup_key(target: str) -> str:
    """The setup of a row of Table 3: "T5-XXL (EnDe)" is the task's, the others are named by their target."""
    return target.removeprefix("T5-XXL (").removesuffix(")") if target.startswith("T5-XXL") else target


def alpha_arm(settings: Settings, key: str, temperature: float) -> Experiment:
    """The target's own output at a temperature, with the overlap of every drafter of that setting at once.

    Translation at temperature 1 is also measured at the values of lenience, so that Tables 3 and 5 share the arm.
    """
    setup = setup_of(settings, key)
    asked = drafters(settings, setup, (*(NGRAMS if setup.ngrams else ()), *setup.drafts))
    leniences = LENIENCES if key == "EnDe" and temperature > 0 else (1.0,)
    return autoregressive(settings, setup, temperature, probes=overlaps(asked, leniences))


def sections(settings: Settings) -> list[Section]:
    """One section a target and temperature; then the public pairs that stand in for LaMDA, without published numbers."""
    groups = published.groups(PAPER, "table_3", "target", "temp")
    own = [_section(settings, setup_key(target), float(temp), rows) for (target, temp), rows in groups.items()]
    return [*own, *(_standins(settings, temp) for temp in temperatures(published.read(PAPER, "table_3")))]


def _section(settings: Settings, key: str, temperature: float, rows: Sequence[published.Row]) -> Section:
    """A row's key is its line of the published table, and the name under which the arm has the overlap with its draft."""
    arms, found = dict[str, Experiment | Missing](), []
    for row in rows:
        name = row["draft"]
        spec = Missing(_why_standin(settings, name)) if key == LAMDA else drafter(settings, setup_of(settings, key), name)
        arms[name] = spec if isinstance(spec, Missing) else alpha_arm(settings, key, temperature)
        label = "" if isinstance(spec, Missing) else spec.label
        drafted = None if isinstance(spec, Missing) else spec
        found.append(Row(row_name(row["target"], name, row["temp"]), name, (row, label), drafted))
    return Section(arms, tuple(found))


def _standins(settings: Settings, temperature: float) -> Section:
    """Profiles without a draft of some size have no row of it."""
    setup, arm = setup_of(settings, LAMDA), alpha_arm(settings, LAMDA, temperature)
    found = []
    for draft in setup.drafts:
        spec = drafter(settings, setup, draft)
        if not isinstance(spec, Missing):
            name = row_name(f"stand-in: {_label(arm.target.name)}", f"{spec.label} for {draft}", f"{temperature:g}")
            found.append(Row(name, "stand-in", (None, spec.label), spec))
    return Section({"stand-in": arm} if found else {}, tuple(found))


def _printed(key: tuple[published.Row | None, str], column: str) -> Published:
    """The paper's alpha; its number of tokens is one for all rows, and stand-ins have neither."""
    if key[0] is None:
        return None
    return float(published.claim(PAPER, "alpha tokens")) if column == "tokens" else published.value(key[0], column)


def _alpha(known: Known, row: Row) -> Result:
    """Mean of sum min(p, q) over the target's own tokens."""
    return alpha_overlap(known[row.arm][1], row.key[1])


def _runaways(known: Known, row: Row) -> str:
    """Say how many outputs loop or hit the length limit, and how many of the tokens are theirs."""
    records = succeeded(known[row.arm][1])
    away = [one for one in records if _runs_away(one)]
    share = num_tokens(away) / max(1, num_tokens(records))
    return f"{len(away)} of {len(records)} outputs loop or hit the length limit ({share:.0%} of the tokens)" if away else ""


def _alpha_of_ended(known: Known, row: Row) -> Result:
    """Alpha without the outputs that loop or hit the length limit, which hold more tokens than others."""
    ended = [one for one in succeeded(known[row.arm][1]) if not _runs_away(one)]
    return alpha_overlap(ended, row.key[1]) if ended else NotReached("every output loops or hits the length limit")


def _runs_away(record: Record) -> bool:
    repeated = repetition_frac([record])
    return record.stop_reason == "length" or (repeated is not None and repeated.value > MUCH_REPETITION)


def _count(known: Known, row: Row) -> Estimate:
    records = known[row.arm][1]
    return Estimate(num_tokens(records), None, None, len({record.example for record in succeeded(records)}), "tokens")


def _why_standin(settings: Settings, draft: str) -> str:
    """Say why a LaMDA row cannot run and which public pair stands in for it."""
    role, public = setup_of(settings, LAMDA).drafts[draft], ROLES["paper"]
    why = f"LaMDA is not public; with PROFILE=paper {public[setup_of(settings, LAMDA).target]} with {public[role]} stands in"
    if settings.profile == "paper":
        return why.replace("with PROFILE=paper ", "") + ", see its row below"
    name = model_of(settings, role)
    return f"{why}; here {name.why if isinstance(name, Missing) else f'{name} does, see its row below'}"


def _label(model: str) -> str:
    return model.removeprefix("zoo:").rsplit("/", 1)[-1]


def _is_neural(parts: Sequence[str]) -> bool:
    return parts[1] not in NGRAMS and not parts[0].startswith("stand-in")


def _last_notes(settings: Settings, arms: Sequence[Experiment]) -> list[str]:
    roles = [
        role
        for setup in (setup_of(settings, "EnDe"), setup_of(settings, "GPT-like (97M)"), setup_of(settings, LAMDA))
        for role in (setup.target, *setup.drafts.values())
    ]
    return [
        "Intervals resample examples; n counts examples. LIMIT=N sets how many; the paper measures 10,000 tokens a setting.",
        f"The stand-in rows filter to the top {LAMDA_TOP_K} tokens at temperature 1, as the paper's LaMDA rows do.",
        *model_notes(settings, roles),
    ]


def _by_temperature(column: str) -> Finding:
    return order(by_head(column, 2, "0", "1", _is_neural), "alpha", "at temperature 0", "at 1", "neural pairs")


def _by_draft(column: str) -> Finding:
    return order(by_head(column, 1, "T5-large", "T5-small"), "alpha", "with draft T5-large", "with T5-small", "settings")


ALPHA = table(
    number=9,
    paper=PAPER,
    paper_number=3,
    title="alpha by model pair, task and temperature",
    row_heads=("target", "draft", "temp"),
    columns=(
        Column(
            "alpha",
            _alpha,
            published="alpha",
            remark=_runaways,
            note="alpha is alpha_overlap: the mean of sum min(p, q) over tokens that the target itself generated, both "
            "adjusted alike.",
        ),
        Column(ENDED, _alpha_of_ended, note=f"{ENDED}: alpha without {RUNAWAYS}."),
        Column("tokens", _count, "tokens", published="tokens"),
    ),
    sections=sections,
    published=_printed,
    last_notes=_last_notes,
    data=data_of,
    findings=(
        with_and_without(_by_temperature("alpha"), _by_temperature(ENDED), RUNAWAYS),
        with_and_without(_by_draft("alpha"), _by_draft(ENDED), RUNAWAYS),
    ),
)
