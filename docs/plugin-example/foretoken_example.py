"""A plug-in: a task, a drafter, a verify rule and a table. Works installed (pyproject.toml) and as a file (``--plugin``)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from harness.core.experiment import DrafterSpec, MethodSpec, ModelSpec, comparison_id
from harness.core.settings import Settings
from harness.measures.of_run import accepted_over_drafted, tokens_per_step
from harness.tables.engine import Column, Row, Section, table
from harness.tables.roles import Roles, plain_decoding, role_model
from kernels.verify.reference import count_accepted
from methods.sampling import Sampling
from methods.speculative.drafters import DraftParts
from methods.speculative.per_row import PerRow, point_mass
from methods.types import Guarantee, Proposal, Verdict
from tasks.base import Example, PromptStyle, ReferenceScore, Statistics, Sums, Task, percent_of_mean
from tasks.text import DATASET


class LastWord(Task):
    """Continue a text; scored by whether the reference's last word comes up."""

    name = "last-word"
    dataset = replace(DATASET, name="last-word")
    max_new_tokens = 32
    metrics = ("last_word",)

    def prompt(self, example: Example, style: PromptStyle) -> str:
        return example.inputs["prompt"]

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        return {"num_examples": 1.0, "last_word": float(example.references[0].split()[-1] in output_text.split())}

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        return percent_of_mean(sums, self.metrics)


class PeriodDrafter:
    """Expects what came ``period`` tokens ago. A point mass: the rule needs no draft probabilities."""

    def __init__(self, vocab_size: int, period: int) -> None:
        self.vocab_size, self.period = vocab_size, period

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Tensor, sampling: Sampling) -> Proposal:
        last = list(text[-self.period :])
        return point_mass([last[i % len(last)] for i in range(num_draft)], sampling, uniforms.device)


def period(parts: DraftParts) -> PerRow:
    """Written for one row, lifted to batches by PerRow."""
    return PerRow(PeriodDrafter(parts.vocab_size, 2))


class AmongBest:
    """A lossy rule: a draft stands where it is among the target's best two; what follows is drawn from the target itself."""

    guarantee: Guarantee = "lossy"

    def __init__(self, best: int = 2) -> None:
        self.best = best

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        ranked = target_logits[:, :-1].topk(self.best, -1).indices
        stands = (ranked == proposal.tokens.unsqueeze(-1)).any(-1)
        lengths = torch.tensor(proposal.lengths, device=stands.device)
        num_accepted = count_accepted(stands, lengths)
        row = target_logits[torch.arange(len(lengths), device=stands.device), num_accepted]
        drafted = sampling.probs(target_logits)[:, :-1].gather(-1, proposal.tokens.unsqueeze(-1)).squeeze(-1)
        return Verdict(num_accepted, sampling.draw(row, uniforms[:, -1]), drafted, torch.ones_like(drafted))


ZOO, HUB = {"target": "zoo:gpt-target"}, {"target": "openai-community/gpt2"}
TARGETS: Roles = {"toy": ZOO, "test": ZOO, "small": HUB, "paper": HUB}
COMPARED = ("copy", "period")
PAPER = "foretoken-example"


def sections(settings: Settings) -> list[Section]:
    """Plain decoding and a drafter each beside it; a row a drafter. No paper has these numbers, so rows have no key."""
    plain = plain_decoding(
        settings,
        task="last-word",
        target=ModelSpec(name=str(role_model(TARGETS, settings, "target"))),
        limit=settings.limit or 8,
        max_new_tokens=32,
        comparison=comparison_id(PAPER, "table 1", settings.models),
    )
    drafting = {kind: MethodSpec.of("speculative", drafter=DrafterSpec(kind=kind), gamma=3) for kind in COMPARED}
    arms = {"plain": plain, **{kind: plain.replace(method=method) for kind, method in drafting.items()}}
    return [Section(arms, tuple(Row(kind, kind) for kind in COMPARED))]


DRAFTS = table(
    number=900,
    paper=PAPER,
    paper_number=1,
    title="drafts that need no model",
    row_heads=("drafter",),
    columns=(
        Column("tokens a round", lambda known, row: tokens_per_step(known[row.arm][1])),
        Column("accepted of drafted", lambda known, row: accepted_over_drafted(known[row.arm][1])),
    ),
    sections=sections,
    first_notes=lambda settings: ["greedy, gamma 3, at most 32 tokens; period: what came two tokens ago comes again"],
)

# What ``--plugin`` reads; an installed package has entry points instead.
TASKS = {"last-word": LastWord()}
DRAFTERS = {"period": period}
RULES = {"among-best": AmongBest}
TABLES = {900: DRAFTS}
