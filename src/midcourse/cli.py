"""The `midcourse` command. Thin: each command reads its settings, calls one stage, prints what comes out.

The commands that come before a run stand in commands/preparing.py.
"""

import asyncio
import os
import shlex
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

import midcourse
from midcourse import config as settings
from midcourse.commands import preparing
from midcourse.commands.console import errors, output, print_json, show_warning
from midcourse.commands.loading import load_for_checkpoint, load_settings, run_decoder
from midcourse.commands.mistakes import USER_ERROR_STATUS, show_mistake
from midcourse.commands.options import ConfigArgument, Json, Overrides
from midcourse.commands.progress import progress_bar
from midcourse.commands.scores import score_table
from midcourse.commands.show import printable
from midcourse.commands.stopping import stoppable, unstoppable
from midcourse.errors import MidcourseError
from midcourse.nano.settings import DEMO_UPDATES
from midcourse.training.launch import Launch

EXAMPLES = """
[bold]Start here[/]

  midcourse doctor                                   what this machine offers
  midcourse demo --method rti                        GRPO and RTI side by side on the built-in policy
  midcourse init --nano --method rti > run.toml      a file with every setting explained
  midcourse data                                     data files of the benchmarks: where they are, which versions
  midcourse rollout run.toml --tasks 2 --intervene   look at trajectories, no training
  midcourse audit run.toml                           do corrections follow the hidden evidence?
  midcourse train run.toml --set training.updates=50
  midcourse eval runs/rti-0
  midcourse report runs/rti-0
  midcourse compare runs/demo-rti/grpo-0 runs/rti-0
"""

app = typer.Typer(
    name="midcourse",
    help=f"{midcourse.__doc__}\n{EXAMPLES}",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.command()
def train(
    config: ConfigArgument,
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option("--output", help="Run folder instead of the setting `output`.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in the output folder.")] = False,
    as_json: Json = False,
) -> None:
    """Train a policy as a settings file says, and write the run folder.

    A run that was stopped, by Ctrl-C too, goes on with --resume. It keeps its
    settings; how long it goes on, what is written and scored, and where and how
    fast it runs may be other.

    Several GPUs: torchrun --nproc-per-node N -m midcourse train run.toml

    Examples:

      midcourse train run.toml
      midcourse train run.toml --set seed=1 --output runs/rti-1
      midcourse train runs/rti-0 --resume
    """
    chosen = load_settings(config, overrides, folder)
    given = [part for override in overrides or [] for part in ("--set", override)]
    place = [] if folder is None else ["--output", str(folder)]
    launch = Launch.from_environment()
    command = printable(shlex.join([*launch.command, "train", str(config), *given, *place, "--resume"]))
    if not launch.is_main:
        from midcourse.runs import train_beside

        with unstoppable():
            train_beside(chosen, launch)
        return
    with (
        stoppable(f"stopped; go on with: {command}"),
        progress_bar("updates", chosen.training.updates) as advance,
    ):
        from midcourse.runs import joined_world, train_run

        with joined_world(chosen, launch) as world:
            summary = asyncio.run(train_run(chosen, resume=resume, advance=advance, world=world))
    for name, count in summary["failed"].items():
        errors.print(f"warning: {count} {name} failed; metrics.jsonl says how many of what kind", style="yellow")
    if as_json:
        print_json(summary)
    else:
        if summary["evaluation"]:
            output.print(score_table(f"scores after update {summary['updates']}", summary["evaluation"]))
        output.print(f"run folder: {chosen.output_folder}", markup=False)
        output.print(f"next: midcourse report {chosen.output_folder}", markup=False)


@app.command("eval")
def evaluate(
    run_or_checkpoint: Annotated[Path, typer.Argument(help="Run folder (newest checkpoint) or checkpoints/step_N.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Score a checkpoint: pass@k and pass^k by split and tag, never with an intervention.

    Examples:

      midcourse eval runs/rti-0
      midcourse eval runs/rti-0/checkpoints/step_20 --set evaluation.attempts=8 --json
    """
    from midcourse.runs import evaluate_checkpoint, locate_checkpoint

    checkpoint = locate_checkpoint(run_or_checkpoint)
    chosen = load_for_checkpoint(checkpoint.run, overrides)
    with progress_bar("rollouts", None) as advance:
        result = asyncio.run(
            evaluate_checkpoint(chosen, checkpoint.model, finished=lambda done, total: advance(done, total=total))
        )
    if as_json:
        print_json({"checkpoint": str(checkpoint.step), **result.to_dict()})
        return
    output.print(score_table(str(checkpoint.step), result.to_dict()))


@app.command()
def rollout(
    config: ConfigArgument,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks to roll out, the split's first.")] = 2,
    split: Annotated[str, typer.Option(help="Split of the environment.")] = "train",
    intervene: Annotated[
        bool, typer.Option("--intervene/--no-intervene", help="Collect as the method does, or plain rollouts.")
    ] = True,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Collect trajectories and print them, each token in the colour of who wrote it. Trains nothing, writes nothing.

    Examples:

      midcourse rollout run.toml --tasks 1
      midcourse rollout run.toml --no-intervene --set rollout.temperature=1.0 --json
    """
    chosen = load_settings(config, overrides)
    from midcourse.commands.show import branches_text, group_json, group_lines, legend, reviews_text, rewards_line
    from midcourse.runs import collect_groups

    with progress_bar("tasks", tasks) as advance:
        collected = asyncio.run(
            collect_groups(chosen, num_tasks=tasks, split=split, intervene=intervene, advance=advance)
        )
    if as_json:
        print_json([group_json(group, task.query, collected.chat) for task, group in collected.groups])
        return
    output.print(legend())
    for task, group in collected.groups:
        for line in group_lines(group, task.query, collected.chat):
            output.print(line)
    groups = [group for _, group in collected.groups]
    output.print(rewards_line(groups))
    for told in filter(None, (reviews_text(groups), branches_text(groups))):
        output.print(told, markup=False)


@app.command()
def audit(
    source: Annotated[
        Path, typer.Argument(help="TOML file, run folder (newest checkpoint) or its checkpoints/step_N.")
    ],
    tasks: Annotated[int, typer.Option(min=1, help="Tasks, the split's first that could have other evidence.")] = 16,
    attempts: Annotated[int, typer.Option(min=1, help="Intervened rollouts a task.")] = 4,
    split: Annotated[str, typer.Option(help="Split of the environment.")] = "train",
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Ask whether corrections follow the hidden evidence, not the history. Trains nothing.

    The leak check lets a correction pick the right one of several candidates
    that the policy can see. So every step of intervened rollouts is corrected
    twice: with its own evidence, and with other evidence that fits the query too
    (another place of the same name).

    A corrector that reasons from the history writes the same both times; one that
    reads the answer off follows the evidence. Read the share of those among the
    corrected steps: the lower, the better. The environment's script, whose
    corrections hold what can be seen alone, follows never.

    Examples:

      midcourse audit run.toml --tasks 8
      midcourse audit runs/rti-0 --split test --json
      midcourse audit run.toml --set method.roles.played_by=scripted
    """
    from midcourse.commands.audit import audit_json, audit_lines
    from midcourse.runs import audit_leaks, locate_checkpoint, with_weights

    if os.path.isdir(source):
        checkpoint = locate_checkpoint(source)
        chosen = with_weights(load_for_checkpoint(checkpoint.run, overrides), checkpoint.model)
    else:
        chosen = load_settings(source, overrides)
    with progress_bar("audit", tasks) as advance:
        found = asyncio.run(audit_leaks(chosen, num_tasks=tasks, attempts=attempts, split=split, advance=advance))
    if as_json:
        print_json(audit_json(found.audit, found.chat))
        return
    for line in audit_lines(found.audit, found.chat):
        output.print(line)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    folder: Annotated[Path, typer.Option("--output", help="Folder for report and plots.")] = Path("runs/comparison"),
    as_json: Json = False,
) -> None:
    """Put runs side by side: scores, what an update costs by role, and the plots of evaluation and interventions.

    Costs are given as multiples of the first GRPO run's, else of the first run's.

    Example:

      midcourse compare runs/grpo-0 runs/rti-0 --output runs/comparison
    """
    from midcourse.evaluation.compare import compare_runs
    from midcourse.evaluation.markdown import visible
    from midcourse.evaluation.report import write_report

    comparison = compare_runs(runs)
    path = write_report(runs, folder, decode=run_decoder(runs[0]))
    if as_json:
        print_json(comparison.to_dict())
    else:
        print(comparison.table(escape=visible))
        if branches := comparison.branch_table(escape=visible):
            print(f"\n{branches}")
        print(f"\n{comparison.cost_tables(escape=visible)}\n")
        print(f"report with plots: {path}")


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Run folder.")], as_json: Json = False) -> None:
    """Write report.md and its plots into a run folder.

    Example:

      midcourse report runs/rti-0
    """
    from midcourse.evaluation.report import write_report

    path = write_report(run, decode=run_decoder(run))
    if as_json:
        print_json({"report": str(path)})
    else:
        print(f"report: {path}")


app.command()(preparing.init)
app.command("list")(preparing.list_names)
app.command()(preparing.data)


@app.command()
def export(
    path: Annotated[str, typer.Argument(help="Run folder (newest checkpoint), checkpoints/step_N, or a policy.path.")],
    folder: Annotated[Path, typer.Option("--output", help="Folder to be made.")],
    in_bfloat16: Annotated[bool, typer.Option("--bfloat16", help="Round to half the size of float32.")] = False,
    merge: Annotated[bool, typer.Option("--merge", help="Add an adapter to its base; else it stays one.")] = False,
) -> None:
    """Write a model as an ordinary Hugging Face folder, which loads in seconds.

    What a run trained gets a model card with the run's settings, and with the
    scores of these weights if there are any. A GGUF file is unpacked, which takes
    a minute or more.

    Examples:

      midcourse export gemma-3-270m-q4_k_m.gguf --output models/gemma-3-270m
      midcourse export runs/rti-0 --output models/rti
      midcourse export runs/rti-0/checkpoints/step_50 --merge --output models/merged
    """
    from midcourse.commands.export import export_model

    export_model(path, folder, in_bfloat16=in_bfloat16, merge=merge)
    output.print(f"written: {folder}; policy.path may name it", markup=False)


app.command()(preparing.doctor)


@app.command()
def demo(
    method: Annotated[str, typer.Option(help="Method that runs beside GRPO.")] = settings.DEFAULT_METHOD,
    seed: Annotated[int, typer.Option(min=0, help="Seed of both runs.")] = 0,
    updates: Annotated[int, typer.Option(min=1, help="Updates of both runs.")] = DEMO_UPDATES,
    folder: Annotated[
        Path | None,
        typer.Option("--output", help="Folder of runs and report; runs there go on.", show_default="runs/demo-METHOD"),
    ] = None,
) -> None:
    """Train the built-in policy with GRPO and with another method, side by side; the last line is one JSON object.

    Example:

      midcourse demo --method rti
    """
    settings.default_config(method)  # a wrong name ends here, before anything is started
    from midcourse.nano.demo import run_demo

    # Methods are shown on different worlds: in one folder the second demo would find the first one's GRPO run.
    run_demo(method, seed=seed, updates=updates, output=folder or Path(f"runs/demo-{method}"))


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version.

    Example:

      midcourse version
    """
    if as_json:
        print_json({"version": midcourse.__version__})
    else:
        output.print(midcourse.__version__)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; a mistake of the user is one red line and what to do next, status 2."""
    # The bars of model loading and saving would break ours.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no model's word may end a run on a narrow terminal
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            app(arguments)
    except MidcourseError as error:
        show_mistake(error)
        sys.exit(USER_ERROR_STATUS)


if __name__ == "__main__":
    main()
