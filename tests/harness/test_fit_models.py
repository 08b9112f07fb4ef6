"""Tier (b) through real caches: sampled outputs of tiny random transformers models fit the target's law."""

from functools import cache, partial

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, T5Config, T5ForConditionalGeneration

from harness.exact.controls import CONTROLS, _Unsampled
from harness.exact.fit import FALSE_ALARM, Laws, draw_rows, fits_of
from methods.models import stack_for
from methods.models.base import Stack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.acceptance import accepted_over_verified
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Inputs, Outcome, Session, Stop

VOCAB = 8
NUM_DRAFT = 2
NUM_SAMPLES = 2500
PROMPT = (3, 1, 5, 2)
DRAWN = Sampling(temperature=1.0)
SPREADS = {"llama": (0.4, 0.12), "t5": (0.6, 0.05)}  # of the weights: the target's, and the noise that the draft adds
IDS = {"pad_token_id": 0, "eos_token_id": 1}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            bos_token_id=2,
            **IDS,
        )
    ),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCAB,
            d_model=16,
            d_kv=8,
            d_ff=24,
            num_layers=2,
            num_heads=2,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=16,
            decoder_start_token_id=0,
            tie_word_embeddings=False,
            **IDS,
        )
    ),
}


def randomised(model: PreTrainedModel, seed: int, spread: float) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=spread if parameter.dim() > 1 else 0.0)
    return model


@cache
def pair(family: str, closeness: float = 1.0) -> tuple[Stack, Stack]:
    """A target with a law far from uniform, and a draft that is the target with noise on every weight, over ``closeness``."""
    spread, noise = SPREADS[family]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = FAMILIES[family]()
        target.get_input_embeddings().weight.data.mul_(0.3)  # T5's are large: its layers, and so the cache, would hardly matter
        randomised(target, 1, spread)
        draft = FAMILIES[family]()
    draft.load_state_dict(target.state_dict())
    randomised(draft, 2, noise / closeness)
    return stack_for(target.eval().requires_grad_(False)), stack_for(draft.eval().requires_grad_(False))


def method(drafter: ModelDrafter) -> DraftAndVerify:
    return DraftAndVerify(drafter, SpeculativeSampling(), partial(Constant, NUM_DRAFT))


def failures(drafter: ModelDrafter, target: Session) -> list[str]:
    """Which places fail, at a family-wise false alarm of 1e-6. Four positions: some rows need a second or third round."""
    samples = draw_rows(method(drafter), target, Inputs((PROMPT,)), DRAWN, range(NUM_SAMPLES), 4)
    fits = fits_of([samples], Laws(target, DRAWN), NUM_DRAFT, 4)
    assert {"position 0", "position 3", "draft 0", "draft 1", "bonus"} <= set(fits)
    assert all(fit.num_samples > NUM_SAMPLES / 10 for fit in fits.values())
    assert fits["draft 0"].detectable_tv < 5 / NUM_SAMPLES**0.5
    return [name for name, fit in fits.items() if not fit.passes(FALSE_ALARM / len(fits))]


def acceptance(drafter: ModelDrafter, target: Session) -> float:
    rows = method(drafter).generate(target, Inputs((PROMPT,) * 100), DRAWN, Uniforms(range(100), 15), Stop(max_new_tokens=15))
    accepted, verified = zip(*(accepted_over_verified(row.steps) for row in rows), strict=True)
    return sum(accepted) / sum(verified)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_pair_keeps_the_law(family: str) -> None:
    """Each drafted place, the bonus, and each position of the output, over rounds with drafts rejected and accepted."""
    target, draft = pair(family)
    assert failures(ModelDrafter(ModelSession(draft)), ModelSession(target)) == []
    assert 0.3 < acceptance(ModelDrafter(ModelSession(draft)), ModelSession(target)) < 0.95


class StaleDraft(ModelDrafter):
    """Leaves rejected drafts in its cache. Not wrong, only poor: the rule needs the law that was drawn from, whatever it is."""

    def commit(self, outcome: Outcome) -> None:
        for row, (count, token) in enumerate(zip(outcome.num_accepted, outcome.next_token, strict=True)):
            length = self.proposal.lengths[row]
            last = [int(self.proposal.tokens[row, count - 1])] if length and count == length else []
            self.cache.unseen[row] += [*last, token]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stale_draft_cache_keeps_the_law(family: str) -> None:
    """The rule needs the law that drafts were drawn from, whatever that is."""
    target, draft = pair(family)
    assert failures(StaleDraft(ModelSession(draft)), ModelSession(target)) == []


def test_a_stale_draft_cache_costs_acceptance() -> None:
    """Where the draft is close to the target: a poor one may gain by luck, and the tiny T5 looks too little at its past."""
    target, close = pair("llama", closeness=4.0)
    right, stale = (acceptance(kind(ModelSession(close)), ModelSession(target)) for kind in (ModelDrafter, StaleDraft))
    assert stale < right - 0.03


@pytest.mark.parametrize("family", FAMILIES)
def test_a_law_that_was_not_sampled_fails(family: str) -> None:
    target, draft = pair(family)
    assert "draft 0" in failures(_Unsampled(ModelSession(draft), 2.0), ModelSession(target))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stale_target_cache_fails(family: str) -> None:
    """The first round is unharmed: nothing was rejected before it."""
    (target, draft), stale = pair(family), CONTROLS["stale cache"].session
    assert stale is not None
    failed = failures(ModelDrafter(ModelSession(draft)), stale(target))
    assert "draft 0" not in failed
    assert {"position 2", "position 3"} & set(failed)
