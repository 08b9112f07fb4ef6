"""The ground of an audit: the models, prompts, texts and laws that the checks of one plain experiment share."""

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import cached_property

import torch

from harness.core.experiment import Experiment
from harness.exact.fit import FALSE_ALARM, Laws, Sampled, draw_rows
from harness.exact.law import Window, windows_of
from harness.exact.subjects import Sizes
from harness.models.fit import Models
from harness.models.loading import LoadedModel
from harness.run.decode import default_threads
from harness.run.prompts import Prompt, examples_of, make_prompt, seed_of
from harness.run.replay import Reader
from kernels.inputs import SamplingSpec
from methods.autoregressive import Autoregressive
from methods.sampling import Sampling, Uniforms
from methods.static import Room
from methods.types import Drafter, Inputs, Method, Session
from tasks import get_task

MAX_TESTS = 2000
TEST_LEVEL = FALSE_ALARM / MAX_TESTS
NUM_DRAFT = 3  # drafts of a round that is sampled; a subject's gamma
NUM_POSITIONS = NUM_DRAFT + 2  # sampled tokens: second rounds are tested too
WINDOW_DRAFTS, WINDOW_TEXTS, TEXT_TOKENS = 2, 4, 24
LONG, LONG_ROWS = 140, 2  # tokens and rows of a prompt's outputs that are replayed: caches have grown twice by then
HALF_ROWS = 6  # rows in half precision: rounding may have moved each decision, so that each alone shows less


class Ground:
    """A target, a sampling and named prompts (one row each) on which methods are checked.

    ``level`` is the false alarm of one test of samples.
    """

    def __init__(
        self,
        new_session: Callable[[], Session],
        sampling: SamplingSpec,
        sizes: Sizes,
        make_inputs: Callable[[], Mapping[str, Inputs]],
        level: float = TEST_LEVEL,
    ) -> None:
        self.new_session, self.sampling, self.sizes, self.level = new_session, Sampling.of(sampling), sizes, level
        self.make_inputs = make_inputs

    @cached_property
    def inputs(self) -> Mapping[str, Inputs]:
        return self.make_inputs()

    @cached_property
    def prefixes(self) -> list[Inputs]:
        """The shortest prompts: many rows are sampled from each."""
        return sorted(self.inputs.values(), key=lambda row: len(row.prompts[0]))[: self.sizes.prefixes]

    @property
    def decoding(self) -> Session:
        """The session that a method decodes with; others read."""
        return self.new_session()

    @cached_property
    def laws(self) -> Laws:
        return Laws(self.new_session(), self.sampling)

    def seed(self, name: str, series: int) -> int:
        """Return the first of the seeds that belong to this name; each ``series`` has other ones."""
        return series * 2**20

    @cached_property
    def texts(self) -> dict[str, list[int]]:
        """Texts that plain sampling writes behind a few prompts."""
        method, chosen = Autoregressive(), list(self.inputs.items())[:WINDOW_TEXTS]
        return {name: self.draw(method, inputs, [self.seed(name, 0)], TEXT_TOKENS)[1][0].tokens for name, inputs in chosen}

    def windows(self, drafter: Drafter, count: int, kept: int) -> list[tuple[str, Window]]:
        """Return windows of real target and draft laws along the texts, each with the name of its prompt."""
        return [
            (name, window)
            for name, tokens in self.texts.items()
            for window in windows_of(
                self.new_session(), drafter, self.inputs[name], tokens, self.sampling, WINDOW_DRAFTS, count, kept
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
        return draw_rows(method, self.decoding, inputs, self.sampling, seeds, length, self.sizes.batch, uniforms_of)

    def samples(
        self,
        method: Method,
        series: int = 0,
        uniforms_of: Callable[..., Uniforms] = Uniforms,
        count: int | None = None,
    ) -> list[Sampled]:
        """Draw ``count`` (or ``sizes.samples``) outputs, shared out among the prefixes; each ``series`` has its own seeds."""
        each = (count or self.sizes.samples) // len(self.prefixes)
        drawn = []
        for number, inputs in enumerate(self.prefixes):
            first = self.seed(f"audit {number}", series) % 2**40
            drawn.append(self.draw(method, inputs, list(range(first, first + each)), uniforms_of=uniforms_of))
        return drawn


class ModelGround(Ground):
    """The ground of a pinned plain experiment. Models are loaded and texts written when first asked for."""

    def __init__(self, plain: Experiment, sizes: Sizes, models: Models) -> None:
        super().__init__(lambda: self.target.session(), plain.sampling, sizes, self._shorten_prompts)
        self.plain, self.models = plain, models

    def in_dtype(self, dtype: str) -> "ModelGround":
        """Return this ground, or one of the same models in another dtype; weights that are rounded are whole there."""
        if dtype == self.models.dtype or self.plain.dtype != "float32":
            return self
        plain = self.plain.with_models(lambda spec: spec.whole).replace(dtype=dtype)
        return ModelGround(plain, self.sizes, Models(self.models.device, dtype, self.plain.attention))

    @cached_property
    def target(self) -> LoadedModel:
        return self.models.get(self.plain.target)

    @property
    def replayed_rows(self) -> int:
        return HALF_ROWS if self.plain.dtype in ("float16", "bfloat16") else LONG_ROWS

    @cached_property
    def built(self) -> Models:
        """The models that methods are built with: with graphs there is room for the largest batch and the longest output."""
        if not self.plain.graphs:
            return self.models
        longest = max(len(prompt) for inputs in self.inputs.values() for prompt in inputs.prompts)
        return replace(self.models, room=Room(max(self.sizes.batch, self.replayed_rows), longest, LONG))

    @cached_property
    def _fixed(self) -> Session:
        return self.built.session(self.target, NUM_DRAFT + 1)

    @property
    def decoding(self) -> Session:
        return self._fixed if self.plain.graphs else super().decoding

    @cached_property
    def reader(self) -> Reader:
        """What reads texts for replays; those of subjects that write the same are read once."""
        return Reader(self.target, self.sampling, self.models)

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        return prompts_of(self.plain, self.target)

    def _shorten_prompts(self) -> Mapping[str, Inputs]:
        """Return the first window of every prompt.

        Of a decoder-only model's prompt it is the beginning, since many rows are sampled from it, and that twice, so that a
        drafter that copies finds something.
        """
        rows = {name: prompt.windows()[0] for name, prompt in self.prompts.items()}
        if self.target.is_encoder_decoder:
            return rows
        return {name: Inputs((2 * row.prompts[0][: self.sizes.prefix_tokens],)) for name, row in rows.items()}

    def seed(self, name: str, series: int) -> int:
        return seed_of(self.plain, name, series)


def prompts_of(experiment: Experiment, target: LoadedModel, chosen: Container[str] | None = None) -> dict[str, Prompt]:
    """Read an experiment's examples, or the chosen ones, and return their prompts by example id."""
    task = get_task(experiment.task)
    wanted = (example for example in examples_of(experiment) if chosen is None or example.id in chosen)
    return {example.id: make_prompt(task, example, experiment, target) for example in wanted}
