"""The models that contracts are checked on: small enough to enumerate, logits are a table's row at a hash of the whole prefix.

Every cached token matters, so a cache that is off by one token shows at once.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from transformers import MarianConfig

from methods.errors import InputError
from methods.specdec.network import block_config, new_network
from methods.specdec.stack import BlockStack
from methods.types import Inputs, Session

STATES = 61
PAD_VALUE = -1


def random_table(vocab_size: int, seed: int, scale: float = 2.0) -> Tensor:
    """[STATES, V] logits in fp64."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(STATES, vocab_size, generator=generator, dtype=torch.float64)


class TableSession:
    """Implements methods.types.Session; ``start_token`` makes it an encoder-decoder whose source sets the first state."""

    num_layers = 1
    device = torch.device("cpu")

    def __init__(self, table: Tensor, position_limit: int | None = None, start_token: int | None = None) -> None:
        self.table, self.vocab_size = table, table.shape[1]
        self.position_limit, self.start_token = position_limit, start_token
        self.counts, self.states = torch.zeros(0, dtype=torch.long), torch.zeros(0, 1, dtype=torch.long)
        self.num_forwards = 0
        self.batch_sizes: list[int] = []

    def fresh(self) -> "TableSession":
        return TableSession(self.table, self.position_limit, self.start_token)

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
        """States behind each token, written at each row's own length."""
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


def toy_session(table: Tensor) -> Session:
    """One as methods take it; its lengths are derived, where the protocol has a plain attribute."""
    return cast(Session, TableSession(table))


class Audited:
    """Passes everything on, keeps the text it was told, and remembers what each extend returned for row 0 on."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.vocab_size, self.num_layers, self.position_limit = session.vocab_size, session.num_layers, session.position_limit
        self.device = session.device
        self.embed, self.run_layers, self.head = session.embed, session.run_layers, session.head
        self.seen: list[tuple[Inputs, tuple[int, ...], Tensor]] = []

    @property
    def lengths(self) -> list[tuple[int, ...]]:
        return self.session.lengths

    def prefill(self, inputs: Inputs) -> list[int]:
        pending = self.session.prefill(inputs)
        self.texts = [list(row[:cached]) for row, cached in zip(inputs.prompts, self.session.lengths[0], strict=True)]
        self.inputs = [Inputs((row,)) for row in inputs.prompts]
        return pending

    def extend(self, tokens: Tensor) -> Tensor:
        logits = self.session.extend(tokens)
        for row, text in enumerate(self.texts):
            text.extend(tokens[row].tolist())
            self.seen.append((self.inputs[row], tuple(text), logits[row]))
        return logits

    def rewind(self, counts: Sequence[int]) -> None:
        for text, count in zip(self.texts, counts, strict=True):
            del text[len(text) - count :]
        self.session.rewind(counts)

    def select(self, rows: Sequence[int]) -> None:
        self.texts = [list(self.texts[row]) for row in rows]
        self.inputs = [self.inputs[row] for row in rows]
        self.session.select(rows)

    def assert_fresh(self, fresh: Session, atol: float = 0.0) -> int:
        """Each extend's logits equal those of one forward pass over the same text in a new cache; how many were compared."""
        for inputs, text, logits in self.seen:
            pending = fresh.prefill(inputs)
            cached = fresh.lengths[0][0]
            assert list(text[:cached]) == list(inputs.prompts[0][:cached])
            assert text[cached] == pending[0]
            expected = fresh.extend(torch.tensor([text[cached:]]))[0, -len(logits) :]
            torch.testing.assert_close(logits, expected, rtol=0, atol=atol)
        return len(self.seen)


def greedy_output(session: TableSession, prompt: Sequence[int], max_new_tokens: int, stop_ids: frozenset[int]) -> list[int]:
    """Plain greedy decoding, one fresh forward a token: the slow truth."""
    output: list[int] = []
    while len(output) < max_new_tokens and not (output and output[-1] in stop_ids):
        pending = session.prefill(Inputs((tuple(prompt),)))
        output.append(int(session.extend(torch.tensor([[*pending, *output]]))[0, -1].argmax()))
    return output


def next_probs(session: TableSession, prompt: Sequence[int], output: Sequence[int], temperature: float = 1.0) -> Tensor:
    """The law of the token that follows, by a fresh forward."""
    pending = session.prefill(Inputs((tuple(prompt),)))
    return (session.extend(torch.tensor([[*pending, *output]]))[0, -1] / temperature).softmax(-1)


def random_block(vocab_size: int, block_size: int = 4) -> BlockStack:
    """A block drafter's network that has learned nothing, for a vocabulary of any size."""
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
        network = new_network(block_config(config, block_size))
    return BlockStack(network.double().eval().requires_grad_(False))  # type: ignore[attr-defined]
