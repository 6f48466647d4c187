"""Many connections' produce requests in one turn: as if each had come alone, and none has to wait for another."""

from dataclasses import replace
from random import Random

import pytest

from broker.fix_broker import FULL, SMALL, TINY, BrokerLife, block_of, make_broker
from lakemq.broker import produce_routes, runs, sessions
from lakemq.errors import ConnectionNotFoundError, SendForbiddenError
from lakemq.message import Qos
from lakemq.storage.config import StorageConfig
from lakemq.wire.produce_run import PRODUCE_NUMBER
from lakemq.wire.session import Heartbeat


@pytest.fixture(params=["compiled", "definition"], autouse=True)
def form(request, monkeypatch):
    if request.param == "definition":
        monkeypatch.setattr(runs, "_hot", None)
    elif runs._hot is None:
        pytest.skip("the compiled twin was not built: no C compiler at install")


def arrive(life, *sent):
    """Each peer's frames, all at once: (peer, commands) pairs; the ids of each peer's requests."""
    arrivals, ids = [], []
    for peer, commands in sent:
        frames = [peer.frame(command) for command in commands]
        ids.append(range(peer._request_id - len(frames) + 1, peer._request_id + 1))
        arrivals.append((peer.connection, memoryview(bytearray(b"".join(frames)))))
    life.broker.receive_all(arrivals, life.engine.now())
    return ids


def routed(life, count, **details):
    """Peers whose next request will be like their last."""
    peers = [life.peer() for _ in range(count)]
    for peer in peers:
        assert peer.produce(b"first", **details)[0] == 0
    return peers


def places(peer, ids):
    """Where the messages of these requests went; the code if they did not."""
    found = []
    for number in ids:
        (entry,) = peer.received(number).body.topics
        found.append(entry.code or [(one.partition, one.index) for one in entry.results])
    return found


def all_stored(life):
    return sorted(body for partition in range(3) for body in life.stored(partition=partition))


@pytest.mark.parametrize("qos", [Qos.WRITE, Qos.FLUSH])
@pytest.mark.parametrize("seed", range(5))
def test_what_arrives_together_is_stored_and_answered_as_if_it_came_alone(seed, qos):
    together, alone = make_broker(partitions=3), make_broker(partitions=3)
    lives = [(life, routed(life, 6, qos=qos)) for life in (together, alone)]
    stored = []
    for life, peers in lives:
        rng = Random(seed)
        answers = []
        for turn in range(6):
            sent = []
            for number, peer in enumerate(peers):
                commands = [
                    peer.produce_command(
                        *[b"%d of %d in turn %d" % (nth, number, turn)] * rng.choice([1, 1, 3]),
                        partition=rng.choice([0, 1, 2, 2, 2, 7, -1]),
                        qos=rng.choice([qos] * 8 + [Qos.RECEIVE]),
                    )
                    if rng.random() < 0.9
                    else Heartbeat()
                    for nth in range(rng.choice([0, 1, 1, 2, 5]))
                ]
                if commands:
                    sent.append((peer, commands))
            # Those with nothing out of the ordinary are served first, which is all the difference there is.
            ids = arrive(life, *sent) if life is together else [arrive(life, one)[0] for one in sent]
            life.settle()
            for (peer, _), numbers in zip(sent, ids, strict=True):
                answers += [(n, peer.received(n).status, peer.received(n).type) for n in numbers]
        life.sync()
        stored.append((answers, all_stored(life)))
        assert (life.broker._waiters.is_empty, life.broker._waiters.in_flight_bytes) == (True, 0)
        assert not any(peer.connection.in_flight_bytes for peer in peers)
        life.restart()
        assert all_stored(life) == stored[-1][1]
    assert stored[0] == stored[1]


def test_answers_say_where_each_message_is():
    life = make_broker()
    peers = routed(life, 4, qos=Qos.WRITE)
    ids = arrive(life, *[(peer, [peer.produce_command(b"%d" % n, qos=Qos.WRITE)] * 2) for n, peer in enumerate(peers)])
    life.engine.end_turn()
    found = [places(peer, numbers) for peer, numbers in zip(peers, ids, strict=True)]
    assert found == [[[(0, 4 + 2 * n)], [(0, 5 + 2 * n)]] for n in range(4)]
    life.sync()
    assert life.stored()[4:] == [b"0", b"0", b"1", b"1", b"2", b"2", b"3", b"3"]
    assert life.broker.metrics.messages_in["orders"] == 12
    assert life.broker.metrics.requests["PRODUCE_MESSAGE"] == 12


def test_nothing_is_answered_before_it_is_written_nor_flushed_before_it_is_synced():
    life = make_broker()
    written, flushed = routed(life, 1, qos=Qos.WRITE) + routed(life, 1, qos=Qos.FLUSH)
    (first,), (second,) = arrive(
        life,
        (written, [written.produce_command(b"w", qos=Qos.WRITE)]),
        (flushed, [flushed.produce_command(b"f", qos=Qos.FLUSH)]),
    )
    assert (written.received(first), flushed.received(second)) == (None, None)
    life.engine.end_turn()
    assert (written.received(first) is not None, flushed.received(second)) == (True, None)
    life.settle()
    assert flushed.received(second) is not None


def test_a_turn_that_cannot_be_written_is_refused_to_each():
    life = make_broker()
    peers = routed(life, 3, qos=Qos.WRITE)
    before = life.facts()
    life.disk.fail("write", FULL, path_contains="journal/", wrote=64)
    ids = arrive(life, *[(peer, [peer.produce_command(b"lost", qos=Qos.WRITE)]) for peer in peers])
    life.engine.end_turn()
    codes = [places(peer, numbers) for peer, numbers in zip(peers, ids, strict=True)]
    assert codes == [codes[0]] * 3
    assert isinstance(codes[0][0], int)
    assert life.broker.metrics.errors[codes[0][0]] == 3
    assert life.facts() == before
    assert (life.broker._waiters.is_empty, life.broker._waiters.in_flight_bytes) == (True, 0)
    ids = arrive(life, *[(peer, [peer.produce_command(b"kept", qos=Qos.WRITE)]) for peer in peers])
    life.settle()
    life.sync()
    assert [places(peer, numbers) for peer, numbers in zip(peers, ids, strict=True)] == [[[(0, n)]] for n in (3, 4, 5)]
    assert life.stored() == [b"first"] * 3 + [b"kept"] * 3


def test_a_bug_at_one_connection_costs_it_alone(monkeypatch):
    life = make_broker()
    peers = routed(life, 3, qos=Qos.WRITE)
    store_run = runs._hot.store_run if runs._hot is not None else runs.store_run_python

    class Planted:
        @staticmethod
        def store_run(view, *rest):
            if b"poison" in bytes(view):
                raise KeyError("secret")
            return store_run(view, *rest)

    monkeypatch.setattr(runs, "_hot", Planted)
    bodies = (b"good", b"poison", b"better")
    sent = [(peer, [peer.produce_command(one, qos=Qos.WRITE)]) for peer, one in zip(peers, bodies, strict=True)]
    ids = arrive(life, *sent)
    life.settle()
    life.sync()
    assert [peer.is_closed for peer in peers] == [False, True, False]
    assert peers[1].received(ids[1][0]).status == 141
    assert life.broker.metrics.bugs == 1
    assert life.stored()[3:] == [b"good", b"better"]
    assert any("secret" in text and "Traceback" in text for _, text in life.engine.notes), "the log says where"


def test_who_is_held_up_is_not_overtaken_by_its_own_requests():
    life = make_broker()
    peer, other = routed(life, 2, qos=Qos.WRITE)
    peer.pipe.output_bytes_max = 1
    arrive(life, (peer, [peer.produce_command(b"1", qos=Qos.WRITE)]))
    life.engine.end_turn()
    assert (peer.connection.is_output_full, peer.pipe.is_paused) == (True, True)
    for body in (b"2", b"3"):
        arrive(
            life,
            (peer, [peer.produce_command(body, qos=Qos.WRITE)]),
            (other, [other.produce_command(b"other", qos=Qos.WRITE)]),
        )
        life.engine.end_turn()
    assert len(peer.connection.backlog) == 2
    peer.pipe.output_bytes_max = None
    peer.pipe.take()
    life.settle()
    life.sync()
    assert [body for body in life.stored()[2:] if body != b"other"] == [b"1", b"2", b"3"]
    assert not peer.pipe.is_paused


def test_too_much_for_one_turn_is_taken_one_by_one_and_held_back_as_ever():
    life = make_broker(storage=SMALL, limits_of={"unsynced_bytes_high": 100_000})
    peers = routed(life, 8, qos=Qos.WRITE)
    for _ in range(3):
        arrive(life, *[(peer, [peer.produce_command(b"x" * 20_000, qos=Qos.WRITE)]) for peer in peers])
        assert life.journal.unsynced_bytes < 130_000
        life.engine.end_turn()
    life.settle()
    life.sync()
    assert life.capped["unsynced_bytes"] >= 1
    assert len(life.stored()) == 8 + 24


def test_a_turn_over_the_end_of_a_segment_is_whole():
    life = make_broker(storage=TINY)
    peers = routed(life, 6, qos=Qos.WRITE)
    for turn in range(12):
        ids = arrive(
            life,
            *[(peer, [peer.produce_command(b"%d" % turn + b"x" * 500, qos=Qos.WRITE)] * 2) for peer in peers],
        )
        life.settle()
        assert all(isinstance(one, list) for peer, n in zip(peers, ids, strict=True) for one in places(peer, n))
        life.sync()
    assert len(life.journal.bases()) > 3
    assert len(life.stored()) == 6 + 12 * 12
    life.restart()
    assert len(life.stored()) == 6 + 12 * 12


def test_special_and_foreign_requests_go_the_long_way_with_the_rest_of_their_frames():
    life = make_broker(storage=StorageConfig())
    (peer,) = routed(life, 1, qos=Qos.WRITE)
    special = block_of(b"id", attributes={"UNIQ_ID": "1"})
    (ids,) = arrive(
        life,
        (
            peer,
            [
                peer.produce_command(b"a", qos=Qos.WRITE),
                peer.produce_command(qos=Qos.WRITE, block=special),
                peer.produce_command(b"b", qos=Qos.WRITE),
                Heartbeat(),
                peer.produce_command(b"c", qos=Qos.WRITE, partition=1),
                peer.produce_command(b"d", qos=Qos.WRITE),
            ],
        ),
    )
    life.settle()
    life.sync()
    assert all(peer.received(one).status == 0 for one in ids)
    assert (life.stored(), life.stored(partition=1)) == ([b"first", b"a", b"id", b"b", b"d"], [b"c"])
    assert [abs(peer.received(one).type) for one in ids].count(PRODUCE_NUMBER) == 5


# ---- several topics over one connection ------------------------------------------------------------------------------

NAMES = ("a", "of_another_length", "third")


def to(peer, topic, body, **details):
    return peer.produce_command(body, topic=topic, qos=Qos.WRITE, **details)


def long_ways(life):
    """How often a request was looked at by itself, from now on."""
    counts = []
    take = life.broker._producing.produce
    life.broker._producing.produce = lambda *arguments: counts.append(1) or take(*arguments)
    return counts


def several(count=1, broker=None):
    life = broker or make_broker(topics=NAMES, partitions=2)
    peers = [life.peer() for _ in range(count)]
    for peer in peers:
        for topic in NAMES:
            assert peer.produce(b"first", topic=topic, qos=Qos.WRITE)[0] == 0
    return life, peers


def test_topics_in_turn_are_taken_as_quickly_as_one():
    life, peers = several(2)
    looked_at = long_ways(life)
    for number in range(4):
        sent = [(peer, [to(peer, topic, b"%d" % number) for topic in NAMES]) for peer in peers]
        answered = arrive(life, *sent)
        life.engine.end_turn()
        for peer, ids in zip(peers, answered, strict=True):
            assert [len(one) for one in places(peer, ids)] == [1, 1, 1]
    assert looked_at == []
    life.sync()
    for topic in NAMES:
        assert life.stored(topic) == [b"first"] * 2 + [b"%d" % number for number in range(4) for _ in peers]


def test_a_topic_at_another_level_is_another_route():
    life, (peer,) = several()
    (ids,) = arrive(life, (peer, [to(peer, "a", b"w"), peer.produce_command(b"f", topic="a", qos=Qos.FLUSH)]))
    life.engine.end_turn()
    assert peer.received(ids[0]) is not None
    assert peer.received(ids[1]) is None, "it waits for the sync"
    life.settle()
    assert places(peer, ids) == [[(0, 1)], [(0, 2)]]


def test_routes_end_with_what_they_were_made_of():
    life, (peer,) = several()
    life.ask("drop_topic", name="third")
    looked_at = long_ways(life)
    (ids,) = arrive(life, (peer, [to(peer, "a", b"x"), to(peer, "third", b"gone")]))
    life.settle()
    first, second = places(peer, ids)
    assert (first, second) == ([(0, 1)], 189)
    assert len(looked_at) == 2
    assert {route.topic for route in peer.connection.routes.values()} == {"a"}


def test_a_turn_that_is_refused_ends_all_routes():
    life, (peer,) = several()
    life.disk.fail("write", FULL)
    arrive(life, (peer, [to(peer, topic, b"refused") for topic in NAMES]))
    life.engine.end_turn()
    assert peer.connection.routes == {}
    (ids,) = arrive(life, (peer, [to(peer, topic, b"taken") for topic in NAMES]))
    life.settle()
    assert places(peer, ids) == [[(0, 1)]] * 3


def test_routes_are_bounded(monkeypatch):
    monkeypatch.setattr(produce_routes, "ROUTES_MAX", 4)
    monkeypatch.setattr(sessions, "ROUTES_MAX", 1)
    life, peers = several(2)
    assert [len(peer.connection.routes) for peer in peers] == [2, 2]
    assert len(life.broker.sessions.shared_routes._routes) == 1
    answered = arrive(life, *[(peer, [to(peer, topic, b"x") for topic in NAMES]) for peer in peers])
    life.settle()
    assert [len(places(peer, ids)) for peer, ids in zip(peers, answered, strict=True)] == [3, 3]


# --- what one connection has shown, for others ----------------------------------------------------------------------


def show(peer, *topics):
    for topic in topics or NAMES:
        assert peer.produce(b"shown", topic=topic, qos=Qos.WRITE)[0] == 0


def sends_all(life, newcomer):
    """It sends to all topics, having sent to the first only: the codes, and how many requests went the long way."""
    show(newcomer, NAMES[0])
    looked_at = long_ways(life)
    (ids,) = arrive(life, (newcomer, [to(newcomer, topic, b"new") for topic in NAMES]))
    life.settle()
    return [one if isinstance(one, int) else 0 for one in places(newcomer, ids)], len(looked_at)


def test_what_one_connection_has_shown_others_of_its_app_need_not_show():
    life, _ = several()
    newcomer = life.peer()
    assert sends_all(life, newcomer) == ([0, 0, 0], 0)
    assert {route.topic for route in newcomer.connection.routes.values()} == set(NAMES)


def test_a_shared_route_says_who_sent_it():
    life, (known,) = several()
    newcomer = life.peer()
    newcomer.connection.port.address = b"another address!"
    assert sends_all(life, newcomer)[1] == 0
    life.sync()
    group, addresses = life.engine.group, []
    for topic in NAMES:
        slices = group.read(life.topic_number(topic), 0, 0, 100)
        addresses += [one.client_address for one in slices if one.client_address != known.connection.port.address]
    assert addresses == [b"another address!"] * (len(NAMES) + 1)


def test_a_shared_route_is_traced_as_its_own_sender_s():
    life, (known,) = several()
    life.ask("set_topic", name="third", is_archived=True)
    life.settle()
    show(known)
    newcomer = life.peer()
    newcomer.connection.client = "7@elsewhere"
    assert sends_all(life, newcomer) == ([0, 0, 0], 0)
    traced = {route.topic: route.traced for route in newcomer.connection.routes.values()}
    own = life.broker.ledger.tracing.sender(life.topic_number("third"), "shop", "7@elsewhere")
    assert own is not None
    assert traced == {"a": None, "of_another_length": None, "third": own}


@pytest.mark.parametrize("details", [{"app": "other"}, {"host": "10.9.8.7"}, {"namespace": "far"}], ids=str)
def test_another_app_host_or_namespace_shows_for_itself(details):
    life, (known,) = several(broker=BrokerLife(creates_missing=True))
    show(life.peer(**details))  # so that the metadata need not change again
    show(known)
    life.broker.sessions.shared_routes.clear()
    known.connection.forget_routes()
    show(known)
    newcomer = life.peer(**details)
    assert sends_all(life, newcomer) == ([0, 0, 0], 2)
    prefix = f"{details['namespace']}." if "namespace" in details else ""
    assert {route.topic for route in newcomer.connection.routes.values()} == {f"{prefix}{topic}" for topic in NAMES}


def test_nobody_speaks_for_another_app_by_what_that_has_shown():
    life, (known,) = several(broker=BrokerLife(creates_missing=True))
    stranger = life.peer(app="other")
    show(stranger, NAMES[0])
    known.connection.forget_routes()
    show(known)
    forged = [replace(to(stranger, topic, b"forged"), app="shop") for topic in NAMES]
    show(stranger, NAMES[0])
    (ids,) = arrive(life, (stranger, forged))
    life.settle()
    assert [stranger.received(one).status for one in ids] == [ConnectionNotFoundError.status] * 3
    life.sync()
    assert all(b"forged" not in life.stored(topic, partition) for topic in NAMES for partition in range(2))


def test_a_shared_route_of_another_version_is_none():
    life, (known,) = several()
    shared, version = life.broker.sessions.shared_routes, life.broker.ledger.metadata.version
    (key, *_) = known.connection.routes
    assert shared.find(known.connection, key, version) is not None
    assert shared.find(known.connection, key, version + 1) is None


def test_a_black_list_holds_for_those_who_could_share_a_route():
    life, (known,) = several()
    life.ask("subscribe", topic="third", app="shop", producer={"black_list": ["10.9.8.7"]})
    life.settle()
    show(known)
    assert sends_all(life, life.peer(host="10.9.8.7"))[0] == [0, 0, SendForbiddenError.status]


def test_shared_routes_end_with_the_metadata_they_were_made_of():
    life, _ = several()
    newcomer = life.peer()
    show(newcomer, NAMES[0])
    life.ask("drop_topic", name="third")
    (ids,) = arrive(life, (newcomer, [to(newcomer, topic, b"new") for topic in NAMES]))
    life.settle()
    assert [one if isinstance(one, int) else 0 for one in places(newcomer, ids)] == [0, 0, 189]


def test_a_refused_turn_ends_shared_routes():
    life, (peer,) = several()
    life.disk.fail("write", FULL)
    arrive(life, (peer, [to(peer, topic, b"refused") for topic in NAMES]))
    life.engine.end_turn()
    assert life.broker.sessions.shared_routes._routes == {}


HOSTS = ("127.0.0.1", "10.9.8.7")


def everyday(seed, shares):
    """Some turns of a broker with peers, topics and operators that come and go: what was answered, and is stored."""
    rng, life = Random(seed), BrokerLife(creates_missing=True)
    for topic in NAMES:
        life.ask("create_topic", name=topic, partitions=2)
    shared = life.broker.sessions.shared_routes
    find, found = shared.find, []

    def find_and_count(*asked):
        route = find(*asked) if shares else None
        found.extend([route] if route is not None else [])
        return route

    shared.find = find_and_count
    peers, told = [], []
    for turn in range(40):
        if len(peers) < 3 or rng.random() < 0.2:
            peers.append(life.peer(app=rng.choice(("shop", "other")), host=rng.choice(HOSTS)))
        chance = rng.random()
        if chance < 0.06:
            life.ask("set_topic", name="a", is_writable=rng.random() < 0.7)
        elif chance < 0.1:
            black = [rng.choice(HOSTS)] if rng.random() < 0.5 else []
            life.ask("subscribe", topic="third", app="shop", producer={"black_list": black})
        elif chance < 0.15:
            life.disk.fail("write", FULL)
        elif chance < 0.2:
            life.sync()
        sent = []
        for peer in rng.sample(peers, min(len(peers), rng.choice((1, 2, 4)))):
            commands = []
            for nth in range(rng.choice((1, 1, 3, 6))):
                qos = rng.choice((Qos.WRITE, Qos.WRITE, Qos.WRITE, Qos.FLUSH))
                body = b"%d of turn %d" % (nth, turn)
                one = peer.produce_command(
                    body, topic=rng.choice(NAMES), partition=rng.choice((0, 0, 0, 1, 9)), qos=qos
                )
                commands.append(replace(one, app="shop") if rng.random() < 0.05 else one)
            sent.append((peer, commands))
        ids = [arrive(life, one)[0] for one in sent]  # one after the other: else who is quicker goes first
        life.settle()
        for (peer, _), its in zip(sent, ids, strict=True):
            told.append([(peer.received(one).status, peer.received(one).body) for one in its])
    life.sync()
    stored = [life.stored(topic, partition) for topic in NAMES for partition in range(2)]
    return told, stored, len(found)


@pytest.mark.parametrize("seed", range(12))
def test_with_shared_routes_all_is_answered_and_stored_as_without(seed):
    *shared, found = everyday(seed, shares=True)
    *alone, _ = everyday(seed, shares=False)
    assert shared == alone
    assert found > 5
