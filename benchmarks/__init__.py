"""What is measured of dpjax: records, the runs that fill them, pages written from them.

`record` has the format of records, and `fill`, which runs what one lacks; `page` fills
a template of `pages/` with tables of a record. See `python -m benchmarks -h`.
"""
