"""Two-phase commit with other resources: the session's names, and a data manager for PyPI's `transaction` package.

with lakemq.connect(…) as mq:
    session = mq.session("orders")
    lakemq.xa.join(session)          # until the next transaction.commit() or abort()
    session.send({"id": 1})
    transaction.commit()             # with whatever else has joined
"""

import importlib
import uuid
from typing import Any

from lakemq.client.xa import Session, Xid, make_xid

__all__ = ["DataManager", "Session", "Xid", "join", "make_xid"]

FORMAT_ID = 0x4C4D51  # "LMQ", of xids that the data manager makes


class DataManager:
    """One session inside one transaction of the `transaction` package, which calls these in its order."""

    def __init__(self, session: Session, manager: Any) -> None:
        self.transaction_manager = manager
        self.session = session
        self.xid = make_xid(FORMAT_ID, uuid.uuid4().hex, "lakemq")
        session.tpc_begin(self.xid)

    def abort(self, transaction: Any) -> None:
        """It ends before it was asked to commit; the package may say so more than once."""
        if self.session.xid_under_way == self.xid:
            self.session.tpc_rollback()

    def tpc_begin(self, transaction: Any) -> None:
        """A commit begins."""

    def commit(self, transaction: Any) -> None:
        """What was sent is in the session already."""

    def tpc_vote(self, transaction: Any) -> None:
        """Raise now, or be able to commit."""
        self.session.tpc_prepare()

    def tpc_finish(self, transaction: Any) -> None:
        """All could."""
        self.session.tpc_commit()

    def tpc_abort(self, transaction: Any) -> None:
        """One could not."""
        self.abort(transaction)

    def sortKey(self) -> str:  # noqa: N802 - the package's name for it
        """Its place among those who commit: after databases, which refuse more often."""
        return f"~lakemq:{self.session.topic}:{id(self.session)}"


def join(session: Session, manager: Any = None) -> DataManager:
    """Have the session's messages committed with the current transaction of the `transaction` package."""
    if manager is None:
        try:
            manager = importlib.import_module("transaction").manager
        except ImportError:
            raise ImportError("the package `transaction` is needed: pip install 'lakemq[xa]'") from None
    data_manager = DataManager(session, manager)
    manager.get().join(data_manager)
    return data_manager
