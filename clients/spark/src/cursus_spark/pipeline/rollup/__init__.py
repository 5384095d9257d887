"""The job `rollup`: a topic's records in windows of event time, counted and measured.

command.py  the job: what it is asked for, what it tells while it runs and at the end
windows.py  records to results, as a streaming query
outputs.py  the results of a micro-batch to Parquet and to a topic, each once
"""
