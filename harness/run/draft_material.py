"""A target's next-token laws along what it writes: the material that a draft is distilled from (`foretoken draft`).

The target answers prompts of the tasks' training parts, as runs give them, a batch greedily and a batch at temperature 1 in
turn. Of its law at every place, of the prompt too, the likeliest tokens are kept. A Whisper writes down recordings, and what
its encoder made of each is kept, too. A batch is a file of the cache, so that a killed collection goes on, and drafts of other
sizes learn from the same.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

import tasks
from harness.core.errors import UsageError
from harness.core.experiment import Experiment, MethodSpec, ModelSpec
from harness.core.files import short_hash
from harness.models.loading import LoadedModel
from harness.run import draft_sounds
from harness.run.prompts import make_prompt
from harness.zoo.cache import explained, locked, model_folder
from harness.zoo.state import judged, load_state, save_state
from methods.types import Inputs
from tasks.base import DataError, Example, Task
from tasks.sources.read import read_examples
from tasks.sources.rows import Rows
from tasks.sources.source import Source

LIKELIEST = 64  # tokens of a law that are kept
ROWS = 16  # texts that are written together, and whose laws are a file
MOST_EXAMPLES = 5000  # of a task, drawn by the seed
CODE_VERSION = 2  # of what is written and read: part of the name of its folder


@dataclass(frozen=True, kw_only=True)
class Material:
    """Everything that decides what is written and read but for the processor. ``target`` is pinned.

    Lengths are tokens: of a prompt at most ``max_input_tokens``, whose longest field is cut as in a run, and of an answer.
    """

    target: ModelSpec
    tasks: tuple[str, ...]
    source: str
    max_input_tokens: int
    max_new_tokens: int
    chat_template: bool
    seed: int

    @property
    def identity(self) -> str:
        """The hash of these fields, with the data's content in place of its name."""
        data = [tasks.fingerprint(task, self._parts_of(task)) for task in self.tasks]
        said = [CODE_VERSION, asdict(self) | {"source": None}, data]
        return short_hash(json.dumps(said, sort_keys=True))

    @property
    def folder(self) -> Path:
        return model_folder("laws", self.identity)

    def prompts(self, target: LoadedModel) -> Iterator["Asked"]:
        """Yield prompts as a run gives them, of all tasks in turn."""
        if target.listener is not None:
            examples = ((name, example) for name, _, example in self._examples())
            sounds = draft_sounds.recordings(examples, target.listener.extractor.n_samples, 2 * ROWS, self.seed)
            yield from (Asked(group, target.opening, samples) for group, samples in sounds)
            return
        for name, task, example in self._examples():
            asked = Experiment(
                task=name,
                source=self.source,
                target=self.target,
                method=MethodSpec(name="autoregressive"),
                max_input_tokens=self.max_input_tokens,
                max_new_tokens=self.max_new_tokens,
                chat_template=self.chat_template,
            )
            yield Asked(f"{name} {task.dataset.group(example)}", make_prompt(task, example, asked, target).tokens)

    def rows(self, num_texts: int) -> dict[str, Any]:
        """Return, as JSON, hashes of the rows that the first ``num_texts`` readings are of, those held out too.

        A recording of several windows is one row: where there are such, rows may be noted that were not read.
        """
        return Rows.of((task, example) for _, task, example in islice(self._examples(), num_texts)).as_dict()

    def _examples(self) -> Iterator[tuple[str, Task, Example]]:
        """Yield the rows that are asked about, of all tasks in turn."""
        streams = [self._examples_of(name) for name in self.tasks]
        while streams:
            for stream in list(streams):
                if (found := next(stream, None)) is None:
                    streams.remove(stream)
                else:
                    yield found

    def _examples_of(self, name: str) -> Iterator[tuple[str, Task, Example]]:
        task, source = tasks.get_training_task(name), self._parts_of(name)
        return ((name, task, example) for example in read_examples(task, source, "train", MOST_EXAMPLES, self.seed))

    def _parts_of(self, name: str) -> str:
        """Return the source of a task's rows, parted where it would be a test set as a whole."""
        if tasks.get_training_task(name).dataset.splits_one_file:
            return self.source
        return Source.of(self.source).in_parts().text


@dataclass(frozen=True)
class Asked:
    """A prompt and the group of rows that it belongs to; of a target that hears its forced tokens, and what makes samples."""

    group: str
    tokens: tuple[int, ...]
    samples: Callable[[], np.ndarray] | None = None


@dataclass(frozen=True)
class Reading:
    """A prompt with the target's answer, and its laws behind every token but the last: the likeliest tokens, their
    probabilities. ``group``: what must not stand among both learned and held-out texts. ``heard``: the states of the target's
    encoder, where it hears; it says nothing of its prompt then, whose laws but for the last place have no mass.
    """

    tokens: Int[Tensor, " n"]
    num_prompt: int
    likely: Int[Tensor, "m k"]
    probs: Float[Tensor, "m k"]
    is_greedy: bool
    group: str
    heard: Float[Tensor, "S D"] | None = None


def collect(material: Material, target: LoadedModel, num_texts: int | None, is_over: Callable[[], bool]) -> list[Reading]:
    """Return the first ``num_texts`` readings, or all that are there and as many more as time allows.

    ``is_over`` is asked before each batch that the cache lacks; at least two batches are made.

    Raises:
        DataError: fewer than two prompts.
        UsageError: a damaged file of the cache, or a prompt that does not fit.
    """
    folder, found = material.folder, list[Reading]()
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    prompts = material.prompts(target)
    bar = tqdm(desc=f"write and read with {target.name}", unit="texts", total=num_texts)
    with locked(folder / ".lock"), bar:
        for number in range(10**9):
            if num_texts is not None and len(found) >= num_texts:
                break
            path = folder / f"{number:05d}.pt"
            asked = list(islice(prompts, ROWS))
            if os.path.lexists(path):
                chunk = _read_back(path, asked, number, target)
            elif not asked or (num_texts is None and number >= 2 and is_over()):
                break
            else:
                chunk = _write_and_read(material, target, asked, number)
                save_state([vars(one) for one in chunk], path)
            found += chunk
            bar.update(len(chunk))
    if len(found) < 2:
        raise DataError(f"data '{material.source}': {len(found)} prompts of {', '.join(material.tasks)}; expected at least 2")
    return found[:num_texts]


def _read_back(path: Path, asked: Sequence[Asked], number: int, target: LoadedModel) -> list[Reading]:
    """Read a file of laws. UsageError unless it answers these very prompts, greedily or not, with laws that can be."""
    with judged(path):
        found = [Reading(**one) for one in load_state(path, torch.device("cpu"))]
        answered = [(one.group, tuple(one.tokens[: one.num_prompt].tolist())) for one in found]
        if answered != [(one.group, one.tokens) for one in asked]:
            raise ValueError("it answers other prompts")
        vocab_size = target.vocab_size
        for one in found:
            _check_heard(one, target)
            shape = (len(one.tokens) - 1, min(LIKELIEST, vocab_size))
            kinds = (one.likely.dtype, one.probs.dtype, one.likely.shape, one.probs.shape)
            if kinds != (torch.int, torch.half, shape, shape) or one.is_greedy is not (number % 2 == 0):
                raise ValueError("its laws are of another kind")
            tokens = torch.cat([one.tokens, one.likely.flatten()])
            if tokens.min() < 0 or tokens.max() >= vocab_size or not bool(((one.probs >= 0) & (one.probs <= 1)).all()):
                raise ValueError("it holds no tokens or no probabilities")
        return found


def _check_heard(one: Reading, target: LoadedModel) -> None:
    """ValueError for states that no encoder of the target makes."""
    kind = None if one.heard is None else (one.heard.dtype, tuple(one.heard.shape))
    expected = None
    if target.listener is not None:
        expected = torch.half, (target.stack.source_length, target.stack.model.config.d_model)
    if kind != expected:
        raise ValueError("what was heard is of another kind")
    if one.heard is not None and not bool(one.heard.isfinite().all()):
        raise ValueError("what was heard is not finite")


def _features(target: LoadedModel, asked: Sequence[Asked]) -> Float[Tensor, "b mels frames"] | None:
    """Return what a target that hears is given; None for others."""
    if target.listener is None:
        return None
    return torch.cat([target.listener.features(one.samples()) for one in asked if one.samples is not None])


@torch.inference_mode()
def _write_and_read(material: Material, target: LoadedModel, asked: Sequence[Asked], number: int) -> list[Reading]:
    """Let the target answer a batch; the laws that it answers by are those that are kept, so that no token is read twice."""
    is_greedy, prompts, features = number % 2 == 0, [one.tokens for one in asked], _features(target, asked)
    generator = torch.Generator().manual_seed(material.seed * 10**6 + number)
    session, longest = target.session(), max(map(len, prompts))
    if features is None:
        session.prefill(Inputs(tuple(prompt[:1] for prompt in prompts)))  # caches nothing: laws of the whole prompt are wanted
        padded, skipped = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], 0
    else:
        padded, skipped = [[last] for last in session.prefill(Inputs(tuple(prompts), features))], longest - 1
    written, most = torch.tensor(padded, device=session.device), material.max_new_tokens
    if features is not None and target.stack.position_limit is not None:
        most = min(most, target.stack.position_limit - longest)
    surplus = [longest - len(prompt) for prompt in prompts]
    last_places = torch.tensor([len(prompt) - 1 - skipped for prompt in prompts], device=session.device)
    answers, laws = torch.zeros(len(prompts), 0, dtype=torch.long), list[tuple[Tensor, Tensor]]()
    while True:
        logits = session.extend(written)
        session.rewind(surplus)
        last = logits[torch.arange(len(prompts)), last_places].float()
        if not bool(last.isfinite().any(-1).all()):
            raise UsageError(f"target {target.name}: its logits are not finite; expected a model that can be drafted for")
        laws.append(_likeliest(logits))
        law = last.softmax(-1).cpu()
        next_token = law.argmax(-1, keepdim=True) if is_greedy else torch.multinomial(law, 1, generator=generator)
        answers = torch.cat([answers, next_token], -1)
        ended = torch.isin(answers, torch.tensor(target.eos_token_ids)).any(-1)
        if bool(ended.all()) or answers.shape[1] == most:
            break
        written, surplus, last_places = next_token.to(session.device), [0] * len(prompts), torch.zeros_like(last_places)
    unread = [torch.zeros_like(one[:, :1]).expand(-1, skipped, -1) for one in laws[0]]
    probs, likely = (torch.cat([unread[kind], *(pair[kind] for pair in laws)], 1) for kind in (0, 1))
    heard = None if features is None or session.encoded is None else session.encoded.half().cpu()
    found = []
    for row, prompt in enumerate(prompts):
        answer = _until_end(answers[row].tolist(), target.eos_token_ids)
        places = torch.cat([torch.arange(len(prompt)), torch.arange(longest, longest + len(answer) - 1)])
        own = torch.tensor([*prompt, *answer])
        states, group = None if heard is None else heard[row].clone(), asked[row].group
        found.append(Reading(own, len(prompt), likely[row, places], probs[row, places], is_greedy, group, states))
    return found


def _likeliest(logits: Float[Tensor, "b n V"]) -> tuple[Float[Tensor, "b n k"], Int[Tensor, "b n k"]]:
    """Return the probabilities of the likeliest tokens and these tokens, a row at a time: a batch's laws are large."""
    found = [row.float().softmax(-1).topk(min(LIKELIEST, row.shape[-1])) for row in logits]
    return torch.stack([one.values.half().cpu() for one in found]), torch.stack([one.indices.int().cpu() for one in found])


def _until_end(answer: list[int], ends: Sequence[int]) -> list[int]:
    """Cut an answer behind its first end of text."""
    return answer[: next((place + 1 for place, token in enumerate(answer) if token in ends), len(answer))]
