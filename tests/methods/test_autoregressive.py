"""Plain decoding against transformers' generate, and its endings."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedModel

from methods.autoregressive import Autoregressive
from methods.errors import InputError
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.types import Generation, Inputs, Stop

GREEDY = Sampling()


def generate(
    session: ModelSession, prompts: Sequence[Sequence[int]], stop: Stop, sampling: Sampling = GREEDY, clock=None
) -> list[Generation]:
    uniforms = Uniforms(range(len(prompts)), 40)
    inputs = Inputs(tuple(map(tuple, prompts)))
    return Autoregressive().generate(session, inputs, sampling, uniforms, stop, clock)


def transformers_greedy(model: PreTrainedModel, prompt: Sequence[int], max_new_tokens: int, eos: int | None) -> list[int]:
    """The ids that transformers adds to one prompt, its EOS included."""
    model.generation_config.eos_token_id = eos
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=0
    )[0].tolist()
    return out[1:] if model.config.is_encoder_decoder else out[len(prompt) :]


def test_greedy_equals_transformers_token_for_token(tiny, family: str) -> None:
    session = ModelSession(stack_for(tiny.build(family)))
    for prompt in ([3], [3, 17, 9, 22, 41]):
        plain = generate(session, [prompt], Stop(max_new_tokens=30))[0]
        assert plain.tokens == transformers_greedy(session.stack.model, prompt, 30, None)
        assert plain.stop_reason == "length"
        eos = plain.tokens[4]
        stopped = generate(session, [prompt], Stop(max_new_tokens=30, token_ids=frozenset({eos})))[0]
        assert stopped.tokens == transformers_greedy(session.stack.model, prompt, 30, eos)
        assert stopped.tokens[-1] == eos
        assert stopped.stop_reason == "eos"


def test_a_batch_whose_rows_end_apart_equals_its_rows_alone(tiny, family: str) -> None:
    session = ModelSession(stack_for(tiny.build(family)))
    prompts = [[3, 17, 9], [5], [8, 8, 30, 31, 32, 33], [12, 40]]
    free = [generate(session, [prompt], Stop(max_new_tokens=12))[0].tokens for prompt in prompts]
    eos = max(itertools.chain(*free), key=lambda token: len({row.index(token) if token in row else 12 for row in free}))
    stop = Stop(max_new_tokens=12, token_ids=frozenset({eos}))
    alone = [generate(session, [prompt], stop)[0] for prompt in prompts]
    batch = generate(session, prompts, stop)
    assert [(one.tokens, one.stop_reason) for one in batch] == [(one.tokens, one.stop_reason) for one in alone]
    assert len({len(one.tokens) for one in batch}) > 1


def test_sampling_draws_each_position_with_its_own_uniform(tiny) -> None:
    """Redrawn from uncached transformers logits; a batch whose rows end apart draws what its rows draw alone."""
    session = ModelSession(stack_for(tiny.build("llama-gqa", spread=0.1)))
    sampling, prompts = Sampling(temperature=0.9, top_k=20), [[3, 17, 9], [5, 6]]
    last = generate(session, prompts, Stop(max_new_tokens=4), sampling)[1].tokens[-1]
    batch = generate(session, prompts, Stop(max_new_tokens=10, token_ids=frozenset({last})), sampling)
    for row, prompt in enumerate(prompts):
        uniforms, text = Uniforms(range(2), 40).select([row]), list(prompt)
        for position, token in enumerate(batch[row].tokens):
            logits = tiny.reference_logits(session.stack.model, text, ())[-1:]
            assert int(sampling.draw(logits, uniforms.sample([position]))) == token
            text.append(token)
    assert len(batch[0].tokens) != len(batch[1].tokens)
    assert len({*batch[0].tokens, *batch[1].tokens}) > 5


def test_decoding_ends_at_the_position_limit_and_uses_all_of_it(tiny) -> None:
    """A limit of 16 holds a prompt of 12 and 4 more; the token after the sixteenth is emitted and never cached."""
    session = ModelSession(stack_for(tiny.build("gpt2", limit=16)))
    short, long = generate(session, [list(range(3, 8)), list(range(3, 15))], Stop(max_new_tokens=9))
    assert (len(short.tokens), len(long.tokens)) == (9, 5)
    assert long.stop_reason == "length"
    assert long.steps[-1].stop_reason == "length"
    assert long.tokens == generate(ModelSession(session.stack), [list(range(3, 15))], Stop(max_new_tokens=5))[0].tokens


def test_budgets_count_the_pending_token(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("gpt2", limit=16)))
    session.prefill(Inputs(((3,) * 16, (3,) * 10)))
    assert Stop(max_new_tokens=3).budgets(session) == [1, 3]


def test_no_tokens_may_be_asked_for(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("llama")))
    assert generate(session, [[3, 4], [5]], Stop(max_new_tokens=0)) == [Generation([], [], "length")] * 2


def test_one_step_a_token_and_the_clock_is_read_between_rounds(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("llama")))
    ticks = iter(range(100))
    generation = generate(session, [[3, 4]], Stop(max_new_tokens=4), clock=lambda: float(next(ticks)))[0]
    assert [(step.drafted, step.num_accepted, step.emitted, step.round_s) for step in generation.steps] == [([], 0, 1, 1.0)] * 4
    assert [step.stop_reason for step in generation.steps] == [None, None, None, "length"]
    assert next(ticks) == 5
    untimed = generate(session, [[3, 4]], Stop(max_new_tokens=2))[0]
    assert all(step.round_s != step.round_s for step in untimed.steps)


def test_a_real_checkpoint_continues_a_story_as_transformers_does(shared) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(shared / "models" / "stories260K", dtype=torch.float64)
    session = ModelSession(stack_for(model))
    prompt = [1, 403, 407, 261, 378]
    tokens = generate(session, [prompt], Stop(max_new_tokens=60))[0].tokens
    assert tokens == transformers_greedy(model, prompt, 60, None)
    assert len(set(tokens)) > 10


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_session_is_reusable_and_seeded(tiny, temperature: float) -> None:
    session = ModelSession(stack_for(tiny.build("t5")))
    first, second = (generate(session, [[3, 9, 4]], Stop(max_new_tokens=8), Sampling(temperature=temperature)) for _ in "ab")
    assert first[0].tokens == second[0].tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_with_nan_are_refused(tiny, temperature: float) -> None:
    """A greedy choice among NaN would be a token like any other."""
    model = tiny.build("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    session, sampling = ModelSession(stack_for(model)), Sampling(temperature=temperature)
    with pytest.raises(InputError, match=r"logits of row 0.*hold NaN"):
        generate(session, [[3], [4, 5]], Stop(max_new_tokens=3), sampling)
