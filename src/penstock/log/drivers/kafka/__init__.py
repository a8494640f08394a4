"""Logs in Apache Kafka, through confluent-kafka (librdkafka).

cluster   the connection: options, admin calls, errors in Penstock's words, what is kept beside the topics
driver    KafkaLogs: the contract's calls
sink      appends: idempotent, or in transactions of a named producer
transactional  producers that wait for transactions, one for each that is under way
source    reading for a group: fixed partitions or Kafka's own groups
staging   records that wait in a topic for a transaction of another process
sequences what producers and transactions have done, so that a repeat is recognised
"""

from penstock.log.drivers.kafka.driver import KafkaLogs, open_store

__all__ = ["KafkaLogs", "open_store"]
