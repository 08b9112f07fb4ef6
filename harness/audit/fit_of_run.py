"""Whether a run's own sampled outputs have the target's law: for methods that are no rule's, which nothing integrates."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from harness.decode import outputs_of
from harness.experiment import Experiment
from harness.models import LoadedModel
from harness.prompts import Prompt
from harness.records import Record
from methods.goodness import FALSE_ALARM, POWER
from methods.goodness_pooled import evenness, places_of
from methods.speculative.overlap import teacher_logits

RECORDS = 50


def fit_of(
    experiment: Experiment, records: Sequence[Record], target: LoadedModel, prompt_of: Callable[[Record], Prompt]
) -> dict[str, Any]:
    """Every token's place in the target's law behind the text before it, likeliest first: even if that law was sampled.

    From a forward pass over each output, of at most RECORDS of them. How many tokens there are depends on what was said, which
    moves the mean of no cell.
    """
    chosen = [record for record in records if record.status == "ok" and record.tokens][:RECORDS]
    places = list(_places(experiment, chosen, target, prompt_of))
    if not places:
        return {"verdict": "unknown", "summary": "no output to look at"}
    fit = evenness(torch.cat(places), FALSE_ALARM)
    verdict = "same distribution" if fit.passes(FALSE_ALARM) else "biased"
    found = f"total variation of {fit.likely_tv:.2f} or more" if fit.likely_tv < 1 else "nothing"
    summary = (
        f"{fit.num_samples} tokens of this run lie in the target's law as samples of it do: p {fit.p_value:.2g} (limit "
        f"{FALSE_ALARM:g}); so many find {found} with a chance of {POWER:g}"
    )
    return {"verdict": verdict, "summary": summary, "tokens": fit.num_samples, "p": fit.p_value, "finds_tv": fit.likely_tv}


def _places(
    experiment: Experiment, records: Iterable[Record], target: LoadedModel, prompt_of: Callable[[Record], Prompt]
) -> Iterator[Float[Tensor, "T"]]:
    """One tensor an output and window of its recording."""
    generator, session = torch.Generator().manual_seed(0), target.session()
    for record in records:
        prompt = prompt_of(record)
        outputs = outputs_of(experiment, prompt, record.tokens or [], target)
        for inputs, tokens in zip(prompt.windows(), outputs, strict=False):
            for start, logits in _chunks(teacher_logits(session, inputs, tokens)[1]):
                said = torch.tensor(tokens[start : start + len(logits)])
                yield places_of(experiment.sampling.probs(logits).double().cpu(), said, generator)[0]


def _chunks(chunks: Iterable[Float[Tensor, "chunk V"]]) -> Iterator[tuple[int, Float[Tensor, "chunk V"]]]:
    """Each with the position that it begins at."""
    start = 0
    for logits in chunks:
        yield start, logits
        start += len(logits)
