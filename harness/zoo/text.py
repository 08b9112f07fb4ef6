"""Models of text: the batches that they learn from, and their training on the next token.

Decoder-only models and T5s, SpecDec's teachers and verifiers (Xia et al. 3.1). The tokens of a step are a function of seed and
step alone, so that a resumed run sees what an unbroken one does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from harness.zoo.corpus import Encoded, read_corpus, read_tokenizer
from harness.zoo.descriptions import PairRecipe, Recipe
from harness.zoo.families import FAMILIES
from harness.zoo.loop import Objective, device_of, finish, network_facts, one_thread, train
from harness.zoo.networks import build_network, read_network
from harness.zoo.recipes import folder_of
from harness.zoo.state import generator_of
from methods.specdec.training import token_loss

START = 0  # the padding token: an encoder-decoder of the zoo begins with it, as T5 and Marian do
POOL = 1024  # rows sorted by length together: little padding, and still shuffled
ObjectiveFor = Callable[[Encoded], Objective]


@dataclass(frozen=True)
class Batch:
    """A model's arguments and, per predicted position, the label and its weight in the loss."""

    inputs: dict[str, Tensor]
    labels: Int[Tensor, "B n"]
    weights: Float[Tensor, "B n"]


def batches_for(recipe: Recipe, rows: Encoded) -> "_BlockBatches | _PairBatches":
    return _PairBatches(recipe, rows) if recipe.corpus.is_encoder_decoder else _BlockBatches(recipe, rows)


class _BlockBatches:
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


class _PairBatches:
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


def _document(rows: Encoded, index: int, prompt_weight: float) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
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


def _pad(rows: list[Int[Tensor, " n"]]) -> Int[Tensor, "B n_max"]:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)


def train_next_token(recipe: Recipe, folder: Path, source: str, position: int = 0) -> None:
    """Train a model on the text's next tokens (a model of pairs: on the target's), or on its teacher's distributions."""
    teacher = None if recipe.teacher is None else read_network(folder_of(recipe.teacher, source), device_of(recipe))
    train_model(recipe, folder, source, lambda rows: next_token(recipe, rows, teacher), position=position)


def train_model(
    recipe: Recipe,
    folder: Path,
    source: str,
    objective_for: ObjectiveFor,
    *,
    prepare: Callable[[Any], None] | None = None,
    report: Callable[[Any, Encoded], dict[str, Any]] | None = None,
    position: int = 0,
) -> None:
    """Train in ``folder`` (which may hold a checkpoint) and leave a complete transformers model there.

    ``prepare`` changes the fresh network, ``report`` adds to recipe.json.
    """
    corpus_folder = folder_of(recipe.corpus, source)
    tokenizer, rows = read_tokenizer(corpus_folder), read_corpus(corpus_folder)
    with one_thread():
        network: Any = build_network(recipe, tokenizer)
        if prepare is not None:
            prepare(network)
        network.to(device_of(recipe))
        objective = objective_for(rows)
        evaluations, spent = train(recipe, network, objective, folder, position=position)
        with torch.no_grad():
            held_out = objective.evaluate(network)
        more = {} if report is None else report(network, rows)
    network.cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = network_facts(recipe, network, source, held_out) | more
    facts |= {"unigram_entropy_nats": unigram_entropy(recipe, rows), "evaluations": evaluations}
    finish(folder, facts, spent)


def next_token(recipe: Recipe, rows: Encoded, teacher: PreTrainedModel | None = None) -> Objective:
    """Cross-entropy with the text's next token, label-smoothed as a ``PairRecipe`` says, or with the teacher's distribution."""

    def loss(network: Any, batch: Batch, step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        if isinstance(recipe, PairRecipe):
            labels, counted = batch.labels.to(network.device), (batch.weights > 0).to(network.device)
            return token_loss(logits_of(network, batch), labels, counted, recipe.label_smoothing)
        losses, weights = token_losses(network, batch, teacher)
        return (losses * weights).sum() / weights.sum()

    return Objective(batch=batches_for(recipe, rows), loss=loss, evaluate=lambda network: held_out(recipe, rows, network))


def logits_of(network: Any, batch: Batch) -> Float[Tensor, "B n V"]:
    inputs = {name: values.to(network.device) for name, values in batch.inputs.items()}
    return network(**inputs, use_cache=False).logits


def token_losses(
    network: Any, batch: Batch, teacher: PreTrainedModel | None = None
) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
    """Cross-entropy (nats) with the text, or with the teacher's distribution, and weight of every position that counts."""
    logits, weights, labels = logits_of(network, batch), batch.weights.to(network.device), batch.labels.to(network.device)
    counts = weights > 0
    wanted = labels[counts]
    if teacher is not None:
        with torch.no_grad():
            wanted = logits_of(teacher, batch)[counts].float().softmax(-1)
    return cross_entropy(logits[counts].float(), wanted, reduction="none"), weights[counts]


@torch.no_grad()
def held_out(recipe: Recipe, rows: Encoded, network: nn.Module) -> dict[str, float]:
    """Mean nats a target token over rows that training never saw."""
    total = count = 0.0
    for batch in batches_for(recipe, rows).held_out():
        losses, weights = token_losses(network, batch)
        total, count = total + float((losses * weights).sum()), count + float(weights.sum())
    return {"loss_nats": total / count}


def unigram_entropy(recipe: Recipe, rows: Encoded) -> float:
    """Cross-entropy (nats) of the held-out targets under the training targets' add-one unigram: any model must beat it."""
    cut = int(rows.target_ends[recipe.corpus.num_held_out - 1])
    unseen, seen = rows.target[:cut].long(), rows.target[cut:].long()
    counts = torch.bincount(seen, minlength=int(rows.target.max()) + 1).double() + 1
    return float(-(counts / counts.sum()).log()[unseen].mean())
