"""What a run reads: prompts, ends, sound, random numbers, and a draft's words for its target's."""

import json
import random
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import get_args

import numpy as np
import torch
from transformers import GenerationConfig

from harness.core.experiment import ModelSpec
from harness.core.plugins import find
from harness.models.loading import LoadedModel, eos_ids, load_model
from harness.models.names import pin_model
from harness.models.translation import fewer, part_of, translation_of
from harness.report.known.rules import ENDS
from harness.report.known.values import hashed
from harness.report.pinned import CHECKPOINTS, model, plain_decoding
from harness.run.decode import merged, parts_of, stop_of
from harness.run.prompts import make_prompt, seed_of
from harness.run.record import score_reference
from methods.models import stack_for
from methods.models.whisper import WhisperStack, forced_tokens
from methods.sampling import EndlessUniforms, Uniforms
from methods.session import ModelSession
from methods.speculative.overlap import CHUNK, log_prob
from methods.speculative.translation import TranslatedSession
from methods.types import Inputs
from tasks import TASKS, get_task
from tasks.base import PromptStyle
from tasks.sound import starts_of, to_mono
from tasks.sources.read import read_examples
from tasks.speech import NOT_SCORED

TURNS = "{{ bos_token }}{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
TEMPLATE = TURNS + "{% if add_generation_prompt %}assistant:{% endif %}"
SHORTER = {"squad": 60, "text": 12}  # tokens that a prompt is cut to
SHORTENED = {"squad": "context", "text": "prompt"}  # the field that is
WRITTEN = {"squad": "{question}\\n{context} {{}}", "text": "{prompt}\\nand on"}  # templates


def _read() -> dict[str, float | str]:
    """Return texts and prompts as a model's tokenizer has them."""
    llama = loaded("llama-target")
    return {**_told(llama, loaded("t5-draft")), **_asked(llama)}


def _told(llama: LoadedModel, t5: LoadedModel) -> dict[str, float | str]:
    """Return tokens and ends of texts."""
    llama.tokenizer.chat_template = TEMPLATE
    shared, reads = translation_of(llama, t5), list[object]()
    session = ModelSession(t5.stack)
    vars(session)["prefill"] = lambda inputs: reads.append(inputs.prompts)
    TranslatedSession(session, shared).prefill(Inputs(tuple(llama.encode(text)[1:] for text in ("Two dogs ran.", "A cat."))))
    known = replace(loaded("llama-draft"), eos_token_ids=())
    begun = translation_of(llama, known).prompt(llama.encode("Two dogs ran.")[1:])
    short = loaded("t5-draft")
    short.tokenizer.model_max_length = 4
    return {
        "a prompt longer than a tokenizer's own length": hashed(short.encode("Two dogs ran.")),
        "a prompt without the beginning that its draft has": hashed(begun),
        "what a draft that knows a part reads": hashed(part_of(llama, known, range(2, 300)).pieces),
        "a chat's tokens": hashed(llama.encode_chat("Two dogs ran.")),
        "a prompt's tokens": hashed((llama.encode("Two dogs ran."), t5.encode("Two dogs ran."))),
        "ends of a text": hashed(eos_ids(GenerationConfig(eos_token_id=list(ENDS)))),
        "tokens of another vocabulary": hashed((shared.pieces, shared.target_ids.tolist(), shared.draft_ids.tolist())),
        "tokens of a part of another": hashed(fewer(shared, 50, llama.eos_token_ids).target_ids.tolist()),
        "what a draft of other words reads": hashed(reads),
        "a prompt in another's tokens": hashed(shared.prompt(llama.encode("Two dogs ran."))),
        "a continuation in one's own": hashed(shared.back(t5.encode("Two dogs ran."))),
    }


def _asked(llama: LoadedModel) -> dict[str, str]:
    """Return prompts of the first example of every task but plug-ins'; of some also cut to what fits, and by a template."""
    found = dict[str, str]()
    for name, task in TASKS.items():
        if find("task", name) is not None:
            continue
        example = next(iter(read_examples(task, "toy", "test", 1, 0)))
        if example.audio is None:
            found |= {f"prompt of {name}, {style}": hashed(task.prompt(example, style)) for style in get_args(PromptStyle)}
        if name in SHORTER:
            whole = plain_decoding(0, 1, 1, name, "llama-target", max_input_tokens=None)
            templated = whole.replace(prompt_template=WRITTEN[name])
            ways = {
                "cut to fit": whole.replace(max_input_tokens=SHORTER[name]),
                "by a template": templated,
                "by a template, as a chat": templated.replace(chat_template=True),
            }
            for way, experiment in ways.items():
                prompt = make_prompt(get_task(name), example, experiment, llama)
                found[f"prompt of {name}, {way}"] = hashed((prompt.tokens, prompt.truncated_tokens))
            joined = replace(example, inputs={**example.inputs, SHORTENED[name]: "abc,def." * 40})
            prompt = make_prompt(get_task(name), joined, ways["cut to fit"], llama)
            found[f"prompt of {name} without spaces, cut to fit"] = hashed((prompt.tokens, prompt.truncated_tokens))
    return found


def _filed() -> dict[str, str]:
    """Return which rows of a file two seeds choose, and what is read of rows with several answers."""
    rows = [
        {
            "id": f"q{number}",
            "context": f"Dog {number} ran.",
            "question": f"Who ran {number}?",
            "answers": {"text": [f"Dog {number}", "Dog"]},
        }
        for number in range(80)
    ]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
        chosen = {seed: list(read_examples(get_task("squad"), str(file), "test", 3, seed)) for seed in (0, 1)}
        texts = [
            {"id": f"{length}", "text": " ".join(f"word{place}" for place in range(length))} for length in (2, 19, 20, 300)
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in texts), encoding="utf8")
        cut = [(one.inputs, one.references) for one in read_examples(get_task("text"), str(file), "test", 9, 0)]
        file.write_text(json.dumps({"id": "a", "prompt": "Two dogs ", "continuation": " ran home. "}) + "\n", encoding="utf8")
        own = [(one.inputs, one.references) for one in read_examples(get_task("text"), str(file), "test", 9, 0)]
        file.unlink()
        for split, part in (("train", rows[:20]), ("test", rows[10:15])):
            (Path(folder) / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf8")
        for stem in ("newstest2014", "newsdiscusstest2015"):
            pair = {"translation": {"en": f"Two dogs of {stem}.", "fr": "Deux chiens."}}
            (Path(folder) / f"{stem}.en-fr.jsonl").write_text(json.dumps(pair) + "\n", encoding="utf8")
        french = [one.inputs["source"] for one in read_examples(get_task("wmt-en-fr"), folder, "test", None, 0)]
        spoken = [{"id": text[:3], "audio": f"{text[:3]}.wav", "text": text} for text in ("dogs ran", NOT_SCORED, "a cat")]
        file.write_text("".join(json.dumps(row) + "\n" for row in spoken), encoding="utf8")
        heard = sorted(one.references[0] for one in read_examples(get_task("tedlium"), str(file), "test", None, 0))
        learned = [one.inputs["context"] for one in read_examples(get_task("squad"), folder, "train", None, 0)]
    found = {f"rows of a file by seed {seed}": hashed([one.id for one in examples]) for seed, examples in chosen.items()}
    found |= {
        "answers of a row": hashed(chosen[0][0].references),
        "texts that are cut": hashed(cut),
        "a text with its continuation": hashed(own),
    }
    found |= {"rows of two test sets": ", ".join(french), "transcripts that are scored": ", ".join(heard)}
    return found | {"rows to learn from, five of which are tested on": f"{len(learned)} {hashed(learned)}"}


def _scored() -> dict[str, float]:
    """Return how many bytes a reference has of which letters take two."""
    llama = loaded("llama-target")
    text = "Zwei große Hunde, süß und müde."
    score = score_reference(llama.session(), llama.encode("Two dogs ran."), llama.encode_continuation(text), text)
    long = [5 + place * place % 90 for place in range(CHUNK + 40)]
    nats, scored = log_prob(llama.session(), Inputs((tuple(llama.encode("Two dogs ran.")),)), long)
    whole = "Zwei große Hunde. " * 100
    beyond = score_reference(llama.session(), llama.encode("Two dogs ran."), llama.encode_continuation(whole), whole)
    return {
        "bytes of a reference beyond the last position": float(beyond.num_bytes),
        "bytes of a reference": float(score.num_bytes), "nats of a reference": -score.log_prob_sum,
        "nats of a long reference": -nats, "tokens of a long reference": float(scored),
    }  # fmt: skip


def _heard() -> dict[str, float | str]:
    """Return how sound of two channels is made one, and how long sound is cut to windows whose texts are joined again."""
    stereo = np.stack([np.linspace(0, 1, 800, dtype=np.float32), np.full(800, 0.5, np.float32)], axis=1)
    found: dict[str, float | str] = {
        f"two channels at {rate} Hz": float(to_mono(stereo, rate).samples.astype(np.float64).sum()) for rate in (16000, 8000)
    }
    for hertz, rate in product((3_000, 12_000), (48_000, 44_100)):
        tone = np.sin(2 * np.pi * hertz * np.arange(rate // 4) / rate).astype(np.float32)
        heard = to_mono(tone[:, None], rate).samples.astype(np.float64)
        found[f"power of {hertz} Hz at {rate} Hz"] = float(np.mean(heard**2))
    for length in (300, 301, 1000):
        found[f"windows of {length} samples"] = hashed(list(starts_of(length, 300)))
    windows = [[7, 1, 2, 3, 4, 5, 9], [4, 5, 6, 8, 9], [8, 6, 8, 2], [3, 9]]
    found["windows' texts"] = hashed(parts_of([token for part in windows for token in part], {9}, 4))
    found["windows joined"] = hashed(merged(windows, {9}))
    found["windows that repeat joined"] = hashed(merged([[1, 2, 1, 2], [1, 2, 1, 2, 5]], {9}))
    found["long windows joined"] = hashed(merged([list(range(10, 19)), [13, 0, 15, 16, 17, 18, 1, 2], [16, 1, 2, 3]], {9}))
    drawn = random.Random(0)
    pairs = [[drawn.choices(range(5), k=drawn.randrange(2, 12)) for _ in range(2)] for _ in range(100)]
    found["a hundred pairs of windows joined"] = hashed([merged(pair, ()) for pair in pairs])
    return found


def _drawn() -> dict[str, str]:
    """Return seeds, and the numbers that they give."""
    experiment = plain_decoding(0, 1, 1, "text", "llama-target")
    found = {}
    for repeat, window in ((0, 0), (1, 0), (0, 1), (0, 2)):
        found[f"seed of repeat {repeat}, window {window}"] = hashed(seed_of(experiment, "an example", repeat, window))
    for kind in (Uniforms, EndlessUniforms):
        for level, own in enumerate((kind([5, 6], 4), kind([5, 6], 4).nested())):
            drawn = own.draft([0, 2], 2), own.verify([1, 0], 2)
            found[f"{kind.__name__}, level {level}"] = hashed([one.mul(2**20).long().tolist() for one in drawn])
    return found


def _ended() -> dict[str, str]:
    """Return the ends of a model whose two configurations differ, and the tokens that one which hears does not begin with."""
    found = {}
    with TemporaryDirectory() as folder:
        for name, of_generation in (("both", [7, 9]), ("none for generation", None)):
            copy = Path(folder) / name
            shutil.copytree(CHECKPOINTS / "llama-draft", copy)
            for file, ends in (("config.json", [5]), ("generation_config.json", of_generation)):
                values = json.loads((copy / file).read_text(encoding="utf8")) if (copy / file).exists() else {}
                (copy / file).write_text(json.dumps(values | {"eos_token_id": ends}), encoding="utf8")
            stating = load_model(ModelSpec(name=str(copy)))
            stop = stop_of(plain_decoding(0, 1, 1, "text", "llama-draft"), stating)
            found[f"ends of a model that states {name}"] = hashed((stating.eos_token_ids, sorted(stop.token_ids)))
    hears = loaded("whisper-target").stack.model
    hears.generation_config.begin_suppress_tokens, hears.generation_config.suppress_tokens = [3, 5], [8]
    stack = stack_for(hears)
    assert isinstance(stack, WhisperStack)
    logits = stack.head(torch.zeros(1, 1, stack.width, dtype=stack.dtype))[0, 0]
    for speaks, languages in product((True, False), ({"<|en|>": 7}, None)):
        settings = SimpleNamespace(
            decoder_start_token_id=2, is_multilingual=speaks, lang_to_id=languages, task_to_id={"transcribe": 9},
            no_timestamps_token_id=11,
        )  # fmt: skip
        found[f"tokens that are forced, multilingual {speaks}, with languages {languages is not None}"] = str(
            forced_tokens(settings)
        )
    found["tokens that no text begins with"] = hashed((stack.begin_suppressed, logits.isinf().nonzero().flatten().tolist()))
    return found


def loaded(name: str) -> LoadedModel:
    return load_model(pin_model(model(name), "test", "toy"), dtype="float64")


GROUPS = (_read, _filed, _ended, _heard, _drawn, _scored)
