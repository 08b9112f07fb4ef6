"""The contract of a drafter (methods/types.py): proposals that fit, greedy identity, and laws that drafts are drawn from."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from harness.exact.checks import Contract, expect
from harness.exact.fit import FALSE_ALARM, goodness_of_fit
from harness.exact.ground import NUM_DRAFT
from harness.exact.toy import Toy, greedy_output, random_block, random_table, same_tokens, toy_session
from methods.sampling import Sampling, Uniforms
from methods.speculative.decode import DraftAndVerify
from methods.speculative.drafters import DraftParts
from methods.speculative.model import ModelDrafter
from methods.speculative.ngram import NGramTable
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Drafter, Guarantee, Inputs, Outcome, Proposal, ReadsTarget, Stop, Verdict

GREEDY, DRAWN = Sampling(), Sampling(temperature=1.0)
VOCAB, EOS, LENGTH, NUM_SAMPLES, NUM_DRAWS = 6, 4, 16, 800, 3000
UNREADABLE = "it reads a model's hidden states: not checked here"
PROMPTS = ((3,), (1, 2, 3, 1, 2), (5, 0), (0, 0, 1), (2, 5, 2, 5, 2))
TARGET = random_table(VOCAB, seed=1, scale=1.5)
DRAFT = TARGET + random_table(VOCAB, seed=2, scale=1.0)
INNER = DRAFT + random_table(VOCAB, seed=3, scale=1.0)
TOY = Toy(lambda: toy_session(TARGET), PROMPTS, Stop(max_new_tokens=LENGTH, token_ids=frozenset({EOS})))
Factory = Callable[[DraftParts], Drafter]


def check_drafter(make: Factory) -> Contract:
    def drafter() -> Drafter:
        return make(toy_parts())

    yield "is made of the parts of an experiment", lambda: _check_protocol(drafter())
    yield "proposes what fits, alone and in batches", lambda: _check_proposals(drafter())
    yield "drafts nothing where nothing may be drafted", lambda: _check_single_tokens(drafter())
    yield "greedy output is the target's", lambda: TOY.check_greedy(_method(drafter()))
    yield "what it drafts depends on the text alone", lambda: _check_text_alone(drafter)
    yield "drafts for every row by itself", lambda: TOY.check_rows(_method(drafter()), DRAWN)
    yield "draws from the law that it states", lambda: _check_drawn_law(drafter())
    yield "sampled output is the target's", lambda: TOY.check_samples(_method(drafter()), NUM_SAMPLES, NUM_DRAFT)
    yield "teacher_probs is the law of the first draft", lambda: _check_teacher_probs(drafter())


def toy_parts() -> DraftParts:
    """Make everything that a drafter can be made of, except a trained verifier's heads."""
    corpus = [greedy_output(toy_session(TARGET), [token, token], 20, frozenset()) for token in range(VOCAB)]
    return DraftParts(
        vocab_size=VOCAB,
        session=toy_session(DRAFT),
        new_session=lambda: toy_session(DRAFT),
        translation=same_tokens(VOCAB),
        table=NGramTable.count(corpus, VOCAB),
        inner=ModelDrafter(toy_session(INNER)),
        block=random_block(VOCAB),
    )


class _Watching:
    """Speculative sampling that first checks that every proposal fits and has at most ``most`` drafts a row."""

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


def _method(drafter: Drafter, rule: _Watching | None = None) -> DraftAndVerify:
    return DraftAndVerify(drafter, rule or _Watching(NUM_DRAFT), partial(Constant, NUM_DRAFT))


def _check_protocol(drafter: Drafter) -> None:
    missing = [name for name in ("begin", "propose", "commit", "select", "teacher_probs") if not hasattr(drafter, name)]
    expect(not missing, f"{type(drafter).__name__} lacks {', '.join(missing)} (lift a drafter of one row by PerRow)")
    expect(isinstance(drafter, Drafter), f"{type(drafter).__name__} is no Drafter")


def _check_proposals(drafter: Drafter) -> str:
    rule = _Watching(NUM_DRAFT)
    method = _method(drafter, rule)
    for sampling in (GREEDY, DRAWN):
        for rows in (None, *([row] for row in range(len(PROMPTS)))):
            TOY.decode(method, sampling, rows)
    return f"{rule.num_drafted} drafts"


def _check_single_tokens(drafter: Drafter) -> None:
    for row in TOY.decode(_method(drafter, _Watching(0)), GREEDY, stop=Stop(max_new_tokens=1)):
        expect(len(row.tokens) == 1, f"{len(row.tokens)} tokens where one was asked for")


def _check_text_alone(make: Callable[[], Drafter]) -> str:
    """Replay the text of an output token by token, with every draft refused: the same drafts must follow.

    This shows an entry that is left in a cache by mistake, or missing from it.
    """
    count = 0
    for sampling in (GREEDY, DRAWN):
        for number, prompt in enumerate(PROMPTS):
            [row] = TOY.decode(_method(make()), sampling, [number])
            starts = dict(zip(accumulate((step.emitted for step in row.steps), initial=0), row.steps, strict=False))
            drafter = make()
            if isinstance(drafter, ReadsTarget):
                return UNREADABLE
            drafter.begin(Inputs((prompt,)), [prompt[-1]], Uniforms([number], LENGTH))
            for position, token in enumerate(row.tokens):
                expected = starts[position].drafted if position in starts else None
                proposal = drafter.propose([1 if expected is None else len(expected)], [position], sampling)
                found = proposal.tokens[0].tolist()
                expect(
                    expected is None or found == expected,
                    f"prompt {prompt}, behind {row.tokens[:position]}: drafted {expected}, on the replayed text {found}",
                )
                drafter.commit(Outcome((0,), (token,)))
                count += 1
    return f"{count} places"


def _check_drawn_law(drafter: Drafter) -> str:
    """Test the first two drafts of many rows of one prompt against the law of their logits; a point mass states none."""
    prompt = (1, 2, 1)
    if isinstance(drafter, ReadsTarget):
        return UNREADABLE
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


def _check_teacher_probs(drafter: Drafter) -> str:
    """Refuse one draft at every place of a given output: its law must be the row of ``teacher_probs`` there."""
    output = [1, 2, 0, 1, 2, 0, 5, 1]
    if isinstance(drafter, ReadsTarget):
        return UNREADABLE
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
    expect(far <= 1e-5, f"position {position}: a probability differs by {far:.2g} from that of the draft")
