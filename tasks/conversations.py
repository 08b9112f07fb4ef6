"""ShareGPT, dialogues with an assistant. Only for training: PPD trains its heads on it (Section 4.1)."""

from collections.abc import Sequence

from tasks.base import DataError, Dataset, Example, HubFiles, PromptStyle, Row, Task, id_field

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
    """Return (speaker, text) of each turn, without system messages and empty turns."""
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
    """Prompt with everything before the assistant's first words. None for a dialogue in which it says nothing."""
    turns = _turns(row, where)
    first = next((index for index, (speaker, _) in enumerate(turns) if speaker == "ASSISTANT"), None)
    if first is None:
        return None
    lines = [f"{speaker}: {text}" for speaker, text in turns]
    prompt = " ".join([*lines[:first], "ASSISTANT:"])
    answer = " ".join([turns[first][1], *lines[first + 1 :]])
    return Example(id_field(row, row_id, where), {"prompt": prompt}, (answer,))


class Conversations(Task):
    """Whole dialogues whose speakers are named as Vicuna names them. There is no metric."""

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
        toy_row="conversations",
        example=_example,
        group=lambda example: example.inputs["prompt"],
        fields=("id", "conversations"),
        reads_json_arrays=True,
    )

    def prompt(self, example: Example, style: PromptStyle) -> str:
        return example.inputs["prompt"]
