"""Passes of a model by rows: numbers by hand from given records, what a pass reads, what a session adds, files and refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from harness.cli.main import main
from harness.core.experiment import ModelSpec
from harness.models.loading import load_model
from harness.models.names import pin_model
from harness.report import passes
from harness.report.passes import Passes, as_markdown, as_page, draw_cost, measure_passes, read_passes, to_json
from harness.run.instruments import held_bytes
from harness.zoo.build import ensure
from methods.models import stack_for

BENCH = Path(__file__).parents[2] / "results" / "bench"
GIVEN = Passes(
    model="zoo:made-up",
    revision="abc",
    dtype="float32",
    threads=2,
    products="torch",
    bandwidth=1e9,
    cached=100,
    rows=(1, 4),
    seconds=((0.010, 0.010, 0.012, 0.010, 0.010), (0.015, 0.020, 0.018, 0.025, 0.0175)),
    prompt_seconds=(0.030, 0.025, 0.026, 0.025, 0.025),
    weight_bytes=4_000_000,
    cache_bytes=(1_000_000, 1_100_000),
    parameter_bytes=6_000_000,
    beside_bytes=20_000,
    session_bytes=1_500_000,
    peak_bytes=None,
    meeting_s=(2.5e-7, 3e-8),
)


def test_numbers_by_hand() -> None:
    """5 MB in 10 ms are half of 1 GB/s; the turns' ratios of four rows are 1.5, 2, 1.5, 2.5 and 1.75."""
    assert (GIVEN.time(1).value, GIVEN.time(4).value) == (pytest.approx(0.010), pytest.approx(0.018))
    assert (GIVEN.read_bytes(1), GIVEN.read_bytes(4)) == (5_000_000, 5_100_000)
    assert GIVEN.share(1) == pytest.approx(0.5)
    assert GIVEN.share(4) == pytest.approx(5_100_000 / 0.018 / 1e9)
    cost = GIVEN.cost(4)
    assert (cost.value, cost.low, cost.high, cost.n) == (*map(pytest.approx, (1.75, 1.5, 2.5)), 5)
    assert GIVEN.cost(1).value == 1


@pytest.mark.parametrize("path", sorted(BENCH.glob("passes-*.json")), ids=lambda path: path.stem)
def test_what_is_committed_can_be_read_and_gives_its_page(path: Path) -> None:
    assert as_page(read_passes(path)) == path.with_suffix(".md").read_text(encoding="utf8")


def test_the_table_says_what_the_record_says() -> None:
    text = as_markdown([GIVEN])
    assert "threads 2 that meet in 0.03 to 0.25 us, turns 5, memory bandwidth 1.0 GB/s, products torch" in text
    assert "threads 1, turns 5" in as_markdown([replace(GIVEN, threads=1, meeting_s=(None, None))])
    assert "threads 2 that meet in 0.03 to 4.00 us" in as_markdown([GIVEN, replace(GIVEN, cached=400, meeting_s=(None, 4e-6))])
    assert "threads 2 that meet in unknown time, turns 5" in as_markdown([replace(GIVEN, meeting_s=(None, None))])
    one, four = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[4:6])
    assert one == ["100", "1", "10.00 [10.00, 12.00]", "5.00", "50%", "1"]
    assert four[0:2] + four[3:5] == ["100", "4", "5.10", "28%"]
    assert four[5].startswith("1.75 [1.50, ")
    assert "parameters 6.00 MB, the loaded model's other tensors 0.02 MB; a session of 100 tokens adds 1.50 MB" in text
    assert "at most unknown" in text
    assert "Reading takes: a prompt of 100 tokens 25.00 [25.00, 30.00] ms." in text
    assert "time them again" not in text
    slowed = replace(GIVEN, seconds=((0.01, 0.01, 0.02, 0.02, 0.02), GIVEN.seconds[1]))
    assert "the time of one row changed by +100%: time them again" in as_markdown([slowed])


def test_without_a_bandwidth_the_share_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = as_markdown([replace(GIVEN, bandwidth=None)])
    assert "bandwidth unknown" in text
    assert text.splitlines()[4].split("|")[5].strip() == "unknown"
    monkeypatch.setattr(passes, "READ_SHAPE", (1 << 30, 1 << 30))  # 4 EiB
    assert passes.reading_bandwidth() is None
    monkeypatch.setattr(passes, "READ_SHAPE", (64, 64))
    assert passes.reading_bandwidth() > 0


def test_the_figure_is_the_same_file_twice(tmp_path: Path) -> None:
    records = [GIVEN, replace(GIVEN, cached=400), replace(GIVEN, model="zoo:other")]
    first, second = (draw_cost(records, tmp_path / name, "cost") for name in ("a", "b"))
    assert [path.name for path in first] == ["cost.svg", "cost.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_file_of_records_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "passes.json"
    path.write_text(to_json({"cores": 2}, [GIVEN]), encoding="utf8")
    assert read_passes(path) == [GIVEN]


def test_a_pass_reads_all_but_embeddings_and_norms() -> None:
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=20,
            hidden_size=8,
            intermediate_size=12,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=False,
        )
    )
    numbers = sum(p.numel() for name, p in llama.named_parameters() if "norm" not in name and "embed" not in name)
    assert passes.weight_bytes(stack_for(llama.eval())) == 4 * numbers


def test_a_pass_of_a_decoder_reads_neither_the_encoder_nor_what_made_the_cross_attentions_cache() -> None:
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2, decoder_start_token_id=0)
    )
    left_out = ("norm", "relative", "EncDecAttention.k", "EncDecAttention.v")
    inside = [p for name, p in t5.decoder.block.named_parameters() if not any(part in name for part in left_out)]
    assert passes.weight_bytes(stack_for(t5.eval())) == 4 * (sum(p.numel() for p in inside) + 20 * 8)


def test_tensors_count_once_and_copies_again() -> None:
    before = held_bytes()
    weight = torch.zeros(1000)
    views = [weight[:10], weight.view(10, 100)]
    assert held_bytes() - before == 4000
    copy = weight.clone()
    assert held_bytes() - before == 8000
    assert views[0].shape == copy[:10].shape


@pytest.mark.parametrize("name", ["gpt-draft", "t5-small"])
def test_passes_are_timed_behind_what_is_cached(zoo_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ensure([name], "test", "toy", workers=0)
    monkeypatch.setattr(passes, "TURNS", 3)
    monkeypatch.setattr(passes, "CACHED", (24, 40))
    monkeypatch.setattr(passes, "READ_SHAPE", (64, 64))
    spec = pin_model(ModelSpec(name=f"zoo:{name}"), "test", "toy")
    records = measure_passes(spec, "float32")
    assert [(one.cached, one.rows) for one in records] == [(24, (1, 2, 4, 6, 8)), (40, (1, 2, 4, 6, 8))]
    model = load_model(spec)
    for one in records:
        assert all(len(seconds) == 3 and min(seconds) > 0 for seconds in one.seconds)
        session = passes.open_session(model, one.cached)
        assert session.lengths == [(one.cached,)] * session.num_layers
        per_token = 2 * 4 * model.stack.num_layers * model.stack.num_kv_heads * model.stack.head_dim
        sources = one.cached if model.is_encoder_decoder else 0
        assert one.cache_bytes == tuple((one.cached + rows + sources) * per_token for rows in one.rows)
        assert one.session_bytes >= one.cache_bytes[-1]
        assert one.beside_bytes < 0.2 * one.parameter_bytes  # no second copy of the weights


@pytest.mark.parametrize(("rounding", "share"), [("bf16", 0.5), ("int8", 0.25)])
def test_a_rounded_model_reads_fewer_bytes_and_holds_a_second_copy(
    zoo_cache: Path, monkeypatch: pytest.MonkeyPatch, rounding: str, share: float
) -> None:
    ensure(["gpt-draft"], "test", "toy", workers=0)
    monkeypatch.setenv("FORETOKEN_PRODUCTS", "compiled")
    monkeypatch.setattr(passes, "TURNS", 2)
    monkeypatch.setattr(passes, "CACHED", (24,))
    monkeypatch.setattr(passes, "READ_SHAPE", (64, 64))
    specs = (pin_model(ModelSpec(name=f"{prefix}zoo:gpt-draft"), "test", "toy") for prefix in ("", f"{rounding}:"))
    [wide], [own] = (measure_passes(spec, "float32") for spec in specs)
    assert own.products.endswith(f"read as {rounding}")
    biases_and_scales = 0.05 * wide.weight_bytes
    assert share * wide.weight_bytes <= own.weight_bytes <= share * wide.weight_bytes + biases_and_scales
    assert own.weight_bytes <= own.beside_bytes - wide.beside_bytes + biases_and_scales
    assert own.parameter_bytes == wide.parameter_bytes


def test_the_command(zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    ensure(["gpt-target", "gpt-draft"], "test", "toy", workers=0)
    monkeypatch.setattr(passes, "TURNS", 2)
    monkeypatch.setattr(passes, "READ_SHAPE", (64, 64))
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", "passes", "--profile", "test", "--only", "gpt", "--threads", "1"]
    assert main([*arguments, "--dry-run"]) == 0
    assert not (tmp_path / "results").exists()
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    [stem] = {path.stem for path in (tmp_path / "results" / "bench").iterdir()}
    assert stem == "passes-test-toy-float32-1-threads"
    path = tmp_path / "results" / "bench" / f"{stem}.json"
    records = read_passes(path)
    assert list(dict.fromkeys(one.model for one in records)) == ["zoo:gpt-target", "zoo:gpt-draft"]
    assert json.loads(path.read_text(encoding="utf8"))["environment"]["threads"] == 1
    page = path.with_suffix(".md").read_text(encoding="utf8")
    assert page == as_page(records)
    assert all(line in printed for line in page.splitlines())
    assert main(["bench", "--target", "zoo:gpt-draft", "--profile", "test", "--threads", "1"]) == 0
    own = tmp_path / "results" / "bench" / "passes-zoo-gpt-draft-float32-1-threads.json"
    assert {one.model for one in read_passes(own)} == {"zoo:gpt-draft"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["kernels", "--target", "zoo:gpt-draft"], "--target zoo:gpt-draft with kernels"),
        (["--only", "gpt", "--target", "zoo:gpt-draft"], "--target zoo:gpt-draft with --only gpt"),
        (["passes", "--device", "cuda"], "device 'cuda': loops and passes are timed on a CPU"),
        (["--target", "zoo:nothing"], "zoo model 'nothing'"),
        (["--target", "."], "it has no config.json"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, flags: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *flags]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_model_without_room_for_a_pass_is_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "ROWS", (1, 512))
    with pytest.raises(passes.UsageError, match=r"its position limit is 512; expected more than the 512 rows of a pass"):
        measure_passes(ModelSpec(name=str(shared / "models" / "stories260K"), revision=""), "float32")
