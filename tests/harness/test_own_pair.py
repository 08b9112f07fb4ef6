"""`foretoken regress --baseline`: a pair of somebody's own is held example by example.

Faults it must see: a drafter that is a tenth worse, outputs that part, a bug, a failure, a silent drafter, other weights and
data, an edited file, missing examples. Runs that differ by rounding alone must stay green.
"""

import copy
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import Comparison
from harness.report.baseline import Baseline, measured_now, pin_all, read
from harness.report.holding import Judgement, judge
from harness.report.pinned import CHECKPOINTS
from methods.speculative.model import ModelDrafter

EXAMPLE = CHECKPOINTS.parents[2] / "docs" / "regress-example"
FLAGS = [
    *("--task", "text", "--data", "prompts/test.jsonl", "--target", "models/target", "--draft", "models/draft"),
    *("--method", "speculative", "--gamma", "3"),
]
SIZES = ["--limit", "30", "--max-new-tokens", "24", "--threads", "1"]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a pair, its prompts and its baseline, written by the command from inside it: fp32, greedy."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(EXAMPLE / "prompts", folder / "prompts")
    for name in ("target", "draft"):
        shutil.copytree(CHECKPOINTS / f"llama-{name}", folder / "models" / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["regress", "--quiet", "--baseline", "pair.json", "--write", *FLAGS, *SIZES]) == 0
    return folder


@pytest.fixture
def moved_home(home: Path, tmp_path: Path) -> Path:
    """A copy elsewhere, to be damaged."""
    return Path(shutil.copytree(home, tmp_path / "elsewhere"))


@pytest.fixture(scope="module")
def before(home: Path) -> Baseline:
    return read(home / "pair.json")


def elsewhere(baseline: Baseline) -> Baseline:
    return replace(baseline, machine={**baseline.machine, "processor": "of another kind"})


def counted(judgement: Judgement) -> set[str]:
    return {one.move.metric for one in judgement.changes if one.counts}


def rerun(before: Baseline) -> Baseline:
    return measured_now(pin_all(before.comparison), quiet=True)


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    capsys.readouterr()
    assert main(["regress", "--quiet", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_the_same_again_is_green_wherever_the_repository_lies(moved_home: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["regress", "--quiet", "--baseline", str(moved_home / "pair.json")]) == 0
    assert "nothing moved (30 examples; the same machine: any difference is a change)" in capsys.readouterr().out


def test_the_file_names_no_place_of_this_machine(home: Path) -> None:
    text = (home / "pair.json").read_text(encoding="utf8")
    assert str(home) not in text
    assert '"./models/draft"' in text
    assert '"./prompts/test.jsonl?split=whole"' in text


def test_real_rounding_is_green(before: Baseline) -> None:
    """Rows decoded four at a time are padded and multiplied otherwise, as on another machine."""
    arms = tuple(arm.replace(batch_size=4) for arm in before.comparison.arms)
    judgement = judge(Path("pair.json"), elsewhere(before), rerun(replace(before, comparison=Comparison(arms))))
    assert "other processor: tested example by example, at most 0.001 false alarms a run" in judgement.summary
    assert not judgement.moved
    assert {one.move.metric for one in judgement.changes} <= set(before.measured["metrics"]) | {"output"}


def every_tenth_draft_wrong(patch: Patch) -> None:
    whole, count = ModelDrafter.propose, iter(range(10**9))

    def propose(self: ModelDrafter, num_draft: Any, positions: Any, sampling: Any) -> Any:
        found = whole(self, num_draft, positions, sampling)
        tokens = found.tokens.clone()
        for place in range(tokens.shape[1]):
            if next(count) % 10 == 9:
                tokens[:, place] = (tokens[:, place] + 1) % self.session.vocab_size
        return replace(found, tokens=tokens)

    patch.setattr(ModelDrafter, "propose", propose)


@pytest.fixture(scope="module")
def worse(before: Baseline) -> Baseline:
    """The same examples with every tenth draft wrong."""
    with pytest.MonkeyPatch.context() as patch:
        every_tenth_draft_wrong(patch)
        return rerun(before)


def test_a_drafter_that_is_a_tenth_worse_turns_it_red(before: Baseline, worse: Baseline) -> None:
    """By any difference on the same machine, by the test of pairs on another one. The rule keeps the text."""
    ratio = worse.measured["metrics"]["accepted_over_drafted"] / before.measured["metrics"]["accepted_over_drafted"]
    assert 0.8 < ratio < 0.95
    for baseline in (before, elsewhere(before)):
        judgement = judge(Path("pair.json"), baseline, worse)
        assert {"accepted_over_drafted", "tokens_per_step"} <= counted(judgement)
        assert "output" not in counted(judgement)
    line = next(line for line in judgement.as_text().splitlines() if "accepted_over_drafted" in line)
    expected = r"  moved  \S+: 0\.\d+ -> 0\.\d+ \(\d+ of 30 examples\); in an example -0\.\d+ \[-.*, -.*\]; p \d\S*e-\d+"
    assert re.fullmatch(expected, line)


def changed(before: Baseline, change: Callable[[dict[str, Any]], None], names: slice = slice(None), **arm: Any) -> Baseline:
    """A later run in which some examples have other numbers."""
    measured = copy.deepcopy(before.measured)
    for name in sorted(measured["examples"])[names]:
        change(measured["examples"][name])
    arms = tuple(one.replace(**arm) for one in before.comparison.arms)
    return replace(before, measured=measured, comparison=Comparison(arms))


def other_text(example: dict[str, Any]) -> None:
    example["output"] = "00000000 length; 00000000 length"


def fails(example: dict[str, Any]) -> None:
    example["failed_frac"] = 1.0


def silent(example: dict[str, Any]) -> None:
    for name in ("accepted_over_drafted", "accepted_over_verified", "accepted_per_step", "tokens_per_step", "alpha_ratio"):
        example.pop(name)


@pytest.mark.parametrize(
    ("change", "how_many", "arm", "red"),
    [
        (other_text, 1, {}, False),  # a near-tie
        (other_text, 12, {}, True),
        (other_text, 12, {"dtype": "bfloat16"}, False),
        (other_text, 30, {"dtype": "bfloat16"}, True),
        (other_text, 1, {"dtype": "float64"}, True),  # the same everywhere
        (fails, 1, {}, True),
        (silent, 1, {}, False),
        (silent, 15, {}, True),
    ],
)
def test_what_counts_on_another_machine(
    before: Baseline, change: Callable[[dict[str, Any]], None], how_many: int, arm: dict[str, str], red: bool
) -> None:
    now = changed(before, change, slice(how_many), **arm)
    assert judge(Path("pair.json"), elsewhere(before), now).moved is red
    assert not judge(Path("pair.json"), elsewhere(before), changed(before, change, slice(0), **arm)).moved


def test_on_the_same_machine_one_example_is_enough_but_not_on_a_gpu(before: Baseline) -> None:
    assert judge(Path("pair.json"), before, changed(before, other_text, slice(1))).moved
    assert not judge(Path("pair.json"), before, changed(before, other_text, slice(1), device="cuda")).moved


@pytest.mark.parametrize(("verdict", "red"), [("near-tie", False), ("bug", True), ("biased", True)])
def test_a_bug_counts_everywhere_and_a_near_tie_on_the_same_machine(before: Baseline, verdict: str, red: bool) -> None:
    now = replace(before, measured={**before.measured, "verdict": verdict})
    assert judge(Path("pair.json"), elsewhere(before), now).moved is red
    assert judge(Path("pair.json"), before, now).moved


def test_a_number_that_is_gone_counts(before: Baseline) -> None:
    now = changed(before, silent)
    now.measured["metrics"].pop("tokens_per_step")
    assert "tokens_per_step" in counted(judge(Path("pair.json"), elsewhere(before), now))


def test_rounding_that_goes_either_way_stays_green(before: Baseline) -> None:
    """100 runs of which a third of the examples moved, up or down by the throw of a coin, every number for itself."""
    coin = random.Random(0)

    def moved(example: dict[str, Any]) -> None:
        for name, value in example.items():
            if name not in ("output", "failed_frac") and coin.random() < 1 / 3:
                example[name] = value * (1 + coin.choice((-1, 1)) * coin.random() / 10)

    red = [judge(Path("pair.json"), elsewhere(before), changed(before, moved)).moved for _ in range(100)]
    assert sum(red) <= 1  # at a rate of 1 in 1,000 two or more have a chance of 0.5 %


def test_missing_examples_are_refused(before: Baseline) -> None:
    now = copy.deepcopy(before)
    gone = sorted(now.measured["examples"])[3]
    now.measured["examples"].pop(gone)
    with pytest.raises(UsageError, match=f"pair.json: refused: example '{gone}' was not run; expected the same examples"):
        judge(Path("pair.json"), before, now)
    with pytest.raises(UsageError, match=f"'{gone}' is not in the baseline"):
        judge(Path("pair.json"), now, before)


def test_other_weights_are_refused_tested_as_a_new_draft_or_written_down(
    moved_home: Path, worse: Baseline, monkeypatch: Patch, capsys: pytest.CaptureFixture
) -> None:
    file, weights = str(moved_home / "pair.json"), moved_home / "models" / "draft" / "model.safetensors"
    save_file({name: value * 0.5 for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    line = refused(capsys, "--baseline", file)
    assert "pair.json: refused: draft ./models/draft has other weights (revision " in line
    numbers = worse.measured | {"verdict": "identical"}
    monkeypatch.setattr("harness.report.baseline.measure_pair", lambda *_: numbers)
    assert main(["regress", "--quiet", "--baseline", file, "--new-draft"]) == 1
    shown = capsys.readouterr().out
    assert "a new draft: tested example by example" in shown
    assert "  moved  accepted_over_drafted: 0." in shown
    assert "output" not in shown  # greedy: the target's text
    assert main(["regress", "--quiet", "--baseline", file, "--update", "a smaller draft"]) == 0
    assert "written anew" in capsys.readouterr().out
    written = read(Path(file))
    assert written.reasons[0].endswith(": a smaller draft")
    assert written.measured == numbers
    assert main(["regress", "--quiet", "--baseline", file]) == 0


def test_other_weights_of_the_target_are_refused_of_a_new_draft_too(moved_home: Path, capsys: pytest.CaptureFixture) -> None:
    config = moved_home / "models" / "target" / "config.json"
    config.write_text(config.read_text(encoding="utf8") + "\n", encoding="utf8")
    line = refused(capsys, "--baseline", str(moved_home / "pair.json"), "--new-draft")
    assert "refused: target ./models/target has other weights" in line


def test_other_data_and_models_that_are_not_there_are_refused(moved_home: Path, capsys: pytest.CaptureFixture) -> None:
    prompts, file = moved_home / "prompts" / "test.jsonl", str(moved_home / "pair.json")
    prompts.write_text("\n".join(prompts.read_text(encoding="utf8").splitlines()[:-1]) + "\n", encoding="utf8")
    assert "refused: ./prompts/test.jsonl holds other data" in refused(capsys, "--baseline", file)
    shutil.rmtree(moved_home / "models" / "draft")
    assert f"model '{moved_home / 'models' / 'draft'}': no such folder" in refused(capsys, "--baseline", file)


def edited(text: str) -> str:
    values = json.loads(text)
    values["measured"]["metrics"]["accepted_over_drafted"] = 0.5
    return json.dumps(values)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (edited, "refused: edited after it was written"),
        (lambda text: text.replace('"gamma": 3', '"gamma": 2'), "refused: edited after it was written"),
        (lambda text: text[:-200], "cannot be read"),
        (lambda text: "[]", "cannot be read"),
        (lambda text: "{}", "no baseline of this version"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "no baseline of this version"),
        (lambda text: "", "cannot be read"),
    ],
)
def test_a_file_that_is_no_longer_what_was_written_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture, change: Callable[[str], str], expected: str
) -> None:
    file = tmp_path / "pair.json"
    file.write_text(change((home / "pair.json").read_text(encoding="utf8")), encoding="utf8")
    for more in ([], ["--update", "better"]):
        line = refused(capsys, "--baseline", str(file), *more)
        assert line.startswith(f"foretoken: baseline {file}: ")
        assert expected in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--baseline", "nowhere.json"], "baseline nowhere.json: cannot be read"),
        (["--baseline", "models"], "baseline models: cannot be read"),
        (["--baseline", "pair.json", "--write", *FLAGS], "baseline pair.json: it is there already"),
        (["--baseline", "nowhere/new.json", "--write", *FLAGS], "baseline nowhere/new.json: no such folder"),
        (["--baseline", "new.json", "--write", *FLAGS, "--limit", "4"], "new.json: 4 examples; expected at least 30"),
        (["--baseline", "new.json", "--write", *FLAGS, "--temperature", "0,1"], "several values behind --write: a baseline"),
        (["--baseline", "new.json", "--write", *FLAGS, "--memory"], "--memory behind --write: nothing reads it there"),
        (
            ["--baseline", "new.json", "--write", *FLAGS, "--records", "here"],
            "--records behind --write: nothing reads it there",
        ),
        (
            ["--baseline", "new.json", "--write", *FLAGS, "--beta", "2"],
            "--beta 2: rule 'speculative-sampling' does not",
        ),
        (["--baseline", "pair.json", "--new-draft", "--update", "why"], "--update with --new-draft: one at a time"),
        (["--baseline", "pair.json", "--repeats", "2"], "--repeats 2: of the pinned set only"),
        (["--baseline", "pair.json", "--update", " "], "update ''"),
        (["--new-draft"], "--new-draft: nothing reads it without --baseline FILE"),
        (["--write", *FLAGS], "--write: nothing reads it without --baseline FILE"),
    ],
)
def test_bad_commands(
    home: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(home)
    assert expected in refused(capsys, *arguments)
    assert not (home / "new.json").exists()


def test_a_pair_with_a_failure_or_a_bug_has_no_baseline(home: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(home)
    measured = read(home / "pair.json").measured
    for part, why in (({"verdict": "bug"}, "the audit of this run says 'bug'"), ({}, "1 of 30 examples failed; the first: ")):
        now = copy.deepcopy(measured) | part
        if not part:
            fails(now["examples"][min(now["examples"])])
        monkeypatch.setattr("harness.report.baseline.measure_pair", lambda *_, now=now: now)
        assert why in refused(capsys, "--baseline", "new.json", "--write", *FLAGS, "--limit", "30")
        assert not (home / "new.json").exists()
