"""A private HDFS for tests, name node and data node in one process, from the jars that tools/install_kafka.sh keeps."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tools.kafka import jars
from tools.servers import Missing, Server, _find


class Hdfs(Server):
    """A file system of its own, empty, with one copy of everything."""

    name = "hdfs"
    scheme = "hdfs"

    def __init__(self, *, durable: bool = False, port: int | None = None) -> None:
        """Raises ``Missing`` without Java, without the jars, and without pyspark, which has Hadoop's client."""
        self._java = _find("java")
        self._jars = jars("hdfs")
        pyspark = importlib.util.find_spec("pyspark")
        if pyspark is None or pyspark.origin is None:
            raise Missing("pyspark is not installed here")
        self._client = Path(pyspark.origin).parent / "jars"
        super().__init__(durable=durable, port=port)

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    @property
    def _details(self) -> Path:
        return self.folder / "details.json"

    def prepare(self) -> None:
        (self.folder / "data").mkdir()

    def command(self) -> list[str]:
        self._details.unlink(missing_ok=True)
        places = [f"-Dtest.build.data={self.folder}/data", f"-Dhadoop.log.dir={self.folder}"]
        java = [self._java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *places]
        cluster = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
        return [
            *java, "-cp", f"{self._jars}/*:{self._client}/*", cluster, "-nomr", "-format", "-nnport", str(self.port),
            "-writeDetails", str(self._details),
        ]  # fmt: skip

    def answers(self) -> bool:
        """It writes its details when the data node has reported."""
        return self._details.exists() and bool(self._details.read_bytes())
