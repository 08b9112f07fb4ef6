"""Whatever a flag is given: it works, or one line names the flag's value and the exit status is 2."""

import argparse
import io
import json
import os
import signal
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from fuzz_models import save_models
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cli.main import COMMANDS, main, parser

FUZZED = {"deadline": None, "derandomize": True, "database": None}
NUMBERS = ("0", "-1", "1", "3", "-0", "+1", "1_000", " 3", "²", "٣", "1e3", "1.5", "nan", "inf", "-inf", "", "x", "0x10", "--5")
HUGE = ("9" * 12, "9" * 25, "9" * 5000, "2147483648", "1e308", "1e-308", "1e400")
PATHS = (".", "/dev/null", "/proc/self/mem", "/proc/nope/x", "nowhere", "file", "file/x", "empty", "junk.json", "loop", "*")
NAMES = ("a" * 300, "a/" * 3000, "~nobody/x", "\udcff", "x\ny", "zoo:", "zoo:x", "file:1", "file:²", "syntax.py", "exit.py")
WORDS = ("text", "squad", "librispeech-clean", "beam", "ppd", "transformers", "copy", "block", "hierarchical", "fused", "top-1")
ODD = ("{", "}", "{}", "{0}", "{prompt!x}", "{prompt:9999999}", "{prompt.x}", "cuda", "meta", "--", "=", "=x", "a=b", "None")
TEXTS = st.text(st.characters(exclude_characters="\0/~"), max_size=9)  # nothing is written outside the folder of the test
VALUES = st.sampled_from((*NUMBERS, *HUGE, *PATHS, *NAMES, *WORDS, *ODD)) | TEXTS
SLOW = (
    "regress",
    "ledger",
    "tables",
    "bench",
    "zoo",
    "table",
    "reproduce",
    "figure",
    "audit",
    "report",
    "get",
    "draft",
    "gpu",
)  # looked at apart, or not in-process
FREE = ("run", "advise", "heads", "acceptance", "compare", "show", "plugins")
ENORMOUS = ("--limit", "--repeats")  # what they ask for would be done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A folder of odd files, in which the commands are called, and models of no size."""
    folder = tmp_path_factory.mktemp("fuzz")
    made = save_models(folder)
    (folder / "empty").mkdir()
    for name, text in (("file", "hi"), ("junk.json", "{"), ("syntax.py", "def ("), ("exit.py", "raise SystemExit(3)")):
        (folder / name).write_text(text, encoding="utf8")
    (folder / "loop").symlink_to(folder / "loop")
    return made | {"folder": str(folder)}


def call(place: dict[str, str], arguments: list[str]) -> tuple[int, list[str]]:
    """Status and lines on stderr. Both streams refuse what is not Unicode, as a terminal's do."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf8", errors=errors) for errors in ("strict", "backslashreplace")]
    before = os.getcwd()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        patch.setenv("FORETOKEN_CACHE", f"{place['folder']}/cache")
        patch.setenv("HF_HUB_OFFLINE", "1")
        os.chdir(place["folder"])
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
        finally:
            os.chdir(before)
    streams[1].flush()
    return status, streams[1].buffer.getvalue().decode().splitlines()


def check(place: dict[str, str], arguments: list[str], usual: tuple[int, ...] = (0,)) -> None:
    status, said = call(place, arguments)
    assert status in (*usual, 2), (arguments, said)
    assert not any("Traceback" in line or "Warning:" in line for line in said), (arguments, said)
    if status == 2:
        assert len(said) == 1, (arguments, said)
        assert said[0].startswith("foretoken: "), said


def options_of(command: str) -> list[str]:
    """The flags of a command that take a value."""
    [commands] = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    actions = commands.choices[command]._actions
    return [one.option_strings[-1] for one in actions if one.option_strings and one.nargs != 0]


def plain_run(place: dict[str, str], **changes: str) -> list[str]:
    values = {"task": "text", "data": place["data"], "target": place["target"], "limit": "1", "max-new-tokens": "3"}
    values |= {"threads": "1", "records": f"{place['folder']}/records"}
    values |= {name.replace("_", "-"): value for name, value in changes.items()}
    return ["run", "--quiet", *(f"--{name}={value}" for name, value in values.items())]


KINDS = (
    {},
    {"method": "speculative", "draft": "draft", "gamma": "2"},
    {"method": "speculative", "draft": "draft", "gamma": "2", "temperature": "1", "rule": "top-beta"},
    {"method": "speculative", "drafter": "copy", "rule": "sigmoid"},
    {"method": "speculative", "draft": "draft", "schedule": "optimal", "alpha": "0.5", "cost": "0.1"},
    {"method": "beam", "task": "wmt-en-de", "data": "toy", "target": "t5"},
    {"method": "ppd", "execution": "simulated"},
    {"method": "transformers"},
)


@settings(max_examples=70, **FUZZED)
@given(data=st.data())
def test_a_run_with_one_odd_value(place: dict[str, str], data: st.DataObject) -> None:
    """1: every example failed, which the last line counts. ``--dry-run`` where a huge number would be obeyed."""
    option = data.draw(st.sampled_from([one for one in options_of("run") if one not in ("--address", "--engine", "--workers")]))
    value = data.draw(VALUES)
    kind = {key: place.get(one, one) for key, one in data.draw(st.sampled_from(KINDS)).items()}
    dry = ["--dry-run"] if option in ENORMOUS or option == "--threads" else []
    check(place, [*plain_run(place, **kind), *dry, f"{option}={value}"], (0, 1))


@settings(max_examples=80, **FUZZED)
@given(data=st.data())
def test_other_commands_with_odd_values(place: dict[str, str], data: st.DataObject) -> None:
    command = data.draw(st.sampled_from(("advise", "heads", "acceptance", "compare", "show", "plugins")))
    num_words = {"acceptance": 1, "compare": 2, "show": 1, "plugins": 1}.get(command, 0)
    words = [data.draw(VALUES) for _ in range(num_words)]
    options = [one for one in options_of(command) if one != "--help"]
    given_options = data.draw(st.lists(st.sampled_from(options), max_size=2)) if options else []
    flags = [f"{option}={data.draw(VALUES)}" for option in given_options]
    if command == "heads":
        flags = ["--dry-run", f"--target={place['target']}", f"--output={place['folder']}/heads", "--task=text", *flags]
    if command == "advise":
        flags = ["--dry-run", f"--target={place['target']}", f"--data={place['data']}", *flags]
    words = [word for word in words if not word.startswith("-")] if num_words else []
    check(place, [command, *flags, *words], (0,))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["table", "9" * 5000], "invalid int value"),
        (["table", "9", "--model", "=x", "--dry-run"], "model role ''"),
        (["table", "9", "--records=file", "--data=toy", "--model=zoo", "--dry-run"], "expected ROLE=MODEL"),
        (["figure", "{"], "figure '{'"),
        (["zoo", "x\ny", "--dry-run"], "zoo model 'x"),
        (["zoo", "--data=file/x", "--dry-run"], "data 'file/x'"),
        (["report", "--results=nowhere"], "results nowhere"),
        (["report", "--generations=²"], "--generations: '²'"),
        (["ledger", "--tables=file"], "tables file"),
        (["audit", "--target=a", "--dry-run"], "--target and --draft belong together"),
        (["audit", "--only=nothing", "--dry-run"], "only 'nothing'"),
        (["audit", "--samples=" + "9" * 30], "--samples"),
        (["bench", "kernels", "--acceptance", "nan", "--dry-run"], "acceptance 'nan'"),
        (["bench", "--threads", "99999"], "argument --threads: '99999': expected an integer from 1 to 1024"),
        (["check-plugin", "syntax.py"], ""),
        (["regress", "--update", " "], "update"),
        (["regress", "--baseline", "junk.json"], "baseline junk.json: cannot be read"),
        (["regress", "--baseline", "loop"], "baseline loop"),
        (["regress", "--baseline", "/dev/null", "--update", "x"], "baseline /dev/null: cannot be read"),
        (["get", "nothing"], "nothing"),
        (["get", "pocket:smollm2", "--from=nowhere"], "--from"),
        (["draft", "--target=nowhere", "--task=text", "--output=out"], "nowhere"),
        (["draft", "--target=a", "--task=nothing", "--output=out"], "nothing"),
    ],
)
def test_commands_that_do_much_refuse_at_once(place: dict[str, str], arguments: list[str], expected: str) -> None:
    status, said = call(place, arguments)
    assert status == (1 if arguments[0] == "check-plugin" else 2)
    assert expected in " ".join(said)
    assert len(said) <= 1


def test_every_command_is_fuzzed() -> None:
    assert {*SLOW, *FREE, "check-plugin"} == set(COMMANDS)


# What fuzzing found, each as it was found.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"task": "--"}, "--task=--: expected a value"),
        ({"target": "a" * 300}, "File name too long"),
        ({"data": "a/" * 3000}, "File name too long"),
        ({"target": "~nobody/x"}, "model '~nobody/x'"),
        ({"plugin": "loop"}, "plug-in loop"),
        ({"prompt_template": "{"}, "prompt_template '{'"),
        ({"prompt_template": "{}"}, "expected names of fields alone in braces"),
        ({"prompt_template": "{prompt:>999999999}"}, "expected names of fields alone in braces"),
        ({"prompt_template": "\udcff"}, "not UTF-8"),
        ({"repeats": "9" * 19}, "--repeats"),
        ({"threads": "2147483647"}, "argument --threads: '2147483647': expected an integer from 1 to 1024"),
        ({"max_new_tokens": "100000"}, "leaves no room for a prompt"),
        ({"temperature": "1e-300"}, "temperature 1e-300: expected a number >= 1e-30, or 0 for greedy"),
        ({"method": "beam", "num_beams": "100000"}, "num_beams 100000: expected at most the vocabulary's"),
        ({"method": "speculative", "drafter": "copy", "schedule": "optimal", "alpha": "nan", "cost": "0.1"}, "alpha nan"),
        ({"method": "speculative", "drafter": "copy", "schedule": "optimal", "alpha": "0.5", "cost": "inf"}, "cost_ratio inf"),
    ],
)
def test_values_that_ended_in_a_traceback(place: dict[str, str], changes: dict[str, str], expected: str) -> None:
    status, said = call(place, plain_run(place, **changes))
    assert status == 2
    assert len(said) == 1
    assert expected in said[0]


def test_records_in_a_file_are_refused(place: dict[str, str]) -> None:
    status, said = call(place, plain_run(place, records=f"{place['folder']}/file"))
    assert (status, len(said)) == (2, 1)
    assert "file" in said[0]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (OSError(36, "File name too long", "aaa"), 2, "foretoken: aaa: File name too long"),
        (IsADirectoryError(21, "Is a directory", "folder"), 2, "foretoken: folder: Is a directory"),
        (KeyboardInterrupt(), 130, "foretoken: stopped; the records made so far are kept"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, error: BaseException, status: int, said: str
) -> None:
    def fails(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("harness.cli.exact.execute_plugins", fails)
    assert main(["plugins"]) == status
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(said)


def test_a_command_that_is_asked_to_end_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """By SIGTERM, as batch systems do: as by Ctrl-C."""
    monkeypatch.setattr("sys.argv", ["foretoken", "plugins"])
    monkeypatch.setattr("harness.cli.exact.execute_plugins", lambda _: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main() == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err.startswith("foretoken: stopped; the records made so far are kept")


def test_an_error_that_names_no_file_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(args: argparse.Namespace) -> int:
        raise OSError("a fault of ours")

    monkeypatch.setattr("harness.cli.exact.execute_plugins", fails)
    with pytest.raises(OSError, match="a fault of ours"):
        main(["plugins"])


def test_a_dry_run_of_the_kernels_times_nothing(place: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "kernels", "--dry-run", "--vocab", "7", "9", "--acceptance", "all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5  # two vocabularies, each with and without top-k; the kernels
    assert not (Path(place["folder"]) / "results").exists()


def test_doubled_records_do_not_count_twice_in_a_comparison(place: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    folder = Path(place["folder"]) / "doubled"
    assert main([*plain_run(place, method="speculative", drafter="copy", records=str(folder))]) == 0
    first, second = (str(path) for path in sorted(folder.glob("*.jsonl")))
    capsys.readouterr()
    assert main(["compare", first, second, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    Path(second).write_bytes(Path(second).read_bytes() * 2)
    assert main(["compare", first, second, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == before
