"""Sessions of fixed shapes: the logits of transformers, the tokens of ordinary sessions, and nothing captured while decoding.

No device captures here. A graph is played by an object that keeps to its rules (played_graphs).
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from played_graphs import Graphs, Replays
from torch import Tensor

from kernels.capture import capture_for
from methods.autoregressive import Autoregressive
from methods.errors import InputError
from methods.models import base, stack_for
from methods.models.base import Frame, Stack
from methods.models.general import GeneralEncoderDecoderStack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative import rules
from methods.speculative.block_verification import BlockVerification
from methods.speculative.decode import DraftAndVerify
from methods.speculative.engine_rules import PointMass
from methods.speculative.model import ModelDrafter
from methods.speculative.per_row import CopyDrafter, PerRow, RandomDrafter, SuffixDrafter
from methods.speculative.rules import KernelRule, Lenience, SigmoidRule, SpeculativeSampling
from methods.speculative.schedules import Constant, Sweep
from methods.speculative.translation import UNSEEN
from methods.static import MULTIPLE, LaidSource, Room, StaticSession
from methods.types import Generation, Inputs, Method, Proposal, Session, Stop, Verdict, VerifyRule

DECODERS = ("llama", "llama-gqa", "mistral-window", "qwen2", "gemma", "gpt2")
ENCODER_DECODERS = ("t5", "t5-gated", "bart", "marian")
GAMMA, TOKENS, ROWS = 3, 24, 3
PROMPTS = Inputs(((1, 5, 7, 9, 5, 7), (1, 6), (1, 5, 7, 9, 11, 5, 7, 9)))


def test_on_a_cpu_the_compiled_loop_decides_as_without_fixed_shapes(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is captured there; rows that have ended are padding, whose drafts are nobody's."""
    monkeypatch.undo()  # of this file's fixture
    stack, draft = stack_for(tiny.build("llama")), stack_for(tiny.build("llama-gqa"))
    texts = []
    for fixed in (False, True):
        room = Room(ROWS, 9, TOKENS)
        target, session = (StaticSession(one, room, GAMMA + 1) if fixed else ModelSession(one) for one in (stack, draft))
        method = DraftAndVerify(ModelDrafter(session), SpeculativeSampling(), partial(Constant, GAMMA))
        for sampling in (Sampling(), Sampling(temperature=0.8)):
            uniforms, stop = Uniforms(range(ROWS), TOKENS), Stop(max_new_tokens=TOKENS, token_ids=frozenset(range(0, 48, 7)))
            texts.append([row.tokens for row in method.generate(target, PROMPTS, sampling, uniforms, stop)])
    assert texts[:2] == texts[2:]
    assert len({len(row) for row in texts[1]}) > 1, "rows end at different times"


@pytest.fixture(autouse=True)
def _by_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts are torch's operations here, as on a GPU: no graph holds a call of compiled code."""
    monkeypatch.setattr(rules, "_library", lambda logits: None)


def walk(tiny: Any, stack: Stack, seed: int, capture: Any = None) -> int:
    """Random passes, rewinds and changes of rows; every logit is that of transformers' uncached pass. Return their number."""
    generator = random.Random(seed)
    session, kept = StaticSession(stack, Room(ROWS, 9, 51), most_new=3, capture=capture), list[tuple[Tensor, Tensor]]()
    for lengths in ([4, 1, 6], [9], [2, 2]):  # a later text finds an earlier one's numbers behind its own; two are alike
        inputs = tiny.source_for(stack, lengths) if lengths != [2, 2] else Inputs(((3, 4),) * 2)
        pending, sources = session.prefill(inputs), list(inputs.prompts)
        texts = [[] if stack.encodes_prompts else list(prompt[:-1]) for prompt in sources]
        new = [[token] for token in pending]
        for _ in range(6):
            logits = session.extend(torch.tensor(new))
            kept.append((session.hidden, logits))
            for row, tokens in enumerate(new):
                texts[row] += tokens
                expected = tiny.reference_logits(stack.model, texts[row], sources[row])[-len(tokens) :]
                torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-9)
            counts = [generator.randrange(len(new[0]) + 1) for _ in texts]
            session.rewind(counts)
            texts = [text[: len(text) - count] for text, count in zip(texts, counts, strict=True)]
            rows = generator.choices(range(len(texts)), k=generator.randint(1, ROWS))
            session.select(rows)
            texts, sources = [list(texts[row]) for row in rows], [sources[row] for row in rows]
            width = generator.choice([1, 2, 3, 5])  # 5: more than there is a step for
            new = [[generator.randrange(3, 40) for _ in range(width)] for _ in texts]
        assert session.lengths == [tuple(map(len, texts))] * session.num_layers
    for hidden, logits in kept:  # no later pass has written over what an earlier one gave
        with torch.inference_mode():
            torch.testing.assert_close(stack.head(hidden), logits, rtol=0, atol=1e-9)
    return len(kept)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", [*DECODERS, *ENCODER_DECODERS])
def test_random_passes_rewinds_and_rows_give_transformers_logits(tiny: Any, family: str, seed: int) -> None:
    graphs = Graphs()
    assert walk(tiny, stack_for(tiny.build(family)), seed, graphs) == 18
    assert graphs.launched > 0


def test_a_stale_place_that_is_not_masked_is_found(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three faults: a mask that shows one place more, keys that are stored one place on, and lengths that are not rewound."""
    stack = stack_for(tiny.build("llama"))
    walk(tiny, stack, 0)
    mask = stack.mask

    def shows_more(frame: Frame) -> Any:
        positions = frame.positions
        frame.positions = lambda: positions() + 1
        made = mask(frame)
        frame.positions = positions
        return made

    faults: tuple[tuple[Any, str, Any], ...] = (
        (stack, "mask", shows_more),
        (StaticSession, "rewind", lambda self, counts: None),
        (base, "scatter", lambda positions: partial(_store, positions + 1)),
    )
    for where, name, fault in faults:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fault)
            with pytest.raises(AssertionError):
                walk(tiny, stack, 0)


def _store(positions: Tensor, slot: Tensor, new: Tensor) -> None:
    slot[torch.arange(len(positions)).unsqueeze(1), positions] = new


def test_numbers_that_are_none_do_not_outlive_their_text(tiny: Any) -> None:
    """A mask of minus infinity does not hide NaN: 0 times NaN is NaN."""
    stack = stack_for(tiny.build("gpt2"))
    session = StaticSession(stack, Room(1, 3, 27), 1)
    with torch.inference_mode():
        session._laid_out.fill_(float("nan"))
    pending = session.prefill(Inputs(((1, 5, 7),)))
    expected = tiny.reference_logits(stack.model, (1, 5, 7), ())[-1:]
    torch.testing.assert_close(session.extend(torch.tensor([pending]))[0], expected, rtol=0, atol=1e-9)


def test_a_source_that_is_not_followed_is_found(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three faults: what lies behind a source is read, rows that change keep their sources, and NaN outlives its text."""
    stack = stack_for(tiny.build("t5"))
    hold = LaidSource.hold

    def shows_all(laid: LaidSource, source: Any) -> None:
        hold(laid, source)
        with torch.inference_mode():
            laid.view.mask.zero_()

    for where, name, fault in ((LaidSource, "hold", shows_all), (StaticSession, "select", ModelSession.select)):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fault)
            with pytest.raises(AssertionError):
                walk(tiny, stack, 0)
    session = StaticSession(stack, Room(1, 3, 27), 1)
    with torch.inference_mode():
        session._laid_source.view.states.fill_(float("nan"))
    pending = session.prefill(Inputs(((3, 5, 7),)))
    expected = tiny.reference_logits(stack.model, pending, (3, 5, 7))
    torch.testing.assert_close(session.extend(torch.tensor([pending]))[0], expected, rtol=0, atol=1e-9)


def decoded(method: Method, session: Session, sampling: Sampling) -> list[Generation]:
    uniforms, stop = Uniforms([11, 12, 13], TOKENS), Stop(max_new_tokens=TOKENS, token_ids=frozenset([2, 17]))
    return method.generate(session, PROMPTS, sampling, uniforms, stop)


def rounds(made: list[Generation]) -> list[tuple[list[int], int]]:
    return [(step.drafted, step.num_accepted) for one in made for step in one.steps]


def method_of(kind: str, draft: Session, rule: VerifyRule | None = None) -> Method:
    if kind == "plain":
        return Autoregressive()
    rows = {"copy": CopyDrafter, "suffix": SuffixDrafter, "random": RandomDrafter}
    drafter = ModelDrafter(draft) if kind == "model" else PerRow(rows[kind](48))
    return DraftAndVerify(drafter, rule or SpeculativeSampling(), partial(Constant, GAMMA))


def check_both_ways(
    tiny: Any,
    family: str,
    dtype: torch.dtype,
    make: Callable[[Session], Method],
    sampling: Sampling,
    graphs: Graphs | Replays,
) -> None:
    """Two texts a row with graphs have the tokens and rounds of ordinary sessions, and nothing is captured in the second."""
    target, draft = (stack_for(tiny.build(family, spread=spread, dtype=dtype)) for spread in (0.4, 0.3))
    expected = decoded(make(ModelSession(draft)), ModelSession(target), sampling)
    room = Room(ROWS, max(map(len, PROMPTS.prompts)), TOKENS)
    session, method = StaticSession(target, room, GAMMA + 1, graphs), make(StaticSession(draft, room, UNSEEN, graphs))
    captured = graphs.captured
    assert captured == GAMMA + 1 + UNSEEN
    for text in range(2):
        before = graphs.launched
        found = decoded(method, session, sampling)
        assert [(one.tokens, one.stop_reason) for one in found] == [(one.tokens, one.stop_reason) for one in expected]
        assert rounds(found) == rounds(expected)
        assert probabilities(found) == pytest.approx(probabilities(expected), rel=1e-4, abs=1e-6, nan_ok=True)
        assert graphs.launched - before >= max(len(one.steps) for one in found)
        captured = graphs.captured if text == 0 else captured
    assert graphs.captured == captured
    assert sum(len(one.tokens) for one in expected) > 2 * ROWS
    if any(step.drafted for one in expected for step in one.steps):
        assert any(step.num_accepted for one in expected for step in one.steps)


def probabilities(made: list[Generation]) -> list[float]:
    return [prob for one in made for step in one.steps for prob in (*step.target_probs, *step.draft_probs)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["plain", "copy", "suffix", "model"])
@pytest.mark.parametrize("family", ["llama-gqa", "t5-gated", "marian"])
def test_tokens_are_those_of_ordinary_sessions_and_every_shape_is_captured_once(
    tiny: Any, family: str, kind: str, temperature: float, dtype: torch.dtype
) -> None:
    """Rows of different lengths, which end one by one. The first text captures; no pass goes without."""
    graphs = Graphs() if dtype == torch.float32 else Replays()
    check_both_ways(tiny, family, dtype, partial(method_of, kind), Sampling(temperature=temperature), graphs)


RULES: dict[str, Callable[[], VerifyRule]] = {
    "lenience": partial(Lenience, 0.3),
    "sigmoid": partial(SigmoidRule, 10.0),
    "half": partial(SigmoidRule, 10.0, half_logits=True),
    "point-mass": PointMass,
    **{name: partial(KernelRule, name) for name in ("baseline", "exact", "fused")},
    "fused by operations": partial(KernelRule, "fused", backend="torch"),
}
CUT = Sampling(temperature=0.7, top_k=9, top_p=0.9)


ALL_GRAPHS = GAMMA + 1 + 2 * UNSEEN + (GAMMA - 1) + GAMMA  # passes alone, drafts, verdicts; one more for a round without drafts


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.7), CUT, Sampling()], ids=["sampled", "cut", "greedy"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_that_is_captured_decides_as_without(tiny: Any, rule: str, sampling: Sampling) -> None:
    """On a CPU kernels look at once at what they decided, so they are played less strictly."""
    made = RULES[rule]()
    strict = not isinstance(made, KernelRule)
    for graphs in (Graphs(strict), *([Replays()] if strict else [])):
        check_both_ways(tiny, "llama-gqa", torch.float64, lambda draft: method_of("model", draft, made), sampling, graphs)
        assert graphs.captured - ALL_GRAPHS in (0, 1)


class Mine(SpeculativeSampling):
    """A rule of a plug-in, which promises nothing: it reads the lengths on the host, and takes turns."""

    turn = 0

    def verify(self, proposal: Proposal, target_logits: Any, sampling: Sampling, uniforms: Any) -> Verdict:
        self.turn += 1
        few = torch.tensor(proposal.lengths) // (1 + self.turn % 2)
        found = super().verify(proposal, target_logits, sampling, uniforms)
        return replace(found, num_accepted=found.num_accepted.minimum(few))


@pytest.mark.parametrize("make", [Mine, BlockVerification])
def test_rules_that_promise_nothing_or_look_ahead_are_not_captured(tiny: Any, make: Callable[[], VerifyRule]) -> None:
    """Found before: a rule had the promise of the class that it was made of, and decided by the first round's numbers."""
    graphs = Replays()
    check_both_ways(
        tiny, "gpt2", torch.float64, lambda draft: method_of("copy", draft, make()), Sampling(temperature=0.9), graphs
    )
    assert graphs.captured == GAMMA + 1 + UNSEEN


def test_drafters_that_know_laws_are_captured(tiny: Any) -> None:
    graphs = Replays()
    check_both_ways(tiny, "gpt2", torch.float64, partial(method_of, "random"), Sampling(temperature=0.9), graphs)
    assert graphs.captured - (GAMMA + 1 + UNSEEN + GAMMA) in (0, 1)


def test_a_schedule_that_grows_captures_in_the_first_text_alone(tiny: Any) -> None:
    """Found before: each new number of drafts was captured anew, inside a text that was timed."""
    target, draft = (stack_for(tiny.build("llama", spread=spread)) for spread in (0.4, 0.3))
    graphs, room = Replays(), Room(ROWS, max(map(len, PROMPTS.prompts)), TOKENS)
    session, drafting = StaticSession(target, room, 7, graphs), StaticSession(draft, room, UNSEEN, graphs)
    method = DraftAndVerify(ModelDrafter(drafting), SpeculativeSampling(), partial(Sweep, 6))
    captured = []
    for count in (4, 1, TOKENS):  # as on CUDA a text of one token warms up, too
        uniforms, stop = Uniforms([11, 12, 13], TOKENS), Stop(max_new_tokens=count)
        method.generate(session, PROMPTS, Sampling(temperature=1.0), uniforms, stop)
        captured.append(graphs.captured)
    assert captured[1:] == [7 + 2 * UNSEEN + 5 + 6 + 1] * 2


def test_what_a_capture_writes_leaves_a_text_as_it_was(tiny: Any) -> None:
    """Found before: of a text that fills the cache to its last place the last round's capture wrote into it."""
    stack, draft = (stack_for(tiny.build("llama", spread=spread)) for spread in (0.4, 0.3))
    inputs, sampling = Inputs(((1, 5, 7, 9, 5, 7),)), Sampling(temperature=1.0)
    stop = Stop(max_new_tokens=MULTIPLE - 6)
    for seed in range(5):
        texts = []
        for target, drafting in (
            (ModelSession(stack), ModelSession(draft)),
            (StaticSession(stack, Room(1, 6, 20), GAMMA + 1, Replays()), StaticSession(draft, Room(1, 6, 20), UNSEEN)),
        ):
            method = DraftAndVerify(ModelDrafter(drafting), SpeculativeSampling(), partial(Constant, GAMMA))
            made = method.generate(target, inputs, sampling, Uniforms([seed], stop.max_new_tokens), stop)
            texts.append(made[0].tokens)
        assert texts[0] == texts[1]


def test_tables_that_captured_passes_read_are_kept(tiny: Any) -> None:
    """Found before: a longer reader of the same model makes it replace its table of rotations, which a graph still reads."""
    stack = stack_for(tiny.build("llama", limit=2048))
    session = StaticSession(stack, Room(1, 6, 20), 1, Replays())
    ModelSession(stack).prefill(Inputs(((1,) * 300,)))
    session.capture(lambda: session.pass_at(session._tokens[1], session._starts))
    held = stack.rotary(1)
    ModelSession(stack).prefill(Inputs(((1,) * 1500,)))
    assert stack.rotary(1) is not held
    assert any(table is held for table in session._rotaries)


def test_what_has_no_static_form_or_no_room_is_refused_in_one_line(tiny: Any) -> None:
    general = GeneralEncoderDecoderStack(tiny.build("bart"))
    with pytest.raises(InputError, match=r"^graphs of model type 'bart': it has no static form; expected .* or graphs off$"):
        StaticSession(general, Room(1, 5, 5), 1)
    hearing = StaticSession(stack_for(tiny.build("t5")), Room(1, 5, 5), 1)
    with pytest.raises(InputError, match=f"a source of {MULTIPLE + 1} tokens; the static cache was laid out for {MULTIPLE}"):
        hearing.prefill(Inputs(((3,) * (MULTIPLE + 1),)))
    session = StaticSession(stack_for(tiny.build("gpt2")), Room(1, 5, 5), 2)
    with pytest.raises(InputError, match="2 rows; the static cache was laid out for 1"):
        session.prefill(Inputs(((1, 5), (1, 6))))
    session.prefill(Inputs(((1,) * 10,)))
    with pytest.raises(InputError, match="select: 2 rows"):
        session.select([0, 0])
    with pytest.raises(InputError, match=f"do not fit into the {MULTIPLE} that it was laid out for"):
        session.extend(torch.ones(1, MULTIPLE, dtype=torch.long))


def test_a_cpu_runs_the_work_itself() -> None:
    def work() -> int:
        return 1

    assert capture_for(torch.device("cpu"))(work) is work
