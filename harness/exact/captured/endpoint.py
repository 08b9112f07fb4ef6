"""Captures recorded from a server: an OpenAI-compatible endpoint that serves plain and speculative deployments.

Every answer is on the disk before the next question. The arms take turns, so that what drifts drifts in all. A server that is
down, slow or answers something else ends the recording in one line; the same command goes on behind what was recorded.

Token ids are asked for by ``return_token_ids``, to which vLLM (``vllm/entrypoints/openai/completion/protocol.py`` at 002032e)
and SGLang (pull request 30917) answer with ``token_ids`` and ``prompt_token_ids`` in each choice. Other servers pass over the
field, or refuse it (status 400 or 422) and are asked again without: what they answer are texts.

What a question leaves open a server fills with defaults of its own: vLLM's are those of the checkpoint's
``generation_config.json`` (a repetition penalty changes greedy outputs, too), llama.cpp's keep 40 tokens. So every question
says that nothing is cut and nothing penalised, ``UNCUT`` too, unless the server refuses these fields.

A URL that ends in ``/chat/completions`` is asked by messages. What the server makes of them is in ``prompt_token_ids`` of the
answer (vLLM, ``chat_completion/protocol.py`` at 002032e) or unknown. Reasoning that a server parts from the content
(``message.reasoning``, before it ``reasoning_content``) stands before it in the text.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from harness.core.errors import UsageError
from harness.core.files import LineFile, checksum_of, parsed
from harness.exact.captured.capture import read_capture
from harness.exact.captured.matched import ARMS

SAMPLED = 1.0  # the temperature of sampled outputs
REPEATED = 4  # prompts of which a seed is asked twice
MOST_BYTES, PIECE = 1 << 24, 1 << 16
QUOTED = 80  # characters of an answer that cannot be read
UNCUT = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}  # fields that OpenAI's interface does not have
NO_TOP_K = {"top_k": 0}  # what TensorRT-LLM takes for no filter, where vLLM and SGLang take -1
TOKEN_IDS = {"return_token_ids": True}
EXTRAS: tuple[dict[str, Any], ...] = (  # asked for, one after another, until a server takes it
    TOKEN_IDS | UNCUT, TOKEN_IDS | UNCUT | NO_TOP_K, UNCUT, UNCUT | NO_TOP_K, TOKEN_IDS, {},
)  # fmt: skip
IDS = {"token_ids": "output_token_ids", "prompt_token_ids": "prompt_token_ids"}  # of a choice, and of a line that is recorded
CHAT, COMPLETIONS = "/chat/completions", "/completions"
REASONING = ("reasoning", "reasoning_content")
REFUSED = (400, 422)  # statuses of a question that a server does not take as it is


class Refusal(UsageError):
    """The error of a server that does not take a question as it is."""


@dataclass(frozen=True)
class Endpoint:
    """A server and the names by which it serves plain and speculative decoding.

    ``url`` ends before ``/completions`` or in it, or in ``/chat/completions``, which then is asked.
    """

    url: str
    plain: str
    speculative: str
    timeout_s: float

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"endpoint {self.url!r}: expected http:// or https://, such as http://localhost:8000/v1")

    @property
    def is_chat(self) -> bool:
        return self.url.rstrip("/").endswith(CHAT)

    @property
    def models(self) -> dict[str, str]:
        """Return the model of each arm; the control is plain decoding once more."""
        return dict(zip(ARMS, (self.plain, self.speculative, self.plain), strict=True))

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return an answer's text and, where the server gives them, token ids. UsageError for anything else."""
        where = f"endpoint {self.url}, model {question['model']}"
        try:
            answer = parsed(self._post(json.dumps(question).encode()))
            choice = answer["choices"][0]
            text = _said_in(choice["message"]) if self.is_chat else choice["text"]
            if not isinstance(text, str):
                raise TypeError(f"text {str(text)[:QUOTED]!r}")
            holder = {**answer, **choice} if self.is_chat else choice
            found = {field: ids for name, field in IDS.items() if (ids := _ids(holder, name)) is not None}
        except HTTPError as error:
            kind = Refusal if error.code in REFUSED else UsageError
            raise kind(f"{where}: status {error.code} ({_said(error)})") from error
        except TimeoutError as error:
            raise UsageError(
                f"{where}: no answer within {self.timeout_s:g} s; give --timeout, or fewer --max-new-tokens"
            ) from error
        except (URLError, HTTPException, OSError) as error:
            raise UsageError(f"{where}: {getattr(error, 'reason', None) or error or type(error).__name__}") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:QUOTED]}"
            expected = "message.content" if self.is_chat else "text"
            raise UsageError(f"{where}: the answer is no completion ({reason}); expected choices[0].{expected}") from error
        return {"text": text, **found}

    def _post(self, body: bytes) -> bytes:
        """Return the answer's bytes. TimeoutError behind ``timeout_s``, also of one that comes drop by drop."""
        end, found = time.monotonic() + self.timeout_s, b""
        url = self.url.rstrip("/")
        url = url if url.endswith(COMPLETIONS) else url + COMPLETIONS
        request = Request(url, body, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=self.timeout_s) as response:
                while piece := response.read1(PIECE):
                    found += piece
                    if time.monotonic() > end:
                        raise TimeoutError
                    if len(found) > MOST_BYTES:
                        raise ValueError(f"more than {MOST_BYTES} bytes")
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise error.reason from error
            raise
        return found


def _said_in(message: dict[str, Any]) -> Any:
    """Return a message's text with the reasoning before it; one that was cut within its reasoning has no content."""
    content, reasoning = message.get("content"), next((message[name] for name in REASONING if message.get(name)), None)
    return content if reasoning is None else reasoning + (content or "")


def _ids(choice: dict[str, Any], name: str) -> list[int] | None:
    ids = choice.get(name)
    if not isinstance(ids, list | None):
        raise TypeError(f"{name} {str(ids)[:QUOTED]!r}")
    if odd := [one for one in ids or () if type(one) is not int or one < 0]:
        raise TypeError(f"{name} hold {str(odd[0])[:QUOTED]!r}")
    return ids


def _said(error: HTTPError) -> str:
    """Return the begin of what an error says; nothing if that does not come."""
    try:
        return " ".join(error.read(QUOTED * 4).decode(errors="replace").split())[:QUOTED]
    except (OSError, HTTPException):
        return ""


def questions_of(prompts: Sequence[str], samples: int, length: int, is_chat: bool) -> Iterator[dict[str, Any]]:
    """Yield every prompt's questions: one greedy, then ``samples`` by seeds of their own at temperature 1.

    In a chat a prompt is what a user says first. The first seed of each of REPEATED prompts is asked once more: an engine that
    keeps seeds gives the same output again.
    """
    for number, prompt in enumerate(prompts):
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
        asked |= {"max_tokens": length, "top_p": 1.0}
        yield {**asked, "temperature": 0.0, "seed": 0}
        for sample in [*range(samples), *([0] if number < REPEATED else [])]:
            seed = number * samples + sample
            yield {**asked, "temperature": SAMPLED, "seed": seed}


def ask_for_all(endpoint: Endpoint, question: dict[str, Any], refused: dict[str, int]) -> dict[str, Any]:
    """Ask for token ids and for uncut laws, too, or for as much of it as the model's server takes; ``refused`` keeps how many
    of EXTRAS each model's did not. The answer holds the settings that were taken."""
    model: str = question["model"]
    taken = refused.get(model, 0)
    while True:
        extras = EXTRAS[taken]
        try:
            answer = endpoint.ask({**question, **extras})
        except Refusal:
            taken += 1
            if taken == len(EXTRAS):
                raise
        else:
            refused[model] = taken
            return {name: value for name, value in extras.items() if name in UNCUT} | answer


def record(endpoint: Endpoint, questions: Sequence[dict[str, Any]], folder: Path, quiet: bool) -> tuple[list[Path], int]:
    """Record the answers of all arms, behind what is recorded already.

    Returns the files plain, speculative and control, and how many answers were asked for now.

    Raises:
        UsageError: the server did not answer as expected, or the files cannot be written; what was recorded is kept.
    """
    identity = checksum_of([endpoint.url, endpoint.models, questions])
    folder = folder / f"captured-{identity}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{arm}.jsonl" for arm in ARMS]
    with ExitStack() as stack:
        files = [stack.enter_context(LineFile(path)) for path in paths]
        done = [len(read_capture(path).outputs) if path.stat().st_size else 0 for path in paths]
        whole, recorded, refused = len(paths) * len(questions), sum(done), dict[str, int]()
        if recorded:
            told = f"foretoken: {recorded} of {whole} answers are of an earlier recording in {folder}; remove it to ask again"
            print(told, file=sys.stderr)
        bar = stack.enter_context(tqdm(total=whole, initial=recorded, unit="answer", disable=quiet, dynamic_ncols=True))
        for number, question in enumerate(questions):
            for file, kept, model in zip(files, done, endpoint.models.values(), strict=True):
                if number < kept:
                    continue
                try:
                    answer = ask_for_all(endpoint, {"model": model, **question}, refused)
                except UsageError as error:
                    raise UsageError(
                        f"{error}; {recorded} of {whole} answers are kept in {folder}, and the same command goes on from there"
                    ) from error
                file.write((json.dumps({**question, "model": model, **answer}, ensure_ascii=False) + "\n").encode())
                recorded += 1
                bar.update()
    for model in [model for model, taken in refused.items() if not UNCUT.keys() & EXTRAS[taken].keys()]:
        print(
            f"foretoken: note: the server of {model} takes no {', '.join(UNCUT)}: where it has defaults of its own for them, "
            "its outputs have another law than the model, and --target calls them a bug",
            file=sys.stderr,
        )
    return paths, recorded - sum(done)
