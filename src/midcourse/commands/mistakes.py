"""What a mistake of the user looks like: one red line, and what to do next."""

from rich.text import Text

from midcourse.commands.console import errors
from midcourse.commands.show import printable
from midcourse.errors import (
    ChatTemplateError,
    CheckpointError,
    DataError,
    EngineError,
    EnvironmentFault,
    MidcourseError,
    OccupiedError,
    OutputError,
    RunFolderError,
    SettingError,
)

USER_ERROR_STATUS = 2
NEXT_STEPS: dict[type[MidcourseError], str] = {  # the first that fits is shown
    OccupiedError: "`midcourse train FOLDER --resume` goes on with a run; --output names another folder",
    SettingError: "`midcourse init` writes a file with every setting explained; `midcourse list` shows the names",
    RunFolderError: "check the path; a run folder holds config.toml, metrics.jsonl and checkpoints/step_N",
    OutputError: "choose another place with --output; `midcourse doctor` shows the disk",
    DataError: "mend the file at the place that is named (paths start from the folder that the command runs in); "
    "docs/ says what each kind of task file holds",
    CheckpointError: "an older checkpoint of the run may still be whole; `midcourse doctor` shows the disk",
    EngineError: "check that the model or server answers; a stopped run goes on with --resume",
    EnvironmentFault: "check that the environment's backend answers; a stopped run goes on with --resume",
    ChatTemplateError: 'set policy.chat to "chatml", or choose a model whose template only ever appends',
}


def show_mistake(error: MidcourseError) -> None:
    """Print what went wrong and the first advice that fits its kind."""
    message = Text("error: ", style="bold red")
    message.append(printable(str(error)), style="red")
    errors.print(message, soft_wrap=True)
    for kind, advice in NEXT_STEPS.items():
        if isinstance(error, kind):
            errors.print(f"next: {advice}", markup=False, soft_wrap=True)
            break
