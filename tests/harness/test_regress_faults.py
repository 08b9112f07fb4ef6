"""`make regress` sees injected faults: of caches, rules, positions, stops, tokenizers, beams, candidates, scales and scores.

Each fault is put into the code while a part of the pinned set runs, and must move a number of the committed baselines; without
one nothing moves.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer

from harness.core import products
from harness.measures import of_run, statistics
from harness.models.loading import LoadedModel
from harness.report.pinned import CHECKPOINTS, pinned_set
from harness.report.regress import POOLED, REPLAYED, SCORED, Move, measure, measure_texts, moves, read_baseline
from harness.run import build
from harness.run import record as run_record
from harness.run.replay import outputs
from harness.run.runner import Runner
from kernels.verify import reference, sigmoid
from methods import transformers_generate
from methods.beam import BeamState
from methods.models import llama
from methods.ppd import pipeline
from methods.sampling import EndlessUniforms, Sampling, Uniforms
from methods.session import ModelSession
from methods.specdec.drafter import BlockDrafter
from methods.specdec.rules import TopBeta
from methods.speculative import beam, drafters, engine_rules, model
from methods.speculative.engine_rules import Typical
from methods.speculative.model import ModelDrafter
from methods.speculative.per_row import CopyDrafter, RandomDrafter, SuffixDrafter
from methods.speculative.rounded import ContinuingSession
from methods.speculative.rules import Lenience, SigmoidRule, SpeculativeSampling
from methods.speculative.translation import TextDrafter, TranslatedSession
from methods.types import Outcome, Proposal, Stop, Verdict
from tasks import speech, squad, summarization, translation

BASELINES, NUM_EXAMPLES = CHECKPOINTS.parent, 4
Patch = pytest.MonkeyPatch


def changes(folder: Path, *names: str) -> list[Move]:
    """Run the first examples of some pinned comparisons and hold them against the committed values."""
    chosen = {name: one for name, one in pinned_set(num_examples=NUM_EXAMPLES).items() if name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(products.VARIABLE, "torch")
        measured = measure(Runner(folder, quiet=True), chosen)
    committed = {name: one for name, one in read_baseline(BASELINES).items() if name in names}
    for name, one in committed.items():
        known = measured[name]["examples"]
        assert len(known) == NUM_EXAMPLES
        one["examples"] = {example: values for example, values in one["examples"].items() if example in known}
        one |= {key: measured[name][key] for key in POOLED}  # the committed ones are of more examples
    return moves(committed, measured)


def last_draft_missing(patch: Patch) -> None:
    """The last draft of a round in which all stood never reaches the draft's cache (vllm#9730)."""
    whole = ModelDrafter.commit

    def commit(self: ModelDrafter, outcome: Outcome) -> None:
        whole(self, outcome)
        self.cache.unseen = [row[-1:] for row in self.cache.unseen]

    patch.setattr(ModelDrafter, "commit", commit)


def eager_rule(patch: Patch) -> None:
    """A draft stands a twentieth more often than it may."""
    whole = SpeculativeSampling.verify

    def verify(self: Any, proposal: Any, logits: Any, sampling: Any, uniforms: Any) -> Any:
        scale = torch.ones_like(uniforms)
        scale[:, :-1] = 0.95
        return whole(self, proposal, logits, sampling, uniforms * scale)

    patch.setattr(SpeculativeSampling, "verify", verify)


def shifted_positions(patch: Patch) -> None:
    """Passes over a round of three drafts stand one position too far; those of other sizes a load would refuse."""
    whole = llama.lookup

    def lookup(table: torch.Tensor, frame: Any) -> torch.Tensor:
        shift = int(frame.num_new == 4)
        return whole(table.roll(-shift, 0), frame)

    patch.setattr(llama, "lookup", lookup)


def deaf_to_eos(patch: Patch) -> None:
    patch.setattr(Stop, "cut", lambda self, tokens, room: (tokens[:room], "length" if len(tokens) >= room else None))


def prompt_without_its_end(patch: Patch) -> None:
    """The tokenizer leaves out the special tokens of a prompt."""
    patch.setattr(LoadedModel, "encode", lambda self, text: self.encode_continuation(text))


def beams_by_sum(patch: Patch) -> None:
    """Finished beams are ranked by log-probability instead of its mean, so that short ones win."""

    def finalize(self: BeamState, log_prob: float, tokens: tuple[int, ...]) -> None:
        ranked = sorted([*self.finalized, (log_prob, tokens)], key=lambda one: one[0], reverse=True)
        self.finalized = ranked[: self.num_beams]

    patch.setattr(BeamState, "_finalize", finalize)


def second_candidates(patch: Patch) -> None:
    """PPD begins the candidates behind the likeliest."""
    patch.setattr(pipeline, "_most_likely", lambda logits, count: logits.flatten().topk(count + 1).indices.tolist()[1:])


def doubled_scale(patch: Patch) -> None:
    whole = sigmoid._constants

    def constants(alpha: float, beta: float, dtype: torch.dtype) -> Any:
        return whole(2 * alpha, 2 * beta, dtype)

    patch.setattr(sigmoid, "_constants", constants)


def relaxed_made_strict(patch: Patch) -> None:
    patch.setattr(TopBeta, "__init__", with_defaults(TopBeta.__init__, tau=0.0))


def another_beta(patch: Patch) -> None:
    patch.setattr(TopBeta, "__init__", with_defaults(TopBeta.__init__, beta=3))


def other_lenience(patch: Patch) -> None:
    patch.setattr(Lenience, "__init__", with_defaults(Lenience.__init__, lenience=0.4))


def with_defaults(whole: Callable[..., None], **changed: Any) -> Callable[..., None]:
    return lambda self, *args, **values: whole(self, *args, **(values | changed))


def copies_the_second_match(patch: Patch) -> None:
    """A copying drafter begins one token too late."""
    whole = CopyDrafter.propose

    def propose(self: CopyDrafter, text: Sequence[int], num_draft: int, uniforms: Any, sampling: Any) -> Any:
        found = whole(self, text, num_draft, uniforms, sampling)
        return replace(found, tokens=found.tokens.roll(-1, 1))

    patch.setattr(CopyDrafter, "propose", propose)


def another_default_scale(patch: Patch) -> None:
    patch.setattr(SigmoidRule, "__init__", with_defaults(SigmoidRule.__init__, scale=2e3))


def rejected_copies_may_be_drawn(patch: Patch) -> None:
    """The sigmoid's residual keeps a rejected draft that was chosen, not drawn."""
    whole = sigmoid._residual

    def residual(round: Any, row: Any, draft: Any, accepted: Any, scaling: Any) -> Any:
        return scaling.activate(row) if draft is None else whole(round, row, draft, accepted, scaling)

    patch.setattr(sigmoid, "_residual", residual)


def inner_drafts_are_not_taken_back(patch: Patch) -> None:
    """A drafter inside of another forgets nothing of what the outer one refused."""
    whole = ModelDrafter.revise
    patch.setattr(ModelDrafter, "revise", lambda self, counts, tokens: whole(self, [0] * len(counts), tokens))


def same_numbers_inside(patch: Patch) -> None:
    """A draft that is drafted for draws by the numbers of the round around it, where a rule looks ahead."""
    patch.setattr(EndlessUniforms, "nested", lambda own: EndlessUniforms(own.seeds, own.length, own.table.device, own.level))


def late_second_candidates(patch: Patch) -> None:
    """PPD's candidates are not the likeliest, behind the first 64 tokens."""
    whole, calls = pipeline._most_likely, itertools.count()

    def candidates(logits: torch.Tensor, count: int) -> Any:
        return whole(logits, count + 1)[1:] if next(calls) >= 64 else whole(logits, count)

    patch.setattr(pipeline, "_most_likely", candidates)


def beams_of_the_first_example(patch: Patch) -> None:
    """In a batch every example goes on from the first one's beams."""
    whole = ModelSession.select
    patch.setattr(ModelSession, "select", lambda self, rows: whole(self, [row % 3 for row in rows] if len(rows) > 4 else rows))


def romanian_is_german(patch: Patch) -> None:
    patch.setitem(translation.LANGUAGES, "ro", "German")


def suffixes_begin_too_late(patch: Patch) -> None:
    """A suffix drafter begins one token too late."""
    whole = SuffixDrafter._chain

    def chain(self: SuffixDrafter, text: Sequence[int], starts: list[int], room: int) -> Any:
        return whole(self, text, [start + 1 for start in starts], room)

    patch.setattr(SuffixDrafter, "_chain", chain)


def temperature_twice(patch: Patch) -> None:
    """Target and draft alike, so that each still has the law that its rule is told of."""
    whole = reference.adjusted_logits
    patch.setattr(reference, "adjusted_logits", lambda logits, sampling: whole(logits / sampling.temperature, sampling))


def narrower_nucleus(patch: Patch) -> None:
    """A tenth of the mass that top-p keeps is left out."""
    whole = reference.adjusted_logits

    def adjusted(logits: torch.Tensor, sampling: Any) -> torch.Tensor:
        return whole(logits, replace(sampling, top_p=(sampling.top_p or 1) - 0.1))

    patch.setattr(reference, "adjusted_logits", adjusted)


def shared_tokens_moved(patch: Patch) -> None:
    """The map between two vocabularies is off by one."""
    whole = TranslatedSession.__init__

    def init(self: TranslatedSession, *given: Any) -> None:
        whole(self, *given)
        self._from = self._from.roll(1)

    patch.setattr(TranslatedSession, "__init__", init)


def text_cut_short(patch: Patch) -> None:
    """The draft of another vocabulary goes on with the text before its last token."""
    whole = TextDrafter.propose
    patch.setattr(TextDrafter, "propose", lambda self, text, *given: whole(self, text[:-1], *given))


def numbers_shared_by_levels(patch: Patch) -> None:
    """A drafter that itself drafts and verifies decides with the numbers of the target's rounds."""
    patch.setattr(Uniforms, "nested", lambda self: self)


def lenient_inside(patch: Patch) -> None:
    """The draft's own drafts stand too often, so that it no longer has the law that it states."""
    patch.setattr(model, "SpeculativeSampling", lambda: Lenience(0.3))


def guesses_half_the_vocabulary(patch: Patch) -> None:
    whole = RandomDrafter.propose
    patch.setattr(
        RandomDrafter, "propose", lambda self, text, count, uniforms, *given: whole(self, text, count, uniforms / 2, *given)
    )


def one_layer_less(patch: Patch) -> None:
    whole = drafters.ModelSession
    patch.setattr(drafters, "ModelSession", lambda stack, num_layers: whole(stack, num_layers - 1))


def prompts_read_by_rounded_weights(patch: Patch) -> None:
    """The target's own draft does not go on from what the target has read."""
    patch.setattr(ContinuingSession, "prefill", ModelSession.prefill)


def other_threshold(patch: Patch) -> None:
    patch.setattr(Typical, "__init__", with_defaults(Typical.__init__, epsilon=0.2))


def bonus_not_drawn(patch: Patch) -> None:
    whole = engine_rules._verdict
    patch.setattr(engine_rules, "_verdict", lambda *given, draws=None: whole(*given))


def greedily_more_lenient(patch: Patch) -> None:
    whole = Lenience.greedy_accepts
    patch.setattr(Lenience, "greedy_accepts", lambda self, logits: whole(Lenience(self.lenience**2), logits))


class Unfiltered(SpeculativeSampling):
    def verify(self, proposal: Proposal, target_logits: torch.Tensor, sampling: Sampling, uniforms: torch.Tensor) -> Verdict:
        return super().verify(proposal, target_logits, Sampling(temperature=sampling.temperature), uniforms)


def filters_lost_inside(patch: Patch) -> None:
    patch.setattr(model, "SpeculativeSampling", Unfiltered)


def filtered_by_default(patch: Patch) -> None:
    whole = transformers_generate._drawn
    patch.setattr(transformers_generate, "_drawn", lambda sampling: whole(sampling) | {"top_k": 50})


def blocks_drawn_by_the_first_numbers(patch: Patch) -> None:
    whole = BlockDrafter.propose
    patch.setattr(
        BlockDrafter, "propose", lambda own, counts, places, sampling: whole(own, counts, [0] * len(places), sampling)
    )


def one_schedule_for_all_rows(patch: Patch) -> None:
    whole = build.build_schedule

    def build_schedule(spec: Any) -> Any:
        shared = whole(spec)()
        return lambda: shared

    patch.setattr(build, "build_schedule", build_schedule)


def one_draft_less_is_searched(patch: Patch) -> None:
    """Speculative beam search drafts a step less: its beams stay what they are."""
    whole = beam._Lookahead.levels
    patch.setattr(beam._Lookahead, "levels", lambda self, state, num_draft: whole(self, state, num_draft - 1))


FAULTS = [
    (shared_tokens_moved, "text-tli"),
    (text_cut_short, "text-slem"),
    (numbers_shared_by_levels, "text-hierarchical"),
    (lenient_inside, "text-hierarchical"),
    (filters_lost_inside, "text-hierarchical-model"),
    (filtered_by_default, "text-generate-batch"),
    (blocks_drawn_by_the_first_numbers, "blocks-alone-sampled-batch"),
    (guesses_half_the_vocabulary, "text-random"),
    (one_layer_less, "text-first-layers"),
    (prompts_read_by_rounded_weights, "text-rounded"),
    (other_threshold, "text-typical"),
    (bonus_not_drawn, "text-target-greedy"),
    (greedily_more_lenient, "text-lenient-greedy"),
    (one_draft_less_is_searched, "de-speculative-beam"),
    (temperature_twice, "text-filtered"),
    (narrower_nucleus, "text-filtered"),
    (last_draft_missing, "news-sampled"),
    (last_draft_missing, "de-greedy"),
    (eager_rule, "text-sampled-batch"),
    (one_schedule_for_all_rows, "text-sampled-batch"),
    (shifted_positions, "text-lenient"),
    (deaf_to_eos, "de-greedy"),
    (prompt_without_its_end, "de-greedy"),
    (beams_by_sum, "de-beam"),
    (second_candidates, "ppd-sampled"),
    (doubled_scale, "speech-sigmoid"),
    (relaxed_made_strict, "blocks-relaxed-batch"),
    (another_beta, "blocks-relaxed-batch"),
    (other_lenience, "text-lenient"),
    (copies_the_second_match, "squad-copy"),
    (suffixes_begin_too_late, "text-suffix"),
    (another_default_scale, "text-sigmoid-copy"),
    (rejected_copies_may_be_drawn, "text-sigmoid-copy"),
    (inner_drafts_are_not_taken_back, "text-hierarchical-model"),
    (same_numbers_inside, "text-hierarchical-batch"),
    (late_second_candidates, "ppd-long"),
    (beams_of_the_first_example, "de-beam-batch"),
    (romanian_is_german, "ro-greedy"),
]


def decisions_not_replayed(patch: Patch) -> None:
    """No rule's decisions are looked at any more: every clean run is as right as before."""
    patch.setattr(outputs, "_lenience_of", lambda method: None)


def copies_not_asked_again(patch: Patch) -> None:
    patch.setattr(outputs, "repeated_drafts", lambda rounds, again: ())


@pytest.mark.parametrize(
    ("fault", "comparison"), [(decisions_not_replayed, "text-filtered"), (copies_not_asked_again, "squad-copy")]
)
def test_a_replay_that_looks_at_less_turns_regress_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Patch], None], comparison: str
) -> None:
    fault(monkeypatch)
    assert {move.metric for move in changes(tmp_path, comparison)} == {REPLAYED}


@pytest.mark.parametrize(("fault", "comparison"), FAULTS)
def test_a_fault_turns_regress_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Patch], None], comparison: str
) -> None:
    fault(monkeypatch)
    moved = {move.metric for move in changes(tmp_path, comparison)}
    assert moved - {"verdict", "weights", "all"}


def test_a_row_with_the_whole_batchs_time_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_record._timed

    def timed(arm: Any, prompts: Any, *given: Any) -> Any:
        (made, wall_s), times = whole(arm, prompts, *given)
        return (made, wall_s * len(prompts)), times

    monkeypatch.setattr(run_record, "_timed", timed)
    assert ("verdict", "same distribution, times unexplained") in {
        (move.metric, move.now) for move in changes(tmp_path, "text-sampled-batch")
    }


def test_nothing_moves_without_a_fault(tmp_path: Path) -> None:
    """On this processor's rounding, whichever it is."""
    assert changes(tmp_path, "de-greedy", "news-sampled", "blocks-relaxed-batch", "speech-exact") == []


def averaged_examples(patch: Patch) -> None:
    """An acceptance rate is the mean of every example's own instead of a ratio of totals."""
    whole = of_run.ratio_of_examples

    def ratio(rows: Sequence[tuple[Any, float, float]], *given: Any, **named: Any) -> Any:
        return whole([(name, top / below, 1.0) for name, top, below in rows if below], *given, **named)

    patch.setattr(of_run, "ratio_of_examples", ratio)


def resampled_tokens(patch: Patch) -> None:
    """Intervals as if forty times as many examples had been drawn: those of tokens instead of texts."""
    whole = statistics.weights
    patch.setattr(statistics, "weights", lambda n, k=500: np.stack([part.mean(0) for part in np.split(whole(n, 40 * k), k)]))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], list[Move]]:
    """One whole pinned comparison, decoded once: measures its records anew and holds them against the committed values."""
    name, runner = "squad-copy", Runner(tmp_path_factory.mktemp("recorded"), quiet=True)

    def measured_anew() -> list[Move]:
        return moves({name: read_baseline(BASELINES)[name]}, measure(runner, {name: pinned_set()[name]}))

    return measured_anew


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (None, set()),
        (averaged_examples, {"accepted_over_drafted, pooled", "accepted_over_drafted, interval"}),
        (resampled_tokens, {"accepted_over_drafted, interval"}),
    ],
)
def test_how_examples_are_added_up_is_watched(
    recorded: Callable[[], list[Move]],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Patch], None] | None,
    expected: set[str],
) -> None:
    """In no example alone does such a fault show."""
    monkeypatch.setenv(products.VARIABLE, "torch")
    if fault is not None:
        fault(monkeypatch)
    found = {move.metric for move in recorded()}
    assert found >= expected
    assert bool(found) == bool(expected)


def unstemmed(patch: Patch) -> None:
    patch.setattr(summarization, "_scorer", lambda names: RougeScorer(list(names), use_stemmer=False))


def international_tokens(patch: Patch) -> None:
    patch.setitem(translation.SETTINGS, "sacrebleu", {"tokenize": "intl", "smooth_method": "exp"})
    for name, made in list(vars(translation).items()):
        if hasattr(made, "__wrapped__"):
            patch.setattr(translation, name, made.__wrapped__)


def kept_case(patch: Patch) -> None:
    patch.setattr(squad, "normalise", str)


def bare_words(patch: Patch) -> None:
    patch.setattr(speech, "normalise", str.lower)


def shots_not_ended(patch: Patch) -> None:
    patch.setattr(translation, "END_OF_SHOT", "@@@")


def sentences_end_at_dots(patch: Patch) -> None:
    patch.setattr(summarization, "SENTENCE_END", re.compile(r"(?<=[.])\s+"))


@pytest.mark.parametrize(
    ("fault", "moved"),
    [
        (unstemmed, "rouge1"),
        (international_tokens, "sacrebleu"),
        (kept_case, "exact_match"),
        (bare_words, "wer"),
        (shots_not_ended, "sacrebleu"),
        (sentences_end_at_dots, "rougeLsum"),
    ],
)
def test_a_metric_of_other_settings_moves_the_texts_of_known_scores(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[Patch], None], moved: str
) -> None:
    committed = {SCORED: read_baseline(BASELINES)[SCORED]}
    assert moves(committed, {SCORED: measure_texts()}) == []
    fault(monkeypatch)
    assert moved in {move.metric for move in moves(committed, {SCORED: measure_texts()})}


def test_the_scores_that_are_watched_are_not_zero() -> None:
    metrics: dict[str, list[float]] = {}
    for one in read_baseline(BASELINES).values():
        for name, value in one["metrics"].items():
            metrics.setdefault(name, []).append(value)
    for name in ("bleu", "rouge1", "rouge2", "rougeL", "exact_match", "f1", "wer", "perplexity", "alpha_overlap", "match_rate"):
        assert max(metrics[name]) > 0, name
    assert 0 < min(metrics["wer"]) < 1


def test_the_checkpoints_are_small() -> None:
    files = [file for file in CHECKPOINTS.rglob("*") if file.is_file()]
    assert len({file.parent for file in files}) == 9
    assert sum(file.stat().st_size for file in files) < 2_000_000
