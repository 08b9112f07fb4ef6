"""Prompts: what is cut to fit, what is refused, and that every example has its own random numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.core.experiment import Experiment, MethodSpec, ModelSpec
from harness.models.loading import LoadedModel, load_model
from harness.models.names import pin_model
from harness.run.prompts import make_prompt, seed_of
from harness.zoo.build import ensure
from tasks import get_task
from tasks.base import Example
from tasks.sources.read import read_examples
from tasks.summarization import SUMMARY_TEMPLATE


@pytest.fixture(scope="module")
def model(zoo_cache: Path) -> LoadedModel:
    ensure(("gpt-target",), "test", "toy", workers=0)
    return load_model(pin_model(ModelSpec(name="zoo:gpt-target"), "test", "toy"))


def experiment(task: str, **changes: object) -> Experiment:
    base = Experiment(task=task, target=ModelSpec(name="zoo:gpt-target"), method=MethodSpec(name="autoregressive"))
    return base.replace(max_new_tokens=8, **changes)


@pytest.mark.parametrize("task_name", ["squad", "cnndm", "text", "wmt-en-de"])
def test_the_longest_field_is_cut_and_the_instruction_stays(model: LoadedModel, task_name: str) -> None:
    task = get_task(task_name)
    for example in read_examples(task, "toy", "test", 4, 0):
        whole = make_prompt(task, example, experiment(task_name), model)
        room = len(whole.tokens) - 6
        cut = make_prompt(task, example, experiment(task_name, max_input_tokens=room), model)
        assert whole.truncated_tokens == 0
        assert len(cut.tokens) <= room
        assert cut.truncated_tokens == len(whole.tokens) - len(cut.tokens) > 0
        decoded = model.decode(cut.tokens).strip()
        if task_name == "text":
            assert example.inputs["prompt"].endswith(decoded), "what the reference goes on with stays"
        else:
            assert decoded.endswith("German:" if task_name == "wmt-en-de" else "### Assistant:")


def test_a_text_that_parts_no_words_is_cut_by_characters(model: LoadedModel) -> None:
    """It used to lose all of its longest field, and was scored on what is left without a word."""
    task = get_task("squad")
    example = Example("a", {"context": "x" * 200, "question": "who is it"}, ("x",))
    whole = make_prompt(task, example, experiment("squad"), model)
    without = make_prompt(task, replace(example, inputs={**example.inputs, "context": ""}), experiment("squad"), model)
    room = (len(whole.tokens) + len(without.tokens)) // 2
    cut = make_prompt(task, example, experiment("squad", max_input_tokens=room), model)
    assert len(without.tokens) + 3 < room - 3 <= len(cut.tokens) <= room


def test_a_template_without_a_field_that_is_too_long_is_refused(model: LoadedModel) -> None:
    task = get_task("squad")
    example = next(iter(read_examples(task, "toy", "test", 1, 0)))
    told = experiment("squad", max_input_tokens=3).replace(prompt_template="one two three four five six seven")
    with pytest.raises(UsageError, match="max_input_tokens 3: the prompt exceeds it and shows no field"):
        make_prompt(task, example, told, model)


def test_what_cannot_fit_is_refused(model: LoadedModel) -> None:
    task = get_task("squad")
    example = next(iter(read_examples(task, "toy", "test", 1, 0)))
    with pytest.raises(UsageError, match="max_input_tokens 3"):
        make_prompt(task, example, experiment("squad", max_input_tokens=3), model)
    with pytest.raises(UsageError, match=r"example 'toy-test-\d+': its prompt of \d+ tokens .* --max-input-tokens"):
        make_prompt(task, example, experiment("squad").replace(max_new_tokens=500), model)


def test_templates_take_the_tasks_fields(model: LoadedModel) -> None:
    task = get_task("squad")
    example = next(iter(read_examples(task, "toy", "test", 1, 0)))
    prompt = make_prompt(task, example, experiment("squad", prompt_template=r"Q: {question}\nA:"), model)
    assert model.decode(prompt.tokens) == f"Q: {example.inputs['question']}\nA:"


def test_a_template_may_not_show_the_answer(model: LoadedModel) -> None:
    """A source that happens to equal its translation is shown by the task's own prompt, and so is no secret."""
    task = get_task("text")
    example = next(iter(read_examples(task, "toy", "test", 1, 0)))
    for template in ("{continuation}", "{prompt} {continuation}"):
        with pytest.raises(UsageError, match=r"prompt_template: field \{continuation\} holds the answer that example"):
            make_prompt(task, example, experiment("text", prompt_template=template), model)
    translation = next(iter(read_examples(get_task("wmt-en-de"), "toy", "test", 1, 0)))
    same = replace(translation, references=(translation.inputs["source"],))
    make_prompt(get_task("wmt-en-de"), same, experiment("wmt-en-de", prompt_template="{source} ="), model)


@pytest.mark.parametrize("name", ["cnndm", "xsum"])
def test_the_prompt_of_optimized_is_the_article_then_summary(model: LoadedModel, name: str) -> None:
    """Where it is cut, the article is."""
    task = get_task(name)
    example = next(iter(read_examples(task, "toy", "test", 1, 0)))
    whole = make_prompt(task, example, experiment(name, prompt_template=SUMMARY_TEMPLATE), model)
    assert model.decode(whole.tokens) == f"{example.inputs['article']}\nSummary:"
    cut = make_prompt(
        task, example, experiment(name, prompt_template=SUMMARY_TEMPLATE, max_input_tokens=len(whole.tokens) - 9), model
    )
    assert model.decode(cut.tokens).endswith("\nSummary:")
    assert example.inputs["article"].startswith(model.decode(cut.tokens).removesuffix("\nSummary:"))


def test_seeds_differ_by_seed_example_and_repeat() -> None:
    base = experiment("text")
    seeds = {seed_of(base.replace(seed=seed), name, repeat) for seed in range(3) for name in "abc" for repeat in range(3)}
    assert len(seeds) == 27
    assert all(0 <= seed < 2**63 for seed in seeds)
