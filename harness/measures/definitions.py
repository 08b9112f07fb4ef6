"""Every definition of acceptance in the literature, computed from one raw log: names, meanings, sources, and how they differ.

What a project's code counts is counted here on our rounds. Two things no log of ours holds: drafts that a rule accepted behind
a stopping EOS (they never entered the output; vLLM and Spec-Bench count them), and trees of drafts (ours are chains). Sources
that say "from memory" were not looked up again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.measures import of_run as measures
from harness.measures.pairing import steps_of, succeeded
from harness.measures.statistics import Estimate, ratio_of_examples
from methods.speculative import acceptance
from methods.speculative.theory import expected_tokens
from methods.steps import Step

Statistic = Callable[[Iterable[Step]], acceptance.Statistic]
HALVINGS = 60


@dataclass(frozen=True)
class Log:
    """A draft-and-verify arm's description and records, and those of the plain arm over whose output alpha was measured."""

    experiment: Experiment
    records: Sequence[Record]
    plain: Sequence[Record] = ()

    @property
    def drafter(self) -> str:
        return self.experiment.method.drafter.label if self.experiment.method.drafter is not None else ""

    @property
    def gamma(self) -> int | None:
        """Return how many tokens every round may draft; None without a schedule, or with one that changes it."""
        method = self.experiment.method
        return method.gamma if method.schedule is not None and method.has_constant_gamma else None

    @property
    def longest(self) -> int:
        """The most drafts of a round."""
        return max((len(one) for record in succeeded(self.records) if record.steps for one in record.steps.drafted), default=0)


@dataclass(frozen=True)
class Definition:
    """A name, what it means in a line, whose it is, and its estimate (95 % over examples); None where the log cannot tell."""

    name: str
    group: str
    meaning: str
    source: str
    measure: Callable[[Log], Estimate | None]
    lacking: str = "not recorded"


def pooled(statistic: Statistic, whole: float | None = None) -> Callable[[Log], Estimate | None]:
    """Return the ratio of sums over all rounds of all examples; ``whole`` as in ``ratio_of_totals``."""
    return lambda log: ratio_of_examples(_rows(log, statistic), whole=whole)


def mean_of_means(statistic: Statistic) -> Callable[[Log], Estimate | None]:
    """Return the mean over examples of each one's own ratio (its repeats pooled); examples that count nothing are left out."""

    def measure(log: Log) -> Estimate | None:
        totals: dict[str, list[float]] = {}
        for example, numerator, denominator in _rows(log, statistic):
            total = totals.setdefault(example, [0.0, 0.0])
            total[0], total[1] = total[0] + numerator, total[1] + denominator
        return ratio_of_examples([(example, top / bottom, 1.0) for example, (top, bottom) in totals.items() if bottom])

    return measure


def plus_one(measure: Callable[[Log], Estimate | None]) -> Callable[[Log], Estimate | None]:
    """Count the token that the target adds to every round, also to one that a stop has cut."""
    return lambda log: _mapped(measure(log), lambda value: value + 1)


def _rows(log: Log, statistic: Statistic) -> list[tuple[str, float, float]]:
    good = [record for record in succeeded(log.records) if record.steps is not None]
    return [(record.example, *statistic(steps_of(record))) for record in good]


def _mapped(found: Estimate | None, change: Callable[[float], float]) -> Estimate | None:
    """Percentile intervals follow any increasing change of what they are about."""
    if found is None:
        return None
    return found.mapped(change, found.unit)


def _overlap(log: Log) -> Estimate | None:
    """At the rule's own lenience: the chance that a draft stands (Leviathan A.5)."""
    method = log.experiment.method
    return measures.alpha_overlap(log.plain, log.drafter, method.values.get("lenience", 1.0))


def _inverted(log: Log) -> Estimate | None:
    """Eq. 1 solved for alpha by bisection; only where every round may draft gamma tokens."""
    if (gamma := log.gamma) is None:
        return None

    def solved(tokens: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if float(expected_tokens(middle, gamma)) < tokens else (low, middle)
        return (low + high) / 2

    return _mapped(pooled(acceptance.tokens_per_step)(log), solved)


def _over_configured(log: Log) -> Estimate | None:
    """Drafts that a server is set up for, made or not: gamma a round."""
    gamma = log.gamma
    if gamma is None:
        return None
    return _mapped(pooled(acceptance.accepted_per_step)(log), lambda value: value / gamma)


ALPHA, SHARE, LENGTH, PLACE = "alpha", "share of the drafts", "tokens a round", "by position in the draft"
NOT_CONSTANT = "gamma is not constant"
DEFINITIONS = [
    Definition(
        "alpha_overlap",
        ALPHA,
        "mean of sum_x min(p, q) over the target's own output; the only one that enters Eq. 1",
        "Leviathan et al., Corollary 3.6",
        _overlap,
        "no plain arm with this drafter's overlap lies beside it",
    ),
    Definition(
        "alpha_ratio",
        ALPHA,
        "mean of min(1, p / q) over drafts up to and including the first rejection",
        "Leviathan et al., Definition 3.1 on the drafts at hand",
        lambda log: measures.alpha_ratio(log.records),
    ),
    Definition(
        "accepted_over_verified",
        ALPHA,
        "accepted over drafts up to and including the first rejection: alpha by counts",
        "Leviathan et al., Section 3.1; transformers' candidate_generator `matches` (from memory)",
        pooled(acceptance.accepted_over_verified, 1.0),
    ),
    Definition(
        "alpha_eq1",
        ALPHA,
        "the alpha at which Eq. 1 gives tokens_per_step (too low where rounds are cut or draft less)",
        "Leviathan et al., Eq. 1, solved",
        _inverted,
        NOT_CONSTANT,
    ),
    Definition(
        "accepted_over_drafted",
        SHARE,
        "accepted over drafted, pooled; drafts behind an EOS do not count",
        "this project",
        pooled(acceptance.accepted_over_drafted, 1.0),
    ),
    Definition(
        "accepted_over_drafted_mean",
        SHARE,
        "the same, an example at a time, then the mean of examples",
        "this project; what a mean of per-request rates gives",
        mean_of_means(acceptance.accepted_over_drafted),
    ),
    Definition(
        "vllm_draft_acceptance_rate",
        SHARE,
        "accepted over every draft made, behind an EOS too, pooled (vLLM prints percent)",
        "vLLM, v1/spec_decode/metrics.py; llama.cpp's accept rate (from memory)",
        pooled(acceptance.accepted_over_all_drafted, 1.0),
    ),
    Definition(
        "sglang_accept_rate",
        SHARE,
        "accepted over gamma a round, whether drafted or not (older versions count the bonus in both)",
        "SGLang, scheduler_metrics_mixin.py: spec_accept_rate",
        _over_configured,
        NOT_CONSTANT,
    ),
    Definition(
        "accepted_per_step",
        LENGTH,
        "accepted drafts a round, bonus left out, plain steps counted as rounds",
        "this project",
        pooled(acceptance.accepted_per_step),
    ),
    Definition(
        "transformers_n_matches",
        LENGTH,
        "the same, one less where all drafts stand and the last is the EOS",
        "transformers, generation/utils.py: n_matches",
        pooled(acceptance.matches_per_step),
    ),
    Definition(
        "tokens_per_step",
        LENGTH,
        "tokens emitted a round, bonus counted, cut by EOS and length, pooled",
        "Leviathan et al., Eq. 1's left side; SGLang: completion_tokens / spec_verify_ct",
        pooled(acceptance.tokens_per_step),
    ),
    Definition(
        "tokens_per_step_mean",
        LENGTH,
        "the same, an example at a time, then the mean of examples",
        "SGLang's bench scripts: mean accept length of requests",
        mean_of_means(acceptance.tokens_per_step),
    ),
    Definition(
        "eagle_tau",
        LENGTH,
        "tokens a pass of the target accepts, its own counted (the same as tokens_per_step on chains)",
        "EAGLE, average acceptance length tau (from memory)",
        pooled(acceptance.tokens_per_step),
    ),
    Definition(
        "vllm_mean_acceptance_length",
        LENGTH,
        "1 + accepted / rounds that drafted: bonus always counted, plain steps left out",
        "vLLM, v1/spec_decode/metrics.py",
        plus_one(pooled(acceptance.accepted_per_drafting_step)),
    ),
    Definition(
        "sglang_accept_length",
        LENGTH,
        "1 + accepted / rounds: bonus always counted, plain steps counted",
        "SGLang, scheduler_metrics_mixin.py: spec_accept_length",
        plus_one(pooled(acceptance.accepted_per_step)),
    ),
    Definition(
        "spec_bench_mean_accepted_tokens",
        LENGTH,
        "mean over all rounds of all examples of accepted + 1",
        "Spec-Bench, evaluation/speed.py on accept_lengths, which EAGLE's loop fills (from memory)",
        plus_one(pooled(acceptance.accepted_per_step)),
    ),
]


def of_positions(longest: int) -> list[Definition]:
    """Return two definitions a position: of all rounds, and of those that got there."""
    found = []
    for position in range(1, longest + 1):
        first = f"first {position} drafts stand" if position > 1 else "first draft stands"
        found += [
            Definition(
                f"position {position}, joint",
                PLACE,
                f"rounds whose {first}, over rounds that drafted",
                "vLLM, per-position acceptance rate",
                pooled(acceptance.position_joint(position), 1.0),
                "no round",
            ),
            Definition(
                f"position {position}, conditional",
                PLACE,
                f"rounds whose draft {position} stands, over rounds that decided on it",
                f"EAGLE, {position - 1}-alpha: evaluation/alpha.py's successes over trials (what a trial is: from memory)",
                pooled(acceptance.position_conditional(position), 1.0),
                "no round got there",
            ),
        ]
    return found


def definitions_of(logs: Sequence[Log]) -> list[Definition]:
    """Return all definitions; those by position reach as far as the longest round of these logs."""
    lenient = next((log.experiment.method for log in logs if "lenience" in log.experiment.method.values), None)
    chosen = list(DEFINITIONS)
    if lenient is not None:
        chosen[0] = replace(chosen[0], meaning=chosen[0].meaning.replace("min(p, q)", "min(p / lenience, q)"))
    return chosen + of_positions(max((log.longest for log in logs), default=0))
