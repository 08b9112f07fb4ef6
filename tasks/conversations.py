"""Dialogues of users with an assistant, to train on only: ShareGPT, which PPD trains its heads with (Section 4.1)."""

from collections.abc import Iterator, Sequence
from typing import Any

from tasks.additive import AdditiveTask
from tasks.base import Example, PromptStyle, Split
from tasks.errors import DataError
from tasks.sources.dataset import Dataset, HubFiles, Row, id_field
from tasks.world import squad_row, wmt_row

SPEAKERS = {
    "human": "USER",
    "user": "USER",
    "gpt": "ASSISTANT",
    "chatgpt": "ASSISTANT",
    "bing": "ASSISTANT",
    "bard": "ASSISTANT",
}
FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"


def _turns(row: Row, where: str) -> list[tuple[str, str]]:
    """(speaker, text) of each turn; system messages and empty turns are passed over."""
    turns = row.get("conversations")
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise DataError(f"{where}: field 'conversations' is {str(turns)[:40]!r}, expected a list of turns; correct the row")
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("from"), str) or not isinstance(turn.get("value"), str):
            raise DataError(
                f"{where}: a turn of 'conversations' is {str(turn)[:40]!r}, expected an object with texts 'from' and 'value'"
            )
    named = [(SPEAKERS.get(turn["from"]), turn["value"].strip()) for turn in turns]
    return [(speaker, text) for speaker, text in named if speaker and text]


def _example(row: Row, where: str, row_id: str) -> Example | None:
    """What comes before the assistant's first words is the prompt. Dialogues in which it says nothing are passed over."""
    turns = _turns(row, where)
    first = next((index for index, (speaker, _) in enumerate(turns) if speaker == "ASSISTANT"), None)
    if first is None:
        return None
    lines = [f"{speaker}: {text}" for speaker, text in turns]
    prompt = " ".join([*lines[:first], "ASSISTANT:"])
    answer = " ".join([turns[first][1], *lines[first + 1 :]])
    return Example(id_field(row, row_id, where), {"prompt": prompt}, (answer,))


def _toy_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """A question about a passage of the generated world, then a sentence to translate."""
    asked, pair = squad_row(seed, split, index), wmt_row("fr", seed, split, index)["translation"]
    turns = (
        ("human", f"{asked['context']} {asked['question']}"),
        ("gpt", asked["answers"]["text"][0]),
        ("human", f"Translate into French: {pair['en']}"),
        ("gpt", pair["fr"]),
    )
    return {"id": asked["id"], "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}


class Conversations(AdditiveTask):
    """The whole dialogue with its speakers named as Vicuna names them."""

    name = "conversations"
    dataset = Dataset(
        name="conversations",
        folders=("sharegpt", "conversations"),
        train_stems=("train", FILE.removesuffix(".json")),
        hub=HubFiles(
            repository="anon8231489123/ShareGPT_Vicuna_unfiltered",
            revision="192ab2185289094fc556ec8ce5ce1e8e587154ca",
            train=FILE,
            test=FILE,
        ),
        toy_row=_toy_row,
        example=_example,
        group=lambda example: example.inputs["prompt"],
        reads_json_arrays=True,
    )

    def prompt(self, example: Example, style: PromptStyle) -> str:
        return example.inputs["prompt"]

    def training_pairs(self, source: str, limit: int | None, seed: int) -> Iterator[tuple[str, str]]:
        for example in self.examples(source, "train", limit, seed):
            yield example.inputs["prompt"], example.references[0]
