"""The replay of outputs: exact runs hold, and faults that no other check sees are found (the review's, one a test)."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.records import Record
from harness.exact.run_verdict import judge_run
from harness.measures.of_run import speedup
from harness.measures.statistics import Missing
from harness.run import replay
from harness.run.comparison import Replay
from harness.run.runner import Runner, pin
from harness.zoo.build import ensure
from methods.models.gpt2 import Gpt2Stack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession

MODEL = DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))
Fault = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)


def run(
    folder: Path,
    temperature: float,
    method: MethodSpec | None = None,
    tokens: int = 100,
    which: Replay = "sample",
    sampled: dict | None = None,
    **fields: object,
) -> tuple[dict, list[list[Record]]]:
    plain = Experiment(
        task="text",
        profile="test",
        target=ModelSpec(name="zoo:gpt-target"),
        method=MethodSpec(name="autoregressive"),
        sampling=Sampling(**(sampled or {"temperature": temperature})),
        limit=3,
        max_new_tokens=tokens,
        max_input_tokens=64,
        ignore_eos=True,
        num_threads=1,
        **fields,  # type: ignore[arg-type]
    )
    method = method or MethodSpec.of("speculative", drafter=MODEL, gamma=3)
    comparison = Comparison((pin(plain), pin(plain.replace(method=method))))
    runner = Runner(folder, quiet=True, replay=which)
    runner.run(comparison)
    records = [runner.records(arm) for arm in comparison.arms]
    return judge_run(comparison, records, runner.with_models), records


def stale_beyond_64(patch: pytest.MonkeyPatch) -> None:
    rewind = ModelSession.rewind
    patch.setattr(ModelSession, "rewind", lambda own, counts: None if max(own.lengths[0]) > 64 else rewind(own, counts))


def reuse(draft: int) -> Fault:
    def fault(patch: pytest.MonkeyPatch) -> None:
        verify = Uniforms.verify

        def wrong(own: Uniforms, starts: list[int], count: int) -> torch.Tensor:
            table = verify(own, starts, count).clone()
            table[:, -1] = table[:, draft] if count > draft else table[:, -1]
            return table

        patch.setattr(Uniforms, "verify", wrong)

    return fault


def clamped_positions(patch: pytest.MonkeyPatch) -> None:
    """Both arms are wrong alike: no comparison between them can see it."""
    begin = Gpt2Stack.__init__

    def wrong(own: Gpt2Stack, *args: object, **kwargs: object) -> None:
        begin(own, *args, **kwargs)  # type: ignore[arg-type]
        own.position_table = own.position_table.clone()
        own.position_table[64:] = own.position_table[63]

    patch.setattr(Gpt2Stack, "__init__", wrong)


def drafts_from_acceptance_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Uniforms, "DRAFT", Uniforms.ACCEPT)


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        ("speculative-sampling", {"temperature": 1.0}),
        ("exact", {"temperature": 1.0}),
        ("fused", {"temperature": 0.8, "top_k": 20, "top_p": 0.95}),
    ],
)
def test_every_decision_of_an_exact_run_holds(tmp_path: Path, rule: str, sampling: dict) -> None:
    method = MethodSpec.of("speculative", drafter=MODEL, gamma=3, rule=rule)
    found, records = run(tmp_path, sampling["temperature"], method, tokens=40, batch_size=2, sampled=sampling)
    assert found["verdict"] == "same distribution"
    assert (found["replayed"]["outputs"], found["replayed"]["faults"]) == (6, 0)
    for record in records[-1]:
        assert record.steps is not None
        assert (record.replayed or 0) > len(record.tokens or ()) + 2 * sum(record.steps.num_accepted)  # acceptances and laws


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rounding_to_bfloat16_is_no_fault(tmp_path: Path, temperature: float) -> None:
    found, _ = run(tmp_path, temperature, tokens=60, dtype="bfloat16")
    assert found["replayed"] == {"outputs": 6, "decisions": found["replayed"]["decisions"], "faults": 0}
    assert found["verdict"] in ("identical", "near-tie", "same distribution")


@pytest.mark.parametrize("kind", ["copy", "random"])
def test_row_drafters_are_asked_again(tmp_path: Path, kind: str) -> None:
    found, _ = run(
        tmp_path, 1.0, MethodSpec.of("speculative", drafter=DrafterSpec(kind=kind), gamma=3), tokens=40, batch_size=3
    )
    assert found["verdict"] == "same distribution"
    assert found["replayed"]["faults"] == 0


@pytest.mark.parametrize(
    ("temperature", "fault"),
    [
        (1.0, stale_beyond_64),
        (0.0, clamped_positions),
        (1.0, clamped_positions),
        (1.0, reuse(0)),
        (1.0, reuse(1)),
        (1.0, drafts_from_acceptance_numbers),
    ],
    ids=["stale", "clamped, greedy", "clamped", "reuse", "reuse1", "draft stream"],
)
def test_a_fault_turns_a_run_red_and_shows_no_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float, fault: Fault
) -> None:
    fault(monkeypatch)
    found, records = run(tmp_path, temperature)
    assert found["verdict"] == "bug"
    assert found["replayed"]["faults"] >= 3
    assert isinstance(speedup(records[0], records[-1]), Missing)


def test_none_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.comparison.REPLAYED", 1)
    assert run(tmp_path / "none", 1.0, tokens=8, which="none")[0]["replayed"]["outputs"] == 0
    assert run(tmp_path / "sample", 1.0, tokens=8, repeats=2)[0]["replayed"]["outputs"] == 2
    assert run(tmp_path / "all", 1.0, tokens=8, which="all", repeats=2)[0]["replayed"]["outputs"] == 12


def test_what_does_not_fit_into_memory_is_not_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(replay, "read_text", full)
    found, records = run(tmp_path, 1.0, tokens=8)
    assert found["replayed"]["outputs"] == 0
    assert {record.status for record in records[-1]} == {"ok"}
