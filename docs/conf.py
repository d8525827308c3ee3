"""How the site is built: `sphinx-build -W -b html docs docs/_build/html`.

Nothing is fetched: no inventories of other projects, no fonts or scripts of others.
Pages under `generated/` are written here from the package, the repository's pages and
the recorded measurements. `DPJAX_DOCS_EXECUTE=auto` runs the notebooks anew.
"""

import os
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import _api  # noqa: E402
import _copies  # noqa: E402
import _docstrings  # noqa: E402
import _formulas  # noqa: E402
import _math  # noqa: E402
import _numbers  # noqa: E402
import _pictures  # noqa: E402
import _proofs  # noqa: E402

import dpjax  # noqa: E402

TARGETS = _api.targets()
_PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
REPOSITORY = _PROJECT.get("urls", {}).get("Repository", "")

project = "dpjax"
author = "the dpjax authors"
project_copyright = author
release = dpjax.__version__
version = release.partition("+")[0].partition(".dev")[0]  # without the checkout's state

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "contribute/skeletons", "generated/tables"]
default_role = "code"
nitpicky = True
# Types of other projects, whose inventories are not fetched, and private classes.
_OTHERS = "collections|dp_accounting|jax|matplotlib|np|numpy|optax|os|typing"
nitpick_ignore_regex = [("py:class", rf"({_OTHERS}|dpjax(\.\w+)?\._\w+)\..*")]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # a docstring says what a parameter is
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_custom_sections = [
    *(
        "Returns",
        "Privacy",
        "Utility",
        "Sensitivity",
        "Pitfalls",
        "Bad numbers",
        "Reference",
    )
]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_dmath_allow_space = False  # a dollar before a space is a dollar
myst_dmath_allow_digits = False  # and so is one before a price
myst_heading_anchors = 3
nb_execution_mode = os.environ.get("DPJAX_DOCS_EXECUTE", "off")
nb_execution_raise_on_error = True
nb_ipywidgets_js = {}  # no notebook has widgets, and they come from another host

html_math_renderer = "mathml"

html_theme = "sphinx_book_theme"
html_title = f"dpjax {version}"
html_favicon = "static/favicon.svg"
toc_object_entries_show_parents = "hide"
html_theme_options = {
    "navbar_persistent": [],  # the search stands in the sidebar
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "extra_footer": "Licence: Apache-2.0",
    # Off until pyproject.toml has the address, `[project.urls] Repository`.
    "repository_url": REPOSITORY,
    "use_repository_button": bool(REPOSITORY),
    "use_edit_page_button": bool(REPOSITORY),
    "path_to_docs": "docs",
}
html_sidebars = {"_modules/**": ["navbar-logo.html", "search-button-field.html"]}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. "  # what is copied has no prompts
copybutton_prompt_is_regexp = True


def setup(app):
    """Writes the generated pages, and has docstrings converted."""
    generated = HERE / "generated"
    for folder in ("api", "notebooks", "tables", "images"):
        (generated / folder).mkdir(parents=True, exist_ok=True)
    _api.write_pages(generated / "api")
    _copies.write_pages(generated)
    _numbers.write_tables(generated / "tables")
    _pictures.write(generated / "images")
    (generated / "tables" / "proofs.md").write_text(_proofs.table())
    app.add_html_math_renderer("mathml", (_math.inline, None), (_math.block, None))
    app.connect("autodoc-process-docstring", _convert, priority=400)  # napoleon: 500


def _convert(app, what, name, value, options, lines):
    del app, value, options
    package = ".".join(name.split(".")[:2])
    if name == "dpjax.NeighboringRelation":  # of dp_accounting, which says little of it
        lines[:] = [
            "Which two data sets a guarantee compares: `REPLACE_ONE`, the default, one "
            "record that is another; `ADD_OR_REMOVE_ONE`, one record more or less."
        ]

    def target(code):
        places = (f"{name}.{code}", f"{name.rpartition('.')[0]}.{code}")
        tried = (*places, f"{package}.{code}", code)
        return next((TARGETS[one] for one in tried if one in TARGETS), None)

    lines[:] = _docstrings.as_rst(lines, _formulas.FORMULAS, target)
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\ ")  # napoleon reads a type before a first line's colon
