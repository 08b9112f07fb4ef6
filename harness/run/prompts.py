"""From data to examples, and from an example to token ids.

They are of the task's prompt, a user's template or the tokenizer's chat template, cut to what fits.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from string import Formatter
from typing import get_args

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.models.loading import Listener, LoadedModel, check_task
from methods.types import Inputs
from tasks import get_task
from tasks.base import Example, PromptStyle, Task
from tasks.sources.read import read_examples


@dataclass(frozen=True)
class Prompt:
    """The ids that a model is given for an example and how many tokens of its longest field were cut to make it fit.

    With a ``listener`` they are the forced tokens that its decoder begins with, and it hears the example's recording.
    """

    example: Example
    tokens: tuple[int, ...]
    truncated_tokens: int
    listener: Listener | None = None

    def windows(self) -> tuple[Inputs, ...]:
        """Return what is decoded one after another, a row each: the prompt, or the windows of a recording.

        Raises DataError for a recording that cannot be read.
        """
        if self.listener is None or self.example.audio is None:
            return (Inputs((self.tokens,)),)
        return self.listener.windows(self.example.audio, self.tokens)


@lru_cache(maxsize=4)
def _examples(task: str, source: str, fingerprint: str, limit: int, seed: int) -> tuple[Example, ...]:
    """Read once for all that ask in this process; the fingerprint is the data's."""
    examples = tuple(read_examples(get_task(task), source, "test", limit, seed))
    if not examples:
        raise UsageError(f"data {source!r}: no test example for task {task!r}; expected at least one row")
    counts = Counter(example.id for example in examples)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise UsageError(f"data {source!r}: id {twice[0]!r} occurs {counts[twice[0]]} times; expected unique ids")
    return examples


def examples_of(experiment: Experiment) -> tuple[Example, ...]:
    """Return the examples of a pinned experiment, in the order of the data; of a replica those that are its own."""
    first, step = experiment.replica or 0, experiment.replicas
    limit = first + (experiment.limit - 1) * step + 1
    return _examples(experiment.task, experiment.source, experiment.source_fingerprint, limit, experiment.seed)[first::step]


def seed_of(experiment: Experiment, example_id: str, repeat: int, window: int = 0) -> int:
    """Every example, and window of one, has its own stream: results depend neither on order nor on batch, shard or resume."""
    further = f"/{window}" if window else ""
    digest = hashlib.sha256(f"{experiment.seed}/{example_id}/{repeat}{further}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def make_prompt(task: Task, example: Example, experiment: Experiment, model: LoadedModel) -> Prompt:
    """Raises UsageError if the prompt exceeds what the model can hold and no ``max_input_tokens`` allows it to be cut."""
    check_task(example, experiment.task, model.listener is not None, model.name)
    if model.listener is not None:
        return Prompt(example, model.opening, 0, model.listener)
    tokens = _encode(task, example, experiment, model)
    room = _room(experiment, model)
    if experiment.max_input_tokens is not None and len(tokens) > experiment.max_input_tokens:
        cut, tokens = _cut_longest_field(task, example, experiment, model, experiment.max_input_tokens)
    else:
        cut = 0
    if room is not None and room < 1:
        raise UsageError(
            f"max_new_tokens {experiment.max_new_tokens}: leaves no room for a prompt within the position limit "
            f"{model.position_limit} of {model.name}; expected fewer"
        )
    if room is not None and len(tokens) > room:
        raise UsageError(
            f"example {example.id!r}: its prompt of {len(tokens)} tokens and {experiment.max_new_tokens} new ones exceed the "
            f"position limit {model.position_limit} of {model.name}; expected at most {room} prompt tokens: pass "
            f"--max-input-tokens {room} to cut its longest field, or fewer --max-new-tokens"
        )
    return Prompt(example, tokens, cut)


def _room(experiment: Experiment, model: LoadedModel) -> int | None:
    if model.position_limit is None:
        return None
    return model.position_limit if model.is_encoder_decoder else model.position_limit - experiment.max_new_tokens


def _encode(task: Task, example: Example, experiment: Experiment, model: LoadedModel) -> tuple[int, ...]:
    text = rendered(task, example, experiment)
    if experiment.chat_template:
        return model.encode_chat(text)
    return model.encode(text)


def rendered(task: Task, example: Example, experiment: Experiment) -> str:
    """Return a prompt as text: the task's own, or a user's template. UsageError names a field that it cannot show."""
    if experiment.prompt_template is None:
        return task.prompt(example, "t5" if experiment.prompt_style == "t5" else "instruction")
    fields = _fields(experiment.prompt_template)
    if unknown := sorted(fields - set(example.inputs)):
        raise UsageError(
            f"prompt_template: field {{{unknown[0]}}} is not in task {experiment.task}; expected some of "
            f"{', '.join('{' + name + '}' for name in example.inputs)}"
        )
    if answers := sorted(name for name in fields if _holds_a_reference(task, example, name)):
        raise UsageError(
            f"prompt_template: field {{{answers[0]}}} holds the answer that example {example.id!r} is scored by; leave it out"
        )
    return experiment.prompt_template.replace("\\n", "\n").format(**{name: example.inputs[name] for name in fields})


def _holds_a_reference(task: Task, example: Example, name: str) -> bool:
    """Say whether a field is a reference word for word, which the task's own prompts do not show, as an equal source."""
    text = example.inputs[name].strip()
    if not text or text not in [reference.strip() for reference in example.references]:
        return False
    return not any(text in task.prompt(example, style) for style in get_args(PromptStyle))


def _fields(template: str) -> set[str]:
    """The names in braces; nothing else that str.format could do with them is wanted in a prompt."""
    try:
        found = [field for field in Formatter().parse(template) if field[1] is not None]
    except ValueError as error:
        raise UsageError(f"prompt_template {template!r}: {error}; write {{{{ and }}}} for braces of the text") from error
    if any(not name or specification or conversion for _, name, specification, conversion in found):
        raise UsageError(f"prompt_template {template!r}: expected names of fields alone in braces, such as {{prompt}}")
    return {name for _, name, _, _ in found if name}


def _cut_longest_field(
    task: Task, example: Example, experiment: Experiment, model: LoadedModel, room: int
) -> tuple[int, tuple[int, ...]]:
    """Drop words from the end of the longest field until the rendered prompt fits; instructions around it stay whole.

    Of a text that its reference goes on with, words are dropped from its beginning. Where not even one word fits, as of
    languages that part none, characters are dropped.
    """
    name = longest_field(task, example, experiment)
    if name is None:
        raise UsageError(f"max_input_tokens {room}: the prompt exceeds it and shows no field that could be cut; give more")

    def cut_to_fit(parts: Sequence[str], between: str) -> tuple[int, tuple[int, ...]]:
        def encoded(count: int) -> tuple[int, ...]:
            kept = parts[len(parts) - count :] if task.continues_prompt else parts[:count]
            return _encode(task, with_field(example, name, between.join(kept)), experiment, model)

        keep = _largest(len(parts), lambda count: len(encoded(count)) <= room)
        return (0, ()) if keep is None else (keep, encoded(keep))

    keep, tokens = cut_to_fit(example.inputs[name].split(" "), " ")
    if not keep:
        keep, tokens = cut_to_fit(example.inputs[name], "")
    if not keep:
        raise UsageError(
            f"max_input_tokens {room}: the prompt of example {example.id!r} exceeds it without any {name!r}; give more"
        )
    return len(_encode(task, example, experiment, model)) - len(tokens), tokens


def longest_field(task: Task, example: Example, experiment: Experiment) -> str | None:
    """Return the name of the longest field that the prompt shows, which is cut where it is too long; None: it shows none."""
    whole = rendered(task, example, experiment)
    shown = [name for name in example.inputs if rendered(task, with_field(example, name, ""), experiment) != whole]
    return max(shown, key=lambda field: len(example.inputs[field]), default=None)


def with_field(example: Example, name: str, text: str) -> Example:
    return replace(example, inputs={**example.inputs, name: text})


def _largest(high: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest count in 0..high that fits, by bisection (fits is monotone); None if not even 0 does."""
    if not fits(0):
        return None
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
