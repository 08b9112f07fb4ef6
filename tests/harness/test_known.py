"""Known answers: the committed ones are given, and faults that no pinned comparison meets move them."""

import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from harness.advise import predict
from harness.advise import rounds as advise_rounds
from harness.cli import known_commands, run_experiments
from harness.core.experiment import DrafterSpec, MethodSpec
from harness.core.records import kind_of
from harness.exact import checks, controls, fit, law, run_verdict
from harness.exact.captured import greedy, two_samples
from harness.measures import definitions, frames, logs, of_run, paired_tests, pairing, pipelines, statistics, verdicts
from harness.measures.counts import Counts
from harness.measures.logs import plus_one, pooled
from harness.measures.statistics import ratio_of_examples as whole_ratio
from harness.models import loading, translation
from harness.models.loading import LoadedModel
from harness.papers.leviathan import speed
from harness.papers.specdec import quality
from harness.report import bench, grid, holding, relation
from harness.report.known import GROUPS, borders, decoding, inputs, judged, records
from harness.report.known import arms as known_arms
from harness.report.known import loops as known_loops
from harness.report.known import networks as known_networks
from harness.report.known import replays as known_replays
from harness.report.known import rules as known_rules
from harness.report.known.rules import SAMPLINGS, rounds
from harness.report.regress import COMMANDS, KNOWN, each_apart, moves, read_baseline, same
from harness.run import decode, divergence, peers, prompts, record
from harness.run.comparison import Prepared
from harness.run.instruments import ProfiledRule
from harness.run.replay import blocks as replay_blocks
from harness.run.replay import candidates as replay_candidates
from harness.run.replay import decisions as replay_decisions
from harness.run.replay import outputs, reading
from harness.tables import finding
from kernels.inputs import SamplingSpec
from kernels.layers.decoder import Decoder
from kernels.verify import fused, sigmoid
from kernels.verify.interface import Round, Verdict
from methods import beam, transformers_assisted, transformers_generate
from methods.beam import BeamState
from methods.models import whisper
from methods.models.llama import LlamaStack
from methods.ppd import heads, plans
from methods.ppd import theory as pipelined
from methods.ppd.units import Simulated
from methods.sampling import EndlessUniforms, Sampling, Uniforms
from methods.session import Source, SourceStates
from methods.specdec import drafter
from methods.specdec import rules as specdec_rules
from methods.specdec.blockwise import BlockwiseDrafter, BlockwiseHeads
from methods.speculative import acceptance, per_row, schedules, theory
from methods.speculative import beam as speculative_beam
from methods.speculative import decode as speculative_decode
from methods.speculative import translation as translated
from methods.speculative.decode import DraftAndVerify
from methods.speculative.engine_rules import Typical
from methods.speculative.model import HierarchicalDrafter
from methods.speculative.ngram import NGramTable
from methods.speculative.per_row import CopyDrafter, SuffixDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.static import LaidSource
from methods.steps import Step, Steps
from methods.transformers_generate import TransformersGenerate
from methods.types import Outcome, Proposal, Stop
from tasks import sound, speech, squad
from tasks import translation as translation_task
from tasks.sources import read as read_rows
from tasks.sources import rows
from tasks.text import Text

Patch = pytest.MonkeyPatch
Group = Callable[[], Mapping[str, Any]]
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "plugin-example" / "foretoken_example.py"
BASELINES = Path(__file__).resolve().parents[2] / "results" / "baselines"


@pytest.fixture(scope="module")
def told() -> dict[str, tuple[Group, Any]]:
    """Every answer, and the group that gives it: a fault has to make that one anew alone."""
    return {name: (group, one) for group in GROUPS for name, one in group().items()}


@pytest.fixture(scope="module")
def given(told: dict[str, tuple[Group, Any]]) -> dict[str, Any]:
    return {name: one for name, (_, one) in told.items()}


def test_the_committed_answers_are_given(given: dict[str, Any]) -> None:
    committed = read_baseline(BASELINES)[KNOWN]
    assert moves({KNOWN: committed}, {KNOWN: each_apart(given, "known")}) == []


def test_answers_are_of_the_projects_own_parts(told: dict[str, tuple[Group, Any]]) -> None:
    """Fault: a rule and a task of a plug-in that is installed were new numbers, and turned `make regress` red."""
    code = f"""if True:
        from harness.core import plugins
        plugins.load([{str(EXAMPLE)!r}])
        assert {{one.kind for one in plugins.known()}} >= {{"task", "rule"}}
        from harness.report.known import inputs, loops, rules
        print(sum(len(group()) for area in (inputs, loops, rules) for group in area.GROUPS))"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=EXAMPLE.parents[2])
    groups = (*inputs.GROUPS, *known_loops.GROUPS, *known_rules.GROUPS)
    assert int(ran.stdout) == sum(group in groups for group, _ in told.values())


def test_every_rule_decides_and_all_its_ways_alike(given: dict[str, Any]) -> None:
    found = given
    assert {case.split(" (")[0].split(",")[0] for case in found} >= set(known_rules.RULES)
    assert "its ways differ" not in found.values()


def test_exact_rules_decide_alike_where_they_draw(given: dict[str, Any]) -> None:
    """Fused, compiled or not, exact, baseline and reference decide by the same numbers: one hash; in several tiles too."""
    found = given
    for label, sampling in SAMPLINGS.items():
        names = ("speculative-sampling", "fused", "fused (backend torch)", "exact", "baseline")
        assert sampling.greedy or len({found[f"{name}, {label}"] for name in names}) == 1


def test_records_by_hand(given: dict[str, Any]) -> None:
    """Plain: 10 tokens in 1 s of rounds, prompts of 0.3 to 0.6 s and 0.05 s beside; drafted: 10 in 0.75 s, 0.5 s and 0.05 s."""
    found = given
    assert found["speedup"] == pytest.approx(4 * 1.5 / (4 * 1.3))
    assert found["decode_speedup"] == pytest.approx(1 / 0.75)
    assert found["tokens_per_s"] == pytest.approx(10 / 1.3)
    assert found["ms_per_token"] == pytest.approx(130)
    assert found["tokens_per_s of two rows"] == pytest.approx(20 / 1.3)
    assert found["pipeline: speedup"] == pytest.approx(4 * 1.5 / (4 * 1.64))
    assert found["tokens expected of lenience"] == pytest.approx((1 - 0.8**4) / (1 - 0.8))
    assert found["tokens expected of typical"] == "None"
    assert found["drafting: predicted_costs"] == pytest.approx(2.0 * 0.1 / (0.12 + 3 * 0.02 / 3 + 0.01), rel=0.05)
    assert found["definition accepted_over_verified"] == pytest.approx(6 / (3 + 2 + 1 + 2))
    assert found["definition accepted_over_drafted"] == pytest.approx(6 / (3 + 3 + 2 + 2))
    assert found["definition position 2, conditional"] == pytest.approx(2 / 3)
    assert found["definition position 3, joint"] == pytest.approx(1 / 4)
    assert found["definition transformers_n_matches"] == pytest.approx((3 + 1 + 0 + 0 + 1) / 5)


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
    patch.setattr(inputs, "eos_ids", lambda source: whole(source)[:1])


def first_pieces_alone(patch: Patch) -> None:
    whole = translation._spelt_out

    def spelt_out(*given: Any) -> dict[int, tuple[int, ...]]:
        return {token: pieces[:1] for token, pieces in whole(*given).items()}

    patch.setattr(translation, "_spelt_out", spelt_out)


def louder(patch: Patch) -> None:
    whole = inputs.to_mono
    patch.setattr(inputs, "to_mono", lambda samples, rate: whole(2 * samples, rate))


def one_seed_for_all_windows(patch: Patch) -> None:
    whole = inputs.seed_of
    patch.setattr(inputs, "seed_of", lambda experiment, name, repeat, window: whole(experiment, name, repeat))


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


def languages_exchanged(patch: Patch) -> None:
    patch.setattr(translation_task, "SHOTS", {"en": translation_task.SHOTS["de"], "de": translation_task.SHOTS["en"]})
    patch.setattr(inputs, "TASKS", {"wmt-en-de": inputs.TASKS["wmt-en-de"]})


def text_cut_at_its_end(patch: Patch) -> None:
    patch.setattr(Text, "continues_prompt", False)


def braces_kept(patch: Patch) -> None:
    patch.setattr(prompts, "rendered", lambda task, example, asked: asked.prompt_template or task.prompt(example, "t5"))


def windows_further_apart(patch: Patch) -> None:
    patch.setattr(inputs, "starts_of", lambda num_samples, size: range(0, max(1, num_samples - size + size), size))


def windows_left_late(patch: Patch) -> None:
    whole = decode._change_over
    patch.setattr(decode, "_change_over", lambda left, right: (whole(left, right)[0], max(0, whole(left, right)[1] - 1)))


def earlier_windows_left_early(patch: Patch) -> None:
    """Fault: the middle of what agrees, where the second window begins before the first does."""
    whole = decode._change_over

    def left_early(left: list[int], right: list[int]) -> tuple[int, int]:
        cut_left, cut_right = whole(left, right)
        return cut_left, (cut_left + cut_right) // 2 if cut_right > cut_left else cut_right

    patch.setattr(decode, "_change_over", left_early)


def drafts_a_place_early_where_all_stood(patch: Patch) -> None:
    """Fault: the compiled call reads two tokens, after a round of which every draft stood, a place too early."""
    whole = Decoder.draft

    def early(own: Decoder, fed: Any, num_layers: int, cached: Any, start: int, *given: Any) -> Any:
        return whole(own, fed, num_layers, cached, start - (len(fed) > 1), *given)

    patch.setattr(Decoder, "draft", early)


def lenience_of_the_draft(patch: Patch) -> None:
    def acceptance_of(target: torch.Tensor, probs: torch.Tensor, sampling: Sampling, lenience: float) -> torch.Tensor:
        return torch.minimum(sampling.probs(target), probs / lenience).sum(-1)

    patch.setattr(known_rules, "acceptance", acceptance_of)


def heads_in_the_order_of_the_file(patch: Patch) -> None:
    whole = heads.load_file
    patch.setattr(heads, "load_file", lambda path: dict(zip(whole(path), reversed(whole(path).values()), strict=True)))


def without_the_state(patch: Patch) -> None:
    whole = BlockwiseHeads.forward
    patch.setattr(BlockwiseHeads, "forward", lambda own, hidden: whole(own, hidden) - hidden.unsqueeze(-2))


def cut_not_rounded(patch: Patch) -> None:
    patch.setattr(torch.Tensor, "round_", torch.Tensor.trunc_)


def ends_of_the_configuration(patch: Patch) -> None:
    whole = loading.eos_ids
    patch.setattr(loading, "eos_ids", lambda source: () if isinstance(source, GenerationConfig) else whole(source))


def first_end_alone_stops(patch: Patch) -> None:
    whole = decode.Stop

    def first_alone(*, max_new_tokens: int, token_ids: frozenset[int]) -> Stop:
        return whole(max_new_tokens=max_new_tokens, token_ids=frozenset(sorted(token_ids)[:1]))

    patch.setattr(decode, "Stop", first_alone)


def failures_left_out(patch: Patch) -> None:
    whole = of_run.failed_frac
    patch.setattr(records, "failed_frac", lambda rows: whole(of_run.succeeded(rows)))


def begins_with_anything(patch: Patch) -> None:
    whole = whisper._tokens
    patch.setattr(whisper, "_tokens", lambda of, name, size: () if name.startswith("begin") else whole(of, name, size))


def filtered_by_default(patch: Patch) -> None:
    whole = transformers_generate._drawn
    patch.setattr(transformers_generate, "_drawn", lambda sampling: whole(sampling) | {"top_k": sampling.top_k or 50})


def assistants_stop_early(patch: Patch) -> None:
    whole, changed = transformers_assisted._how_many, {"assistant_confidence_threshold": 0.4}  # transformers' default
    patch.setattr(transformers_assisted, "_how_many", lambda gamma, schedule: whole(gamma, schedule) | changed)


def numbers_of_the_first_row(patch: Patch) -> None:
    whole = TransformersGenerate.generate

    def generate(own: Any, session: Any, given: Any, sampling: Any, uniforms: Uniforms, stop: Stop) -> Any:
        return whole(own, session, given, sampling, Uniforms([uniforms.seeds[0]] * len(uniforms.seeds), uniforms.length), stop)

    patch.setattr(TransformersGenerate, "generate", generate)


def repeats_drawn_apart(patch: Patch) -> None:
    patch.setattr(records, "ratio_of_examples", lambda rows: whole_ratio([(f"{i}", *row[1:]) for i, row in enumerate(rows)]))


def strict_alpha_of_lenience(patch: Patch) -> None:
    whole = speed.memory_access_factor_eq1
    patch.setattr(
        speed,
        "memory_access_factor_eq1",
        lambda experiment, found: whole(experiment, found | {"alpha_overlap_lenient": found["alpha_overlap"]}),
    )


def prompts_left_out(patch: Patch) -> None:
    whole = pipelines._values
    patch.setattr(pipelines, "_values", lambda record, layers, simulated: whole(record, layers, simulated=True))


def plain_rounds_counted(patch: Patch) -> None:
    changed = [
        replace(one, measure=plus_one(pooled(definitions.ALL_ROUNDS))) if one.name == "vllm_mean_acceptance_length" else one
        for one in definitions.DEFINITIONS
    ]
    patch.setattr(definitions, "DEFINITIONS", changed)


def prompts_without_their_first_token(patch: Patch) -> None:
    whole = translated.TranslatedSession.prefill
    patch.setattr(
        translated.TranslatedSession,
        "prefill",
        lambda own, given: whole(own, replace(given, prompts=tuple(prompt[1:] for prompt in given.prompts))),
    )


def late_ends_kept(patch: Patch) -> None:
    """An end that is ranked behind the beams is finalized too."""
    whole = BeamState.take

    def take(own: BeamState, candidates: list[Any]) -> Any:
        beams, late = own.beams, candidates[own.num_beams :]
        chosen = whole(own, candidates)
        for score, parent, token in late:
            if token in own.stop.token_ids:
                own._finalize(score, (*beams[parent], token))
        return chosen

    patch.setattr(BeamState, "take", take)


def last_share_alone(patch: Patch) -> None:
    """A chain's shares are no products."""
    whole = per_row.SuffixDrafter._chain

    def chain(own: Any, text: Any, starts: list[int], room: int) -> tuple[list[int], float]:
        found, expected = list[int](), 0.0
        while len(found) < room:
            token, share = whole(own, text, starts, 1)
            starts = [start + 1 for start in starts if start + 1 < len(text) and text[start : start + 1] == token]
            if not token:
                break
            found += token
            expected += share
        return found, expected

    patch.setattr(per_row.SuffixDrafter, "_chain", chain)


def inner_places_of_the_first_row(patch: Patch) -> None:
    whole = HierarchicalDrafter._round

    def as_the_first(own: HierarchicalDrafter, positions: list[int], *given: Any) -> None:
        moved = [place + len(own.drafted[0]) - len(row) for place, row in zip(positions, own.drafted, strict=True)]
        whole(own, moved, *given)

    patch.setattr(HierarchicalDrafter, "_round", as_the_first)


def as_many_beams_are_the_sources(patch: Patch) -> None:
    """As many rows as there are sources are taken for these sources: beams of few rows of a batch, once others have ended."""
    arrange = Source._arrange

    def arranged(own: Source, sources: list[int]) -> None:
        arrange(own, sources)
        if len(sources) == own._stored.shape[1]:
            own.view = SourceStates(own._stored, own._mask)

    patch.setattr(Source, "_arrange", arranged)


def two_inner_drafts(patch: Patch) -> None:
    begin = HierarchicalDrafter.__init__
    patch.setattr(HierarchicalDrafter, "__init__", lambda own, session, inner, inner_draft: begin(own, session, inner, 2))


def drafting_left_out_of_drafting(patch: Patch) -> None:
    whole = speculative_decode._stamp
    patch.setattr(speculative_decode, "_stamp", lambda rows, draft_s, verify_s, *s: whole(rows, 0.0, verify_s + draft_s, *s))


def misses_for_matches(patch: Patch) -> None:
    whole = plans.expected_latency
    patch.setattr(
        plans, "expected_latency", lambda depth, early, length, rate, costs: whole(depth, early, length, 1 - rate, costs)
    )


def a_last_draft_not_counted(patch: Patch) -> None:
    whole = transformers_assisted.rounds

    def rounds_of(*given: Any) -> list[Any]:
        steps = whole(*given)
        return [replace(one, num_accepted=min(one.num_accepted, one.emitted - 1)) for one in steps]

    patch.setattr(transformers_assisted, "rounds", rounds_of)


def rows_of_one_seed(patch: Patch) -> None:
    whole = read_rows._ordered
    patch.setattr(read_rows, "_ordered", lambda chosen, seed: whole(chosen, 0))


def one_answer_alone(patch: Patch) -> None:
    whole = squad.DATASET.example

    def first(*given: Any) -> Any:
        found = whole(*given)
        return replace(found, references=found.references[:1])

    patch.setattr(squad.Squad, "dataset", replace(squad.DATASET, example=first))


def letters_for_bytes(patch: Patch) -> None:
    whole = inputs.score_reference
    patch.setattr(inputs, "score_reference", lambda *given: replace(whole(*given), num_bytes=len(given[3])))


def last_token_began_early(patch: Patch) -> None:
    patch.setattr(
        pipelined, "latency", lambda depth, early, count, rate: depth * count - (depth - early) * count * np.asarray(rate)
    )


def drafts_for_tokens(patch: Patch) -> None:
    patch.setattr(theory, "operations_factor", lambda alpha, gamma: gamma / theory.expected_tokens(alpha, gamma))


def layers_counted_from_the_first(patch: Patch) -> None:
    whole = plans._costs
    patch.setattr(plans, "_costs", lambda steps, num_layers: whole([replace(one, early_layer=0) for one in steps], num_layers))


def one_name_for_all_leniences(patch: Patch) -> None:
    whole = of_run.alpha_overlap
    patch.setattr(of_run, "alpha_overlap", lambda rows, drafter, lenience: whole(rows, drafter, 1.0))


def one_sided(patch: Patch) -> None:
    whole = paired_tests.all_signs
    patch.setattr(paired_tests, "all_signs", lambda ranks, positive: whole(ranks, positive) / 2)


def no_test_among_others(patch: Patch) -> None:
    patch.setattr(paired_tests, "holm", lambda chances, error: {name for name, one in chances.items() if one <= error})


def replicas_taken_for_one(patch: Patch) -> None:
    patch.setattr(statistics, "replicas_of", lambda units: [])


def as_free_as_there_are_examples(patch: Patch) -> None:
    patch.setattr(statistics, "freedom_of", lambda without: len(without) - 1)


def past_the_whole(patch: Patch) -> None:
    whole = statistics.spread

    def unbounded(value: Any, draws: Any, without: Any, unit: str = "", least: Any = 0.0, most: Any = None) -> Any:
        return whole(value, draws, without, unit, least)

    patch.setattr(statistics, "spread", unbounded)


def apart_by_replicas(patch: Patch) -> None:
    patch.setattr(statistics, "_shared_names", lambda *arms: arms)


def of_any_device(patch: Patch) -> None:
    whole = verdicts.place_of
    patch.setattr(verdicts, "place_of", lambda experiment: whole(experiment.replace(device="cpu")))


def of_any_dtype(patch: Patch) -> None:
    whole = verdicts.place_of
    patch.setattr(verdicts, "place_of", lambda experiment: whole(experiment.replace(dtype="float64")))


def sees_with_any_test(patch: Patch) -> None:
    patch.setattr(verdicts, "BLIND", ("nothing ",))


def near_by_a_probability(patch: Patch) -> None:
    patch.setattr(divergence, "draw_off", lambda laws, tokens, number: laws.max() - laws.gather(-1, tokens[:, None]).sum())


def windows_after_the_first_not_heard(patch: Patch) -> None:
    whole = record.overlap
    heard = list[Any]()

    def first_window(session: Any, drafters: Any, given: Any, *rest: Any) -> Any:
        heard.append(given)
        return whole(session, drafters, heard[0], *rest)

    patch.setattr(record, "overlap", first_window)


def ends_as_its_first_window(patch: Patch) -> None:
    whole = decode._strung
    patch.setattr(decode, "_strung", lambda parts: replace(whole(parts), stop_reason=parts[0].stop_reason))


def rounds_end_with_verification(patch: Patch) -> None:
    stamp = speculative_decode._stamp
    patch.setattr(
        speculative_decode,
        "_stamp",
        lambda rows, draft_s, verify_s, round_s: stamp(rows, draft_s, verify_s, draft_s + verify_s),
    )


def laws_in_half_precision(patch: Patch) -> None:
    patch.setattr(Sampling, "probs", lambda own, logits: (logits / own.temperature).softmax(-1))


def beams_in_half_precision(patch: Patch) -> None:
    patch.setattr(decoding, "next_log_probs", lambda session, tokens, device: session.extend(tokens)[:, -1].log_softmax(-1))


def norms_in_half_precision(patch: Patch) -> None:
    def rms_norm(weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda hidden: hidden * (hidden.square().mean(-1, keepdim=True) + eps).rsqrt() * weight

    patch.setattr(decoding, "rms_norm", rms_norm)


def blocks_begin_a_token_late(patch: Patch) -> None:
    whole = drafter.block_logits

    def block_logits(stack: Any, source: Any, text: torch.Tensor, lengths: Any) -> torch.Tensor:
        return whole(stack, source, text, [length - (lengths[0] > 1) for length in lengths])

    patch.setattr(drafter, "block_logits", block_logits)


def prompts_and_beginnings_exchanged(monkeypatch: Patch) -> None:
    begin = DraftAndVerify._begin

    def exchanged(*given: Any) -> Any:
        pending, first, second = begin(*given)
        return pending, second, first

    monkeypatch.setattr(DraftAndVerify, "_begin", exchanged)


def repeats_scored_as_examples(monkeypatch: Patch) -> None:
    own = of_run.of_task
    monkeypatch.setattr(of_run, "of_task", lambda task, arm: own(task, [replace(one, repeat=0) for one in arm]))


def batches_drawn_by_row(monkeypatch: Patch) -> None:
    monkeypatch.setattr(pairing, "batches_of", lambda arm: {one.key: one.example for one in arm})


def shares_of_nothing_unbounded(monkeypatch: Patch) -> None:
    own = statistics.bounded
    monkeypatch.setattr(statistics, "bounded", lambda found, *given: found if found.value == 0 else own(found, *given))


def ends_in_their_order(monkeypatch: Patch) -> None:
    own = statistics.Estimate.mapped

    def as_they_come(one: statistics.Estimate, change: Callable[[float], float], unit: str = "") -> statistics.Estimate:
        found = own(one, change, unit)
        return replace(
            found, low=None if one.low is None else change(one.low), high=None if one.high is None else change(one.high)
        )

    monkeypatch.setattr(statistics.Estimate, "mapped", as_they_come)


def five_drafts_for_every_peer(monkeypatch: Patch) -> None:
    own = peers._assisted
    five = MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=5)
    monkeypatch.setattr(peers, "_assisted", lambda drafter, ours, **more: own(drafter, five, **more))


def noise_left_out(monkeypatch: Patch) -> None:
    monkeypatch.setattr(greedy, "found_share", lambda n, level, noise: two_samples.found_share(n, level))


def references_cut(monkeypatch: Patch) -> None:
    own = inputs.log_prob
    monkeypatch.setattr(inputs, "log_prob", lambda session, given, text: own(session, given, text[:256]))


def wider_bounds(monkeypatch: Patch) -> None:
    own = reading._reading
    monkeypatch.setattr(reading, "_reading", lambda logits, margin, *given: own(logits, 4 * margin, *given))


def verified_behind_the_drafts(monkeypatch: Patch) -> None:
    def verified(own: Counts) -> int | None:
        lengths = own.lengths
        return lengths and sum(count * (stand + 1) for row in lengths.values() for stand, count in enumerate(row))

    monkeypatch.setattr(Counts, "verified", property(verified))


def the_other_way_round(monkeypatch: Patch) -> None:
    own = peers.speedup
    monkeypatch.setattr(peers, "speedup", lambda first, second: own(second, first))


def padding_that_is_read(monkeypatch: Patch) -> None:
    hold = LaidSource.hold

    def unmasked(own: LaidSource, source: Any) -> None:
        hold(own, source)
        assert own.view.mask is not None
        with torch.inference_mode():
            own.view.mask.zero_()

    monkeypatch.setattr(LaidSource, "hold", unmasked)


def rounding_explains_all(monkeypatch: Patch) -> None:
    monkeypatch.setattr(judged, "kind_of", lambda agree, margin, bound: kind_of(agree, None, None))


def prompts_without_the_assistants_turn(monkeypatch: Patch) -> None:
    own = PreTrainedTokenizerBase.apply_chat_template

    def without(*given: Any, **more: Any) -> Any:
        return own(*given, **more | {"add_generation_prompt": False})

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", without)


def cut_texts_spelled_out(monkeypatch: Patch) -> None:
    encode = prompts._encode

    def spelled(task: Any, example: Any, *given: Any) -> Any:
        inputs = {name: text if " " in text else " ".join(text) for name, text in example.inputs.items()}
        return encode(task, replace(example, inputs=inputs), *given)

    monkeypatch.setattr(prompts, "_encode", spelled)


def shorter_ends(monkeypatch: Patch) -> None:
    monkeypatch.setattr(per_row.SuffixDrafter, "MAX_MATCH", 12)


def nothing_counts_as_evidence(monkeypatch: Patch) -> None:
    own = statistics.bounded
    monkeypatch.setattr(statistics, "bounded", lambda found, whole, _: own(found, whole, found.n))


def fewer_drafts_are_swept(monkeypatch: Patch) -> None:
    monkeypatch.setattr(schedules, "swept", lambda gamma: tuple(n for n in range(1, gamma + 1) if n <= 6 or n % 2 == 0))


def all_alike_behind_the_unknown(monkeypatch: Patch) -> None:
    own = NGramTable.bigram_log_probs

    def alike(table: NGramTable, context: int) -> torch.Tensor:
        is_known = int(table.indptr[context]) < int(table.indptr[context + 1])
        return own(table, context) if is_known else torch.zeros(table.vocab_size)

    monkeypatch.setattr(NGramTable, "bigram_log_probs", alike)


def blockwise_laws_begin_early(monkeypatch: Patch) -> None:
    own = BlockwiseDrafter.teacher_probs
    monkeypatch.setattr(BlockwiseDrafter, "teacher_probs", lambda *given: list(own(*given))[1:])


def few_seeds(monkeypatch: Patch) -> None:
    own = transformers_generate.random_numbers
    monkeypatch.setattr(transformers_generate, "random_numbers", lambda seed, device: own(seed % 2**8, device))


def twice_the_tokens_in_what_is_missed(monkeypatch: Patch) -> None:
    own = two_samples._missed_tv

    def of_twice(feature: two_samples.Feature, *given: Any) -> float | None:
        totals = None if feature.totals is None else 2 * feature.totals
        return own(replace(feature, totals=totals), *given)

    monkeypatch.setattr(two_samples, "_missed_tv", of_twice)


def replays_of_any_arm(monkeypatch: Patch) -> None:
    own = judged.judge_run
    monkeypatch.setattr(judged, "judge_run", lambda arms, both, *given: own(arms, [both[0], [*both[0], *both[1]]], *given))


def looser_laws(patch: Patch) -> None:
    patch.setattr(law, "LAW_BOUND", 1e-3)


def weak_tests_are_strong(patch: Patch) -> None:
    whole = fit._found_with_power
    patch.setattr(fit, "_found_with_power", lambda *given: whole(*given) / 2)


def distances_twice_as_far(patch: Patch) -> None:
    whole = checks._distance
    twice = lambda rows: [(name, 2 * value, number) for name, value, number in rows]  # noqa: E731
    patch.setattr(checks, "_distance", lambda variation, nats, **told: whole(twice(variation), nats, **told))


def what_was_not_tested_is_least(patch: Patch) -> None:
    whole = verdicts._badness
    patch.setattr(verdicts, "_badness", lambda row: (False, -1) if row["verdict"] == "not tested" else whole(row))


def time_over_a_threads(patch: Patch) -> None:
    patch.setattr(borders, "on_processor", lambda arm, thread_s, wall_s: min(1.0, wall_s / max(thread_s, 1e-9)))


def replicas_of_the_same_examples(patch: Patch) -> None:
    whole = prompts.examples_of
    patch.setattr(borders, "examples_of", lambda one: whole(one.replace(replica=None, replicas=1)))


def rows_by_their_capitals(patch: Patch) -> None:
    patch.setattr(rows, "plain_words", lambda text: " ".join(text.split()))


def cool_is_greedy(patch: Patch) -> None:
    patch.setattr(SamplingSpec, "greedy", property(lambda own: own.temperature < 0.1))


def freedom_of_the_surer(patch: Patch) -> None:
    whole = statistics.independent_students
    patch.setattr(statistics, "independent_students", lambda one, other: whole(one, replace(other, freedom=99)) and other)


def as_sure_as_there_are_examples(patch: Patch) -> None:
    patch.setattr(finding, "_freedom", lambda number: number.n - 1)


def candidates_begin_when_others_end(patch: Patch) -> None:
    whole = Simulated.post

    def wrong(own: Simulated, tokens: list[int], length: int, num_layers: int) -> None:
        before = own._ahead
        whole(own, tokens, length, num_layers)
        own._ahead = before + own._times[-1] - own._times[-2]  # the last one's time alone

    patch.setattr(Simulated, "post", wrong)


def nothing_waited_for(patch: Patch) -> None:
    patch.setattr(Simulated, "wait", lambda own, slot: own._hidden[slot])


def times_of_all_texts(patch: Patch) -> None:
    whole = ProfiledRule._reset
    patch.setattr(ProfiledRule, "_reset", lambda own: None if hasattr(own, "_wall_s") else whole(own))


def copies_of_the_output_alone(patch: Patch) -> None:
    patch.setattr(per_row, "opening", lambda prompt, pending: [pending])


def a_draft_less_of_every_row(patch: Patch) -> None:
    whole = BlockwiseDrafter.commit

    def wrong(own: BlockwiseDrafter, outcome: Outcome) -> None:
        whole(own, replace(outcome, num_accepted=tuple(max(0, count - 1) for count in outcome.num_accepted)))

    patch.setattr(BlockwiseDrafter, "commit", wrong)


def learned_from_what_is_tested(patch: Patch) -> None:
    patch.setattr(read_rows, "_content", lambda example: object())


def operations_draw_by_another_number(patch: Patch) -> None:
    """The fused kernel where no loop was compiled: only known answers ask for it on a machine that compiles."""
    whole = fused._verify_one

    def wrong(round: Round, entry: int, tokens: list[int], uniforms: list[float], known: Any) -> Any:
        return whole(round, entry, tokens, [*uniforms[:-1], 1 - uniforms[-1]], known)

    patch.setattr(fused, "_verify_one", wrong)


def positions_counted_in_half(patch: Patch) -> None:
    """The rotary table is made of positions that bfloat16 has no numbers for, beyond 256."""
    whole, counted = LlamaStack.rotary, torch.arange

    def wrong(self: LlamaStack, end: int) -> torch.Tensor:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(torch, "arange", lambda *given, **named: counted(*given, **named).to(self.dtype))
            return whole(self, end)

    patch.setattr(LlamaStack, "rotary", wrong)


def refused_as_they_are(patch: Patch) -> None:
    whole = replay_decisions.choices

    def wrong(*given: Any, **named: Any) -> Any:
        return (one._replace(off=0.0) if one.what == "rejection" else one for one in whole(*given, **named))

    patch.setattr("harness.report.known.replays.choices", wrong)


def a_draft_more_is_none(patch: Patch) -> None:
    whole = replay_decisions.overdrafted
    patch.setattr("harness.report.known.replays.overdrafted", lambda *given: (one for one in whole(*given) if one.off > 1))


def a_token_more_a_round(patch: Patch) -> None:
    whole = replay_decisions.miscounted
    patch.setattr("harness.report.known.replays.miscounted", lambda steps: whole(
        [replace(one, emitted=one.emitted - (one.emitted > one.num_accepted)) for one in steps]))  # fmt: skip


def looser_statements(patch: Patch) -> None:
    patch.setattr(replay_decisions, "STATED", 1.0)


def unknown_is_right(patch: Patch) -> None:
    patch.setattr(replay_decisions.Decision, "is_fault", property(lambda own: own.off > own.bound))


def a_token_short_is_whole(patch: Patch) -> None:
    whole = outputs.parts_of
    patch.setattr(outputs, "parts_of", lambda tokens, ends, budget: whole([*tokens, 7], ends, budget))


def a_nat_a_window(patch: Patch) -> None:
    patch.setattr("harness.run.replay.reading.Reading.nats", lambda own, tokens: 1.0)


def a_third_candidate(patch: Patch) -> None:
    patch.setattr(replay_candidates, "NEAR_TIE_FLOAT32", 1e3)


def mean_deviations(patch: Patch) -> None:
    patch.setattr(torch.Tensor, "amax", lambda own, dim: own.mean(dim))


def unknown_laws(patch: Patch) -> None:
    patch.setattr(torch.Tensor, "nan_to_num", lambda own, nan=0.0: own)


def the_first_arm_first(patch: Patch) -> None:
    whole = Prepared.in_turn
    patch.setattr(Prepared, "in_turn", lambda own, chunk, decode: whole(own, SimpleNamespace(
        turn=chunk.repeat, lacking=chunk.lacking), decode))  # fmt: skip


def overlaps_from_one(patch: Patch) -> None:
    columns, whole = frames.ROWS["overlap"]
    rows = lambda record: ({**row, "position": row["position"] + 1} for row in whole(record))  # noqa: E731
    patch.setitem(frames.ROWS, "overlap", (columns, rows))


def rounds_without_drafts_in_histograms(patch: Patch) -> None:
    whole = logs.steps_of
    patch.setattr(logs, "steps_of", lambda record: [replace(one, drafted=one.drafted or [0]) for one in whole(record)])


def a_draft_more_at_the_end(patch: Patch) -> None:
    whole = predict.replayed
    patch.setattr(predict, "replayed", lambda stands, empty, gamma, budget: whole(stands, empty, gamma, budget + 1))


def budgets_of_other_ends(patch: Patch) -> None:
    patch.setattr(known_arms, "budget_of", lambda row, most: most if row.stop_reason == "length" else len(row.tokens))


def last_rounds_count_as_empty(patch: Patch) -> None:
    whole = advise_rounds.steps_of
    patch.setattr(advise_rounds, "steps_of", lambda record: [*whole(record), Step([], 0, 1)])


def tokens_for_rounds(patch: Patch) -> None:
    patch.setattr(bench, "num_rounds", lambda arm: sum(sum(one.steps.emitted) for one in arm if one.steps is not None))


def peers_beside_anything(patch: Patch) -> None:
    patch.setattr(peers, "Missing", type("Nobody", (), {}))


def music_is_scored(patch: Patch) -> None:
    patch.setattr(speech, "NOT_SCORED", "nothing")


class FirstRepeat(random.Random):
    def randrange(self, *given: Any) -> int:
        return 0


def replays_of_the_first_repeat(patch: Patch) -> None:
    patch.setattr("harness.run.comparison.random", SimpleNamespace(Random=FirstRepeat))


def replays_of_one_arm(patch: Patch) -> None:
    whole, first = divergence._replay, list[Any]()

    def wrong(arm: Any, *given: Any) -> list[int]:
        first.append(arm)
        return whole(first[0], *given)

    patch.setattr(divergence, "_replay", wrong)


def batches_beside_themselves(patch: Patch) -> None:
    patch.setattr(judged._Recorded, "records", lambda own, experiment, whole=judged._Recorded.records: whole(
        own, experiment.replace(batch_size=4)))  # fmt: skip


def intervals_from_31_on(patch: Patch) -> None:
    patch.setattr(statistics, "DESCRIPTIVE", 31)


def few_of_one_process_not_judged(patch: Patch) -> None:
    whole = pairing.drift
    patch.setattr(pairing, "drift", lambda seconds: 0.0 if len(seconds) < pairing.JUDGED else whole(seconds))


def theory_of_lenient_rules(patch: Patch) -> None:
    patch.setattr(grid.Point, "follows_theory", property(lambda own: True))


def first_numbers_alone(patch: Patch) -> None:
    """A printed number that stands beside several of ours counts by the first, whether that can be compared or not."""
    whole = relation.tally

    def tally(judged: Any) -> Any:
        first = {one.cell.place or str(number): one for number, one in reversed(list(enumerate(judged)))}
        return whole(list(first.values()))

    patch.setattr(relation, "tally", tally)


def rests_of_one_sign(patch: Patch) -> None:
    """Costs that leave less than nothing of a speed are not refused, whatever they leave."""
    whole = speed.unexplained
    patch.setattr(speed, "unexplained", lambda found: None if found["residual_unexplained"].value < 0 else whole(found))


def printed_numbers_of_both_signs(patch: Patch) -> None:
    """A printed number that stands beside several of ours counts though some have its sign and some not."""
    whole = finding.beside_papers
    apart = lambda decided: [one._replace(place=f"{one.place}{place}") for place, one in enumerate(decided)]  # noqa: E731
    patch.setattr(borders, "beside_papers", lambda decided, *given: whole(apart(decided), *given))


def positions_of_a_block_less(patch: Patch) -> None:
    whole = drafter.DrafterAlone.generate

    def generate(own: Any, target: Any, inputs: Any, sampling: Any, uniforms: Any, stop: Stop, clock: Any = None) -> Any:
        most = own.drafter.stack.position_limit - own.drafter.stack.block_size
        return whole(
            own, target, inputs, sampling, uniforms, replace(stop, max_new_tokens=min(stop.max_new_tokens, most)), clock
        )

    patch.setattr(drafter.DrafterAlone, "generate", generate)


def a_stop_more(patch: Patch) -> None:
    whole = pairing.torn
    another = lambda one: replace(one, run="another", example="another")  # noqa: E731
    patch.setattr(pairing, "torn", lambda plain, method: whole([*plain, another(plain[0])], method))


def best_by_another_score(patch: Patch) -> None:
    patch.setitem(quality.BY_TITLE, "BLEU", quality.BY_TITLE["sacreBLEU"])


def twice_as_many_small_chances(patch: Patch) -> None:
    patch.setattr(checks, "NOMINAL", 2 * checks.NOMINAL)


def a_choice_more_is_good_enough(patch: Patch) -> None:
    whole = specdec_rules.TopBeta._tolerates

    def looser(own: Any, *given: Any) -> torch.Tensor:
        other = copy(own)
        other.beta += 1
        return whole(other, *given)

    patch.setattr(specdec_rules.TopBeta, "_tolerates", looser)


def tensors_decide_otherwise(patch: Patch) -> None:
    whole = specdec_rules._decided_on_device
    patch.setattr(
        specdec_rules, "_decided_on_device", lambda proposal, best, stands, cap: whole(proposal, best, stands | True, cap)
    )


def first_draws_alone(patch: Patch) -> None:
    whole = known_replays.draws
    patch.setattr(known_replays, "draws", lambda what, positions, tokens, *given: list(
        whole(what, positions, tokens, *given))[: replay_decisions.ROWS])  # fmt: skip


def chances_for_their_width(patch: Patch) -> None:
    patch.setattr(replay_blocks.Interval, "width", property(lambda own: own.high))


def statements_not_looked_at(patch: Patch) -> None:
    patch.setattr(replay_blocks, "_whole", lambda step: replay_blocks.Interval(0.0, 1.0))


def rules_decide_alone(patch: Patch) -> None:
    patch.setattr(checks, "ways_of", lambda rule, device: [rule])


def rows_not_tested(patch: Patch) -> None:
    whole = known_replays.stream_fits
    patch.setattr(known_replays, "stream_fits", lambda uniforms, level: [
        name for name in whole(uniforms, level) if "rows" not in name])  # fmt: skip


def controls_strike_anywhere(patch: Patch) -> None:
    patch.setattr(controls._Control, "can_strike", lambda own, device, limit: True)


def weak_checks_catch(patch: Patch) -> None:
    patch.setattr(known_replays, "CAUGHT", (*controls.CAUGHT, "not tested"))


def all_tokens_are_possible(patch: Patch) -> None:
    patch.setattr(run_verdict, "widened", lambda sampling: Sampling(temperature=1.0))


def equal_ranks(patch: Patch) -> None:
    patch.setattr(known_networks, "rank_of", lambda logits, tokens: (logits > logits.gather(1, tokens[:, None])).sum(1))


def theory_of_blocks(patch: Patch) -> None:
    patch.setattr(DrafterSpec, "model_kind", "language")


def drafts_of_any_rounding(patch: Patch) -> None:
    patch.setattr(DrafterSpec, "models", [])


def drafts_of_drafts_of_any_rounding(patch: Patch) -> None:
    patch.setattr(DrafterSpec, "models", property(lambda own: [own.model]))


def texts_by_their_ends(patch: Patch) -> None:
    whole = known_networks.shared_length
    patch.setattr(known_networks, "shared_length", lambda first, second: whole(first[-128:], second[-128:]))


def copies_of_what_is_near(patch: Patch) -> None:
    for kind in (CopyDrafter, SuffixDrafter):
        propose = kind.propose
        patch.setattr(kind, "propose", lambda own, text, *given, propose=propose: propose(own, text[-256:], *given))


def laws_of_rows_at_temperature_one(patch: Patch) -> None:
    whole = per_row._first_law
    plain = Sampling(temperature=1.0)
    patch.setattr(per_row, "_first_law", lambda proposal, size: whole(replace(proposal, sampling=plain), size))


def ends_of_windows_forgotten(patch: Patch) -> None:
    def of(steps: Any, whole: Any = Steps.of) -> Steps:
        found = whole(steps)
        found.stop_reason = []
        return found

    patch.setattr(Steps, "of", of)


def the_first_window_s_text(patch: Patch) -> None:
    whole = divergence._window_at
    patch.setattr(divergence, "_window_at", lambda *given: (whole(*given)[0], []))


def beams_of_rounded_laws(patch: Patch) -> None:
    patch.setattr(beam, "log_probs_of", lambda logits: logits.log_softmax(-1))


def windows_scored_one_after_another(patch: Patch) -> None:
    patch.setattr(record, "text_of", lambda experiment, prompt, tokens, target: target.decode(tokens))


def bytes_of_all_of_a_reference(patch: Patch) -> None:
    whole = inputs.score_reference
    patch.setattr(
        inputs, "score_reference", lambda session, prompt, reference, text: replace(
            whole(session, prompt, reference, text), num_bytes=len(text.encode())
        ),
    )  # fmt: skip


def continuations_stripped(patch: Patch) -> None:
    whole = inputs.read_examples
    patch.setattr(inputs, "read_examples", lambda *given: [
        replace(one, references=tuple(map(str.strip, one.references))) for one in whole(*given)])  # fmt: skip


def sound_without_its_low_pass(patch: Patch) -> None:
    patch.setattr(sound, "resample", lambda samples, rate: samples[:: max(1, rate // sound.SAMPLE_RATE)].astype(np.float32))


def no_beginning_of_the_drafts_own(patch: Patch) -> None:
    whole = LoadedModel.encode
    patch.setattr(LoadedModel, "encode", lambda own, text: whole(own, text) if text else ())


def unknown_tokens_are_the_first(patch: Patch) -> None:
    whole = inputs.part_of

    def part_of(target: LoadedModel, draft: LoadedModel, kept: range) -> Any:
        found = whole(target, draft, kept)
        return replace(found, pieces=tuple((0,) if token not in kept else own for token, own in enumerate(found.pieces)))

    patch.setattr(inputs, "part_of", part_of)


def prompts_cut_by_their_tokenizer(patch: Patch) -> None:
    patch.setattr(LoadedModel, "encode", lambda own, text: tuple(own.tokenizer(text, verbose=False, truncation=True).input_ids))


def chats_without_their_template(patch: Patch) -> None:
    whole = prompts._encode

    def encode(task: Any, example: Any, asked: Any, target: LoadedModel) -> tuple[int, ...]:
        return whole(task, example, asked.replace(prompt_template=None) if asked.chat_template else asked, target)

    patch.setattr(prompts, "_encode", encode)


def beams_checked_by_rounded_laws(patch: Patch) -> None:
    patch.setattr(speculative_beam, "log_probs_of", lambda logits: logits.log_softmax(-1))


def scores_in_half_precision(patch: Patch) -> None:
    patch.setattr(specdec_rules, "_exact", lambda logits: logits)


def languages_of_one_that_has_one(patch: Patch) -> None:
    whole = inputs.forced_tokens
    patch.setattr(
        inputs, "forced_tokens", lambda settings: whole(SimpleNamespace(**vars(settings) | {"is_multilingual": True}))
    )


def drafters_alone_without_filters(patch: Patch) -> None:
    generate = drafter.DrafterAlone.generate

    def unfiltered(own: Any, target: Any, given: Any, sampling: Sampling, *rest: Any) -> Any:
        return generate(own, target, given, Sampling(temperature=sampling.temperature), *rest)

    patch.setattr(drafter.DrafterAlone, "generate", unfiltered)


def nuclei_not_passed_on(patch: Patch) -> None:
    patch.setattr(run_experiments, "SamplingSpec", lambda top_p, **given: SamplingSpec(**given))


def plain_speeds_of_the_method(patch: Patch) -> None:
    whole = known_commands.rates
    patch.setattr(known_commands, "rates", lambda records: whole([records[-1], records[-1]]))


def half_failed_is_well(patch: Patch) -> None:
    patch.setattr(known_commands, "status_of", lambda arms, document: int(document["audit"]["verdict"] == "bug"))


def first_baselines_alone(patch: Patch) -> None:
    whole = known_commands.why_refused
    patch.setattr(known_commands, "why_refused", lambda arms: whole([arms[0], arms[-1]]))


def any_difference_is_rounding(patch: Patch) -> None:
    patch.setattr(holding, "holm", lambda p_values, level: set())


def failures_are_rounding(patch: Patch) -> None:
    patch.setattr(holding, "FAILED", "nothing")


def bugs_are_rounding(patch: Patch) -> None:
    patch.setattr(holding, "NOT_KEPT", ())


@pytest.mark.parametrize(
    ("fault", "moved"),
    [
        (first_baselines_alone, "no speed where the second of two baselines was disturbed"),
        (any_difference_is_rounding, "held, all moved down"),
        (any_difference_is_rounding, "held, outputs parted"),
        (failures_are_rounding, "held, an example failed"),
        (bugs_are_rounding, "held, its verdict bug"),
        (nuclei_not_passed_on, "sampling asked for"),
        (plain_speeds_of_the_method, "baseline_ms_per_token"),
        (half_failed_is_well, "exit status, 2 of 4 failed, identical"),
    ],
)
def test_a_fault_in_a_command_moves_its_answer(monkeypatch: Patch, fault: Callable[[Patch], None], moved: str) -> None:
    committed = read_baseline(BASELINES)[COMMANDS]
    assert moves({COMMANDS: committed}, {COMMANDS: each_apart(known_commands.answers(), "known")}) == []
    fault(monkeypatch)
    assert committed["metrics"][moved] != known_commands.answers()[moved]


@pytest.mark.parametrize(
    ("fault", "moved"),
    [
        (unfiltered_sigmoids, "sigmoid (scale 10.0), top-k 3"),
        (typical_at_one, "typical, T 0.5"),
        (scores_not_normalised, "top-beta (beta 2, tau 0.1, score as_described, cap released), greedy"),
        (printed_cap_draws_its_own, "top-beta (beta 2, tau 1.0, score verifier, cap printed), greedy"),
        (probabilities_of_the_wrong_place, "speculative-sampling, T 1, probabilities"),
        (two_beginnings, "a chat's tokens"),
        (first_end_alone, "ends of a text"),
        (first_pieces_alone, "tokens of another vocabulary"),
        (louder, "two channels at 16000 Hz"),
        (one_seed_for_all_windows, "seed of repeat 0, window 1"),
        (same_numbers_inside, "EndlessUniforms, level 1"),
        (too_few_beams, "beams with three ends"),
        (rounds_for_walls, "speedup"),
        (drafted_for_verified, "definition position 2, conditional"),
        (languages_exchanged, "prompt of wmt-en-de, instruction"),
        (text_cut_at_its_end, "prompt of text, cut to fit"),
        (braces_kept, "prompt of squad, by a template"),
        (windows_further_apart, "windows of 1000 samples"),
        (windows_left_late, "windows joined"),
        (earlier_windows_left_early, "a hundred pairs of windows joined"),
        (lenience_of_the_draft, "overlap at lenience 0.3, T 1"),
        (heads_in_the_order_of_the_file, "trained head of layer 5"),
        (without_the_state, "blockwise head 1"),
        (cut_not_rounded, "a weight in int8"),
        (ends_of_the_configuration, "ends of a model that states both"),
        (first_end_alone_stops, "ends of a model that states both"),
        (failures_left_out, "failed_frac"),
        (begins_with_anything, "tokens that no text begins with"),
        (filtered_by_default, "transformers at T 1"),
        (assistants_stop_early, "transformers' assistant, constant"),
        (numbers_of_the_first_row, "transformers' rows are their own, prompt lookup at T 1"),
        (repeats_drawn_apart, "a ratio of repeats"),
        (strict_alpha_of_lenience, "tokens expected of lenience"),
        (prompts_left_out, "pipeline: speedup"),
        (plain_rounds_counted, "definition vllm_mean_acceptance_length"),
        (windows_after_the_first_not_heard, "overlap of windows"),
        (ends_as_its_first_window, "text of 5 windows"),
        (rounds_end_with_verification, "round_s by a clock, drafts"),
        (laws_in_half_precision, "a law in half precision, T 1"),
        (beams_in_half_precision, "beams in half precision"),
        (norms_in_half_precision, "a norm in half precision"),
        (blocks_begin_a_token_late, "laws of blocks along a long text"),
        (prompts_without_their_first_token, "what a draft of other words reads"),
        (late_ends_kept, "ends of two beams"),
        (last_share_alone, "texts that are gone on with"),
        (inner_places_of_the_first_row, "and their rows are their own"),
        (as_many_beams_are_the_sources, "beams of a batch"),
        (as_many_beams_are_the_sources, "beams of a batch are their rows' own"),
        (two_inner_drafts, "drafts that are drafted for"),
        (drafting_left_out_of_drafting, "draft_s by a clock, drafts"),
        (prompts_and_beginnings_exchanged, "encode_s by a clock, drafts"),
        (misses_for_matches, "plan where a candidate more takes 0.0 s"),
        (a_last_draft_not_counted, "transformers' assisted rounds"),
        (rows_of_one_seed, "rows of a file by seed 1"),
        (one_answer_alone, "answers of a row"),
        (letters_for_bytes, "bytes of a reference"),
        (last_token_began_early, "PPD, latency"),
        (drafts_for_tokens, "Theorem 3.11"),
        (layers_counted_from_the_first, "cost of a pipeline's layer"),
        (one_name_for_all_leniences, "alpha_overlap[copy]_at_lenience_0.3"),
        (one_sided, "signed ranks"),
        (no_test_among_others, "what stands out of four"),
        (replicas_taken_for_one, "a number of three replicas"),
        (as_free_as_there_are_examples, "a number that one example holds"),
        (past_the_whole, "a share that one example holds"),
        (apart_by_replicas, "a difference of two arms' numbers"),
        (of_any_device, "verdict of exact on cuda"),
        (of_any_dtype, "verdict of exact in half precision"),
        (sees_with_any_test, "earned by ranks alone"),
        (near_by_a_probability, "margin at temperature 1"),
        (repeats_scored_as_examples, "f1 of squad, all"),
        (batches_drawn_by_row, "speed-up, in twos"),
        (shares_of_nothing_unbounded, "a share of none"),
        (ends_in_their_order, "a number that falls"),
        (five_drafts_for_every_peer, "the peer assistant"),
        (noise_left_out, "captured, greedy, one in 3 parts"),
        (references_cut, "tokens of a long reference"),
        (wider_bounds, "bounds of half precision, T 1"),
        (verified_behind_the_drafts, "accepted_over_verified of a chain elsewhere"),
        (the_other_way_round, "an arm over a peer"),
        (drafts_a_place_early_where_all_stood, "compiled rounds of llama-draft for llama-draft, T 1"),
        (padding_that_is_read, "fixed shapes of t5-target"),
        (rounding_explains_all, "what parts outputs"),
        (prompts_without_the_assistants_turn, "a chat's tokens"),
        (cut_texts_spelled_out, "prompt of text without spaces, cut to fit"),
        (shorter_ends, "ends of up to 39 tokens, suffix"),
        (nothing_counts_as_evidence, "a share of all of some"),
        (fewer_drafts_are_swept, "drafts that schedule sweep asks for"),
        (all_alike_behind_the_unknown, "pairs behind token 5"),
        (blockwise_laws_begin_early, "number of these laws"),
        (few_seeds, "transformers' numbers of far seeds are others"),
        (replays_of_any_arm, "a run with too few replays"),
        (twice_the_tokens_in_what_is_missed, "a long run beside draws"),
        (looser_laws, "law: LAW_BOUND"),
        (weak_tests_are_strong, "what counts of three tokens could tell"),
        (distances_twice_as_far, "a lenient law's distance"),
        (what_was_not_tested_is_least, "not tested and another verdict"),
        (time_over_a_threads, "a thread's share of its time"),
        (replicas_of_the_same_examples, "examples of replica 1"),
        (rows_by_their_capitals, "a row of capitals"),
        (cool_is_greedy, "how tokens are drawn"),
        (freedom_of_the_surer, "a difference of three replicas and nine"),
        (candidates_begin_when_others_end, "a simulated pipeline's clock"),
        (nothing_waited_for, "a simulated pipeline's clock"),
        (times_of_all_texts, "calls that are timed, text by text"),
        (copies_of_the_output_alone, "laws of copies along a text"),
        (a_draft_less_of_every_row, "drafts of blockwise heads, row by row"),
        (learned_from_what_is_tested, "rows to learn from, five of which are tested on"),
        (replays_of_the_first_repeat, "outputs that are replayed, and whether of several repeats"),
        (replays_of_one_arm, "whether replays of two arms agree, of one and of two"),
        (batches_beside_themselves, "where a batch's row parts from itself alone"),
        (positions_counted_in_half, "passes of llama-target in bfloat16"),
        (operations_draw_by_another_number, "fused (backend torch), T 1"),
        (refused_as_they_are, "faults of refused first choices, and of a second"),
        (a_draft_more_is_none, "faults of two and of three drafts where two are asked for"),
        (a_token_more_a_round, "faults of rounds by what stood and was emitted"),
        (looser_statements, "faults of unlikely drafts that stand at 0.19 and 0.21"),
        (unknown_is_right, "faults that are unknown"),
        (a_token_short_is_whole, "ends at the limit and a token before it"),
        (a_nat_a_window, "nats of windows"),
        (a_third_candidate, "faults of the two likeliest candidates, and of the third"),
        (mean_deviations, "verdicts on a right law, a moved one and none"),
        (unknown_laws, "verdicts on a right law, a moved one and none"),
        (the_first_arm_first, "order of three arms"),
        (overlaps_from_one, "rows of overlap"),
        (rounds_without_drafts_in_histograms, "histograms of a log"),
        (a_draft_more_at_the_end, "rounds of a text by advice"),
        (budgets_of_other_ends, "a text's budget by advice"),
        (last_rounds_count_as_empty, "rounds without a draft to advice"),
        (tokens_for_rounds, "rounds of a bench"),
        (peers_beside_anything, "ours over a peer beside refused times"),
        (music_is_scored, "transcripts that are scored"),
        (as_sure_as_there_are_examples, "ten speeds of 2.9 degrees of freedom"),
        (intervals_from_31_on, "an interval of 30"),
        (few_of_one_process_not_judged, "6 examples of 1 processes that slow down"),
        (theory_of_lenient_rules, "line 2 of a grid"),
        (first_numbers_alone, "numbers beside printed ones"),
        (rests_of_one_sign, "-0.4 of a speed unexplained"),
        (printed_numbers_of_both_signs, "signs beside the paper's, one of two"),
        (a_choice_more_is_good_enough, "top-beta (beta 1, tau 3.0, score as_described), greedy"),
        (tensors_decide_otherwise, "top-1 (cap released), greedy"),
        (first_draws_alone, "faults of a text's last draw, and of another"),
        (chances_for_their_width, "faults of what follows a refused block"),
        (windows_scored_one_after_another, "scores of windows"),
        (bytes_of_all_of_a_reference, "bytes of a reference beyond the last position"),
        (continuations_stripped, "a text with its continuation"),
        (sound_without_its_low_pass, "power of 12000 Hz at 48000 Hz"),
        (no_beginning_of_the_drafts_own, "a prompt without the beginning that its draft has"),
        (unknown_tokens_are_the_first, "what a draft that knows a part reads"),
        (prompts_cut_by_their_tokenizer, "a prompt longer than a tokenizer's own length"),
        (chats_without_their_template, "prompt of squad, by a template, as a chat"),
        (beams_checked_by_rounded_laws, "beams that are checked in half precision"),
        (scores_in_half_precision, "top-beta by the drafter's score, in half precision"),
        (languages_of_one_that_has_one, "tokens that are forced, multilingual False, with languages True"),
        (drafters_alone_without_filters, "drafts of a drafter alone, top-k 3"),
        (statements_not_looked_at, "faults of likely and unlikely blocks of two that are refused"),
        (rules_decide_alone, "verdicts on a rule, and on what decides elsewhere"),
        (rows_not_tested, "numbers that are tested together"),
        (controls_strike_anywhere, "controls that can strike"),
        (weak_checks_catch, "verdicts that catch a control"),
        (all_tokens_are_possible, "samples that nothing can have drawn"),
        (equal_ranks, "ranks of tokens of equal logits"),
        (theory_of_blocks, "tokens expected of block"),
        (drafts_of_any_rounding, "verdict of exact of a rounded draft"),
        (drafts_of_drafts_of_any_rounding, "verdict of exact of a draft whose own draft is rounded"),
        (texts_by_their_ends, "tokens that texts begin with alike"),
        (copies_of_what_is_near, "copies of a text's beginning"),
        (copies_of_what_is_near, "suffixes of a text's beginning"),
        (laws_of_rows_at_temperature_one, "laws of pairs along a text, T 0.5"),
        (ends_of_windows_forgotten, "ends of windows"),
        (the_first_window_s_text, "how far a token of the last window is off"),
        (beams_of_rounded_laws, "beams in half precision"),
        (a_stop_more, "2 torn by a stop"),
        (best_by_another_score, "best of a grid by BLEU, where another is by sacreBLEU"),
        (twice_as_many_small_chances, "p-values that alarm"),
        (positions_of_a_block_less, "tokens of a drafter alone, to its last position"),
    ],
)
def test_a_fault_moves_its_answer(
    told: dict[str, tuple[Group, Any]], monkeypatch: Patch, fault: Callable[[Patch], None], moved: str
) -> None:
    group, before = told[moved]
    fault(monkeypatch)
    assert not same(before, group()[moved])


def test_rounds_are_ragged_and_of_both_kinds() -> None:
    found = rounds(SAMPLINGS["T 1"])
    assert [one[0].logits is None for one in found] == [False, True] * 2
    assert set(found[0][0].lengths) == {2, 3}
