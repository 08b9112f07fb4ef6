"""Compiled sources: made once, checked before they are loaded, and done without where nothing can compile them."""

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from harness.core.checkout import ROOT
from kernels import native

needs_compiler = pytest.mark.skipif(native._compiler() is None, reason="no C++ compiler here")
SOURCE = 'extern "C" long twice(long number) { return 2 * number; }\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FORETOKEN_NATIVE", raising=False)
    path = tmp_path / "twice.cpp"
    path.write_text(SOURCE, encoding="utf8")
    return path


def load(source: Path) -> ctypes.CDLL | None:
    """Load as a process does that has not loaded it yet."""
    return native.library.__wrapped__(source)


def compiled(tmp_path: Path) -> Path:
    [path] = (tmp_path / "cache").glob("native-twice-*.so")
    return path


@needs_compiler
def test_a_source_is_compiled_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = load(source)
    assert library is not None
    assert library.twice(21) == 42
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled again"))
    assert load(source) is not None


@needs_compiler
def test_a_cache_here_is_no_library_of_the_systems(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORETOKEN_CACHE", ".")
    assert load(source) is not None


@needs_compiler
def test_a_pipe_in_the_place_of_a_library_hangs_nothing(source: Path, tmp_path: Path) -> None:
    load(source)
    path = compiled(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert load(source) is None


@needs_compiler
@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"\0" + data[1:]], ids=["torn", "flipped"]
)
def test_a_damaged_library_is_compiled_again(source: Path, tmp_path: Path, damage) -> None:
    load(source)
    path = compiled(tmp_path)
    whole = path.read_bytes()
    path.unlink()  # a loaded library's own file must not change
    path.write_bytes(damage(whole))
    assert load(source) is not None
    assert native._is_whole(path)


@needs_compiler
def test_another_sources_library_with_its_checksum_is_compiled_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the model's folder was blamed for a function that the library did not have."""
    other = tmp_path / "other.cpp"
    other.write_text(SOURCE.replace("twice", "other"), encoding="utf8")
    load(source), load(other)
    [others] = (tmp_path / "cache").glob("native-other-*.so")
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "later"))  # what is loaded once, this process has under its path
    (tmp_path / "later").mkdir()
    for ending in (".so", ".sha256"):
        shutil.copy(others.with_suffix(ending), (tmp_path / "later" / compiled(tmp_path).name).with_suffix(ending))
    assert load(source).twice(21) == 42


@needs_compiler
@pytest.mark.parametrize("source", sorted(ROOT.glob("kernels/**/*.cpp")), ids=lambda path: path.stem)
def test_this_projects_sources_compile(source: Path, zoo_cache: Path) -> None:
    """Other tests do without what does not compile."""
    assert native.library(source) is not None


@needs_compiler
def test_another_header_is_another_library(source: Path, tmp_path: Path) -> None:
    """A header of a header too."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "factor.h").write_text("#define FACTOR 2\n", encoding="utf8")
    (tmp_path / "outer.h").write_text('#include "inner/factor.h"\n', encoding="utf8")
    source.write_text('#include "outer.h"\n' + SOURCE.replace("2 *", "FACTOR *"), encoding="utf8")
    assert load(source).twice(21) == 42
    (tmp_path / "inner" / "factor.h").write_text("#define FACTOR 3\n", encoding="utf8")
    assert load(source).twice(21) == 63


@needs_compiler
def test_another_source_is_another_library(source: Path, tmp_path: Path) -> None:
    load(source)
    source.write_text(SOURCE.replace("2 *", "3 *"), encoding="utf8")
    assert load(source).twice(21) == 63


@needs_compiler
def test_a_source_that_does_not_compile_is_said_and_done_without(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text("no such language", encoding="utf8")
    assert load(source) is None
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("foretoken: note: twice.cpp is not compiled, torch's operations stand in: ")


@needs_compiler
def test_what_is_wrong_in_a_header_is_what_is_said(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: g++ begins with where the header is included from, and nobody read what was wrong there."""
    (tmp_path / "other.h").write_text("no_such_type number;\n", encoding="utf8")
    source.write_text('#include "other.h"\n' + SOURCE, encoding="utf8")
    assert load(source) is None
    [line] = capsys.readouterr().err.splitlines()
    assert "no_such_type" in line


@needs_compiler
@pytest.mark.parametrize("end", ["kill -9 $$", "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"])
def test_a_compiler_that_was_killed_leaves_no_weaker_library(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    """Fault: the next flags were tried, and a library without threads was kept for ever."""
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-fopenmp*) {end};; esac\nexec {native._compiler()} "$@"\n', encoding="utf8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert load(source) is None
    assert "twice.cpp is not compiled" in capsys.readouterr().err


@needs_compiler
def test_a_library_without_threads_is_told_of(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "FLAGS", (("-no-such-flag", "-fopenmp"), ()))
    assert load(source).twice(21) == 42
    assert "twice.cpp is compiled without OpenMP" in capsys.readouterr().err
    assert load(source).twice(21) == 42
    assert capsys.readouterr().err == "", "told once, when it was made"


def test_without_a_compiler_it_is_said_and_done_without(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert load(source) is None
    assert "no C++ compiler found" in capsys.readouterr().err


def test_it_can_be_turned_off(source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORETOKEN_NATIVE", "0")
    assert load(source) is None
    assert capsys.readouterr().err == ""
