"""Checkpoints that were cut, edited or put in place of others: every one is refused in a line, and none is learned from.

They are those of a training of two layers; every training here reads its checkpoints by the same code. What is edited carries a
checksum that is right, as of a file that something other than damage changed.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harness.core.errors import UsageError
from harness.zoo import loop
from harness.zoo.cache import DONE
from harness.zoo.loop import Course, Evaluation, Objective, finish, run_steps
from harness.zoo.recipes import RECIPES
from harness.zoo.state import CHECKPOINT, Checkpoints, Optimizers, generator_of, load_state, save_state

STEPS, DONE_STEPS = 6, 3
COURSE = Course(
    name="two layers", identity="this", steps=STEPS, learning_rate=0.1, rate=lambda step: 1.0, clip_norm=1.0,
    evaluated_after=frozenset({0, 2, 6}),
)  # fmt: skip
NAN, CPU = float("nan"), torch.device("cpu")


def trained(folder: Path, *, before: int | None = None, course: Course = COURSE) -> tuple[nn.Module, list[Evaluation]]:
    """The network and its evaluations; a KeyboardInterrupt, as a kill would, where it is stopped before a step."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with torch.no_grad():
        for number, weight in enumerate(network.parameters()):
            weight.copy_(torch.randn(weight.shape, generator=generator_of(1, number)))
    by_muon = network[1].weight
    rest = [weight for weight in network.parameters() if weight is not by_muon]
    optimizer = Optimizers([
        torch.optim.AdamW([{"params": rest, "rate_scale": 1.0}], fused=True),
        torch.optim.Muon([{"params": [by_muon], "rate_scale": 0.1}]),
    ], list(network.parameters()))  # fmt: skip

    def batch(step: int) -> torch.Tensor:
        if step == before:
            raise KeyboardInterrupt
        return torch.randn(5, 3, generator=generator_of(2, step))

    objective = Objective(
        batch=batch,
        loss=lambda network, batch, step, generator: (network(batch) - 1).square().mean(),
        evaluate=lambda network: {"loss_nats": {1: float(network(torch.ones(3)).square().sum())}},
        show=lambda evaluations: "",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save_if_due", Checkpoints.save)
        return network, run_steps(course, network, optimizer, objective, folder)[0]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The checkpoint of a training that was stopped after three of its six steps."""
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, before=DONE_STEPS)
    return tmp_path / CHECKPOINT


def refused(path: Path, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"{CHECKPOINT}: .*{reason}.*; delete .*run the command again") as caught:
        trained(path.parent)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value).replace(str(path.parent), "")) < 220


def test_what_was_saved_goes_on_to_the_same_weights(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also beside a file that a kill left half written, and of what is whole already nothing is trained."""
    (stopped.parent / f".{CHECKPOINT}.1").write_bytes(b"half")
    whole, expected = trained(tmp_path_factory.mktemp("whole"))
    for before in (None, 0):  # the second time no batch is asked for
        network, evaluations = trained(stopped.parent, before=before)
        assert evaluations == expected
        assert all(torch.equal(weight, network.state_dict()[name]) for name, weight in whole.state_dict().items())


Change = Callable[[dict[str, Any]], None]


def put(value: Any, *names: Any) -> Change:
    """The value under these names, each in the one before, becomes this one."""
    return lambda state: _at(state, names[:-1]).__setitem__(names[-1], value)


def drop(*names: Any) -> Change:
    return lambda state: _at(state, names[:-1]).__delitem__(names[-1])


def fill(value: float, *names: Any) -> Change:
    return lambda state: _at(state, names).fill_(value)


def _at(state: Any, names: Sequence[Any]) -> Any:
    for name in names:
        state = state[name]
    return state


WEIGHT = ("network", "0.weight")
ADAM, MUON = ("optimizer", "optimizers", 0), ("optimizer", "optimizers", 1)
FIRST = (*ADAM, "state", 0)
CHANGES = {
    "left over": (put(1, "something"), "'something' is left over"),
    "missing": (drop("optimizer"), "'optimizer' is missing"),
    "no dictionary": (put(None, "more"), "more: it is of type NoneType"),
    "another training": (put("other", "more", "identity"), "it belongs to another training"),
    "no identity": (drop("more", "identity"), "'identity' is missing"),
    "no step, no identity": (lambda state: state.update(step=0, more={}), "is missing"),
    "step before the first": (put(0, "step"), "step 0: expected 1 to 6"),
    "negative step": (put(-1, "step"), "step -1: expected 1 to 6"),
    "step beyond the end": (put(7, "step"), "step 7: expected 1 to 6"),
    "step is no integer": (put(3.0, "step"), r"step 3\.0: expected"),
    "step is a truth": (put(True, "step"), "step True: expected"),
    "skips steps": (put(5, "step"), "a weight did 3 steps; expected 5"),
    "skips the rest": (put(6, "step"), "evaluations: expected those after 0, 2, 6 steps"),
    "NaN in weights": (fill(NAN, *WEIGHT), r"tensor '0\.weight' holds NaN"),
    "infinity in weights": (fill(float("inf"), *WEIGHT), r"tensor '0\.weight' holds NaN or infinity"),
    "another shape": (put(torch.zeros(3, 4), *WEIGHT), r"'0\.weight' is of another kind; expected .* \[4, 3\] in float32"),
    "another type": (put(torch.zeros(4, 3, dtype=torch.int), *WEIGHT), r"'0\.weight' is of another kind"),
    "no tensor": (put(3, *WEIGHT), r"'0\.weight' is of another kind"),
    "a weight is missing": (drop("network", "1.bias"), r"network: '1\.bias' is missing"),
    "NaN in moments": (fill(NAN, *FIRST, "exp_avg"), "tensor 'exp_avg' holds NaN"),
    "infinity in moments": (fill(float("inf"), *FIRST, "exp_avg_sq"), "tensor 'exp_avg_sq' holds NaN or infinity"),
    "negative squares": (fill(-1.0, *FIRST, "exp_avg_sq"), "no squares"),
    "short moments": (put(torch.zeros(()), *FIRST, "exp_avg"), "'exp_avg' is of another kind"),  # torch reads behind their end
    "NaN in Muon's moments": (fill(NAN, *MUON, "state", 0, "momentum_buffer"), "tensor 'momentum_buffer' holds NaN"),
    "a moment is missing": (drop(*FIRST, "exp_avg"), "'exp_avg' is missing"),
    "no moments": (put({}, *ADAM, "state"), "moments"),
    "moments of no weight": (put({}, *ADAM, "state", 9), "moments"),
    "a weight's steps": (fill(-3, *FIRST, "step"), "a weight did"),
    "another decay": (put(5.0, *ADAM, "param_groups", 0, "weight_decay"), "its settings are others"),
    "another rate": (put(100.0, *ADAM, "param_groups", 0, "rate_scale"), "its settings are others"),
    "no rate": (drop(*ADAM, "param_groups", 0, "rate_scale"), "its settings are others"),
    "one optimizer": (drop(*MUON), "1 of them; expected 2"),
    "no evaluations": (put([], "more", "evaluations"), "evaluations: expected those after 0, 2 steps"),
    "evaluations of no kind": (put([1, 2], "more", "evaluations"), "evaluations: expected"),
    "evaluated to NaN": (put({1: NAN}, "more", "evaluations", 0, "loss_nats"), "no finite numbers"),
    "evaluated to a text": (put("x", "more", "evaluations", 0, "loss_nats"), "no finite numbers"),
    "no seconds": (put("x", "spent", "wall_s"), "expected seconds"),
    "seconds before the beginning": (put(-1.0, "spent", "cpu_s"), "expected seconds"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_that_cannot_be_this_trainings_is_refused(stopped: Path, change: Change, reason: str) -> None:
    state = load_state(stopped, CPU)
    change(state)
    save_state(state, stopped)
    refused(stopped, reason)


class _Program:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    "content", [b"", b"not a zip", pickle.dumps({"a": 1}), pickle.dumps(_Program()), b"(" * 9999, bytes(99)]
)
def test_a_file_that_only_has_a_right_checksum_is_refused(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.chdir(stopped.parent)
    stopped.write_bytes(content + sha256(content).digest())
    refused(stopped, "cannot be read")
    assert not Path("ran").exists()


def test_what_is_no_file_is_refused_and_not_waited_for(stopped: Path) -> None:
    makers: list[Callable[[Path], object]] = [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("gone")]
    for make in makers:
        stopped.unlink()
        make(stopped)
        refused(stopped, "cannot be read")
        assert os.path.lexists(stopped), "what is there is the user's to delete"
        if stopped.is_dir():
            stopped.rmdir()
            stopped.touch()


def test_a_full_memory_does_not_advise_to_delete(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("[enforce fail] can't allocate memory")):

        def full(*given: Any, error: Exception = error, **named: Any) -> Any:
            raise error

        monkeypatch.setattr(torch, "load", full)
        with pytest.raises(UsageError, match=rf"{CHECKPOINT}: no memory to read it; free some and run the command again"):
            trained(stopped.parent)


def test_nothing_of_another_trainings_checkpoint_is_loaded(stopped: Path) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    optimizer = Optimizers([torch.optim.AdamW(network.parameters())])
    with pytest.raises(UsageError, match="it belongs to another training"):
        Checkpoints(stopped.parent, network, optimizer, "other").restore(STEPS, COURSE.evaluated_after)
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())


def test_a_longer_training_does_not_go_on_from_a_shorter_ones_end(stopped: Path) -> None:
    trained(stopped.parent)
    with pytest.raises(UsageError, match="evaluations: expected those after 0, 2, 4, 6 steps"):
        trained(stopped.parent, course=replace(COURSE, steps=8, evaluated_after=frozenset({0, 2, 4, 6, 8})))


def test_the_zoo_tells_trainings_on_other_data_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the folder, whose name holds the data's fingerprint: a recipe alone says nothing of them."""
    recipe, seen = RECIPES["test"]["gpt-draft"], list[str]()
    monkeypatch.setattr(loop, "run_steps", lambda course, *rest, **named: seen.append(course.identity))
    monkeypatch.setattr(loop, "build_optimizer", lambda *given: None)
    monkeypatch.setattr(loop, "depth_switch", lambda *given: None)
    for name in ("gpt-draft-0", "gpt-draft-1"):
        loop.train(recipe, nn.Linear(1, 1), None, tmp_path / name)  # type: ignore[arg-type]
    assert len(set(seen)) == 2
    assert all(repr(recipe) in one for one in seen)


def test_a_training_that_ends_in_no_number_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights may be finite, and what they say of held-out text not."""
    monkeypatch.setattr(loop.environment, "describe", dict)
    with pytest.raises(UsageError, match=rf"training in {tmp_path}: .* not finite; lower its learning rate .* delete"):
        finish(tmp_path, {"held_out": {"loss_nats": NAN}}, {"wall_s": 1.0, "cpu_s": 1.0})
    assert not (tmp_path / DONE).exists()
