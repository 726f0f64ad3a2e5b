"""The audit of collections that are too large for one process: each shard becomes one Parquet part.

DIR/audit.json            what is audited; written first
DIR/shards/NAME           features of a shard, its contribution to the sample, and which steps are done
DIR/model                 the scorer, fitted to the sample
DIR/parts/NAME.parquet    the scores of a shard; only the merge decides which pairs are flagged as mismatches
DIR/pairs.parquet         all parts, concatenated
DIR/summary.json          the figures; written last, so with it the audit is complete

No step holds more than one shard, or the sample. Files appear under their names only when they are complete, so the
same command continues with what is missing, on any number of machines that share the folder.
"""
