"""A run sees faults by itself: of where texts begin and end by any method, and of lossy rules by the laws that they state.

The models are those of `make regress`, in fp64. Faults that exact methods' replays find: test_replay.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.core.experiment import Comparison, DrafterSpec, MethodSpec, ModelSpec
from harness.core.record_files import read_records
from harness.exact import run_verdict
from harness.exact.controls import CONTROLS
from harness.exact.run_verdict import judge_run
from harness.measures.of_run import speedup
from harness.measures.statistics import Missing
from harness.models.loading import load_config
from harness.report.pinned import drafted_by, model, pinned_set
from harness.run import decode as run_decode
from harness.run.comparison import Replay
from harness.run.replay import is_replayed
from harness.run.replay.reading import seed_said
from harness.run.runner import Runner, pin
from kernels.inputs import SamplingSpec
from methods.beam import BeamSearch
from methods.models.base import EncoderDecoderStack
from methods.models.whisper import WhisperStack
from methods.sampling import Sampling
from methods.specdec import drafter as block_drafter
from methods.specdec.blockwise import BlockwiseDrafter, BlockwiseHeads
from methods.specdec.rules import TopBeta
from methods.speculative import decode
from methods.speculative import model as speculative_model
from methods.speculative.decode import DraftAndVerify
from methods.speculative.ngram import NGramDrafter
from methods.speculative.per_row import PerRow, RandomDrafter
from methods.speculative.rules import Lenience, SigmoidRule, SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Proposal, Stop, Verdict, VerifyRule

Fault = Callable[[pytest.MonkeyPatch], None]


def judged(
    folder: Path, name: str, method: MethodSpec | None = None, which: Replay = "all", **fields: object
) -> tuple[dict[str, Any], Comparison]:
    """Run the first examples of a pinned comparison, perhaps by another method, and return the verdict on it."""
    plain, arm = pinned_set(num_examples=4)[name].arms
    arms = plain.replace(probes=(), **fields), arm.replace(probes=(), method=method or arm.method, **fields)
    comparison = Comparison((pin(arms[0]), pin(arms[1])))
    runner = Runner(folder, quiet=True, replay=which)
    runner.run(comparison)
    records = [runner.records(one) for one in comparison.arms]
    found = judge_run(comparison, records, runner.with_models)
    assert found["verdict"] != "bug" or isinstance(speedup(*records), Missing)
    return found, comparison


def looks_at_the_last_token(patch: pytest.MonkeyPatch) -> None:
    """An end of text among the accepted drafts ends nothing."""

    def cut(self: Stop, tokens: list[int], room: int) -> tuple[list[int], str | None]:
        emitted = tokens[:room]
        if emitted[-1] in self.token_ids:
            return emitted, "eos"
        return emitted, "length" if len(emitted) >= room else None

    patch.setattr(Stop, "cut", cut)


def ends_too_soon(patch: pytest.MonkeyPatch) -> None:
    """A text that needs more than 30 tokens is cut there, and says that it reached its limit."""
    whole = Stop.budgets
    patch.setattr(Stop, "budgets", lambda self, target: [min(30, room) for room in whole(self, target)])


def knows_no_end(patch: pytest.MonkeyPatch) -> None:
    """Every arm goes on behind the model's end of text."""
    patch.setattr(run_decode, "stop_of", lambda experiment, target: Stop(max_new_tokens=experiment.max_new_tokens))


def begins_with_another_token(patch: pytest.MonkeyPatch) -> None:
    """Every decoder reads a wrong first token, so that all arms are wrong alike."""
    begin = EncoderDecoderStack.__init__

    def begun(self: EncoderDecoderStack, *given: Any) -> None:
        begin(self, *given)
        assert self.start_token is not None
        self.start_token += 1

    patch.setattr(EncoderDecoderStack, "__init__", begun)


def never_begins_as_it_may(patch: pytest.MonkeyPatch) -> None:
    """No transcription begins with most of what it may begin with, in any arm."""
    patch.setattr(WhisperStack, "begin_suppressed", property(lambda self: tuple(range(1, 300)), lambda self, tokens: None))


@pytest.mark.parametrize(
    ("fault", "name", "method", "expected"),
    [
        (knows_no_end, "news-sampled", None, "token behind the end of the text"),
        (begins_with_another_token, "news-sampled", None, "not what target, random numbers and limits give"),
        (never_begins_as_it_may, "speech-exact", None, "not what target, random numbers and limits give"),
        (looks_at_the_last_token, "news-sampled", None, "token behind the end of the text"),
        (ends_too_soon, "text-lenient", None, "end before a stopping token and the limit"),
        (ends_too_soon, "de-beam", None, "end before a stopping token and the limit"),
        (ends_too_soon, "ppd-sampled", None, "end before a stopping token and the limit"),
    ],
)
def test_a_text_that_does_not_end_where_it_must_turns_a_run_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, name: str, method: MethodSpec | None, expected: str
) -> None:
    assert judged(tmp_path / "right", name, method)[0]["verdict"] != "bug"
    fault(monkeypatch)
    found = judged(tmp_path / "wrong", name, method)[0]
    assert found["verdict"] == "bug"
    assert expected in found["summary"]


def test_rows_that_share_a_schedule_turn_a_run_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one row's drafts told counts for the next row: texts are right, and acceptance is not what a schedule gives."""
    name, whole = "text-sampled-batch", DraftAndVerify.generate
    assert judged(tmp_path / "right", name)[0]["verdict"] == "same distribution"

    def generate(self: DraftAndVerify, *given: Any) -> Any:
        own, shared = self.schedule_factory, self.schedule_factory()
        self.schedule_factory = lambda: shared
        try:
            return whole(self, *given)
        finally:
            self.schedule_factory = own

    monkeypatch.setattr(DraftAndVerify, "generate", generate)
    found = judged(tmp_path / "wrong", name)[0]
    assert found["verdict"] == "bug"
    assert "number of drafts" in found["summary"]


@pytest.mark.parametrize("name", ["squad-greedy", "speech-exact"])
def test_drafts_that_are_counted_behind_the_end_turn_a_run_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The text is right, and acceptance is too high; the replay of a sampled one ended in a traceback."""
    whole = decode._take

    def take(row: Any, length: int, decided: Any, stop: Stop) -> None:
        whole(row, length, decided, stop)
        row.made.steps[-1].num_accepted = decided.num_accepted

    monkeypatch.setattr(decode, "_take", take)
    found = judged(tmp_path / "wrong", name, limit=8)[0]
    assert found["verdict"] == "bug"
    assert "number of accepted drafts" in found["summary"]


def test_a_law_is_integrated_where_there_are_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first two outputs had too few, the verdict was "unknown"."""
    whole, asked = run_verdict.windows_of, list[int]()

    def windows_of(*given: Any) -> Any:
        asked.append(1)
        return whole(*given) if len(asked) > 2 else iter(())

    monkeypatch.setattr(run_verdict, "windows_of", windows_of)
    found = judged(tmp_path, "text-lenient", by_rule("speculative-sampling"))[0]
    assert found["verdict"] == "same distribution"
    assert found["windows"] == 4
    assert len(asked) == 4


def test_repeats_that_share_their_numbers_turn_a_run_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chosen examples are replayed of any one repeat, not of the first alone."""
    exact = by_rule("speculative-sampling")
    assert judged(tmp_path / "right", "text-lenient", exact, "sample", repeats=3)[0]["verdict"] == "same distribution"
    whole = run_decode.seed_of
    monkeypatch.setattr(run_decode, "seed_of", lambda arm, name, repeat, window: whole(arm, name, 0, window))
    found = judged(tmp_path / "wrong", "text-lenient", exact, "sample", repeats=3)[0]
    assert found["verdict"] == "bug"
    assert found["replayed"]["outputs"] == 8


def rounds_without_drafts(patch: pytest.MonkeyPatch) -> None:
    stamp = decode._stamp
    patch.setattr(decode, "_stamp", lambda rows, draft_s, verify_s, round_s: stamp(rows, draft_s, verify_s, round_s - draft_s))


def prefill_untimed(patch: pytest.MonkeyPatch) -> None:
    """The clock of a batch begins behind the prefill of target and draft."""
    begin, late_s = DraftAndVerify._begin, [0.0]

    def begun(self: DraftAndVerify, target: Any, inputs: Any, uniforms: Any, clock: Any) -> Any:
        found = begin(self, target, inputs, uniforms, clock)
        late_s[0] += found[1] + found[2]
        return found

    marking_clock = run_decode.marking_clock
    patch.setattr(run_decode, "marking_clock", lambda device: lambda: marking_clock(device)() - late_s[0])
    patch.setattr(DraftAndVerify, "_begin", begun)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(rounds_without_drafts, "clock: a round took"), (prefill_untimed, "clock: a batch took")],
)
def test_times_that_do_not_nest_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, expected: str
) -> None:
    fault(monkeypatch)
    _, comparison = judged(tmp_path, "text-lenient")
    drafted = list(read_records(tmp_path / f"{comparison.arms[-1].signature}.jsonl"))
    failed = [one.error or "" for one in drafted if one.status == "failed"]
    assert len(failed) > len(drafted) / 2, "all but where another program's pause hides what is missing"
    assert all(expected in error for error in failed)


def by_rule(rule: str, **options: object) -> MethodSpec:
    return MethodSpec.of("speculative", drafter=drafted_by("llama-draft"), gamma=3, rule=rule, **options)  # type: ignore[arg-type]


LENIENT, TYPICAL, GREEDY = by_rule("lenience", lenience=0.3), by_rule("typical"), by_rule("target-greedy")


def stale(patch: pytest.MonkeyPatch) -> None:
    """The target keeps rejected drafts in its cache."""
    patch.setattr("harness.models.loading.ModelSession", CONTROLS["stale cache"].session)


def doubly_lenient(patch: pytest.MonkeyPatch) -> None:
    whole = Lenience.verify
    patch.setattr(Lenience, "verify", lambda self, *given: whole(Lenience(self.lenience**2), *given))


def drawn_from_the_target(patch: pytest.MonkeyPatch) -> None:
    """What follows a rejection is drawn from the target itself."""
    whole = Lenience.verify

    def verify(self: Lenience, proposal: Proposal, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        verdict = whole(self, proposal, logits, sampling, uniforms)
        wrong = sampling.draw(logits[range(len(logits)), verdict.num_accepted], uniforms[:, -1])
        return replace(verdict, next_token=wrong)

    patch.setattr(Lenience, "verify", verify)


@pytest.mark.parametrize(
    ("method", "fault", "expected"),
    [
        (LENIENT, stale, "target's probability of a draft"),
        (LENIENT, doubly_lenient, "acceptance"),
        (by_rule("lenience", lenience=0.9), drawn_from_the_target, "drawn token"),
        (TYPICAL, stale, "target's probability of a draft"),
        (GREEDY, stale, "target's probability of a draft"),
    ],
)
def test_what_a_lossy_rule_states_and_decides_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: MethodSpec, fault: Fault, expected: str
) -> None:
    found = judged(tmp_path / "right", "text-lenient", method)[0]
    assert found["verdict"] == "lossy"
    assert found["replayed"]["outputs"] == 8
    fault(monkeypatch)
    found = judged(tmp_path / "wrong", "text-lenient", method)[0]
    assert found["verdict"] == "bug"
    assert expected in found["summary"]


@pytest.mark.parametrize(
    ("rule", "sampling", "expected"),
    [
        ("top-1", Sampling(temperature=0.0), "identical"),
        ("speculative-sampling", Sampling(temperature=1.0), "same distribution"),
        ("block-verification", Sampling(temperature=0.8, top_k=40, top_p=0.9), "same distribution"),
    ],
)
def test_drafts_of_a_block_are_held_against_other_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, sampling: Sampling, expected: str
) -> None:
    """Fault: [MASK]s of a compiled pass stood one position too far. Texts were right, and a round emitted 1.4 tokens, not 3."""
    method = MethodSpec.of("speculative", drafter=drafted_by("specdec-drafter", "block"), gamma=5, rule=rule)
    found = judged(tmp_path / "right", "blocks-strict", method, sampling=sampling)[0]
    assert (found["verdict"], found["replayed"]["faults"]) == (expected, 0)
    whole = block_drafter.block_logits

    def late(stack: Any, source: Any, text: Tensor, lengths: Sequence[int]) -> Tensor:
        logits = whole(stack, source, text, lengths)
        return logits.roll(-1, 1) if len(lengths) == 1 else logits

    monkeypatch.setattr(block_drafter, "block_logits", late)
    found = judged(tmp_path / "wrong", "blocks-strict", method, sampling=sampling)[0]
    assert found["verdict"] == "bug"
    assert "draft" in found["summary"]


def test_a_law_that_was_not_drawn_from_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a bigram stated its law at temperature 1 and drew at 0.5. Asked again it said the same, so nothing differed."""
    cool = Sampling(temperature=0.5)
    found = judged(tmp_path / "right", "news-bigram", sampling=cool)[0]
    assert (found["verdict"], found["replayed"]["faults"]) == ("same distribution", 0)
    propose = NGramDrafter.propose
    monkeypatch.setattr(NGramDrafter, "propose", lambda *given: replace(propose(*given), sampling=Sampling(temperature=1.0)))
    found = judged(tmp_path / "wrong", "news-bigram", sampling=cool)[0]
    assert found["verdict"] == "bug"


@pytest.mark.parametrize(
    ("sampling", "rule", "expected"),
    [
        (Sampling(temperature=0.0), "top-1", "identical"),
        (Sampling(temperature=1.0), "speculative-sampling", "same distribution"),
    ],
)
def test_drafts_of_a_stale_state_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: Sampling, rule: str, expected: str
) -> None:
    """Fault: blockwise heads read the state behind the last draft, not behind the last that stands: exact, but slow."""
    heads = BlockwiseHeads(load_config(model("specdec-verifier")).d_model, 3, 8)
    nn.init.normal_(heads.down.weight, generator=torch.Generator().manual_seed(0))
    heads.save(tmp_path / "heads")
    drafter = DrafterSpec(kind="blockwise", model=ModelSpec(name=str(tmp_path / "heads")))
    method = MethodSpec.of("speculative", drafter=drafter, gamma=3, rule=rule)
    found = judged(tmp_path / "right", "blocks-strict", method, sampling=sampling)[0]
    assert (found["verdict"], found["replayed"]["faults"]) == (expected, 0)

    def commit(own: BlockwiseDrafter, outcome: Any) -> None:
        own.state = own.target.hidden[:, -1]

    monkeypatch.setattr(BlockwiseDrafter, "commit", commit)
    found = judged(tmp_path / "wrong", "blocks-strict", method, sampling=sampling)[0]
    assert found["verdict"] == "bug"
    assert "draft" in found["summary"]


class Unfiltered(SpeculativeSampling):
    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        return super().verify(proposal, target_logits, Sampling(temperature=sampling.temperature), uniforms)


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.6}], ids=["top-k", "top-p"])
def test_a_draft_that_its_filters_leave_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any]
) -> None:
    """Fault: the inner verification of a drafter that is drafted for lost its filters: "same distribution", at half the
    acceptance. No number that drew such a draft is written down, but none can have."""
    hot = SamplingSpec(temperature=1.5, **filters)
    found = judged(tmp_path / "right", "text-hierarchical-model", sampling=hot)[0]
    assert found["verdict"] == "same distribution"
    monkeypatch.setattr(speculative_model, "SpeculativeSampling", Unfiltered)
    found = judged(tmp_path / "wrong", "text-hierarchical-model", sampling=hot)[0]
    assert found["verdict"] == "bug"
    assert "draft" in found["summary"]


def test_seeds_are_said_again() -> None:
    arm = pinned_set(seed=7)["news-sampled"].arms[0]
    for repeat, window in product(range(2), range(3)):
        assert seed_said(7, "a name", repeat, window) == run_decode.seed_of(arm, "a name", repeat, window)


def test_nothing_is_replayed_of_beams_and_of_rules_of_which_no_bound_is_known() -> None:
    greedy, sampled = Sampling(temperature=0.0), Sampling(temperature=1.0)

    def by(rule: VerifyRule) -> DraftAndVerify:
        return DraftAndVerify(PerRow(RandomDrafter(9)), rule, lambda: Constant(1))

    for rule in (Lenience(0.5), SigmoidRule()):
        assert is_replayed(by(rule), greedy)
        assert is_replayed(by(rule), sampled)
    assert is_replayed(by(TopBeta()), greedy)
    half, drafters = by(SigmoidRule(half_logits=True)), by(TopBeta(score="as_described"))
    assert not any(is_replayed(*one) for one in ((half, sampled), (drafters, greedy), (BeamSearch(2), greedy)))
