"""Engine ray: the records of several workers, one of them killed, are those of one process; nothing is lost or run twice."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.experiment import (
    Comparison,
    DrafterSpec,
    Experiment,
    MemoryProbe,
    MethodSpec,
    ModelSpec,
    OverlapProbe,
    RuleTimesProbe,
)
from harness.core.settings import checked_device
from harness.run.comparison import Chunk
from harness.run.decode import default_threads
from harness.run.ray.placement import Share, request_of, room_for
from harness.run.runner import Runner, pin
from harness.zoo.build import ensure
from methods.errors import WorkerError
from methods.parts import METHODS

ray = pytest.importorskip("ray", reason="the package ray is not installed: .venv/bin/pip install -e '.[ray]'")
from harness.run.ray import engine as ray_engine  # noqa: E402
from harness.run.ray.cluster import Cluster  # noqa: E402

DRAFT = DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))
APART = (
    "wall_s",
    "encode_s",
    "draft_encode_s",
    "on_processor_frac",
    "peak_bytes",
    "rule_times",
    "run",
    "environment",
    "checksum",
)
STEPS_APART = ("draft_s", "verify_s", "round_s", "parts", "units")
MORTAL = '''
"""Plain decoding that notes whom it decodes; its process is killed at its third batch if there is an order for it."""
import os, signal
from pathlib import Path
from methods.autoregressive import Autoregressive

FOLDER, CALLS = Path({folder!r}), []

class Mortal(Autoregressive):
    def generate(self, target, inputs, *rest):
        CALLS.append(1)
        with (FOLDER / "log").open("a") as log:
            log.write(f"{{os.getpid()}} {{len(CALLS)}} {{inputs.prompts}}\\n")
        if len(CALLS) == 3:
            try:
                (FOLDER / "order").rename(FOLDER / f"killed-{{os.getpid()}}")
                os.kill(os.getpid(), signal.SIGKILL)
            except FileNotFoundError:
                pass
        return super().generate(target, inputs, *rest)

METHODS = {{"mortal": lambda spec, target, models: Mortal()}}
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, zoo_cache: Path) -> Iterator[Path]:
    """Where the method notes things, with the plug-in loaded."""
    ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)
    folder = tmp_path_factory.mktemp("mortal")
    (folder / "mortal.py").write_text(MORTAL.format(folder=str(folder)))
    seen = dict(plugins._seen)
    plugins.load([folder / "mortal.py"])
    yield folder
    del METHODS["mortal"]
    plugins._seen.clear()
    plugins._seen.update(seen)


@pytest.fixture(scope="module")
def workers(folder: Path) -> Iterator[ray_engine.RayRunner]:
    yield ray_engine.RayRunner(folder / "of-workers", Cluster(None, quiet=True), quiet=True, workers=2)
    ray.shutdown()


def pair(**changes: object) -> Comparison:
    """An arm alone, whose times nobody reads, so that workers may share the processor; with a probe."""
    plain = Experiment(
        task="text",
        profile="test",
        target=ModelSpec(name="zoo:gpt-target"),
        method=MethodSpec(name="autoregressive"),
        limit=9,
        repeats=2,
        batch_size=2,
        max_new_tokens=6,
        probes=(OverlapProbe(drafter=DRAFT),),
        num_threads=1,
        dtype="float64",
    ).replace(**changes)
    return Comparison((pin(plain.replace(method=MethodSpec(name="mortal"))),))


def without_times(path: Path) -> bytes:
    """A file of records, byte by byte but for what a clock, the memory or the process says."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        line |= dict.fromkeys(APART)
        line["steps"] |= dict.fromkeys(STEPS_APART)
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def test_killed_worker_changes_nothing(folder: Path, workers: ray_engine.RayRunner) -> None:
    comparison, local = pair(), Runner(folder / "local", quiet=True)
    local.run(comparison)
    (folder / "log").unlink()
    (folder / "order").touch()
    workers.run(comparison)
    assert len(workers._pool) == 2
    assert len(list(folder.glob("killed-*"))) == 1
    for arm in comparison.arms:
        assert len(local.records(arm)) == 9 * 2
        assert without_times(workers.path(arm)) == without_times(local.path(arm))
        assert [one.overlap for one in workers.records(arm)] == [one.overlap for one in local.records(arm)]
    calls = [line.split(" ", 2) for line in (folder / "log").read_text().splitlines()]
    prompts = Counter(prompt for _, number, prompt in calls if number != "1")  # each process warms up first
    batches = 10
    # Once more: the batch in flight, and the one before it if its records had not left the process when it was killed.
    assert batches + 1 <= sum(prompts.values()) <= batches + 2
    assert str(os.getpid()) not in {pid for pid, _, _ in calls}


def test_last_line_is_the_commands_even_if_a_worker_died(folder: Path, tmp_path: Path) -> None:
    (folder / "order").touch()
    flags = ["--task", "text", "--profile", "test", "--target", "zoo:gpt-target", "--method", "mortal", "--limit", "4"]
    flags += ["--engine", "ray", "--workers", "1", "--plugin", str(folder / "mortal.py"), "--records", str(tmp_path)]
    command = [sys.executable, "-m", "harness", "run", *flags, "--max-new-tokens", "4", "--threads", "1", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not (folder / "order").exists()  # carried out
    assert json.loads(done.stdout.splitlines()[-1])["metrics"]["failed_frac"]["value"] == 0


def test_what_no_worker_has_room_for_is_not_begun(folder: Path, workers: ray_engine.RayRunner) -> None:
    wide = pair(num_threads=1000)
    with pytest.raises(UsageError, match="a worker takes 1000 CPUs"):
        ray_engine.RayRunner(folder / "wide", workers.cluster, quiet=True).run(wide)


def test_what_a_worker_refuses_is_refused_in_one_line(workers: ray_engine.RayRunner) -> None:
    with pytest.raises(UsageError, match="position limit"):
        workers.run(pair(max_new_tokens=100_000))


def test_what_needs_models_is_done_by_a_worker(workers: ray_engine.RayRunner) -> None:
    arm = pair().arms[0]
    assert os.getpid() != workers.with_models(arm, lambda models: models.get(arm.target).vocab_size and os.getpid())


def test_a_folder_that_a_node_does_not_see_is_refused(workers: ray_engine.RayRunner, tmp_path: Path) -> None:
    chunk = Chunk(0, 0, range(1), (("text-0", 0),), ({},), (True,))
    comparison = pair()
    workers.run(comparison)  # connected, and all there already
    with pytest.raises(UsageError, match=r"does not see what the driver wrote there; .* choose --records"):
        ray_engine._Worker().run(
            ray_engine._Setup(tmp_path, default_threads(), (), "none"), ray.cloudpickle.dumps((comparison, chunk))
        )


def test_a_stopped_run_goes_on_where_it_was(folder: Path, workers: ray_engine.RayRunner, tmp_path: Path) -> None:
    """Two of its three batches are on the disk, and a line that is torn."""
    comparison, whole = pair(limit=6, repeats=1, probes=()), Runner(tmp_path / "whole", quiet=True)
    whole.run(comparison)
    half = ray_engine.RayRunner(tmp_path / "half", workers.cluster, quiet=True, workers=1)
    half._pool, half._request = workers._pool[:1], workers._request
    half.folder.mkdir()
    for arm in comparison.arms:
        lines = whole.path(arm).read_bytes().splitlines(keepends=True)
        half.path(arm).write_bytes(b"".join(lines[:4]) + lines[4][:50])
    (folder / "log").unlink()
    half.run(comparison)
    for arm in comparison.arms:
        assert without_times(half.path(arm)) == without_times(whole.path(arm))
    assert len((folder / "log").read_text().splitlines()) == 2  # the warm-up and the batch that was not whole


def test_worker_that_dies_again_and_again_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(reference: object) -> None:
        raise ray.exceptions.ActorDiedError()

    monkeypatch.setattr(ray_engine.ray, "get", dead)
    with pytest.raises(WorkerError, match=r"a worker died 3 times \(The actor died unexpectedly"):
        ray_engine.fetch(None, "a worker")


def arms(count: int, **changes: object) -> Comparison:
    plain = Experiment(
        task="text", target=ModelSpec(name="zoo:gpt-target"), method=MethodSpec(name="autoregressive"), num_threads=2
    )
    methods = (MethodSpec(name="autoregressive"), MethodSpec.of("speculative", drafter=DRAFT))
    return Comparison(tuple(plain.replace(method=method, **changes) for method in methods[:count]))


def test_timed_arms_take_a_device_and_others_share_it() -> None:
    nodes = [Share(8, 2), Share(8, 2)]
    assert request_of(arms(1), nodes, None, None) == Share(2)
    assert request_of(arms(2), nodes, None, None) == Share(8)
    assert request_of(Comparison(arms(2).arms, MemoryProbe()), nodes, None, None) == Share(2)
    assert request_of(arms(1, probes=(RuleTimesProbe(),)), nodes, None, None) == Share(8)
    assert request_of(arms(1), nodes, 12, None) == Share(1)
    assert request_of(arms(1), nodes, 32, None) == Share(0.5)
    assert [room_for(Share(2), nodes), room_for(Share(8), nodes), room_for(Share(0.5), nodes)] == [8, 2, 32]
    on_gpu = request_of(arms(1, device="cuda"), nodes, None, 80 << 30)
    assert 0 < on_gpu.num_gpus < 0.1
    assert request_of(arms(2, device="cuda"), nodes, None, 80 << 30) == Share(1, 1)
    assert [room_for(Share(1, 0.5), nodes), room_for(Share(1, 3), nodes)] == [8, 0]


def test_models_larger_than_a_gpu_are_spread_or_refused() -> None:
    single, small = arms(1, device="cuda"), 1 << 20
    with pytest.raises(UsageError, match=r"zoo:gpt-target: the models of this run take \d+.* --device-map auto"):
        request_of(single, [Share(8, 4)], None, small)
    spread = Comparison((single.arms[0].replace(target=ModelSpec(name="zoo:gpt-target", device_map="auto")),))
    assert request_of(spread, [Share(8, 4)], None, (1 << 30) // 2).num_gpus == 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--workers", "2"], "--workers 2: engine 'local' does not read it"),
        (["--address", "auto"], "--address auto: engine 'local' does not read it"),
        (["--engine", "ray", "--device", "cuda:1"], "with engine 'ray' expected cpu or cuda"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["run", "--task", "text", "--target", "zoo:gpt-target", *flags]) == 2
    assert said in capsys.readouterr().err
    assert checked_device("cuda", "ray") == "cuda"


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("harness.cli.main.find_spec", lambda name: None)
    assert main(["run", "--task", "text", "--target", "zoo:gpt-target", "--engine", "ray"]) == 2
    assert ".venv/bin/pip install -e '.[ray]'" in capsys.readouterr().err
