"""Where Spark looks for the data source `cursus`: it finds top-level packages whose name begins with `pyspark_`."""

from cursus_spark.source import CursusDataSource


class DefaultSource(CursusDataSource):
    """The name Spark asks for."""


__all__ = ["DefaultSource"]
