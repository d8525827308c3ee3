"""What the `dpjax` command does, as plain functions; needs `dpjax[experiments]`."""
