"""Private servers for tests and for people: started with our own command lines on free loopback ports, stopped by pid.

    python -m tools.servers            starts all, prints their URLs, stops them on Ctrl-C
    python -m tools.servers redis      starts one

Data lives in a temporary folder, on tmpfs and without fsync; with ``durable=True`` on the disk and synced.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 20.0
PR_SET_PDEATHSIG = 1


class Missing(Exception):
    """The server is not installed here."""


class Server(ABC):
    """One server process: start, stop, crash, freeze."""

    name: str
    scheme: str
    stop_signal = signal.SIGTERM
    user: str | None = None  # servers that refuse to run as root get their own

    def __init__(self, *, durable: bool = False, port: int | None = None, base: Path | None = None) -> None:
        self.durable = durable
        self.port = port or free_port()
        # tmpfs is fast; what must survive a power cut is not tested there.
        shm = Path("/dev/shm")
        if base is None and shm.is_dir() and os.access(shm, os.W_OK) and not durable:
            base = shm
        self.folder = Path(tempfile.mkdtemp(prefix=f"penstock-{self.name}-", dir=base))
        self.process: subprocess.Popen[bytes] | None = None
        self._prepared = False

    @property
    @abstractmethod
    def url(self) -> str:
        """What ``open_queues`` takes."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the data folder, once."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command line of the server."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes requests."""

    def environment(self) -> dict[str, str]:
        """The environment of the server: nothing of ours but the path."""
        return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}

    def start(self) -> Server:
        """Start it, on the data it has, and wait until it answers."""
        self.launch()
        return self.await_answer()

    def launch(self) -> None:
        """Start it. Not from a thread that ends before it: the server would end with that."""
        if not self._prepared:
            self.own(self.folder)
            self.prepare()
            self._prepared = True
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
                env=self.environment(), user=self._user(), start_new_session=True, preexec_fn=_die_with_parent,  # noqa: PLW1509 - it makes one system call
            )  # fmt: skip

    def await_answer(self) -> Server:
        """Wait until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"{self.name} did not start:\n{tail}")
            time.sleep(0.05)
        return self

    def stop(self, number: int | None = None) -> None:
        """Stop it by its pid; the data stays."""
        number = self.stop_signal if number is None else number
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def crash(self) -> None:
        """kill -9, also of the processes it has started."""
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        # Stopped first: PostgreSQL would answer the death of a child by starting others, which nobody would kill.
        process.send_signal(signal.SIGSTOP)
        children = _children(process.pid)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _await_ends(children)
        process.kill()
        process.wait()

    def freeze(self) -> None:
        """SIGSTOP: it lives and from now on does not answer."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)
            self._signal_children(signal.SIGSTOP)
            for pid in (self.process.pid, *_children(self.process.pid)):
                await_stopped(pid)

    def thaw(self) -> None:
        """SIGCONT."""
        if self.process is not None:
            self._signal_children(signal.SIGCONT)
            self.process.send_signal(signal.SIGCONT)

    def _signal_children(self, number: int) -> None:
        """Signal the processes the server has started; one that has a process per client has many."""
        for pid in _children(self.process.pid) if self.process is not None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str) -> None:
        """Run a tool of the server's as its user."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(), user=self._user(), capture_output=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stdout.decode()}{done.stderr.decode()}")

    def own(self, path: Path) -> None:
        """Give a path to the server's user."""
        user = self._user()
        if user is not None:
            shutil.chown(path, user)

    def _user(self) -> str | None:
        if os.geteuid() != 0 or self.user is None:
            return None
        try:
            pwd.getpwnam(self.user)
        except KeyError:
            return "nobody"
        return self.user

    def _port_open(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


class Postgres(Server):
    """PostgreSQL, trusting everybody on loopback."""

    name = "postgres"
    scheme = "postgresql"
    user = "postgres"
    stop_signal = signal.SIGINT  # do not wait for clients to leave

    def __init__(
        self, *, durable: bool = False, port: int | None = None, base: Path | None = None, **settings: str
    ) -> None:
        self._bin = _newest("/usr/lib/postgresql", "bin/postgres").parent
        self._settings = settings
        super().__init__(durable=durable, port=port, base=base)

    @property
    def url(self) -> str:
        return f"postgresql://penstock@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        data = self.folder / "data"
        self.run(
            str(self._bin / "initdb"), "-D", str(data), "-U", "penstock", "-A", "trust", "-E", "UTF8", "--no-sync",
            "--locale=C.UTF-8", "--data-checksums",
        )  # fmt: skip

    def command(self) -> list[str]:
        switch = "on" if self.durable else "off"
        settings = {
            "port": str(self.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.folder),
            "fsync": switch, "full_page_writes": switch, "max_connections": "60", "shared_buffers": "64MB",
            "dynamic_shared_memory_type": "mmap",  # in the folder, where it goes even when the server is killed
            "deadlock_timeout": "100ms",  # so that tests need not wait a second for each
            **self._settings,
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._bin / "postgres"), "-D", str(self.folder / "data"), *options]

    def answers(self) -> bool:
        ready = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0


class Pgbouncer(Server):
    """PgBouncer in transaction mode before a PostgreSQL that runs."""

    name = "pgbouncer"
    scheme = "postgresql"
    user = "postgres"
    stop_signal = signal.SIGINT

    def __init__(self, behind: Postgres, **settings: str) -> None:
        self._program = _find("pgbouncer")
        self._behind = behind
        self._settings = settings
        super().__init__()

    @property
    def url(self) -> str:
        return f"postgresql://penstock@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        settings = {
            "listen_addr": "127.0.0.1", "listen_port": str(self.port), "unix_socket_dir": str(self.folder),
            "auth_type": "any", "pool_mode": "transaction", "default_pool_size": "5",
            **self._settings,
        }  # fmt: skip
        lines = [
            "[databases]", f"postgres = host=127.0.0.1 port={self._behind.port} dbname=postgres user=penstock",
            "[pgbouncer]", *(f"{name} = {value}" for name, value in settings.items()),
        ]  # fmt: skip
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines))
        self.own(self.folder / "pgbouncer.ini")

    def command(self) -> list[str]:
        return [self._program, str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        return self._port_open()


class Mysql(Server):
    """MariaDB, with a user without password on loopback."""

    name = "mysql"
    scheme = "mysql"
    user = "mysql"

    def __init__(
        self, *, durable: bool = False, port: int | None = None, base: Path | None = None, **settings: str
    ) -> None:
        self._program = _find("mariadbd")
        self._settings = settings
        super().__init__(durable=durable, port=port, base=base)

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/penstock"

    def environment(self) -> dict[str, str]:
        # A server that starts removes what it takes for leftovers in its temporary folder: not those of others.
        return {**super().environment(), "TMPDIR": str(self.folder)}

    def prepare(self) -> None:
        self.run(
            _find("mariadb-install-db"), "--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db",
            "--auth-root-authentication-method=normal", "--skip-name-resolve",
        )  # fmt: skip
        (self.folder / "data" / "penstock").mkdir()
        self.own(self.folder / "data" / "penstock")

    def command(self) -> list[str]:
        settings = {
            "datadir": str(self.folder / "data"), "port": str(self.port), "bind-address": "127.0.0.1",
            "socket": str(self.folder / "mysql.sock"), "pid-file": str(self.folder / "mysql.pid"),
            "innodb-flush-log-at-trx-commit": "1" if self.durable else "0", "innodb-buffer-pool-size": "128M",
            "innodb-log-file-size": "64M", "skip-name-resolve": "1", "max-connections": "60",
            **self._settings,
        }  # fmt: skip
        user = [f"--user={self._user()}"] if self._user() else []
        return [self._program, "--no-defaults", *user, *(f"--{name}={value}" for name, value in settings.items())]

    def answers(self) -> bool:
        ping = [_find("mariadb-admin"), "--no-defaults", "-h127.0.0.1", f"-P{self.port}", "-uroot", "ping"]
        return self._port_open() and subprocess.run(ping, check=False, capture_output=True).returncode == 0


class Redis(Server):
    """Redis with an append-only file."""

    name = "redis"
    scheme = "redis"

    def __init__(
        self, *, durable: bool = False, port: int | None = None, base: Path | None = None, **settings: str
    ) -> None:
        self._program = _find("redis-server")
        self._settings = settings
        super().__init__(durable=durable, port=port, base=base)

    @property
    def url(self) -> str:
        # Without fsync the server is not what the durable profile demands, and the store says so.
        return f"redis://127.0.0.1:{self.port}/0" + ("" if self.durable else "?durability=fast")

    def prepare(self) -> None:
        return

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "save": "",
            "appendonly": "yes" if self.durable else "no", "appendfsync": "always" if self.durable else "no",
            **self._settings,
        }  # fmt: skip
        return [self._program, *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as link:
            link.sendall(b"PING\r\n")
            return link.recv(16).startswith(b"+PONG")
        return False


class Zookeeper(Server):
    """A single ZooKeeper."""

    name = "zookeeper"
    scheme = "zookeeper"

    def __init__(
        self, *, durable: bool = False, port: int | None = None, base: Path | None = None, **settings: str
    ) -> None:
        self._java = _find("java")
        if not Path("/usr/share/java/zookeeper.jar").exists():
            raise Missing("zookeeper: /usr/share/java/zookeeper.jar is not there")
        self._settings = settings
        super().__init__(durable=durable, port=port, base=base)

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}/penstock-tests"

    def prepare(self) -> None:
        settings = {
            "clientPort": str(self.port), "clientPortAddress": "127.0.0.1", "dataDir": str(self.folder / "data"),
            "tickTime": "500", "admin.enableServer": "false", "4lw.commands.whitelist": "*", "maxClientCnxns": "0",
            "minSessionTimeout": "1000", "maxSessionTimeout": "60000", **self._settings,
        }  # fmt: skip
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.folder / "zoo.cfg").write_text(text)

    def command(self) -> list[str]:
        force = "yes" if self.durable else "no"
        return [
            self._java, "-Xmx256m", f"-Dzookeeper.forceSync={force}", "-cp",
            "/usr/share/java/zookeeper.jar:/etc/zookeeper/conf",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg"),
        ]  # fmt: skip

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as link:
            link.sendall(b"ruok")
            return link.recv(16) == b"imok"
        return False


SERVERS: dict[str, type[Server]] = {kind.name: kind for kind in (Postgres, Mysql, Redis, Zookeeper)}


def _children(parent: int) -> list[int]:
    """The processes that a process has started and that run."""
    return [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat")
            if (fields := _stat(stat)) and fields[0] != "Z" and int(fields[1]) == parent]  # fmt: skip


def _await_ends(pids: list[int]) -> None:
    """Wait until killed processes hold nothing any more; their parent may not have taken notice yet."""
    deadline = time.monotonic() + STOP_SECONDS
    for pid in pids:
        while (fields := _stat(Path(f"/proc/{pid}/stat"))) and fields[0] not in "ZX":
            if time.monotonic() > deadline:
                raise RuntimeError(f"process {pid} was killed and does not end")
            time.sleep(0.005)


def await_stopped(pid: int) -> None:
    """Wait until a process that was sent SIGSTOP runs no code any more; what it has asked of a disk may go on."""
    deadline = time.monotonic() + STOP_SECONDS
    while any(
        (fields := _stat(stat)) and fields[0] not in "TtDZX" for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {pid} was sent SIGSTOP and does not stop")
        time.sleep(0.001)


def _stat(path: Path) -> list[str]:
    """State, parent and so on of a process, or nothing when it is gone."""
    with contextlib.suppress(OSError):
        return path.read_text().rpartition(")")[2].split()
    return []


def _die_with_parent() -> None:
    """Runs in the child: whoever is killed leaves no servers behind."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _find(program: str) -> str:
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Missing(f"{program} is not installed")
    return found


def _newest(folder: str, program: str) -> Path:
    found = sorted(Path(folder).glob(f"*/{program}"), key=lambda path: float(path.parts[-3]))
    if not found:
        raise Missing(f"no {program} under {folder}")
    return found[-1]


ALIASES = {"mariadb": "mysql", "postgresql": "postgres", "zk": "zookeeper"}


def opens(server: Server) -> str:
    """The URL of a server as it can be opened: one that does not sync is not what the durable profile demands."""
    if server.durable or "durability=" in server.url:
        return server.url
    return f"{server.url}{'&' if '?' in server.url else '?'}durability=fast"


def main(names: list[str]) -> None:
    """Start servers for a person and print their URLs."""
    if {"-h", "--help"} & set(names):
        print(f"{__doc__}\nServers: {', '.join(SERVERS)}.")
        return
    names = [ALIASES.get(name, name) for name in names]
    if unknown := [name for name in names if name not in SERVERS]:
        known = ", ".join([*SERVERS, *ALIASES])
        raise SystemExit(f"error: there is no server {', '.join(unknown)} here. Known: {known}.")
    running = []
    try:
        for name in names or SERVERS:
            try:
                server = SERVERS[name]().start()  # type: ignore[call-arg]
            except Missing as missing:
                print(f"{name}: {missing}")
                continue
            running.append(server)
            print(opens(server), flush=True)
        if running:
            print("Ctrl-C stops them and removes their data.", flush=True)
            # Not whatever SIGINT does: in the background of a script that is nothing at all.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    finally:
        for server in running:
            server.close()


if __name__ == "__main__":
    main(sys.argv[1:])
