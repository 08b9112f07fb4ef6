"""A group's training text as token ids: built once, read by every model of the group."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import tasks
from harness.errors import UsageError
from harness.zoo.cache import DONE, replace_file, unreadable
from harness.zoo.descriptions import Corpus, Part
from harness.zoo.tokenizers import tokenizer_for, vocab_size

DATA = "corpus.safetensors"
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

    def row(self, index: int) -> tuple[Int[Tensor, "s"], Int[Tensor, "t"]]:
        first, before = (int(ends[index - 1]) if index else 0 for ends in (self.source_ends, self.target_ends))
        return self.source[first : self.source_ends[index]], self.target[before : self.target_ends[index]]


def build_corpus(corpus: Corpus, source: str, folder: Path) -> None:
    """Read the tasks' training rows, learn the tokenizer, encode, and write it all to ``folder``."""
    rows = [(index, *pair) for index, part in enumerate(corpus.parts) for pair in documents(part, source, corpus.seed)]
    if len(rows) <= corpus.num_held_out:
        raise UsageError(f"data {source!r}: {len(rows)} training rows for {corpus.name}; expected over {corpus.num_held_out}")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(corpus.seed)).tolist()
    rows = [rows[i] for i in order]
    texts = [text for _, prompt, reference in rows for text in (prompt, reference) if text]
    tokenizer = tokenizer_for(corpus, texts)
    sources = encode_sources(corpus, tokenizer, [prompt for _, prompt, _ in rows])
    targets = encode_targets(corpus, tokenizer, [reference for *_, reference in rows])
    tensors = {"part": torch.tensor([index for index, *_ in rows])}
    for name, lists in (("source", sources), ("target", targets)):
        tensors[name] = torch.tensor([token for ids in lists for token in ids], dtype=torch.int32)
        tensors[f"{name}_ends"] = torch.tensor([len(ids) for ids in lists]).cumsum(0)
    (folder / DATA).write_bytes(save(tensors))
    tokenizer.save_pretrained(folder)
    facts = {"corpus": asdict(corpus), "source": source, "num_rows": len(rows), "vocab_size": vocab_size(corpus, tokenizer)}
    replace_file(folder / DONE, json.dumps(facts, indent=1).encode())


def read_corpus(folder: Path) -> Encoded:
    """What ``build_corpus`` wrote; UsageError if it cannot be read."""
    try:
        return Encoded(**load_file(folder / DATA))
    except (OSError, SafetensorError, TypeError) as error:
        raise unreadable(folder / DATA, error) from error


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that ``build_corpus`` wrote; UsageError if it cannot be read."""
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
        return list(task.training_pairs(source, part.num_examples, seed))
    if part.style == "plain":
        return [("", join(*pair)) for pair in task.training_pairs(source, part.num_examples, seed)]
    examples = task.examples(source, "train", part.num_examples, seed)
    return [(task.prompt(example, "instruction"), f" {example.references[0].strip()}") for example in examples]


def join(prompt: str, continuation: str) -> str:
    """One text of two halves, with one space between where there is none."""
    spaced = not prompt or prompt[-1].isspace() or continuation[:1].isspace()
    return prompt + continuation if spaced else f"{prompt} {continuation}"


def encode_sources(corpus: Corpus, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Prompts as the model meets them. An encoder-decoder's lose their end when too long, a decoder's their middle."""
    if corpus.family == "gpt2":
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
