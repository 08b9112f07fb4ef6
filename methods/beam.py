"""Beam search (Wu et al. 2016; the baseline of Leviathan A.4), token for token what transformers' ``generate`` gives.

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

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from methods.autoregressive import token_budgets
from methods.errors import InputError
from methods.sampling import Sampling, Uniforms
from methods.types import Clock, Generation, Guarantee, Inputs, Session, Step, Stop, StopReason


class BeamState:
    """The running and the finished hypotheses of one example.

    Args:
        num_beams: w, how many beams run.
        stop: tokens that end a hypothesis; ``max_new_tokens`` bounds its length (also for ``early_stopping="never"``).
        length_penalty: a hypothesis scores its log-probability / length**length_penalty, the EOS counted.
        early_stopping: True ends with ``num_beams`` finished; False when the best running beam, judged at its present
            length, cannot enter; "never" judges it at the greatest length if the penalty favours long ones.
    """

    def __init__(self, num_beams: int, stop: Stop, length_penalty: float = 1.0, early_stopping: bool | str = False) -> None:
        self.num_beams, self.stop = num_beams, stop
        self.length_penalty, self.early_stopping = length_penalty, early_stopping
        self.num_candidates = max(2, 1 + len(stop.token_ids)) * num_beams
        self.beams: list[tuple[int, ...]] = [()]
        self.scores: list[float] = [0.0]
        self.finalized: list[tuple[float, tuple[int, ...]]] = []
        self._length = 0

    def advance(self, log_probs: Float[Tensor, "beams V"]) -> tuple[list[int], list[int]]:
        """One step from the next token's log-probabilities; each new beam's parent and token, best first.

        The best num_candidates continuations are ranked. One that stops is finalized if it is among the first
        num_beams; the best num_beams that do not stop run on. At the length limit every continuation stops.
        """
        candidates = self._candidates(log_probs)
        self._length += 1
        at_limit = self._length >= self.stop.max_new_tokens
        kept = []
        for rank, (score, parent, token) in enumerate(candidates):
            if not (at_limit or token in self.stop.token_ids):
                kept.append((score, parent, token))
            elif rank < self.num_beams:
                self._finalize(score, (*self.beams[parent], token))
        kept = (candidates if at_limit else kept)[: self.num_beams]
        self.beams = [(*self.beams[parent], token) for _, parent, token in kept]
        self.scores = [score for score, _, _ in kept]
        return [parent for _, parent, _ in kept], [token for _, _, token in kept]

    def finished(self) -> bool:
        """Whether no running beam can, or at the limit may, change the result."""
        if self._length >= self.stop.max_new_tokens or not self.beams:
            return True
        if len(self.finalized) < self.num_beams:
            return False
        if self.early_stopping is True:
            return True
        favours_long = self.early_stopping == "never" and self.length_penalty > 0
        length = self.stop.max_new_tokens if favours_long else self._length
        return self.scores[0] / length**self.length_penalty <= self.finalized[-1][0]

    def best(self) -> tuple[int, ...]:
        return self.finalized[0][1] if self.finalized else ()

    def _candidates(self, log_probs: Float[Tensor, "beams V"]) -> list[tuple[float, int, int]]:
        vocab_size = log_probs.shape[-1]
        totals = log_probs + log_probs.new_tensor(self.scores).unsqueeze(-1)
        top = totals.flatten().topk(min(self.num_candidates, totals.numel()))
        pairs = zip(top.values.tolist(), top.indices.tolist(), strict=True)
        return [(score, index // vocab_size, index % vocab_size) for score, index in pairs]

    def _finalize(self, log_prob: float, tokens: tuple[int, ...]) -> None:
        entry = (log_prob / len(tokens) ** self.length_penalty, tokens)
        ranked = sorted([*self.finalized, entry], key=lambda one: one[0], reverse=True)
        self.finalized = ranked[: self.num_beams]


class BeamSearch:
    """Beam search of the target with ``num_beams`` beams: a deterministic baseline of its own, not equal to greedy.

    ``sampling`` other than greedy is refused, and one Step is recorded a step of the search (its ``emitted`` is 0 for steps
    past the winner's end). Rows of a batch are searched one after another.
    """

    guarantee: Guarantee = "lossy"

    def __init__(self, num_beams: int, length_penalty: float = 1.0, early_stopping: bool | str = False) -> None:
        if num_beams < 1:
            raise InputError(f"num_beams {num_beams!r}: expected an integer >= 1 (1 is greedy decoding)")
        if early_stopping not in (True, False, "never"):
            raise InputError(f"early_stopping {early_stopping!r}: expected True, False or 'never'")
        self.num_beams, self.length_penalty, self.early_stopping = num_beams, length_penalty, early_stopping

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        if not sampling.greedy:
            raise InputError(f"temperature {sampling.temperature}: beam search draws nothing; set temperature 0")
        return [self._search(target, inputs.row(index), stop, clock) for index in range(inputs.batch)]

    def _search(self, target: Session, inputs: Inputs, stop: Stop, clock: Clock | None) -> Generation:
        tokens = target.prefill(inputs)
        budget = token_budgets(target, stop)[0]
        if budget < 1:
            return Generation([], [], "length")
        state = BeamState(self.num_beams, replace(stop, max_new_tokens=budget), self.length_penalty, self.early_stopping)
        times: list[float] = []
        before = clock() if clock else float("nan")
        while True:
            parents, tokens = state.advance(next_log_probs(target, tokens, target.device))
            if clock:
                now = clock()
                times.append(now - before)
                before = now
            if state.finished():
                return as_generation(state, times)
            target.select(parents)


def next_log_probs(target: Session, tokens: Sequence[int], device: torch.device) -> Float[Tensor, "beams V"]:
    """Extend every beam by its token; log-probabilities of what follows, in fp32 or better as transformers has them."""
    logits = target.extend(torch.tensor(tokens, device=device).unsqueeze(1))[:, -1]
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def as_generation(state: BeamState, times: Sequence[float]) -> Generation:
    tokens = list(state.best())
    ended = bool(tokens) and tokens[-1] in state.stop.token_ids
    reason: StopReason = "eos" if ended else "length"
    steps = [Step([], 0, int(index < len(tokens)), round_s=time) for index, time in enumerate(times)]
    return Generation(tokens, steps, reason)
