"""`python -m lakemq`: the same as the `lakemq` command."""

from lakemq.cli.main import run

run()
