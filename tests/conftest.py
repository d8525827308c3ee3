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

collect_ignore = ["nightly/processes/worker.py"]  # a program, not a module
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# Workers keep the cores busy: to compile parts of a program side by side costs time.
WHOLE = "--xla_cpu_parallel_codegen_split_count=1"
COUNTED = {"at": 0.0}  # when memory mappings were counted: see `few_programs`
UNIT = Path(__file__).parent / "unit"
# Files that a source distribution, which has no pages and benchmarks, cannot run.
NEEDS_REPOSITORY = {"test_notebooks.py", "test_processes.py"}
IS_REPOSITORY = (Path(__file__).parents[1] / "benchmarks").exists()


class Absent(pytest.Module):
    def collect(self):
        reason = "needs benchmarks, docs and notebooks: clone the repository"
        pytest.skip(reason, allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):
    """Skips a file that tests the repository, where the library is alone."""
    collectors = yield
    if IS_REPOSITORY or file_path.suffix != ".py":
        return collectors
    name = file_path.name
    is_absent = name.startswith("test_docs") or name in NEEDS_REPOSITORY
    is_absent |= "\nfrom benchmarks" in file_path.read_text()
    return [Absent.from_parent(parent, path=file_path)] if is_absent else collectors


def pytest_addoption(parser):
    parser.addoption(
        "--all-cases", action="store_true", help="run the cases that `quick` leaves out"
    )


def pytest_collection_modifyitems(config, items):
    """Leaves out all but a few cases of a test with `quick`, without `--all-cases`.

    The few lie evenly over the list. Every test begins at another place of it, so that
    the tests of a layer, run over one list, together meet every member. `quick(0)`
    leaves out all.
    """
    if config.getoption("--all-cases"):
        return
    cases = defaultdict(list)
    for item in items:
        if quick := item.get_closest_marker("quick"):
            cases[item.parent.nodeid, item.originalname, *quick.args].append(item)
    left_out = set()
    for (_, name, count), among in cases.items():
        start = zlib.crc32(name.encode())
        few = {(start + i * len(among) // count) % len(among) for i in range(count)}
        left_out.update(item for i, item in enumerate(among) if i not in few)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish():
    """Makes the search for garbage rare, which took a twelfth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def pytest_configure(config):
    """Keeps compiled programs between runs, which takes half of the time."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "dpjax-tests")
    folder = Path(os.environ.get("DPJAX_TEST_CACHE", default)).expanduser()
    versions = f"jax-{jax.__version__}-jaxlib-{jaxlib.__version__}"
    jax.config.update("jax_compilation_cache_dir", str(folder / versions))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    # Commands that tests start, and workers, read the environment.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / versions)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    add_flag(WHOLE)
    paths = [Path(path.partition("::")[0]).absolute() for path in config.args]
    # XLA ends the process where it does not know a flag.
    if jaxlib.version.__version_info__ < (0, 11) and all(
        path == UNIT or UNIT in path.parents for path in paths
    ):
        add_flag("--xla_cpu_use_fusion_emitters=false")


def add_flag(flag):
    flags = os.environ.get("XLA_FLAGS", "")
    if flag not in flags:  # workers find those of the first process
        os.environ["XLA_FLAGS"] = f"{flags} {flag}"


@pytest.fixture(scope="module", autouse=True)
def programs_of_a_module(request):
    """Drops programs module by module; optimizes them, as users do, but in `unit`."""
    jax.config.update("jax_disable_most_optimizations", UNIT in request.path.parents)
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def compiled_quickly(programs_of_a_module):
    """For files outside `unit` that test what is shown and which keys are used."""
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def few_programs():
    """Drops compiled programs where they take too many memory mappings, some ten each.

    Linux gives a process 65,530 of them, and the compiler ends in a segmentation fault
    where there are no more. They are counted once a second: that takes milliseconds.
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
    """Makes functions that a test jits take the CPU's plan of the fold, or others'."""
    platform = "cpu" if request.param == "sequential" else "default"
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *args, **plans: plans[platform](*args)
    )
    return request.param
