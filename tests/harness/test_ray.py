"""Engine ray: the records of several workers, one of them killed, are those of one process; nothing is lost or run twice."""

import gc
import json
import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Generator, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from harness import plugins, zoo
from harness.build import METHODS
from harness.cli import main
from harness.commands.options import checked_device
from harness.decode import default_threads
from harness.errors import UsageError
from harness.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.placement import Node, Request, request_of, room_for
from harness.prepared import Chunk, Prepared
from harness.ray_writer import Writer
from harness.records import PARTS
from harness.runner import Runner, pin
from methods.errors import WorkerError

ray = pytest.importorskip("ray", reason="the package ray is not installed: pip install 'foretoken[ray]'")
from harness import ray_engine  # noqa: E402
from harness.ray_cluster import begin  # noqa: E402
from harness.ray_worker import Setup, Worker  # noqa: E402

DRAFT = DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))
APART = ("wall_s", "encode_s", "draft_encode_s", "peak_bytes", "rule_times", "run", "environment")
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
    zoo.ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)
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
    yield ray_engine.RayRunner(folder / "of-workers", begin(None, quiet=True, num_early=2), quiet=True, workers=2)
    ray.shutdown()


def pair(**changes: object) -> Comparison:
    """Two arms with all that is measured over them. Memory is measured, so that workers may share the processor."""
    plain = Experiment(
        task="text",
        profile="test",
        target=ModelSpec(name="zoo:gpt-target"),
        method=MethodSpec(name="autoregressive"),
        limit=9,
        repeats=2,
        batch_size=2,
        max_new_tokens=6,
        overlap=(DRAFT,),
        memory=True,
        num_threads=1,
        dtype="float64",
    ).replace(**changes)
    return Comparison((pin(plain), pin(plain.replace(method=MethodSpec(name="mortal"), overlap=()))))


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
    runs = [{record.key: record.run for record in workers.records(arm)} for arm in comparison.arms]
    assert runs[0] == runs[1]  # what is compared was made by one process
    assert not (workers.folder / PARTS).exists()
    calls = [line.split(" ", 2) for line in (folder / "log").read_text().splitlines()]
    prompts = Counter(prompt for _, number, prompt in calls if number != "1")  # each process warms up first
    batches = 10
    assert sum(prompts.values()) == batches + 1  # once more: the batch in flight
    assert str(os.getpid()) not in {pid for pid, _, _ in calls}


class Patient(ray_engine.RayRunner):
    """Makes two chunks itself, and then waits for its worker. Notes how much it holds ready while workers work."""

    held = 0

    def _made_here(self, comparison: Comparison, waiting: deque) -> Generator:
        made = super()._made_here(comparison, deque(chunk for chunk in list(waiting)[:2]))
        for _ in range(2):
            waiting.popleft()
        yield from made
        self._relieved = True

    def _writer(self, node: str) -> object:
        gc.collect()
        self.held += sum(type(one) is Prepared for one in gc.get_objects())
        return super()._writer(node)


def test_driver_makes_what_nobody_times_until_a_worker_is_ready(folder: Path, workers: ray_engine.RayRunner) -> None:
    alone = Comparison((pair(memory=False).arms[1],))
    local, early = Runner(folder / "plain", quiet=True), Patient(folder / "early", workers.cluster, quiet=True, workers=1)
    assert [early._may_begin(pair(memory=memory)) for memory in (False, True)] == [False, False]
    local.run(alone)
    (folder / "log").unlink()
    early.run(alone)
    assert without_times(early.path(alone.arms[0])) == without_times(local.path(alone.arms[0]))
    assert [record.run == early._id for record in early.records(alone.arms[0])] == [True] * 4 + [False] * 14
    calls = Counter(line.split()[0] for line in (folder / "log").read_text().splitlines())
    assert (calls.pop(str(os.getpid())), *calls.values()) == (1 + 2, 1 + 8)  # a warm-up each, and ten chunks
    assert early.held == 0
    assert not early._may_begin(alone)
    ray.kill(early._pool[0])


def test_last_line_is_the_commands_even_if_a_worker_died(folder: Path, tmp_path: Path) -> None:
    (folder / "order").touch()
    flags = ["--task", "text", "--profile", "test", "--target", "zoo:gpt-target", "--method", "mortal", "--limit", "4"]
    flags += ["--engine", "ray", "--workers", "1", "--plugin", str(folder / "mortal.py"), "--records", str(tmp_path)]
    command = [sys.executable, "-m", "harness", "run", *flags, "--max-new-tokens", "4", "--threads", "1", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not (folder / "order").exists()  # carried out
    assert json.loads(done.stdout.splitlines()[-1])["metrics"]["failed_frac"]["value"] == 0


def test_driver_that_makes_everything_is_ready_for_more(folder: Path, workers: ray_engine.RayRunner) -> None:
    early = ray_engine.RayRunner(folder / "few", workers.cluster, quiet=True, workers=1)
    for seed in (0, 1):
        arm = pair(limit=1, repeats=1, memory=False, seed=seed).arms[0]
        assert early._may_begin(Comparison((arm,)))
        early.run(Comparison((arm,)))
        assert [record.run for record in early.records(arm)] == [early._id]
    for worker in early._pool:
        ray.kill(worker)


def test_what_no_worker_has_room_for_is_not_begun(folder: Path, workers: ray_engine.RayRunner) -> None:
    wide = pair(memory=False, num_threads=1000)
    with pytest.raises(UsageError, match="a worker takes 1000 CPUs"):
        ray_engine.RayRunner(folder / "wide", workers.cluster, quiet=True).run(Comparison((wide.arms[1],)))


def test_what_a_worker_refuses_is_refused_in_one_line(workers: ray_engine.RayRunner) -> None:
    with pytest.raises(UsageError, match="position limit"):
        workers.run(pair(max_new_tokens=100_000))


def test_what_needs_models_is_done_by_a_worker(workers: ray_engine.RayRunner) -> None:
    arm = pair().arms[0]
    assert os.getpid() != workers.with_models(arm, lambda models: models.get(arm.target).vocab_size and os.getpid())


def test_a_folder_that_a_node_does_not_see_is_refused(workers: ray_engine.RayRunner, tmp_path: Path) -> None:
    chunk = Chunk(0, 0, range(1), (("text-0", 0),), ({}, {}))
    comparison = pair()
    workers.run(comparison)  # connected, and all there already
    with pytest.raises(UsageError, match=r"does not see what the driver wrote there; .* choose --records"):
        Worker().run(Setup(tmp_path, default_threads(), ()), comparison, chunk)


def test_driver_killed_between_records_goes_on_from_the_parts(folder: Path, tmp_path: Path) -> None:
    """Two workers were ahead of it: some records stand in order, some only in the writer's file, torn at its end."""
    comparison, whole, half = (
        pair(limit=4, repeats=1),
        Runner(tmp_path / "whole", quiet=True),
        Runner(tmp_path / "half", quiet=True),
    )
    whole.run(comparison)
    made = [whole.records(arm) for arm in comparison.arms]
    half.folder.mkdir()
    writer = Writer(half.folder / PARTS, "node")
    for index in (0, 2, 3):
        lines = {arm.signature: [records[index].to_line()] for arm, records in zip(comparison.arms, made, strict=True)}
        writer.append(("node", lines))
    writer.append(("node", {comparison.arms[0].signature: [made[0][1].to_line()[:50]]}))
    writer.close()
    half.path(comparison.arms[0]).write_text(made[0][0].to_line())
    (folder / "log").unlink()
    half.run(comparison)
    assert [without_times(half.path(arm)) for arm in comparison.arms] == [
        without_times(whole.path(arm)) for arm in comparison.arms
    ]
    assert [asdict(record) for record in half.records(comparison.arms[1])][2:] == [asdict(record) for record in made[1]][2:]
    assert len((folder / "log").read_text().splitlines()) == 2  # the warm-up and the batch that was not whole
    assert not (half.folder / PARTS).exists()


def test_worker_that_dies_again_and_again_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(reference: object) -> None:
        raise ray.exceptions.ActorDiedError()

    monkeypatch.setattr(ray_engine.ray, "get", dead)
    with pytest.raises(WorkerError, match=r"a worker died 3 times \(The actor died unexpectedly"):
        ray_engine._fetched(None, (), None)


def arms(count: int, **changes: object) -> Comparison:
    plain = Experiment(
        task="text", target=ModelSpec(name="zoo:gpt-target"), method=MethodSpec(name="autoregressive"), num_threads=2
    )
    methods = (MethodSpec(name="autoregressive"), MethodSpec(name="speculative", drafter=DRAFT))
    return Comparison(tuple(plain.replace(method=method, **changes) for method in methods[:count]))


def test_timed_arms_take_a_device_and_others_share_it() -> None:
    nodes = [Node(8, 2), Node(8, 2)]
    assert request_of(arms(1), nodes, None, None) == Request(2)
    assert request_of(arms(2), nodes, None, None) == Request(8)
    assert request_of(arms(2, memory=True), nodes, None, None) == Request(2)
    assert request_of(arms(1, profiled=True), nodes, None, None) == Request(8)
    assert request_of(arms(1), nodes, 12, None) == Request(1)
    assert request_of(arms(1), nodes, 32, None) == Request(0.5)
    assert [room_for(Request(2), nodes), room_for(Request(8), nodes), room_for(Request(0.5), nodes)] == [8, 2, 32]
    on_gpu = request_of(arms(1, device="cuda"), nodes, None, 80 << 30)
    assert 0 < on_gpu.num_gpus < 0.1
    assert request_of(arms(2, device="cuda"), nodes, None, 80 << 30) == Request(1, 1)
    assert [room_for(Request(1, 0.5), nodes), room_for(Request(1, 3), nodes)] == [8, 0]


def test_models_larger_than_a_gpu_are_spread_or_refused() -> None:
    single, small = arms(1, device="cuda"), 1 << 20
    with pytest.raises(UsageError, match=r"zoo:gpt-target: the models of this run take \d+.* --device-map auto"):
        request_of(single, [Node(8, 4)], None, small)
    spread = Comparison((single.arms[0].replace(target=ModelSpec(name="zoo:gpt-target", device_map="auto")),))
    assert request_of(spread, [Node(8, 4)], None, (1 << 30) // 2).num_gpus == 3


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
    monkeypatch.setattr("harness.commands.options.find_spec", lambda name: None)
    assert main(["run", "--task", "text", "--target", "zoo:gpt-target", "--engine", "ray"]) == 2
    assert "pip install 'foretoken[ray]'" in capsys.readouterr().err
