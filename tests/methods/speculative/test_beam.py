"""Speculative beam search equals ordinary beam search (Leviathan A.4), on table models and on transformers' own shapes."""

import pytest
from recorded_session import RecordedSession

from harness.exact.toy import random_table, toy_session
from methods.beam import BeamSearch
from methods.errors import InputError
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative import beam as beam_module
from methods.speculative.beam import SpeculativeBeamSearch
from methods.types import Inputs, Method, Session, Stop

VOCAB = 9
TARGET = random_table(VOCAB, seed=1, scale=1.0)
DRAFT = TARGET + random_table(VOCAB, seed=2, scale=0.3)
PROMPTS = ((3,), (1, 2, 3, 1, 2), (8, 7))
GREEDY = Sampling()


def outputs(method: Method, target: Session, prompts: tuple[tuple[int, ...], ...], stop: Stop) -> list[tuple[list[int], str]]:
    rows = method.generate(target, Inputs(prompts), GREEDY, Uniforms(range(len(prompts)), stop.max_new_tokens), stop)
    return [(row.tokens, row.stop_reason) for row in rows]


@pytest.mark.parametrize(("num_beams", "draft_beams", "num_draft"), [(1, 1, 4), (2, 2, 1), (3, 5, 3), (2, 8, 9)])
@pytest.mark.parametrize("stop_ids", [frozenset(), frozenset({4})], ids=["length", "eos"])
def test_identical_to_beam_search(
    num_beams: int, draft_beams: int, num_draft: int, stop_ids: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts, check = list[int](), beam_module.Checker.check

    def counted(*arguments: object) -> dict:
        laws = check(*arguments)
        contexts.append(len(laws))
        return laws

    monkeypatch.setattr(beam_module.Checker, "check", counted)
    for max_new_tokens in (1, 2, 14):
        stop = Stop(max_new_tokens=max_new_tokens, token_ids=stop_ids)
        expected = outputs(BeamSearch(num_beams), toy_session(TARGET), PROMPTS, stop)
        draft, target = RecordedSession(toy_session(DRAFT)), toy_session(TARGET)
        method = SpeculativeBeamSearch(draft, num_beams, draft_beams, num_draft)
        assert outputs(method, target, PROMPTS, stop) == expected
        assert target.num_forwards == len(contexts)
        assert max(contexts) <= num_beams + draft_beams * num_draft, "the paper's budget of a round"
        contexts.clear()


def test_drafting_saves_runs() -> None:
    """With the target as its own draft every step but the rounds' own is accepted; with a fair draft, some."""
    stop = Stop(max_new_tokens=20)
    for table, draft_beams, most in ((TARGET, 4, 20 / 4), (DRAFT, 8, 12)):
        target = toy_session(TARGET)
        method = SpeculativeBeamSearch(toy_session(table), 4, draft_beams, 3)
        outputs(method, target, PROMPTS[:1], stop)
        assert target.num_forwards <= most


def test_caches_equal_fresh_forwards() -> None:
    draft, target = RecordedSession(toy_session(DRAFT)), RecordedSession(toy_session(TARGET))
    outputs(SpeculativeBeamSearch(draft, 3, 4, 3), target, PROMPTS[1:2], Stop(max_new_tokens=10))
    assert target.assert_fresh(toy_session(TARGET)) > 10
    assert draft.assert_fresh(toy_session(DRAFT)) > 10


@pytest.mark.parametrize("limits", [(9, None), (None, 8), (9, 7)])
def test_position_limits_are_kept(limits: tuple[int | None, int | None]) -> None:
    stop = Stop(max_new_tokens=12)
    expected = outputs(BeamSearch(3), toy_session(TARGET, limits[0]), PROMPTS[1:2], stop)
    method = SpeculativeBeamSearch(toy_session(DRAFT, limits[1]), 3, 4, 3)
    assert outputs(method, toy_session(TARGET, limits[0]), PROMPTS[1:2], stop) == expected


@pytest.mark.parametrize("name", ["llama-gqa", "t5"])
def test_identical_on_real_architectures(name: str, tiny: object) -> None:
    target, draft = stack_for(tiny.build(name)), stack_for(tiny.build(name, spread=0.31))
    stop = Stop(max_new_tokens=12, token_ids=frozenset({2}))
    prompts = ((5,), (3, 9, 27, 33))
    expected = outputs(BeamSearch(3), ModelSession(target), prompts, stop)
    for drafts in (draft, target):
        method = SpeculativeBeamSearch(ModelSession(drafts), 3, 5, 3)
        rows = method.generate(ModelSession(target), Inputs(prompts), GREEDY, Uniforms((0, 1), stop.max_new_tokens), stop)
        assert [(row.tokens, row.stop_reason) for row in rows] == expected
    assert all(sum(step.num_accepted for step in row.steps) > 0 for row in rows)


def test_bad_widths_are_named() -> None:
    with pytest.raises(InputError, match="draft_beams 2: expected at least num_beams 3"):
        SpeculativeBeamSearch(toy_session(DRAFT), 3, 2, 1)
    method = SpeculativeBeamSearch(toy_session(DRAFT), 1, 1, 1)
    stop, drawn = Stop(max_new_tokens=3), Sampling(temperature=1.0)
    with pytest.raises(InputError, match="temperature"):
        method.generate(toy_session(TARGET), Inputs(((1,),)), drawn, Uniforms([0], 3), stop)
