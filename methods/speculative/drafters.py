"""DRAFTERS: every drafter by name, each built from the parts of an experiment. A new one is a line here.

>>> drafter = DRAFTERS["copy"](DraftParts(vocab_size=32000))
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from methods.errors import InputError
from methods.models.base import Stack
from methods.specdec.blockwise import BlockwiseDrafter, BlockwiseHeads
from methods.specdec.concurrent import ConcurrentBlockDrafter
from methods.specdec.drafter import BlockDrafter
from methods.specdec.stack import BlockStack
from methods.speculative.copying import CopyDrafter, RandomDrafter
from methods.speculative.hierarchical import HierarchicalDrafter, RevisableDrafter
from methods.speculative.model import ModelDrafter
from methods.speculative.ngram import NGramDrafter, NGramTable
from methods.speculative.per_row import PerRow
from methods.types import Drafter, Session

Part = TypeVar("Part")
ENCODERS = ("own", "shared", "concurrent")


@dataclass(frozen=True, kw_only=True)
class DraftParts:
    """What drafters are made of; what an experiment does not name is None.

    session: the draft model. table: counted n-grams. inner, inner_draft: what drafts for the draft model, and how far.
    block, encoder: the network of a block drafter, and whether a source is encoded by its "own" encoder, by the target's
    ("shared") or by its own beside the target's ("concurrent"). heads, target: blockwise heads and the verifier that they were
    trained on.
    """

    vocab_size: int
    session: Session | None = None
    table: NGramTable | None = None
    inner: RevisableDrafter | None = None
    inner_draft: int = 3
    min_match: int = 1
    max_match: int = 8
    block: BlockStack | None = None
    encoder: str = "own"
    heads: BlockwiseHeads | None = None
    target: Stack | None = None


def _model(parts: DraftParts) -> Drafter:
    return ModelDrafter(_needed(parts.session, "model", "a draft model"))


def _ngram(name: str, order: int) -> Callable[[DraftParts], Drafter]:
    return lambda parts: PerRow(NGramDrafter(_needed(parts.table, name, "a counted n-gram table"), order))


def _hierarchical(parts: DraftParts) -> Drafter:
    session = _needed(parts.session, "hierarchical", "a draft model")
    return HierarchicalDrafter(session, _needed(parts.inner, "hierarchical", "an inner drafter"), parts.inner_draft)


def _block(parts: DraftParts) -> Drafter:
    network = _needed(parts.block, "block", "a trained network of blocks")
    if parts.encoder not in ENCODERS:
        raise InputError(f"encoder {parts.encoder!r}: expected one of {', '.join(ENCODERS)}")
    if parts.encoder == "concurrent":
        return ConcurrentBlockDrafter(network)
    return BlockDrafter(network, share_encoder=parts.encoder == "shared")


def _blockwise(parts: DraftParts) -> Drafter:
    heads = _needed(parts.heads, "blockwise", "trained heads")
    return BlockwiseDrafter(heads, _needed(parts.target, "blockwise", "the verifier"))


DRAFTERS: dict[str, Callable[[DraftParts], Drafter]] = {
    "model": _model,
    "unigram": _ngram("unigram", 1),
    "bigram": _ngram("bigram", 2),
    "copy": lambda parts: PerRow(CopyDrafter(parts.vocab_size, parts.min_match, parts.max_match)),
    "random": lambda parts: PerRow(RandomDrafter(parts.vocab_size)),
    "hierarchical": _hierarchical,
    "block": _block,
    "blockwise": _blockwise,
}


def _needed(part: Part | None, drafter: str, what: str) -> Part:
    if part is None:
        raise InputError(f"drafter {drafter}: expected {what}, got none; name one or choose another drafter")
    return part
