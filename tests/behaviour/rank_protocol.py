"""The ranks' protocol as a stranger or a faulty rank speaks it (src/distributed/rank_messages.h)."""

from __future__ import annotations

import hmac
import json
import socket

BY_HAND = "by hand"  # the name of a run whose ranks are told who they are by RANK and WORLD_SIZE


def proof(secret: str, side: str, port: int, rank: int, zero: str, caller: str, run: str = BY_HAND) -> str:
    text = f"titan {side} {port} {rank} {zero} {caller}"
    return hmac.new(f"{secret}\n{run}".encode(), text.encode(), "sha1").hexdigest()


class Peer:
    """One end of a connection: lines of JSON, or of anything else. No wait is longer than 30 s."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(30)
        self.socket = connection
        self.lines = connection.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.lines.close()
        self.socket.close()

    def send(self, *words: dict | bytes) -> bool:
        """False when the other side is gone."""
        lines = [json.dumps(one).encode() if isinstance(one, dict) else one for one in words]
        try:
            self.socket.sendall(b"".join(line + b"\n" for line in lines))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def read(self) -> dict | None:
        """The next message; nothing when the other side is gone."""
        try:
            line = self.lines.readline()
        except ConnectionResetError:
            return None
        return json.loads(line) if line else None


def call(port: int) -> Peer:
    return Peer(socket.create_connection(("127.0.0.1", port), timeout=30))


def prove(peer: Peer, port: int, rank: int, secret: str = "") -> bool:
    """Whether rank 0 and this caller, as rank `rank`, have proved to each other that they know the secret."""
    greeting = peer.read()
    if not greeting:
        return False
    zero = greeting["titan"]
    peer.send({"hello": {"rank": rank, "nonce": "1", "proof": proof(secret, "caller", port, rank, zero, "1")}})
    return peer.read() == {"proof": proof(secret, "rank 0", port, rank, zero, "1")}


def join(port: int, rank: int, secret: str = "") -> Peer:
    """As rank `rank`, up to its report."""
    peer = call(port)
    assert prove(peer, port, rank, secret)
    return peer


def receive(listener: socket.socket, secret: str = "") -> tuple[Peer, dict]:
    """As rank 0, up to the report of whoever calls."""
    peer = Peer(listener.accept()[0])
    peer.send({"titan": "0"})
    hello = peer.read()["hello"]
    port = listener.getsockname()[1]
    peer.send({"proof": proof(secret, "rank 0", port, hello["rank"], "0", hello["nonce"])})
    return peer, peer.read()


def report(rank: int, size: int, **more: object) -> dict:
    """What a rank says of itself."""
    facts = {"rank": rank, "size": size, "host": "here", "machine": "", "local_rank": -1, "local_size": -1, "gpus": []}
    facts |= {"process": 1, "device": "cpu", "uuid": "", "cores": [0], "threads": 1, "host_cores": 1, "program": ""}
    return facts | {"config": "{}", "problem": "", "code": 0} | more
