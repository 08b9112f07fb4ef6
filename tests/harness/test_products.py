"""Who makes products: by name, or measured once and kept."""

import os
from pathlib import Path

import pytest
import torch

from harness.core import environment, products
from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.core.record_files import write_environment
from harness.models.loading import load_model
from kernels import native
from kernels.products.matrix import COMPILED, SOURCE, TORCH, Choice

needs_compiler = pytest.mark.skipif(native.library(SOURCE) is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An empty cache, and a measurement that counts its calls and finds the loop faster for up to eight rows."""
    times = {(64, 1): (2.0, 1.0), (64, 8): (2.0, 1.0), (64, 16): (1.0, 2.0)}
    calls: list[int] = []
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    monkeypatch.setenv(products.VARIABLE, "measured")
    monkeypatch.setattr(products, "measured_times", lambda: calls.append(1) or times)
    products._measured.cache_clear()
    yield calls
    products._measured.cache_clear()
    environment.describe.cache_clear()


@needs_compiler
def test_it_is_measured_once_and_kept(measured: list[int]) -> None:
    assert products.choice() == Choice(64, 8)
    products._measured.cache_clear()  # as another process begins
    assert products.choice() == Choice(64, 8)
    assert len(measured) == 1


@needs_compiler
def test_a_damaged_choice_is_refused_by_its_name(tmp_path: Path) -> None:
    products.choice()
    products._measured.cache_clear()
    [path] = tmp_path.glob("products-*.json")
    nonsense = ("64}x", '64, "rounding": "int8"}', "-1}", '64, "most_rows": -64}', f"{10**30}}}")
    refused = pytest.raises(UsageError, match=r"products-.*\.json: cannot be read .*; delete it")
    for content in [*(f'{{"least_size": {one}' for one in nonsense), "[" * 100_000, "{}"]:
        path.write_text(content)
        with refused:
            products.choice()
    path.unlink()
    os.mkfifo(path)
    with refused:  # and not waited for
        products.choice()


def test_names_fix_it(monkeypatch: pytest.MonkeyPatch, measured: list[int]) -> None:
    monkeypatch.setenv(products.VARIABLE, "torch")
    assert products.choice() == TORCH
    monkeypatch.setenv(products.VARIABLE, "fast")
    with pytest.raises(UsageError, match=r"FORETOKEN_PRODUCTS 'fast': expected one of measured, torch, compiled"):
        products.choice()
    assert not measured


@needs_compiler
def test_compiled_is_a_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(products.VARIABLE, "compiled")
    assert products.choice() == COMPILED


def test_without_a_compiler_torch_makes_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda source: None)
    assert products.choice() == TORCH
    monkeypatch.setenv(products.VARIABLE, "compiled")
    with pytest.raises(UsageError, match="install a C\\+\\+ compiler"):
        products.choice()


@needs_compiler
def test_a_records_environment_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prints = set()
    for name in ("torch", "measured", "compiled"):
        monkeypatch.setenv(products.VARIABLE, name)
        environment.describe.cache_clear()
        prints.add(write_environment(tmp_path, environment.describe()))
    assert len(prints) == 3


@needs_compiler
def test_models_in_fp32_on_a_cpu_are_loaded_with_it(shared: Path) -> None:
    spec = ModelSpec(name=str(shared / "models" / "stories260K"), revision="")
    assert load_model(spec).stack.choice == Choice(64, 8)
    assert load_model(spec, dtype="float64").stack.choice == TORCH
    assert torch.float32 == load_model(spec).stack.dtype
