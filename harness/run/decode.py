"""One batch of prompts decoded as an experiment says, timed; and what must equal what.

A recording that is longer than the model's window is cut into windows that share a third of their length, as transformers'
pipeline cuts it. They are decoded one after another, each from the forced tokens on; their outputs are kept one behind the
other, and the text is what remains when the words that two windows share are said once.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache

import torch

from harness.core.experiment import Experiment
from harness.models.loading import LoadedModel
from harness.run.instruments import clock_for, marking_clock, settled
from harness.run.prompts import Prompt, seed_of
from methods.sampling import Sampling, Uniforms
from methods.types import Generation, Inputs, Method, Session, Stop


def generate(
    experiment: Experiment, method: Method, prompts: Sequence[Prompt], target: LoadedModel, session: Session, repeat: int
) -> tuple[list[Generation], float]:
    """Return the generations of a batch and the seconds it took, sources encoded and prompts prefilled included.

    Windows of recordings are decoded one after another, the first of all rows together, then the second of those that have one,
    and their outputs put one behind the other. Features are made before the clock starts.

    On CUDA nobody waits for the clock, but in a pipeline, whose processes are timed by the host.

    Raises:
        DataError: a recording that cannot be read.
    """
    clock = (clock_for if experiment.method.is_pipeline else marking_clock)(experiment.device)
    stop = stop_of(experiment, target)
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
        wall_s += float(clock() - start)
        made = settled(made)
        for row, generation in zip(rows, made, strict=True):
            generations[row].append(generation)
    return [_strung(parts) for parts in generations], wall_s


def stop_of(experiment: Experiment, target: LoadedModel) -> Stop:
    stop_ids = frozenset() if experiment.ignore_eos else frozenset(target.eos_token_ids)
    return Stop(max_new_tokens=experiment.max_new_tokens, token_ids=stop_ids)


def _strung(parts: Sequence[Generation]) -> Generation:
    """Return the outputs of a row's windows, one behind the other; how it ended is how the last of them did."""
    if len(parts) == 1:
        return parts[0]
    tokens, steps = ([one for part in parts for one in getattr(part, name)] for name in ("tokens", "steps"))
    encode_s, draft_encode_s = (sum(getattr(part, name) for part in parts) for name in ("encode_s", "draft_encode_s"))
    return Generation(tokens, steps, parts[-1].stop_reason, encode_s, draft_encode_s)


def outputs_of(experiment: Experiment, prompt: Prompt, tokens: Sequence[int], target: LoadedModel) -> list[list[int]]:
    """Return what each window of an output said; one for a text."""
    if prompt.listener is None:
        return [list(tokens)]
    limit = target.stack.position_limit
    assert limit is not None
    budget = min(experiment.max_new_tokens, limit - len(prompt.tokens) + 1)
    return parts_of(tokens, stop_of(experiment, target).token_ids, budget)


def text_of(experiment: Experiment, prompt: Prompt, tokens: Sequence[int], target: LoadedModel) -> str:
    """Return an output as text; what two windows of a recording both say is said once."""
    parts = outputs_of(experiment, prompt, tokens, target)
    if len(parts) == 1:
        return target.decode(list(tokens))
    return target.decode(merged(parts, set(target.tokenizer.all_special_ids)))


def num_threads(experiment: Experiment) -> int:
    """CPU threads of this process; a pipeline lowers them while it decodes."""
    return experiment.num_threads or default_threads()


@lru_cache(maxsize=1)
def default_threads() -> int:
    """Return what torch chose when the process began: all cores, or what the environment says."""
    return torch.get_num_threads()


def must_equal(baseline: Experiment, experiment: Experiment, method: Method) -> bool:
    """Say whether this arm's outputs must be the baseline's token for token.

    Beams of the same width, whatever is lossless when greedy, and what draws from the target alone also when it samples: at the
    same seeds it draws the same tokens.
    """
    if baseline.method.num_beams > 1:
        other_search = experiment.method.name != baseline.method.name
        return other_search and experiment.method.num_beams == baseline.method.num_beams
    lossless = method.guarantee == "identical" or (method.guarantee != "lossy" and experiment.sampling.greedy)
    return lossless and experiment is not baseline


def joined(windows: Sequence[Inputs]) -> Inputs:
    """Rows of one batch."""
    features = [one.features for one in windows if one.features is not None]
    prompts = tuple(prompt for one in windows for prompt in one.prompts)
    return Inputs(prompts, torch.cat(features) if features else None)


def parts_of(tokens: Sequence[int], stop_ids: Collection[int], budget: int) -> list[list[int]]:
    """Return the outputs of windows, kept one behind the other: each ends with a stopping token, or is as long as it may be."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if parts[-1] and (parts[-1][-1] in stop_ids or len(parts[-1]) == budget):
            parts.append([])
        parts[-1].append(token)
    return parts


def merged(parts: Sequence[Sequence[int]], special: Collection[int]) -> list[int]:
    """Return the tokens of all windows, without special ones, what two neighbours share said once."""
    texts = [[token for token in part if token not in special] for part in parts]
    said, last = list[int](), texts[0]
    for text in texts[1:]:
        cut_last, cut_text = _change_over(last, text)
        said, last = said + last[:cut_last], text[cut_text:]
    return said + last


def _change_over(left: list[int], right: list[int]) -> tuple[int, int]:
    """Say where to leave one text and to enter the next: in the middle of where they agree, laid over each other.

    The rule of transformers' pipeline: the share of tokens that agree decides, and of equal shares the longer stretch; a single
    token that agrees is chance.
    """
    best, cut = 0.0, (len(left), 0)
    for size in range(1, len(left) + len(right)):
        first, last = max(0, len(left) - size), min(len(left), len(left) + len(right) - size)
        begin = max(0, size - len(left))
        agree = sum(a == b for a, b in zip(left[first:last], right[begin:], strict=False))
        score = agree / size + size / 10_000
        if agree > 1 and score > best:
            best, cut = score, ((first + last) // 2, (2 * begin + last - first) // 2)
    return cut
