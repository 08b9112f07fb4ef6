"""The replay of outputs: exact runs hold, and faults that no other check sees are found (the review's, one a test)."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.records import Divergence, Record
from harness.exact.controls import CONTROLS
from harness.exact.run_verdict import judge_run
from harness.measures.of_run import output_perplexity, speedup
from harness.measures.statistics import Missing
from harness.models.fit import Models
from harness.models.loading import LoadedModel, load_model
from harness.models.names import pin_model
from harness.run import prompts
from harness.run.comparison import Replay
from harness.run.prompts import examples_of, make_prompt
from harness.run.replay import Reader, is_replayed, outputs, reading
from harness.run.replay.blocks import blocks
from harness.run.replay.decisions import Decision, acceptances
from harness.run.replay.drafts import Sampled, asked_again, rounds_of
from harness.run.replay.inputs import misread
from harness.run.replay.outputs import Replayed, misended
from harness.run.runner import Runner, pin
from harness.zoo.build import ensure
from kernels.verify import reference
from methods.models.base import Frame
from methods.models.gpt2 import Gpt2Stack
from methods.parts import RULES
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.specdec.rules import _decided_on_host
from methods.speculative.decode import DraftAndVerify
from methods.speculative.engine_rules import PointMass
from methods.speculative.model import ModelDrafter
from methods.speculative.per_row import PerRow, opening, point_mass
from methods.steps import Step
from methods.types import Generation, Inputs, Outcome, Proposal, Verdict
from tasks import get_task

MODEL = DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))
Fault = Callable[[pytest.MonkeyPatch], None]
TRANSLATES = MethodSpec.of("speculative", drafter=DrafterSpec(kind="model", model=ModelSpec(name="zoo:t5-small")), gamma=3)
BLOCK = DrafterSpec(kind="block", model=ModelSpec(name="zoo:specdec-bart-drafter"))


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    names = ("gpt-target", "gpt-draft", "t5-base", "t5-small", "specdec-bart-verifier", "specdec-bart-drafter")
    ensure(names, "test", "toy", workers=0)


def run(
    folder: Path,
    temperature: float,
    method: MethodSpec | None = None,
    tokens: int = 100,
    which: Replay = "sample",
    sampled: dict | None = None,
    **fields: object,
) -> tuple[dict, list[list[Record]]]:
    settings: dict[str, Any] = {"task": "text", "target": ModelSpec(name="zoo:gpt-target"), "max_input_tokens": 64} | fields
    plain = Experiment(
        profile="test",
        method=MethodSpec(name="autoregressive"),
        sampling=Sampling(**(sampled or {"temperature": temperature})),
        limit=3,
        max_new_tokens=tokens,
        ignore_eos=True,
        num_threads=1,
        **settings,
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


def sources_of_the_row_before_beyond_64(patch: pytest.MonkeyPatch) -> None:
    """The cross cache of an encoder-decoder stays that of the example before once 64 tokens are decoded."""
    prefill, frame = ModelSession.prefill, ModelSession._frame

    def begin(own: ModelSession, inputs: Inputs) -> list[int]:
        own.before = own._source  # type: ignore[attr-defined]
        return prefill(own, inputs)

    def stale(own: ModelSession, new: torch.Tensor, first: int, last: int) -> Frame:
        made = frame(own, new, first, last)
        before = own.before  # type: ignore[attr-defined]
        return replace(made, source=before.view) if before is not None and max(own.lengths[first]) > 64 else made

    patch.setattr(ModelSession, "prefill", begin)
    patch.setattr(ModelSession, "_frame", stale)


def by_control(name: str) -> Fault:
    """The session of an audit's control, in the place of the target's."""

    def fault(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("harness.models.loading.ModelSession", CONTROLS[name].session)

    return fault


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
        ("point-mass", {"temperature": 1.0}),
        ("block-verification", {"temperature": 1.0}),
        ("block-verification", {"temperature": 0.8, "top_k": 20, "top_p": 0.95}),
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


@pytest.mark.parametrize(
    ("name", "temperature", "gamma"),
    [("block verification, token-wise residual", 2.0, 6), ("block verification, numbers again", 1.0, 3)],
)
def test_a_wrong_block_verification_is_found(
    name: str, temperature: float, gamma: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hot and with long drafts, so that blocks often end inside; elsewhere the two residuals are mostly the same."""
    monkeypatch.setitem(RULES, "block-verification", CONTROLS[name].rule)
    method = MethodSpec.of("speculative", drafter=MODEL, gamma=gamma, rule="block-verification")
    found, _ = run(tmp_path, temperature, method)
    assert found["verdict"] == "bug"
    assert found["replayed"]["faults"] > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rounding_to_bfloat16_is_no_fault(tmp_path: Path, temperature: float) -> None:
    found, _ = run(tmp_path, temperature, tokens=60, dtype="bfloat16")
    assert found["replayed"] == {"outputs": 6, "decisions": found["replayed"]["decisions"], "faults": 0}
    assert found["verdict"] in ("identical", "near-tie", "same distribution")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["copy", "random"])
def test_row_drafters_are_asked_again(tmp_path: Path, kind: str, temperature: float) -> None:
    found, _ = run(
        tmp_path, temperature, MethodSpec.of("speculative", drafter=DrafterSpec(kind=kind), gamma=3), tokens=40, batch_size=3
    )
    assert found["verdict"] == ("same distribution" if temperature else "identical")
    assert found["replayed"]["faults"] == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_copy_of_another_rows_text_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """What is emitted is right all the same, and only slower: neither outputs nor laws show it."""

    def swapped(own: PerRow, inputs: Inputs, pending: list[int], uniforms: Uniforms) -> None:
        own.uniforms = uniforms
        own.texts = [opening(prompt, token) for prompt, token in zip(inputs.prompts, pending, strict=True)][::-1]
        own.drafted = [[] for _ in own.texts]

    monkeypatch.setattr(PerRow, "begin", swapped)
    method = MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=3)
    found, records = run(tmp_path, temperature, method, tokens=40, batch_size=3)
    assert found["verdict"] == "bug"
    assert {one.divergence.what for one in records[-1] if one.divergence is not None} <= {"draft", "draft's probability"}
    assert isinstance(speedup(records[0], records[-1]), Missing)


def test_row_drafters_are_asked_again_on_the_targets_device() -> None:
    """Where the run asked them: on a GPU numbers that lie elsewhere end in a traceback."""
    asked: list[str] = []

    class Telling:
        vocab_size = 9

        def propose(self, text: list[int], num_draft: int, uniforms: torch.Tensor, sampling: Sampling) -> Proposal:
            asked.append(uniforms.device.type)
            return point_mass([1] * num_draft, sampling, torch.device("cpu"))

    stack = SimpleNamespace(device=torch.device("meta"), encodes_prompts=False)
    reader: Any = SimpleNamespace(target=SimpleNamespace(stack=stack), sampling=Sampling(temperature=1.0))
    rounds = rounds_of([Step([1, 1], 2, 3), Step([1], 0, 1)])
    again = asked_again(PerRow(Telling()), reader, Inputs(((5, 6),)), [1, 1, 4, 4], torch.zeros(3, 8), rounds)
    assert (asked, sorted(again)) == (["meta", "meta"], [0, 3])


def test_which_number_another_methods_token_was_drawn_with_is_not_known() -> None:
    """A plug-in keeps the target's law: greedy its tokens are the target's, sampled its draws are its own."""

    class Wrapped:
        guarantee = "same_distribution"

    assert is_replayed(Wrapped(), Sampling())  # type: ignore[arg-type]
    assert not is_replayed(Wrapped(), Sampling(temperature=1.0))  # type: ignore[arg-type]


def test_a_rule_of_another_may_take_drafts_for_point_masses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It states 1 of each, whatever the draft's law gives it, and is lossless."""

    class AnothersRule:
        guarantee = "same_distribution"

        def verify(self, *arguments: Any) -> Verdict:
            return PointMass().verify(*arguments)

    monkeypatch.setitem(RULES, "point-mass", AnothersRule)
    found, _ = run(tmp_path, 1.0, MethodSpec.of("speculative", drafter=MODEL, gamma=3, rule="point-mass"), tokens=40)
    assert found["replayed"]["faults"] == 0


def test_a_refused_first_choice_is_found_under_specdecs_rule_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last draft is refused where all stand: the same token follows as the target's own, and nothing else shows it."""

    def refusing(*arguments: Any) -> Verdict:
        return _decided_on_host(*arguments[:-1], "printed")

    method = MethodSpec.of("speculative", drafter=MODEL, gamma=3, rule="top-1")
    assert run(tmp_path / "right", 0.0, method, tokens=40)[0]["replayed"]["faults"] == 0
    printed = MethodSpec.of("speculative", drafter=MODEL, gamma=3, rule="top-1", cap="printed")
    assert run(tmp_path / "printed", 0.0, printed, tokens=40)[0]["replayed"]["faults"] == 0
    monkeypatch.setattr("methods.specdec.rules._decided_on_host", refusing)
    found, records = run(tmp_path / "wrong", 0.0, method, tokens=40)
    assert found["verdict"] == "bug"
    assert {one.divergence.what for one in records[-1] if one.divergence is not None} == {"rejection"}


@pytest.mark.parametrize(("top_p", "moves"), [(0.95, True), (0.9, False)])
def test_a_token_at_the_border_of_the_nucleus_may_be_in_or_out(top_p: float, moves: bool) -> None:
    """Of 0.05, 0.45, 0.5 the rest behind 0.95 is the first, by a hair or not; the others are normed again where it is out."""
    logits = torch.tensor([[0.05, 0.45, 0.5]]).log()
    sampling = Sampling(temperature=1.0, top_p=top_p)
    border = reading.border_of(logits.exp(), sampling, torch.tensor([1e-4]), torch.tensor([reading.NUCLEUS]))
    assert float(border) == pytest.approx(0.05 if moves else 0.0, abs=1e-6)
    found = reading._reading(logits, torch.zeros(1), torch.tensor([1e-4]), sampling)
    assert float(found.law_bound) == pytest.approx(1e-4 + float(border))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_first_choices_have_no_border_whatever_filters_are_given(tmp_path: Path, dtype: str) -> None:
    found, _ = run(tmp_path, 0.0, tokens=10, sampled={"temperature": 0.0, "top_k": 5, "top_p": 0.9}, dtype=dtype)
    assert (found["verdict"] in ("identical", "near-tie"), found["replayed"]["faults"]) == (True, 0)


@pytest.mark.parametrize(
    ("filters", "apart"),
    [
        ({"top_k": 2}, 0.4 / 0.9),  # the second or the third
        ({"top_k": 1}, 0.0),
        ({"top_p": 0.6}, 0.4 / 0.9),
        ({"top_p": 0.4}, 0.0),  # the first is left alone
        ({"top_k": 3, "top_p": 0.6}, 0.4 / 0.9),
        ({"top_k": 3}, 0.0),
        ({"top_p": 0.85}, 0.0),  # both of the two, whichever comes first
    ],
)
def test_either_of_two_near_tokens_may_be_left_at_a_filters_border(filters: dict[str, Any], apart: float) -> None:
    """Of 0.5, 0.2, 0.2 and 0.1: a law that has the second, or the third, or both where rounding cannot tell."""
    law = torch.tensor([[0.1, 0.2, 0.5, 0.2]])
    sampling = Sampling(temperature=1.0, **filters)
    found = reading.border_of(law, sampling, torch.tensor([1e-4]), torch.tensor([1e-5]))
    assert float(found) == pytest.approx(apart, abs=1e-6)


@pytest.mark.parametrize("filters", [{"top_p": 0.5}, {"top_p": 0.8}, {"top_k": 5}])
def test_filters_in_half_precision_are_off_by_no_more_than_their_bound(filters: dict[str, Any]) -> None:
    """Of two passes in bfloat16 one may leave out a token that the other and fp32 keep. The replay allows each twice."""
    generator = torch.Generator().manual_seed(7)
    wide = torch.randn(2000, 40, generator=generator) * 3
    one, other = ((wide + 0.01 * torch.randn(wide.shape, generator=generator)).bfloat16() for _ in range(2))
    sampling = Sampling(temperature=1.0, **filters)
    found = reading.in_half_precision(one, wide, sampling)
    apart = (reading.law_of(other, sampling) - reading.law_of(wide, sampling)).abs().sum(-1) / 2
    assert int((apart > 2 * found.law_bound).sum()) == 0
    assert int((apart > 2 * (found.law_bound - found.border)).sum()) > 0  # what is allowed at borders is needed
    assert float(found.law_bound.median()) < 0.2  # which faults exceed


@pytest.mark.parametrize("drafted", [1.04e-6, 0.96e-6])
def test_a_probability_that_a_record_rounds_is_no_fault(drafted: float) -> None:
    """Seven digits: both are written as 1e-6, and 0.9e-6 over the one and the other stands with 0.865 and with 0.9375."""
    chance, target = 0.9e-6 / drafted, 0.9e-6
    for stands, number in ((False, chance + 0.01), (True, chance - 0.01)):
        laws = torch.tensor([[target, 1 - target], [0.5, 0.5]], dtype=torch.float64)
        step = Step([0], int(stands), 2 if stands else 1, draft_probs=[round(drafted, 7)])
        numbers = torch.full((3, 2), number, dtype=torch.float64)
        tokens, zero = [0, 0] if stands else [1], torch.zeros(2, dtype=torch.float64)
        output = Sampled(tokens, laws, zero + 2e-4, zero + 4e-4, numbers, rounds_of([step], looks_ahead=True))
        unknown: Any = SimpleNamespace(laws_of=lambda places: ([], torch.empty(0)), bound=lambda position: 2e-4)
        decided = [one for one in blocks(output, unknown) if one.what in ("acceptance", "rejection")]
        assert len(decided) == 1
        assert all(one.off <= one.bound for one in decided), decided


def test_a_cool_law_moves_as_its_logits_do_divided_by_the_temperature(tmp_path: Path) -> None:
    """Logits that rounding moves by 2e-5, at a temperature of 0.01: probabilities move by 5e-4."""
    target = load_model(pin_model(ModelSpec(name="zoo:gpt-target"), "test", "toy"))
    inputs, tokens = Inputs(((1, 5, 9, 4),)), [3, 8, 2]
    warm, cool = (Reader(target, Sampling(temperature=t), Models()).read(inputs, tokens).law_bound for t in (1.0, 0.01))
    assert warm.tolist() == pytest.approx([1e-4] * 3)
    assert cool.tolist() == pytest.approx([1e-3] * 3)


def test_a_fault_stays_where_a_later_window_does_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Divergence(position=1, margin=1.0, bound=1e-4, replays_agree=False, kind="bug", what="choice")

    def replayed(method: Any, reader: Any, inputs: int, *rest: Any) -> Replayed:
        if inputs:
            raise MemoryError
        return Replayed(2, fault)

    monkeypatch.setattr(outputs, "outputs_of", lambda *arguments: [[1, 2], [3]])
    monkeypatch.setattr(outputs, "replay", replayed)
    monkeypatch.setattr(outputs, "seed_said", lambda *arguments: 0)
    monkeypatch.setattr(outputs, "misread", lambda *arguments: None)
    read = SimpleNamespace(target=None, read=lambda *arguments: SimpleNamespace(nats=lambda tokens: 1.0))
    prompt = SimpleNamespace(windows=lambda: [0, 1], example=SimpleNamespace(id="a"))
    record = Record(signature="s", example="a", repeat=0, status="ok", tokens=[1, 2, 3], stop_reason="eos")
    experiment = SimpleNamespace(max_new_tokens=9, seed=0)
    found = outputs.replay_record(record, experiment, None, prompt, read)  # type: ignore[arg-type]
    assert found.divergence == fault
    assert found.replayed is None


@pytest.mark.parametrize(("number", "is_fault"), [(0.19, False), (0.21, True)])
def test_a_decision_on_an_unlikely_draft_is_held_to_what_the_rule_states(number: float, is_fault: bool) -> None:
    """A draft of chance 1e-4, and 2e-5 by the target, stands below 0.2.

    Both are less than what a law may be off by (2e-4). Fault: a rule that took all such drafts, from the third of a round on,
    went through every check.
    """
    own, drafted = 2e-5, 1e-4
    step = Step([0], 1, 2, target_probs=[own], draft_probs=[drafted])
    laws = torch.tensor([[own, 1 - own], [0.5, 0.5]], dtype=torch.float64)
    numbers, off = torch.full((3, 2), number, dtype=torch.float64), torch.full((2,), 2e-4, dtype=torch.float64)
    output = Sampled([0, 0], laws, off, off, numbers, rounds_of([step]))
    drafts: Any = SimpleNamespace(probs=lambda places: [drafted], bound=lambda position: 2e-4)
    found = [one for one in acceptances(output, drafts, 1.0, states_drafts=True) if one.what == "acceptance"]
    assert [one.off > one.bound for one in found] == [False, is_fault]


@pytest.mark.parametrize(
    ("temperature", "fault"),
    [
        (1.0, stale_beyond_64),
        (0.0, clamped_positions),
        (1.0, clamped_positions),
        (1.0, reuse(0)),
        (1.0, reuse(1)),
        (1.0, drafts_from_acceptance_numbers),
        (0.0, by_control("positions shifted")),
        (1.0, by_control("positions shifted")),
    ],
    ids=["stale", "clamped, greedy", "clamped", "reuse", "reuse1", "draft stream", "shifted, greedy", "shifted"],
)
def test_a_fault_turns_a_run_red_and_shows_no_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float, fault: Fault
) -> None:
    fault(monkeypatch)
    found, records = run(tmp_path, temperature)
    assert found["verdict"] == "bug"
    assert sum(one.divergence is not None and one.divergence.kind == "bug" for arm in records for one in arm) >= 3
    assert found["replayed"]["faults"] >= 3, "also where plain decoding says another text"
    assert isinstance(speedup(records[0], records[-1]), Missing)


def test_a_replay_that_leaves_out_tokens_is_a_fault_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the first 64 draws alone were looked at, and a run was as well as before."""
    whole = outputs.draws
    monkeypatch.setattr(outputs, "draws", lambda *given: list(whole(*given))[:64])
    found, _ = run(tmp_path, 1.0)
    assert found["verdict"] == "bug"
    assert "token that the replay leaves out" in found["summary"]


def forgotten_last_draft(patch: pytest.MonkeyPatch) -> None:
    """The draft's cache never has the last draft of a round in which all stood: greedy outputs stay right, drafts are worse."""
    whole = ModelDrafter.commit

    def commit(own: ModelDrafter, outcome: Outcome) -> None:
        whole(own, outcome)
        own.cache.unseen = [row[-1:] for row in own.cache.unseen]

    patch.setattr(ModelDrafter, "commit", commit)


def temperature_twice(patch: pytest.MonkeyPatch) -> None:
    """Of target and draft alike, so that every law that our code is asked for agrees with it."""
    whole = reference.adjusted_logits
    patch.setattr(reference, "adjusted_logits", lambda logits, sampling: whole(logits / sampling.temperature, sampling))


@pytest.mark.parametrize(
    ("sampled", "fault"),
    [({"temperature": 0.0}, forgotten_last_draft), ({"temperature": 0.7, "top_p": 0.9}, temperature_twice)],
)
def test_what_both_arms_and_our_own_laws_have_wrong_alike_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampled: dict, fault: Fault
) -> None:
    method = MethodSpec.of("speculative", drafter=MODEL, gamma=2)
    assert run(tmp_path / "right", sampled["temperature"], method, tokens=40, sampled=sampled)[0]["verdict"] != "bug"
    fault(monkeypatch)
    assert run(tmp_path / "wrong", sampled["temperature"], method, tokens=40, sampled=sampled)[0]["verdict"] == "bug"


def test_an_output_beyond_its_limit_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = DraftAndVerify.generate

    def longer(own: DraftAndVerify, *args: Any, **values: Any) -> list[Generation]:
        made = whole(own, *args, **values)
        for one in made:
            one.tokens.append(0)
        return made

    monkeypatch.setattr(DraftAndVerify, "generate", longer)
    _, records = run(tmp_path, 1.0, tokens=10)
    assert {one.status for one in records[-1]} == {"failed"}
    assert {one.error for one in records[-1]} == {"RuntimeError: 11 tokens were emitted, max_new_tokens is 10"}


def test_rounds_that_cannot_be_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written of them could not be read again."""
    whole = DraftAndVerify.generate

    def boasting(own: DraftAndVerify, *args: Any, **values: Any) -> list[Generation]:
        made = whole(own, *args, **values)
        for one in made:
            one.steps[0] = replace(one.steps[0], num_accepted=99)
        return made

    monkeypatch.setattr(DraftAndVerify, "generate", boasting)
    _, records = run(tmp_path, 1.0, tokens=10)
    assert {one.status for one in records[-1]} == {"failed"}
    assert all("accepted 99" in str(one.error) for one in records[-1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_lost_update_in_half_precision_is_no_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    by_control("lost update in bfloat16")(monkeypatch)
    found, _ = run(tmp_path, temperature, dtype="bfloat16")
    assert found["verdict"] == "bug"
    assert found["replayed"]["faults"] >= 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_passes_that_are_off_by_more_than_half_precision_rounds_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """Of both arms alike, and of first choices none is another."""
    whole = ModelSession.extend
    half = torch.bfloat16  # in fp32 no such model is loaded
    monkeypatch.setattr(
        ModelSession, "extend", lambda self, tokens: whole(self, tokens) * (1.1 if self.stack.dtype == half else 1.0)
    )
    found, records = run(tmp_path, temperature, dtype="bfloat16")
    faults = [record.divergence for arm in records for record in arm]
    assert all(fault is not None and fault.kind == "bug" for fault in faults)
    if temperature == 0:
        assert {fault.what for fault in faults if fault is not None} == {"logits"}
        assert "0 part at a near-tie, 0 at a bug, 3 hold what no replay gives" in found["summary"]


@pytest.mark.parametrize(
    ("own", "theirs", "is_fault"),
    [
        ([1.0, -torch.inf], [1.0, -torch.inf], False),  # tokens that may not be said
        ([1.0, 0.0], [1.0, -torch.inf], True),
        ([torch.nan, 0.0], [1.0, 0.0], True),
        ([9.0, 0.0], [torch.nan, 0.0], False),  # an overflow of transformers' own, of which no bound is known
    ],
)
def test_passes_are_held_apart_where_they_are_not_finite(own: list[float], theirs: list[float], is_fault: bool) -> None:
    wide = torch.tensor([[1.0, -torch.inf if torch.inf in map(abs, theirs) else 0.0]])
    off, bound = reading._passes_apart(torch.tensor([own]).bfloat16(), torch.tensor([theirs]).bfloat16(), wide)
    assert Decision(0, "logits", float(off), float(bound)).is_fault == is_fault


@pytest.mark.parametrize("fault", [None, stale_beyond_64, sources_of_the_row_before_beyond_64])
@pytest.mark.parametrize(
    ("target", "task", "method"),
    [
        ("t5-base", "wmt-en-de", TRANSLATES),
        ("specdec-bart-verifier", "cnndm", MethodSpec.of("speculative", drafter=BLOCK, gamma=3)),
    ],
)
def test_a_stale_cache_of_an_encoder_decoder_is_found_beyond_64_tokens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    task: str,
    method: MethodSpec,
    fault: Fault | None,
) -> None:
    """At a temperature at which texts go on behind their end; at lower ones these models repeat it, whatever is cached."""
    if fault is not None:
        fault(monkeypatch)
    where = {"target": ModelSpec(name=f"zoo:{target}"), "task": task, "prompt_style": "t5"}
    found, records = run(tmp_path, 3.0, method, tokens=90, **where)
    assert {len(record.tokens or ()) for record in records[-1]} == {90}
    assert (found["verdict"] == "bug") == (fault is not None)
    assert bool(found["replayed"]["faults"]) == (fault is not None)


def test_a_text_that_several_arms_write_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy arms write one text an example, sampled ones their own; repeats write it again, later."""
    read, texts = reading.read_text, list[tuple[int, ...]]()
    monkeypatch.setattr(reading, "read_text", lambda *given: texts.append(tuple(given[-1])) or read(*given))
    greedy, _ = run(tmp_path, 0.0, tokens=12, batch_size=2, repeats=2, which="all")
    assert (greedy["replayed"]["outputs"], len(texts)) == (12, 3)
    sampled, records = run(tmp_path, 1.0, tokens=12, batch_size=2)
    assert (sampled["replayed"]["outputs"], len(texts)) == (6, 3 + len({tuple(one.tokens) for arm in records for one in arm}))
    monkeypatch.setattr(reading, "KEPT_BYTES", 0)
    run(tmp_path / "forgetful", 0.0, tokens=12, batch_size=2)
    assert len(texts) == 9 + 3


def test_a_lossy_arm_is_read_too_and_its_texts_perplexity_shown(tmp_path: Path) -> None:
    """By hand: the exponential of minus the mean log-probability that transformers' forward pass gives its tokens."""
    lenient = MethodSpec.of("speculative", drafter=MODEL, gamma=3, rule="lenience", lenience=0.05)
    found, records = run(tmp_path, 1.0, lenient, tokens=30)
    assert found["verdict"] == "lossy"
    plain, ours = (output_perplexity(arm) for arm in records)
    assert plain is not None
    assert ours is not None
    assert f"perplexity of its outputs is {ours.value:.4g}, of plain decoding's {plain.value:.4g}" in found["summary"]
    assert all(record.replayed for record in records[-1])
    arm = pin(Experiment(task="text", profile="test", target=ModelSpec(name="zoo:gpt-target"), method=lenient, limit=3,
        max_input_tokens=64))  # fmt: skip
    target, nats = load_model(arm.target), 0.0
    for example, record in zip(examples_of(arm), records[-1], strict=True):
        prompt, tokens = make_prompt(get_task("text"), example, arm, target).tokens, record.tokens or []
        logits = target.stack.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].double()
        nats -= float(logits.log_softmax(-1)[range(len(tokens)), tokens].sum())
    assert ours.value == pytest.approx(math.exp(nats / 90), rel=1e-4)


@pytest.mark.parametrize("target", ["gpt-target", "t5-base"])
@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda tokens: tokens[:-1], {"token of the prompt"}),
        (lambda tokens: tokens[1:], {"token of the prompt"}),
        (lambda tokens: tokens[:3] + tokens[4:], {"token of the prompt"}),
        (lambda tokens: tokens, set()),
    ],
    ids=["no end", "no beginning", "one left out", "none"],
)
def test_a_prompt_that_is_not_transformers_is_a_fault(
    change: Callable[[tuple[int, ...]], tuple[int, ...]],
    seen: set[str],
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every arm reads the same wrong prompt, and writes what the target gives for it."""
    encode = LoadedModel.encode
    monkeypatch.setattr(LoadedModel, "encode", lambda own, text: change(encode(own, text)))
    method = TRANSLATES if target == "t5-base" else None
    _, records = run(tmp_path, 0.0, method, tokens=6, target=ModelSpec(name=f"zoo:{target}"), max_input_tokens=None)
    said = {one.divergence.what for arm in records for one in arm if one.divergence is not None}
    assert said == seen


CHAT = "{% for turn in messages %}<|im|>{{ turn.content }}<|im|>{% endfor %}{% if add_generation_prompt %} Answer:{% endif %}"


@pytest.mark.parametrize("is_wrong", [False, True], ids=["cut as it is", "cut at its end"])
@pytest.mark.parametrize(
    ("target", "settings"),
    [
        ("t5-base", {"task": "squad", "prompt_style": "t5"}),
        ("gpt-target", {"task": "cnndm"}),
        ("gpt-target", {"task": "squad", "prompt_template": "{context}\\nQ: {question}\\nA:"}),
        ("gpt-target", {"task": "cnndm", "chat_template": True, "max_input_tokens": 72}),
        ("gpt-target", {"task": "text", "max_input_tokens": 8}),
    ],
    ids=["end token", "instruction", "template", "chat", "continued"],
)
def test_a_prompt_that_was_cut_keeps_what_stands_around_its_field(
    is_wrong: bool, target: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the last tokens were left out, end token, question or the answer's beginning among them; all arms alike."""

    def loaded(*arguments: Any, **keywords: Any) -> LoadedModel:
        made = load_model(*arguments, **keywords)
        made.tokenizer.chat_template = CHAT
        return made

    def cut_at_its_end(task: Any, example: Any, experiment: Any, model: LoadedModel, room: int) -> tuple[int, tuple[int, ...]]:
        whole = prompts._encode(task, example, experiment, model)
        return len(whole) - room, whole[:room]

    monkeypatch.setattr("harness.models.fit.load_model", loaded)
    if is_wrong:
        monkeypatch.setattr(prompts, "_cut_longest_field", cut_at_its_end)
    method = TRANSLATES if target == "t5-base" else None
    _, records = run(
        tmp_path, 0.0, method, tokens=4, target=ModelSpec(name=f"zoo:{target}"), **{"max_input_tokens": 40} | settings
    )
    cut = [one for arm in records for one in arm if one.truncated_tokens]
    assert cut
    said = [one.divergence.what if one.divergence is not None else None for one in cut]
    assert said == ["token of the prompt" if is_wrong and settings["task"] != "text" else None] * len(cut)


def test_a_chat_template_that_writes_the_date_is_not_asked_again() -> None:
    """A run that began yesterday has yesterday's date in its prompts."""
    tokenizer = SimpleNamespace(get_chat_template=lambda: "{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}")
    prompt: Any = SimpleNamespace(listener=None, truncated_tokens=0, tokens=(1, 2))
    experiment: Any = SimpleNamespace(chat_template=True)
    target: Any = SimpleNamespace(tokenizer=tokenizer)
    assert misread(experiment, prompt, target) is None


def test_none_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.comparison.REPLAYED", 1)
    assert run(tmp_path / "none", 1.0, tokens=8, which="none")[0]["replayed"]["outputs"] == 0
    assert run(tmp_path / "sample", 1.0, tokens=8, repeats=2)[0]["replayed"]["outputs"] == 2
    assert run(tmp_path / "all", 1.0, tokens=8, which="all", repeats=2)[0]["replayed"]["outputs"] == 12


@pytest.mark.parametrize("kind", ["torch's", "torch's on a CPU"])
def test_what_does_not_fit_into_memory_is_not_replayed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        if kind == "torch's":
            raise torch.OutOfMemoryError("no memory left")
        torch.empty(2**50)  # more than a processor can address

    monkeypatch.setattr(reading, "read_text", full)
    found, records = run(tmp_path, 1.0, tokens=8)
    assert found["replayed"]["outputs"] == 0
    assert {record.status for record in records[-1]} == {"ok"}


@pytest.mark.parametrize(("name", "is_fault"), [("drafter-alone", False), ("autoregressive", True)])
def test_a_drafter_alone_may_end_where_it_has_no_position_left(name: str, is_fault: bool) -> None:
    """It has fewer of them than the target; nothing else may end before a stopping token and the limit."""
    experiment: Any = SimpleNamespace(method=SimpleNamespace(name=name), max_new_tokens=48, ignore_eos=True)
    target: Any = SimpleNamespace(stack=SimpleNamespace(position_limit=64, encodes_prompts=True, model=None))
    prompt: Any = SimpleNamespace(windows=lambda: [0], tokens=(5, 6))
    assert (misended(experiment, prompt, [7] * 31, target) is not None) == is_fault
