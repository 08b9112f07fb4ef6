"""Bad input: one clear line on stderr, exit status 2, nothing lost."""

import json
import multiprocessing
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.main import COMMANDS, main, parser
from harness.zoo.build import ensure
from methods.errors import WorkerError


@pytest.fixture(scope="module")
def folders(zoo_cache: Path) -> dict[str, Path]:
    return ensure(("gpt-target", "gpt-draft", "llama-draft-small", "t5-small"), "test", "toy", workers=0)


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
        "limit": "2",
        "max-new-tokens": "8",
        "records": str(tmp_path / "records"),
        "threads": "1",
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    if values["method"] == "speculative":
        values.setdefault("gamma", "3")
    return ["run", "--quiet", *(part for name, value in values.items() for part in (f"--{name}", value))]


def test_every_command_has_help() -> None:
    assert len(COMMANDS) == 21
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            parser().parse_args([name, "--help"])
        assert stop.value.code == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"task": "poetry"}, "task 'poetry'"),
        ({"gamma": "0"}, "gamma 0"),
        ({"gamma": "x"}, "--gamma"),
        ({"limit": "0"}, "--limit: '0'"),
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
        ({"method": "ppd", "early_layer": "1"}, "early layer 1 of 4: below half the depth"),
        ({"method": "ppd", "early_layer": "4"}, "early layer 4: the model has 4 layers; expected 2 to 3"),
        ({"method": "ppd", "early_layer": "two"}, "--early-layer: 'two'"),
        ({"method": "ppd", "candidates": "100000", "execution": "batched"}, "candidates 100000"),
        ({"method": "ppd", "execution": "threads"}, "execution 'threads': expected one of process, batched, simulated"),
        ({"method": "ppd", "heads": "nowhere"}, "heads 'nowhere': no heads there"),
        ({"match_layers": "2,9"}, "early layer 9: the model has 4 layers; expected 1 to 3"),
        ({"match_layers": "deep"}, "--match-layers: 'deep'"),
        ({"method": "autoregressive", "gamma": "3"}, "--gamma 3: method 'autoregressive' does not read it; leave it out, or"),
        ({"candidates": "2"}, "--candidates 2: method 'speculative' does not read it; leave it out, or choose --method ppd"),
        ({"rule": "top-1", "tau": "2"}, "--tau 2.0: rule 'top-1' does not read it; leave it out, or choose --rule top-beta"),
        ({"cost": "0.1"}, "--cost 0.1: schedule 'constant' does not read it; leave it out, or choose --schedule optimal"),
        (
            {"schedule": "optimal", "alpha": "0.5", "cost": "0.1", "gamma": "3"},
            "--gamma 3: schedule 'optimal' does not read it",
        ),
        ({"option": "least=1"}, "option least: no part of this run reads it; expected one of gamma"),
        ({"option": "gamma=x"}, "option gamma=x: of schedule 'constant'; Expected `int`, got `str`"),
        ({"option": "gamma"}, "option 'gamma': expected NAME=VALUE"),
        ({"heads": "nowhere"}, "--heads nowhere: nothing reads it"),
        ({"num_beams": "3"}, "--num-beams 3: method 'speculative' does not read it"),
        ({"encoder": "shared"}, "--encoder shared: drafter 'model' does not read it; leave it out, or choose --drafter block"),
        ({"drafter": "block", "encoder": "half"}, "encoder 'half': expected one of own, shared, concurrent"),
        ({"method": "drafter-alone"}, "drafter 'model': only a block drafter decodes alone; expected drafter block"),
        ({"method": "drafter-alone", "gamma": "0"}, "gamma 0: expected an integer >= 1"),
        ({"drafter": "blockwise"}, "no heads there; expected a folder of early heads"),
    ],
)
def test_bad_values(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture, changes: dict[str, str], expected: str
) -> None:
    assert expected in refused(capsys, *run_arguments(folders, tmp_path, **changes))


def test_ppd_needs_a_decoder_only_model(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    changes = {"method": "ppd", "target": str(folders["t5-small"]), "draft": str(folders["t5-small"]), "task": "wmt-en-de"}
    assert "model type 't5': PPD splits the layers" in refused(capsys, *run_arguments(folders, tmp_path, **changes))


def test_ppd_warns_of_more_processes_than_cores_and_ends_in_one_line_if_one_dies(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.refusals.num_cores", lambda: 2)
    arguments = run_arguments(folders, tmp_path, method="ppd", early_layer="2", candidates="3")
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "warning: candidates 3: 4 processes share 2 cores" in err
    document = json.loads(out.strip().splitlines()[-1])
    assert document["audit"]["verdict"] == "identical"
    assert {"match_rate", "speedup", "theorem_frac", "attainable_frac", "wait_ms"} <= set(document["metrics"])
    for process in multiprocessing.active_children():
        process.kill()

    def dies(*_: object) -> None:
        raise WorkerError("sub-process 1 of 1 died (exit code -9) while the pipeline ran")

    monkeypatch.setattr("methods.ppd.units.SubProcesses.wait", dies)
    monkeypatch.setattr("methods.ppd.units.SubProcesses.post", dies)
    assert main(run_arguments(folders, tmp_path, method="ppd", early_layer="2", seed="5")) == 1
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("foretoken: sub-process 1 of 1 died")


def test_vocabularies_that_differ_name_both_sides(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    line = refused(capsys, *run_arguments(folders, tmp_path, draft=str(folders["llama-draft-small"])))
    assert "gpt-target" in line
    assert "llama-draft-small" in line


def test_what_becomes_of_own_texts_is_told(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """What part of a text is its prompt, and which rows are tested: of a folder's only file all, or the part held out."""
    (tmp_path / "data").mkdir()
    rows = [f"{' '.join(['one two three four five six seven'] * 4)} {number}" for number in range(12)]
    (tmp_path / "data" / "test.txt").write_text("\n".join(rows), encoding="utf8")
    assert main(run_arguments(folders, tmp_path, data=str(tmp_path / "data"), limit="12", split="test")) == 0
    told = capsys.readouterr().err
    assert "note: of a text the first third is the prompt, at most 60 words, and the rest the reference" in told
    assert re.search(r"\d of 12 examples: .* has no more to test\. This is the part that training leaves out", told)
    assert main(run_arguments(folders, tmp_path, data=str(tmp_path / "data" / "test.txt"), limit="12")) == 0
    assert "has no more to test" not in capsys.readouterr().err
    assert main(run_arguments(folders, tmp_path)) == 0
    assert "the first third" not in capsys.readouterr().err, "generated texts are nobody's own"


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
        (("table", "0"), "expected a number from 1 to 34"),
        (("table", "nine"), "invalid int value"),
        (("figure", "leviathan-9"), "leviathan-9"),
        (("frobnicate",), "frobnicate"),
        (("show", "nowhere.jsonl"), "nowhere.jsonl"),
        (("compare", "a.jsonl", "b.jsonl"), "records a.jsonl: no record file"),
        (("show", "."), "records .: no record file; expected a .jsonl file"),
        (("acceptance", "."), "records .: no record file"),
        (("check-plugin", "nowhere.py"), "plug-in 'nowhere.py': not there"),
        (("run", "--task", "text", "--target", "zoo:gpt-target", "--records="), "argument --records: '': expected the name of"),
        (("report", "--records", "nowhere"), "records nowhere: not a folder"),
        (("report", "--output="), "argument --output: '': expected the name of a folder or a file"),
        (("run", "--task", "text", "--target", "zoo:gpt-target", "--target-revision", "abc"), "revision 'abc'"),
        (("run", "--task", "text", "--target", "zoo:gpt-target", "--draft-revision", "abc"), "--draft-revision abc: nothing"),
        (("run", "--task", "text", "--target", ".", "--limit", "0"), "argument --limit: '0': expected an integer from 1"),
        (("run", "--task", "text", "--target", ".", "--gamma", "2", "--gamma", "4"), "argument --gamma: given twice"),
        (("run", "--task", "conversations", "--target", "zoo:gpt-target"), "task 'conversations': it is only trained on"),
        (("run", "--task", "text", "--target", "zoo:ngram-gpt"), "target zoo:ngram-gpt: it is a table of counted n-grams"),
        (("run", "--task", "text", "--target", "zoo:llama-deep-heads"), "it is trained early heads; expected a language model"),
        (("run", "--task", "text", "--target", "zoo:specdec-blockwise"), "it is blockwise heads; expected a language model"),
        (("regress", "--update", " "), "update"),
    ],
)
def test_bad_commands(capsys: pytest.CaptureFixture, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refused(capsys, *arguments)


def test_without_docstrings_no_command_starts() -> None:
    """Transformers reads its own; its error named a class of its outputs."""
    command = [sys.executable, "-OO", "-m", "harness", "plugins"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[2])
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("foretoken: PYTHONOPTIMIZE=2 (-OO)")


def test_regress_asks_for_baselines_before_it_measures(
    capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.regress.measure", lambda runner: pytest.fail("half a minute was spent"))
    assert "none there" in refused(capsys, "regress", "--baselines", str(tmp_path))


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
    assert document["metrics"]["tokens_per_s"]["value"] > 0
    kept = Path(document["records"]).read_bytes()
    Path(document["records"]).write_bytes(kept.splitlines(keepends=True)[0])
    assert main(["compare", document["baseline_records"], document["records"]]) == 0
    assert "refused: the same examples were asked for, and there are records of A 2 and B 1" in capsys.readouterr().out


def test_dry_run_runs_nothing(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([*run_arguments(folders, tmp_path), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "at most 32 tokens" in out
    assert not (tmp_path / "records").exists()
