"""The flags of the commands. Imports nothing heavy, so that help and refusals come at once."""

import argparse
from pathlib import Path

from harness.cli.options import DATA_HELP, add_catalogue, add_engine, add_plugin, layer_list, positive, threads
from harness.core.experiment import DTYPES
from harness.core.settings import RESULTS

KERNEL_NAMES = ("transformers", "baseline", "exact", "sigmoid", "sigmoid-released", "fused")
GENERATIONS = 4


def table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=int, help="as in the catalogue: `foretoken tables` lists them")
    parser.add_argument("--reproduce", action="store_true", help="run what is missing first")
    add_catalogue(parser)
    add_engine(parser)


def figure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="as in the catalogue, such as leviathan-2")
    parser.add_argument("--reproduce", action="store_true", help="run what is missing first")
    add_catalogue(parser)
    add_engine(parser)


def tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    add_catalogue(parser)


def show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", help="a record file, optionally with :N for its N-th record (counted from 1)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page instead of printing")


def zoo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="which models (default: all)")
    parser.add_argument("--scale", choices=("toy", "test", "small", "paper"), default="toy", help="sizes (default: toy)")
    parser.add_argument("--data", metavar="SOURCE", help=f"what to train on: {DATA_HELP}")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained and what is cached")


def heads(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Heads of the zoo's own model are trained by `foretoken zoo llama-deep-heads`; those of a Hub model or a folder "
        "(profiles small and paper) by this command, whose output folder --heads then names."
    )
    add = parser.add_argument
    add("--target", required=True, metavar="MODEL", help="a local folder, a Hub id, or zoo:NAME; stays as it is")
    add("--target-revision", metavar="COMMIT", help="pins a Hub id")
    add("--task", default="conversations", help="whose training split to learn from (default: conversations, as the paper)")
    add("--data", metavar="SOURCE", help=DATA_HELP)
    add(
        "--layers",
        type=layer_list("--layers"),
        metavar="L,L,...",
        help="default: the paper's fractions of depth, 10,20,30,35,37 of 40",
    )
    add("--labels", help="the text's next tokens (next) or the final layer's choices (final); default: paper next, toy final")
    add("--profile", choices=("toy", "paper"), default="toy", help="hyper-parameters: paper is PPD Table 4 (default: toy)")
    add("--limit", type=positive("--limit"), metavar="N", help="how many documents (default: toy 2000; paper all of them)")
    add("--output", type=Path, required=True, metavar="FOLDER", help="for heads.safetensors and recipe.json; resumed if killed")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--dtype", choices=DTYPES, default="float32", help="of the frozen model; heads are trained in fp32 (default: float32)")
    add("--threads", type=threads, default=1, help="CPU threads; other numbers round otherwise (default: 1)")
    add("--seed", type=int, default=0, help="of data order (default: 0)")
    add("--dry-run", action="store_true", help="say what would be trained")
    add_plugin(parser)


def bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("loops", "kernels"), default="loops", help="what is timed (default: loops)")
    parser.add_argument("--data", metavar="SOURCE", help=f"what the zoo is trained and prompted on: {DATA_HELP}")
    parser.add_argument("--profile", choices=("toy", "test"), default="toy", help="sizes of the zoo (default: toy)")
    parser.add_argument("--only", choices=("gpt", "llama", "t5"), help="one family of models")
    parser.add_argument("--gamma", type=positive("--gamma"), default=5, help="drafted tokens a round (default: 5)")
    parser.add_argument("--prompts", type=positive("--prompts"), default=12, help="how many (default: 12)")
    parser.add_argument("--repeats", type=positive("--repeats"), default=3, help="of each prompt (default: 3)")
    parser.add_argument("--tokens", type=positive("--tokens"), default=64, help="generated a prompt, at most (default: 64)")
    parser.add_argument("--examples", type=positive("--examples"), default=1000, help="of the memory check (default: 1000)")
    parser.add_argument("--threads", type=threads, help="CPU threads of torch (default: all cores)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be timed, and which models are cached")
    parser.add_argument("--records", type=Path, default=RESULTS / "records", metavar="FOLDER", help="where records are kept")
    parser.add_argument("--again", action="store_true", help="record anew what was refused because the machine's speed drifted")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    _kernels(parser.add_argument_group("kernels only (--gamma, --repeats and --threads count there too)"))


def _kernels(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--batch", type=positive("--batch"), nargs="+", default=[1], help="rows of a batch (default: 1)")
    group.add_argument(
        "--vocab", type=positive("--vocab"), nargs="+", default=[32000, 151936], help="vocabularies (default: 32000 151936)"
    )
    group.add_argument(
        "--acceptance",
        nargs="+",
        default=["0.7", "0.8", "all"],
        help='sum of min(p, q) of the models, or "all" where every draft stands (default: 0.7 0.8 all)',
    )
    group.add_argument("--kernels", nargs="+", choices=KERNEL_NAMES, default=list(KERNEL_NAMES), help="default: all")
    group.add_argument("--rows", type=positive("--rows"), default=300, help="random rounds of a kernel's check (default: 300)")
    group.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    group.add_argument("--cold", action="store_true", help="sweep the caches near the cores before each call (CPU only)")
    group.add_argument("--dtype", choices=DTYPES, default="float32", help="of the logits (default: float32)")


def regress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--update", metavar="REASON", help="rewrite the baselines; the reason goes into CHANGELOG.md")
    parser.add_argument("--baselines", type=Path, default=RESULTS / "baselines", metavar="FOLDER", help="the committed numbers")
    parser.add_argument(
        "--changelog", type=Path, default=Path("CHANGELOG.md"), metavar="FILE", help="where --update writes why"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def audit(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--scale", choices=("toy", "test"), default="toy", help="which zoo is audited (default: toy)")
    add("--target", metavar="MODEL", help="audit your own pair instead: a folder or a Hub id; with --draft")
    add("--draft", metavar="MODEL", help="what drafts for it")
    add("--task", default="text", help="whose prompts your own pair is given (default: text)")
    add("--data", metavar="SOURCE", default="toy", help='"toy", "hub", a folder or a file (default: toy)')
    add("--only", metavar="WORDS", help="subjects whose name holds these words; writes no report")
    add("--samples", type=positive("--samples"), metavar="N", help="sampled outputs a subject; more find smaller faults")
    add("--prompts", type=positive("--prompts"), metavar="N", help="greedy outputs a subject")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--dtype", choices=DTYPES, default="float32", help="weights and arithmetic (default: float32)")
    workers = "processes, each with its own models (default: one per core; on a GPU this one alone)"
    add("--workers", type=positive("--workers"), metavar="N", help=workers)
    add("--seed", type=int, default=0, help="of prompts and sampling (default: 0)")
    add("--output", type=Path, default=RESULTS / "audit", metavar="FOLDER", help="where the report is written")
    add("--records", type=Path, default=RESULTS / "records", metavar="FOLDER", help="where records and findings are kept")
    add("--quiet", action="store_true", help="no progress bar")
    add("--dry-run", action="store_true", help="list what would be audited, and audit nothing")
    add_plugin(parser)


def compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("baseline", type=Path, metavar="A", help="a record file: the baseline")
    parser.add_argument("method", type=Path, metavar="B", help="a record file: what is compared with it")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    add_plugin(parser)


def acceptance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORDS", help="record files of runs that drafted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as one JSON document as well")


def report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where tables/ and figures/ lie")
    parser.add_argument("--records", type=Path, default=RESULTS / "records", metavar="FOLDER", help="where records are kept")
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "report", metavar="FOLDER", help="the site; replaced as a whole"
    )
    parser.add_argument(
        "--generations",
        type=positive("--generations"),
        default=GENERATIONS,
        metavar="N",
        help="generations shown an experiment",
    )
    add_plugin(parser)


def ledger(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", type=Path, default=RESULTS / "tables", metavar="FOLDER", help="tables as JSON files")
    parser.add_argument("--output", type=Path, default=RESULTS / "ledger.csv", metavar="FILE", help="the file to write")
    add_plugin(parser)


def plugins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="Python files to look at beside the installed packages")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")


def check_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="NAME-or-FILE", help="a Python file, a package, NAME, or KIND:NAME (rule:exact)")
