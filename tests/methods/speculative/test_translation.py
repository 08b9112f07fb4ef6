"""Drafts of another vocabulary: what is fed and what comes back, enumerated on table models, and the law of what is emitted."""

import random
from functools import partial

import pytest
import torch
from torch import Tensor

from harness.exact.toy import Toy, greedy_output, random_table, toy_session
from methods.sampling import Sampling
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.overlap import teacher_logits
from methods.speculative.per_row import PerRow
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.speculative.translation import TextDrafter, TranslatedSession, Translation
from methods.types import Drafter, Inputs, Method, Stop

TARGET, DRAFT = random_table(12, 3), random_table(9, 4)
SHARED = {0: 8, 1: 0, 2: 2, 4: 1, 7: 5, 9: 3}  # of the target's tokens, and how the draft numbers them
SPELT = {3: (4, 6), 5: (7,), 6: (4, 4, 7), 8: (6,), 10: (7, 4), 11: (6, 6)}
PIECES = tuple((SHARED[token],) if token in SHARED else SPELT[token] for token in range(12))
DRAWN = Sampling(temperature=1.0)


def spelt(tokens: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(piece for token in tokens for piece in PIECES[token])


def written(own: tuple[int, ...]) -> tuple[int, ...]:
    """Write the draft's tokens with the target's, of those that fit the one that spells most; what fits none is left out."""
    found, rest = list[int](), list(own)
    while rest:
        fitting = [token for token in range(12) if tuple(rest[: len(PIECES[token])]) == PIECES[token]]
        token = max(fitting, key=lambda one: len(PIECES[one]), default=None)
        found += [] if token is None else [token]
        del rest[: 1 if token is None else len(PIECES[token])]
    return tuple(found)


def known() -> Translation:
    ids = torch.tensor(sorted(SHARED.items()))
    return Translation(ids[:, 0], ids[:, 1], PIECES, spelt, written)


def translated(position_limit: int | None = None) -> TranslatedSession:
    return TranslatedSession(toy_session(DRAFT, position_limit), known())


def law_behind(text: tuple[int, ...], temperature: float = 1.0) -> Tensor:
    """Return the draft's law over the target's tokens by the definition: its own, of shared tokens alone, normed again."""
    session, own = toy_session(DRAFT), spelt(text)
    pending = session.prefill(Inputs((own,)))
    weights = (session.extend(torch.tensor([pending]))[0, -1] / temperature).exp()
    law = torch.zeros(12, dtype=torch.float64)
    for token, number in SHARED.items():
        law[token] = weights[number]
    return law / law.sum()


def method(kind: str, position_limit: int | None = None) -> Method:
    drafter: Drafter = ModelDrafter(translated(position_limit))
    if kind == "slem":
        drafter = PerRow(TextDrafter(lambda: toy_session(DRAFT, position_limit), known()))
    return DraftAndVerify(drafter, SpeculativeSampling(), partial(Constant, 3))


TOY = Toy(lambda: toy_session(TARGET), ((1, 2, 3), (6,), (3, 10, 4, 11, 5), (7, 7)), Stop(max_new_tokens=14))


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_extended_rewound_and_selected_the_law_is_that_of_the_text(seed: int) -> None:
    chosen = random.Random(seed)
    prompts = [tuple(chosen.randrange(12) for _ in range(chosen.randint(1, 5))) for _ in range(3)]
    session = translated()
    texts = [[prompt[:-1], (token,)] for prompt, token in zip(prompts, session.prefill(Inputs(tuple(prompts))), strict=True)]
    session.extend(torch.tensor([list(new) for _, new in texts]))
    for _ in range(12):
        counts = [chosen.randint(0, min(3, len(new))) for _, new in texts]
        session.rewind(counts)
        texts = [[old, new[: len(new) - count]] for (old, new), count in zip(texts, counts, strict=True)]
        order = [chosen.randrange(3) for _ in texts] if chosen.random() < 0.3 else [0, 1, 2]
        session.select(order)
        texts = [list(texts[row]) for row in order]
        fed = torch.tensor([[chosen.randrange(12) for _ in range(3)] for _ in texts])[:, : chosen.randint(1, 3)]
        logits = session.extend(fed)
        for row, tokens in enumerate(fed.tolist()):
            for place, token in enumerate(tokens):
                texts[row][1] += (token,)
                torch.testing.assert_close(logits[row, place].softmax(-1), law_behind(sum(texts[row], ())))


def test_a_text_is_read_as_far_as_the_drafts_positions_reach() -> None:
    """Tokens of the target that take two or three of the draft's."""
    session, output = translated(position_limit=11), [6, 3, 1, 6, 3, 3]
    pending, chunks = teacher_logits(session, Inputs(((1,),)), output)
    logits = torch.cat(list(chunks))
    assert pending == [1]
    fed = [1, *output[: len(logits) - 1]]
    assert len(spelt(tuple(fed))) <= 11 < len(spelt((*fed, output[len(logits) - 1])))
    torch.testing.assert_close(logits[-1].softmax(-1), law_behind(tuple(fed)))


@pytest.mark.parametrize("kind", ["tli", "slem"])
def test_greedy_output_is_the_targets(kind: str) -> None:
    assert TOY.check_greedy(method(kind)).verdict == "identical"
    assert TOY.check_rows(method(kind), DRAWN).verdict == "identical"


@pytest.mark.parametrize("kind", ["tli", "slem"])
def test_sampled_output_has_the_targets_law(kind: str) -> None:
    finding = TOY.check_samples(method(kind), 1500, 3)
    assert finding.verdict == "same distribution", finding.note


@pytest.mark.parametrize("text", [(1, 2, 3), (6, 10, 4), (0, 7, 7, 11)])
def test_a_text_is_gone_on_with_by_the_drafts_first_choices(text: tuple[int, ...]) -> None:
    """Whatever texts were seen before: an old cache is cut to what is shared."""
    drafter, session = TextDrafter(lambda: toy_session(DRAFT), known()), toy_session(DRAFT)
    own = spelt(text)
    chosen = greedy_output(session, own, 6, frozenset())
    for before in ((1, 2, 3, 4), (6, 10, 4, 0), (5,), text):
        drafter.propose(before, 4, torch.zeros(4), Sampling())
        assert drafter.propose(text, 6, torch.zeros(6), DRAWN).tokens[0].tolist() == list(written(tuple(chosen)))[:6]


def test_drafts_are_shared_tokens_alone() -> None:
    drafted = [token for row in TOY.decode(method("tli"), DRAWN) for step in row.steps for token in step.drafted]
    assert drafted
    assert set(drafted) <= set(SHARED)


def test_alpha_is_measured_on_the_restricted_law() -> None:
    drafter = ModelDrafter(translated())
    [laws] = drafter.teacher_probs(Inputs(((1, 2, 3),)), [3], [4, 3, 1], Sampling(temperature=0.5))
    for law, text in zip(laws, [(1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 3)], strict=True):
        torch.testing.assert_close(law.double(), law_behind(text, 0.5))


@pytest.mark.parametrize("kind", ["tli", "slem"])
def test_a_draft_whose_positions_end_drafts_no_more(kind: str) -> None:
    """A token may be spelt by three of the draft's: room for them is kept."""
    for limit in range(9, 30):
        assert TOY.check_greedy(method(kind, limit)).verdict == "identical"
