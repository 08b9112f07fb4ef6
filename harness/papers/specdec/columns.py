"""The columns of SpecDec's tables: how fast, how many tokens a round, how good; the paper's numbers; notes on the models."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from harness.core.experiment import Experiment, ModelSpec
from harness.core.settings import Settings
from harness.measures import of_run as measures
from harness.measures.pairing import incomparable, succeeded
from harness.measures.statistics import Estimate, Missing, ratio_of_examples
from harness.papers.specdec.measures import heaviest_example, iterations, mean_s, repeated_pct, sentence_speedup
from harness.papers.specdec.setup import BEAM, EFFICIENCY, GREEDY, PAPER, QUALITY, STRICT, THEIR_BEAM, data_of
from harness.tables import published
from harness.tables.base import Finding, Table
from harness.tables.engine import (
    PERPLEXITY,
    Arm,
    Column,
    Known,
    Notes,
    Result,
    Row,
    Sections,
    near_ties,
    no_notes,
    of_records,
    table,
)
from harness.tables.models import recipe_of
from harness.tables.published import Published
from harness.zoo.descriptions import BlockwiseRecipe, DrafterRecipe, PairRecipe, Recipe
from tasks import get_task
from tasks.summarization import rouge_signature
from tasks.translation import bleu_signature

Measure = Callable[[Known, Row], Result]
COMET_ABSENT = (
    "COMET needs the command comet-score on the PATH: install unbabel-comet in an environment of its own (it needs "
    "transformers < 5); it fetches the checkpoint Unbabel/wmt20-comet-da from the Hub"
)


def of_methods(*names: str) -> Callable[[Experiment | Missing | None, Row], bool]:
    """Restrict a column to arms of these methods. An arm that cannot be run has every column, each with the reason."""
    return lambda arm, row: not isinstance(arm, Experiment) or arm.method.name in names


SPECULATIVE = of_methods("speculative")
ROUNDS = of_methods("autoregressive", "beam", "speculative", "drafter-alone")  # the methods whose rounds are recorded


def base_of(arm: str) -> str:
    """The arm that this one is a change of: its name up to the last comma."""
    return arm.rpartition(", ")[0]


def faster_beam(known: Known) -> str:
    """The faster of our beam search and transformers': the paper's baseline."""
    return min((BEAM, THEIR_BEAM), key=lambda name: mean_s(known[name][1]))


def which_beam(known: Known, row: Row) -> str:
    """Say beside the baseline that it is the baseline, and how often the two searches agree."""
    baseline, other = (BEAM, THEIR_BEAM) if row.arm == BEAM else (THEIR_BEAM, BEAM)
    if row.arm != faster_beam(known):
        return ""
    refused = incomparable(known[baseline][1], known[other][1])
    whose = (
        f"of which the other's times were {refused.why.partition(':')[0]}" if refused else "the faster of the two beam searches"
    )
    same = measures.equal_frac(known[BEAM][1], known[THEIR_BEAM][1])
    shared = (
        "no sentence was decoded by both" if same is None else f"{same.value:.1f}% of their outputs are equal, token for token"
    )
    return f"speed is over this arm, {whose}; {shared}"


def _papers_arm(known: Known, arm: str) -> str:
    """The paper's speed of beam search stands beside the baseline, which is the faster of two here."""
    beams = (BEAM, THEIR_BEAM)
    if arm not in beams or not all(beam in known for beam in beams):
        return arm
    return BEAM if arm == faster_beam(known) else THEIR_BEAM


def speed_over(known: Known, baseline: str, row: Row) -> Result:
    """Seconds a sentence of a baseline over the row's."""
    return known.once(_speed_over, GREEDY, baseline, row.arm)


def _speed_over(greedy: Arm, baseline: Arm, method: Arm) -> Result:
    return sentence_speedup(greedy[1], baseline[1], method[1])


def _without_heaviest(known: Known, row: Row) -> str:
    """Give the speed over strict SpecDec without the sentence that weighs most in it, where that changes a printed digit.

    A rule that ends a loop early is faster there because it writes something else. Where both write equally much, the remark
    is empty.
    """
    whole, example = speed_over(known, STRICT, row), heaviest_example(known[STRICT][1], known[row.arm][1])
    rest = {
        arm: (known[arm][0], [record for record in known[arm][1] if record.example != example])
        for arm in (GREEDY, STRICT, row.arm)
    }
    without = speed_over(Known(rest, known.evidence), STRICT, row)
    if not (isinstance(whole, Estimate) and isinstance(without, Estimate)) or f"{whole.value:.2f}" == f"{without.value:.2f}":
        return ""
    strict, ours = (
        next(len(one.tokens or ()) for one in succeeded(known[arm][1]) if one.example == example) for arm in (STRICT, row.arm)
    )
    if strict == ours:
        return ""
    return f"{without.as_text('.2f')} without {example}, where strict SpecDec writes {strict} tokens and this row {ours}"


def _of_base(known: Known, row: Row) -> Result:
    found = measures.memory_access_factor(known[base_of(row.arm)][1], known[row.arm][1])
    return None if found is None else found.mapped(lambda share: 100 * share, "%")


def _near_ties(known: Known, row: Row) -> str:
    """Count the outputs of strict SpecDec that are not greedy decoding's."""
    is_strict = known[row.arm][0].method.values.get("rule") == "top-1"
    return near_ties(known, row, "greedy decoding's, each") if is_strict else ""


def _metric(name: str) -> Measure:
    def measure(known: Known, row: Row) -> Result:
        experiment, records = known[row.arm]
        return measures.of_task(get_task(experiment.task), records).get(name)

    return measure


def _comet(known: Known, row: Row) -> Result:
    """The mean over sentences of the scores that were given when the records were made."""
    scores = known.evidence.comet_of(known[row.arm][0])
    if scores is None:
        return Missing(COMET_ABSENT)
    if isinstance(scores, Missing):
        return scores
    return ratio_of_examples([(example, score, 1.0) for example, score in scores.items()])


def trained_on(known: Known, row: Row) -> str:
    """Say on how many rows the verifier of an arm was trained, where its data is a folder, which may hold few."""
    arm = known[row.arm][0]
    if arm.source in ("toy", "hub") or not isinstance(recipe_of(arm.target, arm), PairRecipe):
        return ""
    num_rows = known.evidence.facts_of(arm).get(arm.target.name, {}).get("training_rows")
    if num_rows is None:
        return "on how many rows verifier and drafter were trained is unknown: their corpus is not in the zoo's cache"
    return f"verifier and drafter were trained on {num_rows} rows"


def _bleu_note() -> str:
    return (
        f"BLEU: tokenised and case-sensitive, as in the paper ({bleu_signature('bleu')}): the international tokeniser stands "
        f"for Moses', which is not at hand. sacreBLEU: {bleu_signature('sacrebleu')}."
    )


COLUMNS = (
    Column(
        "iterations", of_records(iterations), "rounds", applies=ROUNDS, published="iterations",
        note="iterations: decoding rounds a sentence, as the paper counts them: steps of the search, tokens of AT, blocks "
        "of the drafter alone, drafts with their verification of SpecDec.",
    ),
    Column(
        "speed", lambda known, row: speed_over(known, faster_beam(known), row), "x", published="speed_x",
        reads=(GREEDY, BEAM, THEIR_BEAM), remark=which_beam, papers_arm=_papers_arm,
        note="speed: seconds a sentence of AT with beam 5 over the row's, batch 1, encoders included, all arms of a verifier "
        "interleaved; the faster of our beam search and transformers' is the baseline (the paper's was fairseq's). over "
        "greedy: the same over AT with b = 1, the fair comparison, since SpecDec gives greedy decoding's output.",
    ),
    Column("over greedy", lambda known, row: speed_over(known, GREEDY, row), "x", reads=(GREEDY,)),
    Column(
        "over strict", lambda known, row: speed_over(known, STRICT, row), "x",
        reads=(GREEDY, STRICT), applies=SPECULATIVE, remark=_without_heaviest,
        note="over strict: the same over SpecDec that accepts the verifier's first choices alone.",
    ),
    Column("BLEU", _metric("bleu"), "BLEU", published="BLEU", remark=trained_on, note=_bleu_note),
    Column("sacreBLEU", _metric("sacrebleu"), "BLEU", published="SacreBLEU"),
    Column(
        "ROUGE-1", _metric("rouge1"), "%", published="ROUGE-1", remark=trained_on,
        note=lambda: f"ROUGE: {rouge_signature()}.",
    ),
    Column("ROUGE-2", _metric("rouge2"), "%", published="ROUGE-2"),
    Column("ROUGE-L", _metric("rougeL"), "%", published="ROUGE-L"),
    Column(
        "as greedy", lambda known, row: measures.equal_frac(known[GREEDY][1], known[row.arm][1]), "%", reads=(GREEDY,),
        remark=_near_ties,
        note="as greedy: percent of outputs that are AT's with b = 1, token for token. Where one of strict SpecDec is not, "
        "the runner replays both in fp64, and anything but a near-tie of two logits bars its speed.",
    ),
    Column(
        "emitted", of_records(measures.tokens_per_step), "tokens", applies=SPECULATIVE, published="mean_accepted_tokens",
        note="emitted: tokens a round, the verifier's own included (what the authors' code calls accepted tokens); accepted: "
        "drafted tokens that stood, a round; of verified, of drafted: the same over drafts up to the first refused one, over "
        "all.",
    ),
    Column(
        "of base", _of_base, "%", applies=SPECULATIVE, reads=lambda arm: (base_of(arm),),
        note="of base: tokens a round, percent of those of the drafter that the row is a change of, which is its name up to "
        "the last comma, the same sentences.",
    ),
    PERPLEXITY,
    Column("accepted", of_records(measures.accepted_per_step), "tokens", applies=SPECULATIVE),
    Column("of verified", of_records(measures.accepted_over_verified), applies=SPECULATIVE),
    Column("of drafted", of_records(measures.accepted_over_drafted), applies=SPECULATIVE),
    Column(
        "repetition", of_records(repeated_pct), "%", published="repetition_pct",
        note="repetition: percent of tokens that repeat the one before them.",
    ),
    Column(
        "COMET", _comet, published="COMET", optional=True,
        note="COMET: wmt20-comet-da, as in the paper, the mean over sentences.",
    ),
)  # fmt: skip
BY_TITLE = {column.title: column for column in COLUMNS}


def printed_value(name: str, metrics: Collection[str], key: tuple[str, str], metric: str) -> Published:
    """The paper's number of (model, setting) in a published table that has the columns ``metrics``.

    It is "not recovered" also where all that is left of a whole table, or of a row, is that it was there.
    """
    if metric not in metrics:
        return None
    rows = published.read(PAPER, name)
    mine = {row["metric"]: row for row in rows if (row["model"], row["setting"]) == key}
    if metric in mine:
        return published.value(mine[metric], "value")
    if any(row["note"] == "footnote" for row in mine.values()):
        return None  # a number of the table's footnotes, which has no row
    return "not recovered" if _is_lost(rows, mine, metric) else None


def _is_lost(rows: Sequence[published.Row], mine: Collection[str], metric: str) -> bool:
    """Say whether a line that stands for many numbers is lost (a whole table's, all ROUGE of a row, every speed of a table)."""
    whole = any("all" in (row["metric"], row["model"].split()[0], row["setting"].split(" ")[0]) for row in rows)
    speeds = metric == "speed_x" and any(row["metric"] == metric for row in rows)
    return whole or metric.split("-")[0] in mine or bool(mine and speeds)


def table_of(
    number: int, paper_number: int, title: str, row_heads: tuple[str, ...], blocks: tuple[tuple[str, ...], ...],
    metrics: tuple[str, ...], sections: Sections, first_notes: Notes = no_notes, findings: Sequence[Finding] = (),
) -> Table:  # fmt: skip
    """A table of COLUMNS. ``metrics`` are those that the paper's table has. Without ``findings`` it is not committed."""
    name = f"table_{paper_number}"
    return table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=row_heads,
        columns=COLUMNS,
        sections=sections,
        blocks=blocks,
        published=partial(printed_value, name, metrics),
        first_notes=lambda settings: [*source_notes(name), *first_notes(settings)],
        last_notes=arm_notes,
        findings=findings,
        data=data_of,
        is_committed=bool(findings),
    )


def source_notes(name: str) -> list[str]:
    """Name the numbers of a published table that are from another version of the paper, or cited by others."""
    foreign: dict[str, list[str]] = {}
    for row in published.read(PAPER, name):
        if row["value"] and "public text" in row["source"] and "paper text" not in row["source"]:
            origin = f"{row['note']}, from a {row['source']}"
            foreign.setdefault(origin, []).append(f"{row['metric']} of {row['model']}, {row['setting']}")
    return [f"(paper): {'; '.join(cells)}: {origin}." for origin, cells in foreign.items()]


def arm_notes(settings: Settings, arms: Sequence[Experiment]) -> list[str]:
    """Describe the models and the relaxed rule of the arms; no notes without arms."""
    if not arms:
        return []
    drafters = [arm.method.drafter.model for arm in arms if arm.method.drafter is not None]
    specs = dict.fromkeys([arm.target for arm in arms] + [spec for spec in drafters if spec is not None])
    notes = [f"Models here: {'; '.join(_described(spec, arms[0]) for spec in specs)}."]
    if any(spec.zoo_name is not None for spec in specs) and arms[0].profile != "paper":
        notes.append(
            "zoo: models of the same family, far smaller and of other shapes than the paper's, trained here on the training "
            "part of the same data: teacher, the corpus that it writes, verifier and drafter on that. Models of other updates "
            "than the base ones differ for that reason too. Each model is one training: intervals cover sentences, not what "
            "another training would have given."
        )
    if any(arm.method.values.get("rule") == "top-beta" for arm in arms):
        notes.append(
            "SpecDec++ is the rule (top-beta, tau) on the verifier's scores, as in the authors' code; the paper's equations "
            f"print the drafter's. High quality: {QUALITY}; high efficiency: {EFFICIENCY}. A block that stands whole is "
            "followed by the verifier's own token."
        )
    return notes


def _described(spec: ModelSpec, arm: Experiment) -> str:
    """A zoo model's shape, how many updates it was trained for, and what it began with; else its name."""
    recipe = recipe_of(spec, arm)
    if not isinstance(recipe, Recipe):
        return spec.name
    shape = f"{recipe.num_encoder_layers} + {recipe.num_layers} layers, width {recipe.width}"
    if isinstance(recipe, BlockwiseRecipe):
        shape = f"{recipe.num_drafts} heads on {recipe.verifier.name}"
    if isinstance(recipe, DrafterRecipe):
        shape += f", k = {recipe.block_size}"
    begun = recipe.initial if isinstance(recipe, DrafterRecipe) else None
    behind = "" if begun is None else f" behind {begun.steps} of {begun.name}"
    return f"{spec.name} ({shape}, {recipe.steps} updates{behind})"
