"""Beam search (Wu et al. 2016; the baseline of Leviathan A.4). It gives the tokens of transformers' ``generate``.

The step is apart from the model, so that speculative beam search can replay it on log-probabilities of its own::

    state = BeamState(num_beams=4, stop=stop)
    while not state.finished():
        parents, tokens = state.advance(log_probs)  # [1, V] the first time, then [num_beams, V]: row b continues beam b
        session.select(parents)                     # beam b now continues old beam parents[b] with tokens[b]
        log_probs = session.extend(tokens as [num_beams, 1])[:, -1].log_softmax(-1)
    state.best()                                    # the ids of the winner, a stopping EOS included

There is one beam before the first ``advance`` and there are ``num_beams`` after it (fewer only where there are not that many
continuations). ``state.beams`` holds the ids
of the running beams (tuples, best first) and ``state.scores`` the sum of their log-probabilities. ``advance`` assigns new
lists and changes none in place: ``copy.copy(state)`` is a snapshot to try out a draft on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from methods.errors import InputError
from methods.sampling import Sampling, Uniforms
from methods.steps import Step, StopReason
from methods.types import Clock, Generation, Guarantee, Inputs, Session, Stop, TextSession

Candidate = tuple[float, int, int]  # log-probability of the whole, parent beam, token
Chosen = tuple[list[int], list[int]]  # each new beam's parent and token


class BeamState:
    """The running and the finished hypotheses of one example.

    Args:
        num_beams: w, how many beams run.
        stop: tokens that end a hypothesis; ``max_new_tokens`` bounds its length.

    A hypothesis scores its log-probability over its length, the EOS counted, and the search ends when the best running beam,
    judged at its present length, cannot enter: transformers' ``length_penalty=1`` and ``early_stopping=False``.
    """

    def __init__(self, num_beams: int, stop: Stop) -> None:
        self.num_beams, self.stop = num_beams, stop
        self.num_candidates = max(2, 1 + len(stop.token_ids)) * num_beams
        self.beams: list[tuple[int, ...]] = [()]
        self.scores: list[float] = [0.0]
        self.finalized: list[tuple[float, tuple[int, ...]]] = []
        self._length = 0

    def advance(self, log_probs: Float[Tensor, "beams V"]) -> Chosen:
        """Take one step from the next token's log-probabilities; return each new beam's parent and token, best first.

        The best num_candidates continuations are ranked. One that stops is finalized if it is among the first
        num_beams; the best num_beams that do not stop run on. At the length limit every continuation stops.
        """
        [step] = advance_all([self], log_probs)
        return step

    def take(self, candidates: Sequence[Candidate]) -> Chosen:
        """Advance by continuations that are ranked already, best first: log-probability, parent and token."""
        self._length += 1
        at_limit = self._length >= self.stop.max_new_tokens
        kept = []
        for rank, (score, parent, token) in enumerate(candidates):
            if not (at_limit or token in self.stop.token_ids):
                kept.append((score, parent, token))
            elif rank < self.num_beams:
                self._finalize(score, (*self.beams[parent], token))
        kept = (list(candidates) if at_limit else kept)[: self.num_beams]
        self.beams = [(*self.beams[parent], token) for _, parent, token in kept]
        self.scores = [score for score, _, _ in kept]
        return [parent for _, parent, _ in kept], [token for _, _, token in kept]

    def finished(self) -> bool:
        """Return whether no running beam can, or at the limit may, change the result."""
        if self._length >= self.stop.max_new_tokens or not self.beams:
            return True
        if len(self.finalized) < self.num_beams:
            return False
        return self.scores[0] / self._length <= self.finalized[-1][0]

    def best(self) -> tuple[int, ...]:
        return self.finalized[0][1] if self.finalized else ()

    def _finalize(self, log_prob: float, tokens: tuple[int, ...]) -> None:
        entry = (log_prob / len(tokens), tokens)
        ranked = sorted([*self.finalized, entry], key=lambda one: one[0], reverse=True)
        self.finalized = ranked[: self.num_beams]


def advance_all(states: Sequence[BeamState], log_probs: Float[Tensor, "beams V"]) -> list[Chosen]:
    """Advance every state; their beams' rows lie one state behind the other.

    The candidates of all states with equally many beams are ranked, and brought to the host, at once.
    """
    vocab_size, first, chosen = log_probs.shape[-1], 0, []
    for (num_beams, num_candidates), grouped in groupby(states, lambda state: (len(state.beams), state.num_candidates)):
        alike = list(grouped)
        rows = log_probs[first : first + len(alike) * num_beams].reshape(len(alike), num_beams, vocab_size)
        first += len(alike) * num_beams
        totals = (rows + log_probs.new_tensor([state.scores for state in alike]).unsqueeze(-1)).flatten(1)
        top = totals.topk(min(num_candidates, totals.shape[1]))
        for state, scores, indices in zip(alike, top.values.tolist(), top.indices.tolist(), strict=True):
            ranked = zip(scores, indices, strict=True)
            chosen.append(state.take([(score, index // vocab_size, index % vocab_size) for score, index in ranked]))
    return chosen


def search(
    states: Sequence[BeamState],
    tokens: Sequence[int],
    log_probs_of: Callable[[Sequence[int]], Float[Tensor, "beams V"]],
    select: Callable[[Sequence[int]], None],
) -> Iterator[Sequence[int]]:
    """Advance all states together, one batch of the beams that still run, until each has finished.

    Args:
        states: one an input.
        tokens: each input's pending token, as ``Session.prefill`` gives them.
        log_probs_of: feeds every running beam its token: the log-probabilities of what follows.
        select: the running beams go on from these rows of the last batch.

    Yields:
        After every step of the search: which states took it.
    """
    running = [index for index, state in enumerate(states) if not state.finished()]
    if running and len(running) < len(states):
        select(running)
    pending = [tokens[index] for index in running]
    while running:
        counts = [len(states[index].beams) for index in running]
        steps = advance_all([states[index] for index in running], log_probs_of(pending))
        yield running
        rows: list[int] = []
        going_on: list[int] = []
        pending, first = [], 0
        for index, count, (parents, chosen) in zip(running, counts, steps, strict=True):
            if not states[index].finished():
                going_on.append(index)
                rows += [first + parent for parent in parents]
                pending += chosen
            first += count
        running = going_on
        if running:
            select(rows)


class BeamSearch:
    """Beam search of the target with ``num_beams`` beams: a deterministic baseline of its own, not equal to greedy.

    ``sampling`` other than greedy is refused, and one Step is recorded a step of the search (its ``emitted`` is 0 for steps
    past the winner's end). The beams of all rows of a batch that still run are one batch of the model.
    """

    guarantee: Guarantee = "lossy"

    def __init__(self, num_beams: int) -> None:
        if num_beams < 1:
            raise InputError(f"num_beams {num_beams!r}: expected an integer >= 1 (1 is greedy decoding)")
        self.num_beams = num_beams

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        if not sampling.greedy:
            raise InputError(f"temperature {sampling.temperature}: beam search draws nothing; set temperature 0")
        tokens = target.prefill(inputs)
        states = [BeamState(self.num_beams, replace(stop, max_new_tokens=budget)) for budget in stop.budgets(target)]
        times: list[list[float]] = [[] for _ in states]
        before = clock() if clock else float("nan")
        for stepped in search(states, tokens, partial(next_log_probs, target, device=target.device), target.select):
            now = clock() if clock else before
            for index in stepped:
                times[index].append(now - before)
            before = now
        return [as_generation(state, row) for state, row in zip(states, times, strict=True)]


def next_log_probs(target: TextSession, tokens: Sequence[int], device: torch.device) -> Float[Tensor, "beams V"]:
    """Extend every beam by its token and return the next log-probabilities."""
    return log_probs_of(target.extend(torch.tensor(tokens, device=device).unsqueeze(1))[:, -1])


def log_probs_of(logits: Float[Tensor, "*batch V"]) -> Float[Tensor, "*batch V"]:
    """Return log-probabilities in fp32 or better, as transformers has them: in half precision many would be equal."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def as_generation(state: BeamState, times: Sequence[float]) -> Generation:
    tokens = list(state.best())
    ended = bool(tokens) and tokens[-1] in state.stop.token_ids
    reason: StopReason = "eos" if ended else "length"
    steps = [Step([], 0, int(index < len(tokens)), round_s=time) for index, time in enumerate(times)]
    return Generation(tokens, steps, reason)
