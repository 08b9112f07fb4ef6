"""Byte-level BPE tokenizers learned from a corpus, saved as a transformers tokenizer folder.

Byte-level: any text of any language survives encoding and decoding, whatever the training text was.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from harness.zoo.recipes import Family

# pad, then what ends a text; Llama's also begins with a token of its own, as the real ones' do.
SPECIAL = {
    "t5": {"pad_token": "<pad>", "eos_token": "</s>"},
    "llama": {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"},
    "gpt2": {"pad_token": "<pad>", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"},
}


def train_tokenizer(family: Family, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn at most ``vocab_size`` tokens, specials and the 256 bytes included. The same texts give the same tokenizer."""
    special = SPECIAL[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=family == "t5")
    tokenizer.decoder = _decoder(family)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dict.fromkeys(special.values())),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if template := {"t5": "$A </s>", "llama": "<s> $A"}.get(family):
        names = [word for word in template.split() if word in special.values()]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


def _decoder(family: Family) -> decoders.Decoder:
    """T5's texts stand alone, so the space that begins the first word goes again; other models continue a prompt."""
    if family != "t5":
        return decoders.ByteLevel()
    return decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
