"""Optimized's arms run: tiny random checkpoints of the paper's four classes, saved to disk and loaded as its own would be."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.autograd import DeviceType
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import Comparison, ModelSpec
from harness.core.record_files import RecordFile
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.pairing import succeeded
from harness.models.loading import load_model
from harness.papers import get_table
from harness.papers.optimized.setup import (
    BASELINE,
    CLEAN,
    CNNDM,
    CV16,
    EXACT,
    FILTERED,
    FUSED,
    GEMMA,
    LLAMA_7B,
    PLAIN,
    QWEN,
    SIGMOID,
    SMALL_EN,
    UNTRAINED,
    XSUM,
    Arms,
    Case,
    arms_of,
)
from harness.papers.optimized.tables import scaled_arms
from harness.run.instruments import RANGE, ProfiledRule, device_seconds
from harness.run.runner import Runner, pin
from methods.speculative.rules import SigmoidRule

SHAPE = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "vocab_size": 40}
KINDS: dict[str, Any] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": False}),
    "gemma": (GemmaForCausalLM, GemmaConfig, {"head_dim": 8}),
}
PAIRS = {"llama": LLAMA_7B, "qwen": QWEN, "gemma": GEMMA, "whisper": SMALL_EN}


def save_reader(kind: str, num_layers: int, folder: Path) -> None:
    """Weights are larger than at the start of a training, so that distributions are not all but uniform."""
    model, config, more = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(num_layers)
        network = model(config(**SHAPE, **IDS, **more, num_hidden_layers=num_layers, max_position_embeddings=2048))
        for weight in network.parameters():
            weight.data.normal_(std=0.4)
    letters = {"<s>": 0, "</s>": 1, "<unk>": 2, **{chr(ord("a") + index): index + 3 for index in range(26)}}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    network.save_pretrained(folder)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def save_whisper(num_layers: int, folder: Path) -> None:
    words = ["a", "b", "c", "\u0120"]
    specials = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    tokenizer = WhisperTokenizer(vocab={word: index for index, word in enumerate([*words, specials[0]])}, merges=[])
    tokenizer.add_tokens(specials[1:], special_tokens=True)
    config = WhisperConfig(
        vocab_size=9, num_mel_bins=16, d_model=16, encoder_layers=1, decoder_layers=num_layers, encoder_ffn_dim=16,
        decoder_ffn_dim=16, encoder_attention_heads=2, decoder_attention_heads=2, max_source_positions=150,
        max_target_positions=20, pad_token_id=4, bos_token_id=4, eos_token_id=4, decoder_start_token_id=5,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(num_layers)
        model = WhisperForConditionalGeneration(config)
        model.model.decoder.embed_tokens.weight.data.normal_(std=0.6)
    settings = {"eos_token_id": 4, "pad_token_id": 4, "begin_suppress_tokens": [3, 4], "is_multilingual": False}
    model.generation_config = GenerationConfig(decoder_start_token_id=5, no_timestamps_token_id=8, **settings)
    for part in (model, tokenizer, WhisperFeatureExtractor(feature_size=16, chunk_length=3)):
        part.save_pretrained(folder)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Profile paper with every role filled by a folder."""
    root, chosen = tmp_path_factory.mktemp("checkpoints"), {}
    for kind, pair in PAIRS.items():
        for role, num_layers in ((pair.target_role, 2), (pair.draft_role, 1)):
            chosen[role] = root / role
            if kind == "whisper":
                save_whisper(num_layers, chosen[role])
            else:
                save_reader(kind, num_layers, chosen[role])
    models = tuple((role, str(folder)) for role, folder in chosen.items())
    return Settings(profile="paper", limit=2, num_threads=1, models=models)


def run(folder: Path, arms: Arms) -> dict[str, list[Record]]:
    pinned = {name: pin(arm) for name, arm in arms.items()}
    Runner(folder, quiet=True).run(Comparison(tuple(pinned.values())))
    return {name: RecordFile(folder, arm).read() for name, arm in pinned.items()}


@pytest.mark.parametrize("kind", sorted(PAIRS))
def test_the_papers_classes_run_from_disk_with_every_rule(kind: str, settings: Settings, tmp_path: Path) -> None:
    """The exact rules say the same; every round's rule was timed, within its clock."""
    case = Case(data=CLEAN if kind == "whisper" else CNNDM, pair=PAIRS[kind], sampling=FILTERED)
    arms = arms_of(settings, case)
    found = run(tmp_path, {name: arm.replace(max_new_tokens=12) for name, arm in arms.items()})
    for name, records in found.items():
        assert len(succeeded(records)) == 2, (name, records[0].error)
        for record in records if name != PLAIN else ():
            times = record.rule_times
            assert len(times.profiled_s) == len(times.wall_s) == len(record.steps.drafted) > 0
            assert all(0 < own < verify for own, verify in zip(times.wall_s, record.steps.verify_s, strict=True))
            assert sum(times.profiled_s) <= 1.5 * sum(times.wall_s)
    said = [[record.tokens for record in found[rule]] for rule in (BASELINE, EXACT, FUSED)]
    assert said[0] == said[1] == said[2]
    assert all(record.rule_times is None for record in found[PLAIN])
    assert {tuple(drafts) for record in found[BASELINE] for drafts in record.steps.drafted if drafts}


def test_an_untrained_draft_stands_before_the_sigmoid_only(settings: Settings, tmp_path: Path) -> None:
    arms = arms_of(settings, Case(data=XSUM, pair=LLAMA_7B, sampling="unfiltered"))
    fresh = {name: arm for name, arm in arms.items() if name == PLAIN or name.startswith(UNTRAINED)}
    found = run(tmp_path, {name: arm.replace(max_new_tokens=120) for name, arm in fresh.items()})

    def accepted(rule: str) -> float:
        steps = [record.steps for record in found[f"{UNTRAINED}{rule}"]]
        return sum(sum(one.num_accepted) for one in steps) / sum(len(drafts) for one in steps for drafts in one.drafted)

    assert accepted(SIGMOID) > 0.7
    assert accepted(BASELINE) < 0.6
    labels = [one.drafter for one in found[PLAIN][0].overlap]
    assert labels == ["sheared-for-7b", "sheared-for-7b untrained"]


def test_fp16_overflow_refuses_every_draft(settings: Settings, tmp_path: Path) -> None:
    """At 1e5 in fp16 alone; the same scale on fp32 logits does not collapse (the paper's Table 2)."""
    arms = scaled_arms(settings, Case(data=CV16, pair=SMALL_EN, sampling="unfiltered"))
    chosen = [PLAIN, *(f"{logits} / {SIGMOID} / {scale}" for logits in ("float16", "float32") for scale in ("10000", "100000"))]
    found = run(tmp_path, {name: arms[name].replace(max_new_tokens=12) for name in chosen})
    stood = {name: sum(sum(record.steps.num_accepted) for record in found[name]) for name in chosen[1:]}
    assert stood[chosen[2]] == 0
    assert all(count > 0 for name, count in stood.items() if name != chosen[2])


def test_untrained_weights_are_seeded_and_the_rest_stays(settings: Settings) -> None:
    name = dict(settings.models)["distil-small.en"]
    trained, *fresh = (load_model(ModelSpec(name=name, untrained=untrained)) for untrained in (False, True, True))
    assert fresh[0].opening == trained.opening
    assert fresh[0].eos_token_ids == trained.eos_token_ids
    weights = [dict(model.stack.model.named_parameters())["model.decoder.layers.0.fc1.weight"] for model in (trained, *fresh)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[1])


def event(name: str, kind: DeviceType, start: float, end: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, device_type=kind, time_range=SimpleNamespace(start=start, end=end))


def test_device_events_are_counted_once_and_only_within_their_call() -> None:
    """Two calls; before, between and behind them a model's kernels; ranges and host operations are no work."""
    cuda, cpu = DeviceType.CUDA, DeviceType.CPU
    events = [
        event(RANGE, cpu, 100, 200), event(RANGE, cuda, 110, 190), event(RANGE, cpu, 300, 400),
        event("softmax", cuda, 110, 150), event("copy", cuda, 150, 155), event("tile_kernel", cuda, 310, 330),
        event("aten::softmax", cpu, 105, 115), event("gemm", cuda, 50, 90), event("gemm", cuda, 210, 290),
        event("gemm", cuda, 450, 500),
    ]  # fmt: skip
    assert device_seconds(events) == pytest.approx([45e-6, 20e-6])
    assert device_seconds([]) == []


def test_a_profiled_rule_promises_what_it_holds() -> None:
    rule = SigmoidRule()
    assert ProfiledRule(rule, "cpu").guarantee == rule.guarantee == "lossy"
    value, times = ProfiledRule(rule, "cpu").profile(lambda: 7)
    assert (value, times.profiled_s, times.wall_s) == (7, [], [])


def test_profiling_is_of_single_rows(settings: Settings) -> None:
    arm = get_table(30).plan(settings)[0].arms[1]
    with pytest.raises(UsageError, match=r"^batch_size 2: .*one row at a time"):
        replace(arm, batch_size=2)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--rule", "exact", "--scale", "10"],
            "--scale 10.0: rule 'exact' does not read it",
        ),
        (["--rule", "lenience", "--half-logits"], "--half-logits True: rule 'lenience' does not read it"),
        (["--rule", "sigmoid", "--scale", "-5"], "alpha 5.0, beta -5.0: expected alpha < beta"),
        (
            ["--rule", "sigmoid", "--scale", "inf"],
            r"rule 'sigmoid', alpha -inf, beta inf: expected at most 3.40282e\+38 between",
        ),
        (["--rule", "sigmoid", "--scale", "1e300"], r"rule 'sigmoid', alpha -1e\+300, beta 1e\+300: expected at most 3.40282e"),
    ],
)
def test_scales_of_rules_that_have_none_are_refused_in_one_line(
    flags: list[str], said: str, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = dict(settings.models)
    common = ["--task", "xsum", "--target", models["llama2-7b"], "--draft", models["sheared-for-7b"], "--method", "speculative"]
    assert main(["run", *common, "--records", str(tmp_path), "--temperature", "1", "--quiet", *flags]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(said, line)


def test_a_scale_reaches_the_rule(settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = dict(settings.models)
    common = ["--task", "xsum", "--target", models["llama2-7b"], "--draft", models["sheared-for-7b"], "--method", "speculative"]
    more = ["--limit", "1", "--max-new-tokens", "8", "--max-input-tokens", "64", "--temperature", "1", "--quiet"]
    rule = ["--rule", "sigmoid", "--scale", "1e5", "--half-logits"]
    assert main(["run", *common, "--records", str(tmp_path), *more, *rule]) == 0
    assert '"verdict": "lossy"' in capsys.readouterr().out
