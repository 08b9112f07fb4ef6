"""How far a lossy method is from the target: what its speed costs in fidelity, with intervals over examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from harness.audit.laws import Window
from harness.build import Models
from harness.decode import outputs_of
from harness.experiment import Experiment
from harness.prompts import Prompt
from harness.records import Record
from harness.statistics import Estimate, ratio_of_examples
from methods.exactness import emitted_laws
from methods.sampling import Sampling
from methods.speculative.overlap import teacher_logits
from methods.types import VerifyRule

Row = tuple[str, float, float]  # an example, a sum over its places, and how many they are
REPORTED = Sampling(temperature=1.0)  # windows hold logarithms of laws that are adjusted already


@dataclass
class Distances:
    """Sums of total variation and of a divergence in nats, one row an example."""

    variation: list[Row]
    nats: list[Row]

    def finding(self, **evidence: Any) -> dict[str, Any]:
        """ "lossy" where a distance was measured; "no difference found" where there is none."""
        variation, nats = ratio_of_examples(self.variation), ratio_of_examples(self.nats)
        if variation is None:
            return {"verdict": "failed", "error": "no output to measure a distance on", **evidence}
        verdict = "lossy" if variation.value > 1e-6 else "no difference found"
        return {"verdict": verdict, "tv": _shown(variation), "nats": _shown(nats), **evidence}


def _shown(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.as_dict()


def of_law(rule: VerifyRule, windows: Sequence[tuple[str, Window]], sampling: Sampling) -> dict[str, Any]:
    """Sampling: total variation and KL of the law of what a round emits from the target's, mean over a round's places.

    The law is integrated over the uniforms, given that the drafts before stand; the bonus is one of the places.
    """
    found = Distances([], [])
    for example, window in windows:
        law = emitted_laws(rule, window.target_logits, window.draft_logits, sampling, REPORTED)
        target = sampling.probs(window.target_logits)
        found.variation.append((example, float((law - target).abs().sum() / 2), float(len(law))))
        found.nats.append((example, float(_kl(law, target).sum()), float(len(law))))
    return found.finding(windows=len(windows))


def of_outputs(experiment: Experiment, records: Sequence[Record], prompts: dict[str, Prompt], models: Models) -> dict[str, Any]:
    """Greedy: how often an emitted token is not the target's first choice behind the same text, the total variation of two
    point masses; and how much log-probability (temperature 1, nats a token) was given up by that."""
    target, found = models.get(experiment.target), Distances([], [])
    good = [record for record in records if record.status == "ok" and record.tokens]
    if len(good) < len(records):
        first = next(record.error or "an empty output" for record in records if record not in good)
        return {"verdict": "failed", "prompts": len(records), "error": first}
    for record in good:
        prompt = prompts[record.example]
        tokens = outputs_of(experiment, prompt, record.tokens or [], target)[0]
        logits = torch.cat(list(teacher_logits(target.session(), prompt.windows()[0], tokens)[1])).double().log_softmax(-1)
        emitted = logits.gather(-1, torch.tensor(tokens[: len(logits)], device=logits.device).unsqueeze(-1)).squeeze(-1)
        given_up = logits.amax(-1) - emitted
        found.variation.append((record.example, float((given_up > 0).sum()), float(len(given_up))))
        found.nats.append((record.example, float(given_up.sum()), float(len(given_up))))
    return found.finding(prompts=len(records), tokens=sum(len(record.tokens or ()) for record in good))


def _kl(law: Float[Tensor, "n V"], target: Float[Tensor, "n V"]) -> Float[Tensor, "n"]:
    """Of the law from the target; infinite where a token is emitted that the target cannot."""
    terms = torch.where(law > 0, law * (law / target).log(), torch.zeros_like(law))
    return terms.sum(-1).clamp(min=0.0)
