"""Drafts in one compiled call: against the passes and draws that it stands for, and against the law of the logits."""

from collections.abc import Sequence

import pytest
import torch
from jaxtyping import TypeCheckError
from test_compiled_layers import KINDS, WHISPER, model_of, session_of
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from kernels import native
from kernels.inputs import InputError, NotFiniteError
from kernels.layers.decoder import SOURCE, Drafted
from kernels.products.matrix import COMPILED, TORCH, Choice
from kernels.verify import reference
from methods.autoregressive import Autoregressive
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.speculative.translation import TranslatedSession, Translation
from methods.types import Inputs, Outcome, Stop, TextSession

pytestmark = pytest.mark.skipif(native.library(SOURCE) is None, reason="no C++ compiler here")
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1.0),
    "cold": Sampling(temperature=0.4),
    "top-k": Sampling(temperature=0.9, top_k=5),
    "nucleus": Sampling(temperature=1.3, top_p=0.7),
}
FED, COUNT = (7, 11), 6


def uniforms_for(sampling: Sampling, count: int = COUNT, seed: int = 0) -> Tensor | None:
    generator = torch.Generator().manual_seed(seed)
    return None if sampling.greedy else torch.rand(1, count, dtype=torch.float64, generator=generator)


def by_passes(
    session: TextSession, fed: Sequence[int], count: int, sampling: Sampling, uniforms: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Tokens [1, n] and logits [1, n, V] of as many passes over a session."""
    new, tokens, logits = torch.tensor([fed]), [], []
    for step in range(count):
        logits.append(session.extend(new)[:, -1])
        drawn = logits[-1].argmax(-1) if uniforms is None else sampling.draw(logits[-1], uniforms[:, step])
        tokens.append(drawn)
        new = drawn.unsqueeze(1)
    return torch.stack(tokens, 1), torch.stack(logits, 1)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_one_call_is_as_many_passes_and_draws(kind: str, sampling: Sampling) -> None:
    """In fp64 against torch's own passes: the tokens, their logits, and what is cached behind them."""
    model, uniforms = model_of(kind), uniforms_for(sampling)
    ours, torchs = session_of(model, COMPILED, 23), session_of(model, TORCH, 23)
    drawn = ours.draft(FED, COUNT, sampling, uniforms)
    assert drawn is not None
    tokens, logits, sums = drawn
    expected = by_passes(torchs, FED, COUNT, sampling, uniforms)
    torch.testing.assert_close((tokens, logits), expected, rtol=0, atol=1e-10)
    assert ours.lengths == torchs.lengths
    if sums is None:
        assert sampling.greedy
    else:  # log-sum-exp of what the filters keep
        kept = reference.adjusted_logits(logits, sampling)
        torch.testing.assert_close(sums, kept.logsumexp(-1), rtol=0, atol=1e-10)
    again = torch.randint(97, (1, 3))
    torch.testing.assert_close(ours.extend(again), torchs.extend(again), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_plain_token_and_a_verified_one_have_the_same_bits(kind: str) -> None:
    """Plain decoding drafts one token, a round extends: greedy outputs of both are compared."""
    session = session_of(model_of(kind, torch.float32), COMPILED, 23)
    tokens = [7, 11, 3, 90]
    drafted = []
    for token in tokens:
        made = session.draft([token], 1, Sampling(), None)
        assert made is not None
        drafted.append(made[1])
    session.rewind([4])
    extended = session.extend(torch.tensor([tokens]))
    assert torch.equal(torch.cat(drafted, 1), extended)


def drawn_from_one_law(count: int, threads: int, sampling: Sampling) -> tuple[list[int], Tensor]:
    """Tokens that are drafted behind one token by a generator's numbers, and the logits that they are drawn from."""
    session, before = session_of(model_of("gpt2", torch.float32), COMPILED, 5), torch.get_num_threads()
    generator, drawn = torch.Generator().manual_seed(2), list[int]()
    torch.set_num_threads(threads)
    try:
        for _ in range(count):
            made = session.draft([3], 1, sampling, torch.rand(1, 1, dtype=torch.float64, generator=generator))
            assert made is not None
            drawn.append(int(made[0]))
            session.rewind([1])
    finally:
        torch.set_num_threads(before)
    assert made is not None
    return drawn, made[1][0, 0]


def test_drawn_tokens_follow_the_law() -> None:
    """Single precision: 1,500 draws from one law, the exact one in fp64; a chi-square of its twelve largest tokens.

    Two threads wait for each other at every layer, for long where others compute, too: they draw 100 of the very same tokens.
    """
    sampling = Sampling(temperature=1.5)
    drawn, logits = drawn_from_one_law(1500, 1, sampling)
    law = sampling.probs(logits.double())
    counts = torch.bincount(torch.tensor(drawn), minlength=97).double()
    top = law.topk(12).indices
    expected = torch.cat((law[top], (1 - law[top].sum())[None])) * 1500
    found = torch.cat((counts[top], (1500 - counts[top].sum())[None]))
    assert float(((found - expected) ** 2 / expected).sum()) < 34.5  # of 12 degrees of freedom one in 1,700 is above
    shared, of_two = drawn_from_one_law(100, 2, sampling)
    torch.testing.assert_close(of_two, logits, rtol=1e-5, atol=1e-5)
    assert shared == drawn[:100]


def test_extreme_uniforms_draw_the_first_and_the_last_token_that_weighs() -> None:
    session, sampling = session_of(model_of("llama"), COMPILED, 5), Sampling(temperature=1.0, top_k=3)
    for uniform, place in ((0.0, 0), (1 - 2.0**-53, -1)):
        made = session.draft([3], 1, sampling, torch.tensor([[uniform]], dtype=torch.float64))
        assert made is not None
        kept = made[1][0, 0].topk(3).indices.sort().values
        assert int(made[0]) == int(kept[place])
        session.rewind([1])


def test_of_equal_logits_the_first_is_the_likeliest() -> None:
    model = model_of("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight.zero_()
    made = session_of(model, COMPILED, 5).draft([3], 2, Sampling(), None)
    assert made is not None
    assert made[0].tolist() == [[0, 0]]


def test_nothing_is_drawn_from_nan() -> None:
    """Plain decoding and greedy drafts refuse it; sampled drafts are any token, with a log-sum-exp that is NaN."""
    model = model_of("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    session, sampled, greedy = session_of(model, COMPILED, 5), Sampling(temperature=1.0), Sampling()
    inputs, uniforms = Inputs(((5, 6, 7),)), Uniforms([1], 4)
    for sampling in (sampled, greedy):
        with pytest.raises(NotFiniteError):
            Autoregressive().generate(session, inputs, sampling, uniforms, Stop(max_new_tokens=4))
    drafter = ModelDrafter(session)
    drafter.begin(inputs, [7], uniforms)
    proposal = drafter.propose([3], [0], sampled)
    assert (proposal.tokens < 97).all()
    assert proposal.log_sum_exp is not None
    assert proposal.log_sum_exp.isnan().all()
    drafter.begin(inputs, [7], uniforms)
    with pytest.raises(NotFiniteError):
        drafter.propose([3], [0], greedy)


@pytest.mark.parametrize("sampling", [SAMPLINGS["greedy"], SAMPLINGS["sampled"]], ids=["greedy", "sampled"])
def test_a_drafter_goes_on_behind_what_was_accepted(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of random outcomes, in one call each, against the same drafter over passes of torch's."""
    model, uniforms = model_of("llama"), Uniforms([4], 60)
    ours, torchs = (ModelDrafter(session_of(model, choice, 9)) for choice in (COMPILED, TORCH))
    generator, position = torch.Generator().manual_seed(8), 0
    monkeypatch.setattr(ours, "_draw_by_passes", lambda *_: pytest.fail("passes one by one"))
    for drafter in (ours, torchs):
        drafter.begin(Inputs(((5, 6, 7),)), [7], uniforms)
    for count in (4, 1, 3, 5, 2, 4):
        proposals = [drafter.propose([count], [position], sampling) for drafter in (ours, torchs)]
        assert torch.equal(proposals[0].tokens, proposals[1].tokens)
        if not sampling.greedy:
            pairs = ((one.logits, one.log_sum_exp) for one in proposals)
            torch.testing.assert_close(next(pairs), next(pairs), rtol=0, atol=1e-10)
        stood = int(torch.randint(count + 1, (1,), generator=generator))
        for drafter in (ours, torchs):
            drafter.commit(Outcome((stood,), (11,), (int(proposals[0].tokens[0, stood - 1]) if stood else None,)))
        position += stood + 1


@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5", "bart", "whisper"])
def test_whole_texts_are_those_of_passes(kind: str) -> None:
    """Speculative decoding, of two thirds of the target's layers as its draft, and plain decoding, by every sampling."""
    model, stop = model_of(kind), Stop(max_new_tokens=30)
    features = None
    if kind == "whisper":
        features = torch.randn(1, 8, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inputs = Inputs(((5, 6, 7),), features)
    for sampling in SAMPLINGS.values():
        made = []
        for choice in (COMPILED, TORCH):
            stack = stack_for(model, choice)
            target, draft = ModelSession(stack), ModelSession(stack, 2)
            method = DraftAndVerify(ModelDrafter(draft), SpeculativeSampling(), lambda: Constant(4))
            (found,) = method.generate(target, inputs, sampling, Uniforms([9], 30), stop)
            (plain,) = Autoregressive().generate(target, inputs, sampling, Uniforms([9], 30), stop)
            made.append((found.tokens, [step.num_accepted for step in found.steps], plain.tokens))
        assert made[0] == made[1]


def test_plain_decoding_is_that_of_passes() -> None:
    model, stop, inputs = model_of("gpt2"), Stop(max_new_tokens=40), Inputs(((5, 6, 7),))
    for sampling in SAMPLINGS.values():
        ours, torchs = (
            Autoregressive().generate(session_of(model, choice, 4), inputs, sampling, Uniforms([3], 40), stop)[0].tokens
            for choice in (COMPILED, TORCH)
        )
        assert ours == torchs


def test_what_is_no_single_call_is_left_alone() -> None:
    """None, and nothing cached: several rows, a first token that may not be all, a part of the head, more rows than chosen."""
    greedy = Sampling()
    several = session_of(model_of("llama"), COMPILED, 4, 4)
    config = WhisperConfig(**(WHISPER | {"begin_suppress_tokens": [5, 2], "suppress_tokens": [7]}))
    hears = WhisperForConditionalGeneration(config).double().eval()
    hears.generation_config.update(decoder_start_token_id=0, begin_suppress_tokens=[5, 2], suppress_tokens=[7])
    begins = ModelSession(stack_for(hears, COMPILED))
    begins.prefill(Inputs(((3, 4),), torch.randn(1, *begins.stack.feature_shape or (), dtype=torch.float64)))
    some = ModelSession(stack_for(model_of("llama"), COMPILED).over(torch.arange(9)))
    some.prefill(Inputs(((3, 4),)))
    many = ModelSession(stack_for(model_of("llama"), Choice(0, 3)))
    many.prefill(Inputs(((3, 4),)))
    for session, fed, count in ((several, [3], 2), (begins, [4], 2), (some, [4], 2), (many, [4, 5, 6, 7], 1)):
        before = list(session.lengths)
        assert session.draft(fed, count, greedy, None) is None
        assert session.lengths == before

    class Own(ModelSession):
        def extend(self, tokens: Tensor) -> Tensor:
            return -super().extend(tokens)

    turned = Own(stack_for(model_of("llama"), COMPILED))
    turned.prefill(Inputs(((3, 4),)))
    assert turned.draft([4], 2, greedy, None) is None
    begins.extend(torch.tensor([[4]]))  # the output has begun
    made = begins.draft([9], 3, greedy, None)
    assert made is not None
    assert made[1][..., 7].isneginf().all()


@pytest.mark.parametrize("is_part", [False, True], ids=["whole head", "shared tokens alone"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_translated_draft_draws_in_the_targets_tokens(sampling: Sampling, is_part: bool) -> None:
    """60 of the target's 80 tokens are the draft's, too, the others are spelled in two."""
    model, uniforms = model_of("llama"), uniforms_for(sampling)
    shared, theirs = torch.arange(10, 70), torch.randperm(97, generator=torch.Generator().manual_seed(1))[:60]
    own = dict(zip(shared.tolist(), theirs.tolist(), strict=True))
    pieces = tuple((own[token],) if token in own else (token, 5) for token in range(80))
    sessions = []
    for choice in (COMPILED, TORCH):
        stack = stack_for(model, choice)
        stack, ids = (stack.over(theirs), torch.arange(60)) if is_part else (stack, theirs)
        translation = Translation(shared, ids, pieces, prompt=lambda text: text, back=lambda text: text)
        sessions.append(TranslatedSession(ModelSession(stack), translation))
        sessions[-1].prefill(Inputs(((3, 4, 11),)))
    drawn = sessions[0].draft((11, 75), COUNT, sampling, uniforms)
    assert drawn is not None
    expected = by_passes(sessions[1], (11, 75), COUNT, sampling, uniforms)
    torch.testing.assert_close(drawn[:2], expected, rtol=0, atol=1e-10)
    for session in sessions:
        session.rewind([3])
    assert sessions[0].lengths == sessions[1].lengths
    again = torch.tensor([[12, 79, 30]])
    torch.testing.assert_close(*(session.extend(again) for session in sessions), rtol=0, atol=1e-10)


def test_what_the_calls_cannot_read_is_refused() -> None:
    """Whoever hands over other numbers than a decoder's own got what lay in memory, or no process any more."""
    session, sampled = session_of(model_of("llama"), COMPILED, 9), Sampling(temperature=1.0)
    tokens, before = torch.tensor([[7, 11, 3]]), list(session.lengths)
    for fed, count, uniforms in (([], 2, None), ([4], 0, None), ([4], 3, torch.rand(1, 2)), ([4], 1, torch.rand(2, 1))):
        with pytest.raises((InputError, TypeCheckError)):
            session.draft(fed, count, Sampling() if uniforms is None else sampled, uniforms)
        assert session.lengths == before
    with pytest.raises(InputError, match="2 rows of tokens: expected 1, as many as are cached"):
        session.extend(tokens.expand(2, -1))
    assert session.lengths == before
    right = session.extend(tokens)
    session.rewind([3])
    assert torch.equal(session.extend(tokens.int()), right)
    compiled = session.stack.compiled
    assert compiled is not None
    for hidden in (session.hidden.float(), session.hidden[..., :100]):
        with pytest.raises(InputError, match=r"expected torch\.float64 and 192 numbers a token"):
            compiled.head(hidden)
        session.rewind([3])
        with pytest.raises(InputError, match="hidden states"):
            session.run_layers(hidden, 0, 3)
        session.extend(tokens)


@pytest.mark.parametrize(("columns", "embedded"), [([3, 97], [3, 4]), ([3, -2], [3, 4]), ([3, 4], [3, 97]), ([3, 4], [-1, 4])])
def test_a_vocabulary_that_the_head_lacks_is_refused(columns: list[int], embedded: list[int]) -> None:
    """The loop would read what lies behind the logits, or the embeddings."""
    compiled = session_of(model_of("llama"), COMPILED, 4).stack.compiled
    assert compiled is not None
    with pytest.raises(IndexError, match="of a drafted vocabulary: expected numbers from"):
        compiled._check_drafted(Drafted(torch.tensor(columns), torch.tensor(embedded)))
    with pytest.raises(InputError, match="of a drafted vocabulary: expected 2 contiguous int64 numbers"):
        compiled._check_drafted(Drafted(torch.tensor([3, 4]), torch.tensor([3, 4], dtype=torch.int32)))
    compiled._check_drafted(Drafted(torch.tensor([96, -1]), torch.tensor([0, 96])))
    compiled._check_drafted(Drafted(torch.tensor([96, -1]), torch.tensor([0, 97])))  # of a token that is never drafted


def test_a_head_wider_than_the_embedding_decodes_plainly() -> None:
    """What it alone knows could be drawn but not be read again."""
    model = model_of("gpt2")
    wide = torch.nn.Linear(192, 100, bias=False, dtype=torch.float64)
    with torch.no_grad():
        wide.weight[:97] = model.get_output_embeddings().weight
        wide.weight[97:] = 0
    model.set_output_embeddings(wide)
    inputs, stop = Inputs(((5, 6, 7),)), Stop(max_new_tokens=8)
    ours, torchs = (
        Autoregressive().generate(session_of(model, choice, 4), inputs, Sampling(), Uniforms([1], 8), stop)[0].tokens
        for choice in (COMPILED, TORCH)
    )
    assert ours == torchs


def test_a_token_without_an_embedding_is_refused() -> None:
    session = session_of(model_of("llama"), COMPILED, 4)
    for token in (97, -1):
        with pytest.raises(IndexError, match=rf"tokens \[{token}.*\]: expected numbers from 0 to 96"):
            session.draft([token], 2, Sampling(), None)
        with pytest.raises(IndexError, match=rf"tokens \[{token}\]: expected numbers from 0 to 96"):
            session.extend(torch.tensor([[token]]))
