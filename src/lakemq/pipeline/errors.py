"""What can go wrong in the pipeline, each with what to do about it."""

from lakemq.errors import LakeMQError


class PipelineError(LakeMQError):
    """The pipeline cannot go on. The next step stands in the text, too: Spark shows nothing else of an error."""

    cause = "The data pipeline could not do what was asked."
    fix = "Read the detail; docs/pipeline.md describes every option."

    def __init__(self, detail: str = "", fix: str = "") -> None:
        super().__init__(f"{detail}. {fix}" if fix else detail)
        self.said = detail or self.cause
        self.next_step = fix or self.fix


class OptionError(PipelineError):
    """An option of the source or the sink is wrong."""

    cause = "An option of the Spark source or sink is wrong."
    fix = "docs/pipeline.md lists the options."


class DataLossError(PipelineError):
    """Messages that were asked for are not there any more."""

    cause = "Messages that were asked for are no longer at the broker."
    fix = "Read them from the lake with failOnDataLoss=archive, or go on without them with failOnDataLoss=false."


class SparkMissingError(PipelineError):
    """Spark or Java is not there, or not one that works."""

    cause = "Spark or Java is not there, or not one that works."
    fix = "Install with `pip install 'lakemq[spark]'` and a Java 17 or 21 runtime."
