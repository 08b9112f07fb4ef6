"""The zoo at test scale: recipes have identities, training is exact and resumable, the cache is used and explained."""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.models.loading import load_model
from harness.models.names import pin_model
from harness.zoo import build, cache, recipes
from harness.zoo.build import ensure
from harness.zoo.cache import read_facts
from harness.zoo.corpus import DATA, NUM_TAIL, encode_sources, read_corpus, read_tokenizer, train_tokenizer
from harness.zoo.families import FAMILIES
from harness.zoo.networks import build_network, depth_switch, num_parameters, read_network
from harness.zoo.recipes import RECIPES, Scale, digest, recipe_hash
from harness.zoo.state import CHECKPOINT, Checkpoints, Optimizers, rate_share, save_state
from harness.zoo.text import batches_for, next_token, unigram_entropy
from kernels.native import cache_folder
from methods.options import NGRAM_TABLE

TRAINED = ("gpt-target", "gpt-draft", "t5-xxl", "t5-small", "ngram-gpt", "ngram-t5-cnndm")


@pytest.fixture(scope="module")
def folders(zoo_cache: Path) -> dict[str, Path]:
    return ensure(TRAINED, "test", "toy", workers=0)


def shortened(name: str, steps: int = 6) -> recipes.Recipe:
    return dataclasses.replace(RECIPES["test"][name], steps=steps)


def corpus_of(recipe: recipes.Recipe) -> Path:
    return build.folder_of(recipe.corpus, "toy")


@pytest.mark.parametrize("scale", ["toy", "test"])
def test_groups_share_a_corpus_and_every_architecture_is_there(scale: Scale) -> None:
    groups = {}
    for recipe in RECIPES[scale].values():
        groups.setdefault(recipe.corpus.name, set()).add(recipe.corpus)
    pairs = {f"specdec-{pair}" for pair in ("de-en", "en-ro", "ro-en", "bart")}
    specdec = {"specdec", "specdec-distilled", "specdec-distilled-3t", *pairs, *(f"{pair}-distilled" for pair in pairs)}
    assert set(groups) == {"llama", "llama-deep", "t5", "gpt", "whisper"} | specdec
    assert {len(corpora) for corpora in groups.values()} == {1}
    families = {"llama", "t5", "gpt2", "ngram", "heads", "marian", "bart", "block", "bart-block", "blockwise", "whisper"}
    assert {recipe.family for recipe in RECIPES[scale].values()} == families
    if scale == "toy":
        assert all(RECIPES[scale][name].num_layers >= 12 for name in ("llama-target", "t5-xxl", "gpt-target"))


def test_hash_covers_every_field() -> None:
    recipe = RECIPES["test"]["t5-xxl"]
    digests = {digest(recipe, "toy")}
    changed = 0
    for description, wrap in (
        (recipe, lambda values: dataclasses.replace(recipe, **values)),
        (recipe.corpus, lambda values: dataclasses.replace(recipe, corpus=dataclasses.replace(recipe.corpus, **values))),
    ):
        for field in dataclasses.fields(description):
            value = getattr(description, field.name)
            if field.name in ("corpus", "parts"):
                continue
            other = value + 1e-9 if isinstance(value, float) else value + 1 if isinstance(value, int) else f"{value}x"
            digests.add(digest(wrap({field.name: other}), "toy"))
            changed += 1
    first, *rest = recipe.corpus.parts
    fewer = dataclasses.replace(recipe.corpus, parts=(dataclasses.replace(first, num_examples=7), *rest))
    digests.add(digest(dataclasses.replace(recipe, corpus=fewer), "toy"))
    assert changed >= 25
    assert len(digests) == changed + 2


def test_hash_covers_data_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipe_hash("gpt-draft", "test", "toy")
    monkeypatch.setattr(recipes, "CODE_VERSION", recipes.CODE_VERSION + 1)
    assert recipe_hash("gpt-draft", "test", "toy") != before
    monkeypatch.undo()
    monkeypatch.setattr(recipes.tasks, "fingerprint", lambda name, source: "other data")
    assert recipe_hash("gpt-draft", "test", "toy") != before


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"'t5-huge': expected one of llama-target"):
        ensure(["t5-huge"], "test", "toy")
    with pytest.raises(UsageError, match="'enormous': expected one of toy, test"):
        recipe_hash("t5-xxl", "enormous", "toy")


def test_learned_something(folders: dict[str, Path]) -> None:
    """Held-out loss is below what the unigram distribution gives, and a complete folder says how it came about."""
    for name in TRAINED[:4]:
        facts = json.loads((folders[name] / "recipe.json").read_text())
        assert facts["held_out_loss_nats"] < facts["unigram_entropy_nats"] - 0.1, name
        assert facts["train_cpu_s"] > 0
        assert {path.name for path in folders[name].iterdir()} >= {"model.safetensors", "config.json", "tokenizer.json"}
        assert not (folders[name] / "checkpoint.pt").exists()


def test_second_call_trains_nothing(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_make", lambda *_: pytest.fail("trained again"))
    assert ensure(TRAINED, "test", "toy") == folders


@pytest.mark.parametrize("name", ["gpt-target", "t5-xxl"])
def test_resumed_training_equals_an_unbroken_one(
    folders: dict[str, Path], tmp_path: Path, name: str, steps_of: Callable[..., Any]
) -> None:
    """Stopped after 2 of 6 steps (still shallow) and after 5 (deep): the weights are the same bit for bit."""
    recipe = shortened(name)
    rows, tokenizer = read_corpus(corpus_of(recipe)), read_tokenizer(corpus_of(recipe))
    whole, broken = build_network(recipe, tokenizer), None
    (tmp_path / "whole").mkdir()
    steps_of(recipe, whole, next_token(recipe, rows), tmp_path / "whole")
    for before in (2, 5, None):
        broken = build_network(recipe, tokenizer)
        steps_of(recipe, broken, next_token(recipe, rows), tmp_path, before=before)
    assert broken is not None
    untrained = build_network(recipe, tokenizer).state_dict()
    for key, weight in whole.state_dict().items():
        assert torch.equal(weight, broken.state_dict()[key]), key
    assert any(not torch.equal(weight, untrained[key]) for key, weight in whole.state_dict().items())


@pytest.mark.parametrize("content", [b"not a checkpoint", b"", [1], {}, {"network": {}, "optimizer": {}, "step": 1}])
def test_a_file_that_is_no_checkpoint_is_named(
    folders: dict[str, Path], tmp_path: Path, steps_of: Callable[..., Any], content: Any
) -> None:
    recipe, file = shortened("gpt-draft"), tmp_path / CHECKPOINT
    file.write_bytes(content) if isinstance(content, bytes) else save_state(content, file)
    rows, tokenizer = read_corpus(corpus_of(recipe)), read_tokenizer(corpus_of(recipe))
    with pytest.raises(UsageError, match=r"checkpoint\.pt: (cannot be read|it belongs to another training).* delete") as caught:
        steps_of(recipe, build_network(recipe, tokenizer), next_token(recipe, rows), tmp_path)
    assert len(str(caught.value).replace(str(tmp_path), "")) < 150


def test_a_checkpoint_with_one_flipped_bit_is_refused(tmp_path: Path) -> None:
    """Anywhere: most flips are in weights, which unpickle as if nothing had happened."""
    network = torch.nn.Linear(3, 2)
    optimizer = Optimizers([torch.optim.AdamW(network.parameters(), lr=0.1)])
    network(torch.ones(3)).sum().backward()
    optimizer.step()
    checkpoints = Checkpoints(tmp_path, network, optimizer, "this")
    checkpoints.save(1)
    assert checkpoints.restore(1) == (1, [])
    whole = (tmp_path / CHECKPOINT).read_bytes()
    for place in range(0, len(whole), 97):
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 8
        (tmp_path / CHECKPOINT).write_bytes(broken)
        with pytest.raises(UsageError, match=r"checkpoint\.pt: cannot be read .* delete"):
            checkpoints.restore(1)


def test_a_student_learns_its_teachers_distribution(folders: dict[str, Path]) -> None:
    """Of a teacher that is the network itself the cross-entropy is the entropy, at every position that counts."""
    recipe = shortened("gpt-draft")
    rows, network = read_corpus(corpus_of(recipe)), read_network(folders["gpt-draft"])
    batch = batches_for(recipe, rows)(0)
    law = network(**batch.inputs, use_cache=False).logits.log_softmax(-1)
    entropy = -(law.exp() * law).sum(-1)
    expected = (entropy * batch.weights).sum() / batch.weights.sum()
    objective = next_token(recipe, rows, teacher=network)
    torch.testing.assert_close(objective.loss(network, batch, 0, torch.Generator()), expected)
    by_text = next_token(recipe, rows).loss(network, batch, 0, torch.Generator())
    assert abs(float(by_text - expected)) > 0.01


def test_unreadable_corpus_is_named(tmp_path: Path) -> None:
    (tmp_path / DATA).write_bytes(b"short")
    (tmp_path / "tokenizer.json").write_text("{")
    cache.seal(tmp_path)
    with pytest.raises(UsageError, match=rf"{DATA}: cannot be read .* delete {tmp_path}"):
        read_corpus(tmp_path)
    with pytest.raises(UsageError, match=r"tokenizer\.json: cannot be read"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["gpt-target", "t5-xxl", "llama-target"])
def test_layers_that_join_late_change_nothing(name: str) -> None:
    recipe = RECIPES["test"][name]
    tokenizer = train_tokenizer(recipe.corpus.family, ["a small text of words"], 300)
    network = build_network(recipe, tokenizer).double()
    depth, tokens = depth_switch(recipe, network), torch.arange(3, 13)[None]
    inputs = {"input_ids": tokens} | ({"decoder_input_ids": tokens} if recipe.family == "t5" else {})
    outputs = []
    with torch.no_grad():
        for shallow in (True, False):
            depth(shallow)
            counts = {len(network.get_submodule(path)) for path in FAMILIES[recipe.family].layers}
            assert counts == {recipe.shallow_layers if shallow else recipe.num_layers}
            outputs.append(network(**inputs, use_cache=False).logits)
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)


def test_transformers_can_generate_with_every_t5(folders: dict[str, Path]) -> None:
    """It sizes the decoder's cache by the encoder's depth, so a deeper decoder would fail."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["t5-xxl"])
    assert model.generate(torch.tensor([[5, 6, 1]]), max_new_tokens=3).shape[1] == 4
    assert all(r.num_encoder_layers >= r.num_layers for rs in RECIPES.values() for r in rs.values() if r.family == "t5")


def test_num_parameters_is_what_the_file_holds(folders: dict[str, Path]) -> None:
    for name in TRAINED[:4]:
        facts = json.loads((folders[name] / "recipe.json").read_text())
        assert facts["num_parameters"] == num_parameters(RECIPES["test"][name])


def test_batches_never_show_held_out_rows_and_cover_the_others(folders: dict[str, Path]) -> None:
    """One epoch of pairs is a permutation of all rows but the held-out ones; batches are functions of the step alone."""
    recipe = RECIPES["test"]["t5-xxl"]
    rows = read_corpus(corpus_of(recipe))
    batches = batches_for(recipe, rows)
    held_out = recipe.corpus.num_held_out
    assert sorted(row for batch in batches.plan for row in batch) == list(range(held_out, len(rows)))
    late = batches(len(batches.plan) + 3)
    assert batches(0).labels.tolist() == batches_for(recipe, rows)(0).labels.tolist()
    assert batches(len(batches_for(recipe, rows).plan) + 3).labels.tolist() == late.labels.tolist()
    sizes = [batch.labels.numel() + batch.inputs["input_ids"].numel() / 2 for batch in map(batches, range(20))]
    assert max(sizes) <= recipe.batch_tokens


def test_pairs_are_fed_shifted_and_padding_counts_nothing(folders: dict[str, Path]) -> None:
    recipe = RECIPES["test"]["t5-xxl"]
    batch = batches_for(recipe, read_corpus(corpus_of(recipe)))(0)
    assert torch.equal(batch.inputs["decoder_input_ids"][:, 1:], batch.labels[:, :-1])
    assert batch.inputs["decoder_input_ids"][:, 0].eq(0).all()
    assert torch.equal(batch.weights > 0, batch.labels != 0)
    assert torch.equal(batch.inputs["attention_mask"].bool(), batch.inputs["input_ids"] != 0)


def test_blocks_are_full_and_positions_reach_the_limit(folders: dict[str, Path]) -> None:
    recipe = RECIPES["test"]["gpt-target"]
    batches = batches_for(recipe, read_corpus(corpus_of(recipe)))
    seen = [batches(step) for step in range(40)]
    assert {tuple(batch.labels.shape) for batch in seen} == {(batches.num_rows, recipe.block_length - 1)}
    last = max(int(batch.inputs["position_ids"].max()) for batch in seen)
    assert recipe.position_limit * 0.8 < last < recipe.position_limit


@pytest.mark.parametrize("family", ["t5", "llama", "gpt2"])
def test_tokenizers_return_any_text_and_are_deterministic(family: str) -> None:
    texts = ["The old man went to Zürich.", "Der alte Mann fuhr nach Zürich.", "Two dogs ran; two cats sat."] * 3
    tokenizer, again = (train_tokenizer(family, texts, 320) for _ in range(2))
    assert tokenizer.get_vocab() == again.get_vocab()
    assert len(tokenizer) <= 320
    for text in (*texts, "Ünseen «text», 漢字 and 5 %!"):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    ends = {"t5": (None, tokenizer.eos_token_id), "llama": (tokenizer.bos_token_id, None), "gpt2": (None, None)}[family]
    plain = tokenizer(texts[0], add_special_tokens=False).input_ids
    assert tokenizer(texts[0]).input_ids == [
        *([ends[0]] if ends[0] is not None else []),
        *plain,
        *ends[1:] * (ends[1] is not None),
    ]


def test_long_prompts_keep_their_instruction() -> None:
    corpus = dataclasses.replace(RECIPES["test"]["llama-target"].corpus, max_source=40)
    tokenizer = train_tokenizer("llama", ["words and words"], 300)
    text = "x y z " * 50 + "Summary:"
    (ids,), whole = encode_sources(corpus, tokenizer, [text]), tokenizer(text).input_ids
    assert len(ids) == 40
    assert (ids[0], ids[-NUM_TAIL:]) == (tokenizer.bos_token_id, whole[-NUM_TAIL:])


def test_unigram_entropy_against_counting(folders: dict[str, Path]) -> None:
    recipe = RECIPES["test"]["gpt-draft"]
    rows = read_corpus(corpus_of(recipe))
    targets = [rows.row(i)[1].tolist() for i in range(len(rows))]
    held_out, seen = targets[: recipe.corpus.num_held_out], targets[recipe.corpus.num_held_out :]
    flat = [token for row in seen for token in row]
    num_tokens = max(max(row) for row in targets) + 1
    losses = [-math.log((flat.count(t) + 1) / (len(flat) + num_tokens)) for row in held_out[:2] for t in row]
    sums = unigram_entropy(dataclasses.replace(recipe, corpus=dataclasses.replace(recipe.corpus, num_held_out=2)), rows)
    assert sums == pytest.approx(sum(losses) / len(losses), rel=0.02)


def test_schedule_rises_then_falls() -> None:
    values = [rate_share(step, 1000, 0.1) for step in range(1000)]
    assert max(values) == pytest.approx(1.0)
    assert values.index(max(values)) == 100
    assert values[0] < 0.02 > values[-1] > 0


def test_ngram_tables_hold_their_part_only(folders: dict[str, Path]) -> None:
    """The table of summaries counts exactly the summaries' tokens; the start token is a context and no output."""
    from methods.speculative.ngram import NGramTable

    table = NGramTable.load(folders["ngram-t5-cnndm"] / NGRAM_TABLE)
    rows = read_corpus(corpus_of(RECIPES["test"]["t5-xxl"]))
    summaries = [rows.row(i)[1].tolist() for i in range(len(rows)) if int(rows.part[i]) == 1]
    assert int(table.unigram_counts.sum()) == sum(map(len, summaries))
    assert int(table.unigram_counts[0]) == 0
    first = max({row[0] for row in summaries}, key=[row[0] for row in summaries].count)
    assert int(table.bigram_log_probs(0).argmax()) == first


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere"
    monkeypatch.delenv("FORETOKEN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "foretoken"


def test_unwritable_cache_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UsageError, match=r"cache folder .*file/cache.*set FORETOKEN_CACHE") as caught:
        ensure(["gpt-draft"], "test", "toy", workers=0)
    assert "\n" not in str(caught.value)


def test_cache_that_may_not_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def forbid(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    assert not cache.is_complete(tmp_path / "model-0")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", forbid)
        with pytest.raises(UsageError, match=rf"cache folder {tmp_path}/model-0: cannot be read \(Permission denied\)"):
            cache.is_complete(tmp_path / "model-0")


@pytest.mark.parametrize("content", ["{", "[]", '{"vocab_size": null}', "{}"])
def test_a_corpus_whose_recipe_is_broken_is_named(
    folders: dict[str, Path], tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RECIPES["test"]["ngram-gpt"]
    (tmp_path / DATA).write_bytes((corpus_of(recipe) / DATA).read_bytes())
    (tmp_path / "recipe.json").write_text(content)
    cache.seal(tmp_path)
    monkeypatch.setattr(build, "folder_of", lambda *_: tmp_path)
    with pytest.raises(UsageError, match=rf"recipe\.json: cannot be read .* delete {tmp_path}") as caught:
        build.count_table(recipe, tmp_path, "toy", 0)
    assert "\n" not in str(caught.value)


def test_full_disk_is_one_line_and_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"No space left on device.*free some space"):
        cache.make(tmp_path / "model-0", fill)
    assert not (tmp_path / "model-0").exists()


@pytest.mark.parametrize(
    ("name", "is_gone"),
    [
        *product(("config.json", "model.safetensors", "tokenizer.json", ".checksums.json"), (False, True)),
        ("recipe.json", False),  # without it the folder is not whole, and made anew
        ("added_tokens.json", False),
    ],
)
def test_a_file_of_the_cache_that_changed_is_refused_by_whatever_reads_it(
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    name: str,
    is_gone: bool,
) -> None:
    """One bit in its middle, a file more, or no checksums. Fault: a folder without them was sealed as it lay there."""
    source = folders["gpt-draft"]
    folder = Path(shutil.copytree(source, tmp_path / source.name))
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    assert ensure(["gpt-draft"], "test", "toy", workers=0) == {"gpt-draft": folder}
    assert capsys.readouterr().err == ""
    if is_gone:
        (folder / name).unlink()
    else:
        content = bytearray((folder / name).read_bytes()) if (folder / name).exists() else bytearray(b"{}")
        content[len(content) // 2] ^= 2
        (folder / name).write_bytes(content)
    spec = pin_model(ModelSpec(name="zoo:gpt-draft"), "test", "toy")
    for read in (
        lambda: ensure(["gpt-draft"], "test", "toy", workers=0),
        lambda: load_model(spec),
        lambda: read_network(folder),
        lambda: read_tokenizer(folder),
        lambda: read_facts(folder),
    ):
        with pytest.raises(UsageError, match=rf"{folder}.*: cannot be read \(.*\); delete .* to rebuild it") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_a_whole_folder_of_another_recipe_is_refused(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a draft's folder held the target's files, sealed and all, and alpha was 1."""
    shutil.copytree(folders["gpt-target"], tmp_path / folders["gpt-draft"].name)
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    with pytest.raises(
        UsageError, match=r"cannot be read \(it is of 'gpt-target', seed 0; expected 'gpt-draft', seed 0\); delete"
    ):
        ensure(["gpt-draft"], "test", "toy", workers=0)


@pytest.mark.parametrize("name", [".checksums.json", "recipe.json"])
def test_what_is_nested_too_deep_is_refused(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Fault: a traceback of a RecursionError."""
    folder = Path(shutil.copytree(folders["gpt-draft"], tmp_path / "gpt-draft"))
    (folder / name).write_text("[" * 100_000)
    if name != cache.SEAL:
        cache.seal(folder)
    with pytest.raises(UsageError, match=rf"{folder}.*: cannot be read .*; delete {folder}"):
        read_facts(folder)


@pytest.mark.parametrize("name", [".checksums.json", "config.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(folders["gpt-draft"], tmp_path / "gpt-draft"))
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UsageError, match=rf"{folder}: cannot be read .*no regular file.*; delete {folder}"):
        cache.verify(folder)


@pytest.mark.parametrize("damage", [lambda path: path.write_text("a file"), lambda path: path.symlink_to("nowhere")])
def test_what_is_no_folder_makes_room_for_a_model(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    damage(tmp_path / "model-0")
    cache.make(tmp_path / "model-0", lambda folder: (folder / "recipe.json").write_text("{}"))
    assert cache.is_complete(tmp_path / "model-0")


def test_a_file_that_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "model-0.partial").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot write .*model-0\.partial \(File exists\).*remove what is in its place"):
        cache.make(tmp_path / "model-0", lambda _: None)


def test_what_a_killed_build_left_is_handed_on(tmp_path: Path) -> None:
    (tmp_path / "model-0.partial").mkdir()
    (tmp_path / "model-0.partial" / "checkpoint.pt").write_text("half")

    def finish(folder: Path) -> None:
        (folder / "recipe.json").write_text((folder / "checkpoint.pt").read_text())

    cache.make(tmp_path / "model-0", finish)
    assert (tmp_path / "model-0" / "recipe.json").read_text() == "half"
    assert not (tmp_path / "model-0.partial").exists()


def test_what_a_killed_build_left_whole_is_taken_if_it_was_sealed(tmp_path: Path) -> None:
    """Fault: the files of a whole folder that nobody had sealed were sealed as they lay there, damaged ones too."""
    partial = tmp_path / "model-0.partial"

    def build(folder: Path) -> None:
        (folder / "weights").write_text("built")
        (folder / "recipe.json").write_text("{}")

    for sealed, found in ((False, "built"), (True, "left")):
        partial.mkdir()
        (partial / "weights").write_text("left")
        (partial / "recipe.json").write_text("{}")
        if sealed:
            cache.seal(partial)
        cache.make(tmp_path / "model-0", build)
        assert (tmp_path / "model-0" / "weights").read_text() == found
        shutil.rmtree(tmp_path / "model-0")
    partial.mkdir()
    build(partial)
    cache.seal(partial)
    (partial / "weights").write_text("bui1t")
    with pytest.raises(UsageError, match=r"weights is not as it was written"):
        cache.make(tmp_path / "model-0", build)
