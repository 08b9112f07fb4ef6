"""The draft-and-verify loop on a table-driven model: greedy identity in fp64, caches, batches, limits."""

from collections.abc import Callable
from functools import cache, partial
from time import perf_counter
from types import SimpleNamespace

import pytest
import torch
from recorded_session import RecordedSession

from harness.exact.toy import greedy_output, random_block, random_table, same_tokens, toy_session
from methods.autoregressive import Autoregressive
from methods.errors import InputError
from methods.models import stack_for
from methods.parts import DRAFTERS, SCHEDULES
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.drafters import DraftParts
from methods.speculative.ngram import NGramTable
from methods.speculative.rules import Lenience, SpeculativeSampling
from methods.speculative.schedules import Constant, Heuristic, Optimal, Sweep
from methods.types import Drafter, Inputs, Stop

VOCAB = 9
EOS = 4
TARGET = random_table(VOCAB, seed=1)
DRAFT = TARGET + random_table(VOCAB, seed=2, scale=1.0)
INNER = DRAFT + random_table(VOCAB, seed=3, scale=1.0)
PROMPTS = ((3,), (1, 2, 3, 1, 2), (8, 7, 6, 5), (0, 0, 1), (2,), (5, 1, 5, 1, 5))
GREEDY = Sampling()
DRAWN = Sampling(temperature=1.0)
SCHEDULE_FACTORIES = {
    "constant": partial(Constant, 4),
    "heuristic": partial(Heuristic, 2),
    "optimal": partial(Optimal, 0.7, 0.05),
    "sweep": partial(Sweep, 4),
}


@cache
def truth(prompt: tuple[int, ...], max_new_tokens: int, stop_ids: frozenset[int]) -> list[int]:
    return greedy_output(toy_session(TARGET), prompt, max_new_tokens, stop_ids)


@cache
def corpus() -> list[list[int]]:
    return [greedy_output(toy_session(TARGET), [token, token], 30, frozenset()) for token in range(VOCAB)]


def parts(position_limit: int | None = None, start_token: int | None = None) -> DraftParts:
    def session(table: torch.Tensor) -> toy_session:
        return toy_session(table, position_limit, start_token)

    inner = DRAFTERS["model"](DraftParts(vocab_size=VOCAB, session=session(INNER)))
    table = NGramTable.count(corpus(), VOCAB)
    return DraftParts(
        vocab_size=VOCAB, session=session(DRAFT), new_session=lambda: session(DRAFT), translation=same_tokens(VOCAB),
        table=table, inner=inner, block=random_block(VOCAB),
    )  # fmt: skip


OF_MODELS = {"blockwise", "first-layers", "rounded"}  # whose target is a model: specdec/, test_first_layers.py, test_rounded.py


@pytest.fixture(scope="module", params=sorted(set(DRAFTERS) - OF_MODELS))
def drafter(request: pytest.FixtureRequest) -> Drafter:
    return DRAFTERS[request.param](parts())


def uniforms(batch: int, length: int, first_seed: int = 0) -> Uniforms:
    return Uniforms(range(first_seed, first_seed + batch), length)


def generate(
    drafter: Drafter,
    prompts: tuple[tuple[int, ...], ...],
    sampling: Sampling,
    stop: Stop,
    schedule: Callable[[], object] = SCHEDULE_FACTORIES["constant"],
    target: object | None = None,
    seeds: Uniforms | None = None,
) -> list:
    method = DraftAndVerify(drafter, SpeculativeSampling(), schedule)
    target = target or toy_session(TARGET)
    return method.generate(target, Inputs(prompts), sampling, seeds or uniforms(len(prompts), stop.max_new_tokens), stop)


def test_every_drafter_and_schedule_is_covered() -> None:
    assert sorted(DRAFTERS) == [
        "bigram", "block", "blockwise", "copy", "first-layers", "hierarchical", "model", "random", "rounded", "slem", "suffix",
        "tli", "unigram",
    ]  # fmt: skip
    assert sorted(SCHEDULES) == sorted(SCHEDULE_FACTORIES)


@pytest.mark.parametrize("schedule", sorted(SCHEDULE_FACTORIES))
@pytest.mark.parametrize(("max_new_tokens", "stop_ids"), [(3, frozenset()), (20, frozenset({EOS}))], ids=["length", "eos"])
def test_greedy_is_identical_alone_and_in_ragged_batches(
    drafter: Drafter, schedule: str, max_new_tokens: int, stop_ids: frozenset[int]
) -> None:
    """Every drafter and schedule; prompts of one token; more drafts than tokens left; rows that end at different times."""
    stop, factory = Stop(max_new_tokens=max_new_tokens, token_ids=stop_ids), SCHEDULE_FACTORIES[schedule]
    expected = [truth(prompt, max_new_tokens, stop_ids) for prompt in PROMPTS]
    batch = generate(drafter, PROMPTS, GREEDY, stop, factory)
    single = [generate(drafter, (prompt,), GREEDY, stop, factory)[0] for prompt in PROMPTS[:2]]
    assert [row.tokens for row in batch] == expected
    assert [row.tokens for row in single] == expected[:2]
    for row in batch:
        assert row.stop_reason == ("eos" if row.tokens[-1] in stop_ids else "length")
        assert sum(step.emitted for step in row.steps) == len(row.tokens)
        assert [step.stop_reason for step in row.steps[:-1]] == [None] * (len(row.steps) - 1)


def test_one_token_is_a_plain_step(drafter: Drafter) -> None:
    rows = generate(drafter, PROMPTS, GREEDY, Stop(max_new_tokens=1))
    assert [row.tokens for row in rows] == [truth(prompt, 1, frozenset()) for prompt in PROMPTS]
    assert all(row.steps[0].drafted == [] and len(row.steps) == 1 for row in rows)


def test_the_prompts_exercise_what_they_should() -> None:
    """Rows end at different lengths, some by EOS and some by the limit, else the identity test shows little."""
    lengths = {len(greedy_output(toy_session(TARGET), prompt, 20, frozenset({EOS}))) for prompt in PROMPTS}
    assert len(lengths) >= 3
    assert max(lengths) > 5


def test_sampled_batches_equal_single_rows(drafter: Drafter) -> None:
    stop = Stop(max_new_tokens=25, token_ids=frozenset({EOS}))
    batch = generate(drafter, PROMPTS, DRAWN, stop, SCHEDULE_FACTORIES["heuristic"])
    for index, prompt in enumerate(PROMPTS):
        alone = generate(drafter, (prompt,), DRAWN, stop, SCHEDULE_FACTORIES["heuristic"], seeds=uniforms(1, 25, index))[0]
        assert alone.tokens == batch[index].tokens
        assert [step.num_accepted for step in alone.steps] == [step.num_accepted for step in batch[index].steps]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("start_token", [None, 0], ids=["decoder", "encoder-decoder"])
@pytest.mark.parametrize("name", ["model", "hierarchical"])
def test_caches_equal_a_fresh_forward_in_every_round(name: str, start_token: int | None, sampling: Sampling) -> None:
    target = RecordedSession(toy_session(TARGET, start_token=start_token))
    built = parts(start_token=start_token)
    draft = RecordedSession(built.session)
    inner = RecordedSession(toy_session(INNER, start_token=start_token))
    nested = DRAFTERS["model"](DraftParts(vocab_size=VOCAB, session=inner))
    drafter = DRAFTERS[name](DraftParts(vocab_size=VOCAB, session=draft, inner=nested))
    stop = Stop(max_new_tokens=16)
    for row in PROMPTS[:3]:
        rows = generate(drafter, (row,), sampling, stop, SCHEDULE_FACTORIES["heuristic"], target)
        assert rows[0].tokens
    assert target.assert_fresh(toy_session(TARGET, start_token=start_token)) > 10
    assert draft.assert_fresh(toy_session(DRAFT, start_token=start_token)) > 10
    assert (inner.assert_fresh(toy_session(INNER, start_token=start_token)) if name == "hierarchical" else 11) > 10


def test_texts_in_the_caches_are_the_output(drafter: Drafter) -> None:
    """What the target has cached before each round is the prompt and a prefix of what was emitted, in a batch too."""
    target = RecordedSession(toy_session(TARGET))
    stop = Stop(max_new_tokens=30)
    rows = generate(drafter, PROMPTS, DRAWN, stop, SCHEDULE_FACTORIES["heuristic"], target)
    for index, prompt in enumerate(PROMPTS):
        whole = (*prompt, *rows[index].tokens)
        verified = [(text, logits) for inputs, text, logits in target.seen if inputs.prompts[0] == prompt]
        for text, logits in verified:
            known = len(text) - len(logits) + 1
            assert text[:known] == whole[:known]


def test_a_model_draft_makes_no_needless_pass() -> None:
    """gamma passes for gamma drafts, none where nothing may be drafted, one run of the target a round."""
    built = parts()
    target = toy_session(TARGET)
    row = generate(DRAFTERS["model"](built), ((1, 2, 3),), DRAWN, Stop(max_new_tokens=50), target=target)[0]
    assert built.session.num_forwards == sum(len(step.drafted) for step in row.steps)
    assert target.num_forwards == len(row.steps)
    assert any(step.num_accepted == len(step.drafted) == 4 for step in row.steps)


@pytest.mark.parametrize("draft_limit", [3, 6, 11])
@pytest.mark.parametrize("name", ["model", "hierarchical"])
def test_drafts_stay_inside_the_draft_models_positions(name: str, draft_limit: int) -> None:
    """A toy_session raises past its limit; the target goes on with shorter and then with no drafts."""
    prompts = ((3,), (1, 2, 3), (2, 2))
    rows = generate(DRAFTERS[name](parts(draft_limit)), prompts, GREEDY, Stop(max_new_tokens=20))
    assert [row.tokens for row in rows] == [greedy_output(toy_session(TARGET), p, 20, frozenset()) for p in prompts]
    assert any(step.drafted for step in rows[0].steps) == (draft_limit > 1)
    assert rows[0].steps[-2].drafted == []


def test_the_targets_positions_bound_drafts_and_text() -> None:
    drafter = DRAFTERS["model"](parts())
    expected = greedy_output(toy_session(TARGET), [1, 2, 3], 6, frozenset())
    target = toy_session(TARGET, position_limit=8)
    rows = generate(drafter, ((1, 2, 3), (1, 2, 3, 4, 5, 6, 7, 8), (1,) * 9), GREEDY, Stop(max_new_tokens=20), target=target)
    assert rows[0].tokens == expected
    assert [len(row.tokens) for row in rows] == [6, 1, 0]
    assert {row.stop_reason for row in rows} == {"length"}


@pytest.mark.parametrize("name", ["llama-gqa", "t5"])
def test_greedy_is_identical_on_real_architectures(name: str, tiny: SimpleNamespace) -> None:
    """fp64, a ragged batch with EOS, against plain decoding with the same sessions; caches against fresh forwards."""
    target_stack, draft_stack = stack_for(tiny.build(name)), stack_for(tiny.build(name, spread=0.3001))
    inputs, stop = tiny.source_for(target_stack, [1, 9, 4]), Stop(max_new_tokens=9, token_ids=frozenset({7}))
    plain = Autoregressive().generate(ModelSession(target_stack), inputs, GREEDY, uniforms(3, 16), stop)
    for drafter in ("model", "hierarchical", "copy"):
        target, draft = RecordedSession(ModelSession(target_stack)), RecordedSession(ModelSession(draft_stack))
        inner = DRAFTERS["random"](DraftParts(vocab_size=target.vocab_size))
        built = DRAFTERS[drafter](DraftParts(vocab_size=target.vocab_size, session=draft, inner=inner))
        rows = generate(built, inputs.prompts, GREEDY, stop, SCHEDULE_FACTORIES["heuristic"], target)
        assert [(row.tokens, row.stop_reason) for row in rows] == [(row.tokens, row.stop_reason) for row in plain]
        assert target.assert_fresh(ModelSession(target_stack), atol=1e-9) > 3
        draft.assert_fresh(ModelSession(draft_stack), atol=1e-9)


def test_a_draft_whose_logits_hold_nan_is_refused() -> None:
    """Greedy drafts of NaN are tokens like any other: they would show as a low acceptance and nothing else."""
    session = toy_session(torch.full_like(DRAFT, float("nan")))
    drafter = DRAFTERS["model"](DraftParts(vocab_size=VOCAB, session=session))
    with pytest.raises(InputError, match=r"logits of row 0: hold NaN; look at the model's weights"):
        generate(drafter, PROMPTS, GREEDY, Stop(max_new_tokens=8))


def test_a_schedule_that_drafts_nothing_is_plain_decoding() -> None:
    built = parts()
    rows = generate(DRAFTERS["model"](built), PROMPTS, GREEDY, Stop(max_new_tokens=8), partial(Optimal, 0.01, 0.5))
    assert [row.tokens for row in rows] == [greedy_output(toy_session(TARGET), p, 8, frozenset()) for p in PROMPTS]
    assert built.session.num_forwards == 0


def test_steps_carry_the_probabilities_of_the_drafts() -> None:
    target = toy_session(TARGET)
    row = generate(DRAFTERS["model"](parts()), ((1, 2),), DRAWN, Stop(max_new_tokens=30))[0]
    output: list[int] = []
    for step in row.steps:
        assert len(step.target_probs) == len(step.draft_probs) == len(step.drafted)
        for table, probs in ((TARGET, step.target_probs), (DRAFT, step.draft_probs)):
            session = toy_session(table)
            pending = session.prefill(Inputs(((1, 2),)))
            logits = session.extend(torch.tensor([[*pending, *output, *step.drafted]]))[0, len(output) :]
            expected = logits[: len(step.drafted)].softmax(-1)[range(len(step.drafted)), step.drafted]
            torch.testing.assert_close(torch.tensor(probs, dtype=torch.float64), expected)
        output = row.tokens[: len(output) + step.emitted]
    assert target.num_forwards == 0


def test_lenient_greedy_as_described_accepts_everything() -> None:
    """A.5 prints p <= l max(p); at l = 1 that lets every draft stand. The right way round, l = 1 is greedy decoding."""
    stop, drafter = Stop(max_new_tokens=30), DRAFTERS["random"](parts())
    for as_described in (True, False):
        method = DraftAndVerify(drafter, Lenience(1.0, as_described=as_described), partial(Constant, 4))
        assert method.guarantee == "lossy"
        row = method.generate(toy_session(TARGET), Inputs(((1, 2),)), GREEDY, uniforms(1, 30), stop)[0]
        everything = all(step.num_accepted == len(step.drafted) for step in row.steps)
        assert everything == as_described
        assert (row.tokens == greedy_output(toy_session(TARGET), [1, 2], 30, frozenset())) != as_described


def test_times_are_recorded_only_with_a_clock() -> None:
    method = DraftAndVerify(DRAFTERS["model"](parts()), SpeculativeSampling(), partial(Constant, 3))
    arguments = (toy_session(TARGET), Inputs(((1, 2),)), GREEDY, uniforms(1, 12), Stop(max_new_tokens=12))
    silent = method.generate(*arguments)[0]
    assert all(step.round_s != step.round_s for step in silent.steps)
    timed = method.generate(*arguments, clock=perf_counter)[0]
    assert all(step.draft_s > 0 and step.verify_s > 0 for step in timed.steps)
    assert all(step.round_s >= step.draft_s + step.verify_s for step in timed.steps)


def test_what_target_and_drafter_take_for_their_inputs_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a prefill advances by 5 s and the drafter's begin by 7 s; a drafter that starts early is told first."""
    now, order, drafter, target = [0.0], [], DRAFTERS["model"](parts()), toy_session(TARGET)

    def taking(seconds: float, name: str, what: Callable) -> Callable:
        def slow(*arguments: object) -> object:
            now[0] += seconds
            order.append(name)
            return what(*arguments)

        return slow

    monkeypatch.setattr(target, "prefill", taking(5.0, "prefill", target.prefill))
    monkeypatch.setattr(drafter, "begin", taking(7.0, "begin", drafter.begin))
    method = DraftAndVerify(drafter, SpeculativeSampling(), partial(Constant, 3))
    arguments = (target, Inputs(((1, 2), (3,))), GREEDY, uniforms(2, 6), Stop(max_new_tokens=6))
    for timed in method.generate(*arguments, clock=lambda: now[0]):
        assert (timed.encode_s, timed.draft_encode_s) == (5.0, 7.0)
        assert sum(step.round_s for step in timed.steps) == 0
    silent = method.generate(*arguments)[0]
    assert silent.encode_s != silent.encode_s
    assert silent.draft_encode_s != silent.draft_encode_s
    order.clear()
    monkeypatch.setattr(drafter, "start", lambda inputs: order.append("start"), raising=False)
    method.generate(*arguments)
    assert order == ["start", "prefill", "begin"]


def test_heuristic_schedule_adds_two_and_takes_one() -> None:
    schedule = Heuristic(2)
    for drafted, accepted, expected in ((2, 2, 4), (4, 3, 3), (0, 0, 3), (3, 0, 2), (2, 0, 1), (1, 0, 1), (1, 1, 3)):
        schedule.observe(drafted, accepted)
        assert schedule.next() == expected
    with pytest.raises(InputError, match="gamma 0"):
        Constant(0)


def test_a_missing_part_is_named() -> None:
    with pytest.raises(InputError, match="bigram: expected a counted n-gram table"):
        DRAFTERS["bigram"](DraftParts(vocab_size=VOCAB))
