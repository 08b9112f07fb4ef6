"""The order in which a device is asked to capture, on a device that is played; and an error that is said in one line."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import capture as module
from kernels.inputs import InputError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything that the device was asked, in order."""
    seen: list[str] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            self.device = device

        def wait_stream(self, other: "Stream") -> None:
            seen.append(f"{self.device} waits for {other.device}")

    class Graph:
        def replay(self) -> None:
            seen.append("launched")

    @contextmanager
    def named(what: str) -> Any:
        seen.append(f"{what} begins")
        yield
        seen.append(f"{what} ends")

    played = SimpleNamespace(
        Stream=Stream,
        CUDAGraph=Graph,
        device=lambda device: nullcontext(),
        current_stream=lambda: Stream("main"),
        stream=lambda stream: named("side stream"),
        graph=lambda graph, pool, stream: named(f"capture in {pool} on {stream.device}"),
        graph_pool_handle=lambda: "pool",
    )
    monkeypatch.setattr(module.torch, "cuda", played)
    return seen


def test_work_is_warmed_up_on_the_stream_that_captures_it_and_launched_from_then_on(asked: list[str]) -> None:
    def work() -> str:
        asked.append("work")
        return "made"

    launch = module.capture_for(torch.device("cuda", 1))(work)
    captured = ["capture in pool on cuda:1 begins", "work", "capture in pool on cuda:1 ends"]
    warmed = ["side stream begins", *["work"] * module.WARM_UP, "side stream ends"]
    assert asked == ["cuda:1 waits for main", *warmed, "main waits for cuda:1", *captured]
    asked.clear()
    assert [launch(), launch()] == ["made", "made"]
    assert asked == ["launched", "launched"]


def test_what_cannot_be_captured_is_said_in_one_line(asked: list[str]) -> None:
    def work() -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand ten more lines")

    line = r"^graphs: the device could not capture this work \(operation not permitted when .* capturing\); turn graphs off$"
    with pytest.raises(InputError, match=line):
        module.capture_for(torch.device("cuda", 0))(work)
