"""``--graphs on``: records of their own with the same tokens, what is refused, and a verdict of its own."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from harness.cli.catalogue import why_not
from harness.cli.main import main, parser
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.record_files import load_records
from harness.core.settings import Settings
from harness.exact.run import audit
from harness.exact.subjects import SIZES, own_subjects
from harness.gpu.tables import CHECKPOINTS
from harness.measures.verdicts import is_red, key_of
from harness.papers import command_of, get_table
from harness.zoo.build import ensure
from methods.static import StaticSession

MODELS = ("--task", "text", "--profile", "test", "--target", "zoo:gpt-target", "--dtype", "float64", "--threads", "1")
RUN = (*MODELS, "--limit", "3", "--max-new-tokens", "12", "--batch-size", "2", "--temperature", "1", "--quiet")
TRANSLATION = (
    "--task", "wmt-en-de", "--target", str(CHECKPOINTS / "t5-target"), "--method", "speculative", "--gamma", "3",
    "--draft", str(CHECKPOINTS / "t5-draft"),
)  # fmt: skip
DRAFTED = ("--method", "speculative", "--draft", "zoo:gpt-draft", "--gamma", "3")


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)


@pytest.mark.parametrize("arm", [(), DRAFTED, TRANSLATION, ("--method", "speculative", "--drafter", "copy", "--gamma", "3")])
def test_both_ways_give_the_same_tokens_in_records_of_their_own(
    arm: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens, signatures = [], []
    for graphs in ("off", "on"):
        assert main(["run", *RUN, *arm, "--graphs", graphs, "--records", str(tmp_path)]) == 0
        said = capsys.readouterr()
        document = json.loads(said.out.splitlines()[-1])
        tokens.append([record.tokens for record in load_records(Path(document["records"]))])
        signatures.append(document["signature"])
        assert ("graphs on a CPU: passes have fixed shapes, nothing is captured" in said.err) == (graphs == "on")
        assert document["audit"]["verdict"] not in ("bug", "biased")
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 3
    assert signatures[0] != signatures[1]


REFUSED = {
    ("--method", "beam"): "graphs: method 'beam' has no static form; expected autoregressive, speculative, or --graphs off",
    (*DRAFTED, "--schedule", "heuristic"): "graphs: schedule 'heuristic' has no static form; expected constant, sweep, or",
    (*DRAFTED, "--drafter", "first-layers"): "graphs: drafter 'first-layers' has no static form; expected model, copy, ",
    (*DRAFTED, "--peer", "generate"): "graphs: method 'transformers' has no static form; expected autoregressive, ",
    ("--memory",): "graphs: a static cache is laid out before anything is decoded, no peak has it; leave --memory out",
    ("--device-map", "auto"): "graphs: device_map 'auto'; expected one device, or --graphs off",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_has_no_static_form_is_refused_in_one_line(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *RUN, *arguments, "--graphs", "on", "--records", str(tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(f"foretoken: {REFUSED[arguments]}"), said
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_draft_that_reads_tokens_in_pieces_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its passes have any number of tokens: most would not be captured."""
    monkeypatch.setattr("harness.run.build.kept_tokens", lambda draft: [1, 2, 3])
    assert main(["run", *RUN, *DRAFTED, "--graphs", "on", "--records", str(tmp_path)]) == 2
    assert "graphs: draft zoo:gpt-draft knows a part of the vocabulary alone" in capsys.readouterr().err.splitlines()[-1]


def test_every_command_that_records_has_the_option() -> None:
    """One declaration for all; what `run` records with graphs is what they record with graphs."""
    asked = {
        ("run", "--task", "text", "--target", "m"), ("table", "8"), ("figure", "leviathan-1"), ("tables",), ("reproduce",),
        ("advise", "--target", "m"), ("audit",),
    }  # fmt: skip
    for command in asked:
        assert [parser().parse_args([*command, *more]).graphs for more in ((), ("--graphs", "on"))] == ["off", "on"]


def test_a_table_is_planned_with_graphs_or_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, graphs = (Settings(limit=1, graphs=one) for one in (False, True))
    arms = [[arm for comparison in get_table(8).plan(one) for arm in comparison.arms] for one in (plain, graphs)]
    assert [arm.replace(graphs=True) for arm in arms[0]] == arms[1]
    assert [why_not(table, graphs) for table in map(get_table, (8, 9, 10, 11))] == [""] * 4
    assert command_of("table", "8", graphs) == "make reproduce-table-8 LIMIT=1 GRAPHS=on"
    assert command_of("table", "8", replace(graphs, seed=1)).endswith("--reproduce --limit 1 --seed 1 --graphs on")
    assert ("graphs" in plain.written, graphs.written["graphs"]) == (False, True)
    assert (plain.arithmetic, graphs.arithmetic) == ("float32 on cpu", "float32 on cpu, graphs")
    for more in ((), ("--reproduce",), ("--dry-run",)):
        assert main(["table", "30", *more, "--graphs", "on", "--records", str(tmp_path)]) == 2
        said = capsys.readouterr().err.splitlines()
        assert said == ["foretoken: graphs: schedule 'heuristic' has no static form; expected constant, sweep, or --graphs off"]


PAIR = tuple(str(CHECKPOINTS / name) for name in ("t5-target", "t5-draft"))


def test_an_audit_decodes_with_fixed_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both what is recorded and what is drawn for tests, by target and draft."""
    sizes = replace(SIZES["test"], samples=200, batch=10, prompts=2, new_tokens=8)
    subjects = [
        replace(one, plain=one.plain.replace(graphs=True))
        for one in own_subjects(*PAIR, "wmt-en-de", "toy", sizes)
        if one.name.endswith(("copy / speculative-sampling, greedy", "model / exact, temperature 1"))
    ]
    assert len(subjects) == 2
    passes, pass_at = set[tuple[int, int]](), StaticSession.pass_at

    def noted(session: StaticSession, tokens: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        passes.add((session.rows, tokens.shape[1]))
        return pass_at(session, tokens, starts)

    monkeypatch.setattr(StaticSession, "pass_at", noted)
    found, _ = audit(subjects, sizes, tmp_path, quiet=True, workers=0, controls_on=())
    assert not any(map(is_red, found.values())), found
    assert {rows for rows, _ in passes} == {1, sizes.batch}
    assert passes >= {(1, 4), (sizes.batch, 1), (sizes.batch, 4)}  # of the draft and the target


def test_an_audit_leaves_out_what_has_no_static_form(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["audit", "--target", PAIR[0], "--draft", PAIR[1], "--task", "wmt-en-de", "--graphs", "on", "--dry-run"]
    assert main(asked) == 0
    said = capsys.readouterr()
    assert re.search(r"note: graphs: \d+ of \d+ subjects have no static form and are left out", said.err)
    assert "speculative / model / exact" in said.out
    assert not re.search("beam|transformers|heuristic", said.out)
    assert main([*asked, "--only", "beam"]) == 2
    assert re.search(r"graphs: none of \d+ subjects has a static form", capsys.readouterr().err)
    assert main(["audit", "--captured", "a.jsonl", "--graphs", "on"]) == 2
    assert "--graphs has no meaning for captures" in capsys.readouterr().err


def test_a_description_without_graphs_is_what_it_always_was() -> None:
    """Signatures of what was recorded before there were graphs stay; verdicts are never shared."""
    drafter = DrafterSpec(kind="copy")
    plain = Experiment(task="text", target=ModelSpec(name="m"), method=MethodSpec.of("speculative", drafter=drafter))
    graphs = plain.replace(graphs=True)
    assert "graphs" not in json.loads(plain.to_json())
    assert json.loads(graphs.to_json())["graphs"] is True
    assert [Experiment.from_dict(json.loads(one.to_json())) for one in (plain, graphs)] == [plain, graphs]
    assert key_of(plain) != key_of(graphs)
