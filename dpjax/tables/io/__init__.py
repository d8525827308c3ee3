"""Records in files: text and Parquet, in memory, sampled, or in shards."""
