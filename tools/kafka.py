"""Private Kafka brokers (KRaft) for tests and benchmarks, from the jars that tools/install_kafka.sh keeps."""

from __future__ import annotations

import base64
import contextlib
import os
import uuid
from pathlib import Path

from tools.servers import Missing, Server, free_port

HEAP = "384m"
SHARED = "PENSTOCK_TEST_BROKER"  # the port of a broker that the processes of a test run share


def jars(what: str = "kafka") -> Path:
    """Where the broker's jars are, or those of Spark's connector ("spark-kafka")."""
    cache = os.environ.get("PENSTOCK_CACHE")
    if not cache:
        cache = f"{os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'}/penstock"
    folder = Path(cache) / what
    if not (folder / ".stamp").exists():
        raise Missing(f"no jars in {folder}: run tools/install_kafka.sh {what}")
    return folder / "libs"


# A broker with these ends the transaction of a dead writer within a test; else it looks for them every ten seconds. It
# is as strict with a writer that was only cut off.
QUICK_ABORTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}


class Kafka(Server):
    """One broker that is its own controller, or one of several that share a cluster id."""

    name = "kafka"
    scheme = "kafka"

    def __init__(
        self,
        *,
        durable: bool = False,
        port: int | None = None,
        node: int = 1,
        controllers: dict[int, int] | None = None,
        cluster: str | None = None,
        **settings: str,
    ) -> None:
        """``controllers`` are the controller ports of all nodes, by node; without, it stands alone."""
        from tools.servers import _find

        self._java = _find("java")
        self._jars = jars()
        self._node = node
        self._controllers = controllers or {node: free_port()}
        self._cluster = cluster or new_cluster()
        self._settings = settings
        super().__init__(durable=durable, port=port)

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"

    @property
    def bootstrap(self) -> str:
        """What Kafka's own clients take."""
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        alone = len(self._controllers) == 1
        replicas = str(min(3, len(self._controllers)))
        controller = f"127.0.0.1:{self._controllers[self._node]}"
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self._controllers.items())
        settings = {
            "process.roles": "broker,controller", "node.id": str(self._node),
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER", "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            **({"controller.quorum.bootstrap.servers": controller} if alone else {"controller.quorum.voters": voters}),
            "log.dirs": str(self.folder / "data"), "auto.create.topics.enable": "false",
            # Internal topics are for fifty partitions and three replicas; a small node starts and works with few.
            "offsets.topic.replication.factor": replicas, "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": replicas, "transaction.state.log.num.partitions": "4",
            "transaction.state.log.min.isr": "1" if alone else "2",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "1" if alone else "2",
            "group.initial.rebalance.delay.ms": "0",
            # Short enough to see a member die within a test.
            "group.min.session.timeout.ms": "100",
            "group.consumer.min.session.timeout.ms": "1000", "group.consumer.session.timeout.ms": "6000",
            "group.consumer.min.heartbeat.interval.ms": "500", "group.consumer.heartbeat.interval.ms": "1000",
            # Clocks of tests stand in the past: what they date must not be removed for its age meanwhile.
            "log.retention.check.interval.ms": "3600000", "log.initial.task.delay.ms": "3600000",
            **({"log.flush.interval.messages": "1"} if self.durable else {}),
            **self._settings,
        }  # fmt: skip
        file = self.folder / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        form = ["--standalone"] if alone else []
        self.run(*self._program("kafka.tools.StorageTool"), "format", *form, "-t", self._cluster, "-c", str(file))

    def command(self) -> list[str]:
        return [*self._program("kafka.Kafka"), str(self.folder / "server.properties")]

    def _program(self, name: str) -> list[str]:
        # The quick compiler only: a broker that lives for a minute never pays back the slow one.
        quick = () if self.durable else ("-XX:TieredStopAtLevel=1",)
        return [self._java, f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseSerialGC", *quick, "-cp", f"{self._jars}/*", name]

    def answers(self) -> bool:
        if not self._port_open():
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        with contextlib.suppress(KafkaException):
            return len(client.list_topics(timeout=2).brokers) > 0
        return False


def new_cluster() -> str:
    """A cluster id as Kafka writes it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "a", 1)


def cluster(size: int = 3, **settings: str) -> list[Kafka]:
    """Brokers that replicate to each other, not yet started."""
    controllers = {node: free_port() for node in range(1, size + 1)}
    name = new_cluster()
    return [Kafka(node=node, controllers=controllers, cluster=name, **settings) for node in controllers]
