"""`python -m dpjax.cli` is the `dpjax` command."""

from dpjax.cli import main

main()
