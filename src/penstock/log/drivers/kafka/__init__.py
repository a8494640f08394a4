"""Logs in Apache Kafka, through confluent-kafka (librdkafka).

driver          KafkaDriver: the contract's calls
cluster         the connection: options, admin calls, errors
producer        KafkaProducer: sending records, and transactions
transactional   a pool of producers for transactions
sink            appends: idempotent, or in transactions of a named producer
sequences       the last sequences of producers and transactions, to recognise repeats
source          reading for a group; what the two kinds of source share
assigned        reading fixed partitions
subscribed      reading the partitions that Kafka's groups assign
handles         what the store handles of one process share
leases          which tailer of this process reads which fixed partition
batch           messages as batches of records
staging         records that wait in a topic for a transaction of another process
"""

from penstock.log.drivers.kafka.driver import KafkaDriver, open_driver

__all__ = ["KafkaDriver", "open_driver"]
