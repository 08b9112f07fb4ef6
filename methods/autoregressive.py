"""Plain decoding, one token a step. It is the baseline of every other method, and so kept very lean."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.transfer import bring
from kernels.verify.interface import refuse_nan, refuse_token
from methods.sampling import LaidUniforms, Sampling, Uniforms
from methods.session import ModelSession
from methods.static import StaticSession
from methods.steps import Step
from methods.types import Clock, Generation, Guarantee, Inputs, Session, Stop


class Autoregressive:
    """Greedy decoding or sampling from the target alone. A row stops at EOS, at its length or at the position limit."""

    guarantee: Guarantee = "identical"

    def __init__(self) -> None:
        self._captured: dict[tuple[Session, Sampling], _CapturedToken] = {}

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        pending = target.prefill(inputs)
        generations = [Generation([], [], "length") for _ in pending]
        budgets = stop.budgets(target)
        running = [row for row, budget in enumerate(budgets) if budget > 0]
        tokens = torch.tensor(pending, device=target.device).unsqueeze(1)
        if len(running) < len(pending):
            tokens, uniforms = _keep(target, tokens, uniforms, running)
        position, round_s, greedy = 0, float("nan"), sampling.greedy
        before = clock() if clock else 0.0
        while running:
            tokens, logits = self._next(target, tokens, position, sampling, uniforms)
            drawn = tokens.tolist()
            if not greedy:
                for index, (token,) in enumerate(drawn):
                    refuse_token(index, token, target.vocab_size, position)
            if clock:
                now = clock()
                round_s, before = now - before, now
            going_on = []
            for index, row in enumerate(running):
                emitted, reason = stop.cut(drawn[index], budgets[row] - position)
                generations[row].add(emitted, Step([], 0, 1, stop_reason=reason, round_s=round_s))
                if reason is None:
                    going_on.append(index)
            position += 1
            if len(going_on) < len(running):
                refuse_nan(logits)
                running = [running[index] for index in going_on]
                if running:
                    tokens, uniforms = _keep(target, tokens, uniforms, going_on)
        return generations

    def _next(
        self, target: Session, tokens: Int[Tensor, "B 1"], position: int, sampling: Sampling, uniforms: Uniforms
    ) -> tuple[Int[Tensor, "B 1"], Float[Tensor, "B V"]]:
        """Return the token behind these of every row, and the logits that it is drawn from."""
        if isinstance(target, StaticSession):
            captured = self._captured.get((target, sampling))
            if captured is None:
                captured = self._captured[target, sampling] = _CapturedToken(target, sampling)
            if captured.uniforms.can_hold(uniforms) and not target.begins_output(1):
                return captured(tokens, position, uniforms)
        drawn_by = None if sampling.greedy else uniforms.sample([position] * len(tokens)).unsqueeze(1)
        if isinstance(target, ModelSession) and target.is_compiled and len(tokens) == 1:  # the token lies on the host
            drafted = target.draft(tokens[0].tolist(), 1, sampling, drawn_by)
            if drafted is not None:
                return drafted[0], drafted[1][:, -1]
        logits = target.extend(tokens)[:, -1]
        if drawn_by is None:
            return logits.argmax(-1, keepdim=True), logits
        return sampling.draw(logits, drawn_by.squeeze(1)).unsqueeze(1), logits


class _CapturedToken:
    """A pass over one token and the draw behind it, one launch over a session of fixed shapes."""

    @torch.inference_mode()
    def __init__(self, session: StaticSession, sampling: Sampling) -> None:
        self.session, self.sampling = session, sampling
        self.uniforms = LaidUniforms(session.rows, session.capacity, session.device)
        self.given = torch.zeros(session.rows, 2, dtype=torch.long, device=session.device)  # cached tokens, and the position
        self.tokens = torch.zeros(session.rows, 1, dtype=torch.long, device=session.device)
        self.step = session.capture(self._draw)

    def __call__(
        self, tokens: Int[Tensor, "B 1"], position: int, uniforms: Uniforms
    ) -> tuple[Int[Tensor, "B 1"], Float[Tensor, "B V"]]:
        session, rows = self.session, len(tokens)
        bring([*([start, position] for start in session.starts(rows, 1)), *[[0, 0]] * (session.rows - rows)], self.given)
        self.uniforms.hold(uniforms)
        self.tokens[:rows].copy_(tokens)
        drawn, hidden, logits = self.step()
        session.advance([1] * rows)
        session.hidden = hidden[:rows]
        return drawn[:rows], logits[:rows]

    def _draw(self) -> tuple[Int[Tensor, "rows 1"], Float[Tensor, "rows 1 D"], Float[Tensor, "rows V"]]:
        hidden, logits = self.session.pass_at(self.tokens, self.given[:, 0])
        last = logits[:, -1]
        if self.sampling.greedy:
            return last.argmax(-1, keepdim=True), hidden, last
        return self.sampling.draw(last, self.uniforms.sample(self.given[:, 1])).unsqueeze(1), hidden, last


def _keep(target: Session, tokens: torch.Tensor, uniforms: Uniforms, rows: Sequence[int]) -> tuple[torch.Tensor, Uniforms]:
    """Drop the rows that have ended."""
    if rows:
        target.select(rows)
    return tokens[list(rows)], uniforms.select(rows)
