"""Records and transports of several parties, and processes, for tests of each tier."""

import contextlib
import os
import socket
import subprocess
import sys

import numpy as np
import scipy.stats

FALSE_ALARM = 1e-6


def records(size, seed, d=3):
    features = np.random.default_rng(seed).normal(size=(size, d)).astype(np.float32)
    targets = np.where(features @ np.arange(1, d + 1) > 0, 1, -1).astype(np.float32)
    return features, targets


def uniformity(vector):
    """Returns the p-value of a chi-squared test that all bytes are uniform."""
    counts = np.bincount(np.frombuffer(vector.tobytes(), np.uint8), minlength=256)
    return scipy.stats.chisquare(counts).pvalue


class Recorder:
    """A transport that writes down what its party hears and sends.

    change(party, index, message) is sent for a message, and nothing from `ends` on.
    """

    def __init__(self, transport, heard=None, change=None, ends=None):
        self.party, self.num_parties = transport.party, transport.num_parties
        self.heard, self.sent = [] if heard is None else heard, []
        self._transport, self._change, self._ends = transport, change, ends

    def exchange(self, message, num_bytes):
        if self._change:
            message = self._change(self.party, len(self.heard), message)
        if self._ends is not None and len(self.sent) >= self._ends:
            message = b""
        self.sent.append((message, num_bytes))
        self.heard.append(self._transport.exchange(message, num_bytes))
        return self.heard[-1]


def free_port(*candidates):
    for port in candidates:
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return free.getsockname()[1]
    raise AssertionError("no port is free")


def run_processes(commands, environments=None, timeout=400):
    """Returns exit codes, printed results, all output, and the errors as one text."""
    environments = [{}] * len(commands) if environments is None else environments
    with contextlib.ExitStack() as stack:
        processes = []
        for command, environment in zip(commands, environments, strict=True):
            process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | environment,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        texts = [process.communicate(timeout=timeout) for process in processes]
    out = [text for text, _ in texts]
    results = [
        [x.removeprefix("RESULT ") for x in text.splitlines() if x[:7] == "RESULT "]
        for text in out
    ]
    codes = [process.returncode for process in processes]
    return codes, results, out, "\n".join(err for _, err in texts)
