"""A transfer over three resources, by a program that dies where it is told to: two databases and a message.

Run by `test_xa_postgres.py`: xa_worker.py LAKEMQ-URL DATABASE-SOCKET DECISIONS GTRID STEP
"""

import os
import signal
import sys
from pathlib import Path

import psycopg

import lakemq

STEPS = (
    "begin",
    "row",
    "message",
    "log",
    "prepare row",
    "prepare message",
    "prepare log",
    "decide",
    "commit row",
    "commit message",
    "commit log",
    "done",
)
FORMAT_ID = 7


def transfer(url, socket, decisions, gtrid, die_at):
    def step(name):
        if name == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with (
        psycopg.connect(f"host={socket} user=postgres dbname=orders") as orders,
        psycopg.connect(f"host={socket} user=postgres dbname=log") as log,
        lakemq.connect(url, app="shop") as mq,
    ):
        session = mq.session("orders")
        step("begin")
        orders.tpc_begin(orders.xid(FORMAT_ID, gtrid, "orders"))
        session.tpc_begin(session.xid(FORMAT_ID, gtrid, "mq"))
        log.tpc_begin(log.xid(FORMAT_ID, gtrid, "log"))
        step("row")
        orders.execute("insert into orders values (%s)", (gtrid,))
        step("message")
        session.send(gtrid, key=gtrid)
        session.send(gtrid, partition=1)
        step("log")
        log.execute("insert into log values (%s)", (gtrid,))
        step("prepare row")
        orders.tpc_prepare()
        step("prepare message")
        session.tpc_prepare()
        step("prepare log")
        log.tpc_prepare()
        step("decide")
        decide(decisions, gtrid)
        step("commit row")
        orders.tpc_commit()
        step("commit message")
        session.tpc_commit()
        step("commit log")
        log.tpc_commit()
        step("done")


def decide(decisions, gtrid):
    """From here on it is committed, whoever dies: the decision is on disk."""
    with Path(decisions).open("a") as file:
        file.write(f"{gtrid}\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    transfer(*sys.argv[1:])
