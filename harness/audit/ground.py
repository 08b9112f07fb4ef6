"""What the checks of subjects that share a plain arm have in common: models, prompts, texts to look along, and laws."""

from collections.abc import Callable
from functools import cached_property

import torch

from harness.audit.laws import Window, windows_of
from harness.audit.subjects import Sizes
from harness.build import build_drafter
from harness.decode import default_threads
from harness.experiment import DrafterSpec, Experiment
from harness.models import LoadedModel
from harness.prompts import Prompt, make_prompt, seed_of
from harness.runner import Runner
from methods.autoregressive import Autoregressive
from methods.goodness import Laws, Sampled, draw_rows
from methods.sampling import Uniforms
from methods.types import Inputs, Method
from tasks import get_task

NUM_DRAFT = 3  # of a round that is sampled; a subject's gamma
NUM_POSITIONS = NUM_DRAFT + 2  # so that second rounds are looked at
WINDOW_DRAFTS, WINDOW_TEXTS, TEXT_TOKENS = 2, 4, 24
MAX_CELLS = 16


class Ground:
    """Made for a pinned plain experiment; everything is computed when first asked for."""

    def __init__(self, plain: Experiment, sizes: Sizes, runner: Runner) -> None:
        self.plain, self.sizes, self.models = plain, sizes, runner.models(plain)

    @cached_property
    def target(self) -> LoadedModel:
        return self.models.get(self.plain.target)

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        task, plain = get_task(self.plain.task), self.plain
        examples = task.examples(plain.source, "test", plain.limit, plain.seed)
        return {example.id: make_prompt(task, example, plain, self.target) for example in examples}

    @cached_property
    def inputs(self) -> dict[str, Inputs]:
        """One row an example: its first window. Of a decoder-only model's prompt it is the beginning, as many rows are sampled
        from it, and that twice, so that a drafter that copies finds what it looks for."""
        rows = {name: prompt.windows()[0] for name, prompt in self.prompts.items()}
        if self.target.is_encoder_decoder:
            return rows
        return {name: Inputs((2 * row.prompts[0][: self.sizes.prefix_tokens],)) for name, row in rows.items()}

    @cached_property
    def prefixes(self) -> list[Inputs]:
        """The shortest: many rows share each."""
        return sorted(self.inputs.values(), key=lambda row: len(row.prompts[0]))[: self.sizes.prefixes]

    @cached_property
    def laws(self) -> Laws:
        return Laws(self.target.session(), self.plain.sampling, MAX_CELLS)

    @cached_property
    def texts(self) -> dict[str, list[int]]:
        """What plain sampling writes behind a few prompts."""
        method, chosen = Autoregressive(), list(self.inputs.items())[:WINDOW_TEXTS]
        return {
            name: self.draw(method, inputs, [seed_of(self.plain, name, 0)], TEXT_TOKENS).rows[0].tokens
            for name, inputs in chosen
        }

    def windows(self, spec: DrafterSpec, count: int, kept: int) -> list[tuple[str, Window]]:
        """Real target and draft laws, each with the example that it is from."""
        drafter, sampling = build_drafter(spec, self.target, self.models), self.plain.sampling
        return [
            (name, window)
            for name, tokens in self.texts.items()
            for window in windows_of(
                self.target.session(), drafter, self.inputs[name], tokens, sampling, WINDOW_DRAFTS, count, kept
            )
        ]

    def draw(
        self,
        method: Method,
        inputs: Inputs,
        seeds: list[int],
        length: int = NUM_POSITIONS,
        uniforms_of: Callable[..., Uniforms] = Uniforms,
    ) -> Sampled:
        torch.set_num_threads(default_threads())
        session, batch = self.target.session(), self.sizes.batch
        return draw_rows(method, session, inputs, self.plain.sampling, seeds, length, batch, uniforms_of)

    def samples(
        self,
        method: Method,
        series: int = 0,
        uniforms_of: Callable[..., Uniforms] = Uniforms,
        count: int | None = None,
    ) -> list[Sampled]:
        """``count`` (or ``sizes.samples``) outputs, shared out among the prefixes; another ``series`` has other seeds."""
        each = (count or self.sizes.samples) // len(self.prefixes)
        drawn = []
        for number, inputs in enumerate(self.prefixes):
            first = seed_of(self.plain, f"audit {number}", series) % 2**40
            drawn.append(self.draw(method, inputs, list(range(first, first + each)), uniforms_of=uniforms_of))
        return drawn
