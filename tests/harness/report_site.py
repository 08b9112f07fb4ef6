"""A report of the committed tables with records made up for it, some of them hostile, and a parser that knows its pages."""

import json
import shutil
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.notes import Notes
from harness.core.record_files import RecordFile
from harness.core.records import Divergence, Record
from harness.report.site import collect, write_site
from methods.steps import Steps

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}"
LIMIT = 2
VOID = {"meta", "link", "img", "br", "input", "hr"}


@dataclass
class Page(HTMLParser):
    """What a page holds; ``problems`` are tags that do not pair up."""

    links: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    open_tags: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        self.links += [value for name in ("href", "src", "action", "srcset") if (value := values.get(name))]
        if values.get("id"):
            self.problems += [f"id {values['id']} twice"] if values["id"] in self.ids else []
            self.ids.add(str(values["id"]))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open_tags or self.open_tags.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf8"))
    page.close()
    page.problems += [f"<{tag}> is never closed" for tag in page.open_tags]
    return page


def made_up(folder: Path) -> Experiment:
    """Records of one drafted experiment: failed, divergent, hostile and plain ones, in the order ok, ok, divergent, failed."""
    model = ModelSpec(name="zoo:not-here", revision="0" * 16)
    method = MethodSpec.of("speculative", drafter=DrafterSpec(kind="model", model=model), gamma=2)
    experiment = Experiment(task="text", target=model, method=method, limit=4, prompt_template=HOSTILE)
    steps = Steps(drafted=[[1, 2], [4, 5], [7, 8]], num_accepted=[1, 2, 0], emitted=[2, 3, 1])
    good = {"signature": experiment.signature, "repeat": 0, "status": "ok", "stop_reason": "length", "environment": "e" * 12}
    tokens = [1, 3, 4, 5, 6, 9]
    parted = Divergence(position=3, margin=1e-6, bound=1e-4, replays_agree=True, kind="near-tie")
    with RecordFile(folder, experiment).open() as writer:
        for example in ("first", "second"):
            writer.append(Record(**good, example=example, tokens=tokens, text=HOSTILE, steps=steps, wall_s=0.5))
        writer.append(Record(**good, example="third", tokens=tokens, text="x", steps=steps, divergence=parted))
        writer.append(Record(**{**good, "status": "failed", "stop_reason": None}, example=HOSTILE, error=HOSTILE))
    told = {"rows": "unknown", "tested": 4, "why": "it says nothing of its training"}
    Notes(folder).note_learned(experiment.signature, {HOSTILE: told, "own": {"rows": 3, "tested": 4, "why": None}})
    (folder / "broken.jsonl").write_text("", encoding="utf8")
    (folder / "broken.json").write_text("{", encoding="utf8")
    return experiment


def build(folder: Path) -> tuple[Path, Experiment]:
    """The site, of the committed tables and figures, two experiments (one unreadable) and an audit."""
    results, records = folder / "results", folder / "records"
    results.mkdir()
    records.mkdir()
    for name in ("tables", "figures"):
        shutil.copytree(ROOT / "results" / name, results / name)
    (results / "audit").mkdir()
    subjects = [
        {"name": "greedy", "verdict": "identical", "prompts": 20, "margin": None},
        {"name": HOSTILE, "verdict": "bug", "tests": {"first": {"p": 0.25}, "bonus": {"p": 1e-9}}, "failed": ["bonus"]},
    ]
    audit = {"passed": False, "command": "foretoken audit --scale test", "red": [HOSTILE], "subjects": subjects, "empty": []}
    (results / "audit" / "greedy.json").write_text(json.dumps(audit), encoding="utf8")
    experiment = made_up(records)
    write_site(collect(results, records, LIMIT), folder / "site")
    return folder / "site", experiment
