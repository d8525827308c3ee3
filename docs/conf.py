"""How the site is built: `sphinx-build -W -b html docs docs/_build/html`.

Nothing is fetched: no inventories of other projects, no fonts or scripts of others.
Pages under `generated/` are written here from the package and the repository's pages.
`DPJAX_DOCS_EXECUTE=auto` runs the notebooks anew.
"""

import os
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import _api  # noqa: E402
import _copies  # noqa: E402

import dpjax  # noqa: E402

TARGETS = _api.targets()

project = "dpjax"
author = "the dpjax authors"
project_copyright = author
release = dpjax.__version__
version = release.partition("+")[0].partition(".dev")[0]  # without the checkout's state

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "contribute/skeletons"]
default_role = "code"
nitpicky = True
# Types of other projects, whose inventories are not fetched, and private classes.
_OTHERS = "collections|dp_accounting|jax|matplotlib|np|numpy|optax|os|typing"
nitpick_ignore_regex = [("py:class", rf"({_OTHERS}|dpjax(\.\w+)?\._\w+)\..*")]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # a docstring says what a parameter is
autosummary_generate = False  # a page of a name has the methods that dpjax documents
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
_SECTIONS = "Returns|Privacy|Utility|Sensitivity|Pitfalls|Bad numbers|Reference"
napoleon_custom_sections = _SECTIONS.split("|")

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_dmath_allow_space = False  # a dollar before a space is a dollar
myst_dmath_allow_digits = False  # and so is one before a price
myst_heading_anchors = 3
nb_execution_mode = os.environ.get("DPJAX_DOCS_EXECUTE", "off")
nb_execution_raise_on_error = True
nb_ipywidgets_js = {}  # no notebook has widgets, and they come from another host

html_math_renderer = "mathml"
html_theme = "sphinx_book_theme"  # without an edit link: pages are also generated
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
}
html_sidebars = {"_modules/**": ["navbar-logo.html", "search-button-field.html"]}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. "  # what is copied has no prompts
copybutton_prompt_is_regexp = True


def setup(app):
    """Writes the generated pages, and has docstrings and formulas converted."""
    _api.write_pages(HERE / "generated" / "api")
    _copies.write_pages(HERE / "generated")
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    app.connect("autodoc-process-docstring", _converted, priority=400)  # napoleon: 500


def _formula(self, node):
    """Writes a formula as MathML, which browsers draw without a script."""
    is_block = isinstance(node, nodes.math_block)
    shown = convert(node.astext(), display="block" if is_block else "inline")
    if "\\" in shown:
        raise ValueError(f"no MathML for all of {node.astext()}")
    self.body.append(f'<div class="math">{shown}</div>' if is_block else shown)
    raise nodes.SkipNode


def _converted(app, what, name, value, options, lines):
    del app, value, options
    if name == "dpjax.NeighboringRelation":  # of dp_accounting, which says little of it
        lines[:] = [
            "Which two data sets a guarantee compares: `REPLACE_ONE`, the default, one "
            "record that is another; `ADD_OR_REMOVE_ONE`, one record more or less."
        ]

    def target(code):
        package = ".".join(name.split(".")[:2])
        places = name, name.rpartition(".")[0], package
        names = (*(f"{place}.{code}" for place in places), code)
        return next((TARGETS[full] for full in names if full in TARGETS), None)

    lines[:] = _api.as_rst(lines, target)
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\ ")  # napoleon reads a type before a first line's colon
