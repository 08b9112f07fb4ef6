"""Pairs of different vocabularies: what two tokenizers share, and runs with tiny models of two."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, ModelSpec
from harness.exact.subjects import SIZES, own_subjects
from harness.models.fit import Models
from harness.models.loading import LoadedModel
from harness.models.translation import fewer, translation_of
from harness.run.build import build_drafter
from harness.run.replay.decisions import _first_choices_behind
from harness.run.replay.reading import NEAR_TIE_FLOAT32
from methods.session import ModelSession
from methods.speculative.options import SharedTokensOptions
from methods.speculative.translation import TextDrafter, shared_length
from methods.types import Inputs, TextSession

TEXTS = [
    "The old man went down to the river and the river was high.",
    "She said that the weather in März was colder than in April, naïve as it sounds.",
    "In the morning they walked along the road to the town where the others waited for them.",
]
LINES = TEXTS * 4


def byte_level(size: int, names: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=size, special_tokens=names, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=names[0], pad_token=names[0])


def sentencepiece(size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    names = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=size, special_tokens=names[:2] + names[2:]))
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="</s>")
    return made


def save(folder: Path, tokenizer: PreTrainedTokenizerFast, seed: int) -> Path:
    torch.manual_seed(seed)
    end = tokenizer.eos_token_id
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=end, eos_token_id=end, pad_token_id=end,
        initializer_range=0.3,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("pair")
    save(folder / "target", byte_level(420, ["<|end|>", "<|user|>"]), 0)
    save(folder / "draft", byte_level(330, ["</s>", "<|user|>", "<|other|>"]), 1)
    save(folder / "pieces", sentencepiece(360), 2)
    (folder / "test.txt").write_text("\n".join(" ".join([text] * 3) for text in TEXTS), encoding="utf8")
    return SimpleNamespace(folder=folder, **{name: load(folder / name) for name in ("target", "draft", "pieces")})


def load(folder: Path) -> LoadedModel:
    return Models().get(ModelSpec(name=str(folder), revision="1"))


@pytest.mark.parametrize("name", ["draft", "pieces"])
def test_shared_tokens_spell_the_same(pair: SimpleNamespace, name: str) -> None:
    """Told by the tokenizers' own decoding, which the comparison does not use."""
    target, draft = pair.target, getattr(pair, name)
    known = translation_of(target, draft)
    compared = 0
    for token, own in zip(known.target_ids.tolist(), known.draft_ids.tolist(), strict=True):
        assert known.pieces[token] == (own,)
        ours, theirs = (str(one.tokenizer.decode([number])) for one, number in ((target, token), (draft, own)))
        if "�" not in ours + theirs and token not in target.eos_token_ids:
            assert ours == theirs
            compared += 1
    assert compared > 60
    assert dict(zip(known.target_ids.tolist(), known.draft_ids.tolist(), strict=True))[0] == draft.tokenizer.eos_token_id


def test_what_is_not_shared_is_spelt_out(pair: SimpleNamespace) -> None:
    known = translation_of(pair.target, pair.draft)
    lacking = sorted(set(range(pair.target.vocab_size)) - set(known.target_ids.tolist()))
    assert len(lacking) > 20
    for token in lacking:
        assert pair.draft.tokenizer.decode(list(known.pieces[token])) == pair.target.tokenizer.decode([token])


def test_prompts_are_written_by_the_drafts_tokenizer(pair: SimpleNamespace) -> None:
    known = translation_of(pair.target, pair.draft)
    user = pair.target.tokenizer.convert_tokens_to_ids("<|user|>")
    prompt = (user, *pair.target.encode_continuation(TEXTS[1]), 0)
    own = pair.draft.tokenizer
    expected = [own.convert_tokens_to_ids("<|user|>"), *pair.draft.encode_continuation(TEXTS[1]), own.eos_token_id]
    assert list(known.prompt(prompt)) == expected


def run(pair: SimpleNamespace, tmp_path: Path, *words: str) -> int:
    folder = pair.folder
    where = ("--data", str(folder / "test.txt"), "--target", str(folder / "target"), "--records", str(tmp_path / "records"))
    size = ("--limit", "3", "--max-new-tokens", "20", "--quiet", "--threads", "1")
    command = ["run", "--task", "text", "--method", "speculative", *where, *size]
    return main([*command, *words])


@pytest.mark.parametrize("kind", ["tli", "slem"])
@pytest.mark.parametrize("name", ["draft", "pieces"])
def test_a_greedy_run_is_plain_decodings(
    pair: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture, name: str, kind: str
) -> None:
    status = run(pair, tmp_path, "--draft", str(pair.folder / name), "--drafter", kind, "--replay", "all")
    out, err = capsys.readouterr()
    document: Any = json.loads(out.splitlines()[-1])
    assert (status, document["audit"]["verdict"]) == (0, "identical"), err
    shared = len(translation_of(pair.target, getattr(pair, name)).target_ids)
    assert f"{shared:,} of {pair.target.vocab_size:,} tokens" in err


@pytest.mark.parametrize("name", ["draft", "pieces"])
def test_drafts_of_a_text_are_no_fault_however_many_tokens_were_asked_for(
    pair: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    """So many of the draft's tokens may be fewer of the target's: asked again for these alone, it ends with another."""
    words = ("--draft", str(pair.folder / name), "--drafter", "slem", "--temperature", "1", "--gamma", "6", "--replay", "all")
    status = run(pair, tmp_path, *words)
    out, err = capsys.readouterr()
    document: Any = json.loads(out.splitlines()[-1])
    assert (status, document["audit"]["replayed"]["faults"]) == (0, 0), err


def rewound_by_what_is_longer(patch: pytest.MonkeyPatch) -> None:
    """A kept cache is cut to the new text's length, not to where the two part."""
    nearest = TextDrafter._nearest

    def stale(own: TextDrafter, text: Sequence[int]) -> tuple[TextSession, list[int]]:
        if not own._known:
            return nearest(own, text)
        session, cached = own._known.pop()
        session.rewind([max(0, len(cached) - len(text))])
        return session, cached[: shared_length(cached, text[:-1])]

    patch.setattr(TextDrafter, "_nearest", stale)


def one_token_less(patch: pytest.MonkeyPatch) -> None:
    """The draft model does not see the text's last token."""
    propose = TextDrafter.propose
    patch.setattr(TextDrafter, "propose", lambda own, text, *given: propose(own, text[:-1], *given))


@pytest.mark.parametrize("temperature", ["0", "1"])
@pytest.mark.parametrize("fault", [rewound_by_what_is_longer, one_token_less])
def test_drafts_of_another_text_turn_a_run_red(
    pair: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
    temperature: str,
) -> None:
    """Fault: what a draft model of other tokens went on with was not read anew, and acceptance fell unseen."""
    fault(monkeypatch)
    words = ("--draft", str(pair.folder / "draft"), "--drafter", "slem", "--temperature", temperature, "--gamma", "4")
    status = run(pair, tmp_path, *words, "--replay", "all")
    document: Any = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (status, document["audit"]["verdict"]) == (1, "bug")
    assert "limits give: draft;" in document["audit"]["summary"]


@pytest.mark.parametrize("gap", [0.0, NEAR_TIE_FLOAT32 / 2, 2 * NEAR_TIE_FLOAT32])
def test_nobody_knows_what_follows_two_choices_that_are_near(gap: float) -> None:
    logits = torch.tensor([[[0.0, 1.0, 1.0 + gap]]])
    stack: Any = SimpleNamespace(device="cpu", model=lambda **given: SimpleNamespace(logits=logits, past_key_values=None))
    assert _first_choices_behind(stack, [5], 2) == ((2, 2) if gap > NEAR_TIE_FLOAT32 else None)


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_run_with_a_head_of_fewer_tokens_is_the_targets(
    pair: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture, temperature: str
) -> None:
    """The 90 that the draft numbers lowest, and the end of text."""
    words = ("--draft", str(pair.folder / "draft"), "--drafter", "tli", "--draft-tokens", "90", "--temperature", temperature)
    status = run(pair, tmp_path, *words, "--replay", "all")
    out, err = capsys.readouterr()
    document: Any = json.loads(out.splitlines()[-1])
    assert (status, document["audit"]["verdict"] in ("identical", "same distribution", "not tested")) == (0, True), err
    assert "it drafts 90 of these alone" in err


def test_a_head_of_fewer_tokens_has_the_whole_heads_logits(pair: SimpleNamespace) -> None:
    stack, tokens = pair.draft.stack, torch.tensor([0, 7, 3, 300])
    whole, some = pair.draft.session(), ModelSession(stack.over(tokens))
    for session in (whole, some):
        session.prefill(Inputs(((5, 6, 7),)))
    fed = torch.tensor([[7, 300]])
    torch.testing.assert_close(some.extend(fed), whole.extend(fed)[..., tokens], rtol=0, atol=1e-6)
    assert stack.vocab_size == whole.vocab_size > some.vocab_size == 4


def test_a_drafter_of_fewer_tokens_gives_the_others_no_chance(pair: SimpleNamespace) -> None:
    """Its logits are the whole drafter's where it drafts, and minus infinity elsewhere."""
    models, draft = Models(), ModelSpec(name=str(pair.folder / "draft"), revision="1")
    target = models.get(ModelSpec(name=str(pair.folder / "target"), revision="1"))
    specs = [DrafterSpec(kind="tli", model=draft, options=SharedTokensOptions(draft_tokens=count)) for count in (None, 30)]
    laws = []
    for spec in specs:
        session = build_drafter(spec, target, models).session  # type: ignore[attr-defined]
        pending = session.prefill(Inputs((target.encode_continuation(TEXTS[0]),)))
        laws.append(session.extend(torch.tensor([pending]))[0, -1])
    kept = fewer(models.translation(target, models.get(draft)), 30, target.eos_token_ids).target_ids
    assert laws[1].isfinite().nonzero().flatten().tolist() == kept.tolist()
    torch.testing.assert_close(laws[1][kept], laws[0][kept], rtol=0, atol=1e-6)


def test_fewer_tokens_are_those_of_lowest_number_and_the_ends(pair: SimpleNamespace) -> None:
    known = translation_of(pair.target, pair.draft)
    few = fewer(known, 12, pair.target.eos_token_ids)
    kept = dict(zip(few.target_ids.tolist(), few.draft_ids.tolist(), strict=True))
    assert set(kept) >= set(pair.target.eos_token_ids) & set(known.target_ids.tolist())
    lowest = sorted(known.draft_ids.tolist())[:12]
    assert set(lowest) <= set(kept.values())
    assert all(own in lowest or token in pair.target.eos_token_ids for token, own in kept.items())
    assert all(known.pieces[token] == (own,) for token, own in kept.items())
    assert fewer(known, 10**6, pair.target.eos_token_ids).target_ids.tolist() == known.target_ids.tolist()


def test_a_sampled_run_is_replayed(pair: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = (
        "--draft",
        str(pair.folder / "draft"),
        "--drafter",
        "tli",
        "--replay",
        "all",
        "--temperature",
        "1",
        "--top-k",
        "20",
    )
    status = run(pair, tmp_path, *words)
    document: Any = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == 0
    assert document["audit"]["verdict"] != "bug"


def test_another_vocabulary_is_refused_with_what_helps(
    pair: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    status = run(pair, tmp_path, "--draft", str(pair.folder / "draft"))
    assert status == 2
    assert "--drafter tli" in capsys.readouterr().err


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_transformers_own_runs_beside_it(
    pair: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture, temperature: str
) -> None:
    words = ("--draft", str(pair.folder / "draft"), "--drafter", "tli", "--peer", "assistant", "--temperature", temperature)
    status = run(pair, tmp_path, *words)
    document: Any = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == 0
    [peer] = document["peers"]
    assert peer["tokens_per_step"]["value"] >= 1
    assert temperature == "1" or peer["audit"]["verdict"] == "identical"


def test_the_audit_of_such_a_pair_drafts_both_ways(
    pair: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folders = [str(pair.folder / name) for name in ("target", "draft")]
    kinds = {one.method.drafter.kind for one in own_subjects(*folders, "text", "toy", SIZES["own"]) if one.method.drafter}
    assert kinds == {"tli", "slem", "copy", "suffix", "random", "prompt-lookup"}
    words = [
        "--target",
        folders[0],
        "--draft",
        folders[1],
        "--data",
        str(pair.folder / "test.txt"),
        "--only",
        "speculative / tli / speculative",
    ]
    status = main(["audit", *words, "--samples", "60", "--prompts", "2", "--workers", "1", "--output", str(tmp_path)])
    said = capsys.readouterr().out
    assert status == 1, said  # 60 samples say nothing of sampled outputs
    missed = {line for line in said.splitlines() if line.startswith("control missed")}
    assert missed <= {"control missed: lost update in bfloat16"}, (
        "whether such logits change in half precision is the processor's"
    )
    red = [line for line in said.splitlines() if line.startswith("red")]
    assert red
    assert all(line.endswith(": unknown") and "temperature 0," not in line for line in red)


def test_words_that_spell_no_bytes_are_refused(pair: SimpleNamespace, tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"<|end|>": 0, "the": 1, "river": 2}, unk_token="<|end|>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    other = load(save(tmp_path / "words", PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|end|>"), 3))
    with pytest.raises(UsageError, match="do not say which bytes"):
        translation_of(pair.target, other)


def test_one_vocabulary_drafts_as_without_a_translation(pair: SimpleNamespace) -> None:
    known = translation_of(pair.target, pair.target)
    assert known.target_ids.tolist() == known.draft_ids.tolist() == list(range(pair.target.vocab_size))
