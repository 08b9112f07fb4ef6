"""A round's pass and its verdict in one compiled call: against torch's passes and the rules' operations."""

from functools import partial
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError
from test_compiled_drafts import SAMPLINGS
from test_compiled_layers import KINDS, model_of, session_of
from torch import Tensor

from kernels import native
from kernels.inputs import InputError, NotFiniteError
from kernels.layers.decoder import SOURCE, Decoder
from kernels.products.matrix import COMPILED, TORCH, Choice
from kernels.verify.registry import KERNELS
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import (
    BASELINE,
    FUSED,
    ByOperations,
    KernelRule,
    Lenience,
    SigmoidRule,
    SpeculativeSampling,
    loop_of,
)
from methods.speculative.schedules import Constant
from methods.types import Inputs, Proposal, Stop, VerifyRule

pytestmark = pytest.mark.skipif(native.library(SOURCE) is None, reason="no C++ compiler here")
GREEDY, SAMPLED, NUM_DRAFT, VOCABULARY = Sampling(), Sampling(temperature=1.0), 4, 97


def proposed(sampling: Sampling, batch: int = 1, seed: int = 0, is_point: bool = False, dtype=torch.float64) -> Proposal:
    """Random drafts, those of later rows shorter, with a random law, or none where they are points."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCABULARY, (batch, NUM_DRAFT), generator=generator)
    logits = 2 * torch.randn(batch, NUM_DRAFT, VOCABULARY, dtype=dtype, generator=generator)
    lengths = tuple(max(0, NUM_DRAFT - row) for row in range(batch))
    return Proposal(tokens, lengths, None if is_point or sampling.greedy else logits, sampling)


def numbers(sampling: Sampling, batch: int = 1, seed: int = 0) -> Tensor | None:
    generator = torch.Generator().manual_seed(seed)
    return None if sampling.greedy else torch.rand(batch, NUM_DRAFT + 1, dtype=torch.float64, generator=generator)


def likely(session: ModelSession, pending: list[int], proposal: Proposal, seed: int) -> Proposal:
    """The same proposal, some of whose first tokens are what the model finds likeliest, so that drafts stand."""
    tokens = proposal.tokens.clone()
    generator = torch.Generator().manual_seed(seed)
    for place in range(NUM_DRAFT):
        logits = session.extend(torch.cat((torch.tensor(pending).unsqueeze(1), tokens[:, :place]), 1))
        session.rewind([place + 1] * len(pending))
        stands = torch.rand(len(pending), generator=generator) < 0.7
        tokens[:, place] = torch.where(stands, logits[:, -1].argmax(-1), tokens[:, place])
    return Proposal(tokens, proposal.lengths, proposal.logits, proposal.sampling)


def assert_same(rows: Any, verdict: Any, proposal: Proposal, atol: float) -> None:
    assert [row.num_accepted for row in rows] == verdict.num_accepted.tolist()
    assert [row.next_token for row in rows] == verdict.next_token.tolist()
    assert [row.drafted for row in rows] == proposal.tokens.tolist()
    for index, row in enumerate(rows):
        length = proposal.lengths[index]
        for found, expected in ((row.target_probs, verdict.target_probs), (row.draft_probs, verdict.draft_probs)):
            wanted = expected[index, :length].double()
            torch.testing.assert_close(
                torch.tensor(found[:length], dtype=torch.float64), wanted, rtol=0, atol=atol, equal_nan=True
            )


@pytest.mark.parametrize("lengths", [(23,), (23, 9, 14)], ids=["a row", "ragged rows"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_one_call_is_a_pass_and_the_operations_verdict(kind: str, sampling: Sampling, lengths: tuple[int, ...]) -> None:
    """In fp64 against torch's own passes: what was decided, logits, hidden states, and what is cached behind them."""
    model, batch = model_of(kind), len(lengths)
    ours, torchs = session_of(model, COMPILED, *lengths), session_of(model, TORCH, *lengths)
    pending, stood = [7, 11, 30][:batch], set()
    for seed in range(3):
        proposal = likely(torchs, pending, proposed(sampling, batch, seed, is_point=seed == 2), seed)
        uniforms = numbers(sampling, batch, seed)
        loop = SpeculativeSampling().loop(proposal, sampling)
        assert loop is not None
        made = ours.verify(pending, proposal, sampling, uniforms, loop)
        assert made is not None
        rows, logits = made
        expected = torchs.extend(torch.cat((torch.tensor(pending).unsqueeze(1), proposal.tokens), 1))
        torch.testing.assert_close((logits, ours.hidden), (expected, torchs.hidden), rtol=0, atol=1e-9)
        given = torch.rand(batch, NUM_DRAFT + 1) if uniforms is None else uniforms
        assert_same(rows, ByOperations().verify(proposal, expected, sampling, given), proposal, 1e-9)
        assert ours.lengths == torchs.lengths
        stood |= {row.num_accepted for row in rows}
        for session in (ours, torchs):
            session.rewind([NUM_DRAFT - row.num_accepted for row in rows])
        pending = [row.next_token for row in rows]
    assert len(stood) > 1
    again = torch.randint(VOCABULARY, (batch, 3))
    torch.testing.assert_close(ours.extend(again), torchs.extend(again), rtol=0, atol=1e-9)


RULES = {
    "speculative sampling": SpeculativeSampling,
    "lenience": partial(Lenience, 0.5),
    "the fused kernel": FUSED,
    "sigmoid": SigmoidRule,
    "baseline": BASELINE,
}


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, SAMPLINGS["top-k"]], ids=["greedy", "sampled", "top-k"])
@pytest.mark.parametrize("made", RULES.values(), ids=RULES)
def test_one_call_gives_the_bits_of_the_rule(made: Any, sampling: Sampling) -> None:
    """Single precision: the verdict of a rule that the loop decides for, on the logits of a compiled pass."""
    rule: VerifyRule = made()
    ours, apart = (session_of(model_of("llama", torch.float32), COMPILED, 23) for _ in range(2))
    decided = 0
    for seed in range(12):
        proposal = likely(apart, [7], proposed(sampling, 1, seed, dtype=torch.float32), seed)
        loop = rule.loop(proposal, sampling)  # type: ignore[attr-defined]
        if loop is None:
            continue
        uniforms = numbers(sampling, 1, seed)
        found = ours.verify([7], proposal, sampling, uniforms, loop)
        assert found is not None
        logits = apart.extend(torch.cat((torch.tensor([[7]]), proposal.tokens), 1))
        assert torch.equal(found[1], logits)
        verdict = rule.verify(proposal, logits, sampling, torch.rand(1, NUM_DRAFT + 1) if uniforms is None else uniforms)
        assert_same(found[0], verdict, proposal, 0.0)
        decided += 1
        for session in (ours, apart):
            session.rewind([NUM_DRAFT + 1])
    lossy_law = sampling.greedy and isinstance(rule, Lenience)
    other_kernel = not sampling.greedy and isinstance(rule, KernelRule) and rule.name != "fused"
    assert decided == (0 if lossy_law or other_kernel else 12)


def test_threads_change_no_decision() -> None:
    session, before, found = session_of(model_of("llama", torch.float32), COMPILED, 23), torch.get_num_threads(), []
    proposal = proposed(SAMPLED, dtype=torch.float32)
    loop = SpeculativeSampling().loop(proposal, SAMPLED)
    assert loop is not None
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(session.verify([7], proposal, SAMPLED, numbers(SAMPLED), loop))
            session.rewind([NUM_DRAFT + 1])
    finally:
        torch.set_num_threads(before)
    assert all(one is not None and found[0] is not None and one[0] == found[0][0] for one in found)


class Turned(SpeculativeSampling):
    """A plug-in's rule: it refuses every draft."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Any:
        nothing = Proposal(proposal.tokens, (0,) * len(proposal.lengths), proposal.logits, proposal.sampling)
        return super().verify(nothing, target_logits, sampling, uniforms)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_rounds_are_one_call_where_the_loop_decides_as_the_rule(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, inputs, stop = stack_for(model_of("llama"), COMPILED), Inputs(((5, 6, 7), (8, 9, 3))), Stop(max_new_tokens=20)

    def made(rule: Any) -> list[list[int]]:
        target, draft = ModelSession(stack), ModelSession(stack, 2)
        method = DraftAndVerify(ModelDrafter(draft), rule, lambda: Constant(3))
        rows = method.generate(target, inputs, sampling, Uniforms([3, 4][: inputs.batch], 20), stop)
        return [[step.num_accepted for step in row.steps] for row in rows]

    whole, refused = made(SpeculativeSampling()), made(Turned())
    assert max(map(max, whole)) > 0
    assert max(map(max, refused)) == 0
    assert made(ByOperations()) == whole
    monkeypatch.setattr(Decoder, "whole", lambda *_: pytest.fail("a pass by itself"))
    monkeypatch.setattr(ModelDrafter, "_draw_by_passes", lambda *_: pytest.fail("passes of the draft"))
    inputs = Inputs(((5, 6, 7),))
    made(SpeculativeSampling())


class OwnKernel(KernelRule):
    def __init__(self) -> None:
        super().__init__("fused")
        self.kernel = partial(KERNELS["fused"], backend="torch")


class Wrapping:
    """A rule around another, of which it hands on all but the verdict."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def verify(self, *given: Any) -> Any:
        return self.rule.verify(*given)


def test_a_rule_that_decides_in_a_way_of_its_own_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the call decided as the class that a rule is derived from, or was before somebody replaced its verdict."""
    sampled, greedy = proposed(SAMPLED), proposed(GREEDY)

    def by_loop(rule: Any) -> tuple[bool, bool]:
        return loop_of(rule, sampled, SAMPLED) is not None, loop_of(rule, greedy, GREEDY) is not None

    assert by_loop(SpeculativeSampling()) == by_loop(FUSED()) == (True, True)
    assert by_loop(Lenience(0.5)) == (True, False)
    assert by_loop(SigmoidRule()) == by_loop(OwnKernel()) == (False, True)
    own = {"verify": lambda self, *given: None}
    for kind, given in ((SpeculativeSampling, ()), (Lenience, (0.5,)), (KernelRule, ("fused",)), (SigmoidRule, ())):
        assert by_loop(type("Own", (kind,), own)(*given)) == (False, False)
        replaced: Any = kind(*given)
        replaced.verify = lambda *given: None
        assert by_loop(replaced) == (False, False)
        with monkeypatch.context() as patch:
            patch.setattr(kind, "verify", own["verify"])
            assert by_loop(kind(*given)) == (False, False)
    assert by_loop(SigmoidRule(half_logits=True)) == by_loop(Wrapping(FUSED())) == (False, False)
    assert by_loop(type("Other", (), {"loop": 3, "verify": own["verify"]})()) == (False, False)


def test_a_session_whose_passes_are_its_own_is_asked() -> None:
    proposal = proposed(SAMPLED)
    loop = SpeculativeSampling().loop(proposal, SAMPLED)
    assert loop is not None
    for name in ("extend", "_frame", "_suppress"):
        own = type("Own", (ModelSession,), {name: lambda self, *given, _own=name: getattr(ModelSession, _own)(self, *given)})
        session = own(stack_for(model_of("llama"), COMPILED))
        session.prefill(Inputs(((3, 4),)))
        assert session.verify([4], proposal, SAMPLED, numbers(SAMPLED), loop) is None
    replaced: Any = session_of(model_of("llama"), COMPILED, 5)
    replaced.extend = lambda tokens: ModelSession.extend(replaced, tokens)
    assert replaced.verify([4], proposal, SAMPLED, numbers(SAMPLED), loop) is None


def test_drafts_of_nan_are_refused_though_no_rule_sees_them() -> None:
    proposal = proposed(GREEDY)
    marked = Proposal(proposal.tokens, proposal.lengths, None, GREEDY, has_nan=torch.tensor([True]))
    method = DraftAndVerify(
        ModelDrafter(session_of(model_of("llama"), COMPILED, 5)), SpeculativeSampling(), lambda: Constant(3)
    )
    assert method._loop_for(proposal, GREEDY) is not None
    assert method._loop_for(marked, GREEDY) is None


def test_weights_that_moved_in_part_are_followed_as_a_text_begins() -> None:
    """Fault: passes looked at the embeddings alone and read the freed memory of layers that had moved without them."""
    model, inputs = model_of("llama"), Inputs(((5, 6, 7),))
    session, stop = ModelSession(stack_for(model, COMPILED)), Stop(max_new_tokens=12)
    method = DraftAndVerify(ModelDrafter(ModelSession(session.stack, 2)), SpeculativeSampling(), lambda: Constant(3))
    before = method.generate(session, inputs, GREEDY, Uniforms([3], 12), stop)[0].tokens
    compiled = session.stack.compiled
    assert compiled is not None
    places = list(compiled._addresses)
    model.model.layers.share_memory()
    assert method.generate(session, inputs, GREEDY, Uniforms([3], 12), stop)[0].tokens == before
    assert compiled._addresses != places


def test_what_is_no_single_call_is_left_alone() -> None:
    """None, and nothing cached: more rows than the loop multiplies, drafts of more digits; a law that greedy rounds ignore."""
    proposal = proposed(SAMPLED)
    loop = SpeculativeSampling().loop(proposal, SAMPLED)
    assert loop is not None
    few = ModelSession(stack_for(model_of("llama"), Choice(0, NUM_DRAFT)))
    few.prefill(Inputs(((3, 4),)))
    single = session_of(model_of("llama", torch.float32), COMPILED, 5)
    torchs = session_of(model_of("llama"), TORCH, 5)
    for session in (few, single, torchs):
        before = list(session.lengths)
        assert session.verify([7], proposal, SAMPLED, numbers(SAMPLED), loop) is None
        assert session.lengths == before
    assert SpeculativeSampling().loop(proposal, GREEDY) is None


def test_a_round_that_does_not_fit_is_refused_and_nothing_is_cached() -> None:
    session, proposal = session_of(model_of("llama"), COMPILED, 9), proposed(SAMPLED)
    loop = SpeculativeSampling().loop(proposal, SAMPLED)
    assert loop is not None
    outside = Proposal(torch.tensor([[5, 97, 3, 4]]), proposal.lengths, proposal.logits, SAMPLED)
    longer = Proposal(proposal.tokens, (NUM_DRAFT + 1,), proposal.logits, SAMPLED)
    other = Proposal(proposal.tokens, proposal.lengths, torch.zeros(1, NUM_DRAFT, 96).double(), SAMPLED)
    before = list(session.lengths)
    for one, uniforms, pending in (
        (outside, numbers(SAMPLED), [7]),
        (longer, numbers(SAMPLED), [7]),
        (other, numbers(SAMPLED), [7]),
        (proposal, torch.rand(1, NUM_DRAFT).double(), [7]),
        (proposal, numbers(SAMPLED), [97]),
        (proposal, numbers(SAMPLED), [7, 8]),
    ):
        with pytest.raises((InputError, IndexError, ValueError, TypeCheckError)):
            session.verify(pending, one, SAMPLED, uniforms, loop)
        assert session.lengths == before


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_nothing_is_emitted_from_nan(sampling: Sampling) -> None:
    model = model_of("llama")
    draft = ModelSession(stack_for(model_of("llama"), COMPILED), 2)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    method = DraftAndVerify(ModelDrafter(draft), SpeculativeSampling(), lambda: Constant(3))
    target = ModelSession(stack_for(model, COMPILED))
    with pytest.raises(NotFiniteError):
        method.generate(target, Inputs(((5, 6, 7),)), sampling, Uniforms([3], 20), Stop(max_new_tokens=20))
