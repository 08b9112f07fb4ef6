"""Speculative beam search (Leviathan A.4): a draft model searches ahead, the target checks all candidates at once.

The result is that of ``methods.beam.BeamSearch`` with the target alone: every step is one ``BeamState.advance`` on the
target's log-probabilities. Drafting only lets several steps share one run of the target.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from methods.beam import BeamState, as_generation, log_probs_of, next_log_probs
from methods.errors import InputError
from methods.sampling import Sampling, Uniforms
from methods.steps import Step
from methods.types import Clock, Generation, Guarantee, Inputs, Session, Stop, TextSession

Beam = tuple[int, ...]


class SpeculativeBeamSearch:
    """Beam search of width ``num_beams`` (w) with drafts of width ``draft_beams`` (u >= w) over ``num_draft`` steps (gamma).

    A step is accepted while every beam that it leads to is among the drafted candidates of its depth, so that the target's
    law behind it is known already. A round asks the target for at most w + u gamma contexts, the paper's budget.

    The guarantee is that of beam search itself, whose tokens are not those of greedy decoding.

    Differs from the paper: the step after the last accepted one is taken from the same run, as the bonus token is.
    """

    guarantee: Guarantee = "lossy"

    def __init__(self, draft: TextSession, num_beams: int, draft_beams: int, num_draft: int) -> None:
        if num_draft < 1:
            raise InputError(f"num_draft {num_draft!r}: expected an integer >= 1; to draft nothing use beam search")
        if not 1 <= num_beams <= draft_beams:
            raise InputError(f"draft_beams {draft_beams!r}: expected at least num_beams {num_beams!r}, which is at least 1")
        self.draft, self.num_beams, self.draft_beams, self.num_draft = draft, num_beams, draft_beams, num_draft

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        if not sampling.greedy:
            raise InputError(f"temperature {sampling.temperature}: beam search draws nothing; set temperature 0")
        device = uniforms.table.device
        return [self._search(target, inputs.row(index), device, stop, clock) for index in range(inputs.batch)]

    def _search(self, target: Session, inputs: Inputs, device: torch.device, stop: Stop, clock: Clock | None) -> Generation:
        pending = target.prefill(inputs)
        limit = stop.budgets(target)[0]
        if limit < 1:
            return Generation([], [], "length")
        state = BeamState(self.num_beams, replace(stop, max_new_tokens=limit))
        lookahead = _Lookahead(self.draft, inputs, self.draft_beams, stop, device)
        checker = Checker(target, pending, device)
        times: list[float] = []
        accepted: list[int] = []
        while not state.finished():
            before = clock() if clock else float("nan")
            num_steps = sum(accepted) + len(accepted)
            levels = lookahead.levels(state, min(self.num_draft, limit - num_steps - 1))
            accepted.append(_advance(state, checker.check(state.beams, levels)) - 1)
            times.append((clock() if clock else float("nan")) - before)
            if not state.finished():
                checker.keep(state.beams)
                lookahead.keep(state.beams)
        return _generation(state, times, accepted)


def _advance(state: BeamState, laws: dict[Beam, Float[Tensor, "V"]]) -> int:
    """Take steps of the search while the law behind every running beam is known; return their number."""
    num_steps = 0
    while not state.finished() and all(beam in laws for beam in state.beams):
        state.advance(torch.stack([laws[beam] for beam in state.beams]))
        num_steps += 1
    return num_steps


class _Lookahead:
    """Beam search with the draft. The first rows of its session stay at the round's beams, the others run ahead."""

    def __init__(self, session: TextSession, inputs: Inputs, width: int, stop: Stop, device: torch.device) -> None:
        self.session, self.width, self.stop_ids, self.device = session, width, sorted(stop.token_ids), device
        self.unseen = [[token] for token in session.prefill(inputs)]
        self.roots: list[Beam] = [()]

    def levels(self, state: BeamState, num_draft: int) -> list[list[Beam]]:
        """Find each depth's candidates: the draft's best ``width`` continuations, fewer levels at its position limit."""
        limit, cached = self.session.position_limit, self.session.lengths[0][0]
        room = num_draft if limit is None else min(num_draft, limit - cached - len(self.unseen[0]))
        levels: list[list[Beam]] = []
        beams, scores = list(state.beams), torch.tensor(state.scores, device=self.device)
        for depth in range(max(0, room)):
            log_probs = self._root_laws() if depth == 0 else self._next_laws(levels[-1])
            beams, scores, parents = self._best(beams, scores, log_probs)
            levels.append(beams)
            num_roots = len(self.roots)
            self.session.select([*range(num_roots), *(parent + (num_roots if depth else 0) for parent in parents)])
        return levels

    def _root_laws(self) -> Float[Tensor, "beams V"]:
        logits = self.session.extend(torch.tensor(self.unseen, device=self.device))[:, -1]
        self.unseen = [[] for _ in self.roots]
        return log_probs_of(logits)

    def _next_laws(self, level: Sequence[Beam]) -> Float[Tensor, "beams V"]:
        num_roots = len(self.roots)
        tokens = [0] * num_roots + [beam[-1] for beam in level]
        log_probs = next_log_probs(self.session, tokens, self.device)
        self.session.rewind([1] * num_roots + [0] * len(level))
        return log_probs[num_roots:]

    def _best(
        self, beams: Sequence[Beam], scores: Float[Tensor, " beams"], log_probs: Float[Tensor, "beams V"]
    ) -> tuple[list[Beam], Tensor, list[int]]:
        """Rank the continuations. None ends in a stopping token: such a hypothesis does not run on."""
        totals = log_probs + scores.unsqueeze(-1)
        totals[:, self.stop_ids] = float("-inf")
        vocab_size = totals.shape[-1]
        available = len(beams) * (vocab_size - len(self.stop_ids))
        top = totals.flatten().topk(min(self.width, available))
        pairs = [divmod(index, vocab_size) for index in top.indices.tolist()]
        return [(*beams[parent], token) for parent, token in pairs], top.values, [parent for parent, _ in pairs]

    def keep(self, beams: Sequence[Beam]) -> None:
        """Return to the round's beams, each new one behind the old one that it continues."""
        depth = len(self.roots[0])
        rows = [self.roots.index(beam[:depth]) for beam in beams]
        self.session.select(rows)
        self.unseen = [[*self.unseen[row], *beam[depth:]] for row, beam in zip(rows, beams, strict=True)]
        self.roots = list(beams)


class Checker:
    """The target's side: all candidates in one run, a row for each path that no longer one contains."""

    def __init__(self, session: Session, pending: Sequence[int], device: torch.device) -> None:
        self.session, self.device = session, device
        self.roots: list[Beam] = [()]
        self.pending = list(pending)
        self.paths: list[Beam] = []

    def check(self, roots: Sequence[Beam], levels: Sequence[Sequence[Beam]]) -> dict[Beam, Float[Tensor, "V"]]:
        """Compute the log-probabilities behind every root and candidate."""
        depth, self.paths = len(roots[0]), _leaves(roots, levels)
        rows = [self.roots.index(path[:depth]) for path in self.paths]
        width = max(map(len, self.paths)) - depth + 1
        self.session.select(rows)
        fed = [[self.pending[row], *path[depth:]] for row, path in zip(rows, self.paths, strict=True)]
        padded = [[*row, *[0] * (width - len(row))] for row in fed]
        logits = self.session.extend(torch.tensor(padded, device=self.device))
        self.session.rewind([width - len(row) for row in fed])
        log_probs = log_probs_of(logits)
        return {
            path[: depth + offset]: log_probs[row, offset]
            for row, path in enumerate(self.paths)
            for offset in range(len(path) - depth + 1)
        }

    def keep(self, beams: Sequence[Beam]) -> None:
        """Keep for each beam a row that has cached all of it but its last token, which is pending."""
        known = len(beams[0]) - 1
        rows = [next(row for row, path in enumerate(self.paths) if path[:known] == beam[:known]) for beam in beams]
        self.session.select(rows)
        self.session.rewind([len(self.paths[row]) - known for row in rows])
        self.roots, self.pending = list(beams), [beam[-1] for beam in beams]


def _leaves(roots: Sequence[Beam], levels: Sequence[Sequence[Beam]]) -> list[Beam]:
    """Return the candidates (and roots) that no other one continues."""
    continued = {beam[:-1] for level in levels for beam in level}
    return [beam for level in (roots, *levels) for beam in level if beam not in continued]


def _generation(state: BeamState, times: Sequence[float], accepted: Sequence[int]) -> Generation:
    """Record one Step a round. Beams share no draft, so the accepted steps of the search are counted, not their tokens."""
    generation = as_generation(state, times)
    left = len(generation.tokens)
    steps = []
    for round_s, count in zip(times, accepted, strict=True):
        emitted = min(count + 1, left)
        left -= emitted
        steps.append(Step([], count, emitted, round_s=round_s))
    return Generation(generation.tokens, steps, generation.stop_reason)
