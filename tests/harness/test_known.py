"""Known answers: the committed ones are given, and faults that no pinned comparison meets move them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.measures import of_run
from harness.models import loading, translation
from harness.models.loading import LoadedModel
from harness.report import known
from harness.report.known import SAMPLINGS, counted, decided, read, rounds, searched
from harness.report.regress import KNOWN, measure_known, moves, read_baseline, same
from kernels.verify import sigmoid
from kernels.verify.interface import Verdict
from methods.beam import BeamState
from methods.sampling import EndlessUniforms, Sampling
from methods.specdec import rules as specdec_rules
from methods.speculative import acceptance
from methods.speculative.engine_rules import Typical
from methods.speculative.rules import SpeculativeSampling
from methods.types import Proposal, Stop

Patch = pytest.MonkeyPatch
BASELINES = Path(__file__).resolve().parents[2] / "results" / "baselines"


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    return measure_known()


def test_the_committed_answers_are_given(given: dict[str, Any]) -> None:
    committed = read_baseline(BASELINES)[KNOWN]
    assert moves({KNOWN: committed}, {KNOWN: given}) == []


def test_every_rule_decides_and_all_its_ways_alike(given: dict[str, Any]) -> None:
    found = given["metrics"]
    assert {case.split(" (")[0].split(",")[0] for case in found} >= set(known.RULES)
    assert "its ways differ" not in found.values()


def test_exact_rules_decide_alike_where_they_draw(given: dict[str, Any]) -> None:
    """Fused, exact, baseline and reference decide by the same numbers: one hash; in several tiles too."""
    found = given["metrics"]
    for label, sampling in SAMPLINGS.items():
        names = ("speculative-sampling", "fused", "exact", "baseline")
        assert sampling.greedy or len({found[f"{name}, {label}"] for name in names}) == 1


def test_records_by_hand() -> None:
    """Plain: 10 tokens in 1 s of rounds, prompts of 0.3 to 0.6 s and 0.05 s beside; drafted: 10 in 0.75 s, 0.5 s and 0.05 s."""
    found = counted()
    assert found["speedup"] == pytest.approx(4 * 1.5 / (4 * 1.3))
    assert found["decode_speedup"] == pytest.approx(1 / 0.75)
    assert found["tokens_per_s"] == pytest.approx(10 / 1.3)
    assert found["ms_per_token"] == pytest.approx(130)
    assert found["tokens_per_s of two rows"] == pytest.approx(20 / 1.3)
    assert found["accepted_over_verified"] == pytest.approx(6 / (3 + 2 + 1 + 2))
    assert found["accepted_over_drafted"] == pytest.approx(6 / (3 + 3 + 2 + 2))
    assert found["position_conditional(2)"] == pytest.approx(2 / 3)
    assert found["position_joint(3)"] == pytest.approx(1 / 4)
    assert found["matches_per_step"] == pytest.approx((3 + 1 + 0 + 0 + 1) / 5)


def unfiltered_sigmoids(patch: Patch) -> None:
    whole = sigmoid._warp
    patch.setattr(sigmoid, "_warp", lambda logits, sampling: logits if sampling.temperature == 1 else whole(logits, sampling))


def typical_at_one(patch: Patch) -> None:
    verify = Typical.verify
    patch.setattr(
        Typical, "verify",
        lambda own, proposal, logits, sampling, uniforms: verify(
            own, proposal, logits, sampling if sampling.greedy else Sampling(temperature=1.0), uniforms
        ),
    )  # fmt: skip


def scores_not_normalised(patch: Patch) -> None:
    tolerates = specdec_rules.TopBeta._tolerates

    def raw(own: Any, proposal: Proposal, logits: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        if own.score == "verifier" or proposal.logits is None:
            return tolerates(own, proposal, logits, best)
        scores = proposal.logits.gather(-1, proposal.tokens.unsqueeze(-1))
        return (logits.log_softmax(-1).gather(-1, best) - scores <= own.tau).squeeze(-1)

    patch.setattr(specdec_rules.TopBeta, "_tolerates", raw)


def printed_cap_draws_its_own(patch: Patch) -> None:
    whole = specdec_rules._decided_on_host

    def decided_on_host(proposal: Proposal, best: torch.Tensor, tolerates: Any, cap: str) -> Verdict:
        verdict = whole(proposal, best, tolerates, cap)
        return replace(verdict, next_token=best.gather(-1, verdict.num_accepted[:, None])[:, 0])

    patch.setattr(specdec_rules, "_decided_on_host", decided_on_host)


def probabilities_of_the_wrong_place(patch: Patch) -> None:
    """Of what stands behind the first rejection: no decision shows it."""
    whole = SpeculativeSampling.verify

    def verify(own: SpeculativeSampling, proposal: Proposal, *given: Any) -> Verdict:
        verdict = whole(own, proposal, *given)
        places = torch.arange(verdict.target_probs.shape[1]) > verdict.num_accepted[:, None]
        return replace(verdict, target_probs=torch.where(places, verdict.target_probs.roll(1, 1), verdict.target_probs))

    patch.setattr(SpeculativeSampling, "verify", verify)


def two_beginnings(patch: Patch) -> None:
    patch.setattr(LoadedModel, "encode_continuation", lambda own, text: own.encode(text))


def first_end_alone(patch: Patch) -> None:
    whole = loading.eos_ids
    patch.setattr(known, "eos_ids", lambda source: whole(source)[:1])


def first_pieces_alone(patch: Patch) -> None:
    whole = translation._spelt_out

    def spelt_out(*given: Any) -> dict[int, tuple[int, ...]]:
        return {token: pieces[:1] for token, pieces in whole(*given).items()}

    patch.setattr(translation, "_spelt_out", spelt_out)


def louder(patch: Patch) -> None:
    whole = known.to_mono
    patch.setattr(known, "to_mono", lambda samples, rate: whole(2 * samples, rate))


def one_seed_for_all_windows(patch: Patch) -> None:
    whole = known.seed_of
    patch.setattr(known, "seed_of", lambda experiment, name, repeat, window: whole(experiment, name, repeat))


def same_numbers_inside(patch: Patch) -> None:
    patch.setattr(EndlessUniforms, "nested", lambda own: EndlessUniforms(own.seeds, own.length, own.table.device, own.level))


def too_few_beams(patch: Patch) -> None:
    begin = BeamState.__init__

    def two_a_beam(own: BeamState, num_beams: int, stop: Stop) -> None:
        begin(own, num_beams, stop)
        own.num_candidates = 2 * num_beams

    patch.setattr(BeamState, "__init__", two_a_beam)


def rounds_for_walls(patch: Patch) -> None:
    patch.setattr(of_run, "wall_s", of_run.rounds_s)


def drafted_for_verified(patch: Patch) -> None:
    patch.setattr(acceptance, "_num_verified", acceptance._num_drafted)


@pytest.mark.parametrize(
    ("fault", "rules", "moved"),
    [
        (unfiltered_sigmoids, ["sigmoid"], "sigmoid (scale 10.0), top-k 3"),
        (typical_at_one, ["typical"], "typical, T 0.5"),
        (scores_not_normalised, ["top-beta"], "top-beta (beta 2, tau 0.1, score as_described, cap released), greedy"),
        (printed_cap_draws_its_own, ["top-beta"], "top-beta (beta 2, tau 1.0, score verifier, cap printed), greedy"),
        (probabilities_of_the_wrong_place, ["speculative-sampling"], "speculative-sampling, T 1, probabilities"),
        (two_beginnings, [], "a chat's tokens"),
        (first_end_alone, [], "ends of a text"),
        (first_pieces_alone, [], "tokens of another vocabulary"),
        (louder, [], "two channels at 16000 Hz"),
        (one_seed_for_all_windows, [], "seed of repeat 0, window 1"),
        (same_numbers_inside, [], "EndlessUniforms, level 1"),
        (too_few_beams, [], "beams with three ends"),
        (rounds_for_walls, [], "speedup"),
        (drafted_for_verified, [], "position_conditional(2)"),
    ],
)
def test_a_fault_moves_its_answer(
    given: dict[str, Any], monkeypatch: Patch, fault: Callable[[Patch], None], rules: list[str], moved: str
) -> None:
    fault(monkeypatch)
    found = decided(rules) if rules else {**read(), **searched(), **counted()}
    assert not same(given["metrics"][moved], found[moved])


def test_rounds_are_ragged_and_of_both_kinds() -> None:
    found = rounds(SAMPLINGS["T 1"])
    assert [one[0].logits is None for one in found] == [False, True] * 2
    assert set(found[0][0].lengths) == {2, 3}
