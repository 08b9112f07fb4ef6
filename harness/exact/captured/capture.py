"""What an engine said: a file of JSON Lines, an output a line, with its prompt, seed and sampling.

Names of fields are those that engines and their clients use; what is not known here is passed over.
"""

from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.files import parsed
from methods.errors import InputError
from methods.sampling import Sampling

PROMPT_IDS = ("prompt_token_ids", "prompt_ids", "input_ids", "prompt")
PROMPT_TEXTS = ("prompt", "prompt_text")
OUTPUT_IDS = ("output_token_ids", "output_ids", "token_ids", "tokens", "output")
OUTPUT_TEXTS = ("text", "output_text", "generated_text", "completion", "output")
NESTED = ("sampling", "sampling_params", "sampling_settings")  # sampling may stand in an object of its own
OTHERS = {  # settings that change outputs too, with the values that change nothing
    "min_p": (0,), "repetition_penalty": (1,), "presence_penalty": (0,), "frequency_penalty": (0,),
    "max_tokens": (), "max_new_tokens": (), "min_tokens": (0,), "ignore_eos": (False,),
}  # fmt: skip
LENGTHS = ("max_tokens", "max_new_tokens", "ignore_eos")  # of OTHERS: these leave the law of a token as it is
WHOLE = ("top_k", "seed", "max_tokens", "max_new_tokens", "min_tokens")
LARGEST = 1e18
FACTS = ("model", "dtype", "engine")
DTYPES = {"fp64": "float64", "fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
Others = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Output:
    """One output. ``line`` is its line in the file, counted from 1; of ids and texts one may be missing.

    ``is_chat``: the prompt was given as messages, and ``prompt_text`` is these, not what an engine made of them.
    """

    line: int
    prompt_text: str | None
    prompt_ids: tuple[int, ...] | None
    text: str | None
    ids: tuple[int, ...] | None
    seed: int | None
    sampling: Sampling
    others: Others
    is_chat: bool = False

    @property
    def prompt_shown(self) -> str:
        """Return the prompt in a few words, for messages."""
        shown = repr(self.prompt_text) if self.prompt_text is not None else str(list(self.prompt_ids or ()))
        return shown if len(shown) <= 60 else f"{shown[:57]}..."


@dataclass(frozen=True)
class Capture:
    """The outputs of one run of an engine. ``facts`` hold what lines say of their model, dtype and engine, where they agree."""

    path: Path
    outputs: tuple[Output, ...]
    facts: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def dtype(self) -> str | None:
        """Return the dtype that the lines state, by torch's name."""
        stated = self.facts.get("dtype", "").removeprefix("torch.").lower()
        return DTYPES.get(stated, stated) or None


def read_capture(path: Path) -> Capture:
    """Read a file of outputs. UsageError, naming the line and the field, for what is no output."""
    outputs, facts = [], {name: set[str]() for name in FACTS}
    try:
        lines = path.read_bytes().removeprefix(BOM_UTF8).split(b"\n")
    except OSError as error:
        raise UsageError(f"captured {path}: {error.strerror}; expected a file of JSON Lines, an output a line") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = parsed(line)
            if not isinstance(values, dict):
                raise ValueError(f"{type(values).__name__} instead of an object with a prompt and an output")
            outputs.append(_output(number, values))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"captured {path}, line {number}: {error}; correct or remove that line") from error
        for name in FACTS:
            if isinstance(values.get(name), str):
                facts[name].add(values[name])
    if not outputs:
        raise UsageError(f"captured {path}: it has no output; expected JSON Lines with a prompt and an output each")
    return Capture(path, tuple(outputs), {name: found.pop() for name, found in facts.items() if len(found) == 1})


def _output(line: int, values: Mapping[str, Any]) -> Output:
    prompt_ids, prompt_text, messages = _ids(values, PROMPT_IDS), _text(values, PROMPT_TEXTS), _messages(values)
    prompt_text = prompt_text if messages is None else messages
    ids, text = _ids(values, OUTPUT_IDS), _text(values, OUTPUT_TEXTS)
    if prompt_ids is None and prompt_text is None:
        raise ValueError(f"no prompt; expected a text or a list of token ids as one of {', '.join(PROMPT_IDS)}, or messages")
    if ids is None and text is None:
        raise ValueError(f"no output; expected token ids ({', '.join(OUTPUT_IDS)}) or a text ({', '.join(OUTPUT_TEXTS)})")
    settings: dict[str, Any] = dict(values)
    for name in NESTED:
        if isinstance(values.get(name), dict):
            settings |= values[name]
    seed, sampling, others = _seed(settings), _sampling(settings), _others(settings)
    return Output(line, prompt_text, prompt_ids, text, ids, seed, sampling, others, is_chat=messages is not None)


def _ids(values: Mapping[str, Any], names: tuple[str, ...]) -> tuple[int, ...] | None:
    for name in names:
        if isinstance(found := values.get(name), list):
            if odd := [one for one in found if not isinstance(one, int) or isinstance(one, bool) or one < 0]:
                raise ValueError(f"{name}: {str(odd[0])[:40]}, expected a list of token ids, integers from 0 on")
            return tuple(found)
    return None


def _messages(values: Mapping[str, Any]) -> str | None:
    """Return the messages of a chat as one text, a role before each; None without any."""
    if (found := values.get("messages")) is None:
        return None
    good = isinstance(found, list) and found and all(isinstance(one, dict) for one in found)
    if not good or not all(isinstance(one.get(name), str) for one in found for name in ("role", "content")):
        raise ValueError(f"messages {str(found)[:40]}: expected a list of objects with a role and a content, both texts")
    return "\n".join(f"{one['role']}: {one['content']}" for one in found)


def _text(values: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((values[name] for name in names if isinstance(values.get(name), str)), None)


def _seed(settings: Mapping[str, Any]) -> int | None:
    seed = settings.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ValueError(f"seed {str(seed)[:40]!r}: expected an integer, or null where the engine had none")
    return seed


def _sampling(settings: Mapping[str, Any]) -> Sampling:
    """Return how tokens were drawn; a filter that filters nothing (top_k -1, top_p 1) is none."""
    temperature = _number(settings, "temperature")
    if settings.get("do_sample") is False or settings.get("greedy") is True:
        temperature = 0.0
    elif temperature is None and settings.get("do_sample") is True:
        temperature = 1.0
    if temperature is None:
        raise ValueError("no temperature; expected the one that the engine was given, 0 for greedy decoding")
    top_k, top_p = _number(settings, "top_k"), _number(settings, "top_p")
    if temperature == 0:
        return Sampling()
    try:
        return Sampling(
            temperature=float(temperature),
            top_k=None if top_k is None or top_k <= 0 else int(top_k),
            top_p=None if top_p is None or top_p == 1 else float(top_p),
        )
    except InputError as error:
        raise ValueError(str(error)) from error


def _others(settings: Mapping[str, Any]) -> Others:
    found = {name: _number(settings, name) for name in OTHERS}
    length = found.pop("max_new_tokens")
    found["max_tokens"] = length if found["max_tokens"] is None else found["max_tokens"]
    return tuple((name, value) for name, value in found.items() if value is not None and value not in OTHERS[name])


def _number(settings: Mapping[str, Any], name: str) -> float | None:
    value = settings.get(name)
    if isinstance(value, bool) and name == "ignore_eos":
        return value
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST):
        raise ValueError(f"{name} {str(value)[:40]!r}: expected a number of at most {LARGEST:g}")
    if value is not None and name in WHOLE and value != int(value):
        raise ValueError(f"{name} {value!r}: expected a whole number")
    return value
