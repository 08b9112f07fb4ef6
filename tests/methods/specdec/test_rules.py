"""SpecDec's rules against a token-by-token reading of Eqs. 4 to 7, on logits full of ties."""

import math
from collections.abc import Sequence
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from methods.errors import InputError
from methods.parts import RULES
from methods.sampling import Sampling
from methods.specdec import rules
from methods.specdec.rules import TopBeta, TopOne
from methods.speculative.rules import SpeculativeSampling
from methods.types import Proposal, Verdict

GREEDY = Sampling()
VOCAB, NUM_DRAFT, BATCH = 6, 4, 64
CAPS = ("released", "printed")


@pytest.fixture(autouse=True, params=["host", "device"])
def _where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every property holds for what decides on a CPU and for what decides on a GPU."""
    monkeypatch.setattr(rules, "_is_at_hand", lambda tensor: request.param == "host")


def tied(seed: int, *shape: int) -> Tensor:
    """Multiples of a half between -1 and 1: exact in any order of summation, and often equal."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).double() / 2


def smooth(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def proposal_of(seed: int, lengths: Sequence[int] | None = None, logits: Tensor | None = None) -> Proposal:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (BATCH, NUM_DRAFT), generator=generator)
    return Proposal(tokens, tuple(lengths or (NUM_DRAFT,) * BATCH), logits, GREEDY)


def ragged(seed: int) -> list[int]:
    lengths = torch.randint(0, NUM_DRAFT + 1, (BATCH,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [NUM_DRAFT, *lengths[1:]]


def decide(rule: TopOne | TopBeta, proposal: Proposal, target_logits: Tensor) -> Verdict:
    return rule.verify(proposal, target_logits, GREEDY, torch.zeros(BATCH, NUM_DRAFT + 1))


def emitted(verdict: Verdict, proposal: Proposal) -> list[list[int]]:
    """What each row puts out: its accepted drafts and the token behind them."""
    rows = zip(proposal.tokens.tolist(), verdict.num_accepted.tolist(), verdict.next_token.tolist(), strict=True)
    return [[*tokens[:count], following] for tokens, count, following in rows]


def log_probs(row: Sequence[float]) -> list[float]:
    total = math.log(math.fsum(math.exp(value) for value in row))
    return [value - total for value in row]


def stands(token: int, row: Sequence[float], draft_row: Sequence[float] | None, beta: int, tau: float, score: str) -> bool:
    """One drafted token, as the paper reads: first choice, or Eq. 6 and Eq. 7."""
    first_choice = min(range(VOCAB), key=lambda other: (-row[other], other))
    if token == first_choice:
        return True
    if score == "verifier":
        if beta == 1 or tau == 0:
            return False
        own, known = row[token], row  # logits: log-probabilities shifted by one constant
    else:
        assert draft_row is not None
        own, known = log_probs(draft_row)[token], log_probs(row)
    ranked = sorted(known, reverse=True)
    eq_6 = own >= ranked[min(beta, VOCAB) - 1]
    eq_7 = ranked[0] - own <= tau
    return eq_6 and eq_7


def brute_force(proposal: Proposal, target_logits: Tensor, beta: int, tau: float, score: str, cap: str) -> list[list[int]]:
    rows = []
    for index, (tokens, length) in enumerate(zip(proposal.tokens.tolist(), proposal.lengths, strict=True)):
        logits = target_logits[index].tolist()
        drafts = None if proposal.logits is None else proposal.logits[index].tolist()
        out: list[int] = []
        for place in range(length + 1):
            best = logits[place].index(max(logits[place]))
            if place == length:
                if cap == "released" or length == 0:
                    out.append(best)
                break
            if not stands(tokens[place], logits[place], drafts and drafts[place], beta, tau, score):
                out.append(best)
                break
            out.append(tokens[place])
        rows.append(out)
    return rows


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("beta", [1, 2, 3, VOCAB, VOCAB + 3])
@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 5.0])
def test_top_beta_is_the_equations_token_by_token_with_ties(beta: int, tau: float, cap: str) -> None:
    compared = 0
    for seed in range(6):
        target = tied(seed, BATCH, NUM_DRAFT + 1, VOCAB)
        for lengths in (None, ragged(seed)):
            proposal = proposal_of(seed + 100, lengths)
            rule = TopBeta(beta, tau, cap=cap)
            assert emitted(decide(rule, proposal, target), proposal) == brute_force(
                proposal, target, beta, tau, "verifier", cap
            )
            compared += BATCH
    assert compared == 12 * BATCH


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize(("beta", "tau"), list(product([1, 3, 9], [0.0, 0.7, 3.0])))
def test_as_described_scores_with_the_drafter(beta: int, tau: float, cap: str) -> None:
    """Continuous logits: sums in another order may not move a score across a bound."""
    for seed in range(4):
        target, draft = smooth(seed, BATCH, NUM_DRAFT + 1, VOCAB), 2 * smooth(seed + 50, BATCH, NUM_DRAFT, VOCAB)
        proposal = proposal_of(seed + 200, ragged(seed), draft)
        verdict = decide(TopBeta(beta, tau, "as_described", cap), proposal, target)
        assert emitted(verdict, proposal) == brute_force(proposal, target, beta, tau, "as_described", cap)


def test_the_two_scores_differ() -> None:
    """As printed, a confident drafter passes whatever it says: beta 1 and tau 0 are not strict there."""
    target, draft = smooth(0, BATCH, NUM_DRAFT + 1, VOCAB), 20 * smooth(1, BATCH, NUM_DRAFT, VOCAB)
    best = draft.argmax(-1)
    proposal = Proposal(best, (NUM_DRAFT,) * BATCH, draft, GREEDY)
    printed = decide(TopBeta(1, 0.0, "as_described"), proposal, target).num_accepted
    strict = decide(TopBeta(1, 0.0), proposal, target).num_accepted
    assert printed.double().mean() > 2 * strict.double().mean()


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize(("beta", "tau"), [(1, 0.0), (1, 3.0), (4, 0.0)])
def test_beta_1_or_tau_0_is_the_strict_rule_where_choices_tie(beta: int, tau: float, cap: str) -> None:
    rule = TopBeta(beta, tau, cap=cap)
    assert rule.guarantee == TopOne(cap).guarantee == "identical"
    ties = 0
    for seed in range(10):
        target, proposal = tied(seed, BATCH, NUM_DRAFT + 1, VOCAB), proposal_of(seed, ragged(seed))
        relaxed, strict = decide(rule, proposal, target), decide(TopOne(cap), proposal, target)
        assert torch.equal(relaxed.num_accepted, strict.num_accepted)
        assert torch.equal(relaxed.next_token, strict.next_token)
        ties += int(((target == target.amax(-1, keepdim=True)).sum(-1) > 1).sum())
    assert ties > 1000


def test_top_1_is_what_speculative_sampling_does_at_temperature_0() -> None:
    for seed in range(5):
        target, proposal = (
            tied(seed, BATCH, NUM_DRAFT + 1, VOCAB),
            proposal_of(seed, ragged(seed), tied(seed, BATCH, NUM_DRAFT, VOCAB)),
        )
        ours = decide(TopOne(), proposal, target)
        theirs = SpeculativeSampling().verify(proposal, target, GREEDY, torch.zeros(BATCH, NUM_DRAFT + 1))
        for name in ("num_accepted", "next_token", "target_probs", "draft_probs"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_everything_stands_under_the_loosest_bounds() -> None:
    target, proposal = tied(1, BATCH, NUM_DRAFT + 1, VOCAB), proposal_of(2, ragged(3))
    assert decide(TopBeta(VOCAB, 10.0), proposal, target).num_accepted.tolist() == list(proposal.lengths)
    capped = decide(TopBeta(VOCAB, 10.0, cap="printed"), proposal, target)
    assert capped.num_accepted.tolist() == [max(0, length - 1) for length in proposal.lengths]


@pytest.mark.parametrize("cap", CAPS)
def test_a_round_emits_at_most_what_the_cap_says(cap: str) -> None:
    target = smooth(5, BATCH, NUM_DRAFT + 1, VOCAB)
    proposal = Proposal(target.argmax(-1)[:, :-1].contiguous(), (NUM_DRAFT,) * BATCH, None, GREEDY)
    rows = emitted(decide(TopOne(cap), proposal, target), proposal)
    assert {len(row) for row in rows} == {NUM_DRAFT + 1 if cap == "released" else NUM_DRAFT}
    assert rows == [row[: len(rows[0])] for row in target.argmax(-1).tolist()]


@pytest.mark.parametrize("rule", [TopOne(), TopOne("printed"), TopBeta(), TopBeta(3, 1.0, cap="printed")])
def test_a_round_without_drafts_is_a_plain_step(rule: TopOne | TopBeta) -> None:
    target = smooth(6, 3, 1, VOCAB)
    nothing = Proposal(torch.zeros(3, 0, dtype=torch.long), (0, 0, 0), None, GREEDY)
    verdict = rule.verify(nothing, target, GREEDY, torch.zeros(3, 1))
    assert verdict.num_accepted.tolist() == [0, 0, 0]
    assert torch.equal(verdict.next_token, target[:, 0].argmax(-1))


def test_a_relaxed_rule_never_accepts_less() -> None:
    target, proposal = tied(7, BATCH, NUM_DRAFT + 1, VOCAB), proposal_of(7)
    counts = [
        decide(rule, proposal, target).num_accepted for rule in (TopOne(), TopBeta(2, 0.5), TopBeta(3, 1.0), TopBeta(5, 3.0))
    ]
    for tighter, looser in pairwise(counts):
        assert bool((tighter <= looser).all())
    assert counts[0].sum() < counts[-1].sum()


def test_a_drawn_draft_is_judged_by_the_same_rule_and_reports_its_probability() -> None:
    draft = smooth(8, BATCH, NUM_DRAFT, VOCAB)
    proposal = Proposal(proposal_of(8).tokens, (NUM_DRAFT,) * BATCH, draft, Sampling(temperature=0.5))
    verdict = decide(TopOne(), proposal, smooth(9, BATCH, NUM_DRAFT + 1, VOCAB))
    expected = (draft / 0.5).softmax(-1).gather(-1, proposal.tokens.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(verdict.draft_probs, expected)


def test_names_and_guarantees() -> None:
    assert RULES["top-1"].load() is TopOne
    assert RULES["top-beta"].load() is TopBeta
    assert TopOne().guarantee == "identical"
    assert [TopBeta(3, 1.0).guarantee, TopBeta(1, 0.0, "as_described").guarantee] == ["lossy", "lossy"]


@pytest.mark.parametrize("rule", [TopOne(), TopBeta()])
def test_other_temperatures_are_refused(rule: TopOne | TopBeta) -> None:
    with pytest.raises(InputError, match=r"temperature 0\.7: rules top-.* are defined at temperature 0 only; use rule"):
        rule.verify(proposal_of(0), smooth(0, BATCH, NUM_DRAFT + 1, VOCAB), Sampling(temperature=0.7), torch.zeros(BATCH, 5))


def test_bad_settings_are_refused_in_one_line() -> None:
    for make, message in (
        (lambda: TopBeta(0), "beta 0: expected an integer >= 1"),
        (lambda: TopBeta(3, -1.0), r"tau -1\.0: expected a finite number >= 0"),
        (lambda: TopBeta(3, math.nan), "tau nan: expected"),
        (lambda: TopBeta(3, 1.0, "nat"), "score 'nat': expected one of verifier, as_described"),
        (lambda: TopOne("k"), "cap 'k': expected one of released, printed"),
        (
            lambda: decide(TopBeta(score="as_described"), proposal_of(0), smooth(0, BATCH, 5, VOCAB)),
            "score 'as_described': this",
        ),
    ):
        with pytest.raises(InputError, match=message):
            make()
