"""The contract of a verify rule (methods/types.py): shapes, purity, rows that do not see one another, and its guarantee."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from harness.audit.laws import LAW_BOUND
from harness.contracts.base import Finding, attempt, expect
from harness.contracts.toy import TableSession, greedy_output, random_table, toy_session
from methods.errors import InputError
from methods.exactness import largest_deviation
from methods.goodness import FALSE_ALARM, sampled_fits
from methods.sampling import Sampling, Uniforms
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.schedules import Constant
from methods.types import Guarantee, Inputs, Proposal, Stop, Verdict, VerifyRule

GREEDY, DRAWN = Sampling(), Sampling(temperature=1.0)
FILTERED = (Sampling(temperature=0.6, top_k=5), Sampling(temperature=1.0, top_p=0.8))
VOCAB, EOS, NUM_DRAFT, NUM_SAMPLES = 6, 4, 2, 2000
LENGTHS = ((3,), (2, 0, 3), (0, 0))
PROMPTS = ((3,), (1, 2, 3, 1, 2), (5, 0), (0, 0, 1))
TARGET = random_table(VOCAB, seed=1)
DRAFT = TARGET + random_table(VOCAB, seed=2, scale=1.0)


def check_rule(make: Callable[[], VerifyRule]) -> Iterator[Finding]:
    made = attempt("is made without arguments and declares its guarantee", lambda: _declares(make()))
    yield made
    if not made.kept:
        return
    rule = make()
    samplings = (GREEDY, DRAWN) if _samples(rule) else (GREEDY,)
    yield attempt("decides within the round", lambda: _shapes(rule, samplings))
    yield attempt("is pure: random numbers are inputs", lambda: _pure(rule, samplings))
    yield attempt("decides every row by itself", lambda: _rows(rule, samplings))
    yield attempt("greedy, through the loop", lambda: _greedy(rule))
    yield attempt("its law, integrated over its uniforms", lambda: _law(rule) if DRAWN in samplings else NOT_DRAWN)
    if rule.guarantee == "same_distribution":
        yield attempt("sampled, through the loop", lambda: _sampled(rule))


NOT_DRAWN = "it is defined at temperature 0 only"


def _declares(rule: VerifyRule) -> str:
    guarantee = getattr(rule, "guarantee", None)
    expect(guarantee in get_args(Guarantee), f"guarantee {guarantee!r}: expected one of {', '.join(get_args(Guarantee))}")
    expect(isinstance(rule, VerifyRule), "has no verify(proposal, target_logits, sampling, uniforms)")
    return str(guarantee)


def _samples(rule: VerifyRule) -> bool:
    """Whether it takes temperatures above 0; one that does not says so by an InputError, and claims nothing there."""
    try:
        rule.verify(*_round(0, (2,), DRAWN))
    except InputError:
        return rule.guarantee == "same_distribution"
    except Exception:
        return True  # what is wrong shows in the checks
    return True


Round = tuple[Proposal, Tensor, Sampling, Tensor]


def _round(seed: int, lengths: Sequence[int], sampling: Sampling, point: bool = False) -> Round:
    """A round of random logits in fp64; drafts are drawn from the draft's own law, padding is token 0."""
    generator = torch.Generator().manual_seed(seed)
    batch, longest = len(lengths), max(lengths)
    target = 2 * torch.randn(batch, longest + 1, VOCAB, generator=generator, dtype=torch.float64)
    draft = target[:, :-1] + torch.randn(batch, longest, VOCAB, generator=generator, dtype=torch.float64)
    tokens = sampling.draw(draft, torch.rand(batch, longest, generator=generator, dtype=torch.float64))
    for row, length in enumerate(lengths):
        tokens[row, length:] = 0
    uniforms = torch.rand(batch, longest + 1, generator=generator, dtype=torch.float64)
    return Proposal(tokens, tuple(lengths), None if point else draft, sampling), target, sampling, uniforms


def _rounds(samplings: Sequence[Sampling], seeds: int = 4) -> Iterator[Round]:
    for seed in range(seeds):
        for sampling in samplings:
            for lengths in LENGTHS:
                for point in (False, True):
                    yield _round(seed, lengths, sampling, point)


def _shapes(rule: VerifyRule, samplings: Sequence[Sampling]) -> str:
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


def _pure(rule: VerifyRule, samplings: Sequence[Sampling]) -> None:
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


def _logits(proposal: Proposal) -> list[Tensor]:
    return [] if proposal.logits is None else [proposal.logits]


def _rows(rule: VerifyRule, samplings: Sequence[Sampling]) -> None:
    for proposal, target, sampling, uniforms in _rounds(samplings):
        whole = rule.verify(proposal, target, sampling, uniforms)
        for row, length in enumerate(proposal.lengths):
            logits = None if proposal.logits is None else proposal.logits[row : row + 1, :length]
            alone = replace(proposal, tokens=proposal.tokens[row : row + 1, :length], lengths=(length,), logits=logits)
            # A row's last number is the one behind all columns, whatever its length.
            own = torch.cat((uniforms[row : row + 1, :length], uniforms[row : row + 1, -1:]), 1)
            verdict = rule.verify(alone, target[row : row + 1, : length + 1], sampling, own)
            one = (int(verdict.num_accepted[0]), int(verdict.next_token[0]))
            many = (int(whole.num_accepted[row]), int(whole.next_token[row]))
            expect(one == many, f"accepted and next token are {one} of a row alone, {many} beside rows of other lengths")


def _greedy(rule: VerifyRule) -> str:
    """Every rule ends where it must; one that promises the target's output gives it."""
    method = DraftAndVerify(ModelDrafter(toy_session(DRAFT)), rule, partial(Constant, 3))
    stop = Stop(max_new_tokens=16, token_ids=frozenset({EOS}))
    rows = method.generate(toy_session(TARGET), Inputs(PROMPTS), GREEDY, Uniforms(range(len(PROMPTS)), 16), stop)
    for prompt, row in zip(PROMPTS, rows, strict=True):
        expect(len(row.tokens) <= 16 and sum(step.emitted for step in row.steps) == len(row.tokens), "steps do not add up")
        if rule.guarantee != "lossy":
            expected = greedy_output(TableSession(TARGET), prompt, 16, stop.token_ids)
            expect(row.tokens == expected, f"prompt {prompt}: {row.tokens}; plain decoding gives {expected}")
    return "the target's output, token for token" if rule.guarantee != "lossy" else "lossy: nothing is promised"


def _law(rule: VerifyRule) -> str:
    """Held to LAW_BOUND where the rule promises the law; shown where it does not."""
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


def _sampled(rule: VerifyRule) -> str:
    method = DraftAndVerify(ModelDrafter(toy_session(DRAFT)), rule, partial(Constant, NUM_DRAFT))
    fits = sampled_fits(method, toy_session(TARGET), (1, 2, 1), DRAWN, NUM_DRAFT, range(NUM_SAMPLES), num_positions=4)
    failed = [name for name, fit in fits.items() if not fit.passes(FALSE_ALARM / len(fits))]
    expect(not failed, f"does not fit the target's law at {', '.join(failed)}")
    return f"{NUM_SAMPLES} samples fit at {', '.join(fits)}"
