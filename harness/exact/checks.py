"""The checks of an audit. Contracts send toy models through the same ones, and controls send wrong variants.

Identity: outputs are compared with plain decoding's, token by token.

Law: the law that a rule emits on real target and draft laws, integrated over its uniforms, must be within LAW_BOUND of the
target's at every place of a round and its bonus.

Samples: seeded outputs, drawn through models, caches and batches, must fit the target's law. Every position, and every place of
the first round and its bonus, is tested separately, at the level of the ground. An audit's level is Bonferroni's for up to
MAX_TESTS tests: all tests together raise a false alarm with a chance of at most 1e-6, and no verdict depends on which other
subjects are audited. A test that would likely miss a law that is MUST_FIND off passes nothing: its place is not tested. Ranks
and pairs of numbers, counted in equal parts of the law, find faults but see nothing that is moved within a part: only tests of
contexts, the rule's law and the replay earn "same distribution".

Replay: outputs longer than any cache's first size, each decision of which must be what the target and its numbers give.

Distance: how far a lossy method is from the target, with intervals over examples.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from harness.core.experiment import Experiment
from harness.core.messages import kind_and_line, one_line
from harness.core.records import Divergence, Record
from harness.exact.fit import CELLS, POWER, Fit, Sampled, draw_rows, fits_of, pooled_fits, stream_fits
from harness.exact.ground import LONG, NUM_DRAFT, NUM_POSITIONS, WINDOW_DRAFTS, Ground, ModelGround
from harness.exact.law import LAW_BOUND, Window
from harness.measures.statistics import ratio_of_examples
from harness.measures.verdicts import BLIND, GREEN, MUST_FIND, NOT_TESTED, as_earned
from harness.models.fit import Models
from harness.run.decode import outputs_of
from harness.run.divergence import first_difference
from harness.run.prompts import Prompt
from harness.run.replay import is_replayed, replay
from methods.autoregressive import Autoregressive
from methods.sampling import Sampling, Uniforms
from methods.speculative.decode import DraftAndVerify
from methods.speculative.overlap import teacher_logits
from methods.speculative.rules import ByLoop, ways_of
from methods.transformers_generate import TransformersGenerate
from methods.types import Guarantee, Method, Session, VerifyRule

KEPT, WINDOWS = 12, 1  # tokens and windows of the laws that an exact rule is integrated on
LOSSY_KEPT, LOSSY_WINDOWS = 48, 2
NOMINAL = 0.05
NOTE = 300  # characters of a plug-in's error that a finding shows
LAW_ROUNDING = 32 * 2.0**-24  # of a probability of fp32: of a fast exponential, the sum and the division behind it
STREAM_ROWS, STREAM_LENGTH = 100, 60  # of random numbers that are tested themselves
TRANSFORMERS_SHARE = 5  # transformers' loops are slow: they draw one in so many of the samples that others are tested with
HOT = 3.0  # a temperature
MAX_SHOWN = 3  # divergences in a finding; all are counted
Findings = dict[str, dict[str, Any]]  # JSON objects by the name of a subject or control
Row = tuple[str, float, float]  # an example, a sum over its places, and how many there are


@dataclass(frozen=True)
class Finding:
    """The result of one check: a verdict, one line about it, and its evidence in JSON's types."""

    verdict: str
    note: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict in (*GREEN, "kept")

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **self.evidence}


class _Broken(Exception):
    """A property does not hold; the message says how."""


def expect(holds: bool, otherwise: str) -> None:
    """Break the property unless the property holds."""
    if not holds:
        raise _Broken(otherwise)


Check = Callable[[], Finding | str | None]  # None or a note is a property that holds
Contract = Iterator[tuple[str, Check]]


def _attempt(check: str, run: Check) -> Finding:
    """Run one check, in inference mode as methods run. Any exception of a plug-in's code breaks this property and no other."""
    try:
        with torch.inference_mode():
            found = run()
    except Exception as error:
        note = one_line(error) if isinstance(error, _Broken) else kind_and_line(error)
        return Finding("broken", note[:NOTE], check=check)
    return replace(found, check=check) if isinstance(found, Finding) else Finding("kept", found or "", check=check)


def hold(contract: Contract) -> Iterator[Finding]:
    """Run the checks of a contract, one after the other. Where the first is broken, no other one means anything."""
    for number, (check, run) in enumerate(contract):
        finding = _attempt(check, run)
        yield finding
        if number == 0 and not finding.passed:
            return


def expect_guarantee(part: Any, protocol: type, methods: str) -> str:
    """Return the guarantee that a rule or method declares. Fails where there is none, or one of its ``methods`` is missing."""
    guarantee = getattr(part, "guarantee", None)
    expect(guarantee in get_args(Guarantee), f"guarantee {guarantee!r}: expected one of {', '.join(get_args(Guarantee))}")
    expect(isinstance(part, protocol), f"has no {methods}")
    return str(guarantee)


def check_identity(records: Sequence[Record], max_shown: int = MAX_SHOWN) -> Finding:
    """Sum up records whose divergences from plain decoding's outputs are known.

    The verdict is "identical", "near-tie" (rounding explains all divergences), "bug" (one it does not) or "failed" (an example
    has no output).
    """
    good = [record for record in records if record.status == "ok"]
    parted = [(record, record.divergence) for record in good if record.divergence is not None]
    parted.sort(key=lambda pair: pair[1].kind)  # bugs are shown first
    kinds = Counter(divergence.kind for _, divergence in parted)
    bugs, unresolved = kinds["bug"], kinds["unresolved"]
    replayed = sum(divergence.kind == "bug" and bool(divergence.what) for _, divergence in parted)
    error = next((record.error for record in records if record.status != "ok"), None)
    tokens = sum(len(record.tokens or ()) for record in good)
    evidence = {
        "prompts": len(records),
        "tokens": tokens,
        "near_ties": kinds["near-tie"],
        "bugs": bugs,
        "largest_margin": max((one.margin for _, one in parted if one.margin is not None), default=None),
        "divergences": [
            {**asdict(divergence), "example": record.example, "repeat": record.repeat}
            for record, divergence in parted[:max_shown]
        ],
        "error": error,
    }
    worst = "bug" if bugs else "unresolved" if unresolved else "near-tie" if parted else "identical"
    verdict = "failed" if error or not good else worst
    note = (
        f"{len(good) - len(parted)} of {len(good)} outputs ({tokens} tokens) equal the baseline's"
        + (" and the replay, " if replayed else ", ")
        + f"{kinds['near-tie']} part at a near-tie, {bugs - replayed} at a bug"
        + (f", {replayed} hold what no replay gives" if replayed else "")
        + (f", of {unresolved} memory did not suffice to tell" if unresolved else "")
    )
    return Finding(verdict, note, evidence)


def compare(
    example: str, expected: list[int], tokens: list[int], is_near_tie: Callable[[int], bool] = lambda position: False
) -> Record:
    """Make a record of an output and where it parts from the expected one; ``is_near_tie`` judges that position."""
    divergence = None
    if tokens != expected:
        position = first_difference(expected, tokens)
        kind: Literal["near-tie", "bug"] = "near-tie" if is_near_tie(position) else "bug"
        divergence = Divergence(position=position, margin=None, bound=None, replays_agree=False, kind=kind)
    return Record(signature="", example=example, repeat=0, status="ok", tokens=tokens, divergence=divergence)


def check_law(rule: VerifyRule, windows: Sequence[tuple[str, Window]], sampling: Sampling) -> Finding:
    """Hold the law of each place, at the token and window where it is farthest from the target's, against LAW_BOUND.

    Where a rule computes in fp32, a few roundings are allowed on top.
    """
    found: dict[str, float] = {}
    bound = LAW_BOUND + (0 if all(one.target_logits.dtype == torch.float64 for _, one in windows) else LAW_ROUNDING)
    for _, window in windows:
        emitted, law = window.laws(rule, sampling)
        for place, off in enumerate((emitted - law).abs().nan_to_num(nan=1.0).amax(-1).tolist()):  # NaN is no law
            name = "bonus" if place == WINDOW_DRAFTS else f"draft {place}"
            found[name] = max(found.get(name, 0.0), off)
    failed = [f"law of {place}" for place, deviation in found.items() if deviation > bound]
    verdict = "biased" if failed else "same distribution" if found else "unknown"
    note = (
        f"integrated over its uniforms, the rule's law is within {max(found.values(), default=0.0):.1e} of the target's "
        f"(limit {bound:g}) on {len(windows)} windows of {WINDOW_DRAFTS} drafts and a bonus"
    )
    return Finding(verdict, note, {"largest_deviation": found, "failed": failed})


def check_samples(samples: Sequence[Sampled], ground: Ground, num_draft: int = NUM_DRAFT) -> Finding:
    """Test outputs against the target's law.

    "not tested": no test of contexts could have found a law that is MUST_FIND off. "unknown": nothing was sampled, or where
    drafts are tested nothing drafted.
    """
    fits = fit_samples(samples, ground, num_draft)
    failed = [place for place, fit in fits.items() if not fit.passes(ground.level)]
    drafted = any(step.drafted for _, rows in samples for row in rows for step in row.steps)
    seen = fits["position 0"].num_samples and ("draft 0" not in fits or (drafted and fits["draft 0"].num_samples))
    finest, verdict = finest_tv(fits), passed_by(fits)
    verdict = "biased" if failed else verdict if seen else "unknown"
    note = f"{len(fits)} tests fit; the finest of contexts would likely find a law that is {finest:.2f} off (total variation)"
    if verdict == NOT_TESTED:
        note += f"; those of ranks see nothing that is moved within 1 / {CELLS} of the law"
    if failed:
        note = f"does not fit the target's law at {', '.join(failed)}"
    return Finding(verdict, note, {"failed": failed, "tests": {place: describe_fit(fit) for place, fit in fits.items()}})


def finest_tv(fits: Mapping[str, Fit]) -> float:
    """Return the total variation that the finest test of contexts would likely find: at most 1."""
    return min((1.0, *(fit.likely_tv for name, fit in fits.items() if not name.startswith(BLIND))))


def passed_by(fits: Mapping[str, Fit]) -> str:
    """Return the verdict that tests earn where none fails."""
    return "same distribution" if finest_tv(fits) <= MUST_FIND else NOT_TESTED


def fit_samples(samples: Sequence[Sampled], ground: Ground, num_draft: int) -> dict[str, Fit]:
    """Test every position, drafted place and bonus: in the contexts that are often seen, and over all contexts."""
    contexts = fits_of(samples, ground.laws, num_draft, NUM_POSITIONS, false_alarm=ground.level)
    return contexts | pooled_fits(samples, ground.new_session(), ground.sampling, ground.sizes.batch, num_draft, ground.level)


def describe_fit(fit: Fit) -> dict[str, Any]:
    """Return a test as JSON. A place whose contexts were all seen too seldom has no test, only a count of 0."""
    if fit.num_samples == 0:
        return {"samples": 0}
    return {"samples": fit.num_samples, "p": _round(fit.p_value), f"tv_at_power_{POWER:g}": _round(fit.likely_tv)}


def check_ways(
    rule: VerifyRule, windows: Sequence[tuple[str, Window]], sampling: Sampling, device: torch.device
) -> list[Finding]:
    """Check the law of a rule by everything that may decide for it on a device; what the rule itself decides is first."""
    return [check_law(way, windows, sampling) for way in ways_of(rule, device)]


def check_exact(method: Method, ground: Ground, drafts: bool) -> Finding:
    """Check the law of a method's rule, if it has one, and its samples; ``drafts``: it has a drafter.

    The verdict is "same distribution", "biased", "not tested", or "unknown" if no sample could be had.
    """
    laws, windows = list[Finding](), list[tuple[str, Window]]()
    if isinstance(method, DraftAndVerify):
        windows = ground.windows(method.drafter, WINDOWS, KEPT)
        laws = check_ways(method.rule, windows, ground.sampling, ground.new_session().device)
    assisted = isinstance(method, TransformersGenerate) and method.assistance is not None
    share = TRANSFORMERS_SHARE if assisted else 1
    samples = ground.samples(method, count=ground.sizes.samples // share)
    fit = check_samples(samples, ground, NUM_DRAFT if drafts else 0)
    steps = [step for _, rows in samples for row in rows for step in row.steps]
    evidence = {
        "failed": [
            *dict.fromkeys(place for law in laws for place in law.evidence["failed"]),
            *(f"samples of {place}" for place in fit.evidence["failed"]),
        ],
        "drafted": sum(len(step.drafted) for step in steps),
        "accepted": sum(step.num_accepted for step in steps),
        "windows": len(windows),
        "largest_deviation": max((law.evidence["largest_deviation"] for law in laws), key=_largest, default={}),
        "tests": fit.evidence["tests"],
    }
    return earned(Finding("biased" if evidence["failed"] else fit.verdict, fit.note, evidence))


def earned(finding: Finding) -> Finding:
    """Return a finding with the verdict that all its evidence earns."""
    return replace(finding, verdict=as_earned(finding.as_dict())["verdict"])


def _largest(deviations: Mapping[str, float]) -> float:
    return max(deviations.values(), default=0.0)


def check_replay(
    method: Method,
    ground: ModelGround,
    session: Session | None = None,
    uniforms_of: Callable[..., Uniforms] = Uniforms,
    length: int = LONG,
) -> Finding:
    """Decode long outputs, stopping at no token, and replay them. "unknown": the method's outputs cannot be replayed.

    Sampled ones also at a temperature at which a model goes on to vary behind its end of text, and rejects drafts.
    """
    decisions, longest, faults, own = 0, 0, list[str](), ground.sampling
    samplings = [] if not is_replayed(method, own) else [own] if own.greedy else [own, replace(own, temperature=HOT)]
    for (number, inputs), sampling in product(enumerate(ground.prefixes), samplings):
        first = ground.seed(f"replay {number}", 0) % 2**40
        seeds, reader = list(range(first, first + ground.replayed_rows)), replace(ground.reader, sampling=sampling)
        where = session or ground.decoding
        made = draw_rows(method, where, inputs, sampling, seeds, length, None, uniforms_of)[1]
        for seed, row in zip(seeds, made, strict=True):
            found = replay(method, reader, inputs, row, seed, length)
            if found is not None:
                decisions, longest = decisions + found.decisions, max(longest, len(row.tokens))
                faults += [] if found.fault is None else [found.fault.what]
    verdict = "bug" if faults else "same distribution" if decisions else "unknown"
    evidence = {"decisions": decisions, "longest": longest, "faults": len(faults), "what": sorted(set(faults))}
    return Finding(verdict, f"{decisions} decisions of outputs of up to {longest} tokens replayed", {"replayed": evidence})


def with_replay(finding: Finding, replayed: Finding) -> Finding:
    """Return a finding with a replay's evidence; what the replay has red is red, and what it held is tested."""
    verdict = finding.verdict if replayed.passed or replayed.verdict == "unknown" else replayed.verdict
    return earned(replace(finding, verdict=verdict, evidence={**finding.evidence, **replayed.evidence}))


def check_false_alarms(ground: Ground) -> Finding:
    """Test plain sampling several times: it must not be called biased, and small p-values must be rare.

    The random numbers that all methods draw with are tested too. A p-value bounds a chance, so at most NOMINAL of them may be
    below NOMINAL.
    """
    method, p_values, fits = Autoregressive(), list[float](), dict[str, Fit]()
    for series in range(ground.sizes.false_alarms):
        fits = fit_samples(ground.samples(method, series), ground, num_draft=0)
        p_values += [fit.p_value for fit in fits.values() if fit.num_samples]
    alarms, small = (sum(p <= level for p in p_values) for level in (ground.level, NOMINAL))
    streams = check_streams(ground)
    wrong = is_alarming(p_values, ground.level) or not streams.passed
    evidence = {
        "tests_made": len(p_values),
        "alarms": alarms,
        "below_0.05": small,
        "smallest_p": _round(min(p_values, default=1.0)),
        "tests": {place: describe_fit(fit) for place, fit in fits.items()} | streams.evidence["tests"],
        "failed": streams.evidence["failed"],
    }
    return Finding("unknown" if not p_values else "biased" if wrong else passed_by(fits), evidence=evidence)


def is_alarming(p_values: Sequence[float], level: float) -> bool:
    """Say whether p-values look biased, of which each bounds a chance: one is red, or more than NOMINAL are below NOMINAL."""
    return min(p_values, default=0.0) <= level or sum(p <= NOMINAL for p in p_values) > NOMINAL * len(p_values)


def check_streams(ground: Ground, uniforms_of: Callable[..., Uniforms] = Uniforms) -> Finding:
    """Test the random numbers themselves: independent of each other, and the same however many are read at a time."""
    first = ground.seed("streams", 0) % 2**40
    uniforms = uniforms_of(range(first, first + STREAM_ROWS), STREAM_LENGTH, ground.new_session().device)
    fits = stream_fits(uniforms, ground.level)
    failed = [name for name, fit in fits.items() if not fit.passes(ground.level)]
    start, together = [0] * STREAM_ROWS, uniforms.verify([0] * STREAM_ROWS, NUM_DRAFT)
    apart = [uniforms.verify([place] * STREAM_ROWS, 1)[:, :1] for place in range(NUM_DRAFT)]
    if not torch.equal(together, torch.cat((*apart, uniforms.sample(start).unsqueeze(-1)), 1)):
        failed.append("numbers of a round, read together or apart")
    evidence = {"failed": failed, "tests": {name: describe_fit(fit) for name, fit in fits.items()}}
    return Finding("biased" if failed else "same distribution", ", ".join(failed), evidence)


def check_lossy_law(method: DraftAndVerify, ground: Ground) -> Finding:
    """Measure total variation and KL (nats) of the law that a round emits from the target's, mean over a round's places.

    The law is integrated over the uniforms, given that the drafts before are accepted; the bonus is one of the places.
    """
    variation, nats = list[Row](), list[Row]()
    windows = ground.windows(method.drafter, LOSSY_WINDOWS, LOSSY_KEPT)
    for example, window in windows:
        emitted, law = window.laws(ByLoop(method.rule), ground.sampling)
        variation.append((example, float((emitted - law).abs().sum() / 2), float(len(law))))
        nats.append((example, float(_kl(emitted, law).sum()), float(len(law))))
    tests = check_samples(ground.samples(method), ground).evidence["tests"]
    return _distance(variation, nats, windows=len(windows), tests=tests)


def check_lossy_outputs(
    experiment: Experiment, records: Sequence[Record], prompts: Mapping[str, Prompt], models: Models
) -> Finding:
    """Measure how often a greedy token is not the target's first choice behind the same text, and the log-probability given up.

    The first is the total variation of two point masses; the second is in nats a token, at temperature 1.
    """
    good = [record for record in records if record.status == "ok" and record.tokens]
    if len(good) < len(records):
        first = next(record.error or "an empty output" for record in records if record not in good)
        return Finding("failed", evidence={"prompts": len(records), "error": first})
    target, variation, nats = models.get(experiment.target), list[Row](), list[Row]()
    for record in good:
        prompt = prompts[record.example]
        tokens = outputs_of(experiment, prompt, record.tokens or [], target)[0]
        logits = torch.cat(list(teacher_logits(target.session(), prompt.windows()[0], tokens)[1])).double().log_softmax(-1)
        emitted = logits.gather(-1, torch.tensor(tokens[: len(logits)], device=logits.device).unsqueeze(-1)).squeeze(-1)
        given_up = logits.amax(-1) - emitted
        variation.append((record.example, float((given_up > 0).sum()), float(len(given_up))))
        nats.append((record.example, float(given_up.sum()), float(len(given_up))))
    return _distance(variation, nats, prompts=len(records), tokens=sum(len(record.tokens or ()) for record in good))


def _distance(variation: Sequence[Row], nats: Sequence[Row], **evidence: Any) -> Finding:
    """Estimate both distances over examples: "lossy", or "no difference found" if the total variation is 0."""
    tv, kl = ratio_of_examples(variation, ends=(0.0, 1.0)), ratio_of_examples(nats)
    if tv is None:
        return Finding("failed", evidence={"error": "no output to measure a distance on", **evidence})
    verdict = "lossy" if tv.value > 1e-6 else "no difference found"
    return Finding(verdict, evidence={"tv": tv.as_dict(), "nats": kl and kl.as_dict(), **evidence})


def _kl(law: Float[Tensor, "n V"], target: Float[Tensor, "n V"]) -> Float[Tensor, " n"]:
    """Return the divergence of a law from the target's: infinite where it holds a token that the target cannot emit."""
    terms = torch.where(law > 0, law * (law / target).log(), torch.zeros_like(law))
    return terms.sum(-1).clamp(min=0.0)


def _round(value: float) -> float:
    """Keep three digits: rounding on another machine may move the last ones."""
    return float(f"{value:.3g}")
