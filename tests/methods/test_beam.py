"""Beam search against transformers' generate and against exhaustive search."""

import copy
import itertools
from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedModel

from methods.beam import BeamSearch, BeamState, advance_all
from methods.errors import InputError
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.types import Generation, Inputs, Stop


def search(session: ModelSession, prompts: Sequence[Sequence[int]], method: BeamSearch, stop: Stop) -> list[Generation]:
    inputs = Inputs(tuple(map(tuple, prompts)))
    return method.generate(session, inputs, Sampling(), Uniforms(range(len(prompts)), 1), stop)


def transformers_beam(
    model: PreTrainedModel, prompt: Sequence[int], eos: list[int] | None, max_new: int, num_beams: int
) -> list[int]:
    model.generation_config.eos_token_id = eos
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=num_beams, max_new_tokens=max_new, pad_token_id=0
    )[0].tolist()
    return out[1:] if model.config.is_encoder_decoder else out[len(prompt) :]


@pytest.mark.parametrize("num_beams", [1, 2, 3, 4])
@pytest.mark.parametrize("family", ["llama-gqa", "t5", "bart"])
def test_equals_transformers_with_and_without_eos(tiny, family: str, num_beams: int) -> None:
    """Many EOS ids end hypotheses at all lengths; spread 0.1 keeps the distribution flat enough to branch."""
    session = ModelSession(stack_for(tiny.build(family, spread=0.1 if family != "llama-gqa" else 0.2)))
    ends = set()
    for prompt, eos in itertools.product(([3], [7, 30, 11, 5]), (None, [4, 9, 20, 33, 41])):
        stop = Stop(max_new_tokens=12, token_ids=frozenset(eos or ()))
        generation = search(session, [prompt], BeamSearch(num_beams), stop)[0]
        assert generation.tokens == transformers_beam(session.stack.model, prompt, eos, 12, num_beams)
        assert generation.stop_reason == ("eos" if eos and generation.tokens[-1] in eos else "length")
        ends.add(len(generation.tokens))
    assert 12 in ends


def test_a_batch_is_its_rows_one_by_one(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("t5", spread=0.1)))
    prompts, stop = [[3, 9], [5], [8, 30, 31]], Stop(max_new_tokens=8, token_ids=frozenset({4, 20}))
    together = search(session, prompts, BeamSearch(3), stop)
    assert [one.tokens for one in together] == [search(session, [prompt], BeamSearch(3), stop)[0].tokens for prompt in prompts]


def test_a_batch_takes_as_many_runs_of_the_model_as_its_longest_row(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row ends early: the fourth token of its own output is the stop token."""
    session, method = ModelSession(stack_for(tiny.build("llama-gqa", spread=0.2))), BeamSearch(1)
    prompts = [[3, 9], [5], [8, 30, 31]]
    texts = [search(session, [prompt], method, Stop(max_new_tokens=12))[0].tokens for prompt in prompts]
    stop = Stop(max_new_tokens=12, token_ids=frozenset({texts[0][3]}))
    rows, extend = [], ModelSession.extend
    monkeypatch.setattr(ModelSession, "extend", lambda self, tokens: rows.append(len(tokens)) or extend(self, tokens))
    alone = [len(search(session, [prompt], method, stop)[0].steps) for prompt in prompts]
    assert (alone, len(rows)) == ([4, 12, 12], 28)
    rows.clear()
    together = search(session, prompts, method, stop)
    assert [len(one.steps) for one in together] == alone
    assert rows == [3] * 4 + [2] * 8


def test_states_are_advanced_together_as_alone() -> None:
    """Also where one has fewer beams than its neighbours."""
    generator, stop = torch.Generator().manual_seed(3), Stop(max_new_tokens=9, token_ids=frozenset({2}))
    for counts in ((1, 1, 1), (3, 3), (1, 3, 3), (3, 1, 3)):
        together, alone = [], []
        for count in counts:
            state = BeamState(3, stop)
            if count > 1:
                state.advance(torch.randn(1, 8, generator=generator).log_softmax(-1))
            together.append(state)
            alone.append(copy.copy(state))
        log_probs = torch.randn(sum(counts), 8, generator=generator).log_softmax(-1)
        ends = list(itertools.accumulate(counts))
        expected = [state.advance(log_probs[end - count : end]) for state, count, end in zip(alone, counts, ends, strict=True)]
        assert advance_all(together, log_probs) == expected
        assert [state.scores for state in together] == [state.scores for state in alone]


def test_enough_beams_find_the_most_likely_text() -> None:
    """With as many beams as prefixes nothing is pruned: the result is the best of all texts by brute force."""
    vocab, length = 6, 3
    table = torch.randn(vocab**length, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log_softmax(-1)

    def log_probs(beams: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.stack([table[sum(token * vocab**i for i, token in enumerate(beam)) + len(beam)] for beam in beams])

    def total(text: Sequence[int]) -> float:
        return sum(float(log_probs([text[:i]])[0, token]) for i, token in enumerate(text))

    state = BeamState(vocab**2, Stop(max_new_tokens=length))
    while not state.finished():
        state.advance(log_probs(state.beams))
    assert state.best() == max(itertools.product(range(vocab), repeat=length), key=total)


def test_a_copy_of_the_state_may_run_ahead() -> None:
    generator = torch.Generator().manual_seed(1)
    state = BeamState(2, Stop(max_new_tokens=9))
    state.advance(torch.randn(1, 8, generator=generator).log_softmax(-1))
    ahead, beams, scores = copy.copy(state), list(state.beams), list(state.scores)
    parents, tokens = ahead.advance(torch.randn(2, 8, generator=generator).log_softmax(-1))
    assert ahead.beams == [(*beams[parent], token) for parent, token in zip(parents, tokens, strict=True)]
    assert (state.beams, state.scores) == (beams, scores)


def test_the_position_limit_ends_the_search(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("gpt2", limit=16)))
    prompt = list(range(3, 15))
    limited = search(session, [prompt], BeamSearch(3), Stop(max_new_tokens=30))[0]
    assert limited.tokens == search(session, [prompt], BeamSearch(3), Stop(max_new_tokens=5))[0].tokens
    assert limited.stop_reason == "length"


def test_no_beams_are_refused() -> None:
    with pytest.raises(InputError, match="num_beams 0: expected an integer >= 1"):
        BeamSearch(0)


def test_sampling_is_refused(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("llama")))
    with pytest.raises(InputError, match=r"temperature 0.7: beam search draws nothing"):
        BeamSearch(2).generate(session, Inputs(((3,),)), Sampling(temperature=0.7), Uniforms([0], 1), Stop(max_new_tokens=1))
