"""``foretoken run --graphs on``: records of their own with the same tokens, what is refused, and a verdict of its own."""

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.record_files import load_records
from harness.gpu.tables import CHECKPOINTS
from harness.measures.verdicts import key_of
from harness.zoo.build import ensure

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


def test_a_description_without_graphs_is_what_it_always_was() -> None:
    """Signatures of what was recorded before there were graphs stay; verdicts are never shared."""
    drafter = DrafterSpec(kind="copy")
    plain = Experiment(task="text", target=ModelSpec(name="m"), method=MethodSpec.of("speculative", drafter=drafter))
    graphs = plain.replace(graphs=True)
    assert "graphs" not in json.loads(plain.to_json())
    assert json.loads(graphs.to_json())["graphs"] is True
    assert [Experiment.from_dict(json.loads(one.to_json())) for one in (plain, graphs)] == [plain, graphs]
    assert key_of(plain) != key_of(graphs)
