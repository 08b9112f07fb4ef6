"""Files and folders in every accepted layout, their separation into train and test, and what is said of bad ones."""

import json
import os
import re

import pandas
import pytest

from tasks import TASKS, get_task
from tasks.base import DataError
from tasks.sources.hub import hub_rows
from tasks.sources.locate import fingerprint
from tasks.sources.read import read_examples
from tasks.world import TOY_ROWS

ROWS = {"squad": "squad", "cnndm": "cnndm", "xsum": "xsum", "wmt-en-de": "wmt-de"}


def rows_of(name, num_rows, split="train"):
    return [TOY_ROWS[ROWS.get(name, name)](0, split, index) for index in range(num_rows)]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")
    return path


def write_parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def both_splits(name, source):
    return [list(read_examples(get_task(name), str(source), split, None, 0)) for split in ("train", "test")]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("form", ["jsonl", "parquet", "saved"])
def test_one_set_of_rows_reads_the_same_in_every_form(name, form, tmp_path):
    rows = rows_of(name, 60)
    if form == "jsonl":
        source = write_jsonl(tmp_path / "rows.jsonl", rows)
    elif form == "parquet":
        source = write_parquet(tmp_path / "rows.parquet", rows)
    else:
        import datasets

        source = tmp_path / "saved"
        datasets.Dataset.from_list(rows).save_to_disk(str(source))
    train, test = both_splits(name, source)
    assert test
    assert len(train) + len(test) == 60
    assert {example.id for example in train + test} == {row["id"] for row in rows}
    expected = {example.id: example for example in read_examples(get_task(name), "toy", "train", 60, 0)}
    assert all(expected[example.id] == example for example in train + test)


def test_saved_dataset_dict_keeps_its_splits(tmp_path):
    import datasets

    parts = {split: datasets.Dataset.from_list(rows_of("xsum", 8, split)) for split in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "xsum"))
    for source in (tmp_path, tmp_path / "xsum"):
        train, test = both_splits("xsum", source)
        assert {example.id for example in train} == {f"toy-train-{index}" for index in range(8)}
        assert {example.id for example in test} == {f"toy-test-{index}" for index in range(8)}


def test_hub_snapshot_layout(tmp_path):
    write_parquet(tmp_path / "plain_text/train-00000-of-00002.parquet", rows_of("squad", 4))
    write_parquet(tmp_path / "plain_text/train-00001-of-00002.parquet", rows_of("squad", 9)[4:])
    write_parquet(tmp_path / "plain_text/validation-00000-of-00001.parquet", rows_of("squad", 5, "test"))
    train, test = both_splits("squad", tmp_path)
    assert (len(train), len(test)) == (9, 5)


def test_wmt_layout(tmp_path):
    test_rows = rows_of("wmt-en-de", 10, "test")
    write_jsonl(tmp_path / "wmt/newstest2014.en-de.jsonl", test_rows)
    write_jsonl(tmp_path / "wmt/multi30k_val.en-de.jsonl", rows_of("wmt-en-de", 5))
    write_jsonl(
        tmp_path / "wmt/train/tatoeba.en-de.jsonl", [{**row, "id": f"t{row['id']}"} for row in rows_of("wmt-en-de", 20)]
    )
    news = [{**TOY_ROWS["wmt-de"](7, "train", index), "id": f"n{index}"} for index in range(6)]
    write_jsonl(tmp_path / "wmt/train/newstest2008-2012.en-de.jsonl", [*news, test_rows[0]])
    for source in (tmp_path, tmp_path / "wmt"):
        train, test = both_splits("wmt-en-de", source)
        assert [example.id for example in test] == [f"toy-test-{index}" for index in range(10)]
        assert len(train) == 26
        assert "toy-test-0" not in {example.id for example in train}
        few = [example.id for example in read_examples(get_task("wmt-en-de"), str(source), "train", 6, 0)]
        assert sorted(few) == [f"n{index}" for index in range(6)]


def test_the_development_set_of_a_folder(tmp_path):
    """newstest2013, or the split "validation"; where there is neither, what the task without it is tested on."""
    numbered = [{**row, "id": str(at)} for at, row in enumerate(rows_of("wmt-en-de", 8, "test"))]
    write_jsonl(tmp_path / "wmt/newstest2014.en-de.jsonl", numbered[:4])
    write_jsonl(tmp_path / "wmt/train/news.en-de.jsonl", rows_of("wmt-en-de", 20))
    ids = [[example.id for example in split] for split in both_splits("wmt13-en-de", tmp_path)]
    assert ids[1] == ["0", "1", "2", "3"]
    write_jsonl(tmp_path / "wmt/newstest2013.en-de.jsonl", numbered[4:])
    for name, wanted in (("wmt13-en-de", ["4", "5", "6", "7"]), ("wmt-en-de", ["0", "1", "2", "3"])):
        train, test = both_splits(name, tmp_path)
        assert ([example.id for example in train], [example.id for example in test]) == (ids[0], wanted)


def test_captions_of_a_folder_are_tested_apart_and_learned_before_the_rest(tmp_path):
    captions = [{**row, "id": f"c{at}"} for at, row in enumerate(rows_of("wmt-en-de", 10))]
    rest = [{**row, "id": f"r{at}"} for at, row in enumerate(rows_of("wmt-en-de", 30)[10:])]
    write_jsonl(tmp_path / "wmt/train/a_collection.en-de.jsonl", rest)
    write_jsonl(tmp_path / "wmt/train/multi30k_train.en-de.jsonl", captions)
    write_jsonl(tmp_path / "wmt/multi30k_test2016.en-de.jsonl", rows_of("wmt-en-de", 3, "test"))
    write_jsonl(tmp_path / "wmt/newstest2014.en-de.jsonl", rows_of("wmt-en-de", 8, "test")[3:])
    tested = {name: both_splits(name, tmp_path)[1] for name in ("multi30k-en-de", "wmt-en-de")}
    assert [len(examples) for examples in tested.values()] == [3, 5]
    few = [example.id for example in read_examples(get_task("multi30k-en-de"), str(tmp_path), "train", 10, 0)]
    assert sorted(few) == sorted(f"c{at}" for at in range(10))


def test_the_development_set_of_a_saved_dataset_dict(tmp_path):
    import datasets

    parts = {split: datasets.Dataset.from_list(rows_of("wmt-en-de", 4, split)) for split in ("train", "test")}
    parts["validation"] = datasets.Dataset.from_list([{**row, "id": "dev"} for row in rows_of("wmt-en-de", 1, "test")])
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "wmt"))
    assert [example.id for example in both_splits("wmt13-en-de", tmp_path)[1]] == ["dev"]
    assert len(both_splits("wmt-en-de", tmp_path)[1]) == 4


@pytest.mark.parametrize("name", ROWS)
def test_limits_sample_by_seed_and_grow(name, tmp_path):
    task, source = get_task(name), str(write_jsonl(tmp_path / "rows.jsonl", rows_of(name, 80)))

    def ids(limit, seed):
        return [example.id for example in read_examples(task, source, "train", limit, seed)]

    assert ids(10, 0) == ids(30, 0)[:10]
    assert ids(10, 0) != ids(10, 1)
    assert set(ids(1000, 3)) == set(ids(None, 0))
    with pytest.raises(DataError, match="limit 0: expected at least 1"):
        ids(0, 0)


def test_titles_and_duplicates_stay_on_one_side(tmp_path):
    rows = [{**row, "title": f"title {at % 6}"} for at, row in enumerate(rows_of("squad", 120))]
    train, test = both_splits("squad", write_jsonl(tmp_path / "rows.jsonl", rows))
    assert not {example.inputs["title"] for example in train} & {example.inputs["title"] for example in test}
    rows = [{**row, "id": str(at)} for at, row in enumerate(rows_of("xsum", 30) * 3)]
    train, test = both_splits("xsum", write_jsonl(tmp_path / "x.jsonl", rows))
    assert test
    assert not {example.inputs["article"] for example in train} & {example.inputs["article"] for example in test}


def test_an_edit_in_the_middle_of_a_large_file_changes_the_fingerprint(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"x" * (3 << 20))
    before = fingerprint(get_task("squad").dataset, str(path))
    assert fingerprint(get_task("squad").dataset, str(path)) == before
    stat = path.stat()
    path.write_bytes(b"x" * (3 << 19) + b"y" + b"x" * ((3 << 19) - 1))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert path.stat().st_size == stat.st_size
    assert fingerprint(get_task("squad").dataset, str(path)) != before


def test_a_tiny_file_still_has_a_test_row(tmp_path):
    for num_rows in range(2, 8):
        train, test = both_splits("xsum", write_jsonl(tmp_path / f"{num_rows}.jsonl", rows_of("xsum", num_rows)))
        assert test
        assert len(train) + len(test) == num_rows


BAD_LINES = [
    ("{oops", "not JSON"),
    ("[1, 2]", "is list, expected one JSON object"),
    ('{"id": "1", "document": "d"}', "field 'summary' is missing"),
    ('{"id": "1", "document": "d", "summary": 7}', "field 'summary' is int '7', expected text"),
    ('{"id": "1", "document": "  ", "summary": "s"}', "field 'document' is empty"),
    ('{"id": "1", "document": null, "summary": "s"}', "field 'document' is NoneType"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
@pytest.mark.parametrize("limit", [None, 1])
def test_malformed_rows_name_file_and_line(line, message, limit, tmp_path):
    good = [json.dumps(row) for row in rows_of("xsum", 3)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*good, "", line, *good]), encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(f"{path}:5: {message}")) as error:
        list(read_examples(get_task("xsum"), str(path), "test", limit, 0))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("squad", {"id": "1", "context": "c", "question": "q"}, "field 'answers' is missing"),
        ("squad", {"id": "1", "context": "c", "question": "q", "answers": {"text": []}}, "at least one answer"),
        ("squad", {"id": "1", "context": "c", "question": "q", "answers": ["x"]}, "field 'answers' is list"),
        ("wmt-en-de", {"en": "a", "de": "b"}, "field 'translation' is missing"),
        ("wmt-en-de", {"translation": {"en": "a", "fr": "b"}}, "translation: field 'de' is missing (found: en, fr)"),
        ("text", {"content": "a b c d"}, "field 'text' is missing"),
    ],
)
def test_malformed_fields(name, row, message, tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [row])
    with pytest.raises(DataError, match=re.escape(message)):
        list(read_examples(get_task(name), str(path), "train", None, 0))


def test_unreadable_files(tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    with pytest.raises(DataError, match=r"latin.jsonl:1: not UTF-8"):
        list(read_examples(get_task("text"), str(tmp_path / "latin.jsonl"), "train", None, 0))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match=r"broken.parquet: not a readable Parquet file"):
        list(read_examples(get_task("text"), str(tmp_path / "broken.parquet"), "train", None, 0))
    with pytest.raises(DataError, match="no such file or folder; expected 'toy', 'hub', or a folder with squad/test"):
        read_examples(get_task("squad"), str(tmp_path / "nowhere"), "test", None, 0)
    with pytest.raises(DataError, match="nothing for cnndm here; expected a folder with cnn_dailymail/test"):
        read_examples(get_task("cnndm"), str(tmp_path), "test", None, 0)
    (tmp_path / "rows.xlsx").write_text("a,b\n")
    with pytest.raises(DataError, match=r"cannot read a '\.xlsx' file for squad"):
        read_examples(get_task("squad"), str(tmp_path / "rows.xlsx"), "test", None, 0)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"no row for the test split of squad in .*empty\.jsonl; give more rows"):
        read_examples(get_task("squad"), str(tmp_path / "empty.jsonl"), "test", None, 0)


LONG = "word " * 30 + "end."
WRAPPED = "\n".join(["some words and then a line end"] * 5)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("".join(f"Paragraph {at}, {LONG}\n" for at in range(9)), 9),
        ("".join(f"Paragraph {at},\n{WRAPPED}\n\n" for at in range(9)), 9),
        ("".join(f"Story {at}, {LONG}\n\nIts second part, {LONG}\n\nIts end, {LONG}\n" for at in range(9)), 9),
        ("".join(f"Paragraph {at}, {LONG}\n\n" for at in range(9)), 9),
        ("".join(f"Book {at}, {LONG}\n<|endoftext|>\n" for at in range(9)), 9),
        ("\ufeffÄpfel und Birnen 🍐 " + LONG, 1),
    ],
)
def test_layouts_of_text_files(content, expected, tmp_path):
    path = tmp_path / "some.txt"
    path.write_text(content, encoding="utf-8")
    task = get_task("text")
    if expected == 1:
        (only,) = read_examples(task, str(path), "test", None, 0)
        assert only.inputs["prompt"].startswith("Äpfel und Birnen 🍐")
        return
    train, test = both_splits("text", path)
    texts = [example.inputs["prompt"] + example.inputs["continuation"] for example in train + test]
    assert len(texts) == expected
    assert len({text.split(",")[0] for text in texts}) == expected


def test_short_paragraphs_train_and_do_not_test(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("".join(f"Only four words {at}.\n" for at in range(200)))
    task = get_task("text")
    assert 120 < len(list(read_examples(task, str(path), "train", None, 0))) < 200
    with pytest.raises(DataError, match=r"no row for the test split of text .*; give longer rows"):
        read_examples(task, str(path), "test", None, 0)


class FakeRows:
    """What ``datasets.load_dataset(..., streaming=True)`` gives, as far as it is used."""

    features = None

    def __init__(self, rows):
        self.rows = rows

    def shuffle(self, seed, buffer_size):
        return sorted(self.rows, key=lambda row: hash((seed, row["id"])))

    def __iter__(self):
        return iter(self.rows)


def test_hub_asks_for_pinned_parquet_files(monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **options: asked.append((args, options)) or FakeRows(rows_of("squad", 9))
    )
    found = list(read_examples(get_task("squad"), "hub", "test", 4, 0))
    assert len(found) == 4
    ((repository,), options) = asked[0]
    assert repository == "rajpurkar/squad"
    assert options["streaming"]
    assert options["data_files"] == {"test": "plain_text/validation-*.parquet"}
    assert len(list(read_examples(get_task("squad"), "hub", "train", None, 0))) == 9


def test_ted_lium_and_multi30k_are_not_on_the_hub():
    assert [name for name, task in TASKS.items() if task.dataset.hub is None] == ["multi30k-en-de", "tedlium"]
    with pytest.raises(DataError, match="data 'hub': tedlium is not on the Hub as Parquet files; give --data a folder"):
        read_examples(get_task("tedlium"), "hub", "test", 1, 0)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.dataset.hub is not None])
def test_hub_revisions_are_commits(name):
    files = TASKS[name].dataset.hub
    assert re.fullmatch("[0-9a-f]{40}", files.revision)
    assert files.train.endswith(".parquet")
    assert files.test.endswith(".parquet")
    assert files.train != files.test


def test_a_gone_or_gated_dataset_says_why(monkeypatch):
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    for text, expected in [
        ("Dataset 'x' is a gated dataset on the Hub.\nVisit.", "gated: accept its terms"),
        ("Dataset 'x' doesn't exist", "doesn't exist"),
    ]:

        def fail(*_, text=text, **__):
            raise DatasetNotFoundError(text)

        monkeypatch.setattr(datasets, "load_dataset", fail)
        with pytest.raises(DataError, match=expected) as error:
            next(hub_rows(get_task("squad").dataset.hub, "test", None))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["squad", "wmt-en-de", "wmt-ro-en", "cnndm", "xsum", "text"])
def test_real_data(name, shared):
    task, source = TASKS[name], str(shared / "data")

    def contents(split, limit):
        examples = list(read_examples(task, source, split, limit, 0))
        assert len(examples) == limit
        return {example.inputs["title"] if name == "squad" else tuple(example.inputs.values()) for example in examples}

    assert not contents("test", 20) & contents("train", 300)


def test_real_stories_are_whole(shared):
    examples = list(read_examples(get_task("text"), str(shared / "data/lm/tinystories_sample.txt"), "test", 20, 0))
    assert len(examples) == 20
    assert all(example.inputs["prompt"][0].isupper() or example.inputs["prompt"][0] == '"' for example in examples)
    assert sum("\n\n" in "".join(example.inputs.values()) for example in examples) > 10


def test_a_file_that_is_called_test_is_tested_whole(tmp_path):
    path = write_jsonl(tmp_path / "test.jsonl", rows_of("xsum", 60))
    assert len(list(read_examples(get_task("xsum"), str(path), "test", None, 0))) == 60
    with pytest.raises(DataError, match="no row for the train split of xsum in"):
        list(read_examples(get_task("xsum"), str(path), "train", None, 0))
    other = path.rename(tmp_path / "stories.jsonl")
    assert 1 <= len(list(read_examples(get_task("xsum"), str(other), "test", None, 0))) < 30


@pytest.mark.parametrize(("ending", "separator"), [("csv", ","), ("tsv", "\t")])
def test_tables_that_pandas_writes_are_the_same_rows(ending, separator, tmp_path):
    """Articles with commas, quotes, tabs and line ends within, and one that is longer than Python's limit of a field."""
    rows = rows_of("cnndm", 30)
    rows[3]["article"] = 'He said "no, never",\n\n\tand\r\nleft. ' + "word " * 40_000
    jsonl = write_jsonl(tmp_path / "rows.jsonl", rows)
    table = tmp_path / f"table.{ending}"
    pandas.DataFrame(rows).to_csv(table, sep=separator, index=False)
    wanted = [example.inputs for example in read_examples(get_task("cnndm"), str(jsonl), "train", None, 0)]
    found = [example.inputs for example in read_examples(get_task("cnndm"), str(table), "train", None, 0)]
    assert [as_read(one) for one in found] == [as_read(one) for one in wanted]
    assert fingerprint(get_task("cnndm").dataset, str(table)) != fingerprint(get_task("cnndm").dataset, str(jsonl))


def as_read(inputs):
    """Line ends within a field are read as one kind."""
    return {name: value.replace("\r\n", "\n") for name, value in inputs.items()}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("text,text\na,b\n", "rows.csv:1: field 'text'; expected a name for every field, each once, in the first line"),
        ("text,\na,b\n", "rows.csv:1: field ''; expected a name"),
        ("text,more\na b c\n", "rows.csv:2: 1 fields, the first line names 2; correct the row, or quote it"),
        ('text\n"a b c\n', "rows.csv:2: not a row of a table (unexpected end of data); correct the line"),
        ("content\na b c d\n", "rows.csv:2: field 'text' is missing"),
        ("", "no row for the train split"),
    ],
)
def test_what_is_wrong_in_a_table_is_named(content, said, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=re.escape(said)):
        list(read_examples(get_task("text"), str(path), "train", None, 0))


def rows_with_ids(name, ids):
    """Rows of a task with these ids, enough words in each."""
    return [{**row, "id": row_id} for row, row_id in zip(rows_of(name, len(ids)), ids, strict=True)]


@pytest.mark.parametrize("name", [*ROWS, "text"])
@pytest.mark.parametrize("odd", [None, "", " ", True, [1]])
def test_a_row_needs_no_id_but_a_real_one(name, odd, tmp_path):
    """Numbers are read as their texts. Fault: null became 'None' and "" an id; five tasks refused numbers."""
    path = write_jsonl(tmp_path / "rows.jsonl", rows_with_ids(name, [7, 10**30, 2.5, "a"]))
    source = f"{path}?split=whole"
    assert [one.id for one in read_examples(get_task(name), source, "test", None, 0)] == ["7", str(10**30), "2.5", "a"]
    write_jsonl(path, rows_with_ids(name, ["a", odd]))
    said = f"rows.jsonl:2: field 'id' is {type(odd).__name__} {str(odd)!r}, expected a text or a number; correct the row"
    with pytest.raises(DataError, match=re.escape(said)):
        list(read_examples(get_task(name), source, "test", None, 0))


@pytest.mark.parametrize(
    ("ending", "content", "said"),
    [
        ("csv", 'id,text\n1,a b c\n2,"a b c\n3,a b c\n', "rows.csv:3: the quote that opens here goes on to line 4: not a row"),
        ("csv", 'id,text\n1,"a ""b"" c\n2,d\n3,an "end" of\n', "rows.csv:2: the quote that opens here goes on to line 4: not"),
        ("csv", 'id,text\n1,"a\n2,b"\n3,"a"b\n', "rows.csv:4: not a row"),
        (
            "csv",
            'id,text\n1,"a b\n2,d"\n3,"a\nb",c\n',
            "rows.csv:4: the quote that opens here goes on to line 5: 3 fields, the",
        ),
        (
            "tsv",
            'id\ttext\n1\t"Hello there\n2\tyou "two"\n3\tend"\n',
            "rows.tsv:2: the quote that opens here goes on to line 3",
        ),
        ("tsv", 'id\ttext\n1\ta\n2\t"Hello there\n3\tand on\n4\tend"\n', "line 5: each line has the 2 fields of a row, which"),
    ],
)
def test_a_quote_that_is_left_open_is_named_where_it_opens(ending, content, said, tmp_path):
    """Fault: the file's last line was blamed, and lines of a TSV became one row without a word."""
    path = tmp_path / f"rows.{ending}"
    path.write_text(content)
    with pytest.raises(DataError, match=re.escape(said)):
        list(read_examples(get_task("text"), str(path), "train", None, 0))
