"""What Spark says went wrong, down to the line that matters: ours, if the error was ours."""

import re

from lakemq.pipeline.errors import PipelineError

_OURS = re.compile(r"lakemq\.[\w.]*\.(\w+Error): (.+)")
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


def told(error: BaseException) -> PipelineError:
    """An error with one clear line. The rest of a Java stack helps nobody who only wants to go on."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return PipelineError(ours[-1][1].strip())
    python = [found for found in _PYTHON.findall(text) if "Py4J" not in found[0]]
    if python:
        return PipelineError(f"{python[-1][0]}: {python[-1][1].strip()}")
    lines = [line for line in text.splitlines() if line.strip()]
    return PipelineError(lines[0].strip() if lines else type(error).__name__)
