"""What a method read, made once more by transformers alone: the tokens of a prompt, the windows of a recording."""

from itertools import zip_longest

import torch

from harness.core.experiment import Experiment
from harness.models.loading import Listener, LoadedModel
from harness.run.prompts import Prompt, longest_field, rendered, with_field
from tasks import get_task
from tasks.base import Recording

MARK = "\ue000"  # in the place of a field: a character for private use


def misread(experiment: Experiment, prompt: Prompt, target: LoadedModel) -> str | None:
    """Return what transformers' tokenizer or feature extractor makes otherwise of an example, in words; None: nothing.

    The text of a prompt is taken as it is rendered. One that was cut to fit must begin and end as the whole one does around the
    field that was cut. A chat template that writes the date, which may be another by now, is not asked again.
    """
    if prompt.listener is not None and prompt.example.audio is not None:
        return None if _hears_all(prompt.listener, prompt.example.audio, prompt) else "window of the recording"
    if experiment.chat_template and "strftime_now" in str(target.tokenizer.get_chat_template()):
        return None
    same = _is_whole if not prompt.truncated_tokens else _has_its_ends
    return None if same(experiment, prompt, target) else "token of the prompt"


def _is_whole(experiment: Experiment, prompt: Prompt, target: LoadedModel) -> bool:
    text = _said(rendered(get_task(experiment.task), prompt.example, experiment), experiment, target)
    return _tokens(text, target, special=not experiment.chat_template) == list(prompt.tokens)


def _has_its_ends(experiment: Experiment, prompt: Prompt, target: LoadedModel) -> bool:
    """Say whether a prompt that was cut begins and ends with what stands around the field, and with special tokens.

    Texts are compared without spaces: tokens may be other ones where the field was cut, and some tokenizers lose spaces.
    """
    task, read = get_task(experiment.task), list(prompt.tokens)
    name = longest_field(task, prompt.example, experiment)
    if name is None:
        return False
    marked = _said(rendered(task, with_field(prompt.example, name, MARK), experiment), experiment, target)
    if not experiment.chat_template:
        first, last = _around(marked, target)
        if read[: len(first)] != first or read[len(read) - len(last) :] != last:
            return False
        read = read[len(first) : len(read) - len(last)]
    parts = marked.split(MARK)
    begins, ends = (_letters(_tokens(part, target), target) for part in (parts[0], parts[-1]))
    text = _letters(read, target)
    return text.startswith(begins) and text.endswith(ends)


def _said(text: str, experiment: Experiment, target: LoadedModel) -> str:
    """Return a prompt's text, in the chat template where it is wanted."""
    if not experiment.chat_template:
        return text
    turns = [{"role": "user", "content": text}]
    return str(target.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))


def _tokens(text: str, target: LoadedModel, special: bool = False) -> list[int]:
    return list(target.tokenizer(text, add_special_tokens=special, verbose=False).input_ids)


def _around(text: str, target: LoadedModel) -> tuple[list[int], list[int]]:
    """Return the special tokens that stand before and behind any text."""
    inner, whole = _tokens(text, target), _tokens(text, target, special=True)
    first = next((place for place in range(len(whole)) if whole[place : place + len(inner)] == inner), None)
    return ([], []) if first is None else (whole[:first], whole[first + len(inner) :])


def _letters(tokens: list[int], target: LoadedModel) -> str:
    return "".join(str(target.tokenizer.decode(tokens)).split())


def _hears_all(listener: Listener, recording: Recording, prompt: Prompt) -> bool:
    """Say whether the windows are those that transformers' pipeline cuts where each shares a third with the one before."""
    # Here and not above: it brings all of transformers' pipelines, a second that texts need not wait for.
    from transformers.pipelines.automatic_speech_recognition import chunk_iter

    size = listener.extractor.n_samples
    sixth = round(size / 6)  # the pipeline's default stride, on each side
    said = chunk_iter(recording.sound().samples, listener.extractor, size, sixth, sixth)
    return all(
        heard is not None
        and heard.features is not None
        and chunk is not None
        and torch.equal(heard.features, chunk["input_features"])
        for heard, chunk in zip_longest(prompt.windows(), said)
    )
