"""A session for tests of caches: it records every forward pass, to be compared with one over the same text in a fresh cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.types import Inputs, Session


class RecordedSession:
    """A session that forwards every call, keeps each row's text, and remembers the logits that every ``extend`` returned."""

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
        """Compare each extend's logits with one forward pass over the same text in a new cache; return how many there were."""
        for inputs, text, logits in self.seen:
            pending = fresh.prefill(inputs)
            cached = fresh.lengths[0][0]
            assert list(text[:cached]) == list(inputs.prompts[0][:cached])
            assert text[cached] == pending[0]
            expected = fresh.extend(torch.tensor([text[cached:]]))[0, -len(logits) :]
            torch.testing.assert_close(logits, expected, rtol=0, atol=atol)
        return len(self.seen)
