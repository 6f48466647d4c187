"""The broker tells producers that it would rather be left, and that it is well again (DMQ's notices)."""

from broker.fix_broker import DOCUMENTED, JOYQUEUE, make_broker
from lakemq.broker.events import StopAsked
from lakemq.wire.session import Heartbeat


def notice(peer):
    answer = peer.ask(Heartbeat())
    assert answer.status == 0
    return answer.error


def test_a_healthy_broker_has_nothing_to_say():
    life = make_broker()
    assert notice(life.peer()) == ""
    assert life.peer(introduces=False).introduce().body.notification == ""


def test_a_broker_that_takes_no_messages_says_so_until_it_does():
    life = make_broker()
    peer = life.peer()
    life.ask("set_broker", writable=False)
    assert notice(peer).startswith("draining")
    assert life.peer(introduces=False).introduce().body.notification.startswith("draining")
    assert peer.produce(b"x")[0] == 193
    life.ask("set_broker", writable=True)
    assert (notice(peer), peer.produce(b"x")[0]) == ("", 0)


def test_a_broker_that_stops_says_so():
    life = make_broker()
    peer = life.peer(dialect=DOCUMENTED)
    life.sync()
    life.engine.handle(StopAsked())
    assert notice(peer).startswith("draining")


def test_clients_of_joyqueue_are_not_disturbed():
    life = make_broker()
    peer = life.peer(dialect=JOYQUEUE)
    life.ask("set_broker", writable=False)
    assert notice(peer) == ""
