"""``foretoken heads``: train a head for each of several intermediate layers of any decoder-only model (PPD Section 4)."""

import argparse
from pathlib import Path

from harness.commands.options import DATA_HELP, add_plugin, checked_device, layer_list, model_name, positive, source_of, threads
from harness.experiment import DTYPES, ModelSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def execute(args: argparse.Namespace) -> int:
    import torch

    from harness.models import pin_model
    from harness.zoo import head_jobs
    from tasks import get_training_task

    source = source_of(args.data, args.profile)
    spec = pin_model(ModelSpec(name=model_name(args.target), revision=args.target_revision), args.profile, source)
    job = head_jobs.Job(
        target=spec,
        task=get_training_task(args.task).name,
        source=source,
        layers=head_jobs.checked_layers(spec, args.profile, args.layers),
        training=head_jobs.training_for(args.profile, args.labels, args.limit, source),
        seed=args.seed,
        dtype=args.dtype,
    )
    head_jobs.check_output(args.output, job)
    if args.dry_run:
        print(
            f"would train heads of layers {', '.join(map(str, job.layers))} of {spec.name} ({spec.revision}) in {args.output}"
        )
        print(f"on {args.task} ({source}): {job.training}")
        return 0
    device = checked_device(args.device)
    torch.set_num_threads(args.threads)
    print(head_jobs.train(job, args.output, device))
    print(f"{args.output}")
    return 0
