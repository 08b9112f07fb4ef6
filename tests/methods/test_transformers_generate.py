"""transformers' generate behind the Method protocol: the same tokens as the project's own loops, in fp64."""

import pytest
from transformers import GenerationConfig

from methods.autoregressive import Autoregressive
from methods.beam import BeamSearch
from methods.errors import InputError
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.transformers_generate import Assistant, TransformersGenerate
from methods.types import Generation, Inputs, Method, Stop

ENDS = frozenset({4, 9, 20, 33, 41})
PROMPTS = Inputs(((3, 9, 12), (5,), (8, 30, 31, 7, 6), (17, 18, 19, 20)))


def generate(session: ModelSession, method: Method, inputs: Inputs, stop: Stop) -> list[Generation]:
    return method.generate(session, inputs, Sampling(), Uniforms(range(inputs.batch), 1), stop)


@pytest.mark.parametrize("stop", [Stop(max_new_tokens=14), Stop(max_new_tokens=14, token_ids=ENDS)], ids=["length", "eos"])
def test_greedy_is_autoregressive(tiny, family: str, stop: Stop) -> None:
    """Alone and in a batch of prompts of different lengths, which transformers must pad."""
    session = ModelSession(stack_for(tiny.build(family)))
    expected = generate(session, Autoregressive(), PROMPTS, stop)
    made = generate(session, TransformersGenerate(), PROMPTS, stop)
    assert [(row.tokens, row.stop_reason) for row in made] == [(row.tokens, row.stop_reason) for row in expected]
    assert generate(session, TransformersGenerate(), Inputs(PROMPTS.prompts[:1]), stop)[0].tokens == expected[0].tokens
    assert [[step.emitted for step in row.steps] for row in made] == [[1] * len(row.tokens) for row in expected]
    assert [row.steps[-1].stop_reason for row in made] == [row.stop_reason for row in expected]


@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_an_assistant_changes_nothing(tiny, family: str, schedule: str) -> None:
    session = ModelSession(stack_for(tiny.build(family)))
    method = TransformersGenerate(assistant=Assistant(stack_for(tiny.build(family, spread=0.2)), 3, schedule))
    for stop in (Stop(max_new_tokens=14), Stop(max_new_tokens=14, token_ids=ENDS)):
        expected = generate(session, Autoregressive(), PROMPTS, stop)
        assert [row.tokens for row in generate(session, method, PROMPTS, stop)] == [row.tokens for row in expected]


@pytest.mark.parametrize("num_beams", [2, 5])
@pytest.mark.parametrize("family", ["llama-gqa", "t5", "bart", "marian"])
def test_beams_are_beam_search(tiny, family: str, num_beams: int) -> None:
    session = ModelSession(stack_for(tiny.build(family, spread=0.2 if family == "llama-gqa" else 0.1)))
    for stop in (Stop(max_new_tokens=9), Stop(max_new_tokens=12, token_ids=ENDS)):
        expected = generate(session, BeamSearch(num_beams), PROMPTS, stop)
        made = generate(session, TransformersGenerate(num_beams), PROMPTS, stop)
        assert [(row.tokens, row.stop_reason) for row in made] == [(row.tokens, row.stop_reason) for row in expected]


def test_the_checkpoints_own_settings_do_not_apply(tiny) -> None:
    """Not its stop tokens, forced tokens, forbidden tokens or penalties; they are there again afterwards."""
    model = tiny.build("bart")
    session, stop = ModelSession(stack_for(model)), Stop(max_new_tokens=10)
    expected = generate(session, Autoregressive(), PROMPTS, stop)
    common = expected[0].tokens[2]
    own = GenerationConfig(
        eos_token_id=common, forced_bos_token_id=7, bad_words_ids=[[common]], no_repeat_ngram_size=1, min_length=5,
        repetition_penalty=3.0, max_length=4, num_beams=3, decoder_start_token_id=9,
    )  # fmt: skip
    model.generation_config = own
    made = generate(session, TransformersGenerate(), PROMPTS, stop)
    assert [row.tokens for row in made] == [row.tokens for row in expected]
    assert model.generation_config is own


def test_rows_end_at_the_position_limit(tiny) -> None:
    """Prompts of different lengths leave different numbers of positions; learned positions end where the table does."""
    session = ModelSession(stack_for(tiny.build("gpt2", limit=12)))
    prompts = Inputs(((3, 4, 5), (5, 6), tuple(range(3, 15))))
    stop = Stop(max_new_tokens=30)
    expected = generate(session, Autoregressive(), prompts, stop)
    assert [row.tokens for row in generate(session, TransformersGenerate(), prompts, stop)] == [row.tokens for row in expected]
    assert [len(row.tokens) for row in expected] == [10, 11, 1]


def test_what_it_cannot_do_is_refused(tiny) -> None:
    session, one = ModelSession(stack_for(tiny.build("llama"))), Inputs(((3,),))
    with pytest.raises(InputError, match=r"temperature 0.7: transformers' generate draws nothing here"):
        TransformersGenerate().generate(session, one, Sampling(temperature=0.7), Uniforms([0], 1), Stop(max_new_tokens=1))
    with pytest.raises(InputError, match="num_beams 0: expected an integer >= 1"):
        TransformersGenerate(0)
    assistant = Assistant(session.stack, 2, "constant")
    with pytest.raises(InputError, match="num_beams 2: transformers' assisted generation has no beams"):
        TransformersGenerate(2, assistant)
    with pytest.raises(InputError, match="schedule 'optimal': transformers' assisted generation has constant and heuristic"):
        Assistant(session.stack, 2, "optimal")
    with pytest.raises(InputError, match="token 99 is outside the vocabulary"):
        generate(session, TransformersGenerate(), Inputs(((99,),)), Stop(max_new_tokens=1))
