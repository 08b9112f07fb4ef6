"""Early exit: the target's own first layers draft, through its head."""

from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from methods.autoregressive import Autoregressive
from methods.errors import InputError
from methods.models import stack_for
from methods.models.base import Stack
from methods.parts import DRAFTERS
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.drafters import DraftParts
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Inputs, Stop

FOLDER = Path(__file__).resolve().parents[3] / "results" / "baselines" / "checkpoints" / "llama-target"
PROMPTS, STOP = ((5, 9, 200, 31), (77, 3)), Stop(max_new_tokens=12)


@pytest.fixture(scope="module")
def stack() -> Stack:
    return stack_for(AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float64).eval())


@pytest.mark.parametrize("layers", [1, 4])
def test_drafts_are_what_the_head_says_after_these_layers(stack: Stack, layers: int) -> None:
    """Against transformers' hidden states: one layer too many, or a head without its norm, drafts other tokens."""
    drafter = DRAFTERS["first-layers"](DraftParts(vocab_size=stack.vocab_size, target=stack), draft_layers=layers)
    drafter.begin(Inputs(PROMPTS[:1]), [PROMPTS[0][-1]], Uniforms([0], 8))
    drafted, text = drafter.propose([4], [0], Sampling()).tokens[0].tolist(), [*PROMPTS[0]]
    for token in drafted:
        with torch.no_grad():
            states = stack.model(torch.tensor([text]), output_hidden_states=True).hidden_states[layers]
            logits = stack.model.lm_head(stack.model.model.norm(states[0, -1]))
        assert token == int(logits.argmax())
        text.append(token)


def test_greedy_output_is_plain_decodings_in_a_batch(stack: Stack) -> None:
    drafter = DRAFTERS["first-layers"](DraftParts(vocab_size=stack.vocab_size, target=stack), draft_layers=3)
    method = DraftAndVerify(drafter, SpeculativeSampling(), partial(Constant, 3))
    found, expected = (
        one.generate(ModelSession(stack), Inputs(PROMPTS), Sampling(), Uniforms([0, 1], 12), STOP)
        for one in (method, Autoregressive())
    )
    assert [row.tokens for row in found] == [row.tokens for row in expected]
    assert sum(step.num_accepted for row in found for step in row.steps) > 0


def test_all_layers_are_refused(stack: Stack) -> None:
    with pytest.raises(InputError, match=r"draft_layers 6: the target has 6 layers; expected 1 to 5"):
        DRAFTERS["first-layers"](DraftParts(vocab_size=stack.vocab_size, target=stack), draft_layers=6)
