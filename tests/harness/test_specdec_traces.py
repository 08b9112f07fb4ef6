"""Worked examples: the paper's own trace comes out of its text and out of a record of the same rounds, token for token."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import specdec_runs as runs

from harness.core.errors import UsageError
from harness.core.records import Record
from harness.core.settings import Settings
from harness.papers import get_table
from harness.papers.specdec.examples import END, Trace, html_examples, markdown_examples, terminal_examples, trace_of
from harness.papers.specdec.setup import STRICT
from harness.papers.specdec.traces import NUM_SHOWN, RELAXED, appendix, arms, examples, num_bifurcations, printed, shown
from harness.tables import published
from harness.tables.base import Cell
from harness.tables.engine import known_arms
from harness.tables.evidence import Evidence
from harness.tables.files import Header, write_table
from methods.steps import Steps

FEW = Settings(limit=8)


def words_of(text: str) -> list[str]:
    return text.replace(END, f" {END}").split()


class Papers:
    """The paper's strict trace as a record: ids of words, rounds as the loop would have made them."""

    def __init__(self) -> None:
        lines = [words_of(row["text"]) for row in published.read("specdec", "table_19") if row["variant"] == "SpecDec"]
        self.words = sorted({word for line in lines for word in line})
        self.ids = {word: index for index, word in enumerate(self.words)}
        steps, before = Steps(), []
        for drafter, verifier in zip(lines[::2], lines[1::2], strict=True):
            drafted, choices = drafter[len(before) :], verifier[len(before) :]
            stood = next((i for i, (a, b) in enumerate(zip(drafted, choices, strict=False)) if a != b), len(drafted))
            emitted = choices[: stood + 1]
            padding = [self.ids["Antwort"]] * (len(drafted) + 1 - len(choices))  # the paper omits what is behind the end
            steps.drafted.append([self.ids[word] for word in drafted])
            steps.choices.append([self.ids[word] for word in choices] + padding)
            steps.num_accepted.append(min(stood, len(emitted)))
            steps.emitted.append(len(emitted))
            before += emitted
        tokens = [self.ids[word] for word in before]
        common = {"signature": "s", "example": "e", "repeat": 0, "status": "ok", "text": "", "stop_reason": "eos"}
        self.record = Record(**common, tokens=tokens, wall_s=1.0, steps=steps)

    def decode(self, ids: Sequence[int]) -> str:
        """As tokenizers do it: no space before the first word."""
        return " ".join(self.words[token] for token in ids)


def made(trace: Trace, number: int) -> list[str]:
    """What stands after an iteration."""
    return [token.text.strip() for token in trace.iterations[number].verifier if token.kind != "dropped"]


def test_the_papers_traces_are_read_as_the_paper_describes_them() -> None:
    """Four iterations and two; its text shows where they bifurcate: der/Gut@@ and acht@@/ach@@."""
    strict, relaxed = printed()
    assert [one.bifurcation for one in strict.iterations] == [3, 4, None, None]
    assert [one.bifurcation for one in relaxed.iterations] == [None, None]
    wrong = [token.text for one in strict.iterations for token in one.drafter if token.kind == "rejected"]
    right = [token.text for one in strict.iterations for token in one.verifier if token.kind == "corrected"]
    assert (wrong, right) == ([" der", " acht@@"], [" Gut@@", " ach@@"])
    results = (
        "Gestern hat Gut@@ ach@@ ts Bürger@@ meister eine klare Antwort auf diese Frage gegeben . [EOS]",
        "Gestern hat der Bürger@@ meister von Gut@@ acht eine klare Antwort auf diese Frage gegeben . [EOS]",
    )
    for trace, result in zip((strict, relaxed), results, strict=True):
        assert " ".join(made(trace, -1)) == result
        for number, following in pairwise(range(len(trace.iterations))):
            before = [token.text.strip() for token in trace.iterations[following].drafter if token.kind == "before"]
            assert before == made(trace, number)


def test_a_record_of_the_same_rounds_gives_the_same_trace() -> None:
    papers = Papers()
    ours, theirs = trace_of(papers.record, papers.decode, "SpecDec, k=10"), printed()[0]
    assert len(ours.iterations) == len(theirs.iterations)
    for one, other in zip(ours.iterations, theirs.iterations, strict=True):
        assert one.bifurcation == other.bifurcation
        for mine, printed_line in ((one.drafter, other.drafter), (one.verifier, other.verifier)):
            assert [(token.text.strip(), token.kind) for token in mine] == [
                (token.text.strip(), token.kind) for token in printed_line
            ]
    assert [text.strip() for text in ours.iterations[0].choices][2] == "Gut@@"


def test_a_draft_that_is_not_the_first_choice_is_a_candidate() -> None:
    papers = Papers()
    steps = papers.record.steps
    steps.choices[2][5] = papers.ids["der"]
    one = trace_of(papers.record, papers.decode, "").iterations[2]
    for line in (one.drafter, one.verifier):
        assert [token.text.strip() for token in line if token.kind == "candidate"] == ["Antwort"]
    assert one.choices[5].strip() == "der"


@pytest.mark.parametrize("rule", [STRICT, RELAXED])
def test_lines_of_any_run_hang_together(rule: str) -> None:
    """What stands after an iteration stood before the next; the last is the output; nothing follows its end."""
    arm = arms(FEW)[rule]
    for record in runs.records(arm):
        trace = trace_of(record, lambda ids: "".join(f" {token}" for token in ids), rule)
        for number, following in pairwise(range(len(trace.iterations))):
            assert made(trace, number) == [t.text.strip() for t in trace.iterations[following].drafter if t.kind == "before"]
        output = [f"{token}" for token in record.tokens[:-1]] + [END]
        assert made(trace, -1) == output
        for one in trace.iterations:
            assert all(token.text != END for line in (one.drafter, one.verifier) for token in line[:-1])
        candidates = sum(token.kind == "candidate" for one in trace.iterations for token in one.verifier)
        assert (candidates > 0) == (rule == RELAXED)


def test_a_block_that_stands_whole_is_not_a_bifurcation_with_cap_printed() -> None:
    """Three drafts stand, two by the relaxed rule only, and count as two and the verifier's token; then one, the end."""
    steps = Steps(drafted=[[5, 6, 7], [8]], choices=[[5, 90, 91, 8], [8, 92]], num_accepted=[2, 0], emitted=[3, 1])
    record = Record(
        signature="s", example="e", repeat=0, status="ok", tokens=[5, 6, 7, 8], stop_reason="eos", text="", steps=steps
    )
    whole, last = trace_of(record, lambda ids: "".join(f" {token}" for token in ids), "").iterations
    assert whole.bifurcation is last.bifurcation is None
    assert [(token.text, token.kind) for token in whole.verifier] == [
        (" 5", "accepted"), (" 6", "candidate"), (" 7", "candidate")
    ]  # fmt: skip
    assert whole.drafter == whole.verifier
    assert [(token.text, token.kind) for token in last.verifier[3:]] == [(END, "accepted")]


def test_bifurcations_are_rounds_in_which_a_draft_did_not_stand() -> None:
    """Of four rounds: a draft refused; all stand and a token of the verifier's own; cut by the end; a refusal again."""
    steps = Steps(
        drafted=[[5, 6], [7, 8], [9, 9], [4]], choices=[[5, 1, 2], [7, 8, 3], [9, 9, 9], [6, 6]],
        num_accepted=[1, 2, 1, 0], emitted=[2, 3, 1, 1],
    )  # fmt: skip
    tokens = [5, 1, 7, 8, 3, 9, 6]
    record = Record(
        signature="s", example="e", repeat=0, status="ok", tokens=tokens, stop_reason="eos", text="", steps=steps
    )  # fmt: skip
    assert num_bifurcations(record) == 2
    found = trace_of(record, lambda ids: "".join(f" {token}" for token in ids), "").iterations
    assert sum(one.bifurcation is not None for one in found) == 2


def test_without_choices_there_is_no_trace() -> None:
    record = Papers().record
    record.steps.choices = []
    with pytest.raises(UsageError, match="no verifier's choices are recorded; expected rule top-1 or top-beta"):
        trace_of(record, str, "")


def test_sentences_with_a_relaxed_draft_come_first() -> None:
    records = runs.run_all(get_table(29).plan(FEW))
    strict, relaxed = arms(FEW)[STRICT], arms(FEW)[RELAXED]
    plain = runs.records(relaxed)
    for record in plain[:5]:
        record.steps.choices = [[*drafted, 0] for drafted in record.steps.drafted]
    evidence = Evidence(lambda arm: plain if arm == relaxed else records(arm))
    pairs = shown(known_arms(arms(FEW), evidence))
    assert [pair[0].example for pair in pairs] == ["e5", "e6", "e7"]
    assert all(pair[0].example == pair[1].example for pair in pairs)
    assert pairs[0][0].signature == strict.signature
    for record in plain[5:7]:
        record.steps.choices = [[*drafted, 0] for drafted in record.steps.drafted]
    assert [pair[0].example for pair in shown(known_arms(arms(FEW), evidence))] == ["e7", "e0", "e1"]
    assert shown(known_arms(arms(FEW), Evidence(lambda arm: []))) == []


def decoder(arm: object):  # type: ignore[no-untyped-def]
    words = ["The", " fox", " <b>", " ü", "\n", " dog"]
    return lambda ids: "".join(words[token % len(words)] for token in ids)


def test_a_table_of_examples_is_written_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    table = get_table(29)
    records_of = runs.run_all(table.plan(FEW))
    evidence = Evidence(records_of, decoder_of=decoder)
    found = examples(FEW, evidence)
    assert len(found) == 1 + NUM_SHOWN
    assert [len(one.traces) for one in found] == [2] * len(found)
    header = Header(command="make reproduce-table-29", commit="abc")
    cells: list[Cell] = table.cells(FEW, evidence)
    paths = write_table(table, FEW, cells, header, tmp_path, appendix(FEW, evidence))
    assert [path.name for path in paths] == [f"specdec-19.{ending}" for ending in ("md", "csv", "json", "tex", "html")]
    page = (tmp_path / "specdec-19.md").read_text()
    assert "  1 D  Gestern hat [-der-] [~Bürger@@ meister von Gut@@ acht eine klare~]\n" in page
    assert "    V  Gestern hat [+Gut@@+] [~Bürger@@ meister von Gut@@ acht eine klare Antwort~]\n" in page
    assert "SpecDec, k=10: 16 tokens in 4 iterations, bifurcations at 3, 4" in page
    assert page.count("```") % 2 == 0
    text = (tmp_path / "specdec-19.html").read_text()
    assert "<script" not in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert text.count('<div class="pair">') == len(found)
    other = write_table(get_table(24), FEW, [], header, tmp_path)
    assert not [path for path in other if path.suffix == ".html"]


def test_colours_and_marks_say_the_same() -> None:
    found = examples(FEW, Evidence(runs.run_all(get_table(29).plan(FEW)), decoder_of=decoder))
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", terminal_examples(found, colour=True))
    marked = re.sub(r"\[[-~+*=]|[-~+*=]\]| \|", "", terminal_examples(found, colour=False))
    assert coloured == marked
    assert "\x1b" not in markdown_examples(found)
    legend = html_examples(found, "t")
    for kind in ("before", "accepted", "candidate", "rejected", "corrected", "bonus", "dropped"):
        assert f'<span class="{kind}"' in legend
        assert f".{kind}" in legend


def test_without_records_only_the_papers_example_is_shown() -> None:
    found = examples(FEW, Evidence(lambda arm: [], decoder_of=decoder))
    assert [one.title for one in found] == ["The paper's example"]
