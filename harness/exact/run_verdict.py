"""The verdict on a run: is its method's guarantee kept, beside the plain arm of the same run?

Greedy: the divergences that the runner found when it recorded (harness.run.divergence): "identical", "near-tie" or "bug".
Sampling: the rule's law on this run's own target and draft laws, integrated over its uniforms. The outputs themselves are
tested if the method has no rule: by ranks, which find a bias and cannot show that there is none, so that without a replay of
the arm its law is "not tested".
Both: what was replayed of any arm as it was recorded (harness.run.replay); a decision that the target does not give is a "bug".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import nan
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from harness.core.experiment import Comparison, Experiment
from harness.core.records import Record
from harness.exact.checks import Finding, check_identity, check_ways
from harness.exact.fit import CELLS, FALSE_ALARM, POWER, evenness, places_of
from harness.exact.ground import WINDOW_DRAFTS, prompts_of
from harness.exact.law import Window, windows_of
from harness.measures.of_run import output_perplexity
from harness.measures.verdicts import ENOUGH_DECISIONS, NOT_TESTED
from harness.models.fit import Models
from harness.models.loading import LoadedModel
from harness.run.build import build_method
from harness.run.decode import must_equal, outputs_of
from harness.run.refusals import check_alike, check_tokens
from harness.run.replay.reading import HALF, unfiltered, widened
from methods.sampling import Sampling
from methods.speculative.decode import DraftAndVerify
from methods.speculative.overlap import teacher_logits

EXAMPLES, SEARCHED, WINDOWS, KEPT = 2, 10, 2, 24
BLOCK_KEPT = 8  # of a rule that looks ahead, whose law is integrated over whole blocks
MAX_RECORDS = 50
WithModels = Callable[[Experiment, Callable[[Models], Finding]], Finding]  # harness.run.runner.Runner.with_models


def judge_run(comparison: Comparison, records: list[list[Record]], with_models: WithModels) -> dict[str, Any]:
    """Return the verdict on the last arm, a summary and the evidence, as JSON.

    Verdicts: "identical", "near-tie", "bug", "same distribution", "not tested", "biased", "lossy", "baseline", "unknown".
    """
    if len(comparison.arms) == 1:
        finding = Finding("baseline", "plain decoding is what others are compared with")
    else:
        finding = with_models(comparison.arms[-1], partial(_judge, comparison, records))
    own = sum(record.replayed or 0 for record in records[-1])
    if finding.verdict == NOT_TESTED and own >= ENOUGH_DECISIONS:
        finding = replace(finding, verdict="same distribution")
    finding = _with_replays(finding, records)
    return {"verdict": finding.verdict, "summary": finding.note, **finding.evidence}


def _with_replays(finding: Finding, arms: Sequence[Sequence[Record]]) -> Finding:
    """Return the finding with the size of the replay, or a bug where an output of any arm is none that can be."""
    records = [record for arm in arms for record in arm]
    replayed = [record for record in records if record.replayed is not None]
    decisions = sum(record.replayed or 0 for record in replayed)
    faults = [record.divergence for record in records if record.divergence is not None and record.divergence.what]
    evidence = {**finding.evidence, "replayed": {"outputs": len(replayed), "decisions": decisions, "faults": len(faults)}}
    if not faults:
        is_own = any(record.replayed is not None for record in arms[-1])
        whose = "" if is_own else ", none of them the method's own"
        given = "as its rule takes what the target gives" if is_own and finding.verdict == "lossy" else "as the target gives it"
        done = f"{len(replayed)} of {len(records)} outputs replayed ({decisions} decisions){whose}, each {given}"
        return Finding(finding.verdict, f"{finding.note}; {done if replayed else 'none replayed'}", evidence)
    what = ", ".join(sorted({fault.what for fault in faults}))
    whole = f"{len(faults)} of {len(records)} outputs ({len(replayed)} were replayed)"
    note = f"{whole} are not what target, random numbers and limits give: {what}"
    return Finding("bug", f"{note}; {finding.note}", evidence)


def _judge(comparison: Comparison, records: list[list[Record]], models: Models) -> Finding:
    baseline, experiment = comparison.arms[0], comparison.arms[-1]
    target = models.get(experiment.target)
    for arm in records:
        check_tokens(arm, target.name, target.vocab_size)
    method = build_method(experiment.method, target, models)
    if must_equal(baseline, experiment, method):
        check_alike(records[0], records[-1])
        return _judge_identity(records[0], records[-1])
    if method.guarantee == "lossy":
        plain = {record.key: record.tokens for record in records[0]}
        same = sum(record.tokens is not None and plain.get(record.key) == record.tokens for record in records[-1])
        note = f"by its definition; {same} of {len(records[-1])} outputs equal plain decoding's"
        texts = [output_perplexity(arm) for arm in (records[-1], records[0])]
        if all(texts):
            ours, plain_s = (f"{one.value:.4g}" for one in texts if one is not None)
            note += f"; the target's perplexity of its outputs is {ours}, of plain decoding's {plain_s}"
        return Finding("lossy", note)
    if isinstance(method, DraftAndVerify):
        return _judge_law(experiment, method, records[-1], target)
    return judge_samples(experiment, records[-1], target)


def _judge_identity(plain: Sequence[Record], records: Sequence[Record]) -> Finding:
    compared = {record.key for record in plain if record.status == "ok"}
    good = [record for record in records if record.status == "ok" and record.key in compared]
    finding = check_identity(good, max_shown=len(good))
    evidence = {"compared": len(good), "divergences": finding.evidence["divergences"]}
    return Finding(finding.verdict if good else "unknown", finding.note, evidence)


def _judge_law(experiment: Experiment, method: DraftAndVerify, records: Sequence[Record], target: LoadedModel) -> Finding:
    """Integrate the rule's law on laws along a few of the run's own outputs, the first that have enough drafts, cut to their
    likeliest tokens: by everything that may decide for the rule here. What is furthest off is told."""
    chosen = [one for one in records if one.status == "ok" and len(one.tokens or ()) > WINDOW_DRAFTS][:SEARCHED]
    prompts, windows = prompts_of(experiment, target, {record.example for record in chosen}), list[tuple[str, Window]]()
    kept = BLOCK_KEPT if method.looks_ahead else KEPT
    for record in chosen:
        if len({example for example, _ in windows}) == EXAMPLES:
            break
        prompt = prompts[record.example]
        inputs, tokens = prompt.windows()[0], outputs_of(experiment, prompt, record.tokens or [], target)[0]
        sampling, session = Sampling.of(experiment.sampling), target.session()
        found = windows_of(session, method.drafter, inputs, tokens, sampling, WINDOW_DRAFTS, WINDOWS, kept)
        windows += [(record.example, window) for window in found]
    if not windows:
        return Finding("unknown", "no output is long enough, or has enough drafts, to check the rule's law on")
    laws = check_ways(method.rule, windows, Sampling.of(experiment.sampling), target.session().device)
    deviations = [max(one.evidence["largest_deviation"].values()) for one in laws]
    worst, finding = max(zip(deviations, laws, strict=True), key=lambda pair: pair[0])
    evidence = {"windows": len(windows), "largest_deviation": worst}
    return Finding(finding.verdict, f"{finding.note} from this run", evidence)


def judge_samples(experiment: Experiment, records: Sequence[Record], target: LoadedModel) -> Finding:
    """Test the place of every token in the target's law behind the text before it: uniform if that law was sampled.

    A token that this law cannot draw, whatever rounding moves across the filters' borders, is "biased" by itself. In half
    precision no bound of that is known, and what filters leave out is not looked at. Else "biased", or "not tested": a law
    whose mass was moved within one of CELLS equal parts looks the same.
    One forward pass over each output, of at most MAX_RECORDS. How many tokens there are depends on what was emitted, which
    moves the mean of no cell.
    """
    chosen = [record for record in records if record.status == "ok" and record.tokens][:MAX_RECORDS]
    places = torch.cat([torch.empty(0, dtype=torch.float64), *_places(experiment, chosen, target)])
    if not len(places):
        return Finding("unknown", "no output to look at")
    if impossible := int(places.isnan().sum()):
        note = f"{impossible} of {len(places)} tokens of this run are none that the target's law can draw"
        return Finding("biased", note, {"tokens": len(places), "p": 0.0, "impossible": impossible})
    fit = evenness(places, FALSE_ALARM)
    found = f"total variation of {fit.likely_tv:.2f} or more" if fit.likely_tv < 1 else "nothing"
    summary = (
        f"{fit.num_samples} tokens of this run lie in the target's law as samples of it do: p {fit.p_value:.2g} (limit "
        f"{FALSE_ALARM:g}); so many find {found} with a chance of {POWER:g}, and nothing that is "
        f"moved within 1 / {CELLS} of the law"
    )
    verdict = NOT_TESTED if fit.passes(FALSE_ALARM) else "biased"
    return Finding(verdict, summary, {"tokens": fit.num_samples, "p": fit.p_value, "finds_tv": fit.likely_tv})


def _places(experiment: Experiment, records: Sequence[Record], target: LoadedModel) -> Iterator[Float[Tensor, "T"]]:
    """Yield the places of tokens in their laws, chunk by chunk of every output and window; NaN of one that is impossible."""
    generator, session, sampling = torch.Generator().manual_seed(0), target.session(), Sampling.of(experiment.sampling)
    wide = unfiltered(sampling) if target.stack.dtype in HALF else widened(sampling)
    prompts = prompts_of(experiment, target, {record.example for record in records})
    for record in records:
        prompt = prompts[record.example]
        outputs = outputs_of(experiment, prompt, record.tokens or [], target)
        for inputs, tokens in zip(prompt.windows(), outputs, strict=False):
            start = 0
            for logits in teacher_logits(session, inputs, tokens)[1]:
                emitted = torch.tensor(tokens[start : start + len(logits)])
                places = places_of(sampling.probs(logits).double().cpu(), emitted, generator)[0]
                possible = wide.probs(logits).cpu().gather(-1, emitted.unsqueeze(-1)).squeeze(-1) > 0
                yield places.where(possible, nan)
                start += len(logits)
