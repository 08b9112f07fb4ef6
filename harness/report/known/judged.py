"""What is concluded of made-up evidence: a run's replays and samples, an audit's rows, outputs that others captured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec
from harness.core.records import Divergence, Record, kind_of
from harness.exact.captured.capture import Capture, Output
from harness.exact.captured.greedy import judge_greedy
from harness.exact.captured.matched import groups_of
from harness.exact.captured.sampled import judge_sampled
from harness.exact.captured.two_samples import Feature, can_reject, drawn_test, fisher, found_share, sign_test, swap_tests
from harness.exact.checks import Finding
from harness.exact.run import compare_with_single_rows
from harness.exact.run_verdict import judge_run, judge_samples
from harness.measures.verdicts import (
    MUST_FIND,
    NOT_TESTED,
    as_earned,
    is_mostly_untested,
    is_red,
    label_of,
    place_of,
    summary_of,
    tests_of,
)
from harness.models.fit import Models
from harness.report.known.values import hashed, numbers_in
from harness.report.pinned import drafted_by, plain_decoding
from harness.run.comparison import choose_replayed
from harness.run.divergence import classify
from harness.run.prompts import make_prompt
from harness.run.runner import Runner
from kernels.inputs import SamplingSpec
from methods.sampling import Sampling
from methods.specdec.rules import TopBeta
from tasks import get_task
from tasks.sources.read import read_examples

LEVEL, PROMPTS, SEEDS, LENGTH = 1e-3, 60, 2, 12
TEST = {"samples": 400, "p": 0.3, "tv_at_power_0.9": 0.1}
ROWS: dict[str, dict[str, Any]] = {
    "greedy outputs": {"prompts": 9, "tokens": 300, "near_ties": 2, "bugs": 0, "largest_margin": 3e-5, "verdict": "near-tie"},
    "a lossy law": {
        "tv": {"value": 0.2, "low": 0.1, "high": 0.3},
        "nats": {"value": 0.5, "low": None, "high": None},
        "verdict": "lossy",
        "declared": "lossy",
    },
    "plain samples": {"tests_made": 40, "alarms": 1, "below_0.05": 3, "failed": ["position 2"], "verdict": "biased"},
    "a law and tests": {
        "tests": {
            "position 0": TEST | {"p": 0.02},
            "position 1": TEST | {"tv_at_power_0.9": 0.2},
            "draft 0": TEST | {"samples": 0},
        },
        "largest_deviation": {"draft 0": 1e-9, "bonus": 4e-9},
        "failed": [],
        "verdict": "same distribution",
        "replayed": {"decisions": 40, "longest": 90},
    },
    "mostly weak tests": {
        "tests": {f"position {place}": TEST | {"tv_at_power_0.9": 0.1 + 0.07 * place} for place in range(5)},
        "largest_deviation": {},
        "failed": [],
        "verdict": "same distribution",
    },
    "faults": {
        "tests": {"ranks of bonus": TEST},
        "largest_deviation": {},
        "failed": ["ranks of bonus"],
        "verdict": "bug",
        "replayed": {"faults": 2, "what": ["draft", "acceptance"], "decisions": 12, "longest": 30},
    },
    "recorded samples": {"tests_made": 40, "alarms": 1, "below_0.05": 3, "tests": {}, "verdict": "same distribution"},
    "one test at the border": {
        "tests": {"position 0": TEST | {"tv_at_power_0.9": MUST_FIND}, "ranks of bonus": TEST},
        "largest_deviation": {},
        "failed": [],
        "verdict": "not tested",
        "replayed": {"longest": 8},
    },
    "an error": {"error": "no memory", "verdict": "failed"},
}


def _of_runs() -> dict[str, str]:
    """Return the verdict on a run by what was replayed of each arm, and by faults in either."""
    plain = plain_decoding(0, 1, 3, "text", "llama-target", 1.0)
    arms = Comparison((plain, plain.replace(method=MethodSpec.of("transformers"))))
    fault = Divergence(position=0, margin=1.0, bound=0.1, replays_agree=False, kind="bug", what="drawn token")
    replays: dict[str, tuple[list[Record], list[Record]]] = {
        "replays of both": ([_record(30)], [_record(6), _record(5)]),
        "too few replays": ([_record(30)], [_record(6), _record(4)]),
        "no replay": ([_record(None)], [_record(None)]),
        "a fault": ([_record(30)], [_record(6, fault), _record(5)]),
        "a fault of the plain arm": ([_record(30, fault)], [_record(11)]),
    }
    found = {}
    for name, (first, last) in replays.items():
        judged = judge_run(arms, [first, last], lambda *_: Finding(NOT_TESTED, "", {}))
        found[f"a run with {name}"] = _told(judged["verdict"], judged["summary"])
    lenient = MethodSpec.of("speculative", drafter=drafted_by("llama-draft"), rule="lenience", lenience=0.3)
    models, texts = Models(plain.device, plain.dtype), ([5, 6, 7], [8, 9], [10, 11, 12, 13])
    first, last = (
        [_record(20, None, text[:cut], cut + place / 2, place) for place, text in enumerate(texts)] for cut in (9, 2)
    )
    spelled = ([7 + (place + 3) * token % 80 for token in range(9 + 40 * place)] for place in range(3))
    long = [_record(None, None, text, 1.0, place) for place, text in enumerate(spelled)]
    exact = MethodSpec.of("speculative", drafter=drafted_by("llama-draft"))
    cases: dict[str, tuple[MethodSpec, list[Record]]] = {
        "lossy": (lenient, last),
        "exact": (exact, [_record(None), *long]),
        "opaque": (MethodSpec.of("transformers"), long),
    }
    for name, (method, arm) in cases.items():
        judged = judge_run(Comparison((plain, plain.replace(method=method))), [first, arm], lambda _, judge: judge(models))
        numbers = ", ".join(f"{judged[name]:.3g}" for name in ("windows", "tokens", "p") if name in judged)
        found[f"a run that is {name}"] = _told(judged["verdict"], f"{numbers} {judged['summary'] if name == 'lossy' else ''}")
    return found


def _parted() -> dict[str, str]:
    """Return what parts two outputs, by their replays and the margin, and what relaxed rules promise."""
    margins = ((None, None), (0.1, 0.2), (0.2, 0.2), (0.3, 0.2))
    rules = [TopBeta(beta, tau, score) for beta in (1, 2) for tau in (0.0, 1.0) for score in ("verifier", "as_described")]
    return {
        "what parts outputs": ", ".join(kind_of(agree, *one) for agree in (True, False) for one in margins),
        "what relaxed rules promise": ", ".join(f"{one.guarantee} {one.strict}" for one in rules),
    }


def _checked() -> dict[str, str]:
    """Return which outputs are replayed, whose replays say what parts two arms, and what a batch's rows are compared with."""
    plain = plain_decoding(0, 1, 12, "text", "llama-target", max_new_tokens=12)
    examples = list(read_examples(get_task("text"), "toy", "test", 12, 0))
    keys = choose_replayed(examples, "sample", plain.replace(repeats=5))
    other = MethodSpec.of("speculative", drafter=drafted_by("llama-draft"), rule="lenience", lenience=0.05)
    models, texts = Models(plain.device, plain.dtype), ([5, 6, 7], [5, 6, 8])
    prompt = make_prompt(get_task("text"), examples[0], plain, models.get(plain.target))
    parted = [classify((plain, arm), texts, prompt, 0, models) for arm in (plain, plain.replace(method=other))]
    rows = list(compare_with_single_rows(plain.replace(batch_size=4, limit=1), _Recorded(models, examples[0].id, texts)))
    return {
        "outputs that are replayed, and whether of several repeats": f"{len(keys)} {len({repeat for _, repeat in keys}) > 1}",
        "whether replays of two arms agree, of one and of two": str([one.replays_agree for one in parted]),
        "where a batch's row parts from itself alone": str([one.divergence and one.divergence.position for one in rows]),
    }


class _Recorded(Runner):
    """A runner that has recorded one text of two: a row's alone, and the same row's in a batch."""

    def __init__(self, models: Models, example: str, texts: tuple[list[int], list[int]]) -> None:
        self._own, self._example, self._texts = models, example, texts

    def run(self, comparison: Comparison, description: str = "") -> None: ...

    def models(self, experiment: Experiment) -> Models:
        return self._own

    def records(self, experiment: Experiment) -> list[Record]:
        text = self._texts[experiment.batch_size > 1]
        return [Record(signature="known", example=self._example, repeat=0, status="ok", tokens=text)]


def _of_samples() -> dict[str, str]:
    """Return what the places of an output's tokens in their laws tell."""
    experiment = plain_decoding(0, 1, 1, "text", "llama-target", 1.0)
    target = Models(experiment.device, experiment.dtype).get(experiment.target)
    record = _record(None, tokens=[5 + place * place % 90 for place in range(70)])
    finding = judge_samples(experiment, [record], target)
    impossible = judge_samples(experiment.replace(sampling=SamplingSpec(temperature=1.0, top_k=2)), [record], target)
    return {
        "samples of a run": _told(finding.verdict, f"{finding.evidence['tokens']}, {finding.evidence['p']:.3g}"),
        "samples that nothing can have drawn": _told(impossible.verdict, impossible.note),
    }


def _of_rows() -> dict[str, str]:
    """Return what is said of an audit's rows."""
    found = {}
    for name, row in ROWS.items():
        tests, weak = tests_of(row)
        earned, red = as_earned(row)["verdict"], is_red({"declared": "exact"} | row)
        facts = f"{len(tests)} tests, {weak} weak, untested {is_mostly_untested(row)}, red {red}"
        found[f"of {name}"] = f"{_told(str(row['verdict']), summary_of(row))}; {facts}, earns {earned}"
    return found


def _named() -> dict[str, str]:
    """Return what tables call methods, and where an experiment ran."""
    model, trained = drafted_by("llama-draft"), drafted_by("llama-draft").model
    methods: Mapping[str, MethodSpec] = {
        "lenience": MethodSpec.of("speculative", drafter=model, rule="lenience", lenience=0.3),
        "a schedule": MethodSpec.of("speculative", drafter=model, schedule="heuristic"),
        "top-1": MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), rule="top-1", cap="printed"),
        "a pipeline": MethodSpec.of("ppd", early_layer=4, execution="simulated"),
        "a trained pipeline": MethodSpec.of("ppd", early_layer=4, heads=trained),
        "beams": MethodSpec.of("speculative-beam", drafter=model, num_beams=3),
    }
    plain = plain_decoding(0, 1, 1, "text", "llama-target")
    places = {"graphs": plain.replace(graphs=True), "attention": plain.replace(attention="eager", device="cuda:1")}
    return {
        **{f"name of {name}": f"{label_of(one)} / {label_of(one, numbers=False)}" for name, one in methods.items()},
        **{f"place with {name}": place_of(one).split(" on ")[1] for name, one in places.items()},
    }


def _captured() -> dict[str, str]:
    """Return what is found of outputs of another engine: greedy and sampled, as ids, where speculation parts now and then."""
    found = {}
    for name, sampled in (("greedy", False), ("sampled", True)):
        for often in (7, 3):
            captures = [_capture(arm, sampled, often) for arm in range(3)]
            for case, given in (("", captures), (" without a control", captures[:2])):
                [group] = groups_of(given)
                finding = (judge_sampled if sampled else judge_greedy)(group, LEVEL, None, None)
                finds = f"{finding.note} {finding.evidence.get('finds_share', 0.0):.6f}"
                found[f"captured, {name}, one in {often} parts{case}"] = _told(finding.verdict, finds)
    return found


def _swapped() -> dict[str, str]:
    """Return p-values of outputs that are swapped between runs, in few units and in many, and what such a test misses."""
    found = {"units that can tell": hashed([can_reject(count, 0.01) for count in range(2, 14)])}
    for count in (9, 40):
        counts = np.array([[(3 * row + cell) % 5 - 1.0 for cell in range(3)] for row in range(count)])
        features = {"counts": Feature(counts, np.array([30.0, 20.0, 0.0])), "a number": Feature(counts[:, :1] ** 2 - 2)}
        tests = swap_tests(features, np.arange(count), 0.01)
        found[f"{count} units swapped"] = hashed([(one.name, round(one.p_value, 9), _rounded(one.missed_tv)) for one in tests])
    sums = np.array([[(5 * way + 3 * cell) % 7 - 3.0 for cell in range(4)] for way in range(50)])
    spread = np.array([[(7 * way * way + 11 * cell * way) % 41 - 20.0 for cell in range(4)] for way in range(60)])
    drawn, many = drawn_test("draws", sums, 30, 0.05), drawn_test("draws", spread, 2000, 0.05)
    chances = (fisher(5, 20, 2, 25), sign_test(9, 2), found_share(80, 0.01), found_share(80, 0.01, 0.4))
    return found | {
        "a run beside draws": f"{drawn.p_value:.9f} {_rounded(drawn.missed_tv)}",
        "a long run beside draws": f"{many.p_value:.9f} {_rounded(many.missed_tv)}",
        "shares and signs": ", ".join(f"{one:.9f}" for one in chances),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 9)


def _capture(arm: int, sampled: bool, often: int) -> Capture:
    """Make the outputs of an arm: another than the first says something else at one prompt in ``often``, from some token on."""
    outputs = []
    for number in range(PROMPTS * (SEEDS if sampled else 1)):
        prompt, seed = number % PROMPTS, number // PROMPTS
        ids = [(3 * prompt + 5 * seed * place + place * place) % 11 for place in range(LENGTH + prompt % 3)]
        if arm and (number + arm) % (often * arm) == 0:
            ids[number % LENGTH :] = [(one + 1) % 11 for one in ids[number % LENGTH :]]
        outputs.append(
            Output(
                number + 1, f"prompt {prompt}", None, None, tuple(ids), seed if sampled else None,
                Sampling(temperature=float(sampled)), (),
            )
        )  # fmt: skip
    return Capture(Path(f"arm {arm}"), tuple(outputs), {})


def _record(
    replayed: int | None, fault: Divergence | None = None, tokens: Sequence[int] = (1, 2), nats: float = 1.0, number: int = 0
) -> Record:
    found = Record(signature="known", example=f"toy-test-{number}", repeat=0, status="ok", tokens=list(tokens), nats=nats)
    return replace(found, replayed=replayed, divergence=fault)


def _told(verdict: str, said: str) -> str:
    """Return a verdict and the numbers of what is said of it, whose words may change."""
    return f"{verdict}: {numbers_in(said)}"


GROUPS = (_of_runs, _parted, _checked, _of_samples, _of_rows, _named, _captured, _swapped)
