"""What strangers on the machine and broken peers may do to a run: silent and forging callers, a listener that answers
first, nested text and garbage. All of it on loopback. A rank ends within its limits, by no signal, with an exit code of
the table that is not 0, or goes on. Garbage in every message: tests/distributed/garbage_test.cpp,
tests/checkpoint/garbage_words_test.cpp.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import pathlib
import random
import resource
import selectors
import socket
import struct
import threading
import time
import unittest

import rank_protocol
from program import BAD_CONFIG, BAD_DATA, FULL, OK, STORAGE, UNFRIENDLY, BehaviourTest
from rank_processes import LAUNCHER, PEER_FAILURE, Process, RanksTest, free_port

SECRET = "the run's own"
LISTENS = "0A"  # a socket's state in /proc/net/tcp
LOOPBACK = {"0100007F", "0200007F", "0101007F", "0" * 24 + "01000000"}  # 127.0.0.1, .0.2, .1.1 and ::1
GARBAGE = 4000 if FULL else 400
SPOILT = 6 if FULL else 2  # of messages that each need a run of their own


def listening(processes: list[int]) -> set[tuple[str, int]]:
    """The addresses that processes listen on, IPv4 and IPv6, in the kernel's hexadecimal digits."""
    inodes = set()
    for pid in processes:
        for file in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(str(file.readlink()))
            except FileNotFoundError:
                pass
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS and f"socket:[{words[9]}]" in inodes:
                host, port = words[1].split(":")
                found.add((host, int(port, 16)))
    return found


def is_loopback(host: str) -> bool:
    """Whether it has addresses here, and rank 0 can listen on them without being seen from other hosts."""
    try:
        found = {where[0] for *_, where in socket.getaddrinfo(host, None)}
        for address in found:
            socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError:
        return False
    return all(ipaddress.ip_address(address).is_loopback for address in found)


class SilentCallers:
    """Connections that say nothing and are made anew as soon as they are dropped."""

    def __init__(self, port: int, count: int):
        self.calls = 0
        self.address = ("127.0.0.1", port)
        self.selector = selectors.DefaultSelector()
        self.ends = False
        self.thread = threading.Thread(target=self.call_again_and_again, args=(count,))
        self.thread.start()

    def end(self):
        self.ends = True
        self.thread.join()

    def call(self):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(self.address)
        self.selector.register(connection, selectors.EVENT_READ)
        self.calls += 1

    def call_again_and_again(self, count: int):
        for _ in range(count):
            self.call()
        while not self.ends:
            for key, _ in self.selector.select(timeout=0.1):
                try:
                    is_dropped = not key.fileobj.recv(4096)
                except OSError:
                    is_dropped = True
                if is_dropped:
                    self.selector.unregister(key.fileobj)
                    key.fileobj.close()
                    self.call()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()


class Doors(RanksTest):
    def zero(self, size: int, port: int, *words, **variables) -> Process:
        """Rank 0, once it listens."""
        rank = self.by_hand(0, size, port, *words, **variables)
        self.wait_until(lambda: listening([rank.popen.pid]), "rank 0 listens")
        return rank

    def expect_code(self, rank: Process, code: int, says: str, limit: float = 30):
        self.assertEqual(rank.end(limit), code, rank.text())
        self.assertRegex(rank.text(), says)
        self.expect_friendly(rank.text())

    # ---- who listens

    def test_ranks_of_one_machine_listen_on_loopback_alone_and_only_while_they_gather(self):
        rank = self.zero(2, free_port())
        self.assertEqual({host for host, _ in listening([rank.popen.pid])}, {"0100007F"})
        run = self.launch(2, "--hold=600")
        limit = time.monotonic() + 60
        seen = set()
        while "ranks agree" not in run.text() and time.monotonic() < limit:
            seen |= listening([run.popen.pid, *self.children(run)])
        self.assertLessEqual({host for host, _ in seen}, {"0100007F"}, run.text())
        self.assertEqual(listening([run.popen.pid, *self.children(run)]), set())

    def test_names_and_addresses_of_loopback_are_the_only_ones_listened_on(self):
        own, everywhere = socket.gethostname(), {"00000000", "0" * 32}
        told = {"127.0.0.2": {}, "::1": {}, "localhost": {}, own: {"LOCAL_WORLD_SIZE": 2}}
        for host, more in told.items():
            if not is_loopback(host):
                continue  # without IPv6, or in a network that knows this host's name
            with self.subTest(host):
                port = free_port()
                ranks = [self.zero(2, port, MASTER_ADDR=host, LOCAL_RANK=0, **more)]
                self.assertLessEqual({at for at, _ in listening([ranks[0].popen.pid])}, LOOPBACK)
                ranks.append(self.by_hand(1, 2, port, MASTER_ADDR=host, LOCAL_RANK=1, **more))
                self.assertEqual([rank.end() for rank in ranks], [OK, OK], ranks[0].text())
        if is_loopback(own):
            rank = self.zero(2, free_port(), MASTER_ADDR=own)  # which other hosts may call by another address
            self.assertLessEqual({at for at, _ in listening([rank.popen.pid])}, everywhere)

    def test_gloo_between_ranks_of_one_machine_listens_on_loopback_alone(self):
        run = self.launch_training(2, "--comm.shared_memory=false")
        run.wait_for("step:  2 ")
        self.assertEqual({host for host, _ in listening([run.popen.pid, *self.children(run)])}, {"0100007F"})

    @staticmethod
    def children(run: Process) -> list[int]:
        return [int(pid) for pid in pathlib.Path(f"/proc/{run.popen.pid}/task/{run.popen.pid}/children").read_text().split()]

    # ---- silence

    def allow_many_files(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def silent(self, port: int, count: int) -> list[socket.socket]:
        self.allow_many_files()
        strangers = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(count)]
        for stranger in strangers:
            self.addCleanup(stranger.close)
        return strangers

    def test_two_thousand_silent_callers_are_dropped_and_do_not_keep_ranks_from_their_rendezvous(self):
        port = free_port()
        ranks = [self.zero(2, port)]
        strangers = self.silent(port, 2000)
        ranks.append(self.by_hand(1, 2, port))
        self.assertEqual([rank.end(60) for rank in ranks], [OK, OK], ranks[0].text())
        for stranger in strangers:
            stranger.setblocking(False)
            with self.assertRaises((ConnectionResetError, AssertionError)):
                while stranger.recv(4096):
                    pass
                raise ConnectionResetError

    def test_ranks_that_silent_callers_keep_away_end_within_the_time_they_were_given(self):
        port = free_port()
        rank = self.zero(2, port, "--comm.init_timeout_seconds=3")
        self.silent(port, 1500)
        self.expect_code(rank, LAUNCHER, r"rank 1 of 2 did not connect within 3 s.*; \d{3,4} callers sent nothing", limit=20)

    def test_silent_callers_that_call_again_and_again_do_not_keep_ranks_from_their_rendezvous(self):
        port = free_port()
        ranks = [self.zero(2, port, "--comm.init_timeout_seconds=20")]
        self.allow_many_files()
        again = SilentCallers(port, 1500)
        self.addCleanup(again.end)
        self.wait_until(lambda: again.calls >= 1500, "all strangers have called")
        ranks.append(self.by_hand(1, 2, port, "--comm.init_timeout_seconds=20"))
        self.assertEqual([rank.end(60) for rank in ranks], [OK, OK], "".join(rank.text() for rank in ranks))

    def test_descriptors_that_run_out_are_called_so(self):
        facts = self.facts_of_a_rank(64)
        port = free_port()
        rank = self.start("ranks", *self.options(), limits={resource.RLIMIT_NOFILE: 40}, **self.rank_variables(0, 64, port))
        self.wait_until(lambda: listening([rank.popen.pid]), "rank 0 listens")
        with contextlib.ExitStack() as peers:
            for number in range(1, 41):
                peer = peers.enter_context(rank_protocol.call(port))
                if not rank_protocol.prove(peer, port, number):
                    break
                peer.send(facts | {"rank": number})
            self.expect_code(rank, LAUNCHER, "rank 0 cannot take the calls of 64 ranks: Too many open files; raise the limit on")

    # ---- forged words

    def test_words_of_strangers_end_nothing_and_the_ranks_meet(self):
        port = free_port()
        ranks = [self.zero(2, port, TITAN_SECRET=SECRET)]
        forged = rank_protocol.report(1, 2, problem="forged", code=0)
        for words in (forged, {"refused": {"code": 0, "text": ""}}, b"[" * 200_000, b"GET / HTTP/1.1", b"\0" * 100_000):
            with rank_protocol.call(port) as stranger:
                self.assertEqual(list(stranger.read()), ["titan"], "the greeting holds a number used once")
                stranger.send(words)
                self.assertIsNone(stranger.read(), "nothing else is said to a stranger")
        with self.assertRaises(AssertionError):
            rank_protocol.join(port, 1, "guessed")
        ranks.append(self.by_hand(1, 2, port, TITAN_SECRET=SECRET))
        self.assertEqual([rank.end() for rank in ranks], [OK, OK], ranks[0].text())

    def test_mutated_words_of_strangers_end_nothing_and_the_ranks_meet(self):
        port = free_port()
        ranks = [self.zero(2, port, TITAN_SECRET=SECRET)]
        seeds = [rank_protocol.report(1, 2), {"hello": {"rank": 1, "nonce": "1", "proof": "0" * 40}}, {"titan": "x"},
                 {"failed": {"code": 65, "text": "x"}}, {"store": {"kind": 0, "keys": ["a"], "values": ["00"], "id": 1}}]
        chance = random.Random(1)
        for number in range(GARBAGE):
            words = bytearray(json.dumps(seeds[number % len(seeds)]).encode())
            for _ in range(chance.randint(1, 4)):
                place = chance.randrange(len(words))
                words[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
                words = words or bytearray(b"{")
            with rank_protocol.call(port) as stranger:
                stranger.read()
                stranger.send(bytes(words))
        ranks.append(self.by_hand(1, 2, port, TITAN_SECRET=SECRET))
        self.assertEqual([rank.end() for rank in ranks], [OK, OK], ranks[0].text())

    def test_a_report_whose_code_is_no_failures_does_not_become_the_exit_code(self):
        for code in (0, 1, 63, 128, 256, -1):
            with self.subTest(code):
                rank = self.zero(2, port := free_port())
                with rank_protocol.join(port, 1) as peer:
                    peer.send(rank_protocol.report(1, 2, problem="forged", code=code))
                    self.expect_code(rank, LAUNCHER, "rank 1 sent a report that cannot be read")

    def test_words_of_a_rank_that_cannot_be_read_end_the_run_with_its_name(self):
        told = {"failed": {"code": 0, "text": "forged"}}
        words = [told, told | {"failed": {"code": 1, "text": ""}}, b"{", b"[" * 200_000, {"store": {"kind": 99}}, b"\xff"]
        facts = self.facts_of_a_rank(2)
        for one in words[:SPOILT]:
            with self.subTest(one if isinstance(one, dict) else one[:10]):
                rank = self.zero(2, port := free_port(), "--hold=600")
                with rank_protocol.join(port, 1) as peer:
                    peer.send(facts | {"host": "here", "process": 1})
                    self.assertIn("welcome", peer.read())
                    peer.send(one)
                    self.expect_code(rank, PEER_FAILURE, r"rank 1 \(here, process 1\) sent a message that cannot be read")

    def facts_of_a_rank(self, size: int) -> dict:
        """What a real rank 1 of this program and config reports."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            real = self.by_hand(1, size, listener.getsockname()[1])
            peer, facts = rank_protocol.receive(listener)
            real.popen.kill()
            peer.close()
        return facts

    def test_a_stranger_that_answers_first_gets_no_config_and_ends_nothing(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            rank = self.by_hand(1, 2, port, "--comm.init_timeout_seconds=4", TITAN_SECRET=SECRET)
            for words in ({"refused": {"code": 0, "text": ""}}, {"proof": "0" * 40}, {"welcome": {"cores": 1}}):
                with rank_protocol.Peer(listener.accept()[0]) as caller:
                    caller.send({"titan": rank_protocol.BY_HAND})
                    self.assertEqual(list(caller.read()), ["hello"])
                    caller.send(words)
                    self.assertIsNone(caller.read(), "it says no more to a stranger")
            self.expect_code(rank, LAUNCHER, r"rank 0 was not found on .* or to a run with another secret")

    def test_a_rank_0_whose_words_cannot_be_read_ends_the_others_with_a_failure(self):
        for words in ({"refused": {"code": 0, "text": ""}}, {"welcome": {"cores": 1, "by": "x", "place": 1, "beside": []}}):
            with self.subTest(words), socket.create_server(("127.0.0.1", 0)) as listener:
                rank = self.by_hand(1, 2, listener.getsockname()[1])
                peer, _ = rank_protocol.receive(listener)
                with peer:
                    peer.send(words)
                    self.expect_code(rank, PEER_FAILURE, r"rank 0 \(127.0.0.1:\d+\) sent a message that cannot be read")

    def test_the_secret_may_be_in_a_file_that_others_cannot_read(self):
        secret = self.write("secret", SECRET + "\n")
        secret.chmod(0o644)
        self.expect_code(self.by_hand(0, 2, free_port(), TITAN_SECRET_FILE=secret), LAUNCHER, "can be read by others; chmod 600")
        secret.chmod(0o600)
        port = free_port()
        ranks = [self.by_hand(0, 2, port, TITAN_SECRET_FILE=secret), self.by_hand(1, 2, port, TITAN_SECRET=SECRET)]
        self.assertEqual([rank.end() for rank in ranks], [OK, OK], ranks[0].text())


DEEP = 200_000
BRACKETS = "[" * DEEP
JSON = '{"a": ' * DEEP
DOTS = ".".join(["a"] * 20_000)
CONFIGS = {
    "brackets": "a = " + BRACKETS,
    "closed": f"a = {BRACKETS}{']' * DEEP}",
    "dotted keys": f"{DOTS} = 1",
    "dotted table": f"[{DOTS}]",
    "dotted in a table": f"[training]\n{DOTS} = 1",
    "inline tables": "a = " + "{a=" * DEEP,
    "dots and brackets": "a = " + ("{" + ".".join(["a"] * 40) + "=") * 200,
    "pattern": f"[[optimizer.param_groups]]\nmatch = '{'(' * DEEP}'",
    "host": f"[comm]\nrank = 0\nworld_size = 2\nmaster = '{'a' * DEEP}:1'",
}


class NestedText(BehaviourTest):
    def expect_refused(self, code: int, *words):
        run = self.titan(*words)
        self.assertEqual(run.code, code, f"{words}: {run.errors[-2000:]}")
        for unfriendly in UNFRIENDLY:
            self.assertNotIn(unfriendly, run.errors)
        self.assertNotEqual(run.errors, "")

    def test_a_config_is_refused_with_its_place(self):
        for name, text in CONFIGS.items():
            with self.subTest(name):
                path = self.write("deep.toml", text)
                run = self.titan("config", "show", path)
                self.assertEqual(run.code, BAD_CONFIG, run.errors[-2000:])
                self.assertRegex(run.errors, rf"{path}:\d+:\d+: ")
                self.assertLess(len(run.errors), 2000)

    def test_options_on_the_command_line(self):
        most = 60_000  # the system's limit on a word is 131,072
        words = ["[" * most, "{" * most, "(" * most, "a." * (most // 2)]
        options = ("training.steps", "comm.master", "model.converters", "training.dataset_path")
        values = [f"--{option}={word}" for word in words for option in options]
        names = [f"--{word}=1" for word in words]
        for said, given in (("--training.steps: ", values), ("unknown option ", names)):
            run = self.titan("config", "show", *given)
            self.assertEqual(run.code, BAD_CONFIG, run.errors[:2000])
            self.assertIn(said, run.errors)

    def test_records_tokenizers_and_traces(self):
        corpus = self.write("deep.jsonl", "".join('{"text": %s\n' % text for text in (BRACKETS, JSON, '"a", "b": ' + BRACKETS)))
        tokenizer = pathlib.Path(self.write("tokenizer.json", '{"model": ' + BRACKETS))
        normalizer = '{"type": "Sequence", "normalizers": ['
        closed = self.write("nested.json", '{"model": {"type": "BPE"}, "normalizer": %s%s}' % (normalizer * DEEP, "]}" * DEEP))
        self.expect_refused(BAD_DATA, "data", "stats", "--dataset-path", corpus)
        self.expect_refused(BAD_DATA, "tokenizer", "info", tokenizer)
        self.expect_refused(BAD_DATA, "tokenizer", "info", closed)
        self.expect_refused(BAD_DATA, "profile", "summarize", self.write("trace.json", '{"traceEvents": ' + BRACKETS))

    def test_the_record_of_a_run(self):
        folder = self.folder / "run"
        folder.mkdir()
        (folder / "run.json").write_text(JSON)
        (folder / "metrics.jsonl").write_text(f'{BRACKETS}\n{JSON}\n{{"step": 1, "loss": 2.0}}\n')
        run = self.titan("report", folder, "--out", self.folder / "page.html")
        self.assertIn(run.code, (OK, BAD_DATA), run.errors)

    def test_weights_of_other_programs(self):
        header = JSON.encode()
        for (name, direction), files in {
            ("header", "from-hf"): {"model.safetensors": struct.pack("<Q", len(header)) + header},
            ("index", "from-hf"): {"model.safetensors.index.json": header, "model.safetensors": struct.pack("<Q", 2) + b"{}"},
            ("settings", "from-hf"): {"config.json": header, "model.safetensors": struct.pack("<Q", 2) + b"{}"},
            ("parameters", "from-meta"): {"params.json": header, "consolidated.00.pth": b"PK"},
        }.items():
            folder = self.folder / name
            folder.mkdir()
            for file, text in files.items():
                (folder / file).write_bytes(text)
            with self.subTest(name):
                run = self.titan("convert", direction, folder, self.folder / "made")
                self.assertIn(run.code, (BAD_CONFIG, BAD_DATA, STORAGE), run.errors[:2000])

    def test_a_checkpoints_pickle_and_manifest(self):
        folder = self.folder / "step-1"
        folder.mkdir()
        for nested in (b"\x80\x04" + b"]" * DEEP + b"a" * (DEEP - 1) + b".", b"\x80\x04" + b"(" * DEEP, b"\x80\x04N" + b"\x85" * DEEP + b"."):
            (folder / ".metadata").write_bytes(nested)
            (folder / "manifest.json").write_text(JSON)
            run = self.titan("convert", "verify", folder)
            self.assertIn(run.code, (BAD_DATA, STORAGE), run.errors[:2000])
            (folder / "manifest.json").unlink()
            run = self.titan("convert", "to-hf", folder, self.folder / "made")
            self.assertIn(run.code, (BAD_DATA, STORAGE), run.errors[:2000])


if __name__ == "__main__":
    unittest.main()
