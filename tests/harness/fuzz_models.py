"""Models of a few hundred weights, untrained, for tests that call whole commands and look at nothing that a model says."""

from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from harness.zoo.corpus import train_tokenizer

STORY = " ".join("abcdefghijklmnopqrstuvwxyz") + "\n\n"


def save_models(folder: Path) -> dict[str, str]:
    """A GPT-2 target and draft and a T5, with one tokenizer of bytes a kind; and a text file. By name, their paths."""
    gpt, t5 = train_tokenizer("gpt2", [STORY], 300), train_tokenizer("t5", [STORY], 300)
    made = {"data": str(folder / "story.txt")}
    (folder / "story.txt").write_text(STORY * 5, encoding="utf8")
    for name, layers in (("target", 2), ("draft", 1)):
        torch.manual_seed(layers)
        end = {"eos_token_id": gpt.eos_token_id, "bos_token_id": gpt.bos_token_id, "pad_token_id": gpt.pad_token_id}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(gpt), n_positions=512, n_embd=8, n_layer=layers, n_head=1, **end))
        model.save_pretrained(folder / name)
        gpt.save_pretrained(folder / name)
        made[name] = str(folder / name)
    end = {"eos_token_id": t5.eos_token_id, "pad_token_id": t5.pad_token_id, "decoder_start_token_id": t5.pad_token_id}
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=len(t5), d_model=8, d_kv=8, d_ff=16, num_layers=1, num_heads=1, **end)
    )
    model.save_pretrained(folder / "t5")
    t5.save_pretrained(folder / "t5")
    return made | {"t5": str(folder / "t5")}


def save_whisper(folder: Path) -> Path:
    """A Whisper as an English-only one of the paper's is: its own classes, settings and forced tokens, tiny and random."""
    words = ["a", "b", "\u0120"]
    specials = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    tokenizer = WhisperTokenizer(vocab={word: index for index, word in enumerate([*words, specials[0]])}, merges=[])
    tokenizer.add_tokens(specials[1:], special_tokens=True)
    config = WhisperConfig(
        vocab_size=8, num_mel_bins=16, d_model=16, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        encoder_attention_heads=2, decoder_attention_heads=2, max_source_positions=100, max_target_positions=20,
        pad_token_id=3, bos_token_id=3, eos_token_id=3, decoder_start_token_id=4, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = WhisperForConditionalGeneration(config)
    settings = {"eos_token_id": 3, "pad_token_id": 3, "begin_suppress_tokens": [2, 3], "is_multilingual": False}
    model.generation_config = GenerationConfig(decoder_start_token_id=4, no_timestamps_token_id=7, **settings)
    for part in (model, tokenizer, WhisperFeatureExtractor(feature_size=16, chunk_length=2)):
        part.save_pretrained(folder)
    return folder
