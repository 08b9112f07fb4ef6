"""The notebooks: committed without outputs, and run from nothing: each makes the records that are missing, then answers."""

import os
import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from harness.core.checkout import ROOT
from harness.core.errors import UsageError
from harness.papers import get_figure, get_table
from harness.report.notebooks import recorded
from harness.zoo.build import ensure

FOLDER = ROOT / "notebooks"
FORGET = "%reset_selective -f '^(?!_|In$|Out$|get_ipython$|exit$|quit$|open$)'"  # every name that a notebook gave
NAMES = ("leviathan", "optimized", "ppd", "specdec", "your_own_pair")
ON_REAL_MODELS = ("leviathan", "optimized", "ppd", "specdec")  # of profile pocket, whose records are committed
# What each must end up saying and drawing: a line of its answer, and how many pictures it has at least.
ANSWERS = {
    "leviathan": (r"eq1 +of tokens_per_step: off by [+-]\d+%", 3),
    "optimized": (r"the sigmoid accepts \d+%; rouge1 \d", 2),
    "ppd": (r"own heads +match rate \d+%: Theorem 4\.1 promises", 2),
    "specdec": (r"SpecDec: fastest at k = \d+ \(\d", 2),
    "your_own_pair": (r"gamma = \d+: \d+\.\d\d \[|no speed-up may be shown", 1),
    "leviathan, pocket": (r"theorem +of speedup +: off by \+\d+%", 3),
    "ppd, pocket": (r"k = 1, own heads +match rate 9%: Theorem 4\.1 promises \+4% of greedy's time, -\d+% with both heads", 2),
    "specdec, pocket": (r"SpecDec: fastest at k = 8 \(0\.\d\d times greedy\)", 3),
    "optimized, pocket": (r"unfiltered, pocket:whisper-tiny\.en: .* the sigmoid accepts 100%; wer 0\.\d", 2),
}


def test_they_are_committed_without_outputs() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)
    for name in NAMES:
        path = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert notebook.metadata.kernelspec.name == "python3"
        assert [cell.id for cell in notebook.cells] == [f"{name}-{number:02d}" for number in range(len(notebook.cells))]
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert len(code) >= 5
        assert all(not cell.outputs and cell.execution_count is None for cell in code), path
        assert all(not cell.metadata for cell in notebook.cells), path


@pytest.fixture(scope="module")
def outputs(zoo_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[NotebookNode]]:
    """The outputs of every notebook, run in one Python that imports libraries once; each begins with no name and no record."""
    folder, whole, ends = tmp_path_factory.mktemp("notebooks"), nbformat.v4.new_notebook(), {}
    for name in NAMES:
        start = f"{FORGET}\nimport os\nos.chdir({str(FOLDER)!r})\nos.environ['RECORDS'] = {str(folder / name)!r}"
        if name == "your_own_pair":  # folders, seen from the checkout's root as in `make notebooks TARGET=...`
            pair = ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0).values()
            start += "".join(
                f"\nos.environ[{variable!r}] = {os.path.relpath(path, ROOT)!r}"
                for variable, path in zip(("TARGET", "DRAFT"), pair, strict=True)
            )
        whole.cells += [nbformat.v4.new_code_cell(start), *nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells]
        ends[name] = len(whole.cells)
    for name in ON_REAL_MODELS:
        start = f"{FORGET}\nimport os\nos.chdir({str(FOLDER)!r})\nos.environ.pop('RECORDS', None)"
        start += "\nos.environ['PROFILE'] = 'pocket'"
        whole.cells += [nbformat.v4.new_code_cell(start), *nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells]
        ends[f"{name}, pocket"] = len(whole.cells)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in {"IPYTHONDIR": folder / "ipython", "OMP_NUM_THREADS": "1"}.items():
            patch.setenv(variable, str(value))
        for variable in ("PROFILE", "TARGET", "DRAFT", "TASK", "DATA"):
            patch.delenv(variable, raising=False)
        resources = {"metadata": {"path": str(FOLDER)}}
        NotebookClient(whole, timeout=300, kernel_name="python3", resources=resources, allow_errors=True).execute()
    assert all(list((folder / name).glob("*.jsonl")) for name in NAMES)
    starts = [0, *ends.values()]
    return {
        name: [output for cell in whole.cells[start:end] if cell.cell_type == "code" for output in cell.outputs]
        for (name, end), start in zip(ends.items(), starts, strict=False)
    }


@pytest.mark.parametrize("name", ANSWERS)
def test_it_runs_from_nothing_and_answers(name: str, outputs: dict[str, list[NotebookNode]]) -> None:
    written = outputs[name]
    failed = [output for output in written if output.output_type == "error"]
    assert not failed, "\n".join(failed[0].traceback)
    printed = "".join(output.text for output in written if output.output_type == "stream" and output.name == "stdout")
    answer, num_pictures = ANSWERS[name]
    assert re.search(answer, printed), printed
    pictures = [output for output in written if "image/png" in output.get("data", {})]
    assert len(pictures) >= num_pictures
    warned = [output.text for output in written if output.output_type == "stream" and output.name == "stderr"]
    assert "Warning" not in "".join(warned), warned


def test_a_profile_that_is_named_is_not_run_behind_the_users_back(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="profile 'toy': nothing of it is recorded"):
        recorded(get_figure("leviathan-2"), tmp_path, "toy")
    assert not list(tmp_path.iterdir())


def test_a_profile_that_runs_nothing_of_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="profile 'pocket': it runs nothing of this"):
        recorded(replace(get_table(30), plan=lambda settings: []), tmp_path, "pocket")
