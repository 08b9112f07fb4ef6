"""Every drafter, built from the parts that an experiment names; ``methods.parts.DRAFTERS`` has them by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from methods.errors import InputError
from methods.models.base import Stack
from methods.models.whisper import same_encoder
from methods.session import ModelSession
from methods.specdec.blockwise import BlockwiseDrafter, BlockwiseHeads
from methods.specdec.drafter import BlockDrafter, ConcurrentBlockDrafter, SharedEncoderBlockDrafter
from methods.specdec.stack import BlockStack
from methods.speculative.model import HierarchicalDrafter, ModelDrafter, SameEncoderDrafter
from methods.speculative.ngram import NGramDrafter, NGramTable
from methods.speculative.per_row import CopyDrafter, PerRow, RandomDrafter, SuffixDrafter
from methods.speculative.rounded import ContinuingSession, RoundedDrafter
from methods.speculative.translation import TextDrafter, Translation
from methods.types import Drafter, TakesBack, TextSession

Part = TypeVar("Part")
# By the encoder that it reads: the names are ``methods.specdec.options.ENCODERS``.
BLOCK_DRAFTERS = {"own": BlockDrafter, "shared": SharedEncoderBlockDrafter, "concurrent": ConcurrentBlockDrafter}


@dataclass(frozen=True, kw_only=True)
class DraftParts:
    """What drafters are made of; what an experiment does not name is None.

    session: the draft model, in the target's tokens. new_session: what makes another session of it, in its own. translation:
    between the two. table: counted n-grams. inner: drafts for the draft model. block: the network of a block drafter.
    heads, target: blockwise heads and the verifier that they were trained on.
    """

    vocab_size: int
    session: TextSession | None = None
    new_session: Callable[[], TextSession] | None = None
    translation: Translation | None = None
    table: NGramTable | None = None
    inner: TakesBack | None = None
    block: BlockStack | None = None
    heads: BlockwiseHeads | None = None
    target: Stack | None = None


def model(parts: DraftParts) -> Drafter:
    """A draft whose encoder is the target's, weight for weight, reads what that one heard; any other hears on its own."""
    session = _needed(parts.session, "model", "a draft model")
    stack = getattr(session, "stack", None)
    is_shared = stack is not None and parts.target is not None and same_encoder(stack, parts.target)
    return (SameEncoderDrafter if is_shared else ModelDrafter)(session)


def rounded(parts: DraftParts) -> Drafter:
    """Return the target with rounded weights, which goes on from what the target has read of prompts and sources."""
    session = _needed(parts.session, "rounded", "the target with rounded weights")
    target = _needed(parts.target, "rounded", "the target")
    if not isinstance(session, ModelSession):
        raise InputError("drafter rounded: expected the target with rounded weights, of the target's own tokens")
    return RoundedDrafter(ContinuingSession(session.stack, target))


def tli(parts: DraftParts, draft_tokens: int | None = None) -> Drafter:
    """The session that is given drafts with ``draft_tokens`` tokens alone, so nothing is left to do for it here."""
    return model(parts)


def slem(parts: DraftParts) -> Drafter:
    new_session = _needed(parts.new_session, "slem", "a draft model")
    return PerRow(TextDrafter(new_session, _needed(parts.translation, "slem", "a translation")))


def unigram(parts: DraftParts) -> Drafter:
    return PerRow(NGramDrafter(_needed(parts.table, "unigram", "a counted n-gram table"), 1))


def bigram(parts: DraftParts) -> Drafter:
    return PerRow(NGramDrafter(_needed(parts.table, "bigram", "a counted n-gram table"), 2))


def hierarchical(parts: DraftParts, inner_gamma: int = 2) -> Drafter:
    session = _needed(parts.session, "hierarchical", "a draft model")
    return HierarchicalDrafter(session, _needed(parts.inner, "hierarchical", "an inner drafter"), inner_gamma)


def block(parts: DraftParts, encoder: str = "own") -> Drafter:
    network = _needed(parts.block, "block", "a trained network of blocks")
    if encoder not in BLOCK_DRAFTERS:
        raise InputError(f"encoder {encoder!r}: expected one of {', '.join(BLOCK_DRAFTERS)}")
    return BLOCK_DRAFTERS[encoder](network)


def blockwise(parts: DraftParts) -> Drafter:
    heads = _needed(parts.heads, "blockwise", "trained heads")
    return BlockwiseDrafter(heads, _needed(parts.target, "blockwise", "the verifier"))


def copy(parts: DraftParts) -> Drafter:
    return PerRow(CopyDrafter(parts.vocab_size))


def suffix(parts: DraftParts, match_factor: float = 1.0, min_share: float = 0.1) -> Drafter:
    return PerRow(SuffixDrafter(parts.vocab_size, match_factor, min_share))


def random(parts: DraftParts) -> Drafter:
    return PerRow(RandomDrafter(parts.vocab_size))


def first_layers(parts: DraftParts, draft_layers: int = 2) -> Drafter:
    """Return the target's own first layers with its head, as a draft model with a cache of its own.

    Early exit as in LayerSkip (Elhoushi et al. 2024), whose layers were trained for it. Differs from it: the target does not
    read what these layers cached, so they run twice over what stands.
    """
    stack = _needed(parts.target, "first-layers", "the target")
    stack.check_layers_alone()
    if not 1 <= draft_layers < stack.num_layers or stack.parts:
        most = f"1 to {stack.num_layers - 1}" if not stack.parts else "a target on one device"
        raise InputError(f"draft_layers {draft_layers!r}: the target has {stack.num_layers} layers; expected {most}")
    return (SameEncoderDrafter if stack.is_encoder_decoder else ModelDrafter)(ModelSession(stack, draft_layers))


def _needed(part: Part | None, drafter: str, what: str) -> Part:
    if part is None:
        raise InputError(f"drafter {drafter}: expected {what}, got none; name one or choose another drafter")
    return part
