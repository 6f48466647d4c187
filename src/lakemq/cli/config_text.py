"""The file that `lakemq config init` writes: every setting, what it means, and its default."""

from lakemq.config import KEYS, SECTIONS, Key, shown

HEAD = """\
# LakeMQ's settings. A line without # counts; what is left out has the value shown.
# Spans of time: 500ms, 10s, 5m, 2h, 7d. Sizes: 512KiB, 64MiB, 1GiB.
# Stronger than this file: LAKEMQ_SECTION__KEY in the environment, then flags. `lakemq config show --origin` has all.
"""
TITLES = {
    "server": "Where the broker is.",
    "broker": "How it behaves.",
    "limits": "Caps: larger means more memory. What is beyond is slowed down, refused or closed, never kept.",
    "delays": "Messages that wait until they are due.",
    "transactions": "Messages that wait for a commit. What is beyond is refused.",
    "storage": "The journal. Larger means fewer files and pauses, and more memory or a longer recovery.",
    "retention": "How long messages are kept; a segment goes when either limit says so. Nothing set: for ever.",
    "archive": "Topics that are copied to the lake: retention waits for the copy.",
    "admin": "The HTTP interface for operators: /v1, /healthz, /readyz, /metrics.",
    "log": "What is written to stderr.",
}
TEXTS = {
    "server.data": "The directory of journal, indexes and the operators' token.",
    "server.host": "The address for clients; 0.0.0.0 for all.",
    "server.port": "The port for clients; 0: any that is free.",
    "broker.broker_id": "Its number in a cluster.",
    "broker.group_id": "The partition group it holds.",
    "broker.data_center": "Clients of the same one are told that it is near.",
    "broker.advertised_host": "What clients are told to connect to; empty: the address they came to.",
    "broker.advertised_port": "The same for the port.",
    "broker.creates_missing": "Topics, apps and subscriptions are made on first use, and any token will do.",
    "broker.partitions_default": "Of a topic whose maker does not say.",
    "broker.batch_size_default": "Messages of one fetch, if the consumer policy does not say.",
    "broker.admin_app": "An app that may speak for every app; empty: none.",
    "broker.assignor": "How partitions are shared out.",
    "broker.produce_timeout_ms": "How long a send may wait for its sync, unless the client says.",
    "broker.long_poll_max_ms": "How long a fetch may wait for messages, at the most.",
    "broker.session_timeout_ms": "A consumer that asks for nothing for so long loses its partitions.",
    "broker.slow_sync_ms": "A sync that takes longer makes new sends that wait for one fail (101).",
    "broker.sync_limit_ms": "One that takes longer than this ends the broker.",
    "broker.lazy_sync_ms": "While nobody waits for a sync, there is none sooner than this after the last.",
    "broker.drain_timeout_ms": "How long a stop may take.",
    "broker.retention_every_ms": "How often retention looks.",
    "broker.retries_max": "Messages that wait to be tried again; more failures are refused (240).",
    "broker.dead_letters_max": "Dead letters; when there are more, messages are tried again instead.",
    "broker.uniq_ids_max": "How many sent ids are remembered, to store a repeated send once.",
    "broker.uniq_ids_ms": "For how long they are.",
    "delays.delay_max_ms": "A message may not wait for longer.",
    "delays.delays_max": "Messages that wait; more are refused.",
    "delays.share_count": "Shares that are released independently: a message that cannot be stored holds up its own.",
    "delays.unfiled_max": "Rows held in the snapshot; beyond, they are filed in blocks.",
    "delays.block_rows": "Rows in one block.",
    "delays.near_ms": "How far ahead rows are read from blocks.",
    "delays.release_messages": "Messages released in one go.",
    "delays.release_bytes": "The same in bytes.",
    "delays.merge_bytes": "Messages for one partition go into one record up to this size.",
    "delays.cancelled_max": "Cancelled messages that are remembered until their time would have come.",
    "transactions.timeout_ms": "Of a transaction whose client names none.",
    "transactions.purge_ms": "An undecided one with an id of its own is rolled back after so long.",
    "transactions.offer_every_ms": "How often producers are told of the same undecided one.",
    "transactions.open_max": "Open at once, of one app on one topic (148).",
    "transactions.open_total_max": "The same of all.",
    "transactions.parts_max": "Requests with messages, of one transaction.",
    "transactions.parts_total_max": "The same of all.",
    "transactions.bytes_max": "Messages of one transaction.",
    "transactions.decided_max": "Outcomes that are remembered.",
    "transactions.decided_ms": "For how long they are.",
    "transactions.cache_bytes_max": "Messages kept in memory, so that a commit need not read them back.",
    "limits.connections_max": "More are closed at once.",
    "limits.frame_bytes_max": "A longer request ends its connection.",
    "limits.in_flight_bytes_max": "Requests of one connection that wait for a sync: beyond, it is read from no more.",
    "limits.in_flight_bytes_total_max": "The same over all connections.",
    "limits.unsynced_bytes_high": "Written and not synced: beyond, producers are read from no more.",
    "limits.held_bytes_total_max": "Requests that arrived in part: the connection that goes beyond is closed.",
    "limits.fetch_bytes_max": "What one answer carries, but one message in any case.",
    "limits.read_bytes_max": "The same for clients that read from where they say, as Spark's workers do.",
    "limits.output_bytes_max": "Answers that a client does not read: beyond, none of its requests is served.",
    "limits.output_stall_ms": "A client that reads nothing for so long is closed.",
    "limits.parked_polls_max": "Waiting fetches; more are answered at once, empty.",
    "limits.parked_polls_per_connection_max": "The same of one connection.",
    "limits.introduction_ms": "A client that has not introduced itself by then is closed.",
    "limits.frame_stall_ms": "One that leaves a request unfinished for so long is closed.",
    "limits.idle_ms": "One that says nothing for so long is closed.",
    "limits.roles_per_connection_max": "Topics that one connection may produce to or consume from.",
    "limits.topics_max": "How many topics there may be.",
    "limits.apps_max": "How many apps.",
    "limits.subscriptions_max": "How many subscriptions.",
    "limits.partitions_total_max": "How many partitions, of all topics.",
    "storage.segment_bytes": "One file of the journal; retention drops whole ones.",
    "storage.record_bytes_max": "One request's messages of one partition.",
    "storage.entries_per_file": "Of a partition's index.",
    "storage.checkpoint_bytes": "About so much is read again after a crash, at the most.",
    "storage.unsynced_bytes_max": "More is refused until a sync has caught up.",
    "storage.control_reserve_bytes": "Of each segment, that messages leave to acks and the like.",
    "storage.index_pending_bytes_max": "Index entries in memory before they go to files.",
    "storage.open_segments_max": "Files kept open.",
    "storage.open_index_files_max": "Files kept open.",
    "storage.visible_after": "When consumers see messages: after a sync, or a write, which a power cut may take back.",
    "storage.maps_segments": "Read through the page cache without a copy; only with the compiled twin.",
    "storage.sync_every_messages": "Sync when so many wait; none: as soon as anything is written.",
    "storage.sync_every_ms": "Sync when the oldest has waited so long, or 16MiB wait; none: at once.",
    "retention.age_ms": "Older segments go.",
    "retention.size_bytes": "The oldest segments beyond this go.",
    "archive.app": "Who copies them: it is subscribed to each, and tells how far it is.",
    "archive.lag_bytes_max": "Retention waits for it no further than this, in bytes of the journal; 0: for ever.",
    "admin.host": "The address for operators. Beyond this machine, put a proxy with TLS in front.",
    "admin.port": "The port for operators; 0: any that is free.",
    "admin.token_file": "A file with the operators' token; empty: one is made in the data directory.",
    "admin.request_timeout_ms": "How long the broker may take to answer an operator.",
    "admin.disk_free_bytes_min": "With less disk free, /readyz says no.",
    "log.format": "text, json, or auto: text on a terminal, JSON elsewhere.",
    "log.level": "debug, info, warning or error.",
}


def template() -> str:
    """The whole file."""
    parts = [HEAD]
    for section in SECTIONS:
        parts.append(f"\n# {TITLES[section]}\n[{section}]\n")
        parts += [_lines(key) for key in KEYS.values() if key.section == section and not key.is_secret]
        if section == "admin":
            parts.append("# The token itself is never in this file: LAKEMQ_ADMIN__TOKEN, or token_file.\n")
    return "".join(parts)


def _lines(key: Key) -> str:
    value = shown(key, key.default)
    text = TEXTS.get(key.path, "")
    if value == "none":
        return f"# {text}\n# {key.name} =\n"
    return f"# {text}\n# {key.name} = {value}\n"
