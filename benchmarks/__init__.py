"""What is measured of dpjax: records, the runs that fill them, pages written from them.

`record` holds the one format of records, and `fill`, which runs what one lacks. `page`
fills a template of `pages/`, where all prose stands, with tables of a record. Subjects
are `speed`, `utility`, `deep`, `figures` and `audits`, a folder each, and
`winners` and `guarantees`, a file each: each declares what is run, and its `write`
writes its page. `comparison` is what `utility` and `deep` share. See `python -m
benchmarks -h`.
"""
