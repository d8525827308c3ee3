"""Speed and memory of dpjax beside its peers: `python -m benchmarks run`."""
