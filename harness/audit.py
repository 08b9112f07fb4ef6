"""What a run says about exactness: its method's guarantee held against the plain arm of the same run.

Greedy: ids are compared, and the first divergence of an example is a "near-tie" only if the two largest logits there are
closer than rounding can move them and replays of both arms in fp64 agree with each other; anything else is a "bug".
Sampling: the rule's output law on this run's own target and draft distributions is integrated over its uniforms.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from harness.build import Models, build_drafter, build_method, build_rule
from harness.experiment import Comparison, Experiment
from harness.prompts import Prompt, make_prompt
from harness.records import Record
from harness.runner import Runner, generate
from methods.exactness import largest_deviation
from methods.sampling import Sampling
from methods.speculative.overlap import teacher_logits
from methods.types import Inputs, Session
from tasks import get_task

NEAR_TIE_FLOAT32 = 1e-4
ULPS = 8
LAW_BOUND = 1e-6
EXAMPLES, DRAFTS, KEPT = 2, 2, 24


@dataclass(frozen=True)
class Divergence:
    """Where an example's two outputs part, how close the decision was, and what a replay in fp64 says."""

    example: str
    repeat: int
    position: int
    margin: float
    bound: float
    replays_agree: bool

    @property
    def kind(self) -> str:
        return "near-tie" if self.margin < self.bound and self.replays_agree else "bug"


def audit(comparison: Comparison, records: list[list[Record]], runner: Runner) -> dict:
    """Verdict ("identical", "near-tie", "bug", "same distribution", "biased", "lossy", "baseline"), summary and evidence."""
    method = comparison.arms[-1]
    if len(comparison.arms) == 1:
        return _finding("baseline", "plain decoding is what others are compared with")
    if comparison.arms[0].method.name == "beam":
        return _identity(comparison, records, runner)
    models = runner.models(method)
    guarantee = build_method(method.method, models.get(method.target), models).guarantee
    if guarantee == "lossy":
        same = sum(a.tokens == b.tokens for a, b in _pairs(records[0], records[-1]))
        return _finding("lossy", f"by its definition; {same} of {len(records[-1])} outputs equal plain decoding's")
    if method.sampling.greedy:
        return _identity(comparison, records, runner)
    return _sampled(comparison, records, models)


def _finding(verdict: str, summary: str, **evidence: object) -> dict:
    return {"verdict": verdict, "summary": summary, **evidence}


def _pairs(baseline: list[Record], method: list[Record]) -> list[tuple[Record, Record]]:
    other = {record.key: record for record in baseline if record.status == "ok"}
    return [(other[record.key], record) for record in method if record.status == "ok" and record.key in other]


def _identity(comparison: Comparison, records: list[list[Record]], runner: Runner) -> dict:
    pairs = _pairs(records[0], records[-1])
    parted = [_divergence(comparison, plain, other, runner) for plain, other in pairs if plain.tokens != other.tokens]
    bugs = sum(found.kind == "bug" for found in parted)
    verdict = "bug" if bugs else "near-tie" if parted else "identical"
    tokens = sum(len(record.tokens or ()) for _, record in pairs)
    summary = (
        f"{len(pairs) - len(parted)} of {len(pairs)} outputs ({tokens} tokens) equal the baseline's, "
        f"{len(parted) - bugs} part at a near-tie, {bugs} at a bug"
    )
    return _finding(verdict, summary, compared=len(pairs), divergences=[vars(found) | {"kind": found.kind} for found in parted])


def _divergence(comparison: Comparison, plain: Record, other: Record, runner: Runner) -> Divergence:
    baseline, method = comparison.arms[0], comparison.arms[-1]
    ours, theirs = plain.tokens or [], other.tokens or []
    position = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    logits = _logits_at(baseline, plain, position, runner.models(baseline))
    top = logits.double().topk(2).values
    bound = NEAR_TIE_FLOAT32
    if method.dtype in ("bfloat16", "float16"):
        bound = ULPS * torch.finfo(getattr(torch, method.dtype)).eps * float(logits.abs().max())
    exact = Models(method.device, "float64")
    replays = [_replay(arm, plain, exact) for arm in (baseline, method)]
    return Divergence(plain.example, plain.repeat, position, float(top[0] - top[1]), bound, replays[0] == replays[1])


def _prompt(experiment: Experiment, record: Record, models: Models) -> Prompt:
    task = get_task(experiment.task)
    examples = task.examples(experiment.source, "test", experiment.limit, experiment.seed)
    example = next(example for example in examples if example.id == record.example)
    return make_prompt(task, example, experiment, models.get(experiment.target))


def _logits_at(experiment: Experiment, record: Record, position: int, models: Models) -> torch.Tensor:
    session: Session = models.get(experiment.target).session()
    pending = session.prefill(Inputs((_prompt(experiment, record, models).tokens,)))
    fed = [pending[0], *(record.tokens or [])[:position]]
    return session.extend(torch.tensor([fed], device=experiment.device))[0, -1]


def _replay(experiment: Experiment, record: Record, models: Models) -> list[int]:
    target = models.get(experiment.target)
    method = build_method(experiment.method, target, models)
    prompts = [_prompt(experiment, record, models)]
    return generate(experiment, method, prompts, target, target.session(), record.repeat)[0][0].tokens


def _sampled(comparison: Comparison, records: list[list[Record]], models: Models) -> dict:
    """Tier (a) on real distributions: those of the run's own models along its own outputs, cut to their likeliest tokens."""
    experiment = comparison.arms[-1]
    chosen = [record for record in records[-1] if record.status == "ok" and len(record.tokens or ()) > DRAFTS][:EXAMPLES]
    found = [deviation for record in chosen for deviation in _deviations(experiment, record, models)]
    if not found:
        return _finding("unknown", "no output is long enough to check the rule's law on")
    worst = max(found)
    verdict = "same distribution" if worst <= LAW_BOUND else "biased"
    summary = (
        f"integrated over its uniforms, the rule's law is within {worst:.1e} of the target's (limit {LAW_BOUND:g}) "
        f"on {len(found)} windows of {DRAFTS} drafts and a bonus from this run"
    )
    return _finding(verdict, summary, windows=len(found), largest_deviation=worst)


def _deviations(experiment: Experiment, record: Record, models: Models) -> Iterator[float]:
    """The largest deviation of the emitted law in a few windows of one output."""
    target = models.get(experiment.target)
    assert experiment.method.drafter is not None
    drafter = build_drafter(experiment.method.drafter, target, models)
    rule, sampling, tokens = build_rule(experiment.method), experiment.sampling, record.tokens or []
    inputs = Inputs((_prompt(experiment, record, models).tokens,))
    pending, chunks = teacher_logits(target.session(), inputs, tokens)
    logits = torch.cat(list(chunks)).double().cpu()
    laws = torch.cat(list(drafter.teacher_probs(inputs, pending, tokens, sampling))).double().cpu()
    for start in sorted({0, (len(laws) - DRAFTS - 1) // 2}):
        window = slice(start, start + DRAFTS + 1)
        kept = torch.cat((logits[window].topk(KEPT).indices, laws[window].topk(KEPT).indices)).unique()
        draft = laws[window, kept][:DRAFTS]
        if (draft.sum(-1) > 0).all():
            draft_logits = (draft / draft.sum(-1, keepdim=True)).log()
            yield largest_deviation(rule, logits[window][:, kept], draft_logits, sampling, Sampling(temperature=1.0))
