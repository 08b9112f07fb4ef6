"""Drafters that are tables and copies, the overlap that alpha is measured with, and the definitions of acceptance."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import theory_laws
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import one_hot

from harness.exact.toy import greedy_output, random_table, same_tokens, toy_session
from methods.errors import InputError
from methods.parts import DRAFTERS
from methods.sampling import Sampling, Uniforms
from methods.speculative import acceptance, theory
from methods.speculative import overlap as overlap_module
from methods.speculative.decode import DraftAndVerify
from methods.speculative.drafters import DraftParts
from methods.speculative.ngram import NGramDrafter, NGramTable
from methods.speculative.overlap import overlap
from methods.speculative.per_row import CopyDrafter, PerRow, SuffixDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.steps import Step
from methods.types import Inputs, Proposal, Stop

VOCAB = 7
TEXTS = [[1, 2, 3, 1, 2], [2, 2, 4], [], [5]]
TARGET = random_table(VOCAB, seed=1)
DRAFT = TARGET + random_table(VOCAB, seed=2, scale=1.0)
DRAWN, GREEDY = Sampling(temperature=1.0), Sampling()
ACCEPTANCE = ("alpha_ratio", "accepted_over_verified", "accepted_over_drafted", "accepted_per_step", "tokens_per_step")


def acceptance_statistics(steps: Sequence[Step]) -> dict[str, acceptance.Statistic]:
    return {name: getattr(acceptance, name)(steps) for name in ACCEPTANCE}


def next_probs(session: toy_session, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
    """Return the law of the next token, by a forward pass over the whole text."""
    pending = session.prefill(Inputs((tuple(prompt),)))
    return session.extend(torch.tensor([[*pending, *output]]))[0, -1].softmax(-1)


def test_ngrams_are_counted_within_texts() -> None:
    table = NGramTable.count(TEXTS, VOCAB)
    assert table.unigram_counts.tolist() == [0, 2, 4, 1, 1, 1, 0]
    pairs = {(a, b): 0 for a in range(VOCAB) for b in range(VOCAB)}
    for text in TEXTS:
        for a, b in pairwise(text):
            pairs[a, b] += 1
    for context in range(VOCAB):
        counts = np.array([pairs[context, token] for token in range(VOCAB)], dtype=float)
        expected = counts / counts.sum() if counts.sum() else table.unigram_counts.numpy() / 9
        np.testing.assert_allclose(table.bigram_log_probs(context).exp().numpy(), expected, atol=1e-7)


def test_tables_survive_a_file_and_bad_ones_are_refused(tmp_path: Path) -> None:
    table = NGramTable.count(TEXTS, VOCAB)
    table.save(tmp_path / "table.safetensors")
    loaded = NGramTable.load(tmp_path / "table.safetensors")
    for context in range(VOCAB):
        assert torch.equal(loaded.bigram_log_probs(context), table.bigram_log_probs(context))
    (tmp_path / "broken").write_bytes(b"no table")
    for name in ("broken", "missing"):
        with pytest.raises(InputError, match=f"{name}: cannot be read"):
            NGramTable.load(tmp_path / name)
    parts = load_file(tmp_path / "table.safetensors")
    for name, part, said in (
        ("counts", -parts["counts"], "counts from -"),
        ("counts", parts["counts"].float(), "float32; expected"),
        ("tokens", parts["tokens"] + VOCAB, f"expected 0 to {VOCAB - 1}"),
        ("indptr", parts["indptr"].flip(0), "indptr does not rise from 0"),
        ("unigram_counts", parts["unigram_counts"][1:], "indptr has shape"),
    ):
        save_file(parts | {name: part}, tmp_path / "odd")
        with pytest.raises(InputError, match=f"odd: cannot be read .*{said}"):
            NGramTable.load(tmp_path / "odd")
    with pytest.raises(InputError, match="expected 0 to 2"):
        NGramTable.count(TEXTS, 3)
    with pytest.raises(InputError, match="no token was counted"):
        NGramTable.count([[]], VOCAB)


def test_copying_takes_the_longest_match_and_the_latest_of_equals() -> None:
    def copied(text: list[int], num_draft: int = 3, **limits: int) -> list[int]:
        drafter = CopyDrafter(VOCAB, **limits)
        return drafter.propose(text, num_draft, torch.zeros(num_draft), GREEDY).tokens[0].tolist()

    assert copied([1, 2, 3, 6, 2, 3, 5, 1, 2, 3]) == [6, 2, 3]
    assert copied([1, 2, 3, 6, 2, 3, 5, 1, 2, 3], max_match=2) == [5, 1, 2]
    assert copied([3, 4, 3, 5, 3], 1) == [5]
    assert copied([1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]
    assert copied([1, 2, 3]) == []
    assert copied([5, 2, 1, 2], min_match=2) == []


def suffixed(text: list[int], num_draft: int = 8, **limits: float) -> list[int]:
    return SuffixDrafter(VOCAB, **limits).propose(text, num_draft, torch.zeros(num_draft), GREEDY).tokens[0].tolist()


def test_suffixes_are_continued_as_most_often_and_as_far_as_they_are_long() -> None:
    """By hand: behind 1 stood 2, 2 and 3; 7 1 was followed by 3 once, for which two tokens are expected to stand."""
    assert suffixed([1, 2, 5, 1, 2, 6, 7, 1, 3, 4, 4, 1]) == [2], "two of three, at most as many as agree"
    assert suffixed([1, 2, 5, 1, 2, 6, 7, 1, 3, 4, 4, 1], match_factor=2.0) == [2, 6], "of equals the latest"
    assert suffixed([1, 2, 5, 1, 2, 6, 7, 1, 3, 4, 4, 1], match_factor=2.0, min_share=0.5) == [2]
    assert suffixed([1, 2, 5, 1, 2, 6, 7, 1, 3, 4, 7, 1]) == [3, 4], "a longer end"
    assert suffixed([1, 2, 5, 1, 2, 6, 7, 1, 3, 4, 7, 1], 1) == [3]
    assert suffixed([1, 2, 1, 3, 1, 4, 1], min_share=0.5) == [], "none of three is likely"
    assert suffixed([1, 2, 3]) == []
    assert suffixed([4, 4, 4, 4]) == [4, 4], "behind 4 4 stands one 4 twice and another once; behind 4 4 4 one alone"


def test_a_suffixs_chain_is_the_one_of_most_tokens_expected_to_stand() -> None:
    """Against counts of parts of the text: every length of its end, every token that may go on."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        text = rng.integers(0, 4, rng.integers(2, 60)).tolist()
        count, factor, least = int(rng.integers(1, 6)), float(rng.choice([0.5, 1.0, 2.0])), float(rng.choice([0.0, 0.1, 0.4]))
        best, most = list[int](), 0.0
        for length in range(1, min(len(text), SuffixDrafter.MAX_MATCH + 1)):
            chain, share, expected = text[len(text) - length :], 1.0, 0.0
            while len(chain) - length < min(count, int(length * factor)):
                found = [(len(places := places_of([*chain, token], text)), max(places, default=-1)) for token in range(4)]
                share *= max(found)[0] / max(1, sum(number for number, _ in found))
                if share == 0 or share < least:
                    break
                chain, expected = [*chain, found.index(max(found))], expected + share
            if expected >= most:
                best, most = chain[length:], expected
        assert suffixed(text, count, match_factor=factor, min_share=least) == best


def places_of(part: list[int], text: list[int]) -> list[int]:
    return [start for start in range(len(text) - len(part) + 1) if text[start : start + len(part)] == part]


@pytest.mark.parametrize("sampling", [DRAWN, GREEDY, Sampling(temperature=0.7, top_k=3)], ids=str)
@pytest.mark.parametrize("name", sorted(set(DRAFTERS) - {"block", "blockwise", "first-layers", "rounded"}))  # have own tests
def test_overlap_by_definition(name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each position against fresh forwards, over chunk borders; drafts that cannot be drawn count nothing."""
    monkeypatch.setattr(overlap_module, "CHUNK", 4)
    table = NGramTable.count([[1, 2, 3, 1, 2, 6, 0, 4, 5, 1]], VOCAB)
    inner = DRAFTERS["random"](DraftParts(vocab_size=VOCAB))
    drafter = DRAFTERS[name](
        DraftParts(
            vocab_size=VOCAB, session=toy_session(DRAFT), new_session=lambda: toy_session(DRAFT),
            translation=same_tokens(VOCAB), table=table, inner=inner,
        )
    )  # fmt: skip
    prompt, output = (1, 2, 3), [1, 2, 6, 1, 1, 4, 0, 3, 2, 5]
    [measured] = overlap(toy_session(TARGET), [drafter], Inputs((prompt,)), output, sampling, (1.0, 0.3))
    assert {len(values) for values in measured.values()} == {len(output)}
    for position in range(len(output)):
        text = [*prompt, *output[:position]]
        raw = next_probs(toy_session(TARGET), prompt, output[:position])
        target = sampling.probs(raw.log())
        draft = {
            "model": sampling.probs(next_probs(toy_session(DRAFT), prompt, output[:position]).log()),
            "unigram": sampling.probs(table.unigram_log_probs),
            "bigram": sampling.probs(table.bigram_log_probs(text[-1])),
            "random": torch.full((VOCAB,), 1 / VOCAB),
            "copy": point_of(CopyDrafter(VOCAB), text),
            "suffix": point_of(SuffixDrafter(VOCAB), text),
            "slem": one_hot(next_probs(toy_session(DRAFT), prompt, output[:position]).argmax(-1), VOCAB).float(),
        }[name.replace("hierarchical", "model").replace("tli", "model")]
        expected = theory_laws.acceptance_rate(target.numpy(), draft.numpy())
        np.testing.assert_allclose(measured[1.0][position], expected, atol=1e-6)
        lenient = theory_laws.acceptance_rate(target.numpy(), draft.numpy(), 0.3)
        if sampling.greedy:
            lenient = float(draft[raw >= 0.3 * raw.max()].sum())
        np.testing.assert_allclose(measured[0.3][position], lenient, atol=1e-6)


def point_of(drafter: CopyDrafter | SuffixDrafter, text: list[int]) -> torch.Tensor:
    law = torch.zeros(VOCAB)
    tokens = drafter.propose(text, 1, torch.zeros(1), GREEDY).tokens[0]
    law[tokens] = 1.0
    return law


def test_acceptance_definitions_on_steps_by_hand() -> None:
    steps = [
        Step([1, 2, 3], 1, 2, target_probs=[0.6, 0.1, 0.9], draft_probs=[0.3, 0.4, 0.3]),
        Step([4, 5], 1, 1, target_probs=[0.2, 0.5], draft_probs=[0.4, 0.5], stop_reason="eos"),
        Step([], 0, 1),
    ]
    assert acceptance_statistics(steps) == {
        "alpha_ratio": (1 + 0.25 + 0.5, 3.0),
        "accepted_over_verified": (2.0, 3.0),
        "accepted_over_drafted": (2.0, 4.0),
        "accepted_per_step": (2.0, 3.0),
        "tokens_per_step": (4.0, 3.0),
    }


def test_nothing_behind_a_stopping_eos_counts() -> None:
    """The draft is the target, so all four drafts stand; the second one of the first row's round is made the EOS."""
    prompts = ((2,), (1,))
    first, other = (greedy_output(toy_session(TARGET), prompt, 8, frozenset()) for prompt in prompts)
    assert first[0] != first[1] not in other[:5]
    drafter = DRAFTERS["model"](DraftParts(vocab_size=VOCAB, session=toy_session(TARGET)))
    method = DraftAndVerify(drafter, SpeculativeSampling(), partial(Constant, 4))
    stop = Stop(max_new_tokens=8, token_ids=frozenset({first[1]}))
    rows = method.generate(toy_session(TARGET), Inputs(prompts), GREEDY, Uniforms([0, 1], 8), stop)
    assert (rows[0].tokens, rows[0].stop_reason) == (first[:2], "eos")
    assert rows[0].steps[0].drafted == first[:4]
    assert (rows[0].steps[0].num_accepted, rows[0].steps[0].emitted) == (2, 2)
    assert acceptance_statistics(rows[0].steps) == {
        "alpha_ratio": (2.0, 2.0),
        "accepted_over_verified": (2.0, 2.0),
        "accepted_over_drafted": (2.0, 2.0),
        "accepted_per_step": (2.0, 1.0),
        "tokens_per_step": (2.0, 1.0),
    }
    assert rows[1].tokens == greedy_output(toy_session(TARGET), prompts[1], 8, stop.token_ids)
    assert (rows[1].steps[0].num_accepted, rows[1].steps[0].emitted) == (4, 5)


def test_a_correction_that_ends_the_output_counts_the_draft_it_replaced() -> None:
    step = Step([1, 5, 3, 4], 1, 2, target_probs=[0.5, 0.1, 0.9, 0.9], draft_probs=[0.5, 0.4, 0.3, 0.3], stop_reason="eos")
    assert acceptance_statistics([step]) == {
        "alpha_ratio": (1.25, 2.0),
        "accepted_over_verified": (1.0, 2.0),
        "accepted_over_drafted": (1.0, 2.0),
        "accepted_per_step": (1.0, 1.0),
        "tokens_per_step": (2.0, 1.0),
    }


def test_acceptance_of_constant_alpha_is_the_closed_form() -> None:
    """Random drafts against a fixed target law: i.i.d. acceptance, so all estimators have known values."""
    flat = random_table(VOCAB, seed=4)[:1].expand_as(TARGET).contiguous()
    alpha = float(theory_laws.acceptance_rate(flat[0].softmax(-1).numpy(), np.full(VOCAB, 1 / VOCAB)))
    drafter = DRAFTERS["random"](DraftParts(vocab_size=VOCAB))
    method = DraftAndVerify(drafter, SpeculativeSampling(), partial(Constant, 3))
    stop = Stop(max_new_tokens=1000)
    row = method.generate(toy_session(flat), Inputs(((1,),)), DRAWN, Uniforms([0], 1000), stop)[0]
    measured = {name: total / count for name, (total, count) in acceptance_statistics(row.steps).items()}
    tokens = float(theory.expected_tokens(alpha, 3))
    expected = {
        "alpha_ratio": alpha,
        "accepted_over_verified": alpha,
        "accepted_over_drafted": (tokens - 1) / 3,
        "accepted_per_step": tokens - 1,
        "tokens_per_step": tokens,
    }
    assert measured.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(measured[name], value, rtol=0.15, err_msg=name)


def test_guarantees() -> None:
    assert SpeculativeSampling().guarantee == "same_distribution"
    with pytest.raises(InputError, match="order 3"):
        NGramDrafter(NGramTable.count(TEXTS, VOCAB), 3)
    assert PerRow(CopyDrafter(VOCAB)).row_drafter.vocab_size == VOCAB


class _CopyOrGuess:
    """Proposes a point mass behind token 1 and a law of three tokens behind any other, at temperature 2."""

    vocab_size = 4

    def propose(self, text: Sequence[int], num_draft: int, uniforms: torch.Tensor, sampling: Sampling) -> Proposal:
        if text[-1] == 1:
            return Proposal(torch.full((1, num_draft), 3), (num_draft,), None, sampling)
        logits = torch.tensor([0.0, 1.0, 2.0, float("-inf")]).expand(1, num_draft, 4)
        return Proposal(torch.full((1, num_draft), 2), (num_draft,), logits, Sampling(temperature=2.0))


def test_a_row_keeps_its_law_beside_rows_of_another_kind() -> None:
    """A point mass beside logits became a uniform law, and its token was emitted with probability 1."""
    alone = {}
    for prompt in ((0, 1), (0, 2)):
        drafter = PerRow(_CopyOrGuess())
        drafter.begin(Inputs((prompt,)), [prompt[-1]], Uniforms([0], 4))
        alone[prompt] = drafter.propose([2], [0], Sampling(temperature=1.0))
    drafter = PerRow(_CopyOrGuess())
    drafter.begin(Inputs(tuple(alone)), [1, 2], Uniforms([0, 1], 4))
    both = drafter.propose([2, 1], [0, 0], Sampling(temperature=1.0))
    assert both.logits is not None
    laws = both.sampling.probs(both.logits)
    assert laws[0].tolist() == [[0.0, 0.0, 0.0, 1.0]] * 2
    one = alone[0, 2]
    assert one.logits is not None
    torch.testing.assert_close(laws[1, :1], one.sampling.probs(one.logits)[0, :1])
