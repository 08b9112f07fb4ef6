"""`foretoken draft`: what it makes drafts, goes on after a kill, is the same whenever it is made, and keeps every run exact."""

import json
import shutil
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import kill_once_there
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from harness.cli.main import main
from harness.core.experiment import Experiment, MethodSpec, ModelSpec
from harness.core.files import checksum_of
from harness.models.loading import load_model
from harness.models.names import pin_model
from harness.run import draft_material, draft_network, draft_training
from harness.run.draft_material import Material, collect
from harness.run.draft_training import PLAN
from harness.run.prompts import make_prompt
from harness.zoo.build import ensure
from harness.zoo.state import CHECKPOINT, load_state, save_state
from tasks import get_task
from tasks.sources.read import read_examples
from tasks.sources.rows import Rows

SMALL = ("--layers", "1", "--texts", "40", "--steps", "24", "--threads", "1")
SHORT = ("--max-input-tokens", "160", "--max-new-tokens", "16")


@pytest.fixture(scope="module")
def target(zoo_cache: Path) -> str:
    [folder] = ensure(["llama-target"], "test", "toy", workers=0).values()
    return str(folder)


def words_of(target: str, folder: Path, *words: str) -> list[str]:
    return ["draft", "--target", target, "--task", "squad", "--output", str(folder), *SMALL, *SHORT, *words]


def make(target: str, folder: Path, *words: str) -> int:
    return main(words_of(target, folder, *words))


@pytest.fixture(scope="module")
def draft(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts") / "part"
    assert make(target, folder, "--vocabulary", "200") == 0
    return folder


def facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "recipe.json").read_text())


def test_it_learns_and_says_what_it_learned_on(draft: Path, target: str) -> None:
    known = facts(draft)
    first, *_, last = known["evaluations"]
    for name in set(first) - {"step"}:
        assert last[name] > first[name] + 0.1, "the draft agrees more often than before any step"
    of = known["material"]
    assert (known["num_kept"], known["num_texts"], of["target"]["name"], of["tasks"]) == (200, 40, target, ["squad"])
    task = get_task("squad")
    read = Rows.of((task, one) for one in islice(read_examples(task, "toy", "train", 5000, of["seed"]), 40))
    assert Rows.from_dict(known["rows"]) == read
    assert sorted(path.name for path in draft.iterdir() if not path.name.startswith(".")) == [
        "config.json", "generation_config.json", "model.safetensors", "recipe.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [(), ("--temperature", "1"), ("--temperature", "0.7", "--top-k", "5")])
def test_a_run_with_it_is_exact(
    draft: Path, target: str, tmp_path: Path, capsys: pytest.CaptureFixture, words: tuple[str, ...]
) -> None:
    command = ["run", "--task", "squad", "--target", target, "--draft", str(draft), "--method", "speculative", "--limit", "4"]
    size = ["--max-new-tokens", "12", "--threads", "1", "--replay", "all", "--quiet", "--records", str(tmp_path)]
    assert main([*command, *size, *words]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["audit"]["verdict"] in ("identical", "replayed", "same distribution"), document["audit"]
    assert document["metrics"]["alpha_overlap"]["value"] > 0


@pytest.mark.parametrize("waits_for", ["cache/laws-*/00001.pt", f"draft/{CHECKPOINT}"])
def test_a_killed_training_ends_with_the_same_weights(target: str, draft: Path, tmp_path: Path, waits_for: str) -> None:
    """Killed with SIGKILL among the laws, or once a checkpoint is there; the other training never was, in another cache."""
    words = words_of(target, tmp_path / "draft", "--vocabulary", "200")
    kill_once_there(tmp_path, waits_for, words, tmp_path / "cache")
    assert not (tmp_path / "draft" / "recipe.json").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
        assert main(words) == 0
    first, second = (load_file(one / "model.safetensors") for one in (draft, tmp_path / "draft"))
    assert all(torch.equal(first[name], second[name]) for name in first | second)


def test_time_ends_every_stage(target: str, tmp_path: Path) -> None:
    folder = tmp_path / "draft"
    words = ["--layers", "1", "--minutes", "0.05", "--threads", "1", "--seed", "3", *SHORT]
    assert main(["draft", "--target", target, "--task", "squad", "--output", str(folder), *words]) == 0
    known = facts(folder)
    assert known["steps"] >= 1
    assert 32 <= known["num_texts"] < 2000
    assert known["num_kept"] == len(load_file(folder / "model.safetensors")["model.embed_tokens.weight"])


def test_drafts_of_other_sizes_learn_from_the_same_laws(
    target: str, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any) -> Any:
        raise AssertionError("its laws are in the cache")

    monkeypatch.setattr(draft_material, "_write_and_read", never)
    assert make(target, tmp_path / "narrow", "--width", "64") == 0
    assert facts(tmp_path / "narrow")["num_texts"] == facts(draft)["num_texts"]


def test_prompts_are_those_of_a_run_and_their_laws_the_targets(target: str) -> None:
    material = _material(target)
    model = load_model(material.target)
    [first, *others] = collect(material, model, 16, lambda: True)
    task = get_task("squad")
    example = next(iter(read_examples(task, "toy", "train", draft_material.MOST_EXAMPLES, 0)))
    asked = Experiment(
        task="squad", source="toy", target=material.target, method=MethodSpec(name="autoregressive"), max_input_tokens=160
    )
    prompt = make_prompt(task, example, asked, model).tokens
    assert tuple(first.tokens[: first.num_prompt].tolist()) == prompt
    whole = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    assert len({len(one.tokens) for one in (first, *others)}) > 1, "rows of different lengths were written together"
    for one in (first, *others):
        with torch.no_grad():
            laws = whole(one.tokens[None, :-1]).logits[0].softmax(-1)
        assert one.likely.shape == (len(one.tokens) - 1, draft_material.LIKELIEST)
        assert torch.allclose(one.probs.float(), laws.gather(-1, one.likely.long()), atol=1e-3)
        assert one.is_greedy
        assert torch.equal(laws[one.num_prompt - 1 :].argmax(-1), one.tokens[one.num_prompt :])


def _material(target: str) -> Material:
    spec = pin_model(ModelSpec(name=target), "toy", "toy")
    return Material(
        target=spec, tasks=("squad",), source="toy", max_input_tokens=160, max_new_tokens=16, chat_template=False, seed=0
    )


def test_what_is_held_out_shares_no_group_with_what_is_learned(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQuAD's questions of one article are one group: a draft that saw one of them would be judged on what it knows."""
    seen: dict[str, Any] = {}

    def noted(job: Any, learned: Any, held_out: Any, *more: Any) -> Any:
        seen.update(learned=learned, held_out=held_out)
        raise InterruptedError

    monkeypatch.setattr(draft_training, "_objective", noted)
    with pytest.raises(InterruptedError):
        make(target, Path(tempfile.mkdtemp()) / "draft")
    assert not {one.group for one in seen["learned"]} & {one.group for one in seen["held_out"]}
    assert {one.is_greedy for one in seen["held_out"]} == {True, False}


def test_a_draft_as_deep_as_its_target_is_the_target(target: str, tmp_path: Path) -> None:
    """Before any step: every layer, the norms and the kept rows of both matrices."""
    model = load_model(pin_model(ModelSpec(name=target), "toy", "toy"))
    tokens = torch.arange(20)[None] + 30
    whole, depth = model.stack.model, model.stack.num_layers
    with torch.no_grad():
        theirs = whole(tokens).logits[0]
        same = draft_network.new_network(depth, None, 0, model, list(range(model.vocab_size))).eval()(tokens).logits[0]
        part = [token for token in range(model.vocab_size) if token < 100 or token % 3 == 0]
        fewer = draft_network.new_network(depth, None, 0, model, part).eval()(
            torch.tensor([[part.index(t) for t in tokens[0].tolist()]])
        )
    assert torch.allclose(same, theirs, atol=1e-4)
    assert torch.allclose(fewer.logits[0][:, : len(part)], theirs[:, part], atol=1e-4)


@pytest.mark.parametrize(
    ("count", "depth", "layers"), [(1, 6, [0]), (2, 6, [0, 5]), (3, 30, [0, 14, 29]), (4, 4, [0, 1, 2, 3])]
)
def test_layers_are_spread(count: int, depth: int, layers: list[int]) -> None:
    assert draft_network.chosen_layers(count, depth) == layers


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--width", "100"), "width 100: expected a multiple of 64"),
        (("--width", "640"), "width 640: expected at most 64, the target's"),
        (("--vocabulary", "1"), "vocabulary 1: expected 2 to "),
        (("--vocabulary", "100000"), "vocabulary 100000: expected 2 to "),
        (("--minutes", "0"), "'0': expected minutes, more than 0"),
        (("--learning-rate", "2"), "learning_rate 2.0: expected more than 0"),
        (("--task", "nothing"), "task 'nothing'"),
    ],
)
def test_bad_input_is_one_line(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture, words: tuple[str, ...], expected: str
) -> None:
    try:
        status: Any = make(target, tmp_path / "draft", *words)
    except SystemExit as error:
        status = error.code
    [*_, line] = capsys.readouterr().err.splitlines()
    assert status == 2
    assert expected in line


def test_an_encoder_decoder_is_refused(zoo_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    [folder] = ensure(["t5-small"], "test", "toy", workers=0).values()
    assert make(str(folder), tmp_path / "draft") == 2
    assert "it is an encoder-decoder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def begun_once(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = tmp_path_factory.mktemp("begun")

    def stop(*given: Any) -> Any:
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORETOKEN_CACHE", str(whole / "cache"))
        patch.setattr(draft_training, "distil", stop)
        with pytest.raises(InterruptedError):
            make(target, whole / "draft")
    return whole


@pytest.fixture
def begun(begun_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a draft whose laws are there, in a cache of its own, and whose training was stopped before its steps."""
    shutil.copytree(begun_once, tmp_path / "begun")
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "begun" / "cache"))
    return tmp_path / "begun" / "draft"


def refused(target: str, folder: Path, path: Path, capsys: pytest.CaptureFixture) -> str:
    assert make(target, folder) == 2
    [*_, line] = capsys.readouterr().err.splitlines()
    assert f"{path.name}: cannot be read (" in line
    assert f"delete {path.parent} and run the command again" in line
    return line


def laws_of(begun: Path, number: int = 0) -> Path:
    [path] = begun.parent.glob(f"cache/laws-*/{number:05d}.pt")
    return path


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:-40]), lambda path: path.write_text("{")])
def test_what_is_damaged_or_anothers_is_refused(
    target: str, begun: Path, capsys: pytest.CaptureFixture, damage: Callable[[Path], None]
) -> None:
    assert make(target, begun, "--seed", "1") == 2
    assert "another training" in capsys.readouterr().err
    for path in (laws_of(begun), begun / PLAN):
        content = path.read_bytes()
        damage(path)
        refused(target, begun, path, capsys)
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "is_sealed", "reason"),
    [
        ({"steps": 25}, False, "its checksum differs"),
        ({"collecting_s": "x"}, True, "collecting_s"),
        ({"texts": 1.5}, True, "texts"),
        ({"identity": None}, True, "identity"),
        ({"more": 1}, True, "'more'"),
    ],
)
def test_an_edited_plan_is_refused(
    target: str, begun: Path, capsys: pytest.CaptureFixture, change: dict[str, Any], is_sealed: bool, reason: str
) -> None:
    """Its steps decide the learning rates of a training that goes on."""
    plan = json.loads((begun / PLAN).read_text())
    values = {name: value for name, value in plan.items() if name != "checksum"} | change
    (begun / PLAN).write_text(json.dumps(values | {"checksum": checksum_of(values) if is_sealed else plan["checksum"]}))
    assert reason in refused(target, begun, begun / PLAN, capsys)
    (begun / PLAN).write_text(json.dumps(values))  # as an earlier version wrote it
    assert "its checksum differs" in refused(target, begun, begun / PLAN, capsys)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows.__setitem__(0, 1), "must be a mapping"),
        (lambda rows: rows.pop(), "it answers other prompts"),
        (lambda rows: rows[0].update(group="another"), "it answers other prompts"),
        (lambda rows: rows[0]["probs"].fill_(float("nan")), "it holds no tokens or no probabilities"),
        (lambda rows: rows[0]["likely"].fill_(10**6), "it holds no tokens or no probabilities"),
        (lambda rows: rows[0].update(likely=rows[0]["likely"][1:]), "its laws are of another kind"),
        (lambda rows: rows[0].update(is_greedy=False), "its laws are of another kind"),
    ],
)
def test_edited_laws_are_refused(
    target: str, begun: Path, capsys: pytest.CaptureFixture, change: Callable[[Any], object], reason: str
) -> None:
    rows = load_state(laws_of(begun), torch.device("cpu"))
    change(rows)
    save_state(rows, laws_of(begun))
    assert reason in refused(target, begun, laws_of(begun), capsys)


def test_laws_of_other_prompts_are_refused(target: str, begun: Path, capsys: pytest.CaptureFixture) -> None:
    laws_of(begun, 0).write_bytes(laws_of(begun, 2).read_bytes())
    assert "it answers other prompts" in refused(target, begun, laws_of(begun), capsys)


def test_what_came_of_a_draft_is_refused_where_it_was_edited(
    target: str, draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(draft, tmp_path / "draft")
    path = tmp_path / "draft" / "recipe.json"
    for evaluations in ([1], "x", None):
        path.write_text(json.dumps(facts(draft) | {"evaluations": evaluations}))
        assert make(target, tmp_path / "draft", "--vocabulary", "200") == 2
        assert "recipe.json: cannot be read (" in capsys.readouterr().err.splitlines()[-1]


def test_a_draft_of_a_part_is_no_target(draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["run", "--task", "squad", "--target", str(draft), "--limit", "1", "--quiet", "--records", str(tmp_path)]
    assert main(command) == 2
    assert "knows a part of its vocabulary alone" in capsys.readouterr().err
