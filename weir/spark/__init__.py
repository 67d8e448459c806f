"""Weir on Spark: slots as Spark tasks, the driver with its sockets, submission.

The only importer of pyspark.
"""
