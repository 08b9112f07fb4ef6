"""What SpecDec's tables measure of an arm: how fast, how many tokens a round, how good."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness import block_measures, comet, measures
from harness.catalogue.specdec_notes import training_rows
from harness.catalogue.specdec_setup import BEAM, GREEDY, STRICT, THEIR_BEAM
from harness.experiment import Experiment
from harness.pairing import Refused, num_near_ties, succeeded
from harness.records import Record
from harness.sentence_speed import equal_frac, heaviest_example, mean_s, sentence_speedup
from harness.statistics import Estimate, ratio_of_examples
from tasks import get_task

Result = Estimate | Refused | None
Arm = tuple[Experiment, list[Record]]
Known = Mapping[str, Arm]
SPECULATIVE = ("speculative",)
OUR_OWN = ("autoregressive", "beam", "speculative", "drafter-alone")  # whose rounds are recorded


@dataclass(frozen=True, kw_only=True)
class Column:
    """A measure of the arm ``name`` among the arms that it ran with.

    ``needs`` are the other arms that it reads, ``methods`` those that have such a number (None: all). ``metric`` is its name in
    the published files, None where the paper has no such column. ``optional``: it needs what may not be installed; a refusal
    says what. ``papers_arm`` is the arm whose published number stands beside ``name``'s. ``reads_base``: it also needs the arm
    that ``base_of`` names.
    """

    measure: Callable[[Known, str], Result]
    unit: str = ""
    needs: tuple[str, ...] = ()
    methods: tuple[str, ...] | None = None
    metric: str | None = None
    optional: bool = False
    note: Callable[[Known, str], str] = lambda known, name: ""
    papers_arm: Callable[[Known, str], str] = lambda known, name: name
    reads_base: bool = False

    def reads(self, name: str) -> tuple[str, ...]:
        """The other arms that it needs for the arm ``name``."""
        return (*self.needs, base_of(name)) if self.reads_base else self.needs


def base_of(name: str) -> str:
    """The arm that another one is a change of: its name up to the last comma."""
    return name.rpartition(", ")[0]


def _of_arm(measure: Callable[[Sequence[Record]], Result]) -> Callable[[Known, str], Result]:
    return lambda known, name: measure(known[name][1])


def _over_greedy(known: Known, name: str) -> Result:
    greedy = known[GREEDY][1]
    return sentence_speedup(greedy, greedy, known[name][1])


def _over_strict(known: Known, name: str) -> Result:
    return sentence_speedup(known[GREEDY][1], known[STRICT][1], known[name][1])


def _without_heaviest(known: Known, name: str) -> str:
    """A speed over strict SpecDec without the sentence that weighs most in it, where that changes a digit that is shown.

    A rule that ends a loop early is faster there because it writes something else: where both write equally much, nothing is
    said.
    """
    whole, example = _over_strict(known, name), heaviest_example(known[STRICT][1], known[name][1])
    rest = {
        arm: (known[arm][0], [record for record in known[arm][1] if record.example != example])
        for arm in (GREEDY, STRICT, name)
    }
    without = _over_strict(rest, name)
    if not (isinstance(whole, Estimate) and isinstance(without, Estimate)) or f"{whole.value:.2f}" == f"{without.value:.2f}":
        return ""
    strict, ours = (
        next(len(one.tokens or ()) for one in succeeded(known[arm][1]) if one.example == example) for arm in (STRICT, name)
    )
    if strict == ours:
        return ""
    spread = "" if without.low is None else f" [{without.low:.2f}, {without.high:.2f}]"
    return f"{without.value:.2f}{spread} without {example}, where strict SpecDec writes {strict} tokens and this row {ours}"


def _of_base(known: Known, name: str) -> Result:
    of = measures.memory_access_factor(known[base_of(name)][1], known[name][1])
    if of is None:
        return None
    low, high = (None if end is None else 100 * end for end in (of.low, of.high))
    return Estimate(100 * of.value, low, high, of.n, "%")


def _over_beam(known: Known, name: str) -> Result:
    return sentence_speedup(known[GREEDY][1], known[faster_beam(known)][1], known[name][1])


def faster_beam(known: Known) -> str:
    """Which beam search is the paper's baseline."""
    return min((BEAM, THEIR_BEAM), key=lambda name: mean_s(known[name][1]))


def which_beam(known: Known, name: str) -> str:
    """Said once, beside the baseline itself; that both are runs of one search is counted."""
    if name != faster_beam(known):
        return ""
    same = equal_frac(known[BEAM][1], known[THEIR_BEAM][1])
    shared = (
        "no sentence was decoded by both" if same is None else f"{same.value:.1f}% of their outputs are equal, token for token"
    )
    return f"speed is over this arm, the faster of the two beam searches; {shared}"


def _papers_arm(known: Known, name: str) -> str:
    """Whose published speed stands beside an arm's: the paper's beam search is the baseline, here the faster of two."""
    beams = (BEAM, THEIR_BEAM)
    if name not in beams or not all(beam in known for beam in beams):
        return name
    return BEAM if name == faster_beam(known) else THEIR_BEAM


def _verdict(known: Known, name: str) -> str:
    """What the runner found where outputs must be greedy decoding's."""
    experiment, records = known[name]
    if experiment.method.name != "speculative" or experiment.method.rule != "top-1":
        return ""
    count = num_near_ties(records)
    return f"{count} of {len(records)} outputs part from greedy decoding's, each at a near-tie of two logits" if count else ""


def _metric(metric: str) -> Callable[[Known, str], Result]:
    def measure(known: Known, name: str) -> Result:
        experiment, records = known[name]
        return measures.of_task(get_task(experiment.task), records).get(metric)

    return measure


def _trained_on(known: Known, name: str) -> str:
    return training_rows(known[name][0])


def _comet(known: Known, name: str) -> Result:
    """The mean over sentences, first repeat; sources and references are the data's."""
    if not comet.is_installed():
        return Refused(comet.ABSENT)
    experiment, records = known[name]
    rows = get_task(experiment.task).examples(experiment.source, "test", experiment.limit, experiment.seed)
    examples = {example.id: example for example in rows}
    firsts = [record for record in succeeded(records) if record.repeat == 0 and record.example in examples]
    found = [examples[record.example] for record in firsts]
    sources, references = tuple(one.inputs["source"] for one in found), tuple(one.references[0] for one in found)
    scores = comet.comet_scores(sources, tuple(record.text or "" for record in firsts), references)
    if isinstance(scores, Refused):
        return scores
    return ratio_of_examples([(record.example, score, 1.0) for record, score in zip(firsts, scores, strict=True)])


COLUMNS = {
    "iterations": Column(measure=_of_arm(block_measures.iterations), unit="rounds", methods=OUR_OWN, metric="iterations"),
    "speed": Column(
        measure=_over_beam, unit="x", needs=(GREEDY, BEAM, THEIR_BEAM), metric="speed_x", note=which_beam,
        papers_arm=_papers_arm,
    ),
    "over greedy": Column(measure=_over_greedy, unit="x", needs=(GREEDY,)),
    "over strict": Column(
        measure=_over_strict, unit="x", needs=(GREEDY, STRICT), methods=SPECULATIVE, note=_without_heaviest
    ),
    "BLEU": Column(measure=_metric("bleu"), unit="BLEU", metric="BLEU", note=_trained_on),
    "sacreBLEU": Column(measure=_metric("sacrebleu"), unit="BLEU", metric="SacreBLEU"),
    "COMET": Column(measure=_comet, metric="COMET", optional=True),
    "ROUGE-1": Column(measure=_metric("rouge1"), unit="%", metric="ROUGE-1", note=_trained_on),
    "ROUGE-2": Column(measure=_metric("rouge2"), unit="%", metric="ROUGE-2"),
    "ROUGE-L": Column(measure=_metric("rougeL"), unit="%", metric="ROUGE-L"),
    "emitted": Column(
        measure=_of_arm(measures.tokens_per_step), unit="tokens", methods=SPECULATIVE, metric="mean_accepted_tokens"
    ),
    "of base": Column(measure=_of_base, unit="%", methods=SPECULATIVE, reads_base=True),
    "accepted": Column(measure=_of_arm(measures.accepted_per_step), unit="tokens", methods=SPECULATIVE),
    "of verified": Column(measure=_of_arm(measures.accepted_over_verified), methods=SPECULATIVE),
    "of drafted": Column(measure=_of_arm(measures.accepted_over_drafted), methods=SPECULATIVE),
    "as greedy": Column(
        measure=lambda known, name: equal_frac(known[GREEDY][1], known[name][1]), unit="%", needs=(GREEDY,), note=_verdict,
    ),
    "repetition": Column(measure=_of_arm(block_measures.repeated_pct), unit="%", metric="repetition_pct"),
}  # fmt: skip
