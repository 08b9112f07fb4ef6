"""Tokenizers of corpora: byte-level BPE learned from the text, BERT-like word pieces, or a public model's.

Byte-level: any text of any language survives encoding and decoding, whatever the training text was.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from harness.errors import UsageError
from harness.zoo.descriptions import ENCODER_DECODERS, Corpus, Family

# pad, then what ends a text; Llama's also begins with a token of its own, as the real ones' do.
SPECIAL = {
    "t5": {"pad_token": "<pad>", "eos_token": "</s>"},
    "marian": {"pad_token": "<pad>", "eos_token": "</s>"},
    "llama": {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"},
    "whisper": {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"},
    "gpt2": {"pad_token": "<pad>", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"},
}


def tokenizer_for(corpus: Corpus, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """The corpus's own tokenizer, learned from its text, or the public one that it names."""
    if corpus.tokenizer == "bpe":
        return train_tokenizer(corpus.family, texts, corpus.vocab_size)
    if corpus.tokenizer == "wordpiece":
        return train_wordpiece(texts, corpus.vocab_size)
    try:
        found = AutoTokenizer.from_pretrained(corpus.tokenizer)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"tokenizer {corpus.tokenizer!r} of corpus {corpus.name}: {str(error).splitlines()[0]}; it is on the Hub: check "
            "the network, or choose PROFILE=toy"
        ) from error
    if not isinstance(found, PreTrainedTokenizerFast):
        raise UsageError(f"tokenizer {corpus.tokenizer!r} of corpus {corpus.name}: {type(found).__name__}; expected a fast one")
    return found


def vocab_size(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> int:
    """How many tokens a model of this corpus has; public models pad theirs beyond the tokenizer's."""
    return len(tokenizer) if corpus.tokenizer in ("bpe", "wordpiece") else corpus.vocab_size


def train_wordpiece(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Lower-cased word pieces as BERT's (the paper's tokenization), with an end of text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[SEP]", "bos_token": "[SEP]"}
    names = list(dict.fromkeys(special.values()))
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


def train_tokenizer(family: Family, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn at most ``vocab_size`` tokens, specials and the 256 bytes included. The same texts give the same tokenizer."""
    special = SPECIAL[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=family in ENCODER_DECODERS)
    tokenizer.decoder = _decoder(family)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dict.fromkeys(special.values())),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if template := {"t5": "$A </s>", "marian": "$A </s>", "llama": "<s> $A"}.get(family):
        names = [word for word in template.split() if word in special.values()]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


def _decoder(family: Family) -> decoders.Decoder:
    """An encoder-decoder's texts stand alone: the space that begins the first word goes again. Others continue a prompt."""
    if family not in ENCODER_DECODERS:
        return decoders.ByteLevel()
    return decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
