"""The errors of a training run, as one tree.

TrainingError
├── RecipeError           a recipe that cannot be read, or has an unknown key or a bad value
│   └── TargetError       a `target` that names no code, or whose `args` do not fit it
├── DataError             data that breaks the contract of a data set
│   └── SourceError       files of a model to import that are unsafe, damaged or incomplete
├── CheckpointError       a checkpoint that is damaged, belongs to another program, or cannot be
│                         written
├── RunBusyError          another process works in the same run folder
├── StoppedError          a run that was stopped before its end; it can be resumed
├── DivergedError         the loss, or the validation, is no longer a number
├── MemoryRunOutError     training needs more memory than is available
├── ExportError           one artifact cannot be made; the others continue
├── IsolationError        a call in a child process that did not return
├── SweepError            a search that found nothing to publish
└── NothingProvenError    no artifact kept its tolerance, so nothing is published
"""


class TrainingError(Exception):
    """Root of the tree. The message says what was wrong, which value, and what to do."""


class RecipeError(TrainingError):
    """A recipe that cannot be read or breaks the schema."""


class TargetError(RecipeError):
    """A `target` that cannot be imported, or arguments it does not take."""


class DataError(TrainingError):
    """Splits whose names, shapes or labels contradict each other."""


class SourceError(DataError):
    """Files of a model to import that are unsafe, damaged, too large or incomplete."""


class CheckpointError(TrainingError):
    """A checkpoint whose files are missing, damaged, of another format, or cannot be written."""


class RunBusyError(TrainingError):
    """The run folder is locked by another process."""


class StoppedError(TrainingError):
    """The run was stopped on request; its checkpoint is written."""


class DivergedError(TrainingError):
    """The loss, or the validation figure of the run, became infinite or not a number."""


class MemoryRunOutError(TrainingError):
    """Training needed more memory than the machine, the device or a limit has."""


class ExportError(TrainingError):
    """An artifact that cannot be made from this model."""


class IsolationError(TrainingError):
    """A call in a child process that raised, died, or exceeded a limit."""


class SweepError(TrainingError):
    """No trial of a search finished, or its folder belongs to another program."""


class NothingProvenError(TrainingError):
    """Every artifact was refused; the message has the reason of each."""
