"""What a round notes of the verifier's first choices: its argmax after every token of the round, whatever became of it."""

from functools import partial

import pytest
import torch
from toy_blocks import EOS, Pair, batch_of, inputs_of

from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.specdec.drafter import BlockDrafter
from methods.specdec.rules import TopBeta, TopOne
from methods.specdec.stack import BlockStack
from methods.speculative.decode import DraftAndVerify
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Generation, Inputs, Stop, VerifyRule

NUM_ROWS = 6


def generate(pair: Pair, rule: VerifyRule, inputs: Inputs) -> list[Generation]:
    method = DraftAndVerify(BlockDrafter(BlockStack(pair.drafter)), rule, partial(Constant, 5))
    stop = Stop(max_new_tokens=9, token_ids=frozenset({EOS}))
    session = ModelSession(stack_for(pair.verifier))
    return method.generate(session, inputs, Sampling(), Uniforms(range(inputs.batch), 9), stop)


@pytest.mark.parametrize("rule", [TopOne(), TopBeta(beta=4, tau=6.0)], ids=["strict", "relaxed"])
def test_they_are_the_verifiers_argmax_on_the_tokens_before(trained: Pair, rule: VerifyRule) -> None:
    """By transformers' own forward pass over the output so far and the drafts; rows leave the batch at different times."""
    inputs = inputs_of(batch_of(NUM_ROWS, torch.Generator().manual_seed(5)))
    start, seen, beyond = trained.verifier.config.decoder_start_token_id, 0, 0
    for prompt, row in zip(inputs.prompts, generate(trained, rule, inputs), strict=True):
        before = [start]
        for step in row.steps:
            assert len(step.choices) == len(step.drafted) + 1
            tokens = torch.tensor([[*before, *step.drafted]])
            logits = trained.verifier(input_ids=torch.tensor([prompt]), decoder_input_ids=tokens, use_cache=False).logits
            assert logits[0, len(before) - 1 :].argmax(-1).tolist() == step.choices
            emitted = row.tokens[len(before) - 1 :][: step.emitted]
            assert emitted[step.num_accepted :] == step.choices[step.num_accepted : step.emitted]
            beyond += step.drafted[: step.num_accepted] != step.choices[: step.num_accepted]
            before, seen = [*before, *emitted], seen + 1
    assert seen > NUM_ROWS
    assert (beyond > 0) == (rule.guarantee == "lossy")


def test_rules_that_do_not_look_at_them_note_none(trained: Pair) -> None:
    inputs = inputs_of(batch_of(2, torch.Generator().manual_seed(5)))
    rows = generate(trained, SpeculativeSampling(), inputs)
    assert [step.choices for row in rows for step in row.steps] == [[] for row in rows for step in row.steps]
