"""Whisper's stack and session against transformers' own forward pass and ``generate``, in fp64."""

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from played_graphs import Graphs
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

from methods.autoregressive import Autoregressive
from methods.beam import BeamSearch
from methods.errors import InputError
from methods.models import stack_for
from methods.models.whisper import forced_tokens
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.beam import SpeculativeBeamSearch
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.overlap import overlap
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant, Heuristic
from methods.static import Room, StaticSession
from methods.transformers_assisted import lend_model
from methods.transformers_generate import TransformersGenerate
from methods.types import Drafter, Generation, Inputs, Stop

VOCAB, MELS, FRAMES, EOS = 40, 8, 24, 2
SUPPRESSED, NEVER_FIRST = [7, 8, 31, 36], [EOS, 9, 20]
SETTINGS = {
    "decoder_start_token_id": 36,
    "pad_token_id": 0,
    "eos_token_id": EOS,
    "lang_to_id": {"<|en|>": 37},
    "task_to_id": {"transcribe": 38},
    "no_timestamps_token_id": VOCAB - 1,  # transformers takes what is above it for timestamps
    "is_multilingual": True,
    "suppress_tokens": SUPPRESSED,
    "begin_suppress_tokens": NEVER_FIRST,
    "language": "en",
    "task": "transcribe",
    "return_timestamps": False,
    "max_length": 60,
}
NewSession = Callable[[WhisperForConditionalGeneration], ModelSession]
TOLERANCE = {"rtol": 0.0, "atol": 1e-9}
GREEDY, DRAWN = Sampling(), Sampling(temperature=1.0, top_k=20)


def build(
    seed: int = 0, layers: int = 3, limit: int = 60, dtype: torch.dtype = torch.float64
) -> WhisperForConditionalGeneration:
    """Every parameter random; the head is not the embedding, so that a text wanders."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = WhisperConfig(
            vocab_size=VOCAB, num_mel_bins=MELS, d_model=32, encoder_layers=2, decoder_layers=layers, encoder_ffn_dim=40,
            encoder_attention_heads=2, decoder_attention_heads=4, decoder_ffn_dim=40, max_source_positions=FRAMES // 2,
            max_target_positions=limit, pad_token_id=0, bos_token_id=1, eos_token_id=EOS, decoder_start_token_id=36,
            suppress_tokens=None, begin_suppress_tokens=None,
        )  # fmt: skip
        model = WhisperForConditionalGeneration(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.25 if parameter.dim() > 1 else 0.1)
        model.proj_out.weight = torch.nn.Parameter(torch.randn(VOCAB, 32) * 0.5)
    model.generation_config = GenerationConfig(**SETTINGS)
    return model.to(dtype)


def laid_out(model: WhisperForConditionalGeneration, most_new: int = 2) -> StaticSession:
    return StaticSession(stack_for(model), Room(4, 4, 40), most_new, Graphs())


def session_of(model: WhisperForConditionalGeneration) -> ModelSession:
    return ModelSession(stack_for(model))


def inputs_for(session: ModelSession, batch: int, seed: int = 5) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, MELS, FRAMES, dtype=torch.float64, generator=generator)
    return Inputs((session.stack.opening,) * batch, features)


def expected_logits(session: ModelSession, text: Sequence[int], features: torch.Tensor) -> torch.Tensor:
    """transformers' logits [n, V] of a text behind the forced tokens, what is suppressed at minus infinity."""
    opening = list(session.stack.opening)
    tokens = torch.tensor([[*opening, *text]])
    logits = session.stack.model(input_features=features[None], decoder_input_ids=tokens, use_cache=False).logits[0].detach()
    logits = logits[len(opening) - 1 :].index_fill(1, torch.tensor(SUPPRESSED), float("-inf"))
    logits[0, NEVER_FIRST] = float("-inf")
    return logits


def test_a_head_of_fewer_tokens_suppresses_what_the_whole_one_does() -> None:
    """As a draft over frequent tokens has it; of what is suppressed, one everywhere and two where an output begins."""
    model, tokens = build(), torch.tensor([EOS, 3, 7, 9, 12, 33])
    whole, some = session_of(model), ModelSession(stack_for(model).over(tokens))
    inputs, fed = inputs_for(whole, 1), torch.tensor([[12, 33]])
    found = []
    for session in (whole, some):
        pending = session.prefill(inputs)
        found.append(torch.cat([session.extend(torch.tensor([pending])), session.extend(fed)], 1)[0])
    torch.testing.assert_close(found[1], found[0][:, tokens], **TOLERANCE)
    assert found[1].isinf().tolist() == [
        [True, False, True, True, False, False],
        *[[False, False, True, False, False, False]] * 2,
    ]


def decode(session: ModelSession, inputs: Inputs, stop: Stop, sampling: Sampling = GREEDY, first: int = 0) -> list[Generation]:
    uniforms = Uniforms(range(first, first + inputs.batch), stop.max_new_tokens)
    return Autoregressive().generate(session, inputs, sampling, uniforms, stop)


def transformers_text(
    model: WhisperForConditionalGeneration, features: torch.Tensor, max_new_tokens: int, eos: int = EOS, **other
) -> list[int]:
    """What ``generate`` writes behind the forced tokens; it drops a last EOS, which is put back where there was one."""
    model.generation_config.eos_token_id = eos
    out = model.generate(features[None], max_new_tokens=max_new_tokens, do_sample=False, **other)[0].tolist()
    return out if len(out) == max_new_tokens else [*out, eos]


@pytest.mark.parametrize("new_session", [session_of, laid_out])
def test_extend_rewind_and_select_equal_a_fresh_pass(new_session: NewSession) -> None:
    session = new_session(build())
    inputs, generator = inputs_for(session, 3), random.Random(0)
    pending = session.prefill(inputs)
    assert pending == [39] * 3
    assert session.lengths == [(3,) * 3] * session.num_layers
    texts: list[list[int]] = [[], [], []]
    features = list(inputs.features)
    tokens = [[token] for token in pending]
    for rows in (None, [2, 0, 1], [0, 2, 2, 1], None, [3, 1], [1]):
        logits = session.extend(torch.tensor(tokens))
        for row, new in enumerate(tokens):
            texts[row] += new if texts[row] or new != [39] else []
            whole = expected_logits(session, texts[row], features[row])
            torch.testing.assert_close(logits[row], whole[-len(new) :], **TOLERANCE)
        counts = [generator.randrange(min(2, len(text)) + 1) for text in texts]
        session.rewind(counts)
        texts = [text[: len(text) - count] for text, count in zip(texts, counts, strict=True)]
        if rows is not None:
            session.select(rows)
            texts, features = [list(texts[row]) for row in rows], [features[row] for row in rows]
        tokens = [[generator.randrange(10, 19) for _ in range(2)] for _ in texts]


@pytest.mark.parametrize("new_session", [session_of, laid_out])
def test_a_rewound_first_token_is_drawn_under_the_same_rule_again(new_session: NewSession) -> None:
    session = new_session(build())
    pending = session.prefill(inputs_for(session, 1))
    first = session.extend(torch.tensor([pending])).clone()
    session.rewind([1])
    both = session.extend(torch.tensor([[pending[0], 12]]))
    torch.testing.assert_close(both[:, :1], first, **TOLERANCE)
    assert torch.isinf(both[0, 0, NEVER_FIRST]).all()
    assert not torch.isinf(both[0, 1, NEVER_FIRST]).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_fixed_shapes_give_the_same_tokens(sampling: Sampling, dtype: torch.dtype) -> None:
    """Plain and with a draft; one session for texts of other recordings, one after another."""
    target, draft = build(dtype=dtype), build(seed=1, layers=1, dtype=dtype)
    drafted = DraftAndVerify(ModelDrafter(session_of(draft)), SpeculativeSampling(), partial(Constant, 3))
    in_place = DraftAndVerify(ModelDrafter(laid_out(draft)), SpeculativeSampling(), partial(Constant, 3))
    plain, session, found = session_of(target), laid_out(target, 4), list[tuple]()
    for seed in (5, 6):
        inputs, stop = inputs_for(plain, 3, seed), Stop(max_new_tokens=20, token_ids=frozenset([EOS]))
        inputs = Inputs(inputs.prompts, inputs.features.to(dtype))
        for expected, made, ours in ((Autoregressive(), Autoregressive(), plain), (drafted, in_place, plain)):
            uniforms = [Uniforms([1, 2, 3], 20) for _ in range(2)]
            whole = expected.generate(ours, inputs, sampling, uniforms[0], stop)
            other = made.generate(session, inputs, sampling, uniforms[1], stop)
            assert [one.tokens for one in other] == [one.tokens for one in whole]
            found.append(tuple(tuple(one.tokens) for one in whole))
    assert len(set(found)) > 1, "recordings differ, and so do their texts"


def test_the_encoder_runs_once_and_equals_transformers() -> None:
    model = build()
    session = session_of(model)
    inputs, calls = inputs_for(session, 2), []
    hear = session.stack.hear
    session.stack.hear = lambda features: calls.append(1) or hear(features)
    decode(session, inputs, Stop(max_new_tokens=8))
    assert calls == [1]
    expected = model.model.encoder(inputs.features).last_hidden_state
    torch.testing.assert_close(session.encoded, expected, **TOLERANCE)


def test_one_recording_in_many_rows_is_heard_once() -> None:
    session = session_of(build())
    one, calls = inputs_for(session, 1), []
    hear = session.stack.hear
    session.stack.hear = lambda features: calls.append(len(features)) or hear(features)
    stop, drawn = Stop(max_new_tokens=8), Sampling(temperature=1.0)
    rows = Autoregressive().generate(
        session, Inputs(one.prompts * 3, one.features.expand(3, -1, -1)), drawn, Uniforms(range(3), 8), stop
    )
    assert calls == [1]
    alone = [Autoregressive().generate(session, one, drawn, Uniforms([seed], 8), stop)[0].tokens for seed in range(3)]
    assert [row.tokens for row in rows] == alone
    assert len(set(map(tuple, alone))) == 3


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 0.05), (torch.bfloat16, 0.3)])
def test_half_precision_is_near_single(dtype: torch.dtype, most: float) -> None:
    """As near as the dtype's 11 or 8 bits allow after all layers; processors sum in different orders."""
    session, exact = session_of(build(dtype=dtype)), session_of(build())
    inputs = inputs_for(session, 1)
    logits, wanted = (one.extend(torch.tensor([one.prefill(inputs)])).double() for one in (session, exact))
    finite = wanted.isfinite()
    assert torch.equal(finite, logits.isfinite())
    assert (logits - wanted)[finite].abs().max() < most


def test_greedy_equals_transformers_generate() -> None:
    model = build()
    session = session_of(model)
    assert session.stack.opening == (36, 37, 38, 39)
    inputs = inputs_for(session, 6)
    free = [row.tokens for row in decode(session, inputs, Stop(max_new_tokens=16))]
    eos = max(range(VOCAB), key=lambda token: len({row.index(token) if token in row else 16 for row in free}))
    rows = decode(session, inputs, Stop(max_new_tokens=16, token_ids=frozenset({eos})))
    for row, features in zip(rows, inputs.features, strict=True):
        assert row.tokens == transformers_text(model, features, 16, eos)
    assert "eos" in {row.stop_reason for row in rows}
    assert len({tuple(row.tokens) for row in rows}) > 3


@pytest.mark.filterwarnings("ignore")
def test_beams_equal_transformers_generate() -> None:
    model = build()
    session = session_of(model)
    inputs, stop = inputs_for(session, 4), Stop(max_new_tokens=12, token_ids=frozenset({EOS}))
    uniforms = Uniforms(range(4), 12)
    rows = BeamSearch(3).generate(session, inputs, GREEDY, uniforms, stop)
    for row, features in zip(rows, inputs.features, strict=True):
        assert row.tokens == transformers_text(model, features, 12, num_beams=3)
    fast = SpeculativeBeamSearch(session_of(build(1, layers=1)), 3, 6, 2).generate(session, inputs, GREEDY, uniforms, stop)
    assert [row.tokens for row in fast] == [row.tokens for row in rows]


@pytest.mark.parametrize("draft_seed", [0, 1])
def test_a_draft_with_its_own_encoder_changes_nothing_when_greedy(draft_seed: int) -> None:
    """Seed 0 has the target's own first layer and encoder, seed 1 is another model."""
    session, draft = session_of(build()), session_of(build(draft_seed, layers=1))
    inputs, stop = inputs_for(session, 4), Stop(max_new_tokens=16, token_ids=frozenset({EOS}))
    plain = decode(session, inputs, stop)
    method = DraftAndVerify(ModelDrafter(draft), SpeculativeSampling(), lambda: Heuristic(3))
    assert isinstance(method.drafter, Drafter)
    rows = method.generate(session, inputs, GREEDY, Uniforms(range(4), 16), stop)
    assert [row.tokens for row in rows] == [row.tokens for row in plain]
    assert draft.encoded is not None
    assert (draft.encoded - session.encoded).abs().max() > 0.1 or draft_seed == 0
    alone = [method.generate(session, inputs.row(i), GREEDY, Uniforms([i], 16), stop)[0].tokens for i in range(4)]
    assert alone == [row.tokens for row in plain]


def test_a_model_that_drafts_for_itself_has_all_its_drafts_accepted_when_it_samples() -> None:
    session, draft = session_of(build()), session_of(build())
    inputs, stop = inputs_for(session, 3), Stop(max_new_tokens=24)
    method = DraftAndVerify(ModelDrafter(draft), SpeculativeSampling(), lambda: Heuristic(3))
    rows = method.generate(session, inputs, DRAWN, Uniforms(range(3), 24), stop)
    assert all(step.num_accepted == len(step.drafted) for row in rows for step in row.steps)
    assert not {token for row in rows for token in row.tokens} & set(SUPPRESSED)
    assert not {row.tokens[0] for row in rows} & set(NEVER_FIRST)


def test_overlap_of_a_model_with_itself_is_one_and_with_another_less() -> None:
    session = session_of(build())
    inputs = inputs_for(session, 1)
    text = decode(session, inputs, Stop(max_new_tokens=12))[0].tokens
    drafters = [ModelDrafter(session_of(build())), ModelDrafter(session_of(build(1)))]
    same, other = (one[1.0] for one in overlap(session, drafters, inputs, text, DRAWN))
    torch.testing.assert_close(same, torch.ones_like(same), **TOLERANCE)
    assert other.shape == same.shape
    assert 0 < other.mean() < 0.9


def test_the_position_limit_ends_a_row() -> None:
    session = session_of(build(limit=12))
    row = decode(session, inputs_for(session, 1), Stop(max_new_tokens=30))[0]
    assert len(row.tokens) == 12 - 3
    assert row.stop_reason == "length"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (36, 37, 38, 39)),
        ({"is_multilingual": False}, (36, 39)),
        ({"lang_to_id": None, "no_timestamps_token_id": None}, (36,)),
    ],
)
def test_forced_tokens_are_the_checkpoints(changes: dict, expected: tuple[int, ...]) -> None:
    assert forced_tokens(GenerationConfig(**(SETTINGS | changes))) == expected


def test_a_checkpoint_without_english_is_refused() -> None:
    for languages in ({"<|de|>": 37}, {}):
        with pytest.raises(InputError, match=r"lang_to_id has no '<\|en\|>' or task_to_id no 'transcribe'; expected both"):
            forced_tokens(GenerationConfig(**(SETTINGS | {"lang_to_id": languages})))


def test_features_of_another_shape_or_for_a_model_that_reads_are_refused(tiny) -> None:
    session = session_of(build())
    opening = session.stack.opening
    with pytest.raises(InputError, match=r"features None: this model hears, expected \[1, 8, 24\]"):
        session.prefill(Inputs((opening,)))
    with pytest.raises(InputError, match=r"features \(1, 8, 30\): expected \[rows, mels, frames\] \(1, 8, 24\)"):
        session.prefill(Inputs((opening,), torch.zeros(1, MELS, 30)))
    reader = ModelSession(stack_for(tiny.build("llama")))
    with pytest.raises(InputError, match=r"features \(1, 8, 24\): this model does not hear, expected none"):
        reader.prefill(Inputs(((3, 4),), torch.zeros(1, MELS, FRAMES)))


@pytest.mark.parametrize("eos", [frozenset({EOS}), None], ids=["rare", "common"])
def test_transformers_generate_is_greedy_decoding_alone_and_with_an_assistant(eos: frozenset[int] | None) -> None:
    """Seed 0 has the target's own encoder and first layer, seed 1 is another model. Nothing of either model's settings is
    left changed."""
    model = build()
    session, inputs = session_of(model), inputs_for(build_session := session_of(build()), 4)
    free = [row.tokens for row in decode(build_session, inputs, Stop(max_new_tokens=18))]
    common = max(range(VOCAB), key=lambda token: sum(token in row[1:] for row in free))
    stop = Stop(max_new_tokens=18, token_ids=frozenset({common}) if eos is None else eos)
    expected = decode(session, inputs, stop)
    drafts = [stack_for(build(seed, layers=1)) for seed in (0, 1)]
    assistants = [
        partial(lend_model, draft=draft, gamma=3, schedule=schedule)
        for draft in drafts
        for schedule in ("constant", "heuristic")
    ]
    for assistant in (None, *assistants):
        method = TransformersGenerate(assistance=assistant)
        made = method.generate(session, inputs, GREEDY, Uniforms(range(4), 18), stop)
        assert [(row.tokens, row.stop_reason) for row in made] == [(row.tokens, row.stop_reason) for row in expected]
    assert "generate" not in vars(model) | vars(drafts[0].model)
    assert model.generation_config.to_dict() == build().generation_config.to_dict()
    assert drafts[0].model.generation_config.to_dict() == build(layers=1).generation_config.to_dict()


@pytest.mark.filterwarnings("ignore")
def test_transformers_beams_are_beam_search() -> None:
    session, stop = session_of(build()), Stop(max_new_tokens=12, token_ids=frozenset({EOS}))
    inputs, uniforms = inputs_for(session, 3), Uniforms(range(3), 12)
    rows = BeamSearch(3).generate(session, inputs, GREEDY, uniforms, stop)
    made = TransformersGenerate(3).generate(session, inputs, GREEDY, uniforms, stop)
    assert [row.tokens for row in made] == [row.tokens for row in rows]
