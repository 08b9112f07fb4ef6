"""Captures recorded from a real server on this machine: honest or not, down, slow, or answering something else."""

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fuzz_models import save_models
from killed import kill_at

from harness.cli.main import main
from harness.exact.captured.endpoint import UNCUT
from harness.exact.captured.verdict import UNTOLD

WORDS = ["the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as", "it", "by"]
SIZE = ("--prompts=4", "--samples=8", "--max-new-tokens=30", "--timeout=1", "--quiet")


class Engine(ThreadingHTTPServer):
    """Completes by a table: words drawn by prompt and seed. ``fault`` is done instead of the answer number ``at``.

    ``forgetful``: models that draw by seeds of their own. ``ids``: what becomes of a question for token ids, "given", "ignored"
    or "refused". ``pause_s``: before each answer. Messages of a chat become a prompt by a model's ``template``; where it
    ``reasons``, all that a model says is reasoning.
    """

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that a fault cut: a thread may say it while a command's lines are read."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def __init__(self, fault: Callable[[BaseHTTPRequestHandler], None] | None = None, at: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.fault, self.at, self.asked = fault, at, list[dict[str, Any]]()
        self.ids, self.pause_s, self.forgetful = "ignored", 0.0, set[str]()
        self.template, self.reasons = {"plain": "<user>", "speculative": "<user>"}, False
        self.takes: Callable[[dict[str, Any]], bool] = lambda asked: True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        engine = self.server
        assert isinstance(engine, Engine)
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        engine.asked.append(question)
        if engine.fault is not None and len(engine.asked) > engine.at:
            engine.fault(self)
            return
        time.sleep(engine.pause_s)
        if not engine.takes(question):
            send(self, '{"error": "not taken"}', 400)
            return
        for name in {"refused": ["return_token_ids"], "strict": ["return_token_ids", *UNCUT]}.get(engine.ids, []):
            if name in question:
                send(self, f'{{"error": "extra fields not permitted: {name}"}}', 400)
                return
        if question["temperature"] > 0 and question["model"] in engine.forgetful:
            question["seed"] = len(engine.asked)
        greedy = question["temperature"] == 0 or question["model"] == "frozen"
        is_chat = self.path == "/v1/chat/completions"
        assert is_chat or self.path == "/v1/completions"
        prompt = question["prompt"] if not is_chat else self.templated(question)
        key = (prompt, None if greedy else question["seed"], None if greedy else question["model"] == "plain")
        ids = random.Random(repr(key)).choices(range(len(WORDS)), k=question["max_tokens"])
        text = " ".join(WORDS[one] for one in ids)
        choice: dict[str, Any] = {"message": self.message(text)} if is_chat else {"text": text}
        answer: dict[str, Any] = {"choices": [choice]}
        if engine.ids == "given" and question["return_token_ids"]:
            choice["token_ids"] = ids
            (answer if is_chat else choice)["prompt_token_ids"] = [len(prompt)]
        send(self, json.dumps(answer))

    def templated(self, question: dict[str, Any]) -> str:
        assert isinstance(self.server, Engine)
        [message] = question["messages"]
        assert message["role"] == "user"
        return self.server.template[question["model"]] + message["content"]

    def message(self, text: str) -> dict[str, Any]:
        assert isinstance(self.server, Engine)
        if not self.server.reasons:
            return {"role": "assistant", "content": text}
        return {"role": "assistant", "content": None, "reasoning": text}

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def send(answer: BaseHTTPRequestHandler, body: str, status: int = 200) -> None:
    answer.send_response(status)
    answer.send_header("Content-Length", str(len(body)))
    answer.end_headers()
    answer.wfile.write(body.encode())


def drip(answer: BaseHTTPRequestHandler) -> None:
    answer.send_response(200)
    answer.send_header("Content-Length", "100")
    answer.end_headers()
    for _ in range(8):
        answer.wfile.write(b" ")
        answer.wfile.flush()
        time.sleep(0.2)


def stall(answer: BaseHTTPRequestHandler) -> None:
    answer.send_response(500)
    answer.send_header("Content-Length", "100")
    answer.end_headers()
    time.sleep(1.5)


@pytest.fixture
def served() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def serve(*arguments: Any) -> Engine:
        engines.append(Engine(*arguments))
        threading.Thread(target=engines[-1].serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return engines[-1]

    yield serve
    for engine in engines:
        engine.shutdown()
        engine.server_close()


def words(url: str, folder: Path, speculative: str = "speculative") -> list[str]:
    return ["audit", f"--endpoint={url}", "--plain=plain", f"--speculative={speculative}", *SIZE, f"--records={folder}"]


def recorded(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("captured-*/*.jsonl")
    }


def test_a_server_is_asked_and_judged(served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    engine = served()
    assert main(words(engine.url, tmp_path)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "passed, texts compared: identical, no difference found"
    assert {arm: len(rows) for arm, rows in recorded(tmp_path).items()} == {"plain": 40, "speculative": 40, "control": 40}
    assert [one["model"] for one in engine.asked[:3]] == ["plain", "speculative", "plain"]
    assert main(words(engine.url, tmp_path)) == 0
    assert len(engine.asked) == 120
    said = capsys.readouterr().out.splitlines()
    assert "no question was asked: all answers are of 20" in said[-1], "or a server that broke since would pass for ever"
    assert main([*words(engine.url, tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answers_asked_now"] == 0


def test_a_model_that_does_not_sample(served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(words(served().url, tmp_path, "frozen")) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "FAILED, texts compared: identical, biased"


def test_a_seed_that_is_lost(served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Fault: every seed was asked once, so that a model that ignores them passed. A note says where plain ignores them too."""
    engine = served()
    engine.forgetful = {"speculative"}
    assert main(words(engine.url, tmp_path / "one")) == 1
    said = capsys.readouterr().out.splitlines()
    assert "the seed is ignored" in said[-2]
    assert said[-1] == "FAILED, texts compared: identical, bug"
    engine.forgetful = {"speculative", "plain"}
    assert main(words(engine.url, tmp_path / "both")) == 0
    note = capsys.readouterr().out.splitlines()[-2]
    both = "in 0 of 40 pairs, speculative in 0 of 4: seed not honoured by plain and speculative"
    assert f"equal seeds gave plain equal outputs {both}" in note


def test_token_ids_are_asked_for_and_compared(
    served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    engine = served()
    engine.ids = "given"
    assert main(words(engine.url, tmp_path)) == 0
    said = capsys.readouterr().out.splitlines()
    assert "compared: token ids" in said
    assert said[-1] == "passed, token ids compared: identical, no difference found"
    lines = [line for rows in recorded(tmp_path).values() for line in rows]
    assert all(len(line["output_token_ids"]) == 30 and len(line["prompt_token_ids"]) == 1 for line in lines)
    assert len(engine.asked) == 120


def test_a_file_of_ones_own_is_asked_whole(served: Callable[..., Engine], tmp_path: Path) -> None:
    """Fault: of 20 prompts those were asked that training would leave out, about 3, and --field was not known."""
    rows = [f'{{"story": "Prompt number {number} of a file."}}\n' for number in range(20)]
    data, engine = tmp_path / "my.jsonl", served()
    data.write_text("".join(rows))
    given = [f"--data={data}", "--field=prompt=story", "--prompts=30"]
    assert main([*words(engine.url, tmp_path), *given]) == 0
    assert {one["prompt"] for one in engine.asked} == {f"Prompt number {number} of a file." for number in range(20)}
    before = len(engine.asked)
    assert main([*words(engine.url, tmp_path), *given, "--split=test"]) in (0, 1)
    assert 0 < len({one["prompt"] for one in engine.asked[before:]}) < 10


@pytest.mark.parametrize(("ids", "asked"), [("ignored", 120), ("refused", 124), ("strict", 130)])
def test_a_server_without_token_ids_is_compared_by_texts(
    ids: str, asked: int, served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Each of two models that refuse them is asked once with that field, and then without; so are settings that it refuses."""
    engine = served()
    engine.ids = ids
    assert main(words(engine.url, tmp_path)) == 0
    out, err = capsys.readouterr()
    said = out.splitlines()
    notes = [line for line in err.splitlines() if "takes no top_k, min_p, repetition_penalty: where it has defaults" in line]
    assert len(notes) == (2 if ids == "strict" else 0)
    [line] = [line for line in said if line.startswith("compared: ")]
    assert line.startswith("compared: texts; not all outputs of plain.jsonl, speculative.jsonl, control.jsonl have token ids")
    assert said[-1] == "passed, texts compared: identical, no difference found"
    assert not any("output_token_ids" in line for rows in recorded(tmp_path).values() for line in rows)
    assert len(engine.asked) == asked


def test_every_question_says_that_nothing_is_cut_or_penalised(served: Callable[..., Engine], tmp_path: Path) -> None:
    """A server's own defaults, as those of a checkpoint's generation_config.json, would make another law of it."""
    engine = served()
    assert main(words(engine.url, tmp_path)) == 0
    wanted = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert all({name: one.get(name) for name in wanted} == wanted for one in engine.asked)
    for rows in recorded(tmp_path).values():
        assert all({name: one.get(name) for name in wanted} == wanted for one in rows)


def test_a_question_that_is_refused_either_way_ends_in_its_own_error(
    served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    engine = served(lambda answer: send(answer, '{"error": "prompt too long"}', 400))
    assert main(words(engine.url, tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert 'status 400 ({"error": "prompt too long"})' in line
    assert [("return_token_ids" in one, one.get("top_k")) for one in engine.asked] == [
        (True, -1),
        (True, 0),
        (False, -1),
        (False, 0),
        (True, None),
        (False, None),
    ]


def test_a_server_that_knows_no_filter_by_another_number_keeps_ids_and_settings(
    served: Callable[..., Engine], tmp_path: Path
) -> None:
    """TensorRT-LLM refuses a top-k of -1. Fault: then nothing was asked for that OpenAI's interface does not have."""
    engine = served()
    engine.takes = lambda asked: asked.get("top_k") != -1
    assert main(words(engine.url, tmp_path)) == 0
    for rows in recorded(tmp_path).values():
        assert all((one["top_k"], one["min_p"], one["repetition_penalty"]) == (0, 0.0, 1.0) for one in rows)
    assert all("return_token_ids" in one for one in engine.asked)


def test_a_recording_that_was_killed_goes_on(served: Callable[..., Engine], tmp_path: Path, zoo_cache: Path) -> None:
    """Killed with SIGKILL: what is in the files is not asked again, what was on its way is. Fault: files written at the end."""
    engine = served()
    engine.pause_s = 0.01
    kill_at(40, tmp_path, "captured-*/*.jsonl", ["-m", "harness", *words(engine.url, tmp_path)], zoo_cache)
    kept = sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("captured-*/*.jsonl"))
    before, engine.pause_s = len(engine.asked), 0.0
    assert 40 <= kept < 120
    assert before - kept <= 1
    assert main(words(engine.url, tmp_path)) == 0
    assert len(engine.asked) - before == 120 - kept
    for rows in recorded(tmp_path).values():
        assert len({(line["prompt"], line["temperature"], line["seed"]) for line in rows}) == 36
        assert len(rows) == 40  # a seed of each prompt is asked twice


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (lambda answer: send(answer, "<html>busy</html>"), "the answer is no completion"),
        (lambda answer: send(answer, '{"choices": []}'), "the answer is no completion"),
        (lambda answer: send(answer, '{"choices": [{"text": 5}]}'), "the answer is no completion"),
        (lambda answer: send(answer, '{"error": "model not found"}', 404), 'status 404 ({"error": "model not found"})'),
        (lambda answer: send(answer, '{"choices": [{"text": "a", "token_ids": ["b"]}]}'), "the answer is no completion"),
        (stall, "status 500 ()"),
        (lambda answer: time.sleep(1.5), "no answer within 1 s"),
        (drip, "no answer within 1 s"),
        (lambda answer: answer.connection.shutdown(socket.SHUT_RDWR), "closed connection without response"),
    ],
)
def test_a_server_that_fails_keeps_what_was_recorded(
    served: Callable[..., Engine],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    fault: Callable[[BaseHTTPRequestHandler], None],
    expected: str,
) -> None:
    engine = served(fault, 10)
    assert main(words(engine.url, tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected in line
    assert "10 of 120 answers are kept in" in line
    engine.fault = None
    assert main(words(engine.url, tmp_path)) == 0
    assert len(engine.asked) == 121  # the one that failed is asked again, no other


def chat_words(url: str, folder: Path, *more: str) -> list[str]:
    return words(f"{url}/chat/completions", folder) + list(more)


@pytest.mark.parametrize("reasons", [False, True])
def test_a_chat_is_asked_by_messages_and_judged(
    reasons: bool, served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Prompts are what a user says; what the server makes of them is unknown where it tells no token ids, and said to be."""
    engine = served()
    engine.reasons = reasons
    assert main(chat_words(engine.url, tmp_path)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "passed, texts compared: identical, no difference found"
    [line] = [line for line in said if line.startswith("prompts: ")]
    assert line == f"prompts: chat messages; {UNTOLD}"
    lines = [line for rows in recorded(tmp_path).values() for line in rows]
    assert len(lines) == 120
    assert all(line["messages"][0]["role"] == "user" and "prompt" not in line and line["text"] for line in lines)
    assert main(words(engine.url, tmp_path)) == 0  # a recording of its own
    assert len(engine.asked) == 240
    assert "chat messages" not in capsys.readouterr().out


def test_token_ids_of_a_chat_are_compared(served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """As vLLM gives them: those of the prompt beside the choices."""
    engine = served()
    engine.ids = "given"
    assert main(chat_words(engine.url, tmp_path)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "passed, token ids compared: identical, no difference found"
    assert "prompts: chat messages" in said
    lines = [line for rows in recorded(tmp_path).values() for line in rows]
    assert all(len(line["output_token_ids"]) == 30 and len(line["prompt_token_ids"]) == 1 for line in lines)


def test_other_chat_templates_are_named(served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Fault: outputs of other prompts are compared, and the speculative model is called biased for its template."""
    engine = served()
    engine.ids, engine.template["speculative"] = "given", "<system>Be short.<user>"
    assert main(chat_words(engine.url, tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "became other tokens in speculative speculative.jsonl; give both the same chat template" in line


def test_a_chat_without_token_ids_is_not_replayed(
    served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Fault: the target reads the messages as they are, without the template, and explains neither arm."""
    (tmp_path / "models").mkdir()
    target = save_models(tmp_path / "models")["target"]
    engine = served()
    assert main(chat_words(engine.url, tmp_path, f"--target={target}")) == 0
    said = capsys.readouterr().out
    assert said.count("not replayed: chat messages without token ids, so that what the model read and wrote is unknown") == 2


def test_messages_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "plain.jsonl"
    for messages in ([], "hello", [{"role": "user"}], [{"role": "user", "content": [{"type": "text"}]}]):
        path.write_text(json.dumps({"messages": messages, "text": "a", "temperature": 0}) + "\n")
        assert main(["audit", f"--captured={path}", f"--captured={path}"]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "line 1: messages" in line
        assert "expected a list of objects with a role and a content, both texts" in line


@pytest.mark.parametrize(
    "body",
    [
        '{"choices": [{"message": {"content": null, "tool_calls": []}}]}',
        '{"choices": [{"text": "a"}]}',
        '{"choices": [{"message": "a"}]}',
        '{"choices": [{"message": {"content": "a"}}], "prompt_token_ids": "b"}',
    ],
)
def test_an_answer_that_is_no_chat_is_refused(
    body: str, served: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    engine = served(lambda answer: send(answer, body))
    assert main(chat_words(engine.url, tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "the answer is no completion" in line
    assert "expected choices[0].message.content" in line


def test_a_url_that_names_completions_is_asked_there(served: Callable[..., Engine], tmp_path: Path) -> None:
    engine = served()
    assert main(words(f"{engine.url}/completions/", tmp_path)) == 0
    assert len(engine.asked) == 120


def test_a_server_that_is_down(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    assert main(words(url, tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "Connection refused" in line
    assert "0 of 120 answers are kept" in line


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--endpoint=localhost:1", "--plain=a", "--speculative=b"], "expected http:// or https://"),
        (["--endpoint=http://localhost:1"], "expected --plain MODEL and --speculative MODEL"),
        (
            ["--endpoint=http://localhost:1", "--plain=a", "--speculative=a"],
            "both 'a', so one deployment would be held against",
        ),
        (["--endpoint=http://localhost:1", "--captured=a"], "exclude each other"),
        (["--captured=a"], "given 1 times, expected 2 or 3"),
        (["--captured=a", "--captured=b"], "captured a: No such file"),
        (["--captured=a", "--captured=b", "--draft=c"], "read neither --draft nor --only nor --dry-run"),
        (["--split=test"], "--field, --config and --split are read with --target or --endpoint alone"),
        (["--captured=a", "--captured=b", "--field=text=a"], "choose rows to ask, captures have theirs"),
        (["--plain=a"], "are read with --captured or --endpoint alone"),
    ],
)
def test_flags_that_do_not_fit(flags: list[str], expected: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["audit", *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected in line
