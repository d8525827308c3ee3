"""Strict JAX settings for the whole suite, its marks, and the fixtures tests share."""

import gc
import os
import time
import zlib
from collections import defaultdict
from pathlib import Path

import jax
import jaxlib
import pytest

collect_ignore = ["processes/worker.py"]  # a program, not a module

jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# The two workers keep the cores busy: to compile parts of a program side by side costs
# time, here an eighth, and gives the same program.
WHOLE = "--xla_cpu_parallel_codegen_split_count=1"
DEVICES = "--xla_force_host_platform_device_count=8"  # in XLA_FLAGS
IN_CI = os.environ.get("CI") == "true"
COUNTED = {"at": 0.0}  # when memory mappings were counted: see `few_programs`
LONG = {"slow", "audit", "coverage", "figures"}  # not in the default run
# Files of some minutes, which run first: no worker begins one while others are done.
FIRST = [
    *("tests/sklearn/test_checks.py", "tests/estimators/test_contract.py"),
    *("tests/estimators/test_sensitivity.py", "tests/replay/test_sklearn.py"),
    *("tests/replay/test_commands.py", "tests/replay/test_solvers.py"),
    *("tests/test_processes.py", "tests/test_docs.py", "tests/test_docs_examples.py"),
    *("tests/test_docs_commands.py", "tests/test_notebooks.py"),
]


# A source distribution holds the library and its tests alone. Files about pages, and
# those that import benchmarks, need the repository, too.
NEEDS_REPOSITORY = {"test_notebooks.py", "test_processes.py"}
IS_REPOSITORY = (Path(__file__).parents[1] / "benchmarks").exists()


class Absent(pytest.Module):
    """A file of tests of what is not there."""

    def collect(self):
        reason = "needs benchmarks, docs and notebooks: clone the repository"
        pytest.skip(reason, allow_module_level=True)


def is_absent(path):
    """Whether a file tests the repository rather than the library, which is alone."""
    if IS_REPOSITORY or path.suffix != ".py":
        return False
    is_of_pages = path.name.startswith("test_docs") or path.name in NEEDS_REPOSITORY
    return is_of_pages or "\nfrom benchmarks" in path.read_text()


def pytest_pycollect_makemodule(module_path, parent):
    """Skips what tests the repository, where it is absent."""
    if is_absent(module_path):
        return Absent.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Keeps such a file from those that look for examples, and import it for that."""
    found = yield
    if is_absent(file_path):
        return [one for one in found if isinstance(one, Absent)]
    return found


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    """Marks as slow what `quick` leaves out, and all that needs several devices.

    Long files come first, so that the workers are done at about the same time.
    """
    few_cases_of_each(items)
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in FIRST)
    for item in items:
        needed = item.get_closest_marker("devices")
        if needed and not LONG & {mark.name for mark in item.iter_markers()}:
            item.add_marker(pytest.mark.slow)  # the default run has one device
        # CI sets them for its slow tests, and must not skip.
        if needed and jax.device_count() < needed.args[0] and not IN_CI:
            reason = f"needs {needed.args[0]} devices: XLA_FLAGS={DEVICES}"
            item.add_marker(pytest.mark.skip(reason=reason))


def few_cases_of_each(items):
    """Marks as slow all but a few cases of a test with `quick`.

    The few lie evenly over the list. Every test begins at another place of it, so that
    the tests of a layer, run over one list, together meet every member.
    """
    cases = defaultdict(list)
    for item in items:
        quick = item.get_closest_marker("quick")
        if quick and not LONG & {mark.name for mark in item.iter_markers()}:
            cases[item.parent.nodeid, item.originalname, *quick.args].append(item)
    for (_, name, count), among in cases.items():
        start = zlib.crc32(name.encode())
        kept = {(start + i * len(among) // count) % len(among) for i in range(count)}
        for i, item in enumerate(among):
            if i not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Keeps modules and tests, which stay, out of the search for garbage.

    It is rare then: tracing makes many objects, few of them garbage, and the search at
    every 700 of them took a twelfth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def pytest_configure(config):
    keep_compiled_programs()
    add_flag(WHOLE)
    if not IN_CI and "not slow" in config.option.markexpr:
        compile_quickly()


def keep_compiled_programs():
    """Keeps compiled programs between runs, outside the tree: they take half the time.

    `DPJAX_TEST_CACHE` names another folder. A folder may be deleted at any time; each
    version of jax and jaxlib has its own, so that those of old versions can go.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "dpjax-tests")
    folder = Path(os.environ.get("DPJAX_TEST_CACHE", default)).expanduser()
    versions = f"jax-{jax.__version__}-jaxlib-{jaxlib.__version__}"
    jax.config.update("jax_compilation_cache_dir", str(folder / versions))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    # Commands that tests start, and workers, read the environment.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / versions)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def compile_quickly():
    """Compiles programs for the CPU in half the time, which is most of the default run.

    They are not optimized, and not those that users run: CI, runs by other marks, and
    files marked as `optimized` compile as users do.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    # XLA ends the process where it does not know a flag.
    if jaxlib.version.__version_info__ < (0, 11):
        add_flag("--xla_cpu_use_fusion_emitters=false")


def add_flag(flag):
    flags = os.environ.get("XLA_FLAGS", "")
    if flag not in flags:  # workers find those of the first process
        os.environ["XLA_FLAGS"] = f"{flags} {flag}"


@pytest.fixture(scope="module", autouse=True)
def programs_of_a_module(request):
    """Drops compiled programs module by module, and optimizes them where that matters.

    See `few_programs` and `compile_quickly`.
    """
    as_set = jax.config.read("jax_disable_most_optimizations")
    if request.node.get_closest_marker("optimized"):
        jax.config.update("jax_disable_most_optimizations", False)
    elif type(request.node).__name__ == "DoctestModule":  # tested elsewhere as well
        jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", as_set)
    jax.clear_caches()


@pytest.fixture(scope="module")
def compiled_quickly(programs_of_a_module):
    """For files that test words, files and contracts: not optimized in CI either.

    The numbers of the same programs are tested elsewhere.
    """
    as_set = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", as_set)


@pytest.fixture(autouse=True)
def few_programs():
    """Drops compiled programs where they take too many memory mappings.

    Each takes some ten. Linux gives a process 65,530 of them, and the compiler ends in
    a segmentation fault where there are no more. Counting takes a millisecond for each
    thousand, so it is done once a second: no more than 200 programs are compiled then.
    """
    yield
    if time.monotonic() < COUNTED["at"] + 1:
        return
    COUNTED["at"] = time.monotonic()
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(20261120)


@pytest.fixture(params=["sequential", "parallel"])
def plan(request, monkeypatch):
    """Makes new traces take one of the fold's plans: the CPU's, or that of others.

    A test must jit functions of its own.
    """
    platform = "cpu" if request.param == "sequential" else "default"
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *args, **plans: plans[platform](*args)
    )
    return request.param
