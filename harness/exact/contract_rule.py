"""The contract of a verify rule (methods/types.py): shapes, purity, independent rows, and its guarantee; and of a schedule."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from harness.exact.checks import Contract, expect, expect_guarantee
from harness.exact.ground import NUM_DRAFT
from harness.exact.law import LAW_BOUND, largest_deviation
from harness.exact.toy import Toy, random_table, toy_session
from methods.errors import InputError
from methods.options import options_class, values_of
from methods.sampling import Sampling
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import ByLoop, SpeculativeSampling, can_loop
from methods.speculative.schedules import Constant
from methods.types import Proposal, Schedule, Stop, Verdict, VerifyRule

GREEDY, DRAWN = Sampling(), Sampling(temperature=1.0)
FILTERED = (Sampling(temperature=0.6, top_k=5), Sampling(temperature=1.0, top_p=0.8))
VOCAB, EOS, NUM_SAMPLES, NUM_ROUNDS = 6, 4, 2000, 60
LENGTHS = ((3,), (2, 0, 3), (0, 0))
PROMPTS = ((3,), (1, 2, 3, 1, 2), (5, 0), (0, 0, 1))
TARGET = random_table(VOCAB, seed=1)
DRAFT = TARGET + random_table(VOCAB, seed=2, scale=1.0)
TOY = Toy(lambda: toy_session(TARGET), PROMPTS, Stop(max_new_tokens=16, token_ids=frozenset({EOS})))
Round = tuple[Proposal, Tensor, Sampling, Tensor]


def check_rule(make: Callable[[], VerifyRule]) -> Contract:
    signature = "verify(proposal, target_logits, sampling, uniforms)"
    yield "is made without arguments and declares its guarantee", lambda: expect_guarantee(make(), VerifyRule, signature)
    rule = make()
    samplings = (GREEDY, DRAWN) if _can_sample(rule) else (GREEDY,)
    method = DraftAndVerify(ModelDrafter(toy_session(DRAFT)), rule, partial(Constant, NUM_DRAFT))
    yield "decides within the round", lambda: _check_shapes(rule, samplings)
    yield "is pure: random numbers are inputs", lambda: _check_purity(rule, samplings)
    yield "decides every row by itself", lambda: _check_rows(rule, samplings)
    yield "greedy, through the loop", lambda: _check_steps(method) or TOY.check_greedy(method)
    yield "its law, integrated over its uniforms", lambda: _check_law(rule) if DRAWN in samplings else GREEDY_ONLY
    if hasattr(type(rule), "loop"):
        yield "its loop decides as it does", lambda: _check_loop(rule, samplings)
    if rule.guarantee == "same_distribution":
        yield "sampled, through the loop", lambda: TOY.check_samples(method, NUM_SAMPLES, NUM_DRAFT)


def check_schedule(make: Callable[..., Schedule]) -> Contract:
    def schedule() -> Schedule:
        return make(**values_of(options_class(make)()))

    def check_made() -> None:
        expect(isinstance(schedule(), Schedule), "has no next() or no observe(num_drafted, num_accepted)")

    yield "is made with the defaults of its options", check_made
    method = DraftAndVerify(ModelDrafter(toy_session(DRAFT)), SpeculativeSampling(), schedule)
    yield "asks for 0 drafts or more, whatever stood", lambda: _check_numbers(schedule())
    yield "greedy, through the loop", lambda: TOY.check_greedy(method)


def _check_numbers(schedule: Schedule) -> str:
    for number in range(NUM_ROUNDS):
        wanted = schedule.next()
        expect(isinstance(wanted, int) and wanted >= 0, f"asks for {wanted!r} drafts; expected an integer >= 0")
        drafted = min(wanted, NUM_DRAFT)  # near the end of an output fewer are left than it asks for
        schedule.observe(drafted, drafted if number % 3 else 0)
    return f"{NUM_ROUNDS} rounds"


GREEDY_ONLY = "it is defined at temperature 0 only"


def _can_sample(rule: VerifyRule) -> bool:
    """Say whether a rule accepts temperatures above 0. One that does not raises InputError, and guarantees nothing there."""
    try:
        rule.verify(*_round(0, (2,), DRAWN))
    except InputError:
        return rule.guarantee == "same_distribution"
    except Exception:
        return True  # the checks will show the error
    return True


def _round(seed: int, lengths: Sequence[int], sampling: Sampling, point: bool = False) -> Round:
    """Make a round of random logits in fp64; drafts are drawn from the draft's own law, padding is token 0."""
    generator = torch.Generator().manual_seed(seed)
    batch, longest = len(lengths), max(lengths)
    target = 2 * torch.randn(batch, longest + 1, VOCAB, generator=generator, dtype=torch.float64)
    draft = target[:, :-1] + torch.randn(batch, longest, VOCAB, generator=generator, dtype=torch.float64)
    tokens = sampling.draw(draft, torch.rand(batch, longest, generator=generator, dtype=torch.float64))
    for row, length in enumerate(lengths):
        tokens[row, length:] = 0
    uniforms = torch.rand(batch, longest + 1, generator=generator, dtype=torch.float64)
    return Proposal(tokens, tuple(lengths), None if point else draft, sampling), target, sampling, uniforms


def _rounds(samplings: Sequence[Sampling]) -> Iterator[Round]:
    for seed in range(4):
        for sampling in samplings:
            for lengths in LENGTHS:
                for point in (False, True):
                    yield _round(seed, lengths, sampling, point)


def _check_shapes(rule: VerifyRule, samplings: Sequence[Sampling]) -> str:
    count = 0
    for proposal, target, sampling, uniforms in _rounds(samplings):
        verdict = rule.verify(proposal, target, sampling, uniforms)
        batch, longest = proposal.tokens.shape
        for name in ("num_accepted", "next_token"):
            found = getattr(verdict, name)
            expect(tuple(found.shape) == (batch,), f"{name} has shape {tuple(found.shape)}; expected ({batch},)")
        for name in ("target_probs", "draft_probs"):
            found = getattr(verdict, name)
            expect(tuple(found.shape) == (batch, longest), f"{name} has shape {tuple(found.shape)}; expected {batch, longest}")
            looked = found[~found.isnan()]
            expect(bool(((looked >= 0) & (looked <= 1 + 1e-6)).all()), f"{name} are no probabilities")
        for row, length in enumerate(proposal.lengths):
            accepted, token = int(verdict.num_accepted[row]), int(verdict.next_token[row])
            expect(0 <= accepted <= length, f"accepts {accepted} of {length} drafts")
            expect(0 <= token < VOCAB, f"emits token {token} of a vocabulary of {VOCAB}")
        count += 1
    return f"{count} rounds of {', '.join(map(str, LENGTHS))} drafts"


def _same(first: Verdict, second: Verdict) -> bool:
    return torch.equal(first.num_accepted, second.num_accepted) and torch.equal(first.next_token, second.next_token)


def _check_purity(rule: VerifyRule, samplings: Sequence[Sampling]) -> None:
    for number, (proposal, target, sampling, uniforms) in enumerate(_rounds(samplings)):
        before = [one.clone() for one in (proposal.tokens, target, uniforms, *_logits(proposal))]
        torch.manual_seed(number)
        state = torch.get_rng_state()
        first = rule.verify(proposal, target, sampling, uniforms)
        expect(torch.equal(state, torch.get_rng_state()), "draws random numbers of its own")
        after = (proposal.tokens, target, uniforms, *_logits(proposal))
        expect(all(map(torch.equal, before, after)), "changes its inputs")
        torch.manual_seed(number + 1)
        expect(_same(first, rule.verify(proposal, target, sampling, uniforms)), "decides otherwise when asked twice")


def _check_loop(rule: VerifyRule, samplings: Sequence[Sampling]) -> str:
    """Compare the decisions of the loop that compiled passes take for a rule with the rule's own, and integrate its law."""
    if not can_loop(torch.device("cpu")):
        return "nothing here compiles it"
    loop = ByLoop(rule)
    for proposal, target, sampling, uniforms in _rounds(samplings):
        own, looped = (one.verify(proposal, target, sampling, uniforms) for one in (rule, loop))
        decided = [(verdict.num_accepted.tolist(), verdict.next_token.tolist()) for verdict in (own, looped)]
        at = f"at temperature {sampling.temperature:g}"
        expect(_same(own, looped), f"accepts and draws {decided[1]} {at} where the rule itself gives {decided[0]}")
    return _check_law(loop) if DRAWN in samplings else GREEDY_ONLY


def _logits(proposal: Proposal) -> list[Tensor]:
    return [] if proposal.logits is None else [proposal.logits]


def _check_rows(rule: VerifyRule, samplings: Sequence[Sampling]) -> None:
    for proposal, target, sampling, uniforms in _rounds(samplings):
        whole = rule.verify(proposal, target, sampling, uniforms)
        for row, length in enumerate(proposal.lengths):
            logits = None if proposal.logits is None else proposal.logits[row : row + 1, :length]
            alone = replace(proposal, tokens=proposal.tokens[row : row + 1, :length], lengths=(length,), logits=logits)
            # A row's last number stands behind all columns, whatever its length.
            own = torch.cat((uniforms[row : row + 1, :length], uniforms[row : row + 1, -1:]), 1)
            verdict = rule.verify(alone, target[row : row + 1, : length + 1], sampling, own)
            one = (int(verdict.num_accepted[0]), int(verdict.next_token[0]))
            many = (int(whole.num_accepted[row]), int(whole.next_token[row]))
            expect(one == many, f"accepted and next token are {one} of a row alone, {many} beside rows of other lengths")


def _check_steps(method: DraftAndVerify) -> str | None:
    """Check that outputs end where they must. A lossy rule promises no more, and the note says so."""
    for row in TOY.decode(method, GREEDY):
        expect(len(row.tokens) <= 16 and sum(step.emitted for step in row.steps) == len(row.tokens), "steps do not add up")
    return "lossy: nothing is promised" if method.guarantee == "lossy" else None


def _check_law(rule: VerifyRule) -> str:
    """Measure how far a rule's law is from the target's: at most LAW_BOUND if the rule promises the law."""
    worst = 0.0
    try:
        for number, sampling in enumerate((DRAWN, *FILTERED)):
            [proposal], target = [_round(number, (2,), DRAWN)[0]], _round(number, (2,), DRAWN)[1][0]
            assert proposal.logits is not None
            for draft, other in ((proposal.logits[0], sampling), (proposal.logits[0], DRAWN), ([4, 0], sampling)):
                worst = max(worst, largest_deviation(rule, target, draft, sampling, other))
    except InputError as error:
        expect(rule.guarantee == "lossy", str(error))
        return f"lossy, and unknown: {error}"
    if rule.guarantee == "lossy":
        return f"lossy: up to {worst:.2g} from the target's"
    if rule.guarantee == "same_distribution":
        expect(worst <= LAW_BOUND, f"{worst:.2g} from the target's at one token, at most {LAW_BOUND:g} is allowed")
    return f"within {worst:.1e} of the target's"
