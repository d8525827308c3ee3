"""Reading of records from text, Parquet and NumPy files, whole, sampled or sharded."""
