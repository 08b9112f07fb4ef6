"""transformers' own loops as methods and beside ours: through the command line, in numbers, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from harness.cli.main import main
from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.record_files import load_experiment, load_records
from harness.core.records import Divergence, Record
from harness.exact.checks import check_exact
from harness.exact.ground import ModelGround
from harness.exact.run_verdict import judge_samples
from harness.exact.subjects import SIZES, zoo_subjects
from harness.measures.frames import frame
from harness.measures.statistics import Missing
from harness.models.fit import Models
from harness.report.pinned import plain_decoding
from harness.run.build import build_method
from harness.run.peers import as_text, measured, peer_method, with_peers
from harness.run.runner import Runner, pin
from harness.zoo.build import ensure
from methods import transformers_generate
from methods.sampling import Sampling

NAMES = ("generate", "assistant", "prompt-lookup")
DRAFT = DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a Llama of two layers and random weights, with a tokenizer of the zoo's."""
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = AutoTokenizer.from_pretrained(ensure(["gpt-draft"], "test", "toy", workers=0)["gpt-draft"])
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def arguments(folder: Path, *more: str, **changes: str) -> list[str]:
    values = {"profile": "test", "task": "text", "target": "zoo:gpt-target", "limit": "3", "max-new-tokens": "16"}
    values |= {"records": str(folder), "threads": "1"} | changes
    return ["run", "--quiet", *(part for name, value in values.items() for part in (f"--{name}", value)), *more]


def run(capsys: pytest.CaptureFixture, *words: str) -> tuple[dict, str]:
    assert main(words) == 0, capsys.readouterr().err
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out.splitlines()[-1]), captured.out


def test_one_command_runs_both_and_says_which_is_faster(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """All arms in turns in one process, the same tokens, the same rounds as ours where the drafts are the same."""
    asked = [part for name in NAMES for part in ("--peer", name)]
    words = arguments(tmp_path, *asked, method="speculative", draft="zoo:gpt-draft", gamma="3")
    found, shown = run(capsys, *words)
    assert [peer["name"] for peer in found["peers"]] == list(NAMES)
    for peer in found["peers"]:
        assert (peer["audit"]["verdict"], peer["audit"]["compared"], peer["refused"]) == ("identical", 3, None)
        for name in ("over_plain", "ours_over_it"):
            assert 0 < peer[name]["low"] <= peer[name]["value"] <= peer[name]["high"]
        assert peer["ours_over_it"]["value"] == pytest.approx(
            found["metrics"]["speedup"]["value"] / peer["over_plain"]["value"]
        )
        assert f"transformers {peer['name']}" in shown
    rounds = [peer["tokens_per_step"]["value"] for peer in found["peers"]]
    assert rounds[0] == 1
    assert rounds[1] == found["metrics"]["tokens_per_step"]["value"] > 1
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 5
    assert len({record.run for file in files for record in load_records(file)}) == 1
    before = [file.read_bytes() for file in files]
    again, _ = run(capsys, *words)
    assert again == found
    assert [file.read_bytes() for file in files] == before
    drafts = frame([tmp_path], "drafts", {"signature": found["peers"][1]["signature"]})
    assert drafts["accepted"].sum() > 0
    assert main(["acceptance", str(tmp_path / f"{found['peers'][1]['signature']}.jsonl")]) == 0
    lines = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "unknown" in lines["alpha_ratio"]
    assert "unknown" not in lines["accepted_over_verified"]


def test_a_rounded_target_says_what_transformers_says_of_the_rounded_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Our loops read a narrow copy, transformers' the same numbers in fp32; what was rounded has records of its own."""
    monkeypatch.setenv("FORETOKEN_PRODUCTS", "compiled")
    both = {"method": "speculative", "gamma": "3"}
    peers = ("--peer", "generate", "--peer", "assistant")
    found, _ = run(capsys, *arguments(tmp_path, *peers, target="int8:zoo:gpt-target", draft="bf16:zoo:gpt-draft", **both))
    assert found["audit"]["verdict"] == "identical"
    assert [peer["audit"]["verdict"] for peer in found["peers"]] == ["identical", "identical"]
    assert found["peers"][1]["tokens_per_step"]["value"] == found["metrics"]["tokens_per_step"]["value"]
    wide, _ = run(capsys, *arguments(tmp_path, draft="zoo:gpt-draft", **both))
    assert wide["signature"] != found["signature"]
    assert wide["baseline_records"] != found["baseline_records"]
    assert wide["metrics"]["perplexity"]["value"] != found["metrics"]["perplexity"]["value"]


@pytest.mark.parametrize("drafter", [["prompt-lookup"], ["early-exit", "--early-layer", "1"]], ids=lambda words: words[0])
def test_transformers_drafts_as_a_method_of_its_own(
    drafter: list[str], llama: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ("--drafter", *drafter, "--gamma", "2")
    found, _ = run(capsys, *arguments(tmp_path, *words, method="transformers", target=llama))
    assert found["audit"]["verdict"] == "identical"
    assert "speedup" in found["metrics"]
    path = Path(found["records"])
    described = load_experiment(path).method
    assert described.drafter is not None
    assert (described.drafter.kind, described.values["early_layer"]) == (
        drafter[0],
        int(drafter[2]) if len(drafter) > 1 else None,
    )
    for record in load_records(path):
        assert record.steps is not None
        assert sum(record.steps.emitted) == len(record.tokens or ())
        assert max(map(len, record.steps.drafted)) == 2


def test_an_assisted_peer_has_no_batches(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Row by row beside our batch it would look slow; without an assistant transformers samples rows together as we do."""
    given = arguments(tmp_path, "--batch-size", "4", "--peer", "prompt-lookup", draft="zoo:gpt-draft", method="speculative")
    assert main(given) == 2
    assert "batch_size 4: transformers' assisted generation" in capsys.readouterr().err


def test_sampled_outputs_are_held_against_the_law(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """And are found out where they are of another one, at a temperature that they were not sampled at; but so few tokens would
    not show a law that is 0.2 off."""
    asked = ("--drafter", "prompt-lookup", "--temperature", "1", "--peer", "generate")
    found, _ = run(capsys, *arguments(tmp_path, *asked, method="transformers", limit="6"))
    assert [found["audit"]["verdict"], found["peers"][0]["audit"]["verdict"]] == ["not tested"] * 2
    assert found["audit"]["tokens"] == sum(len(record.tokens or ()) for record in load_records(found["records"])) > 60
    experiment = load_experiment(Path(found["records"]))
    other = experiment.replace(sampling=Sampling(temperature=0.3))
    records = load_records(found["records"])
    fit = Runner(tmp_path).with_models(experiment, lambda models: judge_samples(other, records, models.get(other.target)))
    assert fit.verdict == "biased"
    assert fit.evidence["p"] < 1e-6


def test_in_half_precision_no_token_is_called_impossible() -> None:
    """Of a token that filters leave out in fp32 alone, another rounding may be the reason; one that the law gives nothing is
    impossible in every precision."""
    verdicts = {}
    for dtype in ("float32", "bfloat16"):
        experiment = plain_decoding(0, 1, 1, "text", "llama-target", 1.0).replace(dtype=dtype)
        filtered = experiment.replace(sampling=Sampling(temperature=1.0, top_k=2))
        target = Models(experiment.device, experiment.dtype).get(experiment.target)
        tokens = [5 + place * place % 90 for place in range(70)]
        record = Record(signature="", example="toy-test-0", repeat=0, status="ok", tokens=tokens)
        verdicts[dtype] = "none that the target's law can draw" in judge_samples(filtered, [record], target).note
    assert verdicts == {"float32": True, "bfloat16": False}


def check_spec(experiment: Experiment, ground: ModelGround) -> dict:
    method = build_method(experiment.method, ground.target, ground.models)
    return check_exact(method, ground, drafts=experiment.method.drafter is not None).as_dict()


def test_the_audit_tests_its_samples_and_finds_wrong_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right: an assistant's. Wrong: all rows from one seed."""
    sizes = replace(SIZES["test"], samples=250)
    subjects = {one.name: one for one in zoo_subjects("test", "toy", sizes)}
    subject = subjects["GPT: transformers, temperature 1"]
    plain = pin(subject.plain)
    ground = ModelGround(plain, sizes, Runner(tmp_path, quiet=True).models(plain))
    assisted = subject.experiment.replace(method=MethodSpec.of("transformers", drafter=DRAFT, gamma=2))
    right = check_spec(pin(assisted), ground)
    assert right["verdict"] == "not tested"
    assert 0 < right["accepted"] < right["drafted"]
    assert right["largest_deviation"] == {}
    assert right["tests"]["position 0"]["samples"] == 250 // 5
    seeded = transformers_generate.random_numbers
    monkeypatch.setattr(transformers_generate, "random_numbers", lambda seed, device: seeded(0, device))
    assert check_spec(pin(assisted), ground)["verdict"] == "biased"


def arms(synthetic: SimpleNamespace) -> tuple[tuple[Experiment, list[Record]], list[Record], tuple[Experiment, list[Record]]]:
    """Plain decoding at 10 ms a token; ours at 15 ms a round of 3 tokens; a peer of ours' kind at twice that time."""
    plain = synthetic.plain_experiment(probes=())
    ours, peer = synthetic.drafted_experiment(plain), plain.replace(method=MethodSpec.of("transformers", gamma=3))
    names = [f"e{number}" for number in range(6)]
    slow = [synthetic.drafted(peer, name) for name in names]
    for record in slow:
        record.wall_s = 2 * (record.wall_s or 0)
    return (
        (plain, [synthetic.plain(plain, name) for name in names]),
        [synthetic.drafted(ours, name) for name in names],
        (peer, slow),
    )


def test_ratios_are_of_times_a_token(synthetic: SimpleNamespace) -> None:
    plain, ours, peer = arms(synthetic)
    seen = []

    def audit(comparison: Comparison, records: list[list[Record]]) -> dict:
        seen.append((comparison.arms, records))
        return {"verdict": "identical"}

    (found,) = measured(plain, ours, {"assistant": peer}, audit)
    assert found.ours_over_it is not None
    assert not isinstance(found.ours_over_it, Missing)
    assert found.ours_over_it.value == pytest.approx(2)
    total = sum(record.wall_s or 0 for record in plain[1]) / sum(record.wall_s or 0 for record in peer[1])
    assert found.as_dict()["over_plain"]["value"] == pytest.approx(total)
    assert seen == [((plain[0], peer[0]), [plain[1], peer[1]])]
    text = as_text([found], "speculative", None, found.tokens_per_step)
    assert [line.split()[0] for line in text.splitlines()] == ["ours", "speculative", "transformers"]


def test_a_peer_whose_output_is_wrong_has_no_speed(synthetic: SimpleNamespace) -> None:
    plain, ours, peer = arms(synthetic)
    peer[1][0].divergence = Divergence(position=1, margin=1.0, bound=1e-4, replays_agree=True, kind="bug")
    (found,) = measured(plain, ours, {"generate": peer}, lambda comparison, records: {"verdict": "bug"})
    assert (found.as_dict()["over_plain"], found.as_dict()["ours_over_it"]) == (None, None)
    assert "1 of 6 outputs differ from plain decoding's" in found.as_dict()["refused"]
    assert as_text([found], "speculative", None, None).count("refused") == 3


def test_peers_share_what_the_method_is_given_and_their_times_are_of_one_run_alone(synthetic: SimpleNamespace) -> None:
    plain = synthetic.plain_experiment(probes=())
    ours = plain.replace(method=synthetic.drafted_experiment(plain).method.change(gamma=4, schedule="heuristic"))
    comparison = Comparison((plain, ours))
    arms, peers = with_peers(comparison, ["assistant", "early-exit:2"])
    assert [
        (one.method.gamma, one.method.values.get("schedule"), one.method.values.get("early_layer")) for one in peers.values()
    ] == [
        (4, "heuristic", None),
        (4, "heuristic", 2),
    ]
    fewer, _ = with_peers(comparison, ["assistant"])
    signatures = [arm.signature for arm in (*comparison.arms, *arms.arms, *fewer.arms)]
    assert len(set(signatures)) == 6
    assert with_peers(comparison, []) == (comparison, {})
    assert peer_method("generate", MethodSpec.of("beam", num_beams=4), None).options.num_beams == 4


TRANSFORMERS = {"method": "transformers"}


@pytest.mark.parametrize(
    ("words", "changes", "expected"),
    [
        (["--peer", "vllm"], {}, "peer 'vllm': expected generate, assistant, prompt-lookup or early-exit:LAYER"),
        (["--peer", "early-exit:0"], {}, "peer 'early-exit:0': expected generate"),
        (["--peer", "assistant"], {}, "peer 'assistant': transformers drafts with a model of its own kind; give --draft"),
        (["--peer", "early-exit:1"], {}, "model type 'gpt2': transformers' early exit works where a decoder heeds"),
        (["--drafter", "early-exit"], TRANSFORMERS, "drafter early-exit: expected the layer behind which the target drafts"),
        (
            ["--drafter", "early-exit", "--early-layer", "99"],
            TRANSFORMERS | {"target": "llama"},
            "early layer 99: the model has 2 layers; expected 1 to 1",
        ),
        (
            ["--drafter", "copy"],
            TRANSFORMERS,
            "drafter 'copy': transformers' assisted generation needs a draft model (--draft)",
        ),
        (["--early-layer", "1"], TRANSFORMERS, "early_layer 1: of method 'transformers' only drafter early-exit reads it"),
        (["--drafter", "prompt-lookup", "--gamma", "0"], TRANSFORMERS, "gamma 0: expected an integer >= 1"),
        (
            ["--drafter", "prompt-lookup", "--num-beams", "2"],
            TRANSFORMERS,
            "num_beams 2: transformers' assisted generation has",
        ),
        (["--drafter", "prompt-lookup", "--schedule", "heuristic"], TRANSFORMERS, "prompt lookup has constant alone"),
        (["--drafter", "prompt-lookup", "--draft", "zoo:gpt-draft"], TRANSFORMERS, "drafter prompt-lookup has no model"),
        (["--drafter", "prompt-lookup"], {"method": "speculative"}, "drafter 'prompt-lookup': transformers' own"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_line(
    words: list[str], changes: dict[str, str], expected: str, llama: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    changes = {name: llama if value == "llama" else value for name, value in changes.items()}
    assert main(arguments(tmp_path, *words, **changes)) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.splitlines()) == 1
    assert not any(file.read_bytes() for file in tmp_path.glob("*.jsonl"))
