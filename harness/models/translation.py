"""What a draft model of another vocabulary shares with its target, found by comparing what their tokens spell.

Two ordinary tokens are the same where they spell the same bytes, two special ones where they have the same name; the ends of
text are one another's in any case.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from harness.core.errors import UsageError
from harness.models.loading import LoadedModel
from methods.models.checkpoint import KEPT_TOKENS
from methods.speculative.translation import Translation

SPACE = "▁"  # as SentencePiece writes it
Spelling = dict[int, bytes]


def translation_of(target: LoadedModel, draft: LoadedModel) -> Translation:
    """Compare the vocabularies of two models.

    Raises:
        UsageError: an encoder-decoder that reads text, a tokenizer whose tokens do not say which bytes they spell, or nothing
            is shared.
    """
    if target.stack.encodes_prompts:
        raise UsageError(
            f"target {target.name}: it encodes text; drafts of another vocabulary need a decoder-only model or a Whisper"
        )
    ours, theirs = _spelling(target), _spelling(draft)
    by_bytes = {spelt: token for token, spelt in reversed(theirs.items())}  # of several the first
    shared = {token: by_bytes[spelt] for token, spelt in ours.items() if spelt in by_bytes}
    shared |= _shared_specials(target, draft)
    shared = {token: own for token, own in shared.items() if token < target.vocab_size and own < draft.vocab_size}
    if not shared:
        raise UsageError(
            f"drafts of another vocabulary: target {target.name} and draft {draft.name} share no token; choose another draft"
        )
    lacking = {token: ours.get(token) for token in range(target.vocab_size) if token not in shared}
    pieces = {token: (own,) for token, own in shared.items()} | _spelt_out(lacking, draft, by_bytes)
    whole = tuple(pieces[token] for token in range(target.vocab_size))
    ids = torch.tensor(sorted(shared.items()))
    return Translation(ids[:, 0], ids[:, 1], whole, _prompts(target, draft, shared), _continuations(target, draft))


def part_of(target: LoadedModel, draft: LoadedModel, kept: Sequence[int]) -> Translation:
    """Return the translation for a draft that knows ``kept`` tokens of the target's; its last one stands for all others.

    Raises:
        UsageError: tokens that are not the target's, or of which other ones end a text.
    """
    if not 0 <= kept[0] <= kept[-1] < target.vocab_size:
        raise UsageError(
            f"{KEPT_TOKENS} {kept[0]} to {kept[-1]} of draft {draft.name}: expected tokens from 0 to {target.vocab_size - 1}, "
            f"those of {target.name}; distil the draft anew"
        )
    ends = [kept[token] if token < len(kept) else None for token in draft.eos_token_ids]
    if odd := [token for token in ends if token not in target.eos_token_ids]:
        raise UsageError(
            f"{KEPT_TOKENS} of draft {draft.name}: its texts end with token {odd[0]} of {target.name}, expected one of "
            f"{', '.join(map(str, target.eos_token_ids)) or 'none'}; distil the draft anew"
        )
    own, size = {token: place for place, token in enumerate(kept)}, draft.vocab_size

    def write(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(own.get(token, size - 1) for token in tokens)

    pieces = tuple((number,) for number in write(range(target.vocab_size)))
    return Translation(torch.tensor(list(kept)), torch.arange(len(kept)), pieces, write, write)


def fewer(known: Translation, count: int, ends: Collection[int]) -> Translation:
    """Share ``count`` tokens alone, those that the draft numbers lowest, and what ends a text of the target.

    BPE numbers what it merged first lowest, which is what its training text had most of.
    """
    places = known.draft_ids.argsort()[:count].tolist()
    kept = torch.tensor(sorted({*places, *(place for place, token in enumerate(known.target_ids.tolist()) if token in ends)}))
    return replace(known, target_ids=known.target_ids[kept], draft_ids=known.draft_ids[kept])


def _spelling(model: LoadedModel) -> Spelling:
    """Return the bytes that each ordinary token spells."""
    tokenizer = model.tokenizer
    special = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    words = sorted((token, word) for word, token in tokenizer.get_vocab().items() if token not in special)
    kinds = _decoders(tokenizer)
    if "ByteLevel" in kinds:
        to_byte = _byte_of()
        return {token: bytes(map(to_byte.__getitem__, word)) for token, word in words if set(word) <= to_byte.keys()}
    if kinds & {"Metaspace", "ByteFallback", "Replace"}:
        return {token: _of_sentencepiece(word) for token, word in words}
    raise UsageError(
        f"model {model.name}: its tokens do not say which bytes they spell; expected byte-level BPE or SentencePiece"
    )


def _decoders(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    found = None if backend is None else json.loads(backend.to_str())["decoder"]
    parts = [] if found is None else found.get("decoders", [found])
    return {part["type"] for part in parts}


@lru_cache(maxsize=1)
def _byte_of() -> dict[str, int]:
    """Return the byte behind each character of byte-level BPE (Radford et al. 2019): printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _of_sentencepiece(word: str) -> bytes:
    if len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
        return bytes([int(word[3:5], 16)])
    return word.replace(SPACE, " ").encode()


def _shared_specials(target: LoadedModel, draft: LoadedModel) -> dict[int, int]:
    """Match special tokens by name, ends of text and what begins an output by what they do."""
    names = [
        {str(one.added_tokens_decoder[id]): id for id in one.added_tokens_decoder}
        for one in (target.tokenizer, draft.tokenizer)
    ]
    ends = [set(model.eos_token_ids) for model in (target, draft)]
    alike = {names[0][name]: names[1][name] for name in names[0].keys() & names[1].keys()}
    alike = {token: own for token, own in alike.items() if (token in ends[0]) == (own in ends[1])}
    if ends[0] and ends[1]:
        alike |= dict.fromkeys(ends[0] - alike.keys(), min(ends[1]))
    if target.opening and draft.opening:
        alike[target.opening[-1]] = draft.opening[-1]
    return alike


def _spelt_out(lacking: dict[int, bytes | None], draft: LoadedModel, by_bytes: dict[bytes, int]) -> dict[int, tuple[int, ...]]:
    """Spell tokens that the draft lacks: their text as the draft's tokenizer writes it, or else their bytes."""
    unknown = draft.tokenizer.unk_token_id
    nothing = (unknown if unknown is not None else min(draft.eos_token_ids, default=0),)
    texts = {token: text for token, spelt in lacking.items() if (text := _text(spelt))}
    written = draft.tokenizer(list(texts.values()), add_special_tokens=False, verbose=False).input_ids if texts else []
    found = dict(zip(texts, map(tuple, written), strict=True))
    for token, spelt in lacking.items():
        if token not in found and spelt is not None:
            found[token] = tuple(by_bytes[bytes([byte])] for byte in spelt if bytes([byte]) in by_bytes)
    return {token: found.get(token) or nothing for token in lacking}


def _text(spelt: bytes | None) -> str:
    """Return the text that bytes are; empty where they are a part of a character, or none."""
    try:
        return "" if spelt is None else spelt.decode()
    except UnicodeDecodeError:
        return ""


def _prompts(target: LoadedModel, draft: LoadedModel, shared: dict[int, int]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """Return what writes the beginning of a prompt with the draft's tokens.

    Text is written by its tokenizer, special tokens that both have stay, others are left out; it begins as the draft's own
    prompts do. What a model hears begins with its own forced tokens.
    """
    if draft.opening:
        return lambda prompt: draft.opening[:-1]
    special = set(target.tokenizer.added_tokens_decoder)
    begin = draft.encode("") if draft.encode("")[-1:] != tuple(draft.eos_token_ids[:1]) else ()

    def write(prompt: Sequence[int]) -> tuple[int, ...]:
        found: list[int] = []
        for is_special, run in groupby(prompt, special.__contains__):
            if is_special:
                found += [shared[token] for token in run if token in shared]
            else:
                text = target.tokenizer.decode(list(run), skip_special_tokens=False, clean_up_tokenization_spaces=False)
                found += draft.encode_continuation(str(text))
        return tuple(found) if tuple(found[: len(begin)]) == begin else (*begin, *found)

    return write


def _continuations(target: LoadedModel, draft: LoadedModel) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """Return what writes the draft's continuation with the target's tokens; where it ends, with the target's end of text."""
    ends = set(draft.eos_token_ids)

    def write(tokens: Sequence[int]) -> tuple[int, ...]:
        length = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
        text = draft.tokenizer.decode(list(tokens[:length]), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return (*target.encode_continuation(str(text)), *(target.eos_token_ids[:1] if length < len(tokens) else ()))

    return write
