"""Notes that a run leaves beside its records, so that tables and figures need neither network, models, data nor this machine.

- ``pins.jsonl``: for each planned experiment, as what it was run: with the revisions, fingerprints and plug-ins that its names
  meant then; or why it was unavailable. Later lines replace earlier ones.
- ``models.jsonl``: facts of models: parameters, rows they were trained on, the tokenizer.
- ``tokenizers/``: tokenizers by the hash of their content. ``texts/``: source sentences by the fingerprint of the data.
- ``scores/``: scores of outputs that a model gave (COMET), an experiment a file.
- ``learned/``: from how many of the tested rows each model learned, or why that is unknown, an experiment a file.

Every line, and every file of a single object, ends with a checksum, as lines of records do. Several runs may add to them
at once.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.core.experiment import Experiment, ModelSpec
from harness.core.files import LineFile, readable, replace_file, sealed, short_hash, unsealed, whole_lines

Line = Mapping[str, Any]
LEARNED = frozenset({"rows", "tested", "why"})  # of a model's training on the rows of an experiment
SAME = ("task", "sampling", "seed", "replica", "replicas", "batch_size", "dtype", "max_new_tokens")  # what no pinning changes


class Notes:
    """The notes in a folder of records, under ``notes/``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "notes"

    @cached_property
    def _pins(self) -> dict[str, Line]:
        return self._read("pins", lambda line: line["planned"])

    @cached_property
    def _models(self) -> dict[tuple[str, str], Line]:
        return self._read("models", lambda line: (line["name"], line["revision"]))

    def pin(self, planned: Experiment) -> Experiment | None:
        """Return what a planned experiment was run as; None if it never was."""
        line = self._pins.get(planned.signature, {})
        with _readable(self.folder / "pins.jsonl"):
            if "experiment" not in line or any(probe.id not in line["probes"] for probe in planned.probes):
                return None
            probes = tuple(probe.from_dict(line["probes"][probe.id]) for probe in planned.probes)
            pinned = Experiment.from_dict(line["experiment"])
            if odd := [name for name in SAME if getattr(pinned, name) != getattr(planned, name)]:
                raise ValueError(f"planned {planned.signature} was run with another {odd[0]} than it plans")
            return pinned.replace(limit=planned.limit, repeats=planned.repeats, probes=probes)

    def unavailable(self, planned: Experiment) -> str | None:
        """Say why a planned experiment could not be run."""
        why = self._pins.get(planned.signature, {}).get("unavailable")
        with _readable(self.folder / "pins.jsonl"):
            if why is not None and not isinstance(why, str):
                raise ValueError(f"unavailable {why!r}: expected text")
        return why

    def model(self, spec: ModelSpec) -> Line:
        """Return the facts of a pinned model; empty if none were noted."""
        return self._models.get((spec.name, spec.revision or ""), {})

    def texts(self, pinned: Experiment) -> dict[str, str]:
        """Return the source sentences of an experiment's examples, by the examples' ids."""
        path = self.text_file(pinned)
        with _readable(path):
            return {line["example"]: line["source"] for line in _lines(path)} if path.exists() else {}

    def text_file(self, pinned: Experiment) -> Path:
        return self.folder / "texts" / f"{pinned.task}-{pinned.source_fingerprint or 'unknown'}.jsonl"

    def tokenizer(self, digest: str) -> Path:
        """Return the file of a tokenizer, or its folder if the light library cannot read it."""
        return self.folder / "tokenizers" / digest

    def scores(self, pinned: Experiment, metric: str) -> Line:
        """Return ``{"scores": {example: score}}``, ``{"failed": why}``, or nothing if outputs were not scored."""
        path = self.score_file(pinned, metric)
        with _readable(path):
            return unsealed(path.read_bytes()) if path.is_file() else {}

    def score_file(self, pinned: Experiment, metric: str) -> Path:
        return self.folder / "scores" / f"{pinned.signature}-{metric}.json"

    def learned(self, signature: str) -> dict[str, Line]:
        """Return what was noted of each model's training on the rows of an experiment; empty if nothing was."""
        path = self._learned_file(signature)
        with _readable(path):
            found = unsealed(path.read_bytes()) if path.is_file() else {}
            if odd := next((name for name, one in found.items() if not LEARNED.issubset(one)), None):
                raise ValueError(f"{odd!r}: expected {', '.join(sorted(LEARNED))} of every model")
            return found

    def _learned_file(self, signature: str) -> Path:
        return self.folder / "learned" / f"{signature}.json"

    def note_pin(self, planned: Experiment, pinned: Experiment) -> None:
        """Note what a planned experiment is run as, unless the last note says so already."""
        described = json.loads(pinned.signed.to_json())
        probes = self._pins.get(planned.signature, {}).get("probes", {})
        pairs = zip(planned.probes, pinned.probes, strict=True)
        probes = probes | {one.id: json.loads(known.to_json()) for one, known in pairs}
        self._note_pins({planned.signature: {"planned": planned.signature, "experiment": described, "probes": probes}})

    def note_unavailable(self, planned: Iterable[Experiment], why: str) -> None:
        """Note why experiments cannot be run now, beside what they were run as before."""
        self._note_pins(
            {
                one.signature: {**self._pins.get(one.signature, {"planned": one.signature}), "unavailable": why}
                for one in planned
            }
        )

    def keep_pins(self, planned: Collection[str]) -> set[str]:
        """Write anew the last lines of experiments of these planned signatures alone; return the signatures of what was run."""
        kept = [self._pins[name] for name in sorted(self._pins) if name in planned]
        if self._pins:
            whole = "".join(sealed(line) for line in kept)
            replace_file(self.folder / "pins.jsonl", whole)
        return {Experiment.from_dict(line["experiment"]).signature for line in kept if "experiment" in line}

    def _note_pins(self, lines: Mapping[str, Line]) -> None:
        new = {key: line for key, line in lines.items() if self._pins.get(key) != line}
        self._append(self.folder / "pins.jsonl", new.values())
        self._pins.update(new)

    def note_model(self, spec: ModelSpec, facts: Line) -> None:
        line = {"name": spec.name, "revision": spec.revision or "", **facts}
        self._append(self.folder / "models.jsonl", [line])
        self._models[spec.name, spec.revision or ""] = line

    def note_texts(self, pinned: Experiment, sources: Mapping[str, str]) -> None:
        """Note source sentences; the file says that an experiment's examples were looked at, also where they have none."""
        known, path = self.texts(pinned), self.text_file(pinned)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        new = [{"example": name, "source": text} for name, text in sources.items() if name not in known]
        self._append(self.text_file(pinned), new)

    def note_scores(self, pinned: Experiment, metric: str, scores: Line) -> None:
        path = self.score_file(pinned, metric)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, sealed(scores))

    def note_learned(self, signature: str, learned: Mapping[str, Line]) -> None:
        path = self._learned_file(signature)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, sealed(learned))

    def _append(self, path: Path, lines: Iterable[Line]) -> None:
        """Append lines; another run that is appending is waited for."""
        whole = "".join(sealed(line) for line in lines)
        if whole:
            path.parent.mkdir(parents=True, exist_ok=True)
            with LineFile(path, wait=True) as file:
                file.write(whole.encode())

    def _read(self, name: str, key: Callable[[Line], Any]) -> dict[Any, Line]:
        path = self.folder / f"{name}.jsonl"
        with _readable(path):
            return {key(line): line for line in _lines(path)} if path.exists() else {}


def vocabulary_hash(tokenizer: Any) -> str:
    """Return what a folder of a transformers tokenizer is named by: its class and the ids of its tokens."""
    return short_hash(f"{type(tokenizer).__name__} {sorted(tokenizer.get_vocab().items())}")


def _readable(path: Path) -> AbstractContextManager[None]:
    return readable(f"notes {path}", "remove it, and run the same commands again")


def _lines(path: Path) -> list[Line]:
    return [unsealed(line) for line in whole_lines(path)]
