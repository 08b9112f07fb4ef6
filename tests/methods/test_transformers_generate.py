"""transformers' generate behind the Method protocol: the same tokens as the project's own loops, in fp64."""

from collections import Counter
from copy import deepcopy
from functools import partial

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from methods.autoregressive import Autoregressive
from methods.beam import BeamSearch
from methods.errors import InputError
from methods.models import stack_for
from methods.models.base import Stack
from methods.parts import SCHEDULES
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.transformers_assisted import check_early_exit, check_schedule, lend_early_exit, lend_lookup, lend_model
from methods.transformers_generate import TransformersGenerate
from methods.types import Generation, Inputs, Method, Stop

ENDS = frozenset({4, 9, 20, 33, 41})
PROMPTS = Inputs(((3, 9, 12), (5,), (8, 30, 31, 7, 6), (17, 18, 19, 20)))


def generate(session: ModelSession, method: Method, inputs: Inputs, stop: Stop) -> list[Generation]:
    return method.generate(session, inputs, Sampling(), Uniforms(range(inputs.batch), stop.max_new_tokens), stop)


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


def rounds(rows: list[Generation]) -> list[list[tuple[list[int], int, int]]]:
    return [[(step.drafted, step.num_accepted, step.emitted) for step in row.steps] for row in rows]


def ours(draft: Stack, gamma: int, schedule: str = "constant") -> DraftAndVerify:
    return DraftAndVerify(ModelDrafter(ModelSession(draft)), SpeculativeSampling(), lambda: SCHEDULES[schedule](gamma))


@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_an_assistant_drafts_and_loses_what_our_loop_does(tiny, family: str, schedule: str) -> None:
    """The same tokens as plain decoding, in the rounds of our own loop with the same two models."""
    session, draft = ModelSession(stack_for(tiny.build(family))), stack_for(tiny.build(family, spread=0.2))
    method = TransformersGenerate(assistance=partial(lend_model, draft=draft, gamma=3, schedule=schedule))
    stop = Stop(max_new_tokens=14)
    expected, made = generate(session, ours(draft, 3, schedule), PROMPTS, stop), generate(session, method, PROMPTS, stop)
    assert [row.tokens for row in made] == [row.tokens for row in generate(session, Autoregressive(), PROMPTS, stop)]
    assert rounds(made) == rounds(expected)
    assert {step.num_accepted for row in made for step in row.steps} >= {0, 1}


def shallow(model: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """The first layers of a Llama as a model of its own."""
    copied = deepcopy(model)
    copied.model.layers = copied.model.layers[:num_layers]
    copied.config.num_hidden_layers = num_layers
    return copied


@pytest.mark.parametrize("family", ["llama-gqa", "mistral", "qwen2", "gemma"])
def test_early_exit_is_the_first_layers_as_a_draft_model(tiny, family: str) -> None:
    """In rounds and in work: a pass of the whole model a round and a pass of its first layers a draft, none behind them."""
    model = tiny.build(family, spread=0.2)
    session, draft = ModelSession(stack_for(model)), stack_for(shallow(model, 2))
    stop, passes = Stop(max_new_tokens=12), Counter()
    hooks = [
        layer.register_forward_hook(lambda *_, depth=depth: passes.update([depth]))
        for depth, layer in enumerate(model.model.layers)
    ]
    made = generate(session, TransformersGenerate(assistance=partial(lend_early_exit, layer=2, gamma=3)), PROMPTS, stop)
    for hook in hooks:
        hook.remove()
    assert rounds(made) == rounds(generate(session, ours(draft, 3), PROMPTS, stop))
    steps = [step for row in made for step in row.steps]
    assert passes == {0: (each := len(steps) + sum(len(step.drafted) for step in steps)), 1: each, 2: len(steps)}
    assert model.config.num_hidden_layers == 3


def looked_up(text: list[int], gamma: int) -> list[int]:
    """What prompt lookup drafts: behind the first earlier occurrence of the last two tokens, else of the last one."""
    for size in (2, 1):
        for start in range(len(text) - size):
            if text[start : start + size] == text[-size:]:
                return text[start + size :][:gamma]
    return []


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5", "bart"])
def test_prompt_lookup_drafts_from_the_decoders_text(tiny, family: str) -> None:
    model = tiny.build(family, spread=0.15 if family in ("llama", "gpt2") else None)
    session, prompts = ModelSession(stack_for(model)), Inputs((*PROMPTS.prompts[:3], (3, 4, 5, 3, 4)))
    stop = Stop(max_new_tokens=14)
    made = generate(session, TransformersGenerate(assistance=partial(lend_lookup, gamma=3)), prompts, stop)
    assert [row.tokens for row in made] == [row.tokens for row in generate(session, Autoregressive(), prompts, stop)]
    drafts = 0
    for prompt, row in zip(prompts.prompts, made, strict=True):
        text, emitted = [session.stack.start_token] if session.stack.is_encoder_decoder else list(prompt), 0
        for step in row.steps:
            room = emitted + 1 < len(row.tokens)
            assert step.drafted == (looked_up([*text, *row.tokens[:emitted]], 3) if room else [])
            drafts, emitted = drafts + len(step.drafted), emitted + step.emitted
        assert emitted == len(row.tokens)
    assert drafts > 10


@pytest.mark.parametrize("family", ["llama", "t5", "gpt2", "bart"])
def test_whoever_drafts_a_text_ends_where_plain_decoding_does(tiny, family: str) -> None:
    """With EOS among the drafts, behind a rejection, and as the target's own; what stands is what was emitted of the drafts."""
    model = tiny.build(family)
    session, stop = ModelSession(stack_for(model)), Stop(max_new_tokens=14, token_ids=ENDS)
    expected = generate(session, Autoregressive(), PROMPTS, stop)
    drafters = [partial(lend_model, draft=stack_for(tiny.build(family, spread=0.2)), gamma=4), partial(lend_lookup, gamma=4)]
    drafters += [partial(lend_early_exit, layer=1, gamma=4)] if family == "llama" else []
    for drafter in drafters:
        made = generate(session, TransformersGenerate(assistance=drafter), PROMPTS, stop)
        assert [(row.tokens, row.stop_reason) for row in made] == [(row.tokens, row.stop_reason) for row in expected]
        for row in made:
            position = 0
            for step in row.steps:
                emitted = row.tokens[position : position + step.emitted]
                assert emitted[: step.num_accepted] == step.drafted[: step.num_accepted]
                assert step.emitted - step.num_accepted in (0, 1)
                position += step.emitted
            assert position == len(row.tokens)
            assert [step.stop_reason for step in row.steps] == [None] * (len(row.steps) - 1) + [row.stop_reason]


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.5), Sampling(temperature=0.7, top_k=3, top_p=0.9)], ids=str)
def test_samples_are_of_the_targets_law_and_depend_on_their_seed_alone(tiny, sampling: Sampling) -> None:
    """Nothing that the law excludes is drawn, an assisted row says the same in a batch, and torch's own generator stays."""
    session, draft = ModelSession(stack_for(tiny.build("llama", spread=0.2))), stack_for(tiny.build("llama", spread=0.15))
    stop, before = Stop(max_new_tokens=6), torch.get_rng_state()
    for drafter in (
        None,
        partial(lend_model, draft=draft, gamma=2),
        partial(lend_lookup, gamma=2),
        partial(lend_early_exit, layer=1, gamma=2),
    ):
        method = TransformersGenerate(assistance=drafter)
        made = method.generate(session, PROMPTS, sampling, Uniforms([5, 6, 7, 8], 6), stop)
        alone = method.generate(session, PROMPTS.row(2), sampling, Uniforms([7], 6), stop)
        other = method.generate(session, PROMPTS.row(2), sampling, Uniforms([9], 6), stop)
        again = method.generate(session, PROMPTS, sampling, Uniforms([5, 6, 7, 8], 6), stop)
        assert [row.tokens for row in again] == [row.tokens for row in made]
        assert alone[0].tokens != other[0].tokens
        assert drafter is None or alone[0].tokens == made[2].tokens
        for prompt, row in zip(PROMPTS.prompts, made, strict=True):
            session.prefill(Inputs((prompt,)))
            probs = sampling.probs(session.extend(torch.tensor([[prompt[-1], *row.tokens[:-1]]])))[0]
            assert bool((probs[range(6), row.tokens] > 0).all())
            assert sum(step.emitted for step in row.steps) == 6
    assert torch.equal(torch.get_rng_state(), before)


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


def test_lookups_end_at_the_position_limit(tiny) -> None:
    """transformers' own looks up positions that a table of learned ones does not have, and fails."""
    session = ModelSession(stack_for(tiny.build("gpt2", limit=12, spread=0.15)))
    prompts, stop = Inputs(((3, 4, 5, 6, 7, 8, 3, 4), (5, 6, 5))), Stop(max_new_tokens=30)
    expected = generate(session, Autoregressive(), prompts, stop)
    made = generate(session, TransformersGenerate(assistance=partial(lend_lookup, gamma=6)), prompts, stop)
    assert [row.tokens for row in made] == [row.tokens for row in expected]
    assert made[0].steps[0].drafted == [5, 6, 7, 8]


def test_a_failure_leaves_the_model_as_it_was(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build("llama")
    session, before = ModelSession(stack_for(model)), set(vars(model))

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(AssistedCandidateGenerator, "_generate_candidates", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        generate(
            session,
            TransformersGenerate(assistance=partial(lend_early_exit, layer=1, gamma=2)),
            PROMPTS,
            Stop(max_new_tokens=4),
        )
    assert model.config.num_hidden_layers == 3
    assert set(vars(model)) == before


def test_what_it_cannot_do_is_refused(tiny) -> None:
    session, one = ModelSession(stack_for(tiny.build("llama"))), Inputs(((3,),))
    with pytest.raises(InputError, match=r"temperature 0.7: transformers' beams draw nothing here"):
        TransformersGenerate(2).generate(session, one, Sampling(temperature=0.7), Uniforms([0], 1), Stop(max_new_tokens=1))
    with pytest.raises(InputError, match="num_beams 0: expected an integer >= 1"):
        TransformersGenerate(0)
    assistant = partial(lend_model, draft=session.stack, gamma=2)
    with pytest.raises(InputError, match="num_beams 2: transformers' assisted generation has no beams"):
        TransformersGenerate(2, assistant)
    with pytest.raises(InputError, match="schedule 'optimal': transformers' assisted generation has constant and heuristic"):
        check_schedule("optimal")
    with pytest.raises(InputError, match="early layer 3: the model has 3 layers; expected 1 to 2"):
        check_early_exit(session.stack, 3)
    for family in ("gpt2", "t5", "bart"):
        with pytest.raises(InputError, match=f"model type '{family}': transformers' early exit works where"):
            check_early_exit(stack_for(tiny.build(family)), 1)
    with pytest.raises(InputError, match="token 99 is outside the vocabulary"):
        generate(session, TransformersGenerate(), Inputs(((99,),)), Stop(max_new_tokens=1))
