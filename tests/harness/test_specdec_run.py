"""SpecDec's methods and drafters through experiments and the command line, on the zoo's tiny models."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import Comparison, DrafterSpec, Experiment, MemoryProbe, MethodSpec, ModelSpec, OverlapProbe
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.of_run import speedup
from harness.measures.statistics import Estimate
from harness.models.loading import load_model
from harness.models.names import pin_model
from harness.papers import TABLES
from harness.papers.leviathan.setup import ROLES
from harness.run.refusals import check_recipes
from harness.run.runner import Runner, pin
from harness.tables.base import Table
from harness.zoo.build import ensure
from methods.specdec.blockwise import BlockwiseHeads
from methods.specdec.network import read_block_config

VERIFIER, DRAFTER = ModelSpec(name="zoo:specdec-verifier"), ModelSpec(name="zoo:specdec-drafter")
BLOCK = DrafterSpec(kind="block", model=DRAFTER)
HEADS = DrafterSpec(kind="blockwise", model=ModelSpec(name="zoo:specdec-blockwise"))
TEACHER = ModelSpec(name="zoo:specdec-teacher")
PLAIN = MethodSpec(name="autoregressive")
STRICT = MethodSpec.of("speculative", rule="top-1", drafter=BLOCK, gamma=4)


@pytest.fixture(scope="module")
def folders(zoo_cache: Path) -> dict[str, Path]:
    return ensure(["specdec-drafter", "specdec-verifier", "t5-small"], "test", "toy", workers=0)


def run(folder: Path, *methods: MethodSpec, **changes: object) -> tuple[Comparison, list[list[Record]]]:
    """Greedy decoding and these methods, interleaved; their records."""
    plain = Experiment(
        task="wmt-en-de",
        profile="test",
        target=VERIFIER,
        method=MethodSpec(name="autoregressive"),
        limit=5,
        max_new_tokens=20,
        prompt_style="t5",
        dtype="float64",
        num_threads=1,
    ).replace(**changes)
    arms = Comparison(tuple(pin(plain.replace(method=method)) for method in (plain.method, *methods)))
    runner = Runner(folder, quiet=True)
    runner.run(arms)
    records = [runner.records(arm) for arm in arms.arms]
    assert all(record.status == "ok" for arm in records for record in arm), records
    return arms, records


def tokens(records: list[Record]) -> list[list[int] | None]:
    return [record.tokens for record in records]


def drafts(records: list[Record]) -> list[list[list[int]]]:
    return [record.steps.drafted for record in records if record.steps is not None]


@pytest.mark.usefixtures("folders")
def test_where_the_source_is_encoded_changes_nothing(tmp_path: Path) -> None:
    beside = replace(STRICT, drafter=replace(BLOCK, options={"encoder": "concurrent"}))
    _, (plain, own, concurrent) = run(tmp_path, STRICT, beside)
    assert tokens(plain) == tokens(own) == tokens(concurrent)
    assert drafts(own) == drafts(concurrent)
    assert any(record.steps is not None and max(record.steps.num_accepted) > 0 for record in own)
    assert all(record.divergence is None for record in (*own, *concurrent))


@pytest.mark.usefixtures("folders")
def test_batches_are_their_rows_alone(tmp_path: Path) -> None:
    relaxed = STRICT.change(rule="top-beta", beta=5, tau=3.0)
    singles = run(tmp_path, STRICT, relaxed, limit=8)[1]
    together = run(tmp_path, STRICT, relaxed, limit=8, batch_size=5)[1]
    for alone, batched in zip(singles, together, strict=True):
        assert tokens(alone) == tokens(batched)
        assert drafts(alone) == drafts(batched)


@pytest.mark.usefixtures("folders")
def test_times_of_both_encoders_are_parts_of_the_whole(tmp_path: Path) -> None:
    _, (plain, *drafted) = run(tmp_path, STRICT, MethodSpec.of("drafter-alone", drafter=BLOCK, gamma=6), batch_size=2)
    assert all((record.encode_s, record.draft_encode_s) == (None, None) for record in plain)
    for record in drafted[0]:
        spans = [record.encode_s or 0.0, record.draft_encode_s or 0.0]
        assert min(spans) > 0
        assert sum(spans) < (record.wall_s or 0.0)
    for record in drafted[1]:
        assert record.encode_s is None
        assert 0 < (record.draft_encode_s or 0.0) < (record.wall_s or 0.0)


@pytest.mark.usefixtures("folders")
def test_transformers_says_the_same_and_beams_are_held_against_ours(tmp_path: Path) -> None:
    theirs = MethodSpec(name="transformers")
    _, (plain, greedy) = run(tmp_path, theirs)
    assert tokens(plain) == tokens(greedy)
    beams = theirs.change(num_beams=3)
    _, (ours, three) = run(tmp_path, beams, method=MethodSpec.of("beam", num_beams=3))
    assert tokens(ours) == tokens(three)


@pytest.mark.usefixtures("folders")
def test_memory_is_measured_beside_times_that_it_does_not_disturb(tmp_path: Path) -> None:
    """A larger batch holds more; a drafter, its encoder's states and logits come on top of plain decoding's."""
    peaks = {}
    for batch in (1, 8):
        _, (plain, drafted) = run(tmp_path, STRICT, limit=batch, batch_size=batch, probes=(MemoryProbe(),), dtype="float32")
        if plain[0].peak_bytes is None:
            pytest.skip("this system does not tell a process's peak")
        assert len({record.peak_bytes for record in plain}) == 1
        peaks[batch] = [max(record.peak_bytes or 0 for record in arm) for arm in (plain, drafted)]
        assert isinstance(speedup(plain, drafted), Estimate)
    assert peaks[8][1] > peaks[8][0] > peaks[1][0]
    assert peaks[8][1] < 64 * 2**20


def blockwise_heads(folder: Path, width: int) -> Path:
    heads = BlockwiseHeads(width, 3, 16)
    torch.nn.init.normal_(heads.down.weight, std=0.1)  # heads that nobody trained hold zeros there, and are refused
    heads.save(folder)
    return folder


def test_blockwise_heads_from_a_folder_are_pinned_and_lossless(folders: dict[str, Path], tmp_path: Path) -> None:
    width = json.loads((folders["specdec-verifier"] / "config.json").read_text())["d_model"]
    heads = blockwise_heads(tmp_path / "heads", width)
    spec = DrafterSpec(kind="blockwise", model=ModelSpec(name=str(heads)))
    method = STRICT.change(drafter=spec, gamma=3)
    arms, (plain, drafted) = run(tmp_path, method)
    assert tokens(plain) == tokens(drafted)
    assert {len(step) for steps in drafts(drafted) for step in steps[1:-1]} == {3}
    model = arms.arms[1].method.drafter and arms.arms[1].method.drafter.model
    assert model is not None
    assert len(model.revision or "") == 16
    with pytest.raises(UsageError, match="gamma 4: drafter heads drafts with as many heads as 3 tokens; expected 1 to 3"):
        run(tmp_path, method.change(gamma=4))
    foreign = replace(spec, model=ModelSpec(name=str(blockwise_heads(tmp_path / "foreign", width + 4))))
    with pytest.raises(UsageError, match=rf"foreign for zoo:specdec-verifier: .*they are {width + 4} wide and the verifier"):
        run(tmp_path, replace(method, drafter=foreign))


def test_a_drafter_alone_needs_no_verifier(folders: dict[str, Path], tmp_path: Path) -> None:
    """Its blocks are its own; with EOS ignored it fills the budget."""
    block_size = read_block_config(folders["specdec-drafter"])["block_size"]
    alone = MethodSpec.of("drafter-alone", drafter=BLOCK, gamma=block_size)
    _, (_, written) = run(tmp_path, alone, ignore_eos=True, max_new_tokens=2 * block_size + 1)
    assert all([len(block) for block in blocks] == [block_size, block_size, 1] for blocks in drafts(written))
    with pytest.raises(UsageError, match=f"gamma {block_size + 1}: drafter specdec-drafter drafts blocks of {block_size}"):
        run(tmp_path, alone.change(gamma=block_size + 1))


def refused(capsys: pytest.CaptureFixture, folder: Path, **flags: str) -> str:
    values = {"task": "wmt-en-de", "profile": "test", "target": VERIFIER.name, "draft": DRAFTER.name, "drafter": "block"}
    values |= {"method": "speculative", "rule": "top-1", "limit": "2", "records": str(folder), "gamma": "4"} | flags
    assert main(["run", "--quiet", *(part for name, value in values.items() for part in (f"--{name}", value))]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"gamma": "0"}, "gamma 0: expected an integer >= 1"),
        ({"gamma": "4000"}, "gamma 4000: drafter specdec-drafter drafts blocks of"),
        ({"draft": "zoo:specdec-verifier"}, "draft zoo:specdec-verifier: it is no block drafter"),
        ({"draft": "zoo:t5-small", "drafter": "model"}, "vocabularies differ: target zoo:specdec-verifier has"),
        ({"target": "zoo:specdec-drafter"}, "model zoo:specdec-drafter: it is a block drafter; expected a language model"),
        ({"drafter": "model"}, "it is a block drafter; expected a language model (it drafts with --drafter block)"),
        ({"encoder": "shared"}, "encoder shared: the drafter's encoder differs from the verifier's"),
        ({"temperature": "0.5"}, "temperature 0.5: rules top-1 and top-beta are defined at temperature 0 only"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture, flags: dict[str, str], expected: str) -> None:
    assert expected in refused(capsys, tmp_path, **flags)


@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        (STRICT.change(gamma=4000), {}, "gamma 4000: drafter specdec-drafter drafts blocks of"),
        (MethodSpec.of("drafter-alone", drafter=BLOCK, gamma=4000), {}, "gamma 4000: drafter specdec-drafter drafts blocks"),
        (STRICT.change(drafter=HEADS, gamma=4000), {}, "gamma 4000: drafter specdec-blockwise drafts with as many heads as"),
        (STRICT, {"target": DRAFTER}, "model zoo:specdec-drafter: it is a block drafter; expected a language model"),
        (replace(STRICT, drafter=replace(BLOCK, model=VERIFIER)), {}, "draft zoo:specdec-verifier: it is no block drafter"),
        (
            replace(STRICT, drafter=DrafterSpec(kind="model", model=BLOCK.model)),
            {},
            "model zoo:specdec-drafter: it is a block drafter",
        ),
        (replace(STRICT, drafter=replace(HEADS, model=DRAFTER)), {}, "draft zoo:specdec-drafter: it holds no blockwise heads"),
        (replace(STRICT, drafter=HEADS), {"target": TEACHER}, "its heads were trained on zoo:specdec-verifier; expected that"),
        (
            PLAIN,
            {"probes": (OverlapProbe(drafter=replace(BLOCK, model=VERIFIER)),)},
            "draft zoo:specdec-verifier: it is no block drafter",
        ),
    ],
)
def test_what_recipes_already_refuse_is_refused_before_training(
    method: MethodSpec, changes: dict, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an empty cache, where a model that is asked for is trained."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    values = {"task": "wmt-en-de", "profile": "test", "target": VERIFIER, "limit": 1} | changes
    with pytest.raises(UsageError, match=re.escape(expected)) as caught:
        pin(Experiment(method=method, **values))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_every_arm_of_the_catalogue_passes_the_check_of_recipes() -> None:
    plans = [
        table.plan(Settings(profile=profile)) for table in TABLES.values() if isinstance(table, Table) for profile in ROLES
    ]
    arms = [arm for plan in plans for comparison in plan for arm in comparison.arms]
    for arm in arms:
        check_recipes(arm)
    assert sum(arm.method.drafter is not None for arm in arms) >= 500


def test_checkpoints_that_do_not_fit_are_one_line(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A tokenizer that swaps two tokens, a block size that the positions do not hold, weights of another shape."""

    def changed(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in folders["specdec-drafter"].iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        return folder

    def set_config(folder: Path, **values: int) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    swapped = changed("swapped")
    data = json.loads(Tokenizer.from_file(str(swapped / "tokenizer.json")).to_str())
    vocab = data["model"]["vocab"]
    one, other = sorted(vocab, key=vocab.get)[-2:]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (swapped / "tokenizer.json").write_text(json.dumps(data))
    assert "tokenizers differ: target zoo:specdec-verifier has token" in refused(capsys, tmp_path, draft=str(swapped))
    long = changed("long")
    set_config(long, block_size=4096)
    assert "block_size 4096: expected an integer from 1 to" in refused(capsys, tmp_path, draft=str(long))
    other_recipe = changed("other")
    set_config(other_recipe, d_model=load_model(pin_model(DRAFTER, "test", "toy")).stack.head_weight.shape[0] * 2)
    asked = refused(capsys, tmp_path, draft=str(other_recipe))
    assert f"model {other_recipe}: tensor '" in asked
    assert "its config.json asks for" in asked
