"""A draft model of another vocabulary, by the two lossless ways of Timor et al. 2025 ("Accelerating LLM Inference with Lossless
Speculative Decoding Algorithms for Heterogeneous Vocabularies").

TLI: the draft's law is restricted to the tokens that both vocabularies have and normed again, the target's others have
probability 0. Temperature and filters work on the restricted law. SLEM: the draft's text is written with the target's tokens,
each of which stands where the target chooses or draws just it. Any rule of speculative sampling keeps the target's law.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.layers.decoder import Drafted
from methods.sampling import Sampling
from methods.speculative.per_row import point_mass
from methods.types import Inputs, Proposal, TextSession

KEPT_TEXTS = 16
UNSEEN = 2  # tokens of the target at most that a drafter feeds at once before it drafts: the pending one and a last draft


@dataclass(frozen=True, eq=False)
class Translation:
    """Between a target's tokens and those of a draft model.

    target_ids, draft_ids: the shared tokens, as each of them numbers them. pieces: for every token of the target the draft's
    tokens that spell it; of a shared one that is itself. prompt: the beginning of a prompt as the draft's tokenizer writes it.
    back: a text that the draft went on with as the target's tokenizer writes it.
    """

    target_ids: Int[Tensor, "K"]
    draft_ids: Int[Tensor, "K"]
    pieces: tuple[tuple[int, ...], ...]
    prompt: Callable[[tuple[int, ...]], tuple[int, ...]]
    back: Callable[[tuple[int, ...]], tuple[int, ...]]


class TranslatedSession:
    """A draft model's session that takes the target's tokens and gives logits over them; minus infinity for what is not shared.

    A token that the draft model lacks is fed as the tokens that spell it, so ``lengths`` and ``position_limit`` count the
    draft's. It has what drafters need: ``prefill``, ``extend``, ``draft``, ``rewind`` and ``select``.
    """

    def __init__(self, session: TextSession, translation: Translation) -> None:
        self.session, self.translation, self.device = session, translation, session.device
        self.vocab_size = len(translation.pieces)
        longest = max(map(len, translation.pieces))
        self.position_limit = None if session.position_limit is None else session.position_limit - UNSEEN * (longest - 1)
        single = [piece[0] if len(piece) == 1 else -1 for piece in translation.pieces]
        self._single = torch.tensor(single, device=session.device)
        self._from = translation.draft_ids.to(session.device)
        self._to = translation.target_ids.to(session.device)
        self._widths: list[list[int]] = []
        columns = torch.full((self.vocab_size,), -1)
        columns[translation.target_ids.cpu()] = translation.draft_ids.cpu()
        self._drafted = Drafted(columns, torch.tensor(single).clamp_(min=0))

    @property
    def stack(self) -> Any:
        """The draft model's, where its session has one."""
        return getattr(self.session, "stack", None)

    @property
    def lengths(self) -> list[tuple[int, ...]]:
        return self.session.lengths

    def prefill(self, inputs: Inputs) -> list[int]:
        """Start anew: cache all of the prompt but its last token and return that pending token of every row, the target's."""
        pieces = self.translation.pieces
        pending = [prompt[-1] for prompt in inputs.prompts]
        own = ((*self.translation.prompt(prompt[:-1]), pieces[prompt[-1]][0]) for prompt in inputs.prompts)
        self.session.prefill(replace(inputs, prompts=tuple(own)))
        self._widths = [[] for _ in pending]
        return pending

    def extend(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n V"]:
        """Append n tokens to every row; return the logits behind each."""
        single = self._single[tokens]
        if bool((single >= 0).all()):
            for widths in self._widths:
                widths += [1] * tokens.shape[1]
            return self._over_target(self.session.extend(single))
        rows = [[self.translation.pieces[token] for token in row] for row in tokens.tolist()]
        fed = [list(chain.from_iterable(row)) for row in rows]
        longest = max(map(len, fed))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in fed], device=self.device)
        logits = self.session.extend(padded)
        if len(fed) > 1:
            self.session.rewind([longest - len(row) for row in fed])
        for widths, row in zip(self._widths, rows, strict=True):
            widths += map(len, row)
        ends = [[end - 1 for end in accumulate(map(len, row))] for row in rows]
        return self._over_target(logits[torch.arange(len(rows)).unsqueeze(-1), torch.tensor(ends)])

    def draft(
        self, fed: Sequence[int], count: int, sampling: Sampling, uniforms: Float[Tensor, "1 n"] | None
    ) -> tuple[Int[Tensor, "1 n"], Float[Tensor, "1 n V"], Float[Tensor, "1 n"] | None] | None:
        """As ``ModelSession.draft``, in the target's tokens; all drafts are tokens that both have."""
        draft = getattr(self.session, "draft", None)
        pieces = [self.translation.pieces[token] for token in fed]
        own = list(chain.from_iterable(pieces))
        drawn = None if draft is None else draft(own, count, sampling, uniforms, self._drafted)
        if drawn is not None:
            self._widths[0] += [*map(len, pieces), *[1] * (count - 1)]
        return drawn

    def fitting(self, tokens: Sequence[int]) -> int:
        """Count how many of the next tokens of one row the draft model's positions hold."""
        if self.session.position_limit is None:
            return len(tokens)
        room = self.session.position_limit - self.session.lengths[0][0]
        return sum(end <= room for end in accumulate(len(self.translation.pieces[token]) for token in tokens))

    def _over_target(self, logits: Float[Tensor, "B n W"]) -> Float[Tensor, "B n V"]:
        shared = logits.new_full((*logits.shape[:-1], self.vocab_size), float("-inf"))
        shared[..., self._to] = logits[..., self._from]
        return shared

    def rewind(self, counts: Sequence[int]) -> None:
        """Forget the last ``counts[row]`` tokens of each row."""
        own = [sum(widths[len(widths) - count :]) for widths, count in zip(self._widths, counts, strict=True)]
        for widths, count in zip(self._widths, counts, strict=True):
            del widths[len(widths) - count :]
        self.session.rewind(own)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self.session.select(rows)
        self._widths = [list(self._widths[row]) for row in rows]


class TextDrafter:
    """Goes on with the text by the draft model's first choices, and proposes what the target's tokenizer makes of it (SLEM).

    What it proposes is a function of the text, a point mass: a draft x stands with the target's probability of x. Differs from
    the paper: its drafter may sample; then the law of a target's token is not known, and neither is alpha. The caches of the
    last texts are kept, so that each row of a batch finds its own.
    """

    def __init__(self, new_session: Callable[[], TextSession], translation: Translation) -> None:
        self.new_session, self.translation = new_session, translation
        self.vocab_size = len(translation.pieces)
        self._known: list[tuple[TextSession, list[int]]] = []

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Float[Tensor, " n"], sampling: Sampling) -> Proposal:
        own = self.translation.prompt(tuple(text))
        if not own:
            return Proposal.nothing(1, sampling, uniforms.device)
        session, cached = self._nearest(own)
        room = num_draft if session.position_limit is None else min(num_draft, session.position_limit - len(own))
        new, fed = list[int](), list(own[len(cached) :])
        while len(new) < room:
            token = int(session.extend(torch.tensor([fed], device=session.device))[0, -1].argmax())
            cached += fed
            new.append(token)
            fed = [token]
        self._known = [*self._known[1 - KEPT_TEXTS :], (session, cached)]
        return point_mass(self.translation.back(tuple(new))[:num_draft], sampling, uniforms.device)

    def _nearest(self, text: Sequence[int]) -> tuple[TextSession, list[int]]:
        """Take out the cache that shares the longest beginning with a text, cut to it, at least one token short of the text."""
        shares = [shared_length(cached, text[:-1]) for _, cached in self._known]
        best = max(range(len(shares)), key=shares.__getitem__, default=None)
        if best is None or shares[best] == 0:
            session = self.new_session()
            session.prefill(Inputs((tuple(text[:1]),)))
            return session, []
        session, cached = self._known.pop(best)
        session.rewind([len(cached) - shares[best]])
        return session, cached[: shares[best]]


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    return next(
        (place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
