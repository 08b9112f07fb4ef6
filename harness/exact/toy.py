"""Toy models on which contracts are checked, and the checks of an audit on them.

The logits of a table session are a table's row at a hash of the whole prefix: its laws can be enumerated, and a cache that is
off by one token shows at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MarianConfig

from harness.exact.checks import Finding, check_identity, check_samples, compare
from harness.exact.fit import FALSE_ALARM
from harness.exact.ground import NUM_POSITIONS, Ground
from harness.exact.subjects import Sizes
from harness.models.loading import LoadedModel
from methods.errors import InputError
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.specdec.network import block_config, new_network
from methods.specdec.stack import BlockStack
from methods.speculative.translation import Translation
from methods.types import Generation, Inputs, Method, Session, Stop

MAX_TOY_TESTS = 25  # of samples, a method
STATES = 61
PAD_VALUE = -1


def random_table(vocab_size: int, seed: int, scale: float = 2.0) -> Tensor:
    """[STATES, V] logits in fp64."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(STATES, vocab_size, generator=generator, dtype=torch.float64)


class _TableSession:
    """A session whose logits are rows of a table; ``start_token`` makes it an encoder-decoder, its source the first state."""

    num_layers = 1
    device = torch.device("cpu")

    def __init__(self, table: Tensor, position_limit: int | None = None, start_token: int | None = None) -> None:
        self.table, self.vocab_size = table, table.shape[1]
        self.position_limit, self.start_token = position_limit, start_token
        self.counts, self.states = torch.zeros(0, dtype=torch.long), torch.zeros(0, 1, dtype=torch.long)
        self.num_forwards = 0
        self.batch_sizes: list[int] = []

    def fresh(self) -> "_TableSession":
        return _TableSession(self.table, self.position_limit, self.start_token)

    @property
    def lengths(self) -> list[tuple[int, ...]]:
        return [tuple(self.counts.tolist())]

    def prefill(self, inputs: Inputs) -> list[int]:
        self.counts = torch.zeros(inputs.batch, dtype=torch.long)
        self.states = torch.zeros(inputs.batch, 1, dtype=torch.long)
        if self.start_token is not None:
            self.states[:, 0] = torch.tensor([sum((i + 1) * t for i, t in enumerate(row)) % STATES for row in inputs.prompts])
            return [self.start_token] * inputs.batch
        longest = max(len(row) for row in inputs.prompts) - 1
        if longest:
            self._append(torch.tensor([[*row[:-1], *[0] * (longest + 1 - len(row))] for row in inputs.prompts]))
            self.counts = torch.tensor([len(row) - 1 for row in inputs.prompts])
        return [row[-1] for row in inputs.prompts]

    def extend(self, tokens: Tensor) -> Tensor:
        self.num_forwards += 1
        self.batch_sizes.append(len(tokens))
        limit = self.position_limit
        ends = int(self.counts.max()) + (tokens.shape[1] if len(tokens) == 1 else 1)
        if limit is not None and ends > limit:
            raise InputError(f"position limit {limit}")
        return self.head(self.run_layers(self.embed(tokens), 0, 1))

    def embed(self, tokens: Tensor) -> Tensor:
        return tokens.double().unsqueeze(-1)

    def run_layers(self, hidden: Tensor, first: int, last: int) -> Tensor:
        return self._append(hidden.squeeze(-1).long()).double().unsqueeze(-1)

    def head(self, hidden: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.table[hidden.squeeze(-1).long()]

    def _append(self, tokens: Tensor) -> Tensor:
        """Append the states behind new tokens at each row's own length, and return them."""
        batch, num_new = tokens.shape
        needed = int(self.counts.max()) + num_new + 1 - self.states.shape[1]
        if needed > 0:
            self.states = torch.cat((self.states, self.states.new_full((batch, needed), PAD_VALUE)), 1)
        rows, news = torch.arange(batch), []
        state = self.states[rows, self.counts]
        for column in range(num_new):
            state = (state * 7 + tokens[:, column] * 13 + 5) % STATES
            self.counts = self.counts + 1
            self.states[rows, self.counts] = state
            news.append(state)
        return torch.stack(news, 1)

    def rewind(self, counts: Sequence[int]) -> None:
        self.counts = self.counts - torch.tensor(list(counts))
        assert int(self.counts.min()) >= 0

    def select(self, rows: Sequence[int]) -> None:
        self.counts, self.states = self.counts[list(rows)], self.states[list(rows)].clone()


def toy_session(table: Tensor, position_limit: int | None = None, start_token: int | None = None) -> Session:
    """Make a table session, typed as the protocol (whose ``lengths`` is an attribute where this one has a property)."""
    return cast(Session, _TableSession(table, position_limit, start_token))


def same_tokens(vocab_size: int) -> Translation:
    """Make the translation between two models of one vocabulary."""
    every = torch.arange(vocab_size)
    return Translation(every, every, tuple((token,) for token in range(vocab_size)), tuple, tuple)


def greedy_output(session: Session, prompt: Sequence[int], max_new_tokens: int, stop_ids: frozenset[int]) -> list[int]:
    """Decode greedily by one forward pass over the whole text per token: slow, and independent of every method."""
    output: list[int] = []
    while len(output) < max_new_tokens and not (output and output[-1] in stop_ids):
        pending = session.prefill(Inputs((tuple(prompt),)))
        output.append(int(session.extend(torch.tensor([[*pending, *output]]))[0, -1].argmax()))
    return output


@dataclass(frozen=True)
class Toy:
    """A target and ragged prompts on which any method can be checked in a second."""

    new_session: Callable[[], Session]
    prompts: tuple[tuple[int, ...], ...]
    stop: Stop

    def decode(
        self, method: Method, sampling: Sampling, rows: Sequence[int] | None = None, stop: Stop | None = None
    ) -> list[Generation]:
        """Decode these prompts (or all) together; the seed of a row is the number of its prompt."""
        chosen, stop = list(range(len(self.prompts)) if rows is None else rows), stop or self.stop
        inputs, uniforms = Inputs(tuple(self.prompts[row] for row in chosen)), Uniforms(chosen, stop.max_new_tokens)
        return method.generate(self.new_session(), inputs, sampling, uniforms, stop)

    def check_greedy(self, method: Method) -> Finding:
        """Compare greedy outputs with plain decoding's: in a batch, in the reversed batch, and alone.

        One method object decodes all of them: whatever it keeps must begin anew with each generation.
        """
        everyone = range(len(self.prompts))
        end = self.stop
        expected = [greedy_output(self.new_session(), prompt, end.max_new_tokens, end.token_ids) for prompt in self.prompts]
        orders = [("in a batch", [*everyone]), ("in a batch", [*reversed(everyone)]), *(("alone", [row]) for row in everyone)]
        records = [
            compare(f"prompt {self.prompts[row]} {where}", expected[row], made.tokens)
            for where, order in orders
            for row, made in zip(order, self.decode(method, Sampling(), order), strict=True)
        ]
        finding = check_identity(records)
        wrong = next((record for record in records if record.divergence is not None), None)
        if wrong is None or wrong.divergence is None:
            return replace(finding, note=f"{len(records)} outputs")
        note = f"{wrong.example}: {wrong.tokens}; plain decoding gives another token {wrong.divergence.position}"
        return replace(finding, note=note)

    def check_rows(self, method: Method, sampling: Sampling) -> Finding:
        """Compare the tokens and drafts of every row of a batch with those of the row alone."""
        for row, together in enumerate(self.decode(method, sampling)):
            [alone] = self.decode(method, sampling, [row])
            drafts, own = ([step.drafted for step in one.steps] for one in (together, alone))
            if (together.tokens, drafts) != (alone.tokens, own):
                return Finding(
                    "bug", f"prompt {self.prompts[row]}: {together.tokens}, drafts {drafts} in a batch, others alone"
                )
        return Finding("identical")

    def check_samples(self, method: Method, count: int, num_draft: int) -> Finding:
        """Test ``count`` samples of one prompt, at a false alarm of all tests together of at most FALSE_ALARM."""
        sizes = Sizes(prompts=1, new_tokens=NUM_POSITIONS, samples=count, prefixes=1)
        drawn = Sampling(temperature=1.0)
        ground = Ground(
            self.new_session, drawn, sizes, lambda: {"1 2 1": Inputs(((1, 2, 1),))}, level=FALSE_ALARM / MAX_TOY_TESTS
        )
        finding = check_samples(ground.samples(method), ground, num_draft)
        return replace(finding, note=f"{count} samples: {finding.note}")


def random_block(vocab_size: int) -> BlockStack:
    """Make the network of a block drafter with random weights, for a vocabulary of any size."""
    config = MarianConfig(
        vocab_size=vocab_size,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        max_position_embeddings=96,
        init_std=1.0,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        decoder_start_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = new_network(block_config(config, 4))
    return BlockStack(network.double().eval().requires_grad_(False))  # type: ignore[attr-defined]


def random_llama(vocab_size: int) -> LoadedModel:
    """Make a Llama of two layers with random weights in fp64, without a tokenizer: methods work on ids."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.6,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = LlamaForCausalLM(config).double().eval().requires_grad_(False)
    return LoadedModel(
        name="tiny",
        path="",
        stack=stack_for(network),
        tokenizer=cast(Any, None),
        is_encoder_decoder=False,
        eos_token_ids=(),
        num_parameters=sum(one.numel() for one in network.parameters()),
        size_bytes=0,
    )
