"""A consumer of K/V events, as a router is one."""

import json
import struct

import msgpack
import zmq

from harness import Server, Skip, eventually, holds, metrics  # noqa: F401

BLOCK = 16
CONTEXT = zmq.Context()
END = b"\xff" * 8


def publishing_server(*options, **more):
    """A server that publishes, with replays, at ports of its own choice."""
    try:
        return Server("--name", "demo", "--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*", *options, **more)
    except AssertionError as e:
        if "no ZeroMQ" in str(e):
            raise Skip("this build has no ZeroMQ") from e
        raise


class Blocks:
    """What a consumer believes: {medium: {hash: (parent, token ids, extra keys)}}."""

    def __init__(self):
        self.known = {"GPU": {}, "CPU": {}, "DISK": {}}
        self.next = 0
        self.log = []  # (timestamp, event)

    def take(self, number, payload):
        holds(number == self.next, f"message {number} comes where {self.next} is due")
        self.next = number + 1
        timestamp, events, rank = msgpack.unpackb(payload, strict_map_key=False)
        holds(rank == 0 and len(events) == 1, (rank, events))
        for event in events:
            self.log.append((timestamp, event))
            getattr(self, "on_" + event["type"])(event)

    def on_BlockStored(self, e):
        known, parent = self.known[e["medium"]], e["parent_block_hash"]
        holds(e["block_size"] == BLOCK and len(e["token_ids"]) == BLOCK * len(e["block_hashes"]), "whole blocks")
        holds(e["lora_id"] is None and e["lora_name"] is None, "no adapters")
        holds(parent is None or parent in known, "the block before it is known")
        keys = e["extra_keys"]
        for i, h in enumerate(e["block_hashes"]):
            holds(h not in known, "a block is stored once")
            known[h] = (parent, e["token_ids"][i * BLOCK:(i + 1) * BLOCK], keys[i] if keys else None)
            parent = h

    def on_BlockRemoved(self, e):
        for h in e["block_hashes"]:
            del self.known[e["medium"]][h]

    def on_AllBlocksCleared(self, e):
        for known in self.known.values():
            known.clear()

    def ends(self, medium):
        """The beginnings that end where no other goes on: [(token ids, salt)]."""
        known = self.known[medium]
        inner = {parent for parent, _, _ in known.values()}
        return [self.text(medium, h) for h in sorted(known) if h not in inner]

    def text(self, medium, h):
        known, ids, keys = self.known[medium], [], None
        while h is not None:
            parent, block, keys = known[h]
            ids = block + ids
            h = parent
        return ids, next((k for k in keys or () if isinstance(k, str)), None)

    def credit(self, medium, rendered, salt=None):
        """Of a request, as a render route gives it: how many tokens a router takes to be there, and how many of them must be, since
        a beginning that was published ends there."""
        places = {}
        for h, (parent, ids, keys) in self.known[medium].items():
            places[parent, tuple(ids), json.dumps(keys)] = h
        ids, features = rendered["token_ids"], rendered["features"]
        pictures = []
        if features:
            pictures = zip(features["mm_hashes"]["image"], features["mm_placeholders"]["image"])
        pictures = [(digest, p["offset"], p["offset"] + p["length"]) for digest, p in pictures]
        inner = {parent for parent, _, _ in self.known[medium].values()}
        h, sure = None, 0
        for begin in range(0, len(ids) - BLOCK + 1, BLOCK):
            keys = [[digest, first - begin] for digest, first, end in pictures if first < begin + BLOCK and end > begin]
            if begin == 0 and salt:
                keys.append(salt)
            h = places.get((h, tuple(ids[begin:begin + BLOCK]), json.dumps(keys or None)))
            if h is None:
                return begin, sure
            if h not in inner:
                sure = begin + BLOCK
        return len(ids) // BLOCK * BLOCK, sure


class Consumer(Blocks):
    """Subscribed from before the first request on; what came earlier is asked for again."""

    def __init__(self, server, topic=b""):
        super().__init__()
        self.server, self.topic = server, topic
        self.socket = CONTEXT.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.socket.connect(server.addresses["kv_events"])

    def published(self):
        values = metrics(self.server.get("/metrics").body.decode())
        return int(sum(v for k, v in values.items() if k.startswith("kakeya_kv_events_total")))

    def receive(self, wait):
        if not self.socket.poll(int(wait * 1000)):
            return False
        topic, number, payload = self.socket.recv_multipart()
        holds(topic == self.topic, topic)
        number = struct.unpack(">Q", number)[0]
        if number > self.next:  # before the subscription was there
            for n, p in replay(self.server, self.next):
                if n == self.next and n < number:
                    self.take(n, p)
        if number >= self.next:
            self.take(number, payload)
        return True

    def catch_up(self):
        """Takes everything that was published before now."""
        due = self.published()

        def all_there():
            if self.receive(0.05) or self.next >= due:
                return self.next >= due
            for n, p in replay(self.server, self.next):  # nothing more may come that shows the gap
                if n == self.next:
                    self.take(n, p)
            return self.next >= due

        eventually(all_there, f"{due} messages")

    def close(self):
        self.socket.close(0)


def replay(server, first, kind=zmq.DEALER, envelope=(b"",)):
    """[(number, payload)] of what is sent again."""
    s = CONTEXT.socket(kind)
    s.setsockopt(zmq.RCVTIMEO, 60000)
    s.connect(server.addresses["kv_events_replay"])
    s.send_multipart([*envelope, struct.pack(">Q", first)])
    messages = []
    while True:
        *begun, number, payload = s.recv_multipart()
        holds(tuple(begun) == tuple(envelope), begun)
        if number == END:
            s.close(0)
            return messages
        messages.append((struct.unpack(">Q", number)[0], payload))
