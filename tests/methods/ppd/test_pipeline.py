"""The pipeline emits what plain decoding emits, whatever was predicted and however it is executed, and dies in good order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from methods.autoregressive import Autoregressive
from methods.errors import InputError, NotFiniteError, WorkerError
from methods.models import stack_for
from methods.models.base import Stack
from methods.ppd import units as units_module
from methods.ppd.heads import OwnHead, TrainedHeads
from methods.ppd.memory import Candidates, PipelineSession
from methods.ppd.options import EXECUTIONS
from methods.ppd.pipeline import PredictivePipelinedDecoding, num_processes, overload
from methods.ppd.plans import Execution, Plan
from methods.ppd.units import SubProcesses
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.steps import PARTS
from methods.types import Generation, Inputs, Stop

DEPTH = 6
GREEDY = Sampling()
PROMPTS = ((5,), tuple(range(3, 40)))
Build = Callable[..., Stack]


def pipeline(stack: Stack, early: int, count: int, execution: Execution = "process", **other) -> PredictivePipelinedDecoding:
    plan = Plan(early_layer=early, num_candidates=count)
    return PredictivePipelinedDecoding(stack, OwnHead(), plan, execution, **other)


def run(method, stack: Stack, prompts, sampling: Sampling = GREEDY, num_tokens: int = 12, eos=frozenset(), clock=None):
    uniforms = Uniforms(range(11, 11 + len(prompts)), num_tokens)
    stop = Stop(max_new_tokens=num_tokens, token_ids=frozenset(eos))
    return method.generate(ModelSession(stack), Inputs(tuple(prompts)), sampling, uniforms, stop, clock)


def outputs(generations: list[Generation]) -> list[tuple[list[int], str]]:
    return [(generation.tokens, generation.stop_reason) for generation in generations]


@pytest.mark.parametrize("family", ["llama", "llama-gqa", "gpt2"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_is_plain_decodings_over_the_whole_grid(deep: Build, family: str, temperature: float) -> None:
    """Every execution, k in 1, 3, 5 and d-bar from d / 2 to d - 1, greedy and sampled at the same seeds; hits and misses."""
    stack, sampling, runs, matched = deep(family), Sampling(temperature=temperature, top_k=6), 0, set()
    plain = outputs(run(Autoregressive(), stack, PROMPTS, sampling))
    for execution in EXECUTIONS:
        for candidates in (1, 3, 5):
            for early in range(DEPTH // 2, DEPTH):
                method = pipeline(stack, early, candidates, execution)
                generations = run(method, stack, PROMPTS, sampling)
                method.close()
                assert outputs(generations) == plain, (execution, candidates, early)
                runs += 1
                matched |= {step.matched for generation in generations for step in generation.steps}
    assert runs == 3 * 3 * 3
    assert matched == {True, False, None}


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_ends_where_plain_decoding_ends(deep: Build, execution: Execution) -> None:
    """EOS on every token of a run in turn, length limits from 1, the position limit, and one method used again and again."""
    stack = deep()
    method = pipeline(stack, 4, 3, execution)
    whole = run(Autoregressive(), stack, [(5,)])[0].tokens
    assert len(set(whole)) > 3
    for token in set(whole):
        assert outputs(run(method, stack, [(5,)], eos={token})) == outputs(run(Autoregressive(), stack, [(5,)], eos={token}))
    for length in (1, 2, 3):
        generation = run(method, stack, [(5,)], num_tokens=length)[0]
        assert generation.tokens == whole[:length]
        assert [step.matched is None for step in generation.steps] == [False] * (length - 1) + [True]
        assert generation.steps[-1].stop_reason == "length"
    long = tuple(3 + i % 40 for i in range(250))
    assert outputs(run(method, stack, [long])) == outputs(run(Autoregressive(), stack, [long]))
    assert len(run(method, stack, [long])[0].tokens) == 256 - 250 + 1
    method.close()


def test_a_longer_text_gets_a_larger_cache(deep: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("methods.ppd.pipeline.CACHE_BYTES", 1)
    stack = deep()
    method = pipeline(stack, 3, 1)
    for prompt in ((5,), tuple(range(3, 40)), (7, 8)):
        assert outputs(run(method, stack, [prompt])) == outputs(run(Autoregressive(), stack, [prompt]))
    method.close()


def test_spawned_processes_share_what_forked_ones_inherit(deep: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way taken on a GPU: everything is handed over by handles, nothing is inherited."""
    stack = deep()
    monkeypatch.setattr(units_module, "start_method", lambda stack, num_threads: "spawn")
    method = pipeline(stack, 3, 2, "batched")
    assert outputs(run(method, stack, PROMPTS)) == outputs(run(Autoregressive(), stack, PROMPTS))
    method.close()


def test_everything_matches_when_later_layers_do_nothing(deep: Build) -> None:
    stack = deep(late=0.0)
    method = pipeline(stack, 3, 1)
    steps = run(method, stack, [(5, 6)])[0].steps
    assert [step.matched for step in steps] == [True] * (len(steps) - 1) + [None]
    method.close()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("family", ["llama", "llama-gqa", "gpt2"])
def test_candidates_see_the_history_and_themselves_alone(deep: Build, family: str, count: int) -> None:
    """Side by side in slots, beside rubbish in the other slots, each has the state that it has alone in a session."""
    stack, text, slots = deep(family), (5, 9, 2, 30, 7), 6
    storage = torch.zeros(stack.num_layers, 1, slots + 16, 2 * stack.num_kv_heads, stack.head_dim, dtype=stack.dtype)
    storage[:, :, :slots] = torch.nan  # left by another text: no mask hides it
    session = PipelineSession(stack, storage, slots)
    session.prefill(Inputs(((*text, 0),)))
    assert not storage[:, :, :slots].isnan().any()
    storage[:, :, :slots] = 1e3
    tokens = [11, 12, 13, 14][:count]
    states = Candidates(stack, storage, slots, range(1, 5)).run(tokens, len(text), 4)
    for index, token in enumerate(tokens):
        alone = ModelSession(stack)
        alone.prefill(Inputs(((*text, 0),)))
        expected = alone.run_layers(alone.embed(torch.tensor([[token]])), 0, 4)[0, 0]
        torch.testing.assert_close(states[index], expected, rtol=1e-10, atol=1e-10)
    session.adopt(1 + count - 1, 4)
    hidden = session.run_layers(states[-1].view(1, 1, -1), 4, DEPTH)
    whole = alone.run_layers(alone.run_layers(alone.embed(torch.tensor([[3]])), 0, 4) * 0 + expected, 4, DEPTH)
    torch.testing.assert_close(hidden, whole, rtol=1e-10, atol=1e-10)
    assert session.lengths == [(len(text) + 1,)] * DEPTH


def test_a_text_that_outgrows_the_window_is_refused(deep: Build) -> None:
    """A single candidate's mask was that of its place in the cache: it hid the candidate from itself."""
    stack = deep()
    stack.window = 8
    method = pipeline(stack, 3, 1, "simulated")
    with pytest.raises(InputError, match="sliding_window 8 of model type 'llama': PPD reads candidates in an order of its own"):
        run(method, stack, [(5, 6, 7, 8, 9, 10, 11)])


def test_logits_that_are_nan_are_refused_as_in_plain_decoding(deep: Build) -> None:
    stack = deep("llama")
    stack.head_weight[:, 3] = torch.nan
    for method in (Autoregressive(), pipeline(stack, 3, 1, "simulated")):
        with pytest.raises(NotFiniteError, match="hold NaN"):
            run(method, stack, PROMPTS[:1])


@pytest.mark.parametrize("prompts", [((5, 6, 7),) * 2, ((5, 6), (7, 8))])
def test_a_pipeline_refuses_a_batch_alike_or_not(deep: Build, prompts: tuple[tuple[int, ...], ...]) -> None:
    """Its cache is the one that its sub-processes see, which has one row."""
    stack = deep()
    storage = torch.zeros(stack.num_layers, 1, 17, 2 * stack.num_kv_heads, stack.head_dim, dtype=stack.dtype)
    with pytest.raises(InputError, match="a pipeline decodes one row; give it one prompt at a time"):
        PipelineSession(stack, storage, 1).prefill(Inputs(prompts))


@pytest.mark.parametrize("spins", [True, False])
def test_answers_to_an_older_round_are_ignored(deep: Build, spins: bool) -> None:
    stack = deep()
    units = SubProcesses(stack, 64, 1, 1, 1, spins, 8.0)
    session = PipelineSession(stack, units.storage, 1)
    session.prefill(Inputs(((5, 6, 7, 0),)))
    units.open()
    for _ in range(50):
        units.post([11], 3, 4)
        units.post([12], 3, 4)
        state = units.wait(0)
        expected = Candidates(stack, units.storage.clone(), 1, range(1)).run([12], 3, 4)
        torch.testing.assert_close(state[0], expected, rtol=1e-10, atol=1e-10)
    assert len(units.times()) == 2
    units.close()
    units.stop()


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_parts_add_up_to_the_round(deep: Build, execution: Execution) -> None:
    stack = deep()
    method = pipeline(stack, 3, 2, execution)
    before = time.perf_counter()
    generation = run(method, stack, [(5, 6)], clock=time.perf_counter)[0]
    wall = time.perf_counter() - before
    for step in generation.steps:
        assert len(step.parts) == len(PARTS)
        assert sum(step.parts) == pytest.approx(step.round_s)
        assert all(part >= 0 for part in step.parts)
    assert sum(step.round_s for step in generation.steps) < wall
    finished = [step.units for step in generation.steps if step.units]
    assert finished
    assert all(0 <= begin < end for units in finished for begin, end in zip(units[::2], units[1::2], strict=True))
    method.close()


def test_trained_heads_choose_the_candidates(deep: Build) -> None:
    """Heads that always predict token 9 match where 9 is emitted and nowhere else; the output stays what it is."""
    stack = deep()
    weights = {3: torch.zeros(stack.vocab_size, 32)}
    plan = Plan(early_layer=3, num_candidates=10)
    method = PredictivePipelinedDecoding(stack, TrainedHeads(weights, stack), plan, "simulated")
    generation = run(method, stack, [(5, 6)])[0]
    assert generation.tokens == run(Autoregressive(), stack, [(5, 6)])[0].tokens
    for token, step in zip(generation.tokens[:-1], generation.steps, strict=False):
        assert step.matched == (token in step.candidates)


def test_a_killed_sub_process_ends_the_run_and_its_siblings(deep: Build) -> None:
    stack = deep(late=0.0)
    method = pipeline(stack, 3, 2)
    run(method, stack, [(5, 6)])
    pids = [process.pid for process in method._units._processes]
    os.kill(pids[0], signal.SIGKILL)
    before = time.monotonic()
    with pytest.raises(WorkerError, match=r"sub-process 1 of 2 died \(exit code -9\).*run the command again"):
        run(method, stack, [(5, 6)])
    assert time.monotonic() - before < 10
    method.close()
    assert not any(alive(pid) for pid in pids)


def test_a_sub_process_without_memory_says_so_in_one_line(
    deep: Build, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """It ended in a traceback. A fork inherits what is patched here."""

    def run_out(*_: object) -> None:
        raise MemoryError("no page left")

    monkeypatch.setattr("methods.ppd.memory.Candidates.run", run_out)
    stack = deep(late=0.0)
    method = pipeline(stack, 3, 2)
    with pytest.raises(WorkerError, match=r"sub-process \d of 2 died \(exit code 1\).*look for a lack of memory"):
        run(method, stack, [(5, 6)])
    method.close()
    said = capfd.readouterr().err
    assert "foretoken: sub-process 1: MemoryError: no page left\n" in said
    assert "Traceback" not in said


def test_a_dead_sub_process_whose_candidate_never_wins_ends_the_run_too(deep: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The likeliest candidate is always right here, so nobody ever waits for the second."""
    monkeypatch.setattr("methods.ppd.units.WATCH_S", 0.0)
    stack = deep(late=0.0)
    method = pipeline(stack, 3, 2)
    assert {step.matched for step in run(method, stack, [(5, 6)])[0].steps} == {True, None}
    os.kill(method._units._processes[1].pid, signal.SIGKILL)
    method._units._processes[1].join()
    with pytest.raises(WorkerError, match="sub-process 2 of 2 died"):
        run(method, stack, [(5, 6)])
    method.close()


def test_a_stopped_sub_process_whose_candidate_never_wins_ends_the_run_too(
    deep: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a second: with 20 ms, the other one was once called silent too, where a machine was slow and busy."""
    monkeypatch.setattr("methods.ppd.units.WATCH_S", 0.001)
    monkeypatch.setattr("methods.ppd.pipeline.ANSWER_S", 1.0)
    stack = deep(late=0.0)
    method = pipeline(stack, 3, 2)
    os.kill(started(method, stack), signal.SIGSTOP)
    with pytest.raises(WorkerError, match="sub-process 2 of 2 has not answered"):
        run_for(60, method, stack)
    method.close()


def run_for(seconds: float, method: PredictivePipelinedDecoding, stack: Stack) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run(method, stack, [(5, 6)] * 20, num_tokens=100)


def started(method: PredictivePipelinedDecoding, stack: Stack) -> int:
    """The second sub-process's number, after one token has been generated to start them."""
    run(method, stack, [(5, 6)], num_tokens=1)
    return method._units._processes[1].pid


def test_processes_with_several_threads_each(deep: Build) -> None:
    """OpenMP's threads do not survive a fork: where processes have more than one, they are spawned."""
    stack, before = deep(dtype=torch.float32, width=256), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        torch.randn(600, 600) @ torch.randn(600, 600)
        method = pipeline(stack, 3, 1)
        prompt = tuple(3 + i % 40 for i in range(60))
        assert outputs(run(method, stack, [prompt], num_tokens=4)) == outputs(
            run(Autoregressive(), stack, [prompt], num_tokens=4)
        )
        method.close()
    finally:
        torch.set_num_threads(before)


def test_a_sub_process_that_hangs_ends_the_run(deep: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for half a second, but only once it runs: on a busy machine it may take longer to begin."""
    stack = deep(late=0.0)
    method = pipeline(stack, 3, 1)
    run(method, stack, [(5, 6)])
    monkeypatch.setattr(method._units, "_answer_s", 0.5)
    (pid,) = [process.pid for process in method._units._processes]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"sub-process 1 of 1 has not answered for 0.5 s"):
        run(method, stack, [(5, 6)])
    method.close()
    assert not alive(pid)


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from conftest import deep_stack
from test_pipeline import pipeline, run
stack = deep_stack()
method = pipeline(stack, 3, 2)
run(method, stack, [(5, 6)])
{running}
print(*[process.pid for process in method._units._processes], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("running", ["", "method._units.open()"])
def test_no_orphan_is_left_when_the_main_process_is_killed(running: str) -> None:
    """Idle, and in the middle of a generation, when sub-processes spin."""
    code = SCRIPT.format(tests=str(Path(__file__).parent), running=running)
    main = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    pids = [int(word) for word in main.stdout.readline().split()]
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    main.kill()
    main.wait()
    main.stdout.close()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_weights_lie_in_memory_once(deep: Build) -> None:
    """A sub-process's own pages are far fewer than the weights it reads."""
    stack = deep(dtype=torch.float32, width=1024)
    size = sum(parameter.numel() * parameter.element_size() for parameter in stack.model.parameters())
    method = pipeline(stack, 3, 1)
    run(method, stack, [(5, 6)])
    rollup = Path(f"/proc/{method._units._processes[0].pid}/smaps_rollup").read_text()
    private_bytes = 1024 * sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    method.close()
    assert size > 150e6
    assert private_bytes < size / 2


def test_what_cannot_work_is_refused(deep: Build, tiny) -> None:
    stack = deep()
    with pytest.raises(InputError, match=r"early layer 2 of 6: below half the depth .* expected 3 to 5"):
        pipeline(stack, 2, 1)
    for layer in (0, 6, 40):
        with pytest.raises(InputError, match=rf"early layer {layer}: the model has 6 layers; expected 3 to 5"):
            pipeline(stack, layer, 1)
    with pytest.raises(InputError, match=r"candidates 49: expected 1 to the vocabulary's 48 tokens"):
        pipeline(stack, 3, 49)
    with pytest.raises(InputError, match=r"model type 't5': PPD splits the layers of decoder-only models"):
        pipeline(stack_for(tiny.build("t5")), 2, 1)
    with pytest.raises(InputError, match="target: PPD decodes with the model that it was made for"):
        run(pipeline(stack, 3, 1), deep(), [(5,)])


def test_more_processes_than_cores_are_told_what_it_costs() -> None:
    assert overload("process", 1, 2) is None
    assert overload("batched", 5, 2) is None
    assert overload("simulated", 5, 1) is None
    assert "4 processes share 2 cores" in (overload("process", 3, 2) or "")
    assert "up to 2.0 times as long" in (overload("process", 3, 2) or "")
    assert (overload("process", 3, 2) or "").endswith("use --execution batched or at most 1 candidates")
    assert (overload("batched", 3, 1) or "").endswith("give it two cores or more"), "one core has room for none of them"
    assert [num_processes(execution, 3) for execution in EXECUTIONS] == [4, 2, 1]
