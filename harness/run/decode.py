"""One batch of prompts decoded as an experiment says, timed; and what must equal what."""

from collections.abc import Sequence
from functools import lru_cache

import torch

from harness.core.experiment import Experiment
from harness.models.listener import joined, merged, parts_of
from harness.models.loading import LoadedModel
from harness.run.instruments import clock_for
from harness.run.prompts import Prompt, seed_of
from methods.sampling import Sampling, Uniforms
from methods.types import Generation, Method, Session, Stop


def generate(
    experiment: Experiment, method: Method, prompts: Sequence[Prompt], target: LoadedModel, session: Session, repeat: int
) -> tuple[list[Generation], float]:
    """The generations of a batch and the seconds it took, sources encoded and prompts prefilled included.

    Windows of recordings are decoded one after another, the first of all rows together, then the second of those that have one,
    and their outputs put one behind the other. Features are made before the clock starts.

    Raises:
        DataError: a recording that cannot be read.
    """
    stop, clock = stop_of(experiment, target), clock_for(experiment.device)
    windows = [prompt.windows() for prompt in prompts]
    if torch.get_num_threads() != (threads := num_threads(experiment)):
        torch.set_num_threads(threads)
    generations: list[list[Generation]] = [[] for _ in prompts]
    wall_s = 0.0
    for number in range(max(map(len, windows))):
        rows = [row for row, own in enumerate(windows) if number < len(own)]
        seeds = [seed_of(experiment, prompts[row].example.id, repeat, number) for row in rows]
        uniforms = Uniforms(seeds, experiment.max_new_tokens, experiment.device)
        inputs = joined([windows[row][number] for row in rows])
        start = clock()
        made = method.generate(session, inputs, Sampling.of(experiment.sampling), uniforms, stop, clock)
        wall_s += clock() - start
        for row, generation in zip(rows, made, strict=True):
            generations[row].append(generation)
    return [_strung(parts) for parts in generations], wall_s


def stop_of(experiment: Experiment, target: LoadedModel) -> Stop:
    stop_ids = frozenset() if experiment.ignore_eos else frozenset(target.eos_token_ids)
    return Stop(max_new_tokens=experiment.max_new_tokens, token_ids=stop_ids)


def _strung(parts: Sequence[Generation]) -> Generation:
    """The outputs of a row's windows, one behind the other; how it ended is how the last of them did."""
    if len(parts) == 1:
        return parts[0]
    tokens, steps = ([one for part in parts for one in getattr(part, name)] for name in ("tokens", "steps"))
    encode_s, draft_encode_s = (sum(getattr(part, name) for part in parts) for name in ("encode_s", "draft_encode_s"))
    return Generation(tokens, steps, parts[-1].stop_reason, encode_s, draft_encode_s)


def outputs_of(experiment: Experiment, prompt: Prompt, tokens: Sequence[int], target: LoadedModel) -> list[list[int]]:
    """What each window of an output said; one for a text."""
    if prompt.listener is None:
        return [list(tokens)]
    limit = target.stack.position_limit
    assert limit is not None
    budget = min(experiment.max_new_tokens, limit - len(prompt.tokens) + 1)
    return parts_of(tokens, stop_of(experiment, target).token_ids, budget)


def text_of(experiment: Experiment, prompt: Prompt, tokens: Sequence[int], target: LoadedModel) -> str:
    """An output as text; what two windows of a recording both say is said once."""
    parts = outputs_of(experiment, prompt, tokens, target)
    if len(parts) == 1:
        return target.decode(list(tokens))
    return target.decode(merged(parts, set(target.tokenizer.all_special_ids)))


def num_threads(experiment: Experiment) -> int:
    """CPU threads of this process; a pipeline lowers them while it decodes."""
    return experiment.num_threads or default_threads()


@lru_cache(maxsize=1)
def default_threads() -> int:
    """What torch chose when the process began: all cores, or what the environment says."""
    return torch.get_num_threads()


def must_equal(baseline: Experiment, experiment: Experiment, method: Method) -> bool:
    """Whether this arm's outputs must be the baseline's token for token.

    Beams of the same width, whatever is lossless when greedy, and what draws from the target alone also when it samples: at the
    same seeds it draws the same tokens.
    """
    if baseline.method.num_beams > 1:
        other_search = experiment.method.name != baseline.method.name
        return other_search and experiment.method.num_beams == baseline.method.num_beams
    lossless = method.guarantee == "identical" or (method.guarantee != "lossy" and experiment.sampling.greedy)
    return lossless and experiment is not baseline
