"""``foretoken gpu``: its smallest rehearsal on a machine with few packages, how calls go on, deadlines, goals and the page."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.gpu import documents, page, properties, session, tables
from harness.gpu.apart import run_apart
from harness.gpu.goals import ONE, judge
from harness.gpu.parts import NAMES, Part
from harness.gpu.place import Item, Place
from harness.report.site import _Content, write_site
from kernels.inputs import NotFiniteError
from kernels.verify.check import Case
from kernels.verify.interface import Verdict
from kernels.verify.registry import KERNELS

ROOT = Path(__file__).resolve().parents[2]
ABSENT = (
    "datasets", "evaluate", "rouge_score", "jiwer", "soundfile", "sacrebleu", "ray", "pandas", "gguf", "espeakng_loader",
    "whisper_normalization", "accelerate", "matplotlib", "psutil",
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def rehearse(folder: Path, absent: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the smallest rehearsal in a fresh process from the checkout; absent packages are as if not installed."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({absent!r}, None))\n", encoding="utf8"
    )
    environment = os.environ | {
        "PYTHONPATH": f"{hook}:{ROOT}",
        "FORETOKEN_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "harness", "gpu", "--rehearse", "smallest", "--out", str(folder / "out"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_smallest_rehearsal_runs_every_part_where_few_packages_are(tmp_path: Path) -> None:
    done = rehearse(tmp_path, ABSENT)
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["README.md", *(documents.path_of(out, one).name for one in NAMES)]
    )
    results = page.read_folder(out)
    assert results["failed"] == []
    assert [part["name"] for part in results["parts"] if not part["items"]] == ["tables"]
    lacking = [(row["part"], row["why"]) for row in results["not reached"]]
    assert set(lacking) == {("tables", "package sacrebleu is not installed here")}
    text = (out / "README.md").read_text(encoding="utf8")
    assert "REHEARSAL" in text
    assert {row["verdict"] for row in results["goals"]} <= {"not judged", "not reached"}
    kept = tmp_path / "results" / "gpu" / "rehearsal-smallest"
    assert (kept / "README.md").read_text(encoding="utf8") == text


def test_without_msgspec_what_needs_none_is_measured(tmp_path: Path) -> None:
    """The harness checks its records with it; kernels, loops and pipelines have none."""
    done = rehearse(tmp_path, ("msgspec",), "--only", "environment", "--only", "pipeline", "--only", "tables")
    assert done.returncode == 0, done.stdout + done.stderr
    results = page.read_folder(tmp_path / "out")
    assert {part["name"] for part in results["parts"] if part["items"]} == {"environment", "pipeline"}
    assert {"part": "tables", "item": "tables", "why": "package msgspec is not installed here"} in results["not reached"]


def test_a_table_is_made_where_its_scores_can_be_counted(tmp_path: Path) -> None:
    place = place_in(tmp_path, scale="smallest", records=tmp_path / "records")
    items = tables.items(place)
    assert [item.name for item in items] == ["table 8, float32", "table 8, float32, graphs"]
    found = [item.measure() for item in items]
    assert all(made["passed"] for made in found)
    tokens, with_graphs = ([cell["measured"] for cell in made["cells"] if cell["column"] == "tokens per run"] for made in found)
    assert tokens == with_graphs
    assert len(tokens) == 12
    made = found[0]
    assert min(tokens) >= 1
    assert "Table 8" in made["text"]
    assert json.loads(json.dumps(made))["cells"][0]["row"] == "EnDe / T5-small / 0"


def place_in(folder: Path, **changes: Any) -> Place:
    values = {"device": "cpu", "name": "a card", "scale": "device", "code": "1", "folder": folder, "records": folder}
    return Place(**values | changes)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A part of three items: one is measured, one fails, one lacks a package."""
    made: list[str] = []

    def fails() -> dict[str, Any]:
        made.append("fails")
        raise RuntimeError("no such kernel")

    def lacks() -> dict[str, Any]:
        made.append("lacks")
        raise ModuleNotFoundError("no module", name="jiwer")

    def good() -> dict[str, Any]:
        made.append("good")
        return {"facts": {"x": 1.5}}

    measures: dict[str, Callable[[], dict[str, Any]]] = {"good": good, "fails": fails, "lacks": lacks}
    found = [Item(name=name, seconds=1, measure=measure) for name, measure in measures.items()]
    monkeypatch.setitem(sys.modules, "harness.gpu.environment", SimpleNamespace(items=lambda place: found))
    return made


PART = Part(name="environment", module="environment", title="a part", seconds=1)


def test_a_later_call_measures_only_what_is_not_there(tmp_path: Path, calls: list[str]) -> None:
    place = place_in(tmp_path)
    session.measure_part(place, PART, time.monotonic() + 60)
    document = documents.read(place, "environment")
    assert document["items"]["good"]["facts"] == {"x": 1.5}
    assert document["items"]["fails"]["failed"] == "RuntimeError: no such kernel"
    assert document["why"] == {"lacks": "package jiwer is not installed here"}
    session.measure_part(place, PART, time.monotonic() + 60)
    assert calls == ["good", "fails", "lacks", "lacks"]  # what failed is tried again by the next call, not by the same one
    assert documents.read(place_in(tmp_path, code="2"), "environment")["items"] == {}
    results = page.write_page(tmp_path)
    assert [row["item"] for row in results["failed"]] == ["fails"]
    assert {"part": "environment", "item": "lacks", "why": "package jiwer is not installed here"} in results["not reached"]
    assert not page.is_right(results)


def test_nothing_is_begun_that_cannot_fit(tmp_path: Path, calls: list[str]) -> None:
    session.measure_part(place_in(tmp_path), PART, time.monotonic() + 0.5)
    assert calls == []
    assert set(documents.read(place_in(tmp_path), "environment")["why"].values()) == {session.NO_TIME}


def test_work_that_hangs_ends_at_its_deadline_with_what_it_started(tmp_path: Path) -> None:
    def hang() -> None:
        started = subprocess.Popen(["sleep", "60"])
        (tmp_path / "pid").write_text(str(started.pid), encoding="utf8")
        time.sleep(60)

    begin = time.monotonic()
    assert "deadline" in str(run_apart(hang, 0.7))
    assert time.monotonic() - begin < 10
    state = Path("/proc") / (tmp_path / "pid").read_text(encoding="utf8") / "stat"
    assert not state.exists() or state.read_text(encoding="utf8").split()[2] == "Z"
    assert run_apart(lambda: os._exit(3), 5) == "its process ended with status 3"
    assert run_apart(lambda: None, 5) is None


def test_the_report_has_a_page_that_says_what_was_rehearsed(tmp_path: Path, calls: list[str]) -> None:
    results = tmp_path / "results"
    for name, scale in (("a-card", "device"), ("rehearsal", "smallest")):
        place = place_in(results / "gpu" / name, name=name, scale=scale)
        session.measure_part(place, PART, time.monotonic() + 60)
    devices = [page.read_folder(folder) for folder in sorted((results / "gpu").iterdir())]
    write_site(_Content(tables=[], figures=[], claims=[], unchecked=(), experiments=[], devices=devices), tmp_path / "site")
    text = (tmp_path / "site" / "gpu.html").read_text(encoding="utf8")
    device, rehearsal = text.split("<h2>")[1:]
    assert "REHEARSAL" in rehearsal
    assert "REHEARSAL" not in device
    assert "no such kernel" in device
    assert "fused, captured" in device


def test_goals_are_judged_on_a_device_alone() -> None:
    row = {"kernel": "fused", "way": "captured", "us": 9.0, "of copy bandwidth": 0.1}
    known = {"kernels": {"planned": [ONE], "items": {ONE: {"rows": [row]}}}}
    verdicts = {one["goal"]: one["verdict"] for one in judge(known, is_rehearsal=False)}
    assert verdicts[f"fused, captured, fp16, {ONE}"] == "MISSED"
    assert verdicts["every kernel check green"] == "not reached"
    row["us"] = 8.0
    assert {one["goal"]: one["verdict"] for one in judge(known, False)}[f"fused, captured, fp16, {ONE}"] == "met"
    assert {one["verdict"] for one in judge(known, is_rehearsal=True)} == {"not judged", "not reached"}


def test_what_is_red_is_named_with_its_first_row() -> None:
    rows = [
        {"subject": "A, greedy", "declared": "exact", "verdict": "identical"},
        {"subject": "A, temperature 1", "declared": "exact", "verdict": "biased"},
        {"subject": "B, temperature 1", "declared": "exact", "verdict": "failed", "error": "no tensor"},
    ]
    items = {"A": {"rows": rows, "passed": False}, "B": {"rows": rows[:1], "passed": True}, "C": {"passed": False}}
    assert [(row["item"], row["why"]) for row in page._failed({"audit": {"items": items}})] == [
        ("A", "red: 2 of 3 rows; the first: A, temperature 1, exact, biased"),
        ("C", "red: see its facts"),
    ]


def test_bad_requests_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"holds notes\.txt, which is none of this command's files"):
        documents.refuse_strangers(tmp_path)
    path = documents.path_of(tmp_path, "checks")
    path.write_text(json.dumps({"part": "audit", "items": {}}), encoding="utf8")
    with pytest.raises(UsageError, match="remove it, and it is measured again"):
        documents.stored(tmp_path, "checks")
    if not torch.cuda.is_available():
        assert main(["gpu", "--out", str(tmp_path / "new")]) == 2
        assert "no CUDA device is visible" in capsys.readouterr().err
        assert not (tmp_path / "new").exists()


def right(case: Case) -> Verdict:
    return KERNELS["exact"](*case, backend="torch")


def changed(case: Case, num_accepted: Callable[[Tensor], Tensor], next_token: Callable[[Tensor], Tensor]) -> Verdict:
    verdict = right(case)
    return Verdict(
        num_accepted(verdict.num_accepted), next_token(verdict.next_token), verdict.target_probs, verdict.draft_probs
    )


def test_properties_hold_of_a_right_kernel_and_find_wrong_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A race, a row that sees its neighbour, a token at uniform 0 that the target never emits, one drawn from NaN."""
    names = list(properties.check_all("exact", torch.float32, "cpu", "torch"))
    assert all(properties.check_all("exact", torch.float32, "cpu", "torch").values())
    numbers = iter(range(10**6))

    def broken(fault: str) -> Callable[..., Verdict]:
        def decide(*case: Any, backend: object) -> Verdict:
            if fault == "race":
                return changed(case, lambda count: count, lambda token: token + next(numbers) % 2)
            if fault == "neighbour":
                return changed(case, lambda count: count, lambda token: torch.arange(len(token)))
            if fault == "takes all":
                return changed(case, lambda count: count.clamp(min=1), lambda token: token)
            finite = (*case[:1], case[1].nan_to_num(0.0, 0.0), *case[2:])
            return right(finite)

        return decide

    expected = {"race": names[0], "neighbour": names[2], "takes all": names[5], "draws NaN": names[4]}
    for fault, name in expected.items():
        monkeypatch.setitem(KERNELS, "fused", broken(fault))
        assert not properties.check_all("fused", torch.float32, "cpu", "torch")[name], fault


@pytest.mark.parametrize(
    ("device", "drawn", "holds"),
    [
        ("cuda", [3, 9], True),
        ("cuda", None, False),  # refused by the host, which waited
        ("cuda", [9, 9], False),
        ("cuda", [3, 3], False),
        ("cpu", None, True),
        ("cpu", [3, 9], False),
    ],
)
def test_nan_is_refused_on_a_cpu_and_marked_on_a_device(device: str, drawn: list[int] | None, holds: bool) -> None:
    def decide(case: Any) -> Verdict:
        if drawn is None:
            raise NotFiniteError("logits of row 1: hold NaN")
        return Verdict(torch.zeros(2, dtype=torch.long), torch.tensor(drawn), torch.ones(2, 1), torch.ones(2, 1))

    assert properties.refuses_not_finite(decide, torch.float32, device) == holds


def test_an_item_that_kills_its_process_has_failed_and_those_behind_it_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures: dict[str, Callable[[], Any]] = {"a": dict, "b": lambda: os.kill(os.getpid(), signal.SIGKILL), "c": dict}
    found = [Item(name=name, seconds=1, measure=measure) for name, measure in measures.items()]
    monkeypatch.setitem(sys.modules, "harness.gpu.dying", SimpleNamespace(items=lambda place: found))
    part = Part(name="environment", module="dying", title="dies", seconds=1)
    place = Place(device="cpu", name="none", scale="smallest", code="1", folder=tmp_path, records=tmp_path)
    session._run_part(place, part, time.monotonic() + 30)
    items = documents.read(place, "environment")["items"]
    assert (list(items), "signal 9" in items["b"]["failed"]) == (["a", "b", "c"], True)
    assert not page.is_right(page.read_folder(tmp_path))


class _Ended(BaseException):
    """How a process ended, in the place of its end."""


def test_what_ended_a_process_is_tried_last_at_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One dies, one fails, one hangs to the deadline, one is behind them. Before, each call began with those that end it."""
    begun: list[str] = []

    def run_here(work: Callable[[], None], seconds: float) -> str | None:
        try:
            work()
        except _Ended as ended:
            return str(ended)
        return None

    def measure(name: str, error: BaseException | None) -> dict[str, Any]:
        begun.append(name)
        if error is not None:
            raise error
        return {}

    ways = {
        "dies": _Ended("its process ended with signal 9"), "fails": RuntimeError("not yet"),
        "hangs": _Ended("ended at its deadline, after 5 s"), "good": None,
    }  # fmt: skip
    found = [Item(name=name, seconds=1, measure=partial(measure, name, error)) for name, error in ways.items()]
    monkeypatch.setattr(session, "run_apart", run_here)
    monkeypatch.setitem(sys.modules, "harness.gpu.dying", SimpleNamespace(items=lambda place: found))
    part = Part(name="environment", module="dying", title="dies", seconds=1)
    place = place_in(tmp_path, scale="smallest")
    hung = {"hangs": "ended at its deadline, after 5 s"}
    for expected, why in (
        (["dies", "fails", "hangs"], hung | {"good": session.NO_TIME}),
        (["fails", "good", "dies", "dies", "hangs"], hung),
    ):
        begun.clear()
        session._forget_failures(place, part)
        session._run_part(place, part, time.monotonic() + 600)
        assert begun == expected
        assert documents.read(place, "environment")["why"] == why
    assert set(documents.read(place, "environment")["items"]) == {"dies", "fails", "good"}


def test_time_is_kept_for_what_can_run_and_the_rest_goes_to_what_had_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = Part(name="checks", module="late", title="lacks a package", seconds=30, needs=("no_such_package",))
    behind = Part(name="kernels", module="late", title="can run", seconds=20, needs=("torch",))
    monkeypatch.setattr(session, "PARTS", (PART, lacking, behind))
    ran: list[tuple[str, float]] = []

    def run_part(place: Place, part: Part, deadline: float) -> None:
        ran.append((part.name, round(deadline - time.monotonic())))
        document = documents.read(place, part.name)
        first = part is PART and len(ran) == 1
        documents.write(place, document | {"planned": ["one"], "why": {"one": session.NO_TIME} if first else {}})

    monkeypatch.setattr(session, "_run_part", run_part)
    session.run(place_in(tmp_path), (), (60 + session.RETURN_S) / 60)
    assert ran == [("environment", 40), ("checks", 40), ("kernels", 60), ("environment", 60)]
