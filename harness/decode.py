"""One batch of prompts decoded as an experiment says, timed; and what must equal what."""

from collections.abc import Sequence
from functools import lru_cache

import torch

from harness.clock import clock_for
from harness.experiment import Experiment
from harness.models import LoadedModel
from harness.prompts import Prompt, seed_of
from methods.sampling import Uniforms
from methods.types import Generation, Inputs, Method, Session, Stop


def generate(
    experiment: Experiment, method: Method, prompts: Sequence[Prompt], target: LoadedModel, session: Session, repeat: int
) -> tuple[list[Generation], float]:
    """The generations of a batch and the seconds it took, sources encoded and prompts prefilled included."""
    seeds = [seed_of(experiment, prompt.example.id, repeat) for prompt in prompts]
    uniforms = Uniforms(seeds, experiment.max_new_tokens, experiment.device)
    stop_ids = frozenset() if experiment.ignore_eos else frozenset(target.eos_token_ids)
    stop = Stop(max_new_tokens=experiment.max_new_tokens, token_ids=stop_ids)
    clock = clock_for(experiment.device)
    inputs = Inputs(tuple(prompt.tokens for prompt in prompts))
    if torch.get_num_threads() != (threads := num_threads(experiment)):
        torch.set_num_threads(threads)
    start = clock()
    generations = method.generate(session, inputs, experiment.sampling, uniforms, stop, clock)
    return generations, clock() - start


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
    if baseline.method.name == "beam":
        return experiment.method.name == "speculative-beam" and experiment.method.num_beams == baseline.method.num_beams
    lossless = method.guarantee == "identical" or (method.guarantee != "lossy" and experiment.sampling.greedy)
    return lossless and experiment is not baseline
