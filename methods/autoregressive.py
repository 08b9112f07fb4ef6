"""Plain decoding, one token a step. It is the baseline of every other method, and so kept very lean."""

from collections.abc import Sequence

import torch

from kernels.verify.interface import refuse_nan, refuse_token
from methods.sampling import Sampling, Uniforms
from methods.steps import Step
from methods.types import Clock, Generation, Guarantee, Inputs, Session, Stop


class Autoregressive:
    """Greedy decoding or sampling from the target alone. A row stops at EOS, at its length or at the position limit."""

    guarantee: Guarantee = "identical"

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
        position, round_s, extend, greedy = 0, float("nan"), target.extend, sampling.greedy
        before = clock() if clock else 0.0
        while running:
            logits = extend(tokens)[:, -1]
            if greedy:
                tokens = logits.argmax(-1, keepdim=True)
            else:
                tokens = sampling.draw(logits, uniforms.sample([position] * len(running))).unsqueeze(1)
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


def _keep(target: Session, tokens: torch.Tensor, uniforms: Uniforms, rows: Sequence[int]) -> tuple[torch.Tensor, Uniforms]:
    """Drop the rows that have ended."""
    if rows:
        target.select(rows)
    return tokens[list(rows)], uniforms.select(rows)
