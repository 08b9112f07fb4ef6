"""The examples of CONTRIBUTING.md, executed as they stand: extracted, registered by their one line, and run on real models."""

import re
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"`([a-z_/]+\.py)`:\n\n```python\n(.*?)```\n\nIn `([A-Z]+)` of `([a-z_/]+\.py)`:\n\n```python\n(.*?)```", re.S
)
EXAMPLES = {match[0]: match for match in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf8"))}


def register(path: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Execute an example as the module it would be and add its line to the dictionary; the name it is known by."""
    _, source, registry, home, line = EXAMPLES[path]
    assert len(source.splitlines()) <= 40
    name = path.removesuffix(".py").replace("/", ".")
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, path, "exec"), module.__dict__)
    home_module = import_module(home.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."))
    known = {**vars(home_module), **vars(module)}
    [(key, value)] = eval("{" + line + "}", known).items()
    monkeypatch.setitem(getattr(home_module, registry), key, value)
    return key


PAPER = re.compile(
    r"`harness/papers/(\w+)/__init__\.py`:\n\n```python\n(.*?)```\n.*?`results/published/(\S+)`:\n\n```csv\n(.*?)```", re.S
)


def test_the_paper_stands_in_the_catalogue_beside_its_published_numbers(
    zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The folder and the CSV file of the example, and its name in the list: the table is run and printed."""
    import harness.papers as papers
    from harness.cli.main import main
    from harness.tables import published

    ((name, source, place, numbers),) = PAPER.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf8"))
    assert len(source.splitlines()) <= 60
    (tmp_path / "published" / place).parent.mkdir(parents=True)
    (tmp_path / "published" / place).write_text(numbers, encoding="utf8")
    monkeypatch.setattr(published, "FOLDER", tmp_path / "published")
    published.read.cache_clear()
    module = types.ModuleType(f"harness.papers.{name}")
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    [example] = module.TABLES
    monkeypatch.setitem(papers.TABLES, example.number, example)
    monkeypatch.chdir(tmp_path)
    arguments = ["table", str(example.number), "--reproduce", "--profile", "test", "--limit", "3", "--quiet"]
    assert main([*arguments, "--records", str(tmp_path / "records")]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| copy"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1].startswith("GPT-2")
    assert cells[2] == "21.5"
    assert 1 <= float(cells[3].split()[0]) <= 32
    published.read.cache_clear()


def test_there_is_an_example_of_each() -> None:
    assert set(EXAMPLES) == {"tasks/recite.py", "methods/speculative/echo.py", "methods/speculative/threshold.py"}


def test_they_run_together_on_real_models(
    zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The task, decoded with the drafter, verified by the rule: one command, as a contributor would try it."""
    import json

    import tasks  # noqa: F401
    from harness.cli.main import main
    from harness.zoo.build import ensure

    ensure(("gpt-target",), "test", "toy", workers=0)
    task, drafter, rule = (register(path, monkeypatch) for path in EXAMPLES)
    arguments = ["run", "--quiet", "--profile", "test", "--task", task, "--target", "zoo:gpt-target", "--method", "speculative"]
    arguments += [
        "--drafter",
        drafter,
        "--rule",
        rule,
        "--option",
        "least=0.2",
        "--limit",
        "3",
        "--temperature",
        "1",
        "--records",
        str(tmp_path),
    ]
    assert main([*arguments, "--threads", "1"]) == 0
    document = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert document["audit"]["verdict"] == "lossy"
    (description,) = tmp_path.glob(f"{document['signature']}.json")
    assert json.loads(description.read_text())["method"]["rule"] == {"name": rule, "options": {"least": 0.2}}
    assert document["metrics"]["words_in_place"]["n"] == 3
    assert 0 <= document["metrics"]["accepted_over_drafted"]["value"] < 1
