"""Logs of other engines: written by hand to each format, against numbers by hand, against our own rounds, and damaged.

The counts of the first vLLM request, of AIPerf's first request, of the TensorRT-LLM response and of the profile are those of
the engines' own documents and tests, so what is derived from them is theirs to the digit.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probed import write_records

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.records import Record
from harness.engines import formats
from harness.engines.entries import entries_of
from harness.engines.profile import profile_of
from harness.engines.vllm import rounds_by_length
from harness.measures.counts import Counted, Counts, added
from harness.measures.definitions import definitions_of
from harness.measures.logs import Log
from methods.steps import Steps

SAMPLES = Path(__file__).parent / "engine_logs"
TOLD: dict[str, dict[str, Any]] = {
    "vllm_metrics.txt": {
        "vllm:spec_decode_num_drafts_total": 43,
        "vllm:spec_decode_num_draft_tokens_total": 129,
        "vllm:spec_decode_num_accepted_tokens_total": 10,
        "Mean acceptance length": 1.2325581395348837,
        "Avg Draft acceptance rate": 7.751937984496124,
        "Per-position acceptance rate": [4 / 43, 3 / 43, 3 / 43],
    },
    "vllm_bench.json": {
        "spec_decode_num_drafts": 12,
        "spec_decode_draft_tokens": 36,
        "spec_decode_accepted_tokens": 24,
        "spec_decode_acceptance_length": 3.0,
        "spec_decode_acceptance_rate": 66.66666666666666,
        "spec_decode_per_position_acceptance_rates": [1.0, 0.6666666666666666, 0.3333333333333333],
    },
    "vllm_requests.jsonl": {
        "num_spec_steps": 45,
        "num_draft_tokens": 134,
        "num_accepted_draft_tokens": 12,
        "acceptance_histogram": (40, 1, 1, 3),
    },
    "sglang_metrics.txt": {
        "sglang:spec_verify_calls_total": 38,
        "sglang:generation_tokens_total": 100,
        "sglang:num_requests_total": 5,
        "spec_accept_length": 100 / 38,
    },
    "sglang_requests.jsonl": {
        "spec_verify_ct": 22,
        "spec_num_correct_drafts": 12,
        "spec_num_proposed_drafts": 22,
        "spec_accept_rate": 12 / 22,
        "completion_tokens": 36,
        "spec_accept_length": 36 / 22,
        "spec_correct_drafts_histogram": (10, 12),
    },
    "sglang_server_info.json": {"avg_spec_accept_length": 2.25},
    "sglang_bench.jsonl": {"accept_length": 2.5},
    "tensorrt_llm_iterations.jsonl": {
        "numAcceptedTokens": 14,
        "numDraftTokens": 33,
        "numRequestsWithDraftTokens": 11,
        "compute_acceptance_length": 25 / 11,
        "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": 14 / 11,
    },
    "tensorrt_llm_perf_metrics.json": {
        "total_accepted_draft_tokens": 29,
        "total_draft_tokens": 72,
        "acceptance_rate": 29 / 72,
    },
    "tensorrt_llm_responses.jsonl": {
        "total_accepted_draft_tokens": 30,
        "total_draft_tokens": 66,
        "acceptance_rate": 30 / 66,
        "num_spec_steps": 22,
        "acceptance_histogram": (10, 0, 6, 6),
    },
    "aiperf_profile_export.jsonl": {
        "total_spec_decode_steps": 12,
        "total_accepted_draft_tokens": 20,
        "total_draft_tokens": 48,
        "spec_decode_acceptance_length": 2.375,
        "spec_decode_token_weighted_acceptance_length": 1 + 20 / 12,
        "spec_decode_draft_acceptance_rate": 34.375,
        "spec_decode_overall_draft_acceptance_rate": 20 / 48 * 100,
        "spec_decode_accepted_per_verified": (26 / 40 + 6 / 20) / 2,
        "pooled_spec_decode_acceptance_histogram": {"0": 4, "1": 1, "2": 3, "3": 3, "4": 1},
        "accept_length, coding": 3.25,
        "accept_length, math": 1.5,
        "accept_length, Overall": 2.375,
        "accept_rate, coding": 0.5625,
        "accept_rate, math": 0.125,
        "accept_rate, Overall": 0.34375,
    },
    "speculation_profile.json": {
        "mean_accept_length": 1.9,
        "mean_accept_length_per_request": 1.95,
        "marginal_accept_rates": [0.6, 0.3, 0.0],
        "conditional_accept_rates": [0.6, 0.5, 0.0],
    },
}
DEFINED: dict[str, dict[str, float]] = {
    "vllm_metrics.txt": {
        "accepted_over_verified": 10 / (39 + 2 + 9),  # every round drafts three
        "vllm_draft_acceptance_rate": 10 / 129,
        "vllm_mean_acceptance_length": 1 + 10 / 43,
        "position 1, joint": 4 / 43,
        "position 3, joint": 3 / 43,
        "position 2, conditional": 3 / 4,
        "position 3, conditional": 1.0,
    },
    "vllm_requests.jsonl": {
        "accepted_over_verified": 12 / (39 + 2 + 9 + 3 + 1),
        "vllm_draft_acceptance_rate": 12 / 134,
        "vllm_mean_acceptance_length": 1 + 12 / 45,
        "position 1, conditional": 5 / 45,
        "position 3, conditional": 3 / 4,
    },
    "sglang_requests.jsonl": {
        "sglang_accept_length": 1 + 12 / 22,
        "tokens_per_step": 34 / 22,  # without the token of each prompt's pass
        "tokens_per_step_mean": (19 / 10 + 15 / 12) / 2,
        "accepted_per_step": 12 / 22,
        "sglang_accept_rate": 12 / 22,
        "alpha_eq1": 12 / 22,
    },
    "sglang_metrics.txt": {"tokens_per_step": 95 / 38},  # without the token of each of five prompts' passes
    "sglang_server_info.json": {"sglang_accept_length": 2.25},
    "tensorrt_llm_iterations.jsonl": {"vllm_mean_acceptance_length": 25 / 11, "vllm_draft_acceptance_rate": 14 / 33},
    "tensorrt_llm_responses.jsonl": {"vllm_mean_acceptance_length": 1 + 30 / 22, "position 2, conditional": 1.0},
    "aiperf_profile_export.jsonl": {"vllm_mean_acceptance_length": 1 + 20 / 12, "vllm_draft_acceptance_rate": 20 / 48},
    "speculation_profile.json": {"sglang_accept_length": 1.9, "position 1, joint": 0.6, "position 2, joint": 0.3},
}


def values(log: Log | Counted) -> dict[str, float]:
    found = {one.name: one.estimate(log) for one in definitions_of([log])}
    return {name: estimate.value for name, estimate in found.items() if estimate is not None}


def test_samples_of_every_format_are_there() -> None:
    names = {formats.read(path).format for path in SAMPLES.iterdir()}
    assert names == {one.name for one in formats.FORMATS}
    assert {path.name for path in SAMPLES.iterdir()} == set(TOLD)


@pytest.mark.parametrize("name", TOLD)
def test_numbers_of_an_engine_are_reproduced_to_the_digit(name: str) -> None:
    log = formats.read(SAMPLES / name)
    assert {one.name: one.value for one in log.told} == TOLD[name]
    assert " at " in log.source


@pytest.mark.parametrize("name", DEFINED)
def test_definitions_by_hand(name: str) -> None:
    found = values(formats.read(SAMPLES / name))
    for definition, value in DEFINED[name].items():
        assert found[definition] == pytest.approx(value, abs=1e-12), definition


def test_what_is_not_counted_is_unknown() -> None:
    """vLLM counts no rounds without drafts, a profile no drafts made, TensorRT-LLM's iterations no histogram."""
    metrics, profile, iterations = (
        values(formats.read(SAMPLES / name))
        for name in ("vllm_metrics.txt", "speculation_profile.json", "tensorrt_llm_iterations.jsonl")
    )
    assert not {"sglang_accept_length", "accepted_per_step", "tokens_per_step", "alpha_overlap", "alpha_ratio"} & set(metrics)
    assert not {"vllm_draft_acceptance_rate", "accepted_over_verified", "position 1, conditional"} & set(profile)
    assert not any(name.startswith("position") for name in iterations)


def test_intervals_are_over_requests_and_a_total_has_none() -> None:
    for name, has_interval in (
        ("vllm_requests.jsonl", True),
        ("aiperf_profile_export.jsonl", True),
        ("vllm_metrics.txt", False),
    ):
        log = formats.read(SAMPLES / name)
        estimate = next(one for one in definitions_of([log]) if one.name == "vllm_mean_acceptance_length").estimate(log)
        assert estimate is not None
        assert (estimate.low is not None) == has_interval
        assert estimate.n == (2 if has_interval else 1)


def test_counts_give_what_the_rounds_themselves_give() -> None:
    """Random rounds of unequal lengths, as our records and as an engine's counts of each round: the same values."""
    random = np.random.default_rng(0)
    experiment = Experiment(
        task="text",
        target=ModelSpec(name="zoo:gpt-target"),
        method=MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=5),
        limit=6,
    )
    records, requests = [], []
    for example in "abcdef":
        drafted = [int(one) for one in random.integers(1, 6, size=9)]
        stand = [int(random.integers(0, one + 1)) for one in drafted]
        emitted = [one + 1 for one in stand]
        steps = Steps(drafted=[list(range(one)) for one in drafted], num_accepted=stand, emitted=emitted)
        records.append(
            Record(
                signature=experiment.signature,
                example=example,
                repeat=0,
                status="ok",
                tokens=list(range(sum(emitted))),
                stop_reason="length",
                steps=steps,
            )
        )
        by_length = rounds_by_length(drafted, stand, 9)
        requests.append(
            Counts(
                request=example,
                accepted=sum(stand),
                drafted=sum(drafted),
                rounds=9,
                drafting=9,
                emitted=sum(emitted),
                gamma=5,
                histogram=added(by_length.values()),
                by_length=by_length,
            )
        )
    ours, theirs = values(Log(experiment, records)), values(Counted(format="by hand", source="here", requests=requests))
    assert len(theirs) >= 19
    assert theirs == pytest.approx({name: ours[name] for name in theirs}, abs=1e-12)


def edited(tmp_path: Path, name: str, change: Callable[[str], str]) -> Path:
    path = tmp_path / name
    text = (SAMPLES / name).read_text()
    path.write_text(change(text))
    assert path.read_text() != text
    return path


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("vllm_metrics.txt", 'position="2"} 1.0', 'position="2"} 2.0', "impossible counts: of 43 rounds [4, 3, 4]"),
        (
            "vllm_metrics.txt",
            'accepted_tokens_total{engine="1",model_name="m"} 3.0',
            'accepted_tokens_total{engine="1",model_name="m"} 4.0',
            "the histogram's accepted drafts is 10, the accepted drafts 11",
        ),
        (
            "vllm_metrics.txt",
            'draft_tokens_total{engine="1",model_name="m"} 30.0',
            'draft_tokens_total{engine="1",model_name="m"} 31.0',
            "drafts made 130, 43 rounds of 3 drafts 129",
        ),
        ("vllm_metrics.txt", "} 33.0", "} NaN", "line 6: vllm:spec_decode_num_drafts_total: 'NaN'; expected a count"),
        (
            "vllm_metrics.txt",
            'num_drafts_total{engine="1"',
            'num_drafts_total{engine="0"',
            'line 7: vllm:spec_decode_num_drafts{engine="0",model_name="m"}: a second time',
        ),
        (
            "vllm_bench.json",
            '"spec_decode_acceptance_length": 3.0',
            '"spec_decode_acceptance_length": 2.0',
            "field 'spec_decode_acceptance_length': 2.0, but its own counts give 3.0",
        ),
        (
            "vllm_requests.jsonl",
            '[39, 1, 0, 3], "acc',
            '[38, 1, 0, 3], "acc',
            "line 1: impossible counts: the sum of the histogram is 42, the number of rounds 43",
        ),
        (
            "vllm_requests.jsonl",
            "1.2325581395348837",
            "0.2325581395348837",
            "field 'mean_acceptance_length': 0.2325581395348837",
        ),
        (
            "vllm_requests.jsonl",
            '"per_step_accepted": [2, 0]',
            '"per_step_accepted": [1, 1]',
            "line 2: impossible counts: histograms by length add up",
        ),
        (
            "vllm_requests.jsonl",
            '"num_draft_tokens": 5',
            '"num_draft_tokens": "5"',
            "line 2: field 'num_draft_tokens': \"5\"; expected a whole number",
        ),
        (
            "sglang_requests.jsonl",
            '"spec_accept_length": 2.0',
            '"spec_accept_length": 1.9',
            "field 'spec_accept_length': 1.9, but its own counts give 2.0",
        ),
        (
            "sglang_requests.jsonl",
            '"spec_accepted_drafts": 9',
            '"spec_accepted_drafts": 8',
            "field 'spec_accepted_drafts': 8, but spec_num_correct_drafts is 9",
        ),
        ("sglang_server_info.json", "2.25", "0.25", "avg_spec_accept_length is 0.25"),
        (
            "tensorrt_llm_iterations.jsonl",
            '"acceptanceLength": 2.5',
            '"acceptanceLength": 1.5',
            "line 2: field 'acceptanceLength': 1.5",
        ),
        (
            "tensorrt_llm_perf_metrics.json",
            '"total_draft_tokens": 12',
            '"total_draft_tokens": 8',
            "element 2: field 'acceptance_rate': 0.75, but its own counts give 1.125",
        ),
        (
            "tensorrt_llm_responses.jsonl",
            "[8, 0, 6, 6]",
            "[8, 0, 7, 5]",
            "the histogram's accepted drafts is 29, the accepted drafts 30",
        ),
        ("aiperf_profile_export.jsonl", '"0": 3, "2": 1', '"0": 3, "9": 1', "line 3: impossible counts"),
        ("speculation_profile.json", "[0.6, 0.3, 0.0]", "[0.9, 0.6, 0.3]", "field 'marginal_accept_rates[0]': 0.9"),
        (
            "speculation_profile.json",
            '"mean_accept_length": 1.9',
            '"mean_accept_length": 2.9',
            "field 'mean_accept_length': 2.9",
        ),
        ("speculation_profile.json", '"measured": true', '"measured": false', "nothing was measured"),
    ],
)
def test_an_impossible_log_is_refused_by_name(
    name: str, old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = edited(tmp_path, name, lambda text: text.replace(old, new))
    assert main(["acceptance", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert str(path) in error
    assert error.count("\n") == 1


VLLM_LABELS = '{engine="0",model_name="m"}'
VLLM_MADE = "vllm:spec_decode_num_drafts_created"


def later(text: str, changes: dict[str, float]) -> str:
    """A dump some time after another: the values of these lines have grown."""
    lines = text.splitlines()
    for name, more in changes.items():
        [number] = [number for number, line in enumerate(lines) if line.startswith(name)]
        begin, value = lines[number].rsplit(" ", 1)
        lines[number] = f"{begin} {float(value) + more}"
    return "\n".join(lines) + "\n"


def vllm_later(text: str) -> str:
    """What the benchmark of ``vllm_bench.json`` did on the server of ``vllm_metrics.txt``, spread over its two engines."""
    prefix, one, two = "vllm:spec_decode_num_", VLLM_LABELS, VLLM_LABELS.replace("0", "1")
    by_position = {
        f'{prefix}accepted_tokens_per_pos_total{labels[:-1]},position="{place}"}}': more
        for labels, counts in ((one, (7, 3, 1)), (two, (5, 5, 3)))
        for place, more in enumerate(counts)
    }
    totals = {"drafts": (7, 5), "draft_tokens": (21, 15), "accepted_tokens": (11, 13)}
    of_engines = {
        f"{prefix}{name}_total{labels}": more
        for name, counts in totals.items()
        for labels, more in zip((one, two), counts, strict=True)
    }
    return later(text, by_position | of_engines)


def test_two_dumps_of_vllm_give_what_its_benchmark_gives(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """To the digit the numbers of the benchmark's own result, whose server had worked before.

    Fault: totals since the server's start, of 43 rounds more.
    """
    before, after = SAMPLES / "vllm_metrics.txt", edited(tmp_path, "vllm_metrics.txt", vllm_later)
    assert main(["acceptance", "--before", str(before), str(after), "--json", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    assert "vLLM, metrics endpoint, gamma 3; a total since vllm_metrics.txt\n" in shown
    assert "--before with" not in shown
    [facts] = json.loads((tmp_path / "out.json").read_text())["records"]
    assert facts["since"] == "vllm_metrics.txt"
    assert [one["value"] for one in facts["told"]] == list(TOLD["vllm_bench.json"].values())
    assert values(formats.read_between(before, after)) == values(formats.read(SAMPLES / "vllm_bench.json"))
    assert main(["acceptance", str(after)]) == 0
    assert "a total since the server's start\n" in (shown := capsys.readouterr().out)
    assert "[1]: all that the server did; --before with an earlier dump" in shown


def test_two_dumps_of_sglang_count_its_requests_in_between(tmp_path: Path) -> None:
    """By hand: two requests of 8 and 6 tokens in 5 rounds. What no earlier dump has began in between, at 0."""
    changes = {
        'sglang:generation_tokens_total{is_streaming="true"': 14,
        "sglang:spec_verify_calls": 5,
        'sglang:num_requests_total{is_streaming="true"': 2,
    }
    after = edited(tmp_path, "sglang_metrics.txt", lambda text: later(text, changes))
    log = formats.read_between(SAMPLES / "sglang_metrics.txt", after)
    assert [one.value for one in log.told] == [5, 14, 2, 14 / 5]
    assert values(log) == {"tokens_per_step": 12 / 5, "eagle_tau": 12 / 5}
    fresh = tmp_path / "fresh.txt"
    fresh.write_text('sglang:num_running_reqs{model_name="m"} 0.0\n')
    assert formats.read_between(fresh, SAMPLES / "sglang_metrics.txt").told == formats.read(SAMPLES / "sglang_metrics.txt").told
    odd = edited(tmp_path, "sglang_metrics.txt", lambda text: text.replace("} 2.0", "} 70.0"))
    assert values(formats.read(odd)) == {}  # 100 tokens of 73 requests cannot be of 38 rounds as well


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("later", "sample", f"after.txt: line 6: vllm:spec_decode_num_drafts{VLLM_LABELS}: 33, but 40 in the earlier dump"),
        ("sample", "restarted", f"after.txt: line 6: vllm:spec_decode_num_drafts{VLLM_LABELS}: made at another time than in"),
        ("renamed", "sample", 'before.txt: line 6: vllm:spec_decode_num_drafts{engine="0",model_name="n"}: absent in'),
        ("sample", "sample", "after.txt: nothing was drafted since"),
        ("foreign", "sample", "before.txt: line 1: no line of vllm: in the file; expected an earlier dump of the server of"),
        ("plain", "sample", "before.txt: line 1: no vllm:spec_decode_num_drafts in the dump; expected one of the same server"),
        ("json", "sample", "before.txt: line 1: no line of vllm: in the file"),
        ("sample", "requests", "after.txt is of another kind (vLLM, acceptance of each request); expected a dump of"),
        ("sample", "absent", "after.txt is no engine's log; expected the later dump"),
        ("absent", "sample", "before.txt: cannot be read"),
    ],
)
def test_dumps_that_cannot_be_subtracted_are_refused(
    before: str, after: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A server that was started anew counts from 0: also where it has counted further since, which the time of making tells."""
    text = (SAMPLES / "vllm_metrics.txt").read_text()
    texts = {
        "sample": text,
        "later": vllm_later(text),
        "restarted": later(vllm_later(text), {VLLM_MADE: 60.0}),
        "renamed": text.replace('model_name="m"', 'model_name="n"'),
        "foreign": "node_cpu_seconds_total 3.5\n",
        "plain": 'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n',
        "json": '{"vllm:": 1}',
        "requests": (SAMPLES / "vllm_requests.jsonl").read_text(),
    }
    for name, kind in (("before.txt", before), ("after.txt", after)):
        if kind != "absent":
            (tmp_path / name).write_text(texts[kind])
    assert main(["acceptance", "--before", str(tmp_path / "before.txt"), str(tmp_path / "after.txt")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_earlier_dump_is_of_one_log(capsys: pytest.CaptureFixture) -> None:
    path = str(SAMPLES / "vllm_metrics.txt")
    assert main(["acceptance", path, path, "--before", path]) == 2
    assert f"--before {path}: 2 logs; expected one, the later dump" in capsys.readouterr().err


def test_a_list_of_lines_and_numbers_is_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "log.json"
    path.write_text('["vllm:spec_decode_num_drafts_total 3", 5]')
    assert main(["acceptance", str(path)]) == 2
    assert "element 2: '5': not a line of Prometheus' text format" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"hello": 1}\n{"hello": 2}\n', "line 1 fits no format; tried: our records"),
        ("hello\nworld\n", "line 1 fits no format; tried: our records"),
        ("", "empty"),
        ("\x00\n", "line 1 fits no format"),
        ('{"iter": 1, "specDecodingStats": {"numDraftTokens": 0, "numAcceptedTokens": 0}}', "numRequestsWithDraftTokens"),
        ('{"a": 1}\n{"b": \n{"c": 1}\n', "line 2: no JSON"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_log_ends_in_one_line(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    assert main(["acceptance", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) within what JSON holds."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [inner for key in keys for inner in places(value[key])]


@pytest.mark.parametrize("name", [name for name in TOLD if not name.endswith(".txt")])
def test_whatever_stands_in_a_field_ends_in_a_line_or_in_numbers(name: str, tmp_path: Path) -> None:
    """Each field in turn is replaced; what is then read has finite values that JSON can hold. It caught 10^30 drafts."""
    path, entries = tmp_path / "log.jsonl", [entry.value for entry in entries_of(SAMPLES / name)]
    read: list[Counted] = []
    for container, key in places(entries):
        kept = container[key]
        for junk in (None, -1, 10**30, float("nan"), "x", [], {}):
            container[key] = junk
            path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
            with suppress(UsageError):
                read.append(formats.read(path))
        container[key] = kept
    different = {json.dumps([one.value for one in log.told], allow_nan=False): log for log in read}
    assert len(read) > 20
    assert all(np.isfinite(value) for log in different.values() for value in values(log).values())


def test_an_entry_that_does_not_fit_is_named_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = edited(tmp_path, "vllm_requests.jsonl", lambda text: text + '{"id": "5", "choices": []}\n')
    assert main(["acceptance", str(path)]) == 2
    assert "line 6: no metrics.speculative_decoding; start the server with" in capsys.readouterr().err


def test_a_torn_last_line_is_left_out_and_named(tmp_path: Path) -> None:
    whole = formats.read(SAMPLES / "tensorrt_llm_iterations.jsonl")
    path = edited(tmp_path, "tensorrt_llm_iterations.jsonl", lambda text: text + '{"iter": 4, "specDeco')
    lines = path.read_text().count("\n") + 1
    assert formats.read(path) == replace(whole, passed_over=[f"line {lines}"])


def test_a_few_lines_without_json_are_passed_over_and_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Two writers tore a line, and a warning stands between: the other 38 requests are read as they would be alone.

    Fault: one such line refuses all others. Where every tenth and more is torn the file is not what it is taken for.
    """
    request = json.dumps(sglang_request([2, 1, 0], 2)) + "\n"
    torn, path, out = request[:40] + "\n", tmp_path / "log.jsonl", tmp_path / "out.json"
    path.write_text(request * 38)
    whole = formats.read(path)
    path.write_text(request * 5 + torn + request * 20 + "WARNING: slow disk\n" + request * 13)
    assert values(formats.read(path)) == values(whole)
    assert main(["acceptance", str(path), "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "38 requests, 0 left out" in shown
    assert "[1]: 2 passed over that hold no JSON (line 6, line 27); all others were read." in shown
    assert json.loads(out.read_text())["records"][0]["passed_over"] == ["line 6", "line 27"]
    path.write_text(request * 5 + torn + request * 4 + torn + request * 7)
    assert main(["acceptance", str(path)]) == 2
    assert (
        "line 6: no JSON; expected one JSON document, or one on each line: mend or remove 2 of 18 lines"
        in capsys.readouterr().err
    )


def test_streamed_events_are_read(tmp_path: Path) -> None:
    """The pieces of a stream before its last carry no metrics, and a comment of the stream none either."""
    line = (SAMPLES / "vllm_requests.jsonl").read_text().splitlines()[0]
    piece = '{"object": "chat.completion.chunk", "choices": [{"delta": {"content": "a"}}]}'
    path = tmp_path / "stream.txt"
    for begin in ("", "event: message\nid: 1\n", ": ping\n\n", "\ufeffevent:x\r\n"):
        path.write_text(f"{begin}data: {piece}\n\nevent: message\ndata:{line}\n\ndata: [DONE]\n", encoding="utf8")
        assert len(entries_of(path)) == 2
        log = formats.read(path)
        assert (len(log.requests), log.num_left_out) == (1, 0)


def sglang_request(stand: list[int], nodes: int) -> dict[str, Any]:
    """A request whose rounds each drafted ``nodes`` tokens, of which so many stood."""
    histogram = [stand.count(number) for number in range(max(stand) + 1)]
    counts = {"spec_verify_ct": len(stand), "spec_num_correct_drafts": sum(stand)}
    return {"meta_info": {**counts, "spec_num_proposed_drafts": nodes * len(stand), "spec_correct_drafts_histogram": histogram}}


def sglang_server(topk: int | None, steps: int, nodes: int) -> dict[str, Any]:
    settings = {"speculative_num_steps": steps, "speculative_num_draft_tokens": nodes + 1, "internal_states": [{}]}
    return settings if topk is None else {**settings, "speculative_eagle_topk": topk}


def sglang_router(*servers: dict[str, Any]) -> dict[str, Any]:
    return {"prefill": [], "decode": list(servers)}


@pytest.mark.parametrize(
    ("entries", "shape"),
    [
        ([sglang_request([2, 1, 3], 7)], "unknown"),  # no round has all seven stand: perhaps a tree of three steps
        ([sglang_request([2, 1, 3], 3)], "unknown"),  # all three stand once: one path in that round, perhaps not in others
        ([sglang_request([1, 0, 1], 1)], "chain"),  # one draft a round has no branches
        ([sglang_request([2, 1, 3], 3), sglang_server(1, 3, 3)], "chain"),
        ([sglang_request([2, 1, 3], 7), sglang_server(4, 3, 7)], "tree"),
        ([sglang_server(None, 3, 7), sglang_request([2, 1, 3], 7)], "tree"),  # more nodes than one path of three steps has
        ([sglang_server(None, 5, 3), sglang_request([2, 1, 3], 3)], "unknown"),
        ([sglang_request([2, 1, 3], 7), sglang_server(1, 7, 7)], "chain"),
        ([sglang_request([2, 1, 3], 3), sglang_server(2, 5, 3)], "tree"),
        ([sglang_request([2, 1, 3], 3), sglang_router(sglang_server(1, 3, 3))], "chain"),
        ([sglang_request([2, 1, 3], 3), sglang_router(sglang_server(1, 3, 3), sglang_server(2, 5, 3))], "tree"),
        ([sglang_request([2, 1, 3], 3), sglang_router(sglang_server(1, 3, 3), sglang_server(None, 5, 3))], "unknown"),
    ],
)
def test_a_tree_is_not_read_as_a_chain(
    entries: list[dict[str, Any]], shape: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Fault: seven nodes of three steps are a chain of seven, of which draft 4 never stands and alpha is far too low.

    Nor is a chain believed in because all drafts of a round stand: trees of SGLang are grown anew in every round.
    """
    path, out = tmp_path / "log.jsonl", tmp_path / "out.json"
    path.write_text("".join(json.dumps(one) + "\n" for one in entries))
    log = formats.read(path)
    found = values(log)
    of_a_chain = {"accepted_over_verified", "alpha_eq1", "sglang_accept_rate", "position 1, joint", "position 1, conditional"}
    assert of_a_chain & found.keys() == (of_a_chain - {"alpha_eq1"} if shape == "chain" else set())  # no tokens are told
    [request] = log.requests
    assert found["sglang_accept_length"] == pytest.approx(1 + request.accepted / request.rounds)
    place = next(one for one in definitions_of([log]) if one.name == "position 1, joint")
    told = {
        "tree": "its drafts are a tree: alpha by place",
        "unknown": "a chain or a tree, so alpha by place is, too; add the server's",
    }
    assert [name for name, words in told.items() if words in place.reason(log)] == [shape][: shape != "chain"]
    assert (log.histograms is None) == (shape != "chain")
    assert main(["acceptance", str(path), "--json", str(out)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert {"chain": ", gamma ", "tree": ", drafts a tree;", "unknown": ", unknown which;"}[shape] in first
    assert json.loads(out.read_text())["records"][0]["drafts"] == shape
    if shape != "chain":
        assert main(["acceptance", str(path), "--profile-out", str(out)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert ("add the server's /server_info as a line of the file" in line) == (shape == "unknown")


NGRAM = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 5, "speculative_eagle_topk": 1}


def test_sglangs_ngrams_are_a_tree_whatever_their_breadth(tmp_path: Path) -> None:
    """Fault: of breadth 1 they were read as a chain; they are one for each suffix that matches."""
    path = tmp_path / "log.jsonl"
    server = {**sglang_server(1, 4, 5), **NGRAM}
    path.write_text("".join(json.dumps(one) + "\n" for one in (sglang_request([2, 1, 0, 0, 0], 4), server)))
    [request] = formats.read(path).requests
    assert request.is_tree


@pytest.mark.parametrize("varied", ["request", "server"])
def test_drafts_that_sglang_may_not_have_verified_are_unknown(varied: str, tmp_path: Path) -> None:
    """Fault: rounds times the most drafts of a round were taken for what was verified, and alpha came out too low."""
    request, server = sglang_request([2, 1, 0], 2), sglang_server(1, 2, 3)
    if varied == "request":
        request["meta_info"]["spec_cap_lens_histogram"] = [0, 2, 1]
    else:
        server["speculative_adaptive"] = True
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (request, server)))
    found = formats.read(path)
    assert (found.requests[0].gamma, found.requests[0].drafted, found.requests[0].lengths) == (None, None, None)
    assert not {"accepted_over_verified", "accepted_over_drafted", "position 1, conditional"} & values(found).keys()
    assert "spec_accept_rate" not in [one.name for one in found.told]


def test_a_first_line_that_is_torn_is_passed_over(tmp_path: Path) -> None:
    """As log rotation leaves it. Fault: the file was taken for a text and refused."""
    request, path = json.dumps(sglang_request([2, 1, 0], 2)), tmp_path / "log.jsonl"
    path.write_text(request[-40:] + "\n" + (request + "\n") * 20)
    read = formats.read(path)
    assert (len(read.requests), read.passed_over) == (20, ["line 1"])


def recorded_rounds(folder: Path, steps: Steps) -> Path:
    """A file of records with one text of five tokens, by a drafter that copies."""
    experiment = Experiment(
        task="text",
        target=ModelSpec(name="zoo:gpt-target"),
        method=MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=2),
        limit=1,
    )
    record = Record(
        signature=experiment.signature,
        example="a",
        repeat=0,
        status="ok",
        tokens=list(range(5)),
        stop_reason="length",
        steps=steps,
    )
    return write_records(folder, experiment, [record])


def test_a_profile_of_rounds_that_drafted_different_numbers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Fault: rates by position, and a mean "by k", were those of the schedule: 10 of 45 where 10 of 15 could decide."""
    steps = Steps(drafted=[[1, 2], [3], [4, 5]], num_accepted=[2, 0, 0], emitted=[3, 1, 1])
    path, out = recorded_rounds(tmp_path, steps), tmp_path / "profile.json"
    assert main(["acceptance", str(path), "--profile-out", str(out)]) == 2
    assert "1 of 3 rounds drafted fewer tokens than the others" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("num_requests", "shown"), [(29, "2.000 "), (30, "]~ "), (99, "]~ "), (100, "] ")])
def test_intervals_of_few_requests(num_requests: int, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path, out = tmp_path / "log.jsonl", tmp_path / "out.json"
    requests = [sglang_request([number % 3, 1, 2 - number % 3], 2) for number in range(num_requests)]
    requests[0] = sglang_request([0, 0, 0], 2)
    requests[1] = sglang_request([2, 2, 2], 2)
    path.write_text("".join(json.dumps(one) + "\n" for one in requests))
    assert main(["acceptance", str(path), "--json", str(out)]) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("sglang_accept_length"))
    assert shown in line
    rows = {row["name"]: row["columns"][0] for row in json.loads(out.read_text())["definitions"]}
    assert (rows["sglang_accept_length"]["low"] is None) == (num_requests < 30)


@pytest.mark.parametrize("name", ["vllm_requests.jsonl", "vllm_metrics.txt", "tensorrt_llm_perf_metrics.json"])
def test_byte_order_marks_and_line_ends_of_windows_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + (SAMPLES / name).read_bytes().replace(b"\n", b"\r\n"))
    assert formats.read(path) == formats.read(SAMPLES / name)


def test_schedulers_that_differ_are_not_averaged(tmp_path: Path) -> None:
    states = [{"avg_spec_accept_length": value} for value in (2.0, 3.0)]
    path = tmp_path / "info.json"
    path.write_text(json.dumps({"internal_states": states}))
    log = formats.read(path)
    assert [one.value for one in log.told] == [2.0, 3.0]
    assert "sglang_accept_length" not in values(log)


def test_the_command_prints_both_and_says_why_a_total_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    paths = [str(SAMPLES / name) for name in ("vllm_requests.jsonl", "vllm_metrics.txt")]
    assert main(["acceptance", *paths, "--json", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    lines = {line.removeprefix("    ").split("  ")[0]: line for line in shown.splitlines() if line.strip()}
    assert "vLLM, acceptance of each request, gamma 3; 2 requests, 2 left out" in shown
    assert lines["vllm_mean_acceptance_length"].split()[1] == "1.267"  # of two requests without an interval
    assert "1.2325581395348837" in lines["Mean acceptance length"]
    assert "vllm_mean_acceptance_length: bonus counted" in lines["Mean acceptance length"]
    assert "[2]: no interval; a total tells no requests apart" in shown
    document = json.loads((tmp_path / "out.json").read_text())
    assert [one["num_requests"] for one in document["records"]] == [2, None]
    told = {one["name"]: one["value"] for one in document["records"][1]["told"]}
    assert told["Mean acceptance length"] == 1.2325581395348837


def test_a_profile_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "speculation_profile.json"
    assert main(["acceptance", str(SAMPLES / "vllm_requests.jsonl"), "--profile-out", str(path)]) == 0
    written = json.loads(path.read_text())
    assert written["acceptance_length_histogram"] == {"1": 40, "2": 1, "3": 1, "4": 3}
    assert written["mean_accept_length"] == round(1 + 12 / 45, 6)
    assert written["mean_accept_length_per_request"] == round((1 + 10 / 43 + 2.0) / 2, 6)
    assert written["marginal_accept_rates"] == [round(n / 45, 6) for n in (5, 4, 3)]
    assert written["conditional_accept_rates"] == [round(n, 6) for n in (5 / 45, 4 / 5, 3 / 4)]
    assert all(check["passed"] for check in written["validation"].values())
    assert written["measurement_conditions"]["intervals"]["mean_accept_length"] is None  # two requests are too few
    again = formats.read(path)
    assert {one.name: one.value for one in again.told}["mean_accept_length"] == written["mean_accept_length"]
    assert again.requests[0].histogram == (40, 1, 1, 3)


def test_a_profile_has_the_fields_of_its_format() -> None:
    """Written from NVIDIA's own test histogram; every field of theirs is there, and their numbers are."""
    theirs = json.loads((SAMPLES / "speculation_profile.json").read_text())
    ours = profile_of([(40, 30, 30)], 3, {}, {})
    assert set(theirs) | {"producer"} == set(ours)
    for name in ("conditional_accept_rates", "marginal_accept_rates", "mean_accept_length", "acceptance_length_histogram"):
        assert ours[name] == theirs[name]


def test_a_profile_of_our_records(tmp_path: Path) -> None:
    """Rounds that drafted alone count, and a file of records is told from an engine's by its lines."""
    steps = Steps(drafted=[[1, 2], [3, 4], []], num_accepted=[2, 0, 0], emitted=[3, 1, 1])
    path, out = recorded_rounds(tmp_path, steps), tmp_path / "profile.json"
    assert main(["acceptance", str(path), "--profile-out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert written["acceptance_length_histogram"] == {"1": 1, "3": 1}
    assert written["target_model"] == {"name": "zoo:gpt-target"}
    assert written["marginal_accept_rates"] == [0.5, 0.5]
    assert written["accept_length_model"] == "measured_per_k"
    [again] = formats.read(out).requests
    assert (again.rounds, again.drafting) == (None, 2)  # the plain step is in no profile of ours


def test_records_whose_first_line_is_damaged_are_still_records(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """An engine's log beside a file of the same name is the engine's; a damaged line of ours is named as ours."""
    experiment = Experiment(task="text", target=ModelSpec(name="zoo:gpt-target"), method=MethodSpec(name="autoregressive"))
    path = write_records(tmp_path, experiment, [])
    path.write_bytes(b'{"signatu\n')
    assert main(["acceptance", str(path)]) == 2
    assert "not a record" in capsys.readouterr().err
    path.write_bytes((SAMPLES / "aiperf_profile_export.jsonl").read_bytes())
    assert main(["acceptance", str(path)]) == 0


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("vllm_requests.jsonl", "vllm_bench.json"), "--profile-out: 2 logs"),
        (("tensorrt_llm_perf_metrics.json",), "does not count rounds by accepted drafts"),
        (("sglang_server_info.json",), "nothing was measured"),
    ],
)
def test_a_profile_of_nothing_is_not_written(
    names: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "profile.json"
    assert main(["acceptance", *(str(SAMPLES / name) for name in names), "--profile-out", str(out)]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


REQUEST = {"num_spec_steps": 2, "num_draft_tokens": 4, "num_accepted_draft_tokens": 2, "acceptance_histogram": [1, 0, 1]}


def test_a_separator_in_a_text_ends_no_line(tmp_path: Path) -> None:
    """JSON Lines end with a newline alone; U+2028 and its like stand in texts as they are."""
    path = tmp_path / "responses.jsonl"
    line = {"choices": [{"text": "a\u2028b\u0085c"}], "metrics": {"speculative_decoding": REQUEST}}
    path.write_text(2 * (json.dumps(line, ensure_ascii=False) + "\n"), encoding="utf8")
    assert len(formats.read(path).requests) == 2


@pytest.mark.parametrize(
    "line",
    [
        {
            "metadata": {},
            "spec_decode_acceptance": {
                "num_spec_steps": 1,
                "num_draft_tokens": 30_000,
                "num_accepted_draft_tokens": 20_000,
                "acceptance_histogram": {"20000": 1},
                "mean_acceptance_length": 20_001.0,
            },
        },
        {"internal_states": [{"avg_spec_accept_length": 10**400}]},
    ],
)
def test_numbers_that_no_engine_has_are_refused(tmp_path: Path, line: dict[str, Any]) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(UsageError, match="line 1"):
        formats.read(path)


@pytest.mark.parametrize(
    "counts",
    [
        {"accepted": 5, "drafted": 10, "rounds": 0},
        {"accepted": 1, "drafted": 3, "rounds": 1, "gamma": 2, "by_length": {3: [0, 1]}},
    ],
)
def test_counts_that_no_run_leaves_are_refused(counts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="impossible counts"):
        Counts(request="one", **counts)


def aiperf_log(tmp_path: Path, *blocks: dict[str, Any]) -> Path:
    path = tmp_path / "profile_export.jsonl"
    path.write_text("".join(json.dumps({"metadata": {}, "spec_decode_acceptance": block}) + "\n" for block in blocks))
    return path


def test_what_aiperf_invents_for_llama_cpp_is_unknown(tmp_path: Path) -> None:
    """It spreads 10 accepted drafts of 24 emitted tokens evenly over 14 steps. Fault: that was read as a measured histogram."""
    block = {
        "engine": "llamacpp",
        "mean_acceptance_length": 1 + 10 / 14,
        "draft_acceptance_rate": 10 / 16,
        "acceptance_histogram": {"1": 10, "0": 4},
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 16,
        "num_spec_steps": 14,
        "num_spec_tokens": None,
    }
    log = formats.read(aiperf_log(tmp_path, block, block))
    assert values(log) == {"vllm_draft_acceptance_rate": 20 / 32}
    told = {one.name: one.value for one in log.told}
    assert told["pooled_spec_decode_acceptance_histogram"] is None
    assert (told["total_spec_decode_steps"], told["total_draft_tokens"]) == (28, 32)
    assert told["spec_decode_acceptance_length"] == 1 + 10 / 14


def test_rounds_whose_drafts_a_grammar_ruled_out_are_read(tmp_path: Path) -> None:
    """vLLM counts such a round and none of its drafts; AIPerf's mean rate has 0 for a request without any. Fault: refused."""
    block = {
        "engine": "vllm",
        "mean_acceptance_length": 1.0,
        "draft_acceptance_rate": 0.0,
        "acceptance_histogram": {"0": 3},
        "num_accepted_draft_tokens": 0,
        "num_draft_tokens": 0,
        "num_spec_steps": 3,
        "num_spec_tokens": 4,
    }
    more = {"acceptance_histogram": {"0": 2, "4": 1}, "num_accepted_draft_tokens": 4, "num_draft_tokens": 8}
    log = formats.read(
        aiperf_log(tmp_path, block, block | more | {"mean_acceptance_length": 7 / 3, "draft_acceptance_rate": 0.5})
    )
    told = {one.name: one.value for one in log.told}
    assert told["spec_decode_draft_acceptance_rate"] == 25.0
    assert told["spec_decode_overall_draft_acceptance_rate"] == 50.0
    assert values(log)["vllm_mean_acceptance_length"] == 1 + 4 / 6
    path = tmp_path / "requests.jsonl"
    counted = {"num_spec_steps": 3, "num_draft_tokens": 2, "num_accepted_draft_tokens": 1, "acceptance_histogram": [2, 1, 0]}
    detail = {"per_step_drafted": [0, 2, 0], "per_step_accepted": [0, 1, 0]}
    path.write_text(json.dumps({"metrics": {"speculative_decoding": counted | detail}}) + "\n")
    found = values(formats.read(path))
    assert (found["position 1, conditional"], found["accepted_over_verified"]) == (1.0, 1 / 2)


def test_aiperf_rates_of_single_precision_are_read(tmp_path: Path) -> None:
    """Fault: 7 / 3 as a float32 was called impossible. What is off by more than its rounding still is."""
    block = {
        "engine": "vllm",
        "mean_acceptance_length": float(np.float32(7 / 3)),
        "draft_acceptance_rate": float(np.float32(4 / 11)),
        "acceptance_histogram": {"0": 2, "4": 1},
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 11,
        "num_spec_steps": 3,
    }
    [found] = formats.read(aiperf_log(tmp_path, block)).requests
    assert (found.accepted, found.drafted) == (4, 11)
    with pytest.raises(UsageError, match=r"field 'draft_acceptance_rate': 0\.3637"):
        formats.read(aiperf_log(tmp_path, block | {"draft_acceptance_rate": 0.3637}))


def test_a_profile_with_a_length_that_no_round_has(tmp_path: Path) -> None:
    """Rates by hand as specdec_bench writes them for 4 rounds of 1, 3, 3 and 4 tokens. Fault: its 0 was called impossible."""
    path, sample = tmp_path / "speculation_profile.json", json.loads((SAMPLES / "speculation_profile.json").read_text())
    sample |= {"num_speculative_tokens": 4, "acceptance_length_histogram": {"1": 1, "3": 2, "4": 1}, "mean_accept_length": 2.75}
    sample |= {"marginal_accept_rates": [0.0, 0.75, 0.25, 0.0], "conditional_accept_rates": [0.0, 0.75, 0.333333, 0.0]}
    path.write_text(json.dumps(sample))
    log = formats.read(path)
    told = {one.name: one.value for one in log.told}
    assert (told["marginal_accept_rates"], told["conditional_accept_rates"]) == ([0, 0.75, 0.25, 0], [0, 0.75, 1 / 3, 0])
    found = values(log)
    assert [found[f"position {place}, joint"] for place in (1, 2, 3)] == [0.75, 0.75, 0.25]
    dense = {"marginal_accept_rates": [0.75, 0.75, 0.25, 0.0], "conditional_accept_rates": [0.75, 1.0, 0.333333, 0.0]}
    path.write_text(json.dumps(sample | dense))
    assert values(formats.read(path)) == found
    path.write_text(json.dumps(sample | {"marginal_accept_rates": [0.0, 0.0, 0.25, 0.0]}))
    with pytest.raises(UsageError, match=r"field 'marginal_accept_rates\[1\]': 0.0, but its own counts give 0.75"):
        formats.read(path)


DETAILS = {
    "spec_accept_rate": 0.9,
    "spec_accept_length": 2.0,
    "spec_num_correct_drafts": 9,
    "spec_num_proposed_drafts": 10,
    "spec_verify_ct": 10,
    "spec_correct_drafts_histogram": [1, 9],
    "spec_cap_length": 0.0,
    "spec_cap_lens_histogram": [],
}


def sglext_log(tmp_path: Path, *responses: dict[str, Any]) -> Path:
    path = tmp_path / "responses.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in responses))
    return path


def test_sglang_details_of_an_openai_response_are_read(tmp_path: Path) -> None:
    """Whole, of two choices, and streamed. Fault: such a file was of no known format."""
    whole = {"object": "text_completion", "choices": [{"text": "a"}], "sglext": {"spec_tokens_details": DETAILS}}
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": 20}}
    [found] = formats.read(sglext_log(tmp_path, whole | usage)).requests
    assert (found.accepted, found.drafted, found.rounds, found.histogram, found.emitted) == (9, 10, 10, (1, 9), 19)
    bare = {**DETAILS, "spec_correct_drafts_histogram": [], "spec_accept_length": 0.0}
    two = {"object": "text_completion", "choices": [{}, {}], "sglext": {"spec_tokens_details": [DETAILS, bare]}}
    requests = formats.read(sglext_log(tmp_path, two | usage)).requests
    assert [(one.accepted, one.histogram, one.emitted) for one in requests] == [(9, (1, 9), None), (9, None, None)]
    piece = {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "a"}}]}
    last = {"object": "chat.completion.chunk", "choices": [], "sglext": {"spec_tokens_details": DETAILS}}
    assert len(formats.read(sglext_log(tmp_path, piece, last)).requests) == 1


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (
            {"spec_correct_drafts_histogram": [2, 8]},
            "impossible counts: the histogram's accepted drafts is 8, the accepted drafts 9",
        ),
        ({"spec_num_correct_drafts": 11}, "impossible counts: accepted drafts 11, drafts made 10"),
        ({"spec_accept_length": 1.5}, "field 'spec_accept_length': 1.5, but its own counts give 2.0"),
        (
            [DETAILS, DETAILS],
            "field 'sglext.spec_tokens_details': of 2 choices; expected 1, as return_spec_tokens_details gives",
        ),
        (None, "field 'sglext.spec_tokens_details': of 0 choices; expected 1, as return_spec_tokens_details gives"),
    ],
)
def test_sglang_details_that_do_not_add_up_are_refused(details: Any, said: str, tmp_path: Path) -> None:
    good = {"choices": [{}], "usage": {"completion_tokens": 20}, "sglext": {"spec_tokens_details": DETAILS}}
    given = DETAILS | details if isinstance(details, dict) else details
    with pytest.raises(UsageError) as error:
        formats.read(sglext_log(tmp_path, good, {**good, "sglext": {"spec_tokens_details": given}}))
    assert f"line 2: {said}" in str(error.value)
