"""docs/regress-example as it stands: its command, its pytest test and its GitHub Action, each in a process of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "regress-example"
STEP_KEYS = {"name", "id", "if", "uses", "with", "env", "run", "shell", "working-directory", "continue-on-error"}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def plugged(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run pytest with the plug-in alone, as an installation has it, whatever is installed here."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "harness.cli.pytest_plugin", "-p", "no:cacheprovider", *arguments]
    alone = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    return subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, check=False)


def test_the_example_passes_and_an_edited_baseline_fails_in_one_line(tmp_path: Path) -> None:
    """A copy beside the checkpoints that it names; a second test holds a file that somebody edited."""
    place = tmp_path / "docs" / "regress-example"
    shutil.copytree(EXAMPLE, place)
    (tmp_path / "results" / "baselines").mkdir(parents=True)
    (tmp_path / "results" / "baselines" / "checkpoints").symlink_to(ROOT / "results" / "baselines" / "checkpoints")
    text = (place / "pair.json").read_text(encoding="utf8")
    (place / "edited.json").write_text(text.replace('"gamma": 3', '"gamma": 4', 1), encoding="utf8")
    (place / "test_edited.py").write_text("def test_it(foretoken_baseline):\n    foretoken_baseline('edited.json')\n")
    done = plugged(place, "test_pair.py", "test_edited.py")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("foretoken: ")]
    assert line.startswith(f"foretoken: baseline {place / 'edited.json'}: refused: edited after it was written")
    assert "Traceback" not in done.stdout


def test_the_plug_in_imports_nothing_heavy_until_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_light.py").write_text(
        "import sys\n\ndef test_it(foretoken_baseline):\n    assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)\n"
    )
    done = plugged(tmp_path, "test_light.py")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_it_is_loaded_once_by_its_name() -> None:
    """An entry point and -p load a module under one name, so that both together are no error."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf8")
    assert '"harness.cli.pytest_plugin" = "harness.cli.pytest_plugin"' in text


def action() -> dict:
    return yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf8"))


def test_the_action_has_what_a_composite_action_must() -> None:
    """docs.github.com, "Metadata syntax": name, description, described inputs, `using: composite`, a shell for a run step."""
    found = action()
    assert found.keys() <= {"name", "author", "description", "inputs", "outputs", "runs", "branding"}
    assert found["name"]
    assert found["description"]
    for name, one in found["inputs"].items():
        assert one.keys() <= {"description", "required", "default", "deprecationMessage"}, name
        assert one["description"]
        assert one["required"] is ("default" not in one)
    assert found["runs"].keys() == {"using", "steps"}
    assert found["runs"]["using"] == "composite"
    assert len(found["runs"]["steps"]) == 3
    for step in found["runs"]["steps"]:
        assert step.keys() <= STEP_KEYS
        assert ("run" in step) != ("uses" in step)
        assert ("run" in step) == ("shell" in step)
        assert "${{" not in step.get("run", "")  # an input in a script could be a script
        assert step.get("uses", "x@v1").count("@") == 1


def test_the_workflow_gives_the_action_its_inputs() -> None:
    found = yaml.safe_load((EXAMPLE / ".github" / "workflows" / "pair.yml").read_text(encoding="utf8"))
    assert found.keys() == {"name", True, "jobs"}  # YAML 1.1 reads the key "on" as true
    (job,) = found["jobs"].values()
    assert job["runs-on"]
    ours = job["steps"][-1]
    assert ours["uses"].startswith("OWNER/foretoken@")
    inputs = action()["inputs"]
    assert ours["with"].keys() <= inputs.keys()
    assert {name for name, one in inputs.items() if one["required"]} <= ours["with"].keys()
    assert (EXAMPLE / ours["with"]["baseline"]).is_file()


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [('exec "{python}" -m harness "$@"', 0, "nothing moved"), ('echo "moved $*"; exit 1', 1, "moved")],
)
def test_the_actions_last_step_runs_the_command(tmp_path: Path, program: str, status: int, said: str) -> None:
    """In bash as a runner starts it, in the example's folder; the command's own status is the step's."""
    command = tmp_path / "foretoken"
    command.write_text(f"#!/bin/sh\n{program.format(python=sys.executable)}\n")
    command.chmod(0o755)
    step, summary = action()["runs"]["steps"][-1], tmp_path / "summary"
    given = {"BASELINE": "pair.json", "ARGUMENTS": "", "GITHUB_STEP_SUMMARY": str(summary)}
    assert step["env"].keys() - given.keys() == {"FORETOKEN_PRODUCTS"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=EXAMPLE,
        env=environment(**given, PATH=path, FORETOKEN_PRODUCTS=step["env"]["FORETOKEN_PRODUCTS"]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    for text in (done.stdout, summary.read_text(encoding="utf8")):
        assert said in text
        assert "pair.json" in text
