"""Bad input: one clear line on stderr, exit status 2, nothing lost."""

import json
from pathlib import Path

import pytest

from harness import zoo
from harness.cli import COMMANDS, main, parser


@pytest.fixture(scope="module")
def folders(zoo_cache: Path) -> dict[str, Path]:
    return zoo.ensure(("gpt-target", "gpt-draft", "llama-draft-small", "t5-small"), "test", "toy", workers=0)


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """The one line that a refused command prints."""
    try:
        status = main(arguments)
    except SystemExit as stop:  # argparse
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("foretoken: ")
    return lines[0]


def run_arguments(folders: dict[str, Path], tmp_path: Path, **changes: str) -> list[str]:
    values = {
        "task": "text",
        "target": str(folders["gpt-target"]),
        "draft": str(folders["gpt-draft"]),
        "method": "speculative",
        "gamma": "3",
        "limit": "2",
        "max-new-tokens": "8",
        "records": str(tmp_path / "records"),
        "threads": "1",
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    return ["run", "--quiet", *(part for name, value in values.items() for part in (f"--{name}", value))]


def test_every_command_has_help() -> None:
    assert len(COMMANDS) == 9
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            parser(name).parse_args([name, "--help"])
        assert stop.value.code == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"task": "poetry"}, "task 'poetry'"),
        ({"gamma": "0"}, "gamma 0"),
        ({"gamma": "x"}, "--gamma"),
        ({"limit": "0"}, "--limit '0'"),
        ({"temperature": "-1"}, "temperature -1.0"),
        ({"top_p": "2"}, "top_p 2.0"),
        ({"lenience": "0"}, "lenience 0.0"),
        ({"rule": "nothing"}, "rule 'nothing'"),
        ({"schedule": "optimal"}, "schedule 'optimal'"),
        ({"drafter": "oracle"}, "drafter 'oracle'"),
        ({"method": "magic"}, "method 'magic'"),
        ({"target": "./nowhere"}, "./nowhere"),
        ({"target": "zoo:nothing"}, "zoo model 'nothing'"),
        ({"data": "nowhere.jsonl"}, "data 'nowhere.jsonl'"),
        ({"device": "cuda:9"}, "device 'cuda:9'"),
        ({"prompt_template": "{poem}"}, "{poem}"),
        ({"max_new_tokens": "4000"}, "position limit"),
    ],
)
def test_bad_values(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture, changes: dict[str, str], expected: str
) -> None:
    assert expected in refused(capsys, *run_arguments(folders, tmp_path, **changes))


def test_vocabularies_that_differ_name_both_sides(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    line = refused(capsys, *run_arguments(folders, tmp_path, draft=str(folders["llama-draft-small"])))
    assert "gpt-target" in line
    assert "llama-draft-small" in line


def test_malformed_row_names_file_and_line(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    data = tmp_path / "stories.jsonl"
    data.write_text('{"text": "' + "one two three four five six " * 9 + '"}\n' * 1 + '{"text": 3}\n', encoding="utf8")
    assert "stories.jsonl:2" in refused(capsys, *run_arguments(folders, tmp_path, data=str(data)))
    data.write_text('{"text": "fine words here"}\n{"text": "unfinished\n', encoding="utf8")
    assert "stories.jsonl:2" in refused(capsys, *run_arguments(folders, tmp_path, data=str(data)))


def test_unreadable_cache(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    occupied = tmp_path / "cache"
    occupied.write_text("a file, not a folder", encoding="utf8")
    monkeypatch.setenv("FORETOKEN_CACHE", str(occupied))
    assert str(occupied) in refused(capsys, "zoo", "ngram-gpt", "--scale", "test")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("table", "99"), "table 99"),
        (("table", "1"), "not implemented in this version"),
        (("table", "nine"), "invalid int value"),
        (("figure", "leviathan-9"), "leviathan-9"),
        (("frobnicate",), "frobnicate"),
        (("show", "nowhere.jsonl"), "nowhere.jsonl"),
        (("compare", "a.jsonl", "b.jsonl"), "a.json"),
        (("regress", "--update", " "), "update"),
    ],
)
def test_bad_commands(capsys: pytest.CaptureFixture, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refused(capsys, *arguments)


def test_run_ends_in_one_json_document(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = run_arguments(folders, tmp_path, temperature="1")
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert document["audit"]["verdict"] == "same distribution"
    assert Path(document["records"]).is_file()
    wanted = {
        "alpha_overlap",
        "alpha_ratio",
        "accepted_over_drafted",
        "accepted_per_step",
        "tokens_per_step",
        "speedup",
        "perplexity",
    }
    assert wanted <= set(document["metrics"])
    assert all(set(metric) == {"value", "low", "high", "n", "unit"} for metric in document["metrics"].values())
    assert main(["show", document["records"]]) == 0
    assert "tokens in" in capsys.readouterr().out
    assert main(["compare", document["baseline_records"], document["records"]]) == 0
    assert "2 shared runs" in capsys.readouterr().out


def test_dry_run_runs_nothing(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([*run_arguments(folders, tmp_path), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "at most 32 tokens" in out
    assert not (tmp_path / "records").exists()
