"""Captured outputs of others' decoders, honest and not, each with its verdict; what cannot be compared is refused."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captured_pairs import DRAFT, TARGET, assisted, lines, load, plainly, prompts_of, speculatively, write

from harness.cli.main import main

PROMPTS, SAMPLED_PROMPTS, SAMPLES, NEW = 24, 12, 16, 10
FEW = 5 * SAMPLES  # sampled outputs that are replayed: fewer are enough where the target says what is right
Lines = list[dict[str, Any]]


class Makers:
    """Decoders of the committed pair, each returning the lines of a capture."""

    def __init__(self) -> None:
        self.target, self.draft, self.half = load(TARGET), load(DRAFT), load(TARGET, torch.bfloat16)
        self.prompts = prompts_of(PROMPTS)
        self.sampled_prompts = self.prompts[:SAMPLED_PROMPTS]
        self.many = self.sampled_prompts.repeat_interleave(SAMPLES, 0)

    def greedy(self, outputs: torch.Tensor, **more: Any) -> Lines:
        return lines(self.prompts, outputs, 0.0, [0] * PROMPTS, **more)

    def sampled(self, outputs: torch.Tensor, **more: Any) -> Lines:
        return lines(self.many, outputs, 1.0, range(len(self.many)), **more)

    def plain_greedy(self, new: int = 30) -> Lines:
        return self.greedy(plainly(self.target, self.prompts, new))

    def plain_sampled(self, seed: int) -> Lines:
        return self.sampled(plainly(self.target, self.many, NEW, torch.Generator().manual_seed(seed)))

    def speculative_sampled(self, seed: int, stale: bool = False) -> Lines:
        generator = torch.Generator().manual_seed(seed)
        return self.sampled(speculatively((self.target, self.draft), self.many, NEW, generator, stale))


@pytest.fixture(scope="module")
def makers() -> Makers:
    return Makers()


@pytest.fixture(scope="module")
def plain(makers: Makers) -> dict[str, Lines]:
    return {"greedy": makers.plain_greedy(), "sampled": makers.plain_sampled(1), "control": makers.plain_sampled(2)}


@pytest.fixture
def audit(tmp_path: Path, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(*arms: Lines, target: bool | Path = False) -> tuple[int, dict[str, Any]]:
        names = ("plain", "speculative", "control")
        files = [f"--captured={write(tmp_path / f'{name}.jsonl', arm)}" for name, arm in zip(names, arms, strict=False)]
        capsys.readouterr()
        status = main(["audit", *files, "--json", *(["--target", str(TARGET if target is True else target)] if target else [])])
        said = capsys.readouterr()
        assert status < 2, said.err
        document = json.loads(said.out)
        assert document["passed"] == (status == 0)
        [found] = document["settings"]
        return status, found

    return run


Audit = Callable[..., tuple[int, dict[str, Any]]]


def test_assisted_generation_is_identical(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    few = makers.prompts[:3]
    ours = lines(few, assisted((makers.target, makers.draft), few, 30), 0.0, [0] * 3)
    for target in (False, True):
        status, found = audit(plain["greedy"][:3], ours, plain["greedy"][:3], target=target)
        assert (status, found["verdict"]) == (0, "identical"), found


def test_a_stale_cache_is_a_bug(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    ours = makers.greedy(speculatively((makers.target, makers.draft), makers.prompts, 30, stale=True))
    status, found = audit(plain["greedy"], ours, plain["greedy"])
    assert (status, found["verdict"], found["control_parted"]) == (1, "bug", 0), found
    status, found = audit(plain["greedy"], ours)
    assert (status, found["verdict"]) == (1, "unknown")
    assert "the control is missing" in found["note"]
    status, found = audit(plain["greedy"], ours, target=True)
    assert (status, found["verdict"], found["plain_dtype"]) == (1, "bug", "float32"), found


def test_another_dtype_is_a_near_tie_that_is_named(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    ours = makers.greedy(plainly(makers.half, makers.prompts, 30))
    status, found = audit(plain["greedy"], ours, plain["greedy"])
    assert (status, found["verdict"]) == (1, "unresolved"), found
    status, found = audit(plain["greedy"], ours, plain["greedy"], target=True)
    assert (status, found["verdict"], found["speculative_dtype"]) == (0, "near-tie", "bfloat16"), found
    assert "another dtype" in found["note"]


def test_a_control_that_parts_as_often_explains(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    half = makers.greedy(plainly(makers.half, makers.prompts, 30))
    status, found = audit(half, plain["greedy"], plain["greedy"])  # both part from plain wherever rounding has moved it
    assert (status, found["verdict"]) == (0, "no difference found"), found
    assert found["parted"] == found["control_parted"] > 0


def test_an_output_that_ends_early_is_no_near_tie(plain: dict[str, Lines], audit: Audit) -> None:
    ours = [{**line, "tokens": line["tokens"][:-5]} for line in plain["greedy"]]
    status, found = audit(plain["greedy"], ours, target=True)
    assert (status, found["verdict"]) == (1, "bug"), found


@pytest.mark.parametrize("goes_on", [False, True])
def test_tokens_behind_an_end_of_text_are_no_near_tie(
    plain: dict[str, Lines], audit: Audit, tmp_path: Path, goes_on: bool
) -> None:
    """Fault: they were cut off before anybody looked, and drafts that an engine kept behind its stop were "near-tie".

    The target's end of text is made a token that it often emits. Where plain goes on there too, nothing is read behind it.
    """
    emitted = [line["tokens"] for line in plain["greedy"]]
    end = Counter(token for tokens in emitted for token in set(tokens[3:-3])).most_common(1)[0][0]
    target = shutil.copytree(TARGET, tmp_path / "target")
    for name in ("config.json", "generation_config.json"):
        known = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps(known | {"eos_token_id": end}))
    ends = [tokens.index(end) + 1 if end in tokens else len(tokens) for tokens in emitted]
    assert sum(place < len(tokens) for place, tokens in zip(ends, emitted, strict=True)) > 5
    cut = [{**line, "tokens": line["tokens"][:place]} for line, place in zip(plain["greedy"], ends, strict=True)]
    further = [
        {**line, "tokens": [*line["tokens"][:place], *([7, 8] if place < len(line["tokens"]) else [])]}
        for line, place in zip(plain["greedy"], ends, strict=True)
    ]
    status, found = audit(plain["greedy"] if goes_on else cut, further, target=target)
    assert (status, found["verdict"]) == (1, "unresolved" if goes_on else "bug"), found
    assert ("were not read" if goes_on else "behind an end of text") in found["note"]


def test_speculative_sampling_has_the_same_law(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    ours = makers.speculative_sampled(3)
    status, found = audit(plain["sampled"], ours, plain["control"])
    assert (status, found["verdict"]) == (0, "no difference found"), found
    status, found = audit(plain["sampled"][:FEW], ours[:FEW], target=True)
    assert (status, found["verdict"]) == (0, "no difference found"), found
    assert found["replayed"]["missed_tv"] < 0.2


def test_a_stale_cache_is_a_bias(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    ours = makers.speculative_sampled(3, stale=True)
    status, found = audit(plain["sampled"], ours, plain["control"])
    assert (status, found["verdict"]) == (1, "biased"), found
    status, found = audit(plain["sampled"][:FEW], ours[:FEW], target=True)
    assert (status, found["verdict"]) == (1, "biased")
    assert "tokens do not have llama-target's law" in found["note"]
    status, found = audit(plain["sampled"], ours, ours)  # plain itself drifts: then nothing can be said
    assert (status, found["verdict"]) == (1, "unknown")


def test_greedy_under_a_sampling_flag(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    ours = makers.sampled(plainly(makers.target, makers.sampled_prompts, NEW).repeat_interleave(SAMPLES, 0))
    for size, target in ((None, False), (FEW, True)):
        status, found = audit(plain["sampled"][:size], ours[:size], plain["control"][:size], target=target)
        assert (status, found["verdict"]) == (1, "biased")
        assert "it decodes greedily (" in found["note"]


def test_greedy_decoding_shows_in_one_output_a_prompt(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    """All prompts by one seed: no outputs of different seeds to compare, and no test of laws; the target alone can tell."""
    one_seed = [{**line, "seed": 0} for line in plain["sampled"][::SAMPLES]]
    outputs = plainly(makers.target, makers.sampled_prompts, NEW)
    ours = lines(makers.sampled_prompts, outputs, 1.0, [0] * SAMPLED_PROMPTS)
    status, found = audit(one_seed, ours, target=True)
    assert (status, found["verdict"]) == (1, "biased"), found
    assert "it decodes greedily" in found["note"]


def test_few_seeds_for_all_prompts_decide_nothing(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    """Six seeds serve all prompts: what differs so may be chance, since their outputs share random numbers."""
    stale = makers.speculative_sampled(3, stale=True)
    few = [
        [{**line, "seed": line["seed"] % SAMPLES} for line in arm if line["seed"] % SAMPLES < 6]
        for arm in (plain["sampled"], stale)
    ]
    status, found = audit(*few)
    assert (status, found["verdict"]) == (1, "not tested"), found
    assert "record 8 or more" in found["note"]


def test_a_token_outside_of_the_filter_is_a_bug(makers: Makers, audit: Audit) -> None:
    """Both state top-k 2, and speculative draws without it."""
    many = makers.many[:FEW]
    arms = [
        lines(many, plainly(makers.target, many, NEW, torch.Generator().manual_seed(seed), top_k), 1.0, range(FEW), top_k=2)
        for seed, top_k in ((1, 2), (2, 2), (3, None))
    ]
    status, found = audit(arms[0], arms[1], target=True)
    assert (status, found["verdict"]) == (0, "no difference found"), found
    status, found = audit(arms[0], arms[2], target=True)
    assert (status, found["verdict"]) == (1, "bug"), found
    assert "outside of what temperature 1, top-k 2 leaves" in found["note"]


def test_one_draw_for_every_seed(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    once = plainly(makers.target, makers.sampled_prompts, NEW, torch.Generator().manual_seed(9))
    ours = makers.sampled(once.repeat_interleave(SAMPLES, 0))
    for size, cause in ((None, "one draw is repeated"), (FEW, "it ignores the seed, one draw is repeated")):
        status, found = audit(plain["sampled"][:size], ours[:size], plain["control"][:size], target=size is not None)
        assert (status, found["verdict"]) == (1, "biased")
        assert cause in found["note"]


def test_a_seed_that_is_not_kept(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    twice = [{**line, "seed": line["seed"] // 2} for line in plain["sampled"]]
    again = [{**first, "seed": first["seed"] // 2} for first in plain["sampled"][::2] for _ in range(2)]
    status, found = audit(again, twice, again)
    assert (status, found["verdict"]) == (1, "bug"), found
    assert "the seed is ignored" in found["note"]


def test_a_sampler_that_draws_the_same_is_identical(plain: dict[str, Lines], audit: Audit) -> None:
    status, found = audit(plain["sampled"], plain["sampled"])
    assert (status, found["verdict"]) == (0, "identical")


def test_few_outputs_are_not_tested(plain: dict[str, Lines], audit: Audit) -> None:
    status, found = audit(plain["sampled"][:SAMPLES], plain["control"][:SAMPLES])
    assert (status, found["verdict"]) == (1, "not tested")
    assert "too few to find a total variation of 0.2" in found["note"]


def test_another_model_explains_nothing(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    """A target that is not what ran: its replay is left out, and the control decides."""
    drafts = makers.greedy(plainly(makers.draft, makers.prompts, 30))
    status, found = audit(drafts, drafts, drafts, target=True)
    assert (status, found["verdict"]) == (0, "identical")
    assert "does not explain plain either" in found["note"]


ONE = {"prompt": "a", "text": "b", "temperature": 1, "seed": 1}


@pytest.mark.parametrize(
    ("plain", "speculative", "expected"),
    [
        ([ONE], [ONE | {"prompt": "c"}], "prompt 'a' is not in speculative b.jsonl; record the same prompts"),
        (
            [ONE],
            [ONE | {"temperature": 0.5}],
            "temperature 1 of prompt 'a' is not in speculative b.jsonl, which has temperature 0.5",
        ),
        ([ONE], [ONE | {"seed": 2}], "seed 1 of prompt 'a' is not in speculative b.jsonl; record both with the same seeds"),
        ([ONE, ONE], [ONE], "has 2 outputs by temperature 1 in the first and 1 in the second"),
        ([ONE], [ONE | {"max_tokens": 5}], "max_tokens 5"),
        (
            [ONE],
            [{"prompt": "a", "tokens": [1], "temperature": 1, "seed": 1}],
            "token ids in some lines and as a text in others",
        ),
        ([ONE], [{"prompt": "a", "text": "b"}], "b.jsonl, line 1: no temperature"),
        ([ONE], [{"prompt": "a", "temperature": 1}], "no output; expected token ids"),
        ([ONE], [{"text": "a", "temperature": 1}], "no prompt"),
        ([ONE], [ONE | {"tokens": [1, -2]}], "tokens: -2, expected a list of token ids"),
        ([ONE], [ONE | {"top_p": 3}], "top_p 3.0"),
        ([ONE], [ONE | {"seed": "x"}], "seed 'x': expected an integer"),
        ([ONE], ["x"], "line 1: str instead of an object"),
        ([ONE], [], "it has no output"),
    ],
)
def test_what_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture, plain: Lines, speculative: Lines, expected: str
) -> None:
    files = [write(tmp_path / name, rows) for name, rows in (("a.jsonl", plain), ("b.jsonl", speculative))]
    assert main(["audit", *(f"--captured={file}" for file in files)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected in line


def test_names_of_engines_and_nested_settings_are_read(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    first = {
        "prompt_token_ids": [1, 2],
        "output_token_ids": [3],
        "sampling_params": {"temperature": 0, "top_p": 1.0, "top_k": -1},
    }
    first["sampling_params"]["max_tokens"] = 1
    second = {"prompt": [1, 2], "output": [3], "do_sample": False, "max_new_tokens": 1}
    files = [write(tmp_path / name, [row]) for name, row in (("a.jsonl", first), ("b.jsonl", second))]
    assert main(["audit", *(f"--captured={file}" for file in files)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "passed, token ids compared: identical"


@pytest.mark.parametrize(("without", "compared"), [((), "token ids"), (("b",), "texts"), (("a", "b"), "texts")])
def test_it_is_said_whether_ids_or_texts_were_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture, without: tuple[str, ...], compared: str
) -> None:
    """In every line that holds a verdict, and in JSON. Fault: equal texts are taken for equal tokens."""
    row = {"prompt": "Once", "text": " upon", "temperature": 0}
    files = [write(tmp_path / f"{name}.jsonl", [row | ({} if name in without else {"tokens": [3]})]) for name in ("a", "b")]
    words = ["audit", *(f"--captured={file}" for file in files)]
    assert main(words) == 0
    *_, line, setting, last = capsys.readouterr().out.splitlines()
    names = ", ".join(f"{name}.jsonl" for name in without)
    reason = f"; not all outputs of {names} have token ids, in which equal texts may differ" if without else ""
    assert line == f"compared: {compared}{reason}"
    assert f" outputs an arm, {compared}): identical" in setting
    assert last == f"passed, {compared} compared: identical"
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["compared"], document["without_ids"]) == (compared, [f"{name}.jsonl" for name in without])


def test_a_token_that_the_target_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = write(tmp_path / "a.jsonl", [{"prompt": [5], "tokens": [99999], "temperature": 0}])
    assert main(["audit", f"--captured={file}", f"--captured={file}", "--target", str(TARGET)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "captured plain, line 1: token 99999; target" in line


def short(prompts: int, seeds: tuple[int, ...], seed: int) -> Lines:
    """Outputs of one token, by a sampler that gives all prompts of a seed the same random number."""
    numbers = torch.rand(len(seeds), generator=torch.Generator().manual_seed(seed)).tolist()
    return [
        {"prompt": f"question {prompt}", "text": "no" if number < 0.5 else "yes", "seed": own, "temperature": 1.0}
        for prompt in range(prompts)
        for own, number in zip(seeds, numbers, strict=True)
    ]


def test_short_outputs_of_few_shared_seeds_are_not_called_biased(audit: Audit) -> None:
    """Two honest arms: whether two seeds agree decides it for all prompts at once, which is one chance and not 40."""
    for trial in range(12):
        _, found = audit(short(40, (1, 2), trial), short(40, (1, 2), 100 + trial))
        assert found["verdict"] not in ("biased", "bug", "unknown"), (trial, found)


def tied(is_inverted: bool, seed: int) -> Lines:
    """Outputs of three words: the last is told by the first, so that the inverted law has none of the plain law's outputs."""
    firsts = torch.randint(2, (400,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [
        {"prompt": "go", "text": f"{'ab'[one]} c {'de'[one ^ is_inverted]}", "seed": own, "temperature": 1.0}
        for own, one in enumerate(firsts)
    ]


def test_laws_that_counts_do_not_tell_apart_are_not_called_one(audit: Audit) -> None:
    """First words, words, neighbours and lengths have one law, outputs none in common: a total variation of 1."""
    plain, ours = tied(False, 1), tied(True, 2)
    assert not {one["text"] for one in plain} & {one["text"] for one in ours}
    status, found = audit(plain, ours, tied(False, 3))
    assert (status, found["verdict"]) == (0, "no difference found"), found
    assert "found would be a tv in what is counted of: first words 0." in found["note"]


def test_a_stated_dtype_is_believed(makers: Makers, plain: dict[str, Lines], audit: Audit) -> None:
    """What float32 does not explain is a bug of an arm that says it ran in float32, though bfloat16 would explain it."""
    ours = [{**line, "dtype": "float32"} for line in makers.greedy(plainly(makers.half, makers.prompts, 30))]
    status, found = audit(plain["greedy"], ours, plain["greedy"], target=True)
    assert (status, found["verdict"]) == (1, "bug"), found


def test_empty_outputs_show_nothing(audit: Audit) -> None:
    empty = [{"prompt": f"question {number}", "text": "", "seed": 0, "temperature": 0.0} for number in range(20)]
    status, found = audit(empty, empty)
    assert (status, found["verdict"]) == (1, "not tested"), found


@pytest.mark.parametrize("setting", [{"temperature": True}, {"temperature": 10**400}, {"temperature": 1.0, "top_k": 1.5}])
def test_settings_that_are_no_such_numbers_are_refused(
    setting: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    line = {"prompt": "question", "text": "yes", "seed": 0, **setting}
    path = write(tmp_path / "plain.jsonl", [line])
    assert main(["audit", f"--captured={path}", f"--captured={path}"]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert next(reversed(setting)) in said
    assert "expected a" in said
