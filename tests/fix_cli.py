"""The command line in this process: arguments in, exit code and both outputs out."""

import json
import os
import sys
from typing import NamedTuple

import pytest

from lakemq.cli import main


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def lakemq(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty directory, with an environment that says nothing."""
    for name in list(os.environ):
        if name.startswith("LAKEMQ_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def lakemq(*arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["lakemq", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.run()
        return Done(ended.value.code or 0, *capsys.readouterr())

    return lakemq
