"""`python -m dpjax` is the `dpjax` command."""

from dpjax.tables.cli import main

main()
