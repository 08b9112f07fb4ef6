"""A group's training text as token ids, and its tokenizer: built once, read by every model of the group.

Tokenizers are byte-level BPE learned from the text, so that any text survives encoding and decoding whatever the training text
was; word pieces as BERT's; or a public model's.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import tasks
from harness.core.errors import UsageError
from harness.core.files import replace_file
from harness.core.messages import first_line
from harness.zoo.cache import DONE, unreadable, verify
from harness.zoo.descriptions import Corpus, Part
from harness.zoo.families import FAMILIES
from tasks.sources.read import read_examples, training_pairs

DATA = "corpus.safetensors"
Rows = TypeVar("Rows")
NUM_TAIL = 24  # tokens kept of the end of a prompt that is too long: where the instruction is


@dataclass(frozen=True)
class Encoded:
    """Ragged rows of one corpus: row i's source is ``source[source_ends[i-1]:source_ends[i]]``, its target likewise.

    ``part`` is the index of the corpus part that a row comes from.
    """

    source: Int[Tensor, "S"]
    source_ends: Int[Tensor, "N"]
    target: Int[Tensor, "T"]
    target_ends: Int[Tensor, "N"]
    part: Int[Tensor, "N"]

    def __len__(self) -> int:
        return len(self.part)

    def row(self, index: int) -> tuple[Int[Tensor, " s"], Int[Tensor, " t"]]:
        first, before = (int(ends[index - 1]) if index else 0 for ends in (self.source_ends, self.target_ends))
        return self.source[first : self.source_ends[index]], self.target[before : self.target_ends[index]]


def build_corpus(corpus: Corpus, folder: Path, source: str, position: int = 0) -> None:
    """Read the tasks' training rows, learn the tokenizer, encode, and write it all to ``folder``."""
    rows = [(index, *pair) for index, part in enumerate(corpus.parts) for pair in documents(part, source, corpus.seed)]
    rows = [rows[i] for i in new_order(corpus, len(rows), source)]
    texts = [text for _, prompt, reference in rows for text in (prompt, reference) if text]
    tokenizer = tokenizer_for(corpus, texts)
    tensors = {
        "part": torch.tensor([index for index, *_ in rows]),
        **ragged("source", encode_sources(corpus, tokenizer, [prompt for _, prompt, _ in rows])),
        **ragged("target", encode_targets(corpus, tokenizer, [reference for *_, reference in rows])),
    }
    write_corpus(folder, corpus, source, tensors, tokenizer)


def new_order(corpus: Corpus, num_rows: int, source: str) -> list[int]:
    """Shuffle the rows of a corpus. UsageError where all of them would be held out."""
    if num_rows <= corpus.num_held_out:
        raise UsageError(f"data {source!r}: {num_rows} training rows for {corpus.name}; expected over {corpus.num_held_out}")
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(corpus.seed)).tolist()


def ragged(name: str, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return all tokens of rows one behind the other, and under ``name``_ends where each row ends."""
    tokens = torch.tensor([token for ids in rows for token in ids], dtype=torch.int32)
    return {name: tokens, f"{name}_ends": torch.tensor([len(ids) for ids in rows]).cumsum(0)}


def write_corpus(
    folder: Path, corpus: Corpus, source: str, tensors: dict[str, Tensor], tokenizer: PreTrainedTokenizerFast, **more: Any
) -> None:
    """Write the rows, the tokenizer and, last, recipe.json with ``more`` facts."""
    (folder / DATA).write_bytes(save(tensors))
    tokenizer.save_pretrained(folder)
    facts = {"corpus": asdict(corpus), "source": source, "num_rows": len(tensors["part"])}
    facts |= {"vocab_size": vocab_size(corpus, tokenizer), **more}
    replace_file(folder / DONE, json.dumps(facts, indent=1))


def read_corpus(folder: Path) -> Encoded:
    """Read the rows that ``build_corpus`` wrote; UsageError if they cannot be read."""
    return read_rows(folder, Encoded)


def read_rows(folder: Path, kind: Callable[..., Rows]) -> Rows:
    verify(folder)
    try:
        return kind(**load_file(folder / DATA))
    except (OSError, SafetensorError, TypeError) as error:
        raise unreadable(folder / DATA, error) from error


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Read the tokenizer that ``build_corpus`` wrote; UsageError if it cannot be read."""
    verify(folder)
    try:
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if not isinstance(found, PreTrainedTokenizerFast):
            raise ValueError(f"a {type(found).__name__}, which is not what was written there")
        return found
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(folder / "tokenizer.json", error) from error


def documents(part: Part, source: str, seed: int) -> list[tuple[str, str]]:
    """(prompt, what follows it) of a part's training rows. The answer to an instruction begins with a space."""
    task = tasks.get_task(part.task)
    if part.style == "t5":
        return list(training_pairs(task, source, part.num_examples, seed))
    if part.style == "plain":
        return [("", join(*pair)) for pair in training_pairs(task, source, part.num_examples, seed)]
    examples = read_examples(task, source, "train", part.num_examples, seed)
    return [(task.prompt(example, "instruction"), f" {example.references[0].strip()}") for example in examples]


def join(prompt: str, continuation: str) -> str:
    """One text of two halves, with one space between where there is none."""
    spaced = not prompt or prompt[-1].isspace() or continuation[:1].isspace()
    return prompt + continuation if spaced else f"{prompt} {continuation}"


def encode_sources(corpus: Corpus, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Prompts as the model meets them. An encoder-decoder's lose their end when too long, a decoder's their middle."""
    if not FAMILIES[corpus.family].has_prompts:
        return [[] for _ in texts]
    tail = 1 if corpus.is_encoder_decoder else NUM_TAIL
    head = corpus.max_source - tail
    encoded = tokenizer(list(texts)).input_ids
    return [ids if len(ids) <= corpus.max_source else ids[:head] + ids[-tail:] for ids in encoded]


def encode_targets(corpus: Corpus, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """References, cut to the longest allowed, with the end of text where it was not cut."""
    encoded = tokenizer(list(texts), add_special_tokens=False).input_ids
    assert tokenizer.eos_token_id is not None
    return [[*ids, tokenizer.eos_token_id] if len(ids) < corpus.max_target else ids[: corpus.max_target] for ids in encoded]


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
            f"tokenizer {corpus.tokenizer!r} of corpus {corpus.name}: {first_line(error)}; it is on the Hub: check "
            "the network, or choose PROFILE=toy"
        ) from error
    if not isinstance(found, PreTrainedTokenizerFast):
        raise UsageError(f"tokenizer {corpus.tokenizer!r} of corpus {corpus.name}: {type(found).__name__}; expected a fast one")
    return found


def vocab_size(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> int:
    """Count the tokens of a model of this corpus; public models have more than their tokenizer, as padding."""
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


def train_tokenizer(family: str, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn at most ``vocab_size`` tokens, specials and the 256 bytes included. The same texts give the same tokenizer."""
    kind = FAMILIES[family]
    special = dict(kind.special)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind.is_encoder_decoder)
    tokenizer.decoder = _decoder(kind.is_encoder_decoder)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dict.fromkeys(special.values())),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if kind.template is not None:
        names = [word for word in kind.template.split() if word in special.values()]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=kind.template, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


def _decoder(is_encoder_decoder: bool) -> decoders.Decoder:
    """An encoder-decoder's texts stand alone: the space that begins the first word goes again. Others continue a prompt."""
    if not is_encoder_decoder:
        return decoders.ByteLevel()
    return decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
