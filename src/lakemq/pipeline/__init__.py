"""The data pipeline: Spark reads, writes, archives and queries. Needs the extra `spark`."""
