"""Two-phase commit with a real PostgreSQL: a row, a message and a row of a log in another database, all or nothing.

A program that does it is killed at each of its steps, the broker or the database with it; then the recovery of any
transaction manager runs, and all three tell the same. The database is one of our own in a temporary directory, reached
by a socket; what a machine lacks is skipped and says so, and fails in CI.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import lakemq
from fix_live import start_broker
from lakemq.errors import TransactionNotFoundError
from live.xa_worker import FORMAT_ID, STEPS, transfer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'psycopg[binary]'")

pytestmark = pytest.mark.live

WORKER = Path(__file__).with_name("xa_worker.py")
DATABASES = ("orders", "log")
IN_DOUBT = STEPS[STEPS.index("prepare message") : STEPS.index("done")]  # something is prepared and not ended


def missing(what):
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(what)


class Postgres:
    """A server of our own, as a user who is not root: it refuses to be that."""

    def __init__(self, home):
        self.home = Path(home)
        self.data = self.home / "data"
        self.bin = self._find()
        self.user = self._user()
        if self.user is not None:
            shutil.chown(self.home, self.user)

    def _find(self):
        found = shutil.which("initdb")
        if found is None:
            versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
            found = versions[-1] if versions else None
        if found is None:
            missing("PostgreSQL is not installed: apt-get install postgresql, or python dev.py system-packages")
        return Path(found).resolve().parent

    def _user(self):
        if os.geteuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(name).pw_name
        return missing("no user to run PostgreSQL as: it does not run as root")

    def run(self, *command):
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            user=self.user,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.log()

    def log(self):
        path = self.home / "log.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def make(self):
        self.run("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")
        settings = [
            "listen_addresses = ''",
            f"unix_socket_directories = '{self.home}'",
            "max_prepared_transactions = 64",
            "shared_buffers = 16MB",
        ]
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("\n".join(["", *settings, ""]))
        self.start()
        with psycopg.connect(f"host={self.home} user=postgres dbname=postgres", autocommit=True) as connection:
            for name in DATABASES:
                connection.execute(f"create database {name}")
        for name in DATABASES:
            with self.connect(name) as connection:
                connection.execute(f"create table {name} (id text)")
        return self

    def start(self):
        log = str(self.home / "log.txt")
        self.run("pg_ctl", "-D", str(self.data), "-l", log, "-w", "-t", "60", "start")

    def stop(self, mode="fast"):
        self.run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-m", mode, "stop")

    def crash(self):
        """Without a checkpoint, as after a loss of power; then it recovers."""
        self.stop("immediate")
        self.start()

    def connect(self, name):
        return psycopg.connect(f"host={self.home} user=postgres dbname={name}")

    def rows(self, name):
        with self.connect(name) as connection:
            return sorted(row[0] for row in connection.execute(f"select id from {name}"))


@pytest.fixture(scope="module")
def postgres():
    with tempfile.TemporaryDirectory(prefix="lakemq-pg-") as home:  # short: the name of a socket is
        server = Postgres(home).make()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    one = start_broker(tmp_path_factory.mktemp("xa-broker"))
    try:
        with lakemq.connect(url_of(one), app="shop") as mq:
            mq.send("orders", "first")  # makes the topic
        yield one
    finally:
        one.stop()
    one.check_stderr()


def url_of(broker):
    return f"lakemq://127.0.0.1:{broker.port}"


def messages(broker):
    with lakemq.connect(url_of(broker), app="shop") as mq:
        return sorted(message.text() for message in mq.reader("orders", start="earliest", stop="now"))


def recover(postgres, broker, decided):
    """What a transaction manager does after a crash: commit what was decided, roll back the rest."""
    ended = []
    for name in DATABASES:
        with postgres.connect(name) as connection:
            for xid in connection.tpc_recover():
                if xid.database == name:
                    (connection.tpc_commit if xid.gtrid in decided else connection.tpc_rollback)(xid)
                    ended.append((xid.gtrid, name))
    with lakemq.connect(url_of(broker), app="shop") as mq:
        session = mq.session("orders")
        for xid in session.tpc_recover():
            (session.tpc_commit if xid.gtrid in decided else session.tpc_rollback)(xid)
            ended.append((xid.gtrid, "mq"))
        assert session.tpc_recover() == []
    return ended


@pytest.mark.parametrize(
    ("with_it", "steps"),
    [("nobody", STEPS), ("broker", IN_DOUBT), ("postgres", IN_DOUBT)],
    ids=["nobody", "broker", "postgres"],
)
def test_F42_a_kill_at_each_step_leaves_all_or_nothing(postgres, broker, tmp_path, with_it, steps):
    decisions = tmp_path / "decisions"
    decisions.touch()
    before = {name: postgres.rows(name) for name in DATABASES}
    sent_before = messages(broker)
    expected = []
    in_doubt = 0
    for die_at in steps:
        gtrid = f"{with_it}-{die_at}".replace(" ", "-")
        command = [sys.executable, str(WORKER), url_of(broker), str(postgres.home), str(decisions), gtrid, die_at]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        if with_it == "broker":
            broker.kill()
            broker.start()
        elif with_it == "postgres":
            postgres.crash()
        decided = decisions.read_text().split()
        if STEPS.index(die_at) > STEPS.index("decide"):
            expected.append(gtrid)
        assert decided == expected
        in_doubt += len(recover(postgres, broker, decided))
        for name in DATABASES:
            assert postgres.rows(name) == sorted(before[name] + expected), die_at
        assert messages(broker) == sorted(sent_before + expected * 2), die_at
    assert in_doubt == sum(range(1, 4)) + sum(range(1, 4)), "prepared: one, two, three; not committed: three, two, one"


def test_all_goes_well(postgres, broker, tmp_path):
    transfer(url_of(broker), str(postgres.home), str(tmp_path / "decisions"), "well", "never")
    for name in DATABASES:
        assert "well" in postgres.rows(name)
    assert messages(broker).count("well") == 2
    assert recover(postgres, broker, ["well"]) == []


def test_the_database_refuses_and_no_message_is_seen(postgres, broker):
    with lakemq.connect(url_of(broker), app="shop") as mq, postgres.connect("orders") as connection:
        session = mq.session("orders")
        xid = session.xid(FORMAT_ID, "refused", "mq")
        session.tpc_begin(xid)
        session.send("refused")
        session.tpc_prepare()
        connection.tpc_begin(connection.xid(FORMAT_ID, "refused", "orders"))
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("insert into nowhere values (1)")
        connection.tpc_rollback()
        session.tpc_rollback()
        with pytest.raises(TransactionNotFoundError):
            session.tpc_commit(xid)
    assert "refused" not in messages(broker)


def test_the_transaction_package_commits_a_row_and_a_message_together(postgres, broker):
    transaction = pytest.importorskip("transaction", reason="pip install transaction")
    from lakemq import xa

    class Rows:
        """A data manager for one connection of psycopg, as an application may write it."""

        def __init__(self, connection, manager, gtrid):
            self.transaction_manager = manager
            self.connection = connection
            connection.tpc_begin(connection.xid(FORMAT_ID, gtrid, "orders"))

        def tpc_begin(self, _):
            pass

        commit = tpc_begin

        def tpc_vote(self, _):
            self.connection.tpc_prepare()

        def tpc_finish(self, _):
            self.connection.tpc_commit()

        def tpc_abort(self, _):
            self.connection.tpc_rollback()

        abort = tpc_abort

        def sortKey(self):
            return "psycopg"

    with lakemq.connect(url_of(broker), app="shop") as mq, postgres.connect("orders") as connection:
        session = mq.session("orders")
        for gtrid, is_good in (("together", True), ("not-together", False)):
            manager = transaction.TransactionManager()
            manager.begin()
            rows = Rows(connection, manager, gtrid)
            manager.get().join(rows)
            xa.join(session, manager)
            connection.execute("insert into orders values (%s)", (gtrid,))
            session.send(gtrid)
            (manager.commit if is_good else manager.abort)()
    assert "together" in postgres.rows("orders")
    assert "together" in messages(broker)
    assert "not-together" not in postgres.rows("orders") + messages(broker)
