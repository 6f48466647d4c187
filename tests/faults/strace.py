"""A process whose system calls fail, fall short, dawdle or kill it, each at a count of our choosing (STRACE).

strace counts the calls of each thread by itself, so the writer runs inline here. A call that gets an error or a return
value from strace is not carried out. Only the interpreter itself may be started, not a script that starts it.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from .tools import ROOT, CannotRunError, need_tools

SECONDS_MAX = 60
WRITE = "pwritev,pwritev2"  # which of them it is, the C library decides


def fail(call: str, error: str, when: str) -> str:
    """The call does nothing and returns that error; `when` is a count, "3+" from the third on, "2..5" a range."""
    return f"{call}:error={error}:when={when}"


def answer(call: str, value: int, when: str) -> str:
    """The call does nothing and returns that value."""
    return f"{call}:retval={value}:when={when}"


def kill(call: str, when: int) -> str:
    """The process is killed at that call, before it is carried out."""
    return f"{call}:signal=SIGKILL:when={when}"


def delay(call: str, milliseconds: int, when: str) -> str:
    """The call is carried out that much later."""
    return f"{call}:delay_enter={milliseconds * 1000}:when={when}"


@cache
def need_strace() -> None:
    """CannotRunError where processes may not be traced."""
    need_tools("strace")
    done = subprocess.run(
        ["strace", "-qq", "-o", os.devnull, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO", "true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    if done.returncode:
        raise CannotRunError(f"processes cannot be traced: {done.stderr.strip()}")


def run_traced(
    module: str, *arguments: object, inject: tuple[str, ...] | list[str] = (), only: str | Path | None = None
) -> tuple[int, str]:
    """Run one of our modules to its end; exit status (-9: killed) and what it said.

    `only`: calls on other paths are neither counted nor touched.
    """
    need_strace()
    calls = ",".join(sorted({each.partition(":")[0] for each in inject})) or "none"
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={calls}"]
    for each in inject:
        command += ["-e", f"inject={each}"]
    if only is not None:
        command += ["-P", str(only)]
    command += [sys.executable, "-B", "-m", module, *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    status = done.returncode  # strace ends as its process did, by the same signal or, in a shell's way, 128 + it
    return (128 - status if status > 128 else status), done.stdout
