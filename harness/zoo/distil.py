"""Sequence-level distillation (Kim and Rush 2016; Xia et al. 3.1): a corpus's sources, translated by a teacher's beam search.

Every finished batch is a line of a file, so that a run that was killed goes on behind the last whole line.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors.torch import save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM

from harness import environment
from harness.zoo.cache import DONE, replace_file
from harness.zoo.corpus import DATA, Encoded, read_corpus, read_tokenizer
from harness.zoo.descriptions import Distilled
from harness.zoo.train import device_of, one_thread

DECODED = "decoded.jsonl"


def build_distilled(
    corpus: Distilled,
    base_folder: Path,
    teacher_folder: Path,
    folder: Path,
    source: str,
    *,
    position: int = 0,
    stop_at: int | None = None,
) -> None:
    """Write the corpus to ``folder``, which may hold what an earlier run decoded. ``stop_at`` ends after so many batches."""
    rows, tokenizer = read_corpus(base_folder), read_tokenizer(base_folder)
    targets = {row: target for line in _decoded(folder / DECODED) for row, target in zip(*line, strict=True)}
    todo = [batch for batch in batches_of(rows, corpus.batch_size) if batch[0] not in targets][:stop_at]
    with one_thread():
        teacher: Any = AutoModelForSeq2SeqLM.from_pretrained(teacher_folder).eval()
        teacher.to(device_of(corpus.teacher))
        bar = tqdm(total=len(rows), initial=len(targets), desc=f"decode {corpus.name}", position=position, mininterval=1.0)
        with bar, (folder / DECODED).open("a", encoding="utf8") as file:
            for batch in todo:
                began = time.process_time()
                found = beam_outputs(teacher, [rows.row(row)[0] for row in batch], corpus.num_beams, corpus.max_target)
                cpu_s = time.process_time() - began
                file.write(json.dumps({"rows": batch, "targets": found, "cpu_s": cpu_s}) + "\n")
                file.flush()
                targets |= dict(zip(batch, found, strict=True))
                bar.update(len(batch))
    if len(targets) == len(rows):
        tokenizer.save_pretrained(folder)
        _finish(corpus, rows, [targets[row] for row in range(len(rows))], folder, source, base_folder)


def batches_of(rows: Encoded, size: int) -> list[list[int]]:
    """All rows, those with sources of similar length together."""
    lengths = rows.source_ends.diff(prepend=rows.source_ends.new_zeros(1))
    order = lengths.argsort(stable=True).tolist()
    return [order[start : start + size] for start in range(0, len(order), size)]


@torch.inference_mode()
def beam_outputs(model: Any, sources: Sequence[Int[Tensor, "s"]], num_beams: int, max_new_tokens: int) -> list[list[int]]:
    """Each source's best hypothesis by transformers' own beam search: its ids, EOS included, without the start token."""
    lengths = torch.tensor([len(source) for source in sources])
    ids = pad_sequence([source.long() for source in sources], batch_first=True, padding_value=0).to(model.device)
    mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(1)).long().to(model.device)
    found = model.generate(ids, attention_mask=mask, num_beams=num_beams, do_sample=False, max_new_tokens=max_new_tokens)
    end = model.generation_config.eos_token_id
    return [row[: row.index(end) + 1] if end in row else row for row in found[:, 1:].tolist()]


def _decoded(path: Path) -> Iterator[tuple[list[int], list[list[int]]]]:
    """The whole lines of an earlier run; a torn last one is cut off the file."""
    if not path.exists():
        return
    whole = path.read_bytes()
    kept = whole[: whole.rfind(b"\n") + 1]
    if len(kept) < len(whole):
        replace_file(path, kept)
    for line in kept.splitlines():
        values = json.loads(line)
        yield values["rows"], values["targets"]


def _finish(
    corpus: Distilled, rows: Encoded, targets: Sequence[Sequence[int]], folder: Path, source: str, base_folder: Path
) -> None:
    tensors = {
        "part": rows.part,
        "source": rows.source,
        "source_ends": rows.source_ends,
        "target": torch.tensor([token for target in targets for token in target], dtype=torch.int32),
        "target_ends": torch.tensor([len(target) for target in targets]).cumsum(0),
    }
    (folder / DATA).write_bytes(save(tensors))
    with (folder / DECODED).open(encoding="utf8") as file:
        cpu_s = sum(json.loads(line)["cpu_s"] for line in file)
    facts = {
        "corpus": asdict(corpus),
        "source": source,
        "num_rows": len(rows),
        "vocab_size": json.loads((base_folder / DONE).read_text(encoding="utf8"))["vocab_size"],
        "num_unchanged": sum(rows.row(row)[1].tolist() == list(target) for row, target in enumerate(targets)),
        "decode_cpu_s": cpu_s,
        "environment": environment.describe(),
    }
    replace_file(folder / DONE, json.dumps(facts, indent=1).encode())
    (folder / DECODED).unlink()
