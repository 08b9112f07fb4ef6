"""Replays of beam search: it finds what transformers' ``generate`` finds, clean runs hold, and a wrong search is found."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_known import as_many_beams_are_the_sources
from torch import Tensor

from harness.core.checkout import ROOT
from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.records import Record
from harness.exact.run_verdict import judge_run
from harness.models.fit import Models
from harness.run.replay.beams import is_searched_again, searched
from harness.run.runner import Runner, pin
from methods import beam
from methods.beam import BeamSearch, BeamState
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.transformers_generate import TransformersGenerate
from methods.types import Inputs, Stop

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]
FOLDER = ROOT / "results/baselines/checkpoints"
BUDGET, PROMPT = 64, (5, 9, 7, 12, 6)


def checkpoint(name: str) -> ModelSpec:
    return ModelSpec(name=str(FOLDER / name))


def run(folder: Path, method: MethodSpec, target: str = "specdec-verifier", **fields: Any) -> tuple[dict, list[list[Record]]]:
    settings: dict[str, Any] = {"task": "wmt-en-de", "limit": 8, "batch_size": 8} | fields
    plain = Experiment(
        profile="test",
        method=MethodSpec(name="autoregressive"),
        sampling=Sampling(temperature=0.0),
        target=checkpoint(target),
        max_new_tokens=BUDGET,
        num_threads=1,
        **settings,
    )
    comparison, runner = Comparison((pin(plain), pin(plain.replace(method=method)))), Runner(folder, quiet=True)
    runner.run(comparison)
    records = [runner.records(arm) for arm in comparison.arms]
    return judge_run(comparison, records, runner.with_models), records


@pytest.mark.parametrize("name", ["llama-target", "t5-target", "specdec-verifier"])
@pytest.mark.parametrize("num_beams", [2, 5])
def test_it_finds_what_transformers_find_and_nothing_else(name: str, num_beams: int) -> None:
    """With no end, with its own, and with so many that hypotheses end at every length."""
    stack = Models("cpu", "float32").get(checkpoint(name)).stack
    own = stack.model.generation_config.eos_token_id
    for ends in (frozenset[int](), frozenset({own}), frozenset({own, *range(20, 60)})):
        inputs, stop = Inputs((PROMPT,)), Stop(max_new_tokens=12, token_ids=ends)
        method = TransformersGenerate(num_beams)
        [made] = method.generate(ModelSession(stack), inputs, Sampling(), Uniforms([0], 12), stop)
        found = list(searched(stack, inputs, made.tokens, num_beams, ends, 12))
        assert [one.position for one in found] == list(range(len(made.tokens)))
        assert not any(one.is_fault for one in found)
        for place in range(len(made.tokens)):
            wrong = [*made.tokens[:place], made.tokens[place] + 1, *made.tokens[place + 1 :]]
            [fault] = [one for one in searched(stack, inputs, wrong, num_beams, ends, 12) if one.is_fault]
            assert (fault.what, fault.position) == ("beam", place)
            assert fault.off > 0
        [short] = [one for one in searched(stack, inputs, made.tokens[:-1], num_beams, ends, 12) if one.is_fault]
        assert short.position == len(made.tokens) - 1


@pytest.mark.parametrize("name", ["llama-target", "specdec-verifier"])
def test_choices_behind_where_a_text_was_lost_excuse_nothing(name: str) -> None:
    """Fault: a near-tie anywhere in a long search of many beams, as most of these have one, excused any text whatever."""
    stack = Models("cpu", "float32").get(checkpoint(name)).stack
    numbers = torch.Generator().manual_seed(0)
    for _ in range(3):
        text = torch.randint(60, (120,), generator=numbers).tolist()
        *agreed, last = searched(stack, Inputs((PROMPT,)), text, 5, frozenset(), 120)
        assert last.is_fault
        assert last.position == len(agreed) < 3


@pytest.mark.parametrize(
    ("target", "method", "fields"),
    [
        ("specdec-verifier", MethodSpec.of("beam", num_beams=2), {}),
        ("specdec-verifier", MethodSpec.of("transformers", num_beams=3), {"ignore_eos": True}),
        (
            "t5-target",
            MethodSpec.of("speculative-beam", drafter=DrafterSpec(kind="model", model=checkpoint("t5-draft")), num_beams=3),
            {"task": "cnndm", "batch_size": 1, "limit": 4},
        ),
        ("llama-target", MethodSpec.of("beam", num_beams=3), {"task": "text", "limit": 4}),
        ("whisper-target", MethodSpec.of("beam", num_beams=2), {"task": "tedlium", "limit": 2, "batch_size": 1}),
    ],
)
def test_beams_of_a_run_hold(tmp_path: Path, target: str, method: MethodSpec, fields: dict) -> None:
    found, records = run(tmp_path, method, target, **fields)
    assert found["verdict"] == "lossy", found["summary"]
    assert [one.replayed for one in records[-1]] == [len(one.tokens or ()) for one in records[-1]]


def longer_is_no_better(patch: Patch) -> None:
    def finalize(own: BeamState, log_prob: float, tokens: tuple[int, ...]) -> None:
        own.finalized = sorted([*own.finalized, (log_prob, tokens)], key=lambda one: -one[0])[: own.num_beams]

    patch.setattr(BeamState, "_finalize", finalize)


def each_goes_on_from_the_first(patch: Patch) -> None:
    take = BeamState.take
    patch.setattr(BeamState, "take", lambda own, candidates: ([0] * len((made := take(own, candidates))[0]), made[1]))


def sums_of_logits(patch: Patch) -> None:
    def next_logits(target: ModelSession, tokens: Sequence[int], device: torch.device) -> Tensor:
        return target.extend(torch.tensor(tokens, device=device).unsqueeze(1))[:, -1] / 2

    patch.setattr(beam, "next_log_probs", next_logits)


@pytest.mark.parametrize(
    "fault", [as_many_beams_are_the_sources, longer_is_no_better, each_goes_on_from_the_first, sums_of_logits]
)
def test_a_wrong_search_turns_a_run_red(tmp_path: Path, monkeypatch: Patch, fault: Fault) -> None:
    """Fault: nothing of a beam search was replayed. Of rows that read others' sources 3 of 32 outputs were other ones."""
    fault(monkeypatch)
    found, _ = run(tmp_path, MethodSpec.of("beam", num_beams=2), limit=24)
    assert found["verdict"] == "bug", found["summary"]
    assert "give: beam;" in found["summary"]


def test_beams_in_half_precision_are_not_said_to_be_replayed(tmp_path: Path) -> None:
    assert not is_searched_again(BeamSearch(2), Models("cpu", "bfloat16").get(checkpoint("specdec-verifier")))
    found, records = run(tmp_path, MethodSpec.of("beam", num_beams=2), limit=2, dtype="bfloat16")
    assert "none of them the method's own" in found["summary"]
    assert [one.replayed for one in records[-1]] == [None] * 2


def test_of_one_beam_nothing_is_searched_again() -> None:
    target = Models("cpu", "float32").get(checkpoint("t5-draft"))
    assert is_searched_again(BeamSearch(2), target)
    assert not is_searched_again(BeamSearch(1), target)
