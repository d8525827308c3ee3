"""Records and transports of several parties, and processes, for tests of each tier."""

import socket
import subprocess
import sys

import numpy as np
import scipy.stats

FALSE_ALARM = 1e-6


def records(size, seed, d=3):
    """Returns one party's features and labels."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, d)).astype(np.float32)
    targets = np.where(features @ np.arange(1, d + 1) > 0, 1, -1).astype(np.float32)
    return features, targets


def uniformity(vector):
    """Returns the p-value of a chi-squared test that all bytes are uniform."""
    counts = np.bincount(np.frombuffer(vector.tobytes(), np.uint8), minlength=256)
    return scipy.stats.chisquare(counts).pvalue


class Recorder:
    """A transport that writes down what its party hears, and may change what it sends.

    change(party, index, message) is sent in the place of a message.
    """

    def __init__(self, transport, heard=None, change=None):
        self.party, self.num_parties = transport.party, transport.num_parties
        self.heard = [] if heard is None else heard
        self._transport, self._change = transport, change

    def exchange(self, message, num_bytes):
        if self._change:
            message = self._change(self.party, len(self.heard), message)
        self.heard.append(self._transport.exchange(message, num_bytes))
        return self.heard[-1]


def run_processes(script, num_processes, *arguments, timeout=60):
    """Runs a script several times; returns exit codes, and the results it prints.

    Its arguments are the number of the process, an address for all, and the rest.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(party), address, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for party in range(num_processes)
    ]
    try:
        output = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    results = [
        [line for line in text.splitlines() if line.startswith("RESULT")]
        for text in output
    ]
    return [process.returncode for process in processes], results
