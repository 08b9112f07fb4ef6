"""A user's data as they are: columns of other names, splits by name, whole files, whole prompts, data sets of the Hub."""

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import fingerprint, get_task
from tasks.base import DataError, Example
from tasks.sources.hub import commit_of, named_rows
from tasks.sources.locate import is_undivided
from tasks.sources.read import read_examples
from tasks.sources.source import WHOLE, Source
from tasks.world import TOY_ROWS

NAMES = {"squad": "squad", "cnndm": "cnndm", "xsum": "xsum", "wmt-en-de": "wmt-de", "text": "text"}
FIELDS = {  # what a user's table calls each value of a row
    "squad": (("context", "passage"), ("question", "asked"), ("answers.text", "said"), ("title", "of")),
    "cnndm": (("article", "story"), ("highlights", "short")),
    "xsum": (("document", "story"), ("summary", "short")),
    "wmt-en-de": (("translation.en", "english"), ("translation.de", "german")),
    "text": (("text", "story"),),
}
WORDS = " ".join(f"word{number}" for number in range(300))


def rows_of(name: str, count: int) -> list[dict[str, Any]]:
    return [dict(TOY_ROWS[NAMES[name]](0, "train", index)) for index in range(count)]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    return path


def read(name: str, source: Source | Path, split: str = "test") -> list[Example]:
    text = source.text if isinstance(source, Source) else str(source)
    return list(read_examples(get_task(name), text, split, None, 0))  # type: ignore[arg-type]


def value_of(row: dict[str, Any], field: str) -> Any:
    outer, _, inner = field.partition(".")
    value = row[outer][inner] if inner else row[outer]
    return value[0] if isinstance(value, list) else value


@given(
    place=st.text(min_size=1, alphabet=st.characters(blacklist_categories=("Cs",))),
    fields=st.lists(
        st.tuples(st.text("ab.=&? ", min_size=1).filter(lambda name: "=" not in name), st.text("ab=&?% +ü", min_size=1))
    ),
    split=st.sampled_from(["", WHOLE, "test"]),
    config=st.sampled_from(["", "3.0.0", "a b&c=?"]),
)
def test_a_sources_text_reads_back(place: str, fields: list[tuple[str, str]], split: str, config: str) -> None:
    """Whatever a column is called. A place that ends in what looks like options is the one text that has two meanings."""
    source = Source(place=place, config=config, split=split, fields=tuple(fields))
    if Source.of(place).place == place:
        assert Source.of(source.text) == source


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("name", FIELDS)
def test_columns_of_any_name_are_the_same_rows(name: str, ending: str, tmp_path: Path) -> None:
    """A table with a user's names gives what JSON Lines with the data set's names give. Fault: fields taken by their order."""
    rows = rows_of(name, 12)
    for row in rows:
        if "answers" in row:
            row["answers"]["text"] = row["answers"]["text"][:1]
    wanted = read(name, Source(place=str(lines(tmp_path / "rows.jsonl", rows)), split=WHOLE))
    columns = [{column: value_of(row, field) for field, column in reversed(FIELDS[name])} for row in rows]
    table = tmp_path / f"own.{ending}"
    pandas.DataFrame(columns).to_csv(table, sep="\t" if ending == "tsv" else ",", index=False)
    found = read(name, Source(place=str(table), split=WHOLE, fields=FIELDS[name]))
    assert [(one.inputs, one.references) for one in found] == [(one.inputs, one.references) for one in wanted]
    assert len(found) == 12


def test_a_whole_file_is_tested_and_none_of_it_trained_on(tmp_path: Path) -> None:
    rows = [{"text": f"only {number} words"} for number in range(40)]
    path = lines(tmp_path / "stories.jsonl", rows)
    assert len(read("text", Source(place=str(path), split=WHOLE))) == 40
    with pytest.raises(DataError, match=r"split 'whole': every row of .* is tested, so none is left to train on"):
        read("text", Source(place=str(path), split=WHOLE), "train")
    long = lines(tmp_path / "long.jsonl", [{"text": f"{WORDS} {number}"} for number in range(40)])
    test, train = (read("text", long, split) for split in ("test", "train"))
    assert (len(test) + len(train), len(test) < 20) == (40, True)
    assert read("text", Source(place=str(long), split="test")) == test, "of one file the part that is not trained on"


def test_prompts_are_whole_and_texts_are_cut(tmp_path: Path) -> None:
    path = str(lines(tmp_path / "own.jsonl", [{"prompt": f"{WORDS}\n", "extra": 1}]))
    [whole] = read("text", Source(place=path, split=WHOLE))
    assert (whole.inputs, whole.references) == ({"prompt": f"{WORDS}\n"}, ())
    [cut] = read("text", Source(place=path, split=WHOLE, fields=(("text", "prompt"),)))
    assert len(cut.inputs["prompt"].split()) == 60
    assert cut.inputs["prompt"] + cut.references[0] == WORDS
    both = str(lines(tmp_path / "both.jsonl", [{"text": WORDS, "story": "a b c", "end": " d"}]))
    [named] = read("text", Source(place=both, split=WHOLE, fields=(("prompt", "story"), ("continuation", "end"))))
    assert (named.inputs, named.references) == ({"prompt": "a b c"}, (" d",))
    assert get_task("text").training_pair(named) == ("", "a b c d")
    plain = tmp_path / "prompts.txt"
    plain.write_text("one two three four\nfive six seven eight\n", encoding="utf8")
    found = read("text", Source(place=str(plain), split=WHOLE, fields=(("prompt", "text"),)))
    assert [one.inputs["prompt"] for one in found] == ["one two three four", "five six seven eight"]


def test_short_prompts_are_tested_beside_training_rows(tmp_path: Path) -> None:
    """Only cut texts need twenty words."""
    lines(tmp_path / "test.jsonl", [{"prompt": "Why?"}, {"text": "a b c d"}])
    lines(tmp_path / "train.jsonl", [{"text": WORDS}])
    assert [one.inputs["prompt"] for one in read("text", tmp_path)] == ["Why?"]


@pytest.mark.parametrize("saved", [False, True])
def test_a_split_by_name_is_tested_and_not_trained_on(saved: bool, tmp_path: Path) -> None:
    parts = {
        name: rows_of("xsum", 24)[start : start + 6] for start, name in ((0, "train"), (6, "test"), (12, "dev"), (18, "odd"))
    }
    if saved:
        import datasets

        datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in parts.items()}).save_to_disk(tmp_path)
    else:
        for name, rows in parts.items():
            lines(tmp_path / f"{name}.jsonl", rows)
    for name, rows in parts.items():
        source = Source(place=str(tmp_path), split=name)
        assert {one.id for one in read("xsum", source)} == {row["id"] for row in rows}
    assert {one.id for one in read("xsum", Source(place=str(tmp_path), split="odd"), "train")} == {
        row["id"] for row in parts["train"]
    }
    with pytest.raises(DataError, match="no row for the train split"):
        read("xsum", Source(place=str(tmp_path), split="train"), "train")
    with pytest.raises(DataError, match=r"split 'none': .* has no such rows"):
        read("xsum", Source(place=str(tmp_path), split="none"))
    with pytest.raises(DataError, match=r"split 'whole': .* has training rows of its own"):
        read("xsum", Source(place=str(tmp_path), split=WHOLE))
    assert not is_undivided(get_task("xsum").dataset, Source(place=str(tmp_path)))


def test_the_signature_of_usual_data_stays_and_of_others_says_how_they_are_read(tmp_path: Path) -> None:
    """By the formula that committed records were signed with: data set, ranks, and name, size and hash of each file."""
    path = lines(tmp_path / "rows.jsonl", rows_of("xsum", 5))
    content = path.read_bytes()
    one = f"rows.jsonl:{len(content)}:{sha256(content).hexdigest()}"
    assert fingerprint("xsum", str(path)) == sha256(f"xsum\n0\n{one}\n{one}".encode()).hexdigest()[:16]
    assert fingerprint("text", "toy") == sha256(b"text\ntoy 1").hexdigest()[:16]
    base = Source(place=str(path))
    ways = [
        base,
        replace(base, split=WHOLE),
        replace(base, fields=(("summary", "id"),)),
        replace(base, fields=(("document", "id"),)),
    ]
    assert len({fingerprint("xsum", way.text) for way in ways}) == 4


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (Source(place="FILE", fields=(("prompt", "nothing"),)), r"rows.jsonl:1: column 'nothing' is missing \(found: text\)"),
        (
            Source(place="FILE", fields=(("promt", "text"),)),
            r"field 'promt' \(=text\): text reads none of this name; expected one of",
        ),
        (Source(place="FILE", split="validation"), "split 'validation': .* is one file; expected whole or test"),
        (Source(place="FILE", split="../x"), r"split '../x': expected the name of a split"),
        (Source(place="FILE", config="en"), "config 'en': only data sets of the Hub have one"),
        (Source(place="toy", fields=(("prompt", "text"),)), "data 'toy': its rows have the task's own fields and splits"),
        (Source(place="hub", split="train"), "data 'hub': its rows have the task's own fields and splits"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(source: Source, expected: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", [{"text": WORDS}])
    with pytest.raises(DataError, match=expected) as error:
        read("text", replace(source, place=str(path) if source.place == "FILE" else source.place))
    assert "\n" not in str(error.value)


# Data sets of the Hub


@pytest.fixture
def loadable(tmp_path: Path) -> Path:
    """A folder that ``datasets.load_dataset`` reads, with two configurations and splits of its own."""
    for language in ("en", "fr"):
        for split, count in (("train", 5), ("test", 3), ("extra", 2)):
            lines(tmp_path / f"set/{language}/{split}.jsonl", [{"tale": f"{language} {split} {n}"} for n in range(count)])
    told = "".join(
        f"- config_name: {one}\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: {one}/{split}.jsonl\n" for split in ("train", "test", "extra"))
        for one in ("en", "fr")
    )
    (tmp_path / "set" / "README.md").write_text(f"---\nconfigs:\n{told}---\n", encoding="utf8")
    return tmp_path / "set"


def test_a_data_set_is_read_by_name_split_configuration_and_column(loadable: Path) -> None:
    source = Source(place=f"hub:{loadable}", config="fr", fields=(("prompt", "tale"),))
    prompts = [one.inputs["prompt"] for one in read("text", source)]
    assert sorted(prompts) == [f"fr test {number}" for number in range(3)]
    assert len(read("text", replace(source, split="extra"))) == 2
    assert {one.inputs["prompt"].split()[1] for one in read("text", source, "train")} == {"train"}
    assert fingerprint("text", source.text) != fingerprint("text", replace(source, config="en").text)
    assert len(list(read_examples(get_task("text"), source.text, "test", 2, 7))) == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"split": "nowhere"}, r"hub .*/nowhere: ValueError: .*nowhere"),
        ({"config": "xx"}, r"hub .*: ValueError: .*xx"),
        ({"split": WHOLE}, "split 'whole': .* has splits of its own"),
    ],
)
def test_what_a_data_set_lacks_is_said_in_one_line(loadable: Path, changes: dict[str, str], expected: str) -> None:
    source = replace(Source(place=f"hub:{loadable}", config="en", fields=(("prompt", "tale"),)), **changes)
    with pytest.raises(DataError, match=expected) as error:
        read("text", source)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="split 'train': it is tested"):
        read("text", replace(source, split="train"), "train")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A server on this machine that knows one data set, and the paths of data sets that it was asked for."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.extend([self.path] * self.path.startswith("/api/datasets/"))
            known = self.path.startswith("/api/datasets/me/tales")
            body = json.dumps({"id": "me/tales", "sha": "ab" * 20} if known else {"error": "Repository not found"}).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(body)))
            if not known:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield asked
    server.shutdown()
    server.server_close()


def test_a_name_means_a_commit(hub: list[str]) -> None:
    from harness.core.settings import source_of

    assert source_of("hub:me/tales", fields=["prompt=tale"]) == f"hub:me/tales@{'ab' * 20}?field=prompt%3Dtale"
    assert len(hub) == 1
    assert commit_of("me/tales@v1") == "ab" * 20
    assert "v1" in hub[-1]
    assert commit_of(f"me/tales@{'cd' * 20}") == "cd" * 20
    assert len(hub) == 2, "a commit is what it is"
    with pytest.raises(DataError, match="hub me/lost: RepositoryNotFoundError: ") as error:
        commit_of("me/lost")
    assert "\n" not in str(error.value)


def test_without_network_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"hub me/other: OfflineModeIsEnabled: .*; give --data a folder or 'toy' instead"):
        commit_of("me/other")
    with pytest.raises(DataError, match=r"hub me/tales@.*/test: ") as error:
        next(named_rows(Source(place=f"hub:me/tales@{'ab' * 20}"), "test", None))
    assert "\n" not in str(error.value)
