"""What other processes take while something is timed: seen, waited for, and decided by their work alone."""

import sys
import time
from collections.abc import Iterator
from subprocess import PIPE, Popen, run
from types import SimpleNamespace

import pytest

from harness.core.errors import UsageError
from harness.run import quiet
from harness.run.quiet import Others, Quiet

BURN = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


def test_a_childs_work_is_our_own() -> None:
    before = quiet._own_seconds()
    run([sys.executable, "-c", BURN], check=True)
    assert 0.4 < quiet._own_seconds() - before < 5


def test_a_living_childs_work_is_our_own() -> None:
    before = quiet._own_seconds()
    program = f"{BURN}\nprint('done', flush=True)\ninput()"
    with Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline()
        assert quiet._own_seconds() - before > 0.4
        child.stdin.write(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="starts a process that is nobody's child")
def test_a_strangers_work_is_seen() -> None:
    others = Others()
    start = time.perf_counter()
    run(["sh", "-c", f'"{sys.executable}" -c "$1" &', "sh", BURN], stdout=PIPE, check=True)  # ends when the stranger does
    seconds = (time.perf_counter() - start) * len(quiet._processors())
    assert others.share() > 0.3 / seconds


class Scripted:
    """Others whose shares are told beforehand; a clock that runs with every look and every work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
        self.clock, self.shares = 0.0, iter(shares)
        monkeypatch.setattr(quiet, "Others", lambda: self)
        monkeypatch.setattr(quiet, "time", SimpleNamespace(perf_counter=lambda: self.clock, sleep=self.pass_by))
        self.works: Iterator[int] = iter(range(1, 100))

    def pass_by(self, seconds: float) -> None:
        self.clock += seconds

    def share(self) -> float:
        return next(self.shares)

    def disturb(self) -> bool:
        return self.share() > quiet.MOST_SHARE

    def work(self) -> int:
        self.clock += 10
        return next(self.works)


def test_undisturbed_work_is_done_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = Scripted(monkeypatch, 0.04)
    assert Quiet(60).undisturbed(script.work) == 1
    assert capsys.readouterr().err == ""


def test_disturbed_work_is_done_again_once_others_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Scripted(monkeypatch, 0.5, 0.5, 0.5, 0.0, 0.3, 0.0, 0.0)  # work, two looks, a quiet one, work, quiet, work
    patient = Quiet(60)
    assert patient.undisturbed(script.work) == 3
    assert patient.left_s == 60 - 4 * quiet.LOOK_S - 2 * 10
    assert "took 50% of the processors" in capsys.readouterr().err


def test_patience_ends_and_nobody_looks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch, *[1.0] * 31)  # one behind the work, thirty while others are waited for
    patient = Quiet(30)
    assert patient.undisturbed(script.work) == 1
    assert patient.undisturbed(script.work) == 2
    with pytest.raises(StopIteration):
        script.share()


def test_without_patience_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch)
    assert Quiet(0).undisturbed(script.work) == 1


@pytest.mark.parametrize(("said", "seconds"), [("", 0), ("0", 0), ("10", 600)])
def test_minutes_are_said_by_the_environment(monkeypatch: pytest.MonkeyPatch, said: str, seconds: float) -> None:
    monkeypatch.setenv(quiet.VARIABLE, said)
    assert quiet.patience_s() == seconds


def test_what_is_no_number_of_minutes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(quiet.VARIABLE, "long")
    with pytest.raises(UsageError, match="FORETOKEN_PATIENCE 'long': expected whole minutes"):
        quiet.patience_s()
