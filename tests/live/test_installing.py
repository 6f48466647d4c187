"""The product as it is installed: wheels, in empty environments without a compiler, on every Python of this machine.

The line that installs it is the README's own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fix_live import LiveBroker

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
FIRST_SCREEN_LINES = 40
OLDEST, NEWEST = 11, 20


def pythons():
    """Every Python of this machine that LakeMQ is for, one of each minor version."""
    found = {sys.version_info[:2]: sys.executable}
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(OLDEST, NEWEST):
        for place in (shutil.which(f"python3.{minor}"), *sorted(kept.glob(f"3.{minor}.*/bin/python3"))):
            if (3, minor) not in found and place is not None and can_make_environments(place):
                found[3, minor] = str(place)
    return [pytest.param(path, id=".".join(map(str, version))) for version, path in sorted(found.items())]


def can_make_environments(python):
    asked = subprocess.run([str(python), "-c", "import venv, ensurepip"], capture_output=True, check=False, timeout=30)
    return asked.returncode == 0


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """What `make wheel` builds, from a copy of what belongs to it, so that two may build at once."""
    place = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "dev.py"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    built = subprocess.run([sys.executable, "dev.py", "wheel"], cwd=place, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return place / "dist"


def names_in(wheel):
    with zipfile.ZipFile(wheel) as opened:
        return opened.namelist()


def install_line():
    """The line of the README's first screen that installs a wheel."""
    text = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN_LINES])
    (line,) = re.findall(r"^(?:\$ )?(python3 -m venv \S+ && \S+/pip install dist/\S+)", text, re.MULTILINE)
    return line


def test_there_is_a_wheel_for_every_system_and_one_with_the_compiled_parts(dist):
    (pure,) = dist.glob("*-py3-none-any.whl")
    assert not [name for name in names_in(pure) if name.endswith((".so", ".pyd"))]
    others = [one for one in dist.iterdir() if one != pure]
    if shutil.which("cc") or shutil.which("gcc"):
        (compiled,) = others
        assert {Path(name).name.partition(".")[0] for name in names_in(compiled) if name.endswith(".so")} == {
            "_hot",
            "_poll",
            "_sync",
            "_columns",
        }
    else:
        assert not others
    for one in (pure, *others):
        assert "lakemq/pipeline/log4j2.properties" in names_in(one)
        assert "pyspark_lakemq/__init__.py" in names_in(one)


def environment_without_compiler(directory, python):
    """Where `python3` is that Python, and there is nothing that compiles."""
    tools = directory / "tools"
    tools.mkdir()
    for name in ("sh", "env", "uname"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    (tools / "python3").chmod(0o755)
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP", "http", "HOME"))
    }
    return {**kept, "PATH": str(tools), "CC": "/bin/false", "CXX": "/bin/false"}


class InstalledBroker(LiveBroker):
    """A broker by the installed command alone."""

    def __init__(self, directory, lakemq):
        super().__init__(directory)
        self._lakemq = lakemq

    def command(self):
        return [str(self._lakemq), *super().command()[3:]]


@pytest.mark.parametrize("python", pythons())
def test_the_readmes_line_installs_a_product_that_works_without_a_compiler(dist, tmp_path, python):
    (tmp_path / "dist").symlink_to(dist)
    ours = environment_without_compiler(tmp_path, python)
    line = install_line()
    done = subprocess.run(line, shell=True, cwd=tmp_path, env=ours, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    place = tmp_path / re.search(r"venv (\S+)", line)[1]
    lakemq = place / "bin" / "lakemq"
    asked = subprocess.run(
        [place / "bin" / "python", "-c", "import lakemq, sys; print(lakemq.__file__, sys.version_info[1])"],
        cwd=tmp_path,
        env=ours,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(place) in asked.stdout
    broker = InstalledBroker(tmp_path / "broker", lakemq).start()
    try:
        ours["LAKEMQ_URL"] = f"lakemq://127.0.0.1:{broker.port}"
        for arguments in (("send", "orders", "hello"), ("-o", "json", "recv", "orders", "--group", "billing")):
            said = subprocess.run(
                [lakemq, *arguments], cwd=tmp_path, env=ours, capture_output=True, text=True, check=False, timeout=60
            )
            assert said.returncode == 0, said.stderr
        assert "hello" in json.dumps(json.loads(said.stdout))
    finally:
        broker.stop()
    broker.check_stderr()
