"""The parts of the block drafter's training (Xia et al. 3.1, Appendix A): blocks, glancing, the loss, averaged weights.

Pure functions over tensors; random numbers come from a generator on the CPU. A target sentence is y_1..y_m, its EOS included.

Past the end of a sentence nothing is learned, as in the authors' code: the decoder sees all k MASKs, and those behind EOS have
no target. What the drafter says there is cut away with the EOS before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from methods.errors import InputError
from methods.specdec.network import BlockNetwork
from methods.specdec.stack import block_inputs

GLANCING = (0.5, 0.3)


@dataclass(frozen=True)
class Blocks:
    """Sentences cut after a prefix: the text so far (start token first, padded) and the k tokens that follow it.

    ``lengths`` are those of the texts, the start token included; ``counted`` says which targets lie inside the sentence.
    """

    prefix: Int[Tensor, "B P"]
    lengths: Int[Tensor, "B"]
    targets: Int[Tensor, "B k"]
    counted: Bool[Tensor, "B k"]


def random_prefix_lengths(output_lengths: Int[Tensor, "B"], generator: torch.Generator) -> Int[Tensor, "B"]:
    """Draw p uniformly from 0 <= p < m, so that at least one token follows."""
    uniforms = torch.rand(len(output_lengths), dtype=torch.float64, generator=generator).to(output_lengths.device)
    return (uniforms * output_lengths).long()


def cut_blocks(
    outputs: Int[Tensor, "B M"],
    output_lengths: Int[Tensor, "B"],
    prefix_lengths: Int[Tensor, "B"],
    block_size: int,
    start_token: int,
) -> Blocks:
    """Cut each sentence (``output_lengths`` tokens, the rest padding) after its first ``prefix_lengths`` tokens."""
    start = outputs.new_full((len(outputs), 1), start_token)
    text = torch.cat((start, outputs), 1)
    ahead = prefix_lengths.unsqueeze(1) + torch.arange(block_size, device=outputs.device)
    counted = ahead < output_lengths.unsqueeze(1)
    targets = outputs.gather(1, ahead.clamp(max=outputs.shape[1] - 1))
    return Blocks(text[:, : int(prefix_lengths.max()) + 1], prefix_lengths + 1, targets.masked_fill(~counted, 0), counted)


def drafter_loss(
    network: BlockNetwork,
    source: Int[Tensor, "B T"],
    source_mask: Bool[Tensor, "B T"] | None,
    blocks: Blocks,
    generator: torch.Generator,
    glancing: float = 0.0,
    label_smoothing: float = 0.0,
    place_decay: float = 1.0,
) -> Float[Tensor, ""]:
    """Compute the loss of one training step: the mean over the tokens of the blocks that were not revealed.

    With ``glancing`` above 0 a first pass without gradients finds what the drafter gets wrong and ``reveal`` chooses what the
    second pass is shown (Qian et al. 2021). The source is encoded once. A token counts ``place_decay`` times as much as the
    one before it in the block, without which it never stands. Differs from the paper: there all count alike (1.0).
    """
    states, revealed = network.encode(source, source_mask), torch.zeros_like(blocks.counted)
    if glancing:
        with torch.no_grad():
            guess = _logits(network, states, source_mask, blocks, revealed).argmax(-1)
        revealed = reveal(guess, blocks, glancing, generator)
    logits = _logits(network, states, source_mask, blocks, revealed)
    decay = place_decay ** torch.arange(logits.shape[1], dtype=logits.dtype, device=logits.device)
    return token_loss(logits, blocks.targets, (blocks.counted & ~revealed) * decay, label_smoothing)


def _logits(
    network: BlockNetwork,
    states: Float[Tensor, "B T D"],
    source_mask: Bool[Tensor, "B T"] | None,
    blocks: Blocks,
    revealed: Bool[Tensor, "B k"],
) -> Float[Tensor, "B k V"]:
    block = blocks.targets.masked_fill(~revealed, network.mask_token_id)
    limit = network.config.max_position_embeddings
    return network.block_logits(states, source_mask, block_inputs(blocks.prefix, blocks.lengths, block, limit))


def reveal(guess: Int[Tensor, "B k"], blocks: Blocks, ratio: float, generator: torch.Generator) -> Bool[Tensor, "B k"]:
    """Choose the targets that the decoder is shown: of each row floor(ratio * wrong guesses), drawn uniformly."""
    if not 0 <= ratio <= 1:
        raise InputError(f"glancing {ratio!r}: expected a share from 0 to 1 of the wrong guesses")
    wrong = ((guess != blocks.targets) & blocks.counted).sum(-1, keepdim=True)
    number = (ratio * wrong.double() + 1e-9).floor()  # 0.29 * 100 is a little below 29
    order = torch.rand(blocks.counted.shape, generator=generator).to(guess.device).masked_fill(~blocks.counted, 2.0)
    return (order.argsort(-1).argsort(-1) < number) & blocks.counted


def glancing_ratio(progress: float, first: float = GLANCING[0], last: float = GLANCING[1]) -> float:
    """Return the annealed ratio at ``progress`` (0 to 1) of the training: linear, 0.5 to 0.3 in the authors' code."""
    return first + (last - first) * min(1.0, max(0.0, progress))


def token_loss(
    logits: Float[Tensor, "B k V"],
    targets: Int[Tensor, "B k"],
    weights: Float[Tensor, "B k"] | Bool[Tensor, "B k"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Compute the weighted mean cross-entropy of the targets; smoothing gives every token ``label_smoothing / V``.

    0 where no target has a weight. Differs from the paper: it prints the log-likelihood's sum over a block, to be maximised.
    """
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=label_smoothing)
    shares = weights.flatten().to(losses.dtype)
    return (losses * shares).sum() / shares.sum().clamp(min=torch.finfo(losses.dtype).tiny)


@torch.no_grad()
def leading_correct(
    network: BlockNetwork, source: Int[Tensor, "B T"], source_mask: Bool[Tensor, "B T"] | None, blocks: Blocks
) -> Int[Tensor, "B"]:
    """Count the drafts of each block that agree with the targets before the first that does not.

    These are the accepted tokens of a verifier that says the targets. For held-out progress, in evaluation mode.
    """
    hidden = torch.zeros_like(blocks.counted)
    guess = _logits(network, network.encode(source, source_mask), source_mask, blocks, hidden).argmax(-1)
    return ((guess == blocks.targets) & blocks.counted).cumprod(-1).sum(-1)


def average_states(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average checkpoints' weights (the paper: the last ten) in fp64; the result has their dtype.

    Raises:
        InputError: no checkpoint, or checkpoints of different networks.
    """
    if not states:
        raise InputError("states (): expected at least one checkpoint to average")
    first = states[0]
    if any({name: w.shape for name, w in s.items()} != {name: w.shape for name, w in first.items()} for s in states):
        raise InputError("states: they differ in names or shapes; expected checkpoints of one network")
    return {name: torch.stack([state[name].double() for state in states]).mean(0).to(w.dtype) for name, w in first.items()}
