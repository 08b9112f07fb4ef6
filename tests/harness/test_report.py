"""The static site: complete, linked, escaped, bounded, and the same from the same input."""

import shutil
from pathlib import Path

import pytest
from report_site import HOSTILE, LIMIT, ROOT, Page, build, made_up, parse

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.papers import FIGURES, TABLES
from harness.papers.leviathan import TRADEOFF
from harness.report import experiments
from harness.report.items import read_table
from harness.report.site import MARKER, collect, write_site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment]:
    return build(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def pages(built: tuple[Path, Experiment]) -> dict[str, Page]:
    """By file name; without the pages that other commands wrote and that are copied (folders tables/ and figures/)."""
    return {path.name: parse(path) for path in sorted(built[0].glob("*.html"))}


def test_every_table_and_figure_has_a_page_one_click_from_the_first_with_its_command(pages: dict[str, Page]) -> None:
    assert (len(TABLES), len(FIGURES)) == (34, 19)
    wanted = {f"table-{n}.html": f"make reproduce-table-{n}" for n in TABLES}
    wanted |= {f"figure-{name}.html": f"make reproduce-figure-{name}" for name in FIGURES}
    for name, command in wanted.items():
        assert name in pages["index.html"].links, name
        assert command in pages[name].text, name
        assert command in pages["regenerate.html"].text


def test_any_number_is_at_most_three_clicks_from_its_command(pages: dict[str, Page]) -> None:
    """Click 1 opens what the first page links to, and so on; pages with numbers name a command themselves."""
    clicks, frontier = {"index.html": 0}, ["index.html"]
    while frontier:
        page = frontier.pop(0)
        for link in pages[page].links:
            target = link.split("#")[0]
            if target in pages and target not in clicks:
                clicks[target] = clicks[page] + 1
                frontier.append(target)
    assert set(clicks) == set(pages)
    assert max(clicks.values()) <= 3
    for name, page in pages.items():
        if name not in ("index.html", "experiments.html", "experiment-broken.html"):
            assert "make " in page.text or "foretoken " in page.text, name


def test_all_links_resolve_and_none_leaves_the_folder(built: tuple[Path, Experiment], pages: dict[str, Page]) -> None:
    checked = 0
    for name, page in pages.items():
        for link in page.links:
            if link == "data:,":
                continue
            assert "//" not in link, (name, link)
            assert ":" not in link, (name, link)
            target, _, anchor = link.partition("#")
            path = (built[0] / target).resolve() if target else built[0] / name
            assert path.is_file(), (name, link)
            assert path.is_relative_to(built[0].resolve()), (name, link)
            if anchor:
                assert anchor in pages[path.name].ids, (name, link)
            checked += 1
    assert checked > 1000


def test_no_file_asks_for_anything_outside(built: tuple[Path, Experiment]) -> None:
    for path in (built[0] / "static").iterdir():
        text = path.read_text(encoding="utf8")
        assert "http" not in text
        assert "//" not in text.replace("// ", "")
        assert "@import" not in text
        assert "fetch(" not in text


def test_pages_are_whole(pages: dict[str, Page]) -> None:
    assert len(pages) > 60
    for name, page in pages.items():
        assert page.problems == [], name
        assert ("html", {"lang": "en"}) in page.tags
        assert any(tag == "meta" and values.get("name") == "viewport" for tag, values in page.tags)
        assert sum(tag == "h1" for tag, _ in page.tags) == 1, name
        assert all("alt" in values for tag, values in page.tags if tag == "img")


def test_numbers_have_sort_keys(pages: dict[str, Page]) -> None:
    seen = 0
    for name, page in pages.items():
        for tag, values in page.tags:
            if tag == "td" and "number" in (values.get("class") or "").split():
                key = values.get("data-sort")
                assert key == "none" or float(str(key)) is not None, name
                seen += 1
    assert seen > 5000


def test_rows_are_as_wide_as_their_heads(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        heads, width = 0, 0
        for tag, values in [*page.tags, ("tr", {})]:
            if tag == "table":
                heads, width = 0, 0
            elif tag == "th":
                heads += 1
            elif tag == "td":
                width += int(values.get("colspan") or 1)
            elif tag == "tr":
                assert width in (0, heads), name
                width = 0


def test_hostile_text_stays_text(built: tuple[Path, Experiment], pages: dict[str, Page]) -> None:
    site, experiment = built
    name = f"experiment-{experiment.signature}.html"
    raw = (site / name).read_text(encoding="utf8")
    assert "onerror=alert" in raw
    assert "<img src=x" not in raw
    assert HOSTILE in pages[name].text
    assert HOSTILE in pages["audit.html"].text
    assert all(tag != "img" for tag, _ in pages[name].tags)


def test_what_models_learned_of_the_tested_rows_is_said(built: tuple[Path, Experiment], pages: dict[str, Page]) -> None:
    text = pages[f"experiment-{built[1].signature}.html"].text
    assert "learned from an unknown number of the 4 rows that were tested (it says nothing of its training)." in text
    assert "own learned from 3 of the 4 rows that were tested." in text


def test_an_audit_is_shown_whole_whatever_its_rows_hold(pages: dict[str, Page]) -> None:
    page = pages["audit.html"]
    for word in ("foretoken audit --scale test", "verdict", "prompts", "tests", "failed", "bonus", "1e-09", "identical"):
        assert word in page.text, word


def test_generations_are_bounded_and_trouble_comes_first(built: tuple[Path, Experiment], pages: dict[str, Page]) -> None:
    page = pages[f"experiment-{built[1].signature}.html"]
    assert sum(tag == "details" for tag, _ in page.tags) == LIMIT
    assert f"{LIMIT} of 4" in page.text
    assert "failed: " in page.text
    assert "Parts from plain decoding at token 3: near-tie" in page.text


def test_tokens_are_coloured_by_what_became_of_them(built: tuple[Path, Experiment], pages: dict[str, Page]) -> None:
    """The divergent record: (1 stands, 2 does not), (4 and 5 stand), (7 does not, 8 behind it): no tokenizer, so ids."""
    page = pages[f"experiment-{built[1].signature}.html"]
    kinds = [
        str(values["class"]).removeprefix("token ")
        for tag, values in page.tags
        if (values.get("class") or "").startswith("token ")
    ]
    legend, shown = kinds[:5], kinds[5:]
    assert len(set(legend)) == 5
    assert shown == ["accepted", "rejected", "corrected", "accepted", "accepted", "bonus", "rejected", "dropped", "corrected"]
    assert "Token ids stand for text" in page.text


def test_what_a_tokenizer_gives_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "stored_decoder", lambda folder, target: lambda ids: HOSTILE)
    experiment = made_up(tmp_path)
    item = next(one for one in experiments.experiment_items(tmp_path, [], tmp_path / "runs", 4) if one.experiment)
    assert any(token.text == HOSTILE for token in item.generations[-1].rounds[0])
    results = tmp_path / "results"
    results.mkdir()
    write_site(collect(results, tmp_path, 4), tmp_path / "site")
    raw = (tmp_path / "site" / f"experiment-{experiment.signature}.html").read_text(encoding="utf8")
    assert "<img src=x" not in raw
    assert "Token ids stand for text" not in raw


def test_without_tables_figures_and_records_the_pages_say_so(tmp_path: Path) -> None:
    """The published numbers and the commands stay."""
    write_site(collect(tmp_path, tmp_path / "none", 1), tmp_path / "site")
    pages = {path.name: parse(path) for path in (tmp_path / "site").glob("*.html")}
    assert {f"table-{n}.html" for n in TABLES} | {f"figure-{name}.html" for name in FIGURES} <= set(pages)
    assert "Not made yet" in pages["table-10.html"].text
    assert "3.4" in pages["table-10.html"].text
    assert "not run" in pages["table-10.html"].text
    assert "Not made yet" in pages["figure-leviathan-2.html"].text
    assert "No records are on this machine" in pages["experiments.html"].text
    assert "audit.html" not in pages


def test_a_record_file_that_cannot_be_read_has_a_page_that_says_so(pages: dict[str, Page]) -> None:
    assert "cannot be read" in pages["experiment-broken.html"].text
    assert "experiment-broken.html" in pages["experiments.html"].links


def test_the_same_input_gives_the_same_bytes_and_replaces_only_a_report(built: tuple[Path, Experiment], tmp_path: Path) -> None:
    site = built[0]
    content = collect(site.parent / "results", site.parent / "records", LIMIT)
    copy = tmp_path / "copy"
    write_site(content, copy)
    (copy / "stale.html").write_text("old", encoding="utf8")
    write_site(content, copy)
    files = {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert files == {path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert sum(map(len, files.values())) < 15e6
    assert not list(tmp_path.glob(".copy*"))

    (copy / MARKER).unlink()
    with pytest.raises(UsageError, match="not a report"):
        write_site(content, copy)
    assert (copy / "index.html").exists()


def test_a_table_whose_settings_are_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the error of the setting comes through alone, and nobody knows of which file."""

    def refused(*arguments: object) -> None:
        raise UsageError("profile 'huge': expected toy")

    monkeypatch.setattr("harness.report.items.judge", refused)
    with pytest.raises(UsageError, match=r"table .*leviathan-1\.json: cannot be read .*profile 'huge'.*`make table-7`"):
        read_table(TRADEOFF, ROOT / "results" / "tables" / "leviathan-1.json")


def test_command_writes_the_site_and_refuses_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    results = tmp_path / "results"
    (results / "tables").mkdir(parents=True)
    shutil.copy(ROOT / "results" / "tables" / "leviathan-1.json", results / "tables")
    (tmp_path / "none").mkdir()
    flags = ["--records", str(tmp_path / "none"), "--output", str(tmp_path / "site")]
    assert main(["report", "--results", str(results), *flags]) == 0
    assert "1 of 34 tables and 0 of 19 figures" in capsys.readouterr().out
    assert main(["report", "--results", str(tmp_path / "nowhere"), *flags]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    (results / "tables" / "leviathan-1.json").write_text('{"settings": {}}', encoding="utf8")
    assert main(["report", "--results", str(results), *flags]) == 2
    error = capsys.readouterr().err
    assert "leviathan-1.json: cannot be read (KeyError('models')); expected what `foretoken table` writes" in error
    assert len(error.splitlines()) == 1
