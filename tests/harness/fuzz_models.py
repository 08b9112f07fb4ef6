"""Models of a few hundred weights, untrained, for tests that call whole commands and look at nothing that a model says."""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

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
