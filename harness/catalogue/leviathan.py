"""Leviathan et al., Tables 1 and 3 (catalogue 7 and 9): the theory's trade-off, and alpha by model pair and task."""

from harness.catalogue import published
from harness.catalogue.base import Cell, RecordsOf, Settings, Table, cell_of, computed, impossible, row_name
from harness.catalogue.leviathan_setup import (
    LENIENCES,
    PAPER,
    ROLES,
    SETUPS,
    Absent,
    autoregressive,
    drafter,
    drafters,
    model_notes,
    model_of,
    temperatures,
)
from harness.experiment import Comparison, Experiment
from harness.measures import alpha_overlap, num_tokens, repetition_frac
from harness.records import Record
from harness.statistics import Estimate
from methods.speculative import theory

LAMDA = "LaMDA (137B)"
MUCH_REPETITION = 0.5
NGRAMS = ("Unigram", "Bigram")


def tradeoff_cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    """Table 1: Theorems 3.8 and 3.11 at c = 0 and c hat = 0 beside the printed digits."""
    cells = []
    for row in published.read(PAPER, "table_1"):
        alpha, gamma = float(row["alpha"]), int(row["gamma"])
        name = row_name(row["alpha"], row["gamma"])
        operations = float(theory.operations_factor(alpha, gamma))
        cells.append(computed(name, "operations", published.value(row, "operations_x"), operations, "x"))
        cells.append(
            computed(name, "speed", published.value(row, "speed_x"), float(theory.walltime_factor(alpha, gamma, 0)), "x")
        )
    return cells


def setup_key(target: str) -> str:
    """The setup of a row of Table 3: "T5-XXL (EnDe)" is the task's, the others are named by their target."""
    return target.removeprefix("T5-XXL (").removesuffix(")") if target.startswith("T5-XXL") else target


def alpha_arm(settings: Settings, key: str, temperature: float) -> Experiment:
    """The target's own output at a temperature, with the overlap of every drafter of that setting at once.

    Translation at temperature 1 is also measured at the values of lenience, so that Tables 3 and 5 share the arm.
    """
    setup = SETUPS[key]
    asked = drafters(settings, setup, (*(NGRAMS if setup.ngrams else ()), *setup.drafts))
    leniences = LENIENCES if key == "EnDe" and temperature > 0 else (1.0,)
    return autoregressive(settings, setup, temperature, timed=False, overlap=asked, leniences=leniences)


def alpha_arms(settings: Settings) -> dict[tuple[str, float], Experiment]:
    rows = published.read(PAPER, "table_3")
    keys = dict.fromkeys((setup_key(row["target"]), float(row["temp"])) for row in rows)
    return {(key, temperature): alpha_arm(settings, key, temperature) for key, temperature in keys}


def alpha_plan(settings: Settings) -> list[Comparison]:
    return [Comparison((arm,)) for arm in alpha_arms(settings).values()]


def alpha_cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    """Table 3: mean of sum min(p, q) over the target's own tokens, and how many tokens that was."""
    arms = {key: (arm, records_of(arm)) for key, arm in alpha_arms(settings).items()}
    cells = []
    for row in published.read(PAPER, "table_3"):
        key, temperature = setup_key(row["target"]), float(row["temp"])
        name, alpha = row_name(row["target"], row["draft"], row["temp"]), published.value(row, "alpha")
        if key == LAMDA:
            cells += _impossible_pair(name, alpha, _standin(settings, row["draft"]))
        else:
            cells += _alpha_pair(name, alpha, drafter(settings, SETUPS[key], row["draft"]), *arms[key, temperature])
    for temperature in temperatures(published.read(PAPER, "table_3")):
        for draft in SETUPS[LAMDA].drafts:
            cells += _standin_cells(settings, draft, temperature, *arms[LAMDA, temperature])
    return cells


def _alpha_pair(name: str, alpha: published.Published, draft: object, arm: Experiment, records: list[Record]) -> list[Cell]:
    tokens = float(published.claim(PAPER, "alpha tokens"))
    if isinstance(draft, Absent):
        return _impossible_pair(name, alpha, draft.why)
    label = draft.label  # type: ignore[attr-defined]
    return [
        cell_of(name, "alpha", alpha, [(arm, records)], lambda: alpha_overlap(records, label), note=_loops(records)),
        cell_of(name, "tokens", tokens, [(arm, records)], lambda: _count(records), "tokens"),
    ]


def _loops(records: list[Record]) -> str:
    """Says where the target's own text is a loop: such an alpha is about repetition, not about the task."""
    repeated = repetition_frac(records)
    if repeated is None or repeated.value < MUCH_REPETITION:
        return ""
    return f"{repeated.value:.0%} of the output's 4-grams repeat earlier ones: a loop, which inflates alpha"


def _count(records: list[Record]) -> Estimate:
    return Estimate(
        num_tokens(records), None, None, len({record.example for record in records if record.status == "ok"}), "tokens"
    )


def _impossible_pair(name: str, alpha: published.Published, why: str) -> list[Cell]:
    tokens = float(published.claim(PAPER, "alpha tokens"))
    return [impossible(name, "alpha", alpha, why), impossible(name, "tokens", tokens, why, "tokens")]


def _standin(settings: Settings, draft: str) -> str:
    """Why a LaMDA row cannot run and which public pair stands in for it."""
    role, public = SETUPS[LAMDA].drafts[draft], ROLES["paper"]
    why = f"LaMDA is not public; with PROFILE=paper {public[SETUPS[LAMDA].target]} with {public[role]} stands in"
    if settings.profile == "paper":
        return why.replace("with PROFILE=paper ", "") + ", see its row below"
    name = model_of(settings, role)
    return f"{why}; here {name.why if isinstance(name, Absent) else f'{name} does, see its row below'}"


def _standin_cells(settings: Settings, draft: str, temperature: float, arm: Experiment, records: list[Record]) -> list[Cell]:
    """The public pair's own rows: no published number stands beside them. Profiles without that draft have no such row."""
    spec = drafter(settings, SETUPS[LAMDA], draft)
    if isinstance(spec, Absent):
        return []
    name = row_name(f"stand-in: {_label(arm.target.name)}", f"{spec.label} for {draft}", f"{temperature:g}")
    cells = _alpha_pair(name, None, spec, arm, records)
    return [cells[0], Cell(**{**vars(cells[1]), "published": None})]


def _label(model: str) -> str:
    return model.removeprefix("zoo:").rsplit("/", 1)[-1]


def alpha_notes(settings: Settings) -> list[str]:
    roles = [
        role
        for setup in (SETUPS["EnDe"], SETUPS["GPT-like (97M)"], SETUPS[LAMDA])
        for role in (setup.target, *setup.drafts.values())
    ]
    return [
        "alpha is alpha_overlap: the mean of sum min(p, q) over tokens that the target itself generated, both adjusted alike.",
        "Intervals resample examples; n counts examples. LIMIT=N sets how many; the paper measures 10,000 tokens a setting.",
        f"The stand-in rows filter to the top {SETUPS[LAMDA].top_k} tokens at temperature 1, as the paper's LaMDA rows do.",
        *model_notes(settings, roles),
    ]


def tradeoff_notes(settings: Settings) -> list[str]:
    return ["Computed from Theorems 3.8 and 3.11 at c = 0 and c hat = 0; nothing is run."]


TRADEOFF = Table(
    number=7,
    paper=PAPER,
    paper_number=1,
    title="the speed-up against the number of arithmetic operations",
    row_heads=("alpha", "gamma"),
    blocks=(("operations", "speed"),),
    plan=lambda settings: [],
    cells=tradeoff_cells,
    notes=tradeoff_notes,
)
ALPHA = Table(
    number=9,
    paper=PAPER,
    paper_number=3,
    title="alpha by model pair, task and temperature",
    row_heads=("target", "draft", "temp"),
    blocks=(("alpha", "tokens"),),
    plan=alpha_plan,
    cells=alpha_cells,
    notes=alpha_notes,
)
