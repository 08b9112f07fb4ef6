"""The tokens of a training step: a function of seed and step alone, so that a resumed run sees what an unbroken one does."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.zoo.corpus import Encoded
from harness.zoo.descriptions import Recipe
from harness.zoo.families import FAMILIES

START = 0  # the padding token: an encoder-decoder of the zoo begins with it, as T5 and Marian do
POOL = 1024  # rows sorted by length together: little padding, and still shuffled


@dataclass(frozen=True)
class Batch:
    """A model's arguments and, per predicted position, the label and its weight in the loss."""

    inputs: dict[str, Tensor]
    labels: Int[Tensor, "B n"]
    weights: Float[Tensor, "B n"]


def batches_for(recipe: Recipe, rows: Encoded) -> "BlockBatches | PairBatches":
    return PairBatches(recipe, rows) if recipe.corpus.is_encoder_decoder else BlockBatches(recipe, rows)


class BlockBatches:
    """Decoder-only: documents in a new order each epoch, strung together and cut into blocks of equal length."""

    def __init__(self, recipe: Recipe, rows: Encoded) -> None:
        self.recipe, self.rows, self.epoch = recipe, rows, -1
        self.documents = [_document(rows, i, recipe.prompt_weight) for i in range(len(rows))]
        self.num_rows = max(1, recipe.batch_tokens // recipe.block_length)
        kept = self.documents[recipe.corpus.num_held_out :]
        self.per_epoch = max(1, sum(len(ids) for ids, _ in kept) // (self.num_rows * recipe.block_length))

    def __call__(self, step: int) -> Batch:
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self.epoch:
            self.epoch, self.blocks = epoch, self._string(epoch)
        tokens, weights = (part[index * self.num_rows : (index + 1) * self.num_rows] for part in self.blocks)
        offset = _position_offset(self.recipe, step)
        return _shifted(tokens, weights, offset)

    def held_out(self) -> list[Batch]:
        """One document a batch; prompts do not count."""
        documents = [_document(self.rows, i, prompt_weight=0.0) for i in range(self.recipe.corpus.num_held_out)]
        longest = self.recipe.position_limit
        return [_shifted(ids[None, :longest], weights[None, :longest]) for ids, weights in documents]

    def _string(self, epoch: int) -> tuple[Int[Tensor, "M n"], Float[Tensor, "M n"]]:
        first, length = self.recipe.corpus.num_held_out, self.recipe.block_length
        order = first + torch.randperm(len(self.documents) - first, generator=generator_of(self.recipe.seed, epoch))
        chosen = [self.documents[i] for i in order.tolist()]
        tokens, weights = torch.cat([ids for ids, _ in chosen]), torch.cat([weights for _, weights in chosen])
        repeats = -(-self.num_rows * length // len(tokens))
        whole = len(tokens) * repeats // length * length
        return tokens.repeat(repeats)[:whole].view(-1, length), weights.repeat(repeats)[:whole].view(-1, length)


class PairBatches:
    """Encoder-decoder: pairs of similar length together, as many as fit ``batch_tokens``."""

    plan: list[list[int]]

    def __init__(self, recipe: Recipe, rows: Encoded) -> None:
        self.recipe, self.rows = recipe, rows
        self.source_lengths = rows.source_ends.diff(prepend=torch.zeros(1, dtype=rows.source_ends.dtype)).tolist()
        self.target_lengths = rows.target_ends.diff(prepend=torch.zeros(1, dtype=rows.target_ends.dtype)).tolist()
        self._rewind()

    def __call__(self, step: int) -> Batch:
        if step < self.first:
            self._rewind()
        while step >= self.first + len(self.plan):
            self.first += len(self.plan)
            self.epoch += 1
            self.plan = self._plan(self.epoch)
        return self._collate(self.plan[step - self.first])

    def held_out(self) -> list[Batch]:
        return [self._collate(rows) for rows in self._pack(list(range(self.recipe.corpus.num_held_out)))]

    def _rewind(self) -> None:
        self.epoch, self.first = 0, 0
        self.plan = self._plan(0)

    def _plan(self, epoch: int) -> list[list[int]]:
        first, generator = self.recipe.corpus.num_held_out, generator_of(self.recipe.seed, epoch)
        order = (first + torch.randperm(len(self.rows) - first, generator=generator)).tolist()
        packed = [batch for i in range(0, len(order), POOL) for batch in self._pack(order[i : i + POOL])]
        return [packed[i] for i in torch.randperm(len(packed), generator=generator).tolist()]

    def _pack(self, pool: list[int]) -> list[list[int]]:
        packed: list[list[int]] = [[]]
        longest_source = longest_target = 0
        for row in sorted(pool, key=lambda i: (self.target_lengths[i], self.source_lengths[i], i)):
            longest_source = max(longest_source, self.source_lengths[row])
            longest_target = max(longest_target, self.target_lengths[row])
            if packed[-1] and (len(packed[-1]) + 1) * (longest_target + longest_source / 2) > self.recipe.batch_tokens:
                packed.append([])
                longest_source, longest_target = self.source_lengths[row], self.target_lengths[row]
            packed[-1].append(row)
        return packed

    def _collate(self, rows: list[int]) -> Batch:
        """The decoder is fed the start token and the target but its last token."""
        pairs = [self.rows.row(i) for i in rows]
        sources, targets = (_pad([pair[side].long() for pair in pairs]) for side in (0, 1))
        lengths = torch.tensor([[len(source), len(target)] for source, target in pairs])
        mask = torch.arange(sources.shape[1]) < lengths[:, :1]
        weights = (torch.arange(targets.shape[1]) < lengths[:, 1:]).float()
        fed = torch.nn.functional.pad(targets, (1, -1), value=START)
        inputs = {"input_ids": sources, "attention_mask": mask.long(), "decoder_input_ids": fed}
        return Batch(inputs, targets, weights)


def _document(rows: Encoded, index: int, prompt_weight: float) -> tuple[Int[Tensor, "n"], Float[Tensor, "n"]]:
    source, target = rows.row(index)
    weights = torch.cat((torch.full((len(source),), prompt_weight), torch.ones(len(target))))
    return torch.cat((source, target)).long(), weights


def _shifted(tokens: Int[Tensor, "B n"], weights: Float[Tensor, "B n"], offset: int = 0) -> Batch:
    positions = torch.arange(offset, offset + tokens.shape[1] - 1).expand(tokens.shape[0], -1)
    return Batch({"input_ids": tokens[:, :-1], "position_ids": positions}, tokens[:, 1:], weights[:, 1:])


def _position_offset(recipe: Recipe, step: int) -> int:
    """Learned positions past the block length must be trained too; rotary ones need no help."""
    room = recipe.position_limit - recipe.block_length
    if not FAMILIES[recipe.family].has_learned_positions or room <= 0:
        return 0
    return int(torch.randint(room + 1, (1,), generator=generator_of(recipe.seed, -1 - step)))


def _pad(rows: list[Int[Tensor, "n"]]) -> Int[Tensor, "B n_max"]:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)


def generator_of(seed: int, index: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + index * 7_919) % 2**63)
