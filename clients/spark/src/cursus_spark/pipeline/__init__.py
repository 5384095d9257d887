"""The pipeline jobs, `cursus-pipeline JOB`: what teams run on topics with Spark, ready made.

A job is a click command in a module of its own, which takes a `job.Job`: the Spark session, the broker and what the job
tells while it runs. Jobs use the data source and sink like any user of them; nothing here knows how they work.
"""
