"""Where Java is missing or not the right one: one clear error with the next step, before anything is started."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from lakemq.cli.failure import MISSING
from lakemq.pipeline.errors import SparkMissingError
from lakemq.pipeline.session import check_java


def fake_java(directory, text, status=0):
    """A `java` that says it is of some version."""
    directory.mkdir(parents=True, exist_ok=True)
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {status}\n")
    java.chmod(0o755)
    return java


def found(environment):
    """What is said, and the next step."""
    with pytest.raises(SparkMissingError) as caught:
        check_java(environment)
    assert "apt install openjdk-17-jre-headless" in str(caught.value)
    assert "JAVA_HOME" in caught.value.next_step
    return caught.value.said


def test_no_java_on_the_path(tmp_path):
    assert found({"PATH": str(tmp_path)}) == "Spark needs Java, and there is none on the PATH"


def test_a_java_home_without_a_java(tmp_path):
    fake_java(tmp_path / "bin", 'openjdk version "17.0.1"')
    environment = {"PATH": str(tmp_path / "bin"), "JAVA_HOME": str(tmp_path / "gone")}
    assert found(environment) == f"Spark needs Java, and JAVA_HOME is {tmp_path}/gone, where there is none"


@pytest.mark.parametrize(
    ("text", "number"), [('openjdk version "11.0.2" 2019-01-15', 11), ('java version "1.8.0_292"', 8)]
)
def test_a_java_that_is_too_old(tmp_path, text, number):
    java = fake_java(tmp_path, text)
    assert found({"PATH": str(tmp_path)}) == f"Spark needs Java 17 or later, and {java} is Java {number}"


def test_a_java_that_says_nothing_or_does_not_run(tmp_path):
    java = fake_java(tmp_path, "no runtime present", 1)
    assert found({"PATH": str(tmp_path)}) == f"Spark needs Java, and {java} does not say which it is"
    java.write_bytes(b"\x7fELF not really")
    assert found({"PATH": str(tmp_path)}).startswith(f"Spark needs Java, and {java} does not run: ")


@pytest.mark.parametrize("text", ['openjdk version "17.0.1" 2021-10-19', 'openjdk version "21" 2023-09-19'])
def test_java_17_and_later_will_do(tmp_path, text):
    java = fake_java(tmp_path / "bin", text)
    assert check_java({"PATH": str(tmp_path / "bin")}) == str(java)
    assert check_java({"PATH": "", "JAVA_HOME": str(tmp_path)}) == str(java)


def run(environment, *arguments):
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.run(
        [sys.executable, "-m", "lakemq", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**kept, **environment},
    )


@pytest.mark.live
@pytest.mark.parametrize(
    "command",
    [("sql", "select 1"), ("archive", "run"), ("report",), ("trace", "--from", "-1h"), ("replay", "a", "--to", "b")],
)
def test_the_command_line_says_it_before_anything_is_started(tmp_path, command):
    done = run({"PATH": str(tmp_path)}, *command)
    assert done.returncode == MISSING
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: Spark needs Java, and there is none on the PATH",
        "  fix   Install one, e.g. with `apt install openjdk-17-jre-headless`, or set JAVA_HOME.",
    ]


@pytest.mark.live
def test_what_only_looks_at_the_lake_needs_no_java(tmp_path):
    done = run({"PATH": str(tmp_path)}, "archive", "compact", "--lake", str(tmp_path / "nowhere"))
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "nowhere" in done.stderr
