"""What a method read, made once more by transformers alone: the tokens of a prompt, the windows of a recording."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from harness.core.experiment import Experiment
from harness.models.loading import Listener, LoadedModel
from harness.run.prompts import Prompt, rendered
from methods.types import Inputs
from tasks import get_task
from tasks.base import Recording


def misread(experiment: Experiment, prompt: Prompt, target: LoadedModel) -> str | None:
    """Return what transformers' tokenizer or feature extractor makes otherwise of an example, in words; None: nothing.

    The text of a prompt is taken as it is rendered. Of one that was cut to fit, its length and the special tokens at both
    ends are compared.
    """
    if prompt.listener is not None and prompt.example.audio is not None:
        return None if _hears_all(prompt.listener, prompt.example.audio, prompt.windows()) else "window of the recording"
    text = rendered(get_task(experiment.task), prompt.example, experiment)
    whole, read = _tokens_said(text, experiment, target.tokenizer), list(prompt.tokens)
    if prompt.truncated_tokens:
        specials = set(target.tokenizer.all_special_ids)
        at_ends = [(_first_specials(tokens, specials), _first_specials(tokens[::-1], specials)) for tokens in (whole, read)]
        same = len(read) + prompt.truncated_tokens == len(whole) and at_ends[0] == at_ends[1]
    else:
        same = whole == read
    return None if same else "token of the prompt"


def _tokens_said(text: str, experiment: Experiment, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if not experiment.chat_template:
        return list(tokenizer.encode(text, add_special_tokens=True, verbose=False))
    turns = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False))


def _first_specials(tokens: Sequence[int], specials: set[int]) -> list[int]:
    inside = next((place for place, token in enumerate(tokens) if token not in specials), len(tokens))
    return list(tokens[:inside])


def _hears_all(listener: Listener, recording: Recording, windows: Sequence[Inputs]) -> bool:
    """Say whether the windows are those of transformers' pipeline, each of which shares a third with the one before."""
    # Here and not above: it brings all of transformers' pipelines, a second that texts need not wait for.
    from transformers.pipelines.automatic_speech_recognition import chunk_iter

    samples, size = recording.sound().samples, listener.extractor.n_samples
    left = size // 3 // 2
    chunks = chunk_iter(samples, listener.extractor, size, left, size // 3 - left)
    said = [chunk["input_features"] for chunk in chunks]
    heard = [window.features for window in windows]
    return len(said) == len(heard) and all(
        one is not None and torch.equal(one.cpu(), other.cpu()) for one, other in zip(heard, said, strict=True)
    )
