"""Cursus topics as Spark tables and streams."""
