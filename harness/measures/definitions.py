"""Every definition of acceptance in the literature, computed from one raw log: names, meanings, sources, and how they differ.

What a project's code counts is counted here on our rounds, or taken from what the project's engine wrote itself (``Counted``).
Two things no log of ours holds: drafts that a rule accepted behind a stopping EOS (they never entered the output; vLLM and
Spec-Bench count them), and trees of drafts (ours are chains). Sources that say "from memory" were not looked up again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.measures import of_run as measures
from harness.measures.counts import Counted, Counts
from harness.measures.logs import AnyLog, Measure, Ratio, Statistic, mapped, mean_of_means, plus_one, pooled
from harness.measures.pairing import steps_of, succeeded
from harness.measures.statistics import Estimate, halved
from methods.speculative import acceptance
from methods.speculative.theory import expected_tokens

HALVINGS = 60


@dataclass(frozen=True)
class Definition:
    """A name, what it means in a line, whose it is, and its estimate (95 % over examples); None where the log cannot tell."""

    name: str
    group: str
    meaning: str
    source: str
    measure: Measure
    lacking: str = "not recorded"

    def estimate(self, log: AnyLog) -> Estimate | None:
        """Measure it, or take the value that a log states without the counts behind it."""
        if isinstance(log, Counted) and self.name in log.given:
            return Estimate(log.given[self.name], None, None, 1)
        return self.measure(log)

    def reason(self, log: AnyLog) -> str:
        """Say why there is no estimate."""
        if not isinstance(log, Counted):
            return self.lacking
        return f"{self.lacking}, or {log.lacking}" if self.group == PLACE else log.lacking


def _overlap(log: AnyLog) -> Estimate | None:
    """At the rule's own lenience: the chance that a draft stands (Leviathan A.5)."""
    if isinstance(log, Counted):
        return None
    return measures.alpha_overlap(log.plain, log.drafter, 1.0 if log.lenience is None else log.lenience)


def _chances(log: AnyLog) -> Estimate | None:
    return None if isinstance(log, Counted) else measures.alpha_ratio(log.records)


def _inverted(log: AnyLog) -> Estimate | None:
    """Eq. 1 solved for alpha by bisection; only where every round may draft gamma tokens."""
    if (gamma := log.gamma) is None:
        return None

    def solved(tokens: float) -> float:
        return halved(lambda alpha: float(expected_tokens(alpha, gamma)) < tokens, steps=HALVINGS)

    return mapped(pooled(EMITTED)(log), solved)


def _over_configured(log: AnyLog) -> Estimate | None:
    """Drafts that a server is set up for, made or not: gamma a round."""
    gamma = log.gamma
    if not gamma:
        return None
    return mapped(pooled(ALL_ROUNDS)(log), lambda value: value / gamma)


def _of_whole_rounds(statistic: Statistic) -> Measure:
    """Return the ratio over all rounds; None where any draft's probabilities are unknown: a choice of rounds misleads."""

    def measure(log: AnyLog) -> Estimate | None:
        if isinstance(log, Counted):
            return None
        rounds = (steps_of(record) for record in succeeded(log.records) if record.steps is not None)
        return pooled(Ratio(statistic))(log) if all(map(acceptance.has_all_probs, rounds)) else None

    return measure


def _emitted(counts: Counts) -> acceptance.Statistic | None:
    return None if counts.emitted is None or counts.rounds is None else (float(counts.emitted), float(counts.rounds))


POINT_MASSES = Ratio(acceptance.alpha_point_mass)
VERIFIED = Ratio(acceptance.accepted_over_verified, lambda counts: counts.accepted_over(counts.verified))
BEFORE_EOS = Ratio(acceptance.accepted_over_drafted)
ALL_DRAFTS = Ratio(acceptance.accepted_over_all_drafted, lambda counts: counts.accepted_over(counts.drafted))
ALL_ROUNDS = Ratio(acceptance.accepted_per_step, lambda counts: counts.accepted_over(counts.rounds))
DRAFTING_ROUNDS = Ratio(acceptance.accepted_per_drafting_step, lambda counts: counts.accepted_over(counts.drafting))
MATCHES = Ratio(acceptance.matches_per_step)
EMITTED = Ratio(acceptance.tokens_per_step, _emitted)
ALPHA, SHARE, LENGTH, PLACE = "alpha", "share of the drafts", "tokens a round", "by position in the draft"
NOT_CONSTANT = "gamma is not constant"
PROBS_UNKNOWN = "the rule did not look at the probabilities of all drafts"
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
        _chances,
    ),
    Definition(
        "alpha_point_mass",
        ALPHA,
        "mean of p over the same drafts: alpha where a drawn draft is taken for a point mass, or must match a drawn token",
        "rule point-mass; vLLM's IS_NGRAM, SGLang's target-only verification, mlx-lm's exact match",
        pooled(POINT_MASSES, 1.0),
    ),
    Definition(
        "accepted_over_verified",
        ALPHA,
        "accepted over drafts up to and including the first rejection: alpha by counts",
        "Leviathan et al., Section 3.1; transformers' candidate_generator `matches` (from memory)",
        pooled(VERIFIED, 1.0),
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
        pooled(BEFORE_EOS, 1.0),
    ),
    Definition(
        "accepted_over_drafted_mean",
        SHARE,
        "the same, an example at a time, then the mean of examples",
        "this project; what a mean of per-request rates gives",
        mean_of_means(BEFORE_EOS),
    ),
    Definition(
        "vllm_draft_acceptance_rate",
        SHARE,
        "accepted over every draft made, behind an EOS too, pooled (vLLM prints percent)",
        "vLLM, v1/spec_decode/metrics.py; llama.cpp's accept rate (from memory)",
        pooled(ALL_DRAFTS, 1.0),
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
        pooled(ALL_ROUNDS),
    ),
    Definition(
        "transformers_n_matches",
        LENGTH,
        "the same, one less where a round ends on a draft, at EOS or at the length limit",
        "transformers 5.23, generation/utils.py: n_matches, which is taken anew behind such a cut",
        pooled(MATCHES),
    ),
    Definition(
        "expected_token_wise",
        LENGTH,
        "drafts that the token-wise rule accepts on average of those that were made, before any stop",
        "Leviathan et al., Algorithm 1",
        _of_whole_rounds(acceptance.expected_token_wise),
        PROBS_UNKNOWN,
    ),
    Definition(
        "expected_blocks",
        LENGTH,
        "the same of block verification, on the same drafts",
        "Sun et al. 2024, Algorithm 2",
        _of_whole_rounds(acceptance.expected_blocks),
        PROBS_UNKNOWN,
    ),
    Definition(
        "tokens_per_step",
        LENGTH,
        "tokens emitted a round, bonus counted, cut by EOS and length, pooled",
        "Leviathan et al., Eq. 1's left side; SGLang's spec_accept_length also counts the prompt pass's token",
        pooled(EMITTED),
    ),
    Definition(
        "tokens_per_step_mean",
        LENGTH,
        "the same, an example at a time, then the mean of examples",
        "SGLang's bench scripts: mean accept length of requests",
        mean_of_means(EMITTED),
    ),
    Definition(
        "eagle_tau",
        LENGTH,
        "tokens a pass of the target accepts, its own counted (the same as tokens_per_step on chains)",
        "EAGLE, average acceptance length tau (from memory)",
        pooled(EMITTED),
    ),
    Definition(
        "vllm_mean_acceptance_length",
        LENGTH,
        "1 + accepted / rounds that drafted: bonus always counted, plain steps left out",
        "vLLM, v1/spec_decode/metrics.py",
        plus_one(pooled(DRAFTING_ROUNDS)),
    ),
    Definition(
        "sglang_accept_length",
        LENGTH,
        "1 + accepted / rounds: bonus always counted, plain steps counted",
        "SGLang, scheduler_metrics_mixin.py: spec_accept_length",
        plus_one(pooled(ALL_ROUNDS)),
    ),
    Definition(
        "spec_bench_mean_accepted_tokens",
        LENGTH,
        "mean over all rounds of all examples of accepted + 1",
        "Spec-Bench, evaluation/speed.py on accept_lengths, which EAGLE's loop fills (from memory)",
        plus_one(pooled(ALL_ROUNDS)),
    ),
]


def _joint(position: int) -> Ratio:
    return Ratio(acceptance.position_joint(position), lambda counts: counts.joint(position))


def _conditional(position: int) -> Ratio:
    return Ratio(acceptance.position_conditional(position), lambda counts: counts.conditional(position))


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
                pooled(_joint(position), 1.0),
                "no round",
            ),
            Definition(
                f"position {position}, conditional",
                PLACE,
                f"rounds whose draft {position} stands, over rounds that decided on it",
                f"EAGLE, {position - 1}-alpha: evaluation/alpha.py's successes over trials (what a trial is: from memory)",
                pooled(_conditional(position), 1.0),
                "no round got there",
            ),
        ]
    return found


def definitions_of(logs: Sequence[AnyLog]) -> list[Definition]:
    """Return all definitions; those by position reach as far as the longest round of these logs."""
    chosen = list(DEFINITIONS)
    if any(log.lenience is not None for log in logs):
        chosen[0] = replace(chosen[0], meaning=chosen[0].meaning.replace("min(p, q)", "min(p / lenience, q)"))
    return chosen + of_positions(max((log.longest for log in logs), default=0))
