"""Trained heads: the paper's settings, a start that is the model's own head, gains at every layer, resumption bit for bit."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.zoo import build, early_heads
from harness.zoo.build import ensure
from harness.zoo.corpus import read_corpus
from harness.zoo.descriptions import HeadTraining
from harness.zoo.early_heads import (
    Document,
    HeadData,
    evaluate,
    head_logits,
    heads_loss,
    initial_heads,
    layer_states,
    paper_layers,
    pieces,
    train_heads,
)
from harness.zoo.networks import num_parameters
from harness.zoo.recipes import HEAD_TRAINING, RECIPES, Scale, recipe_hash
from harness.zoo.state import CHECKPOINT, Checkpoints
from methods.models import stack_for
from methods.models.base import Stack
from methods.ppd.heads import FILE, load_heads
from methods.session import ModelSession

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("llama-deep", "llama-deep-heads")
PAPER = (10, 20, 30, 35, 37)
SHORT = replace(HEAD_TRAINING["test"], max_documents=40)


@pytest.fixture(scope="module")
def folders(zoo_cache: Path) -> dict[str, Path]:
    return ensure(NAMES, "test", "toy", workers=0)


@pytest.fixture(scope="module")
def stack(folders: dict[str, Path]) -> Stack:
    return stack_for(AutoModelForCausalLM.from_pretrained(folders["llama-deep"]).eval().requires_grad_(False))


@pytest.fixture(scope="module")
def data(folders: dict[str, Path]) -> HeadData:
    rows = read_corpus(build.folder_of(RECIPES["test"]["llama-deep"].corpus, "toy"))
    documents = [Document(torch.cat(pair).long(), max(1, len(pair[0]))) for pair in map(rows.row, range(60))]
    return documents[12:], documents[:12]


def test_defaults_are_the_papers() -> None:
    with (ROOT / "results/published/ppd/table_4.csv").open(encoding="utf8") as file:
        published = {row["hyperparameter"]: row["value"] for row in csv.DictReader(file)}
    training = HEAD_TRAINING["paper"]
    ours = {
        "Number of Epochs": training.epochs,
        "Learning Rate": training.learning_rate,
        "Batch Size": training.batch_size,
        "Max Sequence Length": training.max_length,
        "Warmup ratio": training.warmup_frac,
        "Weight Decay": training.weight_decay,
    }
    assert {name: float(published[name]) for name in ours} == ours
    assert (published["Optimizer"], published["Loss Function"], len(published)) == ("AdamW", "Cross-Entropy", 8)
    assert training.labels == "next"
    assert training == HeadTraining()


@pytest.mark.parametrize("scale", ["toy", "test"])
def test_the_deep_model_has_the_papers_layers_and_a_small_vocabulary(scale: Scale) -> None:
    deep, heads = (RECIPES[scale][name] for name in NAMES)
    assert (deep.num_layers, paper_layers(deep.num_layers)) == (40, PAPER)
    assert deep.corpus.vocab_size <= 2000
    assert deep.position_limit >= 512
    assert {"squad", "wmt-en-fr", "cnndm"} <= {part.task for part in deep.corpus.parts}
    assert (heads.teacher, heads.layers) == (deep, tuple(range(1, 40)))


def test_layers_of_other_depths_keep_the_papers_fractions() -> None:
    assert paper_layers(80) == (20, 40, 60, 70, 74)
    assert paper_layers(12) == (3, 6, 9, 11), "10.5 goes up, and so meets the last"
    assert paper_layers(22) == (6, 11, 17, 19, 20), "16.5 goes up, where Python's round would not"
    assert paper_layers(1) == ()


def test_heads_are_pinned_by_their_own_recipe_and_their_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipe_hash("llama-deep-heads", "test", "toy")
    heads = RECIPES["test"]["llama-deep-heads"]
    changes = (
        {"teacher": replace(heads.teacher, steps=heads.teacher.steps + 1)},
        {"layers": heads.layers[1:]},
        {"training": replace(heads.training, labels="next")},
    )
    hashes = {before}
    for change in changes:
        monkeypatch.setitem(RECIPES["test"], "llama-deep-heads", replace(heads, **change))
        hashes.add(recipe_hash("llama-deep-heads", "test", "toy"))
    assert len(hashes) == 4


def test_every_layer_gains_on_held_out_text(folders: dict[str, Path]) -> None:
    """As recipe.json says, and as the saved heads do when they are loaded again."""
    facts = json.loads((folders["llama-deep-heads"] / "recipe.json").read_text())
    assert sorted(map(int, facts["held_out"])) == list(range(1, 40))
    for layer, rates in facts["held_out"].items():
        assert rates["match_frac"] > rates["match_frac_before"] + 0.005, layer
    means = [sum(item["match_frac"].values()) / 39 for item in facts["evaluations"]]
    assert len(means) == 5
    assert means[-1] > means[0] + 0.02
    assert facts["base"] == {"name": "zoo:llama-deep", "revision": recipe_hash("llama-deep", "test", "toy")}
    assert not (folders["llama-deep-heads"] / CHECKPOINT).exists()


def test_saved_heads_are_those_that_were_measured(folders: dict[str, Path], stack: Stack) -> None:
    facts = json.loads((folders["llama-deep-heads"] / "recipe.json").read_text())
    corpus = RECIPES["test"]["llama-deep"].corpus
    rows = read_corpus(build.folder_of(corpus, "toy"))
    pairs = map(rows.row, range(corpus.num_held_out))
    held_out = [Document(torch.cat(pair).long(), max(1, len(pair[0]))) for pair in pairs]
    heads = load_heads(folders["llama-deep-heads"], stack)
    weights = torch.nn.ParameterDict({str(layer): heads.weight(layer).t() for layer in PAPER})
    now = evaluate(ModelSession(stack), weights, held_out)
    for layer in PAPER:
        assert now["match_frac"][layer] == pytest.approx(facts["held_out"][str(layer)]["match_frac"], abs=1e-3)
        assert now["loss_nats"][layer] == pytest.approx(facts["held_out"][str(layer)]["loss_nats"], abs=1e-3)
    assert num_parameters(RECIPES["test"]["llama-deep-heads"]) >= sum(w.numel() for w in heads.weights.values())


def test_match_rate_rises_with_depth(folders: dict[str, Path]) -> None:
    facts = json.loads((folders["llama-deep-heads"] / "recipe.json").read_text())
    for when in ("match_frac_before", "match_frac"):
        rates = [facts["held_out"][str(layer)][when] for layer in (10, 20, 30, 35)]
        assert rates == sorted(rates)
        assert rates[-1] > rates[0] + 0.2


def test_states_are_those_of_transformers(stack: Stack, data: HeadData) -> None:
    """Its hidden states [l] are those after l layers; the last is behind the final norm, so it is compared by its logits."""
    document = data[1][0]
    states = layer_states(ModelSession(stack), document, PAPER)
    whole = stack.model(document.tokens[None, :-1], output_hidden_states=True)
    for layer in PAPER:
        torch.testing.assert_close(states[layer], whole.hidden_states[layer][:, document.first - 1 :], rtol=1e-4, atol=1e-4)
    logits = stack.head(states[stack.num_layers])
    torch.testing.assert_close(logits, whole.logits[:, document.first - 1 :], rtol=1e-4, atol=1e-4)
    assert len(document.labels) == logits.shape[1]


def test_a_head_begins_as_the_models_own(stack: Stack, data: HeadData) -> None:
    states = layer_states(ModelSession(stack), data[1][0], PAPER)
    heads = initial_heads(stack, PAPER)
    for layer in PAPER:
        assert torch.equal(head_logits(stack, states[layer], heads[str(layer)]), stack.head(states[layer])[0])


@pytest.mark.parametrize("labels", ["next", "final"])
def test_a_step_follows_the_gradient_of_its_labels(stack: Stack, data: HeadData, labels: str) -> None:
    """The first step of AdamW is the rate times the sign of the gradient, here computed as softmax minus one-hot."""
    heads = initial_heads(stack, (20,))
    before = heads["20"].detach().clone()
    optimizer = torch.optim.AdamW(heads.parameters(), lr=1e-3, weight_decay=0.0)
    documents = data[0][:2]
    loss = float(heads_loss(ModelSession(stack), heads, documents, labels == "final"))
    optimizer.step()
    gradient, expected, count = torch.zeros_like(before), 0.0, sum(len(document.labels) for document in documents)
    for document in documents:
        whole = stack.model(document.tokens[None, :-1], output_hidden_states=True)
        normed = stack.model.model.norm(whole.hidden_states[20])[0, document.first - 1 :]
        wanted = document.labels if labels == "next" else whole.logits[0, document.first - 1 :].argmax(-1)
        logits = normed @ before.t()
        one_hot = torch.nn.functional.one_hot(wanted, before.shape[0])
        gradient += (logits.softmax(-1) - one_hot).t() @ normed / count
        expected += float(cross_entropy(logits, wanted, reduction="sum")) / count
    assert loss == pytest.approx(expected, rel=1e-4)
    clear = gradient.abs() > 1e-4
    assert clear.float().mean() > 0.1
    torch.testing.assert_close((heads["20"] - before)[clear], -1e-3 * gradient.sign()[clear], rtol=1e-2, atol=1e-5)


def test_layers_do_not_interact_and_the_model_stays_as_it_was(stack: Stack, data: HeadData, tmp_path: Path) -> None:
    before = {name: weight.clone() for name, weight in stack.model.state_dict().items()}
    folders = [tmp_path / name for name in ("alone", "together")]
    trained = []
    for folder, layers in zip(folders, ((20,), PAPER), strict=True):
        folder.mkdir()
        trained.append(train_heads(stack, layers, SHORT, data, folder, identity="x")[0]["20"])
    assert torch.equal(*trained)
    assert not torch.equal(trained[0], stack.head_weight.t())
    assert all(torch.equal(weight, before[name]) for name, weight in stack.model.state_dict().items())
    assert all(parameter.grad is None for parameter in stack.model.parameters())


def test_resumed_training_equals_an_unbroken_one(
    stack: Stack, data: HeadData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and evaluations alike; a checkpoint of another training is refused."""
    (tmp_path / "whole").mkdir()
    whole, evaluations, _ = train_heads(stack, PAPER, SHORT, data, tmp_path / "whole", identity="x")
    monkeypatch.setattr(Checkpoints, "save_if_due", Checkpoints.save)
    real = early_heads.heads_loss
    for steps_left in (1, 2):
        calls = iter(range(steps_left))

        def loss(*args: Any, calls: Iterator[int] = calls) -> torch.Tensor:
            if next(calls, None) is None:
                raise KeyboardInterrupt
            return real(*args)

        monkeypatch.setattr(early_heads, "heads_loss", loss)
        with pytest.raises(KeyboardInterrupt):
            train_heads(stack, PAPER, SHORT, data, tmp_path, identity="x")
    monkeypatch.setattr(early_heads, "heads_loss", real)
    broken, again, _ = train_heads(stack, PAPER, SHORT, data, tmp_path, identity="x")
    assert again == evaluations
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    with pytest.raises(UsageError, match=r"checkpoint\.pt: it belongs to another training"):
        train_heads(stack, PAPER, SHORT, data, tmp_path, identity="y")


def test_pieces_keep_labels_and_drop_what_has_none(stack: Stack) -> None:
    training = replace(HEAD_TRAINING["test"], max_length=4)
    documents = [Document(torch.arange(10), 6), Document(torch.arange(3), 3), Document(torch.arange(5), 1)]
    found = [(piece.tokens.tolist(), piece.first) for piece in pieces(documents, stack, training)]
    assert found == [([4, 5, 6, 7], 2), ([8, 9], 1), ([0, 1, 2, 3], 1)]


def test_bad_layers_and_models_are_refused(stack: Stack) -> None:
    for layer in (0, 40):
        with pytest.raises(UsageError, match=rf"layer {layer}: expected one from 1 to 39"):
            initial_heads(stack, (20, layer))


def heads_arguments(folders: dict[str, Path], output: Path, **changes: str) -> list[str]:
    values = {
        "target": str(folders["llama-deep"]),
        "task": "squad",
        "data": "toy",
        "layers": "10,20",
        "limit": "120",
        "output": str(output),
    }
    return ["heads", *(part for name, value in (values | changes).items() for part in (f"--{name}", value))]


def refused(capsys: pytest.CaptureFixture, arguments: list[str]) -> str:
    try:
        status = main(arguments)
    except SystemExit as stop:  # argparse
        status = stop.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert (status, len(lines)) == (2, 1)
    return lines[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layers": "0"}, "layer 0: expected one from 1 to 39"),
        ({"layers": "10,40"}, "layer 40: expected one from 1 to 39"),
        ({"layers": "10,ten"}, "--layers: '10,ten'"),
        ({"layers": "10,10"}, "--layers: '10,10'"),
        ({"labels": "previous"}, "labels 'previous': expected one of next, final"),
        ({"task": "poetry"}, "task 'poetry': unknown"),
        ({"target": "zoo:t5-small"}, "expected a decoder-only model"),
        ({"target": "zoo:ngram-gpt"}, "expected a decoder-only model"),
        ({"target": "zoo:llama-deep-heads"}, "expected a decoder-only model"),
        ({"target": "./nowhere"}, "./nowhere"),
        ({"data": "nowhere.jsonl"}, "data 'nowhere.jsonl'"),
    ],
)
def test_bad_values(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture, changes: dict[str, str], expected: str
) -> None:
    assert expected in refused(capsys, heads_arguments(folders, tmp_path / "heads", **changes))
    assert not (tmp_path / "heads").exists()


def test_outputs_that_hold_something_else_are_refused(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert "it holds 'thesis.tex'" in refused(capsys, heads_arguments(folders, tmp_path))
    assert "it is a file" in refused(capsys, heads_arguments(folders, tmp_path / "thesis.tex"))


def test_the_command_survives_kill_and_repeats_nothing(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Killed with SIGKILL once a checkpoint is there, the same command ends with the same bytes as one left alone."""
    arguments = heads_arguments(folders, tmp_path / "killed")
    code = (
        "import sys, harness.zoo.state as c; c.CHECKPOINT_S = 0.0\n"
        "from harness.cli.main import main; raise SystemExit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, stderr=subprocess.PIPE, env=os.environ)
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed" / CHECKPOINT).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / FILE).exists()
    digests = []
    for name in ("killed", "whole"):
        assert main(heads_arguments(folders, tmp_path / name)) == 0
        digests.append(sha256((tmp_path / name / FILE).read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    facts = json.loads((tmp_path / "whole" / "recipe.json").read_text())
    assert facts["base"]["name"] == str(folders["llama-deep"].resolve())
    assert len(facts["base"]["revision"]) == 16
    assert set(facts["held_out"]) == {"10", "20"}
    capsys.readouterr()
    written = (tmp_path / "whole" / FILE).stat().st_mtime_ns
    assert main(heads_arguments(folders, tmp_path / "whole")) == 0
    assert (tmp_path / "whole" / FILE).stat().st_mtime_ns == written
    assert "match rate N" in capsys.readouterr().out
    assert "heads of another training" in refused(capsys, heads_arguments(folders, tmp_path / "whole", layers="10,30"))
