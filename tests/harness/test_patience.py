"""What other processes take while something is timed: seen, waited for, and decided by their work alone."""

import pickle
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen, run
from types import SimpleNamespace

import pytest

from harness.cli.main import _local_runner
from harness.core.errors import UsageError
from harness.run import patience
from harness.run.patience import Others, Patience

BURN = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


def test_a_childs_work_is_our_own() -> None:
    before = patience._own_seconds()
    run([sys.executable, "-c", BURN], check=True)
    assert 0.4 < patience._own_seconds() - before < 5


def test_a_living_childs_work_is_our_own() -> None:
    before = patience._own_seconds()
    program = f"{BURN}\nprint('done', flush=True)\ninput()"
    with Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline()
        assert patience._own_seconds() - before > 0.4
        child.stdin.write(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="starts a process that is nobody's child")
def test_a_strangers_work_is_seen() -> None:
    others = Others()
    start = time.perf_counter()
    run(["sh", "-c", f'"{sys.executable}" -c "$1" &', "sh", BURN], stdout=PIPE, check=True)  # ends when the stranger does
    seconds = (time.perf_counter() - start) * len(patience._processors())
    assert others.share() > 0.3 / seconds


class Scripted:
    """Others whose shares are told beforehand; a clock that runs with every look and every work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
        self.clock, self.shares = 0.0, iter(shares)
        monkeypatch.setattr(patience, "Others", lambda: self)
        monkeypatch.setattr(patience, "time", SimpleNamespace(perf_counter=lambda: self.clock, sleep=self.pass_by))
        self.works: Iterator[int] = iter(range(1, 100))

    def pass_by(self, seconds: float) -> None:
        self.clock += seconds

    def share(self) -> float:
        return next(self.shares)

    def disturb(self) -> bool:
        return self.share() > patience.MOST_SHARE

    def work(self) -> int:
        self.clock += 10
        return next(self.works)


def test_undisturbed_work_is_done_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = Scripted(monkeypatch, 0.04)
    assert Patience(60).undisturbed(script.work) == 1
    assert capsys.readouterr().err == ""


def test_disturbed_work_is_done_again_once_others_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Scripted(monkeypatch, 0.5, 0.5, 0.5, 0.0, 0.3, 0.0, 0.0)  # work, two looks, a quiet one, work, quiet, work
    patient = Patience(60)
    assert patient.undisturbed(script.work) == 3
    assert patient.left_s == 60 - 4 * patience.LOOK_S - 2 * 10
    assert "took 50% of the processors" in capsys.readouterr().err


def test_patience_ends_and_nobody_looks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch, *[1.0] * 31)  # one behind the work, thirty while others are waited for
    patient = Patience(30)
    assert patient.undisturbed(script.work) == 1
    assert patient.undisturbed(script.work) == 2
    with pytest.raises(StopIteration):
        script.share()


def test_without_patience_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch)
    assert Patience(0).undisturbed(script.work) == 1


@pytest.mark.parametrize(("said", "seconds"), [("", 0), ("0", 0), ("10", 600)])
def test_the_environment_says_for_how_many_minutes_a_command_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, seconds: float
) -> None:
    monkeypatch.setenv(patience.VARIABLE, said)
    runner = _local_runner(Namespace(records=tmp_path, quiet=True, again=False, replay="none"))
    assert runner.patience.left_s == seconds
    assert pickle.loads(pickle.dumps(runner)).patience.left_s == seconds, "each replica's process has as much"


def test_what_is_no_number_of_minutes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(patience.VARIABLE, "long")
    with pytest.raises(UsageError, match="FORETOKEN_PATIENCE 'long': expected whole minutes"):
        patience.asked_for()
