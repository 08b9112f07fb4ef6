"""One batch of prompts decoded as an experiment says, timed; and what must equal what."""

from collections.abc import Sequence

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
    start = clock()
    generations = method.generate(session, inputs, experiment.sampling, uniforms, stop, clock)
    return generations, clock() - start


def must_equal(baseline: Experiment, experiment: Experiment, method: Method) -> bool:
    """Whether this arm's outputs must be the baseline's token for token: greedy and lossless, or beams of the same width."""
    if baseline.method.name == "beam":
        return experiment.method.name == "speculative-beam" and experiment.method.num_beams == baseline.method.num_beams
    return method.guarantee != "lossy" and experiment.sampling.greedy and experiment is not baseline
