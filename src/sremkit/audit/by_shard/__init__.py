"""The audit of collections that are too large for one process: one shard in, one Parquet part out.

DIR/audit.json            what is audited; written first
DIR/shards/NAME           features of a shard, its share of the sample, and what is done with it
DIR/model                 what was learnt from the sample
DIR/parts/NAME.parquet    the verdicts on a shard; only the merging decides which pairs are called mismatches
DIR/pairs.parquet         all parts one after another
DIR/summary.json          the figures; written last, so with it all is there

No step holds more than one shard, or the sample. Everything appears under its name only when it is complete, so the
same command goes on with whatever is missing, on any number of machines that see the folder.
"""
