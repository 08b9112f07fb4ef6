"""Block verification against Algorithm 2 of Sun et al. in exact fractions, the paper's example, and the token-wise rule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from math import prod

import pytest
import torch
from torch import Tensor

from harness.exact.block_law import block_law, expected_accepted
from harness.exact.controls import CONTROLS
from harness.exact.fit import FALSE_ALARM, Laws, draw_rows, fits_of, stream_fits
from harness.exact.law import largest_deviation
from harness.exact.toy import random_table, toy_session
from methods.sampling import EndlessUniforms, Sampling, Uniforms
from methods.speculative import acceptance
from methods.speculative.block_verification import BlockVerification, _next_weights, carried_ratios, stand_chances
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.steps import Step
from methods.types import Inputs, Proposal, Stop, VerifyRule

DRAWN = Sampling(temperature=1.0)
RULE = BlockVerification()
Text = tuple[int, ...]
Law = tuple[Fraction, ...]


@dataclass(frozen=True)
class Models:
    """Target and draft whose laws depend on the whole text; some tokens of either have no probability at all."""

    seed: int
    vocab_size: int

    def law(self, which: int, text: Text) -> Law:
        generator = torch.Generator().manual_seed(hash((self.seed, which, text)) % 2**31)
        weights = torch.randint(0, 6, (self.vocab_size,), generator=generator).tolist()
        weights[int(torch.randint(self.vocab_size, (1,), generator=generator))] += 1
        return tuple(Fraction(one, sum(weights)) for one in weights)

    def target(self, text: Text) -> Law:
        return self.law(0, text)

    def draft(self, text: Text) -> Law:
        return self.law(1, text)

    def drafts(self, num_draft: int) -> Iterator[tuple[Text, Fraction]]:
        """Every block that can be drafted, and how likely it is."""
        for block in product(range(self.vocab_size), repeat=num_draft):
            chance = prod((self.draft(block[:i])[block[i]] for i in range(num_draft)), start=Fraction(1))
            if chance:
                yield block, chance


def algorithm_2(models: Models, block: Text) -> tuple[list[Fraction], list[Fraction]]:
    """p_0 to p_gamma and h_0 to h_gamma of a drafted block (Sun et al., Algorithm 2, Eqs. 3 and 4); 0 / 0 is 1."""
    ps, hs = [Fraction(1)], [Fraction(1)]
    for i, token in enumerate(block, start=1):
        before = block[: i - 1]
        ps.append(min(ps[-1] * models.target(before)[token] / models.draft(before)[token], Fraction(1)))
        mass = sum(residual(models, block[:i], ps[i]))
        hs.append(ps[i] if i == len(block) else Fraction(1) if ps[i] == 1 else mass / (mass + 1 - ps[i]))
    return ps, hs


def residual(models: Models, text: Text, p: Fraction) -> list[Fraction]:
    return [max(p * one - other, Fraction(0)) for one, other in zip(models.target(text), models.draft(text), strict=True)]


def last_law(models: Models, block: Text, count: int, p: Fraction) -> list[Fraction]:
    weights = list(models.target(block)) if count == len(block) else residual(models, block[:count], p)
    return [one / sum(weights) for one in weights]


def stopped_at(hs: list[Fraction], count: int) -> Fraction:
    return hs[count] * prod((1 - h for h in hs[count + 1 :]), start=Fraction(1))


CASES = [Models(seed, size) for seed in range(3) for size in (2, 3)]


@pytest.mark.parametrize("models", CASES, ids=str)
def test_the_algorithm_emits_the_targets_law_over_whole_blocks(models: Models) -> None:
    """Total variation 0, in fractions: every text of gamma + 1 tokens has exactly the target's probability."""
    num_draft = 3
    found = dict.fromkeys(product(range(models.vocab_size), repeat=num_draft + 1), Fraction(0))
    block_wise = token_wise = by_carried = Fraction(0)
    for block, chance in models.drafts(num_draft):
        ps, hs = algorithm_2(models, block)
        ratios = [models.target(block[:i])[one] / models.draft(block[:i])[one] for i, one in enumerate(block)]
        token_wise += chance * sum(prod(min(ratio, Fraction(1)) for ratio in ratios[:i]) for i in range(1, num_draft + 1))
        by_carried += chance * sum(ps[1:])
        for count in range(num_draft + 1):
            weight = chance * stopped_at(hs, count)
            block_wise += weight * count
            for token, share in enumerate(last_law(models, block, count, ps[count])) if weight else ():
                text = (*block[:count], token)
                for rest in product(range(models.vocab_size), repeat=num_draft - count):
                    whole = (*text, *rest)
                    going_on = (models.target(whole[:i])[whole[i]] for i in range(len(text), len(whole)))
                    found[whole] += weight * share * prod(going_on, start=Fraction(1))
    for text, probability in found.items():
        assert probability == prod((models.target(text[:i])[token] for i, token in enumerate(text)), start=Fraction(1))
    assert block_wise == by_carried  # P(tau >= i | X^i) = p_i, which `expected_blocks` counts with
    assert block_wise >= token_wise


def test_it_accepts_more_on_some_laws() -> None:
    gains = [gain_of(*random_logits(seed, 2, 5)) for seed in range(12)]
    assert min(gains) > -1e-9
    assert sum(gain > 0.005 for gain in gains) > 6


@pytest.mark.parametrize("models", CASES, ids=str)
def test_the_rule_is_the_algorithm(models: Models) -> None:
    """Chances, and laws of the last token, of every block that can be drafted; both laws along it in fp64."""
    compared = 0
    for block, _ in models.drafts(3):
        target, draft = rows(models, block)
        ps, hs = algorithm_2(models, block)
        tokens, lengths = torch.tensor([block]), torch.tensor([3])
        pairs = [probs[0, range(3), list(block)][None] for probs in (target[:, :3], draft)]
        carried = carried_ratios(*pairs)
        torch.testing.assert_close(carried[0], doubles(ps), rtol=0, atol=1e-12)
        chances = stand_chances(target, draft, tokens, lengths, carried)[0]
        torch.testing.assert_close(chances, doubles(hs[1:]), rtol=0, atol=1e-12)
        for count in range(4):
            if stopped_at(hs, count):
                weights = _next_weights(target, draft, tokens, lengths, carried, torch.tensor([count]))[0]
                law = doubles(last_law(models, block, count, ps[count]))
                torch.testing.assert_close(weights / weights.sum(), law, rtol=0, atol=1e-12)
                compared += 1
    assert compared > 3


def rows(models: Models, block: Text) -> tuple[Tensor, Tensor]:
    target = [[float(one) for one in models.target(block[:i])] for i in range(len(block) + 1)]
    draft = [[float(one) for one in models.draft(block[:i])] for i in range(len(block))]
    return torch.tensor([target], dtype=torch.float64), torch.tensor([draft], dtype=torch.float64)


def doubles(numbers: Sequence[Fraction]) -> Tensor:
    return torch.tensor([float(one) for one in numbers], dtype=torch.float64)


def random_logits(seed: int, num_draft: int, vocab_size: int, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(num_draft + 1, vocab_size, generator=generator, dtype=torch.float64)
    return target, target[:-1] + noise * torch.randn(num_draft, vocab_size, generator=generator, dtype=torch.float64)


def gain_of(target: Tensor, draft: Tensor) -> float:
    """Drafts accepted a round beyond the token-wise rule's; laws do not depend on the text."""
    overlaps = torch.minimum(target[:-1].softmax(-1), draft.softmax(-1)).sum(-1)
    return expected_accepted(RULE, target, draft, DRAWN) - float(overlaps.cumprod(-1).sum())


def test_the_papers_example() -> None:
    """Section 2: two tokens, target (1/3, 2/3), draft (2/3, 1/3), two drafts: 10/9 accepted token-wise, 11/9 in blocks."""
    target, draft = torch.tensor([1 / 3, 2 / 3]).double().log(), torch.tensor([2 / 3, 1 / 3]).double().log()
    found = expected_accepted(RULE, target.expand(3, -1), draft.expand(2, -1), DRAWN)
    assert found == pytest.approx(11 / 9, abs=1e-8)
    assert found - gain_of(target.expand(3, -1), draft.expand(2, -1)) == pytest.approx(10 / 9, abs=1e-8)


@pytest.mark.parametrize("sampling", [DRAWN, Sampling(temperature=0.6), Sampling(temperature=1.0, top_k=4)], ids=str)
@pytest.mark.parametrize("logits", [random_logits(0, 2, 7), random_logits(1, 3, 4), random_logits(2, 1, 12, 3.0)])
def test_it_keeps_the_law(logits: tuple[Tensor, Tensor], sampling: Sampling) -> None:
    target = sampling.probs(logits[0])
    law = target[0]
    for row in target[1:]:
        law = (law.unsqueeze(-1) * row).flatten()
    assert float((block_law(RULE, *logits, sampling, sampling) - law).abs().sum()) / 2 < 1e-9
    assert largest_deviation(RULE, *logits, sampling) < 1e-6


def test_other_draft_samplings_and_point_masses_keep_it_and_wrong_residuals_do_not() -> None:
    logits = random_logits(3, 2, 6, 1.5)
    assert largest_deviation(RULE, *logits, DRAWN, Sampling(temperature=0.5, top_k=3)) < 1e-6
    assert largest_deviation(RULE, *logits, Sampling(temperature=0.8, top_k=4), DRAWN) < 1e-6
    assert largest_deviation(RULE, logits[0], [4, 0], DRAWN) < 1e-6
    assert largest_deviation(CONTROLS["block verification, token-wise residual"].rule(), *logits, DRAWN) > 1e-3


def decided(rule: VerifyRule, proposal: Proposal, target: Tensor, uniforms: Tensor) -> tuple[list[int], list[int]]:
    verdict = rule.verify(proposal, target, DRAWN, uniforms)
    return verdict.num_accepted.tolist(), verdict.next_token.tolist()


def test_one_draft_is_decided_on_as_by_speculative_sampling() -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = (2 * torch.randn(400, width, 9, generator=generator, dtype=torch.float64) for width in (2, 1))
    uniforms = torch.rand(400, 2, generator=generator, dtype=torch.float64)
    uniforms[:20, 0] = 0.0
    for logits in (draft, None):
        tokens = DRAWN.draw(draft, torch.rand(400, 1, generator=generator, dtype=torch.float64))
        proposal = Proposal(tokens, (1,) * 400, logits, DRAWN)
        assert decided(RULE, proposal, target, uniforms) == decided(SpeculativeSampling(), proposal, target, uniforms)


def test_numbers_of_zero_and_tokens_without_probability() -> None:
    """At 0 everything stands that the target can emit; a token that it cannot emit ends the block, whatever follows."""
    never = float("-inf")
    target = torch.tensor([[[0.0, 0.0, never], [0.0, 0.0, 0.0], [0.0, 1.0, never]]]).double()
    draft = torch.tensor([[[0.0, 0.0, 0.0], [0.0, never, 0.0]]]).double()
    zeros = torch.zeros(1, 3, dtype=torch.float64)
    for block, expected in (((0, 0), 2), ((2, 0), 0), ((0, 1), 2), ((2, 1), 0)):  # the draft cannot draw the 1 behind
        found = decided(RULE, Proposal(torch.tensor([block]), (2,), draft, DRAWN), target, zeros)
        assert found == ([expected], [0]), block
    alike = Proposal(torch.tensor([[1, 2]]), (2,), torch.zeros(1, 2, 3).double(), DRAWN)  # p_i = 1, nothing is left: 0 / 0
    almost = torch.full((1, 3), 1 - 2.0**-53, dtype=torch.float64)
    assert decided(RULE, alike, torch.zeros(1, 3, 3).double(), almost)[0] == [2]


def step(target: list[float], draft: list[float]) -> Step:
    return Step(list(range(len(target))), 0, 1, target_probs=target, draft_probs=draft)


def test_expected_lengths_of_rounds_by_hand() -> None:
    """Ratios 1/2 then 4: token-wise 1/2 + 1/2; in blocks 1/2, then min(1, 1/2 * 4) = 1."""
    one = step([0.25, 0.8], [0.5, 0.2])
    assert acceptance.expected_token_wise([one, step([], [])]) == (1.0, 2.0)
    assert acceptance.expected_blocks([one, step([], [])]) == (1.5, 2.0)
    assert acceptance.has_all_probs([one, step([], [])])
    assert not acceptance.has_all_probs([one, Step([1, 2], 0, 1, target_probs=[0.1], draft_probs=[0.2])])


TARGET = random_table(3, seed=1, scale=1.5)
DRAFT = TARGET + random_table(3, seed=2, scale=2.5)


def failures(rule: VerifyRule, num_samples: int) -> list[str]:
    method = DraftAndVerify(ModelDrafter(toy_session(DRAFT)), rule, partial(Constant, 3))
    target = toy_session(TARGET)
    samples = draw_rows(method, target, Inputs(((1, 2, 1),)), DRAWN, range(num_samples), 6)
    fits = fits_of([samples], Laws(target, DRAWN), 3, 6)
    return [name for name, fit in fits.items() if not fit.passes(FALSE_ALARM / len(fits))]


def test_a_loop_that_looks_at_numbers_again_is_biased() -> None:
    """The same rule, seeds and numbers; the first round is unharmed, what follows depends on drafts that did not stand."""
    assert failures(RULE, 3000) == []
    assert failures(CONTROLS["block verification, numbers again"].rule(), 6000)


def test_rows_do_not_see_one_another() -> None:
    """Rows of a batch advance differently and look at numbers behind the table's end: their tokens are those of a row alone."""
    method = DraftAndVerify(ModelDrafter(toy_session(DRAFT)), RULE, partial(Constant, 3))
    prompts, stop = ((1, 2), (0,), (2, 2, 1)), Stop(max_new_tokens=12)

    def tokens(chosen: list[int]) -> list[list[int]]:
        inputs, uniforms = Inputs(tuple(prompts[row] for row in chosen)), Uniforms(chosen, 12)
        return [row.tokens for row in method.generate(toy_session(TARGET), inputs, DRAWN, uniforms, stop)]

    together = tokens([0, 1, 2])
    assert together == [tokens([row])[0] for row in range(3)]
    assert len(set(map(tuple, together))) == 3


def test_endless_numbers_go_on() -> None:
    """They begin as the others do, never repeat, and are independent where two blocks meet."""
    seeds, usual = [5, 2**40 + 5], Uniforms([5, 2**40 + 5], 10)
    endless = usual.endless()
    assert torch.equal(endless.verify([0, 0], 9), usual.verify([0, 0], 9))
    far = endless.draft([0, 3], 47)
    assert torch.equal(far[1, :40], EndlessUniforms(seeds[1:], 10).draft([3], 40)[0])
    assert len(endless.table.flatten().unique()) == 2 * 3 * 50
    assert (
        len(torch.cat((endless.table, endless.nested().draft([0, 0], 10).unsqueeze(1).expand(-1, 3, -1)), -1)[0, 0].unique())
        == 60
    )
    kept = endless.select([1])
    assert torch.equal(kept.draft([44], 9)[0, :6], endless.draft([44, 44], 6)[1])
    grown = EndlessUniforms(range(100), 12)
    grown.draft([0] * 100, 60)
    grown.length = 60
    assert all(fit.passes(1e-9) for fit in stream_fits(grown, 1e-9).values())
