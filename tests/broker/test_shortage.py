"""Too few files, too little memory: what cannot be done now is told as that, and is done later."""

import errno

import pytest

from broker.fix_broker import make_broker
from lakemq.storage.journal import SyncTicket
from lakemq.wire.metadata import FetchCluster

SHORT = 3


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EAGAIN])
def test_F26_a_sync_that_could_not_be_begun_is_begun_again(code):
    life = make_broker(partitions=1)
    peer = life.peer()
    request = peer.send(peer.produce_command(b"waits"))
    for _ in range(5):
        life.clock.pass_ms(20)
        life.engine.tick()
        life.engine.bring_back(life.engine.tickets.popleft(), OSError(code, "planned"))
        assert (peer.received(request), life.engine.is_stopped) == (None, False)
    life.pass_ms(20)
    assert peer.received(request).body.topics[0].code == 0
    assert sum("could not be begun" in text for _, text in life.engine.notes) == 1, "said once"
    life.lose_power()
    assert life.stored() == [b"waits"]


def test_F26_while_no_sync_can_be_begun_a_broker_in_a_program_comes_to_rest(monkeypatch):
    """Its caller would otherwise try again and again without time passing."""
    life = make_broker(partitions=1)
    peer = life.peer()
    peer.send(peer.produce_command(b"waits"))
    monkeypatch.setattr(SyncTicket, "run", lambda _: (_ for _ in ()).throw(OSError(errno.EMFILE, "planned")))
    life.settle()
    life.pass_ms(20)
    monkeypatch.undo()
    life.pass_ms(20)
    assert life.stored() == [b"waits"]


def test_a_request_for_which_there_is_no_memory_is_refused_and_its_peer_stays():
    life = make_broker(partitions=1)
    peer = life.peer()

    def greedy(*_):
        raise MemoryError

    life.broker.receiving.handlers[FetchCluster] = greedy
    answer = peer.ask(FetchCluster(("orders",), "shop"))
    assert (answer.status, peer.is_closed, life.broker.metrics.bugs) == (SHORT, False, 0)
    assert "memory" in answer.error
    assert peer.produce(b"x")[0] == 0
