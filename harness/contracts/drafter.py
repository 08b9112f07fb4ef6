"""The contract of a drafter (methods/types.py): proposals that fit, greedy identity, laws that are the ones sampled from."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from harness.contracts.base import Broken, Finding, attempt, expect
from harness.contracts.toy import TableSession, greedy_output, random_block, random_table, toy_session
from methods.goodness import FALSE_ALARM, goodness_of_fit, sampled_fits
from methods.sampling import Sampling, Uniforms
from methods.speculative.decode import DraftAndVerify
from methods.speculative.drafters import DraftParts
from methods.speculative.model import ModelDrafter
from methods.speculative.ngram import NGramTable
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Drafter, Generation, Guarantee, Inputs, Outcome, Proposal, Session, Stop, TargetReader, Verdict

GREEDY, DRAWN = Sampling(), Sampling(temperature=1.0)
VOCAB, EOS, NUM_DRAFT, NUM_SAMPLES, NUM_DRAWS = 6, 4, 3, 800, 3000
PROMPTS = ((3,), (1, 2, 3, 1, 2), (5, 0), (0, 0, 1), (2, 5, 2, 5, 2))
TARGET = random_table(VOCAB, seed=1, scale=1.5)
DRAFT = TARGET + random_table(VOCAB, seed=2, scale=1.0)
INNER = DRAFT + random_table(VOCAB, seed=3, scale=1.0)
Factory = Callable[[DraftParts], Drafter]


def check_drafter(make: Factory) -> Iterator[Finding]:
    made = attempt("is made of the parts of an experiment", lambda: _made(make))
    yield made
    if not made.kept:
        return
    yield attempt("proposes what fits, alone and in batches", lambda: _fits(make))
    yield attempt("drafts nothing where nothing may be drafted", lambda: _one_token(make))
    yield attempt("greedy output is the target's", lambda: _greedy(make))
    yield attempt("what it drafts depends on the text alone", lambda: _text_alone(make))
    yield attempt("drafts for every row by itself", lambda: _rows(make))
    yield attempt("draws from the law that it states", lambda: _drawn(make))
    yield attempt("sampled output is the target's", lambda: _sampled(make))
    yield attempt("teacher_probs is the law of the first draft", lambda: _teacher(make))


def parts(session: Session) -> DraftParts:
    """Everything that a drafter can be made of but a trained verifier's heads."""
    corpus = [greedy_output(TableSession(TARGET), [token, token], 20, frozenset()) for token in range(VOCAB)]
    return DraftParts(
        vocab_size=VOCAB,
        session=session,
        table=NGramTable.count(corpus, VOCAB),
        inner=ModelDrafter(toy_session(INNER)),
        inner_draft=2,
        block=random_block(VOCAB),
    )


class _Watching:
    """Speculative sampling that looks at every proposal first."""

    guarantee: Guarantee = "same_distribution"

    def __init__(self, most: int) -> None:
        self.most, self.rule, self.num_drafted = most, SpeculativeSampling(), 0

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        batch, longest = proposal.tokens.shape
        expect(len(proposal.lengths) == batch == len(target_logits), f"{batch} rows of {len(target_logits)}")
        expect(max(proposal.lengths) == longest, f"{longest} columns for lengths {proposal.lengths}")
        expect(longest <= self.most, f"drafts {longest} tokens where at most {self.most} were asked for")
        expect(bool(((proposal.tokens >= 0) & (proposal.tokens < VOCAB)).all()), f"tokens outside a vocabulary of {VOCAB}")
        if proposal.logits is not None:
            shape = tuple(proposal.logits.shape)
            expect(shape == (batch, longest, VOCAB), f"logits have shape {shape}; expected {(batch, longest, VOCAB)}")
            expect(not bool(proposal.logits.isnan().any()), "logits are NaN")
        self.num_drafted += sum(proposal.lengths)
        return self.rule.verify(proposal, target_logits, sampling, uniforms)


def _generate(
    drafter: Drafter, prompts: Sequence[tuple[int, ...]], sampling: Sampling, length: int, seeds: Sequence[int], most: int
) -> tuple[list[Generation], int]:
    """Rows that may end at EOS, and how many tokens were drafted for them."""
    rule = _Watching(most)
    method = DraftAndVerify(drafter, rule, partial(Constant, NUM_DRAFT))
    stop = Stop(max_new_tokens=length, token_ids=frozenset({EOS}))
    rows = method.generate(toy_session(TARGET), Inputs(tuple(prompts)), sampling, Uniforms(seeds, length), stop)
    return rows, rule.num_drafted


def _made(make: Factory) -> None:
    drafter = make(parts(toy_session(DRAFT)))
    missing = [name for name in ("begin", "propose", "commit", "select", "teacher_probs") if not hasattr(drafter, name)]
    expect(not missing, f"{type(drafter).__name__} lacks {', '.join(missing)} (lift a drafter of one row by PerRow)")
    expect(isinstance(drafter, Drafter), f"{type(drafter).__name__} is no Drafter")


def _fits(make: Factory) -> str:
    drafter, total = make(parts(toy_session(DRAFT))), 0
    for sampling in (GREEDY, DRAWN):
        total += _generate(drafter, PROMPTS, sampling, 16, range(len(PROMPTS)), NUM_DRAFT)[1]
        for prompt in PROMPTS:
            total += _generate(drafter, [prompt], sampling, 16, [0], NUM_DRAFT)[1]
    return f"{total} drafts"


def _one_token(make: Factory) -> None:
    for row in _generate(make(parts(toy_session(DRAFT))), PROMPTS, GREEDY, 1, range(len(PROMPTS)), 0)[0]:
        expect(len(row.tokens) == 1, f"{len(row.tokens)} tokens where one was asked for")


def _greedy(make: Factory) -> str:
    """One object for all of it: whatever it keeps must begin anew with ``begin``."""
    drafter = make(parts(toy_session(DRAFT)))
    expected = [greedy_output(TableSession(TARGET), prompt, 20, frozenset({EOS})) for prompt in PROMPTS]
    for order in (range(len(PROMPTS)), range(len(PROMPTS) - 1, -1, -1)):
        rows = _generate(drafter, [PROMPTS[index] for index in order], GREEDY, 20, list(order), NUM_DRAFT)[0]
        for index, row in zip(order, rows, strict=True):
            _expect_output(PROMPTS[index], row.tokens, expected[index], "in a batch")
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        _expect_output(prompt, _generate(drafter, [prompt], GREEDY, 20, [0], NUM_DRAFT)[0][0].tokens, tokens, "alone")
    return f"{3 * len(PROMPTS)} outputs"


def _expect_output(prompt: tuple[int, ...], found: list[int], expected: list[int], where: str) -> None:
    expect(found == expected, f"prompt {prompt} {where}: {found}; plain decoding gives {expected}")


def _text_alone(make: Factory) -> str:
    """What a round drafted is drafted again by one that was told the same text token by token, every draft of its own refused.

    What is left in a cache by mistake, or missing from it, shows here.
    """
    count = 0
    for sampling in (GREEDY, DRAWN):
        for prompt in PROMPTS:
            [row] = _generate(make(parts(toy_session(DRAFT))), [prompt], sampling, 16, [0], NUM_DRAFT)[0]
            starts = dict(zip(accumulate((step.emitted for step in row.steps), initial=0), row.steps, strict=False))
            drafter = make(parts(toy_session(DRAFT)))
            if isinstance(drafter, TargetReader):
                return "it reads a model's hidden states: not checked here"
            drafter.begin(Inputs((prompt,)), [prompt[-1]], Uniforms([0], 16))
            for position, token in enumerate(row.tokens):
                expected = starts[position].drafted if position in starts else None
                proposal = drafter.propose([1 if expected is None else len(expected)], [position], sampling)
                found = proposal.tokens[0].tolist()
                expect(
                    expected is None or found == expected,
                    f"prompt {prompt}, behind {row.tokens[:position]}: drafted {expected}, told the text anew {found}",
                )
                drafter.commit(Outcome((0,), (token,)))
                count += 1
    return f"{count} places"


def _rows(make: Factory) -> None:
    drafter = make(parts(toy_session(DRAFT)))
    batch = _generate(drafter, PROMPTS, DRAWN, 16, range(len(PROMPTS)), NUM_DRAFT)[0]
    for seed, (prompt, row) in enumerate(zip(PROMPTS, batch, strict=True)):
        alone = _generate(drafter, [prompt], DRAWN, 16, [seed], NUM_DRAFT)[0][0]
        same = alone.tokens == row.tokens and [s.drafted for s in alone.steps] == [s.drafted for s in row.steps]
        expect(same, f"prompt {prompt}: drafts {[s.drafted for s in row.steps]} in a batch, other ones alone")


def _drawn(make: Factory) -> str:
    """The first two drafts of many rows of one prompt against the law of their own logits; a point mass states nothing."""
    drafter, prompt = make(parts(toy_session(DRAFT))), (1, 2, 1)
    if isinstance(drafter, TargetReader):
        return "it reads a model's hidden states: not checked here"
    drafter.begin(Inputs((prompt,) * NUM_DRAWS), [prompt[-1]] * NUM_DRAWS, Uniforms(range(NUM_DRAWS), 4))
    proposal = drafter.propose([2] * NUM_DRAWS, [0] * NUM_DRAWS, DRAWN)
    if proposal.logits is None:
        return "a point mass"
    counts: dict[tuple[int, ...], list[int]] = {}
    laws: dict[tuple[int, ...], list[float]] = {}
    for row in range(NUM_DRAWS):
        tokens = proposal.tokens[row, : proposal.lengths[row]].tolist()
        for place, token in enumerate(tokens):
            before = tuple(tokens[:place])
            counts.setdefault(before, [0] * VOCAB)[token] += 1
            if before not in laws:
                laws[before] = proposal.sampling.probs(proposal.logits[row, place].double()).tolist()
    fit = goodness_of_fit(list(counts.values()), [laws[before] for before in counts])
    expect(fit.passes(FALSE_ALARM), f"its draws do not fit (KL {fit.divergence / fit.num_samples:.2g} nats a draw)")
    return f"{fit.num_samples} draws; a law {fit.likely_tv:.2f} off (total variation) would likely be found"


def _sampled(make: Factory) -> str:
    """Whatever it drafts, output must fit: a fault of plumbing in what it states shows here."""
    method = DraftAndVerify(make(parts(toy_session(DRAFT))), SpeculativeSampling(), partial(Constant, 2))
    fits = sampled_fits(method, toy_session(TARGET), (1, 2, 1), DRAWN, 2, range(NUM_SAMPLES), num_positions=4)
    failed = [name for name, fit in fits.items() if not fit.passes(FALSE_ALARM / len(fits))]
    expect(not failed, f"does not fit the target's law at {', '.join(failed)}")
    far = max(fit.likely_tv for fit in fits.values() if fit.num_samples)
    return f"{NUM_SAMPLES} samples; a law {far:.2f} off (total variation) would likely be found"


def _teacher(make: Factory) -> str:
    """Along a given output, a draft refused at every step: its law must be the row that ``teacher_probs`` gives there."""
    drafter, output = make(parts(toy_session(DRAFT))), [1, 2, 0, 1, 2, 0, 5, 1]
    if isinstance(drafter, TargetReader):
        return "it reads a model's hidden states: not checked here"
    for sampling in (GREEDY, DRAWN):
        for prompt in PROMPTS:
            inputs = Inputs((prompt,))
            laws = torch.cat(list(drafter.teacher_probs(inputs, [prompt[-1]], output, sampling))).double()
            expect(len(laws) <= len(output), f"{len(laws)} rows for an output of {len(output)} tokens")
            drafter.begin(inputs, [prompt[-1]], Uniforms([0], len(output) + 1))
            for position, token in enumerate(output[: len(laws)]):
                _expect_law(drafter.propose([1], [position], sampling), laws[position], position)
                drafter.commit(Outcome((0,), (token,)))
    return f"{2 * len(PROMPTS) * len(output)} places"


def _expect_law(proposal: Proposal, law: Tensor, position: int) -> None:
    if proposal.lengths[0] == 0:
        expected = torch.zeros(VOCAB, dtype=torch.float64)
    elif proposal.logits is None:
        expected = torch.nn.functional.one_hot(proposal.tokens[0, 0], VOCAB).double()
    else:
        expected = proposal.sampling.probs(proposal.logits[0, 0]).double()
    far = float((law - expected).abs().max())
    if far > 1e-5:
        raise Broken(f"position {position}: a probability differs by {far:.2g} from that of the draft")
