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


def test_there_is_an_example_of_each() -> None:
    assert set(EXAMPLES) == {"tasks/recite.py", "methods/speculative/echo.py", "methods/speculative/threshold.py"}


def test_they_run_together_on_real_models(
    zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The task, decoded with the drafter, verified by the rule: one command, as a contributor would try it."""
    import json

    import tasks  # noqa: F401
    from harness import zoo
    from harness.cli import main

    zoo.ensure(("gpt-target",), "test", "toy", workers=0)
    task, drafter, rule = (register(path, monkeypatch) for path in EXAMPLES)
    arguments = ["run", "--quiet", "--profile", "test", "--task", task, "--target", "zoo:gpt-target", "--method", "speculative"]
    arguments += ["--drafter", drafter, "--rule", rule, "--limit", "3", "--temperature", "1", "--records", str(tmp_path)]
    assert main([*arguments, "--threads", "1"]) == 0
    document = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert document["audit"]["verdict"] == "lossy"
    assert document["metrics"]["words_in_place"]["n"] == 3
    assert 0 <= document["metrics"]["accepted_over_drafted"]["value"] < 1
