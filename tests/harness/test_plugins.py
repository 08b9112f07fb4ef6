"""Plug-ins: found, listed, refused, named in signatures, and held against contracts that deliberate mistakes must break."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import harness.papers  # noqa: F401 - its tables are a dictionary that each test leaves as it was
import tasks
from harness.cli.main import main
from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.exact.checks import Contract, hold
from harness.exact.contract_drafter import check_drafter
from harness.exact.contract_rule import check_rule
from harness.exact.contract_task import check_task
from harness.exact.contracts import check_entry, check_method, check_table, own_part
from harness.exact.controls import CONTROLS, _LenientBy, _Unsampled
from harness.exact.toy import random_table, toy_session
from harness.run.build import build_schedule
from harness.run.runner import pin
from harness.zoo.build import ensure
from kernels.verify.fused_cpu import Loop
from methods.autoregressive import Autoregressive
from methods.parts import DRAFTERS, RULES
from methods.sampling import Sampling, Uniforms
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.types import Inputs, Stop
from tasks import TASKS
from tasks.squad import Squad
from tasks.world.prose import squad_row

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "plugin-example"
FILE = EXAMPLE / "foretoken_example.py"
NAMES = {("task", "last-word"), ("drafter", "period"), ("rule", "among-best"), ("table", "900")}
ENTRIES = """
[foretoken.tasks]
last-word = foretoken_example:LastWord
[foretoken.drafters]
period = foretoken_example:period
[foretoken.rules]
among-best = foretoken_example:AmongBest
[foretoken.tables]
900 = foretoken_example:DRAFTS
"""


@pytest.fixture(autouse=True)
def _unplugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins without plug-ins, and leaves none."""
    registries = [kind.registry for kind in plugins.KINDS.values()] + [tasks.BROKEN]
    before = [dict(registry) for registry in registries]
    monkeypatch.setattr(plugins, "_seen", {})
    monkeypatch.setattr(plugins, "_offers", {})
    modules = set(sys.modules)
    yield
    for registry, contents in zip(registries, before, strict=True):
        registry.clear()
        registry.update(contents)
    for name in set(sys.modules) - modules:
        if "foretoken_" in name or name.startswith("someones"):
            del sys.modules[name]


def package(folder: Path, name: str, version: str, entries: str, **modules: str) -> Path:
    """What an installation leaves: modules and metadata."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entries)
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = package(tmp_path / "site", "foretoken-example", "0.1.0", ENTRIES, foretoken_example=FILE.read_text())
    monkeypatch.syspath_prepend(str(folder))
    return folder


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1, error
    return error


def experiment() -> Experiment:
    method = MethodSpec.of("speculative", drafter=DrafterSpec(kind="period"), rule="among-best")
    return Experiment(task="last-word", target=ModelSpec(name="zoo:gpt-target"), method=method, profile="test")


def test_an_installed_package_is_listed_and_known(installed: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["plugins"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[:4] for line in shown.splitlines()[1:]] == [
        ["task", "last-word", "foretoken-example", "0.1.0"],
        ["drafter", "period", "foretoken-example", "0.1.0"],
        ["rule", "among-best", "foretoken-example", "0.1.0"],
        ["table", "900", "foretoken-example", "0.1.0"],
    ]
    assert "broken" not in shown
    assert TASKS["last-word"].name == "last-word"
    assert {"period"} <= set(DRAFTERS)
    assert {"among-best"} <= set(RULES)


def test_signatures_name_what_is_plugged_in(installed: Path, tmp_path: Path) -> None:
    pinned = pin(experiment())
    assert [identity.split(",")[0] for identity in pinned.plugins] == [
        "drafter period: foretoken-example 0.1.0",
        "rule among-best: foretoken-example 0.1.0",
        "task last-word: foretoken-example 0.1.0",
    ]
    assert Experiment.from_dict(json.loads(pinned.to_json())) == pinned
    assert pinned.signature != pinned.replace(plugins=()).signature
    plain = Experiment(task="text", target=ModelSpec(name="zoo:gpt-target"), method=MethodSpec(name="autoregressive"))
    assert pin(plain.replace(profile="test")).plugins == ()
    overlap = plain.replace(profile="test", probes=(OverlapProbe(drafter=DrafterSpec(kind="period")),))
    assert len(pin(overlap).plugins) == 1


def test_a_changed_file_is_another_experiment_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signatures = []
    for number, source in enumerate((FILE.read_text(), FILE.read_text(), FILE.read_text() + "# changed\n")):
        monkeypatch.setattr(plugins, "_seen", {})
        for kind, name in NAMES:
            plugins.KINDS[kind].registry.pop(int(name) if kind == "table" else name, None)
        (tmp_path / str(number)).mkdir()
        (path := tmp_path / str(number) / "mine.py").write_text(source)
        plugins.load([path])
        signatures.append(pin(experiment()).signature)
    assert signatures[0] == signatures[1] != signatures[2]


def test_it_runs_as_a_file(zoo_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    ensure(("gpt-target",), "test", "toy", workers=0)
    arguments = ["run", "--quiet", "--plugin", str(FILE), "--profile", "test", "--task", "last-word"]
    arguments += ["--target", "zoo:gpt-target", "--method", "speculative", "--drafter", "period", "--rule", "among-best"]
    arguments += ["--gamma", "2", "--limit", "2", "--records", str(tmp_path), "--threads", "1"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert document["audit"]["verdict"] == "lossy"
    assert document["metrics"]["last_word"]["n"] == 2
    described = json.loads(Path(document["records"]).with_suffix(".json").read_text())
    assert len(described["plugins"]) == 3
    assert main(["acceptance", document["records"]]) == 0
    shown = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "unknown" not in shown["alpha_overlap"]


def read_ledger(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def test_its_table_is_run_and_stands_in_report_and_ledger(
    zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """As a file: its numbers, its page, and a command that names the file."""
    ensure(("gpt-target",), "test", "toy", workers=0)
    monkeypatch.chdir(tmp_path)
    given = ["--plugin", str(FILE)]
    assert main(["table", "900", "--reproduce", "--profile", "test", "--limit", "2", "--quiet", *given]) == 0
    assert "drafts that need no model" in capsys.readouterr().out
    (tables := tmp_path / "results" / "tables").mkdir()
    for path in (tmp_path / "results" / "runs" / "test-toy-limit-2" / "tables").iterdir():
        path.rename(tables / path.name)
    assert main(["ledger", *given]) == 0
    rows = [row for row in read_ledger(tmp_path / "results" / "ledger.csv") if row["catalogue"] == "900"]
    assert [(row["paper"], row["row"]) for row in rows] == [
        ("foretoken-example", kind) for kind in ("copy", "copy", "period", "period")
    ]
    assert all(float(row["measured"]) > 0 for row in rows[::2])
    flags = f"--profile test --limit 2 --plugin {os.path.relpath(FILE)}"
    assert {row["command"] for row in rows} == {f"foretoken table 900 --reproduce {flags}"}
    assert main(["report", *given]) == 0
    site = tmp_path / "results" / "report"
    page = (site / "table-900.html").read_text(encoding="utf8")
    for expected in (rows[0]["command"], "period: what came two tokens ago", "paper-foretoken-example.html", "tokens a round"):
        assert expected in page
    for name in ("index.html", "paper-foretoken-example.html", "regenerate.html"):
        assert 'href="table-900.html"' in (site / name).read_text(encoding="utf8"), name
    assert "foretoken-example" not in (site / "claims.html").read_text(encoding="utf8").split("<main", 1)[1]


def test_tables_of_installed_packages_are_in_report_and_ledger_and_broken_ones_harm_neither(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """One cannot be imported (a warning), one cannot say its cells (its page says so), a third is whole."""
    raising = """
from harness.tables.base import Table
def cells(settings, evidence):
    raise KeyError("gone")
FAILS = Table(number=901, paper="someones", paper_number=1, title="fails", row_heads=("a",), blocks=(("b",),),
              plan=lambda settings: [], cells=cells, notes=lambda settings: [])
"""
    entries = "[foretoken.tables]\n901 = someones_table:FAILS\n902 = someones_gone:TABLE\n"
    monkeypatch.syspath_prepend(str(package(tmp_path / "other", "someones", "2.0", entries, someones_table=raising)))
    (tmp_path / "results" / "tables").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["ledger"]) == 0
    printed = capsys.readouterr()
    assert "36 tables" in printed.out
    warning = (
        "foretoken: warning: plug-in someones 2.0: table '902' is broken: ModuleNotFoundError: No module named 'someones_gone'"
    )
    assert printed.err.splitlines() == [warning]
    rows = {row["catalogue"]: row for row in read_ledger(tmp_path / "results" / "ledger.csv")}
    assert rows["900"]["command"] == "make reproduce-table-900"
    assert rows["901"]["status"] == "broken: KeyError: 'gone'"
    assert main(["report"]) == 0
    assert "36 tables" in capsys.readouterr().out
    page = (tmp_path / "results" / "report" / "table-901.html").read_text(encoding="utf8")
    assert "Broken: KeyError: &#39;gone&#39;" in page


def test_broken_ones_harm_nothing_until_they_are_named(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    entries = """
[foretoken.tasks]
riddles = someones_gone:TASK
squad = someones_tasks:SQUAD
renamed = someones_tasks:SQUAD
[foretoken.rules]
exact = someones_tasks:SQUAD
leaves = someones_exit:RULE
[foretoken.drafters]
number = someones_tasks:NUMBER
[foretoken.tables]
9 = someones_tasks:NUMBER
950 = someones_tasks:NUMBER
"""
    sources = {
        "someones_tasks": "from tasks.squad import Squad\nSQUAD = Squad\nNUMBER = 3\n",
        "someones_gone": "import nowhere.to.be.found",
        "someones_exit": "raise SystemExit('bye')",
    }
    monkeypatch.syspath_prepend(str(package(tmp_path / "other", "someones", "2.0", entries, **sources)))
    squad, exact = TASKS["squad"], RULES["exact"]
    assert main(["plugins", "--json"]) == 0
    found = {(one["kind"], one["name"]): one["error"] for one in json.loads(capsys.readouterr().out)}
    assert {key for key, error in found.items() if error is None} == NAMES
    assert "nowhere" in found["task", "riddles"]
    assert "'squad' exists already, from the project" in found["task", "squad"]
    assert "calls itself 'squad'" in found["task", "renamed"]
    assert "exists already" in found["rule", "exact"]
    assert found["rule", "leaves"] == "SystemExit: bye"
    assert "cannot be called" in found["drafter", "number"]
    assert "no table of number 950" in found["table", "950"]
    assert (TASKS["squad"], RULES["exact"]) == (squad, exact)
    run = ["run", "--target", "zoo:gpt-target", "--profile", "test", "--dry-run"]
    assert "riddles': its plug-in someones 2.0 is broken" in refused(capsys, *run, "--task", "riddles")
    rule = ("--task", "text", "--method", "speculative", "--drafter", "copy", "--rule", "leaves")
    assert "rule 'leaves': its plug-in someones 2.0 is broken: SystemExit: bye" in refused(capsys, *run, *rule)
    assert "table 950: its plug-in" in refused(capsys, "table", "950", "--dry-run")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import nowhere", "ModuleNotFoundError"),
        ("x = (", "SyntaxError"),
        ("x = 1", "offers nothing; expected a dictionary of entries called one of TASKS, DRAFTERS"),
        ("from methods.parts import RULES", "offers nothing"),
        ("class Mine: ...\nRULES = {'exact': Mine}", "'exact' exists already, from the project; choose another name"),
        ("TASKS = {'mine': 3}", "3 is no task"),
        ("TABLES = ()\nSCHEDULES = {'mine-too': int}", "TABLES is a tuple; expected a dictionary, from names to tables"),
        ("raise BaseException('odd')", "BaseException: odd"),
        (
            "import sys\nfrom tasks.squad import Squad\nclass Mine(Squad):\n __init__ = sys.exit\nTASKS = {'mine': Mine}",
            "SystemExit",
        ),
    ],
)
def test_a_file_that_is_given_must_be_whole(source: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (path := tmp_path / "mine.py").write_text(source)
    assert expected in refused(capsys, "tables", "--plugin", str(path))
    assert main(["plugins", str(path)]) == 0
    assert "broken: " in capsys.readouterr().out
    assert main(["check-plugin", str(path)]) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (" def __init__(self, need): ...", "plug-in mine.py: TypeError: Mine.__init__() missing 1 required"),
        (" def __init__(self): self.nothing", "plug-in mine.py:2: AttributeError: 'Mine' object has no attribute 'nothing'"),
        (" def __init__(self): raise SystemExit(0)", "plug-in mine.py:2: SystemExit: 0"),
        (" def __init__(self): raise OSError(5, 'odd')", "plug-in mine.py:2: OSError: [Errno 5] odd"),
        (" def __init__(self, a: 'Nowhere' = 1): ...", "NameError: name 'Nowhere' is not defined"),
    ],
)
def test_a_part_that_fails_when_it_is_used_is_named(
    body: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (path := tmp_path / "mine.py").write_text(f"class Mine:\n{body}\nRULES = {{'mine': Mine}}\n")
    run = ["run", "--plugin", str(path), "--profile", "test", "--task", "text", "--target", "zoo:gpt-target", "--dry-run"]
    said = refused(capsys, *run, "--method", "speculative", "--drafter", "copy", "--rule", "mine")
    assert expected in said
    assert "`foretoken check-plugin mine.py`" in said


def test_an_error_that_no_plugin_raised_is_not_hidden(installed: Path) -> None:
    """A package that happens to be installed is not blamed; Ctrl-C and errors for the user pass as they are."""
    plugins.load()
    for error in (KeyError("ours"), KeyboardInterrupt(), UsageError("known")):
        with pytest.raises(type(error)), plugins.at_fault():
            raise error


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture) -> None:
    assert "nowhere.py: file 'nowhere.py': not there" in refused(capsys, "tables", "--plugin", "nowhere.py")
    assert "no file, package or name" in refused(capsys, "check-plugin", "nothing")
    assert not [file for file in plugins.files() if not Path(file).exists()]  # no worker is told to load it


def test_two_packages_with_one_name(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = package(tmp_path / "again", "zz-other", "1", "[foretoken.rules]\namong-best = foretoken_example:AmongBest\n")
    monkeypatch.syspath_prepend(str(again))
    plugins.load()
    [second] = [one for one in plugins.known() if one.origin == "zz-other"]
    assert second.error == "'among-best' exists already, from foretoken-example 0.1.0; choose another name"
    assert plugins.find("rule", "among-best").origin == "foretoken-example"  # type: ignore[union-attr]


def test_pip_installs_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real way, offline: it needs pip and setuptools, nothing else."""
    if importlib.util.find_spec("pip") is None or importlib.util.find_spec("setuptools") is None:
        pytest.skip("pip or setuptools is not in this environment")
    (copy := tmp_path / "source").mkdir()
    for name in ("pyproject.toml", "foretoken_example.py"):
        (copy / name).write_bytes((EXAMPLE / name).read_bytes())
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(tmp_path / "site"), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named 'wheel'" in done.stderr or "invalid command 'bdist_wheel'" in done.stderr:
        pytest.skip("this environment cannot build a package without the network")
    assert done.returncode == 0, done.stderr
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    plugins.load()
    assert {(one.kind, one.name) for one in plugins.known() if one.origin == "foretoken-example" and not one.error} == NAMES


def test_the_example_keeps_its_contracts(capsys: pytest.CaptureFixture) -> None:
    status = main(["check-plugin", str(FILE)])
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "contract kept: 31 of 31 checks passed" in shown
    assert "rule among-best (foretoken_example.py)" in shown


def test_a_folder_stands_for_its_one_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    status = main(["check-plugin", str(EXAMPLE)])
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "rule among-best (foretoken_example.py)" in shown
    assert "a folder with 0 Python files (none)" in refused(capsys, "check-plugin", str(tmp_path))
    for name in ("one.py", "two.py"):
        (tmp_path / name).touch()
    assert "a folder with 2 Python files (one.py, two.py); give the one" in refused(capsys, "check-plugin", str(tmp_path))


SCHEDULE = """
class Growing:
    def __init__(self, most: int = 4) -> None:
        self.most, self.wanted = most, 0
    def next(self) -> int:
        self.wanted = min(self.most, self.wanted + 1)
        return self.wanted
    def observe(self, num_drafted: int, num_accepted: int) -> None: ...

SCHEDULES = {"growing": Growing}
"""


def test_a_schedule_with_a_parameter(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """It is named, asked for with an option of its own, run, and stands in the signature; one that asks for -1 is found."""
    (path := tmp_path / "someones_growing.py").write_text(SCHEDULE)
    plugins.load([path])
    method = MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), schedule="growing", most=2)
    schedule = build_schedule(method.schedule)
    assert [(one := schedule()).next(), one.next(), one.next()] == [1, 2, 2]
    described = Experiment(task="text", target=ModelSpec(name="zoo:gpt-target"), method=method, profile="test")
    other = described.replace(method=method.change(most=3))
    assert described.signature != other.signature
    assert [identity.split(",")[0] for identity in plugins.used_by(described)] == ["schedule growing: someones_growing.py"]
    table = random_table(6, seed=1)
    session = toy_session(table)
    loop = DraftAndVerify(ModelDrafter(toy_session(table)), SpeculativeSampling(), schedule)
    [row] = loop.generate(session, Inputs(((3,),)), Sampling(), Uniforms([0], 12), Stop(max_new_tokens=12))
    assert [len(step.drafted) for step in row.steps[:3]] == [1, 2, 2]
    assert main(["check-plugin", str(path)]) == 0
    assert "contract kept: 3 of 3 checks passed" in capsys.readouterr().out
    (bad := tmp_path / "someones_bad.py").write_text(SCHEDULE.replace("growing", "shrinking").replace("self.wanted + 1", "-1"))
    assert main(["check-plugin", str(bad)]) == 1
    assert "asks for -1 drafts; expected an integer >= 0" in capsys.readouterr().out


def test_what_is_ours_keeps_them_too() -> None:
    ours = [("rule", "speculative-sampling"), ("rule", "top-1"), ("drafter", "model"), ("drafter", "block")]
    ours += [("rule", rule) for rule in ("block-verification", "typical")]
    ours += [("method", "autoregressive"), ("table", "9"), ("task", "squad"), ("task", "text")]
    for kind, name in ours:
        found = list(check_entry(own_part(kind, name)))
        assert len(found) >= 4
        assert [one for one in found if not one.passed] == [], name


def broken(contract: Contract, expected: set[str]) -> set[str]:
    """The broken ones among the expected; what comes behind the last of them is not run."""
    found, seen = hold(contract), set[str]()
    while seen != expected and (one := next(found, None)) is not None:
        seen |= {one.check} & expected if not one.passed else set()
    return seen


class OneUniform(SpeculativeSampling):
    """Uses the first acceptance number for all drafts of a round."""

    def verify(self, proposal, target_logits, sampling, uniforms):  # type: ignore[no-untyped-def]
        same = torch.cat((uniforms[:, :1].expand(-1, uniforms.shape[1] - 1), uniforms[:, -1:]), 1)
        return super().verify(proposal, target_logits, sampling, same)


class Draws(SpeculativeSampling):
    def verify(self, proposal, target_logits, sampling, uniforms):  # type: ignore[no-untyped-def]
        return super().verify(proposal, target_logits, sampling, torch.rand_like(uniforms))


class Overwrites(SpeculativeSampling):
    def verify(self, proposal, target_logits, sampling, uniforms):  # type: ignore[no-untyped-def]
        return super().verify(proposal, target_logits.mul_(1.5), sampling, uniforms)


class SeesPadding(SpeculativeSampling):
    def verify(self, proposal, target_logits, sampling, uniforms):  # type: ignore[no-untyped-def]
        whole = (proposal.tokens.shape[1],) * len(proposal.lengths)
        return super().verify(replace(proposal, lengths=whole), target_logits, sampling, uniforms)


class ComparesByLoop(SpeculativeSampling):
    """Names a loop at temperature 0, where its own verdict lets every draft stand that is among the two likeliest tokens."""

    guarantee = "lossy"

    def verify(self, proposal, target_logits, sampling, uniforms):  # type: ignore[no-untyped-def]
        verdict = super().verify(proposal, target_logits, sampling, uniforms)
        if not sampling.greedy or not proposal.tokens.shape[1]:
            return verdict
        likely = (proposal.tokens.unsqueeze(-1) == target_logits[:, :-1].topk(2).indices).any(-1)
        count = (
            (likely & (torch.arange(likely.shape[1]) < torch.tensor(proposal.lengths).unsqueeze(-1))).long().cumprod(1).sum(1)
        )
        return replace(verdict, num_accepted=count, next_token=target_logits.argmax(-1)[torch.arange(len(count)), count])

    def loop(self, proposal, sampling):  # type: ignore[no-untyped-def]
        return Loop(looks_at_all=True)


LAW, LOOP = "its law, integrated over its uniforms", "sampled, through the loop"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: _LenientBy(1.02), {LAW}),
        (CONTROLS["no residual"].rule, {LAW, LOOP}),
        (CONTROLS["lenience 1.02 in the compiled loop"].rule, {"its loop decides as it does"}),
        (ComparesByLoop, {"its loop decides as it does"}),
        (OneUniform, {LOOP}),
        (CONTROLS["block verification, token-wise residual"].rule, {LAW}),
        (CONTROLS["block verification, numbers again"].rule, {LAW}),
        (Draws, {"is pure: random numbers are inputs"}),
        (Overwrites, {"is pure: random numbers are inputs"}),
        (SeesPadding, {"decides within the round", "decides every row by itself"}),
        (lambda: object(), {"is made without arguments and declares its guarantee"}),
    ],
)
def test_wrong_rules_break_the_contract(make: Callable, expected: set[str]) -> None:
    assert broken(check_rule(make), expected) == expected


class Stubborn(ModelDrafter):
    """Keeps drafting when nothing may be drafted."""

    def propose(self, num_draft, positions, sampling):  # type: ignore[no-untyped-def]
        return super().propose([count + 1 for count in num_draft], positions, sampling)


class Forgetful(ModelDrafter):
    """Forgets the drafts that were accepted."""

    def commit(self, outcome):  # type: ignore[no-untyped-def]
        super().commit(replace(outcome, num_accepted=tuple(count * 0 for count in outcome.num_accepted)))


class OtherLaw(ModelDrafter):
    def teacher_probs(self, inputs, pending, output, sampling):  # type: ignore[no-untyped-def]
        for chunk in super().teacher_probs(inputs, pending, output, sampling):
            yield chunk.roll(1, -1)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda parts: _Unsampled(parts.session, 0.7), "draws from the law that it states"),
        (lambda parts: Stubborn(parts.session), "drafts nothing where nothing may be drafted"),
        (lambda parts: Forgetful(parts.session), "what it drafts depends on the text alone"),
        (lambda parts: OtherLaw(parts.session), "teacher_probs is the law of the first draft"),
        (lambda parts: object(), "is made of the parts of an experiment"),
    ],
)
def test_wrong_drafters_break_the_contract(make: Callable, expected: str) -> None:
    assert broken(check_drafter(make), {expected}) == {expected}


class Averages(Squad):
    """Statistics that are averaged, not added."""

    def resample(self, statistics, weights):  # type: ignore[no-untyped-def]
        return {name: np.full(len(weights), 50.0) for name in self.metrics}


class Leaks(Squad):
    dataset = replace(Squad.dataset, toy_row=lambda seed, split, index: squad_row(seed, "test", index))


class Empties(Squad):
    def statistics(self, example, output_text, reference=None):  # type: ignore[no-untyped-def]
        return super().statistics(example, output_text) if output_text else {}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (Averages(), "resamples as it aggregates"),
        (Leaks(), "trains on nothing that it tests"),
        (Empties(), "scores any output in numbers"),
    ],
)
def test_wrong_tasks_break_the_contract(task: Squad, expected: str) -> None:
    assert broken(check_task("squad", task), {expected}) == {expected}
    assert broken(check_task("other", task), {"says what it is"})


class Repeats(Autoregressive):
    """Says the first token twice."""

    def generate(self, *arguments):  # type: ignore[no-untyped-def]
        rows = super().generate(*arguments)
        for row in rows:
            row.tokens = [row.tokens[0], *row.tokens[:-1]]
        return rows


def test_wrong_methods_and_tables_break_the_contract() -> None:
    wrong = {"greedy output is plain decoding's", "sampled output has the target's law"}
    assert broken(check_method("repeats", lambda spec, target, models: Repeats()), wrong) == wrong
    from harness.papers import TABLES

    table = TABLES[9]
    missing = {f"says what is missing under profile {profile}" for profile in ("toy", "small", "paper")}
    assert broken(check_table(replace(table, row_heads=("one",))), missing) == missing


def test_refusals_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="not there"):
        plugins.load(["nowhere.py"])


def test_a_method_of_a_plugin_needs_no_drafter_and_takes_options(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = """from methods.autoregressive import Autoregressive


def slow(spec, target, models, pause: int = 1):
    return Autoregressive()


METHODS = {"slow": slow}
"""
    (path := tmp_path / "mine.py").write_text(source)
    words = ["run", "--plugin", str(path), "--profile", "test", "--task", "text", "--target", "zoo:gpt-target"]
    words += ["--method", "slow", "--limit", "1", "--dry-run", "--records", str(tmp_path)]
    assert main([*words, "--option", "pause=2"]) == 0
    assert "slow, temperature 0" in capsys.readouterr().out
    error = refused(capsys, *words, "--option", "rest=2")
    assert "option rest: no part of this run reads it; expected one of gamma, pause" in error
