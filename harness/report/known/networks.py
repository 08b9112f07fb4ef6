"""What small networks and stored weights give whose numbers are written by hand: of what no committed checkpoint has."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from jaxtyping import Float
from torch import Tensor

from harness.report.known.inputs import loaded
from harness.report.known.rules import SAMPLINGS
from kernels.inputs import Rounding
from kernels.products.narrow import narrow
from methods.ppd.heads import load_heads, rank_of, save_heads
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.specdec.blockwise import BlockwiseDrafter, BlockwiseHeads
from methods.speculative.ngram import NGramDrafter, NGramTable
from methods.speculative.per_row import CopyDrafter, PerRow, SuffixDrafter
from methods.speculative.translation import shared_length
from methods.types import Inputs, Outcome

LONG = 600  # tokens of a text whose end is like its beginning
LAYERS = (5, 3, 1)  # of trained heads, not in their order
ROUNDINGS: tuple[Rounding, ...] = ("bf16", "int8")


def _blockwise() -> dict[str, float]:
    heads = BlockwiseHeads(6, 3, 4).double()
    for number, weight in enumerate(heads.parameters()):
        weight.data.copy_(_written(*weight.shape, start=number))
    found = {f"blockwise head {index + 1}": _weighed(heads(_written(5, 6))[:, index]) for index in range(3)}
    stack = loaded("specdec-verifier").stack
    own = BlockwiseHeads(stack.head_weight.shape[0], 2, 8).to(stack.dtype)
    for number, weight in enumerate(own.parameters()):
        weight.data.copy_(_written(*weight.shape, start=number))
    text, drafter = [7, 8, 9, 10], BlockwiseDrafter(own, stack)
    with torch.inference_mode():
        laws = torch.cat(list(drafter.teacher_probs(Inputs((tuple(text),)), [0], text, Sampling(temperature=1.0))))
    drafter.read(session := ModelSession(stack))
    drafter.begin(Inputs((tuple(text),) * 2), [0, 0], Uniforms([1, 2], 8))
    session.hidden = _written(2, 4, stack.head_weight.shape[0])
    drafter.commit(Outcome((1, 3), (5, 6)))
    drafts = drafter.propose([2, 2], [2, 4], Sampling()).logits
    assert drafts is not None
    return found | {
        "laws of blockwise heads along a text": _weighed(laws),
        "number of these laws": float(len(laws)),
        "drafts of blockwise heads, row by row": _weighed(drafts),
    }


def _copied() -> dict[str, float]:
    """Return the laws of copies along a text, which begin in its prompt."""
    drafter = PerRow(CopyDrafter(12))
    laws = drafter.teacher_probs(Inputs(((5, 6, 7, 8, 9, 5, 6),)), [6], [7, 8, 3, 5, 6, 7], Sampling(temperature=1.0))
    far, none = [*range(LONG), 0, 1, 2], torch.zeros(3, dtype=torch.float64)
    rows: dict[str, CopyDrafter | SuffixDrafter] = {"copies": CopyDrafter(LONG), "suffixes": SuffixDrafter(LONG)}
    table = NGramTable.count([(1, 2, 1, 3, 1, 2), (4, 1), (2, 5)], 7)
    found = {
        f"{name} of a text's beginning": _weighed(row.propose(far, 3, none, Sampling(temperature=1.0)).tokens.double())
        for name, row in rows.items()
    }
    for label, sampling in SAMPLINGS.items():
        counted = PerRow(NGramDrafter(table, 2)).teacher_probs(Inputs(((4, 1),)), [1], [2, 1, 3, 5], sampling)
        found[f"laws of pairs along a text, {label}"] = _weighed(torch.cat(list(counted)))
    texts = ([*range(300)], [9, *range(1, 300)], [*range(200), 9])
    tied = torch.tensor([[1.0, 1.0, 0.0, 1.0]]).expand(4, 4)
    return found | {
        "laws of copies along a text": _weighed(torch.cat(list(laws))),
        "tokens that texts begin with alike": _weighed(torch.tensor([float(shared_length(texts[0], one)) for one in texts])),
        "ranks of tokens of equal logits": _weighed(rank_of(tied, torch.arange(4)).double()),
    }


def _counted() -> dict[str, float]:
    """Return what a table of pairs says behind a token that others followed, and behind one that none did."""
    table = NGramTable.count([(1, 2, 1, 3, 1, 2), (4, 1), (2, 5)], 7)
    return {f"pairs behind token {token}": _weighed(table.bigram_log_probs(token).exp()) for token in (1, 2, 3, 5)}


def _early() -> dict[str, float]:
    stack = loaded("llama-target").stack
    width, vocab_size = stack.head_weight.shape
    with TemporaryDirectory() as folder:
        save_heads({layer: _written(vocab_size, width, start=layer) for layer in LAYERS}, Path(folder))
        heads = load_heads(Path(folder), stack)
    return {f"trained head of layer {layer}": _weighed(heads.weight(layer)) for layer in LAYERS}


def _narrow() -> dict[str, float]:
    weight = _written(40, 24).float()
    return {f"a weight in {rounding}": _weighed(narrow(weight, rounding).widened()) for rounding in ROUNDINGS}


def _written(*shape: int, start: int = 0) -> Float[Tensor, "..."]:
    """Return numbers between -1 and 1 that no two places of a small tensor share."""
    count = torch.Size(shape).numel()
    return torch.sin(0.7 + start + 1.3 * torch.arange(count, dtype=torch.float64)).view(shape)


def _weighed(values: Tensor) -> float:
    flat = values.detach().double().flatten()
    return float((flat * torch.cos(torch.arange(len(flat), dtype=torch.float64))).sum())


GROUPS = (_blockwise, _early, _narrow, _counted, _copied)
