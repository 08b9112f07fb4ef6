"""Recipes of a tiny Whisper pair: a target trained on toy speech, and a draft with its encoder, distilled from it.

As Distil-Whisper's (Gandhi et al. 2023, 3.1), the draft copies the target's encoder, which stays as it is, and begins with
some of its decoder's layers.
"""

from dataclasses import dataclass
from typing import Any

from harness.zoo.descriptions import Corpus, Part, Recipe
from tasks.sound import SAMPLE_RATE

TARGET, DRAFT = "whisper-target", "whisper-draft"


@dataclass(frozen=True, kw_only=True)
class SpeechCorpus(Corpus):
    """Recordings of tasks of speech as log-Mel features of ``window_s`` seconds, a frame every ``hop_length`` samples.

    Longer recordings of toy speech are cut into windows as they are for decoding, so that a model knows sentences that begin
    and end anywhere; longer real ones, and those whose transcript exceeds ``max_target`` tokens, are left out. With
    ``always_toy`` the models are trained on toy speech whatever the source of a run is: a few hours of real speech would not
    teach them.
    """

    num_mel_bins: int
    window_s: int
    hop_length: int
    always_toy: bool = True


@dataclass(frozen=True, kw_only=True)
class WhisperRecipe(Recipe):
    """A Whisper and how it is trained: ``batch_size`` recordings a step.

    Besides the next token, the encoder alone learns the transcript by connectionist temporal classification (Graves et al.
    2006) with ``ctc_weight`` of the loss, through a head that is then dropped: attention finds the words much sooner. Features
    are shifted by up to ``mel_shift`` bins, and bands and stretches of them are hidden (Park et al. 2019). With a ``teacher``
    the encoder is the teacher's and frozen, and the decoder learns the teacher's distributions.

    With ``muon_rate_scale`` the layers' matrices learn by Muon (Jordan et al. 2024), so many times as fast as the rest does by
    AdamW: after 1200 steps of the toy target a word error rate of 0.14 instead of 0.47. 0 is AdamW for all.
    """

    batch_size: int = 32
    ctc_weight: float = 0.5
    label_smoothing: float = 0.0
    muon_rate_scale: float = 2.0
    mel_shift: int = 1
    hidden_bins: int = 3
    hidden_frames: int = 6


def toy() -> list[WhisperRecipe]:
    """Some three minutes of one core for the target and half a one for the draft, which cannot begin before the target is done;
    the recordings take another. Eight layers, so that drafting with one pays."""
    corpus = _corpus(368, 4000, num_held_out=160)
    shared: dict[str, Any] = {
        "width": 128, "ff_width": 256, "num_heads": 4, "num_encoder_layers": 2, "learning_rate": 2.5e-3, "batch_size": 16,
    }  # fmt: skip
    target = _recipe(TARGET, corpus, num_layers=8, steps=1300, shallow_frac=0.6, shallow_layers=2, **shared)
    return [target, _recipe(DRAFT, corpus, num_layers=1, steps=500, teacher=target, **shared)]


def tiny() -> list[WhisperRecipe]:
    """The same shapes, tiny: seconds, for tests and continuous integration. They learn next to nothing."""
    corpus = _corpus(320, 64, num_held_out=8, num_mel_bins=16)
    shared: dict[str, Any] = {
        "width": 32, "ff_width": 64, "num_heads": 2, "num_encoder_layers": 1, "learning_rate": 5e-3, "batch_size": 8,
    }  # fmt: skip
    target = _recipe(TARGET, corpus, num_layers=2, steps=30, **shared)
    return [target, _recipe(DRAFT, corpus, num_layers=1, steps=15, teacher=target, **shared)]


def paper() -> list[WhisperRecipe]:
    """Shapes of whisper-small.en and distil-small.en, trained on LibriSpeech.

    Differs from the paper: its pairs are the public checkpoints, which profile paper loads; these recipes train such a pair
    from nothing, on a thousandth of what Whisper has heard.
    """
    corpus = SpeechCorpus(
        name="whisper", family="whisper", parts=_parts(("librispeech-clean", 28_000), ("librispeech-other", 140_000)),
        vocab_size=51_864, max_source=1, max_target=200, num_held_out=1000, tokenizer="openai/whisper-small.en",
        num_mel_bins=80, window_s=30, hop_length=160, always_toy=False,
    )  # fmt: skip
    shared: dict[str, Any] = {
        "width": 768, "ff_width": 3072, "num_heads": 12, "num_encoder_layers": 12, "learning_rate": 5e-4, "batch_size": 64,
        "position_limit": 448, "wants_gpu": True, "hidden_bins": 27, "hidden_frames": 100, "mel_shift": 0,
        "muon_rate_scale": 0.0,
    }  # fmt: skip
    target = _recipe(TARGET, corpus, num_layers=12, steps=100_000, **shared)
    return [target, _recipe(DRAFT, corpus, num_layers=4, steps=30_000, teacher=target, **shared)]


def _recipe(name: str, corpus: SpeechCorpus, **sizes: Any) -> WhisperRecipe:
    defaults: dict[str, Any] = {"position_limit": 64, "warmup_frac": 0.08, "weight_decay": 0.02}
    frames = corpus.window_s * SAMPLE_RATE // corpus.hop_length
    tokens = {"batch_tokens": sizes.get("batch_size", 32) * frames // 2}
    return WhisperRecipe(name=name, corpus=corpus, family="whisper", **(defaults | tokens | sizes))


def _corpus(vocab_size: int, num_examples: int, num_held_out: int, num_mel_bins: int = 40) -> SpeechCorpus:
    """Half of it "clean", an eighth talks. Three seconds, which nearly every sentence fits, at 50 frames a second, half of
    Whisper's: eSpeak's phonemes are long enough."""
    eighth = num_examples // 8
    parts = _parts(
        ("librispeech-clean", 4 * eighth), ("librispeech-other", 2 * eighth), ("common-voice", eighth), ("tedlium", eighth)
    )  # fmt: skip
    return SpeechCorpus(
        name="whisper", family="whisper", parts=parts, vocab_size=vocab_size, max_source=1, max_target=48,
        num_held_out=num_held_out, num_mel_bins=num_mel_bins, window_s=3, hop_length=320,
    )  # fmt: skip


def _parts(*counts: tuple[str, int]) -> tuple[Part, ...]:
    return tuple(Part(task=task, num_examples=count, style="plain") for task, count in counts)
