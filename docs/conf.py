"""How the site is built: `sphinx-build -W -b html docs docs/_build/html`.

Nothing is fetched: no inventories of other projects, no fonts or scripts of others.
Pages under `generated/` are written here from the package and the repository's pages.
`DPJAX_DOCS_EXECUTE=auto` runs the notebooks anew.
"""

import os
import re
import sys
import tomllib
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import _pages  # noqa: E402

import dpjax  # noqa: E402

project = "dpjax"
author = project_copyright = "the dpjax authors"
release = dpjax.__version__
version = release.partition("+")[0].partition(".dev")[0]  # without the checkout's state

extensions = [f"sphinx.ext.{x}" for x in ("autodoc", "autosummary", "napoleon")]
extensions += ["sphinx.ext.viewcode", "sphinx_copybutton", "sphinx_design", "myst_nb"]
exclude_patterns = ["_build"]
default_role = "py:obj"
nitpicky = True
# Types of other projects, whose inventories are not fetched, and private classes.
_OTHERS = "collections|dp_accounting|jax|matplotlib|np|numpy|optax|os|typing"
nitpick_ignore_regex = [("py:class", rf"({_OTHERS}|dpjax(\.\w+)?\._\w+)\..*")]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # a docstring says what a parameter is
autosummary_generate = False  # `_pages` writes them
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
html_theme = "sphinx_book_theme"
html_title = f"dpjax {version}"
html_favicon = "static/favicon.svg"
toc_object_entries_show_parents = "hide"
html_theme_options = {"navbar_persistent": [], "extra_footer": "License: Apache-2.0"}
html_theme_options |= {"show_navbar_depth": 1, "show_toc_level": 2}
html_theme_options |= {f"use_{x}_button": False for x in ("download", "fullscreen")}
# Links to the repository, once `pyproject.toml` names a host that is no placeholder.
_URLS = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["urls"]
if ".invalid" not in _URLS["Repository"]:
    html_theme_options |= {"repository_url": _URLS["Repository"]}
    html_theme_options |= {"path_to_docs": "docs", "repository_branch": "main"}
    html_theme_options |= {f"use_{x}_button": True for x in ("repository", "edit_page")}
html_sidebars = {"_modules/**": ["navbar-logo.html", "search-button-field.html"]}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. "  # what is copied has no prompts
copybutton_prompt_is_regexp = True


def setup(app):
    """Writes the generated pages, and has docstrings and formulas converted."""
    _pages.write_api(HERE / "generated" / "api")
    _pages.write_copies(HERE / "generated")
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    app.connect("autodoc-skip-member", _skipped)
    app.connect("autodoc-process-docstring", _escaped, priority=400)  # napoleon: 500
    app.connect("missing-reference", _linked)
    app.connect("html-page-context", _without_edit_link)


def _formula(self, node):
    """Writes a formula as MathML, which browsers draw without a script."""
    is_block = isinstance(node, nodes.math_block)
    shown = convert(node.astext(), display="block" if is_block else "inline")
    if "\\" in shown:
        raise ValueError(f"no MathML for all of {node.astext()}")
    inline = f'<span class="formula">{shown}</span>\N{WORD JOINER}'
    self.body.append(f'<div class="math">{shown}</div>' if is_block else inline)
    raise nodes.SkipNode


def _without_edit_link(app, page, template, context, doctree):
    """Leaves out the link to a source that is written when the site is built."""
    if page.startswith("generated/"):
        context["page_source_suffix"] = ""  # what the theme asks for


def _skipped(app, what, name, value, skip, options):
    """Leaves out what classes have from others than dpjax."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    return skip or not (getattr(function, "__module__", None) or "").startswith("dpjax")


def _linked(app, env, node, content):
    """Links code of a docstring to the one public name that it is, or to its page."""
    code, page, objects = node["reftarget"], node["refdoc"], env.domains["py"].objects
    if not page.startswith("generated/api/"):
        return None
    if code.startswith("docs/"):
        return make_refnode(app.builder, page, code[5:-3], "", content)
    known = (name for name, entry in objects.items() if not entry.aliased)
    found = [name for name in known if f".{name}".endswith(f".{code}")]
    if f"dpjax.{code}" in found:
        found = [f"dpjax.{code}"]
    elif len(found) != 1 or (code.islower() and "_" not in code):  # an argument
        return content
    to = objects[found[0]]
    return make_refnode(app.builder, page, to.docname, to.node_id, content)


def _escaped(app, what, name, value, options, lines):
    """Makes a docstring, plain text with code in backticks, reStructuredText.

    A block after an empty line that is further indented is a formula or code.
    """
    result, is_doctest = [], False
    block = previous = None  # indentation of a block, and of the last line of text
    for line, before in zip(lines, ["x", *lines], strict=False):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        is_doctest &= bool(text)
        if text and block is not None and indent < block:
            block = None
        if text.startswith(">>>") and block is None:
            is_doctest, previous = True, indent
        if text and block is None and not is_doctest:
            if not before.strip() and previous is not None and indent > previous:
                block = indent
                result += [" " * previous + "::", ""]
            else:
                line, previous = _marked(line), indent
        result.append(line if text else "")
    lines[:] = result
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\ \\")  # napoleon reads a type before a first line's colon


def _marked(line):
    """Escapes what is markup outside of code; code may go on in another line."""
    head, text = re.match(r"(\s*\* )?(.*)", line, re.S).groups(default="")
    parts = text.split("`")
    if len(parts) % 2:
        parts[::2] = [re.sub(r"([\\*|]|_(?=\W|$))", r"\\\1", x) for x in parts[::2]]
        # A letter and a period are no item of a list: `n.`, or a first name.
        parts[0] = re.sub(r"(^\s*|: )(?=[A-Za-z]\.( |$))", r"\1\\", parts[0])
    return head + "`".join(parts)
