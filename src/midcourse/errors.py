"""The error tree. The user's mistakes are ConfigError or DataError; what breaks during a rollout is a RolloutError.

MidcourseError
|- ConfigError (ValueError)    a setting is wrong, unknown or not used by the chosen method
|  |- SettingError             of a settings file, or a name or a value in it: a list of settings helps
|  `- OccupiedError            the output folder holds another run, or another process writes it
|- DataError (ValueError)      a file that was given cannot be used
|  |- RunFolderError           it is, or stands in, a run folder
|  `- OutputError              it cannot be written
|- CheckpointError             a checkpoint cannot be written or read
|- TrainingError               training cannot go on
|- EngineError                 who writes tokens did not answer, or the answer cannot be used
|  `- EngineTimeoutError
|- EnvironmentFault            the world broke (a bad tool call is no fault: it goes back to the policy)
|  `- ReplayMismatchError      the world did not answer as it had: it cannot be forked by replay
`- ChatTemplateError           a chat template cannot be used token-in token-out
"""


class MidcourseError(Exception):
    """Everything that midcourse raises on purpose."""


class ConfigError(MidcourseError, ValueError):
    """A setting is wrong, unknown, or not used by what was chosen."""


class SettingError(ConfigError):
    """A settings file cannot be read, or a name or a value in it is none: a list of settings helps."""


class OccupiedError(ConfigError):
    """The output folder holds a run that is not this one, or another process writes it."""


class DataError(MidcourseError, ValueError):
    """A file that was given cannot be used."""


class RunFolderError(DataError):
    """A folder is no run folder, or what stands in it cannot be used."""


class OutputError(DataError):
    """A file or folder cannot be written."""


class CheckpointError(MidcourseError):
    """A checkpoint cannot be written or read."""


class TrainingError(MidcourseError):
    """Training cannot go on: gradients stayed non-finite."""


class EngineError(MidcourseError):
    """An engine did not answer, or its answer cannot be used."""


class EngineTimeoutError(EngineError):
    """An engine did not answer in time."""


class PromptTooLongError(EngineError):
    """A prompt plus the tokens asked for do not fit the model's context."""


class EnvironmentFault(MidcourseError):
    """The world broke. A call that the policy got wrong is no fault: its error text is the observation."""


class ReplayMismatchError(EnvironmentFault):
    """A world that is led through the same turns again answers otherwise, so that no fork of it can be trusted."""


class ChatTemplateError(MidcourseError, ValueError):
    """A chat template breaks the prefix property or has no known tool-call form."""
